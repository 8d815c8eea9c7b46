"""The instructions of the pages for practitioners, applied to tables of scikit-learn, compared with random picks.

    python scripts/benchmarks/followed.py    # three tables, five seeds; twenty minutes of one thread

`campaign` is the program of docs/practitioners.md: six plates of eight rows. The policies are those of docs/choosing.md, with
its function `practical`, one evaluation at a time. The noise of rewards is 10 % of the standard deviation of the column.
Regrets are on the scale on which the best row has 0 and the average row has 1.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import gpytorch
import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from sklearn.datasets import load_breast_cancer, load_diabetes, load_wine

import torchbandits as tb
from torchbandits.errors import DiagnosticWarning

Values = NDArray[np.float64]
SEEDS, PLATES, WELLS, PULLS = 5, 6, 8, 60


def tables() -> Iterator[tuple[str, pd.DataFrame, Values]]:
    """Name, features and the column to be maximised."""
    wine = load_wine(as_frame=True).frame.drop(columns="target")
    yield "wine, colour intensity", wine.drop(columns="color_intensity"), wine["color_intensity"].to_numpy(copy=True)
    cells = load_breast_cancer(as_frame=True).frame
    means = cells[[name for name in cells if name.startswith("mean")]]
    yield "breast cancer, worst symmetry", means, cells["worst symmetry"].to_numpy(copy=True)
    diabetes = load_diabetes(as_frame=True, scaled=False).frame
    yield "diabetes, progression", diabetes.drop(columns="target"), diabetes["target"].to_numpy(copy=True)


def practical(arms: torch.Tensor, pilot: torch.Tensor, repeats: torch.Tensor) -> tuple[torch.Tensor, Any, dict[str, Any]]:
    """The function `practical` of docs/choosing.md."""
    arms = (arms - arms.mean(dim=0)) / arms.std(dim=0).clamp_min(1e-9)
    kernel = gpytorch.kernels.MaternKernel(nu=2.5).double()
    kernel.lengthscale = arms.shape[-1] ** 0.5
    noise_std = float(repeats.std() / pilot.std())
    return arms, kernel, {"noise_std": noise_std, "width": tb.widths.Constant(2.0), "prior_mean": "estimate"}


def plates(features: pd.DataFrame, goal: Values, noise: float, seed: int) -> tuple[int, list[int]]:
    """The row that a campaign recommends at the end, and the rows that it asked for."""
    rng = np.random.default_rng(seed)
    table = features.copy()
    table.insert(0, "id", [f"r{row}" for row in range(len(table))])
    campaign = tb.Campaign(table, objective="goal", generator=torch.Generator().manual_seed(seed))
    asked: list[int] = []
    for _ in range(PLATES):
        plate = campaign.ask(WELLS)
        rows = plate["id"].str[1:].astype(int).to_numpy()
        asked += rows.tolist()
        plate["goal"] = goal[rows] + noise * rng.normal(size=len(rows))
        campaign.tell(plate)
    return int(campaign.best(1)["id"].iloc[0][1:]), asked


def random(goal: Values, noise: float, seed: int) -> tuple[int, list[int]]:
    """The same number of random rows, of which the best measured row is recommended."""
    rng = np.random.default_rng(seed)
    rows = rng.choice(len(goal), PLATES * WELLS, replace=False)
    return int(rows[(goal[rows] + noise * rng.normal(size=len(rows))).argmax()]), rows.tolist()


def singles(features: pd.DataFrame, goal: Values, noise: float, seed: int) -> Iterator[tuple[str, float, float]]:
    """Policies with one evaluation at a time: name, regret of the recommended row, mean regret. `practical` needs 40 pilot
    evaluations."""
    arms, means = torch.tensor(features.to_numpy(np.float64)), torch.from_numpy(goal)
    table, draw = tb.environments.Table(arms, means, noise), torch.Generator().manual_seed(seed)
    index = torch.randint(len(arms), (30,), generator=draw)
    pilot, repeats = table.sample(index, [draw]), table.sample(index[:1].expand(10), [draw])
    scaled_arms, kernel, given = practical(arms, pilot, repeats)
    scaled = tb.environments.Table(scaled_arms, means / pilot.std(), noise / float(pilot.std()))
    gap = float((means.max() - means.mean()) / pilot.std())
    policies = {
        "uniform": tb.uniform(),
        "auto": tb.auto(),
        "gp_ucb, practical": tb.gp_ucb(kernel, **given),
        "batch_bkb, practical": tb.batch_bkb(kernel, **given),
    }
    for name, policy in policies.items():
        found = tb.run(policy, scaled, PULLS, generator=torch.Generator().manual_seed(seed)).summary()
        yield name, found["simple_regret"] / gap, found["regret"] / PULLS / gap


def main() -> None:
    for name, features, goal in tables():
        noise, gap = 0.1 * float(goal.std()), goal.max() - goal.mean()
        regret = (goal.max() - goal) / gap
        found: dict[str, list[tuple[float, float]]] = {}
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always", DiagnosticWarning)
            for seed in range(SEEDS):
                for label, (row, asked) in {
                    "campaign, 6 plates of 8": plates(features, goal, noise, seed),
                    "48 at random": random(goal, noise, seed),
                }.items():
                    found.setdefault(label, []).append((regret[row], float(regret[asked].mean())))
                for label, simple, mean in singles(features, goal, noise, seed):
                    found.setdefault(f"{label}, {PULLS}", []).append((simple, mean))
        print(f"\n{name}, {len(goal)} rows")
        for label, pairs in found.items():
            simple, mean = np.mean(pairs, axis=0)
            each = " ".join(f"{one:.2f}" for one, _ in pairs)
            print(f"  {label:24} recommended {simple:.3f} ({each})  mean of the evaluations {mean:.3f}")
        for text in sorted({str(one.message) for one in said if issubclass(one.category, DiagnosticWarning)}):
            print(f"  warned: {text}")


if __name__ == "__main__":
    main()
