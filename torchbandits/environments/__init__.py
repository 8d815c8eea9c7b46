"""What can be pulled. Each environment knows its optimum and can tell regret.

`Table` for arms with known expected rewards, `Function` for a callable, `rkhs` for random functions of known norm,
`synthetic` for BoTorch's test functions, `sin_cos` and `rosenbrock` for those of CUB's figures, `abalone` and `cadata` for
real data.
"""

from collections.abc import Callable

from torchbandits.environments.base import Environment
from torchbandits.environments.datasets import DATASETS, DataSet, abalone, cadata
from torchbandits.environments.formulas import rosenbrock, sin_cos
from torchbandits.environments.functions import Function, KernelExpansion, rkhs
from torchbandits.environments.synthetic import synthetic
from torchbandits.environments.tables import Table

registry: dict[str, Callable[..., Environment]] = {
    "rkhs": rkhs,
    "synthetic": synthetic,
    "sin_cos": sin_cos,
    "rosenbrock": rosenbrock,
    "abalone": abalone,
    "cadata": cadata,
}
"""Factories by the name a configuration gives them; a `generator` argument is the draw of the environment itself."""

__all__ = [
    "DATASETS",
    "DataSet",
    "Environment",
    "Function",
    "KernelExpansion",
    "Table",
    "abalone",
    "cadata",
    "registry",
    "rkhs",
    "rosenbrock",
    "sin_cos",
    "synthetic",
]
