"""The in-batch loop on a few leaders: compiled where numba is installed, with the same picks in NumPy or torch elsewhere."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from torchbandits.arms.ties import BROKEN, EXHAUSTED, FULL, REFRESH, TIE


def pick_leaders_batched(
    mean: Tensor,
    leverage: Tensor,
    covariance: Tensor,
    scale: Tensor,
    gain: Tensor,
    dynamic: bool,
    spent: Tensor,
    budget: Tensor,
    outside: Tensor,
    remaining: Tensor,
    room: Tensor,
    first: Tensor,
    picks: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Batched `compiled.pick_leaders` for all rows at once, on any device: one sequence of kernels per pick, and one copy to
    the host every 32 picks. Shapes are the same with a leading batch dimension; `picks` is `batch x most`."""
    k = mean.shape[-1]
    own = torch.arange(k, device=mean.device)
    n = torch.zeros_like(remaining)
    why = torch.full_like(remaining, FULL)
    live = remaining > 0
    for step in range(picks.shape[-1]):
        if step % 32 == 0 and not bool(live.any()):
            break
        score = (mean + scale * leverage.clamp_min(0).sqrt()).masked_fill(room <= 0, -torch.inf)
        best = score.amax(dim=-1)
        band = best - TIE * best.abs()
        j = (score >= band.unsqueeze(-1)).byte().argmax(dim=-1)
        j = torch.where(first >= 0, first, j)
        stale = live & (first < 0) & (~(band > outside) | (best == -torch.inf))
        why = torch.where(stale, REFRESH, why)
        live = live & ~stale
        first = torch.full_like(first, -1)
        picks[:, step] = torch.where(live, j, -1)
        n = n + live
        chosen = (own == j.unsqueeze(-1)) & live.unsqueeze(-1)
        room -= chosen.long()
        at = j.unsqueeze(-1)
        before = leverage.gather(-1, at).squeeze(-1)
        spends = before.clamp_min(0).log1p() if dynamic else gain.gather(-1, at).squeeze(-1)
        spent = torch.where(live, spent + spends, spent)
        # A pick of arm j changes leverages by −c²/(1 + c_j) and covariances by −ccᵀ/(1 + c_j), where c is column j.
        column = covariance.gather(-2, at.unsqueeze(-1).expand(-1, -1, k)).squeeze(-2)
        shrink = (1.0 / (1.0 + column.gather(-1, at))) * live.unsqueeze(-1)
        leverage -= column * column * shrink
        covariance -= (column * shrink).unsqueeze(-1) * column.unsqueeze(-2)
        exhausted, broken = live & (before <= 0), live & (spent > budget)
        why = torch.where(exhausted, EXHAUSTED, torch.where(broken, BROKEN, why))
        live = live & ~broken & ~exhausted & (n < remaining)
    return n, spent, why


def pick_rows(*, on_host: bool, picks: Tensor, **arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Run the loop on every batch row: row by row in compiled code on the host, batched on a device."""
    if not on_host:
        return pick_leaders_batched(picks=picks, **arguments)
    from torchbandits.arms.compiled import pick_leaders  # noqa: PLC0415 - numba takes half a second to load

    dynamic = arguments.pop("dynamic")
    arrays = {name: value.numpy() for name, value in arguments.items()}
    out = picks.numpy()
    ends = []
    for row in range(out.shape[0]):
        a = {name: value[row] for name, value in arrays.items()}
        ends.append(
            pick_leaders(
                a["mean"],
                a["leverage"],
                a["covariance"],
                a["scale"],
                a["gain"],
                dynamic,
                float(a["spent"]),
                float(a["budget"]),
                float(a["outside"]),
                int(a["remaining"]),
                a["room"],
                int(a["first"]),
                out[row],
            )
        )
    n, spent, why = zip(*ends, strict=True)
    return torch.tensor(n), torch.tensor(spent, dtype=torch.float64), torch.tensor(why)


def warm_up() -> None:
    """Compile what is compiled where numba is installed, so that compilation is not part of the first timed run."""
    from torchbandits.linalg.compiled import compile_all  # noqa: PLC0415 - numba takes half a second to load

    compile_all()
    one = torch.ones(1, 1, dtype=torch.float64)
    row, whole = one[0].clone(), torch.ones(1, dtype=torch.int64)
    pick_rows(
        on_host=True,
        picks=torch.full((1, 1), -1),
        mean=one.clone(),
        leverage=one.clone(),
        covariance=one.clone().unsqueeze(0),
        scale=one.clone(),
        gain=one.clone(),
        dynamic=False,
        spent=row,
        budget=row.clone(),
        outside=-row,
        remaining=whole,
        room=torch.ones(1, 1, dtype=torch.int64),
        first=-whole,
    )
