"""`BanditModel` against dense oracles: exact and with a dictionary, conditioned and hallucinated, batched, tabulated."""

from __future__ import annotations

import copy
import math
import pickle

import gpytorch
import numpy as np
import oracles
import pytest
import torch
from botorch import fit_gpytorch_mll
from botorch.exceptions import BotorchTensorDimensionError, InputDataError, UnsupportedError
from botorch.models.transforms import Normalize, Standardize, Warp
from problems import kernel_pair
from torch import Tensor

from torchbandits.botorch import BanditModel
from torchbandits.errors import ArgumentError, NumericalError, ShapeError

D = 2
KERNELS = ["rbf", "matern12", "matern32", "matern52", "linear", "scaled"]


def make(seed: int, n: int = 24, repeats: int = 4, near: int = 2) -> tuple[Tensor, Tensor]:
    """Points with repeats and near-duplicates, and rewards."""
    g = torch.Generator().manual_seed(seed)
    X = torch.rand(n, D, generator=g, dtype=torch.float64)
    X[n - repeats :] = X[:repeats]
    X[n // 2 : n // 2 + near] = X[:near] + 1e-7
    return X, torch.sin(4 * X.sum(dim=-1, keepdim=True)) + 0.1 * torch.randn(n, 1, generator=g, dtype=torch.float64)


def dense(kernel, X: Tensor, Y: Tensor, T: Tensor, lam: float, dictionary: Tensor | None = None, weights: Tensor | None = None):
    """Mean, variance and covariance of the oracle. Every observation is one row, with noise variance λ/weight."""
    x, y, t = X.numpy(), Y.squeeze(-1).numpy(), T.numpy()
    n = np.ones(len(x)) if weights is None else weights.numpy()
    K_tt, diagonal = kernel(t, t), oracles.diagonal(kernel, t)
    if dictionary is None:
        p = oracles.exact_posterior_from_sums(kernel(x, x), kernel(x, t), diagonal, n, n * y, lam, K_tt)
        return p.mean, p.variance, p.covariance
    s = dictionary.numpy()
    p = oracles.nystrom_posterior(kernel(s, s), kernel(s, x), kernel(s, t), diagonal, n, n * y, lam, K_aa=K_tt)
    rows = np.arange(len(t))
    return p.mean, p.variance, lam * p.covariance(rows, rows)


def assert_posterior(model: BanditModel, expected, T: Tensor, atol: float = 1e-8) -> None:
    mean, variance, covariance = expected
    with torch.no_grad():
        posterior, marginals = model.posterior(T), model.marginals(T)
        single = model.posterior(T.unsqueeze(-2))
    np.testing.assert_allclose(posterior.mean.squeeze(-1).numpy(), mean, atol=atol)
    np.testing.assert_allclose(posterior.distribution.covariance_matrix.numpy(), covariance, atol=atol)
    np.testing.assert_allclose(marginals.mean.numpy(), mean, atol=atol)
    np.testing.assert_allclose(marginals.variance.numpy(), variance, atol=atol)
    np.testing.assert_allclose(single.mean.flatten().numpy(), mean, atol=atol)
    np.testing.assert_allclose(model.joint(T[:3], T).numpy(), covariance[:3], atol=atol)


@pytest.mark.sweep(3)
@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("noise_std", [0.1, 1e-3])
def test_construction_and_conditioning_equal_the_oracle(name, sparse, noise_std):
    kernel, k = kernel_pair(name)
    X, Y = make(1)
    T = torch.rand(9, D, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    T[0], T[1] = X[0], X[0] + 1e-7
    S = X[2:12] if sparse else None
    model = BanditModel(X[:8], Y[:8], kernel=kernel, noise_std=noise_std, dictionary="all" if S is None else S)
    lam, atol = noise_std**2, 1e-8 if noise_std == 0.1 else 1e-6
    assert_posterior(model, dense(k, X[:8], Y[:8], T, lam, S), T, atol)
    for a, b in ((8, 9), (9, 13), (13, 24)):  # a single point, several points, repeats of earlier points
        parent, model = model, model.condition_on_observations(X[a:b], Y[a:b])
        assert_posterior(model, dense(k, X[:b], Y[:b], T, lam, S), T, atol)
        assert_posterior(parent, dense(k, X[:a], Y[:a], T, lam, S), T, atol)  # the parent is unchanged
    fresh = copy.deepcopy(model)
    fresh._posterior = None  # factorises the same data at once
    assert_posterior(fresh, dense(k, X, Y, T, lam, S), T, atol)


@pytest.mark.parametrize("sparse", [False, True])
def test_hallucinations_keep_the_mean_and_shrink_the_variance_as_observations_would(sparse):
    kernel, k = kernel_pair("matern52")
    X, Y = make(3)
    T = torch.rand(6, D, dtype=torch.float64)
    S = X[:10] if sparse else None
    model = BanditModel(X, Y, kernel=kernel, noise_std=0.1, dictionary="all" if S is None else S)
    new = torch.cat([X[:2], torch.rand(3, D, dtype=torch.float64)])
    counts = torch.tensor([1.0, 3.0, 0.0, 2.0, 1.0], dtype=torch.float64)
    pending = model.hallucinate(new, counts, frozen_dictionary=True)
    rows = torch.cat([X, *(x.expand(int(c), D) for x, c in zip(new, counts, strict=True))])
    _, variance, covariance = dense(k, rows, torch.zeros(len(rows), 1, dtype=torch.float64), T, 0.01, S)
    mean = model.marginals(T).mean
    assert torch.equal(pending.marginals(T).mean, mean)
    assert_posterior(pending, (mean.numpy(), variance, covariance), T)
    told = pending.condition_on_observations(X[:1], Y[:1])
    refitted = copy.deepcopy(pending)
    refitted._posterior = None
    assert_posterior(refitted, (mean.numpy(), variance, covariance), T)
    assert bool((told.marginals(T).variance <= pending.marginals(T).variance + 1e-12).all())


@pytest.mark.sweep(1)
@pytest.mark.parametrize("dictionary", ["all", "leverage", "bless"])
def test_batch_rows_are_models_of_their_own(dictionary):
    kernel, _ = kernel_pair("rbf")
    data = [make(seed) for seed in range(3)]
    X, Y = torch.stack([x for x, _ in data]), torch.stack([y for _, y in data])
    gens = [torch.Generator().manual_seed(seed) for seed in range(3)]
    T = torch.rand(7, D, dtype=torch.float64)
    extra = torch.rand(2, D, dtype=torch.float64), torch.randn(3, 2, 1, dtype=torch.float64)
    options = {"kernel": kernel, "noise_std": 0.1, "dictionary": dictionary}
    together = BanditModel(X, Y, generator=gens, **options)
    wide = extra[0].expand(3, 2, D)
    assert together.batch_shape == (3,)
    for model in (together, together.condition_on_observations(wide, extra[1]), together.hallucinate(extra[0])):
        mean, variance = model.marginals(T).mean, model.marginals(T).variance
        assert mean.shape == variance.shape == (3, 7)
        assert model.posterior(T.expand(5, 1, 7, D)).mean.shape == (5, 3, 7, 1)
    for row in range(3):
        alone = BanditModel(X[row], Y[row], generator=gens[row], **options)
        told = together.condition_on_observations(wide, extra[1])
        pairs = [
            (alone, together),
            (alone.condition_on_observations(extra[0], extra[1][row]), told),
            (alone.hallucinate(extra[0]), together.hallucinate(extra[0])),
        ]
        for one, many in pairs:
            torch.testing.assert_close(one.marginals(T).mean, many.marginals(T).mean[row], atol=1e-9, rtol=0)
            torch.testing.assert_close(one.marginals(T).variance, many.marginals(T).variance[row], atol=1e-9, rtol=0)


def test_known_noise_counts_as_weights():
    kernel, k = kernel_pair("rbf")
    X, Y = make(5)
    variance = 0.01 + torch.rand(24, 1, dtype=torch.float64)
    T = torch.rand(5, D, dtype=torch.float64)
    model = BanditModel(X[:20], Y[:20], variance[:20], kernel=kernel)
    lam = 0.3  # any value, because weights are λ / variance
    assert_posterior(model, dense(k, X[:20], Y[:20], T, lam, weights=lam / variance[:20, 0]), T)
    told = model.condition_on_observations(X[20:], Y[20:], noise=variance[20:])
    assert_posterior(told, dense(k, X, Y, T, lam, weights=lam / variance[:, 0]), T)


def test_an_estimated_prior_mean_is_the_average_of_all_rewards():
    kernel, k = kernel_pair("rbf")
    X, Y = make(6)
    Y = Y + 10
    T = torch.rand(5, D, dtype=torch.float64)
    model = BanditModel(X[:10], Y[:10], kernel=kernel, noise_std=0.1, prior_mean="estimate")
    for a, b in ((10, 10), (10, 20), (20, 24)):
        model = model if a == b else model.condition_on_observations(X[a:b], Y[a:b])
        mean, variance, covariance = dense(k, X[:b], Y[:b] - Y[:b].mean(), T, 0.01)
        assert_posterior(model, (mean + float(Y[:b].mean()), variance, covariance), T)
    shifted = BanditModel(X, Y, kernel=kernel, noise_std=0.1, prior_mean=9.5)
    mean, variance, covariance = dense(k, X, Y - 9.5, T, 0.01)
    assert_posterior(shifted, (mean + 9.5, variance, covariance), T)


@pytest.mark.sweep(1)
@pytest.mark.parametrize("dictionary", ["all", "leverage"])
@pytest.mark.parametrize("memory_budget", [2 << 30, 0])
def test_tabulated_arms_are_brought_along(dictionary, memory_budget):
    kernel, _ = kernel_pair("rbf")
    X, Y = make(7)
    arms = torch.rand(300, D, dtype=torch.float64)
    model = BanditModel(X, Y, kernel=kernel, noise_std=0.1, dictionary=dictionary).tabulate_(arms, memory_budget)
    g = torch.Generator().manual_seed(8)
    for step in range(90):  # enough steps for the model to be factorised again
        apart = arms.mT.contiguous().mT  # equal to the tabulated arms with another memory layout, and therefore computed
        views = ((arms, apart), (arms.unsqueeze(-2), apart.unsqueeze(-2)), (arms[20:50], apart[20:50]))
        for view, same in views if step % 9 == 0 else ():
            torch.testing.assert_close(model.marginals(view).mean, model.marginals(same).mean, atol=1e-9, rtol=0)
            torch.testing.assert_close(model.marginals(view).variance, model.marginals(same).variance, atol=1e-9, rtol=0)
            assert model.posterior(view).variance.shape == (*view.shape[:-1], 1)
        x = arms[torch.randint(300, (1,), generator=g)] if step % 3 else torch.rand(1, D, generator=g, dtype=torch.float64)
        model = model.condition_on_observations(x, torch.randn(1, 1, generator=g, dtype=torch.float64))
        assert torch.equal(model.arms, arms)
    other = torch.rand(300, D, dtype=torch.float64)
    before = model.marginals(arms).mean.clone()
    arms.copy_(other)  # after this write they are no longer the tabulated arms
    torch.testing.assert_close(model.marginals(arms).mean, model.marginals(other).mean, atol=0, rtol=0)
    assert not torch.allclose(before, model.marginals(arms).mean)


@pytest.mark.parametrize("n", [0, 5])
def test_the_table_of_a_pending_arm_is_not_taken_for_that_of_an_observed_one(n):
    """Without points, or far from them, both have the same columns in the base, whatever their number of pulls."""
    X, Y = make(7)
    arms = torch.rand(30, D, dtype=torch.float64)
    model = BanditModel(X[:n] - 99, Y[:n], kernel=kernel_pair("rbf")[0], noise_std=0.1).tabulate_(arms)
    pending = model.hallucinate(arms[:1], torch.full((1,), 3.0, dtype=torch.float64))
    pending.posterior(arms)
    told = pending.condition_on_observations(arms[:1], torch.ones(1, 1, dtype=torch.float64))
    torch.testing.assert_close(told.posterior(arms).variance, told.posterior(arms.flip(0)).variance.flip(0), atol=1e-9, rtol=0)


def test_tabulated_arms_that_need_a_gradient_have_one():
    kernel, _ = kernel_pair("rbf")
    X, Y = make(9)
    arms = torch.rand(20, D, dtype=torch.float64)
    model = BanditModel(X, Y, kernel=kernel, noise_std=0.1).tabulate_(arms)
    model.marginals(arms)
    view = arms.detach().requires_grad_(True)
    assert torch.autograd.grad(model.marginals(view).mean.sum(), view)[0].abs().sum() > 0


def test_hyperparameters_that_change_are_noticed():
    kernel, k = kernel_pair("rbf")
    X, Y = make(10)
    T = torch.rand(4, D, dtype=torch.float64)
    model = BanditModel(X, Y, kernel=kernel, noise_std=0.1)
    model.posterior(T)
    model.covar_module.lengthscale = torch.tensor(0.9, dtype=torch.float64)
    assert_posterior(model, dense(oracles.rbf(0.9), X, Y, T, 0.01), T)
    model.likelihood.noise = torch.tensor(0.25, dtype=torch.float64)
    assert_posterior(model, dense(oracles.rbf(0.9), X, Y, T, 0.25), T)
    other = BanditModel(X[:5], Y[:5], kernel=kernel, noise_std=0.3)
    other.posterior(T)
    other.load_state_dict(model.state_dict())
    assert_posterior(other, dense(oracles.rbf(0.9), X[:5], Y[:5], T, 0.25), T)
    child = other.condition_on_observations(X[5:], Y[5:])
    child.covar_module.lengthscale = torch.tensor(0.4, dtype=torch.float64)
    assert_posterior(child, dense(k, X, Y, T, 0.25), T)
    assert_posterior(other, dense(oracles.rbf(0.9), X[:5], Y[:5], T, 0.25), T)


def test_parts_that_are_replaced_are_noticed():
    X, Y = make(10)
    T = torch.rand(4, D, dtype=torch.float64)
    model = BanditModel(X, Y, kernel=kernel_pair("matern52")[0], noise_std=0.1)
    for name in ("matern12", "scaled"):  # the same parameters, and others
        model.posterior(T)
        model.covar_module, k = kernel_pair(name)
        assert_posterior(model, dense(k, X, Y, T, 0.01), T)
    model.posterior(T)
    model.input_transform = Normalize(D, bounds=torch.tensor([[0.0, 0.0], [2.0, 4.0]], dtype=torch.float64))
    by = torch.tensor([2.0, 4.0], dtype=torch.float64)
    assert_posterior(model, dense(k, X / by, Y, T / by, 0.01), T)


def test_transforms_that_change_are_noticed():
    X, Y = make(10)
    T = torch.rand(4, D, dtype=torch.float64)
    kernel, k = kernel_pair("matern52")
    model = BanditModel(X, Y, kernel=kernel, noise_std=0.1, input_transform=Warp(D, [0]), outcome_transform=Standardize(m=1))
    model.posterior(T)
    with torch.no_grad():  # as a step of an optimiser
        model.input_transform.concentration1.fill_(2.0)
    x, t, mean, std = model.transform_inputs(X), model.transform_inputs(T), Y.mean(), Y.std()
    expected = dense(k, x, (Y - mean) / std, t, 0.01)
    posterior = model.posterior(T)
    np.testing.assert_allclose(posterior.mean.detach().squeeze(-1).numpy(), expected[0] * float(std) + float(mean), atol=1e-8)
    np.testing.assert_allclose(posterior.variance.detach().squeeze(-1).numpy(), expected[1] * float(std) ** 2, atol=1e-8)
    del model.outcome_transform
    np.testing.assert_allclose(model.posterior(T).mean.squeeze(-1).numpy(), dense(k, x, Y, t, 0.01)[0], atol=1e-8)


PARAMETERS = ["covar_module.raw_lengthscale", "mean_module.raw_constant", "likelihood.noise_covar.raw_noise"]


@pytest.mark.parametrize("name", PARAMETERS)
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_parameters_that_are_not_finite_are_named(name, value):
    X, Y = make(10)
    model = BanditModel(X, Y, kernel=kernel_pair("rbf")[0], noise_std=0.1)
    state = copy.deepcopy(model.state_dict())
    state[name].fill_(value)
    model.load_state_dict(state)
    with pytest.raises(NumericalError, match=rf"{name} of the model is NaN or infinite: load"):
        model.posterior(X)


def test_fitting_raises_the_evidence_and_keeps_a_kernel_that_is_known():
    g = torch.Generator().manual_seed(11)
    X = torch.rand(60, D, generator=g, dtype=torch.float64)
    Y = torch.sin(6 * X[:, :1]) + 0.2 * torch.randn(60, 1, generator=g, dtype=torch.float64)
    kernel = gpytorch.kernels.RBFKernel().double()
    kernel.lengthscale = 5.0
    model = BanditModel(X, Y, kernel=kernel)
    mll = gpytorch.mlls.ExactMarginalLogLikelihood(model.likelihood, model)

    def evidence() -> float:
        model.train()
        value = float(mll(model(*model.train_inputs), model.train_targets).detach())
        model.eval()
        return value

    before = evidence()
    assert fit_gpytorch_mll(mll) is mll
    assert not mll.training
    assert evidence() > before + 0.1
    assert 0.1 < model.noise_std < 0.4
    assert kernel.lengthscale.item() == 5.0
    assert model.covar_module.raw_lengthscale.requires_grad
    known = BanditModel(X, Y, kernel=kernel.requires_grad_(False), noise_std=0.2)
    fit_gpytorch_mll(gpytorch.mlls.ExactMarginalLogLikelihood(known.likelihood, known))
    assert known.covar_module.lengthscale.item() == 5.0
    assert known.noise_std == pytest.approx(0.2)


def test_copies_and_pickles_go_on_alike():
    kernel, _ = kernel_pair("matern32")
    X, Y = make(12)
    T = torch.rand(4, 2, D, dtype=torch.float64, requires_grad=True)
    model = BanditModel(X, Y, kernel=kernel, noise_std=0.1, dictionary="leverage").condition_on_observations(X[:1], Y[:1])
    model.posterior(T).mean.sum().backward()
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        for one, other in ((model, twin), (model.hallucinate(X[:2]), twin.hallucinate(X[:2]))):
            a, b = one.posterior(T), other.posterior(T)
            torch.testing.assert_close(a.mean, b.mean, atol=1e-9, rtol=0)
            torch.testing.assert_close(a.variance, b.variance, atol=1e-9, rtol=0)


def test_gradients_through_new_observations():
    kernel, _ = kernel_pair("rbf")
    X, Y = make(13)
    T = torch.rand(3, D, dtype=torch.float64)
    for dictionary in ("all", X[:8]):
        model = BanditModel(X, Y, kernel=kernel, noise_std=0.1, dictionary=dictionary)

        def value(x: Tensor, y: Tensor, model: BanditModel = model) -> Tensor:
            told = model.condition_on_observations(x, y).marginals(T)
            return told.mean.sum() + told.variance.sum()

        new = (
            torch.rand(2, D, dtype=torch.float64, requires_grad=True),
            torch.randn(2, 1, dtype=torch.float64, requires_grad=True),
        )
        assert torch.autograd.gradcheck(value, new)


def test_what_cannot_be_is_refused():
    kernel, _ = kernel_pair("rbf")
    X, Y = make(14)
    with pytest.raises(UnsupportedError, match="ModelListGP"):
        BanditModel(X, Y.expand(-1, 2), kernel=kernel)
    with pytest.raises(BotorchTensorDimensionError):
        BanditModel(X, Y.squeeze(-1), kernel=kernel)
    with pytest.raises(BotorchTensorDimensionError):
        BanditModel(X, Y[:-1], kernel=kernel)
    with pytest.raises(InputDataError, match="train_Y"):
        BanditModel(X, torch.where(Y > 0, Y, torch.nan), kernel=kernel)
    with pytest.raises(InputDataError, match="train_Yvar"):
        BanditModel(X, Y, torch.zeros_like(Y), kernel=kernel)
    with pytest.raises(InputDataError):
        BanditModel(X, Y.float(), kernel=kernel)
    for options in ({"noise_std": 0.0}, {"noise_std": float("nan")}, {"regularization": -1.0}, {"dictionary": "some"}):
        with pytest.raises(ArgumentError):
            BanditModel(X, Y, kernel=kernel, **options)
    model = BanditModel(X, Y, kernel=kernel, noise_std=0.1)
    with pytest.raises(BotorchTensorDimensionError, match="2 features"):
        model.posterior(torch.rand(3, 5))
    for p in (1, 2):
        with pytest.raises(BotorchTensorDimensionError, match="one per point"):
            model.condition_on_observations(X[:p], Y[:3])
    with pytest.raises(BotorchTensorDimensionError, match="2 features"):
        model.condition_on_observations(X[0], Y[0])
    with pytest.raises(UnsupportedError):
        model.subset_output([1])
    with pytest.raises(UnsupportedError, match="batch"):
        BanditModel(X.expand(2, -1, -1), Y.expand(2, -1, -1), kernel=kernel).tabulate_(X)
    hopeless = BanditModel(X, Y, kernel=kernel_pair("linear")[0], noise_std=1e-12)
    with pytest.raises(NumericalError, match="noise_std"):
        hopeless.posterior(X)


def test_a_kernel_for_other_features_is_refused():
    X, Y = make(seed=7)
    with pytest.raises(ShapeError, match="made for 3 features"):
        BanditModel(X, Y, kernel=gpytorch.kernels.RBFKernel(ard_num_dims=3))
    with pytest.raises(ShapeError, match="2 features"):
        BanditModel(X, Y, kernel=gpytorch.kernels.RBFKernel(active_dims=[5]))
    with pytest.raises(ShapeError, match=r"batch shape \(2,\)"):
        BanditModel(X.expand(3, -1, -1), Y.expand(3, -1, -1), kernel=gpytorch.kernels.RBFKernel(batch_shape=torch.Size([2])))


@pytest.mark.parametrize(
    "mean", [gpytorch.means.ZeroMean(), gpytorch.means.LinearMean(D), gpytorch.means.ConstantMean(batch_shape=torch.Size([2]))]
)
def test_a_mean_that_is_no_constant_is_refused(mean):
    model = BanditModel(*make(seed=7))
    model.mean_module = mean.double()
    with pytest.raises(UnsupportedError, match=rf"{type(mean).__name__}.*: give prior_mean="):
        model.posterior(model.train_inputs[0])


def test_a_kernel_that_is_none_is_named(annotations_not_enforced):
    X, Y = make(14)
    for kernel in ("rbf", gpytorch.likelihoods.GaussianLikelihood()):
        with pytest.raises(ArgumentError, match=r"gpytorch\.kernels\.Kernel"):
            BanditModel(X, Y, kernel=kernel)


def test_single_precision_points_never_touch_the_model():
    kernel, _ = kernel_pair("rbf")
    X, Y = make(15)
    model = BanditModel(X, Y, kernel=kernel, noise_std=0.1)
    before = model.posterior(X).mean
    single = model.posterior(X.float())
    assert single.mean.dtype == torch.float64  # the wider of the two dtypes
    model.to(torch.float32)
    assert torch.equal(model.posterior(X).mean, before)
