"""Inputs of the diagnostics, read from a bandit without changing it, and the wording of their findings."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from torchbandits.bandit import Bandit
from torchbandits.checks import is_finite
from torchbandits.errors import ArgumentError, StateError, UnsupportedError, require
from torchbandits.policies import Composed, State
from torchbandits.policies.composed import noise_share
from torchbandits.policies.joint import Joint
from torchbandits.policies.state import PosteriorState
from torchbandits.posteriors import GaussianProcess, PartitionedProcess
from torchbandits.posteriors.factors import Factors

WITH_POSTERIOR = "gp_ucb, bkb, batch_bkb and the other policies on one Gaussian process"


def told_state(bandit: Bandit) -> State:
    """The state of a bandit. Raises `StateError` if a batch row was not told any reward yet, and `UnsupportedError` for several
    outcomes with different noise, which no single number describes."""
    require(isinstance(bandit, Bandit), f"bandit must be a torchbandits.Bandit, got {type(bandit).__name__}.")
    policy = bandit.policy
    alike = not isinstance(policy, Joint) or len(set(zip(policy.noise_stds, policy.regularizations, strict=True))) == 1
    message = (
        "diagnostics compare all batch rows with one noise and λ, and the outcomes of this bandit have their own: make a "
        "torchbandits.Bandit of each outcome's model, and tell it the rewards of this outcome."
    )
    require(alike, message, UnsupportedError)
    state = bandit.loop.state
    require(
        bool((state.statistics.pulls > 0).all()),
        "no reward was told yet in at least one batch row: tell rewards first.",
        StateError,
    )
    return state


def with_posterior(state: State, what: str) -> State:
    """The same state. Raises `UnsupportedError` if the policy keeps no posterior."""
    require(
        state.tabulated,
        f"{what} needs a posterior, which this policy does not keep: {WITH_POSTERIOR} do. noise() needs none.",
        UnsupportedError,
    )
    return state


def gaussian(state: State, what: str, instead: str) -> GaussianProcess:
    """The single Gaussian process of the state. Raises `UnsupportedError` with an alternative if there is none."""
    process = with_posterior(state, what).process
    if not isinstance(process, GaussianProcess):
        raise UnsupportedError(
            f"{what} needs one Gaussian process, and pi_gp_ucb keeps one a cell: {instead}, or use {WITH_POSTERIOR}."
        )
    return process


@contextmanager
def factors_of(process: GaussianProcess) -> Iterator[Factors]:
    """The factors of a posterior. They are dropped afterwards if they did not exist before, so that later pulls don't have to
    update them."""
    restore = process.snapshot()
    try:
        yield process.fit()
    finally:
        restore()


def averages(state: State) -> Tensor:
    """Average reward of every distinct point, `batch_shape x u`, reward units; 0 without pulls."""
    statistics = state.statistics
    return torch.where(statistics.pulled, statistics.sums / statistics.weights, 0.0)


def row_mean(state: State) -> Tensor:
    """Posterior mean at every distinct point, `batch_shape x u`, reward units."""
    arm = state.rows.arm_of_row
    mean = state.arm_mean().gather(-1, arm.clamp_min(0))
    process = state.process
    if bool(((arm < 0) & state.statistics.mask).any()) and isinstance(process, GaussianProcess):
        with factors_of(process):
            mean = torch.where(arm < 0, process.marginals(state.statistics.points, None).mean, mean)
    return mean


def row_leverage(state: State) -> Tensor:
    """Posterior variance / λ at every distinct point given the rewards told, `batch_shape x u`."""
    assert isinstance(state, PosteriorState)
    process = state.process
    if isinstance(process, GaussianProcess) and bool((state.rows.arm_of_row < 0).any()):
        with factors_of(process):
            return state.row_leverage()
    return state.row_leverage()


def noise_of(bandit: Bandit, given: float | None) -> float:
    """Standard deviation of the noise: the given one, else the fitted one, else the policy's. Raises `ArgumentError` if there
    is none."""
    value = believed_noise(bandit) if given is None else given
    if not is_finite(value) or not value >= 0:
        hint = ": this policy has none, give it" if value is None else ""
        raise ArgumentError(f"noise_std must be a finite number ≥ 0, got {value}{hint}.")
    return float(value)


def believed_noise(bandit: Bandit) -> Any:
    """`noise_std` of the policy, or the fitted one if `fit_kernel_(noise=True)` has changed λ; None if there is none."""
    # Outcomes with the same noise have the policy of their engine.
    policy = bandit.policy.engine if isinstance(bandit.policy, Joint) else bandit.policy
    process = bandit.loop.state.process if bandit.loop.state.tabulated else None
    if (
        isinstance(policy, Composed)
        and isinstance(process, GaussianProcess)
        and process.regularization != policy.regularization
    ):
        return math.sqrt(process.regularization * noise_share(policy.noise_std, policy.regularization))
    return getattr(policy, "noise_std", None)


def check_levels(levels: Any) -> tuple[float, ...]:
    """Nominal levels, each in (0, 1). Raises `ArgumentError` for anything else."""
    good = isinstance(levels, Sequence) and len(levels) > 0 and all(is_finite(p) and 0 < p < 1 for p in levels)
    require(good, f"levels must be numbers in (0, 1), got {levels!r}.")
    return tuple(levels)


def remarks(state: State) -> list[str]:
    """Caveats about the statistics behind every number."""
    notes = []
    weighted = getattr(state.records, "weighted", False)
    if not weighted and bool((state.told > state.statistics.pulls * (1 + 1e-9)).any()):
        notes.append("only pulls that the policy's memory kept are in these numbers")
    return notes


def oversized(process: GaussianProcess | PartitionedProcess, noise_std: float) -> bool:
    """Whether λ was chosen for a theorem rather than as the variance of the noise, so that the posterior is too wide."""
    return process.regularization > 2 * noise_std**2


def composed(policy: object, what: str) -> Composed:
    """The policy. Raises `UnsupportedError` unless it is one of the engine's."""
    if not isinstance(policy, Composed):
        raise UnsupportedError(f"{what} has no meaning for {type(policy).__name__}: {WITH_POSTERIOR} have it.")
    return policy


# ------------------------------------------------------------------ words


def spoken(value: Tensor, form: str = ".3g") -> str:
    """A single number, or the range over a batch."""
    low, high = (format(float(v), form) for v in (value.amin(), value.amax()))
    return low if low == high else f"{low} … {high}"


def worst_row(bad: Tensor, badness: Tensor) -> tuple[tuple[int, ...], str]:
    """The bad batch row with the largest badness (`batch_shape` each), and words that identify it."""
    flat = torch.where(bad, badness, -torch.inf).reshape(-1).argmax()
    row = tuple(int(i) for i in torch.unravel_index(flat, bad.shape)) if bad.dim() else ()
    if not row:
        return row, ""
    place = row[0] if len(row) == 1 else row
    return row, f"batch row {place} ({int(bad.sum())} of {bad.numel()} rows): "


def paragraph(text: str, found: Sequence[str], notes: Sequence[str]) -> str:
    """One paragraph: the measurement, its notes, its warnings."""
    return " ".join([text, *(f"Note: {note}." for note in notes), *(f"WARNING: {warning}" for warning in found)])
