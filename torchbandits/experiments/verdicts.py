"""Published numbers beside ours, and published claims: held or not held, from the summary of a reproduction."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pandas as pd

from torchbandits.experiments.reproduction import ClaimConfig, ReproductionConfig
from torchbandits.experiments.summaries import Summary

HELD, NOT_HELD, UNKNOWN = "held", "not held", "not run"


@dataclass(frozen=True)
class Verdict:
    """A claim, whether it held on the means, and the numbers that say so."""

    claim: str
    verdict: str
    evidence: str


def published_table(reproduction: ReproductionConfig, summary: Summary) -> list[list[str]]:
    """What, published, ours with its 95 % interval, ours over published, why they may differ: one line a published number."""
    lines = []
    for number in reproduction.published:
        ours = summary.at(number.experiment, number.policy, number.measure, number.at)
        ratio = "–" if ours is None or number.value == 0 else _digits(ours["mean"] / number.value)
        if ours is None and (end := summary.at(number.experiment, number.policy, number.measure, None)) is not None:
            cell = f"not reached; {_value(end)} at {end['x']:,.0f}"
        else:
            cell = UNKNOWN if ours is None else _value(ours)
        lines.append([number.what, _digits(number.value), cell, ratio, number.why])
    return lines


def verdicts(reproduction: ReproductionConfig, summary: Summary) -> list[Verdict]:
    """One for each claim."""
    return [_judge(claim, summary) for claim in reproduction.claims]


def _judge(claim: ClaimConfig, summary: Summary) -> Verdict:
    own = summary.at(claim.experiment, claim.policy, claim.measure, claim.at)
    if own is None:
        return Verdict(claim.says, UNKNOWN, f"{claim.policy} was not run that far")
    if claim.below is not None:
        return _below(claim, own, summary)
    if claim.grows is not None:
        return _growth(claim, summary.curve(claim.experiment, claim.policy, claim.measure))
    if claim.levels is not None:
        curve = summary.curve(claim.experiment, claim.policy, claim.measure)
        before = curve[curve["x"] <= own["x"] / 2]
        if before.empty:
            return Verdict(claim.says, UNKNOWN, "there is no half of the first pull")
        half = before.iloc[-1]
        ratio = float(own["mean"] / half["mean"])
        evidence = f"{_digits(half['mean'])} at t = {half['x']:,.0f}, {_digits(own['mean'])} at {own['x']:,.0f}"
        return Verdict(claim.says, _held(ratio <= claim.levels), f"{evidence}: {_digits(ratio)} times")
    bound, word = (claim.at_least, "at least") if claim.at_least is not None else (claim.at_most, "at most")
    assert bound is not None
    good = own["mean"] >= bound if claim.at_least is not None else own["mean"] <= bound
    return Verdict(claim.says, _held(bool(good)), f"{_value(own)}, {word} {_digits(bound)} is claimed")


def _below(claim: ClaimConfig, own: pd.Series, summary: Summary) -> Verdict:
    assert claim.below is not None
    other = claim.than or claim.experiment
    found = {label: summary.at(other, label, claim.measure, claim.at) for label in claim.below}
    others = {label: value for label, value in found.items() if value is not None}
    if not others:
        return Verdict(claim.says, UNKNOWN, f"none of {', '.join(claim.below)} was run")
    where = f" ({claim.than})" if claim.than else ""
    good = all(own["mean"] <= claim.factor * value["mean"] for value in others.values())
    apart = all(own["high"] < claim.factor * value["low"] for value in others.values())
    listed = "; ".join(f"{label}{where} {_value(value)}" for label, value in others.items())
    evidence = f"{claim.policy} {_value(own)}; {listed}"
    if good and not apart:
        evidence += "; on the means: the intervals overlap, or there is one repetition"
    missing = [label for label, value in found.items() if value is None]
    return Verdict(claim.says, _held(good), evidence + (f"; not run: {', '.join(missing)}" if missing else ""))


def _growth(claim: ClaimConfig, curve: pd.DataFrame) -> Verdict:
    assert claim.grows is not None
    end = curve["x"].iloc[-1]
    late = curve[(curve["x"] >= math.sqrt(end)) & (curve["x"] <= end / 2) & (curve["mean"] > 0)]
    power = float(np.polyfit(np.log(late["x"]), np.log(late["mean"]), 1)[0]) if len(late) > 2 else math.nan
    low, high = claim.grows
    span = f"from t = {late['x'].min():,.0f} to {late['x'].max():,.0f}"
    evidence = f"{claim.policy}: {span} like t to the {power:.2f}, {low:g} to {high:g} is claimed"
    return Verdict(claim.says, _held(low <= power <= high), evidence)


def _held(good: bool) -> str:
    return HELD if good else NOT_HELD


def _value(line: pd.Series) -> str:
    if math.isnan(line["low"]) or line["low"] == line["high"]:
        return _digits(line["mean"])
    return f"{_digits(line['mean'])} ({_digits(line['low'])} … {_digits(line['high'])})"


def _digits(value: float) -> str:
    """Three digits, without an exponent from 0.0001 to a million."""
    if value == 0 or 1e-4 <= abs(value) < 1e6:
        places = 0 if abs(value) >= 100 else 2 - math.floor(math.log10(abs(value))) if value else 0
        return f"{value:,.{places}f}"
    return f"{value:.2e}"
