"""Rewards, arms and noise on a scale far from that of the kernel cause one warning each; matching scales cause none."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable

import pytest
import torch
from gpytorch.kernels import RBFKernel, ScaleKernel
from problems import generator
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import torchbandits as tb
from torchbandits.errors import DiagnosticWarning
from torchbandits.policies.scale import ScaleWatch

ARMS = torch.rand(400, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
CONSTANT = tb.widths.Constant(2.0)


def smooth(x: Tensor) -> Tensor:
    return torch.sin(3 * x[..., 0]) + x[..., 1]


def rbf(lengthscale: float = 0.5) -> RBFKernel:
    kernel = RBFKernel().double()
    kernel.lengthscale = lengthscale
    return kernel


def told(
    policy: tb.Policy, arms: Tensor = ARMS, f: Callable[[Tensor], Tensor] = smooth, noise: float = 0.1, rounds: int = 45
) -> list[str]:
    """The warnings of a run."""
    bandit = tb.Bandit(policy, arms, generator=generator(0))
    own = generator(5)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for _ in range(rounds):
            selection = bandit.ask(limit=4)
            bandit.tell(
                selection, f(selection.points) + noise * torch.randn(len(selection), generator=own, dtype=torch.float64)
            )
    assert all(warning.category is DiagnosticWarning and warning.filename == __file__ for warning in said)
    return [str(warning.message) for warning in said]


MAKERS = {
    "gp_ucb": lambda kernel, **options: tb.gp_ucb(kernel, width=CONSTANT, **options),
    "batch_bkb": lambda kernel, **options: tb.batch_bkb(kernel, width=CONSTANT, **options),
}


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_a_right_scale_is_not_spoken_of(make):
    assert told(make(rbf(), noise_std=0.1)) == []


WEIGHED = {
    "window": lambda policy: tb.forgetting.window(policy, pulls=10),
    "discount": lambda policy: tb.forgetting.discount(policy, factor=0.9),
    "robust": tb.robust,
    "noise_var": lambda policy: policy,
}


@pytest.mark.sweep(4)
@pytest.mark.parametrize(("size", "wild"), [(1.0, False), (30.0, True)])
@pytest.mark.parametrize(("weigh", "variances"), [(w, name == "noise_var") for name, w in WEIGHED.items()], ids=WEIGHED)
def test_the_spread_of_rewards_that_count_less_or_no_more_is_that_of_their_averages(weigh, variances, size, wild):
    """Rewards far from 0, whose averages are not their weighted sums."""
    bandit = tb.Bandit(weigh(tb.gp_ucb(rbf(), noise_std=0.1, width=CONSTANT, prior_mean="estimate")), ARMS)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for start in range(0, 60, 4):
            index = torch.arange(start, start + 4)
            own = torch.tensor([0.01, 0.04, 0.09, 1.0], dtype=torch.float64) if variances else None
            bandit.tell(index, 90 + size * smooth(ARMS[index]), noise_var=own)
    assert ["expect 1" in str(warning.message) for warning in said] == [True] * wild, [str(w.message) for w in said]


@pytest.mark.exhaustive
def test_auto_finds_the_scales_by_itself():
    said = told(tb.auto(), 5e3 * ARMS, lambda x: 90 + 5 * smooth(x / 5e3))
    assert [text for text in said if "of the last 40 pulls" not in text] == []


OFF = {
    "rewards far from the prior mean": ({"f": lambda x: 90 + 5 * smooth(x)}, {}, 0.5, "prior_mean"),
    "rewards far wider than the kernel": (
        {"f": lambda x: 90 + 20 * smooth(x)},
        {"prior_mean": "estimate"},
        0.5,
        "ScaleKernel of outputscale",
    ),
    "rewards far narrower than the kernel": (
        {"f": lambda x: 2e-3 * smooth(x), "noise": 1e-3},
        {"noise_std": 1e-3},
        0.5,
        "a smaller outputscale",
    ),
    "more noise given than the rewards vary": (
        {"f": lambda x: 0.02 * smooth(x), "noise": 0.01},
        {"noise_std": 0.5},
        0.5,
        "noise_std",
    ),
    "features in thousands": ({"arms": 5e3 * ARMS, "f": lambda x: smooth(x / 5e3)}, {}, 1.0, "longer lengthscale"),
    "features in thousandths": ({"arms": ARMS / 1e3, "f": lambda x: smooth(1e3 * x)}, {"noise_std": 0.01}, 1.0, "shorter"),
}


@pytest.mark.sweep(1)
@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
@pytest.mark.parametrize(("run", "options", "lengthscale", "fix"), OFF.values(), ids=OFF)
def test_a_scale_that_is_far_off_is_named_once_with_its_fix(make, run, options, lengthscale, fix):
    said = told(make(rbf(lengthscale), **{"noise_std": 0.1, **options}), **run)
    assert len([text for text in said if fix in text]) == 1, said
    assert len(set(said)) == len(said)
    assert all("tb.auto()" in text for text in said)


def test_a_kernel_that_will_be_fitted_is_not_judged_before():
    kernel = ScaleKernel(rbf()).double()
    options = {"width": CONSTANT, "prior_mean": "estimate", "initial": tb.starts.uniform(20), "refit_every": 20}
    assert told(tb.gp_ucb(kernel, noise_std=0.1, **options), f=lambda x: 90 + 20 * smooth(x), rounds=16) == []


def test_a_kernel_that_has_collapsed_is_said():
    kernel = ScaleKernel(rbf()).double()
    kernel.outputscale = 1e-7
    bandit = tb.Bandit(tb.gp_ucb(kernel, noise_std=0.05, width=CONSTANT), ARMS, generator=generator(0))
    with pytest.warns(DiagnosticWarning, match="less than a thousandth of the noise's") as said:
        bandit.observe(torch.arange(20), torch.ones(20), 0.1 * smooth(ARMS[:20]))
    assert len({str(warning.message) for warning in said}) == len(said)


def test_a_dictionary_of_one_point_is_said():
    kernel = ScaleKernel(rbf(1e4)).double()
    kernel.outputscale = 1e-4
    bandit = tb.Bandit(tb.batch_bkb(kernel, noise_std=0.5, width=CONSTANT), ARMS, generator=generator(0))
    with pytest.warns(DiagnosticWarning) as said:
        bandit.observe(torch.arange(200), torch.ones(200), 0.1 * smooth(ARMS[:200]))
    assert any("holds one point after 200 pulls of 200 distinct arms" in str(warning.message) for warning in said)


def test_it_names_the_batch_row():
    bandit = tb.Bandit(tb.gp_ucb(rbf(), noise_std=0.1, width=CONSTANT), ARMS, generator=[generator(0), generator(1)])
    far = torch.tensor([[0.0], [90.0]], dtype=torch.float64)
    index = torch.arange(12).expand(2, 12)
    with pytest.warns(DiagnosticWarning, match="batch row 1: the rewards have mean 9") as said:
        bandit.observe(index, torch.ones(2, 12), smooth(ARMS[:12]) + far)
    assert len(said) == 1


def test_what_was_said_stays_said_on_other_arms_and_in_copies():
    bandit = tb.Bandit(tb.gp_ucb(rbf(), noise_std=0.1, width=CONSTANT), ARMS, generator=generator(0))
    with pytest.warns(DiagnosticWarning):
        bandit.observe(torch.arange(20), torch.ones(20), 90 + smooth(ARMS[:20]))
    other = copy.deepcopy(bandit)
    bandit.set_arms_(ARMS[:300])
    for run in (bandit, other):  # warnings are errors here
        run.observe(torch.arange(20, 200), torch.ones(180), 90 + smooth(ARMS[20:200]))


class Operations(TorchDispatchMode):
    """A mode that counts the operations of torch."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
        self.names.append(str(function))
        return function(*arguments, **(keywords or {}))


def test_between_the_checks_a_tell_costs_no_operation():
    bandit = tb.Bandit(tb.gp_ucb(rbf(), noise_std=0.1, width=CONSTANT), ARMS, generator=generator(0))
    bandit.observe(torch.arange(40), torch.ones(40), smooth(ARMS[:40]))
    watch, posterior, table = bandit.loop.state.scale, bandit.loop.state.posterior, bandit.loop.state.table
    counted = []
    for _ in range(200):
        with Operations() as operations:
            if watch.due(posterior.statistics.size, None):
                watch.look(posterior, table, 1.0)
        counted.append(len(operations.names))
    assert sum(count > 0 for count in counted) == 3  # at 8, 32 and 128 tells
    with Operations() as operations:
        ScaleWatch().look(posterior, table, 1.0)
    assert 0 < len(operations.names) < 250
