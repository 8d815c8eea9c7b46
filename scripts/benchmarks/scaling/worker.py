"""Measurement of one method at one point, in a separate process.

`python -m scaling.worker` reads tasks from standard input, one JSON line per task, and writes the measurements of each task as
a JSON line to standard output.
"""

from __future__ import annotations

import json
import resource
import signal
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch

from scaling.config import BenchmarkConfig, Point
from scaling.machine import Rates
from scaling.methods import CONTENDERS, Problem

RATES = "rates"
OUT_OF_MEMORY = 3
"""Exit status of a process that exceeded its memory limit."""
_SHORTEST = {"processor": 0.2, "wall": 0.05}  # seconds by clock; shorter calls are timed several together
_OTHER_NAMES = ("can't allocate memory", "not enough memory", "out of memory", "bad_alloc")


def measure(task: dict[str, Any]) -> dict[str, Any]:
    """The measurements of a task: rates of the machine, or seconds and bytes of a method.

    Args:
        task: `method`, `point` and `config`, the latter two as mappings.

    Returns:
        `operations`, `exponentials` and `bytes` per second; or `update` and `step`, the smallest seconds of a new posterior
        over all arms and of a pull (an update and its picks, divided by the number of picks), `picks`, `kept`, and `memory`,
        the peak memory in bytes minus that after the imports.
    """
    config, point = BenchmarkConfig.parse(task["config"]), Point(**task["point"])
    torch.set_num_threads(config.threads)
    cuda = config.device == "cuda"
    if cuda:
        torch.cuda.set_per_process_memory_fraction(
            min(1.0, config.memory_limit * 2**30 / torch.cuda.get_device_properties(0).total_memory)
        )
    if cuda:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    before = _peak(cuda)
    if not cuda:
        _limit_memory(int(config.memory_limit * 2**30))
    clock = time.process_time if config.clock == "processor" else time.perf_counter
    if task["method"] == RATES:
        return vars(Rates.measure(point.dictionary, config.device, clock))
    contender = CONTENDERS[task["method"]](Problem.draw(config, point), point, config)
    # The timer's signal ends the process at the limit, even inside a library.
    timer = signal.ITIMER_PROF if config.clock == "processor" else signal.ITIMER_REAL
    signal.setitimer(timer, config.time_limit)
    update, step, picks = _timed(contender.update, contender.pick, clock, config)
    signal.setitimer(timer, 0.0)
    kept = bool(getattr(contender, "kept", False))
    return {"update": update, "step": step, "picks": picks, "kept": kept, "memory": _peak(cuda) - before}


def _timed(
    update: Callable[[], None], pick: Callable[[], int], clock: Callable[[], float], config: BenchmarkConfig
) -> tuple[float, float, int]:
    """Smallest seconds of an update and of a pull, and picks per update; the first of several updates is not counted."""
    began = time.perf_counter()
    first = fastest_of(update, config, clock, 1)
    left = 0.5 * config.time_limit - (time.perf_counter() - began)
    # The first update of a device may compile a kernel; a long one is not repeated.
    if config.repetitions > 1 and first < left:
        first = fastest_of(update, config, clock, 1)
        calls = _calls_of(first, config)
        times = max(1, int(left / (calls * max(first, 1e-3))))
        first = fastest_of(update, config, clock, min(config.repetitions, times), calls)
    picks = pick()
    choice = fastest_of(pick, config, clock, 1)
    if _calls_of(choice, config) > 1:
        choice = fastest_of(pick, config, clock, config.repetitions, _calls_of(choice, config))
    return first, (first + choice) / picks, picks


def _calls_of(seconds: float, config: BenchmarkConfig) -> int:
    """Number of calls that are timed together. Linux counts a process's time in steps of 4 ms while a timer on it is armed, so
    that a call of a few milliseconds cannot be timed alone."""
    return max(1, round(_SHORTEST[config.clock] / max(seconds, 1e-3)))


def fastest_of(
    work: Callable[[], object], config: BenchmarkConfig, clock: Callable[[], float], times: int, calls: int = 1
) -> float:
    """Smallest seconds of a call, of a number of repetitions of `calls` calls each."""
    seconds = []
    for _ in range(times):
        start = clock()
        for _ in range(calls):
            work()
        if config.device == "cuda":
            torch.cuda.synchronize()
        seconds.append((clock() - start) / calls)
    return min(seconds)


def _limit_memory(size: int) -> None:
    """Limit the process to `size` more bytes of data. A larger request then raises an error instead of exhausting the
    machine."""
    with open("/proc/self/statm", encoding="ascii") as file:
        used = int(file.read().split()[5]) * resource.getpagesize()
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (used + size, hard))


def _peak(cuda: bool) -> int:
    """Peak memory so far in bytes, on the device, or else of the resident set."""
    if cuda:
        return int(torch.cuda.max_memory_allocated())
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def main() -> None:
    """Answer every task. Exit status 3 means that memory ran out."""
    warnings.simplefilter("ignore")
    try:
        for line in sys.stdin:
            sys.stdout.write(json.dumps(measure(json.loads(line))) + "\n")
            sys.stdout.flush()
    except (MemoryError, torch.OutOfMemoryError):
        sys.exit(OUT_OF_MEMORY)
    except RuntimeError as error:  # PyTorch on the host and MKL report it only in the message
        if any(words in str(error) for words in _OTHER_NAMES):
            sys.exit(OUT_OF_MEMORY)
        raise


if __name__ == "__main__":
    main()
