"""A contextual bandit is a plain one on all pairs (context, arm), restricted to the context that is asked for."""

from __future__ import annotations

import copy
import os
from pathlib import Path
from typing import Any

import gpytorch
import numpy as np
import pytest
import torch
from contract import Case, every_policy
from problems import BOUNDED, COMMON, generator, rbf

import torchbandits as tb
from torchbandits import errors
from torchbandits.arms import ArmTable
from torchbandits.botorch import PolicyAcquisition, optimize_arms
from torchbandits.journal import pack
from torchbandits.testing.play import differences

RNG = np.random.default_rng(3)
ARMS = torch.as_tensor(RNG.uniform(size=(25, 2)))
CONTEXTS = torch.as_tensor(RNG.uniform(size=(12, 1)))
NOISE = torch.as_tensor(0.1 * RNG.normal(size=4000))


def reward(points: torch.Tensor, pull: int) -> torch.Tensor:
    f = torch.sin(4 * points[..., 0] + 3 * points[..., 1]) + points[..., 2]
    return f + NOISE[pull : pull + points.shape[-2]]


def joint(contexts: torch.Tensor) -> torch.Tensor:
    pairs = [contexts.repeat_interleave(len(ARMS), dim=0), ARMS.repeat(len(contexts), 1)]
    return torch.cat(pairs, dim=-1)


def order(length: int, contexts: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(contexts, size=length).tolist()


def compare(policy: Any, kept: int, most: int, length: int = 60) -> tb.ContextualBandit:
    """Assert the same picks, points and reports as those of the plain bandit on all pairs."""
    bandit = tb.ContextualBandit(policy, ARMS, CONTEXTS[:kept], max_contexts=most, generator=generator(0))
    plain = tb.Bandit(policy, joint(CONTEXTS), generator=generator(0))
    for t, c in enumerate(order(length, len(CONTEXTS))):
        here = torch.zeros(len(CONTEXTS), len(ARMS), dtype=torch.bool)
        here[c] = True
        ours, theirs = bandit.ask(limit=4, context=CONTEXTS[c]), plain.ask(limit=4, available=here.flatten())
        assert ours.index.tolist() == (theirs.index - c * len(ARMS)).tolist()
        assert torch.equal(ours.points, theirs.points)
        assert torch.equal(ours.points[..., 1:], ARMS[ours.index])
        y = reward(ours.points, 5 * t)
        ours_said, theirs_said = bandit.tell(ours, y), plain.tell(theirs, y)
        assert torch.equal(ours_said.pulls, theirs_said.pulls)
        torch.testing.assert_close(ours_said.width, theirs_said.width, rtol=1e-9, atol=0)
    for c in range(len(CONTEXTS)):
        known = plain.best(1000)
        means = plain.posterior(joint(CONTEXTS[c : c + 1])).mean
        best = bandit.best(2, context=CONTEXTS[c])
        assert int(best.index[0]) == int(means.argmax())
        torch.testing.assert_close(best.mean[0], means.max(), rtol=0, atol=1e-8)
        assert torch.equal(bandit.counts, plain.counts.reshape(len(CONTEXTS), -1)[c])
        assert len(known.index) == 1000
    assert bandit.contexts.shape[-2] <= max(most, kept)
    return bandit


@pytest.mark.sweep(1)
@pytest.mark.parametrize("most", [12, 3, 1])
@pytest.mark.parametrize("name", ["gp_ucb", "gp_bucb", "estimate"])
def test_exact_policies_pick_as_on_all_pairs_however_few_are_kept(name: str, most: int):
    policy = {
        "gp_ucb": lambda: tb.gp_ucb(rbf(), width=tb.widths.Constant(2.0), **COMMON),
        "gp_bucb": lambda: tb.gp_bucb(rbf(), **BOUNDED),
        "estimate": lambda: tb.igp_ucb(rbf(), prior_mean="estimate", **BOUNDED),
    }[name]()
    compare(policy, kept=1, most=most)


@pytest.mark.exhaustive
def test_sampled_dictionaries_pick_as_on_all_pairs():
    """When a context returns, a row keeps its place and its leverage, so that the draws are the same."""
    compare(tb.batch_bkb(rbf(), **BOUNDED), kept=12, most=12)
    compare(tb.bkb(rbf(), **BOUNDED), kept=2, most=2, length=40)


def test_a_context_seen_before_rebuilds_nothing(monkeypatch: pytest.MonkeyPatch):
    sweeps: list[int] = []
    sweep = ArmTable.sweep_
    monkeypatch.setattr(ArmTable, "sweep_", lambda table: (sweeps.append(1), sweep(table))[1])
    bandit = tb.ContextualBandit(tb.gp_ucb(rbf(), **COMMON), ARMS, CONTEXTS[:1])
    rebuilt = []
    for t, c in enumerate([0, 1, 0, 1, 2, 0, 1, 2, 2, 0]):
        before = len(sweeps)
        selection = bandit.ask(context=CONTEXTS[c])
        bandit.tell(selection, reward(selection.points, t))
        rebuilt.append(len(sweeps) - before)
    assert rebuilt == [0, 1, 0, 0, 1, 0, 0, 0, 0, 0]


def test_picks_open_at_several_contexts_wait_for_each_other():
    """An ask at another context treats open picks as pending. Rewards come in any order, and a failed pick is forgotten."""
    kernel = rbf(10.0)  # so wide that a pull is informative about every arm and context
    policy = tb.gp_ucb(kernel, width=tb.widths.Constant(3.0), **COMMON)
    bandit = tb.ContextualBandit(policy, ARMS, CONTEXTS[:1], max_contexts=2)
    opened = [bandit.ask(context=CONTEXTS[c]) for c in range(4)]
    assert bandit.contexts.shape[-2] == 4, "contexts with picks that are out are kept"
    for c in (2, 0, 1, 3):
        assert torch.equal(bandit.ask(context=CONTEXTS[c]).index, opened[c].index)
    shrunk = bandit.posterior(joint(CONTEXTS)).variance
    bandit.tell(opened[2], reward(opened[2].points, 0))
    bandit.forget(opened[1])
    more = bandit.ask(context=CONTEXTS[0], more=2)
    assert len(more) == 3
    assert more.index[0] == opened[0].index[0]
    bandit.tell(more, reward(more.points, 5))
    bandit.tell(opened[3], reward(opened[3].points, 9))
    assert float(bandit.pulls) == 5
    fresh = tb.Bandit(policy, joint(CONTEXTS))
    for selection, first in ((opened[2], 0), (more, 5), (opened[3], 9)):
        c = [int((p[:1] == CONTEXTS).all(-1).byte().argmax()) for p in selection.points]
        fresh.tell(torch.tensor(c) * len(ARMS) + selection.index, reward(selection.points, first))
    for ours, theirs in zip(*(vars(b.posterior(joint(CONTEXTS))).values() for b in (bandit, fresh)), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-10)
    assert bool((shrunk <= 1).all())


@pytest.mark.sweep(1)
@pytest.mark.parametrize("policy", [tb.gp_ucb(rbf(), noise_std=0.1), tb.auto()], ids=["gp_ucb", "auto"])
def test_batches_of_a_given_size(policy: tb.Policy, tmp_path: Path):
    def started() -> tb.ContextualBandit:
        return tb.ContextualBandit(policy, ARMS, CONTEXTS, generator=generator(0), journal=tmp_path / "run.journal")

    bandit, plain = started(), tb.Bandit(policy, joint(CONTEXTS), generator=generator(0))
    for t, c in enumerate((3, 1, 3)):
        here = (torch.arange(len(CONTEXTS)) == c).repeat_interleave(len(ARMS))
        ours = bandit.ask(context=CONTEXTS[c], exactly=7)
        theirs = plain.ask(exactly=7, available=here)
        assert ours.index.tolist() == (theirs.index - c * len(ARMS)).tolist()
        assert torch.equal(bandit.ask(context=CONTEXTS[c], exactly=2).index, ours.index)  # open picks are returned again
        bandit.tell(ours, reward(ours.points, 7 * t))
        plain.tell(theirs, reward(theirs.points, 7 * t))
    one, other = bandit.ask(context=CONTEXTS[0], exactly=3), bandit.ask(context=CONTEXTS[2], exactly=4)
    assert (one.index.shape[-1], other.index.shape[-1]) == (3, 4)
    assert bool((other.points[..., 0] == CONTEXTS[2]).all())
    with pytest.raises(errors.ArgumentError, match="leave them out"):
        bandit.ask(context=CONTEXTS[4], exactly=3, limit=2)
    few = torch.arange(len(ARMS)) < 0
    with pytest.raises(errors.ArgumentError, match="available"):
        bandit.ask(context=CONTEXTS[4], exactly=3, available=few)
    bandit.journal.close()
    again = started()
    assert torch.equal(again.ask(context=CONTEXTS[0]).index, one.index)
    assert torch.equal(again.ask(context=CONTEXTS[2]).index, other.index)
    again.journal.close()


def test_a_given_size_overrides_a_batch_rule_and_says_so_once():
    bandit = tb.ContextualBandit(tb.batch_bkb(rbf(), noise_std=0.1), ARMS, CONTEXTS, generator=generator(0))
    with pytest.warns(errors.DiagnosticWarning, match="exactly= sets aside the batch rule") as said:
        picks = [bandit.ask(context=CONTEXTS[c], exactly=5).index for c in (0, 1)]
    assert [index.shape[-1] for index in picks] == [5, 5]
    assert len(said) == 1
    assert said[0].filename == __file__


def test_rows_have_contexts_of_their_own():
    policy = tb.batch_bkb(rbf(), max_batch_size=3, **BOUNDED)
    own = torch.stack([CONTEXTS[:6], CONTEXTS[6:]])
    batch = tb.ContextualBandit(policy, ARMS, own[:, :1], generator=[generator(1), generator(2)])
    singles = [tb.ContextualBandit(policy, ARMS, own[r, :1], generator=generator(1 + r)) for r in range(2)]
    for t, c in enumerate(order(25, 6)):
        together = batch.ask(context=own[:, c])
        y = torch.zeros(together.index.shape, dtype=torch.float64)
        for r, single in enumerate(singles):
            alone = single.ask(context=own[r, c])
            mine = together.mask[r]
            assert together.index[r][mine].tolist() == alone.index.tolist()
            assert torch.equal(together.points[r][mine], alone.points)
            y[r][mine] = reward(alone.points, 3 * t)
            single.tell(alone, y[r][mine])
        batch.tell(together, y)
        for r, single in enumerate(singles):
            assert torch.equal(batch.counts[r], single.counts)


def test_rows_may_be_paired_differently_from_ask_to_ask():
    """Row 0 sees a with b, then a with c: its picks, counts and recommendations at a are the same as alone."""
    policy = tb.gp_ucb(rbf(), width=tb.widths.Constant(2.0), **COMMON)
    a, b, c = CONTEXTS[:3]
    batch = tb.ContextualBandit(policy, ARMS, torch.stack([a, b]).unsqueeze(1), generator=[generator(1), generator(2)])
    singles = [tb.ContextualBandit(policy, ARMS, x[None], generator=generator(1 + r)) for r, x in enumerate((a, b))]
    pairs = [(a, c), (a, b), (c, b), (a, c), (c, c), (a, a), (a, c)]
    for t, pair in enumerate(pairs):
        context = torch.stack(pair)
        together = batch.ask(context=context)
        assert bool(together.mask.all())
        assert torch.equal(batch.ask(context=context).index, together.index), "what is open is open"
        for r, single in enumerate(singles):
            alone = single.ask(context=pair[r])
            assert together.index[r].tolist() == alone.index.tolist()
            single.tell(alone, reward(alone.points, t))
        batch.tell(together, torch.stack([reward(x, t) for x in together.points]))
        best = batch.best(2, context=context)
        for r, single in enumerate(singles):
            torch.testing.assert_close(best.mean[r], single.best(2, context=pair[r]).mean, rtol=0, atol=1e-9)
            assert torch.equal(batch.counts[r], single.counts)
    history = torch.tensor([0, 1])
    report = batch.observe(history, torch.ones(2), torch.zeros(2), context=a)
    assert report.pulls.tolist() == [9.0, 9.0]


def test_open_picks_are_open_at_their_context_whatever_the_other_rows_see():
    """Row 0 has picks open at a beside b, and then sees a beside c, which takes the place of a context of the start."""
    policy = tb.gp_ucb(rbf(), width=tb.widths.Constant(2.0), **COMMON)
    a, b, c, z = CONTEXTS[:4]
    bandit = tb.ContextualBandit(policy, ARMS, z[None], max_contexts=2, generator=[generator(1), generator(2)])
    opened = bandit.ask(context=torch.stack([a, b]))
    again = bandit.ask(context=torch.stack([a, c]))
    assert again.mask.tolist() == [[True], [False]], "row 0 waits for its pick, and row 1 has none at c"
    assert again.index[0].tolist() == opened.index[0].tolist()
    more = bandit.ask(context=torch.stack([a, c]), more=1)
    assert more.mask.sum(dim=-1).tolist() == [2, 1]
    assert int(more.index[0, 0]) == int(opened.index[0, 0])
    bandit.tell(more, torch.where(more.mask, 1.0, 0.0).double())
    assert bandit.ask(context=torch.stack([c, b])).mask.tolist() == [[False], [True]]
    bandit.tell(tb.Selection(opened.points, opened.index, torch.tensor([[False], [True]])), torch.ones(2, 1).double())
    assert bandit.pulls.tolist() == [2.0, 2.0]


def test_plain_indices_and_history_name_their_context():
    bandit = tb.ContextualBandit(tb.gp_ucb(rbf(), **COMMON), ARMS, CONTEXTS[:2], max_contexts=2)
    bandit.tell(torch.tensor([3, 4]), torch.tensor([1.0, 2.0]), context=CONTEXTS[5])
    bandit.observe(torch.tensor([7]), torch.tensor([3.0]), torch.tensor([3.0]), context=CONTEXTS[6])
    bandit.observe(joint(CONTEXTS[8:9])[:2], torch.ones(2), torch.ones(2))
    assert float(bandit.pulls) == 7
    bandit.ask(context=CONTEXTS[5])
    assert bandit.counts.nonzero().squeeze(-1).tolist() == [3, 4]
    bandit.ask(context=CONTEXTS[8])
    assert bandit.counts.nonzero().squeeze(-1).tolist() == [0, 1]
    with pytest.raises(errors.ArgumentError, match="context="):
        bandit.tell(torch.tensor([3]), torch.tensor([1.0]))


def test_a_selection_is_not_told_at_another_context():
    """Its rewards would be learned where it was asked for, whatever context is given."""
    arms, contexts = torch.rand(6, 2, generator=generator(0), dtype=torch.float64), torch.eye(2, dtype=torch.float64)
    bandit = tb.ContextualBandit(tb.auto(), arms, contexts)
    selection, one = bandit.ask(context=contexts[0]), torch.ones(1)
    with pytest.raises(errors.ArgumentError, match=r"asked for at another context, .* tell its arms there, selection\.index"):
        bandit.tell(selection, one, context=contexts[1])
    bandit.tell(selection.index, one, context=contexts[1])
    bandit.forget(selection)
    assert torch.equal(bandit.posterior.statistics.points[0, :2], contexts[1])
    selection = bandit.ask(context=contexts[0])
    bandit.tell(selection, one, context=contexts[0])
    with pytest.raises(errors.ArgumentError, match="some points are at another context"):
        bandit.observe(selection.points, one, one, context=contexts[1])
    bandit.observe(selection.points, one, one, context=contexts[0])
    assert int(bandit.pulls) == 3


def looked_at(
    path: Path | None, far: float | None, kept: int = 8, failing: bool = False, pulls: int = 12
) -> tb.ContextualBandit:
    """Four pulls at each of three contexts, with a look at a context far away in between."""
    draw, contexts = generator(3), torch.tensor([[0.1], [0.5], [0.9]], dtype=torch.float64)
    arms = torch.rand(40, 1, generator=draw, dtype=torch.float64)
    bandit = tb.ContextualBandit(tb.auto(), arms, contexts[:1], max_contexts=kept, generator=generator(1), journal=path)
    for pull in range(pulls):
        if pull == 4 and far is not None:
            bandit.best(context=torch.tensor([far]))
        selection = bandit.ask(context=contexts[pull % 3])
        rewards = -(selection.points[:, 1] - selection.points[:, 0]).square()
        lost = failing and pull in (5, 6, 8)
        bandit.tell(selection, torch.full_like(rewards, torch.nan) if lost else rewards, failures="forget")
    return bandit


@pytest.mark.parametrize("kept", [1, 8])
@pytest.mark.parametrize("failing", [False, True])
def test_a_context_that_was_only_looked_at_changes_no_pick(kept: int, failing: bool, tmp_path: Path):
    """The range of a feature is the unit of the model. A mistyped context would make all others appear equal, for ever."""
    plain, looked = looked_at(None, None, kept, failing), looked_at(tmp_path / "journal", 5000.0, kept, failing)
    assert torch.equal(looked.posterior.units.features, plain.posterior.units.features)
    assert torch.equal(looked.posterior.statistics.points, plain.posterior.statistics.points)
    found = [bandit.posterior(joint(torch.eye(2, 1))[:, :2]).mean for bandit in (plain, looked)]
    torch.testing.assert_close(*found, rtol=1e-9, atol=1e-9)
    if failing:
        ranges = [bandit.loop.failures._state.posterior.units.features for bandit in (plain, looked)]
        assert torch.equal(*ranges)
    after = looked.state_dict()
    looked.journal.close()
    resumed = looked_at(tmp_path / "journal", None, kept, pulls=0)
    assert not differences(resumed.state_dict(), after)
    # Once it is asked for, it counts.
    resumed.best(context=torch.tensor([100.0]))
    assert float(resumed.posterior.units.features[0]) < 1
    resumed.ask(context=torch.tensor([100.0]))
    assert float(resumed.posterior.units.features[0]) > 90


def test_a_history_of_other_contexts_gives_their_range():
    """Before, the feature of a single context had the range 1 by convention, in which contexts of 0 to 1,000 are unrelated."""
    draw = generator(3)
    arms, contexts = torch.rand(40, 1, generator=draw, dtype=torch.float64), 1000 * torch.eye(40)[:, :1].double()
    contexts[1:, 0] = 1000 * torch.rand(39, generator=draw, dtype=torch.float64)
    points = torch.cat([contexts, arms], dim=-1)
    rewards, one = -(arms[:, 0] - contexts[:, 0] / 1000).square(), torch.ones(40, dtype=torch.float64)
    bandit = tb.ContextualBandit(tb.auto(), arms, torch.full((1, 1), 500.0, dtype=torch.float64))
    bandit.observe(points, one, rewards, rewards.square())
    assert float(bandit.posterior.units.features[0]) == pytest.approx(float(contexts.max() - contexts.min()))
    assert 100 < float(bandit.posterior.kernel.base_kernel.lengthscale[0, 0]) < 3000
    best = bandit.best(1, context=torch.full((1,), 500.0, dtype=torch.float64))
    assert float(best.points[0, 1]) == pytest.approx(0.5, abs=0.1)


def test_contexts_kept_for_open_picks_are_released_once_they_were_told():
    """Late rewards keep their contexts beyond `max_contexts`; afterwards a step costs what it did before."""
    policy = tb.gp_ucb(rbf(), width=tb.widths.Constant(2.0), **COMMON)
    bandit = tb.ContextualBandit(policy, ARMS, CONTEXTS[:1], max_contexts=2, generator=generator(0))
    plain = tb.Bandit(policy, joint(CONTEXTS), generator=generator(0))
    opened = [bandit.ask(context=context) for context in CONTEXTS[:9]]
    assert bandit.contexts.shape[-2] == 9
    for c in (7, 1, 3, 0, 8, 2, 5):  # 4 and 6 are still open
        bandit.tell(opened[c], reward(opened[c].points, c))
        plain.tell(opened[c].index + c * len(ARMS), reward(opened[c].points, c))
    bandit.ask(context=CONTEXTS[9])
    assert [float(x) for x in bandit.contexts[:, 0]] == [float(CONTEXTS[c, 0]) for c in (9, 4, 6)]
    assert bandit.loop.arms.shape[-2] == 3 * len(ARMS)
    for c in (4, 6):
        assert torch.equal(bandit.ask(context=CONTEXTS[c]).points, opened[c].points)
        bandit.tell(opened[c], reward(opened[c].points, c))
        plain.tell(opened[c].index + c * len(ARMS), reward(opened[c].points, c))
    last = bandit.ask(context=CONTEXTS[9])
    bandit.tell(last, reward(last.points, 9))
    plain.tell(last.index + 9 * len(ARMS), reward(last.points, 9))
    bandit.ask(context=CONTEXTS[10])
    assert bandit.contexts.shape[-2] == 2
    told = [b.posterior(joint(CONTEXTS)).mean for b in (bandit, plain)]
    torch.testing.assert_close(told[0], told[1], rtol=0, atol=1e-10)


@pytest.mark.usefixtures("annotations_not_enforced")
def test_released_contexts_are_released_after_resuming(tmp_path: Path):
    path = tmp_path / "run.journal"
    bandit = with_journal(path)
    opened = [bandit.ask(context=context) for context in CONTEXTS[:7]]
    for selection in opened:
        bandit.tell(selection, reward(selection.points, 0))
    late = bandit.ask(context=CONTEXTS[8])
    assert bandit.contexts.shape[-2] == 3
    bandit.journal.close()
    other = with_journal(path)
    assert torch.equal(other.contexts, bandit.contexts)
    assert torch.equal(other.ask(context=CONTEXTS[8]).points, late.points)


def test_a_record_of_an_earlier_version_releases_one_context():
    """Picks are recorded by their place among the pairs, so a journal is repeated with the blocks that it was made with."""
    bandit = tb.ContextualBandit(tb.gp_ucb(rbf(), **COMMON), ARMS, CONTEXTS[:1], max_contexts=2)
    for selection in [bandit.ask(context=context) for context in CONTEXTS[:6]]:
        bandit.tell(selection, reward(selection.points, 0))
    bandit._enter_again({"kind": "context", "context": pack(CONTEXTS[8]), "busy": []})
    assert bandit.contexts.shape[-2] == 6


def test_a_late_reward_of_many_contexts_that_are_gone():
    bandit = tb.ContextualBandit(tb.gp_ucb(rbf(), **COMMON), ARMS, CONTEXTS[:1], max_contexts=2)
    points = torch.cat([CONTEXTS[:9], ARMS[:9]], dim=-1)
    index = torch.arange(9)
    with pytest.warns(errors.DiagnosticWarning, match="9 of the 9 picks"):
        report = bandit.tell(tb.Selection(points, index, index >= 0), torch.ones(9, dtype=torch.float64))
    assert float(report.pulls) == float(report.unasked) == 9
    assert torch.equal(bandit.posterior.statistics.points, points)


@pytest.mark.parametrize("most", [4, 1])
def test_an_explanation_at_a_context_is_that_of_the_pairs_at_it(most: int):
    policy, cs = tb.gp_ucb(rbf(), noise_std=0.1, width=tb.widths.Constant(1.0)), CONTEXTS[:4]
    bandit = tb.ContextualBandit(policy, ARMS, cs[:1], max_contexts=most)
    plain = tb.Bandit(policy, joint(cs))
    for t, c in enumerate(order(30, 4)):
        picked = bandit.ask(context=cs[c])
        bandit.tell(picked, reward(picked.points, t))
        plain.tell(picked.index + c * len(ARMS), reward(picked.points, t))
    told = plain.counts.reshape(4, -1) > 0
    names = ["hour", "price", "size"]
    for c in range(4):
        found = bandit.explain(context=cs[c], names=names)
        best = bandit.best(1, context=cs[c])
        assert torch.equal(found.best.index, best.index)
        here = torch.arange(4).repeat_interleave(len(ARMS)) == c
        marginals = plain.posterior(joint(cs))
        upper, lower = (marginals.mean + sign * marginals.variance.sqrt() for sign in (1, -1))
        assert found.upper == pytest.approx(float(upper[here].max()))
        own = int(best.index) + c * len(ARMS)
        assert found.rivals == int((upper > lower[own])[here].sum()) - 1
        assert (found.pulls, found.distinct, found.elsewhere) == (30, int(told.sum()), int(told.sum() - told[c].sum()))
        text = str(found)
        count = f"{int(told[c].sum())} of 25 arms and {found.elsewhere} other pairs."
        assert f"Best so far: arm {int(best.index)}, with the reward expected at" in text
        assert f"after 30 rewards of {count}" in text
        assert found.doubt() == ""
        # One lengthscale: the feature with the largest range changes the reward fastest, however few contexts are kept.
        seen = torch.cat([bandit.loop.arms, joint(cs)[told.flatten()]])
        ranges = (seen.amax(dim=0) - seen.amin(dim=0)).square()
        torch.testing.assert_close(found.relevance, ranges / ranges.sum())
        offered = torch.zeros(25, dtype=torch.bool)
        assert bandit.explain(context=cs[c], available=offered).rivals == 0
    with pytest.raises(errors.ArgumentError, match="names must be texts, one for each of the 3 features"):
        bandit.explain(context=cs[0], names=["price"])
    heuristic = tb.ContextualBandit(tb.uniform(), ARMS, cs)
    with pytest.raises(errors.StateError):
        heuristic.explain(context=cs[0])
    heuristic.tell(heuristic.ask(context=cs[0]), torch.ones(1))
    with pytest.raises(errors.UnsupportedError, match="reads one Gaussian process"):
        heuristic.explain(context=cs[0])


def test_features_that_all_arms_pulled_have_in_common_are_said_to_be_unknown():
    """Of the one context with rewards nothing is known. The lengthscale of its feature is that of the prior."""
    arms = torch.rand(30, 2, generator=generator(0), dtype=torch.float64)
    contexts = torch.tensor([[1.0, 0.0], [0.0, 1.0]], dtype=torch.float64)
    bandit = tb.ContextualBandit(tb.auto(), arms, contexts, generator=generator(1))
    for _ in range(8):
        selection = bandit.ask(context=contexts[0])
        bandit.tell(selection, selection.points[:, 2:].sum(dim=-1))
    found = bandit.explain(context=contexts[1], names=["A", "B", "size", "price"])
    assert found.relevance[:2].tolist() == [0, 0]
    assert float(found.relevance.sum()) == pytest.approx(1)
    assert "Nothing is known of A, B, in which the arms pulled do not differ." in str(found)
    bandit.tell(torch.tensor([3]), arms[3].sum().reshape(1), context=contexts[1])
    found = bandit.explain(context=contexts[1])
    assert bool((found.relevance > 0).all())
    assert "Nothing is known" not in str(found)


def test_a_warning_of_repeats_names_the_arm_and_not_its_pair():
    arms, contexts = torch.linspace(0, 1, 9, dtype=torch.float64).unsqueeze(-1), torch.eye(3, dtype=torch.float64)
    bandit = tb.ContextualBandit(tb.auto(), arms, contexts, generator=generator(1))
    for pull in range(39):
        context, arm = (contexts[2], 4) if pull % 2 or pull == 0 else (contexts[pull // 2 % 3], pull // 2 % 9)
        bandit.tell(torch.tensor([arm]), -(arms[arm] - 0.5).square(), context=context)
    with pytest.warns(errors.DiagnosticWarning, match="^arm 4 at one context has taken 21 of the last 40 pulls: "):
        bandit.tell(torch.tensor([4]), torch.zeros(1), context=contexts[2])


def at_one_context(policy: tb.Policy, c: int) -> tuple[tb.ContextualBandit, tb.Bandit]:
    """A contextual bandit, and a plain one with the arms at context c that has learned the same at all contexts."""
    # Nothing is known of the last context, whose upper bounds are the largest.
    contexts = torch.cat([CONTEXTS[:3], torch.full((1, 1), 9.0)])
    bandit, plain = tb.ContextualBandit(policy, ARMS, contexts), tb.Bandit(policy, joint(contexts))
    every = torch.arange(len(ARMS))
    for t, k in enumerate((0, 2, 1, c)):
        # Rewards elsewhere are lower, since the plain bandit recommends the best of all pairs pulled.
        y = reward(joint(CONTEXTS[k : k + 1]), 25 * t) - 2.0 * (k != c)
        bandit.tell(every, y, context=CONTEXTS[k])
        plain.tell(every + k * len(ARMS), y)
    return bandit, plain.set_arms_(joint(CONTEXTS[c : c + 1]))


PROVED = tb.widths.IGP(norm_bound=1.0, noise_std=COMMON["noise_std"], delta=0.1, regularization=COMMON["noise_std"] ** 2)
RULES = {
    "EpsilonOptimal": tb.stopping.EpsilonOptimal(1.0, width=PROVED),
    "EpsilonOptimal, not yet": tb.stopping.EpsilonOptimal(1e-3, width=PROVED),
    "TopKKnown": tb.stopping.TopKKnown(3, 1.0, width=PROVED),
    "LevelSetKnown": tb.stopping.LevelSetKnown(0.5, 1.0, width=PROVED),
    "ProbableRegret": tb.stopping.ProbableRegret(0.3),
    "ImprovementPerCost": tb.stopping.ImprovementPerCost(0.5),
    "SameArm": tb.stopping.SameArm(1),
    "Budget": tb.stopping.Budget(pulls=100),
}


@pytest.mark.sweep(4)
@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("c", [0, 1])
def test_rules_at_a_context_decide_by_its_arms(name: str, c: int):
    bandit, plain = at_one_context(tb.gp_ucb(rbf(), **COMMON), c)
    rule = RULES[name]
    ours, theirs = bandit.should_stop(copy.copy(rule), context=CONTEXTS[c]), plain.should_stop(copy.copy(rule))
    assert torch.equal(ours.stop, theirs.stop)
    assert torch.equal(ours.arm, theirs.arm)
    torch.testing.assert_close(ours.value, theirs.value, rtol=1e-6, atol=1e-9)
    assert (bool(ours), ours.reason.count(f"arm {int(ours.arm)} ")) == (
        bool(theirs),
        theirs.reason.count(f"arm {int(theirs.arm)} "),
    )


def test_the_same_arm_is_the_same_where_contexts_are_released():
    few, all_ = (
        tb.ContextualBandit(tb.gp_ucb(rbf(), **COMMON), ARMS, CONTEXTS[:1], max_contexts=most) for most in (2, len(CONTEXTS))
    )
    index = torch.tensor([3, 9, 17])
    rules = [[tb.stopping.SameArm(20) for _ in range(3)] for _ in range(2)]
    for t in range(12):
        c = t % 3  # with two kept contexts, each comes back in another block than it had
        found = []
        for bandit, own in zip((few, all_), rules, strict=True):
            bandit.tell(index, torch.tensor([0.0, 1.0, 0.2]), context=CONTEXTS[c])
            found.append(bandit.should_stop(own[c], context=CONTEXTS[c]))
        assert [bool(one) for one in found] == [t >= 9, t >= 9]
        assert torch.equal(found[0].value, found[1].value)
        assert found[0].reason == found[1].reason


def test_rules_at_a_context_without_rewards():
    bandit = tb.ContextualBandit(tb.gp_ucb(rbf(), **COMMON), ARMS, CONTEXTS[:2])
    for rule in RULES.values():
        found = bandit.should_stop(copy.copy(rule), context=CONTEXTS[1])
        assert (bool(found), int(found.arm)) == (False, -1)
    # An arm that was pulled at another context only may be the best one here.
    bandit.tell(torch.tensor([4]), torch.ones(1), context=CONTEXTS[0])
    found = bandit.should_stop(tb.stopping.EpsilonOptimal(1.0, width=PROVED), context=CONTEXTS[1])
    assert torch.equal(found.arm, bandit.best(1, context=CONTEXTS[1]).index.squeeze(-1))
    with pytest.raises(errors.UnsupportedError, match=r"stop by stopping\.SameArm"):
        tb.ContextualBandit(tb.uniform(), ARMS, CONTEXTS[:2]).should_stop(RULES["ImprovementPerCost"], context=CONTEXTS[1])


def test_a_context_with_a_single_arm_needs_no_more_pulls():
    bandit = tb.ContextualBandit(tb.gp_ucb(rbf(), **COMMON), ARMS[:1], CONTEXTS[:3])
    bandit.tell(torch.tensor([0]), torch.ones(1), context=CONTEXTS[0])
    assert bandit.should_stop(tb.stopping.ProbableRegret(1e-3), context=CONTEXTS[2])


@pytest.mark.parametrize("c", [0, 2])
def test_the_top_arms_at_a_context(c: int):
    bandit, plain = at_one_context(tb.gp_ucb(rbf(), **COMMON), c)
    ours, theirs = bandit.top_k(3, context=CONTEXTS[c], seed=5), plain.top_k(3, seed=5)
    assert torch.equal(ours.index, theirs.index)
    assert torch.equal(ours.index, bandit.best(3, context=CONTEXTS[c]).index)
    torch.testing.assert_close(ours.points, theirs.points)
    torch.testing.assert_close((ours.mean, ours.variance), (theirs.mean, theirs.variance))
    torch.testing.assert_close(ours.probability, theirs.probability, rtol=0, atol=0.01)
    with pytest.raises(errors.ArgumentError, match="k must be less than the number of distinct arms, 25, got 25"):
        bandit.top_k(25, context=CONTEXTS[c])
    with pytest.raises(errors.ArgumentError, match="seed must be"):
        bandit.top_k(2, context=CONTEXTS[c], seed=-1)


def test_explanations_of_rows_are_those_of_each_row():
    policy, rows = tb.gp_ucb(rbf(), noise_std=0.1), [generator(0), generator(1)]
    both = tb.ContextualBandit(policy, ARMS, CONTEXTS[:3], generator=rows)
    alone = [tb.ContextualBandit(policy, ARMS, CONTEXTS[:3]) for _ in range(2)]
    for t in range(8):
        index = torch.tensor([[t], [t + 8]])
        y = NOISE[2 * t : 2 * t + 2].reshape(2, 1)
        both.tell(index, y, context=CONTEXTS[t % 3])
        for row, one in enumerate(alone):
            one.tell(index[row], y[row], context=CONTEXTS[t % 3])
    for row, one in enumerate(alone):
        found, expected = both.explain(context=CONTEXTS[1], row=row), one.explain(context=CONTEXTS[1])
        assert str(found) == str(expected)
        torch.testing.assert_close(found.relevance, expected.relevance)


def test_saved_and_loaded_it_goes_on_alike():
    policy = tb.batch_bkb(rbf(), max_batch_size=3, **BOUNDED)
    bandit = tb.ContextualBandit(policy, ARMS, CONTEXTS[:2], max_contexts=3, generator=generator(4))
    for t, c in enumerate(order(15, 6)):
        selection = bandit.ask(context=CONTEXTS[c])
        bandit.tell(selection, reward(selection.points, 3 * t))
    opened = bandit.ask(context=CONTEXTS[7])
    twin = tb.ContextualBandit(policy, ARMS, CONTEXTS[:1], max_contexts=3, generator=generator(9))
    assert twin.load_state_dict(copy.deepcopy(bandit.state_dict())) is twin
    for both in (bandit, twin):
        assert torch.equal(both.ask(context=CONTEXTS[7]).index, opened.index)
        both.tell(opened, reward(opened.points, 100))
    for t, c in enumerate(order(15, 9, seed=1)):
        ours, theirs = bandit.ask(context=CONTEXTS[c]), twin.ask(context=CONTEXTS[c])
        assert torch.equal(ours.index, theirs.index)
        for both in (bandit, twin):
            both.tell(ours, reward(ours.points, 200 + 3 * t))


@pytest.mark.parametrize(
    ("error", "context"),
    [
        (errors.ShapeError, torch.zeros(2)),
        (errors.ShapeError, torch.zeros(3, 1)),
        (errors.NonFiniteError, torch.full((1,), torch.nan)),
    ],
)
def test_bad_contexts_change_nothing(error: type[Exception], context: torch.Tensor):
    bandit = tb.ContextualBandit(tb.gp_ucb(rbf(), **COMMON), ARMS, CONTEXTS[:2])
    opened, kept = bandit.ask(context=CONTEXTS[0]), bandit.contexts
    with pytest.raises(error):
        bandit.ask(context=context)
    with pytest.raises(errors.ArgumentError):
        bandit.ask(limit=-1, context=CONTEXTS[5])
    with pytest.raises(errors.ArgumentError, match="available"):
        bandit.ask(more=1, context=CONTEXTS[0], available=torch.zeros(25, dtype=torch.bool))
    with pytest.raises(errors.ShapeError):
        tb.ContextualBandit(tb.gp_ucb(rbf(), **COMMON), ARMS, CONTEXTS[0])
    with pytest.raises(errors.ArgumentError, match="max_contexts"):
        tb.ContextualBandit(tb.gp_ucb(rbf(), **COMMON), ARMS, CONTEXTS[:2], max_contexts=0)
    nothing = torch.zeros(25, dtype=torch.bool)
    with pytest.raises(errors.ArgumentError, match="available"):
        bandit.ask(context=CONTEXTS[7], available=nothing)
    with pytest.raises(errors.NonFiniteError):
        bandit.tell(torch.tensor([1]), torch.tensor([torch.nan]), context=CONTEXTS[7])
    assert torch.equal(bandit.contexts, kept)
    assert torch.equal(bandit.ask(context=CONTEXTS[0]).index, opened.index)


def test_costs_are_the_arms_at_every_context():
    policy = tb.per_cost(tb.gp_ucb(rbf(), **COMMON))
    costs = torch.linspace(1, 9, 25)
    bandit = tb.ContextualBandit(policy, ARMS, CONTEXTS[:1], costs=costs)
    for c in range(3):
        selection = bandit.ask(context=CONTEXTS[c])
        assert int(selection.index) == 0, "the cheapest, while all bounds are alike"
        bandit.forget(selection)


@pytest.mark.sweep(7)
@every_policy
def test_every_policy_runs_with_contexts(case: Case):
    bandit = tb.ContextualBandit(case.policy(), ARMS, CONTEXTS[:3], generator=generator(0))
    for t, c in enumerate(order(24, 3)):
        selection = bandit.ask(limit=2, context=CONTEXTS[c])
        assert bool((selection.points[..., :1] == CONTEXTS[c]).all())
        assert torch.equal(selection.points[..., 1:], ARMS[selection.index])
        bandit.tell(selection, reward(selection.points, 2 * t))
    best = bandit.best(3, context=CONTEXTS[1])
    assert bool((best.index >= 0).any())
    assert torch.equal(best.points[best.index >= 0][:, 1:], ARMS[best.index[best.index >= 0]])


@pytest.mark.exhaustive
def test_a_kernel_of_products_learns_the_context():
    """After 200 pulls over 12 contexts the recommended arm is good at each, better than the one best arm for all."""
    parts = [gpytorch.kernels.RBFKernel(active_dims=[0]), gpytorch.kernels.RBFKernel(active_dims=[1, 2])]
    kernel = gpytorch.kernels.ProductKernel(*parts).double()
    for part in parts:
        part.lengthscale = 0.25
    bandit = tb.ContextualBandit(tb.gp_ucb(kernel, noise_std=0.1, width=tb.widths.Constant(2.0)), ARMS, CONTEXTS[:1])

    def f(points: torch.Tensor) -> torch.Tensor:
        return torch.sin(6 * points[..., 0] + 5 * points[..., 1])

    for t, c in enumerate(order(200, 12, seed=5)):
        selection = bandit.ask(context=CONTEXTS[c])
        bandit.tell(selection, f(selection.points) + NOISE[t : t + 1])
    table = f(joint(CONTEXTS)).reshape(12, -1)
    found = torch.stack([table[c, int(bandit.best(context=CONTEXTS[c]).index)] for c in range(12)])
    assert float((table.amax(dim=1) - found).mean()) < 0.05
    assert float((table.amax(dim=1) - table[:, table.mean(0).argmax()]).mean()) > 0.2


def test_a_fitted_kernel_serves_every_context_and_survives_saving():
    policy = tb.gp_ucb(rbf(3.0), noise_std=0.1)
    bandit = tb.ContextualBandit(policy, ARMS, CONTEXTS[:2], max_contexts=3)
    for t, c in enumerate(order(40, 6, seed=2)):
        selection = bandit.ask(context=CONTEXTS[c])
        bandit.tell(selection, reward(selection.points, t))
    assert bool(bandit.fit_kernel_().accepted.all())
    assert float(bandit.posterior.kernel.lengthscale) < 3.0
    twin = tb.ContextualBandit(policy, ARMS, CONTEXTS[:1], max_contexts=3).load_state_dict(bandit.state_dict())
    for t, c in enumerate(order(8, 8, seed=3)):
        for both in (bandit, twin):
            selection = both.ask(context=CONTEXTS[c])
            both.tell(selection, reward(selection.points, 100 + t))
        assert torch.equal(bandit.counts, twin.counts)
        best = bandit.best(1, context=CONTEXTS[c])
        means = bandit.posterior(joint(CONTEXTS[c : c + 1])).mean
        torch.testing.assert_close(best.mean[0], means.max(), rtol=0, atol=1e-8)


@pytest.mark.parametrize("name", ["gp_ucb", "rff_ucb", "batch_bkb"])
def test_a_state_that_does_not_fit_changes_nothing(name: str):
    """Includes policies that draw their features when a bandit is made."""
    policy = {
        "gp_ucb": lambda: tb.gp_ucb(rbf(), **COMMON),
        "rff_ucb": lambda: tb.rff_ucb(rbf(), num_features=40, **BOUNDED),
        "batch_bkb": lambda: tb.batch_bkb(rbf(), **BOUNDED),
    }[name]()
    bandit = tb.ContextualBandit(policy, ARMS, CONTEXTS[:2], generator=generator(3))
    for t, c in enumerate(order(6, 4)):
        selection = bandit.ask(limit=2, context=CONTEXTS[c])
        bandit.tell(selection, reward(selection.points, 2 * t))
    before = copy.deepcopy(bandit.state_dict())
    wrong = copy.deepcopy(before)
    wrong["bandit"]["state"]["told"] = torch.zeros(3, 2, dtype=torch.float64)
    for state in (wrong, {"bandit": None}, {"contexts": before["contexts"], "bandit": {"state": {}, "open": None}}):
        with pytest.raises(errors.TorchBanditsError):
            bandit.load_state_dict(state)
        assert differences(before, bandit.state_dict()) == []


# ------------------------------------------------------------------------- journals


def with_journal(path: Path | tb.Journal, policy: Any = None, **options: Any) -> tb.ContextualBandit:
    options = {"max_contexts": 3, "generator": generator(0)} | options
    return tb.ContextualBandit(policy or tb.gp_bucb(rbf(), **BOUNDED), ARMS, CONTEXTS[:2], journal=path, **options)


def calls(bandit: tb.ContextualBandit, begin: int, end: int) -> list[list[int]]:
    """Make every kind of call, chosen by its number, so that a script can be restarted anywhere. Returns the picks."""
    picks = []
    for t in range(begin, end):
        context = CONTEXTS[order(40, len(CONTEXTS))[t]]
        if t % 7 == 3:
            bandit.observe(torch.tensor([t % 25]), torch.tensor([2.0]), torch.tensor([0.5]), context=CONTEXTS[t % 12])
        if t % 7 == 5:
            bandit.best(context=CONTEXTS[(t + 5) % 12])  # this call also enters a context
        if t % 9 == 4:
            bandit.forget(bandit.ask(context=context, more=1)[:1])
        selection = bandit.ask(limit=3, context=context, available=torch.arange(25) % 5 != t % 5)
        picks.append(selection.index.tolist())
        y = reward(selection.points, 5 * t)
        if t % 9 == 6:
            bandit.tell(selection[:1], torch.tensor([torch.nan]), failures="forget")
            selection, y = selection[1:], y[1:]
        bandit.tell(selection, y)
    return picks


def state_of(bandit: tb.ContextualBandit) -> dict[str, Any]:
    return copy.deepcopy(bandit.state_dict())


def small(found: list[str]) -> bool:
    """Whether all differences are rounding errors, which arise because factors are not saved in checkpoints."""
    return all(float(line.rsplit("by ")[-1]) < 1e-11 for line in found)


POLICIES = {
    "gp_bucb": lambda: tb.gp_bucb(rbf(), **BOUNDED),
    "batch_bkb": lambda: tb.batch_bkb(rbf(), ratio_threshold=1.5, **BOUNDED),
    "thompson_sampling": lambda: tb.thompson_sampling(rbf(), **BOUNDED),
}


@pytest.mark.sweep(1)
@pytest.mark.usefixtures("annotations_not_enforced")
@pytest.mark.parametrize("name", list(POLICIES))
def test_a_journal_resumes_exactly_wherever_the_run_ended(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("torchbandits.journal.journal._PATIENCE", 0)
    plain = tb.ContextualBandit(POLICIES[name](), ARMS, CONTEXTS[:2], max_contexts=3, generator=generator(0))
    expected, before = calls(plain, 0, 14), 0
    path = tmp_path / "run.journal"
    for end in (1, 4, 9, 14):  # with the checkpoint of that time, and without
        bandit = with_journal(tb.Journal(path, every=5, durable=False), POLICIES[name]())
        assert bandit.journal.path == path
        assert calls(bandit, before, end) == expected[before:end]
        bandit.journal.close()
        before = end
        if end == 9:
            bandit.journal.checkpoint_path.unlink()
    kinds = {record["kind"] for record in bandit.journal.records()}
    assert kinds == {"context", "ask", "tell", "observe", "forget"}
    other = with_journal(path, POLICIES[name]())
    assert small(differences(state_of(plain), state_of(other)))
    assert torch.equal(plain.contexts, other.contexts)
    other.journal.checkpoint_path.unlink()
    other.journal.close()
    again = with_journal(path, POLICIES[name]())
    assert calls(again, 14, 18) == calls(plain, 14, 18)


@pytest.mark.usefixtures("annotations_not_enforced")
def test_picks_that_are_out_are_out_after_resuming(tmp_path: Path):
    path = tmp_path / "run.journal"
    bandit = with_journal(path)
    here, there = bandit.ask(context=CONTEXTS[0]), bandit.ask(context=CONTEXTS[5], more=2)
    bandit.journal.close()
    other = with_journal(path)
    assert differences(state_of(bandit), state_of(other)) == []
    assert torch.equal(other.ask(context=CONTEXTS[5]).index, there.index)
    assert torch.equal(other.ask(context=CONTEXTS[0]).index, here.index)
    other.tell(there, reward(there.points, 0))
    other.tell(here, reward(here.points, 3))


@pytest.mark.usefixtures("annotations_not_enforced")
def test_entering_the_current_context_again_writes_nothing(tmp_path: Path):
    bandit = with_journal(tmp_path / "run.journal")
    selection = bandit.ask(context=CONTEXTS[1])
    bandit.tell(selection, reward(selection.points, 1))
    bandit.ask(context=CONTEXTS[1])
    size = (tmp_path / "run.journal").stat().st_size
    for _ in range(3):
        bandit.ask(context=CONTEXTS[1])
        bandit.best(context=CONTEXTS[1])
    assert (tmp_path / "run.journal").stat().st_size == size
    bandit.ask(context=CONTEXTS[0])
    assert (tmp_path / "run.journal").stat().st_size > size


@pytest.mark.usefixtures("annotations_not_enforced")
def test_the_journal_of_another_contextual_run_is_refused(tmp_path: Path):
    path = tmp_path / "run.journal"
    calls(with_journal(path), 0, 2)
    content = path.read_bytes()
    policy = tb.gp_bucb(rbf(), **BOUNDED)
    for words, call in (
        ("contexts was", lambda: with_journal(path, max_contexts=4)),
        ("arms was", lambda: tb.ContextualBandit(policy, ARMS, CONTEXTS[1:3], max_contexts=3, journal=path)),
        ("noise_std was", lambda: with_journal(path, tb.gp_bucb(rbf(), **BOUNDED | {"noise_std": 0.3}))),
        ("contexts was", lambda: tb.Bandit(policy, joint(CONTEXTS[:2]), generator=generator(0), journal=path)),
    ):
        with pytest.raises(errors.StateError, match=words):
            call()
    assert path.read_bytes() == content


@pytest.mark.usefixtures("annotations_not_enforced")
def test_what_can_not_be_written_does_not_happen_at_any_context(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    bandit = with_journal(tmp_path / "run.journal")
    calls(bandit, 0, 3)
    selection = bandit.ask(context=CONTEXTS[0])
    before, contexts = state_of(bandit), bandit.contexts.clone()

    def full(*_: Any) -> int:
        raise OSError(28, "No space left on device")

    for call in (
        lambda: bandit.ask(context=CONTEXTS[9]),
        lambda: bandit.ask(context=CONTEXTS[0], more=1),
        lambda: bandit.tell(selection, reward(selection.points, 0)),
        lambda: bandit.forget(selection),
        lambda: bandit.best(context=CONTEXTS[10]),
        lambda: bandit.observe(torch.tensor([3]), torch.ones(1), torch.ones(1), context=CONTEXTS[9]),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", full)
            with pytest.raises(errors.DataError, match="No space left"):
                call()
        assert differences(before, state_of(bandit)) == []
        assert torch.equal(bandit.contexts, contexts)


@pytest.mark.usefixtures("annotations_not_enforced")
def test_a_state_that_is_loaded_is_in_the_journal(tmp_path: Path):
    source = tb.ContextualBandit(tb.gp_bucb(rbf(), **BOUNDED), ARMS, CONTEXTS[:2], max_contexts=3, generator=generator(0))
    calls(source, 0, 5)
    bandit = with_journal(tmp_path / "run.journal")
    bandit.load_state_dict(source.state_dict())
    calls(bandit, 5, 8)
    bandit.journal.close()
    other = with_journal(tmp_path / "run.journal")
    assert differences(state_of(bandit), state_of(other)) == []
    twin = copy.deepcopy(bandit)
    assert twin.journal is None
    assert calls(twin, 8, 10) == calls(other, 8, 10)


@pytest.mark.parametrize("name", ["ei", "pi", "qpo", "lucb"])
def test_rewards_of_an_independent_context_change_no_pick(name: str):
    """Improvements, and probabilities of being the best, are over the arms at the context that is asked for."""
    kernel = gpytorch.kernels.ProductKernel(*(gpytorch.kernels.RBFKernel(active_dims=[i]) for i in range(2))).double()
    for part, lengthscale in zip(kernel.kernels, (0.01, 0.3), strict=True):
        part.lengthscale = lengthscale
    arms, contexts = torch.linspace(0, 1, 12, dtype=torch.float64)[:, None], torch.tensor([[0.0], [1.0]], dtype=torch.float64)
    common = {"noise_std": 0.1, "prior_mean": 0.0}
    policies = {
        "ei": lambda: tb.gp_ucb(kernel, acquisition="ei", **common),
        "pi": lambda: tb.gp_ucb(kernel, acquisition="pi", **common),
        "qpo": lambda: tb.qpo(kernel, batch_size=2, **common),
        "lucb": lambda: tb.lucb(kernel, **common),
    }
    picks = []
    for elsewhere in (False, True):
        bandit = tb.ContextualBandit(policies[name](), arms, contexts, generator=generator(0))
        bandit.observe(torch.tensor([1, 6]), torch.ones(2), torch.tensor([0.5, 0.8]).double(), context=contexts[0])
        if elsewhere:
            bandit.observe(torch.tensor([3, 9]), torch.ones(2), torch.tensor([6.0, 7.0]).double(), context=contexts[1])
        picks.append(bandit.ask(context=contexts[0]).index.tolist())
    assert picks[0] == picks[1]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.int16])
def test_contexts_of_any_dtype_are_resumed(dtype: torch.dtype, tmp_path: Path):
    def begun() -> tb.ContextualBandit:
        journal = tb.Journal(tmp_path / "run.journal")
        return tb.ContextualBandit(tb.gp_ucb(rbf(), **COMMON), ARMS, CONTEXTS[:1], generator=generator(0), journal=journal)

    bandit = begun()
    bandit.tell(bandit.ask(context=torch.tensor([2]).to(dtype)), torch.ones(1, dtype=torch.float64))
    bandit.journal.close()
    again = begun()
    assert int(again.pulls) == 1
    again.journal.close()


@pytest.mark.parametrize(
    "wrong",
    [None, {"seen": CONTEXTS[:1]}, {"asked": [0]}, {"current": torch.tensor(9)}, {"seen": CONTEXTS[:2, :0]}, {"asked": "no"}],
    ids=str,
)
def test_saved_contexts_that_do_not_fit_are_refused(wrong: Any):
    bandit = tb.ContextualBandit(tb.gp_ucb(rbf(), **COMMON), ARMS, CONTEXTS[:2], generator=generator(0))
    bandit.tell(bandit.ask(context=CONTEXTS[1]), torch.ones(1, dtype=torch.float64))
    saved = bandit.state_dict()
    before = bandit.ask(context=CONTEXTS[0]).index
    contexts = wrong if wrong is None else saved["contexts"] | wrong
    with pytest.raises(errors.StateError, match="saved contexts"):
        bandit.load_state_dict(saved | {"contexts": contexts})
    assert torch.equal(bandit.ask(context=CONTEXTS[0]).index, before)


REFUSED: dict[str, tuple[Any, Any]] = {
    "observe": (
        tb.forgetting.window(tb.gp_ucb(rbf(), **COMMON), pulls=5),
        lambda b, c: b.observe(torch.tensor([1]), torch.ones(1), torch.ones(1), context=c),
    ),
    "ask": (tb.qpo(rbf(), noise_std=0.1), lambda b, c: b.ask(context=c, exactly=300)),
    "within": (
        tb.gp_ucb(rbf(), **COMMON),
        lambda b, c: b.ask(context=c, exactly=26, within=tb.constraints.Distinct()),
    ),
    "explain": (tb.gp_ucb(rbf(), **COMMON), lambda b, c: b.explain(context=c, names=["one"])),
    "top_k": (tb.uniform(), lambda b, c: b.top_k(2, context=c)),
}


@pytest.mark.parametrize("every", [None, 1, 1000])
@pytest.mark.parametrize("name", list(REFUSED))
def test_a_call_that_is_refused_enters_no_context(name: str, every: int | None, tmp_path: Path):
    """Neither a new context, which takes the place of another one, nor one that is kept: the run goes on as if the call had
    never been made, also after it was resumed."""
    policy, call = REFUSED[name]

    def made(file: str) -> tb.ContextualBandit:
        journal = None if every is None else tb.Journal(tmp_path / file, every=every, durable=False)
        return tb.ContextualBandit(policy, ARMS, CONTEXTS[:2], max_contexts=2, generator=generator(0), journal=journal)

    bandit, twin = made("one"), made("two")
    for t, c in enumerate((0, 1, 0, 4)):
        for own in (bandit, twin):
            selection = own.ask(limit=1, context=CONTEXTS[c])
            own.tell(selection, reward(selection.points, t))
        before = bandit.state_dict()
        for context in (CONTEXTS[7], CONTEXTS[1]):
            with pytest.raises((errors.ArgumentError, errors.UnsupportedError)):
                call(bandit, context)
            assert not differences(bandit.state_dict(), before)
    for own in (bandit, twin):
        if own.journal is not None:
            own.journal.close()
    if every is not None:
        kinds = [[record["kind"] for record in tb.Journal(tmp_path / file).records()] for file in ("one", "two")]
        assert kinds[0] == kinds[1]
        bandit, twin = made("one"), made("two")
    assert torch.equal(bandit.contexts, twin.contexts)
    for t, c in enumerate((5, 4, 0)):
        picks = [own.ask(limit=1, context=CONTEXTS[c]) for own in (bandit, twin)]
        assert torch.equal(picks[0].index, picks[1].index)
        for own, selection in zip((bandit, twin), picks, strict=True):
            own.tell(selection, reward(selection.points, 10 + t))


def test_a_recommendation_before_any_reward_enters_no_context():
    bandit = tb.ContextualBandit(tb.gp_ucb(rbf(), **COMMON), ARMS, CONTEXTS[:2], max_contexts=2, generator=generator(0))
    with pytest.raises(errors.StateError):
        bandit.best(context=CONTEXTS[5])
    assert torch.equal(bandit.state_dict()["contexts"]["seen"], CONTEXTS[:2])


@pytest.mark.parametrize(
    "policy",
    [
        tb.bpe(rbf(), horizon=40, **BOUNDED),
        tb.sup_kernel_ucb(rbf(), horizon=40, **BOUNDED),
        tb.lb_gp_ucb(horizon=40, **BOUNDED),
    ],
    ids=["bpe", "sup_kernel_ucb", "lb_gp_ucb"],
)
def test_a_policy_of_given_arms_takes_the_contexts_of_the_start_and_says_so_of_others(policy: tb.Policy):
    bandit = tb.ContextualBandit(policy, ARMS, CONTEXTS[:2])
    for pull, context in enumerate(CONTEXTS[[0, 1, 0]]):
        selection = bandit.ask(limit=1, context=context)
        bandit.tell(selection, reward(selection.points, pull))
    with pytest.raises(errors.UnsupportedError, match="every context as contexts="):
        bandit.ask(context=CONTEXTS[2])
    assert float(bandit.loop.pulls) == 3
    bandit.ask(limit=1, context=CONTEXTS[1])


# ------------------------------------------------------------------ other arms


MORE = torch.cat([ARMS[:7], torch.as_tensor(np.random.default_rng(8).uniform(size=(6, 2))), ARMS[15:]])


def pairs(arms: torch.Tensor) -> torch.Tensor:
    return torch.cat([CONTEXTS.repeat_interleave(len(arms), dim=0), arms.repeat(len(CONTEXTS), 1)], dim=-1)


@pytest.mark.parametrize("rows", [None, 2])
def test_arms_come_and_go_at_every_context(rows: int | None):
    """Picks and means are those of a plain bandit on all pairs, whose arms are replaced at the same time."""
    policy = tb.gp_bucb(rbf(), width=tb.widths.Constant(2.0), **COMMON)
    seeds = {"generator": generator(0) if rows is None else [generator(row) for row in range(rows)]}
    bandit = tb.ContextualBandit(policy, ARMS, CONTEXTS[:1], max_contexts=2, **seeds)
    plain, arms = tb.Bandit(policy, joint(CONTEXTS), **seeds), ARMS
    for t, c in enumerate(order(18, len(CONTEXTS), seed=4)):
        if t in (6, 12):
            arms = MORE if t == 6 else ARMS.flip(0)
            assert bandit.set_arms_(arms) is bandit
            plain.set_arms_(pairs(arms))
            assert torch.equal(bandit.arms, arms)
        here = torch.zeros(len(CONTEXTS), len(arms), dtype=torch.bool)
        here[c] = True
        ours, theirs = bandit.ask(limit=3, context=CONTEXTS[c]), plain.ask(limit=3, available=here.flatten())
        assert torch.equal(ours.points, theirs.points)
        assert torch.equal(ours.index, theirs.index - c * len(arms))
        bandit.tell(ours, reward(ours.points, 4 * t))
        plain.tell(theirs, reward(theirs.points, 4 * t))
        assert torch.equal(bandit.counts, plain.counts.unflatten(-1, (len(CONTEXTS), -1))[..., c, :])
    means = [b.posterior(pairs(MORE)).mean for b in (bandit, plain)]
    torch.testing.assert_close(means[0], means[1], rtol=0, atol=1e-9)


def test_open_picks_stay_and_late_rewards_find_their_arms():
    bandit = tb.ContextualBandit(tb.gp_ucb(rbf(), **COMMON), ARMS, CONTEXTS[:1], max_contexts=2)
    opened = [bandit.ask(context=context, more=2) for context in CONTEXTS[:4]]
    bandit.set_arms_(ARMS.flip(0))
    assert torch.equal(bandit.ask(context=CONTEXTS[2]).points, opened[2].points)
    for selection in opened[:3]:
        report = bandit.tell(selection, torch.ones(2, dtype=torch.float64))
        assert float(report.unasked) == 0
    told = {tuple(point) for point in bandit.posterior.statistics.points.tolist()}
    assert told == {tuple(point) for selection in opened[:3] for point in selection.points.tolist()}
    left = torch.tensor([tuple(arm) not in {tuple(p[1:]) for p in opened[3].points.tolist()} for arm in ARMS.tolist()])
    before = state_of(bandit)
    with pytest.raises(errors.StateError, match="tell or forget them first"):
        bandit.set_arms_(ARMS[left])
    for wrong in (ARMS[:, :1], ARMS.float(), ARMS[:0]):
        with pytest.raises(errors.ShapeError):
            bandit.set_arms_(wrong)
    assert differences(before, state_of(bandit)) == []
    bandit.forget(opened[3])
    bandit.set_arms_(ARMS[left])
    with pytest.raises(errors.StateError, match="were removed since"):
        bandit.tell(opened[3], torch.ones(2, dtype=torch.float64))


@pytest.mark.sweep(1)
@pytest.mark.usefixtures("annotations_not_enforced")
@pytest.mark.parametrize("every", [1, 1000])
@pytest.mark.parametrize("name", ["gp_bucb", "per_cost"])
def test_replaced_arms_are_resumed_from_a_journal(name: str, every: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("torchbandits.journal.journal._PATIENCE", 0)
    policy = tb.gp_bucb(rbf(), **BOUNDED)
    policy, costs = (tb.per_cost(policy), 1 + torch.arange(25.0).double()) if name == "per_cost" else (policy, None)
    new = None if costs is None else costs.flip(0)[: len(MORE)]
    path = tmp_path / "run.journal"

    def begin() -> tb.ContextualBandit:
        return with_journal(tb.Journal(path, every=every, durable=False), policy, costs=costs)

    bandit = begin()
    for t in range(4):
        selection = bandit.ask(limit=2, context=CONTEXTS[t])
        bandit.tell(selection, reward(selection.points, 3 * t))
    late = bandit.ask(limit=2, context=CONTEXTS[0], available=torch.arange(25) < 7)
    bandit.set_arms_(MORE, costs=new)
    selection = bandit.ask(limit=2, context=CONTEXTS[9])
    bandit.tell(selection, reward(selection.points, 20))
    bandit.journal.close()
    if every > 1:
        bandit.journal.checkpoint_path.unlink()
    other = begin()
    assert torch.equal(other.arms, MORE)
    assert small(differences(state_of(bandit), state_of(other)))
    for again in (bandit, other):
        again.recorder.journal = None
        again.tell(late, reward(late.points, 30))
    for context in CONTEXTS[5:9]:
        ours, theirs = bandit.ask(limit=2, context=context), other.ask(limit=2, context=context)
        assert torch.equal(ours.points, theirs.points)
        assert torch.equal(ours.index, theirs.index)


def test_costs_that_are_not_one_per_arm_are_named_as_such():
    with pytest.raises(errors.ShapeError, match=r"one number per arm, \(25,\), got \(3,\)"):
        tb.ContextualBandit(tb.gp_ucb(rbf(), **COMMON), ARMS, CONTEXTS[:2], costs=torch.ones(3))


def test_an_earlier_selection_is_told_at_its_points_after_the_state_was_loaded():
    """A bandit of another process did not know that the arms had been replaced, and read the old indices among the new arms."""
    policy = tb.gp_ucb(rbf(), **COMMON)
    bandit = tb.ContextualBandit(policy, ARMS, CONTEXTS[:1])
    early = bandit.ask(context=CONTEXTS[0], more=2)
    bandit.set_arms_(ARMS.flip(0))
    for _ in range(2):  # a state that was loaded and saved again, too
        saved = bandit.state_dict()
        bandit = tb.ContextualBandit(policy, ARMS.flip(0), CONTEXTS[:1]).load_state_dict(saved)
    bandit.tell(early[:1], torch.ones(1))
    assert bandit.counts.nonzero().squeeze(-1).tolist() == [24 - int(early.index[0])]
    bandit.forget(early[1:])
    assert bandit.loop.open is None


LABELS = torch.arange(25) % 4
PRICES = torch.as_tensor(np.random.default_rng(8).uniform(1, 9, size=25))
WITHIN = {
    "distinct": lambda n: [tb.constraints.Distinct()],
    "same": lambda n: [tb.constraints.Distinct(), tb.constraints.Same(LABELS.tile(n))],
    "at most": lambda n: tb.constraints.AtMost(LABELS.tile(n), 1),
    "groups": lambda n: [tb.constraints.Distinct(), tb.constraints.Groups(LABELS.tile(n), 2)],
    "total": lambda n: [tb.constraints.Distinct(), tb.constraints.Total(PRICES.tile(n), 12.0)],
}


@pytest.mark.sweep(3)
@pytest.mark.parametrize("name", WITHIN)
def test_constraints_at_a_context_are_those_of_the_plain_bandit_on_its_pairs(name: str):
    """Picks that are open at other contexts do not count for the constraints, and are pending."""
    policy, n = tb.gp_ucb(rbf(), **COMMON), 3
    bandit = tb.ContextualBandit(policy, ARMS, CONTEXTS[:n])
    plain = tb.Bandit(policy, joint(CONTEXTS[:n]))
    elsewhere = bandit.ask(context=CONTEXTS[2], more=2)
    there = torch.zeros(n, len(ARMS), dtype=torch.bool)
    there[2] = True
    assert torch.equal(plain.ask(more=2, available=there.flatten()).points, elsewhere.points)
    offered = PRICES < 8
    for step, c in enumerate((0, 1, 0)):
        here = torch.zeros(n, len(ARMS), dtype=torch.bool)
        here[c] = offered
        ours = bandit.ask(context=CONTEXTS[c], exactly=4, within=WITHIN[name](1), available=offered)
        theirs = expected_within(copy.deepcopy(plain), WITHIN[name](n), here.flatten(), 4)
        assert ours.index.tolist() == (theirs - c * len(ARMS)).tolist()
        assert torch.equal(ours.points, joint(CONTEXTS[:n])[theirs])
        assert torch.equal(bandit.ask(context=CONTEXTS[c]).index, ours.index)
        y = reward(ours.points, 5 * step)
        bandit.tell(ours, y)
        plain.tell(torch.as_tensor(theirs), y)
    assert torch.equal(bandit.ask(context=CONTEXTS[2]).points, elsewhere.points)


def expected_within(plain: tb.Bandit, within: Any, offered: torch.Tensor, count: int) -> torch.Tensor:
    """Picks one by one of a plain bandit, each among the arms that the constraints on these picks allow."""
    constraints = tb.constraints.check_within(within)
    constraints = tuple(constraint.for_batch(count) for constraint in constraints)
    once = any(isinstance(constraint, tb.constraints.Distinct) for constraint in constraints)
    picks = torch.zeros(0, dtype=torch.int64)
    for _ in range(count):
        left = tb.constraints.allowed_by(constraints, picks, offered, offered, count - len(picks) if once else 1)
        picks = torch.cat([picks, plain.ask(more=1, available=left).index[-1:]])
    return picks


def test_constraints_at_a_context_with_more_picks_equal_arms_and_batch_rows():
    arms = torch.cat([ARMS, ARMS[:5]])
    rows = [generator(r) for r in range(2)]
    bandit = tb.ContextualBandit(tb.gp_ucb(rbf(), **COMMON), arms, CONTEXTS[:2], generator=rows)
    context = torch.stack([CONTEXTS[1], CONTEXTS[0]])
    prices = torch.cat([PRICES, PRICES[:5] / 2])
    within = [tb.constraints.Distinct(), tb.constraints.Total(prices, 20.0)]
    first = bandit.ask(context=context, exactly=2, within=within)
    both = bandit.ask(context=context, more=3, within=within)
    assert torch.equal(both.index[:, :2], first.index)
    assert torch.equal(both.points[..., 1:], arms[both.index])
    assert torch.equal(both.points[..., :1], context.unsqueeze(1).expand(2, 5, 1))
    assert bool((prices[both.index].sum(dim=-1) <= 20).all())
    for row in both.index.tolist():
        assert len({tuple(arms[arm].tolist()) for arm in row}) == 5
        assert all(arm >= 5 for arm in row), "of equal arms the cheaper one"
    before = state_of(bandit)
    with pytest.raises(errors.ArgumentError, match="Total allows a sum of at most 20"):
        bandit.ask(context=context, more=20, within=within)
    assert differences(before, state_of(bandit)) == []


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "pass exactly=, or more="),
        ({"more": 2, "limit": 3}, "within= excludes limit="),
        ({"exactly": 26}, "no batch was found"),
    ],
)
def test_constraints_at_a_context_that_cannot_be_met_are_refused(options: dict[str, Any], said: str):
    bandit = tb.ContextualBandit(tb.gp_ucb(rbf(), **COMMON), ARMS, CONTEXTS[:2])
    with pytest.raises(errors.ArgumentError, match=said):
        bandit.ask(context=CONTEXTS[0], within=tb.constraints.Distinct(), **options)
    assert bandit.loop.open is None


def test_constrained_picks_at_a_context_are_resumed_from_a_journal(tmp_path: Path):
    def made() -> tb.ContextualBandit:
        policy = tb.gp_ucb(rbf(), **COMMON)
        return tb.ContextualBandit(policy, ARMS, CONTEXTS[:2], journal=tmp_path / "run.journal", max_contexts=2)

    bandit = made()
    picks = bandit.ask(context=CONTEXTS[5], exactly=3, within=tb.constraints.Distinct())
    bandit.tell(picks[:1], torch.ones(1))
    bandit.journal.close()
    again = made()
    assert torch.equal(again.ask(context=CONTEXTS[5]).points, picks.points[1:])
    again.journal.close()


@pytest.mark.parametrize("own", [False, True])
def test_the_level_set_at_a_context_is_the_dense_one(own: bool):
    bandit = tb.ContextualBandit(tb.gp_ucb(rbf(), **COMMON), ARMS, CONTEXTS[:3], max_contexts=2)
    for t in range(12):
        selection = bandit.ask(context=CONTEXTS[t % 3], more=2)
        bandit.tell(selection[:1], reward(selection.points[:1], t))  # the other one stays pending
    for context in (CONTEXTS[1], CONTEXTS[7]):
        x = torch.cat([context.expand(len(ARMS), 1), ARMS], dim=-1).numpy()
        statistics = bandit.posterior.statistics
        u, n, s = (part.numpy() for part in (statistics.points, statistics.weights, statistics.sums))
        K = rbf()(torch.as_tensor(u)).to_dense().detach().numpy() + np.diag(COMMON["noise_std"] ** 2 / n)
        k = rbf()(torch.as_tensor(u), torch.as_tensor(x)).to_dense().detach().numpy()
        mean, std = k.T @ np.linalg.solve(K, s / n), np.sqrt(1 - (k * np.linalg.solve(K, k)).sum(0))
        width = 1.5 if own else float(bandit.width)
        found = bandit.level_set(1.0, context=context, width=tb.widths.Constant(1.5) if own else None)
        assert found.above.shape == (25,)
        assert found.above.tolist() == (mean - width * std >= 1).tolist()
        assert found.below.tolist() == (mean + width * std < 1).tolist()
        assert torch.equal(found.undecided, ~(found.above | found.below))
        expected = 0.5 * (1 + torch.erf(torch.as_tensor((mean - 1) / std) / 2**0.5))
        torch.testing.assert_close(found.probability, expected, rtol=0, atol=1e-8)
    with pytest.raises(errors.ArgumentError, match="level must be a finite number"):
        bandit.level_set(float("nan"), context=CONTEXTS[0])
    with pytest.raises(errors.UnsupportedError, match="one Gaussian process"):
        tb.ContextualBandit(tb.uniform(), ARMS, CONTEXTS[:1]).level_set(1.0, context=CONTEXTS[0])


def test_a_rule_sees_the_loop_with_the_recommendation_of_the_context():
    seen: list[Any] = []

    class Sees(tb.stopping.Rule):
        def decide(self, loop: Any) -> tb.stopping.Decision:
            seen.append(loop)
            return tb.stopping.Budget(pulls=3).decide(loop)

    bandit = tb.ContextualBandit(tb.auto(), ARMS, CONTEXTS[:2])
    for t in range(8):
        selection = bandit.ask(context=CONTEXTS[t % 2])
        y = reward(selection.points, t)
        bandit.tell(selection, torch.where(torch.tensor(t in (2, 5)), torch.nan, y), failures="forget")
    opened, loop = bandit.ask(context=CONTEXTS[0]), bandit.loop
    assert bandit.should_stop(Sees(), context=CONTEXTS[1])
    (here,) = seen
    assert here.best_arm().item() == 25 + bandit.best(context=CONTEXTS[1]).index.item()
    for name in ("policy", "state", "open", "failures"):
        assert getattr(here, name) is getattr(loop, name), name
    for name in ("moved", "batch_shape", "device", "large", "narrow"):
        assert getattr(here, name) == getattr(loop, name), name
    assert loop.failures is not None
    assert torch.equal(here.pulls, loop.pulls)
    assert torch.equal(here.process(opened.points).variance, bandit.posterior(opened.points).variance)


def test_picks_at_a_context_that_is_not_kept_are_not_pending_and_it_is_not_entered_again():
    bandit = tb.ContextualBandit(tb.gp_ucb(rbf(), **COMMON), ARMS, CONTEXTS[:1], max_contexts=1, generator=generator(0))
    told = bandit.ask(context=CONTEXTS[0])
    bandit.tell(told, reward(told.points, 0))
    bandit.ask(context=CONTEXTS[1])
    with pytest.raises(errors.StateError, match="not pending"):
        bandit.forget(told)
    assert torch.equal(bandit.contexts, CONTEXTS[1:2])


@pytest.mark.usefixtures("annotations_not_enforced")
def test_a_source_of_arms_is_refused_with_the_tensor_to_pass():
    arms, contexts = torch.rand(9, 2, generator=generator(0), dtype=torch.float64), torch.zeros(1, 1, dtype=torch.float64)
    source = tb.sources.chunks(lambda: [arms], 9, 2)
    with pytest.raises(errors.UnsupportedError, match=r"pass arms\.chunk\(slice\(0, arms\.num_arms\)\), a tensor"):
        tb.ContextualBandit(tb.gp_ucb(rbf(), **COMMON), source, contexts)
    bandit = tb.ContextualBandit(tb.gp_ucb(rbf(), **COMMON), source.chunk(slice(0, source.num_arms)), contexts)
    with pytest.raises(errors.UnsupportedError, match="contexts are combined with arms in memory"):
        bandit.set_arms_(source)


def test_contexts_of_the_wrong_shape_are_answered_with_the_shapes():
    policy = tb.gp_ucb(rbf(), **COMMON)
    with pytest.raises(errors.ShapeError, match=r"contexts must be C x c, one row for each of C ≥ 1, got \(1,\)"):
        tb.ContextualBandit(policy, ARMS, CONTEXTS[0])
    two = [generator(0), generator(1)]
    with pytest.raises(errors.ShapeError, match=r"contexts must be C x c or 2 x C x c, one row for"):
        tb.ContextualBandit(policy, ARMS, CONTEXTS[0], generator=two)


@pytest.mark.parametrize("make", [tb.gp_ucb, tb.batch_bkb], ids=["gp_ucb", "batch_bkb"])
def test_a_contextual_bandit_is_a_botorch_model_of_pairs(make: Any):
    policy = make(rbf(0.5), noise_std=0.1, width=tb.widths.Constant(2.0))
    bandit = tb.ContextualBandit(policy, ARMS, CONTEXTS[:1], max_contexts=2, generator=generator(0))
    for t in range(6):
        selection = bandit.ask(context=CONTEXTS[t], limit=3)
        bandit.tell(selection, reward(selection.points, 3 * t))
    model = bandit.model()
    for context in CONTEXTS[[0, 5]]:  # of a context that is not kept any more, and of one that is
        pairs = joint(context.unsqueeze(0))
        ours, theirs = bandit.posterior(pairs), model.posterior(pairs)
        torch.testing.assert_close(theirs.mean.squeeze(-1), ours.mean, rtol=1e-8, atol=1e-8)
        torch.testing.assert_close(theirs.variance.squeeze(-1), ours.variance, rtol=1e-8, atol=1e-8)
        _, _, best = optimize_arms(PolicyAcquisition(model, policy), pairs)
        assert best.item() == bandit.ask(context=context, limit=1).index[0]
        bandit.forget(bandit.ask(context=context))
    before = model.posterior(pairs).mean.clone()
    bandit.tell(torch.tensor([0]), [3.0], context=CONTEXTS[5])
    assert torch.equal(model.posterior(pairs).mean, before)  # a copy
