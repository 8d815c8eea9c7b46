"""What each call of a bandit leaves in its journal, and how it is repeated."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from typing import Any, Protocol, cast, runtime_checkable

import torch
from torch import Tensor

from torchbandits.arms import Shard
from torchbandits.arms.scanning import scan
from torchbandits.errors import DataError, TorchBanditsError, UnsupportedError, require
from torchbandits.journal.checkpoints import state_of_text
from torchbandits.journal.fingerprint import describe_policy, digest
from torchbandits.journal.journal import Journal
from torchbandits.journal.lines import Mark
from torchbandits.journal.packing import held, pack, unpack
from torchbandits.sources import ArmSet, ArmSource
from torchbandits.types import FitReport, Pulls, Report, Selection

_MANY = 256  # records; fewer are repeated one by one, bit for bit as they were
_LAST = 8  # records that are repeated one by one in any case, with a look at whether the picks come out as they were
Maximizer = Callable[[Callable[[Tensor], Tensor]], Tensor]


@runtime_checkable
class Gathered(Protocol):
    """Calls that are repeated together."""

    def ask(self, index: Tensor) -> None:
        """Picks that are opened."""

    def tell(self, index: Tensor, rewards: Tensor) -> None:
        """Rewards that are learned, NaN where an evaluation failed."""

    def forget(self, index: Tensor) -> None:
        """Picks that are given up."""

    def learn(self) -> None:
        """All of it, or nothing."""


@runtime_checkable
class Resumable(Protocol):
    """What a journal asks of a bandit to repeat its calls."""

    @property
    def device(self) -> torch.device:
        """Where its tensors live."""

    def tell(self, selection: Selection | Tensor, rewards: Tensor, *, failures: str = "error") -> Report:
        """Learn rewards."""

    def observe(self, points_or_index: Tensor, counts: Tensor, sums: Tensor, squares: Tensor | None = None) -> Report:
        """Learn from sums."""

    def forget(self, selection: Selection | Tensor) -> None:
        """Give up on picks."""

    def fit_kernel_(self, *, noise: bool = False, **options: Any) -> FitReport:
        """Fit the kernel."""

    def set_arms_(self, arms: Tensor, *, costs: Tensor | None = None) -> Any:
        """Change the arms."""

    def _load_state(self, state_dict: dict[str, Any]) -> None:
        """Take over a state of the same policy."""

    def _restore(self, saved: dict[str, Any]) -> None:
        """Take over a checkpoint."""

    def _gather(self) -> Gathered | None:
        """What learns many calls together; None where they must be repeated one by one."""

    def _take(self, index: Tensor) -> bool:
        """Open picks that are on record without choosing them again; False where choosing them draws."""

    def _extend(self, limit: Tensor | None, offered: Tensor | None, exactly: int | None) -> tuple[Selection, Selection]:
        """Open further picks."""

    def _maximize(self, maximizer: Maximizer, count: int) -> Selection:
        """Open picks that a maximiser finds."""

    def _draw_seeds(self) -> list[int]:
        """Draw a seed a batch row."""


def asked(limit: Tensor | None, offered: Tensor | None, exactly: int | None, selection: Selection, box: bool) -> dict[str, Any]:
    """The record of an ask: what was asked for, and the picks; with their points in a box."""
    where = {"points": pack(selection.points)} if box else {}
    return {
        "kind": "ask",
        "limit": pack(limit),
        "more": exactly,
        "offered": pack(offered),
        "index": pack(selection.index),
    } | where


def told(index: Tensor, mask: Tensor, rewards: Tensor) -> dict[str, Any]:
    """The record of a tell: arms and rewards; −1 where masked, NaN where the evaluation failed."""
    return {"kind": "tell", "index": pack(torch.where(mask, index, -1)), "rewards": pack(rewards)}


def observed(pulls: Pulls) -> dict[str, Any]:
    """The record of history from elsewhere."""
    where = {"index": pack(pulls.index)} if pulls.points is None else {"points": pack(pulls.points)}
    return {"kind": "observe", **where, "counts": pack(pulls.counts), "sums": pack(pulls.sums), "squares": pack(pulls.squares)}


def reported(report: Report, best: Tensor) -> dict[str, Any]:
    """What a tell ended with: its report, and the arm that is recommended then."""
    return {"report": {f.name: pack(getattr(report, f.name)) for f in fields(report)}, "best": pack(best)}


def report_in(record: dict[str, Any], device: torch.device) -> tuple[Report, Tensor]:
    """The report and the recommended arm that `reported` recorded, on the device of the run."""
    values = record["report"]
    return Report(**{f.name: held(values[f.name]).to(device) for f in fields(Report)}), held(record["best"]).to(device)


def describe_run(policy: Any, domain: ArmSet, costs: Any) -> dict[str, str]:
    """A policy, its arms (or box) and their costs: whoever resumes must bring the same. Cost: a pass over the arms.

    Raises:
        UnsupportedError: For arms that are shared out among ranks.
    """
    require(
        not isinstance(domain, Shard),
        "journals and stores are one process's, and these arms are shared out among ranks: save bandit.state_dict() instead.",
        UnsupportedError,
    )
    own = f"{domain!r} {scan(domain).fingerprint:x}" if isinstance(domain, ArmSource) else digest(domain)
    priced = {} if costs is None else {"costs": digest(torch.as_tensor(costs, dtype=torch.float64))}
    return describe_policy(policy) | {"arms": own} | priced


@contextmanager
def begun(
    journal: Journal | None,
    policy: Any,
    domain: ArmSet,
    costs: Any,
    generators: Sequence[torch.Generator],
    beside: Mapping[str, str] | None = None,
) -> Iterator[None]:
    """A journal opened for a run of this policy on these arms (or this box), if any; what fails inside closes it. `beside` is
    what else must be the same when the run is resumed."""
    if journal is None:
        yield
        return
    described = describe_run(policy, domain, costs) | {"generators": str(len(generators))} | dict(beside or {})
    journal.begin(described, generators)
    ready = False
    try:
        yield
        journal.start()
        ready = True
    finally:
        if not ready:
            journal.discard()


def moved_to(arms: Any, costs: Any) -> dict[str, Any]:
    """The record of a change of arms, which holds them all.

    Raises:
        UnsupportedError: For arms of a source.
    """
    require(
        isinstance(arms, Tensor),
        "a journal keeps the arms that a run moves to, and those of a source are not kept: pass a tensor, or begin a new "
        "journal with the source and observe() what was learned.",
        UnsupportedError,
    )
    return {"kind": "set_arms", "arms": pack(arms), "costs": pack(costs)}


@runtime_checkable
class Contextual(Protocol):
    """What a journal asks of a bandit with contexts, which makes the calls of another one."""

    _bandit: Any

    def _restore(self, saved: dict[str, Any]) -> None:
        """Take over a checkpoint."""

    def _enter(self, context: Any, busy: Sequence[int] = ()) -> None:
        """Make a context the current one."""

    def load_state_dict(self, state_dict: dict[str, Any]) -> Any:
        """Take over a state."""


def resume(bandit: Resumable | Contextual, journal: Journal | None) -> None:
    """Bring a fresh bandit to where its journal ends: the state of the last checkpoint, and every call after it again.

    Raises:
        DataError: If a record can't be repeated.

    Many records are learned together where the policy allows (`Policy.learns_together`): the state is then the same up to
    rounding, which can change a later pick only where two arms tie up to rounding.

    Cost: loading a checkpoint, and the asks and tells after it; all of them where there is none.
    """
    if journal is None or not journal.resumed:
        return
    start, saved = Mark(), journal.saved()
    with journal.repeating():
        if saved is not None:
            start = Mark(*saved["mark"])
            bandit._restore(saved)
            journal.resume_from(start)
        repeating = Repeating(bandit, journal.mark().records - start.records)
        try:
            journal.replay(start, repeating)
        except CannotTogether:  # one of many: one by one, its line is named
            journal.replay(start, Repeating(bandit, 0, skipped=repeating.done))


class CannotTogether(Exception):
    """Some of the calls that were gathered can't be repeated."""


class Repeating:
    """Repeats one record after the other; asks, tells and forgets of a long journal are gathered, and learned together.

    Args:
        bandit: What they are repeated for.
        left: Records to come.
        skipped: How many of the first were repeated before.

    Attributes:
        done: Records that were repeated, those skipped included.
    """

    def __init__(self, bandit: Resumable | Contextual, left: int, skipped: int = 0) -> None:
        self._owner, self._contextual = bandit, bandit if isinstance(bandit, Contextual) else None
        self._left, self._skipped, self.done = left, skipped, skipped
        self._gathered: Gathered | None = None
        self._count = 0  # of what is gathered

    @property
    def _bandit(self) -> Resumable:
        """The one that is asked and told; loading a state makes a new one for contexts."""
        own: Any = self._owner if self._contextual is None else self._contextual._bandit
        return cast(Resumable, own)

    def __call__(self, record: dict[str, Any]) -> None:
        """Repeat a record, now or with others."""
        if self._skipped:
            self._skipped -= 1
            return
        early, kind = self._left > _LAST, record["kind"]
        many = self._left > _MANY
        self._left -= 1
        if early and kind in ("ask", "tell", "forget"):
            if self._gathered is None and many:
                self._gathered = self._bandit._gather()
            if self._gathered is not None:
                self._gather(self._gathered, kind, record)
                return
        self._learn()
        if self._contextual is not None and kind == "context":
            self._contextual._enter(held(record["context"]).to(self._bandit.device), record["busy"])
        elif self._contextual is not None and kind == "load":
            self._contextual.load_state_dict(state_of_text(record["state"]))
        elif not (many and kind == "ask" and self._bandit._take(held(record["index"]).to(self._bandit.device))):
            repeat(self._bandit, record)
        self.done += 1

    def _gather(self, gathered: Gathered, kind: str, record: dict[str, Any]) -> None:
        index = held(record["index"]).to(self._bandit.device)
        if kind == "ask":
            gathered.ask(index)
        elif kind == "tell":
            gathered.tell(index, held(record["rewards"]).to(self._bandit.device))
        else:
            gathered.forget(index)
        self._count += 1

    def _learn(self) -> None:
        gathered, self._gathered = self._gathered, None
        if gathered is None:
            return
        try:
            gathered.learn()
        except (TorchBanditsError, TypeError, ValueError, RuntimeError) as error:
            raise CannotTogether from error
        self.done += self._count
        self._count = 0


def repeat(bandit: Resumable, record: dict[str, Any]) -> None:
    """Repeat one call."""

    def get(name: str) -> Tensor:
        return held(record[name]).to(bandit.device)

    def maybe(name: str) -> Tensor | None:
        value = unpack(record.get(name))
        return None if value is None else value.to(bandit.device)

    kind = record["kind"]
    if kind == "ask":
        try:
            bandit._extend(maybe("limit"), maybe("offered"), record["more"])
        except IndexError as error:  # found where the journal's picks are gathered, before any is open
            raise DataError(f"it picks an arm that is not there: {error}.") from error
    elif kind == "tell":
        bandit.tell(get("index"), get("rewards"), failures="forget")
    elif kind == "observe":
        where = get("index" if "index" in record else "points")
        bandit.observe(where, get("counts"), get("sums"), get("squares"))
    elif kind == "forget":
        bandit.forget(get("index"))
    elif kind == "set_arms":
        bandit.set_arms_(get("arms"), costs=maybe("costs"))
    elif kind == "maximize":
        found = iter(get("points"))
        bandit._maximize(lambda _: next(found), len(get("points")))
    elif kind == "fit":
        bandit.fit_kernel_(**record["options"])
    elif kind == "seeds":
        bandit._draw_seeds()
    elif kind == "load":
        bandit._load_state(state_of_text(record["state"]))
    else:
        raise DataError(f"unknown kind of record, {kind!r}: it was written by a later version.")
