"""A few different molecules as points, so that similar ones are close to each other, beside other features."""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from torchbandits.errors import ArgumentError, DiagnosticWarning
from torchbandits.sources import from_smiles
from torchbandits.sources.smiles import all_smiles
from torchbandits.tanimoto import TanimotoKernel

MOST_COORDINATES = 32
"""Largest number of coordinates of a substance."""
# What SMILES have and codes such as C or CO lack.
_STRUCTURE = re.compile(r"[()=#\[\]\d]")
_BITS = 2048
_ZERO = 1e-9


def are_substances(texts: Sequence[str]) -> bool:
    """Whether texts are SMILES, and not codes that can be read as such: at least half of them have a ring, a branch, or a bond
    that is written. False where RDKit is not installed."""
    structured = sum(_STRUCTURE.search(text) is not None for text in texts)
    return 2 * structured >= len(texts) > 1 and all_smiles(texts)


def coordinates_of(smiles: Sequence[str]) -> NDArray[np.float64]:
    r"""Points of molecules with squared distances :math:`2 (1 - s)`, s the Tanimoto similarity of their counted Morgan
    fingerprints.

    Args:
        smiles: `u` different SMILES.

    Returns:
        `u x r`, mean 0, the coordinates of the largest spread first. r is below u and at most 32; if it is smaller than it
        would have to be, distances are too short. Molecules without similarity are √2 apart, like categories in one-hot
        encoding.

    Raises:
        ArgumentError: If a text is no SMILES.
        DataError: If RDKit is missing.

    Cost: O(u³). Source: classical scaling, Torgerson 1952; Rogers & Hahn 2010 for the fingerprints.
    """
    with warnings.catch_warnings():
        # A text that does not parse is an error here.
        warnings.simplefilter("ignore", DiagnosticWarning)
        found = from_smiles(smiles, num_bits=_BITS, counts=True, distinct=True)
    if found.left_out:
        raise ArgumentError(f"{found.left_out[0][1]!r} is not a valid SMILES ({len(found.left_out):,} such texts).")
    fingerprints = found.chunk(slice(0, len(smiles)))
    similarity = TanimotoKernel()(fingerprints).to_dense().numpy()
    centered = similarity - similarity.mean(axis=0) - similarity.mean(axis=1, keepdims=True) + similarity.mean()
    spread, axes = np.linalg.eigh((centered + centered.T) / 2)
    kept = [place for place in np.argsort(-spread)[:MOST_COORDINATES] if spread[place] > _ZERO]
    return np.asarray(axes[:, kept] * np.sqrt(spread[kept]), np.float64)
