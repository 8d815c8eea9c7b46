"""`auto` against variants of itself, in short and in long runs: paired regrets, on functions and on tables.

python scripts/benchmarks/long_runs.py --pulls 300 --batch 10 --seeds 4                     # seven functions of 4,000 points
python scripts/benchmarks/long_runs.py --pulls 110 --problems tables --noise 1 --seeds 3    # five tables of TORCHBANDITS_DATA
python scripts/benchmarks/long_runs.py --variant before --pulls 300 --pulls 1500 --problems more --seeds 1    # 24 functions
python scripts/benchmarks/long_runs.py --variant unrepeated --waiting 7 --pulls 112 --problems tables --noise 0.5    # workers

Variants are `auto` as it was: `scores`, where between two fits the model averages the normal scores of single rewards; and
`before`, where the width does not grow, all pulls of an arm count in the ranks and scores may rise faster than the noise. The
last three are also variants alone: `constant`, `uncounted` and `steep`. With `early` the width grows from the first repeat per
arm on, with `narrow` the prior of the noise is BoTorch's, and with `ten` only ten repeats tell random effects from noise. With
`unrepeated` there are no replicates for picks that are made one by one while others wait for their rewards.
Regrets, and errors of the reported mean of the recommended arm in reported deviations, are printed after each number of pulls
given. Noise is in deviations of the rewards, and regret is 0 at the best arm and 1 at the average arm. One thread.
"""

from __future__ import annotations

import os

# Must be set before NumPy and torch start their threads.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import math
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer

import torchbandits as tb
from torchbandits.errors import DiagnosticWarning
from torchbandits.fitting import standardized
from torchbandits.ingredients import Priors
from torchbandits.policies.from_data import FromData
from torchbandits.posteriors import units
from torchbandits.widths import Constant, Growing, Width

ARMS = 4_000
Problem = tuple[np.ndarray, np.ndarray]


@contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Replace an attribute for a while."""
    own = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, own)


def of_single_rewards(self: FromData, state: Any, pulls: Any) -> Any:
    """Pulls in model units, where each told reward, or sum of rewards, has the score of its average."""
    n = pulls.counts.clamp_min(1e-300)
    sums = pulls.counts * state.posterior.units.to_model(pulls.sums / n)
    return replace(pulls, sums=sums, squares=sums.square() / n)


def with_width(make: Callable[[float], Width]) -> AbstractContextManager[None]:
    """Let the width of `auto`, a number, become another one."""
    return replaced(FromData, "width", lambda self, state, width: make(width.value))


def uncounted() -> AbstractContextManager[None]:
    """Let all pulls of an arm count in the ranks."""
    return replaced(units, "_MOST_COUNTED", math.inf)


def steep() -> AbstractContextManager[None]:
    """Let scores rise faster than the noise."""
    return replaced(units, "_noise_std", lambda counts, scatter: 0.0)


def in_batches_alone(own: Callable) -> Callable:
    """`FromData.replicates` without replicates for single picks."""
    return lambda self, state, remaining, offered=None: (
        None if int(remaining.max()) <= 1 else own(self, state, remaining, offered)
    )


@contextmanager
def before() -> Iterator[None]:
    """`auto` without any of the three."""
    with uncounted(), steep(), with_width(Constant):
        yield


VARIANTS: dict[str, Callable[[], AbstractContextManager[None]]] = {
    "scores": lambda: replaced(FromData, "in_model_units", of_single_rewards),
    "before": before,
    "constant": lambda: with_width(Constant),
    "uncounted": uncounted,
    "steep": steep,
    "early": lambda: with_width(lambda value: Growing(value, after=1.0)),
    "narrow": lambda: replaced(Priors, "of_noise", lambda self, kernel: (-4.0, 1.0)),
    "ten": lambda: replaced(standardized, "_REPEATS", 10),
    "unrepeated": lambda: replaced(FromData, "replicates", in_batches_alone(FromData.replicates)),
}


def functions() -> list[Problem]:
    """Seven sums of sixty random cosines on points of a cube."""
    return [_cosines(100 + number, d, 2.0) for number, d in enumerate((4, 4, 5, 6, 3, 2, 8))]


def more_functions() -> list[Problem]:
    """Twenty-four such functions of 2 to 12 features, smooth and rough."""
    found = []
    for number in range(24):
        d, scale = (2, 3, 4, 5, 6, 8, 10, 12)[number % 8], (1.5, 3.0, 5.0)[number // 8]
        found.append(_cosines(500 + number, d, scale, (4 / d) ** 0.5))
    return found


def _cosines(seed: int, d: int, scale: float, factor: float = 1.0) -> Problem:
    rng = np.random.default_rng(seed)
    x = rng.random((ARMS, d))
    f = np.cos(x @ rng.normal(scale=scale, size=(d, 60)) * factor + rng.uniform(0, 2 * np.pi, 60)) @ rng.normal(size=60)
    return x, f / f.std()


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


def print_differences(found: dict[str, list[tuple[float, ...]]]) -> None:
    """Print simple and mean regret of each way, the differences to the first way by run with two standard errors, and the
    seconds of a run, if they come third."""
    first = np.array(next(iter(found.values())))
    for way, runs in found.items():
        values, less = np.mean(runs, axis=0), np.array(runs) - first
        error = 2 * less.std(axis=0, ddof=1) / len(runs) ** 0.5
        each = zip(("simple", "mean"), values, less.mean(axis=0), error, strict=False)
        said = "; ".join(f"{name} regret {value:.3f}, {change:+.3f} ± {wide:.3f}" for name, value, change, wide in each)
        took = f", {values[2]:.1f} s" if len(values) > 2 else ""
        print(f"{way} ({len(runs)} runs{took}): {said}", flush=True)


PROBLEMS = {"functions": functions, "more": more_functions, "tables": tables}


def play(
    problem: Problem, noise: np.ndarray, batch: int, seed: int, marks: Sequence[int], *, skewed: bool, waiting: int
) -> list[tuple[float, float, float]]:
    """Simple regret, mean regret, and the error of the recommended arm in deviations, of one run after each number of pulls in
    `marks`, which rise. Regret is not skewed. With `waiting`, that many picks wait for their rewards whenever one is made."""
    x, y = problem
    bandit = tb.Bandit(tb.auto(batch_size=batch), torch.from_numpy(x), generator=torch.Generator().manual_seed(seed))
    pulled: list[int] = []
    open_picks: deque[tuple[torch.Tensor, np.ndarray]] = deque()
    regret, found = (y.max() - y) / (y.max() - y.mean()), []
    for mark in marks:
        while len(pulled) < mark:
            if waiting:
                index = bandit.ask(more=1).index[-1:]
            else:
                selection = bandit.ask(limit=min(batch, mark - len(pulled)))
                index = selection.index[selection.mask]
            rewards = y[index] + noise[len(pulled) : len(pulled) + len(index)]
            open_picks.append((index, np.exp(2 * rewards) if skewed else rewards))
            pulled += index.tolist()
            if len(open_picks) > waiting:
                bandit.tell(*open_picks.popleft())
        best = bandit.best()
        arm, off = int(best.index[0]), float(best.mean[0]) - (np.exp(2 * y) if skewed else y)[int(best.index[0])]
        found.append((float(regret[arm]), float(regret[pulled].mean()), abs(off) / float(best.variance[0]) ** 0.5))
    return found


def main(
    variant: Annotated[str, typer.Option(help=f"One of {', '.join(VARIANTS)}.")] = "scores",
    problems: Annotated[str, typer.Option(help=f"One of {', '.join(PROBLEMS)}.")] = "functions",
    pulls: Annotated[list[int], typer.Option(help="May be given several times.")] = [300],  # noqa: B006
    batch: int = 1,
    noise: float = 0.3,
    seeds: int = 4,
    skewed: Annotated[bool, typer.Option("--skewed", help="Tell exp(2 y) in place of each noisy reward y.")] = False,
    waiting: Annotated[int, typer.Option(help="Picks made one by one, while this many wait for their rewards.", min=0)] = 0,
) -> None:
    """Regrets of `auto` and of the variant by problem, and paired differences of all runs."""
    warnings.simplefilter("ignore", DiagnosticWarning)
    differences, marks = [], sorted(pulls)
    for number, problem in enumerate(PROBLEMS[problems]()):
        drawn = [noise * np.random.default_rng([seed, number]).standard_normal(marks[-1]) for seed in range(seeds)]

        def runs(problem: Problem = problem, drawn: list[np.ndarray] = drawn) -> np.ndarray:
            each = (play(problem, drawn[seed], batch, seed, marks, skewed=skewed, waiting=waiting) for seed in range(seeds))
            return np.array(list(each))

        own = runs()
        with VARIANTS[variant]():
            other = runs()
        differences.append(own - other)
        means = (*own[:, -1].mean(axis=0), *other[:, -1].mean(axis=0))
        print("{}: auto {:.3f} / {:.3f}, {} {:.3f} / {:.3f}".format(number, *means[:2], variant, *means[3:5]), flush=True)
    every = np.concatenate(differences)
    for mark, at in zip(marks, every.swapaxes(0, 1), strict=True):
        for name, found in zip(("simple regret", "mean regret", "error in deviations"), at.T, strict=True):
            error = 2 * found.std(ddof=1) / len(found) ** 0.5
            print(f"{mark} pulls, {name}, auto less {variant}: {found.mean():+.3f} ± {error:.3f} ({len(found)} runs)")


if __name__ == "__main__":
    typer.run(main)
