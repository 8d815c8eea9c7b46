"""A few different molecules as points, so that similar ones are close to each other, beside other features."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from torchbandits.errors import ArgumentError
from torchbandits.sources.smiles import chem, generators, rdbase
from torchbandits.tanimoto import TanimotoKernel

MOST_COORDINATES = 32
"""Largest number of coordinates of a substance."""
_BITS = 2048
_ZERO = 1e-9


def coordinates_of(smiles: Sequence[str]) -> NDArray[np.float64]:
    r"""Points of molecules with squared distances :math:`2 (1 - s)`, s the Tanimoto similarity of their counted Morgan
    fingerprints. If some of these are equal, as those of stereoisomers are, the fingerprints contain the chirality as well.

    Args:
        smiles: `u` different SMILES. Those of one molecule have the same point.

    Returns:
        `u x r`, mean 0, the coordinates of the largest spread first. r is below u and at most 32; if it is smaller than it
        would have to be, distances are too short. Molecules without similarity are √2 apart, like categories in one-hot
        encoding.

    Raises:
        ArgumentError: If a text is no SMILES.
        DataError: If RDKit is missing.

    Cost: O(u³). Source: classical scaling, Torgerson 1952; Rogers & Hahn 2010 for the fingerprints.
    """
    chem.need()
    with rdbase.BlockLogs():
        molecules = [chem.MolFromSmiles(text) for text in smiles]
    wrong = [text for text, own in zip(smiles, molecules, strict=True) if own is None or not own.GetNumAtoms()]
    if wrong:
        raise ArgumentError(f"{wrong[0]!r} is not a valid SMILES ({len(wrong):,} such texts).")
    _, first, place = np.unique([chem.MolToSmiles(own) for own in molecules], return_index=True, return_inverse=True)
    # In the order of the texts, so that other spellings change nothing.
    order = np.argsort(first)
    place, molecules = np.argsort(order)[place], [molecules[j] for j in first[order]]
    fingerprints = _fingerprints(molecules, chirality=False)
    if len(np.unique(fingerprints, axis=0)) < len(molecules):
        fingerprints = _fingerprints(molecules, chirality=True)
    similarity = TanimotoKernel()(torch.from_numpy(fingerprints)).to_dense().numpy()
    centered = similarity - similarity.mean(axis=0) - similarity.mean(axis=1, keepdims=True) + similarity.mean()
    spread, axes = np.linalg.eigh((centered + centered.T) / 2)
    kept = [place for place in np.argsort(-spread)[:MOST_COORDINATES] if spread[place] > _ZERO]
    return np.asarray(axes[:, kept] * np.sqrt(spread[kept]), np.float64)[place]


def _fingerprints(molecules: Sequence[Any], *, chirality: bool) -> NDArray[np.float64]:
    maker = generators.GetMorganGenerator(radius=2, fpSize=_BITS, includeChirality=chirality)
    return np.array([maker.GetCountFingerprintAsNumPy(own) for own in molecules], np.float64)
