"""The table of an experiment: one line per policy, averaged over repetitions."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from rich.box import SIMPLE
from rich.table import Table as RichTable
from scipy.special import stdtrit  # type: ignore[import-untyped]

from torchbandits.experiments.config import BASELINE, ExperimentConfig
from torchbandits.experiments.printable import plain, printable
from torchbandits.experiments.records import Record, check_config, check_records


def mean_interval(values: NDArray[np.float64], level: float = 0.95) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Mean over the first axis and the half-width of its t-interval; NaN half-width for a single repetition.

    Args:
        values: `n x ...`, one line per repetition.
        level: Probability of the interval.
    """
    n = len(values)
    mean = np.asarray(values.mean(axis=0))  # an array also where one number is left
    if n < 2:
        return mean, np.full_like(mean, np.nan)
    standard_error = values.std(axis=0, ddof=1) / math.sqrt(n)
    return mean, np.asarray(stdtrit(n - 1, 0.5 + level / 2) * standard_error)


def baseline_regret(config: ExperimentConfig, records: Iterable[Record]) -> dict[int, NDArray[np.float64]]:
    """Cumulative regret of the uniform policy by seed, reward units; empty where the experiment has none."""
    places = [place for place, policy in enumerate(config.policies) if policy.name == BASELINE]
    if not places:
        return {}
    return {record.seed: record.history.cumulative_regret() for record in records if record.place == places[0]}


def regret_ratio(record: Record, baseline: dict[int, NDArray[np.float64]]) -> NDArray[np.float64]:
    """Cumulative regret over that of the uniform policy in the same repetition, for t = 1, 2, …; NaN without one."""
    regret = record.history.cumulative_regret()
    if record.seed not in baseline:
        return np.full_like(regret, np.nan)
    length = min(len(regret), len(baseline[record.seed]))
    below = baseline[record.seed][:length]
    return np.divide(regret[:length], below, out=np.full(length, np.nan), where=below > 0)


def aggregate(config: ExperimentConfig, records: Sequence[Record]) -> pd.DataFrame:
    """One line per policy: means over repetitions, and the 95 % t-interval of the regret ratio.

    Columns: policy, repetitions, regret_ratio, regret_ratio_low, regret_ratio_high, regret and simple_regret (reward
    units), batches, distinct_arms, dictionary_size, seconds (of the policy, the environment left out).
    """
    check_config(config)
    check_records(records)
    baseline = baseline_regret(config, records)
    lines = []
    for place, policy in enumerate(config.policies):
        mine = [record for record in records if record.place == place]
        if not mine:
            continue
        ratios = np.array([regret_ratio(record, baseline)[-1] for record in mine])
        mean, half = mean_interval(ratios)
        line: dict[str, object] = {
            "policy": policy.label,
            "repetitions": len(mine),
            "regret_ratio": float(mean),
            "regret_ratio_low": float(mean - half),
            "regret_ratio_high": float(mean + half),
        }
        summaries = [record.history.summary() for record in mine]
        for name in ("regret", "simple_regret", "batches", "distinct_arms", "dictionary_size", "seconds"):
            line[name] = float(np.mean([summary[name] for summary in summaries]))
        lines.append(line)
    return pd.DataFrame(lines)


HEADERS = (
    "policy",
    "regret ratio",
    "95 % interval",
    "simple regret",
    "batches",
    "distinct arms",
    "dictionary size",
    "seconds",
    "runs",
)


def cells(table: pd.DataFrame) -> list[list[str]]:
    """The table as text, rounded for reading; – where a number is unknown."""
    return [
        [
            str(line["policy"]),
            _number(line["regret_ratio"], "{:.3f}"),
            _interval(line["regret_ratio_low"], line["regret_ratio_high"]),
            _number(line["simple_regret"], "{:.3g}"),
            *(_number(line[name], "{:.0f}") for name in ("batches", "distinct_arms", "dictionary_size")),
            _number(line["seconds"], "{:.2f}"),
            str(line["repetitions"]),
        ]
        for line in table.to_dict("records")
    ]


def to_markdown(config: ExperimentConfig, table: pd.DataFrame) -> str:
    """The table in Markdown under a line that says what was run."""
    rule = "|".join([" --- ", *[" ---: "] * (len(HEADERS) - 1)])
    lines = [" | ".join(printable(cell).replace("|", "\\|") for cell in row) for row in cells(table)]
    return f"{printable(caption(config))}\n\n| {' | '.join(HEADERS)} |\n|{rule}|\n" + "".join(f"| {line} |\n" for line in lines)


def to_rich(config: ExperimentConfig, table: pd.DataFrame) -> RichTable:
    """The table for a terminal."""
    result = RichTable(title=plain(caption(config)), box=SIMPLE, padding=(0, 1), collapse_padding=True)
    for header in HEADERS:
        result.add_column(header, justify="left" if header == "policy" else "right", no_wrap=header == "95 % interval")
    for row in cells(table):
        result.add_row(*map(plain, row))
    return result


def caption(config: ExperimentConfig) -> str:
    """What was run, in one line."""
    return (
        f"{config.name}: T = {config.horizon:,}, {config.repetitions} repetitions from seed {config.seed}; "
        "means, regret over that of uniform in the same repetition"
    )


def _number(value: float, form: str) -> str:
    return "–" if math.isnan(value) else form.format(value)


def _interval(low: float, high: float) -> str:
    # The baseline over itself has no spread to speak of.
    return "–" if math.isnan(low) or low == high else f"{low:.3f} … {high:.3f}"
