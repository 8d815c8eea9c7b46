"""The posteriors' view of the features and the noise of several outcomes, in one plain line for each."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from torchbandits.display import count
from torchbandits.explanation.bars import bars
from torchbandits.explanation.explanation import FEW
from torchbandits.explanation.noise import noise_of
from torchbandits.explanation.relevance import relevance_of
from torchbandits.explanation.row import Row, check_row, checked_names
from torchbandits.explanation.words import (
    Words,
    by_rank,
    failures_in_words,
    fastest,
    forecast_in_words,
    in_common,
    percent,
    predicted_in_words,
    shifts_in_words,
    source_of_noise,
    unexplained_in_words,
    unknown_in_words,
    unsettled,
)
from torchbandits.policies.composed import noise_share
from torchbandits.policies.joint import Joint
from torchbandits.policies.state import TableState

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, eq=False)
class OutcomeExplanation:
    """The explanation of one batch row of picks with k outcomes.

    Attributes:
        outcomes: Names of the outcomes.
        relevance: `k x d`, for each outcome the speed at which it changes along each feature, as in `Explanation`. NaN for a
            kernel without lengthscales.
        names: Names of the features.
        noise_std: `k`, standard deviation of a reward of an average arm pulled around its mean, reward units; NaN before the
            first reward of an outcome. Of `auto`, that of repeated pulls if there are ten.
        noise_share: `k`, fraction of the variance over the pulled arms that is noise, under the model; NaN for fewer than two
            arms.
        pulls, distinct: For each outcome the rewards told, and the distinct points among them.
        elsewhere: For each outcome the number of distinct points that are none of the arms.
        num_arms: Number of arms.
        noise_estimated: Whether the noise is estimated from the rewards, as by `auto`.
        noise_repeated: For each outcome whether `noise_std` is that of repeated pulls.
        two_values: For each outcome whether its rewards have two values, as in `Explanation.two_values`.
        unexplained: For each outcome the fraction of the variance between arms that the features do not explain, as in
            `Explanation`.
        predictive_r2, forecasts, forecast_r2: For each outcome the fraction of the variance that is predicted, and predictions
            that were made before the rewards were told, as in `Explanation`.
        shifts: For each outcome the shift of each block, as in `Explanation`.
        constant: For each outcome whether all its rewards are equal, as in `Explanation`.
        failed, avoided: As in `Explanation`.
        words: Words of the text.
    """

    outcomes: tuple[str, ...]
    relevance: Tensor
    names: tuple[str, ...]
    noise_std: Tensor
    noise_share: Tensor
    pulls: tuple[float, ...]
    distinct: tuple[int, ...]
    elsewhere: tuple[int, ...]
    num_arms: int
    noise_estimated: bool = False
    noise_repeated: tuple[bool, ...] = ()
    two_values: tuple[bool, ...] = ()
    unexplained: tuple[float, ...] = ()
    predictive_r2: tuple[float, ...] = ()
    forecasts: tuple[int, ...] = ()
    forecast_r2: tuple[float, ...] = ()
    shifts: tuple[tuple[float, ...], ...] = ()
    constant: tuple[bool, ...] = ()
    failed: int = 0
    avoided: int = 0
    words: Words = field(default_factory=Words)

    def __str__(self) -> str:
        """The lines of the text."""
        return "\n".join(self.lines())

    def lines(self) -> tuple[str, ...]:
        """A line for each outcome: the features with which it changes fastest, and its noise. A last line if pulls failed."""
        failures = failures_in_words(self.failed, self.avoided, self.words)
        return (*map(self._line, range(len(self.outcomes))), *([failures] if failures else []))

    @property
    def tells_features(self) -> bool:
        """Whether any outcome has a kernel with lengthscales, and enough distinct arms to name the features that matter."""
        return any(n >= FEW and bool(own.isfinite().all()) for n, own in zip(self.distinct, self.relevance, strict=True))

    def _line(self, place: int) -> str:
        said, relevance = self.words, self.relevance[place]
        name, pulls, distinct = self.outcomes[place], round(self.pulls[place]), self.distinct[place]
        if not pulls:
            return f"{name}: no {said.given} was told yet."
        points = said.points(distinct, self.elsewhere[place], self.num_arms)
        start = f"{name}: after {count(pulls, said.given)} of {points}"
        if any(self.constant[place : place + 1]):
            return f"{start}, {unknown_in_words(said)}."
        if distinct < FEW:
            return f"{start}; {FEW} must be {said.pulled} before it shows which {said.feature}s matter."
        features = f"the model does not tell which {said.feature}s matter, because a part of its kernel has no lengthscales"
        if bool(relevance.isfinite().all()):
            features = f"it changes fastest with {fastest(relevance, self.names)}"
        two = any(self.two_values[place : place + 1])
        by = source_of_noise(two, any(self.noise_repeated[place : place + 1]), said)
        ranked = self.noise_estimated and not two
        noise = (
            f"{by[0].upper()}{by[1:]}, one more {said.given} would be off by about {float(self.noise_std[place]):.2g}; "
            f"noise is {percent(float(self.noise_share[place]))} of the variance over the {said.arm}s {said.pulled}"
            f"{by_rank(ranked)}."
        )
        if ranked and pulls == distinct:
            noise += f" No {said.arm} was {said.pulled} twice yet, so that the noise may be larger than that."
        noise += "".join(shifts_in_words(own, said) for own in self.shifts[place : place + 1])
        known = self.noise_estimated and bool(relevance.isfinite().all())
        order = unsettled(distinct, self.names, said) if known else ""
        same = in_common(relevance, self.names, said) if known else ""
        rest = "".join(unexplained_in_words(own, ranked, said) for own in self.unexplained[place : place + 1])
        # Under a kernel that was given, the kernel may be at fault.
        foretold = self._foretold(place) if ranked and self.predictive_r2 else ""
        return f"{start}, {features}.{same}{rest}{order}{foretold} {noise}"

    def _foretold(self, place: int) -> str:
        """The sentences of `Explanation.foresight` and `weakness` on an outcome, after spaces."""
        forecast = (self.forecast_r2[place], self.forecasts[place]) if self.forecasts else (math.nan, 0)
        little = predicted_in_words(self.predictive_r2[place], self.distinct[place], *forecast, self.words)
        return "".join(f" {words}" for words in (forecast_in_words(*forecast, self.words), little) if words)

    def figure(self) -> Figure:
        """Horizontal bars of the relevance of each feature, one panel per outcome with lengthscales; at most thirty features.

        Raises:
            UnsupportedError: If Matplotlib is not installed, or for kernels without lengthscales.
        """
        told = zip(self.outcomes, self.relevance, self.distinct, strict=True)
        along = f"how fast it changes along the {self.words.feature} (% of all)"
        return bars({name: (own if n >= FEW else own * torch.nan, along) for name, own, n in told}, self.names)


@torch.no_grad()
def explain_outcomes(
    policy: Joint, state: TableState, names: Sequence[str] | None, row: tuple[int, ...] | int
) -> OutcomeExplanation:
    """Explain the state of a policy of several outcomes; see `OutcomeBandit.explain`."""
    posterior, place = state.posterior, (row,) if isinstance(row, int) else row
    own = checked_names(names, posterior.statistics.points.shape[-1])
    check_row(place, posterior.batch_shape[:-1])
    learned = []
    for j, (std, lam) in enumerate(zip(policy.noise_stds, policy.regularizations, strict=True)):
        # A reward of outcome j has the weight λ₀/λ_j.
        variance = noise_share(std, lam) * posterior.regularization * lam / policy.regularizations[0]
        learned.append(Row(state, (*place, j), variance, policy.engine.from_data))
    noises = [noise_of(outcome) for outcome in learned]
    return OutcomeExplanation(
        outcomes=policy.outcomes,
        relevance=torch.stack([relevance_of(outcome) for outcome in learned]),
        names=own,
        noise_std=torch.tensor([noise.std for noise in noises], dtype=torch.float64),
        noise_share=torch.tensor([outcome.noise_share for outcome in learned], dtype=torch.float64),
        pulls=tuple(outcome.pulls for outcome in learned),
        distinct=tuple(outcome.distinct for outcome in learned),
        elsewhere=tuple(outcome.elsewhere for outcome in learned),
        num_arms=state.rows.num_arms,
        noise_estimated=posterior.units is not None,
        noise_repeated=tuple(noise.repeated for noise in noises),
        two_values=tuple(noise.two_values is not None for noise in noises),
        unexplained=tuple(outcome.unexplained for outcome in learned),
        predictive_r2=tuple(outcome.predictive_r2 for outcome in learned),
        forecasts=tuple(outcome.forecasts for outcome in learned),
        forecast_r2=tuple(outcome.forecast_r2 for outcome in learned),
        shifts=tuple(outcome.shifts for outcome in learned),
        constant=tuple(outcome.constant for outcome in learned),
    )
