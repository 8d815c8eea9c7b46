"""Covariances between tasks, such as campaigns or fidelities: a kernel on the feature that contains the task number."""

from __future__ import annotations

from typing import Any

import gpytorch
import torch
from torch import Tensor

from torchbandits.checks import check_whole
from torchbandits.errors import ArgumentError
from torchbandits.shapes import broadcast_shapes

# Largest distance of a task from a whole number, such as after a transform of the features and its inverse.
_ROUNDED = 1e-3


class TaskKernel(gpytorch.kernels.Kernel):
    r"""Covariances of tasks, to be multiplied by a kernel on the other features (the intrinsic model of coregionalisation).

    .. math:: k(s, t) = b_s b_t + v_s [s = t], \quad v_s > 0

    For two tasks these are all positive definite matrices. Initially the variances are 1 and the correlations 1/2; b and v are
    fitted with the other parameters of the kernel. The product with another kernel needs no further outputscale.

    Args:
        num_tasks: T. The feature that contains the task of an arm has the values 0, 1, … T − 1; other values are an error.
        kwargs: `active_dims=[j]`, the index of this feature, and the other arguments of a GPyTorch kernel.

    This is `gpytorch.kernels.IndexKernel` of rank 1, evaluated densely. Cost: O(n m). Source: Bonilla et al. 2008; Swersky et
    al. 2013 for past campaigns as tasks.
    """

    has_lengthscale = False

    def __init__(self, num_tasks: int, **kwargs: Any) -> None:
        check_whole("num_tasks", num_tasks)
        super().__init__(**kwargs)
        own = torch.ones(*self.batch_shape, num_tasks)
        self.register_parameter("factor", torch.nn.Parameter(own * 0.5**0.5))
        self.register_parameter("raw_variance", torch.nn.Parameter(own.clone()))
        self.register_constraint("raw_variance", gpytorch.constraints.Positive())
        self.initialize(raw_variance=self.raw_variance_constraint.inverse_transform(own * 0.5))

    @property
    def covariance(self) -> Tensor:
        """Covariance matrix of the tasks, `... x T x T`."""
        own = self.raw_variance_constraint.transform(self.raw_variance)
        return self.factor.unsqueeze(-1) * self.factor.unsqueeze(-2) + torch.diag_embed(own)

    def forward(self, x1: Tensor, x2: Tensor, diag: bool = False, **params: Any) -> Tensor:
        """`... x n x m`, or with `diag` the n values of pairs of points."""
        covariance, s, t = self.covariance, self._tasks(x1), self._tasks(x2)
        shape = broadcast_shapes(covariance.shape[:-2], s.shape[:-1], t.shape[:-1])
        T, n, m = covariance.shape[-1], s.shape[-1], t.shape[-1]
        rows = covariance.expand(*shape, T, T).gather(-2, s.expand(*shape, n).unsqueeze(-1).expand(*shape, n, T))
        if diag:
            return rows.gather(-1, t.expand(*shape, n).unsqueeze(-1)).squeeze(-1)
        return rows.gather(-1, t.expand(*shape, m).unsqueeze(-2).expand(*shape, n, m))

    def _tasks(self, x: Tensor) -> Tensor:
        """The tasks of points, `... x n`. They are checked on a device too, where an index out of range ends the process."""
        value, T = x[..., 0], self.factor.shape[-1]
        task = value.round()
        wrong = ((value - task).abs() > _ROUNDED) | (task < 0) | (task >= T)
        if bool(wrong.any()):
            raise ArgumentError(
                f"the task of an arm must be one of 0 to {T - 1}, got {float(value[wrong][0]):.6g}: check that active_dims "
                "names the feature of the task, that this feature was not scaled, and num_tasks."
            )
        return task.long()
