"""Settings of all tests. Beartype enforces shape annotations; its hook must be installed before the package is imported."""

from __future__ import annotations

import gc
import importlib.util
import os
import re
import warnings
import zlib
from collections.abc import Iterator
from pathlib import Path

import jaxtyping
import pytest

pytest.register_assert_rewrite("torchbandits.testing")


_COMPILED = re.compile("njit|tl.constexpr")


def _checked_modules() -> list[str]:
    """Every module of the package except those compiled by numba or Triton, which a type checker can't wrap, and the contract
    suites, whose asserts pytest rewrites."""
    root = Path(importlib.util.find_spec("torchbandits").origin).parent  # finds the package without importing it
    files = [p for p in sorted(root.rglob("*.py")) if not p.stem.startswith("__") and not _COMPILED.search(p.read_text())]
    names = [".".join(("torchbandits", *p.relative_to(root).with_suffix("").parts)) for p in files]
    return [name for name in names if not name.startswith("torchbandits.testing")]


try:
    import beartype  # .ci/run requires it; a machine used only for a measurement may lack it
except ImportError:
    beartype = None
ENFORCED = beartype is not None
if ENFORCED:
    import annotations

    annotations.install(_checked_modules())

with warnings.catch_warnings():  # torch deprecates the scripting that linear_operator does at import, 2.14 by a FutureWarning
    warnings.simplefilter("ignore", DeprecationWarning)
    warnings.filterwarnings("ignore", message="`torch.jit.script` is deprecated", category=FutureWarning)
    import botorch  # noqa: F401
    import gpytorch  # noqa: F401

import scipy.linalg  # noqa: E402, F401 - before the limit: it brings its own BLAS
import threadpoolctl  # noqa: E402
import torch  # noqa: E402
from emulated_device import Lane, emulated_device, real_device  # noqa: E402
from hypothesis import HealthCheck, settings  # noqa: E402

# With small matrices on shared cores, a second thread costs ten times more in spinning barriers than it saves.
torch.set_num_threads(1)
threadpoolctl.threadpool_limits(1)
os.environ.setdefault("OMP_NUM_THREADS", "1")  # for the processes that tests start

# Shared machines stall, so there are no deadlines. Examples are fixed, so that failures are reproducible.
for profile, examples in (("default", 5), ("exhaustive", 20)):
    settings.register_profile(
        f"torchbandits {profile}",
        deadline=None,
        derandomize=True,
        max_examples=examples,
        suppress_health_check=[HealthCheck.too_slow],
    )


def pytest_configure(config: pytest.Config) -> None:
    """Set the default settings before the tests are imported, whose own settings extend them."""
    tier = "default" if "not exhaustive" in config.getoption("markexpr") else "exhaustive"
    settings.load_profile(f"torchbandits {tier}")
    if ENFORCED and tier == "default":
        annotations.check_one_of(annotations.SPARSELY)


def pytest_runtest_setup() -> None:
    """Let the type checker see the first calls of every function in this test."""
    if ENFORCED:
        annotations.begin_test()


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[object]:
    """Leave the garbage collector off while modules are imported and tests are made, and let it look at none of these objects
    later: nearly all of them stay."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(tryfirst=True)  # before -m deselects any test
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Select the cases of tests marked `sweep`: the default ones contain every value of every argument.

    With a number, as in `sweep(3)`, this many cases are selected, evenly spread from one that depends on the test's name, so
    that tests of the same cases, such as all policies, select different ones. The other cases are exhaustive.
    """
    sweeps: dict[str, list[pytest.Item]] = {}
    for item in items:
        left_out = item.get_closest_marker("exhaustive") or item.get_closest_marker("cuda")
        if item.get_closest_marker("sweep") and not left_out:
            sweeps.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for name, cases in sweeps.items():
        number, size = next(iter(cases[0].get_closest_marker("sweep").args), None), len(cases)
        start = zlib.crc32(name.encode())
        kept = _covering(cases) if number is None else {(start + j * size // number) % size for j in range(number)}
        for place, case in enumerate(cases):
            if place not in kept:
                case.add_marker(pytest.mark.exhaustive)


def _covering(cases: list[pytest.Item]) -> set[int]:
    """Indices of cases, chosen greedily by the number of new values until no value is new."""
    simple = str, int, float, type(None)  # equal values of these types count as one value; of other types each object counts
    values = [{(k, v if isinstance(v, simple) else id(v)) for k, v in case.callspec.params.items()} for case in cases]
    kept, missing = set(), set().union(*values)
    while missing:
        place = max(range(len(cases)), key=lambda j: len(values[j] & missing))
        kept.add(place)
        missing -= values[place]
    return kept


def pytest_report_header() -> str:
    return f"shape annotations: {'enforced by beartype' if ENFORCED else 'NOT enforced, beartype is not installed'}"


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


@pytest.fixture
def annotations_not_enforced():
    """Disable the type checker, for tests of bad input: the checks under test are the package's own."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.fixture(autouse=True)
def same_draws_at_every_run():
    """Seed torch's global generator, from which BoTorch's optimisers draw their starting points."""
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def gradients_stay_on():
    """Restore gradients after each test, and fail a test that leaves them off, such as by an interrupt of `torch.no_grad()`."""
    yield
    left = torch.is_grad_enabled()
    torch.set_grad_enabled(True)
    assert left, "this test left gradients off"


@pytest.fixture(params=["emulated", pytest.param("real", marks=pytest.mark.cuda)])
def lane(request: pytest.FixtureRequest) -> Lane:
    """A context in which there is a CUDA device: the emulated one, or with `-m cuda` that of this machine."""
    return emulated_device if request.param == "emulated" else real_device
