"""Noise added to expected rewards, drawn from one generator per batch row."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from torchbandits.checks import check_choice, is_finite
from torchbandits.display import kind
from torchbandits.environments.base import Environment
from torchbandits.errors import ArgumentError, ArmIndexError, ShapeError, require

NOISES = ("gaussian", "uniform")


def check_noise(noise_std: float, noise: str) -> None:
    """Refuse a negative or non-finite `noise_std` and an unknown kind of noise."""
    require(
        is_finite(noise_std) and noise_std >= 0,
        f"noise_std must be a finite number that is not negative, got {noise_std}.",
    )
    check_choice("noise", noise, NOISES)


def noisy_rewards(environment: Environment, index: Tensor, generators: Sequence[torch.Generator], noise: str) -> Tensor:
    """Expected rewards of the picks plus noise.

    Row r draws one number per pick from `generators[r]`, in the order of its picks, in float64 on the CPU. Other rows, the
    padding and the device of the arms do not affect these numbers.

    Args:
        environment: Source of the expected rewards and of `noise_std`: the standard deviation of Gaussian noise, or L of
            noise uniform on [−L, L].
        index: `batch_shape x q`, −1 for a place that is not pulled.
        generators: One CPU generator per row, in row-major order.
        noise: The kind of noise.

    Returns:
        `batch_shape x q` rewards; NaN where the index is −1.
    """
    draws = row_draws(environment, index, generators, noise)
    scale, shift = (1.0, 0.0) if noise == "gaussian" else (2.0, 1.0)
    expected = environment.expected(index)
    return expected + ((draws * scale - shift) * environment.noise_std).to(expected)


def row_draws(environment: Environment, index: Tensor, generators: Sequence[torch.Generator], noise: str) -> Tensor:
    """One number per pick, of the shape of `index`, float64 on the CPU: standard normal for `"gaussian"`, in [0, 1) for
    `"uniform"`; 0 where the index is −1. Rows as in `noisy_rewards`."""
    check_index(environment, index)
    # The grouping of draws into rows is the batch shape, so a 1-d index is one row.
    mask = (index >= 0).reshape(index.shape[:-1].numel(), index.shape[-1]).cpu()
    check_generators(generators)
    if len(generators) != mask.shape[0]:
        raise ShapeError(
            f"Sampling {tuple(index.shape)} picks needs one generator per row, {mask.shape[0]}, got {len(generators)}."
        )
    counts = mask.sum(dim=-1).tolist()
    draws = torch.cat([_draw(noise, count, generator) for count, generator in zip(counts, generators, strict=True)])
    values = draws
    if len(draws) < mask.numel():
        values = torch.zeros(mask.shape, dtype=torch.float64)
        values[mask] = draws
    return values.reshape(index.shape)


def check_generators(generators: object) -> None:
    """Refuse anything but a list of generators."""
    good = isinstance(generators, Sequence) and all(isinstance(g, torch.Generator) for g in generators)
    require(good, f"generators must be a list of torch.Generator, one per batch row, got {generators!r:.60}.")


def check_index(environment: Environment, index: Tensor) -> None:
    """Refuse an index unless it is an integer tensor `batch_shape x q` of arms or −1."""
    if not isinstance(index, Tensor) or index.dtype not in (torch.int64, torch.int32) or index.ndim < 1:
        raise ShapeError(f"index must be an integer tensor of shape batch_shape x q, got {kind(index)}.")
    num_arms = environment.arms.shape[-2]
    outside = (index < -1) | (index >= num_arms)
    if outside.any():
        raise ArmIndexError(f"Arm indices must be from 0 to {num_arms - 1} (or −1), got {int(index[outside][0])}.")


def _draw(noise: str, count: int, generator: torch.Generator) -> Tensor:
    """Standard normals, or uniform numbers in [0, 1)."""
    if generator.device.type != "cpu":
        raise ArgumentError(f"Noise is drawn from CPU generators, got one on {generator.device}.")
    if noise == "gaussian":
        return torch.randn(count, generator=generator, dtype=torch.float64)
    return torch.rand(count, generator=generator, dtype=torch.float64)
