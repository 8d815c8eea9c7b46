"""Posterior of a partitioned process at arbitrary points, which need not be arms, from the cells that contain them."""

from __future__ import annotations

import torch
from torch import Tensor

from torchbandits.kernels import kernel_diagonal, kernel_matrix
from torchbandits.posteriors.cells import ARM, COORDS, LEVEL, SIZE, WEIGHT, Cells
from torchbandits.posteriors.domain import Domain
from torchbandits.posteriors.grouping import chunks, lines_of
from torchbandits.posteriors.regression import Conditioning
from torchbandits.types import PerPoint, Points


def first_true(mask: Tensor) -> Tensor:
    """Positions of the True entries of each line in order, `k x most` with the largest count `most`. Shorter lines are padded
    with positions of False entries."""
    return mask.byte().argsort(dim=-1, descending=True, stable=True)[:, : int(mask.sum(dim=-1).max())]


def marginals_around(
    domain: Domain, cells: Cells, regularization: float, x: Points, pending: Points, counts: PerPoint
) -> tuple[Tensor, Tensor]:
    """Mean and leverage at points (`batch_shape x n x d`), each from the cell of smallest variance among those that contain it.

    `counts` pulls of the `pending` points (`batch_shape x p x d`) shrink the leverage. A point that no cell contains gets the
    prior.
    """
    leverage = (kernel_diagonal(domain.kernel, x) / regularization).expand(x.shape[:-1]).reshape(-1)
    shape, row = x.shape[:-1], torch.arange(domain.rows, device=x.device)
    x, mean = x.reshape(-1, domain.dim), torch.zeros_like(leverage)
    point, cell = _locate(domain, cells, x, row.repeat_interleave(shape[-1]))
    if point.numel():
        p = pending.reshape(-1, domain.dim)
        where, around = _locate(domain, cells, p, row.repeat_interleave(counts.shape[-1]))
        waiting = (p[where], around, counts.reshape(-1)[where])
        mu, lev = _in_cells(domain, cells, regularization, x[point], cell, waiting)
        # Sorted by point and then by leverage, the first pair of each point is its cell of smallest variance.
        order = lev.detach().argsort(stable=True)
        order = order[point[order].argsort(stable=True)]
        heads = torch.ones_like(order, dtype=torch.bool)
        heads[1:] = point[order][1:] != point[order][:-1]
        best = order[heads]
        mean = mean.index_put((point[best],), mu[best])
        leverage = leverage.index_put((point[best],), lev[best])
    return mean.reshape(shape), leverage.reshape(shape)


@torch.no_grad()
def _locate(domain: Domain, cells: Cells, x: Points, row: Tensor) -> tuple[Tensor, Tensor]:
    """Point and cell index of every pair of a point (`n x d`, in batch rows `row`, `n`) and a cell that contains it.

    Cost O((n + C) d log(n + C)) per level.
    """
    layout, C, cover = cells.flat("layout"), cells.layout.shape[-1], domain.cover
    live, scaled = (layout[SIZE] > 0).nonzero().squeeze(-1), cover.scaled(x, row)
    points, around = [live[:0]], [live[:0]]
    for level in layout[LEVEL, live].unique().tolist():
        own = live[layout[LEVEL, live] == level]
        low = torch.zeros_like(scaled, dtype=torch.int64)
        point, coords = cover.touching(scaled, torch.full_like(row, level), low, low + (cover.cells_a_side * 2**level - 1))
        sought = torch.cat([row[point].unsqueeze(-1), coords], dim=-1)
        there = torch.cat([(own // C).unsqueeze(-1), layout[COORDS:, own].T], dim=-1)
        inverse = torch.unique(torch.cat([there, sought]), dim=0, return_inverse=True)[1]
        found = torch.full_like(inverse, -1)
        found[inverse[: own.shape[0]]] = own
        found = found[inverse[own.shape[0] :]]
        points.append(point[found >= 0])
        around.append(found[found >= 0])
    return torch.cat(points), torch.cat(around)


def _in_cells(
    domain: Domain, cells: Cells, lam: float, x: Points, cell: Tensor, waiting: tuple[Tensor, Tensor, Tensor]
) -> tuple[Tensor, Tensor]:
    """Mean and leverage of points (`n x d`), each in a cell (`n`), given pending points (`m x d`), their cells and counts."""
    which, group = torch.unique(cell, return_inverse=True)
    lines = lines_of(group, which.shape[0])
    pending, around, counts = waiting
    own = torch.searchsorted(which, around).clamp_max(which.shape[0] - 1)
    known = which[own] == around
    pending, counts, waits = pending[known], counts[known], lines_of(own[known], which.shape[0])
    numbers, mean, leverage = cells.flat("numbers"), x.new_zeros(x.shape[0]), x.new_zeros(x.shape[0])
    pulled = numbers[WEIGHT, cells.flat_entries(which)[0]] > 0
    for part in chunks((lines >= 0).sum(-1) + (waits >= 0).sum(-1) + pulled.sum(-1)):
        line, wait, row = lines[part], waits[part], which[part] // cells.layout.shape[-1]
        u = cells.flat_entries(which[part])[0]
        u = u.gather(1, first_true(pulled[part])[:, : u.shape[-1]])
        _, _, weight, total = numbers[:, u]
        data = domain.points(row.unsqueeze(-1), cells.flat("members")[ARM, u].clamp_min(0))
        extra = torch.where(wait >= 0, counts[wait], 0.0) if wait.numel() else weight[:, :0]
        data = torch.cat([data, pending[wait]], dim=-2) if wait.numel() else data
        kernel, inside = domain.kernel_of(row), line >= 0
        K = kernel_matrix(kernel, data, torch.cat([data, x[line]], dim=-2)) / lam
        own_block, cross = K[..., : data.shape[-2]], K[..., data.shape[-2] :]
        told = Conditioning.on(own_block, torch.cat([weight, torch.zeros_like(extra)], dim=-1))
        sums = torch.cat([total, torch.zeros_like(extra)], dim=-1).unsqueeze(-1)
        G = told.directions(cross)
        mu = (G.mT @ told.innovations(sums, torch.zeros_like(sums))).squeeze(-1)
        if extra.shape[-1]:
            G = Conditioning.on(own_block, torch.cat([weight, extra], dim=-1)).directions(cross)
        lev = (kernel_diagonal(kernel, x[line]) / lam - G.square().sum(dim=-2)).clamp_min(0)
        mean = mean.index_put((line[inside],), mu[inside])
        leverage = leverage.index_put((line[inside],), lev[inside])
    return mean, leverage
