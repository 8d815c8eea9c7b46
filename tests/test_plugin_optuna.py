"""`PoolSampler` in Optuna's own studies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gpytorch
import numpy as np
import pandas as pd
import pytest

import torchbandits as tb
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


def test_another_session_learns_what_the_study_holds(tmp_path: Path):
    storage = f"sqlite:///{tmp_path / 'study.db'}"
    first = optuna.create_study(study_name="one", storage=storage, direction="maximize", sampler=PoolSampler(POOL))
    first.optimize(objective, n_trials=8)
    running = first.ask()
    waited = suggested(running)
    sampler = PoolSampler(POOL)
    second = optuna.load_study(study_name="one", storage=storage, sampler=sampler)
    second.enqueue_trial({"x": 0.123, "depth": 3, "solvent": "water"})  # no candidate: it teaches nothing
    second.optimize(objective, n_trials=2)
    bandit = sampler._pool.bandit
    assert int(bandit.pulls) == 9
    assert sampler._pool.row_of(waited) in bandit.ask().index.tolist()


def test_threads_share_the_sampler():
    study = optuna.create_study(direction="maximize", sampler=PoolSampler(POOL, policy=policy(), repeats=False))
    study.optimize(objective, n_trials=12, n_jobs=3)
    assert len({str(trial.params) for trial in study.trials}) == 12


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
    several = optuna.create_study(directions=["maximize", "minimize"], sampler=PoolSampler(POOL))
    with pytest.raises(UnsupportedError, match="one objective"):
        several.optimize(lambda trial: (objective(trial), 0.0), n_trials=1)
