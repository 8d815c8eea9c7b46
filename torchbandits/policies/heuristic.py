"""Base class of policies without a posterior, which sum rewards and draw their picks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TypeVar, cast

import torch
from torch import Tensor

from torchbandits.arms import ArmRows
from torchbandits.errors import NumericalError, UnsupportedError, require
from torchbandits.policies.base import FROM_BOX, Policy
from torchbandits.policies.picking import on_offer
from torchbandits.policies.state import SumsState
from torchbandits.posteriors import Statistics
from torchbandits.sources import ArmSet
from torchbandits.starts import draw_points
from torchbandits.streams import copies_of
from torchbandits.types import Evidence, Pulls, Selection

H = TypeVar("H", bound=SumsState)


class Heuristic(Policy[H], ABC):
    """A policy that draws its picks and keeps only sums of rewards, without scores, widths or bounds.

    Attributes:
        batch_size: Number of picks per `ask`.
    """

    batch_size: int

    @property
    def draws_on_update(self) -> bool:
        """Whether `update` may advance the generators: False, because only picks are drawn."""
        return False

    @property
    def most_picks(self) -> int:
        """The maximum number of picks of one `select`: `batch_size`."""
        return self.batch_size

    @abstractmethod
    def draw(self, state: H, sizes: Sequence[int], offered: Tensor | None, generators: Sequence[torch.Generator]) -> Tensor:
        """Draw picks, `rows x max(sizes)` arms (−1 where padded).

        Args:
            state: State to read; it must not be changed. Batch rows are counted in row-major order.
            sizes: Picks of each row.
            offered: `rows x A` booleans, at least one True in each; None for all arms.
            generators: One per row, to draw from. The draws of a row must not depend on the other rows.
        """

    def select(
        self, state: H, *, limit: Tensor | None = None, available: Tensor | None = None, exactly: int | None = None
    ) -> tuple[Selection, Evidence]:
        """Draw `batch_size` picks per row from copies of the generators. In a box, picks are drawn uniformly."""
        shape, device = state.rows.batch_shape, state.log_det.device
        size = torch.full(shape, self.batch_size if exactly is None else exactly)
        size = size if limit is None else torch.minimum(size, limit)
        sizes, twins = size.reshape(-1).tolist(), copies_of(state.generators)
        if state.box is not None:
            require(available is None, "available= names arms, and a box has none: leave it out.", UnsupportedError)
            points = draw_points(state.box.corners, sizes, twins)
            index = state.box.places(points, ~points.isnan().any(dim=-1), state.pending_index)
            points = torch.where((index >= 0).unsqueeze(-1), points, state.rows.arms[..., :1, :])
        else:
            offered = on_offer(state.rows, available)
            if offered is not None:
                offered = offered.expand(*shape, -1).reshape(-1, state.rows.num_arms)
            index = self.draw(state, sizes, offered, twins).to(device).reshape(*shape, -1)
            points = state.rows.points(index)
        nothing = torch.full(index.shape, torch.nan, dtype=torch.float64, device=device)
        states = tuple(twin.get_state() for twin in twins)
        evidence = Evidence(nothing, nothing, torch.full(shape, torch.nan, dtype=torch.float64, device=device), states)
        return Selection(points, index, index >= 0), evidence

    def set_arms(self, state: H, arms: ArmSet) -> H:
        """Return a state with the same sums on other arms. Cost O((A + u) (d + log A))."""
        require(state.box is None, FROM_BOX, UnsupportedError)
        rows = state.rows.moved(arms, state.statistics)
        return self.carried(state, rows)

    def carried(self, state: H, rows: ArmRows) -> H:
        """Return the state on other arms, with all data of the policy: by default the same statistics."""
        moved = SumsState(rows, state.statistics, state.generators)
        moved.continuing_(state)
        return cast(H, moved)

    def width(self, state: H) -> Tensor:
        """NaN: there are no bounds."""
        return torch.full_like(state.log_det, torch.nan)

    def bounds(self, state: H) -> None:
        """None: there are no bounds."""
        return


def fresh_state(arms: ArmSet, generators: Sequence[torch.Generator], batch_shape: torch.Size) -> SumsState:
    """Make a state of statistics only."""
    return SumsState(ArmRows(arms, batch_shape), Statistics(arms.shape[-1], batch_shape, arms.device), generators)


def add_up(state: SumsState, pulls: Pulls) -> None:
    """Add the rewards of pulls to the statistics. Raises `NumericalError` where a sum overflows."""
    statistics = state.statistics
    if pulls.points is not None:
        state.rows.tell_outside_(statistics, pulls)
    else:
        assert pulls.index is not None
        assert pulls.mask is not None
        state.rows.tell_(statistics, state.rows.summed(pulls))
    require(
        bool(torch.isfinite(statistics.sums).all()),
        "the sum of an arm's rewards overflowed; the pulls were not learned. Check the size of the rewards.",
        NumericalError,
    )
