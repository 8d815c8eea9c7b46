"""How much each feature matters to a kernel: its range in lengthscales."""

from __future__ import annotations

import gpytorch
import torch
from torch import Tensor

from torchbandits.explanation.row import Row
from torchbandits.kernels import kernel_diagonal
from torchbandits.sources import ArmSource


def relevance_of(row: Row, *, pulled: bool = False) -> Tensor:
    """(range/ℓ)² of each feature, as fractions of their sum, `d`; NaN for a kernel without lengthscales. The range is that of
    the arms, with `pulled` that of the arms and the points pulled. Where `auto` estimates the kernel, it is 0 for a feature
    with the same value at all points pulled, because the lengthscale is that of the prior."""
    state, place, posterior = row.state, row.place, row.posterior
    d = posterior.statistics.points.shape[-1]
    if posterior.units is not None:
        x = row.points
        ranges = torch.where((x != x[:1]).any(dim=0), posterior.units.features[place], 0.0)
    else:
        arms = _spread(state.rows.source)
        x = arms if arms.dim() == 2 else arms[place]
        if pulled:
            x = torch.cat([x, row.points.to(x)])
        ranges = x.double().amax(dim=0) - x.double().amin(dim=0)
    speeds = _squared_speeds(posterior.kernel, list(range(d)), d)
    if speeds is None:
        return torch.full((d,), torch.nan)
    speed = ranges.square() * speeds.expand(*posterior.batch_shape, d)[place].to(ranges)
    return (speed / speed.sum().clamp_min(1e-300)).cpu()


def _squared_speeds(kernel: gpytorch.kernels.Kernel, features: list[int], d: int) -> Tensor | None:
    """1/ℓ² along each of d features, `batch_shape x d`: summed over the factors of a product, and averaged over the terms of a
    sum, weighted by their variances. 0 for a feature that the kernel does not read; None if a part has no lengthscales.

    Args:
        kernel: The kernel, or a part of it.
        features: The features that it is evaluated on.
        d: Number of features of an arm.
    """
    kernels = gpytorch.kernels
    own = features if kernel.active_dims is None else [features[place] for place in kernel.active_dims.tolist()]
    while isinstance(kernel, kernels.ScaleKernel):
        # It has the active dimensions of its base kernel, and selects them for both.
        kernel = kernel.base_kernel
    if isinstance(kernel, kernels.ConstantKernel):
        return torch.zeros(d, dtype=torch.float64, device=kernel.constant.device)
    if isinstance(kernel, kernels.ProductKernel | kernels.AdditiveKernel):
        parts = [(part, _squared_speeds(part, own, d)) for part in kernel.kernels]
        known = [(part, speeds) for part, speeds in parts if speeds is not None]
        if len(known) < len(parts):
            return None
        if isinstance(kernel, kernels.ProductKernel):
            return torch.stack(torch.broadcast_tensors(*(speeds for _, speeds in known))).sum(dim=0)
        somewhere = known[0][1].new_zeros(1, len(own))
        variances = torch.broadcast_tensors(*(kernel_diagonal(part, somewhere) for part, _ in known))
        terms = torch.broadcast_tensors(*(v * speeds for v, (_, speeds) in zip(variances, known, strict=True)))
        return torch.stack(terms).sum(dim=0) / torch.stack(variances).sum(dim=0)
    # The lengthscale of a periodic kernel is no distance.
    if not kernel.has_lengthscale or isinstance(kernel, kernels.PeriodicKernel) or any(kernel.sub_kernels()):
        return None
    scale = kernel.lengthscale.detach().double().squeeze(-2)
    place = torch.tensor(own, device=scale.device)
    squared = scale.square().reciprocal().expand(*scale.shape[:-1], len(own))
    return scale.new_zeros(*scale.shape[:-1], d).index_add(-1, place, squared)


def _spread(arms: ArmSource) -> Tensor:
    """At most a thousand arms, evenly spaced."""
    index = torch.arange(0, arms.num_arms, -(-arms.num_arms // 1000), device=arms.device)
    return arms.points(index.expand(*arms.shape[:-2], -1))
