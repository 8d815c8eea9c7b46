"""Mean, covariance and gradients of our model equal those of BoTorch's, with the same hyper-parameters and data.

Exact models are compared with `SingleTaskGP`, in which a repeated pull is a further row; sparse ones with
`botorch_models.Dense`; and 2,000 points told one at a time with a model of all of them at once.
"""

from __future__ import annotations

import pytest
import torch
from botorch.models.model import Model
from botorch.models.transforms import Normalize, Standardize, Warp
from botorch.models.transforms.input import ChainedInputTransform
from botorch.sampling import SobolQMCNormalSampler
from botorch_models import DENSE, DIM, MODELS, NOISE_STD, REFERENCES, data, make_kernel, points, values
from torch import Tensor

pytestmark = pytest.mark.filterwarnings("ignore:Non-strict enforcement of botorch tensor conventions")
PAIRS = [pytest.param(MODELS[name], reference, id=name) for name, reference in REFERENCES.items()]
pairs = pytest.mark.parametrize(
    ("make", "reference"), [*PAIRS, pytest.param(MODELS["exact"], DENSE["exact"], id="exact, dense")]
)

dense_pairs = pytest.mark.parametrize(("make", "reference"), [pytest.param(MODELS[n], DENSE[n], id=n) for n in DENSE])


def everything(model: Model, X: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Mean, covariance, and the gradients of both, weighted at random, with respect to the points."""
    where = X.clone().requires_grad_()
    posterior = model.posterior(where)
    mean, covariance = posterior.mean.squeeze(-1), posterior.distribution.covariance_matrix
    g = torch.Generator().manual_seed(1)
    weights = [torch.randn(each.shape, generator=g, dtype=torch.float64) for each in (mean, covariance, mean)]
    gradients = [
        torch.autograd.grad((each * weight).sum(), where, retain_graph=True)[0]
        for each, weight in zip((mean, covariance, posterior.variance.squeeze(-1)), weights, strict=True)
    ]
    return mean.detach(), covariance.detach(), gradients[0], gradients[1] + gradients[2]


def equal(model: Model, reference: Model, X: Tensor, tolerance: float = 1e-8) -> None:
    found, expected = everything(model, X), everything(reference, X)
    for name, one, other in zip(("mean", "covariance", "gradient", "gradient"), found, expected, strict=True):
        limit = tolerance if name != "gradient" else 100 * tolerance
        torch.testing.assert_close(one, other, rtol=limit, atol=limit, msg=lambda text, name=name: f"{name}: {text}")


def both(pair, *arguments, **options) -> tuple[Model, Model]:
    """Both models on the same data, without shared tensors."""
    return tuple(make(*arguments, **{name: each() for name, each in options.items()}) for make in pair)


@pytest.mark.sweep(6)
@pairs
@pytest.mark.parametrize("batch_shape", [(), (2, 3)])
@pytest.mark.parametrize("known", [False, True], ids=["inferred", "known"])
def test_after_construction(make, reference, batch_shape, known):
    X, Y = data(100, n=25, repeats=8, batch_shape=batch_shape)
    g = torch.Generator().manual_seed(2)
    noise = (0.002 + 0.3 * torch.rand(Y.shape, generator=g, dtype=Y.dtype),) if known else ()
    model, expected = make(X, Y, *noise), reference(X, Y, *noise)
    equal(model, expected, points(101, *batch_shape, 6))
    equal(model, expected, points(102, 4, *(1 for _ in batch_shape), 1))
    equal(model, expected, X[..., :8, :] + 1e-3)


@pytest.mark.sweep(3)
@pairs
@pytest.mark.parametrize("known", [False, True], ids=["inferred", "known"])
@pytest.mark.parametrize("batch_shape", [(), (3,)])
def test_after_rounds_of_conditioning(make, reference, known, batch_shape):
    """Five rounds: new points, points of the data again, the same point twice in a round, neighbours at 1e-7."""
    X, Y = data(103, n=15, batch_shape=batch_shape)
    g = torch.Generator().manual_seed(3)

    def noise(n: int) -> Tensor:
        return 0.002 + 0.3 * torch.rand(*batch_shape, n, 1, generator=g, dtype=torch.float64)

    first = (noise(15),) if known else ()
    model, expected = make(X, Y, *first), reference(X, Y, *first)
    test = points(104, *batch_shape, 5)
    for round_number in range(5):
        fresh = points(110 + round_number, *batch_shape, 3)
        new_X = torch.cat([fresh, X[..., :2, :], fresh[..., :1, :], X[..., 3:4, :] + 1e-7], dim=-2)
        new_Y = values(new_X) + 0.1 * torch.randn(*new_X.shape[:-1], 1, generator=g, dtype=torch.float64)
        options = {"noise": noise(new_X.shape[-2])} if known else {}
        expected.posterior(test)
        model, expected = (each.condition_on_observations(new_X, new_Y, **options) for each in (model, expected))
        equal(model, expected, test)
    assert torch.equal(model.train_targets, expected.train_targets)


@pytest.mark.sweep(3)
@pairs
@pytest.mark.parametrize("known", [False, True], ids=["inferred", "known"])
def test_after_fantasies(make, reference, known):
    """Fantasies at batches of points, then rewards for them, then fantasies of the result."""
    X, Y = data(120, n=14)
    noise = (torch.full_like(Y, NOISE_STD**2),) if known else ()
    sampler = SobolQMCNormalSampler(torch.Size([3]), seed=4)
    new_X, test = points(121, 2, 2), points(122, 3, 2, 4)
    model, expected = (each(X, Y, *noise).fantasize(new_X, sampler) for each in (make, reference))
    equal(model, expected, test)
    expected.posterior(test)
    options = {"noise": torch.full((3, 2, 1, 1), 0.05).double()} if known else {}
    more = points(123, 3, 2, 1)
    model, expected = (each.condition_on_observations(more, values(more), **options) for each in (model, expected))
    equal(model, expected, test)


@dense_pairs
def test_hundreds_of_points(make, reference):
    """From some hundreds of columns on, products with triangular matrices skip zeros, with and without a dictionary."""
    X, Y = data(145, n=340)
    kernel = make_kernel()
    # So short that the kernel matrix of 300 points is not singular.
    kernel.base_kernel.lengthscale = torch.tensor([0.03, 0.05]).double()
    model, expected = make(X[:320], Y[:320], kernel=kernel), reference(X[:320], Y[:320], kernel=kernel)
    if make is MODELS["sparse"]:
        dictionary = points(146, 300)
        model = make(X[:320], Y[:320], kernel=kernel, dictionary=dictionary)
        expected = DENSE["sparse"](X[:320], Y[:320], kernel=kernel, dictionary=dictionary)
    equal(model, expected, points(147, 4), tolerance=1e-7)
    model, expected = (each.condition_on_observations(X[320:], Y[320:]) for each in (model, expected))
    equal(model, expected, points(147, 4), tolerance=1e-7)


TRANSFORMS = {
    "standardized": {"outcome_transform": lambda: Standardize(1)},
    "normalized": {"input_transform": lambda: Normalize(DIM)},
    "both": {"input_transform": lambda: Normalize(DIM), "outcome_transform": lambda: Standardize(1)},
    "warped": {
        "input_transform": lambda: ChainedInputTransform(
            normalize=Normalize(DIM, bounds=torch.tensor([[-0.1, -0.1], [1.2, 1.1]]).double()),
            warp=Warp(DIM, indices=[0, 1], bounds=torch.tensor([[0.0, 0.0], [1.0, 1.0]]).double()).double(),
        ),
        "outcome_transform": lambda: Standardize(1),
    },
}


@pytest.mark.sweep(2)
@pytest.mark.parametrize("name", TRANSFORMS)
@pytest.mark.parametrize(("make", "reference"), [pair for pair in PAIRS if pair.id == "exact"])
def test_through_transforms(make, reference, name):
    X, Y = data(130, n=20)
    # Outcomes in other units than the kernel's need a transform.
    offset, unit = (3, 5) if "outcome_transform" in TRANSFORMS[name] else (0, 1)
    model, expected = both((make, reference), 0.2 + 0.7 * X, offset + unit * Y, **TRANSFORMS[name])
    if "warp" in name:
        for each in (model, expected):
            each.input_transform["warp"]._set_concentration(0, torch.tensor(1.5).double())
            each.train()
    test = points(131, 2, 4)
    equal(model, expected, test)
    for k in range(3):
        new_X = 0.2 + 0.7 * torch.cat([points(132 + k, 2), X[:2]])
        new_Y = offset + unit * values(new_X)
        expected.posterior(test)
        model, expected = (each.condition_on_observations(new_X, new_Y) for each in (model, expected))
        equal(model, expected, test)
    sampler = SobolQMCNormalSampler(torch.Size([3]), seed=5)
    model, expected = (each.fantasize(points(135, 1), sampler) for each in (model, expected))
    equal(model, expected, points(136, 4))


@pairs
def test_little_noise(make, reference):
    """With little noise, repeats and near-duplicates, the models agree to the remaining precision."""
    X, Y = data(140, n=25, repeats=8)
    noise = torch.full_like(Y, 1e-6)
    equal(make(X, Y, noise), reference(X, Y, noise), points(141, 5), tolerance=1e-6)


@pytest.mark.parametrize("how", ["leverage", "bless"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
@pytest.mark.filterwarnings("ignore:The model inputs are of type")
def test_drawn_dictionaries(how, dtype):
    """A dictionary drawn from the data is kept while conditioning; given the same points, the dense model agrees."""
    X, Y = (t.to(dtype) for t in data(142, n=40, repeats=8))
    kernel = make_kernel().requires_grad_(False)
    # So long that some of the points suffice as a dictionary.
    kernel.base_kernel.lengthscale = torch.tensor([1.2, 1.5]).double()
    model = MODELS["exact"](X[:30], Y[:30], dictionary=how, kernel=kernel, generator=torch.Generator().manual_seed(8))
    process = model.process()
    chosen = process.statistics.points[process.dictionary]
    assert 2 <= len(chosen) < 24
    limit = 1e-7 if dtype == torch.float64 else 2e-4

    def check(model: Model, n: int) -> None:
        expected = DENSE["sparse"](X[:n].double(), Y[:n].double(), dictionary=chosen, kernel=kernel).posterior(points(143, 5))
        found = model.posterior(points(143, 5, dtype=dtype))
        assert found.mean.dtype == dtype
        torch.testing.assert_close(found.mean.double(), expected.mean, rtol=limit, atol=limit)
        covariances = (each.distribution.covariance_matrix.double() for each in (found, expected))
        torch.testing.assert_close(*covariances, rtol=limit, atol=limit)

    check(model, 30)
    check(model.condition_on_observations(X[30:], Y[30:]), 40)
    check(model, 30)


# ------------------------------------------------------------------------- drift

POINTS, PLACES = 2_000, 400


@pytest.mark.exhaustive
@pytest.mark.parametrize(("make", "reference"), PAIRS)
def test_two_thousand_points_one_at_a_time(make, reference):
    """400 places, each pulled again and again and not in order, beside near-duplicates: within 1e-6 of all at once."""
    g = torch.Generator().manual_seed(6)
    places = points(150, PLACES)
    places[PLACES - 20 :] = places[:20] + 1e-7
    order = torch.randint(PLACES, (POINTS,), generator=g)
    order[:: POINTS // PLACES] = torch.randperm(PLACES, generator=g)
    X = places[order]
    Y = values(X) + NOISE_STD * torch.randn(POINTS, 1, generator=g, dtype=torch.float64)
    model, test = make(X[:2], Y[:2]), points(151, 40)
    for t in range(2, POINTS):
        model = model.condition_on_observations(X[t : t + 1], Y[t : t + 1])
        if t % 100 == 0:
            model.posterior(test[:1])
        if t + 1 in (200, 1_000, POINTS):
            for refitted in (make(X[: t + 1], Y[: t + 1]), reference(X[: t + 1], Y[: t + 1])):
                with torch.no_grad():
                    found, expected = model.posterior(test), refitted.posterior(test)
                    torch.testing.assert_close(found.mean, expected.mean, rtol=0.0, atol=1e-6)
                    pair = (each.distribution.covariance_matrix for each in (found, expected))
                    torch.testing.assert_close(*pair, rtol=0.0, atol=1e-6)
    assert torch.equal(model.train_inputs[0], X)
    assert torch.equal(model.train_targets, Y.squeeze(-1))
    assert len(model._blocks) < 100  # the cost of a step does not grow with the number of steps
