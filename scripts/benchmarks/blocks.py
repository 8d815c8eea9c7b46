"""What it costs `auto` that all results of a plate are shifted together, with and without being told the plate.

python scripts/benchmarks/blocks.py                        # seven functions of 4,000 points, shifts of half a deviation
python scripts/benchmarks/blocks.py --problems tables --shift 1 --seeds 3    # five tables of TORCHBANDITS_DATA
python scripts/benchmarks/blocks.py --noticed --seeds 2                      # how often shifts that are not told are noticed

Twelve plates of eight. Noise and shifts are in deviations of the rewards, and regret is 0 at the best arm and 1 at the average
arm. Differences to the plate that is not told are paired by problem and seed. One thread.
"""

from __future__ import annotations

import os

# Must be set before NumPy and torch start their threads.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import time
import warnings
from typing import Annotated

import numpy as np
import torch
import typer
from auto_problems import PROBLEMS
from regrets import print_differences, relative

import torchbandits as tb
from torchbandits.errors import DiagnosticWarning
from torchbandits.fitting.blocks import told_together

PLATES, SIZE = 12, 8
WAYS = ("not told", "told", "less a control", "no shifts")
# Plates after which shifts may be noticed.
MARKS = (4, 7, 12)


def play(x: np.ndarray, y: np.ndarray, way: str, noise: float, shift: float, seed: int) -> tuple[float, float, float]:
    """Simple regret, mean regret and processor seconds of one run."""
    regret = relative(y)
    bandit = tb.Bandit(tb.auto(batch_size=SIZE), torch.from_numpy(x), generator=torch.Generator().manual_seed(seed))
    # A control is an arm of no interest of its own, which takes one place on each plate.
    control, picks, pulled, began = way == "less a control", SIZE - (way == "less a control"), [], time.process_time()
    for plate in range(PLATES):
        rng = np.random.default_rng([seed, plate, 11])
        moved = 0.0 if way == "no shifts" else shift * rng.standard_normal()
        batch = bandit.ask(exactly=picks)
        index = batch.index.numpy()
        told = y[index] + moved + noise * rng.standard_normal(picks)
        if control:
            told = told - (moved + noise * rng.standard_normal())
        bandit.tell(batch, torch.from_numpy(told), block=plate if way == "told" else None)
        pulled += index.tolist()
    return float(regret[int(bandit.best_arm())]), float(regret[pulled].mean()), time.process_time() - began


def noticed(x: np.ndarray, y: np.ndarray, noise: float, shift: float, seed: int) -> list[bool]:
    """Whether shifts of plates that are not told are noticed, at each mark."""
    points, picks, rewards, found = torch.from_numpy(x), [], [], []
    bandit = tb.Bandit(tb.auto(batch_size=SIZE), points, generator=torch.Generator().manual_seed(seed))
    for plate in range(PLATES):
        rng = np.random.default_rng([seed, plate, 11])
        batch = bandit.ask(exactly=SIZE)
        told = torch.from_numpy(y[batch.index.numpy()] + shift * rng.standard_normal() + noise * rng.standard_normal(SIZE))
        bandit.tell(batch, told)
        picks.append(batch.index)
        rewards.append(told)
        if plate + 1 in MARKS:
            plates = torch.arange(plate + 1).repeat_interleave(SIZE)
            found.append(told_together(bandit.loop.process, points[torch.cat(picks)], torch.cat(rewards), plates) > 0)
    return found


def main(
    problems: Annotated[str, typer.Option(help=f"One of {', '.join(PROBLEMS)}.")] = "functions",
    noise: float = 0.1,
    shift: float = 0.5,
    seeds: int = 3,
    first: int = 0,
    notices: Annotated[bool, typer.Option("--noticed", help="How often shifts that are not told are noticed.")] = False,
) -> None:
    """Print simple and mean regret of each way, and the differences to the plate that is not told, with two standard errors."""
    warnings.simplefilter("ignore", DiagnosticWarning)
    if notices:
        runs = [
            noticed(np.ascontiguousarray(x, np.float64), (y - y.mean()) / y.std(), noise, shift, seed)
            for x, y in PROBLEMS[problems]()
            for seed in range(first, first + seeds)
        ]
        shares = ", ".join(f"{share:.2f} after {mark} plates" for mark, share in zip(MARKS, np.mean(runs, axis=0), strict=True))
        print(f"shifts of {shift:g} noticed in {len(runs)} runs: {shares}")
        return
    found: dict[str, list[tuple[float, ...]]] = {way: [] for way in WAYS}
    for x, y in PROBLEMS[problems]():
        scaled = np.ascontiguousarray((y - y.mean()) / y.std(), np.float64)
        for seed in range(first, first + seeds):
            for way in WAYS:
                found[way].append(play(np.ascontiguousarray(x, np.float64), scaled, way, noise, shift, seed))
    print_differences(found)


if __name__ == "__main__":
    typer.run(main)
