"""The explanation of a campaign of one objective: that of its bandit, in the units and with the names of the user."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchbandits.bandit import Bandit
from torchbandits.campaigns.candidates import Candidates
from torchbandits.campaigns.records import Records
from torchbandits.campaigns.rows_as_arms import RowsAsArms
from torchbandits.campaigns.settings import Settings
from torchbandits.errors import StateError, UnsupportedError, require
from torchbandits.explanation import Explanation, Words, explain
from torchbandits.policies.repeats import most_repeated, reason_for_repeats
from torchbandits.tabular.encoding import feature_names
from torchbandits.types import Recommendation

_UNEXPLAINED = (
    "explain() reads a model that the policy of this campaign does not have: begin another campaign with the default "
    "policy, gp_ucb or batch_bkb, and tell it the results."
)


def explanation(
    bandit: Bandit, pool: Candidates, offer: Tensor | None, records: Records, settings: Settings, where: Any = None
) -> Explanation:
    """What `Campaign.explain` returns, without a look at what was told together.

    Args:
        bandit: The bandit of the campaign, which has learned something.
        pool: The candidates.
        offer: The mask of the rows on offer, `A` on the host; None for all.
        records: The results so far.
        settings: The settings of the campaign.
        where: The condition on the best row and on its rivals.

    Raises:
        ArgumentError, UnsupportedError, StateError: As `Campaign.explain`.
    """
    arms, features, told = RowsAsArms(bandit), feature_names(settings.columns), records.measured_rows()
    held = None if where is None else pool.fulfil(where)
    try:
        if held is None:
            found = bandit.explain(names=features, available=arms.there(offer))
        else:
            found = _explained(bandit, features, told, held, held if offer is None else held & offer)
    except UnsupportedError as error:
        raise UnsupportedError(_UNEXPLAINED) from error
    row, _ = arms.as_told_among(found.best.index, told, held)
    repeated = _repeated(arms, records, found) if held is None else None
    named = np.unique(np.array([*row[row >= 0], *([] if repeated is None else [repeated[0]])], np.int64))
    names = dict(zip(named.tolist(), pool.ids.of(named), strict=True))
    above, sign = "below" if settings.minimize else "above", settings.sign
    guarantee = found.guarantee
    if found.kernel_estimated:
        guarantee = "Guarantee: none, because these are estimates of a model that was fitted to the same measurements."
    return replace(
        found,
        best=replace(found.best, index=torch.from_numpy(row).to(found.best.index), mean=sign * found.best.mean),
        upper=sign * found.upper,
        repeated=repeated,
        guarantee=guarantee,
        shifts=tuple(sign * shift for shift in found.shifts),
        words=Words("row", "column", "measurement", "measured", "measurement", "evaluation", settings.objective, above, names),
    )


def _explained(bandit: Bandit, names: Sequence[str], told: list[int], held: Tensor, offered: Tensor) -> Explanation:
    """The explanation of the best measured row that fulfils a condition.

    Args:
        bandit: The bandit.
        names: The names of the features.
        told: The measured rows.
        held: The mask of the rows that fulfil the condition.
        offered: The mask of those among them that are on offer.
    """
    arms, loop = RowsAsArms(bandit), bandit.loop
    every = bandit.best(max(1, loop.state.statistics.size))
    known = (every.index >= 0).nonzero().squeeze(-1)
    _, kept = arms.as_told_among(every.index[known], told, held)
    place = known[torch.from_numpy(kept).to(known.device)][:1]
    require(len(place) > 0, "no row that fulfils the condition was measured, so that there is no best one.", StateError)
    best = Recommendation(every.points[place], every.index[place], every.mean[place], every.variance[place])
    return replace(explain(loop, names, (), arms.there(offered), best), uncertainty=math.nan, repeats=0)


def _repeated(arms: RowsAsArms, records: Records, found: Explanation) -> tuple[int, int, str] | None:
    """The row that took most of the last evaluations by the record, which outlives the process, the number of these
    evaluations, and the reason in words."""
    repeated = most_repeated(records.rows)
    if repeated is None:
        return None
    sure = found.rivals == 0 and int(found.best.index[0]) == int(arms.entries([repeated[0]])[0])
    others = "ask for rows that were not measured yet (repeats=False, --no-repeats)"
    return (*repeated, reason_for_repeats(sure, found.noise_share, others))
