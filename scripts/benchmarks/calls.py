"""Number of Python calls within the package for one ask and one tell, and their processor time: the fixed cost of a small step.

    python scripts/benchmarks/calls.py [--policies gp_ucb batch_bkb bkb] [--files] [--top 15]

900 arms on a grid, a Matérn kernel, 300 pulls before the measured steps. Calls are counted by `sys.setprofile`, including
comprehensions and properties. The script prints the median of 20 steps, the count before the engine was rebuilt, and the
target. Milliseconds are measured in unprofiled steps. `--files` prints the calls per file, `--top` the most frequently called
functions.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import gpytorch
import torch

import torchbandits as tb

PACKAGE = str(Path(tb.__file__).parent)
# (policy, call) -> calls before the rebuild, target
GIVEN = {
    ("gp_ucb", "ask"): (58, 30),
    ("gp_ucb", "tell"): (136, 70),
    ("batch_bkb", "ask"): (128, 75),
    ("batch_bkb", "tell"): (307, 150),
}
PULLS, STEPS = 300, 20


def counted(call: Callable[[], Any]) -> tuple[Any, Counter[CodeType]]:
    """Run a call. Returns its result, and the number of entries into each function of the package."""
    entered: Counter[CodeType] = Counter()

    def enter(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(PACKAGE):
            entered[frame.f_code] += 1

    sys.setprofile(enter)
    try:
        result = call()
    finally:
        sys.setprofile(None)
    return result, entered


def timed(call: Callable[[], Any]) -> tuple[Any, float]:
    """Run a call. Returns its result and its milliseconds of processor time."""
    began = time.process_time()
    result = call()
    return result, 1e3 * (time.process_time() - began)


@dataclass
class Measured:
    """Entries into each function for every profiled ask and tell of a policy, and milliseconds of the unprofiled ones."""

    counts: dict[str, list[Counter[CodeType]]]
    milliseconds: dict[str, list[float]]

    def calls(self, of: str) -> float:
        """The median number of calls of one `"ask"` or one `"tell"`."""
        return statistics.median(c.total() for c in self.counts[of])


def measure(name: str, steps: int = STEPS) -> Measured:
    """Count and time the steps of a policy. Every sixth step is profiled, `steps` in total."""
    environment = tb.environments.rkhs(dim=2, points_per_dim=30, generator=torch.Generator().manual_seed(0))
    kernel = gpytorch.kernels.MaternKernel(nu=1.5).double()
    kernel.lengthscale = 0.2
    options = {"max_batch_size": 10} if name == "batch_bkb" else {}
    policy = getattr(tb, name)(kernel, noise_std=1.0, width=tb.widths.Constant(1.0), regularization=1.0, **options)
    bandit, draw = tb.Bandit(policy, environment.arms), torch.Generator().manual_seed(1)

    def rewards(selection: tb.Selection) -> torch.Tensor:
        return environment.means[selection.index] + torch.randn(len(selection), generator=draw, dtype=torch.float64)

    while int(bandit.pulls) < PULLS:
        selection = bandit.ask()
        bandit.tell(selection, rewards(selection))
    counts: dict[str, list[Counter[CodeType]]] = {"ask": [], "tell": []}
    milliseconds: dict[str, list[float]] = {"ask": [], "tell": []}
    for step in range(6 * steps):
        profiled = step % 6 == 0
        record: Any = counts if profiled else milliseconds
        run: Callable[..., tuple[Any, Any]] = counted if profiled else timed
        selection, cost = run(bandit.ask)
        record["ask"].append(cost)
        told = rewards(selection)
        _, cost = run(lambda selection=selection, told=told: bandit.tell(selection, told))
        record["tell"].append(cost)
    return Measured(counts, milliseconds)


def show(name: str, measured: Measured, top: int, by_file: bool) -> None:
    for call, entered in measured.counts.items():
        before, target = GIVEN.get((name, call), ("", ""))
        files = statistics.median(len({code.co_filename for code in c}) for c in entered)
        spent = statistics.median(measured.milliseconds[call])
        print(f"| {name} {call} | {measured.calls(call):.0f} | {before} | {target} | {files:.0f} | {spent:.3f} |")
        if by_file:
            per_file: Counter[str] = Counter()
            for code, calls in sum(entered, Counter()).items():
                per_file[str(Path(code.co_filename).relative_to(PACKAGE))] += calls
            print("\n".join(f"    {calls / STEPS:6.1f}  {file}" for file, calls in per_file.most_common()))
    if top:
        for code, number in sum((c for entered in measured.counts.values() for c in entered), Counter()).most_common(top):
            where = str(Path(code.co_filename).relative_to(PACKAGE))
            print(f"    {number / STEPS:6.1f} a step  {where}:{code.co_firstlineno} {code.co_qualname}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policies", nargs="+", default=["gp_ucb", "batch_bkb", "bkb"])
    parser.add_argument("--top", type=int, default=0, help="print the functions called most")
    parser.add_argument("--files", action="store_true", help="print the calls per file")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print("| | calls | before | target | files | ms (median) |\n|---|---|---|---|---|---|")
    for name in arguments.policies:
        show(name, measure(name), arguments.top, arguments.files)


if __name__ == "__main__":
    main()
