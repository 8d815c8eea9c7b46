"""Environments: arms with noisy rewards. All environments except `BlackBox` know their optimum, and so the regret. Use
`BlackBox` for a function that is called once per pull, `Table` for arms with known expected rewards, `Function` for a formula,
`rkhs` for random functions of known norm, `synthetic` and `global_optimization` for BoTorch's test functions, `sin_cos` and
`rosenbrock` for those of CUB's figures, `simulated_designs` for engineering formulas, `abalone` and `cadata` for real data,
`Recorded` for arms that were evaluated a few times, `from_table` for the rows of a spreadsheet, `nas_bench_101`,
`nas_bench_201`, `fcnet` and `logistic_regression` for networks that were trained.
"""

from collections.abc import Callable

from torchbandits.environments.base import Environment, Task
from torchbandits.environments.black_box import BlackBox
from torchbandits.environments.datasets import DATASETS, DataSet, abalone, cadata
from torchbandits.environments.engineering import simulated_designs
from torchbandits.environments.functions import Function, KernelExpansion, rkhs
from torchbandits.environments.logistic import logistic_regression
from torchbandits.environments.networks import ARCHIVES, Archive, fcnet, nas_bench_101, nas_bench_201
from torchbandits.environments.spreadsheet import from_table
from torchbandits.environments.synthetic import global_optimization, rosenbrock, sin_cos, synthetic
from torchbandits.environments.tables import Recorded, Table

registry: dict[str, Callable[..., Environment]] = {
    "rkhs": rkhs,
    "synthetic": synthetic,
    "sin_cos": sin_cos,
    "rosenbrock": rosenbrock,
    "abalone": abalone,
    "cadata": cadata,
    "simulated_designs": simulated_designs,
    "global_optimization": global_optimization,
    "nas_bench_101": nas_bench_101,
    "nas_bench_201": nas_bench_201,
    "fcnet": fcnet,
    "logistic_regression": logistic_regression,
}
"""Factories by their names in configurations; a `generator` argument draws the environment itself."""

__all__ = [
    "ARCHIVES",
    "DATASETS",
    "Archive",
    "BlackBox",
    "DataSet",
    "Environment",
    "Function",
    "KernelExpansion",
    "Recorded",
    "Table",
    "Task",
    "abalone",
    "cadata",
    "fcnet",
    "from_table",
    "global_optimization",
    "logistic_regression",
    "nas_bench_101",
    "nas_bench_201",
    "registry",
    "rkhs",
    "rosenbrock",
    "simulated_designs",
    "sin_cos",
    "synthetic",
]
