"""ε-greedy and regularised evolution against naive loops that are given the same draws. See test_registry for the contract."""

from __future__ import annotations

import copy
import importlib
import math
from collections import deque
from collections.abc import Callable, Iterable

import numpy as np
import oracles
import pytest
import torch
from problems import Problem, generator

import torchbandits as tb
from torchbandits import errors
from torchbandits.testing.play import differences

# Imported by name, because the function has the name of its module.
evolution = importlib.import_module("torchbandits.policies.regularized_evolution")
ROUNDS = 60


def on_offer(copies: np.ndarray, available: np.ndarray | None) -> np.ndarray:
    """Lowest copies of the arms on offer, in increasing order."""
    return np.unique(copies if available is None else copies[available])


class NaiveGreedy:
    """A naive ε-greedy policy with averages in a dictionary."""

    def __init__(self, problem: Problem, seed: int, epsilon: Callable[[int], float]) -> None:
        self.copies, self.generator, self.epsilon = oracles.first_copies(problem.arms), generator(seed), epsilon
        self.rewards: dict[int, list[float]] = {}
        self.made = 0

    def choose(self, size: int, available: np.ndarray | None) -> list[int]:
        offered = on_offer(self.copies, available)
        uniforms = torch.rand(size, generator=self.generator, dtype=torch.float64).tolist()
        others = offered[torch.randint(len(offered), (size,), generator=self.generator).numpy()]
        known = [arm for arm in offered if arm in self.rewards]
        best = max(known, key=lambda arm: (np.mean(self.rewards[arm]), -arm), default=None)
        picks = []
        for u, other in zip(uniforms, others, strict=True):
            self.made += 1
            picks.append(int(other if best is None or u < self.epsilon(self.made) else best))
        return picks

    def learn(self, arm: int, reward: float) -> None:
        self.rewards.setdefault(int(self.copies[arm]), []).append(reward)


class NaiveEvolution:
    """A naive regularised evolution with a queue of pairs."""

    def __init__(
        self, problem: Problem, seed: int, population: int, tournament: int, neighbors: Callable[[int], Iterable[int]]
    ) -> None:
        self.copies, self.generator = oracles.first_copies(problem.arms), generator(seed)
        self.tournament, self.neighbors = tournament, neighbors
        self.queue: deque[tuple[int, float]] = deque(maxlen=population)
        self.pending = 0

    def choose(self, size: int, available: np.ndarray | None) -> list[int]:
        offered = on_offer(self.copies, available)
        room = self.queue.maxlen - len(self.queue) - self.pending
        first = size if not self.queue else max(0, min(size, room))
        self.pending += size
        picks = offered[torch.randint(len(offered), (first,), generator=self.generator).numpy()].tolist()
        if first == size:
            return picks
        meetings = torch.randint(len(self.queue), (size - first, self.tournament), generator=self.generator).tolist()
        uniforms = torch.rand(size - first, generator=self.generator, dtype=torch.float64).tolist()
        for meeting, u in zip(meetings, uniforms, strict=True):
            winner = max((self.queue[j] for j in meeting), key=lambda member: member[1])[0]
            near = {int(self.copies[j]) for j in self.neighbors(winner) if j >= 0} - {winner}
            choices = sorted(near & set(offered.tolist())) or offered.tolist()
            picks.append(int(choices[int(u * len(choices))]))
        return picks

    def learn(self, arm: int, reward: float) -> None:
        self.pending -= 1
        self.queue.append((int(self.copies[arm]), reward))


def nearest(problem: Problem, count: int) -> Callable[[int], list[int]]:
    """The distinct arms nearest to one, by sorting all."""
    own = np.unique(oracles.first_copies(problem.arms))

    def of(arm: int) -> list[int]:
        others = own[own != arm]
        return others[np.argsort(((problem.arms[others] - problem.arms[arm]) ** 2).sum(1), kind="stable")[:count]].tolist()

    return of


def follow(bandit: tb.Bandit, naive: NaiveGreedy | NaiveEvolution, problem: Problem, seed: int = 0) -> list[int]:
    """Assert the same picks throughout: batches of 1 to 5, arms on offer in two rounds of three, rewards told in parts and out
    of order, and picks added to open batches."""
    rng, told, flat = np.random.default_rng(seed), 0, []
    for number in range(ROUNDS):
        offered = rng.uniform(size=problem.a) < 0.5 if number % 3 else None
        size, more = int(rng.integers(1, 6)), int(rng.integers(0, 3))
        mask = None if offered is None else torch.as_tensor(offered)
        opened = bandit.ask(more=size, available=mask)
        assert naive.copies[opened.index.numpy()].tolist() == naive.choose(size, offered)
        assert offered is None or offered[opened.index.numpy()].all()
        if more:
            extended = bandit.ask(more=more)
            assert naive.copies[extended.index[size:].numpy()].tolist() == naive.choose(more, None)
        opened = bandit.ask()
        for part in np.array_split(rng.permutation(len(opened)), 2):
            rewards = problem.rewards(told, opened.index[part])
            if len(part):
                bandit.tell(opened[part], rewards)
            for arm, reward in zip(opened.index[part].tolist(), rewards.tolist(), strict=True):
                naive.learn(arm, reward)
            told += len(part)
        flat += opened.index.tolist()
    return flat


# ------------------------------------------------------------------------- ε-greedy


@pytest.mark.sweep(1)
@pytest.mark.parametrize(
    "epsilon", [0.0, 0.3, 1.0, None, lambda t: 1 / (1 + math.log(t))], ids=["0", "0.3", "1", "default", "callable"]
)
def test_epsilon_greedy_is_the_naive_loop(epsilon):
    problem = Problem(seed=1, a=50, duplicates=12)
    options = {} if epsilon is None else {"epsilon": epsilon}
    chance = (lambda t: t ** (-1 / 3)) if epsilon is None else epsilon if callable(epsilon) else lambda t: epsilon
    bandit = tb.Bandit(tb.epsilon_greedy(**options), problem.tensor, generator=generator(2))
    picks = follow(bandit, NaiveGreedy(problem, 2, chance), problem)
    assert len(set(picks)) > 5


def test_it_explores_as_often_as_it_says():
    problem = Problem(seed=3, a=100)
    bandit = tb.Bandit(tb.epsilon_greedy(epsilon=0.2, batch_size=5_000), problem.tensor, generator=generator(4))
    index = torch.tensor([60])
    bandit.tell(index, torch.ones(1, dtype=torch.float64))
    picks = bandit.ask().index
    explored = (picks != 60).double().mean()  # exploration also draws the best arm
    assert abs(float(explored) - 0.2 * 0.99) < 4 * math.sqrt(0.2 * 0.8 / 5_000)
    counts = torch.bincount(picks[picks != 60], minlength=100)
    assert counts[torch.arange(100) != 60].min() >= 1
    assert int((picks == 60).sum()) + int(counts.sum()) == 5_000


def test_t_is_the_number_of_the_pick():
    """Picks told and pending count, and weights of history too. Every place of a batch has its own t."""
    asked: list[float] = []

    def epsilon(t: float) -> float:
        asked.append(t)
        return 0.5

    problem = Problem(seed=5, a=20)
    bandit = tb.Bandit(tb.epsilon_greedy(epsilon=epsilon, batch_size=3), problem.tensor, generator=generator(6))
    opened = bandit.ask()
    assert asked == [1, 2, 3]
    bandit.ask(more=2)
    assert asked[3:] == [4, 5]
    bandit.tell(opened[:2], problem.rewards(0, opened.index[:2]))
    bandit.forget(bandit.ask()[:1])
    bandit.ask(more=1)
    assert asked[5:] == [5], "two told, two pending"
    bandit.observe(torch.tensor([1]), torch.tensor([2.5]).double(), torch.tensor([1.0]).double())
    bandit.ask(more=1)
    assert asked[6:] == [8.5]


def test_among_equal_averages_the_lowest_arm_is_pulled():
    problem = Problem(seed=7, a=30)
    bandit = tb.Bandit(tb.epsilon_greedy(epsilon=0.0), problem.tensor, generator=generator(8))
    index = torch.tensor([20, 9, 20, 4, 25])
    bandit.tell(index, torch.tensor([0.0, 0.5, 1.0, 0.25, 0.5], dtype=torch.float64))
    assert bandit.ask().index.tolist() == [9]
    bandit.tell(bandit.ask(), torch.tensor([-5.0], dtype=torch.float64))
    assert bandit.ask().index.tolist() == [20]


def test_averages_of_points_that_are_no_arms_are_not_pulled():
    problem = Problem(seed=9, a=30)
    bandit = tb.Bandit(tb.epsilon_greedy(epsilon=0.0), problem.tensor, generator=generator(10))
    bandit.observe(torch.full((1, 2), 0.5).double(), torch.ones(1).double(), torch.full((1,), 9.0).double())
    bandit.tell(torch.tensor([3]), torch.tensor([-1.0], dtype=torch.float64))
    assert bandit.ask().index.tolist() == [3]


@pytest.mark.usefixtures("annotations_not_enforced")
@pytest.mark.parametrize("epsilon", [-0.1, 1.1, math.nan, math.inf, "often", None, True, [0.5]])
def test_an_epsilon_that_is_no_probability(epsilon):
    with pytest.raises(errors.ArgumentError, match="epsilon") as caught:
        tb.epsilon_greedy(epsilon=epsilon)
    assert repr(epsilon) in str(caught.value)
    problem = Problem(seed=11, a=10)
    schedule = tb.epsilon_greedy(epsilon=lambda t: epsilon if t > 2 else 0.5)
    bandit = tb.Bandit(schedule, problem.tensor, generator=generator(0))
    bandit.ask(more=2)
    before = copy.deepcopy(bandit.state_dict())
    with pytest.raises(errors.ArgumentError, match=r"epsilon\(3\)"):
        bandit.ask(more=1)
    assert differences(before, bandit.state_dict()) == []


def regret_of(policy: tb.policies.Policy, environment: tb.environments.Table, pulls: int, seeds: int = 3) -> np.ndarray:
    history = tb.run(policy, environment, pulls, generator=[generator(s) for s in range(seeds)])
    return np.array([history.pulls["regret"][history.pulls["row"] == row].sum() for row in range(seeds)])


def test_heuristics_learn():
    """On a smooth function: less regret than uniform picks, on every seed."""
    problem = Problem(seed=27, a=100)
    environment = tb.environments.Table(problem.tensor, torch.as_tensor(problem.f), noise_std=0.1)
    blind = regret_of(tb.uniform(batch_size=5), environment, 500)
    assert (regret_of(tb.epsilon_greedy(batch_size=5), environment, 500) < 0.6 * blind).all()
    evolved = regret_of(tb.regularized_evolution(population=20, tournament=5, batch_size=5), environment, 500)
    assert (evolved < 0.6 * blind).all()


# ------------------------------------------------------------------------- regularised evolution


@pytest.mark.sweep(1)
@pytest.mark.parametrize("given", ["auto", "tensor", "callable"])
@pytest.mark.parametrize(("population", "tournament"), [(1, 1), (6, 3), (25, 10)])
def test_evolution_is_the_naive_loop(given, population, tournament):
    problem = Problem(seed=12, a=50, duplicates=12)
    rng = np.random.default_rng(13)
    table = rng.integers(-1, problem.a, size=(problem.a, 4))
    near = nearest(problem, 5) if given == "auto" else lambda arm: table[arm].tolist()
    neighbors = {"auto": None, "tensor": torch.as_tensor(table), "callable": near}[given]
    policy = tb.regularized_evolution(population=population, tournament=tournament, neighbors=neighbors, num_neighbors=5)
    bandit = tb.Bandit(policy, problem.tensor, generator=generator(14))
    picks = follow(bandit, NaiveEvolution(problem, 14, population, tournament, near), problem)
    assert len(set(picks)) > 5


def chain(problem: Problem) -> Callable[[int], list[int]]:
    """The next arm is the only neighbour of each arm, so that a mutant identifies its parent."""
    return lambda arm: [(arm + 1) % problem.a]


def evolving(problem: Problem, population: int = 3, **options) -> tb.Bandit:
    """A bandit with tournaments so large that the best member always wins."""
    policy = tb.regularized_evolution(population=population, tournament=200, **{"neighbors": chain(problem)} | options)
    return tb.Bandit(policy, problem.tensor, generator=generator(15))


def tell(bandit: tb.Bandit, *pulls: tuple[int, float]) -> None:
    arms, rewards = zip(*pulls, strict=True)
    bandit.tell(torch.tensor(arms), torch.tensor(rewards, dtype=torch.float64))


def parent(bandit: tb.Bandit) -> int:
    """The winner of the next tournament, which is the arm before its mutant."""
    pick = int(bandit.ask().index)
    bandit.forget(bandit.ask())
    return pick - 1


def test_the_best_member_is_mutated_until_it_dies_of_age():
    bandit = evolving(Problem(seed=16, a=30))
    tell(bandit, (4, 1.0), (10, 9.0), (20, 2.0))
    assert parent(bandit) == 10
    tell(bandit, (6, 3.0))  # arm 4 dies
    assert parent(bandit) == 10
    tell(bandit, (7, 4.0), (8, -1.0))  # arms 10 and 20 die, however good they are
    assert parent(bandit) == 7
    # More evaluations than there is room for: the first of them dies too.
    tell(bandit, (1, 0.0), (2, -2.0), (3, -3.0), (5, -1.5))
    assert parent(bandit) == 5


def test_a_member_is_an_evaluation_not_an_arm():
    """An arm may be a member twice with different rewards. The higher evaluation wins, whatever the average is."""
    bandit = evolving(Problem(seed=17, a=30))
    tell(bandit, (4, 5.0), (4, -9.0), (12, 1.0))
    assert parent(bandit) == 4
    tell(bandit, (20, 0.0))
    assert parent(bandit) == 12, "the good evaluation of arm 4 has died, the bad one has not"


def test_age_is_the_order_of_telling():
    """Members age in the order of tells, not of asks; forgotten picks are not members."""
    problem = Problem(seed=18, a=30)
    bandit = evolving(problem, batch_size=4)
    opened = bandit.ask()
    bandit.forget(opened[1:2])
    for place, reward in ((3, 5.0), (0, 2.0), (2, 1.0)):
        bandit.tell(opened[place : place + 1], torch.tensor([reward], dtype=torch.float64))
    members = bandit.loop.state.population.members
    assert members.tolist() == opened.index[[3, 0, 2]].tolist()
    assert bandit.ask().index.tolist() == [(int(opened.index[3]) + 1) % 30] * 4


def test_the_first_picks_are_uniform_and_pending_ones_are_counted():
    problem = Problem(seed=19, a=400)
    bandit = evolving(problem, population=200, batch_size=150)
    uniform = tb.Bandit(tb.uniform(batch_size=150), problem.tensor, generator=generator(15))
    first = bandit.ask().index
    assert first.tolist() == uniform.ask().index.tolist()
    assert first.unique().numel() > 100
    beyond = bandit.ask(more=100).index[150:]
    assert beyond.unique().numel() > 70, "no reward is told yet, so no member can be mutated"
    tell(bandit, (int(first[0]), 1.0))
    third = bandit.ask(more=3).index[-3:]
    assert third.tolist() == [(int(first[0]) + 1) % 400] * 3, "one told and 249 pending are more than 200"


def test_history_joins_with_its_averages():
    problem = Problem(seed=20, a=30)
    bandit = evolving(problem)
    index, counts = torch.tensor([4, 9, 4, 15]), torch.tensor([10.0, 1.0, 10.0, 2.0], dtype=torch.float64)
    bandit.observe(index, counts, torch.tensor([30.0, 2.0, -40.0, 3.0], dtype=torch.float64))
    population = bandit.loop.state.population
    assert population.members.tolist() == [4, 9, 15]
    assert population.rewards.tolist() == [-0.5, 2.0, 1.5]
    assert parent(bandit) == 9
    bandit.observe(torch.full((2, 2), 0.5).double(), counts[:2], counts[:2] * 100)
    assert bandit.loop.state.population.members.tolist() == [4, 9, 15], "points that are no arms do not join"
    assert parent(bandit) == 9


def test_mutants_are_on_offer():
    problem = Problem(seed=21, a=30)
    table = torch.full((30, 3), -1)
    table[5] = torch.tensor([6, 7, 5])
    bandit = evolving(problem, population=1, neighbors=table)
    tell(bandit, (5, 1.0))
    assert {int(i) for i in bandit.ask(more=40).index} == {6, 7}, "never the parent itself"
    bandit.forget(bandit.ask())
    available = torch.zeros(30, dtype=torch.bool)
    available[[7, 11, 12]] = True
    assert {int(i) for i in bandit.ask(more=40, available=available).index} == {7}
    bandit.forget(bandit.ask())
    available[7] = False
    assert {int(i) for i in bandit.ask(more=40, available=available).index} == {11, 12}, "no neighbour on offer"
    bandit.forget(bandit.ask())
    tell(bandit, (8, 1.0))
    assert bandit.ask(more=200).index.unique().numel() > 25, "no neighbour at all"


@pytest.mark.parametrize("chunk", [7, 1 << 16])
def test_the_nearest_arms_are_those_of_a_sort(monkeypatch, chunk):
    """Duplicates count once, and ties go to the lowest index. If there are fewer arms than asked for, all are returned."""
    monkeypatch.setattr(evolution, "_CHUNK", chunk)
    problem = Problem(seed=22, a=60, duplicates=15)
    arms = torch.round(problem.tensor * 4) / 4  # a grid has many ties and duplicates
    problem.arms = arms.numpy()
    bandit = tb.Bandit(tb.uniform(), arms, generator=generator(0))
    own = np.unique(oracles.first_copies(problem.arms))
    assert len(own) < 40
    for count in (1, 4, 100):
        for arm in own:
            found = evolution.nearest_arms(bandit.loop.state.rows, 0, int(arm), count)
            assert sorted(found.tolist()) == sorted(nearest(problem, count)(arm))


def test_one_arm_is_enough():
    for policy in (tb.regularized_evolution(population=1), tb.epsilon_greedy()):
        bandit = tb.Bandit(policy, torch.zeros(1, 2, dtype=torch.float64), generator=generator(0))
        for _ in range(3):
            selection = bandit.ask()
            assert selection.index.tolist() == [0]
            bandit.tell(selection, torch.zeros(1, dtype=torch.float64))


def test_a_state_of_a_population_of_another_size_is_refused():
    """States from before they named their policy are still loaded, and their youngest members survive."""
    problem = Problem(seed=23, a=30)
    bandit = evolving(problem, population=5)
    tell(bandit, (4, 1.0), (10, 9.0), (20, 2.0), (21, 3.0))
    saved = bandit.state_dict()
    early = {name: saved[name] for name in ("state", "open")}
    for size, members in ((2, [20, 21]), (6, [-1, -1, 4, 10, 20, 21])):
        other = evolving(problem, population=size)
        with pytest.raises(errors.StateError, match="population was 5"):
            other.load_state_dict(saved)
        with pytest.warns(errors.JournalWarning, match="earlier version"):
            other.load_state_dict(early)
        assert other.loop.state.population.members.tolist() == members
    assert bandit.loop.state.population.members.tolist() == [-1, 4, 10, 20, 21]


@pytest.mark.usefixtures("annotations_not_enforced")
@pytest.mark.parametrize(("options", "error", "words"), [
    ({"population": 0}, errors.ArgumentError, ["population", "0"]),
    ({"population": 2.5}, errors.ArgumentError, ["population", "2.5"]),
    ({"population": 21}, errors.ArgumentError, ["population=21", "population=20"]),
    ({"tournament": 0}, errors.ArgumentError, ["tournament", "0"]),
    ({"tournament": True}, errors.ArgumentError, ["tournament", "True"]),
    ({"num_neighbors": 0}, errors.ArgumentError, ["num_neighbors", "0"]),
    ({"batch_size": -1}, errors.ArgumentError, ["batch_size", "-1"]),
    ({"neighbors": "atuo"}, errors.ArgumentError, ["atuo", "'auto'"]),
    ({"neighbors": 3}, errors.ArgumentError, ["neighbors", "int"]),
    ({"neighbors": torch.zeros(20, 3)}, errors.ShapeError, ["neighbors", "float32"]),
    ({"neighbors": torch.zeros(20, dtype=torch.int64)}, errors.ShapeError, ["neighbors", "(20,)"]),
    ({"neighbors": torch.zeros(19, 3, dtype=torch.int64)}, errors.ShapeError, ["20", "19"]),
    ({"neighbors": torch.full((20, 3), 20)}, errors.ArmIndexError, ["20", "19"]),
    ({"neighbors": torch.full((20, 3), -2)}, errors.ArmIndexError, ["-2", "19"]),
])  # fmt: skip
def test_bad_populations_and_neighbors(options, error, words):
    with pytest.raises(error) as caught:
        tb.Bandit(tb.regularized_evolution(**{"population": 5} | options), Problem(seed=24, a=20).tensor)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(("answer", "error"), [
    ([3, 20], errors.ArmIndexError), ([-2], errors.ArmIndexError), ([0.5], errors.ShapeError), ([[1, 2]], errors.ShapeError),
    (4, errors.ShapeError),
])  # fmt: skip
def test_a_callable_that_answers_nonsense(answer, error):
    bandit = evolving(Problem(seed=25, a=20), neighbors=lambda arm: answer)
    tell(bandit, (1, 0.0), (2, 1.0), (3, 0.0))
    before = copy.deepcopy(bandit.state_dict())
    with pytest.raises(error, match=r"neighbors\(2\)"):
        bandit.ask()
    assert differences(before, bandit.state_dict()) == []


def test_a_callable_may_know_of_no_neighbor():
    bandit = evolving(Problem(seed=26, a=20), neighbors=lambda arm: [])
    tell(bandit, (1, 0.0), (2, 1.0), (3, 0.0))
    assert bandit.ask(more=100).index.unique().numel() > 15
