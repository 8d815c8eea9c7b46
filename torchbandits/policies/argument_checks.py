"""The arguments that policies share, checked when a policy is made: each error names what was expected and what came."""

from __future__ import annotations

from typing import Any

from torchbandits.coercion import check_kernel, is_finite, is_whole, non_negative
from torchbandits.errors import require
from torchbandits.starts import Start
from torchbandits.widths import Width


def check_model(kernel: Any, width: Any, regularization: Any, prior_mean: Any) -> None:
    """Kernel, width, λ and prior mean.

    Raises:
        ArgumentError: If one is not what it must be.
    """
    check_kernel("kernel", kernel)
    require(
        isinstance(width, Width),
        f"width (confidence of Composed) must be a torchbandits.widths.Width, such as widths.Constant(2.0), "
        f"got {type(width).__name__}.",
    )
    check_regularization(regularization)
    numeric = isinstance(prior_mean, (int, float)) and is_finite(prior_mean)
    require(
        numeric or (isinstance(prior_mean, str) and prior_mean == "estimate"),
        f"prior_mean must be a finite number or 'estimate', got {prior_mean!r}.",
    )


def check_regularization(regularization: Any, default: str = "noise_std²") -> None:
    """Raises ArgumentError unless λ is one finite number > 0."""
    require(
        is_finite(regularization) and regularization > 0,
        f"regularization (λ, by default {default}) must be finite and > 0, got {regularization}.",
    )


def regularization_of(noise_std: Any, regularization: Any) -> Any:
    """λ as given (checked elsewhere), or noise_std² by default. Raises ArgumentError for a noise_std that gives none."""
    if regularization is not None:
        return regularization
    require(
        non_negative("noise_std", noise_std) > 0,
        "noise_std must be > 0, got 0: a posterior without any noise can't be computed. For rewards that repeat exactly pass a "
        "small one, such as 1e-3 of their spread, or regularization= beside noise_std=0.",
    )
    return noise_std**2


def check_memory_budget(memory_budget: Any) -> None:
    """Raises ArgumentError unless it is a number of bytes; 0 keeps nothing."""
    require(
        is_whole(memory_budget, 0),
        f"memory_budget must be a whole number of bytes ≥ 0, such as 2 << 30 for 2 GiB, got {memory_budget!r}.",
    )


def check_initial(initial: Any) -> None:
    """Raises ArgumentError unless it is a start, or None."""
    require(
        initial is None or isinstance(initial, Start),
        f"initial must be a torchbandits.starts.Start, such as starts.uniform(1), or None, got {initial!r}.",
    )
