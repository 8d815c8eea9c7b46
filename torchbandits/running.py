"""A whole run of a policy in an environment, written on ask and tell."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import fields
from itertools import takewhile
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from torchbandits.bandit import Bandit
from torchbandits.checks import as_tensor, check_flag, check_function, check_observed, check_whole, explains_keywords
from torchbandits.constraints import counts_of
from torchbandits.environments.base import Environment
from torchbandits.errors import EvaluationError, NonFiniteError, ShapeError, UnsupportedError, require
from torchbandits.evaluation import (
    Answers,
    Evaluations,
    Evaluator,
    ExecutorEvaluator,
    Inline,
    InTurn,
    LocalEvaluator,
    check_parallel,
)
from torchbandits.history import History
from torchbandits.journal import Journal, as_journal, describe, describe_environment, difference, held, pack, report_in
from torchbandits.outcome_bandit import OutcomeBandit
from torchbandits.policies import Policy
from torchbandits.policies.joint import Joint
from torchbandits.policies.state import TableState
from torchbandits.selections import marked
from torchbandits.stopping import ROUNDING, Decision, Rule, check_rules, decide, shared
from torchbandits.types import ArrayLike, Report, Selection

_STEPS = 64  # steps that are recorded at once


@explains_keywords
def run(
    policy: Policy,
    environment: Environment,
    num_rounds: int,
    *,
    generator: torch.Generator | Sequence[torch.Generator] | None = None,
    callbacks: Iterable[Callable[[Bandit, Selection, Tensor, Report], bool | None]] = (),
    budget: ArrayLike | None = None,
    observed: tuple[ArrayLike, ArrayLike, ArrayLike] | None = None,
    journal: Journal | str | os.PathLike[str] | None = None,
    clock: Callable[[], float] = time.perf_counter,
    executor: Executor | None = None,
    workers: int | None = None,
    asynchronous: bool = False,
    retries: int = 0,
    timeout: float | None = None,
    failures: str = "raise",
    stop: Rule | Sequence[Rule] = (),
    repeats: bool = True,
) -> History:
    """Play a policy in an environment for a number of pulls, on ask and tell.

    Args:
        policy: The policy that selects arms. A policy of several outcomes requires a table with one batch row per outcome, in
            the order of the outcomes: arms `k x A x d`, the same for each outcome, and rewards `k x A`. The history, whose
            metadata contain the names, and the arguments of callbacks have the same rows.
        environment: The environment that evaluates the picks. Its arms are the arms of the bandit.
        num_rounds: Number of pulls of each batch row, including failed ones and those of a resumed journal. The last batch is
            shortened to it.
        generator: As for `Bandit`. The noise of each row is drawn from a generator that is seeded by the row's generator.
        budget: The largest total cost of the pulls of a batch row, one number or `batch_shape` of them. Arms that cost more
            than the rest of a row's budget are not offered, picks of a batch beyond this rest are forgotten, and the run ends
            when no row can pay for any arm. A failed evaluation costs as much as a successful one.
        observed: History that the bandit learns before its first ask, as `Bandit.observe` takes it. It does not count as rounds
            and is not recorded.
        journal: As for `Bandit`. Repeating the call resumes an interrupted run, the noise included, and returns the whole
            history; the seconds of earlier steps are NaN, and callbacks are only called for later steps. Picks that were
            pending are evaluated again, except those beyond `num_rounds` or `budget` of this call, which are forgotten; both
            may differ from those of the first call. Excluded arms stay excluded. A different environment raises an error;
            environments are compared by class, name, noise, costs and expected rewards (or, if these are unknown, by function).
            Ctrl-C, and any error except `EvaluationError`, closes the journal.
        clock: Clock for the seconds of ask and tell; `time.process_time` counts the processor seconds of this process only.
        callbacks: Functions that are called after each tell with the bandit, the selection, the rewards and the report. The run
            ends if one of them returns True.
        executor: Evaluates the picks of a batch in parallel: any `concurrent.futures.Executor`, of threads, processes, Dask
            (`client.get_executor()`) or mpi4py. Random numbers are drawn before a pick is submitted, and rewards are told in
            the order of the picks. Unless `asynchronous`, results therefore depend neither on the assignment of picks to
            workers nor on the times of evaluation.
        workers: Maximum number of evaluations in progress at a time; a whole batch by default.
        asynchronous: Tell every reward as soon as it is received, and ask for another pick in its place, independently of the
            batch rule: all `workers` stay busy, and picks depend on the order in which rewards were received. For one batch
            row. Without an executor, workers of equal speed are simulated: each pick is made while the last `workers` − 1
            picks wait for their rewards, and the run can be repeated.
        retries: Number of times that a failed evaluation is repeated. An evaluation fails if it raises an error, if its process
            dies, if it exceeds the timeout, or if its result is not a finite number.
        timeout: Seconds after submission (with `workers`, after the start) at which an evaluation has failed.
        failures: Treatment of an evaluation that failed after all retries. `"raise"` ends the run. `"forget"` gives up the pick
            and counts it in `history.batches["failed"]`; `"exclude"` also never offers its arm to that row again.
        stop: A rule of `torchbandits.stopping`, or several, evaluated before every ask: a batch row makes no further picks once
            one of the rules stops it, and the run ends when all rows have stopped. `history.metadata["stopped"]` holds the
            reason of each row, an empty text for a row that made all its pulls. Rules are copied, and the copies start without
            memory (`Rule.fresh`). Asynchronous runs still evaluate the open picks. A row that has stopped stays stopped when
            the run is resumed with the same rules; with other rules these decide anew.
        repeats: Whether an arm may be pulled again. If False, an arm that has a result (one of `observed` included) or is open
            is not offered to its batch row again, nor are arms with equal features; of picks of one arm in a batch, only the
            first is kept, so that the batch is shorter. The run ends when no arm is left. `failures` decides on arms whose
            evaluation failed.

    Returns:
        The history. `history.batches["seconds"]` is the time of ask and tell, without that of the environment.

    Raises:
        EvaluationError: If an evaluation failed and failures end the run, or the executor broke. All rewards received before
            were told; the error contains the history and the bandit.
        KeyboardInterrupt: On Ctrl-C; with a journal, the message names the file of the run.
    """
    callbacks = _checked(environment, num_rounds, callbacks, observed)
    check_function("clock", clock)
    check_flag("repeats", repeats)
    check_parallel(executor, workers, retries, timeout, failures, asynchronous)
    bandit = bandit_of(policy, environment, generator, journal)
    rules = () if isinstance(stop, tuple) and not stop else tuple(rule.fresh() for rule in check_rules(stop, "stop"))
    with _closed_where_it_fails(bandit):
        single = not asynchronous or bandit.batch_shape.numel() == 1
        message = (
            "asynchronous=True is for one batch row and one outcome: leave it out, or write a loop of ask(more=1) and tell."
        )
        require(single, message, UnsupportedError)
        opening = _opening(bandit)
        if observed is not None and not opening:
            Bandit.observe(bandit, *observed)
        drawn = [record for record in opening if record["kind"] == "seeds"]
        before = held(drawn[0]["told"]).to(bandit.device).long() if drawn else bandit.pulls.long()
        money = None if budget is None else Budget(budget, environment, bandit)
        seeds = drawn[0]["seeds"] if drawn else bandit.recorder.draw_seeds(rounds=num_rounds, environment=environment.name)
        noise = [torch.Generator().manual_seed(seed) for seed in seeds]
        # Regrets are recorded after many steps. Expected rewards that are no tensor are an error here, before the first pull.
        _regret(environment, torch.full((*bandit.batch_shape, 1), -1, device=bandit.device), policy)
        steps = _Steps(environment, bandit.batch_shape, policy)
        rounds = Rounds(bandit, num_rounds + before, money, once=not repeats)
        exclude = failures == "exclude"
        if bandit.journal is not None:
            several, own = bool(policy.outcomes), describe(rules, "stop")
            # The list alone, because through `rounds` the journal would hold its bandit, and stay open after both are dropped.
            regrets, stopped = _regrets(environment, policy), rounds.stopped
            bandit.journal.ride(noise, lambda record: regrets(record) | _stopped(record, stopped, own))
            _catch_up(bandit.journal, steps, money, rounds, bandit.device, rules, own, exclude=exclude, several=several)
        evaluator = _evaluator(environment, noise, executor, workers, retries, timeout, failures, asynchronous)
        try:
            rounds.shorten()
            if asynchronous and (out := rounds.again()) is not None:
                evaluator.submit(out)
            while True:
                if rules:
                    rounds.stop(decide(rules, bandit.loop))
                began = clock()
                selection = rounds.ask(evaluator.waiting, workers if asynchronous else None)
                asked = clock() - began
                if selection is not None:
                    evaluator.submit(selection)
                elif not evaluator.waiting:
                    return steps.history(rounds.stopped)
                answers = evaluator.settle()
                began = clock()
                answers, report = _tell(bandit, answers)
                lost = None if answers.failed is None else answers.failed.index
                if lost is not None and answers.error is None:
                    rounds.lose(lost, exclude=exclude)
                seconds = asked + clock() - began
                selection, rewards = answers.selection, answers.rewards
                steps.add(selection.index, rewards, bandit.loop.best_arm(), report, seconds, lost)
                if answers.error is not None:
                    raise EvaluationError(_what_is_kept(answers, bandit), steps.history(), bandit) from answers.error
                stops = [callback(bandit, selection, rewards, report) for callback in callbacks]
                if any(stops):
                    return steps.history(rounds.stopped)
        finally:
            evaluator.cancel()


def _checked(
    environment: Any, num_rounds: Any, callbacks: Any, observed: Any
) -> tuple[Callable[[Bandit, Selection, Tensor, Report], bool | None], ...]:
    """Check these arguments of `run`, and return the callbacks."""
    known = isinstance(environment, Environment)
    hint = " Pass BlackBox(function, arms) for a function of one arm." if callable(environment) else ""
    require(known, f"environment must be one of torchbandits.environments, got {type(environment).__name__}.{hint}")
    named = isinstance(getattr(environment, "name", None), str)
    require(named, f"an environment needs a name: set the attribute `name` of {type(environment).__name__} to a text.")
    check_whole("num_rounds", num_rounds)
    listed = isinstance(callbacks, Iterable)
    given = tuple(callbacks) if listed else ()
    require(listed and all(map(callable, given)), f"callbacks must be a list of functions, got {callbacks!r}.")
    check_observed(observed)
    return given


def _evaluator(
    environment: Environment,
    noise: Sequence[torch.Generator],
    executor: Executor | None,
    workers: int | None,
    retries: int,
    timeout: float | None,
    failures: str,
    asynchronous: bool,
) -> Evaluator:
    """The evaluator of a run; the arguments are those of `run`."""
    if executor is None and not retries and failures == "raise" and not environment.one_by_one:
        own: Evaluator = LocalEvaluator(environment, noise)
    else:
        hands, most = (Inline(), 1) if executor is None else (executor, workers)
        evaluations = Evaluations(hands, workers=most, retries=retries, timeout=timeout, patient=failures != "raise")
        own = ExecutorEvaluator(environment, noise, evaluations, whole=executor is None or not asynchronous)
    return InTurn(own) if executor is None and asynchronous else own


def bandit_of(
    policy: Policy,
    environment: Environment,
    generator: torch.Generator | Sequence[torch.Generator] | None = None,
    journal: Journal | str | os.PathLike[str] | None = None,
) -> Bandit:
    """The bandit of a run, whose journal names the environment."""
    if (journal := as_journal(journal)) is not None:
        journal.environment = describe_environment(environment)
    if not isinstance(policy, Joint):
        return Bandit(policy, environment.arms, generator=generator, costs=environment.costs, journal=journal)
    arms, costs = _shared_arms(environment, policy.outcomes), _shared_costs(environment)
    return OutcomeBandit(policy, arms, generator=generator, costs=costs, journal=journal)


def _shared_arms(environment: Environment, outcomes: Sequence[str]) -> Tensor:
    """The arms of a table whose last batch dimension is the outcome, which must be the same for all of them."""
    shape, arms, k = environment.means.shape[:-1], environment.arms, len(outcomes)
    fits = len(shape) > 0 and shape[-1] == k and isinstance(arms, Tensor) and arms.dim() > 2
    message = (
        f"the policy has {k} outcomes, {', '.join(outcomes)}: give a table of arms.expand({k}, -1, -1) and rewards {k} x A."
    )
    require(fits, message, ShapeError)
    assert isinstance(arms, Tensor)
    same = bool((arms == arms[..., :1, :, :]).all())
    require(same, "outcomes share their arms: give a table of the same arms for each, arms.expand(k, -1, -1).")
    return arms[..., 0, :, :]


def _shared_costs(environment: Environment) -> Tensor | None:
    """The costs of the arms of a table whose last batch dimension is the outcome, which must be the same for all of them."""
    costs = environment.costs
    if costs is None or costs.dim() == 1:
        return costs
    same = bool((costs == costs[..., :1, :]).all())
    require(same, "a pull costs the same whatever its outcome: give a table the costs of its arms, one number per arm.")
    return costs[..., 0, :]


def _opening(bandit: Bandit) -> list[dict[str, Any]]:
    """The first records of the run in a journal: observed history, and the seeds of the noise."""
    past = [] if bandit.journal is None else bandit.journal.records()
    return list(takewhile(lambda record: record["kind"] in ("observe", "seeds"), past))


@contextmanager
def _closed_where_it_fails(bandit: Bandit) -> Iterator[None]:
    """Close the journal of a run that fails, so that the same call can resume it. A traceback that is kept, as in a notebook,
    would otherwise keep the bandit and its journal open. After an `EvaluationError` the journal stays open, because the error
    contains the bandit."""
    try:
        yield
    except EvaluationError:
        raise
    except BaseException as error:
        if bandit.journal is None:
            raise
        bandit.journal.close()
        if not isinstance(error, KeyboardInterrupt):
            raise
        raise KeyboardInterrupt(
            f"stopped after {int(bandit.pulls.sum()):,} pulls. Every reward that was told is kept in {bandit.journal.path}: "
            "the same call resumes from there."
        ) from None


def _tell(bandit: Bandit, answers: Answers) -> tuple[Answers, Report]:
    """Tell the rewards received and, unless they end the run, the evaluations that failed. A NaN is a failure.

    Picks are given for every batch row, as for the methods of `Bandit`: the outcomes of an `OutcomeBandit` share their picks.
    """
    selection, rewards, failed = answers.selection, answers.rewards, answers.failed
    if failed is not None and answers.error is None:
        index = torch.where(failed.mask, failed.index, selection.index)
        settled = Selection(selection.points, index, selection.mask | failed.mask)
        return answers, Bandit.tell(bandit, settled, rewards.masked_fill(failed.mask, torch.nan), failures="forget")
    try:
        return answers, Bandit.tell(bandit, selection, rewards)
    except NonFiniteError as error:
        came = rewards.isfinite()
        answers = Answers(marked(selection, came), rewards, marked(selection, ~came), error)
        return answers, Bandit.tell(bandit, answers.selection, rewards)


def _what_is_kept(answers: Answers, bandit: Bandit) -> str:
    arms = [] if answers.failed is None else answers.failed.index[answers.failed.mask].tolist()
    what = f"the evaluation of arm {', '.join(map(str, arms[:5]))} failed" if arms else "evaluations failed"
    error = answers.error
    return (
        f"{what}: {type(error).__name__}: {error}. All rewards received were told: error.history has the run so far, and "
        f"error.bandit all {int(bandit.pulls.sum())} pulls; its ask() returns the open picks. retries= repeats failed "
        "evaluations, and failures='forget' or 'exclude' continues without them."
    )


def _catch_up(
    journal: Journal,
    steps: _Steps,
    budget: Budget | None,
    rounds: Rounds,
    device: torch.device,
    rules: Sequence[Rule],
    described: dict[str, str],
    *,
    exclude: bool,
    several: bool,
) -> None:
    """Record the rewards told before the run was interrupted, and charge them to rounds and budget. A NaN is a failed
    evaluation. Rows that rules of the same description had stopped are stopped again."""
    stopped: dict[str, Any] | None = None
    for record in journal.records():
        if record["kind"] == "observe":
            # The rules were evaluated once between `observed` and the first pick.
            report, best = report_in(record, device)
            for rule in rules:
                rule.see(shared(report.pulls) if several else report.pulls, best)
        elif record["kind"] == "tell":
            report, best = report_in(record, device)
            index, rewards = held(record["index"]).to(device), held(record["rewards"]).to(device)
            failed = (index >= 0) & rewards.isnan()
            lost = torch.where(failed, index, -1) if bool(failed.any()) else None
            steps.add(torch.where(failed, -1, index), rewards, best, report, float("nan"), lost)
            if lost is not None:
                rounds.lose(lost, exclude=exclude)
            if budget is not None:
                budget.spend(index)
            for rule in rules:
                rule.see(shared(report.pulls) if several else report.pulls, best)
            stopped = record.get("stopped")
    if rules and stopped is not None and not difference(stopped["rules"], described):
        rounds.stop_again(stopped["reasons"])


def _stopped(record: dict[str, Any], reasons: Sequence[str], described: dict[str, str]) -> dict[str, Any]:
    """Entry of the record of a tell after a batch row was stopped: the reasons of all rows, and the description of the rules.

    A decision depends on the rewards told by then, and so it can't be made again once others, of picks that were open, were
    told.
    """
    if record["kind"] != "tell" or not any(reasons):
        return {}
    return {"stopped": {"reasons": list(reasons), "rules": described}}


def _regret(environment: Environment, index: Tensor, policy: Policy | None) -> Tensor:
    """Regret of arms, shaped like `index`. For several outcomes, the regret of each is the distance from its best value, which
    is the smallest one for an outcome to minimise; NaN for an outcome that only has limits on both sides."""
    if not isinstance(policy, Joint):
        return environment.regret(index)
    sign = environment.means.new_tensor(policy.directions).unsqueeze(-1)
    found = (sign * environment.means).amax(dim=-1, keepdim=True) - sign * environment.expected(index)
    return torch.where(sign == 0, torch.nan, found)


def _regrets(environment: Environment, policy: Policy) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """A function that returns the regret fields of the record of a tell; none when the environment's optimum is unknown."""
    optimum = environment.optimum.unsqueeze(-1)
    unknown = bool(optimum.isnan().all())

    def beside(record: dict[str, Any]) -> dict[str, Any]:
        if record["kind"] != "tell" or unknown:
            return {}
        index = torch.cat([held(record["index"]), held(record["best"]).unsqueeze(-1)], dim=-1).to(optimum.device)
        regret = _regret(environment, index, policy)
        return {"regret": pack(regret[..., :-1]), "best_regret": pack(regret[..., -1])}

    return beside


class _Steps:
    """Collects steps and records many at once in the history, so that a step costs little."""

    def __init__(self, environment: Environment, batch_shape: torch.Size, policy: Policy | None = None) -> None:
        self._environment, self._rows = environment, batch_shape.numel()
        own = None
        if isinstance(policy, Joint):
            small = [name for name, sign in zip(policy.outcomes, policy.directions, strict=True) if sign < 0]
            own = {"outcomes": list(policy.outcomes), "objectives": policy.objectives, "less_is_better": small}
        self._policy = policy
        self._history = History(self._rows, own)
        self._none = torch.zeros(batch_shape, dtype=torch.int64)
        self._steps: list[tuple[Tensor, Tensor, Tensor, Report, float, Tensor]] = []

    def add(self, index: Tensor, rewards: Tensor, best: Tensor, report: Report, seconds: float, lost: Tensor | None) -> None:
        """Add one ask and tell; `lost` contains the arms of failed evaluations, −1 elsewhere."""
        failed = self._none if lost is None else (lost >= 0).sum(dim=-1).cpu()
        self._steps.append((index, rewards, best, report, seconds, failed))
        if len(self._steps) >= _STEPS:
            self._flush()

    def history(self, stopped: Sequence[str] = ()) -> History:
        """The history of all steps, with the reason why each row stopped, if stopping rules were given."""
        self._flush()
        if stopped:
            self._history.metadata["stopped"] = list(stopped)
        return self._history

    def _flush(self) -> None:
        if not self._steps:
            return
        index, rewards, recommended, reports, seconds, failed = zip(*self._steps, strict=True)
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
            regret=_regret(self._environment, arms, self._policy).reshape(per_step).transpose(0, 1),
            report=Report(**{f.name: torch.stack([getattr(r, f.name).reshape(rows) for r in reports]) for f in fields(Report)}),
            recommended=best.reshape(rows, k).T,
            simple_regret=_regret(self._environment, best, self._policy).reshape(rows, k).T,
            seconds=seconds,
            costs=costs,
            failed=torch.stack(failed).reshape(k, rows),
        )


class Rounds:
    """The remaining rounds: the number of picks to ask for, and the arms on offer."""

    def __init__(self, bandit: Bandit, rounds: Tensor, budget: Budget | None, *, once: bool = False) -> None:
        self._bandit, self._budget, self._once = bandit, budget, once
        self._rounds = rounds  # `batch_shape`, total pulls of the bandit at which each row ends
        self._least = int((rounds - bandit.pulls.long()).min())  # lower bound of the remaining pulls of every row
        self._excluded: Tensor | None = None
        self._over = torch.zeros_like(rounds, dtype=torch.bool)  # `batch_shape`, rows that a decision has stopped
        self.stopped: list[str] = []  # the reason of each row, empty where it goes on; an empty list without stopping rules

    def stop(self, decision: Decision) -> None:
        """Ask for no more picks of the batch rows that a decision stops, and keep their reasons. Outcomes share their picks, so
        that they stop together."""
        self.stopped += [""] * (len(decision.reasons) - len(self.stopped))
        ends = decision.stop
        if self._bandit.policy.outcomes:
            ends = ends.all(dim=-1, keepdim=True).expand_as(ends)
        over = ends & ~self._over & (self._rounds > self._bandit.pulls.long())
        if bool(over.any()):
            reasons = zip(self.stopped, decision.reasons, over.reshape(-1).tolist(), strict=True)
            self.stopped[:] = [new if now else old for old, new, now in reasons]
            self._over = self._over | over
            self._least = 0  # recomputed by the next `ask`

    def stop_again(self, reasons: list[str]) -> None:
        """Stop the batch rows that have a reason, as they were stopped before the run was interrupted."""
        self.stopped[:], self._least = reasons, 0
        self._over = torch.tensor([bool(reason) for reason in reasons], device=self._over.device).reshape(self._over.shape)

    def ask(self, waiting: int, workers: int | None) -> Selection | None:
        """The next batch or, for a number of workers, picks for all idle workers; None if there is nothing to pick now.

        Args:
            waiting: Number of open picks.
            workers: Number of workers; None for batches, which are asked for when no pick is open.
        """
        most = self._bandit.policy.most_picks
        limit = available = None
        restricted = self._budget is not None or self._excluded is not None or self._once
        if workers is not None or restricted or most is None or most > self._least:
            available, able = self._available()
            opened = self._bandit.loop.open
            if able is not None and self._once and workers is None and opened is not None:
                # Picks that were open when the run was interrupted are evaluated, also if no further arm is on offer.
                able = able | opened.mask.any(dim=-1)
            limit = (self._rounds - self._bandit.pulls.long()).masked_fill(self._over, 0)
            limit = limit if able is None else torch.where(able, limit, 0)
            self._least = int(limit.min())
            if not bool((limit > waiting).any()):
                return None
        if workers is None:
            selection = Bandit.ask(self._bandit, limit=limit, available=available)
            selection = self._without_repeats(selection) if self._once else selection
        else:
            more = min(workers, self._least) - waiting
            if more < 1:
                return None
            single = self._once or self._budget is not None
            whole = self._one_by_one(more) if single else Bandit.ask(self._bandit, more=more, available=available)
            selection = whole[waiting:]
        self._least -= len(selection)
        return self._budget.pay(selection) if self._budget is not None and workers is None else selection

    def shorten(self) -> None:
        """Forget the picks that a journal left open beyond the rounds, which were more in an earlier call."""
        if (out := self._bandit.loop.open) is not None:
            left = (self._rounds - self._bandit.pulls.long()).unsqueeze(-1)
            _only(self._bandit, out, out.mask & (out.mask.cumsum(dim=-1) <= left))

    def again(self) -> Selection | None:
        """The picks that are already open, to be evaluated again; None if there are none."""
        out = self._bandit.loop.open
        if out is not None and self._budget is not None:
            self._budget.pay(out)
        # As they are open now: of equal picks the first is forgotten, and the order must be the one that a journal restores.
        return self._bandit.loop.open

    def lose(self, failed: Tensor, exclude: bool) -> None:
        """Count failed evaluations of arms (`batch_shape x q`, −1 for none) as rounds; with `exclude`, never offer these arms
        again."""
        self._rounds = self._rounds - (failed >= 0).sum(dim=-1)
        self._least = 0  # counted anew when asked
        if exclude:
            hit = counts_of(failed, self._bandit.arms.shape[-2]) > 0
            self._excluded = hit if self._excluded is None else self._excluded | hit

    def _one_by_one(self, more: int) -> Selection:
        """The open picks with at most `more` further ones, each of an arm that is still on offer and paid for before the next.
        There must be an arm on offer."""
        available, able = self._available()
        while True:
            selection = Bandit.ask(self._bandit, more=1, available=available)
            if self._budget is not None:
                self._budget.spend(selection.index[..., -1:])
            more -= 1
            available, able = self._available()
            if more < 1 or not (able is None or bool(able.all())):
                return selection

    def _without_repeats(self, selection: Selection) -> Selection:
        """The first pick of each arm in a batch, where equal arms count as one; the others are forgotten."""
        entries = self._bandit.loop.state.rows.entry(selection.index)
        equal = (entries.unsqueeze(-1) == entries.unsqueeze(-2)) & selection.mask.unsqueeze(-2)
        return _only(self._bandit, selection, selection.mask & ~equal.tril(diagonal=-1).any(dim=-1))

    def _taken(self) -> Tensor:
        """Mask of the arms that have a result or are open, and of arms equal to them, `batch_shape x A`."""
        loop = self._bandit.loop
        taken, first = loop.counts > 0, loop.state.rows.first
        if loop.open is not None:
            entries = loop.state.rows.entry(loop.open.index).masked_fill(~loop.open.mask, -1)
            opened = counts_of(entries, taken.shape[-1])
            taken = taken | ((opened if first is None else opened.gather(-1, first.expand_as(opened))) > 0)
        # Outcomes share their picks.
        return taken.any(dim=-2, keepdim=True).expand_as(taken) if isinstance(loop.policy, Joint) else taken

    def _available(self) -> tuple[Tensor | None, Tensor | None]:
        """The arms on offer, `batch_shape x A` (all arms in rows without further pulls), and the mask of rows with further
        pulls, `batch_shape`. Both are None if all arms are on offer."""
        offered = None if self._budget is None else self._budget.affordable
        if self._excluded is not None:
            offered = ~self._excluded if offered is None else offered & ~self._excluded
        if self._once:
            offered = ~self._taken() if offered is None else offered & ~self._taken()
        if offered is None:
            return None, None
        loop = self._bandit.loop
        if isinstance(loop.policy, Joint) and isinstance(loop.state, TableState):
            # Rows in which no safe arm is left end.
            permitted = loop.policy.permitted(loop.state)
            offered = offered if permitted is None else offered & permitted
        able = offered.any(dim=-1)
        return offered | ~able.unsqueeze(-1), able


def _only(bandit: Bandit, selection: Selection, kept: Tensor) -> Selection:
    """The marked picks of a selection, which are all that is open; the others are forgotten."""
    if torch.equal(kept, selection.mask):
        return selection
    Bandit.forget(bandit, marked(selection, ~kept))
    # As they are open now: of equal picks the first is forgotten, and the noise must be that of the order which a journal
    # restores.
    return marked(selection, kept) if bandit.loop.open is None else bandit.loop.open


class Budget:
    """The remaining budget of each batch row."""

    def __init__(self, budget: ArrayLike, environment: Environment, bandit: Bandit) -> None:
        costs, shape = environment.costs, bandit.batch_shape
        require(costs is not None, f"a budget needs costs, and the environment {environment.name!r} has none.")
        assert costs is not None
        left = as_tensor("budget", budget, torch.float64, costs.device)
        good = left.shape in (torch.Size(), shape) and bool((left > 0).all())
        require(good, f"budget must be a number > 0, or {tuple(shape)} of them, got {left.tolist()}.")
        # Sums of costs are rounded: three times 0.1 is within a budget of 0.3.
        left = left * (1 + ROUNDING)
        self._costs, self._left, self._bandit = costs.expand(*shape, -1), left.expand(shape), bandit

    @property
    def affordable(self) -> Tensor:
        """The arms that each row can pay for, `batch_shape x A`."""
        return self._costs <= self._left.unsqueeze(-1)

    def pay(self, selection: Selection) -> Selection:
        """The picks that can be paid for, in order; the others are forgotten."""
        each = torch.where(selection.mask, self._costs.gather(-1, selection.index.clamp_min(0)), 0.0)
        kept = selection.mask & (each.cumsum(dim=-1) <= self._left.unsqueeze(-1))
        selection = _only(self._bandit, selection, kept)
        self.spend(selection.index)
        return selection

    def spend(self, index: Tensor) -> None:
        """Pay for arms, `batch_shape x q`, −1 where masked."""
        each = self._costs.gather(-1, index.clamp_min(0).to(self._costs.device))
        self._left = self._left - torch.where((index >= 0).to(each.device), each, 0.0).sum(dim=-1)
