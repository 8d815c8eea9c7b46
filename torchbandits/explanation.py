"""The posterior's view of the features, the noise and the best arm, in five plain lines."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from torchbandits.checks import is_whole
from torchbandits.errors import UnsupportedError, require
from torchbandits.figures import COLORS, tidy
from torchbandits.fitting.degeneracy import lengthscales
from torchbandits.policies.base import Policy, State
from torchbandits.policies.composed import Composed, noise_share
from torchbandits.policies.repeats import (
    NOISE_ALONE,
    most_repeated,
    reason_for_repeats,
    recent_arms,
    rivals,
    share_of_noise,
)
from torchbandits.policies.state import RECENT, TableState
from torchbandits.posteriors import GaussianProcess
from torchbandits.sources import ArmSource
from torchbandits.types import Recommendation

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SHOWN = 5  # features that are named
_DRAWN = 30  # features in a figure
_FEW = 5  # with fewer distinct arms, fitted lengthscales carry no information
_CLEAR = 2.0  # lead of the best arm, in standard errors, from which rewards that are mostly noise show a difference
_DOUBTFUL = 0.5  # deviation of the best arm, in spreads of the posterior means, beyond which another arm is probably better
_LEADERS = 5  # number of arms to pull again where the best arm is doubtful
_EQUAL = 1e-9  # spread of the posterior means, as a fraction of their size, up to which they are equal
_MANY = 20  # number of further pulls of each of them above which less noise is the better advice


@dataclass(frozen=True, eq=False)
class Explanation:
    """The explanation of one batch row.

    Attributes:
        relevance: `d`, inverse squared lengthscales in units of the features' ranges, as fractions of their sum: the speed at
            which the reward changes along each feature. NaN for a kernel without lengthscales.
        names: Names of the features.
        noise_std: Standard deviation of the rewards of the best arm around its mean, reward units.
        noise_share: Fraction of the variance over the pulled arms that is noise, under the model.
        best: The recommended arm.
        upper: Largest upper confidence bound over the arms, reward units.
        rivals: Number of arms whose upper bound exceeds the lower bound of the best one.
        pulls, distinct, num_arms: Pulls told, distinct arms among them, number of arms.
        guarantee: The guarantee that holds for the run.
        lead: Posterior mean of the best arm minus the average posterior mean of the arms pulled, in standard errors, which
            combine the posterior deviation of the best arm and the noise of an average of all rewards.
        repeated: The arm that took more than half of the last 40 pulls, the number of these pulls, and the reason with a
            remedy; None if there is no such arm. After a state was loaded, only later pulls count.
        uncertainty: Posterior standard deviation of the best arm, as a fraction of the standard deviation of the posterior
            means over the arms pulled, in the units of the model. Above 0.5, another of these arms is probably as good or
            better: see `doubt`. NaN for fewer than five arms, and if all means are equal.
        repeats: Number of further pulls of the best arm that would lower its `uncertainty` to 0.5 if the means stayed the same.
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

    def __str__(self) -> str:
        """Five lines."""
        mean, std = float(self.best.mean[0]), float(self.best.variance[0]) ** 0.5
        found = (
            f"Best so far: arm {int(self.best.index[0])}, at {mean:.4g} ± {std:.2g}, after {self.pulls:g} rewards of "
            f"{self.distinct} of {self.num_arms} arms."
        )
        sure = (
            f"How sure: {self.rivals} of the arms may still be better; the most hopeful could reach {self.upper:.4g}."
            if self.rivals
            else f"How sure: by the model no other arm can be better than {mean:.4g}."
        )
        if self.repeated is not None:
            arm, count, reason = self.repeated
            sure += f" Arm {arm} has taken {count} of the last {RECENT} pulls: {reason}"
        # If the rewards look like noise alone, the line on noise says so.
        if (doubt := self.doubt()) and not self.noise_alone:
            sure += f" {doubt}"
        return "\n".join([found, self._features(), self._noise(), sure, self.guarantee])

    def doubt(self) -> str:
        """A warning if noise leaves open which of the arms pulled is best, with the number of repeats that would tell;
        otherwise an empty text."""
        return doubt_of(self)

    @property
    def noise_alone(self) -> bool:
        """Whether noise is most of the variance, and the best arm is not clearly above the average."""
        return self.noise_share > NOISE_ALONE and not self.lead >= _CLEAR

    def _noise(self) -> str:
        if self.distinct < 2:
            return f"Noise: by the model, a further reward of it would be off by about {self.noise_std:.2g}."
        said = (
            f"Noise: by the model, a further reward of it would be off by about {self.noise_std:.2g}, and noise is "
            f"{self.noise_share:.0%} of the variance over the arms pulled."
        )
        if self.pulls == self.distinct and self.distinct >= _FEW:
            said += " No arm was pulled twice, so that the smoothness of the model alone tells noise from differences."
        if self.noise_share > NOISE_ALONE:
            said += (
                " So far the rewards look like noise alone."
                if self.noise_alone
                else f" Still, the best arm is {self.lead:.2g} standard errors above the average of the arms pulled."
            )
        return said

    def _features(self) -> str:
        if not bool(self.relevance.isfinite().all()):
            return "Features: the kernel has no lengthscales that would tell which features matter."
        if self.distinct < _FEW:
            return f"Features: {_FEW} distinct arms must be told before it shows which matter."
        order = self.relevance.argsort(descending=True).tolist()[:_SHOWN]
        named = ", ".join(f"{self.names[j]} ({float(self.relevance[j]):.0%})" for j in order)
        return f"Features: what changes the reward fastest is {named}."

    def figure(self) -> Figure:
        """Horizontal bars of the relevance of each feature, the largest first; at most thirty.

        Raises:
            UnsupportedError: If Matplotlib is not installed, or for a kernel without lengthscales.
        """
        try:
            from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415 - of an extra, and slow to load
            from matplotlib.figure import Figure  # noqa: PLC0415
        except ImportError as error:
            raise UnsupportedError("figures need Matplotlib: pip install 'torchbandits[experiments]'.") from error
        relevance = self.relevance
        require(bool(relevance.isfinite().all()), "the kernel has no lengthscales: there is nothing to draw.", UnsupportedError)
        order = relevance.argsort(descending=True)[:_DRAWN].tolist()
        figure = Figure(figsize=(6.4, 1.2 + 0.28 * len(order)), layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.subplots()
        axes.barh([self.names[j] for j in order], [100 * float(relevance[j]) for j in order], color=COLORS[5])
        axes.invert_yaxis()
        axes.set_xlabel("how fast the reward changes along the feature (% of all)")
        axes.set_title(f"What matters, after {self.pulls:g} rewards", fontsize="medium", loc="left")
        tidy(axes)
        return figure


def doubt_of(said: Explanation, arm: str = "arm", pulled: str = "pulled", pull: str = "pull") -> str:
    """See `Explanation.doubt`.

    Args:
        said: An explanation.
        arm, pulled, pull: Words for an arm, for what was done to it, and for doing so once.
    """
    if said.noise_alone:
        return f"So far the rewards look like noise alone: no {arm} is known to be better than the others."
    if not said.uncertainty > _DOUBTFUL:
        return ""
    found = (
        f"Do not rely on the best {arm} yet: noise leaves its mean uncertain by {said.uncertainty:.0%} of the spread of the "
        f"means of the {arm}s {pulled}, so that another of these {arm}s is probably as good or better."
    )
    again = f"{said.repeats:,} more {pull}{'' if said.repeats == 1 else 's'} of each of the {_LEADERS} best {arm}s"
    if said.repeats > _MANY:
        return f"{found} It would take about {again} to tell: make each {pull} less noisy if you can."
    return f"{found} Go on if you can; to choose among them now, make about {again}."


@torch.no_grad()
def explain(policy: Policy, state: State, names: Sequence[str] | None, row: tuple[int, ...] | int) -> Explanation:
    """Explain the state of a policy that was told some rewards; see `Bandit.explain`."""
    place = (row,) if isinstance(row, int) else row
    if not isinstance(state, TableState) or not isinstance(policy, Composed):
        raise UnsupportedError("explain() reads one Gaussian process over given arms: use auto, gp_ucb or batch_bkb.")
    posterior = state.posterior
    d, shape = posterior.statistics.points.shape[-1], posterior.batch_shape
    texts = isinstance(names, Sequence) and len(names) == d and all(isinstance(name, str) for name in names)
    require(names is None or texts, f"names must be texts, one for each of the {d} features, got {names!r}.")
    inside = isinstance(place, tuple) and len(place) == len(shape) and all(is_whole(i, 0) for i in place)
    inside = inside and all(i < size for i, size in zip(place, shape, strict=True))
    require(inside, f"row must be one of the batch rows {tuple(shape)}, got {place!r}.")
    own = tuple(names) if names is not None else tuple(f"feature {j}" for j in range(d))
    best = state.best(1)
    known = Recommendation(best.points[place], best.index[place], best.mean[place], best.variance[place])
    arm = int(known.index[0])
    bounds = policy.bounds(state)
    assert bounds is not None
    variance = noise_share(policy.noise_std, policy.regularization) * posterior.regularization
    share = share_of_noise(posterior, variance, place)
    possible = rivals(state, policy.width(state), arm, place, float(known.mean[0]))
    uncertainty, repeats = _uncertainty(state, variance, place)
    return Explanation(
        relevance=_relevance(posterior, _spread(state.rows.source), place),
        names=own,
        noise_std=_noise_std(posterior, variance, place, float(state.arm_mean()[place][arm]) if arm >= 0 else 0.0),
        noise_share=share,
        best=known,
        upper=float(bounds[0][place]),
        rivals=int(possible.sum()),
        pulls=float(state.told[place]),
        distinct=int(posterior.statistics.num_rows[place]),
        num_arms=state.rows.num_arms,
        guarantee=_guarantee(posterior),
        lead=_lead(state, variance, place),
        repeated=_repeated(state, policy.width(state), share, place),
        uncertainty=uncertainty,
        repeats=repeats,
    )


def _lead(state: TableState, noise_variance: float, place: tuple[int, ...]) -> float:
    r"""Lead of the best arm pulled over the average of the u arms pulled, in standard errors:

    .. math:: \Big(\max_i \mu_i - \tfrac1u \sum_i \mu_i\Big) \Big/ \sqrt{v_{\mathrm{best}} + \sigma^2 / n}

    with the posterior variance v of the best arm and n pulls in total. Pure noise gives 1 or less, because posterior means are
    shrunk towards each other. The denominator has the noise of an average, because the noise of a single reward would hide
    differences that an average of many rewards shows.
    """
    mean, variance = _pulled(state, place)
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
    mean, variance = _pulled(state, place)
    if len(mean) < _FEW:
        return float("nan"), 0
    v, s = float(variance[mean.argmax()]), float(mean.std(correction=0))
    # Rewards that are all equal leave no spread but that of rounding.
    if s <= _EQUAL * max(v**0.5, float(mean.abs().max())):
        return float("nan"), 0
    if v == 0:
        return 0.0, 0
    needed = noise_variance * (1 / (_DOUBTFUL * s) ** 2 - 1 / v)
    return v**0.5 / s, max(0, math.ceil(needed))


def _pulled(state: TableState, place: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Posterior mean and variance of the arms pulled of a batch row, `u` each, in the units of the model."""
    arm, u = state.rows.arm_of_row[place], int(state.statistics.num_rows[place])
    known = arm[:u][(arm[:u] >= 0) & (state.statistics.weights[place][:u] > 0)]
    variance = state.posterior.regularization * state.arm_leverage()[place][known]
    return state.arm_mean()[place][known], variance.clamp_min(0)


def _repeated(state: TableState, width: Tensor, noise: float, place: tuple[int, ...]) -> tuple[int, int, str] | None:
    """See `Explanation.repeated`."""
    found = most_repeated(recent_arms(state, place))
    if found is None:
        return None
    sure = not bool(rivals(state, width, found[0], place).any())
    return (*found, reason_for_repeats(sure, noise))


def _noise_std(posterior: GaussianProcess, variance: float, place: tuple[int, ...], at: float) -> float:
    """Standard deviation, in reward units, of rewards with this variance around a mean, both in model units."""
    if posterior.units is None:
        return variance**0.5
    ends = posterior.units.scale.new_tensor([at - variance**0.5, at + variance**0.5]).expand(*posterior.batch_shape, 2)
    return float(posterior.units.to_rewards(ends).diff(dim=-1)[place]) / 2


def _relevance(posterior: GaussianProcess, arms: Tensor, place: tuple[int, ...]) -> Tensor:
    """(range/ℓ)² of each feature, as fractions of their sum, `d`."""
    d = posterior.statistics.points.shape[-1]
    if posterior.units is not None:
        ranges = posterior.units.features[place]
    else:
        x = arms if arms.dim() == 2 else arms[place]
        ranges = x.double().amax(dim=0) - x.double().amin(dim=0)
    found = [part.lengthscale for part, _ in lengthscales(posterior.kernel)]
    if len(found) != 1 or found[0].shape[-1] not in (1, d):
        return torch.full((d,), torch.nan)
    scale = found[0].expand(*posterior.batch_shape, 1, d)[place].squeeze(0).to(ranges)
    speed = (ranges / scale).square()
    return (speed / speed.sum().clamp_min(1e-300)).cpu()


def _spread(arms: ArmSource) -> Tensor:
    """At most a thousand arms, evenly spaced."""
    return arms.points(torch.arange(0, arms.num_arms, -(-arms.num_arms // 1000), device=arms.device))


def _guarantee(posterior: GaussianProcess) -> str:
    if posterior.units is None:
        return "Guarantee: that of the policy (see its documentation), while the kernel is the one it was given."
    return (
        "Guarantee: none, since the kernel is estimated. With a kernel and a norm bound that you know, igp_ucb has one; "
        "batch_bkb for long runs; with a norm bound alone, lb_gp_ucb."
    )
