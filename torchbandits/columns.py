"""Flat columns that grow by doubling."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


class Columns:
    """Named columns of one length in buffers that double, so that an append costs what it adds."""

    def __init__(self, dtypes: dict[str, type], capacity: int = 64) -> None:
        self.length = 0
        self._buffers: dict[str, NDArray[Any]] = {name: np.empty(capacity, dtype) for name, dtype in dtypes.items()}

    def append(self, count: int, values: dict[str, Any]) -> None:
        """Write `count` lines; every value is a scalar or an array of that length."""
        end = self.length + count
        capacity = len(next(iter(self._buffers.values())))
        if end > capacity:
            room = max(end, 2 * capacity) - capacity
            for name, buffer in self._buffers.items():
                self._buffers[name] = np.concatenate([buffer, np.empty(room, buffer.dtype)])
        for name, buffer in self._buffers.items():
            buffer[self.length : end] = values[name]
        self.length = end

    def views(self) -> dict[str, NDArray[Any]]:
        """The filled part of every column, read-only and without a copy."""
        views = {name: buffer[: self.length] for name, buffer in self._buffers.items()}
        for view in views.values():
            view.flags.writeable = False
        return views
