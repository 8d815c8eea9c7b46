"""The explanation of one reward in five plain lines: the best arm, the features, the noise, how sure it is, the guarantee."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from torch import Tensor

from torchbandits.display import count, rounded, within
from torchbandits.explanation.bars import bars
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
from torchbandits.policies.repeats import NOISE_ALONE
from torchbandits.policies.state import RECENT
from torchbandits.types import Recommendation

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FEW = 5
"""With fewer distinct arms, fitted lengthscales carry no information."""
CLEAR = 2.5
"""Lead of the best arm, in standard errors, from which rewards that are mostly noise show a difference. The best of many arms
of equal means led by 2 in 12 of 86 states, by 2.5 in one."""
DOUBTFUL = 0.5
"""Deviation of the best arm, in spreads of the posterior means, beyond which another arm is probably better."""
_LEADERS = 5  # number of arms to pull again where the best arm is doubtful
_MANY = 20  # number of further pulls of each of them above which less noise is the better advice


@dataclass(frozen=True, eq=False)
class Explanation:
    """The explanation of one batch row.

    Attributes:
        relevance: `d`, inverse squared lengthscales in units of the features' ranges, as fractions of their sum: the speed at
            which the reward changes along each feature. They are summed over the factors of a product of kernels, averaged over
            the terms of a sum by their variances, and 0 for features that the kernel does not read. For `auto` they are 0 for
            features with the same value at all points pulled, such as that of a single context, of which nothing is known yet.
            NaN for a kernel with a part without lengthscales, such as a linear or periodic one.
        names: Names of the features.
        noise_std: Standard deviation of the rewards of the best arm around its mean, reward units. Of `auto`, whose model does
            not know the noise in these units, that of repeated pulls if there are ten: of those of the best arm, or else of
            those of all arms.
        noise_share: Fraction of the variance over the pulled arms that is noise, under the model and in its units: for `auto`
            these are normal scores of the ranks. There, the best arms often differ by no more than the noise, because ranks are
            spread among them. If repeated pulls tell the noise of `auto` (ten, or three that differ by little), and its best
            arm is clearly better than the average, the fraction is therefore that of the rewards, by repeated pulls.
        best: The pulled point with the highest posterior mean. If it is none of the arms, such as a removed arm, its index is
            −1 and the text says so, while `Bandit.best` recommends the best one of the arms.
        upper: Largest upper confidence bound of the `rivals`, or of the best arm if there are none, reward units; for a
            campaign that minimises its objective the smallest lower bound. Of `two_values` at most the higher one, or the mean
            of the best arm where that exceeds it.
        rivals: Number of other arms that may be pulled and have an upper bound above the lower bound of the best one.
        pulls, distinct, num_arms: Pulls told, distinct points among them, number of arms.
        guarantee: The guarantee that holds for the run.
        lead: Posterior mean of the best arm minus the average posterior mean of the arms pulled, in standard errors, which
            combine the posterior deviation of the best arm and the noise of an average of all rewards.
        repeated: The arm that took more than half of the last 40 pulls, the number of these pulls, and the reason with a
            remedy; None if there is no such arm. After a state was loaded, only later pulls count.
        uncertainty: Posterior standard deviation of the best arm, as a fraction of the standard deviation of the posterior
            means over the arms pulled, in the units of the model. Above 0.5, another of these arms is probably as good or
            better: see `doubt`. NaN for fewer than five arms, and if all means are equal.
        repeats: Number of further pulls of the best arm that would lower its `uncertainty` to 0.5 if the means stayed the same.
        kernel_estimated, noise_estimated: Whether kernel and noise are estimated from the rewards, as by `auto`.
        noise_repeated, share_repeated: Whether `noise_std` and `noise_share` are those of repeated pulls.
        two_values: Whether all rewards have one of two values, such as yes and no, and the policy is `auto`. The noise is then
            the largest that they can have: `noise_std` is √(p(1 − p)) of their distance for a probability p of the higher one,
            and at least the posterior deviation of the best arm, because a probability that is not known has some noise.
        elsewhere: Number of distinct points that are none of the arms, such as a history of other points.
        failed, avoided: Number of pulls that failed, and of arms that are left out because the model expects them to
            fail.
        unexplained: Fraction of the variance between arms that the features do not explain, but that is the same at every pull,
            in the units of the model; 0 where it is not estimated.
        predictive_r2: Fraction of the variance between the average rewards of the arms pulled that is predicted, each arm from
            all others under the fitted kernel and in the units of the model: 1 − Σ(ȳᵢ − μ₋ᵢ)² / Σ(ȳᵢ − ȳ)², below 0 where the
            predictions are worse than the average. NaN beside a dictionary, and where all averages are equal.
        forecasts, forecast_r2: Number of arms whose first reward the model predicted before it was told, from the first fit of
            `auto` on, and the fraction of the variance of these rewards that was predicted: 1 − Σ(zᵢ − μᵢ)² / Σzᵢ², with the
            score zᵢ and the posterior mean μᵢ of that time. Scores of earlier rewards have the mean 0, so that it is below 0
            where the predictions were worse than their average. NaN without forecasts.
        shifts: The estimated shift of each block, in the order of their numbers, reward units; empty if no reward was told with
            its block.
        together: Standard deviation of the shifts that measurements which were told by one call of a campaign seem to share,
            units of the objective; 0 where this is not clear, and always for a `Bandit`.
        limited: Sentences on rows of a campaign that are only known to be beyond a limit of detection; empty for a `Bandit`.
        overruled: Whether the model expects more of another arm than of the best one, which was measured to be clearly better
            (`Bandit.best`).
        constant: Whether all rewards are equal, and the policy is `auto`, which learns their scale: deviations, noise and upper
            bounds are then not known, and the text leaves them out.
        words: Words of the text.
    """

    relevance: Tensor
    names: tuple[str, ...]
    noise_std: float
    noise_share: float
    best: Recommendation
    upper: float
    rivals: int
    pulls: float
    distinct: int
    num_arms: int
    guarantee: str
    lead: float = float("nan")
    repeated: tuple[int, int, str] | None = None
    uncertainty: float = float("nan")
    repeats: int = 0
    kernel_estimated: bool = False
    noise_estimated: bool = False
    noise_repeated: bool = False
    share_repeated: bool = False
    two_values: bool = False
    elsewhere: int = 0
    failed: int = 0
    avoided: int = 0
    unexplained: float = 0.0
    predictive_r2: float = float("nan")
    forecasts: int = 0
    forecast_r2: float = float("nan")
    shifts: tuple[float, ...] = ()
    together: float = 0.0
    limited: str = ""
    overruled: bool = False
    constant: bool = False
    words: Words = field(default_factory=Words)

    def __str__(self) -> str:
        """Five lines."""
        return "\n".join(self.lines())

    def lines(self) -> tuple[str, str, str, str, str]:
        """The lines of the text: the best arm so far, the features, the noise, how sure it is, and the guarantee."""
        said, mean, std = self.words, float(self.best.mean[0]), float(self.best.variance[0]) ** 0.5
        pulled = said.points(self.distinct, self.elsewhere, self.num_arms)
        at = f"{mean:.6g}" if self.constant else within(mean, std)
        found = (
            f"Best so far: {said.called(int(self.best.index[0]))}, with {said.reward} expected at {at}, after "
            f"{count(round(self.pulls), said.given)} of {pulled}."
        )
        measured = (
            f"The model expects more of another {said.arm}, but this one was measured to be better by far more than repeated "
            f"{said.given}s differ."
        )
        found = " ".join(part for part in (found, measured if self.overruled else "", self.failures()) if part)
        if self.constant:
            sure = f"How sure: any other {said.arm} may be better, and by how much is not known."
            sure = " ".join(part for part in (sure, self.limited) if part)
            return found, self._features(), self._noise(), sure, self.guarantee
        # The best arm may be worse than expected, so that a rival need not reach its mean.
        short = self.upper < mean if said.above == "above" else self.upper > mean
        only_if = ", if the best one is worse than expected" if short else ""
        sure = (
            f"How sure: {self.rivals:,} of the other {said.arm}s may still be better{only_if}; the most promising could reach "
            f"{rounded(self.upper, std)}."
            if self.rivals
            else f"How sure: by the model no other {said.arm} can be better."
        )
        # If the rewards look like noise alone, the line on noise says so.
        doubt = "" if self.noise_alone else self.doubt()
        sure = " ".join(part for part in (sure, self.repetition(), doubt, self.limited) if part)
        return found, self._features(), self._noise(), sure, self.guarantee

    def doubt(self) -> str:
        """A warning if noise leaves open which of the arms pulled is best, with the number of repeats that would tell;
        otherwise an empty text."""
        said = self.words
        if self.constant or self.overruled:
            return ""
        if self.noise_alone:
            return f"So far the {said.given}s look like noise alone: no {said.arm} is known to be better than the others."
        if not self.uncertainty > DOUBTFUL:
            return ""
        found = (
            f"Do not rely on the best {said.arm} yet: noise leaves its mean uncertain by {self.uncertainty:.0%} of the spread "
            f"of the means of the {said.arm}s {said.pulled}, so that another of these {said.arm}s is probably as good or "
            "better."
        )
        again = f"{count(self.repeats, f'more {said.pull}')} of each of the {_LEADERS} best {said.arm}s"
        if self.repeats > _MANY:
            return f"{found} It would take about {again} to tell: make each {said.pull} less noisy if you can."
        return f"{found} Go on if you can; to choose among them now, make about {again}."

    def weakness(self) -> str:
        """A warning if the features predict so little that arms chosen at random may do as well; otherwise an empty text."""
        if not self._judges_features:
            return ""
        return predicted_in_words(self.predictive_r2, self.distinct, self.forecast_r2, self.forecasts, self.words)

    def foresight(self) -> str:
        """A sentence on how much of the rewards was predicted before they were told; an empty text for fewer than ten
        predictions."""
        return forecast_in_words(self.forecast_r2, self.forecasts, self.words) if self._judges_features else ""

    @property
    def _judges_features(self) -> bool:
        """Whether predictions judge the features: under a kernel that was given, the kernel may be at fault, and single rewards
        of two values, or of noise alone, cannot be predicted by any feature."""
        return self.kernel_estimated and not (self.two_values or self.noise_alone)

    def repetition(self) -> str:
        """A sentence on the arm that is `repeated`; an empty text without one."""
        if self.repeated is None:
            return ""
        arm, number, reason = self.repeated
        called = self.words.called(arm)
        return f"{called[0].upper()}{called[1:]} has taken {number} of the last {RECENT} {self.words.attempt}s: {reason}"

    def failures(self) -> str:
        """A sentence on pulls that failed and arms that are left out therefore; an empty text if none failed."""
        return failures_in_words(self.failed, self.avoided, self.words)

    @property
    def noise_alone(self) -> bool:
        """Whether noise is most of the variance, and the best arm is not clearly better than the average."""
        return self.noise_share > NOISE_ALONE and not (self.lead >= CLEAR or self.overruled)

    @property
    def tells_features(self) -> bool:
        """Whether the kernel has lengthscales, and enough distinct arms of different rewards were pulled to name the features
        that matter."""
        return bool(self.relevance.isfinite().all()) and self.distinct >= FEW and not self.constant

    def _noise(self) -> str:
        said = self.words
        if self.constant:
            return f"Noise: {unknown_in_words(said)}."
        by = source_of_noise(self.two_values, self.noise_repeated, said)
        noise = f"Noise: {by}, one more {said.given} of the best {said.arm} would be off by about {self.noise_std:.2g}"
        if self.distinct < 2:
            return f"{noise}."
        part = percent(self.noise_share)
        told = f"by repeated {said.pull}s " if self.share_repeated and not self.noise_repeated else ""
        share = f"{told}noise is {part} of the variance over the {said.arm}s {said.pulled}"
        ranked = self.noise_estimated and not self.two_values
        noise += f", and {share}{by_rank(ranked and not self.share_repeated)}."
        if ranked and self.pulls == self.distinct and self.distinct >= FEW:
            noise += (
                f" No {said.arm} was {said.pulled} twice yet, so that the noise may be larger than that; a second {said.pull} "
                f"of the best {said.arm} would show it."
            )
        noise += shifts_in_words(self.shifts, said)
        if self.together > 0:
            noise += (
                f" {said.given.capitalize()}s that were told together are shifted together, by about {self.together:.2g}: if "
                "they are of one plate or day, name it (block=, --block)."
            )
        if self.noise_share > NOISE_ALONE:
            noise += (
                f" {self.doubt()}"
                if self.noise_alone
                else f" Still, the best {said.arm} is {self.lead:.2g} standard errors {said.above} the average of the "
                f"{said.arm}s {said.pulled}."
            )
        return noise

    def _features(self) -> str:
        said, relevance = self.words, self.relevance
        title = f"{said.feature.capitalize()}s:"
        if not bool(relevance.isfinite().all()):
            why = "because a part of its kernel has no lengthscales"
            return f"{title} the model does not tell which {said.feature}s matter, {why}."
        if self.distinct < FEW:
            return f"{title} {FEW} distinct {said.arm}s must be {said.pulled} before it shows which {said.feature}s matter."
        if self.constant:
            return f"{title} {unknown_in_words(said)}."
        order = unsettled(self.distinct, self.names, said) if self.noise_estimated else ""
        rest = unexplained_in_words(self.unexplained, self.noise_estimated and not self.two_values, said)
        same = in_common(relevance, self.names, said) if self.noise_estimated else ""
        foretold = "".join(f" {words}" for words in (self.foresight(), self.weakness()) if words)
        return f"{title} {said.reward} changes fastest with {fastest(relevance, self.names)}.{same}{rest}{order}{foretold}"

    def figure(self) -> Figure:
        """Horizontal bars of the relevance of each feature, the largest first; at most thirty.

        Raises:
            UnsupportedError: If Matplotlib is not installed, or for a kernel without lengthscales.
        """
        said = self.words
        title = f"What matters, after {count(round(self.pulls), said.given)}"
        along = f"how fast {said.reward} changes along the {said.feature} (% of all)"
        return bars({title: (self.relevance, along)}, self.names)
