"""What a confidence width may depend on, read off a model."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from torchbandits.kernels import kernel_diagonal
from torchbandits.posteriors.conditional import Conditional
from torchbandits.types import Progress


@dataclass(frozen=True)
class Path:
    """What a bandit had added up along its run when it handed out its model, `batch_shape` each.

    `told` pulls, of which its memory may have dropped some; the log-determinants of `Progress`; and the model's own
    log det(V/λ) at that moment, `origin`.
    """

    told: Tensor
    log_det: Tensor
    batched_log_det: Tensor
    batched_log_det_3: Tensor
    origin: Tensor

    def to(self, device: torch.device) -> Path:
        """The same on another device."""
        return Path(*(getattr(self, f.name).to(device) for f in fields(self)))


@torch.no_grad()
def progress_of(model: Any, reads: frozenset[str], num_arms: int) -> Progress:
    r"""The progress of a `BanditModel`, one entry a batch row.

    A model made from data alone has no path: what a run adds up along it starts at log det(V/λ), the batched form with factor 3
    at three times that, since :math:`\log(1 + 3x) \le 3 \log(1 + x)`. A model made from a bandit goes on from the bandit's own.
    What is hallucinated does not count.

    Args:
        model: The model.
        reads: Which of the costlier entries are wanted; the others are NaN.
        num_arms: A, for widths that depend on the number of arms.

    Cost: O(u m²) for `"effective_dimension"`, else that of a posterior at hand.
    """
    posterior, path = model._conditional(), model._path
    log_det = posterior.log_det.expand(model.batch_shape)
    since = model._blocks if path is None else model._blocks[1:]  # the first block is what the bandit knew
    pulls = torch.zeros_like(log_det) if path is None else path.told.expand_as(log_det)
    for block in since:
        pulls = pulls + (block.Y.shape[-1] if block.weights is None else block.weights.sum(dim=-1))
    gained = log_det if path is None else log_det - path.origin
    added = (gained, gained, 3 * gained)
    if path is not None:
        before = (path.log_det, path.batched_log_det, path.batched_log_det_3)
        added = (before[0] + gained, before[1] + gained, before[2] + 3 * gained)
    dimension = torch.full_like(pulls, torch.nan)
    if "effective_dimension" in reads:
        process = model.process()
        told = Conditional.of(process) if model._pending else posterior
        statistics = process.statistics
        dimension = (statistics.weights * told.marginals(statistics.points)[1]).sum(dim=-1) / told.regularization
    X = model.train_inputs[0] if model.arms is None else model.arms
    X = X if X.shape[-2] else X.new_zeros(*X.shape[:-2], 1, X.shape[-1])  # of nothing observed: a point like any other
    kernel = posterior.seen.kernel
    x = model.transform_inputs(X).double()
    finite = posterior.seen.finite
    diagonal = kernel_diagonal(kernel, x) if kernel is not None else finite.diagonal(x)
    return Progress(
        t=pulls + 1,
        pulls=pulls.clamp_min(1),
        num_arms=num_arms,
        dim=x.shape[-1],
        log_det=added[0],
        batched_log_det=added[1],
        batched_log_det_3=added[2],
        effective_dimension=dimension,
        kappa2=diagonal.amax(dim=-1).expand(pulls.shape),
        sketch_loss=torch.zeros_like(pulls),
    )
