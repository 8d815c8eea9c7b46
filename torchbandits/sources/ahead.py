"""Pieces of arms that are read on the host, sent to a GPU while it works on the piece before."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor


def sent_ahead(pieces: Iterable[tuple[slice, Tensor]], device: torch.device) -> Iterator[tuple[slice, Tensor]]:
    """The pieces on the device, each valid until the next one is requested.

    A GPU works on a piece while the host reads the next one, copies it into pinned memory unless it is there already, and a
    second stream sends it. Two pieces are held on the device, and two on the host.

    Args:
        pieces: Consecutive arms on the host, `n x d` or `n x w`, none larger than the first.
        device: Where they are needed.
    """
    if device.type != "cuda":
        yield from ((part, arms.to(device)) for part, arms in pieces)
        return
    own, side = torch.cuda.current_stream(device), torch.cuda.Stream(device)
    arrived, read = ([torch.cuda.Event() for _ in range(2)] for _ in range(2))
    staged: list[Tensor] = []
    there: list[Tensor] = []
    try:
        for number, (part, arms) in enumerate(pieces):
            place, n = number % 2, len(arms)
            if number < 2:
                there.append(torch.empty(arms.shape, dtype=arms.dtype, device=device))
                staged.append(arms if arms.is_pinned() else torch.empty(arms.shape, dtype=arms.dtype).pin_memory())
                # The memory of the buffer may still be used by work that was queued earlier.
                side.wait_stream(own)
            else:
                side.wait_event(read[place])
                arrived[place].synchronize()
            sent = arms
            if not arms.is_pinned():
                sent = staged[place][:n]
                sent.copy_(arms)
            with torch.cuda.stream(side):
                there[place][:n].copy_(sent, non_blocking=True)
                arrived[place].record(side)
            own.wait_event(arrived[place])
            yield part, there[place][:n]
            read[place].record(own)
    finally:
        # A reader that stops early frees the buffers, to which a copy may still be written.
        own.wait_stream(side)
