"""The range of each feature: what a distance between arms is measured in, where nobody says."""

from __future__ import annotations

import torch
from torch import Tensor

from torchbandits.sources.base import ArmSet, ArmSource

_SAMPLE = 20_000  # arms that the ranges of features are estimated from
_ASIDE = 0.01  # part of the arms at either end of a feature that is left out of its range: outliers must not stretch it


def ranges_of(arms: ArmSet) -> Tensor:
    """The range of each feature, `d` or `batch_shape x d`, float64: between the 1 % and 99 % quantiles, the whole range where
    that is 0, and 1 for a constant feature, which tells nothing apart. From at most 20,000 arms, evenly spaced.

    It is no smaller than a part of the whole range, 10⁻⁴ in float64: distances to an arm that lies further out would cost the
    others their digits.
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
