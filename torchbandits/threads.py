"""Number of threads of a computation: one if it is small, those of the caller if it is large.

A step of a bandit is a few hundred operations on small matrices. A second thread does not make them faster, and on a busy
machine each operation waits for a thread without a core, so runs take ten times longer. `torch.set_num_threads` is a setting of
the process, which a library should not change. This module sets the number of OpenMP threads, and of MKL's own threads if
PyTorch was built with MKL, only for the calling thread and for the duration of the computation.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import TypeVar

import torch

MANY_NUMBERS = 1 << 18
"""Number of arms times batch rows above which several threads make each operation of a step faster."""

MANY_PRODUCTS = 2e9
"""Number of multiplications above which several threads make a sweep or a factorisation faster: about half a second on one
thread."""

_Set = Callable[[int, int], int]
Item = TypeVar("Item")
Result = TypeVar("Result")
_local = threading.local()


class threads:
    """Context with one thread of PyTorch, or as many as before the outermost such context: `with threads(many=…):`.

    On exit, also by an exception, the previous number is restored. Other Python threads are unaffected. Builds of PyTorch
    without OpenMP, or that hide it, keep all threads. Cost: a few microseconds.

    Args:
        many: Whether the computation is large enough for all threads.
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
    """A function that sets the number of OpenMP threads and the separate number of MKL (0 for none) for the calling thread, and
    returns the previous number of MKL. None if PyTorch's libraries do not export the functions."""
    folder = Path(torch.__file__).parent / "lib"
    for name in ("libtorch_cpu.so", "libtorch_cpu.dylib"):
        if (folder / name).exists():
            # The library is already loaded, so this is the copy that PyTorch itself calls.
            library = ctypes.CDLL(str(folder / name))
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


def side_by_side(work: Callable[[Item, int], Result], items: Iterable[Item]) -> Iterator[Result]:
    """Results of `work(item, place)` in order, computed by as many Python threads as PyTorch has here, each with one thread of
    PyTorch.

    A chunk of arms then costs one synchronisation between threads, whereas the threads of PyTorch synchronise after each of its
    fifty small products; on a busy machine each synchronisation waits for a thread without a core. The results do not depend on
    the number of threads, because each chunk is computed by one thread.

    Args:
        work: Called without gradients. `place` counts buffers: a result may be overwritten once the next one is requested.
        items: Read in this thread, ahead of their use; at most one more than there are threads is in progress at a time.
    """
    count = torch.get_num_threads()
    # Python starts no further threads once the main thread has ended.
    if count == 1 or thread_setter() is None or not threading.main_thread().is_alive():
        for item in items:
            yield work(item, 0)
        return

    def alone(item: Item, place: int) -> Result:
        with torch.no_grad(), threads(many=False):
            return work(item, place)

    waiting: deque[Future[Result]] = deque()
    with ThreadPoolExecutor(count) as pool:
        try:
            for place, item in zip(itertools.cycle(range(count + 1)), items, strict=False):
                waiting.append(pool.submit(alone, item, place))
                if len(waiting) > count:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()


def shared(work: Callable[[slice], object], count: int, least: int) -> None:
    """Call `work` on parts of `range(count)`, in as many threads as the caller of the library lets PyTorch use.

    For compiled loops that let other threads run. The threads stay for later calls. An error of a part is raised when no part
    runs any more.

    Args:
        work: Called with at least `least` places; results must not depend on how they are divided.
        count: Number of places.
        least: See `work`.
    """
    if (workers := count // least) > 1:
        with threads(many=True):
            workers = min(workers, torch.get_num_threads())
    if workers <= 1:
        work(slice(0, count))
        return
    ends = [count * place // workers for place in range(workers + 1)]
    left = deque(slice(*some) for some in itertools.pairwise(ends))

    def take() -> None:
        while True:
            try:
                part = left.popleft()
            except IndexError:
                return
            work(part)

    waiting: list[Future[None]] = []
    try:
        # Python starts no further threads once the main thread has ended. This thread then has all parts.
        with contextlib.suppress(RuntimeError):
            pool = _pool()
            for _ in range(workers - 1):
                waiting.append(pool.submit(take))
        take()
    finally:
        # No thread works on after this call, also after an error. What has not begun finds no part.
        left.clear()
        errors = [future.exception() for future in waiting if not future.cancel()]
    for error in errors:
        if error is not None:
            raise error


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(thread_name_prefix="torchbandits")


# A forked process has none of the threads.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.cache_clear)
