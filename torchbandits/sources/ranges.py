"""The range of each feature, the default unit of distances between arms."""

from __future__ import annotations

import torch
from torch import Tensor

from torchbandits.sources.base import ArmSet, ArmSource

# Number of arms from which the ranges of features are estimated.
_SAMPLE = 20_000
# Fraction of the arms at either end of a feature that is left out of its range, so that outliers do not stretch it.
_ASIDE = 0.01


def ranges_of(arms: ArmSet) -> Tensor:
    """The range of each feature, `d` or `batch_shape x d`, float64: the distance between the 1 % and 99 % quantiles, the whole
    range where that is 0, and 1 for a constant feature, which does not distinguish arms. At most 20,000 evenly spaced arms are
    used.

    The result is at least a fraction of the whole range, 10⁻⁴ in float64, because distances to an arm that lies further out
    would lose the digits of the others.
    """
    num = arms.shape[-2]
    step = -(-num // _SAMPLE)
    some = torch.arange(0, num, step, device=arms.device)
    x = (arms.points(some.expand(*arms.shape[:-2], -1)) if isinstance(arms, ArmSource) else arms[..., some, :]).double()
    ordered, aside = x.sort(dim=-2).values, int(_ASIDE * x.shape[-2])
    middle = ordered[..., -1 - aside, :] - ordered[..., aside, :]
    whole = ordered[..., -1, :] - ordered[..., 0, :]
    ranges = torch.where(middle > 0, torch.maximum(middle, whole * torch.finfo(arms.dtype).eps ** 0.25), whole)
    return torch.where(ranges > 0, ranges, 1.0)
