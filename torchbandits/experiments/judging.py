"""The summary of a reproduction, and the verdicts on its claims.

The summary holds means and intervals over the repetitions at selected pulls, in one file. Figures, published numbers and
verdicts are made from it alone.

A claim says that some number is at most 0: a paired difference, or the distance of a number to its bound. By the 95 %
t-interval of its mean over the repetitions the claim is held (the interval is at most 0), not held (it is above 0) or undecided
(it contains 0, or there is a single repetition). If a policy equals the other one in every repetition, it is not below the
other, and the claim is undecided. Reduced forms are not judged.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow
import pyarrow.parquet

from torchbandits.checks import check_regular
from torchbandits.errors import DataError, require
from torchbandits.experiments.config import ExperimentConfig
from torchbandits.experiments.measures import (
    TIMES,
    Measure,
    Values,
    band,
    baseline_regret,
    known_curves,
    measures,
    t_interval,
)
from torchbandits.experiments.records import Record, of_place
from torchbandits.experiments.reproduction import ClaimConfig, ReproductionConfig
from torchbandits.experiments.rounded import digits
from torchbandits.files import write_atomically

# ------------------------------------------------------------------ the summary

COLUMNS = ("experiment", "policy", "measure", "x", "mean", "low", "high", "repetitions")
"""Columns of the table of a summary."""
POINTS = 40  # number of points of a curve, on a logarithmic and on a linear grid each
_METADATA_KEY = b"torchbandits"


@dataclass(frozen=True)
class Summary:
    """Curves of a reproduction, and the settings it was run with.

    Attributes:
        table: One line per experiment, policy, measure and x (pulls t, a length-scale or a place): mean, ends of the 95 %
            t-interval (NaN for one repetition) and the number of repetitions.
        facts: Quick form or not, horizons, machine, seconds; JSON values.
    """

    table: pd.DataFrame
    facts: dict[str, Any]

    def curve(self, experiment: str, policy: str, measure: str) -> pd.DataFrame:
        """The lines of one curve in order of x; empty if it was not run."""
        table = self.table
        mine = (table["experiment"] == experiment) & (table["policy"] == policy) & (table["measure"] == measure)
        return table[mine].sort_values("x")

    def at(self, experiment: str, policy: str, measure: str, x: int | float | None) -> pd.Series | None:
        """The line at x, or at the end for None; None if the run did not reach x or holds no such value."""
        curve = self.curve(experiment, policy, measure)
        curve = curve if x is None else curve[curve["x"] == x]
        return None if curve.empty or bool(np.isnan(curve["mean"].iloc[-1])) else curve.iloc[-1]


def summarise(
    reproduction: ReproductionConfig, experiment: str, config: ExperimentConfig, records: Sequence[Record]
) -> pd.DataFrame:
    """The curves of one experiment in the format of `Summary.table`."""
    baseline = baseline_regret(config, records)
    # Dense enough on both a logarithmic and a linear axis.
    spaced = (np.geomspace(1, config.horizon, POINTS), np.linspace(1, config.horizon, POINTS))
    t = np.concatenate(spaced).round().astype(np.int64)
    looked_at = [time for time in (*reproduction.times_of(experiment), config.horizon // 2) if 1 <= time <= config.horizon]
    t = np.unique(np.append(t, looked_at)).astype(np.int64)
    parts = []
    for place, policy in enumerate(config.policies):
        mine = of_place(records, place)
        # A policy of fewer repetitions is compared with the same ones of the baseline.
        seeds = {record.seed for record in mine}
        known = measures({seed: regret for seed, regret in baseline.items() if seed in seeds}, reproduction.trainers)
        for name in reproduction.measures_of(experiment) if mine else []:
            curves = known_curves(np.stack([known[name].curve(record, t) for record in mine]))
            low, mean, high = band(curves)
            values = {"x": t.astype(np.float64), "mean": mean, "low": low, "high": high}
            fixed = {"experiment": experiment, "policy": policy.label, "measure": name, "repetitions": len(curves)}
            parts.append(pd.DataFrame(values | fixed))
    return pd.concat(parts, ignore_index=True)[list(COLUMNS)]


def write_summary(summary: Summary, path: Path) -> None:
    """Write a summary, whole or not at all."""
    header = {_METADATA_KEY: json.dumps(summary.facts)}
    table = pyarrow.Table.from_pandas(summary.table, preserve_index=False)
    # Curves need no more digits than float32 holds, and the file is half as large.
    for place, name in enumerate(table.schema.names):
        if name in ("mean", "low", "high"):
            table = table.set_column(place, name, table.column(name).cast(pyarrow.float32()))
    table = table.replace_schema_metadata(header)
    write_atomically(path, lambda temporary: pyarrow.parquet.write_table(table, temporary, compression="zstd"))


def read_summary(path: Path) -> Summary:
    """Read a file that `write_summary` wrote.

    Raises:
        DataError: If the file is missing or is not a summary.
    """
    check_regular(path)
    try:
        table = pyarrow.parquet.read_table(path)
        facts = json.loads(table.schema.metadata[_METADATA_KEY])
    except (OSError, KeyError, TypeError, ValueError, pyarrow.ArrowException) as error:
        raise DataError(f"{path} does not hold a summary: {error}.") from error
    require(set(COLUMNS) <= set(table.column_names), f"{path} does not hold a summary.", DataError)
    return Summary(table.to_pandas().astype(dict.fromkeys(("mean", "low", "high"), np.float64)), facts)


# ------------------------------------------------------------------ the verdicts

HELD, NOT_HELD, UNDECIDED, UNJUDGED, UNKNOWN = "held", "not held", "undecided", "not judged", "not run"
_FITTED_POINTS = 40  # points of a run to which the exponent of its growth is fitted
_DIGITS = 7  # digits of the numbers kept in a summary

Numbers = dict[str, dict[str, float]]
"""A number of each repetition, by its name (`number_name`) and the repetition's seed."""


@dataclass(frozen=True)
class Verdict:
    """A claim, the verdict on it, the numbers behind it, and whether it is a claim of this package rather than of a paper."""

    claim: str
    verdict: str
    evidence: str
    own: bool = False


def verdicts(reproduction: ReproductionConfig, summary: Summary) -> list[Verdict]:
    """The verdict on each claim."""
    return [_judge(claim, reproduction, summary) for claim in reproduction.claims]


# ---------------------------------------------------------------------- the numbers


def numbers_of(
    reproduction: ReproductionConfig, experiment: str, config: ExperimentConfig, records: Sequence[Record]
) -> Numbers:
    """The numbers of one experiment that the claims compare, one per repetition."""
    known = measures(baseline_regret(config, records), reproduction.trainers)
    found: Numbers = {}
    for claim in reproduction.claims:
        for label in _labels(claim, experiment, reproduction):
            mine = [record for record in records if config.policies[record.place].label == label]
            if claim.measure in TIMES:
                mine = _independent(config, mine)
            values = {str(record.seed): _number(claim, known[claim.measure], record) for record in mine}
            name = number_name(claim, experiment, label)
            found[name] = {seed: _kept(value) for seed, value in values.items() if math.isfinite(value)}
    return found


def _independent(config: ExperimentConfig, records: list[Record]) -> list[Record]:
    """One record per run: the batch rows of a run share its seconds."""
    if config.together is True:
        return records[:1]
    return [r for r in records if not config.together or (r.seed - config.seed) % config.together == 0]


def numbers_of_study(reproduction: ReproductionConfig, values: dict[tuple[str, str, str], list[float]]) -> Numbers:
    """The numbers of a study, given the values of its repetitions by experiment, policy and measure."""
    found: Numbers = {}
    for claim in reproduction.claims:
        for label in (claim.policy, *(claim.below or ())):
            own = values.get((claim.experiment, label, claim.measure), [])
            found[number_name(claim, claim.experiment, label)] = {str(place): _kept(v) for place, v in enumerate(own)}
    return found


def _kept(number: float) -> float:
    return float(f"{number:.{_DIGITS}g}")


def number_name(claim: ClaimConfig, experiment: str, label: str) -> str:
    """Name of the number that a claim takes of each repetition of a policy."""
    kind = "power" if claim.grows is not None else "doubling" if claim.levels is not None else "value"
    return f"{experiment}/{label}/{claim.measure}/{kind}@{claim.at or 'end'}"


def _labels(claim: ClaimConfig, experiment: str, reproduction: ReproductionConfig) -> list[str]:
    """Labels of the policies of an experiment whose numbers a claim compares."""
    if claim.spread is not None:
        every = [policy.label for policy in reproduction.experiments[experiment].policies]
        return [label for label in every if claim.experiment == experiment and _series(label) in (claim.policy, *claim.spread)]
    own = [claim.policy] if claim.experiment == experiment else []
    others = claim.below or [] if (claim.than or claim.experiment) == experiment else []
    return list(dict.fromkeys([*own, *others]))


def _number(claim: ClaimConfig, measure: Measure, record: Record) -> float:
    end = claim.at or len(record.history)
    if not 1 <= end <= len(record.history):
        return math.nan
    if claim.grows is not None:
        t = np.unique(np.geomspace(math.sqrt(end), end / 2, _FITTED_POINTS).round().astype(np.int64))
        curve = measure.curve(record, t)
        fits = len(t) > 2 and bool((curve > 0).all())
        return float(np.polyfit(np.log(t), np.log(curve), 1)[0]) if fits else math.nan
    if claim.levels is not None:
        half, whole = measure.curve(record, np.array([max(1, end // 2), end]))
        return float(whole / half) if half > 0 else math.nan
    return float(measure.curve(record, np.array([end]))[0])


# ---------------------------------------------------------------------- the verdicts


def _judge(claim: ClaimConfig, reproduction: ReproductionConfig, summary: Summary) -> Verdict:
    verdict, evidence = _judged(claim, reproduction, summary)
    if summary.facts["quick"] and verdict != UNKNOWN:
        verdict = UNJUDGED
    return Verdict(claim.says, verdict, evidence, claim.own)


def _judged(claim: ClaimConfig, reproduction: ReproductionConfig, summary: Summary) -> tuple[str, str]:
    if claim.spread is not None:
        return _spread(claim, reproduction, summary)
    line = summary.at(claim.experiment, claim.policy, claim.measure, claim.at)
    if line is None:
        return UNKNOWN, f"{claim.policy} was not run up to this t"
    mine = _values(claim, claim.experiment, claim.policy, summary)
    if claim.below is not None:
        return _below(claim, mine, line, summary)
    if mine:
        low, mean, high = t_interval(np.array(list(mine.values())))
    elif claim.grows is not None or claim.levels is not None:
        return UNDECIDED, f"{claim.policy} {value(line)} at the end; its repetitions were not kept one by one"
    else:
        low, mean, high = line["low"], line["mean"], line["high"]
    shown = _shown(mean, low, high)
    if claim.grows is not None:
        least, most = claim.grows
        return _two(low, high, least, most), f"exponent of t {shown}; the claim is {least:g} to {most:g}"
    if claim.levels is not None:
        evidence = f"{shown} times that at half of the run (at most {claim.levels:g})"
        return _two(low, high, -math.inf, claim.levels), evidence
    least = -math.inf if claim.at_least is None else claim.at_least
    most = math.inf if claim.at_most is None else claim.at_most
    bound = f"at least {digits(least)}" if claim.at_least is not None else f"at most {digits(most)}"
    return _two(low, high, least, most), f"{shown}; the claim is {bound}"


def _below(claim: ClaimConfig, mine: dict[str, float] | None, line: pd.Series, summary: Summary) -> tuple[str, str]:
    """Every other value times the factor plus the margin is at least our own."""
    assert claim.below is not None
    other = claim.than or claim.experiment
    found, listed, missing, paired = [], [], [], 0
    # The factor and the margin are those of all differences: among several they are named once.
    several = len(claim.below) > 1 and _times(claim)
    for label in claim.below:
        theirs_line, theirs = summary.at(other, label, claim.measure, claim.at), _values(claim, other, label, summary)
        if theirs_line is None:
            missing.append(label)
            continue
        where = f" ({claim.than})" if claim.than else ""
        shared = sorted(set(mine or {}) & set(theirs or {}))
        if mine and theirs and shared:
            differences = [mine[seed] - claim.factor * theirs[seed] - claim.margin for seed in shared]
            low, _, high = t_interval(np.array(differences))
            paired += 1
            # The interval of the difference decides, whatever those of the two means.
            apart = f"{digits(theirs_line['mean'])}, difference{'' if several else _times(claim)} "
            apart += _shown(float(np.mean(differences)), low, high)
        else:
            low = line["low"] - claim.factor * theirs_line["high"] - claim.margin
            high = line["high"] - claim.factor * theirs_line["low"] - claim.margin
            apart = value(theirs_line)
        found.append(_two(low, high, -math.inf, 0.0) if high != 0 else UNDECIDED)
        listed.append(f"{label}{where} {apart}")
    if not found:
        return UNKNOWN, f"none of {', '.join(claim.below)} was run"
    own = digits(line["mean"]) if paired == len(found) else value(line)
    evidence = f"{claim.policy} {own}; {f'differences{several}: ' if several else ''}{'; '.join(listed)}"
    if paired < len(found):
        evidence += "; compared by these intervals, without pairs of seeds"
    if missing:
        # A claim about all policies is not held before all of them were run.
        found.append(UNDECIDED)
        evidence += f"; not run: {', '.join(missing)}"
    return _all(found), evidence


def _times(claim: ClaimConfig) -> str:
    """The factor and the margin of a claim, where it has them."""
    parts = [f"from {claim.factor:g} times theirs"] if claim.factor != 1 else []
    parts += [f"less a margin of {claim.margin:g}"] if claim.margin else []
    return f" ({', '.join(parts)})" if parts else ""


def _spread(claim: ClaimConfig, reproduction: ReproductionConfig, summary: Summary) -> tuple[str, str]:
    """A series of policies depends less on the bandwidth than each other series: the largest over the smallest of its values is
    smaller, or, with `within`, more of its values are at most that multiple of the least value of all series. Only repetitions
    with all bandwidths count."""
    assert claim.spread is not None
    series = {name: _by_seed(claim, name, reproduction, summary) for name in (claim.policy, *claim.spread)}
    missing = [name for name in claim.spread if not series[name]]
    compared = {name: values for name, values in series.items() if values}
    shared = sorted(set.intersection(*map(set, compared.values()))) if claim.policy in compared and len(compared) > 1 else []
    if not shared:
        run = bool((summary.table["experiment"] == claim.experiment).any())
        return (UNDECIDED, "no repetition has all bandwidths") if run else (UNKNOWN, f"{claim.experiment} was not run")
    what, sign, numbers = _dependence(claim.within, compared, shared)
    differences = [sign * (numbers[claim.policy] - theirs) for name, theirs in numbers.items() if name != claim.policy]
    found = [_two(*t_interval(d)[::2], -math.inf, 0.0) if d.any() else UNDECIDED for d in differences]
    evidence = f"{what}: {'; '.join(f'{name} {digits(float(values.mean()))}' for name, values in numbers.items())}"
    if missing:
        found.append(UNDECIDED)
        evidence += f"; not run at every bandwidth: {', '.join(missing)}"
    return _all(found), evidence


def _dependence(
    within: float | None, compared: dict[str, dict[str, Values]], shared: Sequence[str]
) -> tuple[str, int, dict[str, Values]]:
    """How much each series depends on the bandwidth: the number that tells it, in words; its sign, 1 if smaller numbers are
    better, else −1; and the number of each series for each of the `shared` seeds."""
    if within is None:
        numbers = {name: np.array([v[seed].max() / v[seed].min() for seed in shared]) for name, v in compared.items()}
        return "largest over smallest regret", 1, numbers
    bound = {seed: within * min(v[seed].min() for v in compared.values()) for seed in shared}
    numbers = {name: np.array([(v[seed] <= bound[seed]).sum() for seed in shared], np.float64) for name, v in compared.items()}
    return f"bandwidths with at most {within:g} times the least regret of all methods", -1, numbers


def _by_seed(claim: ClaimConfig, series: str, reproduction: ReproductionConfig, summary: Summary) -> dict[str, Values]:
    """The values of the policies of a series, by the seed of a repetition that has all of them."""
    labels = [label for label in _labels(claim, claim.experiment, reproduction) if _series(label) == series]
    kept = [_values(claim, claim.experiment, label, summary) or {} for label in labels]
    return {seed: np.array([found[seed] for found in kept]) for seed in set.intersection(*map(set, kept))}


def _values(claim: ClaimConfig, experiment: str, label: str, summary: Summary) -> dict[str, float] | None:
    numbers: Numbers = summary.facts.get("numbers", {})
    return numbers.get(number_name(claim, experiment, label))


def _series(label: str) -> str:
    return label.partition(",")[0]


def _two(low: float, high: float, least: float, most: float) -> str:
    """The verdict on "between `least` and `most`", given an interval."""
    if math.isnan(low) or math.isnan(high):
        return UNDECIDED
    if least <= low and high <= most:
        return HELD
    return NOT_HELD if high < least or low > most else UNDECIDED


def _all(found: Sequence[str]) -> str:
    """The verdict on all comparisons together."""
    if NOT_HELD in found:
        return NOT_HELD
    return UNDECIDED if UNDECIDED in found else HELD


# ---------------------------------------------------------------------- numbers in words


def value(line: pd.Series) -> str:
    """A line of a summary as its mean, with its interval if it has one."""
    return _shown(line["mean"], line["low"], line["high"])


def _shown(mean: float, low: float, high: float) -> str:
    if math.isnan(low) or high - low <= 1e-6 * abs(mean):
        return digits(mean)
    return f"{digits(mean)} ({digits(low)} … {digits(high)})"
