"""First picks: uniform, 2^d, spread, and uncertainty sampling with its guarantee."""

from __future__ import annotations

import numpy as np
import oracles
import pytest
import torch
from problems import BOUNDED, COMMON, NOISE_STD, Problem, generator, rbf

import torchbandits as tb


@pytest.mark.parametrize("d", [1, 2, 3])
def test_two_to_the_d_uniform_picks(d):
    problem = Problem(seed=1, a=50, d=d)
    bandit = tb.Bandit(tb.compressed_gp(rbf(), **COMMON), problem.tensor, generator=generator(3))
    expected = torch.randint(50, (2**d,), generator=generator(3)).tolist()
    assert len(bandit.ask(limit=100)) == 1  # one pick at a time, as the policy's own rule says
    picks = [i for batch in problem.play(bandit, 2**d) for i in batch]
    assert picks == expected


def naive_uncertainty(problem: Problem, lam: float, level: float, given: list[int]) -> list[int]:
    """Dense: pull the arm of the largest leverage until none exceeds the level."""
    K, pulled, picks = oracles.rbf(0.2)(problem.arms, problem.arms), list(given), []
    while True:
        M = K[np.ix_(pulled, pulled)] + lam * np.eye(len(pulled))
        explained = (K[pulled] * np.linalg.solve(M, K[pulled])).sum(0) if pulled else np.zeros(problem.a)
        leverage = (np.diag(K) - explained) / lam
        best = leverage.max()
        if best <= level:
            return picks
        picks.append(int(np.nonzero(leverage >= best * (1 - 1e-11))[0][0]))
        pulled.append(picks[-1])


@pytest.mark.sweep
@pytest.mark.parametrize("policy", ["gp_bucb", "batch_bkb", "gp_ucb"])
@pytest.mark.parametrize("P", [0.5, 2.0])
def test_uncertainty_sampling_picks_what_the_naive_one_picks(policy, P):
    problem = Problem(seed=2, a=60)
    options = COMMON if policy == "gp_ucb" else BOUNDED
    bandit = tb.Bandit(
        getattr(tb, policy)(rbf(0.2), initial=tb.starts.uncertainty(P), **options), problem.tensor, generator=generator(0)
    )
    expected = naive_uncertainty(problem, NOISE_STD**2, 1 / P, [])
    picks, told = [], 0
    while told < len(expected):  # in parts, told in parts
        selection = bandit.ask(limit=7)
        part = selection[: max(1, len(selection) - 2)]
        bandit.tell(part, problem.rewards(told, part.index))
        picks += part.index.tolist()
        told += len(part)
    assert picks[: len(expected)] == expected


@pytest.mark.parametrize("C", [1.5, 3.0])
@pytest.mark.parametrize("P", [2.0, 6.0])
def test_every_later_batch_of_the_global_rule_has_the_promised_size(P, C):
    problem = Problem(seed=4, a=60)
    policy = tb.gp_bucb(rbf(), batch_rule="global", ratio_threshold=C, initial=tb.starts.uncertainty(P), **BOUNDED)
    bandit = tb.Bandit(policy, problem.tensor, generator=generator(0))
    first = bandit.ask()
    bandit.tell(first, problem.rewards(0, first.index))
    assert first.index.tolist() == naive_like(problem, P)
    told = len(first)
    for _ in range(6):
        selection = bandit.ask()
        assert len(selection) >= P * (C - 1)
        bandit.tell(selection, problem.rewards(told, selection.index))
        told += len(selection)


def naive_like(problem: Problem, P: float) -> list[int]:
    K, lam, picks = oracles.rbf(0.4)(problem.arms, problem.arms), NOISE_STD**2, []
    covariance = K.copy()
    while covariance.diagonal().max() > lam / P * (1 + 1e-9):
        j = int(covariance.diagonal().argmax())
        picks.append(j)
        covariance = covariance - np.outer(covariance[j], covariance[j]) / (lam + covariance[j, j])
    return picks


def test_an_unreachable_size_names_the_one_that_is_reached_before_anything_is_asked():
    problem = Problem(seed=5, a=40)

    def bandit(P: float) -> tb.Bandit:
        start = tb.starts.uncertainty(P, max_pulls=100)
        return tb.Bandit(tb.batch_bkb(rbf(), initial=start, **BOUNDED), problem.tensor, generator=generator(0))

    refused = bandit(50.0)
    with pytest.raises(tb.errors.ArgumentError, match=r"min_batch_size=(\S+) is reached") as caught:
        refused.ask()
    assert int(refused.pulls) == 0
    reached = float(str(caught.value).split("with them, min_batch_size=")[1].split(" ")[0])
    assert 0 < len(bandit(reached * 0.99).ask()) <= 100


def test_history_counts_and_finished_starts_are_over():
    problem = Problem(seed=6, a=40)
    policy = tb.gp_bucb(rbf(), batch_rule="global", initial=tb.starts.uncertainty(1.0), **BOUNDED)
    fresh, warm = (tb.Bandit(policy, problem.tensor, generator=generator(0)) for _ in range(2))
    first = fresh.ask()
    index, counts = np.unique(first.index.numpy(), return_counts=True)
    sums = torch.zeros(len(index), dtype=torch.float64)
    warm.observe(torch.as_tensor(index), torch.as_tensor(counts, dtype=torch.float64), sums)
    leverage = warm.posterior(problem.tensor).variance / NOISE_STD**2
    assert float(leverage.max()) <= 1 + 1e-9
    mean = warm.posterior(problem.tensor).mean
    u = mean + warm.width * (leverage.sqrt() * NOISE_STD)
    assert int(warm.ask().index[0]) == int(u.argmax())


def test_batch_rows_start_like_singles():
    problem = Problem(seed=7, a=40)
    kernel = rbf()
    policy = tb.gp_bucb(kernel, initial=tb.starts.uncertainty(1.5), **BOUNDED)
    batch = tb.Bandit(policy, problem.tensor, generator=[generator(0), generator(1)])
    batch.tell(torch.tensor([[3], [20]]), torch.zeros(2, 1))
    picks = batch.ask().index
    for row, arm in enumerate([3, 20]):
        single = tb.Bandit(policy, problem.tensor, generator=generator(row))
        single.tell(torch.tensor([arm]), torch.zeros(1))
        own = single.ask().index.tolist()
        assert picks[row, : len(own)].tolist() == own
        assert (picks[row, len(own) :] == -1).all()


def naive_spread(arms: np.ndarray, size: int, given: list[int]) -> list[int]:
    """Every subset with one additional arm is tried, and the mean distance to the nearest pick is recomputed for each."""
    x, picks = arms / np.ptp(arms, axis=0), list(given)

    def cost(chosen: list[int]) -> float:
        return np.mean([min(np.sqrt(((a - x[c]) ** 2).sum()) for c in chosen) for a in x])

    while len(picks) < size:
        costs = np.array([cost([*picks, j]) for j in range(len(x))])
        picks.append(int(np.nonzero(costs <= costs.min() * (1 + 1e-9))[0][0]))
    return picks[len(given) :]


@pytest.mark.parametrize("policy", ["gp_bucb", "batch_bkb", "gp_ucb"])
def test_spread_picks_what_the_naive_one_picks(policy):
    problem = Problem(seed=8, a=40, d=3)
    stretched = problem.arms * np.array([1.0, 100.0, 0.01])  # distances are in ranges of the features
    options = COMMON if policy == "gp_ucb" else BOUNDED
    bandit = tb.Bandit(
        getattr(tb, policy)(rbf(30.0), initial=tb.starts.spread(7), **options), torch.tensor(stretched), generator=generator(0)
    )
    expected, picks = naive_spread(stretched, 7, []), []
    while len(picks) < 7:  # asked for and told in parts; picks that are not told are forgotten
        selection = bandit.ask(limit=3)
        part = selection[: max(1, len(selection) - 1)]
        bandit.tell(part, problem.rewards(0, part.index))
        picks += part.index.tolist()
    assert picks == expected
    more = tb.Bandit(bandit.policy, torch.tensor(stretched), generator=generator(0))
    assert more.ask(more=2).index.tolist() == expected[:2]
    assert more.ask(more=5).index.tolist() == expected  # pending picks count


def test_spread_goes_on_from_what_is_known_and_takes_what_is_on_offer():
    problem = Problem(seed=9, a=40, d=2)
    policy = tb.gp_bucb(rbf(), initial=tb.starts.spread(6), **BOUNDED)
    batch = tb.Bandit(policy, problem.tensor, generator=[generator(0), generator(1)])
    batch.tell(torch.tensor([[3], [20]]), torch.zeros(2, 1))
    picks = batch.ask().index
    for row, arm in enumerate([3, 20]):
        expected = naive_spread(problem.arms / np.ptp(problem.arms, axis=0), 6, [arm])
        assert picks[row].tolist() == expected
    offered = torch.zeros(40, dtype=torch.bool)
    offered[10:20] = True
    some = tb.Bandit(policy, problem.tensor, generator=generator(0)).ask(available=offered).index
    stretched = problem.arms / np.ptp(problem.arms, axis=0)
    assert some.tolist() == [10 + arm for arm in naive_spread(stretched[10:20] * np.ptp(stretched[10:20], axis=0), 6, [])]
    masks = torch.stack([offered, torch.arange(40) >= 37])
    both = tb.Bandit(policy, problem.tensor, generator=[generator(0), generator(1)])
    picks = both.ask(available=masks).index
    assert picks[0].tolist() == some.tolist(), "what is on offer in another row changes nothing"
    assert set(picks[1].tolist()) == {37, 38, 39}, "fewer on offer than first picks"


def test_spread_over_a_part_of_the_arms_is_as_over_these_arms_alone():
    arms = torch.rand(3_000, 3, generator=generator(5), dtype=torch.float64)
    offered = torch.zeros(3_000, dtype=torch.bool)
    # The outermost arms are on offer, so that the ranges of the features are the same.
    offered[torch.cat([arms.argmin(dim=0), arms.argmax(dim=0), torch.arange(0, 3_000, 5)])] = True
    policy = tb.gp_bucb(rbf(), initial=tb.starts.spread(6), **BOUNDED)
    picks = [tb.Bandit(policy, arms, generator=generator(seed)).ask(available=offered).index for seed in range(2)]
    assert torch.equal(*picks), "all arms on offer are considered, so that nothing is drawn"
    assert offered[picks[0]].all()


def test_spread_over_many_arms_is_better_than_drawing_them():
    arms = torch.rand(30_000, 4, generator=generator(5), dtype=torch.float64)

    def distance(start: tb.starts.Start, seed: int) -> float:
        bandit = tb.Bandit(tb.gp_bucb(rbf(), initial=start, **BOUNDED), arms, generator=generator(seed))
        return float(torch.cdist(arms, arms[bandit.ask().index]).amin(dim=-1).mean())

    spread, drawn = ([distance(start, seed) for seed in range(3)] for start in (tb.starts.spread(10), tb.starts.uniform(10)))
    assert max(spread) < 0.9 * min(drawn)
    assert len(set(spread)) == 3  # each seed draws a different sample


def test_spread_over_equal_arms_and_over_few():
    same = tb.Bandit(tb.gp_bucb(rbf(), initial=tb.starts.spread(3), **BOUNDED), torch.ones(5, 2), generator=generator(0))
    assert len(same.ask()) == 3
    plenty = tb.Bandit(tb.auto(), torch.rand(1500, 2, generator=generator(0)), generator=generator(0))
    assert len(plenty.ask(more=1200).index.unique()) > 700, "more first picks than the sample has arms are no single arm"
    assert sorted(tb.Bandit(tb.auto(), torch.rand(40, 2), generator=generator(0)).ask(more=60).index.unique().tolist()) == [
        *range(40)
    ]
    few = tb.Bandit(tb.gp_bucb(rbf(), initial=tb.starts.spread(9), **BOUNDED), torch.rand(4, 2), generator=generator(0))
    assert sorted(few.ask().index.tolist()) == [0, 1, 2, 3]
