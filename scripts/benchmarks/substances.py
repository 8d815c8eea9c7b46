"""What `auto` gains if reagents given as SMILES are substances, and not categories, on three tables of measured yields.

git clone https://github.com/b-shields/edbo     # Shields et al. 2021; the tables are not part of this repository
python scripts/benchmarks/substances.py edbo    # about twenty minutes

Regret is 0 at the best reaction and 1 at the average one. Differences are paired by table and seed.
"""

from __future__ import annotations

import argparse
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import torch

import torchbandits as tb

TABLES = ("direct_arylation", "suzuki", "aryl_amination")
COUNTS, SEEDS = (24, 48, 96), 16


def run(table: pd.DataFrame, kind: str, noise: float, batch: int, seed: int) -> list[float]:
    """Simple regret after each of `COUNTS` evaluations, and the mean regret of all."""
    reagents = [name for name in table.columns if name.endswith("SMILES")]
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
        plate = campaign.ask(min(batch, COUNTS[-1] - made))
        rows = np.array([row_of[str(name)] for name in plate["entry"]])
        values = y[rows] + noise * y.std() * draw.normal(size=len(rows))
        campaign.tell(plate[["entry"]].assign(**{"yield": values}))
        total, made = total + (y.max() - y[rows]).sum(), made + len(rows)
        if made in COUNTS:
            best = y[row_of[str(campaign.best(1)["entry"][0])]]
            found.append((y.max() - best) / (y.max() - y.mean()))
    return [*found, total / made / (y.max() - y.mean())]


def main(folder: Path, seeds: int) -> None:
    """Print a row per noise and batch size: regrets as categories and as substances, and differences ± two standard errors."""
    warnings.simplefilter("ignore", tb.errors.DiagnosticWarning)
    tables = [pd.read_csv(folder / "experiments" / "data" / name / "experiment_index.csv").dropna() for name in TABLES]
    print(f"| noise, plates of | {' | '.join(f'simple regret after {n}' for n in COUNTS)} | mean regret of {COUNTS[-1]} |")
    print("| --- " * (len(COUNTS) + 2) + "|")
    for noise in (0.05, 0.3):
        for batch in (8, 1):
            runs = np.array(
                [
                    [run(table, kind, noise, batch, seed) for kind in ("category", "substance")]
                    for table in tables
                    for seed in range(seeds)
                ]
            )
            average, change = runs.mean(axis=0), runs[:, 1] - runs[:, 0]
            error = 2 * change.std(axis=0, ddof=1) / len(runs) ** 0.5
            each = zip(*average, change.mean(axis=0), error, strict=True)
            cells = [f"{one:.3f}, {other:.3f} ({less:+.3f} ± {wide:.3f})" for one, other, less, wide in each]
            print(f"| {noise}, {batch} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="the clone of edbo")
    parser.add_argument("--seeds", type=int, default=SEEDS)
    torch.set_num_threads(1)
    arguments = parser.parse_args()
    main(arguments.folder, arguments.seeds)
