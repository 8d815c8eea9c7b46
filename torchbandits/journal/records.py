"""The records of the calls of a loop: what a journal holds of each call, so that the call can be repeated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor

from torchbandits.checks import as_tensor
from torchbandits.errors import UnsupportedError, require
from torchbandits.journal.format import held, pack, state_as_text
from torchbandits.types import PickMask, Picks, Pulls, Report, Selection

Record = dict[str, Any]


def ask_record(limit: Tensor | None, offered: Tensor | None, exactly: int | None, selection: Selection, box: bool) -> Record:
    """The record of an ask: its arguments and the picks, with their points in a box."""
    where = {"points": pack(selection.points)} if box else {}
    return {
        "kind": "ask",
        "limit": pack(limit),
        "more": exactly,
        "offered": pack(offered),
        "index": pack(selection.index),
    } | where


def fill_record(selection: Selection, drawn: Sequence[Sequence[Tensor]], box: bool) -> Record:
    """The record of several selections as one: the picks, and the generator states after the last selection that drew random
    numbers."""
    last = next((states for states in reversed(drawn) if states), ())
    where = {"points": pack(selection.points)} if box else {}
    return {"kind": "fill", "index": pack(selection.index), "drawn": [pack(state) for state in last]} | where


def tell_record(
    index: Tensor, mask: Tensor, rewards: Tensor, noise_var: Tensor | None = None, block: Tensor | None = None
) -> Record:
    """The record of a tell: arms and rewards; −1 where masked, NaN where the evaluation failed. Noise variances are recorded if
    they were told, and so are blocks."""
    beside = {"noise_var": noise_var, "block": block}
    packed = {name: pack(value) for name, value in beside.items() if value is not None}
    return {"kind": "tell", "index": pack(torch.where(mask, index, -1)), "rewards": pack(rewards)} | packed


def observe_record(pulls: Pulls, noise_var: Tensor | None = None) -> Record:
    """The record of summed history, as it was given."""
    where = {"index": pack(pulls.index)} if pulls.points is None else {"points": pack(pulls.points)}
    packed = {} if noise_var is None else {"noise_var": pack(noise_var)}
    sums = {"counts": pack(pulls.counts), "sums": pack(pulls.sums), "squares": pack(pulls.squares)}
    return {"kind": "observe", **where, **sums, **packed}


def forget_record(index: Picks, mask: PickMask) -> Record:
    """The record of picks that were given up; −1 where masked."""
    return {"kind": "forget", "index": pack(torch.where(mask, index, -1))}


def move_record(arms: Any, costs: Any, known: Any = None) -> Record:
    """The record of a change of arms, which contains all arms.

    Raises:
        UnsupportedError: For arms that are read from a source.
    """
    require(
        isinstance(arms, Tensor),
        "a journal stores the new arms of a run, but cannot store those of a source: pass a tensor, or begin a new journal "
        "with the source and observe() the data.",
        UnsupportedError,
    )
    given = {"costs": costs} | ({} if known is None else {"known": known})
    packed = {name: None if x is None else pack(as_tensor(name, x, torch.float64)) for name, x in given.items()}
    return {"kind": "set_arms", "arms": pack(arms), **packed}


def maximize_record(points: Sequence[Tensor]) -> Record:
    """The record of picks at points of a box, `batch_shape x 1 x d` each."""
    return {"kind": "maximize", "points": pack(torch.stack(list(points)))}


def fit_record(noise: bool, options: dict[str, Any]) -> Record:
    """The record of a fit of the kernel: its options. The fit is repeated from them."""
    return {"kind": "fit", "options": {"noise": noise, **options}}


def seeds_record(seeds: Sequence[int], told: Tensor) -> Record:
    """The record of a seed per batch row, drawn after so many pulls of each row."""
    return {"kind": "seeds", "seeds": seeds, "told": pack(told)}


def load_record(state_dict: dict[str, Any]) -> Record:
    """The record of a loaded state, which contains the state. Cost: encoding it as text, which takes long if it is large."""
    return {"kind": "load", "state": state_as_text(state_dict)}


def report_record(report: Report, best: Tensor) -> Record:
    """The result of a tell: its report, and the arm that is recommended afterwards."""
    return {"report": {f.name: pack(getattr(report, f.name)) for f in fields(report)}, "best": pack(best)}


def report_in(record: Record, device: torch.device) -> tuple[Report, Tensor]:
    """The report and the recommended arm in the record of a tell, on the device of the run."""
    values = record["report"]
    return Report(**{f.name: held(values[f.name]).to(device) for f in fields(Report)}), held(record["best"]).to(device)
