"""BoTorch's requirements of a model as tests: shapes, noise, transforms, conditioning, fantasies, storage, fitting.

Every test runs over `botorch_models.MODELS`: BoTorch's own `SingleTaskGP` and ours, exact and sparse.
"""

from __future__ import annotations

import copy
import inspect
import io
import pickle
import subprocess
import sys
from collections.abc import Callable
from functools import partial

import botorch
import gpytorch
import numpy as np
import pytest
import torch
from botorch.acquisition import LogExpectedImprovement, UpperConfidenceBound, qUpperConfidenceBound
from botorch.acquisition.objective import ExpectationPosteriorTransform, PosteriorTransform, ScalarizedPosteriorTransform
from botorch.cross_validation import batch_cross_validation, gen_loo_cv_folds, loo_cv
from botorch.models import ModelList, ModelListGP
from botorch.models.gpytorch import GPyTorchModel
from botorch.models.model import FantasizeMixin, Model
from botorch.models.transforms import Log, Normalize, Standardize, Warp
from botorch.models.transforms.input import ChainedInputTransform, InputPerturbation
from botorch.models.transforms.outcome import ChainedOutcomeTransform
from botorch.optim.utils import get_X_baseline
from botorch.posteriors import GPyTorchPosterior
from botorch.sampling import SobolQMCNormalSampler
from botorch.sampling.get_sampler import get_sampler
from botorch.utils.datasets import SupervisedDataset
from botorch_models import DIM, MODELS, NOISE_STD, PRIOR_MEAN, data, inducing, make_kernel, points, values
from torch import Tensor

from torchbandits.botorch import BanditModel

pytestmark = pytest.mark.filterwarnings("ignore:Non-strict enforcement of botorch tensor conventions")
F64 = {"rtol": 1e-8, "atol": 1e-9}
F32 = {"rtol": 0.0, "atol": 2e-4}
OURS = [name for name in MODELS if name != "stock"]
models = pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
ours = pytest.mark.parametrize("make", [MODELS[name] for name in OURS], ids=OURS)
Make = Callable[..., Model]


def close(actual: Tensor, expected: Tensor, **tolerance: float) -> None:
    torch.testing.assert_close(actual, expected, **(tolerance or F64))


def moments(model: Model, X: Tensor) -> tuple[Tensor, Tensor]:
    """Mean `... x q` and covariance `... x q x q` of the joint posterior."""
    posterior = model.posterior(X)
    return posterior.mean.squeeze(-1), posterior.distribution.covariance_matrix


def same(one: Model, other: Model, X: Tensor, **tolerance: float) -> None:
    for a, b in zip(moments(one, X), moments(other, X), strict=True):
        close(a.detach(), b.detach(), **tolerance)


def mapped(make: Make, transform: Callable[[Tensor], Tensor]) -> Make:
    """The same model with its dictionary points, if any, mapped by the transform."""
    return partial(make, dictionary=transform(inducing())) if make is MODELS["sparse"] else make


def sampler(num: int, seed: int = 5) -> SobolQMCNormalSampler:
    return SobolQMCNormalSampler(torch.Size([num]), seed=seed)


# ------------------------------------------------------------------------- table 1: what a first-class model is


@models
def test_what_it_is(make: Make):
    """Rows 1, 3, 11, 17, 18: a model, a GP of GPyTorch's, one output, transforms by literal name."""
    model = make(*data(0))
    assert isinstance(model, Model)
    assert isinstance(model, GPyTorchModel)
    assert isinstance(model, gpytorch.models.GP)
    assert isinstance(model, FantasizeMixin)
    assert isinstance(model.likelihood, gpytorch.likelihoods.GaussianLikelihood)
    assert model.num_outputs == 1
    arguments = inspect.getfullargspec(inspect.unwrap(type(model).__init__)).args  # Ax does not see keyword-only arguments
    assert {"train_X", "train_Y", "train_Yvar", "input_transform", "outcome_transform"} <= set(arguments)


@pytest.mark.sweep(3)
@models
@pytest.mark.parametrize("model_batch", [(), (3,), (2, 1)])
@pytest.mark.parametrize("test_batch", [(), (3,), (4, 1, 3), (2, 3)])
@pytest.mark.parametrize("q", [1, 4])
def test_shapes(make: Make, model_batch, test_batch, q):
    """Rows 2, 4: `b x q x 1`, batch dimensions of model and candidates broadcast; each row equals a single run."""
    X, Y = data(1, batch_shape=model_batch)
    model, test = make(X, Y), points(2, *test_batch, q)
    posterior = model.posterior(test)
    shape = torch.broadcast_shapes(test_batch, model_batch)
    assert model.batch_shape == model_batch
    assert posterior.mean.shape == posterior.variance.shape == (*shape, q, 1)
    assert posterior.rsample(torch.Size([5])).shape == (5, *shape, q, 1)
    mean, covariance = moments(model, test)
    X, Y, test = X.expand(*shape, *X.shape[-2:]), Y.expand(*shape, *Y.shape[-2:]), test.expand(*shape, q, DIM)
    for row in np.ndindex(shape):
        alone = moments(make(X[row], Y[row]), test[row])
        close(mean[row], alone[0])
        close(covariance[row], alone[1])


@models
def test_a_t_batch_is_a_flat_call(make: Make):
    """`A x 1 x d` gives the marginals of `A x d`, in any order, and the diagonal of the joint."""
    model, X = make(*data(3)), points(4, 50)
    flat, batched = model.posterior(X), model.posterior(X.unsqueeze(-2))
    close(batched.mean.squeeze(-2), flat.mean)
    close(batched.variance.squeeze(-2), flat.variance)
    close(flat.variance.squeeze(-1), flat.distribution.covariance_matrix.diagonal())
    order = torch.randperm(50, generator=torch.Generator().manual_seed(0))
    close(model.posterior(X[order]).mean, flat.mean[order])


@models
def test_no_points(make: Make):
    posterior = make(*data(3)).posterior(points(4, 0))
    assert posterior.mean.shape == posterior.variance.shape == (0, 1)


class Recorder(PosteriorTransform):
    """A posterior transform that records its calls and returns the posterior unchanged."""

    scalarize = False

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[dict] = []

    def evaluate(self, Y: Tensor, X: Tensor | None = None) -> Tensor:
        return Y

    def forward(self, **arguments) -> GPyTorchPosterior:
        self.calls.append(arguments)
        return arguments["posterior"]


@models
def test_the_order_of_a_posterior(make: Make):
    """Row 5: eval mode, input transform, outcome untransformed, then the posterior transform, called by keyword."""
    X, Y = data(5)
    plain, test = make(X, Y), points(6, 3)
    model = mapped(make, lambda X: 3 + 10 * X)(
        3 + 10 * X, Y, input_transform=Normalize(DIM, bounds=torch.tensor([[3.0, 3.0], [13.0, 13.0]]).double())
    )
    recorder = Recorder()
    for mode in (model.train, model.eval, model.train):
        mode()
        posterior = model.posterior(3 + 10 * test, posterior_transform=recorder)
        assert not model.training
        assert recorder.calls[-1].keys() == {"posterior", "X"}
        close(posterior.mean, plain.posterior(test).mean)
        close(posterior.variance, plain.posterior(test).variance)


@models
def test_original_inputs_are_at_hand(make: Make):
    """Rows 6, 12: BoTorch can read the original points in every mode of the model."""
    X, Y = data(5)
    bounds = torch.stack([X.amin(-2), X.amax(-2)])
    for transform in (None, Normalize(DIM, bounds=bounds)):
        model = make(X, Y, input_transform=transform)
        for mode in (model.train, model.eval, model.train):
            mode()
            close(get_X_baseline(UpperConfidenceBound(model, beta=1.0)), X)
            model.posterior(X)
            close(get_X_baseline(UpperConfidenceBound(model, beta=1.0)), X)
        model.train()
        close(model.train_inputs[0], X)
        model.posterior(X)
        new = model.condition_on_observations(points(6, 2), torch.ones(2, 1).double())
        close(get_X_baseline(UpperConfidenceBound(new, beta=1.0)), torch.cat([X, points(6, 2)]))


@models
@pytest.mark.parametrize("outcome", [None, Standardize], ids=["plain", "standardized"])
def test_observation_noise(make: Make, outcome):
    """Row 7: none, the model's, or a tensor in the transformed space; the mean never moves."""
    X, Y = data(7)
    model, test = make(X, Y, outcome_transform=outcome and outcome(1)), points(8, 3, 4)
    scale = 1.0 if outcome is None else float(Y.std()) ** 2
    without, with_noise = model.posterior(test), model.posterior(test, observation_noise=True)
    noise = torch.linspace(0.1, 0.9, 12).double().reshape(3, 4, 1)
    given = model.posterior(test, observation_noise=noise)
    for posterior, added in ((with_noise, NOISE_STD**2 * torch.ones_like(noise)), (given, noise)):
        close(posterior.mean, without.mean)
        close(posterior.variance, without.variance + scale * added)
        expected = without.distribution.covariance_matrix + scale * torch.diag_embed(added.squeeze(-1))
        close(posterior.distribution.covariance_matrix, expected)


@models
def test_known_noise_is_averaged(make: Make):
    """With `train_Yvar`, `observation_noise=True` adds the average of the known variances."""
    X, Y = data(7)
    Yvar = 0.01 + 0.1 * torch.rand(Y.shape, generator=torch.Generator().manual_seed(1), dtype=Y.dtype)
    model, test = make(X, Y, Yvar), points(8, 4)
    assert isinstance(model.likelihood, gpytorch.likelihoods.FixedNoiseGaussianLikelihood)
    added = model.posterior(test, observation_noise=True).variance - model.posterior(test).variance
    close(added, Yvar.mean().expand(4, 1), rtol=1e-6, atol=1e-9)


@pytest.mark.sweep(3)
@models
@pytest.mark.parametrize("batch_shape", [(), (3,)])
def test_known_noise_goes_with_the_data(make: Make, batch_shape):
    """New data and fantasies keep their own noise variances, also per batch row."""
    X, Y = data(7, n=18, batch_shape=batch_shape)
    Yvar = 0.01 + 0.3 * torch.rand(Y.shape, generator=torch.Generator().manual_seed(2), dtype=Y.dtype)
    test = points(8, *batch_shape, 4)

    def average_noise(model: Model) -> Tensor:
        return (model.posterior(test, observation_noise=True).variance - model.posterior(test).variance).squeeze(-1)

    model = make(X[..., :12, :], Y[..., :12, :], Yvar[..., :12, :])
    close(average_noise(model), Yvar[..., :12, 0].mean(-1, keepdim=True).expand(*batch_shape, 4), rtol=1e-6, atol=1e-8)
    model = model.condition_on_observations(X[..., 12:, :], Y[..., 12:, :], noise=Yvar[..., 12:, :])
    close(average_noise(model), Yvar[..., 0].mean(-1, keepdim=True).expand(*batch_shape, 4), rtol=1e-6, atol=1e-8)
    same(model, make(X, Y, Yvar), test)
    close(evidence(model), evidence(make(X, Y, Yvar)), rtol=1e-6, atol=1e-8)
    fantasies = model.fantasize(test, sampler(5))
    assert fantasies.likelihood.noise.shape[-1] == 22
    assert average_noise(fantasies).shape == (5, *batch_shape, 4)


@ours
def test_known_noise_of_each_batch_row(make: Make):
    """New points or their noise are given once for all rows, or the noise is not given."""
    X, Y = data(9, n=12, batch_shape=(3,))
    Yvar = 0.01 + 0.3 * torch.rand(Y.shape, generator=torch.Generator().manual_seed(2), dtype=Y.dtype)
    new_X, new_Y, noise = points(10, 2), torch.ones(2, 1).double(), torch.full((2, 1), 0.05).double()
    for given in (None, noise):
        new = make(X, Y, Yvar).condition_on_observations(new_X, new_Y, noise=given)
        for row in range(3):
            own = Yvar[row].mean().expand(2, 1) if given is None else given
            alone = make(torch.cat([X[row], new_X]), torch.cat([Y[row], new_Y]), torch.cat([Yvar[row], own]))
            for found, expected in zip(moments(new, points(11, 4)), moments(alone, points(11, 4)), strict=True):
                close(found[row], expected)


@models
def test_a_scalarized_posterior(make: Make):
    """Row 8: Ax minimises through a weight of −1, on models of one output too."""
    model, test = make(*data(9)), points(10, 2, 3)
    transform = ScalarizedPosteriorTransform(torch.tensor([-1.0]).double(), offset=0.4)
    plain, turned = model.posterior(test), model.posterior(test, posterior_transform=transform)
    close(turned.mean, 0.4 - plain.mean)
    close(turned.distribution.covariance_matrix, plain.distribution.covariance_matrix)
    best = UpperConfidenceBound(model, beta=4.0, posterior_transform=transform)(test[:, :1])
    close(best, (0.4 - plain.mean + 2 * plain.variance.sqrt())[:, 0, 0])


# ------------------------------------------------------------------------- conditioning


@pytest.mark.sweep(3)
@models
@pytest.mark.parametrize("batch_shape", [(), (3,)])
@pytest.mark.parametrize("outcome", [None, Standardize], ids=["plain", "standardized"])
@pytest.mark.parametrize("warm", [False, True])
def test_conditioning_is_refitting(make: Make, batch_shape, outcome, warm):
    """Rows 9, 10: also before any prediction (BoTorch's own needs one first); the old model stays as it was."""
    X, Y = data(11, n=24, batch_shape=batch_shape)
    old, held = (X[..., :16, :], Y[..., :16, :]), points(12, 5)
    transform = outcome and outcome(1, batch_shape=torch.Size(batch_shape))
    model = make(*old, outcome_transform=transform)
    if warm:
        model.posterior(held)
    before = [m.clone() for m in moments(make(*old, outcome_transform=copy.deepcopy(transform)), held)]
    new = model.condition_on_observations(X[..., 16:, :], Y[..., 16:, :])
    assert new is not model
    assert type(new) is type(model)
    if outcome is not None:  # refit with the statistics of the first data, because conditioning does not standardise again
        mean, std = Y[..., :16, :].mean(-2, keepdim=True), Y[..., :16, :].std(-2, keepdim=True)
        fresh = make(X, (Y - mean) / std)
        close(moments(new, held)[0], moments(fresh, held)[0] * std[..., 0] + mean[..., 0])
        close(moments(new, held)[1], moments(fresh, held)[1] * std**2)
    else:
        same(new, make(X, Y), held)
    for now, then in zip(moments(model, held), before, strict=True):
        close(now, then)
    assert new.batch_shape == batch_shape
    assert new.train_targets.shape == (*batch_shape, 24)
    assert new.train_inputs[0].shape == (*batch_shape, 24, DIM)


@pytest.mark.sweep(1)
@models
def test_all_at_once_is_one_by_one(make: Make):
    """Conditioning in any order is equivalent, with repeats of old and of new points."""
    X, Y = data(13, n=30)
    new_X, new_Y, held = torch.cat([X[10:], X[5:8], X[12:14]]), torch.cat([Y[10:], Y[1:4] + 1, Y[:2] - 1]), points(14, 6)
    model = make(X[:10], Y[:10])
    model.posterior(held)
    together = model.condition_on_observations(new_X, new_Y)
    for order in (range(len(new_X)), reversed(range(len(new_X)))):
        one_by_one = model
        for j in order:
            one_by_one = one_by_one.condition_on_observations(new_X[j : j + 1], new_Y[j : j + 1])
            one_by_one.posterior(held)
        same(one_by_one, together, held)
    in_two = model.condition_on_observations(new_X[:7], new_Y[:7])
    in_two.posterior(held)
    same(in_two.condition_on_observations(new_X[7:], new_Y[7:]), together, held)


@models
def test_siblings_do_not_share(make: Make):
    """Two models conditioned from one parent, and conditioned further, are independent."""
    X, Y = data(15, n=24)
    held = points(16, 4)
    parent = make(X[:12], Y[:12])
    parent.posterior(held)
    one = parent.condition_on_observations(X[12:18], Y[12:18])
    other = parent.condition_on_observations(X[18:], Y[18:])
    one.posterior(held), other.posterior(held)
    both = one.condition_on_observations(X[18:], Y[18:])
    same(one, make(X[:18], Y[:18]), held)
    same(other, make(torch.cat([X[:12], X[18:]]), torch.cat([Y[:12], Y[18:]])), held)
    same(both, make(X, Y), held)
    same(parent, make(X[:12], Y[:12]), held)


@models
@pytest.mark.parametrize("known", [False, True], ids=["inferred", "known"])
def test_noise_of_what_is_conditioned_on(make: Make, known):
    """Known variances of new rewards; they are in the transformed space."""
    X, Y = data(17, n=18)
    held, Yvar = points(18, 4), torch.linspace(0.005, 0.2, 18).double().unsqueeze(-1)
    if not known:
        Yvar[:] = NOISE_STD**2
    model = make(X[:12], Y[:12], Yvar[:12])
    model.posterior(held)
    same(model.condition_on_observations(X[12:], Y[12:], noise=Yvar[12:]), make(X, Y, Yvar), held)


@pytest.mark.sweep(2)
@models
@pytest.mark.parametrize("batch_shape", [(), (3,)])
def test_fantasies_of_the_same_points(make: Make, batch_shape):
    """Row 9: Y has leading dimensions that X has not; batch shape `S x b`, and every row is a refit."""
    X, Y = data(19, n=12, batch_shape=batch_shape)
    new_X, held = points(20, *batch_shape, 2), points(21, 3)
    new_Y = torch.randn(4, *batch_shape, 2, 1, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    model = make(X, Y)
    model.posterior(held)
    new = model.condition_on_observations(new_X, new_Y)
    assert new.batch_shape == (4, *batch_shape)
    mean, covariance = moments(new, held)
    for row in np.ndindex(4, *batch_shape):
        alone = make(torch.cat([X[row[1:]], new_X[row[1:]]]), torch.cat([Y[row[1:]], new_Y[row]]))
        close(mean[row], moments(alone, held)[0])
        close(covariance[row], moments(alone, held)[1])


@models
def test_points_with_more_batch_dimensions_than_the_model(make: Make):
    """Conditioning as in JES and KG: `b x n' x d` on a model without batch dimensions, and again on the result."""
    X, Y = data(22, n=12)
    new_X, held = points(23, 5, 2), points(24, 3)
    new_Y = torch.randn(5, 2, 1, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    model = make(X, Y)
    model.posterior(held)
    new = model.condition_on_observations(new_X, new_Y)
    assert new.batch_shape == (5,)
    new.posterior(held)
    newer = new.condition_on_observations(new_X[:, :1] / 2, new_Y[:, 1:])
    for row in range(5):
        same_X, same_Y = torch.cat([X, new_X[row], new_X[row, :1] / 2]), torch.cat([Y, new_Y[row], new_Y[row, 1:]])
        expected = moments(make(same_X, same_Y), held)
        close(moments(newer, held)[0][row], expected[0])
        close(moments(newer, held)[1][row], expected[1])


# ------------------------------------------------------------------------- fantasies


@pytest.mark.sweep(3)
@models
@pytest.mark.parametrize("batch_shape", [(), (3,)])
@pytest.mark.parametrize("known", [False, True], ids=["inferred", "known"])
def test_fantasize(make: Make, batch_shape, known):
    """Row 11: `S x b` models; each is the model conditioned on its own sample of the noisy posterior."""
    X, Y = data(25, n=12)
    Yvar = torch.linspace(0.005, 0.2, 12).double().unsqueeze(-1) if known else None
    model, new_X, held = make(X, Y, Yvar), points(26, *batch_shape, 2), points(27, 3)
    new = model.fantasize(new_X, sampler(4))
    assert new.batch_shape == (4, *batch_shape)
    assert new.posterior(held.expand(4, *batch_shape, 3, DIM)).mean.shape == (4, *batch_shape, 3, 1)
    assert new.posterior(held).mean.shape == (4, *batch_shape, 3, 1)
    variance = NOISE_STD**2 if Yvar is None else float(Yvar.mean())
    samples = sampler(4)(model.posterior(new_X, observation_noise=torch.full((*batch_shape, 2, 1), variance).double()))
    mean, covariance = moments(new, held)
    for row in np.ndindex(4, *batch_shape):
        here = new_X[row[1:]]
        all_Yvar = None if Yvar is None else torch.cat([Yvar, torch.full((2, 1), variance, dtype=Yvar.dtype)])
        expected = moments(make(torch.cat([X, here]), torch.cat([Y, samples[row]]), all_Yvar), held)
        close(mean[row], expected[0], rtol=1e-6, atol=1e-6)
        close(covariance[row], expected[1], rtol=1e-6, atol=1e-7)


@models
def test_fantasies_of_nothing(make: Make):
    """Without points to fantasize, the result is one copy of the model per sample."""
    model, held = make(*data(25)), points(27, 3)
    model.posterior(held)
    new = model.fantasize(points(0, 0), sampler(4))
    assert new.batch_shape == (4,)
    expected = moments(model, held)
    close(moments(new, held)[0], expected[0].expand(4, 3))
    close(moments(new, held)[1], expected[1].expand(4, 3, 3))


@models
def test_gradients_through_a_fantasy(make: Make):
    """The derivative of the fantasy model's posterior with respect to the fantasised point agrees with finite differences.

    For BoTorch's own model only that of the mean, because it holds the root of the covariance fixed.
    """
    model, held = make(*data(28, n=12)), points(29, 3)

    def learned(new_X: Tensor) -> Tensor:
        new = model.fantasize(new_X, sampler(3), propagate_grads=True)
        with botorch.settings.propagate_grads():  # as in the knowledge gradient
            posterior = new.posterior(held)
            return posterior.mean if make is MODELS["stock"] else torch.cat([posterior.mean, posterior.variance])

    new_X = points(30, 2).requires_grad_()
    assert torch.autograd.gradcheck(learned, (new_X,), eps=1e-6, atol=1e-5, rtol=1e-4)


@pytest.mark.sweep(1)
@models
def test_gradients_of_a_posterior(make: Make):
    model = make(*data(31))

    for q, batch_shape in ((1, (3,)), (3, ()), (3, (2,))):
        base = torch.randn(2, *batch_shape, q, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
        model.posterior(points(32, q))  # caches of an earlier call must not matter
        X = points(33, *batch_shape, q).requires_grad_()

        def outputs(X: Tensor, base: Tensor = base) -> tuple[Tensor, Tensor, Tensor]:
            posterior = model.posterior(X)
            draws = posterior.rsample_from_base_samples(torch.Size([2]), base)
            return posterior.mean, posterior.variance, draws

        assert torch.autograd.gradcheck(outputs, (X,), eps=1e-6, atol=1e-5, rtol=1e-4)


# ------------------------------------------------------------------------- storage


@models
def test_a_state_fits_a_model_of_another_size(make: Make):
    """Row 13: hyper-parameters only, and a warm model drops what was computed with the old ones."""
    X, Y = data(34, n=24)
    other = make_kernel()
    other.base_kernel.lengthscale = torch.tensor([0.9, 0.2]).double()
    held, big, small = points(35, 4), make(X, Y, kernel=other, noise_std=0.3), make(X[:9], Y[:9])
    small.posterior(held)
    for state in (big.state_dict(), copy.deepcopy(big.state_dict())):
        assert not [name for name, value in state.items() if 24 in value.shape]
        small.load_state_dict(state)
        same(small, make(X[:9], Y[:9], kernel=other, noise_std=0.3), held)
    more = small.condition_on_observations(X[9:], Y[9:])
    same(more, big, held)


@models
def test_a_state_with_transforms(make: Make):
    """In Ax's cross-validation, the folds keep the transforms fitted to all data."""
    X, Y = data(36, n=24)
    held = points(37, 4)

    def model(k: int) -> Model:
        return make(X[:k], 5 * Y[:k], input_transform=Normalize(DIM), outcome_transform=Standardize(1))

    big, small = model(24), model(9)
    if make is MODELS["stock"]:
        small.train()  # in eval mode BoTorch's own model keeps the points as transformed before
    small.load_state_dict(big.state_dict())
    Y_9 = (5 * Y[:9] - 5 * Y.mean()) / (5 * Y.std())
    low, high = X.amin(-2), X.amax(-2)
    plain = mapped(make, lambda X: (X - low) / (high - low))((X[:9] - low) / (high - low), Y_9)
    expected = moments(plain, (held - low) / (high - low))
    close(moments(small, held)[0], expected[0] * 5 * Y.std() + 5 * Y.mean(), rtol=1e-6, atol=1e-6)
    close(moments(small, held)[1], expected[1] * 25 * Y.var(), rtol=1e-6, atol=1e-6)


def pickled(model: Model) -> Model:
    return pickle.loads(pickle.dumps(model))


def saved(model: Model) -> Model:
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.sweep(3)
@models
@pytest.mark.parametrize("copied", [copy.deepcopy, pickled, saved], ids=["deepcopy", "pickle", "torch.save"])
@pytest.mark.parametrize("outcome", [None, Standardize], ids=["plain", "standardized"])
def test_copies_after_a_gradient(make: Make, copied, outcome):
    """Row 14: a copy is independent and gives the same posterior, for any content of the caches."""
    X, Y = data(38)
    held = points(39, 4)
    model = make(X, Y, outcome_transform=outcome and outcome(1))
    model.covar_module.requires_grad_(True)
    where = points(40, 3, 1).requires_grad_()
    UpperConfidenceBound(model, beta=2.0)(where).sum().backward()
    for subject in (model, model.condition_on_observations(points(41, 1), torch.ones(1, 1).double())):
        if subject is not model:
            (subject.posterior(where).mean.sum() + subject.posterior(where).variance.sum()).backward()
        other = copied(subject)
        same(other, subject, held)
        new = other.condition_on_observations(points(42, 2), torch.zeros(2, 1).double())
        assert new.train_targets.shape[-1] == subject.train_targets.shape[-1] + 2
        again = subject.condition_on_observations(points(42, 2), torch.zeros(2, 1).double())
        same(new, again, held)


# ------------------------------------------------------------------------- the neighbourhood: data sets, lists, fitting


@models
def test_one_output_is_all_there_is(make: Make):
    """Row 15: models have a single output."""
    model, held = make(*data(43)), points(44, 3)
    try:
        subset = model.subset_output([0])
    except NotImplementedError:
        return
    same(subset, model, held)


@models
def test_built_from_a_data_set(make: Make):
    """Row 16: Ax builds the arguments of `__init__` from a data set."""
    X, Y = data(45)
    for Yvar in (None, torch.full_like(Y, 0.02)):
        dataset = SupervisedDataset(X, Y, Yvar=Yvar, feature_names=["a", "b"], outcome_names=["y"])
        model_class = type(make(X, Y))
        arguments = model_class.construct_inputs(training_data=dataset)
        close(arguments["train_X"], X)
        close(arguments["train_Y"], Y)
        assert ("train_Yvar" in arguments) == (Yvar is not None)
        model = model_class(**arguments, covar_module=make_kernel()) if make is MODELS["stock"] else model_class(**arguments)
        assert model.posterior(points(46, 3)).mean.shape == (3, 1)


@pytest.mark.sweep(2)
@models
@pytest.mark.parametrize("known", [False, True], ids=["inferred", "known"])
def test_fitting(make: Make, known):
    """Row 19: `fit_gpytorch_mll` learns something and leaves a model that predicts, conditions and fits again."""
    X, Y = data(47, n=30)
    kernel = make_kernel()
    kernel.base_kernel.lengthscale = torch.tensor([3.0, 0.05]).double()
    model = make(X, Y, torch.full_like(Y, NOISE_STD**2) if known else None, kernel=kernel)
    model.covar_module.requires_grad_(True)
    held = points(48, 200)
    truth = MODELS["stock"](*data(47, n=30)).posterior(held).mean  # the prediction with the true lengthscales
    before = (model.posterior(held).mean - truth).square().mean().detach()
    mll = gpytorch.mlls.ExactMarginalLogLikelihood(model.likelihood, model)
    for _ in range(2):
        assert botorch.fit_gpytorch_mll(mll) is mll
    after = (model.posterior(held).mean - truth).square().mean().detach()
    assert after < 0.5 * before
    assert not model.training
    noise = {"noise": torch.ones(1, 1).double()} if known else {}
    new = model.condition_on_observations(points(49, 1), torch.ones(1, 1).double(), **noise)
    assert new.posterior(held).mean.shape == (200, 1)


def evidence(model: Model) -> Tensor:
    """Log marginal likelihood per observation, computed as in BoTorch, in training mode."""
    mll = gpytorch.mlls.ExactMarginalLogLikelihood(model.likelihood, model).train()
    value = mll(model(*model.train_inputs), model.train_targets).detach()
    model.eval()
    return value


@pytest.mark.parametrize("known", [False, True], ids=["inferred", "known"])
@pytest.mark.parametrize("transformed", [False, True])
def test_the_evidence(known, transformed):
    """`ExactMarginalLogLikelihood` in training mode: of the prior, transforms included."""
    X, Y = data(86)
    noise = (torch.full_like(Y, 0.02),) if known else ()
    values = []
    for name in ("stock", "exact"):
        options = {"input_transform": Normalize(DIM), "outcome_transform": Standardize(1)} if transformed else {}
        values.append(evidence(MODELS[name](X, 3 * Y, *noise, **options)))
    close(*values)


def test_cross_validation():
    """BoTorch's cross-validation, with all folds as one batch, and leave-one-out without refitting."""
    X, Y = data(87, n=12, near=0)
    options = {"kernel": make_kernel(), "noise_std": NOISE_STD, "prior_mean": PRIOR_MEAN}
    folds = gen_loo_cv_folds(X, Y)
    found = batch_cross_validation(BanditModel, gpytorch.mlls.ExactMarginalLogLikelihood, folds, model_init_kwargs=options)
    quick = loo_cv(MODELS["exact"](X, Y)).posterior
    for j in range(12):
        left = torch.arange(12) != j
        expected = MODELS["stock"](X[left], Y[left]).posterior(X[j : j + 1])
        close(found.posterior.mean[j].squeeze(), expected.mean.squeeze(), rtol=1e-6, atol=1e-6)
        close(quick.mean[j].squeeze(), expected.mean.squeeze(), rtol=1e-6, atol=1e-6)


@models
def test_fitting_a_list(make: Make):
    X, Y = data(88)
    both = ModelListGP(*(make(X, y, kernel=make_kernel()) for y in (Y, -Y)))
    for model in both.models:
        model.covar_module.requires_grad_(True)
    before = [model.covar_module.outputscale.item() for model in both.models]
    botorch.fit_gpytorch_mll(gpytorch.mlls.SumMarginalLogLikelihood(both.likelihood, both))
    assert not both.training
    assert all(model.covar_module.outputscale.item() != old for model, old in zip(both.models, before, strict=True))


@pytest.mark.sweep(3)
@models
@pytest.mark.parametrize("kind", [ModelList, ModelListGP])
def test_in_a_list_of_models(make: Make, kind):
    """Row 21: independent outputs side by side, each with its own transforms; fantasies too."""
    (X, Y), (X_2, Y_2) = data(50), data(51, n=14)
    one, two = make(X, Y, outcome_transform=Standardize(1)), make(X_2, Y_2)
    both, test = kind(one, two), points(52, 3, 2)
    posterior = both.posterior(test)
    assert both.num_outputs == 2
    close(posterior.mean, torch.cat([one.posterior(test).mean, two.posterior(test).mean], -1))
    close(posterior.variance, torch.cat([one.posterior(test).variance, two.posterior(test).variance], -1))
    weights = torch.tensor([0.3, -2.0]).double()
    scalar = both.posterior(test, posterior_transform=ScalarizedPosteriorTransform(weights)) if kind is ModelListGP else None
    if scalar is not None:
        close(scalar.mean.squeeze(-1), posterior.mean @ weights)
        close(scalar.variance.squeeze(-1), posterior.variance @ weights**2)
    close(both.posterior(test, output_indices=[1]).mean, two.posterior(test).mean)
    noise = torch.full((3, 2, 2), 0.2).double()
    close(both.posterior(test, observation_noise=noise).variance[..., 1], two.posterior(test).variance[..., 0] + 0.2)
    assert both.subset_output([1]).num_outputs == 1
    if kind is ModelListGP:
        new = both.fantasize(points(53, 2), sampler(4))
        assert new.posterior(test[0]).mean.shape == (4, 2, 2)


@models
@pytest.mark.parametrize("known", [False, True])
def test_a_list_conditioned_on_observations(make: Make, known):
    """BoTorch's list transforms the outcomes itself, and conditions each of its models by GPyTorch's `get_fantasy_model`."""
    (X, Y), (X_2, Y_2) = data(50), data(51, n=14)
    one, two = make(X, Y, outcome_transform=Standardize(1)), make(X_2, Y_2, outcome_transform=Standardize(1))
    both, test, new = ModelListGP(one, two), points(52, 3), points(53, 2)
    both.posterior(test)
    outcomes = torch.cat([values(new), -values(new)], dim=-1)
    options = {"noise": torch.tensor([[0.2, 0.3], [0.1, 0.4]]).double()} if known else {}
    found = both.condition_on_observations([new, new], outcomes, **options).posterior(test)
    for j, model in enumerate((one, two)):
        own = {}
        if known:
            own = {"noise": options["noise"][:, j : j + 1] / model.outcome_transform.stdvs**2}
        expected = model.condition_on_observations(new, outcomes[:, j : j + 1], **own).posterior(test)
        close(found.mean[..., j].reshape(3), expected.mean.squeeze(-1))
        close(found.variance[..., j].reshape(3), expected.variance.squeeze(-1))


# ------------------------------------------------------------------------- the posterior


@models
def test_samples(make: Make):
    """A sampler of BoTorch's, base samples without t-batch dimensions, an error where shapes disagree."""
    model, test = make(*data(54)), points(55, 4, 3)
    posterior = model.posterior(test)
    assert isinstance(posterior, GPyTorchPosterior)
    assert posterior.dtype == torch.float64
    draws = get_sampler(posterior, torch.Size([2048]), seed=1)(posterior)
    close(draws.mean(0), posterior.mean, rtol=0.0, atol=5e-3)
    flat = draws[:, 0, :, 0] - draws[:, 0, :, 0].mean(0)
    close(flat.mT @ flat / 2047, posterior.distribution.covariance_matrix[0], rtol=0.0, atol=2e-2)
    with pytest.raises(RuntimeError):
        posterior.rsample_from_base_samples(torch.Size([3]), torch.zeros(2, 1, 3).double())


@models
def test_a_value_does_not_depend_on_its_place_in_a_batch(make: Make):
    model, test = make(*data(56)), points(57, 6, 3)
    acquisition = qUpperConfidenceBound(model, beta=2.0, sampler=sampler(64))
    together = acquisition(test)
    close(acquisition(test.flip(0)), together.flip(0))
    for j in range(6):
        close(acquisition(test[j : j + 1]), together[j : j + 1])


# ------------------------------------------------------------------------- transforms


INPUTS = {
    "normalize": lambda: Normalize(DIM),
    "warp": lambda: Warp(
        DIM,
        indices=[0, 1],
        concentration1_prior=gpytorch.priors.LogNormalPrior(0.0, 0.5),
        concentration0_prior=gpytorch.priors.LogNormalPrior(0.0, 0.5),
        bounds=torch.tensor([[0.0, 0.0], [1.0, 1.0]]).double(),
    ).double(),
    "chained": lambda: ChainedInputTransform(
        shrink=Normalize(DIM, bounds=torch.tensor([[-1.0, 0.0], [1.0, 2.0]]).double()), normalize=Normalize(DIM)
    ),
    "perturbed": lambda: InputPerturbation(0.05 * (points(58, 3) - 0.5)),
}
OUTCOMES = {
    "plain": lambda: None,
    "standardize": lambda: Standardize(1),
    "log": lambda: Log(),
    "chained": lambda: ChainedOutcomeTransform(log=Log(), standardize=Standardize(1)),
}


@pytest.mark.sweep(4)
@ours
@pytest.mark.parametrize("outcome", OUTCOMES)
@pytest.mark.parametrize("transform", INPUTS)
def test_transforms(make: Make, transform, outcome):
    """A model with transforms equals one without on transformed data, also after conditioning and fantasies."""
    X, Y = data(59)
    Y = Y - Y.min() + 0.5
    held, (new_X, new_Y) = points(60, 4), (points(61, 3), 1 + points(62, 3)[:, :1])
    inputs, outcomes = INPUTS[transform](), OUTCOMES[outcome]()
    model = make(X, Y, input_transform=inputs, outcome_transform=outcomes)
    inputs, outcomes = INPUTS[transform](), OUTCOMES[outcome]()
    in_training = inputs.train()(X) if inputs.transform_on_train else X
    targets = Y if outcomes is None else outcomes.train()(Y)[0]
    inputs.eval()
    if outcomes is not None:
        outcomes.eval()

    def check(model: Model, plain: Model) -> None:
        posterior, expected = model.posterior(held), plain.posterior(inputs(held))
        expected = expected if outcomes is None else outcomes.untransform_posterior(expected, X=held)
        close(posterior.mean, expected.mean)
        close(posterior.variance, expected.variance)
        base = torch.randn(3, posterior.mean.shape[-2], generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        size = torch.Size([3])
        draws = (p.rsample_from_base_samples(size, base) for p in (posterior, expected))
        torch.testing.assert_close(*draws, rtol=1e-6, atol=1e-6)

    without = mapped(make, inputs if inputs.transform_on_train else torch.clone)
    plain = without(in_training, targets)
    check(model, plain)
    if transform == "perturbed":
        risk = model.posterior(held, posterior_transform=ExpectationPosteriorTransform(n_w=3)) if outcome == "plain" else None
        assert risk is None or risk.mean.shape == (4, 1)
        return  # a point stands for three, and BoTorch does not define conditioning on it
    assert torch.equal(model.train_targets, plain.train_targets)
    new = model.condition_on_observations(new_X, new_Y)
    all_Y = torch.cat([targets, new_Y if outcomes is None else outcomes(new_Y)[0]])
    check(new, without(torch.cat([in_training, inputs(new_X)]), all_Y))
    assert model.fantasize(new_X, sampler(4)).posterior(held).mean.shape == (4, 4, 1)
    model.train()
    check(model, plain)


# ------------------------------------------------------------------------- single precision


@models
@pytest.mark.filterwarnings("ignore:The model inputs are of type")
def test_single_precision(make: Make):
    """float32 data: answers in float32, within 2e-4 of those in float64; after conditioning too."""
    X, Y = data(63, n=24)
    held = points(64, 5)
    model, reference = make(X[:18].float(), Y[:18].float()), make(X[:18].float().double(), Y[:18].float().double())
    model.posterior(held.float()), reference.posterior(held)
    pairs = [(model, reference)]
    new_X, new_Y = X[18:].float(), Y[18:].float()
    pairs.append(
        (model.condition_on_observations(new_X, new_Y), reference.condition_on_observations(new_X.double(), new_Y.double()))
    )
    for small, exact in pairs:
        posterior = small.posterior(held.float())
        assert posterior.mean.dtype == posterior.variance.dtype == torch.float32
        mean, covariance = moments(small, held.float())
        expected = moments(exact, held.float().double())
        close(mean.double(), expected[0], **F32)
        close(covariance.double(), expected[1], **F32)


@ours
def test_a_float32_candidate_never_changes_a_float64_model(make: Make):
    """BoTorch's analytic acquisition functions cast their model to the candidate's dtype, in place."""
    model, held = make(*data(65)), points(66, 5)
    state, expected = copy.deepcopy(model.state_dict()), [m.clone() for m in moments(model, held)]
    candidates = points(67, 4, 1).float()
    model.posterior(candidates)
    for acquisition in (UpperConfidenceBound(model, beta=2.0), LogExpectedImprovement(model, best_f=1.0)):
        acquisition(candidates)
    for name, value in model.state_dict().items():
        assert value.dtype == state[name].dtype, name
        assert torch.equal(value, state[name]), name
    for now, then in zip(moments(model, held), expected, strict=True):
        assert torch.equal(now, then)


# ------------------------------------------------------------------------- memory

MEMORY = """
import resource, sys, warnings
sys.path[:0] = {path!r}
warnings.simplefilter("ignore")
import torch
from botorch_models import MODELS, data, points
torch.set_num_threads(1)
model = MODELS[{name!r}](*data(0, n={n}))
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
with torch.no_grad():
    posterior = model.posterior(points(1, 16))
    posterior.mean, posterior.variance
    before = peak()
    posterior = model.posterior(points(2, {arms}))
    assert posterior.mean.shape == posterior.variance.shape == ({arms}, 1)
print(peak() - before)
"""


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", OURS)
def test_memory_of_one_flat_call(name: str):
    """16,384 arms after 300 pulls: less than six matrices of arms by pulls, when the joint covariance alone is 2 GiB."""
    arms, n = 16_384, 300
    script = MEMORY.format(path=[path for path in sys.path if path], name=name, n=n, arms=arms)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=3600, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert float(done.stdout) < 6 * arms * n * 8 / 2**20
