"""A policy without required arguments, which estimates scales, kernel and noise from the data. It has no guarantee."""

from __future__ import annotations

import gpytorch

from torchbandits.batching import FixedSize
from torchbandits.checks import check_memory_budget, explains_keywords, non_negative
from torchbandits.policies.composed import Composed
from torchbandits.policies.from_data import FromData
from torchbandits.starts import Spread, Start
from torchbandits.widths import Constant, Width

# Number of first picks, which are made without the model.
_FIRST = 6


@explains_keywords
def auto(
    *,
    batch_size: int = 1,
    width: Width | float | None = None,
    initial: Start | None = None,
    replicate_every: int | None = None,
    memory_budget: int = 2 << 30,
) -> Composed:
    r"""Exact GP-UCB with kernel, noise and scales estimated from arms and rewards, for problems where none of them is known.

    Features are divided by their ranges over the arms, and rewards are replaced by normal scores of their ranks, which rise no
    faster than the noise once repeated pulls tell it. The kernel (Matérn-5/2 with one lengthscale per feature, or scaled
    Tanimoto similarity on `sources.Fingerprints`) and the noise are fitted under priors whenever the number of pulls has grown
    by half, and beyond 256 pulls by a factor of 2.25. After a history, the pulls that were asked for count by themselves as
    well. If more than 500 distinct arms were pulled, 500 of them are used for the fit. From three repeated pulls on, each arm
    has a random effect of a fitted variance as well: a deviation from the smooth function of its features that is the same at
    every pull. (There is none on fingerprints.) Rewards of two values, such as yes and no, are not ranked, and their noise is
    not fitted: it is their variance, the largest noise that they can have. The arm pulled is

    .. math:: x_{t+1} = \arg\max_x \mu_t(x) + w\,\sigma_t(x)

    in these units, conditioned on the earlier picks of the batch and all other pending picks. In batches, and while other picks
    are pending, one pick in eight is the arm with the highest posterior mean instead, which has usually been pulled before,
    until repeated pulls tell the noise: three of them if the noise is small, ten if it is not. Without repeats a model cannot
    tell noise from a function that varies over short distances. The posterior, `best` and the bounds are reported in reward
    units.

    After the first evaluation that fails, arms are left out whose predicted success is below one half, or below (s + 1)/(n + 2)
    after s successes in n evaluations if that is less. Success is modelled in the same way as the reward.

    Args:
        batch_size: Number of picks per `ask`.
        width: w, a number or a `Width`; by default 2.5, which grows from four repeats per arm on (`widths.Growing`), or 1 on
            fingerprints.
        initial: Rule for the first picks; by default six arms that represent all others, see `starts.Spread`.
        replicate_every: In batches, and while other picks are pending, one pick in this many is the recommended arm, until
            repeated pulls tell the noise; 8 by default, 0 for never. Not used on fingerprints. For several outcomes
            (`torchbandits.outcomes`) also where picks are made one by one and none is pending.
        memory_budget: Maximum memory in bytes of the exact posterior, or of cached kernel columns once there is a dictionary.
            After the first failure, the model of success may take as much again.

    Warns (`DiagnosticWarning`): Once, when one arm takes more than half of the last 40 pulls; the message names the reason.

    Guarantee: none, because the kernel is estimated; `igp_ucb` has one for a known kernel and norm, `lb_gp_ucb` for a known
    norm and an unknown lengthscale. Cost: O(A u) per pull, u distinct arms pulled, or O(A m) beside a dictionary of m
    points, which is drawn again for O(A m²) whenever the points have grown by 5 %; and O(min(u, 500)³) per iteration for each
    of O(log t) fits.
    Source: Hvarfner et al. 2024 (priors); Salinas et al. 2020 (normal scores); Srinivas et al. 2010 (the rule); Kaufman and
    Rousseeuw 1990 (first picks); Henderson 1975 (random effects).
    """
    check_memory_budget(memory_budget)
    confidence = width if isinstance(width, Width) else Constant(2.5 if width is None else non_negative("width", width))
    own_width = None if width is None else True
    from_data = FromData(exact_bytes=memory_budget, own_width=own_width, replicate_every=replicate_every)
    return Composed(
        # Only the form of this kernel is used: the values of its parameters are estimated.
        gpytorch.kernels.ScaleKernel(gpytorch.kernels.MaternKernel(2.5)).double(),
        noise_std=1.0,
        confidence=confidence,
        regularization=1.0,
        batch_rule=FixedSize(size=batch_size, max_pulls=1),
        initial=Spread(_FIRST) if initial is None else initial,
        memory_budget=memory_budget,
        from_data=from_data,
    )
