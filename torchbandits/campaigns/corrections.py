"""Corrections of results that were told: the journal of a campaign is rewritten as if the right value had been told."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from torchbandits.checks import is_finite
from torchbandits.errors import UnsupportedError, require
from torchbandits.journal import held, pack

Line = dict[str, Any]
"""A record of a journal."""
Wanted = dict[int, float | None]
"""Values by the place of their outcome: NaN for a failed evaluation or an outcome that was not measured, None for no result."""
EARLIER = "before"
"""Entry of a record with the results of the call before each correction, oldest first."""
BEYOND = "beyond"
"""Entry of a record of a tell with the signs of results beyond a limit of detection."""


@dataclass(frozen=True)
class Corrected:
    """Outcome of a correction, which prints as a sentence.

    Attributes:
        id: The id of the row.
        was, now: The wrong and the right result in words: `failed` for a failed evaluation, `none` for no result or an outcome
            that was not measured.
        kept: The path of the journal before the correction, which is kept.
    """

    id: str
    was: str
    now: str
    kept: Path

    def __str__(self) -> str:
        """The outcome in words."""
        return f"{self.id} is corrected: {self.was} before, {self.now} now. The journal as it was is kept in {self.kept}."


def check_result(name: str, value: Any) -> None:
    """Refuse anything but a finite number, a boolean, NaN or None."""
    yes_or_no = isinstance(value, bool | np.bool_)
    good = value is None or yes_or_no or is_finite(value) or (isinstance(value, float) and math.isnan(value))
    require(good, f"{name} must be a number, math.nan for a failed evaluation or None for no result, got {value!r}.")


@dataclass(frozen=True)
class Correction:
    """The correction of one result.

    Attributes:
        row, name: The row, and how messages name it.
        values: The right values, in units of the user.
        was: The values that were told; None if the row has no other result.
        outcomes: The name of each outcome.
        sign: A value times this sign is a reward.
    """

    row: int
    name: str
    values: Wanted
    was: Wanted | None
    outcomes: tuple[str, ...]
    sign: float

    def edit(self, lines: Sequence[Line]) -> list[Line]:
        """The journal as if the right value had been told. Rows that were selected later stay selected."""
        at, place, _ = self._find(lines)
        require(
            all(line["kind"] != "load" for line in lines[at + 1 :]),
            f"{self.name} was told before a state was loaded (bandit.load_state_dict), which holds what was learned from the "
            "wrong result, so that nothing would change: begin another campaign, and tell it the right results.",
            UnsupportedError,
        )
        return [*lines[:at], self._corrected(lines[at], place), *map(_as_selected, lines[at + 1 :])]

    def in_words(self, lines: Sequence[Line]) -> tuple[str, str]:
        """The wrong and the right result, in words."""
        at, place, wrong = self._find(lines)
        right = [self.values[j] for j in sorted(self.values)]
        return self._or_failed(wrong, self._signs(lines[at], place)), self._or_failed(right)

    def _signs(self, line: Line, place: int) -> list[int]:
        """The signs of the outcomes that are corrected, at a place of a record."""
        if BEYOND not in line:
            return [0] * len(self.values)
        found: list[int] = held(line[BEYOND]).reshape(len(self.outcomes), -1)[sorted(self.values), place].tolist()
        return found

    def _or_failed(self, values: Sequence[float | None], signs: Sequence[int] = ()) -> str:
        """A result in words, a failed evaluation of several outcomes as one, beside `none` for no result."""
        failed = len(values) == len(self.outcomes) and all(value is not None and math.isnan(value) for value in values)
        return "failed" if failed else self._in_words(values, signs)

    def _find(self, lines: Sequence[Line]) -> tuple[int, int, list[float]]:
        """The record that holds the result, its place there, and its values; of equal results the last one."""
        k, own = len(self.outcomes), sorted(self.values)
        told = [
            (at, place, (self.sign * held(line["rewards"]).double().reshape(k, -1)[own, place]).tolist())
            for at, line in enumerate(lines)
            if line["kind"] == "tell"
            for place in np.flatnonzero(held(line["index"]).reshape(k, -1)[0].numpy() == self.row).tolist()
        ]
        require(bool(told), f"{self.name} has no result that could be corrected: tell it (torchbandits campaign tell).")
        # A row is corrected where it has a value; only a row without any where it failed.
        measured = [one for one in told if not all(map(math.isnan, one[2]))]
        found = measured or told
        if self.was is not None:
            wanted = [_or_nan(self.was.get(j, math.nan)) for j in own]
            found = [one for one in told if all(map(_same, one[2], wanted))]
        different = list(dict.fromkeys(self._in_words(values) for _, _, values in found))
        words = [self._in_words(values, self._signs(lines[at], place)) for at, place, values in told]
        every = ", ".join(dict.fromkeys(words))
        require(bool(found), f"was: {self.name} has no such result, but {every}.")
        require(len(different) == 1, f"{self.name} has several results, {every}: say by was= (--was) which one is wrong.")
        return found[-1]

    def _in_words(self, values: Sequence[float | None], signs: Sequence[int] = ()) -> str:
        alone = len(self.outcomes) == 1
        # One of several outcomes may not have been measured.
        empty = "failed" if alone else "none"
        # Adding 0 turns −0 into 0.
        said = ["none" if value is None else empty if math.isnan(value) else f"{value + 0.0:.10g}" for value in values]
        said = [{-1: "<", 1: ">"}.get(sign, "") + text for sign, text in zip(signs or [0] * len(said), said, strict=True)]
        names = [self.outcomes[j] for j in sorted(self.values)]
        return said[0] if alone else " ".join(f"{n}={s}" for n, s in zip(names, said, strict=True))

    def _corrected(self, line: Line, place: int) -> Line:
        index, rewards = held(line["index"]).clone(), held(line["rewards"]).double().clone()
        every = rewards.reshape(len(self.outcomes), -1)[:, place]
        for j, value in self.values.items():
            every[j] = self.sign * _or_nan(value)
        now: Line = {}
        if BEYOND in line:
            signs = held(line[BEYOND]).clone()
            # The right values are measured ones.
            signs.reshape(len(self.outcomes), -1)[list(self.values), place] = 0
            now[BEYOND] = pack(signs)
        if None in self.values.values() and bool(every.isnan().all()):
            index[..., place], every[:] = -1, 0.0
        earlier = [*line.get(EARLIER, ()), {"index": line["index"], "rewards": line["rewards"]}]
        return line | {"index": pack(index), "rewards": pack(rewards), EARLIER: earlier} | now


def _as_selected(line: Line) -> Line:
    """A record of an ask as one of rows that were selected, which the policy would not select after the correction."""
    return {"kind": "fill", "index": line["index"], "drawn": [], "at": line["at"]} if line["kind"] == "ask" else line


def _or_nan(value: float | None) -> float:
    return math.nan if value is None else value


def _same(one: float, other: float) -> bool:
    # Messages show ten digits, which may be given as `was`.
    return math.isclose(one, other, rel_tol=1e-9) or (math.isnan(one) and math.isnan(other))
