"""Arms that do not fit into memory, or need not: `Bandit(policy, sources.npy("arms.npy"))`.

`npy` for a memory-mapped file, `parquet` for Parquet and Arrow, `grid` for a product grid that is never written down, `chunks`
for a function of yours that yields arms, `pinned` for host memory that a GPU sweeps, `tensor` for a tensor whose arms are known
to be distinct. `batch_bkb` and `bkb` keep a few numbers an arm, and read the arms again in every sweep.
"""

from torchbandits.sources.base import ArmSet, ArmSource
from torchbandits.sources.columnar import ColumnFile, parquet
from torchbandits.sources.files import NpyFile, npy, save_npy
from torchbandits.sources.implicit import Chunks, Grid, chunks, grid
from torchbandits.sources.tensors import InMemory, Pinned, pinned, tensor

__all__ = [
    "ArmSet",
    "ArmSource",
    "Chunks",
    "ColumnFile",
    "Grid",
    "InMemory",
    "NpyFile",
    "Pinned",
    "chunks",
    "grid",
    "npy",
    "parquet",
    "pinned",
    "save_npy",
    "tensor",
]
