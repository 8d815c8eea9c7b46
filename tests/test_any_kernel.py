"""Any GPyTorch kernel: every policy of the registry that takes one, against dense numpy with that kernel.

Kernels that are not stationary are included: low rank (linear, polynomial), values far from 1, products and sums on parts of
the features, and a kernel of the user's own on bits. Forty pulls among arms with exact duplicates; picks equal those of the
naive loops.
"""

from __future__ import annotations

import importlib.util
import inspect
import math
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import gpytorch
import numpy as np
import oracles
import oracles_compressed
import oracles_partitioned
import pytest
import torch
from problems import BOUNDED, COMMON, DELTA, NOISE_STD, NORM_BOUND, Problem, generator, whole
from test_laws import F64, dictionary_of, oracle_at, oracle_run, sums_of
from tolerances import Tolerance, assert_close

import torchbandits as tb
from torchbandits import errors
from torchbandits.policies import registry

EXAMPLE = Path(__file__).parent.parent / "docs" / "examples" / "any_kernel.py"
PULLS, DIM = 40, 3


def load_example() -> Any:
    spec = importlib.util.spec_from_file_location("any_kernel", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


example = load_example()

# ------------------------------------------------------------------------- kernels, in GPyTorch and in numpy


def value(number: float | list[float]) -> torch.Tensor:
    return torch.tensor(number, dtype=torch.float64)


def made(kernel: gpytorch.kernels.Kernel, **parameters: float | list[float]) -> gpytorch.kernels.Kernel:
    kernel = kernel.double()
    for name, number in parameters.items():
        setattr(kernel, name, value(number))
    return kernel


def polynomial(power: int, offset: float) -> oracles.KernelFunction:
    return lambda x, y: ((x[:, None, :] * y[None, :, :]).sum(-1) + offset) ** power


def periodic(lengthscale: float, period: float) -> oracles.KernelFunction:
    return lambda x, y: np.exp(-2 * (np.sin(np.pi * (x[:, None] - y[None]) / period) ** 2).sum(-1) / lengthscale)


def tanimoto(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    out = np.empty((len(x), len(y)))
    for i, j in np.ndindex(out.shape):
        either = ((x[i] + y[j]) > 0).sum()
        out[i, j] = (x[i] * y[j]).sum() / either if either else 1.0
    return out


def spherical(lengthscale: float, constant: float) -> oracles.KernelFunction:
    """Spherical kernel from the angle between two points on the sphere; the plane gives the sine of half the angle."""

    def kernel(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        x, y = (x - 0.5) / lengthscale, (y - 0.5) / lengthscale
        distance = ((x[:, None, :] - y[None, :, :]) ** 2).sum(-1)
        stretch = (1 + (x**2).sum(-1))[:, None] * (1 + (y**2).sum(-1))[None]
        return constant + (1 - constant) * (1 - 2 * distance / stretch)

    return kernel


def on(features: list[int], kernel: oracles.KernelFunction) -> oracles.KernelFunction:
    return lambda x, y: kernel(x[:, features], y[:, features])


ARD = [0.3, 0.9, 2.0]
RBF, MATERN, SCALED = gpytorch.kernels.RBFKernel, gpytorch.kernels.MaternKernel, gpytorch.kernels.ScaleKernel
LINEAR, POLYNOMIAL, PERIODIC = (getattr(gpytorch.kernels, f"{name}Kernel") for name in ("Linear", "Polynomial", "Periodic"))
STATIONARY = ["matern12", "matern32", "matern52", "ard"]
KERNELS: dict[str, tuple[Callable[[], gpytorch.kernels.Kernel], oracles.KernelFunction]] = {
    "matern12": (lambda: made(MATERN(0.5), lengthscale=0.5), oracles.matern(0.5, 0.5)),
    "matern32": (lambda: made(MATERN(1.5), lengthscale=0.5), oracles.matern(1.5, 0.5)),
    "matern52": (lambda: made(MATERN(2.5), lengthscale=0.5), oracles.matern(2.5, 0.5)),
    "ard": (lambda: made(MATERN(1.5, ard_num_dims=3), lengthscale=[ARD]), oracles.matern(1.5, np.array(ARD))),
    "linear": (lambda: made(LINEAR(), variance=2.0), oracles.linear(2.0)),
    "quadratic": (lambda: made(POLYNOMIAL(power=2), offset=1.0), polynomial(2, 1.0)),
    "cubic": (lambda: made(POLYNOMIAL(power=3), offset=3.0), polynomial(3, 3.0)),
    "periodic": (
        lambda: made(PERIODIC(), lengthscale=2.0, period_length=0.7) * made(RBF(), lengthscale=1.0),
        lambda x, y: periodic(2.0, 0.7)(x, y) * oracles.rbf(1.0)(x, y),
    ),
    "sum": (
        lambda: made(SCALED(made(RBF(), lengthscale=0.4)), outputscale=2.5) + made(LINEAR(), variance=0.5),
        lambda x, y: oracles.rbf(0.4, 2.5)(x, y) + oracles.linear(0.5)(x, y),
    ),
    "three linear": (
        lambda: made(LINEAR(), variance=2.0) * made(LINEAR(), variance=0.5) * made(LINEAR(), variance=1.5),
        lambda x, y: 1.5 * oracles.linear(1.0)(x, y) ** 3,
    ),
    "active": (
        lambda: made(RBF(active_dims=[0]), lengthscale=0.3) * made(MATERN(1.5, active_dims=[1, 2]), lengthscale=0.6),
        lambda x, y: on([0], oracles.rbf(0.3))(x, y) * on([1, 2], oracles.matern(1.5, 0.6))(x, y),
    ),
    "one feature": (lambda: made(MATERN(2.5, active_dims=[2]), lengthscale=0.3), on([2], oracles.matern(2.5, 0.3))),
    "spherical linear": (
        lambda: made(tb.SphericalLinearKernel(value([[0.0] * DIM, [1.0] * DIM])), fraction=0.4, constant=0.3),
        spherical(math.sqrt(0.4 * 0.75), 0.3),
    ),
    "tanimoto": (lambda: example.TanimotoKernel().double(), tanimoto),
}


def problem_of(kernel_name: str) -> Problem:
    """Arms with 12 exact duplicates, in the unit cube or of bits; the zero fingerprint twice."""
    problem = Problem(seed=11, a=70, d=DIM, duplicates=12)
    if kernel_name == "tanimoto":
        rng = np.random.default_rng(12)
        problem.arms = (rng.uniform(size=(70, 10)) < 0.3).astype(float)
        problem.arms[[5, 40]] = 0
    return problem


# ------------------------------------------------------------------------- policies

START = {"initial": tb.starts.uniform(4)}
# Name of each case -> name of the factory, options, and kernels that it is tested with (None: all).
POLICIES: dict[str, tuple[str, dict[str, Any], list[str] | None]] = {
    "gp_ucb": ("gp_ucb", COMMON, None),
    "igp_ucb": ("igp_ucb", BOUNDED, None),
    "gp_bucb": ("gp_bucb", BOUNDED | {"ratio_threshold": 1.5}, None),
    "bkb": ("bkb", BOUNDED | {"oversampling": 2.0}, None),
    "batch_bkb": ("batch_bkb", BOUNDED | {"oversampling": 2.0, "ratio_threshold": 1.5}, None),
    "compressed_gp": ("compressed_gp", COMMON | START, None),
    "compressed_gp ei": ("compressed_gp", COMMON | START | {"acquisition": "ei"}, None),
    "compressed_gp pi": ("compressed_gp", COMMON | START | {"acquisition": "pi"}, None),
    "thompson_sampling": ("thompson_sampling", BOUNDED, None),
    "thompson_sampling nystrom": ("thompson_sampling", BOUNDED | {"embedding": "nystrom"}, None),
    "mini_gp_ucb": ("mini_gp_ucb", BOUNDED | {"ratio_threshold": 1.5}, None),
    "bpe": ("bpe", BOUNDED | {"horizon": 60}, None),
    "reds": ("reds", BOUNDED | {"horizon": 60}, None),
    "irgp_ucb": ("irgp_ucb", {"noise_std": NOISE_STD}, None),
    "kriging_believer": ("kriging_believer", COMMON, None),
    "lse": ("lse", COMMON | {"level": 0.3}, None),
    "lucb": ("lucb", COMMON | {"k": 3}, None),
    "qpo": ("qpo", {"noise_std": NOISE_STD, "draws": 50}, None),
    "sup_kernel_ucb": ("sup_kernel_ucb", BOUNDED | {"horizon": 60}, None),
    "ada_bkb": ("ada_bkb", BOUNDED | {"horizon": None}, None),
    "pi_gp_ucb": ("pi_gp_ucb", BOUNDED | {"nu": 1.5, "horizon": 50}, STATIONARY),
}
SPECTRAL = {"rff_ucb"}  # policies that refuse kernels without a known spectrum
OF_LENGTHSCALE = {"lb_gp_ucb"}  # policies that refuse kernels other than RBF and Matérn: see their own tests
UNIT_LAMBDA = {"igp_ucb", "pi_gp_ucb"}
SAMPLED = {"bkb", "batch_bkb", "ada_bkb", "thompson_sampling nystrom"}
NAIVE = ["gp_ucb", "igp_ucb", "gp_bucb", "bkb", "batch_bkb"]
PAIRS = [
    pytest.param(policy, kernel, id=f"{policy}-{kernel}")
    for policy, (name, _, kernels) in POLICIES.items()
    for kernel in KERNELS
    if kernel in (kernels or KERNELS)
]


def run_of(policy: str, kernel_name: str, seed: int = 13) -> tuple[Problem, tb.Bandit, list[list[int]]]:
    name, options, _ = POLICIES[policy]
    problem = problem_of(kernel_name)
    bandit = tb.Bandit(registry[name](KERNELS[kernel_name][0](), **options), problem.tensor, generator=generator(seed))
    return problem, bandit, problem.play(bandit, PULLS)


def lambda_of(policy: str) -> float:
    return 1.0 if policy in UNIT_LAMBDA else NOISE_STD**2


def test_every_policy_with_a_kernel_is_here():
    takes = {name for name, factory in registry.items() if "kernel" in inspect.signature(factory).parameters}
    assert takes <= {name for name, _, _ in POLICIES.values()} | SPECTRAL | OF_LENGTHSCALE


@pytest.mark.parametrize("kernel_name", KERNELS)
def test_the_oracles_speak_of_the_same_kernels(kernel_name):
    """Kernels of package and oracle agree, also for single points, for pairs, and for a set of points with itself."""
    theirs, ours = KERNELS[kernel_name][0]().requires_grad_(False), KERNELS[kernel_name][1]
    x = problem_of(kernel_name).arms
    rtol = 1e-6 if kernel_name == "matern12" else 1e-9  # GPyTorch's distances lose half the digits near 0
    K = ours(x, x[:20])
    np.testing.assert_allclose(theirs(torch.as_tensor(x), torch.as_tensor(x[:20])).to_dense().numpy(), K, rtol=rtol)
    pairs = theirs(torch.as_tensor(x[:20]), torch.as_tensor(x[20:40]), diag=True).numpy()
    np.testing.assert_allclose(pairs, np.diag(ours(x[:20], x[20:40])), rtol=1e-9)
    assert (np.linalg.eigvalsh(ours(x, x)) > -1e-10 * np.diag(ours(x, x)).max()).all()


# ------------------------------------------------------------------------- the posterior after a run


def compressed_run(policy: str, kernel: oracles.KernelFunction, problem: Problem, picks: list[int]) -> Any:
    """Run the naive loop on the given picks, which must equal the loop's own picks after the uniform start."""
    acquisition = policy.partition(" ")[2] or "ucb"
    margin, lam = (NOISE_STD if acquisition == "pi" else 0.0), lambda_of(policy)
    threshold = oracles_compressed.threshold_of(0.1, lam)
    naive = oracles_compressed.Compressed(problem.arms, kernel, lam, threshold, acquisition, margin, DELTA)
    for t, arm in enumerate(picks):
        assert t < START["initial"].size or arm == naive.pick(), f"pick {t}"
        naive.tell(arm, problem.reward(t, arm))
    return naive


@pytest.mark.sweep(6)
@pytest.mark.parametrize(("policy", "kernel_name"), [pair for pair in PAIRS if pair.values[0] != "pi_gp_ucb"])
def test_a_run_is_that_of_the_oracle(policy, kernel_name):
    """The final posterior agrees, and so does every pick of a policy that has a naive loop."""
    problem, bandit, batches = run_of(policy, kernel_name)
    picks, copies = [arm for batch in batches for arm in batch], oracles.first_copies(problem.arms)
    assert all(copies[arm] == arm for arm in picks)
    kernel = KERNELS[kernel_name][1]
    counts = np.bincount(picks, minlength=problem.a)
    if policy.startswith("compressed_gp"):
        naive = compressed_run(policy, kernel, problem, picks)
        expected, counts = naive.posterior(), naive.counts()
        assert 0 < counts.sum() <= PULLS
    else:
        S = dictionary_of(bandit) if policy in SAMPLED else None
        expected = oracle_at(problem.arms, problem, kernel, sums_of(problem, picks), lambda_of(policy), S=S)
    if policy in NAIVE:
        assert batches == oracle_run(policy, problem, kernel, PULLS, seed=13).picks
    scale = float(oracles.diagonal(kernel, problem.arms).max())
    got = bandit.posterior(problem.tensor)
    assert_close(got.variance, expected.variance, F64, scale, what="variance")
    assert_close(got.mean, expected.mean, Tolerance(1e-8, 1e-8), math.sqrt(scale), what="mean")
    np.testing.assert_array_equal(bandit.counts.numpy(), counts[copies])


@pytest.mark.sweep(1)
@pytest.mark.parametrize("kernel_name", STATIONARY)
def test_the_posteriors_of_cells_are_those_of_the_oracle(kernel_name):
    problem = problem_of(kernel_name)
    kernel, kernel_np = KERNELS[kernel_name]
    naive = oracles_partitioned.Partitioned(problem.arms, kernel_np, 1.5, 50, NOISE_STD, NORM_BOUND, DELTA)
    policy = registry["pi_gp_ucb"](kernel(), **POLICIES["pi_gp_ucb"][1])
    bandit = tb.Bandit(policy, problem.tensor, generator=generator(13))
    for t in range(PULLS):
        selection = bandit.ask()
        assert selection.index.tolist() == [naive.choose()]
        reward = problem.rewards(t, selection.index)
        naive.tell(int(selection.index), float(reward))
        bandit.tell(selection, reward)
    got = bandit.posterior(problem.tensor)
    for arm in range(problem.a):
        means, variance = naive.marginals(problem.arms[arm])
        assert_close(got.variance[arm], variance, F64, what="variance")
        assert min(abs(float(got.mean[arm]) - mean) for mean in means) < 1e-8


# ------------------------------------------------------------------------- and the rest of the surface


@pytest.mark.sweep(6)
@pytest.mark.parametrize("kernel_name", KERNELS)
@pytest.mark.parametrize("policy", ["gp_bucb", "batch_bkb", "thompson_sampling nystrom"])
def test_large_histories_and_open_batches(policy, kernel_name):
    """The posterior is the oracle's after history of every arm (the dictionary by BLESS) and a batch of hallucinations."""
    problem = problem_of(kernel_name)
    name, options, _ = POLICIES[policy]
    kernel, kernel_np = KERNELS[kernel_name]
    bandit = tb.Bandit(registry[name](kernel(), **options), problem.tensor, generator=generator(15))
    u = np.unique(oracles.first_copies(problem.arms))
    n = 1.0 + np.arange(len(u)) % 4
    s = n * np.array([problem.reward(t, arm) for t, arm in enumerate(u)])
    bandit.observe(torch.as_tensor(u), torch.as_tensor(n), torch.as_tensor(s))
    S = dictionary_of(bandit) if policy in SAMPLED else None
    scale, lam = float(oracles.diagonal(kernel_np, problem.arms).max()), lambda_of(policy)
    expected = oracle_at(problem.arms, problem, kernel_np, (u, n, s), lam, S=S)
    got = bandit.posterior(problem.tensor)
    assert_close(got.variance, expected.variance, F64, scale, what="variance")
    assert_close(got.mean, expected.mean, Tolerance(1e-8, 1e-8), math.sqrt(scale), what="mean")
    if policy.startswith("thompson"):
        return
    batch = bandit.ask(more=6).index.tolist()
    pending = np.array([float(batch.count(arm)) for arm in u])
    if policy in SAMPLED:
        variance = expected.given_pulls(u, pending)
    else:
        variance = oracle_at(problem.arms, problem, kernel_np, (u, n + pending, s), lam).variance
    assert_close(bandit.posterior(problem.tensor).variance, variance, F64, scale, what="hallucinated variance")


@pytest.mark.sweep(2)
@pytest.mark.parametrize("kernel_name", ["linear", "cubic", "tanimoto", "sum"])
def test_draws_over_many_arms_need_no_spectrum(kernel_name):
    """More than 2,000 arms and a kernel without Fourier features: draws whose mean and spread are those of the posterior."""
    kernel, rng = KERNELS[kernel_name][0](), np.random.default_rng(16)
    arms = rng.uniform(size=(2_100, DIM)) if kernel_name != "tanimoto" else (rng.uniform(size=(2_100, 24)) < 0.3).astype(float)
    policy = tb.thompson_sampling(kernel, width=tb.widths.Constant(1.0), noise_std=NOISE_STD)
    bandit = tb.Bandit(policy, torch.as_tensor(arms), generator=generator(17))
    for _ in range(5):
        selection = bandit.ask()
        bandit.tell(selection, torch.zeros(1, dtype=torch.float64))
    draws = whole(bandit.loop.state.draws.draw([600], torch.ones((), dtype=torch.float64), [generator(18)]))
    marginals = bandit.posterior(torch.as_tensor(arms))
    std = marginals.variance.sqrt()
    seen = std > 1e-6 * std.max()
    z = ((draws - marginals.mean) / std)[:, seen]
    assert float(z.mean(dim=0).abs().max()) < 6 / math.sqrt(600)
    assert float((z.std(dim=0) - 1).abs().max()) < 6 / math.sqrt(2 * 600)


@pytest.mark.parametrize("kernel_name", ["linear", "cubic", "periodic", "tanimoto"])
def test_spectral_features_refuse_kernels_without_a_known_spectrum(kernel_name):
    kernel, arms = KERNELS[kernel_name][0](), problem_of(kernel_name).tensor
    makers = [partial(tb.thompson_sampling, embedding=e) for e in ("rff", "qff")]
    makers += [registry[name] for name in SPECTRAL & set(registry)]
    for make in makers:
        with pytest.raises(errors.UnsupportedError, match=type(kernel).__name__):
            tb.Bandit(make(kernel, **BOUNDED), arms, generator=generator(0))


@pytest.mark.sweep(1)
@pytest.mark.parametrize("kernel_name", ["matern12", "matern52", "ard", "linear", "cubic"])
@pytest.mark.parametrize("policy", ["gp_ucb", "batch_bkb"])
def test_single_precision(policy, kernel_name):
    """float32 arms: factors stay float64, and the posterior differs from the oracle's by at most 1e-4 of the prior variance."""
    problem = problem_of(kernel_name)
    problem.arms = problem.arms.astype(np.float32).astype(float)
    name, options, _ = POLICIES[policy]
    bandit = tb.Bandit(registry[name](KERNELS[kernel_name][0](), **options), problem.tensor.float(), generator=generator(19))
    picks = [arm for batch in problem.play(bandit, PULLS) for arm in batch]
    S = dictionary_of(bandit) if policy in SAMPLED else None
    kernel_np = KERNELS[kernel_name][1]
    expected = oracle_at(problem.arms, problem, kernel_np, sums_of(problem, picks), NOISE_STD**2, S=S)
    scale = float(oracles.diagonal(kernel_np, problem.arms).max())
    assert_close(bandit.posterior(problem.tensor.float()).variance, expected.variance, Tolerance(0, 1e-4), scale)


@pytest.mark.exhaustive
def test_the_example_prints_a_table(capsys):
    example.NUM_MOLECULES, example.NUM_FAMILIES, example.PULLS, example.SEEDS = 60, 10, 12, 2
    example.main()
    out = capsys.readouterr().out.splitlines()
    assert len(out) == 2 + len(example.kernels()) + 1
    assert {line.split("  ")[0] for line in out[2:]} == {*example.kernels(), "(uniform)"}


# ------------------------------------------------------------------------- functions that are no kernels


class Own(gpytorch.kernels.Kernel):
    """A kernel of the user's own: right, or with a mistake."""

    def __init__(self, mistake: str) -> None:
        super().__init__()
        self.mistake = mistake

    def forward(self, x1: torch.Tensor, x2: torch.Tensor, diag: bool = False, **params: Any) -> torch.Tensor:
        left, right = 1 + x1[..., 0].abs(), 1 + x2[..., 0].abs()
        if diag:
            return left * right * (2 if self.mistake == "diagonal" else 1)
        away = (x1.unsqueeze(-2) - x2.unsqueeze(-3)).abs().sum(dim=-1)
        decay = torch.exp(-away) * (away < (1.0 if self.mistake == "negative" else 10.0))
        return left.unsqueeze(-1) * (1 if self.mistake == "uneven" else right.unsqueeze(-2)) * decay


@pytest.mark.sweep(4)
@pytest.mark.parametrize(
    ("mistake", "says"),
    [("none", None), ("negative", "eigenvalue of −"), ("uneven", "differ by up to"), ("diagonal", "with diag=True differs")],
)
@pytest.mark.parametrize("rows", [(), (2,)])
def test_a_function_that_is_no_kernel_is_noticed(mistake: str, says: str | None, rows: tuple[int, ...]):
    """At the eighth tell, and once; the posterior of such a function is meaningless, and nothing else said so."""
    problem = Problem(seed=2, a=40, d=2)
    generators = [generator(seed) for seed in range(2)] if rows else generator(0)
    bandit = tb.Bandit(tb.gp_ucb(Own(mistake).double(), noise_std=1.5), problem.tensor, generator=generators)
    index, found = torch.randperm(40, generator=generator(1))[:32].expand(*rows, 32), []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", errors.DiagnosticWarning)
        for pull in range(32):
            bandit.tell(index[..., pull : pull + 1], torch.as_tensor(problem.f)[index[..., pull : pull + 1]])
    found = [str(warning.message) for warning in caught if "not a covariance" in str(warning.message)]
    assert len(found) == (says is not None)
    assert says is None or says in found[0]


def test_the_rounding_of_distances_is_no_flaw_of_a_kernel():
    """GPyTorch's k(x, y) and k(y, x) differ by 1e-5 between points that nearly coincide and far from all others."""
    arms = 1e3 * Problem(seed=2, a=60, d=2).tensor
    arms[30:40] = arms[:10] * (1 + 1e-12)
    kernel = gpytorch.kernels.MaternKernel(nu=0.5) * gpytorch.kernels.PeriodicKernel()
    bandit = tb.Bandit(tb.gp_ucb(kernel.double(), noise_std=0.3), arms)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", errors.DiagnosticWarning)
        for arm in range(40):
            bandit.tell(torch.tensor([arm]), torch.tensor([math.sin(arm)], dtype=torch.float64))
    assert not [warning for warning in caught if "not a covariance" in str(warning.message)]


def test_a_kernel_of_several_outputs_is_refused():
    kernel = gpytorch.kernels.MultitaskKernel(gpytorch.kernels.RBFKernel(), num_tasks=2).double()
    with pytest.raises(errors.ShapeError, match=r"MultitaskKernel\) has 2 values for an arm, .* torchbandits.TaskKernel"):
        tb.Bandit(tb.gp_ucb(kernel, **COMMON), torch.rand(20, DIM, dtype=torch.float64))
