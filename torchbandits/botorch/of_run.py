"""The posterior of a run as a BoTorch model."""

from __future__ import annotations

import copy
import math

import torch

from torchbandits.botorch.data import Block
from torchbandits.botorch.model import BanditModel, Path
from torchbandits.errors import UnsupportedError, require
from torchbandits.policies import AdaptiveUCB, Composed, State
from torchbandits.policies.base import Policy
from torchbandits.policies.composed import noise_share
from torchbandits.policies.phased import Phased
from torchbandits.policies.state import TableState
from torchbandits.posteriors import GaussianProcess


@torch.no_grad()
def model_of_run(policy: Policy, state: State) -> BanditModel:
    """The posterior of a state as a BoTorch model, with the run's progress for path-dependent widths, and its arms.

    Each distinct point is one observation, the average of its rewards weighted by its number of pulls. No tensor that is
    written to is shared. See `Bandit.model`.

    Raises:
        UnsupportedError: For a state without one Gaussian process for all arms.

    Cost: as for a posterior from data, O(u³) for an exact one; a sweep over the arms when they are first scored.
    """
    process = state.process
    if not isinstance(process, GaussianProcess):
        raise UnsupportedError("the cells of pi_gp_ucb have a posterior each: use gp_ucb or batch_bkb to have a BoTorch model.")
    require(
        process.sketch is None,
        "the posterior of soful is a sketch, which is no Gaussian process: use lin_ucb, whose posterior it approximates.",
        UnsupportedError,
    )
    require(
        not state.rows.streamed,
        "a BoTorch model tabulates its arms in memory, and these are read piece by piece: use bandit.posterior, which is "
        "callable on any points.",
        UnsupportedError,
    )
    statistics, arms = process.statistics, state.rows.arms
    weights = torch.where(statistics.mask, statistics.weights, 0.0)
    # A padded place repeats the first point of its row, without weight.
    X = torch.where(statistics.mask.unsqueeze(-1), statistics.points, statistics.points[..., :1, :])
    Y = torch.where(weights > 0, statistics.sums / weights.clamp_min(1e-300), 0.0)
    lam = process.regularization
    model = BanditModel(
        X,
        Y.unsqueeze(-1),
        kernel=process.kernel,
        noise_std=math.sqrt(lam * _noise_share(policy)),
        regularization=lam,
        prior_mean=process.prior_mean,
    )
    for name, parameter in model.covar_module.named_parameters():
        parameter.requires_grad_(name in process.fitted)
    model._blocks = (Block(X, Y, weights=weights),)
    model._finite = (copy.deepcopy(process.finite),)
    if process.sparse:
        rows, mask = process.dictionary_rows()
        model._dictionary = model._drawn = statistics.at(torch.where(mask, rows, rows[..., :1]))
    if isinstance(state, TableState):
        shape = state.rows.batch_shape
        if shape:
            model._arms = arms.expand(*shape, *arms.shape[-2:])
        else:
            model._tabulate(arms)
    origin = model._conditional().log_det.expand(state.log_det.shape)
    model._path = Path(state.told, state.log_det, state.batched_log_det, state.batched_log_det_3, origin)
    return model


def _noise_share(policy: Policy) -> float:
    own = policy.engine if isinstance(policy, Phased) else policy
    assert isinstance(own, Composed | AdaptiveUCB)
    return noise_share(own.noise_std, own.regularization)
