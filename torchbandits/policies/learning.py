"""Updates of a policy state by told rewards: statistics, dictionary, means and leverages, information gain."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from torchbandits.arms import ArmTable, GrowingTable
from torchbandits.arms.directions import Leaders
from torchbandits.arms.rows import Summed
from torchbandits.memory import Memory, SteadySampling
from torchbandits.policies.state import GaussianState, State, TableState
from torchbandits.posteriors import Conditioning, GaussianProcess
from torchbandits.posteriors.bless import bless_rows
from torchbandits.posteriors.effects import Effects
from torchbandits.posteriors.factors import Factors
from torchbandits.streams import only_advancing
from torchbandits.transfers import to_host
from torchbandits.types import Pulls

# If the history has more distinct arms than this, it is learned by a sweep.
_AT_ONCE = 32


def learn(state: GaussianState, pulls: Pulls, memory: Memory, leaders: Leaders | None, *, swept_next: bool = False) -> None:
    """Add pulls, choose a new dictionary, and update means and leverages.

    Args:
        state: State to update; its buffers are replaced.
        pulls: Pulls at arms, or at points.
        memory: Rule that chooses the dictionary, or the pulls that are kept.
        leaders: Arms that are likely to be pulled next.
        swept_next: Whether `learn_kernel` follows for all batch rows, which brings an exact posterior's arms up to date.

    Cost: O(A u) per distinct arm for an exact posterior, one m x m x A product for a sparse one; a refit for history.
    """
    if pulls.numbers is not None:
        state.posterior.weighted = True
    if memory.selective:
        return _learn_selected(state, pulls, memory, leaders)
    if pulls.points is not None:
        return _learn_history(state, pulls, memory)
    summed = state.rows.summed(pulls)
    if pulls.history and (memory.sparse or summed.distinct.shape[-1] > _AT_ONCE):
        return _learn_history(state, pulls, memory, summed)
    if memory.sparse:
        return _learn_sparse(state, memory, summed)
    if swept_next:
        state.posterior.invalidate_()
        state.rows.tell_(state.posterior, summed)
        return None
    return _learn_exact(state, summed, leaders)


def _learn_exact(state: GaussianState, summed: Summed, leaders: Leaders | None) -> None:
    table, posterior = state.tabulation, state.posterior
    assert not isinstance(table, GrowingTable)
    slot, counts = summed.slot, summed.counts
    # After each tell T has spare capacity, but for streamed arms that capacity may be less than these pulls need.
    if state.rows.streamed and table.needs_sweep(slot.shape[-1]):
        _swept(state, posterior.factorised)
    pulled, cross = table.pulled(summed, leaders)
    sketch = posterior.sketch
    lost = None if sketch is None else sketch.loss
    state.rows.tell_(posterior, summed)
    if state.counts_batches:
        state.add_gains_(pulled[0], counts)
    gained = table.update_(slot, counts, posterior.targets_of(counts, summed.sums), cross, pulled)
    sums: Any = state._buffers
    sums["log_det"] = sums["log_det"] + gained.cpu()
    if sketch is not None and lost is not None and bool((shrunk := sketch.loss > lost).any()):
        # The low-rank update of the arms is exact only if the sketch has discarded nothing.
        table.sweep_rows_(shrunk)
        state.set_sums_(log_det=torch.where(shrunk, posterior.log_det, state.log_det))
    if table.needs_sweep():
        state.set_sums_(log_det=_shortened(state))


def learn_together(state: TableState, pulls: Pulls, sizes: Sequence[int]) -> None:
    r"""Add the pulls of several tells to an exact posterior, or to one of finite features, by one update.

    Statistics, means, leverages and log det(V/λ) do not depend on how pulls are grouped (law 2). The batched log-determinants
    depend on the grouping: each tell adds :math:`\sum_s \log(1 + \mathrm{lev}(x_s))`, with the leverages before that tell.
    These leverages follow from the covariance of the p distinct arms alone.

    Args:
        state: State to update; its buffers are replaced.
        pulls: Pulls at arms, in the order in which they were told.
        sizes: Number of pulls of each tell, padding included.

    Cost: a sweep, or O(A (u p + p²)) for few distinct arms p; O(p² q) in total for the batched log-determinants.
    """
    table, posterior = state.table, state.posterior
    if pulls.numbers is not None:
        posterior.weighted = True
    summed = state.rows.summed(pulls)
    distinct, counts, sums = summed.distinct, summed.counts, summed.sums
    if not distinct.shape[-1]:
        return
    if state.counts_batches:
        _add_gains_in_turn(state, table, distinct, pulls, sizes)
    if distinct.shape[-1] <= _AT_ONCE:
        pulled, cross = table.pulled(summed)
        state.rows.tell_(posterior, summed)
        gained = table.update_(summed.slot, counts, posterior.targets_of(counts, sums), cross, pulled)
        state.set_sums_(log_det=state.sum_on_host("log_det") + gained.cpu())
        if table.needs_sweep():
            state.set_sums_(log_det=_shortened(state))
        return
    warm = posterior.factorised
    posterior.invalidate_()
    state.rows.tell_(posterior, summed)
    state.set_sums_(log_det=_swept(state, warm))


def _add_gains_in_turn(state: GaussianState, table: ArmTable, distinct: Tensor, pulls: Pulls, sizes: Sequence[int]) -> None:
    """Add the gains of each tell to the batched log-determinants, one tell after the other."""
    features = table.features(distinct)
    C_pp = table.covariance(features, features, frozen=True)
    for told in pulls.split(sizes):
        arm, counts, _, _ = state.rows.distinct(told)
        if not arm.shape[-1]:
            continue
        # An arm that is not among the distinct arms has weight 0, so its place is arbitrary.
        place = (arm.unsqueeze(-1) == distinct.unsqueeze(-2)).byte().argmax(dim=-1)
        C_bp = C_pp.gather(-2, place.unsqueeze(-1).expand(*place.shape, C_pp.shape[-1]))
        C_bb = C_bp.gather(-1, place.unsqueeze(-2).expand(*place.shape, place.shape[-1]))
        state.add_gains_(C_bb.diagonal(dim1=-2, dim2=-1).clamp_min(0), counts)
        G = Conditioning.on(C_bb, counts).directions(C_bp)
        C_pp = C_pp - G.mT @ G


class _Before(NamedTuple):
    """What is read of a sparse posterior before pulls are added to it, all of it on the host.

    Attributes:
        leverage: `batch_shape x u`, leverages of the distinct points.
        weights: `batch_shape x u`, their weights.
        ends: `batch_shape`, their number.
        effects: Random effects.
        fit: Factors. None unless arms can follow the growth of the dictionary.
    """

    leverage: Tensor
    weights: Tensor
    ends: Tensor
    effects: Effects | None
    fit: Factors | None

    @staticmethod
    def of(state: GaussianState, memory: Memory) -> _Before:
        """The values of a state that is about to learn pulls."""
        posterior, told = state.posterior, state.statistics
        follows = isinstance(memory, SteadySampling) and _can_follow(state)
        leverage, weights = state.row_leverage_on_host(), told.weights_on_host
        # A state that was loaded has no factors. Without them, arms would be swept, which in float32 rounds otherwise.
        return _Before(leverage, weights, told.num_rows, posterior.effects, posterior.fit() if follows else None)

    def drawn_with(self, row: Tensor, leverage: Tensor, size: int, *, whole: bool) -> Tensor:
        """The leverages that a dictionary is drawn with, `batch_shape x size`: those before the pulls, of the smooth part for
        random effects.

        Args:
            row: `batch_shape x p`, rows of the pulled points, -1 where padded.
            leverage: `batch_shape x p`, leverages of these before the pulls.
            size: Number of places for points after the pulls.
            whole: Whether it is known that nothing is padded.
        """
        known = self.leverage
        if whole:
            drawn_with = pad(known, (0, size - known.shape[-1])) if size > known.shape[-1] else known.clone()
            drawn_with.scatter_(-1, row, leverage)
        else:
            # Padding is written to a spare place that is removed at the end.
            spare = pad(known, (0, size + 1 - known.shape[-1]))
            drawn_with = spare.scatter_(-1, row.masked_fill(row < 0, size), leverage)[..., :-1]
        if self.effects is None:
            return drawn_with
        weights = pad(self.weights, (0, size - self.weights.shape[-1]))
        return self.effects.smooth_leverage(drawn_with, self.effects.share_on_host(weights))

    @property
    def regressed(self) -> Tensor:
        """Weights that the features were regressed on, `batch_shape x u`."""
        return self.weights if self.effects is None else self.effects.statistics.weights_on_host


def _learn_sparse(state: GaussianState, memory: Memory, summed: Summed) -> None:
    """Add pulls; then let the new points join the dictionary, if it is steady and few of them joined it since it was drawn, or
    draw another, and bring the arms up to date."""
    posterior, counts = state.posterior, summed.counts
    before, leverage = _Before.of(state, memory), state.pulled_leverage(summed)
    # The dictionary is about to change, so updating the old factors would be wasted work.
    posterior.invalidate_()
    row = state.rows.tell_(posterior, summed)
    if state.counts_batches:
        state.add_gains_(leverage, counts)
    # The accumulated log det grows by log(1 + n lev) per distinct arm, with the leverages before the tell.
    sums: Any = state._buffers
    gains = torch.log1p(counts * leverage)
    sums["log_det"] = sums["log_det"] + (gains.squeeze(-1) if gains.shape[-1] == 1 else gains.sum(dim=-1))
    # BKB samples point i with probability min(1, n_i q̄ lev_i), with the leverages before the pulls.
    drawn_with, draws = before.drawn_with(row, leverage, state.statistics.size, whole=summed.whole), True
    if isinstance(memory, SteadySampling):
        grows = _grows(posterior, memory, before.ends, drawn_with, row, counts)
        if bool(grows.all()) and _followed(state, before, row):
            return
        _join_dictionary(posterior, grows, before.ends)
        counts = counts * ~grows.unsqueeze(-1)
        draws = bool((counts > 0).any())
    if draws:
        _draw_dictionary(state, memory, drawn_with, counts)
    state.tabulation.sweep_()


def _grows(
    posterior: GaussianProcess, memory: SteadySampling, known: Tensor, leverage: Tensor, row: Tensor, counts: Tensor
) -> Tensor:
    """Whether the points just told join the dictionary, which is otherwise drawn anew, `batch_shape` booleans on the host.

    They do as `SteadySampling.grows` says, unless a draw would certainly include a pulled point that the dictionary lacks. The
    variance that the dictionary misses at this point stays however often it is pulled.

    Args:
        known: `batch_shape`, number of points before the pulls.
        leverage: `batch_shape x u`, leverages that a dictionary would be drawn with.
        row, counts: `batch_shape x p`, rows of the pulled points, -1 where padded, and their pulls.
    """
    told = (counts > 0).sum(dim=-1)
    grows = memory.grows(posterior.drawn, posterior.statistics.num_rows, posterior.dictionary_size, told)
    slot, weights = row.clamp_min(0), posterior.embedded_statistics.weights_on_host
    certain = memory.certain(leverage.gather(-1, slot), weights.gather(-1, slot))
    lacking = certain & ~posterior.dictionary.cpu().gather(-1, slot) & (row >= 0) & (row < known.unsqueeze(-1))
    return grows & ~lacking.any(dim=-1)


def _can_follow(state: GaussianState) -> bool:
    """Whether the arms, at present, can follow the growth of the dictionary."""
    return isinstance(state.tabulation, ArmTable) and state.tabulation.follows_growth


def _followed(state: GaussianState, before: _Before, row: Tensor) -> bool:
    """Let new points join the dictionary of a table, and update factors and arms by its growth instead of a sweep.

    Args:
        before: Of the posterior before the pulls.
        row: `batch_shape x p`, rows of the pulled points, -1 where padded.

    Returns:
        Whether this was possible. If not, nothing was changed.
    """
    table, fit = state.tabulation, before.fit
    if fit is None or not _can_follow(state):
        return False
    assert isinstance(table, ArmTable)
    K_qu = table.columns_of_new(fit.rows, before.weights.shape[-1])
    growth = state.posterior.grow_dictionary_(fit, before.regressed, row, K_qu)
    if growth is not None:
        table.follow_(growth, before.effects)
    return growth is not None


def _join_dictionary(posterior: GaussianProcess, grows: Tensor, known: Tensor) -> None:
    """Let the points beyond the first `known` join the dictionary in the marked batch rows (`batch_shape` each, on the
    host)."""
    if bool(grows.any()):
        new = torch.arange(posterior.statistics.size) >= known.unsqueeze(-1)
        posterior.set_dictionary_(posterior.dictionary.cpu() | (new & grows.unsqueeze(-1)))


def _learn_history(state: GaussianState, pulls: Pulls, memory: Memory, summed: Summed | None = None) -> None:
    """Learn history of any size, at arms (`summed`) or at points: refit everything, with a dictionary drawn by BLESS."""
    posterior = state.posterior
    warm = posterior.factorised
    before = posterior.log_det if posterior.statistics.size else torch.zeros_like(state.log_det)
    posterior.invalidate_()
    if summed is None:
        state.rows.tell_outside_(posterior, pulls)
    else:
        state.rows.tell_(posterior, summed)
    if memory.sparse:
        _draw_dictionary(state, memory, _history_leverage(state).cpu(), pulls.counts.cpu())
    log_det, before = to_host(_swept(state, warm or memory.sparse), before)
    gained = (log_det - before).clamp_min(0)
    # Only the total gain is known, not the gain of each pull. It bounds the other sum, because log(1 + 3x) ≤ 3 log(1 + x).
    state.set_sums_(
        log_det=state.sum_on_host("log_det") + gained if memory.sparse else log_det,
        batched_log_det=state.sum_on_host("batched_log_det") + gained,
        batched_log_det_3=state.sum_on_host("batched_log_det_3") + 3 * gained,
    )


def learn_kernel(state: GaussianState, fitted: Tensor) -> None:
    r"""Update a state after its posterior was given another kernel or λ. The dictionary is kept.

    Sums of earlier leverages are unknown under the new kernel. As for summed history, the batched log-determinants therefore
    restart from log det(V/λ), with :math:`\log(1 + 3x) \le 3 \log(1 + x)`.

    Args:
        state: State to update; its buffers are replaced.
        fitted: `batch_shape` booleans, rows whose kernel has changed.

    Cost: a sweep.
    """
    table = state.tabulation
    assert not isinstance(table, GrowingTable)
    if not bool(fitted.any()):
        return
    state.forget_derived_()
    table.renew_()
    _restart_sums(state, fitted)


def learn_totals(state: GaussianState, changed: Tensor) -> None:
    """Update a state after the weights of its observations have changed. The batched log-determinants restart as in
    `learn_kernel`.

    Args:
        state: State to update; its buffers are replaced.
        changed: `batch_shape` booleans, rows whose weights have changed.

    Cost: a sweep.
    """
    state.forget_derived_()
    state.posterior.invalidate_()
    _restart_sums(state, changed)


def _restart_sums(state: GaussianState, fitted: Tensor) -> None:
    """Sweep the arms, and restart the batched log-determinants of the marked batch rows from log det(V/λ). Their dictionary is
    drawn anew at the next tell."""
    fitted, log_det = to_host(fitted, _swept(state, state.posterior.sparse))
    state.posterior.drawn = torch.where(fitted, 0, state.posterior.drawn)
    for name, restarted in (("log_det", log_det), ("batched_log_det", log_det), ("batched_log_det_3", 3 * log_det)):
        state.set_sums_(**{name: torch.where(fitted, restarted, state.sum_on_host(name))})


def learn_sparsely(state: GaussianState, *, refits: bool = False) -> None:
    """Make an exact posterior sparse, with a dictionary drawn by the leverages of its points.

    Args:
        refits: Whether all batch rows are fitted next. The dictionary then contains all points, and `draw_sparsely` and
            `learn_kernel` must be called after the fit.

    Cost: a sweep, unless it refits.
    """
    assert isinstance(state, TableState)
    state.forget_derived_()
    state.table.keep_dictionary_()
    if not refits:
        draw_sparsely(state)
        _swept(state, True)


def draw_sparsely(state: GaussianState) -> None:
    """Replace the dictionary by one that is drawn by the leverages of all points, as for history."""
    if state.statistics.size:
        weights = state.posterior.embedded_statistics.weights_on_host
        _draw_dictionary(state, SteadySampling(), _history_leverage(state).cpu(), weights)


@contextmanager
def saved_briefly(state: State, brief: bool) -> Iterator[None]:
    """If `brief`, `state_dict` within this context omits directions of more than 256 MiB, which `complete_` computes."""
    directions = state.table.directions if isinstance(state, TableState) else None
    if directions is not None:
        directions.brief = brief
    try:
        yield
    finally:
        if directions is not None:
            directions.brief = False


def complete_(state: State) -> None:
    """Compute the derived quantities that a saved state omits, after it has been loaded. Cost: a sweep."""
    if isinstance(state, TableState) and state.table.incomplete:
        _swept(state, state.posterior.factorised)


def _swept(state: GaussianState, warm: bool) -> Tensor:
    """Sweep the table, and return log det(V/λ). Unless `warm`, the factors are dropped, because keeping them up to date would
    cost O(u²) per later pull."""
    state.tabulation.sweep_()
    log_det = state.posterior.log_det
    if not warm and state.posterior.finite is None:
        state.posterior.invalidate_()
    return log_det


def _shortened(state: GaussianState) -> Tensor:
    """`_swept` where updates have made the table long or imprecise, but not out of date: known columns stay known."""
    table = state.tabulation
    directions = table.directions if isinstance(table, ArmTable) else None
    give_back = None if directions is None else directions.carried()
    log_det = _swept(state, state.posterior.factorised)
    if give_back is not None:
        give_back()
    return log_det


def _learn_selected(state: GaussianState, pulls: Pulls, memory: Memory, leaders: Leaders | None) -> None:
    """Learn one pull after the other, because whether a pull is kept depends on those before it."""
    posterior, device = state.posterior, pulls.counts.device
    pulls = pulls if pulls.index is None else pulls.here()
    arms = None if pulls.index is None else state.rows.entry(pulls.index)
    for place in range(pulls.counts.shape[-1]):
        part = slice(place, place + 1)
        counts, points = pulls.counts[..., part], pulls.points
        if points is not None:
            leverage = posterior.leverage(points[..., part, :])
        else:
            assert arms is not None
            leverage = state.pulled_leverage(Summed.of(device, arms[..., part], counts, counts, counts))
        learned = memory.admitted(leverage, counts, posterior.regularization)
        if not bool((learned > 0).any()):
            continue
        # Only `learned` of n summed pulls are kept, with their share of the sums: each of them counts with the average reward.
        share = torch.where(counts > 0, learned / counts, 0.0)
        sums, squares = share * pulls.sums[..., part], share * pulls.squares[..., part]
        if points is not None:
            kept = Pulls(learned, sums, squares, points=points[..., part, :])
            _learn_history(state, kept, memory)
        else:
            assert arms is not None
            arm = arms[..., part].masked_fill(learned <= 0, -1)
            _learn_exact(state, Summed.of(device, arm, learned, sums, squares), leaders)


def _history_leverage(state: GaussianState) -> Tensor:
    """Approximate leverage of every distinct point given all pulls, `batch_shape x u`, drawn row by row; that of the smooth
    part for random effects."""
    posterior, statistics = state.posterior, state.posterior.embedded_statistics
    return bless_rows(posterior.embedded_kernel, statistics, posterior.regularization, state.generators)


def _draw_dictionary(state: GaussianState, memory: Memory, leverage: Tensor, counts: Tensor) -> None:
    """Draw a new dictionary by the leverages of the distinct points, on the host, in the batch rows with new pulls (`counts`,
    `batch_shape x p`). Other rows keep their dictionary and draw no random numbers."""
    posterior = state.posterior
    statistics = posterior.embedded_statistics
    # A single batch row always has new pulls, since otherwise nothing is learned.
    if len(state.generators) == 1:
        dictionary = memory.choose(leverage, statistics.weights_on_host, statistics.mask_on_host, state.generators)
        posterior.set_dictionary_(dictionary)
        if isinstance(memory, SteadySampling):
            posterior.drawn = statistics.num_rows
        return
    told = (counts > 0).any(dim=-1)
    if isinstance(memory, SteadySampling):
        posterior.drawn = torch.where(told.cpu(), statistics.num_rows, posterior.drawn)
    with only_advancing(state.generators, told):
        chosen = memory.choose(leverage, statistics.weights_on_host, statistics.mask_on_host, state.generators)
    if not bool(told.all()):
        chosen = torch.where(told.unsqueeze(-1), chosen, posterior.dictionary.cpu())
    posterior.set_dictionary_(chosen)
