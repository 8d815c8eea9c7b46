"""Ask and tell."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from torchbandits.errors import NumericalError, StateError, require
from torchbandits.policies import Policy
from torchbandits.posteriors import GaussianProcess, PartitionedProcess
from torchbandits.selections import joined, without
from torchbandits.types import Pulls, Recommendation, Report, Selection
from torchbandits.validation import (
    check_available,
    check_domain,
    check_generators,
    check_history,
    check_limit,
    check_more,
    check_picks,
    check_rewards,
    check_state,
)


class Bandit:
    """Chooses which arms to evaluate next, and learns from the rewards.

    Args:
        policy: What chooses; frozen and reusable. Its kernel is deep-copied.
        arms: `A x d`, or `batch_shape x A x d`, floating point and finite; float64 is the accurate lane.
        bounds: Instead of arms a box `2 x d` or `batch_shape x 2 x d`, lower corner first: for `ada_bkb`, which finds its arms.
        generator: One CPU `torch.Generator`, or a list of one a batch row (`batch_shape` is then its length, broadcast
            with the kernel's and the arms'). Held, and advanced by draws. A fresh one with seed 0 by default.

    Raises:
        ShapeError: If the arms are empty, of the wrong dtype or shape, or batch shapes do not broadcast.
        NonFiniteError: If an arm has a NaN or an infinite feature.
    """

    def __init__(
        self,
        policy: Policy,
        arms: Tensor | None = None,
        *,
        bounds: Tensor | None = None,
        generator: torch.Generator | Sequence[torch.Generator] | None = None,
    ) -> None:
        require(isinstance(policy, Policy), f"policy must be a torchbandits policy, got {type(policy).__name__}.")
        domain = check_domain(arms, bounds)
        generators, batch_shape = check_generators(generator, domain, getattr(policy, "kernel", None))
        self.policy = policy
        self._state = (policy.init if bounds is None else policy.init_box)(domain, generators, batch_shape)
        self._open: Selection | None = None
        self._synced = True  # whether the state knows what is open

    # ------------------------------------------------------------------ ask and tell

    def ask(self, limit: int | Tensor | None = None, *, more: int | None = None, available: Tensor | None = None) -> Selection:
        """The picks to evaluate next: the open selection, as long as there is one.

        Args:
            limit: Most picks, one number or one a batch row (`batch_shape`). Only a new batch heeds it.
            more: Extend the open selection by this many picks a row, whatever the batch rule says, treating all that is
                untold as pending. The whole open selection is returned, earlier picks first.
            available: `A` or `batch_shape x A` booleans, arms on offer; all of them by default.

        Returns:
            The open selection: picks asked for and neither told nor forgotten.

        Raises:
            ArgumentError: If a limit is negative, or no arm is on offer; nothing has changed then.
        """
        if self._open is not None and more is None:
            check_limit(limit, self.batch_shape, self.device)
            return self._open
        self._sync_pending()
        selection, evidence = self.policy.select(
            self._state,
            limit=check_limit(limit, self.batch_shape, self.device),
            available=check_available(available, self.batch_shape, self.arms.shape[-2], self.device),
            exactly=check_more(more),
        )
        opened = joined(self._open, selection) if bool(selection.mask.any()) else self._open
        for generator, state in zip(self._state.generators, evidence.generator_states, strict=False):
            generator.set_state(state)
        if opened is not self._open:
            self._set_open(opened)
        return selection if opened is None else opened

    def tell(self, selection: Selection | Tensor, rewards: Tensor) -> Report:
        """Learn the rewards of picks, in any order, of a whole batch or a part of it.

        Args:
            selection: What `ask` returned, or a part of it (`selection[:3]`), or plain arm indices `batch_shape x q`.
                Picks that were never asked for are welcome (history from elsewhere): `Report.unasked` counts them.
            rewards: `batch_shape x q`, reward units; masked places are ignored.

        Returns:
            The report after the update.

        Raises:
            ShapeError, NonFiniteError, ArmIndexError: On bad input, before anything is learned.
            NumericalError: If the posterior broke down; the state is as before the call.
        """
        opened = self._open
        whole = opened is not None and selection is opened  # what ask() returned needs no second look
        index, mask = (opened.index, opened.mask) if whole and opened is not None else self._picks(selection)
        y = check_rewards(rewards, index, mask, self.device)
        ones = mask.to(torch.float64)
        y = torch.where(mask, y, 0.0)
        pulls = Pulls(counts=ones, sums=y, squares=y * y, index=index, mask=mask)
        remaining, unasked = (None, ones.sum(dim=-1).zero_()) if whole else self._settled(index, mask)
        return self._learn(pulls, remaining, unasked)

    def observe(self, points_or_index: Tensor, counts: Tensor, sums: Tensor, squares: Tensor | None = None) -> Report:
        """Learn from history that is already summed.

        Args:
            points_or_index: Arm indices `batch_shape x h` (integers), or points `batch_shape x h x d` that need not be arms.
            counts: `batch_shape x h`, positive numbers of pulls (or weights).
            sums: `batch_shape x h`, sums of rewards.
            squares: `batch_shape x h`, sums of squared rewards; sums²/counts where not given.

        Returns:
            The report after the update. Cost: a refit, and a sweep over the arms.
        """
        pulls = check_history(points_or_index, counts, sums, squares, self.batch_shape, self.arms)
        return self._learn(pulls, self._open, pulls.counts.sum(dim=-1))

    def forget(self, selection: Selection | Tensor) -> None:
        """Give up on picks that were asked for and will never be told; their hallucination is undone.

        Raises:
            StateError: If one of them is not pending; nothing has changed then.
        """
        index, mask = self._picks(selection)
        remaining, unasked = self._settled(index, mask)
        require(
            not bool((unasked > 0).any()),
            "some of these picks are not pending: forget only what ask() returned and neither tell nor forget has settled.",
            StateError,
        )
        self._set_open(remaining)

    # ------------------------------------------------------------------ what was learned

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
    def arms(self) -> Tensor:
        """The arms, `A x d` or `batch_shape x A x d`; of a box those found so far (later ones come after them)."""
        return self._state.rows.arms

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

    # ------------------------------------------------------------------ saving and moving

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to resume exactly, the open selection and the generators included: tensors and numbers."""
        self._sync_pending()
        saved: dict[str, Any] = {"state": self._state.state_dict(), "open": None}
        if self._open is not None:
            saved["open"] = {"index": self._open.index, "mask": self._open.mask}
        return copy.deepcopy(saved)

    def load_state_dict(self, state_dict: dict[str, Any]) -> Bandit:
        """Resume from a `state_dict` of a bandit with the same policy and arms. Returns self."""
        check_state(state_dict, self._state.state_dict())
        self._state.load_state_dict(copy.deepcopy(state_dict["state"]))
        opened, self._synced = state_dict["open"], True
        if opened is None:
            self._open = None
        else:
            index = opened["index"].to(self.device)
            self._open = Selection(self._state.rows.points(index), index, opened["mask"].to(self.device))
        return self

    def to(self, device: torch.device | str) -> Bandit:
        """Move arms and posterior; factors stay float64. Returns self."""
        self._state.to(device)
        self._state.forget_derived_()
        if self._open is not None:
            o = self._open
            self._open = Selection(o.points.to(device), o.index.to(device), o.mask.to(device))
        return self

    # ------------------------------------------------------------------ inside

    def _learn(self, pulls: Pulls, remaining: Selection | None, unasked: Tensor) -> Report:
        """Update the state, or leave it as it was."""
        restore, opened, done = self._state.snapshot(draws=self.policy.draws_on_update), self._open, False
        try:
            if bool((pulls.counts > 0).any()):
                self._state = self.policy.update(self._state, pulls)
                self._state.add_told_(pulls.counts)
            self._set_open(remaining)
            report = self._report(pulls, unasked)
            done = True
        finally:
            if not done:
                restore()
                self._open, self._synced = opened, False
        return report

    @torch.no_grad()
    def _report(self, pulls: Pulls, unasked: Tensor) -> Report:
        state = self._state
        bounds = self.policy.bounds(state)
        certificate = torch.full_like(state.log_det, torch.nan) if bounds is None else bounds[0] - bounds[1]
        broken = ~torch.isfinite(certificate)
        if bounds is not None and bool(broken.any()):
            raise NumericalError(
                f"the posterior is not finite in batch rows {broken.reshape(-1).nonzero().reshape(-1).tolist()}; the pulls "
                "were not learned. Check the size of the rewards and the kernel's hyper-parameters, or use a larger λ."
            )
        told = pulls.counts.sum(dim=-1)
        size = state.process.dictionary_size if state.tabulated else torch.zeros_like(state.statistics.num_rows)
        return Report(
            pulls=self.pulls,
            batch_size=told,
            distinct_arms=state.statistics.num_rows,
            dictionary_size=size,
            width=self.width,
            information_gain=0.5 * state.log_det if state.tabulated else torch.full_like(told, torch.nan),
            certificate=certificate,
            unasked=unasked,
        )

    def _set_open(self, selection: Selection | None) -> None:
        self._open, self._synced = selection, False

    def _sync_pending(self) -> None:
        """Hallucinate what is open in the state, when someone looks at it."""
        pending = self._open is not None or bool(self._state.pending_index.shape[-1])
        if pending and not self._synced:
            none = torch.zeros(*self.batch_shape, 0, dtype=torch.int64, device=self.device)
            index, mask = (none, none.bool()) if self._open is None else (self._open.index, self._open.mask)
            self._state.set_pending_(index, mask)
            self._synced = True

    def _settled(self, index: Tensor, mask: Tensor) -> tuple[Selection | None, Tensor]:
        """The open selection less these picks, and how many of them were not open."""
        return without(self._open, self._state.rows.entry(index), mask, self._state.rows.points)

    def _picks(self, selection: Selection | Tensor) -> tuple[Tensor, Tensor]:
        return check_picks(selection, self.batch_shape, self.arms.shape[-2], self.device)
