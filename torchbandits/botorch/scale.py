"""Warnings of a BoTorch model about outcomes, features or noise on a scale far from the kernel's, with BoTorch's remedies."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from torchbandits.errors import issue
from torchbandits.fitting.climb import Climb
from torchbandits.fitting.fit import smaller_noise, treatment
from torchbandits.policies.scale import ScaleWatch, Words
from torchbandits.posteriors import GaussianProcess

_STANDARDIZE = "outcome_transform=Standardize(m=1)"
_NORMALIZE = "input_transform=Normalize(d={})"
# Largest ratio of the outcomes' mean to their standard deviation, and of that to 1 or back, that counts as standardised.
_FAR, _APART = 2.0, 3.0
# Largest ratio of the ranges of two features, or of one to 1 or back, that counts as normalised.
_UNEVEN = 10.0


def warn_of_scale(watch: ScaleWatch, process: GaussianProcess, noise_variance: float, weight: Tensor) -> None:
    """Issue one `DiagnosticWarning` with all findings that are new.

    Args:
        watch: The findings so far.
        process: Posterior of the transformed data.
        noise_variance: Noise variance of an observation of weight 1.
        weight: Average weight of an observation in each batch row.
    """
    normalize = _NORMALIZE.format(process.statistics.points.shape[-1])
    noise = (
        "Give noise_std in units of the transformed outcomes, or leave it out and fit it (fit_gpytorch_mll). Outcomes that "
        f"vary by far less than 1 need {_STANDARDIZE}."
    )
    words = Words(
        rewards="outcomes",
        noise=noise,
        collapsed=noise,
        mean=f"predictions away from the data return to the prior mean. Standardise the outcomes, {_STANDARDIZE}.",
        large=(
            f"the model is confident and wrong, or takes the outcomes for noise. Standardise them, {_STANDARDIZE}, or give a "
            "kernel of that variance, ScaleKernel of outputscale {variance}."
        ),
        small=f"Standardise the outcomes, {_STANDARDIZE}, or wrap the kernel in a ScaleKernel, which a fit makes smaller.",
        wide=f"Normalise the features, {normalize}, and fit the kernel (fit_gpytorch_mll).",
        narrow=f"Normalise the features, {normalize}, and fit the kernel (fit_gpytorch_mll), or give a longer lengthscale.",
        data_alone=True,
    )
    share = noise_variance / process.regularization
    texts = watch.found(process, None, share, weight.expand(process.batch_shape), words)
    if texts:
        issue([" Also: ".join(texts)])


def advice_on_transform(transform: object, learned: Sequence[str]) -> list[str]:
    """What a fit leaves as it is: these parameters of an input transform."""
    if not learned:
        return []
    return [
        f"{' and '.join(learned)} of {type(transform).__name__} stay as they are: fit_gpytorch_mll fits kernel and noise of a "
        "BanditModel. To fit all of them, call botorch.optim.fit.fit_gpytorch_mll_scipy(mll.train()), O(n³) an iteration; to "
        "keep the transform as it is, call input_transform.requires_grad_(False)."
    ]


def advice_on_fit(fit: Climb, noise: bool) -> str:
    """The treatment of a degenerate fit of a BoTorch model, its likely cause and a remedy, in words."""
    treated = treatment(fit)
    if not fit.accepted:
        treated = f"{treated}: the model's predictions and standard deviations do not describe the data, and may be far wrong"
    y, x = fit.averages.residuals, fit.averages.points
    mean, spread = float(y.mean()), float(y.std())
    ranges = x.amax(dim=0) - x.amin(dim=0)
    ranges = ranges[ranges > 0]
    causes, fixes = [], []
    if abs(mean) > _FAR * spread or not 1 / _APART < spread < _APART:
        where = "at" if abs(mean) < 0.01 * spread else f"{abs(mean):.3g} {'above' if mean > 0 else 'below'}"
        causes.append(f"on average the outcomes are {where} the prior mean, and their standard deviation is {spread:.3g}")
        fixes.append(f"standardise the outcomes, {_STANDARDIZE}")
    if len(ranges) and (float(ranges.max()) > _UNEVEN or float(ranges.min()) < 1 / _UNEVEN):
        causes.append(f"the ranges of the features are between {float(ranges.min()):.3g} and {float(ranges.max()):.3g}")
        fixes.append(f"normalise the features, {_NORMALIZE.format(x.shape[-1])}")
    cause = f" The likely cause: {', and '.join(causes)}." if causes else ""
    quieter = "" if noise else smaller_noise(fit)
    if quieter:
        fixes.append(f"{quieter}in units of the transformed outcomes, or leave it out to fit it")
    if not fixes:
        fixes.append("fit again with more observations, or register priors with the kernel")
    return f"{treated[0].upper()}{treated[1:]}.{cause} What to do: {'; '.join(fixes)}."
