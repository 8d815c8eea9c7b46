"""SupKernelUCB: levels of accuracy, each with a posterior of pulls that were chosen independently of that level's rewards."""

from __future__ import annotations

import math
from dataclasses import dataclass

import gpytorch
import torch
from torch import Tensor

from torchbandits.arms import best_arm
from torchbandits.checks import explains_keywords, is_whole, regularization_of
from torchbandits.gradients import without_gradients
from torchbandits.policies.composed import Composed
from torchbandits.policies.phased import Phased, PhasedState, at_one_level, offers, one_by_one, preference, sweep_of
from torchbandits.policies.picking import room_for
from torchbandits.policies.state import TableState
from torchbandits.types import Arms, Evidence, Generators, PickMask, Picks, Pulls, Selection
from torchbandits.widths import FixedDesign, Width


def num_levels(horizon: int) -> int:
    """The number of levels S = ⌈½ log₂ T⌉, at least 1. Then 2^(−S) ≤ 1/√T, so no pick needs another level."""
    return max(1, math.ceil(0.5 * math.log2(horizon)))


class Descent:
    """The descent through the levels of a state. Pulls without a reward are hallucinated, which does not change the state.

    Args:
        inner: The state of the levels, of batch shape `S x batch_shape`.
        mean: `S x batch_shape x A`, reward units.
        width: `S x batch_shape`, multiplies the standard deviation.
        horizon: T, the number of pulls to come.
    """

    def __init__(self, inner: TableState, mean: Tensor, width: Tensor, horizon: int) -> None:
        self._sweep = sweep_of(inner)
        self._mean, self._width = mean, width.unsqueeze(-1) * inner.posterior.regularization**0.5
        self._fine, self._preference = horizon**-0.5, preference(inner)

    def walk(self, candidates: PickMask, own: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Descend to the pick of each row. Returns the pick, the level whose pulls it joins, and its score, `batch_shape` each.

        Args:
            candidates: `batch_shape x A`, arms that may be picked, at least one in each row.
            own: `batch_shape`, arms that were already picked (−1 for none). For such an arm only the level is determined: the
                first level at which it is uncertain, or none if all candidates are known to within 1/√T and it may be the best.

        Returns:
            Pick, level (S for none) and score.
        """
        spread = self._width * self._sweep.leverage.sqrt()
        S, shape = spread.shape[0], spread.shape[1:-1]
        open_ = torch.ones(shape, dtype=torch.bool, device=spread.device) if own is None else own >= 0
        arm = torch.full(shape, -1, device=spread.device)
        level, score = torch.full_like(arm, S), torch.full(shape, torch.nan, dtype=spread.dtype, device=spread.device)
        for s in range(S):
            coarse, w = 2.0 ** -(s + 1), spread[s].masked_fill(~candidates, -torch.inf)
            upper, widest = self._mean[s] + w, w.amax(dim=-1)
            # Exploit if every candidate is known to within 1/√T.
            fine = open_ & (widest <= self._fine)
            if own is not None:
                # An arm far below the best one was picked because that was not on offer, and has to be learned. Between the
                # choice of an arm and its reward, upper bounds within 2/√T of f may change by as much.
                reached = upper.gather(-1, own.clamp_min(0).unsqueeze(-1)).squeeze(-1)
                fine = fine & (reached >= upper.amax(dim=-1) - 4 * self._fine)
            tested = widest if own is None else spread[s].gather(-1, own.clamp_min(0).unsqueeze(-1)).squeeze(-1)
            # Explore if some candidate is uncertain by more than 2^(−s): the pick then joins this level.
            rough = open_ & ~fine & (tested > coarse)
            for decided, values in ((fine, upper), (rough, w + self._preference[s])):
                arm, score = torch.where(decided, best_arm(values), arm), torch.where(decided, values.amax(dim=-1), score)
            level, open_ = torch.where(rough, s, level), open_ & ~fine & ~rough
            if not bool(open_.any()):
                break
            # Otherwise descend with the arms whose upper bound is within 2^(1−s) of the largest.
            candidates = candidates & (upper >= upper.amax(dim=-1, keepdim=True) - 2 * coarse)
        return arm, level, score

    def hallucinate(self, arm: Tensor, level: Tensor) -> None:
        """Count pulls of arms (`batch_shape`, −1 for none) at their levels (`batch_shape`). Cost O(A S u)."""
        index = at_level(arm.unsqueeze(-1), level, self._mean.shape[0])
        self._sweep.hallucinate(index, torch.ones_like(index, dtype=torch.float64))


def at_level(index: Picks, level: Tensor, levels: int) -> Tensor:
    """Picks `batch_shape x q` at the level of their row (`batch_shape`), `levels x batch_shape x q`, −1 at all others."""
    return torch.where(at_one_level(level, levels).unsqueeze(-1), index, -1)


@dataclass(frozen=True, repr=False)
class SupKernelUCB(Phased[PhasedState]):
    """A policy that descends through levels of accuracy until some arm is uncertain or all are known; see `sup_kernel_ucb`."""

    @property
    def most_picks(self) -> int:
        """The maximum number of picks of one `select`: 1."""
        return 1

    @without_gradients
    def init(self, arms: Arms, generators: Generators, batch_shape: torch.Size) -> PhasedState:
        """Make a fresh state. Cost O(A (d + log A)), and O(A S) memory for S levels."""
        return self.begin(arms, generators, batch_shape, (num_levels(self.horizon),))

    @without_gradients
    def select(
        self, state: PhasedState, *, limit: Tensor | None = None, available: Tensor | None = None, exactly: int | None = None
    ) -> tuple[Selection, Evidence]:
        """Select one pick. If several picks are asked for, earlier and pending picks are hallucinated at their levels. Cost
        O(A S), and O(A S u) for each further pick."""
        rows, shape = state.rows, state.rows.batch_shape
        offered, everything = offers(rows, available), offers(rows, None)
        room = room_for(state, 1 if exactly is None else exactly, limit).to(state.told.device)
        descent = self._descent(state)
        for arm in one_by_one(state.pending_index, state.pending_counts):
            descent.hallucinate(arm, descent.walk(everything, arm)[1])
        index, score = torch.full((*shape, 0), -1, device=rows.arms.device), state.log_det.new_zeros(*shape, 0)
        most = int(room.max()) if room.numel() else 0
        for place in range(most):
            arm, level, value = descent.walk(offered)
            arm = torch.where(place < room, arm, -1)
            index, score = torch.cat([index, arm.unsqueeze(-1)], dim=-1), torch.cat([score, value.unsqueeze(-1)], dim=-1)
            if place + 1 < most:
                descent.hallucinate(arm, level)
        leverage = state.leverage_at(index)
        return Selection(rows.points(index), index, index >= 0), Evidence(score, leverage, self.width(state))

    @without_gradients
    def update(self, state: PhasedState, pulls: Pulls) -> PhasedState:
        """Learn the pulls one after the other, each in the posterior of all pulls and at its level. Cost O(A S u) per pull."""
        self.learn(state, pulls)
        if pulls.history or pulls.index is None:
            return state
        assert pulls.mask is not None
        index, everything = torch.where(pulls.mask, state.rows.entry(pulls.index), -1), offers(state.rows, None)
        for place in range(index.shape[-1]):
            part = slice(place, place + 1)
            _, level, _ = self._descent(state).walk(everything, index[..., place])
            levels = at_level(index[..., part], level, num_levels(self.horizon))
            if bool((levels >= 0).any()):
                one = Pulls(pulls.counts[..., part], pulls.sums[..., part], pulls.squares[..., part])
                self.learn_inner(state, one, levels, levels >= 0)
        return state

    @without_gradients
    def bounds(self, state: PhasedState) -> tuple[Tensor, Tensor]:
        """The largest upper and the largest lower bound over the arms, where each arm has the tightest bounds of all levels."""
        mean, spread = self.marginals(state.inner)
        return (mean + spread).amin(dim=0).amax(dim=-1), (mean - spread).amax(dim=0).amax(dim=-1)

    def _descent(self, state: PhasedState) -> Descent:
        inner = state.inner
        return Descent(inner, inner.arm_mean(), self.engine.width(inner), self.horizon)


@explains_keywords
def sup_kernel_ucb(
    kernel: gpytorch.kernels.Kernel,
    *,
    horizon: int,
    noise_std: float = 0.01,
    norm_bound: float | Tensor = 1.0,
    delta: float = 1e-4,
    width: Width | None = None,
    regularization: float | None = None,
    prior_mean: float | str = 0.0,
    memory_budget: int | None = None,
) -> SupKernelUCB:
    r"""SupKernelUCB: levels s = 1 … S that estimate f to within 2^(−s), each by a posterior of the pulls of that level only.

    .. math::
        w\sigma_s \le 1/\sqrt T \text{ on } \hat A:\ & \text{pick } \arg\max_{\hat A} u_s \\
        w\sigma_s \le 2^{-s}:\ & \hat A \leftarrow \{u_s \ge \max_{\hat A} u_s - 2^{1-s}\},\ s \leftarrow s + 1 \\
        \text{else:}\ & \text{pick } \arg\max_{\hat A} w\sigma_s \text{, which joins level } s

    from s = 1 and all arms on offer, with S = ⌈½ log₂ T⌉ (the paper's ⌈log T⌉ would leave levels that no pick can reach).
    The coarser levels decide which pulls join a level, so its width need not account for adaptivity. If several arms are above
    2^(−s), the paper takes any of them; this implementation takes the most uncertain one. The thresholds are in reward units:
    they suit rewards of order 1, as in the paper.

    A told pull, asked for or not, joins the first level at which its arm is uncertain (above 2^(−s)), or none if before that
    every remaining candidate is known to within 1/√T, and its arm is one of them, with an upper bound within 4/√T of the
    largest. History (`observe`) enters only the posterior of all pulls, which is `Bandit.posterior`. The rule stays the same
    after T pulls.

    Args:
        kernel: Kernel of the RKHS that holds the expected reward.
        horizon: T, the number of pulls to come.
        noise_std: Sub-Gaussian constant R of the noise, reward units.
        norm_bound: F, bound on the RKHS norm; one number, or one per batch row.
        delta: Failure probability of the bounds.
        width: w, the multiplier of the posterior standard deviation; by default `FixedDesign`, F + (R/√λ) √(2 log(2 A T S/δ)).
        regularization: λ; noise_std² by default.
        prior_mean: Prior mean of the rewards: a number, or `"estimate"` for the average of the rewards told so far.
        memory_budget: Bytes for cached kernel columns; by default 2 GiB, or half of the free memory on a GPU.

    Guarantee: regret Õ(√(T d̃)), d̃ the effective dimension, with probability 1 − δ for a fixed f of RKHS norm ≤ F under the
    default width (the paper's algorithm has log(2 A T/δ), but its proof takes a union over the levels too). The policy explores
    far too much in practice. Cost: O(A S u) per step. Source: Valko et al. 2013, "Finite-time analysis of kernelised contextual
    bandits", Alg. 2, Thm 1.
    """
    lam = regularization_of(noise_std, regularization)
    # The constructor of the policy below raises the error for values that are not whole numbers.
    statements = 2 * horizon * num_levels(horizon) if is_whole(horizon) else 1
    confidence = FixedDesign(noise_std, norm_bound, delta, lam, statements=statements) if width is None else width
    return SupKernelUCB(
        Composed(kernel, noise_std, confidence, lam, prior_mean=prior_mean, memory_budget=memory_budget), horizon
    )
