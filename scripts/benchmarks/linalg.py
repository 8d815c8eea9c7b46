"""k rank-one updates of V⁻¹ against one refactorisation: where the crossover in `linalg/precision.py` comes from.

python scripts/benchmarks/linalg.py
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch

from torchbandits.linalg import Precision, precision


def milliseconds(action: Callable[[], object], repeats: int = 15) -> float:
    action()
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        action()
        times.append(time.perf_counter() - began)
    return 1e3 * statistics.median(times)


def main() -> None:
    generator = torch.Generator().manual_seed(0)
    print(f"{torch.get_num_threads()} threads, float64")
    print("| m | one update [ms] | refactorisation [ms] | updates worth one |\n|---|---|---|---|")
    for m in (32, 64, 128, 256, 512, 1024):
        Z = torch.randn(2 * m, m, generator=generator, dtype=torch.float64)
        V = Precision(Z.mT @ Z + torch.eye(m, dtype=torch.float64))
        z, n = Z[:1], torch.ones(1, dtype=torch.float64)
        crossover, precision._UPDATES_PER_REFACTOR = precision._UPDATES_PER_REFACTOR, 0  # updates, whatever their number
        update = milliseconds(lambda V=V, z=z, n=n: V.update_(z, n))
        precision._UPDATES_PER_REFACTOR = crossover
        refactor = milliseconds(V.refactor_)
        print(f"| {m} | {update:.3f} | {refactor:.3f} | {refactor / update:.1f} |")


if __name__ == "__main__":
    main()
