"""Posteriors: `Regression` is the engine (V, w in feature space), `GaussianProcess` an embedding with a regression,
callable on any points, and `Statistics` the sums that both are computed from."""

from torchbandits.posteriors.gaussian_process import GaussianProcess
from torchbandits.posteriors.regression import Conditioning, Regression
from torchbandits.posteriors.statistics import Statistics, aggregate

__all__ = ["Conditioning", "GaussianProcess", "Regression", "Statistics", "aggregate"]
