"""Regularised evolution: mutate the winner of a tournament, and discard the oldest member."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from torchbandits.arms import ArmRows, matches
from torchbandits.checks import check_whole, explains_keywords
from torchbandits.errors import ArgumentError, ArmIndexError, ShapeError, UnsupportedError, nearest, require
from torchbandits.policies.heuristic import Heuristic, add_up
from torchbandits.policies.state import SumsState
from torchbandits.posteriors import Statistics, aggregate
from torchbandits.starts import draw_uniform
from torchbandits.types import Arms, Picks, Pulls

Neighbors = Tensor | Callable[[int], Any] | str | None
# Number of arms whose distances are computed at once.
_CHUNK = 1 << 16


class Population(nn.Module):
    """The last evaluations, oldest first, right-aligned.

    Args:
        size: Maximum number of members.
        batch_shape: Leading dimensions.
        device: Device of the buffers.

    Buffers, which are replaced and never written in place: `members` `batch_shape x size` arms (−1 before it is full), and
    `rewards` `batch_shape x size` float64, reward units.
    """

    members: Tensor
    rewards: Tensor

    def __init__(self, size: int, batch_shape: torch.Size, device: torch.device) -> None:
        super().__init__()
        self.register_buffer("members", torch.full((*batch_shape, size), -1, device=device))
        self.register_buffer("rewards", torch.zeros(*batch_shape, size, dtype=torch.float64, device=device))

    def join_(self, index: Picks, rewards: Tensor) -> None:
        """Add members, `batch_shape x q` (none where the index is −1), in order; the oldest members are discarded."""
        size = self.members.shape[-1]
        members, rewards = torch.cat([self.members, index], dim=-1), torch.cat([self.rewards, rewards], dim=-1)
        order = (members >= 0).byte().argsort(dim=-1, stable=True)[..., -size:]
        self.members, self.rewards = members.gather(-1, order), rewards.gather(-1, order)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        size = self.members.shape[-1]
        # If the saved population has another size, its youngest members are loaded.
        for name, filler in (("members", -1), ("rewards", 0)):
            if prefix + name in state_dict:
                saved = state_dict[prefix + name]
                missing = max(0, size - saved.shape[-1])
                state_dict[prefix + name] = nn.functional.pad(saved[..., -size:], (missing, 0), value=filler)
        super()._load_from_state_dict(state_dict, prefix, *args)


class PopulationState(SumsState):
    """The state of `regularized_evolution`: sums of rewards, and the population.

    Args:
        rows: The arms and their rows.
        statistics: Sums of rewards.
        generators: One CPU generator per batch row; held and advanced.
        population: The last evaluations.
    """

    def __init__(
        self, rows: ArmRows, statistics: Statistics, generators: Sequence[torch.Generator], population: Population
    ) -> None:
        super().__init__(rows, statistics, generators)
        self.population = population


@dataclass(frozen=True, eq=False, repr=False)
class RegularizedEvolution(Heuristic[PopulationState]):
    """A policy that mutates the winner of a tournament among the last `population` evaluations; see `regularized_evolution`."""

    population: int = 100
    tournament: int = 10
    neighbors: Neighbors = None
    num_neighbors: int = 10
    batch_size: int = 1

    def __post_init__(self) -> None:
        for name in ("population", "tournament", "num_neighbors", "batch_size"):
            check_whole(name, getattr(self, name))
        given = self.neighbors
        if isinstance(given, str):
            require(
                given == "auto", f"neighbors must be 'auto', a tensor or a callable, got {given!r}.{nearest(given, ['auto'])}"
            )
        elif isinstance(given, Tensor):
            whole = not given.is_floating_point() and not given.is_complex() and given.dtype != torch.bool
            message = f"neighbors must be integers A x k, padded with −1, got {given.dtype} {tuple(given.shape)}."
            require(whole and given.dim() == 2, message, ShapeError)
        elif given is not None and not callable(given):
            raise ArgumentError(f"neighbors must be 'auto', a tensor A x k or a callable, got {type(given).__name__}.")

    def init(self, arms: Arms, generators: Sequence[torch.Generator], batch_shape: torch.Size) -> PopulationState:
        """Make a fresh state of statistics and an empty population.

        Raises:
            ArgumentError: If there are fewer arms than members.
            ShapeError, ArmIndexError: If the tensor of neighbours does not fit these arms.
        """
        A = arms.shape[-2]
        require(
            self.population <= A,
            f"population={self.population} is larger than the set of {A} arms: population={A} would do, or fewer.",
        )
        if isinstance(self.neighbors, Tensor):
            listed = self.neighbors.shape[0]
            require(listed == A, f"neighbors must have one row for each of the {A} arms, got {listed}.", ShapeError)
            _check_indices(self.neighbors, A, "neighbors")
        rows, statistics = ArmRows(arms, batch_shape), Statistics(arms.shape[-1], batch_shape, arms.device)
        return PopulationState(rows, statistics, generators, Population(self.population, batch_shape, arms.device))

    def carried(self, state: PopulationState, rows: ArmRows) -> PopulationState:
        """Return the same statistics and population on other arms, without the members whose arms are missing.

        Raises:
            UnsupportedError: If neighbours were given, because they index the previous arms.
        """
        known = self.neighbors is None or isinstance(self.neighbors, str)
        message = "the neighbours given are those of the arms before: make a new Bandit, or leave neighbors=None."
        require(known, message, UnsupportedError)
        require(self.population <= rows.num_arms, f"population={self.population} is larger than the new set of arms.")
        old, arms = state.population, rows.arms.expand(*rows.batch_shape, -1, -1)
        index = matches(arms, state.rows.points(old.members)).masked_fill(old.members < 0, -1)
        population = Population(self.population, rows.batch_shape, arms.device)
        population.join_(index, torch.where(index >= 0, old.rewards, 0.0))
        moved = PopulationState(rows, state.statistics, state.generators, population)
        moved.continuing_(state)
        return moved

    def draw(
        self, state: PopulationState, sizes: Sequence[int], offered: Tensor | None, generators: Sequence[torch.Generator]
    ) -> Tensor:
        """Draw the uniform picks of a population that is not full; then, for k mutants, k x `tournament` numbers that choose
        the members of the tournaments, then k that choose a neighbour (or, without one on offer, an arm). Cost O(A d) per
        distinct winner.

        Raises:
            ShapeError, ArmIndexError: If a callable returns neighbours that are not arms.
        """
        population = state.population
        rows = len(sizes)
        members, rewards = (x.reshape(rows, -1).cpu() for x in (population.members, population.rewards))
        present = (members >= 0).sum(dim=-1)
        missing = self.population - present - state.pending_counts.sum(dim=-1).reshape(-1).cpu()
        # A population without members has nothing to mutate: its picks are uniform.
        first = [
            s if not n else min(s, max(0, int(m))) for s, n, m in zip(sizes, present.tolist(), missing.tolist(), strict=True)
        ]
        opening = draw_uniform(state.rows.num_arms, first, generators, offered)
        index = torch.full((rows, max(sizes, default=0)), -1)
        index[:, : opening.shape[-1]] = opening
        for row, (size, generator) in enumerate(zip(sizes, generators, strict=True)):
            k, n = size - first[row], int(present[row])
            if not k:
                continue
            meeting = self.population - n + torch.randint(n, (k, self.tournament), generator=generator)
            uniforms = torch.rand(k, generator=generator, dtype=torch.float64)
            won = meeting.gather(1, rewards[row][meeting].argmax(dim=1, keepdim=True)).squeeze(1)
            mutants: dict[int, Tensor] = {}
            for place, (winner, u) in enumerate(zip(members[row][won].tolist(), uniforms.tolist(), strict=True)):
                if winner not in mutants:
                    mutants[winner] = self._mutants(state, row, winner, None if offered is None else offered[row])
                near = mutants[winner]
                index[row, first[row] + place] = near[min(int(u * len(near)), len(near) - 1)]
        return index

    def update(self, state: PopulationState, pulls: Pulls) -> PopulationState:
        """Add the rewards to the sums. Each evaluation joins the population, and each arm of history with its average reward.
        History at points that need not be arms does not join, because such points have no neighbours."""
        add_up(state, pulls)
        if pulls.index is None:
            return state
        assert pulls.mask is not None
        index, counts, sums = torch.where(pulls.mask, state.rows.entry(pulls.index), -1), pulls.counts, pulls.sums
        if pulls.history:
            index, _, counts, sums = aggregate(index, pulls.mask, counts, sums)
        state.population.join_(index, torch.where(index >= 0, sums / counts, 0.0))
        return state

    def _mutants(self, state: PopulationState, row: int, winner: int, offered: Tensor | None) -> Tensor:
        """The distinct arms on offer that the winner may become, in increasing order: its neighbours, or all arms if it has
        none."""
        rows, A = state.rows, state.rows.num_arms
        if isinstance(self.neighbors, Tensor):
            near = self.neighbors[winner]
        elif callable(self.neighbors):
            near = torch.as_tensor(self.neighbors(winner))
            require(
                near.dim() == 1,
                f"neighbors({winner}) must be a list of arm indices, got shape {tuple(near.shape)}.",
                ShapeError,
            )
            near = near.long() if not near.numel() else near
            _check_indices(near, A, f"neighbors({winner})")
        else:
            near = nearest_arms(rows, row, winner, self.num_neighbors)
        near = near.to(rows.arms.device).long()
        entries = _row(rows.first, 1, rows.batch_shape, row)
        near = near[near >= 0] if entries is None else entries[near[near >= 0]]
        near = near[near != winner].unique()
        if offered is not None:
            near = near[offered[near]]
        if near.numel():
            return near.cpu()
        return torch.arange(A) if offered is None else offered.nonzero().squeeze(-1).cpu()


def nearest_arms(rows: ArmRows, row: int, index: int, count: int) -> Tensor:
    """The `count` distinct arms nearest to an arm (Euclidean; the lowest index among equals), in the batch row of that number.

    Cost O(A d) time, O(A) memory.
    """
    arms, first = _row(rows.arms, 2, rows.batch_shape, row), _row(rows.first, 1, rows.batch_shape, row)
    assert arms is not None
    distance = torch.cat([(part.double() - arms[index].double()).square().sum(dim=-1) for part in arms.split(_CHUNK)])
    if first is not None:
        distance = torch.where(first == torch.arange(len(first), device=first.device), distance, torch.inf)
    distance[index] = torch.inf
    count = min(count, int(torch.isfinite(distance).sum()))
    if not count:
        return torch.zeros(0, dtype=torch.int64, device=arms.device)
    last = distance.kthvalue(count).values
    nearer, equal = (distance < last).nonzero().squeeze(-1), (distance == last).nonzero().squeeze(-1)
    return torch.cat([nearer, equal[: count - len(nearer)]])


def _row(value: Tensor | None, trailing: int, batch_shape: torch.Size, row: int) -> Tensor | None:
    """One batch row of a value whose batch shape broadcasts with that of the state."""
    if value is None:
        return None
    return value.expand(*batch_shape, *value.shape[value.dim() - trailing :])[np.unravel_index(row, batch_shape)]


def _check_indices(index: Tensor, num_arms: int, name: str) -> None:
    require(
        not index.is_floating_point() and not index.is_complex() and index.dtype != torch.bool,
        f"{name} must be integers, got {index.dtype}.",
        ShapeError,
    )
    bad = (index < -1) | (index >= num_arms)
    if bool(bad.any()):
        raise ArmIndexError(f"{name} holds {index[bad][0].item()}, which is neither an arm 0 … {num_arms - 1} nor −1 for none.")


@explains_keywords
def regularized_evolution(
    *,
    population: int = 100,
    tournament: int = 10,
    neighbors: Neighbors = None,
    num_neighbors: int = 10,
    batch_size: int = 1,
) -> RegularizedEvolution:
    """Evaluate a random neighbour of the best of a few random members; each new observation replaces the oldest member.

    The first `population` picks are uniform. Afterwards `tournament` members are drawn with replacement, and the pick is drawn
    uniformly from the neighbours on offer of the one with the highest observed reward. If none of them is on offer, the pick
    is drawn from all arms on offer. Pending picks count towards the first `population` picks and are not members yet.

    Args:
        population: Number of members, which are the last evaluations told; at most the number of arms.
        tournament: Number of members in a tournament; larger numbers are greedier.
        neighbors: Neighbours of each arm: a tensor `A x k` of indices (−1 where padded), a callable from an index to a list of
            indices, or None or `"auto"` for the nearest arms in the space of the features.
        num_neighbors: Number of nearest arms that count as neighbours if none are given.
        batch_size: Number of picks per `ask`; they share the population.

    Guarantee: none. Cost: O(A d) per pick without given neighbours, O(1) in A with them.
    Source: Real et al. 2019, Alg. 1 (there with tournaments of 25).
    """
    return RegularizedEvolution(population, tournament, neighbors, num_neighbors, batch_size)
