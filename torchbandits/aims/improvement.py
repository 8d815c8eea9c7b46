"""The expected improvement of the hypervolume, in closed form for outcomes that are independent."""

from __future__ import annotations

from math import log, pi, sqrt

import torch
from torch import Tensor

from torchbandits.upstream import log_improvement

# Largest size of a block, arms times edges or cells: on the host for each thread, so that its temporaries stay in cache.
_BLOCK, _BLOCK_ON_DEVICE = 1 << 17, 1 << 22
# Below it the improvement is computed in logarithms, which takes many times as long.
_SMALL = 1e-280


class HypervolumeGrowth:
    r"""Logarithm of the expected growth of the hypervolume of a front by one more point y, larger being better.

    The region that the front does not dominate, above the reference point, is a union of cells from l to u, and for independent
    normal outcomes y_j

    .. math:: \mathrm{EHVI} = \sum_{\text{cells}} \prod_j \big(\psi_j(l_j) - \psi_j(u_j)\big), \qquad
        \psi_j(c) = \mathbb E[\max(y_j - c, 0)]

    Args:
        front: `f x m`, points; those that do not exceed the reference point, or are dominated, change nothing.
        reference: `m`.

    Source: Emmerich et al. 2011; Yang et al. 2019 and Lacour et al. 2017 for the cells, which are BoTorch's; Ament et al. 2023
    for logarithms.
    """

    def __init__(self, front: Tensor, reference: Tensor) -> None:
        lower, upper = _cells(front.double(), reference.double())
        # Each outcome has fewer edges than cells have corners.
        self._edges, self._places = [], []
        for low, high in zip(lower.unbind(dim=-1), upper.unbind(dim=-1), strict=True):
            edges, place = torch.cat([low, high]).unique(return_inverse=True)
            # ψ is 0 at an edge at ∞, which is the last.
            self._edges.append((edges[: int((edges < torch.inf).sum())].unsqueeze(-1), len(edges)))
            self._places.append(place.reshape(2, -1))
        self._most = max(len(lower), *(count for _, count in self._edges))

    def __call__(self, mean: Tensor, std: Tensor) -> Tensor:
        """The logarithm for every arm, `A`, from mean and standard deviation of each outcome, `A x m`.

        Cost: O(A) per edge of a cell and outcome, and O(A m) per cell, of which there are f + 1 for two outcomes.
        """
        found, small = self.bounds(mean, std)
        place = small.nonzero().squeeze(-1)
        if len(place):
            found[place] = self.in_logarithms(mean[place], std[place])
        return found

    def bounds(self, mean: Tensor, std: Tensor) -> tuple[Tensor, Tensor]:
        """The logarithms, and which of them are upper bounds because the growth is below 1e-280, `A` each: a fraction of the
        cost where most are."""
        block = _BLOCK * torch.get_num_threads() if mean.device.type == "cpu" else _BLOCK_ON_DEVICE
        most, growth = max(1, block // self._most), mean.new_empty(len(mean))
        # Outcomes first, so that each operation is on consecutive arms.
        parts = (own.mT.contiguous().split(most, dim=-1) for own in (mean, _positive(std)))
        for place, mu, sigma in zip(growth.split(most), *parts, strict=True):
            total: Tensor | None = None
            for j, (low, high) in enumerate(self._places):
                beyond = self._beyond(j, mu[j], sigma[j])
                part = (beyond[low] - beyond[high]).clamp_min_(0)
                total = part if total is None else total.mul_(part)
            assert total is not None
            torch.sum(total, dim=0, out=place)
        small = growth < _SMALL
        return growth.log_().masked_fill_(small, log(_SMALL)), small

    def _beyond(self, j: int, mean: Tensor, std: Tensor) -> Tensor:
        """ψ_j at the edges of outcome j, `edges x A`."""
        edges, count = self._edges[j]
        beyond = mean.new_zeros(count, len(mean))
        z = (mean - edges).div_(std)
        density = z.square().mul_(-0.5).exp_().div_(sqrt(2 * pi))
        # `torch.special.ndtr` has no digits left below −8.
        below = z.div(-sqrt(2)).erfc_().mul_(0.5)
        torch.addcmul(density, z, below, out=beyond[: len(edges)])
        beyond[: len(edges)] *= std
        return beyond

    def in_logarithms(self, mean: Tensor, std: Tensor) -> Tensor:
        """The logarithms where the growth underflows, `A`; arguments as above."""
        total: Tensor | None = None
        sigma = _positive(std)
        for j, (low, high) in enumerate(self._places):
            edges, count = self._edges[j]
            z = ((mean[:, j] - edges) / sigma[:, j]).clamp_min(-1e100)
            beyond = mean.new_full((count, len(mean)), -torch.inf)
            beyond[: len(edges)] = log_improvement(z) + sigma[:, j].log()
            first, second = beyond[low], beyond[high]
            part = first + torch.log1p(-(second - first).clamp_max(0).exp())
            total = part if total is None else total + part
        assert total is not None
        return total.logsumexp(dim=0)


def _positive(std: Tensor) -> Tensor:
    return std.clamp_min(1e-150)


def _cells(front: Tensor, reference: Tensor) -> tuple[Tensor, Tensor]:
    """Lower and upper corners of the cells, `c x m` each; ∞ where a cell has no end."""
    from botorch.utils.multi_objective.box_decompositions import (  # noqa: PLC0415 - BoTorch takes a second to load
        FastNondominatedPartitioning,
    )

    if len(reference) == 1:
        low = torch.cat([front, reference.unsqueeze(0)]).amax(dim=0, keepdim=True)
        return low, torch.full_like(low, torch.inf)
    corners = FastNondominatedPartitioning(reference, front).get_hypercell_bounds()
    return corners[0], corners[1]
