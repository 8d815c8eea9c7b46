"""Standard normal numbers in bulk, for posterior draws: from the CPU's generators, or optionally from the device that needs
them."""

from __future__ import annotations

import os

import torch
from torch import Tensor

from torchbandits.transfers import to_device

# Whether a CUDA device draws the numbers for its arms, by Philox. Off unless asked for, because the CPU draws other numbers.
PHILOX = os.environ.get("TORCHBANDITS_PHILOX") == "1"


def normals(rows: int, columns: int, generator: torch.Generator, device: torch.device) -> Tensor:
    """Standard normals, `rows x columns`, float64, for this device.

    They are drawn on the CPU by its generator, and are then the same for every device. With `TORCHBANDITS_PHILOX=1` a CUDA
    device draws them itself: the generator gives only the seed of the Philox stream of this call. A run still depends on its
    generators alone and can be repeated and resumed on a CUDA device, but its draws differ from those of a run on the CPU.
    """
    if not PHILOX or device.type != "cuda":
        return to_device(device, torch.randn(rows, columns, generator=generator, dtype=torch.float64))[0]
    seed = int(torch.randint(2**62, (), generator=generator))
    stream = torch.Generator(device).manual_seed(seed)
    return torch.randn(rows, columns, generator=stream, dtype=torch.float64, device=device)
