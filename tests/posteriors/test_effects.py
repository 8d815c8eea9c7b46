"""Random effects beside a dictionary, against dense numpy."""

from __future__ import annotations

import copy
from typing import NamedTuple

import gpytorch
import numpy as np
import pytest
import torch
from problems import generator
from torch import Tensor

import torchbandits as tb
from torchbandits import errors
from torchbandits.arms import ArmRows, ArmTable, PosteriorDraws
from torchbandits.posteriors import GaussianProcess, SamplePaths
from torchbandits.posteriors.conditional import Conditional
from torchbandits.random_effects import RandomEffectKernel, with_effect

F64 = torch.float64
SCALES, SIGNAL, EFFECT, LAM = np.array([0.4, 0.9]), 1.5, 0.6, 0.3


def rough(effect: float | Tensor = EFFECT) -> RandomEffectKernel:
    kernel = gpytorch.kernels.ScaleKernel(gpytorch.kernels.MaternKernel(2.5, ard_num_dims=2)).double()
    kernel.outputscale, kernel.base_kernel.lengthscale = SIGNAL, torch.as_tensor(SCALES)
    return with_effect(kernel, torch.as_tensor(effect, dtype=F64)).requires_grad_(False)


def smooth_np(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    r = np.sqrt(5 * (((x[:, None] - y[None]) / SCALES) ** 2).sum(-1))
    return SIGNAL * (1 + r + r**2 / 3) * np.exp(-r)


class Dense(NamedTuple):
    """The posterior of f = g + e on points x: g by its Nyström approximation, and e given g exactly."""

    mean: np.ndarray
    covariance: np.ndarray
    log_det: float


def dense(x: np.ndarray, told: np.ndarray, n: np.ndarray, s: np.ndarray, dictionary: np.ndarray, *, mu0: float = 0.0) -> Dense:
    S, pulled = told[dictionary], n > 0
    told, n, average = told[pulled], n[pulled], (s - n * mu0)[pulled] / n[pulled]

    def nystrom(left: np.ndarray, right: np.ndarray) -> np.ndarray:
        return smooth_np(left, S) @ np.linalg.solve(smooth_np(S, S), smooth_np(S, right))

    # g, where effects are noise that is the same at every pull of a point.
    noise = np.diag(LAM / n)
    A = nystrom(told, told) + EFFECT * np.eye(len(n)) + noise
    every = np.vstack([x, told])
    Q = nystrom(every, told)
    m = Q @ np.linalg.solve(A, average)
    C = smooth_np(every, every) - Q @ np.linalg.solve(A, Q.T)
    # e of the pulled points given g and their averages, of linear form; that of other points is unknown.
    gain = EFFECT * np.linalg.inv(EFFECT * np.eye(len(n)) + noise)
    same = (x[:, None] == told[None]).all(-1).astype(float)
    linear = np.hstack([np.eye(len(x)), -same @ gain])
    left = EFFECT * np.eye(len(n)) - gain * EFFECT
    unknown = EFFECT * (x[:, None] == x[None]).all(-1) * (same.sum(axis=1) == 0)
    covariance = linear @ C @ linear.T + same @ left @ same.T + unknown
    log_det = np.linalg.slogdet(np.eye(len(n)) + np.linalg.solve(noise, nystrom(told, told) + EFFECT * np.eye(len(n))))[1]
    return Dense(mu0 + linear @ m + same @ gain @ average, covariance, log_det)


class Problem(NamedTuple):
    arms: Tensor
    told: Tensor
    n: Tensor
    s: Tensor
    dictionary: Tensor


def problem(seed: int = 0, u: int = 12, arms: int = 40) -> Problem:
    """Arms of which the first u were told, some often and the last never, with a dictionary of every third."""
    draw = np.random.default_rng(seed)
    x = torch.as_tensor(draw.uniform(size=(arms, 2)))
    n = torch.as_tensor(draw.integers(1, 9, size=u).astype(float))
    n[-1] = 0
    s = n * torch.as_tensor(draw.normal(size=u) + 1)
    return Problem(x, x[:u], n, s, torch.arange(u) % 3 == 0)


def told(case: Problem, kernel: RandomEffectKernel, prior_mean: float | str = 0.0) -> GaussianProcess:
    process = GaussianProcess(kernel, LAM, dim=2, sparse=True, prior_mean=prior_mean)
    rows = process.append_(case.told, torch.ones(len(case.told), dtype=torch.bool))
    process.add_(rows, case.n, case.s, case.s.square())
    return process.set_dictionary_(case.dictionary)


def expected(case: Problem, mu0: float = 0.0) -> Dense:
    dictionary = np.flatnonzero(case.dictionary.numpy())
    return dense(case.arms.numpy(), case.told.numpy(), case.n.numpy(), case.s.numpy(), dictionary, mu0=mu0)


def both(marginals: tb.types.Marginals) -> tuple[Tensor, Tensor]:
    return marginals.mean, marginals.variance


@pytest.mark.parametrize("mu0", [0.0, 0.7, "estimate"])
def test_the_posterior_is_that_of_dense_numpy(mu0: float | str) -> None:
    case = problem()
    process = told(case, rough(), mu0)
    right = expected(case, float(case.s.sum() / case.n.sum()) if mu0 == "estimate" else mu0)
    found = process(case.arms)
    np.testing.assert_allclose(found.mean, right.mean, rtol=1e-9)
    np.testing.assert_allclose(found.variance, right.covariance.diagonal(), rtol=1e-9)
    np.testing.assert_allclose(process.covariance(case.arms), right.covariance, rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(process.covariance(case.arms[:5], case.arms[3:]), right.covariance[:5, 3:], atol=1e-10)
    np.testing.assert_allclose(process.log_det, right.log_det, rtol=1e-10)
    # Further pulls of pulled and of new points give the posterior of all pulls together.
    rows = torch.tensor([0, 4, -1])
    process.fit()
    process.add_(rows, torch.tensor([2.0, 1.0, 5.0]), torch.tensor([3.0, -1.0, 9.0]), torch.ones(3))
    n, s = case.n.clone(), case.s.clone()
    n[[0, 4]] += torch.tensor([2.0, 1.0], dtype=F64)
    s[[0, 4]] += torch.tensor([3.0, -1.0], dtype=F64)
    case = case._replace(n=n, s=s)
    right = expected(case, float(case.s.sum() / case.n.sum()) if mu0 == "estimate" else mu0)
    np.testing.assert_allclose(process(case.arms).mean, right.mean, rtol=1e-9)
    np.testing.assert_allclose(process(case.arms).variance, right.covariance.diagonal(), rtol=1e-9)


def test_a_dictionary_of_all_points_is_the_exact_posterior() -> None:
    case = problem()
    process = told(case._replace(dictionary=torch.ones_like(case.dictionary)), rough())
    exact = GaussianProcess(rough(), LAM, dim=2)
    exact.add_(exact.append_(case.told, torch.ones(12, dtype=torch.bool)), case.n, case.s, case.s.square())
    for one, other in zip(both(process(case.arms)), both(exact(case.arms)), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(process.covariance(case.arms), exact.covariance(case.arms), rtol=1e-8, atol=1e-9)
    torch.testing.assert_close(process.log_det, exact.log_det)


def test_pending_pulls_are_those_of_dense_numpy() -> None:
    """They shrink variances as told pulls do, without the dictionary's approximation."""
    case = problem()
    process = told(case, rough())
    right = expected(case)
    pending, counts = torch.tensor([2, 30]), torch.tensor([1.0, 3.0])
    process.set_pending_(case.arms[pending], counts)
    C = right.covariance[:, pending]
    A = right.covariance[np.ix_(pending, pending)] + LAM * np.diag(1 / counts.numpy())
    left = right.covariance - C @ np.linalg.solve(A, C.T)
    np.testing.assert_allclose(process(case.arms).variance, left.diagonal(), rtol=1e-6)
    np.testing.assert_allclose(process.covariance(case.arms), left, atol=1e-7)
    np.testing.assert_allclose(process(case.arms).mean, right.mean, rtol=1e-9)


@pytest.mark.parametrize("shared", [True, False])
def test_batch_rows_are_independent(shared: bool) -> None:
    cases = [problem(seed) for seed in range(3)]
    effects = [EFFECT] * 3 if shared else [0.2, 0.6, 2.0]
    kernel = rough() if shared else rough().expand_batch([3])
    if not shared:
        kernel.effect.data = torch.tensor(effects, dtype=F64)
    together = GaussianProcess(kernel, LAM, dim=2, sparse=True, batch_shape=(3,))
    x, n, s, dictionary = (torch.stack([getattr(case, name) for case in cases]) for name in ("told", "n", "s", "dictionary"))
    # The last row has a point less, and another dictionary.
    new = torch.ones(3, 12, dtype=torch.bool)
    new[2, 11] = False
    dictionary[2, 1] = True
    rows = together.append_(x, new)
    together.add_(rows, n, s, s.square()).set_dictionary_(dictionary)
    arms = torch.stack([case.arms for case in cases])
    together.set_pending_(arms[:, 20:22], torch.ones(3, 2))
    found, joint = together(arms), together.covariance(arms)
    for row, case in enumerate(cases):
        size = 12 - (row == 2)
        case = Problem(case.arms, *(part[:size] for part in (case.told, case.n, case.s, dictionary[row])))
        alone = told(case, rough(effects[row]))
        alone.set_pending_(case.arms[20:22], torch.ones(2))
        for one, other in zip(both(found), both(alone(case.arms)), strict=True):
            torch.testing.assert_close(one[row], other, rtol=1e-9, atol=1e-10)
        torch.testing.assert_close(joint[row], alone.covariance(case.arms), rtol=1e-8, atol=1e-9)
        torch.testing.assert_close(together.log_det[row], alone.log_det)


@pytest.mark.parametrize("change", ["overwritten", "replaced", "scale replaced", "base replaced"])
def test_a_kernel_that_is_changed_in_place_is_read_again(change: str) -> None:
    case = problem()
    process = told(case, rough())
    kernel, other = process.kernel, rough(2.0)
    process(case.arms)
    with torch.no_grad():
        if change == "overwritten":
            kernel.effect.copy_(other.effect)
        elif change == "replaced":
            kernel.effect = other.effect
        elif change == "scale replaced":
            kernel.raw_outputscale = torch.nn.Parameter(kernel.raw_outputscale + 1, requires_grad=False)
        else:
            kernel.base_kernel = copy.deepcopy(kernel.base_kernel)
            kernel.base_kernel.lengthscale = torch.tensor([0.2, 0.3], dtype=F64)
    process.invalidate_()
    right = told(case, copy.deepcopy(kernel))
    for one, same in zip(both(process(case.arms)), both(right(case.arms)), strict=True):
        torch.testing.assert_close(one, same)


def test_points_without_pulls_of_a_shorter_batch_row_count() -> None:
    """They take places that other batch rows have already, so that no totals change."""
    cases = [problem(seed) for seed in range(2)]
    process = GaussianProcess(rough(), LAM, dim=2, sparse=True, batch_shape=(2,))
    x, n, s = (torch.stack([getattr(case, name) for case in cases]) for name in ("told", "n", "s"))
    shorter = torch.ones(2, 12, dtype=torch.bool)
    shorter[1, 6:] = False
    process.add_(process.append_(x, shorter), n, s, s.square())
    dictionary = torch.stack([case.dictionary for case in cases]) & shorter
    process.set_dictionary_(dictionary)
    arms = torch.stack([case.arms for case in cases])
    process(arms)
    process.append_(arms[:, 30:31], torch.tensor([[False], [True]]))
    dictionary[1, 6] = True
    process.set_dictionary_(dictionary)
    case = cases[1]
    points = torch.cat([case.told[:6], case.arms[30:31]])
    n, s = (torch.nn.functional.pad(part[:6], (0, 1)) for part in (case.n, case.s))
    right = expected(Problem(case.arms, points, n, s, dictionary[1, :7]))
    np.testing.assert_allclose(process(arms).mean[1], right.mean, rtol=1e-8)
    np.testing.assert_allclose(process(arms).variance[1], right.covariance.diagonal(), rtol=1e-8)


# ------------------------------------------------------------------------- the table of arms


def tabulated(case: Problem, arms: Tensor, memory_budget: int | None = None, pulled: int = 12) -> ArmTable:
    """A table of arms whose first points were pulled."""
    process = GaussianProcess(rough(), LAM, dim=2, sparse=True)
    rows = ArmRows(arms, torch.Size())
    index = torch.arange(pulled)
    pulls = tb.types.Pulls(case.n, case.s, case.s.square(), index=index, mask=case.n > 0)
    rows.tell_(process, rows.summed(pulls))
    process.set_dictionary_(case.dictionary[: process.statistics.size])
    return ArmTable(rows, process, memory_budget).sweep_()


@pytest.mark.sweep(2)
@pytest.mark.parametrize("memory_budget", [None, 0])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_the_table_is_the_posterior(dtype: torch.dtype, memory_budget: int | None) -> None:
    case = problem()
    # Duplicates of a pulled arm and of one without pulls.
    arms = torch.cat([case.arms, case.arms[[2, 20]]]).to(dtype)
    table = tabulated(case, arms, memory_budget)
    process, tolerance = table.posterior, 1e-8 if dtype == torch.float64 else 2e-5
    x = arms.double()
    right = process(x)
    np.testing.assert_allclose(table.mean(), right.mean, rtol=tolerance, atol=tolerance)
    np.testing.assert_allclose(LAM * table.leverage, right.variance, rtol=10 * tolerance, atol=tolerance)
    np.testing.assert_allclose(table.prior_diagonal, SIGNAL + EFFECT, rtol=tolerance)
    assert float(table.kappa2) == pytest.approx(SIGNAL + EFFECT, rel=1e-6)
    index = torch.tensor([2, 30, 0, 40])
    c, exact = table.columns_between(index)
    np.testing.assert_allclose(LAM * exact, process.covariance(x[index], x), atol=10 * tolerance)
    some, others = table.features(index), table.features(torch.arange(42))
    between = table.covariance(some, others, frozen=False)
    np.testing.assert_allclose(LAM * between, process.covariance(x[index], x), atol=10 * tolerance)
    np.testing.assert_allclose(c, table.covariance(some, others, frozen=True), atol=10 * tolerance)
    # Mean and leverage after the kernel is replaced, and after a snapshot is restored.
    restore, parts = table.snapshot(), (process.snapshot(), dict(table._buffers))
    process.set_kernel_(rough(0.1), LAM)
    table.renew_().sweep_()
    np.testing.assert_allclose(table.mean(), process(x).mean, rtol=tolerance, atol=tolerance)
    parts[0]()
    table._buffers.update(parts[1])
    restore()
    np.testing.assert_allclose(table.sweep_().mean(), right.mean, rtol=tolerance, atol=tolerance)


def test_draws_have_the_mean_and_covariance_of_the_posterior() -> None:
    case = problem()
    table = tabulated(case, case.arms)
    draws = PosteriorDraws(table, 64)
    assert draws.kind == "joint"
    drawn = torch.cat(list(draws.draw([40_000], torch.ones((), dtype=F64), [generator(1)])), dim=-2)
    right = expected(case._replace(arms=case.arms))
    n = case.n > 0
    assert n.sum() == 11
    np.testing.assert_allclose(drawn.mean(dim=0), right.mean, atol=0.03)
    np.testing.assert_allclose(np.cov(drawn.numpy().T), right.covariance, atol=0.05)
    with pytest.raises(errors.UnsupportedError, match="not for RandomEffectKernel"):
        SamplePaths.draw(table.posterior, 2, [generator(0)])


def test_a_table_that_grows_is_the_posterior() -> None:
    """That of a policy that looks at few of the arms, some of which are equal."""
    x = problem(arms=60).arms
    x = torch.cat([x, x[:20]])
    bandit = tb.Bandit(tb.ada_bkb(rough(), noise_std=LAM**0.5, norm_bound=2.0), x, generator=generator(1))
    for _ in range(40):
        selection = bandit.ask()
        bandit.tell(selection, selection.points.sum(dim=-1))
    state = bandit.loop.state
    table, process = state.tabulation, state.posterior
    points = x[table.arm]
    right, covariance = process.marginals(points, None), process.covariance(points)
    assert process.effects is not None
    assert (table.arm >= 0).all()
    torch.testing.assert_close(table.mean(), right.mean)
    torch.testing.assert_close(process.regularization * table.leverage, right.variance)
    places = torch.tensor([0, 2, 1])
    torch.testing.assert_close(process.regularization * table.columns_between(places)[1], covariance[places])


# ------------------------------------------------------------------------- conditioning, as BoTorch's models need it


def test_the_conditional_posterior_is_the_same_and_further_observations_act_exactly() -> None:
    case = problem()
    process, right = told(case, rough()), expected(case)
    known = Conditional.of(process)
    mean, covariance = known.joint(case.arms)
    np.testing.assert_allclose(mean, right.mean, rtol=1e-8)
    np.testing.assert_allclose(covariance, right.covariance, atol=1e-8)
    np.testing.assert_allclose(known.marginals(case.arms)[1], right.covariance.diagonal(), rtol=1e-7)
    new, weights, y = torch.tensor([1, 25, 25]), torch.tensor([1.0, 2.0, 1.0], dtype=F64), torch.tensor([2.0, -1.0, 0.5])
    C = right.covariance[:, new]
    A = right.covariance[np.ix_(new, new)] + LAM * np.diag(1 / weights.numpy())
    after = known.conditioned(case.arms[new], y.double(), weights)
    mean, covariance = after.joint(case.arms)
    np.testing.assert_allclose(mean, right.mean + C @ np.linalg.solve(A, y.numpy() - right.mean[new]), rtol=1e-7, atol=1e-8)
    np.testing.assert_allclose(covariance, right.covariance - C @ np.linalg.solve(A, C.T), atol=1e-8)
    hallucinated = known.hallucinated(case.arms[new], weights)
    mean, covariance = hallucinated.joint(case.arms)
    np.testing.assert_allclose(mean, right.mean, rtol=1e-8)
    np.testing.assert_allclose(covariance, right.covariance - C @ np.linalg.solve(A, C.T), atol=1e-8)
    # Leading dimensions, and gradients with respect to points.
    many = case.arms.reshape(4, 2, 5, 2).clone().requires_grad_(True)
    means, variances = after.marginals(many)
    assert means.shape == (4, 2, 5)
    np.testing.assert_allclose(means.detach().flatten(), after.joint(case.arms)[0], rtol=1e-9)
    (means.sum() + variances.sum()).backward()
    assert bool(torch.isfinite(many.grad).all())


@pytest.mark.parametrize("shape", [(), (1,), (3,), (4, 1), (4, 3), (2, 4, 1)])
def test_points_are_broadcast_with_the_batch_rows(shape: tuple[int, ...]) -> None:
    """As without effects."""
    cases = [problem(seed) for seed in range(3)]
    process = GaussianProcess(rough(), LAM, dim=2, sparse=True, batch_shape=(3,))
    x, n, s, dictionary = (torch.stack([getattr(case, name) for case in cases]) for name in ("told", "n", "s", "dictionary"))
    process.add_(process.append_(x, torch.ones(3, 12, dtype=torch.bool)), n, s, s.square()).set_dictionary_(dictionary)
    known = Conditional.of(process)
    known = known.hallucinated(x[:, 3:5], torch.ones(3, 2, dtype=F64))
    points = torch.rand(*shape, 5, 2, generator=generator(1), dtype=F64)
    points[..., 0, :], points[..., 1, :] = cases[1].told[2], cases[2].told[4]
    whole = torch.broadcast_shapes(shape, (3,))
    right = known.joint(points.expand(*whole, 5, 2))
    found = known.joint(points)
    assert found[0].shape == (*whole, 5)
    torch.testing.assert_close(found, right)
    torch.testing.assert_close(known.marginals(points), (right[0], right[1].diagonal(dim1=-2, dim2=-1)))


def test_a_copy_and_a_saved_state_have_the_same_posterior() -> None:
    case = problem()
    process = told(case, rough())
    before = process(case.arms)
    twin = copy.deepcopy(process)
    other = GaussianProcess(rough(9.0), LAM, dim=2, sparse=True)
    other(case.arms)
    other.load_state_dict(process.state_dict())
    for one in (twin, other, process.to("cpu")):
        assert torch.equal(one(case.arms).mean, before.mean)
        assert torch.equal(one(case.arms).variance, before.variance)
