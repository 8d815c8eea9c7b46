"""What a bandit has learned: read, saved, moved."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor

from torchbandits.botorch.model import BanditModel
from torchbandits.botorch.of_run import model_of_run
from torchbandits.errors import RankError, ShapeError, StateError, UnsupportedError, require
from torchbandits.policies import Policy, State
from torchbandits.posteriors import GaussianProcess, PartitionedProcess
from torchbandits.sources import ArmSource
from torchbandits.types import Recommendation, Selection

Own = TypeVar("Own", bound="Learned")


class Learned(ABC):
    """Recommendations, posterior, counts: everything that can be read off a run without changing it; and saving it."""

    policy: Policy
    _state: State
    _open: Selection | None
    _synced: bool

    @abstractmethod
    def _sync_pending(self) -> None:
        """Hallucinate what is open in the state."""

    def best_arm(self) -> Tensor:
        """The recommended arm, `batch_shape`: the index of `best()`, −1 before the first pull. Cost O(u)."""
        return self._state.best_arm()

    def best(self, k: int = 1) -> Recommendation:
        """The k arms with the highest posterior mean among those pulled, best first. Cost O(u)."""
        require(k >= 1, f"k must be at least 1, got {k}.")
        return self._state.best(k)

    @property
    def posterior(self) -> GaussianProcess | PartitionedProcess:
        """Callable on any points: `Marginals(mean, variance)` in reward units; picks pending now shrink variances only."""
        self._sync_pending()
        return self._state.process

    @property
    def arms(self) -> Tensor | ArmSource:
        """The arms, `A x d` or `batch_shape x A x d`: a tensor, or the source that they are read from."""
        rows = self._state.rows
        return rows.source if rows.streamed else rows.arms

    @property
    def generators(self) -> tuple[torch.Generator, ...]:
        """One generator a batch row, as given and advanced since."""
        return self._state.generators

    @property
    def batch_shape(self) -> torch.Size:
        """Leading dimensions of everything that is asked and told."""
        return self._state.rows.batch_shape

    @property
    def device(self) -> torch.device:
        """Where arms and posterior live."""
        return self.arms.device

    @property
    def counts(self) -> Tensor:
        """Pulls learned of each arm, `batch_shape x A`; exact duplicates share those of their entry."""
        return self._state.rows.counts(self._state.statistics.weights)

    @property
    def pulls(self) -> Tensor:
        """Pulls told in all, `batch_shape`."""
        return self._state.told

    @property
    def dictionary(self) -> Tensor:
        """Arms in the dictionary S in order of first pull, `batch_shape x m`, −1 where padded or from outside the arms."""
        rows, mask = self.posterior.dictionary_rows()
        arm = self._state.rows.arm_of_row
        return torch.where(mask, arm.gather(-1, rows) if arm.shape[-1] else rows, -1)

    @property
    def width(self) -> Tensor:
        """What multiplies the posterior standard deviation now, `batch_shape`."""
        return self.policy.width(self._state)

    def model(self) -> BanditModel:
        """What has been learned as a BoTorch model: posterior, kernel, λ, dictionary and prior mean, tabulated on the arms.

        `PolicyAcquisition(bandit.model(), policy)(arms.unsqueeze(-2))` are the scores that `ask` ranks: path-dependent widths
        are the run's own. Picks that are pending are not in it: pass their points as `X_pending`. It is a copy, which later
        tells do not change, with one observation a distinct point: the average of its rewards, weighted by its pulls.

        Raises:
            UnsupportedError: For policies without one Gaussian process: heuristics, `pi_gp_ucb` and `soful`.

        Cost: as for a posterior from data, O(u³) for an exact one; O(A m²) when its arms are first scored.
        """
        return model_of_run(self.policy, self._state)

    # ------------------------------------------------------------------ saving and moving

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to resume exactly, the open selection and the generators included: tensors and numbers."""
        if not self._state.rows.sharded:  # what is open is saved: nothing is asked of ranks that may be lost
            self._sync_pending()
        saved: dict[str, Any] = {"state": self._state.state_dict(), "open": None}
        if self._open is not None:
            saved["open"] = {"index": self._open.index, "mask": self._open.mask}
        return copy.deepcopy(saved)

    def load_state_dict(self: Own, state_dict: dict[str, Any]) -> Own:
        """Resume from a `state_dict` of a bandit with the same policy and arms; another one changes nothing. Returns self."""
        before, loaded = copy.deepcopy(self._state.state_dict()), False
        check_state(state_dict, before)
        try:
            with self._whole_or_not():
                self._state.load_state_dict(copy.deepcopy(state_dict["state"]))
                self._open = None
                if (opened := state_dict["open"]) is not None:
                    index = opened["index"].to(self.device)
                    self._open = Selection(self._state.rows.points(index), index, opened["mask"].to(self.device))
                if self._state.rows.sharded and self._state.table is not None:
                    self._state.table.sweep_()
            self._synced, loaded = not self._state.rows.sharded, True
        except RankError:
            raise
        except RuntimeError as error:
            raise StateError(f"the saved state is of another kind of policy, kernel or arms: {error}") from error
        finally:
            if not loaded:  # torch writes in place to what fits, before it says what does not
                self._state.load_state_dict(before)
        return self

    def to(self: Own, device: torch.device | str) -> Own:
        """Move arms and posterior; factors stay float64. Returns self.

        Raises:
            UnsupportedError: For arms that are read from a source, which names the device at its start.
        """
        require(
            not self._state.rows.streamed or torch.device(device) == self.device,
            f"arms are swept on {self.device}, where their source puts them: give a source of device={str(device)!r} to a new "
            "Bandit, and load_state_dict() what was learned.",
            UnsupportedError,
        )
        self._state.to(device)
        self._state.forget_derived_()
        if self._open is not None:
            o = self._open
            self._open = Selection(o.points.to(device), o.index.to(device), o.mask.to(device))
        return self

    @contextmanager
    def _whole_or_not(self, *, draws: bool = True) -> Iterator[None]:
        """What is done inside is done whole: a failure leaves the bandit as it was. `draws` says whether it may draw."""
        state, opened, done = self._state, self._open, False
        restore = state.snapshot(draws=draws)
        try:
            yield
            done = True
        finally:
            if not done:
                restore()
                self._state, self._open, self._synced = state, opened, False


def check_state(state_dict: Any, own: dict[str, Any]) -> None:
    """What `Bandit.state_dict` returned for the same kind of policy, the same arms and batch rows."""
    require(
        isinstance(state_dict, dict) and {"state", "open"} <= state_dict.keys(),
        "expected what Bandit.state_dict() returned, a dictionary with 'state' and 'open'.",
    )
    saved = state_dict["state"]
    differ = sorted(saved.keys() ^ own.keys())
    require(not differ, f"the saved state is of another kind of policy: it differs in {', '.join(differ[:3])}.", StateError)
    if "rows.row_of_arm" not in own:  # arms of several ranks: their fingerprint tells
        return
    shape, mine = (tuple(state["rows.row_of_arm"].shape) for state in (saved, own))
    if (name := "box.corners" if "box.corners" in own else "tree.division.box") in own:  # its arms are those found so far
        boxes = saved[name], own[name]
        same = boxes[0].shape == boxes[1].shape and torch.equal(boxes[0].cpu(), boxes[1].cpu())
        require(same, f"the saved state is of the box {boxes[0].tolist()}, this bandit's is {boxes[1].tolist()}.", StateError)
        return
    require(
        shape == mine,
        f"the saved state is of {shape[-1]} arms in batch rows {shape[:-1]}, this bandit of {mine[-1]} in {mine[:-1]}.",
        ShapeError,
    )
