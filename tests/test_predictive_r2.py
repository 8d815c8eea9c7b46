"""How much the features predict, before rewards are told and of each arm from the others, and what `explain` says of it."""

from __future__ import annotations

import dataclasses
import math

import gpytorch
import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor

import torchbandits as tb

ARMS = torch.as_tensor(np.random.default_rng(0).uniform(size=(200, 3)))
CHANCE = torch.as_tensor(np.random.default_rng(1).standard_normal(200))


def told(policy: object, f: Tensor, pulls: int = 48, noise: float = 0.1) -> tb.Bandit:
    bandit = tb.Bandit(policy, ARMS, generator=torch.Generator().manual_seed(2))
    rng = np.random.default_rng(3)
    while float(bandit.pulls) < pulls:
        picks = bandit.ask()
        bandit.tell(picks, f[picks.index] + noise * torch.as_tensor(rng.standard_normal(len(picks.index))))
    return bandit


def by_refits(bandit: tb.Bandit) -> float:
    """The same fraction from a dense Gaussian process without each point in turn."""
    statistics, posterior = bandit.loop.state.statistics, bandit.posterior
    n, y = statistics.weights.numpy(), (statistics.sums / statistics.weights).numpy()
    covariance = posterior.kernel(statistics.points.double()).to_dense().detach().numpy()
    noisy = covariance + np.diag(posterior.regularization / n)
    wrong = []
    for i in range(len(y)):
        others = np.arange(len(y)) != i
        wrong.append(y[i] - covariance[i, others] @ np.linalg.solve(noisy[np.ix_(others, others)], y[others]))
    return 1 - np.square(wrong).sum() / np.square(y - y.mean()).sum()


@pytest.mark.parametrize("f", [ARMS.sum(dim=-1), CHANCE], ids=["features", "chance"])
@pytest.mark.parametrize("own", ["auto", "gp_ucb"])
def test_it_is_that_of_a_process_without_each_arm(own: str, f: Tensor):
    kernel = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel()).double()
    policy = tb.auto(batch_size=8) if own == "auto" else tb.gp_ucb(kernel, noise_std=0.1)
    bandit = told(policy, f)
    assert bandit.explain().predictive_r2 == pytest.approx(by_refits(bandit), rel=1e-6, abs=1e-8)


def test_features_that_tell_nothing_are_said_to_predict_little():
    weak, strong = told(tb.auto(batch_size=8), CHANCE).explain(), told(tb.auto(batch_size=8), ARMS.sum(dim=-1)).explain()
    assert weak.predictive_r2 < 0.1
    assert strong.predictive_r2 > 0.4
    assert weak.forecast_r2 < 0
    assert strong.forecast_r2 > 0.4
    beforehand = "Predictions made beforehand explained"
    assert f"{beforehand} none of the variance of the rewards, by rank." in weak.lines()[1]
    assert "So far the features predict little: each arm predicted from the others, " in weak.lines()[1]
    assert "and arms chosen at random may do as well." in weak.lines()[1]
    assert f"{beforehand} {strong.forecast_r2:.0%} of the variance of the rewards, by rank." in strong.lines()[1]
    assert "predict little" not in str(strong)


def test_a_campaign_has_its_own_words_and_says_it_in_doubt():
    rng = np.random.default_rng(0)
    table = pd.DataFrame(rng.uniform(size=(400, 4)), columns=list("abcd")).assign(id=[f"R{i}" for i in range(400)])
    values = rng.standard_normal(400)
    campaign = tb.Campaign(table, objective="yield", generator=torch.Generator().manual_seed(0))
    for _ in range(6):
        plate = campaign.ask(8)
        rows = [int(name[1:]) for name in plate["id"]]
        campaign.tell(plate.assign(**{"yield": values[rows] + 0.1 * rng.standard_normal(8)}))
    sentence = "So far the columns predict little: each row predicted from the others, "
    assert campaign.explain().weakness().startswith(sentence)
    assert sentence in campaign.doubt()
    assert "and rows chosen at random may do as well." in campaign.doubt()


def test_a_history_without_predictions_is_judged_by_the_arms_left_out():
    bandit = tb.Bandit(tb.auto(), ARMS)
    index = torch.arange(48)
    bandit.observe(index, torch.ones(48), CHANCE[:48], CHANCE[:48].square())
    said = bandit.explain()
    assert said.forecasts == 0
    assert math.isnan(said.forecast_r2)
    assert said.weakness().startswith("So far the features predict little: each arm predicted from the others, ")


def expected_forecasts(bandit: tb.Bandit, index: Tensor, rewards: Tensor) -> np.ndarray:
    """Number, squared errors and squares of the scores of rewards that are about to be told, by a dense Gaussian process."""
    statistics, posterior = bandit.loop.state.statistics, bandit.posterior
    if float(bandit.pulls) < 5:
        return np.zeros(3)
    n, y = statistics.weights.numpy(), (statistics.sums / statistics.weights).numpy()
    known = statistics.points.double()
    between = posterior.kernel(ARMS[index], known).to_dense().detach().numpy()
    noisy = posterior.kernel(known).to_dense().detach().numpy() + np.diag(posterior.regularization / n)
    scale = float(posterior.units.scale)
    mean = between @ np.linalg.solve(noisy, y) / scale
    score = np.interp(rewards.numpy(), posterior.units.knots.numpy(), posterior.units.scores.numpy())
    seen = (ARMS[index][:, None] == known[None]).all(dim=-1).any(dim=-1).numpy()
    return np.array([len(score), np.square(score - mean)[~seen].sum(), np.square(score)[~seen].sum()]) - [seen.sum(), 0, 0]


@pytest.mark.parametrize("size", [1, 8])
def test_forecasts_are_those_of_a_dense_process_before_each_tell(size: int):
    bandit = tb.Bandit(tb.auto(batch_size=size), ARMS, generator=torch.Generator().manual_seed(2))
    rng, expected = np.random.default_rng(3), np.zeros(3)
    while float(bandit.pulls) < 30:
        index = bandit.ask().index
        rewards = ARMS[index].sum(dim=-1).square() + 0.3 * torch.as_tensor(rng.standard_normal(len(index)))
        expected += expected_forecasts(bandit, index, rewards)
        bandit.tell(index, rewards)
    said = bandit.explain()
    assert 5 < said.forecasts == expected[0] < 30
    assert said.forecast_r2 == pytest.approx(1 - expected[1] / expected[2], rel=1e-8)


def test_forecasts_of_batch_rows_are_independent_and_saved_with_the_state():
    rng = np.random.default_rng(5)
    index = torch.as_tensor(np.stack([rng.permutation(200)[:24] for _ in range(2)]))
    rewards = ARMS[index].sum(dim=-1) + 0.1 * torch.as_tensor(rng.standard_normal((2, 24)))
    together = tb.Bandit(tb.auto(), ARMS.expand(2, 200, 3), generator=[torch.Generator().manual_seed(r) for r in (0, 1)])
    alone = [tb.Bandit(tb.auto(), ARMS, generator=torch.Generator().manual_seed(r)) for r in (0, 1)]
    for first in range(0, 24, 6):
        part = slice(first, first + 6)
        together.tell(index[:, part], rewards[:, part])
        for row in (0, 1):
            alone[row].tell(index[row, part], rewards[row, part])
    again = tb.Bandit(tb.auto(), ARMS.expand(2, 200, 3), generator=[torch.Generator(), torch.Generator()])
    again.load_state_dict(together.state_dict())
    for row in (0, 1):
        own = alone[row].explain()
        assert own.forecasts == 18
        for other in (together, again):
            assert other.explain(row=(row,)).forecasts == 18
            assert other.explain(row=(row,)).forecast_r2 == pytest.approx(own.forecast_r2, rel=1e-6)


def test_predictions_that_were_right_have_the_last_word():
    found = told(tb.auto(batch_size=8), CHANCE).explain()
    assert found.weakness()
    assert not dataclasses.replace(found, forecast_r2=0.1).weakness()
    assert not dataclasses.replace(found, predictive_r2=0.3).weakness()
    assert dataclasses.replace(found, predictive_r2=0.15).weakness()
    assert not dataclasses.replace(found, predictive_r2=0.15, forecasts=9).weakness()


def test_a_state_without_forecasts_can_be_loaded():
    saved = told(tb.auto(), ARMS.sum(dim=-1), pulls=12).state_dict()
    assert bool(saved["state"].pop("records.units.forecasts").any())
    bandit = tb.Bandit(tb.auto(), ARMS)
    bandit.load_state_dict(saved)
    assert bandit.explain().forecasts == 0


def test_rewards_of_blocks_and_of_arms_pulled_before_are_no_forecasts():
    bandit = told(tb.auto(batch_size=8), ARMS.sum(dim=-1), pulls=14)
    known = bandit.explain().forecasts
    pulled, new = bandit.best(1).index, torch.tensor([199, 198])
    bandit.tell(pulled, torch.tensor([1.0], dtype=torch.float64))
    bandit.tell(new, torch.tensor([1.0, 2.0], dtype=torch.float64), block="monday")
    assert bandit.explain().forecasts == known


def test_few_arms_tell_too_little_to_say_so():
    few = told(tb.auto(batch_size=6), CHANCE, pulls=12).explain()
    assert few.distinct < 16
    assert math.isfinite(few.predictive_r2)
    assert "predict little" not in str(few)


def test_under_a_given_kernel_the_kernel_may_be_at_fault():
    kernel = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel()).double()
    given = told(tb.gp_ucb(kernel, noise_std=0.1), CHANCE).explain()
    assert given.distinct >= 16
    assert given.predictive_r2 < 0.1
    assert given.weakness() == ""


def test_yes_and_no_are_not_predicted_by_any_feature():
    said = told(tb.auto(batch_size=8), (CHANCE > 0).double(), noise=0.0).explain()
    assert said.two_values
    assert "predict little" not in str(said)


@pytest.mark.filterwarnings("ignore::torchbandits.errors.DiagnosticWarning")
def test_it_is_not_known_beside_a_dictionary_or_among_equal_rewards():
    kernel = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel()).double()
    dictionary = tb.batch_bkb(kernel, noise_std=0.1, width=tb.widths.Constant(2.0))
    assert math.isnan(told(dictionary, CHANCE).explain().predictive_r2)
    assert math.isnan(told(tb.gp_ucb(kernel, noise_std=0.1), torch.ones(200), pulls=5, noise=0.0).explain().predictive_r2)


def test_each_outcome_has_its_own():
    policy = tb.outcomes.pareto({"told": tb.auto(batch_size=8), "chance": tb.auto(batch_size=8)})
    bandit = tb.OutcomeBandit(policy, ARMS, generator=torch.Generator().manual_seed(4))
    rng = np.random.default_rng(5)
    for _ in range(8):
        picks = bandit.ask()
        both = torch.stack([ARMS.sum(dim=-1), CHANCE], dim=-1)[picks.index]
        bandit.tell(picks, both + 0.1 * torch.as_tensor(rng.standard_normal(both.shape)))
    said = bandit.explain()
    assert said.predictive_r2[0] > 0.4
    assert said.predictive_r2[1] < 0.1
    told_line, chance_line = said.lines()
    assert "predict little" not in told_line
    assert "So far the features predict little" in chance_line
