"""Tolerances of posterior variances by dtype. `k` is the prior variance.

The requirements fix them: 1e-8 relative + 1e-12·k in float64, 1e-5 + 1e-10·k in float64 with duplicate and near-duplicate arms
(distance 1e-7), 1e-4·k absolute in float32 with λ ≥ 1e-4·k. Means have the same relative tolerance, and the same absolute
tolerance on the scale of the rewards.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch


@dataclass(frozen=True)
class Tolerance:
    """Allowed error: `relative·|expected| + absolute·k`."""

    relative: float
    absolute: float


VARIANCE = {
    torch.float64: Tolerance(1e-8, 1e-12),
    torch.float32: Tolerance(0.0, 1e-4),  # λ ≥ 1e-4·k
}
VARIANCE_NEAR_DUPLICATES = {torch.float64: Tolerance(1e-5, 1e-10)}


def _numpy(values) -> np.ndarray:
    if isinstance(values, torch.Tensor):
        values = values.detach().cpu().numpy()
    return np.asarray(values, dtype=np.float64)


def assert_close(actual, expected, tolerance: Tolerance, scale: float = 1.0, what: str = "values") -> None:
    """`|actual − expected| ≤ relative·|expected| + absolute·scale`, everywhere, and no NaN on either side."""
    actual, expected = _numpy(actual), _numpy(expected)
    assert actual.shape == expected.shape, f"{what}: shape {actual.shape}, expected {expected.shape}"
    error = np.abs(actual - expected)
    allowed = tolerance.relative * np.abs(expected) + tolerance.absolute * scale
    if not np.all(error <= allowed):  # written so that NaN fails
        excess = np.where(np.isnan(error), np.inf, error - allowed)
        worst = np.unravel_index(excess.argmax(), excess.shape)
        raise AssertionError(
            f"{what}: at {tuple(int(i) for i in worst)} got {actual[worst]!r}, expected {expected[worst]!r}, "
            f"error {error[worst]:.3g} > {np.broadcast_to(allowed, error.shape)[worst]:.3g}; "
            f"{int((~(error <= allowed)).sum())} of {error.size} outside"
        )
