"""How much of the variance between arms the features predict, each arm from the others, and what `explain` says of it."""

from __future__ import annotations

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
    assert "So far the features predict little: each arm predicted from the others, " in weak.lines()[1]
    assert "and arms chosen at random may do as well." in weak.lines()[1]
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
