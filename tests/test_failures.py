"""Evaluations that fail: policies with an estimated kernel leave out arms that are likely to fail, and nothing else changes."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from emulated_device import Lane
from problems import generator, rbf
from scipy import stats
from torch import Tensor

import torchbandits as tb
from torchbandits import outcomes, stopping
from torchbandits.failures import Failures

RNG = np.random.default_rng(7)
ARMS = torch.as_tensor(RNG.uniform(size=(600, 3)))
VALUE = ARMS[:, 0] - (ARMS[:, 1] - 0.3).square()
NOISE = torch.as_tensor(0.05 * RNG.normal(size=1000))
# A plane behind which every evaluation fails. The best arms lie behind it.
FAILS = ARMS[:, 0] + 0.2 * ARMS[:, 2] > 0.6
TWO = tb.widths.Constant(2.0)
NAN = torch.full((1,), torch.nan, dtype=torch.float64)


def measured(index: Tensor, pull: int, fails: Tensor = FAILS) -> Tensor:
    """Rewards of arms, NaN where the evaluation fails."""
    return (VALUE[index] + NOISE[pull]).masked_fill(fails[index], torch.nan)


def played(bandit: tb.Bandit, rounds: int, fails: Tensor = FAILS, *, teaches: bool = True) -> list[int]:
    """The arms that a bandit picks in this many rounds. Failures are told as NaN, or else their picks are forgotten."""
    picks = []
    for pull in range(rounds):
        selection = bandit.ask()
        rewards = measured(selection.index, pull, fails)
        if teaches or not bool(rewards.isnan().any()):
            bandit.tell(selection, rewards, failures="forget")
        else:
            bandit.forget(selection)
        picks += selection.index.tolist()
    return picks


def fresh(policy: Any = None, arms: Tensor = ARMS, **options: Any) -> tb.Bandit:
    return tb.Bandit(policy or tb.auto(), arms, generator=options.pop("generator", generator(0)), **options)


def test_arms_that_are_likely_to_fail_are_left_out():
    taught, untaught = [], []
    for seed in range(3):
        learns, forgets = fresh(generator=generator(seed)), fresh(generator=generator(seed))
        taught += played(learns, 36)
        untaught += played(forgets, 36, teaches=False)
    assert int(FAILS[taught].sum()) <= 51
    assert int(FAILS[untaught].sum()) >= 72
    regret = VALUE[~FAILS].max() - VALUE[learns.best(1).index]
    assert float(regret) < 0.3 * float(VALUE.std())
    # What is left out is what fails, but for arms near the plane.
    wrong = learns.loop.failures.left_in(None, 1) == FAILS
    assert float(wrong.double().mean()) < 0.1


@pytest.mark.exhaustive
def test_nothing_changes_where_failures_come_by_chance_alone():
    """Most arms stay in if half of the evaluations fail wherever they are."""
    model, drawn = Failures(ARMS, torch.Size()), np.random.default_rng(1)
    for _ in range(120):
        arm, good = torch.tensor([int(drawn.integers(len(ARMS)))]), torch.tensor([bool(drawn.integers(2))])
        model.tell_(arm, torch.tensor([True]), good)
    assert float(model.left_in(None, 1).double().mean()) > 0.8


def test_predicted_success_is_that_of_a_dense_gaussian_process():
    """The arms left in are those of the posterior mean of a Gaussian process with the fitted kernel, in NumPy."""
    model, drawn = Failures(ARMS, torch.Size()), np.random.default_rng(2)
    tried = drawn.choice(len(ARMS), size=40, replace=False)
    tried = np.concatenate([tried, tried[:10]])
    good = ~FAILS.numpy()[tried]
    for arm, succeeded in zip(tried, good, strict=True):
        model.tell_(torch.tensor([int(arm)]), torch.tensor([True]), torch.tensor([bool(succeeded)]))
    posterior = model._state.posterior
    kernel, units, lam = posterior.kernel, posterior.units, float(posterior.regularization)
    scaled = ARMS.numpy() / kernel.base_kernel.lengthscale.detach().numpy()

    def matern(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        r = np.sqrt(5) * np.sqrt(((a[:, None] - b[None]) ** 2).sum(-1))
        return float(kernel.outputscale) * (1 + r + r**2 / 3) * np.exp(-r)

    # Failure and success are the two knots of the map to model units.
    low, high = (units.scale * units.scores).tolist()
    targets = np.where(good, high, low)
    K = matern(scaled[tried], scaled[tried]) + lam * np.eye(len(tried))
    mean = matern(scaled, scaled[tried]) @ np.linalg.solve(K, targets)
    share = min(0.5, (good.sum() + 1) / (len(good) + 2))
    bar = low + share * (high - low)
    clear = np.abs(mean - bar) > 1e-6
    twice = np.isin(np.arange(len(ARMS)), tried[40:][~good[40:]])
    assert clear.mean() > 0.99
    assert np.array_equal(model.left_in(None, 1).numpy()[clear], ((mean >= bar) & ~twice)[clear])


def test_before_the_first_success_picks_go_where_failures_tell_least():
    bandit, everywhere = fresh(), torch.ones_like(FAILS)
    picks, untaught = played(bandit, 30, everywhere), played(fresh(), 30, everywhere, teaches=False)
    assert len(set(picks)) == 30
    # The largest distance of an arm to its nearest pick.
    apart, before = (float(torch.cdist(ARMS, ARMS[own]).amin(dim=-1).max()) for own in (picks, untaught))
    assert apart < 0.7 * before
    for ask in (bandit.best, bandit.best_arm, bandit.explain):
        with pytest.raises(tb.errors.StateError, match=r"^30 evaluations failed and none succeeded, so that no arm"):
            ask()


@pytest.mark.exhaustive
def test_a_batch_of_a_given_size_is_whole_even_if_few_arms_are_likely_to_succeed():
    bandit = fresh()
    played(bandit, 40)
    left = bandit.loop.failures.left_in(None, 1)
    count = int(left.sum()) + 5
    selection = bandit.ask(exactly=count)
    assert selection.index.unique().numel() == count
    assert int(left[selection.index].sum()) == count - 5


@pytest.mark.exhaustive
@pytest.mark.parametrize("several", [False, True])
def test_a_batch_of_the_policys_size_is_whole_even_if_few_arms_are_likely_to_succeed(several):
    arms = ARMS[:40]
    fails = VALUE[:40] > VALUE[:40].sort().values[4]
    policy = tb.auto(batch_size=8)
    if several:
        policy = outcomes.pareto({"gain": policy, "loss": tb.auto(batch_size=8)}, minimize=["loss"])
    bandit = (tb.OutcomeBandit if several else tb.Bandit)(policy, arms, generator=generator(0))
    for pull in range(10):
        selection = bandit.ask()
        rewards = measured(selection.index, pull, fails)
        bandit.tell(selection, {"gain": rewards, "loss": rewards.square()} if several else rewards, failures="forget")
    left = bandit.loop.failures.left_in(None, 1)
    assert int(left.sum()) < 8
    selection = bandit.ask()
    assert selection.index.unique().numel() == 8
    assert int(left[selection.index].sum()) == int(left.sum())
    selection = bandit.ask(more=3)
    assert len(selection) == 11
    bandit.forget(selection)
    assert len(bandit.ask(limit=2)) == 2


@pytest.mark.sweep(1)
@pytest.mark.parametrize("copies", [False, True])
def test_arms_with_equal_features_count_once_in_a_batch(copies):
    """Also if the first one of equal arms is not on offer."""
    arms, available = ARMS[:20].repeat(4, 1), torch.ones(80, dtype=torch.bool)
    available[:20] = not copies
    bandit = fresh(arms=arms)
    for _ in range(14):
        bandit.tell(bandit.ask(), NAN, failures="forget")
    assert int(bandit.loop.failures.left_in(None, 1).sum()) < 12 * 4
    selection = bandit.ask(exactly=12, available=available)
    assert (selection.index % 20).unique().numel() == 12
    assert bool(available[selection.index].all())


@pytest.mark.exhaustive
@pytest.mark.parametrize("several", [False, True])
def test_the_model_of_success_respects_the_memory_budget(several):
    """Beyond 16 distinct arms, both models keep a dictionary."""
    policy = tb.auto(memory_budget=len(ARMS) * 16)
    if several:
        policy = outcomes.pareto({"gain": policy, "loss": tb.auto(memory_budget=len(ARMS) * 16)}, minimize=["loss"])
    loop = (tb.OutcomeBandit if several else tb.Bandit)(policy, ARMS, generator=generator(0)).loop
    model = Failures(ARMS, torch.Size(), loop.policy.memory_of_failures)
    for arm in range(20):
        model.tell_(torch.tensor([arm]), torch.tensor([True]), torch.tensor([arm % 2 == 0]))
    assert model._state.posterior.sparse
    assert loop.policy.memory_of_failures == len(ARMS) * 16


@pytest.mark.exhaustive
def test_only_arms_on_offer_are_picked():
    bandit = fresh()
    played(bandit, 40)
    assert not bool(bandit.loop.failures.left_in(FAILS, 1)[~FAILS].any())
    selection = bandit.ask(available=FAILS)
    assert bool(FAILS[selection.index].all())


@pytest.mark.parametrize("name", ["gp_ucb", "batch_bkb"])
def test_policies_with_a_given_kernel_do_not_learn_from_failures(name):
    """Their guarantees are for all arms."""
    policy = getattr(tb, name)(rbf(0.3), noise_std=0.1, width=TWO)
    told, forgotten = fresh(policy), fresh(policy)
    assert played(told, 12) == played(forgotten, 12, teaches=False)
    assert told.loop.failures is None


def test_a_kernel_that_is_refitted_learns_from_failures():
    bandit = fresh(tb.gp_ucb(rbf(0.3), noise_std=0.1, width=TWO, refit_every=10))
    played(bandit, 20)
    assert bandit.loop.failures is not None


@pytest.mark.exhaustive
def test_batch_rows_are_independent():
    """Evaluations fail in row 0 alone: both rows leave out what they do alone."""
    rows, never = Failures(ARMS, torch.Size([2])), torch.zeros_like(FAILS)
    alone = [Failures(ARMS, torch.Size()) for _ in range(2)]
    for arms in torch.as_tensor(np.random.default_rng(5).choice(len(ARMS), size=(30, 2))):
        good = ~torch.stack([FAILS[arms[0]], never[arms[1]]]).unsqueeze(-1)
        rows.tell_(arms.unsqueeze(-1), torch.ones_like(good), good)
        for model, arm, own in zip(alone, arms, good, strict=True):
            model.tell_(arm.unsqueeze(-1), torch.ones_like(own), own)
    left = rows.left_in(None, 1)
    assert torch.equal(left[0], alone[0].left_in(None, 1))
    assert bool(left[1].all())
    assert rows.counted((0,)) == alone[0].counted(())
    assert rows.counted((1,)) == (0, 0)


# ---------------------------------------------------------------------- saved, resumed, moved, undone


def test_a_saved_state_continues_exactly():
    bandit = fresh()
    played(bandit, 30)
    other = fresh(generator=generator(9)).load_state_dict(bandit.state_dict())
    assert other.loop.failures.counted(()) == bandit.loop.failures.counted(())
    assert played(other, 15) == played(bandit, 15)


@pytest.mark.exhaustive
def test_a_state_saved_before_the_first_failure_has_none():
    bandit = fresh()
    saved = bandit.state_dict()
    played(bandit, 20)
    bandit.load_state_dict(saved)
    assert bandit.loop.failures is None


@pytest.mark.exhaustive
def test_a_journal_resumes_exactly(tmp_path: Path):
    bandit = fresh(journal=tmp_path / "run.journal")
    played(bandit, 30)
    bandit.journal.close()
    resumed = fresh(generator=generator(0), journal=tmp_path / "run.journal")
    assert resumed.loop.failures.counted(()) == bandit.loop.failures.counted(())
    alone = fresh()
    played(alone, 30)
    assert played(resumed, 10) == played(alone, 10)


def test_a_tell_that_fails_teaches_nothing(monkeypatch):
    """Also the first failure, which makes the model."""
    bandit = fresh()
    played(bandit, 4, torch.zeros_like(FAILS))
    for _ in range(2):
        selection = bandit.ask()
        before = copy.deepcopy(bandit.state_dict())
        with monkeypatch.context() as patched:
            patched.setattr("torchbandits.loop.report_of", lambda *_: (_ for _ in ()).throw(MemoryError("full")))
            with pytest.raises(MemoryError, match="full"):
                bandit.tell(selection, NAN, failures="forget")
        assert ("failures" in bandit.state_dict()) == ("failures" in before)
        assert bandit.loop.failed(()) == ((0, 0) if "failures" not in before else (1, bandit.loop.failed(())[1]))
        bandit.tell(selection, NAN, failures="forget")
    assert bandit.loop.failed(())[0] == 2


@pytest.mark.exhaustive
def test_other_arms_are_predicted_too():
    """After `set_arms_`, the failures on the old arms tell about the new ones."""
    bandit = fresh()
    played(bandit, 40)
    new = torch.as_tensor(np.random.default_rng(3).uniform(size=(300, 3)))
    bandit.set_arms_(torch.cat([ARMS[bandit.counts > 0], new]))
    fails = bandit.arms[:, 0] + 0.2 * bandit.arms[:, 2] > 0.6
    assert float((bandit.loop.failures.left_in(None, 1) == fails).double().mean()) < 0.2


@pytest.mark.exhaustive
def test_history_counts_as_success():
    bandit = fresh()
    played(bandit, 10)
    failed = bandit.loop.failed(())[0]
    good = (~FAILS).nonzero().squeeze(-1)[:50]
    bandit.observe(good, torch.ones(50), VALUE[good], VALUE[good].square())
    assert bandit.loop.failed(())[0] == failed
    assert float(bandit.loop.failures.left_in(None, 1)[good].double().mean()) > 0.95


@pytest.mark.exhaustive
def test_equal_arms_are_left_out_together():
    twice = torch.cat([ARMS, ARMS])
    bandit, alone = fresh(arms=twice), fresh()
    played(alone, 40)
    for pull in range(40):
        selection = bandit.ask()
        bandit.tell(selection, measured(selection.index % len(ARMS), pull), failures="forget")
    left = bandit.loop.failures.left_in(None, 1)
    assert torch.equal(left[: len(ARMS)], left[len(ARMS) :])


@pytest.mark.exhaustive
def test_picks_on_a_device_are_those_on_the_host(lane: Lane):
    here = fresh()
    expected = played(here, 25)
    with lane():
        there, picks = fresh(arms=ARMS.cuda()), []
        for pull in range(25):
            selection = there.ask()
            index = selection.index.cpu()
            there.tell(selection, measured(index, pull).cuda(), failures="forget")
            picks += index.tolist()
        assert picks == expected
        assert there.loop.failures.counted(()) == here.loop.failures.counted(())


# ---------------------------------------------------------------------- the other doors


@pytest.mark.exhaustive
def test_arms_that_are_left_out_do_not_keep_a_loop_from_stopping():
    """Where evaluations fail, the model of the reward stays as uncertain as it was, and expects as much."""
    bandit = fresh(tb.gp_ucb(rbf(0.3), noise_std=0.1, width=TWO, refit_every=10))
    played(bandit, 36)
    without = copy.deepcopy(bandit)
    without.loop.failures = None
    left = bandit.loop.failures.left_in(None, 1)
    marginals = bandit.posterior(ARMS)
    std = marginals.variance.sqrt().numpy()
    z = (marginals.mean - marginals.mean.max()).numpy() / std
    gain = std * (z * stats.norm.cdf(z) + stats.norm.pdf(z))
    improvement = stopping.ImprovementPerCost(1e-3)
    decided, before = bandit.should_stop(improvement), without.should_stop(improvement)
    assert float(decided.value) == pytest.approx(gain[left.numpy()].max(), rel=1e-6)
    assert float(before.value) == pytest.approx(gain.max(), rel=1e-6)
    assert float(decided.value) < float(before.value)
    regret = stopping.ProbableRegret(0.05)
    assert float(bandit.should_stop(regret).value) < float(without.should_stop(regret).value)


@pytest.mark.exhaustive
def test_workers_learn_from_the_failures_of_others(tmp_path: Path):
    """Two workers in turn pick what one bandit does."""
    workers = [tb.Worker(tb.auto(), ARMS, store=tmp_path / "run.db", generator=generator(0)) for _ in range(2)]
    alone = fresh()
    for pull in range(30):
        worker = workers[pull % 2]
        lease = worker.ask()
        worker.tell(lease, float(measured(lease.index, pull)), failures="forget")
        selection = alone.ask(exactly=1)
        assert lease.index.tolist() == selection.index.tolist()
        alone.tell(selection, measured(selection.index, pull), failures="forget")
    for worker in workers:
        assert worker.bandit.loop.failed(()) == alone.loop.failed(())
    assert alone.loop.failed(())[0] > 0


@pytest.mark.exhaustive
def test_workers_get_further_picks_while_all_arms_that_are_likely_to_succeed_are_open(tmp_path: Path):
    arms = ARMS[:40]
    fails = VALUE[:40] > VALUE[:40].sort().values[4]
    worker = tb.Worker(tb.auto(), arms, store=tmp_path / "run.db", generator=generator(0))
    for pull in range(40):
        lease = worker.ask()
        worker.tell(lease, float(measured(lease.index, pull, fails)), failures="forget")
    leases = [int(worker.ask().index) for _ in range(10)]
    assert int(worker.bandit.loop.failures.left_in(None, 1).sum()) < 10
    assert len(set(leases)) == 10


@pytest.mark.exhaustive
def test_several_outcomes_fail_together():
    """An evaluation without any outcome has failed; one that lacks an outcome has not."""
    policy = outcomes.pareto({"gain": tb.auto(), "loss": tb.auto()}, minimize=["loss"])
    bandit = tb.OutcomeBandit(policy, ARMS, generator=generator(0))
    picks = []
    for pull in range(40):
        selection = bandit.ask()
        gain = measured(selection.index, pull)
        bandit.tell(selection, {"gain": gain, "loss": gain.square()}, failures="forget")
        picks += selection.index.tolist()
    assert int(FAILS[picks].sum()) <= 20
    failed = bandit.loop.failed(())[0]
    assert failed == int(FAILS[picks].sum())
    selection = bandit.ask()
    bandit.tell(selection, {"gain": torch.ones(1), "loss": NAN}, failures="forget")
    assert bandit.loop.failed(())[0] == failed
    assert "that the model expects to fail" in str(bandit.explain())


def test_safe_arms_that_failed_stay_in():
    """They may be the only ones that are known to be safe."""
    models = {name: tb.gp_ucb(rbf(0.3), noise_std=0.1, width=TWO, refit_every=10) for name in ("gain", "loss")}
    policy = outcomes.safe(models, start=[0], maximize="gain", at_most={"loss": 0.5})
    bandit = tb.OutcomeBandit(policy, ARMS, generator=generator(0))
    for _ in range(3):
        selection = bandit.ask()
        assert selection.index.tolist() == [0]
        bandit.tell(selection, {"gain": NAN, "loss": NAN}, failures="forget")
    assert bandit.loop.failures is None


@pytest.mark.exhaustive
def test_contexts_keep_an_arm_on_offer():
    contexts = torch.linspace(0, 1, 5, dtype=torch.float64).unsqueeze(-1)
    bandit = tb.ContextualBandit(tb.auto(), ARMS[:40], contexts[:1], max_contexts=5, generator=generator(0))
    for pull in range(20):
        context = contexts[pull % 5]
        selection = bandit.ask(context=context)
        fails = bool(context > 0.6)  # whatever the arm
        bandit.tell(selection, NAN if fails else VALUE[selection.index], failures="forget")
    assert bandit.loop.failures is not None
    assert len(bandit.ask(context=contexts[4])) == 1
    found = bandit.explain(context=contexts[0])
    failed = bandit.loop.failed(())[0]
    assert found.failed == failed
    # At a context where nothing succeeded, all arms but the next ones are left out, and none of them counts as a rival.
    there = bandit.explain(context=contexts[4])
    left = bandit.loop.failures.left_in(bandit.loop.state.rows.competing, 1)
    assert there.avoided == 40 - int(left.sum()) > found.avoided
    assert there.rivals <= 40 - there.avoided
    assert f"{failed} pulls failed; {there.avoided} arms that the model expects to fail" in str(there)


@pytest.mark.exhaustive
def test_a_run_learns_from_evaluations_that_raise():
    def evaluate(point: Tensor) -> float:
        if float(point[0] + 0.2 * point[2]) > 0.6:
            raise ValueError("the reactor is too hot")
        return float(point[0] - (point[1] - 0.3) ** 2)

    history = tb.run(tb.auto(), tb.environments.BlackBox(evaluate, ARMS), 36, generator=generator(0), failures="forget")
    assert 0 < history.summary()["failed"] <= 14


@pytest.mark.exhaustive
def test_the_explanation_counts_failures():
    bandit = fresh()
    played(bandit, 30)
    failed, avoided = bandit.loop.failed(())
    told = f"{failed} pulls failed; {avoided} arms that the model expects to fail will not be selected for now."
    assert told in str(bandit.explain())
    # Arms that are left out do not count as those that may be better.
    assert bandit.explain().rivals <= len(ARMS) - avoided - 1
    without = fresh()
    played(without, 8, torch.zeros_like(FAILS))
    assert "failed" not in str(without.explain())
