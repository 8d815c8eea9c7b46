"""Arms with known rewards: a table of expected rewards, or a few recorded rewards for each arm."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchbandits.checks import as_features, as_tensor, check_norm_bound, check_text, same_device
from torchbandits.display import kind
from torchbandits.environments.base import Environment, Task, known
from torchbandits.environments.noise import check_noise, noisy_rewards, row_draws
from torchbandits.errors import ArgumentError, ArmIndexError, NonFiniteError, ShapeError, UnsupportedError, require
from torchbandits.sources import ArmSource
from torchbandits.types import ArrayLike


class Table(Environment):
    """Arms with a table of expected rewards.

    Args:
        arms: `A x d` or `batch_shape x A x d` floating-point features, or a source of them.
        rewards: `A` or `batch_shape x A` expected rewards, reward units, of the same dtype and device; with a source float64 or
            float32. May be a NumPy array, such as one mapped by `numpy.load(path, mmap_mode="r")`.
        noise_std: Standard deviation of Gaussian noise, or L of noise uniform on [−L, L]; reward units, 0 for none.
        name: Shown in tables and figures.
        noise: `"gaussian"` or `"uniform"`.
        norm_bound: RKHS norm of the reward function if known; one number, or one per batch row.
        costs: `A` or `batch_shape x A`, cost of a pull of each arm (seconds, money), > 0; None if unknown.
        neighbors: `A x k` integers, arms adjacent to each arm, padded with −1; None if undefined.

    Raises:
        ShapeError: If there are no arms or features, or shapes, dtypes or devices do not agree.
        NonFiniteError: If an arm or a reward is NaN or infinite.
        ArgumentError: If `noise_std` is negative or the kind of noise unknown.
    """

    def __init__(
        self,
        arms: ArrayLike | ArmSource,
        rewards: ArrayLike,
        noise_std: float,
        *,
        name: str = "table",
        noise: str = "gaussian",
        norm_bound: float | Tensor | None = None,
        costs: ArrayLike | None = None,
        neighbors: Tensor | None = None,
    ) -> None:
        check_noise(noise_std, noise)
        arms = check_arms(arms)
        if isinstance(rewards, np.ndarray):
            rewards = _as_tensor(rewards)
        elif not isinstance(rewards, Tensor):
            rewards = as_tensor("rewards", rewards, device=arms.device)
        check_rewards(rewards, arms)
        check_text("name", name)
        check_norm_bound(norm_bound, optional=True)
        self.arms = arms
        self.noise_std = float(noise_std)
        self.name = name
        self.noise = noise
        self.norm_bound = norm_bound
        self.costs = None if costs is None else check_costs(costs, arms)
        self.neighbors = None if neighbors is None else check_neighbors(neighbors, arms)
        self._rewards = rewards

    @property
    def means(self) -> Tensor:
        """Expected reward of every arm, `A` or `batch_shape x A`, reward units."""
        return self._rewards

    def sample(self, index: Tensor, generators: Sequence[torch.Generator]) -> Tensor:
        """Pull arms: `batch_shape x q` rewards for such an index, NaN where −1; row r draws from `generators[r]`."""
        return noisy_rewards(self, index, generators, self.noise)

    def tasks(self, index: Tensor, generators: Sequence[torch.Generator]) -> list[Task]:
        """The rewards that `sample` draws, one task per pull, in row-major order."""
        return known(self.sample(index, generators), index)

    def to(self, *args: Any, **kwargs: Any) -> Table:
        """The same table on another device or in another dtype (arguments of `Tensor.to`)."""
        message = "arms of a source keep its device and dtype: make the environment from another source."
        require(isinstance(self.arms, Tensor), message, UnsupportedError)
        assert isinstance(self.arms, Tensor)
        try:
            self.arms[:0].to(*args, **kwargs)
        except (TypeError, RuntimeError) as error:
            raise ArgumentError(f"to() takes a device or a dtype, such as 'cpu' or torch.float64, got {args!r}.") from error
        arms, rewards = self.arms.to(*args, **kwargs), self._rewards.to(*args, **kwargs)
        costs = None if self.costs is None else self.costs.to(*args, **kwargs)
        neighbors = None if self.neighbors is None else self.neighbors.to(arms.device)
        moved = Table(arms, rewards, self.noise_std, name=self.name, noise=self.noise, norm_bound=self.norm_bound, costs=costs)
        moved.neighbors = neighbors
        return moved

    def __repr__(self) -> str:
        """Name and sizes."""
        return f"Table({self.name!r}, arms={tuple(self.arms.shape)}, noise_std={self.noise_std}, noise={self.noise!r})"


class Recorded(Environment):
    """Arms with a few recorded rewards each, whose variation is the real noise. A pull draws one of them.

    The expected reward of an arm is the mean of its records, and `noise_std` the root of their pooled variance within an
    arm (the mean squared deviation that a pull has).

    Args:
        arms: `A x d` floating-point features.
        records: `A x r` rewards, reward units; NaN where an arm has fewer than r. Each arm has at least one.
        name: Shown in tables and figures.
        costs: `A`, cost of a pull of each arm (seconds, money), > 0; None if unknown.
        neighbors: `A x k`, arms adjacent to each arm, padded with −1; None if undefined.

    Raises:
        ShapeError: If shapes, dtypes or devices do not agree.
        NonFiniteError: If an arm has no record, or a record is infinite.
    """

    def __init__(
        self,
        arms: Tensor,
        records: Tensor,
        *,
        name: str = "recorded",
        costs: Tensor | None = None,
        neighbors: Tensor | None = None,
    ) -> None:
        checked = check_arms(arms)
        if not isinstance(checked, Tensor):
            raise UnsupportedError("arms of recorded rewards must be a tensor, not a source.")
        arms = checked
        good = isinstance(records, Tensor) and records.ndim == 2 and arms.ndim == 2 and len(records) == len(arms)
        got = tuple(records.shape) if isinstance(records, Tensor) else type(records).__name__
        require(good, f"records must be A x r for the {tuple(arms.shape)} arms, got {got}.", ShapeError)
        alike = records.dtype == arms.dtype and records.device == arms.device
        require(alike, f"records must be {arms.dtype} on {arms.device}, got {records.dtype} on {records.device}.", ShapeError)
        present = ~records.isnan()
        whole = bool(present.any(dim=-1).all()) and not bool(records.isinf().any())
        require(whole, "records: every arm needs at least one record, and none may be infinite.", NonFiniteError)
        check_text("name", name)
        self.arms = arms
        self.name = name
        self.costs = None if costs is None else check_costs(costs, arms)
        self.neighbors = None if neighbors is None else check_neighbors(neighbors, arms)
        # The records of an arm come first, so that a uniform u selects column ⌊u n⌋ of its n records.
        order = (~present).byte().argsort(dim=-1, stable=True)
        self.records = records.gather(-1, order)
        self.counts = present.sum(dim=-1)
        self._means = records.nanmean(dim=-1)
        spread = torch.where(present, records - self._means.unsqueeze(-1), 0.0)
        self.noise_std = float((spread.square().sum() / present.sum()).sqrt())

    @property
    def means(self) -> Tensor:
        """Mean of the records of every arm, `A`, reward units."""
        return self._means

    def sample(self, index: Tensor, generators: Sequence[torch.Generator]) -> Tensor:
        """Pull arms: a uniform draw from the records of each pick; NaN where −1.

        Row r draws from `generators[r]`, one number per pick, in order.
        """
        uniforms = row_draws(self, index, generators, "uniform").to(index.device)
        picked = index.clamp_min(0)
        count = self.counts[picked]
        place = (uniforms * count).long().minimum(count - 1)
        return torch.where(index >= 0, self.records[picked, place], torch.nan)

    def tasks(self, index: Tensor, generators: Sequence[torch.Generator]) -> list[Task]:
        """The rewards that `sample` draws, one task per pull, in row-major order."""
        return known(self.sample(index, generators), index)

    def __repr__(self) -> str:
        """Name and sizes."""
        return f"Recorded({self.name!r}, arms={tuple(self.arms.shape)}, records={self.records.shape[-1]})"


def check_arms(arms: Any) -> Tensor | ArmSource:
    """Arms as a non-empty, finite floating-point tensor `... x A x d`. A source is returned as it is."""
    if isinstance(arms, ArmSource):
        return arms
    arms = as_features("arms", arms)
    if not arms.is_floating_point() or arms.ndim < 2:
        raise ShapeError(f"arms must be a floating-point tensor of shape ... x A x d, got {kind(arms)}.")
    if 0 in arms.shape:
        raise ShapeError(f"arms must hold at least one arm and one feature, got shape {tuple(arms.shape)}.")
    _check_finite("arms", arms)
    return arms


def check_rewards(rewards: Tensor, arms: Tensor | ArmSource) -> None:
    """Refuse rewards unless they are one finite number per arm, of the arms' dtype and device (only device for a source)."""
    as_tensor("rewards", rewards)
    if not isinstance(rewards, Tensor) or rewards.shape != arms.shape[:-1]:
        raise ShapeError(f"rewards must be a tensor of shape {tuple(arms.shape[:-1])}, got {kind(rewards)}.")
    known = (torch.float32, torch.float64) if isinstance(arms, ArmSource) else (arms.dtype,)
    if rewards.dtype not in known or not same_device(rewards.device, arms.device):
        raise ShapeError(f"rewards must be {arms.dtype} on {arms.device} like arms, got {rewards.dtype} on {rewards.device}.")
    _check_finite("rewards", rewards)


def check_costs(costs: ArrayLike, arms: Tensor | ArmSource) -> Tensor:
    """Costs as float64. Refuse them unless they are one finite number > 0 per arm."""
    shape = arms.shape[:-1]
    costs = as_tensor("costs", costs, device=arms.device)
    if costs.is_complex() or costs.shape not in (shape, shape[-1:]):
        raise ShapeError(f"costs must be a tensor of shape {tuple(shape)} or {tuple(shape[-1:])}, got {kind(costs)}.")
    _check_finite("costs", costs)
    if not bool((costs > 0).all()):
        raise ArgumentError(f"costs must be > 0, got {costs.min().item()}.")
    return costs.double()


def check_neighbors(neighbors: Tensor, arms: Tensor | ArmSource) -> Tensor:
    """Refuse neighbours unless they are integers `A x k`, each an arm or −1."""
    as_tensor("neighbors", neighbors)
    whole = isinstance(neighbors, Tensor) and neighbors.dtype in (torch.int64, torch.int32) and neighbors.ndim == 2
    if not whole or len(neighbors) != arms.shape[-2]:
        raise ShapeError(f"neighbors must be integers {arms.shape[-2]} x k, got {kind(neighbors)}.")
    outside = (neighbors < -1) | (neighbors >= arms.shape[-2])
    if bool(outside.any()):
        raise ArmIndexError(f"neighbors must be arms 0 … {arms.shape[-2] - 1} or −1, got {int(neighbors[outside][0])}.")
    return neighbors


def _as_tensor(values: np.ndarray) -> Tensor:
    """A tensor on the same memory, which is never written; a mapped file stays a mapped file."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(values)


def _check_finite(name: str, values: Tensor) -> None:
    finite = values.isfinite()
    if not finite.all():
        place = tuple((~finite).nonzero()[0].tolist())
        raise NonFiniteError(f"{name} must be finite, got {values[place].item()} at {place}.")
