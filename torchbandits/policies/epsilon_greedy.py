"""ε-greedy: the arm with the best average reward so far, or with probability ε a uniform arm."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from torchbandits.checks import check_whole, explains_keywords, is_finite, non_negative
from torchbandits.errors import ArgumentError
from torchbandits.policies.heuristic import Heuristic, add_up, fresh_state
from torchbandits.policies.state import SumsState
from torchbandits.sources import ArmSet
from torchbandits.starts import draw_uniform
from torchbandits.types import Pulls


@dataclass(frozen=True)
class PowerDecay:
    """ε_t = t^(−power). With power 1/3, about 1.5 T^(2/3) of T picks explore."""

    power: float = 1 / 3

    def __post_init__(self) -> None:
        non_negative("power", self.power)

    def __call__(self, t: float) -> float:
        """The probability at pick t, from 1."""
        return float(t**-self.power)


DECAY = PowerDecay()


@dataclass(frozen=True, repr=False)
class EpsilonGreedy(Heuristic[SumsState]):
    """Greedy on the average rewards of the arms pulled, uniform with probability ε."""

    epsilon: float | Callable[[float], float] = DECAY
    batch_size: int = 1

    def __post_init__(self) -> None:
        check_whole("batch_size", self.batch_size)
        if not callable(self.epsilon):
            _check_probability(self.epsilon, "epsilon must be a probability in [0, 1] or a callable of t")

    @property
    def streams(self) -> bool:
        """Whether arms may be read piece by piece: True, because features are never read."""
        return True

    def init(self, arms: ArmSet, generators: Sequence[torch.Generator], batch_shape: torch.Size) -> SumsState:
        """Make a fresh state, of statistics only."""
        return fresh_state(arms, generators, batch_shape)

    def draw(
        self, state: SumsState, sizes: Sequence[int], offered: Tensor | None, generators: Sequence[torch.Generator]
    ) -> Tensor:
        """Draw q numbers that decide which picks explore, then q uniform picks, used or not. Cost O(u + q).

        Raises:
            ArgumentError: If `epsilon(t)` is not a probability.
        """
        made = (state.told + state.pending_counts.sum(dim=-1)).reshape(-1).tolist()
        explore = torch.ones(len(sizes), max(sizes, default=0), dtype=torch.bool)
        for row, (size, generator) in enumerate(zip(sizes, generators, strict=True)):
            chances = torch.tensor([self._chance(made[row] + 1 + place) for place in range(size)], dtype=torch.float64)
            explore[row, :size] = torch.rand(size, generator=generator, dtype=torch.float64) < chances
        index = draw_uniform(state.rows.num_arms, sizes, generators, offered)
        best = best_average(state, offered).unsqueeze(-1)
        return torch.where(explore | (best < 0) | (index < 0), index, best)

    def update(self, state: SumsState, pulls: Pulls) -> SumsState:
        """Add up the rewards."""
        add_up(state, pulls)
        return state

    def _chance(self, t: float) -> float:
        if not callable(self.epsilon):
            return self.epsilon
        value = self.epsilon(t)
        _check_probability(value, f"epsilon({t:g}) must be a probability in [0, 1]")
        return float(value)


def best_average(state: SumsState, offered: Tensor | None) -> Tensor:
    """The arm on offer with the highest average reward in each row, `rows` on the CPU; −1 where none was pulled.

    Among equal averages it is the lowest index. Cost O(u).
    """
    statistics, arm = state.statistics, state.rows.arm_of_row
    rows, size = statistics.num_rows.numel(), statistics.size
    if not size:
        return torch.full((rows,), -1)
    arm, weights, sums = (x.reshape(rows, size) for x in (arm, statistics.weights, statistics.sums))
    known = (arm >= 0) & (weights > 0)
    if offered is not None:
        known = known & offered.gather(-1, arm.clamp_min(0))
    average = (sums / weights).masked_fill(~known, -torch.inf)
    best = known & (average == average.amax(dim=-1, keepdim=True))
    lowest = torch.where(best, arm, state.rows.num_arms).amin(dim=-1)
    return torch.where(known.any(dim=-1), lowest, -1).cpu()


def _check_probability(value: object, expected: str) -> None:
    if not is_finite(value) or not 0 <= float(value) <= 1:  # type: ignore[arg-type]
        raise ArgumentError(f"{expected}, got {value!r}.")


@explains_keywords
def epsilon_greedy(*, epsilon: float | Callable[[float], float] = DECAY, batch_size: int = 1) -> EpsilonGreedy:
    r"""Pull the arm with the best average reward so far with probability 1 − ε_t, any arm otherwise.

    .. math:: x_t = \arg\max_{x\ \text{pulled}} s(x)/n(x) \quad\text{or, with probability } \varepsilon_t, \quad x_t \sim U

    Features are not used: every arm has a separate average. The first pick is uniform, and so is every pick until some arm on
    offer has an observation.

    Args:
        epsilon: ε in [0, 1], or a function of t, the number of the pick being chosen (from 1, pending picks included; a
            float, since weights of history need not be whole). By default t^(−1/3).
        batch_size: Number of picks per `ask`; they share the averages.

    Guarantee: regret O(T^(2/3) (A log T)^(1/3)) with ε_t = (A log t / t)^(1/3); the default omits the dependence on
    the number of arms, with which ε would be 1 throughout on large arm sets. Cost: O(u) per batch.
    Source: Slivkins 2019, Alg. 1.2, Thm 1.6.
    """
    return EpsilonGreedy(epsilon, batch_size)
