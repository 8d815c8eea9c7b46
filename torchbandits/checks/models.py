"""The arguments that policies share: kernel, λ, prior mean and memory; and the kernel on the arms of a run."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import gpytorch
import torch
from torch import Tensor

from torchbandits.checks.tensors import as_tensor
from torchbandits.checks.values import is_finite, is_whole, non_negative
from torchbandits.errors import NonFiniteError, NumericalError, ShapeError, UnsupportedError, require
from torchbandits.shapes import broadcast_shapes

_RESOLVED = 10  # smallest difference of the leverages of pulled arms, in multiples of the rounding error
Diagonal = Callable[[gpytorch.kernels.Kernel, Tensor], Tensor]


def check_kernel(value: Any) -> None:
    """Refuse an object that is not a GPyTorch kernel, and a kernel that is an approximation of another one."""
    kernel = isinstance(value, gpytorch.kernels.Kernel)
    require(kernel, f"kernel must be a gpytorch.kernels.Kernel, such as RBFKernel(), got {type(value).__name__}.")
    approximate = any(isinstance(part, gpytorch.kernels.InducingPointKernel) for part in value.modules())
    require(
        not approximate,
        "kernel is or contains an InducingPointKernel, which approximates its base_kernel for a GPyTorch model: pass the "
        "base_kernel. bkb and batch_bkb choose inducing points from the arms pulled, and gp_ucb needs none.",
        UnsupportedError,
    )


def check_model(kernel: Any, regularization: Any, prior_mean: Any) -> None:
    """Kernel, λ and prior mean. Raises ArgumentError if one is not what it must be."""
    check_kernel(kernel)
    check_regularization(regularization)
    check_prior_mean(prior_mean)


def check_prior_mean(prior_mean: Any) -> None:
    """Refuse a prior mean that is neither a finite number nor 'estimate'."""
    numeric = isinstance(prior_mean, (int, float)) and is_finite(prior_mean)
    require(
        numeric or (isinstance(prior_mean, str) and prior_mean == "estimate"),
        f"prior_mean must be a finite number or 'estimate', got {prior_mean!r}.",
    )


def check_regularization(regularization: Any, default: str = "noise_std²") -> None:
    """Raises ArgumentError unless λ is one finite number > 0."""
    require(
        is_finite(regularization) and regularization > 0,
        f"regularization (λ, by default {default}) must be finite and > 0, got {regularization}.",
    )


def check_norm_bound(norm_bound: Any, *, optional: bool = False) -> None:
    """Refuse anything but a number ≥ 0 or a tensor of such numbers; also None unless it is optional."""
    if norm_bound is not None or not optional:
        bound = as_tensor("norm_bound", norm_bound, torch.float64)
        good = bool((torch.isfinite(bound) & (bound >= 0)).all())
        require(good, f"norm_bound must be finite and ≥ 0, got {norm_bound}.")


def regularization_of(noise_std: Any, regularization: Any) -> Any:
    """λ as given (it is checked by the policy), or noise_std² by default.

    Raises:
        ArgumentError: For a noise_std that gives no λ > 0.
    """
    if regularization is not None:
        return regularization
    require(
        non_negative("noise_std", noise_std) > 0,
        "noise_std must be > 0, got 0: a posterior without any noise can't be computed. For rewards that repeat exactly pass a "
        "small one, such as 1e-3 of their spread, or regularization= beside noise_std=0.",
    )
    return noise_std**2


def check_memory_budget(memory_budget: Any) -> None:
    """Raises ArgumentError unless it is a number of bytes, or None for the default; 0 keeps nothing."""
    require(
        memory_budget is None or is_whole(memory_budget, 0),
        f"memory_budget must be a whole number of bytes ≥ 0, such as 2 << 30 for 2 GiB, or None, got {memory_budget!r}.",
    )


def check_kernel_on(points: Tensor, kernel: gpytorch.kernels.Kernel, batch_shape: torch.Size, diagonal: Diagonal) -> Tensor:
    """Refuse a kernel that does not fit the arms: its batch shape is compared, and k(x, x) of some of them is computed.

    Args:
        points: The first arm, `... x 1 x d`, or the first n.
        kernel: Kernel of the policy; it is not changed.
        batch_shape: Batch shape of the run.
        diagonal: Computes k(x, x) of points.

    Returns:
        k(x, x) of the points, `... x n`.

    Raises:
        ShapeError: If the kernel is made for other batch rows or features, or for several outputs.
        NonFiniteError: If the arm or the kernel's value is NaN or infinite.
    """
    finite = bool(torch.isfinite(points).all())
    require(finite, "the first arm has a NaN or infinite feature: leave it out, or give it finite ones.", NonFiniteError)
    try:
        broadcast_shapes(batch_shape, kernel.batch_shape)
    except RuntimeError as error:
        raise ShapeError(
            f"the kernel's batch shape {tuple(kernel.batch_shape)} does not broadcast with the batch shape "
            f"{tuple(batch_shape)} of the arms and generators."
        ) from error
    try:
        value = diagonal(copy.deepcopy(kernel).to(points), points)
    except (RuntimeError, IndexError) as error:
        expected = getattr(kernel, "ard_num_dims", None)
        raise ShapeError(
            f"the kernel ({type(kernel).__name__}, made for {expected or 'another number of'} features) can't be "
            f"evaluated on arms with {points.shape[-1]} features: {error}"
        ) from error
    message = (
        f"the kernel ({type(kernel).__name__}) has {value.shape[-1]} values for an arm, and a policy has one reward: give the "
        "arms a feature with the task, and take torchbandits.TaskKernel; or an OutcomeBandit, with a kernel for each outcome."
    )
    require(value.shape[-1] == points.shape[-2], message, ShapeError)
    require(
        bool(torch.isfinite(value).all()),
        "the kernel is NaN or infinite on the arms: check its hyper-parameters.",
        NonFiniteError,
    )
    return value


def check_resolution(point: Tensor, kernel: gpytorch.kernels.Kernel, regularization: float, diagonal: Diagonal) -> None:
    """Refuse a λ so small that float64 cannot resolve the leverages that a dictionary is drawn by.

    Leverages of pulled arms are differences of numbers of the size of k(x, x)/λ.

    Raises:
        NumericalError: If k(x, x)/λ is so large that the differences are rounding errors.
    """
    largest = float(diagonal(copy.deepcopy(kernel).to(point), point).amax())
    least = _RESOLVED * torch.finfo(torch.float64).eps * largest
    require(
        regularization >= least,
        f"regularization (λ, by default noise_std²) is {regularization:.1e}: beside k(x, x) = {largest:.3g} float64 can't tell "
        f"leverages apart below λ = {least:.1e}. Pass a larger noise_std or regularization=, or use an exact policy.",
        NumericalError,
    )
