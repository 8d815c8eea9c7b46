"""Rates of the machine, measured in the same run, and the lower bound on time that follows from them."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from scaling.config import Point

_COLUMNS = 2048  # number of columns in a block of a sweep
_COPIED = 1 << 25  # number of values copied, far larger than every cache


@dataclass(frozen=True)
class Rates:
    """Rates per second in float64: operations of an m x m by m x 2048 product, exponentials, and bytes copied."""

    operations: float
    exponentials: float
    bytes: float

    @staticmethod
    def measure(m: int, device: str, clock: Callable[[], float], seconds: float = 0.3) -> Rates:
        """Best rates of several repetitions. Needs up to 768 MiB of memory."""
        generator = torch.Generator(device).manual_seed(0)
        left, right = (torch.rand(m, n, dtype=torch.float64, device=device, generator=generator) for n in (m, _COLUMNS))
        out = torch.empty_like(right)
        source = torch.rand(_COPIED, dtype=torch.float64, device=device, generator=generator)
        target = torch.empty_like(source)
        product = fastest(lambda: torch.mm(left, right, out=out), device, clock, seconds)
        exponential = fastest(lambda: torch.exp(right, out=out), device, clock, seconds)
        copy = fastest(lambda: target.copy_(source), device, clock, seconds)
        return Rates(2 * m * m * _COLUMNS / product, m * _COLUMNS / exponential, 16 * _COPIED / copy)


def fastest(work: Callable[[], object], device: str, clock: Callable[[], float], seconds: float) -> float:
    """Smallest time of the repetitions within `seconds` of wall-clock time, at least three, after an uncounted warm-up."""
    times, began = [], time.perf_counter()
    for place in range(1_000_000):
        if place > 3 and time.perf_counter() - began > seconds:
            break
        start = clock()
        work()
        if device == "cuda":
            torch.cuda.synchronize()
        times.append(clock() - start)
    return min(times[1:])


def sweep_floor(point: Point, dim: int, kept: bool, rates: Rates) -> float:
    """Lower bound on the seconds of a resparsification.

    It is the slower of two operations: a triangular product of m² operations per arm at the rate of the full product, and the
    transfer of the arms (or of the kept kernel columns) and of two results. Columns that are not kept add a product of d + 2
    numbers and an exponential per entry.
    """
    m, A = point.dictionary, point.arms
    operations, read = float(m * m), 8 * (m if kept else dim)
    seconds = operations / rates.operations
    if not kept:
        seconds += 2 * m * (dim + 2) / rates.operations + m / rates.exponentials
    return A * max(seconds, (read + 16) / rates.bytes)
