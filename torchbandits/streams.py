"""Random streams: copies of generators, generators that rest while others draw, and standard normals in bulk, which may come
from the device that needs them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from torchbandits.transfers import to_device

# Whether a CUDA device draws the numbers for its arms, by Philox. Off unless asked for, because the CPU draws other numbers.
PHILOX = os.environ.get("TORCHBANDITS_PHILOX") == "1"


def copies_of(generators: Sequence[torch.Generator]) -> tuple[torch.Generator, ...]:
    """Copies of CPU generators, for draws that must not advance the originals."""
    copies = tuple(torch.Generator() for _ in generators)
    for copy, generator in zip(copies, generators, strict=True):
        copy.set_state(generator.get_state())
    return copies


@contextmanager
def only_advancing(generators: Sequence[torch.Generator], active: Tensor) -> Iterator[None]:
    """Within this context, draws of all generators, one per batch row, advance those of the `active` rows alone (`batch_shape`
    booleans); the others are set back at the end."""
    resting = [generator for generator, on in zip(generators, active.reshape(-1).tolist(), strict=True) if not on]
    states = [generator.get_state() for generator in resting]
    yield
    for generator, before in zip(resting, states, strict=True):
        generator.set_state(before)


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
