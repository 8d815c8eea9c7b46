"""Draws of the posterior: mean and covariance against the dense joint where they are guaranteed, marginals elsewhere."""

from __future__ import annotations

import math
from typing import Any

import gpytorch
import numpy as np
import pytest
import torch
from problems import NOISE_STD, Problem, generator, kernel_pair, rbf, whole

import torchbandits as tb
from torchbandits.arms import draws as module

A, MANY = 30, 3000


def polynomial() -> gpytorch.kernels.Kernel:
    kernel = gpytorch.kernels.PolynomialKernel(power=2).double()
    kernel.offset = torch.tensor([1.0], dtype=torch.float64)
    return kernel


def told(problem: Problem, kernel: gpytorch.kernels.Kernel, embedding: str, outside: bool = False, **options: Any) -> tb.Bandit:
    policy = tb.thompson_sampling(kernel, embedding=embedding, noise_std=NOISE_STD, width=tb.widths.Constant(1.0), **options)
    bandit = tb.Bandit(policy, problem.tensor, generator=generator(1))
    index = torch.tensor([3, 3, 3, 7, 11, 12, 20, 7])
    for place in range(len(index)):
        part = index[place : place + 1]
        bandit.tell(part, problem.rewards(place, part))
    if outside:
        points = torch.tensor([[0.3, 0.9], [1.2, -0.1]], dtype=torch.float64)
        bandit.observe(points, torch.tensor([2.0, 1.0]), torch.tensor([0.7, -0.4], dtype=torch.float64))
    return bandit


def draws_of(bandit: tb.Bandit, calls: int, size: int, seed: int = 5) -> np.ndarray:
    g, draws = generator(seed), bandit.loop.state.draws
    assert draws is not None
    width = torch.ones((), dtype=torch.float64)
    return torch.cat([whole(draws.draw([size], width, [g])) for _ in range(calls)]).numpy()


def z_scores(values: np.ndarray, mean: np.ndarray, covariance: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Standardised errors of the empirical mean and covariance."""
    n, variance = len(values), np.diag(covariance)
    z_mean = (values.mean(0) - mean) / np.sqrt(variance / n + 1e-18)
    centred = values - mean
    spread = np.sqrt((np.outer(variance, variance) + covariance**2) / n)
    return z_mean, (centred.T @ centred / n - covariance) / (spread + 1e-12)


CASES = {
    "exact, joint": (lambda: rbf(), "exact", {}, "joint"),
    "exact, joint, rank 2 kernel": (lambda: kernel_pair("linear")[0], "exact", {}, "joint"),
    "nystrom, joint": (lambda: rbf(0.2), "nystrom", {"oversampling": 1.0}, "joint"),
    "qff": (lambda: rbf(), "qff", {}, "features"),
    "rff": (lambda: kernel_pair("matern32")[0], "rff", {"num_features": 40}, "features"),
    "exact, fourier": (lambda: kernel_pair("matern52", 0.4)[0], "exact", {}, "fourier"),
    "nystrom, fourier": (lambda: kernel_pair("scaled", 0.3)[0], "nystrom", {"oversampling": 1.0}, "fourier"),
}


@pytest.mark.sweep(2)
@pytest.mark.parametrize("outside", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_draws_have_the_mean_and_covariance_of_the_posterior(case, outside, monkeypatch):
    make, embedding, options, kind = CASES[case]
    if kind == "fourier":
        monkeypatch.setattr(module, "_JOINT_ARMS", 0)
    problem = Problem(seed=2, a=A)
    bandit = told(problem, make(), embedding, outside, **options)
    assert bandit.loop.state.draws is not None
    assert bandit.loop.state.draws.kind == kind
    mean = bandit.posterior(problem.tensor).mean.numpy()
    covariance = bandit.posterior.covariance(problem.tensor).numpy()
    # Fourier draws of one call share their frequencies; they have the posterior's covariance over many calls.
    values = draws_of(bandit, 800, 1) if kind == "fourier" else draws_of(bandit, 3, MANY)
    z_mean, z_covariance = z_scores(values, mean, covariance)
    assert np.abs(z_mean).max() < 5
    # Fourier draws are a mixture of Gaussians, with heavier tails.
    assert np.abs(z_covariance).max() < (8 if kind == "fourier" else 5.5)


@pytest.mark.sweep(1)
@pytest.mark.parametrize("embedding", ["exact", "nystrom"])
def test_other_kernels_beyond_the_joint_draws_have_the_right_marginals(embedding, monkeypatch):
    monkeypatch.setattr(module, "_JOINT_ARMS", 0)
    problem = Problem(seed=2, a=A)
    bandit = told(problem, polynomial(), embedding)
    assert bandit.loop.state.draws is not None
    assert bandit.loop.state.draws.kind == "independent"
    marginals = bandit.posterior(problem.tensor)
    values = draws_of(bandit, 2, MANY)
    n, variance = len(values), marginals.variance.numpy()
    assert np.abs((values.mean(0) - marginals.mean.numpy()) / np.sqrt(variance / n)).max() < 5
    assert np.abs(values.var(0) / variance - 1).max() < 6 * math.sqrt(2 / n)


def no_spectrum(lengthscale: float) -> gpytorch.kernels.Kernel:
    """An RBF kernel as a product, of which no spectrum is known."""
    return rbf(lengthscale * math.sqrt(2)) * rbf(lengthscale * math.sqrt(2))


@pytest.mark.parametrize("gap", [False, True])
def test_these_marginals_are_right_where_the_kernel_matrix_is_singular(gap, monkeypatch):
    """With batch rows of different numbers of points, or a point that was skipped as a copy of another one, draws lacked some
    directions: their variance was too small by up to 7 % and 85 %."""
    monkeypatch.setattr(module, "_JOINT_ARMS", 0)
    lam, numbers = 0.27, [3, 3] if gap else [12, 20]
    x = np.random.default_rng(1).random((60, 1))
    x[1] = x[0] + 1e-13
    policy = tb.thompson_sampling(no_spectrum(0.8), noise_std=lam**0.5, regularization=lam, width=tb.widths.Constant(1.0))
    bandit = tb.Bandit(policy, torch.as_tensor(x), generator=[generator(1), generator(2)])
    state = bandit.loop.state
    if gap:
        for arm in (0, 1, 30):
            bandit.tell(torch.tensor([[arm], [arm]]), torch.ones(2, 1, dtype=torch.float64))
            state.posterior.fit()
        assert not state.posterior.fit().mask[0, 1]
    else:
        mask = torch.arange(20) < torch.tensor(numbers).unsqueeze(-1)
        order = torch.as_tensor(np.stack([np.random.default_rng(row).permutation(np.arange(2, 60))[:20] for row in range(2)]))
        index = torch.where(mask, order, -1)
        with pytest.warns(tb.errors.DiagnosticWarning):
            bandit.tell(tb.Selection(bandit.loop.points(index), index, mask), torch.zeros(2, 20, dtype=torch.float64))
        assert state.posterior.fit().nystrom.root.fallback.all()
    assert state.draws.kind == "independent"
    values = whole(state.draws.draw([MANY, MANY], torch.ones(2, dtype=torch.float64), [generator(3), generator(4)]))
    variance = lam * state.arm_leverage()
    assert float((values.var(dim=-2) / variance - 1).abs().max()) < 6 * math.sqrt(2 / MANY)


def test_the_width_scales_the_deviation_from_the_mean():
    problem = Problem(seed=2, a=A)
    bandit = told(problem, rbf(), "exact")
    draws, mean = bandit.loop.state.draws, bandit.posterior(problem.tensor).mean
    assert draws is not None
    one, three = (whole(draws.draw([2], torch.tensor(w, dtype=torch.float64), [generator(3)])) for w in (1.0, 3.0))
    torch.testing.assert_close(three - mean, 3 * (one - mean), rtol=1e-10, atol=1e-12)


@pytest.mark.sweep(2)
@pytest.mark.parametrize("embedding", ["exact", "nystrom", "qff", "rff"])
def test_each_pick_is_the_best_arm_of_a_draw_and_pending_picks_have_no_say(embedding):
    """The picks are the argmax of the same draws, repeated with a copy of the generator."""
    problem = Problem(seed=4, a=A)
    bandit = told(problem, rbf(), embedding, batch_size=6)
    twin = torch.Generator()
    twin.set_state(bandit.generators[0].get_state())
    draws = bandit.loop.state.draws
    assert draws is not None
    values = whole(draws.draw([6], torch.ones((), dtype=torch.float64), [twin]))
    assert bandit.ask().index.tolist() == values.argmax(dim=-1).tolist()
    more = whole(draws.draw([3], torch.ones((), dtype=torch.float64), [twin]))
    assert bandit.ask(more=3).index.tolist()[6:] == more.argmax(dim=-1).tolist()


def test_100_000_arms_without_a_square_of_them():
    """Memory and kernel values of a draw on 10⁵ arms are linear in their number."""
    arms = torch.rand(100_000, 3, generator=generator(0), dtype=torch.float64)
    policy = tb.thompson_sampling(rbf(0.3), noise_std=NOISE_STD, width=tb.widths.Constant(1.0), num_features=64)
    bandit = tb.Bandit(policy, arms, generator=generator(1))
    for _ in range(3):
        selection = bandit.ask()
        bandit.tell(selection, torch.sin(selection.points.sum(-1)))
    assert int(bandit.pulls) == 3


@pytest.mark.sweep(4)
@pytest.mark.parametrize("case", [*CASES, "any kernel"])
def test_many_draws_are_made_some_at_a_time_and_are_the_same_ones(case, monkeypatch):
    make, embedding, options, kind = CASES.get(case, (polynomial, "exact", {}, "independent"))
    monkeypatch.setattr(module, "_JOINT_ARMS", 0 if kind in ("fourier", "independent") else 2000)
    problem = Problem(seed=2, a=A)
    policy = tb.thompson_sampling(make(), embedding=embedding, noise_std=NOISE_STD, width=tb.widths.Constant(1.0), **options)
    width, at_once, drawn = torch.ones(2, dtype=torch.float64), [], []
    for entries in (1 << 25, 2 * 16 * A):  # room for all draws, or for 16 draws at once
        monkeypatch.setattr(module, "_DRAWN", entries)
        generators = [generator(1), generator(2)]
        bandit = tb.Bandit(policy, problem.tensor, generator=generators)
        bandit.tell(torch.tensor([[3, 7, 7], [1, 2, 20]]), torch.tensor([[0.3, 0.1, 0.2], [0.5, 0.1, -0.2]]))
        pieces = list(bandit.loop.state.draws.draw([39, 21], width, generators))
        at_once.append([piece.shape[-2] for piece in pieces])
        drawn.append((whole(pieces), [g.get_state() for g in generators]))
    assert at_once == [[39], [16, 16, 7]]
    (together, after), (parts, states) = drawn
    for row, size in enumerate([39, 21]):
        torch.testing.assert_close(parts[row, :size], together[row, :size], rtol=1e-12, atol=1e-12)
    assert all(torch.equal(*pair) for pair in zip(states, after, strict=True))


@pytest.mark.parametrize("make", [rbf, lambda: kernel_pair("linear")[0]], ids=["rbf", "linear"])
def test_batch_rows_with_history_at_different_numbers_of_points_draw_as_single_runs(make):
    """Points that are not arms are drawn jointly with the arms. A batch row with fewer of them was padded with an arm, whose
    copy made its covariance singular: the row had another root, and other draws, than a single run."""
    problem = Problem(seed=2, a=A)
    policy = tb.thompson_sampling(make(), noise_std=NOISE_STD, width=tb.widths.Constant(1.0))
    points = torch.rand(2, 3, 2, generator=generator(0), dtype=torch.float64)
    points[0, :2] = problem.tensor[[3, 7]]
    sums = torch.linspace(-1, 1, 6, dtype=torch.float64).reshape(2, 3)
    rows = tb.Bandit(policy, problem.tensor, generator=[generator(0), generator(1)])
    rows.observe(points, torch.ones(2, 3), sums)
    picks = rows.ask(more=6).index
    for row in range(2):
        single = tb.Bandit(policy, problem.tensor, generator=generator(row))
        single.observe(points[row], torch.ones(3), sums[row])
        assert picks[row].tolist() == single.ask(more=6).index.tolist()
