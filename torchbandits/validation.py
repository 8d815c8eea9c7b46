"""What a user may hand in: every check raises one clear error before anything is learned."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from torchbandits.arms import ArmRows
from torchbandits.coercion import as_tensor
from torchbandits.errors import ArgumentError, ArmIndexError, NonFiniteError, NumericalError, ShapeError, StateError, require
from torchbandits.optimize import check_box
from torchbandits.policies import Composed, Policy
from torchbandits.scores import PerCost
from torchbandits.types import Pulls, Selection

MOST_MORE = 1_000_000  # picks that one call may add
_ENDLESS = 2**62
LARGEST_REWARD = 1e150  # what its square, and the sum of many of those, leaves room for


def check_arms(arms: Any) -> None:
    """Arms are a non-empty, finite, floating-point tensor `batch_shape x A x d`."""
    require(isinstance(arms, Tensor), f"arms must be a torch tensor A x d, got {type(arms).__name__}.", ShapeError)
    require(arms.dim() >= 2, f"arms must be A x d or batch_shape x A x d, got shape {tuple(arms.shape)}.", ShapeError)
    require(arms.numel() > 0, f"there are no arms: got shape {tuple(arms.shape)}.", ShapeError)
    require(
        arms.dtype in (torch.float32, torch.float64),
        f"arms must be float64 (accurate) or float32 (fast), got {arms.dtype}: convert with arms.double().",
        ShapeError,
    )
    finite = torch.isfinite(arms).all(dim=-1)
    if not bool(finite.all()):
        first = (~finite).reshape(-1).nonzero()[0].item() % arms.shape[-2]
        raise NonFiniteError(f"arm {first} has a NaN or infinite feature.")


def check_new_arms(arms: Any, old: Tensor, batch_shape: torch.Size) -> None:
    """Arms that may take the place of others."""
    check_arms(arms)
    fits = arms.shape[:-2] in (torch.Size(), batch_shape) and arms.shape[-1] == old.shape[-1]
    d = old.shape[-1]
    shapes = " or ".join(str(s) for s in dict.fromkeys([("A", d), (*batch_shape, "A", d)]))
    require(fits, f"the new arms must be {shapes}, got {tuple(arms.shape)}.", ShapeError)
    require(arms.dtype == old.dtype, f"the new arms must be {old.dtype} like those before, got {arms.dtype}.", ShapeError)
    require(arms.device == old.device, f"the new arms are on {arms.device}, those before on {old.device}.", ShapeError)


def check_costs(costs: Any, policy: Policy, rows: ArmRows) -> Tensor | None:
    """Positive costs, one an arm, as float64; none where none are given and none are needed."""
    needed = isinstance(policy, Composed) and isinstance(policy.score, PerCost)
    require(costs is not None or not needed, "a score per cost needs the costs of the arms: pass costs=, one number an arm.")
    if costs is None:
        return None
    value, shape = as_tensor("costs", costs, torch.float64, rows.arms.device), (*rows.batch_shape, rows.num_arms)
    if value.shape not in (torch.Size(shape), torch.Size(shape[-1:])):
        known = " or ".join(str(s) for s in dict.fromkeys([shape[-1:], shape]))
        raise ShapeError(f"costs must be one number an arm, {known}, got {tuple(value.shape)}.")
    good = torch.isfinite(value) & (value > 0)
    require(bool(good.all()), f"costs must be finite and > 0, got {value[~good][:1].tolist()}.", NonFiniteError)
    if rows.first is not None:
        whole = value.expand(*rows.first.shape[:-1], -1)
        same = bool((whole == whole.gather(-1, rows.first.expand(whole.shape))).all())
        require(same, "equal arms must cost the same: they share one entry.")
    return value


def check_maximum(point: Any, rows: ArmRows) -> Tensor:
    """A finite point a batch row, `batch_shape x 1 x d` (or one arm set's), from a maximiser."""
    d, shape = rows.arms.shape[-1], rows.batch_shape
    if not isinstance(point, Tensor) or point.shape not in (torch.Size([*shape, d]), torch.Size([*shape, 1, d])):
        got = tuple(point.shape) if isinstance(point, Tensor) else type(point).__name__
        raise ShapeError(f"a maximizer must return one point a batch row, {(*shape, d)}, got {got}.")
    require(bool(torch.isfinite(point).all()), "the maximizer returned a NaN or infinite point.", NonFiniteError)
    return point.detach().reshape(*shape, 1, d).to(rows.arms)


def check_domain(arms: Any, bounds: Any) -> Tensor:
    """Either arms, or a box `batch_shape x 2 x d` of finite corners, lower first, as float64; whichever was given."""
    require((arms is None) != (bounds is None), "give either arms (A x d) or bounds (2 x d), and not both.")
    if bounds is None:
        check_arms(arms)
        return torch.as_tensor(arms)
    return check_box(bounds)


def check_generators(generator: Any, arms: Tensor, kernel: Any) -> tuple[tuple[torch.Generator, ...], torch.Size]:
    """One generator a batch row, and the batch shape of generators, arms and kernel together."""
    single = generator is None or isinstance(generator, torch.Generator)
    if not single and not isinstance(generator, Sequence):
        raise ArgumentError(f"generator must be a torch.Generator or a list of them, got {type(generator).__name__}.")
    generators = (generator or torch.Generator().manual_seed(0),) if single else tuple(generator)
    require(
        len(generators) > 0 and all(isinstance(g, torch.Generator) for g in generators),
        f"generator must be a torch.Generator or a non-empty list of them, got {generator!r}.",
    )
    wrong = [g.device for g in generators if g.device.type != "cpu"]
    require(not wrong, f"generators live on the CPU, whatever the arms' device, got {wrong}.")
    own = torch.Size() if single else torch.Size([len(generators)])
    kernel_shape = getattr(kernel, "batch_shape", torch.Size())
    try:
        shape = torch.broadcast_shapes(arms.shape[:-2], own, kernel_shape)
    except RuntimeError as error:
        raise ShapeError(
            f"batch shapes do not broadcast: arms {tuple(arms.shape[:-2])}, {len(generators)} generators, kernel "
            f"{tuple(kernel_shape)}."
        ) from error
    if len(generators) != shape.numel():
        raise ArgumentError(f"batch shape {tuple(shape)} needs {shape.numel()} generators, one a row, got {len(generators)}.")
    return generators, shape


def check_device(name: str, tensor: Tensor, device: torch.device) -> None:
    """Everything lives where the arms live."""
    require(tensor.device == device, f"{name} are on {tensor.device}, the arms on {device}: move one of them.", ShapeError)


def check_picks(selection: Any, batch_shape: torch.Size, num_arms: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Arm indices `batch_shape x q` and their mask, from a selection or plain indices."""
    if not isinstance(selection, Selection | Tensor | Sequence) or isinstance(selection, str):
        raise ArgumentError(f"expected a selection or arm indices, got {type(selection).__name__} {selection!r}.")
    index = as_tensor("arm indices", selection.index if isinstance(selection, Selection) else selection)
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
    y = as_tensor("rewards", rewards)
    require(y.dtype != torch.bool and not y.is_complex(), f"rewards must be real numbers, got {y.dtype}.", ShapeError)
    require(
        y.shape == index.shape,
        f"rewards must be shaped like the selection's index, {tuple(index.shape)}, got {tuple(y.shape)}.",
        ShapeError,
    )
    check_device("rewards", y, device)
    y = y.double()
    bad = mask & (~(y.abs() <= LARGEST_REWARD) if failures == "error" else y.abs() > LARGEST_REWARD)
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
    column = as_tensor(name, value)
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


def check_history(points_or_index: Any, counts: Any, sums: Any, squares: Any, batch_shape: torch.Size, arms: Tensor) -> Pulls:
    """Summed history at arm indices `batch_shape x h` or points `batch_shape x h x d`, expanded over the batch."""
    where, dim, device = as_tensor("points or indices", points_or_index), arms.shape[-1], arms.device
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
        index, mask = check_picks(where.expand(shape), batch_shape, arms.shape[-2], device)
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
    limit = min(limit, _ENDLESS) if isinstance(limit, int) else limit
    whole = isinstance(limit, int) or (isinstance(limit, Tensor) and not limit.is_floating_point() and not limit.is_complex())
    require(
        whole and not isinstance(limit, bool) and bool((torch.as_tensor(limit) >= 0).all()),
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
        more is None or (isinstance(more, int) and not isinstance(more, bool) and 1 <= more <= MOST_MORE),
        f"more must be a whole number from 1 to {MOST_MORE:,}, got {more}.",
    )
    return more


def check_count(k: Any) -> int:
    """How many arms to recommend."""
    whole = isinstance(k, int) and not isinstance(k, bool) and 1 <= k <= MOST_MORE
    require(whole, f"k must be at least 1, a whole number up to {MOST_MORE:,}, got {k!r}.")
    return int(k)


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


def check_state(state_dict: Any, own: dict[str, Any]) -> None:
    """What `Bandit.state_dict` returned for the same kind of policy, the same arms and batch rows."""
    require(
        isinstance(state_dict, dict) and {"state", "open"} <= state_dict.keys(),
        "expected what Bandit.state_dict() returned, a dictionary with 'state' and 'open'.",
    )
    saved = state_dict["state"]
    differ = sorted(saved.keys() ^ own.keys())
    require(not differ, f"the saved state is of another kind of policy: it differs in {', '.join(differ[:3])}.", StateError)
    shape, mine = (tuple(state["rows.row_of_arm"].shape) for state in (saved, own))
    if (name := "box.corners" if "box.corners" in own else "tree.division.box") in own:  # its arms are those found so far
        boxes = saved[name], own[name]
        same = boxes[0].shape == boxes[1].shape and torch.equal(boxes[0].cpu(), boxes[1].cpu())
        require(same, f"the saved state is of the box {boxes[0].tolist()}, this bandit's is {boxes[1].tolist()}.", StateError)
        return
    require(
        shape == mine,
        f"the saved state is of {shape[-1]} arms in batch rows {shape[:-1]}, this bandit of {mine[-1]} in {mine[:-1]}.",
        ShapeError,
    )
