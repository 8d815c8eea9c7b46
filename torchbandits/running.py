"""A whole run of a policy in an environment, written on ask and tell."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields
from itertools import takewhile

import torch
from torch import Tensor
from torch.nn.functional import pad

from torchbandits.bandit import Bandit
from torchbandits.coercion import as_tensor
from torchbandits.environments.base import Environment
from torchbandits.errors import require
from torchbandits.history import History
from torchbandits.journal import Journal, held, report_in
from torchbandits.policies import Policy
from torchbandits.types import Report, Selection

_STEPS = 64  # recorded at once


def run(
    policy: Policy,
    environment: Environment,
    num_rounds: int,
    *,
    generator: torch.Generator | Sequence[torch.Generator] | None = None,
    callbacks: Iterable[Callable[[Bandit, Selection, Tensor, Report], bool | None]] = (),
    budget: float | Tensor | None = None,
    observed: tuple[Tensor, Tensor, Tensor] | None = None,
    journal: Journal | str | os.PathLike[str] | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> History:
    """Play a policy in an environment for a number of pulls, on ask and tell.

    Args:
        policy: What chooses.
        environment: What answers; its arms are the bandit's.
        num_rounds: Pulls of each batch row; it caps the last batch.
        generator: As for `Bandit`. The noise of each row is drawn from a generator seeded by that row's.
        budget: What the pulls of a batch row may cost in all, one number or `batch_shape` of them. Arms that a row can not
            pay for are off, picks of a batch that exceed the rest are forgotten, and the run ends when no row can pay for any.
        observed: History that the bandit is given before its first ask: what `Bandit.observe` takes. It counts neither as
            rounds nor in the record.
        journal: As for `Bandit`. The same call again goes on with a run that was cut short, the noise included, and returns the
            history of all of it; the seconds of what came before are NaN, and callbacks hear of the rest only.
        clock: What times ask and tell; `time.process_time` for the seconds of processors, whoever else uses them.
        callbacks: Called after each tell with the bandit, the selection, the rewards and the report; a True ends the run.

    Returns:
        The history. `history.batches["seconds"]` is the time of ask and tell, without the environment's.
    """
    known = isinstance(environment, Environment)
    require(known, f"environment must be one of torchbandits.environments, got {type(environment).__name__}.")
    require(isinstance(num_rounds, int) and num_rounds >= 1, f"num_rounds must be an integer ≥ 1, got {num_rounds}.")
    callbacks = tuple(callbacks)
    bandit = Bandit(policy, environment.arms, generator=generator, costs=environment.costs, journal=journal)
    past = [] if bandit.journal is None else bandit.journal.records()
    opening = list(takewhile(lambda record: record["kind"] in ("observe", "seeds"), past))
    if observed is not None and not opening:
        bandit.observe(*observed)
    drawn = [record for record in opening if record["kind"] == "seeds"]
    before = held(drawn[0]["told"]).to(bandit.device).long() if drawn else bandit.pulls.long()
    purse = None if budget is None else _Purse(budget, environment, bandit)
    seeds = drawn[0]["seeds"] if drawn else bandit._draw_seeds()
    noise = [torch.Generator().manual_seed(seed) for seed in seeds]
    recorder = _Recorder(environment, bandit.batch_shape)
    if bandit.journal is not None:
        bandit.journal.ride(noise)
        _catch_up(bandit.journal, recorder, purse)
    least = num_rounds + int((before - bandit.pulls.long()).min())  # pulls that every row has left, at least
    while True:
        began = clock()
        limit = None
        if purse is not None or policy.most_picks is None or policy.most_picks > least:
            limit = num_rounds + before - bandit.pulls.long()
            limit = limit if purse is None else torch.where(purse.can_pay, limit, 0)
            least = int(limit.min())
            if not bool((limit > 0).any()):
                return recorder.history()
        selection = bandit.ask(limit=limit, available=None if purse is None else purse.affordable)
        selection = selection if purse is None else purse.pay(selection)
        asked = clock() - began
        rewards = environment.sample(selection.index, noise)
        began = clock()
        report = bandit.tell(selection, rewards)
        seconds = asked + clock() - began
        least -= len(selection)
        recorder.add(selection.index, rewards, bandit.best_arm(), report, seconds)
        stops = [callback(bandit, selection, rewards, report) for callback in callbacks]
        if any(stops):
            return recorder.history()


def _catch_up(journal: Journal, recorder: _Recorder, purse: _Purse | None) -> None:
    """Record, and pay, what was told before a run was cut short."""
    for record in journal.records():
        if record["kind"] == "tell":
            report, best = report_in(record)
            index = held(record["index"]).to(best.device)
            recorder.add(index, held(record["rewards"]), best, report, float("nan"))
            if purse is not None:
                purse.spend(index)


class _Purse:
    """What each row has left to spend."""

    def __init__(self, budget: float | Tensor, environment: Environment, bandit: Bandit) -> None:
        costs, shape = environment.costs, bandit.batch_shape
        require(costs is not None, f"a budget needs costs, and the environment {environment.name!r} does not know any.")
        assert costs is not None
        left = as_tensor("budget", budget, torch.float64, costs.device)
        good = left.shape in (torch.Size(), shape) and bool((left > 0).all())
        require(good, f"budget must be a number > 0, or {tuple(shape)} of them, got {budget}.")
        self._costs, self._left, self._bandit = costs.expand(*shape, -1), left.expand(shape), bandit

    @property
    def can_pay(self) -> Tensor:
        """Rows that can pay for an arm, `batch_shape`."""
        return self._costs.amin(dim=-1) <= self._left

    @property
    def affordable(self) -> Tensor:
        """Arms on offer, `batch_shape x A`: all, for rows that pull no more."""
        return (self._costs <= self._left.unsqueeze(-1)) | ~self.can_pay.unsqueeze(-1)

    def pay(self, selection: Selection) -> Selection:
        """The picks that can be paid for, in order; the others are forgotten."""
        each = torch.where(selection.mask, self._costs.gather(-1, selection.index.clamp_min(0)), 0.0)
        kept = selection.mask & (each.cumsum(dim=-1) <= self._left.unsqueeze(-1))
        if not torch.equal(kept, selection.mask):
            self._bandit.forget(Selection(selection.points, selection.index, selection.mask & ~kept))
            selection = Selection(selection.points, torch.where(kept, selection.index, -1), kept)
        self.spend(selection.index)
        return selection

    def spend(self, index: Tensor) -> None:
        """Pay for arms, `batch_shape x q`, −1 where masked."""
        each = self._costs.gather(-1, index.clamp_min(0).to(self._costs.device))
        self._left = self._left - torch.where((index >= 0).to(each.device), each, 0.0).sum(dim=-1)


class _Recorder:
    """Keeps steps as they are and hands many at once to the history: a step then costs next to nothing."""

    def __init__(self, environment: Environment, batch_shape: torch.Size) -> None:
        self._environment, self._rows = environment, batch_shape.numel()
        self._history = History(self._rows)
        self._steps: list[tuple[Tensor, Tensor, Tensor, Report, float]] = []

    def add(self, index: Tensor, rewards: Tensor, recommended: Tensor, report: Report, seconds: float) -> None:
        """Keep one ask and tell."""
        self._steps.append((index, rewards, recommended, report, seconds))
        if len(self._steps) >= _STEPS:
            self._flush()

    def history(self) -> History:
        """The history of all that was added."""
        self._flush()
        return self._history

    def _flush(self) -> None:
        if not self._steps:
            return
        index, rewards, recommended, reports, seconds = zip(*self._steps, strict=True)
        self._steps, k, rows = [], len(index), self._rows
        most = max(i.shape[-1] for i in index)
        arms = torch.cat([pad(i, (0, most - i.shape[-1]), value=-1) for i in index], dim=-1)
        values = torch.cat([pad(y, (0, most - y.shape[-1])) for y in rewards], dim=-1)
        best = torch.stack(recommended, dim=-1)
        per_step, costs = (rows, k, most), self._environment.costs
        if costs is not None:
            own = costs.expand(*arms.shape[:-1], -1)
            costs = torch.where(arms >= 0, own.gather(-1, arms.clamp_min(0)), torch.nan).reshape(per_step).transpose(0, 1)
        self._history.record(
            index=arms.reshape(per_step).transpose(0, 1),
            rewards=values.reshape(per_step).transpose(0, 1),
            regret=self._environment.regret(arms).reshape(per_step).transpose(0, 1),
            report=Report(**{f.name: torch.stack([getattr(r, f.name).reshape(rows) for r in reports]) for f in fields(Report)}),
            recommended=best.reshape(rows, k).T,
            simple_regret=self._environment.regret(best).reshape(rows, k).T,
            seconds=seconds,
            costs=costs,
        )
