"""Matrix products of float32 in full precision, whatever the settings of the process allow.

With TF32 (`torch.set_float32_matmul_precision("high")`) and bfloat16 ("medium"), products of float32 have only three correct
digits. A leverage is a small difference of large numbers. It would be wrong by ten percent, and other arms would be picked
without a warning.
"""

from __future__ import annotations

from types import TracebackType
from typing import Any

import torch

_FULL = "ieee"


class full_precision:
    """Context in which products of float32 are exact to float32 on CUDA and on the CPU; on exit the settings are as before.

    The settings apply to the whole process, so other Python threads also have full precision in the meantime. Cost: a few
    microseconds.
    """

    __slots__ = ("_before",)

    def __init__(self) -> None:
        self._before: list[str] = []

    def __enter__(self) -> None:
        places = _places()
        self._before = [place.fp32_precision for place in places]
        for place, precision in zip(places, self._before, strict=True):
            if precision not in (_FULL, "none"):
                place.fp32_precision = _FULL

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for place, precision in zip(_places(), self._before, strict=True):
            if place.fp32_precision != precision:
                place.fp32_precision = precision


def _places() -> tuple[Any, ...]:
    """The modules in which PyTorch keeps the precision of products, one for each library that computes them."""
    return torch.backends.cuda.matmul, torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
