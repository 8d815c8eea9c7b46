"""Fits of kernel hyper-parameters: `fit_kernel_` fits the kernel of a posterior, `climb` maximises the evidence of a row."""

from torchbandits.fitting.fit import fit_kernel_

__all__ = ["fit_kernel_"]
