"""`BanditModel` compared with BoTorch's `SingleTaskGP`: conditioning, scoring many arms, a million arms, drift.

    python scripts/benchmarks/bandit_model.py [condition score batch million drift] [--threads 2]

Every method runs in its own child process, one after the other, on the same data: points uniform in the unit cube of eight
dimensions, an RBF kernel of lengthscale 0.5, noise of variance 0.01, fixed hyper-parameters, float64, UCB of twice the standard
deviation. Memory is the peak resident set during the measured calls minus that after the imports, the data and the same
calls at eight observations, which trigger the lazy loading of libraries (Linux). Times are medians without the first
repetition. CPU seconds are those of all threads: with `--threads 1` they are unaffected by other load.

`condition`: adding one observation to t observations, and the posterior at one point.  `score`: the best of A arms.
`batch`: ten picks of A arms, each conditioned on the previous picks.  `million`: one sweep over 10⁶ arms.
`drift`: a model that is told one observation at a time, compared with a model built from all observations at once.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

with warnings.catch_warnings():
    # Warnings of linear_operator under torch 2.13.
    warnings.simplefilter("ignore", DeprecationWarning)
    import torch
    from botorch.acquisition import UpperConfidenceBound
    from botorch.models import SingleTaskGP
    from botorch.optim import optimize_acqf_discrete
from fixed_kernels import rbf
from torch import Tensor

import torchbandits as tb
from torchbandits.botorch import BanditModel, PolicyAcquisition, optimize_arms

DIM, NOISE, WIDTH = 8, 0.1, 2.0
# GPyTorch evaluates the covariance among the points that it predicts (gpytorch#2736), so one call on all arms costs A².
# Chunks of 128 to 256 arms were the fastest of those tried at t = 1,000.
CHUNK = 256
WAYS = {
    "condition": ["SingleTaskGP", "SingleTaskGP, a new model", "BanditModel", "BanditModel, dictionary of 64"],
    "score": [
        "SingleTaskGP, posterior in chunks of 256 and argmax",
        "SingleTaskGP, flat posterior and argmax",
        "SingleTaskGP, optimize_acqf_discrete",
        "BanditModel, optimize_acqf_discrete",
        "BanditModel",
        "BanditModel, dictionary of 64",
        "BanditModel, tabulated: one observation more, and the best arm",
    ],
    "batch": ["BanditModel, optimize_acqf_discrete", "BanditModel, optimize_arms"],
    "million": ["BanditModel, dictionary of 256"],
    "drift": ["BanditModel, 2,000 observations one at a time"],
}
SWEEPS = ("score", "batch", "million")


def observations(t: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Points `t x d` and rewards `t x 1` of a smooth function, noisy."""
    generator = torch.Generator().manual_seed(seed)
    X = torch.rand(t, DIM, generator=generator, dtype=torch.float64)
    f = torch.sin(6 * X[:, :1]) + torch.cos(5 * X[:, 1:2]) * X[:, 2:3]
    return X, f + NOISE * torch.randn(t, 1, generator=generator, dtype=torch.float64)


def stock(X: Tensor, Y: Tensor) -> SingleTaskGP:
    plain = {"outcome_transform": None, "input_transform": None}
    return SingleTaskGP(X, Y, torch.full_like(Y, NOISE**2), covar_module=rbf(0.5), **plain).requires_grad_(False)


def ours(X: Tensor, Y: Tensor, points: int | None = None) -> BanditModel:
    dictionary: Any = "all" if points is None else X[:points]
    return BanditModel(X, Y, kernel=rbf(0.5), noise_std=NOISE, dictionary=dictionary)


def resident(field: str) -> int:
    """`VmRSS` or `VmHWM` (the highest so far) of this process, bytes."""
    return 1024 * int(re.search(rf"{field}:\s+(\d+)", Path("/proc/self/status").read_text())[1])


def measured(work: Callable[[], Any], repeats: int) -> dict[str, Any]:
    """Median seconds of `work`, and the peak resident set of all repetitions minus the one before them."""
    before = resident("VmRSS")
    # Writing 5 resets the peak, VmHWM.
    Path("/proc/self/clear_refs").write_text("5")
    seconds, cpu, result = [], [], None
    for _ in range(repeats + 1):
        began, began_cpu = time.perf_counter(), time.process_time()
        result = work()
        seconds.append(time.perf_counter() - began)
        cpu.append(time.process_time() - began_cpu)
    held = max(resident("VmHWM") - before, 1)
    return {"seconds": statistics.median(seconds[1:]), "cpu": statistics.median(cpu[1:]), "bytes": held, "result": result}


# ---------------------------------------------------------------- the methods, each in its own process


def condition(way: str, t: int) -> dict[str, Any]:
    X, Y = observations(t + 32)
    probe = X.new_full((1, DIM), 0.5)
    held: dict[str, Any] = {"t": t}

    @torch.no_grad()
    def step() -> list[float]:
        # The first repetition is not measured.
        if "model" not in held:
            seen = X[:t], Y[:t]
            stocked = way.startswith("SingleTaskGP")
            held["model"] = stock(*seen) if stocked else ours(*seen, points=64 if "64" in way else None)
            held["model"].posterior(probe).variance  # noqa: B018 - the caches
        at = slice(held["t"], held["t"] + 1)
        held["t"] += 1
        if way.endswith("a new model"):
            held["model"] = stock(X[: held["t"]], Y[: held["t"]])
        else:
            noise = {"noise": torch.full_like(Y[at], NOISE**2)} if way == "SingleTaskGP" else {}
            held["model"] = held["model"].condition_on_observations(X[at], Y[at], **noise)
        posterior = held["model"].posterior(probe)
        return [round(float(posterior.mean), 8), round(float(posterior.variance), 8)]

    return measured(step, 5)


def score(way: str, t: int, num_arms: int) -> dict[str, Any]:
    X, Y = observations(t + 32)
    arms = observations(num_arms, seed=1)[0]
    held: dict[str, Any] = {"t": t}

    def model() -> Any:
        if "model" not in held:
            seen = X[:t], Y[:t]
            held["model"] = stock(*seen) if way.startswith("SingleTaskGP") else ours(*seen, points=64 if "64" in way else None)
            if "tabulated" in way:
                held["model"].tabulate_(arms)
        return held["model"]

    @torch.no_grad()
    def best() -> int:
        known = model()
        if "argmax" in way:
            size = CHUNK if "chunks" in way else len(arms)
            posteriors = [known.posterior(chunk) for chunk in arms.split(size)]
            return int(torch.cat([p.mean + WIDTH * p.variance.sqrt() for p in posteriors]).argmax())
        if "optimize_acqf_discrete" in way:
            point, _ = optimize_acqf_discrete(UpperConfidenceBound(known, beta=WIDTH**2), q=1, choices=arms)
            return int((arms == point).all(-1).nonzero()[0])
        if "tabulated" in way:
            at = slice(held["t"], held["t"] + 1)
            held["t"] += 1
            known = held["model"] = known.condition_on_observations(X[at], Y[at])
        policy = tb.gp_ucb(known.covar_module, noise_std=NOISE, width=tb.widths.Constant(WIDTH))
        return int(optimize_arms(PolicyAcquisition(known, policy), arms)[-1])

    found = measured(best, 5 if way.startswith("SingleTaskGP") else 15)
    # The best arm according to a model without a table.
    if "tabulated" in way:
        fresh = ours(X[: held["t"]], Y[: held["t"]]).marginals(arms)
        assert found["result"] == int((fresh.mean + WIDTH * fresh.variance.sqrt()).argmax())
        found["result"] = "as without a table"
    return found


def batch(way: str, t: int, num_arms: int) -> dict[str, Any]:
    X, Y = observations(t)
    arms = observations(num_arms, seed=1)[0]
    policy = tb.gp_ucb(rbf(0.5), noise_std=NOISE, width=tb.widths.Constant(WIDTH))

    @torch.no_grad()
    def picks() -> list[int]:
        acquisition = PolicyAcquisition(ours(X, Y), policy)
        if way.endswith("optimize_arms"):
            return optimize_arms(acquisition, arms, q=10, unique=False)[-1].tolist()
        points, _ = optimize_acqf_discrete(acquisition, q=10, choices=arms, unique=False)
        return [int((arms == point).all(-1).nonzero()[0]) for point in points]

    return measured(picks, 3)


def million(way: str, t: int, num_arms: int) -> dict[str, Any]:
    X, Y = observations(t)
    arms = torch.rand(num_arms, DIM, generator=torch.Generator().manual_seed(1), dtype=torch.float64)

    def sweep() -> int:
        model = ours(X, Y, points=256)
        policy = tb.gp_ucb(model.covar_module, noise_std=NOISE, width=tb.widths.Constant(WIDTH))
        return int(optimize_arms(PolicyAcquisition(model, policy), arms)[-1])

    return measured(sweep, 2)


def drift(way: str, t: int) -> dict[str, Any]:
    X, Y = observations(t + 2000)
    probes = observations(1000, seed=2)[0]

    def walk() -> BanditModel:
        model = ours(X[:t], Y[:t])
        with torch.no_grad():
            for i in range(t, t + 2000):
                model = model.condition_on_observations(X[i : i + 1], Y[i : i + 1])
        return model

    before, began, began_cpu = resident("VmRSS"), time.perf_counter(), time.process_time()
    walked = walk().posterior(probes)
    seconds, cpu = time.perf_counter() - began, time.process_time() - began_cpu
    refit = ours(X, Y).posterior(probes)
    mean = (walked.mean - refit.mean).abs().max()
    variance = (walked.variance - refit.variance).abs().max()
    result = f"largest difference from a refit: mean {float(mean):.1e}, variance {float(variance):.1e}"
    return {"seconds": seconds, "cpu": cpu, "bytes": resident("VmHWM") - before, "result": result}


# ---------------------------------------------------------------- the table


def child(section: str, way: str, t: int, num_arms: int, threads: int) -> dict[str, Any]:
    """Run one method in its own process."""
    command = [sys.executable, __file__, "--child", section, way, "--t", str(t), "--arms", str(num_arms)]
    environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
    done = subprocess.run([*command, "--threads", str(threads)], env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{section}, {way}:\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def table(section: str, t: int, num_arms: int, threads: int) -> None:
    print(f"\n{section}: t = {t:,}, d = {DIM}" + (f", A = {num_arms:,}" if section in SWEEPS else ""))
    print("\n| way | seconds | CPU seconds | times faster | times less CPU | MB | times less memory | result |")
    print("|---|---|---|---|---|---|---|---|")
    found = {way: child(section, way, t, num_arms, threads) for way in WAYS[section]}
    # The fastest way without this package; for a batch, BoTorch's optimiser on this package's model.
    stocks = [found[way] for way in found if way.startswith("SingleTaskGP") or (section == "batch" and "optimize_acqf" in way)]
    best = {key: min((s[key] for s in stocks), default=math.nan) for key in ("seconds", "cpu", "bytes")}
    for way, one in found.items():
        times = {key: f"{best[key] / one[key]:.3g}" for key in best}
        print(
            f"| {way} | {one['seconds']:.4g} | {one['cpu']:.4g} | {times['seconds']} | {times['cpu']} "
            f"| {one['bytes'] / 1e6:.1f} | {times['bytes']} | {one['result']} |",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sections", nargs="*", default=list(WAYS), help=", ".join(WAYS))
    parser.add_argument("--t", type=int, help="observations: 4,000 for condition, 1,000 else, 100 for drift")
    parser.add_argument("--arms", type=int, help="20,640 for score and batch, 10⁶ for million")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--child", nargs=2, metavar=("SECTION", "WAY"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        torch.set_num_threads(given.threads)
        warnings.filterwarnings("ignore", module="botorch")
        section, way = given.child
        run = {"condition": condition, "score": score, "batch": batch, "million": million, "drift": drift}[section]
        sweeps = section in SWEEPS
        if section != "drift":
            run(way, **({"t": 8} | ({"num_arms": 16} if sweeps else {})))
        print(json.dumps(run(way, **({"t": given.t} | ({"num_arms": given.arms} if sweeps else {})))))
        return
    print(f"float64, {given.threads} threads, torch {torch.__version__}")
    for section in given.sections:
        if section not in WAYS:
            parser.error(f"unknown section {section!r}; known: {', '.join(WAYS)}")
        t = given.t or {"condition": 4000, "drift": 100}.get(section, 1000)
        table(section, t, given.arms or (1_000_000 if section == "million" else 20_640), given.threads)


if __name__ == "__main__":
    main()
