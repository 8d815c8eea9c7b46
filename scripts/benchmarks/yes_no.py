"""Yes-or-no results: what `auto` and a stated noise find, and how far their expected values are off.

    python scripts/benchmarks/yes_no.py [--seeds 20] [--batch 1]

Each campaign has 500 rows of four uniform numbers. The probability of success is the logistic function of twice a draw of a
Gaussian process (RBF, lengthscale 0.5) with mean 0, and 60 results are told. Printed are simple and mean regret (0 at the best
row, 1 at the average one), with the difference to `auto` and twice its standard error.
"""

from __future__ import annotations

import argparse
import warnings

import numpy as np
import pandas as pd
import torch
from regrets import relative, two_errors

import torchbandits as tb

RESULTS = 60


def problem(seed: int) -> tuple[pd.DataFrame, np.ndarray]:
    """The rows of a campaign and the probability of success of each."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(size=(500, 4))
    K = np.exp(-((x[:, None] - x) ** 2).sum(axis=-1) / (2 * 0.5**2))
    f = np.linalg.cholesky(K + 1e-8 * np.eye(500)) @ rng.normal(size=500)
    return pd.DataFrame(x, columns=list("abcd")).rename_axis("id").reset_index(), 1 / (1 + np.exp(-2 * f))


def play(seed: int, batch: int, **options: float) -> tuple[float, float, float]:
    """Simple regret, mean regret, and by how many deviations the expected value of the recommended row is off."""
    rows, p = problem(seed)
    luck = np.random.default_rng([seed, 1]).uniform(size=RESULTS)
    campaign = tb.Campaign(rows, objective="success", generator=torch.Generator().manual_seed(seed), **options)
    told: list[int] = []
    while len(told) < RESULTS:
        plate = campaign.ask(min(batch, RESULTS - len(told)))
        ids = plate["id"].to_numpy()
        success = luck[len(told) : len(told) + len(ids)] < p[ids]
        campaign.tell(pd.DataFrame({"id": ids, "success": success.astype(float)}))
        told += ids.tolist()
    best = campaign.best(1).iloc[0]
    regret = relative(p)
    return regret[int(best["id"])], regret[told].mean(), abs(best["expected"] - p[int(best["id"])]) / best["deviation"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--batch", type=int, default=1)
    given = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    found = {
        name: np.array([play(seed, given.batch, **options) for seed in range(given.seeds)])
        for name, options in (("auto", {}), ("noise_std=0.5", {"noise_std": 0.5}))
    }
    for name, own in found.items():
        difference = own[:, :2] - found["auto"][:, :2]
        error = two_errors(difference)
        simple, mean = (f"{own[:, j].mean():.3f} ({difference[:, j].mean():+.3f} ± {error[j]:.3f})" for j in (0, 1))
        print(
            f"{name}: simple regret {simple}, mean regret {mean}, off by at most {own[:, 2].max():.1f} deviations", flush=True
        )


if __name__ == "__main__":
    main()
