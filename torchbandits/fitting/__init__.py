"""Fits of hyper-parameters: `fit_kernel_` fits the kernel of a posterior, `climb` maximises the evidence of one batch row, and
`GroupNoise` fits the noise variances of groups of rewards."""

from torchbandits.fitting.fit import advice_of_schedule, fit_kernel_
from torchbandits.fitting.groups import GroupNoise

__all__ = ["GroupNoise", "advice_of_schedule", "fit_kernel_"]
