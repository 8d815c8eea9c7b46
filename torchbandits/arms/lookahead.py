"""The next picks of a batch by an exact lazy argmax, over arms whose leverage falls as the batch grows."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from torchbandits.arms.leaders import pack, pick_rows
from torchbandits.arms.table import ArmTable
from torchbandits.arms.ties import BROKEN, EXHAUSTED, REFRESH, TIE
from torchbandits.linalg import cholesky
from torchbandits.posteriors import Conditioning, aggregate
from torchbandits.transfers import to_device, to_host
from torchbandits.types import Picks

# Default number of leaders. A batch of hundreds of picks spreads over more than 32 distinct arms.
_LEADERS = 64
# The same for arms on a device, where new leaders take a hundred operations, and a pick among so many some microseconds on the
# host; and the largest number of covariances between leaders, of all batch rows, that are handed over together.
_LEADERS_ON_DEVICE, _HANDED = 512, 1 << 20
# Number of picks after which there are new leaders then.
_DROPS = 128
_PICKS_A_ROUND = 1 << 14
# Number of arms that are updated at once.
_SHRUNK = 1 << 14
# Smallest number of arms for which a pool of the best arms is worth the cost of its selection.
_MANY = 1 << 18
# The pool holds one out of this many arms.
_POOLED = 32

_Conditioned = tuple[Conditioning, tuple[Any, ...]]


@runtime_checkable
class BatchMeter(Protocol):
    """Measures of a batch rule that change while a batch grows. All tensors have one entry per batch row, and are on the
    host."""

    dynamic: bool
    additive: bool
    spent: Tensor
    budget: Tensor

    def gain(self, leverage: Tensor) -> Tensor:
        """Upper bounds of the budget spent by a pick of each leader, from its leverage at the batch start, `rows x k` (ignored
        when `dynamic`)."""

    def broke(self, lookahead: Lookahead, rows: Tensor) -> Tensor:
        """Whether the batch ends in the marked rows, whose budget is exceeded. May refresh `spent` and `budget`."""


class Lookahead:
    r"""Picks of one batch, with means and width frozen at its start.

    Picks can only decrease leverages, so stale scores are upper bounds. The k arms with the highest scores, the leaders, are
    brought up to date (by conditioning them on the picks so far), and the compiled loop picks among them until the best leader
    falls below the best stale score of the other arms. The picks are those of a full sweep after each pick. All tensors are
    flattened to `rows x ...`.

    Picks condition the covariance k̃ of the posterior exactly. In the batches of BBKB the dictionary of a sparse posterior is
    frozen instead: picks do not change the residual variance that it does not explain.

    Args:
        table: The arms at the start of the batch; not modified.
        mean: `batch_shape x A`, reward units.
        width: `batch_shape`, multiplies the standard deviation.
        offered: `batch_shape x A` booleans, or None for all arms.
        pending: `batch_shape x p` pending arms (−1 where padded), with their counts.
        max_pulls: Largest number of picks of one arm in the batch, or None.
        price: `batch_shape x A`, an additional positive factor of the standard deviation of each arm; None for 1.
        leaders: Largest number of arms k that are updated after each pick; by default 64, and 512 for arms on a device. Few are
            best where few arms compete. Picks by variance alone spread over all arms, and are fastest with as many leaders as
            arms for up to about a thousand arms.
        frozen: Whether picks leave the residual of a sparse posterior unchanged; one boolean, or `batch_shape`.
    """

    def __init__(
        self,
        table: ArmTable,
        mean: Tensor,
        width: Tensor,
        offered: Tensor | None,
        pending: tuple[Tensor, Tensor],
        max_pulls: int | None,
        price: Tensor | None = None,
        leaders: int | None = None,
        frozen: bool | Tensor = False,
    ) -> None:
        self._frozen = frozen
        self.table, self.batch_shape, self.across = table, mean.shape[:-1], table.rows.across
        self.num_rows, A = self.batch_shape.numel(), mean.shape[-1]
        self.mean, self.start = mean.reshape(-1, A), table.leverage.reshape(-1, A)
        scale = (width.reshape(-1) * table.posterior.regularization**0.5).unsqueeze(-1)
        self.scale = scale if price is None else scale * price.expand(*self.batch_shape, A).reshape(-1, A)
        self.leverage = self.start.clone()
        self.offered = None if offered is None else offered.expand(*self.batch_shape, A).reshape(-1, A)
        # Picked and pending arms are kept on the host, where the picks are made.
        self.index, self.counts = pending[0].reshape(self.num_rows, -1), pending[1].reshape(self.num_rows, -1)
        if mean.device.type != "cpu":
            none = torch.empty(self.num_rows, 0, dtype=torch.int64), torch.empty(self.num_rows, 0, dtype=torch.float64)
            self.index, self.counts = to_host(self.index, self.counts) if self.index.shape[-1] else none
        few = _LEADERS if mean.device.type == "cpu" else _leaders_on_device(self.num_rows)
        self.max_pulls, self.most_leaders = max_pulls, leaders or few
        # The leaders of the round, on the device and on the host, where the picks are made.
        self.leaders = torch.empty(self.num_rows, 0, dtype=torch.int64, device=mean.device)
        self.leaders_here = self.index[:, :0]
        # Their features, as `ArmTable.covariance` takes them.
        self.features_of_leaders: tuple[Any, ...] = ()
        self.score = self._scores(self.mean, self.leverage, self.scale)
        if self.offered is not None:
            self.score = self.score.masked_fill(~self.offered, -torch.inf)
        if max_pulls is not None and self.index.shape[-1]:
            self._close(self.index, self.counts >= max_pulls)
        # The pool of the best arms in order of index, and an upper bound of all other scores.
        self._pool: tuple[Tensor, Tensor] | None = None
        self.recent = [self._repeated(self.index, self.counts)] if self.index.shape[-1] else []
        # On a device, what a further round needs of the earlier ones.
        whole = mean.device.type != "cpu" and not self.index.shape[-1] and not table.rows.sharded
        self._earlier = _Earlier(self.num_rows) if whole else None

    def pick(self, meter: BatchMeter, remaining: Tensor) -> Tensor:
        """Pick until the rule breaks or `remaining` (`batch_shape`, on the host) picks are made; `batch_shape x q`, −1 where
        padded.

        The pick that breaks the rule is the last one. Cost: O(A) per round and O(k²) per pick.
        """
        remaining = remaining.reshape(-1).clone()
        chosen, device, handed, earlier = [], self.mean.device, None, self._earlier
        while bool((remaining > 0).any()):
            anew, certain = handed is None, True
            if handed is None and earlier is not None and earlier.picks.shape[-1]:
                handed, certain = self._handed_again(meter, earlier), False
            elif handed is None:
                active = remaining > 0
                handed = self._handed(meter, None if bool(active.all()) else active.to(device))
            most = min(_PICKS_A_ROUND, int(remaining.max()))
            ended = pick_rows(
                **handed,
                dynamic=meter.dynamic,
                spent=meter.spent,
                budget=meter.budget,
                remaining=remaining.clamp_max(most),
                most=most,
            )
            meter.spent, why = ended.spent, ended.why
            picks, handed["first"] = ended.picks, torch.full_like(handed["first"], -1)
            arms = torch.where(picks >= 0, ended.leaders.gather(-1, picks.clamp_min(0)), -1)
            chosen.append(arms)
            # The last pick had no variance left, or no arm is left to pick.
            over = why == EXHAUSTED
            stuck = (why == REFRESH) & (ended.n == 0)
            if anew and certain:
                over = over | stuck
            if earlier is not None:
                earlier.places.append(picks)
            remaining = torch.where(over, 0, remaining - ended.n)
            if not meter.additive or bool(((remaining > 0) & (why != BROKEN)).any()):
                # Fold the picks into the batch only if a further round or the batch rule needs them.
                self._fold(arms)
            remaining = torch.where(meter.broke(self, why == BROKEN), 0, remaining)
            going = remaining > 0
            if bool((going & (why != BROKEN)).any()):
                # Other arms may be better than the leaders.
                if earlier is not None and (not earlier.extend(handed) or (not certain and bool(stuck.any()))):
                    # They are brought up to date until the best one is.
                    earlier = self._earlier = None
                if earlier is None:
                    self._write(self.leaders, to_device(device, handed["leverage"])[0])
                handed = None
        packed = pack(torch.cat(chosen, dim=-1) if chosen else self.index.new_empty(self.num_rows, 0))
        packed = packed.reshape(*self.batch_shape, -1)
        return packed if device.type == "cpu" else to_device(device, packed)[0]

    def distinct(self) -> tuple[Tensor, Tensor]:
        """Arms picked or pending in this batch and their counts, `rows x p` (−1 and 0 where padded)."""
        if self.mean.device.type == "cpu":
            return self.index, self.counts
        index, counts = to_device(self.mean.device, self.index, self.counts)
        return index, counts

    def take_recent(self) -> tuple[Tensor, Tensor]:
        """Arms picked since the last call and their counts, `rows x p` (−1 where padded), on the host."""
        index, counts = self.index[:, :0], self.counts[:, :0]
        if self.recent:
            picks = torch.cat(self.recent, dim=-1)
            self.recent = []
            index, counts = aggregate(picks, picks >= 0)
        return index, counts

    def rows_first(self, index: Tensor) -> Tensor:
        """`rows x p` reshaped to `batch_shape x p`, the shape that the table expects."""
        return index.reshape(*self.batch_shape, -1)

    def flat(self, tensor: Tensor, trailing: int) -> Tensor:
        """`batch_shape x ...` flattened to `rows x ...`, keeping the last `trailing` dimensions."""
        return tensor.expand(*self.batch_shape, *tensor.shape[tensor.dim() - trailing :]).reshape(
            self.num_rows, *tensor.shape[tensor.dim() - trailing :]
        )

    def conditioning(self) -> _Conditioned | None:
        """The conditioning on the picks so far, one per batch row, with their features; None before the first pick."""
        if not self.index.shape[-1]:
            return None
        # Avoid a call for arms on the host, where every call counts in a small step.
        index, counts = (self.index, self.counts) if self.mean.device.type == "cpu" else self.distinct()
        features = self.table.features(self.rows_first(index))
        C_pp = self.table.covariance(features, features, frozen=self._frozen)
        return Conditioning.on(C_pp, self.rows_first(counts)), features

    # ------------------------------------------------------------------ one round

    def _handed(self, meter: BatchMeter, active: Tensor | None) -> dict[str, Tensor]:
        """The arguments of the loop on the leaders, copied to the host in one transfer; see `pick_rows`."""
        self.leaders, leverage, covariance, first = self._refresh(active)
        # The best stale score of the other arms is an upper bound that the leaders must stay above.
        outside = self.across.put_(self.score.clone(), self.leaders, -torch.inf)
        mean, score, start = self.across.at(self.leaders, self.mean, self.score, self.start)
        given = {
            "mean": mean,
            "leverage": leverage,
            "covariance": covariance,
            "scale": self._scale_of(self.leaders),
            "gain": meter.gain(start),
            "outside": self.across.amax(outside),
            "leaders": self.leaders,
        }
        *here, first, score = (*given.values(), first, score)
        if self.mean.device.type != "cpu":
            *here, first, score = to_host(*here, first, score)
        handed: dict[str, Tensor] = {}
        # Neither a generator nor a comprehension: their calls count in a small step.
        for name, value in zip(given, here, strict=True):
            handed[name] = value.contiguous()
        self.leaders_here = handed["leaders"]
        place = (self.leaders_here == first.unsqueeze(-1)).byte().argmax(dim=-1)
        handed["first"] = torch.where(score.amax(dim=-1) > -torch.inf, place, -1)
        handed["room"] = self._room(self.leaders_here, score)
        if self.mean.device.type != "cpu":
            rows, k = mean.shape
            handed["drops"], handed["used"] = (
                torch.empty(rows, _DROPS, k, dtype=torch.float64),
                torch.zeros(rows, dtype=torch.int64),
            )
        return handed

    def _handed_again(self, meter: BatchMeter, earlier: _Earlier) -> dict[str, Tensor]:
        """`_handed` for further leaders on a device, in few operations and one wait: the arms of the best stale scores, brought
        up to date. Others may be better; then the loop picks none of them."""
        score, leverage, inverse, picked = to_device(self.mean.device, *earlier.given(self))
        self.across.put_(self.leverage, self.leaders, leverage)
        self.across.put_(self.score, self.leaders, score)
        k, p = min(self.most_leaders, self.score.shape[-1]), picked.shape[-1]
        best = self.score.topk(min(k + 1, self.score.shape[-1]), dim=-1)
        leaders = best.indices[:, :k].sort(dim=-1)
        self.leaders, self.features_of_leaders = leaders.values, ()
        features = self.table.features(self.rows_first(torch.cat([picked, self.leaders], dim=-1)))
        C = self.flat(self.table.covariance(features, features, frozen=self._frozen), 2)
        G = inverse @ C[:, :p, p:]
        C = torch.baddbmm(C[:, p:, p:], G.mT, G, alpha=-1)
        at = [x.gather(-1, self.leaders) for x in (self.mean, self.start, self.leverage)]
        scale = () if self.scale.shape[-1] == 1 else (self._scale_of(self.leaders),)
        self.leaders_here, C, G, mean, start, known, order, top, *rest = to_host(
            self.leaders, C, G, *at, leaders.indices, best.values, *scale
        )
        score, outside = top[:, :k].gather(-1, order), top[:, k:]
        rows, k = mean.shape
        none = torch.full((rows,), -torch.inf, dtype=torch.float64)
        earlier.directions = G
        earlier.handed = {
            "mean": mean.contiguous(),
            # Rounding must not raise a leverage, because stale scores have to remain upper bounds.
            "leverage": torch.minimum(start - G.square().sum(dim=-2), known),
            "covariance": C.contiguous(),
            "scale": rest[0].contiguous() if scale else earlier.handed["scale"][:, :1].expand(rows, k).contiguous(),
            "gain": meter.gain(start).contiguous(),
            "outside": outside[:, 0].contiguous() if outside.shape[-1] else none,
            "leaders": self.leaders_here,
            "first": torch.full((rows,), -1),
            "room": self._room(self.leaders_here, score),
            "drops": torch.empty(rows, _DROPS, k, dtype=torch.float64),
            "used": torch.zeros(rows, dtype=torch.int64),
        }
        return earlier.handed

    def _refresh(self, active: Tensor | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Leaders in order of index (`rows x k`) with current leverage and covariance, and the next pick. Results of rows
        that are not `active` may be out of date; None if all rows are active."""
        conditioned = self.conditioning()
        if conditioned is not None:
            return self._current(active, conditioned)
        first = self.across.best(self.score)
        leaders = self._leading(first)
        return (leaders, *self._update(leaders, None), first)

    def _leading(self, first: Tensor) -> Tensor:
        """The leaders by score, in order of index, with `first` among them."""
        if self.score.device.type == "cpu":
            return self._with_first(self.across.top(self.score, self.most_leaders), first)
        # In few operations: on a device `first` is above all others.
        raised = self.across.put_(self.score.clone(), first.unsqueeze(-1), torch.inf)
        return self.across.top(raised, self.most_leaders).sort(dim=-1).values

    def _current(self, active: Tensor | None, conditioned: _Conditioned) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Update arms in order of score until the best arm is up to date; return leaders, leverage, covariance and best arm."""
        across, leaders = self.across, None
        found, fresh, k = self._current_in_pool(active, conditioned)
        if found is not None:
            return found
        if fresh is None:
            leaders = across.top(self.score, k).sort(dim=-1).values
            leverage, covariance = self._update(leaders, conditioned)
            fresh = across.put_(torch.zeros_like(self.score, dtype=torch.bool), leaders, True)
        while bool(_of(self._waiting(fresh), active).any()):
            # Among many arms of nearly equal scores most are stale, so double the number refreshed at each attempt.
            k, leaders = 2 * k, None
            more = across.top(self.score.masked_fill(fresh, -torch.inf), k)
            self._shrink(more, conditioned)
            fresh = across.put_(fresh, more, True)
        first = across.best(self.score)
        if leaders is None or not bool((leaders == first.unsqueeze(-1)).any(dim=-1).all()):
            leaders = self._leading(first)
            leverage, covariance = self._update(leaders, conditioned)
        return leaders, leverage, covariance, first

    def _current_in_pool(
        self, active: Tensor | None, conditioned: _Conditioned
    ) -> tuple[tuple[Tensor, Tensor, Tensor, Tensor] | None, Tensor | None, int]:
        """`_current` within a pool of the arms that were best at an earlier pick, so that no step passes over all arms.

        Scores outside the pool can only fall, so the largest of them at the time of selection remains an upper bound.

        Returns:
            Three values: the result of `_current`, or None if an arm outside a new pool may be the best; the arms that are up
            to date (`rows x A` booleans; None if arms are few or on other ranks); the number of arms of the last update.
        """
        k, A = self.most_leaders, self.score.shape[-1]
        if self.table.rows.sharded or A < _MANY:
            return None, None, k
        some = None if active is None else active.unsqueeze(-1)
        for made in (self._pool, None):
            if made is None:
                index = self.score.topk(A // _POOLED, dim=-1).indices.sort(dim=-1).values
                self._pool = made = index, self.score.scatter(-1, index, -torch.inf).amax(dim=-1, keepdim=True)
            pool, outside = made
            fresh, k, size = torch.zeros_like(pool, dtype=torch.bool), self.most_leaders, pool.shape[-1]
            while True:
                score = self.score.gather(-1, pool)
                best = score.amax(dim=-1, keepdim=True)
                near = score >= best - TIE * best.abs()
                if bool(_of(outside >= best - TIE * best.abs(), some).any()):
                    break
                if not bool(_of(near & ~fresh, some).any()):
                    # The pool is sorted, so the first tied arm has the lowest index.
                    first = pool.gather(-1, near.byte().argmax(dim=-1, keepdim=True)).squeeze(-1)
                    top = score.topk(min(self.most_leaders, size), dim=-1).indices
                    leaders = self._with_first(pool.gather(-1, top), first)
                    return (leaders, *self._update(leaders, conditioned), first), None, k
                more = score.masked_fill(fresh, -torch.inf).topk(min(k, size), dim=-1).indices
                self._shrink(pool.gather(-1, more), conditioned)
                fresh, k = fresh.scatter(-1, more, True), 2 * k
        return None, torch.zeros_like(self.score, dtype=torch.bool).scatter(-1, pool, fresh), k

    def _waiting(self, fresh: Tensor) -> Tensor:
        """Whether the best score of each row belongs to an arm with a stale leverage."""
        best = self.across.amax(self.score).unsqueeze(-1)
        near = (self.score >= best - TIE * best.abs()) & (best > -torch.inf)
        return self.across.any(near & ~fresh)

    def _update(self, leaders: Picks, conditioned: _Conditioned | None) -> tuple[Tensor, Tensor]:
        """Bring the leverages and scores of leaders up to date; return leverage and covariance, `rows x k (x k)`."""
        index = self.rows_first(leaders)
        self.features_of_leaders = features = self.table.features(index)
        covariance = self.table.covariance(features, features, frozen=self._frozen)
        if conditioned is None:
            # Nothing has changed since the start of the batch.
            leverage = self.across.at(leaders, self.start)[0]
        else:
            leverage, G = self._given(conditioned, leaders, features)
            covariance = covariance - G.mT @ G
        if self.table.rows.sharded:
            leverage, covariance = self.across.agreed(leverage), self.across.agreed(covariance)
        if conditioned is not None:
            self._write(leaders, leverage)
        return leverage.contiguous(), self.flat(covariance, 2).contiguous()

    def _shrink(self, index: Picks, conditioned: _Conditioned) -> None:
        """Bring the leverages and scores of many arms up to date, in pieces."""
        for some in index.split(_SHRUNK, dim=-1):
            leverage, _ = self._given(conditioned, some, self.table.features(self.rows_first(some)))
            self._write(some, self.across.agreed(leverage))

    def _given(self, conditioned: _Conditioned, index: Picks, features: tuple[Any, ...]) -> tuple[Tensor, Tensor]:
        """Leverages of arms given the picks so far, `rows x k`, and the directions by whose squares they have fallen."""
        start, known = self.across.at(index, self.start, self.leverage)
        conditioning, picked = conditioned
        G = conditioning.directions(self.table.covariance(picked, features, frozen=self._frozen))
        # Rounding must not raise a leverage, because stale scores have to remain upper bounds.
        return torch.minimum(start - self.flat(G.square().sum(dim=-2), 1), known), G

    def _write(self, leaders: Tensor, leverage: Tensor) -> None:
        self.across.put_(self.leverage, leaders, leverage)
        mean, before = self.across.at(leaders, self.mean, self.score)
        score = self._scores(mean, leverage, self.scale if self.scale.shape[-1] == 1 else self._scale_of(leaders))
        self.across.put_(self.score, leaders, score.masked_fill(before == -torch.inf, -torch.inf))

    def _scores(self, mean: Tensor, leverage: Tensor, scale: Tensor) -> Tensor:
        return mean + scale * leverage.clamp_min(0).sqrt()

    def _scale_of(self, leaders: Tensor) -> Tensor:
        """Factor of √leverage in the score, `rows x k`."""
        return self.scale.expand(leaders.shape) if self.scale.shape[-1] == 1 else self.across.at(leaders, self.scale)[0]

    def _with_first(self, leaders: Tensor, first: Tensor) -> Tensor:
        """Leaders in order of index, with the last (worst) one replaced by `first` if that is missing."""
        missing = ~(leaders == first.unsqueeze(-1)).any(dim=-1)
        # On a device, reading whether any is missing would be a wait. Where none is, the worst leader is replaced by itself.
        if leaders.device.type == "cpu" and not bool(missing.any()):
            return leaders.sort(dim=-1).values
        worst = self.across.at(leaders, self.score)[0].argmin(dim=-1, keepdim=True)
        kept = torch.where(missing.unsqueeze(-1), first.unsqueeze(-1), leaders.gather(-1, worst))
        return leaders.scatter(-1, worst, kept).sort(dim=-1).values

    def _room(self, leaders: Tensor, score: Tensor) -> Tensor:
        """Number of further picks allowed for each leader, `rows x k`; 0 for arms that are not offered. All are on the host."""
        most = torch.iinfo(torch.int64).max if self.max_pulls is None else self.max_pulls
        room = torch.full_like(leaders, most)
        if self.max_pulls is not None and self.index.shape[-1]:
            same = (self.index.unsqueeze(-2) == leaders.unsqueeze(-1)) & (self.index >= 0).unsqueeze(-2)
            room = room - (same * self.counts.unsqueeze(-2)).sum(dim=-1).long()
        return room.masked_fill(score == -torch.inf, 0)

    def _fold(self, arms: Tensor) -> None:
        """Add the picks of a round (`rows x n`, −1 where padded) to the batch's distinct arms and counts."""
        self.recent.append(arms)
        index = torch.cat([self.index, arms], dim=-1)
        counts = torch.cat([self.counts, torch.ones_like(arms, dtype=self.counts.dtype)], dim=-1)
        self.index, _, self.counts = aggregate(index, index >= 0, counts)
        if self.max_pulls is not None:
            self._close(self.index, self.counts >= self.max_pulls)

    def _close(self, index: Tensor, full: Tensor) -> None:
        closed = to_device(self.score.device, torch.where(full, index, -1))[0]
        self.score = self.across.without(self.score, closed)

    def _repeated(self, index: Tensor, counts: Tensor) -> Tensor:
        """Arms repeated once per pull, `rows x most`."""
        rows = [i.repeat_interleave(c.long()) for i, c in zip(index, counts, strict=True)]
        return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=-1)


class _Earlier:
    """The picks of the rounds so far, and the factor of their covariance, on the host.

    Attributes:
        picks: `rows x p`, −1 where padded.
        factor: `rows x p x p`, L with L Lᵀ = I + C; the identity where padded.
        places: Places of the picks of the current round among its leaders, `rows x n` each, −1 where padded.
        directions: `rows x p x k`, L⁻¹ times the covariances of the picks with the leaders of the current round.
        handed: What the loop on these leaders was given; see `pick_rows`.
    """

    def __init__(self, rows: int) -> None:
        self.picks, self.places = torch.empty(rows, 0, dtype=torch.int64), list[Tensor]()
        self.factor = self.directions = torch.empty(rows, 0, 0, dtype=torch.float64)
        self.handed: dict[str, Tensor] = {}

    def extend(self, handed: dict[str, Tensor]) -> bool:
        """Add the picks of the current round, which ends. Return whether their covariance is positive definite."""
        places, self.places, self.handed = pack(torch.cat(self.places, dim=-1)), [], handed
        (rows, p), n, slot, made = self.picks.shape, places.shape[-1], places.clamp_min(0), places >= 0
        lines = handed["covariance"].gather(-2, slot.unsqueeze(-1).expand(rows, n, handed["covariance"].shape[-1]))
        C = lines.gather(-1, slot.unsqueeze(-2).expand(rows, n, n))
        own, good = cholesky(torch.eye(n, dtype=C.dtype) + C * (made.unsqueeze(-1) & made.unsqueeze(-2)))
        # C is given the picks before, so that its factor is a block of L, beside their directions.
        grown = C.new_zeros(rows, p + n, p + n)
        grown[:, :p, :p], grown[:, p:, p:] = self.factor, own
        if p:
            grown[:, p:, :p] = (self.directions.gather(-1, slot.unsqueeze(-2).expand(rows, p, n)) * made.unsqueeze(-2)).mT
        self.factor = grown
        self.picks = torch.cat([self.picks, torch.where(made, handed["leaders"].gather(-1, slot), -1)], dim=-1)
        return good is None

    def given(self, lookahead: Lookahead) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Scores and leverages of the last leaders, L⁻¹ (0 where padded), and the picks (any arm where padded)."""
        handed, made = self.handed, self.picks >= 0
        score = lookahead._scores(handed["mean"], handed["leverage"], handed["scale"])
        eye = torch.eye(self.picks.shape[-1], dtype=score.dtype) * made.unsqueeze(-1)
        inverse = torch.linalg.solve_triangular(self.factor, eye, upper=False)
        return score.masked_fill(handed["room"] <= 0, -torch.inf), handed["leverage"], inverse, self.picks.clamp_min(0)


def _leaders_on_device(rows: int) -> int:
    """Number of leaders of each of so many batch rows on a device."""
    return max(_LEADERS, min(_LEADERS_ON_DEVICE, int((_HANDED / max(1, rows)) ** 0.5)))


def _of(marked: Tensor, active: Tensor | None) -> Tensor:
    """The marks of the active batch rows; None for all of them."""
    return marked if active is None else marked & active
