"""States of a `BanditModel`: training mode, hallucinated and then told, nothing observed, loaded; bad input."""

from __future__ import annotations

import copy
import pickle

import gpytorch
import numpy as np
import pytest
import torch
from botorch import fit_gpytorch_mll
from botorch.exceptions import BotorchTensorDimensionError, InputDataError, UnsupportedError
from botorch.models import SingleTaskGP
from botorch.models.transforms import Normalize, Standardize
from botorch.models.transforms.input import InputPerturbation, Warp
from problems import kernel_pair
from torch import Tensor

from torchbandits import gp_bucb
from torchbandits.botorch import BanditModel, PolicyAcquisition
from torchbandits.errors import ArgumentError, DiagnosticWarning, NumericalError, ShapeError
from torchbandits.widths import Constant

D = 2


def make(seed: int, n: int = 12) -> tuple[Tensor, Tensor]:
    """Points away from the unit box and rewards away from zero."""
    g = torch.Generator().manual_seed(seed)
    X = 1 + 3 * torch.rand(n, D, generator=g, dtype=torch.float64)
    return X, 2 + 5 * torch.sin(X.sum(dim=-1, keepdim=True)) + 0.1 * torch.randn(n, 1, generator=g, dtype=torch.float64)


def test_training_mode_leaves_the_transforms_as_they_are():
    """Blocks of later observations must not update the statistics of transforms."""
    X, Y = make(1)
    T, _ = make(2, 5)
    transforms = {"input_transform": Normalize(D), "outcome_transform": Standardize(1)}
    model = BanditModel(X, Y, kernel=kernel_pair("rbf")[0], noise_std=0.1, **transforms)
    child = model.condition_on_observations(X[:3] + 0.1, Y[:3] - 1)
    before = [m.posterior(T).mean for m in (model, child)]
    targets = child.train_targets
    for one in (model, child):
        one.train()
        assert one.training
    assert torch.equal(child.train_targets, targets)
    assert torch.equal(model.condition_on_observations(X[:3] + 0.1, Y[:3] - 1).posterior(T).mean, before[1])
    child.progress(frozenset({"effective_dimension"}))
    for one, mean in zip((model, child), before, strict=True):
        assert torch.equal(one.posterior(T).mean, mean)


@pytest.mark.sweep(2)
@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("prior_mean", [0.0, "estimate"])
def test_observations_told_after_hallucinations_move_the_mean_as_if_there_were_none(sparse, prior_mean):
    X, Y = make(3)
    T, _ = make(4, 6)
    options = {"kernel": kernel_pair("rbf")[0], "noise_std": 0.3, "prior_mean": prior_mean}
    model = BanditModel(X[:8], Y[:8], dictionary=X[:5] if sparse else "all", **options)
    first, second = T[:2] + 0.1, T[2:3] - 0.1
    told = model.condition_on_observations(X[8:], Y[8:])
    mixed = model.hallucinate(first).hallucinate(second).condition_on_observations(X[8:], Y[8:])
    expected = told.hallucinate(torch.cat([first, second]))
    for one in (mixed, copy.deepcopy(mixed), pickle.loads(pickle.dumps(mixed))):
        torch.testing.assert_close(one.posterior(T).mean, told.posterior(T).mean, atol=1e-9, rtol=0)
        torch.testing.assert_close(one.posterior(T).variance, expected.posterior(T).variance, atol=1e-9, rtol=0)
        np.testing.assert_allclose(one.progress().log_det.numpy(), told.progress().log_det.numpy(), atol=1e-9)
    again = mixed.condition_on_observations(T[:1], Y[:1])
    twice = told.condition_on_observations(T[:1], Y[:1])
    torch.testing.assert_close(again.posterior(T).mean, twice.posterior(T).mean, atol=1e-9, rtol=0)


@pytest.mark.sweep(6)
@pytest.mark.parametrize("dictionary", ["all", "leverage", "bless"])
@pytest.mark.parametrize("shape", [(), (3,)])
@pytest.mark.parametrize("prior_mean", [1.5, "estimate"])
def test_a_model_of_nothing_is_the_prior_and_learns(dictionary, shape, prior_mean):
    X, Y = (t.expand(*shape, *t.shape) for t in make(5))
    T, _ = make(6, 4)
    options = {"kernel": kernel_pair("rbf")[0], "noise_std": 0.1, "prior_mean": prior_mean, "dictionary": dictionary}
    model = BanditModel(X[..., :0, :], Y[..., :0, :], **options)
    prior = model.posterior(T)
    assert prior.mean.shape == prior.variance.shape == (*shape, 4, 1)
    assert bool((prior.mean == (0.0 if prior_mean == "estimate" else 1.5)).all())
    torch.testing.assert_close(prior.variance, torch.ones_like(prior.variance))
    told = model.condition_on_observations(X, Y)
    at_once = BanditModel(X, Y, **{**options, "dictionary": "all"})
    # Every one of twelve points that lie apart is drawn.
    torch.testing.assert_close(told.posterior(T).mean, at_once.posterior(T).mean, atol=1e-7, rtol=0)
    torch.testing.assert_close(told.posterior(T).variance, at_once.posterior(T).variance, atol=1e-7, rtol=0)


def test_known_noise_follows_the_outcome_transform_that_is_loaded():
    (X, Y), (X2, Y2) = make(7), make(8)
    T, _ = make(9, 4)
    kernel = kernel_pair("rbf")[0]
    variance = 0.1 + torch.rand(12, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(10))
    first = BanditModel(X, Y, variance, kernel=kernel, outcome_transform=Standardize(1))
    other = BanditModel(X2, 10 * Y2, variance, kernel=kernel, outcome_transform=Standardize(1))
    other.load_state_dict(first.state_dict())
    with pytest.warns(DiagnosticWarning, match="outcomes differ"):  # whose scale is ten times that of the state
        noise = other.posterior(T, observation_noise=True).variance - other.posterior(T).variance
    torch.testing.assert_close(noise, variance.mean().expand_as(noise), atol=1e-9, rtol=0)


@pytest.mark.parametrize("known", [False, True])
def test_the_state_of_a_single_task_gp_makes_the_same_posterior(known):
    """Its noise is kept as it is, that of a `BanditModel` under a softplus."""
    X, held = (torch.rand(n, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(n)) for n in (20, 9))
    data = X, torch.sin(5 * X[:, :1]) + X[:, 1:], *([torch.full((20, 1), 0.01, dtype=torch.float64)] if known else [])
    gp, model = SingleTaskGP(*data), BanditModel(*data)
    gp.mean_module.constant.data.fill_(0.7)
    if not known:
        gp.likelihood.noise = 0.02
    state = gp.state_dict()
    model.load_state_dict(state)
    assert state.keys() == gp.state_dict().keys()
    assert all(torch.equal(a, b) for a, b in zip(state.values(), gp.state_dict().values(), strict=True))
    again = BanditModel(*data)
    again.load_state_dict(model.state_dict())
    for mine in (model, again):
        for noisy in (False, True):
            posterior, expected = (m.posterior(held, observation_noise=noisy) for m in (mine, gp))
            torch.testing.assert_close(posterior.mean, expected.mean)
            torch.testing.assert_close(posterior.variance, expected.variance)


def test_the_noise_of_a_state_may_be_under_a_softplus_and_above_a_bound():
    """As GPyTorch's `GreaterThan` keeps it, which BoTorch's models use without the softplus."""
    model = BanditModel(*make(10))
    likelihood = gpytorch.likelihoods.GaussianLikelihood(noise_constraint=gpytorch.constraints.GreaterThan(1e-4)).double()
    likelihood.noise = 0.02
    given = {f"likelihood.{name}": value for name, value in likelihood.state_dict().items()}
    model.load_state_dict(model.state_dict() | given)
    torch.testing.assert_close(model.likelihood.noise, likelihood.noise)


def test_known_noise_below_a_millionth_is_as_given():
    """GPyTorch raises it to 1e-6, which is far too much for outcomes in small units."""
    (X, Y), (X2, Y2), (T, _) = make(11), make(12, 3), make(13, 4)
    kernel = gpytorch.kernels.ScaleKernel(kernel_pair("rbf")[0])
    kernel.outputscale = torch.tensor(1e-6, dtype=torch.float64)
    Y, Y2, variance = Y / 5000, Y2 / 5000, torch.full((12, 1), 1e-9, dtype=torch.float64)
    model = BanditModel(X, Y, variance, kernel=kernel)
    added = model.posterior(T, observation_noise=True).variance - model.posterior(T).variance
    torch.testing.assert_close(added, variance[:4], rtol=1e-6, atol=0)
    both = torch.cat([X, X2]), torch.cat([Y, Y2])
    at_once = BanditModel(*both, torch.cat([variance, variance[:3]]), kernel=kernel).posterior(T)
    for noise in (None, variance[:3]):
        told = model.condition_on_observations(X2, Y2, noise=noise)
        torch.testing.assert_close(told.posterior(T).mean, at_once.mean, rtol=1e-6, atol=1e-9)
        torch.testing.assert_close(told.posterior(T).variance, at_once.variance, rtol=1e-5, atol=1e-12)
        added = told.posterior(T, observation_noise=True).variance - told.posterior(T).variance
        torch.testing.assert_close(added, variance[:4], rtol=1e-6, atol=0)


def test_observations_that_cannot_be_are_refused():
    X, Y = make(11)
    model = BanditModel(X, Y, kernel=kernel_pair("rbf")[0], noise_std=0.1)
    one = torch.ones(1, 1, dtype=torch.float64)
    with pytest.raises(InputDataError, match="X has"):
        model.condition_on_observations(X[:1] * torch.nan, Y[:1])
    with pytest.raises(InputDataError, match="Y has"):
        model.condition_on_observations(X[:1], Y[:1] * torch.inf)
    for noise in (0 * one, -one, torch.nan * one):
        with pytest.raises(InputDataError, match="noise"):
            model.condition_on_observations(X[:1], Y[:1], noise=noise)
    with pytest.raises(InputDataError, match="X has"):
        model.hallucinate(X[:1] * torch.nan)
    with pytest.raises(InputDataError, match="counts"):
        model.hallucinate(X[:1], -one[0])


def test_dictionaries_and_prior_means_that_cannot_be_are_refused():
    X, Y = make(12)
    options = {"kernel": kernel_pair("rbf")[0], "noise_std": 0.1}
    for dictionary in (X[0], X[:, :1], X[:0]):
        with pytest.raises(BotorchTensorDimensionError, match="dictionary"):
            BanditModel(X, Y, dictionary=dictionary, **options)
    with pytest.raises(InputDataError, match="dictionary"):
        BanditModel(X, Y, dictionary=X * torch.nan, **options)
    for prior_mean in (float("nan"), float("inf"), "guess"):
        with pytest.raises(ArgumentError, match="prior_mean"):
            BanditModel(X, Y, prior_mean=prior_mean, **options)


@pytest.mark.sweep(5)
@pytest.mark.parametrize("noise_std", [1e-3, 1e-5, 1e-6, 1e-7, 1e-8])
@pytest.mark.parametrize("lengthscale", [0.5, 1.0])
@pytest.mark.parametrize("seed", range(4))
def test_tiny_noise_is_conditioned_on_correctly_or_refused(noise_std, lengthscale, seed):
    """Appended columns lose their digits; appending to them anyway once gave means of 1e26."""
    g = torch.Generator().manual_seed(seed)
    kernel = gpytorch.kernels.RBFKernel().double().initialize(lengthscale=lengthscale)
    new = torch.rand(6, 1, generator=g, dtype=torch.float64)
    X = torch.cat([torch.rand(8, 1, generator=g, dtype=torch.float64), new, new[:3], new[:2] + 1e-7])
    Y = torch.sin(3 * X) + noise_std * torch.randn(19, 1, generator=g, dtype=torch.float64)
    T = X[:8] + 1e-3
    model = BanditModel(X[:8], Y[:8], kernel=kernel, noise_std=noise_std)
    try:
        for i in range(8, 19):
            model = model.condition_on_observations(X[i : i + 1], Y[i : i + 1])
        mean, variance = model.marginals(T).mean, model.marginals(T).variance
    except NumericalError:
        if noise_std >= 1e-7:
            raise
        return
    assert float((mean - torch.sin(3 * T).squeeze(-1)).abs().max()) < max(1e-4, 10 * noise_std)
    assert float(variance.max()) < max(1e-6, 10 * noise_std**2)


def test_gradients_through_what_rounding_has_spoilt_are_refused():
    g = torch.Generator().manual_seed(1)
    X = torch.rand(8, 1, generator=g, dtype=torch.float64)
    kernel = gpytorch.kernels.RBFKernel().double().initialize(lengthscale=0.5)
    model = BanditModel(X, torch.sin(3 * X), kernel=kernel, noise_std=3e-8)
    new = (X + 1e-4).requires_grad_(True)

    def condition() -> None:
        told = model
        for x in new.split(1):
            told = told.condition_on_observations(x, torch.sin(3 * x))

    with pytest.raises(NumericalError, match="noise_std"):
        condition()


def test_pickles_know_the_arms():
    X, Y = make(13)
    policy = gp_bucb(kernel_pair("rbf")[0], noise_std=0.1)
    model = BanditModel(X, Y, kernel=policy.kernel, noise_std=0.1).tabulate_(X)
    copied = pickle.loads(pickle.dumps(model))
    assert torch.equal(copied.arms, X)
    assert torch.equal(PolicyAcquisition(copied, policy).width, PolicyAcquisition(model, policy).width)


def test_pending_points_of_other_batch_rows_are_refused():
    X, Y = make(14)
    policy = gp_bucb(kernel_pair("rbf")[0], noise_std=0.1, width=Constant(2.0))
    for shape, pending in (((), (3,)), ((3,), (4,)), ((3,), (4, 3))):
        model = BanditModel(X.expand(*shape, 12, D), Y.expand(*shape, 12, 1), kernel=policy.kernel, noise_std=0.1)
        with pytest.raises(ShapeError, match="X_pending"):
            PolicyAcquisition(model, policy, X_pending=X[:2].expand(*pending, 2, D))
        PolicyAcquisition(model, policy, X_pending=X[:2].expand(*shape, 2, D))


@pytest.mark.filterwarnings("ignore:The model inputs are of type")
def test_double_precision_points_of_a_single_precision_model_under_a_transform():
    X, Y = make(15)
    model = BanditModel(X.float(), Y.float(), kernel=kernel_pair("rbf")[0], noise_std=0.1, outcome_transform=Standardize(1))
    for n in (1, 5, 300):
        posterior = model.posterior(make(16, n)[0])
        assert (
            posterior.mean.dtype == posterior.variance.dtype == posterior.distribution.covariance_matrix.dtype == torch.float64
        )
        if n <= 5:  # drawing from the joint posterior of more points may need jitter
            assert posterior.rsample(torch.Size([2])).dtype == torch.float64
        single = model.posterior(make(16, n)[0].float())
        assert single.mean.dtype == single.variance.dtype == single.distribution.covariance_matrix.dtype == torch.float32


def test_transforms_that_make_several_points_of_an_arm_are_not_tabulated():
    X, Y = make(17)
    several = InputPerturbation(torch.tensor([[0.0, 0.0], [0.1, 0.1]], dtype=torch.float64))
    model = BanditModel(X, Y, kernel=kernel_pair("rbf")[0], noise_std=0.1, input_transform=several)
    with pytest.raises(UnsupportedError, match="several points"):
        model.tabulate_(X)
    with pytest.raises(UnsupportedError, match="several points"):
        PolicyAcquisition(model, gp_bucb(kernel_pair("rbf")[0], noise_std=0.1, width=Constant(2.0)))


@pytest.mark.parametrize("n", [1, 3])
def test_observations_are_not_perturbed(n):
    """A single outcome was told of all perturbations of its point, and several were an error of their shapes."""
    (X, Y), (X2, Y2), (T, _) = make(17), make(18, n), make(19, 4)
    several = InputPerturbation(torch.tensor([[0.1, 0.1], [0.0, 0.0], [0.2, -0.1]], dtype=torch.float64))
    Y, Y2 = Y / 10, Y2 / 10
    options = {"kernel": kernel_pair("rbf")[0], "noise_std": 0.1, "input_transform": several}
    model, plain = BanditModel(X, Y, **options), BanditModel(X, Y, **(options | {"input_transform": None}))
    told = model.condition_on_observations(X2, Y2), plain.condition_on_observations(X2, Y2)
    pending = tuple(one.hallucinate(X2) for one in (model, plain))
    for one, expected in (told, pending):
        found, at_points = one.posterior(T), expected.posterior(T)
        assert found.mean.shape == (12, 1)
        torch.testing.assert_close(found.mean[1::3], at_points.mean, atol=1e-9, rtol=0)
        torch.testing.assert_close(found.variance[1::3], at_points.variance, atol=1e-9, rtol=0)


def test_parameters_of_transforms_do_not_tie_models_to_the_ones_before():
    X, Y = make(18)
    warp = Warp(D, list(range(D)))
    model = BanditModel(X / 5, Y, kernel=kernel_pair("rbf")[0], noise_std=0.1, input_transform=warp)
    for one in (model.condition_on_observations(X[:2] / 5, Y[:2]), model.hallucinate(X[:2] / 5)):
        assert not one.posterior(X / 5).mean.requires_grad
        assert not one.posterior(X / 5).variance.requires_grad
    x = (X / 5).requires_grad_(True)
    assert bool((torch.autograd.grad(model.posterior(x).mean.sum(), x)[0] != 0).any())


def test_a_dictionary_is_drawn_anew_after_a_fit_whatever_was_done_before():
    X, Y = make(19, 60)
    kernel = gpytorch.kernels.RBFKernel().double().initialize(lengthscale=0.05)
    model = BanditModel(X, Y, kernel=kernel, noise_std=0.1, dictionary="leverage")
    with pytest.warns(DiagnosticWarning, match="lengthscale is far shorter"):
        model.posterior(X)
    assert model.process().dictionary.sum() > 50
    model = pickle.loads(pickle.dumps(model))  # keeps the drawn dictionary, but no posterior
    fit_gpytorch_mll(gpytorch.mlls.ExactMarginalLogLikelihood(model.likelihood, model))
    assert model.covar_module.lengthscale.item() > 0.5
    assert model.process().dictionary.sum() < 50


def test_a_fit_draws_no_dictionary_that_it_does_not_read(monkeypatch):
    X, Y = make(19, 60)
    kernel = gpytorch.kernels.RBFKernel().double().initialize(lengthscale=0.05)
    model, twin = (BanditModel(X, Y, kernel=kernel, noise_std=0.1, dictionary="leverage") for _ in range(2))
    twin.process()
    with monkeypatch.context() as patched:
        patched.setattr("torchbandits.botorch.model.draw_dictionary_", lambda *_: pytest.fail("drawn in the fit"))
        fit_gpytorch_mll(gpytorch.mlls.ExactMarginalLogLikelihood(model.likelihood, model))
    fit_gpytorch_mll(gpytorch.mlls.ExactMarginalLogLikelihood(twin.likelihood, twin))
    assert torch.equal(model.posterior(X).mean, twin.posterior(X).mean)


def test_models_made_with_the_same_transforms_do_not_share_them():
    X, Y = make(7)
    transforms = {"outcome_transform": Standardize(m=1), "input_transform": Normalize(D)}
    first = BanditModel(X, Y, **transforms)
    before = first.posterior(X).mean
    second = BanditModel(3 * X, 100 * Y + 5, **transforms)
    torch.testing.assert_close(first.posterior(X).mean, before)
    torch.testing.assert_close(second.posterior(3 * X).mean, 100 * before + 5)
