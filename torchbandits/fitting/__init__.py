"""Kernel hyper-parameters from the rewards: `fit_kernel_` fits the kernel of a posterior, `climb` holds the ascent of a row."""

from torchbandits.fitting.fit import fit_kernel_

__all__ = ["fit_kernel_"]
