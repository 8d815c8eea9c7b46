"""Private names of BoTorch and GPyTorch: each exists, behaves as assumed, and is used in one file only."""

from __future__ import annotations

import ast
import importlib.metadata
import math
from collections.abc import Sequence
from pathlib import Path

import gpytorch
import numpy as np
import pytest
import torch
from botorch.acquisition import qLogNoisyExpectedImprovement
from botorch.generation import gen
from botorch.models import SingleTaskGP
from botorch.models.model import Model
from botorch.models.transforms import Log, Standardize
from scipy.optimize import rosen, rosen_der
from scipy.stats import norm

import torchbandits as tb
from torchbandits import upstream
from torchbandits.botorch import BanditModel

FILES = [path for path in Path(tb.__file__).parent.rglob("*.py") if path.name != "upstream.py"]
LIBRARIES = {"botorch", "gpytorch", "linear_operator"}
THEIRS = {"_is_linear", "_X_baseline", "_batch_shape", "_log_ei_helper"}
RELEASES = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("botorch", "gpytorch"))


def gone(name: str) -> str:
    return f"{name} is gone in {RELEASES}: find another way in torchbandits/upstream.py"


def test_the_logarithm_of_an_improvement():
    z = torch.tensor([-3.0, 0.0, 1.5], dtype=torch.float64)
    try:
        value = upstream.log_improvement(z)
    except ImportError:
        pytest.fail(gone("botorch.acquisition.analytic._log_ei_helper"))
    expected = [math.log(norm.pdf(x) + x * norm.cdf(x)) for x in z.tolist()]
    assert value.tolist() == pytest.approx(expected, rel=1e-10)
    far = upstream.log_improvement(torch.tensor([-1e4], dtype=torch.float64))
    assert float(far) == pytest.approx(-0.5e8 - 0.5 * math.log(2 * math.pi) - 2 * math.log(1e4), rel=1e-12)


def test_an_affine_transform():
    for transform, affine in ((Standardize(1), True), (Log(), False)):
        assert hasattr(transform, "_is_linear"), gone("OutcomeTransform._is_linear")
        assert upstream.is_affine(transform) is affine


def test_a_baseline_without_the_pending_points():
    model = SingleTaskGP(torch.rand(5, 2, dtype=torch.float64), torch.rand(5, 1, dtype=torch.float64))
    function = qLogNoisyExpectedImprovement(model, torch.rand(4, 2, dtype=torch.float64), prune_baseline=False)
    assert hasattr(function, "_X_baseline"), gone("qLogNoisyExpectedImprovement._X_baseline")
    function.set_X_pending(torch.rand(3, 2, dtype=torch.float64))
    assert upstream.baseline_without_pending(function).shape[-2] == 4
    assert function.X_baseline.shape[-2] == 7


@pytest.mark.parametrize("together", [True, False])
def test_problems_that_are_minimised_each_on_its_own(together: bool, monkeypatch: pytest.MonkeyPatch):
    """Rosenbrock's function and a parabola, the second of which converges immediately."""
    # BoTorch leaves it out with releases of SciPy that it was not tested with.
    tested = not gen.check_scipy_version_at_least(minor=gen.SCIPY_UNTESTED_VERSION)
    assert hasattr(gen, "fmin_l_bfgs_b_batched") == tested, gone("botorch.generation.gen.fmin_l_bfgs_b_batched")
    together = together and tested
    assert hasattr(gen, "threadpool_limits"), gone("botorch.generation.gen.threadpool_limits")
    if not together:
        monkeypatch.delattr(gen, "fmin_l_bfgs_b_batched", raising=tested)
    asked = []

    def descent(x: np.ndarray, problems: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        asked.append(list(problems))
        values, gradients = zip(
            *(
                (rosen(one), rosen_der(one)) if problem == 0 else (float(((one - 0.3) ** 2).sum()), 2 * (one - 0.3))
                for one, problem in zip(x, problems, strict=True)
            ),
            strict=True,
        )
        return np.array(values), np.stack(gradients)

    found = upstream.minimize_each(descent, np.zeros((2, 2)), [(0.0, 2.0)] * 2, 200)
    np.testing.assert_allclose(found, [[1, 1], [0.3, 0.3]], atol=1e-4)
    assert asked[0] == ([0, 1] if together else [0])
    assert [0] in asked


def test_the_batch_shape_of_a_kernel_itself():
    kernel = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel(batch_shape=torch.Size([3])))
    assert hasattr(kernel, "_batch_shape"), gone("Kernel._batch_shape")
    assert upstream.own_batch_shape(kernel) == torch.Size()
    assert kernel.batch_shape == torch.Size([3])


def test_hooks_of_a_model_that_transforms_its_own_inputs():
    for name in ("_set_transformed_inputs", "_revert_to_original_inputs"):
        assert hasattr(Model, name), gone(f"Model.{name}")
        assert name in vars(BanditModel), "the package overrides it"


def test_other_files_take_none_of_them():
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in (
                "botorch",
                "gpytorch",
                "linear_operator",
            ):
                private = [alias.name for alias in node.names if alias.name.startswith("_")]
                assert not private, f"{path.name}:{node.lineno} imports {private}: put it into upstream.py"
            elif isinstance(node, ast.Attribute) and node.attr in THEIRS:
                own = isinstance(node.value, ast.Name) and node.value.id == "self"
                assert own, f"{path.name}:{node.lineno} reads {node.attr}: put it into upstream.py"
