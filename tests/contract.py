"""Cases of the contract tests: every policy of the registry in each of its modes, small, with its documented exceptions."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

import gpytorch
import pytest
import torch
from problems import BOUNDED, COMMON, Problem, generator, rbf
from torch import Tensor

import torchbandits as tb
from torchbandits.policies import Policy, registry
from torchbandits.testing import play

ARMS, PROBLEM = 40, Problem(seed=3, a=40)

NEIGHBORS = torch.stack([torch.arange(ARMS).roll(shift) for shift in (-1, 1, 2)], dim=-1)
# Name of the policy -> mode -> constructor options. A policy of the registry that is missing here fails test_registry.
OPTIONS: dict[str, dict[str, dict[str, Any]]] = {
    "auto": {"": {}, "three": {"batch_size": 3}},
    "gp_ucb": {"": COMMON, "uniform start": COMMON | {"initial": tb.starts.uniform(5)}, "refit": COMMON | {"refit_every": 5}},
    "igp_ucb": {"": BOUNDED},
    "gp_bucb": {"": BOUNDED | {"ratio_threshold": 1.5}},
    "bkb": {"": BOUNDED, "ei": BOUNDED | {"acquisition": "ei"}, "pi": BOUNDED | {"acquisition": "pi"}},
    "ada_bkb": {"": BOUNDED, "shallow": BOUNDED | {"horizon": 10}},
    "batch_bkb": {
        "": BOUNDED | {"ratio_threshold": 1.5},
        "uncertainty start": BOUNDED | {"initial": tb.starts.uncertainty(0.2)},
        "refit": BOUNDED | {"refit_every": 5},
    },
    "compressed_gp": {"": COMMON, "ei": COMMON | {"acquisition": "ei"}, "pi": COMMON | {"acquisition": "pi"}},
    "mini_gp_ucb": {"": BOUNDED | {"ratio_threshold": 1.5}, "ei": BOUNDED | {"acquisition": "ei"}},
    "irgp_ucb": {"": {"noise_std": COMMON["noise_std"]}},
    "kriging_believer": {"": COMMON, "three": COMMON | {"batch_size": 3, "acquisition": "ei"}},
    "qpo": {
        "": {"noise_std": COMMON["noise_std"], "draws": 200},
        "three": {"noise_std": COMMON["noise_std"], "draws": 200, "batch_size": 3, "leaders": 20},
    },
    "lb_gp_ucb": {
        "": BOUNDED | {"horizon": 60},
        "rejecting": BOUNDED | {"horizon": 60, "delta": 0.5, "norm_bound": 0.01, "growth": 1.0},
    },
    "lse": {"": COMMON | {"level": 0.3}, "three": COMMON | {"level": 0.0, "batch_size": 3}},
    "lucb": {"": COMMON | {"k": 3, "batch_size": 1}, "two": COMMON | {"k": 2, "max_pulls": 1}},
    "pi_gp_ucb": {"": BOUNDED | {"nu": 1.5, "horizon": 100}},
    "bpe": {
        "": BOUNDED | {"horizon": 100},
        "a few batches": COMMON | {"horizon": 30, "width": tb.widths.Constant(1.0)},
        "two at once": COMMON | {"horizon": 12, "width": tb.widths.Constant(0.5), "max_batch_size": 2},
        "late": COMMON | {"horizon": 30, "width": tb.widths.Constant(1.0), "delay": 3},
    },
    "reds": {
        "": BOUNDED | {"horizon": 100},
        "a few batches": COMMON | {"horizon": 30, "first_batch": 4, "width": tb.widths.Constant(1.0)},
        "two at once": COMMON | {"horizon": 12, "width": tb.widths.Constant(0.5), "max_batch_size": 2},
        "drifting": COMMON | {"horizon": 8, "first_batch": 3, "width": tb.widths.Constant(0.6), "drift": 0.3},
    },
    "sup_kernel_ucb": {"": BOUNDED | {"horizon": 100}, "narrow": COMMON | {"horizon": 9, "width": tb.widths.Constant(0.6)}},
    "thompson_sampling": {
        "": BOUNDED,
        "nystrom": BOUNDED | {"embedding": "nystrom"},
        "qff": BOUNDED | {"embedding": "qff"},
        "rff": BOUNDED | {"embedding": "rff", "num_features": 40},
        "three": BOUNDED | {"batch_size": 3},
    },
    "lin_ucb": {"": BOUNDED, "lambda": BOUNDED | {"regularization": 0.01}},
    "cbrap": {"": BOUNDED | {"num_features": 2}, "three": BOUNDED | {"num_features": 3}},
    "soful": {"": BOUNDED | {"sketch_size": 1}, "two": BOUNDED | {"sketch_size": 2}},
    "rff_ucb": {"": BOUNDED | {"num_features": 40}},
    "uniform": {"": {}, "three": {"batch_size": 3}},
    "epsilon_greedy": {"": {}, "three": {"epsilon": 0.3, "batch_size": 3}},
    "regularized_evolution": {
        "": {"population": 8, "tournament": 3},
        "three": {"population": 5, "tournament": 2, "num_neighbors": 4, "batch_size": 3},
    },
}
NO_POSTERIOR = {
    "uniform",
    "epsilon_greedy",
    "regularized_evolution",
}  # their `posterior` raises UnsupportedError, which names policies with a posterior
NO_POINTS = {"pi_gp_ucb"}  # their `observe` by points raises UnsupportedError, which says to observe by index


@dataclass(frozen=True)
class Case:
    """A policy of the registry in one of its modes."""

    name: str
    mode: str

    def policy(self, kernel: gpytorch.kernels.Kernel | None = None) -> Policy:
        factory = registry[self.name]
        given = (kernel or rbf(),) if "kernel" in inspect.signature(factory).parameters else ()
        return factory(*given, **OPTIONS[self.name][self.mode])

    def bandit(self, pulls: int = 0, seed: int = 5) -> tb.Bandit:
        """Make a bandit on the arms of `PROBLEM`, with the first pulls told."""
        bandit = tb.Bandit(self.policy(), PROBLEM.tensor, generator=generator(seed))
        proceed(bandit, pulls)
        return bandit

    @property
    def keeps_posterior(self) -> bool:
        return self.name not in NO_POSTERIOR


CASES = [Case(name, mode) for name in registry for mode in OPTIONS.get(name, {})]
# The warning that a fit to five rewards is degenerate may be right.
FEW = pytest.mark.filterwarnings("ignore:(batch row .*)?the fit is degenerate:torchbandits.errors.DiagnosticWarning")
MARKED = [
    pytest.param(case, marks=[*([FEW] if case.mode == "refit" else []), *([pytest.mark.exhaustive] if case.mode else [])])
    for case in CASES
]


def identify(case: Case) -> str:
    return "-".join(filter(None, (case.name, case.mode)))


every_policy = pytest.mark.parametrize("case", MARKED, ids=identify)


def proceed(bandit: tb.Bandit, pulls: int, most: int = 4, **ask: Any) -> list[int]:
    """`play.proceed` on `PROBLEM`."""
    return play.proceed(bandit, PROBLEM, pulls, most, **ask)


def rewards_of(selection: tb.Selection) -> Tensor:
    return play.rewards_of(selection, PROBLEM)
