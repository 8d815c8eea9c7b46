"""Shape aliases, and the small frozen records that the packages exchange.

Batch dimensions (`...`) come first; then `n` points, `a` arms, `d` features, `q` picks, `u` distinct points, `m` dictionary
points. Sizes with an underscore may differ between the arguments of one function. The aliases are only annotations; the tests
enable their checks (`jaxtyping.install_import_hook`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from torchbandits.display import Readable, Shown, count, fits, labels, misfit, numbers, pairs, table
from torchbandits.transfers import to_device, to_host

if TYPE_CHECKING:
    import numpy.typing as npt

    # Tensors, arrays, tables of pandas and Polars, numbers and lists of numbers: what is read as a tensor.
    ArrayLike = Tensor | npt.ArrayLike
else:
    ArrayLike = Any

# One CPU generator per batch row, in row-major order.
Generators = Sequence[torch.Generator]
Points = Float[Tensor, "... _n d"]
Arms = Float[Tensor, "... _a d"]
# Points, or rows of packed words.
Stored = Shaped[Tensor, "... _n d"]
Square = Float[Tensor, "... m m"]
Rect = Float[Tensor, "... _m _n"]
PerPoint = Float[Tensor, "... _n"]
Picks = Int[Tensor, "... _q"]
PickMask = Bool[Tensor, "... _q"]


@dataclass(frozen=True)
class Marginals:
    """Posterior mean (reward units) and variance (reward units squared) of each point, both `batch_shape x n`."""

    mean: Tensor
    variance: Tensor


@dataclass(frozen=True, repr=False)
class Selection(Readable):
    """The picks of one `ask`: `points` `batch_shape x q x d`; `index` into the arms and `mask`, both `batch_shape x q`.

    Rows of a batch may pick different numbers of arms: a place that is not a pick has `mask` False and `index` −1.
    """

    points: Tensor
    index: Tensor
    mask: Tensor

    def __len__(self) -> int:
        """Number of places per row, including masked ones."""
        return self.index.shape[-1]

    def __getitem__(self, places: Any) -> Selection:
        """The selection restricted to the given places of each row (a slice or a 1-d index of the pick dimension)."""
        return Selection(self.points[..., places, :], self.index[..., places], self.mask[..., places])

    def _shown(self) -> Shown:
        if not fits(self.mask, (self.index,), self.points):
            return misfit(self)
        rows = f" in {self.mask.shape[:-1].numel():,} rows" if self.mask.dim() > 1 else ""
        return table(f"Selection of {count(int(self.mask.sum()), 'pick')}{rows}", self.mask, {"arm": self.index}, self.points)


@dataclass(frozen=True)
class Evidence:
    """The quantities on which a selection is based: for each pick the score (NaN for policies without scores) and the leverage
    at the batch start; for each row the width; and the generator states after the draws of `select` (empty without draws)."""

    score: Tensor
    leverage: Tensor
    width: Tensor
    generator_states: tuple[Tensor, ...] = ()


@dataclass(frozen=True, repr=False)
class Recommendation(Readable):
    """The k best arms among the pulled arms, best first: `points` `batch_shape x k x d`, other fields `batch_shape x k`.

    `index` is −1 (and mean NaN) where a row has pulled fewer than k arms. It is −1, with a mean, for an observed point of a box
    that was never picked, and in an explanation for a point that is none of the arms. For several outcomes, mean and variance
    have a further dimension, the last one, with an entry per outcome, in the order of `outcomes`.
    """

    points: Tensor
    index: Tensor
    mean: Tensor
    variance: Tensor
    outcomes: tuple[str, ...] = ()

    def _shown(self) -> Shown:
        if not all(isinstance(part, Tensor) for part in (self.index, self.mean, self.variance)):
            return misfit(self)
        # One column per outcome, if there are several.
        several = self.mean.dim() > self.index.dim() and self.mean.shape == self.variance.shape
        means = self.mean.unbind(dim=-1) if several else (self.mean,)
        spreads = self.variance.unbind(dim=-1) if several else (self.variance,)
        known = ~means[0].isnan() if means else torch.zeros(0)
        if not fits(known, (self.index, *means, *spreads), self.points):
            return misfit(self)
        columns = {"arm": self.index}
        names = [f" {name}" for name in labels(self.outcomes, len(means))] if several else [""]
        for name, mean, spread in zip(names, means, spreads, strict=True):
            columns |= {f"mean{name}": mean, f"± deviation{name}": spread.sqrt()}
        title = f"Recommendation of {count(int(known.sum()), 'arm')}, best first"
        return table(title, known, columns, self.points)


def with_blanks(best: Recommendation, known: Tensor, k: int) -> Recommendation:
    """A recommendation of k arms from q ≤ k of them: −1 and NaN where they are not `known`, `batch_shape x q` booleans, and in
    the places after them."""

    def blanked(values: Tensor, blank: float | int) -> Tensor:
        trailing = values.dim() - known.dim()
        values = values.masked_fill(~known[(..., *[None] * trailing)], blank)
        return torch.nn.functional.pad(values, (0, 0) * trailing + (0, k - known.shape[-1]), value=blank)

    mean, variance = blanked(best.mean, torch.nan), blanked(best.variance, torch.nan)
    return Recommendation(blanked(best.points, torch.nan), blanked(best.index, -1), mean, variance, best.outcomes)


@dataclass(frozen=True, repr=False)
class Report(Readable):
    """The state after one `tell`, one number per batch row.

    `certificate` is the largest upper bound minus the largest lower bound over the arms, in reward units: if the width is
    valid, no arm is better than the arm with the largest lower bound by more than this difference. The recommended arm is the
    pulled arm with the highest mean, often another one; its bound is the `value` of the decision of `stopping.EpsilonOptimal`.
    The certificate is NaN for policies without a posterior. `unasked` counts the pulls of this tell that were never asked for,
    such as earlier data.
    """

    pulls: Tensor
    batch_size: Tensor
    distinct_arms: Tensor
    dictionary_size: Tensor
    width: Tensor
    information_gain: Tensor
    certificate: Tensor
    unasked: Tensor

    def _shown(self) -> Shown:
        values = [
            ("pulls in all", numbers(self.pulls)),
            ("pulls in this batch", numbers(self.batch_size)),
            ("distinct arms", numbers(self.distinct_arms)),
            ("dictionary size", numbers(self.dictionary_size)),
            ("confidence width", numbers(self.width)),
            ("information gain", f"{numbers(self.information_gain)} nats"),
            (
                "certificate",
                f"{numbers(self.certificate)}: no arm is better than the one with the largest lower bound by more, while the "
                "width is valid",
            ),
            ("never asked for", numbers(self.unasked)),
        ]
        known = [(name, text) for name, text in values if not text.startswith("–")]
        return pairs("Report", [pair for pair in known if pair != ("never asked for", "0")])


@dataclass(frozen=True)
class FitReport:
    """The result of a kernel fit, with one entry per batch row except for the variances.

    `before` and `after` are the log evidence of the rewards, including log priors of the kernel's parameters: exact up to a
    certain number of distinct points, a lower bound beyond it; NaN in rows that were not fitted, −∞ if the factorisation
    failed. Unless `misfit=False`, each is the highest over several values of τ² (see `misfit`) and includes its prior, so that
    `before` may be far above the evidence of the previous kernel with the noise alone. `accepted` rows have a new kernel, all
    other rows keep their previous kernel. `regularized` rows were also fitted under weak priors, which `before` and `after`
    include, because the evidence alone was highest at a degenerate kernel. `reasons` state in words why a row was not accepted
    or was regularised, in row-major order, and are empty for other rows. `misfit` is the variance τ² that neither kernel nor
    noise explains, reward units squared (0 if it was not fitted). `iterations` is the number of iterations of the optimiser,
    `left_out` the number of excluded outliers, `jitter` the jitter of the bound as a fraction of the largest k(x, x).
    `regularization` (λ) and `noise_variance` are the values after the fit, reward units squared.
    """

    before: Tensor
    after: Tensor
    accepted: Tensor
    iterations: Tensor
    left_out: Tensor
    jitter: Tensor
    misfit: Tensor
    regularization: float
    noise_variance: float
    regularized: Tensor
    reasons: tuple[str, ...]


# The tensors of pulls.
_OF_PULLS = ("counts", "sums", "squares", "index", "mask", "points", "numbers", "block")


@dataclass(frozen=True)
class Pulls:
    """Summed pulls to learn from: `index` (arms) and `mask` `batch_shape x q`, or `points` that need not be arms,
    `batch_shape x q x d`; number of pulls, sum of rewards and sum of squared rewards of each, `batch_shape x q`. `history` is
    True for pulls given to `observe`, which are already summed. Rewards with individual noise variances are weighted: the
    counts are then sums of weights, the sums are weighted, and `numbers` are the numbers of rewards (None if every weight is
    1). `block` is the number of the block of each reward, `batch_shape x q`, −1 for none; None if none has one. `host`
    contains the same pulls at arms on the host, if they are there. `unasked` `batch_shape` is the number of pulls that were
    never asked for, on the host or not; None if all of them were, or if the pulls of several tells are learned together."""

    counts: Tensor
    sums: Tensor
    squares: Tensor
    index: Tensor | None = None
    mask: Tensor | None = None
    points: Tensor | None = None
    history: bool = False
    numbers: Tensor | None = None
    block: Tensor | None = None
    host: Pulls | None = None
    unasked: Tensor | None = None

    def to(self, device: torch.device) -> Pulls:
        """An asynchronous copy of the pulls on a device, whose `host` are these pulls."""
        if self.counts.device == device:
            return self
        return self._moved(partial(to_device, device), self)

    def here(self) -> Pulls:
        """The same pulls at arms on the host."""
        if self.host is not None or self.counts.device.type == "cpu":
            return self.host or self
        return self._moved(to_host, None)

    def _moved(self, move: Callable[..., Sequence[Tensor]], host: Pulls | None) -> Pulls:
        tensors = {name: own for name in _OF_PULLS if (own := getattr(self, name)) is not None}
        changed: dict[str, Any] = dict(zip(tensors, move(*tensors.values()), strict=True))
        return replace(self, **changed, host=host)

    @property
    def num_rewards(self) -> Tensor:
        """Number of rewards of each place, whatever their weights, `batch_shape x q`."""
        return self.counts if self.numbers is None else self.numbers

    def weighted(self, noise_variance: float, own: Tensor | None) -> Pulls:
        """The same pulls with individual noise variances: a reward of variance v has the weight noise_variance / v.

        Args:
            noise_variance: Noise variance of a reward of weight 1, reward units squared.
            own: `batch_shape x q`, v > 0 (any number in masked places), reward units squared; None for weights of 1.
        """
        if own is None:
            return self
        weight = torch.where(self.counts > 0, noise_variance / own, 0.0)
        sums = (weight * self.counts, weight * self.sums, weight * self.squares)
        return Pulls(*sums, self.index, self.mask, self.points, self.history, numbers=self.counts)

    def split(self, sizes: Sequence[int]) -> list[Pulls]:
        """Split pulls at arms into individual tells with the given numbers of places."""
        assert self.index is not None
        assert self.mask is not None
        whole = (self.counts, self.sums, self.squares, self.index, self.mask, self.num_rewards)
        parts = zip(*(x.split(list(sizes), dim=-1) for x in whole), strict=True)
        if self.numbers is None:
            return [Pulls(n, s, q, index, mask) for n, s, q, index, mask, _ in parts]
        return [Pulls(n, s, q, index, mask, numbers=numbers) for n, s, q, index, mask, numbers in parts]


@dataclass(frozen=True)
class Progress:
    """The inputs of a confidence width; every entry broadcasts with the batch rows.

    `t` is one more than the number of pulls told, and `pulls` that number, at least 1; `log_det` is
    Σ log(1 + lev_{s−1}(x_s)), `batched_log_det` Σ log(1 + lev_fb(x_s)), `batched_log_det_3` Σ log(1 + 3 lev_fb(x_s)),
    `effective_dimension` Σ_s lev_t(x_s), `kappa2` the largest k(x, x), and `sketch_loss` a bound on the error of a sketch of V
    in any direction (0 without a sketch). `points` is the number of distinct points pulled, None if it is unknown
    or the width does not read it.
    """

    t: Tensor
    pulls: Tensor
    num_arms: int
    dim: int
    log_det: Tensor
    batched_log_det: Tensor
    batched_log_det_3: Tensor
    effective_dimension: Tensor
    kappa2: Tensor
    sketch_loss: Tensor
    points: Tensor | None = None


def as_dict(record: Any) -> dict[str, Any]:
    """The fields of a frozen record by name, without copying its tensors."""
    return {f.name: getattr(record, f.name) for f in fields(record)}
