"""Hyper-parameter searches in which some settings fail: `PoolSampler` beside Optuna's own samplers.

pip install -c constraints.txt -e '.[optuna]' && python scripts/benchmarks/invalid_settings.py --seeds 10

Each search makes 100 trials, one by one. `PoolSampler` chooses among 2,000 settings drawn at random, Optuna's samplers in the
whole space. A trial fails if the training would diverge (learning rate times depth), run out of memory (depth times batch
size), or combine an optimiser with a schedule that it does not have. Optuna's samplers are told of failures in two ways: as
failed trials, and by `constraints_func`, where the value of a failed trial is the worst one so far. Regret is the loss of value
against the best valid setting of the 2,000, in standard deviations of the valid ones; it is negative for a better setting.
"""

from __future__ import annotations

import argparse
import time
import warnings
from typing import Any

import numpy as np
import optuna
import torch
from optuna.trial import TrialState
from regrets import two_errors

import torchbandits as tb
from torchbandits.plugins import PoolSampler

TRIALS, SETTINGS, NOISE = 100, 2_000, 0.1
BATCHES, OPTIMIZERS, SCHEDULES = [16, 32, 64, 128, 256, 512], ["sgd", "adam", "lamb"], ["constant", "cosine", "step", "warm-up"]


def drawn(rng: np.random.Generator) -> dict[str, Any]:
    """A setting drawn from the whole space."""
    return {
        "rate": float(10 ** rng.uniform(-5, 0)),
        "depth": int(rng.integers(1, 13)),
        "batch": int(rng.choice(BATCHES)),
        "dropout": float(rng.uniform(0, 0.7)),
        "optimizer": str(rng.choice(OPTIMIZERS)),
        "schedule": str(rng.choice(SCHEDULES)),
    }


def suggested(trial: optuna.Trial) -> dict[str, Any]:
    """The setting of a trial."""
    return {
        "rate": trial.suggest_float("rate", 1e-5, 1, log=True),
        "depth": trial.suggest_int("depth", 1, 12),
        "batch": trial.suggest_categorical("batch", BATCHES),
        "dropout": trial.suggest_float("dropout", 0, 0.7),
        "optimizer": trial.suggest_categorical("optimizer", OPTIMIZERS),
        "schedule": trial.suggest_categorical("schedule", SCHEDULES),
    }


def value(setting: dict[str, Any]) -> float:
    """The value of a setting, whether it is valid or not: deep networks and large rates are good."""
    best_rate = {"sgd": -0.8, "adam": -2.2, "lamb": -1.6}[setting["optimizer"]]
    rate = (np.log10(setting["rate"]) - best_rate) ** 2 / 3
    depth, dropout = (setting["depth"] - 9) ** 2 / 20, 3 * (setting["dropout"] - 0.2) ** 2
    return -rate - depth - dropout + 0.1 * np.log2(setting["batch"]) + 0.2 * SCHEDULES.index(setting["schedule"])


def fails(setting: dict[str, Any]) -> bool:
    """Whether a trial of the setting fails."""
    diverges = setting["rate"] * setting["depth"] > (0.7 if setting["optimizer"] == "sgd" else 0.07)
    too_large = setting["depth"] * setting["batch"] > 2_500
    return diverges or too_large or (setting["optimizer"], setting["schedule"]) in {("sgd", "warm-up"), ("lamb", "step")}


def violation(trial: optuna.trial.FrozenTrial) -> list[float]:
    """Whether a trial failed, as a constraint."""
    return [float(trial.user_attrs["failed"])]


def sampler(method: str, pool: list[dict[str, Any]], seed: int) -> optuna.samplers.BaseSampler:
    """The sampler of a method."""
    if method.startswith("auto"):
        return PoolSampler(pool, seed=seed)
    constraint = {"constraints_func": violation} if method.endswith("constraint") else {}
    if method.startswith("GP"):
        return optuna.samplers.GPSampler(seed=seed, **constraint)
    if method.startswith("TPE"):
        return optuna.samplers.TPESampler(seed=seed, **constraint)
    return optuna.samplers.RandomSampler(seed=seed)


def search(method: str, seed: int) -> tuple[float, float, float]:
    """The share of trials that failed, the regret of the best trial, and seconds of processor time."""
    rng = np.random.default_rng(seed)
    pool = [drawn(rng) for _ in range(SETTINGS)]
    valid = [value(setting) for setting in pool if not fails(setting)]
    began = time.process_time()
    study = optuna.create_study(direction="maximize", sampler=sampler(method, pool, seed))
    failed, told, truly = 0, [0.0], [-np.inf]
    for noise in NOISE * rng.normal(size=TRIALS):
        trial = study.ask()
        setting = suggested(trial)
        lost = fails(setting)
        failed += lost
        trial.set_user_attr("failed", lost)
        if not lost:
            told.append(value(setting) + noise)
            truly.append(value(setting))
            study.tell(trial, told[-1])
        elif method.endswith("constraint"):
            study.tell(trial, min(told))
        else:
            study.tell(trial, state=TrialState.FAIL)
    found = truly[int(np.argmax(told[1:])) + 1] if len(truly) > 1 else np.mean(valid)
    return failed / TRIALS, float((max(valid) - found) / np.std(valid)), time.process_time() - began


def main(seeds: int) -> None:
    """Print a row per method: means over the seeds, with two standard errors of the regret."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
    warnings.simplefilter("ignore", FutureWarning)
    warnings.simplefilter("ignore", tb.errors.DiagnosticWarning)
    print("| sampler | trials that failed | regret of the best trial | seconds |")
    print("| --- | --- | --- | --- |")
    methods = ["auto (PoolSampler)", "TPE, failed trials", "TPE, constraint", "GP, failed trials", "GP, constraint", "random"]
    for method in methods:
        lost, regret, seconds = np.array([search(method, seed) for seed in range(seeds)]).T
        cells = f"{lost.mean():.0%} | {regret.mean():.2f} ± {two_errors(regret):.2f} | {seconds.mean():.1f}"
        print(f"| {method} | {cells} |", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10)
    torch.set_num_threads(1)
    main(parser.parse_args().seeds)
