"""What takes the time of a step on a device: its largest kernels, and the functions of the host.

    python scripts/benchmarks/device_profile.py --output results/gpu/profile.txt
    python scripts/benchmarks/device_profile.py --device cpu --small

Every case is timed first, without a profiler, and then profiled in a few further steps: profilers slow the host down, so that
only shares of their numbers count. Each case is written when it is done.
"""

from __future__ import annotations

import argparse
import cProfile
import io
import pstats
import statistics
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from lane import POLICIES, arms_of, noisy, replicating, synchronised, table_of
from torch.profiler import ProfilerActivity, profile

import torchbandits as tb
from torchbandits.errors import DataError

WARM, TIMED, PROFILED = 30, 12, 3
_KERNELS, _FUNCTIONS, _WIDTH = 12, 16, 130
Step = Callable[[], tuple[float, float, int]]


def cases(device: str, small: bool) -> Iterator[tuple[str, Callable[[], Step]]]:
    """Steps of single policies on the arms of `lane.py steps`, and batches of replicates as batch rows."""
    A = 400 if small else 20_000
    for name in ("gp_ucb", "bkb", "batch_bkb", "thompson_sampling"):
        yield f"{name}, {A:,} arms", lambda name=name: of_policy(name, A, device)
    table = "made up" if small else "cadata"
    for rows in (1, 2) if small else (1, 16, 64):
        yield f"{rows} replicates of batch_bkb", lambda rows=rows: of_replicates(table, rows, device)
        # With the fused sweep, which may take less time than reading columns.
        yield f"{rows} replicates, no column kept", lambda rows=rows: of_replicates(table, rows, device, memory_budget=1)


def of_policy(name: str, A: int, device: str) -> Step:
    """A step of a policy that has seen 60 pulls."""
    arms, means, told = arms_of(A, device)
    bandit = tb.Bandit(POLICIES[name](), arms, generator=torch.Generator().manual_seed(1))
    draws, ones = torch.Generator().manual_seed(2), torch.ones(len(told), dtype=torch.float64)
    bandit.observe(told.to(device), ones.to(device), noisy(means[told], draws).to(device))
    return lambda: taken(bandit, means, draws, device)


def of_replicates(table: str, rows: int, device: str, memory_budget: int | None = None) -> Step:
    """A batch of every replicate of the runs of `lane.py replicates`; by default with the policy's own memory budget."""
    arms, means, lengthscale = table_of(table)
    generators = [torch.Generator().manual_seed(row) for row in range(rows)]
    bandit = tb.Bandit(replicating("batch_bkb", lengthscale, 1_000, memory_budget), arms.to(device), generator=generators)
    draws = torch.Generator().manual_seed(99)
    return lambda: taken(bandit, means, draws, device)


def taken(bandit: tb.Bandit, means: torch.Tensor, draws: torch.Generator, device: str) -> tuple[float, float, int]:
    """Milliseconds of an ask and of a tell, and the number of picks of the longest row."""
    began = synchronised(device)
    selection = bandit.ask(limit=100)
    asked = synchronised(device)
    at = means.expand(*bandit.batch_shape, -1).gather(-1, selection.index.cpu().clamp_min(0))
    rewards = noisy(at.double(), draws, 0.01).to(device)
    half = synchronised(device)
    bandit.tell(selection, rewards)
    return 1e3 * (asked - began), 1e3 * (synchronised(device) - half), selection.index.shape[-1]


def profiled(step: Step, device: str) -> str:
    """Times of a step, its largest kernels and the functions of the host."""
    for _ in range(WARM):
        step()
    asks, tells, picks = zip(*(step() for _ in range(TIMED)), strict=True)
    text = [f"ask {statistics.median(asks):.3g} ms, tell {statistics.median(tells):.3g} ms, {statistics.mean(picks):.3g} picks"]
    if device == "cuda":
        with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as seen:
            for _ in range(PROFILED):
                step()
        kernels = on_device(seen.key_averages())
        total, count = (sum(x) / PROFILED for x in zip(*((e.self_device_time_total, e.count) for e in kernels), strict=True))
        text.append(f"  on the device {total / 1e3:.3g} ms in {count:.0f} kernels and copies a step:")
        for event in kernels[:_KERNELS]:
            ms, calls = event.self_device_time_total / 1e3 / PROFILED, event.count / PROFILED
            text.append(f"    {ms:8.3f} ms {calls:7.1f}  {event.key}"[:_WIDTH])
    host = cProfile.Profile()
    host.enable()
    for _ in range(TIMED):
        step()
    host.disable()
    out = io.StringIO()
    pstats.Stats(host, stream=out).sort_stats("tottime").print_stats(_FUNCTIONS)
    lines = [line for line in out.getvalue().splitlines()[6:] if line.strip()]
    text.append(f"  on the host, of {TIMED} steps:")
    for line in lines:
        text.append(f"    {line.replace(f'{Path.cwd()}/', '').replace(f'{sys.prefix}/', '')}"[:_WIDTH])
    return "\n".join(text)


def on_device(events: Iterable[Any]) -> list[Any]:
    """Kernels and copies, the longest first. The profiler lists the calls that launch them, too, which are on the host."""
    return sorted(
        (event for event in events if event.self_device_time_total > 0), key=lambda event: -event.self_device_time_total
    )


def main() -> None:
    """Profile every case."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, help="A file; standard output by default.")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--small", action="store_true", help="Small sizes.")
    given = parser.parse_args()
    if given.output is not None:
        given.output.parent.mkdir(parents=True, exist_ok=True)
    with nullcontext(sys.stdout) if given.output is None else open(given.output, "w", encoding="utf-8") as file:
        for name, make in cases(given.device, given.small):
            try:
                told = profiled(make(), given.device)
            except DataError as error:
                told = str(error)
            print(f"== {name}: {told}\n", file=file, flush=True)


if __name__ == "__main__":
    main()
