"""Comparison of torchbandits with its peers on tables that were not used for tuning.

pip install -c constraints.txt -e '.[experiments,peers]'
python scripts/benchmarks/peers.py run --budget small      # every method, table and seed that is not recorded yet
python scripts/benchmarks/peers.py run --budget small --methods random --methods auto --tables hplc --seeds 3
python scripts/benchmarks/peers.py run --budget large --methods botorch --seeds 1 --limit 600    # slow methods, for ten minutes
python scripts/benchmarks/peers.py report                  # docs/peers.md, docs/peers/tables.md and the picture

A run uses one thread. Its line is appended to docs/results/peers/records.csv as soon as it ends, so the script can be killed
and restarted at any time.
"""

from __future__ import annotations

import os

# Must be set before NumPy and torch start their threads.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import time
import warnings
from pathlib import Path
from typing import Annotated

import typer
from peer_study.game import BUDGETS, play
from peer_study.methods import METHODS
from peer_study.records import append, done, read, record_of
from peer_study.report import write_page
from peer_study.tables import TABLES

ROOT = Path(__file__).resolve().parents[2]
RECORDS = ROOT / "docs" / "results" / "peers" / "records.csv"

app = typer.Typer(add_completion=False, help=__doc__.splitlines()[0])


def known(names: list[str], everything: dict, what: str) -> list[str]:
    """The requested names, or all names if none are given."""
    for name in names:
        if name not in everything:
            raise typer.BadParameter(f"There is no {what} {name!r}. There are: {', '.join(everything)}.")
    return names or list(everything)


@app.command()
def run(
    budget: Annotated[str, typer.Option(help=f"One of {', '.join(BUDGETS)}.")] = "small",
    methods: Annotated[list[str], typer.Option(help="Repeat for several; all by default.")] = [],  # noqa: B006
    tables: Annotated[list[str], typer.Option(help="Repeat for several; all by default.")] = [],  # noqa: B006
    seeds: Annotated[int, typer.Option(help="Seeds 0, 1, … below this number.")] = 10,
    again: Annotated[bool, typer.Option(help="Run what is recorded as well; its last record counts.")] = False,
    limit: Annotated[float, typer.Option(help="Stop a run after this many processor seconds.", min=1)] = float("inf"),
    records: Path = RECORDS,
) -> None:
    """Run everything that is not yet recorded, one run after the other: all tables and methods of a seed before the next
    seed. Runs that were stopped are recorded, too."""
    known([budget], BUDGETS, "budget")
    size = BUDGETS[budget]
    methods, tables = known(methods, METHODS, "method"), known(tables, TABLES, "table")
    finished = set() if again else done(records)
    loaded = {name: TABLES[name]() for name in tables}
    for seed in range(seeds):
        for method in methods:
            for name, table in loaded.items():
                key = (method, name, budget, seed)
                if key in finished or len(table.values) < size.fewest_candidates:
                    continue
                # Imports do not count towards the time of decisions.
                METHODS[method].load()
                began = time.process_time()
                player = METHODS[method].build(table, size, seed)
                outcome = play(player, table, size, seed, started=time.process_time() - began, limit=limit)
                append(records, record_of(key, outcome, METHODS[method].packages))
                print(
                    f"{method} {name} {budget} {seed}: {outcome.simple_regret:.3f} / {outcome.mean_regret:.3f} in "
                    f"{outcome.seconds:.1f} s, {outcome.evaluations:,} evaluations",
                    flush=True,
                )


@app.command()
def report(records: Path = RECORDS, page: Path = ROOT / "docs" / "peers.md") -> None:
    """Write the page and its picture from the records."""
    print(f"written: {write_page(read(records), page)}")


if __name__ == "__main__":
    # These are warnings of the peers; a failing run raises an error.
    warnings.filterwarnings("ignore")
    app()
