r"""Log evidence of a Gaussian process from sums of rewards, at a cost that does not depend on the number of pulls.

With n pulls of a point, average ȳ and scatter Σ(y − ȳ)², the density of all rewards is that of the averages times a factor
that does not depend on the kernel. `log_evidence` is exact, in O(u³); `collapsed_evidence` is a lower bound with m points
from `greedy_dictionary`, in O(u m²).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import gpytorch
import torch
from torch import Tensor

from torchbandits.kernels import FEW_FEATURES, Stationary, distances, evaluate_kernel, kernel_diagonal, kernel_matrix
from torchbandits.linalg import cholesky, solve_lower
from torchbandits.posteriors.averages import Averages
from torchbandits.tanimoto import tanimoto_scale
from torchbandits.types import Picks, Points, Rect, Square

# Fractions of the largest k(x, x), tried in this order.
_JITTERS = (0.0, 1e-12, 1e-10, 1e-8, 1e-6)


def log_evidence(
    kernel: gpytorch.kernels.Kernel,
    averages: Averages,
    noise_variance: float | Tensor,
    misfit: float | Tensor = 0.0,
    shared: Shared | None = None,
    memory: Workspace | None = None,
) -> Tensor:
    r"""Log density of all rewards under f ~ GP(0, k) and Gaussian noise; −∞ if the factorisation fails.

    .. math:: \log N(\bar y; 0, K_{uu} + \sigma^2 N^{-1}) - \tfrac12 \sum_i (n_i - 1) \log 2\pi\sigma^2
              - \tfrac12 \sum_i \log n_i - \tfrac1{2\sigma^2} \sum_i (q_i - s_i^2/n_i)

    Args:
        kernel: Any GPyTorch kernel in float64 without batch shape.
        averages: Averages of one batch row.
        noise_variance: σ² > 0, reward units squared.
        misfit: τ² ≥ 0, squared reward units: variance of a deviation of each point that the kernel does not model and that is
            the same in every pull; τ² I is added to σ² N⁻¹.
        shared: A covariance that the averages have beside that of the kernel; None for none.
        memory: Memory of an evaluation whose derivatives are not needed any more, for RBF and Matérn kernels.

    Returns:
        A number, differentiable in the kernel's parameters and all variances. No jitter is added, because the matrix that is
        factorised has no eigenvalue below σ²/max n.

    Cost: O(u³ + u² d) time, O(u²) memory. Source: Rasmussen & Williams 2006, eq. 2.30, with repeated inputs summed.
    """
    x, n = averages.points, averages.weights
    noise = torch.as_tensor(noise_variance, dtype=n.dtype, device=n.device)
    spread, form = noise / n + misfit, Stationary.of(kernel, detached=False)
    if form is not None and form.smooth and not x.requires_grad:
        # The points are distinct, so that a random effect is a deviation of each.
        spread = spread if form.effect is None else spread + form.effect
        return averages.within(noise) + _stationary_evidence(form, spread, averages, shared, memory)
    covariance = _covariance(kernel, averages) + torch.diag(spread)
    factor, good = cholesky(covariance if shared is None else covariance + shared.matrix())
    if good is not None and not bool(good):
        return noise.new_tensor(-torch.inf)
    white = solve_lower(factor, averages.residuals.unsqueeze(-1)).square().sum()
    log_det = 2 * factor.diagonal().log().sum()
    return averages.within(noise) - 0.5 * (white + log_det + len(n) * math.log(2 * math.pi))


def _covariance(kernel: gpytorch.kernels.Kernel, averages: Averages) -> Square:
    """k between the points, `u x u`, for a scaled Tanimoto kernel from similarities that are evaluated once."""
    if type(kernel) is gpytorch.kernels.ScaleKernel and tanimoto_scale(kernel) is not None:
        return kernel.outputscale * averages.similarities
    return kernel_matrix(kernel, averages.points, averages.points)


class Shared(NamedTuple):
    """A covariance v P + c of averages, such as that of what the rewards of a block have in common.

    Attributes:
        pattern: P, `u x u`.
        variance: v, a number, in which the evidence is differentiable.
        constant: c.
    """

    pattern: Square
    variance: Tensor
    constant: float

    def matrix(self) -> Square:
        """The covariance, `u x u`."""
        return self.variance * self.pattern + self.constant


class Workspace(NamedTuple):
    """Memory for the matrices of one evaluation of `StationaryEvidence` after the other, `u x u` each.

    Without it the system takes back the memory of an evaluation and gives it to the next one page by page, which takes a
    quarter of the time of both at 500 points.
    """

    squared: Square
    decay: Square
    factor: Square
    inverse: Square
    spare: Square
    further: Square

    @staticmethod
    def like(residuals: Tensor) -> Workspace:
        """Memory for as many points as there are residuals (`u`)."""
        u = len(residuals)
        # LAPACK has its matrices by columns.
        return Workspace(*(residuals.new_empty(u, u).mT if by else residuals.new_empty(u, u) for by in (0, 0, 1, 1, 0, 0)))


@dataclass(frozen=True)
class StationaryEvidence:
    r"""log N(y; 0, A) for A = s k(x, x) + diag(e) with a smooth RBF or Matérn kernel, and its derivatives in closed form. They
    take a third of the time of automatic differentiation through GPyTorch's kernel and the Cholesky factor.

    With W = ½(ααᵀ − A⁻¹) and α = A⁻¹y the derivatives are W_ii in e_i, Σ W k in s, and in the lengthscales, with G = s W k'(r²)
    and the features t = √(2ν) x/ℓ, :math:`-\tfrac2{\ell_j} \sum_{ik} G_{ik} (t_{ij} - t_{kj})^2`. Source: Rasmussen & Williams
    2006, eq. 5.9.

    Attributes:
        value: A number.
        form: The kernel without its scale; `lengthscale` is `1 x d` or `1 x 1`.
        scale: s, a number.
        t, weights: t (`u x d`), and α (`u`).
        memory: r², k, and the Cholesky factor of A, in memory that the next evaluation may overwrite.
    """

    value: Tensor
    form: Stationary
    scale: Tensor
    t: Tensor
    weights: Tensor
    memory: Workspace

    @staticmethod
    def of(
        form: Stationary,
        scale: Tensor,
        spread: Tensor,
        points: Points,
        residuals: Tensor,
        shared: Shared | None = None,
        memory: Workspace | None = None,
    ) -> StationaryEvidence | None:
        """The evidence of residuals y (`u`) at points (`u x d`) with spreads e (`u`), and with `shared` added to A; None if the
        factorisation fails. `memory` is that of an evaluation which is not needed any more."""
        memory = Workspace.like(residuals) if memory is None else memory
        squared, decay, A = memory.squared, memory.decay, memory.spare
        t = (points - points.mean(dim=0)) * form.scale
        norms = t.square().sum(dim=-1)
        torch.add(norms, norms.unsqueeze(-1), out=squared).addmm_(t, t.mT, alpha=-2).clamp_min_(0)
        squared.diagonal().zero_()
        form.decay_(torch.mul(squared, form.sign, out=decay), memory.further)
        torch.mul(decay, scale, out=A).diagonal().add_(spread)
        if shared is not None:
            A.addcmul_(shared.pattern, shared.variance).add_(shared.constant)
        factor, good = cholesky(A, out=memory.factor)
        if good is not None:
            return None
        weights = torch.cholesky_solve(residuals.unsqueeze(-1), factor).squeeze(-1)
        white, log_det = residuals @ weights, 2 * factor.diagonal().log().sum()
        value = -0.5 * (white + log_det + len(residuals) * math.log(2 * math.pi))
        return StationaryEvidence(value, form, scale, t, weights, memory)

    def slopes(self) -> tuple[Tensor, Tensor, Tensor, Square]:
        """The derivatives in ℓ (shaped like it), s, e (`u`) and A (W, `u x u`, which the next evaluation may overwrite). Cost
        O(u³)."""
        squared, decay, factor, inverse, spare, further = self.memory
        W = torch.cholesky_inverse(factor, out=inverse).mT.addr_(self.weights, self.weights, beta=-0.5, alpha=0.5)
        in_scale = torch.mul(W, decay, out=spare).sum()
        G = self.form.slope(decay, squared, further, spare).mul_(W)
        in_lengthscale = _in_lengthscale(self.form, self.scale * 2 * _half_apart(G, self.t, self.t))
        return in_lengthscale, in_scale, W.diagonal(), W


def _half_apart(G: Rect, left: Points, right: Points) -> Tensor:
    """Σ_ik G_ik (x_ij² − x_ij z_kj) for each feature j of points x and z: with the same of Gᵀ, z and x it is
    Σ_ik G_ik (x_ij − z_kj)²."""
    return (left.square() * G.sum(dim=-1, keepdim=True) - left * (G @ right)).sum(dim=0)


def _in_lengthscale(form: Stationary, apart: Tensor) -> Tensor:
    """The derivative in ℓ, shaped like it, from Σ_ik G_ik (t_ij − t_kj)² for each feature j (`d`)."""
    slopes = (-2 * apart / form.lengthscale).expand(1, len(apart))
    return slopes.sum(dim=-1, keepdim=True) if form.lengthscale.shape[-1] == 1 else slopes


# From the derivative of a result in a value to its derivatives in what the value is computed from.
_Backward = Callable[[Tensor], Sequence[Tensor]]


class _Explicit(torch.autograd.Function):
    """A value that was computed without a graph, with its derivatives in the inputs in closed form."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, backward: _Backward, *inputs: Tensor) -> Tensor:
        """The value."""
        ctx.own = backward
        return value

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """The derivatives in the inputs."""
        return None, None, *ctx.own(gradients[0])


def _stationary_evidence(
    form: Stationary, spread: Tensor, averages: Averages, shared: Shared | None, memory: Workspace | None
) -> Tensor:
    """The value of `StationaryEvidence`, differentiable in lengthscale, outputscale, spread and the variance of `shared`; −∞ if
    the factorisation fails."""
    scale = form.lengthscale.new_ones(()) if form.outputscale is None else form.outputscale
    plain = Stationary(form.nu, form.lengthscale.detach(), None)
    x, y = averages.points, averages.residuals
    with torch.no_grad():
        evidence = StationaryEvidence.of(plain, scale.detach(), spread, x, y, shared, memory)
    if evidence is None:
        return spread.new_tensor(-torch.inf)

    def backward(gradient: Tensor) -> list[Tensor]:
        *slopes, W = evidence.slopes()
        own = [] if shared is None else [(W * shared.pattern).sum()]
        return [gradient * slope for slope in (*slopes, *own)]

    variance = [] if shared is None else [shared.variance]
    value: Tensor = _Explicit.apply(evidence.value, backward, form.lengthscale, scale, spread, *variance)
    return value


def collapsed_evidence(
    kernel: gpytorch.kernels.Kernel,
    averages: Averages,
    noise_variance: float | Tensor,
    dictionary: Picks,
    misfit: float | Tensor = 0.0,
) -> tuple[Tensor, float]:
    r"""Lower bound of `log_evidence`: K is replaced by Q = K_um K_mm⁻¹ K_mu, and the variance that Q misses is penalised.

    .. math:: \log N(\bar y; 0, Q + \sigma^2 N^{-1}) - \tfrac1{2\sigma^2} \sum_i n_i (k_{ii} - q_{ii}) + \dots

    with the remaining terms as in `log_evidence`. With every point in the dictionary it equals the exact evidence.

    Args:
        kernel, averages, noise_variance, misfit: As for `log_evidence`.
        dictionary: `m` indices of points.

    Returns:
        The bound (−∞ if the factorisation fails), differentiable like `log_evidence`; and the jitter that K_mm needed for its
        Cholesky factor, as a fraction of the largest k(x, x), usually 0. With jitter the result is still a lower bound.

    Cost: O(u m² + u m d) time, O(u m) memory. Source: Titsias 2009, eq. 9.
    """
    x, n = averages.points, averages.weights
    noise = torch.as_tensor(noise_variance, dtype=n.dtype, device=n.device)
    K_um, diagonal, spread = _columns(kernel, x, dictionary), kernel_diagonal(kernel, x), noise / n + misfit
    with torch.no_grad():
        root, jitter = _root(K_um[dictionary])
        found = None if root is None else CollapsedEvidence.of(root, K_um, diagonal, spread, averages.residuals)
    if found is None:
        return noise.new_tensor(-torch.inf), jitter

    def backward(gradient: Tensor) -> list[Tensor]:
        return [slope.mul_(gradient) for slope in found.slopes(dictionary, jitter)]

    return averages.within(noise) + _Explicit.apply(found.value, backward, K_um, diagonal, spread), jitter


@dataclass(frozen=True)
class CollapsedEvidence:
    r"""The part of `collapsed_evidence` that depends on the kernel, from the matrices of any kernel, and its derivatives in
    closed form. Both take less than half of the time of automatic differentiation.

    With the factor L of K_mm, the rows v_i of V = K_um L⁻ᵀ, D = diag(e), B = I + VᵀD⁻¹V, b = B⁻¹VᵀD⁻¹y, α = D⁻¹(y − Vb) and
    H = V (I − B⁻¹) L⁻¹ the derivatives are

    .. math:: D^{-1} H + \alpha (L^{-T} b)^T, \quad
              -\tfrac12 L^{-T} \bigl(b b^T + (I - B^{-1})(B - I)\bigr) L^{-1}, \quad
              -\tfrac1{2 e_i}, \quad \tfrac12 \alpha_i^2 + \frac{k_{ii} - e_i - h_i^T k_i}{2 e_i^2}

    in K_um, K_mm, k_ii and e_i. Each is that of the bound in Q, with Q = K_um K_mm⁻¹ K_mu and Woodbury's formula inserted.

    Attributes:
        value: A number.
        K, V: `u x m`.
        diagonal, spread: k_ii and e (`u`).
        root, factor: Cholesky factors of K_mm and B (`m x m`).
        inner: B − I (`m x m`).
        pull, weights: b (`m`) and α (`u`).
    """

    value: Tensor
    K: Rect
    V: Rect
    diagonal: Tensor
    spread: Tensor
    root: Square
    factor: Square
    inner: Square
    pull: Tensor
    weights: Tensor

    @staticmethod
    def of(root: Square, K: Rect, diagonal: Tensor, spread: Tensor, residuals: Tensor) -> CollapsedEvidence | None:
        """The bound for residuals y (`u`), None if a factorisation fails. Cost O(u m²)."""
        V, deviation = solve_lower(root, K.mT).mT, spread.sqrt()
        # With C = D^(−1/2) V, Q + D is inverted by Woodbury through the factor of I + CᵀC.
        C, scaled = V / deviation.unsqueeze(-1), residuals / deviation
        inner = C.mT @ C
        factor, good = cholesky(inner + torch.eye(len(inner), dtype=inner.dtype, device=inner.device))
        if good is not None:
            return None
        half = solve_lower(factor, (scaled @ C).unsqueeze(-1))
        white = scaled.square().sum() - half.square().sum()
        log_det = 2 * factor.diagonal().log().sum() + spread.log().sum()
        missed = ((diagonal - torch.linalg.vector_norm(V, dim=-1).square()) / spread).sum()
        value = -0.5 * (white + log_det + missed + len(residuals) * math.log(2 * math.pi))
        pull = torch.linalg.solve_triangular(factor.mT, half, upper=True).squeeze(-1)
        weights = (residuals - V @ pull) / spread
        return CollapsedEvidence(value, K, V, diagonal, spread, root, factor, inner, pull, weights)

    def slopes(self, dictionary: Picks, jitter: float) -> tuple[Rect, Tensor, Tensor]:
        """The derivatives in K_um (with those in K_mm, whose rows are the ones of the dictionary), k_ii and e. Cost O(u m²)."""
        root, spread = self.root, self.spread
        shrunk = -torch.cholesky_inverse(self.factor)
        shrunk.diagonal().add_(1)
        lifted = torch.linalg.solve_triangular(root.mT, shrunk, upper=True)
        pull = torch.linalg.solve_triangular(root.mT, self.pull.unsqueeze(-1), upper=True).squeeze(-1)
        H = self.V @ lifted.mT
        explained = torch.linalg.vecdot(H, self.K)
        in_spread = 0.5 * (self.weights.square() + (self.diagonal - spread - explained) / spread.square())
        in_K = H.div_(spread.unsqueeze(-1)).addr_(self.weights, pull)
        in_own = -0.5 * torch.linalg.solve_triangular(root, lifted @ self.inner, upper=False, left=False)
        in_own.addr_(pull, pull, alpha=-0.5)
        if jitter:
            # The largest k(x, x) times the jitter is on the diagonal, too.
            diagonal = self.K[dictionary].diagonal()
            largest = (diagonal == diagonal.amax()).to(diagonal)
            in_own.diagonal().add_(largest * (jitter * in_own.trace() / largest.sum()))
        return in_K.index_add_(0, dictionary, in_own), -0.5 / spread, in_spread


def _columns(kernel: gpytorch.kernels.Kernel, points: Points, dictionary: Picks) -> Rect:
    """k between all points and those of the dictionary, `u x m`, with derivatives in closed form for a smooth RBF or Matérn
    kernel. Cost O(u m d)."""
    form, inducing = Stationary.of(kernel, detached=False), points[dictionary]
    if form is None or not form.smooth or points.requires_grad:
        return kernel_matrix(kernel, points, inducing)
    plain = Stationary(form.nu, form.lengthscale.detach(), None)
    scale = form.lengthscale.new_ones(()) if form.outputscale is None else form.outputscale
    with torch.no_grad():
        left = (points - points.mean(dim=0)) * plain.scale
        right = left[dictionary]
        # For many features, `cdist` takes a matrix product.
        few = points.device.type != "cpu" or points.shape[-1] <= FEW_FEATURES or form.effect is not None
        squared = (distances if few else torch.cdist)(left, right).square_()
        squared[dictionary, torch.arange(len(dictionary), device=dictionary.device)] = 0
        decay = plain.decay_(squared * plain.sign)
        K = decay * scale
        if form.effect is not None:
            form.add_effect_(K, form.coincident(squared == 0, points, inducing))

    def backward(gradient: Rect) -> list[Tensor]:
        product = gradient * decay
        in_scale = product.sum()
        G = plain.slope(decay, squared, product, torch.empty_like(decay)).mul_(gradient)
        apart = _half_apart(G, left, right) + _half_apart(G.mT, right, left)
        return [_in_lengthscale(plain, scale.detach() * apart), in_scale]

    result: Rect = _Explicit.apply(K, backward, form.lengthscale, scale)
    return result


def _root(K_mm: Square) -> tuple[Square | None, float]:
    """Cholesky factor with the least jitter for which all pivots exceed rounding, and that jitter; None if no jitter does."""
    scale, m = K_mm.diagonal().amax(), len(K_mm)
    eye = torch.eye(m, dtype=K_mm.dtype, device=K_mm.device)
    least = max(64, m) * torch.finfo(K_mm.dtype).eps * scale
    for jitter in _JITTERS:
        factor, good = cholesky(K_mm + jitter * scale * eye if jitter else K_mm)
        if good is None and bool(factor.diagonal().square().amin() > least):
            return factor, jitter
    return None, _JITTERS[-1]


@torch.no_grad()
def greedy_dictionary(kernel: gpytorch.kernels.Kernel, averages: Averages, size: int) -> Picks:
    """At most `size` points for `collapsed_evidence`: each maximises its number of pulls times the variance that the points
    chosen before it miss.

    Stops when the missed variance is below rounding error. Deterministic. Source: pivoted Cholesky; Burt et al. 2020,
    section 5.

    Returns:
        `m` indices of points, in the order in which they were chosen. Cost: O(u m² + u m d).
    """
    x, n = averages.points, averages.weights
    missed = kernel_diagonal(kernel, x).clone()
    floor = max(64, size) * torch.finfo(missed.dtype).eps * missed.amax()
    rows: Rect = missed.new_zeros(min(size, len(n)), len(n))
    chosen: list[int] = []
    for j in range(len(rows)):
        i = int((n * missed).argmax())
        if not bool(missed[i] > floor):
            break
        k_iu = evaluate_kernel(kernel, x[i : i + 1], x).squeeze(0)
        # One step of pivoted Cholesky: the column of the chosen point, orthogonal to the earlier ones.
        rows[j] = (k_iu - rows[:j, i] @ rows[:j]) / missed[i].sqrt()
        missed = (missed - rows[j].square()).clamp_min(0)
        missed[i] = 0
        chosen.append(i)
    return torch.tensor(chosen, dtype=torch.int64, device=n.device)
