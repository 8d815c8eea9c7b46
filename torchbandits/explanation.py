"""The posterior's view of the features, the noise and the best arm, in five plain lines."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import gpytorch
import torch
from torch import Tensor

from torchbandits.checks import is_whole
from torchbandits.display import count, rounded, within
from torchbandits.errors import StateError, UnsupportedError, require
from torchbandits.figures import COLORS, tidy
from torchbandits.fitting.degeneracy import signal_variance
from torchbandits.kernels import kernel_diagonal, kernel_row
from torchbandits.loop import Loop
from torchbandits.policies.base import Policy, State
from torchbandits.policies.composed import Composed, noise_share
from torchbandits.policies.from_data import FromData
from torchbandits.policies.picking import upper_bounds
from torchbandits.policies.repeats import (
    NOISE_ALONE,
    most_repeated,
    reason_for_repeats,
    recent_arms,
    rivals,
    share_of_noise,
)
from torchbandits.policies.state import RECENT, TableState, check_no_box
from torchbandits.posteriors import GaussianProcess
from torchbandits.random_effects import RandomEffectKernel, smooth_part
from torchbandits.sources import ArmSource
from torchbandits.types import Marginals, Recommendation
from torchbandits.widths import Constant, Explored, Growing, PracticalBBKB, PracticalBKB, Scaled
from torchbandits.widths.assumptions import check_assumptions

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SHOWN = 5  # features that are named
# Number of distinct arms, and of those per name of features, below which the order of features often changes with more rewards.
_SETTLED, _SETTLED_EACH = 24, 3
_DRAWN = 30  # features in a figure
FEW = 5  # with fewer distinct arms, fitted lengthscales carry no information
# Lead of the best arm, in standard errors, from which rewards that are mostly noise show a difference. The best of many arms of
# equal means led by 2 in 12 of 86 states, by 2.5 in one.
_CLEAR = 2.5
_DOUBTFUL = 0.5  # deviation of the best arm, in spreads of the posterior means, beyond which another arm is probably better
_LEADERS = 5  # number of arms to pull again where the best arm is doubtful
_EQUAL = 1e-9  # spread of the posterior means, as a fraction of their size, up to which they are equal
_REPEATS = 10  # number of repeated pulls from which their scatter is the noise
_UNEXPLAINED = 0.25  # fraction of the variance between arms that is worth a sentence
_MANY = 20  # number of further pulls of each of them above which less noise is the better advice


@dataclass(frozen=True)
class Words:
    """Words in the text of an explanation.

    Attributes:
        arm, feature, pull: Nouns; for a campaign "row", "column" and "measurement".
        pulled: Participle of `pull`.
        given: Noun for an observed reward.
        attempt: Noun for a pull that may have failed.
        reward: The quantity that is learned, with its article.
        above: Where values better than the average lie.
        names: Names of arms by their index; an arm without a name is called by the index.
        other: Noun for a point that is none of the arms.
    """

    arm: str = "arm"
    feature: str = "feature"
    pull: str = "pull"
    pulled: str = "pulled"
    given: str = "reward"
    attempt: str = "pull"
    reward: str = "the reward"
    above: str = "above"
    names: Mapping[int, str] = field(default_factory=dict)
    other: str = "other point"

    def called(self, arm: int) -> str:
        """The name of an arm in quotes, or its index; −1 is a point that is none of the arms."""
        if arm < 0:
            return f"a point that is none of the {self.arm}s"
        return repr(self.names[arm]) if arm in self.names else f"{self.arm} {arm}"

    def points(self, distinct: int, elsewhere: int, num_arms: int) -> str:
        """The number of distinct points, of which some may be none of the arms."""
        others = f" and {count(elsewhere, self.other)}" if elsewhere else ""
        return f"{distinct - elsewhere:,} of {num_arms:,} {self.arm}s{others}"


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
        shifts: The estimated shift of each block, in the order of their numbers, reward units; empty if no reward was told with
            its block.
        together: Standard deviation of the shifts that measurements which were told by one call of a campaign seem to share,
            units of the objective; 0 where this is not clear, and always for a `Bandit`.
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
    shifts: tuple[float, ...] = ()
    together: float = 0.0
    words: Words = Words()

    def __str__(self) -> str:
        """Five lines."""
        return "\n".join(self.lines())

    def lines(self) -> tuple[str, str, str, str, str]:
        """The lines of the text: the best arm so far, the features, the noise, how sure it is, and the guarantee."""
        said, mean, std = self.words, float(self.best.mean[0]), float(self.best.variance[0]) ** 0.5
        pulled = said.points(self.distinct, self.elsewhere, self.num_arms)
        found = (
            f"Best so far: {said.called(int(self.best.index[0]))}, with {said.reward} expected at {within(mean, std)}, after "
            f"{count(round(self.pulls), said.given)} of {pulled}."
        )
        found = " ".join(part for part in (found, self.failures()) if part)
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
        sure = " ".join(part for part in (sure, self.repetition(), doubt) if part)
        return found, self._features(), self._noise(), sure, self.guarantee

    def doubt(self) -> str:
        """A warning if noise leaves open which of the arms pulled is best, with the number of repeats that would tell;
        otherwise an empty text."""
        said = self.words
        if self.noise_alone:
            return f"So far the {said.given}s look like noise alone: no {said.arm} is known to be better than the others."
        if not self.uncertainty > _DOUBTFUL:
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
        return self.noise_share > NOISE_ALONE and not self.lead >= _CLEAR

    @property
    def tells_features(self) -> bool:
        """Whether the kernel has lengthscales, and enough distinct arms were pulled to name the features that matter."""
        return bool(self.relevance.isfinite().all()) and self.distinct >= FEW

    def _noise(self) -> str:
        said = self.words
        by = "as large as two values allow" if self.two_values else "by the model"
        by = f"by repeated {said.pull}s" if self.noise_repeated else by
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
        if not self.tells_features:
            return f"{title} {FEW} distinct {said.arm}s must be {said.pulled} before it shows which {said.feature}s matter."
        order = unsettled(self.distinct, self.names, said) if self.noise_estimated else ""
        rest = unexplained_in_words(self.unexplained, self.noise_estimated and not self.two_values, said)
        same = in_common(relevance, self.names, said) if self.noise_estimated else ""
        return f"{title} {said.reward} changes fastest with {fastest(relevance, self.names)}.{same}{rest}{order}"

    def figure(self) -> Figure:
        """Horizontal bars of the relevance of each feature, the largest first; at most thirty.

        Raises:
            UnsupportedError: If Matplotlib is not installed, or for a kernel without lengthscales.
        """
        said = self.words
        title = f"What matters, after {count(round(self.pulls), said.given)}"
        along = f"how fast {said.reward} changes along the {said.feature} (% of all)"
        return bars({title: (self.relevance, along)}, self.names)


def failures_in_words(failed: int, avoided: int, said: Words) -> str:
    """A sentence on pulls that failed and arms that are left out therefore; an empty text if none failed."""
    if not failed:
        return ""
    found = f"{count(failed, said.attempt)} failed"
    return (
        f"{found}; {count(avoided, said.arm)} that the model expects to fail will not be selected for now."
        if avoided
        else f"{found}."
    )


def percent(share: float) -> str:
    """A fraction as a percentage, which is 0% for 0 alone."""
    return "less than 1%" if 0 < share < 0.005 else f"{share:.0%}"


def by_rank(ranked: bool) -> str:
    """The words after a share of the variance where the model knows the rewards by their ranks, as that of `auto` does."""
    return ", by rank" if ranked else ""


def unexplained_in_words(unexplained: float, ranked: bool, said: Words) -> str:
    """A sentence on the variance that does not follow the features, after a space; an empty text if it is little."""
    if not unexplained >= _UNEXPLAINED:
        return ""
    between = f"{said.arm}s, by rank," if ranked else f"{said.arm}s"
    return f" About {unexplained:.0%} of the variance between {between} does not follow the {said.feature}s."


def shifts_in_words(shifts: Sequence[float], said: Words) -> str:
    """A sentence on the shifts of blocks, after a space; an empty text if none was estimated."""
    if not any(shifts):
        return ""
    size = math.sqrt(sum(shift**2 for shift in shifts) / len(shifts))
    return f" The {said.given}s of a block are shifted together, by about {size:.2g} over {len(shifts):,} blocks."


def by_name(relevance: Tensor, names: Sequence[str]) -> tuple[Tensor, list[str]]:
    """The relevances of features with equal names, such as the coordinates of one substance, added up."""
    different = list(dict.fromkeys(names))
    place = torch.tensor([different.index(name) for name in names])
    return torch.zeros(len(different), dtype=relevance.dtype).index_add(0, place, relevance.cpu()), different


def fastest(relevance: Tensor, names: Sequence[str]) -> str:
    """The features of the largest relevance with their percentages, in words; at most five, without those of relevance 0."""
    relevance, names = by_name(relevance, names)
    order = relevance.argsort(descending=True).tolist()[:_SHOWN]
    order = [j for j in order if float(relevance[j]) > 0] or order
    return ", ".join(f"{names[j]} ({float(relevance[j]):.0%})" for j in order)


def in_common(relevance: Tensor, names: Sequence[str], said: Words) -> str:
    """A sentence on the features of relevance 0, of which an estimated kernel knows nothing, after a space; an empty text if
    there are none."""
    relevance, names = by_name(relevance, names)
    same = [name for name, own in zip(names, relevance.tolist(), strict=True) if own == 0]
    if not same:
        return ""
    others = f" and {count(len(same) - _SHOWN, 'other')}" if len(same) > _SHOWN else ""
    return f" Nothing is known of {', '.join(same[:_SHOWN])}{others}, in which the {said.arm}s {said.pulled} do not differ."


def unsettled(distinct: int, names: Sequence[str], said: Words) -> str:
    """A sentence if so few distinct arms were pulled that the order of fitted relevances often changes; else an empty text.
    Features with equal names count as one, as in `by_name`."""
    named = len(set(names))
    needed = max(_SETTLED, _SETTLED_EACH * named)
    if distinct >= needed or named < 2:
        return ""
    return f" With fewer than {needed} distinct {said.arm}s this order often changes."


def bars(panels: Mapping[str, tuple[Tensor, str]], names: Sequence[str]) -> Figure:
    """Horizontal bars of relevances beside each other: by the title of a panel the relevances, `d`, and the label of the axis.

    Features are in the order of their largest relevance in any panel; at most thirty.

    Raises:
        UnsupportedError: If Matplotlib is not installed, or all relevances are NaN.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415 - of an extra, and slow to load
        from matplotlib.figure import Figure  # noqa: PLC0415
    except ImportError as error:
        raise UnsupportedError("figures need Matplotlib: pip install 'torchbandits[experiments]'.") from error
    known = {title: (by_name(own, names)[0], along) for title, (own, along) in panels.items() if bool(own.isfinite().all())}
    names = list(dict.fromkeys(names))
    require(bool(known), "the kernel has no lengthscales: there is nothing to draw.", UnsupportedError)
    largest = torch.stack([relevance for relevance, _ in known.values()]).amax(dim=0)
    order = largest.argsort(descending=True)[:_DRAWN].tolist()
    figure = Figure(figsize=(2.4 + 4 * len(known), 1.2 + 0.28 * len(order)), layout="constrained")
    FigureCanvasAgg(figure)
    every = figure.subplots(1, len(known), sharey=True, squeeze=False)[0]
    for axes, (title, (relevance, along)) in zip(every, known.items(), strict=True):
        axes.barh([_literal(names[j]) for j in order], [100 * float(relevance[j]) for j in order], color=COLORS[5])
        axes.set_xlabel(_literal(along))
        axes.set_title(_literal(title), fontsize="medium", loc="left")
        tidy(axes)
    every[0].invert_yaxis()
    return figure


def _literal(text: str) -> str:
    """Text that Matplotlib does not read as mathematics."""
    return text.replace("$", r"\$")


def explain(
    loop: Loop,
    names: Sequence[str] | None,
    row: tuple[int, ...] | int,
    offered: Tensor | None = None,
    best: Recommendation | None = None,
) -> Explanation:
    """Explain what a loop that was told some rewards has learned; see `Bandit.explain`.

    Args:
        loop: The policy and its state.
        names, row: As for `Bandit.explain`.
        offered: `batch_shape x A`, arms that may be pulled; None for all. Those that are likely to fail do not count as rivals.
        best: The best arms of a context; by default the best arms pulled.
    """
    with loop.few_threads():
        found = _explained(loop.policy, loop.state, names, row, loop.likely(offered), best)
        failed, avoided = loop.failed(row)
    return replace(found, failed=failed, avoided=avoided)


@torch.no_grad()
def _explained(
    policy: Policy,
    state: State,
    names: Sequence[str] | None,
    row: tuple[int, ...] | int,
    offered: Tensor | None,
    best: Recommendation | None,
) -> Explanation:
    """The explanation without what failed evaluations taught. `offered` are the arms that may be better than the best one."""
    place = (row,) if isinstance(row, int) else row
    check_no_box(state, "explain()")
    if not isinstance(state, TableState) or not isinstance(policy, Composed):
        raise UnsupportedError("explain() reads one Gaussian process over given arms: use auto, gp_ucb or batch_bkb.")
    posterior = state.posterior
    own = checked_names(names, posterior.statistics.points.shape[-1])
    check_row(place, posterior.batch_shape)
    nothing = f"no reward was told yet in batch row {place}, so that there is nothing to explain: give a row that has rewards."
    require(bool((state.told[place] > 0).all()), nothing, StateError)
    here, best = best is not None, best or state.best(1, elsewhere=True)
    known = Recommendation(best.points[place], best.index[place], best.mean[place], best.variance[place])
    arm = int(known.index[0])
    variance = noise_share(policy.noise_std, policy.regularization) * posterior.regularization
    width, floor = policy.width(state), 0.0
    if arm < 0:
        # The lower bound of the best point, in the units of the model.
        model_mean, model_variance = pulled(state, place)
        top = model_mean.argmax()
        floor = float(model_mean[top] - width[place] * model_variance[top].sqrt())
    possible = rivals(state, width, arm, place, floor)
    if offered is not None:
        entries = state.rows.offered(offered)
        assert entries is not None
        possible &= entries[place]
    upper = _largest_bound(policy, state, possible, known, place)
    uncertainty, repeats = _uncertainty(state, variance, place)
    lead = _lead(state, variance, place)
    noise = _noise_of(policy, state, place, known, variance, clear=lead >= _CLEAR)
    if noise.two_values is not None:
        upper = min(upper, max(noise.two_values[1], float(known.mean[0])))
    fitted = posterior.units is not None or policy.refit_every is not None
    return Explanation(
        relevance=relevance_of(state, place, pulled=here),
        names=own,
        noise_std=noise.std,
        noise_share=noise.share,
        best=known,
        upper=upper,
        rivals=int(possible.sum()),
        pulls=float(state.told[place]),
        distinct=int(posterior.statistics.num_rows[place]),
        num_arms=state.rows.num_arms,
        guarantee=_guarantee(policy, fitted),
        lead=lead,
        repeated=_repeated(state, policy.width(state), noise.share, place),
        uncertainty=uncertainty,
        repeats=repeats,
        kernel_estimated=fitted,
        noise_estimated=posterior.units is not None,
        noise_repeated=noise.repeated,
        share_repeated=noise.share_repeated,
        two_values=noise.two_values is not None,
        elsewhere=points_elsewhere(state, place),
        unexplained=unexplained_share(posterior, place),
        shifts=shifts_of(posterior, place),
    )


class _Noise(NamedTuple):
    """The noise of the rewards.

    Attributes:
        std: Standard deviation at the best arm, reward units.
        share: Fraction of the variance of the rewards.
        repeated, share_repeated: Whether `std`, and `share`, are those of repeated pulls and not of the model.
        two_values: The values of rewards that have two.
    """

    std: float
    share: float
    repeated: bool = False
    share_repeated: bool = False
    two_values: tuple[float, float] | None = None


def _noise_of(
    policy: Composed, state: TableState, place: tuple[int, ...], best: Recommendation, variance: float, *, clear: bool
) -> _Noise:
    """The noise: that of two values, else that of repeated pulls where there are enough, else that of the model. `variance` is
    its variance in model units; `clear` says whether the arms differ by more than chance."""
    posterior = state.posterior
    share = share_of_noise(posterior, variance, place)
    values = two_values_of(policy.from_data, posterior, place)
    if values is not None:
        return _Noise(noise_of_two(values, float(best.mean[0]), float(best.variance[0])), share, two_values=values)
    std = noise_of_repeats(state, place, int(best.index[0]))
    # In noise alone the averages of few arms may differ by chance, so that the model has the last word.
    told = share_of_repeats(policy, state, place) if clear else None
    return _Noise(
        noise_at(posterior, variance, place, float(pulled(state, place)[0].max())) if std is None else std,
        share if told is None else told,
        repeated=std is not None,
        share_repeated=told is not None,
    )


def checked_names(names: Sequence[str] | None, num_features: int) -> tuple[str, ...]:
    """The names of the features; "feature 0" and so on by default."""
    if names is None:
        return tuple(f"feature {j}" for j in range(num_features))
    texts = isinstance(names, Sequence) and len(names) == num_features and all(isinstance(name, str) for name in names)
    require(texts, f"names must be texts, one for each of the {num_features} features, got {names!r}.")
    return tuple(names)


def check_row(place: Any, batch_shape: torch.Size) -> None:
    """Raise `ArgumentError` unless `place` is the index of a batch row."""
    inside = isinstance(place, tuple) and len(place) == len(batch_shape) and all(is_whole(i, 0) for i in place)
    inside = inside and all(i < size for i, size in zip(place, batch_shape, strict=True))
    require(inside, f"row must be one of the batch rows {tuple(batch_shape)}, got {place!r}.")


def _largest_bound(policy: Composed, state: TableState, rivals: Tensor, best: Recommendation, place: tuple[int, ...]) -> float:
    """The largest upper confidence bound of the rivals (a mask of the arms), of the best arm if there are none, reward units;
    of a best point that is no arm its mean.

    Where the model has units of its own, its distance from the mean of the best arm becomes rewards like a deviation there.
    """
    units, shape, arm = state.posterior.units, state.posterior.batch_shape, int(best.index[0])
    bounds = upper_bounds(state, policy.width(state))[place]
    if bool(rivals.any()):
        largest = bounds[rivals].max()
    elif arm >= 0:
        largest = bounds[arm]
    else:
        return float(best.mean[0])
    if units is None:
        return float(largest)
    mean = units.to_model(best.mean[:1].expand(*shape, 1))
    above = largest - mean
    apart = units.marginals(Marginals(mean, above.square())).variance.sqrt()
    return float(best.mean[0] + (apart * above.sign())[place])


def _lead(state: TableState, noise_variance: float, place: tuple[int, ...]) -> float:
    r"""Lead of the best arm pulled over the average of the u arms pulled, in standard errors:

    .. math:: \Big(\max_i \mu_i - \tfrac1u \sum_i \mu_i\Big) \Big/ \sqrt{v_{\mathrm{best}} + \sigma^2 / n}

    with the posterior variance v of the best arm and n pulls in total. Pure noise gives 1 or less, because posterior means are
    shrunk towards each other. The denominator has the noise of an average, because the noise of a single reward would hide
    differences that an average of many rewards shows.
    """
    mean, variance = pulled(state, place)
    if len(mean) < 2:
        return float("nan")
    best = int(mean.argmax())
    error = variance[best] + noise_variance / state.statistics.weights[place].sum()
    return float((mean[best] - mean.mean()) / error.sqrt())


def _uncertainty(state: TableState, noise_variance: float, place: tuple[int, ...]) -> tuple[float, int]:
    r"""See `Explanation.uncertainty` and `repeats`, the smallest m ≥ 0 with

    .. math:: 1/v + m/\sigma^2 \ge 1/(s/2)^2

    for the posterior variance v of the best arm and the standard deviation s of the posterior means of the arms pulled.
    """
    mean, variance = pulled(state, place)
    if len(mean) < FEW:
        return float("nan"), 0
    v, s = float(variance[mean.argmax()]), float(mean.std(correction=0))
    # Rewards that are all equal leave no spread but that of rounding.
    if s <= _EQUAL * max(v**0.5, float(mean.abs().max())):
        return float("nan"), 0
    if v == 0:
        return 0.0, 0
    needed = noise_variance * (1 / (_DOUBTFUL * s) ** 2 - 1 / v)
    return v**0.5 / s, max(0, math.ceil(needed))


def unexplained_share(posterior: GaussianProcess, place: tuple[int, ...]) -> float:
    """See `Explanation.unexplained`: τ²/(τ² + v) for the expected variance v of the smooth part over the points pulled."""
    kernel = kernel_row(posterior.kernel, posterior.batch_shape, place)
    if not isinstance(kernel, RandomEffectKernel):
        return 0.0
    points = posterior.statistics.points_of(place)
    effect, smooth = float(kernel.effect), float(signal_variance(smooth_part(kernel), points)) if len(points) > 1 else 0.0
    return effect / (effect + smooth) if effect > 0 else 0.0


def shifts_of(posterior: GaussianProcess, place: tuple[int, ...]) -> tuple[float, ...]:
    """See `Explanation.shifts`."""
    return () if posterior.units is None else tuple(posterior.units.shifts(place).tolist())


def pulled(state: TableState, place: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Posterior mean and variance of the points pulled of a batch row, arms or not, `u` each, in the units of the model."""
    told = state.statistics.pulled[place]
    mean, variance = state.row_marginals()
    return mean[place][told], variance[place][told].clamp_min(0)


def points_elsewhere(state: TableState, place: tuple[int, ...]) -> int:
    """Number of points pulled that are none of the arms."""
    u = int(state.statistics.num_rows[place])
    return int((state.rows.arm_of_row[place][:u] < 0).sum())


def _repeated(state: TableState, width: Tensor, noise: float, place: tuple[int, ...]) -> tuple[int, int, str] | None:
    """See `Explanation.repeated`."""
    found = most_repeated(recent_arms(state, place))
    if found is None:
        return None
    sure = not bool(rivals(state, width, found[0], place).any())
    return (*found, reason_for_repeats(sure, noise))


def noise_of_repeats(state: TableState, place: tuple[int, ...], arm: int = -1) -> float | None:
    """Standard deviation of repeated pulls around their averages, reward units: of the pulls of `arm` if at least ten are
    repeats, or else of those of all points. None if there are fewer, or the units are those of the model."""
    posterior = state.posterior
    if posterior.units is None:
        return None
    degrees, scatter = (t[place] for t in posterior.units.scatter(posterior.statistics))
    own = (state.rows.arm_of_row[place][: len(degrees)] == arm).to(degrees.device)
    own = own if arm >= 0 and float(degrees[own].sum()) >= _REPEATS else torch.ones_like(own)
    more = float(degrees[own].sum())
    return (float(scatter[own].sum()) / more) ** 0.5 if more >= _REPEATS else None


def share_of_repeats(policy: Composed, state: TableState, place: tuple[int, ...]) -> float | None:
    """Fraction of the rewards' variance over the distinct points that is noise, by repeated pulls, in reward units: that of the
    pulls around their averages, beside what these vary by more than their noise. None unless the policy estimates the noise
    from repeats, and has enough of them."""
    posterior, statistics = state.posterior, state.statistics
    told = statistics.pulled[place]
    if posterior.units is None or policy.from_data is None or int(told.sum()) < FEW:
        return None
    if not bool(policy.from_data.knows_noise(state)[place]):
        return None
    # In units of the variance of the averages, which has a share of the noise as well.
    noise = float(posterior.units.repeats(statistics)[1][place])
    apart = 1 - noise * float((1 / statistics.weights[place][told]).mean())
    return noise / (noise + max(0.0, apart))


def two_values_of(recipe: FromData | None, posterior: GaussianProcess, place: tuple[int, ...]) -> tuple[float, float] | None:
    """The lower and the higher value of the rewards, if they have two and their noise is taken to be the largest possible."""
    if posterior.units is None or recipe is None or recipe.two_values is False:
        return None
    return posterior.units.two_values(posterior.statistics, place)


def noise_of_two(values: tuple[float, float], mean: float, variance: float = 0.0) -> float:
    """Standard deviation of rewards of two values around a mean that is known up to this variance, which is never larger than
    theirs."""
    low, high = values
    return math.sqrt(max(variance, (mean - low) * (high - mean)))


def noise_at(posterior: GaussianProcess, variance: float, place: tuple[int, ...], at: float) -> float:
    """Standard deviation, in reward units, of rewards with this variance around a mean, both in model units."""
    if posterior.units is None:
        return variance**0.5
    mean, own = (posterior.units.scale.new_tensor([x]).expand(*posterior.batch_shape, 1) for x in (at, variance))
    return float(posterior.units.marginals(Marginals(mean, own)).variance[place]) ** 0.5


def relevance_of(state: TableState, place: tuple[int, ...], *, pulled: bool = False) -> Tensor:
    """(range/ℓ)² of each feature, as fractions of their sum, `d`; NaN for a kernel without lengthscales. The range is that of
    the arms, with `pulled` that of the arms and the points pulled. Where `auto` estimates the kernel, it is 0 for a feature
    with the same value at all points pulled, because the lengthscale is that of the prior."""
    posterior = state.posterior
    d = posterior.statistics.points.shape[-1]
    if posterior.units is not None:
        told = state.statistics.pulled[place]
        x = state.statistics.points[place][told]
        ranges = torch.where((x != x[:1]).any(dim=0), posterior.units.features[place], 0.0)
    else:
        arms = _spread(state.rows.source)
        x = arms if arms.dim() == 2 else arms[place]
        if pulled:
            x = torch.cat([x, posterior.statistics.points_of(place).to(x)])
        ranges = x.double().amax(dim=0) - x.double().amin(dim=0)
    speeds = _squared_speeds(posterior.kernel, list(range(d)), d)
    if speeds is None:
        return torch.full((d,), torch.nan)
    speed = ranges.square() * speeds.expand(*posterior.batch_shape, d)[place].to(ranges)
    return (speed / speed.sum().clamp_min(1e-300)).cpu()


def _squared_speeds(kernel: gpytorch.kernels.Kernel, features: list[int], d: int) -> Tensor | None:
    """1/ℓ² along each of d features, `batch_shape x d`: summed over the factors of a product, and averaged over the terms of a
    sum, weighted by their variances. 0 for a feature that the kernel does not read; None if a part has no lengthscales.

    Args:
        kernel: The kernel, or a part of it.
        features: The features that it is evaluated on.
        d: Number of features of an arm.
    """
    kernels = gpytorch.kernels
    own = features if kernel.active_dims is None else [features[place] for place in kernel.active_dims.tolist()]
    while isinstance(kernel, kernels.ScaleKernel):
        # It has the active dimensions of its base kernel, and selects them for both.
        kernel = kernel.base_kernel
    if isinstance(kernel, kernels.ConstantKernel):
        return torch.zeros(d, dtype=torch.float64, device=kernel.constant.device)
    if isinstance(kernel, kernels.ProductKernel | kernels.AdditiveKernel):
        parts = [(part, _squared_speeds(part, own, d)) for part in kernel.kernels]
        known = [(part, speeds) for part, speeds in parts if speeds is not None]
        if len(known) < len(parts):
            return None
        if isinstance(kernel, kernels.ProductKernel):
            return torch.stack(torch.broadcast_tensors(*(speeds for _, speeds in known))).sum(dim=0)
        somewhere = known[0][1].new_zeros(1, len(own))
        variances = torch.broadcast_tensors(*(kernel_diagonal(part, somewhere) for part, _ in known))
        terms = torch.broadcast_tensors(*(v * speeds for v, (_, speeds) in zip(variances, known, strict=True)))
        return torch.stack(terms).sum(dim=0) / torch.stack(variances).sum(dim=0)
    # The lengthscale of a periodic kernel is no distance.
    if not kernel.has_lengthscale or isinstance(kernel, kernels.PeriodicKernel) or any(kernel.sub_kernels()):
        return None
    scale = kernel.lengthscale.detach().double().squeeze(-2)
    place = torch.tensor(own, device=scale.device)
    squared = scale.square().reciprocal().expand(*scale.shape[:-1], len(own))
    return scale.new_zeros(*scale.shape[:-1], d).index_add(-1, place, squared)


def _spread(arms: ArmSource) -> Tensor:
    """At most a thousand arms, evenly spaced."""
    index = torch.arange(0, arms.num_arms, -(-arms.num_arms // 1000), device=arms.device)
    return arms.points(index.expand(*arms.shape[:-2], -1))


def _guarantee(policy: Composed, fitted: bool) -> str:
    if fitted:
        return (
            "Guarantee: none, since the kernel is estimated. With a kernel and a norm bound that you know, igp_ucb has one; "
            "batch_bkb for long runs; with a norm bound alone, lb_gp_ucb."
        )
    width = policy.confidence
    while isinstance(width, Scaled) and width.scale >= 1:
        width = width.base
    if policy.reweighting is not None:
        return "Guarantee: none, since the policy forgets rewards or weights them, for which no bound here is proved."
    if isinstance(width, Constant | Explored | Growing | PracticalBBKB | PracticalBKB | Scaled):
        return f"Guarantee: none, since nothing is proved for the width {type(width).__name__} of the policy."
    if policy.prior_mean == "estimate":
        return "Guarantee: none, since the prior mean is estimated. With prior_mean= a number, there is that of the policy."
    try:
        check_assumptions(width, policy.noise_std, policy.regularization)
    except UnsupportedError as error:
        return f"Guarantee: none, since {error}"
    return "Guarantee: that of the policy, if its documentation has one, while the kernel is the one it was given."
