"""Fitting the hyper-parameters of a BoTorch model by this package's evidence."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import torch
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood

from torchbandits.errors import DiagnosticWarning, NumericalError
from torchbandits.fitting import fit_kernel_


def fit_(model: Any) -> None:
    """Fit the kernel of a `BanditModel`, in place, and the noise where it was not given; see `fitting.fit_kernel_`.

    Every kernel parameter that requires a gradient is fitted, each batch row's on its own; nothing happens where none does.
    Repeated observations that show no noise at all keep the noise as it is, with a `DiagnosticWarning`. Cost as there.
    """
    process = model.process()
    if not process.fitted or model._finite[0] is not None:
        return
    noise = model.fits_noise and process.batch_shape.numel() == 1
    share = 1 / model._share
    try:
        prior = getattr(model.likelihood.noise_covar, "noise_prior", None)
        fit_kernel_(process, noise=noise, noise_share=share, noise_prior=prior)
    except NumericalError as error:
        if not noise:
            raise
        warnings.warn(
            f"{error} The noise is kept at a standard deviation of {model.noise_std:g}.", DiagnosticWarning, stacklevel=2
        )
        fit_kernel_(process, noise=False, noise_share=share)
    kernel = copy.deepcopy(process.kernel)
    for name, parameter in kernel.named_parameters():
        parameter.requires_grad_(name in process.fitted)
    model.covar_module = kernel
    model._posterior = model._drawn = None  # a dictionary is drawn anew
    if noise:
        with torch.no_grad():
            model.likelihood.noise = torch.tensor(process.regularization * share, dtype=torch.float64)


def weighed_anew(model: Any, _: Any) -> None:
    """After a state was loaded into a `BanditModel`: known noise variances follow the outcome transform that came with it."""
    if isinstance(model.likelihood, FixedNoiseGaussianLikelihood):
        model.likelihood.noise_covar.noise = model._reference / model._observed()[2]
