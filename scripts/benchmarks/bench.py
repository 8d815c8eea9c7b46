"""Time and memory of a posterior over many arms as functions of arms, dictionary and pulls, compared with other packages.

    python scripts/benchmarks/bench.py configs/bench/cpu.yaml [--output FOLDER] [--quiet]

Writes numbers, a table and figures, and prints the table. Each method at each point runs in a fresh process, with a time limit
and a memory limit. The rates of the machine are measured in the same run.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from scaling.config import BenchmarkConfig, load_benchmark
from scaling.running import run_benchmark

from torchbandits.errors import TorchBanditsError


def load(config: Path, output: Path | None) -> BenchmarkConfig:
    """Read a configuration, and replace its results folder if `output` is given."""
    chosen = load_benchmark(config)
    return chosen if output is None else replace(chosen, output=str(output))


def measure(config: BenchmarkConfig, quiet: bool) -> None:
    """Run a benchmark and print its table and files."""
    done = run_benchmark(config, console=Console(stderr=True, quiet=quiet))
    if not quiet:
        print((config.folder / "table.md").read_text(encoding="utf-8"), end="")
    print(f"Numbers, table, figures: {', '.join(map(str, done.files))}")


def main() -> int:
    """Run the benchmark that the command line names. An expected error is one line and exit status 2."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", type=Path, help="a YAML file, such as configs/bench/cpu.yaml")
    parser.add_argument("--output", type=Path, help="folder of the results; the file's by default")
    parser.add_argument("--quiet", action="store_true", help="show no progress and no table")
    given = parser.parse_args()
    try:
        measure(load(given.config, given.output), given.quiet)
    except TorchBanditsError as error:
        print(f"bench.py: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
