"""Picks without a batch rule: pending picks condition the posterior exactly, so that they repel each other."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import oracles
import pytest
import torch
from problems import BOUNDED, NOISE_STD, Problem, generator, kernel_pair, rbf
from tolerances import VARIANCE, assert_close

import torchbandits as tb
from torchbandits.botorch import BanditModel, PolicyAcquisition, optimize_arms
from torchbandits.errors import UnsupportedError
from torchbandits.sources import Chunks
from torchbandits.testing.play import differences, everything

F64 = VARIANCE[torch.float64]
LAM = NOISE_STD**2
WIDTH = tb.widths.Constant(2.0)
SPARSE: dict[str, Any] = {
    "bkb": tb.bkb,
    "bkb ei": lambda kernel, **options: tb.bkb(kernel, acquisition="ei", **options),
    "batch_bkb": tb.batch_bkb,
    "batch_bkb local": lambda kernel, **options: tb.batch_bkb(kernel, batch_rule="local", **options),
}
every_sparse = pytest.mark.parametrize("name", SPARSE)


def policy(name: str, kernel: Any = None, **options: Any) -> Any:
    return SPARSE[name](rbf() if kernel is None else kernel, **(BOUNDED | {"width": WIDTH} | options))


def settled(name: str, problem: Problem, pulls: int = 30, **options: Any) -> tb.Bandit:
    """A bandit after pulls of which only a part is in the dictionary."""
    bandit = tb.Bandit(policy(name, oversampling=1.0, **options), problem.tensor, generator=generator(3))
    arms = np.random.default_rng(1).integers(0, problem.a // 2, size=pulls)
    for start in range(0, pulls, 10):
        part = torch.as_tensor(arms[start : start + 10])
        bandit.tell(part, problem.rewards(start, part))
    assert int((bandit.dictionary >= 0).sum()) < int((bandit.counts > 0).sum())
    return bandit


def given_pending(bandit: tb.Bandit, problem: Problem, pending: torch.Tensor) -> np.ndarray:
    """The oracle's variance of every arm: DTC on the bandit's dictionary, conditioned on the pending pulls."""
    k, x = kernel_pair("rbf")[1], problem.arms
    u = (bandit.counts > 0).nonzero().flatten().numpy()
    S, n = bandit.dictionary.numpy(), bandit.counts.numpy()[u]
    state = oracles.nystrom_posterior(
        k(x[S], x[S]), k(x[S], x[u]), k(x[S], x), oracles.diagonal(k, x), n, np.zeros(len(u)), LAM, K_aa=k(x, x)
    )
    return state.given_pulls(pending.numpy(), np.ones(len(pending)))


@every_sparse
def test_before_the_first_reward_picks_are_those_of_the_exact_posterior(name):
    problem = Problem(seed=2)
    exact = tb.gp_ucb(rbf(), acquisition="ei" if name.endswith("ei") else "ucb", noise_std=NOISE_STD, width=WIDTH)
    expected = tb.Bandit(exact, problem.tensor).ask(more=8).index.tolist()
    assert len(set(expected)) == 8
    assert tb.Bandit(policy(name), problem.tensor).ask(more=8).index.tolist() == expected
    one_by_one = tb.Bandit(policy(name), problem.tensor)
    for _ in range(8):
        one_by_one.ask(more=1)
    assert one_by_one.ask().index.tolist() == expected


def test_at_most_one_pull_an_arm_is_no_table_order():
    bandit = tb.Bandit(tb.batch_bkb(rbf(), max_pulls=1, width=WIDTH, **BOUNDED), Problem(seed=2).tensor)
    assert sorted(bandit.ask(more=8).index.tolist()) != list(range(8))


@every_sparse
def test_with_everything_in_the_dictionary_further_picks_are_those_of_gp_bucb(name):
    problem, everything_kept = Problem(seed=4), 1e15
    exact = tb.gp_bucb(rbf(), width=WIDTH, **BOUNDED)
    if name.endswith("ei"):
        exact = tb.gp_ucb(rbf(), acquisition="ei", noise_std=NOISE_STD, width=WIDTH)
    pair = [tb.Bandit(p, problem.tensor, generator=generator(0)) for p in (exact, policy(name, oversampling=everything_kept))]
    arms = torch.as_tensor(np.random.default_rng(1).integers(0, 40, size=25))
    for bandit in pair:
        bandit.tell(arms, problem.rewards(0, arms))
        bandit.ask(more=12)
    assert pair[1].ask().index.tolist() == pair[0].ask().index.tolist()
    variances = [bandit.posterior(problem.tensor).variance for bandit in pair]
    assert_close(variances[1], variances[0], F64, what="variance")


@every_sparse
def test_the_hallucinated_variance_is_the_oracle_s_and_never_rises(name):
    problem = Problem(seed=5)
    bandit = settled(name, problem)
    before = bandit.posterior(problem.tensor)
    last = before.variance
    for _ in range(4):
        pending = bandit.ask(more=3).index
        now = bandit.posterior(problem.tensor)
        assert torch.equal(now.mean, before.mean)
        assert bool((now.variance <= last + 1e-13).all())
        assert_close(now.variance, given_pending(bandit, problem, pending), F64, what="variance")
        last = now.variance


@every_sparse
def test_each_further_pick_is_the_best_under_what_the_posterior_shows(name):
    """Law 6: the acquisition function with the same points pending ranks the same arms."""
    problem = Problem(seed=6)
    bandit = settled(name, problem)
    for more in range(6):
        waiting = bandit.ask() if more else None
        points = None if waiting is None else waiting.points
        scores = PolicyAcquisition(bandit.model(), bandit.policy, points)(problem.tensor.unsqueeze(-2))
        if name.endswith("ei"):
            pick = int(bandit.ask(more=1).index[-1])
        else:
            at = bandit.posterior(problem.tensor)
            torch.testing.assert_close(scores, at.mean + 2 * at.variance.sqrt(), rtol=1e-8, atol=1e-8)
            pick = int(bandit.ask(more=1).index[-1])
        assert float(scores[pick]) >= float(scores.max()) - 1e-9
    twin = settled(name, problem)
    acqf = PolicyAcquisition(twin.model(), twin.policy)
    assert optimize_arms(acqf, problem.tensor, 6, unique=False)[2].tolist() == bandit.ask().index.tolist()


@every_sparse
def test_what_follows_a_part_of_a_batch_repels_the_rest_of_it(name):
    problem = Problem(seed=7)
    bandit = settled(name, problem)
    opened = bandit.ask(more=5)
    bandit.tell(opened[:2], problem.rewards(50, opened.index[:2]))
    pending = bandit.ask().index
    assert pending.tolist() == opened.index[2:].tolist()
    assert_close(bandit.posterior(problem.tensor).variance, given_pending(bandit, problem, pending), F64, what="variance")
    longer = bandit.ask(more=4).index
    assert_close(bandit.posterior(problem.tensor).variance, given_pending(bandit, problem, longer), F64, what="variance")


@every_sparse
def test_forgetting_restores_and_a_saved_batch_goes_on_the_same(name):
    problem = Problem(seed=8)
    bandit = settled(name, problem)
    before, state = bandit.posterior(problem.tensor), copy.deepcopy(bandit.state_dict())
    bandit.ask(more=3)
    resumed = tb.Bandit(policy(name, oversampling=1.0), problem.tensor, generator=generator(99))
    resumed.load_state_dict(copy.deepcopy(bandit.state_dict()))
    assert resumed.ask(more=5).index.tolist() == bandit.ask(more=5).index.tolist()
    assert differences(everything(bandit), everything(resumed)) == []
    bandit.forget(bandit.ask())
    after = bandit.posterior(problem.tensor)
    assert torch.equal(after.variance, before.variance)
    assert torch.equal(after.mean, before.mean)
    own = {key: value for key, value in state["state"].items() if "pending" not in key}
    assert differences(own, {k: v for k, v in bandit.state_dict()["state"].items() if "pending" not in k}) == []


@every_sparse
def test_a_journal_goes_on_the_same(name, tmp_path):
    problem = Problem(seed=9)
    arguments = (policy(name), problem.tensor)
    bandit = tb.Bandit(*arguments, generator=generator(0), journal=tmp_path / "run")
    opened = bandit.ask(more=4)
    bandit.tell(opened[:3], problem.rewards(0, opened.index[:3]))
    longer = bandit.ask(more=3).index
    bandit.journal.close()
    again = tb.Bandit(*arguments, generator=generator(0), journal=tmp_path / "run")
    assert again.ask().index.tolist() == longer.tolist()
    alone = tb.Bandit(*arguments, generator=generator(0))
    alone.tell(alone.ask(more=4)[:3], problem.rewards(0, opened.index[:3]))
    assert again.ask(more=3).index.tolist() == alone.ask(more=6).index.tolist()


@every_sparse
def test_batch_rows_are_singles(name):
    problems = [Problem(seed=s) for s in (1, 2, 3)]
    batch = tb.Bandit(policy(name), torch.stack([p.tensor for p in problems]), generator=[generator(s) for s in range(3)])
    singles = [tb.Bandit(policy(name), p.tensor, generator=generator(s)) for s, p in enumerate(problems)]
    for more in (6, 3):
        together = batch.ask(more=more)
        apart = [bandit.ask(more=more) for bandit in singles]
        assert together.index.tolist() == [selection.index.tolist() for selection in apart]
        told = torch.stack([p.rewards(10 * more, s.index[:4]) for p, s in zip(problems, apart, strict=True)])
        batch.tell(together[:4], told)
        for bandit, selection, rewards in zip(singles, apart, told, strict=True):
            bandit.tell(selection[:4], rewards)


@pytest.mark.sweep(6)
@every_sparse
@pytest.mark.parametrize("kind", ["float32", "source", "recomputed"])
def test_other_arms_pick_the_same(name, kind):
    problem, budget = Problem(seed=10), 1 if kind == "recomputed" else 2 << 30
    arms = problem.tensor.float().double()
    bandits = [tb.Bandit(policy(name), arms, generator=generator(0))]
    source = Chunks(lambda: arms.split(17), arms.shape, arms.dtype, "cpu", None, False)
    given = {"float32": arms.float(), "source": source, "recomputed": arms}[kind]
    bandits.append(tb.Bandit(policy(name, memory_budget=budget), given, generator=generator(0)))
    rewards = problem.rewards(0, torch.arange(20))
    for bandit in bandits:
        bandit.tell(torch.arange(20), rewards)
        bandit.ask(more=8)
    assert bandits[0].ask().index.tolist() == bandits[1].ask().index.tolist()


@pytest.mark.parametrize("name", ["bkb", "batch_bkb"])
def test_in_a_box_further_points_keep_their_distance(name):
    box = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
    bandit = tb.Bandit(policy(name, rbf(0.2)), bounds=box, generator=generator(0))
    x = bandit.ask(more=6).points.numpy()
    assert float(torch.pdist(torch.as_tensor(x)).min()) > 0.2
    grid = torch.rand(400, 2, generator=generator(1), dtype=torch.float64)
    k = kernel_pair("rbf", 0.2)[1]
    expected = oracles.exact_posterior(k(x, x), k(x, grid.numpy()), np.ones(400), np.zeros(6), LAM).variance
    assert_close(bandit.posterior(grid).variance, expected, F64, what="variance")


def test_cells_of_ada_bkb_that_the_dictionary_does_not_explain():
    problem = Problem(seed=11, a=300)
    exact = tb.ada_bkb(rbf(0.2), norm_bound=5.0, noise_std=NOISE_STD, width=WIDTH)
    bandit = tb.Bandit(exact, problem.tensor, generator=generator(0))
    for _ in range(12):
        selection = bandit.ask()
        bandit.tell(selection, problem.rewards(int(bandit.pulls), selection.index))
    picks = bandit.ask(more=6).index
    S, u = bandit.dictionary.numpy(), (bandit.counts > 0).nonzero().flatten().numpy()
    k, x, n = kernel_pair("rbf", 0.2)[1], problem.arms, bandit.counts.numpy()[u]
    state = oracles.nystrom_posterior(
        k(x[S], x[S]), k(x[S], x[u]), k(x[S], x), np.ones(300), n, np.zeros(len(u)), LAM, K_aa=k(x, x)
    )
    expected = state.given_pulls(picks.numpy(), np.ones(6))
    assert_close(bandit.posterior(problem.tensor).variance, expected, F64, what="variance")


def test_workers_spread_before_the_first_reward(tmp_path):
    problem = Problem(seed=12)
    worker = tb.Worker(policy("batch_bkb"), problem.tensor, store=tmp_path / "store")
    picks = [int(worker.ask().index) for _ in range(5)]
    worker.close()
    assert picks == tb.Bandit(policy("bkb"), problem.tensor).ask(more=5).index.tolist()
    assert len(set(picks)) == 5


@pytest.mark.parametrize("name", ["batch_bkb", "batch_bkb local"])
def test_a_batch_of_the_rule_is_the_paper_s(name):
    """The dictionary is frozen, so picks leave the residual unchanged."""
    problem = Problem(seed=13)
    bandit = settled(name, problem, ratio_threshold=40.0)
    opened = bandit.ask()
    assert len(opened) > 2
    k, x = kernel_pair("rbf")[1], problem.arms
    S, u = bandit.dictionary.numpy(), (bandit.counts > 0).nonzero().flatten().numpy()
    mean, n = bandit.posterior(problem.tensor).mean.numpy(), bandit.counts.numpy()[u]
    for place, pick in enumerate(opened.index.tolist()):
        pending = opened.index[:place].numpy()
        at = np.concatenate([u, pending])
        weights, waiting = np.r_[n, np.zeros(place)], np.r_[0 * n, np.ones(place)]
        state = oracles.nystrom_posterior(
            k(x[S], x[S]), k(x[S], x[at]), k(x[S], x), np.ones(len(x)), weights, 0 * weights, LAM, pending=waiting
        )
        score = mean + 2 * np.sqrt(state.variance)
        assert score[pick] >= score.max() - 1e-9


def test_points_of_a_frozen_dictionary_come_first():
    X = torch.rand(10, 2, generator=generator(0), dtype=torch.float64)
    model = BanditModel(X, X[:, :1], kernel=rbf(), noise_std=0.1, dictionary=X[:4])
    assert bool((model.hallucinate(X[:2], frozen_dictionary=True).hallucinate(X[2:3]).marginals(X).variance > 0).all())
    with pytest.raises(UnsupportedError, match="frozen"):
        model.hallucinate(X[2:3]).hallucinate(X[:2], frozen_dictionary=True)


def test_a_row_of_which_nothing_is_pending_keeps_the_paper_s_batch():
    """Law 5: at another context, batch rows whose picks are all told pick like single runs."""
    arms, contexts = Problem(seed=14, a=30).tensor, torch.rand(2, 1, generator=generator(2), dtype=torch.float64)
    policy_ = policy("batch_bkb", rbf(0.8), ratio_threshold=30.0)
    batch = tb.ContextualBandit(policy_, arms, contexts, generator=[generator(0), generator(1)])
    singles = [tb.ContextualBandit(policy_, arms, contexts, generator=generator(r)) for r in range(2)]
    history = torch.arange(6).expand(2, -1)
    batch.observe(history, torch.ones(2, 6), torch.zeros(2, 6), context=contexts[0])
    for single in singles:
        single.observe(history[0], torch.ones(6), torch.zeros(6), context=contexts[0])
    first = batch.ask(torch.tensor([2, 0]), context=contexts[0])
    assert first.mask.sum(dim=-1).tolist() == [2, 0]
    singles[0].ask(2, context=contexts[0])
    together = batch.ask(6, context=contexts[1])
    for row, single in enumerate(singles):
        alone = single.ask(6, context=contexts[1])
        assert together.index[row][together.mask[row]].tolist() == alone.index.tolist()
