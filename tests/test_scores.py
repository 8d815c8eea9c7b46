"""Scores compared with references in log space, including far tails, and the properties on which the lazy argmax relies."""

from __future__ import annotations

import gpytorch
import numpy as np
import pytest
import scipy.stats
import torch
from hypothesis import given
from hypothesis import strategies as st

import torchbandits as tb
from torchbandits.batching import ExactRatio, FixedSize, Global, GlobalThenLocal, Local, Product
from torchbandits.policies import Composed
from torchbandits.scores import UCB, LogEI, LogPI, PosteriorDraw, Score, named_score


def value(score, mean: float, std: float, incumbent: float) -> float:
    m, s, i = (torch.tensor(x, dtype=torch.float64) for x in ([mean], [std], incumbent))
    return float(score(m, s, torch.tensor(2.0, dtype=torch.float64), i))


@given(z=st.floats(-8, 8), std=st.floats(1e-3, 1e3), incumbent=st.floats(-5, 5), margin=st.floats(1e-3, 1.0))
def test_the_scores_are_their_formulas(z, std, incumbent, margin):
    mean = incumbent + margin + z * std
    z = (mean - incumbent - margin) / std
    ei = std * (scipy.stats.norm.pdf(z) + z * scipy.stats.norm.cdf(z))
    if ei > 1e-300 and z > -6:
        np.testing.assert_allclose(value(LogEI(margin), mean, std, incumbent), np.log(ei), rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(value(LogPI(margin), mean, std, incumbent), scipy.stats.norm.logcdf(z), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("score", [LogEI(), LogEI(0.1), LogPI(0.1), UCB()])
@pytest.mark.parametrize("gap", [1e-3, 1.0, 1e3])
def test_scores_are_finite_and_fall_with_the_deviation_far_in_the_tail(score, gap):
    std = torch.logspace(-12, 3, 400, dtype=torch.float64)
    mean = torch.full_like(std, -gap)
    values = score(mean, std, torch.tensor(1.0, dtype=torch.float64), torch.tensor(0.0, dtype=torch.float64))
    assert torch.isfinite(values).all()
    assert (values.diff() >= 0).all()
    assert (values.diff()[50:] > 0).all()


def test_a_deviation_of_zero_is_no_accident():
    mean, std = torch.tensor([0.0, -1.0, 0.5], dtype=torch.float64), torch.zeros(3, dtype=torch.float64)
    one, half = torch.tensor(1.0, dtype=torch.float64), torch.tensor(0.5, dtype=torch.float64)
    for score in (LogEI(), LogPI(0.1)):
        assert not torch.isnan(score(mean, std, one, half)).any()


@pytest.mark.parametrize(("make", "word"), [(lambda: LogPI(0.0), "noise_std"), (lambda: LogEI(-1.0), "≥ 0")])
def test_margins_out_of_range(make, word):
    with pytest.raises(tb.errors.ArgumentError, match=word):
        make()


@pytest.mark.sweep(1)
@pytest.mark.parametrize("rule", [Global(ratio_threshold=2.0), Product(ratio_threshold=3.0)])
def test_batches_of_expected_improvement_end_when_their_rule_says(rule):
    """Each pick is compared with a dense posterior in which earlier picks of the batch are hallucinated, and each end of a
    batch with the sum that the rule bounds."""
    g = np.random.default_rng(3)
    X, lam = g.random((60, 2)), 0.3
    K = np.exp(-0.5 * ((X[:, None] - X[None]) ** 2).sum(-1) / 0.4**2)
    kernel = gpytorch.kernels.RBFKernel().double()
    kernel.lengthscale = 0.4
    policy = Composed(kernel, 0.5, tb.widths.Constant(1.0), lam, score=LogEI(), batch_rule=rule)
    bandit = tb.Bandit(policy, torch.from_numpy(X))
    told: list[int] = []
    rewards: list[float] = []
    sizes = []

    def leverage(arms: list[int]) -> np.ndarray:
        return np.diag(K - K[:, arms] @ np.linalg.solve(K[np.ix_(arms, arms)] + lam * np.eye(len(arms)), K[arms])) / lam

    for _ in range(12):
        mean = K[:, told] @ np.linalg.solve(K[np.ix_(told, told)] + lam * np.eye(len(told)), np.array(rewards))
        start, spent, picks = leverage(told), 0.0, []
        while spent <= rule.budget:
            now = leverage(told + picks)
            z, std = (mean - mean.max()) / np.sqrt(lam * now), np.sqrt(lam * now)
            score = np.log(std * (scipy.stats.norm.pdf(z) + z * scipy.stats.norm.cdf(z)))
            arm = int(score.argmax())
            assert not told or np.sort(score)[-2] < score[arm] - 1e-9, "rounding would decide"
            spent += start[arm] if isinstance(rule, Global) else np.log1p(now[arm])
            picks.append(arm)
        selection = bandit.ask()
        assert selection.index.tolist() == picks
        own = np.sin(4 * X[picks, 0]) + X[picks, 1]
        bandit.tell(selection, torch.from_numpy(own))
        told, rewards = told + picks, rewards + own.tolist()
        sizes.append(len(picks))
    assert max(sizes) > 3
    assert bandit.ask(limit=2).index.shape[-1] <= 2


@pytest.mark.parametrize("rule", [Local(), ExactRatio(), GlobalThenLocal()])
def test_rules_that_look_at_all_arms_are_for_upper_bounds(rule):
    kernel = gpytorch.kernels.RBFKernel().double()
    for score, fits in ((LogEI(), "Global, Product or FixedSize"), (LogPI(0.1), "Global"), (PosteriorDraw(), "FixedSize")):
        with pytest.raises(tb.errors.UnsupportedError, match=f"{type(rule).__name__} ends batches .* use .*{fits}"):
            Composed(kernel, 0.5, tb.widths.Constant(1.0), 0.3, score=score, batch_rule=rule)
    with pytest.raises(tb.errors.UnsupportedError, match="use FixedSize"):
        Composed(kernel, 0.5, tb.widths.Constant(1.0), 0.3, score=PosteriorDraw(), batch_rule=Global())


def test_names():
    assert named_score("pi", None, 0.3) == LogPI(0.3)
    assert named_score("ei", None, 0.3) == LogEI(0.0)
    with pytest.raises(tb.errors.ArgumentError, match="Did you mean 'ucb'"):
        named_score("ucbb", None, 0.3)
    with pytest.raises(tb.errors.ArgumentError, match="margin"):
        named_score("ucb", 0.1, 0.3)


class Own(Score):
    """A score of a user, given as a function of mean and deviation."""

    def __init__(self, function):
        self.function = function

    def __call__(self, mean, std, width, incumbent):
        return self.function(mean, std)


def bandit_of(score: Score, size: int) -> tb.Bandit:
    arms = torch.linspace(0, 3, 20, dtype=torch.float64).unsqueeze(-1)
    kernel, rule = gpytorch.kernels.RBFKernel().double(), FixedSize(size=size)
    bandit = tb.Bandit(Composed(kernel, 0.1, tb.widths.Constant(2.0), 0.01, score=score, batch_rule=rule), arms)
    bandit.tell(torch.tensor([4, 9]), torch.tensor([0.1, 0.7], dtype=torch.float64))
    return bandit


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize(
    ("score", "error", "word"),
    [
        (Own(lambda mean, std: (mean - mean.amax(dim=-1, keepdim=True)).sqrt()), tb.errors.NumericalError, "score Own is NaN"),
        (Own(lambda mean, std: 1 / (mean - mean)), tb.errors.NumericalError, "∞"),
        (Own(lambda mean, std: mean.sum()), tb.errors.ShapeError, "score Own must give"),
        (Own(lambda mean, std: mean > 0), tb.errors.ShapeError, "bool"),
        (Own(lambda mean, std: 1.0), tb.errors.ShapeError, "float"),
    ],
)
def test_a_score_of_a_user_that_is_no_score_is_an_error(score, error, word, size):
    """An `ask` without picks would repeat for ever in `run`."""
    bandit = bandit_of(score, size)
    for _ in range(2):
        with pytest.raises(error, match=word):
            bandit.ask()


class Improves(Score):
    """The probability of improvement of a user, who may forget `relative`."""

    def __call__(self, mean, std, width, incumbent):
        return torch.special.log_ndtr((mean - incumbent.unsqueeze(-1) - 0.05) / std)


class ImprovesRelative(Improves):
    relative = True


@pytest.mark.parametrize("size", [1, 3])
def test_an_incumbent_that_a_score_did_not_ask_for_is_no_number(size):
    """It was the width, so that such a score ranked the arms by a meaningless level."""
    with pytest.raises(tb.errors.NumericalError, match=r"score Improves is NaN .* must say relative = True"):
        bandit_of(Improves(), size).ask()
    assert bandit_of(ImprovesRelative(), size).ask().index.tolist() == bandit_of(LogPI(0.05), size).ask().index.tolist()


def test_a_score_that_derives_from_one_that_is_never_called_is_refused():
    class Lower(UCB):
        def __call__(self, mean, std, width, incumbent):
            return mean - width.unsqueeze(-1) * std

    with pytest.raises(tb.errors.UnsupportedError, match="Lower derives from UCB"):
        bandit_of(Lower(), 1)


@pytest.mark.parametrize("size", [1, 3])
def test_arms_on_offer_are_picked_though_every_score_is_minus_infinity(size):
    """As log EI by its formula, where EI underflows."""
    bandit = bandit_of(Own(lambda mean, std: torch.full_like(std, -torch.inf)), size)
    picked = bandit.ask(available=torch.arange(20) >= 7).index
    assert picked.tolist() == [7] * size
