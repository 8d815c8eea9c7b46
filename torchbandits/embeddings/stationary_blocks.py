"""Blocks of the RBF and Matérn kernels, many points at many arms: one small matrix product and one exponential an entry.

GPyTorch centres, concatenates and multiplies anew for each block, and allocates as it goes. Here the points' side is prepared
once and a block is written in place. Any other kernel takes GPyTorch's path, which is the oracle of this one in the tests.
"""

from __future__ import annotations

import math

import gpytorch
import numpy as np
import torch
from torch import Tensor

from torchbandits.embeddings.stationary import is_stationary
from torchbandits.types import Arms, Points

_GROUP_BYTES = 256 << 10  # rows of a block whose passes follow each other in cache
_WIDE = torch.backends.cpu.get_cpu_capability() == "AVX512"
_FEW_THREADS = 2  # measured on Zen 4: NumPy takes 0.4 of PyTorch's time, for both functions
# Largest squared norm, in length-scales from the centre of the points, for which |x|² + |y|² − 2xᵀy is trusted: an error of
# 1e-13 (float32: 1e-6) in the squared distance. Beyond it, distances are summed from differences.
_TRUSTED = {torch.float64: 100.0, torch.float32: 4.0}


class StationaryBlocks:
    r"""k(x_j, ·) of fixed points at chunk after chunk of arms.

    .. math:: k(x, y) = s\,e^{-r^2/2}, \quad s\,e^{-r}, \quad s\,(1 + r)\,e^{-r}, \quad s\,(1 + r + r^2/3)\,e^{-r}

    with r = |x − y|/ℓ, for Matérn of order ν times √(2ν). Squared distances come from one matrix product where norms
    are small enough for its rounding to be below that of the exponential, and otherwise, as for Matérn 1/2, whose slope at
    0 turns an error of 1e-15 in r² into one of 3e-8, from differences.

    Args:
        points: `batch_shape x m x d`, in the units of the kernel's lengthscale.
        kernel: An RBF or Matérn kernel, scaled or not, without active dimensions; its batch shape broadcasts with the points'.
    """

    def __init__(self, points: Points, kernel: gpytorch.kernels.Kernel) -> None:
        scaled = type(kernel) is gpytorch.kernels.ScaleKernel
        base = kernel.base_kernel if scaled else kernel
        self._outputscale = kernel.outputscale.detach()[..., None, None].to(points.dtype) if scaled else None
        self._nu = None if type(base) is gpytorch.kernels.RBFKernel else float(base.nu)
        # `batch_shape x 1 x d`: differences are multiplied by it
        self._scale = (1.0 if self._nu is None else math.sqrt(2 * self._nu)) / base.lengthscale.detach().to(points.dtype)
        self._centre = points.mean(dim=-2, keepdim=True)
        self._points = (points - self._centre) * self._scale
        self._sign = -0.5 if self._nu is None else 1.0  # the product is −r²/2 or r²
        norms = self._points.square().sum(dim=-1, keepdim=True)
        self._left = torch.cat([-2 * self._sign * self._points, self._sign * norms, torch.ones_like(norms)], dim=-1)
        self._trusted = self._nu != 0.5 and bool((norms <= _TRUSTED[points.dtype]).all())

    @staticmethod
    def supports(kernel: gpytorch.kernels.Kernel) -> bool:
        """Whether the kernel is one of those above."""
        return is_stationary(kernel)

    def __call__(self, arms: Arms, out: Tensor) -> Tensor:
        """k(points, arms) for arms `n x d` or `batch_shape x n x d`, written to `out`, `batch_shape x m x n`. O(n m d)."""
        x = (arms - self._centre) * self._scale
        norms = x.square().sum(dim=-1, keepdim=True)
        if self._trusted and bool((norms <= _TRUSTED[x.dtype]).all()):
            right = torch.cat([x, torch.ones_like(norms), self._sign * norms], dim=-1)
            torch.matmul(self._left, right.mT, out=out)
            distances = False
        else:
            out.copy_(torch.cdist(self._points, x, compute_mode="donot_use_mm_for_euclid_dist"))
            distances = True
        if self._nu is None:
            _exp_(out.square_().mul_(-0.5) if distances else out)
        else:
            line = out.shape[:-2].numel() * out.shape[-1] * out.element_size()
            step = max(1, _GROUP_BYTES // max(1, line))
            spare = torch.empty_like(out[..., :step, :])
            for block in out.split(step, dim=-2):
                self._decay(block if distances else _sqrt_(block.clamp_min_(0)), spare[..., : block.shape[-2], :])
        return out if self._outputscale is None else out.mul_(self._outputscale)

    def _decay(self, r: Tensor, spare: Tensor) -> None:
        """From r to the Matérn kernel without its scale, in place."""
        if self._nu == 0.5:
            _exp_(r.neg_())
            return
        decay = _exp_(torch.neg(r, out=spare))
        if self._nu == 1.5:
            torch.addcmul(decay, decay, r, out=r)
        else:
            torch.mul((r * r).div_(3).add_(r).add_(1), decay, out=r)


def _by_numpy(values: Tensor) -> bool:
    """Whether NumPy's exponential and root, which use one thread and AVX-512 where there is that, beat PyTorch's."""
    return values.device.type == "cpu" and _WIDE and torch.get_num_threads() <= _FEW_THREADS


def _exp_(values: Tensor) -> Tensor:
    if _by_numpy(values):
        np.exp(values.numpy(), out=values.numpy())
        return values
    return values.exp_()


def _sqrt_(values: Tensor) -> Tensor:
    if _by_numpy(values):
        np.sqrt(values.numpy(), out=values.numpy())
        return values
    return values.sqrt_()
