"""BPE under delay: a pick at every step, rewards some steps later, against a dense oracle that keeps lists."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import oracles
import oracles_phased
import pytest
import torch
from problems import BOUNDED, COMMON, DELTA, NORM_BOUND, OFF_SCALE, Problem, generator, kernel_pair, rbf

import torchbandits as tb
from torchbandits import errors
from torchbandits.policies.bpe import batch_lengths
from torchbandits.widths import Constant


@dataclass
class Late:
    """A naive run: the picks of the batch, the rewards told, and the picks still pending, of this and of earlier batches."""

    bpe: oracles_phased.BPE
    lengths: list[int]
    delay: int
    made: int = 0
    told: list[tuple[int, float]] = field(default_factory=list)
    out: list[int] = field(default_factory=list)

    def candidates(self) -> list[int]:
        """The survivors of the largest variance given the rewards of the batch and all pending picks of survivors."""
        return self.bpe.largest([arm for arm, _ in self.told] + [arm for arm in self.out if arm in self.bpe.alive])

    def pick(self, arm: int) -> None:
        self.made += 1
        self.out.append(arm)

    def tell(self, arms: list[int], rewards: list[float]) -> None:
        for arm in arms:
            self.out.remove(arm)
        if not self.lengths:
            return
        self.told += [(arm, y) for arm, y in zip(arms, rewards, strict=True) if arm in self.bpe.alive]
        wanted = self.lengths[0] - self.delay if self.lengths[0] > self.delay else self.lengths[0]
        if len(self.told) >= wanted and self.made >= self.lengths[0]:
            self.bpe.finish([arm for arm, _ in self.told], [y for _, y in self.told])
            self.told, self.made, self.lengths = [], 0, self.lengths[1:]


def alive(bandit: tb.Bandit, row: int | None = None) -> list[int]:
    kept = bandit.loop.state.survivors.alive
    return (kept if row is None else kept[row]).nonzero().squeeze(-1).tolist()


def one_more(bandit: tb.Bandit) -> int:
    return int((bandit.ask(limit=1) if bandit.loop.open is None else bandit.ask(more=1)).index[-1])


def test_batches_are_longer_by_the_delay_and_add_up_to_the_horizon():
    assert batch_lengths(10_000, 50) == (150, 1050, 3213, 5587)
    assert [n + 7 for n in batch_lengths(10**6)[:3]] == list(batch_lengths(10**6, 7)[:3])
    for horizon in (1, 2, 5, 40, 333, 10**9):
        for delay in (1, 3, 50, 10**12):
            lengths = batch_lengths(horizon, delay)
            assert sum(lengths) == horizon
            assert min(lengths) > 0


@pytest.mark.sweep(1)
@pytest.mark.parametrize("kernel_name", ["rbf", pytest.param("matern32", marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize(
    ("seed", "delay", "slowest", "width"), [(0, 4, 4, 1.0), (1, 8, 8, 0.5), (2, 3, 12, 1.0), (3, 5, 5, None)]
)
def test_picks_and_survivors_are_the_oracle_s(kernel_name: str, seed: int, delay: int, slowest: int, width: float | None):
    """With delays up to the given one, and longer ones. Rewards that are later than it are not waited for, and count towards a
    later batch."""
    problem, T, lam = Problem(seed=seed, a=40), 90, 0.01
    kernel, ours = kernel_pair(kernel_name)
    wide = None if width is None else Constant(width)
    policy = tb.bpe(kernel, horizon=T, delay=delay, regularization=lam, width=wide, **(BOUNDED | {"noise_std": 0.1}))
    lengths = list(batch_lengths(T, delay))
    used = width or oracles_phased.fixed_design_width(0.1, NORM_BOUND, DELTA, lam, 40 * len(lengths))
    naive = Late(oracles_phased.BPE(ours(problem.arms, problem.arms), used, lam, list(range(40))), lengths, delay)
    bandit = tb.Bandit(policy, problem.tensor)
    assert float(bandit.width) == pytest.approx(used, rel=1e-14)
    coming, draw, finished, late = [], np.random.default_rng(seed), [], 0
    for step in range(T + 10):
        arm = one_more(bandit)
        if naive.lengths:
            assert arm in naive.candidates()
        naive.pick(arm)
        coming.append((step + int(draw.integers(0, slowest + 1)), arm, problem.reward(step, arm)))
        due = [(arm, y) for at, arm, y in coming if at <= step]
        coming = [entry for entry in coming if entry[0] > step]
        if not due:
            continue
        arms, rewards = [arm for arm, _ in due], [y for _, y in due]
        before = len(naive.lengths)
        report = bandit.tell(torch.tensor(arms), torch.tensor(rewards, dtype=torch.float64))
        naive.tell(arms, rewards)
        if len(naive.lengths) < before:
            finished.append(len(naive.bpe.alive))
            late += len(naive.out)
            assert int(bandit.loop.state.survivors.batch) == len(finished)
            assert float(report.certificate) == pytest.approx(naive.bpe.upper - naive.bpe.lower, rel=1e-6, abs=1e-9)
        assert alive(bandit) == naive.bpe.alive
    assert len(finished) == len(batch_lengths(T, delay))
    assert late > 0, "batches ended while rewards were out"
    assert width is None or finished[-1] < 40


def test_of_a_whole_batch_the_slowest_are_not_waited_for():
    problem = Problem(seed=4, a=40)
    policy = tb.bpe(rbf(), horizon=100, delay=5, width=Constant(1.0), **COMMON)
    bandit = tb.Bandit(policy, problem.tensor)
    opened = bandit.ask()
    assert len(opened) == 10 + 5
    bandit.tell(opened[:9], problem.rewards(0, opened.index[:9]))
    assert int(bandit.loop.state.survivors.batch) == 0
    bandit.tell(opened[9:10], problem.rewards(9, opened.index[9:10]))
    assert int(bandit.loop.state.survivors.batch) == 1
    K = oracles.rbf(0.4)(problem.arms, problem.arms)
    oracle = oracles_phased.BPE(K, 1.0, 0.01, list(range(40)))
    oracle.finish(opened.index[:10].tolist(), problem.rewards(0, opened.index[:10]).tolist())
    assert alive(bandit) == oracle.alive
    bandit.tell(opened[10:12], problem.rewards(10, opened.index[10:12]))
    known = sum(arm in oracle.alive for arm in opened.index[10:12].tolist())
    assert int(bandit.loop.state.inner.told) == known, "what is late counts towards the next batch, where its arm is alive"
    bandit.forget(bandit.ask())
    again = bandit.ask()
    assert len(again) == batch_lengths(100, 5)[1] + 3, "three were forgotten, two of the late ones told"
    bandit.tell(again, problem.rewards(12, again.index))
    assert int(bandit.loop.state.survivors.batch) == 2


def test_a_batch_that_is_not_longer_than_the_delay_waits_for_all():
    problem = Problem(seed=4, a=40)
    bandit = tb.Bandit(tb.bpe(rbf(), horizon=6, delay=20, width=Constant(1.0), **COMMON), problem.tensor)
    opened = bandit.ask()
    assert len(opened) == 6
    bandit.tell(opened[:5], problem.rewards(0, opened.index[:5]))
    assert int(bandit.loop.state.survivors.batch) == 0
    bandit.tell(opened[5:], problem.rewards(5, opened.index[5:]))
    assert int(bandit.loop.state.survivors.batch) == 1


def test_rows_are_singles_whatever_their_delays():
    problem, options = Problem(seed=2, a=40), COMMON | {"horizon": 60, "width": Constant(0.7), "delay": 4}
    singles = [tb.Bandit(tb.bpe(rbf(), **options), problem.tensor) for _ in range(2)]
    rows = tb.Bandit(tb.bpe(rbf(), **options), problem.tensor, generator=[generator(0), generator(1)])
    waits, waiting = (1, 6), [[], []]
    for step in range(60):
        opened = rows.ask(limit=1) if rows.loop.open is None else rows.ask(more=1)
        told = []
        for row, single in enumerate(singles):
            arm = one_more(single)
            assert int(opened.index[row][opened.mask[row]][-1]) == arm
            waiting[row].append(arm)
            told.append(waiting[row].pop(0) if len(waiting[row]) > waits[row] else -1)
            if told[-1] >= 0:
                single.tell(torch.tensor(told[-1:]), problem.rewards(step, torch.tensor(told[-1:])))
        index = torch.tensor(told).unsqueeze(-1)
        if bool((index >= 0).any()):
            rewards = torch.stack([problem.rewards(step, own.clamp_min(0)) for own in index])
            rows.tell(index, torch.where(index >= 0, rewards, 0.0))
        for row, single in enumerate(singles):
            assert alive(rows, row) == alive(single)
            assert int(rows.loop.state.survivors.batch[row]) == int(single.loop.state.survivors.batch)
    assert int(singles[0].loop.state.survivors.batch) >= 2


def test_rewards_of_one_row_end_no_batch_of_another():
    """The batch of row 0 lacks a pick when its last reward comes. It ends at the next reward of that row."""
    problem = Problem(seed=2, a=40)
    policy = tb.bpe(rbf(), **COMMON | {"horizon": 16, "width": Constant(0.7), "delay": 1})
    rows = tb.Bandit(policy, problem.tensor, generator=[generator(0), generator(1)])
    selection, first = rows.ask(limit=4), torch.tensor([True, False])

    def tell(mine: torch.Tensor) -> list[int]:
        told = tb.Selection(selection.points, selection.index, mine.unsqueeze(-1) & selection.mask)
        rows.tell(told, problem.rewards(0, selection.index.reshape(-1)).reshape(selection.index.shape))
        return rows.loop.state.survivors.batch.tolist()

    assert rows.policy.lengths[0] == 5
    assert tell(first) == [0, 0]
    later = rows.ask(more=1)
    assert tell(~first) == [0, 1]
    selection = tb.Selection(later.points[:, :1], later.index[:, :1], later.mask[:, :1])
    assert tell(first) == [1, 1]


@pytest.mark.sweep(1)
@pytest.mark.parametrize("how", ["journal", "saved"])
def test_a_run_that_was_cut_goes_on_the_same(how: str, tmp_path: Path):
    problem = Problem(seed=6, a=40)

    def made(**options) -> tb.Bandit:
        return tb.Bandit(tb.bpe(rbf(), horizon=50, delay=4, width=Constant(0.7), **COMMON), problem.tensor, **options)

    def play(bandit: tb.Bandit, waiting: list[int], steps: range) -> list[int]:
        picks = []
        for step in steps:
            picks.append(one_more(bandit))
            waiting.append(picks[-1])
            if len(waiting) > 3:
                index = torch.tensor([waiting.pop(0)])
                bandit.tell(index, problem.rewards(step, index))
        return picks

    plain, waiting = made(), []
    expected = play(plain, waiting, range(50))
    for cut in (12, 20):
        path = tmp_path / f"{cut}.journal"
        first = made(journal=tb.Journal(path, durable=False)) if how == "journal" else made()
        waiting = []
        got = play(first, waiting, range(cut))
        if how == "journal":
            first.posterior(problem.tensor[:2])  # reading must not change a state that a resumed run needs
            first.journal.close()
            other = made(journal=tb.Journal(path, durable=False))
        else:
            other = made()
            other.load_state_dict(first.state_dict())
        assert got + play(other, waiting, range(cut, 50)) == expected
        assert alive(other) == alive(plain)


@OFF_SCALE
def test_however_late_rewards_are_the_best_arm_stays():
    """10 functions of known norm, the width of the theorem, delays with a heavy tail: δ = 0.1 allows 1 failure."""
    failures, left, ended = 0, [], []
    for seed in range(10):
        environment = tb.environments.rkhs(dim=1, generator=generator(seed))
        means, kernel = environment.means.numpy(), kernel_pair("matern32", 0.2)[0]
        known = {"noise_std": 1.0, "norm_bound": environment.norm_bound, "delta": 0.1, "regularization": 1.0}
        bandit = tb.Bandit(tb.bpe(kernel, horizon=1500, delay=60, **known), environment.arms)
        noise, draw = [generator(100 + seed)], np.random.default_rng(seed)
        while int(bandit.loop.state.survivors.batch) < 3:
            opened = bandit.ask()
            slow = torch.as_tensor(draw.pareto(1.5, len(opened))).argsort()[: len(opened) - 60]
            bandit.tell(opened.index[slow], environment.sample(opened.index[slow], noise))
            bandit.forget(bandit.ask())
        upper, lower = (float(x) for x in bandit.policy.bounds(bandit.loop.state))
        failures += int(means.argmax()) not in alive(bandit) or not lower <= means.max() <= upper
        left.append(len(alive(bandit)))
        ended.append(int(bandit.pulls))
    assert failures <= 1
    assert np.mean(left) < 0.9 * 30
    assert max(ended) < 1500


@pytest.mark.usefixtures("annotations_not_enforced")
def test_a_delay_is_a_whole_number():
    for wrong in (0, -1, 2.5, True, "two", math.nan):
        with pytest.raises(errors.ArgumentError, match="delay"):
            tb.bpe(rbf(), horizon=10, delay=wrong, **BOUNDED)
