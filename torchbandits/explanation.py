"""What a bandit believes, in five plain lines: for someone who chose no kernel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from torchbandits.checks import is_whole
from torchbandits.errors import UnsupportedError, require
from torchbandits.figures import COLORS, tidy
from torchbandits.fitting.degeneracy import lengthscales, signal_variance
from torchbandits.kernels import kernel_row
from torchbandits.policies.base import Policy, State
from torchbandits.policies.composed import Composed, noise_share
from torchbandits.policies.state import TableState
from torchbandits.posteriors import GaussianProcess
from torchbandits.types import Recommendation

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SHOWN = 5  # features that are named
_DRAWN = 30  # features in a figure
_NOISE_ALONE = 0.9  # part of the variance from which rewards look like noise alone
_FEW = 5


@dataclass(frozen=True, eq=False)
class Explanation:
    """Of one batch row.

    Attributes:
        relevance: `d`, how fast the reward changes along each feature, from one end of its range to the other: inverse squared
            lengthscales in units of the range, as parts of their sum; NaN for a kernel without lengthscales.
        names: Of the features.
        noise_std: Standard deviation of a reward of the best arm around its mean, reward units.
        noise_share: Part of the rewards' variance that is noise, by the model.
        best: The arm recommended.
        upper: Largest upper confidence bound of an arm, reward units.
        rivals: Arms whose upper bound exceeds the lower one of the best: what could still be better.
        pulls, distinct, num_arms: Pulls told, distinct arms among them, arms in all.
        guarantee: What is proved of the run.
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

    def __str__(self) -> str:
        """Five lines."""
        mean, std = float(self.best.mean[0]), float(self.best.variance[0]) ** 0.5
        found = (
            f"Best so far: arm {int(self.best.index[0])}, at {mean:.4g} ± {std:.2g}, after {self.pulls:g} rewards of "
            f"{self.distinct} of {self.num_arms} arms."
        )
        part = f"noise is {self.noise_share:.0%} of the variance"
        noise = f"Noise: a further reward of it would be off by about {self.noise_std:.2g}; {part}."
        if self.noise_share > _NOISE_ALONE:
            noise = f"{noise} So far the rewards look like noise alone."
        sure = (
            f"How sure: {self.rivals} of the arms may still be better; the most hopeful could reach {self.upper:.4g}."
            if self.rivals
            else f"How sure: by the model no other arm can be better than {mean:.4g}."
        )
        return "\n".join([found, self._features(), noise, sure, self.guarantee])

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


@torch.no_grad()
def explain(policy: Policy, state: State, names: Sequence[str] | None, row: tuple[int, ...] | int) -> Explanation:
    """What the state of a policy that was told some rewards says; see `Bandit.explain`."""
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
    lower_mean, upper_mean = _bounds(policy, state)
    best = state.best(1)
    known = Recommendation(best.points[place], best.index[place], best.mean[place], best.variance[place])
    arm = int(known.index[0])
    rivals = upper_mean[place] > (lower_mean[place][arm] if arm >= 0 else float(known.mean[0]))
    if arm >= 0:
        rivals[arm] = False
    bounds = policy.bounds(state)
    assert bounds is not None
    at = _model_best(state.arm_mean(), known.index, place)
    noise_std, share = _noise(posterior, policy, place, at)
    return Explanation(
        relevance=_relevance(posterior, state.rows.source.points(_spread(state.rows.num_arms)), place),
        names=own,
        noise_std=noise_std,
        noise_share=share,
        best=known,
        upper=float(bounds[0][place]),
        rivals=int(rivals.sum()),
        pulls=float(state.told[place]),
        distinct=int(posterior.statistics.num_rows[place]),
        num_arms=state.rows.num_arms,
        guarantee=_guarantee(posterior),
    )


def _bounds(policy: Composed, state: TableState) -> tuple[Tensor, Tensor]:
    """Lower and upper bound of every arm, `batch_shape x A`, model units."""
    std = (state.posterior.regularization * state.arm_leverage()).clamp_min(0).sqrt()
    reach, mean = policy.width(state).unsqueeze(-1) * std, state.arm_mean()
    return mean - reach, mean + reach


def _model_best(mean: Tensor, index: Tensor, place: tuple[int, ...]) -> float:
    """The posterior mean of the best arm in model units; 0 for a point that is no arm."""
    return float(mean[place][index[0]]) if int(index[0]) >= 0 else 0.0


def _noise(posterior: GaussianProcess, policy: Composed, place: tuple[int, ...], at: float) -> tuple[float, float]:
    """Standard deviation of rewards around a mean in model units, in reward units, and the noise's part of their variance."""
    variance = noise_share(policy.noise_std, policy.regularization) * posterior.regularization
    kernel = kernel_row(posterior.kernel, posterior.batch_shape, place)
    points = posterior.statistics.points[place][: int(posterior.statistics.num_rows[place])]
    signal = float(signal_variance(kernel, points)) if len(points) > 1 else float("nan")
    share = variance / (variance + signal)
    if posterior.units is None:
        return variance**0.5, share
    ends = posterior.units.scale.new_tensor([at - variance**0.5, at + variance**0.5]).expand(*posterior.batch_shape, 2)
    reach = posterior.units.to_rewards(ends).diff(dim=-1)
    return float(reach[place]) / 2, share


def _relevance(posterior: GaussianProcess, arms: Tensor, place: tuple[int, ...]) -> Tensor:
    """(range/ℓ)² of each feature, as parts of their sum, `d`."""
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


def _spread(count: int) -> Tensor:
    return torch.arange(0, count, -(-count // 1000))


def _guarantee(posterior: GaussianProcess) -> str:
    if posterior.units is None:
        return "Guarantee: that of the policy (see its documentation), while the kernel is the one it was given."
    return (
        "Guarantee: none, since the kernel is estimated. With a kernel and a norm bound that you know, igp_ucb has one; "
        "batch_bkb for long runs."
    )
