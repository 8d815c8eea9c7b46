"""Points to features: `Embedding` is the contract, `Nystrom` the features of a dictionary of points; `FiniteEmbedding`s are
fixed: `Fourier`, of a stationary kernel's spectrum, `Linear`, of the linear kernel, projected or not, and `MinHash`, of the
Tanimoto kernel.

The exact Gaussian process is `Nystrom` whose dictionary holds every distinct point.
"""

from torchbandits.embeddings.base import Embedding, FeatureMap, FiniteEmbedding
from torchbandits.embeddings.fourier import Fourier, QuadratureFourier, RandomFourier, Spectrum, draw_frequencies
from torchbandits.embeddings.linear import GaussianProjection, Identity, Linear, linear_kernel
from torchbandits.embeddings.minhash import MinHash
from torchbandits.embeddings.nystrom import Nystrom

__all__ = [
    "Embedding",
    "FeatureMap",
    "FiniteEmbedding",
    "Fourier",
    "GaussianProjection",
    "Identity",
    "Linear",
    "MinHash",
    "Nystrom",
    "QuadratureFourier",
    "RandomFourier",
    "Spectrum",
    "draw_frequencies",
    "linear_kernel",
]
