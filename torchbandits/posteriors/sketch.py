"""A frequent-directions sketch of the pulled features: few rows S whose SᵀS approximates Σ n z zᵀ from below."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from torchbandits.buffered import Buffered
from torchbandits.linalg import LowRankPrecision
from torchbandits.types import PerPoint, Rect


class Sketch(Buffered):
    r"""Rows S that replace a matrix A with AᵀA = Σ n z zᵀ which is too tall to keep, such that

    .. math:: 0 \preceq A^T A - S^T S \preceq \rho I, \quad \rho \le \min_{k \le m} |A - A_k|_F^2 / (m + 1 - k)

    with A_k the best approximation of rank k. The buffer has 2m rows. When it is full, its squared singular values are lowered
    by the (m+1)-th, which adds this value to ρ and leaves m rows. The sketch is exact while the rank is at most m.

    Args:
        size: m.
        num_features: Number of features of z.
        batch_shape: Leading dimensions; each batch row fills and shrinks by itself.
        device: Device of the buffers, which are float64.

    Buffers: `rows` `batch_shape x 2m x num_features`, `used` `batch_shape`, `loss` `batch_shape`: ρ, in squared units of the
    features. Buffers are replaced, never written in place.

    Source: Liberty 2013; Ghashami et al. 2016, in the form that shrinks every m rows.
    """

    rows: Tensor
    used: Tensor
    loss: Tensor

    def __init__(
        self, size: int, num_features: int, batch_shape: torch.Size | tuple[int, ...] = (), device: torch.device | None = None
    ) -> None:
        super().__init__()
        self.size = size
        rows = torch.zeros(*batch_shape, 2 * size, num_features, dtype=torch.float64, device=device)
        self.register_buffer("rows", rows)
        self.register_buffer("used", torch.zeros(batch_shape, dtype=torch.int64, device=device))
        self.register_buffer("loss", torch.zeros(batch_shape, dtype=torch.float64, device=device))

    def add_(self, features: Rect, weights: PerPoint) -> Sketch:
        """Add √n z for each point in turn, `batch_shape x num_features x p` with `batch_shape x p` weights n ≥ 0 (0 adds no
        row). Cost O(p m num_features)."""
        new = (features * weights.clamp_min(0).sqrt().unsqueeze(-2)).mT
        # Rows of positive weight come first, so that each round fills the buffer of a batch row or takes all of its remaining
        # rows.
        order = (weights <= 0).byte().argsort(dim=-1, stable=True)
        new = new.gather(-2, order.unsqueeze(-1).expand(new.shape))
        left, taken = (weights > 0).sum(dim=-1), torch.zeros_like(self.used)
        slot = torch.arange(2 * self.size, device=self.used.device)
        while bool((left > 0).any()):
            take = torch.minimum(left, 2 * self.size - self.used)
            place = slot - self.used.unsqueeze(-1)
            filled = (place >= 0) & (place < take.unsqueeze(-1))
            source = torch.where(filled, place + taken.unsqueeze(-1), 0).unsqueeze(-1)
            rows = torch.where(filled.unsqueeze(-1), new.gather(-2, source.expand_as(self.rows)), self.rows)
            self.rows, self.used = rows, self.used + take
            left, taken = left - take, taken + take
            self._shrink_(self.used == 2 * self.size)
        return self

    def precision(self, regularization: float) -> LowRankPrecision:
        """V̂ = SᵀS + λI. Cost O(m² (num_features + m))."""
        return LowRankPrecision(self.rows, regularization)

    def _shrink_(self, full: Tensor) -> None:
        """Lower the squared singular values of the marked batch rows by their (m+1)-th."""
        if not bool(full.any()):
            return
        m = self.size
        _, values, directions = torch.linalg.svd(self.rows[full], full_matrices=False)
        squares = values.square()
        # Subtracting σ²_{m+1} from every squared singular value leaves at most m rows, and adds σ²_{m+1} to ρ.
        lost = squares[..., m] if squares.shape[-1] > m else torch.zeros_like(squares[..., 0])
        kept = (squares[..., :m] - lost.unsqueeze(-1)).clamp_min(0).sqrt().unsqueeze(-1) * directions[..., :m, :]
        shrunk = nn.functional.pad(kept, (0, 0, 0, 2 * m - kept.shape[-2]))
        self.rows = self.rows.masked_scatter(full[..., None, None], shrunk)
        self.loss = self.loss.masked_scatter(full, self.loss[full] + lost)
        self.used = torch.where(full, m, self.used)
