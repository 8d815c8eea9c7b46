"""Posteriors: `Regression` is the engine (V, w in feature space), `GaussianProcess` an embedding with a regression,
callable on any points, `SamplePaths` draws of it that are, `PartitionedProcess` one a cell of a cover of a `Domain`,
`Statistics` the sums behind them, and `Sketch` what may stand for their second moments."""

from torchbandits.posteriors.domain import Domain
from torchbandits.posteriors.factors import SweepFactors
from torchbandits.posteriors.gaussian_process import GaussianProcess
from torchbandits.posteriors.partitioned import PartitionedProcess
from torchbandits.posteriors.paths import SamplePaths
from torchbandits.posteriors.pending import Pending, where_frozen
from torchbandits.posteriors.regression import Conditioning, Regression
from torchbandits.posteriors.sketch import Sketch
from torchbandits.posteriors.statistics import Statistics, aggregate
from torchbandits.posteriors.units import Units

__all__ = [
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
