"""The expected improvement of the hypervolume, in closed form for outcomes that are independent."""

from __future__ import annotations

from math import pi, sqrt

import torch
from torch import Tensor

from torchbandits.upstream import log_improvement

# Largest size of a block, arms times edges of cells.
_BLOCK = 1 << 22
# Below it the improvement is computed in logarithms, which takes four times as long.
_SMALL = 1e-280


def log_hypervolume_improvement(mean: Tensor, std: Tensor, front: Tensor, reference: Tensor) -> Tensor:
    r"""Logarithm of the expected growth of the hypervolume of a front by one more point y, `A`, larger being better.

    The region that the front does not dominate, above the reference point, is a union of cells from l to u, and for independent
    normal outcomes y_j

    .. math:: \mathrm{EHVI} = \sum_{\text{cells}} \prod_j \big(\psi_j(l_j) - \psi_j(u_j)\big), \qquad
        \psi_j(c) = \mathbb E[\max(y_j - c, 0)]

    Args:
        mean, std: `A x m`, of every arm.
        front: `f x m`, points; those that do not exceed the reference point, or are dominated, change nothing.
        reference: `m`.

    Cost: O(A) per edge of a cell and outcome, and O(A m) per cell, of which there are f + 1 for two outcomes. Source: Emmerich
    et al. 2011; Yang et al. 2019 and Lacour et al. 2017 for the cells, which are BoTorch's; Ament et al. 2023 for logarithms.
    """
    lower, upper = _cells(front.double(), reference.double())
    edges, places = [], []
    for low, high in zip(lower.unbind(dim=-1), upper.unbind(dim=-1), strict=True):
        own, place = torch.cat([low, high]).unique(return_inverse=True)
        edges.append(own)
        places.append(place.reshape(2, -1))
    most = max(1, _BLOCK // (sum(len(own) for own in edges) + len(lower)))
    parts = [
        _of_block(mu, sigma.clamp_min(1e-150), edges, places)
        for mu, sigma in zip(mean.split(most), std.split(most), strict=True)
    ]
    return torch.cat(parts)


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


def _of_block(mean: Tensor, std: Tensor, edges: list[Tensor], places: list[Tensor]) -> Tensor:
    """`log_hypervolume_improvement` of some arms."""
    total: Tensor | None = None
    for j, (own, (low, high)) in enumerate(zip(edges, places, strict=True)):
        z = (mean[:, j, None] - own) / std[:, j, None]
        # `torch.special.ndtr` has no digits left below −8.
        below = 0.5 * torch.special.erfc(-z / sqrt(2))
        beyond = std[:, j, None] * ((-0.5 * z.square()).exp() / sqrt(2 * pi) + z * below)
        beyond = torch.where(own == torch.inf, 0.0, beyond)
        part = (beyond[:, low] - beyond[:, high]).clamp_min(0)
        total = part if total is None else total * part
    assert total is not None
    value = total.sum(dim=-1)
    small = (value < _SMALL).nonzero().squeeze(-1)
    value = value.log()
    if small.numel():
        value[small] = _in_logarithms(mean[small], std[small], edges, places)
    return value


def _in_logarithms(mean: Tensor, std: Tensor, edges: list[Tensor], places: list[Tensor]) -> Tensor:
    """`log_hypervolume_improvement` of arms whose improvement underflows."""
    total: Tensor | None = None
    for j, (own, (low, high)) in enumerate(zip(edges, places, strict=True)):
        sigma = std[:, j, None]
        z = ((mean[:, j, None] - own) / sigma).clamp_min(-1e100)
        beyond = torch.where(own == torch.inf, -torch.inf, log_improvement(z) + sigma.log())
        first, second = beyond[:, low], beyond[:, high]
        part = first + torch.log1p(-(second - first).clamp_max(0).exp())
        total = part if total is None else total + part
    assert total is not None
    return total.logsumexp(dim=-1)
