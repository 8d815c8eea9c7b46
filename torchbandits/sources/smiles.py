"""Fingerprints of molecules from their SMILES, by RDKit."""

from __future__ import annotations

import hashlib
import itertools
import json
import multiprocessing
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from torchbandits.checks import as_path, check_flag, check_whole
from torchbandits.errors import ArgumentError, DataError, issue, require
from torchbandits.extras import Later
from torchbandits.locks import remove
from torchbandits.packing import Packing
from torchbandits.sources.byte_rows import BITS, ID, SMILES, described, pq, schema, table
from torchbandits.sources.columnar import opened
from torchbandits.sources.files import unfinished
from torchbandits.sources.fingerprints import Fingerprints

chem, generators, rdbase = (
    Later(name, "fingerprints of SMILES", "chem")
    for name in ("rdkit.Chem", "rdkit.Chem.rdFingerprintGenerator", "rdkit.rdBase")
)

# Number of lines in a piece, which one process computes at a time and which an interrupted run keeps.
_PIECE = 20_000
# Largest number of unparsed lines in the warning.
_SHOWN = 3
_NOTHING = "none of the SMILES can be parsed: check that the texts are SMILES."


class Morgan(NamedTuple):
    """Morgan (ECFP) fingerprints: radius, number of bits, and whether environments are counted."""

    radius: int
    num_bits: int
    counts: bool


class _Piece(NamedTuple):
    """Fingerprints of consecutive lines: the number of the first, bytes, ids and SMILES of those that parse, and the lines that
    do not."""

    first: int
    rows: np.ndarray
    ids: list[str]
    smiles: list[str]
    left_out: list[tuple[int, str]]
    lines: int


def from_smiles(
    smiles: str | Path | Iterable[str],
    path: str | Path | None = None,
    *,
    ids: Iterable[Any] | None = None,
    radius: int = 2,
    num_bits: int = 2048,
    counts: bool = False,
    processes: int = 1,
    progress: Callable[[int, int], None] | None = None,
    dtype: torch.dtype = torch.float64,
    device: torch.device | str = "cpu",
    distinct: bool = False,
) -> Fingerprints:
    """Morgan (ECFP) fingerprints of molecules, by RDKit (extra `chem`), with their SMILES and ids.

    SMILES that do not parse are left out: a warning names the first, and `left_out` of the result lists all with their lines.

    Args:
        smiles: A file with one SMILES on each line, followed by its id after a space or tab if there is one; or the SMILES
            themselves. Empty lines are skipped.
        path: Parquet file to write. It is written in pieces of 20,000 lines, which a call after an interruption finds and does
            not compute again. By default the fingerprints are held in memory.
        ids: One id for each SMILES, if they are not in a file; by default the number of its line, from 1.
        radius: Radius of the environments, 2 for ECFP4.
        num_bits: Number of bits of a fingerprint.
        counts: Whether to count environments, up to 255, at 8 times the size.
        processes: Number of processes. With more than one, call it under `if __name__ == "__main__":`.
        progress: Called after each piece with the numbers of lines read and left out in this call.
        dtype: Dtype of sweeps.
        device: Device of means, leverages and posterior.
        distinct: Whether each molecule is a separate arm. By default molecules with equal fingerprints are one arm, the first
            of them.

    Raises:
        DataError: If RDKit is missing, a file can't be read or written, or no SMILES parses.
        ArgumentError: If ids repeat or are not one for each SMILES, or the pieces at `path` are those of another call.

    Warns (`DiagnosticWarning`): If SMILES are left out.

    Cost: about 0.1 ms per molecule on one process. Source: Rogers & Hahn 2010 for the fingerprints.
    """
    for name, value, least in (("radius", radius, 0), ("num_bits", num_bits, 1), ("processes", processes, 1)):
        check_whole(name, value, least)
    check_flag("counts", counts)
    require(progress is None or callable(progress), f"progress must be a function, got {type(progress).__name__}.")
    known = isinstance(smiles, (str, Path, Iterable))
    require(known, f"smiles must be a path or a list of SMILES, got {type(smiles).__name__}.")
    known = ids is None or (isinstance(ids, Iterable) and not isinstance(ids, str))
    require(known, f"ids must be a list, one for each SMILES, got {type(ids).__name__}.")
    rdbase.need()
    kind, options = Morgan(radius, num_bits, counts), {"dtype": dtype, "device": device, "distinct": distinct}
    known = ids is None or not isinstance(smiles, (str, Path))
    require(known, "ids= is for SMILES in a list. In a file the id follows each SMILES: leave ids= out.")
    pieces = _cut(_lines(smiles, ids))
    if path is None:
        done = list(_told(_computed(pieces, kind, processes), progress))
        found = _joined(done, kind, options)
    else:
        found = _written(pieces, _stamp(smiles, ids), as_path("path", path), kind, processes, progress, options)
    if found.left_out:
        shown = "; ".join(f"line {line}: {text!r}" for line, text in found.left_out[:_SHOWN])
        more = len(found.left_out) - _SHOWN
        issue(
            [
                f"{len(found.left_out):,} of {len(found.left_out) + found.num_arms:,} SMILES could not be parsed and "
                f"were left out: {shown}{(f', and {more:,} more' if more > 0 else '')}. `left_out` lists them; "
                "correct them if they matter."
            ]
        )
    return found


def all_smiles(texts: Sequence[str]) -> bool:
    """Whether all of some texts are SMILES; False where RDKit is not installed."""
    return len(texts) > 0 and next(_no_smiles(texts), None) is None


def no_smiles(texts: Sequence[str]) -> list[str]:
    """The texts that are no SMILES: all of them where RDKit is not installed. Cost: some 0.1 ms per text."""
    return list(_no_smiles(texts))


def _no_smiles(texts: Sequence[str]) -> Iterator[str]:
    try:
        chem.need()
    except DataError:
        yield from texts
        return
    with rdbase.BlockLogs():
        for text in texts:
            molecule = chem.MolFromSmiles(text)
            if molecule is None or not molecule.GetNumAtoms():
                yield text


# ---------------------------------------------------------------------------------- lines


def _lines(smiles: Any, ids: Any) -> Iterator[tuple[int, str, str]]:
    """Number from 1, SMILES and id of each line that is not empty."""
    if isinstance(smiles, (str, Path)):
        path = as_path("smiles", smiles)
        try:
            # A spreadsheet program may begin the file with a byte order mark.
            with path.open(encoding="utf-8-sig") as lines:
                for number, line in enumerate(lines, 1):
                    line = line.strip()
                    text, _, name = line.partition("\t" if "\t" in line else " ")
                    if text:
                        yield number, text, name.strip() or str(number)
        except (OSError, UnicodeDecodeError) as error:
            hint = ". SMILES themselves are given in a list" if isinstance(smiles, str) else ""
            raise DataError(f"can't read SMILES from {path}: {error}{hint}.") from error
        return
    pairs = zip(smiles, itertools.count(1), strict=False) if ids is None else itertools.zip_longest(smiles, ids)
    for number, (text, name) in enumerate(pairs, 1):
        lacks = "its id" if name is None else "its SMILES"
        require(ids is not None or text is not None, f"smiles must be texts, got None as number {number}.")
        require(text is not None and name is not None, f"ids must be one for each SMILES, and number {number} lacks {lacks}.")
        require(isinstance(text, str), f"smiles must be texts, got {type(text).__name__} as number {number}.")
        yield number, text, str(name)


def _cut(lines: Iterator[tuple[int, str, str]]) -> Iterator[list[tuple[int, str, str]]]:
    while piece := list(itertools.islice(lines, _PIECE)):
        yield piece


# ---------------------------------------------------------------------------------- fingerprints


def _of_piece(lines: list[tuple[int, str, str]], kind: Morgan) -> _Piece:
    """Fingerprints of some lines, computed in any process."""
    maker = generators.GetMorganGenerator(radius=kind.radius, fpSize=kind.num_bits)
    rows, ids, smiles, left_out = [], [], [], []
    with rdbase.BlockLogs():
        for number, text, name in lines:
            molecule = chem.MolFromSmiles(text)
            if molecule is None or not molecule.GetNumAtoms():
                left_out.append((number, text))
                continue
            if kind.counts:
                rows.append(maker.GetCountFingerprintAsNumPy(molecule).clip(max=255).astype(np.uint8))
            else:
                rows.append(np.packbits(maker.GetFingerprintAsNumPy(molecule)))
            ids.append(name)
            smiles.append(text)
    width = Packing(kind.num_bits, kind.counts).num_bytes
    array = np.stack(rows) if rows else np.empty((0, width), np.uint8)
    return _Piece(lines[0][0], array, ids, smiles, left_out, len(lines))


def _computed(pieces: Iterable[list[tuple[int, str, str]]], kind: Morgan, processes: int) -> Iterator[_Piece]:
    """Pieces in order; each process computes one piece, and one more piece per process waits."""
    if processes == 1:
        for piece in pieces:
            yield _of_piece(piece, kind)
        return
    with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn")) as pool:
        waiting: list[Any] = []
        for piece in pieces:
            waiting.append(pool.submit(_of_piece, piece, kind))
            if len(waiting) > 2 * processes:
                yield waiting.pop(0).result()
        for future in waiting:
            yield future.result()


def _told(pieces: Iterable[_Piece], progress: Callable[[int, int], None] | None) -> Iterator[_Piece]:
    lines = left_out = 0
    for piece in pieces:
        lines, left_out = lines + piece.lines, left_out + len(piece.left_out)
        if progress is not None:
            progress(lines, left_out)
        yield piece


def _joined(pieces: Sequence[_Piece], kind: Morgan, options: dict[str, Any]) -> Fingerprints:
    rows = [piece.rows for piece in pieces]
    require(any(map(len, rows)), _NOTHING, DataError)
    ids = [text for piece in pieces for text in piece.ids]
    smiles = [text for piece in pieces for text in piece.smiles]
    found = Fingerprints(np.concatenate(rows), kind.num_bits, counts=kind.counts, ids=ids, smiles=smiles, **options)
    found.left_out = tuple(line for piece in pieces for line in piece.left_out)
    return found


# ---------------------------------------------------------------------------------- files


def _stamp(smiles: Any, ids: Any) -> str:
    """Options that the pieces of an interrupted call must share with those of the next."""
    if isinstance(smiles, (str, Path)):
        try:
            status = Path(smiles).stat()
        except OSError as error:
            raise DataError(f"can't read SMILES from {smiles}: {error}.") from error
        return f"{status.st_size} bytes of {status.st_mtime_ns}"
    fixed = isinstance(smiles, Sequence) and (ids is None or isinstance(ids, Sequence))
    require(fixed, "with path= smiles must be a file or a list, and ids a list, so that an interrupted call can go on.")
    whole = hashlib.sha256()
    for text in itertools.chain(smiles, () if ids is None else map(str, ids)):
        whole.update(str(text).encode() + b"\n")
    return whole.hexdigest()


def _written(
    pieces: Iterator[list[tuple[int, str, str]]],
    stamp: str,
    path: Path,
    kind: Morgan,
    processes: int,
    progress: Callable[[int, int], None] | None,
    options: dict[str, Any],
) -> Fingerprints:
    """Fingerprints in a Parquet file, through a folder of pieces that outlives an interruption."""
    require(path.suffix == ".parquet", f"path must be that of a Parquet file, such as 'library.parquet', got {path}.")
    folder, packing = path.with_name(path.name + ".pieces"), Packing(kind.num_bits, kind.counts)
    own = json.dumps([stamp, list(kind), _PIECE])
    try:
        folder.mkdir(exist_ok=True)
        note = folder / "call.json"
        if not note.exists():
            # Whole or not at all: half a note would refuse the next call.
            whole = unfinished(note)
            whole.write_text(own)
            whole.replace(note)
        if note.read_text() != own:
            raise ArgumentError(
                f"{folder} holds pieces of other SMILES or settings, from a call that was interrupted: delete it, or "
                "repeat that call."
            )
        names: list[Path] = []

        def missing() -> Iterator[list[tuple[int, str, str]]]:
            for lines in pieces:
                names.append(folder / f"{lines[0][0]:012}.parquet")
                if not names[-1].exists():
                    yield lines

        def saved() -> Iterator[_Piece]:
            for piece in _computed(missing(), kind, processes):
                target = folder / f"{piece.first:012}.parquet"
                columns = schema(packing, piece.left_out, [ID, SMILES])
                pq.write_table(table(piece.rows, {ID: piece.ids, SMILES: piece.smiles}, columns), target.with_suffix(".part"))
                target.with_suffix(".part").replace(target)
                yield piece

        for _ in _told(saved(), progress):
            pass
        found = _merged(names, packing, path.with_name(path.name + ".part"), options)
        found.replace(path)
        shutil.rmtree(folder)
    except OSError as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"can't write fingerprints to {path}: {error}") from error
    return Fingerprints(path, **options)


def _merged(names: Sequence[Path], packing: Packing, target: Path, options: dict[str, Any]) -> Path:
    """One file of all pieces, checked."""
    left_out = [(line, text) for name in names for line, text in described(opened(name).schema)["left_out"]]
    try:
        with pq.ParquetWriter(target, schema(packing, left_out, [ID, SMILES])) as writer:
            for name in names:
                piece = pq.read_table(name, columns=[BITS, ID, SMILES]).replace_schema_metadata(writer.schema.metadata)
                if piece.num_rows:
                    writer.write_table(piece)
        require(pq.read_metadata(target).num_rows > 0, _NOTHING, DataError)
        Fingerprints(target, **options)
    except BaseException:
        remove(target)
        raise
    return target
