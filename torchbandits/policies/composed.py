"""The one engine: a policy that is nothing but its choice of ingredients."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import gpytorch
import torch
from torch import Tensor

from torchbandits.arms import ArmRows, ArmTable, FullSweep, Lookahead, PosteriorDraws, best_arm
from torchbandits.batching import BatchRule, FixedSize
from torchbandits.embeddings import FeatureMap
from torchbandits.errors import ArgumentError, UnsupportedError, require
from torchbandits.fitting import fit_kernel_
from torchbandits.memory import KeepAll, Memory
from torchbandits.policies.base import Policy, State
from torchbandits.policies.kernel_checks import check_kernel
from torchbandits.policies.learning import learn, learn_kernel
from torchbandits.posteriors import GaussianProcess
from torchbandits.scores import UCB, PosteriorDraw, Score
from torchbandits.starts import Opening, Start
from torchbandits.types import Arms, Evidence, FitReport, Generators, Progress, Pulls, Selection
from torchbandits.widths import Width


@dataclass(frozen=True)
class Composed(Policy):
    """Embedding and memory, score, width and batch rule, run by one engine.

    Args:
        kernel: Any GPyTorch kernel; its batch shape becomes batch rows.
        noise_std: Sub-Gaussian constant of the noise, reward units.
        confidence: Multiplier of the posterior standard deviation.
        regularization: λ, reward units squared.
        memory: What the posterior keeps: everything (exact), informative pulls, or a sampled dictionary (Nyström).
        features: Finite features that stand for the kernel; None for the kernel itself.
        score: What an arm is worth.
        batch_rule: When a batch ends.
        prior_mean: Mean of the rewards before data: a number, or `"estimate"` for the average told so far.
        initial: First picks; None for the argmax of the prior.
        memory_budget: Bytes that cached kernel columns may take.
        refit_every: Fit the kernel whenever the pulls told pass a multiple of this; None for never, as the theory has it.
    """

    kernel: gpytorch.kernels.Kernel
    noise_std: float
    confidence: Width
    regularization: float
    memory: Memory = field(default_factory=KeepAll)
    features: FeatureMap | None = None
    score: Score | PosteriorDraw = field(default_factory=UCB)
    batch_rule: BatchRule = field(default_factory=FixedSize)
    prior_mean: float | str = 0.0
    initial: Start | None = None
    memory_budget: int = 2 << 30
    refit_every: int | None = None

    def __post_init__(self) -> None:
        kernel = self.kernel
        require(
            isinstance(kernel, gpytorch.kernels.Kernel),
            f"kernel must be a gpytorch.kernels.Kernel, got {type(kernel).__name__}.",
        )
        require(
            isinstance(self.confidence, Width),
            f"width must be a torchbandits.widths.Width, such as widths.Constant(2.0), got {type(self.confidence).__name__}.",
        )
        require(
            math.isfinite(self.noise_std) and self.noise_std >= 0,
            f"noise_std must be a finite number ≥ 0, got {self.noise_std}.",
        )
        require(
            math.isfinite(self.regularization) and self.regularization > 0,
            f"regularization (λ, by default noise_std²) must be finite and > 0, got {self.regularization}.",
        )
        numeric = isinstance(self.prior_mean, (int, float)) and math.isfinite(self.prior_mean)
        require(
            numeric or self.prior_mean == "estimate",
            f"prior_mean must be a finite number or 'estimate', got {self.prior_mean!r}.",
        )
        every = self.refit_every
        require(
            every is None or (isinstance(every, int) and not isinstance(every, bool) and every >= 1),
            f"refit_every must be a whole number ≥ 1, or None to keep the kernel as it is, got {every!r}.",
        )

    # ------------------------------------------------------------------ the contract

    @property
    def draws_on_update(self) -> bool:
        """Only a dictionary that is sampled does."""
        return self.memory.sparse

    @property
    def most_picks(self) -> int | None:
        """As many as the batch rule allows; None before first picks that come as one batch are over."""
        return None if self.initial is not None else self.batch_rule.max_batch_size

    @torch.no_grad()
    def init(self, arms: Arms, generators: Generators, batch_shape: torch.Size) -> State:
        """A fresh state; the kernel is deep-copied into its posterior. Cost O(A (d + log A)), and O(A m d) for features."""
        check_kernel(self.kernel, arms, batch_shape)
        posterior = GaussianProcess(
            self.kernel,
            self.regularization,
            dim=arms.shape[-1],
            batch_shape=batch_shape,
            sparse=self.memory.sparse,
            prior_mean=self.prior_mean,
            finite=None if self.features is None else self.features.build(self.kernel, arms, generators, batch_shape),
            device=arms.device,
        )
        rows = ArmRows(arms, batch_shape)
        state = State(rows, posterior, ArmTable(rows, posterior, self.memory_budget), generators)
        state.counts_batches = "batches" in self.confidence.reads
        if isinstance(self.score, PosteriorDraw):
            assert state.table is not None
            state.draws = PosteriorDraws(state.table, self.score.num_features)
        return state

    @torch.no_grad()
    def select(
        self, state: State, *, limit: Tensor | None = None, available: Tensor | None = None, exactly: int | None = None
    ) -> tuple[Selection, Evidence]:
        """Picks by score, batch by the rule, first picks by `initial`. Cost O(A) a round and O(1) a further pick."""
        assert state.table is not None
        rows = state.rows
        offered = rows.offered(available)
        if offered is not None and not bool(offered.any(dim=-1).all()):
            raise ArgumentError("no arm is on offer in at least one batch row: `available` must have a True in each.")
        width = self.width(state)
        rule: BatchRule = self.batch_rule if exactly is None else FixedSize(size=exactly, max_pulls=self.batch_rule.max_pulls)
        remaining = self._room(state, rule, limit)
        twins = state.twins() if state.opening or state.draws is not None else ()
        starting = self._first_picks(state, remaining, offered, twins) if state.opening else None
        if starting is not None:
            remaining = torch.where((starting >= 0).any(dim=-1), 0, remaining)
        mean, std = self._marginals(state)
        values = None
        if not bool((remaining > 0).any()):
            index = starting if starting is not None else mean.new_empty(*remaining.shape, 0, dtype=torch.int64)
        else:
            index, values = self._pick(state, width, offered, rule, remaining, twins)
            if starting is not None:
                index = torch.where((starting >= 0).any(dim=-1, keepdim=True), _widen(starting, index), _widen(index, starting))
        slot = index.clamp_min(0)
        leverage = state.table.leverage.gather(-1, slot)
        if (values is None or values.shape != index.shape) and state.known_upper is not None and isinstance(self.score, UCB):
            values = state.known_upper.gather(-1, slot)
        elif values is None or values.shape != index.shape:
            values = self._scores(mean.gather(-1, slot), std.gather(-1, slot), width, mean)
        states = tuple(twin.get_state() for twin in twins)
        return Selection(rows.points(index), index, index >= 0), Evidence(values, leverage, width, states)

    @torch.no_grad()
    def update(self, state: State, pulls: Pulls) -> State:
        """Add the pulls, choose the dictionary anew, bring means and leverages up to date; see `learn` for the cost."""
        upper = state.known_upper
        leaders = None if upper is None else lambda count: upper.topk(min(count, upper.shape[-1]), dim=-1).indices
        state.forget_derived_()
        learn(state, pulls, self.memory, leaders)
        if self.refit_every is not None:
            told, now = state.told // self.refit_every, (state.told + pulls.counts.sum(dim=-1)) // self.refit_every
            if bool((now > told).any()):
                self.refit(state, rows=now > told)
        return state

    @torch.no_grad()
    def refit(self, state: State, *, noise: bool = False, rows: Tensor | None = None, **options: Any) -> FitReport:
        """Fit the kernel, and λ in its ratio to the noise variance; see `fit_kernel_` and `learn_kernel`. A noise_std of 0 says
        nothing of the noise: it is taken to be λ."""
        require(
            not (noise and self.memory.selective),
            "the entropy threshold belongs to its λ: pass the noise_std that you know to compressed_gp, and noise=False.",
            UnsupportedError,
        )
        share = self.noise_std**2 / self.regularization or 1.0
        report = fit_kernel_(state.posterior, noise=noise, noise_share=share, rows=rows, **options)
        learn_kernel(state, report.accepted)
        return report

    @torch.no_grad()
    def width(self, state: State) -> Tensor:
        """The confidence width for the next pick, `batch_shape`."""
        if state.known_width is None:
            state.known_width = self.confidence(self.progress(state))
        return state.known_width

    @torch.no_grad()
    def bounds(self, state: State) -> tuple[Tensor, Tensor]:
        """Largest upper and largest lower confidence bound over the arms, reward units."""
        assert state.table is not None
        mean, upper = self._marginals(state)[0], self._upper(state)
        return upper.amax(dim=-1), -torch.sub(upper, mean, alpha=2).amin(dim=-1)

    def progress(self, state: State) -> Progress:
        """What widths may depend on."""
        assert state.table is not None
        pulls, dimension = state.told, torch.full_like(state.told, torch.nan)
        if "effective_dimension" in self.confidence.reads:
            dimension = (state.row_leverage() * state.statistics.weights).sum(dim=-1)
        return Progress(
            t=pulls + 1,
            pulls=pulls.clamp_min(1),
            num_arms=state.rows.num_arms,
            dim=state.rows.arms.shape[-1],
            log_det=state.log_det,
            batched_log_det=state.batched_log_det,
            batched_log_det_3=state.batched_log_det_3,
            effective_dimension=dimension,
            kappa2=state.table.kappa2.expand_as(pulls),
        )

    # ------------------------------------------------------------------ its steps

    def _room(self, state: State, rule: BatchRule, limit: Tensor | None) -> Tensor:
        """Most picks of each row, `batch_shape`."""
        most = torch.iinfo(torch.int32).max if rule.max_batch_size is None else rule.max_batch_size
        room = torch.full(state.rows.batch_shape, most, device=state.log_det.device)
        if limit is not None:
            room = torch.minimum(room, limit.to(room))
        return room

    def _marginals(self, state: State) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation of every arm, `batch_shape x A`, reward units."""
        assert state.table is not None
        if state.known_marginals is None:
            state.known_marginals = state.table.mean(), (state.posterior.regularization * state.table.leverage).sqrt_()
        return state.known_marginals

    def _upper(self, state: State) -> Tensor:
        """Upper confidence bound of every arm, `batch_shape x A`, reward units."""
        if state.known_upper is None:
            mean, std = self._marginals(state)
            state.known_upper = torch.addcmul(mean, std, self.width(state).unsqueeze(-1))
        return state.known_upper

    def _scores(self, mean: Tensor, std: Tensor, width: Tensor, means: Tensor) -> Tensor:
        """Scores of some arms; `means` are those of all of them. For a policy that draws, the upper bound."""
        if isinstance(self.score, PosteriorDraw):
            return UCB()(mean, std, width, width)
        return self.score(mean, std, width, means.amax(dim=-1) if self.score.relative else width)

    def _first_picks(self, state: State, remaining: Tensor, offered: Tensor | None, twins: Generators) -> Tensor | None:
        """Picks of `initial` for rows that have not made them all; None once no row has any left."""
        if self.initial is None:
            state.opening = False
            return None
        pending = (state.pending_index, state.pending_counts)
        made = state.told + state.pending_counts.sum(dim=-1)
        kernel, lam = state.posterior.kernel, state.posterior.regularization
        opening = Opening(state.rows, state.statistics, kernel, lam, pending, made, remaining, offered, twins)
        index, over = self.initial.picks(opening)
        # Picks that are pending may yet be forgotten, and arms that are off may come back.
        state.opening = not bool(over.all()) or bool(pending[0].shape[-1]) or offered is not None
        return index if bool((index >= 0).any()) else None

    def _pick(
        self, state: State, width: Tensor, offered: Tensor | None, rule: BatchRule, remaining: Tensor, twins: Generators
    ) -> tuple[Tensor, Tensor | None]:
        """Picks `batch_shape x q` (−1 where padded), and their scores where they are not a function of the marginals."""
        assert state.table is not None
        mean, std = self._marginals(state)
        if state.draws is not None:
            return self._draw(state.draws, width, offered, remaining, twins)
        if rule.max_batch_size == 1 and not state.pending_index.shape[-1]:
            score = self._upper(state) if isinstance(self.score, UCB) else self._scores(mean, std, width, mean)
            if offered is not None:
                score = score.masked_fill(~offered, -torch.inf)
            return torch.where(remaining > 0, best_arm(score), -1).unsqueeze(-1), None
        pending = (state.pending_index, state.pending_counts)
        if isinstance(self.score, UCB):
            lookahead = Lookahead(state.table, mean, width, offered, pending, rule.max_pulls)
            return lookahead.pick(rule.meter(lookahead), remaining), None
        sweep, lam = FullSweep(state.table, offered, pending, rule.max_pulls), state.posterior.regularization
        return sweep.pick(lambda leverage: self._scores(mean, (lam * leverage).sqrt(), width, mean), remaining), None

    def _draw(
        self, draws: PosteriorDraws, width: Tensor, offered: Tensor | None, remaining: Tensor, twins: Generators
    ) -> tuple[Tensor, Tensor]:
        """One draw of the posterior a pick, the best arm of each; picks that are pending have no say."""
        sizes = remaining.reshape(-1).tolist()
        if not max(sizes):
            nothing = width.new_zeros(*width.shape, 0)
            return nothing.long(), nothing
        values = draws.draw(sizes, width, twins)
        if offered is not None:
            values = values.masked_fill(~offered.unsqueeze(-2), -torch.inf)
        index = best_arm(values)
        drawn = torch.arange(index.shape[-1], device=index.device) < remaining.unsqueeze(-1)
        best = values.gather(-1, index.unsqueeze(-1)).squeeze(-1)
        return torch.where(drawn, index, -1), torch.where(drawn, best, torch.nan)


def _widen(index: Tensor, other: Tensor) -> Tensor:
    """Pad the picks with −1 to the longer of two."""
    return torch.nn.functional.pad(index, (0, max(0, other.shape[-1] - index.shape[-1])), value=-1)
