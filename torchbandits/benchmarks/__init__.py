"""Time and memory of a posterior over many arms against their number, the dictionary and the pulls: beside BoTorch, GPyTorch
and scikit-learn, and beside what the machine could do at best. `run_benchmark` runs a configuration, each point in a fresh
process.

Needs the extra `torchbandits[experiments]`.
"""

from torchbandits.benchmarks.config import BenchmarkConfig, Point, load_benchmark
from torchbandits.benchmarks.running import Benchmarked, run_benchmark

__all__ = ["BenchmarkConfig", "Benchmarked", "Point", "load_benchmark", "run_benchmark"]
