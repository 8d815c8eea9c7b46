"""Bits and small counts packed into 64-bit words: a fingerprint of 2,048 bits takes 256 bytes instead of 16 KiB."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from torchbandits.types import Arms

# The bits of a byte in the order of `numpy.packbits`, the highest first.
_MASKS = (128, 64, 32, 16, 8, 4, 2, 1)


@dataclass(frozen=True)
class Packing:
    """Layout of points of whole numbers as rows of words, padded with zeros.

    Attributes:
        dim: d, the number of features.
        counts: Whether features are counts of 0 … 255, a byte each; otherwise they are bits of 0 or 1, eight to a byte in the
            order of `numpy.packbits`.
    """

    dim: int
    counts: bool = False

    @property
    def num_bytes(self) -> int:
        """Bytes of a point without padding."""
        return self.dim if self.counts else -(-self.dim // 8)

    @property
    def num_words(self) -> int:
        """w, words of a point."""
        return -(-self.num_bytes // 8)

    def words(self, rows: Tensor) -> Tensor:
        """Rows of bytes, `... x num_bytes` uint8, as words, `... x w` int64; a view where rows need no padding."""
        if not rows.numel():
            # Not a view, because an empty tensor may have arbitrary strides.
            return rows.new_zeros((*rows.shape[:-1], self.num_words), dtype=torch.int64)
        spare = 8 * self.num_words - rows.shape[-1]
        padded = torch.nn.functional.pad(rows, (0, spare)) if spare else rows.contiguous()
        if padded.data_ptr() % 8:
            padded = padded.clone()
        return padded.view(torch.int64)

    def pack(self, points: Tensor) -> Tensor:
        """Words from points, `... x w` int64 for `... x d`. Every feature must be a bit or a count, see `holds`."""
        values = points.to(torch.uint8)
        if not self.counts:
            grouped = torch.nn.functional.pad(values, (0, 8 * self.num_bytes - self.dim)).unflatten(-1, (-1, 8))
            values = (grouped * torch.tensor(_MASKS, dtype=torch.uint8, device=points.device)).sum(dim=-1, dtype=torch.uint8)
        return self.words(values)

    def holds(self, points: Tensor) -> Tensor:
        """Whether all features of a point are bits, or counts of 0 … 255 with `counts`; booleans `...` for `... x d`."""
        whole = (points >= 0) & (points <= (255 if self.counts else 1)) & (points == points.round())
        return whole.all(dim=-1)

    def unpack(self, words: Tensor, dtype: torch.dtype) -> Arms:
        """Points from words, `... x d` for `... x w`."""
        rows = words.contiguous().view(torch.uint8)
        if not self.counts:
            rows = (rows.unsqueeze(-1) & torch.tensor(_MASKS, dtype=torch.uint8, device=rows.device)).ne(0).flatten(-2)
        return rows[..., : self.dim].to(dtype)
