"""Confidence widths that a theorem proves for a posterior."""

from __future__ import annotations

import torch
from torch import Tensor

from torchbandits.embeddings import Identity
from torchbandits.errors import UnsupportedError, require
from torchbandits.policies import Composed
from torchbandits.policies.state import TableState
from torchbandits.widths import (
    BBKB,
    BKB,
    IGP,
    KernelUCB,
    MartingaleMixture,
    Scaled,
    SelfNormalized,
    SketchedOFUL,
    Srinivas,
    Width,
)
from torchbandits.widths.assumptions import check_assumptions

# Widths with a theorem that holds for all arms and all steps simultaneously, for each kind of posterior.
_EXACT = (IGP, KernelUCB, MartingaleMixture, SelfNormalized, Srinivas)
_SPARSE = (BKB, BBKB)


def proved_width(
    policy: Composed, state: TableState, given: Width | None, outcome: tuple[float, float] | None = None
) -> tuple[float, Tensor]:
    """The failure probability δ of a width that is proved for this posterior, and its value, `batch_shape`.

    Args:
        policy, state: The policy and its state.
        given: The width; None for that of the policy.
        outcome: `noise_std` and λ of the outcome whose width this is, for a policy of several; those of the policy by default.

    Raises:
        UnsupportedError: For a width without a theorem for the posterior, and for a kernel that is fitted during the run.
    """
    width = policy.confidence if given is None else given
    base = width
    while isinstance(base, Scaled) and base.scale >= 1:
        base = base.base
    proved: tuple[type[Width], ...] = _SPARSE if state.posterior.sparse else (*_EXACT, SketchedOFUL)
    proved = proved if state.posterior.sketch is None else (SketchedOFUL,)
    names = ", ".join(kind.__name__ for kind in proved)
    require(
        policy.reweighting is None,
        "this policy forgets rewards or weights them, and no width has a theorem for such a posterior: take "
        "stopping.ProbableRegret, which asks the model, or a policy without tb.forgetting and tb.robust.",
        UnsupportedError,
    )
    fitted = policy.refit_every is not None or not _as_given(policy, state)
    reasons = {
        "the policy keeps informative pulls only, so take another one": policy.memory.selective,
        "the policy's features approximate its kernel, so take another one": not isinstance(policy.features, Identity | None),
        "the prior mean is estimated, so pass prior_mean= a number": state.posterior.prior_mean == "estimate",
        "the kernel must be given, and not fitted to its own rewards": fitted,
        f"pass width= one of torchbandits.widths.{names}": not isinstance(base, proved),
    }
    reason = next((reason for reason, applies in reasons.items() if applies), None)
    # ProbableRegret is for policies of one outcome.
    other = "take stopping.ProbableRegret, which asks the model" if outcome is None else "stop by stopping.Budget"
    require(
        reason is None,
        f"the bounds of {type(base).__name__} under this posterior have no theorem, so that they certify nothing: {reason}. Or "
        f"{other}.",
        UnsupportedError,
    )
    noise_std, lam = outcome or (policy.noise_std, state.posterior.regularization)
    check_assumptions(base, noise_std, lam)
    known = state.counts_batches or "batches" not in width.reads
    message = f"{type(base).__name__} counts batches, which the width of this policy does not: give it to the policy, too."
    require(known, message, UnsupportedError)
    value = policy.width(state) if given is None else state.width_of(width)
    delta = float(getattr(base, "delta"))  # noqa: B009 - every width of these classes has one
    # The proofs of sampled dictionaries combine two events: accurate variances, and a valid bound.
    return 2 * delta if isinstance(base, _SPARSE) else delta, value


def _as_given(policy: Composed, state: TableState) -> bool:
    """Whether kernel and λ of the posterior are still those of the policy, and were not fitted to its rewards."""
    kernel, lam = policy.kernel.state_dict(), state.posterior.regularization
    pairs = [(value.double(), kernel[name].to(value).double()) for name, value in state.posterior.kernel.state_dict().items()]
    return lam == policy.regularization and all(torch.equal(*pair) for pair in pairs)
