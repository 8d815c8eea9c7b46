"""A BoTorch model of outcomes or features in ordinary units warns once, and names BoTorch's transforms."""

from __future__ import annotations

import copy
import pickle
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from botorch import fit_gpytorch_mll
from botorch.acquisition import UpperConfidenceBound, qLogExpectedImprovement
from botorch.models import SingleTaskGP
from botorch.models.transforms import Normalize, Standardize, Warp
from botorch.models.transforms.input import FilterFeatures
from botorch.optim.fit import fit_gpytorch_mll_scipy
from gpytorch import ExactMarginalLogLikelihood
from gpytorch.constraints import Interval
from gpytorch.kernels import Kernel, MaternKernel, RBFKernel, ScaleKernel
from torch import Tensor

import torchbandits as tb
from torchbandits.botorch import BanditModel, PolicyAcquisition, optimize_arms
from torchbandits.errors import DiagnosticWarning

DIM = 6
ARMS = torch.rand(200, DIM, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
UNITS = torch.tensor([1.0, 100.0, 1e-3, 1.0, 50.0, 1.0], dtype=torch.float64)


def f(x: Tensor) -> Tensor:
    return 90 + 8 * torch.sin(4 * x[..., :1]) * x[..., 1:2] - 12 * (x[..., 2:3] - 0.4) ** 2


def data(n: int = 40, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    X = torch.rand(n, DIM, dtype=torch.float64, generator=generator)
    return X, f(X) + 0.7 * torch.randn(n, 1, dtype=torch.float64, generator=generator)


def scaled() -> Kernel:
    return ScaleKernel(MaternKernel(nu=2.5, ard_num_dims=DIM)).double()


def bounded() -> Kernel:
    """A kernel that no fit can make large enough for outcomes around 90."""
    return ScaleKernel(MaternKernel(nu=2.5, ard_num_dims=DIM), outputscale_constraint=Interval(1e-3, 1e3)).double()


@contextmanager
def listening() -> Iterator[list[str]]:
    """The texts of the warnings, all of which must point at this file."""
    texts: list[str] = []
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        yield texts
    assert all(warning.category is DiagnosticWarning and warning.filename == __file__ for warning in said)
    texts += [str(warning.message) for warning in said]


def fitted(model: BanditModel) -> BanditModel:
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    return model


def transforms() -> dict[str, Any]:
    return {"outcome_transform": Standardize(m=1), "input_transform": Normalize(d=DIM)}


@pytest.mark.sweep(3)
@pytest.mark.parametrize("fit", [False, True])
@pytest.mark.parametrize("n", [10, 40, 200])
@pytest.mark.parametrize("options", [{}, {"dictionary": "leverage"}, {"kernel": scaled()}], ids=["default", "sparse", "scaled"])
def test_a_model_with_the_transforms_is_silent(fit, n, options):
    X, Y = data(n)
    model = BanditModel(X * UNITS, Y, **transforms(), **options)
    model = fitted(model) if fit else model
    model.posterior(ARMS * UNITS)


@pytest.mark.parametrize("known_noise", [False, True])
@pytest.mark.parametrize("rows", [None, 3])
def test_the_default_model_is_that_of_botorch(rows, known_noise):
    X, Y = data(40)
    if rows is not None:
        X, Y = X.expand(rows, -1, -1), Y * torch.arange(1, rows + 1).reshape(-1, 1, 1)
    variance = torch.full_like(Y, 0.5) if known_noise else None
    ours, theirs = BanditModel(X, Y, variance), SingleTaskGP(X, Y, variance)
    theirs.mean_module.initialize(constant=0.0)
    if not known_noise:
        theirs.likelihood.noise = ours.noise_std**2
    theirs.covar_module.initialize(lengthscale=ours.covar_module.lengthscale.detach())
    for asked in (ARMS, ARMS[:3] + 0.1):
        one, other = ours.posterior(asked), theirs.posterior(asked)
        assert torch.allclose(one.mean, other.mean, rtol=1e-6, atol=1e-6)
        assert torch.allclose(one.variance, other.variance, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "given",
    [{"kernel": scaled()}, {"covar_module": scaled()}, {"noise_std": 0.7}, {"regularization": 0.5}, {"prior_mean": 90.0}],
    ids=lambda given: next(iter(given)),
)
def test_with_a_quantity_in_the_units_of_the_outcomes_nothing_is_standardised(given):
    assert not hasattr(BanditModel(*data(), **given), "outcome_transform")


@pytest.mark.parametrize("n", [0, 1, 2])
def test_the_default_model_of_a_few_outcomes(n):
    X, Y = data(40)
    posterior = BanditModel(X[:n], Y[:n]).posterior(ARMS)
    assert bool(posterior.mean.isfinite().all() & (posterior.variance > 0).all())
    assert float(posterior.mean[0]) == pytest.approx(float(Y[:n].mean()) if n else 0.0, abs=10)


def test_the_default_kernel_has_the_features_that_the_transform_makes():
    X, Y = data(40)
    some = [0, DIM - 1]
    model = BanditModel(X, Y, input_transform=FilterFeatures(torch.tensor(some)))
    torch.testing.assert_close(model.posterior(ARMS).mean, BanditModel(X[:, some], Y).posterior(ARMS[:, some]).mean)


def test_outcomes_that_are_standardised_already_are_silent():
    X, Y = data()
    fitted(BanditModel(X, (Y - Y.mean()) / Y.std())).posterior(ARMS)


@pytest.mark.sweep(1)
@pytest.mark.parametrize(
    ("options", "finding"),
    [
        ({"outcome_transform": None}, "mean 9"),
        (
            {"outcome_transform": None, "prior_mean": "estimate"},
            "differ by a standard deviation",
        ),  # taken for noise
        ({"kernel": scaled()}, "mean 9"),
        ({"kernel": bounded(), "noise_std": 0.7, "dictionary": "leverage"}, "mean 9"),
    ],
    ids=["default", "estimate", "scaled", "sparse"],
)
def test_outcomes_in_ordinary_units_are_spoken_of_once_after_a_fit(options, finding):
    X, Y = data()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the fit
        model = fitted(BanditModel(X, Y, **options))
    with listening() as texts:
        model.posterior(ARMS)
        model.posterior(ARMS[:3])
        model.marginals(ARMS)
        model.condition_on_observations(*data(20, seed=3)).posterior(ARMS)
        copy.deepcopy(model).posterior(ARMS)
        optimize_arms(qLogExpectedImprovement(model, Y.max()), ARMS[:30], q=2)
        fitted(copy.deepcopy(model)).posterior(ARMS) if "kernel" in options else None
    assert len(texts) == 1
    assert finding in texts[0]
    assert "outcome_transform=Standardize(m=1)" in texts[0]
    assert not any(word in texts[0] for word in ("bandit", "tb.auto", "rewards"))


def test_nothing_is_said_before_a_fit_and_the_first_prediction():
    X, Y = data()
    with listening() as texts:
        model = BanditModel(X, Y, kernel=scaled())
        assert texts == []
        fitted(BanditModel(X, (Y - 90) / 5, kernel=scaled()))
    assert texts == []
    with listening() as texts:
        UpperConfidenceBound(model, beta=4.0)(ARMS.unsqueeze(-2))
    assert len(texts) == 1
    with listening() as texts:
        policy = tb.gp_ucb(scaled(), noise_std=0.1, width=tb.widths.Constant(2.0))
        acquisition = PolicyAcquisition(BanditModel(X, Y, kernel=scaled()), policy)
        optimize_arms(acquisition, ARMS, q=4)
    assert len(texts) == 1


def test_features_in_ordinary_units_are_spoken_of():
    X, Y = data()
    with listening() as texts:
        fitted(BanditModel(X * UNITS, Y, outcome_transform=Standardize(m=1))).posterior(ARMS * UNITS)
    assert any("degenerate" in text and "ranges of the features are between 0.000" in text for text in texts)
    assert all(f"input_transform=Normalize(d={DIM})" in text for text in texts)
    with listening() as texts:
        BanditModel(X * UNITS, Y, outcome_transform=Standardize(m=1)).posterior(ARMS * UNITS)
    assert len(texts) == 1
    assert "lengthscale is far shorter" in texts[0]
    long = RBFKernel().double()
    long.lengthscale = 1e3
    with listening() as texts:
        BanditModel(X, Y, kernel=long, noise_std=0.1, outcome_transform=Standardize(m=1)).posterior(ARMS)
    assert len(texts) == 1
    assert "lengthscale is far too long" in texts[0]


def test_points_of_a_dense_grid_are_informative_about_each_other():
    x = torch.linspace(0, 1, 2_000, dtype=torch.float64).unsqueeze(-1)
    short = RBFKernel().double()
    short.lengthscale = 0.001
    BanditModel(x, torch.sin(40 * x), kernel=short, noise_std=0.1).posterior(x)


def test_a_degenerate_fit_names_the_cause_and_what_the_model_is_worth():
    X, Y = data()
    with listening() as texts:
        fitted(BanditModel(X, Y, outcome_transform=None))
    assert len(texts) == 1
    for part in ("degenerate", "rejected", "may be far wrong", "above the prior mean", "outcome_transform=Standardize(m=1)"):
        assert part in texts[0]
    assert "bandit" not in texts[0]
    assert "refit_every" not in texts[0]


def test_too_much_noise_is_spoken_of_in_transformed_units():
    X, Y = data()
    with listening() as texts:
        BanditModel(X, 1e-3 * (Y - 90), kernel=RBFKernel().double(), noise_std=1.0).posterior(ARMS)
    assert len(texts) == 1
    assert "units of the transformed outcomes" in texts[0]


def test_few_observations_say_nothing_and_more_of_them_are_checked():
    X, Y = data()
    model = BanditModel(X[:5], Y[:5], noise_std=0.1)
    model.posterior(ARMS)
    with listening() as texts:
        model.condition_on_observations(X[5:], Y[5:]).posterior(ARMS)
    assert len(texts) == 1


def test_batch_rows_are_named():
    X, Y = data()
    both = torch.stack([(Y - 90) / 5, Y])
    with listening() as texts:
        BanditModel(torch.stack([X, X]), both, noise_std=0.1).posterior(ARMS)
    assert len(texts) == 1
    assert texts[0].startswith("batch row 1: ")


@pytest.mark.sweep(1)
@pytest.mark.parametrize("given", [{}, {"noise_std": 0.1}])
def test_the_noise_that_batch_rows_share_is_not_fitted_and_that_is_said(given):
    X, Y = data()
    Y = (Y - Y.mean()) / Y.std()
    with listening() as texts:
        model = fitted(BanditModel(torch.stack([X, X]), torch.stack([Y, -Y]), **given))
    assert model.noise_std == pytest.approx(0.1)
    assert len(texts) == (not given)
    assert given or "share one noise, which is not fitted: it stays at 0.1" in texts[0]


def test_a_loaded_and_a_pickled_model_check_again_without_repeating():
    X, Y = data()
    model = BanditModel(X, Y, noise_std=0.1)
    with listening() as texts:
        model.posterior(ARMS)
    model.load_state_dict(BanditModel(X, Y, noise_std=0.1).state_dict())
    model.posterior(ARMS)
    pickle.loads(pickle.dumps(model)).posterior(ARMS)
    assert len(texts) == 1


def test_the_model_of_a_bandit_leaves_the_checks_to_it():
    bandit = tb.Bandit(tb.gp_ucb(RBFKernel().double(), noise_std=0.1, width=tb.widths.Constant(2.0)), ARMS)
    X, Y = data()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        bandit.observe(X, torch.ones(len(X)), Y.squeeze(-1))
    bandit.model().posterior(ARMS)


def test_known_noise_variances_weigh_the_check():
    X, Y = data()
    variance = torch.full_like(Y, 0.5)
    BanditModel(X, Y, variance, **transforms()).posterior(ARMS)
    with listening() as texts:
        BanditModel(X, Y, variance, outcome_transform=None).posterior(ARMS)
    assert len(texts) == 1


def test_parameters_of_transforms_that_are_not_fitted_are_named():
    X, Y = data()
    model = BanditModel(X, Y, input_transform=Warp(d=DIM, indices=[0, 1], eps=1e-7))
    warp = model.input_transform
    mll = ExactMarginalLogLikelihood(model.likelihood, model)
    with listening() as texts:
        fit_gpytorch_mll(mll)
    assert [text.partition(" stay")[0] for text in texts] == ["concentration0 and concentration1 of Warp"]
    before = (mll(model.train()(*model.train_inputs), model.train_targets).item(), warp.concentration1.tolist())
    fit_gpytorch_mll_scipy(mll.train())  # as the warning says
    assert mll(model.train()(*model.train_inputs), model.train_targets).item() > before[0]
    assert warp.concentration1.tolist() != before[1]
    with listening() as texts:
        warp.requires_grad_(False)
        fit_gpytorch_mll(mll)
    assert not texts
