"""The domain of a partition: the arms of every batch row, their box and its cover, and the kernel of every row."""

from __future__ import annotations

import copy

import gpytorch
import torch
from torch import Tensor, nn

from torchbandits.posteriors.cover import Cover
from torchbandits.types import Arms


class Domain(nn.Module):
    """Arms, cover and kernel, indexed by flat lists of batch rows and arms.

    Args:
        kernel: Any GPyTorch kernel; deep-copied.
        arms: `A x d` or `batch_shape x A x d`; stored by reference, not saved.
        first: Lowest equal arm of each arm, or None if all differ.
        batch_shape: Leading dimensions.
        nu: Smoothness of the kernel.
        horizon: Number of pulls to come.
        bounds: `2 x d` corners of the box, or None for the bounding box of the arms (of each batch row).
    """

    arms: Tensor
    first: Tensor | None

    def __init__(
        self,
        kernel: gpytorch.kernels.Kernel,
        arms: Arms,
        first: Tensor | None,
        batch_shape: torch.Size,
        nu: float,
        horizon: int,
        bounds: Tensor | None,
    ) -> None:
        super().__init__()
        self.kernel = copy.deepcopy(kernel).to(dtype=torch.float64, device=arms.device)
        self.kernel.requires_grad_(False)
        self.batch_shape = torch.Size(batch_shape)
        arms, first = self._rows(arms, 2), None if first is None else self._rows(first, 1)
        self.register_buffer("arms", arms, persistent=False)
        self.register_buffer("first", first if first is None else first[: arms.shape[0]], persistent=False)
        box = bounds.to(arms.device) if bounds is not None else torch.stack([self.arms.amin(1), self.arms.amax(1)])
        lower, upper = box[0].reshape(-1, self.dim), box[1].reshape(-1, self.dim)
        self.cover = Cover(lower, upper, nu, horizon, torch.finfo(arms.dtype).eps)

    @property
    def dim(self) -> int:
        """Number of features d."""
        return self.arms.shape[-1]

    @property
    def rows(self) -> int:
        """Number of batch rows B."""
        return self.batch_shape.numel()

    @property
    def shared(self) -> bool:
        """Whether all batch rows have the same arms and the same kernel."""
        return self.arms.shape[0] == 1 and not self.kernel.batch_shape

    def distinct(self) -> Tensor:
        """Whether each arm is the first of its exact duplicates, `1 x A` or `B x A` booleans."""
        own = torch.arange(self.arms.shape[-2], device=self.arms.device)
        return (own >= 0).unsqueeze(0) if self.first is None else self.first == own

    def points(self, row: Tensor, arm: Tensor) -> Tensor:
        """Features of arms of batch rows (broadcast against each other), float64."""
        return (self.arms[0, arm] if self.arms.shape[0] == 1 else self.arms[row, arm]).double()

    def kernel_of(self, row: Tensor) -> gpytorch.kernels.Kernel:
        """The kernel of each of `k` batch rows, as one kernel of batch shape `k`."""
        if not self.kernel.batch_shape:
            return self.kernel
        return self.kernel.expand_batch(self.batch_shape)[torch.unravel_index(row, self.batch_shape)]

    def _rows(self, tensor: Tensor, trailing: int) -> Tensor:
        """The tensor with one leading dimension: 1 if all batch rows share it, otherwise B."""
        leading = tensor.dim() - trailing
        # True without batch dimensions, and for a tensor expanded over all of them, whose strides are 0.
        if not any(tensor.stride()[:leading]):
            return tensor[(0,) * leading].unsqueeze(0)
        own = tensor.shape[leading:]
        return tensor.expand(*self.batch_shape, *own).reshape(-1, *own)
