"""`PoolSampler` in Optuna's own studies."""

from __future__ import annotations

import copy
import pickle
from collections import Counter
from pathlib import Path
from typing import Any

import gpytorch
import numpy as np
import pandas as pd
import pytest
import torch

import torchbandits as tb
from torchbandits.aims import hypervolume
from torchbandits.errors import ArgumentError, StateError, UnsupportedError
from torchbandits.plugins import PoolSampler

optuna = pytest.importorskip("optuna")
optuna.logging.set_verbosity(optuna.logging.WARNING)

RNG = np.random.default_rng(0)
POOL = [
    {"x": float(x), "depth": int(depth), "solvent": str(solvent)}
    for x, depth, solvent in zip(RNG.uniform(0, 1, 300), RNG.integers(1, 9, 300), RNG.choice(["DMF", "EtOH"], 300), strict=True)
]


def score(setting: dict[str, Any]) -> float:
    return -((setting["x"] - 0.4) ** 2) - 0.01 * (setting["depth"] - 5) ** 2 + 0.1 * (setting["solvent"] == "DMF")


def objective(trial: Any) -> float:
    return score(suggested(trial))


def suggested(trial: Any) -> dict[str, Any]:
    x = trial.suggest_float("x", 0, 1)
    depth = trial.suggest_int("depth", 1, 10)
    return {"x": x, "depth": depth, "solvent": trial.suggest_categorical("solvent", ["DMF", "EtOH", "water"])}


def policy() -> Any:
    kernel = gpytorch.kernels.RBFKernel().double()
    return tb.gp_ucb(kernel, noise_std=0.01, width=tb.widths.Constant(2.0))


@pytest.mark.parametrize("sign", [1, -1])
def test_every_trial_is_a_candidate_and_good_ones_are_found(sign: int):
    study = optuna.create_study(direction="maximize" if sign > 0 else "minimize", sampler=PoolSampler(POOL, repeats=False))
    study.optimize(lambda trial: sign * objective(trial), n_trials=25)
    assert all(trial.params in POOL for trial in study.trials)
    assert len({str(trial.params) for trial in study.trials}) == 25
    values = sorted(map(score, POOL))
    assert sign * study.best_value >= values[-10]


def test_a_table_is_a_list_of_candidates_too():
    frame = pd.DataFrame(POOL)
    study = optuna.create_study(direction="maximize", sampler=PoolSampler(frame, policy=policy()))
    study.optimize(objective, n_trials=3)
    assert all(type(trial.params["depth"]) is int and trial.params in POOL for trial in study.trials)


def test_an_empty_cell_is_the_category_none():
    table = pd.DataFrame({"x": np.arange(6.0), "class_weight": ["balanced", None] * 3})

    def weighted(trial: Any) -> float:
        weight = trial.suggest_categorical("class_weight", ["balanced", None])
        return trial.suggest_float("x", 0, 5) + (weight is None)

    study = optuna.create_study(direction="maximize", sampler=PoolSampler(table, policy=policy(), repeats=False))
    study.optimize(weighted, n_trials=6)
    assert study.best_params == {"x": 5.0, "class_weight": None}
    assert sorted(trial.params["x"] for trial in study.trials) == list(range(6))


def test_the_objective_is_given_what_the_study_records():
    """Numbers of the distribution's own type: an empty cell makes floats of the whole numbers in a table."""
    table = pd.DataFrame({"kind": ["tree", "line", "forest"], "depth": [3, None, 5], "rate": [1, 2, 3]})
    suggested = []

    def objective(trial: Any) -> float:
        rate = trial.suggest_float("rate", 0, 5)
        values = [rate]
        if trial.suggest_categorical("kind", ["tree", "line", "forest"]) != "line":
            values.append(trial.suggest_categorical("depth", [3, 5]))
        suggested.append(values)
        return rate

    study = optuna.create_study(sampler=PoolSampler(table, policy=policy(), repeats=False))
    study.optimize(objective, n_trials=3)
    assert sorted(map(str, suggested)) == ["[1.0, 3]", "[2.0]", "[3.0, 5]"]
    assert all(type(trial.params.get("depth", 0)) is int for trial in study.trials)


def test_whole_numbers_and_flags_beside_empty_cells_stay_what_they_are():
    table = pd.DataFrame({"x": np.arange(4.0)})
    table["depth"] = pd.array([3, None, 5, 3], dtype="Int64")
    table["flag"] = pd.array([True, False, None, True], dtype="boolean")

    def objective(trial: Any) -> float:
        trial.suggest_categorical("depth", [None, 3, 5])
        trial.suggest_categorical("flag", [None, True, False])
        return trial.suggest_float("x", 0, 3)

    study = optuna.create_study(sampler=PoolSampler(table, policy=policy(), repeats=False))
    study.optimize(objective, n_trials=4)
    found = {trial.params["x"]: (trial.params["depth"], trial.params["flag"]) for trial in study.trials}
    assert found == {0.0: (3, True), 1.0: (None, False), 2.0: (5, None), 3.0: (3, True)}


def test_all_candidates_are_evaluated_and_then_no_more():
    study = optuna.create_study(sampler=PoolSampler(POOL[:4], policy=policy(), repeats=False))
    study.optimize(objective, n_trials=4)
    assert sorted(str(trial.params) for trial in study.trials) == sorted(map(str, POOL[:4]))
    with pytest.raises(StateError, match="every candidate was evaluated"):
        study.optimize(objective, n_trials=1)


def test_what_was_asked_is_pending_and_failures_teach_nothing():
    sampler = PoolSampler(POOL, policy=policy())
    study = optuna.create_study(direction="maximize", sampler=sampler)
    trials = [study.ask() for _ in range(3)]
    rows = [sampler._pool.row_of(suggested(trial)) for trial in trials]
    bandit = sampler._pool.bandit
    assert bandit.ask().index.tolist() == rows
    study.tell(trials[0], state=optuna.trial.TrialState.FAIL)
    study.tell(trials[1], 0.5)
    assert bandit.ask().index.tolist() == rows[2:]
    assert int(bandit.pulls) == 1
    assert int(bandit.counts[rows[1]]) == 1


def test_invalid_settings_are_avoided_once_some_have_failed():
    """Also by a second sampler, which reads the failures of the first from the study."""
    study, failed = None, []
    for _ in range(2):
        sampler = PoolSampler(POOL, repeats=False)
        study = optuna.create_study(direction="maximize", sampler=sampler) if study is None else study
        study.sampler = sampler
        for _ in range(15):
            trial = study.ask()
            setting = suggested(trial)
            failed.append(setting["solvent"] == "DMF" and setting["x"] > 0.2)
            study.tell(trial, None if failed[-1] else score(setting), optuna.trial.TrialState.FAIL if failed[-1] else None)
    assert 0 < sum(failed[:15]) <= 9
    assert sum(failed[15:]) <= 4


@pytest.mark.parametrize("fail", [True, False], ids=["failed", "pruned"])
def test_a_candidate_without_a_result_is_not_tried_a_third_time(fail: bool, tmp_path: Path):
    storage, tried = f"sqlite:///{tmp_path}/study.db", []

    def sometimes(trial: Any) -> float:
        setting = suggested(trial)
        tried.append(str(setting))
        if setting["solvent"] == "DMF":
            raise ValueError if fail else optuna.TrialPruned
        return score(setting)

    for _ in range(2):
        study = optuna.create_study(
            storage=storage,
            study_name="s",
            direction="maximize",
            sampler=PoolSampler(POOL, policy=policy()),
            load_if_exists=True,
        )
        study.optimize(sometimes, n_trials=15, catch=(ValueError,))
    lost = [setting for setting in tried if "DMF" in setting]
    assert lost
    assert max(map(lost.count, lost)) <= 2
    only = [{"x": x, "depth": 3, "solvent": "DMF"} for x in (0.2, 0.5)]
    study = optuna.create_study(sampler=PoolSampler(only, policy=policy()))
    study.optimize(sometimes, n_trials=6, catch=(ValueError,))  # there is no other
    assert len(study.trials) == 6


def test_another_session_learns_what_the_study_holds(tmp_path: Path):
    storage = f"sqlite:///{tmp_path / 'study.db'}"
    first = optuna.create_study(study_name="one", storage=storage, direction="maximize", sampler=PoolSampler(POOL))
    first.optimize(objective, n_trials=8)
    running = first.ask()
    waited = suggested(running)
    sampler = PoolSampler(POOL)
    second = optuna.load_study(study_name="one", storage=storage, sampler=sampler)
    second.enqueue_trial({"x": 0.123, "depth": 3, "solvent": "water"})  # not a candidate, so it is not learned
    second.optimize(objective, n_trials=2)
    bandit = sampler._pool.bandit
    assert int(bandit.pulls) == 9
    assert sampler._pool.row_of(waited) in bandit.ask().index.tolist()


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda study: pickle.loads(pickle.dumps(study))])
def test_copies_and_pickles_go_on_alike(copied: Any):
    """As Optuna's documentation keeps samplers between sessions."""
    study = optuna.create_study(direction="maximize", sampler=PoolSampler(POOL, policy=policy()))
    study.optimize(objective, n_trials=5)
    twin = copied(study)
    for one in (study, twin):
        one.optimize(objective, n_trials=4)
    assert [trial.params for trial in study.trials] == [trial.params for trial in twin.trials]


def test_a_sampler_of_one_study_is_refused_in_another():
    """The numbers of trials begin again there, so that their results would be taken for known ones."""
    sampler = PoolSampler(POOL, policy=policy())
    optuna.create_study(sampler=sampler, study_name="first").optimize(objective, n_trials=2)
    with pytest.raises(StateError, match="learned the study 'first': make another one for the study 'second'"):
        optuna.create_study(sampler=sampler, study_name="second").optimize(objective, n_trials=2)
    with pytest.raises(StateError, match="has learned another study of that name: make another PoolSampler"):
        optuna.create_study(sampler=sampler, study_name="first").optimize(objective, n_trials=2)


def test_threads_share_the_sampler():
    study = optuna.create_study(direction="maximize", sampler=PoolSampler(POOL, policy=policy(), repeats=False))
    study.optimize(objective, n_trials=12, n_jobs=3)
    assert len({str(trial.params) for trial in study.trials}) == 12


@pytest.mark.parametrize("repeats", [None, True])
def test_more_trials_may_run_than_there_are_candidates(repeats: bool | None):
    """`auto` pulls an arm once at a time."""
    study = optuna.create_study(sampler=PoolSampler([{"x": 0.0}, {"x": 1.0}, {"x": 2.0}], repeats=repeats))
    trials = [study.ask() for _ in range(7)]
    drawn = [trial.suggest_float("x", 0, 2) for trial in trials]
    assert sorted(map(drawn.count, (0.0, 1.0, 2.0))) == [2, 2, 3]
    for trial, x in zip(trials, drawn, strict=True):
        study.tell(trial, x)
    assert told_of(study.sampler) == [0, 1, 2]


@pytest.mark.parametrize("directions", [["maximize"], ["maximize", "minimize"]])
def test_the_same_candidate_may_run_in_several_processes(directions: list[str]):
    study = optuna.create_study(directions=directions, sampler=PoolSampler(CORNERS))
    study.optimize(lambda trial: [trial.suggest_float("a", 0, 2) * trial.suggest_float("b", 0, 2)] * len(directions), 6)
    running = []
    for _ in range(2):
        study.sampler = PoolSampler(CORNERS)
        study.enqueue_trial({"a": 1.0, "b": 2.0})
        running.append(study.ask())
        assert (running[-1].suggest_float("a", 0, 2), running[-1].suggest_float("b", 0, 2)) == (1.0, 2.0)
    study.sampler = PoolSampler(CORNERS)
    other = study.ask()
    assert {"a": other.suggest_float("a", 0, 2), "b": other.suggest_float("b", 0, 2)} in CORNERS
    for trial in (*running, other):
        study.tell(trial, [1.0] * len(directions))
    study.optimize(lambda trial: [trial.suggest_float("a", 0, 2) * trial.suggest_float("b", 0, 2)] * len(directions), 2)


CORNERS = [{"a": a, "b": b} for a in (0.0, 1.0, 2.0) for b in (0.0, 1.0, 2.0)]


def told_of(sampler: PoolSampler) -> list[int]:
    """Rows whose rewards the sampler was told."""
    return sampler._pool.bandit.counts.nonzero().flatten().tolist()


@pytest.mark.filterwarnings("ignore:PartialFixedSampler is experimental")
def test_fixed_parameters_keep_their_values_and_the_reward_is_that_of_what_was_run():
    sampler = PoolSampler(CORNERS)
    study = optuna.create_study(direction="maximize", sampler=sampler)

    def run(first: str, second: str) -> dict[str, Any]:
        def objective(trial: Any) -> float:
            return sum(trial.suggest_float(name, 0, 2) for name in (first, second))

        study.optimize(objective, n_trials=1)
        return study.trials[-1].params

    study.enqueue_trial({"a": 2.0})
    told = run("a", "b")
    assert told["a"] == 2.0
    assert told_of(sampler) == [CORNERS.index(told)]
    # Whether the parameter is suggested before or after the others.
    study.sampler = optuna.samplers.PartialFixedSampler({"b": 1.0}, sampler)
    for names in (("a", "b"), ("b", "a")):
        told = run(*names)
        assert told["b"] == 1.0
        assert sampler._pool.row_of(told) in told_of(sampler)
    assert int(sampler._pool.bandit.pulls) == 3
    assert sampler._pool.bandit.loop.open is None
    study.sampler = sampler
    study.enqueue_trial({"a": 0.5})
    with pytest.raises(ArgumentError, match=r"no candidate has \{'a': 0.5\}, which the trial was given"):
        run("a", "b")


@pytest.mark.filterwarnings("ignore:PartialFixedSampler is experimental")
def test_every_trial_is_a_candidate_where_the_last_parameter_is_fixed():
    # Two fixed parameters, by two samplers. No other candidate has these values of `x`.
    sampler = PoolSampler(POOL)
    fixed = optuna.samplers.PartialFixedSampler({"solvent": "EtOH"}, optuna.samplers.PartialFixedSampler({"depth": 5}, sampler))
    study = optuna.create_study(direction="maximize", sampler=fixed)
    study.optimize(objective, n_trials=6)
    assert all(trial.params in POOL for trial in study.trials)
    assert {(trial.params["depth"], trial.params["solvent"]) for trial in study.trials} == {(5, "EtOH")}
    assert int(sampler._pool.bandit.pulls) == 6


def test_an_infinite_value_teaches_nothing_and_the_study_goes_on():
    study = optuna.create_study(direction="minimize")
    known = {"a": optuna.distributions.FloatDistribution(0, 10)}
    study.add_trial(optuna.trial.create_trial(params={"a": 1.0}, distributions=known, value=float("inf")))
    study.sampler = sampler = PoolSampler([{"a": float(a)} for a in range(6)])
    wrong = {2: float("-inf"), 3: 1e200}
    study.optimize(lambda trial: wrong.get(trial.number, trial.suggest_float("a", 0, 10)), n_trials=4)
    assert int(sampler._pool.bandit.pulls) == 2
    assert sampler._pool.bandit.loop.open is None


def test_a_reward_that_was_not_learned_is_learned_later(monkeypatch: pytest.MonkeyPatch):
    sampler = PoolSampler(CORNERS)
    study = optuna.create_study(sampler=sampler)
    trial = study.ask()
    value = trial.suggest_float("a", 0, 2) + trial.suggest_float("b", 0, 2)

    def fails(*_: Any, **options: Any) -> None:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(sampler._pool.bandit, "tell", fails)
        with pytest.raises(MemoryError):
            study.tell(trial, value)
    sampler._learn(study)
    assert int(sampler._pool.bandit.pulls) == 1


CONDITIONAL = [
    {"kernel": "linear"},
    *({"kernel": "rbf", "gamma": gamma} for gamma in (0.1, 1.0, np.float32(4.0))),
    {"kernel": None},
]


def conditional(trial: Any) -> float:
    kernel = trial.suggest_categorical("kernel", ["linear", "rbf", None])
    return float(trial.suggest_float("gamma", 0, 10)) if kernel == "rbf" else float(kernel is None)


def test_another_session_learns_conditional_and_empty_parameters_and_offers_them_no_more(tmp_path: Path):
    name, storage = "one", f"sqlite:///{tmp_path / 'study.db'}"
    first = optuna.create_study(study_name=name, storage=storage, sampler=PoolSampler(CONDITIONAL, repeats=False))
    first.optimize(conditional, n_trials=5)
    sampler = PoolSampler(CONDITIONAL, repeats=False)
    second = optuna.load_study(study_name=name, storage=storage, sampler=sampler)
    with pytest.raises(StateError, match="every candidate was evaluated"):
        second.optimize(conditional, n_trials=1)
    assert int(sampler._pool.bandit.pulls) == 5
    assert told_of(sampler) == [0, 1, 2, 3, 4]


def test_candidates_that_are_known_are_not_evaluated_again_by_default():
    pool = [{"a": round(float(a), 3)} for a in np.linspace(0, 1, 12)]

    def most(**options: Any) -> int:
        study = optuna.create_study(direction="maximize", sampler=PoolSampler(pool, **options))
        study.optimize(lambda trial: -((trial.suggest_float("a", 0, 1) - 0.3) ** 2), n_trials=30)
        return max(Counter(trial.params["a"] for trial in study.trials).values())

    assert most() == 3
    assert most(repeats=True) > 6


def test_what_runs_elsewhere_or_has_failed_is_not_offered_again(tmp_path: Path):
    pool, name, storage = CORNERS[:4], "one", f"sqlite:///{tmp_path / 'study.db'}"

    def both(trial: Any) -> dict[str, float]:
        return {name: trial.suggest_float(name, 0, 2) for name in ("a", "b")}

    first = optuna.create_study(study_name=name, storage=storage, sampler=PoolSampler(pool, policy=tb.uniform(), repeats=False))
    running, failed = first.ask(), first.ask()
    taken = [both(running), both(failed)]
    first.tell(failed, state=optuna.trial.TrialState.FAIL)
    sampler = PoolSampler(pool, policy=tb.uniform(), repeats=False)
    second = optuna.load_study(study_name=name, storage=storage, sampler=sampler)
    taken += [both(second.ask()), both(second.ask())]
    assert sorted(map(str, taken)) == sorted(map(str, pool))
    with pytest.raises(StateError, match="every candidate"):
        both(second.ask())


@pytest.mark.parametrize("directions", [["maximize"], ["maximize", "minimize"]])
def test_a_single_candidate_is_that_of_every_trial(directions: list[str]):
    study = optuna.create_study(directions=directions, sampler=PoolSampler(CORNERS[:1]))
    study.optimize(lambda trial: [trial.suggest_float("a", 0, 2)] * len(directions), n_trials=3)
    assert [trial.params["a"] for trial in study.trials] == [CORNERS[0]["a"]] * 3


def test_a_candidate_that_is_listed_twice_is_evaluated_once():
    study = optuna.create_study(sampler=PoolSampler([*CORNERS[:3], *CORNERS[:3]], repeats=False))
    study.optimize(lambda trial: trial.suggest_float("a", 0, 2) + trial.suggest_float("b", 0, 2), n_trials=3)
    assert len({str(trial.params) for trial in study.trials}) == 3
    with pytest.raises(StateError, match="every candidate"):
        study.ask().suggest_float("a", 0, 2)


@pytest.mark.usefixtures("annotations_not_enforced")
@pytest.mark.parametrize(
    ("wrong", "named"), [({"policy": "gp_ucb"}, "policy must"), ({"repeats": 1}, "repeats"), ({"seed": -1}, "the seed must")]
)
def test_wrong_arguments_are_refused(wrong: dict[str, Any], named: str):
    with pytest.raises(ArgumentError, match=named):
        PoolSampler(POOL, **wrong)


def test_what_does_not_fit_is_named():
    study = optuna.create_study(sampler=PoolSampler(POOL))
    with pytest.raises(ArgumentError, match="no parameter 'rate', only x, depth, solvent"):
        study.optimize(lambda trial: trial.suggest_float("rate", 0, 1), n_trials=1)
    with pytest.raises(ArgumentError, match=r"depth: the candidate has .* suggest it from a range that holds every candidate"):
        study.optimize(lambda trial: trial.suggest_int("depth", 20, 30), n_trials=1)
    half = optuna.create_study(sampler=PoolSampler([{"depth": 2.5}, {"depth": 3.5}]))
    with pytest.raises(ArgumentError, match=r"the candidate has .\.5, which is not in IntDistribution"):
        half.optimize(lambda trial: trial.suggest_int("depth", 1, 9), n_trials=1)
    # Values between the steps, of which Optuna makes another study only with an error.
    uneven = optuna.create_study(sampler=PoolSampler([{"rate": 0.3, "depth": 4}, {"rate": 0.6, "depth": 6}]))
    uneven.optimize(lambda trial: trial.suggest_float("rate", 0, 1, step=0.1), n_trials=1)
    with pytest.raises(ArgumentError, match=r"the candidate has [46], which is not in IntDistribution"):
        uneven.optimize(lambda trial: trial.suggest_int("depth", 1, 9, step=2), n_trials=1)
    with pytest.raises(ArgumentError, match=r"the candidate has 0\.[36], which is not in FloatDistribution"):
        uneven.optimize(lambda trial: trial.suggest_float("rate", 0, 1, step=0.25), n_trials=1)
    # The only remaining candidate has the fixed kernel and no gamma.
    lacking = optuna.create_study(sampler=PoolSampler([{"kernel": "linear"}, {"kernel": "rbf", "gamma": 1.0}]))
    lacking.enqueue_trial({"kernel": "linear"})
    with pytest.raises(ArgumentError, match="has no parameter 'gamma', which the objective suggests"):
        lacking.optimize(lambda trial: trial.suggest_float("gamma", 0, 10), n_trials=1)


# ---------------------------------------------------------------------- several objectives


def trade_off(trial: Any) -> tuple[float, float]:
    setting = suggested(trial)
    return score(setting), price(setting)


def price(setting: dict[str, Any]) -> float:
    return 10 * setting["x"] + setting["depth"]


def dominated(values: Any) -> float:
    points = torch.tensor([(value, -cost) for value, cost in values], dtype=torch.float64)
    return hypervolume(points, torch.tensor([-0.4, -20.0], dtype=torch.float64))


def test_trade_offs_between_objectives_are_found():
    study = optuna.create_study(directions=["maximize", "minimize"], sampler=PoolSampler(POOL))
    study.optimize(trade_off, n_trials=30)
    assert all(trial.params in POOL for trial in study.trials)
    every = dominated([(score(setting), price(setting)) for setting in POOL])
    assert dominated([trial.values for trial in study.best_trials]) > 0.97 * every
    bandit = study.sampler._pool.bandit
    assert isinstance(bandit, tb.OutcomeBandit)
    assert bandit.pulls.tolist() == [30, 30]
    assert bandit.policy.objectives == dict(zip(bandit.outcomes, ("maximize", "minimize"), strict=True))


def test_trials_of_objectives_that_others_finished_are_learned_and_failures_too():
    storage = optuna.storages.InMemoryStorage()
    options: dict[str, Any] = {"storage": storage, "study_name": "both"}
    first = optuna.create_study(directions=["maximize", "minimize"], sampler=PoolSampler(POOL), **options)
    first.optimize(trade_off, n_trials=8)
    again = optuna.load_study(sampler=pickle.loads(pickle.dumps(PoolSampler(POOL))), **options)
    again.optimize(lambda trial: (suggested(trial)["x"], float("nan")), n_trials=2)
    assert [trial.state.name for trial in again.trials[8:]] == ["FAIL", "FAIL"]
    again.optimize(trade_off, n_trials=3, n_jobs=2)
    bandit = again.sampler._pool.bandit
    assert bandit.pulls.tolist() == [11, 11]
    assert bandit.loop.open is None
    assert bandit.explain().failed == 2
    copied = pickle.loads(pickle.dumps(again.sampler))
    copied._study = again.study_name
    later = optuna.load_study(sampler=copied, **options)
    later.optimize(trade_off, n_trials=2)
    assert copied._pool.bandit.pulls.tolist() == [13, 13]


def test_models_of_ones_own_are_those_of_every_objective():
    sampler = PoolSampler(POOL, policy=policy(), repeats=False)
    study = optuna.create_study(directions=["minimize"] * 3, sampler=sampler)
    study.optimize(lambda trial: (*trade_off(trial), float(suggested(trial)["depth"])), n_trials=6)
    assert len({str(trial.params) for trial in study.trials}) == 6
    assert sampler._pool.bandit.policy.engine.kernel.batch_shape == (3,)
    batches = PoolSampler(POOL, policy=tb.batch_bkb(gpytorch.kernels.RBFKernel().double(), noise_std=0.1))
    refused = optuna.create_study(directions=["minimize"] * 2, sampler=batches)
    with pytest.raises(UnsupportedError, match="must be one Gaussian process with its own width"):
        refused.optimize(trade_off, n_trials=1)
