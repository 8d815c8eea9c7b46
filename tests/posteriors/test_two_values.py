"""Rewards of two values are recognised from sums, whatever the values, and no other rewards are."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import torchbandits as tb
from torchbandits.ingredients import FromData
from torchbandits.posteriors.two_values import two_values


def summed(rewards: list[np.ndarray]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Number, average and scatter of the rewards of each point."""
    columns = [(len(y), math.fsum(y) / len(y), math.fsum((y - math.fsum(y) / len(y)) ** 2)) for y in rewards]
    return tuple(torch.tensor(column, dtype=torch.float64) for column in zip(*columns, strict=True))


points = st.lists(st.lists(st.booleans(), min_size=1, max_size=9), min_size=1, max_size=12)


@given(points, st.sampled_from([(0.0, 1.0), (-1.0, 0.0), (1000.0, 1000.5), (-3e-7, 2e-7), (2.0, 9e6)]))
def test_two_values_are_found_from_sums(told: list[list[bool]], pair: tuple[float, float]):
    rewards = [np.where(np.array(point), *reversed(pair)) for point in told]
    shares, higher, number = {sum(point) / len(point) for point in told}, sum(map(sum, told)), sum(map(len, told))
    found = two_values(*summed(rewards))
    if min(higher, number - higher) < 2 or len(shares) == 1:
        assert found is None, "one of them came once, or all averages are equal"
    else:
        assert found == pytest.approx(pair, rel=1e-6, abs=1e-6 * (pair[1] - pair[0]))


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("points", [1, 2, 3, 30])
def test_rewards_with_noise_have_more_than_two_values(points: int, seed: int):
    rng = np.random.default_rng([seed, points])
    pulls = rng.integers(2 if points < 3 else 1, 8, size=points)
    assert two_values(*summed([rng.normal(loc=rng.normal(), size=n) for n in pulls])) is None


@pytest.mark.parametrize("pulls", [1e5, 1e6, 1e7])
@pytest.mark.parametrize("seed", range(5))
def test_sums_of_many_rewards_with_noise_are_not_those_of_two_values(pulls: float, seed: int):
    """Two averages and scatters always fit two values, but for whole numbers of them."""
    average, scatter = np.random.default_rng(seed).uniform(1, 2, size=(2, 2))
    told = torch.full((2,), pulls).double(), torch.as_tensor(average), torch.as_tensor(scatter) * pulls
    assert two_values(*told) is None
    share = torch.tensor([0.25, 0.5]).double()
    assert two_values(told[0], share, told[0] * share * (1 - share)) == pytest.approx((0, 1), abs=1e-9)


@pytest.mark.parametrize("seed", range(10))
def test_three_values_are_not_two(seed: int):
    rng = np.random.default_rng(seed)
    rewards = [np.concatenate([rng.integers(0, 3, size=5), [0, 1, 2]]).astype(float) for _ in range(4)]
    assert two_values(*summed(rewards)) is None


def yes_no(p: torch.Tensor, pulls: int, seed: int, **ask: int) -> tuple[tb.Bandit, list[int]]:
    """A run of `auto` on arms that succeed with probabilities p."""
    x = torch.rand(len(p), 2, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    bandit, luck, told = tb.Bandit(tb.auto(), x, generator=torch.Generator().manual_seed(seed)), np.random.default_rng(seed), []
    while len(told) < pulls:
        selection = bandit.ask(**ask)
        success = luck.random(len(selection.index)) < p[selection.index].numpy()
        bandit.tell(selection, torch.as_tensor(success).double())
        told += selection.index.tolist()
    return bandit, told


@pytest.mark.filterwarnings("ignore:arm . has taken")
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("p", [(0.3, 0.6), (0.7, 0.2), (0.2, 0.4, 0.75)])
def test_a_lucky_first_success_does_not_decide_between_few_arms(p: tuple[float, ...], seed: int):
    bandit, told = yes_no(torch.tensor(p), 150, seed)
    assert int(bandit.best(1).index) == int(np.argmax(p))
    assert np.bincount(told, minlength=len(p)).min() >= 2


def test_the_noise_of_two_values_is_their_variance():
    """It is not fitted, and repeats of an arm that always succeeds do not lower it."""
    bandit, _ = yes_no(torch.cat([torch.full((30,), 0.05), torch.ones(3)]), 60, 0, more=4)
    units, statistics = bandit.posterior.units, bandit.posterior.statistics
    assert units is not None
    n, average = statistics.weights, units.averages(statistics)
    assert float((n - 1).sum()) >= 10, "there are repeats"
    share = float((n.sqrt() * average).sum() / n.sqrt().sum())
    slope = float(units.to_model(torch.tensor([0.0, 1.0]).double()).diff())
    assert bandit.posterior.regularization / slope**2 == pytest.approx(share * (1 - share), rel=1e-6)
    middle = units.to_model(torch.tensor([0.0, 0.8, 1.0]).double())
    assert float((middle[1] - middle[0]) / (middle[2] - middle[0])) == pytest.approx(0.8), "averages keep their distances"


def test_rows_of_yes_and_no_beside_rows_of_numbers():
    """In a batch, each row has what it has alone."""
    x = torch.rand(2, 40, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    index, rng = torch.arange(40).expand(2, -1), np.random.default_rng(0)
    rewards = torch.stack([torch.as_tensor(rng.random(40) < 0.4).double(), torch.as_tensor(rng.normal(size=40))])
    both = tb.Bandit(tb.auto(), x, generator=[torch.Generator().manual_seed(row) for row in range(2)])
    both.tell(index, rewards)
    for row in range(2):
        alone = tb.Bandit(tb.auto(), x[row])
        alone.tell(index[row], rewards[row])
        own, beside = alone.posterior(x[row]), both.posterior(x)
        torch.testing.assert_close(beside.mean[row], own.mean, rtol=1e-6, atol=1e-8)
        torch.testing.assert_close(beside.variance[row], own.variance, rtol=1e-6, atol=1e-8)


def test_a_single_hit_among_zeros_is_a_number():
    one, none = torch.ones(9), torch.zeros(9)
    assert two_values(one, none.index_fill(0, torch.tensor([3]), 3.7), none) is None
    assert two_values(one, none.index_fill(0, torch.tensor([3, 5]), 3.7), none) == pytest.approx((0, 3.7))


def test_a_recipe_that_fits_the_noise_ranks_averages():
    x, told = (
        torch.rand(9, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64),
        torch.tensor([0, 0, 1, 2, 3, 4, 5]),
    )
    for known in (None, False):
        recipe = replace(tb.auto(), from_data=replace(FromData(), two_values=known))
        bandit = tb.Bandit(recipe, x)
        bandit.tell(told, torch.tensor([1, 0, 1, 0, 1, 1, 0]).double())
        zero, half, one = bandit.posterior.units.to_model(torch.tensor([0.0, 0.5, 1.0]).double()).tolist()
        assert (half - zero == pytest.approx(one - half)) == (known is None)


def test_the_noise_in_words():
    bandit, _ = yes_no(torch.linspace(0, 1, 30), 40, 1)
    explained = bandit.explain()
    p = min(1.0, float(bandit.best(1).mean[0]))
    assert explained.two_values
    assert explained.noise_std == pytest.approx(math.sqrt(p * (1 - p)))
    assert explained.upper <= 1, "no probability can be larger"
    noise = explained.lines()[2]
    assert noise.startswith("Noise: as large as two values allow, one more reward of the best arm would be off by about")
    assert "by rank" not in noise, "the model knows the rewards themselves"
    bandit.tell(bandit.ask(), torch.tensor([0.5]).double())
    assert not bandit.explain().two_values


def test_an_expected_value_above_the_higher_one_in_words():
    """It is that of a number. The arm is not known to succeed always, and no bound lies below the mean."""
    bandit = tb.Bandit(tb.auto(), torch.linspace(0, 1, 40).double().unsqueeze(-1))
    counts = torch.full((40,), 5).double()
    sums = torch.where(torch.arange(40) < 20, 0, counts)
    bandit.observe(torch.arange(40), counts, sums, sums)
    explained, best = bandit.explain(), bandit.best(1)
    mean, std = float(best.mean[0]), float(best.variance[0].sqrt())
    assert explained.two_values
    assert mean > 1
    assert explained.upper == mean
    assert explained.noise_std == pytest.approx(std)
    assert "off by about 0," not in explained.lines()[2]


def test_what_features_do_not_tell_of_two_values_in_words():
    """Their averages keep their distances, so that no variance is one of ranks."""
    rng = np.random.default_rng(3)
    x, counts = torch.as_tensor(rng.uniform(size=(60, 3))), torch.full((60,), 30.0).double()
    sums = torch.as_tensor(rng.binomial(30, rng.uniform(0.05, 0.95, size=60))).double()
    bandit = tb.Bandit(tb.auto(), x)
    bandit.observe(torch.arange(60), counts, sums, sums)
    explained = bandit.explain()
    assert explained.two_values
    assert explained.unexplained > 0.2
    assert "of the variance between arms does not follow the features" in explained.lines()[1]
    outcomes = tb.OutcomeBandit(tb.outcomes.pareto({"active": tb.auto(), "inactive": tb.auto()}), x)
    successes = (torch.arange(30).unsqueeze(-1) < sums).double().flatten()
    outcomes.tell(torch.arange(60).repeat(30), torch.stack([successes, 1 - successes], dim=-1))
    both = outcomes.explain()
    assert both.two_values == (True, True)
    assert min(both.unexplained) > 0.2
    assert not any("by rank" in line for line in both.lines())


def test_an_outcome_of_two_values_in_words():
    x = torch.rand(30, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    rng = np.random.default_rng(0)
    bandit = tb.OutcomeBandit(tb.outcomes.pareto({"active": tb.auto(), "yield": tb.auto()}), x)
    bandit.tell(torch.arange(30), torch.as_tensor(np.stack([rng.random(30) < 0.3, rng.normal(size=30)], axis=1)).double())
    explained = bandit.explain()
    assert explained.two_values == (True, False)
    share = float(explained.noise_std[0]) ** 2
    assert 0 < share < 0.25
    assert "As large as two values allow, one more reward would be off by about" in explained.lines()[0]
    assert "by rank" in explained.lines()[1]
    assert "by rank" not in explained.lines()[0]


def test_booleans_are_ones_and_zeros(tmp_path: Path):
    x, found = torch.rand(20, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64), []
    for journal, kind in ((tmp_path / "yes.journal", torch.bool), (None, torch.float64)):
        bandit = tb.Bandit(tb.auto(), x, journal=journal, generator=torch.Generator().manual_seed(0))
        for _ in range(8):
            selection = bandit.ask()
            bandit.tell(selection, (selection.points[:, 0] > 0.5).to(kind))
        found.append(bandit.best(1).mean)
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=0)
    again = tb.Bandit(tb.auto(), x, journal=tmp_path / "yes.journal", generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(again.best(1).mean, found[1], rtol=0, atol=0)
