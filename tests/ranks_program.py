"""Program for torchrun: run every scenario on this number of ranks and then on a plain bandit, and write the picks.

`torchrun --nproc-per-node 2 tests/ranks_program.py FOLDER [lose]`
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from gpytorch.kernels import ScaleKernel
from problems import generator, kernel_pair, rbf
from torch import Tensor

import torchbandits as tb
from torchbandits import errors, sources
from torchbandits.random_effects import with_effect


def arms(kind: str = "plain") -> Tensor:
    x = torch.rand(530, 2, dtype=torch.float64, generator=generator(0))
    if kind == "equal":  # equal arms on one rank, across two ranks, and three times
        x[7], x[500], x[501], x[502] = x[3], x[10], x[11], x[11]
        x[520] = x[20] + 1e-9
    if kind == "best is twice":
        x[2] = x[529] = torch.tensor([0.31, 0.99], dtype=torch.float64)
    return x.float() if kind == "float32" else x


def smooth(points: Tensor) -> Tensor:
    return (torch.sin(5 * points[..., 0]) + points[..., 1]).double()


def rank() -> int:
    return dist.get_rank() if dist.is_initialized() else 0


def share(x: Tensor) -> Any:
    """The arms of this rank (shares differ in size); all arms for a plain bandit."""
    if not dist.is_initialized():
        return x
    size = dist.get_world_size()
    ends = [0, *(int(len(x) * ((r + 1) / size) ** 1.3) for r in range(size - 1)), len(x)]
    return x[ends[rank()] : ends[rank() + 1]]


def bandit(policy: Any, x: Tensor, seeds: Any = 1, wrap: Callable[[Any], Any] = lambda x: x) -> tb.Bandit:
    g = generator(seeds) if isinstance(seeds, int) else [generator(seed) for seed in seeds]
    own = wrap(share(x))
    return tb.Bandit(policy, tb.Shard(own) if dist.is_initialized() else own, generator=g)


def loop(b: tb.Bandit, steps: int, limit: int | None = None, **noise: float) -> list[Any]:
    picks = []
    for _ in range(steps):
        selection = b.ask(limit=limit)
        picks.append(selection.index.tolist())
        b.tell(selection, smooth(selection.points) + noise.get("shift", 0.0))
    return picks


def told_in_parts(b: tb.Bandit) -> list[Any]:
    picks = []
    for step in range(12):
        selection = b.ask(more=3)
        picks.append(selection.index.tolist())
        b.tell(selection[step % 2 :: 2], smooth(selection.points[step % 2 :: 2]))
        opened = b.ask()
        if step % 4 == 3:
            b.forget(opened[:1])
    return picks


def observed(b: tb.Bandit, x: Tensor) -> list[Any]:
    index = torch.arange(0, 500, 5)
    b.observe(index, torch.ones(100), smooth(x[index]))
    b.observe(torch.cat([x[:2], x[:1] + 5]), torch.ones(3), torch.zeros(3))
    return [loop(b, 6, 5), b.best(3).index.tolist(), b.dictionary.tolist()]


def resumed(b: tb.Bandit, make: Callable[[], tb.Bandit], folder: Path) -> list[Any]:
    """Save in the middle of a batch and load: the run continues unchanged."""
    first = loop(b, 5, 6)
    opened = b.ask(limit=6)
    state = b.state_dict()
    if dist.is_initialized() and rank() == 0:
        torch.save(state, folder / "state.pt")
    other = make().load_state_dict(state)
    assert other.ask().index.tolist() == opened.index.tolist()
    return [first, loop(other, 6, 6), loop(b, 6, 6)]


NOISE = {"noise_std": 0.1}


def policies() -> dict[str, Callable[[], Any]]:
    return {
        "bkb": lambda: tb.bkb(rbf(), **NOISE),
        "global": lambda: tb.batch_bkb(rbf(), **NOISE),
        "streamed": lambda: tb.batch_bkb(rbf(), **NOISE, memory_budget=0),
        "product": lambda: tb.batch_bkb(kernel_pair("matern32")[0], **NOISE, batch_rule="product", max_pulls=1),
        "linear": lambda: tb.batch_bkb(kernel_pair("linear")[0], **NOISE),
        "tiny noise": lambda: tb.batch_bkb(rbf(), noise_std=1e-4, max_batch_size=4),
        "estimate": lambda: tb.batch_bkb(rbf(), **NOISE, prior_mean="estimate", ratio_threshold=4.0),
        "effects": lambda: tb.batch_bkb(with_effect(ScaleKernel(rbf()).double(), torch.tensor(0.3)), **NOISE),
    }


def counts(b: tb.Bandit) -> list[float]:
    """Pulls of the arms of all ranks."""
    own = b.counts.tolist()
    if not dist.is_initialized():
        return own
    parts: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(parts, own)
    return [count for part in parts for count in part]


def scenarios(folder: Path) -> dict[str, Any]:
    p = policies()
    done = {name: loop(bandit(policy(), arms()), 8, 12) for name, policy in p.items()}
    for kind in ("equal", "best is twice", "float32"):
        for name in ("bkb", "global", "effects"):
            own = bandit(p[name](), arms(kind))
            done[f"{kind}, {name}"] = [loop(own, 8, 12), counts(own)]
    done["rows"] = loop(bandit(p["global"](), arms("equal"), (1, 2, 3)), 8, 10)
    done["in parts"] = told_in_parts(bandit(p["global"](), arms("equal")))
    done["observed"] = observed(bandit(p["global"](), arms("equal")), arms("equal"))
    done["promised"] = loop(bandit(p["global"](), arms(), wrap=lambda x: sources.tensor(x, distinct=True)), 8, 12)
    made = lambda: bandit(p["global"](), arms("equal"), 5)  # noqa: E731
    done["resumed"] = resumed(made(), made, folder)
    return done


def only_on_ranks() -> dict[str, Any]:
    """Scenarios without a plain counterpart: rewards of rank 0, and errors that are raised on every rank."""
    p = policies()
    done: dict[str, Any] = {"rewards of rank 0": loop(bandit(p["global"](), arms()), 8, 12, shift=float(rank()))}
    try:
        bandit(p["global"](), arms(), 1 + rank())
    except errors.RankError as error:
        done["other generators"] = str(error)
    try:
        tb.Shard(arms()[:, : 1 + rank() % 2])
    except errors.ShapeError as error:
        done["other features"] = str(error)
    held = bandit(p["global"](), arms())
    loop(held, 3, 5)
    done["counts"], done["pulls"] = held.counts.sum().item(), held.pulls.item()
    try:
        bad = arms()
        bad[525, 1] = torch.nan
        bandit(p["global"](), bad)
    except errors.NonFiniteError as error:
        done["nan"] = str(error)
    return done


def lose(folder: Path) -> None:
    """End the last rank in the middle of a run. The others report it, and rank 0 saves what was learned."""
    b = bandit(policies()["global"](), arms("equal"), 5)
    picks = loop(b, 5, 6)
    opened = b.ask(limit=6)
    picks.append(opened.index.tolist())
    if rank() == dist.get_world_size() - 1:
        os._exit(0)
    before = b.pulls.item()
    try:
        b.tell(opened, smooth(opened.points))
        b.ask(limit=6)
        picks.append("nothing was lost")
    except errors.RankError as error:
        assert b.pulls.item() == before
        if rank() == 0:
            torch.save(b.state_dict(), folder / "lost.pt")
            (folder / "lost.json").write_text(json.dumps({"picks": picks, "error": str(error)}))
    os._exit(0)  # the process group is broken, so there is nothing to tear down


def main() -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("error")
    folder = Path(sys.argv[1])
    dist.init_process_group("gloo", timeout=timedelta(minutes=30))
    if sys.argv[2:] == ["lose"]:
        lose(folder)
    done, mine = scenarios(folder) | only_on_ranks(), rank()
    (folder / f"rank_{mine}.json").write_text(json.dumps(done))
    dist.destroy_process_group()
    if mine == 0:
        (folder / "alone.json").write_text(json.dumps(scenarios(folder)))


if __name__ == "__main__":
    main()
