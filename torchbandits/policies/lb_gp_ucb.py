"""LB-GP-UCB: GP-UCB for an unknown lengthscale, by balancing the regret of several lengthscales."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import gpytorch
import numpy as np
import torch
from torch import Tensor, nn

from torchbandits.arms import best_arm
from torchbandits.checks import explains_keywords, non_negative, regularization_of
from torchbandits.errors import UnsupportedError, require
from torchbandits.gradients import without_gradients
from torchbandits.kernels import kernel_row, stack_kernels
from torchbandits.policies.composed import Composed
from torchbandits.policies.learning import learn_kernel
from torchbandits.policies.phased import Phased, PhasedState, at_one_level, beside_rows, offers, one_by_one, sweep_of
from torchbandits.policies.picking import room_for
from torchbandits.policies.scale import ScaleWatch
from torchbandits.sources.ranges import ranges_of
from torchbandits.types import Arms, Evidence, Generators, Pulls, Selection
from torchbandits.widths import IGP

# Number of candidates that the growth function admits from the start; they are still added one by one.
_FIRST = 5
_NEVER = 1 << 62


class Balance(nn.Module):
    """Rewards earned by each candidate lengthscale.

    Args:
        candidates: K, the maximum number of candidates.
        batch_shape: Batch rows.
        device: Of the buffers.

    Buffers, which are replaced and never written in place: `alive` `K x batch_shape`, the candidates that were admitted and not
    rejected; `counts`, `sums` and `spread`, of the same shape, the number of pulls of each candidate, the sum of their rewards,
    and the sum of their widths times standard deviations; `known` `batch_shape`, the number of admitted candidates; `shown`
    `batch_shape`, the alive candidate with the longest lengthscale.
    """

    alive: Tensor
    counts: Tensor
    sums: Tensor
    spread: Tensor
    known: Tensor
    shown: Tensor

    def __init__(self, candidates: int, batch_shape: torch.Size, device: torch.device) -> None:
        super().__init__()
        zeros = torch.zeros(candidates, *batch_shape, dtype=torch.float64, device=device)
        for name in ("counts", "sums", "spread"):
            self.register_buffer(name, zeros.clone())
        first = torch.zeros(batch_shape, dtype=torch.int64, device=device)
        self.register_buffer("alive", at_one_level(first, candidates))
        self.register_buffer("known", torch.ones_like(first))
        self.register_buffer("shown", first)

    def add_(self, level: Tensor, told: Tensor, reward: Tensor, spread: Tensor) -> None:
        """Credit one pull of each marked row (`told`, `batch_shape`) to a candidate (`level`, `batch_shape`)."""
        counted = self.at(level) & told
        self.counts = self.counts + counted.double()
        self.sums = self.sums + torch.where(counted, reward, 0.0)
        self.spread = self.spread + torch.where(counted, spread, 0.0)

    def reject_(self, noise_std: float, delta: float, t: Tensor, told: Tensor) -> None:
        """Reject candidates whose rewards fall behind by more than their own bounds allow, in the marked rows in which every
        alive candidate has a pull. t (`batch_shape`) is the number of pulls told."""
        n = self.counts.clamp_min(1)
        # ξ_t of Theorem 4.1, for the candidates admitted so far.
        xi = 2 * noise_std**2 * (self.known * (math.pi * t.clamp_min(1)) ** 2 / (3 * delta)).log()
        average, noise = self.sums / n, (xi / n).sqrt()
        lower = (average - noise).masked_fill(~self.alive, -torch.inf).amax(dim=0)
        ready = told & ((self.counts > 0) | ~self.alive).all(dim=0)
        keeps = average + noise + 2 * self.spread / n >= lower
        self.alive = self.alive & (keeps | ~ready)

    def admit_(self, most: Tensor, told: Tensor) -> None:
        """Admit the next candidate in the marked rows that have fewer than `most` (`batch_shape`)."""
        comes = told & (self.known < most.clamp_max(self.alive.shape[0]))
        self.alive = self.alive | (self.at(self.known) & comes)
        self.known = self.known + comes.long()

    def at(self, level: Tensor) -> Tensor:
        """`K x batch_shape` booleans, true at one candidate of each row."""
        return at_one_level(level, self.alive.shape[0])


class BalancedState(PhasedState):
    """The state of `lb_gp_ucb`: the bandit's public posterior, one posterior per candidate, and their balance.

    Args:
        phased: State whose table, inner state and generators are used.
        balance: The rewards earned by each candidate.
    """

    def __init__(self, phased: PhasedState, balance: Balance) -> None:
        super().__init__(phased, phased.inner)
        self.balance = balance


@dataclass(frozen=True, repr=False)
class LengthscaleBalancing(Phased[BalancedState]):
    """A policy that divides the pulls among GP-UCB policies with several lengthscales; see `lb_gp_ucb`.

    Args:
        norm_bound: N, one number or one per batch row.
        delta: Failure probability.
        growth: The power of t in the growth function.
        from_arms: Whether the first lengthscales are the ranges of the features times the kernel's lengthscales.
    """

    norm_bound: float | Tensor
    delta: float
    growth: float
    from_arms: bool

    @property
    def most_picks(self) -> int:
        """The maximum number of picks of one `select`: 1."""
        return 1

    @property
    def one_function(self) -> bool:
        """False: the kernel is one of several."""
        return False

    @without_gradients
    def init(self, arms: Arms, generators: Generators, batch_shape: torch.Size) -> BalancedState:
        """Make a fresh state. Cost O(K A) time and memory for K candidates, O(K A u) memory as pulls are told."""
        first, d = self._first_kernel(arms), arms.shape[-1]
        candidates = min(1 + int(self._admitted(torch.tensor(float(self.horizon), dtype=torch.float64), d)), self.horizon)
        outer = replace(self.engine, kernel=first).init(arms, generators, batch_shape)
        places = [(i, place) for i in range(candidates) for place in np.ndindex(*batch_shape)]
        kernels = [_shortened(kernel_row(first, batch_shape, place), i, d) for i, place in places]
        levels = torch.Size((candidates, *batch_shape))
        inner = replace(self.engine, kernel=stack_kernels(kernels, levels)).init(arms, generators, levels)
        # Most candidates have lengthscales that do not fit, by design: only the public posterior is watched for bad scales.
        inner.scale = ScaleWatch(next_size=_NEVER, next_tells=_NEVER)
        return BalancedState(PhasedState(outer, inner), Balance(candidates, batch_shape, arms.device))

    @without_gradients
    def select(
        self, state: BalancedState, *, limit: Tensor | None = None, available: Tensor | None = None, exactly: int | None = None
    ) -> tuple[Selection, Evidence]:
        """Select one pick by the candidate whose turn it is. If several picks are asked for, earlier and pending picks are
        hallucinated. Cost O(K A), and O(K A u) for each pick but the first."""
        rows, inner, shape = state.rows, state.inner, state.rows.batch_shape
        offered = offers(rows, available)
        room = room_for(state, 1 if exactly is None else exactly, limit).to(state.told.device)
        counts, turn = state.balance.counts, self._turn(state)
        sweep, width = sweep_of(inner), self.widths(state)
        K, lam = counts.shape[0], self.engine.regularization
        for arm in one_by_one(state.pending_index, state.pending_counts):
            counts = counts + state.balance.at(turn(counts)) * (arm >= 0).double()
            sweep.hallucinate(_at_all(arm.unsqueeze(-1), K), inner.told.new_ones(*inner.told.shape, 1))
        mean = inner.arm_mean()
        index, score = torch.full((*shape, 0), -1, device=rows.arms.device), state.log_det.new_zeros(*shape, 0)
        most = int(room.max()) if room.numel() else 0
        for place in range(most):
            level = turn(counts)
            upper = mean + width.unsqueeze(-1) * (lam * sweep.leverage).sqrt()
            value = _of_level(upper, level).masked_fill(~offered, -torch.inf)
            arm = torch.where(place < room, best_arm(value), -1)
            index = torch.cat([index, arm.unsqueeze(-1)], dim=-1)
            score = torch.cat([score, value.amax(-1, keepdim=True)], dim=-1)
            counts = counts + state.balance.at(level) * (arm >= 0).double()
            if place + 1 < most:
                sweep.hallucinate(_at_all(arm.unsqueeze(-1), K), inner.told.new_ones(*inner.told.shape, 1))
        leverage = state.leverage_at(index)
        return Selection(rows.points(index), index, index >= 0), Evidence(score, leverage, self.width(state))

    @without_gradients
    def update(self, state: BalancedState, pulls: Pulls) -> BalancedState:
        """Learn the pulls under every candidate, one after the other, each credited to the candidate whose turn it is. Cost
        O(K A u) per pull."""
        self.learn(state, pulls)
        inner, balance, K = state.inner, state.balance, state.balance.counts.shape[0]
        if pulls.history or pulls.index is None:
            self.engine.update(inner, _everywhere(pulls, K))
            inner.add_told_(_at_all(pulls.counts, K))
            return state
        assert pulls.mask is not None
        index, features = torch.where(pulls.mask, state.rows.entry(pulls.index), -1), state.rows.source.shape[-1]
        for place in range(index.shape[-1]):
            arm, told = index[..., place], pulls.mask[..., place]
            level, slot = self._turn(state)(balance.counts), _at_all(arm.clamp_min(0).unsqueeze(-1), K)
            deviation = (self.engine.regularization * inner.leverage_at(slot).squeeze(-1)).sqrt()
            spread = _of_level((self.widths(state) * deviation).unsqueeze(-1), level).squeeze(-1)
            balance.add_(level, told, pulls.sums[..., place], spread)
            part = slice(place, place + 1)
            counts, sums, squares = (_at_all(x[..., part], K) for x in (pulls.counts, pulls.sums, pulls.squares))
            one = Pulls(counts, sums, squares)
            own = _at_all(arm.unsqueeze(-1), K)
            self.learn_inner(state, one, own, own >= 0)
            t = balance.counts.sum(dim=0)
            balance.reject_(self.engine.noise_std, self.delta, t, told)
            balance.admit_(1 + self._admitted(t, features), told)
        self._show(state)
        return state

    def current_width(self, state: BalancedState) -> Tensor:
        """The width of the candidate whose turn it is, `batch_shape`."""
        level = self._turn(state)(state.balance.counts)
        return _of_level(self.widths(state).unsqueeze(-1), level).squeeze(-1)

    @without_gradients
    def bounds(self, state: BalancedState) -> tuple[Tensor, Tensor]:
        """The largest upper bound, and the smallest of the largest lower bounds, over the alive candidates. Both bounds are
        valid as soon as one of these candidates is short enough for f."""
        inner, alive = state.inner, state.balance.alive
        mean, std = inner.arm_mean(), (self.engine.regularization * inner.arm_leverage()).sqrt()
        spread = self.widths(state).unsqueeze(-1) * std
        upper, lower = (mean + spread).amax(dim=-1), (mean - spread).amax(dim=-1)
        return upper.masked_fill(~alive, -torch.inf).amax(dim=0), lower.masked_fill(~alive, torch.inf).amin(dim=0)

    def widths(self, state: BalancedState) -> Tensor:
        """β of every candidate, `K x batch_shape`: the width of IGP-UCB for the norm bound e^(i/2) N."""
        inner, bound = state.inner, torch.as_tensor(self.norm_bound, dtype=torch.float64, device=state.told.device)
        grown = (torch.arange(inner.told.shape[0], dtype=torch.float64, device=state.told.device) / 2).exp()
        bounds = beside_rows(grown, state.told.shape) * bound
        return inner.width_of(IGP(self.engine.noise_std, bounds, self.delta / 2, self.engine.regularization))

    # ------------------------------------------------------------------ internals

    def _turn(self, state: BalancedState) -> Callable[[Tensor], Tensor]:
        """Function from counts, `K x batch_shape`, to the candidate with the smallest suspected regret, `batch_shape`."""
        base, alive = _base(self.engine.kernel), state.balance.alive
        nu = base.nu if isinstance(base, gpytorch.kernels.MaternKernel) else None
        d = state.rows.source.shape[-1]
        bound = torch.as_tensor(self.norm_bound, dtype=torch.float64, device=state.told.device)
        grown = beside_rows(torch.arange(alive.shape[0], device=state.told.device).double().exp(), state.told.shape)

        def turn(counts: Tensor) -> Tensor:
            n = counts + 1
            gain = n.log() ** (d + 1) if nu is None else _matern_gain(n, nu, d)
            # R^θ(n) = √n (B(θ) √γ_n + γ_n); with γ ~ θ^(−d) the factor of candidate i is e^i.
            regret = grown * n.sqrt() * (bound * gain.sqrt() + gain)
            return best_arm(-regret.masked_fill(~alive, torch.inf).movedim(0, -1))

        return turn

    def _admitted(self, t: Tensor, dim: int) -> Tensor:
        """Number of candidates beyond the first that the growth function admits after t pulls: d ln g(t), rounded down."""
        grown = (self.growth * dim * t.double().clamp_min(1).log()).clamp_min(_FIRST)
        return (grown + 1e-9).floor().long()

    def _show(self, state: BalancedState) -> None:
        """Set the public posterior to the longest alive lengthscale. Cost: a sweep if it changes."""
        balance, shape = state.balance, state.rows.batch_shape
        longest = balance.alive.byte().argmax(dim=0)
        changed = longest != balance.shown
        if not bool(changed.any()):
            return
        balance.shown = longest
        own, levels = state.inner.posterior.kernel, state.inner.told.shape
        rows = [kernel_row(own, levels, (int(longest[place]), *place)) for place in np.ndindex(*shape)]
        state.posterior.set_kernel_(stack_kernels(rows, shape), state.posterior.regularization)
        learn_kernel(state, changed)

    def _first_kernel(self, arms: Arms) -> gpytorch.kernels.Kernel:
        """The kernel of the longest lengthscale, of no or the full batch shape."""
        if not self.from_arms:
            return self.engine.kernel
        ranges = ranges_of(arms).cpu()
        rows = []
        for place in np.ndindex(*ranges.shape[:-1]):
            row = gpytorch.kernels.MaternKernel(2.5, ard_num_dims=ranges.shape[-1]).double()
            row.lengthscale = ranges[place]
            rows.append(row)
        return stack_kernels(rows, ranges.shape[:-1])


def _base(kernel: gpytorch.kernels.Kernel) -> gpytorch.kernels.Kernel:
    """The kernel with the lengthscale."""
    scaled = isinstance(kernel, gpytorch.kernels.ScaleKernel)
    base: gpytorch.kernels.Kernel = kernel.base_kernel if scaled else kernel
    known = isinstance(base, gpytorch.kernels.RBFKernel | gpytorch.kernels.MaternKernel)
    message = (
        "lengthscales are balanced by bounds that are known for RBF and Matérn kernels, in a ScaleKernel or not, and kernel "
        f"is {type(base).__name__}: pass one of these, or None for Matérn-5/2."
    )
    require(known, message, UnsupportedError)
    return base


def _shortened(kernel: gpytorch.kernels.Kernel, number: int, dim: int) -> gpytorch.kernels.Kernel:
    """Candidate i: the kernel, which is changed, with its lengthscales times e^(−i/d)."""
    base = _base(kernel)
    base.lengthscale = base.lengthscale.detach() * math.exp(-number / dim)
    return kernel


def _matern_gain(n: Tensor, nu: float, d: int) -> Tensor:
    """Order of the information gained from n pulls under a Matérn kernel: Proposition 2.2."""
    power = d * (d + 1) / (2 * nu + d * (d + 1))
    gain: Tensor = n**power * n.log() ** (2 * nu / (2 * nu + d))
    return gain


def _of_level(values: Tensor, level: Tensor) -> Tensor:
    """Select the entries of one candidate per row: `K x batch_shape x A` to `batch_shape x A`."""
    place = level.unsqueeze(-1).unsqueeze(0).expand(1, *values.shape[1:])
    return values.gather(0, place).squeeze(0)


def _at_all(values: Tensor, candidates: int) -> Tensor:
    """Repeat the values for every candidate."""
    return values.unsqueeze(0).expand(candidates, *values.shape)


def _everywhere(pulls: Pulls, candidates: int) -> Pulls:
    """Repeat summed history for every candidate."""

    def spread(values: Tensor | None) -> Tensor | None:
        return None if values is None else _at_all(values, candidates)

    counts, sums, squares = (_at_all(x, candidates) for x in (pulls.counts, pulls.sums, pulls.squares))
    return Pulls(counts, sums, squares, spread(pulls.index), spread(pulls.mask), spread(pulls.points), pulls.history)


@explains_keywords
def lb_gp_ucb(
    kernel: gpytorch.kernels.Kernel | None = None,
    *,
    horizon: int,
    noise_std: float = 0.01,
    norm_bound: float | Tensor = 1.0,
    delta: float = 1e-4,
    growth: float = 0.5,
    regularization: float | None = None,
    prior_mean: float | str = 0.0,
    memory_budget: int | None = None,
) -> LengthscaleBalancing:
    r"""LB-GP-UCB: GP-UCB with a regret bound for an unknown lengthscale, by balancing the regret of several candidates.

    .. math:: \theta_i = \theta_0 e^{-i/d}, \quad i_t = \arg\min_i R_i(n_i + 1), \quad
              x_{t+1} = \arg\max_x \mu^{i_t}_t(x) + \beta^{i_t}_t \sigma^{i_t}_t(x)

    The candidates are θ_0 and successively shorter lengthscales: candidate i is admitted once :math:`i \le d \ln g(t)` for
    :math:`g(t) = \max(e^{5/d}, t^a)`. All candidates learn every reward. The candidate whose suspected regret
    :math:`R_i(n) \propto e^i \sqrt n (N \sqrt{\gamma_n} + \gamma_n)` would be smallest makes the pick, with the width of
    `igp_ucb` for the norm bound :math:`e^{i/2} N`. Once each candidate has a pull, a candidate is rejected if the average
    reward of its own pulls, plus :math:`\sqrt{\xi_t / n_i} + \tfrac{2}{n_i} \sum \beta\sigma`, is below the highest average of
    another candidate j minus :math:`\sqrt{\xi_t / n_j}`.

    The bandit's posterior and `best` are those of the longest lengthscale that is not rejected; the certificate uses bounds
    over all candidates that are not rejected. A told pull is credited to the candidate whose turn it is, whether it was asked
    for or not; history (`observe`) is learned by all candidates and credited to none.

    Args:
        kernel: RBF or Matérn kernel, in a `ScaleKernel` or not, with the longest lengthscales θ_0. None for Matérn-5/2 with the
            ranges of the features over the arms.
        horizon: T, the number of pulls to come; it bounds the number of candidates by 1 + max(5, a d ln T).
        noise_std: Sub-Gaussian constant R of the noise, reward units.
        norm_bound: N, bound on the RKHS norm if the lengthscale were θ_0; one number, or one per batch row. At θ_i the bound is
            e^(i/2) N.
        delta: Failure probability.
        growth: a > 0, the power of the growth function.
        regularization: λ; noise_std² by default.
        prior_mean: Prior mean of the rewards: a number, or `"estimate"` for the average of the rewards told so far.
        memory_budget: Bytes for cached kernel columns of each candidate; by default 2 GiB, or half of the free memory on a GPU.

    Guarantee: with probability 1 − δ the regret of GP-UCB at the best lengthscale up to a factor (θ_0/θ)^d d ln(θ_0/θ) + d
    ln g(T) of constants and logarithms, and up to the pulls before the first candidate that is short enough, for f of RKHS
    norm ≤ N at it, a prior mean of 0, λ = R², and pulls asked one at a time with all arms on offer. The paper proves it for
    one lengthscale of all features; here the ratios of several lengthscales are fixed, which is equivalent to scaling the
    features by them. The paper's algorithm has −√(ξ_t/n_i) in the rejected average; its proof and its authors' code have +,
    as above. Cost: K times that of `igp_ucb`, for K candidates. Source: Ziomek, Adachi & Osborne 2024 (arXiv 2410.10384),
    Alg. 1, Thm 4.1, Lemmas B.2 and B.5.
    """
    base = gpytorch.kernels.MaternKernel(2.5).double() if kernel is None else kernel
    lam = regularization_of(noise_std, regularization)
    width = IGP(noise_std, norm_bound, delta, lam)
    require(isinstance(growth, float | int) and growth > 0, f"growth must be a power > 0, such as 0.5, got {growth!r}.")
    engine = Composed(base, noise_std, width, lam, prior_mean=prior_mean, memory_budget=memory_budget)
    _base(base)
    return LengthscaleBalancing(engine, horizon, norm_bound, delta, float(non_negative("growth", growth)), kernel is None)
