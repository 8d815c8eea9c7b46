"""A made-up laboratory: a table of 1,800 reactions, and the yields that it would measure.

    python docs/examples/eight_a_day/laboratory.py --days 5 --seeds 3      # runs the three programs beside this file

Each program is started anew every day in a folder of its own, as a person would do. In each seed all have the same first plate.
"""

from __future__ import annotations

import argparse
import itertools
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pandas as pd

HERE = Path(__file__).parent
PROGRAMS = ("torchbandits", "botorch", "baybe")


def candidates() -> pd.DataFrame:
    """1,800 reactions: temperature, concentration, solvent and catalyst."""
    concentrations = [float(f"{value:.3g}") for value in np.geomspace(1e-4, 1e-1, 10)]
    rows = itertools.product(range(20, 140, 10), concentrations, ["DMF", "DMSO", "EtOH", "THF", "water"], ["A", "B", "C"])
    table = pd.DataFrame(rows, columns=["temperature", "concentration", "solvent", "catalyst"])
    table.insert(0, "id", [f"R{row:04d}" for row in range(len(table))])
    return table


def true_yield(table: pd.DataFrame) -> pd.Series:
    """Expected yield in per cent: a peak in temperature and concentration that moves with the catalyst."""
    best = table["catalyst"].map({"A": 60.0, "B": 90.0, "C": 110.0})
    height = table["solvent"].map({"DMF": 80.0, "DMSO": 92.0, "EtOH": 55.0, "THF": 60.0, "water": 30.0})
    thermal = np.exp(-(((table["temperature"] - best) / 25) ** 2))
    diluted = np.exp(-((np.log10(table["concentration"]) + 2.3) ** 2))
    return height * thermal * diluted


def measure(plate: pd.DataFrame, rng: np.random.Generator) -> pd.DataFrame:
    """Ids and measured yields, with a deviation of two per cent."""
    return pd.DataFrame({"id": plate["id"], "yield": (true_yield(plate) + rng.normal(0, 2, len(plate))).round(1)})


def play(program: str, days: int, seed: int, folder: Path) -> tuple[float, float]:
    """Run a program for some days; return the true yield of the best reaction measured and the seconds of all its starts."""
    table, rng = candidates(), np.random.default_rng(seed)
    table.to_csv(folder / "candidates.csv", index=False)
    results, seconds = [measure(table.sample(8, random_state=seed), rng)], 0.0
    for _ in range(days - 1):
        pd.concat(results).to_csv(folder / "results.csv", index=False)
        began = time.perf_counter()
        subprocess.run([sys.executable, str(HERE / f"with_{program}.py")], cwd=folder, check=True)
        seconds += time.perf_counter() - began
        results.append(measure(pd.read_csv(folder / "plate.csv"), rng))
    measured = table[table["id"].isin(pd.concat(results)["id"])]
    return float(true_yield(measured).max()), seconds


def code_lines(program: str) -> int:
    """Lines of a program that are neither empty nor documentation."""
    text = (HERE / f"with_{program}.py").read_text().split('"""')[2]
    return sum(1 for line in text.splitlines() if line.strip())


def main(arguments: list[str] | None = None) -> dict[str, list[float]]:
    """Run the programs and print one line of each; return the best yields by program."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--days", type=int, default=5)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--programs", nargs="+", choices=PROGRAMS, default=list(PROGRAMS))
    chosen = parser.parse_args(arguments)
    best = true_yield(candidates()).max()
    print(f"1,800 reactions, the best of which yields {best:.1f} %; {chosen.days} days of eight, {chosen.seeds} seeds")
    found: dict[str, list[float]] = {}
    for program in chosen.programs:
        seconds = []
        for seed in range(chosen.seeds):
            with tempfile.TemporaryDirectory() as folder:
                value, spent = play(program, chosen.days, seed, Path(folder))
            found.setdefault(program, []).append(value)
            seconds.append(spent / max(1, chosen.days - 1))
        yields = ", ".join(f"{value:.1f}" for value in found[program])
        print(f"{program}: {code_lines(program)} lines, best yields {yields} %, {np.mean(seconds):.1f} s a day")
    return found


if __name__ == "__main__":
    main()
