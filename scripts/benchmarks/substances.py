"""Campaigns on tables of measured yields: reagents as categories or as substances, and rows measured again or not.

git clone https://github.com/b-shields/edbo               # Shields et al. 2021: the tables that the method was chosen on
git clone https://github.com/beef-broccoli/ochem-data     # CC BY 4.0: four tables that it was not chosen on
python scripts/benchmarks/substances.py edbo ochem-data   # about forty minutes; the tables are not part of this repository
python scripts/benchmarks/substances.py edbo ochem-data --compare repeats --first-seed 300

Regret is 0 at the best reaction and 1 at the average one. Differences are paired by table and seed.
"""

from __future__ import annotations

import argparse
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from regrets import two_errors

import torchbandits as tb

# Where each repository keeps its tables.
TABLES = {
    "experiments/data/{}/experiment_index.csv": ("direct_arylation", "suzuki", "aryl_amination"),
    "deebo/{}.csv": ("amidation", "deoxyf", "aryl-scope-ligand", "unused/vbur"),
}
COUNTS, SEEDS = (24, 48, 96), 16
# The kind of the reagents, and `repeats` of `Campaign.ask`, of the two campaigns that are compared.
COMPARED: dict[str, tuple[tuple[str, bool | None], ...]] = {
    "substances": (("category", True), ("substance", True)),
    "repeats": (("category", True), ("category", None)),
}


def read(path: Path) -> pd.DataFrame:
    """The reagents, other conditions and yields of a table, with the number of the row as `entry`."""
    table = pd.read_csv(path, encoding="utf-8-sig").dropna().rename(columns=str.lower)
    used = [name for name in table.columns if name.endswith("_smiles") and not name.startswith("product")]
    return table[[*used, *(name for name in ("concentration", "temp_c") if name in table), "yield"]].assign(
        entry=range(len(table))
    )


def run(table: pd.DataFrame, kind: str, repeats: bool | None, noise: float, batch: int, seed: int) -> list[float]:
    """Simple regret after each of `COUNTS` evaluations, and the mean regret of all."""
    reagents = [name for name in table.columns if name.endswith("_smiles")]
    y = table["yield"].to_numpy(float)
    campaign = tb.Campaign(
        table.drop(columns="yield"),
        objective="yield",
        id="entry",
        columns=dict.fromkeys(reagents, kind),
        generator=torch.Generator().manual_seed(seed),
    )
    row_of, draw = {str(name): row for row, name in enumerate(table["entry"])}, np.random.default_rng(seed)
    found, total, made = [], 0.0, 0
    while made < COUNTS[-1]:
        plate = campaign.ask(min(batch, COUNTS[-1] - made), repeats=repeats)
        rows = np.array([row_of[str(name)] for name in plate["entry"]])
        values = y[rows] + noise * y.std() * draw.normal(size=len(rows))
        campaign.tell(plate[["entry"]].assign(**{"yield": values}))
        total, made = total + (y.max() - y[rows]).sum(), made + len(rows)
        if made in COUNTS:
            best = y[row_of[str(campaign.best(1)["entry"][0])]]
            found.append((y.max() - best) / (y.max() - y.mean()))
    return [*found, total / made / (y.max() - y.mean())]


def report(tables: list[pd.DataFrame], compared: str, seeds: range) -> None:
    """Print a row per noise and batch size: regrets of both campaigns, and differences ± two standard errors."""
    print(f"| noise, plates of | {' | '.join(f'simple regret after {n}' for n in COUNTS)} | mean regret of {COUNTS[-1]} |")
    print("| --- " * (len(COUNTS) + 2) + "|")
    for noise in (0.05, 0.3):
        for batch in (8, 1):
            runs = np.array(
                [
                    [run(table, *options, noise, batch, seed) for options in COMPARED[compared]]
                    for table in tables
                    for seed in seeds
                ]
            )
            average, change = runs.mean(axis=0), runs[:, 1] - runs[:, 0]
            error = two_errors(change)
            each = zip(*average, change.mean(axis=0), error, strict=True)
            cells = [f"{one:.3f}, {other:.3f} ({less:+.3f} ± {wide:.3f})" for one, other, less, wide in each]
            print(f"| {noise}, {batch} | {' | '.join(cells)} |", flush=True)


def main(folders: list[Path], compared: str, seeds: range) -> None:
    warnings.simplefilter("ignore", tb.errors.DiagnosticWarning)
    for folder in folders:
        found = [(p, names) for p, names in TABLES.items() if all((folder / p.format(name)).exists() for name in names)]
        if not found:
            raise SystemExit(f"{folder} is a clone of neither repository: it lacks {', '.join(TABLES)}.")
        pattern, names = found[0]
        print(f"\n{', '.join(names)}:\n")
        report([read(folder / pattern.format(name)) for name in names], compared, seeds)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", type=Path, nargs="+", help="the clones")
    parser.add_argument("--compare", choices=COMPARED, default="substances")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--seeds", type=int, default=SEEDS)
    torch.set_num_threads(1)
    arguments = parser.parse_args()
    main(arguments.folders, arguments.compare, range(arguments.first_seed, arguments.first_seed + arguments.seeds))
