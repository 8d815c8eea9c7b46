"""Arms in a memory-mapped `.npy` file; the writing of such files, and the stamp by which a changed file is found."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchbandits.checks import as_device, as_path, check_dtype, check_flag
from torchbandits.errors import DataError, ShapeError, require
from torchbandits.sources.ahead import sent_ahead
from torchbandits.sources.base import ArmSource, check_index, check_part, parts
from torchbandits.types import Picks

# Number of arms converted at once.
_COPY_ARMS = 1 << 16


class Stamp:
    """Size and modification time of a file, to detect a change during a run.

    Args:
        path: Path of the file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._of = self._now()

    def check(self) -> None:
        """Raise `DataError` if the file is not the one that was opened."""
        now = self._now()
        if now != self._of:
            raise DataError(
                f"{self.path} changed since it was opened ({self._of[0]} bytes then, {now[0]} now), so indices may no longer "
                "mean the same arms: restore the file, or open it again and load the saved state into a new Bandit."
            )

    def _now(self) -> tuple[int, int]:
        try:
            status = os.stat(self.path)
        except OSError as error:
            raise DataError(f"can't read arms from {self.path}: {error}") from error
        return status.st_size, status.st_mtime_ns


class NpyFile(ArmSource):
    """A `.npy` file, mapped into memory and never read as a whole.

    Args:
        path: Path of the file.
        dtype: Dtype that the arms are converted to, chunk by chunk; by default that of the file.
        device: Device on which they are swept.
        distinct: A promise that no two arms are equal, see `ArmSource`.
    """

    def __init__(self, path: str | Path, dtype: torch.dtype | None, device: torch.device | str, distinct: bool) -> None:
        check_flag("distinct", distinct)
        path, dtype = as_path("path", path), None if dtype is None else check_dtype("dtype", dtype)
        self._device, self.distinct = as_device(device), distinct
        self._stamp = Stamp(path)
        self._map = _mapped(path)
        own = torch.float64 if self._map.dtype.itemsize == 8 else torch.float32
        self._dtype = own if dtype is None else dtype
        self._numpy = np.float64 if self._dtype == torch.float64 else np.float32

    @property
    def shape(self) -> torch.Size:
        """`A x d`, read from the header of the file."""
        return torch.Size(self._map.shape)

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of sweeps."""
        return self._dtype

    @property
    def device(self) -> torch.device:
        """Device on which the arms are swept."""
        return self._device

    def chunk(self, part: slice) -> Tensor:
        """A copy of consecutive arms. Raises `DataError` if the file has changed."""
        check_part(part)
        return self._read(part).to(self._device)

    def chunks(self, step: int, start: int = 0, stop: int | None = None) -> Iterator[tuple[slice, Tensor]]:
        """All arms in order, read and sent to a GPU ahead of their use; see `sent_ahead`."""
        cuts = parts(start, self.num_arms if stop is None else stop, step)
        return sent_ahead(((part, self._read(part)) for part in cuts), self._device)

    def _read(self, part: slice) -> Tensor:
        """A copy of consecutive arms on the host."""
        self._stamp.check()
        return torch.from_numpy(np.array(self._map[part], dtype=self._numpy, order="C"))

    def points(self, index: Picks) -> Tensor:
        """A copy of arms by index, gathered from the file. Raises `DataError` if the file has changed."""
        check_index(index)
        self._stamp.check()
        return torch.from_numpy(np.array(self._map[index.cpu().numpy()], dtype=self._numpy, order="C")).to(self._device)

    def __getstate__(self) -> dict[str, Any]:
        """State without the memory map, since another process opens the file itself."""
        return {**self.__dict__, "_map": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Open the file again; raise `DataError` if it has changed."""
        self.__dict__.update(state)
        self._stamp.check()
        self._map = _mapped(self._stamp.path)


def npy(
    path: str | Path, *, dtype: torch.dtype | None = None, device: torch.device | str = "cpu", distinct: bool = False
) -> NpyFile:
    """Arms in a `.npy` file, `A x d`, mapped into memory: float64 or float32, or embeddings in float16, int8 or uint8, which
    are converted a chunk at a time.

    Args:
        path: Path of the file.
        dtype: float64 to sweep a narrower file in double precision; by default that of the file, float32 for embeddings.
        device: Device of means, leverages and posterior; chunks are copied there.
        distinct: A promise that no two arms are equal, see `ArmSource`.

    Raises:
        DataError: If the file is missing or not a `.npy` file; during a run, if it has changed.
        ShapeError: If it contains no arms, or numbers of another type.
    """
    return NpyFile(path, dtype, device, distinct)


def save_npy(source: ArmSource, path: str | Path) -> NpyFile:
    """Write arms to a `.npy` file in chunks, and open it. An interrupted copy leaves no file of that name."""
    require(
        isinstance(source, ArmSource),
        f"source must be an ArmSource, such as sources.tensor(arms), got {type(source).__name__}.",
    )
    path = as_path("path", path)
    kind = np.float64 if source.dtype == torch.float64 else np.float32
    try:
        write_npy(path, kind, tuple(source.shape), (arms.cpu().numpy() for _, arms in source.chunks(_COPY_ARMS)))
    except OSError as error:
        raise DataError(f"can't write arms to {path}: {error}") from error
    return NpyFile(path, None, source.device, source.distinct)


def unfinished(path: Path) -> Path:
    """A name for a file that becomes `path` once it is complete. No two writers have the same."""
    return path.with_name(f"{path.name}.{os.getpid()}-{secrets.token_hex(4)}.part")


def write_npy(path: Path, dtype: Any, shape: tuple[int, ...], pieces: Iterable[np.ndarray]) -> None:
    """Write consecutive rows to a `.npy` file, whole or not at all.

    They are written, not mapped: a mapped file ends the process (SIGBUS) where the disk is full.
    """
    temporary = unfinished(path)
    try:
        with open(temporary, "xb") as file:
            header = {"descr": np.lib.format.dtype_to_descr(np.dtype(dtype)), "fortran_order": False, "shape": shape}
            np.lib.format.write_array_header_1_0(file, header)
            for rows in pieces:
                file.write(np.ascontiguousarray(rows, dtype).data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _mapped(path: Path) -> np.ndarray:
    try:
        whole: np.ndarray = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise DataError(f"can't map arms from {path}: {error}. Write them with numpy.save(path, arms).") from error
    require(isinstance(whole, np.ndarray), f"{path} holds several arrays: save the arms alone, as .npy.", ShapeError)
    require(
        whole.ndim == 2 and whole.size > 0,
        f"{path} must hold arms A x d, at least one arm and one feature, got {whole.shape}.",
        ShapeError,
    )
    known = whole.dtype.kind == "f" and whole.dtype.itemsize in (2, 4, 8)
    known = known or (whole.dtype.kind in "iu" and whole.dtype.itemsize == 1)
    message = f"{path} must hold float64, float32, float16, int8 or uint8, got {whole.dtype}: save arms.astype('float32')."
    require(known, message, ShapeError)
    return whole
