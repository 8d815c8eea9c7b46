"""Shape annotations are enforced in tests: the hook must come before the first import of the package."""

from __future__ import annotations

import os
import warnings

# Small matrices on shared cores: a second thread costs more, in spinning barriers, than it gives.
for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(name, "1")

import jaxtyping  # noqa: E402

jaxtyping.install_import_hook("torchbandits", "beartype.beartype")

with warnings.catch_warnings():  # linear_operator scripts functions as it is imported, which torch 2.13 deprecates
    warnings.simplefilter("ignore", DeprecationWarning)
    import botorch  # noqa: F401
    import gpytorch  # noqa: F401

import pytest  # noqa: E402
import torch  # noqa: E402
from hypothesis import HealthCheck, settings  # noqa: E402

torch.set_num_threads(1)

# Shared machines stall: no deadlines. Fixed examples: a red test is red for everybody.
settings.register_profile(
    "torchbandits", deadline=None, derandomize=True, max_examples=20, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("torchbandits")


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)
