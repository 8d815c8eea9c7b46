"""Cost of a step on a device: operations sent to it, and waits of the host for it, within limits for nine policies."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import pytest
import torch
from emulated_device import Asked, emulated_device
from problems import generator, kernel_pair, rbf

import torchbandits as tb
from torchbandits import ratios, reporting, transfers
from torchbandits.arms import columns, graphs, lookahead, strategies
from torchbandits.arms.leaders import pick_rows

HISTORY, STEPS = 60, 4
NOISE = {"noise_std": 0.1}


@dataclass(frozen=True)
class Limit:
    """Most launches and waits of a step of one ask and one tell: slightly more than were counted when the limit was set."""

    make: Callable[[], tb.policies.Policy]
    launches: int
    waits: int


LIMITS = {
    "gp_ucb": Limit(lambda: tb.gp_ucb(rbf(2.0), **NOISE), 40, 2),
    "igp_ucb": Limit(lambda: tb.igp_ucb(rbf(2.0), **NOISE), 36, 2),
    "lin_ucb": Limit(lambda: tb.lin_ucb(**NOISE), 40, 2),
    "rff_ucb": Limit(lambda: tb.rff_ucb(rbf(2.0), **NOISE), 40, 2),
    "compressed_gp": Limit(lambda: tb.compressed_gp(rbf(2.0), **NOISE), 41, 2),
    "bkb": Limit(lambda: tb.bkb(rbf(2.0), **NOISE), 62, 3),
    "batch_bkb": Limit(lambda: tb.batch_bkb(rbf(2.0), ratio_threshold=4.0, **NOISE), 85, 4),
    "gp_bucb": Limit(lambda: tb.gp_bucb(rbf(2.0), **NOISE), 75, 3),
    "gp_bucb, batches": Limit(lambda: tb.gp_bucb(rbf(2.0), ratio_threshold=4.0, noise_std=1.0), 104, 5),
    "thompson_sampling": Limit(
        lambda: tb.thompson_sampling(rbf(2.0), embedding="nystrom", width=tb.widths.Constant(1.0), **NOISE), 94, 3
    ),
}


def steps_of(
    make: Callable[[], tb.policies.Policy], A: int, steps: int, rows: int | None = None, features: int = 4
) -> list[tuple[int, int, int]]:
    """Launches, waits and picks per row of each of the first steps after `HISTORY` pulls."""
    g = generator(0)
    arms = torch.rand(A, features, generator=g, dtype=torch.float64) * 2
    means = torch.sin(2 * arms.sum(dim=-1))
    told = torch.randperm(A, generator=g)[:HISTORY].expand(*([] if rows is None else [rows]), HISTORY)
    generators = generator(1) if rows is None else [generator(row) for row in range(rows)]
    found = []
    with emulated_device() as asked:
        bandit = tb.Bandit(make(), arms.cuda(), generator=generators)
        values = means[told] + 0.1 * torch.randn(told.shape, generator=g).double()
        bandit.observe(told.cuda(), torch.ones_like(values).cuda(), values.cuda())
        for _ in range(steps):
            before = Asked(asked.launches, asked.waits)
            selection = bandit.ask(limit=60)
            half = Asked(asked.launches, asked.waits)
            index = selection.index.cpu()
            rewards = (means[index] + 0.1 * torch.randn(index.shape, generator=g).double()).cuda()
            answered = Asked(asked.launches, asked.waits)
            bandit.tell(selection, rewards)
            launches = asked.launches - before.launches - (answered.launches - half.launches)
            waits = asked.waits - before.waits - (answered.waits - half.waits)
            found.append((launches, waits, index.shape[-1]))
    return found


def counted(make: Callable[[], tb.policies.Policy], A: int, rows: int | None = None) -> tuple[float, float, float]:
    """Average launches, waits and picks per row of a step, after two that are not counted."""
    launches, waits, picks = (sum(numbers) / STEPS for numbers in zip(*steps_of(make, A, STEPS + 2, rows)[2:], strict=True))
    return launches, waits, picks


def test_the_emulation_counts_what_is_asked():
    with emulated_device() as asked:
        x = torch.ones(3, dtype=torch.float64).cuda()  # from pageable memory
        assert (asked.launches, asked.waits) == (0, 1)
        y = (x + 1).reshape(3, 1).T  # one launch; views are free
        assert (asked.launches, asked.waits) == (1, 1)
        float(y[0, 0])
        assert (asked.launches, asked.waits) == (1, 2)
        y[y > 1]  # a comparison, and an indexing whose size depends on the numbers
        assert (asked.launches, asked.waits) == (3, 3)
        torch.ones(3, dtype=torch.float64).pin_memory().to("cuda", non_blocking=True)
        assert (asked.launches, asked.waits) == (3, 3)
        y.cpu()
        assert (asked.launches, asked.waits) == (3, 4)


@pytest.mark.sweep(1)
@pytest.mark.parametrize("name", LIMITS)
def test_a_step_asks_no_more_of_a_device_than_its_limit(name: str):
    limit = LIMITS[name]
    launches, waits, _ = counted(limit.make, 20_000)
    assert 20 < launches <= limit.launches
    assert 1 <= waits <= limit.waits


@pytest.mark.sweep(2)
@pytest.mark.parametrize("name", LIMITS)
def test_a_step_in_which_the_scales_are_checked_asks_for_one_wait_more(name: str):
    # The check is made at the eighth tell, and the history was the first.
    *_, before, checked = steps_of(LIMITS[name].make, 20_000, 7)
    assert 0 < checked[0] - before[0] <= 25
    assert checked[1] - before[1] == 1


@pytest.mark.sweep(1)
@pytest.mark.parametrize("start", [None, tb.starts.uniform(100)])
def test_first_picks_ask_no_more_of_a_device_than_others(start: tb.starts.Start | None):
    # Without a start the policy draws 2⁸ arms first.
    found = steps_of(lambda: tb.compressed_gp(rbf(2.0), initial=start, **NOISE), 20_000, 4, features=8)
    assert max(launches for launches, _, _ in found) <= LIMITS["compressed_gp"].launches
    assert max(waits for _, waits, _ in found) <= LIMITS["compressed_gp"].waits


@pytest.mark.sweep(1)
@pytest.mark.parametrize(("name", "copies"), [("gp_ucb", 6), ("lin_ucb", 6), ("bkb", 12)])
def test_a_step_of_one_pick_copies_a_few_times(name: str, copies: int, monkeypatch: pytest.MonkeyPatch):
    moved, together = [], transfers._together
    monkeypatch.setattr(transfers, "_together", lambda *given: moved.append(1) or together(*given))
    counts = []
    for steps in (3, 5):
        moved.clear()
        steps_of(LIMITS[name].make, 2_000, steps)
        counts.append(len(moved))
    assert counts[1] - counts[0] <= 2 * copies


def test_tensors_of_every_kind_are_copied_together():
    g = generator(0)
    numbers = torch.rand(3, 4, generator=g, dtype=torch.float64)
    kinds = (
        numbers.T, numbers[:, 1], numbers[0, 0], numbers[:1, 2], torch.rand(0, 3, generator=g), numbers.float()[None],
        torch.arange(5)[::2], torch.tensor([True, False]).expand(3, 2), torch.tensor(7, dtype=torch.int32),
    )  # fmt: skip
    single = (numbers[1, 1], torch.tensor(3), numbers[2, 2], torch.tensor(True), torch.tensor(4))
    for given in (
        kinds,
        kinds[::-1],
        kinds[:4],
        kinds[:1],
        kinds[4:5],
        kinds[2:4],
        single,
        single[::2],
        single[:1] + single[2:3],
    ):
        with emulated_device() as asked:
            there = transfers.to_device(torch.device("cuda:0"), *given)
            assert all(x.device.type == "cuda" for x in there)
            assert asked.waits == 0
            here = transfers.to_host(*there)
            assert asked.waits == 1
        for one, own in zip(given, here, strict=True):
            assert one.dtype == own.dtype
            assert one.shape == own.shape
            assert torch.equal(one, own)


def test_the_warning_of_a_selection_told_again_asks_nothing_of_the_device(monkeypatch: pytest.MonkeyPatch):
    arms, spent, said = torch.rand(1_500, 4, generator=generator(0), dtype=torch.float64), [], 0
    for warned in (True, False):
        with emulated_device() as asked:
            bandit = tb.Bandit(tb.gp_ucb(rbf(2.0), **NOISE), arms.cuda(), generator=generator(1))
            selection = bandit.ask(more=4)
            rewards = torch.rand(4, generator=generator(2), dtype=torch.float64).cuda()
            bandit.tell(selection, rewards)
            if not warned:
                monkeypatch.setattr(reporting, "_warn_of_closed", lambda *_: None)
            before = Asked(asked.launches, asked.waits)
            with warnings.catch_warnings(record=True) as found:
                warnings.simplefilter("always")
                bandit.tell(selection, rewards)
            said += len(found)
            spent.append((asked.launches - before.launches, asked.waits - before.waits))
    assert said == 1
    assert spent[0] == spent[1]


@pytest.mark.sweep(1)
@pytest.mark.parametrize("name", ["gp_ucb", "lin_ucb", "rff_ucb", "bkb", "batch_bkb"])
def test_launches_do_not_grow_with_the_arms(name: str):
    few, many = (counted(LIMITS[name].make, A) for A in (1_500, 6_000))
    assert many[0] <= 1.15 * few[0]
    assert many[1] <= 1.15 * few[1] + 1


def test_launches_do_not_grow_with_the_picks_of_a_batch():
    def batches(ratio_threshold: float) -> tb.policies.Policy:
        return tb.batch_bkb(rbf(2.0), ratio_threshold=ratio_threshold, noise_std=1.0, max_batch_size=50)

    short, long = (counted(partial(batches, threshold), 1_500) for threshold in (1.05, 8.0))
    assert long[2] > 20 * short[2]
    assert long[0] < 1.1 * short[0]
    assert long[1] < 1.1 * short[1]


def local_batches(batch_rule: str) -> tb.policies.Policy:
    return tb.batch_bkb(rbf(2.0), ratio_threshold=8.0, noise_std=1.0, max_batch_size=50, batch_rule=batch_rule)


@pytest.mark.sweep(1)
@pytest.mark.parametrize("A", [1_500, pytest.param(20_000, marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize("batch_rule", ["global", "local", "global_then_local", "exact_ratio"])
def test_local_batch_rules_ask_for_a_batch_and_little_for_a_look_at_all_arms(
    batch_rule: str, A: int, monkeypatch: pytest.MonkeyPatch
):
    looks, fresh = [], []
    again = lookahead.Lookahead._handed_again
    monkeypatch.setattr(lookahead, "pick_rows", lambda **given: looks.append(1) or pick_rows(**given))
    monkeypatch.setattr(lookahead.Lookahead, "_handed_again", lambda *given: fresh.append(1) or again(*given))
    launches, waits, picks = counted(partial(local_batches, batch_rule), A)
    assert picks > 15
    # A batch, the looks after it at all arms, and the further leaders of long batches (`counted` leaves out two batches).
    steps = STEPS + 2
    further = len(fresh) / STEPS
    assert len(looks) / steps >= (1 if batch_rule == "global" else 2)
    assert launches <= 140 + 3 * len(looks) / steps + 18 * further
    assert waits <= 6 + len(looks) / steps + further
    assert further <= 0.5


def test_further_leaders_of_a_batch_ask_for_a_few_operations_and_one_wait(monkeypatch: pytest.MonkeyPatch):
    def batches() -> tb.policies.Policy:
        return tb.batch_bkb(rbf(2.0), ratio_threshold=8.0, noise_std=1.0, max_batch_size=50)

    rounds = []
    again = lookahead.Lookahead._handed_again
    monkeypatch.setattr(lookahead.Lookahead, "_handed_again", lambda *given: rounds.append(1) or again(*given))
    few = counted(batches, 20_000)
    seldom = len(rounds)
    monkeypatch.setattr(lookahead, "_LEADERS_ON_DEVICE", 64)
    many = counted(batches, 20_000)
    assert many[2] == few[2]
    # `counted` leaves out the first two batches, in which 64 leaders are enough.
    further = (len(rounds) - 2 * seldom) / STEPS
    assert further >= 1.5
    assert many[0] - few[0] <= 18 * further
    assert many[1] - few[1] <= further


BATCHES = {
    "batch_bkb": lambda: tb.batch_bkb(rbf(0.4), ratio_threshold=40.0, noise_std=0.5, max_batch_size=40),
    "once": lambda: tb.batch_bkb(rbf(0.4), ratio_threshold=40.0, noise_std=0.5, max_batch_size=40, max_pulls=1),
    "gp_bucb": lambda: tb.gp_bucb(rbf(0.4), ratio_threshold=1e9, noise_std=0.5, max_batch_size=40),
}


@pytest.mark.sweep(1)
@pytest.mark.parametrize("rows", [None, 3])
@pytest.mark.parametrize("name", BATCHES)
@pytest.mark.parametrize("case", ["leaders", "no factor", "off offer"])
def test_further_leaders_on_a_device_pick_what_they_pick_on_the_host(
    name: str, rows: int | None, case: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(lookahead, "_LEADERS", 12)
    monkeypatch.setattr(lookahead, "_LEADERS_ON_DEVICE", 12)
    rounds = []
    again = lookahead.Lookahead._handed_again
    monkeypatch.setattr(lookahead.Lookahead, "_handed_again", lambda *given: rounds.append(1) or again(*given))
    if case == "no factor":
        monkeypatch.setattr(lookahead, "cholesky", lambda M: (M, torch.zeros(len(M), dtype=torch.bool)))

    def picked(device: str) -> list[list[int]]:
        g, found = generator(2), []
        arms = torch.rand(400, 2, generator=g, dtype=torch.float64)
        generators = generator(3) if rows is None else [generator(row) for row in range(rows)]
        bandit = tb.Bandit(BATCHES[name](), arms.to(device), generator=generators)
        for _ in range(3):
            selection = bandit.ask(available=(torch.arange(400) % 3 > 0).to(device) if case == "off offer" else None)
            found.append(selection.index.tolist())
            rewards = torch.randn(selection.index.shape, generator=g, dtype=torch.float64)
            bandit.tell(selection, rewards.to(device))
        return found

    with emulated_device():
        there = picked("cuda")
    assert rounds or case == "no factor"
    assert there == picked("cpu")


@pytest.mark.sweep(1)
@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.parametrize("rows", [None, 2])
@pytest.mark.parametrize("batch_rule", ["local", "global_then_local", "exact_ratio"])
def test_local_batch_rules_pick_on_a_device_what_they_pick_on_the_host(
    batch_rule: str, rows: int | None, kept: bool, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(lookahead, "_LEADERS_ON_DEVICE", 64)
    if not kept:
        monkeypatch.setattr(ratios, "_KEPT", 0)

    def picked(device: str) -> list[list[int]]:
        g, found = generator(2), []
        arms = torch.rand(400, 3, generator=g, dtype=torch.float64)
        generators = generator(3) if rows is None else [generator(row) for row in range(rows)]
        bandit = tb.Bandit(local_batches(batch_rule), arms.to(device), generator=generators)
        for _ in range(4):
            selection = bandit.ask()
            found.append(selection.index.tolist())
            rewards = torch.randn(selection.index.shape, generator=g, dtype=torch.float64)
            bandit.tell(selection, rewards.to(device))
        return found

    with emulated_device():
        there = picked("cuda")
    assert there == picked("cpu")
    assert max(len(batch if rows is None else batch[0]) for batch in there) > 10


@pytest.mark.sweep(1)
@pytest.mark.parametrize("name", ["gp_ucb", "bkb"])
def test_many_batch_rows_ask_for_little_more_than_one(name: str):
    one, many = (counted(LIMITS[name].make, 1_500, rows=rows) for rows in (1, 16))
    assert many[0] <= 1.2 * one[0]


@pytest.mark.parametrize(("name", "launches"), [("gp_ucb", 43), pytest.param("bkb", 72, marks=pytest.mark.exhaustive)])
def test_batch_rows_with_unequal_numbers_of_points_ask_for_little_more(name: str, launches: int):
    asked = counted(LIMITS[name].make, 20_000, rows=16)
    assert asked[0] <= launches
    assert asked[1] <= LIMITS[name].waits


@pytest.mark.exhaustive
def test_batch_rows_of_a_sparse_posterior_ask_for_the_same_however_many_they_are():
    one, few, many = (counted(LIMITS["bkb"].make, 1_500, rows=rows) for rows in (None, 4, 32))
    for launches, waits, _ in (few, many):
        assert launches <= 1.2 * one[0]
        assert waits <= one[1] <= 3
    assert many[0] <= 1.05 * few[0]


FEATURES = {
    "linear": lambda **given: tb.lin_ucb(noise_std=0.3, **given),
    "Fourier": lambda **given: tb.rff_ucb(rbf(2.0), noise_std=0.3, num_features=16, **given),
}


@pytest.mark.sweep(1)
@pytest.mark.parametrize("rows", [None, 3])
@pytest.mark.parametrize("prior_mean", [0.0, "estimate"])
@pytest.mark.parametrize("features", FEATURES)
def test_factors_that_catch_up_on_a_device_are_those_of_the_host(
    features: str, prior_mean: float | str, rows: int | None, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(strategies, "_BEHIND", 24)
    g = generator(4)
    arms, rest = (torch.rand(n, 3, generator=g, dtype=torch.float64) for n in (60, 7))
    noise = torch.randn(*([] if rows is None else [rows]), 80, generator=g, dtype=torch.float64)

    def played(device: str) -> tuple[list[list[int]], torch.Tensor, torch.Tensor, torch.Tensor]:
        generators = generator(5) if rows is None else [generator(row) for row in range(rows)]
        bandit = tb.Bandit(FEATURES[features](prior_mean=prior_mean), arms.to(device), generator=generators)
        picks = []
        for step in range(80):
            selection = bandit.ask()
            picks.append(selection.index.tolist())
            reward = arms.to(device)[selection.index].sum(dim=-1) + 0.3 * noise[..., step : step + 1].to(device)
            if step == 40:  # an error restores the state
                before = bandit.loop.state.arm_mean().cpu()
                with pytest.MonkeyPatch.context() as broken:
                    broken.setattr("torchbandits.policies.learning.ArmTable._update_one", lambda *_: 1 / 0)
                    with pytest.raises(ZeroDivisionError):
                        bandit.tell(selection, reward)
                assert torch.equal(bandit.loop.state.arm_mean().cpu(), before)
            bandit.tell(selection, reward)
        process = bandit.loop.state.posterior
        found = process(rest.to(device).expand(*noise.shape[:-1], 7, 3))
        return picks, bandit.loop.state.arm_mean().cpu(), found.mean.cpu(), found.variance.cpu()

    with emulated_device():
        there = played("cuda")
    here = played("cpu")
    assert there[0] == here[0]
    for own, other in zip(there[1:], here[1:], strict=True):
        torch.testing.assert_close(own, other, rtol=1e-8, atol=1e-8)


def test_pure_exploration_waits_for_the_device_once_a_batch_and_never_for_a_pick(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(graphs, "GRAPHS", False)
    asked_for = []
    for horizon in (100, 1_000):
        g = generator(0)
        arms = torch.rand(20_000, 4, generator=g, dtype=torch.float64)
        with emulated_device() as asked:
            bandit = tb.Bandit(tb.bpe(rbf(0.3), horizon=horizon, noise_std=0.1), arms.cuda(), generator=generator(1))
            before = Asked(asked.launches, asked.waits)
            picks = bandit.ask().index.shape[-1]
            asked_for.append((picks, asked.launches - before.launches, asked.waits - before.waits))
    few, many = asked_for
    assert many[0] > 3 * few[0]
    assert many[2] == few[2] <= 6
    assert (many[1] - few[1]) / (many[0] - few[0]) <= 16


@pytest.mark.sweep(1)
@pytest.mark.parametrize("rows", [None, 2])
@pytest.mark.parametrize("kernel", ["rbf", "matern32", "linear"])
@pytest.mark.parametrize("ties", [True, False])
def test_pure_exploration_picks_on_a_device_what_it_picks_on_the_host(
    kernel: str, rows: int | None, ties: bool, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(graphs, "GRAPHS", False)
    line = torch.linspace(-1, 1, 36, dtype=torch.float64)
    arms = torch.cartesian_prod(line, line) if ties else torch.rand(1_300, 2, generator=generator(3), dtype=torch.float64)

    def picked(device: str) -> list[list[int]]:
        g = generator(2)
        policy = tb.bpe(kernel_pair(kernel)[0], horizon=900, noise_std=0.1)
        generators = generator(3) if rows is None else [generator(row) for row in range(rows)]
        bandit, found = tb.Bandit(policy, arms.to(device), generator=generators), []
        for limit in (4, 6, 5):
            selection = bandit.ask(limit=limit if rows is None else torch.tensor([limit, 3]))
            found.append(selection.index.tolist())
            beside = bandit.ask(more=3)  # given the picks that are pending
            found.append(beside.index.tolist())
            for one in (selection, beside):
                rewards = torch.randn(one.index.shape, generator=g, dtype=torch.float64).to(device)
                # The second selection contains the first one, which counts again.
                bandit.tell(one.index, torch.where(one.mask, rewards, torch.nan))
        return found

    with emulated_device():
        there = picked("cuda")
    assert there == picked("cpu")


@pytest.mark.sweep(1)
@pytest.mark.parametrize(("kernel", "launches"), [("rbf", 6), ("matern32", 11)])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("scattered", [False, True])
def test_a_sweep_waits_for_no_block_and_asks_for_few_operations_a_block(
    kernel: str, launches: int, dtype: torch.dtype, scattered: bool, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(columns, "FUSED", False)
    arms = torch.rand(8_192, 3, generator=generator(0), dtype=torch.float64).to(dtype)
    if scattered:  # a block beyond the norms for which distances come from a product
        arms[100] *= 1e6
    told = torch.arange(101, 131)
    values = torch.sin(arms[told].double().sum(dim=-1))

    def swept(device: str) -> tuple[torch.Tensor, torch.Tensor, int, int]:
        policy = tb.bkb(kernel_pair(kernel, 1.0)[0], noise_std=0.1, memory_budget=1)
        bandit = tb.Bandit(policy, arms.to(device), generator=generator(1))
        bandit.observe(told.to(device), torch.ones_like(values).to(device), values.to(device))
        table = bandit.loop.state.table
        before = Asked(asked.launches, asked.waits)
        table.sweep_()
        spent = asked.launches - before.launches, asked.waits - before.waits
        return table.mean().cpu(), table.leverage.cpu(), *spent

    found = []
    for block in (2_048, 256):
        monkeypatch.setattr(columns.KernelColumns, "step", lambda *_, block=block: block)
        with emulated_device() as asked:
            found.append(swept("cuda"))
    few, many = found
    assert many[3] == few[3] <= 8
    assert many[2] - few[2] <= launches * (8_192 // 256 - 8_192 // 2_048)
    tolerance = {torch.float64: 1e-9, torch.float32: 2e-3}[dtype]
    for mean, leverage, *_ in found:
        expected = swept("cpu")
        torch.testing.assert_close(mean, expected[0], rtol=tolerance, atol=tolerance)
        torch.testing.assert_close(leverage, expected[1], rtol=tolerance, atol=tolerance)
