"""Kernel evaluation: dense and exact for any GPyTorch kernel, fast for RBF and Matérn; and kernels of single batch rows.

GPyTorch computes squared distances through a matrix product. For one column this takes six times as long as differences (0.79
against 0.13 ms for 20,640 arms with 8 features) and loses half of the digits near the point; for a block it centres,
concatenates and allocates every time. RBF and Matérn kernels on all features therefore have separate paths,
`StationaryColumns` and `StationaryBlocks`. Both use one detector, `Stationary.of`, and one formula, `Stationary.decay_`. Any
other kernel takes GPyTorch's path, which is the oracle for the fast paths in the tests.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import gpytorch
import numpy as np
import torch
from torch import Tensor, nn

from torchbandits.linalg import matmul_into
from torchbandits.random_effects import RandomEffectKernel, coincident, smooth_part, with_effect
from torchbandits.shapes import broadcast_shapes
from torchbandits.tanimoto import tanimoto_scale
from torchbandits.types import Arms, Points, Square
from torchbandits.upstream import own_batch_shape

# For points whose features differ by less than this (relative), the kernel is evaluated from differences.
_NEAR = 1e-6
# Bytes of the rows of a block that are processed together, so that consecutive passes find them in cache.
_GROUP_BYTES = 256 << 10
# Number of kernel values of columns that are evaluated together, for the same reason.
_PIECE = 1 << 16
# With AVX-512, NumPy's exponential and square root take 0.4 of the time of PyTorch's on one thread (Zen 4); with more than two
# threads, PyTorch's are faster. Their last bits differ, as those of matrix products do between processors and thread counts.
# (NumPy on a thread pool gives the same bits for every thread count, but takes twice the time, because its threads compete with
# the spinning threads of the matrix product.)
_WIDE = torch.backends.cpu.get_cpu_capability() == "AVX512"
_FEW_THREADS = 2
# Largest squared norm, in length-scales from the centre of the points, for which |x|² + |y|² − 2xᵀy is trusted: an error of
# 1e-13 (float32: 1e-6) in the squared distance. Beyond it, distances are summed from differences.
_TRUSTED = {torch.float64: 100.0, torch.float32: 4.0}
# Squared distances of equal points by a matrix product are at most this, which is far above its error.
_NEAR_SQUARED = {torch.float64: 1e-10, torch.float32: 1e-4}
# Largest number of features for which a matrix of kernel values is evaluated by differences on the host: with more of them, a
# matrix product is faster.
FEW_FEATURES = 32
# Number of arms from which a centre is found.
_SAMPLE = 4096
# Number of consecutive arms on a device for which the largest norm is known on the host.
_TOGETHER = 256
# Bytes of the differences of coordinates that are held at once on a device.
_DIFFERENCES = 256 << 20


# ---------------------------------------------------------------------------------- any kernel


def evaluate_kernel(kernel: gpytorch.kernels.Kernel, left: Points, right: Points) -> Tensor:
    """k(x, x') as a dense tensor, `batch_shape x n x n'`. Differentiable. Cost O(n n' d)."""
    batch_shape = broadcast_shapes(left.shape[:-2], right.shape[:-2], kernel.batch_shape)
    if left.shape[-2] == 0 or right.shape[-2] == 0:
        return left.new_zeros(*batch_shape, left.shape[-2], right.shape[-2])
    if left.device.type != "cpu" and (form := _plain(kernel, left, right)) is not None:
        return form.between(left, right).expand(*batch_shape, -1, -1)
    x, y = left.expand(*batch_shape, -1, -1), right.expand(*batch_shape, -1, -1)
    # For equal points on both sides GPyTorch may return a root computed by a Cholesky decomposition with jitter. Evaluating
    # the matrix in two halves avoids this, because then the points on both sides always differ.
    if x.shape == y.shape and torch.equal(x, y):
        n = x.shape[-2]
        if n == 1:
            value: Tensor = kernel(x, diag=True)
            return value.unsqueeze(-1)
        return torch.cat([kernel(part, y).to_dense() for part in (x[..., : n // 2, :], x[..., n // 2 :, :])], dim=-2)
    dense: Tensor = kernel(x, y).to_dense()
    return dense


def kernel_matrix(kernel: gpytorch.kernels.Kernel, left: Points, right: Points) -> Tensor:
    """`evaluate_kernel`, with near-coincident pairs of points evaluated by their differences.

    GPyTorch computes distances through a matrix product, so a kernel with a kink at 0 (Matérn-1/2) is off by √eps between
    points that nearly coincide. An RBF or Matérn kernel of a few features is evaluated by differences alone, which takes a
    fraction of the time. Cost O(n n' d).
    """
    few = left.device.type != "cpu" or left.shape[-1] <= FEW_FEATURES
    if few and left.shape[-2] and right.shape[-2] and (form := _plain(kernel, left, right)) is not None:
        batch_shape = broadcast_shapes(left.shape[:-2], right.shape[:-2], kernel.batch_shape)
        return form.between(left, right).expand(*batch_shape, -1, -1)
    K, near = evaluate_kernel(kernel, left, right), None
    # Similarities of fingerprints are ratios of exact sums.
    if tanimoto_scale(kernel) is not None:
        return K
    # Up to so many pairs are looked up one by one, on the host.
    most = sum(K.shape[-2:]) * K.shape[:-2].numel() if left.device.type == "cpu" else 0
    for feature, (x, y) in enumerate(zip(left.detach().unbind(dim=-1), right.detach().unbind(dim=-1), strict=True), start=1):
        close = (x.unsqueeze(-1) - y.unsqueeze(-2)).abs() <= _NEAR * (1 + x.abs().unsqueeze(-1))
        near = close if near is None else near & close
        count = int(near.count_nonzero())
        if 0 < count <= most:
            near = _near_among(near, left.detach()[..., feature:], right.detach()[..., feature:])
            if not bool(near.any()):
                return K
            break
        if not count:
            return K
    if near is None:
        return K
    batch_shape = K.shape[:-2]
    i, j = near.reshape(-1, *near.shape[-2:]).any(dim=0).nonzero(as_tuple=True)
    if len(i) > sum(K.shape[-2:]) and not (left.requires_grad or right.requires_grad):
        # Many pairs are of equal points, such as the zeros beyond the points of a batch row. Their values are k(x, x), without
        # the features of every pair.
        equal = torch.ones_like(near)
        for x, y in zip(left.unbind(dim=-1), right.unbind(dim=-1), strict=True):
            equal &= x.unsqueeze(-1) == y.unsqueeze(-2)
        K = torch.where(equal, kernel(left.expand(*batch_shape, -1, -1), diag=True).unsqueeze(-1).to(K.dtype), K)
        i, j = (near & ~equal).reshape(-1, *near.shape[-2:]).any(dim=0).nonzero(as_tuple=True)
        if not len(i):
            return K
    pairs = kernel(left[..., i, :].expand(*batch_shape, -1, -1), right[..., j, :].expand(*batch_shape, -1, -1), diag=True)
    place = (i * K.shape[-1] + j).expand(*batch_shape, -1)
    return K.flatten(-2).scatter(-1, place, pairs.to(K.dtype)).unflatten(-1, K.shape[-2:])


def _near_among(near: Tensor, left: Points, right: Points) -> Tensor:
    """Which of the pairs in `near`, `batch_shape x n x n'` booleans with few that are True, are near in all features."""
    at, batch = near.nonzero(as_tuple=True), near.shape[:-2]
    x, y = left.expand(*batch, *left.shape[-2:])[at[:-1]], right.expand(*batch, *right.shape[-2:])[(*at[:-2], at[-1])]
    near[at] = ((x - y).abs() <= _NEAR * (1 + x.abs())).all(dim=-1)
    return near


def kernel_between(kernel: gpytorch.kernels.Kernel, left: Points, right: Points) -> Tensor:
    """`kernel_matrix` for a kernel with a kink at 0, the faster `evaluate_kernel` for any other kernel."""
    return (kernel_matrix if _has_kink(kernel) else evaluate_kernel)(kernel, left, right)


def _has_kink(kernel: gpytorch.kernels.Kernel) -> bool:
    """Whether a part of the kernel has a nonzero slope at distance 0, so that an error of 1e-15 in r² changes it by 3e-8."""
    return any(
        (isinstance(part, gpytorch.kernels.MaternKernel) and part.nu == 0.5)
        or (isinstance(part, gpytorch.kernels.PiecewisePolynomialKernel) and part.q == 0)
        for part in kernel.modules()
    )


def _plain(kernel: gpytorch.kernels.Kernel, left: Points, right: Points) -> Stationary | None:
    """The parameters of an RBF or Matérn kernel that is evaluated without gradients, or None. Such a kernel is evaluated by
    differences in a few operations, which do not wait for a device, whereas GPyTorch compares the points first."""
    if left.requires_grad or right.requires_grad:
        return None
    if torch.is_grad_enabled() and any(p.requires_grad for p in kernel.parameters()):
        return None
    return Stationary.of(kernel)


def kernel_diagonal(kernel: gpytorch.kernels.Kernel, points: Points) -> Tensor:
    """k(x, x), `batch_shape x n`. Differentiable. Cost O(n d)."""
    batch_shape = broadcast_shapes(points.shape[:-2], kernel.batch_shape)
    diagonal: Tensor = kernel(points.expand(*batch_shape, -1, -1), diag=True)
    return diagonal


# ---------------------------------------------------------------------------------- RBF and Matérn kernels


@dataclass(frozen=True)
class Stationary:
    r"""An RBF or Matérn kernel, scaled or not, of all features, with random effects or without.

    .. math:: k(x, y) = s\,e^{-r^2/2}, \quad s\,e^{-r}, \quad s\,(1 + r)\,e^{-r}, \quad s\,(1 + r + r^2/3)\,e^{-r}

    for RBF and Matérn-1/2, 3/2 and 5/2, with r = |x − y|/ℓ, for Matérn of order ν times √(2ν). A random effect adds τ² where
    all features are equal.

    Attributes:
        nu: Order of a Matérn kernel; None for RBF.
        lengthscale: ℓ, `batch_shape x 1 x d` or `batch_shape x 1 x 1`.
        outputscale: s, `batch_shape`; None for 1.
        effect: τ², `batch_shape`; None for 0.
    """

    nu: float | None
    lengthscale: Tensor
    outputscale: Tensor | None
    effect: Tensor | None = None

    @staticmethod
    def covers(kernel: gpytorch.kernels.Kernel) -> bool:
        """Whether this is such a kernel; its parameters are not evaluated."""
        base = kernel.base_kernel if _scaled(kernel) else kernel
        matern = type(base) is gpytorch.kernels.MaternKernel and any(math.isclose(base.nu, nu) for nu in (0.5, 1.5, 2.5))
        known = matern or type(base) is gpytorch.kernels.RBFKernel
        return known and base.active_dims is None and kernel.active_dims is None

    @staticmethod
    def of(kernel: gpytorch.kernels.Kernel, *, detached: bool = True) -> Stationary | None:
        """The parameters of an RBF or Matérn kernel; None for any other kernel."""
        if not Stationary.covers(kernel):
            return None
        scaled = _scaled(kernel)
        base = kernel.base_kernel if scaled else kernel
        nu = float(base.nu) if type(base) is gpytorch.kernels.MaternKernel else None
        lengthscale, outputscale = base.lengthscale, kernel.outputscale if scaled else None
        if detached:
            lengthscale, outputscale = lengthscale.detach(), None if outputscale is None else outputscale.detach()
        effect = kernel.effect.detach() if isinstance(kernel, RandomEffectKernel) else None
        return Stationary(nu, lengthscale, outputscale, effect)

    def row(self, batch_shape: torch.Size, place: tuple[int, ...]) -> Stationary:
        """The kernel of one batch row, without batch shape."""
        lengthscale = self.lengthscale.expand(*batch_shape, *self.lengthscale.shape[-2:])[place]
        outputscale, effect = (
            None if own is None else own.expand(batch_shape)[place] for own in (self.outputscale, self.effect)
        )
        return Stationary(self.nu, lengthscale, outputscale, effect)

    @cached_property
    def scale(self) -> Tensor:
        """The factor that turns the length of differences into r, shaped like the lengthscale."""
        return (1.0 if self.nu is None else math.sqrt(2 * self.nu)) / self.lengthscale

    @property
    def sign(self) -> float:
        """The factor of r² in the argument of `decay_`."""
        return -0.5 if self.nu is None else 1.0

    @cached_property
    def _zero(self) -> Tensor:
        return self.lengthscale.new_zeros(())

    def decay_(self, argument: Tensor, spare: Tensor | None = None) -> Tensor:
        """k/s from `sign` · r². The argument is overwritten, and so is `spare` of its shape, if it is given."""
        return _exp_(argument) if self.nu is None else self.decay_at_(_sqrt_(argument.clamp_min_(0)), spare)

    def decay_at_(self, r: Tensor, spare: Tensor | None = None) -> Tensor:
        """k/s from r, which is overwritten, and so is `spare` of its shape, if it is given."""
        if self.nu is None:
            # In one operation.
            return _exp_(torch.addcmul(self._zero, r, r, value=-0.5, out=r))
        if self.nu == 0.5:
            return _exp_(r.neg_())
        decay = _exp_(torch.neg(r, out=spare))
        if self.nu == 2.5:
            torch.addcmul(r, r, r, value=1 / 3, out=r)
        return torch.addcmul(decay, decay, r, out=r)

    @property
    def smooth(self) -> bool:
        """Whether k has a derivative in r² at 0, so that r² may come from a matrix product."""
        return self.nu != 0.5

    def trusts(self, norms: Tensor) -> bool:
        """Whether a matrix product gives the squared distances of points of these squared norms, in lengthscales."""
        return self.smooth and bool((norms <= _TRUSTED[norms.dtype]).all())

    def coincident(self, near: Tensor, left: Points, right: Points) -> Tensor | tuple[Tensor, ...] | None:
        """Where all features of points are equal; None without random effects.

        Args:
            near: Where they may be, `batch_shape x n x n'` booleans. A distance of 0 is not enough: centring and scaling round,
                and points may differ in their last digits alone.
            left: `batch_shape x n x d`.
            right: `batch_shape x n' x d`.

        Returns:
            A mask like `near`; on the host, where few are looked up, the indices instead.
        """
        if self.effect is None:
            return None
        # Many may be equal in a batch row without points, which has zeros in all of its places.
        if near.device.type != "cpu" or int(near.count_nonzero()) > sum(near.shape[-2:]) * near.shape[:-2].numel():
            return coincident(left, right, near)
        at, batch = near.nonzero(as_tuple=True), near.shape[:-2]
        x, y = left.expand(*batch, *left.shape[-2:]), right.expand(*batch, *right.shape[-2:])
        equal = (x[at[:-1]] == y[(*at[:-2], at[-1])]).all(dim=-1)
        return tuple(index[equal] for index in at)

    def add_effect_(self, K: Tensor, same: Tensor | tuple[Tensor, ...] | None) -> Tensor:
        """Add the random effect to kernel values that are `coincident`."""
        if same is None or self.effect is None:
            return K
        effect = self.effect.to(K.dtype)
        if isinstance(same, Tensor):
            return K.add_(same * (effect[..., None, None] if effect.dim() else effect))
        if len(same[0]):
            K[same] += effect.expand(K.shape[:-2])[same[:-2]] if effect.dim() else effect
        return K

    def slope(self, decay: Tensor, squared: Tensor, out: Tensor, spare: Tensor) -> Tensor:
        """The derivative of k/s with respect to r² for a smooth kernel, from k/s and r², written to `out`; `spare` is
        overwritten, too."""
        if self.nu is None:
            return torch.mul(decay, -0.5, out=out)
        r = _sqrt_(spare.copy_(squared))
        if self.nu == 1.5:
            return torch.div(decay, r.add_(1), out=out).mul_(-0.5)
        torch.addcmul(decay, decay, r, out=out)
        return out.div_(r.add_(squared, alpha=1 / 3).add_(1)).mul_(-1 / 6)

    def between(self, left: Points, right: Points) -> Tensor:
        """k by differences, `batch_shape x n x n'`. Cost O(n n' d)."""
        scale, centre = self.scale.to(left.dtype), _centre_if_coarse(left)
        x, y = (left, right) if centre is None else (left - centre, right - centre)
        return self.at_distances(distances(x * scale, y * scale), left, right)

    def between_scaled(self, left: Points, right: Points) -> Tensor:
        """`between` for points in units of the lengthscale, that is, multiplied by `scale`."""
        return self.at_distances(distances(left, right), left, right)

    def at_distances(self, r: Tensor, left: Points, right: Points) -> Tensor:
        """k from distances in lengthscales, `batch_shape x n x n'`, which are overwritten, and the points."""
        same = None if self.effect is None else self.coincident(r == 0, left, right)
        K = self.decay_at_(r)
        return self.add_effect_(K if self.outputscale is None else K.mul_(self.outputscale[..., None, None]), same)


class StationaryColumns:
    """k(x, ·) at fixed arms by differences. A column does not depend on those that are evaluated together with it.

    Args:
        arms: `A x d`, copied in units of the lengthscale.
        kernel: An RBF or Matérn kernel, scaled or not, without active dimensions.
        place: The batch row of a kernel with a batch shape.
    """

    def __init__(self, arms: Points, kernel: gpytorch.kernels.Kernel, place: tuple[int, ...] = ()) -> None:
        form = Stationary.of(kernel)
        assert form is not None
        if place:
            form = form.row(kernel.batch_shape, place)
        self._form, self._scale = form, form.scale.to(arms.dtype)
        self._centre = _centre_if_coarse(arms)
        self._arms = self._scaled(arms)
        self._given = None if form.effect is None else arms

    @staticmethod
    def supports(arms: Points, kernel: gpytorch.kernels.Kernel) -> bool:
        """Whether the kernel is RBF or Matérn, and neither arms nor kernel have batch dimensions."""
        return not kernel.batch_shape and arms.dim() == 2 and Stationary.covers(kernel)

    def _scaled(self, points: Points) -> Points:
        return (points if self._centre is None else points - self._centre) * self._scale

    def __call__(self, points: Points) -> Tensor:
        """k(x, ·), `p x A`, for points `p x d`. Cost O(p A d)."""
        x, A = self._scaled(points), len(self._arms)
        # Pieces of arms whose kernel values stay in cache.
        step = max(256, _PIECE // max(1, len(x))) if x.device.type == "cpu" else A
        if step >= A:
            return self._at(x, points, slice(0, A))
        out = x.new_empty(len(x), A)
        for start in range(0, A, step):
            part = slice(start, min(start + step, A))
            out[:, part] = self._at(x, points, part)
        return out

    def _at(self, x: Points, points: Points, part: slice) -> Tensor:
        given = points if self._given is None else self._given[part]
        return self._form.at_distances(distances(x, self._arms[part]), points, given)


@dataclass(frozen=True)
class ScaledArms:
    """Arms on a device in units of a kernel's lengthscale, relative to a centre, so that blocks of kernel values take few
    operations and no waiting for the device.

    Attributes:
        form: The kernel.
        centre: Medians of the features, of at most 4,096 arms, `batch_shape x 1 x d`.
        storage: Of coordinates, 1 and the squared norm of every arm, `batch_shape x (d + 2) x A`. Features are first in memory,
            so that sums run along the arms.
    """

    form: Stationary
    centre: Tensor
    storage: Tensor

    @staticmethod
    def of(arms: Arms, form: Stationary) -> ScaledArms:
        """The arms in units of the kernel. Cost O(A d)."""
        scale, centre, (A, d) = form.scale.to(arms.dtype), _centre(arms), arms.shape[-2:]
        block = arms.new_empty(*broadcast_shapes(arms.shape[:-2], scale.shape[:-2]), d + 2, A)
        x = block[..., :d, :]
        torch.sub(arms.mT.expand(x.shape), centre.mT, out=x).mul_(scale.mT)
        return ScaledArms(form, centre, block)

    @property
    def points(self) -> Arms:
        """All arms in these units, `batch_shape x A x d`."""
        return self.storage[..., :-2, :].mT

    @cached_property
    def block(self) -> Tensor:
        """Coordinates, 1 and the squared norm of every arm, `batch_shape x (d + 2) x A`."""
        torch.linalg.vector_norm(self.storage[..., :-2, :], dim=-2, out=self.storage[..., -1, :]).square_()
        self.storage[..., -2, :] = 1
        return self.storage

    def scaled(self, points: Points) -> Points:
        """Points in these units."""
        return (points - self.centre) * self.form.scale.to(points.dtype)

    @cached_property
    def _reach(self) -> Any:
        """Largest squared norm of every `_TOGETHER` arms, on the host."""
        norms = self.block[..., -1, :]
        padded = torch.nn.functional.pad(norms, (0, -norms.shape[-1] % _TOGETHER))
        return padded.reshape(-1, padded.shape[-1] // _TOGETHER, _TOGETHER).amax(dim=(0, 2)).cpu().numpy()

    def reach(self, part: slice) -> float:
        """A bound of the squared norms of consecutive arms. The first call waits for the device."""
        return float(self._reach[part.start // _TOGETHER : -(-part.stop // _TOGETHER)].max())


class StationaryBlocks:
    """k(x_j, ·) of fixed points on successive chunks of arms: one small matrix product, and one exponential per entry.

    The points are prepared once, and each block is written in place. Squared distances are computed by a matrix product if the
    norms are so small that its rounding error is below that of the exponential, and otherwise by differences. Matérn 1/2 always
    uses differences, because its slope at 0 turns an error of 1e-15 in r² into an error of 3e-8.

    Args:
        points: `batch_shape x m x d`, in the units of the kernel's lengthscale.
        kernel: An RBF or Matérn kernel, scaled or not, without active dimensions; its batch shape broadcasts with the points'.
        arms: Arms on a device in units of this kernel, for `at`.
    """

    def __init__(self, points: Points, kernel: gpytorch.kernels.Kernel, arms: ScaledArms | None = None) -> None:
        form = Stationary.of(kernel)
        assert form is not None
        self._form, self._scale, self._arms = form, form.scale.to(points.dtype), arms
        self._outputscale = None if form.outputscale is None else form.outputscale[..., None, None].to(points.dtype)
        self._centre = _centre(points) if arms is None else arms.centre
        self._given, self._points = points, (points - self._centre) * self._scale
        norms = self._points.square().sum(dim=-1, keepdim=True)
        self._left = torch.cat([-2 * form.sign * self._points, form.sign * norms, torch.full_like(norms, form.sign)], dim=-1)
        # On a device, points that coincide are found among all pairs, and so are distances.
        apart = form.effect is None or (points.device.type == "cpu" and points.shape[-1] > FEW_FEATURES)
        self._trusted = apart and form.trusts(norms)

    def __call__(self, arms: Arms, out: Tensor) -> Tensor:
        """k(points, arms) for arms `n x d` or `batch_shape x n x d`, written to `out`, `batch_shape x m x n`. O(n m d)."""
        x = (arms - self._centre) * self._scale
        norms = x.square().sum(dim=-1, keepdim=True)
        if self._trusted and self._form.trusts(norms):
            return self._multiplied(torch.cat([x, torch.ones_like(norms), norms], dim=-1).mT, out, arms)
        r = distances(self._points, x, out)
        return self._decayed(r, self._form.decay_at_, self._same(r, self._given, arms))

    def at(self, part: slice, out: Tensor) -> Tensor:
        """`__call__` for consecutive arms of those given at the start, without waiting for the device."""
        assert self._arms is not None
        block = self._arms.block[..., part]
        if self._trusted and self._arms.reach(part) <= _TRUSTED[out.dtype]:
            return self._multiplied(block, out, None)
        x = block[..., :-2, :].mT
        r = distances(self._points, x, out)
        return self._decayed(r, self._form.decay_at_, self._same(r, self._points, x))

    def _same(self, r: Tensor, left: Points, right: Points) -> Tensor | tuple[Tensor, ...] | None:
        return None if self._form.effect is None else self._form.coincident(r == 0, left, right)

    def _multiplied(self, right: Tensor, out: Tensor, arms: Arms | None) -> Tensor:
        """k from `batch_shape x (d + 2) x n`: coordinates, 1 and squared norms of arms."""
        left = self._left
        right = right.expand(*left.shape[:-2], *right.shape[-2:]) if right.dim() < left.dim() else right
        matmul_into(left, right, out)
        same = None
        if self._form.effect is not None and arms is not None:
            least = _NEAR_SQUARED[out.dtype]
            same = self._form.coincident(out <= least if self._form.sign > 0 else out >= -least, self._given, arms)
        return self._decayed(out, self._form.decay_, same)

    def _decayed(self, out: Tensor, decay_: Callable[[Tensor], Tensor], same: Tensor | tuple[Tensor, ...] | None) -> Tensor:
        if out.device.type == "cpu":
            line = out.shape[:-2].numel() * out.shape[-1] * out.element_size()
            for block in out.split(max(1, _GROUP_BYTES // max(1, line)), dim=-2):
                decay_(block)
        else:
            decay_(out)
        return self._form.add_effect_(out if self._outputscale is None else out.mul_(self._outputscale), same)


def _centre(points: Points) -> Tensor:
    """Medians of the features of at most 4,096 points, `batch_shape x 1 x d`, 0 if there are none: one point far away does not
    move them."""
    if not points.shape[-2]:
        return points.new_zeros(*points.shape[:-2], 1, points.shape[-1])
    some = points[..., :: -(-points.shape[-2] // _SAMPLE), :].sort(dim=-2).values
    middle = some.shape[-2] // 2
    return some[..., middle : middle + 1, :]


def _centre_if_coarse(points: Points) -> Tensor | None:
    """The centre of points in float32, whose product with a scale would round to 1e-7 of their distance from 0; None for other
    points."""
    return _centre(points) if points.dtype == torch.float32 else None


def kernel_among(kernel: gpytorch.kernels.Kernel, points: Points) -> Square:
    """k between all pairs of points, `batch_shape x n x n` in float64, by the fastest path available. Cost O(n² d)."""
    x, form = points.double(), Stationary.of(kernel)
    return evaluate_kernel(kernel, x, x).double() if form is None else form.between(x, x)


def distances(left: Points, right: Points, out: Tensor | None = None) -> Tensor:
    """|x − y| from differences, `batch_shape x n x n'`, written to `out` if it is given. Cost O(n n' d).

    On a device the differences are written to memory, in pieces, because `torch.cdist` takes tens of times as long there.
    """
    if left.device.type == "cpu":
        r = torch.cdist(left, right, compute_mode="donot_use_mm_for_euclid_dist")
        return r if out is None else out.copy_(r)
    shape, n, other = broadcast_shapes(left.shape[:-2], right.shape[:-2]), left.shape[-2], right.shape[-2]
    x, y = left.unsqueeze(-1), right.mT.unsqueeze(-3)
    pairs = _DIFFERENCES // max(1, shape.numel() * left.shape[-1] * left.element_size())
    if out is None and n * other <= pairs:
        return torch.linalg.vector_norm(x - y, dim=-2)
    out = left.new_empty(*shape, n, other) if out is None else out
    columns = max(1, min(other, pairs // max(1, n)))
    rows = max(1, pairs // columns)
    for i in range(0, n, rows):
        for j in range(0, other, columns):
            own, part = x[..., i : i + rows, :, :], slice(j, j + columns)
            torch.linalg.vector_norm(own - y[..., part], dim=-2, out=out[..., i : i + rows, part])
    return out


def _by_numpy(values: Tensor) -> bool:
    """Whether NumPy's exponential and square root, which use AVX-512, are faster than PyTorch's."""
    return values.device.type == "cpu" and _WIDE and torch.get_num_threads() <= _FEW_THREADS


def _exp_(values: Tensor) -> Tensor:
    if _by_numpy(values):
        np.exp(values.numpy(), out=values.numpy())
        return values
    return values.exp_()


def _sqrt_(values: Tensor) -> Tensor:
    if _by_numpy(values):
        np.sqrt(values.numpy(), out=values.numpy())
        return values
    return values.sqrt_()


# ---------------------------------------------------------------------------------- kernels of single batch rows
#
# GPyTorch's own `expand_batch` and indexing do not change the parts of sums and products, and they expand `active_dims` too.


def expand_kernel(kernel: gpytorch.kernels.Kernel, batch_shape: torch.Size) -> gpytorch.kernels.Kernel:
    """A copy in which every parameter has the leading dimensions `batch_shape`. The kernel's batch shape must broadcast with
    it."""
    expanded = copy.deepcopy(kernel)
    for part, parameter in _own_parameters(expanded):
        rest = parameter.shape[len(own_batch_shape(part)) :]
        parameter.data = parameter.data.expand(torch.Size([*batch_shape, *rest])).contiguous()
    return _with_batch_shape(expanded, batch_shape)


def kernel_row(kernel: gpytorch.kernels.Kernel, batch_shape: torch.Size, place: tuple[int, ...]) -> gpytorch.kernels.Kernel:
    """A copy of the kernel of one batch row, without batch shape."""
    row = expand_kernel(kernel, batch_shape)
    for _, parameter in _own_parameters(row):
        parameter.data = parameter.data[place].clone()
    return _with_batch_shape(row, torch.Size([]))


def stack_kernels(rows: Sequence[gpytorch.kernels.Kernel], batch_shape: torch.Size) -> gpytorch.kernels.Kernel:
    """The kernel whose batch rows are the given kernels, in row-major order: the inverse of `kernel_row`."""
    if not batch_shape:
        return rows[0]
    stacked = expand_kernel(rows[0], batch_shape)
    own = [dict(row.named_parameters()) for row in rows]
    for name, parameter in stacked.named_parameters():
        parameter.data = torch.stack([parameters[name].data for parameters in own]).reshape(parameter.shape)
    return stacked


def shaped_like(kernel: gpytorch.kernels.Kernel, saved: dict[str, Tensor], prefix: str) -> gpytorch.kernels.Kernel:
    """A copy whose parameters have the shapes of the parameters saved under the prefix, so that these can be loaded. It has
    random effects if these are saved."""
    shaped = smooth_part(copy.deepcopy(kernel))
    if prefix + "effect" in saved and type(shaped) is gpytorch.kernels.ScaleKernel:
        shaped = with_effect(shaped, torch.zeros_like(shaped.raw_outputscale))
    for name, part in shaped.named_modules():
        if not isinstance(part, gpytorch.kernels.Kernel):
            continue
        # Its shape before the loop, in which the first parameter of several may change it.
        dim = len(own_batch_shape(part))
        for own, parameter in part.named_parameters(recurse=False):
            value = saved.get(prefix + f"{name}.{own}".lstrip("."))
            if value is None or value.shape == parameter.shape:
                continue
            rest = parameter.shape[dim:]
            # A parameter of any other shape belongs to another kernel, and loading it raises the error.
            if value.shape[value.dim() - len(rest) :] == rest:
                parameter.data = parameter.data.new_zeros(value.shape)
                part.batch_shape = value.shape[: value.dim() - len(rest)]
    return shaped


def _scaled(kernel: gpytorch.kernels.Kernel) -> bool:
    return type(kernel) in (gpytorch.kernels.ScaleKernel, RandomEffectKernel)


def _own_parameters(kernel: gpytorch.kernels.Kernel) -> Iterable[tuple[gpytorch.kernels.Kernel, nn.Parameter | Tensor]]:
    """Every parameter once, with the part of the kernel that contains it."""
    parts = [module for module in kernel.modules() if isinstance(module, gpytorch.kernels.Kernel)]
    return [(part, parameter) for part in parts for parameter in part.parameters(recurse=False)]


def _with_batch_shape(kernel: gpytorch.kernels.Kernel, batch_shape: torch.Size) -> gpytorch.kernels.Kernel:
    for part in kernel.modules():
        if isinstance(part, gpytorch.kernels.Kernel):
            part.batch_shape = batch_shape
    return kernel
