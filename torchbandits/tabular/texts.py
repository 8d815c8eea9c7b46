"""Texts in a column that a model cannot read, or would read otherwise than meant: what they seem to be, and what to do."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, NoReturn

from torchbandits.errors import ArgumentError
from torchbandits.sources.smiles import no_smiles
from torchbandits.tabular.survey import MOST_CATEGORIES, Survey

if TYPE_CHECKING:
    import pandas as pd
else:
    from torchbandits.tabular.extras import pandas as pd

_CORRECT = "correct it, leave the cell empty, or make the column a 'category' or 'ignore' it"
# Largest number of columns that a message names.
_NAMED = 5
_LIKE_A_DATE = re.compile(r"\d{1,4}[-./]\d{1,2}[-./]\d{1,4}\b")
_DATE = re.compile(r"\d{1,2}([-./])\d{1,2}\1\d{4}|\d{4}([-./])\d{1,2}\2\d{1,2}")
_DECIMAL_COMMA = re.compile(r"[+-]?\d+(,\d+)?")
_COMMAS = " Decimal commas are read where semicolons or tabs separate the cells. In a workbook, make such texts numbers."
_WORDS = re.compile(r"[^\W\d_]{4,}([ -][^\W\d_]+)*")
# A number with a unit, a sign such as <, or separators of thousands.
_LIKE_A_NUMBER = re.compile(r"[<>~€$£]?\s*[+\-\u2212]?\d[\d.,'\u2019\s]*\s*[^\W\d]{0,3}[%°€$£]?[^\W\d]?")


class TextError(ArgumentError):
    """A column of texts that are neither categories nor SMILES. Its message is a fact; `remedy` tells what to do."""


def refuse_texts(s: Survey, molecules: bool) -> NoReturn:
    """Refuse texts that are neither categories nor, where there may be molecules, all SMILES."""
    if s.mostly_dates:
        date = f"column {s.column!r} holds {s.first_text!r} in {s.text_at}, which is not a date in the form 2026-08-31"
        raise ArgumentError(f"{date}: {_CORRECT}.")
    if s.mostly_numbers:
        raise ArgumentError(no_number(s))
    wrong = no_smiles(s.categories) if molecules else s.categories
    if 2 * len(wrong) < len(s.categories):
        raise ArgumentError(nearly_smiles(s, wrong))
    many = f"more than {MOST_CATEGORIES:,}" if s.too_many else f"{len(s.categories):,}"
    raise TextError(f"column {s.column!r} holds text ({many} different ones, such as {s.first_text!r})")


def no_number(s: Survey, remedy: str = _CORRECT) -> str:
    """Error message for a column that should hold numbers but does not, with what to do."""
    if s.text and pd.notna(pd.to_numeric(s.first_text, errors="coerce")):
        held = f"column {s.column!r} holds its numbers as texts, such as {s.first_text!r} in {s.text_at}"
        return f"{held}: convert them, as by pandas.to_numeric, which names a text that is no number."
    unit = "if it is a unit, delete its row; otherwise " if s.headed else ""
    return (
        f"column {s.column!r} holds {s.first_text!r} in {s.text_at}, which is not a number: {unit}{remedy}."
        if s.text
        else f"column {s.column!r} holds {s.type}, which is not a number."
    )


def units(columns: Sequence[Survey]) -> str:
    """Error message for columns of numbers below a row of texts."""
    held = ", ".join(f"{s.first_text!r} in column {s.column!r}" for s in columns[:_NAMED]) + ", …" * (len(columns) > _NAMED)
    return (
        f"{columns[0].text_at} holds texts above numbers, {held}: if they are units, or a second line of headers, delete the "
        "row (the names of the columns may hold units); otherwise correct these cells, or leave them empty."
    )


def nearly_smiles(s: Survey, wrong: Sequence[str]) -> str:
    """Error message for a column of SMILES with other texts among them."""
    # More than 1,000 different texts can't be categories.
    kinds = ["ignore"] if s.too_many else ["category", "ignore"]
    ways = " or ".join(f"{kind!r} ({option(s.column, kind)})" for kind in kinds)
    are, them = ("is not a", "it") if len(wrong) == 1 else ("are not", "them")
    of = f"of its {'first ' * s.too_many}{len(s.categories):,} different texts"
    return (
        f"column {s.column!r}: {s.where(wrong)} {are} valid SMILES ({len(wrong):,} {of}). Correct {them}, leave these rows "
        f"out, or make the column a {ways}."
    )


def remedy(columns: Sequence[Survey], molecules: bool) -> str:
    """The remedy for columns of texts that are neither categories nor SMILES."""
    named = [s.column for s in columns[:_NAMED]]
    more = ", …" if len(columns) > _NAMED else ""
    python = ", ".join(f"{name!r}: 'ignore'" for name in named) + more
    command = " ".join(option(name, "ignore") for name in named) + more
    ways = ["compute numbers from it"]
    ways += [] if all(s.too_many for s in columns) else ["declare it as categories ('category')"]
    ways += ["declare it as SMILES of molecules ('substance', 'molecule')"] if molecules else []
    dates = any(_LIKE_A_DATE.match(s.first_text) for s in columns)
    amounts = any(_like_a_number(s.first_text) for s in columns)
    commas = any("," in s.first_text and _DECIMAL_COMMA.fullmatch(s.first_text.strip()) is not None for s in columns)
    return (
        f"A model can't read {'this' if len(columns) == 1 else 'these'}: leave a column out (columns={{{python}}}, {command}), "
        f"{', '.join(ways[:-1])}{', ' * (len(ways) > 1)}or {ways[-1]}."
        f"{' Dates are written like 2026-08-31 in a file, and have the type of dates in a table of pandas.' * dates}"
        f"{' Numbers are written without units and separators of thousands, and with one decimal mark in the file.' * amounts}"
        f"{' A minus sign is written as a hyphen.' * any(chr(0x2212) in s.first_text for s in columns)}"
        f"{_COMMAS * commas}"
    )


def may_be_ids(column: str) -> str:
    """A sentence on texts that cannot be features, and may be the ids of the rows."""
    return f"If the texts of {column!r} name the rows, they are the ids: id={column!r} (--id {column})."


def option(column: str, kind: str) -> str:
    """The option of the command line that declares the kind of a column."""
    plain = re.fullmatch(r"[\w.-]+", column) is not None
    return f"--column {column}={kind}" if plain else f'--column "{column}={kind}"'


def order_lost(texts: Sequence[str]) -> str:
    """The end of a reason if categories are amounts, dates or numbers whose order the model would see in another spelling."""
    first = texts[0][:20]
    if _of_one_unit(texts):
        return f": write {first!r} without the unit to use their order"
    if all(_DATE.fullmatch(text.strip()) for text in texts):
        return f": write {first!r} in the form 2026-08-31 to use their order"
    if all(_DECIMAL_COMMA.fullmatch(text.strip()) for text in texts):
        way = "with a decimal point" if any("," in text for text in texts) else "as a number, not as a text,"
        return f": write {first!r} {way} to use their order"
    return ""


def nearly_equal(texts: Sequence[str]) -> str:
    """The end of a reason if two categories differ only in spaces, or words only in upper and lower case."""
    seen: dict[str, str] = {}
    for text in texts:
        plain = " ".join(text.split())
        # In formulas and SMILES the case has a meaning: Co and CO.
        plain = plain.casefold() if _WORDS.fullmatch(plain) else plain
        if (other := seen.setdefault(plain, text)) != text:
            return f"; {other[:20]!r} and {text[:20]!r} are two: write them alike if they are the same"
    return ""


def _of_one_unit(texts: Sequence[str]) -> bool:
    """Whether texts are numbers with the same unit."""
    units = {re.sub(r"^[+-]?\d[\d.,]*\s*", "", text) for text in texts}
    return len(units) == 1 and "" not in units and all(map(_like_a_number, texts))


def _like_a_number(text: str) -> bool:
    """Whether a text is a number with a unit or the like."""
    return _LIKE_A_NUMBER.fullmatch(text) is not None and not _LIKE_A_DATE.match(text)
