"""Repeated pulls of one arm: whether another one teaches something, and a warning with the reason and a remedy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from torchbandits.display import in_row
from torchbandits.errors import issue
from torchbandits.fitting.degeneracy import signal_variance
from torchbandits.kernels import kernel_row
from torchbandits.policies.state import RECENT, GaussianState, TableState
from torchbandits.posteriors import GaussianProcess
from torchbandits.widths import Width

NOISE_ALONE = 0.9
"""Fraction of the variance above which noise is named as the reason for repeated pulls."""

# An arm is known after so many pulls, if the standard error of their average is at most this fraction of the standard
# deviation between the arms pulled.
_AGAIN, _CLOSE = 3, 0.2

OTHERS = "take it off offer (available= of ask, repeats=False of run) or give a larger width= to look at others"


def most_repeated(arms: Sequence[int]) -> tuple[int, int] | None:
    """The arm with more than half of the last 40 pulls, and the number of these pulls. None without such an arm or with fewer
    than 40 pulls.

    Args:
        arms: Arms pulled, in order.
    """
    last = arms[-RECENT:]
    if len(last) < RECENT:
        return None
    ((arm, count),) = Counter(last).most_common(1)
    return (arm, count) if 2 * count > RECENT else None


def known_arms(state: TableState, noise_variance: float) -> Tensor:
    """Arms of which another pull would teach little, `batch_shape x A` booleans: those with at least three pulls whose average
    has a standard error of at most a fifth of the standard deviation between the arms pulled.

    Args:
        state: State with a table of all arms.
        noise_variance: Noise variance of a reward of weight 1, in the units of the statistics.

    Cost: O(A + u).
    """
    statistics = state.statistics
    weights, told = statistics.weights, statistics.pulled
    errors, distinct = torch.where(told, noise_variance / weights, 0.0), told.sum(dim=-1, keepdim=True)
    average = torch.where(told, statistics.sums / weights, 0.0)
    apart = torch.where(told, average - average.sum(dim=-1, keepdim=True) / distinct, 0.0).square()
    # The averages differ by their noise as well.
    between = apart.sum(dim=-1, keepdim=True) / (distinct - 1) - errors.sum(dim=-1, keepdim=True) / distinct
    known = told & (weights >= _AGAIN) & (errors <= _CLOSE**2 * between)
    return state.rows.counts(known.double()) > 0


def recent_arms(state: GaussianState, place: tuple[int, ...]) -> tuple[int, ...]:
    """The last arms told in a batch row since the state was made or loaded, up to 40, in order."""
    shape = state.rows.batch_shape
    return state.recent[int(np.ravel_multi_index(place, shape)) if shape else 0]


def rivals(state: GaussianState, width: Tensor, arm: int, place: tuple[int, ...], floor: float = 0.0) -> Tensor:
    """Mask of the other arms whose upper confidence bound exceeds the lower bound of `arm`, `A` booleans.

    Args:
        state: State with a table of all arms.
        width: `batch_shape`, the confidence width.
        arm: Index of the arm; −1 for a point that is not an arm.
        place: Index of the batch row.
        floor: The lower bound in model units if `arm` is −1.
    """
    std = (state.posterior.regularization * state.arm_leverage()[place]).clamp_min(0).sqrt()
    reach, mean = width[place] * std, state.arm_mean()[place]
    possible = mean + reach > (mean[arm] - reach[arm] if arm >= 0 else floor)
    if arm >= 0:
        possible[arm] = False
    # Exact duplicates count as the same arm.
    first = state.rows.first
    if first is None:
        return possible
    return possible & (first.expand(*state.rows.batch_shape, -1)[place] == torch.arange(len(possible), device=first.device))


def share_of_noise(posterior: GaussianProcess, noise_variance: float, place: tuple[int, ...]) -> float:
    """Fraction of the rewards' variance over the distinct points that the model explains as noise; NaN for a single point."""
    kernel = kernel_row(posterior.kernel, posterior.batch_shape, place)
    points = posterior.statistics.pulled_of(place)
    signal = float(signal_variance(kernel, points)) if len(points) > 1 else float("nan")
    return noise_variance / (noise_variance + signal)


def reason_for_repeats(sure: bool, noise: float, others: str = OTHERS) -> str:
    """The reason for repeated pulls of one arm, and the remedy, in words.

    Args:
        sure: Whether no other arm has an upper confidence bound above the lower bound of this one.
        noise: Fraction of the variance that is noise.
        others: A clause that explains how to explore other arms.
    """
    if sure:
        return f"by the model no other one can be better. Stop here, or {others}."
    if noise > NOISE_ALONE:
        return (
            f"noise is {noise:.0%} of the variance, so that a single evaluation gives little information. Average several "
            f"evaluations, make the evaluation less noisy, or {others}."
        )
    return (
        "it is the most promising one each time, because the uncertainty of the others does not make up for their worse means. "
        f"Stop here if it is good enough, or {others}."
    )


@torch.no_grad()
def warn_of_repeats(state: GaussianState, confidence: Width, noise_variance: float) -> None:
    """Issue one `DiagnosticWarning` per state, when an arm has taken more than half of the last 40 pulls of a batch row.

    Cost: a pass over the last 40 pulls, and O(A) if the warning is issued.
    """
    if state.repeats_said:
        return
    for place in np.ndindex(*state.rows.batch_shape):
        if (found := most_repeated(recent_arms(state, place))) is None:
            continue
        arm, count = found
        width = state.width_of(confidence).expand(state.rows.batch_shape)
        possible, competing, where = rivals(state, width, arm, place), state.rows.competing, ""
        if competing is not None:
            # The arm is one of as many at its context, whose block it is in.
            per_context = int(competing[place].sum())
            possible = possible[arm // per_context * per_context :][:per_context]
            arm, where = arm % per_context, " at one context"
        sure = not bool(possible.any())
        why = reason_for_repeats(sure, share_of_noise(state.posterior, noise_variance, place))
        state.repeats_said = True
        issue([f"{in_row(place)}arm {arm}{where} has taken {count} of the last {RECENT} pulls: {why}"])
        return
