"""Tables, functions and noise: the contract of `environments.base`."""

import itertools
import math

import pytest
import torch
from botorch.test_functions import synthetic as test_functions
from gpytorch.kernels import RBFKernel

from torchbandits.environments import Function, KernelExpansion, Table, registry, rkhs, synthetic
from torchbandits.environments.functions import grid
from torchbandits.environments.synthetic import ANY_DIM, FIXED_DIM
from torchbandits.errors import ArgumentError, ArmIndexError, NonFiniteError, ShapeError


def generator(seed):
    return torch.Generator().manual_seed(seed)


def table(batch=(), arms=7, dim=3, noise_std=0.5, noise="gaussian"):
    points = torch.rand(*batch, arms, dim, generator=generator(0), dtype=torch.float64)
    rewards = torch.rand(*batch, arms, generator=generator(1), dtype=torch.float64)
    return Table(points, rewards, noise_std, noise=noise)


def test_rows_with_arms_of_their_own():
    environment = table(batch=(2,))
    index = torch.tensor([[0, 1], [6, -1]])
    expected = torch.stack([environment.means[0, 0], environment.means[0, 1], environment.means[1, 6]])
    assert torch.equal(environment.expected(index)[index >= 0], expected)
    assert environment.optimum.shape == (2,)
    noiseless = Table(environment.arms, environment.means, 0.0)
    assert torch.equal(noiseless.sample(index, [generator(0)] * 2)[index >= 0], expected)


def test_moments_of_the_noise():
    index = torch.zeros(1, 200_000, dtype=torch.int64)
    gaussian, uniform = table(), table(noise="uniform")
    normal = gaussian.sample(index, [generator(0)]) - gaussian.means[0]
    assert normal.mean().abs() < 0.01
    assert normal.std() == pytest.approx(0.5, rel=0.01)
    flat = uniform.sample(index, [generator(0)]) - uniform.means[0]
    assert flat.abs().max() <= 0.5
    assert flat.std() == pytest.approx(0.5 / math.sqrt(3), rel=0.01)


def test_float32_tables_draw_the_same_noise():
    double = table()
    single = double.to(torch.float32)
    index = torch.tensor([[0, 1, 2]])
    rewards = single.sample(index, [generator(0)])
    assert rewards.dtype == torch.float32
    torch.testing.assert_close(rewards.double(), double.sample(index, [generator(0)]), rtol=0, atol=1e-6)
    assert repr(single) == "Table('table', arms=(7, 3), noise_std=0.5, noise='gaussian')"


ARMS, REWARDS = torch.ones(3, 2), torch.ones(3)


@pytest.mark.parametrize(
    ("arms", "rewards", "error", "message"),
    [
        (torch.ones(0, 2), torch.ones(0), ShapeError, r"at least one arm .* got shape \(0, 2\)"),
        (torch.ones(3, 0), torch.ones(3), ShapeError, "one feature"),
        (torch.ones(3), torch.ones(3), ShapeError, r"\.\.\. x A x d, got torch.float32 \(3,\)"),
        (ARMS.bool(), REWARDS, ShapeError, "floating-point tensor .* got torch.bool"),
        (ARMS * math.nan, REWARDS, NonFiniteError, r"arms must be finite, got nan at \(0, 0\)"),
        (ARMS, torch.tensor([0, math.inf, 0]), NonFiniteError, r"rewards must be finite, got inf at \(1,\)"),
        (ARMS, torch.ones(2), ShapeError, r"shape \(3,\), got torch.float32 \(2,\)"),
        (ARMS, REWARDS.double(), ShapeError, "rewards must be torch.float32 .* got torch.float64"),
    ],
)
def test_bad_tables_are_refused(arms, rewards, error, message):
    with pytest.raises(error, match=message):
        Table(arms, rewards, 0.1)


@pytest.mark.parametrize("noise_std", [-0.1, math.nan, math.inf])
def test_bad_noise_is_refused(noise_std):
    with pytest.raises(ArgumentError, match="noise_std must be a finite number that is not negative"):
        Table(ARMS, REWARDS, noise_std)
    with pytest.raises(ArgumentError, match="noise_std"):
        Function(lambda x: x, ARMS, noise_std)


def test_unknown_noise_suggests_the_nearest():
    with pytest.raises(ArgumentError, match="Did you mean 'gaussian'"):
        Table(ARMS, REWARDS, 0.1, noise="gausian")


@pytest.mark.parametrize(
    ("index", "error", "message"),
    [
        (torch.tensor([[7]]), ArmIndexError, "from 0 to 6 .* got 7"),
        (torch.tensor([[-2]]), ArmIndexError, "got -2"),
        (torch.tensor([[0.0]]), ShapeError, "integer tensor .* got torch.float32"),
        (torch.tensor(0), ShapeError, "batch_shape x q"),
        (torch.tensor([[0], [1]]), ShapeError, "one generator per row, 2, got 1"),
    ],
)
def test_bad_picks_are_refused_and_draw_nothing(index, error, message):
    g = generator(0)
    before = g.get_state()
    with pytest.raises(error, match=message):
        table().sample(index, [g])
    assert torch.equal(g.get_state(), before)


def test_a_function_is_evaluated_once_and_late():
    calls = []

    def counted(points):
        calls.append(points.shape)
        return points.sum(-1)

    environment = Function(counted, grid(2, 4), 0.1)
    assert calls == []
    assert torch.equal(environment.means, environment.arms.sum(-1))
    environment.sample(torch.tensor([[0]]), [generator(0)])
    assert calls == [(16, 2)]
    assert repr(environment) == "Function('function', arms=(16, 2), noise_std=0.1, noise='gaussian')"


def test_bad_functions_are_refused():
    with pytest.raises(ShapeError, match="rewards must be a tensor of shape"):
        _ = Function(lambda x: x, ARMS, 0.1).means
    with pytest.raises(NonFiniteError, match="rewards must be finite"):
        _ = Function(lambda x: x.sum(-1).log() * -math.inf, ARMS, 0.1).means


def matern32(x, y, lengthscale):
    r = math.sqrt(3) * math.dist(x, y) / lengthscale
    return (1 + r) * math.exp(-r)


def test_rkhs_draw_is_its_expansion_and_knows_its_norm():
    environment = rkhs(dim=2, points_per_dim=5, num_centers=6, lengthscale=0.3, generator=generator(8))
    again = generator(8)
    a = (2 * torch.rand(6, generator=again, dtype=torch.float64) - 1).tolist()
    centers = torch.rand(6, 2, generator=again, dtype=torch.float64).tolist()
    arms = [[i / 4, j / 4] for i, j in itertools.product(range(5), repeat=2)]
    torch.testing.assert_close(environment.arms, torch.tensor(arms, dtype=torch.float64))
    values = [sum(w * matern32(x, c, 0.3) for w, c in zip(a, centers, strict=True)) for x in arms]
    torch.testing.assert_close(environment.means, torch.tensor(values, dtype=torch.float64))
    pairs = itertools.product(zip(a, centers, strict=True), repeat=2)
    norm = math.sqrt(sum(w * v * matern32(c, e, 0.3) for (w, c), (v, e) in pairs))
    assert environment.norm_bound == pytest.approx(norm)
    assert environment.noise == "uniform"
    assert environment.noise_std == 1


def test_rkhs_defaults_and_own_kernel():
    environment = rkhs(generator=generator(0))
    assert environment.arms.shape == (900, 2)
    assert isinstance(environment.function, KernelExpansion)
    assert environment.function.centers.shape == (60, 2)
    kernel = RBFKernel().double()
    own = rkhs(kernel, dim=1, points_per_dim=4, generator=generator(0))
    assert not own.means.requires_grad
    assert kernel.raw_lengthscale.requires_grad, "the caller's kernel is left alone"
    assert own.means.abs().max() <= own.norm_bound, "|f(x)| is at most |f| √k(x, x)"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"nu": 2.0}, "nu must be 0.5, 1.5 or 2.5"),
        ({"lengthscale": 0.0}, "lengthscale must be a finite number > 0"),
        ({"dim": 0, "num_centers": 1}, "dim must be a whole number ≥ 1"),
        ({"dim": 9}, "more than 100000"),
        ({"num_centers": 0}, "num_centers must be a whole number ≥ 1"),
        ({"noise_std": -1.0}, "noise_std"),
    ],
)
def test_bad_rkhs_options(options, message):
    with pytest.raises(ArgumentError, match=message):
        rkhs(**options, generator=generator(0))


@pytest.mark.parametrize("name", [*FIXED_DIM, *ANY_DIM])
def test_every_test_function_is_scaled(name):
    environment = synthetic(name, num_arms=64)
    assert environment.means.min() == pytest.approx(-1)
    assert environment.means.max() == pytest.approx(1)
    assert environment.arms.min() >= 0
    assert environment.arms.max() <= 1
    assert len(environment.arms) == 64


@pytest.mark.parametrize("name", [*FIXED_DIM, *ANY_DIM])
def test_every_test_function_is_largest_at_its_optimiser(name):
    problem = getattr(test_functions, (FIXED_DIM | ANY_DIM)[name])()
    low, high = problem.bounds.double()
    environment = synthetic(name, num_arms=2_000)
    largest = environment.function((problem.optimizers.double() - low) / (high - low))
    assert largest.min() >= environment.optimum - 1e-6


def test_test_functions_are_turned_to_be_maximised():
    environment = synthetic("branin", num_arms=10_000, scaled=False)
    assert environment.optimum == pytest.approx(-0.397887, abs=1e-2)
    assert synthetic("hartmann", dim=6, num_arms=32).arms.shape == (32, 6)
    same = [synthetic("ackley", dim=4, num_arms=8, seed=3).arms for _ in range(2)]
    assert torch.equal(*same)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("brannin", {}, "Did you mean 'branin'"),
        ("branin", {"dim": 3}, "leave out dim"),
        ("hartmann", {"dim": 5}, "does not come with dim=5"),
        ("ackley", {"dim": 0}, "dim must be a whole number ≥ 1"),
        ("branin", {"num_arms": 0}, "num_arms"),
        ("branin", {"design": "random"}, "auto, grid, sobol"),
    ],
)
def test_bad_test_functions(name, options, message):
    with pytest.raises(ArgumentError, match=message):
        synthetic(name, **options)


def test_the_registry_names_the_factories():
    drawn = {"rkhs", "synthetic", "sin_cos", "rosenbrock", "global_optimization", "simulated_designs"}
    recorded = {"abalone", "cadata", "nas_bench_101", "nas_bench_201", "fcnet", "logistic_regression"}
    assert set(registry) == drawn | recorded
