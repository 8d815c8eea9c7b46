"""All private names of BoTorch and GPyTorch that the package uses; they have no public equivalent."""

from __future__ import annotations

from typing import Any

import gpytorch
import torch
from torch import Tensor


def log_improvement(z: Tensor) -> Tensor:
    """log(φ(z) + z Φ(z)), accurate and differentiable in the far tail, shaped like `z`."""
    from botorch.acquisition.analytic import _log_ei_helper  # noqa: PLC0415 - BoTorch takes a second to load

    value: Tensor = _log_ei_helper(z)
    return value


def is_affine(outcome_transform: Any) -> bool:
    """Whether a BoTorch outcome transform is affine, so that bounds of transformed rewards are bounds of the rewards."""
    return bool(outcome_transform._is_linear)


def baseline_without_pending(acq_function: Any) -> Tensor:
    """The baseline of an incremental `qLogNoisyExpectedImprovement`; its `X_baseline` ends with the pending points."""
    baseline: Tensor = acq_function._X_baseline
    return baseline


def own_batch_shape(kernel: gpytorch.kernels.Kernel) -> torch.Size:
    """Leading dimensions of the kernel's own parameters; `batch_shape` has those of its parts too."""
    return kernel._batch_shape
