"""Shape annotations are enforced in tests, by beartype: the hook must come before the first import of the package."""

from __future__ import annotations

import importlib.util
import os
import warnings
from pathlib import Path

import jaxtyping
import pytest

pytest.register_assert_rewrite("torchbandits.testing")


def _checked_modules() -> list[str]:
    """Every module of the package but those that numba compiles, which a type checker can't wrap, and the suites, whose asserts
    pytest rewrites."""
    root = Path(importlib.util.find_spec("torchbandits").origin).parent  # finds it, does not import it
    files = [p for p in sorted(root.rglob("*.py")) if not p.stem.startswith("__") and "njit" not in p.read_text()]
    names = [".".join(("torchbandits", *p.relative_to(root).with_suffix("").parts)) for p in files]
    return [name for name in names if not name.startswith("torchbandits.testing")]


try:
    import beartype  # .ci/run asks for it; a machine that is only lent to a measurement may lack it
except ImportError:
    beartype = None
ENFORCED = beartype is not None
if ENFORCED:
    import annotations

    annotations.install(_checked_modules())

with warnings.catch_warnings():  # linear_operator scripts functions as it is imported, which torch 2.13 deprecates
    warnings.simplefilter("ignore", DeprecationWarning)
    import botorch  # noqa: F401
    import gpytorch  # noqa: F401

import scipy.linalg  # noqa: E402, F401 - before the limit: it brings its own BLAS
import threadpoolctl  # noqa: E402
import torch  # noqa: E402
from hypothesis import HealthCheck, settings  # noqa: E402

# Small matrices on shared cores: a second thread costs ten times more, in spinning barriers, than it gives.
torch.set_num_threads(1)
threadpoolctl.threadpool_limits(1)
os.environ.setdefault("OMP_NUM_THREADS", "1")  # of the processes that tests start

# Shared machines stall: no deadlines. Fixed examples: a red test is red for everybody.
settings.register_profile(
    "torchbandits", deadline=None, derandomize=True, max_examples=20, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("torchbandits")


def pytest_report_header() -> str:
    return f"shape annotations: {'enforced by beartype' if ENFORCED else 'NOT enforced, beartype is not installed'}"


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


@pytest.fixture
def annotations_not_enforced():
    """For tests of bad input: the checks are the package's own, not the type checker's."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.fixture(autouse=True)
def gradients_stay_on():
    """A test that interrupts `torch.no_grad()` itself would leave gradients off for all tests after it."""
    yield
    left = torch.is_grad_enabled()
    torch.set_grad_enabled(True)
    assert left, "this test left gradients off"
