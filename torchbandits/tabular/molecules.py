"""A column of SMILES as fingerprints, one for each row."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch

from torchbandits.errors import ArgumentError, DiagnosticWarning
from torchbandits.sources import Fingerprints, from_smiles
from torchbandits.sources.smiles import chem, no_smiles
from torchbandits.tabular.cells import as_texts
from torchbandits.tabular.decisions import FINGERPRINT_BITS, Decision
from torchbandits.tabular.kept import keep
from torchbandits.tabular.tables import Table

KEPT = 10_000
"""Number of molecules from which on their fingerprints are kept in a file, so that a resumed campaign need not compute them."""
# Largest number of rows that an error names.
_NAMED = 5
# Fingerprints that are read together.
_STEP = 1 << 16


def fingerprints(
    table: Table, decision: Decision, dtype: torch.dtype, place: Callable[[], Path], device: torch.device
) -> Fingerprints:
    """Morgan fingerprints of a column, in the order of the rows. The fingerprints of more than `KEPT` rows are in a file at
    `place()`; an existing file that was made from the same cells is used unchanged. Rows with equal fingerprints stay separate
    arms.

    Raises:
        ArgumentError: If a cell is no SMILES: names the row.
        DataError: If RDKit is missing, or the file cannot be written.

    Cost: a pass over the column, some 0.1 ms per row.
    """
    if table.count <= KEPT:
        return _computed(table, decision.column, dtype, device)
    path = place()
    keep(path, table, [decision], lambda: _computed(table, decision.column, dtype).save(path))
    return Fingerprints(path, dtype=dtype, device=device, distinct=True)


def repeated(table: Table, column: str, found: Fingerprints) -> list[str]:
    """A sentence if several rows hold one molecule, in the same or in other spellings.

    Cost: a pass over the fingerprints, and the molecules of rows with equal fingerprints.
    """
    every = (row.tobytes() for _, words in found.packed(_STEP) for row in words.cpu().numpy())
    hashes = np.fromiter(map(hash, every), np.int64, found.num_arms)
    _, group, sizes = np.unique(hashes, return_inverse=True, return_counts=True)
    rows = np.flatnonzero(sizes[group] > 1)
    texts = as_texts(table.take(rows, [column]).column(0).combine_chunks()).to_pylist() if len(rows) else []
    first: dict[str, tuple[int, str]] = {}
    pairs = []
    for row, text in zip(rows.tolist(), texts, strict=True):
        at, own = first.setdefault(chem.MolToSmiles(chem.MolFromSmiles(text)), (row, text))
        if at != row:
            pairs.append(f"{table.where(at)} ({own!r}) and {table.where(row)} ({text!r})")
    more = f" ({len(pairs):,} such pairs)" if len(pairs) > 1 else ""
    meant = "each is a candidate and is measured on its own. Leave repeated rows out, unless this is meant."
    return [f"{table.name}, column {column!r}: {pairs[0]} hold the same molecule{more}; {meant}"] if pairs else []


def canonical(table: Table, column: str) -> list[str]:
    """The canonical SMILES of each row, which are equal for all spellings of a molecule.

    Raises:
        ArgumentError: If a cell is no SMILES: names the row.
        DataError: If RDKit is missing.

    Cost: a pass over the column, some 0.2 ms per molecule.
    """
    chem.need()
    texts = list(_texts(table, column))
    different = dict.fromkeys(texts)
    wrong = {*no_smiles(list(different))}
    _refuse(table, column, [(row, text) for row, text in enumerate(texts) if text in wrong])
    own = {text: chem.MolToSmiles(chem.MolFromSmiles(text)) for text in different}
    return [own[text] for text in texts]


def _texts(table: Table, column: str) -> Iterator[str]:
    return (text for batch in table.batches([column]) for text in as_texts(batch.column(0)).to_pylist())


def _computed(table: Table, column: str, dtype: torch.dtype, device: torch.device | str = "cpu") -> Fingerprints:
    texts = _texts(table, column)
    with warnings.catch_warnings():
        # A text that does not parse is an error here.
        warnings.simplefilter("ignore", DiagnosticWarning)
        found = from_smiles(texts, num_bits=FINGERPRINT_BITS, dtype=dtype, device=device, distinct=True)
    _refuse(table, column, [(line - 1, text) for line, text in found.left_out])
    return found


def _refuse(table: Table, column: str, wrong: list[tuple[int, str]]) -> None:
    """Refuse rows that hold no SMILES."""
    if wrong:
        named = ", ".join(f"{text[:40]!r} in {table.where(row)}" for row, text in wrong[:_NAMED])
        more = len(wrong) - _NAMED
        are, them = ("is not a", "it") if len(wrong) == 1 else ("are not", "them")
        raise ArgumentError(
            f"{table.name}, column {column!r}: {named}{f' and {more:,} more' if more > 0 else ''} {are} valid SMILES. Correct "
            f"{them}, or leave these rows out."
        )
