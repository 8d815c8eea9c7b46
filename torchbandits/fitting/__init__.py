"""Fits of kernel hyper-parameters: `fit_kernel_` fits the kernel of a posterior, `climb` maximises the evidence of a
row, and `GroupNoise` has noise variances of groups."""

from torchbandits.fitting.fit import fit_kernel_
from torchbandits.fitting.groups import GroupNoise

__all__ = ["GroupNoise", "fit_kernel_"]
