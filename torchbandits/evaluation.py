"""Evaluation of the picks of a run, in this thread or by any `concurrent.futures.Executor`."""

from __future__ import annotations

import math
import time
import uuid
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from concurrent.futures import BrokenExecutor, CancelledError, Executor, Future
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any

import torch
from torch import Tensor

from torchbandits.checks import as_tensor, check_choice, check_flag, check_whole, positive
from torchbandits.environments.base import Environment, Task
from torchbandits.errors import NonFiniteError, ShapeError, require
from torchbandits.selections import marked
from torchbandits.types import Selection

FAILURES = ("raise", "forget", "exclude")


@dataclass(frozen=True)
class Answers:
    """Results of evaluations: `selection` with `rewards` `batch_shape x q` to be told, `failed` picks that were given up (None
    for none), and the error that ends the run, if any."""

    selection: Selection
    rewards: Tensor
    failed: Selection | None = None
    error: BaseException | None = None


class Evaluator(ABC):
    """Evaluates picks: accepts them, and returns their rewards."""

    @property
    @abstractmethod
    def waiting(self) -> int:
        """Number of picks that were accepted and are not settled yet, masked places included."""

    @abstractmethod
    def submit(self, selection: Selection) -> None:
        """Accept picks for evaluation."""

    @abstractmethod
    def settle(self) -> Answers:
        """Wait for the results that are to be told next."""

    def cancel(self) -> None:
        """Give up all accepted picks."""
        return


class LocalEvaluator(Evaluator):
    """Samples the environment in this thread, a batch at a time."""

    def __init__(self, environment: Environment, noise: Sequence[torch.Generator]) -> None:
        self._environment, self._noise = environment, noise
        self._selection: Selection | None = None

    @property
    def waiting(self) -> int:
        """The places of the batch."""
        return 0 if self._selection is None else len(self._selection)

    def submit(self, selection: Selection) -> None:
        """Accept a batch."""
        self._selection = selection

    def settle(self) -> Answers:
        """Sample the batch; an error of the environment ends the run."""
        assert self._selection is not None
        selection, self._selection = self._selection, None
        try:
            sampled = self._environment.sample(selection.index, self._noise)
        except Exception as error:
            nothing = torch.full_like(selection.index, torch.nan, dtype=torch.float64)
            return Answers(marked(selection, torch.zeros_like(selection.mask)), nothing, None, error)
        # An environment of a user may return an array. The history takes no other shape, which `tell` would for a single pick.
        rewards, wanted = as_tensor("the rewards of the environment's sample", sampled), selection.index.shape
        got, same = tuple(rewards.shape), rewards.shape == wanted
        require(same, f"the environment's sample must return rewards of the shape {tuple(wanted)}, got {got}.", ShapeError)
        return Answers(selection, rewards)


class InTurn(Evaluator):
    """Simulates workers of equal speed: accepted picks are evaluated by another evaluator one at a time, in the order of
    asking."""

    def __init__(self, evaluator: Evaluator) -> None:
        self._evaluator = evaluator
        self._queue: deque[Selection] = deque()

    @property
    def waiting(self) -> int:
        """The number of picks that are not settled."""
        return len(self._queue)

    def submit(self, selection: Selection) -> None:
        """Put the picks at the end of the queue."""
        # A masked place is no open pick, such as one beyond a budget: `waiting` counts those that are.
        places = selection.mask.reshape(-1).nonzero().reshape(-1).tolist()
        self._queue += [selection[place : place + 1] for place in places]

    def settle(self) -> Answers:
        """Evaluate the pick that has waited longest."""
        self._evaluator.submit(self._queue.popleft())
        return self._evaluator.settle()


class ExecutorEvaluator(Evaluator):
    """Evaluates one task per pick through an executor.

    Args:
        environment: Creates the tasks.
        noise: One generator per batch row.
        evaluations: The evaluations that the executor runs.
        whole: Whether batches are told whole. Otherwise every result is told as soon as it is received, for a single batch row.
    """

    def __init__(
        self, environment: Environment, noise: Sequence[torch.Generator], evaluations: Evaluations, *, whole: bool
    ) -> None:
        self._environment, self._noise, self._evaluations, self._whole = environment, noise, evaluations, whole
        self._opened: Selection | None = None  # a batch that is told whole
        self._picks: dict[int, Selection] = {}  # picks that are told one by one, by number
        self._first = 0  # number of the first evaluation of the batch

    @property
    def waiting(self) -> int:
        """The number of picks that are not settled."""
        return len(self._evaluations)

    def submit(self, selection: Selection) -> None:
        """Hand the picks to the executor."""
        numbers = self._evaluations.submit(self._environment.tasks(selection.index, self._noise))
        self._opened, self._first = selection, numbers.start
        if not self._whole:
            places = selection.mask.reshape(-1).nonzero().reshape(-1).tolist()
            self._picks |= {n: selection[place : place + 1] for n, place in zip(numbers, places, strict=True)}

    def settle(self) -> Answers:
        """Wait for the whole batch or, unless batches are told whole, for at least one pick."""
        outcomes = self._evaluations.settle(everything=self._whole)
        selection = self._batch() if self._whole else self._part([outcome.number for outcome in outcomes])
        device = selection.index.device
        places = torch.arange(len(outcomes), device=device)
        if self._whole:
            places = torch.tensor([outcome.number - self._first for outcome in outcomes], dtype=torch.int64, device=device)
        values = torch.tensor([outcome.reward for outcome in outcomes], dtype=torch.float64, device=device)
        lost = torch.tensor([outcome.error is not None for outcome in outcomes], dtype=torch.bool, device=device)
        where = selection.mask.reshape(-1).nonzero().reshape(-1)[places]  # tasks go row by row, through the places that count
        rewards = torch.full_like(selection.index, torch.nan, dtype=torch.float64)
        came, failed = torch.zeros_like(selection.mask), torch.zeros_like(selection.mask)
        rewards.view(-1)[where], came.view(-1)[where], failed.view(-1)[where] = values, ~lost, lost
        error = self._evaluations.broken
        if error is None and not self._evaluations.patient:
            error = next((outcome.error for outcome in outcomes if outcome.error is not None), None)
        if error is None and bool((came == selection.mask).all()):
            return Answers(selection, rewards)
        given_up = marked(selection, failed) if bool(failed.any()) else None
        return Answers(marked(selection, came), rewards, given_up, error)

    def cancel(self) -> None:
        """Cancel evaluations that have not started, and ignore the results of running ones."""
        self._evaluations.cancel()

    def _batch(self) -> Selection:
        assert self._opened is not None
        return self._opened

    def _part(self, numbers: Sequence[int]) -> Selection:
        """These picks as one selection."""
        assert self._opened is not None
        if not numbers:
            return self._opened[:0]
        picks = [self._picks.pop(number) for number in numbers]
        points = torch.cat([pick.points for pick in picks], dim=-2)
        index, mask = (torch.cat([getattr(pick, name) for pick in picks], dim=-1) for name in ("index", "mask"))
        return Selection(points, index, mask)


# ---------------------------------------------------------------------- tasks of an executor


@dataclass(frozen=True)
class Outcome:
    """Result of one evaluation: its number in the order of asking, and its reward or the error after which it was given up."""

    number: int
    reward: float
    error: BaseException | None = None


@dataclass(eq=False)
class _Evaluation:
    number: int
    task: Task
    attempts: int = 0
    deadline: float = math.inf


class Inline(Executor):
    """Executor that evaluates immediately, in the thread that submits."""

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Call `fn`, and return a future with its result or its `Exception`."""
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


class Evaluations:
    """Tasks that were submitted to an executor. A task that fails is repeated up to `retries` times.

    Args:
        executor: Executor of threads, of processes or of a cluster.
        workers: Largest number of evaluations that are submitted at a time; by default all of them.
        retries: Number of times that a failed evaluation is repeated. Failures are exceptions, results that are not finite
            numbers, and results that are not received in time.
        timeout: Seconds from submission after which an evaluation has failed. No executor can stop a running evaluation: it
            continues to occupy its worker, and its result is not used.
        patient: Whether to wait for the other evaluations when one is given up.
    """

    def __init__(
        self, executor: Executor, *, workers: int | None, retries: int, timeout: float | None, patient: bool = True
    ) -> None:
        self._executor, self._workers, self._retries, self.patient = executor, workers, retries, patient
        self._timeout = math.inf if timeout is None else timeout
        self._name = uuid.uuid4().hex  # A cluster may run equal calls once only: the name makes each call distinct.
        self._queue: deque[_Evaluation] = deque()
        self._running: dict[Future[float], _Evaluation] = {}
        self._late: set[Future[float]] = set()  # past their deadline, and still occupying a worker
        self._done: SimpleQueue[Future[float]] = SimpleQueue()
        self._count = 0
        self.broken: BaseException | None = None  # the error after which nothing can be evaluated any more

    def __len__(self) -> int:
        """Number of evaluations that are not settled."""
        return len(self._queue) + len(self._running)

    def submit(self, tasks: Sequence[Task]) -> range:
        """Accept further evaluations; returns their numbers."""
        numbers = range(self._count, self._count + len(tasks))
        self._queue.extend(_Evaluation(number, task) for number, task in zip(numbers, tasks, strict=True))
        self._count = numbers.stop
        return numbers

    def settle(self, everything: bool) -> list[Outcome]:
        """Wait for all evaluations, or for the first one, and return the settled ones in the order of asking.

        When the executor breaks or, unless `patient`, when one evaluation is given up, the results received so far are returned
        and the other evaluations stay unsettled.
        """
        settled: list[Outcome] = []
        stopped = False
        while len(self) and not stopped:
            self._fill()
            block = everything or not settled
            future = self._next(block)
            settled += [] if future is None else self._outcome(future)
            settled += self._overdue()
            given_up = not self.patient and any(outcome.error is not None for outcome in settled)
            stopped = self.broken is not None or given_up
            if future is None and not block:
                break
        settled += self._arrived() if stopped else []
        return sorted(settled, key=lambda outcome: outcome.number)

    def cancel(self) -> None:
        """Give up all unsettled evaluations; running ones continue, and their results are not used."""
        for future in self._running:
            future.cancel()
        self._queue.clear()
        self._running.clear()

    # ------------------------------------------------------------------ internals

    def _fill(self) -> None:
        """Submit tasks until `workers` evaluations are running."""
        self._late = {future for future in self._late if not future.done()}
        while self.broken is None and self._queue and self._free > 0:
            evaluation = self._queue.popleft()
            evaluation.attempts += 1
            evaluation.deadline = time.monotonic() + self._timeout
            name = f"{self._name}-{evaluation.number}-{evaluation.attempts}"
            try:
                future = self._executor.submit(_evaluate, evaluation.task, name)
            except Exception as error:  # broken, shut down, closed: nothing more can be evaluated, which the caller reports
                self._queue.appendleft(evaluation)
                self.broken = error
                return
            self._running[future] = evaluation
            future.add_done_callback(self._done.put)

    @property
    def _free(self) -> float:
        return math.inf if self._workers is None else 0.0 + self._workers - len(self._running) - len(self._late)

    def _next(self, block: bool) -> Future[float] | None:
        """A future that is done; None when the next deadline has passed, or when none is done and `block` is False."""
        while self.broken is None and len(self):
            first = next(iter(self._running.values()), None)  # submitted first, due first
            # While late evaluations occupy all workers, wait once more for the length of the timeout.
            due = time.monotonic() + self._timeout if first is None else first.deadline
            left = None if due == math.inf else max(0.0, due - time.monotonic())
            try:
                future = self._done.get(block=block, timeout=left)
            except Empty:
                if first is None and block:
                    held = f"all {self._workers} workers are held by evaluations that ran past {self._timeout} s"
                    self.broken = TimeoutError(held)
                return None
            if future in self._running:
                return future
            self._fill()  # a late evaluation has returned
        return None

    def _outcome(self, future: Future[float]) -> list[Outcome]:
        """The outcome of a future that is done; empty if the evaluation is repeated, or the executor broke."""
        evaluation = self._running.pop(future)
        error = CancelledError("cancelled by the executor") if future.cancelled() else future.exception()
        if error is None:
            reward = future.result()
            if math.isfinite(reward):
                return [Outcome(evaluation.number, reward)]
            error = NonFiniteError(f"the function returned {reward}, and a reward is a finite number")
        if isinstance(error, KeyboardInterrupt):
            raise error
        if isinstance(error, BrokenExecutor):
            self.broken = error
            self._queue.appendleft(evaluation)
            return []
        return self._failed(evaluation, error)

    def _failed(self, evaluation: _Evaluation, error: BaseException) -> list[Outcome]:
        again = evaluation.attempts <= self._retries
        if again or self.patient:
            # This error is never shown. The frames of its traceback, or of one behind it, would keep the bandit and its open
            # journal until the next collection of garbage.
            error.__traceback__ = error.__cause__ = error.__context__ = None
        if again:
            self._queue.append(evaluation)
            return []
        return [Outcome(evaluation.number, math.nan, error)]

    def _arrived(self) -> list[Outcome]:
        """Rewards that have been received."""
        done = [future for future in self._running if future.done() and not future.cancelled() and future.exception() is None]
        return [outcome for future in done for outcome in self._outcome(future)]

    def _overdue(self) -> list[Outcome]:
        """Fail the evaluations whose deadline has passed."""
        now, found = time.monotonic(), []
        while self._running:
            future, evaluation = next(iter(self._running.items()))
            if evaluation.deadline > now or future.done():
                break
            del self._running[future]
            if not future.cancel():
                self._late.add(future)
            found += self._failed(evaluation, TimeoutError(f"no result came in {self._timeout} s"))
        return found


def _evaluate(task: Task, name: str) -> float:
    """Run a task and return its result as a plain number; `name` distinguishes it from an equal task."""
    return float(task())


def check_parallel(
    executor: object, workers: object, retries: object, timeout: object, failures: object, asynchronous: object
) -> None:
    """Check that these options of `run` can be combined.

    Raises:
        ArgumentError: If they cannot; the message names the options to pass.
    """
    good = executor is None or isinstance(executor, Executor)
    require(
        good, f"executor must be a concurrent.futures.Executor (Dask: client.get_executor()), got {type(executor).__name__}."
    )
    check_whole("workers", workers, otherwise="for all of a batch")
    check_whole("retries", retries, 0)
    if timeout is not None:
        positive("timeout", timeout)
    check_choice("failures", failures, FAILURES)
    check_flag("asynchronous", asynchronous)
    here = executor is None and (timeout is not None or (workers is not None and not asynchronous))
    message = "timeout=, and workers= without asynchronous=True, need an executor=, such as ThreadPoolExecutor(4)."
    require(not here, message)
    require(not asynchronous or workers is not None, "asynchronous=True needs workers=, the number of picks that are pending.")
