"""Effects of kills, wrong calls, failing disks, damaged files and interrupts on a run, as a Markdown table.

python scripts/robustness/faults.py                 # 200 kills, 10,000 calls, the faults of faults_storage.py; minutes
python scripts/robustness/faults.py --kills 20 --calls 500 --storage 0.1 --output faults.md
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import inspect
import os
import random
import resource
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gpytorch
import torch
from botorch.exceptions import BotorchError

# Needed where this file is imported by its path.
sys.path.insert(0, str(Path(__file__).parent))

from faults_storage import Storage, all_faults, in_a_fork, seeded

import torchbandits as tb
import torchbandits.botorch
from torchbandits.errors import JournalWarning, TorchBanditsError

# Seconds that one fuzzed call may take.
PATIENCE = 20
# Bytes that all fuzzed calls together may map.
MEMORY = 12 << 30
# BoTorch's models raise BoTorch's errors for invalid points and outcomes.
REFUSALS = (TorchBanditsError, BotorchError)
# Pulls of a run that is killed.
STEPS = 120
ARMS = torch.rand(60, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def kernel() -> gpytorch.kernels.Kernel:
    rbf = gpytorch.kernels.RBFKernel().double()
    rbf.lengthscale = 0.3
    return rbf


POLICIES: dict[str, Callable[[], Any]] = {
    "gp_ucb": lambda: tb.gp_ucb(kernel(), noise_std=0.1),
    "batch_bkb": lambda: tb.batch_bkb(kernel(), noise_std=0.1),
    "bkb": lambda: tb.bkb(kernel(), noise_std=0.1),
    "thompson_sampling": lambda: tb.thompson_sampling(kernel(), noise_std=0.1),
}


TABLE = tb.environments.Table(ARMS, ARMS.sum(dim=-1), noise_std=0.1, costs=1 + ARMS[:, 0])

# ------------------------------------------------------------------------- kills


def rewards(first: int, index: torch.Tensor) -> torch.Tensor:
    """The reward of a pull, the same in every run, because its noise depends only on the number of the pull."""
    noise = [float(torch.randn((), dtype=torch.float64, generator=seeded(first + j))) for j in range(len(index))]
    return torch.sin(5 * ARMS[index, 0]) + torch.cos(3 * ARMS[index, 1]) + 0.1 * torch.tensor(noise, dtype=torch.float64)


def play(bandit: tb.Bandit, acknowledge: Callable[[int], None], steps: int) -> None:
    """Ask and tell until a number of pulls is told, and acknowledge each tell that returned."""
    while (told := int(bandit.pulls)) < steps:
        selection = bandit.ask(limit=min(3, steps - told))
        bandit.tell(selection, rewards(told, selection.index))
        acknowledge(int(bandit.pulls))


def sequence(records: Iterator[dict[str, Any]]) -> list[tuple[int, float]]:
    """The arms and rewards told, in order."""
    told = [record for record in records if record["kind"] == "tell"]
    return [pair for record in told for pair in zip(record["index"], record["rewards"], strict=True)]


@dataclass
class Kills:
    """Counts of kills and of their consequences."""

    kills: int = 0
    lost: int = 0
    identical: int = 0
    torn: int = 0
    runs: int = 0
    told: int = 0


def kill_often(number: int, folder: Path, rng: random.Random, steps: int = STEPS, policies: Any = None) -> Kills:
    """Kill runs at random moments, resume them, and compare with undisturbed runs."""
    found = Kills()
    while found.kills < number:
        for name in policies or POLICIES:
            path, plain = folder / f"{name}-{found.runs}.journal", folder / f"{name}-plain-{found.runs}.journal"
            found.runs += 1
            quiet = tb.Bandit(POLICIES[name](), ARMS, generator=seeded(7), journal=tb.Journal(plain, durable=False))
            play(quiet, lambda _: None, steps)
            expected = sequence(quiet.journal.records())
            quiet.journal.close()
            while found.kills < number and _once(found, name, path, expected, rng, steps):
                pass
            if found.kills >= number:
                break
    return found


def _once(found: Kills, name: str, path: Path, expected: list[Any], rng: random.Random, steps: int) -> bool:
    """Start or resume a run, kill it and compare. Returns False if the run ended before the kill."""
    reader, writer = os.pipe()

    def work() -> None:
        os.close(reader)
        warnings.simplefilter("ignore", JournalWarning)
        journal = tb.Journal(path, every=rng.choice([7, 40, 1000]))
        bandit = tb.Bandit(POLICIES[name](), ARMS, generator=seeded(7), journal=journal)
        play(bandit, lambda told: os.write(writer, b"%d\n" % told), steps)

    child = in_a_fork(work)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        # With no line read, the process may be killed while it resumes.
        lines = [pipe.readline() for _ in range(rng.randrange(12))]
        time.sleep(rng.uniform(0.0, 0.02 if lines else 0.3))
        os.kill(child, signal.SIGKILL)
        status = os.waitpid(child, 0)[1]
        acknowledged = [int(line) for line in b"".join([*lines, pipe.read()]).split()]
    if os.WIFEXITED(status):
        if os.WEXITSTATUS(status):
            raise RuntimeError("a resumed run failed; see above")
        return False
    found.kills += 1
    kept = sequence(tb.Journal(path).records()) if path.exists() and path.read_bytes().count(b"\n") else []
    whole = path.read_bytes() if path.exists() else b""
    last = whole[whole.rfind(b"\n", 0, -1) + 1 :]
    # Emulates a write that the machine did not finish; it contained no reward.
    if b'"kind":"ask"' in last and rng.random() < 0.5:
        os.truncate(path, len(whole) - rng.randrange(1, len(last)))
        found.torn += 1
    found.lost += max(0, (acknowledged[-1] if acknowledged else 0) - len(kept))
    found.identical += kept == expected[: len(kept)]
    found.told += len(kept)
    return True


# ------------------------------------------------------------------------- wrong calls


class Wrong:
    """An object of no accepted type."""

    def __repr__(self) -> str:
        return "Wrong()"


def anything(rng: random.Random) -> Any:
    """Draw a value that may be invalid in any way: type, shape, dtype, device, size, sign, NaN."""
    sizes = [(), (0,), (1,), (2,), (3,), (60,), (2, 3), (1, 3), (3, 2), (0, 2), (60, 2), (2, 60, 2), (1, 1, 1, 1)]
    shape = rng.choice(sizes)
    dtypes = [torch.float64, torch.float32, torch.float16, torch.int64, torch.int32, torch.uint8, torch.bool, torch.complex128]
    tensor = (rng.choice([1, 1, 30, 1e5, -1, 1e300]) * torch.rand(shape, dtype=torch.float64)).to(rng.choice(dtypes))
    if tensor.is_floating_point() and tensor.numel() and rng.random() < 0.4:
        tensor.reshape(-1)[0] = rng.choice([float("nan"), float("inf"), -float("inf"), 6e4])
    plain = [None, True, False, 0, 1, -1, 3, 61, 10**9, 10**30, -(10**30), 0.5, -2.5, float("nan"), float("inf"), 1e308, ""]
    plain += [
        "text",
        "forget",
        "error",
        b"bytes",
        [],
        [1, 2],
        [[1], [2, 3]],
        (1.0, "x"),
        {},
        {"state": 3, "open": None},
        Wrong(),
    ]
    plain += [Wrong, 1j]
    other = [tensor.to("meta"), tensor.requires_grad_() if tensor.is_floating_point() else tensor, torch.eye(3).to_sparse()]
    points = torch.rand(3, 2, dtype=torch.float64)
    index = torch.tensor([rng.randrange(-3, 70) for _ in range(3)])
    some = torch.tensor([True, rng.random() < 0.5, True])
    good = [tb.Selection(points, index, some), tb.Selection(points, index, index > 100)]
    odd = tb.Selection.__new__(tb.Selection)
    for name in ("points", "index", "mask"):
        object.__setattr__(odd, name, rng.choice([tensor, None, index, "text"]))
    return rng.choice([rng.choice(plain), tensor, tensor, rng.choice(other), index, points, rng.choice([*good, odd])])


def calls(bandit: tb.Bandit, rng: random.Random) -> tuple[str, Callable[[tb.Bandit], Any]]:
    """Draw a call with arbitrary arguments, including valid ones."""
    a, b, c, d = (anything(rng) for _ in range(4))
    opened = bandit.loop.open
    some = opened if opened is not None and rng.random() < 0.6 else a
    y = torch.rand(len(opened), dtype=torch.float64) if opened is not None and rng.random() < 0.5 else b
    count = torch.ones(3, dtype=torch.float64)
    arms = torch.cat([ARMS, torch.rand(1, 2, dtype=torch.float64)])
    options: dict[str, tuple[Callable[..., Any], ...]] = {
        "ask": (lambda x: x.ask(a), lambda x: x.ask(limit=2), lambda x: x.ask(more=b),
                lambda x: x.ask(limit=a, more=1, available=c),
                lambda x: x.ask(more=1, maximizer=None if callable(d) else d), lambda x: x.ask(maximizer=lambda score: a)),
        "tell": (lambda x: x.tell(some, y), lambda x: x.tell(some, y, failures=c), lambda x: x.tell(a, b),
                 lambda x: x.tell(some, y, failures="forget"), lambda x: x.tell(torch.tensor([3, 4]), y)),
        "observe": (lambda x: x.observe(a, b, c), lambda x: x.observe(torch.tensor([1, 2, 3]), b, count),
                    lambda x: x.observe(torch.tensor([1, 2, 3]), count, count, d)),
        "forget": (lambda x: x.forget(some), lambda x: x.forget(a)),
        "set_arms_": (lambda x: x.set_arms_(a), lambda x: x.set_arms_(a, costs=b), lambda x: x.set_arms_(arms, costs=c)),
        "load_state_dict": (lambda x: x.load_state_dict(a), lambda x: x.load_state_dict(mangled(x.state_dict(), rng, a))),
        "best": (lambda x: x.best(a),),
        "posterior": (lambda x: x.posterior(a),),
        "fit_kernel_": (lambda x: x.fit_kernel_(noise=a, max_iterations=b), lambda x: x.fit_kernel_(**{str(a)[:20]: b})),
        "Bandit": (lambda x: tb.Bandit(a, ARMS), lambda x: tb.Bandit(x.policy, a), lambda x: tb.Bandit(x.policy, bounds=a),
                   lambda x: tb.Bandit(x.policy, ARMS, generator=a), lambda x: tb.Bandit(x.policy, ARMS, costs=a)),
        "policies": (lambda x: policy(rng, a), lambda x: policy(rng, b)),
        "run": (lambda x: tb.run(x.policy, a, 3), lambda x: tb.run(x.policy, TABLE, 3 if isinstance(a, int) and a > 5 else a),
                lambda x: tb.run(x.policy, TABLE, 3, generator=a), lambda x: tb.run(x.policy, TABLE, 3, budget=a)),
        "contextual": (lambda x: tb.ContextualBandit(x.policy, a, b), lambda x: tb.ContextualBandit(x.policy, ARMS, a),
                       lambda x: tb.ContextualBandit(x.policy, ARMS, ARMS[:2], max_contexts=a, generator=b)),
        "made": (lambda x: made(rng, a), lambda x: made(rng, b)),
        "diagnostics": (lambda x: tb.diagnostics.noise(x, noise_std=a), lambda x: tb.diagnostics.widths(x, delta=a),
                        lambda x: tb.diagnostics.widths(x, norm_bound=a), lambda x: tb.diagnostics.calibration(x, a, b),
                        lambda x: tb.diagnostics.leave_one_out(x, levels=a), lambda x: tb.diagnostics.diagnose(a),
                        lambda x: tb.diagnostics.dictionary_quality(x, size=a, generator=b if callable(b) else None)),
        "Table": (lambda x: tb.environments.Table(a, b, 0.1), lambda x: tb.environments.Table(ARMS, a, noise_std=b)),
    }  # fmt: skip
    name = rng.choice(list(options))
    return name, rng.choice(options[name])


def policy(rng: random.Random, value: Any) -> Any:
    """Make a policy with one option that may be wrong."""
    make = rng.choice([tb.gp_ucb, tb.igp_ucb, tb.gp_bucb, tb.bkb, tb.batch_bkb, tb.thompson_sampling, tb.lin_ucb])
    names = ["noise_std", "delta", "norm_bound", "regularization", "width", "initial", "prior_mean", "kernel", "refit_every"]
    parameters = [name for name in names if name in inspect.signature(make).parameters]
    options: dict[str, Any] = {"noise_std": 0.1} | ({} if make is tb.lin_ucb else {"kernel": kernel()})
    return make(**options | {rng.choice(parameters): value})


def made(rng: random.Random, value: Any) -> Any:
    """Make a width, a start, a source, an environment, a journal or a model, with one argument that may be wrong."""
    grid, table = [torch.linspace(0, 1, 3)], ARMS.sum(dim=-1)
    model = {"train_X": ARMS[:6], "train_Y": table[:6, None], "kernel": kernel(), "noise_std": 0.1}
    bounded = {"noise_std": 0.1, "norm_bound": 1.0, "delta": 0.1, "regularization": 0.1}
    makes: list[tuple[Callable[..., Any], dict[str, Any]]] = [
        *((getattr(tb.widths, name), bounded) for name in ("BKB", "BBKB", "IGP", "FixedDesign", "MartingaleMixture")),
        (tb.widths.Scaled, {"base": tb.widths.Constant(1.0), "scale": 1.0}),
        (tb.widths.SrinivasCompact, {"delta": 0.1, "a": 1.0, "b": 1.0, "r": 1.0}),
        (tb.widths.matern_regularization, {"nu": 1.5, "dim": 2, "horizon": 10, "noise_std": 1.0}),
        (tb.starts.uncertainty, {"min_batch_size": 3.0, "max_pulls": 10}),
        (tb.starts.uniform, {"size": 3}),
        (tb.sources.tensor, {"arms": ARMS, "distinct": False}),
        (tb.sources.grid, {"axes": grid}),
        (tb.sources.npy, {"path": "nowhere.npy", "dtype": None, "device": "cpu", "distinct": False}),
        (tb.sources.chunks, {"stream": lambda: iter([ARMS]), "num_arms": 60, "dim": 2, "at": None, "dtype": torch.float64}),
        (tb.environments.sin_cos, {"num_arms": 30, "noise_std": 0.1, "noise": "uniform"}),
        (tb.environments.rosenbrock, {"points_per_dim": 4, "a": 1.0, "b": 1.0, "scaled": True}),
        (tb.environments.synthetic, {"name": "ackley", "dim": 2, "num_arms": 30, "design": "grid", "scaled": True, "seed": 0}),
        (tb.environments.rkhs, {"dim": 1, "points_per_dim": 5, "num_centers": 3, "lengthscale": 0.3, "generator": seeded(0)}),
        (tb.environments.BlackBox, {"function": float, "arms": ARMS, "noise_std": 0.1, "name": "a", "seeded": False}),
        (tb.environments.Recorded, {"arms": ARMS, "records": table[:, None], "name": "a", "costs": None, "neighbors": None}),
        (tb.History().row, {"row": 0, "seconds_share": 1.0}),
        (tb.Journal, {"path": "nowhere", "every": 10, "durable": True}),
        (tb.callbacks.LogScalars, {"log": print, "prefix": "a", "every": 1}),
        (tb.botorch.BanditModel, model | {"regularization": 0.1, "dictionary": "all", "oversampling": 2.0, "prior_mean": 0.0}),
        (
            tb.botorch.PolicyAcquisition,
            {"model": tb.botorch.BanditModel(**model), "policy": POLICIES["batch_bkb"](), "num_arms": 60},
        ),
    ]
    make, right = rng.choice(makes)
    return make(**right | {rng.choice(list(right)): value})


def mangled(state: dict[str, Any], rng: random.Random, value: Any) -> dict[str, Any]:
    """Change or remove one entry of a saved state."""
    inside = state if rng.random() < 0.2 else state["state"]
    name = rng.choice(list(inside))
    if rng.random() < 0.5:
        del inside[name]
    else:
        inside[name] = value
    return state


def image(bandit: tb.Bandit) -> str:
    """Digest of the complete state of a bandit."""
    digest = hashlib.sha256()

    def add(value: Any) -> None:
        if isinstance(value, dict):
            for key, inner in value.items():
                digest.update(str(key).encode())
                add(inner)
        elif isinstance(value, torch.Tensor):
            digest.update(f"{value.dtype}{tuple(value.shape)}".encode() + value.contiguous().numpy().tobytes())
        else:
            digest.update(repr(value).encode())

    add(bandit.state_dict())
    digest.update(bandit.arms.numpy().tobytes())
    return digest.hexdigest()


@dataclass
class Fuzz:
    """Counts of calls by their outcome."""

    calls: int = 0
    accepted: int = 0
    refused: int = 0
    changed: int = 0
    wrong: list[str] = field(default_factory=list)
    by_call: Counter[str] = field(default_factory=Counter)


def fresh(rng: random.Random, name: str) -> tb.Bandit:
    """Make a bandit with some pulls told and a batch open."""
    bandit = tb.Bandit(POLICIES[name](), ARMS, generator=seeded(rng.randrange(1000)))
    play(bandit, lambda _: None, rng.randrange(1, 8))
    bandit.ask(more=2)
    return bandit


def too_long(*_: Any) -> None:
    """Fail a call that does not end in time."""
    raise TimeoutError(f"more than {PATIENCE} s")


@contextlib.contextmanager
def limited() -> Iterator[None]:
    """Limit mapped memory and the duration of calls; both limits are restored on exit."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    patient = signal.signal(signal.SIGALRM, too_long)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
        signal.signal(signal.SIGALRM, patient)


@limited()
def fuzz(number: int, rng: random.Random) -> Fuzz:
    """Call public functions with arbitrary values. Errors must be of this package and leave the state unchanged."""
    found, bandit = Fuzz(), None
    # Seed of the random values passed in.
    torch.manual_seed(rng.randrange(10**6))
    while found.calls < number:
        if bandit is None or found.calls % 20 == 0:
            bandit = fresh(rng, rng.choice(list(POLICIES)))
        name, call = calls(bandit, rng)
        found.calls += 1
        found.by_call[name] += 1
        before = image(bandit)
        signal.alarm(PATIENCE)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                call(bandit)
            found.accepted += 1
            bandit = None if name in ("load_state_dict", "fit_kernel_", "set_arms_") else bandit
        except REFUSALS:
            found.refused += 1
            found.changed += image(bandit) != before
        except Exception as error:
            frames = [f"{Path(f.filename).name}:{f.lineno}" for f in traceback.extract_tb(error.__traceback__)]
            message = (str(error).splitlines() or [""])[0][:90]
            found.wrong.append(f"{name} ({' > '.join(frames[-4:])}): {type(error).__name__}: {message}")
            found.changed += image(bandit) != before
            bandit = None
        finally:
            signal.alarm(0)
    return found


# ------------------------------------------------------------------------- the table


def table(kills: Kills, fuzzed: Fuzz, storage: Storage | None = None) -> str:
    """The results as Markdown."""
    rows = [
        ("kills (SIGKILL at a random moment of a run or of its resumption)", kills.kills),
        ("runs killed, of " + ", ".join(POLICIES), kills.runs),
        ("rewards that `tell` had returned for, lost", kills.lost),
        ("continuations identical to the undisturbed run, pick by pick and reward by reward", kills.identical),
        ("last lines torn besides, at a random byte", kills.torn),
        ("rewards in the journals at these moments, all told", kills.told),
        ("fuzzed calls", fuzzed.calls),
        ("accepted", fuzzed.accepted),
        ("refused by an error of this package", fuzzed.refused),
        ("tracebacks of another kind", len(fuzzed.wrong)),
        ("states changed by a refused call", fuzzed.changed),
        *(storage.rows() if storage is not None else []),
    ]
    return "\n".join(["| what | number |", "| --- | --- |", *(f"| {what} | {number:,} |" for what, number in rows), ""])


def main(arguments: list[str] | None = None) -> int:
    """Run everything, print and write the table. Returns 0 if nothing was lost."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--calls", type=int, default=10_000)
    parser.add_argument("--storage", type=float, default=1.0, help="scales the numbers of the faults of faults_storage.py")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    rng = random.Random(options.seed)
    with tempfile.TemporaryDirectory() as folder:
        kills = kill_often(options.kills, Path(folder), rng)
    with tempfile.TemporaryDirectory() as folder:
        storage = all_faults(options.storage, Path(folder), rng)
    fuzzed = fuzz(options.calls, rng)
    text = table(kills, fuzzed, storage)
    print(text)
    for line, count in Counter(fuzzed.wrong).most_common(40):
        print(f"{count} times: {line}", file=sys.stderr)
    if options.output is not None:
        options.output.write_text(text)
    good = not (kills.lost or fuzzed.wrong or fuzzed.changed) and kills.identical == kills.kills and storage.good
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
