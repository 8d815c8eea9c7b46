"""`tb.auto()`: scales, units, kernel and noise from the data, against dense numpy, and regret without any settings."""

from __future__ import annotations

import copy
import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import gpytorch
import numpy as np
import pytest
import scipy.stats
import torch
from emulated_device import emulated_device
from problems import generator
from torch import Tensor

import torchbandits as tb
from torchbandits import errors
from torchbandits.arms import ArmTable
from torchbandits.explanation.words import Words, unsettled
from torchbandits.fitting.climb import Climb
from torchbandits.fitting.standardized import Priors, fit_standardized_
from torchbandits.memory import LeverageSampling, SteadySampling
from torchbandits.policies.from_data import FromData
from torchbandits.policies.repeats import most_repeated, reason_for_repeats, recent_arms, share_of_noise
from torchbandits.posteriors import Units
from torchbandits.posteriors.averages import Averages
from torchbandits.posteriors.units import normal_scores
from torchbandits.random_effects import RandomEffectKernel, with_effect
from torchbandits.testing.play import differences
from torchbandits.types import Marginals, Pulls


def table(arms: int = 400, dim: int = 3, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Points of very different scales, and rewards with a long tail, around 90."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(size=(arms, dim))
    f = 90 - np.exp(3 * np.linalg.norm(x - 0.35, axis=-1))
    return torch.as_tensor(x * 10.0 ** np.arange(-2, dim - 2)), torch.as_tensor(f)


def play(bandit: tb.Bandit, f: Tensor, pulls: int, noise_std: float = 0.1, **ask: int) -> list[int]:
    """Ask and tell, with noise that depends only on the number of the pull."""
    picks: list[int] = []
    while len(picks) < pulls:
        selection = bandit.ask(**ask)
        noise = np.random.default_rng(1000 + len(picks)).standard_normal(len(selection.index))
        bandit.tell(selection, f[selection.index] + noise_std * torch.as_tensor(noise))
        picks += selection.index.tolist()
    return picks


# ------------------------------------------------------------------------- units, against scipy


def scores_np(rewards: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Normal scores of averages with whole numbers of pulls, computed from a list with one entry per pull."""
    pulls = np.repeat(rewards, weights.astype(int))
    scores = scipy.stats.norm.ppf((scipy.stats.rankdata(pulls) - 0.375) / (len(pulls) + 0.25))
    scores = scores / scores.std()
    return np.array([scores[pulls == y][0] for y in rewards])


def weighted_scores_np(rewards: np.ndarray, weights: np.ndarray, noise_std: float = 0.0) -> np.ndarray:
    """Normal scores for any weights, in a loop over the rewards, with slopes of at most 1 / `noise_std`."""
    ranks = np.array([weights[rewards < y].sum() + weights[rewards == y].sum() / 2 + 0.5 for y in rewards])
    scores = scipy.stats.norm.ppf((ranks - 0.375) / (weights.sum() + 0.25))
    if noise_std:
        order, limited = np.argsort(rewards), scores.copy()
        for low, high in itertools.pairwise(order):
            most = (rewards[high] - rewards[low]) / noise_std
            limited[high] = limited[low] + min(scores[high] - scores[low], most)
        scores = limited - np.average(limited, weights=weights)
    return scores / np.sqrt(np.cov(scores, aweights=weights, ddof=0))


@pytest.mark.parametrize("seed", range(3))
def test_normal_scores_are_those_of_all_pulls(seed: int):
    rng = np.random.default_rng(seed)
    rewards, weights = rng.exponential(size=30).round(1) - 5, rng.integers(1, 6, size=30)  # some averages are equal
    knots, scores = normal_scores(torch.as_tensor(rewards), torch.as_tensor(weights, dtype=torch.float64))
    assert (knots.diff() > 0).all()
    assert (scores.diff() > 0).all()
    expected = scores_np(rewards, weights)
    at = torch.searchsorted(knots, torch.as_tensor(rewards))
    np.testing.assert_allclose(scores[at], expected, rtol=1e-12)
    np.testing.assert_allclose(weighted_scores_np(rewards, weights), expected, rtol=1e-12)
    knots, scores = normal_scores(torch.as_tensor(rewards), torch.as_tensor(weights).double().sqrt())
    np.testing.assert_allclose(scores[at], weighted_scores_np(rewards, np.sqrt(weights)), rtol=1e-12)


@pytest.mark.parametrize("noise_std", [0.03, 0.3, 30.0])
def test_scores_rise_no_faster_than_those_of_the_noise(noise_std: float):
    """Normal scores of rewards with normal noise of deviation σ have slopes of at most 1/σ, however close the arms are."""
    rng = np.random.default_rng(0)
    rewards, weights = np.r_[rng.normal(size=40), 2 + 0.01 * rng.normal(size=20)], rng.integers(1, 50, size=60) ** 0.5
    own = (torch.as_tensor(rewards), torch.as_tensor(weights))
    knots, scores = normal_scores(*own, noise_std)
    at = torch.searchsorted(knots, own[0])
    np.testing.assert_allclose(scores[at], weighted_scores_np(rewards, weights, noise_std), rtol=1e-9, atol=1e-12)
    assert float((scores[at] * own[1]).sum().abs()) < 1e-9
    # Where all slopes are limited, the scores are standardised rewards.
    slopes = scores.diff() / knots.diff()
    assert float(slopes.max() / slopes.min()) < 1 + 1e-9 or noise_std < 30
    free = normal_scores(*own)[1]
    assert float((free.diff() / knots.diff()).max()) > 50 * float(slopes.max()) or noise_std < 0.3


def test_averages_that_differ_by_rounding_alone_have_scores_beside_any_noise():
    values, weights = torch.tensor([0.0, 1e-17, 3e-17]).double(), torch.tensor([2.0, 3, 2]).double()
    knots, scores = normal_scores(values, weights, 1.0)
    assert knots.tolist() == values.tolist()
    assert (scores.diff() > 0).all()
    assert float((scores.square() * weights).sum() / 7) == pytest.approx(1)
    arms = table(arms=9)[0]
    bandit = tb.Bandit(tb.auto(), arms, generator=generator(0))
    for reward in (0.1, 0.2, -0.3):
        bandit.tell(torch.arange(9), torch.full((9,), reward, dtype=torch.float64))
    bandit.tell(torch.tensor([4, 4]), torch.tensor([0.7, -0.7]).double())
    assert torch.isfinite(bandit.posterior(arms).variance).all()
    bandit.ask()


def test_wild_rewards_of_one_arm_do_not_flatten_the_scores():
    arms, rewards = table(arms=20)
    bandit, wild = tb.Bandit(tb.auto(), arms, generator=generator(0)), tb.Bandit(tb.auto(), arms, generator=generator(0))
    for one, last in ((bandit, 0.01), (wild, 1e6)):
        for sign in (-0.01, 0.01):
            one.tell(torch.arange(19), rewards[:19] + sign)
        one.tell(torch.tensor([19, 19]), rewards[[19, 19]] + torch.tensor([-last, last]).double())
    own, other = (one.loop.state.posterior.units for one in (bandit, wild))
    torch.testing.assert_close(other.to_model(rewards[:19]) / other.scale, own.to_model(rewards[:19]) / own.scale)


def test_no_more_than_64_pulls_of_an_arm_count_in_the_ranks():
    arms, rewards = table(arms=9)
    counts = torch.tensor([1, 4, 9, 64, 65, 1_000, 100_000, 2, 1]).double()
    bandit = tb.Bandit(tb.auto(), arms, generator=generator(0))
    bandit.observe(torch.arange(9), counts, counts * rewards, counts * (rewards.square() + 1))
    units = bandit.loop.state.posterior.units
    noise_std = (counts[counts > 1].sum() / (counts - 1).sum()).sqrt().item()
    expected = weighted_scores_np(rewards.numpy(), np.sqrt(np.minimum(counts.numpy(), 64)), noise_std)
    np.testing.assert_allclose(units.to_model(rewards) / units.scale, expected, rtol=1e-9)


def pulled_by(bandit: tb.Bandit) -> tuple[Tensor, Tensor]:
    """Totals of the model, and the images of the averages times the pulls."""
    posterior = bandit.loop.state.posterior
    statistics, units = posterior.statistics, posterior.units
    return statistics.sums, statistics.weights * units.to_model(units.averages(statistics))


@pytest.mark.parametrize("rows", [0, 2])
def test_totals_are_images_of_averages_between_fits(rows: int):
    """Where the map is convex, averages of the images of noisy rewards would be too large until the next fit."""
    x, f = table(200)
    bandit = tb.Bandit(tb.auto(), x, generator=[generator(r) for r in range(rows)] if rows else generator(0))
    shape = bandit.batch_shape
    tells = [torch.arange(0, 80, 2), torch.tensor([4, 150, 4, 150, 4]), torch.tensor([150]), torch.tensor([7, 9, 11])]
    fits = bandit.loop.state.posterior.kernel
    for number, arms in enumerate(tells):
        arms = (arms.expand(*shape, -1) + torch.arange(max(rows, 1)).unsqueeze(-1)[: rows or None]).reshape(*shape, -1)
        noise = torch.as_tensor(np.random.default_rng(number).normal(size=tuple(arms.shape)))
        bandit.tell(arms, f[arms] + 3 * noise)
        found, right = pulled_by(bandit)
        torch.testing.assert_close(found, right, rtol=1e-9, atol=1e-9)
        if number > 1:
            assert bandit.loop.state.posterior.kernel is fits, "no fit came between"
        fits = bandit.loop.state.posterior.kernel
    # A history with points, known and new, the last of which comes twice.
    if not rows:
        points = torch.cat([x[[4, 20]], torch.full((2, 3), 0.5, dtype=torch.float64)])
        ones = torch.ones(4, dtype=torch.float64)
        bandit.observe(points, 2 * ones, 180 * ones, 2 * 90**2 * ones)
        found, right = pulled_by(bandit)
        torch.testing.assert_close(found, right, rtol=1e-9, atol=1e-9)


def units_of(rewards: Tensor) -> tuple[Units, tb.posteriors.Statistics]:
    """Units fitted to one pull of each of `batch_shape x u` rewards."""
    shape, u = rewards.shape[:-1], rewards.shape[-1]
    units, statistics = Units(torch.ones(*shape, 2)), tb.posteriors.Statistics(2, torch.Size(shape))
    points = torch.rand(*shape, u, 2, generator=generator(0), dtype=torch.float64)
    rows = statistics.append_(points, torch.ones(*shape, u, dtype=torch.bool))
    statistics.add_(rows, torch.ones_like(rewards), rewards, rewards**2)
    units.add_(rows, rewards, rewards**2, statistics.size)
    units.refit_(statistics, torch.ones(shape, dtype=torch.bool))
    return units, statistics


@pytest.mark.parametrize("u", [1, 2, 9, 700])
def test_the_map_increases_and_its_inverse_undoes_it(u: int):
    rewards = torch.randn(u, generator=generator(u), dtype=torch.float64).exp()
    units, _ = units_of(rewards)
    grid = torch.linspace(-10, 30, 501, dtype=torch.float64)
    z = units.to_model(grid)
    assert z.isfinite().all()
    assert (z.diff() > 0).all()
    np.testing.assert_allclose(units.to_rewards(z), grid, rtol=1e-8, atol=1e-8)


def test_batch_rows_have_units_of_their_own():
    rewards = torch.randn(3, 20, generator=generator(1), dtype=torch.float64).exp() * torch.tensor([[1.0], [50.0], [1e-3]])
    together, _ = units_of(rewards)
    for row in range(3):
        alone, _ = units_of(rewards[row])
        assert torch.equal(together.to_model(rewards)[row], alone.to_model(rewards[row]))


def test_deviations_are_quantiles_over_no_less_than_one_and_a_half_units():
    # The averages 1.99 and 2 are neighbours, so that g is steep there.
    rewards = torch.cat([torch.linspace(-2, 1.8, 40, dtype=torch.float64), torch.tensor([1.99, 2.0], dtype=torch.float64)])
    units, _ = units_of(rewards)
    units.rescale_(torch.tensor(3.0))
    mean = units.to_model(torch.tensor([-1.0, 0.3, 1.995], dtype=torch.float64))

    def deviations(std: float) -> Tensor:
        return units.marginals(Marginals(mean, torch.full_like(mean, std**2))).variance.sqrt()

    def half(std: float) -> Tensor:
        return (units.to_rewards(mean + std) - units.to_rewards(mean - std)) / 2

    for std in (4.5, 6.0, 20.0):
        torch.testing.assert_close(deviations(std), half(std))
    for std in (1e-3, 0.1, 4.0):
        torch.testing.assert_close(deviations(std), half(4.5) * std / 4.5)
    assert half(0.01)[2] < 0.1 * deviations(0.01)[2], "the slope between two neighbours is not that of the map"
    median = units.marginals(Marginals(mean, torch.ones_like(mean))).mean
    torch.testing.assert_close(median, units.to_rewards(mean))


# ------------------------------------------------------------------------- the whole, against dense numpy


def matern52(x: np.ndarray, y: np.ndarray, scales: np.ndarray) -> np.ndarray:
    r = np.sqrt(5) * np.sqrt((((x[:, None] - y[None]) / scales) ** 2).sum(-1))
    return (1 + r + r**2 / 3) * np.exp(-r)


def test_the_posterior_at_a_fit_is_that_of_dense_numpy():
    x, f = table()
    f = f + 0.3 * torch.as_tensor(np.random.default_rng(1).standard_normal(len(f)))  # which the features do not tell
    bandit = tb.Bandit(tb.auto(), x, generator=generator(2))
    picks = play(bandit, f, 41)  # fits take place at pulls 5, 8, 12, 17, 26 and 38
    bandit.fit_kernel_()
    process = bandit.loop.state.posterior
    u = list(dict.fromkeys(picks))
    rewards = {i: [] for i in u}
    for t, i in enumerate(picks):
        rewards[i].append(float(f[i]) + 0.1 * np.random.default_rng(1000 + t).standard_normal(1)[0])
    n = np.array([len(rewards[i]) for i in u])
    c = float(process.units.scale)
    within = sum(np.sum((np.array(rewards[i]) - np.mean(rewards[i])) ** 2) for i in u)
    assert (n - 1).sum() >= 10, "repeated pulls tell the noise"
    noise_std = np.sqrt(within / (n - 1).sum())
    targets = c * weighted_scores_np(np.array([np.mean(rewards[i]) for i in u]), np.sqrt(n), noise_std)
    own = process.kernel.outputscale.item(), process.kernel.base_kernel.lengthscale.numpy().ravel()
    effect = process.kernel.effect.item()
    points = x.numpy()
    k = own[0] * matern52(points[u], points, own[1])
    k[np.arange(len(u)), u] += effect
    K = k[:, u]
    solved = np.linalg.solve(K + np.diag(1 / n), np.c_[targets, k])
    mean, variance = k.T @ solved[:, 0], own[0] + effect - (k * solved[:, 1:]).sum(0)
    state = bandit.loop.state
    np.testing.assert_allclose(state.arm_mean(), mean, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(state.arm_leverage(), variance, rtol=1e-6, atol=1e-6)
    said = bandit.posterior(x)
    knots = np.unique([np.mean(rewards[i]) for i in u])
    inside = (mean / c > targets.min() / c) & (mean / c < targets.max() / c)
    order = np.argsort(targets)
    averages = np.array([np.mean(rewards[i]) for i in u])[order]
    expected = np.interp(mean, targets[order], averages)
    assert inside.sum() > 100
    assert len(knots) == len(u)
    np.testing.assert_allclose(said.mean.numpy()[inside], expected[inside], rtol=1e-6)
    best = bandit.best(3)
    assert (best.mean.diff() <= 0).all()
    assert best.index[0] == bandit.best_arm() == u[int(np.argmax(mean[u]))]


def test_nothing_depends_on_the_units_of_features_and_rewards():
    """Units that are powers of two give the same picks bit for bit, and the posterior in those units."""
    x, f = table()
    other = x * torch.tensor([2.0**12, 1.0, 2.0**-9], dtype=torch.float64)
    a, b = tb.Bandit(tb.auto(), x, generator=generator(3)), tb.Bandit(tb.auto(), other, generator=generator(3))
    assert play(a, f, 18) == play(b, f * 2.0**10, 18, noise_std=0.1 * 2.0**10)
    np.testing.assert_allclose(b.posterior(other).mean, a.posterior(x).mean * 2.0**10, rtol=1e-7)


@pytest.mark.exhaustive
def test_constant_features_and_outliers_change_little():
    better = []
    for seed in range(10):
        x, f = table(seed=seed)
        wide = torch.cat([x, torch.full((len(x), 1), 7.0)], dim=-1)
        wide[0, 0] = 3.0  # one wrong entry, 300 times the range of its feature
        bandit, plain = (tb.Bandit(tb.auto(), own, generator=generator(4)) for own in (wide, x))
        own, ranges = (one.loop.state.posterior.units.features for one in (bandit, plain))
        np.testing.assert_allclose(own[:3], ranges, rtol=0.05, err_msg="the entry must not stretch the range")
        picks = play(bandit, f, 30)
        better.append(float((f[picks[15:]].mean() - f.mean()) / f.std()))
    wide[0, 0] = 1e12  # nor spoil the arithmetic of the other features
    play(tb.Bandit(tb.auto(), wide, generator=generator(4)), f, 9)
    assert np.mean(better) > 0.4
    assert sum(own > 0 for own in better) >= 8


@pytest.mark.exhaustive
def test_rewards_without_noise_may_be_told_again_and_again():
    """A run on twenty arms, in which a few arms are pulled many times and some rewards are equal."""
    x, f = table(20)
    f = f.round()
    bandit = tb.Bandit(tb.auto(), x, generator=generator(4))
    picks = play(bandit, f, 60, noise_std=0.0)
    assert max(map(picks.count, picks)) >= 10
    assert f[bandit.best_arm()] == f.max()
    assert bandit.explain().noise_share < 0.2


@pytest.mark.sweep(1)
@pytest.mark.parametrize("ask", [{"limit": 1}, {"more": 5}])
def test_it_finds_what_random_picks_do_not(ask: dict[str, int]):
    ours, random = [], []
    for seed in range(2):
        x, f = table(300, 3, seed)
        scale = f.max() - f.mean()
        for policy, regrets in ((tb.auto(), ours), (tb.uniform(), random)):
            bandit = tb.Bandit(policy, x, generator=generator(seed))
            picks = play(bandit, f, 30, noise_std=0.05 * float(f.std()), **ask)
            regrets.append(float((f.max() - f[picks].mean()) / scale))
    assert max(ours) < 0.75 * min(random)


def test_a_batch_holds_an_arm_once_and_goes_on_around_it():
    x, f = table()
    bandit = tb.Bandit(tb.auto(batch_size=6), x, generator=generator(5))
    play(bandit, f, 12)
    selection = bandit.ask()
    assert len(set(selection.index.tolist())) == 6
    fresh = tb.Bandit(tb.auto(), x, generator=generator(5))
    assert fresh.ask(more=8).index.shape == (8,), "as many as were asked for, first picks or not"


# ------------------------------------------------------------------------- replicates


def repeats_of(bandit: tb.Bandit) -> int:
    return int((bandit.counts - 1).clamp_min(0).sum())


@pytest.mark.exhaustive
@pytest.mark.parametrize("size", [1, 8])
def test_one_pick_in_eight_of_batches_is_the_arm_with_the_highest_mean(size: int):
    x, f = table()
    bandit = tb.Bandit(tb.auto(batch_size=size), x, generator=generator(3))
    without = tb.auto(batch_size=size, replicate_every=0)
    seen = 0
    while bandit.loop.pulls < 40:
        made, repeats, mean = int(bandit.loop.pulls), repeats_of(bandit), bandit.loop.state.arm_mean().numpy()
        others = without.select(copy.deepcopy(bandit.loop.state))[0].index.tolist()
        picks = bandit.ask().index.tolist()
        if size == 1 or made < 6 or (made + len(picks)) // 8 == made // 8:
            assert picks == others
        elif repeats < 3:
            seen += 1
            assert picks[-1] == mean.argmax()
            assert len(set(picks)) == size
        noise = np.random.default_rng(made).standard_normal(len(picks))
        bandit.tell(torch.tensor(picks), f[picks] + f.std() * torch.as_tensor(noise))
    assert seen >= 2 or size == 1


def test_a_large_batch_has_several_replicates_and_holds_an_arm_once():
    x, f = table()
    bandit = tb.Bandit(tb.auto(batch_size=6), x, generator=generator(3))
    play(bandit, f, 12, noise_std=float(f.std()))
    mean = bandit.loop.state.arm_mean().clone()
    picks = bandit.ask(more=24).index.tolist()
    assert len(set(picks)) == 24
    assert picks[-3:] == mean.argsort(descending=True)[:3].tolist()
    pending = bandit.ask(more=8).index.tolist()[24:]
    assert len(pending) == 8
    assert not set(pending) & set(picks), "picks that wait for their rewards are not replicated"


@pytest.mark.parametrize("waiting", [0, 1, 3])
def test_workers_that_ask_one_by_one_evaluate_the_recommended_arm_again_every_eighth_time(waiting: int):
    x, f = table()
    bandit = tb.Bandit(tb.auto(), x, generator=generator(3))
    play(bandit, f, 15 - waiting, noise_std=float(f.std()))
    mean = bandit.loop.state.arm_mean().clone()
    for _ in range(waiting):
        bandit.ask(more=1)
    again = bandit.ask(more=1).index.tolist()[-1]
    assert (again == mean.argmax()) == (waiting > 0)


@pytest.mark.exhaustive
@pytest.mark.parametrize("noise_std", [0.0, 0.05])
def test_replicates_end_when_the_noise_is_known(noise_std: float):
    x, f = table()
    bandit = tb.Bandit(tb.auto(batch_size=8), x, generator=generator(1))
    play(bandit, f, 104, noise_std=noise_std * float(f.std()))
    state, remaining = bandit.loop.state, torch.tensor(8)
    assert bandit.policy.from_data.replicates(state, remaining) is None
    noisy = tb.Bandit(tb.auto(batch_size=8), x, generator=generator(1))
    play(noisy, f, 30, noise_std=float(f.std()))
    replicates, state, unseen = noisy.policy.from_data.replicates, noisy.loop.state, noisy.counts == 0
    assert int(replicates(state, remaining)) == 1
    assert replicates(state, remaining, unseen) is None, "no pulled arm is on offer"
    assert int(replicates(state, remaining, unseen | (noisy.counts > 0))) == 1


def test_the_variance_of_repeats_is_that_of_numpy():
    rng = np.random.default_rng(0)
    x = torch.as_tensor(rng.uniform(size=(30, 2)))
    index = rng.integers(0, 12, size=40)
    rewards = 90 + 0.1 * index + rng.standard_normal(40)
    bandit = tb.Bandit(tb.auto(), x)
    bandit.tell(torch.as_tensor(index), torch.as_tensor(rewards))
    repeats, share = bandit.loop.state.posterior.units.repeats(bandit.loop.state.statistics)
    groups = [rewards[index == arm] for arm in np.unique(index)]
    within = sum(((y - y.mean()) ** 2).sum() for y in groups) / sum(len(y) - 1 for y in groups)
    assert int(repeats) == sum(len(y) - 1 for y in groups)
    assert float(share) == pytest.approx(within / np.var([y.mean() for y in groups], ddof=1), rel=1e-9)


@pytest.mark.sweep(1)
@pytest.mark.parametrize("offset", [0.0, 1e9, -1e11])
def test_the_noise_of_repeats_does_not_depend_on_an_offset(offset: float):
    """Squares of rewards far from 0 have no digits left for their noise."""
    x = torch.rand(40, 2, generator=generator(0), dtype=torch.float64)
    rng = np.random.default_rng(1)
    bandit, told = tb.Bandit(tb.auto(), x, generator=generator(0)), []
    # Single pulls, an arm several times in a tell, and sums of equal rewards.
    for size in (20, 1, 7, 12):
        index = torch.as_tensor(rng.integers(0, 8, size=size))
        rewards = offset + index.double() + 0.1 * torch.as_tensor(rng.standard_normal(size))
        bandit.tell(index, rewards)
        told += list(zip(index.tolist(), (rewards - offset).tolist(), strict=True))
    y = torch.tensor([offset + 20.0], dtype=torch.float64)
    bandit.observe(torch.tensor([9]), counts=torch.tensor([3.0]), sums=3 * y, squares=3 * y**2)
    groups = [np.array([y for arm, y in told if arm == each]) for each in sorted({arm for arm, _ in told})]
    within = sum(((each - each.mean()) ** 2).sum() for each in groups)
    units, statistics = bandit.posterior.units, bandit.posterior.statistics
    degrees, scatter = units.scatter(statistics)
    assert int(degrees.sum()) == 40 - len(groups) + 2
    assert float(scatter.sum()) == pytest.approx(within, rel=1e-9 if offset == 0 else 1e-2)
    again = tb.Bandit(tb.auto(), x, generator=generator(0)).load_state_dict(bandit.state_dict())
    assert torch.equal(again.posterior.units.scatter(statistics)[1], scatter)


def test_a_state_without_deviations_takes_them_from_its_squares():
    x, f = table(100)
    bandit = tb.Bandit(tb.auto(), x, generator=generator(0))
    bandit.tell(torch.arange(20) % 7, f[torch.arange(20) % 7] + torch.arange(20).sin())
    units, statistics = bandit.posterior.units, bandit.posterior.statistics
    before = units.scatter(statistics)[1]
    old = Units(units.features)
    old.load_state_dict(units.state_dict() | {"totals": units.totals[..., :2]})
    torch.testing.assert_close(old.scatter(statistics)[1], before, rtol=1e-8, atol=0)


def test_the_noise_is_that_of_repeated_pulls_where_there_are_ten():
    x, f = table(400)
    bandit = tb.Bandit(tb.auto(), x, generator=generator(0))
    draw = np.random.default_rng(0)
    once, often = torch.arange(60), torch.tensor([int(f.argmax())]).expand(11)
    for index in (once, once[:5]):
        bandit.tell(index, f[index] + 0.1 * torch.as_tensor(draw.standard_normal(len(index))))
    assert "by the model" in str(bandit.explain())
    rewards = f[often] + torch.as_tensor(draw.standard_normal(11)) * 3.0
    bandit.tell(often, rewards + 10)
    said = bandit.explain()
    assert int(said.best.index) == int(often[0])
    assert said.noise_std == pytest.approx(float(rewards.std()), rel=1e-9), "of the best arm"
    assert "Noise: by repeated pulls, one more reward of the best arm would be off by about " in str(said)
    bandit.tell(often[:4], rewards[:4] - 1_000)
    said, told = bandit.explain(), torch.cat([rewards + 10, rewards[:4] - 1_000])
    assert int(said.best.index) != int(often[0])
    within = float(((told - told.mean()) ** 2).sum()) / (14 + 5)
    assert said.noise_std == pytest.approx(within**0.5, rel=1e-2), "of all arms"


@pytest.mark.exhaustive
@pytest.mark.filterwarnings("ignore:arm .* has taken")
def test_repeats_tell_the_noise_where_no_kernel_is_found():
    """Noise alone explains the averages of ten arms, and the fit is not accepted. The noise of the repeats still counts."""
    x = torch.rand(10, 3, generator=generator(1), dtype=torch.float64)
    rewards = 0.35 + 0.05 * torch.randn(10, generator=generator(0), dtype=torch.float64)
    draws = torch.randn(100, generator=generator(2), dtype=torch.float64)
    bandit = tb.Bandit(tb.auto(batch_size=5), x, generator=generator(3))
    for told in torch.arange(10).split(5):
        bandit.tell(told, rewards[told])
    best, top = 1, 0.35
    for some in (0.5 * (draws - draws.mean()) / draws.std()).split(10):
        bandit.tell(torch.full((10,), best), top + some)
    report = bandit.fit_kernel_()
    assert report.reasons[0].startswith("noise alone explains")
    found, error = bandit.posterior(x[best : best + 1]), 0.5 / 101**0.5
    assert abs(float(found.mean) - top) < 2 * error
    assert error / 4 < float(found.variance) ** 0.5 < 4 * error


def test_rewards_that_are_noise_are_not_taken_for_a_function():
    x = torch.as_tensor(np.random.default_rng(0).uniform(size=(2_000, 6)))
    f = torch.full((2_000,), 90.0, dtype=torch.float64)
    estimates = {}
    for every in (None, 0):
        bandit = tb.Bandit(tb.auto(batch_size=8, replicate_every=every), x, generator=generator(1))
        play(bandit, f, 70, noise_std=5.0)
        estimates[every] = bandit.explain().noise_std
    assert 2.5 < estimates[None] < 10
    assert estimates[0] < 2, "without replicates the model takes it for a function"


@pytest.mark.parametrize("seed", [2, 3])
def test_noise_of_old_results_is_not_taken_for_a_function_of_short_lengthscales(seed: int):
    """Under BoTorch's prior of the noise its share was 0.01, while it is 0.2."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(size=(400, 6))
    waves = np.cos(x @ rng.normal(scale=2.0, size=(6, 60)) + rng.uniform(0, 6, 60)) @ rng.normal(size=60)
    rewards, rows = torch.as_tensor(waves / waves.std()), torch.arange(150)
    bandit = tb.Bandit(tb.auto(), torch.as_tensor(x))
    bandit.tell(rows, rewards[rows] + 0.5 * torch.as_tensor(rng.standard_normal(150)))
    assert 0.1 < bandit.explain().noise_share < 0.4


def test_fingerprints_keep_the_narrow_prior_of_the_noise():
    priors, line = Priors(), torch.ones(1)
    assert priors.of_noise(priors.unit_similarity(line)) == (-4.0, 1.0)
    assert priors.of_noise(priors.unit_kernel(line)) == (-0.75, 1.5)
    assert Priors(noise=(-3.0, 2.0)).of_noise(priors.unit_similarity(line)) == (-3.0, 2.0)


@pytest.mark.exhaustive
@pytest.mark.filterwarnings("ignore:arm .* has taken")
def test_the_width_grows_where_one_arm_is_pulled_again_and_again_and_a_given_one_does_not():
    arms, rewards = table(arms=200)
    own, given = (
        tb.Bandit(tb.auto(**width), arms, generator=generator(0)) for width in ({}, {"width": tb.widths.Constant(2.5)})
    )
    for bandit in (own, given):
        picks = play(bandit, rewards, 60)
        assert float(bandit.width) == 2.5 == float(tb.widths.Growing(2.5)(bandit.loop.state.progress(frozenset({"points"}))))
        bandit.observe(
            torch.tensor(picks[-1:]), torch.tensor([2_000.0]), 2_000 * rewards[picks[-1:]], 2_000 * rewards[picks[-1:]] ** 2
        )
    repeats = 2_060 / len(set(picks)) - 1
    assert float(own.width) == pytest.approx((6.25 + 2 * np.log(repeats / 4)) ** 0.5)
    assert float(given.width) == 2.5


@pytest.mark.exhaustive
@pytest.mark.filterwarnings("ignore:arm .* has taken")
def test_late_fits_still_know_what_the_features_tell_of_arms_that_were_never_pulled():
    """When most averages are those of good arms, which differ by less than the noise, ranks alone draw them apart, and the fit
    finds a function that varies from arm to arm: without the limit of the slopes the correlation falls below 0 here."""
    rng = np.random.default_rng(501)
    x = rng.random((4_000, 3))
    waves = np.cos(x @ rng.normal(scale=1.5, size=(3, 60)) * (4 / 3) ** 0.5 + rng.uniform(0, 2 * np.pi, 60))
    f = waves @ rng.normal(size=60)
    f, noise = f / f.std(), 0.3 * np.random.default_rng([0, 1]).standard_normal(740)
    bandit = tb.Bandit(tb.auto(), torch.as_tensor(x), generator=generator(0))
    for error in noise:
        selection = bandit.ask()
        bandit.tell(selection, torch.as_tensor(f)[selection.index] + error)
    never = bandit.counts.numpy() == 0
    mean = bandit.posterior(torch.as_tensor(x[never])).mean.numpy().ravel()
    assert np.corrcoef(mean, f[never])[0, 1] > 0.5


@pytest.mark.exhaustive
def test_there_are_no_replicates_among_fingerprints_and_bad_numbers_are_refused():
    fingerprints = tb.sources.Fingerprints(torch.randint(0, 256, (200, 8), generator=generator(0), dtype=torch.uint8))
    bandit = tb.Bandit(tb.auto(), fingerprints, generator=generator(0))
    play(bandit, torch.rand(200, generator=generator(1), dtype=torch.float64), 15)
    assert bandit.policy.from_data.replicates(bandit.loop.state, torch.tensor(8)) is None
    for bad in (-1, -8):
        with pytest.raises(errors.ArgumentError, match="replicate_every must be a whole number"):
            tb.auto(replicate_every=bad)


# ------------------------------------------------------------------------- contexts that come one by one


def play_contexts(bandit: tb.ContextualBandit, contexts: Tensor, scale: float) -> list[int]:
    """Ask and tell at one context after the other. The best arm is at the position of the context, in units of `scale`."""
    picks: list[int] = []
    for t, context in enumerate(contexts):
        selection = bandit.ask(context=context)
        picks += selection.index.tolist()
        noise = 0.05 * np.random.default_rng(t).standard_normal(1)
        bandit.tell(selection, -4 * (bandit.arms[picks[-1:]] - context / scale).square().sum(dim=-1) + torch.as_tensor(noise))
    return picks


@pytest.mark.exhaustive
@pytest.mark.parametrize("kept", [1, 3, 40])
def test_nothing_depends_on_the_units_of_contexts_that_come_one_by_one(kept: int):
    """The first context alone gives no range of the contexts, and the first few give too small a range."""
    rng = np.random.default_rng(5)
    arms, contexts = torch.as_tensor(rng.uniform(size=(60, 2))), torch.as_tensor(rng.uniform(size=(16, 2)))
    contexts[:4] *= 0.1
    picks, spans = [], []
    for scale in (1.0, 2.0**12, 2.0**-12):
        bandit = tb.ContextualBandit(tb.auto(), arms, scale * contexts[:1], max_contexts=kept, generator=generator(1))
        picks.append(play_contexts(bandit, scale * contexts, scale))
        spans.append(bandit.loop.state.posterior.units.features / torch.tensor([scale, scale, 1, 1]))
        assert bandit.fit_kernel_().after.isfinite()
    assert picks[0] == picks[1] == picks[2]
    whole = contexts.amax(dim=0) - contexts.amin(dim=0)
    for features in spans:
        assert torch.equal(features[2:], tb.sources.ranges.ranges_of(arms)), "the arms are the same at every context"
        assert (features[:2] <= whole * (1 + 1e-9)).all()
        assert (features[:2] >= 0.7 * whole).all()


@pytest.mark.exhaustive
def test_contexts_that_are_known_at_the_start_are_worth_as_much_when_they_come_one_by_one():
    rng = np.random.default_rng(0)
    arms, contexts = torch.as_tensor(rng.uniform(size=(100, 2))), 1000 * torch.as_tensor(rng.uniform(size=(40, 2)))
    best = -4 * (arms - contexts.unsqueeze(-2) / 1000).square().sum(dim=-1)
    regret = []
    for known, kept in ((40, 40), (1, 1)):
        bandit = tb.ContextualBandit(tb.auto(), arms, contexts[:known], max_contexts=kept, generator=generator(1))
        picks = play_contexts(bandit, contexts, 1000)
        regret.append(float((best.amax(dim=-1) - best[torch.arange(40), picks])[20:].mean()))
    assert regret[1] < 1.2 * regret[0] + 0.1


@pytest.mark.exhaustive
def test_a_feature_that_varies_for_the_first_time_gets_its_range_and_a_later_range_only_grows(tmp_path: Path):
    x, f = table(200)
    flat = x.clone()
    flat[:, 0] = 7.0
    bandit = tb.Bandit(tb.auto(), flat, generator=generator(2), journal=tmp_path / "journal")
    play(bandit, f, 12)
    assert bandit.loop.state.posterior.units.features[0] == 1
    before = float(bandit.posterior.kernel.base_kernel.lengthscale[0, 0])
    other = x.clone()
    other[:, 0] = 7 + 1000 * x[:, 0] / x[:, 0].amax()
    bandit.set_arms_(other)
    assert bandit.loop.state.posterior.units.features[0] == tb.sources.ranges.ranges_of(other)[0]
    assert bandit.posterior.kernel.base_kernel.lengthscale[0, 0] > 100 * before
    wide = bandit.loop.state.posterior.units.features
    bandit.set_arms_(other[other[:, 0] < 200])
    assert torch.equal(bandit.loop.state.posterior.units.features, wide)
    play(bandit, f, 6)
    with pytest.raises(errors.StateError):
        tb.Bandit(tb.auto(), other, generator=generator(2), journal=tmp_path / "journal")
    assert np.isfinite(bandit.posterior(other).mean.numpy()).all()


def test_a_history_of_other_points_is_explained_as_such():
    x, f = table(400)
    rest, own = tb.Bandit(tb.auto(), x[200:], generator=generator(1)), tb.Bandit(tb.auto(), x, generator=generator(1))
    index, ones = torch.arange(40), torch.ones(40, dtype=torch.float64)
    rest.observe(x[:40], ones, f[:40], f[:40].square())
    own.observe(index, ones, f[:40], f[:40].square())
    said, same = rest.explain(), own.explain()
    assert said.lines()[0].startswith("Best so far: a point that is none of the arms, with the reward expected at ")
    assert said.lines()[0].endswith("after 40 rewards of 0 of 200 arms and 40 other points.")
    assert same.lines()[0].endswith("after 40 rewards of 40 of 400 arms.")
    # Ranges of features differ a little between the two lists.
    assert said.noise_std == pytest.approx(same.noise_std, rel=0.3)
    assert said.uncertainty == pytest.approx(same.uncertainty, rel=0.3)
    assert said.lead == pytest.approx(same.lead, rel=0.3)


def test_arms_that_change_before_the_first_reward_widen_the_ranges_too():
    x, f = table(100)
    bandit = tb.Bandit(tb.auto(), x, generator=generator(2))
    selection = bandit.ask()
    bandit.set_arms_(torch.cat([x, 3 * x]))
    assert torch.equal(bandit.loop.state.posterior.units.features, tb.sources.ranges.ranges_of(torch.cat([x, 3 * x])))
    bandit.tell(selection, f[selection.index])
    assert int(bandit.best_arm()) == int(selection.index)
    contextual = tb.ContextualBandit(tb.auto(), x, torch.zeros(1, 1, dtype=torch.float64))
    assert len(contextual.ask(context=torch.full((1,), 3.0, dtype=torch.float64))) == 1


def test_a_journal_resumes_after_the_arms_have_changed_and_widened_the_ranges(tmp_path: Path):
    x, f = table(100)
    bandit = tb.Bandit(tb.auto(), x, generator=generator(2), journal=tmp_path / "journal")
    play(bandit, f, 8)
    bandit.set_arms_(torch.cat([x, 3 * x]))
    play(bandit, torch.cat([f, f]), 2)
    bandit.recorder.settle()
    after = copy.deepcopy(bandit.state_dict())
    bandit.journal.close()
    resumed = tb.Bandit(tb.auto(), x, generator=generator(2), journal=tmp_path / "journal")
    assert len(resumed.arms) == 200
    assert not differences(resumed.state_dict(), after)


# ------------------------------------------------------------------------- beyond what an exact posterior may take


@pytest.mark.exhaustive
def test_a_dictionary_takes_over_where_memory_ends():
    x, f = table(500)
    bandit = tb.Bandit(tb.auto(batch_size=4, memory_budget=500 * 8 * 36), x, generator=generator(6))
    play(bandit, f, 36)
    assert not bandit.loop.state.posterior.sparse
    before = copy.deepcopy(bandit.state_dict())
    play(bandit, f, 80)
    assert bandit.loop.state.posterior.sparse
    assert 1 < int(bandit.dictionary.numel()) <= bandit.loop.state.statistics.size
    assert f[bandit.best_arm()] > f.topk(25).values[-1]
    resumed = tb.Bandit(bandit.policy, x, generator=generator(7)).load_state_dict(bandit.state_dict())
    assert play(resumed, f, 20) == play(bandit, f, 20)
    bandit.load_state_dict(before)  # to the state before
    assert not bandit.loop.state.posterior.sparse
    twin = tb.Bandit(bandit.policy, x, generator=generator(8)).load_state_dict(before)
    assert play(twin, f, 20) == play(bandit, f, 20)


def test_fits_become_rarer():
    pulls = torch.arange(1, 5_000, dtype=torch.float64)
    fitted = pulls[1:][FromData()._fits_by(pulls).diff() > 0].tolist()
    # Between two fits the number of pulls grows by a factor of 1.5, and beyond 256 pulls by its square.
    assert fitted == [2, 3, 4, 5, 8, 12, 17, 26, 38, 57, 86, 129, 193, 325, 731, 1644, 3699]
    for history, expected in ((40, [8, 12, 17, 26]), (300, [12, 26, 57, 129])):
        after = FromData()._fits_after(torch.tensor(float(history), dtype=torch.float64), pulls)
        assert pulls[1:][after.diff() > 0].tolist()[:4] == expected


def fitted_after(bandit: tb.Bandit, f: Tensor, steps: int, size: int, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of the batches of a size after which the kernel was fitted."""
    fits, fit = [], FromData.refit
    with monkeypatch.context() as patched:
        patched.setattr(FromData, "refit", lambda self, *given, **named: (fits.append(1), fit(self, *given, **named))[1])
        numbers = [len(fits)]
        for _ in range(steps):
            play(bandit, f, size, limit=size)
            numbers.append(len(fits))
    return np.flatnonzero(np.diff(numbers)).tolist()


@pytest.mark.parametrize("how", ["tell", "observe", "rows", "outcomes"])
def test_after_a_history_fits_are_as_frequent_as_without(how: str, monkeypatch: pytest.MonkeyPatch):
    """A history may lack all good arms: what is asked for after it has its own schedule of fits, until it is twice as long."""
    x, f = table()
    arms, batch = torch.arange(60), tb.auto(batch_size=4)
    if how == "outcomes":
        models = {"yield": tb.auto(), "toxicity": tb.auto()}
        several = tb.outcomes.constrained(models, maximize="yield", at_most={"toxicity": 90.0})
        both = tb.OutcomeBandit(several, x, generator=generator(0))
        both.tell(arms, {"yield": f[arms], "toxicity": f[arms]})
        assert both.loop.state.posterior.units.unasked.tolist() == [[60.0], [60.0]]
        for asked in range(1, 10):
            selection = both.ask(exactly=1)
            kernel = both.loop.state.posterior.kernel
            both.tell(selection, {"yield": f[selection.index], "toxicity": f[selection.index]})
            assert (both.loop.state.posterior.kernel is kernel) == (asked != 8)
        return
    made = [generator(0), generator(1)] if how == "rows" else generator(0)
    bandit = tb.Bandit(batch, x, generator=made)
    if how == "rows":
        bandit.tell(torch.stack([arms, torch.full_like(arms, -1)]), f[arms].expand(2, -1))
        assert bandit.loop.state.posterior.units.unasked.tolist() == [[60.0], [0.0]]
        return
    bandit.tell(arms, f[arms]) if how == "tell" else bandit.observe(arms, torch.ones(60), f[arms])
    # At 8, 12, 20 and 28 pulls asked for, by `test_fits_become_rarer`; of all pulls, at 88, which is the same batch.
    assert fitted_after(bandit, f, 8, 4, monkeypatch) == [1, 2, 4, 6]
    again = tb.Bandit(batch, x, generator=generator(0)).load_state_dict(bandit.state_dict())
    assert fitted_after(bandit, f, 4, 4, monkeypatch) == fitted_after(again, f, 4, 4, monkeypatch)


def test_a_single_pull_that_was_not_asked_for_changes_no_schedule(monkeypatch: pytest.MonkeyPatch):
    x, f = table()
    with_one, without = (tb.Bandit(tb.auto(batch_size=4), x, generator=generator(0)) for _ in range(2))
    with_one.tell(torch.tensor([3]), f[3:4])
    play(with_one, f, 39)
    play(without, f, 40)
    assert fitted_after(with_one, f, 8, 4, monkeypatch) == fitted_after(without, f, 8, 4, monkeypatch)


def test_a_fit_to_many_points_takes_some_evenly_spaced_in_the_order_of_their_averages():
    y = torch.as_tensor(np.random.default_rng(0).standard_normal(101))
    averages = Averages(torch.stack([y, y], dim=-1), 1 + y.square(), y, y.abs())
    some = averages.thinned(51)
    assert torch.equal(some.residuals, y.sort().values[::2])
    assert torch.equal(some.points[:, 0], some.residuals)
    assert torch.equal(some.weights, 1 + some.residuals.square())
    assert torch.equal(some.scatter, some.residuals.abs())
    assert averages.thinned(101) is averages


@pytest.mark.parametrize("effect", [0.0, 0.4])
@pytest.mark.parametrize("misfit", [False, True])
@pytest.mark.parametrize("pulls", [1.0, 3.0])
@pytest.mark.parametrize("fixed", [None, "raw_outputscale", "base_kernel.raw_lengthscale"])
def test_slopes_in_closed_form_are_those_of_autograd(fixed: str | None, pulls: float, misfit: bool, effect: float):
    draw, priors = generator(3), Priors()
    points = torch.rand(40, 3, generator=draw, dtype=torch.float64)
    n, y = torch.full((40,), pulls, dtype=torch.float64), torch.sin(5 * points.sum(dim=-1))
    averages = Averages.of(points, n, n * y, n * y.square() + 0.3 * (n - 1), 0.0)
    kernel = priors.unit_kernel(torch.ones(3, dtype=torch.float64))
    kernel = with_effect(kernel, torch.tensor(effect, dtype=torch.float64)) if effect else kernel
    names = [name for name, _ in kernel.named_parameters() if name not in (fixed, "effect")]
    for name, parameter in kernel.named_parameters():
        parameter.requires_grad_(name in names)
    prior = gpytorch.priors.LogNormalPrior(*priors.of_noise(kernel)).to(points)
    climb = Climb(kernel, names, averages, 0.02, noise=True, misfit=misfit, noise_prior=prior)
    # Repeated pulls tell the noise.
    assert len(climb._parameters) == len(names) + (pulls == 1) + misfit
    climb._log_misfit.fill_(-2.0 if misfit else -torch.inf)
    parameters = [parameter.requires_grad_(True) for parameter in climb._parameters.values()]
    assert climb._in_closed_form(None)
    (value, slopes), (expected, by_autograd) = (climb._slopes(parameters, None, closed) for closed in (True, False))
    assert torch.allclose(value, expected, rtol=1e-13, atol=0)
    for slope, own in zip(slopes, by_autograd, strict=True):
        assert own.abs().max() > 0
        assert torch.allclose(slope, own, rtol=1e-10, atol=1e-12)


# ------------------------------------------------------------------------- what features do not explain


def rough_table(arms: int = 600) -> tuple[Tensor, Tensor]:
    """Rewards that follow two features and, by as much again, none; a third feature does not matter."""
    rng = np.random.default_rng(5)
    x = rng.uniform(size=(arms, 3))
    return torch.as_tensor(x), torch.as_tensor(np.sin(4 * x[:, 0]) + x[:, 1] + 0.6 * rng.normal(size=arms))


@pytest.mark.exhaustive
def test_arms_have_effects_that_features_do_not_explain(tmp_path: Path):
    """Without effects, the lengthscales would be as short as the distances between arms."""
    x, f = rough_table()
    bandit, plain = (tb.Bandit(own, x, generator=generator(1)) for own in (tb.auto(batch_size=10), without_effects(10)))
    for one in (bandit, plain):
        play(one, f, 200)
    kernel, smooth = bandit.posterior.kernel, plain.posterior.kernel
    assert isinstance(kernel, RandomEffectKernel)
    assert type(smooth) is gpytorch.kernels.ScaleKernel
    assert 0.3 < float(kernel.effect) / float(kernel.effect + kernel.outputscale) < 0.9
    assert float(kernel.base_kernel.lengthscale[0, 2]) > 1, "the feature that does not matter"
    assert (kernel.base_kernel.lengthscale > 0.25).all()
    assert float(smooth.base_kernel.lengthscale.min()) < 0.1
    apart = torch.as_tensor(np.setdiff1d(np.arange(600), bandit.loop.state.rows.arm_of_row.numpy()))
    error, without = ((one.posterior(x[apart]).mean - f[apart]).square().mean() ** 0.5 for one in (bandit, plain))
    assert error < 0.95 * without
    said = bandit.explain()
    assert 0.3 < said.unexplained < 0.9
    assert "of the variance between arms, by rank, does not follow the features." in str(said)
    assert plain.explain().unexplained == 0
    # A state with effects is loaded by a bandit without, and the other way round.
    for one, other in ((bandit, plain), (plain, bandit)):
        resumed = tb.Bandit(one.policy, x, generator=generator(7))
        play(resumed, f, 30)
        resumed.load_state_dict(one.state_dict())
        twin = copy.deepcopy(one)
        assert play(resumed, f, 40) == play(twin, f, 40)
        assert type(other.posterior.kernel) is not type(one.posterior.kernel)


@pytest.mark.parametrize("repeats", [0, 2, 3])
def test_three_repeats_tell_effects_from_noise(repeats: int):
    """The arm with the highest average is recommended then, however few of the rewards the features explain."""
    x, f = rough_table(60)
    rewards = f + 0.02 * torch.as_tensor(np.random.default_rng(0).standard_normal(60))
    n = torch.ones(60, dtype=torch.float64)
    n[:repeats] = 2
    bandit = tb.Bandit(tb.auto(), x, generator=generator(1))
    bandit.observe(torch.arange(60), n, n * rewards, n * rewards.square() + 0.0004 * (n - 1))
    assert isinstance(bandit.posterior.kernel, RandomEffectKernel) == (repeats == 3)
    if repeats == 3:
        assert bandit.best_arm() == rewards.argmax()
        assert bandit.explain().noise_share < 0.2


def test_fingerprints_have_no_effects():
    draw = generator(0)
    arms = tb.sources.Fingerprints(torch.randint(0, 256, (300, 16), generator=draw, dtype=torch.uint8))
    f = torch.randn(300, generator=draw, dtype=torch.float64)
    bandit = tb.Bandit(tb.auto(), arms, generator=generator(0))
    with pytest.warns(errors.DiagnosticWarning, match="of the last 40 pulls"):
        play(bandit, f, 120)
    assert bool(bandit.policy.from_data.knows_noise(bandit.loop.state))
    assert type(bandit.posterior.kernel) is gpytorch.kernels.ScaleKernel
    # A kernel with effects, as in a state of before, loses them at the next fit, and is treated as a similarity until then.
    posterior = bandit.loop.state.posterior
    width = bandit.policy.width(bandit.loop.state)
    posterior.set_kernel_(with_effect(posterior.kernel, torch.ones((), dtype=torch.float64)), posterior.regularization)
    assert torch.equal(bandit.policy.width(bandit.loop.state), width)
    bandit.policy.from_data.refit(bandit.loop.state, torch.ones((), dtype=torch.bool))
    assert type(bandit.posterior.kernel) is gpytorch.kernels.ScaleKernel


def test_a_state_with_nan_in_its_kernel_is_refused():
    x, f = table(60)
    bandit = tb.Bandit(tb.auto(), x, generator=generator(2))
    play(bandit, f, 8)
    state = bandit.state_dict()
    state["state"]["records.kernel.raw_outputscale"] = torch.tensor(torch.nan, dtype=torch.float64)
    other = tb.Bandit(tb.auto(), x, generator=generator(2))
    with pytest.raises(errors.StateError, match=r"NaN in records\.kernel\.raw_outputscale: it is damaged"):
        other.load_state_dict(state)
    assert not other.loop.state.told.any()


def without_effects(batch_size: int, memory_budget: int = 2 << 30) -> tb.ingredients.Composed:
    policy = tb.auto(batch_size=batch_size, memory_budget=memory_budget)
    return replace(policy, from_data=replace(policy.from_data, effects=False))


def test_the_posterior_with_effects_is_that_of_dense_numpy():
    x, f = rough_table()
    bandit = tb.Bandit(tb.auto(batch_size=10), x, generator=generator(1))
    picks = play(bandit, f, 200)
    bandit.fit_kernel_()
    picks += play(bandit, f, 10)
    state = bandit.loop.state
    process, u = state.posterior, list(dict.fromkeys(picks))
    n, sums = (process.statistics.totals[:, column].numpy() for column in (0, 1))
    assert state.rows.arm_of_row.tolist() == u
    s, scales, effect = (
        t.numpy() for t in (process.kernel.outputscale, process.kernel.base_kernel.lengthscale, process.kernel.effect)
    )
    points, assumed = x.numpy(), s + effect
    K = s * matern52(points[u], points, scales.ravel())
    K[np.arange(len(u)), u] += effect
    A = K[:, u] + process.regularization * np.diag(1 / n)
    solved = np.linalg.solve(A, K)
    np.testing.assert_allclose(state.arm_mean(), solved.T @ (sums / n), rtol=1e-6, atol=1e-6)
    variance = assumed - (K * solved).sum(axis=0)
    np.testing.assert_allclose(process.regularization * state.arm_leverage(), variance, rtol=1e-6, atol=1e-6)
    new = np.setdiff1d(np.arange(600), u)
    assert variance[new].min() > effect, "an arm that was not pulled keeps its own deviation"
    assert variance[u].max() < effect


@pytest.mark.exhaustive
def test_a_history_in_double_precision_tells_of_the_arms_that_were_made_of_it():
    """An arm in single precision and the point that it was rounded from share their effect."""
    x, f = rough_table()
    bandit = tb.Bandit(tb.auto(batch_size=10), x.float(), generator=generator(1))
    play(bandit, f, 200)
    assert isinstance(bandit.posterior.kernel, RandomEffectKernel)
    bandit.observe(x[:100], torch.ones(100), f[:100], f[:100].square())
    state = bandit.loop.state
    assert (state.rows.row_of_arm[:100] >= 0).all()
    assert bandit.explain().elsewhere == 0
    process = state.posterior
    K = process.kernel(process.statistics.points, x.float().double()).to_dense().numpy()
    A = K[:, state.rows.arm_of_row] + process.regularization * np.diag(1 / process.statistics.weights)
    solved = np.linalg.solve(A, K)
    means = process.statistics.totals[:, 1] / process.statistics.totals[:, 0]
    np.testing.assert_allclose(state.arm_mean(), solved.T @ means.numpy(), rtol=1e-3, atol=1e-3)
    variance = float(process.kernel.outputscale + process.kernel.effect) - (K * solved).sum(axis=0)
    np.testing.assert_allclose(process.regularization * state.arm_leverage(), variance, rtol=1e-3, atol=1e-3)


def test_there_are_no_effects_where_stored_points_have_more_digits_than_the_arms(monkeypatch: pytest.MonkeyPatch):
    """As in states that earlier versions saved: a point would be the same as an arm on some paths, and another on others."""
    x, f = rough_table()
    bandit = tb.Bandit(tb.auto(batch_size=10), x.float(), generator=generator(1))
    with monkeypatch.context() as patched:
        patched.setattr(FromData, "in_dtype_of_arms", lambda *given: given[-1])
        bandit.observe(x[:5], torch.ones(5), f[:5], f[:5].square())
    play(bandit, f, 200)
    assert type(bandit.posterior.kernel) is gpytorch.kernels.ScaleKernel
    assert (bandit.loop.state.arm_leverage() > 0).all()


def test_draws_of_many_arms_follow_a_kernel_that_gets_effects():
    """Fourier features draw a smooth function, and there are none of an effect."""
    x, f = rough_table(2100)
    policy = replace(tb.auto(batch_size=10), score=tb.ingredients.PosteriorDraw())
    bandit = tb.Bandit(policy, x, generator=generator(1))
    play(bandit, f, 10)
    draws = bandit.loop.state.draws
    assert draws.kind == "fourier"
    n, y = torch.full((100,), 3.0, dtype=torch.float64), f[:100]
    bandit.observe(torch.arange(100), n, n * y, n * y.square() + 0.02)
    assert isinstance(bandit.posterior.kernel, RandomEffectKernel)
    assert len(play(bandit, f, 20)) == 20
    state = bandit.loop.state
    one = torch.ones((), dtype=torch.float64)
    drawn = torch.cat(list(state.draws.draw([3000], one, [generator(2)])), dim=-2)
    variance = state.posterior.regularization * state.arm_leverage()
    np.testing.assert_allclose(drawn.var(dim=-2) / variance, 1.0, atol=0.15)
    assert ((drawn.mean(dim=-2) - state.arm_mean()) / variance.sqrt()).abs().max() < 0.1


@pytest.mark.parametrize("seed", [0, 2])
def test_the_variance_of_effects_is_found(seed: int):
    """Six pulls each of 200 arms, all of them drawn from the model."""
    draw = np.random.default_rng(seed)
    x = torch.as_tensor(draw.uniform(size=(200, 2)))
    K = matern52(x.numpy(), x.numpy(), np.array([0.7, 0.7])) + 0.5 * np.eye(200)
    f = torch.as_tensor(np.linalg.cholesky(K) @ draw.normal(size=200))
    n, scatter = torch.full((200,), 6.0, dtype=torch.float64), torch.as_tensor(0.01 * draw.chisquare(5, size=200))
    for policy in (tb.auto(), without_effects(1)):
        bandit = tb.Bandit(policy, x, generator=generator(0))
        bandit.observe(torch.arange(200), n, n * f, n * f.square() + scatter)
        posterior = bandit.loop.state.posterior
        own = posterior.kernel
        if policy.from_data is not None and policy.from_data.effects is not False:
            assert isinstance(own, RandomEffectKernel)
            share = float(own.effect / (own.effect + own.outputscale))
            assert 0.15 < share < 0.6
            assert (own.base_kernel.lengthscale > 0.3).all()
            # A fit of no row keeps everything.
            fit_standardized_(posterior, Priors(), torch.tensor(False), effects=True)
            assert isinstance(posterior.kernel, RandomEffectKernel)
            assert torch.equal(posterior.kernel.effect, own.effect)
        else:
            assert type(own) is gpytorch.kernels.ScaleKernel
            assert float(own.base_kernel.lengthscale.min()) < 0.2


@pytest.mark.exhaustive
def test_the_effects_of_a_row_that_is_not_fitted_stay_as_they_are():
    """To the last digit."""
    x, f = rough_table(100)
    n = torch.full((30, 40), 3.0, dtype=torch.float64)
    shifted = torch.stack([f.roll(row)[:40] for row in range(30)])
    bandit = tb.Bandit(tb.auto(), x.expand(30, -1, -1), generator=[generator(row) for row in range(30)])
    bandit.observe(torch.arange(40).expand(30, -1), n, n * shifted, n * shifted.square() + 0.02)
    posterior = bandit.loop.state.posterior
    assert isinstance(posterior.kernel, RandomEffectKernel)
    posterior.kernel.effect.data = 1 + torch.rand(30, generator=generator(0), dtype=torch.float64)
    before, rows = posterior.kernel.effect.clone(), torch.zeros(30, dtype=torch.bool)
    fit_standardized_(posterior, Priors(), rows, effects=True)
    assert torch.equal(posterior.kernel.effect, before)


@pytest.mark.exhaustive
def test_effects_remain_with_a_dictionary():
    """Without them, the lengthscales would become as short as the distances between arms once there is a dictionary."""
    x, f = rough_table()
    bandit, exact = (
        tb.Bandit(tb.auto(batch_size=10, memory_budget=budget), x, generator=generator(1))
        for budget in (600 * 8 * 200, 2 << 30)
    )
    play(bandit, f, 200)
    kernel = bandit.posterior.kernel
    assert isinstance(kernel, RandomEffectKernel)
    while not bandit.loop.state.posterior.sparse:
        play(bandit, f, 10)
        kernel = bandit.posterior.kernel
    # Noise and effect as shares of the variance of the function, before and after.
    share = float((1 + kernel.effect) / kernel.outputscale)
    for pulls in (0, 200):
        play(bandit, f, pulls)
        kernel = bandit.posterior.kernel
        assert isinstance(kernel, RandomEffectKernel)
        assert float((1 + kernel.effect) / kernel.outputscale) == pytest.approx(share, rel=1)
        assert float(kernel.base_kernel.lengthscale.min()) > 0.25
    said = bandit.explain()
    assert 0.3 < said.unexplained < 0.9
    # Given the same data, mean and deviation are nearly those of the exact posterior, at pulled arms and at others.
    state, statistics = bandit.loop.state, bandit.loop.state.statistics
    assert bandit.dictionary.numel() < statistics.size
    n, y, scatter = statistics.weights, bandit.posterior.units.averages(statistics), bandit.posterior.units.totals[:, 2]
    exact.observe(state.rows.arm_of_row, n, n * y, n * y.square() + scatter)
    other = exact.loop.state.posterior
    other.set_kernel_(copy.deepcopy(state.posterior.kernel), state.posterior.regularization)
    other.units.load_state_dict(state.posterior.units.state_dict())
    other.statistics.retell_(statistics.totals, torch.tensor(True))
    found, right = bandit.posterior(x), other(x)
    torch.testing.assert_close(bandit.posterior(x).mean, state.in_reward_units(state.arm_mean(), state.arm_mean()).mean)
    pulled = torch.zeros(600, dtype=torch.bool).index_fill(0, state.rows.arm_of_row, True)
    for some in (pulled, ~pulled):
        error, deviation = found.mean[some] - right.mean[some], right.variance[some].sqrt()
        assert (error / deviation).square().mean() < 0.1
        assert float((found.variance[some].sqrt() / deviation).log().abs().median()) < 0.1
    resumed = tb.Bandit(bandit.policy, x, generator=generator(7)).load_state_dict(bandit.state_dict())
    assert play(resumed, f, 20) == play(bandit, f, 20)


@pytest.mark.exhaustive
@pytest.mark.parametrize("memory_budget", [2 << 30, 150 * 8 * 45])
def test_effects_on_a_device_and_in_batch_rows(memory_budget: int):
    x, f = rough_table(300)
    alone, policy = [], tb.auto(batch_size=10, memory_budget=memory_budget)
    for row in range(2):
        bandit = tb.Bandit(policy, x[row * 150 : row * 150 + 150], generator=generator(row))
        alone.append(play_row(bandit, f[row * 150 : row * 150 + 150], row))
        assert isinstance(bandit.posterior.kernel, RandomEffectKernel)
        assert bandit.loop.state.posterior.sparse == (memory_budget < 2 << 30)
    arms = x.reshape(2, 150, 3)
    # Batch rows share the memory, and both alone have their dictionaries from the same step on.
    own = tb.auto(batch_size=10, memory_budget=2 * memory_budget)
    together = tb.Bandit(own, arms, generator=[generator(0), generator(1)])
    picked = [[], []]
    for step in range(14):
        selection = together.ask()
        noise = torch.stack([noise_of(row, step, selection.index.shape[-1]) for row in range(2)])
        together.tell(selection, f.reshape(2, 150).gather(-1, selection.index.clamp_min(0)) + noise)
        for row in range(2):
            picked[row] += selection.index[row][selection.mask[row]].tolist()
    assert picked == alone
    with emulated_device():
        there = tb.Bandit(policy, x[:150].cuda(), generator=generator(0))
        assert play_row(there, f[:150], 0) == alone[0]
        assert isinstance(there.posterior.kernel, RandomEffectKernel)


def noise_of(row: int, step: int, count: int) -> Tensor:
    return 0.1 * torch.as_tensor(np.random.default_rng([row, step]).standard_normal(count))


def play_row(bandit: tb.Bandit, f: Tensor, row: int) -> list[int]:
    picks: list[int] = []
    for step in range(14):
        selection = bandit.ask()
        rewards = f[selection.index.cpu()] + noise_of(row, step, len(selection.index))
        bandit.tell(selection, rewards.to(selection.index.device))
        picks += selection.index.tolist()
    return picks


@pytest.mark.parametrize("pulls", [5, 60])
def test_arms_are_up_to_date_after_a_tell_that_makes_a_fit_due(pulls: int):
    x, f = table()
    bandit = tb.Bandit(tb.auto(batch_size=5), x, generator=generator(11))
    play(bandit, f, pulls)
    state = bandit.loop.state
    assert bool((FromData()._fits_by(state.told) > FromData()._fits_by(state.told - 5)).all())
    model = state.posterior.marginals(x, None)
    torch.testing.assert_close(state.table.mean(), model.mean, rtol=1e-8, atol=1e-8)
    variance = state.posterior.regularization * state.table.leverage
    torch.testing.assert_close(variance, model.variance, rtol=1e-6, atol=1e-8)


def test_an_update_that_fails_is_undone_whole(monkeypatch: pytest.MonkeyPatch):
    x, f = table(500)
    bandit = tb.Bandit(tb.auto(batch_size=4, memory_budget=500 * 8 * 17), x, generator=generator(6))
    while bandit.loop.state.statistics.size < 14:  # the next four exceed the memory budget
        play(bandit, f, 1)
    selection, before = bandit.ask(), copy.deepcopy(bandit.state_dict())
    assert not bandit.loop.state.posterior.sparse

    def fail(*_: object, **__: object) -> None:
        raise errors.NumericalError("on purpose")

    with monkeypatch.context() as patched:
        patched.setattr("torchbandits.policies.from_data.fit_standardized_", fail)
        patched.setattr("torchbandits.policies.from_data.FromData._fits_by", lambda self, pulls: pulls)
        with pytest.raises(errors.NumericalError, match="on purpose"):
            bandit.tell(selection, f[selection.index])
    assert not bandit.loop.state.posterior.sparse
    for name, value in before["state"].items():
        if isinstance(value, Tensor):
            assert torch.equal(value, bandit.state_dict()["state"][name]), name
    twin = tb.Bandit(bandit.policy, x, generator=generator(9)).load_state_dict(before)
    assert play(bandit, f, 30) == play(twin, f, 30)


# ------------------------------------------------------------------------- what it says


def test_it_explains_itself_in_five_lines(tmp_path):
    x, f = table()
    bandit = tb.Bandit(tb.auto(), x, generator=generator(10))
    with pytest.raises(errors.StateError, match="no reward was told yet"):
        bandit.explain()
    play(bandit, f, 3)
    assert "5 distinct arms" in str(bandit.explain())
    play(bandit, f, 7)
    early = "With fewer than 24 distinct arms this order often changes."
    assert str(bandit.explain()).splitlines()[1].endswith(early)
    play(bandit, f, 33)
    assert bandit.explain().distinct >= 24
    assert early not in str(bandit.explain())
    said = bandit.explain(names=["dose", "heat", "time"])
    lines = str(said).splitlines()
    assert [line.partition(":")[0] for line in lines] == ["Best so far", "Features", "Noise", "How sure", "Guarantee"]
    assert "dose" in lines[1]
    assert f"arm {int(bandit.best_arm())}" in lines[0]
    assert "igp_ucb" in lines[4]
    assert float(said.relevance.sum()) == pytest.approx(1)
    assert 0.02 < said.noise_std < 1.0, "0.1 was added"
    said.figure().savefig(tmp_path / "features.png")
    with pytest.raises(errors.ArgumentError, match="each of the 3 features"):
        bandit.explain(names=["one"])
    with pytest.raises(errors.ArgumentError, match="row must be"):
        bandit.explain(row=2)
    two = tb.Bandit(tb.gp_ucb(gpytorch.kernels.RBFKernel().double(), noise_std=0.1), x, generator=[generator(0), generator(1)])
    two.tell(torch.tensor([[1], [-1]]), torch.ones(2, 1))
    assert two.explain(row=0).distinct == 1
    with pytest.raises(errors.StateError, match=r"no reward was told yet in batch row \(1,\)"):
        two.explain(row=1)
    other = tb.Bandit(tb.uniform(), x)
    other.tell(torch.tensor([1]), torch.ones(1))
    with pytest.raises(errors.UnsupportedError, match="Gaussian process"):
        other.explain()


@pytest.mark.parametrize(
    ("distinct", "features", "needed"), [(23, 2, 24), (24, 2, None), (29, 10, 30), (30, 10, None), (5, 1, None)]
)
def test_an_order_of_features_from_few_arms_is_said_to_change(distinct: int, features: int, needed: int | None):
    said = unsettled(distinct, [f"feature {j}" for j in range(features)], Words())
    assert said == ("" if needed is None else f" With fewer than {needed} distinct arms this order often changes.")


def noisy_run(signal: float, noise_std: float, seed: int, pulls: int) -> tb.Bandit:
    """Run `auto` on a smooth peak of standard deviation `signal` over 400 arms. The caller handles its warnings."""
    rng = np.random.default_rng(seed)
    x = torch.as_tensor(rng.uniform(size=(400, 3)))
    f = -(x - 0.35).square().sum(-1)
    f = f * signal / f.std()
    bandit = tb.Bandit(tb.auto(), x, generator=generator(seed))
    for _ in range(pulls):
        selection = bandit.ask()
        bandit.tell(selection, f[selection.index] + noise_std * torch.as_tensor(rng.standard_normal(1)))
    return bandit


@pytest.mark.exhaustive
@pytest.mark.filterwarnings("ignore:arm .* of the last 40 pulls")
@pytest.mark.parametrize("seed", [15, 23])
def test_rewards_that_are_noise_alone_are_told_from_those_of_a_run_that_repeats_its_best_arm(seed: int):
    noise, good = noisy_run(0.0, 1.0, 3, 200), noisy_run(1.0, 0.3, seed, 400)
    assert noise.explain().noise_share > 0.9
    assert noise.explain().lead < 2.5
    assert not noise.explain().share_repeated
    assert "look like noise alone" in str(noise.explain())
    said = good.explain()
    assert said.lead > 5
    assert "look like noise alone" not in str(said)
    # The model's own units are ranks, in which the best arms differ by less than other arms do.
    state = good.loop.state
    assert share_of_noise(state.posterior, state.posterior.regularization, ()) > said.noise_share + 0.1
    assert said.share_repeated
    n, units = state.statistics.weights.numpy(), state.posterior.units
    averages = units.totals[:, 0].numpy() / n
    own = (units.totals[:, 1].numpy() - n * averages**2).sum() / (n - 1).sum()
    assert 0.2 < own**0.5 < 0.4
    assert said.noise_share == pytest.approx(own / (own + averages.var(ddof=1) - own * (1 / n).mean()))
    assert said.noise_share < 0.5
    assert f"noise is {said.noise_share:.0%} of the variance over the arms pulled." in str(said)
    # In dense numpy, from the posterior of the arms pulled.
    pulled = (good.counts > 0).nonzero().squeeze(-1)
    state = good.loop.state
    mean, variance = state.arm_mean()[pulled].numpy(), state.arm_leverage()[pulled].numpy()
    best = mean.argmax()
    assert said.lead == pytest.approx((mean[best] - mean.mean()) / np.sqrt(variance[best] + 1 / 400))


def plates(noise_std: float, seed: int, pulls: int = 48) -> tuple[tb.Bandit, Tensor]:
    """Run `auto` on a smooth peak of standard deviation 1 over 400 arms, eight picks at a time."""
    rng = np.random.default_rng(seed)
    x = torch.as_tensor(rng.uniform(size=(400, 3)))
    f = -(x - 0.35).square().sum(-1)
    f = f / f.std()
    bandit = tb.Bandit(tb.auto(), x, generator=generator(seed))
    for _ in range(pulls // 8):
        selection = bandit.ask(exactly=8)
        bandit.tell(selection, f[selection.index] + noise_std * torch.as_tensor(rng.standard_normal(8)))
    return bandit, f


@pytest.mark.exhaustive
def test_a_best_arm_that_noise_leaves_in_doubt_is_not_to_be_relied_on():
    noisy, f = plates(1.0, 8)
    clear, _ = plates(0.1, 1)
    said = noisy.explain()
    # In dense numpy, from the posterior of the arms pulled.
    pulled = (noisy.counts > 0).nonzero().squeeze(-1)
    state = noisy.loop.state
    mean, v = state.arm_mean()[pulled].numpy(), state.arm_leverage()[pulled].numpy()
    assert said.uncertainty == pytest.approx(np.sqrt(v[mean.argmax()]) / mean.std())
    assert said.uncertainty > 0.5
    assert f[pulled].max() > f[int(said.best.index[0])], "another arm is in fact better"

    def after(pulls: int) -> float:
        return float(np.sqrt(1 / (1 / v[mean.argmax()] + pulls)) / mean.std())

    assert after(said.repeats) <= 0.5 < after(said.repeats - 1)
    sure = str(said).splitlines()[3]
    assert "Do not rely on the best arm yet: noise leaves its mean uncertain by" in sure
    assert f"make about {said.repeats} more pulls of each of the 5 best arms." in sure
    assert clear.explain().uncertainty < 0.5
    assert clear.explain().doubt() == ""
    assert "rely" not in str(clear.explain())


def test_the_words_of_doubt():
    said = plates(0.1, 1)[0].explain()
    once = replace(said, uncertainty=0.6, repeats=1)
    rows = Words("row", "column", "measurement", "measured", "measurement", "evaluation", "yield", "below", {7: "A7"})
    assert replace(once, words=rows).doubt() == (
        "Do not rely on the best row yet: noise leaves its mean uncertain by 60% of the spread of the means of the rows "
        "measured, so that another of these rows is probably as good or better. Go on if you can; to choose among them now, "
        "make about 1 more measurement of each of the 5 best rows."
    )
    assert "less noisy" in replace(said, uncertainty=2.0, repeats=1234).doubt()
    assert "about 1,234 more pulls" in replace(said, uncertainty=2.0, repeats=1234).doubt()
    alone = replace(said, uncertainty=2.0, noise_share=0.95, lead=1.0)
    assert alone.doubt() == "So far the rewards look like noise alone: no arm is known to be better than the others."
    assert str(alone).count("noise alone") == 1
    assert "rely" not in str(alone)
    worse = replace(
        once,
        words=rows,
        noise_share=0.95,
        share_repeated=False,
        lead=5.0,
        repeated=(7, 21, "because."),
        noise_estimated=True,
        pulls=48.0,
    )
    text = str(replace(worse, distinct=48))
    assert "one more measurement of the best row would be off by about" in text
    assert "the best row is 5 standard errors below the average of the rows measured" in text
    assert "noise is 95% of the variance over the rows measured, by rank." in text
    assert "No row was measured twice yet, so that the noise may be larger than that" in text
    told = str(replace(worse, share_repeated=True, noise_repeated=False))
    assert "would be off by about" in told
    assert ", and by repeated measurements noise is 95% of the variance over the rows measured." in told
    assert "twice" not in str(replace(worse, distinct=47))
    assert "twice" not in str(replace(worse, distinct=48, noise_estimated=False)), "known noise needs no repeats"
    assert "'A7' has taken 21 of the last 40 evaluations: because. Do not rely on the best row yet" in text


def test_few_arms_and_equal_rewards_leave_no_doubt():
    x, _ = table()
    bandit = tb.Bandit(tb.auto(), x)
    bandit.tell(torch.arange(4), torch.randn(4, generator=generator(0)))
    assert np.isnan(bandit.explain().uncertainty)
    equal = tb.Bandit(tb.auto(), x)
    equal.tell(torch.arange(12), torch.full((12,), 3.0))
    assert np.isnan(equal.explain().uncertainty)
    assert equal.explain().doubt() == ""


@pytest.mark.exhaustive
def test_an_arm_that_takes_most_of_the_recent_pulls_is_named_once():
    with pytest.warns(
        errors.DiagnosticWarning, match=r"arm \d+ has taken 21 of the last 40 pulls: .*available= of ask, repeats=False of run"
    ) as said:
        bandit = noisy_run(1.0, 0.3, 2, 130)
    assert len(said) == 1
    assert said[0].filename == __file__
    explained = bandit.explain()
    assert explained.repeated is not None
    arm, count, reason = explained.repeated
    assert 21 <= count <= 40
    assert f"Arm {arm} has taken {count} of the last 40 pulls: {reason}" in str(explained)
    assert "available=" in reason
    silent = tb.Bandit(bandit.policy, bandit.arms, generator=generator(0)).load_state_dict(bandit.state_dict())
    assert silent.explain().repeated is None, "what came before it was loaded is not known"
    state, before = bandit.loop.state, bandit.loop.state.recent
    with pytest.raises(errors.ArgumentError):
        bandit.tell(bandit.ask(), torch.tensor([torch.inf]))
    assert state.recent is before


def test_a_tell_that_fails_at_its_end_is_not_among_the_recent_pulls(monkeypatch: pytest.MonkeyPatch):
    arms = torch.rand(30, 2, generator=generator(0), dtype=torch.float64)
    bandit = tb.Bandit(tb.auto(), arms)
    for reward in (0.3, 0.1):
        bandit.tell(bandit.ask(), torch.tensor([reward]))
    before = bandit.loop.state.recent

    def fails(*_: object) -> None:
        raise errors.NumericalError("broken")

    monkeypatch.setattr("torchbandits.loop.report_of", fails)
    with pytest.raises(errors.NumericalError, match="broken"):
        bandit.tell(bandit.ask(), torch.tensor([0.5]))
    assert bandit.loop.state.recent == before


@pytest.mark.parametrize(
    ("sure", "noise", "words"), [(True, 0.95, "no other"), (False, 0.95, "95%"), (False, 0.3, "promising")]
)
def test_the_reason_for_repeats_is_the_model_or_the_noise(sure: bool, noise: float, words: str):
    assert words in reason_for_repeats(sure, noise)


def test_repeats_are_counted_per_batch_row_and_only_the_last_forty():
    assert most_repeated([1] * 40) == (1, 40)
    assert most_repeated([1] * 39) is None
    assert most_repeated([2] * 100 + [1, 2] * 20) is None, "half is not most"
    assert most_repeated([2] * 100 + [1] * 21 + [3] * 19) == (1, 21)
    arms = torch.rand(5, 2, generator=generator(0), dtype=torch.float64)
    bandit = tb.Bandit(tb.auto(), arms, generator=[generator(1), generator(2)])
    state = bandit.loop.state
    index, mask = torch.tensor([[0, 1], [2, 3]]), torch.tensor([[True, True], [False, True]])
    for _ in range(50):
        state.remember_(Pulls(mask.double(), mask.double(), mask.double(), index=index, mask=mask))
    assert recent_arms(state, (0,)) == (0, 1) * 20
    assert recent_arms(state, (1,)) == (3,) * 40
    assert [len(row) for row in state.recent] == [40, 40]


def test_an_explanation_of_a_batch_row_and_of_a_given_kernel():
    x, f = table()
    kernel = gpytorch.kernels.RBFKernel(ard_num_dims=3).double()
    kernel.lengthscale = 0.5 * (x.amax(0) - x.amin(0))
    scaled = gpytorch.kernels.ScaleKernel(kernel).double()
    scaled.outputscale = float(f.var())
    for policy in (tb.auto(), tb.gp_ucb(scaled, noise_std=0.1, prior_mean="estimate")):
        bandit = tb.Bandit(policy, x, generator=[generator(1), generator(2)])
        for _ in range(10):
            selection = bandit.ask()
            bandit.tell(selection, f[selection.index])
        said = bandit.explain(row=1)
        assert int(said.best.index[0]) == int(bandit.best_arm()[1])
        assert said.distinct == int((bandit.counts[1] > 0).sum())
    np.testing.assert_allclose(said.relevance, np.full(3, 1 / 3), rtol=1e-6)
    assert said.noise_std == pytest.approx(0.1)
    assert "that of the policy" in str(said)


def on(features: list[int], lengthscale: float | list[float], scale: float | None = None) -> gpytorch.kernels.Kernel:
    """A kernel that reads some of the features, as a user writes it."""
    ard = len(lengthscale) if isinstance(lengthscale, list) else None
    kernel = gpytorch.kernels.RBFKernel(active_dims=features, ard_num_dims=ard).double()
    kernel.lengthscale = torch.tensor(lengthscale, dtype=torch.float64)
    if scale is None:
        return kernel
    scaled = gpytorch.kernels.ScaleKernel(kernel).double()
    scaled.outputscale = scale
    return scaled


def sums_of_rows() -> gpytorch.kernels.Kernel:
    kernel = gpytorch.kernels.RBFKernel(active_dims=[1], batch_shape=torch.Size([2])).double()
    kernel.lengthscale = torch.tensor([0.5, 0.25], dtype=torch.float64)[:, None, None]
    return kernel + on([0], 0.5, 3.0)


@pytest.mark.parametrize(
    ("kernel", "expected"),
    [
        (lambda: on([0], 0.5), [4, 0, 0]),
        (lambda: on([0], 0.5, 2.0), [4, 0, 0]),
        (lambda: on([2, 0, 1], [0.1, 0.2, 0.5]), [25, 4, 100]),
        (lambda: on([2, 1], [0.1, 0.2], 2.0), [0, 25, 100]),
        (lambda: on([0], 0.5) * on([0, 2], 0.25, 2.0), [4 + 16, 0, 16]),
        (lambda: on([0], 0.5, 3.0) + on([1], 0.25), [0.75 * 4, 0.25 * 16, 0]),
        (lambda: on([0], 0.5, 3.0) + gpytorch.kernels.ConstantKernel().double(), [4, 0, 0]),
        (sums_of_rows, [0.75 * 4, 0.25 * 16, 0]),  # the second row
        (lambda: on([0], 0.5) * gpytorch.kernels.LinearKernel(active_dims=[1]).double(), None),
        (lambda: gpytorch.kernels.PeriodicKernel(active_dims=[1]).double(), None),
    ],
)
def test_an_explanation_names_the_features_that_a_kernel_reads(kernel: Any, expected: list[float] | None):
    arms = torch.rand(40, 3, dtype=torch.float64, generator=generator(0))
    arms = (arms - arms.amin(dim=0)) / (arms.amax(dim=0) - arms.amin(dim=0))  # every feature from 0 to 1
    rows = [generator(1), generator(2)]
    bandit = tb.Bandit(tb.gp_ucb(kernel(), noise_std=0.1), arms, generator=rows)
    bandit.tell(torch.arange(8).expand(2, 8), torch.sin(arms[:8, 0]).expand(2, 8))
    said = bandit.explain(row=1)
    if expected is None:
        assert bool(said.relevance.isnan().all())
        assert "a part of its kernel has no lengthscales" in str(said)
    else:
        np.testing.assert_allclose(said.relevance, np.array(expected) / sum(expected), rtol=1e-9)


def test_an_explanation_where_every_batch_row_has_arms_of_its_own():
    x, f = table()
    kernel = gpytorch.kernels.RBFKernel().double()
    scale = torch.tensor([1.0, 0.5, 0.25])
    bandit = tb.Bandit(tb.gp_ucb(kernel, noise_std=0.1), torch.stack([x, x * scale]), generator=[generator(1), generator(2)])
    bandit.tell(torch.arange(6).expand(2, 6), f[:6].expand(2, 6))
    spread = (x.amax(dim=0) - x.amin(dim=0)) * torch.stack([torch.ones(3), scale])
    for row in range(2):
        expected = spread[row].square() / spread[row].square().sum()
        np.testing.assert_allclose(bandit.explain(row=row).relevance, expected, rtol=1e-6)


@pytest.mark.sweep(2)
@pytest.mark.parametrize("rows", [None, 2])
@pytest.mark.parametrize("estimated", [True, False])
def test_arms_that_are_not_on_offer_are_not_hopeful(estimated: bool, rows: int | None):
    x, f = table()
    x = torch.cat([x, x[:5]])  # with duplicates
    base = gpytorch.kernels.RBFKernel(ard_num_dims=3).double()
    base.lengthscale = 0.3 * (x.amax(0) - x.amin(0))
    kernel = gpytorch.kernels.ScaleKernel(base).double()
    kernel.outputscale = float(f.var())
    policy = tb.auto() if estimated else tb.gp_ucb(kernel, noise_std=0.1, prior_mean="estimate")
    bandit = tb.Bandit(policy, x, generator=generator(1) if rows is None else [generator(1), generator(2)])
    index = torch.arange(12) if rows is None else torch.arange(12).expand(rows, 12)
    bandit.tell(index, f[index])
    place = () if rows is None else (1,)
    everything = bandit.explain(row=place)
    offer = torch.arange(len(x)) % 3 == 1
    said = bandit.explain(row=place, available=offer)
    state, width = bandit.loop.state, bandit.width[place]
    mean = state.arm_mean()[place]
    reach = width * (state.posterior.regularization * state.arm_leverage()[place]).sqrt()
    best = int(said.best.index[0])
    distinct = torch.arange(len(x)) < len(f)
    offered = torch.zeros(len(x), dtype=torch.bool)
    offered[state.rows.first[place][offer] if state.rows.first.dim() > 1 else state.rows.first[offer]] = True
    hopeful = (mean + reach > mean[best] - reach[best]) & offered & distinct & (torch.arange(len(x)) != best)
    assert said.rivals == int(hopeful.sum())
    assert 0 < said.rivals < everything.rivals
    top = (mean + reach)[hopeful].max()
    if (units := state.posterior.units) is not None:
        # As far above the best mean as a deviation of this size would be reported to be.
        start, scale = float(mean[best]), float(units.scale[place])
        wide = max(float(top) - start, 1.5 * scale)
        ends = torch.tensor([start - wide, start + wide], dtype=torch.float64).expand(*bandit.loop.batch_shape, 2)
        low, high = units.to_rewards(ends)[place].tolist()
        top = float(said.best.mean[0]) + (high - low) / (2 * wide) * (float(top) - start)
        assert float(top) > float(said.best.mean[0]) + float(said.best.variance[0]) ** 0.5
    assert said.upper == pytest.approx(float(top))
    assert said.upper <= everything.upper
    whole = bandit.explain(row=place, available=torch.ones(len(x), dtype=torch.bool))
    assert (whole.rivals, whole.upper) == (everything.rivals, pytest.approx(everything.upper))


def test_what_the_most_promising_arm_could_reach_is_the_bound_of_another_arm_than_the_best():
    kernel = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel()).double()
    kernel.outputscale = 4.0
    arms = torch.tensor([[0.0], [50.0], [100.0]], dtype=torch.float64)
    bandit = tb.Bandit(tb.gp_ucb(kernel, noise_std=0.5, width=tb.widths.Constant(2.0)), arms)
    bandit.tell(torch.tensor([0, 1, 2]), [3.0, 2.5, -3.0])
    said, shrunk = bandit.explain(), 4 / 4.25
    assert int(said.best.index[0]) == 0
    assert said.rivals == 1
    assert said.upper == pytest.approx(2.5 * shrunk + 2 * (4 - 4 * shrunk) ** 0.5)
    bandit.tell(torch.tensor([0, 1]).repeat(2_000), [3.0, 2.5] * 2_000)
    alone = bandit.explain()
    assert alone.rivals == 0
    assert alone.upper == pytest.approx(3.0, abs=0.1)
    assert alone.upper > float(alone.best.mean[0])


def test_boxes_and_options_of_other_fits_are_refused():
    box = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
    with pytest.raises(errors.UnsupportedError, match="pass arms="):
        tb.Bandit(tb.auto(), bounds=box)
    x, f = table()
    bandit = tb.Bandit(tb.auto(), x, generator=generator(1))
    play(bandit, f, 9)
    with pytest.raises(errors.UnsupportedError, match="leave out restarts"):
        bandit.fit_kernel_(restarts=(1.0,))
    assert bool(bandit.fit_kernel_().after.isfinite())


@pytest.mark.sweep(1)
@pytest.mark.parametrize("kept", [0, 10, 40, 90])
def test_arms_in_a_file_take_no_more_memory_than_the_budget(tmp_path: Path, kept: int):
    """With room for `kept` numbers per arm, a dictionary starts at more distinct arms than half of that. A saved state omits
    what a sweep recomputes, and continues unchanged."""
    x, f = table(1200)
    np.save(tmp_path / "arms.npy", x.numpy())

    def made(budget: int) -> tb.Bandit:
        arms = tb.sources.npy(tmp_path / "arms.npy")
        return tb.Bandit(tb.auto(batch_size=8, memory_budget=budget), arms, generator=generator(3))

    budget = kept * 8 * len(x)
    small, large = made(budget), made(2 << 30)
    for step in range(14):
        for bandit in (small, large):
            play(bandit, f, 8)
        assert small.loop.state.posterior.sparse or 2 * small.posterior.statistics.size <= kept
        assert step or small.loop.state.posterior.sparse == (kept <= 10)
        assert small.loop.state.table.directions.block.nbytes <= budget
        if step % 4 == 1:
            for bandit, room in ((small, budget), (large, 2 << 30)):
                saved = bandit.state_dict()
                assert max(t.numel() for t in tensors(saved) if t.is_floating_point()) <= len(x)
                again = made(room).load_state_dict(saved)
                torch.testing.assert_close(again.posterior(x).variance, bandit.posterior(x).variance)
                torch.testing.assert_close(
                    again.loop.state.table.leverage, bandit.loop.state.table.leverage, atol=1e-9, rtol=1e-6
                )
                assert torch.equal(again.ask().index, bandit.ask().index)
    assert small.loop.state.posterior.sparse
    assert not large.loop.state.posterior.sparse
    assert min(f[small.best_arm()], f[large.best_arm()]) > f.topk(25).values[-1]


def test_repeated_pulls_are_folded_where_memory_is_short(tmp_path: Path):
    x, f = table(1200)
    f = (f - f.mean()) / f.std()
    np.save(tmp_path / "arms.npy", x.numpy())
    kernel, arms = gpytorch.kernels.RBFKernel().double(), tb.sources.npy(tmp_path / "arms.npy")
    tight = tb.Bandit(tb.gp_ucb(kernel, noise_std=0.1, memory_budget=12 * 8 * len(x)), arms)
    roomy = tb.Bandit(tb.gp_ucb(kernel, noise_std=0.1), arms)
    for _ in range(20):
        index = torch.arange(5)
        for bandit in (tight, roomy):
            bandit.tell(index, f[index])
    assert tight.loop.state.table.directions.used <= 12 < roomy.loop.state.table.directions.used
    torch.testing.assert_close(tight.loop.state.table.leverage, roomy.loop.state.table.leverage, atol=1e-9, rtol=1e-9)
    with pytest.raises(errors.UnsupportedError, match=r"an exact posterior keeps 13 numbers per arm here.*nothing was learned"):
        tight.tell(torch.arange(5, 13), f[5:13])
    assert int(tight.pulls) == 100


def tensors(state: object) -> list[Tensor]:
    if isinstance(state, Tensor):
        return [state]
    parts = state.values() if isinstance(state, dict) else state if isinstance(state, (list, tuple)) else ()
    return [tensor for part in parts for tensor in tensors(part)]


# ------------------------------------------------------------------------- rewards that come again, and surprises


def test_the_same_reward_told_thrice_has_the_score_of_one_told_once():
    arms = torch.linspace(0, 1, 20, dtype=torch.float64).unsqueeze(-1)
    bandit = tb.Bandit(tb.auto(), arms, generator=generator(0))
    rewards = torch.tensor([0.7, 0.7, 0.7, 0.7, 0.5, 0.3, 0.1, 0.2], dtype=torch.float64)
    bandit.tell(torch.tensor([0, 0, 0, 5, 10, 12, 15, 19]), rewards)
    units, statistics = bandit.loop.state.posterior.units, bandit.loop.state.statistics
    averages = units.averages(statistics)
    assert averages[0] != averages[1]  # (0.7 + 0.7 + 0.7) / 3 differs from 0.7 in the last digit
    score = units.to_model(torch.cat([averages[:2], torch.tensor([0.75], dtype=torch.float64)]))
    assert score[0] == pytest.approx(float(score[1]), abs=1e-9)
    assert abs(score[2] - score[0]) < 2 * units.scale  # a slightly larger reward has a slightly larger score


def test_equal_rewards_leave_the_kernel_as_it_is_however_often_they_are_told():
    bandit = tb.Bandit(tb.auto(), torch.linspace(0, 1, 20, dtype=torch.float64).unsqueeze(-1), generator=generator(0))
    bandit.tell(torch.tensor([0, 0, 0, 1, 2, 3, 4, 5]), torch.full((8,), 0.1, dtype=torch.float64))
    report = bandit.loop.policy.from_data.refit(bandit.loop.state, torch.tensor(True))
    assert "all equal" in report.reasons[0]


@pytest.mark.parametrize("value", [-0.5, 0.5, -1e-3])
@pytest.mark.parametrize("equal", [0.0, 7.0])
def test_the_first_other_reward_after_equal_ones_sets_the_scale(equal: float, value: float):
    arms = torch.rand(40, 2, generator=generator(0), dtype=torch.float64)
    whole, other = tb.Bandit(tb.auto(), arms), tb.Bandit(tb.auto(), arms)
    rewards = torch.full((9,), equal, dtype=torch.float64)
    whole.tell(torch.arange(8), rewards[:8])
    assert whole.explain().constant
    rewards[8] += value
    # The ninth reward is due for no fit by its number.
    whole.tell(torch.tensor([8]), rewards[8:])
    assert not whole.explain().constant
    other.tell(torch.arange(9), rewards)
    own, fresh = whole.loop.state.posterior.units, other.loop.state.posterior.units
    assert torch.equal(own.knots, fresh.knots)
    assert torch.allclose(own.scores, fresh.scores)
    best = whole.best(9)
    assert float(best.variance.sqrt().min()) > 0.01 * abs(value)
    assert best.mean.sub(equal).abs().max() <= abs(value)


def test_no_deviation_is_known_while_rewards_are_equal():
    arms = torch.rand(40, 2, generator=generator(0), dtype=torch.float64)
    bandit = tb.Bandit(tb.auto(), arms)
    bandit.tell(torch.arange(6), torch.zeros(6))
    found = bandit.explain()
    assert found.lines()[0] == "Best so far: arm 0, with the reward expected at 0, after 6 rewards of 6 of 40 arms."
    assert found.lines()[1:4] == (
        "Features: nothing is known until two rewards differ.",
        "Noise: nothing is known until two rewards differ.",
        "How sure: any other arm may be better, and by how much is not known.",
    )
    assert not found.tells_features
    assert float(bandit.best(1).variance.sqrt()) > 0.1, "zeros have the scale of 1"
    # Two rewards of one arm differ, although its average is that of the others.
    bandit.tell(torch.tensor([7, 7]), torch.tensor([-1.0, 1.0]))
    assert not bandit.explain().constant


@pytest.mark.filterwarnings("ignore:arm .* has taken")
def test_a_reward_far_beyond_all_others_is_not_pulled_for_ever():
    """Sixty rewards of 0, then one of nearly 1, whose few neighbours are as good: most of them are pulled soon."""
    found, known = 0, 0
    for seed in range(6):
        torch.manual_seed(seed)
        arms = torch.rand(400, 2, dtype=torch.float64)
        hit = (arms - torch.tensor([0.8, 0.2], dtype=torch.float64)).norm(dim=1) < 0.05
        peak = torch.tensor([0.82, 0.21], dtype=torch.float64)
        f = torch.where(hit, 1 - 4 * (arms - peak).norm(dim=1), 0.0) + 1e-3 * torch.randn(400, dtype=torch.float64)
        bandit = tb.Bandit(tb.auto(), arms, generator=generator(0))
        told = (~hit).nonzero().squeeze(-1)[:60]
        bandit.tell(told, f[told])
        first, *others = hit.nonzero().squeeze(-1).split(1)
        bandit.tell(first, f[first])
        assert bandit.loop.state.posterior.units.to_model(f[first]).abs() < 20 * bandit.loop.state.posterior.units.scale
        picks = play(bandit, f, 30, noise_std=1e-3)
        found, known = found + len({*torch.cat(others).tolist()} & {*picks}), known + len(others)
    assert known == 16
    assert found >= 11, f"its neighbours are found, got {found}"


def test_a_table_of_past_results_costs_one_sweep_with_a_drawn_dictionary(monkeypatch):
    """All 600 results formed the dictionary at first, with two sweeps of 600 columns each."""
    x = torch.rand(2_000, 2, dtype=torch.float64, generator=generator(0))
    y = torch.sin(5 * x[:, 0]) + x[:, 1] + 0.05 * torch.randn(2_000, dtype=torch.float64, generator=generator(1))
    told, swept = torch.arange(0, 1_800, 3), []
    sweep = ArmTable.sweep_
    monkeypatch.setattr(ArmTable, "sweep_", lambda self: (swept.append(self), sweep(self))[1])
    exact, sparse = (
        tb.Bandit(tb.auto(memory_budget=budget), x, generator=generator(2)) for budget in (1 << 30, 8 * 2_000 * 100)
    )
    exact.tell(told, y[told])
    swept.clear()
    sparse.tell(told, y[told])
    assert len(swept) == 1
    assert 10 < int((sparse.dictionary >= 0).sum()) < 200
    means = [bandit.posterior(x).mean for bandit in (exact, sparse)]
    torch.testing.assert_close(means[1], means[0], rtol=0, atol=0.1)


def test_a_dictionary_beside_auto_changes_only_as_probabilities_change():
    """New uniform numbers at every tell would replace much of it, whose kernel columns would have to be evaluated."""
    memory, fresh = SteadySampling(oversampling=2.0), LeverageSampling(oversampling=2.0)
    weights, mask = torch.ones(4_000, dtype=torch.float64), torch.ones(4_000, dtype=torch.bool)
    leverage = 0.4 * torch.rand(4_000, dtype=torch.float64, generator=generator(5))
    state = (own := generator(1)).get_state()
    low, same, high = (memory.choose(f * leverage, weights, mask, [own]) for f in (1.0, 1.0, 1.2))
    assert torch.equal(low, same)
    assert torch.equal(own.get_state(), state)
    assert bool((high | ~low).all())
    # Numbers change with growth by 5 %, and each dictionary is distributed as one of new draws.
    near, far = (memory.choose(leverage[:n], weights[:n], mask[:n], [own]) for n in (3_990, 3_700))
    assert torch.equal(near, low[:3_990])
    assert 0.4 < float((far == low[:3_700]).double().mean()) < 0.8
    expected, deviation = float((2 * leverage).sum()), float((2 * leverage * (1 - 2 * leverage)).sum().sqrt())
    sizes = [int(m.choose(leverage, weights, mask, [generator(2)]).sum()) for m in (memory, fresh)]
    assert all(abs(size - expected) < 4 * deviation for size in sizes)
    x = torch.rand(600, 3, dtype=torch.float64, generator=generator(3))
    bandit = tb.Bandit(tb.auto(batch_size=5, memory_budget=600 * 8 * 40), x, generator=generator(4))
    bandit.tell(torch.arange(0, 600, 3), torch.sin(4 * x[::3]).sum(dim=-1))
    kept = []
    for _ in range(8):
        before = set(bandit.dictionary.tolist()) if bandit.loop.state.posterior.sparse else set()
        selection = bandit.ask(limit=5)
        bandit.tell(selection, torch.sin(4 * x[selection.index]).sum(dim=-1))
        now = set(bandit.dictionary.tolist())
        kept += [len(before & now) / len(before)] if before else []
    assert len(kept) == 8
    assert np.median(kept) > 0.8


@pytest.mark.parametrize("seed", range(4))
def test_an_arm_that_was_clearly_measured_to_be_better_is_recommended(seed: int):
    """One reward is far above all others, whose ranks are noise. The model takes all ranks for noise, and with seed 0 it
    expects more of another arm."""
    draw = generator(seed)
    arms, f = torch.rand(80, 4, generator=draw, dtype=torch.float64), torch.zeros(80, dtype=torch.float64)
    f[7] = 30.0
    index = torch.cat([torch.arange(30), torch.tensor([1, 1, 2, 3, 3])])
    bandit = tb.Bandit(tb.auto(batch_size=4), arms, generator=generator(seed))
    bandit.tell(index, f[index] + torch.randn(len(index), generator=draw, dtype=torch.float64))
    best, state = bandit.best(4), bandit.loop.state
    assert int(best.index[0]) == int(bandit.best_arm()) == int(bandit.explain().best.index[0]) == 7
    assert len({*best.index.tolist()}) == 4
    assert (best.mean[1:].diff() <= 0).all()
    expected = int(state.rows.arm_of_row[state.row_marginals()[0].argmax()])
    assert (expected != 7) == (seed == 0)
    found = bandit.explain()
    assert found.overruled == (seed == 0)
    assert ("The model expects more of another arm, but this one was measured to be better" in str(found)) == (seed == 0)
    assert not (found.overruled and (found.noise_alone or found.doubt()))


def test_which_measured_differences_are_clear():
    """Averages of 5 and 4 with three repeats around them: 5 standard errors are the limit."""
    pulls = {0: [4.0], 1: [5.0], 2: [3.0 - 0.1, 3.0 + 0.1], 3: [2.0 - 0.1, 2.0, 2.0 + 0.1], 4: [1.0]}
    rows = torch.tensor([row for row, told in pulls.items() for _ in told])
    rewards = torch.tensor([r for told in pulls.values() for r in told], dtype=torch.float64)
    noise = (0.02 + 0.02) / 3

    def recommended(rewards: Tensor, mean: Tensor, sign: Tensor | None = None, *, last: int = len(rows)) -> int:
        units, statistics = Units(torch.ones(2)), tb.posteriors.Statistics(2, torch.Size([]))
        statistics.append_(torch.rand(5, 2, generator=generator(0), dtype=torch.float64), torch.ones(5, dtype=torch.bool))
        own, r = rows[:last], rewards[:last]
        statistics.add_(own, torch.ones_like(r), r, r**2)
        deviations = units.deviations_with(own, torch.ones_like(r), r, r**2, statistics)
        units.add_(own, r, r**2, statistics.size, deviations)
        units.refit_(statistics, torch.ones([], dtype=torch.bool))
        return int(units.recommended(statistics, mean, sign))

    mean = torch.tensor([1.0, 0.9, 0.2, 0.1, 0.0], dtype=torch.float64)
    # Arm 1 is better by 1 with a standard error of 0.16.
    assert (2 * noise) ** 0.5 < 1 / 5
    assert recommended(rewards, mean) == 1
    assert recommended(rewards, mean.masked_fill(mean == 0.9, -torch.inf)) == 0
    # By 0.7 it is not clear.
    assert recommended(rewards.where(rewards != 5.0, 4.7), mean) == 0
    # Two repeats tell too little, and equal ones nothing.
    assert recommended(rewards, mean, last=6) == 0
    centre = torch.tensor([4.0, 5.0, 3.0, 3.0, 2.0, 2.0, 2.0, 1.0], dtype=torch.float64)
    assert recommended(centre, mean) == 0
    # Where small rewards are good.
    assert recommended(rewards, mean, -torch.ones([], dtype=torch.float64)) == 4
    # Rewards of two values are noisier in the middle.
    pair = torch.tensor([0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0], dtype=torch.float64)
    assert recommended(pair, mean) == 0


def test_lengthscales_before_the_first_fit_follow_the_range_in_each_row_alone():
    """A range that grows by a fifth is no reason for a fit, and that of another row is none either."""

    def learned(first: list[float], then: list[float]) -> tb.Bandit:
        unit, rows = torch.rand(20, 2, generator=generator(0), dtype=torch.float64), range(len(first))
        before, after = (torch.stack([unit * torch.tensor([s, 1.0]).double() for s in scales]) for scales in (first, then))
        bandit = tb.Bandit(tb.auto(), before, generator=[generator(seed) for seed in rows])
        bandit.tell(torch.tensor([[0, 5, 7]]).expand(len(first), 3), torch.tensor([[1.0, 2.0, 0.5]]).expand(len(first), 3))
        old = bandit.posterior.kernel.base_kernel.lengthscale.detach()
        bandit.set_arms_(after)
        new = bandit.posterior.kernel.base_kernel.lengthscale.detach()
        torch.testing.assert_close(new[..., 0, 0] / old[..., 0, 0], torch.tensor(then).double())
        return bandit

    both = learned([1.0, 1.0], [1.2, 4.0])
    for row, scale in enumerate((1.2, 4.0)):
        alone = learned([1.0], [scale])
        torch.testing.assert_close(alone.loop.state.arm_mean()[0], both.loop.state.arm_mean()[row])
        torch.testing.assert_close(alone.loop.state.arm_leverage()[0], both.loop.state.arm_leverage()[row])
