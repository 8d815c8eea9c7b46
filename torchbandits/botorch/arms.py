"""BoTorch acquisition functions over finite sets of arms."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from botorch.acquisition import (
    AcquisitionFunction,
    OneShotAcquisitionFunction,
    ProximalAcquisitionFunction,
    qLogNoisyExpectedImprovement,
)
from botorch.acquisition.fixed_feature import FixedFeatureAcquisitionFunction
from botorch.utils.transforms import is_ensemble
from linear_operator.utils.warnings import NumericalWarning
from torch import Tensor

from torchbandits.arms import TIE, best_arm
from torchbandits.botorch.acquisition import PolicyAcquisition
from torchbandits.botorch.any_model import batch_shape_of
from torchbandits.checks import check_arms, check_available, check_flag, check_whole, explains_keywords, is_whole
from torchbandits.errors import NonFiniteError, ShapeError, UnsupportedError, require
from torchbandits.upstream import baseline_without_pending

_LEADERS = 64  # arms that are refreshed at once, doubled whenever they do not suffice


@explains_keywords
@torch.no_grad()
def optimize_arms(
    acq_function: AcquisitionFunction,
    arms: Tensor,
    q: int = 1,
    *,
    unique: bool = True,
    available: Tensor | None = None,
    max_batch_size: int = 2048,
) -> tuple[Tensor, Tensor, Tensor]:
    """Maximise any BoTorch acquisition function over finitely many arms; q arms one after the other.

    The picks are those of `botorch.optim.optimize_acqf_discrete`, except that the lowest index wins among equal values, arms
    may be taken off offer by a mask, and indices are returned. Every pick is pending for the next ones
    (`X_pending`); afterwards the earlier pending points are restored, also after an error.

    For a `PolicyAcquisition` whose score only falls as points become pending, all arms are scored once. Stale values are upper
    bounds on the current ones, so that only the best few are refreshed until the maximum is among them.

    Args:
        acq_function: Any acquisition function except one-shot ones. For q > 1 it must take pending points.
        arms: `A x d`, or `batch_shape x A x d` for a model with that batch shape: then each batch row picks for itself.
        q: Number of picks.
        unique: Whether an arm may be picked once only. With False an arm may be picked again, as in the batches of `Bandit.ask`
            and in their theory: repeats measure a noisy arm more precisely.
        available: `A` or `batch_shape x A` booleans, arms on offer; all of them by default.
        max_batch_size: Number of arms that are scored at once, which bounds the memory.

    Returns:
        Points `batch_shape x q x d`, the value that each pick had `batch_shape x q`, and its index into `arms` likewise.

    Raises:
        ShapeError: If arms or mask have the wrong shape.
        ArgumentError: If fewer arms are on offer than must be picked, or `q` comes before the arms.
        NonFiniteError: If the acquisition function is NaN at an arm.
        UnsupportedError: For one-shot functions; BoTorch's own if q > 1 and the function takes no pending points.

    Cost: one evaluation per arm; the same for each further pick, or a few dozen evaluations for a `PolicyAcquisition`.
    """
    require(not is_whole(arms), "q comes after the candidates here: optimize_arms(acq_function, arms, q).")
    arms = check_arms(arms)
    known = isinstance(acq_function, AcquisitionFunction)
    require(known, f"acq_function must be a BoTorch AcquisitionFunction, got {type(acq_function).__name__}.")
    require(
        not isinstance(acq_function, OneShotAcquisitionFunction),
        f"{type(acq_function).__name__} optimises its fantasies with the point: use botorch.optim.optimize_acqf.",
        UnsupportedError,
    )
    check_whole("q", q)
    check_flag("unique", unique)
    check_whole("max_batch_size", max_batch_size)
    shape = _batch_shape(acq_function)
    arms = _expanded(arms, shape)
    open_ = check_available(available, shape, arms.shape[-2], arms.device)
    open_ = torch.ones(arms.shape[:-1], dtype=torch.bool, device=arms.device) if open_ is None else open_.clone()
    fewest, needed = int(open_.sum(dim=-1).min()), q if unique else 1
    require(fewest >= needed, f"{needed} different arms are needed, and only {fewest} can be selected.")

    if q == 1:
        values = _scan(acq_function, arms, max_batch_size).masked_fill(~open_, -torch.inf)
        index = best_arm(values).unsqueeze(-1)
        return _at(arms, index), values.gather(-1, index), index
    return _one_after_the_other(acq_function, arms, open_, q, unique, max_batch_size)


def _one_after_the_other(
    acq_function: AcquisitionFunction, arms: Tensor, open_: Tensor, q: int, unique: bool, max_batch_size: int
) -> tuple[Tensor, Tensor, Tensor]:
    """`optimize_arms` for several picks, among the arms of the mask `open_`, `batch_shape x A`, which is overwritten."""
    base = _pending(acq_function)
    acq_function.set_X_pending(base)  # raises now, if the function takes no pending points
    lazy = isinstance(acq_function, PolicyAcquisition) and acq_function.lazy
    picks: list[Tensor] = []
    scores: list[Tensor] = []
    try:
        for _ in range(q):
            if not picks or not lazy:
                values = _scan(acq_function, arms, max_batch_size).masked_fill(~open_, -torch.inf)
            else:
                values = _refreshed(acq_function, arms, values.masked_fill(~open_, -torch.inf), max_batch_size)
            index = best_arm(values).unsqueeze(-1)
            picks.append(index)
            scores.append(values.gather(-1, index))
            if unique:
                open_.scatter_(-1, index, False)
            if len(picks) < q:
                chosen = _at(arms, torch.cat(picks, dim=-1))
                acq_function.set_X_pending(chosen if base is None else _joined(base, chosen))
    finally:
        acq_function.set_X_pending(base)
    indices = torch.cat(picks, dim=-1)
    return _at(arms, indices), torch.cat(scores, dim=-1), indices


def _pending(acq_function: AcquisitionFunction) -> Tensor | None:
    """The pending points of an acquisition function."""
    if isinstance(acq_function, qLogNoisyExpectedImprovement) and acq_function.incremental:
        # Its `X_pending` is None: the pending points are at the end of its baseline.
        pending = acq_function.X_baseline[..., baseline_without_pending(acq_function).shape[-2] :, :]
        return pending if pending.shape[-2] else None
    return getattr(acq_function, "X_pending", None)  # BoTorch's base class does not create it


def _batch_shape(acq_function: AcquisitionFunction) -> torch.Size:
    """Batch shape of the function's values: that of the model; empty if it averages over rows, or is undefined."""
    # Functions around another one, which have no model themselves.
    while isinstance(acq_function, FixedFeatureAcquisitionFunction | ProximalAcquisitionFunction):
        acq_function = acq_function.acq_func
    model = acq_function.model
    return torch.Size() if is_ensemble(model) else batch_shape_of(model)


def _expanded(arms: Tensor, shape: torch.Size) -> Tensor:
    """Arms expanded to every batch row, without a copy."""
    fits = arms.shape[:-2] in (torch.Size(), shape)
    wanted = " or ".join(str(s) for s in dict.fromkeys([("A", "d"), (*shape, "A", "d")]))
    require(fits, f"the model has batch shape {tuple(shape)}: arms must be {wanted}, got {tuple(arms.shape)}.", ShapeError)
    return arms.expand(*shape, *arms.shape[-2:])


def _scan(acq_function: AcquisitionFunction, arms: Tensor, max_batch_size: int) -> Tensor:
    """The value of every arm, `batch_shape x A`."""
    return torch.cat([_evaluated(acq_function, part) for part in arms.split(max_batch_size, dim=-2)], dim=-1)


def _refreshed(acq_function: AcquisitionFunction, arms: Tensor, values: Tensor, max_batch_size: int) -> Tensor:
    """Stale upper bounds on the current values, of which those that could be the maximum of a row are refreshed."""
    fresh, size = values == -torch.inf, _LEADERS
    while True:
        best = values.amax(dim=-1, keepdim=True)
        waiting = (values >= best - TIE * best.abs()) & ~fresh
        if not bool(waiting.any()):
            return values
        index = values.masked_fill(fresh, -torch.inf).topk(min(size, values.shape[-1]), dim=-1).indices
        now = _scan(acq_function, _at(arms, index), max_batch_size)
        values = values.scatter(-1, index, torch.where(fresh.gather(-1, index), values.gather(-1, index), now))
        fresh, size = fresh.scatter(-1, index, True), 2 * size


def _evaluated(acq_function: AcquisitionFunction, points: Tensor) -> Tensor:
    """Values of points `batch_shape x n x d`, `batch_shape x n`."""
    # A pending arm is scored jointly with itself, and the covariance of that pair is singular.
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "A not p.d., added jitter of 1.0e-08", NumericalWarning)
        values: Any = acq_function(points.movedim(-2, 0).unsqueeze(-2))
    values = values.reshape(points.shape[-2], *points.shape[:-2]).movedim(0, -1)
    require(not bool(values.isnan().any()), "the acquisition function is NaN at an arm.", NonFiniteError)
    return values


def _at(arms: Tensor, index: Tensor) -> Tensor:
    """Arms of these indices, `batch_shape x n` to `batch_shape x n x d`."""
    return arms.gather(-2, index.unsqueeze(-1).expand(*index.shape, arms.shape[-1]))


def _joined(base: Tensor, chosen: Tensor) -> Tensor:
    """Pending points followed by the picks."""
    return torch.cat([base.expand(*chosen.shape[:-2], *base.shape[-2:]), chosen], dim=-2)
