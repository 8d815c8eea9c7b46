"""Bad input of single policies: the message names a valid number, box or name, and this value is accepted."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any

import gpytorch
import pytest
import torch
from problems import BOUNDED, COMMON, Problem, generator, kernel_pair, rbf

import torchbandits as tb
from torchbandits import errors

pytestmark = pytest.mark.usefixtures("annotations_not_enforced")

ARMS = Problem(seed=3, a=40).tensor


def bandit(policy: Any, arms: torch.Tensor = ARMS, rows: int = 0) -> tb.Bandit:
    return tb.Bandit(policy, arms, generator=[generator(r) for r in range(rows)] or generator(0))


def refused(call: Callable[[], Any], error: type[Exception] = errors.ArgumentError) -> str:
    with pytest.raises(error) as caught:
        call()
    assert isinstance(caught.value, errors.TorchBanditsError)
    return str(caught.value)


def number(pattern: str, message: str) -> float:
    found = re.search(pattern, message)
    assert found, f"{pattern!r} is not in the message: {message}"
    return float(found[1])


# ------------------------------------------------------------------------- features


def product() -> gpytorch.kernels.Kernel:
    return gpytorch.kernels.ProductKernel(rbf(), rbf()).double()


def on_one_feature() -> gpytorch.kernels.Kernel:
    return gpytorch.kernels.RBFKernel(active_dims=(0,)).double()


@pytest.mark.parametrize(
    ("embedding", "kernel", "works"),
    [
        ("qff", kernel_pair("matern32")[0], ["rff", "nystrom"]),
        ("qff", kernel_pair("linear")[0], ["nystrom"]),
        ("qff", product(), ["nystrom"]),
        ("rff", kernel_pair("linear")[0], ["nystrom"]),
        ("rff", on_one_feature(), ["nystrom"]),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, gpytorch.kernels.Kernel) else str(value),
)
def test_a_kernel_without_those_features(embedding: str, kernel: gpytorch.kernels.Kernel, works: list[str]):
    policy = tb.thompson_sampling(kernel, embedding=embedding, **BOUNDED)
    message = refused(lambda: bandit(policy), errors.UnsupportedError)
    assert type(kernel).__name__ in message
    for other in works:
        assert f"embedding={other!r}" in message
        bandit(tb.thompson_sampling(kernel, embedding=other, **BOUNDED)).ask()


@pytest.mark.parametrize("rows", [0, 3])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("make", [tb.rff_ucb, partial(tb.thompson_sampling, embedding="rff")], ids=["ucb", "thompson"])
def test_random_features_beyond_the_memory_budget(make: Callable[..., Any], rows: int, dtype: torch.dtype):

    def attempt(num_features: int, memory_budget: int = 40_000) -> tb.Bandit:
        policy = make(rbf().to(dtype), num_features=num_features, memory_budget=memory_budget, **BOUNDED)
        return bandit(policy, ARMS.to(dtype), rows)

    message = refused(lambda: attempt(512))
    fitting = int(number(r"at most (\d+) random features", message))
    attempt(fitting).ask()
    refused(lambda: attempt(fitting + 2))
    attempt(512, int(number(r"memory_budget=(\d+)", message))).ask()


def test_features_of_which_none_fits():
    message = refused(lambda: bandit(tb.rff_ucb(rbf(), num_features=64, memory_budget=100, **BOUNDED)))
    assert "at most" not in message, "no number of features would do"
    needed = int(number(r"memory_budget=(\d+)", message))
    bandit(tb.rff_ucb(rbf(), num_features=64, memory_budget=needed, **BOUNDED)).ask()


def test_quadrature_features_beyond_the_memory_budget():
    """The number of features follows from the range of the arms, so only a larger budget helps."""
    message = refused(lambda: bandit(tb.thompson_sampling(rbf(), embedding="qff", memory_budget=2_000, **BOUNDED)))
    needed = int(number(r"memory_budget=(\d+)", message))
    bandit(tb.thompson_sampling(rbf(), embedding="qff", memory_budget=needed, **BOUNDED)).ask()
    refused(lambda: bandit(tb.thompson_sampling(rbf(), embedding="qff", memory_budget=needed - 1, **BOUNDED)))


@pytest.mark.sweep(2)
@pytest.mark.parametrize(("lengthscale", "dim", "limit"), [(0.2, 2, 100), (0.05, 2, 500), (0.3, 3, 300), (0.5, 4, 200)])
def test_quadrature_features_beyond_the_limit(lengthscale: float, dim: int, limit: int):
    arms = Problem(seed=4, a=60, d=dim).tensor

    def attempt(num_features: int = limit, times: float = 1.0, embedding: str = "qff") -> tb.Bandit:
        options = BOUNDED | {"embedding": embedding, "num_features": num_features}
        return bandit(tb.thompson_sampling(rbf(lengthscale * times), **options), arms)

    message = refused(attempt)
    size = int(number(r"num_features=(\d+)", message))
    attempt(size).ask()
    refused(lambda: attempt(size - 1))
    attempt(times=number(r"lengthscales ([\d.e+]+) times", message)).ask()
    assert "embedding='rff'" in message
    attempt(embedding="rff").ask()


@pytest.mark.exhaustive
def test_quadrature_features_of_arms_that_span_too_much():
    def attempt(times: float = 1.0, embedding: str = "qff") -> tb.Bandit:
        kernel = rbf(0.005 * times)
        return bandit(tb.thompson_sampling(kernel, embedding=embedding, num_features=10**6, **BOUNDED), ARMS[:, :1])

    message = refused(attempt)
    attempt(number(r"lengthscales ([\d.e+]+) times", message)).ask()
    assert "embedding='rff'" in message
    assert "256" in message


# ------------------------------------------------------------------------- numbers and boxes


@pytest.mark.parametrize("noise_std", [0.01, 0.1, 3.0])
def test_an_entropy_threshold_that_keeps_everything(noise_std: float):
    def attempt(threshold: float) -> Any:
        return tb.compressed_gp(rbf(), noise_std=noise_std, entropy_threshold=threshold)

    message = refused(lambda: attempt(-20.0))
    assert "-20" in message
    least = number(r"= (-?\d+\.?\d*)\.?$", message)
    compressed = bandit(attempt(least + 1e-4))
    compressed.ask()
    refused(lambda: attempt(least - 1e-4))


def test_arms_outside_the_box_of_a_cover():
    def attempt(bounds: torch.Tensor) -> tb.Bandit:
        return bandit(tb.pi_gp_ucb(rbf(), nu=1.5, horizon=100, bounds=bounds, **BOUNDED), 3 * ARMS - 1)

    message = refused(lambda: attempt(torch.tensor([[0.0, 0.0], [1.0, 1.0]])))
    corners = [[float(x) for x in part.split(",")] for part in re.findall(r"\[([^\[\]]+)\]", message)]
    assert len(corners) >= 2, message
    attempt(torch.tensor(corners[-2:], dtype=torch.float64)).ask()


def test_a_population_larger_than_the_arm_set():
    def attempt(population: int) -> tb.Bandit:
        return bandit(tb.regularized_evolution(population=population, tournament=2))

    message = refused(lambda: attempt(41))
    assert "41" in message
    attempt(int(number(r"population=(\d+) would do", message))).ask()


@pytest.mark.sweep(6)
@pytest.mark.parametrize("max_pulls", [3, 10, 50])
@pytest.mark.parametrize("seed", range(4))
def test_a_start_that_needs_too_many_pulls(max_pulls: int, seed: int):
    """The P in the message needs no more pulls than allowed."""

    def attempt(min_batch_size: float) -> tb.Selection:
        start = tb.starts.uncertainty(min_batch_size, max_pulls=max_pulls)
        return bandit(tb.gp_bucb(rbf(0.2), initial=start, **BOUNDED), Problem(seed=seed, a=40).tensor).ask()

    message = refused(lambda: attempt(1e4))
    reached = number(r"min_batch_size=([\d.e+-]+) is reached", message)
    assert 1 <= len(attempt(reached)) <= max_pulls
    refused(lambda: attempt(1.02 * reached))


# ------------------------------------------------------------------------- names


@pytest.mark.parametrize(
    ("make", "options", "near"),
    [
        (tb.bkb, BOUNDED | {"acquisition": "ucbb"}, "ucb"),
        (tb.compressed_gp, COMMON | {"acquisition": "e1"}, "ei"),
        (tb.thompson_sampling, BOUNDED | {"embedding": "nystroem"}, "nystrom"),
        (tb.thompson_sampling, BOUNDED | {"embedding": "exakt"}, "exact"),
        (tb.thompson_sampling, BOUNDED | {"embedding": "RFF"}, "rff"),
        (tb.bkb, BOUNDED | {"acquisition": "EI"}, "ei"),
        (tb.batch_bkb, BOUNDED | {"batch_rule": "globally"}, "global"),
        (tb.gp_bucb, BOUNDED | {"batch_rule": "exact-ratio"}, "exact_ratio"),
        (tb.gp_bucb, BOUNDED | {"batch_rule": "Local"}, "local"),
        (tb.regularized_evolution, {"neighbors": "autos"}, "auto"),
    ],
    ids=lambda value: value.__name__ if callable(value) else value if isinstance(value, str) else "",
)
def test_unknown_names_suggest_the_nearest(make: Callable[..., Any], options: dict[str, Any], near: str):
    wrong = next(value for value in options.values() if isinstance(value, str))
    given = () if make is tb.regularized_evolution else (rbf(),)
    message = refused(lambda: make(*given, **options))
    assert repr(wrong) in message
    assert f"Did you mean {near!r}?" in message
    make(*given, **{name: near if value == wrong else value for name, value in options.items()})


@pytest.mark.parametrize(
    ("make", "options", "words"),
    [
        (tb.bkb, BOUNDED | {"acquisition": "ucb", "margin": 0.1}, ["margin", "ucb"]),
        (tb.bkb, BOUNDED | {"acquisition": "pi", "margin": 0.0}, ["margin", "0.0"]),
        (tb.bkb, BOUNDED | {"acquisition": "ei", "margin": -1.0}, ["margin", "-1.0"]),
        (tb.thompson_sampling, BOUNDED | {"batch_size": 0}, ["batch_size", "0"]),
        (tb.thompson_sampling, BOUNDED | {"embedding": "rff", "num_features": 33}, ["num_features", "33", "even"]),
        (tb.rff_ucb, BOUNDED | {"num_features": 0}, ["num_features", "0"]),
        (tb.pi_gp_ucb, BOUNDED | {"nu": 0.0, "horizon": 10}, ["nu", "0.0"]),
        (tb.pi_gp_ucb, BOUNDED | {"nu": 1.5, "horizon": 0}, ["horizon", "0"]),
        (tb.compressed_gp, COMMON | {"entropy_threshold": float("nan")}, ["entropy_threshold", "nan"]),
        (tb.epsilon_greedy, {"epsilon": 1.5}, ["epsilon", "1.5"]),
        (tb.uniform, {"batch_size": 0}, ["batch_size", "0"]),
        (tb.regularized_evolution, {"population": 0}, ["population", "0"]),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_options_out_of_range_name_the_option_and_what_came(
    make: Callable[..., Any], options: dict[str, Any], words: list[str]
):
    given = () if make in (tb.uniform, tb.epsilon_greedy, tb.regularized_evolution) else (rbf(),)
    message = refused(lambda: make(*given, **options))
    for word in words:
        assert word in message, message


# ------------------------------------------------------------------------- norm bounds of batch rows

OF_THREE_ROWS = {"noise_std": 0.1, "norm_bound": torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)}


@pytest.mark.sweep(5)
@pytest.mark.parametrize(
    "make",
    [
        lambda: tb.igp_ucb(rbf(), **OF_THREE_ROWS),
        lambda: tb.gp_bucb(rbf(), **OF_THREE_ROWS),
        lambda: tb.gp_ucb(rbf(), width=tb.widths.Explored(tb.widths.IGP(0.1, OF_THREE_ROWS["norm_bound"], 0.1, 1e-4))),
        lambda: tb.batch_bkb(rbf(), **OF_THREE_ROWS),
        lambda: tb.pi_gp_ucb(rbf(), nu=2.5, horizon=9, **OF_THREE_ROWS),
        lambda: tb.bpe(rbf(), horizon=9, **OF_THREE_ROWS),
        lambda: tb.lb_gp_ucb(horizon=9, **OF_THREE_ROWS),
        lambda: tb.ada_bkb(rbf(), horizon=9, **OF_THREE_ROWS),
        lambda: tb.lin_ucb(**OF_THREE_ROWS),
    ],
    ids=["igp_ucb", "gp_bucb", "explored", "batch_bkb", "pi_gp_ucb", "bpe", "lb_gp_ucb", "ada_bkb", "lin_ucb"],
)
def test_norm_bounds_of_other_batch_rows_are_refused_when_the_bandit_is_made(make: Callable[[], Any]):
    """They were errors of PyTorch at the first `ask` or `tell`."""
    for rows in (0, 2):
        message = refused(lambda rows=rows: bandit(make(), rows=rows), errors.ShapeError)
        assert "norm_bound has the shape (3,)" in message
        assert "give one number, or one per batch row" in message
    made = bandit(make(), rows=3)
    made.tell(made.ask(limit=1), torch.zeros(3, 1, dtype=torch.float64))
    assert made.ask(limit=1).index.shape == (3, 1)
