"""Statements of docs/guarantees.md and guarantees/regret.md on single policies: counterexamples and computable bounds."""

from __future__ import annotations

import math
import re
from pathlib import Path

import gpytorch
import numpy as np
import oracles
import pytest
import torch
from accuracy import KERNELS, LAM, LENGTHSCALE, OVERSAMPLING, accuracy
from problems import OFF_SCALE, Problem, generator, kernel_pair

import torchbandits as tb
from torchbandits.policies.catalogue import CATALOGUE

DOCS = Path(__file__).parents[1] / "docs"
GUARANTEES = (DOCS / "guarantees.md").read_text(encoding="utf-8")
REGRET = (DOCS / "guarantees" / "regret.md").read_text(encoding="utf-8")
OUTPUTSCALE, PRINTED_LAM, PRINTED_EPSILON = 0.05, 1e-3, 1e-4


# ------------------------------------------------------------------------- CUB


def linear_regret(seed: int, pulls: int) -> tuple[int, np.ndarray]:
    """Pulls kept and regret of each pull of `compressed_gp` on a draw from its own prior, with the printed λ and ε."""
    random = np.random.default_rng(seed)
    arms = np.linspace(0, 1, 50)[:, None]
    covariance = OUTPUTSCALE * np.exp(-0.5 * ((arms - arms.T) / 0.1) ** 2)
    f = np.linalg.cholesky(covariance + 1e-9 * np.eye(50)) @ random.normal(size=50)
    kernel = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel()).double()
    kernel.base_kernel.lengthscale, kernel.outputscale = (torch.tensor(v, dtype=torch.float64) for v in (0.1, OUTPUTSCALE))
    policy = tb.compressed_gp(kernel, noise_std=PRINTED_LAM**0.5, entropy_threshold=PRINTED_EPSILON)
    bandit = tb.Bandit(policy, torch.from_numpy(arms), generator=generator(seed))
    regrets = []
    for _ in range(pulls):
        selection = bandit.ask()
        rewards = f[selection.index.numpy()] + PRINTED_LAM**0.5 * random.normal(size=len(selection.index))
        bandit.tell(selection, torch.from_numpy(rewards))
        regrets += (f.max() - f[selection.index.numpy()]).tolist()
    return int((bandit.dictionary >= 0).sum()), np.array(regrets)


@pytest.mark.exhaustive
@OFF_SCALE
def test_cub_with_the_printed_numbers_can_learn_nothing_and_have_linear_regret():
    """The first picks are random; then the same arm is pulled forever, and the regret per step is constant."""
    assert math.exp(2 * PRINTED_EPSILON) / (2 * math.pi * math.e) > PRINTED_LAM + OUTPUTSCALE
    slopes = []
    for seed in range(10):
        kept, regrets = linear_regret(seed, 60)
        assert kept == 0
        assert np.ptp(regrets[2:]) == 0
        slopes.append(regrets[-1])
    most, mean = map(float, re.search(r"up to (0\.\d+) a step and\s+(0\.\d+) on average over ten draws", REGRET).groups())
    assert (round(max(slopes), 2), round(float(np.mean(slopes)), 2)) == (most, mean)


@pytest.mark.parametrize(("lam", "vacuous"), [(1e-4, False), (0.053, False), (0.054, True), (1.0, True)])
def test_cubs_default_threshold_is_below_0_or_as_large_as_any_regret(lam, vacuous):
    policy = tb.compressed_gp(gpytorch.kernels.RBFKernel().double(), noise_std=lam**0.5)
    threshold = policy.memory.threshold
    assert threshold == pytest.approx(0.5 * math.log(2 * math.pi * math.e * 1.1 * lam))
    assert (threshold > 0) == vacuous


# ------------------------------------------------------------------------- the size of the dictionary


def test_a_dictionary_can_exceed_oversampling_times_the_effective_dimension():
    """Arms that share nothing, told at once with λ = κ² = 1: leverages are 1 before and ½ after, so S is twice q̄ d_eff."""
    arms = torch.arange(20, dtype=torch.float64)[:, None] * 100
    policy = tb.batch_bkb(gpytorch.kernels.RBFKernel().double(), noise_std=1.0, oversampling=1.0, regularization=1.0)
    bandit = tb.Bandit(policy, arms, generator=generator(0))
    bandit.tell(torch.arange(20), torch.zeros(20, dtype=torch.float64))
    d_eff = 20 * 0.5
    assert int((bandit.dictionary >= 0).sum()) == 20 == (1 + 1 / 1.0) * 1.0 * d_eff


@pytest.mark.parametrize("kernel_name", ["rbf", "matern32", "matern12"])
@pytest.mark.parametrize("lam", [0.1, 1.0])
def test_old_leverages_exceed_new_ones_by_at_most_the_stated_factor(kernel_name, lam):
    """Σ n lev_before ≤ (1 + κ²/λ) d_eff after any single pull, by the oracle, and q̄ times that bounds the expected size."""
    problem = Problem(seed=3, a=40, d=2)
    _, kernel_np = kernel_pair(kernel_name)
    K = kernel_np(problem.arms, problem.arms)
    counts = np.zeros(40)
    for arm in np.random.default_rng(5).integers(0, 40, 60):
        before = leverages(K, counts, lam)
        counts[arm] += 1
        after = leverages(K, counts, lam)
        d_eff = counts @ after
        assert d_eff == pytest.approx(oracles.effective_dimension(K[np.ix_(counts > 0, counts > 0)], counts[counts > 0], lam))
        assert counts @ before <= (1 + 1 / lam) * d_eff * (1 + 1e-9)


def leverages(K: np.ndarray, counts: np.ndarray, lam: float) -> np.ndarray:
    """Posterior variance over λ of every arm after `counts` pulls."""
    pulled = np.repeat(np.arange(len(K)), counts.astype(int))
    cross = K[pulled]
    variance = np.diag(K) - (cross * np.linalg.solve(K[np.ix_(pulled, pulled)] + lam * np.eye(len(pulled)), cross)).sum(axis=0)
    return variance / lam


# ------------------------------------------------------------------------- the accuracy of a small dictionary


def published() -> dict[tuple[str, int, float], tuple[float, float]]:
    """Worst ratio and number of points by kernel, dimension and q̄, as docs/guarantees.md prints them."""
    lines = re.findall(r"^\| (RBF|Matérn-\d/2) \| (\d) \| \d+ \| (.*) \|$", GUARANTEES, re.MULTILINE)
    found = {}
    for kernel, dim, cells in lines:
        for oversampling, cell in zip(OVERSAMPLING, cells.split(" | "), strict=True):
            worst, points = re.fullmatch(r"([\d.]+) \([\d.]+\), (\d+)", cell).groups()
            found[kernel, int(dim), oversampling] = float(worst), float(points)
    return found


def test_the_table_of_accuracies_is_whole():
    assert set(published()) == {(kernel, dim, q) for kernel in KERNELS for dim in (1, 2, 3) for q in OVERSAMPLING}


@pytest.mark.sweep(3)
@pytest.mark.parametrize("kernel", ["RBF", "Matérn-3/2"])
@pytest.mark.parametrize("dim", [1, 2])
@pytest.mark.parametrize("oversampling", [2.0, 8.0])
def test_variances_are_as_accurate_as_published(kernel, dim, oversampling):
    """One of the ten seeds of the table: its ratio is at most the worst one printed, its size near the median printed."""
    worst, points = published()[kernel, dim, oversampling]
    found = accuracy(kernel, oversampling, dim, seed=0)
    assert 1.0 <= found.ratio <= worst + 0.005
    assert found.points == pytest.approx(points, rel=0.5)
    # The benchmark's own effective dimension against the oracle's.
    arms = np.random.default_rng([dim, 0]).uniform(size=(600, dim))
    kernel_np = oracles.rbf(LENGTHSCALE) if kernel == "RBF" else oracles.matern(1.5, LENGTHSCALE)
    assert found.d_eff == pytest.approx(oracles.effective_dimension(kernel_np(arms, arms), np.ones(600), LAM), rel=1e-8)


# ------------------------------------------------------------------------- the policy table


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("bkb", ["1 − 2δ", "none at the defaults"]),
        ("batch_bkb", ["55 C̃³ times that of GP-UCB", "1 − 2δ", "none at the defaults"]),
        ("compressed_gp", ["none at the defaults", "√ε T"]),
        ("pi_gp_ucb", ["ν > 1", "λ = 1 + 2/T", "Thm 3"]),
        ("thompson_sampling", ["λ = 1 + 2/T", "nodes grow with T", "none for this implementation"]),
        ("lin_ucb", ["λ ≥ max(1, ‖x‖²)"]),
    ],
)
def test_the_policy_table_states_the_conditions(name, words):
    (entry,) = (entry for entry in CATALOGUE if entry.name == name)
    for word in words:
        assert word in f"{entry.guarantee} ({entry.paper})"
