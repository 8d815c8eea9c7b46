"""The default policy of a campaign whose noise is known."""

from __future__ import annotations

import math
from typing import Any

import gpytorch

from torchbandits.policies import Policy, gp_ucb
from torchbandits.starts import Spread
from torchbandits.tabular.decisions import Decisions
from torchbandits.tanimoto import TanimotoKernel
from torchbandits.widths import Constant

FIRST = 6
"""Number of first picks, and number of results between two fits of the kernel."""


def known_noise(noise_std: float, decisions: Decisions) -> Policy:
    """GP-UCB with a known noise and a kernel that is refitted after every sixth result: Matérn for features of standard
    deviation 1, or Tanimoto for molecules.

    The lengthscales have BoTorch's prior, that of Hvarfner et al. 2024. Before the first fit, arms are chosen without the
    model.
    """
    base: gpytorch.kernels.Kernel = TanimotoKernel()
    if decisions.molecules is None:
        features = decisions.features
        lengthscales = gpytorch.priors.LogNormalPrior(math.sqrt(2) + math.log(features) / 2, math.sqrt(3))
        base = gpytorch.kernels.MaternKernel(2.5, ard_num_dims=features, lengthscale_prior=lengthscales)
    kernel = gpytorch.kernels.ScaleKernel(base).double()
    kernel.outputscale = (10 * noise_std) ** 2
    if base.has_lengthscale:
        base.lengthscale = math.sqrt(decisions.features)
    options: dict[str, Any] = {"width": Constant(2.5), "prior_mean": "estimate", "initial": Spread(FIRST)}
    return gp_ucb(kernel, noise_std=noise_std, refit_every=FIRST, **options)
