"""Arms distributed over ranks: seconds of a tell (the sweep over the arms) and an ask on one rank and on several.

    python scripts/benchmarks/ranks.py --arms 400000 --ranks 1 2

Each number of ranks runs in separate processes, with one thread each, `--rounds` times in turn. Wall-clock time is meaningful
if there is a core for every rank. Otherwise, the processor seconds of the slowest rank are an estimate of it. The picks of all
runs are compared.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import torch
import torch.distributed as dist
from fixed_kernels import rbf

import torchbandits as tb


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arms", type=int, default=400_000)
    parser.add_argument("--dim", type=int, default=8)
    parser.add_argument("--lengthscale", type=float, default=1.5)
    parser.add_argument("--history", type=int, default=500, help="arms told before")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--backend", default="gloo", help="gloo on CPUs, nccl on GPUs")
    parser.add_argument("--write", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.write:
        measure(options)
    else:
        compare(options)


def measure(options: argparse.Namespace) -> None:
    """Time a few steps on every rank."""
    torch.set_num_threads(1)
    dist.init_process_group(options.backend)
    rank, size = dist.get_rank(), dist.get_world_size()
    device = torch.device("cuda", rank % torch.cuda.device_count()) if options.backend == "nccl" else torch.device("cpu")
    ends = [options.arms * r // size for r in range(size + 1)]
    x = torch.rand(options.arms, options.dim, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    shard = tb.Shard(x[ends[rank] : ends[rank + 1]].to(device).clone())
    # Columns are evaluated in every sweep, as with more arms than memory.
    policy = tb.batch_bkb(rbf(options.lengthscale), noise_std=0.1, max_batch_size=20, memory_budget=0)
    bandit = tb.Bandit(policy, shard, generator=torch.Generator().manual_seed(1))
    index = torch.randperm(options.arms, generator=torch.Generator().manual_seed(2))[: options.history].to(device)
    rewards = torch.sin(3 * x.to(device)[index]).sum(dim=-1)
    bandit.observe(index, torch.ones_like(rewards), rewards)
    walls, processor, picks = [], [], []
    for _ in range(options.steps + 1):
        dist.barrier()
        began, spent = time.perf_counter(), time.process_time()
        selection = bandit.ask()
        report = bandit.tell(selection, torch.sin(3 * selection.points).sum(dim=-1))
        processor.append(time.process_time() - spent)
        dist.barrier()
        walls.append(time.perf_counter() - began)
        picks.append(selection.index.tolist())
    # The first step compiles and is not counted.
    most = torch.tensor(processor[1:], device=device)
    dist.all_reduce(most, dist.ReduceOp.MAX)
    if rank == 0:
        done = {"wall": median(walls[1:]), "processor": float(most.median()), "picks": picks}
        options.write.write_text(json.dumps(done | {"dictionary": int(report.dictionary_size)}))
    dist.destroy_process_group()


def compare(options: argparse.Namespace) -> None:
    """Run each number of ranks in turn, and compare times and picks."""
    done: dict[int, list[dict]] = {ranks: [] for ranks in options.ranks}
    for _ in range(options.rounds):
        for ranks in options.ranks:
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / "done.json"
                launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
                command = [*launch, __file__, *sys.argv[1:], "--write", str(path)]
                subprocess.run(command, check=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
                done[ranks].append(json.loads(path.read_text()))
    first = done[options.ranks[0]]
    assert all(run["picks"] == first[0]["picks"] for runs in done.values() for run in runs), "the picks differ"
    size, load = first[0]["dictionary"], os.getloadavg()[0]
    print(
        f"A = {options.arms}, d = {options.dim}, dictionary {size}, {os.cpu_count()} cores, load {load:.1f}; identical picks\n"
    )
    print("| ranks | wall s a step | times one | processor s a step and rank | times one |\n|---|---|---|---|---|")
    for ranks, runs in done.items():
        wall, processor = (min(run[key] for run in runs) for key in ("wall", "processor"))
        base, own = (min(run[key] for run in first) for key in ("wall", "processor"))
        print(f"| {ranks} | {wall:.3f} | {base / wall:.2f} | {processor:.3f} | {own / processor:.2f} |")


if __name__ == "__main__":
    main()
