"""What a loop has learned of one reward, read from its state."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from torchbandits.errors import StateError, UnsupportedError, require
from torchbandits.explanation.explanation import CLEAR, DOUBTFUL, FEW, Explanation
from torchbandits.explanation.noise import noise_of, share_of_repeats
from torchbandits.explanation.relevance import relevance_of
from torchbandits.explanation.row import Row, check_row, checked_names
from torchbandits.loop import Loop
from torchbandits.policies.base import Policy, State
from torchbandits.policies.composed import Composed, noise_share
from torchbandits.policies.picking import upper_bounds
from torchbandits.policies.repeats import most_repeated, reason_for_repeats, recent_arms, rivals
from torchbandits.policies.state import TableState, check_no_box
from torchbandits.types import Marginals, Recommendation
from torchbandits.widths import Constant, Explored, Growing, PracticalBBKB, PracticalBKB, Scaled
from torchbandits.widths.assumptions import check_assumptions

_EQUAL = 1e-9  # spread of the posterior means, as a fraction of their size, up to which they are equal


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
    variance = noise_share(policy.noise_std, policy.regularization) * posterior.regularization
    learned = Row(state, place, variance, policy.from_data)
    width = policy.width(state)
    possible = _possible_rivals(learned, width, int(known.index[0]), offered)
    noise, lead = noise_of(learned, known), _lead(learned)
    upper = _largest_bound(learned, width, possible, known)
    if noise.two_values is not None:
        upper = min(upper, max(noise.two_values[1], float(known.mean[0])))
    # In noise alone the averages of few arms may differ by chance, so that the model has the last word.
    told = share_of_repeats(learned) if noise.two_values is None and lead >= CLEAR else None
    share = learned.noise_share if told is None else told
    uncertainty, repeats = _uncertainty(learned)
    fitted = posterior.units is not None or policy.refit_every is not None
    return Explanation(
        relevance=relevance_of(learned, pulled=here),
        names=own,
        noise_std=noise.std,
        noise_share=share,
        best=known,
        upper=upper,
        rivals=int(possible.sum()),
        pulls=learned.pulls,
        distinct=learned.distinct,
        num_arms=state.rows.num_arms,
        guarantee=_guarantee(policy, fitted),
        lead=lead,
        repeated=_repeated(learned, width, share),
        uncertainty=uncertainty,
        repeats=repeats,
        kernel_estimated=fitted,
        noise_estimated=posterior.units is not None,
        noise_repeated=noise.repeated,
        share_repeated=told is not None,
        two_values=noise.two_values is not None,
        elsewhere=learned.elsewhere,
        unexplained=learned.unexplained,
        predictive_r2=learned.predictive_r2,
        forecasts=learned.forecasts,
        forecast_r2=learned.forecast_r2,
        shifts=learned.shifts,
        constant=learned.constant,
        overruled=learned.overruled and not here,
    )


def _possible_rivals(row: Row, width: Tensor, arm: int, offered: Tensor | None) -> Tensor:
    """Mask of the other arms, among those offered, that may be better than the best one, `A` booleans; `arm` is −1 if the best
    point is no arm."""
    floor = 0.0
    if arm < 0:
        # The lower bound of the best point, in the units of the model.
        top = row.mean.argmax()
        floor = float(row.mean[top] - width[row.place] * row.variance[top].sqrt())
    possible = rivals(row.state, width, arm, row.place, floor)
    if offered is not None:
        entries = row.state.rows.offered(offered)
        assert entries is not None
        possible &= entries[row.place]
    return possible


def _largest_bound(row: Row, width: Tensor, rivals: Tensor, best: Recommendation) -> float:
    """The largest upper confidence bound of the rivals (a mask of the arms), of the best arm if there are none, reward units;
    of a best point that is no arm its mean.

    Where the model has units of its own, its distance from the mean of the best arm becomes rewards like a deviation there.
    """
    units, shape, arm = row.posterior.units, row.posterior.batch_shape, int(best.index[0])
    bounds = upper_bounds(row.state, width)[row.place]
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
    return float(best.mean[0] + (apart * above.sign())[row.place])


def _lead(row: Row) -> float:
    r"""Lead of the best arm pulled over the average of the u arms pulled, in standard errors:

    .. math:: \Big(\max_i \mu_i - \tfrac1u \sum_i \mu_i\Big) \Big/ \sqrt{v_{\mathrm{best}} + \sigma^2 / n}

    with the posterior variance v of the best arm and n pulls in total. Pure noise gives 1 or less, because posterior means are
    shrunk towards each other. The denominator has the noise of an average, because the noise of a single reward would hide
    differences that an average of many rewards shows.
    """
    mean, variance = row.mean, row.variance
    if len(mean) < 2:
        return math.nan
    best = int(mean.argmax())
    error = variance[best] + row.noise_variance / row.state.statistics.weights[row.place].sum()
    return float((mean[best] - mean.mean()) / error.sqrt())


def _uncertainty(row: Row) -> tuple[float, int]:
    r"""See `Explanation.uncertainty` and `repeats`, the smallest m ≥ 0 with

    .. math:: 1/v + m/\sigma^2 \ge 1/(s/2)^2

    for the posterior variance v of the best arm and the standard deviation s of the posterior means of the arms pulled.
    """
    mean, variance = row.mean, row.variance
    if len(mean) < FEW:
        return math.nan, 0
    v, s = float(variance[mean.argmax()]), float(mean.std(correction=0))
    # Rewards that are all equal leave no spread but that of rounding.
    if s <= _EQUAL * max(v**0.5, float(mean.abs().max())):
        return math.nan, 0
    if v == 0:
        return 0.0, 0
    needed = row.noise_variance * (1 / (DOUBTFUL * s) ** 2 - 1 / v)
    return v**0.5 / s, max(0, math.ceil(needed))


def _repeated(row: Row, width: Tensor, noise: float) -> tuple[int, int, str] | None:
    """See `Explanation.repeated`."""
    found = most_repeated(recent_arms(row.state, row.place))
    if found is None:
        return None
    sure = not bool(rivals(row.state, width, found[0], row.place).any())
    return (*found, reason_for_repeats(sure, noise))


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
