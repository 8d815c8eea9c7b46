"""Repeated steps on a GPU as a CUDA graph, which the host launches as one operation."""

from __future__ import annotations

import os
from collections.abc import Callable

import torch

# Whether steps of fixed shape are recorded.
GRAPHS = os.environ.get("TORCHBANDITS_GRAPHS") != "0"
# Number of steps in one recording, and the number of calls from which the longer recording is worth making.
_TOGETHER, _MANY = 8, 64


def repeat(step: Callable[[], None], times: int, device: torch.device) -> None:
    """Call a step this many times on a CUDA device: once as it is, so that libraries make their handles and work space, and
    then by replays of a recording. Many calls are replays of a recording of several steps, and of one of a single step for the
    rest.

    Args:
        step: Reads and writes tensors that keep their places in memory, does not wait for the device, and has the same shapes
            whenever it is called. What differs from call to call is kept on the device, such as a counter.
        times: Number of calls.
        device: A CUDA device.
    """
    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        step()
        together = _TOGETHER if times >= _MANY else 1
        for steps, replays in ((together, (times - 1) // together), (1, (times - 1) % together)):
            if replays:
                graph = _recorded(step, steps)
                for _ in range(replays):
                    graph.replay()
    torch.cuda.current_stream(device).wait_stream(stream)


def _recorded(step: Callable[[], None], times: int) -> torch.cuda.CUDAGraph:
    """A recording of so many calls of the step, on the current stream."""
    graph = torch.cuda.CUDAGraph()
    graph.capture_begin(capture_error_mode="thread_local")
    try:
        for _ in range(times):
            step()
    finally:
        graph.capture_end()
    return graph
