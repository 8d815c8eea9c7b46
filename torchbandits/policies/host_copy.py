"""A host copy of the state of a box on a device, for small searches.

A search takes about a hundred small ascent steps. On a device each step costs more in kernel launches than in arithmetic, and
the posterior of a box is small. The state therefore has a copy on the host: ask and tell work on the copy, and their changes
are sent to the device in one asynchronous transfer.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from torch import Tensor, nn

from torchbandits.posteriors import GaussianProcess
from torchbandits.transfers import to_device, to_host

# Largest number of coordinates of a posterior for which the host is used. An ascent step takes about 8 x 16 m² multiplications
# there and about fifty launches on a device. By these counts, not by a measurement on a GPU, both are equally fast at 300 to
# 1,000 coordinates.
MOST = 512


class HostCopy:
    """A copy of the state of a box on the host. Changed buffers are found by comparing identities, because buffers are replaced
    whenever they change and never written in place.

    Args:
        state: A `BoxState` on a device.
    """

    def __init__(self, state: Any) -> None:
        memo = {id(generator): generator for generator in state.generators}
        memo[id(state.kept_copy)] = memo[id(state.scale)] = None
        self.own: Any = copy.deepcopy(state, memo).to("cpu")
        self._state = state
        self._settings = _settings(state.posterior)
        pairs = zip(state.modules(), self.own.modules(), strict=True)
        self._pairs = [(there, here) for there, here in pairs if there._buffers]
        self._there = [dict(there._buffers) for there, _ in self._pairs]
        self._here = [dict(here._buffers) for _, here in self._pairs]
        self._follow()

    @property
    def fits(self) -> bool:
        """Whether nothing but buffers has changed since the copy was made."""
        return self._settings == _settings(self._state.posterior)

    def follow(self) -> Any:
        """Bring the copy up to date, and return it. Waits for the device once, if a buffer there has changed."""
        changed = _replaced((there for there, _ in self._pairs), self._there)
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
        """Copy the attributes that are not buffers."""
        own, state = self.own, self._state
        own.forget_derived_()
        own.opening, own.unsettled, own.scale = state.opening, state.unsettled, state.scale
        own.rows.outside, own.posterior.weighted = state.rows.outside, state.posterior.weighted

    def change_(self, work: Callable[[Any], Any]) -> None:
        """Run `work` on the copy, and apply its changes to the state. If `work` fails, the state is unchanged."""
        own, state = self.follow(), self._state
        # Until the copy is consistent again.
        state.kept_copy = None
        work(own)
        changed = _replaced((here for _, here in self._pairs), self._here)
        away: list[Tensor] = [tensor for place, name, tensor in changed if self._belongs_there(place, name, tensor)]
        copies = iter(to_device(state.pending_index.device, *away) if away else ())
        for place, name, tensor in changed:
            there = next(copies) if self._belongs_there(place, name, tensor) else tensor
            self._here[place][name] = tensor
            self._pairs[place][0]._buffers[name] = self._there[place][name] = there
        state.rows.outside, state.posterior.weighted = own.rows.outside, own.posterior.weighted
        state.opening = own.opening
        state.posterior.invalidate_()
        state.kept_copy = self

    def _makes_factors(self, place: int, name: str) -> bool:
        """Whether the factors of the posterior depend on a buffer."""
        posterior = self._state.posterior
        return name not in ("pending", "pending_points") and any(self._pairs[place][0] is part for part in posterior.modules())

    def _belongs_there(self, place: int, name: str, tensor: Any) -> bool:
        """Whether a buffer belongs on the device: some small buffers are always on the host."""
        before = self._there[place].get(name)
        return tensor is not None and before is not None and before.device.type != "cpu"


def _replaced(modules: Iterable[nn.Module], known: Sequence[dict[str, Any]]) -> list[tuple[int, str, Any]]:
    """Module, name and present tensor of the buffers that are no longer the known ones."""
    return [
        (place, name, tensor)
        for place, (module, old) in enumerate(zip(modules, known, strict=True))
        for name, tensor in module._buffers.items()
        if tensor is not old.get(name)
    ]


def _settings(posterior: GaussianProcess) -> tuple[nn.Module, float, bool]:
    """What a posterior depends on besides its buffers."""
    return posterior.kernel, posterior.regularization, posterior.sparse
