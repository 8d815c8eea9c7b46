"""The arguments of a bandit: its arms, costs, generators and saved states; picks, rewards and history."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from numbers import Integral
from typing import Any

import numpy as np
import torch
from gpytorch.priors import Prior
from torch import Tensor

from torchbandits.checks.tensors import as_features, as_tensor, own_copy, same_device
from torchbandits.checks.values import ENDLESS, LARGEST, check_flag, check_whole, is_whole
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
from torchbandits.shapes import broadcast_shapes
from torchbandits.transfers import to_host
from torchbandits.types import Pulls, Selection

MOST_MORE = 1_000_000
"""Largest number of picks that one call may add."""
# Numbers of blocks are stored beside rewards, in float64.
_MOST_BLOCKS = 1 << 53


def check_device(name: str, tensor: Tensor, device: torch.device) -> None:
    """Refuse a tensor that is not on the device of the arms."""
    if tensor.device != device and not same_device(tensor.device, device):
        raise ShapeError(f"{name} are on {tensor.device}, the arms on {device}: move one of them.")


def _device_of(value: Any, device: torch.device) -> torch.device | None:
    """The device for numbers that are not tensors yet; tensors stay on their device."""
    return None if isinstance(value, Tensor) else device


# ---------------------------------------------------------------------- the domain


def check_arms(arms: Any) -> Tensor:
    """Arms as a non-empty, finite, floating-point tensor `batch_shape x A x d`; whole numbers become float64."""
    arms = as_features("arms", arms)
    require(arms.dim() >= 2, f"arms must be A x d or batch_shape x A x d, got shape {tuple(arms.shape)}.", ShapeError)
    require(arms.shape[-1] > 0, f"the arms have no features: got shape {tuple(arms.shape)}.", ShapeError)
    require(arms.numel() > 0, f"there are no arms: got shape {tuple(arms.shape)}.", ShapeError)
    require(
        arms.dtype in (torch.float32, torch.float64),
        f"arms must be float64 (accurate) or float32 (fast), got {arms.dtype}: convert with arms.double(), or an array with "
        "arms.astype('float64').",
        ShapeError,
    )
    finite = torch.isfinite(arms).all(dim=-1)
    if not bool(finite.all()):
        first = (~finite).reshape(-1).nonzero()[0].item() % arms.shape[-2]
        raise NonFiniteError(f"arm {first} has a NaN or infinite feature.")
    return arms


def check_replacement(new: Any, old: Any, batch_shape: torch.Size) -> None:
    """Refuse arms (a tensor or a source) that cannot take the place of others: of another dimension, dtype or device."""
    fits = new.shape[:-2] in (torch.Size(), batch_shape) and new.shape[-1] == old.shape[-1]
    d = old.shape[-1]
    shapes = " or ".join(str(s) for s in dict.fromkeys([("A", d), (*batch_shape, "A", d)]))
    require(fits, f"the new arms must be {shapes}, got {tuple(new.shape)}.", ShapeError)
    require(new.dtype == old.dtype, f"the new arms must be {old.dtype} like those before, got {new.dtype}.", ShapeError)
    same = same_device(new.device, old.device)
    require(same, f"the new arms are on {new.device}, those before on {old.device}.", ShapeError)


def check_box(bounds: Any) -> Tensor:
    """A box `batch_shape x 2 x d` of finite corners, lower first, as float64.

    Raises:
        ShapeError, NonFiniteError, ArgumentError: For anything else; the message says what came.
    """
    box = as_tensor("bounds", bounds)
    require(
        box.dim() >= 2 and box.shape[-2] == 2 and box.numel() > 0 and not box.is_complex() and box.dtype != torch.bool,
        f"bounds must be 2 x d or batch_shape x 2 x d, lower corner first, got {box.dtype} of shape {tuple(box.shape)}.",
        ShapeError,
    )
    box = box.double()
    require(bool(torch.isfinite(box).all()), "bounds have a NaN or an infinity: give a finite box.", NonFiniteError)
    lower, upper = box.unbind(dim=-2)
    require(bool(torch.isfinite(upper - lower).all()), f"the bounds are too far apart: {box.tolist()}.", NonFiniteError)
    require(bool((lower <= upper).all()), f"each lower bound must be at most the upper one, got {box.tolist()}.")
    return box


def check_costs(
    costs: Any, batch_shape: torch.Size, num_arms: int, device: torch.device, first: Tensor | None = None
) -> Tensor:
    """Positive costs, one per arm, as a float64 copy.

    Args:
        costs: `A` or `batch_shape x A`.
        batch_shape: Batch shape of the bandit.
        num_arms: A.
        device: Device of the arms.
        first: `... x A`, the first arm that equals each arm, where some are duplicates; duplicates must cost the same.
    """
    value, shape = as_tensor("costs", costs, torch.float64, device), (*batch_shape, num_arms)
    if value.shape not in (torch.Size(shape), torch.Size(shape[-1:])):
        known = " or ".join(str(s) for s in dict.fromkeys([shape[-1:], shape]))
        raise ShapeError(f"costs must be one number per arm, {known}, got {tuple(value.shape)}.")
    good = torch.isfinite(value) & (value > 0)
    require(bool(good.all()), f"costs must be finite and > 0, got {value[~good][:1].tolist()}.", NonFiniteError)
    other = None if first is None else _unequal(value, first)
    if other is not None:
        arm, equal, own, its = other
        raise ArgumentError(
            f"costs: equal arms must have the same cost, because they share one entry. Arm {arm} equals arm {equal}, "
            f"and costs {own:g} instead of {its:g}."
        )
    return own_copy(value)


def check_known(
    names: Sequence[str], known: Any, batch_shape: torch.Size, num_arms: int, device: torch.device, first: Tensor | None = None
) -> Tensor:
    """Values of outcomes that are known for all arms, finite, `k x A` or `batch_shape x k x A`, as a float64 copy.

    Args:
        names: Names of these outcomes.
        known: `k x A` or `batch_shape x k x A`.
        batch_shape: Batch shape of the picks.
        num_arms: A.
        device: Device of the arms.
        first: As for `check_costs`; equal arms must have equal values.
    """
    value, tail = as_tensor("known", known, torch.float64, device), (len(names), num_arms)
    fits = value.shape in (torch.Size(tail), torch.Size([*batch_shape, *tail]))
    require(fits, f"known must have one number per arm, {num_arms:,}, for each outcome, got {tuple(value.shape)}.", ShapeError)
    for name, own in zip(names, value.unbind(dim=-2), strict=True):
        good = torch.isfinite(own)
        require(bool(good.all()), f"known[{name!r}] must be finite, got {own[~good][:1].tolist()}.", NonFiniteError)
        other = None if first is None else _unequal(own, first)
        if other is not None:
            arm, equal, here, there = other
            raise ArgumentError(
                f"known[{name!r}]: equal arms must have equal values, because they share one entry. Arm {arm} equals arm "
                f"{equal}, and has {here:g} instead of {there:g}."
            )
    return own_copy(value)


def _unequal(value: Tensor, first: Tensor) -> tuple[int, int, float, float] | None:
    """An arm, the first arm that equals it, and their values, which differ; None if there is no such arm."""
    whole = value.expand(broadcast_shapes(value.shape, first.shape))
    first = first.expand(whole.shape)
    others = (whole != whole.gather(-1, first)).nonzero().tolist()
    if not others:
        return None
    place = tuple(others[0])
    equal = (*place[:-1], int(first[place]))
    return place[-1], equal[-1], whole[place].item(), whole[equal].item()


def check_generators(generator: Any, arms: Any, kernel: Any) -> tuple[tuple[torch.Generator, ...], torch.Size]:
    """One generator per batch row, and the batch shape of generators, arms (or box) and kernel together."""
    single = generator is None or isinstance(generator, torch.Generator)
    if not single and not isinstance(generator, Sequence):
        raise ArgumentError(f"generator must be a torch.Generator or a list of them, got {type(generator).__name__}.")
    generators = (generator or torch.Generator().manual_seed(0),) if single else tuple(generator)
    require(
        len(generators) > 0 and all(isinstance(g, torch.Generator) for g in generators),
        f"generator must be a torch.Generator or a non-empty list of them, got {generator!r}.",
    )
    # Rows that share a generator would be copies of each other, or depend on each other's draws.
    require(
        len({id(g) for g in generators}) == len(generators),
        "each batch row needs a generator of its own, and some of these are one object: pass "
        "[torch.Generator().manual_seed(seed) for seed in range(rows)].",
    )
    wrong = [g.device for g in generators if g.device.type != "cpu"]
    require(
        not wrong,
        f"generators live on the CPU, whatever the arms' device, got {wrong}. With TORCHBANDITS_PHILOX=1 in the environment a "
        "CUDA device makes the draws of posteriors, from seeds of these generators.",
    )
    own = torch.Size() if single else torch.Size([len(generators)])
    kernel_shape = getattr(kernel, "batch_shape", torch.Size())
    try:
        shape = broadcast_shapes(arms.shape[:-2], own, kernel_shape)
    except RuntimeError as error:
        raise ShapeError(
            f"batch shapes do not broadcast: arms {tuple(arms.shape[:-2])}, {len(generators)} generators, kernel "
            f"{tuple(kernel_shape)}."
        ) from error
    if len(generators) != shape.numel():
        raise ArgumentError(
            f"batch shape {tuple(shape)} needs {shape.numel()} generators, one per batch row, got {len(generators)}."
        )
    return generators, shape


def check_state(state_dict: Any, own: dict[str, Any]) -> None:
    """Refuse a state that `Bandit.state_dict` did not return for the same kind of policy, the same arms and the same batch
    rows."""
    require(
        isinstance(state_dict, dict) and {"state", "open"} <= state_dict.keys() and isinstance(state_dict["state"], dict),
        "expected what Bandit.state_dict() returned, a dictionary with 'state' and 'open'.",
    )
    saved, described = state_dict["state"], state_dict.get("policy")
    texts = described is None or (isinstance(described, dict) and all(isinstance(t, str) for t in described.values()))
    require(texts, "the saved state's 'policy' does not describe a policy: it is damaged. Load another copy.", StateError)
    # A fit may give the kernel random effects, or take them; only rewards with their block have cells; pulls that were never
    # asked for are counted if there are any; and earlier states have no forecasts.
    varied = {"records.kernel.effect", *(f"records.units.{name}" for name in ("cells", "unasked", "forecasts"))}
    differ = sorted((saved.keys() ^ own.keys()) - varied)
    require(not differ, f"the saved state is of another kind of policy: it differs in {', '.join(differ[:3])}.", StateError)
    odd = [name for name, value in own.items() if isinstance(value, Tensor) and not isinstance(saved.get(name, value), Tensor)]
    require(not odd, f"the saved state holds no tensor {', '.join(odd[:3])}: it is damaged.", StateError)
    kernel = {name: value for name, value in saved.items() if ".kernel." in name and isinstance(value, Tensor)}
    broken = [name for name, value in kernel.items() if bool(value.isnan().any())]
    message = f"the saved state has NaN in {', '.join(broken[:3])}: it is damaged. Load another copy."
    require(not broken, message, StateError)
    # The arms of several ranks are compared by their fingerprint instead.
    if "rows.row_of_arm" not in own:
        return
    shape, mine = (tuple(state["rows.row_of_arm"].shape) for state in (saved, own))
    # The arms of a box are the points found so far: the box itself is compared.
    if (name := "box.corners" if "box.corners" in own else "tree.division.box") in own:
        boxes = saved[name], own[name]
        same = boxes[0].shape == boxes[1].shape and torch.equal(boxes[0].cpu(), boxes[1].cpu())
        require(same, f"the saved state is of the box {boxes[0].tolist()}, this bandit's is {boxes[1].tolist()}.", StateError)
        return
    of = f"{shape[-1]} arms in batch rows {shape[:-1]}" if shape else "one arm without a row"
    message = f"the saved state is of {of}, this bandit of {mine[-1]} in {mine[:-1]}."
    require(shape == mine, message, ShapeError)


# ---------------------------------------------------------------------- asking


def check_limit(limit: Any, batch_shape: torch.Size) -> Tensor | None:
    """The largest number of picks, `batch_shape` on the host, from one whole number or one per batch row."""
    if limit is None:
        return None
    # The usual case, in few operations.
    if isinstance(limit, int) and not isinstance(limit, bool) and limit >= 0:
        return torch.tensor(min(limit, ENDLESS)).expand(batch_shape)
    good = isinstance(limit, Tensor) and not limit.is_floating_point() and not limit.is_complex()
    value = as_tensor("limit", limit).cpu() if good else None
    if value is None or not bool((value >= 0).all()):  # not by `require`: the message would print a tensor each time
        raise ArgumentError(f"limit must be a whole number ≥ 0, or one per batch row, got {limit}.")
    try:
        return value.expand(batch_shape)
    except RuntimeError as error:
        raise ShapeError(f"limit must be a number or shaped {tuple(batch_shape)}, got {tuple(value.shape)}.") from error


def check_more(more: Any, name: str = "more") -> int | None:
    """The number of additional picks, a positive whole number or None."""
    if more is not None and not (is_whole(more) and more <= MOST_MORE):
        raise ArgumentError(f"{name} must be a whole number from 1 to {MOST_MORE:,}, got {more}.")
    return more


def check_available(available: Any, batch_shape: torch.Size, num_arms: int, device: torch.device) -> Tensor | None:
    """Booleans, one per arm, expanded to `batch_shape x A`."""
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


def check_maximum(point: Any, batch_shape: torch.Size, dim: int) -> Tensor:
    """One finite point per batch row, from a user's maximizer, as `batch_shape x 1 x d`."""
    if not isinstance(point, Tensor) or point.shape not in (
        torch.Size([*batch_shape, dim]),
        torch.Size([*batch_shape, 1, dim]),
    ):
        got = tuple(point.shape) if isinstance(point, Tensor) else type(point).__name__
        raise ShapeError(f"a maximizer must return one point per batch row, {(*batch_shape, dim)}, got {got}.")
    require(bool(torch.isfinite(point).all()), "the maximizer returned a NaN or infinite point.", NonFiniteError)
    return point.detach().reshape(*batch_shape, 1, dim)


# ---------------------------------------------------------------------- telling


def check_picks(
    selection: Any, batch_shape: torch.Size, num_arms: int, device: torch.device, *, padded: bool = False
) -> tuple[Tensor, Tensor]:
    """Arm indices `batch_shape x q` and their mask, from a selection or plain indices (−1 where a batch row is padded; a single
    row only if `padded`, because a reward told there would be lost)."""
    if isinstance(selection, Selection):
        index = as_tensor("arm indices", selection.index)
    else:
        numbers = isinstance(selection, Tensor | Sequence | Integral) and not isinstance(selection, str | bool)
        if not numbers and not hasattr(selection, "__array__") and not hasattr(selection, "to_numpy"):
            kind = type(selection).__name__
            raise ArgumentError(f"selection must be what ask() returned, or arm indices, got {kind} {selection!r:.60}.")
        index = as_tensor("arm indices", selection, device=_device_of(selection, device))
        index = index.reshape(1) if not index.dim() and not batch_shape else index
    if index.is_floating_point() or index.is_complex() or index.dtype == torch.bool:
        points = " Results at points, which need not be arms, are for observe()." if index.is_floating_point() else ""
        raise ShapeError(f"arm indices must be integers, got {index.dtype}.{points}")
    check_device("indices", index, device)
    if index.dim() != len(batch_shape) + 1 or index.shape[:-1] != batch_shape:
        raise ShapeError(
            f"expected indices of shape batch_shape x q = {(*batch_shape, 'q')}, got {tuple(index.shape)}.",
        )
    if isinstance(selection, Selection):
        mask = as_tensor("a selection's mask", selection.mask)
        if mask.shape != index.shape or mask.dtype != torch.bool:
            raise ShapeError(
                f"a selection's mask must be booleans shaped like its index {tuple(index.shape)}, got {mask.dtype} "
                f"{tuple(mask.shape)}."
            )
    else:
        mask = index != -1 if padded or batch_shape else torch.ones_like(index, dtype=torch.bool)
    bad = mask & ((index < 0) | (index >= num_arms))
    if bool(bad.any()):
        raise ArmIndexError(f"arm index {index[bad][0].item()} is outside 0 … {num_arms - 1}.")
    return index.long(), mask


def picks_on_host(
    given: Selection,
    rewards: Any,
    opened: Selection | None,
    device: torch.device,
    beside: Sequence[Tensor] = (),
    *,
    points: bool = False,
) -> tuple[Selection, Any, Selection | None, Sequence[Tensor]]:
    """Picks, their rewards and the open picks on the host, all in one piece, as they come, with further tensors that are needed
    there. Points are left out where they follow from the arms (without `points`): those of the open picks stand for both.

    Raises:
        ArgumentError: For picks or rewards on another device than the given one.
    """
    check_device("indices", given.index, device)
    check_device("a selection's mask", given.mask, device)
    picks = [given.index, given.mask, *([] if opened is None else [opened.index, opened.mask])]
    if points:
        check_device("a selection's points", given.points, device)
        beside = (*beside, given.points, *([] if opened is None else [opened.points]))
    known = isinstance(rewards, Tensor) and not rewards.is_complex()
    if known:
        check_device("rewards", rewards, device)
    here = to_host(*picks, *beside, *([rewards.detach()] if known else []))
    picks, beside = list(here[: len(picks)]), here[len(picks) : len(picks) + len(beside)]
    own = None if opened is None else Selection(picks[2], picks[2], picks[3])
    if points:
        places = beside[len(beside) - (1 if opened is None else 2) :]
        own = None if opened is None else Selection(places[1], picks[2], picks[3])
        return Selection(places[0], picks[0], picks[1]), here[-1] if known else rewards, own, beside[: -len(places)]
    return Selection(picks[0] if own is None else own.points, picks[0], picks[1]), here[-1] if known else rewards, own, beside


def check_places(selection: Selection, held: Tensor) -> None:
    """Refuse picks in a box whose places hold other points by now: the places of forgotten picks go to later ones.

    Args:
        selection: Picks of this box.
        held: `batch_shape x q x d`, the points that their indices mean now.
    """
    same = selection.points.shape == held.shape and selection.points.device == held.device
    require(
        same and bool(((selection.points == held).all(dim=-1) | ~selection.mask).all()),
        "some of these picks were forgotten, and other points have their places now: pass the points to observe().",
        StateError,
    )


def check_rewards(rewards: Any, index: Tensor, mask: Tensor, device: torch.device, failures: str = "error") -> Tensor:
    """Finite real rewards, of the shape of the picks, as float64; NaN where an evaluation failed, if failures are forgotten.
    Booleans are 1 and 0."""
    if failures not in ("error", "forget"):
        raise ArgumentError(f"failures must be 'error' or 'forget', got {failures!r}.")
    y = as_tensor("rewards", rewards, device=None if isinstance(rewards, Tensor) else device)
    y = y.reshape(index.shape) if not y.dim() and index.numel() == 1 else y
    if y.is_complex():
        raise ShapeError(f"rewards must be real numbers, got {y.dtype}.")
    if y.shape != index.shape:
        raise ShapeError(f"rewards must be shaped like the selection's index, {tuple(index.shape)}, got {tuple(y.shape)}.")
    check_device("rewards", y, device)
    y = y.double()
    # Four operations fewer for a single number.
    if y.numel() == 1 and abs(y.item()) <= LARGEST:
        return y
    good = y.abs() <= LARGEST
    if bool(good.all()):
        return y
    bad = mask & ~good if failures == "error" else mask & (y.abs() > LARGEST)
    if bool(bad.any()):
        largest = y[bad].abs().max()
        if bool(torch.isfinite(largest)):
            raise NumericalError(f"a reward of ±{largest:g} has a square beyond float64: scale it.")
        raise NonFiniteError(
            f"{int(bad.sum())} rewards are NaN or infinite, the first {y[bad][0].item()}: tell finite rewards, and "
            "forget(selection) evaluations that failed, or tell them NaN with failures='forget'."
        )
    return y


def check_noise_var(noise_var: Any, shape: torch.Size, told: Tensor, device: torch.device) -> Tensor | None:
    """Noise variances, one number or one per reward, expanded to the shape of the rewards, as float64.

    Args:
        noise_var: A number > 0, or such numbers `batch_shape x q`; None for the noise of the policy.
        shape: Shape of the rewards.
        told: Booleans of that shape, False in places that are ignored.
        device: Device of the posterior.
    """
    if noise_var is None:
        return None
    v = as_tensor("noise_var", noise_var, device=None if isinstance(noise_var, Tensor) else device)
    if v.dtype == torch.bool or v.is_complex():
        raise ShapeError(f"noise_var must be real numbers, got {v.dtype}.")
    if v.dim() and v.shape != shape:
        raise ShapeError(f"noise_var must be one number, or shaped like the rewards, {tuple(shape)}, got {tuple(v.shape)}.")
    check_device("noise_var", v, device)
    v = v.double().to(told.device).expand(shape)
    wrong = told & ~((v > 0) & v.isfinite())
    if bool(wrong.any()):
        raise NonFiniteError(
            f"noise_var must be finite and > 0, reward units squared, got {v[wrong][0].item()}: give rewards without noise a "
            "small variance."
        )
    return v


def block_number(name: str) -> int:
    """The number of the block of a name, the same in every process."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=6).digest(), "big")


def check_block(block: Any, told: Tensor, device: torch.device) -> Tensor:
    """Numbers of blocks, one number or one per reward, expanded to the shape of the rewards, int64, 0 where ignored.

    Args:
        block: A whole number from 0 on, or such numbers `batch_shape x q`; or a name, or names.
        told: Booleans of the shape of the rewards, False in places that are ignored.
        device: Device of the posterior.
    """
    names = None if isinstance(block, Tensor) else np.asarray(block, object)
    if names is not None and all(isinstance(name, str) for name in names.flat):
        block = np.array([block_number(name) for name in names.flat], np.int64).reshape(names.shape)
    numbers = as_tensor("block", block, device=None if isinstance(block, Tensor) else device)
    whole = not (numbers.dtype == torch.bool or numbers.is_floating_point() or numbers.is_complex())
    if not whole:
        raise ShapeError(f"block must be names or whole numbers, such as the number of the plate, got {numbers.dtype}.")
    shape = tuple(told.shape)
    if numbers.dim() and numbers.shape != shape:
        raise ShapeError(f"block must be one number, or shaped like the rewards, {shape}, got {tuple(numbers.shape)}.")
    check_device("block", numbers, device)
    numbers = numbers.long().to(told.device).expand(shape).masked_fill(~told, 0)
    low, high = (int(numbers.amin()), int(numbers.amax())) if numbers.numel() else (0, 0)
    require(low >= 0 and high < _MOST_BLOCKS, f"block must be whole numbers from 0 to 2^53, got {low if low < 0 else high}.")
    return numbers


def check_column(name: str, value: Any, like: torch.Size, device: torch.device) -> Tensor:
    """A finite column of summed history, as float64."""
    column = as_tensor(name, value, device=_device_of(value, device))
    shaped = column.shape == like
    require(shaped, f"{name} must be shaped like the history, {tuple(like)}, got {tuple(column.shape)}.", ShapeError)
    check_device(name, column, device)
    column = column.double()
    finite = bool(torch.isfinite(column).all())
    require(finite, f"{name} has a NaN or infinite value: leave failed evaluations out.", NonFiniteError)
    return column


def check_observed(observed: Any) -> None:
    """Refuse anything but the positional arguments of `Bandit.observe`, or None."""
    good = observed is None or (isinstance(observed, Sequence) and len(observed) in (3, 4))
    require(good, f"observed must be (points_or_index, counts, sums), as for Bandit.observe, got {type(observed).__name__}.")


def check_history(
    points_or_index: Any,
    counts: Any,
    sums: Any,
    squares: Any,
    batch_shape: torch.Size,
    num_arms: int,
    dim: int,
    device: torch.device,
) -> Pulls:
    """Summed history at arm indices `batch_shape x h` or points `batch_shape x h x d`, expanded over the batch."""
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
        index, mask = check_picks(where.expand(shape), batch_shape, num_arms, device)
        require(bool(mask.all()), "history has an index of −1, which is not an arm.", ArmIndexError)
        return Pulls(counts=n, sums=s, squares=q, index=index, mask=mask, history=True)
    require(where.shape[-1] == dim, f"points must have {dim} features like the arms, got {where.shape[-1]}.", ShapeError)
    check_device("points", where, device)
    require(bool(torch.isfinite(where).all()), "points have a NaN or infinite feature.", NonFiniteError)
    return Pulls(counts=n, sums=s, squares=q, points=where.expand(*shape, dim), history=True)


def check_squares(pulls: Pulls) -> None:
    """Refuse sums of squares that no rewards have, such as variances: Σ r² is at least (Σ r)² / n.

    Apart from `check_history`, because a journal may hold history that was observed before this was checked.
    """
    least = pulls.sums.square() / pulls.counts
    # Sums that were computed in float32 are rounded by far less than one percent.
    low = pulls.squares < 0.99 * least
    if bool(low.any()):
        q, bound = pulls.squares[low][0].item(), least[low][0].item()
        raise ArgumentError(
            f"squares must be sums of squared rewards, at least sums² / counts, got {q:g} where that is {bound:g}: for a "
            "variance v of n rewards give n v + sums² / n, or leave squares= out."
        )


# ---------------------------------------------------------------------- reading and fitting


def check_count(k: Any) -> int:
    """The number of arms to recommend."""
    require(is_whole(k) and k <= MOST_MORE, f"k must be at least 1, a whole number up to {MOST_MORE:,}, got {k!r}.")
    return int(k)


def check_draws(draws: Any, seed: Any) -> None:
    """Refuse a number of draws and a seed that are no whole numbers, or too small."""
    check_whole("draws", draws)
    require(is_whole(seed, 0), f"seed must be a whole number ≥ 0, got {seed!r}.")


def check_told(pulls: Tensor, failed: int, so: str = "no arm can be recommended") -> None:
    """Refuse a recommendation before rewards were told in at least one batch row.

    Args:
        pulls: `batch_shape`, number of rewards told.
        failed: Number of evaluations that failed, where the policy learns from them.
        so: The consequence, for the message.
    """
    are = f"{failed:,} evaluation{'' if failed == 1 else 's'} failed and none succeeded" if failed else "no reward was told yet"
    message = f"{are}, so that {so}: tell() rewards or observe() history first."
    require(bool((pulls > 0).any()), message, StateError)


def check_fit(noise: Any, options: dict[str, Any]) -> None:
    """Refuse unknown options of a fit; their values are checked by the fit itself."""
    known = ("misfit", "noise_prior", "max_exact", "dictionary_size", "restarts", "max_iterations")
    wrong = next((name for name in options if name not in known), None)
    require(wrong is None, f"{wrong!r} is not an option of a fit: {', '.join(known)}.{nearest(str(wrong), known)}")
    for name, value in (("noise", noise), ("misfit", options.get("misfit", True))):
        check_flag(name, value)
    prior = options.get("noise_prior")
    kind = type(prior).__name__
    require(prior is None or isinstance(prior, Prior), f"noise_prior must be a gpytorch.priors.Prior or None, got {kind}.")
