"""Memory budget of computed tables, and smaller chunks of arms after a device has run out of memory."""

from __future__ import annotations

import torch

ON_HOST = 2 << 30
"""Bytes for tables of arms on the CPU."""


def budget_on(device: torch.device, given: int | None) -> int:
    """The given number of bytes; if None, 2 GiB on the CPU and half of what is free now on a GPU. No pick depends on it."""
    if given is not None:
        return given
    return torch.cuda.mem_get_info(device)[0] // 2 if device.type == "cuda" else ON_HOST


def halved(step: int, least: int, error: torch.OutOfMemoryError) -> int:
    """Half of a chunk size that did not fit into the memory of a device; the error is raised again below the smallest chunk
    size."""
    if step <= least:
        raise error
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    return max(least, step // 2)
