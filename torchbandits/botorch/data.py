"""Data of a BoTorch model: their checks, observations as given and folded to distinct points, and draws of its dictionary."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from botorch.acquisition.objective import PosteriorTransform
from botorch.exceptions import BotorchTensorDimensionError, InputDataError, UnsupportedError
from botorch.utils.datasets import SupervisedDataset
from torch import Tensor

from torchbandits.arms import matches
from torchbandits.checks import as_tensor, is_finite
from torchbandits.errors import ShapeError, require
from torchbandits.memory import LeverageSampling
from torchbandits.posteriors import GaussianProcess, Statistics, aggregate
from torchbandits.posteriors.bless import bless_rows
from torchbandits.shapes import broadcast_shapes
from torchbandits.sources.duplicates import first_occurrence
from torchbandits.types import PerPoint, Points

_DICTIONARIES = ("all", "leverage", "bless")
_VARIANCES = ("train_Yvar", "noise")


@dataclass(frozen=True)
class Block:
    """Observations that were given together, in the user's space.

    Attributes:
        X: `batch_shape x n x d`.
        Y: `batch_shape x n`; may have leading dimensions that X does not have.
        variance: Noise variances, shaped like Y without those; None for the model's own.
        transformed: Whether the variance is in the space of the transformed outcomes.
        weights: Number of pulls of each observation, of the same shape; None for one.
    """

    X: Tensor
    Y: Tensor
    variance: Tensor | None = None
    transformed: bool = False
    weights: Tensor | None = None

    @property
    def batch_shape(self) -> torch.Size:
        """Leading dimensions of X and Y, broadcast."""
        return broadcast_shapes(self.X.shape[:-2], self.Y.shape[:-1])

    def detached(self) -> Block:
        """The same, detached from the graph of gradients."""
        return replace(self, X=self.X.detach(), Y=self.Y.detach())

    def to(self, device: torch.device) -> Block:
        """The same on another device."""
        variance, weights = (None if t is None else t.to(device) for t in (self.variance, self.weights))
        return replace(self, X=self.X.to(device), Y=self.Y.to(device), variance=variance, weights=weights)


def merged(blocks: Sequence[Block]) -> tuple[Block, ...]:
    """The same observations with consecutive compatible blocks joined, except for the first, which may be a bandit's."""
    out = [blocks[0]]
    for _, run in itertools.groupby(blocks[1:], _kind):
        same = list(run)
        variance, weights = ([getattr(block, name) for block in same] for name in ("variance", "weights"))
        out.append(
            replace(
                same[0],
                X=torch.cat([block.X for block in same], dim=-2),
                Y=torch.cat([block.Y for block in same], dim=-1),
                variance=None if variance[0] is None else torch.cat(variance, dim=-1),
                weights=None if weights[0] is None else torch.cat(weights, dim=-1),
            )
        )
    return tuple(out)


def _kind(block: Block) -> tuple[Any, ...]:
    """Key that is equal for blocks that can be joined."""
    tensors = (block.variance, block.weights)
    shapes = [None if tensor is None else tensor.shape[:-1] for tensor in tensors]
    return block.X.shape[:-2], block.Y.shape[:-1], block.X.dtype, block.Y.dtype, block.transformed, *shapes


def check_data(X: Tensor, Y: Tensor, Yvar: Tensor | None, dictionary: str | Tensor, prior_mean: float | str) -> None:
    """Refuse NaNs, several outcomes and a dictionary of another space, with BoTorch's own errors, and unknown options."""
    for name, value in (("train_X", X), ("train_Y", Y), ("train_Yvar", Yvar)):
        if value is not None or name != "train_Yvar":
            check_tensor(name, value)
    number = not isinstance(prior_mean, str) and is_finite(prior_mean)
    require(number or prior_mean == "estimate", f'prior_mean must be a finite number or "estimate", got {prior_mean!r}.')
    known = isinstance(dictionary, Tensor) or (isinstance(dictionary, str) and dictionary in _DICTIONARIES)
    require(known, f"dictionary must be one of {', '.join(_DICTIONARIES)}, or points m x d, got {dictionary!r}.")
    if Y.dim() == X.dim() and Y.shape[-1] != 1:
        raise UnsupportedError(
            f"BanditModel has one outcome, got train_Y with {Y.shape[-1]}: make one model per outcome, "
            "botorch.models.ModelListGP(BanditModel(X, Y[..., :1]), BanditModel(X, Y[..., 1:2]))."
        )
    if X.dim() < 2 or (Y.dim() == X.dim() and X.shape[-2] != Y.shape[-2]):
        raise BotorchTensorDimensionError(
            f"train_X must be batch_shape x n x d and train_Y batch_shape x n x 1, got {tuple(X.shape)} and {tuple(Y.shape)}."
        )
    check_values(train_X=X, train_Y=Y, train_Yvar=Yvar)
    if not isinstance(dictionary, Tensor):
        return
    if dictionary.dim() < 2 or dictionary.shape[-1] != X.shape[-1] or not dictionary.shape[-2]:
        raise BotorchTensorDimensionError(
            f"dictionary must be points m x {X.shape[-1]}, at least one, got {tuple(dictionary.shape)}."
        )
    check_values(dictionary=dictionary)


def check_inputs(training_data: object, categorical_features: object, kernel: object) -> None:
    """Refuse anything but a container of data, and categories without a kernel that compares them."""
    known = isinstance(training_data, SupervisedDataset)
    require(known, f"training_data must be a botorch.utils.datasets.SupervisedDataset, got {type(training_data).__name__}.")
    message = (
        f"categorical_features are {categorical_features}, and the default kernel takes their codes for numbers: give a kernel "
        "that compares them, kernel=…, or in Ax model_options={'kernel': …}."
    )
    require(not categorical_features or kernel is not None, message)


def check_tensor(name: str, value: object) -> None:
    """Raise `ShapeError` unless `value` is a tensor of real numbers."""
    if not isinstance(value, Tensor) or value.is_complex():
        got = str(value.dtype) if isinstance(value, Tensor) else type(value).__name__
        raise ShapeError(f"{name} must be a tensor of real numbers, got {got}.")


def check_points(name: str, X: Any, d: int) -> None:
    """Raise BoTorch's own error unless `X` holds points with d features."""
    check_tensor(name, X)
    if X.dim() < 2 or X.shape[-1] != d:
        raise BotorchTensorDimensionError(f"{name} must be ... x q x {d}, as train_X has {d} features; got {tuple(X.shape)}.")


def check_asked(observation_noise: object, posterior_transform: object) -> None:
    """Refuse arguments of `posterior` of a wrong type."""
    known = posterior_transform is None or isinstance(posterior_transform, PosteriorTransform)
    kind = type(posterior_transform).__name__
    require(known, f"posterior_transform must be a BoTorch PosteriorTransform or None, got {kind}.")
    known = isinstance(observation_noise, bool | Tensor)
    kind = type(observation_noise).__name__
    require(known, f"observation_noise must be True, False or variances ... x q x 1, got {kind}.")


def check_values(**given: Tensor | None) -> None:
    """Refuse NaNs, and noise variances that are not positive, with BoTorch's own errors."""
    for name, value in given.items():
        if value is not None:
            check_tensor(name, value)
            as_tensor(name, value)  # refuses sparse tensors, and those of other types than numbers
        if value is not None and not bool(torch.isfinite(value).all()):
            raise InputDataError(f"{name} has a NaN or infinite entry: drop those observations.")
        if value is not None and name in _VARIANCES and not bool((value > 0).all()):
            raise InputDataError(f"{name} must be > 0 everywhere: use a small variance where there is no noise.")
        if value is not None and name == "counts" and not bool((value >= 0).all()):
            raise InputDataError("counts must be ≥ 0 everywhere.")


def check_pairs(X: Points, Y: Tensor) -> None:
    """Refuse outcomes other than one per point; a last dimension of size 1 may be left out."""
    if Y.shape[-2:] != (X.shape[-2], 1) and (Y.shape[-1:] != X.shape[-2:-1] or X.shape[-2] == 1):
        raise BotorchTensorDimensionError(f"Y must be … x {X.shape[-2]} x 1, one per point of X, got {tuple(Y.shape)}.")


def generator_states(generator: torch.Generator | Sequence[torch.Generator] | None) -> tuple[Tensor, ...]:
    """States of the given generators; of one with seed 0 by default."""
    if generator is None:
        generator = torch.Generator().manual_seed(0)
    given = [generator] if isinstance(generator, torch.Generator) else generator
    good = isinstance(given, Sequence) and len(given) > 0 and all(isinstance(one, torch.Generator) for one in given)
    require(good, f"generator must be a torch.Generator, or a list of one per batch row, got {generator!r:.60}.")
    return tuple(one.get_state() for one in given)


def twins(states: Sequence[Tensor], shape: torch.Size) -> list[torch.Generator]:
    """One generator per batch row with the given states; several rows with a single state get seeds drawn from it."""
    generators = [torch.Generator() for _ in states]
    for generator, state in zip(generators, states, strict=True):
        generator.set_state(state)
    if len(generators) == 1 and shape.numel() > 1:
        seeds = torch.randint(2**62, (shape.numel(),), generator=generators[0]).tolist()
        generators = [torch.Generator().manual_seed(seed) for seed in seeds]
    return generators


def folded(X: Points, y: PerPoint, weights: PerPoint) -> Statistics:
    """Statistics of the distinct points of each batch row, from points `batch_shape x n x d`, outcomes and weights
    `batch_shape x n` each. Cost O(n (d + log n))."""
    shape = broadcast_shapes(X.shape[:-2], y.shape[:-1], weights.shape[:-1])
    n = X.shape[-2]
    if not n:
        return Statistics(X.shape[-1], shape, X.device)
    x, w = X.double().expand(*shape, n, X.shape[-1]), weights.double().expand(*shape, n)
    y = y.double().expand(*shape, n)
    first = first_occurrence(x)
    if first is None:
        first = torch.arange(n, device=x.device).expand(*shape, n)
    everything = torch.ones_like(first, dtype=torch.bool)
    index, _, counts, sums, squares = aggregate(first, everything, w, w * y, w * y * y)
    statistics = Statistics(X.shape[-1], shape, X.device)
    points = x.gather(-2, index.clamp_min(0).unsqueeze(-1).expand(*index.shape, X.shape[-1]))
    rows = statistics.append_(points, index >= 0)
    return statistics.add_(rows, counts, sums, squares)


def added_without_pulls(statistics: Statistics, points: Points) -> Tensor:
    """Rows of these distinct points, `batch_shape x m`; missing points are appended without pulls."""
    shape = statistics.num_rows.shape
    x = points.double().expand(*shape, *points.shape[-2:])
    row = matches(statistics.points, x)
    fresh = statistics.append_(x, row < 0)
    return torch.where(row >= 0, row, fresh)


def joined(blocks: Sequence[Block]) -> tuple[Tensor, Tensor]:
    """X `batch_shape x n x d` and Y `batch_shape x n` of all blocks, their batch dimensions broadcast."""
    shape = broadcast_shapes(*(block.batch_shape for block in blocks))
    X = torch.cat([block.X.expand(*shape, *block.X.shape[-2:]) for block in blocks], dim=-2)
    return X, torch.cat([block.Y.expand(*shape, block.Y.shape[-1]) for block in blocks], dim=-1)


def draw_dictionary_(
    process: GaussianProcess, how: str | Tensor, oversampling: float, generators: Sequence[torch.Generator]
) -> None:
    """Give a sparse posterior its dictionary: points `m x d`, or a sample by exact (`"leverage"`) or approximate (`"bless"`)
    leverage scores, drawn row by row.

    Cost: O(u³) for exact leverages, O(u m²) for approximate ones.
    """
    statistics = process.statistics
    if isinstance(how, Tensor):
        rows = added_without_pulls(statistics, how)
        chosen = torch.zeros_like(statistics.mask).scatter(-1, rows, True)
        process.set_dictionary_(chosen)
        return
    leverage = bless_rows(process.kernel, statistics, process.regularization, generators, exact=how == "leverage")
    if not statistics.size:  # no observations to draw from
        return
    memory = LeverageSampling(oversampling)
    process.set_dictionary_(memory.choose(leverage, statistics.weights, statistics.mask, generators))
