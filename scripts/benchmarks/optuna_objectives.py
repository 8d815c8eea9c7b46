"""Hyper-parameter searches with two objectives: `PoolSampler` beside Optuna's own samplers.

pip install -c constraints.txt -e '.[optuna]' && python scripts/benchmarks/optuna_objectives.py --seeds 10

The settings are those of `invalid_settings.py`, none of which fails here. Their value is maximised, and the seconds of a
training, which grow with depth and small batches, are minimised; both are measured with noise. `PoolSampler` chooses among
2,000 settings drawn at random, Optuna's samplers in the whole space. The share is that of the hypervolume of the 2,000
settings, above their worst value and their longest training, that the settings tried have by their true values, with seconds in
logarithms.
"""

from __future__ import annotations

import argparse
import math
import time
import warnings
from collections.abc import Iterable
from typing import Any

import numpy as np
import optuna
import torch
from invalid_settings import SETTINGS, drawn, suggested, value
from regrets import two_errors

import torchbandits as tb
from torchbandits.aims import hypervolume
from torchbandits.plugins import PoolSampler

TRIALS, MARKS, NOISE = 100, (30, 60, 100), 0.1
METHODS = ("auto (PoolSampler)", "TPE", "NSGA-II", "GP", "random")


def seconds_of(setting: dict[str, Any]) -> float:
    """Seconds of a training."""
    return setting["depth"] ** 1.5 * (1 + 200 / setting["batch"]) * {"sgd": 1.0, "adam": 1.3, "lamb": 1.5}[setting["optimizer"]]


def objectives(settings: Iterable[dict[str, Any]]) -> torch.Tensor:
    """Value and negative logarithm of the seconds, larger being better, `n x 2`."""
    return torch.tensor([(value(own), -math.log(seconds_of(own))) for own in settings], dtype=torch.float64)


def sampler(method: str, pool: list[dict[str, Any]], seed: int) -> optuna.samplers.BaseSampler:
    """The sampler of a method."""
    made = {
        "TPE": optuna.samplers.TPESampler,
        "NSGA-II": optuna.samplers.NSGAIISampler,
        "GP": optuna.samplers.GPSampler,
        "random": optuna.samplers.RandomSampler,
    }
    return made[method](seed=seed) if method in made else PoolSampler(pool, seed=seed)


def search(method: str, seed: int) -> list[float]:
    """The share of the hypervolume after each number of trials in `MARKS`, and seconds of processor time."""
    rng = np.random.default_rng(seed)
    pool = [drawn(rng) for _ in range(SETTINGS)]
    whole = objectives(pool)
    worst = whole.amin(dim=0)
    began = time.process_time()
    study = optuna.create_study(directions=["maximize", "minimize"], sampler=sampler(method, pool, seed))
    tried = []
    for noise in NOISE * rng.normal(size=(TRIALS, 2)):
        trial = study.ask()
        tried.append(suggested(trial))
        study.tell(trial, [value(tried[-1]) + noise[0], seconds_of(tried[-1]) * math.exp(noise[1])])
    took = time.process_time() - began
    return [*(hypervolume(objectives(tried[:mark]), worst) / hypervolume(whole, worst) for mark in MARKS), took]


def main(seeds: int) -> None:
    """Print a row per method: means over the seeds, with two standard errors."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
    warnings.simplefilter("ignore", FutureWarning)
    warnings.simplefilter("ignore", tb.errors.DiagnosticWarning)
    print(f"| sampler | {' | '.join(f'{mark} trials' for mark in MARKS)} | seconds |")
    print("| --- | --- | --- | --- | --- |")
    for method in METHODS:
        *shares, seconds = np.array([search(method, seed) for seed in range(seeds)]).T
        cells = [f"{own.mean():.3f} ± {two_errors(own):.3f}" for own in shares]
        print(f"| {method} | {' | '.join(cells)} | {seconds.mean():.1f} |", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10)
    torch.set_num_threads(1)
    main(parser.parse_args().seeds)
