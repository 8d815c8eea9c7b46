"""Regret under the default widths of BKB, BBKB and GP-UCB and under a constant width: the figures of docs/choosing.md.

    OMP_NUM_THREADS=1 python scripts/benchmarks/default_widths.py [--seeds 10]    # a minute of one thread

The table is scikit-learn's diabetes (442 arms) with noise of standard deviation 20. Kernel and noise level are those of the
function `practical` of that page, from 30 random rewards and ten of one arm; 200 pulls follow. Prints the regret as a fraction
of that of uniform picks (mean regret over mean regret), and the mean width at the last pull.
"""

from __future__ import annotations

import argparse
import warnings
from collections import defaultdict
from collections.abc import Iterator

import torch
from followed import practical
from sklearn.datasets import load_diabetes

import torchbandits as tb
from torchbandits.errors import DiagnosticWarning

NOISE, PILOT, REPEATS, PULLS = 20.0, 30, 10, 200


def runs(seed: int) -> Iterator[tuple[str, float, float]]:
    """Name of a policy, its regret and its last width."""
    features, progress = load_diabetes(return_X_y=True, scaled=False)
    table = tb.environments.Table(torch.from_numpy(features), torch.from_numpy(progress), NOISE)
    draw = torch.Generator().manual_seed(seed)
    index = torch.randint(len(features), (PILOT,), generator=draw)
    pilot, repeats = table.sample(index, [draw]), table.sample(index[:1].expand(REPEATS), [draw])
    arms, kernel, constant = practical(torch.from_numpy(features), pilot, repeats)
    default = {name: value for name, value in constant.items() if name != "width"}
    scaled = tb.environments.Table(arms, table.means / pilot.std(), NOISE / float(pilot.std()))
    policies = {
        "uniform": tb.uniform(),
        "bkb": tb.bkb(kernel, **default),
        "batch_bkb": tb.batch_bkb(kernel, **default),
        "gp_ucb": tb.gp_ucb(kernel, **default),
        "batch_bkb, width 2": tb.batch_bkb(kernel, **constant),
        "gp_ucb, width 2": tb.gp_ucb(kernel, **constant),
    }
    for name, policy in policies.items():
        history = tb.run(policy, scaled, PULLS, generator=torch.Generator().manual_seed(seed))
        yield name, history.summary()["regret"], float(history.batches["width"][-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10)
    seeds = parser.parse_args().seeds
    warnings.simplefilter("ignore", DiagnosticWarning)
    regrets: dict[str, float] = defaultdict(float)
    widths: dict[str, float] = defaultdict(float)
    for seed in range(seeds):
        for name, regret, width in runs(seed):
            regrets[name] += regret / seeds
            widths[name] += width / seeds
    print("| policy | regret / uniform's | width |\n| --- | --- | --- |")
    for name, regret in regrets.items():
        print(f"| {name} | {regret / regrets['uniform']:.2f} | {widths[name]:.1f} |")


if __name__ == "__main__":
    main()
