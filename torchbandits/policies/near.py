"""The state of a box on the host, where small searches are made for boxes on a device.

A search climbs by some hundred small steps, each of which costs a device more launches than arithmetic, and the posterior of a
box fits in a few packed bytes. So the state has a copy on the host: ask and tell work on the copy, and what they have changed
goes to the device in one piece, which nothing waits for.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from torchbandits.posteriors import GaussianProcess
from torchbandits.transfers import to_device, to_host

# Most coordinates of a posterior for which the host is asked. A step of a climb takes about 8 x 16 m² multiplications there and
# some fifty launches on a device: by these counts, not by a measurement on a card, the two take equally long at 300 to 1,000.
MOST = 512


class Near:
    """A copy of the state of a box on the host, which follows the state by comparing buffers: these are replaced whenever they
    change, and never written to.

    Args:
        state: A `BoxState` on a device.
    """

    def __init__(self, state: Any) -> None:
        memo = {id(generator): generator for generator in state.generators}
        memo[id(state.near)] = memo[id(state.scale)] = None
        self.own: Any = copy.deepcopy(state, memo).to("cpu")
        self._state = state
        self._known = _known(state.posterior)
        pairs = zip(state.modules(), self.own.modules(), strict=True)
        self._pairs = [(there, here) for there, here in pairs if there._buffers]
        self._there = [dict(there._buffers) for there, _ in self._pairs]
        self._here = [dict(here._buffers) for _, here in self._pairs]
        self._follow()

    @property
    def fits(self) -> bool:
        """Whether only buffers can have changed since the copy was made."""
        return self._known == _known(self._state.posterior)

    def follow(self) -> Any:
        """Bring the copy up to date, and return it. Waits for the device once, if a buffer there has changed."""
        changed = [
            (place, name, tensor)
            for place, (there, _) in enumerate(self._pairs)
            for name, tensor in there._buffers.items()
            if tensor is not self._there[place].get(name)
        ]
        if changed:
            away = [tensor for *_, tensor in changed if tensor is not None and tensor.device.type != "cpu"]
            copies = iter(to_host(*away) if away else ())
            for place, name, tensor in changed:
                here = tensor if tensor is None or tensor.device.type == "cpu" else next(copies)
                self._there[place][name] = tensor
                self._pairs[place][1]._buffers[name] = self._here[place][name] = here
            if any(self._makes_factors(place, name) for place, name, _ in changed):
                self.own.posterior.invalidate_()
        self._follow()
        return self.own

    def _follow(self) -> None:
        """Take over what is no buffer."""
        own, state = self.own, self._state
        own.forget_derived_()
        own.opening, own.unsettled, own.scale = state.opening, state.unsettled, state.scale
        own.rows.outside, own.posterior.weighted = state.rows.outside, state.posterior.weighted

    def changed(self, work: Callable[[Any], Any]) -> None:
        """Do some work that changes the copy, and the same to the state. If it fails, the state is as it was."""
        own, state = self.follow(), self._state
        state.near = None  # until the copy is whole again
        work(own)
        changed = [
            (place, name, tensor)
            for place, (_, here) in enumerate(self._pairs)
            for name, tensor in here._buffers.items()
            if tensor is not self._here[place].get(name)
        ]
        away: list[Tensor] = [tensor for place, name, tensor in changed if self._belongs_there(place, name, tensor)]
        copies = iter(to_device(state.pending_index.device, *away) if away else ())
        for place, name, tensor in changed:
            there = next(copies) if self._belongs_there(place, name, tensor) else tensor
            self._here[place][name] = tensor
            self._pairs[place][0]._buffers[name] = self._there[place][name] = there
        state.rows.outside, state.posterior.weighted = own.rows.outside, own.posterior.weighted
        state.opening = own.opening
        state.posterior.invalidate_()
        state.near = self

    def _makes_factors(self, place: int, name: str) -> bool:
        posterior = self._state.posterior
        return name not in ("pending", "pending_points") and any(self._pairs[place][0] is part for part in posterior.modules())

    def _belongs_there(self, place: int, name: str, tensor: Any) -> bool:
        """Whether a buffer is on the device: some small ones are on the host wherever the others are."""
        before = self._there[place].get(name)
        return tensor is not None and before is not None and before.device.type != "cpu"


def _known(posterior: GaussianProcess) -> tuple[nn.Module, float, bool]:
    return posterior.kernel, posterior.regularization, posterior.sparse
