"""The contract of ask and tell, and of saved states, on every policy of the registry in each of its modes."""

from __future__ import annotations

import gpytorch
import pytest
from contract import CASES, MARKED, NO_POINTS, NO_POSTERIOR, OPTIONS, identify

import torchbandits as tb
from torchbandits.policies import CATALOGUE, Policy, registry
from torchbandits.testing import PolicyContract


def test_every_policy_of_the_registry_is_under_this_contract():
    assert set(OPTIONS) == set(registry) == {entry.name for entry in CATALOGUE}
    assert len(registry) == len(CATALOGUE)
    assert set(registry) >= NO_POSTERIOR | NO_POINTS
    for name, factory in registry.items():
        assert getattr(tb, name) is factory, f"{name} is not public"


def test_the_modes_are_different_policies():
    assert len({repr(case.policy()) for case in CASES}) == len(CASES)


class TestEveryPolicy(PolicyContract):
    @pytest.fixture(autouse=True, params=MARKED, ids=identify)
    def of_case(self, request: pytest.FixtureRequest):
        self.case = request.param
        self.keeps_posterior = self.case.keeps_posterior
        self.learns_points = self.case.name not in NO_POINTS
        self.keeps_every_pull = self.case.name != "compressed_gp"
        self.growth_rounds = 200 if self.case.name == "auto" else 50  # its fits, rarer and rarer, sweep the table too

    def policy(self, kernel: gpytorch.kernels.Kernel) -> Policy:
        return self.case.policy(kernel)

    @pytest.mark.usefixtures("annotations_not_enforced")
    def test_bad_input_is_an_error_and_costs_nothing(self):
        super().test_bad_input_is_an_error_and_costs_nothing()

    @pytest.mark.usefixtures("annotations_not_enforced")  # beartype draws from the global generator of `random`
    def test_only_the_given_generator_is_drawn_from(self):
        super().test_only_the_given_generator_is_drawn_from()
