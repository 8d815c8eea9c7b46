"""Picks of the largest posterior variance, each given the ones before: a pivoted Cholesky factorisation of the covariance."""

from __future__ import annotations

import torch
from torch import Tensor

from torchbandits.arms.leaders import pack, pick_rows
from torchbandits.arms.sweeping import FullSweep
from torchbandits.arms.table import ArmTable
from torchbandits.arms.ties import best_arm
from torchbandits.linalg import cholesky
from torchbandits.transfers import to_device, to_host
from torchbandits.types import Picks

# Maximum number of picks in one call, and maximum number of values that the factor may hold.
_MOST, _SIZE = 256, 1 << 25
# Number of leaders of a round. Twice as many would save one round in five, and take four times as long to copy to the host.
_LEADERS = 256
# Number of guesses of a round beyond the number that were right in the last one; their maximum number; and the maximum number
# of variances that are computed for them.
_FURTHER, _GUESSES, _GUESSED = 4, 64, 1 << 23


def largest_variances(
    table: ArmTable, preference: Tensor, offered: Tensor, pending: tuple[Tensor, Tensor], room: Tensor
) -> tuple[Picks, Tensor]:
    """The picks of a lookahead by the standard deviation alone, without its leaders: where most arms are equally uncertain, new
    leaders would be needed after every pick or two. One pass over the arms is enough for a pick, on a device for several; see
    `_Guesses`.

    Args:
        table: The arms; not modified. Its posterior is exact.
        preference: `batch_shape x A`, added to the standard deviations.
        offered: `batch_shape x A` booleans, at least one arm in each row with room.
        pending: `batch_shape x p` pending arms (−1 where padded), with their counts.
        room: `batch_shape`, numbers of picks to make, on the host.

    Returns:
        Picks `batch_shape x q`, −1 where padded, and the room that is left, which is nothing up to 256 picks.

    Cost: O(A (u + n)) for the n-th pick given u distinct points.
    """
    most = min(_MOST, max(1, _SIZE // table.leverage.numel()))
    wanted, preference = room.clamp_max(most), preference.masked_fill(~offered, -torch.inf)
    if table.leverage.device.type == "cpu":
        return _swept(table, preference, FullSweep(table, None, pending), wanted), room - wanted
    guesses = _Guesses(table, preference, FullSweep(table, None, pending), wanted.reshape(-1))
    while bool((guesses.left > 0).any()):
        guesses.round()
    picks = pack(torch.cat(guesses.picks, dim=-1))
    return to_device(table.leverage.device, picks.reshape(*room.shape, -1))[0], room - wanted


def _swept(table: ArmTable, preference: Tensor, start: FullSweep, wanted: Tensor) -> Picks:
    """`wanted` picks, each by a pass over the arms."""
    leverage, used, q = start.leverage, start.directions.shape[-2], int(wanted.max())
    factor = leverage.new_empty(*leverage.shape[:-1], used + q, leverage.shape[-1])
    factor[..., :used, :] = start.directions
    made, picks = torch.arange(q) < wanted.unsqueeze(-1), []
    live = None if bool(made.all()) else made
    for place in range(q):
        slot = best_arm(_scores(table, preference, leverage)).unsqueeze(-1)
        rows = factor[..., : used + place, :]
        before = rows.gather(-1, slot.unsqueeze(-2).expand(*rows.shape[:-1], 1)).mT
        column = (table.columns_between(slot)[1] - before @ rows).squeeze(-2)
        drop = column * (1 + column.gather(-1, slot).clamp_min(0)).rsqrt()
        if live is not None:
            drop = drop * live[..., place : place + 1]
            slot = slot.masked_fill(~live[..., place : place + 1], -1)
        factor[..., used + place, :] = drop
        leverage = torch.addcmul(leverage, drop, drop, value=-1).clamp_min_(0)
        picks.append(slot)
    return torch.cat(picks, dim=-1) if picks else torch.empty(*wanted.shape, 0, dtype=torch.int64)


def _scores(table: ArmTable, preference: Tensor, leverage: Tensor) -> Tensor:
    return torch.add(preference, leverage.sqrt(), alpha=table.posterior.regularization**0.5)


class _Guesses:
    """`_swept` on a device, where a pass over the arms is mostly launches.

    A round guesses the picks that follow the last one: the compiled loop picks among the arms of the largest variance, on the
    host, as if there were no others. One pass over the arms computes all variances after each guess, and the arm that is best
    then. Guesses up to the first wrong one, and the best arm in its place, are those of a pass after each pick. All tensors are
    flattened to `rows x ...`.

    Args:
        table: The arms.
        preference: `batch_shape x A`, −∞ for arms that are not offered.
        start: Leverages and directions given the pending arms.
        wanted: `rows`, numbers of picks to make, on the host.

    Attributes:
        picks: The picks of each round, `rows x q` on the host, −1 where padded.
        left: `rows`, numbers of picks that are still to be made.
    """

    def __init__(self, table: ArmTable, preference: Tensor, start: FullSweep, wanted: Tensor) -> None:
        rows, A = len(wanted), preference.shape[-1]
        self._table, self._preference = table, preference.reshape(rows, A)
        self._leverage, self._directions = start.leverage.reshape(rows, A), start.directions.reshape(rows, -1, A)
        self._score = _scores(table, self._preference, self._leverage)
        # The last pick of each row, whose effect on the variances is not yet known.
        self._last = best_arm(self._score)
        self._right = torch.zeros_like(wanted)
        self.picks = [torch.where(wanted > 0, self._last.cpu(), -1).unsqueeze(-1)]
        self.left = (wanted - 1).clamp_min(0)

    def round(self) -> None:
        """Guess the next picks, and keep those that are right. Two waits for the device."""
        guesses, inverse = self._guessed()
        device, shape, D = self._leverage.device, self._table.leverage.shape[:-1], self._directions
        slot, inverse = to_device(device, guesses.clamp_min(0), inverse)
        columns = self._table.cross(slot.reshape(*shape, -1)).double().reshape(*slot.shape, -1)
        if D.shape[-2]:
            columns = torch.baddbmm(columns, _at(D, slot).mT, D, alpha=-1)
        G = inverse @ columns
        leverage = (self._leverage.unsqueeze(-2) - G.square().cumsum(dim=-2)).clamp_min_(0)
        score = _scores(self._table, self._preference.unsqueeze(-2), leverage)
        best = best_arm(score)
        found = best.cpu()
        # A guess is right if it was the best arm given the guesses before it, and they are right.
        agree = (guesses[:, 1:] == found[:, :-1]).long().cumprod(dim=-1).sum(dim=-1)
        self._right = right = torch.where(guesses[:, 0] >= 0, 1 + agree, 0)
        self.picks.append(torch.where(torch.arange(found.shape[-1]) < right.unsqueeze(-1), found, -1))
        self.left = self.left - right
        if not bool((self.left > 0).any()):
            return
        if len(right) == 1:
            n = int(right)
            self._leverage, self._score, self._last, G = leverage[:, n - 1], score[:, n - 1], best[:, n - 1], G[:, :n]
        else:
            place, many = to_device(device, (right - 1).clamp_min(0)[:, None, None], right[:, None, None])
            self._last = best.gather(-1, place.squeeze(-1)).squeeze(-1)
            place = place.expand(-1, 1, leverage.shape[-1])
            self._leverage, self._score = (x.gather(-2, place).squeeze(-2) for x in (leverage, score))
            G = G * (torch.arange(G.shape[-2], device=device).unsqueeze(-1) < many)
        self._directions = torch.cat([D, G], dim=-2)

    def _guessed(self) -> tuple[Tensor, Tensor]:
        """The last pick and guesses of those that follow it, `rows x n`, −1 where padded, and L⁻¹, `rows x n x n`, 0 where
        padded, with L Lᵀ = I + C for their covariance C. All on the host."""
        table, D, k = self._table, self._directions, min(_LEADERS, self._score.shape[-1])
        leaders = torch.cat([self._last.unsqueeze(-1), self._score.topk(k).indices], dim=-1)
        features = table.features(leaders.reshape(*table.leverage.shape[:-1], -1))
        C = table.covariance(features, features, frozen=False).reshape(*leaders.shape, -1)
        if D.shape[-2]:
            own = _at(D, leaders)
            C = torch.baddbmm(C, own.mT, own, alpha=-1)
        leaders, C, preference = to_host(leaders, C, self._preference.gather(-1, leaders))
        most = min(_GUESSES, max(1, _GUESSED // self._leverage.numel()))
        wanted = torch.minimum(self.left, self._right + _FURTHER).clamp_max(most)
        (rows, k), n, none = leaders.shape, int(wanted.max()), C.new_zeros(len(wanted))
        picks = pick_rows(
            leaders=leaders,
            mean=preference,
            leverage=C.diagonal(dim1=-2, dim2=-1).clone(),
            covariance=C,
            scale=C.new_full((rows, k), table.posterior.regularization**0.5),
            gain=C.new_zeros(rows, k),
            room=torch.where(preference > -torch.inf, n, 0),
            outside=none - torch.inf,
            first=torch.zeros_like(wanted),
            dynamic=False,
            spent=none,
            budget=none + torch.inf,
            remaining=wanted,
            most=n,
            drops=C.new_empty(rows, n, k),
            used=torch.zeros_like(wanted),
        ).picks
        slot, eye = picks.clamp_min(0), torch.eye(picks.shape[-1], dtype=C.dtype)
        between = _at(C, slot).gather(-2, slot.unsqueeze(-1).expand(*slot.shape, slot.shape[-1]))
        made = picks >= 0
        L, good = cholesky(eye + between * (made.unsqueeze(-1) & made.unsqueeze(-2)))
        if good is not None:
            # Rounding has spoilt the covariance of the guesses: the last pick stands alone.
            made = made & (good.unsqueeze(-1) | (eye[0] > 0))
            L = torch.where(
                good[:, None, None], L, eye * (1 + between.diagonal(dim1=-2, dim2=-1).clamp_min(0)).sqrt().unsqueeze(-1)
            )
        inverse = torch.linalg.solve_triangular(L, eye * made.unsqueeze(-1), upper=False)
        return torch.where(made, leaders.gather(-1, slot), -1), inverse


def _at(lines: Tensor, slot: Tensor) -> Tensor:
    """Columns of `rows x r x A` at `rows x p`, `rows x r x p`."""
    return lines.gather(-1, slot.unsqueeze(-2).expand(*lines.shape[:-1], slot.shape[-1]))
