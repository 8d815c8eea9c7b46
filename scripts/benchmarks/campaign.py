"""Processor seconds and memory of the steps of a campaign over a large Parquet file, on one thread.

python scripts/benchmarks/campaign.py --rows 1000000 10000000 --asks 3 --folder /tmp/campaign

The table has an id, three numbers and two categories of 5 and 12 texts, hence 20 features in single precision. Memory is the
peak of the anonymous resident set minus that after the imports. It does not include pages of the memory-mapped features.
"""

from __future__ import annotations

import argparse
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

import torchbandits as tb

GROUP = 100_000


def write_table(path: Path, rows: int) -> None:
    """Write candidates in row groups of 100,000."""
    rng, writer = np.random.default_rng(0), None
    for start in range(0, rows, GROUP):
        n = min(GROUP, rows - start)
        part = pa.table(
            {
                "id": [f"c{i:08d}" for i in range(start, start + n)],
                "temp": rng.uniform(20, 120, n),
                "conc": 10 ** rng.uniform(-6, -1, n),
                "time": rng.uniform(1, 24, n),
                "solvent": rng.choice([f"solvent {j}" for j in range(5)], n),
                "ligand": rng.choice([f"ligand {j}" for j in range(12)], n),
            }
        )
        writer = pq.ParquetWriter(path, part.schema) if writer is None else writer
        writer.write_table(part, row_group_size=GROUP)
    assert writer is not None
    writer.close()


def anonymous() -> float:
    """Anonymous resident memory of this process, GB."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) / 1e6
    raise RuntimeError("this system does not tell RssAnon")


@contextmanager
def step(what: str, base: float) -> Iterator[None]:
    """Context that prints wall-clock and processor seconds of its block, and the peak memory above `base`."""
    peak, over = anonymous(), threading.Event()

    def watch() -> None:
        nonlocal peak
        while not over.wait(0.01):
            peak = max(peak, anonymous())

    thread = threading.Thread(target=watch)
    thread.start()
    began, cpu = time.perf_counter(), time.process_time()
    try:
        yield
    finally:
        wall, spent = time.perf_counter() - began, time.process_time() - cpu
        over.set()
        thread.join()
    memory = f"peak {peak - base:.2f} GB, {anonymous() - base:.2f} GB kept"
    print(f"  {what:8s} {wall:6.2f} s, {spent:6.2f} s of the processor, {memory}", flush=True)


def measure(rows: int, asks: int, batch: int, folder: Path) -> None:
    """Start a campaign, ask and tell a few times, and resume it."""
    path = folder / f"{rows}.parquet"
    if not path.exists():
        write_table(path, rows)
    journal = folder / f"{rows}" / "journal"
    shutil.rmtree(journal.parent, ignore_errors=True)
    journal.parent.mkdir()
    base, noise = anonymous(), np.random.default_rng(1)
    print(f"{rows:,} rows, asks of {batch}:", flush=True)
    with step("begin", base):
        campaign = tb.Campaign(path, "yield", journal)
    for number in range(1, asks + 1):
        with step(f"ask {number}", base):
            plate = campaign.ask(batch)
        value = 50 - 0.01 * (plate["temp"] - 70) ** 2 + 3 * np.log10(plate["conc"]) + noise.standard_normal(len(plate))
        with step(f"tell {number}", base):
            campaign.tell(plate[["id"]].assign(**{"yield": value}))
        print(f"           {', '.join(plate['id'])}", flush=True)
    with step("best", base):
        campaign.best(5)
    with step("close", base):
        campaign.close()
    del campaign
    with step("go on", base):
        tb.Campaign(path, journal=journal)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", nargs="+", type=int, default=[1_000_000])
    parser.add_argument("--asks", type=int, default=3)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--folder", type=Path, default=Path("/tmp/torchbandits-campaign"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    options.folder.mkdir(parents=True, exist_ok=True)
    for size in options.rows:
        measure(size, options.asks, options.batch, options.folder)
