"""`BanditRecommender` in BayBE's own campaigns."""

from __future__ import annotations

import pickle
import warnings

import gpytorch
import numpy as np
import pandas as pd
import pytest

import torchbandits as tb
from torchbandits.errors import ArgumentError, UnsupportedError
from torchbandits.plugins import BanditRecommender

pytest.importorskip("baybe")

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from baybe import Campaign
    from baybe.constraints import DiscreteBatchConstraint
    from baybe.exceptions import NotEnoughPointsLeftError
    from baybe.objectives import ParetoObjective
    from baybe.parameters import CategoricalParameter, NumericalContinuousParameter, NumericalDiscreteParameter
    from baybe.recommenders import TwoPhaseMetaRecommender
    from baybe.searchspace import SearchSpace
    from baybe.targets import NumericalTarget

# Warnings of BayBE's dependencies.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")

SPACE = [
    NumericalDiscreteParameter("temperature", list(np.linspace(20, 120, 21))),
    NumericalDiscreteParameter("time", list(np.linspace(1, 5, 9))),
    CategoricalParameter("solvent", ["DMF", "EtOH", "water"]),
]


def measured(plate: pd.DataFrame) -> pd.Series:
    return 60 - 0.01 * (plate["temperature"] - 70) ** 2 - (plate["time"] - 3) ** 2 + 5 * (plate["solvent"] == "DMF")


@pytest.mark.parametrize("minimize", [False, True])
def test_a_campaign_finds_good_experiments(minimize: bool):
    target = NumericalTarget("yield", minimize=minimize)
    campaign = Campaign(SearchSpace.from_product(SPACE), target.to_objective(), BanditRecommender())
    sign = -1 if minimize else 1
    for _ in range(6):
        plate = campaign.recommend(batch_size=4)
        assert len(plate.drop_duplicates()) == 4
        plate["yield"] = sign * measured(plate)
        campaign.add_measurements(plate)
    best = (sign * campaign.measurements["yield"]).max()
    assert best >= np.quantile(measured(campaign.searchspace.discrete.exp_rep), 0.98)


def test_pending_experiments_are_not_recommended_again():
    space = SearchSpace.from_product(SPACE)
    recommender, objective = BanditRecommender(), NumericalTarget("yield").to_objective()
    first = recommender.recommend(5, space, objective)
    told = first.assign(**{"yield": measured(first)})
    one = recommender.recommend(1, space, objective, told)
    two = recommender.recommend(1, space, objective, told, pending_experiments=one)
    assert not two.equals(one)
    assert recommender.recommend(1, space, objective, told).equals(one)  # the recommender has no state


def test_no_experiment_is_twice_in_a_batch_and_none_is_missing():
    space = SearchSpace.from_product([NumericalDiscreteParameter("x", list(np.linspace(0, 1, 20)))])
    kernel = gpytorch.kernels.RBFKernel().double()
    # With so much noise the policy would rather measure one experiment several times.
    policy = tb.gp_bucb(kernel, noise_std=1.0, width=tb.widths.Constant(1.0), initial=tb.starts.uniform(3))
    repeated = {"allow_recommending_already_recommended": True, "allow_recommending_already_measured": True}
    campaign = Campaign(space, NumericalTarget("y").to_objective(), BanditRecommender(policy), **repeated)
    for _ in range(3):
        plate = campaign.recommend(8)
        assert len(plate["x"].unique()) == 8
        campaign.add_measurements(plate.assign(y=-((plate["x"] - 0.3) ** 2)))
    with pytest.raises(NotEnoughPointsLeftError, match="only 20 are left"):
        campaign.recommend(21)


@pytest.mark.parametrize("running", [[2.0], [2.0, 2.0], [3.0, 1.0, 2.0]])
def test_pending_experiments_that_may_be_recommended_come_last_and_once(running: list[float]):
    """`auto` pulls an arm once at a time."""
    space = SearchSpace.from_product([NumericalDiscreteParameter("x", [1.0, 2.0, 3.0, 4.0])])
    flags = ("already_recommended", "already_measured", "pending_experiments")
    allowed = {f"allow_recommending_{flag}": True for flag in flags}
    campaign = Campaign(space, NumericalTarget("y").to_objective(), BanditRecommender(), **allowed)
    campaign.add_measurements(pd.DataFrame({"x": [1.0, 2.0, 3.0, 4.0], "y": [1.0, 3.0, 2.0, 0.0]}))
    plate = campaign.recommend(4, pending_experiments=pd.DataFrame({"x": running}))["x"].tolist()
    assert sorted(plate) == [1.0, 2.0, 3.0, 4.0]
    assert set(plate[-len(set(running)) :]) == set(running)


@pytest.mark.usefixtures("annotations_not_enforced")
def test_what_it_cannot_do_is_refused():
    continuous = SearchSpace.from_product([NumericalContinuousParameter("x", (0, 1))])
    with pytest.raises(ArgumentError, match="policy must be"):
        BanditRecommender("gp_ucb")
    with pytest.raises(ArgumentError, match="seed must be"):
        BanditRecommender(seed=-1)
    with pytest.raises(UnsupportedError, match="make every parameter discrete"):
        BanditRecommender().recommend(1, continuous)
    batches = SearchSpace.from_product(SPACE, [DiscreteBatchConstraint(["time"])])
    with pytest.raises(UnsupportedError, match="no constraints on a batch"):
        BanditRecommender().recommend(4, batches)
    # Before anything is measured.
    several = ParetoObjective([NumericalTarget("yield"), NumericalTarget("cost", minimize=True)])
    with pytest.raises(UnsupportedError, match="one target"):
        BanditRecommender().recommend(4, SearchSpace.from_product(SPACE), several)


def test_a_policy_that_json_would_lose_is_refused():
    space, objective = SearchSpace.from_product(SPACE), NumericalTarget("yield").to_objective()
    plain = Campaign(space, objective, BanditRecommender())
    assert Campaign.from_json(plain.to_json()).recommend(3).equals(plain.recommend(3))
    for own in (BanditRecommender(tb.auto(batch_size=4)), BanditRecommender(seed=1)):
        campaign = Campaign(space, objective, TwoPhaseMetaRecommender(recommender=own))
        with pytest.raises(UnsupportedError, match="can't be written as JSON: pickle the campaign"):
            campaign.to_json()
        assert pickle.loads(pickle.dumps(campaign)).recommender.recommender.seed == own.seed
