"""π-GP-UCB: independent GPs on the cells of an adaptive cover, for kernels of the Matérn family."""

from __future__ import annotations

from collections.abc import Sequence

import gpytorch
import torch
from torch import Tensor

from torchbandits.checks import as_tensor, explains_keywords
from torchbandits.errors import NonFiniteError, ShapeError, require
from torchbandits.policies.partitioned_ucb import PartitionedUCB
from torchbandits.starts import Start


@explains_keywords
def pi_gp_ucb(
    kernel: gpytorch.kernels.Kernel,
    *,
    nu: float,
    horizon: int,
    noise_std: float = 0.01,
    norm_bound: float | Tensor = 1.0,
    delta: float = 1e-4,
    bounds: Tensor | Sequence[Sequence[float]] | None = None,
    regularization: float = 1.0,
    initial: Start | None = None,
    memory_budget: int = 2 << 30,
) -> PartitionedUCB:
    r"""π-GP-UCB: upper confidence bounds of one posterior per cell, on a cover of the box whose cells split where pulls gather.

    .. math:: u(x) = \max_{c \ni x} \mu_c(x) + \big(B + R\sqrt{2(\gamma_c + 1 + \log(N_t/\delta))/\lambda}\big)\,
              \sigma_c(x), \quad N_t = \max\big(4(t+1)^{bd}, \text{cells made}\big), \quad b = (d+1)/(d+2\nu)

    with γ_c half the log determinant of the pulls in cell c, and t the number of the pull to be chosen (from 1).
    The paper uses only 4(t+1)^{bd}, which is below the number of cells of a fine first grid while t is small. The union bound
    must cover every cell that was made: the cells of the first grid and all their descendants that hold arms.

    The first cover is a grid of about T^q cells, q = d(d+1)/(d(d+2)+2ν); a cell of side ρ is split into 2^d cells when
    ρ^(−1/b) < pulls in it + 1. The posterior of a cell uses only the pulls in the cell. Arms on an edge belong to every cell
    that touches them, up to the rounding of the arms' dtype (the tolerance is in `bandit.posterior.cover`).

    Arms are mapped to the unit cube only for the cover: the kernel reads the original features, so its lengthscale is in their
    units. The map is in `bandit.posterior.cover`.

    Args:
        kernel: Kernel of the RKHS that holds the expected reward.
        nu: Its smoothness ν > 0 (of a Matérn kernel, its `nu`).
        horizon: T, the number of pulls to come; further pulls are allowed, but the first grid is made for T.
        noise_std: Sub-Gaussian constant R of the noise, reward units.
        norm_bound: B, bound on the RKHS norm; one number, or one per batch row.
        delta: Failure probability of the bounds.
        bounds: `2 x d`, lower and upper corner of the box, in the units of the arms; by default the bounding box of the arms.
        regularization: λ; 1 by default, as in the paper's experiments (its theorem takes 1 + 2/T).
        initial: Rule for the first picks (`torchbandits.starts`); by default the argmax of the prior (lowest index).
        memory_budget: Bytes for the covariances, 8 P² per cell of P arms.

    Raises:
        ArgumentError: If a number is out of its range; on `Bandit(policy, arms)` also if an arm lies outside the bounds or
            the covariances do not fit the memory budget.
        ShapeError: If `bounds` is not `2 x d`.

    Guarantee: regret Õ(T^((1+q)/2)), sublinear for ν > 1 and every d, with probability 1 − δ (Thm 3, with λ = 1 + 2/T).
    Cost: O(A) per step, and O(P²) per cell that holds the pull; nothing grows with the number of pulls.
    Source: Janz, Burt & González 2020, "Bandit optimisation of functions in the Matérn kernel RKHS", section 3, Thm 3.
    """
    box = None
    if bounds is not None:
        corners = as_tensor("bounds, 2 x d numbers with the lower corner first,", bounds)
        require(
            corners.dim() == 2 and corners.shape[0] == 2 and not corners.is_complex() and corners.dtype != torch.bool,
            f"bounds must be 2 x d, lower corner first, got {corners.dtype} of shape {tuple(corners.shape)}.",
            ShapeError,
        )
        require(bool(torch.isfinite(corners).all()), "bounds have a NaN or an infinity: give a finite box.", NonFiniteError)
        # float32 corners are read as the shortest decimals that they represent, so that 0.7 is 0.7.
        lower, upper = ([float(str(v)) for v in row] for row in corners.detach().cpu().numpy())
        require(
            all(low <= high for low, high in zip(lower, upper, strict=True)),
            f"each lower bound must be at most the upper one, got lower {lower} and upper {upper}.",
        )
        box = (tuple(lower), tuple(upper))
    return PartitionedUCB(kernel, nu, horizon, noise_std, norm_bound, delta, box, regularization, initial, memory_budget)
