"""Workers: several processes that evaluate the picks of one run, each as soon as it is idle."""

from __future__ import annotations

import os
import secrets
import socket
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from torchbandits.bandit import Bandit
from torchbandits.calls import one_at_a_time
from torchbandits.checks import (
    as_path,
    as_tensor,
    check_noise_var,
    check_observed,
    check_picks,
    check_rewards,
    check_state,
    check_text,
    check_whole,
    explains_keywords,
    is_finite,
    positive,
)
from torchbandits.display import Readable, Shown, count, numbers, pairs
from torchbandits.errors import (
    DataError,
    JournalWarning,
    NonFiniteError,
    NumericalError,
    ShapeError,
    StateError,
    TorchBanditsError,
    UnsupportedError,
    require,
)
from torchbandits.gradients import outside_inference_mode
from torchbandits.journal import Event, Pick, SharedStore, describe_run, held, pack, unpack
from torchbandits.journal.gathered import GatheredCalls
from torchbandits.outcome_bandit import OutcomeBandit, rewards_by_outcome
from torchbandits.policies import Policy
from torchbandits.policies.joint import Joint
from torchbandits.sources import ArmSource
from torchbandits.stopping import Decision, Rule
from torchbandits.types import ArrayLike, Selection

_HISTORY = ("points_or_index", "counts", "sums", "squares")


@dataclass(frozen=True)
class Lease:
    """A pick to evaluate: `points` `1 x d` and `index` `1`, held until `expires` (seconds since 1970). `attempts` is the number
    of times it was handed out, and `run` identifies its store: a worker on another store raises an error for it."""

    number: int
    points: Tensor
    index: Tensor
    expires: float
    attempts: int
    run: str = ""


class Worker(Readable):
    """Ask for one pick at a time and tell its reward when it is known, in parallel with other workers on the same file.

    Each process makes its own `Worker` on the same path, with the same policy, arms and costs. The file holds all picks and
    rewards in one order. `tell` writes a reward without learning it: `ask` learns all rewards told since its last call and then
    selects a pick, with all open picks as pending. A pick is held for `lease` seconds; if no reward was told by then, for
    example because its worker died, it is handed out again. The first reward of a pick counts; a later one raises an error. If
    a process ends at any moment, no reward is lost for which `tell` has returned. After an interrupt (Ctrl-C) the worker can
    still be used.

    The state of a worker is determined by the file: arms, rewards, open picks and generators exactly. The numbers of the
    posterior are determined up to rounding if the order of tells does not matter (exact Gaussian processes and finite features
    learn several tells by one update), and exactly for all other policies, because every worker repeats all events in order.
    Each pick is selected by one worker, and recorded.

    Args:
        policy: The policy that selects arms, for a single batch row. It may have several outcomes.
        arms: `A x d`, as for `Bandit`.
        store: Path of the SQLite file on a local disk; it is created if it does not exist. If it is deleted or replaced while
            it is in use, every call raises a `DataError`.
        lease: Seconds that an evaluation may take, unless it is renewed.
        name: Name of the worker, for messages; host, process and a random part by default.
        generator: As for `Bandit`; only the generator of the worker that creates the file is used.
        bounds: A box instead of arms, as for `Bandit`.
        costs: As for `Bandit`.
        known: As for `OutcomeBandit`.
        observed: History that all workers learn before the first pick, `(points_or_index, counts, sums)` or
            `(points_or_index, counts, sums, squares)`, as `observe` of the bandit takes it. The worker that creates the file
            writes it there; those that join may leave it out. It does not count as told.
        every: Number of events between saved states in the file, so that a new worker need not learn all events.

    Raises:
        StateError: If the file belongs to another run, or to one that began with another history.
        DataError: If the file is not a store of workers, or cannot be read or written.
        UnsupportedError: For several batch rows.
    """

    @explains_keywords
    @outside_inference_mode
    def __init__(
        self,
        policy: Policy,
        arms: ArrayLike | ArmSource | None = None,
        *,
        store: str | os.PathLike[str],
        lease: float = 3600.0,
        name: str | None = None,
        generator: torch.Generator | None = None,
        bounds: ArrayLike | None = None,
        costs: ArrayLike | None = None,
        known: Mapping[str, ArrayLike] | None = None,
        observed: Sequence[ArrayLike] | None = None,
        every: int = 200,
    ) -> None:
        positive("lease", lease)
        check_whole("every", every)
        if name is not None:
            check_text("name", name)
        path = as_path("store", store)
        check_observed(observed)
        single = generator is None or isinstance(generator, torch.Generator)
        require(single, "workers share a run of one batch row: pass one torch.Generator, generator=.", UnsupportedError)
        generator = generator or torch.Generator().manual_seed(0)
        start = generator.get_state()
        fresh = partial(_bandit, policy, arms, bounds, costs, known)
        bandit = fresh(generator=generator)  # Raises the errors of `Bandit` before the file is created.
        one = torch.Size([len(policy.outcomes)] if policy.outcomes else [])
        message = "workers share a run of one batch row: make a Bandit for several."
        require(bandit.batch_shape == one, message, UnsupportedError)
        history = None
        if observed is not None:
            bandit.observe(*observed)
            named = zip(_HISTORY, observed, strict=False)
            history = {name: pack(as_tensor(name, values)) for name, values in named if values is not None}
        domain = as_tensor("bounds", bounds) if bounds is not None else bandit.arms
        described = describe_run(policy, domain, costs, bandit.loop.state.rows.known)
        self.lease, self._every = lease, every
        self.name = name or f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(2)}"
        self._store = SharedStore(path)
        self._fresh, self._bandit, self._stale = fresh, bandit, True
        self._start = self._begun(self._store.begin(described, [pack(start)], history))
        self._seen = self._saved = 0
        self._known: tuple[Any, ...] = ()
        self._catch_up()

    # ------------------------------------------------------------------ ask and tell

    @one_at_a_time
    def ask(self, limit: int | None = None) -> Lease | None:
        """Return a pick to evaluate: one whose lease expired, or a new one.

        Args:
            limit: Maximum number of picks of the whole run, told and open; beyond it no new pick is made.

        Returns:
            The pick; None if `limit` is reached and all open picks are held by workers. Ask again later, until `told` equals
            `limit`.

        Raises:
            StateError: If the policy has no further pick, as one that pulls each arm once at a time while workers hold all of
                them.
        """
        check_whole("limit", limit, 0, otherwise="for no limit")
        if self._room(limit):
            self._catch_up()  # most of the work, before other workers have to wait
        pick = self._store.transaction(partial(self._picked, limit))
        if pick is None:
            return None
        self._save()
        index = held(pick.content["index"]).to(self._bandit.device)
        points = self._points(pick.content, index)
        if self._bandit.policy.outcomes:
            points, index = points[0], index[0]
        return Lease(pick.number, points, index, pick.expires, pick.attempts, self._store.id)

    @one_at_a_time
    def tell(
        self,
        lease: Lease,
        reward: ArrayLike | Mapping[str, Any],
        *,
        failures: str = "error",
        noise_var: ArrayLike | None = None,
    ) -> None:
        """Record the reward of a pick durably; each worker learns it at its next `ask`.

        Args:
            lease: A pick that `ask` returned.
            reward: A number, reward units. For several outcomes, a number for each, NaN where it was not measured, or numbers
                by name.
            failures: Treatment of a NaN, as for `Bandit.tell`, or `OutcomeBandit.tell`.
            noise_var: Noise variance of this reward, as for `Bandit.tell`; one number for all outcomes, if there are several.

        Raises:
            NonFiniteError, ShapeError: If the reward is not one finite number.
            NumericalError: If its square overflows float64.
            StateError: If the pick was told or forgotten before, or belongs to another store. After any of these errors nothing
                has changed.
        """
        self._check_lease(lease)
        names = self._bandit.policy.outcomes
        if names:
            self._tell_outcomes(lease, reward, failures, noise_var)
            return
        given = as_tensor("reward", reward, torch.float64).detach().cpu()
        require(given.numel() == 1, f"reward must be one number, got shape {tuple(given.shape)}.", ShapeError)
        failed = failures == "error" and not bool(given.isfinite())
        message = f"reward must be finite, got {given.item()}: forget(lease) an evaluation that failed, or failures='forget'."
        require(not failed, message, NonFiniteError)
        one = torch.ones(1, dtype=torch.bool)
        y = check_rewards(given.reshape(1), one.long(), one, one.device, failures)
        if bool(y.isnan()):
            self._fail(lease)
            return
        self._settle(lease, y, check_noise_var(noise_var, y.shape, one, y.device))

    def _tell_outcomes(self, lease: Lease, reward: Any, failures: str, noise_var: Any) -> None:
        """`tell` of several outcomes, `k x 1` in the file."""
        names, one = self._bandit.policy.outcomes, torch.zeros(1, dtype=torch.int64)
        given: Any
        if isinstance(reward, Mapping):
            given = {name: as_tensor(f"reward[{name!r}]", value).detach().cpu().reshape(1) for name, value in reward.items()}
        else:
            given = as_tensor("reward", reward, torch.float64).detach().cpu()
            message = f"reward must be {len(names)} numbers, for {', '.join(names)}, got shape {tuple(given.shape)}."
            require(given.shape == (len(names),), message, ShapeError)
            given = given.unsqueeze(0)
        y = rewards_by_outcome("reward", names, given, one, one == 0, failures)
        rows = y.shape[:1]
        y = check_rewards(y, one.expand(*rows, 1), torch.ones(*rows, 1, dtype=torch.bool), y.device, "forget")
        if bool(y.isnan().all()):
            self._fail(lease)
            return
        variance = noise_var
        if variance is not None:
            require(is_finite(variance), f"noise_var must be one number for all outcomes, got {variance!r:.60}.")
            variance = check_noise_var(variance, y.shape, ~y.isnan(), y.device)
        self._settle(lease, y, variance)

    def _settle(self, lease: Lease, y: Tensor, noise_var: Tensor | None) -> None:
        """Record checked rewards, and their noise variances."""
        content = {"rewards": pack(y)}
        if noise_var is not None:
            # Raises the error when the reward is told, and not later when it is learned.
            self._bandit.loop.noise_variance()
            content["noise_var"] = pack(noise_var)
        self._store.transaction(lambda: self._store.settle(lease.number, "told", content))

    def _fail(self, lease: Lease) -> None:
        """Record that an evaluation failed."""
        self._store.transaction(lambda: self._store.settle(lease.number, "forgotten", {"failed": True}))

    @one_at_a_time
    def forget(self, lease: Lease) -> None:
        """Withdraw a pick, which is then no longer pending. Raises `StateError` if it was told or forgotten before."""
        self._check_lease(lease)
        self._store.transaction(lambda: self._store.settle(lease.number, "forgotten", {}))

    @one_at_a_time
    def renew(self, lease: Lease) -> Lease:
        """Hold a pick for another `lease` seconds from now. Raises `StateError` if this worker no longer holds it."""
        self._check_lease(lease)
        expires = self._store.transaction(lambda: self._store.renew(lease.number, self.name, lease.attempts, self.lease))
        return replace(lease, expires=expires)

    @property
    @one_at_a_time
    def told(self) -> int:
        """Number of rewards told by all workers."""
        return self._store.counts()["told"]

    @property
    @one_at_a_time
    def bandit(self) -> Bandit:
        """A bandit that has learned all rewards told so far: for `best()`, `posterior`, `counts`. Picks and rewards that are
        asked for and told by this bandit are not shared with other workers, and the next call of this worker discards them."""
        self._catch_up()
        return self._bandit

    @one_at_a_time
    def should_stop(self, *rules: Rule) -> Decision:
        """Whether to stop, by all rewards told so far; see `Bandit.should_stop`. Every worker gets the same decision for the
        same rewards, except from a rule with a memory."""
        return self.bandit.should_stop(*rules)

    @one_at_a_time
    def close(self) -> None:
        """Close the file. Held picks stay held until their leases expire."""
        self._store.close()

    def _shown(self) -> Shown:
        # The file is not read, since it may be closed: what other workers told since the last call is not counted.
        *_, arms, features = self._bandit.arms.shape
        title = f"Worker {self.name}: {count(arms, 'arm')} of {count(features, 'feature')}"
        values = [("policy", repr(self._bandit.policy)), ("rewards learned", numbers(self._bandit.pulls))]
        return pairs(title, [*values, ("store", str(self._store.path)), ("lease", f"{numbers(self.lease)} seconds")])

    # ------------------------------------------------------------------ internals

    def _begun(self, states: list[Any]) -> Tensor:
        """The state of the run's generator at its start."""
        try:
            start = held(states[0])
            torch.Generator().set_state(start)
        except (DataError, TypeError, RuntimeError) as error:
            raise DataError(f"{self._store.path}: the state of the generator can't be read: {error}") from error
        return start

    def _room(self, limit: int | None) -> bool:
        counts = self._store.counts()
        return limit is None or counts["told"] + counts["out"] < limit

    def _picked(self, limit: int | None) -> Pick | None:
        """A pick whose lease expired, or a new one; within a transaction."""
        pick = self._store.hand_out_expired(self.name, self.lease)
        if pick is not None or not self._room(limit):
            return pick
        self._catch_up()
        return self._store.add(self._chosen(), self.name, self.lease)

    def _chosen(self) -> dict[str, Any]:
        """Select the next pick and write it as an event; it is opened when the event is read back, at the next call."""
        loop = self._bandit.loop
        selection, drawn = loop.select(exactly=1)
        if not bool(selection.mask.any()):
            held, arms = self._store.counts()["out"], loop.num_arms
            raise StateError(
                f"the policy makes no pick beside the {count(held, 'pick')} that workers hold, as one that pulls each of the "
                f"{arms:,} arms once at a time: tell() their rewards or forget() some, and ask again."
                if held
                else "the policy has made all its picks: begin another run with a larger horizon=."
            )
        box = {"points": pack(selection.points)} if loop.state.box is not None else {}
        return {"index": pack(selection.index), "drawn": [pack(s) for s in drawn], **box}

    def _points(self, content: dict[str, Any], index: Tensor) -> Tensor:
        recorded, loop = unpack(content.get("points")), self._bandit.loop
        return loop.points(index) if recorded is None else recorded.to(loop.device, loop.arms.dtype)

    def _catch_up(self) -> None:
        """Learn the events since the last one seen.

        After an error or an interrupt the bandit may have learned an event that is not counted as seen. The bandit is therefore
        marked as stale beforehand, and is rebuilt before its next use.
        """
        # The user may have told rewards to the bandit that `bandit` returned. Updates replace these objects and never write in
        # place.
        touched = len(self._known) > 0 and not all(a is b for a, b in zip(self._known, self._objects(), strict=True))
        if self._stale or touched:
            self._begin_anew()
        events = self._store.events(self._seen)
        if not events:
            self._known = self._objects()
            return
        self._stale = True
        # History is the first event of a run.
        first = 1 if events[0][1] == "observe" else 0
        for event in events[:first]:
            self._repeat(event)
        if not self._learned_together(events[first:]):
            for event in events[first:]:
                self._repeat(event)
        self._seen = events[-1][0]
        self._stale = False
        self._known = self._objects()

    def _objects(self) -> tuple[Any, ...]:
        """The objects that a pick or a reward replaces."""
        loop = self._bandit.loop
        return (loop.state, loop.state.sum_on_host("told"), loop.open)

    def _learned_together(self, events: list[Event]) -> bool:
        """Learn events by one update. Returns False if the policy does not allow it, or one of them can't be learned."""
        loop = self._bandit.loop
        if not loop.policy.learns_together(loop.state):
            return False
        together = GatheredCalls(loop)
        try:
            for _, kind, _, content, picked in events:
                drawn = [held(state) for state in picked["drawn"]] if kind == "ask" else ()
                together.add(picked | content | {"kind": kind}, drawn)
            together.learn()
        except (TorchBanditsError, KeyError, TypeError, ValueError, RuntimeError):
            return False  # Learning the events one by one will show which of them fails.
        return True

    def _repeat(self, event: Event) -> None:
        """Learn one event.

        Raises:
            DataError: If it is not an event that a worker wrote.
            NumericalError: If the posterior broke down.
        """
        number, kind, pick, content, picked = event
        bandit, where = self._bandit, f"{self._store.path}, event {number}"
        loop = bandit.loop
        try:
            if kind == "observe":
                bandit.observe(*(held(content[name]).to(bandit.device) for name in _HISTORY if name in content))
                return
            index = held(picked["index"]).to(bandit.device)
            # In a box, the pick may be a point that becomes its next arm.
            check_picks(index, loop.batch_shape, loop.total + (loop.state.box is not None), loop.device)
            if kind == "ask":
                states = tuple(held(state) for state in picked["drawn"])
                loop.open_(Selection(self._points(picked, index), index, index >= 0), states)
            elif kind == "tell":
                variance = unpack(content.get("noise_var"))
                several = bool(bandit.policy.outcomes)
                # Recorded per outcome, in the form of the methods of `Bandit`: NaN where an outcome was not measured.
                failures = "forget" if several else "error"
                rewards = held(content["rewards"]).to(bandit.device)
                Bandit.tell(bandit, index, rewards, failures=failures, noise_var=variance)
            elif content.get("failed"):
                nothing = torch.full(index.shape, torch.nan, dtype=torch.float64, device=bandit.device)
                Bandit.tell(bandit, index, nothing, failures="forget")
            else:
                Bandit.forget(bandit, index)
        except NumericalError as error:
            what = f"the reward of pick {pick}" if pick else "the history"
            raise NumericalError(f"{where}: {what} can't be learned: {error}") from error
        except (TorchBanditsError, KeyError, TypeError, ValueError, RuntimeError) as error:
            raise DataError(f"{where}: {kind!r} can't be repeated: {error}") from error

    def _begin_anew(self) -> None:
        """Rebuild the bandit at the last saved state, or at the start of the run."""
        generator = torch.Generator()
        generator.set_state(self._start)
        self._bandit, self._seen = self._fresh(generator=generator), 0
        try:
            saved = self._store.saved()
            if saved is not None:
                loop = self._bandit.loop
                # The store records the policy of the state.
                check_state(saved[1]["state"], loop.state.state_dict())
                loop.load_(saved[1]["state"])
                self._seen = self._saved = saved[0]
        except (TorchBanditsError, KeyError) as error:
            warnings.warn(f"the saved state is not used, and all events are repeated: {error}", JournalWarning, stacklevel=2)
        self._stale = False

    def _save(self) -> None:
        if not self._stale and self._seen - self._saved >= self._every:
            self._saved = self._store.saved_event()  # perhaps another worker's
        if not self._stale and self._seen - self._saved >= self._every:
            try:
                self._store.save(self._seen, {"state": self._bandit.recorder.state_dict(brief=True)})
            except (DataError, OSError) as error:
                # The caller already has the pick; a checkpoint only saves time for later workers.
                message = f"the checkpoint of {self._store.path} was not written ({error}); it is tried again."
                warnings.warn(message, JournalWarning, stacklevel=3)
                return
            self._saved = self._seen

    def _check_lease(self, lease: Any) -> None:
        require(isinstance(lease, Lease), f"lease must be what ask() returned, got {type(lease).__name__}.")
        same_store = lease.run == self._store.id
        message = f"this lease is of another store than {self._store.path}: tell it to a worker on that store."
        require(same_store, message, StateError)


def _bandit(policy: Policy, arms: Any, bounds: Any, costs: Any, known: Any, *, generator: torch.Generator) -> Bandit:
    """A bandit of one outcome or of several."""
    if not isinstance(policy, Joint):
        require(known is None, "known= is for policies of several outcomes: leave it out.")
        return Bandit(policy, arms, bounds=bounds, costs=costs, generator=generator)
    require(bounds is None, "a policy of several outcomes takes a list of arms: leave out bounds=.", UnsupportedError)
    return OutcomeBandit(policy, arms, costs=costs, known=known, generator=generator)
