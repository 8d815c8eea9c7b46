"""Arms that were evaluated a few times each: a pull draws one of the recorded rewards."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from torchbandits.checks import check_text
from torchbandits.environments.base import Environment, Task, known
from torchbandits.environments.noise import row_draws
from torchbandits.environments.tables import check_arms, check_costs, check_neighbors
from torchbandits.errors import NonFiniteError, ShapeError, UnsupportedError, require


class Recorded(Environment):
    """Arms with a few recorded rewards each, their noise as it was.

    The expected reward of an arm is the mean of its records, and `noise_std` the root of their pooled variance within an
    arm (the mean squared deviation that a pull has).

    Args:
        arms: `A x d` floating-point features.
        records: `A x r` rewards, reward units; NaN where an arm has fewer than r. Each arm has at least one.
        name: Shown in tables and figures.
        costs: `A`, what a pull of each arm costs (seconds, money), > 0; None where nobody says.
        neighbors: `A x k`, arms next to each arm, padded with −1; None where nobody says.

    Raises:
        ShapeError: If shapes, dtypes or devices do not agree.
        NonFiniteError: If an arm has no record, or a record is infinite.
    """

    def __init__(
        self,
        arms: Tensor,
        records: Tensor,
        *,
        name: str = "recorded",
        costs: Tensor | None = None,
        neighbors: Tensor | None = None,
    ) -> None:
        checked = check_arms(arms)
        if not isinstance(checked, Tensor):
            raise UnsupportedError("arms of recorded rewards must be a tensor, not a source.")
        arms = checked
        good = isinstance(records, Tensor) and records.ndim == 2 and arms.ndim == 2 and len(records) == len(arms)
        got = tuple(records.shape) if isinstance(records, Tensor) else type(records).__name__
        require(good, f"records must be A x r for the {tuple(arms.shape)} arms, got {got}.", ShapeError)
        alike = records.dtype == arms.dtype and records.device == arms.device
        require(alike, f"records must be {arms.dtype} on {arms.device}, got {records.dtype} on {records.device}.", ShapeError)
        present = ~records.isnan()
        whole = bool(present.any(dim=-1).all()) and not bool(records.isinf().any())
        require(whole, "every arm needs a record, and none may be infinite.", NonFiniteError)
        check_text("name", name)
        self.arms = arms
        self.name = name
        self.costs = None if costs is None else check_costs(costs, arms)
        self.neighbors = None if neighbors is None else check_neighbors(neighbors, arms)
        # An arm's records first, so that draw j of n is column ⌊u n⌋.
        order = (~present).byte().argsort(dim=-1, stable=True)
        self.records = records.gather(-1, order)
        self.counts = present.sum(dim=-1)
        self._means = records.nanmean(dim=-1)
        spread = torch.where(present, records - self._means.unsqueeze(-1), 0.0)
        self.noise_std = float((spread.square().sum() / present.sum()).sqrt())

    @property
    def means(self) -> Tensor:
        """Mean of the records of every arm, `A`, reward units."""
        return self._means

    def sample(self, index: Tensor, generators: Sequence[torch.Generator]) -> Tensor:
        """Pull arms: one of the records of each pick, all alike; NaN where −1. Row r draws from `generators[r]`, one number a
        pick, in their order."""
        uniforms = row_draws(self, index, generators, "uniform").to(index.device)
        picked = index.clamp_min(0)
        count = self.counts[picked]
        place = (uniforms * count).long().minimum(count - 1)
        return torch.where(index >= 0, self.records[picked, place], torch.nan)

    def tasks(self, index: Tensor, generators: Sequence[torch.Generator]) -> list[Task]:
        """The rewards that `sample` draws, one task a pull, row-major."""
        return known(self.sample(index, generators), index)

    def __repr__(self) -> str:
        """Name and sizes."""
        return f"Recorded({self.name!r}, arms={tuple(self.arms.shape)}, records={self.records.shape[-1]})"
