"""Batched pure exploration and SupKernelUCB, compared with dense oracles pull for pull, and their documented corner cases."""

from __future__ import annotations

import copy
import math
import sys
from typing import Any

import numpy as np
import oracles
import oracles_phased
import pytest
import torch
from problems import BOUNDED, COMMON, DELTA, NOISE_STD, NORM_BOUND, OFF_SCALE, Problem, generator, kernel_pair, rbf
from test_laws import same
from tolerances import VARIANCE, Tolerance, assert_close
from torch import Tensor

import torchbandits as tb
from torchbandits import errors
from torchbandits.arms import ArmRows, ArmTable, Lookahead, greedy
from torchbandits.batching import Meter
from torchbandits.policies.bpe import BatchedPureExploration, batch_lengths
from torchbandits.policies.reds import doubling_lengths
from torchbandits.policies.sup_kernel_ucb import num_levels
from torchbandits.posteriors import GaussianProcess
from torchbandits.testing.play import Interrupted, Interruption
from torchbandits.types import Progress
from torchbandits.widths import Constant, FixedDesign

MEAN, F64 = Tolerance(1e-8, 1e-9), VARIANCE[torch.float64]


def play(bandit: tb.Bandit, problem: Problem, pulls: int, **ask: Any) -> list[list[int]]:
    """Ask and tell until `pulls` are told in total, and return the picks of each ask."""
    picks = []
    while int(bandit.pulls) < pulls:
        told = int(bandit.pulls)
        selection = bandit.ask(limit=min(pulls - told, ask.get("limit", pulls)))
        bandit.tell(selection, problem.rewards(told, selection.index))
        picks.append(selection.index.tolist())
    return picks


def flat(lists: list[list[int]]) -> list[int]:
    return [x for part in lists for x in part]


def alive(bandit: tb.Bandit) -> list[int]:
    return bandit.loop.state.survivors.alive.nonzero().squeeze(-1).tolist()


# ------------------------------------------------------------------------------------------ the width


def test_the_width_is_its_formula_and_holds_for_a_design_that_is_fixed():
    """In at most a fraction δ of 300 draws of the noise, f violates the bounds of some arm; the width is not far too large."""
    lam, K = 0.04, oracles.rbf(0.3)(*[np.linspace(0, 1, 30)[:, None]] * 2)
    one = torch.ones((), dtype=torch.float64)
    width = float(FixedDesign(0.2, 1.5, 0.1, lam, statements=2)(Progress(one, one, 30, 1, *[one] * 6)))
    assert width == pytest.approx(oracles_phased.fixed_design_width(0.2, 1.5, 0.1, lam, 60), rel=1e-14)
    rng = np.random.default_rng(0)
    a = np.zeros(30)
    a[[3, 15, 22]] = 1.0, -0.8, 0.5
    f = K @ a
    norm = math.sqrt(a @ f)
    design = [0, 4, 9, 9, 15, 20, 29, 15, 3, 3, 3] * 3
    width = oracles_phased.fixed_design_width(0.2, norm, 0.1, lam, 60)
    worst = []
    for _ in range(300):
        mean, std = oracles_phased.posterior(K, design, list(f[design] + 0.2 * rng.normal(size=len(design))), lam)
        worst.append((np.abs(f - mean) / std).max())
    assert np.mean(np.array(worst) > width) <= 0.1
    assert np.max(worst) > 0.4 * width


# ------------------------------------------------------------------------------------------ BPE: the schedule


def test_batch_lengths_are_the_formula_s_and_few():
    for horizon in [*range(1, 400), 1000, 9999, 10_000, 123_456, 10**6]:
        lengths = batch_lengths(horizon)
        assert sum(lengths) == horizon
        assert list(lengths) == oracles_phased.lengths(horizon)
        if horizon >= 2:
            assert len(lengths) <= math.ceil(math.log2(math.log2(horizon))) + 1
    assert batch_lengths(10_000) == (100, 1000, 3163, 5625, 112)
    big = batch_lengths(10**30)  # whole numbers, not rounded ones
    assert sum(big) == 10**30
    assert big[0] == 10**15


# ------------------------------------------------------------------------------------------ BPE: against the oracle


@pytest.mark.sweep(2)
@pytest.mark.parametrize("kernel_name", ["rbf", "matern32", "linear", "scaled"])
@pytest.mark.parametrize(("seed", "lam", "width"), [(0, 0.01, 2.0), (1, 1.0, 0.3), (2, 0.1, 1.0), (3, 1e-4, None)])
def test_bpe_picks_what_the_oracle_picks(kernel_name: str, seed: int, lam: float, width: float | None):
    problem, T = Problem(seed=seed, a=60, duplicates=5), 150
    kernel, ours = kernel_pair(kernel_name)
    policy = tb.bpe(
        kernel,
        horizon=T,
        regularization=lam,
        width=None if width is None else Constant(width),
        **(BOUNDED | {"noise_std": 0.1}),
    )
    K, distinct = ours(problem.arms, problem.arms), sorted(set(oracles.first_copies(problem.arms).tolist()))
    lengths = oracles_phased.lengths(T)
    used = width or oracles_phased.fixed_design_width(0.1, NORM_BOUND, DELTA, lam, 60 * len(lengths))
    oracle = oracles_phased.BPE(K, used, lam, distinct)
    bandit, everything = tb.Bandit(policy, problem.tensor, generator=generator(0)), []
    assert float(bandit.width) == pytest.approx(used, rel=1e-14)
    for length in lengths:
        selection = bandit.ask()
        picks, rewards = selection.index.tolist(), problem.rewards(int(bandit.pulls), selection.index)
        assert len(picks) == length
        assert picks[0] == min(oracle.largest([]))
        for place, arm in enumerate(picks):
            assert arm in oracle.largest(picks[:place])
        report = bandit.tell(selection, rewards)
        oracle.finish(picks, rewards.tolist())
        assert [x for x in alive(bandit) if x in distinct] == oracle.alive
        assert float(report.certificate) == pytest.approx(oracle.upper - oracle.lower, rel=1e-6, abs=1e-9)
        everything += picks
    mean, std = oracles_phased.posterior(K, everything, [problem.reward(t, x) for t, x in enumerate(everything)], lam)
    marginals = bandit.posterior(problem.tensor)
    assert_close(marginals.mean, mean, MEAN, what="the posterior of all pulls")
    assert_close(marginals.variance, std**2, F64, what="the posterior of all pulls")


@pytest.mark.parametrize("kernel_name", ["rbf", "matern32"])
def test_these_runs_discard_arms_and_leave_some_choice(kernel_name: str):
    """Precondition of the comparison above: several arms are discarded in more than one batch, and ties are rare."""
    problem, T = Problem(seed=0, a=60), 150
    oracle = oracles_phased.BPE(kernel_pair(kernel_name)[1](problem.arms, problem.arms), 2.0, 0.01, list(range(60)))
    sizes, ties, t = [60], 0, 0
    for length in oracles_phased.lengths(T):
        picks: list[int] = []
        for _ in range(length):
            largest = oracle.largest(picks)
            ties += len(largest) > 1
            picks.append(largest[0])
        oracle.finish(picks, [problem.reward(t + j, x) for j, x in enumerate(picks)])
        sizes.append(len(oracle.alive))
        t += length
    assert sizes[0] > sizes[1] > sizes[2] >= 1
    assert ties < T / 2


def near_twins(seed: int) -> tuple[tb.Bandit, Problem, np.ndarray]:
    problem = Problem(seed=seed, a=40, near_duplicates=8)
    policy = tb.bpe(rbf(), horizon=60, width=Constant(1.0), regularization=1e-4, **COMMON)
    return tb.Bandit(policy, problem.tensor), problem, oracles.rbf(0.4)(problem.arms, problem.arms)


@pytest.mark.parametrize("seed", range(3))
def test_near_duplicates_and_tiny_noise_leave_every_pick_a_largest_variance(seed: int):
    bandit, problem, K = near_twins(seed)
    for length in batch_lengths(60):
        left, selection = alive(bandit), bandit.ask()
        assert len(selection) == length
        for place, arm in enumerate(selection.index.tolist()):
            std = oracles_phased.posterior(K, selection.index[:place].tolist(), [], 1e-4)[1]
            assert arm in left
            assert std[arm] >= std[left].max() - 1e-7
        bandit.tell(selection, problem.rewards(int(bandit.pulls), selection.index))


@pytest.mark.exhaustive
@OFF_SCALE
@pytest.mark.parametrize("seed", range(3))
def test_the_batch_does_not_depend_on_how_it_is_asked_and_told(seed: int):
    """Asks in parts, by workers that become free, with rewards out of order, and with picks that are forgotten and asked for
    again give the same pulls and survivors."""
    problem, T = Problem(seed=seed, a=60), 100
    make = lambda **o: tb.Bandit(tb.bpe(rbf(), horizon=T, width=Constant(1.0), **COMMON, **o), problem.tensor)  # noqa: E731
    whole, parts, capped, workers = make(), make(), make(max_batch_size=4), make()
    noise = dict.fromkeys(range(60), 0.0)  # a reward is a function of the arm, so the order can't matter
    told = lambda index: torch.tensor([float(problem.f[i]) + noise[int(i)] for i in index])  # noqa: E731
    while int(whole.pulls) < T:
        selection = whole.ask()
        whole.tell(selection, told(selection.index))
        length, got = len(selection), {"parts": [], "capped": [], "workers": []}
        while len(got["parts"]) < length:
            part = parts.ask(limit=3)
            got["parts"] += part.index.tolist()
            parts.tell(part, told(part.index))
        while len(got["capped"]) < length:
            part = capped.ask()
            assert 1 <= len(part) <= 4
            got["capped"] += part.index.tolist()
            capped.tell(part, told(part.index))
        opened = workers.ask(limit=min(3, length))
        while len(got["workers"]) < length:  # the youngest of three reports first; now and then it is forgotten
            if len(opened) > 1 and len(got["workers"]) % 5 == 2:
                lost = opened.index[len(opened) - 1 :]
                workers.forget(lost)
                opened = workers.ask(more=1)
                assert int(opened.index[-1]) == int(lost), "what was forgotten is asked again"
            youngest = opened[len(opened) - 1 :]
            got["workers"] += youngest.index.tolist()
            workers.tell(youngest, told(youngest.index))
            missing = length - len(got["workers"]) - (len(opened) - 1)
            if missing > 0:
                opened = workers.ask(more=1)
            elif len(got["workers"]) < length:
                opened = workers.ask()
        for name, picks in got.items():
            assert sorted(picks) == sorted(selection.index.tolist()), name
        assert got["parts"] == got["capped"] == selection.index.tolist()
        assert alive(whole) == alive(parts) == alive(capped) == alive(workers)


# ------------------------------------------------------------------------------------------ BPE: what it guarantees


@OFF_SCALE
def test_the_best_arm_is_never_discarded_and_the_bounds_hold():
    """30 functions of known norm with the width of the theorem: many arms are discarded, and the best arm survives. δ = 0.1
    allows 3 failures; none is expected."""
    failures, left = 0, []
    for seed in range(30):
        environment = tb.environments.rkhs(dim=1, generator=generator(seed))
        means = environment.means.numpy()
        kernel = kernel_pair("matern32", 0.2)[0]
        policy = tb.bpe(kernel, horizon=2000, noise_std=1.0, norm_bound=environment.norm_bound, delta=0.1, regularization=1.0)
        bandit, noise = tb.Bandit(policy, environment.arms), [generator(100 + seed)]
        while int(bandit.pulls) < 2000:
            selection = bandit.ask()
            bandit.tell(selection, environment.sample(selection.index, noise))
        upper, lower = (float(x) for x in policy.bounds(bandit.loop.state))
        failures += int(means.argmax()) not in alive(bandit) or not lower <= means.max() <= upper
        left.append(len(alive(bandit)))
    assert failures <= 3
    assert np.mean(left) < 0.75 * 30, "many arms go"


def test_it_beats_uniform_in_few_batches():
    environment = tb.environments.rkhs(dim=1, generator=generator(1))
    kernel = kernel_pair("matern32", 0.2)[0]
    policy = tb.bpe(kernel, horizon=3000, noise_std=1.0, norm_bound=environment.norm_bound, delta=0.1, regularization=1.0)
    history = tb.run(policy, environment, 3000, generator=generator(1))
    assert [int(n) for n in history.batches["size"]] == list(batch_lengths(3000))
    assert history.cumulative_regret()[-1] < 0.6 * 3000 * float((environment.optimum - environment.means).mean())


# ------------------------------------------------------------------------------------------ BPE: corners


def small(horizon: int = 60, width: float = 1.0, seed: int = 4, **options: Any) -> tuple[tb.Bandit, Problem]:
    problem = Problem(seed=seed, a=40)
    return tb.Bandit(tb.bpe(rbf(), horizon=horizon, width=Constant(width), **COMMON, **options), problem.tensor), problem


def counted(bandit: tb.Bandit) -> float:
    return float(bandit.loop.state.inner.told)


def test_history_counts_towards_no_batch():
    bandit, problem = small()
    plan = small()[0].ask().index.tolist()
    ones = torch.ones(3, dtype=torch.float64)
    bandit.observe(torch.tensor([1, 2, plan[0]]), 5 * ones, ones)
    bandit.observe(problem.tensor[:3] + 0.01, ones, ones)
    assert counted(bandit) == 0
    assert float(bandit.pulls) == 18
    assert bandit.ask().index.tolist() == plan
    assert float(bandit.posterior(problem.tensor[1:2]).variance) < 0.01, "the bandit shows what history told"


def test_pulls_nobody_asked_for_count_if_their_arm_is_alive():
    bandit, problem = small()
    plan = bandit.ask().index.tolist()
    bandit.tell(torch.tensor([7, 7]), problem.rewards(0, torch.tensor([7, 7])))
    assert counted(bandit) == 2
    bandit.forget(bandit.ask())
    rest = bandit.ask()
    assert len(rest) == len(plan) - 2
    K = oracles.rbf(0.4)(problem.arms, problem.arms)
    picks = [7, 7]
    for arm in rest.index.tolist():
        assert arm in oracles_phased.near_best(oracles_phased.posterior(K, picks, [], NOISE_STD**2)[1])
        picks.append(arm)
    bandit.tell(rest, problem.rewards(2, rest.index))
    assert counted(bandit) == 0, "the next batch starts with nothing"
    dead = next(x for x in range(40) if x not in alive(bandit))
    before = bandit.ask().index
    bandit.forget(before)
    bandit.tell(torch.tensor([dead] * 3), torch.full((3,), 5.0))
    assert counted(bandit) == 0
    assert bandit.ask().index.tolist() == before.tolist()
    assert int(bandit.counts[dead]) >= 3


def test_what_is_asked_beyond_a_batch_is_learned_with_it():
    """`more` adds picks to a full batch, which is then longer. If they are told separately, they count towards the next
    batch."""
    bandit, problem = small()
    opened = bandit.ask()
    longer = bandit.ask(more=3)
    assert len(longer) == len(opened) + 3
    other = small()[0]
    other.ask()
    other.ask(more=3)
    bandit.tell(longer, problem.rewards(0, longer.index))
    assert bandit.loop.state.survivors.batch == 1
    assert counted(bandit) == 0
    first = other.ask()[: len(opened)]
    other.tell(first, problem.rewards(0, first.index))
    rest = other.ask()
    kept = sum(x in alive(other) for x in rest.index.tolist())
    other.tell(rest, problem.rewards(len(opened), rest.index))
    assert counted(other) == kept


def test_a_forgotten_pick_is_made_up_for():
    """The batch keeps its length: the replacement has the largest variance given all other picks."""
    bandit, problem = small()
    opened = bandit.ask()
    K = oracles.rbf(0.4)(problem.arms, problem.arms)
    bandit.forget(opened[1:4])
    kept = bandit.ask().index.tolist()
    bandit.tell(bandit.ask(), problem.rewards(0, bandit.ask().index))
    rest = bandit.ask().index.tolist()
    assert len(kept) + len(rest) == len(opened)
    for place, arm in enumerate(rest):
        std = oracles_phased.posterior(K, kept + rest[:place], [], NOISE_STD**2)[1]
        assert arm in oracles_phased.near_best(std)
    bandit.forget(bandit.ask())
    assert bandit.ask().index.tolist() == rest


def test_with_no_survivor_on_offer_the_highest_upper_bound_is_picked():
    bandit, problem = small()
    play(bandit, problem, 8 + 22)
    dead = [x for x in range(40) if x not in alive(bandit)]
    assert dead
    offered = torch.zeros(40, dtype=torch.bool)
    offered[dead] = True
    marginals = bandit.posterior(problem.tensor)
    upper = (marginals.mean + marginals.variance.sqrt())[dead]
    selection = bandit.ask(available=offered)
    assert selection.index.tolist() == [dead[int(upper.argmax())]]
    bandit.tell(selection, problem.rewards(30, selection.index))
    assert counted(bandit) == 0


def test_after_the_horizon_the_best_survivor_is_picked():
    bandit, problem = small(horizon=30)
    play(bandit, problem, 30)
    left = alive(bandit)
    for pull in range(30, 36):
        mean = bandit.posterior(problem.tensor).mean
        selection = bandit.ask()
        assert selection.index.tolist() == [left[int(mean[left].argmax())]]
        bandit.tell(selection, problem.rewards(pull, selection.index))
        assert alive(bandit) == left
    offered = torch.ones(40, dtype=torch.bool)
    offered[int(bandit.ask().index)] = False
    bandit.forget(bandit.ask())
    assert int(bandit.ask(available=offered).index) in [x for x in left if offered[x]] or len(left) == 1


def test_where_nothing_is_left_to_learn_a_batch_is_filled_all_the_same():
    arms = torch.tensor([[0.0, 0.0], [1.0, 0.3], [0.2, 0.9]], dtype=torch.float64)
    bandit = tb.Bandit(tb.bpe(kernel_pair("linear")[0], horizon=9, **BOUNDED), arms)
    assert bandit.ask(available=torch.tensor([True, False, False])).index.tolist() == [0, 0, 0]
    opened = bandit.ask(more=2)
    assert opened.index[:3].tolist() == [0, 0, 0]
    assert 0 not in opened.index[3:].tolist()


def test_each_batch_starts_from_the_prior_exactly():
    bandit, problem = small()
    fresh = small()[0].loop.state.inner
    play(bandit, problem, 8)
    inner = bandit.loop.state.inner
    assert torch.equal(inner.arm_leverage(), fresh.arm_leverage())
    assert torch.equal(inner.arm_mean(), fresh.arm_mean())
    assert inner.statistics.size == 0
    assert int(bandit.ask().index[0]) == alive(bandit)[0], "all variances are equal: the lowest index"


def test_rows_in_different_batches_are_what_singles_are():
    """Rows with different limits end their batches at different times; survivors and bounds are those of single runs."""
    problems, limits, T = [Problem(seed=s, a=40) for s in (4, 5, 6)], torch.tensor([2, 5, 9]), 60
    norms = torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64)
    options = {"horizon": T, "noise_std": 0.1, "delta": 0.1}
    batch = tb.Bandit(
        tb.bpe(rbf(), norm_bound=norms, **options),
        torch.stack([p.tensor for p in problems]),
        generator=[generator(r) for r in range(3)],
    )
    singles = [tb.Bandit(tb.bpe(rbf(), norm_bound=float(n), **options), p.tensor) for n, p in zip(norms, problems, strict=True)]
    for _ in range(12):
        selection = batch.ask(limit=limits)
        rewards = torch.full(selection.index.shape, torch.nan, dtype=torch.float64)
        for row, (single, problem) in enumerate(zip(singles, problems, strict=True)):
            own = single.ask(limit=int(limits[row]))
            assert selection.index[row][selection.mask[row]].tolist() == own.index.tolist()
            rewards[row][selection.mask[row]] = problem.rewards(int(single.pulls), own.index)
            single.tell(own, problem.rewards(int(single.pulls), own.index))
        batch.tell(selection, rewards)
    survivors = batch.loop.state.survivors
    assert len(set(survivors.batch.tolist())) > 1, "rows are in different batches"
    for row, single in enumerate(singles):
        own = single.loop.state.survivors
        assert torch.equal(survivors.alive[row], own.alive)
        assert torch.equal(survivors.batch[row], own.batch)
        torch.testing.assert_close(survivors.upper[row], own.upper, rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(survivors.lower[row], own.lower, rtol=1e-9, atol=1e-12)


@pytest.mark.sweep(1)
@pytest.mark.parametrize("name", ["bpe", "reds", "sup_kernel_ucb"])
def test_saved_in_the_middle_of_a_batch_it_continues_alike(name: str):
    problem = Problem(seed=4, a=40)
    make = lambda: tb.Bandit(getattr(tb, name)(rbf(), horizon=60, width=Constant(1.0), **COMMON), problem.tensor)  # noqa: E731
    bandit, resumed = make(), make()
    play(resumed, problem, 33, limit=4)
    play(bandit, problem, 13, limit=3)
    bandit.ask(limit=2)
    resumed.load_state_dict(bandit.state_dict())
    assert play(bandit, problem, 60) == play(resumed, problem, 60)
    assert same(bandit.state_dict(), resumed.state_dict())


@pytest.mark.usefixtures("annotations_not_enforced")
def test_the_end_of_a_batch_that_fails_in_the_middle_leaves_no_trace():
    """After a failure of any torch call, elimination and restart are undone together with all other changes."""
    bandit, problem = small()
    play(bandit, problem, 8)
    opened = bandit.ask()
    rewards, twin = problem.rewards(8, opened.index), copy.deepcopy(bandit)
    before = bandit.state_dict()
    with Interruption(math.inf) as counting:
        twin.tell(opened, rewards)
    assert counted(twin) == 0
    failed = 0
    for at in np.linspace(1, counting.calls - 1, 25).astype(int):
        try:
            with Interruption(at):
                bandit.tell(opened, rewards)
        except Interrupted:
            failed += 1
            assert same(before, bandit.state_dict()), f"call {at} of {counting.calls}"
        else:
            break
    assert failed >= 20
    if int(bandit.pulls) == 8:
        bandit.tell(opened, rewards)
    assert play(bandit, problem, 60) == play(twin, problem, 60)


@pytest.mark.parametrize("name", ["bpe", "reds", "sup_kernel_ucb"])
@pytest.mark.usefixtures("annotations_not_enforced")
def test_options_that_make_no_sense_are_refused(name: str):
    make = getattr(tb, name)
    for horizon in (0, -3, 2.5, True, "ten"):
        with pytest.raises(errors.ArgumentError, match="horizon"):
            make(rbf(), horizon=horizon, **BOUNDED)
    for wrong in ({"delta": 0.0}, {"norm_bound": -1.0}, {"noise_std": math.nan}, {"regularization": 0.0}):
        with pytest.raises(errors.ArgumentError, match=next(iter(wrong))):
            make(rbf(), horizon=10, **(BOUNDED | wrong))
    with pytest.raises(errors.ArgumentError, match="max_batch_size"):
        BatchedPureExploration(tb.gp_ucb(rbf()), 10, 0)


@pytest.mark.parametrize("name", ["bpe", "reds", "sup_kernel_ucb"])
def test_the_bandit_shows_the_posterior_of_all_pulls(name: str):
    """The public posterior equals that of `gp_ucb` with the same observations."""
    problem = Problem(seed=4, a=40)
    bandit = tb.Bandit(getattr(tb, name)(rbf(), horizon=50, width=Constant(1.0), **COMMON), problem.tensor)
    plain = tb.Bandit(tb.gp_ucb(rbf(), **COMMON), problem.tensor)
    picks = torch.tensor(flat(play(bandit, problem, 40)))
    plain.tell(picks, problem.rewards(0, picks))
    theirs, ours = plain.posterior(problem.tensor), bandit.posterior(problem.tensor)
    assert_close(ours.mean, theirs.mean, MEAN)
    assert_close(ours.variance, theirs.variance, F64)
    assert torch.equal(bandit.counts, plain.counts)
    assert int(bandit.best_arm()) == int(plain.best_arm())
    assert float(bandit.tell(picks[:1], torch.zeros(1)).information_gain) > 0


@pytest.mark.sweep
@pytest.mark.parametrize("name", ["bpe", "sup_kernel_ucb"])
@pytest.mark.parametrize("other", [{"memory_budget": 1000}, {"prior_mean": 7.0}], ids=lambda o: next(iter(o)))
@pytest.mark.parametrize("seed", range(3))
def test_other_tables_and_prior_means_change_no_pick(name: str, other: dict[str, float], seed: int):
    """Directions instead of a kept covariance, and rewards shifted by a known prior mean, do not change the picks up to the
    last two survivors."""
    problem, shift = Problem(seed=seed, a=40), other.get("prior_mean", 0.0)
    options = {"horizon": 60, "width": Constant(1.0)} | COMMON
    plain, changed = (tb.Bandit(getattr(tb, name)(rbf(), **options, **o), problem.tensor) for o in ({}, other))
    for _ in range(22):
        selection = plain.ask(limit=3)
        assert changed.ask(limit=3).index.tolist() == selection.index.tolist()
        rewards = problem.rewards(int(plain.pulls), selection.index)
        plain.tell(selection, rewards)
        changed.tell(changed.ask(), rewards + shift)


@pytest.mark.parametrize("seed", range(3))
def test_narrow_arms_leave_every_pick_a_largest_variance(seed: int):
    problem = Problem(seed=seed, a=40)
    policy = tb.bpe(rbf().float(), horizon=60, width=Constant(1.0), regularization=0.01, **COMMON)
    bandit = tb.Bandit(policy, problem.tensor.float())
    K = oracles.rbf(0.4)(problem.arms, problem.arms)
    for length in batch_lengths(60):
        left, picks = alive(bandit), bandit.ask().index.tolist()
        assert len(picks) == length
        for place, arm in enumerate(picks):
            std = oracles_phased.posterior(K, picks[:place], [], 0.01)[1]
            assert std[arm] >= std[left].max() - 1e-3
        bandit.tell(bandit.ask(), problem.rewards(int(bandit.pulls), torch.tensor(picks)))


@pytest.mark.sweep(2)
@pytest.mark.parametrize("seed", range(4))
def test_the_number_of_leaders_changes_no_pick(seed: int):
    problem = Problem(seed=seed, a=80)
    picks = []
    for leaders in (5, 32, 80, 1024):
        rows = ArmRows(problem.tensor, torch.Size())
        table = ArmTable(rows, GaussianProcess(rbf(), 0.01, dim=2), 2 << 30)
        nothing = torch.zeros(0, dtype=torch.float64)
        zero = torch.zeros(80, dtype=torch.float64)
        lookahead = Lookahead(
            table, zero, torch.ones((), dtype=torch.float64), None, (nothing.long(), nothing), None, leaders=leaders
        )
        picks.append(lookahead.pick(Meter(lookahead, math.inf), torch.tensor(120)).tolist())
    assert all(p == picks[0] for p in picks)


@pytest.mark.sweep(1)
@pytest.mark.parametrize("rows", [None, 2])
@pytest.mark.parametrize("most", [256, 7])
def test_picks_among_many_arms_by_sweeps_are_those_of_leaders(monkeypatch: pytest.MonkeyPatch, rows: int | None, most: int):
    g = generator(0)
    arms = torch.rand(300, 3, generator=g, dtype=torch.float64) * 2
    noise = torch.randn(*([] if rows is None else [rows]), 400, generator=g, dtype=torch.float64)

    def played(leaders: int) -> list[Any]:
        # The policy's name hides that of its module.
        monkeypatch.setattr(sys.modules["torchbandits.policies.bpe"], "_LEADERS", leaders)
        monkeypatch.setattr(greedy, "_MOST", most)
        generators = generator(1) if rows is None else [generator(row) for row in range(rows)]
        bandit = tb.Bandit(tb.bpe(rbf(2.0), horizon=100, noise_std=0.3), arms, generator=generators)
        picks = []
        for step in range(5):
            # Some picks are pending, and arms go off offer.
            index = bandit.ask(limit=9 if step % 2 else None).index
            more = bandit.ask(more=2, available=torch.arange(300) % 5 > 0).index
            picks.append([index.tolist(), more.tolist()])
            both = torch.cat([index, more[..., index.shape[-1] :]], dim=-1)
            bandit.tell(both, arms[both].sum(dim=-1) + noise[..., : both.shape[-1]])
        return picks

    assert played(20) == played(300)
    assert max(len(index if rows is None else index[0]) for index, _ in played(20)) > 9


def test_picks_among_many_arms_without_variance_are_the_first_one():
    rows = ArmRows(Problem(seed=0, a=40).tensor, torch.Size())
    table = ArmTable(rows, GaussianProcess(rbf(), 0.01, dim=2), 2 << 30)
    table.leverage = torch.zeros_like(table.leverage)
    nothing = torch.zeros(0, dtype=torch.float64)
    falling, offered = -1e-9 * torch.arange(40.0, dtype=torch.float64), torch.arange(40) > 4
    found, left = greedy.largest_variances(table, falling, offered, (nothing.long(), nothing), torch.tensor(3))
    assert found.tolist() == [5, 5, 5]
    assert int(left) == 0


# ------------------------------------------------------------------------------------------ SupKernelUCB


def told_by_level(bandit: tb.Bandit) -> list[int]:
    return bandit.loop.state.inner.told.long().tolist()


def test_there_are_as_many_levels_as_can_be_reached():
    for horizon in [*range(1, 300), 10_000, 10**6]:
        S = num_levels(horizon)
        assert horizon**-0.5 >= 2.0**-S
        assert S == 1 or horizon**-0.5 < 2.0 ** -(S - 1)


SUP = [(0, 0.01, 1.0, 90), (1, 1.0, 0.4, 60), (2, 0.1, 0.7, 90), (3, 0.01, None, 40), (4, 1e-4, 0.3, 120)]


@pytest.mark.sweep(1)
@pytest.mark.parametrize("kernel_name", ["rbf", "matern32", "linear"])
@pytest.mark.parametrize(("seed", "lam", "width", "T"), SUP)
def test_sup_kernel_ucb_picks_what_the_oracle_picks(kernel_name: str, seed: int, lam: float, width: float | None, T: int):
    problem = Problem(seed=seed, a=60, duplicates=5)
    kernel, ours = kernel_pair(kernel_name)
    chosen = None if width is None else Constant(width)
    policy = tb.sup_kernel_ucb(kernel, horizon=T, regularization=lam, width=chosen, **BOUNDED)
    used = width or oracles_phased.fixed_design_width(NOISE_STD, NORM_BOUND, DELTA, lam, 2 * 60 * T * num_levels(T))
    oracle = oracles_phased.SupKernelUCB(ours(problem.arms, problem.arms), T, used, lam)
    bandit = tb.Bandit(policy, problem.tensor)
    assert float(bandit.width) == pytest.approx(used, rel=1e-14)
    draw, copies = np.random.default_rng(seed), sorted(set(oracles.first_copies(problem.arms).tolist()))
    for t in range(T):
        best, level = oracle.choose(copies)
        selection = bandit.ask()
        arm = int(selection.index)
        assert arm in best, f"pick {t}"
        reward = problem.f[arm] + 0.1 * draw.normal()
        bandit.tell(selection, torch.tensor([reward]))
        oracle.tell(arm, level, reward)
        assert told_by_level(bandit) == [len(x) for x in oracle.arms]
    upper, lower = np.inf, -np.inf
    for arms, rewards in zip(oracle.arms, oracle.rewards, strict=True):
        mean, std = oracles_phased.posterior(oracle.K, arms, rewards, lam)
        upper, lower = np.minimum(upper, mean + used * std), np.maximum(lower, mean - used * std)
    bounds = policy.bounds(bandit.loop.state)
    assert float(bounds[0]) == pytest.approx(upper.max(), rel=1e-6, abs=1e-8)
    assert float(bounds[1]) == pytest.approx(lower.max(), rel=1e-6, abs=1e-8)


def test_these_runs_go_down_the_levels_and_exploit():
    """Precondition of the comparison above: the runs descend the levels and exploit."""
    problem = Problem(seed=4, a=60)
    oracle = oracles_phased.SupKernelUCB(oracles.rbf(0.4)(problem.arms, problem.arms), 120, 0.3, 1e-4)
    exploited = 0
    for t in range(120):
        best, level = oracle.choose(range(60))
        exploited += level is None
        oracle.tell(best[0], level, problem.reward(t, best[0]))
    assert sum(bool(x) for x in oracle.arms) >= 3
    assert exploited > 50


@pytest.mark.sweep(1)
@pytest.mark.parametrize("seed", range(3))
def test_several_picks_at_once_are_hallucinated_at_their_levels(seed: int):
    problem, T, width, lam = Problem(seed=seed, a=50), 100, 0.8, 0.01
    bandit = tb.Bandit(tb.sup_kernel_ucb(rbf(), horizon=T, width=Constant(width), **COMMON), problem.tensor)
    oracle = oracles_phased.SupKernelUCB(oracles.rbf(0.4)(problem.arms, problem.arms), T, width, lam)
    for _ in range(12):
        bandit.ask()
        bandit.ask(more=2)
        opened, expected = bandit.ask(more=2), []
        for arm in opened.index.tolist():
            best, level = oracle.choose(range(50))
            assert arm in best
            expected.append((arm, level))
            if level is not None:
                oracle.pending[level].append(arm)
        rewards = problem.rewards(int(bandit.pulls), opened.index)
        bandit.tell(opened, rewards)
        oracle.pending = [[] for _ in oracle.arms]
        for (arm, level), reward in zip(expected, rewards.tolist(), strict=True):
            oracle.tell(arm, level, reward)
        assert told_by_level(bandit) == [len(x) for x in oracle.arms]


def test_asking_for_several_changes_nothing():
    problem = Problem(seed=1, a=50)
    bandit = tb.Bandit(tb.sup_kernel_ucb(rbf(), horizon=50, width=Constant(0.8), **COMMON), problem.tensor)
    play(bandit, problem, 20)
    before = bandit.state_dict()["state"]
    bandit.ask(more=7)
    bandit.forget(bandit.ask())
    bandit.loop.sync_()
    assert same(before, bandit.state_dict()["state"])


def test_levels_of_pulls_that_nobody_asked_for():
    """Such pulls join the first level at which the arm is uncertain; history joins none."""
    problem = Problem(seed=2, a=50)
    bandit = tb.Bandit(tb.sup_kernel_ucb(rbf(), horizon=64, width=Constant(0.8), **COMMON), problem.tensor)
    assert len(told_by_level(bandit)) == 3
    ones = torch.ones(2, dtype=torch.float64)
    bandit.observe(torch.tensor([4, 9]), 9 * ones, ones)
    bandit.observe(problem.tensor[:2] + 0.01, ones, ones)
    assert told_by_level(bandit) == [0, 0, 0]
    bandit.tell(torch.tensor([4]), torch.tensor([0.1]))  # 0.8 > 1/2: uncertain at level 1; then 0.8·0.1 at level 1, 0.8 at 2
    assert told_by_level(bandit) == [1, 0, 0]
    bandit.tell(torch.tensor([4]), torch.tensor([0.1]))
    assert told_by_level(bandit) == [1, 1, 0]
    bandit.tell(torch.tensor([4, 4, 4]), torch.tensor([0.1, 0.2, 0.1]))
    assert told_by_level(bandit) == [1, 1, 1]
    assert int(bandit.counts[4]) == 9 + 5


def test_of_the_arms_on_offer_the_walk_is_the_oracle_s():
    problem, T = Problem(seed=3, a=50), 100
    bandit = tb.Bandit(tb.sup_kernel_ucb(rbf(), horizon=T, width=Constant(0.8), **COMMON), problem.tensor)
    oracle = oracles_phased.SupKernelUCB(oracles.rbf(0.4)(problem.arms, problem.arms), T, 0.8, 0.01)
    few = sorted(generator_permutation(50)[:12])
    offered: Tensor = torch.zeros(50, dtype=torch.bool)
    offered[few] = True
    for t in range(T):
        best, level = oracle.choose(few)
        selection = bandit.ask(available=offered)
        arm = int(selection.index)
        assert arm in best
        reward = problem.reward(t, arm)
        bandit.tell(selection, torch.tensor([reward]))
        before = told_by_level(bandit)
        if level is not None:
            oracle.tell(arm, level, reward)
            assert before == [len(x) for x in oracle.arms]
        else:
            break  # from here on a pick may join a deeper level, because the state does not contain the arms on offer
    assert t >= 10


@pytest.mark.exhaustive
def test_when_the_best_arms_are_gone_the_others_are_learned():
    T, arms = 200, torch.linspace(0, 1, 30, dtype=torch.float64).unsqueeze(-1)
    f = torch.exp(-((arms[:, 0] - 0.1) * 10).square()) + 0.5 * torch.exp(-((arms[:, 0] - 0.8) * 10).square())
    bandit = tb.Bandit(tb.sup_kernel_ucb(rbf(0.15), horizon=T, noise_std=0.02, norm_bound=1.5, delta=0.1), arms)
    left, noise = arms[:, 0] > 0.5, generator(0)
    for t in range(T):
        selection = bandit.ask(available=None if t < 100 else left)
        bandit.tell(selection, f[selection.index] + 0.02 * torch.randn(1, generator=noise, dtype=torch.float64))
    assert float(f[left].max() - f[bandit.ask(available=left).index]) <= 2 * T**-0.5


def generator_permutation(n: int) -> list[int]:
    return torch.randperm(n, generator=generator(7)).tolist()


@pytest.mark.exhaustive
def test_the_bounds_of_the_levels_hold():
    """4 functions of known norm with the width of the theorem: the best value is within the bounds after every pull."""
    for seed in range(4):
        environment = tb.environments.rkhs(dim=1, generator=generator(seed))
        scale = 0.5 / float(environment.means.abs().max())  # rewards of order 1
        means, norm = scale * environment.means.numpy(), scale * environment.norm_bound
        policy = tb.sup_kernel_ucb(kernel_pair("matern32", 0.2)[0], horizon=200, noise_std=0.05, norm_bound=norm, delta=0.1)
        bandit, draw = tb.Bandit(policy, environment.arms), np.random.default_rng(seed)
        for _ in range(60):
            selection = bandit.ask()
            bandit.tell(selection, torch.tensor([means[int(selection.index)] + 0.05 * draw.normal()]))
            upper, lower = (float(x) for x in policy.bounds(bandit.loop.state))
            assert lower <= means.max() <= upper


# ------------------------------------------------------------------------------------------ REDS


def test_random_batches_double_and_add_up_to_the_horizon():
    assert doubling_lengths(100, 10) == (10, 20, 40, 30)
    assert doubling_lengths(5, 10) == (5,)
    for horizon in (1, 2, 17, 1000, 10**20):
        lengths = tb.reds(rbf(), horizon=min(horizon, 10**15), **BOUNDED).lengths
        assert sum(lengths) == min(horizon, 10**15)
        assert len(lengths) <= math.ceil(math.log2(math.sqrt(horizon) + 1)) + 1


@pytest.mark.sweep(5)
@pytest.mark.parametrize("kernel_name", ["rbf", "matern32", "linear"])
@pytest.mark.parametrize(("seed", "lam", "width"), [(0, 0.01, 2.0), (1, 1.0, 0.3), (3, 1e-4, None)])
def test_reds_draws_from_the_survivors_of_the_oracle(kernel_name: str, seed: int, lam: float, width: float | None):
    problem, T = Problem(seed=seed, a=60, duplicates=5), 150
    kernel, ours = kernel_pair(kernel_name)
    wide = None if width is None else Constant(width)
    policy = tb.reds(kernel, horizon=T, regularization=lam, width=wide, **(BOUNDED | {"noise_std": 0.1}))
    K, distinct = ours(problem.arms, problem.arms), sorted(set(oracles.first_copies(problem.arms).tolist()))
    used = width or oracles_phased.fixed_design_width(0.1, NORM_BOUND, DELTA, lam, 60 * 4)
    oracle = oracles_phased.BPE(K, used, lam, distinct)
    bandit, draws = tb.Bandit(policy, problem.tensor, generator=generator(7)), generator(7)
    assert float(bandit.width) == pytest.approx(used, rel=1e-14)
    for length in (13, 26, 52, 59):
        selection = bandit.ask()
        expected = torch.tensor(oracle.alive)[torch.randint(len(oracle.alive), (length,), generator=draws)]
        assert selection.index.tolist() == expected.tolist()
        rewards = problem.rewards(int(bandit.pulls), selection.index)
        report = bandit.tell(selection, rewards)
        oracle.finish(selection.index.tolist(), rewards.tolist())
        assert [x for x in alive(bandit) if x in distinct] == oracle.alive
        assert float(report.certificate) == pytest.approx(oracle.upper - oracle.lower, rel=1e-6, abs=1e-9)
    last = bandit.ask()
    mean = bandit.posterior(problem.tensor).mean
    assert int(last.index[0]) == max(oracle.alive, key=lambda x: float(mean[x])), "after T pulls, the best survivor"


def test_rows_of_reds_are_singles_and_its_batches_may_be_asked_in_parts():
    problem, options = Problem(seed=2, a=40), COMMON | {"horizon": 60, "width": Constant(0.7), "first_batch": 6}
    whole = [tb.Bandit(tb.reds(rbf(), **options), problem.tensor, generator=generator(seed)) for seed in (1, 2)]
    rows = tb.Bandit(tb.reds(rbf(), **options), problem.tensor, generator=[generator(1), generator(2)])
    parts = tb.Bandit(tb.reds(rbf(), max_batch_size=4, **options), problem.tensor, generator=generator(1))
    for length in doubling_lengths(60, 6):
        selection = rows.ask()
        assert selection.index.shape == (2, length)
        rewards = torch.stack([problem.rewards(0, index) for index in selection.index])
        rows.tell(selection, rewards)
        for row, single in enumerate(whole):
            assert torch.equal(single.ask().index, selection.index[row])
            single.tell(single.ask(), rewards[row])
        got: list[int] = []
        while len(got) < length:
            part = parts.ask()
            parts.tell(part, rewards[0][len(got) : len(got) + len(part)])
            got += part.index.tolist()
        assert got == selection.index[0].tolist()


@pytest.mark.exhaustive
@OFF_SCALE
def test_reds_never_discards_the_best_arm_and_discards_many():
    """20 functions of known norm with the width of the theorem; δ = 0.1 allows 2 failures."""
    failures, left = 0, []
    for seed in range(20):
        environment = tb.environments.rkhs(dim=1, generator=generator(seed))
        means, kernel = environment.means.numpy(), kernel_pair("matern32", 0.2)[0]
        policy = tb.reds(kernel, horizon=2000, noise_std=1.0, norm_bound=environment.norm_bound, delta=0.1, regularization=1.0)
        bandit, noise = tb.Bandit(policy, environment.arms, generator=generator(seed)), [generator(100 + seed)]
        while int(bandit.pulls) < 2000:
            selection = bandit.ask()
            bandit.tell(selection, environment.sample(selection.index, noise))
        upper, lower = (float(x) for x in policy.bounds(bandit.loop.state))
        failures += int(means.argmax()) not in alive(bandit) or not lower <= means.max() <= upper
        left.append(len(alive(bandit)))
    assert failures <= 2
    assert np.mean(left) < 0.8 * 30


@pytest.mark.parametrize("name", ["bpe", "reds"])
def test_rewards_may_be_late_while_more_is_asked(name: str):
    """A pull at every step, with rewards three steps later: a batch ends with its last reward, and later pulls count towards
    the next batch."""
    problem = Problem(seed=6, a=40)
    policy = getattr(tb, name)(rbf(), horizon=40, width=Constant(0.7), **COMMON)
    bandit, waiting, told = tb.Bandit(policy, problem.tensor, generator=generator(3)), [], 0
    lengths = list(policy.lengths)
    for _ in range(40):
        known = {int(arm) for arm in alive(bandit)}
        opened = bandit.ask(limit=1) if bandit.loop.open is None else bandit.ask(more=1)
        arm = int(opened.index[-1])
        assert arm in known
        waiting.append(arm)
        if len(waiting) > 3:
            index = torch.tensor([waiting.pop(0)])
            bandit.tell(index, problem.rewards(told, index))
            told += 1
    assert int(bandit.pulls) == told == 37
    finished = int(bandit.loop.state.survivors.batch)
    assert sum(lengths[:finished]) <= 37
    assert finished >= 2
