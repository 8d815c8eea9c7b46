"""Finite Fourier features of stationary kernels: k(x − x') as an average of cosines over spectral nodes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import gpytorch
import numpy as np
import torch
from torch import Tensor

from torchbandits.checks import check_even, is_finite, is_whole
from torchbandits.embeddings.base import FeatureMap, FiniteEmbedding
from torchbandits.embeddings.minhash import MinHash
from torchbandits.errors import ArgumentError, UnsupportedError, require
from torchbandits.kernels import Stationary
from torchbandits.shapes import broadcast_shapes
from torchbandits.tanimoto import tanimoto_scale
from torchbandits.types import Arms, Points

# Most Gauss–Hermite nodes per feature.
_MOST_NODES = 256


class Fourier(FiniteEmbedding):
    r"""Features z(x) = (√w_i cos ω_iᵀx, √w_i sin ω_iᵀx). The kernel is zᵀz, without a residual.

    Args:
        frequencies: `batch_shape x F x d`, ω, radians per unit of the features.
        weights: `batch_shape x F`, w, in units of the kernel; they sum to k(x, x).
        num_nodes: `batch_shape`, number of the F nodes that each batch row uses (the others have weight 0); None if every row
            uses all of them.
        box: `... x 2 x d`, corners of the box in which the features represent the kernel; None if they do so everywhere.
    """

    frequencies: Tensor
    amplitudes: Tensor
    num_nodes: Tensor | None
    box: Tensor | None

    def __init__(
        self, frequencies: Tensor, weights: Tensor, num_nodes: Tensor | None = None, box: Tensor | None = None
    ) -> None:
        super().__init__()
        self.register_buffer("box", box, persistent=False)
        self.register_buffer("num_nodes", num_nodes, persistent=False)
        # Contiguous, because loading a state writes into the buffer in place.
        self.register_buffer("frequencies", frequencies.double().contiguous())
        self.register_buffer("amplitudes", weights.double().sqrt())

    @property
    def num_features(self) -> int:
        """Number of features m, two per spectral node."""
        return 2 * self.amplitudes.shape[-1]

    @property
    def num_used(self) -> Tensor | None:
        """Number of features that each batch row uses, `batch_shape`; None if every row uses all of them."""
        return None if self.num_nodes is None else 2 * self.num_nodes

    def __call__(self, points: Points) -> Tensor:
        """Features, `batch_shape x m x n`. Cost O(n m d)."""
        phase = self.frequencies @ points.double().mT
        return torch.cat([phase.cos(), phase.sin()], dim=-2) * torch.cat([self.amplitudes] * 2, dim=-1).unsqueeze(-1)

    def holds_at(self, points: Points) -> bool:
        """Whether the features represent the kernel at all of these points."""
        if self.box is None:
            return True
        low, high = self.box[..., :1, :], self.box[..., 1:, :]
        return bool(((points >= low) & (points <= high)).all())

    def spread(self, own: Tensor) -> Tensor:
        """Move coordinates of the features that each row uses, `batch_shape x m x q` (its cosines, then its sines, padded at
        the end), to the places of these features."""
        if self.num_nodes is None:
            return own
        node, used = torch.arange(self.amplitudes.shape[-1], device=own.device), self.num_nodes.unsqueeze(-1)
        place = torch.where(node < used, torch.stack([node.expand_as(self.amplitudes), used + node]), -1)
        place = torch.cat(place.unbind(), dim=-1).unsqueeze(-1).expand(own.shape)
        return torch.where(place >= 0, own.gather(-2, place.clamp_min(0)), 0.0)

    def diagonal(self, points: Points) -> Tensor:
        """k(x, x), `batch_shape x n`: the sum of the weights."""
        total = self.amplitudes.square().sum(dim=-1, keepdim=True)
        return total.expand(*broadcast_shapes(total.shape[:-1], points.shape[:-2]), points.shape[-2])


@dataclass(frozen=True)
class Spectrum:
    """Spectrum of a stationary kernel, given by its order, lengthscales and output scale.

    Attributes:
        nu: Order of a Matérn kernel; None for RBF.
        lengthscale: `... x d` or `... x 1`.
        outputscale: `...`, k(x, x).
    """

    nu: float | None
    lengthscale: Tensor
    outputscale: Tensor

    @staticmethod
    def of(kernel: gpytorch.kernels.Kernel) -> Spectrum | None:
        """The spectrum of an RBF or Matérn kernel, scaled or not, on all features; None for any other kernel, and with random
        effects."""
        form = Stationary.of(kernel)
        if form is None or form.effect is not None:
            return None
        lengthscale = form.lengthscale.double().squeeze(-2)
        outputscale = torch.ones_like(lengthscale[..., 0]) if form.outputscale is None else form.outputscale.double()
        return Spectrum(form.nu, lengthscale, outputscale)

    def frequencies(self, normals: Tensor, chi_square: Tensor | None) -> Tensor:
        """Spectral draws `... x F x d` from standard normals of the same shape and, for Matérn kernels, from χ² draws
        `... x F` with 2ν degrees of freedom."""
        omega = normals / self.lengthscale.to(normals.device).unsqueeze(-2)
        if self.nu is None or chi_square is None:
            return omega
        return omega * (2 * self.nu / chi_square).sqrt().unsqueeze(-1)

    def draw(self, size: int, dim: int, generator: torch.Generator) -> tuple[Tensor, Tensor | None]:
        """Draw the normals and χ² numbers that `frequencies` needs for one batch row, on the CPU in a fixed order, float64."""
        normals = torch.randn(size, dim, generator=generator, dtype=torch.float64)
        if self.nu is None:
            return normals, None
        squares = torch.randn(size, round(2 * self.nu), generator=generator, dtype=torch.float64).square()
        return normals, squares.sum(dim=-1)


def draw_frequencies(spectrum: Spectrum, size: int, dim: int, generators: Sequence[torch.Generator]) -> Tensor:
    """Spectral draws of every batch row for unit lengthscales, `rows x size x d`, float64, on the CPU."""
    draws = [spectrum.draw(size, dim, g) for g in generators]
    normals = torch.stack([normal for normal, _ in draws])
    if spectrum.nu is None:
        return normals
    chi = torch.stack([c for _, c in draws if c is not None])
    return normals * (2 * spectrum.nu / chi).sqrt().unsqueeze(-1)


def _spectrum(kernel: gpytorch.kernels.Kernel, name: str, gaussian: bool) -> Spectrum:
    spectrum = Spectrum.of(kernel)
    if spectrum is None or (gaussian and spectrum.nu is not None):
        own = kernel.base_kernel if isinstance(kernel, gpytorch.kernels.ScaleKernel) else kernel
        known = "RBF kernels" if gaussian else "RBF, Matérn and Tanimoto kernels"
        raise UnsupportedError(
            f"{name} features exist for {known} on all features (scaled or not), not for {type(own).__name__}: use "
            f"{'embedding=' + repr('rff') + ' (RBF, Matérn) or ' if gaussian else ''}embedding='nystrom' (any kernel)."
        )
    return spectrum


@dataclass(frozen=True)
class RandomFourier(FeatureMap):
    """Monte Carlo spectral nodes, with an error of the kernel of about 1/√F. Source: Rahimi & Recht 2007.

    For the Tanimoto kernel, which has no spectrum, the random features are those of `MinHash`.
    """

    num_features: int = 1024

    def __post_init__(self) -> None:
        check_even("num_features", self.num_features)

    def build(
        self, kernel: gpytorch.kernels.Kernel, arms: Arms, generators: Sequence[torch.Generator], batch_shape: torch.Size
    ) -> Fourier | MinHash:
        """Build features from random frequencies, or for the Tanimoto kernel from random hashes, drawn row by row."""
        if (scale := tanimoto_scale(kernel)) is not None:
            return MinHash.draw(scale, self.num_features, arms, generators, batch_shape)
        spectrum, size = _spectrum(kernel, "random Fourier", gaussian=False), self.num_features // 2
        omega = draw_frequencies(spectrum, size, arms.shape[-1], generators).to(arms.device)
        omega = omega.reshape(*batch_shape, size, arms.shape[-1]) / spectrum.lengthscale.to(omega).unsqueeze(-2)
        weights = (spectrum.outputscale.to(omega) / size).unsqueeze(-1).expand(*batch_shape, size)
        return Fourier(omega, weights)


@dataclass(frozen=True)
class QuadratureFourier(FeatureMap):
    """Gauss–Hermite spectral nodes on a product grid: the kernel's error is at most `tolerance` on the box of the arms.

    Each feature gets the fewest nodes that reach the tolerance over the span of the arms. Their number grows with the span in
    lengthscales, and the size of the product grid grows exponentially in d. Source: Mutný & Krause 2018.
    """

    max_features: int = 4096
    tolerance: float = 1e-3

    def __post_init__(self) -> None:
        enough = is_whole(self.max_features, 2)
        require(enough, f"max_features or num_features must be a whole number of at least 2, got {self.max_features!r}.")
        good = is_finite(self.tolerance) and 0 < self.tolerance < 1
        require(good, f"tolerance must lie in (0, 1), got {self.tolerance!r}.")

    def build(
        self, kernel: gpytorch.kernels.Kernel, arms: Arms, generators: Sequence[torch.Generator], batch_shape: torch.Size
    ) -> Fourier:
        """Build features with the nodes of each batch row for its own span in lengthscales. Nothing is drawn."""
        spectrum, dim = _spectrum(kernel, "quadrature Fourier", gaussian=True), arms.shape[-1]
        lengthscale = spectrum.lengthscale.to(arms.device).expand(*spectrum.lengthscale.shape[:-1], dim)
        span = (arms.amax(dim=-2) - arms.amin(dim=-2)).double() / lengthscale
        rules = [self._rules(spans) for spans in span.reshape(-1, dim).tolist()]
        if not all(rules):
            raise ArgumentError(self._too_many(span.reshape(-1, dim).amax(dim=0).tolist()))
        grids = [product_grid(rule) for rule in rules]
        sizes = torch.tensor([len(w) for _, w in grids], device=arms.device)
        half, differ = int(sizes.max()), bool((sizes != sizes[0]).any())
        padded = [(np.pad(x, ((0, half - len(x)), (0, 0))), np.pad(w, (0, half - len(w)))) for x, w in grids]
        nodes, weights = (torch.as_tensor(np.stack(part), device=arms.device) for part in zip(*padded, strict=True))
        omega = nodes.reshape(*span.shape[:-1], half, dim) / lengthscale.unsqueeze(-2)
        scaled = spectrum.outputscale.to(arms.device).unsqueeze(-1) * weights.reshape(*span.shape[:-1], half)
        used = sizes.reshape(span.shape[:-1]).expand(batch_shape) if differ else None
        box = torch.stack([arms.amin(dim=-2), arms.amax(dim=-2)], dim=-2)
        return Fourier(omega.expand(*batch_shape, half, dim), scaled.expand(*batch_shape, half), used, box)

    def _rules(self, spans: Sequence[float]) -> list[tuple[np.ndarray, np.ndarray]]:
        """Nodes and weights of each feature; empty if there would be too many."""
        # To first order, the error of the product is the sum of the errors of its factors.
        tolerance = 0.9 * self.tolerance / len(spans)
        rules = [rule for span in spans if (rule := fewest_nodes(span, tolerance)) is not None]
        fits = len(rules) == len(spans) and math.prod(len(nodes) for nodes, _ in rules) <= self.max_features
        return rules if fits else []

    def _too_many(self, spans: Sequence[float]) -> str:
        """Error message that names settings which would be accepted."""
        rules = [fewest_nodes(span, 0.9 * self.tolerance / len(spans)) for span in spans]
        counts = [_MOST_NODES + 1 if rule is None else len(rule[0]) for rule in rules]
        size, enough = math.prod(counts), None not in rules
        # Start from a guess and increase it, because the number of nodes is not quite proportional to the span.
        longer = round_up(max(1.01, max(spans) / _MOST_NODES, 0.7 * (size / self.max_features) ** (1 / len(spans))))
        while not self._rules([span / longer for span in spans]):
            longer = round_up(1.05 * longer)
        return (
            f"quadrature features of arms that span {', '.join(f'{s:.3g}' for s in spans)} lengthscales take "
            f"{' x '.join(map(str, counts))}{f' = {size}' if enough else ' or more'} features, over the limit of "
            f"{self.max_features}{'' if enough else f' or of {_MOST_NODES} nodes per feature'}: pass "
            f"{f'num_features={size} or more, ' if enough else ''}lengthscales {longer:g} times as long, or embedding='rff'."
        )


def product_grid(rules: list[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    """Nodes `F x d` and weights `F` of the product of symmetric rules, with one node of each pair ±node."""
    grids = np.meshgrid(*[nodes for nodes, _ in rules], indexing="ij")
    weights = math.prod(np.meshgrid(*[w for _, w in rules], indexing="ij"), start=np.ones(grids[0].shape)).reshape(-1)
    # The second half of the nodes mirrors the first.
    half = (len(weights) + 1) // 2
    doubled = 2 * weights[:half]
    # The node at 0 is its own mirror image.
    if len(weights) % 2:
        doubled[-1] = weights[half - 1]
    return np.stack([g.reshape(-1) for g in grids], axis=-1)[:half], doubled


def round_up(value: float) -> float:
    """Round up to two significant digits."""
    unit = 10.0 ** (math.floor(math.log10(value)) - 1)
    return float(f"{math.ceil(value / unit - 1e-9) * unit:.2g}")


def fewest_nodes(span: float, tolerance: float) -> tuple[np.ndarray, np.ndarray] | None:
    """The fewest Gauss–Hermite nodes for exp(−r²/2) with an error of at most `tolerance` for all |r| ≤ `span`; and weights.

    None if 256 nodes are not enough. The number of nodes is found by bisection, because the error falls with it.
    """
    r = np.linspace(0.0, span, 512)
    target = np.exp(-0.5 * r * r)

    def rule(count: int) -> tuple[np.ndarray, np.ndarray] | None:
        nodes, weights = np.polynomial.hermite.hermgauss(count)
        nodes, weights = math.sqrt(2) * nodes, weights / math.sqrt(math.pi)
        close = np.abs(np.cos(np.outer(r, nodes)) @ weights - target).max() <= tolerance
        return (nodes, weights) if close else None

    count, found = 1, rule(1)
    while found is None and count < _MOST_NODES:
        count *= 2
        found = rule(count)
    too_few = count // 2
    while found is not None and count - too_few > 1:
        middle = (count + too_few) // 2
        fewer = rule(middle)
        count, too_few, found = (middle, too_few, fewer) if fewer is not None else (count, middle, found)
    return found
