"""Kernel hyper-parameters by maximum evidence, from several starting lengthscales, one batch row at a time."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import gpytorch
import numpy as np
import torch
from torch import Tensor

from torchbandits.checks import check_whole, is_finite, positive
from torchbandits.display import in_row, rows_in_words
from torchbandits.errors import ArgumentError, UnsupportedError, issue, require
from torchbandits.fitting.climb import Climb
from torchbandits.kernels import kernel_diagonal, kernel_row, stack_kernels
from torchbandits.posteriors import GaussianProcess
from torchbandits.posteriors.averages import FEWEST, Averages, pooled_noise
from torchbandits.types import FitReport


def fit_kernel_(
    posterior: GaussianProcess,
    *,
    noise: bool = False,
    misfit: bool = True,
    noise_share: float = 1.0,
    noise_prior: gpytorch.priors.Prior | None = None,
    weight: Tensor | None = None,
    rows: Tensor | None = None,
    max_exact: int = 500,
    dictionary_size: int = 300,
    restarts: Sequence[float] = (0.1, 0.3, 1.0, 3.0, 10.0),
    max_iterations: int = 30,
    advice: Callable[[Climb, bool], str] | None = None,
) -> FitReport:
    r"""Fit the kernel of a posterior, in place, by maximising the evidence times the kernel's priors.

    All parameters of the kernel that required a gradient when the posterior was made are fitted, within their constraints. The
    starts are the current kernel with its lengthscales times each of `restarts`; L-BFGS-B ascends from the two best. Each
    batch row is fitted to its own rewards and gets its own parameters. Nothing is drawn at random.

    Outliers are excluded. Points whose average lies further outside the middle nine tenths of all averages than 1.5 times their
    span (10 times of fewer than twenty averages), and than three prior standard deviations, are left out of the fit (and of the
    fit alone). If more than a twentieth of the averages are outliers on one side, they widen that span, and none is left out.
    The reward variance of a point is clipped at 36 times the median.

    Degenerate fits are avoided. A degenerate kernel explains all rewards by noise, has lengthscales far beyond the extent of
    the points, or leaves all pairs of points uncorrelated (`fitting.degeneracy` has the three conditions). If the evidence is
    highest at such a kernel, the row is fitted again under weak priors: signal and noise variance around half the variance of
    the average rewards, and lengthscales as in BoTorch's default, except for parameters with a registered prior. If the kernel
    explains all rewards by noise even then, it is refused, and the row keeps its previous kernel.

    Args:
        posterior: Posterior of any batch shape, without finite features. If a row is accepted, the kernel is replaced by
            another object and the factors are dropped; the caller must rebuild tables computed from it.
        noise: Fit the noise variance too: from the scatter of repeated pulls if they have at least 10 degrees of freedom,
            otherwise from the evidence together with the kernel (rewards observed as sums alone, without squares, then count as
            noiseless).
        misfit: Fit, and then drop, the variance τ² of a deviation of each point that the kernel does not model, under the prior
            (1 + τ²/σ²)^(−1/2). Without it, residuals that no smooth function explains shorten the lengthscale everywhere.
            Ignored if the evidence fits the noise, because the evidence can't distinguish τ² from it. Lengthscales are never
            shorter than a quarter of the median distance to the nearest point.
        noise_share: Noise variance as a fraction of the posterior's λ; a fit of the noise keeps the fraction.
        noise_prior: Prior of the noise variance, reward units squared, if the evidence fits it; none by default.
        weight: The weight with which each reward was told in the batch rows, of a shape that expands to `batch_shape`, such as
            that of outcomes whose noise differs; 1 by default.
        rows: `batch_shape` booleans, the rows to fit; all of them by default.
        max_exact: Largest number of distinct points for the exact evidence; for more points its collapsed lower bound is used.
        dictionary_size: Number of dictionary points of that bound, chosen greedily.
        restarts: Factors of all lengthscales; 1 is the current kernel.
        max_iterations: Largest number of iterations of each ascent.
        advice: Function of a degenerate fit, and of whether the noise is fitted, that says how it was treated and what to do;
            by default in the words of a bandit.

    Returns:
        The report. A row keeps its kernel, and is not `accepted`, if its evidence did not rise, its factorisations failed, it
        has fewer than five points or only equal rewards, or its best kernel is degenerate; `reasons` say which.

    Raises:
        UnsupportedError: For finite features, and for the noise of several batch rows, which share one λ.
        ArgumentError: If the kernel has no parameter to fit, or an option is out of its range.
        NumericalError: If repeated pulls show no noise at all.

    Warns (`DiagnosticWarning`): Once, if rows were regularised or refused, naming the fix.

    Cost: O(u³) per iteration and batch row, or O(u m²) beyond `max_exact`.
    """
    shape, own = posterior.batch_shape, posterior.regularization * noise_share
    _check(posterior, noise, noise_share, max_exact, dictionary_size, restarts, max_iterations)
    chosen = torch.ones(shape, dtype=torch.bool) if rows is None else rows.cpu().expand(shape)
    weights = None if weight is None else weight.cpu().expand(shape)
    kernels, fits, reasons, found = [], [], [], []
    for place in np.ndindex(*shape):
        kernel = kernel_row(posterior.kernel, shape, place)
        # A reward of weight w has the noise variance σ²/w.
        each = 1.0 if weights is None else float(weights[place])
        averages, left_out = _told(posterior, kernel, place, own, each)
        told = not noise or pooled_noise(averages) is not None
        fit = Climb(kernel, posterior.fitted, averages, own / each, noise, misfit and told, noise_prior)
        if bool(chosen[place]) and len(averages.weights) < FEWEST:
            fit.reason = f"{len(averages.weights)} distinct points are too few, a fit takes {FEWEST}"
        elif bool(chosen[place]) and bool((averages.residuals == averages.residuals[0]).all()):
            fit.reason = "the average rewards are all equal, and say nothing of a kernel"
        elif bool(chosen[place]):
            fit.run(max_exact, dictionary_size, restarts, max_iterations)
        if fit.degenerate:
            found.append(f"{in_row(place)}the fit is degenerate: {fit.reason}. {(advice or _of_bandit)(fit, noise)}")
        kernels.append(fit.kernel)
        regularized = fit.degenerate and fit.accepted
        fits.append((fit.before, fit.after, fit.accepted, fit.iterations, left_out, fit.jitter, fit.misfit, regularized))
        reasons.append(fit.reason)
        own = fit.noise_variance if noise else own
    names = ("before", "after", "accepted", "iterations", "left_out", "jitter", "misfit", "regularized")
    device = posterior.pending.device
    columns = {
        name: torch.as_tensor(np.array(column).reshape(shape)).to(device)
        for name, column in zip(names, zip(*fits, strict=True), strict=True)
    }
    if bool(columns["accepted"].any()):
        lam = own / noise_share if noise else posterior.regularization
        posterior.set_kernel_(stack_kernels(kernels, shape), lam)
    lam = posterior.regularization
    report = FitReport(**columns, reasons=tuple(reasons), regularization=lam, noise_variance=noise_share * lam)
    if found:
        others = f" ({len(found)} of {shape.numel()} {rows_in_words()} have degenerate fits)" if shape else ""
        issue([f"{found[0]}{others}"])
    return report


def treatment(fit: Climb) -> str:
    """The treatment of a degenerate fit, in words."""
    if fit.accepted:
        return "weak priors on signal, noise and lengthscales were added, and the kernel fitted with them is used"
    return "the fit is rejected, and the kernel is unchanged"


def smaller_noise(fit: Climb) -> str:
    """The beginning of a remedy for a given noise that exceeds the spread of the averages; empty if it does not."""
    spread, noise_std = math.sqrt(float(fit.averages.residuals.var())), math.sqrt(fit.noise_variance)
    if noise_std <= spread:
        return ""
    return (
        f"the noise was given a standard deviation of {noise_std:.3g}, and the average rewards have one of {spread:.3g}: give "
        "a smaller noise_std, "
    )


def _of_bandit(fit: Climb, noise: bool) -> str:
    """Treatment of a degenerate fit of a bandit's kernel, and the remedy."""
    fix = "" if noise else smaller_noise(fit)
    fix = (
        f"{fix}or fit it with noise=True"
        if fix
        else ("fit again when more rewards are told (refit_every=), or register priors with the kernel")
    )
    return f"To keep the bandit exploring, {treatment(fit)}. What to do: {fix}."


def advice_of_schedule(every: int) -> Callable[[Climb, bool], str]:
    """The treatment of a degenerate fit of a kernel that is fitted at every multiple of a number of rewards."""

    def advice(fit: Climb, noise: bool) -> str:
        fix = "" if noise else smaller_noise(fit).removesuffix(", ")
        said = treatment(fit)
        again = f"{said[0].upper()}{said[1:]}, until it is fitted again by itself, at the next multiple of {every} rewards."
        return f"{again} What to do if this comes again: {fix}." if fix else again

    return advice


def _told(
    posterior: GaussianProcess, kernel: gpytorch.kernels.Kernel, place: tuple[int, ...], noise_variance: float, weight: float
) -> tuple[Averages, int]:
    """The average rewards of a batch row without outliers, and the number of outliers.

    Args:
        noise_variance: Noise variance of a reward of weight 1.
        weight: The weight of each reward in this row; it counts as one.
    """
    points = posterior.statistics.points_of(place)
    variance = float(kernel_diagonal(kernel, points).amax()) if len(points) else 0.0
    prior_std = math.sqrt(variance + noise_variance / weight)
    found, left_out = Averages.told(posterior.statistics, place, posterior.prior_mean, prior_std)
    return replace(found, weights=found.weights / weight, scatter=found.scatter / weight), left_out


def _check(
    posterior: GaussianProcess,
    noise: bool,
    noise_share: float,
    max_exact: int,
    dictionary_size: int,
    restarts: Sequence[float],
    max_iterations: int,
) -> None:
    require(
        posterior.finite is None,
        "the kernel of finite features can't be fitted, because they would change: use embedding='nystrom' or 'exact', or in "
        "place of lin_ucb gp_ucb with a LinearKernel.",
        UnsupportedError,
    )
    require(
        not noise or posterior.batch_shape.numel() == 1,
        f"the {posterior.batch_shape.numel()} batch rows share one λ, so that no noise can be fitted: run one bandit per row, "
        "or pass noise=False and the noise_std that you know.",
        UnsupportedError,
    )
    if not posterior.fitted:
        raise ArgumentError(
            f"the kernel ({type(posterior.kernel).__name__}) has no parameter that requires a gradient: nothing to fit."
        )
    positive("noise_share", noise_share)
    for name, value in (("max_exact", max_exact), ("max_iterations", max_iterations), ("dictionary_size", dictionary_size)):
        check_whole(name, value)
    good = isinstance(restarts, Sequence) and all(is_finite(f) and f > 0 for f in restarts)
    require(good, f"restarts must be a list of factors > 0, got {restarts!r}.")
