"""Rows that cost unequally much: campaigns with `--cost` beside random rows, other rules, and campaigns that ignore the cost.

python scripts/benchmarks/unequal_costs.py tables --every 4 --offset 1   # 57 tables of R packages; forty minutes
python scripts/benchmarks/unequal_costs.py trainings --seeds 5           # NAS-Bench-201 and its seconds of training; 10 minutes

The tables are those of `many_tables.py`, in plates of four rows, with noise of 0.1 standard deviations of the objective. Costs
are of three kinds. `random`: 1, 2, 3 or 4 at random. `rising`: 1 to 4, and more for better rows. `wide`: up to thirty times as
much, by a feature. The regret of the recommended row (0 at the best row, 1 at the average one) is printed once as much has been
spent as 12, 24, 48 and 96 average rows cost. Of random rows the one with the highest result is recommended. Differences to the
campaign are paired by table, with two standard errors. One thread.
"""

from __future__ import annotations

import os

# Must be set before NumPy and torch start their threads.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import warnings
from collections.abc import Callable
from enum import StrEnum

import numpy as np
import pandas as pd
import torch
import typer
from many_tables import Half, tables
from pandas.api.types import is_bool_dtype, is_numeric_dtype
from regrets import relative, two_errors

import torchbandits as tb
from torchbandits.errors import DiagnosticWarning
from torchbandits.policies import Policy

NOISE, SIZE, SPENT, MOST = 0.1, 4, (12, 24, 48, 96), 240


class Kind(StrEnum):
    """What the costs of rows follow."""

    RANDOM = "random"
    RISING = "rising"
    WIDE = "wide"


WAYS: dict[str, Callable[[], Policy]] = {
    "gain per root of the cost": lambda: tb.per_cost(tb.auto()),
    "upper bound per cost": lambda: tb.per_cost(tb.auto(), exponent=1.0, baseline=0.0),
    "gain per cost": lambda: tb.per_cost(tb.auto(), exponent=1.0),
    "cost ignored": tb.auto,
}


def costs_of(kind: Kind, table: pd.DataFrame, values: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """The cost of each row."""
    rows = len(values)
    if kind == Kind.RANDOM:
        return rng.integers(1, 5, rows).astype(float)
    if kind == Kind.RISING:
        rank = values.argsort().argsort() / rows
        return np.clip(np.floor(1 + 4 * (0.6 * rank + 0.4 * rng.random(rows))), 1, 4)
    numbers = [c for c in table if c != "id" and is_numeric_dtype(table[c]) and not is_bool_dtype(table[c])]
    numbers = [c for c in numbers if table[c].nunique() > 2]
    share = table[numbers[0]].rank(pct=True).to_numpy() if numbers else rng.random(rows)
    return np.exp(3.4 * share)


def campaign(table: pd.DataFrame, values: np.ndarray, costs: np.ndarray, way: str, seed: int) -> list[float]:
    """The regret of the recommended row at each of the sums spent."""
    regret, rng = relative(values), np.random.default_rng(seed)
    row_of = {name: row for row, name in enumerate(table["id"])}
    own = tb.Campaign(
        table.assign(price=costs),
        objective="value",
        cost="price",
        policy=WAYS[way](),
        generator=torch.Generator().manual_seed(seed),
    )
    spent, told, found, now = 0.0, 0, [], float("nan")
    while len(found) < len(SPENT) and told < MOST:
        plate = own.ask(SIZE)
        rows = [row_of[name] for name in plate["id"]]
        spent += costs[rows].sum()
        found += [now] * (sum(spent > limit * costs.mean() for limit in SPENT) - len(found))
        own.tell(plate.assign(value=values[rows] + NOISE * rng.standard_normal(SIZE)))
        told += SIZE
        now = float(regret[row_of[own.best(1)["id"][0]]])
    return found + [now] * (len(SPENT) - len(found))


def at_random(values: np.ndarray, costs: np.ndarray, seed: int) -> list[float]:
    """The same for random rows, the mean of twenty draws."""
    regret, drawn = relative(values), []
    for draw in range(20):
        rng = np.random.default_rng([seed, draw])
        rows = rng.permutation(len(values))[:400]
        spent, results = costs[rows].cumsum(), values[rows] + NOISE * rng.standard_normal(len(rows))
        numbers = [max(1, int((spent <= limit * costs.mean()).sum())) for limit in SPENT]
        drawn.append([regret[rows[:number][results[:number].argmax()]] for number in numbers])
    return np.mean(drawn, axis=0).tolist()


def report(found: dict[str, list[list[float]]]) -> None:
    """Print the means of each way, and the differences to the first one."""
    first = np.array(next(iter(found.values())))
    for way, runs in found.items():
        less = np.array(runs) - first
        each = zip(np.mean(runs, axis=0), less.mean(axis=0), two_errors(less), strict=True)
        print(f"  {way}: {', '.join(f'{value:.3f} ({change:+.3f} ± {wide:.3f})' for value, change, wide in each)}")


app = typer.Typer(add_completion=False)


@app.command(name="tables")
def on_tables(half: Half = Half.JUDGED, seed: int = 0, every: int = 4, offset: int = 1) -> None:
    """Simple regrets on tables of R packages, by kind of costs, after each sum spent."""
    warnings.simplefilter("ignore", DiagnosticWarning)
    found: dict[Kind, dict[str, list[list[float]]]] = {kind: {way: [] for way in [*WAYS, "random rows"]} for kind in Kind}
    for number, (name, table, values) in enumerate(tables(half)):
        if number % every != offset:
            continue
        print(name, flush=True)
        for kind, runs in found.items():
            costs = costs_of(kind, table, values, np.random.default_rng(number))
            for way in WAYS:
                runs[way].append(campaign(table, values, costs, way, seed))
            runs["random rows"].append(at_random(values, costs, seed))
    for kind, runs in found.items():
        print(f"{kind}, {len(runs['random rows'])} tables; regret after {SPENT} average costs (less the first)")
        report(runs)


@app.command()
def trainings(seeds: int = 5) -> None:
    """Regrets of the recommended network of NAS-Bench-201 once as much was spent as 24 and 60 average trainings cost."""
    warnings.simplefilter("ignore", DiagnosticWarning)
    for data in ("cifar10", "cifar100", "imagenet16"):
        environment = tb.environments.nas_bench_201(data)
        found: dict[str, list[list[float]]] = {}
        for way, policy in {**WAYS, "random": tb.uniform}.items():
            for seed in range(seeds):
                budgets = [number * float(environment.costs.mean()) for number in (24, 60)]
                runs = [
                    tb.run(policy(), environment, 1_000, budget=budget, generator=torch.Generator().manual_seed(seed))
                    for budget in budgets
                ]
                found.setdefault(way, []).append([float(run.summary()["simple_regret"]) for run in runs])
        print(f"{data}, {seeds} seeds; regret in accuracy after (24, 60) average costs (less the first)")
        report(found)


if __name__ == "__main__":
    torch.set_num_threads(1)
    app()
