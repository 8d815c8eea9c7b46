"""Sets of arms under the posterior: the k best arms, and the arms above a level."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from torchbandits.arms.joint import JointDraws
from torchbandits.display import Readable, Shown, classes, count, fits, misfit, table
from torchbandits.errors import UnsupportedError, require
from torchbandits.gradients import without_gradients
from torchbandits.loop import Loop
from torchbandits.policies import Composed
from torchbandits.policies.picking import marginals, only_entries
from torchbandits.policies.state import TableState, check_no_box
from torchbandits.widths import Width

# Number of arms, besides the members, that are drawn jointly for the probabilities of `top_k`.
_RIVALS = 1000
# Largest number of values of draws in memory at once.
_DRAWN = 1 << 23


@dataclass(frozen=True, repr=False)
class TopK(Readable):
    """The k arms with the highest posterior mean, best first. Exact duplicates count as one arm.

    Attributes:
        index: `batch_shape x k`.
        points: `batch_shape x k x d`.
        mean, variance: `batch_shape x k`, posterior of each, reward units.
        probability: `batch_shape x k`, probability under the model that the arm is among the k best.
    """

    index: Tensor
    points: Tensor
    mean: Tensor
    variance: Tensor
    probability: Tensor

    def _shown(self) -> Shown:
        parts = (self.index, self.mean, self.variance, self.probability)
        if not all(isinstance(part, Tensor) for part in parts) or not fits(self.index >= 0, parts, self.points):
            return misfit(self)
        columns = {
            "arm": self.index,
            "mean": self.mean,
            "± deviation": self.variance.sqrt(),
            "among the best": self.probability,
        }
        return table(f"The {count(self.index.shape[-1], 'arm')} of highest mean", self.index >= 0, columns, self.points)


@dataclass(frozen=True, repr=False)
class LevelSet(Readable):
    """The arms above a level, those below, and those that the bounds leave undecided: `batch_shape x A` each.

    Attributes:
        above: Booleans, True where the lower bound is at least the level.
        below: Booleans, True where the upper bound is below the level.
        undecided: Booleans, True for arms that are neither above nor below.
        probability: Probability under the model that the expected reward of the arm is at least the level.
    """

    above: Tensor
    below: Tensor
    undecided: Tensor
    probability: Tensor

    def _shown(self) -> Shown:
        return classes("Arms by a level", {"above": self.above, "below": self.below, "undecided": self.undecided})


def table_of(loop: Loop, what: str) -> TableState:
    """The state of a loop with a Gaussian process tabulated on given arms, of one rank.

    Raises:
        UnsupportedError: For another state.
    """
    state = loop.state
    check_no_box(state, what)
    if not isinstance(state, TableState) or state.rows.sharded:
        raise UnsupportedError(
            f"{what} reads one Gaussian process over given arms: use gp_ucb, batch_bkb, lucb, lse or another policy with one, "
            "on arms of one process."
        )
    return state


@without_gradients
def top_k(loop: Loop, k: int, draws: int, seed: int) -> TopK:
    """See `Bandit.top_k`."""
    state = table_of(loop, "top_k()")
    mean, std = marginals(state)
    entries = only_entries(state.rows, mean)
    counts = (entries > -torch.inf).sum(dim=-1)
    require(k < int(counts.min()), f"k must be less than the number of distinct arms, {int(counts.min())}, got {k}.")
    ranked = entries.topk(k + 1, dim=-1)
    index, threshold = ranked.indices[..., :k], ranked.values[..., k - 1 :].mean(dim=-1, keepdim=True)
    # Besides the members, the arms whose marginals make it most probable that they are among the k best.
    hope = (entries - threshold) / std.double().clamp_min(torch.finfo(torch.float64).tiny)
    # An arm without variance is a rival even if it cannot be among the k best; copies and members are not rivals.
    hope = torch.where(entries > -torch.inf, hope.clamp_min(torch.finfo(torch.float64).min), -torch.inf)
    rivals = hope.scatter(-1, index, -torch.inf).topk(min(_RIVALS, int(counts.max()) - k), dim=-1)
    joint = JointDraws(state.table, torch.cat([index, rivals.indices], dim=-1))
    width = joint.index.shape[-1]
    # If batch rows have different numbers of distinct arms, the last places of some rows are padding.
    apart = torch.nn.functional.pad(rivals.values == -torch.inf, (k, 0)).reshape(-1, 1, width)
    hits = torch.zeros(index.shape, dtype=torch.float64, device=index.device).reshape(-1, k)
    for row in range(hits.shape[0]):
        generator = torch.Generator().manual_seed(seed)
        for part in torch.arange(draws).split(max(1, _DRAWN // width)):
            drawn = joint.draw(row, len(part), generator).masked_fill(apart[row], -torch.inf)
            best = drawn.topk(k, dim=-1).indices
            hits[row] += torch.zeros(len(part), width, device=best.device).scatter_(-1, best, 1.0)[:, :k].sum(dim=0)
    lam = state.posterior.regularization
    told = state.in_reward_units(mean.gather(-1, index), lam * state.table.leverage_at(index))
    return TopK(index, loop.points(index), told.mean, told.variance, (hits / draws).reshape(index.shape))


@without_gradients
def level_set(loop: Loop, level: float, width: Width | None) -> LevelSet:
    """See `Bandit.level_set`."""
    state = table_of(loop, "level_set()")
    message = "this policy's width is not that of its posterior of all pulls: pass width=, such as widths.IGP(…)."
    require(width is not None or isinstance(loop.policy, Composed), message, UnsupportedError)
    mean, std = marginals(state)
    w = loop.policy.width(state) if width is None else state.width_of(width)
    h = torch.full_like(w, level).unsqueeze(-1)
    if (units := state.posterior.units) is not None:
        h = units.to_model(h)
    spread = w.unsqueeze(-1) * std
    above, below = mean - spread >= h, mean + spread < h
    z = (mean - h) / std.clamp_min(torch.finfo(std.dtype).tiny)
    # An arm whose reward is known to be the level has it, too.
    probability = torch.where(std > 0, 0.5 * torch.special.erfc(-z / math.sqrt(2)), (mean >= h).to(z))
    return LevelSet(above, below, ~above & ~below, probability)
