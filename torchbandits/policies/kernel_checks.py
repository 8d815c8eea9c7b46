"""What a kernel must be able to do on the arms of a run."""

from __future__ import annotations

import copy

import gpytorch
import torch
from torch import Tensor

from torchbandits.embeddings import kernel_diagonal
from torchbandits.errors import NonFiniteError, NumericalError, ShapeError, require
from torchbandits.sources import ArmSet, ArmSource

_RESOLVED = 10  # multiples of rounding that a leverage of a pulled arm must be apart


def check_kernel(kernel: gpytorch.kernels.Kernel, arms: ArmSet, batch_shape: torch.Size) -> None:
    """Batch shapes, and one kernel value, so that a kernel for other features is refused at once.

    Raises:
        ShapeError: If the kernel is made for other batch rows or features.
        NonFiniteError: If its value is NaN or infinite.
    """
    try:
        torch.broadcast_shapes(batch_shape, kernel.batch_shape)
    except RuntimeError as error:
        raise ShapeError(
            f"the kernel's batch shape {tuple(kernel.batch_shape)} does not broadcast with the batch shape "
            f"{tuple(batch_shape)} of the arms and generators."
        ) from error
    point = _first(arms)
    try:
        value = kernel_diagonal(copy.deepcopy(kernel).to(point), point)
    except (RuntimeError, IndexError) as error:
        expected = getattr(kernel, "ard_num_dims", None)
        raise ShapeError(
            f"the kernel ({type(kernel).__name__}, made for {expected or 'another number of'} features) can't be "
            f"evaluated on arms with {arms.shape[-1]} features: {error}"
        ) from error
    require(
        bool(torch.isfinite(value).all()),
        "the kernel is NaN or infinite on the arms: check its hyper-parameters.",
        NonFiniteError,
    )


def check_resolution(kernel: gpytorch.kernels.Kernel, arms: ArmSet, regularization: float) -> None:
    """Whether float64 tells the leverages apart that a dictionary is drawn by: those of pulled arms are differences of
    numbers of the size of k(x, x)/λ.

    Raises:
        NumericalError: If k(x, x)/λ is so large that they are rounding.
    """
    point = _first(arms)
    largest = float(kernel_diagonal(copy.deepcopy(kernel).to(point), point).amax())
    least = _RESOLVED * torch.finfo(torch.float64).eps * largest
    require(
        regularization >= least,
        f"regularization (λ, by default noise_std²) is {regularization:.1e}: beside k(x, x) = {largest:.3g} float64 can't tell "
        f"leverages apart below λ = {least:.1e}. Pass a larger noise_std or regularization=, or use an exact policy.",
        NumericalError,
    )


def _first(arms: ArmSet) -> Tensor:
    """One arm, `... x 1 x d`."""
    return arms.chunk(slice(0, 1)) if isinstance(arms, ArmSource) else arms[..., :1, :]
