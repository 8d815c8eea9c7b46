"""Nyström features of a dictionary S: z(x) = K_S^{+/2} k_S(x)."""

from __future__ import annotations

from functools import cached_property

import gpytorch
import torch
from torch import Tensor

from torchbandits.embeddings.base import Embedding
from torchbandits.embeddings.fourier import Spectrum
from torchbandits.kernels import kernel_diagonal, kernel_matrix
from torchbandits.linalg import InverseRoot, append_row, inverse_root
from torchbandits.shapes import broadcast_shapes
from torchbandits.types import Points, Rect


class Nystrom(Embedding):
    """Nyström features of a dictionary. If it holds every distinct point, they give the exact kernel on these points.

    Args:
        kernel: Any GPyTorch kernel; stored by reference.
        dictionary: `batch_shape x m x d`.
        mask: `batch_shape x m`, False where padded (batch rows may have dictionaries of different sizes).
        floor: Residuals k(x,x) − |z|² of dictionary points below this value count as zero (units of the kernel).
        gram: `batch_shape x m x m`, kernel matrix of the dictionary, if it is already known.
        cut: Eigenvalues of a singular kernel matrix that count as zero, see `inverse_root`.
    """

    def __init__(
        self,
        kernel: gpytorch.kernels.Kernel,
        dictionary: Points,
        mask: Tensor | None = None,
        *,
        floor: float = 0.0,
        gram: Rect | None = None,
        cut: Tensor | None = None,
    ) -> None:
        self.kernel, self.dictionary, self.mask, self.floor = kernel, dictionary, mask, floor
        K_mm = kernel_matrix(kernel, dictionary, dictionary).detach() if gram is None else gram
        self.root: InverseRoot = inverse_root(self._diagonal_where_padded(K_mm).double(), floor, cut)

    @staticmethod
    def of(kernel: gpytorch.kernels.Kernel, dictionary: Points, mask: Tensor, floor: float, root: InverseRoot) -> Nystrom:
        """The features of a dictionary whose root is known."""
        embedding = Nystrom.__new__(Nystrom)
        embedding.kernel, embedding.dictionary, embedding.mask, embedding.floor = kernel, dictionary, mask, floor
        embedding.root = root
        return embedding

    def _diagonal_where_padded(self, K_mm: Rect) -> Tensor:
        if self.mask is None or not K_mm.shape[-1]:
            return K_mm
        # Pivots are compared with the largest one, which padding must not exceed.
        own = K_mm.diagonal(dim1=-2, dim2=-1).masked_fill(~self.mask, 0.0).amax(dim=-1)
        eye = torch.eye(K_mm.shape[-1], dtype=K_mm.dtype, device=K_mm.device)
        padding = torch.where(own > 0, own, 1.0)[..., None, None] * eye
        return torch.where(self.mask.unsqueeze(-1) & self.mask.unsqueeze(-2), K_mm, padding)

    def columns(self, points: Points) -> Tensor:
        """k_S(x), `batch_shape x m x n`, float64; zero where padded."""
        K_mn = kernel_matrix(self.kernel, self.dictionary, points).double()
        return K_mn if self.mask is None else torch.where(self.mask.unsqueeze(-1), K_mn, 0.0)

    def __call__(self, points: Points) -> Tensor:
        """Features, `batch_shape x m x n`, float64. Cost O(n m (m + d))."""
        return self.root.embed(self.columns(points))

    def diagonal(self, points: Points) -> Tensor:
        """k(x, x), `batch_shape x n`."""
        if self._variance is None:
            return kernel_diagonal(self.kernel, points).double()
        shape = broadcast_shapes(points.shape[:-2], self.kernel.batch_shape)
        return self._variance.expand(*shape, points.shape[-2])

    @cached_property
    def _variance(self) -> Tensor | None:
        """k(x, x) of an RBF or Matérn kernel, `batch_shape x 1`; None for any other kernel."""
        spectrum = Spectrum.of(self.kernel)
        return None if spectrum is None else spectrum.outputscale.unsqueeze(-1)

    def residual_covariance(self, left: Points, right: Points, z_left: Tensor, z_right: Tensor) -> Tensor:
        """k(x, x') − z(x)ᵀz(x'), `batch_shape x n x n'`."""
        return self.prior(left, right) - z_left.mT @ z_right

    def prior(self, left: Points, right: Points) -> Tensor:
        """k(x, x'), `batch_shape x n x n'`, float64."""
        return kernel_matrix(self.kernel, left, right).double()

    def append(self, point: Tensor) -> tuple[Nystrom, Tensor]:
        """The embedding with one more dictionary point per batch row, in O(m²), and whether each row kept it, `batch_shape`.

        A point whose residual is at most max(floor, 64 eps k(x,x)) is not kept: it gets a coordinate that is always zero. If a
        row uses the pseudo-inverse, the kernel matrix is factorised again, and every row keeps its point.

        Args:
            point: `batch_shape x d`.
        """
        x = point.unsqueeze(-2)
        m, batch = self.dictionary.shape[-2], self.dictionary.shape[:-2]
        old = self.mask if self.mask is not None else point.new_ones(*batch, m, dtype=torch.bool)
        dictionary = torch.cat([self.dictionary, x], dim=-2)
        if self.root.pseudo is not None:
            kept = torch.ones_like(old[..., :1])
            return Nystrom(self.kernel, dictionary, torch.cat([old, kept], -1), floor=self.floor), kept.squeeze(-1)
        column = self.columns(x).squeeze(-1).detach()
        factor, kept = append_row(self.root.factor, column, self.diagonal(x).squeeze(-1).detach(), self.floor)
        mask = torch.cat([old.expand(*kept.shape, -1), kept.unsqueeze(-1)], dim=-1)
        root = InverseRoot(factor, None, torch.zeros_like(kept))
        return Nystrom.of(self.kernel, dictionary, mask, self.floor, root), kept
