"""What parallel evaluation costs `auto`: the same number of evaluations one by one, by eight workers, and in plates of eight.

python scripts/benchmarks/waiting.py                       # seven functions of 4,000 points, 28 runs
python scripts/benchmarks/waiting.py --problems tables --noise 0.1 --seeds 6    # five tables of TORCHBANDITS_DATA, 30 runs

Workers of equal speed are simulated: each pick is made while seven others wait for their rewards. Noise is in deviations of the
rewards, and regret is 0 at the best arm and 1 at the average arm. Differences are paired by problem and seed. One thread.
"""

from __future__ import annotations

import os

# Must be set before NumPy and torch start their threads.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import warnings
from typing import Annotated, Any

import torch
import typer
from auto_problems import PROBLEMS
from regrets import print_differences

import torchbandits as tb
from torchbandits.errors import DiagnosticWarning

# The policy and the options of `run` for each way.
WAYS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "one by one": ({}, {}),
    "eight workers": ({}, {"asynchronous": True, "workers": 8}),
    "plates of eight": ({"batch_size": 8}, {}),
}


def main(
    problems: Annotated[str, typer.Option(help=f"One of {', '.join(PROBLEMS)}.")] = "functions",
    pulls: int = 112,
    noise: float = 0.3,
    seeds: int = 4,
) -> None:
    """Print simple and mean regret of each way, and the differences to one by one with two standard errors."""
    warnings.simplefilter("ignore", DiagnosticWarning)
    found: dict[str, list[tuple[float, ...]]] = {way: [] for way in WAYS}
    for x, y in PROBLEMS[problems]():
        environment = tb.environments.Table(torch.from_numpy(x), torch.from_numpy(y), noise)
        for seed in range(seeds):
            for way, (policy, options) in WAYS.items():
                generator = torch.Generator().manual_seed(seed)
                history = tb.run(tb.auto(**policy), environment, pulls, generator=generator, **options)
                scale = float(y.max() - y.mean())
                own = history.summary()
                found[way].append((own["simple_regret"] / scale, own["regret"] / pulls / scale))
    print_differences(found)


if __name__ == "__main__":
    typer.run(main)
