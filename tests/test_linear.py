"""Linear bandits against dense numpy: picks, posteriors, the sketch's guarantee, and the coverage of the widths."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import oracles_linear as oracle
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from problems import OFF_SCALE, generator, whole
from tolerances import VARIANCE, assert_close

import torchbandits as tb
from torchbandits import errors
from torchbandits.batching import FixedSize
from torchbandits.embeddings import FeatureMap, FiniteEmbedding, GaussianProjection, Identity, linear_kernel
from torchbandits.linalg import LowRankPrecision
from torchbandits.memory import FrequentDirections
from torchbandits.policies import Composed
from torchbandits.posteriors import Sketch
from torchbandits.scores import PosteriorDraw

NOISE_STD, DELTA = 0.1, 0.1
OPTIONS = {"noise_std": NOISE_STD, "norm_bound": 1.0, "delta": DELTA}
F64 = VARIANCE[torch.float64]


@dataclass
class Linear:
    """Arms in the unit ball, θ of norm 0.3, so that many arms are competitive, and a table of noise."""

    seed: int
    a: int = 50
    d: int = 6
    decay: float = 0.9
    arms: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        rng = np.random.default_rng(self.seed)
        arms = rng.normal(size=(self.a, self.d)) * self.decay ** np.arange(self.d)
        self.arms = arms / np.linalg.norm(arms, axis=1).max()
        theta = rng.normal(size=self.d)
        self.theta = 0.3 * theta / np.linalg.norm(theta)
        self.noise = NOISE_STD * rng.normal(size=3_000)

    @property
    def tensor(self) -> torch.Tensor:
        return torch.as_tensor(self.arms)

    def rewards(self, pull: int, index: list[int]) -> list[float]:
        return [float(self.arms[i] @ self.theta + self.noise[pull + j]) for j, i in enumerate(index)]


def width_of(lam: float, d: int, bound: float = 1.0):
    def width(log_det: float, loss: float) -> float:
        return oracle.sketched(log_det, loss, d, NOISE_STD, bound, DELTA, lam)

    return width


def tell(bandit: tb.Bandit, problem: Linear, index: list[int]) -> tb.Report:
    rewards = problem.rewards(int(bandit.pulls), index)
    return bandit.tell(torch.tensor(index), torch.tensor(rewards, dtype=torch.float64))


def follow(bandit: tb.Bandit, dense: oracle.LinearBandit, problem: Linear, pulls: int) -> None:
    """Assert that every pick, the width and the information gain equal the oracle's."""
    for t in range(pulls):
        scores = dense.scores()
        pick = bandit.ask().index.tolist()
        assert pick == [int(scores.argmax())], f"pick {t}: {pick}, scores {np.sort(scores)[-3:]}"
        np.testing.assert_allclose(float(bandit.width), dense.current_width, rtol=1e-9)
        dense.tell(pick, problem.rewards(t, pick))
        report = tell(bandit, problem, pick)
        np.testing.assert_allclose(float(report.information_gain), 0.5 * dense.log_det, rtol=1e-8, atol=1e-10)


def assert_same_posterior(bandit: tb.Bandit, dense: oracle.LinearBandit, problem: Linear, lift: Any = None) -> None:
    """Assert equal posteriors on the arms (in the table and by `posterior`) and at other points."""
    lift = lift or (lambda x: x)
    points = np.concatenate([problem.arms, np.random.default_rng(0).normal(size=(10, problem.d))])
    mean, variance = dense.marginals(lift(points))
    got = bandit.posterior(torch.as_tensor(points))
    k = np.square(lift(points)).sum(1).max()
    assert_close(got.mean, mean, F64, scale=10 * np.abs(mean).max(), what="means")
    assert_close(got.variance, variance, F64, scale=k, what="variances")
    state = bandit.loop.state
    assert_close(state.arm_mean(), mean[: problem.a], F64, scale=10 * np.abs(mean).max(), what="tabulated means")
    lam = state.posterior.regularization
    assert_close(lam * state.arm_leverage(), variance[: problem.a], F64, scale=k, what="tabulated variances")


# ------------------------------------------------------------------------- picks are the oracle's


@pytest.mark.sweep(2)
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("lam", "prior_mean"), [(1.0, 0.0), (0.01, 0.3)])
def test_lin_ucb_picks_what_dense_oful_picks(seed: int, lam: float, prior_mean: float):
    problem = Linear(seed)

    def width(log_det: float, loss: float) -> float:
        return oracle.self_normalized(log_det, NOISE_STD, 1.0, DELTA, lam)

    dense = oracle.LinearBandit(problem.arms, lam, width, prior_mean=prior_mean)
    bandit = tb.Bandit(tb.lin_ucb(regularization=lam, prior_mean=prior_mean, **OPTIONS), problem.tensor)
    follow(bandit, dense, problem, 80)
    assert (dense.counts > 0).sum() >= 5, "many arms were worth a look"
    assert_same_posterior(bandit, dense, problem)


@pytest.mark.sweep(5)
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("m", [2, 4, 9])
def test_cbrap_picks_what_dense_oful_picks_on_the_projection(seed: int, m: int):
    problem = Linear(seed)
    R = torch.randn(problem.d, m, generator=generator(40 + seed), dtype=torch.float64).numpy() / math.sqrt(m)
    dense = oracle.LinearBandit(problem.arms @ R, 1.0, width_of(1.0, m))
    bandit = tb.Bandit(tb.cbrap(num_features=m, **OPTIONS), problem.tensor, generator=generator(40 + seed))
    follow(bandit, dense, problem, 65)
    assert_same_posterior(bandit, dense, problem, lift=lambda x: x @ R)


@pytest.mark.sweep
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("m", [1, 2, 5])
@pytest.mark.parametrize(("lam", "prior_mean"), [(1.0, 0.0), (0.1, -0.2)])
def test_soful_picks_what_dense_oful_picks_on_a_textbook_sketch(seed: int, m: int, lam: float, prior_mean: float):
    problem = Linear(seed)
    dense = oracle.LinearBandit(problem.arms, lam, width_of(lam, problem.d), sketch_size=m, prior_mean=prior_mean)
    policy = tb.soful(sketch_size=m, regularization=lam, prior_mean=prior_mean, **OPTIONS)
    bandit = tb.Bandit(policy, problem.tensor)
    follow(bandit, dense, problem, 65)
    assert_same_posterior(bandit, dense, problem)
    assert dense.sketch is not None
    assert dense.sketch.loss > 0.01
    np.testing.assert_allclose(float(bandit.posterior.sketch.loss), dense.sketch.loss, rtol=1e-9)


@pytest.mark.parametrize("m", [1, 2, 4])
def test_tells_of_many_arms_and_history_enter_the_sketch_arm_by_arm(m: int):
    """Repeated arms in one tell, history by index (few and many) and by points, in batches that fill the buffer many times."""
    problem = Linear(5)
    dense = oracle.LinearBandit(problem.arms, 1.0, width_of(1.0, problem.d), sketch_size=m)
    bandit = tb.Bandit(tb.soful(sketch_size=m, **OPTIONS), problem.tensor)
    rng = np.random.default_rng(1)
    for size in (1, 7, 2, 3 * m, 30):
        index = rng.integers(0, 12, size=size).tolist()
        dense.tell(index, problem.rewards(int(bandit.pulls), index))
        tell(bandit, problem, index)
        assert_same_posterior(bandit, dense, problem)
    for size in (5, 40):
        index, counts = rng.permutation(problem.a)[:size], rng.uniform(0.5, 4, size=size)
        sums = counts * rng.normal(size=size)
        for i, n, s in zip(index, counts, sums, strict=True):
            dense.observe(problem.arms[i], n, s)
        bandit.observe(torch.as_tensor(index), torch.as_tensor(counts), torch.as_tensor(sums))
        assert_same_posterior(bandit, dense, problem)
    points, counts = rng.normal(size=(9, problem.d)), rng.uniform(0.5, 4, size=9)
    for x, n in zip(points, counts, strict=True):
        dense.observe(x, n, 0.3 * n)
    bandit.observe(torch.as_tensor(points), torch.as_tensor(counts), torch.as_tensor(0.3 * counts))
    assert_same_posterior(bandit, dense, problem)
    np.testing.assert_allclose(float(bandit.loop.state.log_det), dense.log_det, rtol=1e-8)
    tell(bandit, problem, [3, 4])
    dense.tell([3, 4], problem.rewards(int(bandit.pulls) - 2, [3, 4]))
    assert_same_posterior(bandit, dense, problem)


class Products(FiniteEmbedding):
    """Features of a user: the products of two features."""

    def __init__(self, factors: torch.Tensor) -> None:
        super().__init__()
        self.register_buffer("factors", factors)

    @property
    def num_features(self) -> int:
        return self.factors.shape[-1]

    def __call__(self, points: torch.Tensor) -> torch.Tensor:
        left, right = torch.combinations(torch.arange(points.shape[-1]), with_replacement=True).T
        return (points.double()[..., left] * points.double()[..., right] * self.factors).mT


@dataclass(frozen=True)
class Quadratic(FeatureMap):
    def build(self, kernel: Any, arms: Any, generators: Any, batch_shape: torch.Size) -> Products:
        factors = [torch.rand(6, generator=g, dtype=torch.float64) for g in generators]
        return Products(torch.stack(factors).reshape(*batch_shape, 1, 6))


class Rows(Products):
    def __call__(self, points: torch.Tensor) -> torch.Tensor:
        return super().__call__(points).mT


@dataclass(frozen=True)
class Made(FeatureMap):
    make: Any

    def build(self, kernel: Any, arms: Any, generators: Any, batch_shape: torch.Size) -> Any:
        return self.make()


@pytest.mark.usefixtures("annotations_not_enforced")
@pytest.mark.parametrize(
    ("made", "error", "said"),
    [
        (lambda: None, errors.ArgumentError, "Made must return a FiniteEmbedding, got NoneType"),
        (lambda: Rows(torch.ones(1, 6).double()), errors.ShapeError, r"batch_shape x 6 x 1, got \(1, 6\)"),
        (lambda: Products(torch.ones(1, 6).double()).float(), None, ""),
    ],
)
def test_features_of_a_user_that_are_none_are_refused(made: Any, error: Any, said: str):
    """Without features the kernel itself was used."""
    arms = torch.rand(9, 3, generator=generator(0), dtype=torch.float64)
    policy = Composed(linear_kernel(), 0.1, tb.widths.Constant(2.0), 0.01, features=Made(made))
    if error is None:
        tb.Bandit(policy, arms)
        return
    with pytest.raises(error, match=said):
        tb.Bandit(policy, arms)


@OFF_SCALE
@pytest.mark.parametrize("rows", [1, 3])
def test_features_of_a_user_are_those_of_transformed_arms(rows: int):
    """Picks and posterior are those of a linear model of the features, also after a saved state was loaded."""
    arms = torch.rand(40, 3, generator=generator(0), dtype=torch.float64) - 0.5
    given = {"noise_std": 0.1, "confidence": tb.widths.Constant(2.0), "regularization": 0.01, "batch_rule": FixedSize(size=2)}
    mine = Composed(linear_kernel(), **given, features=Quadratic())

    def begun(policy: Composed = mine, own: torch.Tensor = arms) -> tb.Bandit:
        seeds = [generator(row) for row in range(rows)]
        return tb.Bandit(policy, own, generator=seeds[0] if rows == 1 else seeds)

    bandit = begun()
    shape = () if rows == 1 else (rows,)
    lifted = Quadratic().build(None, arms, [generator(row) for row in range(rows)], torch.Size(shape))(arms).mT
    lifted = lifted.reshape(*shape, 40, 6)
    twin = begun(Composed(linear_kernel(), **given, features=Identity()), lifted)
    for step in range(8):
        picks, expected = bandit.ask(), twin.ask()
        assert torch.equal(picks.index, expected.index)
        rewards = picks.points.square().sum(dim=-1)
        bandit.tell(picks, rewards)
        twin.tell(expected, rewards)
        assert_close(bandit.posterior(arms).variance, twin.posterior(lifted).variance, VARIANCE[torch.float64])
        if step == 4:
            saved, bandit = bandit.state_dict(), begun()
            bandit.load_state_dict(saved)


@pytest.mark.parametrize("make", [tb.lin_ucb, lambda **o: tb.soful(sketch_size=2, **o)], ids=["lin_ucb", "soful"])
def test_an_estimated_prior_mean_is_the_average_told(make: Any):
    problem = Linear(2)
    bandit = tb.Bandit(make(prior_mean="estimate", **OPTIONS), problem.tensor)
    rewards, picks = [], []
    for t in range(20):
        pick = bandit.ask().index.tolist()
        picks += pick
        rewards += [y + 2.0 for y in problem.rewards(t, pick)]
        bandit.tell(torch.tensor(pick), torch.tensor(rewards[-1:], dtype=torch.float64))
    size = None if make is tb.lin_ucb else 2
    dense = oracle.LinearBandit(problem.arms, 1.0, width_of(1.0, problem.d), size, prior_mean=float(np.mean(rewards)))
    for pick, reward in zip(picks, rewards, strict=True):
        dense.tell([pick], [reward])
    assert_same_posterior(bandit, dense, problem)


# ------------------------------------------------------------------------- the sketch


def matrix(seed: int, rows: int, d: int, decay: float) -> np.ndarray:
    rng = np.random.default_rng(seed)
    basis = np.linalg.qr(rng.normal(size=(d, d)))[0]
    return (rng.normal(size=(rows, d)) * decay ** np.arange(d)) @ basis


@given(
    seed=st.integers(0, 10_000),
    m=st.integers(1, 6),
    d=st.integers(1, 8),
    decay=st.sampled_from([1.0, 0.5, 0.05]),
    chunk=st.integers(1, 20),
)
def test_frequent_directions_keep_their_guarantee(seed: int, m: int, d: int, decay: float, chunk: int):
    """0 ⪯ AᵀA − SᵀS ⪯ ρI, ρ ≤ |A − A_k|² / (m + 1 − k), and chunks of any size give the textbook's sketch."""
    A = matrix(seed, 37, d, decay)
    weights = np.random.default_rng(seed).integers(0, 4, size=37).astype(float)
    sketch, textbook = Sketch(m, d), oracle.FrequentDirections(m, d)
    for start in range(0, 37, chunk):
        part = slice(start, start + chunk)
        sketch.add_(torch.as_tensor(A[part].T), torch.as_tensor(weights[part]))
    for row, n in zip(A, weights, strict=True):
        if n:
            textbook.add(math.sqrt(n) * row)
    kept, loss = (sketch.rows.mT @ sketch.rows).numpy(), float(sketch.loss)
    weighted = np.sqrt(weights)[:, None] * A
    scale = np.linalg.norm(weighted, 2) ** 2
    np.testing.assert_allclose(kept, textbook.second_moment(), rtol=0, atol=1e-10 * scale)
    np.testing.assert_allclose(loss, textbook.loss, rtol=1e-8, atol=1e-12 * scale)
    values = np.linalg.eigvalsh(weighted.T @ weighted - kept)
    assert values.min() >= -1e-11 * scale
    assert values.max() <= loss + 1e-11 * scale
    squares = np.linalg.svd(weighted, compute_uv=False) ** 2
    for k in range(m + 1):
        assert loss <= squares[k:].sum() / (m + 1 - k) + 1e-11 * scale


def test_batch_rows_fill_and_shrink_by_themselves():
    """Rows with different zero weights, which therefore shrink at different times, equal the sketches of single runs."""
    rng = np.random.default_rng(0)
    A, weights = rng.normal(size=(4, 5, 3, 7)), rng.integers(0, 3, size=(4, 5, 3)) * (rng.uniform(size=(4, 5, 3)) < 0.6)
    batch = Sketch(2, 7, (5,))
    singles = [Sketch(2, 7) for _ in range(5)]
    for x, n in zip(torch.as_tensor(A), torch.as_tensor(weights), strict=True):
        batch.add_(x.mT, n.double())
        for row, single in enumerate(singles):
            single.add_(x[row].mT, n[row].double())
    assert batch.used.unique().numel() > 1
    for row, single in enumerate(singles):
        assert int(batch.used[row]) == int(single.used)
        torch.testing.assert_close(batch.loss[row], single.loss, rtol=1e-12, atol=0)
        for sketch in (batch.rows[row], single.rows):
            assert sketch[int(single.used) :].abs().sum() == 0
        torch.testing.assert_close(batch.rows[row].mT @ batch.rows[row], single.rows.mT @ single.rows, rtol=0, atol=1e-12)


@pytest.mark.parametrize("scale", [1e-8, 1.0, 1e4])
@pytest.mark.parametrize("shape", [(), (3,)])
def test_low_rank_precision_is_the_dense_one(scale: float, shape: tuple[int, ...]):
    g, lam = generator(0), 0.3
    S = scale * torch.randn(*shape, 5, 9, generator=g, dtype=torch.float64)
    S[..., 3:, :] = 0  # rows that are not yet used
    S[..., 2, :] = S[..., 1, :]
    precision, z = LowRankPrecision(S, lam), torch.randn(*shape, 9, 4, generator=g, dtype=torch.float64)
    # From singular values, because V itself, with a condition number of 10⁹, would not be a reference.
    _, values, directions = torch.linalg.svd(S, full_matrices=True)
    ridge = lam + torch.nn.functional.pad(values, (0, 4)).square()
    inverse = directions.mT @ (directions / ridge.unsqueeze(-1))
    close = {"rtol": 0, "atol": 1e-12}
    torch.testing.assert_close(precision.solve(z), inverse @ z, **close)
    white = precision.whiten(z)
    torch.testing.assert_close(white.mT @ white, z.mT @ inverse @ z, **close)
    torch.testing.assert_close(
        z.mT @ z / lam - (precision.explained @ z).mT @ (precision.explained @ z), z.mT @ inverse @ z, **close
    )
    rounding = 1e-15 * float(ridge.max()) / lam  # the rounding error of a zero eigenvalue, in units of λ
    torch.testing.assert_close(precision.log_det, ridge.log().sum(dim=-1), rtol=1e-12, atol=rounding)
    assert precision.size == 9


# ------------------------------------------------------------------------- SOFUL and LinUCB


@pytest.mark.sweep(1)
@pytest.mark.parametrize("width", [None, tb.widths.Constant(0.7)], ids=["default", "constant"])
@pytest.mark.parametrize("size", [6, 9])
def test_soful_with_room_for_every_dimension_is_lin_ucb(size: int, width: tb.widths.Width | None):
    for seed in range(2):
        problem = Linear(10 + seed)
        bandits = [
            tb.Bandit(policy, problem.tensor)
            for policy in (tb.lin_ucb(width=width, **OPTIONS), tb.soful(sketch_size=size, width=width, **OPTIONS))
        ]
        for _ in range(60):
            picks = [bandit.ask().index.tolist() for bandit in bandits]
            assert picks[0] == picks[1]
            reports = [tell(bandit, problem, picks[0]) for bandit in bandits]
        assert float(bandits[1].posterior.sketch.loss) == 0
        np.testing.assert_allclose(float(reports[0].width), float(reports[1].width), rtol=1e-12)
        np.testing.assert_allclose(float(reports[0].information_gain), float(reports[1].information_gain), rtol=1e-9)


def test_arms_that_span_few_dimensions_lose_nothing():
    """d = 20, arms in a subspace of 3: a sketch of 3 is LinUCB, though the buffer was full many times."""
    problem = Linear(3, d=20)
    basis = np.linalg.qr(np.random.default_rng(0).normal(size=(20, 3)))[0]
    problem.arms = problem.arms @ basis @ basis.T
    bandits = [tb.Bandit(policy, problem.tensor) for policy in (tb.lin_ucb(**OPTIONS), tb.soful(sketch_size=3, **OPTIONS))]
    for _ in range(60):
        picks = [bandit.ask().index.tolist() for bandit in bandits]
        assert picks[0] == picks[1]
        for bandit in bandits:
            tell(bandit, problem, picks[0])
    assert float(bandits[1].posterior.sketch.loss) <= 1e-28


# ------------------------------------------------------------------------- the widths cover


def covered(policy: Composed, rows: int, pulls: int, d: int, m: int | None) -> tuple[np.ndarray, list[np.ndarray]]:
    """Runs, each with its own θ on the sphere and its own noise.

    Returns whether f was always inside the bounds on every arm; the regret after the first picks; and twice the half-widths of
    the bounds at the picks.
    """
    rng = np.random.default_rng(7)
    arms = Linear(1, a=60, d=d, decay=0.8).tensor
    theta = torch.as_tensor(rng.normal(size=(rows, d)))
    f = (theta / theta.norm(dim=-1, keepdim=True)) @ arms.mT
    policy = replace(policy, initial=tb.starts.uniform(40))  # diverse arms, of which the sketch loses information
    bandit = tb.Bandit(policy, arms, generator=[generator(r) for r in range(rows)])
    inside, regret, spent = torch.ones(rows, dtype=torch.bool), torch.zeros(rows), torch.zeros(rows)
    for pull in range(pulls):
        state, pick = bandit.loop.state, bandit.ask().index
        width = bandit.width.unsqueeze(-1)
        half = width * (state.posterior.regularization * state.arm_leverage()).sqrt()
        inside &= ((f - state.arm_mean()).abs() <= half).all(dim=-1)
        mine = f.gather(-1, pick)
        if pull >= 40:
            regret = regret + f.amax(dim=-1) - mine.squeeze(-1)
            spent = spent + 2 * half.gather(-1, pick).squeeze(-1)
        bandit.tell(bandit.ask(), mine + NOISE_STD * torch.as_tensor(rng.normal(size=pick.shape)))
    if m is not None:
        assert (bandit.posterior.sketch.loss > 0.1).all(), "the sketch had something to lose"
    return inside.numpy(), [regret.numpy(), spent.numpy()]


@pytest.mark.sweep(2)
@pytest.mark.parametrize("m", [None, 2, 5])
@pytest.mark.parametrize("lam", [1.0, 0.05])
def test_the_bounds_hold_in_all_but_delta_of_the_runs(m: int | None, lam: float):
    rows, pulls, d = 40, 120, 8
    policy = tb.lin_ucb(regularization=lam, **OPTIONS) if m is None else tb.soful(sketch_size=m, regularization=lam, **OPTIONS)
    inside, (regret, spent) = covered(policy, rows, pulls, d, m)
    assert inside.mean() >= 1 - DELTA
    assert (regret[inside] <= spent[inside]).all(), "optimism: an instant's regret is at most twice the half-width"
    if m is None and lam == 1.0:  # Abbasi-Yadkori et al. 2011, Thm 3, with L = 1
        log = np.log(lam + pulls / d)
        noise = NOISE_STD * np.sqrt(2 * np.log(1 / DELTA) + d * np.log(1 + pulls / (lam * d)))
        assert (regret[inside] <= 4 * np.sqrt(pulls * d * log) * (np.sqrt(lam) + noise)).all()


@given(
    seed=st.integers(0, 10_000), m=st.integers(1, 5), decay=st.sampled_from([1.0, 0.5]), lam=st.sampled_from([5.0, 1.0, 0.05])
)
def test_what_the_width_of_a_sketch_rests_on_holds_for_any_noise(seed: int, m: int, decay: float, lam: float):
    """|θ̂ − θ| in the norm of V̂ ≤ √λ |θ| max(1, ε − 1) + √(1 + ε) |Aᵀη| in that of V⁻¹, and det V ≤ (1 + ε)^d det V̂."""
    A, d, rng = matrix(seed, 30, 6, decay), 6, np.random.default_rng(seed + 1)
    sketch, theta, noise = (
        oracle.FrequentDirections(m, d),
        rng.normal(size=d),
        rng.normal(size=30) * 10.0 ** rng.integers(-3, 2),
    )
    for row in A:
        sketch.add(row)
    V, hat, ratio = A.T @ A + lam * np.eye(d), sketch.second_moment() + lam * np.eye(d), sketch.loss / lam
    error = np.linalg.solve(hat, A.T @ (A @ theta + noise)) - theta
    bias = np.sqrt(lam) * np.linalg.norm(theta) * max(1.0, ratio - 1)
    spread = np.sqrt((1 + ratio) * (A.T @ noise) @ np.linalg.solve(V, A.T @ noise))
    assert np.sqrt(error @ hat @ error) <= (bias + spread) * (1 + 1e-9)
    assert np.linalg.slogdet(V)[1] <= np.linalg.slogdet(hat)[1] + d * np.log1p(ratio) + 1e-9


def test_without_its_correction_the_width_of_a_sketch_does_not_cover():
    """Shows that the test above can fail: OFUL's own width on a lossy sketch does not cover f in most runs."""
    policy = tb.soful(
        sketch_size=2, regularization=0.05, width=tb.widths.SelfNormalized(NOISE_STD, 1.0, DELTA, 0.05), **OPTIONS
    )
    assert covered(policy, 40, 120, 8, 2)[0].mean() < 0.5


@pytest.mark.parametrize("m", [None, 3])
def test_a_norm_bound_a_batch_row(m: int | None):
    bounds = torch.tensor([0.5, 2.0], dtype=torch.float64)
    options = OPTIONS | {"norm_bound": bounds}
    policy = tb.lin_ucb(**options) if m is None else tb.soful(sketch_size=m, **options)
    bandit = tb.Bandit(policy, Linear(0).tensor, generator=[generator(0), generator(1)])
    expected = [oracle.self_normalized(0.0, NOISE_STD, float(b), DELTA, 1.0) for b in bounds]
    np.testing.assert_allclose(bandit.width.numpy(), expected)


# ------------------------------------------------------------------------- float32, batches, pending, saving


MAKERS = {
    "lin_ucb": lambda **o: tb.lin_ucb(**OPTIONS, **o),
    "cbrap": lambda **o: tb.cbrap(num_features=4, **OPTIONS, **o),
    "soful": lambda **o: tb.soful(sketch_size=2, **OPTIONS, **o),
}
every = pytest.mark.parametrize("name", MAKERS)


@pytest.mark.sweep(3)
@every
@pytest.mark.parametrize("lam", [1.0, 1e-3])
def test_float32_arms_have_a_float64_posterior(name: str, lam: float):
    problem, index = Linear(4), [int(i) for i in np.random.default_rng(0).integers(0, 50, size=40)]
    double, single = (
        tb.Bandit(MAKERS[name](regularization=lam), problem.tensor.to(dtype), generator=generator(3))
        for dtype in (torch.float64, torch.float32)
    )
    for bandit in (double, single):
        for start in range(0, 40, 4):
            tell(bandit, problem, index[start : start + 4])
    got, expected = single.posterior(problem.tensor), double.posterior(problem.tensor)
    tolerance, k = VARIANCE[torch.float32], float(double.loop.state.table.kappa2.max())
    assert_close(got.variance, expected.variance, tolerance, scale=k)
    assert_close(got.mean, expected.mean, tolerance)  # on the scale of the rewards, 1
    state = single.loop.state
    assert state.arm_leverage().dtype == torch.float64
    assert_close(lam * state.arm_leverage(), expected.variance, tolerance, scale=k)
    assert_close(state.arm_mean(), expected.mean, tolerance)
    assert single.ask().points.dtype == torch.float32
    single.ask(more=3)


@pytest.mark.sweep(1)
@every
@pytest.mark.parametrize("own_arms", [False, True])
def test_rows_with_other_numbers_of_pulls_are_singles(name: str, own_arms: bool):
    problems = [Linear(20 + row if own_arms else 20) for row in range(3)]
    arms = torch.stack([p.tensor for p in problems]) if own_arms else problems[0].tensor
    limits = [1, 4, 2]
    batch = tb.Bandit(MAKERS[name](), arms, generator=[generator(row) for row in range(3)])
    singles = [tb.Bandit(MAKERS[name](), p.tensor, generator=generator(row)) for row, p in enumerate(problems)]
    for _ in range(12):
        batch.ask(more=1) if batch.loop.open is None else None
        for _ in range(3):
            batch.ask(more=1)
        opened = batch.ask()
        told = torch.full(opened.index.shape, torch.nan, dtype=torch.float64)
        mask = torch.zeros_like(opened.mask)
        for row, (single, problem) in enumerate(zip(singles, problems, strict=True)):
            while single.loop.open is None or len(single.ask()) < 4:
                single.ask(more=1)
            index = single.ask().index.tolist()
            assert opened.index[row].tolist() == index
            part = index[: limits[row]]
            rewards = torch.tensor(problem.rewards(int(single.pulls), part), dtype=torch.float64)
            told[row, : limits[row]], mask[row, : limits[row]] = rewards, True
            single.tell(single.ask()[: limits[row]], rewards)
            single.forget(single.ask()) if limits[row] < 4 else None
        batch.tell(tb.Selection(opened.points, torch.where(mask, opened.index, -1), mask), told)
        left = batch.loop.open
        if left is not None:
            batch.forget(left)
    assert batch.pulls.tolist() == [12.0, 48.0, 24.0]
    for row, single in enumerate(singles):
        torch.testing.assert_close(batch.loop.state.arm_mean()[row], single.loop.state.arm_mean(), rtol=1e-9, atol=1e-10)
        torch.testing.assert_close(
            batch.loop.state.arm_leverage()[row], single.loop.state.arm_leverage(), rtol=1e-9, atol=1e-12
        )
        torch.testing.assert_close(batch.width[row], single.width, rtol=1e-9, atol=0)


def test_a_shrink_changes_no_other_row():
    """One row is told enough to shrink. The other row is told nothing, and its table and sketch keep their bits."""
    problem = Linear(6)
    bandit = tb.Bandit(MAKERS["soful"](), problem.tensor, generator=[generator(0), generator(1)])
    bandit.tell(torch.tensor([[1], [2]]), torch.tensor([[0.1], [0.2]], dtype=torch.float64))
    before = [
        t[1].clone() for t in (bandit.loop.state.arm_mean(), bandit.loop.state.arm_leverage(), bandit.posterior.sketch.rows)
    ]
    for arm in range(10, 18):
        index = torch.tensor([[arm], [-1]])
        bandit.tell(index, torch.tensor([[0.3], [math.nan]]).double())
    loss = bandit.posterior.sketch.loss
    assert loss[0] > 0
    assert loss[1] == 0
    after = [t[1] for t in (bandit.loop.state.arm_mean(), bandit.loop.state.arm_leverage(), bandit.posterior.sketch.rows)]
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


@every
def test_pending_picks_shrink_variances_and_are_undone(name: str):
    problem = Linear(8)
    bandit = tb.Bandit(MAKERS[name](), problem.tensor, generator=generator(1))
    for _ in range(15):
        tell(bandit, problem, bandit.ask().index.tolist())
    posterior = bandit.posterior
    lam, Z = posterior.regularization, posterior.finite(problem.tensor).numpy().T
    plain = bandit.posterior(problem.tensor)
    sketch = getattr(posterior, "sketch", None)
    weights = bandit.counts.numpy()
    second = (Z.T * weights) @ Z if sketch is None else (sketch.rows.mT @ sketch.rows).numpy()
    V = second + lam * np.eye(Z.shape[1])
    opened = bandit.ask(more=1)
    for _ in range(3):
        opened = bandit.ask(more=1)
    mean, width = plain.mean.numpy(), float(bandit.width)
    for arm in opened.index.tolist():  # each pick is the argmax with those before it pending
        variance = lam * (Z * np.linalg.solve(V, Z.T).T).sum(1)
        assert arm == int((mean + width * np.sqrt(variance)).argmax())
        V = V + np.outer(Z[arm], Z[arm])
    got = bandit.posterior(problem.tensor)
    np.testing.assert_allclose(got.variance.numpy(), lam * (Z * np.linalg.solve(V, Z.T).T).sum(1), rtol=1e-8, atol=1e-12)
    torch.testing.assert_close(got.mean, plain.mean, rtol=0, atol=1e-13)
    joint = lam * Z @ np.linalg.solve(V, Z.T)
    np.testing.assert_allclose(bandit.posterior.covariance(problem.tensor).numpy(), joint, rtol=0, atol=1e-10)
    bandit.forget(opened)
    torch.testing.assert_close(bandit.posterior(problem.tensor).variance, plain.variance, rtol=0, atol=1e-13)


def test_a_saved_projection_goes_with_the_state():
    """The state is loaded into a bandit that drew another projection, before the first pull and after some pulls."""
    problem = Linear(9)
    for pulls in (0, 7):
        bandit, other = (tb.Bandit(MAKERS["cbrap"](), problem.tensor, generator=generator(seed)) for seed in (1, 2))
        for _ in range(pulls):
            tell(bandit, problem, bandit.ask().index.tolist())
        other.load_state_dict(bandit.state_dict())
        for name in ("prior_diagonal", "kappa2", "leverage"):
            assert torch.equal(getattr(other.loop.state.table, name), getattr(bandit.loop.state.table, name)), name
        for _ in range(20):
            picks = [b.ask().index.tolist() for b in (bandit, other)]
            assert picks[0] == picks[1]
            for b in (bandit, other):
                tell(b, problem, picks[0])


@every
def test_uncertainty_sampling_comes_first(name: str):
    """The start follows the exact posterior of the kernel xᵀx', also under a projection or sketch."""
    problem = Linear(12)
    bandit = tb.Bandit(MAKERS[name](initial=tb.starts.uncertainty(4.0)), problem.tensor, generator=generator(0))
    V = np.eye(problem.d)
    leverage = np.square(problem.arms).sum(1)
    while leverage.max() > 0.25:
        pick = bandit.ask().index.tolist()
        assert pick == [int(leverage.argmax())]
        tell(bandit, problem, pick)
        V = V + np.outer(problem.arms[pick[0]], problem.arms[pick[0]])
        leverage = (problem.arms * np.linalg.solve(V, problem.arms.T).T).sum(1)
    assert int(bandit.pulls) >= 6
    bandit.ask()
    assert not bandit.loop.state.opening


def test_projections_are_drawn_row_by_row_and_keep_inner_products():
    arms = torch.randn(20, 50, generator=generator(0), dtype=torch.float64)
    batch = GaussianProjection(400).build(linear_kernel(), arms, [generator(3), generator(4)], torch.Size([2]))
    single = GaussianProjection(400).build(linear_kernel(), arms, [generator(4)], torch.Size())
    assert batch.projection is not None
    assert single.projection is not None
    assert torch.equal(batch.projection[1], single.projection)
    assert not torch.equal(batch.projection[0], single.projection)
    z = batch(arms)
    assert z.shape == (2, 400, 20)
    lengths = arms.norm(dim=-1)
    error = (z.mT @ z - arms @ arms.mT).abs() / (lengths.unsqueeze(-1) * lengths)
    assert 0.2 / 20 <= float(error.mean()) <= 2 / 20, "about 1/√m"
    assert float(error.max()) <= 6 / 20


@pytest.mark.parametrize("features", [Identity(), GaussianProjection(4)], ids=["identity", "projection"])
def test_posterior_draws_on_linear_features(features: Any):
    """Mean and covariance of draws are those of the posterior."""
    problem = Linear(11, a=12)
    policy = Composed(
        linear_kernel(), NOISE_STD, tb.widths.Constant(1.0), 0.3, features=features, score=PosteriorDraw(), prior_mean=0.2
    )
    bandit = tb.Bandit(policy, problem.tensor, generator=generator(0))
    tell(bandit, problem, [0, 3, 3, 5, 7, 7])
    draws, n = bandit.loop.state.draws, 40_000
    assert draws is not None
    values = whole(draws.draw([n], torch.ones((), dtype=torch.float64), [generator(1)])).numpy()
    covariance = bandit.posterior.covariance(problem.tensor).numpy()
    spread = np.sqrt((np.outer(np.diag(covariance), np.diag(covariance)) + covariance**2) / n)
    mean = bandit.posterior(problem.tensor).mean.numpy()
    assert (np.abs(values.mean(0) - mean) <= 5 * np.sqrt(np.diag(covariance) / n)).all()
    assert (np.abs(np.cov(values.T) - covariance) <= 5 * spread + 1e-12).all()


# ------------------------------------------------------------------------- bad input


@pytest.mark.parametrize("size", [0, -1, 2.5, True, None])
@pytest.mark.usefixtures("annotations_not_enforced")
def test_sizes_that_are_none(size: Any):
    for make, name in ((tb.soful, "sketch_size"), (tb.cbrap, "num_features")):
        with pytest.raises(errors.ArgumentError, match=f"{name} must be a whole number of at least 1, got {size!r}"):
            make(**{name: size})


def test_what_a_sketch_is_not_for():
    arms, width = Linear(0).tensor, tb.widths.Constant(1.0)
    with pytest.raises(errors.UnsupportedError, match="features="):
        tb.Bandit(Composed(linear_kernel(), NOISE_STD, width, 1.0, memory=FrequentDirections(2)), arms)
    drawn = Composed(
        linear_kernel(), NOISE_STD, width, 1.0, memory=FrequentDirections(2), features=Identity(), score=PosteriorDraw()
    )
    with pytest.raises(errors.UnsupportedError, match="UCB"):
        tb.Bandit(drawn, arms)


def test_projected_features_beyond_the_budget_and_plain_ones_that_need_none():
    arms = Linear(0).tensor
    tb.Bandit(tb.lin_ucb(memory_budget=10), arms).ask()
    tb.Bandit(tb.soful(sketch_size=2, memory_budget=10), arms).ask()
    with pytest.raises(errors.ArgumentError, match="at most 20 random features"):
        tb.Bandit(tb.cbrap(num_features=40, memory_budget=8_000), arms)
    tb.Bandit(tb.cbrap(num_features=20, memory_budget=8_000), arms).ask()


@pytest.mark.parametrize("name", ["lin_ucb", "soful"])
@pytest.mark.usefixtures("annotations_not_enforced")
def test_arms_too_large_to_square_are_an_error(name: str):
    bandit, index = tb.Bandit(MAKERS[name](), 1e60 * Linear(0).tensor), torch.tensor([3])
    huge = torch.tensor([1e200], dtype=torch.float64)
    with pytest.raises(errors.NumericalError):
        bandit.observe(index, huge, torch.ones(1, dtype=torch.float64))
    assert int(bandit.pulls) == 0
    assert bandit.ask().mask.all()


def test_the_kernel_of_lin_ucb_cannot_be_fitted_and_the_error_names_a_policy_whose_kernel_can():
    bandit = tb.Bandit(tb.lin_ucb(), torch.rand(9, 2, dtype=torch.float64, generator=generator(0)))
    bandit.tell(torch.tensor([0, 1]), torch.tensor([0.0, 1.0], dtype=torch.float64))
    with pytest.raises(errors.UnsupportedError, match="in place of lin_ucb gp_ucb with a LinearKernel"):
        bandit.fit_kernel_()
