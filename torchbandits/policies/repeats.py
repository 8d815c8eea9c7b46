"""Notice that one arm takes most of the recent pulls, with the reason and what to do about it."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor

from torchbandits.errors import issue
from torchbandits.fitting.degeneracy import signal_variance
from torchbandits.kernels import kernel_row
from torchbandits.policies.state import RECENT, GaussianState
from torchbandits.posteriors import GaussianProcess
from torchbandits.widths import Width

NOISE_ALONE = 0.9
"""Part of the variance above which noise is named as the reason for repeated pulls."""

OTHERS = "take it off offer (available=) or give a larger width= to look at others"


def most_repeated(arms: Iterable[int]) -> tuple[int, int] | None:
    """The arm with more than half of the last 40 pulls, and its number of them; None where no arm has, or for fewer pulls.

    Args:
        arms: Pulled, in order.
    """
    last = np.asarray(list(arms)[-RECENT:])
    if len(last) < RECENT:
        return None
    different, counts = np.unique(last, return_counts=True)
    most = int(counts.argmax())
    return (int(different[most]), int(counts[most])) if 2 * counts[most] > RECENT else None


def recent_arms(state: GaussianState, place: tuple[int, ...]) -> list[int]:
    """At most the last 40 arms told in a batch row since the state was made or loaded, in order."""
    told = [arm for index in state.recent for arm in index[place].tolist() if arm >= 0]
    return told[-RECENT:]


def rivals(state: GaussianState, width: Tensor, arm: int, place: tuple[int, ...], floor: float = 0.0) -> Tensor:
    """Mask of the other arms whose upper confidence bound exceeds the lower bound of `arm`, `A` booleans.

    Args:
        state: With a table of all arms.
        width: `batch_shape`, the confidence width.
        arm: −1 for a point that is no arm.
        place: The batch row.
        floor: The lower bound in model units where `arm` is −1.
    """
    std = (state.posterior.regularization * state.arm_leverage()[place]).clamp_min(0).sqrt()
    reach, mean = width[place] * std, state.arm_mean()[place]
    possible = mean + reach > (mean[arm] - reach[arm] if arm >= 0 else floor)
    if arm >= 0:
        possible[arm] = False
    return possible


def share_of_noise(posterior: GaussianProcess, noise_variance: float, place: tuple[int, ...]) -> float:
    """Part of the variance of rewards over the distinct points told that is noise, by the model; NaN for a single point."""
    kernel = kernel_row(posterior.kernel, posterior.batch_shape, place)
    points = posterior.statistics.points[place][: int(posterior.statistics.num_rows[place])]
    signal = float(signal_variance(kernel, points)) if len(points) > 1 else float("nan")
    return noise_variance / (noise_variance + signal)


def reason_for_repeats(sure: bool, noise: float, others: str = OTHERS) -> str:
    """Why a policy pulls one arm again and again, and what to do.

    Args:
        sure: Whether no other arm has an upper confidence bound above the lower bound of this one.
        noise: Part of the variance that is noise.
        others: A clause that says how to look at other arms.
    """
    if sure:
        return f"by the model no other one can be better. Stop here, or {others}."
    if noise > NOISE_ALONE:
        return (
            f"noise is {noise:.0%} of the variance over those pulled, so that one pull says little. Tell the average of "
            f"several evaluations as one reward, make the evaluation less noisy, or {others}."
        )
    return (
        "it has the largest upper bound each time, since what the others could gain does not make up for their lower means. "
        f"Stop here if it is good enough, or {others}."
    )


@torch.no_grad()
def warn_of_repeats(state: GaussianState, confidence: Width, noise_variance: float) -> None:
    """Issue one `DiagnosticWarning` per state, when an arm has taken more than half of the last 40 pulls of a batch row.

    Cost: a pass over the last 40 pulls, and O(A) for the one that is issued.
    """
    if state.repeats_said:
        return
    for place in np.ndindex(*state.rows.batch_shape):
        if (found := most_repeated(recent_arms(state, place))) is None:
            continue
        arm, count = found
        width = confidence(state.progress(confidence.reads)).expand(state.rows.batch_shape)
        sure = not bool(rivals(state, width, arm, place).any())
        why = reason_for_repeats(sure, share_of_noise(state.posterior, noise_variance, place))
        row = f"batch row {place[0] if len(place) == 1 else place}: " if place else ""
        state.repeats_said = True
        issue([f"{row}arm {arm} has taken {count} of the last {RECENT} pulls: {why}"])
        return
