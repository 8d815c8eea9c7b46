"""Further rows of a campaign, asked for from its bandit, with errors in words of the campaign."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from torchbandits.bandit import Bandit
from torchbandits.campaigns.candidates import Candidates
from torchbandits.campaigns.rows_as_arms import RowsAsArms
from torchbandits.constraints import Constraint, Distinct
from torchbandits.display import count
from torchbandits.errors import ArgumentError
from torchbandits.journal import NoArmLeft


def ask_freely(bandit: Bandit, wanted: int, left: Tensor | None, said: str) -> None:
    """Ask for further rows without constraints, in more than one step where the first picks of a policy come as a batch of
    their own.

    Args:
        bandit: The bandit of the campaign.
        wanted: Number of further rows.
        left: The mask of the rows that may be selected; None for all.
        said: A sentence on the number of rows that can be selected, for the message.

    Raises:
        ArgumentError: If the policy allows fewer. None of them is open then.
    """
    arms = RowsAsArms(bandit)
    before = waiting = len(arms.open)
    while waiting < before + wanted:
        bandit.ask(more=before + wanted - waiting, available=arms.there(left))
        rows = arms.open
        if len(rows) == waiting:
            arms.give_up(rows[before:])
            raise ArgumentError(f"n: the policy allows at most {waiting:,} pending rows, and {said}")
        waiting = len(rows)


def ask_within(bandit: Bandit, wanted: int, constraints: tuple[Constraint, ...], left: Tensor | None) -> None:
    """Ask for further rows under constraints; arguments as for `ask_freely`.

    Raises:
        ArgumentError: If no batch was found that meets them. Nothing has changed then.
    """
    try:
        bandit.ask(more=wanted, within=constraints, available=RowsAsArms(bandit).there(left))
    except NoArmLeft as error:
        too = " Batches of the cheapest rows were tried, too." if error.smallest else ""
        raise ArgumentError(
            f"no batch was found that meets the constraints: no further row fits after {error.picks.shape[-1]:,} of "
            f"{wanted:,}.{too} Ask for fewer rows, or loosen the constraints."
        ) from error


def check_once(arms: RowsAsArms, pool: Candidates, wanted: int, left: Tensor | None) -> None:
    """Refuse more rows than can be selected where none of them, nor a row equal to it, is selected twice.

    Args:
        arms, pool: The rows of the campaign.
        wanted: Number of further rows.
        left: The mask of the rows that may be selected; None for all.
    """
    opened = arms.open_entries
    room = arms.different(left, closed=opened)
    if wanted <= room:
        return
    every, rows = arms.different(left), pool.count if left is None else int(left.sum())
    alike = f"to the model the {rows:,} rows are {every:,} different ones, and " if every < rows else ""
    pending = f" beside the {count(len(opened), 'pending row')}" if len(opened) else ""
    raise ArgumentError(
        f"n: {count(wanted, 'more row')} {'is' if wanted == 1 else 'are'} asked for, and {room:,} of "
        f"{pool.table.name} can be selected{pending}: {alike}none is selected again before its result was told. Ask "
        "for fewer, tell results first, or add repeated measurements of your own by plan() (torchbandits campaign plan)."
    )


def check_open(arms: RowsAsArms, pool: Candidates, constraints: Sequence[Constraint], n: int) -> None:
    """Refuse constraints that the first n open rows violate."""
    opened = torch.from_numpy(arms.open[:n])
    rows, entries = arms.there(opened), arms.there(arms.entries(opened.tolist()))
    all_rows = torch.ones(pool.count, dtype=torch.bool, device=rows.device)
    for place in range(len(rows)):
        for constraint in constraints:
            # Rows with equal features count as one row.
            compared = entries if isinstance(constraint, Distinct) else rows
            if not bool(constraint.allowed(compared[:place], all_rows, 1)[compared[place]]):
                raise ArgumentError(
                    f"within: {len(rows):,} rows are open already and break {type(constraint).__name__}: tell or forget() "
                    "them first, or leave the constraint out."
                )
