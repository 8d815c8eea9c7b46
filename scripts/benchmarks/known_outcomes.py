"""Trade-offs between an outcome that is measured and a price that is known for all arms, which a model may learn all the same.

    python scripts/benchmarks/known_outcomes.py --seeds 20
    python scripts/benchmarks/known_outcomes.py --picture docs/known.png

The measured outcome is a random function of four features on 600 arms, with noise of 0.3 of its deviation. The price is another
such function (`function`), the outcome itself with as much chance beside it (`conflict`), or log-normal, whatever the features
are (`tail`). Both models evaluate plates of eight, the first one of six. The share of the hypervolume that evaluated arms do
not have, by true values, is above the worst values of all arms, in the units of the problem and in normal scores.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

# Must be set before NumPy and torch start their threads.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import matplotlib.pyplot as plt
import numpy as np
import torch
import typer
from fixed_kernels import rbf
from regrets import two_errors
from torch import Tensor

import torchbandits as tb
from torchbandits import outcomes
from torchbandits.aims import hypervolume, normal_scores
from torchbandits.figures import COLORS, tidy

KINDS, METHODS, MARKS = ("function", "conflict", "tail"), ("known", "modelled", "random"), (24, 48)
ARMS, DIM, PLATE, NOISE = 600, 4, 8, 0.3


def problem(kind: str, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Arms, the outcome and the price."""
    draw = torch.Generator().manual_seed(seed)

    def normal() -> Tensor:
        return torch.randn(ARMS, generator=draw, dtype=torch.float64)

    arms = torch.rand(ARMS, DIM, generator=draw, dtype=torch.float64)
    with torch.no_grad():
        root = torch.linalg.cholesky(rbf(0.5)(arms).to_dense() + 1e-8 * torch.eye(ARMS))
    value = root @ normal()
    price = {
        "function": lambda: root @ normal(),
        "conflict": lambda: value + 0.7 * normal(),
        "tail": lambda: (1.5 * normal()).exp(),
    }
    return arms, value, price[kind]()


def evaluated(method: str, arms: Tensor, value: Tensor, price: Tensor, seed: int) -> list[int]:
    """The arms that a method evaluates, in their order."""
    own, noise = torch.Generator().manual_seed(100 + seed), torch.Generator().manual_seed(200 + seed)
    if method == "random":
        return torch.randperm(ARMS, generator=own)[: MARKS[-1]].tolist()
    if method == "known":
        policy = outcomes.pareto({"value": tb.auto()}, known=["price"], minimize=["price"])
        bandit = tb.OutcomeBandit(policy, arms, generator=own, known={"price": price})
    else:
        bandit = tb.OutcomeBandit(
            outcomes.pareto({"value": tb.auto(), "price": tb.auto()}, minimize=["price"]), arms, generator=own
        )
    picked: list[int] = []
    while len(picked) < MARKS[-1]:
        index = bandit.ask(more=PLATE).index
        told = {"value": value[index] + NOISE * torch.randn(len(index), generator=noise, dtype=torch.float64)}
        bandit.tell(index, told | ({} if method == "known" else {"price": price[index]}))
        picked += index.tolist()
    return picked[: MARKS[-1]]


def missing(picked: list[int], value: Tensor, price: Tensor) -> float:
    """The share of the hypervolume of all arms that these arms do not have."""
    points = torch.stack([value, -price], dim=-1)
    worst = points.amin(dim=0)
    return 1 - hypervolume(points[picked], worst) / hypervolume(points, worst)


def draw(path: Path) -> None:
    """The evaluated arms of both models on the first problem of the second kind."""
    arms, value, price = problem("conflict", 0)
    figure, panels = plt.subplots(1, 2, figsize=(9, 3.8), sharex=True, sharey=True, layout="constrained")
    titles = {"known": "the price is known", "modelled": "a model learns the price"}
    for axes, (method, title) in zip(panels, titles.items(), strict=True):
        picked = evaluated(method, arms, value, price, 0)
        axes.plot(price, value, "o", color="0.85", markersize=3, label="all candidates")
        axes.plot(*_steps(value, price, range(ARMS)), color="0.5", linewidth=1, label="front of all")
        axes.plot(price[picked], value[picked], "o", color=COLORS[2], markersize=4, label=f"{len(picked)} evaluated")
        axes.plot(*_steps(value, price, picked), color=COLORS[0], linewidth=1.5, label="front of these")
        share = missing(picked, normal_scores(value), normal_scores(price))
        axes.set_title(f"{title}: {100 * share:.0f} % of the hypervolume missing", fontsize=10)
        axes.set_xlabel("price")
        tidy(axes)
    panels[0].set_ylabel("value")
    panels[0].legend(loc="lower right", frameon=False, fontsize=8)
    figure.savefig(path, dpi=110)


def _steps(value: Tensor, price: Tensor, some: Iterable[int]) -> tuple[list[float], list[float]]:
    """The largest value among these arms up to each price, as steps."""
    x: list[float] = []
    y: list[float] = []
    for arm in sorted(some, key=lambda arm: float(price[arm])):
        if not y or float(value[arm]) > y[-1]:
            x += [float(price[arm])] * (2 if y else 1)
            y += [*y[-1:], float(value[arm])]
    return [*x, float(price.max())], [*y, y[-1]]


def main(seeds: int = 20, picture: Path | None = None) -> None:
    """Print a line for each problem, number of evaluations and method; or draw one problem."""
    if picture is not None:
        draw(picture)
        return
    print("| price | evaluations | method | share missing | in normal scores | less `known`, in normal scores |")
    print("| --- | --- | --- | --- | --- | --- |")
    for kind in KINDS:
        found = np.zeros((len(MARKS), len(METHODS), seeds, 2))
        for seed in range(seeds):
            arms, value, price = problem(kind, seed)
            scores = normal_scores(value), normal_scores(price)
            for j, method in enumerate(METHODS):
                picked = evaluated(method, arms, value, price, seed)
                for i, mark in enumerate(MARKS):
                    found[i, j, seed] = missing(picked[:mark], value, price), missing(picked[:mark], *scores)
        for i, mark in enumerate(MARKS):
            for j, method in enumerate(METHODS):
                plain, score = found[i, j].mean(axis=0)
                more = found[i, j, :, 1] - found[i, 0, :, 1]
                paired = "" if not j else f"{more.mean():+.3f} ± {two_errors(more):.3f}"
                print(f"| {kind} | {mark} | {method} | {plain:.3f} | {score:.3f} | {paired} |", flush=True)


if __name__ == "__main__":
    typer.run(main)
