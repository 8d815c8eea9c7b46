"""Features of every arm under a finite embedding, in the role that kernel columns have for a Nyström posterior."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from torchbandits.arms.rows import ArmRows
from torchbandits.embeddings import Linear
from torchbandits.errors import ArgumentError
from torchbandits.posteriors import GaussianProcess
from torchbandits.types import Picks

# Size of a block of features that stays in cache while it is multiplied and squared.
_CHUNK_BYTES = 8 << 20
# The same on a GPU, where kernel launches should be few and large.
_DEVICE_BYTES = 256 << 20


class ArmFeatures:
    """z(x) of every arm, `batch_shape x m x A`, in the arms' dtype, for a posterior with a fixed finite embedding.

    If the features are the points themselves, nothing is stored.

    Args:
        rows: The arms.
        posterior: Owner of the embedding.
        memory_budget: Bytes that the features may occupy.

    Raises:
        ArgumentError: If the features do not fit the budget. The message names the number of features that would fit.
    """

    def __init__(self, rows: ArmRows, posterior: GaussianProcess, memory_budget: int) -> None:
        self._rows, self._posterior = rows, posterior
        assert posterior.finite is not None
        self._embedding = embedding = posterior.finite
        arms = rows.arms
        self._plain = isinstance(embedding, Linear) and embedding.projection is None
        one = posterior.batch_shape.numel() * rows.num_arms * arms.element_size()
        size = one * embedding.num_features
        if size > memory_budget and not self._plain:
            fitting = memory_budget // one // 2 * 2
            raise ArgumentError(
                f"{embedding.num_features} features of {rows.num_arms} arms take {size / 2**30:.3g} GiB, over the budget of "
                f"{memory_budget / 2**30:.3g} GiB: pass memory_budget={size} or more"
                f"{f', or at most {fitting} random features' if fitting else ''}."
            )
        self._features: Tensor | None = None

    @property
    def diagonal(self) -> Tensor:
        """|z(x)|² of every arm, `A` or `batch_shape x A`, float64, computed in chunks. Cost O(A m d)."""
        parts = self._rows.arms.split(self._step(self.num_features), dim=-2)
        return torch.cat([self._embedding.diagonal(part).double() for part in parts], dim=-1)

    @property
    def num_features(self) -> int:
        """Number of features, m."""
        return self._embedding.num_features

    def _step(self, numbers: int) -> int:
        """Number of arms per chunk, for `numbers` values per arm."""
        wanted = _CHUNK_BYTES if self._rows.source.device.type == "cpu" else _DEVICE_BYTES
        return max(256, wanted // (8 * max(1, numbers)))

    def all(self) -> Tensor:
        """The features of every arm, computed once. Cost O(A m d)."""
        if self._features is None:
            embedding, arms = self._embedding, self._rows.arms
            shape = (*self._posterior.batch_shape, embedding.num_features, self._rows.num_arms)
            if self._plain:
                return arms.mT.expand(shape)
            features = arms.new_empty(shape)
            step = self._step(features[..., 0].numel())
            for start in range(0, shape[-1], step):
                part = slice(start, start + step)
                features[..., part] = embedding(arms[..., part, :])
            self._features = features
        return self._features

    def at(self, index: Picks) -> Tensor:
        """Features of arms (`batch_shape x p`), `batch_shape x m x p`, float64; of arm 0 where the index is −1."""
        return self.at_slots(index.clamp_min(0))

    def at_slots(self, slot: Picks) -> Tensor:
        """Features of arms at `slot` ≥ 0, `batch_shape x m x p`, float64."""
        features = self.all()
        return features.gather(-1, slot.unsqueeze(-2).expand(*features.shape[:-1], slot.shape[-1])).double()

    def products(self, weights: Tensor) -> Iterator[tuple[slice, Tensor]]:
        """`weights` (`batch_shape x r x m`) times the features, in chunks of arms. Cost O(A m r)."""
        features, A = self.all(), self._rows.num_arms
        weights = weights.to(features.dtype)
        step = self._step(features[..., 0].numel())
        for start in range(0, A, step):
            part = slice(start, min(start + step, A))
            yield part, weights @ features[..., part]

    def times(self, weights: Tensor) -> Tensor:
        """`weights` (`batch_shape x r x m`) times the features, `batch_shape x r x A`."""
        products = [product for _, product in self.products(weights)]
        return products[0] if len(products) == 1 else torch.cat(products, dim=-1)

    def forget(self) -> None:
        """Drop the features, which are recomputed when needed."""
        self._features = None
