"""What `auto` gains from learning where evaluations fail, against only leaving out the arms that have failed.

python scripts/benchmarks/failures.py --seeds 5     # needs TORCHBANDITS_DATA, or fetches the tables; about ten minutes

Seven rules say which evaluations fail. Every run makes 110 evaluations one by one, with noise of a tenth of the table's
deviation. Regret is 0 at the best arm that does not fail and 1 at the average one; a failed evaluation has a regret of 1 in the
mean.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from regrets import two_errors

import torchbandits as tb
from torchbandits import environments

Reals = NDArray[np.float64]
# The arms that fail, and the probability that an evaluation of any arm does.
Failing = tuple[NDArray[np.bool_], float]

PULLS, ARMS, NOISE = 110, 6_000, 0.1


def tables() -> dict[str, environments.Environment]:
    """Tables that the comparison with other packages does not use."""
    return {
        "abalone": environments.abalone(),
        "cadata": environments.cadata(),
        "fcnet": environments.fcnet("protein_structure"),
        "nas_bench_201": environments.nas_bench_201("cifar100"),
        "wing_weight": environments.simulated_designs("wing_weight"),
    }


def behind(score: Reals, share: float) -> Failing:
    """The arms of the highest scores fail."""
    return score > np.quantile(score, 1 - share), 0.0


def near_the_best(X: Reals, y: Reals, draw: np.random.Generator) -> Failing:
    """A ball around a good arm, of a quarter of the arms."""
    center = X[draw.choice(np.argsort(-y)[5:100])]
    return behind(-((X - center) ** 2).sum(axis=1), 0.25)


def promising(X: Reals, y: Reals, draw: np.random.Generator) -> Failing:
    """The quarter of the arms that a linear model likes best, with errors in its weights."""
    weights = np.linalg.lstsq(X, y - y.mean(), rcond=None)[0]
    return behind(X @ (weights + 0.5 * draw.normal(size=len(weights)) * np.linalg.norm(weights) / len(weights) ** 0.5), 0.25)


RULES: dict[str, Callable[[Reals, Reals, np.random.Generator], Failing]] = {
    "40 % of the arms, behind a plane": lambda X, y, draw: behind(X @ draw.normal(size=X.shape[1]), 0.4),
    "80 % of the arms, behind a plane": lambda X, y, draw: behind(X @ draw.normal(size=X.shape[1]), 0.8),
    "25 % of the arms, around a good one": near_the_best,
    "25 % of the arms, the promising ones": promising,
    "25 % of the arms, drawn at random": lambda X, y, draw: (draw.random(len(y)) < 0.25, 0.0),
    "25 % of the evaluations, at random": lambda X, y, draw: (np.zeros(len(y), bool), 0.25),
    "60 % of the evaluations, at random": lambda X, y, draw: (np.zeros(len(y), bool), 0.6),
}


def run(X: Reals, y: Reals, failing: Failing, seed: int, *, teaches: bool) -> tuple[float, float, float]:
    """Return simple regret, mean regret and the share of evaluations that failed."""
    fails, chance = failing
    draw = np.random.default_rng(seed)
    noise, luck = NOISE * y.std() * draw.normal(size=PULLS), draw.random(PULLS)
    bandit = tb.Bandit(tb.auto(), torch.from_numpy(X), generator=torch.Generator().manual_seed(seed))
    best, average = y[~fails].max(), y[~fails].mean()
    offered = torch.ones(len(y), dtype=torch.bool)
    total, failed = 0.0, 0
    for pull in range(PULLS):
        selection = bandit.ask(available=offered)
        arm = int(selection.index)
        if not fails[arm] and luck[pull] >= chance:
            bandit.tell(selection, torch.tensor([y[arm] + noise[pull]]))
            total += (best - y[arm]) / (best - average)
            continue
        failed += 1
        if teaches:
            bandit.tell(selection, torch.tensor([torch.nan], dtype=torch.float64), failures="forget")
        else:
            bandit.forget(selection)
            offered[arm] = False
    chosen = y[int(bandit.best(1).index)] if failed < PULLS else average
    return (best - chosen) / (best - average), (total + failed) / PULLS, failed / PULLS


def main(seeds: int) -> None:
    """Print a row per rule: averages over tables and seeds, and the paired difference with two standard errors."""
    warnings.simplefilter("ignore", tb.errors.DiagnosticWarning)
    print("| which fail | evaluations lost | simple regret | difference | mean regret | difference |")
    print("| --- | --- | --- | --- | --- | --- |")
    known = tables()
    for name, rule in RULES.items():
        results = []
        for table in known.values():
            draw = np.random.default_rng(0)
            some = draw.permutation(table.arms.shape[-2])[:ARMS]
            X, y = table.arms.numpy()[some].astype(np.float64), table.means.numpy()[some].astype(np.float64)
            X = (X - X.mean(axis=0)) / np.where(X.std(axis=0) > 0, X.std(axis=0), 1.0)
            for seed in range(seeds):
                failing = rule(X, y, np.random.default_rng(1000 + seed))
                results.append([run(X, y, failing, seed, teaches=teaches) for teaches in (False, True)])
        # runs x (left out, told) x measures
        all_of = np.array(results)
        average, change = all_of.mean(axis=0), all_of[:, 1] - all_of[:, 0]
        error = two_errors(change)
        cells = [f"{average[0, 2]:.0%}, {average[1, 2]:.0%}"]
        for measure in (0, 1):
            cells.append(f"{average[0, measure]:.3f}, {average[1, measure]:.3f}")
            cells.append(f"{change.mean(axis=0)[measure]:+.3f} ± {error[measure]:.3f}")
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    torch.set_num_threads(1)
    main(parser.parse_args().seeds)
