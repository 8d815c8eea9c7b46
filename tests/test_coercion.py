"""Input of users of NumPy, of tables and of other libraries: converted where that is safe, refused with a helpful message."""

from __future__ import annotations

import copy
import inspect
import math
import pickle
import re
import warnings
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from botorch.acquisition import UpperConfidenceBound
from problems import COMMON, Problem, generator, rbf

import torchbandits as tb
from torchbandits import errors
from torchbandits.botorch import BanditModel, PolicyAcquisition, optimize_arms
from torchbandits.checks import as_tensor
from torchbandits.ingredients import ExactRatio, FixedSize, Global, GlobalThenLocal, Local, Product, RandomizedBeliever, Repeat

pytestmark = pytest.mark.usefixtures("annotations_not_enforced")

PROBLEM = Problem(1)
ARMS = PROBLEM.tensor


class Column:
    """A column like Polars': it has `to_numpy`, and no `columns`."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    def to_numpy(self) -> np.ndarray:
        return self.array


class Frame:
    """A table like Polars': columns by name, each with `to_numpy`."""

    def __init__(self, array: np.ndarray) -> None:
        self.columns = [f"x{j}" for j in range(array.shape[1])]
        self.array = array

    def __getitem__(self, name: str) -> Column:
        return Column(self.array[:, self.columns.index(name)])

    def to_numpy(self) -> np.ndarray:
        return self.array


def read_only(array: np.ndarray) -> np.ndarray:
    array = array.copy()
    array.flags.writeable = False
    return array


KINDS = {
    "array": lambda x: x,
    "read-only array": read_only,
    "foreign byte order": lambda x: x.astype(x.dtype.newbyteorder()),
    "reversed twice": lambda x: x[::-1].copy()[::-1],
    "lists": lambda x: x.tolist(),
    "list of arrays": list,
    "pandas": lambda x: pd.DataFrame(x) if x.ndim == 2 else pd.Series(x),
    "Polars": lambda x: Frame(x) if x.ndim == 2 else Column(x),
}


@pytest.mark.sweep(4)
@pytest.mark.parametrize("kind", KINDS)
def test_a_run_on_arrays_lists_and_tables_is_the_run_on_tensors(kind: str):
    """Picks are the same if arms, indices, rewards, points, counts and costs are arrays, lists or tables."""
    convert = KINDS[kind]
    bandits = [tb.Bandit(tb.gp_ucb(rbf(), **COMMON), arms, generator=generator(0)) for arms in (ARMS, convert(ARMS.numpy()))]
    assert torch.equal(bandits[1].arms, ARMS)
    index, y = np.array([3, 5]), np.array([0.1, 1 / 3])
    outside = np.array([[0.3, 0.4], [0.1, 0.9]])
    for bandit, change in zip(bandits, (torch.as_tensor, convert), strict=True):
        bandit.tell(change(index), change(y))
        bandit.observe(change(outside), change(np.ones(2)), change(y))
        bandit.observe(change(index), change(np.ones(2)), change(y), squares=change(y**2))
        for step in range(3):
            selection = bandit.ask(more=2)
            bandit.tell(selection, change(PROBLEM.f[selection.index.numpy()] + step / 7))
    assert torch.equal(bandits[0].counts, bandits[1].counts)
    assert torch.equal(bandits[0].posterior(ARMS).mean, bandits[1].posterior(ARMS).mean)
    moved = bandits[1].set_arms_(convert(ARMS.numpy()[::-1].copy()))
    assert torch.equal(moved.arms, ARMS.flip(0))


@pytest.mark.parametrize("reward", [1.0, 1, np.float64(1.0), torch.tensor(1.0)])
def test_one_reward_of_one_pick(reward: Any):
    bandit = tb.Bandit(tb.gp_ucb(rbf(), **COMMON), ARMS)
    bandit.tell(bandit.ask(limit=1), reward)
    bandit.tell(7, reward)
    assert float(bandit.pulls) == 2
    assert float(bandit.counts[7]) >= 1
    with pytest.raises(errors.ShapeError, match="rewards must be shaped like"):
        bandit.tell([1, 2], reward)


def test_numbers_of_python_are_float64():
    assert as_tensor("x", [0.1]).dtype == torch.float64
    assert float(as_tensor("x", [0.1])[0]) == 0.1
    assert as_tensor("x", np.float32([0.1])).dtype == torch.float32
    assert as_tensor("x", [1, 2]).dtype == torch.int64


@pytest.mark.parametrize("whole", [torch.arange(12).reshape(6, 2), np.arange(12, dtype=np.uint8).reshape(6, 2)])
def test_whole_features_are_float64(whole: Any):
    for take in (
        lambda arms: tb.Bandit(tb.gp_ucb(rbf(), **COMMON), arms),
        lambda arms: tb.environments.Table(arms, [0.5] * 6, 0.1),
        lambda arms: tb.ContextualBandit(tb.gp_ucb(rbf(), **COMMON), arms, torch.zeros(1, 2, dtype=torch.float64)),
    ):
        assert torch.equal(take(whole).arms, torch.arange(12.0, dtype=torch.float64).reshape(6, 2))


def test_columns_that_hold_no_numbers_are_named():
    table = pd.DataFrame({"width": [1, 2], "kind": ["a", "b"], "on": [True, False], "when": pd.to_datetime(["2020", "2021"])})
    with pytest.raises(errors.ShapeError, match=r"arms must be numbers.*: kind, when\. Encode"):
        tb.Bandit(tb.gp_ucb(rbf(), **COMMON), table)
    good = tb.Bandit(tb.gp_ucb(rbf(), **COMMON), table[["width", "on"]])
    assert good.arms.tolist() == [[1.0, 1.0], [2.0, 0.0]]
    with pytest.raises(errors.ShapeError, match="rewards must be numbers, got an array of object"):
        good.tell([0], np.array([None]))
    with pytest.raises(errors.ShapeError, match="arms must be numbers"):
        tb.Bandit(tb.gp_ucb(rbf(), **COMMON), np.array([["a"]]))


@pytest.mark.parametrize("odd", [None, Decimal("1.5"), "2.0", "x"])
@pytest.mark.usefixtures("annotations_not_enforced")
def test_an_entry_that_is_no_number_is_named(odd: object):
    bandit = tb.Bandit(tb.auto(), torch.rand(20, 2, dtype=torch.float64))
    with pytest.raises(errors.ShapeError, match=re.escape(f"rewards must be numbers, and holds {odd!r}: convert it")):
        bandit.tell(torch.tensor([0, 1]), [odd, 1.0])
    assert float(bandit.pulls) == 0


@pytest.mark.usefixtures("annotations_not_enforced")
def test_lists_of_tables_are_not_taken_for_odd_entries():
    with pytest.raises(errors.ShapeError, match="expected sequence of length 2"):
        as_tensor("rewards", [pd.Series([1.0, 2.0]), pd.Series([1.0])])


def test_masked_entries_are_not_read():
    bandit = tb.Bandit(tb.gp_ucb(rbf(), **COMMON), ARMS)
    rewards = np.ma.array([0.5, 999.0], mask=[False, True])
    for given in (rewards, rewards.astype(np.float32), [rewards[1], rewards[0]], rewards.astype(int)):
        with pytest.raises(errors.ShapeError, match="rewards must be numbers, and some entries of this array are masked: fill"):
            bandit.tell(torch.tensor([3, 4]), given)
    with pytest.raises(errors.ShapeError, match="arms must be numbers, and some entries"):
        tb.Bandit(tb.gp_ucb(rbf(), **COMMON), np.ma.masked_greater(ARMS.numpy(), 0.5))
    bandit.tell(torch.tensor([3, 4]), rewards.filled(np.nan), failures="forget")
    bandit.tell(torch.tensor([3, 4]), np.ma.array([0.5, 0.6]))
    assert bandit.counts[[3, 4]].tolist() == [2, 1]


# ------------------------------------------------------------------------- keywords of other libraries


def factories() -> list[Any]:
    return [pytest.param(factory, id=name) for name, factory in tb.policies.registry.items()]


def test_a_number_without_a_name_is_a_limit_as_the_docstring_says():
    bandit = tb.Bandit(tb.auto(), torch.rand(20, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0)))
    assert "`ask(8)` under `auto()` is one pick, and `ask(exactly=8)` is eight." in " ".join(tb.Bandit.ask.__doc__.split())
    assert len(bandit.ask(8)) == 1
    bandit.forget(bandit.ask())
    assert len(bandit.ask(exactly=8)) == 8


@pytest.mark.parametrize("factory", factories())
def test_every_policy_explains_keywords_that_it_does_not_take(factory: Any):
    known = inspect.signature(factory).parameters
    words = {"seed": "manual_seed", "maximize": "maximised everywhere", "batch_size": r"ask\(exactly=…\).*ask\(limit=…\)"}
    for word, instead in words.items():
        if word not in known:
            with pytest.raises(
                errors.KeywordError, match=f"{factory.__name__} takes no argument '{word}': .*{instead}"
            ) as caught:
                factory(**{word: 1})
            assert isinstance(caught.value, TypeError)
    assert pickle.loads(pickle.dumps(factory)) is factory


def test_bandits_and_runs_explain_keywords_that_they_do_not_take():
    policy, environment = tb.gp_ucb(rbf(), **COMMON), tb.environments.Table(ARMS, torch.as_tensor(PROBLEM.f), 0.1)
    bandit = tb.Bandit(policy, ARMS)
    for call, word, instead in (
        (lambda: tb.Bandit(policy, ARMS, seed=0), "seed", "generator=torch.Generator"),
        (lambda: tb.run(policy, environment, 5, seed=0), "seed", "generator=torch.Generator"),
        (lambda: tb.run(policy, environment, 5, batch_size=2), "batch_size", "batch rule"),
        (lambda: tb.Bandit(policy, ARMS, maximize=False), "maximize", "negatives"),
        (lambda: bandit.ask(batch_size=3), "batch_size", r"ask\(more=…\)"),
        (lambda: bandit.ask(q=3), "q", r"ask\(more=…\)"),
        (lambda: tb.gp_ucb(rbf(), beta=2.0), "beta", "widths.Constant"),
        (lambda: tb.ContextualBandit(policy, ARMS, ARMS, bounds=ARMS[:2]), "bounds", r"tb\.Bandit\(policy, bounds=…\)"),
        (lambda: tb.ContextualBandit(policy, ARMS, context=ARMS), "context", "Did you mean 'contexts'"),
        (lambda: tb.Bandit(policy, ARMS, contexts=ARMS), "contexts", "tb.ContextualBandit"),
        (lambda: tb.Bandit(policy, ARMS, known={}), "known", "tb.OutcomeBandit"),
        (lambda: tb.Worker(policy, ARMS, store="run.db", seed=0), "seed", "generator=torch.Generator"),
        (lambda: tb.Campaign(pd.DataFrame({"a": [1.0]}), "y", at_least={"z": 1.0}), "at_least", "tb.OutcomeCampaign"),
        (lambda: optimize_arms(None, q=3, choices=ARMS), "choices", "argument arms"),
        (lambda: optimize_arms(None, ARMS, 3, X_avoid=ARMS[:2]), "X_avoid", "available="),
        (lambda: tb.gp_ucb(rbf(), noise_sd=2.0), "noise_sd", "Did you mean 'noise_std'"),
        (lambda: BanditModel(ARMS[:3], ARMS[:3, :1], likelihood=None), "likelihood", "noise_std="),
        (lambda: BanditModel(ARMS[:3], ARMS[:3, :1], mean_module=None), "mean_module", "prior_mean="),
        (lambda: BanditModel(ARMS[:3], ARMS[:3, :1], noise=0.1), "noise", "Did you mean 'noise_std'"),
        (lambda: PolicyAcquisition(None, policy, beta=4.0), "beta", "width is that of the policy"),
        (lambda: PolicyAcquisition(None, policy, maximize=False), "maximize", "ScalarizedPosteriorTransform"),
        (lambda: PolicyAcquisition(None, policy, best_f=0.0), "best_f", "LogExpectedImprovement"),
        (lambda: PolicyAcquisition(None, policy, objective=None), "objective", "qLogNoisyExpectedImprovement"),
    ):
        with pytest.raises(errors.KeywordError, match=f"takes no argument '{word}': .*{instead}"):
            call()
    assert not bandit.ask(limit=0).index.numel()


@pytest.mark.parametrize(
    "make",
    [
        lambda: tb.gp_ucb(rbf(), **COMMON),
        lambda: tb.bkb(rbf(), **COMMON),
        lambda: tb.pi_gp_ucb(rbf(), nu=2.5, horizon=40, **COMMON),
        tb.auto,
    ],
    ids=["gp_ucb", "bkb", "pi_gp_ucb", "auto"],
)
def test_predictions_take_an_array(make: Any):
    """Arms may be an array, and so may the points of a posterior: an array of floats was said to be no floating-point one."""
    bandit = tb.Bandit(make(), ARMS)
    bandit.tell(torch.arange(9), torch.as_tensor(PROBLEM.f)[:9])
    points = ARMS[3:8]
    expected = bandit.posterior(points)
    for given in (points.numpy(), points.tolist(), pd.DataFrame(points.numpy())):
        found = bandit.posterior(given)
        assert torch.equal(found.mean, expected.mean)
        assert torch.equal(found.variance, expected.variance)
    with pytest.raises(errors.ShapeError, match="points must be floating point"):
        bandit.posterior(np.zeros((3, 2), dtype=np.int64))


def test_the_number_of_a_batch_rule_is_its_own_and_not_a_cap():
    """`FixedSize(4)` was one pick at a time with a cap of four."""
    assert [rule(4) for rule in (FixedSize, RandomizedBeliever)] == [FixedSize(size=4), RandomizedBeliever(size=4)]
    for rule in (Global, Product, Local, GlobalThenLocal, ExactRatio, Repeat):
        assert rule(3.5) == rule(ratio_threshold=3.5)
        assert rule(3.5, max_batch_size=8).max_batch_size == 8
        with pytest.raises(TypeError):
            rule(3.5, 8)


@pytest.mark.parametrize("name", ["noise_std", "regularization", "prior_mean"])
def test_numbers_of_a_fitted_model_are_taken_as_they_are(name: str):
    """`gp.likelihood.noise.sqrt()` is a tensor with a gradient, and `gp.mean_module.constant` a parameter."""
    parameter = torch.nn.Parameter(torch.tensor([0.25], dtype=torch.float64))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        policy = tb.gp_ucb(rbf(), **COMMON | {name: parameter.sqrt()})
        data = (ARMS[:5], torch.as_tensor(PROBLEM.f)[:5].unsqueeze(-1))
        model = BanditModel(*data, **{"noise_std": 1.0, name: parameter.sqrt()})
    for made in (policy, copy.deepcopy(policy), model):
        assert type(getattr(made, name)) is float
        assert getattr(made, name) == pytest.approx(0.5)
    bandit = copy.deepcopy(tb.Bandit(policy, ARMS))
    assert bandit.ask().index.numel() == 1
    known = tb.gp_ucb(rbf(), noise_std=parameter.sqrt(), regularization=parameter)
    assert (known.noise_std, known.regularization) == (0.5, 0.25)


@pytest.mark.usefixtures("annotations_not_enforced")
def test_arguments_in_the_order_of_botorch_are_explained():
    model = BanditModel(ARMS[:9], torch.as_tensor(PROBLEM.f)[:9].unsqueeze(-1))
    acquisition = UpperConfidenceBound(model, 4.0)
    with pytest.raises(errors.ArgumentError, match=r"optimize_arms\(acq_function, arms, q\)"):
        optimize_arms(acquisition, 3, ARMS)
    assert len(optimize_arms(acquisition, ARMS, 1)[2]) == 1


@pytest.mark.usefixtures("annotations_not_enforced")
def test_arguments_by_position_are_explained_by_the_names_that_they_need():
    policy: Any = tb.gp_ucb(rbf(), **COMMON)
    calls: tuple[tuple[Any, str], ...] = (
        (lambda: tb.gp_ucb(rbf(), 0.1), "gp_ucb takes by position only kernel, got 2: give the others by name, noise_std=, "),
        (lambda: tb.auto(8), "auto takes no argument by position, got 1: give the others by name, batch_size=, "),
        (lambda: tb.Bandit(policy, ARMS, generator(0)), "Bandit takes by position only policy, arms, got 3: .*generator="),
        (lambda: tb.Bandit(policy, ARMS).ask(8, 1), "Bandit.ask takes by position only limit, got 2: .*exactly="),
        (lambda: tb.forgetting.window(policy, 40), "window takes by position only policy, got 2: .*pulls="),
        (lambda: BanditModel(*[None] * 15), "BanditModel takes by position only train_X, .*, got 15: leave the others out"),
    )
    for call, message in calls:
        with pytest.raises(errors.KeywordError, match=message) as caught:
            call()
        assert isinstance(caught.value, TypeError)


def test_a_keyword_with_another_name_here_is_not_explained_by_what_others_take():
    table, models = pd.DataFrame({"a": [1.0, 2.0, 3.0]}), {"a": tb.auto(), "b": tb.auto()}
    campaign = tb.Campaign(table, objective="y")
    for call, word, meant in (
        (lambda: tb.Campaign(table, objective="y", minimise=True), "minimise", "Did you mean 'minimize'"),
        (lambda: tb.OutcomeCampaign(table, ["y", "z"], minimise=["z"]), "minimise", "Did you mean 'minimize'"),
        (lambda: tb.outcomes.constrained(models, maximise="a"), "maximise", "Did you mean 'maximize'"),
        (lambda: tb.auto(q=8), "q", "batch_size"),
        (lambda: campaign.ask(batch_size=2), "batch_size", "it takes n, more"),
        (lambda: tb.Campaign(table, objective="y", batch_size=2), "batch_size", "of a campaign"),
    ):
        with pytest.raises(errors.KeywordError, match=f"takes no argument '{word}': .*{meant}") as caught:
            call()
        assert "negatives" not in str(caught.value)


# ------------------------------------------------------------------------- what else was silent, or spoke of something else


def test_before_data_nothing_is_recommended():
    bandit = tb.Bandit(tb.gp_ucb(rbf(), **COMMON), ARMS, generator=[generator(0), generator(1)])
    with pytest.raises(errors.StateError, match=r"tell\(\) rewards or observe\(\)"):
        bandit.best()
    bandit.tell(torch.tensor([[3], [-1]]), torch.tensor([[1.0], [math.nan]]))
    assert bandit.best().index.tolist() == [[3], [-1]]
    assert bandit.best().mean[1].isnan().all()
    assert bandit.best_arm().tolist() == [3, -1]
    contextual = tb.ContextualBandit(tb.gp_ucb(rbf(), **COMMON), ARMS[:, :1], ARMS[:1, :1])
    with pytest.raises(errors.StateError, match="no reward was told yet"):
        contextual.best(context=ARMS[0, :1])


def test_a_run_whose_first_evaluations_fail_has_nothing_to_recommend():
    environment = tb.environments.Table(ARMS, torch.as_tensor(PROBLEM.f), 0.1)
    logged: list[str] = []
    bandit = tb.Bandit(tb.gp_ucb(rbf(), **COMMON), ARMS)
    selection = bandit.ask(limit=1)
    report = bandit.tell(selection, [math.nan], failures="forget")
    log = tb.callbacks.LogScalars(lambda name, value, step: logged.append(name))
    log(bandit, selection, torch.tensor([math.nan]), report)
    assert not any("best" in name for name in logged)
    assert environment.arms is not None


@pytest.mark.parametrize("name", ["gp_ucb", "bkb", "batch_bkb", "gp_bucb", "mini_gp_ucb", "thompson_sampling", "bpe"])
def test_without_noise_the_error_speaks_of_noise_std(name: str):
    factory = tb.policies.registry[name]
    known = inspect.signature(factory).parameters
    options = {key: value for key, value in {"norm_bound": 1.0, "horizon": 20}.items() if key in known}
    with pytest.raises(errors.ArgumentError, match=r"noise_std must be > 0, got 0.*regularization= beside noise_std=0"):
        factory(rbf(), noise_std=0, **options)
    factory(rbf(), noise_std=0, regularization=1e-4, **options)
