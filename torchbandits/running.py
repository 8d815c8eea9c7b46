"""A whole run of a policy in an environment, written on ask and tell."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from itertools import takewhile
from typing import Any

import torch
from torch import Tensor

from torchbandits.bandit import Bandit
from torchbandits.checks import check_flag, check_function, check_observed, check_whole, explains_keywords
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
from torchbandits.journal import Journal, as_journal, describe, describe_environment, difference, held, report_in
from torchbandits.outcome_bandit import OutcomeBandit
from torchbandits.policies import Policy
from torchbandits.policies.joint import Joint
from torchbandits.rounds import RemainingBudget, Rounds
from torchbandits.selections import marked
from torchbandits.steps import Steps, regret_fields, regret_of
from torchbandits.stopping import Rule, check_rules, decide, shared
from torchbandits.types import ArrayLike, Report, Selection

Callback = Callable[[Bandit, Selection, Tensor, Report], bool | None]


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
        remaining = None if budget is None else RemainingBudget(budget, environment, bandit)
        seeds = drawn[0]["seeds"] if drawn else bandit.recorder.draw_seeds(rounds=num_rounds, environment=environment.name)
        noise = [torch.Generator().manual_seed(seed) for seed in seeds]
        # Regrets are recorded after many steps. Expected rewards that are no tensor are an error here, before the first pull.
        regret_of(environment, torch.full((*bandit.batch_shape, 1), -1, device=bandit.device), policy)
        steps = Steps(environment, bandit.batch_shape, policy)
        rounds = Rounds(bandit, num_rounds + before, remaining, once=not repeats)
        exclude = failures == "exclude"
        if bandit.journal is not None:
            several, described = bool(policy.outcomes), describe(rules, "stop")
            # The list alone, because through `rounds` the journal would hold its bandit, and stay open after both are dropped.
            regrets, stopped = regret_fields(environment, policy), rounds.stopped
            bandit.journal.ride(noise, lambda record: regrets(record) | _stopped(record, stopped, described))
            _catch_up(
                bandit.journal, steps, remaining, rounds, bandit.device, rules, described, exclude=exclude, several=several
            )
        evaluator = _evaluator(environment, noise, executor, workers, retries, timeout, failures, asynchronous)
        try:
            rounds.shorten()
            if asynchronous and (out := rounds.again()) is not None:
                evaluator.submit(out)
            in_progress = workers if asynchronous else None
            return _play(bandit, rounds, evaluator, steps, rules, callbacks, clock, in_progress, exclude=exclude)
        finally:
            evaluator.cancel()


def _play(
    bandit: Bandit,
    rounds: Rounds,
    evaluator: Evaluator,
    steps: Steps,
    rules: Sequence[Rule],
    callbacks: Sequence[Callback],
    clock: Callable[[], float],
    workers: int | None,
    *,
    exclude: bool,
) -> History:
    """Ask, evaluate and tell until no round is left or a callback ends the run.

    Args:
        workers: Number of evaluations that an asynchronous run keeps in progress; None for a run in batches.
        exclude: Whether arms whose evaluation failed are never offered again.
    """
    while True:
        if rules:
            rounds.stop(decide(rules, bandit.loop))
        began = clock()
        selection = rounds.ask(evaluator.waiting, workers)
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
        ends = [callback(bandit, selection, rewards, report) for callback in callbacks]
        if any(ends):
            return steps.history(rounds.stopped)


def _checked(environment: Any, num_rounds: Any, callbacks: Any, observed: Any) -> tuple[Callback, ...]:
    """Check these arguments of `run`, and return the callbacks."""
    good = isinstance(environment, Environment)
    hint = " Pass BlackBox(function, arms) for a function of one arm." if callable(environment) else ""
    require(good, f"environment must be one of torchbandits.environments, got {type(environment).__name__}.{hint}")
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
        evaluator: Evaluator = LocalEvaluator(environment, noise)
    else:
        hands, most = (Inline(), 1) if executor is None else (executor, workers)
        evaluations = Evaluations(hands, workers=most, retries=retries, timeout=timeout, patient=failures != "raise")
        evaluator = ExecutorEvaluator(environment, noise, evaluations, whole=executor is None or not asynchronous)
    return InTurn(evaluator) if executor is None and asynchronous else evaluator


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
    steps: Steps,
    budget: RemainingBudget | None,
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
