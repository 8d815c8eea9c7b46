"""The contract of environments, on every kind that the package makes."""

import math
import pickle

import pytest
import torch
from gpytorch.kernels import RBFKernel

from torchbandits import sources
from torchbandits.environments import (
    BlackBox,
    Environment,
    Function,
    Recorded,
    Table,
    global_optimization,
    rkhs,
    rosenbrock,
    simulated_designs,
    sin_cos,
    synthetic,
)
from torchbandits.environments.functions import grid
from torchbandits.testing import EnvironmentContract


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def table(*batch: int, noise: str = "gaussian", noise_std: float = 0.5, dtype: torch.dtype = torch.float64) -> Table:
    points = torch.rand(*batch, 7, 3, generator=generator(0), dtype=dtype)
    rewards = torch.rand(*batch, 7, generator=generator(1), dtype=dtype)
    near = None if batch else torch.stack([torch.arange(7).roll(1), torch.full((7,), -1)], dim=-1)
    return Table(points, rewards, noise_std, noise=noise, costs=1 + rewards, neighbors=near)


def recorded(dtype: torch.dtype) -> Recorded:
    records = torch.rand(20, 4, generator=generator(1), dtype=dtype)
    missing = torch.rand(20, 4, generator=generator(2)) < 0.4
    missing[:, 2] = False
    return Recorded(torch.rand(20, 3, dtype=dtype, generator=generator(3)), records.masked_fill(missing, torch.nan))


def measure(point: torch.Tensor, seed: int = 0) -> float:
    return float(point.sum()) + (seed % 1000) / 1000


def black_box(seeded: bool) -> BlackBox:
    return BlackBox(measure, grid(2, 4), name="measure", seeded=seeded, costs=torch.arange(1.0, 17.0))


AXIS = torch.linspace(0, 1, 5, dtype=torch.float64)
ENVIRONMENTS = {
    "table": table,
    "uniform table": lambda: table(noise="uniform"),
    "float32 table": lambda: table(dtype=torch.float32),
    "noiseless table": lambda: table(noise_std=0.0),
    "rows of tables": lambda: table(2),
    "rows and rows of tables": lambda: table(2, 3),
    "table over a source": lambda: Table(sources.grid([AXIS, AXIS]), torch.linspace(-1, 1, 25).double(), 0.1),
    "function": lambda: Function(lambda x: x.sum(-1), grid(2, 4), 0.5),
    "function over a source": lambda: Function(lambda x: x.sum(-1), sources.grid([AXIS, AXIS]), 0.5),
    "recorded": lambda: recorded(torch.float64),
    "recorded float32": lambda: recorded(torch.float32),
    "black box": lambda: black_box(seeded=False),
    "random black box": lambda: black_box(seeded=True),
    "rkhs": lambda: rkhs(dim=1, points_per_dim=9, generator=generator(3)),
    "rkhs of a kernel": lambda: rkhs(RBFKernel().double(), dim=1, points_per_dim=9, generator=generator(3)),
    "branin": lambda: synthetic("branin", num_arms=16),
    "hartmann": lambda: synthetic("hartmann", dim=3, num_arms=16),
    "sin_cos": lambda: sin_cos(num_arms=25),
    "rosenbrock": lambda: rosenbrock(points_per_dim=5),
    "borehole": lambda: simulated_designs("borehole", num_arms=50),
    "ackley": lambda: global_optimization("ackley"),
}


@pytest.mark.sweep(8)
class TestEveryEnvironment(EnvironmentContract):
    @pytest.fixture(autouse=True, params=ENVIRONMENTS)
    def of_kind(self, request: pytest.FixtureRequest):
        self.kind = request.param
        if self.kind.startswith("recorded"):
            self.samples = 0  # each arm has its own records, and noise_std is that of all records

    def environment(self) -> Environment:
        return ENVIRONMENTS[self.kind]()

    @pytest.mark.usefixtures("annotations_not_enforced")  # beartype draws from the global generator of `random`
    def test_only_the_given_generators_are_drawn_from(self):
        super().test_only_the_given_generators_are_drawn_from()

    def test_means_have_the_dtype_of_the_arms(self):
        environment = self.environment()
        assert environment.means.dtype == environment.arms.dtype

    def test_rewards_are_known_but_for_a_black_box(self):
        environment = self.environment()
        assert environment.means.isnan().any() == isinstance(environment, BlackBox)
        assert math.isnan(environment.noise_std) == isinstance(environment, BlackBox)


@pytest.mark.parametrize("kind", ["branin", "hartmann", "ackley", "sin_cos", "rosenbrock", "borehole", "rkhs", "recorded"])
def test_a_pickled_environment_is_the_same(kind):
    environment = ENVIRONMENTS[kind]()
    copied = pickle.loads(pickle.dumps(environment))
    index = torch.arange(6)
    torch.testing.assert_close(copied.means, environment.means, rtol=0, atol=0)
    assert torch.equal(copied.sample(index, [generator(4)]), environment.sample(index, [generator(4)]))
