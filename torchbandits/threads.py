"""Threads of a piece of work: one where it is small, those of the caller where it is large.

A step of a bandit is a few hundred operations on small matrices. A second thread gains nothing on them, and on a machine that
is busy with other work each operation waits for a thread that has no core: runs take ten times longer. `torch.set_num_threads`
is a setting of the process, which is not this library's to change. What is set here holds for the calling thread alone, and
only while the work lasts: the number of OpenMP threads, and MKL's own where PyTorch was built with it.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import TracebackType

import torch

MANY_NUMBERS = 1 << 18
"""Arms times batch rows from which on each operation of a step is worth several threads."""

MANY_PRODUCTS = 2e9
"""Multiplications of a sweep or a factorisation from which on it is worth several threads: about half a second on one."""

_Set = Callable[[int, int], int]
_local = threading.local()


class threads:
    """`with threads(many=…):` one thread of PyTorch, or as many as the caller of the outermost such context had.

    On exit, also by an exception, the number is what it was before. Other threads keep theirs. Builds of PyTorch without
    OpenMP, or that hide it, keep all threads. Cost: a few microseconds.

    Args:
        many: Whether the work is worth all threads.
    """

    __slots__ = ("_back", "_many", "_outermost")

    def __init__(self, *, many: bool) -> None:
        self._many, self._outermost = many, False
        self._back: tuple[int, int] | None = None

    def __enter__(self) -> None:
        now, given = torch.get_num_threads(), getattr(_local, "given", None)
        wanted = (now if given is None else given[0]) if self._many else 1
        if wanted == now:
            return
        setter = thread_setter()
        if setter is None:
            return
        before = setter(wanted, 1 if given is None or not self._many else given[1])
        self._back = (now, before)
        if given is None:
            self._outermost, _local.given = True, self._back

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._back is not None:
            setter = thread_setter()
            assert setter is not None
            setter(*self._back)
        if self._outermost:
            _local.given = None


@cache
def thread_setter() -> _Set | None:
    """A function that sets OpenMP's number of threads and MKL's own (0 for none of its own) for the calling thread, and returns
    MKL's before; None where PyTorch's libraries do not offer that."""
    folder = Path(torch.__file__).parent / "lib"
    for name in ("libtorch_cpu.so", "libtorch_cpu.dylib"):
        if (folder / name).exists():
            library = ctypes.CDLL(str(folder / name))  # loaded already: this finds what PyTorch itself calls
            break
    else:
        return None
    openmp, mkl = getattr(library, "omp_set_num_threads", None), getattr(library, "MKL_Set_Num_Threads_Local", None)
    if openmp is None:
        return None

    def set_both(count: int, own: int) -> int:
        openmp(count)
        return 0 if mkl is None else int(mkl(own))

    before = torch.get_num_threads()
    own = set_both(before + 1, 0)
    heard = torch.get_num_threads() == before + 1
    set_both(before, own)
    return set_both if heard else None
