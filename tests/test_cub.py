"""CUB's claim on small problems: mean regret within 10 % of the dense GP's with a fraction of its points."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import oracles_compressed as oracle
import pytest
from problems import generator, rbf

import torchbandits as tb
from torchbandits.experiments import load_config, run_experiment
from torchbandits.experiments.config import parse_config

ROOT = Path(__file__).resolve().parents[1]
SEEDS = 8


def played(policy, environment, horizon: int) -> tuple[np.ndarray, np.ndarray]:
    """R_T/T and the model order at T of each seed; the seeds are rows of one batch."""
    history = tb.run(policy, environment, horizon, generator=[generator(seed) for seed in range(SEEDS)])
    rows = [history.row(row) for row in range(SEEDS)]
    regret = np.array([row.cumulative_regret()[-1] / horizon for row in rows])
    return regret, np.array([row.batches["dictionary_size"][-1] for row in rows])


@pytest.mark.sweep(1)
@pytest.mark.parametrize(("acquisition", "share"), [("ucb", 0.7), ("ei", 0.6), ("pi", 0.5)])
def test_cub_is_within_ten_percent_of_the_dense_gp_on_sin_cos(acquisition, share):
    """configs/sin_cos.yaml, on fewer arms and seeds: λ is the variance of the noise, pulls of leverage 0.03 are dropped."""
    environment = tb.environments.sin_cos(num_arms=1000)
    options = {"noise_std": 1.0, "delta": 0.1, "acquisition": acquisition, "initial": tb.starts.uniform(2)}
    options |= {} if acquisition == "ucb" else {"margin": 0.3}
    dense, points = played(tb.gp_ucb(rbf(1.0), **options), environment, 200)
    threshold = oracle.threshold_of(0.03, 1.0)
    regret, kept = played(tb.compressed_gp(rbf(1.0), entropy_threshold=threshold, **options), environment, 200)
    assert regret.mean() <= 1.1 * dense.mean()
    assert kept.mean() <= share * points.mean()


@pytest.mark.sweep(1)
@pytest.mark.parametrize(("acquisition", "share"), [("ucb", 0.85), ("ei", 0.75), ("pi", 0.75)])
def test_cub_is_within_ten_percent_of_the_dense_gp_on_rosenbrock(acquisition, share):
    """configs/rosenbrock.yaml, on fewer arms and seeds: everything at its default."""
    environment = tb.environments.rosenbrock(points_per_dim=21)
    options = {"noise_std": 0.1, "delta": 0.1, "acquisition": acquisition, "initial": tb.starts.uniform(4)}
    dense, points = played(tb.gp_ucb(rbf(1.0), **options), environment, 200)
    regret, kept = played(tb.compressed_gp(rbf(1.0), **options), environment, 200)
    assert regret.mean() <= 1.1 * dense.mean()
    assert kept.mean() <= share * points.mean()


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["sin_cos", "sin_cos_paper", "rosenbrock"])
def test_the_configurations_run(name, tmp_path):
    config = load_config(ROOT / "configs" / f"{name}.yaml")
    small = parse_config(config.model_dump(exclude_none=True) | {"horizon": 8, "repetitions": 1}, name)
    result = run_experiment(small, tmp_path)
    assert result.table["policy"].tolist() == [policy.label for policy in config.policies]
    assert (result.table["regret"] >= 0).all()
    assert (tmp_path / "mean_regret.png").stat().st_size > 5_000
