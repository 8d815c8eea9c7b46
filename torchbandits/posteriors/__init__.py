"""Posteriors and the data behind them.

`Regression` holds V and w in feature space. `GaussianProcess` combines an embedding with a regression and can be evaluated at
any points, and so can `SamplePaths`, draws of a posterior. `PartitionedProcess` has one process per cell of a cover of a
`Domain`. `Statistics` are the sums of the observations, and a `Sketch` may replace the second moments of their features."""

from torchbandits.posteriors.domain import Domain
from torchbandits.posteriors.factors import AtPoints, SweepFactors, where_frozen
from torchbandits.posteriors.gaussian_process import GaussianProcess
from torchbandits.posteriors.partitioned import PartitionedProcess
from torchbandits.posteriors.paths import SamplePaths
from torchbandits.posteriors.pending import Pending
from torchbandits.posteriors.regression import Conditioning, Regression
from torchbandits.posteriors.sketch import Sketch
from torchbandits.posteriors.statistics import Statistics, aggregate
from torchbandits.posteriors.units import Units

__all__ = [
    "AtPoints",
    "Conditioning",
    "Domain",
    "GaussianProcess",
    "PartitionedProcess",
    "Pending",
    "Regression",
    "SamplePaths",
    "Sketch",
    "Statistics",
    "SweepFactors",
    "Units",
    "aggregate",
    "where_frozen",
]
