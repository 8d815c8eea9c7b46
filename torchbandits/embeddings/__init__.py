"""Points to features: `Embedding` is the contract, `Nystrom` the features of a dictionary of points.

The exact Gaussian process is `Nystrom` whose dictionary holds every distinct point.
"""

from torchbandits.embeddings.base import Embedding
from torchbandits.embeddings.nystrom import Nystrom, evaluate_kernel, kernel_diagonal, kernel_matrix
from torchbandits.embeddings.stationary import StationaryColumns

__all__ = ["Embedding", "Nystrom", "StationaryColumns", "evaluate_kernel", "kernel_diagonal", "kernel_matrix"]
