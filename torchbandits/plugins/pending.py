"""Picks of arms that are evaluated already, which a policy that pulls an arm once at a time does not make."""

from __future__ import annotations

import torch
from torch import Tensor

from torchbandits.bandit import Bandit


def least_pending(bandit: Bandit, offered: Tensor) -> int:
    """Of the arms on offer, `A` booleans with at least one, the first of those with the fewest open picks. Arms of equal
    features share their picks. Cost O(A)."""
    opened, first = bandit.loop.open, bandit.loop.state.rows.first
    label = torch.arange(len(offered)) if first is None else first.cpu()
    times = torch.zeros(len(offered), dtype=torch.int64)
    if opened is not None:
        # Several objectives share the picks.
        index, mask = (part.reshape(-1, part.shape[-1])[0].cpu() for part in (opened.index, opened.mask))
        times = torch.bincount(label[index[mask]], minlength=len(offered))[label]
    return int(times.masked_fill(~offered, torch.iinfo(torch.int64).max).argmin())
