"""Means, ranks and their intervals, over runs that are paired by table and seed."""

from __future__ import annotations

import numpy as np
import pandas as pd

RESAMPLES = 1000
LEVEL = 0.95


def paired(records: pd.DataFrame, budget: str, measure: str) -> pd.DataFrame:
    """One row per table and seed, one column per method, for the runs that all methods have.

    A method is included if it has at least half of the seeds of every recorded table, so that a slow one does not take most
    seeds from the others. Rows that any included method lacks are left out.

    Raises:
        ValueError: If no table and seed is common to the methods.
    """
    runs = records[records["budget"] == budget]
    wide = runs.pivot_table(index=["table", "seed"], columns="method", values=measure)
    made = wide.notna().groupby(level="table").sum()
    needed = (made.max(axis=1) / 2).clip(lower=1)
    whole = [m for m in wide.columns if (made[m] >= needed).all()]
    common = wide[whole].dropna()
    if common.empty:
        raise ValueError(f"The methods {', '.join(whole)} share no table and seed of the {budget} budget: run the same seeds.")
    return common


def pair(records: pd.DataFrame, budget: str, measure: str, ours: str, other: str) -> pd.DataFrame:
    """One row per table and seed that both methods have, one column per method; no rows where they share none."""
    runs = records[(records["budget"] == budget) & records["method"].isin([ours, other])]
    wide = runs.pivot_table(index=["table", "seed"], columns="method", values=measure)
    return wide.reindex(columns=[ours, other]).dropna()


def ranks(frame: pd.DataFrame) -> pd.DataFrame:
    """Rank of each method in each row, 1 for the smallest regret; equal regrets share the mean of their ranks."""
    return frame.rank(axis=1, method="average")


def interval(frame: pd.DataFrame) -> np.ndarray:
    """95 % bootstrap interval of the columns' means, `2 x columns`: tables are drawn, then seeds within each."""
    generator = np.random.default_rng(0)
    groups = [group.to_numpy() for _, group in frame.groupby(level="table")]
    means = np.empty((RESAMPLES, frame.shape[1]))
    for sample in means:
        drawn = [groups[g] for g in generator.integers(len(groups), size=len(groups))]
        sample[:] = np.mean([g[generator.integers(len(g), size=len(g))].mean(axis=0) for g in drawn], axis=0)
    return np.quantile(means, [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=0)


def summary(frame: pd.DataFrame) -> pd.DataFrame:
    """Mean over tables of the mean over seeds, and its interval: columns `mean`, `low`, `high`, a row per method."""
    low, high = interval(frame)
    mean = frame.groupby(level="table").mean().mean()
    return pd.DataFrame({"mean": mean, "low": low, "high": high}).sort_values("mean")


def differences(frame: pd.DataFrame, ours: str) -> pd.DataFrame:
    """`summary` of the paired differences between our regret and that of each other method; ours is better below 0."""
    return summary(frame.drop(columns=ours).rsub(frame[ours], axis=0))
