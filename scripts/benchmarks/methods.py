"""The methods of 2023 to 2026 compared with gp_ucb, batch_bkb and bpe: regret, stopping, sets of arms, late and drifting
rewards.

    python scripts/benchmarks/methods.py run                   # regrets of all policies, ten seeds, to docs/results/methods.csv
    python scripts/benchmarks/methods.py run --problem abalone # the same for one problem
    python scripts/benchmarks/methods.py stopping              # to docs/results/methods-stopping.csv
    python scripts/benchmarks/methods.py sets                  # to docs/results/methods-sets.csv
    python scripts/benchmarks/methods.py late                  # to docs/results/methods-late.csv
    python scripts/benchmarks/methods.py drift                 # to docs/results/methods-drift.csv
    python scripts/benchmarks/methods.py page                  # pages of docs/methods from these files

The seeds of a policy are batch rows of one run. Rows that are already in a file are kept and not run again.
"""

from __future__ import annotations

import argparse
import csv
import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import gpytorch
import numpy as np
import torch
from fixed_kernels import rbf
from scipy import stats
from torch import Tensor

import torchbandits as tb

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "results"
PAGES = ROOT / "docs" / "methods"
SEEDS = 10
Row = dict[str, Any]


def seeded(seed: int) -> torch.Generator:
    """A CPU generator."""
    return torch.Generator().manual_seed(seed)


# ---------------------------------------------------------------------- problems


@dataclass(frozen=True)
class Problem:
    """One environment for all seeds, or one per seed, with the kernel and the noise that policies are given.

    Attributes:
        name: Name of the problem.
        environments: One environment, or one per seed.
        kernel: The kernel given to every policy.
        noise_std, norm_bound: Noise and norm bound given to every policy.
        horizon: Number of pulls.
    """

    name: str
    environments: list[Any]
    kernel: gpytorch.kernels.Kernel
    noise_std: float
    norm_bound: float
    horizon: int


def matern(nu: float, lengthscale: float) -> gpytorch.kernels.Kernel:
    """A Matérn kernel in float64."""
    kernel = gpytorch.kernels.MaternKernel(nu).double()
    kernel.lengthscale = lengthscale
    return kernel


TITLES = {"matern": "Matérn functions", "nas201": "NAS-Bench-201", "abalone": "Abalone"}
WHAT = {
    "matern": """Matérn-3/2 functions of known RKHS norm on a grid of 900 arms, lengthscale 0.2, noise uniform on [−1, 1]
(those of `pi-table1`, d = 2), one for each seed. The policies have the true kernel, and the average norm of the ten
functions as their norm bound""",
    "nas201": """NAS-Bench-201, CIFAR-10: 15,625 cells, of which a pull draws one of the recorded trainings. A Matérn-5/2 kernel
with lengthscale 2, noise 0.01 and norm bound 1 were chosen beforehand and not tuned""",
    "abalone": """Abalone: 4,177 arms of 8 features, noise 0.01. The kernel is RBF with lengthscale 5, as for `gp_ucb` in the
figures of BBKB, and the norm bound is 1""",
}


def matern_functions() -> Problem:
    """Ten functions as in pi-table1, d = 2."""
    environments = [tb.environments.rkhs(dim=2, generator=seeded(seed)) for seed in range(SEEDS)]
    bound = float(np.mean([environment.norm_bound for environment in environments]))
    return Problem("matern", environments, matern(1.5, 0.2), 1.0, bound, 300)


def nas() -> Problem:
    """NAS-Bench-201 with its recorded accuracies."""
    return Problem("nas201", [tb.environments.nas_bench_201()], matern(2.5, 2.0), 0.01, 1.0, 200)


def abalone() -> Problem:
    """Abalone with the standardised features of the papers."""
    return Problem("abalone", [tb.environments.abalone(noise_std=0.01)], rbf(5.0), 0.01, 1.0, 200)


PROBLEMS: dict[str, Callable[[], Problem]] = {"matern": matern_functions, "nas201": nas, "abalone": abalone}


# ---------------------------------------------------------------------- policies


def longer(kernel: gpytorch.kernels.Kernel, factor: float) -> gpytorch.kernels.Kernel:
    """The kernel with a longer lengthscale."""
    base = gpytorch.kernels.MaternKernel(kernel.nu) if hasattr(kernel, "nu") else gpytorch.kernels.RBFKernel()
    base = base.double()
    base.lengthscale = kernel.lengthscale.detach() * factor
    return base


def policies(p: Problem) -> dict[str, Callable[[], Any]]:
    """The policies that are compared, by the name in the tables."""
    k, noise, bound, T = p.kernel, {"noise_std": p.noise_std}, p.norm_bound, p.horizon
    bounded = noise | {"norm_bound": bound, "delta": 0.1}
    # The λ of `igp_ucb`, as in its paper.
    igp = tb.widths.IGP(p.noise_std, bound, 0.1, 1.0)
    two = tb.widths.Constant(2.0)
    # With many features, the number of candidate lengthscales would otherwise grow until memory runs out.
    few = {"growth": 0.5 if p.name == "matern" else 0.01}
    return {
        "`gp_ucb`": lambda: tb.gp_ucb(k, delta=0.1, **noise),
        "`gp_ucb`, width 2": lambda: tb.gp_ucb(k, width=two, **noise),
        "`igp_ucb`": lambda: tb.igp_ucb(k, **bounded),
        "`batch_bkb`, width 2": lambda: tb.batch_bkb(k, width=two, **bounded),
        "`reds`": lambda: tb.reds(k, horizon=T, **bounded),
        "`irgp_ucb`": lambda: tb.irgp_ucb(k, **noise),
        "`igp_ucb`, half-normal": lambda: tb.igp_ucb(k, width=tb.widths.Explored(igp), **bounded),
        "`lb_gp_ucb`, lengthscale × 4": lambda: tb.lb_gp_ucb(longer(k, 4.0), horizon=T, **few, **bounded),
        "`igp_ucb`, lengthscale × 4": lambda: tb.igp_ucb(longer(k, 4.0), **bounded),
        "at most 8 at a time: `batch_bkb`, width 2": lambda: tb.batch_bkb(k, max_batch_size=8, width=two, **bounded),
        "8 at a time: `kriging_believer`, width 2": lambda: tb.kriging_believer(k, batch_size=8, width=two, **noise),
        "8 at a time: `qpo`": lambda: tb.qpo(k, batch_size=8, **noise),
        "`uniform`": lambda: tb.uniform(),
        "`bpe`": lambda: tb.bpe(k, horizon=T, **bounded),
    }


def played(p: Problem, make: Callable[[], Any], seeds: range) -> list[tuple[float, float]]:
    """For each seed, the expected regret per pull, and the regret of the arm recommended at the end."""
    found: list[tuple[float, float]] = []
    groups = [[seed] for seed in seeds] if len(p.environments) > 1 else [list(seeds)]
    for group in groups:
        environment = p.environments[group[0] if len(p.environments) > 1 else 0]
        history = tb.run(make(), environment, p.horizon, generator=[seeded(seed) for seed in group])
        for row in range(len(group)):
            found.append((float(history.cumulative_regret(row)[-1]) / p.horizon, float(history.best(row)["simple_regret"])))
    return found


def run(names: Iterable[str], output: Path) -> None:
    """Run everything that is not in the file yet."""
    rows = read(output)
    done = {(row["problem"], row["policy"]) for row in rows}
    for name in names:
        problem = PROBLEMS[name]()
        for policy, make in policies(problem).items():
            if (name, policy) in done:
                continue
            began = time.process_time()
            # With several posteriors, or the covariance of many survivors, all seeds together would not fit into memory.
            whole, large = range(SEEDS), "lb_gp_ucb" in policy or (name == "nas201" and "bpe" in policy)
            parts = [range(seed, seed + 1) for seed in whole] if large else [whole]
            found = [pair for part in parts for pair in played(problem, make, part)]
            seconds = (time.process_time() - began) / SEEDS
            for seed, (mean, final) in enumerate(found):
                row = {"problem": name, "policy": policy, "seed": seed, "pulls": problem.horizon}
                rows.append(row | {"regret": f"{mean:.6g}", "final": f"{final:.6g}", "seconds": f"{seconds:.3g}"})
            write(output, rows)
            print(name, policy, f"{np.mean([m for m, _ in found]):.4g}", f"{seconds:.3g} s a seed", flush=True)


# ---------------------------------------------------------------------- stopping


DRAWS, ARMS, STEP, MOST = 200, 50, 5, 300


def rules() -> dict[str, tuple[Any, float]]:
    """Stopping rules with their guaranteed probability."""
    s = tb.stopping
    return {
        "`EpsilonOptimal(0.5)`, Srinivas, δ = 0.1": (s.EpsilonOptimal(0.5, tb.widths.Srinivas(0.1)), 0.9),
        "`ProbableRegret(0.5, 0.1)`": (s.ProbableRegret(0.5, 0.1), 0.9),
        "`ProbableRegret(0.1, 0.1)`": (s.ProbableRegret(0.1, 0.1), 0.9),
        "`ProbableRegret(0.1, 0.3)`": (s.ProbableRegret(0.1, 0.3), 0.7),
        "`TopKKnown(3, 1.0)`, Srinivas, δ = 0.1": (s.TopKKnown(3, 1.0, tb.widths.Srinivas(0.1)), 0.9),
        "`LevelSetKnown(0.5, 0.5)`, Srinivas, δ = 0.1": (s.LevelSetKnown(0.5, 0.5, tb.widths.Srinivas(0.1)), 0.9),
    }


def right(name: str, f: Tensor, mean: Tensor, arm: Tensor) -> Tensor:
    """Whether the guarantee of a rule holds, `draws` booleans, for functions and posterior means `draws x A`."""
    best = f.amax(dim=-1)
    if "TopK" in name:
        top = mean.topk(3, dim=-1).indices
        rest = f.scatter(-1, top, -torch.inf).amax(dim=-1)
        return rest - f.gather(-1, top).amin(dim=-1) <= 1.0
    if "LevelSet" in name:
        return ((mean >= 0.5) & (f < 0.0) | (mean < 0.5) & (f > 1.0)).sum(dim=-1) == 0
    epsilon = 0.5 if "0.5" in name.split("δ")[0] else 0.1
    return best - f.gather(-1, arm.unsqueeze(-1)).squeeze(-1) <= epsilon


def drawn() -> tuple[Tensor, gpytorch.kernels.Kernel, Tensor]:
    """Arms, the kernel of a prior and functions drawn from it, `draws x A`."""
    arms = torch.rand(ARMS, 2, generator=seeded(0), dtype=torch.float64)
    kernel = matern(2.5, 0.4)
    root = torch.linalg.cholesky(kernel(arms).to_dense().detach() + 1e-9 * torch.eye(ARMS, dtype=torch.float64))
    return arms, kernel, torch.randn(DRAWS, ARMS, generator=seeded(1), dtype=torch.float64) @ root.T


def stopping(output: Path) -> None:
    """Run draws of the prior as batch rows under gp_ucb and under irgp_ucb, and record when each rule stops."""
    arms, kernel, f = drawn()
    rows: list[Row] = []
    for policy in ("gp_ucb", "irgp_ucb"):
        make = tb.gp_ucb(kernel, noise_std=0.3, delta=0.1) if policy == "gp_ucb" else tb.irgp_ucb(kernel, noise_std=0.3)
        bandit, noise = tb.Bandit(make, arms, generator=[seeded(s) for s in range(DRAWS)]), seeded(2)
        stopped = {name: torch.full((DRAWS,), -1) for name in rules()}
        good = {name: torch.zeros(DRAWS, dtype=torch.bool) for name in rules()}
        for t in range(1, MOST + 1):
            selection = bandit.ask()
            y = f.gather(-1, selection.index)
            bandit.tell(selection, y + 0.3 * torch.randn(y.shape, generator=noise, dtype=torch.float64))
            if t % STEP:
                continue
            mean, arm = bandit.posterior(arms).mean, bandit.best_arm()
            for name, (rule, _) in rules().items():
                if bool((stopped[name] >= 0).all()):
                    continue
                now = bandit.should_stop(rule).stop & (stopped[name] < 0)
                stopped[name] = torch.where(now, t, stopped[name])
                good[name] = torch.where(now, right(name, f, mean, arm), good[name])
            print(policy, t, {name: int((at >= 0).sum()) for name, at in stopped.items()}, flush=True)
        for name, (_, promise) in rules().items():
            ended = stopped[name] >= 0
            at = stopped[name][ended].double()
            own = {"policy": policy, "rule": name, "promise": promise, "draws": DRAWS, "stopped": int(ended.sum())}
            rows.append(own | {"right": int(good[name].sum()), "median": float(at.median()) if len(at) else math.nan})
        write(output, rows)


# ---------------------------------------------------------------------- sets


LEVEL, AFTER = 0.5, (12, 24, 48, 96, 192, 288)


def sets(output: Path) -> None:
    """Success curves: the best arm, the best three and a level set, by the posterior of the rewards of each policy."""
    arms, kernel, f = drawn()
    width, noise_std = tb.widths.Constant(2.0), 0.3
    makers: dict[str, Callable[[], Any]] = {}
    for mark, given in (("", {"width": width}), (", δ = 0.1", {"delta": 0.1})):
        own = {"noise_std": noise_std, **given}
        makers[f"`lucb`, k = 1{mark}"] = partial(tb.lucb, kernel, k=1, batch_size=1, **own)
        makers[f"`lucb`, k = 3{mark}"] = partial(tb.lucb, kernel, k=3, batch_size=1, **own)
        makers[f"`lse`{mark}"] = partial(tb.lse, kernel, level=LEVEL, **own)
        makers[f"`gp_ucb`{mark}"] = partial(tb.gp_ucb, kernel, **own)
    makers["`uniform`"] = tb.uniform
    certain = {
        "TopKKnown(1, 1.0)": tb.stopping.TopKKnown(1, 1.0, tb.widths.Srinivas(0.1)),
        "TopKKnown(3, 1.0)": tb.stopping.TopKKnown(3, 1.0, tb.widths.Srinivas(0.1)),
        "LevelSetKnown(0.5, 0.5)": tb.stopping.LevelSetKnown(LEVEL, 0.5, tb.widths.Srinivas(0.1)),
    }
    best, top = f.argmax(dim=-1), f.topk(3, dim=-1).indices.sort(dim=-1).values
    rows: list[Row] = []
    for name, make in makers.items():
        seeds = [seeded(s) for s in range(DRAWS)]
        bandit, noise = tb.Bandit(make(), arms, generator=seeds), seeded(2)
        judge = tb.Bandit(
            tb.gp_ucb(kernel, noise_std=noise_std, width=width), arms, generator=[seeded(s) for s in range(DRAWS)]
        )
        stopped = {rule: torch.full((DRAWS,), -1) for rule in certain}
        for t in range(1, AFTER[-1] + 1):
            selection = bandit.ask(limit=1)
            y = f.gather(-1, selection.index)
            y = y + noise_std * torch.randn(y.shape, generator=noise, dtype=torch.float64)
            for one in (bandit, judge):
                one.tell(selection.index, y)
            if t % AFTER[0] == 0:
                for rule, known in certain.items():
                    now = judge.should_stop(known).stop & (stopped[rule] < 0)
                    stopped[rule] = torch.where(now, t, stopped[rule])
            if t in AFTER:
                mean = judge.posterior(arms).mean
                found = mean.argmax(dim=-1) == best
                three = (mean.topk(3, dim=-1).indices.sort(dim=-1).values == top).all(dim=-1)
                sides = ((mean >= LEVEL) == (f >= LEVEL)).double().mean(dim=-1)
                shares = {"best": found.double(), "three": three.double(), "level": sides}
                own = {key: f"{float(x.mean()):.4g}" for key, x in shares.items()}
                ended = {rule: int((at >= 0).sum()) for rule, at in stopped.items()}
                rows.append({"policy": name, "rewards": t, "draws": DRAWS, **own, **ended})
                print(rows[-1], flush=True)
        write(output, rows)


# ---------------------------------------------------------------------- late rewards


LATE, PULLS = 40, 2_000


def late(output: Path) -> None:
    """Functions of known norm in one dimension, a pick at every step, rewards after a Poisson number of further steps."""
    rows: list[Row] = []
    kernel = matern(1.5, 0.2)
    # E τ plus the excess of a Poisson variable that has probability 2δ/3T, in the Gaussian approximation.
    slow = math.ceil(LATE + math.sqrt(LATE) * math.sqrt(2 * math.log(3 * PULLS / (2 * 0.1))))
    for seed in range(SEEDS):
        environment = tb.environments.rkhs(dim=1, generator=seeded(seed))
        given = {"noise_std": 1.0, "norm_bound": environment.norm_bound, "delta": 0.1, "regularization": 1.0}
        makers = {
            "`bpe`": (tb.bpe(kernel, horizon=PULLS, **given), 0),
            "`bpe`, late": (tb.bpe(kernel, horizon=PULLS, **given), LATE),
            f"`bpe(delay={slow})`, late": (tb.bpe(kernel, horizon=PULLS, delay=slow, **given), LATE),
            "`gp_ucb`, width 2": (tb.gp_ucb(kernel, noise_std=1.0, width=tb.widths.Constant(2.0)), 0),
            "`gp_ucb`, width 2, late": (tb.gp_ucb(kernel, noise_std=1.0, width=tb.widths.Constant(2.0)), LATE),
            "`uniform`": (tb.uniform(), 0),
        }
        regret = environment.optimum - environment.means
        for name, (policy, mean) in makers.items():
            bandit, noise, draw = (
                tb.Bandit(policy, environment.arms, generator=seeded(seed)),
                [seeded(seed + 1000)],
                seeded(seed),
            )
            total, waiting = 0.0, []
            for step in range(PULLS):
                index = bandit.ask(more=1).index[-1:]
                total += float(regret[index])
                wait = int(torch.poisson(torch.tensor(float(mean)), generator=draw))
                waiting.append((step + wait, index, environment.sample(index, noise)))
                due = [entry for entry in waiting if entry[0] <= step]
                waiting = [entry for entry in waiting if entry[0] > step]
                if due:
                    bandit.tell(torch.cat([arm for _, arm, _ in due]), torch.cat([y for _, _, y in due]))
            rows.append({"policy": name, "seed": seed, "pulls": PULLS, "regret": f"{total / PULLS:.6g}"})
            print(rows[-1], flush=True)
        write(output, rows)


# ---------------------------------------------------------------------- drift


def drift(output: Path) -> None:
    """Abalone with rewards that rotate once towards another function and back: cos φ f + sin φ g, φ from 0 to 2π."""
    table, T = tb.environments.abalone(noise_std=0.01), 400
    arms, f = table.arms, (table.means - table.means.mean()) / table.means.std()
    kernel, rows = rbf(5.0), read(output)
    done = {row["policy"] for row in rows}
    K = kernel(arms[:: len(arms) // 500]).to_dense().detach()
    centres = arms[:: len(arms) // 500]
    makers = {
        "`gp_ucb`": lambda p: p,
        "`forgetting.discount`, 0.97": lambda p: tb.forgetting.discount(p, factor=0.97),
        "`forgetting.discount`, 0.9": lambda p: tb.forgetting.discount(p, factor=0.9),
        "`forgetting.window`, 40": lambda p: tb.forgetting.window(p, pulls=40),
        "`forgetting.restart`, 80": lambda p: tb.forgetting.restart(p, every=80),
        "`reds(drift=)`, 80": lambda _: tb.reds(kernel, horizon=80, drift=2.0, noise_std=0.1, norm_bound=3.0, delta=0.1),
        "`uniform`": lambda _: tb.uniform(),
    }
    for name, wrap in makers.items():
        if name in done:
            continue
        for seed in range(SEEDS):
            draw = seeded(seed)
            root = torch.linalg.cholesky(K + 1e-6 * torch.eye(len(K), dtype=torch.float64))
            weights = torch.cholesky_solve((root @ torch.randn(len(K), 1, generator=draw, dtype=torch.float64)), root)
            g = (kernel(arms, centres).to_dense().detach() @ weights).squeeze(-1)
            g = (g - g.mean()) / g.std()
            base = tb.gp_ucb(kernel, noise_std=0.1, width=tb.widths.Constant(2.0))
            bandit, noise, total = tb.Bandit(wrap(base), arms, generator=seeded(seed)), seeded(1000 + seed), 0.0
            for t in range(T):
                angle = 2 * math.pi * t / T
                now = math.cos(angle) * f + math.sin(angle) * g
                selection = bandit.ask(limit=1)
                value = now[selection.index]
                total += float(now.max() - value)
                bandit.tell(selection, value + 0.1 * torch.randn(1, generator=noise, dtype=torch.float64))
            rows.append({"policy": name, "seed": seed, "pulls": T, "regret": f"{total / T:.6g}"})
        write(output, rows)
        print(name, np.mean([float(r["regret"]) for r in rows if r["policy"] == name]), flush=True)


# ---------------------------------------------------------------------- files and the page


def read(path: Path) -> list[Row]:
    """Rows of a file; empty if the file does not exist."""
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def write(path: Path, rows: list[Row]) -> None:
    """Write rows with the columns of the first."""
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def interval(values: np.ndarray) -> float:
    """Half the width of the 95 % interval of the mean, by Student's t."""
    return float(stats.t.ppf(0.975, len(values) - 1) * values.std(ddof=1) / math.sqrt(len(values)))


def digits(mean: float, half: float) -> str:
    """A mean and its interval with the digits that it supports."""
    if half <= 1e-12 * max(abs(mean), 1.0):
        return f"{mean:.4g} ± 0"
    places = max(0, 1 - math.floor(math.log10(half)))
    return f"{mean:.{places}f} ± {half:.{places}f}"


def regrets(rows: list[Row], problem: str) -> list[str]:
    """The table of one problem: means with intervals, and paired differences to the baseline."""
    own = [row for row in rows if row["problem"] == problem]
    names = list(dict.fromkeys(row["policy"] for row in own))
    values = {
        (name, key): np.array([float(r[key]) for r in sorted(own, key=lambda r: int(r["seed"])) if r["policy"] == name])
        for name in names
        for key in ("regret", "final")
    }
    base = names[0]
    names.sort(key=lambda name: float(values[name, "regret"].mean()))
    lines = [
        f"| policy | regret per pull | of the recommended arm | regret per pull minus that of {base} | seconds per seed |",
        "| --- | --- | --- | --- | --- |",
    ]
    for name in names:
        mean, final = values[name, "regret"], values[name, "final"]
        less, said = mean - values[base, "regret"], "–"
        if name != base:
            half = interval(less)
            word = "less" if less.mean() + half < 0 else "**more**" if less.mean() - half > 0 else "undecided"
            said = f"{digits(float(less.mean()), half)}, {word}"
        seconds = next(row["seconds"] for row in own if row["policy"] == name)
        cells = (name, digits(float(mean.mean()), interval(mean)), digits(float(final.mean()), interval(final)), said, seconds)
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def coverage(rows: list[Row]) -> list[str]:
    """The table of stopping rules: how often they stopped, and were right."""
    lines = [
        "| policy | rule | promised | stopped, of 200 | right when stopped | 95 % interval | median pulls |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        n, k = int(row["stopped"]), int(row["right"])
        low, high = (stats.beta.ppf(q, *ab) for q, ab in ((0.025, (k, n - k + 1)), (0.975, (k + 1, n - k))))
        low, high = (0.0 if k == 0 else low), (1.0 if k == n else high)
        share = f"{k / n:.1%} | {low:.1%} to {high:.1%} | {float(row['median']):.0f}" if n else "– | – | –"
        lines.append(f"| `{row['policy']}` | {row['rule']} | {float(row['promise']):.0%} | {n} | {share} |")
    return lines


SHARES = {"best": ("best arm", 0), "three": ("best three", 0), "level": ("correct side of the level", 1)}


def successes(rows: list[Row]) -> list[str]:
    """The tables of policies that identify sets: success curves with a width of 2, stopping times with widths of theorems."""
    lines: list[str] = []
    cell = {(row["policy"], row["rewards"]): row for row in rows}
    numbers = list(dict.fromkeys(row["rewards"] for row in rows))
    aimed = [policy for policy in dict.fromkeys(row["policy"] for row in rows) if "δ" not in policy]
    for key, (what, places) in SHARES.items():
        lines += [f"| {what}, after | {' | '.join(numbers)} |", f"|{' --- |' * (1 + len(numbers))}"]
        for policy in aimed:
            shares = [f"{float(cell[policy, number][key]):.{places}%}" for number in numbers]
            lines.append(f"| {policy} | {' | '.join(shares)} |")
        lines.append("")
    rules = [name for name in rows[0] if "Known" in name]
    lines += [STOPPED, f"| policy | {' | '.join(f'`{rule}`' for rule in rules)} |", f"|{' --- |' * (1 + len(rules))}"]
    for policy in dict.fromkeys(row["policy"] for row in rows):
        if "δ" in policy or "uniform" in policy:
            stopped = [", ".join(cell[policy, number][rule] for number in ("96", "192", "288")) for rule in rules]
            lines.append(f"| {policy} | {' | '.join(stopped)} |")
    return lines


def averages(rows: list[Row], what: str) -> list[str]:
    """A table of regrets, with intervals over the seeds."""
    lines = [f"| policy | {what} |", "| --- | --- |"]
    for name in dict.fromkeys(row["policy"] for row in rows):
        values = np.array([float(row["regret"]) for row in rows if row["policy"] == name])
        lines.append(f"| {name} | {digits(float(values.mean()), interval(values))} |")
    return lines


HEAD = """# Do newer methods have less regret than GP-UCB?

In part: beside `gp_ucb` with the width of its theorem, `irgp_ucb` has less on two of three problems and no difference is shown
on the third. `reds` and `bpe` have **more on all three**, on Matérn functions as much as uniform picks, and `igp_ucb` and
`lb_gp_ucb` have more on one and less on another.

The fourth column is the difference to `gp_ucb` with the width of its theorem (δ = 0.1), computed from pairs of runs with the
same seed. It says "less" or "**more**" if the interval of the difference lies on one side of zero; **more** is a loss.
Policies with a norm bound or a horizon use the widths of their theorems, so that the tables show what a guarantee costs.

Only `lb_gp_ucb` and one row of `igp_ucb` are given a lengthscale that is four times too long. `igp_ucb` has λ = 1, as in its
paper, and all other policies have λ = noise_std². The picks of `bpe` depend on the rewards only through the arms that it
discards, so that its seeds agree where it discards few. `batch_bkb` has the same results as `gp_ucb` with width 2 where its
dictionary contained every arm that was pulled and its batches ended after one pick.
"""
STOPS = """# Do stopping rules stop, and are they right?

When they stop they are right in 84 to 100 % of the runs, each more often than it promises. Rules whose bounds hold for all
arms and times at once (`EpsilonOptimal`, `TopKKnown`, `LevelSetKnown`) need many pulls: with `irgp_ucb`, `EpsilonOptimal`
**never stopped** within 300.

200 functions drawn from a Matérn-5/2 prior (lengthscale 0.4) on 50 arms in the unit square, noise 0.3, pulled by
`gp_ucb` or `irgp_ucb`; the rules are evaluated after every fifth pull, up to 300 pulls. A rule that has not stopped by
then counts as neither right nor wrong. The intervals are those of Clopper and Pearson. `ProbableRegret` trusts the model,
which is correct here because the functions are drawn from it.
"""
SETS = f"""# Which policy finds the best arm, the best three, a level set?

The one that aims at it: after 288 rewards `lucb` (k = 3) knows the best three of 79 % of the functions (`gp_ucb`: 40 %), and
`lse` puts 99.0 % of the arms on the correct side of the level (`uniform`: 97.8 %). For the best arm, `lucb` (k = 1, 85 %) and
`gp_ucb` (80 %) are within the uncertainty of about seven percentage points.

The 200 functions of [stopping rules](stopping.md), one pull at a time, level {LEVEL}, widths of 2; `gp_ucb` aims at large
rewards. The posterior after the rewards of each policy is judged: the share of functions whose best arm, and whose three best
arms, have the highest posterior means, and the share of arms on the correct side of the level.
"""
STOPPED = """## When the rules stop

The number of functions, of 200, for which each rule has stopped after 96, 192 and 288 rewards, for policies with the widths of
their theorems (δ = 0.1):
"""
LATES = f"""# What if rewards are late or drift?

Late rewards cost little: `gp_ucb` has a regret per pull of 0.051 ± 0.012 in place of 0.039 ± 0.010. On rewards that drift,
forgetting lowers its dynamic regret from 2.59 to 1.04 to 1.75, and `reds(drift=)` with the width of its proof **picks like
`uniform`**.

## Rewards that are late

Functions of known norm on a grid of 30 arms in one dimension, as in `pi-table1`, noise uniform on [−1, 1],
{PULLS:,} pulls, one at every step; a late reward comes after a Poisson number of further steps with mean {LATE}. A batch of
`bpe` ends when as many rewards are known as it has picks. `bpe(delay=)` adds 69 picks to each batch, and does not wait for
that number of rewards. Both have the width of their theorem, and continue to explore while they wait. Ten seeds show no
difference between the two: if an arm is pulled at every step anyway, waiting costs little.
"""
DRIFTS = """
## Rewards that drift

Abalone with rewards that change: at each pull the function is cos φ f + sin φ g, where f are the standardised rewards, g is
drawn from the kernel for each seed, and φ goes from 0 to 2π over 400 pulls; the noise is 0.1. `gp_ucb` has width 2, and is
also run under `tb.forgetting`. The regret of a pull is the difference to the best arm at that time.

`reds(drift=)` has the width of its proof for a drift of 2 and a norm bound of 3, so large that it discards no arm within 80
pulls. R-PERP (Iwazaki & Takeno 2025), which restarts phased elimination and permutes its picks, is not included, because its
confidence width was not available to us.
"""


def pages(folder: Path) -> list[Path]:
    """Write the pages, without their index, from the files."""
    rows = read(FOLDER / "methods.csv")
    regret = [HEAD]
    for name in WHAT:
        pulls = next(row["pulls"] for row in rows if row["problem"] == name)
        regret += [f"\n## {TITLES[name]}\n", f"{WHAT[name]}. Each run has {pulls} pulls.\n", *regrets(rows, name)]
        run_here = {row["policy"] for row in rows if row["problem"] == name}
        missing = [policy for policy in dict.fromkeys(row["policy"] for row in rows) if policy not in run_here]
        regret += [f"\nNot run here: {', '.join(missing)}."] if missing else []
    late = [LATES, *averages(read(FOLDER / "methods-late.csv"), "regret per pull")]
    late += [DRIFTS, *averages(read(FOLDER / "methods-drift.csv"), "dynamic regret per pull")]
    texts = {
        "regret": regret,
        "stopping": [STOPS, *coverage(read(FOLDER / "methods-stopping.csv"))],
        "sets": [SETS, *successes(read(FOLDER / "methods-sets.csv"))],
        "late": late,
    }
    folder.mkdir(parents=True, exist_ok=True)
    for name, lines in texts.items():
        (folder / f"{name}.md").write_text("\n".join(lines) + "\n")
    return [folder / f"{name}.md" for name in texts]


def main() -> None:
    """Run a subcommand."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("run", "stopping", "sets", "late", "drift", "page"))
    parser.add_argument("--problem", action="append", choices=tuple(PROBLEMS), help="all by default")
    parser.add_argument("--output", type=Path)
    given = parser.parse_args()
    if given.what == "run":
        run(given.problem or PROBLEMS, given.output or FOLDER / "methods.csv")
    elif given.what == "stopping":
        stopping(given.output or FOLDER / "methods-stopping.csv")
    elif given.what in ("sets", "late", "drift"):
        {"sets": sets, "late": late, "drift": drift}[given.what](given.output or FOLDER / f"methods-{given.what}.csv")
    else:
        pages(given.output or PAGES)


if __name__ == "__main__":
    main()
