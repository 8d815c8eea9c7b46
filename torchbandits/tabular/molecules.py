"""A column of SMILES as fingerprints, one for each row."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path

import torch

from torchbandits.errors import ArgumentError, DiagnosticWarning
from torchbandits.sources import Fingerprints, from_smiles
from torchbandits.tabular.columns import FINGERPRINT_BITS, Decision, as_texts
from torchbandits.tabular.kept import keep
from torchbandits.tabular.tables import Table

KEPT = 10_000
"""Number of molecules from which on their fingerprints are kept in a file, so that a resumed campaign need not compute them."""


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


def _computed(table: Table, column: str, dtype: torch.dtype, device: torch.device | str = "cpu") -> Fingerprints:
    texts = (text for batch in table.batches([column]) for text in as_texts(batch.column(0)).to_pylist())
    with warnings.catch_warnings():
        # A text that does not parse is an error here.
        warnings.simplefilter("ignore", DiagnosticWarning)
        found = from_smiles(texts, num_bits=FINGERPRINT_BITS, dtype=dtype, device=device, distinct=True)
    if found.left_out:
        row, text = found.left_out[0]
        raise ArgumentError(
            f"{table.name}, {table.where(row - 1)}, column {column!r}: {text!r} is not a valid SMILES "
            f"({len(found.left_out):,} such rows). Correct it, or leave the row out."
        )
    return found
