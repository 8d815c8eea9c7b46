"""All private names of BoTorch and GPyTorch that the package uses, because they have no public equivalent, and the first import
of GPyTorch. The import suppresses the warning of torch 2.14 and later that a dependency of GPyTorch uses `torch.jit.script`."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

with warnings.catch_warnings():
    warnings.filterwarnings("ignore", message="`torch.jit.script` is deprecated", category=FutureWarning)
    import gpytorch

Floats = NDArray[np.float64]


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


def predicted_task(model: Any) -> tuple[int, int]:
    """The column in which a `MultiTaskGP` has the task of each point, and the task that it predicts."""
    return model._task_feature, model._output_tasks[0]


def own_batch_shape(kernel: gpytorch.kernels.Kernel) -> torch.Size:
    """Leading dimensions of the kernel's own parameters; `batch_shape` has those of its parts too."""
    return kernel._batch_shape


def minimize_each(
    descent: Callable[[Floats, Sequence[int]], tuple[Floats, Floats]],
    starts: Floats,
    bounds: Sequence[tuple[float, float]],
    max_iterations: int,
) -> Floats:
    """Minimise independent problems of the same shape by L-BFGS-B, each with its own line search; `p x d`.

    Args:
        descent: Function from points `b x d` and the numbers of their problems to values `b` and gradients `b x d`.
        starts: `p x d`.
        bounds: Bounds of each of the d coordinates.
        max_iterations: Largest number of iterations of each problem.

    BoTorch's batched L-BFGS-B evaluates all problems that have not converged at once. With a version of SciPy that BoTorch does
    not support, the problems are solved one by one.
    """
    import botorch.generation.gen as batched  # noqa: PLC0415 - BoTorch takes a second to load
    from scipy.optimize import minimize  # type: ignore[import-untyped] # noqa: PLC0415

    together = getattr(batched, "fmin_l_bfgs_b_batched", None)
    with batched.threadpool_limits(limits=1, user_api="blas"):  # the linear algebra of L-BFGS-B is small
        if together is not None:
            found: Floats = together(
                lambda x, batch_indices: descent(x, batch_indices),
                starts,
                bounds=bounds,
                maxiter=max_iterations,
                pass_batch_indices=True,
            )[0]
            return found
        ends = []
        for number, start in enumerate(starts):

            def alone(x: Floats, number: int = number) -> tuple[float, Floats]:
                value, gradient = descent(x[None], [number])
                return float(value[0]), gradient[0]

            options = {"maxiter": max_iterations}
            ends.append(minimize(alone, start, jac=True, method="L-BFGS-B", bounds=bounds, options=options).x)
    return np.stack(ends)
