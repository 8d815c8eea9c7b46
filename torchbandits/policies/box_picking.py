"""Selection in a box: one maximisation of the score, or of a draw of the posterior, per pick."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn.functional import pad

from torchbandits.batching import BatchRule, Repeat
from torchbandits.embeddings import FeatureMap, Spectrum
from torchbandits.errors import UnsupportedError, require
from torchbandits.gradients import without_gradients
from torchbandits.optimize import optimize_continuous
from torchbandits.policies.picking import frozen_batch, is_users_own, room_for, scorer
from torchbandits.policies.state import BoxState
from torchbandits.posteriors import SamplePaths
from torchbandits.scores import UCB, MostProbable, PerCost, PosteriorDraw, Score, TopBoundary
from torchbandits.starts import Start
from torchbandits.streams import copies_of
from torchbandits.types import Evidence, Selection
from torchbandits.widths import Width

# Number of pulled points, those with the highest means, that are added to the sweep of each search.
_PULLED = 64


def check_for_box(
    score: Score | PosteriorDraw, width: Width, rule: BatchRule, spectrum: Spectrum | None, features: FeatureMap | None
) -> None:
    """Check that no ingredient needs a finite set of arms.

    Raises:
        UnsupportedError: For such an ingredient; the message names the alternative.
    """
    require(
        not isinstance(score, PerCost),
        "a score per cost needs the costs of arms, and a box has none: pass arms.",
        UnsupportedError,
    )
    require(
        not isinstance(score, MostProbable),
        "the probability that one point of a box is the best is 0: pass arms.",
        UnsupportedError,
    )
    require(
        not isinstance(score, TopBoundary),
        "the k best points of a box can't be separated from points that are arbitrarily close: pass arms.",
        UnsupportedError,
    )
    if "num_arms" in width.reads:
        # A class of the user's own reads everything unless it says otherwise.
        if is_users_own(width):
            counts = "may count"
            remedy = "give it a property `reads` that returns the optional quantities that it needs, frozenset() for none."
        else:
            counts = "counts"
            remedy = (
                "pass width=widths.SrinivasCompact(delta, a, b, r) with the constants of kernel and box, or "
                "widths.Constant(2.0)."
            )
        raise UnsupportedError(
            f"the width {type(width).__name__} {counts} the arms of a finite set, and a box has no number of them: {remedy}"
        )
    require(
        not isinstance(score, PosteriorDraw) or features is not None or spectrum is not None,
        "draws of the posterior in a box are known for RBF and Matérn kernels on all features (scaled or not) and for "
        "embedding='qff' or 'rff': use a policy with a score, such as gp_ucb, or pass arms.",
        UnsupportedError,
    )
    rule.check_box()


@without_gradients
def pick_in_box(
    state: BoxState, score: Score | PosteriorDraw, rule: BatchRule, width: Tensor, initial: Start | None, limit: Tensor | None
) -> tuple[Selection, Evidence]:
    """Select the next batch, and return it with its `Evidence`. The state is unchanged; `Box.find_` makes the points arms.

    Args:
        state: State of a box. Its pending picks are hallucinated; draws of the posterior ignore them.
        score: Acquisition value of a point.
        rule: Rule that ends a batch.
        width: `batch_shape`, frozen.
        initial: Rule for the first picks, or None.
        limit: `batch_shape`, maximum number of picks of each row.

    Cost: O((num_raw + 64) m²) per pick for two sweeps, plus the local ascents.
    """
    box, shape = state.box, state.rows.batch_shape
    remaining, twins = room_for(state, rule.max_batch_size, limit), copies_of(state.generators)
    first = torch.full((*shape, 0, box.corners.shape[-1]), torch.nan, dtype=torch.float64, device=box.corners.device)
    if initial is not None:
        first = initial.points(box.corners, (state.told + state.pending_counts.sum(dim=-1)).cpu(), remaining, twins)
    opening = ~first.isnan().any(dim=-1)
    remaining = remaining.to(opening.device).masked_fill(opening.any(dim=-1), 0)
    points, mask, values = _search(state, score, rule, width, remaining, twins)
    wide = max(mask.shape[-1], opening.shape[-1])
    first, points = (pad(x, (0, 0, 0, wide - x.shape[-2])) for x in (first.nan_to_num(0.0), points))
    opening, mask, values = (pad(x, (0, wide - x.shape[-1])) for x in (opening, mask, values))
    points, mask = torch.where(opening.unsqueeze(-1), first, points), opening | mask
    index = box.places(points, mask, state.pending_index)
    points = torch.where(mask.unsqueeze(-1), points, state.rows.arms[..., :1, :])
    start = scorer(state, UCB() if isinstance(score, PosteriorDraw) else score, width, None)(points)
    drawn = isinstance(score, PosteriorDraw) & mask & ~opening
    states = tuple(twin.get_state() for twin in twins)
    evidence = Evidence(torch.where(drawn, values, start), state.posterior.leverage(points), width, states)
    return Selection(points, index, mask), evidence


def _search(
    state: BoxState,
    score: Score | PosteriorDraw,
    rule: BatchRule,
    width: Tensor,
    remaining: Tensor,
    twins: Sequence[torch.Generator],
) -> tuple[Tensor, Tensor, Tensor]:
    """Search for up to `remaining` points one after the other. Returns the points `batch_shape x q x d`, the mask of the points
    that are picks, and their scores at the time of the pick."""
    posterior, corners = state.posterior, state.box.corners
    known, waiting, counts = _best_pulled(state), posterior.pending_points, posterior.pending
    points, mask, values = [corners[..., :0, :]], [remaining.new_zeros((*remaining.shape, 0)).bool()], [corners[..., 0, :0]]
    frozen = frozen_batch(state, rule)
    spent, ended = torch.zeros_like(width), torch.zeros_like(remaining, dtype=torch.bool)
    for place in range(int(remaining.max()) if remaining.numel() else 0):
        live = (place < remaining) & ~ended
        if not bool(live.any()):
            break
        # Rows whose batch has ended use a spare generator, so that the draws of a row do not depend on the other rows.
        drawing = [twin if on else torch.Generator() for twin, on in zip(twins, live.reshape(-1).tolist(), strict=True)]
        pending = posterior.hallucinated(waiting, counts, frozen=frozen)
        function = (
            _path(state, score, width, drawing) if isinstance(score, PosteriorDraw) else scorer(state, score, width, pending)
        )
        x, value = optimize_continuous(function, corners, points=known, generator=drawing)
        x = x.unsqueeze(-2)
        points, mask, values = [*points, x], [*mask, live.unsqueeze(-1)], [*values, value.unsqueeze(-1)]
        if isinstance(score, PosteriorDraw):
            continue
        if isinstance(rule, Repeat):
            none, start = torch.zeros_like(remaining).unsqueeze(-1), posterior.leverage(x)
            times = rule.repeated(none, start, torch.where(live, remaining, 0)) >= 0
            return x.expand(*times.shape, -1), times, value.unsqueeze(-1).expand(times.shape)
        assert rule.budget is not None
        if rule.budget < math.inf:
            start, now = posterior.leverage(x), posterior.marginals(x, pending).variance / posterior.regularization
            spent = spent + rule.spends(start, now).squeeze(-1)
            # The pick that exceeds the budget is the last of the batch.
            ended = ended | (spent > rule.budget) | (now.squeeze(-1) <= 0)
        waiting = torch.cat([waiting, x], dim=-2)
        counts = torch.cat([counts, live.double().unsqueeze(-1)], dim=-1)
    return torch.cat(points, dim=-2), torch.cat(mask, dim=-1), torch.cat(values, dim=-1)


def _path(
    state: BoxState, score: PosteriorDraw, width: Tensor, drawing: Sequence[torch.Generator]
) -> Callable[[Tensor], Tensor]:
    """One draw of the posterior per batch row, as a function of points."""
    paths = SamplePaths.draw(state.posterior, 1, drawing, num_features=score.num_features, width=width)
    return lambda points: paths(points).squeeze(-2)


def _best_pulled(state: BoxState) -> Tensor | None:
    """The pulled points with the highest means, `batch_shape x p x d`, NaN where padded; None before the first pull."""
    statistics = state.statistics
    if not statistics.size:
        return None
    mean = state.box.row_mean()
    top = mean.topk(min(_PULLED, statistics.size), dim=-1)
    return torch.where((top.values > -torch.inf).unsqueeze(-1), statistics.at(top.indices), torch.nan)
