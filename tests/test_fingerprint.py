"""Fingerprints of policies, functions, kernels, arms and environments, in saved states and in journals."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import gpytorch
import numpy as np
import pytest
import torch
from contract import PROBLEM, proceed
from problems import generator, rbf

import torchbandits as tb
from torchbandits import errors, sources
from torchbandits.environments import BlackBox, Function, Recorded, Table
from torchbandits.journal import describe, describe_environment, describe_policy, difference
from torchbandits.policies import Policy
from torchbandits.testing.play import differences, everything

pytestmark = pytest.mark.usefixtures("annotations_not_enforced")

ARMS = PROBLEM.tensor
REWARDS = torch.as_tensor(PROBLEM.f)


def played(policy: Policy, arms: Any = ARMS, pulls: int = 4, seed: int = 5, **options: Any) -> tb.Bandit:
    bandit = tb.Bandit(policy, arms, generator=generator(seed), **options)
    for pull in range(pulls):
        selection = bandit.ask(limit=1)
        bandit.tell(selection, torch.sin(3.0 * selection.points[..., 0] + pull))
    return bandit


# ------------------------------------------------------------------------- saved states

OTHERS: dict[str, tuple[Callable[[], Policy], Callable[[], Policy], str]] = {
    "noise": (lambda: tb.gp_ucb(rbf(0.3), noise_std=0.1), lambda: tb.gp_ucb(rbf(0.3), noise_std=0.2), "noise_std was 0.2"),
    "kernel": (lambda: tb.bkb(rbf(0.3), noise_std=0.1), lambda: tb.bkb(rbf(0.4), noise_std=0.1), "lengthscale"),
    "paper": (lambda: tb.gp_ucb(rbf(), noise_std=0.1), lambda: tb.igp_ucb(rbf(), noise_std=0.1), "confidence"),
    "score": (
        lambda: tb.bkb(rbf(), noise_std=0.1),
        lambda: tb.bkb(rbf(), noise_std=0.1, acquisition="ei"),
        "policy.score",
    ),
    "function": (
        lambda: tb.epsilon_greedy(epsilon=lambda t: 1 / t),
        lambda: tb.epsilon_greedy(epsilon=lambda t: 0.5 / t),
        "__code__",
    ),
}


@pytest.mark.sweep(3)
@pytest.mark.parametrize("name", OTHERS)
def test_a_state_of_another_policy_or_of_other_hyperparameters_is_refused(name: str):
    own, other, said = OTHERS[name]
    bandit, twin = played(own()), played(own())
    with pytest.raises(errors.StateError, match="another policy") as caught:
        bandit.load_state_dict(played(other()).state_dict())
    assert said in str(caught.value)
    assert "observe()" in str(caught.value)
    assert differences(everything(twin), everything(bandit)) == []
    assert proceed(bandit, 3) == proceed(twin, 3)


def test_a_state_of_other_arms_is_refused():
    """States of equally many arms are refused if one arm differs or two are swapped, in memory and read piece by piece."""
    policy = tb.batch_bkb(rbf(), noise_std=0.1)
    moved, swapped = ARMS.clone(), ARMS.clone()
    moved[-1] += 0.01
    swapped[[3, 4]] = swapped[[4, 3]]
    saved = played(policy).state_dict()
    for arms in (moved, swapped, sources.chunks(lambda: swapped.split(9), len(swapped), 2)):
        bandit, twin = played(policy, arms, seed=8), played(policy, arms, seed=8)
        with pytest.raises(errors.StateError, match="fingerprints differ"):
            bandit.load_state_dict(saved)
        assert differences(everything(twin), everything(bandit)) == []
        assert proceed(bandit, 3) == proceed(twin, 3)


def test_states_go_where_they_belong():
    """States load with other memory budgets, other sources of the same arms, shared or by row, and an unfitted kernel."""
    bandit = played(tb.gp_ucb(rbf(), noise_std=0.1), pulls=8)
    bandit.fit_kernel_()
    saved = bandit.state_dict()
    small = tb.gp_ucb(rbf(), noise_std=0.1, memory_budget=0)
    for arms in (ARMS, sources.tensor(ARMS, distinct=True), sources.chunks(lambda: ARMS.split(9), len(ARMS), 2)):
        for policy in (tb.gp_ucb(rbf(), noise_std=0.1), small):
            loaded = tb.Bandit(policy, arms).load_state_dict(saved)
            assert torch.equal(loaded.posterior(ARMS[:5]).mean, bandit.posterior(ARMS[:5]).mean)
    same = (ARMS, ARMS.expand(2, -1, -1), ARMS.repeat(2, 1, 1))
    rows = [tb.Bandit(small, arms, generator=[generator(1), generator(2)]) for arms in same]
    for one in rows[1:]:
        one.load_state_dict(rows[0].state_dict())
    apart = tb.Bandit(small, torch.stack([ARMS, ARMS.flip(0)]), generator=[generator(1), generator(2)])
    with pytest.raises(errors.StateError, match="fingerprints differ"):
        apart.load_state_dict(rows[0].state_dict())


def test_a_state_saved_after_a_change_of_arms_is_of_the_new_ones():
    policy = tb.batch_bkb(rbf(), noise_std=0.1)
    bandit, new = played(policy), ARMS.flip(0).contiguous()
    bandit.set_arms_(new)
    saved = bandit.state_dict()
    with pytest.raises(errors.StateError, match="set_arms_"):
        tb.Bandit(policy, ARMS).load_state_dict(saved)
    other = tb.Bandit(policy, new).load_state_dict(saved)
    assert other.ask(more=3).index.tolist() == bandit.ask(more=3).index.tolist()


def test_a_state_of_an_early_version_loads_with_a_warning():
    policy = tb.gp_ucb(rbf(), noise_std=0.1)
    bandit = played(policy)
    saved = bandit.state_dict()
    del saved["policy"]
    saved["state"]["rows._extra_state"]["fingerprint"] = None
    other = tb.Bandit(policy, ARMS)
    with pytest.warns(errors.JournalWarning, match="earlier version") as caught:
        other.load_state_dict(saved)
    assert len(caught) == 1
    assert differences(everything(bandit), everything(other)) == []
    saved["policy"] = {"policy": 3}
    with pytest.raises(errors.StateError, match="damaged"):
        other.load_state_dict(saved)


def test_a_contextual_bandit_refuses_the_state_of_another():
    contexts = torch.tensor([[0.1], [0.7]], dtype=torch.float64)
    made = [
        tb.ContextualBandit(tb.gp_ucb(rbf(), noise_std=noise), arms, contexts, generator=generator(0))
        for noise, arms in ((0.1, ARMS[:9]), (0.2, ARMS[:9]), (0.1, ARMS[1:10]), (0.1, ARMS[:9]))
    ]
    selection = made[0].ask(context=contexts[1])
    made[0].tell(selection, torch.ones(1))
    for bandit, said in zip(made[1:3], ("another policy", "other arms"), strict=True):
        before = bandit.state_dict()
        with pytest.raises(errors.StateError, match=said):
            bandit.load_state_dict(made[0].state_dict())
        assert differences(before, bandit.state_dict()) == []
    made[3].load_state_dict(made[0].state_dict())
    assert float(made[3].pulls) == 1


# ------------------------------------------------------------------------- functions and kernels


def scaled(factor: float) -> Callable[[float], float]:
    return lambda t: factor / t


class Weighted(gpytorch.kernels.RBFKernel):
    """A kernel with all kinds of attributes that are neither parameters nor buffers."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__()
        self.weights = attributes.get("weights", [1.0, 2.0])
        self.table = attributes.get("table", np.arange(3))
        self.shift = attributes.get("shift", torch.zeros(2))
        self.names = attributes.get("names", {"of": ("x", {"y", "z", "w"})})
        self.parts = [gpytorch.kernels.MaternKernel(attributes.get("nu", 2.5))]
        self.warp = attributes.get("warp", np.square)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (lambda t: 1 / t, lambda t: 2 / t),
        (lambda t: t in {"a", "b"}, lambda t: t in {"a", "c"}),
        (lambda t: [x * 1 for x in (t, 3)], lambda t: [x * 2 for x in (t, 3)]),
        (np.sin, np.cos),
        (lambda t: np.sin(t), lambda t: np.cos(t)),
        (lambda t, c=1.0: c / t, lambda t, c=2.0: c / t),
        (lambda t, *, c=1.0: c / t, lambda t, *, c=2.0: c / t),
        (scaled(1.0), scaled(2.0)),
        (PROBLEM.rewards, copy.replace(PROBLEM, seed=9).rewards if hasattr(copy, "replace") else type(PROBLEM)(seed=9).rewards),
        *[
            (Weighted(), Weighted(**{name: value}))
            for name, value in {
                "weights": [1.0, 3.0],
                "table": np.array([0, 1, 3]),
                "shift": torch.ones(2),
                "names": {"of": ("x", {"y", "z", "v"})},
                "nu": 1.5,
                "warp": lambda x: x**2,
            }.items()
        ],
        (np.array([1.0, None], dtype=object), np.array([2.0, None], dtype=object)),
        (np.float32(1.0), np.float32(2.0)),
        (Path("a"), Path("b")),
    ],
)
def test_what_differs_is_described_otherwise(one: Any, other: Any):
    assert difference(describe_policy(one), describe_policy(other))
    assert not difference(describe_policy(one), describe_policy(copy.deepcopy(one)))


def test_functions_of_another_version_of_python_are_compared_by_what_they_hold():
    one, same, other = ({"__form__": "2"} | describe(scaled(factor), "f") for factor in (1.0, 1.0, 2.0))
    assert one["f.__code__"].startswith(f"'{sys.implementation.cache_tag}-")
    for elsewhere in (same, other):
        elsewhere["f.__code__"] = "'cpython-399-0 0123456789abcdef'"
    assert difference(one, same) == ""
    assert "f.__closure__.factor was 1.0, is 2.0" in difference(one, other)


def test_what_holds_itself_is_described():
    cycle: list[Any] = [1]
    cycle.append(cycle)

    def count(t: int) -> int:
        return count(t - 1)

    assert describe(cycle)["policy.0"] == "1"
    assert "policy.__closure__.count" in describe(count)


SCRIPT = """
import sys, json, numpy as np, gpytorch, torchbandits as tb
sys.path.insert(0, {tests!r})
from test_fingerprint import Weighted, scaled
from torchbandits.journal import describe, describe_environment
kernel = Weighted(names={{"a": {{"x", "y", "z"}}, "b": frozenset([1.5, 2.5])}})
policy = tb.epsilon_greedy(epsilon=lambda t: float(t in {{"p", "q", "r"}}))
environment = tb.environments.synthetic("branin")
print(json.dumps([describe(kernel), describe(policy), describe(scaled(2.0)), describe_environment(environment)]))
"""


@pytest.mark.exhaustive
def test_descriptions_are_the_same_in_every_process():
    """Descriptions do not depend on the seed of Python's hashes."""
    script, said = SCRIPT.format(tests=str(Path(__file__).parent)), []
    for seed in ("1", "2"):
        environment = os.environ | {"PYTHONHASHSEED": seed}
        ran = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
        said.append(ran.stdout)
    assert said[0] == said[1]
    assert "__code__" in said[0]


# ------------------------------------------------------------------------- journals


def test_a_journal_refuses_another_function_and_another_kernel(tmp_path: Path):
    path = tmp_path / "run.journal"

    def bandit(policy: Policy, seed: int = 5) -> tb.Bandit:
        return tb.Bandit(policy, ARMS, generator=generator(seed), journal=path)

    def greedy(factor: float) -> Policy:
        return tb.epsilon_greedy(epsilon=lambda t: min(1.0, factor / t))

    first = bandit(greedy(2.0))
    first.tell(first.ask(), torch.ones(1))
    first.journal.close()
    mine = generator(9)
    state = mine.get_state()
    with pytest.raises(errors.StateError, match=r"__closure__.factor was 2.0, is 3.0"):
        tb.Bandit(greedy(3.0), ARMS, generator=mine, journal=path)
    assert torch.equal(mine.get_state(), state)
    again = bandit(greedy(2.0))
    assert float(again.pulls) == 1
    again.journal.close()
    path.unlink()

    def weighted(*weights: float) -> Policy:
        return tb.gp_ucb(Weighted(weights=list(weights)).double(), noise_std=0.1)

    bandit(weighted(1.0, 2.0)).journal.close()
    with pytest.raises(errors.StateError, match="weights"):
        bandit(weighted(1.0, 4.0))
    bandit(weighted(1.0, 2.0)).journal.close()


def test_a_journal_of_the_first_form_opens_and_is_compared_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "run.journal"

    def first_form(policy: Policy) -> dict[str, str]:
        return {key: text for key, text in describe(policy).items() if "__" not in key}

    def greedy(epsilon: Any, batch_size: int = 1) -> tb.Bandit:
        policy = tb.epsilon_greedy(epsilon=epsilon, batch_size=batch_size)
        return tb.Bandit(policy, ARMS, generator=generator(1), journal=path)

    with monkeypatch.context() as patched:
        patched.setattr("torchbandits.journal.fingerprint.describe_policy", first_form)
        bandit = greedy(lambda t: 1 / t)
        bandit.tell(bandit.ask(), torch.ones(1))
        bandit.journal.close()
    for epsilon in (lambda t: 1 / t, lambda t: 0.5 / t):  # a lambda is described by its name alone
        again = greedy(epsilon)
        assert float(again.pulls) == 1
        again.journal.close()
    with pytest.raises(errors.StateError, match="batch_size was 1, is 2"):
        greedy(lambda t: 1 / t, batch_size=2)
    with pytest.raises(errors.StateError, match="epsilon"):
        greedy(0.5)


def environments() -> dict[str, Callable[[], tb.environments.Environment]]:
    one = torch.zeros(len(ARMS), dtype=torch.float64)
    costs = 1.0 + torch.arange(len(ARMS), dtype=torch.float64)
    return {
        "table": lambda: Table(ARMS, REWARDS, noise_std=0.1),
        "rewards": lambda: Table(ARMS, REWARDS.flip(0), noise_std=0.1),
        "noise": lambda: Table(ARMS, REWARDS, noise_std=0.2),
        "kind of noise": lambda: Table(ARMS, REWARDS, noise_std=0.1, noise="uniform"),
        "costs": lambda: Table(ARMS, REWARDS, noise_std=0.1, costs=costs),
        "name": lambda: Table(ARMS, REWARDS, noise_std=0.1, name="another"),
        "function": lambda: Function(lambda x: x[..., 0], ARMS, noise_std=0.1),
        "another function": lambda: Function(lambda x: x[..., 1], ARMS, noise_std=0.1),
        "records": lambda: Recorded(ARMS, torch.stack([one, one + 1], dim=-1)),
        "other records": lambda: Recorded(ARMS, torch.stack([one - 1, one + 2], dim=-1)),
        "black box": lambda: BlackBox(lambda x: float(x[0]), ARMS),
        "another black box": lambda: BlackBox(lambda x: float(x[1]), ARMS),
        "seeded": lambda: BlackBox(lambda x, seed: float(x[0]), ARMS, seeded=True),
    }


def test_environments_on_the_same_arms_are_told_apart():
    form = {"__form__": "2"}
    described = {name: form | describe_environment(make()) for name, make in environments().items()}
    again = {name: form | describe_environment(make()) for name, make in environments().items()}
    for name, one in described.items():
        for other, two in again.items():
            assert bool(difference(one, two)) == (name != other), (name, other)


@pytest.mark.parametrize(("own", "other"), [("table", "rewards"), ("black box", "another black box")])
def test_a_run_does_not_go_on_in_another_environment(tmp_path: Path, own: str, other: str):
    policy, path, known = tb.gp_ucb(rbf(), noise_std=0.1), tmp_path / "run.journal", environments()
    before = tb.run(policy, known[own](), 4, generator=generator(1), journal=path)
    mine = generator(9)
    state = mine.get_state()
    with pytest.raises(errors.StateError, match="another run: environment"):
        tb.run(policy, known[other](), 6, generator=mine, journal=path)
    assert torch.equal(mine.get_state(), state)
    history = tb.run(policy, known[own](), 6, generator=generator(9), journal=path)
    assert history.pulls["arm"][:4].tolist() == before.pulls["arm"].tolist()
    bandit = tb.Bandit(policy, ARMS, journal=path)  # a bandit without the environment can read the journal
    assert float(bandit.pulls) == 6
    bandit.journal.close()


def test_a_journal_that_names_no_environment_is_gone_on_with_in_any(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    policy, path = tb.gp_ucb(rbf(), noise_std=0.1), tmp_path / "run.journal"
    with monkeypatch.context() as patched:
        patched.setattr("torchbandits.running.describe_environment", lambda environment: {})
        tb.run(policy, environments()["table"](), 3, generator=generator(1), journal=path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tb.run(policy, environments()["table"](), 5, generator=generator(1), journal=path)


def test_the_description_of_a_policy_says_its_form():
    assert describe_policy(tb.uniform())["__form__"] == "2"


@pytest.mark.parametrize(
    ("plain", "given", "name"),
    [
        (tb.bpe(rbf(), horizon=9), tb.bpe(rbf(), horizon=9, delay=2), "policy.delay"),
        (tb.reds(rbf(), horizon=9), tb.reds(rbf(), horizon=9, drift=0.1), "policy.anew"),
    ],
)
def test_an_option_that_came_later_is_described_where_it_is_given(plain: Policy, given: Policy, name: str):
    """Older journals, which lack the option, belong to the policy without the option and to no other."""
    before, after = describe_policy(plain), describe_policy(given)
    assert name not in before
    assert name in after
    assert not difference(before, describe_policy(plain))
    assert difference(before, after)
    assert difference(after, before)


def test_a_default_that_has_changed_is_no_difference():
    """A journal of before stays the journal of `auto`, and one of other priors does not become it."""
    before, other = (
        describe_policy(replace(tb.auto(), from_data=replace(tb.auto().from_data, priors=tb.ingredients.Priors(noise=pair))))
        for pair in ((-4.0, 1.0), (-3.0, 1.0))
    )
    assert not difference(before, describe_policy(tb.auto()))
    assert "priors.noise" in difference(describe_policy(tb.auto()), before)
    assert "priors.noise.0 was -3.0, is absent" in difference(other, describe_policy(tb.auto()))


def test_the_default_of_per_cost_has_changed_and_that_is_no_difference():
    """A journal of a policy per cost with the defaults of before stays its journal; one of other options does not become it."""
    policy = tb.gp_ucb(rbf())
    now, before = describe_policy(tb.per_cost(policy)), describe_policy(tb.per_cost(policy, exponent=1.0, baseline=0.0))
    assert not difference(before, now)
    assert "score.exponent" in difference(describe_policy(tb.per_cost(policy, exponent=2.0)), now)
    assert "score.baseline" in difference(now, before)
    several = tb.outcomes.pareto({"yield": policy, "purity": policy})
    old = describe_policy(tb.per_cost(several, exponent=1.0))
    assert not difference(old, describe_policy(tb.per_cost(several)))
    twice = describe_policy(tb.per_cost(several, exponent=2.0))
    assert "aim.exponent" in difference(twice, describe_policy(tb.per_cost(several)))
