"""Embeddings: maps from points to features whose products approximate a kernel.

`Embedding` is the interface. `Nystrom` has the features of a dictionary of points, and is the exact Gaussian process when the
dictionary holds every distinct point. A `FiniteEmbedding` has fixed features: `Fourier` those of the spectrum of a stationary
kernel, `Linear` those of the linear kernel, with or without a projection, and `MinHash` those of the Tanimoto kernel.
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
