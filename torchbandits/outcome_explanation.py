"""The posteriors' view of the features and the noise of several outcomes, in one plain line for each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from torchbandits.display import count
from torchbandits.explanation import (
    FEW,
    Words,
    bars,
    by_rank,
    check_row,
    checked_names,
    failures_in_words,
    fastest,
    in_common,
    noise_at,
    noise_of_repeats,
    noise_of_two,
    percent,
    points_elsewhere,
    pulled,
    relevance_of,
    shifts_in_words,
    shifts_of,
    two_values_of,
    unexplained_in_words,
    unexplained_share,
    unsettled,
)
from torchbandits.policies.composed import noise_share
from torchbandits.policies.joint import Joint
from torchbandits.policies.repeats import share_of_noise
from torchbandits.policies.state import TableState
from torchbandits.posteriors import GaussianProcess

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
        shifts: For each outcome the shift of each block, as in `Explanation`.
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
    shifts: tuple[tuple[float, ...], ...] = ()
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
        if distinct < FEW:
            return f"{start}; {FEW} must be {said.pulled} before it shows which {said.feature}s matter."
        features = f"the model does not tell which {said.feature}s matter, because a part of its kernel has no lengthscales"
        if bool(relevance.isfinite().all()):
            features = f"it changes fastest with {fastest(relevance, self.names)}"
        two = any(self.two_values[place : place + 1])
        by = "As large as two values allow" if two else "By the model"
        by = f"By repeated {said.pull}s" if any(self.noise_repeated[place : place + 1]) else by
        ranked = self.noise_estimated and not two
        noise = (
            f"{by}, one more {said.given} would be off by about {float(self.noise_std[place]):.2g}; noise is "
            f"{percent(float(self.noise_share[place]))} of the variance over the {said.arm}s {said.pulled}"
            f"{by_rank(ranked)}."
        )
        if ranked and pulls == distinct:
            noise += f" No {said.arm} was {said.pulled} twice yet, so that the noise may be larger than that."
        noise += "".join(shifts_in_words(own, said) for own in self.shifts[place : place + 1])
        known = self.noise_estimated and bool(relevance.isfinite().all())
        order = unsettled(distinct, self.names, said) if known else ""
        same = in_common(relevance, self.names, said) if known else ""
        rest = "".join(unexplained_in_words(own, ranked, said) for own in self.unexplained[place : place + 1])
        return f"{start}, {features}.{same}{rest}{order} {noise}"

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
    told, relevance, stds, shares, distinct = state.told[place].tolist(), [], [], [], []
    repeated, two, rest = [], [], []
    for j, (std, lam) in enumerate(zip(policy.noise_stds, policy.regularizations, strict=True)):
        at = (*place, j)
        # A reward of outcome j has the weight λ₀/λ_j.
        variance = noise_share(std, lam) * posterior.regularization * lam / policy.regularizations[0]
        mean, _ = pulled(state, at)
        relevance.append(relevance_of(state, at))
        values = two_values_of(policy.engine.from_data, posterior, at)
        noise = noise_of_repeats(state, at) if values is None else noise_of_two(values, _average(posterior, at))
        two.append(values is not None)
        repeated.append(noise is not None and values is None)
        model = noise_at(posterior, variance, at, float(mean.mean())) if len(mean) else float("nan")
        stds.append(model if noise is None else noise)
        shares.append(share_of_noise(posterior, variance, at))
        distinct.append(int(posterior.statistics.num_rows[at]))
        rest.append(unexplained_share(posterior, at))
    return OutcomeExplanation(
        outcomes=policy.outcomes,
        relevance=torch.stack(relevance),
        names=own,
        noise_std=torch.tensor(stds, dtype=torch.float64),
        noise_share=torch.tensor(shares, dtype=torch.float64),
        pulls=tuple(told),
        distinct=tuple(distinct),
        elsewhere=tuple(points_elsewhere(state, (*place, j)) for j in range(len(distinct))),
        num_arms=state.rows.num_arms,
        noise_estimated=posterior.units is not None,
        noise_repeated=tuple(repeated),
        two_values=tuple(two),
        unexplained=tuple(rest),
        shifts=tuple(shifts_of(posterior, (*place, j)) for j in range(len(distinct))),
    )


def _average(posterior: GaussianProcess, place: tuple[int, ...]) -> float:
    """The average reward of a batch row whose model has units, reward units."""
    assert posterior.units is not None
    return float(posterior.units.totals[place][:, 0].sum() / posterior.statistics.weights[place].sum())
