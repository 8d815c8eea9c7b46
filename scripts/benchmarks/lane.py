"""Measurements of policies on a device and on the CPU: all parts of `bash scripts/gpu.sh` except that of one posterior.

    python scripts/benchmarks/lane.py steps --folder results/gpu --device cuda --seconds 60
    python scripts/benchmarks/lane.py long --folder /tmp/here --device cpu --seconds 20 --small

Parts: `steps` (an ask and a tell of each policy against the number of arms), `posterior` (the mean and variance of 10⁸ and
of 10⁶ arms from a new dictionary), `replicates` (whole runs on Cadata and on NAS-Bench-101 with 1 … 256 batch rows), `long`
(BBKB on 10⁸ and on 10⁶ arms) and `regret` (IGP-UCB and π-GP-UCB of the Matérn table at d = 3). Each line is written to
`PART.json` and `PART.md` as soon as it is measured, and the lines that matter most come first. A part ends after
`--seconds`, and lists the lines that were not started and the runs that were cut off.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from itertools import product
from pathlib import Path
from typing import Any

import torch
from fixed_kernels import matern, rbf
from lane_pictures import write_picture
from torch import Tensor

import torchbandits as tb
from torchbandits.arms import ArmRows, ArmTable, columns, graphs
from torchbandits.arms.rows import Summed
from torchbandits.errors import DataError, TorchBanditsError
from torchbandits.posteriors import GaussianProcess

# After four steps the scales of arms and rewards are checked, at the eighth tell.
HISTORY, WARM, STEPS = 60, 2, 4
NOISE = {"noise_std": 0.1}
LARGEST_ON_CPU = 1_000_000
# An ask of `bpe` takes a CPU half a minute with that many arms.
LARGEST_BPE_ON_CPU = 100_000
# A line is not started with fewer seconds left.
LEAST_SECONDS = 1.0
Line = dict[str, Any]


POLICIES: dict[str, Callable[[], tb.policies.Policy]] = {
    "gp_ucb": lambda: tb.gp_ucb(rbf(2.0), **NOISE),
    "igp_ucb": lambda: tb.igp_ucb(rbf(2.0), **NOISE),
    "compressed_gp": lambda: tb.compressed_gp(rbf(2.0), **NOISE),
    "lin_ucb": lambda: tb.lin_ucb(**NOISE),
    "rff_ucb": lambda: tb.rff_ucb(rbf(2.0), num_features=256, **NOISE),
    "bkb": lambda: tb.bkb(rbf(2.0), **NOISE),
    "batch_bkb": lambda: tb.batch_bkb(rbf(2.0), **NOISE),
    "batch_bkb, local rule": lambda: tb.batch_bkb(rbf(2.0), batch_rule="local", **NOISE),
    "gp_bucb": lambda: tb.gp_bucb(rbf(2.0), **NOISE),
    "bpe": lambda: tb.bpe(rbf(2.0), horizon=1_000, **NOISE),
    "bpe, as a CUDA graph": lambda: tb.bpe(rbf(2.0), horizon=1_000, **NOISE),
    "thompson_sampling": lambda: tb.thompson_sampling(rbf(2.0), embedding="nystrom", width=tb.widths.Constant(1.0), **NOISE),
}


@dataclass(frozen=True)
class Part:
    """The lines of a part: for each a description and the function that measures it until a time of `time.perf_counter`. A line
    gets `share` of the remaining time, so that another line can be started."""

    title: str
    lines: Callable[[str, bool], Iterator[tuple[Line, Callable[[float], Line]]]]
    share: float = 2 / 3


def synchronised(device: str) -> float:
    """The time after all operations of the device are complete."""
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


# ---------------------------------------------------------------------- steps


def steps(device: str, small: bool) -> Iterator[tuple[Line, Callable[[float], Line]]]:
    """Each policy on increasing numbers of arms, on the device, and then on the CPU."""
    sizes = (200, 400) if small else (10_000, 100_000, 1_000_000, 10_000_000)
    for where, A, name in product(dict.fromkeys((device, "cpu")), sizes, POLICIES):
        most = LARGEST_BPE_ON_CPU if name == "bpe" else LARGEST_ON_CPU
        if where == "cpu" and ("CUDA" in name or (device != "cpu" and most < A)):
            continue
        yield {"policy": name, "arms": A, "device": where}, partial(step, name, A, where)


@lru_cache(maxsize=1)
def arms_of(A: int, device: str) -> tuple[Tensor, Tensor, Tensor]:
    """Arms on the device, their expected rewards, and the arms pulled before, which are the same on every device."""
    g = torch.Generator().manual_seed(0)
    arms = 2 * torch.rand(A, 8, generator=g, dtype=torch.float64)
    return arms.to(device), torch.sin(arms.sum(dim=-1)), torch.randperm(A, generator=g)[:HISTORY]


def step(name: str, A: int, device: str, until: float) -> Line:
    """Median milliseconds of an ask and of a tell after a warm-up, and the number of picks per step."""
    graphs.GRAPHS = "CUDA graph" in name
    g = torch.Generator().manual_seed(2)
    arms, means, told = arms_of(A, device)
    bandit = tb.Bandit(POLICIES[name](), arms, generator=torch.Generator().manual_seed(1))
    ones, rewards = torch.ones(HISTORY, dtype=torch.float64), noisy(means[told], g)
    bandit.observe(told.to(device), ones.to(device), rewards.to(device))
    asks, tells, picks = [], [], []
    for place in range(WARM + STEPS):
        began = synchronised(device)
        selection = bandit.ask(limit=100)
        asked = synchronised(device)
        rewards = noisy(means[selection.index.cpu()], g).to(device)
        half = synchronised(device)
        bandit.tell(selection, rewards)
        ended = synchronised(device)
        if place >= WARM:
            asks.append(1e3 * (asked - began))
            tells.append(1e3 * (ended - half))
            picks.append(selection.index.shape[-1])
            if ended > until:
                break
    return {"ask ms": statistics.median(asks), "tell ms": statistics.median(tells), "picks": statistics.mean(picks)}


def noisy(means: Tensor, generator: torch.Generator, noise_std: float = 0.1) -> Tensor:
    """Rewards with Gaussian noise."""
    return means + noise_std * torch.randn(means.shape, generator=generator, dtype=torch.float64)


# ---------------------------------------------------------------------- whole runs with many batch rows


def replicates(device: str, small: bool) -> Iterator[tuple[Line, Callable[[float], Line]]]:
    """BBKB and BKB on two tables, with increasing numbers of replicates as batch rows."""
    tables = ("made up",) if small else ("cadata", "nas_bench_101")
    for policy, table, rows in product(("batch_bkb", "bkb"), tables, (1, 2) if small else (1, 64, 16, 256, 4)):
        described = {"table": table, "policy": policy, "replicates": rows, "device": device}
        yield described, partial(replicated, table, policy, rows, device, 30 if small else 1_000)


@cache
def table_of(name: str) -> tuple[Tensor, Tensor, float]:
    """Arms, expected rewards and the length-scale of the papers. Raises `DataError` if the data set is not available."""
    if name == "made up":
        arms = torch.rand(400, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        return arms, torch.sin(4 * arms.sum(dim=-1)), 1.0
    table = tb.environments.cadata() if name == "cadata" else tb.environments.nas_bench_101(neighbors=False)
    assert isinstance(table.arms, Tensor)
    return table.arms, table.expected(torch.arange(len(table.arms))), 12.5 if name == "cadata" else 100.0


def replicated(table: str, policy: str, rows: int, device: str, horizon: int, until: float) -> Line:
    """Total seconds for `horizon` pulls of each replicate, and the regret per pull."""
    arms, means, lengthscale = table_of(table)
    made = replicating(policy, lengthscale, horizon)
    generators = [torch.Generator().manual_seed(row) for row in range(rows)]
    return course(made, arms, means, generators, device, horizon, until, 0.01)


def replicating(policy: str, lengthscale: float, horizon: int, memory_budget: int | None = None) -> tb.policies.Policy:
    """The policy of the replicates."""
    own = {"noise_std": 0.01, "norm_bound": 1.0, "delta": 1 / horizon, "oversampling": 2.0, "initial": tb.starts.uniform(1)}
    if policy == "batch_bkb":
        own |= {"ratio_threshold": 2.0, "batch_rule": "global"}
    if memory_budget is not None:
        own["memory_budget"] = memory_budget
    made: tb.policies.Policy = getattr(tb, policy)(rbf(lengthscale), **own)
    return made


def course(
    policy: tb.policies.Policy,
    arms: Tensor | tb.sources.ArmSource,
    means: Tensor,
    generators: list[torch.Generator],
    device: str,
    horizon: int,
    until: float,
    noise_std: float,
) -> Line:
    """Run a policy up to its horizon, or until a time. `means` are on the device."""
    arms, means = arms.to(device) if isinstance(arms, Tensor) else arms, means.to(device)
    bandit = tb.Bandit(policy, arms, generator=generators)
    noise, batches, regret = torch.Generator().manual_seed(99), 0, 0.0
    began = synchronised(device)
    while True:
        left = horizon - bandit.pulls
        if float(left.max()) <= 0 or time.perf_counter() > until:
            break
        selection = bandit.ask(limit=left.long())
        at = means.expand(*bandit.batch_shape, -1).gather(-1, selection.index.clamp_min(0)).double()
        best = means.amax(dim=-1, keepdim=True).double()
        regret += float(((best - at) * selection.mask).sum())
        drawn = noise_std * torch.randn(at.shape, generator=noise, dtype=torch.float64)
        bandit.tell(selection, at + drawn.to(device))
        batches += 1
    seconds, pulls = synchronised(device) - began, float(bandit.pulls.sum())
    return {
        "seconds": seconds,
        "pulls of each": pulls / len(generators),
        "of": horizon,
        "batches": batches,
        "ms a pull": 1e3 * seconds / max(pulls, 1.0),
        "ms a batch": 1e3 * seconds / max(batches, 1),
        "regret a pull": regret / max(pulls, 1.0),
    }


# ---------------------------------------------------------------------- one posterior


def sweeps_of(device: str) -> tuple[str, ...]:
    """How arms are swept: in blocks by torch and, if Triton is installed, by one kernel."""
    return ("fused", "blocks") if device == "cuda" and importlib.util.find_spec("triton") is not None else ("blocks",)


def posterior(device: str, small: bool) -> Iterator[tuple[Line, Callable[[float], Line]]]:
    """A new posterior of all arms."""
    sizes = ((2_000, torch.float32, 16),) if small else ((10**8, torch.float32, 512), (10**6, torch.float64, 512))
    for (A, dtype, m), sweep in product(sizes, sweeps_of(device)):
        described = {"arms": A, "dtype": str(dtype).removeprefix("torch."), "dictionary": m, "device": device, "sweep": sweep}
        yield described, partial(new_posterior, A, dtype, m, device, sweep == "fused")


def new_posterior(A: int, dtype: torch.dtype, m: int, device: str, fused: bool, until: float) -> Line:
    """Fastest seconds of a new dictionary and the mean and variance of A x 8 arms, no column of which is kept. The first call,
    which may compile, is not counted."""
    columns.FUSED = fused
    g, u = torch.Generator(device).manual_seed(0), 2 * m
    rows = ArmRows(tb.sources.tensor(torch.rand(A, 8, generator=g, dtype=dtype, device=device)), torch.Size())
    process = GaussianProcess(rbf(1.0).to(device), 0.01, dim=8, sparse=True, device=device)
    table = ArmTable(rows, process, 0)
    pulled, ones = torch.arange(u) * (A // u), torch.ones(u, dtype=torch.float64)
    rewards = torch.sin(3 * rows.points(pulled.to(device)).double().sum(dim=-1)).cpu()
    rows.tell_(process, Summed.of(torch.device(device), pulled, ones, rewards, rewards**2))
    dictionary, seconds = torch.arange(u, device=device) < m, []
    while len(seconds) < 2 or (len(seconds) < 4 and time.perf_counter() + seconds[-1] < until):
        began = synchronised(device)
        process.set_dictionary_(dictionary)
        table.sweep_()
        seconds.append(synchronised(device) - began)
    return {"seconds": min(seconds[1:]), "first": seconds[0]}


# ---------------------------------------------------------------------- long runs, and the table of Matérn functions


def long(device: str, small: bool) -> Iterator[tuple[Line, Callable[[float], Line]]]:
    """BBKB for 10,000 pulls."""
    sizes = ((5_000, torch.float32), (2_000, torch.float64)) if small else ((10**8, torch.float32), (10**6, torch.float64))
    for (A, dtype), sweep in product(sizes, sweeps_of(device)):
        described = {"arms": A, "dtype": str(dtype).removeprefix("torch."), "device": device, "sweep": sweep}
        yield described, partial(long_run, A, dtype, device, sweep == "fused", 50 if small else 10_000)


def long_run(A: int, dtype: torch.dtype, device: str, fused: bool, horizon: int, until: float) -> Line:
    """BBKB on A x 8 arms that are drawn on the device, so that they are never copied."""
    columns.FUSED = fused
    g = torch.Generator(device).manual_seed(0)
    arms = torch.rand(A, 8, generator=g, dtype=dtype, device=device)
    means = torch.sin(3 * arms.sum(dim=-1))
    policy = tb.batch_bkb(rbf(2.0), noise_std=0.1, ratio_threshold=2.0, initial=tb.starts.uniform(1))
    source = tb.sources.tensor(arms)
    return course(policy, source, means, [torch.Generator().manual_seed(1)], device, horizon, until, 0.1)


def regret(device: str, small: bool) -> Iterator[tuple[Line, Callable[[float], Line]]]:
    """IGP-UCB with twelve draws as batch rows, and π-GP-UCB, on Matérn functions of three features."""
    size = {"policy": "igp_ucb", "draws": 2 if small else 12, "device": device}
    horizon, points = (20, 5) if small else (10_000, 30)
    yield size, partial(matern_run, "igp_ucb", int(size["draws"]), points, horizon, device)
    yield size | {"policy": "pi_gp_ucb", "draws": 1}, partial(matern_run, "pi_gp_ucb", 1, points, horizon, device)


def matern_run(policy: str, draws: int, points: int, horizon: int, device: str, until: float) -> Line:
    """One policy on some functions over a grid."""
    tables = [
        tb.environments.rkhs(
            nu=1.5,
            lengthscale=0.2,
            dim=3,
            points_per_dim=points,
            noise_std=1.0,
            noise="uniform",
            generator=torch.Generator().manual_seed(draw),
        )
        for draw in range(draws)
    ]
    arms = tables[0].arms
    assert isinstance(arms, Tensor)
    means = torch.stack([table.expected(torch.arange(len(arms))) for table in tables])
    norms = max(float(table.norm_bound) for table in tables)
    own: Line = {"noise_std": 1.0, "norm_bound": norms, "delta": 0.1}
    if policy == "pi_gp_ucb":
        own |= {"nu": 1.5, "horizon": horizon}
    made = getattr(tb, policy)(matern(1.5, 0.2), **own)
    generators = [torch.Generator().manual_seed(draw) for draw in range(draws)]
    return course(made, arms, means, generators, device, horizon, until, 3**-0.5)


PARTS = {
    "steps": Part("A step of each policy", steps),
    "posterior": Part("A new posterior of all arms", posterior),
    "replicates": Part("Whole runs with many replicates", replicates),
    "long": Part("BBKB, 10,000 pulls", long, share=0.95),
    "regret": Part("Matérn functions of three features", regret, share=0.8),
}


# ---------------------------------------------------------------------- output


def measure(name: str, folder: Path, device: str, seconds: float, small: bool) -> list[Line]:
    """Measure the lines of a part until the time is over. After each line all files are rewritten, with the remaining lines."""
    folder.mkdir(parents=True, exist_ok=True)
    until = time.perf_counter() + seconds
    planned = list(PARTS[name].lines(device, small))
    done: list[Line] = []
    write(name, folder, done, planned)
    # Compilation of loops and the first use of a device take seconds that must not be part of a line.
    step("batch_bkb", 300, device, until)
    for described, work in planned:
        if time.perf_counter() > until - LEAST_SECONDS:
            break
        now = time.perf_counter()
        try:
            done.append(described | work(now + PARTS[name].share * (until - now)))
        except (DataError, TorchBanditsError, torch.cuda.OutOfMemoryError, FileNotFoundError) as error:
            done.append(described | {"failed": f"{type(error).__name__}: {error}"})
        if device == "cuda":
            torch.cuda.empty_cache()
        print(json.dumps(done[-1]), flush=True)
        write(name, folder, done, planned)
    write_picture(name, folder, done)
    return done


def write(name: str, folder: Path, done: list[Line], planned: list[tuple[Line, Callable[[float], Line]]]) -> None:
    """Write the lines as JSON and as a table, each file atomically."""
    left = [described for described, _ in planned[len(done) :]]
    told = {"title": PARTS[name].title, "lines": done, "not measured": left}
    for suffix, text in (("json", json.dumps(told, indent=1) + "\n"), ("md", table(done, left))):
        temporary = folder / f".{name}.{suffix}.tmp"
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(folder / f"{name}.{suffix}")


def table(done: list[Line], left: list[Line]) -> str:
    """The lines in Markdown, followed by the runs that were cut off and the lines that were not started."""
    heads = list(dict.fromkeys(key for line in done for key in line if key != "failed"))
    text = [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"] if heads else []
    for line in done:
        cells = [shown(line.get(head)) for head in heads]
        text.append(f"| {' | '.join(cells)} |")
    text += ["", *(f"Failed: {line}\n" for line in done if "failed" in line)]
    for line in filter(cut_off, done):
        names = ", ".join(str(value) for value in list(line.values())[: list(line).index("seconds")])
        text.append(f"Cut off, for want of time: {names}, after {line['pulls of each']:,.0f} of {line['of']:,} pulls.\n")
    if left:
        names = "; ".join(", ".join(f"{value}" for value in line.values()) for line in left)
        text.append(f"Not measured, for want of time: {names}.")
    return "\n".join(text) + "\n"


def cut_off(line: Line) -> bool:
    """Whether a run ended before its horizon."""
    return "of" in line and float(line["pulls of each"]) < float(line["of"])


def shown(value: Any) -> str:
    """A number with three digits."""
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1_000 else f"{value:.3g}"
    return "–" if value is None else f"{value:,}" if isinstance(value, int) else str(value)


def main() -> None:
    """Measure one part."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("part", choices=tuple(PARTS))
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--small", action="store_true", help="Small sizes.")
    given = parser.parse_args()
    measure(given.part, given.folder, given.device, given.seconds, given.small)


if __name__ == "__main__":
    main()
