"""Random features of the Tanimoto kernel: the sign of the smallest of random numbers, one number per unit of each count."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from torchbandits.embeddings.base import FiniteEmbedding
from torchbandits.errors import ArgumentError, UnsupportedError
from torchbandits.shapes import broadcast_shapes
from torchbandits.types import Arms, Points

# Most bytes of the random numbers of one batch row, and of those gathered at once.
_MOST_BYTES, _GATHERED = 1 << 30, 1 << 26
_FAR = torch.iinfo(torch.int64).max


class MinHash(FiniteEmbedding):
    r"""Features whose products are the Tanimoto kernel in expectation, for bits and for counts up to the largest of the arms.

    A fingerprint is the set of its units (i, j), j = 1 … x_i. Each feature draws a number v for every possible unit:

    .. math:: z_f(x) = \sqrt{s / m} \, \xi_f(h_f(x)), \quad h_f(x) = \arg\min_{(i, j) \in x} v_{f, i, j}

    where ξ are random signs. The smallest number among the units of x or y belongs to a common unit with probability
    Σ min / Σ max, so that h_f(x) = h_f(y) with probability k(x, y)/s; otherwise the two signs are independent. Hence
    E z(x)ᵀz(y) = k(x, y), with variance (s² − k²)/m. |z(x)|² is s exactly. An empty fingerprint has its own random sign.

    Source: Broder 1997 for the hash; Tripp et al. 2023 for the random features.

    Args:
        numbers: `batch_shape x d x c x m` int64, the smallest of the numbers of the first 1 … c units of each count; the last
            bit of a number is its sign.
        empty: `batch_shape x m`, signs of the empty fingerprint, ±1.
        outputscale: `batch_shape`, s.
    """

    numbers: Tensor
    empty: Tensor
    outputscale: Tensor

    def __init__(self, numbers: Tensor, empty: Tensor, outputscale: Tensor) -> None:
        super().__init__()
        for name, buffer in (("numbers", numbers), ("empty", empty), ("outputscale", outputscale)):
            self.register_buffer(name, buffer)

    @staticmethod
    def draw(
        outputscale: Tensor, num_features: int, arms: Arms, generators: Sequence[torch.Generator], batch_shape: torch.Size
    ) -> MinHash:
        """Draw the numbers of each batch row, on the CPU in a fixed order.

        Raises:
            UnsupportedError: If the arms are neither bits nor counts.
            ArgumentError: If there would be too many numbers.
        """
        if not bool(((arms >= 0) & (arms == arms.round())).all()):
            raise UnsupportedError(
                "random features of the Tanimoto kernel are for fingerprints of bits or counts, and the arms hold other "
                "numbers: use embedding='nystrom'."
            )
        units, dim = max(1, int(arms.max())), arms.shape[-1]
        size = 8 * dim * units * num_features
        if size > _MOST_BYTES:
            raise ArgumentError(
                f"{num_features} random features of {dim} counts of up to {units} take {size / 2**30:.3g} GiB of random "
                f"numbers, over {_MOST_BYTES / 2**30:g} GiB: use at most {_MOST_BYTES // (8 * dim * units) // 2 * 2} features, "
                "bits instead of counts, or embedding='nystrom'."
            )
        numbers, empty = [], []
        for generator in generators:
            drawn = torch.randint(_FAR, (dim, units, num_features), generator=generator, dtype=torch.int64)
            numbers.append(drawn.cummin(dim=1).values)
            empty.append(1 - 2 * torch.randint(2, (num_features,), generator=generator))
        whole, signs = (torch.stack(part).reshape(*batch_shape, *part[0].shape).to(arms.device) for part in (numbers, empty))
        return MinHash(whole, signs, outputscale.double().to(arms.device).expand(batch_shape).clone())

    @property
    def num_features(self) -> int:
        """Number of features m."""
        return self.empty.shape[-1]

    def __call__(self, points: Points) -> Tensor:
        """Features, `batch_shape x m x n`, float64. Cost O(m) per nonzero count of a point."""
        shape = broadcast_shapes(points.shape[:-2], self.outputscale.shape)
        x, (n, d) = points.expand(*shape, *points.shape[-2:]), points.shape[-2:]
        c, m = self.numbers.shape[-2:]
        lines = []
        rows = zip(
            x.reshape(shape.numel(), n, d),
            self.numbers.expand(*shape, d, c, m).reshape(-1, d * c, m),
            self.empty.expand(*shape, m).reshape(-1, m),
            self.outputscale.expand(shape).reshape(-1),
            strict=True,
        )
        for own, numbers, empty, scale in rows:
            signs = torch.empty(n, m, dtype=torch.float64, device=points.device)
            most = int((own > 0).sum(dim=-1).max()) if n else 0
            step = max(1, _GATHERED // (8 * m * max(1, most)))
            for start in range(0, n, step):
                signs[start : start + step] = _signs(own[start : start + step], numbers, empty, c)
            lines.append(signs.mT * (scale / m).sqrt())
        return torch.stack(lines).reshape(*shape, m, n) if lines else points.new_zeros(*shape, m, n)

    def diagonal(self, points: Points) -> Tensor:
        """k(x, x) = s, `batch_shape x n`."""
        shape = broadcast_shapes(points.shape[:-2], self.outputscale.shape)
        return self.outputscale.unsqueeze(-1).expand(*shape, points.shape[-2])

    def holds_at(self, points: Points) -> bool:
        """Whether the points hold counts that are at most the largest count of the arms."""
        return bool(((points >= 0) & (points <= self.numbers.shape[-2]) & (points == points.round())).all())


def _signs(points: Tensor, numbers: Tensor, empty: Tensor, units: int) -> Tensor:
    """Signs ±1, `n x m`, for points `n x d` and numbers `d·c x m`."""
    count = (points > 0).sum(dim=-1)
    most = int(count.max()) if len(points) else 0
    # Indices of the nonzero counts of each point. Where other points have more, the last index is repeated.
    feature = (points > 0).byte().argsort(dim=-1, descending=True, stable=True)[:, : max(1, most)]
    place = torch.minimum(torch.arange(feature.shape[-1], device=points.device), count.clamp_min(1).unsqueeze(-1) - 1)
    feature = feature.gather(-1, place)
    row = feature * units + points.gather(-1, feature).long().clamp(1, units) - 1
    smallest = numbers[row].amin(dim=1)
    return torch.where((count > 0).unsqueeze(-1), 1 - 2 * (smallest & 1), empty).double()
