"""`auto` against variants of itself, in short and in long runs: paired regrets, on functions and on tables.

python scripts/benchmarks/long_runs.py --pulls 300 --batch 10 --noise 0.3 --seeds 4       # seven functions of 4,000 points
python scripts/benchmarks/long_runs.py --pulls 110 --tables --noise 0.3 --seeds 3         # five tables of TORCHBANDITS_DATA
python scripts/benchmarks/long_runs.py --variant growing --pulls 2000 --noise 0.3 --seeds 1

`scores` is `auto` as it was: between two fits the model averages the normal scores of single rewards. `growing` multiplies the
width by √(1 + log max(1, repeats per distinct arm)). Noise is in deviations of the rewards, and regret is 0 at the best arm and
1 at the average arm. One thread.
"""

from __future__ import annotations

import os

# Must be set before NumPy and torch start their threads.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer

import torchbandits as tb
from torchbandits.errors import DiagnosticWarning
from torchbandits.policies.from_data import FromData
from torchbandits.widths import Scaled, Width

ARMS, DIMENSIONS = 4_000, (4, 4, 5, 6, 3, 2, 8)
Problem = tuple[np.ndarray, np.ndarray]


@contextmanager
def scores() -> Iterator[None]:
    """Let each told reward, or sum of rewards, have the score of its average."""
    own = FromData.in_model_units

    def in_model_units(self: FromData, state: Any, pulls: Any) -> Any:
        n = pulls.counts.clamp_min(1e-300)
        sums = pulls.counts * state.posterior.units.to_model(pulls.sums / n)
        return replace(pulls, sums=sums, squares=sums.square() / n)

    FromData.in_model_units = in_model_units  # type: ignore[method-assign]
    try:
        yield
    finally:
        FromData.in_model_units = own  # type: ignore[method-assign]


@contextmanager
def growing() -> Iterator[None]:
    """Let the width grow with the number of repeats per distinct arm."""
    own = FromData.width

    def width(self: FromData, state: Any, width: Width) -> Width:
        distinct = max(1, state.statistics.size)
        repeats = float(state.sum_on_host("told")) / distinct - 1
        return Scaled(own(self, state, width), math.sqrt(1 + math.log(max(1.0, repeats))))

    FromData.width = width  # type: ignore[method-assign]
    try:
        yield
    finally:
        FromData.width = own  # type: ignore[method-assign]


VARIANTS = {"scores": scores, "growing": growing}


def functions() -> list[Problem]:
    """Sums of sixty random cosines on points of a cube."""
    found = []
    for number, d in enumerate(DIMENSIONS):
        rng = np.random.default_rng(100 + number)
        x = rng.random((ARMS, d))
        f = np.cos(x @ rng.normal(scale=2, size=(d, 60)) + rng.uniform(0, 2 * np.pi, 60)) @ rng.normal(size=60)
        found.append((x, f / f.std()))
    return found


def tables() -> list[Problem]:
    """Rows of Abalone, California housing, two networks of FCNet and NAS-Bench-201."""
    folder = Path(os.environ["TORCHBANDITS_DATA"])
    whole = [(t.arms.numpy(), t.means.numpy().ravel()) for t in (tb.environments.abalone(), tb.environments.cadata())]
    with np.load(folder / "fcnet_hpolib.npz", allow_pickle=True) as held:
        for name in ("protein_structure", "parkinsons_telemonitoring"):
            whole.append((held["index"].astype(float), -np.log(held[f"valid_mse_{name}"].mean(axis=1))))
    with np.load(folder / "nasbench201.npz", allow_pickle=True) as held:
        whole.append((np.eye(5)[held["ops"]].reshape(len(held["ops"]), -1), held["test_acc_mean_cifar100"]))
    found = []
    for number, (x, y) in enumerate(whole):
        rows = np.random.default_rng(number).permutation(len(y))[:ARMS]
        found.append((x[rows].astype(float), ((y - y.mean()) / y.std())[rows].astype(float)))
    return found


def play(problem: Problem, noise: np.ndarray, batch: int, seed: int) -> tuple[float, float]:
    """Simple and mean regret of one run."""
    x, y = problem
    bandit = tb.Bandit(tb.auto(batch_size=batch), torch.from_numpy(x), generator=torch.Generator().manual_seed(seed))
    pulled: list[int] = []
    while len(pulled) < len(noise):
        selection = bandit.ask(limit=min(batch, len(noise) - len(pulled)))
        index = selection.index[selection.mask].numpy()
        bandit.tell(selection, y[index] + noise[len(pulled) : len(pulled) + len(index)])
        pulled += index.tolist()
    regret = (y.max() - y) / (y.max() - y.mean())
    return float(regret[bandit.best().index[0]]), float(regret[pulled].mean())


def main(
    variant: Annotated[str, typer.Option(help=f"One of {', '.join(VARIANTS)}.")] = "scores",
    on_tables: Annotated[bool, typer.Option("--tables", help="Tables of TORCHBANDITS_DATA instead of functions.")] = False,
    pulls: int = 300,
    batch: int = 1,
    noise: float = 0.3,
    seeds: int = 4,
) -> None:
    """Regrets of `auto` and of the variant by problem, and paired differences of all runs."""
    warnings.simplefilter("ignore", DiagnosticWarning)
    differences = []
    for number, problem in enumerate(tables() if on_tables else functions()):
        drawn = [noise * np.random.default_rng([seed, number]).standard_normal(pulls) for seed in range(seeds)]
        own = np.array([play(problem, drawn[seed], batch, seed) for seed in range(seeds)])
        with VARIANTS[variant]():
            other = np.array([play(problem, drawn[seed], batch, seed) for seed in range(seeds)])
        differences.append(own - other)
        means = (*own.mean(axis=0), *other.mean(axis=0))
        print(f"{number}: " + "auto {:.3f} / {:.3f}, {} {:.3f} / {:.3f}".format(*means[:2], variant, *means[2:]), flush=True)
    every = np.concatenate(differences)
    for name, found in zip(("simple", "mean"), every.T, strict=True):
        error = 2 * found.std(ddof=1) / len(found) ** 0.5
        print(f"{name} regret, auto less {variant}: {found.mean():+.3f} ± {error:.3f} ({len(found)} runs)")


if __name__ == "__main__":
    typer.run(main)
