"""What detection limits cost `auto`, and what a result beyond a limit should be taken as.

python scripts/benchmarks/detection.py                                       # seven functions of 4,000 points
python scripts/benchmarks/detection.py --problems tables --noise 0.5 --seeds 3      # five tables of TORCHBANDITS_DATA
python scripts/benchmarks/detection.py --known --case "lowest 60 %" --seeds 2       # campaigns that know their noise

A lower limit hides the lowest 30, 60 or 85 % of the arms, an upper limit the best 5 %; with two lower limits, every other plate
has the one at 30 % and the others that at 85 %, which lies above values that were measured. A result beyond a limit is taken as
the limit, or as something else (`WAYS`). Twelve plates of eight. Noise is in deviations of the rewards; regret is that of the
true rewards, 0 at the best arm and 1 at the average arm. Differences to the limit are paired by problem and seed. One thread.
"""

from __future__ import annotations

import os

# Must be set before NumPy and torch start their threads.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import math
import warnings
from collections.abc import Callable
from types import SimpleNamespace
from typing import Annotated, cast

import numpy as np
import torch
import typer
from auto_problems import PROBLEMS
from regrets import print_differences, relative

import torchbandits as tb
from torchbandits.campaigns.known_noise import known_noise
from torchbandits.errors import DiagnosticWarning
from torchbandits.policies import Policy
from torchbandits.tabular.decisions import Decisions

PLATES, SIZE = 12, 8
# The quantiles at which the lower limits of plates lie in turn, and that of the upper limit.
CASES: dict[str, tuple[tuple[float, ...], float]] = {
    "lowest 30 %": ((0.3,), 1.0),
    "lowest 60 %": ((0.6,), 1.0),
    "lowest 85 %": ((0.85,), 1.0),
    "lowest 30 % and 85 % in turn": ((0.3, 0.85), 1.0),
    "best 5 %": ((0.0,), 0.95),
}


def median_beyond(limit: float, told: np.ndarray, least: float) -> float:
    """The median of the values measured below a limit; the limit if there are none."""
    beyond = told[told < limit]
    return float(np.median(beyond)) if len(beyond) else limit


# What a result below a limit is taken as, given the values measured so far and the least possible one: NaN for a failed
# evaluation, infinity for none.
WAYS: dict[str, Callable[[float, np.ndarray, float], float]] = {
    "the limit": lambda limit, told, least: limit,
    "failed": lambda limit, told, least: math.nan,
    "left out": lambda limit, told, least: math.inf,
    "halfway to the least value": lambda limit, told, least: (limit + least) / 2,
    "below all measured": lambda limit, told, least: min([limit, *told]),
    "median of the values beyond it": median_beyond,
}


def policy_of(x: np.ndarray, noise: float, known: bool) -> Policy:
    """`auto`, or the policy of campaigns that know their noise."""
    if not known:
        return tb.auto(batch_size=SIZE)
    return known_noise(noise, cast("Decisions", SimpleNamespace(features=x.shape[1], molecules=None)))


def play(x: np.ndarray, y: np.ndarray, case: str, way: str, noise: float, seed: int, known: bool) -> tuple[float, float]:
    """Simple and mean regret of one run."""
    low, high = CASES[case]
    lower, upper = np.quantile(y, low), np.quantile(y, high) if high < 1 else math.inf
    regret = relative(y)
    bandit = tb.Bandit(policy_of(x, noise, known), torch.from_numpy(x), generator=torch.Generator().manual_seed(seed))
    pulled, measured = [], np.empty(0)
    for plate in range(PLATES):
        batch = bandit.ask(exactly=SIZE)
        index = batch.index.numpy()
        told = y[index] + noise * np.random.default_rng([seed, plate, 13]).standard_normal(SIZE)
        if way != "no limit":
            least = lower[plate % len(low)] if low != (0.0,) else -math.inf
            below, above = told < least, told > upper
            measured = np.append(measured, told[~below & ~above])
            told[below] = WAYS[way](least, measured, y.min())
            told[above] = -WAYS[way](-upper, -measured, -y.max())
        learned = ~np.isinf(told)
        if learned.any():
            bandit.tell(torch.from_numpy(index[learned]), torch.from_numpy(told[learned]), failures="forget")
        if not learned.all():
            bandit.forget(torch.from_numpy(index[~learned]))
        pulled += index.tolist()
    # Without a value any arm would be recommended.
    found = float(regret[int(bandit.best_arm())]) if int(bandit.pulls) else 1.0
    return found, float(regret[pulled].mean())


def main(
    problems: Annotated[str, typer.Option(help=f"One of {', '.join(PROBLEMS)}.")] = "functions",
    noise: float = 0.1,
    seeds: int = 3,
    first: int = 0,
    cases: Annotated[list[str] | None, typer.Option("--case", help="Some of the cases; by default all.")] = None,
    known: Annotated[bool, typer.Option("--known", help="GP-UCB with the right noise instead of `auto`.")] = False,
) -> None:
    """Print simple and mean regret of each way, and the differences to taking the limit, with two standard errors."""
    warnings.simplefilter("ignore", DiagnosticWarning)
    runs = [
        (np.ascontiguousarray(x, np.float64), np.ascontiguousarray((y - y.mean()) / y.std(), np.float64), seed)
        for x, y in PROBLEMS[problems]()
        for seed in range(first, first + seeds)
    ]
    if known:
        # A given kernel has the same lengthscale for all features at first, as for the columns of a campaign.
        runs = [((x - x.mean(axis=0)) / np.where(x.std(axis=0) > 0, x.std(axis=0), 1.0), y, seed) for x, y, seed in runs]
    free = [play(x, y, next(iter(CASES)), "no limit", noise, seed, known) for x, y, seed in runs]
    for case in cases or CASES:
        low, _ = CASES[case]
        print(f"\n{case}, {problems}, noise {noise:g}")
        # Only limits that differ lie above values that were measured.
        ways = WAYS if len(low) > 1 else dict(list(WAYS.items())[:4])
        found = {way: [play(x, y, case, way, noise, seed, known) for x, y, seed in runs] for way in ways}
        print_differences(found | {"no limit": free})


if __name__ == "__main__":
    typer.run(main)
