"""The three representations of a posterior on many arms in a table: kernel columns, directions, and features."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from torchbandits.arms.columns import LEAST_ARMS, KernelColumns
from torchbandits.arms.directions import Directions, Leaders
from torchbandits.arms.features import ArmFeatures
from torchbandits.arms.rows import ArmRows
from torchbandits.budget import halved
from torchbandits.embeddings import Nystrom
from torchbandits.kernels import Stationary
from torchbandits.linalg import LowRankPrecision, Precision
from torchbandits.posteriors import AtPoints, Conditioning, GaussianProcess
from torchbandits.posteriors.exact import ExactFactors
from torchbandits.posteriors.factors import Behind, Factors, FactorsInOne, SmallFactors
from torchbandits.posteriors.growth import Growth
from torchbandits.sources.base import parts
from torchbandits.sources.packed import PackedArms
from torchbandits.tanimoto import packed_kernel
from torchbandits.threads import MANY_PRODUCTS, threads
from torchbandits.types import Picks

# A table of finite features is swept again after this many pulls, so that rounding errors cannot accumulate.
_ANCHOR = 1024
# Number of entries that are squared at a time.
_PIECE = 1 << 16
# On a device the factors of finite features are updated once after this many pulls.
_BEHIND = 256


class TableStrategy(ABC):
    """Computation of means, leverages and covariances of arms from one kind of posterior.

    Args:
        rows: The arms and their rows.
        posterior: The posterior that is tabulated.
    """

    def __init__(self, rows: ArmRows, posterior: GaussianProcess) -> None:
        self.rows, self.posterior = rows, posterior

    def _threads(self, weights: Tensor) -> threads:
        """Number of threads that is worthwhile for a product of these weights with one column per arm."""
        return threads(many=weights.numel() * self.rows.num_arms >= MANY_PRODUCTS)

    @abstractmethod
    def sweep(self, prior: Tensor, leverage: Tensor, channels: Tensor) -> None:
        """Compute means and leverages of all arms from the posterior's factors.

        Args:
            prior: `A` or `batch_shape x A`, k(x, x) / λ.
            leverage: `batch_shape x A`, overwritten; values below 0 are rounding errors.
            channels: `batch_shape x c x A`, overwritten.
        """

    @abstractmethod
    def cross(self, slot: Picks, leaders: Leaders | None) -> Tensor:
        """k̃(x_p, ·), `batch_shape x p x A`; see `ArmTable.cross`. `leaders` are likely to be pulled next, and may be evaluated
        ahead."""

    @abstractmethod
    def features(self, index: Picks) -> tuple[Any, ...]:
        """Inputs of `covariance` for each arm (`batch_shape x p`)."""

    @abstractmethod
    def covariance(self, left: tuple[Any, ...], right: tuple[Any, ...], frozen: bool | Tensor) -> Tensor:
        """The part of the leverage-scale covariance that a pull changes, `batch_shape x n x n'`."""

    def columns_between(self, index: Picks, features: tuple[Any, ...] | None = None) -> tuple[Tensor, Tensor]:
        """Covariances of arms with every arm, frozen and exact, `batch_shape x p x A` each; equal without a dictionary.
        `features` are those of the arms, where they are known."""
        k = self.cross(index.clamp_min(0), None).double()
        return k, k

    def in_parts(self) -> tuple[Stationary, Tensor, Tensor] | None:
        """On a device: an RBF or Matérn kernel, the arms in units of its lengthscale, and T, with k̃ = k/λ − TᵀT, where the
        posterior is kept in this form; otherwise None."""
        return None

    def append(self, G: Tensor, directions: Callable[[Tensor], Tensor]) -> None:
        """Store the directions of pulls, `batch_shape x p x A`, whose squares were subtracted from the leverages. By default
        nothing is stored.

        Args:
            G: `directions` of the result of `cross`.
            directions: Linear function from covariances with the pulled arms, `batch_shape x p x n`, to the directions.
        """
        return

    def conditioned(self, conditioning: Conditioning, cross: Tensor) -> Tensor:
        """Directions G of pulls, `batch_shape x p x A` in float64, stored as by `append`; `cross` is the covariance of the
        pulled arms with every arm."""
        G = conditioning.directions(cross.double())
        self.append(G, conditioning.directions)
        return G

    def needs_sweep(self, updates: int, rows: int) -> bool:
        """Whether `updates` since the last sweep have made the table long or imprecise, or leave no room for pulls of `rows`
        further arms."""
        return updates > _ANCHOR

    def forget(self) -> None:
        """Return to the prior. By default nothing is stored."""
        return


def column_squares(G: Tensor) -> Tensor:
    """Sums of the squares in each column, `batch_shape x p x A` to `batch_shape x A`. On the host in pieces that stay in cache,
    because new memory of the size of G takes longer than the squares."""
    p, A = G.shape[-2:]
    step = max(LEAST_ARMS, _PIECE // max(1, p))
    if G.device.type != "cpu" or step >= A:
        return G.square().sum(dim=-2)
    out = G.new_empty(*G.shape[:-2], A)
    for part in parts(0, A, step):
        torch.sum(G[..., part].square(), dim=-2, out=out[..., part])
    return out


def _less_squares(prior: Tensor, T: Tensor, leverage: Tensor) -> None:
    """leverage = prior − |T|², where |T| are lengths of columns of T, which may be overwritten."""
    if T.device.type == "cpu":
        torch.sub(prior, T.square_().sum(dim=-2), out=leverage)
    else:
        # T is read once.
        length = torch.linalg.vector_norm(T, dim=-2)
        torch.addcmul(prior, length, length, value=-1, out=leverage)


class FromColumns(TableStrategy):
    """Strategy for a sparse posterior: the kernel columns of the dictionary, kept while they fit the memory budget.

    A new dictionary costs one m x m x A product, leverage = k(x, x)/λ − |Nᵀk_S(x)|².

    Args:
        rows: The arms and their rows.
        posterior: The posterior that is tabulated.
        columns: Kernel columns of the dictionary.
    """

    def __init__(self, rows: ArmRows, posterior: GaussianProcess, columns: KernelColumns) -> None:
        super().__init__(rows, posterior)
        self.columns = columns
        # The dictionary of the last features of packed arms, and its words (None if it holds points that cannot be packed).
        self._words: tuple[Nystrom, Tensor | None] | None = None
        self._packs = isinstance(rows.source, PackedArms) and not rows.sharded

    def sweep(self, prior: Tensor, leverage: Tensor, channels: Tensor) -> None:
        """One compiled pass over kept columns, or products in chunks of arms."""
        self.columns.fill(self.posterior.dictionary_rows()[0])
        factors = self.posterior.sweep_factors(self.columns.gram())
        if self.columns.sweep(factors, prior, leverage, channels):
            return
        weights, c = factors.weights.to(self.rows.source.dtype), channels.shape[-2]
        step, dense = self.columns.step(factors.rows), c if factors.lower is False else None
        while True:
            try:
                with self._threads(weights):
                    for part, out in self.columns.products(weights, factors.rows, dense, step):
                        # For packed arms the other threads are already computing the next chunks.
                        with threads(many=self.columns.packed() is None):
                            channels[..., part] = out[..., :c, :]
                            _less_squares(prior[..., part], out[..., c:, :], leverage[..., part])
                return
            except torch.OutOfMemoryError as error:
                step = halved(step, LEAST_ARMS, error)

    def follow(self, growth: Growth, leverage: Tensor, channels: Tensor) -> None:
        """Update leverages and write channels of all arms after the growth of the dictionary: one product with r + 2q + c rows
        instead of m. Cost O(A m (r + q)).

        Args:
            growth: Growth of the posterior, on the host.
            leverage: `batch_shape x A`, updated in place; values below 0 are rounding errors.
            channels: `batch_shape x c x A`, overwritten.
        """
        rows = growth.factors.rows
        self.columns.fill(rows, partly=True)
        c, r = channels.shape[-2], growth.lost.shape[-1]
        weights = torch.cat([growth.coefficients, growth.lost, growth.gained], dim=-1).mT.contiguous()
        with self._threads(weights):
            for part, out in self.columns.products_in_any_order(weights, rows):
                channels[..., part], squares = out[..., :c, :], out[..., c:, :].square_()
                leverage[..., part] += squares[..., r:, :].sum(dim=-2) - squares[..., :r, :].sum(dim=-2)

    def cross(self, slot: Picks, leaders: Leaders | None) -> Tensor:
        """Not supported, because a sparse posterior is swept after each tell."""
        raise AssertionError("a sparse posterior has no updates between sweeps")

    def features(self, index: Picks) -> AtPoints:
        """Points (words of packed arms), whitened features and features. Cost O(p m²), plus O(p m d) if columns are not
        kept."""
        fit, packed = self.posterior.fit(), self.columns.packed() if self._packs else None
        x = self.rows.points(index).double() if packed is None else packed.words_at(index.clamp_min(0))
        K_mk = self.columns.read(fit.rows, index)
        if K_mk is None and packed is not None:
            K_mk = self._to_packed(fit.nystrom, x, packed)
        if K_mk is not None and isinstance(fit.embedding, Nystrom):
            # Every call counts in a small step.
            z = fit.embedding.root.embed(K_mk if fit.whole else fit.unpadded(K_mk))
        else:
            z = fit.embedding(x)
        if fit.effects is None:
            return AtPoints(x, fit.regression.precision.whiten(z), z)
        return fit.at(x, z, self.rows.row_of(self.rows.entry(index)))

    def _to_packed(self, nystrom: Nystrom, words: Tensor, packed: PackedArms) -> Tensor:
        """k between the dictionary and packed arms, `batch_shape x m x p`."""
        if self._words is None or self._words[0] is not nystrom:
            held = bool(packed.packing.holds(nystrom.dictionary).all())
            self._words = (nystrom, packed.packing.pack(nystrom.dictionary) if held else None)
        dictionary = self._words[1]
        if dictionary is None:
            return nystrom.columns(packed.packing.unpack(words, torch.float64))
        return packed_kernel(self.posterior.embedded_kernel, packed.packing, dictionary, words)

    def covariance(self, left: tuple[Any, ...], right: tuple[Any, ...], frozen: bool | Tensor) -> Tensor:
        """zᵀV⁻¹z' in batch rows whose dictionary is frozen, k̃ in the others. Cost O(n n' (m + d))."""
        if frozen is True:
            return left[1].mT @ right[1]
        packed = self.columns.packed() if self._packs else None
        prior = None if packed is None else partial(packed_kernel, self.posterior.embedded_kernel, packed.packing)
        return self.posterior.fit().covariance(AtPoints(*left), AtPoints(*right), frozen=frozen, prior=prior)

    def columns_between(self, index: Picks, features: tuple[Any, ...] | None = None) -> tuple[Tensor, Tensor]:
        """Covariances of arms with every arm, with the dictionary frozen and exact. Cost O(A m p)."""
        fit, p, precision = self.posterior.fit(), index.shape[-1], self.posterior.fit().regression.precision
        if index.device.type == "cpu" or self._packs or not isinstance(precision, Precision):
            K_pa = self.columns.of_arms(index).double()
            both = fit.column_weights(fit.embedding(self.rows.points(index).double()))
        else:
            # In few operations, and without looking for kept columns, for which the host would wait.
            x, whitened, z_p, share = features or self.features(index)
            K_pa = self.columns.of_points(index, x.to(self.rows.source.dtype)).double()
            both = fit.column_weights(z_p, precision.root @ whitened)
            if share is not None:
                both = both / torch.cat([share, share], dim=-1).unsqueeze(-1)
        both = both.to(self.rows.source.dtype)
        out = K_pa.new_empty(*both.shape[:-1], self.rows.num_arms)
        for part, product in self.columns.products(both, fit.rows):
            out[..., part] = product
        c = out[..., :p, :]
        exact = (K_pa - out[..., p:, :]).div_(self.posterior.regularization).add_(c)
        if (effects := fit.effects) is None:
            return c, exact
        # Duplicates share the row and the effect of their entry.
        rows, entry, every = self.rows, self.rows.entry(index), self.rows.row_of_each()
        own, others = effects.share_at(rows.row_of(entry)).unsqueeze(-1), effects.share_at(every).unsqueeze(-2)
        first = torch.arange(rows.num_arms, device=every.device) + rows.across.offset if rows.first is None else rows.first
        same, effect = entry.unsqueeze(-1) == first.unsqueeze(-2), effects.ratio[..., None, None] * own
        return c.mul_(own).mul_(others), exact.mul_(own).mul_(others).add_(torch.where(same, effect, 0.0))


class FromDirections(TableStrategy):
    """Strategy for an exact posterior: directions T with leverage = k(x, x)/λ − |T(x)|². A pull appends one in O(A u).

    Directions are recomputed when repeated pulls have doubled their number, so memory and time depend on the number of distinct
    arms, not on the number of pulls.

    Args:
        rows: The arms and their rows.
        posterior: The posterior that is tabulated.
        columns: Evaluates kernel columns.
        directions: T.
    """

    def __init__(self, rows: ArmRows, posterior: GaussianProcess, columns: KernelColumns, directions: Directions) -> None:
        super().__init__(rows, posterior)
        self._columns, self._directions = columns, directions

    def sweep(self, prior: Tensor, leverage: Tensor, channels: Tensor) -> None:
        """Recompute T, which is overwritten if it is large; after a failure the table is then incomplete."""
        factors, c = self.posterior.sweep_factors(self._columns.gram()), channels.shape[-2]
        r = factors.N.shape[-1]
        storage = self._directions.sweep_storage(r)
        weights = factors.weights.to(self.rows.source.dtype)
        with self._threads(weights):
            for part, out in self._columns.products(weights, factors.rows, dense=c):
                storage[..., :r, part], channels[..., part] = out[..., c:, :], out[..., :c, :]
                _less_squares(prior[..., part], out[..., c:, :], leverage[..., part])
        self._directions.swept(storage, r)

    def cross(self, slot: Picks, leaders: Leaders | None) -> Tensor:
        """k̃(x_p, ·). Cost O(A u p), or O(A p) for arms that were evaluated ahead."""
        return self._directions.cross(slot, leaders)

    def features(self, index: Picks) -> tuple[Tensor, Tensor]:
        """Points (or indices, if the covariance is kept) and directions."""
        return self._directions.features(index)

    def covariance(self, left: tuple[Any, ...], right: tuple[Any, ...], frozen: bool | Tensor) -> Tensor:
        """k̃, because an exact posterior has nothing to freeze. Cost O(n n' (u + d))."""
        return self._directions.between((left[0], left[1]), (right[0], right[1]))

    def in_parts(self) -> tuple[Stationary, Tensor, Tensor] | None:
        """Kernel, arms and T, unless all covariances are kept."""
        return self._directions.in_parts()

    def append(self, G: Tensor, directions: Callable[[Tensor], Tensor]) -> None:
        """Append rows to T."""
        self._directions.append(G)

    def conditioned(self, conditioning: Conditioning, cross: Tensor) -> Tensor:
        """G, written to T at once where both are float64."""
        if cross.dtype != torch.float64:
            return super().conditioned(conditioning, cross)
        G = conditioning.directions(cross, out=self._directions.room(cross.shape[-2]))
        self._directions.append(G)
        return G

    def needs_sweep(self, updates: int, rows: int) -> bool:
        """Whether T has doubled, or leaves no room for further rows."""
        return self._directions.needs_sweep(rows)

    def forget(self) -> None:
        """Return to the prior."""
        self._directions.forget_all()


class _Since:
    """V⁻¹ of a posterior of finite features whose factors V₀ are out of date: V₀⁻¹ − HᵀH, with one row of H per later pull.

    Attributes:
        known: Factors of the posterior, without the pulls in H.
        used: Number of rows of H.
        solved: The last result of `solve`, until its pulls are appended.
    """

    def __init__(self, fit: Factors) -> None:
        self.known: Factors | SmallFactors | FactorsInOne | Behind | ExactFactors | None = fit
        self._precision, self.used = fit.regression.precision, 0
        self.solved: Tensor | None = None
        self._block = fit.regression.coefficients.new_empty(*fit.regression.coefficients.shape[:-2], 0, fit.features.shape[-2])

    def solve(self, z: Tensor) -> Tensor:
        """V⁻¹z, `batch_shape x m x p`. Cost O(m (m + r) p)."""
        start, H = self._precision.solve(z), self._block[..., : self.used, :]
        return start - H.mT @ (H @ z) if self.used else start

    def append(self, rows: Tensor) -> None:
        """Add rows of H, `batch_shape x p x m`."""
        used, p, capacity = self.used, rows.shape[-2], self._block.shape[-2]
        if used + p > capacity:
            grown = self._block.new_empty(*self._block.shape[:-2], max(used + p, 2 * capacity, 64), self._block.shape[-1])
            grown[..., :used, :] = self._block[..., :used, :]
            self._block = grown
        self._block[..., used : used + p, :] = rows
        self.used = used + p


class FromFeatures(TableStrategy):
    """Strategy for finite features z(x) of every arm: a pull costs one product (V⁻¹z_j)ᵀz(·), O(A m).

    When a sketch shrinks, V changes by more than the pulls, and a sweep follows.

    Args:
        rows: The arms and their rows.
        posterior: The posterior that is tabulated.
        arms: Features of the arms.
    """

    def __init__(self, rows: ArmRows, posterior: GaussianProcess, arms: ArmFeatures) -> None:
        super().__init__(rows, posterior)
        self._arms = arms
        self._since: _Since | None = None

    def sweep(self, prior: Tensor, leverage: Tensor, channels: Tensor) -> None:
        """Squared lengths of Jᵀz; under a sketch, the prior minus the part that the sketch explains."""
        regression, c = self.posterior.fit().regression, channels.shape[-2]
        precision = regression.precision
        sketched = isinstance(precision, LowRankPrecision)
        root = precision.explained.mT if isinstance(precision, LowRankPrecision) else precision.root
        weights = torch.cat([regression.coefficients, root], dim=-1).mT
        with self._threads(weights):
            for part, out in self._arms.products(weights):
                squares = out[..., c:, :].square_().sum(dim=-2)
                channels[..., part] = out[..., :c, :]
                # leverage = |Jᵀz|² for V⁻¹ = J Jᵀ; of a sketch, |z|²/λ − |B z|² for V⁻¹ = I/λ − BᵀB.
                leverage[..., part] = prior[..., part] - squares if sketched else squares

    def cross(self, slot: Picks, leaders: Leaders | None) -> Tensor:
        """k̃(x_p, ·). Cost O(A m p)."""
        z = self._arms.at_slots(slot)
        if z.device.type == "cpu" or self.posterior.sketch is not None:
            return self._arms.times(self.posterior.fit().regression.precision.solve(z).mT)
        since, known = self._since, self.posterior.known_factors
        if since is None or known is None or since.known is not known or since.used > _BEHIND:
            self._since = since = _Since(self.posterior.fit())
        since.solved = solved = since.solve(z)
        return self._arms.times(solved.mT)

    def append(self, G: Tensor, directions: Callable[[Tensor], Tensor]) -> None:
        """Keep the directions in feature space on a device, where the posterior's factors are updated later."""
        since = self._since
        if since is not None and since.solved is not None:
            since.append(directions(since.solved.mT))
            since.known, since.solved = self.posterior.known_factors, None

    def features(self, index: Picks) -> tuple[Tensor, Tensor]:
        """Features and whitened features."""
        z = self._arms.at(index)
        return z, self.posterior.fit().regression.precision.whiten(z)

    def covariance(self, left: tuple[Any, ...], right: tuple[Any, ...], frozen: bool | Tensor) -> Tensor:
        """zᵀV⁻¹z', because finite features leave no residual. Cost O(n n' m)."""
        return left[1].mT @ right[1]
