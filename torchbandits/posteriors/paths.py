"""Posterior draws as functions: Matheron's rule, and sample paths that can be evaluated and differentiated anywhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from torchbandits import streams
from torchbandits.embeddings import FiniteEmbedding, Nystrom, Spectrum, draw_frequencies
from torchbandits.errors import UnsupportedError, require
from torchbandits.posteriors.gaussian_process import GaussianProcess
from torchbandits.posteriors.statistics import Statistics
from torchbandits.transfers import to_device
from torchbandits.types import Generators, Points, Rect


def standard_normals(
    process: GaussianProcess, sizes: Sequence[int], length: int, generators: Generators, used: Tensor | None = None
) -> Tensor:
    """Standard normals, `batch_shape x length x max(sizes)`: row r draws `sizes[r] x used[r]`, zeros elsewhere."""
    lengths = [length] * len(sizes) if used is None else used.reshape(-1).tolist()
    device = process.pending.device
    # All rows in one piece, on the CPU unless the device draws.
    here = device if streams.PHILOX and device.type == "cuda" else torch.device("cpu")
    out = torch.zeros(len(sizes), max(sizes), length, dtype=torch.float64, device=here)
    for row, (size, own, generator) in enumerate(zip(sizes, lengths, generators, strict=True)):
        out[row, :size, :own] = streams.normals(size, own, generator, here)
    return to_device(device, out.mT.reshape(*process.batch_shape, length, max(sizes)))[0]


def explained(process: GaussianProcess, theta: Rect, sizes: Sequence[int], generators: Generators) -> Tensor:
    """V⁻¹Z s for noisy rewards s of functions with coordinates θ (`batch_shape x m x q`); of the same shape as θ. Matheron's
    rule subtracts the function with these coordinates from the prior draw."""
    fit, n = process.fit(), process.embedded_statistics.weights.unsqueeze(-1).clamp_min(0)
    noise = standard_normals(process, sizes, process.statistics.size, generators, process.statistics.num_rows)
    # The sum of n rewards of noise variance λ has mean n f₀ and variance n λ.
    rewards = n * (fit.features.mT @ theta) + (process.regularization * n).sqrt() * noise
    return fit.regression.solved(fit.features.mT, rewards)


def explained_weights(process: GaussianProcess, at_points: Rect, sizes: Sequence[int], generators: Generators) -> Tensor:
    """`explained` for prior draws with values `batch_shape x u x q` at the distinct points, as weights of the dictionary's
    kernel columns, `batch_shape x m x q`."""
    fit = process.fit()
    f0_S = at_points.gather(-2, fit.rows.unsqueeze(-1).expand(*fit.rows.shape, at_points.shape[-1]))
    theta = fit.nystrom.root.embed(fit.unpadded(f0_S))
    return fit.unpadded(fit.nystrom.root.lift(explained(process, theta, sizes, generators)))


@dataclass(frozen=True)
class FourierPrior:
    """Draws of a stationary prior as sums of cosines and sines: f₀(x) = Σ_i a_i cos ω_iᵀx + b_i sin ω_iᵀx.

    Attributes:
        frequencies: `batch_shape x F x d`, ω, radians per unit of the features.
        amplitudes: `batch_shape x 2F x q`, all a and then all b of each draw, reward units.
    """

    frequencies: Tensor
    amplitudes: Tensor

    @staticmethod
    def draw(process: GaussianProcess, sizes: Sequence[int], num_features: int, generators: Generators) -> FourierPrior:
        """`sizes[r]` draws for batch row r with `num_features` / 2 new frequencies; rows of 0 use no random numbers.

        Raises:
            UnsupportedError: If the kernel has no known spectrum.
        """
        spectrum = Spectrum.of(process.embedded_kernel)
        if spectrum is None:
            raise UnsupportedError(_no_paths(process))
        shape, half, device = process.batch_shape, num_features // 2, process.pending.device
        d = process.statistics.points.shape[-1]
        drawing = [g if size else torch.Generator() for size, g in zip(sizes, generators, strict=True)]
        omega = to_device(device, draw_frequencies(spectrum, half, d, drawing))[0].reshape(*shape, half, d)
        omega = omega / spectrum.lengthscale.to(device).unsqueeze(-2)
        scale = (spectrum.outputscale.to(device) / half).sqrt()
        return FourierPrior(omega, standard_normals(process, sizes, 2 * half, generators) * scale[..., None, None])

    def __call__(self, points: Points) -> Tensor:
        """Values, `batch_shape x q x n`. Cost O(n F (d + q))."""
        phase, half = self.frequencies @ points.mT, self.frequencies.shape[-2]
        return self.amplitudes[..., :half, :].mT @ phase.cos() + self.amplitudes[..., half:, :].mT @ phase.sin()


@dataclass(frozen=True)
class SamplePaths:
    r"""Draws of a posterior as functions of any points. Each draw is one fixed function.

    .. math:: \tilde f = \mu + w (f_0 - \mu_0), \quad \mu_0 \text{ the posterior mean of noisy rewards of } f_0

    Matheron's rule with a prior draw :math:`f_0`. For finite features it is :math:`\theta^T z(x)`, exact. Otherwise it consists
    of random Fourier features of an RBF or Matérn kernel with new frequencies for each call of `draw`: mean and covariance are
    exact in expectation over frequencies, and single paths are Gaussian up to 1/√num_features. For a sparse posterior the
    rewards observe the part of f₀ that the dictionary explains, so that paths have the posterior's mean and covariance. This
    is the posterior at the time of the draw, whatever is observed later; pending pulls are ignored.

    Source: Wilson et al. 2020.

    Attributes:
        embedding: Features of the dictionary, or finite features; None before the first pull.
        weights: `batch_shape x m x q`, of the dictionary's kernel columns or of the features; mean and deviation together.
        offset: `batch_shape`, the prior mean, reward units.
        prior: w f₀ if it consists of Fourier features.
    """

    embedding: Nystrom | FiniteEmbedding | None
    weights: Rect | None
    offset: Tensor
    prior: FourierPrior | None
    statistics: Statistics

    @staticmethod
    @torch.no_grad()
    def draw(
        process: GaussianProcess,
        num_paths: int,
        generators: Generators,
        *,
        num_features: int = 512,
        width: Tensor | None = None,
    ) -> SamplePaths:
        """Draw `num_paths` sample paths.

        Args:
            process: An exact or sparse posterior, or one with finite features.
            num_paths: Number of paths of each batch row.
            generators: One CPU generator per batch row, in row-major order; the draws of a row do not depend on other rows.
            num_features: Number of random Fourier features, even.
            width: `batch_shape`, w, scales the deviation from the mean; 1 by default, draws of the posterior itself.

        Raises:
            UnsupportedError: For a kernel without known spectrum (unless it has finite features), and under a sketch.

        Cost: O(u m² + m³) for the factors if they are not yet computed, and O(num_paths (u (m + num_features) + m²)).
        """
        require(
            process.sketch is None, "there are no posterior draws under a sketch: use a score such as UCB.", UnsupportedError
        )
        # A path of random effects is not continuous anywhere.
        require(process.effects is None, _no_paths(process), UnsupportedError)
        require(num_paths >= 1, f"num_paths must be at least 1, got {num_paths}.")
        require(num_features >= 2 and num_features % 2 == 0, f"num_features must be an even number ≥ 2, got {num_features}.")
        statistics, sizes = process.statistics, [num_paths] * process.batch_shape.numel()
        offset = process.estimated_prior_mean
        w = (torch.ones_like(offset) if width is None else width.to(offset).expand(offset.shape))[..., None, None]
        if (finite := process.finite) is not None:
            theta = finite.spread(standard_normals(process, sizes, finite.num_features, generators, finite.num_used))
            if not statistics.size:
                return SamplePaths(finite, w * theta, offset, None, statistics)
            mean = _of_the_mean(process, process.fit().regression.coefficients)
            left = theta - explained(process, theta, sizes, generators)
            return SamplePaths(finite, mean + w * left, offset, None, statistics)
        prior = FourierPrior.draw(process, sizes, num_features, generators)
        waves = FourierPrior(prior.frequencies, w * prior.amplitudes)
        if not statistics.size:
            return SamplePaths(None, None, offset, waves, statistics)
        fit = process.fit()
        mean = fit.unpadded(_of_the_mean(process, fit.nystrom.root.lift(fit.regression.coefficients)))
        weights = mean - w * explained_weights(process, prior(statistics.points).mT, sizes, generators)
        return SamplePaths(fit.nystrom, weights, offset, waves, statistics)

    def __call__(self, points: Points) -> Tensor:
        """Values at points `batch_shape x n x d`: `batch_shape x num_paths x n`, reward units, float64, differentiable.

        Cost: O(n (m + num_features) (d + num_paths)) per batch row.
        """
        x = self.statistics.checked(points)
        value = self.offset[..., None, None]
        if self.prior is not None:
            value = value + self.prior(x)
        if self.embedding is None or self.weights is None:
            return value
        columns = self.embedding.columns(x) if isinstance(self.embedding, Nystrom) else self.embedding(x)
        return value + self.weights.mT @ columns


def _no_paths(process: GaussianProcess) -> str:
    return (
        "sample paths are known for RBF and Matérn kernels on all features (scaled or not) and for finite features "
        f"(embedding='qff' or 'rff'), not for {type(process.kernel).__name__}: over given arms, a Bandit with "
        "thompson_sampling takes any kernel."
    )


def _of_the_mean(process: GaussianProcess, weights: Rect) -> Tensor:
    """Weights `batch_shape x m x 1` of the posterior mean minus the prior mean, from those of the regression's outputs."""
    if process.num_channels == 1:
        return weights
    return weights[..., :1] - process.estimated_prior_mean[..., None, None] * weights[..., 1:]
