"""Random Matérn functions of known norm (Janz et al. 2020, table 1): regret as a fraction of uniform, and seconds.

    python scripts/benchmarks/matern.py 1 2 --way run --way ask     # d = 1 and 2, twelve paired draws each
    python scripts/benchmarks/matern.py 3 --policy igp_ucb --out results/matern.jsonl   # one line per draw; resumes

ν = 3/2, ℓ = 1/5, 30^d arms, noise uniform on [−1, 1], λ = 1, δ = 0.1, B the exact norm of each draw.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from itertools import product
from pathlib import Path

import torch
from fixed_kernels import matern

import torchbandits as tb

# Fraction of uniform's regret, and seconds.
PUBLISHED = {
    "igp_ucb": {1: (0.11, 82 * 60), 2: (0.71, 118 * 60), 3: (0.97, 30 * 3600)},
    "pi_gp_ucb": {1: (0.09, 12 * 60), 2: (0.52, 97), 3: (0.77, 29 * 60)},
}


def policy_for(name: str, norm_bound, horizon: int):
    kernel = matern(1.5, 0.2)
    options = {"noise_std": 1.0, "norm_bound": norm_bound, "delta": 0.1}
    if name == "igp_ucb":
        return tb.igp_ucb(kernel, **options)
    return tb.pi_gp_ucb(kernel, nu=1.5, horizon=horizon, **options)


def environment_of(draws: list) -> tb.environments.Environment:
    """The draws of one table as batch rows; a single draw has no batch dimension."""
    if len(draws) == 1:
        return draws[0]
    arms = draws[0].arms
    means = torch.stack([d.means for d in draws])
    return tb.environments.Table(arms.expand(len(draws), *arms.shape), means, 1.0, name="rkhs", noise="uniform")


def play(name: str, seeds: list[int], d: int, horizon: int, way: str) -> list[dict]:
    """Run the given draws together. Returns one record per draw."""
    draws = [tb.environments.rkhs(dim=d, generator=torch.Generator().manual_seed(s)) for s in seeds]
    environment = environment_of(draws)
    norms = torch.tensor([x.norm_bound for x in draws], dtype=torch.float64)
    generators = [torch.Generator().manual_seed(s) for s in seeds]
    policy = policy_for(name, norms if len(seeds) > 1 else float(norms), horizon)
    single = generators[0] if len(seeds) == 1 else generators
    regret = torch.zeros(len(seeds), dtype=torch.float64)
    began = time.perf_counter()
    if way == "run":
        history = tb.run(policy, environment, horizon, generator=single)
        seconds = time.perf_counter() - began
        for row in range(len(seeds)):
            regret[row] = float(history.cumulative_regret(row)[-1])
    else:
        noise = [torch.Generator().manual_seed(10_000 + s) for s in seeds]
        bandit = tb.Bandit(policy, environment.arms, generator=single)
        seconds = 0.0
        for _ in range(horizon):
            began = time.perf_counter()
            selection = bandit.ask()
            seconds += time.perf_counter() - began
            rewards = environment.sample(selection.index, noise)
            regret += environment.regret(selection.index).reshape(len(seeds), -1).sum(dim=-1)
            began = time.perf_counter()
            bandit.tell(selection, rewards)
            seconds += time.perf_counter() - began
    uniform = [horizon * float((x.optimum - x.means).mean()) for x in draws]
    common = {"policy": name, "d": d, "way": way, "rows": len(seeds), "seconds": seconds / len(seeds)}
    return [common | {"seed": s, "fraction": float(r) / u} for s, r, u in zip(seeds, regret, uniform, strict=True)]


def interval(values: list[float]) -> str:
    x = torch.tensor(values, dtype=torch.float64)
    half = 1.96 * float(x.std()) / math.sqrt(len(x)) if len(x) > 1 else math.nan
    return f"{float(x.mean()):.3f} ± {half:.3f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dims", type=int, nargs="+", choices=[1, 2, 3])
    parser.add_argument("--policy", action="append", choices=list(PUBLISHED))
    parser.add_argument("--draws", type=int, default=12)
    parser.add_argument("--first", type=int, default=0, help="seed of the first draw")
    parser.add_argument("--horizon", type=int, default=10_000)
    parser.add_argument("--way", action="append", choices=["run", "ask"], help="tb.run, or ask/tell (its seconds alone)")
    parser.add_argument("--rows", type=int, default=12, help="draws that are batch rows of one run; 1 for one by one")
    parser.add_argument("--out", type=Path, help="JSON lines; draws that are in it already are not run again")
    options = parser.parse_args()
    known = options.out.read_text().splitlines() if options.out and options.out.exists() else []
    records = [json.loads(line) for line in known]
    key = ("policy", "d", "seed", "way", "rows")
    done = {tuple(r[k] for k in key) for r in records}
    last = options.first + options.draws
    parts = [range(start, min(last, start + options.rows)) for start in range(options.first, last, options.rows)]
    for d, name, way, seeds in product(options.dims, options.policy or PUBLISHED, options.way or ["run"], parts):
        if all((name, d, seed, way, len(seeds)) in done for seed in seeds):
            continue
        fresh = play(name, list(seeds), d, options.horizon, way)
        records += fresh
        if options.out:
            options.out.parent.mkdir(parents=True, exist_ok=True)
            with options.out.open("a") as file:
                file.writelines(json.dumps(r) + "\n" for r in fresh)
    print("| d | policy | way | draws (rows a run) | fraction of uniform | published | seconds a draw | published |")
    print("|---|---|---|---|---|---|---|---|")
    groups = sorted({(r["d"], r["policy"], r["way"], r["rows"]) for r in records})
    for d, name, way, rows in groups:
        own = [r for r in records if (r["d"], r["policy"], r["way"], r["rows"]) == (d, name, way, rows)]
        fraction, seconds = PUBLISHED[name][d]
        mean = sum(r["seconds"] for r in own) / len(own)
        values = interval([r["fraction"] for r in own])
        print(f"| {d} | {name} | {way} | {len(own)} ({rows}) | {values} | {fraction} | {mean:.2f} | {seconds} |")


if __name__ == "__main__":
    main()
