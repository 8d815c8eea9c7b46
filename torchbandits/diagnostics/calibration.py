"""Do the intervals hold as many rewards as they should? On held-out pulls, or leaving each arm out in closed form."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from torchbandits.bandit import Bandit
from torchbandits.checks import as_tensor, check_picks, check_rewards, non_negative
from torchbandits.diagnostics import chance
from torchbandits.diagnostics.coverage import LEVELS, Calibration, judge
from torchbandits.diagnostics.evidence import (
    averages,
    check_levels,
    factors_of,
    gaussian,
    noise_of,
    oversized,
    pulled,
    remarks,
    told_state,
    with_posterior,
)
from torchbandits.diagnostics.left_out import left_out
from torchbandits.errors import ArgumentError, NonFiniteError, ShapeError, issue, require
from torchbandits.posteriors import GaussianProcess, PartitionedProcess


@torch.no_grad()
def calibration(
    source: Bandit | GaussianProcess | PartitionedProcess,
    index_or_points: Tensor,
    rewards: Tensor,
    *,
    noise_std: float | None = None,
    levels: Sequence[float] = LEVELS,
) -> Calibration:
    r"""Coverage of rewards that were not told: pulls held out, or from elsewhere.

    Args:
        source: A bandit, or a posterior. Pending picks do not count.
        index_or_points: Arms (integers, −1 where masked) `n` or `batch_shape x n`, bandits only; or points
            `n x d` or `batch_shape x n x d`.
        rewards: Shaped like the index; reward units. Single rewards, not averages.
        noise_std: Standard deviation of the noise; by default the policy's, or the fitted one, √λ for a posterior.
        levels: Nominal levels in (0, 1).

    Returns:
        The calibration. The band knows that errors at nearby points go together: their covariances are the posterior's (for
        pi_gp_ucb, which has none between cells, the largest that its variances allow: a wide band).

    Raises:
        ShapeError, NonFiniteError, ArmIndexError, ArgumentError: On bad input.
        UnsupportedError: For policies without a posterior.

    Warns (`DiagnosticWarning`): If a fraction leaves the band, of which there is a chance of one in a thousand a batch row
    when the model is right. Cost: O(n² m), m dictionary points.
    """
    own = check_levels(levels)
    if isinstance(source, Bandit):
        state = with_posterior(told_state(source), "calibration")
        process, notes, noise = state.process, remarks(state), noise_of(source, noise_std)
        if isinstance(index_or_points, Tensor) and index_or_points.is_floating_point():
            x, mask = index_or_points, None
        else:
            index = as_tensor("index_or_points", index_or_points)
            given = index.expand(*source.batch_shape, -1) if index.dim() == 1 else index
            picks, mask = check_picks(given, source.batch_shape, source.arms.shape[-2], source.device)
            x = state.rows.points(picks)
    else:
        if not isinstance(source, GaussianProcess | PartitionedProcess):
            raise ArgumentError(f"source must be a bandit or a posterior, got {type(source).__name__}.")
        process, notes, x, mask = source, [], index_or_points, None
        noise = math.sqrt(process.regularization) if noise_std is None else non_negative("noise_std", noise_std)
    x, y, mask = _checked(process, x, rewards, mask)
    mean, variance, covariance = _predictions(process, x)
    std = (variance + noise**2).sqrt()
    if covariance is None:
        size = chance.least_effective_size((variance / std.square()).nan_to_num(0.0), mask)
    else:
        size = chance.effective_size(covariance, std, mask)
    wide = oversized(process, noise)
    record = judge("held-out rewards", own, (mean, std, y, mask), size, wide, notes)
    issue(record.warnings)
    return record


@torch.no_grad()
def leave_one_out(bandit: Bandit, *, noise_std: float | None = None, levels: Sequence[float] = LEVELS) -> Calibration:
    r"""Coverage of each arm's average reward, predicted without any pull of that arm: needs no held-out data.

    With M = K + λN⁻¹ and the averages ȳ of the distinct points, in closed form

    .. math:: \bar y_i - \mu_{-i} = \frac{[M^{-1} (\bar y - \mu_0)]_i}{[M^{-1}]_{ii}}, \qquad
              \mathrm{var}(\bar y_i - \mu_{-i}) = 1 / [M^{-1}]_{ii}

    For a sparse posterior M is ZᵀZ + R + λN⁻¹ instead, R the diagonal of the kernel that the dictionary's features z miss
    (FITC; the dictionary stays as it is): kernel and noise are judged as the dictionary sees them, not DTC's own mean. For
    finite features R = 0.

    Args:
        bandit: Must have been told rewards. Pending picks do not count.
        noise_std: Standard deviation of the noise; by default the policy's, or the fitted one. The posterior keeps its own λ.
        levels: Nominal levels in (0, 1).

    Returns:
        The calibration of n = u distinct points, in order of first pull.

    Raises:
        UnsupportedError: For policies without a posterior, and for pi_gp_ucb.

    Warns (`DiagnosticWarning`): As `calibration`. Which arms were pulled depended on the rewards, which the band ignores; in
    simulated runs of GP-UCB that raised no more alarms than one in a thousand. Digits are lost where an arm's own pulls
    outweigh all else: means are good to eps · n k/λ of the average. Cost: O(u m² + u² m). Source: Rasmussen & Williams 2006,
    section 5.4.2, for one observation a point.
    """
    own = check_levels(levels)
    state = told_state(bandit)
    process = gaussian(state, "leave_one_out", "hold pulls out and use calibration()")
    noise, mask, y = noise_of(bandit, noise_std), pulled(state), averages(state)
    left = left_out(process, mask, y)
    std = (left.variance + noise**2 / torch.where(mask, process.statistics.weights, 1.0)).sqrt()
    notes = remarks(state)
    if process.sparse:
        notes.append("the prior's residual that the dictionary misses counts as noise here (FITC)")
    if process.prior_mean == "estimate":
        notes.append("the prior mean is estimated without the arm too")
    size = chance.effective_size(left.covariance, std, mask)
    wide = oversized(process, noise)
    record = judge("averages of arms left out", own, (left.mean, std, y, mask), size, wide, notes)
    issue(record.warnings)
    return record


def _checked(
    process: GaussianProcess | PartitionedProcess, x: Tensor, rewards: Tensor, mask: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Points `batch_shape x n x d`, rewards `batch_shape x n` and their mask."""
    d = process.statistics.points.shape[-1]
    x = as_tensor("index_or_points", x)
    good = isinstance(x, Tensor) and x.is_floating_point() and x.dim() >= 2 and x.shape[-1] == d
    if not good:
        raise ShapeError(
            f"index_or_points must be floating point, n x {d} or batch_shape x n x {d}; arms are indices of a bandit."
        )
    require(bool(torch.isfinite(x).all()), "index_or_points have a NaN or infinite feature.", NonFiniteError)
    y = as_tensor("rewards", rewards)
    shape = torch.Size([*process.batch_shape, x.shape[-2]])
    if x.shape[-2] == 0:
        raise ArgumentError("there are no held-out rewards: give at least one.")
    try:
        x, y = x.expand(*shape, d), y.expand(shape) if y.dim() == 1 else y
    except RuntimeError as error:
        whole = (*process.batch_shape, "n", d)
        raise ShapeError(f"index_or_points must be n x {d} or {whole}, got {tuple(x.shape)}.") from error
    mask = torch.ones(shape, dtype=torch.bool, device=x.device) if mask is None else mask
    y = check_rewards(y, mask, mask, x.device)
    return x.double(), torch.where(mask, y, 0.0), mask


def _predictions(
    process: GaussianProcess | PartitionedProcess, x: Tensor
) -> tuple[Tensor, Tensor, Callable[[slice], Tensor] | None]:
    """Mean, variance of f given the rewards told, and their covariances part by part."""
    lam = process.regularization
    if isinstance(process, PartitionedProcess):
        return process(x).mean, lam * process.leverage(x), None
    with factors_of(process) as fit:
        z = fit.embedding(x)
        variance = lam * process.leverage(x)
        mean = process.reward_mean(fit.regression.mean(z))
    whitened = fit.regression.precision.whiten(z)

    def covariance(part: slice) -> Tensor:
        residual = fit.embedding.residual_covariance(x[..., part, :], x, z[..., part], z)
        return residual + lam * (whitened[..., part].mT @ whitened)

    return mean, variance, covariance
