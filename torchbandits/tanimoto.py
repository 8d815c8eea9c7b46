"""The Tanimoto kernel of fingerprints: a GPyTorch kernel, and its evaluation on packed bits and counts without unpacking."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import gpytorch
import numpy as np
import torch
from torch import Tensor

from torchbandits.errors import ArgumentError
from torchbandits.packing import Packing
from torchbandits.shapes import broadcast_shapes
from torchbandits.types import Points

# Number of word products above which several threads pay off for a block, because each then has some milliseconds of work.
_MANY_WORDS = 1 << 23
# Maximum number of features that are unpacked at once on a device.
_UNPACKED = 1 << 27


class TanimotoKernel(gpytorch.kernels.Kernel):
    r"""Tanimoto (Jaccard, MinMax) similarity of fingerprints of bits or counts.

    .. math:: k(x, y) = \frac{\sum_i \min(x_i, y_i)}{\sum_i \max(x_i, y_i)}, \quad k(0, 0) = 1

    For bits, this is the number of bits set in both fingerprints divided by the number set in at least one. The kernel is
    positive definite, 1 on the diagonal, and has no parameter; `gpytorch.kernels.ScaleKernel` adds a variance that can be
    fitted. On `sources.Fingerprints` it is evaluated on the packed words. Two empty fingerprints are equal, so their similarity
    is defined as 1.

    Features must be at least 0, and may be any real numbers.

    Raises:
        ArgumentError: When evaluated on a negative feature.

    Cost: O(n m d). Source: Ralaivola et al. 2005.
    """

    has_lengthscale = False

    def forward(self, x1: Tensor, x2: Tensor, diag: bool = False, **params: Any) -> Tensor:
        """The kernel matrix, `... x n x m`, or with `diag` the n values of corresponding points."""
        left, right = x1.sum(dim=-1), x2.sum(dim=-1)
        binary = [_binary(x, total) for x, total in ((x1, left), (x2, right))]
        if diag:
            shared, total = torch.minimum(x1, x2).sum(dim=-1), left + right
        else:
            total = left.unsqueeze(-1) + right.unsqueeze(-2)
            if all(binary) and not (x1.requires_grad or x2.requires_grad):
                shared = x1 @ x2.mT
            else:
                # Σ min = (Σ x + Σ y − Σ |x − y|) / 2, exact for whole numbers.
                shared = (total - torch.cdist(x1, x2, p=1.0)) / 2
        either = total - shared
        return torch.where(either > 0, shared / torch.where(either > 0, either, 1.0), 1.0)


def _binary(points: Tensor, total: Tensor) -> bool:
    """Whether points, whose features add up to `total`, are bits: numbers in [0, 1] whose squares have the same sum.

    Raises:
        ArgumentError: If a feature is below 0.
    """
    if not points.numel():
        return True
    low, high = torch.aminmax(points.detach())
    if bool(low < 0):
        raise ArgumentError("the Tanimoto kernel takes fingerprints: features of 0 or 1, or counts, and got one below 0.")
    return bool(high <= 1) and bool((points.detach().square().sum(dim=-1) == total.detach()).all())


def tanimoto_scale(kernel: gpytorch.kernels.Kernel) -> Tensor | None:
    """The scale s, `batch_shape`, of a kernel s·k with k Tanimoto on all features; None for any other kernel."""
    scaled = type(kernel) is gpytorch.kernels.ScaleKernel
    base = kernel.base_kernel if scaled else kernel
    if type(base) is not TanimotoKernel or base.active_dims is not None or kernel.active_dims is not None:
        return None
    outputscale: Tensor = kernel.outputscale.detach() if scaled else torch.ones(kernel.batch_shape, dtype=torch.float64)
    return outputscale


def packed_kernel(kernel: gpytorch.kernels.Kernel, packing: Packing, left: Tensor, right: Tensor) -> Tensor:
    """k between packed points, `batch_shape x n x n'` float64 for words `... x n x w` and `... x n' x w`. Cost O(n n' w)."""
    scale = tanimoto_scale(kernel)
    assert scale is not None
    if left.device.type != "cpu":
        x, y = (packing.unpack(words, torch.float64) for words in (left, right))
        K: Tensor = kernel(x, y).to_dense()
        return K
    shape = broadcast_shapes(left.shape[:-2], right.shape[:-2], scale.shape)
    scale, left, right = scale.expand(shape), left.expand(*shape, *left.shape[-2:]), right.expand(*shape, *right.shape[-2:])
    out = torch.empty(*shape, left.shape[-2], right.shape[-2], dtype=torch.float64)
    for place in np.ndindex(*shape):
        _fill(right[place], left[place], packing, scale[place], out[place])
    return out


def _fill(words: Tensor, dictionary: Tensor, packing: Packing, scale: Tensor, out: Tensor) -> None:
    from torchbandits.linalg.popcount import similarities  # noqa: PLC0415 - numba takes half a second to load

    similarities(words.numpy(), dictionary.numpy(), packing.counts, float(scale), out.numpy())


class TanimotoBlocks:
    """k(x_j, ·) of fixed points on successive chunks of packed arms.

    Similarities are ratios of whole numbers, so that they do not depend on the chunk or on the processor.

    Args:
        points: `batch_shape x m x d`. Points whose features the packing cannot represent are evaluated on unpacked arms.
        kernel: A Tanimoto kernel, scaled or not; its batch shape broadcasts with the points'.
        packing: The packing of the arms.

    Attributes:
        packs: Whether the packing represents all points. Otherwise GPyTorch evaluates the kernel, in one thread at a time.
    """

    def __init__(self, points: Points, kernel: gpytorch.kernels.Kernel, packing: Packing) -> None:
        scale = tanimoto_scale(kernel)
        assert scale is not None
        self._kernel, self._packing = kernel, packing
        shape = broadcast_shapes(points.shape[:-2], scale.shape)
        # Points that are not arms may have features other than bits or counts.
        self._points = points.expand(*shape, *points.shape[-2:])
        self.packs = bool(packing.holds(points).all())
        self._words = packing.pack(self._points) if self.packs else None
        self._scale = scale.to(points).expand(shape)

    def __call__(self, words: Tensor, out: Tensor) -> Tensor:
        """k(points, arms) for arms `n x w` of words, written to `out`, `batch_shape x m x n`. Cost O(n m w)."""
        if self._words is None or words.device.type != "cpu":
            return self._unpacked(words, out)
        batch, (n, w) = self._words.shape[:-2], words.shape
        parts = min(torch.get_num_threads(), max(1, n * w * self._words[..., 0].numel() // _MANY_WORDS))
        step = max(1, -(-n // parts))
        jobs = [
            (
                words[first : first + step],
                self._words[place],
                self._packing,
                self._scale[place],
                out[place][:, first : first + step],
            )
            for place in np.ndindex(*batch)
            for first in range(0, n, step)
        ]
        if parts == 1:
            for job in jobs:
                _fill(*job)
        else:
            with ThreadPoolExecutor(parts) as pool:
                list(pool.map(_fill, *zip(*jobs, strict=True)))
        return out

    def _unpacked(self, words: Tensor, out: Tensor) -> Tensor:
        """Evaluate the kernel by a product of bits or by GPyTorch, on arms that are unpacked in small groups."""
        step = max(256, _UNPACKED // (self._packing.dim * max(1, self._points[..., 0, 0].numel())))
        for first in range(0, len(words), step):
            part = slice(first, first + step)
            out[..., part] = self._of(words[part], out.dtype)
        return out

    def _of(self, words: Tensor, dtype: torch.dtype) -> Tensor:
        if self._packing.counts or not self.packs:
            arms = self._packing.unpack(words, dtype)
            K: Tensor = self._kernel(self._points.to(dtype), arms.expand(*self._points.shape[:-2], *arms.shape)).to_dense()
            return K
        # Products of bits are whole numbers, which half precision represents exactly up to 2,048.
        narrow = torch.float16 if self._packing.dim <= 2048 else torch.float32
        x, y = self._packing.unpack(words, narrow), self._points.to(narrow)
        shared = (y @ x.mT).to(dtype)
        sizes = (self._points.sum(dim=-1).to(dtype).unsqueeze(-1), x.sum(dim=-1, dtype=torch.float32).to(dtype))
        either = sizes[0] + sizes[1] - shared
        ratio = torch.where(either > 0, shared / either.clamp_min(1), 1.0)
        return ratio * self._scale[..., None, None].to(dtype)
