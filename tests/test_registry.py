"""The contract of ask and tell, and of saved states, for every policy of the registry in each of its modes."""

from __future__ import annotations

from collections.abc import Callable

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


def on_some(law: Callable[[PolicyContract], None]) -> Callable[[PolicyContract], None]:
    """A copy of the law with a separate mark; the suite's function is unchanged."""

    @pytest.mark.sweep(4)
    def marked(self: PolicyContract) -> None:
        law(self)

    return marked


@pytest.mark.sweep(6)
class TestEveryPolicy(PolicyContract):
    @pytest.fixture(autouse=True, params=MARKED, ids=identify)
    def of_case(self, request: pytest.FixtureRequest):
        self.case = request.param
        self.keeps_posterior = self.case.keeps_posterior
        self.learns_points = self.case.name not in NO_POINTS
        # A compression may drop pulls, and a policy of drifting rewards forgets those of earlier epochs.
        self.keeps_every_pull = self.case.name != "compressed_gp" and self.case.mode != "drifting"
        self.growth_rounds = 200 if self.case.name == "auto" else 50  # the fits of `auto`, ever less frequent, also sweep

    def policy(self, kernel: gpytorch.kernels.Kernel) -> Policy:
        return self.case.policy(kernel)

    @pytest.mark.usefixtures("annotations_not_enforced")
    def test_bad_input_is_an_error_and_costs_nothing(self):
        super().test_bad_input_is_an_error_and_costs_nothing()

    @pytest.mark.usefixtures("annotations_not_enforced")  # beartype draws from the global generator of `random`
    def test_only_the_given_generator_is_drawn_from(self):
        super().test_only_the_given_generator_is_drawn_from()


# Further settings of a law: the default tests run them on some of the policies.
for law in (
    "test_history_is_learned_by_index_and_by_points_in_a_run",
    "test_what_is_said_of_batch_rows_has_the_documented_shapes",
    "test_batch_rows_with_arms_of_their_own_pick_what_single_runs_pick",
    "test_batch_rows_with_kernels_of_their_own_pick_what_single_runs_pick",
    "test_a_saved_state_continues_as_the_undisturbed_bandit_does",
    "test_an_ask_that_fails_in_the_middle_leaves_no_trace",
    "test_an_observe_that_fails_in_the_middle_leaves_no_trace",
):
    setattr(TestEveryPolicy, law, on_some(getattr(PolicyContract, law)))
