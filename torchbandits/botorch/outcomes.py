"""The posteriors of several outcomes as one BoTorch model."""

from __future__ import annotations

import math

import torch
from botorch.models.model import ModelList

from torchbandits.botorch.model import BanditModel
from torchbandits.errors import UnsupportedError, require
from torchbandits.kernels import kernel_row
from torchbandits.policies.composed import noise_share
from torchbandits.policies.joint import Joint
from torchbandits.policies.state import TableState


@torch.no_grad()
def models_of_outcomes(policy: Joint, state: TableState) -> ModelList:
    """One `BanditModel` per outcome, tabulated on the arms. See `OutcomeBandit.model`.

    Raises:
        UnsupportedError: For several batch rows, and for arms that are read from a source.
    """
    process, shape = state.posterior, state.rows.batch_shape
    one = "a BoTorch model describes one batch row: make an OutcomeBandit with one generator."
    require(len(shape) == 1, one, UnsupportedError)
    message = (
        "a BoTorch model needs its arms in memory, and the arms of this source are read piece by piece: use bandit.posterior."
    )
    require(not state.rows.streamed, message, UnsupportedError)
    statistics, models = process.statistics, []
    rows, mask = process.dictionary_rows() if process.sparse else (None, None)
    arms = state.rows.arms
    for j, (std, lam) in enumerate(zip(policy.noise_stds, policy.regularizations, strict=True)):
        # A fit may have changed λ of the first outcome; the others keep their ratio to it.
        regularization = lam / policy.regularizations[0] * process.regularization
        noise = noise_share(std, lam) * regularization
        told = statistics.mask[j] & (statistics.weights[j] > 0)
        weights = statistics.weights[j][told] * regularization / process.regularization
        dictionary = "all" if rows is None or mask is None else statistics.points[j][rows[j][mask[j]]]
        model = BanditModel(
            statistics.points[j][told],
            (statistics.sums[j] / statistics.weights[j])[told].unsqueeze(-1),
            (noise / weights).unsqueeze(-1),
            kernel=kernel_row(process.kernel, shape, (j,)),
            noise_std=math.sqrt(noise),
            regularization=regularization,
            dictionary=dictionary,
            prior_mean=process.prior_mean,
        )
        model.scale_watch = None  # the bandit has checked its scales
        models.append(model.tabulate_(arms[j] if arms.dim() > 2 else arms))
    return ModelList(*models)
