"""Ranges of features, of arms alone or with observations: the unit of distances where no kernel is given."""

from __future__ import annotations

import torch
from torch import Tensor

from torchbandits.sources.base import ArmSet, ArmSource
from torchbandits.sources.packed import PackedArms

# Number of arms from which the ranges of features are estimated.
_SAMPLE = 20_000
# Fraction of the arms at either end of a feature that is left out of its range, so that outliers do not stretch it.
_ASIDE = 0.01


def ranges_of(arms: ArmSet) -> Tensor:
    """Range of each feature, `d` or `batch_shape x d`, float64: that of `spans_of`, or 1 for a constant feature."""
    return or_one(spans_of(arms))


def or_one(spans: Tensor) -> Tensor:
    """The spans as ranges, with 1 in place of 0 for features that do not distinguish arms."""
    return torch.where(spans > 0, spans, 1.0)


def spans_of(arms: ArmSet) -> Tensor:
    """Distance between the 1 % and 99 % quantiles of each feature, `d` or `batch_shape x d`, float64, or the whole range where
    that is 0. It is taken from at most 20,000 arms, evenly spaced.

    It is at least a fraction of the whole range, 10⁻⁴ in float64, because distances to an arm that lies further out would lose
    the digits of the others. Bits and counts of fingerprints have spans of 1, without being read.
    """
    if isinstance(arms, PackedArms):
        return torch.ones(arms.dim, dtype=torch.float64, device=arms.device)
    num = arms.shape[-2]
    step = -(-num // _SAMPLE)
    some = torch.arange(0, num, step, device=arms.device)
    x = (arms.points(some.expand(*arms.shape[:-2], -1)) if isinstance(arms, ArmSource) else arms[..., some, :]).double()
    # Thousands of features are sorted three times as fast where the numbers of each are contiguous.
    ordered, aside = x.mT.contiguous().sort(dim=-1).values, int(_ASIDE * x.shape[-2])
    middle = ordered[..., -1 - aside] - ordered[..., aside]
    whole = ordered[..., -1] - ordered[..., 0]
    return torch.where(middle > 0, torch.maximum(middle, whole * torch.finfo(arms.dtype).eps ** 0.25), whole)


def spans_among(points: Tensor, known: Tensor) -> Tensor:
    """The range of each feature among the known points, `batch_shape x d`; 0 without any. Arguments are as in `spans_with`."""
    if not points.shape[-2]:
        return points.sum(dim=-2)
    low, high = (torch.where(known.unsqueeze(-1), points, sign * torch.inf) for sign in (1, -1))
    return (high.amax(dim=-2) - low.amin(dim=-2)).clamp_min(0)


def limited(spans: Tensor, limits: Tensor | None, points: Tensor, known: Tensor) -> Tensor:
    """The spans, `batch_shape x d`, of which those of the first features are at most the larger one of `limits`
    (`batch_shape x c`) and the range among the known points. `points` and `known` are as in `spans_with`."""
    if limits is None:
        return spans
    c = limits.shape[-1]
    most = torch.maximum(limits.to(spans), spans_among(points, known)[..., :c])
    return torch.cat([torch.minimum(spans[..., :c], most), spans[..., c:]], dim=-1)


def spans_with(arms: ArmSet, points: Tensor, known: Tensor) -> Tensor:
    """`spans_of` the arms. Features with the same value in all arms take the range of arms and further points together.

    All arms of one context share its features, whose range is only known from observations in other contexts.

    Args:
        arms: Arms, the first of which gives the shared value.
        points: `batch_shape x p x d`.
        known: `batch_shape x p` booleans, False for points to be ignored.

    Returns:
        `batch_shape x d`.
    """
    shape, spans = points.shape[:-2], spans_of(arms)
    zero = torch.zeros(*arms.shape[:-2], 1, dtype=torch.int64, device=arms.device)
    first = (arms.points(zero) if isinstance(arms, ArmSource) else arms[..., :1, :]).double()
    every = torch.cat([first.expand(*shape, 1, -1), torch.where(known.unsqueeze(-1), points, first)], dim=-2)
    return torch.where(spans > 0, spans, every.amax(dim=-2) - every.amin(dim=-2))
