"""What a call hands in: every check raises one clear error before anything is learned."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral
from typing import Any

import torch
from gpytorch.priors import Prior
from torch import Tensor

from torchbandits.arms import ArmRows
from torchbandits.coercion import ENDLESS, LARGEST, as_tensor, check_flag, is_whole, same_device
from torchbandits.errors import (
    ArgumentError,
    ArmIndexError,
    NonFiniteError,
    NumericalError,
    ShapeError,
    StateError,
    nearest,
    require,
)
from torchbandits.sources import ArmSet
from torchbandits.types import Pulls, Selection

MOST_MORE = 1_000_000  # picks that one call may add


def check_device(name: str, tensor: Tensor, device: torch.device) -> None:
    """Everything lives where the arms live."""
    require(
        same_device(tensor.device, device),
        f"{name} are on {tensor.device}, the arms on {device}: move one of them.",
        ShapeError,
    )


def _device_of(value: Any, device: torch.device) -> torch.device | None:
    """Where numbers are put that live nowhere yet; tensors stay where they are."""
    return None if isinstance(value, Tensor) else device


def check_picks(selection: Any, batch_shape: torch.Size, num_arms: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Arm indices `batch_shape x q` and their mask, from a selection or plain indices."""
    numbers = (
        isinstance(selection, Tensor | Sequence | Integral) or hasattr(selection, "__array__") or hasattr(selection, "to_numpy")
    )
    if not (isinstance(selection, Selection) or numbers) or isinstance(selection, str | bool):
        kind = type(selection).__name__
        raise ArgumentError(f"selection must be what ask() returned, or arm indices, got {kind} {selection!r:.60}.")
    if isinstance(selection, Selection):
        index = as_tensor("arm indices", selection.index)
    else:
        index = as_tensor("arm indices", selection, device=_device_of(selection, device))
        index = index.reshape(1) if not index.dim() and not batch_shape else index
    require(
        not index.is_floating_point() and not index.is_complex() and index.dtype != torch.bool,
        f"arm indices must be integers, got {index.dtype}.",
        ShapeError,
    )
    check_device("indices", index, device)
    require(
        index.dim() == len(batch_shape) + 1 and index.shape[:-1] == batch_shape,
        f"expected indices of shape batch_shape x q = {(*batch_shape, 'q')}, got {tuple(index.shape)}.",
        ShapeError,
    )
    mask = selection.mask if isinstance(selection, Selection) else torch.ones_like(index, dtype=torch.bool)
    mask = as_tensor("a selection's mask", mask)
    require(
        mask.shape == index.shape and mask.dtype == torch.bool,
        f"a selection's mask must be booleans shaped like its index {tuple(index.shape)}, got {mask.dtype} "
        f"{tuple(mask.shape)}.",
        ShapeError,
    )
    if not isinstance(selection, Selection):
        mask = index != -1
    bad = mask & ((index < 0) | (index >= num_arms))
    if bool(bad.any()):
        raise ArmIndexError(f"arm index {index[bad][0].item()} is outside 0 … {num_arms - 1}.")
    return index.long(), mask


def check_places(selection: Selection, rows: ArmRows) -> None:
    """A selection in a box still means the points that it was asked for: the places of forgotten picks go to later ones."""
    held = rows.points(selection.index)
    same = selection.points.shape == held.shape and selection.points.device == held.device
    require(
        same and bool(((selection.points == held).all(dim=-1) | ~selection.mask).all()),
        "some of these picks were forgotten, and other points have their places now: pass the points to observe().",
        StateError,
    )


def check_rewards(rewards: Any, index: Tensor, mask: Tensor, device: torch.device, failures: str = "error") -> Tensor:
    """Finite real rewards, shaped like the picks, as float64; NaN where an evaluation failed, if failures are forgotten."""
    known = failures in ("error", "forget")
    require(known, f"failures must be 'error' or 'forget', got {failures!r}.")
    y = as_tensor("rewards", rewards, device=_device_of(rewards, device))
    y = y.reshape(index.shape) if not y.dim() and index.numel() == 1 else y
    require(y.dtype != torch.bool and not y.is_complex(), f"rewards must be real numbers, got {y.dtype}.", ShapeError)
    require(
        y.shape == index.shape,
        f"rewards must be shaped like the selection's index, {tuple(index.shape)}, got {tuple(y.shape)}.",
        ShapeError,
    )
    check_device("rewards", y, device)
    y = y.double()
    bad = mask & (~(y.abs() <= LARGEST) if failures == "error" else y.abs() > LARGEST)
    if bool(bad.any()):
        largest = y[bad].abs().max()
        require(
            not bool(torch.isfinite(largest)),
            f"a reward of ±{largest:g} has a square beyond float64: scale it.",
            NumericalError,
        )
        raise NonFiniteError(
            f"{int(bad.sum())} rewards are NaN or infinite, the first {y[bad][0].item()}: tell finite rewards, and "
            "forget(selection) evaluations that failed, or tell them NaN with failures='forget'."
        )
    return y


def check_column(name: str, value: Any, like: torch.Size, device: torch.device) -> Tensor:
    """A finite column of summed history, as float64."""
    column = as_tensor(name, value, device=_device_of(value, device))
    require(
        column.shape == like,
        f"{name} must be shaped like the history, {tuple(like)}, got {tuple(column.shape)}.",
        ShapeError,
    )
    check_device(name, column, device)
    column = column.double()
    require(
        bool(torch.isfinite(column).all()),
        f"{name} has a NaN or infinite value: leave failed evaluations out.",
        NonFiniteError,
    )
    return column


def check_history(
    points_or_index: Any, counts: Any, sums: Any, squares: Any, batch_shape: torch.Size, arms: ArmSet, total: int | None = None
) -> Pulls:
    """Summed history at arm indices `batch_shape x h` or points `batch_shape x h x d`, expanded over the batch."""
    dim, device = arms.shape[-1], arms.device
    where = as_tensor("points_or_index", points_or_index, device=_device_of(points_or_index, device))
    given = where.shape[:-1] if where.is_floating_point() else where.shape
    require(
        len(given) >= 1,
        f"expected indices batch_shape x h or points batch_shape x h x d, got shape {tuple(where.shape)}.",
        ShapeError,
    )
    n, s = (check_column(k, v, given, device) for k, v in (("counts", counts), ("sums", sums)))
    require(bool((n > 0).all()), f"counts must be positive, got {n.min().item() if n.numel() else 'none'}.")
    q = s * s / n if squares is None else check_column("squares", squares, given, device)
    shape = torch.Size([*batch_shape, given[-1]])
    require(
        bool(torch.isfinite(q).all()), f"sums up to {s.abs().max():g} have squares beyond float64: scale them.", NumericalError
    )
    require(
        given in (shape, shape[-1:]),
        f"history must be shaped {tuple(shape)} or {tuple(shape[-1:])}, got {tuple(given)}.",
        ShapeError,
    )
    n, s, q = (column.expand(shape) for column in (n, s, q))
    if not where.is_floating_point():
        index, mask = check_picks(where.expand(shape), batch_shape, total or arms.shape[-2], device)
        require(bool(mask.all()), "history has an index of −1, which is no arm.", ArmIndexError)
        return Pulls(counts=n, sums=s, squares=q, index=index, mask=mask, history=True)
    require(where.shape[-1] == dim, f"points must have {dim} features like the arms, got {where.shape[-1]}.", ShapeError)
    check_device("points", where, device)
    require(bool(torch.isfinite(where).all()), "points have a NaN or infinite feature.", NonFiniteError)
    return Pulls(counts=n, sums=s, squares=q, points=where.expand(*shape, dim), history=True)


def check_limit(limit: Any, batch_shape: torch.Size, device: torch.device) -> Tensor | None:
    """Most picks, a whole number or one a batch row."""
    if limit is None:
        return None
    if isinstance(limit, int) and not isinstance(limit, bool) and limit >= 0:  # the usual case, in few operations
        return torch.tensor(min(limit, ENDLESS), device=device).expand(batch_shape)
    good = isinstance(limit, Tensor) and not limit.is_floating_point() and not limit.is_complex()
    require(
        good and bool((as_tensor("limit", limit) >= 0).all()),
        f"limit must be a whole number ≥ 0, or one a batch row, got {limit}.",
    )
    value = as_tensor("limit", limit, device=device)
    try:
        return value.expand(batch_shape)
    except RuntimeError as error:
        raise ShapeError(f"limit must be a number or shaped {tuple(batch_shape)}, got {tuple(value.shape)}.") from error


def check_more(more: Any) -> int | None:
    """Further picks, a positive whole number."""
    require(
        more is None or (is_whole(more) and more <= MOST_MORE),
        f"more must be a whole number from 1 to {MOST_MORE:,}, got {more}.",
    )
    return more


def check_count(k: Any) -> int:
    """How many arms to recommend."""
    require(is_whole(k) and k <= MOST_MORE, f"k must be at least 1, a whole number up to {MOST_MORE:,}, got {k!r}.")
    return int(k)


def check_told(k: int, pulls: Tensor) -> int:
    """`k`, once rewards were told in at least one batch row."""
    message = "nothing was told yet, so that no arm can be recommended: tell() rewards or observe() history first."
    require(bool((pulls > 0).any()), message, StateError)
    return k


def check_fit(noise: Any, options: dict[str, Any]) -> None:
    """Known options of a fit; which values they may have is the fit's to say."""
    known = ("misfit", "noise_prior", "max_exact", "dictionary_size", "restarts", "max_iterations")
    wrong = next((name for name in options if name not in known), None)
    require(wrong is None, f"{wrong!r} is no option of a fit: {', '.join(known)}.{nearest(str(wrong), known)}")
    for name, value in (("noise", noise), ("misfit", options.get("misfit", True))):
        check_flag(name, value)
    prior = options.get("noise_prior")
    kind = type(prior).__name__
    require(prior is None or isinstance(prior, Prior), f"noise_prior must be a gpytorch.priors.Prior or None, got {kind}.")


def check_available(available: Any, batch_shape: torch.Size, num_arms: int, device: torch.device) -> Tensor | None:
    """Booleans, one an arm."""
    if available is None:
        return None
    mask = as_tensor("available", available, device=device)
    shapes = {torch.Size([num_arms]), torch.Size([*batch_shape, num_arms])}
    if mask.dtype != torch.bool or mask.shape not in shapes:
        raise ShapeError(
            f"available must be booleans of shape {' or '.join(str(tuple(s)) for s in shapes)}, got {mask.dtype} of "
            f"shape {tuple(mask.shape)}."
        )
    return mask.expand(*batch_shape, num_arms)
