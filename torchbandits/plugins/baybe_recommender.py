"""A BayBE recommender for discrete search spaces."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from torchbandits.bandit import Bandit
from torchbandits.checks import is_whole
from torchbandits.errors import UnsupportedError, require
from torchbandits.plugins.pending import least_pending
from torchbandits.policies import Policy, auto

try:
    from baybe.exceptions import NotEnoughPointsLeftError
    from baybe.recommenders.pure.base import PureRecommender
    from baybe.searchspace import SearchSpaceType
    from baybe.serialization.core import converter
except ModuleNotFoundError:  # the constructor names the package to install
    PureRecommender, SearchSpaceType, converter = object, None, None

if TYPE_CHECKING:
    import pandas as pd
    from baybe.objectives.base import Objective
    from baybe.searchspace import SearchSpace


class BanditRecommender(PureRecommender):
    """Recommend candidates of a discrete BayBE search space by a policy of this package.

    BayBE keeps the campaign, its measurements and its encodings; the recommender keeps no state between calls. Each call makes
    a bandit on the candidates on offer, tells it all measurements, and asks. No experiment is twice in a batch. The objective
    has one target.

    Args:
        policy: As for `Bandit`; `auto()` by default.
        seed: Seed of the policy's random numbers.

    Raises:
        UnsupportedError: If BayBE is not installed; in `recommend`, for continuous and hybrid search spaces, constraints on
            batches, and objectives of several targets; in BayBE's `to_json`, with a policy or a seed, which it would lose.
        NotEnoughPointsLeftError: BayBE's own, if fewer experiments are left than requested.

    Cost: O(A d) per call for the features of A candidates, and a fit to the measurements.
    """

    compatibility = None if SearchSpaceType is None else SearchSpaceType.DISCRETE

    def __init__(self, policy: Policy | None = None, *, seed: int = 0) -> None:
        needed = 'BanditRecommender needs BayBE: pip install "torchbandits[baybe]".'
        require(SearchSpaceType is not None, needed, UnsupportedError)
        require(policy is None or isinstance(policy, Policy), f"policy must be a torchbandits policy, got {policy!r}.")
        require(is_whole(seed, 0), f"seed must be a whole number ≥ 0, got {seed!r}.")
        super().__init__()
        self.policy = auto() if policy is None else policy
        self.seed = int(seed)
        self.by_default = policy is None and seed == 0

    def recommend(
        self,
        batch_size: int,
        searchspace: SearchSpace,
        objective: Objective | None = None,
        measurements: pd.DataFrame | None = None,
        pending_experiments: pd.DataFrame | None = None,
    ) -> pd.DataFrame:
        """The next experiments, rows of the search space; see BayBE's `RecommenderProtocol`."""
        discrete = searchspace.type is SearchSpaceType.DISCRETE
        require(discrete, "BanditRecommender chooses among candidates: make every parameter discrete.", UnsupportedError)
        batches = "BanditRecommender knows no constraints on a batch: leave them out of the search space."
        require(not searchspace.discrete.constraints_batch, batches, UnsupportedError)
        if objective is not None:
            _check_one_target(objective)
        offered_exp, offered = searchspace.discrete.get_candidates()
        if len(offered) < batch_size:
            message = f"{batch_size} experiments were requested, and only {len(offered)} are left to recommend."
            raise NotEnoughPointsLeftError(message)
        points = torch.from_numpy(offered.to_numpy(dtype=np.float64))
        waiting = self._encoded(searchspace, offered, pending_experiments)
        bandit = Bandit(self.policy, torch.cat([points, waiting]), generator=torch.Generator().manual_seed(self.seed))
        if measurements is not None and len(measurements):
            require(objective is not None, "measurements need an objective: pass objective=.")
            self._tell(bandit, self._encoded(searchspace, offered, measurements), rewards(objective, measurements))
        if len(waiting):
            bandit.plan(torch.arange(len(points), len(points) + len(waiting)))
        left, rows = torch.arange(len(points) + len(waiting)) < len(points), list[int]()
        for _ in range(batch_size):
            picked = bandit.ask(more=1, available=left).index
            # A policy such as `auto` pulls an arm once at a time, and those that are left may all be pending.
            if len(picked) == len(waiting) + len(rows):
                picked = bandit.plan([least_pending(bandit, left)]).index
            rows.append(int(picked[-1]))
            left[rows[-1]] = False
        return offered_exp.iloc[rows]

    @staticmethod
    def _encoded(searchspace: SearchSpace, offered: pd.DataFrame, experiments: pd.DataFrame | None) -> torch.Tensor:
        """Features of experiments, `n x d`, in the columns of the candidates."""
        if experiments is None or not len(experiments):
            return torch.empty(0, offered.shape[1], dtype=torch.float64)
        names = [parameter.name for parameter in searchspace.parameters]
        return torch.from_numpy(searchspace.transform(experiments[names])[list(offered.columns)].to_numpy(dtype=np.float64))

    @staticmethod
    def _tell(bandit: Bandit, points: torch.Tensor, values: torch.Tensor) -> None:
        """Tell measurements, those of equal points as counts and sums."""
        distinct, place = torch.unique(points, dim=0, return_inverse=True)
        zeros = torch.zeros(len(distinct), dtype=torch.float64)
        counts, sums, squares = (zeros.index_add(0, place, v) for v in (torch.ones_like(values), values, values**2))
        bandit.observe(distinct, counts, sums, squares)


def rewards(objective: Any, measurements: pd.DataFrame) -> torch.Tensor:
    """The objective of measurements, `n`, with signs so that larger is better."""
    _check_one_target(objective)
    # BayBE's transformation includes the sign of the target: targets to minimise are negated.
    transformed = objective.transform(measurements[[objective.targets[0].name]], allow_extra=True)
    return torch.from_numpy(transformed.to_numpy(dtype=np.float64)[:, 0].copy())


def _check_one_target(objective: Any) -> None:
    message = "BanditRecommender supports one target: combine several targets into one before."
    require(len(objective.targets) == 1, message, UnsupportedError)


def _as_json(recommender: BanditRecommender) -> dict[str, Any]:
    """No entries, from which BayBE makes a recommender with the default policy and seed."""
    message = (
        "a BanditRecommender with a policy or a seed can't be written as JSON: pickle the campaign, or write one with "
        "BanditRecommender()."
    )
    require(recommender.by_default, message, UnsupportedError)
    return {}


if converter is not None:  # otherwise BayBE writes the fields of its own base class, and the policy is lost
    converter.register_unstructure_hook(BanditRecommender, _as_json)
