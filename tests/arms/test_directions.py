"""The fast strategies of an exact table, a kept covariance and columns evaluated ahead, give the picks of the plain one."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref
from multiprocessing.reduction import ForkingPickler

import numpy as np
import pytest
import torch
from emulated_device import Lane, emulated_device
from problems import BOUNDED, COMMON, NOISE_STD, OFF_SCALE, Problem, generator, rbf

import torchbandits as tb
from torchbandits.arms import directions as module
from torchbandits.arms import reserve


def run(policy, problem: Problem, pulls: int) -> tuple[list[int], tb.Bandit]:
    bandit = tb.Bandit(policy, problem.tensor, generator=generator(0))
    return [i for batch in problem.play(bandit, pulls) for i in batch], bandit


@pytest.mark.sweep(1)
@pytest.mark.parametrize("policy", ["gp_ucb", "igp_ucb", "gp_bucb"])
@pytest.mark.parametrize("near", [0, 10])
def test_all_lanes_pick_the_same_arms(policy, near, monkeypatch):
    problem = Problem(seed=3, a=120, duplicates=5, near_duplicates=near)
    options = COMMON if policy == "gp_ucb" else BOUNDED
    lanes = {}
    for lane, (arms, most) in {"kept": (1024, 64), "ahead": (0, 64), "plain": (0, 0)}.items():
        monkeypatch.setattr(module, "_DENSE_ARMS", arms)
        if not most:  # the plain strategy evaluates no arm ahead
            monkeypatch.setattr(
                module.Directions, "_looked_ahead", lambda self, slot, _: self._without(self._prior(slot), slot, 0)
            )
        picks, bandit = run(getattr(tb, policy)(rbf(0.2), **options), problem, 180)
        table = bandit.loop.state.table
        assert table is not None
        assert table.directions is not None
        assert table.directions.dense == (lane == "kept")
        lanes[lane] = picks
        lam = bandit.posterior.regularization
        bandit.posterior.invalidate_()
        marginals = bandit.posterior(problem.tensor)
        np.testing.assert_allclose(lam * table.leverage.numpy(), marginals.variance.numpy(), rtol=1e-6, atol=1e-11)
        np.testing.assert_allclose(table.mean().numpy(), marginals.mean.numpy(), rtol=0, atol=1e-7)
    assert lanes["kept"] == lanes["plain"]
    assert lanes["ahead"] == lanes["plain"]


def test_columns_ahead_are_used(monkeypatch: pytest.MonkeyPatch):
    """On a spread-out problem, most columns of pulled arms were evaluated ahead."""
    problem = Problem(seed=4, a=2000)
    bandit = tb.Bandit(tb.gp_ucb(rbf(0.1), **COMMON), problem.tensor, generator=generator(0))
    table = bandit.loop.state.table
    assert table is not None
    assert table.directions is not None
    plain, passes = module.Directions._without, list[int]()

    def without(self: module.Directions, start: torch.Tensor, slot: torch.Tensor, first: int) -> torch.Tensor:
        passes.append(first)
        return plain(self, start, slot, first)

    monkeypatch.setattr(module.Directions, "_without", without)
    problem.play(bandit, 200)
    assert len(passes) > 190
    assert 0 < passes.count(0) < 100


def test_columns_of_the_last_batch_are_kept(monkeypatch: pytest.MonkeyPatch):
    """Arms that are pulled in two batches in a row need no other evaluation, and the posterior is the exact one. Columns
    that would take more than half of the memory of T are not kept."""
    monkeypatch.setattr(module, "_DENSE_ARMS", 0)
    evaluated: list[int] = []
    plain = module.Directions._prior

    def prior(self: module.Directions, slot: torch.Tensor) -> torch.Tensor:
        evaluated.extend(slot.tolist())
        return plain(self, slot)

    monkeypatch.setattr(module.Directions, "_prior", prior)
    problem = Problem(seed=4, a=200)
    bandit = tb.Bandit(tb.gp_ucb(rbf(0.3), **COMMON), problem.tensor, generator=generator(0))
    many = list(range(50, 90))
    batches = [list(range(20, 28)), [0, 1, 2, 3], [2, 9, 0, 8], [8, 2, 7, 0], [5, 6], [7, 5, 6], many, many[:2]]
    for pull, arms in enumerate(batches):
        bandit.tell(torch.tensor(arms), problem.rewards(10 * pull, torch.tensor(arms)))
    # Nothing is kept before the first bounds are known.
    # Others are evaluated up to a multiple of four columns.
    assert evaluated == [*batches[0], *batches[1], 9, 8, 2, 0, 7, 8, 2, 0, *batches[4], 7, 5, 6, *many, *many[:2]]
    table = bandit.loop.state.table
    bandit.posterior.invalidate_()
    exact = bandit.posterior(problem.tensor)
    torch.testing.assert_close(bandit.posterior.regularization * table.leverage, exact.variance, rtol=1e-7, atol=1e-10)
    torch.testing.assert_close(table.mean(), exact.mean, rtol=0, atol=1e-8)


@pytest.mark.exhaustive
@pytest.mark.parametrize("rows", [1, 3])
def test_columns_ahead_on_a_device_are_those_of_the_cpu(lane: Lane, rows: int, monkeypatch: pytest.MonkeyPatch):
    """Most pulls find the columns of their batch row, and where one does not, that row has a pass over its own T."""
    monkeypatch.setattr(module, "_DENSE_ARMS", 0)
    monkeypatch.setattr(module, "_AHEAD_BYTES", 1)
    monkeypatch.setattr(module, "_AHEAD_BYTES_ON_CPU", 1)
    plain, passes = module.Directions._without, list[int]()

    def without(self: module.Directions, start: torch.Tensor, slot: torch.Tensor, first: int) -> torch.Tensor:
        passes.append(first)
        return plain(self, start, slot, first)

    problem = Problem(seed=4, a=500)

    def play(device: str) -> tuple[torch.Tensor, torch.Tensor]:
        generators = [generator(row) for row in range(rows)]
        bandit = tb.Bandit(tb.gp_ucb(rbf(0.1), **COMMON), problem.tensor.to(device), generator=generators)
        picks = []
        for pull in range(120):
            if pull == 60:
                passes.clear()
            selection = bandit.ask()
            picks.append(selection.index.cpu())
            rewards = torch.stack([problem.rewards(pull + 1000 * row, index) for row, index in enumerate(picks[-1])])
            bandit.tell(selection, rewards.to(device))
        return torch.cat(picks, dim=-1), bandit.loop.state.table.leverage.cpu()

    expected, other = play("cpu")
    with lane(), monkeypatch.context() as patch:
        patch.setattr(module.Directions, "_without", without)
        found, leverage = play("cuda")
    assert torch.equal(found, expected)
    assert rows == 1 or not torch.equal(found[0], found[1])
    torch.testing.assert_close(leverage, other, rtol=1e-9, atol=1e-9)
    assert 0 < passes.count(0) < 20
    assert len(passes) >= 60


@pytest.mark.exhaustive
@pytest.mark.parametrize("rows", [1, 3])
def test_columns_ahead_of_unpredictable_pulls_are_not_evaluated(lane: Lane, rows: int, monkeypatch: pytest.MonkeyPatch):
    """Pulls that are not those of the policy, as of a user who tells results of other arms, cost one column each."""
    monkeypatch.setattr(module, "_DENSE_ARMS", 0)
    monkeypatch.setattr(module, "_AHEAD_BYTES", 1)
    evaluated, plain = list[int](), module.Directions._prior

    def prior(self: module.Directions, slot: torch.Tensor) -> torch.Tensor:
        evaluated.append(slot.shape[-1])
        return plain(self, slot)

    monkeypatch.setattr(module.Directions, "_prior", prior)
    problem, order = Problem(seed=4, a=500), torch.stack([torch.randperm(500, generator=generator(row)) for row in range(rows)])
    generators = [generator(row) for row in range(rows)]
    with lane():
        bandit = tb.Bandit(tb.gp_ucb(rbf(0.1), **COMMON), problem.tensor.to("cuda"), generator=generators)
        for pull in range(100):
            bandit.ask()
            index = order[:, pull : pull + 1]
            bandit.tell(index.to("cuda"), problem.rewards(pull, index[:1, 0]).expand(rows, 1).to("cuda"))
    assert len(evaluated) > 90
    assert sum(evaluated) < 200


@pytest.mark.exhaustive
def test_a_device_without_memory_for_columns_ahead_evaluates_fewer_and_fewer(lane: Lane, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "_DENSE_ARMS", 0)
    monkeypatch.setattr(module, "_AHEAD_BYTES", 1)
    problem, plain, refused = Problem(seed=4, a=500), module.Directions._without, list[int]()

    def without(self: module.Directions, start: torch.Tensor, slot: torch.Tensor, first: int) -> torch.Tensor:
        if slot.shape[-1] > 1:
            refused.append(slot.shape[-1])
            raise torch.OutOfMemoryError
        return plain(self, start, slot, first)

    def play(device: str) -> torch.Tensor:
        generators = [generator(row) for row in range(2)]
        bandit, picks = tb.Bandit(tb.gp_ucb(rbf(0.1), **COMMON), problem.tensor.to(device), generator=generators), []
        for pull in range(80):
            selection = bandit.ask()
            picks.append(selection.index.cpu())
            rewards = torch.stack([problem.rewards(pull + 1000 * row, index) for row, index in enumerate(picks[-1])])
            bandit.tell(selection, rewards.to(device))
        return torch.cat(picks, dim=-1)

    expected = play("cpu")
    with lane(), monkeypatch.context() as patch:
        patch.setattr(module.Directions, "_without", without)
        assert torch.equal(play("cuda"), expected)
    assert 0 < len(refused) < 20


@pytest.mark.exhaustive
@OFF_SCALE
def test_a_kept_covariance_survives_a_failed_tell_at_any_point_of_its_block(monkeypatch):
    """Directions are subtracted from the covariance in place: a rollback must not subtract them twice."""
    problem = Problem(seed=5, a=60)
    policy = tb.gp_ucb(rbf(), **COMMON)
    bandit, twin = (tb.Bandit(policy, problem.tensor, generator=generator(0)) for _ in range(2))

    def fail(*_: object) -> None:
        raise tb.errors.NumericalError("on purpose")

    for pull in range(140):
        selection = bandit.ask()
        twin.ask()
        with monkeypatch.context() as patch:
            patch.setattr("torchbandits.loop.report_of", fail)
            with pytest.raises(tb.errors.NumericalError):
                bandit.tell(selection, torch.tensor([1e3], dtype=torch.float64))
        for b in (bandit, twin):
            b.tell(selection, problem.rewards(pull, selection.index))
    table, other = (b.loop.state.table for b in (bandit, twin))
    assert table is not None
    assert other is not None
    torch.testing.assert_close(table.leverage, other.leverage, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(table.mean(), other.mean(), rtol=0, atol=1e-9)


@pytest.mark.parametrize(
    ("known", "longest"), [(True, 4 * 40 + 64), (False, 40 + 8 * 13)], ids=["known columns", "new columns"]
)
def test_repeated_batches_are_swept_when_their_rows_have_cost_a_sweep(known, longest, monkeypatch: pytest.MonkeyPatch):
    """The longer T costs nothing where the columns of a batch are known: it is then four times as long as the arms pulled are
    many. Columns stay known when T is recomputed, and the posterior is the exact one."""
    monkeypatch.setattr(module, "_DENSE_ARMS", 0)
    evaluated, lengths = list[int](), list[int]()
    plain = module.Directions._prior

    def prior(self: module.Directions, slot: torch.Tensor) -> torch.Tensor:
        evaluated.append(len(slot))
        return plain(self, slot)

    monkeypatch.setattr(module.Directions, "_prior", prior)
    problem = Problem(seed=4, a=200)
    bandit = tb.Bandit(tb.gp_ucb(rbf(0.3), **COMMON), problem.tensor, generator=generator(0))
    table = bandit.loop.state.table
    for pull in range(60):
        arms = torch.arange(8) + (0 if known and pull > 4 else 8 * (pull % 5))
        bandit.tell(arms, problem.rewards(10 * pull, arms))
        lengths.append(table.directions.used)
    longest_seen = max(lengths)
    assert longest - 8 < longest_seen <= longest + 8
    swept = [pull for pull in range(6, 60) if lengths[pull] < lengths[pull - 1]]
    assert len(swept) >= 1
    assert all(lengths[pull] == 40 for pull in swept)
    assert sum(evaluated[6:]) == (0 if known else 8 * 54)
    variance, mean = bandit.posterior.regularization * table.leverage, table.mean()
    bandit.posterior.invalidate_()
    exact = bandit.posterior(problem.tensor)
    torch.testing.assert_close(variance, exact.variance, rtol=1e-7, atol=1e-10)
    torch.testing.assert_close(mean, exact.mean, rtol=0, atol=1e-8)


@pytest.mark.exhaustive
@pytest.mark.parametrize("arms", [60, 1500])
def test_a_state_saved_anywhere_in_a_block_continues_identically(arms):
    problem = Problem(seed=6, a=arms)
    policy = tb.gp_ucb(rbf(0.2), **COMMON)
    bandit = tb.Bandit(policy, problem.tensor, generator=generator(0))
    for pulls in (1, 40, 64, 65, 100):
        problem.play(bandit, pulls)
        twin = tb.Bandit(policy, problem.tensor, generator=generator(9)).load_state_dict(bandit.state_dict())
        assert problem.play(twin, 20) == problem.play(bandit, 20)


@pytest.mark.exhaustive
def test_a_long_run_on_few_arms_stays_exact():
    problem = Problem(seed=7, a=12)
    bandit = tb.Bandit(tb.gp_ucb(rbf(), **COMMON), problem.tensor, generator=generator(0))
    problem.play(bandit, 1100)
    table = bandit.loop.state.table
    assert table is not None
    variance = NOISE_STD**2 * table.leverage.numpy()
    bandit.posterior.invalidate_()
    np.testing.assert_allclose(variance, bandit.posterior(problem.tensor).variance.numpy(), rtol=1e-8)


def test_a_rollback_that_runs_twice_leaves_what_one_leaves():
    """An interrupted rollback is run again. Rows of T that were subtracted from the kept covariance stay subtracted."""
    problem = Problem(seed=3, a=40)
    bandit = tb.Bandit(tb.gp_ucb(rbf(), noise_std=0.1), problem.tensor, generator=generator(4))
    told = 0
    while bandit.loop.state.table.directions.used < 64:
        selection = bandit.ask()
        bandit.tell(selection, problem.rewards(told, selection.index))
        told += 1
    table, index = bandit.loop.state.table, torch.tensor([7])
    restore, expected = bandit.loop.state.snapshot(), table.directions.between(*(table.directions.features(index),) * 2)
    table.cross(index)  # subtracts the rows, because there are enough of them
    assert table.directions.used == 0
    for _ in range(2):
        restore()
        found = table.directions.between(*(table.directions.features(index),) * 2)
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.exhaustive
def test_a_large_t_exists_once_and_repeats_stay_within_the_budget(monkeypatch: pytest.MonkeyPatch):
    """From a third of the budget on its memory is reserved, and a sweep overwrites it. T has a row for every pull between two
    sweeps, and so exceeds the number of distinct arms."""
    for name in ("_LARGE_BYTES", "_OVERWRITTEN_BYTES"):
        monkeypatch.setattr(reserve, name, 0)
    problem, holds = Problem(seed=4, a=2000), 100
    tight, roomy = (
        tb.Bandit(tb.gp_ucb(rbf(0.3), noise_std=0.1, memory_budget=budget), problem.tensor)
        for budget in (holds * 8 * 2000, 2 << 30)
    )
    table, places, used = tight.loop.state.table, set[int](), 0
    for step in range(60):
        index = torch.randperm(90, generator=generator(step))[:10]
        for bandit in (tight, roomy):
            bandit.tell(index, problem.rewards(step, index))
        used = max(used, table.directions.used)
        if table.directions.used > holds // 2:
            places.add(table.directions.block.data_ptr())
    assert int(tight.posterior.statistics.size) == 90
    assert holds < used <= holds + 64 + 10
    assert len(places) == 1
    torch.testing.assert_close(table.leverage, roomy.loop.state.table.leverage, rtol=1e-8, atol=1e-9)
    assert torch.equal(tight.ask().index, roomy.ask().index)


@pytest.mark.exhaustive
@pytest.mark.parametrize("large", [True, False])
@pytest.mark.parametrize("spare", [64, 0])
def test_a_sweep_that_fails_after_it_overwrote_t_leaves_what_was_there(spare, large, monkeypatch: pytest.MonkeyPatch):
    """Without spare rows the storage is too small for the next sweep, and is given back before it."""
    sizes = {"_OVERWRITTEN_BYTES": 0, "SPARE": spare, "_SPARE_BYTES": 0} | ({"_LARGE_BYTES": 0} if large else {})
    for name, value in sizes.items():
        monkeypatch.setattr(reserve, name, value)
    problem = Problem(seed=4, a=2000)
    told = torch.randperm(2000, generator=generator(0))[:40]
    bandit, twin = (tb.Bandit(tb.auto(batch_size=4), problem.tensor, generator=generator(1)) for _ in range(2))
    for place in range(0, 16, 2):
        for each in (bandit, twin):
            each.tell(told[place : place + 2], problem.rewards(place, told[place : place + 2]))
    swept, calls = module.Directions.swept, list[int]()

    def broken(self: module.Directions, block: torch.Tensor, size: int) -> None:
        calls.append(size)
        if len(calls) == 1:
            block.fill_(torch.nan)
            raise MemoryError("the machine is full")
        swept(self, block, size)

    monkeypatch.setattr(module.Directions, "swept", broken)
    with pytest.raises(MemoryError, match="the machine is full"):
        bandit.tell(told[16:40], problem.rewards(16, told[16:40]))
    monkeypatch.setattr(module.Directions, "swept", swept)
    assert len(calls) == 2
    first, second = (each.loop.state.table for each in (bandit, twin))
    assert torch.equal(first.leverage, second.leverage)
    slot = torch.tensor([5, 900, int(told[3])])
    torch.testing.assert_close(first.cross(slot), second.cross(slot), rtol=1e-8, atol=1e-10)
    again = tb.Bandit(tb.auto(batch_size=4), problem.tensor, generator=generator(2))
    again.load_state_dict(bandit.state_dict())
    for each in (bandit, twin, again):
        each.tell(told[16:40], problem.rewards(16, told[16:40]))
    assert torch.equal(bandit.ask().index, twin.ask().index)
    torch.testing.assert_close(again.loop.state.table.leverage, first.leverage, rtol=1e-8, atol=1e-10)


@pytest.mark.exhaustive
def test_a_t_beyond_the_budget_grows_by_doubling(monkeypatch: pytest.MonkeyPatch):
    """Rows of the whole budget are reserved only while they are enough; otherwise every tell would copy all of T."""
    monkeypatch.setattr(reserve, "_LARGE_BYTES", 0)
    monkeypatch.setattr(reserve, "_SPARE_BYTES", 0)
    problem, holds = Problem(seed=4, a=2000), 20
    bandit = tb.Bandit(tb.gp_ucb(rbf(0.3), noise_std=0.1, memory_budget=holds * 8 * 2000), problem.tensor)
    told, sizes = torch.randperm(2000, generator=generator(0))[:400], list[int]()
    for place in range(0, 400, 4):
        bandit.tell(told[place : place + 4], problem.rewards(place, told[place : place + 4]))
        sizes.append(bandit.loop.state.table.directions.block.shape[-2])
    assert sorted(set(sizes)) == [holds + 128, 2 * (holds + 128), 4 * (holds + 128)]


def _with_rows(problem: Problem, rows: int, budget: int = 1000) -> tb.Bandit:
    """A bandit whose T has these rows, and whose budget holds `budget`."""
    bandit = tb.Bandit(tb.gp_ucb(rbf(0.3), noise_std=0.1, memory_budget=budget * 8 * 2000), problem.tensor)
    told = torch.randperm(2000, generator=generator(0))[:rows]
    for place in range(0, rows, 20):
        bandit.tell(told[place : place + 20], problem.rewards(place, told[place : place + 20]))
    return bandit


@pytest.mark.exhaustive
def test_the_budget_is_not_reserved_on_a_device(monkeypatch: pytest.MonkeyPatch):
    """Rows that nothing has written take no memory on the host, but do so on a device to which a bandit was moved."""
    monkeypatch.setattr(reserve, "_LARGE_BYTES", 0)
    problem = Problem(seed=4, a=2000)
    with emulated_device():
        bandit = _with_rows(problem, 100).to("cuda")
        told = torch.randperm(2000, generator=generator(1))[:80].to("cuda")
        for _ in range(5):
            bandit.tell(told, problem.rewards(1, told.cpu()).to("cuda"))
            assert bandit.loop.state.table.directions.block.shape[-2] < 1000


def test_a_loaded_state_gives_back_the_memory_of_t(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(reserve, "_LARGE_BYTES", 0)
    problem = Problem(seed=4, a=2000)
    bandit = _with_rows(problem, 100)
    for brief in (False, True):
        block = weakref.ref(bandit.loop.state.table.directions.block)
        bandit.load_state_dict(bandit.loop.state_dict(brief=brief) | {"policy": bandit.state_dict()["policy"]})
        gc.collect()
        assert block() is None


@pytest.mark.exhaustive
def test_a_bandit_that_is_sent_to_another_process_shares_no_rows_with_it(monkeypatch: pytest.MonkeyPatch):
    """Tensors that are sent to another process share their memory with it. Both may sweep and append afterwards. Spare rows are
    neither sent nor copied."""
    monkeypatch.setattr(reserve, "_LARGE_BYTES", 0)
    problem, slot = Problem(seed=4, a=2000), torch.tensor([5, 900])
    bandit = _with_rows(problem, 400)
    assert bandit.loop.state.table.directions.block.shape[-2] > 1000
    others = [pickle.loads(ForkingPickler.dumps(bandit)), pickle.loads(pickle.dumps(bandit)), copy.deepcopy(bandit)]
    for other in others:
        own = other.loop.state.table.directions
        assert own.block.shape[-2] == own.used == 400
        expected = other.loop.state.table.cross(slot)
        bandit.loop.state.table.sweep_()
        assert torch.equal(own._without(own._prior(slot), slot, 0), expected)
    for place, each in enumerate([bandit, *others]):
        index = torch.tensor([20 + place])
        each.tell(index, problem.rewards(place, index))
        found = each.loop.state.table.cross(slot)
        each.loop.state.table.sweep_()
        torch.testing.assert_close(each.loop.state.table.cross(slot), found, rtol=1e-8, atol=1e-10)
