"""Molecular fingerprints as arms: packed bits or counts in memory or in a file, with their ids and SMILES."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchbandits.checks import as_device, as_path, as_tensor, check_dtype, check_flag, check_whole
from torchbandits.errors import ArgumentError, ArmIndexError, DataError, ShapeError, require
from torchbandits.packing import Packing
from torchbandits.sources.ahead import sent_ahead
from torchbandits.sources.base import check_index, check_part, parts
from torchbandits.sources.byte_rows import ID, SMILES, ByteRows, ColumnRows, MappedRows, pq, schema, table
from torchbandits.sources.files import unfinished, write_npy
from torchbandits.sources.packed import PackedArms
from torchbandits.types import Picks, Recommendation, Selection

# Fingerprints that are written or checked together.
_STEP = 1 << 16


class Fingerprints(PackedArms):
    """Fingerprints of molecules in packed form, 256 bytes for 2,048 bits, with ids and SMILES.

    With `TanimotoKernel`, scaled or not, sweeps read the packed words and never unpack the library; picks and their neighbours
    come as points of 0 and 1 (or counts). Any other kernel reads the arms unpacked, a chunk at a time.

    Args:
        packed: `A x b` bytes as uint8, a tensor or an array, shared and not to be changed: bits in the order of
            `numpy.packbits(bits, axis=1)`, b = ⌈d/8⌉, or counts of 0 … 255, b = d. Or the path of a `.npy` file of them, which
            is mapped into memory; or that of a Parquet or Arrow file with a column `fingerprint` of bytes, and optional columns
            `id` and `smiles`.
        num_bits: d, the number of bits or counts; 8 b or b by default, or what the file states.
        counts: Whether bytes are counts.
        ids: One id for each molecule, no two equal; those of the Parquet file by default.
        smiles: The SMILES of each molecule; those of the Parquet file by default.
        dtype: Dtype of sweeps, float64 or float32.
        device: Device of means, leverages and posterior. Fingerprints in memory are held there, those of a file copied there
            in chunks.
        distinct: A promise that no two fingerprints are equal, see `ArmSource`.

    Raises:
        ShapeError: If there are no bytes of that shape, or bits beyond the last one.
        ArgumentError: If ids or SMILES are not one for each molecule, or an id repeats.
        DataError: If a file is missing, cut or damaged; during a run, if it has changed.
    """

    def __init__(
        self,
        packed: Any,
        num_bits: int | None = None,
        *,
        counts: bool | None = None,
        ids: Sequence[Any] | None = None,
        smiles: Sequence[str] | None = None,
        dtype: torch.dtype = torch.float64,
        device: torch.device | str = "cpu",
        distinct: bool = False,
    ) -> None:
        self._device, self._dtype = as_device(device), check_dtype("dtype", dtype)
        check_flag("distinct", distinct)
        self.distinct = distinct
        check_flag("counts", counts, optional=True)
        check_whole("num_bits", num_bits, otherwise="for all bits of the bytes")
        self._rows: ByteRows | None = None
        if isinstance(packed, (str, Path)):
            path = as_path("packed", packed)
            self._rows = MappedRows(path) if path.suffix == ".npy" else ColumnRows(path)
            count, width = self._rows.count, self._rows.width
        else:
            held = _as_bytes(packed)
            count, width = held.shape
        told = self._rows.description if isinstance(self._rows, ColumnRows) else {}
        counts = bool(told.get("counts", False)) if counts is None else counts
        num_bits = told.get("num_bits") if num_bits is None else num_bits
        self._packing = Packing((width if counts else 8 * width) if num_bits is None else num_bits, counts)
        needed = self._packing.num_bytes
        kind = f"{self._packing.dim} {'counts' if counts else 'bits'}"
        require(needed == width, f"{kind} take {needed} bytes per molecule, and the rows have {width}.", ShapeError)
        self._shape = torch.Size([count, self._packing.dim])
        self.left_out: tuple[tuple[int, str], ...] = tuple((int(line), text) for line, text in told.get("left_out", ()))
        self._texts: dict[str, Any] = {}
        for name, column in ((ID, ids), (SMILES, smiles)):
            if column is not None:
                sized = hasattr(column, "__len__") and hasattr(column, "__getitem__") and not isinstance(column, str)
                require(
                    sized, f"{name}s must be a list, one for each molecule, got {type(column).__name__}.".replace("ss ", "s ")
                )
                label = "ids" if name == ID else SMILES
                require(len(column) == count, f"{label} must be one for each of {count} molecules, got {len(column)}.")
                self._texts[name] = column
        self._check_ids()
        self._held: Tensor | None = None
        if self._rows is None:
            for part in parts(0, count, _STEP):
                self._check_rest(held[part], part.start)
            self._held = self._packing.words(held).to(self._device)

    def _check_ids(self) -> None:
        """Refuse ids that repeat."""
        if ID in self._texts:
            column = self._texts[ID]
            seen: dict[Any, int] = {}
            for row in range(len(column)):
                value = _plain(column[row])
                if seen.setdefault(value, row) != row:
                    raise ArgumentError(f"ids must differ, and rows {seen[value]} and {row} have the same, {value!r}.")
        elif isinstance(self._rows, ColumnRows) and ID in self._rows.names:
            repeated = self._rows.repeated(ID)
            require(repeated is None, f"ids must differ, and several rows have {repeated!r}.")

    def _check_rest(self, rows: Any, start: int) -> None:
        """Refuse bits beyond the last one, which would count as shared."""
        spare = 8 * self._packing.num_bytes - self.dim
        if self._packing.counts or not spare:
            return
        wrong = np.flatnonzero(np.asarray(rows)[:, -1] & (0xFF >> (8 - spare)))
        if len(wrong):
            raise ShapeError(
                f"fingerprint {start + int(wrong[0])} has bits beyond the {self.dim} that it should have: pack bits by "
                "numpy.packbits(bits, axis=1), whose order is that of the highest bit first."
            )

    @property
    def shape(self) -> torch.Size:
        """`A x d`, d bits or counts."""
        return self._shape

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of sweeps."""
        return self._dtype

    @property
    def device(self) -> torch.device:
        """Device on which the arms are swept."""
        return self._device

    @property
    def packing(self) -> Packing:
        """Layout of the packed fingerprints."""
        return self._packing

    def words(self, part: slice) -> Tensor:
        """Consecutive fingerprints, `n x w` int64; a view of those in memory."""
        check_part(part)
        return self._held[part] if self._held is not None else self._read(part).to(self._device)

    def packed(self, step: int, start: int = 0, stop: int | None = None) -> Iterator[tuple[slice, Tensor]]:
        """All fingerprints in order as words; those of a file are read and sent to a GPU ahead of their use."""
        if self._held is not None:
            return super().packed(step, start, stop)
        cuts = parts(start, self.num_arms if stop is None else stop, step)
        return sent_ahead(((part, self._read(part)) for part in cuts), self._device)

    def _read(self, part: slice) -> Tensor:
        """Consecutive fingerprints of the file on the host, as words."""
        assert self._rows is not None
        rows = self._rows.read(slice(part.start, min(part.stop, self.num_arms)))
        self._check_rest(rows, part.start)
        return self._packing.words(torch.from_numpy(rows))

    def words_at(self, index: Picks) -> Tensor:
        """Fingerprints by index, `... x w` int64."""
        check_index(index)
        if self._held is not None:
            return self._held[index]
        assert self._rows is not None
        rows = self._rows.take(index.reshape(-1).cpu().numpy())
        words = self._packing.words(torch.from_numpy(rows)).to(self._device)
        return words.reshape(*index.shape, words.shape[-1])

    def ids(self, picks: Selection | Recommendation | Sequence[int] | Tensor) -> list[Any]:
        """The id of each pick, of each recommended arm, or of each arm of an index, in order; the index itself where no ids are
        known."""
        index = self._index(picks)
        found = self._looked_up(ID, index)
        return index if found is None else found

    def smiles(self, picks: Selection | Recommendation | Sequence[int] | Tensor) -> list[str]:
        """The SMILES of each pick, of each recommended arm, or of each arm of an index, in order.

        Raises:
            DataError: If no SMILES are known.
        """
        found = self._looked_up(SMILES, self._index(picks))
        if found is None:
            raise DataError("these fingerprints come without SMILES: pass smiles=, or a file with a column 'smiles'.")
        return found

    def _looked_up(self, name: str, index: list[int]) -> list[Any] | None:
        if name in self._texts:
            return [_plain(self._texts[name][row]) for row in index]
        if isinstance(self._rows, ColumnRows) and name in self._rows.names:
            return self._rows.texts(name, index)
        return None

    def _index(self, picks: Any) -> list[int]:
        if isinstance(picks, Selection):
            picks = picks.index[picks.mask]
        if isinstance(picks, Recommendation):
            picks = picks.index[picks.index >= 0]
        index: list[int] = as_tensor("picks", [*picks] if isinstance(picks, range) else picks).reshape(-1).tolist()
        # A mask is not an index: its True would be read as arm 1.
        wrong = [row for row in index if isinstance(row, bool) or not isinstance(row, int) or not 0 <= row < self.num_arms]
        require(not wrong, f"picks must be indices of 0 … {self.num_arms - 1}, got {wrong[:1]}.", ArmIndexError)
        return index

    def save(self, path: str | Path) -> Fingerprints:
        """Write the fingerprints to a `.npy` file (bytes alone) or a Parquet file (with ids and SMILES), and open it.

        An interrupted copy leaves no file of that name.

        Raises:
            DataError: If the file can't be written.
        """
        path = as_path("path", path)
        temporary = unfinished(path)
        try:
            if path.suffix == ".npy":
                pieces = (self._bytes(words) for _, words in self.packed(_STEP))
                write_npy(path, np.uint8, (self.num_arms, self.packing.num_bytes), pieces)
            else:
                with pq.ParquetWriter(temporary, schema(self.packing, self.left_out, [*self._names()])) as writer:
                    for part, words in self.packed(_STEP):
                        rows = list(range(part.start, part.stop))
                        texts = {name: self._looked_up(name, rows) for name in self._names()}
                        writer.write_table(table(self._bytes(words), texts, writer.schema))
                temporary.replace(path)
        except OSError as error:
            raise DataError(f"can't write fingerprints to {path}: {error}") from error
        finally:
            temporary.unlink(missing_ok=True)
        return Fingerprints(
            path,
            self.dim,
            counts=self.packing.counts,
            ids=self._texts.get(ID),
            smiles=self._texts.get(SMILES),
            dtype=self._dtype,
            device=self._device,
            distinct=self.distinct,
        )

    def _bytes(self, words: Tensor) -> np.ndarray:
        return words.cpu().contiguous().view(torch.uint8)[:, : self.packing.num_bytes].numpy()

    def _names(self) -> list[str]:
        held = self._rows.names if isinstance(self._rows, ColumnRows) else []
        return [name for name in (ID, SMILES) if name in self._texts or name in held]


def _as_bytes(packed: Any) -> Tensor:
    tensor = packed if isinstance(packed, Tensor) else None
    if isinstance(packed, np.ndarray) and packed.dtype == np.uint8:
        tensor = torch.from_numpy(packed if packed.flags.writeable else packed.copy())
    got = f"{packed.dtype} {tuple(packed.shape)}" if isinstance(packed, (Tensor, np.ndarray)) else type(packed).__name__
    good = tensor is not None and tensor.dtype == torch.uint8 and tensor.dim() == 2 and tensor.numel() > 0
    require(
        good,
        f"packed must be bytes, uint8 A x b, or the path of a file of them, got {got}: pack bits by numpy.packbits(…, axis=1).",
        ShapeError,
    )
    assert tensor is not None
    return tensor


def _plain(value: Any) -> Any:
    """A value of a list, of NumPy or of Arrow as one of Python."""
    if hasattr(value, "as_py"):
        return value.as_py()
    return value.item() if isinstance(value, np.generic) else value
