"""What a run is of: arms, boxes, costs, generators, saved states. Every check raises one clear error."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from torchbandits.arms import ArmRows, Shard
from torchbandits.coercion import as_features, as_tensor, own_copy, same_device
from torchbandits.errors import (
    ArgumentError,
    NonFiniteError,
    ShapeError,
    StateError,
    UnsupportedError,
    require,
)
from torchbandits.optimize import check_box
from torchbandits.policies import Composed, Policy
from torchbandits.scores import PerCost
from torchbandits.sources import ArmSet, ArmSource, InMemory


def check_arms(arms: Any) -> Tensor:
    """Arms as a non-empty, finite, floating-point tensor `batch_shape x A x d`; whole numbers become float64."""
    arms = as_features("arms", arms)
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
    return arms


def check_source(arms: ArmSource, policy: Policy) -> Tensor | ArmSource:
    """A tensor where all the arms are in memory; other sources only for policies that read them piece by piece."""
    if isinstance(arms, InMemory) and not (arms.distinct and policy.streams):
        return check_arms(arms.arms)
    require(
        policy.streams,
        f"this policy looks at all arms as one tensor, and got {arms!r}: use batch_bkb, bkb or gp_ucb, or pass a tensor, such "
        "as torch.from_numpy(numpy.load(path)).",
        UnsupportedError,
    )
    require(
        not isinstance(arms, Shard) or policy.shards,
        "this policy does not share its arms out among ranks: use batch_bkb (batch_rule='global' or 'product') or bkb with the "
        "UCB score, without initial= and refit_every=.",
        UnsupportedError,
    )
    return arms


def check_new_arms(arms: Any, old: ArmSet, batch_shape: torch.Size, policy: Policy) -> Tensor | ArmSource:
    """Arms that may take the place of others."""
    arms = check_source(arms, policy) if isinstance(arms, ArmSource) else check_arms(arms)
    fits = arms.shape[:-2] in (torch.Size(), batch_shape) and arms.shape[-1] == old.shape[-1]
    d = old.shape[-1]
    shapes = " or ".join(str(s) for s in dict.fromkeys([("A", d), (*batch_shape, "A", d)]))
    require(fits, f"the new arms must be {shapes}, got {tuple(arms.shape)}.", ShapeError)
    require(arms.dtype == old.dtype, f"the new arms must be {old.dtype} like those before, got {arms.dtype}.", ShapeError)
    require(
        same_device(arms.device, old.device), f"the new arms are on {arms.device}, those before on {old.device}.", ShapeError
    )
    return own_copy(arms) if isinstance(arms, Tensor) else arms


def check_costs(costs: Any, policy: Policy, rows: ArmRows) -> Tensor | None:
    """Positive costs, one an arm, as float64; none where none are given and none are needed."""
    needed = isinstance(policy, Composed) and isinstance(policy.score, PerCost)
    require(costs is not None or not needed, "a score per cost needs the costs of the arms: pass costs=, one number an arm.")
    if costs is None:
        return None
    value, shape = as_tensor("costs", costs, torch.float64, rows.source.device), (*rows.batch_shape, rows.num_arms)
    if value.shape not in (torch.Size(shape), torch.Size(shape[-1:])):
        known = " or ".join(str(s) for s in dict.fromkeys([shape[-1:], shape]))
        raise ShapeError(f"costs must be one number an arm, {known}, got {tuple(value.shape)}.")
    good = torch.isfinite(value) & (value > 0)
    require(bool(good.all()), f"costs must be finite and > 0, got {value[~good][:1].tolist()}.", NonFiniteError)
    if rows.first is not None:
        whole = value.expand(*rows.first.shape[:-1], -1)
        same = bool((whole == whole.gather(-1, rows.first.expand(whole.shape))).all())
        require(same, "equal arms must cost the same: they share one entry.")
    return own_copy(value)


def check_maximum(point: Any, rows: ArmRows) -> Tensor:
    """A finite point a batch row, `batch_shape x 1 x d` (or one arm set's), from a maximiser."""
    message = "a maximizer makes further arms, and a source holds those it has: pass the arms as a tensor."
    require(not rows.streamed, message, UnsupportedError)
    d, shape = rows.arms.shape[-1], rows.batch_shape
    if not isinstance(point, Tensor) or point.shape not in (torch.Size([*shape, d]), torch.Size([*shape, 1, d])):
        got = tuple(point.shape) if isinstance(point, Tensor) else type(point).__name__
        raise ShapeError(f"a maximizer must return one point a batch row, {(*shape, d)}, got {got}.")
    require(bool(torch.isfinite(point).all()), "the maximizer returned a NaN or infinite point.", NonFiniteError)
    return point.detach().reshape(*shape, 1, d).to(rows.arms)


def check_domain(arms: Any, bounds: Any, policy: Policy) -> Tensor | ArmSource:
    """Either arms, or a box `batch_shape x 2 x d` of finite corners, lower first, as float64; whichever was given, as a copy
    that the caller does not hold. Sources are shared."""
    require((arms is None) != (bounds is None), "give either arms (A x d) or bounds (2 x d), and not both.")
    if isinstance(arms, ArmSource):
        return check_source(arms, policy)
    if bounds is None:
        return own_copy(check_arms(arms))
    return own_copy(check_box(bounds))


def check_generators(generator: Any, arms: ArmSet, kernel: Any) -> tuple[tuple[torch.Generator, ...], torch.Size]:
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


def check_state(state_dict: Any, own: dict[str, Any]) -> None:
    """What `Bandit.state_dict` returned for the same kind of policy, the same arms and batch rows."""
    require(
        isinstance(state_dict, dict) and {"state", "open"} <= state_dict.keys() and isinstance(state_dict["state"], dict),
        "expected what Bandit.state_dict() returned, a dictionary with 'state' and 'open'.",
    )
    saved, described = state_dict["state"], state_dict.get("policy")
    texts = described is None or (isinstance(described, dict) and all(isinstance(t, str) for t in described.values()))
    require(texts, "the saved state's 'policy' is no description of one: it is damaged.", StateError)
    differ = sorted(saved.keys() ^ own.keys())
    require(not differ, f"the saved state is of another kind of policy: it differs in {', '.join(differ[:3])}.", StateError)
    odd = [name for name, value in own.items() if isinstance(value, Tensor) and not isinstance(saved[name], Tensor)]
    require(not odd, f"the saved state holds no tensor {', '.join(odd[:3])}: it is damaged.", StateError)
    if "rows.row_of_arm" not in own:  # arms of several ranks: their fingerprint tells
        return
    shape, mine = (tuple(state["rows.row_of_arm"].shape) for state in (saved, own))
    if (name := "box.corners" if "box.corners" in own else "tree.division.box") in own:  # its arms are those found so far
        boxes = saved[name], own[name]
        same = boxes[0].shape == boxes[1].shape and torch.equal(boxes[0].cpu(), boxes[1].cpu())
        require(same, f"the saved state is of the box {boxes[0].tolist()}, this bandit's is {boxes[1].tolist()}.", StateError)
        return
    of = f"{shape[-1]} arms in batch rows {shape[:-1]}" if shape else "one arm without a row"
    message = f"the saved state is of {of}, this bandit of {mine[-1]} in {mine[:-1]}."
    require(shape == mine, message, ShapeError)
