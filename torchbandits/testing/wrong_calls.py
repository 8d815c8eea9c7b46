"""Calls of a bandit that must be refused."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from torchbandits.errors import ArgumentError, ArmIndexError, NonFiniteError, ShapeError, StateError
from torchbandits.types import Selection

NAN, INF = float("nan"), float("inf")


Call = tuple[type[Exception], str, tuple[Any, ...], dict[str, Any]]


def wrong_calls(opened: Selection, num_arms: int, dim: int) -> list[Call]:
    """Error, method, arguments and keywords of calls that a bandit with these picks open must refuse."""
    q, y = len(opened), torch.zeros(len(opened), dtype=torch.float64)
    ones, three = torch.ones(3, dtype=torch.float64), torch.tensor([1, 2, 3])
    A, last = num_arms, int(opened.index.max())

    def told(value: float) -> Tensor:
        return y.index_fill(0, torch.tensor([1]), value)

    tells: list[tuple[type[Exception], tuple[Any, ...]]] = [
        (ShapeError, (opened, torch.zeros(q + 1))), (ShapeError, (opened, torch.zeros(1, q))),
        (ShapeError, (opened, torch.tensor(0.0))), (ShapeError, (opened, y.to(torch.complex128))),
        (ShapeError, (opened, y.bool())), (NonFiniteError, (opened, told(NAN))),
        (NonFiniteError, (opened, told(INF))), (NonFiniteError, (opened, told(-INF))),
        (ArmIndexError, (torch.tensor([A]), y[:1])), (ArmIndexError, (torch.tensor([-2]), y[:1])),
        (ShapeError, (torch.tensor([0.5]), y[:1])), (ShapeError, (torch.tensor([1, 2]), y[0])),
        (ArgumentError, ("nonsense", y)), (ArgumentError, (None, y)),
    ]  # fmt: skip
    observations: list[tuple[type[Exception], tuple[Any, ...]]] = [
        (ArmIndexError, (torch.tensor([1, A, 3]), ones, ones)), (ArmIndexError, (-three, ones, ones)),
        (ShapeError, (three, ones[:2], ones)), (ShapeError, (three, ones, ones[:2])),
        (ArgumentError, (three, 0 * ones, ones)), (ArgumentError, (three, -ones, ones)),
        (NonFiniteError, (three, ones, NAN * ones)), (NonFiniteError, (three, ones, ones, INF * ones)),
        (ShapeError, (torch.zeros(3, dim + 3).double(), ones, ones)),
        (NonFiniteError, (torch.full((3, dim), NAN).double(), ones, ones)),
    ]  # fmt: skip
    asks: list[tuple[type[Exception], dict[str, Any]]] = [
        (ArgumentError, {"limit": -1}), (ArgumentError, {"limit": 1.5}), (ArgumentError, {"limit": True}),
        (ArgumentError, {"more": 0}), (ArgumentError, {"more": -1}), (ArgumentError, {"more": "two"}),
        (ShapeError, {"more": 1, "limit": torch.tensor([1, 2])}),
        (ShapeError, {"more": 1, "available": torch.ones(A - 1, dtype=torch.bool)}),
        (ShapeError, {"more": 1, "available": torch.ones(A)}),
        (ShapeError, {"more": 1, "available": torch.ones(2, A, dtype=torch.bool)}),
        (ArgumentError, {"more": 1, "available": torch.zeros(A, dtype=torch.bool)}),
    ]  # fmt: skip
    others: list[tuple[type[Exception], str, tuple[Any, ...]]] = [
        (StateError, "forget", (torch.tensor([last + 1 if last < A - 1 else 0] * 9),)),
        (ArmIndexError, "forget", (torch.tensor([A]),)), (ArgumentError, "best", (0,)),
        (ArgumentError, "load_state_dict", ({},)), (ArgumentError, "load_state_dict", (None,)),
    ]  # fmt: skip
    calls: list[Call] = [(error, "tell", a, {}) for error, a in tells]
    calls += [(error, "observe", a, {}) for error, a in observations]
    calls += [(error, "ask", (), options) for error, options in asks]
    return calls + [(error, call, a, {}) for error, call, a in others]
