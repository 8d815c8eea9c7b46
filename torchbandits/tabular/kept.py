"""Features in a file, which a resumed campaign reuses if they were computed from the same cells."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchbandits.errors import DataError
from torchbandits.tabular.cells import as_numbers, as_texts, is_text
from torchbandits.tabular.decisions import Decision
from torchbandits.tabular.tables import Table

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa
else:
    from torchbandits.tabular.extras import pandas as pd
    from torchbandits.tabular.extras import pyarrow as pa


def origin_of(path: Path) -> Path:
    """The file that records the cells from which the features in a file were computed."""
    return path.with_name(f"{path.name}.origin.json")


def keep(path: Path, table: Table, decisions: Sequence[Decision], write: Callable[[], object], how: str = "") -> None:
    """Call `write` to make the file of features at `path`, unless the file was made from the same cells by the same decisions
    and the same `how`.

    Raises:
        DataError: If a file cannot be written.

    Cost: a pass over the columns, unless the features were made from a file whose size and modification time are unchanged.
    """
    origin = origin_of(path)
    try:
        held = json.loads(origin.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        held = {}
    way = hashlib.sha256(f"{decisions!r} {how}".encode()).hexdigest()
    now: dict[str, Any] = {"way": way, "file": _stamp(table)}
    if path.exists() and now["file"] is not None and held == now | {"cells": held.get("cells")}:
        return
    now["cells"] = digest(table, decisions)
    try:
        if not (path.exists() and held == now | {"file": held.get("file")}):
            origin.unlink(missing_ok=True)
            write()
        origin.write_text(json.dumps(now), encoding="utf-8")
    except DataError:
        raise
    except OSError as error:
        raise DataError(f"{origin} can't be written: {error}.") from error


def _stamp(table: Table) -> list[int] | None:
    """Size and modification time of the file of a table."""
    status = None if table.path is None else table.path.stat()
    return None if status is None else [status.st_size, status.st_mtime_ns]


def digest(table: Table, decisions: Sequence[Decision]) -> str:
    """Digest of the cells of the columns in the decisions. Cost: a pass over these columns."""
    wholes = {decision.column: hashlib.sha256() for decision in decisions}
    for batch in table.batches(list(wholes)):
        for column, whole in wholes.items():
            whole.update(_hashes(batch.column(column)))
    return hashlib.sha256("".join(whole.hexdigest() for whole in wholes.values()).encode()).hexdigest()


def _hashes(values: Any) -> bytes:
    if is_text(values.type) or pa.types.is_dictionary(values.type):
        texts = as_texts(values).fill_null("\0").to_numpy(zero_copy_only=False)
        return bytes(pd.util.hash_array(texts, categorize=False).tobytes())
    return as_numbers(values).tobytes()
