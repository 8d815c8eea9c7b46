"""Campaigns that begin with the results of an earlier project, beside random rows and another method.

python scripts/benchmarks/histories.py --every 4 --offset 1 --rival together   # 57 tables of R packages; ten minutes

The tables are those of `many_tables.py`, with noise of 0.1 standard deviations of the objective. Forty results are told first,
of rows of three kinds. `random`: any rows. `poor`: rows of the worse half. `narrow`: the rows nearest to one of them. Then 32
rows are chosen by eights. Regret is 0 at the best row and 1 at the average one; that of the recommended row is printed after
each plate, and the mean of the 32 rows (at most 1.5) at the end. Of random rows the one with the highest result, told or new,
is recommended. The rival is a method of `peers.py`, or a variant of `auto_variants.py`. Differences are paired by table, with
two standard errors. One thread.
"""

from __future__ import annotations

import os

# Must be set before NumPy and torch start their threads.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import warnings
from enum import StrEnum

import numpy as np
import pandas as pd
import torch
import typer
from auto_variants import VARIANTS
from many_tables import Half, listed, tables
from peer_study.game import Budget
from peer_study.methods import METHODS
from regrets import relative, two_errors

import torchbandits as tb
from torchbandits.errors import DiagnosticWarning

NOISE, TOLD, SIZE, PULLS = 0.1, 40, 8, 32


class Kind(StrEnum):
    """Which rows the earlier project measured."""

    RANDOM = "random"
    POOR = "poor"
    NARROW = "narrow"


def earlier(kind: Kind, points: np.ndarray, values: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """The rows whose results are told first."""
    if kind == Kind.NARROW:
        return np.argsort(((points - points[rng.integers(len(points))]) ** 2).sum(axis=1), kind="stable")[:TOLD]
    allowed = len(values) if kind == Kind.RANDOM else len(values) // 2
    return rng.choice(np.argsort(values)[:allowed] if kind == Kind.POOR else allowed, TOLD, replace=False)


def campaign(table: pd.DataFrame, values: np.ndarray, seed: int, told: np.ndarray, results: np.ndarray) -> list[float]:
    """The regrets of a campaign."""
    regret, rng = relative(values), np.random.default_rng(seed + 1)
    row_of = {name: row for row, name in enumerate(table["id"])}
    own, found, picks = tb.Campaign(table, objective="value", generator=torch.Generator().manual_seed(seed)), [], []
    own.tell(table.iloc[told][["id"]].assign(value=results))
    while len(picks) < PULLS:
        plate = own.ask(SIZE)
        rows = [row_of[name] for name in plate["id"]]
        own.tell(plate[["id"]].assign(value=values[rows] + NOISE * rng.standard_normal(SIZE)))
        picks += rows
        found.append(float(regret[row_of[own.best(1)["id"][0]]]))
    return [*found, min(1.5, float(regret[picks].mean()))]


def of_peer(
    method: str, table: pd.DataFrame, values: np.ndarray, seed: int, told: np.ndarray, results: np.ndarray
) -> list[float]:
    """The regrets of a method of `peers.py`."""
    given, rng, found, picks = listed(table, values), np.random.default_rng(seed + 1), [], []
    peer = METHODS[method].build(given, Budget(TOLD + PULLS, SIZE), seed)
    peer.tell(told, results)
    while len(picks) < PULLS:
        rows = peer.ask(SIZE)
        peer.tell(rows, values[rows] + NOISE * rng.standard_normal(SIZE))
        picks += rows.tolist()
        found.append(float(given.regret(np.array(peer.recommend()))))
    return [*found, min(1.5, float(given.regret(np.array(picks)).mean()))]


def at_random(values: np.ndarray, seed: int, told: np.ndarray, results: np.ndarray) -> list[float]:
    """The regrets of random rows, the mean of twenty draws."""
    regret, drawn = relative(values), []
    for draw in range(20):
        rng = np.random.default_rng([seed, draw])
        rows = rng.permutation(np.setdiff1d(np.arange(len(values)), told))[:PULLS]
        new = values[rows] + NOISE * rng.standard_normal(PULLS)
        best = [np.concatenate([results, new[:n]]).argmax() for n in range(SIZE, PULLS + 1, SIZE)]
        every = np.concatenate([told, rows])
        drawn.append([*regret[every[best]], min(1.5, regret[rows].mean())])
    return np.mean(drawn, axis=0).tolist()


def main(half: Half = Half.JUDGED, rival: str = "together", seed: int = 0, every: int = 4, offset: int = 1) -> None:
    """Regrets by kind of history, and differences to the rival and to random rows."""
    warnings.simplefilter("ignore", DiagnosticWarning)
    found: dict[Kind, list[list[list[float]]]] = {kind: [] for kind in Kind}
    for number, (name, table, values) in enumerate(tables(half)):
        if number % every != offset:
            continue
        print(name, flush=True)
        points = listed(table, values).points
        for kind, runs in found.items():
            rng = np.random.default_rng(number)
            told = earlier(kind, points, values, rng)
            results = values[told] + NOISE * rng.standard_normal(TOLD)
            own = campaign(table, values, seed, told, results)
            if rival in METHODS:
                other = of_peer(rival, table, values, seed, told, results)
            else:
                with VARIANTS[rival]():
                    other = campaign(table, values, seed, told, results)
            runs.append([own, other, at_random(values, seed, told, results)])
    for kind, runs in found.items():
        regrets = np.array(runs)
        print(f"{kind}, {len(regrets)} tables; regret after 8, 16, 24 and 32 rows, and the mean of these rows")
        for way, at in ((0, "campaign"), (1, rival), (2, "random rows")):
            less = regrets[:, 0] - regrets[:, way]
            shown = zip(regrets[:, way].mean(axis=0), less.mean(axis=0), two_errors(less), strict=True)
            print(f"  {at}: {', '.join(f'{value:.3f} ({change:+.3f} ± {error:.3f})' for value, change, error in shown)}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    typer.run(main)
