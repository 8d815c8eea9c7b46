"""What `auto` finds with contexts, beside a bandit of its own for each context, one that ignores the context, and random picks.

    python scripts/benchmarks/contexts.py [--seeds 10] [--pulls 120]

Arms are 1,000 candidates drawn anew for each seed, and the context of each pull is drawn at random. On `fcnet` and `nas201`
it is one of four and three data sets, for which the same configurations or architectures are good or bad
(`TORCHBANDITS_DATA`); on `moving` it is one of eight points of the unit square, with which the best arm moves. Rewards have
variance 1 over each context (`fcnet`, `nas201`) or over all pairs, and noise of deviation 0.1. Regret is 0 at the best arm of
a context and 1 at the average one.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from regrets import two_errors

import torchbandits as tb
from torchbandits import environments

# Arms, contexts, and the expected reward of each context (rows) and arm (columns).
Problem = tuple[np.ndarray, np.ndarray, np.ndarray]
ARMS = 1_000
WAYS = ("shared", "own", "ignored", "random")
FCNET = ("protein_structure", "slice_localization", "naval_propulsion", "parkinsons_telemonitoring")
NAS = ("cifar10", "cifar100", "imagenet16")


def standardized(values: np.ndarray) -> np.ndarray:
    """Columns of mean 0 and deviation 1; constant ones are 0."""
    deviation = values.std(axis=0)
    return (values - values.mean(axis=0)) / np.where(deviation > 0, deviation, 1)


def of_tables(tables: list[environments.Recorded], seed: int) -> Problem:
    """Arms, contexts and rewards of one table per context."""
    some = np.random.default_rng(seed).permutation(tables[0].arms.shape[-2])[:ARMS]
    rewards = [standardized(table.means.reshape(-1).double().numpy()[some]) for table in tables]
    return standardized(tables[0].arms.double().numpy()[some]), np.eye(len(tables)), np.stack(rewards)


def moving(seed: int) -> Problem:
    """A formula whose best arm depends on the context."""
    rng = np.random.default_rng(seed)
    x, contexts = rng.uniform(size=(ARMS, 4)), rng.uniform(size=(8, 2))
    a, b = contexts[:, :1], contexts[:, 1:]
    rewards = a - 3 * (x[:, 0] - 0.2 - 0.6 * a) ** 2 - (x[:, 1] - b) ** 2 + 0.5 * np.sin(5 * x[:, 2]) - 0.3 * x[:, 3] ** 2
    return x, contexts, (rewards - rewards.mean()) / rewards.std()


def problems() -> dict[str, Callable[[int], Problem]]:
    """The problems by name: functions of a seed."""
    configurations = [environments.fcnet(name) for name in FCNET]
    architectures = [environments.nas_bench_201(name) for name in NAS]
    return {"fcnet": partial(of_tables, configurations), "nas201": partial(of_tables, architectures), "moving": moving}


class Shared:
    """One model of all pairs of a context and an arm."""

    def __init__(self, x: torch.Tensor, contexts: torch.Tensor, seed: int) -> None:
        self.contexts = contexts
        self.bandit = tb.ContextualBandit(tb.auto(), x, contexts, generator=torch.Generator().manual_seed(seed))

    def pull(self, context: int, rewards: np.ndarray, noise: float) -> int:
        selection = self.bandit.ask(context=self.contexts[context])
        arm = int(selection.index[0])
        self.bandit.tell(selection, torch.tensor([rewards[arm] + noise], dtype=torch.float64))
        return arm

    def best(self, context: int) -> int:
        return int(self.bandit.best(1, context=self.contexts[context]).index)


class Apart:
    """A bandit for each context, or for all of them."""

    def __init__(self, x: torch.Tensor, number: int, seed: int) -> None:
        self.bandits = [tb.Bandit(tb.auto(), x, generator=torch.Generator().manual_seed(seed)) for _ in range(number)]

    def pull(self, context: int, rewards: np.ndarray, noise: float) -> int:
        bandit = self.bandits[context % len(self.bandits)]
        selection = bandit.ask()
        arm = int(selection.index[0])
        bandit.tell(selection, torch.tensor([rewards[arm] + noise], dtype=torch.float64))
        return arm

    def best(self, context: int) -> int:
        return int(self.bandits[context % len(self.bandits)].best(1).index)


class Random:
    """Random picks, and the one with the best reward of each context."""

    def __init__(self, arms: int, contexts: int, seed: int) -> None:
        self.rng, self.arms = np.random.default_rng(seed), arms
        self.found = [(-np.inf, 0)] * contexts

    def pull(self, context: int, rewards: np.ndarray, noise: float) -> int:
        arm = int(self.rng.integers(self.arms))
        self.found[context] = max(self.found[context], (rewards[arm] + noise, arm))
        return arm

    def best(self, context: int) -> int:
        return self.found[context][1]


def play(way: str, problem: Problem, pulls: int, seed: int) -> tuple[float, float, float]:
    """Mean regret of all pulls, of the second half of them, and of the recommended arms of all contexts."""
    x, contexts, rewards = problem
    arms, number = torch.from_numpy(x), len(contexts)
    makers: dict[str, Callable[[], Shared | Apart | Random]] = {
        "shared": lambda: Shared(arms, torch.from_numpy(contexts), seed),
        "own": lambda: Apart(arms, number, seed),
        "ignored": lambda: Apart(arms, 1, seed),
        "random": lambda: Random(len(x), number, seed),
    }
    player, rng = makers[way](), np.random.default_rng(seed)
    # Each context comes once before they are drawn, so that every bandit has something to recommend.
    order, noise = np.concatenate([np.arange(number), rng.integers(number, size=pulls - number)]), rng.normal(size=pulls)
    best, average = rewards.max(axis=1), rewards.mean(axis=1)

    def regret(context: int, arm: int) -> float:
        return (best[context] - rewards[context, arm]) / (best[context] - average[context])

    each = [regret(c, player.pull(c, rewards[c], 0.1 * e)) for c, e in zip(order.tolist(), noise.tolist(), strict=True)]
    return (
        float(np.mean(each)),
        float(np.mean(each[pulls // 2 :])),
        float(np.mean([regret(c, player.best(c)) for c in range(number)])),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--pulls", type=int, default=120)
    given = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    for name, problem in problems().items():
        drawn = [problem(seed) for seed in range(given.seeds)]
        found = {way: np.array([play(way, own, given.pulls, seed) for seed, own in enumerate(drawn)]) for way in WAYS}
        for way, own in found.items():
            difference = own - found["shared"]
            error = two_errors(difference)
            said = ", ".join(
                f"{what} {own[:, j].mean():.3f} ({difference[:, j].mean():+.3f} ± {error[j]:.3f})"
                for j, what in enumerate(("all pulls", "second half", "recommended"))
            )
            print(f"{name}, {way}: {said}", flush=True)


if __name__ == "__main__":
    main()
