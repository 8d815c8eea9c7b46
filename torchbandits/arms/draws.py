"""Posterior draws on every arm for Thompson sampling, without an A x A factor beyond a few thousand arms."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from torchbandits.arms.table import ArmTable
from torchbandits.embeddings import Spectrum
from torchbandits.errors import UnsupportedError, require
from torchbandits.kernels import kernel_matrix
from torchbandits.linalg import covariance_root
from torchbandits.posteriors.effects import Effects
from torchbandits.posteriors.paths import FourierPrior, explained, explained_weights, standard_normals
from torchbandits.streams import copies_of
from torchbandits.types import Generators

# Up to this number of arms the prior is drawn jointly.
_JOINT_ARMS = 2000
# Number of entries of a block of random features.
_CHUNK = 1 << 21
# The same on a device, where operations should be few and large.
_DEVICE_CHUNK = 1 << 25
# Number of values of draws held in memory at once.
_DRAWN = 1 << 25

Drawn = Callable[[slice], Tensor]
"""f₀ − μ₀ of a slice of the draws on all arms, `batch_shape x q' x A`. Slices must be requested in order."""


class PosteriorDraws:
    r"""Draws f̃ = μ + w (f₀ − μ₀) by Matheron's rule: a prior draw f₀, minus the posterior mean μ₀ given noisy rewards of f₀.

    For a sparse posterior the simulated rewards observe the part of f₀ that the dictionary explains, as the real data do, so
    mean and covariance are those of the posterior. The prior draw f₀ depends on the posterior:

    - finite features: θᵀz(x), exact;
    - up to 2,000 arms: the joint Gaussian, exact, from a single A x A factor;
    - RBF and Matérn kernels: random Fourier features with new frequencies for each draw. Mean and covariance are exact in
      expectation over frequencies, and single draws are Gaussian up to 1/√num_features;
    - any other kernel, and an exact posterior with random effects: the part that the dictionary explains is exact, and the
      residual is drawn independently per arm. Marginals are exact; the covariance of the residual between arms is neglected.

    Beside a dictionary, random effects are drawn given the smooth part, exactly.

    Args:
        table: The posterior on the arms.
        num_features: Number of random Fourier features.

    Source: Wilson et al. 2020, for Matheron's rule and its Fourier form.
    """

    def __init__(self, table: ArmTable, num_features: int) -> None:
        self._table, self._num_features = table, num_features
        # The kernel, the pulled points that are not arms, and a root of the prior covariance of the arms and these points;
        # recomputed when a fit replaces the kernel.
        self._root: tuple[object, Tensor, Tensor] | None = None
        self._residual: tuple[object, Tensor] | None = None
        posterior = table.posterior
        require(
            posterior.sketch is None, "there are no posterior draws under a sketch: use a score such as UCB.", UnsupportedError
        )

    @property
    def kind(self) -> str:
        """The method of prior draws: `"features"`, `"joint"`, `"fourier"` or `"independent"`. A fit may give the kernel random
        effects, or take them."""
        if self._table.posterior.finite is not None:
            return "features"
        if self._table.rows.num_arms <= _JOINT_ARMS:
            return "joint"
        return "independent" if Spectrum.of(self._table.posterior.embedded_kernel) is None else "fourier"

    def draw(self, sizes: Sequence[int], width: Tensor, generators: Generators) -> Iterator[Tensor]:
        """`sizes[r]` draws for batch row r from its generator, in reward units, yielded in pieces `batch_shape x q' x A` of
        max(sizes) draws in total (rows with fewer draws are padded). The values do not depend on the size of the pieces. Cost
        O(A m) per draw, plus O(A F) for random features or O(A²) for joint draws.

        Args:
            sizes: Number of draws of each batch row, in row-major order.
            width: `batch_shape`, scales the deviation from the mean.
            generators: One CPU generator per batch row.
        """
        table, posterior = self._table, self._table.posterior
        prior = {"features": self._features, "joint": self._joint, "fourier": self._fourier, "independent": self._independent}
        drawn = prior[self.kind](sizes, generators)
        mean, shape = table.mean().unsqueeze(-2), posterior.batch_shape
        if (effects := posterior.effects) is not None:
            drawn = self._with_effects(effects, drawn, sizes, generators)
        for part in self._parts(max(sizes)):
            deviation = drawn(part).reshape(*shape, part.stop - part.start, table.rows.num_arms)
            yield mean + width[..., None, None] * deviation

    def forget(self) -> None:
        """Drop the factors that are kept between draws, because the posterior has moved to another device."""
        self._root = self._residual = None

    def _parts(self, size: int) -> Iterator[slice]:
        """Slices of the draws in multiples of 16, because torch generates normal numbers in groups of sixteen."""
        step = 16 * max(1, _DRAWN // (16 * self._table.rows.num_arms * max(1, self._table.posterior.batch_shape.numel())))
        for start in range(0, size, step):
            yield slice(start, min(start + step, size))

    # ------------------------------------------------------------------ prior draws

    def _features(self, sizes: Sequence[int], generators: Generators) -> Drawn:
        posterior = self._table.posterior
        arms, embedding = self._table.features_of_arms, posterior.finite
        assert arms is not None
        assert embedding is not None
        theta = embedding.spread(standard_normals(posterior, sizes, arms.num_features, generators, embedding.num_used))
        left = theta - explained(posterior, theta, sizes, generators) if posterior.statistics.size else theta
        return lambda part: arms.times(left[..., part].mT)

    def _joint(self, sizes: Sequence[int], generators: Generators) -> Drawn:
        rows, posterior = self._table.rows, self._table.posterior
        statistics = posterior.statistics
        A, arm = rows.num_arms, rows.arm_of_row
        strangers, used, place, extra = statistics.points[..., :0, :], None, arm.clamp_min(0), 0
        if rows.outside:
            # Pulled points that are not arms are drawn jointly with the arms, as further points after them.
            outside = (arm < 0) & statistics.mask
            extra = int(outside.sum(dim=-1).max()) if outside.numel() else 0
            order = (~outside).byte().argsort(dim=-1, stable=True)[..., :extra]
            strangers = statistics.at(order)
            used = A + outside.sum(dim=-1) if extra else None
            place = torch.where(outside, A - 1 + outside.long().cumsum(dim=-1), place)
        kernel, known = posterior.embedded_kernel, self._root
        same = known is not None and known[0] is kernel and known[1].shape == strangers.shape
        if known is None or not same or (extra and not torch.equal(known[1], strangers)):
            points = rows.source.chunk(slice(0, A)).double()
            if extra:
                points = torch.cat([points.expand(*order.shape[:-1], *points.shape[-2:]), strangers], dim=-2)
            covariance = kernel_matrix(kernel, points, points)
            if used is not None and bool((used < A + extra).any()):
                # Batch rows with fewer such points are padded with independent values, which leave the root of the others as it
                # is; a point twice would make the covariance singular.
                real = torch.arange(A + extra, device=used.device) < used.unsqueeze(-1)
                largest = covariance.diagonal(dim1=-2, dim2=-1).masked_fill(~real, 0.0).amax(dim=-1, keepdim=True)
                apart = torch.diag_embed(largest.expand(real.shape))
                covariance = torch.where(real.unsqueeze(-1) & real.unsqueeze(-2), covariance, apart)
            self._root = known = (kernel, strangers, covariance_root(covariance))
        f0 = known[2] @ standard_normals(posterior, sizes, A + extra, generators, used)
        at_points = f0.gather(-2, place.unsqueeze(-1).expand(*place.shape, f0.shape[-1]))
        return self._less_mean(lambda part: f0[..., :A, part].mT, at_points, sizes, generators)

    def _fourier(self, sizes: Sequence[int], generators: Generators) -> Drawn:
        rows, posterior = self._table.rows, self._table.posterior
        prior = FourierPrior.draw(posterior, sizes, self._num_features, generators)
        numbers = _CHUNK if rows.source.device.type == "cpu" else _DEVICE_CHUNK
        step = max(256, numbers // (self._num_features // 2 * max(1, posterior.batch_shape.numel())))

        def on_arms(part: slice) -> Tensor:
            some = replace(prior, amplitudes=prior.amplitudes[..., part])
            values = [some(arms.double()) for _, arms in rows.source.chunks(step)]
            return values[0] if len(values) == 1 else torch.cat(values, dim=-1)

        return self._less_mean(on_arms, prior(posterior.statistics.points).mT, sizes, generators)

    def _independent(self, sizes: Sequence[int], generators: Generators) -> Drawn:
        table, posterior, noise = self._table, self._table.posterior, self._noise(sizes, generators)
        if not posterior.statistics.size:
            return lambda part: noise(part) * table.prior_diagonal.sqrt().unsqueeze(-2)
        table.columns.fill(posterior.dictionary_rows()[0])
        fit = posterior.fit(table.columns.gram())
        root = fit.nystrom.root
        if self._residual is None or self._residual[0] is not fit.nystrom:
            eye = torch.eye(fit.mask.shape[-1], dtype=torch.float64, device=fit.mask.device)
            weights = torch.where(fit.mask.unsqueeze(-1), root.lift(eye.expand(*fit.mask.shape, -1)), 0.0).mT
            squares = [out.square().sum(dim=-2) for _, out in table.columns.products(weights, fit.rows)]
            residual = (table.columns.diagonal - torch.cat(squares, dim=-1)).clamp_min(0).sqrt()
            self._residual = (fit.nystrom, residual)
        theta = self._own_coordinates(sizes, generators)
        left = root.lift(theta - explained(posterior, theta, sizes, generators))
        residual = self._residual[1].unsqueeze(-2)
        return lambda part: self._on_arms(left[..., part]) + noise(part) * residual

    def _noise(self, sizes: Sequence[int], generators: Generators) -> Drawn:
        """Standard normals of each draw and arm. They are generated when they are read, and the generators are advanced past
        them here, since all other draws come after them."""
        table, posterior = self._table, self._table.posterior
        twins = copies_of(generators)

        def noise(part: slice, generators: Generators) -> Tensor:
            own = [max(0, min(part.stop, size) - part.start) for size in sizes]
            width = part.stop - part.start
            drawn = standard_normals(posterior, own, table.rows.num_arms, generators).mT
            return torch.nn.functional.pad(drawn, (0, 0, 0, width - drawn.shape[-2]))

        for part in self._parts(max(sizes)):
            noise(part, generators)
        return lambda part: noise(part, twins)

    def _with_effects(self, effects: Effects, smooth: Drawn, sizes: Sequence[int], generators: Generators) -> Drawn:
        """Deviations from the mean, given those of the smooth part. Duplicates of an arm have draws of their own."""
        share = effects.share_at(self._table.rows.row_of_each()).unsqueeze(-2)
        noise, deviation = self._noise(sizes, generators), (effects.variance[..., None, None] * share).sqrt()
        return lambda part: share * smooth(part) + deviation * noise(part)

    # ------------------------------------------------------------------ Matheron's rule

    def _less_mean(self, f0: Drawn, at_points: Tensor, sizes: Sequence[int], generators: Generators) -> Drawn:
        """f₀ on the arms minus the posterior mean of its noisy rewards; `at_points` are the values of f₀ at the distinct
        points, `batch_shape x u x q`."""
        table, posterior = self._table, self._table.posterior
        if not posterior.statistics.size:
            return f0
        table.columns.fill(posterior.dictionary_rows()[0])
        if not posterior.factorised:
            posterior.fit(table.columns.gram())
        weights = explained_weights(posterior, at_points, sizes, generators)
        return lambda part: f0(part) - self._on_arms(weights[..., part])

    def _own_coordinates(self, sizes: Sequence[int], generators: Generators) -> Tensor:
        """Rᵀf₀(S) for a prior draw f₀, `batch_shape x m x q`."""
        posterior = self._table.posterior
        fit = posterior.fit()
        theta = standard_normals(posterior, sizes, fit.mask.shape[-1], generators, fit.mask.sum(dim=-1))
        # Points that were skipped as copies of others may leave gaps among the coordinates.
        place = (fit.mask.long().cumsum(dim=-1) - 1).clamp_min(0).unsqueeze(-1).expand(theta.shape)
        theta = torch.where(fit.mask.unsqueeze(-1), theta.gather(-2, place), 0.0)
        pseudo = fit.nystrom.root.pseudo
        if pseudo is None:
            return theta
        # For R = U Λ^{−1/2}, Rᵀf₀(S) = Uᵀθ is standard normal in the coordinates that R keeps, and 0 in the others. Their order
        # is that of the eigenvalues, so that the mask of the places does not apply to them.
        rotated = torch.nn.functional.normalize(pseudo, dim=-2).mT @ theta
        return torch.where(fit.nystrom.root.fallback[..., None, None], rotated, theta)

    def _on_arms(self, lifted: Tensor) -> Tensor:
        """Functions on the arms, `... x q x A`, from weights of the dictionary's kernel columns (`batch_shape x m x q`)."""
        table, fit = self._table, self._table.posterior.fit()
        weights, A = fit.unpadded(lifted).mT.to(table.rows.source.dtype), table.rows.num_arms
        values = weights.new_empty(*weights.shape[:-1], A)
        for part, out in table.columns.products(weights, fit.rows):
            if part == slice(0, A):
                return out
            values[..., part] = out
        return values
