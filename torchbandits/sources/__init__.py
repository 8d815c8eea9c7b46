"""Arms that need not fit into memory: `Bandit(policy, sources.npy("arms.npy"))`.

`npy` maps a file into memory, `parquet` reads Parquet and Arrow files, `grid` is a product grid that is never stored, `chunks`
wraps a user function that yields arms, `pinned` is host memory swept by a GPU, and `tensor` is a tensor whose arms are known to
be distinct. `Fingerprints` are packed bits or counts of molecules, which `from_smiles` makes. `batch_bkb` and `bkb` store a few
numbers per arm, and read the arms again in every sweep.
"""

from torchbandits.sources.base import ArmSet, ArmSource
from torchbandits.sources.columnar import ColumnFile, parquet
from torchbandits.sources.files import NpyFile, npy, save_npy
from torchbandits.sources.fingerprints import Fingerprints
from torchbandits.sources.implicit import Chunks, Grid, chunks, grid
from torchbandits.sources.smiles import from_smiles
from torchbandits.sources.tensors import InMemory, Pinned, pinned, tensor

__all__ = [
    "ArmSet",
    "ArmSource",
    "Chunks",
    "ColumnFile",
    "Fingerprints",
    "Grid",
    "InMemory",
    "NpyFile",
    "Pinned",
    "chunks",
    "from_smiles",
    "grid",
    "npy",
    "parquet",
    "pinned",
    "save_npy",
    "tensor",
]
