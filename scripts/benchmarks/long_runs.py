"""`auto` against variants of itself, in short and in long runs: paired regrets, on functions and on tables.

python scripts/benchmarks/long_runs.py --pulls 300 --batch 10 --seeds 4                     # seven functions of 4,000 points
python scripts/benchmarks/long_runs.py --pulls 110 --problems tables --noise 1 --seeds 3    # five tables of TORCHBANDITS_DATA
python scripts/benchmarks/long_runs.py --variant before --pulls 300 --pulls 1500 --problems more --seeds 1    # 24 functions
python scripts/benchmarks/long_runs.py --variant unrepeated --waiting 7 --pulls 112 --problems tables --noise 0.5    # workers

Variants are `auto` as it was: `scores`, where between two fits the model averages the normal scores of single rewards; and
`before`, where the width does not grow, all pulls of an arm count in the ranks and scores may rise faster than the noise. The
last three are also variants alone: `constant`, `uncounted` and `steep`. With `early` the width grows from the first repeat per
arm on, with `narrow` the prior of the noise is BoTorch's, and with `ten` only ten repeats tell random effects from noise. With
`unrepeated` there are no replicates for picks that are made one by one while others wait for their rewards.
Regrets, and errors of the reported mean of the recommended arm in reported deviations, are printed after each number of pulls
given. Noise is in deviations of the rewards, and regret is 0 at the best arm and 1 at the average arm. One thread.
"""

from __future__ import annotations

import os

# Must be set before NumPy and torch start their threads.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import warnings
from collections import deque
from collections.abc import Sequence
from typing import Annotated

import numpy as np
import torch
import typer
from auto_problems import PROBLEMS, Problem
from auto_variants import VARIANTS
from regrets import relative, two_errors

import torchbandits as tb
from torchbandits.errors import DiagnosticWarning


def play(
    problem: Problem, noise: np.ndarray, batch: int, seed: int, marks: Sequence[int], *, skewed: bool, waiting: int
) -> list[tuple[float, float, float]]:
    """Simple regret, mean regret, and the error of the recommended arm in deviations, of one run after each number of pulls in
    `marks`, which rise. Regret is not skewed. With `waiting`, that many picks wait for their rewards whenever one is made."""
    x, y = problem
    bandit = tb.Bandit(tb.auto(batch_size=batch), torch.from_numpy(x), generator=torch.Generator().manual_seed(seed))
    pulled: list[int] = []
    open_picks: deque[tuple[torch.Tensor, np.ndarray]] = deque()
    regret, found = relative(y), []
    for mark in marks:
        while len(pulled) < mark:
            if waiting:
                index = bandit.ask(more=1).index[-1:]
            else:
                selection = bandit.ask(limit=min(batch, mark - len(pulled)))
                index = selection.index[selection.mask]
            rewards = y[index] + noise[len(pulled) : len(pulled) + len(index)]
            open_picks.append((index, np.exp(2 * rewards) if skewed else rewards))
            pulled += index.tolist()
            if len(open_picks) > waiting:
                bandit.tell(*open_picks.popleft())
        best = bandit.best()
        arm, off = int(best.index[0]), float(best.mean[0]) - (np.exp(2 * y) if skewed else y)[int(best.index[0])]
        found.append((float(regret[arm]), float(regret[pulled].mean()), abs(off) / float(best.variance[0]) ** 0.5))
    return found


def main(
    variant: Annotated[str, typer.Option(help=f"One of {', '.join(VARIANTS)}.")] = "scores",
    problems: Annotated[str, typer.Option(help=f"One of {', '.join(PROBLEMS)}.")] = "functions",
    pulls: Annotated[list[int], typer.Option(help="May be given several times.")] = [300],  # noqa: B006
    batch: int = 1,
    noise: float = 0.3,
    seeds: int = 4,
    skewed: Annotated[bool, typer.Option("--skewed", help="Tell exp(2 y) in place of each noisy reward y.")] = False,
    waiting: Annotated[int, typer.Option(help="Picks made one by one, while this many wait for their rewards.", min=0)] = 0,
) -> None:
    """Regrets of `auto` and of the variant by problem, and paired differences of all runs."""
    warnings.simplefilter("ignore", DiagnosticWarning)
    differences, marks = [], sorted(pulls)
    for number, problem in enumerate(PROBLEMS[problems]()):
        drawn = [noise * np.random.default_rng([seed, number]).standard_normal(marks[-1]) for seed in range(seeds)]

        def runs(problem: Problem = problem, drawn: list[np.ndarray] = drawn) -> np.ndarray:
            each = (play(problem, drawn[seed], batch, seed, marks, skewed=skewed, waiting=waiting) for seed in range(seeds))
            return np.array(list(each))

        own = runs()
        with VARIANTS[variant]():
            other = runs()
        differences.append(own - other)
        means = (*own[:, -1].mean(axis=0), *other[:, -1].mean(axis=0))
        print("{}: auto {:.3f} / {:.3f}, {} {:.3f} / {:.3f}".format(number, *means[:2], variant, *means[3:5]), flush=True)
    every = np.concatenate(differences)
    for mark, at in zip(marks, every.swapaxes(0, 1), strict=True):
        for name, found in zip(("simple regret", "mean regret", "error in deviations"), at.T, strict=True):
            change = f"{found.mean():+.3f} ± {two_errors(found):.3f} ({len(found)} runs)"
            print(f"{mark} pulls, {name}, auto less {variant}: {change}")


if __name__ == "__main__":
    typer.run(main)
