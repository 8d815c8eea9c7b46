"""Repeated steps on a GPU as a CUDA graph, which the host launches as one operation."""

from __future__ import annotations

import os
from collections.abc import Callable

import torch

# Whether steps of fixed shape are recorded.
GRAPHS = os.environ.get("TORCHBANDITS_GRAPHS") != "0"


def repeat(step: Callable[[], None], times: int, device: torch.device) -> None:
    """Call a step this many times on a CUDA device: once as it is, so that libraries make their handles and work space, and
    then by replays of one recording.

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
        if times > 1:
            graph = torch.cuda.CUDAGraph()
            graph.capture_begin(capture_error_mode="thread_local")
            try:
                step()
            finally:
                graph.capture_end()
            for _ in range(times - 1):
                graph.replay()
    torch.cuda.current_stream(device).wait_stream(stream)
