"""The columns of a table of candidates: the decision on the features of each, in view of all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from torchbandits.errors import ArgumentError, nearest, require
from torchbandits.tabular.decisions import KINDS, MOLECULE, SUBSTANCE, Decision, Decisions
from torchbandits.tabular.kinds import category, decision_on, number, substance
from torchbandits.tabular.mixtures import BULK, parts_of_a_whole
from torchbandits.tabular.survey import LARGEST, MOST_CATEGORIES, Survey, survey
from torchbandits.tabular.tables import Table
from torchbandits.tabular.texts import TextError, may_be_ids, remedy, units

FEW_REAGENTS = 100
"""Largest number of different SMILES that are categories beside other features. As substances so few had more simple regret."""
_ROLES = {"id": "names the rows", "known": "a value in every row: not measured"}


class ColumnsError(ArgumentError):
    """Columns that can't be used, each of them named with what to do."""


def decide(table: Table, roles: Mapping[str, str], overruled: Mapping[str, Any], *, molecules: bool = False) -> Decisions:
    """Decide how each column is encoded.

    Numbers stay numbers, unless they are positive and spread over decades (`log`; if some of them are 0, log(1 + x / u) for
    the smallest positive number u; of whole numbers from 0 on `count`, the logarithm of one more). Fractions that add up to a
    whole stay numbers, except those of additives. Texts are categories if there are at most 50 different ones, and each is in
    more than one row on average. A column of equal cells is ignored.
    Empty cells of numbers are replaced by the median, with a feature "is empty"; empty cells of categories form a separate
    category. Texts that RDKit reads as SMILES, beside other features, are categories if at most 100 differ, each in more than
    one row on average, and otherwise substances, points whose distances come from the similarity of their fingerprints, if at
    most 1,000 differ. A column of SMILES that is the only feature holds molecules, which are compared by their whole
    fingerprints: if a column is declared to hold molecules, all other columns are ignored.

    Args:
        table: The candidates.
        roles: Role of each column that is not a feature. A column of costs is one if its kind is overruled.
        overruled: Kind of a column by its name, one of `KINDS`, or the list of its categories in order.
        molecules: Whether a column may hold molecules or substances.

    Raises:
        ArgumentError: If a column holds texts, infinities or other cells that are not numbers, or contradicts `overruled`; one
            message names all such columns.

    Cost: one pass over the table, and 100,000 of its rows in memory.
    """
    _check_overruled(table, roles, overruled, molecules)
    costs = [name for name, role in roles.items() if role == "cost" and overruled.get(name, "ignore") != "ignore"]
    roles = {name: role for name, role in roles.items() if name not in costs}
    names = table.schema.names
    alone = _only_molecules(overruled)
    wanted = [
        name for name in names if name not in roles and overruled.get(name) != "ignore" and (alone is None or name in overruled)
    ]
    found = survey(table, wanted)
    decided: list[Decision] = []
    refused: dict[str, ArgumentError] = {}
    for name in names:
        if name in roles:
            decided.append(Decision(name, roles[name], _ROLES.get(roles[name], "as told")))
        elif overruled.get(name) == "ignore":
            decided.append(Decision(name, "ignore", "as told"))
        elif name not in wanted:
            decided.append(Decision(name, "ignore", f"beside the molecules of {alone!r}"))
        else:
            try:
                decision = decision_on(found[name], overruled.get(name), molecules)
                decided.append(replace(decision, why=f"{decision.why}, beside the cost") if name in costs else decision)
            except ArgumentError as error:
                refused[name] = error
    if alone is None:
        decided = _with_reagents(decided, found, list(refused))
    wrong = _faults(refused, found, molecules)
    if "id" not in roles.values():
        wrong += [may_be_ids(name) for name in refused if found[name].may_name_rows][:1]
    require(not wrong, " ".join(wrong), ColumnsError)
    decided = _with_bulk_parts(decided, found, overruled)
    some = any(d.features for d in decided)
    require(some, f"{table.name} has no column that tells its rows apart: nothing can be learned from one row about another.")
    return Decisions(tuple(decided))


def _faults(refused: Mapping[str, ArgumentError], found: Mapping[str, Survey], molecules: bool) -> list[str]:
    """Sentences on the columns that are refused, by the error of each."""
    headed = [found[name] for name in refused if found[name].headed]
    # A row of units is named once, and not for each of its cells.
    named = [s.column for s in headed] if len(headed) > 1 else []
    wrong = [units(headed)] if named else []
    wrong += [str(error) for name, error in refused.items() if name not in named and not isinstance(error, TextError)]
    texts = {name: str(error) for name, error in refused.items() if isinstance(error, TextError)}
    if texts:
        # Their remedy is the same, so that one sentence names them all.
        wrong.append(f"{'; '.join(texts.values())}. {remedy([found[name] for name in texts], molecules)}")
    return wrong


def _check_overruled(table: Table, roles: Mapping[str, str], overruled: Mapping[str, Any], molecules: bool) -> None:
    """Refuse kinds of columns that do not exist or have a role, and unknown kinds."""
    names = table.schema.names
    kinds = [own for own in KINDS if molecules or own not in (MOLECULE, SUBSTANCE)]
    for column, kind in overruled.items():
        require(column in names, f"columns: {table.name} has no column {column!r}.{nearest(str(column), names)}")
        # Conditions are no features in any case, and costs are if it is said.
        role = roles.get(column)
        free = role in (None, "cost") or (kind == "ignore" and role == "candidates")
        require(free, f"columns: {column!r} is the {role} and can't be a feature as well.")
        known = kind in kinds if isinstance(kind, str) else isinstance(kind, Sequence) and len(kind) > 1
        message = (
            f"columns: {column!r} must be one of {', '.join(kinds)}, or the list of its categories in order, got {kind!r}."
        )
        require(known, message + (nearest(kind, kinds) if isinstance(kind, str) else ""))


def _only_molecules(overruled: Mapping[str, Any]) -> str | None:
    """The column that is declared to hold molecules, or None.

    Raises:
        ArgumentError: If another column is declared to be a feature as well.
    """
    alone = next((column for column, kind in overruled.items() if kind == MOLECULE), None)
    others = [column for column, kind in overruled.items() if column != alone and kind != "ignore"]
    require(
        alone is None or not others,
        f"columns: the fingerprints of the molecules of {alone!r} leave no room for other features, such as "
        f"{', '.join(map(repr, others[:5]))}: 'ignore' those, or {alone!r}.",
    )
    return alone


def _with_reagents(decided: Sequence[Decision], found: Mapping[str, Survey], refused: Sequence[str]) -> list[Decision]:
    """The decisions with molecules as reagents where there are other features, for which refused columns count too."""
    molecules = [d.column for d in decided if d.kind == MOLECULE]
    others = [*refused, *(d.column for d in decided if d.features and d.kind != MOLECULE)]
    beside = {column: others + [other for other in molecules if other != column] for column in molecules}
    return [_reagents(found[d.column], beside[d.column]) if beside.get(d.column) else d for d in decided]


def _reagents(s: Survey, beside: Sequence[str]) -> Decision:
    """SMILES beside other features: categories if they are few and each is in more than one row on average, else substances."""
    require(
        not s.too_many,
        f"column {s.column!r} holds more than {MOST_CATEGORIES:,} different molecules, whose fingerprints leave no room "
        f"for other features (here {', '.join(map(repr, beside[:5]))}): to learn from the molecules alone, say "
        f"columns={{{s.column!r}: 'molecule'}} (--column {s.column}=molecule); to learn from the others alone, "
        f"{{{s.column!r}: 'ignore'}}.",
    )
    if len(s.categories) <= FEW_REAGENTS and 2 * len(s.categories) <= s.count - s.missing:
        return category(s, f"{len(s.categories)} different SMILES")
    return substance(s, "SMILES: similar ones are close to each other")


def _with_bulk_parts(decided: Sequence[Decision], found: Mapping[str, Survey], overruled: Mapping[str, Any]) -> list[Decision]:
    """The decisions with those parts of a whole as numbers that are more than additives, unless the user decided otherwise."""
    spread = [d.column for d in decided if d.kind in ("log", "count") and d.column not in overruled]
    if not spread:
        return list(decided)
    numeric = [s for s in found.values() if s.numeric and not (s.boolean or s.date or s.missing or s.infinite)]
    parts, whole = parts_of_a_whole({s.column: s.sample for s in numeric if 0 <= s.low < s.high < LARGEST})
    bulk = [name for name in spread if name in parts and np.quantile(found[name].sample, 0.95) >= BULK * whole]
    why = f"a part of {whole:.4g}, to which {len(parts)} columns add up"
    numbers = {name: number(found[name], why) for name in bulk}
    return [numbers.get(d.column, d) for d in decided]
