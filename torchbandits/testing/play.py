"""Small problems, runs on them, comparisons of what was learned, and failures in the middle of a call."""

from __future__ import annotations

import copy
import random
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import gpytorch
import numpy as np
import torch
from torch import Tensor

from torchbandits.bandit import Bandit
from torchbandits.types import Selection


class Rewards(Protocol):
    """A table of rewards by the number of the pull."""

    def rewards(self, first_pull: int, index: Tensor) -> Tensor:
        """Rewards of consecutive pulls, the first of which has this number in the run."""
        ...


class Problem:
    """Arms in the unit cube, a smooth function on them, and noise that depends on the number of the pull only.

    Args:
        seed: Of arms, function and noise.
        num_arms: A.
        dim: d.
    """

    def __init__(self, seed: int, num_arms: int = 40, dim: int = 2) -> None:
        rng = np.random.default_rng(seed)
        self.arms = torch.as_tensor(rng.uniform(size=(num_arms, dim)))
        centres, weights = torch.as_tensor(rng.uniform(size=(10, dim))), torch.as_tensor(rng.uniform(-1, 1, size=10))
        self.means = torch.exp(-0.5 * (torch.cdist(self.arms, centres) / 0.3).square()) @ weights
        self.noise = torch.as_tensor(0.1 * rng.normal(size=5_000))

    def rewards(self, first_pull: int, index: Tensor) -> Tensor:
        """Rewards of consecutive pulls of these arms, float64."""
        return self.means[index] + self.noise[first_pull : first_pull + len(index)]


def generator(seed: int) -> torch.Generator:
    """A new CPU generator."""
    return torch.Generator().manual_seed(seed)


def rbf(lengthscale: float | Sequence[float] = 0.4) -> gpytorch.kernels.Kernel:
    """A float64 RBF kernel; with a sequence of lengthscales, a batch of kernels."""
    scales = torch.tensor(lengthscale, dtype=torch.float64)
    kernel = gpytorch.kernels.RBFKernel(batch_shape=scales.shape).double()
    kernel.lengthscale = scales.reshape(*scales.shape, 1, 1)
    return kernel


def proceed(bandit: Bandit, problem: Rewards, pulls: int, most: int = 4, **ask: Any) -> list[int]:
    """Ask and tell until `pulls` further pulls are told, in batches of at most `most`; returns the picks."""
    picks: list[int] = []
    while len(picks) < pulls:
        told = int(bandit.pulls)
        selection = bandit.ask(limit=min(most, pulls - len(picks)), **ask)
        assert len(selection) > 0, "ask() must pick at least one arm while arms are on offer and limit= allows it"
        bandit.tell(selection, problem.rewards(told, selection.index))
        picks += selection.index.tolist()
    return picks


def proceed_rows(bandit: Bandit, problems: Sequence[Rewards], limits: Tensor, rounds: int) -> list[list[int]]:
    """`proceed` for batch rows, each capped by its limit, `rows` or `rounds x rows`. Masked places are told NaN. Returns the
    picks of each row."""
    picks: list[list[int]] = [[] for _ in problems]
    for limit in limits.expand(rounds, -1):
        selection = bandit.ask(limit=limit)
        rewards = torch.full(selection.index.shape, torch.nan, dtype=torch.float64)
        assert torch.equal(selection.mask, selection.index >= 0), "places that are masked must have index −1, and no others"
        for row, problem in enumerate(problems):
            mine = selection.mask[row]
            rewards[row][mine] = problem.rewards(len(picks[row]), selection.index[row][mine])
            picks[row] += selection.index[row][mine].tolist()
        bandit.tell(selection, rewards)
    return picks


def everything(bandit: Bandit) -> dict[str, Any]:
    """A copy of all that a bandit has learned, its generators included."""
    return copy.deepcopy(bandit.state_dict())


def generators_of(bandit: Bandit) -> list[list[int]]:
    """States of the generators, one per batch row."""
    return [g.get_state().tolist() for g in bandit.generators]


def rewards_of(selection: Selection, problem: Rewards) -> Tensor:
    """Rewards of open picks, always the same ones."""
    return problem.rewards(100, selection.index)


def differences(a: Any, b: Any, path: str = "") -> list[str]:
    """Places at which two nested states differ, bit for bit."""
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        if a.dtype != b.dtype or a.shape != b.shape:
            return [f"{path}: {a.dtype} {tuple(a.shape)} against {b.dtype} {tuple(b.shape)}"]
        gap = (a.nan_to_num(12345.0).double() - b.nan_to_num(12345.0).double()).abs()
        return [f"{path}: by {float(gap.max())}"] if gap.numel() and float(gap.max()) > 0 else []
    if isinstance(a, dict) and isinstance(b, dict):
        if list(a) != list(b):
            return [f"{path}: keys {list(a)} against {list(b)}"]
        return [d for k in a for d in differences(a[k], b[k], f"{path}.{k}")]
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        if len(a) != len(b):
            return [f"{path}: {len(a)} entries against {len(b)}"]
        return [d for k, (x, y) in enumerate(zip(a, b, strict=True)) for d in differences(x, y, f"{path}[{k}]")]
    return [] if a == b else [f"{path}: {a!r} against {b!r}"]


def check_same(before: Any, after: Any, what: str) -> None:
    """Fail with the first differences of two nested states."""
    found = differences(before, after)
    assert not found, f"{what}; these differ: {found[:3]}"


def size_of(value: Any) -> int:
    """Bytes of the tensors in a nested state; 8 for everything else."""
    if isinstance(value, Tensor):
        return value.numel() * value.element_size()
    if isinstance(value, dict):
        return sum(map(size_of, value.values()))
    if isinstance(value, list | tuple):
        return sum(map(size_of, value))
    return 8


def check_raises(error: type[Exception], call: Callable[[], Any], what: str, naming: str = "") -> None:
    """Fail unless the call raises this error with this text in its message."""
    raised: Exception | None = None
    try:
        call()
    except Exception as caught:
        raised = caught
    if not isinstance(raised, error):
        got = "raised nothing" if raised is None else f"raised {type(raised).__name__}: {raised}"
        raise AssertionError(f"{what} must raise {error.__name__}, and {got}") from raised
    assert naming in str(raised), f"the error of {what} must mention {naming!r}, got: {raised}"


@contextmanager
def global_generators_seeded(seed: int) -> Iterator[None]:
    """Seed the global generators of torch and Python, check that the block draws from none of them, and put them back."""

    def states() -> tuple[Any, ...]:
        return torch.random.get_rng_state().tolist(), np.random.get_state()[1].tolist(), random.getstate()  # type: ignore[index]  # noqa: NPY002

    before = torch.random.get_rng_state(), random.getstate()
    torch.random.set_rng_state(generator(seed).get_state())
    random.seed(seed)
    try:
        seeded = states()
        yield
        for name, was, now in zip(("torch", "NumPy", "random"), seeded, states(), strict=True):
            assert was == now, f"the global generator of {name} was drawn from: draw from the generators that are given"
    finally:
        torch.random.set_rng_state(before[0])
        random.setstate(before[1])


class Interrupted(Exception):
    """Raised by `Interruption`."""


class Interruption(torch.overrides.TorchFunctionMode):
    """Counts calls of torch, and fails the first from a given number on that is not part of undoing the call.

    Args:
        at: The number of the call; infinity to count only.
    """

    def __init__(self, at: float) -> None:
        super().__init__()
        self.at, self.calls = at, 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Count, and raise `Interrupted` once."""
        self.calls += 1
        # Leaving `torch.no_grad()` can't fail, and if it did gradients would be off from then on.
        due = self.calls >= self.at and func is not torch._C._set_grad_enabled
        if due and not any(frame.name == "restore" for frame in traceback.extract_stack(limit=12)):
            self.at = torch.inf
            raise Interrupted
        return func(*args, **(kwargs or {}))
