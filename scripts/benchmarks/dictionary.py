"""Dictionaries of `auto`: told points that join between two draws, compared with a draw at every tell. These draws keep their
uniform numbers, or take new ones as BKB does.

python scripts/benchmarks/dictionary.py regret --batch 1 --pulls 200    # on seven functions, exact up to 60 arms
python scripts/benchmarks/dictionary.py seconds         # one pull after 4,000 results, among 300,000 arms of 40 features

The functions are sums of sixty random cosines on 8,000 points of a cube; noise is a fifth of the deviation of their values.
Regret is 0 at the best arm and 1 at the average arm. One thread.
"""

from __future__ import annotations

import os

# Must be set before NumPy and torch start their threads.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
import typer
from regrets import relative, two_errors

import torchbandits as tb
from torchbandits.errors import DiagnosticWarning
from torchbandits.memory import LeverageSampling, SteadySampling

DIMENSIONS = (4, 4, 5, 6, 3, 2, 8)
app = typer.Typer(add_completion=False, help=__doc__.splitlines()[0])


@contextmanager
def joining() -> Iterator[None]:
    """`auto` as it is."""
    yield


@contextmanager
def kept_numbers() -> Iterator[None]:
    """Let `auto` draw a dictionary at every tell, with the same uniform numbers until the points have grown by 5 %."""
    own = SteadySampling.grows
    SteadySampling.grows = lambda self, drawn, *sizes: torch.zeros_like(drawn, dtype=torch.bool)  # type: ignore[method-assign]
    try:
        yield
    finally:
        SteadySampling.grows = own  # type: ignore[method-assign]


@contextmanager
def new_numbers() -> Iterator[None]:
    """Let `auto` draw a dictionary with new uniform numbers at every tell."""
    own = SteadySampling._uniforms
    SteadySampling._uniforms = LeverageSampling._uniforms  # type: ignore[method-assign]
    try:
        with kept_numbers():
            yield
    finally:
        SteadySampling._uniforms = own  # type: ignore[method-assign]


VARIANTS = {"joining": joining, "kept": kept_numbers, "new": new_numbers}


def function(number: int) -> tuple[np.ndarray, np.ndarray]:
    """Points `8000 x d`, and values."""
    rng, d = np.random.default_rng(number), DIMENSIONS[number]
    x = rng.random((8_000, d))
    return x, np.cos(x @ rng.normal(scale=2, size=(d, 60)) + rng.uniform(0, 2 * np.pi, 60)) @ rng.normal(size=60)


def play(number: int, seed: int, pulls: int, batch: int) -> tuple[float, float]:
    """Simple and mean regret of one run."""
    x, y = function(number)
    noise = 0.2 * y.std() * np.random.default_rng([seed, number]).standard_normal(pulls)
    policy = tb.auto(batch_size=batch, memory_budget=8 * len(y) * 60)
    bandit, pulled = tb.Bandit(policy, torch.from_numpy(x), generator=torch.Generator().manual_seed(seed)), []
    while len(pulled) < len(noise):
        selection = bandit.ask(limit=min(batch, len(noise) - len(pulled)))
        index = selection.index[selection.mask].numpy()
        bandit.tell(selection, y[index] + noise[len(pulled) : len(pulled) + len(index)])
        pulled += index.tolist()
    regret = relative(y)
    return float(regret[bandit.best().index[0]]), float(regret[pulled].mean())


@app.callback()
def main() -> None:
    """Leave out the warnings that an arm is pulled again and again."""
    warnings.simplefilter("ignore", DiagnosticWarning)


@app.command()
def regret(seeds: int = 14, pulls: int = 300, batch: int = 10, against: str = "kept") -> None:
    """Regrets by function, and paired differences of all runs. `against` is kept or new."""
    differences = []
    for number, d in enumerate(DIMENSIONS):
        own = np.array([play(number, seed, pulls, batch) for seed in range(seeds)])
        with VARIANTS[against]():
            other = np.array([play(number, seed, pulls, batch) for seed in range(seeds)])
        differences.append(own - other)
        means = (*own.mean(axis=0), *other.mean(axis=0))
        print(f"d = {d}: " + "joining {:.3f} / {:.3f}, {} {:.3f} / {:.3f}".format(*means[:2], against, *means[2:]), flush=True)
    every = np.concatenate(differences)
    for name, own in zip(("simple", "mean"), every.T, strict=True):
        print(f"{name} regret, joining less {against}: {own.mean():+.3f} ± {two_errors(own):.3f}")


@app.command()
def seconds(arms: int = 300_000, features: int = 40, results: int = 4_000, pulls: int = 4, batch: int = 1) -> None:
    """Processor seconds of the results, and of each pull after them."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(arms, features))
    y = np.sin(x[:, 0]) + 0.5 * x[:, 1] + 0.1 * rng.normal(size=arms)
    known = rng.permutation(arms)[:results]
    for name, variant in VARIANTS.items():
        with variant():
            policy, times = tb.auto(batch_size=batch), []
            bandit = tb.Bandit(policy, torch.from_numpy(x), generator=torch.Generator().manual_seed(0))
            for pull in range(pulls + 1):
                index = bandit.ask().index.numpy() if pull else known
                began = time.process_time()
                bandit.tell(index, y[index])
                times.append(time.process_time() - began)
        print(f"{name}: results {times[0]:.1f} s, then {', '.join(f'{t:.2f}' for t in times[1:])} s a tell", flush=True)


if __name__ == "__main__":
    app()
