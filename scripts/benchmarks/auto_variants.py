"""`auto` as it was, or with other constants, while a context lasts. `VARIANTS` holds the contexts by name."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any

from torchbandits.fitting import standardized
from torchbandits.ingredients import Priors
from torchbandits.policies.from_data import FromData
from torchbandits.posteriors import units
from torchbandits.widths import Constant, Growing, Width


@contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Replace an attribute for a while."""
    own = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, own)


def of_single_rewards(self: FromData, state: Any, pulls: Any) -> Any:
    """Pulls in model units, where each told reward, or sum of rewards, has the score of its average."""
    n = pulls.counts.clamp_min(1e-300)
    sums = pulls.counts * state.posterior.units.to_model(pulls.sums / n)
    return replace(pulls, sums=sums, squares=sums.square() / n)


def with_width(make: Callable[[float], Width]) -> AbstractContextManager[None]:
    """Let the width of `auto`, a number, become another one."""
    return replaced(FromData, "width", lambda self, state, width: make(width.value))


def uncounted() -> AbstractContextManager[None]:
    """Let all pulls of an arm count in the ranks."""
    return replaced(units, "_MOST_COUNTED", math.inf)


def steep() -> AbstractContextManager[None]:
    """Let scores rise faster than the noise."""
    return replaced(units, "_noise_std", lambda counts, scatter: 0.0)


def in_batches_alone(own: Callable) -> Callable:
    """`FromData.replicates` without replicates for single picks."""
    return lambda self, state, remaining, offered=None: (
        None if int(remaining.max()) <= 1 else own(self, state, remaining, offered)
    )


@contextmanager
def before() -> Iterator[None]:
    """`auto` without any of the three."""
    with uncounted(), steep(), with_width(Constant):
        yield


VARIANTS: dict[str, Callable[[], AbstractContextManager[None]]] = {
    "scores": lambda: replaced(FromData, "in_model_units", of_single_rewards),
    "before": before,
    "constant": lambda: with_width(Constant),
    "uncounted": uncounted,
    "steep": steep,
    "early": lambda: with_width(lambda value: Growing(value, after=1.0)),
    "narrow": lambda: replaced(Priors, "of_noise", lambda self, kernel: (-4.0, 1.0)),
    "ten": lambda: replaced(standardized, "_REPEATS", 10),
    "together": lambda: replaced(units.Units, "add_unasked_", lambda self, pulls: None),
    "unrepeated": lambda: replaced(FromData, "replicates", in_batches_alone(FromData.replicates)),
}
