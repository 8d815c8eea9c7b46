"""Blocks of results, such as plates, days or lots: the values of a block may all be shifted by an amount that is not known."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch

from torchbandits.bandit import Bandit
from torchbandits.campaigns.records import Records
from torchbandits.campaigns.rows_as_arms import RowsAsArms
from torchbandits.checks import read_bytes
from torchbandits.errors import DataError, UnsupportedError, require
from torchbandits.files import write_text
from torchbandits.fitting.blocks import told_together
from torchbandits.policies import Policy
from torchbandits.policies.state import GaussianState

_LARGEST = 1 << 28


class BlockLabels:
    """The labels of the blocks of results, of which a journal holds numbers only.

    Args:
        path: The file of the labels; None to write none.
    """

    def __init__(self, path: Path | None) -> None:
        self._path, self._labels = path, read_labels(path) if path is not None and path.exists() else {}

    def keep(self, labels: Mapping[int, str]) -> None:
        """Keep the labels of some numbers. Raises `DataError` if the file cannot be written."""
        whole = {**self._labels, **labels}
        if whole == self._labels:
            return
        if self._path is not None:
            write_text(self._path, json.dumps({str(number): label for number, label in whole.items()}, ensure_ascii=False))
        self._labels = whole

    def of(self, numbers: Sequence[int | None]) -> list[str | None]:
        """The label of each number, the number itself where no label was kept; None for no block."""
        return [None if number is None else self._labels.get(number, str(number)) for number in numbers]


def read_labels(path: Path) -> dict[int, str]:
    """The labels of blocks by number.

    Raises:
        DataError: If the file cannot be read, or holds something else.
    """
    try:
        return {int(number): str(label) for number, label in json.loads(read_bytes(path, _LARGEST)).items()}
    except (ValueError, AttributeError) as error:
        raise DataError(f"{path} does not hold the labels of blocks: restore it from a copy, or delete it.") from error


def blocked(bandit: Bandit) -> bool:
    """Whether rewards were told with their block."""
    state = bandit.loop.state
    units = state.posterior.units if isinstance(state, GaussianState) else None
    return units is not None and units.blocked


def check_takes_blocks(policy: Policy, column: str, ids: str, outcomes: Collection[str]) -> None:
    """Refuse blocks in a campaign that cannot estimate their shifts, and a column that tells something else.

    Args:
        policy: The policy of the campaign.
        column: The column of the blocks.
        ids, outcomes: The columns of the ids and of the results.
    """
    if not policy.takes_blocks:
        raise UnsupportedError(
            "this campaign does not estimate what the rewards of a block have in common: leave out block= (--block), or "
            "begin a campaign without noise_std= (--noise-std) and without policy=, and tell it all results."
        )
    other = "the ids" if column == ids else "what was measured"
    message = f"block must name a column of plates, days, machines or lots, and {column!r} has {other}."
    require(column not in (ids, *outcomes), message)


def in_part(now: bool, before: bool) -> list[str]:
    """A sentence if only some measurements have a block.

    Args:
        now: Whether the measurements that are told now have blocks.
        before: Whether any of those before has.
    """
    if now is before:
        return []
    told, which = "These results were told with their block, and earlier ones were not", "the earlier ones"
    if before:
        told, which = "Earlier results were told with their block, and these were not", "these"
    return [
        f"{told}: they count as if their block had no shift. correct() takes {which} back; then tell them once more with "
        "block= and again=True (--block, --again)."
    ]


def together(bandit: Bandit, records: Records) -> float:
    """Standard deviation of the shifts that results of one call seem to share; see `Explanation.together`."""
    state = bandit.loop.state
    if not bandit.policy.takes_blocks or blocked(bandit) or not isinstance(state, GaussianState):
        return 0.0
    values, arms = records.values[:, 0], RowsAsArms(bandit)
    told = ~np.isnan(values)
    index, rewards, call = (
        arms.there(torch.from_numpy(own[told]))
        for own in (np.array(records.rows, np.int64), values, np.array(records.numbers, np.float64))
    )
    return told_together(state.posterior, state.rows.points(index), rewards, call)
