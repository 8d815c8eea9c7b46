"""Regrets on a scale that all problems share, and differences between ways that were run on the same problems and seeds."""

from __future__ import annotations

import numpy as np


def relative(rewards: np.ndarray) -> np.ndarray:
    """The regret of each arm by the expected rewards: 0 at the best arm and 1 at the average arm."""
    return (rewards.max() - rewards) / (rewards.max() - rewards.mean())


def two_errors(runs: np.ndarray) -> np.ndarray:
    """Two standard errors of the mean over the runs, which are the first axis."""
    return 2 * runs.std(axis=0, ddof=1) / len(runs) ** 0.5


def in_words(less: np.ndarray) -> str:
    """Differences of simple and mean regret, `runs x 2`, with two standard errors."""
    both = zip(("simple", "mean"), less.mean(axis=0), two_errors(less), strict=True)
    return ", ".join(f"{kind} regret {change:+.3f} ± {error:.3f}" for kind, change, error in both)


def print_differences(found: dict[str, list[tuple[float, ...]]]) -> None:
    """Print simple and mean regret of each way, the differences to the first way by run with two standard errors, and the
    seconds of a run, if they come third."""
    first = np.array(next(iter(found.values())))
    for way, runs in found.items():
        values, less = np.mean(runs, axis=0), np.array(runs) - first
        each = zip(("simple", "mean"), values, less.mean(axis=0), two_errors(less), strict=False)
        said = "; ".join(f"{name} regret {value:.3f}, {change:+.3f} ± {wide:.3f}" for name, value, change, wide in each)
        took = f", {values[2]:.1f} s" if len(values) > 2 else ""
        print(f"{way} ({len(runs)} runs{took}): {said}", flush=True)
