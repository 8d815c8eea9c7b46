"""The suites for users' own parts: small valid parts pass, and for each law a broken part fails."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import gpytorch
import pytest
import torch
from problems import generator
from torch import Tensor

import torchbandits as tb
from torchbandits.ingredients import Composed, Score
from torchbandits.journal import Recorder
from torchbandits.loop import Loop
from torchbandits.policies import Policy
from torchbandits.sources import ArmSource
from torchbandits.testing import ArmSourceContract, EnvironmentContract, PolicyContract, PosteriorContract
from torchbandits.types import Marginals, Selection

# ---------------------------------------------------------------------- a user's own parts


@dataclass(frozen=True)
class Pessimist(Score):
    """A score of the mean plus a third of the confidence width times the standard deviation."""

    def __call__(self, mean: Tensor, std: Tensor, width: Tensor, incumbent: Tensor) -> Tensor:
        return mean + width.unsqueeze(-1) * std / 3


@pytest.mark.usefixtures("annotations_not_enforced")
class TestOwnPolicy(PolicyContract):
    def policy(self, kernel: gpytorch.kernels.Kernel) -> Policy:
        return Composed(kernel, 0.1, tb.widths.Constant(2.0), 0.01, score=Pessimist())


@pytest.mark.exhaustive
class TestOwnPolicyOfThreeFeatures(TestOwnPolicy):
    dim = 3


class Ring(ArmSource):
    """Points on a circle, computed as they are read."""

    shape, dtype, device = torch.Size([60, 2]), torch.float64, torch.device("cpu")

    def points(self, index: Tensor) -> Tensor:
        angle = 2 * torch.pi * index.double() / 60
        return torch.stack([angle.cos(), angle.sin()], dim=-1)

    def chunk(self, part: slice) -> Tensor:
        return self.points(torch.arange(part.start, part.stop))


class TestOwnSource(ArmSourceContract):
    def source(self) -> ArmSource:
        return Ring()

    def arms(self) -> Tensor:
        angle = 2 * torch.pi * torch.arange(60).double() / 60
        return torch.stack([angle.cos(), angle.sin()], dim=-1)


class Coins(tb.environments.Environment):
    """An environment of coins, each of which pays 1 with a different probability."""

    name, arms, noise_std = "coins", torch.linspace(0, 1, 6, dtype=torch.float64).unsqueeze(-1), 0.5
    means = torch.linspace(0.1, 0.9, 6, dtype=torch.float64)

    def sample(self, index: Tensor, generators: Sequence[torch.Generator]) -> Tensor:
        rewards = torch.full(index.shape, torch.nan, dtype=torch.float64)
        flat = index.reshape(len(generators), index.shape[-1])
        for row, own in enumerate(generators):
            pulled = flat[row] >= 0
            draws = torch.rand(int(pulled.sum()), generator=own, dtype=torch.float64)
            rewards.view(flat.shape)[row, pulled] = (draws < self.means[flat[row, pulled]]).double()
        return rewards


@pytest.mark.usefixtures("annotations_not_enforced")  # beartype draws from the global generator of `random`
class TestOwnEnvironment(EnvironmentContract):
    def environment(self) -> tb.environments.Environment:
        return Coins()


class Bayes(torch.nn.Module):
    """Bayesian linear regression on features and a constant; each pull has a noise variance of 0.01."""

    def __init__(self, batch_shape: tuple[int, ...]) -> None:
        super().__init__()
        self.register_buffer("precision", torch.eye(3, dtype=torch.float64).expand(*batch_shape, 3, 3))
        self.register_buffer("moment", torch.zeros(*batch_shape, 3, dtype=torch.float64))

    def features(self, points: Tensor) -> Tensor:
        if points.shape[-1] != 2 or not bool(points.isfinite().all()):
            raise tb.errors.ArgumentError("points must be finite and have two features.")
        return torch.cat([points.double(), torch.ones_like(points[..., :1], dtype=torch.float64)], dim=-1)

    def learn(self, points: Tensor, counts: Tensor, sums: Tensor) -> None:
        z = self.features(points)
        self.precision = self.precision + (z * counts.unsqueeze(-1)).mT @ z / 0.01
        self.moment = self.moment + (z * sums.unsqueeze(-1)).sum(dim=-2) / 0.01

    def forward(self, points: Tensor) -> Marginals:
        z, covariance = self.features(points), torch.linalg.inv(self.precision)
        mean = (z @ (covariance @ self.moment.unsqueeze(-1))).squeeze(-1)
        variance = (z @ covariance * z).sum(dim=-1)
        return Marginals(mean.to(points.dtype), variance.to(points.dtype))


class TestOwnPosterior(PosteriorContract):
    def posterior(self, batch_shape: tuple[int, ...] = ()) -> Bayes:
        return Bayes(batch_shape)

    def learn(self, posterior: Any, points: Tensor, counts: Tensor, sums: Tensor, squares: Tensor) -> None:
        posterior.learn(points, counts, sums)


# ---------------------------------------------------------------------- every law can fail


def laws(contract: type) -> set[str]:
    return {name for name in dir(contract) if name.startswith("test_")}


def check_fails(contract: Any, law: str) -> None:
    """Assert that the law fails by an assertion of the suite that has a message."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(AssertionError) as failure:
            getattr(contract, law)()
    assert len(str(failure.value).split()) > 4, "an assertion must say what was expected"
    assert failure.traceback[-1].path.parent.name == "testing", "the assertion must be one of the suite"


Break = Callable[[pytest.MonkeyPatch], None]


def wrapping(target: Any, name: str, around: Callable[..., Any]) -> Break:
    """Replace a method by `around(original, self, …)`."""

    def patch(monkeypatch: pytest.MonkeyPatch) -> None:
        original = getattr(target, name)
        monkeypatch.setattr(target, name, lambda self, *args, **kwargs: around(original, self, *args, **kwargs))

    return patch


def new_ones_only(ask: Any, bandit: tb.Bandit, *args: Any, more: int | None = None, **options: Any) -> Selection:
    selection = ask(bandit, *args, more=more, **options)
    return selection if more is None else selection[-more:]


def one_more(ask: Any, bandit: tb.Bandit, limit: Any = None, **options: Any) -> Selection:
    return ask(bandit, None if limit is None else limit + 1, **options)


def whatever_is_on_offer(ask: Any, bandit: tb.Bandit, *args: Any, available: Any = None, **options: Any) -> Selection:
    return ask(bandit, *args, **options)


def rows_added(tell: Any, bandit: tb.Bandit, selection: Any, rewards: Tensor, **options: Any) -> Any:
    rewards = rewards + rewards.nan_to_num().sum(dim=0) if rewards.ndim == 2 else rewards
    return tell(bandit, selection, rewards, **options)


def generators_kept(load: Any, bandit: tb.Bandit, state: dict[str, Any]) -> tb.Bandit:
    states = [g.get_state() for g in bandit.generators]
    load(bandit, state)
    for g, kept in zip(bandit.generators, states, strict=True):
        g.set_state(kept)
    return bandit


def draws_first(ask: Any, recorder: Recorder, *args: Any, **options: Any) -> Any:
    torch.rand(1, generator=recorder.loop.state.generators[0])
    return ask(recorder, *args, **options)


def never_refused(tell: Any, bandit: tb.Bandit, *args: Any, **options: Any) -> Any:
    with contextlib.suppress(tb.errors.TorchBanditsError):
        return tell(bandit, *args, **options)


def recorded(learn: Any, loop: Loop, pulls: Any, *args: Any) -> Any:
    loop.diary = [*getattr(loop, "diary", []), pulls.sums]
    return learn(loop, pulls, *args)


def with_the_diary(state_dict: Any, loop: Loop, **options: Any) -> dict[str, Any]:
    return state_dict(loop, **options) | {"diary": getattr(loop, "diary", [])}


def both(*breaks: Break) -> Break:
    return lambda monkeypatch: [each(monkeypatch) for each in breaks] and None


def nothing_is_undone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Loop, "all_or_nothing", lambda self, work, **options: work())


def draws_from_the_global_generator(select: Any, policy: Policy, *args: Any, **options: Any) -> Any:
    torch.rand(1)
    return select(policy, *args, **options)


def padded_by_zero(best: Any, bandit: tb.Bandit, k: int = 1) -> Any:
    found = best(bandit, k)
    return replace(found, index=found.index.clamp_min(0))


def twice(observe: Any, bandit: tb.Bandit, index: Tensor, counts: Tensor, sums: Tensor, *squares: Tensor) -> Any:
    return observe(bandit, index, 2 * counts, 2 * sums, *squares)


def lower_bounds(call: Any, score: Score, mean: Tensor, std: Tensor, width: Tensor, incumbent: Tensor) -> Tensor:
    return mean - width.unsqueeze(-1) * std


BROKEN_POLICIES: dict[str, Break] = {
    "test_ask_returns_what_is_open_and_more_extends_it": wrapping(tb.Bandit, "ask", new_ones_only),
    "test_limits": wrapping(tb.Bandit, "ask", one_more),
    "test_only_arms_on_offer_are_picked": wrapping(tb.Bandit, "ask", whatever_is_on_offer),
    "test_a_score_reads_one_arm_at_a_time_and_never_falls_with_its_deviation": wrapping(Pessimist, "__call__", lower_bounds),
    "test_exact_duplicates_share_one_entry": lambda m: m.setattr("torchbandits.arms.rows.first_occurrence", lambda *_: None),
    "test_rewards_may_come_in_parts_and_in_any_order": wrapping(
        Loop, "settled", lambda settled, self, opened, *picks: (opened, settled(self, opened, *picks)[1])
    ),
    "test_what_will_never_be_told_is_forgotten": wrapping(tb.Bandit, "forget", lambda forget, self, picks: None),
    "test_pulls_that_were_never_asked_for_are_welcome": wrapping(
        Loop, "settled", lambda settled, *given: (settled(*given)[0], 0 * settled(*given)[1])
    ),
    "test_history_is_learned_by_index_and_by_points": wrapping(tb.Bandit, "observe", twice),
    "test_history_is_learned_by_index_and_by_points_in_a_run": wrapping(tb.Bandit, "observe", twice),
    "test_what_is_said_of_the_state_has_the_documented_shapes": wrapping(tb.Bandit, "best", padded_by_zero),
    "test_what_is_said_of_batch_rows_has_the_documented_shapes": wrapping(tb.Bandit, "best", padded_by_zero),
    "test_batch_rows_with_generators_of_their_own_pick_what_single_runs_pick": wrapping(tb.Bandit, "tell", rows_added),
    "test_batch_rows_with_arms_of_their_own_pick_what_single_runs_pick": wrapping(tb.Bandit, "tell", rows_added),
    "test_batch_rows_with_kernels_of_their_own_pick_what_single_runs_pick": wrapping(tb.Bandit, "tell", rows_added),
    "test_a_saved_state_continues_as_the_undisturbed_bandit_does": wrapping(tb.Bandit, "load_state_dict", generators_kept),
    "test_a_saved_state_with_picks_open_continues_as_the_undisturbed_bandit_does": wrapping(
        tb.Bandit, "load_state_dict", generators_kept
    ),
    "test_a_saved_batch_continues_as_the_undisturbed_one_does": wrapping(tb.Bandit, "load_state_dict", generators_kept),
    "test_deep_copies_and_saved_states_have_a_life_of_their_own": lambda m: m.setattr(
        tb.Bandit, "__deepcopy__", lambda self, memo: self, raising=False
    ),
    "test_states_of_other_bandits_are_refused": wrapping(tb.Bandit, "load_state_dict", lambda load, self, state: self),
    "test_bad_input_is_an_error_and_costs_nothing": wrapping(tb.Bandit, "tell", never_refused),
    "test_an_ask_that_fails_in_the_middle_leaves_no_trace": wrapping(Recorder, "ask", draws_first),
    "test_a_tell_that_fails_in_the_middle_leaves_no_trace": nothing_is_undone,
    "test_an_observe_that_fails_in_the_middle_leaves_no_trace": nothing_is_undone,
    "test_rewards_too_large_to_add_are_an_error_and_undone": wrapping(tb.Bandit, "tell", never_refused),
    "test_nothing_grows_with_pulls": both(wrapping(Loop, "learn_", recorded), wrapping(Loop, "state_dict", with_the_diary)),
    "test_only_the_given_generator_is_drawn_from": wrapping(Composed, "select", draws_from_the_global_generator),
}


def test_each_law_of_policies_is_broken_below():
    assert set(BROKEN_POLICIES) == laws(PolicyContract)


@pytest.mark.sweep(14)
@pytest.mark.usefixtures("annotations_not_enforced")
@pytest.mark.parametrize("law", BROKEN_POLICIES)
def test_a_broken_policy_fails(law: str, monkeypatch: pytest.MonkeyPatch):
    contract = TestOwnPolicy()
    BROKEN_POLICIES[law](monkeypatch)
    check_fails(contract, law)


# The properties of a policy that a suite declares must be true.
@pytest.mark.usefixtures("annotations_not_enforced")
@pytest.mark.parametrize(
    ("claim", "law"),
    [
        ({"keeps_posterior": False}, "test_what_is_said_of_the_state_has_the_documented_shapes"),
        ({"learns_points": False}, "test_history_is_learned_by_index_and_by_points"),
    ],
)
def test_a_policy_that_can_more_than_is_claimed_fails(claim: dict[str, bool], law: str):
    contract = TestOwnPolicy()
    vars(contract).update(claim)
    check_fails(contract, law)


@pytest.mark.usefixtures("annotations_not_enforced")
def test_two_pulls_of_an_arm_that_is_open_once_are_one_that_was_asked_for():
    """The suite took both pulls for asked, and failed policies that happened to have arm 0 open."""

    class Mine(PolicyContract):
        def policy(self, kernel: gpytorch.kernels.Kernel) -> Policy:
            return tb.gp_bucb(kernel, noise_std=0.1, width=tb.widths.Constant(0.3), prior_mean=-2.0)

    Mine().test_pulls_that_were_never_asked_for_are_welcome()


def test_a_score_of_one_arm_that_depends_on_the_others_fails():
    @dataclass(frozen=True)
    class Relative(Score):
        def __call__(self, mean: Tensor, std: Tensor, width: Tensor, incumbent: Tensor) -> Tensor:
            return mean - mean.mean(dim=-1, keepdim=True) + width.unsqueeze(-1) * std

    class Mine(PolicyContract):
        def policy(self, kernel: gpytorch.kernels.Kernel) -> Policy:
            return Composed(kernel, 0.1, tb.widths.Constant(2.0), 0.01, score=Relative())

    check_fails(Mine(), "test_a_score_reads_one_arm_at_a_time_and_never_falls_with_its_deviation")


@pytest.mark.usefixtures("annotations_not_enforced")
def test_a_width_that_reads_the_pulls_of_other_batch_rows_fails():
    """With one pick at a time all rows had the same number of pulls, and passed."""

    @dataclass(frozen=True)
    class Together(tb.widths.Width):
        def __call__(self, progress: tb.Progress) -> Tensor:
            return torch.log(2 + progress.pulls.amax()).expand_as(progress.pulls)

    class Mine(PolicyContract):
        def policy(self, kernel: gpytorch.kernels.Kernel) -> Policy:
            return Composed(kernel, 0.1, Together(), 0.01)

    check_fails(Mine(), "test_batch_rows_with_generators_of_their_own_pick_what_single_runs_pick")


def test_a_policy_that_drops_pulls_fails():
    class Dropping(PolicyContract):
        def policy(self, kernel: gpytorch.kernels.Kernel) -> Policy:
            return tb.compressed_gp(kernel, noise_std=0.1, delta=0.1, entropy_threshold=10.0)

    check_fails(Dropping(), "test_rewards_may_come_in_parts_and_in_any_order")
    permitted = Dropping()
    permitted.keeps_every_pull = False
    permitted.test_rewards_may_come_in_parts_and_in_any_order()


def of_source(source: ArmSource, arms: Tensor | None = None) -> ArmSourceContract:
    class Broken(ArmSourceContract):
        def source(self) -> ArmSource:
            return source

        def arms(self) -> Tensor:
            return TestOwnSource().arms() if arms is None else arms

    return Broken()


def ring(**members: Any) -> ArmSource:
    return type("Broken", (Ring,), members)()


NOT_FINITE = torch.cat([TestOwnSource().arms(), torch.full((1, 2), torch.nan, dtype=torch.float64)])
REPEATED = TestOwnSource().arms().repeat(2, 1)
BROKEN_SOURCES: dict[str, Callable[[], ArmSourceContract]] = {
    "test_shape_dtype_and_device_are_those_of_the_arms": lambda: of_source(ring(shape=torch.Size([61, 2]))),
    "test_the_arms_are_ones_that_a_bandit_takes": lambda: of_source(tb.sources.chunks(lambda: [NOT_FINITE], 61, 2), NOT_FINITE),
    "test_pieces_of_any_size_are_those_of_the_tensor": lambda: of_source(
        ring(chunks=lambda self, step, start=0, stop=None: Ring().chunks(step))
    ),
    "test_a_chunk_is_that_of_the_tensor": lambda: of_source(ring(chunk=lambda self, part: Ring().chunk(part) * (1 + 1e-15))),
    "test_points_are_those_of_the_tensor": lambda: of_source(ring(points=lambda self, index: Ring().points(index.flip(-1)))),
    "test_a_deep_copy_is_the_source_itself": lambda: of_source(ring(__deepcopy__=lambda self, memo: Ring())),
    "test_distinct_is_a_promise_that_is_kept": lambda: of_source(
        tb.sources.chunks(lambda: [REPEATED], 120, 2, distinct=True), REPEATED
    ),
    "test_a_run_is_the_one_on_the_tensor": lambda: of_source(ring(points=lambda self, index: Ring().points(index).round())),
    "test_a_run_that_keeps_no_columns_is_the_one_on_the_tensor": lambda: of_source(
        ring(chunk=lambda self, part: Ring().chunk(part) * (1 + 1e-9))
    ),
}


def test_each_law_of_sources_is_broken_above():
    assert set(BROKEN_SOURCES) == laws(ArmSourceContract)


@pytest.mark.sweep(5)
@pytest.mark.parametrize("law", BROKEN_SOURCES)
def test_a_broken_source_fails(law: str):
    check_fails(BROKEN_SOURCES[law](), law)


def coins(**members: Any) -> EnvironmentContract:
    broken = type("Broken", (Coins,), members)

    class Broken(EnvironmentContract):
        def environment(self) -> tb.environments.Environment:
            return broken()

    return Broken()


CALLS = iter(range(10**6))


def sampled(change: Callable[..., Tensor]) -> dict[str, Any]:
    """A broken `sample` that changes the rewards of a correct one."""
    return {"sample": lambda self, index, generators: change(Coins().sample(index, generators), index, generators)}


def own_reward_first(rewards: Tensor, index: Tensor, generators: Sequence[torch.Generator]) -> Tensor:
    return torch.where(index >= 0, rewards + rewards.nan_to_num().reshape(-1, rewards.shape[-1])[0].sum(), rewards)


def draws_for_all(rewards: Tensor, index: Tensor, generators: Sequence[torch.Generator]) -> Tensor:
    for g in generators:
        torch.rand(1, generator=g)
    return rewards


def late(environment: Coins, index: Tensor, generators: Sequence[torch.Generator]) -> list[Any]:
    """Tasks that share one generator, and draw when they are called."""
    shared = generator(3)
    return [lambda: float(torch.rand((), generator=shared)) for _ in range(int((index >= 0).sum()))]


def backwards(environment: Coins, index: Tensor, generators: Sequence[torch.Generator]) -> list[Any]:
    return [lambda value=value: 100.0 * value for value in range(int((index >= 0).sum()))]


BROKEN_ENVIRONMENTS: dict[str, dict[str, Any]] = {
    "test_means_are_one_number_per_arm": {"means": Coins.means[:5]},
    "test_the_optimum_is_the_largest_mean": {"optimum": torch.tensor(0.8, dtype=torch.float64)},
    "test_name_and_noise_are_given": {"noise_std": -0.5},
    "test_costs_are_positive": {"costs": torch.zeros(6)},
    "test_neighbors_are_arms": {"neighbors": torch.full((6, 2), 6)},
    "test_expected_rewards_are_those_of_the_index": {"expected": lambda self, index: self.means[index]},
    "test_regret_is_the_distance_to_the_optimum": {"regret": lambda self, index: Coins().regret(index) - 0.2},
    "test_rewards_are_shaped_like_the_index": sampled(lambda rewards, *_: rewards.nan_to_num()),
    "test_no_pull_gives_no_reward": sampled(lambda rewards, *_: rewards if rewards.numel() else torch.zeros(())),
    "test_the_same_generators_give_the_same_rewards": sampled(lambda rewards, *_: rewards + next(CALLS)),
    "test_only_the_given_generators_are_drawn_from": sampled(lambda rewards, *_: rewards + torch.rand(())),
    "test_a_row_depends_on_its_own_index_and_generator": sampled(own_reward_first),
    "test_a_row_that_pulls_nothing_leaves_its_generator_alone": sampled(draws_for_all),
    "test_rewards_average_to_their_means": sampled(lambda rewards, *_: rewards + 0.1),
    "test_there_is_one_task_per_pull": {"tasks": lambda *given: Coins.tasks(*given)[1:]},
    "test_tasks_give_the_same_rewards_in_any_order": {"tasks": late},
    "test_tasks_are_rewards_of_their_arms": {"tasks": backwards},
    "test_a_run_is_reproducible": sampled(lambda rewards, *_: rewards + next(CALLS)),
}


def test_each_law_of_environments_is_broken_above():
    assert set(BROKEN_ENVIRONMENTS) == laws(EnvironmentContract)


@pytest.mark.usefixtures("annotations_not_enforced")
@pytest.mark.parametrize("law", BROKEN_ENVIRONMENTS)
def test_a_broken_environment_fails(law: str):
    check_fails(coins(**BROKEN_ENVIRONMENTS[law]), law)


def of_other_arms(rewards: Tensor, index: Tensor, generators: Sequence[torch.Generator]) -> Tensor:
    """The first and the last arm are right, those between them are taken for each other."""
    other = torch.where((index > 0) & (index < 5), 5 - index, index)
    return Coins().sample(other, [generator(g.initial_seed()) for g in generators])


def in_the_order_of_the_arms(rewards: Tensor, index: Tensor, generators: Sequence[torch.Generator]) -> Tensor:
    """The rewards are told to other picks of the row."""
    sorted_, places = torch.where(index < 0, 9, index).sort(dim=-1)
    found = Coins().sample(sorted_.masked_fill(sorted_ == 9, -1), [generator(g.initial_seed()) for g in generators])
    return found.gather(-1, places)


def anew_at_each_call(rewards: Tensor, index: Tensor, generators: Sequence[torch.Generator]) -> Tensor:
    return Coins().sample(index, [generator(g.initial_seed()) for g in generators])


def the_last_task_first(environment: Coins, index: Tensor, generators: Sequence[torch.Generator]) -> list[Any]:
    return Coins.tasks(environment, index, generators)[::-1]


def without_noise(environment: Coins, index: Tensor, generators: Sequence[torch.Generator]) -> list[Any]:
    return [lambda arm=arm: float(Coins.means[arm]) for arm in index[index >= 0].tolist()]


@pytest.mark.usefixtures("annotations_not_enforced")
@pytest.mark.parametrize(
    ("law", "members"),
    [
        ("test_rewards_average_to_their_means", sampled(of_other_arms)),
        ("test_rewards_average_to_their_means", sampled(in_the_order_of_the_arms)),
        ("test_rewards_average_to_their_means", sampled(anew_at_each_call)),
        ("test_tasks_are_rewards_of_their_arms", {"tasks": the_last_task_first}),
        ("test_tasks_are_rewards_of_their_arms", {"tasks": without_noise}),
    ],
)
def test_an_environment_whose_rewards_are_wrong_by_less_than_their_noise_fails(law: str, members: dict[str, Any]):
    check_fails(coins(**members), law)


def bayes(**members: Any) -> PosteriorContract:
    broken = type("Broken", (Bayes,), members)

    class Broken(TestOwnPosterior):
        def posterior(self, batch_shape: tuple[int, ...] = ()) -> Bayes:
            return broken(batch_shape)

    return Broken()


def answering(change: Callable[[Bayes, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]) -> dict[str, Any]:
    """A broken prediction that changes the marginals of a correct one."""

    def forward(self: Bayes, points: Tensor) -> Marginals:
        right = Bayes.forward(self, points)
        return Marginals(*change(self, points, right.mean, right.variance))

    return {"forward": forward}


def learning(change: Callable[..., tuple[Tensor, Tensor]]) -> dict[str, Any]:
    """A broken update that changes counts and sums."""

    def learn(self: Bayes, points: Tensor, counts: Tensor, sums: Tensor) -> None:
        Bayes.learn(self, points, *change(self, counts, sums))

    return {"learn": learn}


def forgetful(self: Bayes, points: Tensor, counts: Tensor, sums: Tensor) -> None:
    """Later pulls count more than earlier ones."""
    self.moment = 0.9 * self.moment
    Bayes.learn(self, points, counts, sums)


def each_call_is_one_pull(self: Bayes, counts: Tensor, sums: Tensor) -> tuple[Tensor, Tensor]:
    return torch.ones_like(counts), sums / counts


BROKEN_POSTERIORS: dict[str, dict[str, Any]] = {
    "test_marginals_are_one_mean_and_one_variance_per_point": answering(lambda _, x, mean, var: (mean, var - 1)),
    "test_a_point_does_not_depend_on_the_points_beside_it": answering(lambda _, x, mean, var: (mean - mean.mean(), var)),
    "test_asking_changes_nothing": answering(lambda _, x, mean, var: (mean + next(CALLS), var)),
    "test_float32_points_have_float32_marginals": answering(lambda _, x, mean, var: (mean.double(), var.double())),
    "test_marginals_differentiate_in_the_points": answering(lambda _, x, mean, var: (mean.detach() + 0 * mean, var)),
    "test_points_that_are_not_finite_or_of_another_dimension_are_refused": {
        "features": lambda self, x: torch.nn.functional.pad(x.double()[..., :2], (0, 1), value=1.0)
    },
    "test_variance_falls_with_pulls": answering(lambda self, x, mean, var: (mean, 1 / var)),
    "test_the_mean_approaches_what_is_observed": answering(lambda _, x, mean, var: (mean + 0.1, var)),
    "test_the_order_of_pulls_does_not_matter": {"learn": forgetful},
    "test_sums_are_all_that_counts": learning(each_call_is_one_pull),
    "test_variances_do_not_depend_on_rewards_and_means_do_linearly": learning(lambda _, n, sums: (n + sums.square(), sums)),
    "test_batch_rows_are_independent": learning(
        lambda _, n, sums: (n, sums + (sums[..., :1, :].mean() if sums.ndim == 2 else 0))
    ),
    "test_a_saved_state_is_the_posterior": {"get_extra_state": lambda self: 0, "set_extra_state": lambda self, _: self.zero()}
    | {"zero": lambda self: setattr(self, "moment", 0 * self.moment)},
    "test_a_deep_copy_has_a_life_of_its_own": {"__deepcopy__": lambda self, memo: self},
}


def test_each_law_of_posteriors_is_broken_above():
    assert set(BROKEN_POSTERIORS) == laws(PosteriorContract)


@pytest.mark.parametrize("law", BROKEN_POSTERIORS)
def test_a_broken_posterior_fails(law: str):
    check_fails(bayes(**BROKEN_POSTERIORS[law]), law)


# ---------------------------------------------------------------------- as users run them


@pytest.mark.exhaustive
def test_pytest_collects_a_suite_in_five_lines_and_says_what_was_expected(tmp_path: Path):
    (tmp_path / "test_mine.py").write_text(
        "import torchbandits as tb\n"
        "from torchbandits.testing import PolicyContract\n\n\n"
        "class TestMine(PolicyContract):\n"
        "    def policy(self, kernel):\n"
        "        return tb.gp_ucb(kernel, noise_std=0.1)\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "limits or duplicates", "test_mine.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    assert "2 passed" in done.stdout


def test_a_suite_without_its_factory_says_which_method_is_missing():
    class Forgotten(PolicyContract):
        pass

    with pytest.raises(TypeError, match="policy"):
        Forgotten()


@pytest.mark.exhaustive
def test_pytest_is_not_needed():
    program = "import sys; import torchbandits.testing; assert 'pytest' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True)
