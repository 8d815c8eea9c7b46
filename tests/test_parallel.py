"""Evaluations through executors: every executor gives the same picks; failures, timeouts and crashes lose nothing learned."""

from __future__ import annotations

import functools
import gc
import itertools
import os
import pickle
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from problems import generator, rbf
from torch import Tensor

import torchbandits as tb
from torchbandits import errors
from torchbandits.environments import BlackBox, Environment, Table
from torchbandits.journal import held

ARMS = torch.rand(60, 2, dtype=torch.float64, generator=generator(5))


def smooth(point: Tensor) -> float:
    return float(torch.sin(5 * point[0]) + point[1])


def noisy(point: Tensor, seed: int) -> float:
    return smooth(point) + 0.1 * float(torch.randn((), generator=generator(seed), dtype=torch.float64))


def late(point: Tensor, seed: int) -> float:
    """An evaluation for which the first picks of a batch finish last."""
    time.sleep(0.02 * (seed % 3))
    return noisy(point, seed)


def policies() -> dict[str, tb.policies.Policy]:
    return {
        "gp_ucb": tb.gp_ucb(rbf(), noise_std=0.1),
        "batch_bkb": tb.batch_bkb(rbf(), noise_std=0.1),
        "thompson": tb.thompson_sampling(rbf(), noise_std=0.1, batch_size=4),
        "evolution": tb.regularized_evolution(population=6, tournament=2, batch_size=3),
        "uniform": tb.uniform(batch_size=5),
    }


class Shuffled(Executor):
    """An executor that completes submitted calls in shuffled order."""

    def __init__(self, seed: int) -> None:
        self._draw = np.random.default_rng(seed)
        self._waiting: list[tuple[Future[Any], Callable[[], Any]]] = []
        self._lock = threading.Lock()
        self.most = 0

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        with self._lock:
            self._waiting.append((future, functools.partial(fn, *args, **kwargs)))
            self.most = max(self.most, len(self._waiting))
        threading.Timer(0.002, self._complete).start()
        return future

    def _complete(self) -> None:
        with self._lock:
            if not self._waiting:
                return
            future, call = self._waiting.pop(int(self._draw.integers(len(self._waiting))))
        if future.set_running_or_notify_cancel():
            try:
                future.set_result(call())
            except Exception as error:
                future.set_exception(error)


class Reluctant(Shuffled):
    """An executor that keeps two of three calls unfinished until no further call is submitted for a while."""

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        with self._lock:
            self._waiting.append((future, functools.partial(fn, *args, **kwargs)))
            out = len(self._waiting)
        if out == 3:
            self._complete()
        threading.Timer(0.5, self._complete_if_last, [future]).start()
        return future

    def _complete_if_last(self, future: Future[Any]) -> None:
        if self._waiting and self._waiting[-1][0] is future:
            while self._waiting:
                self._complete()


@pytest.fixture(scope="module")
def processes() -> Iterator[Executor]:
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        yield pool


def same(one: tb.History, other: tb.History) -> None:
    for name in ("row", "t", "batch", "arm", "reward"):
        np.testing.assert_array_equal(one.pulls[name], other.pulls[name])


# ---------------------------------------------------------------------- the same picks


@pytest.mark.sweep(1)
@pytest.mark.parametrize("name", sorted(policies()))
@pytest.mark.parametrize("kind", ["table", "black box"])
def test_an_executor_changes_no_pick_whatever_order_rewards_come_in(name: str, kind: str):
    values = torch.tensor([smooth(point) for point in ARMS], dtype=torch.float64)
    environment = Table(ARMS, values, 0.1) if kind == "table" else BlackBox(noisy, ARMS, 0.1, seeded=True)
    plain = tb.run(policies()[name], environment, 24, generator=generator(1))
    for seed in range(2):
        executor = Shuffled(seed)
        same(plain, tb.run(policies()[name], environment, 24, generator=generator(1), executor=executor, workers=3))
        assert executor.most <= 3
    retried = tb.run(policies()[name], environment, 24, generator=generator(1), retries=2, failures="forget")
    same(plain, retried)


def test_a_black_box_over_arms_that_are_never_in_memory():
    axes = [torch.linspace(0, 1, 7, dtype=torch.float64), torch.linspace(0, 1, 5, dtype=torch.float64)]
    grid, arms = tb.sources.grid(axes), torch.cartesian_prod(*axes)
    runs = [
        tb.run(policies()["batch_bkb"], BlackBox(noisy, a, 0.1, seeded=True), 20, generator=generator(1)) for a in (grid, arms)
    ]
    same(*runs)


def test_batch_rows_with_their_own_arms():
    arms = torch.rand(3, 40, 2, dtype=torch.float64, generator=generator(0))
    generators = [generator(seed) for seed in range(3)]
    environment = BlackBox(noisy, arms, 0.1, seeded=True)
    plain = tb.run(policies()["batch_bkb"], environment, 20, generator=generators)
    with ThreadPoolExecutor(2) as pool:
        parallel = tb.run(
            policies()["batch_bkb"], environment, 20, generator=[generator(seed) for seed in range(3)], executor=pool
        )
    same(plain, parallel)
    assert np.isnan(parallel.pulls["regret"]).all()
    single = tb.run(policies()["batch_bkb"], BlackBox(noisy, arms[1], 0.1, seeded=True), 20, generator=generator(1))
    np.testing.assert_array_equal(single.pulls["arm"], plain.row(1).pulls["arm"])


def test_processes(processes: Executor):
    environment = BlackBox(late, ARMS, 0.1, seeded=True)
    plain = tb.run(policies()["thompson"], environment, 16, generator=generator(1))
    same(plain, tb.run(policies()["thompson"], environment, 16, generator=generator(1), executor=processes))


class Own(Environment):
    """A user's environment without support for tasks."""

    def __init__(self) -> None:
        self.name, self.arms, self.noise_std = "own", ARMS, 0.1

    @property
    def means(self) -> Tensor:
        return self.arms.sum(dim=-1)

    def sample(self, index: Tensor, generators: Any) -> Tensor:
        rows = zip(index.reshape(-1, index.shape[-1]), generators, strict=True)
        noise = [torch.randn(len(row), generator=g, dtype=torch.float64) for row, g in rows]
        return self.expected(index) + 0.1 * torch.stack(noise).reshape(index.shape)


def test_an_environment_without_tasks_of_its_own_draws_from_a_seed_a_pick(processes: Executor):
    for generators in (lambda: generator(2), lambda: [generator(2), generator(3)]):
        runs = [
            tb.run(policies()["uniform"], Own(), 15, generator=generators(), executor=executor, retries=1)
            for executor in (None, Shuffled(0), processes)
        ]
        same(runs[0], runs[1])
        same(runs[0], runs[2])
        noise = runs[0].pulls["reward"] - ARMS.sum(dim=-1).numpy()[runs[0].pulls["arm"]]
        assert len(np.unique(noise)) == len(noise)
        assert 0.05 < noise.std() < 0.2


COUNT = itertools.count(1)


def counting(point: Tensor) -> float:
    return float(next(COUNT))


def every_third(point: Tensor) -> float:
    return 1 / (next(COUNT) % 3 == 0)


@contextmanager
def dask_cluster(**options: Any) -> Iterator[Executor]:
    distributed = pytest.importorskip("distributed", reason='Dask is not installed: pip install "torchbandits[dask]"')
    with (
        distributed.LocalCluster(threads_per_worker=1, dashboard_address=":0", **options) as cluster,
        distributed.Client(cluster) as client,
    ):
        yield client.get_executor()


@pytest.mark.exhaustive
def test_a_dask_cluster():
    global COUNT
    environment = BlackBox(noisy, ARMS, 0.1, seeded=True)
    plain = tb.run(policies()["thompson"], environment, 12, generator=generator(1))
    with dask_cluster(n_workers=2, processes=False) as executor:
        same(plain, tb.run(policies()["thompson"], environment, 12, generator=generator(1), executor=executor))
        # Dask merges equal calls, but repeated pulls of one arm and repeated attempts must be evaluated separately.
        COUNT = itertools.count(1)
        history = tb.run(tb.uniform(batch_size=6), BlackBox(counting, ARMS[:1]), 12, executor=executor)
        assert sorted(history.pulls["reward"]) == list(range(1, 13))
        COUNT = itertools.count(1)
        tb.run(tb.uniform(), BlackBox(every_third, ARMS[:1]), 4, executor=executor, retries=2)
        assert next(COUNT) == 13
        options = {"executor": executor, "workers": 2, "asynchronous": True}
        again = tb.run(tb.thompson_sampling(rbf(), noise_std=0.1), environment, 10, **options)
        assert again.num_pulls.tolist() == [10]


def fatal(point: Tensor) -> float:
    """Kill the process at some arms."""
    if point[0] < 0.3:
        os._exit(3)
    return float(point[0])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # warnings of Dask about lost processes
def test_dask_reports_a_killed_worker_and_goes_on():
    dask = pytest.importorskip("dask")
    with dask.config.set({"distributed.scheduler.allowed-failures": 0}), dask_cluster(n_workers=2, processes=True) as executor:
        environment = BlackBox(fatal, ARMS)
        with pytest.raises(errors.EvaluationError, match="KilledWorker") as caught:
            tb.run(tb.uniform(), environment, 30, executor=executor)
        kept = caught.value
        assert len(kept.history) == int(kept.bandit.pulls)
        options = {"executor": executor, "workers": 1, "failures": "forget"}
        history = tb.run(tb.uniform(), environment, 6, generator=generator(1), **options)
        assert history.summary()["failed"] >= 1
        assert (ARMS[torch.tensor(history.pulls["arm"]), 0] >= 0.3).all()
        assert len(history) + history.summary()["failed"] == 6


# ---------------------------------------------------------------------- as they come


def test_asynchronous_keeps_every_worker_busy_and_tells_all():
    busy, most, lock, full = 0, 0, threading.Lock(), threading.Event()
    pending: list[int] = []

    def watched(point: Tensor, seed: int) -> float:
        nonlocal busy, most
        with lock:
            busy += 1
            most = max(most, busy)
            if busy == 4:
                full.set()
        full.wait(600)  # until all workers are busy, however slow the machine
        time.sleep(0.001 * (1 + seed % 7))
        with lock:
            busy -= 1
        return noisy(point, seed)

    def look(bandit: tb.Bandit, selection: tb.Selection, rewards: Tensor, report: tb.Report) -> None:
        opened = bandit.loop.open
        pending.append(0 if opened is None else int(opened.mask.sum()))
        assert int(report.unasked.sum()) == 0

    environment = BlackBox(watched, ARMS, 0.1, seeded=True)
    for policy in policies().values():
        busy, most = 0, 0
        full.clear()
        pending.clear()
        with ThreadPoolExecutor(4) as pool:
            history = tb.run(
                policy, environment, 30, generator=generator(0), executor=pool, workers=4, asynchronous=True, callbacks=[look]
            )
        assert history.num_pulls.tolist() == [30]
        assert most == 4
        assert pending[-1] == 0
        assert max(pending) <= 3
        assert history.batches["size"].max() <= 4
        rewards = torch.tensor([smooth(point) for point in ARMS]).numpy()[history.pulls["arm"]]
        assert np.abs(history.pulls["reward"] - rewards).max() < 0.6, "each reward belongs to its arm"


def test_one_asynchronous_worker_is_a_loop_of_single_picks():
    environment = BlackBox(noisy, ARMS, 0.1, seeded=True)
    plain = tb.run(tb.gp_ucb(rbf(), noise_std=0.1), environment, 25, generator=generator(4))
    options = {"executor": Shuffled(0), "workers": 1, "asynchronous": True}
    same(plain, tb.run(tb.gp_ucb(rbf(), noise_std=0.1), environment, 25, generator=generator(4), **options))


def test_simulated_workers_are_a_loop_that_tells_the_oldest_pick():
    table = tb.environments.Table(ARMS, torch.tensor([smooth(point) for point in ARMS], dtype=torch.float64), 0.1)
    for environment in (table, BlackBox(noisy, ARMS, 0.1, seeded=True)):
        for name, policy in policies().items():
            options: dict[str, Any] = {"generator": generator(4), "workers": 4, "asynchronous": True}
            waiting: list[int] = []

            def look(bandit: tb.Bandit, *told: Any, waiting: list[int] = waiting) -> None:
                waiting.append(0 if bandit.loop.open is None else len(bandit.loop.open))

            history = tb.run(policy, environment, 20, callbacks=[look], **options)
            assert history.batches["size"].tolist() == [1] * 20, name
            assert waiting == [3] * 17 + [2, 1, 0]
            bandit, rewards = tb.Bandit(policy, environment.arms, generator=generator(4)), history.pulls["reward"]
            picks = history.pulls["arm"].tolist()
            if bandit.policy.draws_on_select(bandit.loop.state):  # the run has drawn the seeds of the noise before
                continue
            asked = bandit.ask(more=4).index.tolist()
            assert asked == picks[:4], name
            for t in range(16):
                bandit.tell(torch.tensor(asked[t : t + 1]), torch.tensor(rewards[t : t + 1]))
                asked += bandit.ask(more=1).index.tolist()[-1:]
            assert asked == picks, name


@pytest.mark.parametrize("seeded", [False, True])
def test_simulated_workers_resume_from_a_journal(tmp_path: Path, seeded: bool):
    means = torch.tensor([smooth(point) for point in ARMS], dtype=torch.float64)
    environment = BlackBox(noisy, ARMS, 0.1, seeded=True) if seeded else tb.environments.Table(ARMS, means, 0.1)

    def play(**options: Any) -> tb.History:
        policy = tb.gp_ucb(rbf(), noise_std=0.1)
        return tb.run(policy, environment, 20, generator=generator(4), workers=4, asynchronous=True, **options)

    whole = play()
    play(journal=tmp_path / "run.journal", callbacks=[lambda bandit, *told: bool(bandit.pulls == 7)])
    resumed = play(journal=tmp_path / "run.journal")
    for name in ("arm", "reward"):
        assert resumed.pulls[name].tolist() == whole.pulls[name].tolist()


@pytest.mark.parametrize("before", [None, 9.0])
def test_simulated_workers_resume_in_the_same_order_where_a_budget_refuses_one_of_equal_picks(
    tmp_path: Path, before: float | None
):
    costs = torch.tensor([1.0, 1.0, 3.0], dtype=torch.float64)
    environment = tb.environments.Table(ARMS[:3], costs, 0.1, costs=costs)

    def play(seed: int, name: str, budget: float, ends: int = -1) -> tuple[list[int], list[float]]:
        options: dict[str, Any] = {"generator": generator(seed), "workers": 6, "asynchronous": True, "budget": budget}
        stop = lambda bandit, *_: bool(bandit.pulls == ends)  # noqa: E731
        history = tb.run(tb.uniform(), environment, 40, journal=tmp_path / f"{name}{seed}", callbacks=[stop], **options)
        return history.pulls["arm"].tolist(), history.pulls["reward"].tolist()

    for seed in range(12):
        for name in ("whole", "parts") if before is not None else ():
            play(seed, name, before, 1)  # more of the open picks can be paid for than later
        play(seed, "parts", 5.0, 1 if before is None else 2)
        assert play(seed, "parts", 5.0) == play(seed, "whole", 5.0)


def test_simulated_workers_within_a_budget_evaluate_all_that_is_open():
    costs = torch.linspace(1, 5, len(ARMS), dtype=torch.float64)
    table = tb.environments.Table(ARMS, torch.tensor([smooth(point) for point in ARMS], dtype=torch.float64), 0.1, costs=costs)
    for name, policy in policies().items():
        told: list[tuple[int, bool]] = []

        def look(bandit: tb.Bandit, picks: tb.Selection, *_: Any, told: list[tuple[int, bool]] = told) -> None:
            told.append((int(picks.mask.sum()), bandit.loop.open is None))

        options: dict[str, Any] = {"generator": generator(4), "workers": 8, "asynchronous": True, "budget": 12.0}
        history = tb.run(policy, table, 50, callbacks=[look], **options)
        assert [picks for picks, _ in told] == [1] * len(told), f"{name}: picks beyond the budget are not told"
        assert told[-1][1], f"{name}: no pick stays open"
        assert float(costs[torch.tensor(history.pulls["arm"].tolist())].sum()) <= 12


def test_asynchronous_within_a_budget():
    costs = 1 + torch.arange(60, dtype=torch.float64) / 10
    environment = BlackBox(noisy, ARMS, 0.1, seeded=True, costs=costs)
    with ThreadPoolExecutor(3) as pool:
        history = tb.run(
            tb.thompson_sampling(rbf(), noise_std=0.1),
            environment,
            500,
            budget=40.0,
            executor=pool,
            workers=3,
            asynchronous=True,
        )
    assert 39 < history.summary()["cost"] <= 40


def test_a_callback_ends_an_asynchronous_run():
    with ThreadPoolExecutor(3) as pool:
        history = tb.run(
            tb.thompson_sampling(rbf(), noise_std=0.1),
            BlackBox(noisy, ARMS, seeded=True),
            500,
            executor=pool,
            workers=3,
            asynchronous=True,
            callbacks=[lambda bandit, *_: bool(bandit.pulls >= 5)],
        )
    assert 5 <= history.num_pulls[0] <= 7


# ---------------------------------------------------------------------- failures


class Fails:
    """An evaluation that fails on chosen arms, or on the first attempts of every pull."""

    def __init__(self, bad: Tensor | None = None, attempts: int = 0, how: str = "raise") -> None:
        self.bad, self.attempts, self.how = bad, attempts, how
        self.calls: dict[int, int] = {}
        self.release = threading.Event()

    def __call__(self, point: Tensor, seed: int) -> Any:
        self.calls[seed] = self.calls.get(seed, 0) + 1
        fails = self.calls[seed] <= self.attempts
        if self.bad is not None:
            fails = bool((point == ARMS[self.bad]).all(dim=-1).any())
        if fails and self.how == "raise":
            raise ValueError("the oven is cold")
        if fails and self.how == "stuck":
            self.release.wait()
        return {"nan": float("nan"), "none": None, "text": "a lot"}.get(self.how) if fails else noisy(point, seed)


@pytest.mark.sweep(1)
@pytest.mark.parametrize("how", ["raise", "nan", "none", "text"])
@pytest.mark.parametrize("parallel", [False, True])
def test_what_fails_is_tried_again_and_the_run_is_the_same(how: str, parallel: bool):
    plain = tb.run(policies()["batch_bkb"], BlackBox(noisy, ARMS, seeded=True), 20, generator=generator(1))
    fails = Fails(attempts=2, how=how)
    executor = Shuffled(1) if parallel else None
    environment = BlackBox(fails, ARMS, seeded=True)
    history = tb.run(policies()["batch_bkb"], environment, 20, generator=generator(1), executor=executor, retries=2)
    same(plain, history)
    assert set(fails.calls.values()) == {3}
    assert "failed" not in history.summary()


@pytest.mark.sweep
@pytest.mark.parametrize("name", sorted(policies()))
@pytest.mark.parametrize(("parallel", "asynchronous"), [(False, False), (True, False), (True, True)])
def test_failures_are_forgotten_counted_and_never_told(name: str, parallel: bool, asynchronous: bool):
    bad = torch.arange(0, 60, 3)
    options: dict[str, Any] = {"executor": Shuffled(2), "workers": 3, "asynchronous": asynchronous} if parallel else {}
    bandits: list[tb.Bandit] = []
    environment = BlackBox(Fails(bad), ARMS, seeded=True)
    history = tb.run(
        policies()[name],
        environment,
        40,
        generator=generator(1),
        failures="exclude",
        callbacks=[lambda bandit, *_: bandits.append(bandit)],
        **options,
    )
    assert not np.isin(history.pulls["arm"], bad.numpy()).any()
    failed = int(history.batches["failed"].sum())
    assert failed > 0
    assert failed + len(history) == 40
    assert history.summary()["failed"] == failed
    assert int(history.batches["size"].sum()) == len(history)
    assert history.batches["t"].tolist() == history.batches["size"].cumsum().tolist()
    assert bandits[0].loop.open is None
    bandits[0].loop.sync_()
    assert not bandits[0].loop.state.has_pending
    told = tb.Bandit(policies()[name], ARMS)
    told.observe(torch.tensor(history.pulls["arm"]), torch.ones(len(history)), torch.tensor(history.pulls["reward"]))
    assert torch.equal(told.counts, bandits[0].counts)


def test_a_forgotten_pick_leaves_nothing_behind():
    """With told and failed picks in one batch, the posterior depends only on the told picks."""
    bad = torch.arange(0, 60, 2)
    kept: list[tb.Bandit] = []
    environment = BlackBox(Fails(bad), ARMS, seeded=True)
    policy = tb.thompson_sampling(rbf(), noise_std=0.1, batch_size=6)
    history = tb.run(policy, environment, 30, failures="forget", callbacks=[lambda bandit, *_: kept.append(bandit)])
    assert 0 < history.batches["failed"].sum() < 30
    alone = tb.Bandit(policy, ARMS)
    alone.observe(torch.tensor(history.pulls["arm"]), torch.ones(len(history)), torch.tensor(history.pulls["reward"]))
    for a, b in zip(vars(kept[0].posterior(ARMS)).values(), vars(alone.posterior(ARMS)).values(), strict=True):
        torch.testing.assert_close(a, b)


def test_exclude_spares_a_deterministic_policy_the_same_failure_and_ends_when_no_arm_is_left():
    environment = BlackBox(Fails(torch.arange(60)), ARMS, seeded=True)
    forget = tb.run(tb.gp_ucb(rbf(), noise_std=0.1), environment, 10, failures="forget")
    assert forget.summary()["failed"] == 10
    assert len(forget) == 0
    assert len(forget.batches["size"]) == 10
    exclude = tb.run(tb.gp_ucb(rbf(), noise_std=0.1), environment, 100, failures="exclude")
    assert exclude.summary()["failed"] == 60, "each arm once, then the run ends"


def test_exclude_is_for_the_row_that_failed():
    arms = torch.stack([ARMS, ARMS + 1])
    environment = BlackBox(Fails(torch.arange(60)), arms, seeded=True)  # only row 0's arms fail
    history = tb.run(
        tb.gp_ucb(rbf(), noise_std=0.1), environment, 70, generator=[generator(0), generator(1)], failures="exclude"
    )
    assert history.num_pulls.tolist() == [0, 70]
    assert history.row(0).summary()["failed"] == 60
    assert "failed" not in history.row(1).summary()


TWICE = torch.cat([ARMS[:12], ARMS[:3]])
"""Fifteen arms, the last three of which equal the first three."""


@pytest.mark.sweep(3)
@pytest.mark.parametrize("name", policies())
@pytest.mark.parametrize("asynchronous", [False, True])
def test_without_repeats_no_arm_is_pulled_twice_and_the_run_ends_when_all_have_a_result(name: str, asynchronous: bool):
    options: dict[str, Any] = {"executor": Shuffled(2), "workers": 3, "asynchronous": True} if asynchronous else {}
    out: list[int] = []

    def count(bandit: tb.Bandit, selection: tb.Selection, *_: object) -> None:
        out.append(int(selection.mask.sum()) + (0 if bandit.loop.open is None else int(bandit.loop.open.mask.sum())))

    environment = BlackBox(noisy, TWICE, seeded=True)
    played: dict[str, Any] = {"generator": generator(1), "callbacks": [count], "repeats": False}
    history = tb.run(policies()[name], environment, 40, **played, **options)
    assert sorted(arm % 12 for arm in history.pulls["arm"].tolist()) == list(range(12)), "equal arms are one arm"
    assert not asynchronous or out[:3] == [3, 3, 3], "all workers are busy"
    seen = (torch.arange(5), torch.ones(5), torch.zeros(5))
    history = tb.run(policies()[name], environment, 4, observed=seen, **played, **options)
    assert len(history) == 4
    assert not np.isin(history.pulls["arm"] % 12, np.arange(5)).any(), "history counts as results"


def test_without_repeats_each_row_and_all_outcomes_of_a_table_have_their_own_results():
    rewards = torch.stack([torch.sin(5 * ARMS[:, 0]), ARMS[:, 1]])[:, :20]
    rows = Table(ARMS[:20].expand(2, -1, -1), rewards, noise_std=0.1)
    policy = tb.batch_bkb(rbf(), noise_std=0.1, ratio_threshold=4.0)
    history = tb.run(policy, rows, 30, generator=[generator(0), generator(1)], repeats=False)
    for row in range(2):
        assert sorted(history.row(row).pulls["arm"].tolist()) == list(range(20))
    models = {name: tb.gp_ucb(rbf(), noise_std=0.1) for name in ("a", "b")}
    history = tb.run(tb.outcomes.pareto(models), rows, 30, repeats=False)
    assert sorted(history.row(0).pulls["arm"].tolist()) == list(range(20))


@pytest.mark.sweep(3)
@pytest.mark.parametrize("fail", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("asynchronous", [False, True])
def test_without_repeats_the_last_open_picks_are_evaluated_when_the_run_resumes(fail: int, asynchronous: bool, tmp_path: Path):
    """No further arm was on offer, and the picks that were open when the run was interrupted stayed open for ever."""
    arms, calls = torch.rand(5, 2, dtype=torch.float64, generator=generator(0)), itertools.count(1)

    def once_broken(point: Tensor) -> float:
        if next(calls) == fail:
            raise RuntimeError("broken")
        return float(point.sum())

    environment, path = BlackBox(once_broken, arms), tmp_path / "run.journal"
    policy = tb.gp_bucb(rbf(), noise_std=0.1, width=tb.widths.Constant(2.0), max_batch_size=2)
    with ThreadPoolExecutor(1) as executor:
        parallel: dict[str, Any] = {"executor": executor, "workers": 1, "asynchronous": True} if asynchronous else {}
        with pytest.raises(errors.EvaluationError) as caught:
            tb.run(policy, environment, 20, journal=path, repeats=False, **parallel)
        caught.value.bandit.journal.close()
        history = tb.run(policy, environment, 20, journal=path, repeats=False, **parallel)
    assert sorted(history.pulls["arm"].tolist()) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_run_that_resumes_with_fewer_rounds_forgets_the_open_picks_beyond_them(asynchronous: bool, tmp_path: Path):
    calls = itertools.count(1)

    def once_broken(point: Tensor) -> float:
        if next(calls) == 7:
            raise RuntimeError("broken")
        return float(point.sum())

    def play(rounds: int) -> tb.History:
        policy = tb.thompson_sampling(rbf(), noise_std=0.1, batch_size=4)
        own: dict[str, Any] = {"workers": 4, "asynchronous": True} if asynchronous else {}
        return tb.run(policy, BlackBox(once_broken, ARMS), rounds, generator=generator(1), journal=tmp_path / "run", **own)

    with pytest.raises(errors.EvaluationError) as caught:
        play(20)
    bandit = caught.value.bandit
    told, opened = int(bandit.pulls), len(bandit.ask())
    assert bandit.journal is not None
    assert opened > 1
    bandit.journal.close()
    del bandit, caught
    history = play(told + 1)
    assert history.num_pulls.tolist() == [told + 1]
    kinds = [record["kind"] for record in tb.Journal(tmp_path / "run").records()]
    assert kinds[-2:] == ["forget", "tell"]
    assert len(play(20)) == 20, "and more rounds than before are made"


def test_a_run_without_repeats_resumes_and_still_decides_on_failures(tmp_path: Path):
    bad = torch.arange(0, 60, 3)

    def play(path: Path | None, pulls: tuple[int, ...] = ()) -> tb.History:
        return tb.run(
            tb.thompson_sampling(rbf(), noise_std=0.1, batch_size=4),
            BlackBox(Fails(bad), ARMS, seeded=True),
            100,
            generator=generator(1),
            failures="exclude",
            journal=None if path is None else tb.Journal(path, every=5, durable=False),
            callbacks=[killed_at(left)] if (left := list(pulls)) else [],
            repeats=False,
        )

    expected = play(None)
    assert sorted(expected.pulls["arm"].tolist()) == [arm for arm in range(60) if arm % 3]
    assert expected.batches["failed"].sum() == 20, "each once, and none again"
    for pulls in (3, 21):
        with pytest.raises(Killed):
            play(tmp_path / "run.journal", (pulls,))
    same(expected, play(tmp_path / "run.journal"))


@pytest.mark.parametrize("kind", ["without repeats", "budget"])
def test_a_batch_of_which_one_of_two_equal_picks_was_forgotten_has_the_same_noise_when_the_run_resumes(
    kind: str, tmp_path: Path
):
    """Of equal picks a journal forgets the first, and so the rest of the batch was evaluated in another order."""

    class Interrupted(Table):
        def __init__(self, at: int) -> None:
            super().__init__(ARMS[:8], torch.sin(5 * ARMS[:8, 0]), 0.5, costs=torch.full((8,), 3.0))
            self.left = at

        def sample(self, index: Tensor, generators: Any) -> Tensor:
            self.left -= 1
            if self.left == 0:
                raise KeyboardInterrupt
            return super().sample(index, generators)

    options: dict[str, Any] = {"repeats": False} if kind == "without repeats" else {"budget": 50.0}

    def play(path: Path | None, seed: int, at: int = 0) -> tb.History:
        generators = [generator(seed), generator(90 + seed)]
        return tb.run(tb.uniform(batch_size=6), Interrupted(at), 30, generator=generators, journal=path, **options)

    for seed in range(3):
        expected = play(None, seed)
        for at in range(1, int(expected.batches["batch"].max()) + 1):
            path = tmp_path / f"{seed}-{at}.journal"
            with pytest.raises(KeyboardInterrupt):
                play(path, seed, at)
            same(expected, play(path, seed))


@pytest.mark.parametrize("how", ["raise", "nan", "none"])
@pytest.mark.parametrize("kind", ["plain", "threads", "asynchronous"])
def test_by_default_a_failure_ends_the_run_and_keeps_what_came(how: str, kind: str):
    bad = torch.arange(0, 60, 4)
    options: dict[str, Any] = {} if kind == "plain" else {"executor": Shuffled(0), "workers": 2}
    policy, environment = tb.uniform(batch_size=3), BlackBox(Fails(bad, how=how), ARMS, seeded=True)
    with pytest.raises(errors.EvaluationError) as caught:
        tb.run(policy, environment, 200, generator=generator(3), asynchronous=kind == "asynchronous", **options)
    error = caught.value
    assert error.__cause__ is not None
    assert type(error.__cause__).__name__ in str(error)
    assert len(error.history) == int(error.bandit.pulls) > 0
    assert not np.isin(error.history.pulls["arm"], bad.numpy()).any()
    opened = error.bandit.ask()
    failed = opened.index[torch.isin(opened.index, bad)]
    assert len(failed) > 0, "what failed is open, to be told or forgotten"
    error.bandit.forget(opened)
    error.bandit.tell(error.bandit.ask(), torch.ones(3, dtype=torch.float64))
    assert str(pickle.loads(pickle.dumps(errors.EvaluationError("so")))) == "so"


def test_a_table_that_breaks_ends_a_plain_run_with_what_was_learned():
    class Breaks(Own):
        def __init__(self) -> None:
            super().__init__()
            self.left = 5

        def sample(self, index: Tensor, generators: Any) -> Tensor:
            self.left -= 1
            if self.left < 0:
                raise OSError("the disk is gone")
            return super().sample(index, generators)

    with pytest.raises(errors.EvaluationError, match="the disk is gone") as caught:
        tb.run(tb.uniform(), Breaks(), 20)
    assert len(caught.value.history) == 5


@pytest.mark.exhaustive
def test_late_evaluations_fail_and_hold_their_worker():
    """Two of four workers are occupied during both runs, which shows that the runs do not wait for them."""
    picks = tb.run(tb.uniform(batch_size=8), BlackBox(noisy, ARMS, seeded=True), 16, generator=generator(0)).pulls["arm"]
    fails = Fails(torch.tensor(np.unique(picks)[:2]), how="stuck")
    environment = BlackBox(fails, ARMS, seeded=True)
    with ThreadPoolExecutor(4) as pool:
        try:
            options = {"executor": pool, "workers": 4, "timeout": 1.0, "failures": "exclude"}
            history = tb.run(tb.uniform(batch_size=8), environment, 16, generator=generator(0), **options)
            assert history.summary()["failed"] >= 2
            assert history.summary()["pulls"] + history.summary()["failed"] == 16
            with pytest.raises(errors.EvaluationError, match=r"no result came in 0\.1 s") as caught:
                tb.run(tb.uniform(batch_size=8), environment, 160, executor=pool, workers=2, timeout=0.1)
            assert isinstance(caught.value.__cause__, TimeoutError)
        finally:
            fails.release.set()


def test_when_late_ones_hold_every_worker_the_run_says_so():
    release = threading.Event()
    with ThreadPoolExecutor(2) as pool:
        options = {"executor": pool, "workers": 2, "timeout": 0.05, "failures": "forget"}
        try:
            with pytest.raises(errors.EvaluationError, match="all 2 workers are held") as caught:
                tb.run(tb.uniform(batch_size=4), BlackBox(lambda point: float(release.wait()), ARMS), 8, **options)
        finally:
            release.set()
    assert int(caught.value.bandit.ask().mask.sum()) == 4


def crash(point: Tensor, seed: int, folder: str, until: int) -> float:
    """Kill the process after `until` calls."""
    Path(folder, str(seed)).touch()
    if len(os.listdir(folder)) > until:
        os._exit(3)
    return noisy(point, seed)


@pytest.mark.exhaustive
def test_a_crashed_worker_breaks_a_pool_of_processes_and_what_came_is_kept(tmp_path: Path):
    function = functools.partial(crash, folder=str(tmp_path), until=7)
    environment = BlackBox(function, ARMS, seeded=True)
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        with pytest.raises(errors.EvaluationError, match="BrokenProcessPool") as caught:
            tb.run(tb.uniform(batch_size=3), environment, 30, executor=pool, retries=5, failures="forget")
        error = caught.value
        assert isinstance(error.__cause__, BrokenProcessPool)
        assert len(error.history) == int(error.bandit.pulls) == 7
        assert int(error.bandit.ask().mask.sum()) == 2
        with pytest.raises(errors.EvaluationError) as caught:
            tb.run(tb.uniform(), environment, 3, executor=pool)
        assert isinstance(caught.value.__cause__, BrokenExecutor)
        assert len(caught.value.history) == 0


def test_a_closed_executor_is_an_error_that_says_so():
    pool = ThreadPoolExecutor(1)
    pool.shutdown()
    with pytest.raises(errors.EvaluationError, match="shutdown"):
        tb.run(tb.uniform(), BlackBox(smooth, ARMS), 3, executor=pool)


class Killed(Exception):
    """An exception that represents the end of the process."""


def killed_at(pulls: list[int], some_out: bool = False) -> Callable[..., None]:
    def kill(bandit: tb.Bandit, *_: Any) -> None:
        if pulls and float(bandit.pulls) >= pulls[0] and (bandit.loop.open is not None or not some_out):
            pulls.pop(0)
            assert bandit.journal is not None
            bandit.journal.close()
            raise Killed

    return kill


@pytest.mark.sweep(1)
@pytest.mark.parametrize("failures", ["forget", "exclude"])
@pytest.mark.parametrize("parallel", [False, True])
def test_a_journal_goes_on_where_evaluations_fail(failures: str, parallel: bool, tmp_path: Path):
    """Picks, rewards, failures and excluded arms are those of an undisturbed run."""
    bad = torch.arange(0, 60, 3)

    def play(path: Path | None, pulls: tuple[int, ...] = ()) -> tb.History:
        return tb.run(
            tb.thompson_sampling(rbf(), noise_std=0.1, batch_size=4),
            BlackBox(Fails(bad), ARMS, seeded=True),
            40,
            generator=generator(1),
            failures=failures,
            journal=None if path is None else tb.Journal(path, every=5, durable=False),
            callbacks=[killed_at(left)] if (left := list(pulls)) else [],
            executor=Shuffled(2) if parallel else None,
            workers=3 if parallel else None,
        )

    expected = play(None)
    for pulls in (3, 11):
        with pytest.raises(Killed):
            play(tmp_path / "run.journal", (pulls,))
    found = play(tmp_path / "run.journal")
    same(expected, found)
    assert expected.batches["failed"].tolist() == found.batches["failed"].tolist()
    assert found.batches["failed"].sum() > 0


@pytest.mark.parametrize("failures", ["forget", "exclude", "raise"])
def test_a_run_with_failures_leaves_its_journal_closed_so_that_it_can_be_made_longer(failures: str, tmp_path: Path):
    tries = itertools.count()

    def sometimes(point: Tensor) -> float:
        if next(tries) % 3 == 1:
            try:
                raise OSError("the device is away")
            except OSError as error:
                raise ValueError("no measurement") from error
        return smooth(point)

    def play(rounds: int) -> tb.History:
        environment = BlackBox(sometimes, ARMS)
        how: dict[str, Any] = {"retries": 1} if failures == "raise" else {"failures": failures}
        return tb.run(tb.uniform(), environment, rounds, generator=generator(1), journal=tmp_path / "journal", **how)

    gc.disable()  # a journal that only the collection of garbage closes can't be opened by the next call
    try:
        first = play(10)
        second = play(20)
    finally:
        gc.enable()
    assert len(second) + second.batches["failed"].sum() == 20
    assert second.pulls["reward"][: len(first)].tolist() == first.pulls["reward"].tolist()


@pytest.mark.exhaustive
def test_a_journal_of_an_asynchronous_run_keeps_what_was_told_and_evaluates_again_what_was_out(tmp_path: Path):
    bad, path = torch.arange(0, 60, 3), tmp_path / "run.journal"

    def play(environment: BlackBox, pulls: tuple[int, ...] = ()) -> tb.History:
        return tb.run(
            tb.gp_ucb(rbf(), noise_std=0.1),
            environment,
            30,
            generator=generator(1),
            budget=100.0,
            failures="exclude",
            journal=tb.Journal(path, every=4, durable=False),
            callbacks=[killed_at(left, some_out=True)] if (left := list(pulls)) else [],
            executor=Reluctant(3),
            workers=3,
            asynchronous=True,
        )

    environment = BlackBox(Fails(bad), ARMS, seeded=True, costs=torch.ones(60, dtype=torch.float64))
    told: list[tuple[int, float]] = []
    for pulls in (5, 14):
        with pytest.raises(Killed):
            play(environment, (pulls,))
        records = [record for record in tb.Journal(path).records() if record["kind"] == "tell"]
        pairs = [pair for record in records for pair in zip(held(record["index"]), held(record["rewards"]), strict=True)]
        now = [(int(arm), float(reward)) for arm, reward in pairs if bool(reward.isfinite())]
        assert now[: len(told)] == told
        told = now
    asked = [record for record in tb.Journal(path).records() if record["kind"] == "ask"]
    assert sum(len(record["index"]) for record in asked) > len(pairs), "some were out"
    history = play(environment)
    assert list(zip(history.pulls["arm"], history.pulls["reward"], strict=True))[: len(told)] == told
    assert len(history) + history.summary()["failed"] == 30
    assert not np.isin(history.pulls["arm"], bad.numpy()).any()
    assert play(environment) == play(environment), "a run that is over is over"


@pytest.mark.usefixtures("annotations_not_enforced")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"executor": 4}, "executor must be"),
        ({"executor": Shuffled(0), "workers": 0}, "workers must be"),
        ({"executor": Shuffled(0), "workers": True}, "workers must be"),
        ({"retries": -1}, "retries must be"),
        ({"retries": 1.5}, "retries must be"),
        ({"executor": Shuffled(0), "timeout": 0}, "timeout must be"),
        ({"executor": Shuffled(0), "timeout": float("nan")}, "timeout must be"),
        ({"failures": "ignore"}, "failures must be one of raise, forget, exclude"),
        ({"repeats": 1}, "repeats must be True or False"),
        ({"workers": 2}, "need an executor"),
        ({"workers": 2, "asynchronous": True, "timeout": 1.0}, "need an executor"),
        ({"asynchronous": True}, "needs workers="),
        ({"timeout": 2.0}, "need an executor"),
        ({"executor": Shuffled(0), "asynchronous": True}, "needs workers="),
        ({"executor": Shuffled(0), "workers": 2, "asynchronous": 1}, "True or False"),
    ],
)
def test_bad_options_are_refused(options: dict[str, Any], message: str):
    with pytest.raises(errors.ArgumentError, match=message):
        tb.run(tb.uniform(), BlackBox(smooth, ARMS), 3, **options)


def test_asynchronous_is_for_one_row():
    with pytest.raises(errors.UnsupportedError, match="one batch row"):
        tb.run(
            tb.uniform(),
            BlackBox(smooth, ARMS),
            3,
            generator=[generator(0), generator(1)],
            executor=Shuffled(0),
            workers=2,
            asynchronous=True,
        )


@pytest.mark.exhaustive
@pytest.mark.usefixtures("annotations_not_enforced")
def test_bad_black_boxes_are_refused():
    for bad in ({"function": 3}, {"noise_std": -1.0}, {"noise_std": float("inf")}, {"costs": torch.zeros(60)}):
        with pytest.raises(errors.ArgumentError):
            BlackBox(**({"function": smooth, "arms": ARMS} | bad))
    with pytest.raises(errors.ArmIndexError):
        BlackBox(smooth, ARMS).sample(torch.tensor([60]), [generator(0)])
    assert "60, 2" in repr(BlackBox(smooth, ARMS))
