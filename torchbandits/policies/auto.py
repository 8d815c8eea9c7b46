"""Everything from the data: scales, rewards, kernel, noise. No guarantee, and no argument that must be given."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import gpytorch
import torch
from torch import Tensor

from torchbandits.arms.duplicates import matches
from torchbandits.batching import FixedSize
from torchbandits.coercion import explains_keywords, non_negative
from torchbandits.embeddings import stack_kernels
from torchbandits.errors import UnsupportedError
from torchbandits.fitting.standardized import Priors, fit_standardized_, ranges_of
from torchbandits.memory import LeverageSampling, Memory
from torchbandits.policies.base import State
from torchbandits.policies.composed import Composed
from torchbandits.policies.learning import learn_kernel, learn_sparsely
from torchbandits.posteriors import Units
from torchbandits.posteriors.averages import FEWEST
from torchbandits.sources import ArmSet
from torchbandits.starts import Start, Uniform
from torchbandits.types import FitReport, Generators, Pulls
from torchbandits.widths import Constant, Width

_FIRST = 5  # picks before the model is asked
_GROWTH = 1.5  # of the data between two fits
_LEAST_EXACT = 16  # distinct arms of which all is kept, however many arms there are


@dataclass(frozen=True)
class Auto(Composed):
    """The one engine with a kernel made from the arms, rewards in the units of `posteriors.Units`, and fits as data grow.

    Args:
        kernel: What stands there before there are arms.
        priors: Of the hyper-parameters.
        growth: Factor by which the pulls grow between two fits.
    """

    kernel: gpytorch.kernels.Kernel = field(
        default_factory=lambda: gpytorch.kernels.ScaleKernel(gpytorch.kernels.MaternKernel(2.5))
    )
    noise_std: float = 1.0
    confidence: Width = field(default_factory=lambda: Constant(2.0))
    regularization: float = 1.0
    initial: Start | None = field(default_factory=lambda: Uniform(_FIRST))
    priors: Priors = field(default_factory=Priors)
    growth: float = _GROWTH

    @torch.no_grad()
    def init(self, arms: ArmSet, generators: Generators, batch_shape: torch.Size) -> State:
        """A fresh state, with ranges of the features from at most 20,000 arms. Cost O(A (d + log A))."""
        ranges = ranges_of(arms)
        rows = [self.priors.kernel(row) for row in ranges.reshape(-1, ranges.shape[-1])]
        kernel = stack_kernels(rows, ranges.shape[:-1]) if ranges.dim() > 1 else rows[0]
        return super(Auto, replace(self, kernel=kernel)).init(arms, generators, batch_shape)

    @torch.no_grad()
    def init_box(self, box: Tensor, generators: Generators, batch_shape: torch.Size) -> State:
        """Not yet: raises `UnsupportedError`."""
        raise UnsupportedError(
            "auto chooses among arms: pass arms=, such as points of the box, or take a policy with a kernel."
        )

    def _units(self, arms: ArmSet, batch_shape: torch.Size) -> Units:
        return Units(ranges_of(arms).expand(*batch_shape, -1))

    @torch.no_grad()
    def update(self, state: State, pulls: Pulls) -> State:
        """Learn the pulls in the units of the model; fit those, kernel and noise anew where the data have grown by half."""
        units, n = state.posterior.units, pulls.counts.clamp_min(1e-300)
        assert units is not None
        z = pulls.counts * units.to_model(pulls.sums / n)
        super().update(state, replace(pulls, sums=z, squares=z.square() / n))
        sums, squares = pulls.sums, pulls.squares
        if pulls.points is not None:
            row = matches(state.statistics.points, pulls.points.double())
        else:
            assert pulls.index is not None
            assert pulls.mask is not None
            arm, _, sums, squares = state.rows.distinct(pulls.index, pulls.mask, pulls.counts, sums, squares)
            row = torch.where(arm >= 0, state.rows.row_of(arm), -1)
        units.add_(row, sums, squares, state.statistics.size)
        due = self._fits_by(state.told + pulls.counts.sum(dim=-1)) > self._fits_by(state.told)
        if not state.posterior.sparse and state.statistics.size > self._most_exact(state):
            learn_sparsely(state)
        if bool(due.any()):
            self.refit(state, rows=due)
        return state

    def _memory(self, state: State) -> Memory:
        """All points while the budget of memory has room for what an exact posterior keeps of each, then a dictionary."""
        return LeverageSampling() if state.posterior.sparse else self.memory

    def _most_exact(self, state: State) -> int:
        """Distinct arms up to which the posterior is exact: each takes a number an arm and batch row."""
        source, rows = state.rows.source, state.rows.batch_shape.numel()
        return max(_LEAST_EXACT, self.memory_budget // (source.dtype.itemsize * source.num_arms * rows))

    @property
    def draws_on_update(self) -> bool:
        """A dictionary that is sampled does."""
        return True

    def _fits_by(self, pulls: Tensor) -> Tensor:
        """How many fits there are up to so many pulls: one a pull to the fifth, then one each time they have grown by half."""
        grown = (pulls.clamp_min(FEWEST) / FEWEST).log() / math.log(self.growth)
        return torch.where(pulls < FEWEST, pulls.floor(), FEWEST + grown.floor())

    def learns_together(self, state: State) -> bool:
        """No: what is learned depends on the units at the time."""
        return False

    @torch.no_grad()
    def refit(self, state: State, *, noise: bool = True, rows: Tensor | None = None, **options: int) -> FitReport:
        """Fit units, kernel and noise; see `fit_standardized_`."""
        due = torch.ones_like(state.told, dtype=torch.bool) if rows is None else rows
        report = fit_standardized_(state.posterior, self.priors, due, **options)
        learn_kernel(state, due)
        return report

    @torch.no_grad()
    def bounds(self, state: State) -> tuple[Tensor, Tensor] | None:
        """Largest upper and largest lower confidence bound over the arms, reward units."""
        units, own = state.posterior.units, super().bounds(state)
        assert units is not None
        assert own is not None
        upper, lower = (units.to_rewards(bound.unsqueeze(-1)).squeeze(-1) for bound in own)
        return upper, lower


@explains_keywords
def auto(
    *,
    batch_size: int = 1,
    width: Width | float | None = None,
    initial: Start | None = None,
    memory_budget: int = 2 << 30,
) -> Auto:
    r"""For someone who knows no kernel, no noise and no scale: everything is estimated from arms and rewards.

    Features are measured by their ranges over the arms, rewards by normal scores of their ranks. Kernel (Matérn-5/2, a
    lengthscale for each feature) and noise are fitted under priors whenever the pulls have grown by half. The arm pulled is

    .. math:: x_{t+1} = \arg\max_x \mu_t(x) + w\,\sigma_t(x)

    in these units, with picks of a batch and picks that are out treated as pending. What the posterior, `best` and the bounds
    say is in reward units.

    Args:
        batch_size: Picks of one `ask`.
        width: w, or a `Width`; 2 by default.
        initial: First picks; five arms drawn uniformly by default.
        memory_budget: Bytes for cached kernel columns.

    Guarantee: none, the kernel is estimated; `igp_ucb` has one for a kernel and a norm that are known. Cost: O(A u) a pick, u
    distinct arms pulled, and O(u³) an iteration for each of O(log t) fits.
    Source: Hvarfner et al. 2024 (priors); Salinas et al. 2020 (normal scores); Srinivas et al. 2010 (the rule).
    """
    own = width if isinstance(width, Width) else Constant(2.0 if width is None else non_negative("width", width))
    return Auto(
        confidence=own,
        batch_rule=FixedSize(size=batch_size, max_pulls=1),
        initial=Uniform(_FIRST) if initial is None else initial,
        memory_budget=memory_budget,
    )
