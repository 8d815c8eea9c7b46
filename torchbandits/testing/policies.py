"""The contract of a policy, as tests of ask and tell."""

from __future__ import annotations

import copy
import io
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any

import gpytorch
import numpy as np
import torch
from torch import Tensor

from torchbandits.bandit import Bandit
from torchbandits.errors import (
    ArgumentError,
    ArmIndexError,
    NonFiniteError,
    NumericalError,
    ShapeError,
    StateError,
    TorchBanditsError,
    UnsupportedError,
)
from torchbandits.policies import Policy, gp_ucb, uniform
from torchbandits.scores import Score
from torchbandits.testing.play import (
    Interrupted,
    Interruption,
    Problem,
    check_raises,
    check_same,
    differences,
    everything,
    generator,
    generators_of,
    global_generators_seeded,
    proceed,
    proceed_rows,
    rbf,
    rewards_of,
    size_of,
)
from torchbandits.types import Selection, as_dict

_NAN, _INF = float("nan"), float("inf")
_Call = tuple[type[Exception], str, tuple[Any, ...], dict[str, Any]]


class PolicyContract(ABC):
    """Laws of a policy in a `Bandit`: picks, rewards, saved states, batch rows, bad input and interrupted calls.

    Return the policy from `policy`. The suite plays it on 40 arms in the unit cube, with rewards between about −1 and 1 and
    noise of standard deviation 0.1.

    Attributes:
        dim: Number of features of an arm.
        keeps_posterior: False for a policy whose `posterior` raises `UnsupportedError`.
        learns_points: False for a policy whose `observe` takes arm indices only.
        keeps_every_pull: False for a policy that may drop pulls.
        growth_rounds: Rounds of `test_nothing_grows_with_pulls`, at 10 pulls or more each.
    """

    dim: int = 2
    keeps_posterior: bool = True
    learns_points: bool = True
    keeps_every_pull: bool = True
    growth_rounds: int = 50

    @abstractmethod
    def policy(self, kernel: gpytorch.kernels.Kernel) -> Policy:
        """The policy under test, a new one at each call.

        Args:
            kernel: A float64 RBF kernel, or a batch of three; for policies that take one.
        """

    # ------------------------------------------------------------------ what the laws play on

    @property
    def _problem(self) -> Problem:
        """Arms and rewards, the same at each call."""
        return Problem(seed=3, dim=self.dim)

    def _bandit(self, pulls: int = 0, seed: int = 5) -> Bandit:
        """A bandit on the arms of the problem, with the first pulls told."""
        bandit = Bandit(self.policy(rbf()), self._problem.arms, generator=generator(seed))
        proceed(bandit, self._problem, pulls)
        return bandit

    def _twins(self, opened: bool = True) -> tuple[Bandit, Bandit]:
        """Two bandits with the same past, with picks open or not."""
        pair = self._bandit(pulls=6), self._bandit(pulls=6)
        for bandit in pair if opened else ():
            bandit.ask(limit=2)
            bandit.ask(more=2)
        return pair

    def _check_alike(self, one: Bandit, other: Bandit, pulls: int = 5) -> None:
        """Both continue with the same picks, and end in the same state."""
        picks = [proceed(bandit, self._problem, pulls) for bandit in (one, other)]
        assert picks[0] == picks[1], f"two bandits with the same past must pick the same arms, got {picks[0]} and {picks[1]}"
        check_same(everything(one), everything(other), "two bandits with the same past must end in the same state")
        assert generators_of(one) == generators_of(other), "two bandits with the same past must draw the same numbers"

    # ------------------------------------------------------------------ asking

    def test_ask_returns_what_is_open_and_more_extends_it(self) -> None:
        """`ask` repeats the open picks without any change, and `more` appends to them."""
        bandit = self._bandit(pulls=8)
        counts, first = bandit.counts.clone(), bandit.ask(limit=2)
        state = everything(bandit)
        assert 1 <= len(first) <= 2, f"ask(limit=2) must pick one or two arms, got {len(first)}"
        for again in (bandit.ask(), bandit.ask(limit=1), bandit.ask(limit=7)):
            assert torch.equal(again.index, first.index), "ask() must return the open picks until they are told or forgotten"
            assert torch.equal(again.points, first.points), "the points of open picks must stay the same"
        check_same(state, everything(bandit), "asking again must not change the state")
        longer = bandit.ask(more=2)
        assert len(longer) == len(first) + 2, f"ask(more=2) must add two picks to {len(first)}, got {len(longer)} in all"
        assert longer.index[: len(first)].tolist() == first.index.tolist(), "ask(more=) must return earlier picks first"
        assert longer.mask.all(), "ask(more=2) must find two picks while all arms are on offer"
        assert torch.equal(longer.points, self._problem.arms[longer.index]), "points must be the arms of the index"
        assert torch.equal(bandit.ask().index, longer.index), "ask() after ask(more=) must return all open picks"
        assert torch.equal(bandit.counts, counts), "pending picks must not count as told"

    def test_limits(self) -> None:
        """`limit` caps a batch; asking for nothing and telling nothing change nothing."""
        bandit = self._bandit(pulls=6)
        before = everything(bandit)
        nothing = bandit.ask(limit=0)
        assert len(nothing) == 0, f"ask(limit=0) must pick nothing, got {len(nothing)} picks"
        assert nothing.points.shape == (0, self.dim), f"an empty selection must have points 0 x d, got {nothing.points.shape}"
        report = bandit.tell(nothing, torch.zeros(0, dtype=torch.float64))
        assert int(report.batch_size) == int(report.unasked) == 0, "telling nothing must be reported as no pulls"
        assert int(report.pulls) == 6, f"6 pulls were told, the report says {int(report.pulls)}"
        check_same(before, everything(bandit), "asking for nothing and telling nothing must not change the state")
        for limit in (1, torch.tensor(2), 3):
            selection = bandit.ask(limit=limit)
            assert 1 <= len(selection) <= int(limit), f"ask(limit={int(limit)}) picked {len(selection)} arms"
            bandit.tell(selection, rewards_of(selection, self._problem))

    def test_only_arms_on_offer_are_picked(self) -> None:
        """From the first pick on, in batches, in the picks that `more` adds, and with one arm left; no arm is an error."""
        bandit, A = self._bandit(), len(self._problem.arms)
        draw = generator(0)
        for round_ in range(10):
            offered = torch.rand(A, generator=draw) < 0.15
            offered[round_] = True
            picks = bandit.ask(limit=3, available=offered)
            assert offered[picks.index].all(), "ask(available=) must pick arms on offer only"
            others = ~offered
            extended = bandit.ask(more=2, available=others)
            assert others[extended.index[len(picks) :]].all(), "ask(more=, available=) must add arms on offer only"
            bandit.tell(extended, rewards_of(extended, self._problem))
        alone = torch.zeros(A, dtype=torch.bool)
        before = everything(bandit)
        check_raises(ArgumentError, lambda: bandit.ask(available=alone), "ask() with no arm on offer", naming="available")
        check_same(before, everything(bandit), "a refused ask must not change the state")
        alone[17] = True
        for more in (None, 3):
            picked = set(bandit.ask(more=more, available=alone).index.tolist())
            assert picked == {17}, f"arm 17 alone is on offer, but ask() picked {picked}"

    def test_exact_duplicates_share_one_entry(self) -> None:
        """The lowest copy is picked, or the lowest one on offer; they share their pulls."""
        arms, copy_on_offer = self._problem.arms.clone(), torch.arange(len(self._problem.arms)) == 35
        arms[30:] = arms[:10]
        bandit = Bandit(self.policy(rbf()), arms, generator=generator(6))
        highest = max(proceed(bandit, self._problem, 9))
        assert highest < 30, f"arms 30 to 39 repeat arms 0 to 9, so the lower index must be picked, got {highest}"
        picked = proceed(bandit, self._problem, 2, available=copy_on_offer)
        assert picked == [35, 35], f"only the copy 35 of arm 5 is on offer, so 35 must be picked, got {picked}"
        bandit.tell(torch.tensor([38]), torch.zeros(1, dtype=torch.float64))
        assert torch.equal(bandit.counts[30:], bandit.counts[:10]), "copies of an arm must share its pulls"
        assert bandit.counts[35] >= 1, "a copy must count the pulls of its arm"

    def test_a_score_reads_one_arm_at_a_time_and_never_falls_with_its_deviation(self) -> None:
        """The best arm is searched for among scores of some arms, whose deviations may be those before the last picks. The law
        is about policies that have a `Score`."""
        bandit = self._bandit(pulls=6)
        score = getattr(bandit.policy, "score", None)
        if not isinstance(score, Score):
            return
        marginals = bandit.posterior(self._problem.arms)
        mean, std = marginals.mean, marginals.variance.sqrt()
        width, level = bandit.width, score.reference(mean)
        values = score(mean, std, width, level)
        assert values.shape == mean.shape, f"a score of {len(mean)} arms must be {tuple(mean.shape)}, got {tuple(values.shape)}"
        assert not values.isnan().any(), f"a score must not be NaN, but it is at arm {int(values.isnan().byte().argmax())}"
        for factor in (0.9, 0.5, 0.1):
            fallen = score(mean, factor * std, width, level) <= values + 1e-9 * values.abs()
            arm = int(fallen.byte().argmin())
            assert fallen.all(), f"a score must not rise as the deviation falls to {factor} of itself, but it does at arm {arm}"
        alone = torch.cat([score(mean[arm], std[arm], width, level) for arm in torch.arange(len(mean)).split(1)])
        off = float((alone - values).abs().max())
        assert torch.allclose(alone, values, rtol=1e-9), (
            f"the score of an arm must not depend on the other arms, but by itself it is off by {off:g}"
        )

    # ------------------------------------------------------------------ telling

    def test_rewards_may_come_in_parts_and_in_any_order(self) -> None:
        """Each part settles its picks, and every pull is counted once."""
        bandit = self._bandit(pulls=6)
        bandit.ask(limit=2)
        opened = bandit.ask(more=3)
        rewards, counts = rewards_of(opened, self._problem), bandit.counts.clone()
        left = list(range(len(opened)))
        for part in ([2], [0, 4], [1, 3]) if len(opened) == 5 else ([2], [0], [1, 3]):
            left = [place for place in left if place not in part]
            report = bandit.tell(opened[part], rewards[part])
            assert int(report.batch_size) == len(part), f"{len(part)} rewards were told, the report says {report.batch_size}"
            assert int(report.unasked) == 0, "picks that were asked for must not be reported as unasked"
            if left:
                waiting = sorted(bandit.ask().index.tolist())
                assert waiting == sorted(opened.index[left].tolist()), "picks that are not told must stay open, and only they"
        assert int(report.pulls) == int(bandit.pulls) == 6 + len(opened), "every reward told must count as one pull"
        learned = bandit.counts - counts
        told = torch.bincount(opened.index, minlength=len(counts))
        assert (learned <= told).all(), "no arm may gain more pulls than were told of it"
        if self.keeps_every_pull:
            assert int(learned.sum()) == len(opened), f"{len(opened)} pulls were told, {int(learned.sum())} were learned"

    def test_what_will_never_be_told_is_forgotten(self) -> None:
        """Forgetting settles open picks, undoes their effect on variances, and refuses anything else."""
        bandit, arms = self._bandit(pulls=6), self._problem.arms
        bandit.ask(limit=2)
        opened = bandit.ask(more=3)
        marginals = bandit.posterior(arms) if self.keeps_posterior else None
        bandit.forget(opened[1:2])
        kept = [place for place in range(len(opened)) if place != 1]
        waiting = sorted(bandit.ask().index.tolist())
        assert waiting == sorted(opened.index[kept].tolist()), "forget() must settle the picks given, and only them"
        pending = everything(bandit)
        stranger = next(arm for arm in range(len(arms)) if arm not in opened.index)
        for wrong in (torch.tensor([stranger]), opened, torch.tensor([int(opened.index[0]), stranger])):
            refused = "forgetting a pick that is not pending"
            check_raises(StateError, partial(bandit.forget, wrong), refused, naming="pending")
            check_same(pending, everything(bandit), "a refused forget must not change the state")
        bandit.forget(bandit.ask().index)
        check_raises(StateError, lambda: bandit.forget(opened[:1]), "forgetting a pick twice")
        assert int(bandit.pulls) == 6, f"forgotten picks are no pulls: 6 were told, pulls says {int(bandit.pulls)}"
        if marginals is not None:
            undone, untouched = (b.posterior(arms) for b in (bandit, self._bandit(pulls=6)))
            for name in ("mean", "variance"):
                gap = float((getattr(undone, name) - getattr(untouched, name)).abs().max())
                assert gap <= 1e-12, f"forgetting all open picks must restore the posterior {name}, it is off by {gap}"
            assert (marginals.variance <= undone.variance + 1e-12).all(), "pending picks must not raise a variance"
        proceed(bandit, self._problem, 4)
        assert int(bandit.pulls) == 10, f"10 pulls were told, pulls says {int(bandit.pulls)}"

    def test_pulls_that_were_never_asked_for_are_welcome(self) -> None:
        """Rewards of any arm are learned and reported as unasked, before the first ask too."""
        bandit, problem = self._bandit(pulls=6), self._problem
        opened = bandit.ask(limit=2)
        mixed = torch.cat([opened.index[:1], torch.tensor([0, 0, 39])])
        # Each pull settles one open pick of its arm, of which there may be fewer than pulls.
        arms = set(mixed.tolist())
        unasked = sum(max(0, mixed.tolist().count(arm) - opened.index.tolist().count(arm)) for arm in arms)
        report = bandit.tell(mixed, problem.rewards(50, mixed))
        assert int(report.unasked) == unasked, f"{unasked} pulls were not asked for, the report says {int(report.unasked)}"
        assert int(report.batch_size) == 4, f"4 pulls were told, the report says {int(report.batch_size)}"
        assert int(report.pulls) == 10, f"10 pulls were told in all, the report says {int(report.pulls)}"
        assert bandit.counts[0] > 0, "a pull that was not asked for must be learned"
        proceed(bandit, problem, 5)
        plain, index = self._bandit(), torch.tensor([5, 6])
        report = plain.tell(index, problem.rewards(0, index))
        assert int(report.unasked) == 2, "pulls told before any ask must be reported as unasked"
        assert int(plain.best_arm()) in (5, 6), f"only arms 5 and 6 were pulled, best_arm() says {int(plain.best_arm())}"

    def test_history_is_learned_by_index_and_by_points(self) -> None:
        """Sums of earlier rewards are learned before the first pull."""
        self._check_history(pulls=0)

    def test_history_is_learned_by_index_and_by_points_in_a_run(self) -> None:
        """Sums of earlier rewards are learned in the middle of a run."""
        self._check_history(pulls=6)

    def _check_history(self, pulls: int) -> None:
        bandit, problem = self._bandit(pulls=pulls), self._problem
        opened = bandit.ask(limit=2)
        index, counts = torch.tensor([3, 8, 30]), torch.tensor([2.0, 1.0, 4.5], dtype=torch.float64)
        report = bandit.observe(index, counts, counts * problem.rewards(0, index))
        assert float(report.pulls) == pulls + 7.5, f"{pulls} + 7.5 pulls were learned, the report says {report.pulls}"
        assert float(report.unasked) == 7.5, f"a history of 7.5 pulls was not asked for, the report says {report.unasked}"
        assert (bandit.counts[index] > 0).all(), "every arm of the history must be learned"
        assert torch.equal(bandit.ask().index, opened.index), "a history must settle no open pick"
        outside, counts = Problem(seed=99, dim=self.dim).arms[:2], counts[:2]
        if self.learns_points:
            report = bandit.observe(outside, counts, counts * 0.1)
            assert float(report.pulls) == pulls + 10.5, f"pulls must be {pulls + 10.5} after three more, got {report.pulls}"
            assert int(report.distinct_arms) >= 5, f"5 distinct points or more were pulled, got {int(report.distinct_arms)}"
        else:
            before, refused = everything(bandit), "observing points, which learns_points = False excludes"
            check_raises(UnsupportedError, lambda: bandit.observe(outside, counts, counts), refused, naming="index")
            check_same(before, everything(bandit), "a refused observe must not change the state")
        bandit.tell(opened, rewards_of(opened, problem))
        proceed(bandit, problem, 5)
        best = bandit.best(4)
        assert (best.mean.diff() <= 0).all(), f"best() must be ordered by mean, best first, got {best.mean.tolist()}"

    # ------------------------------------------------------------------ what was learned

    def test_what_is_said_of_the_state_has_the_documented_shapes(self) -> None:
        """Reports, recommendations, counts and the posterior of a single run."""
        self._check_shapes(0)

    def test_what_is_said_of_batch_rows_has_the_documented_shapes(self) -> None:
        """Reports, recommendations, counts and the posterior of three batch rows."""
        self._check_shapes(3)

    def _check_shapes(self, rows: int) -> None:
        shape, arms = (rows,) if rows else (), self._problem.arms
        bandit = Bandit(self.policy(rbf()), arms, generator=[generator(r) for r in range(rows)] or generator(0))
        assert bandit.batch_shape == shape, f"batch_shape must be {shape}, got {bandit.batch_shape}"
        for recommend in (bandit.best_arm, bandit.best):
            check_raises(StateError, recommend, "a recommendation before any reward", naming="no reward was told yet")
        for _ in range(7):
            selection = bandit.ask(limit=2)
            assert selection.index.dtype == torch.int64, f"picks must be int64, got {selection.index.dtype}"
            expected = (*selection.index.shape, self.dim)
            assert selection.points.shape == expected, f"points must be {expected}, got {selection.points.shape}"
            report = bandit.tell(selection, torch.zeros_like(selection.index, dtype=torch.float64).cos())
            for name, value in as_dict(report).items():
                assert value.shape == shape, f"{name} of a report must be {shape}, got {value.shape}"
                never = name in ("width", "information_gain", "certificate") and not self.keeps_posterior
                good = value.isnan() if never else value.isfinite()
                assert good.all(), f"{name} of a report must be {'NaN' if never else 'finite'}, got {value}"
        assert (report.pulls == bandit.pulls).all(), "the report and the bandit must agree on the pulls"
        distinct_arms = (bandit.counts > 0).sum(dim=-1)
        assert (report.distinct_arms == distinct_arms).all(), f"{distinct_arms} arms were pulled, not {report.distinct_arms}"
        same_width = torch.equal(report.width.nan_to_num(-1), bandit.width.nan_to_num(-1))
        assert same_width, "the report and the bandit must agree on the width"
        assert bandit.counts.shape == (*shape, len(arms)), f"counts must be {(*shape, len(arms))}, got {bandit.counts.shape}"
        distinct = int(report.distinct_arms.min())
        for k in (1, distinct, len(arms) + 3):
            best, known = bandit.best(k), min(k, distinct)
            assert best.points.shape == (*shape, k, self.dim), f"points of best({k}) have shape {best.points.shape}"
            for name in ("index", "mean", "variance"):
                got = getattr(best, name).shape
                assert got == (*shape, k), f"{name} of best({k}) must be {(*shape, k)}, got {got}"
            found = best.index[..., :known]
            assert (bandit.counts.gather(-1, found) > 0).all(), "only arms that were pulled may be recommended"
            assert torch.equal(best.points[..., :known, :], arms[found]), "recommended points must be the arms of the index"
            assert best.mean[..., :known].isfinite().all(), "means of recommended arms must be finite"
            good = best.variance[..., :known] >= 0 if self.keeps_posterior else best.variance.isnan()
            assert good.all(), f"variances must be ≥ 0, or NaN without a posterior, got {best.variance}"
        padding = best.index[..., int(report.distinct_arms.max()) :]
        assert (padding == -1).all(), "best(k) must be padded by −1 where fewer than k arms were pulled"
        assert torch.equal(bandit.best_arm(), bandit.best().index.squeeze(-1)), "best_arm() must be the index of best()"
        if self.keeps_posterior:
            marginals = bandit.posterior(arms.expand(*shape, -1, -1))
            for name in ("mean", "variance"):
                got = getattr(marginals, name).shape
                assert got == (*shape, len(arms)), f"the posterior {name} must be {(*shape, len(arms))}, got {got}"
            assert marginals.mean.isfinite().all(), "posterior means must be finite"
            assert (marginals.variance >= 0).all(), "posterior variances must be ≥ 0"
            assert bandit.dictionary.shape[:-1] == shape, f"the dictionary must be {shape} x m, got {bandit.dictionary.shape}"
        else:
            for attribute in ("posterior", "dictionary"):
                refused = f"reading {attribute}, which keeps_posterior = False excludes"
                check_raises(UnsupportedError, partial(getattr, bandit, attribute), refused, naming="gp_ucb")

    # ------------------------------------------------------------------ batch rows are singles

    def test_batch_rows_with_generators_of_their_own_pick_what_single_runs_pick(self) -> None:
        """Rows share arms and kernel here. NaN told in masked places, and rows of other sizes, change nothing."""
        self._check_rows([self._problem] * 3, [0.4] * 3)

    def test_batch_rows_with_arms_of_their_own_pick_what_single_runs_pick(self) -> None:
        """The same with different arms and rewards in each row."""
        self._check_rows([self._problem, *(Problem(seed=70 + r, dim=self.dim) for r in range(2))], [0.4] * 3)

    def test_batch_rows_with_kernels_of_their_own_pick_what_single_runs_pick(self) -> None:
        """The same with a batch of kernels, whose lengthscales differ."""
        self._check_rows([self._problem] * 3, [0.2, 0.4, 0.8])

    def _check_rows(self, problems: list[Problem], lengthscales: list[float]) -> None:
        own_arms = any(problem is not problems[0] for problem in problems)
        arms = torch.stack([p.arms for p in problems]) if own_arms else problems[0].arms
        kernel = rbf() if len(set(lengthscales)) == 1 else rbf(lengthscales)
        # In some rounds rows rest, so that a policy of one pick at a time has told different numbers of pulls in each.
        limits = torch.tensor([[1, 3, 2], [1, 0, 2], [1, 3, 0], [1, 0, 2], [1, 3, 2], [1, 3, 2]])
        batch = Bandit(self.policy(kernel), arms, generator=[generator(20 + r) for r in range(3)])
        together = proceed_rows(batch, problems, limits, rounds=6)
        for row, problem in enumerate(problems):
            single = Bandit(self.policy(rbf(lengthscales[row])), problem.arms, generator=generator(20 + row))
            told = 0
            for limit in limits[:, row].tolist():
                if not limit:
                    continue
                selection = single.ask(limit=limit)
                picks, expected = together[row][told : told + len(selection)], selection.index.tolist()
                assert picks == expected, f"batch row {row} must make the picks of a single run, {expected}, got {picks}"
                single.tell(selection, problem.rewards(told, selection.index))
                told += len(selection)
            assert told == len(together[row]), f"batch row {row} must pick {told} arms like a single run"
            assert torch.equal(batch.counts[row], single.counts), f"counts of batch row {row} must be those of a single run"
            assert int(batch.best_arm()[row]) == int(single.best_arm()), f"batch row {row} must recommend like a single run"
            same_width = torch.allclose(batch.width[row], single.width, rtol=1e-6, equal_nan=True)
            assert same_width, f"batch row {row} must have the width of a single run, {single.width}, got {batch.width[row]}"

    # ------------------------------------------------------------------ saved states

    def test_a_saved_state_continues_as_the_undisturbed_bandit_does(self) -> None:
        """The state is loaded into a fresh bandit, through a file that holds only tensors, numbers and texts."""
        self._check_resumed(self._bandit(pulls=6), self._bandit(seed=900))

    def test_a_saved_state_with_picks_open_continues_as_the_undisturbed_bandit_does(self) -> None:
        """The state is loaded into a bandit that already has data and open picks."""
        bandit, resumed = self._bandit(pulls=6), self._bandit(pulls=11, seed=900)
        if self.learns_points:
            for b, shift in ((bandit, 0.0), (resumed, 0.3)):
                points = Problem(seed=98, dim=self.dim).arms[:2] + shift
                b.observe(points, torch.ones(2), torch.tensor([0.2, 0.1]))
        resumed.ask(more=3)
        bandit.ask(limit=2)
        bandit.ask(more=2)
        part = bandit.ask()[1:3]
        bandit.tell(part, rewards_of(part, self._problem))
        self._check_resumed(bandit, resumed)

    def _check_resumed(self, bandit: Bandit, resumed: Bandit) -> None:
        file = io.BytesIO()
        torch.save(bandit.state_dict(), file)
        file.seek(0)
        resumed.load_state_dict(torch.load(file, weights_only=True))
        check_same(everything(bandit), everything(resumed), "a loaded state must be the saved one")
        picks = [proceed(b, self._problem, 15) for b in (bandit, resumed)]
        assert picks[0] == picks[1], f"a resumed bandit must go on with the picks {picks[0]}, got {picks[1]}"
        assert generators_of(bandit) == generators_of(resumed), "a resumed bandit must draw the same numbers"
        assert torch.equal(bandit.counts, resumed.counts), "a resumed bandit must learn the same counts"
        assert int(bandit.best_arm()) == int(resumed.best_arm()), "a resumed bandit must recommend the same arm"

    def test_a_saved_batch_continues_as_the_undisturbed_one_does(self) -> None:
        """Batch rows have different sizes, and are saved with picks open."""
        limits, problems = torch.tensor([1, 3]), [self._problem] * 2
        bandit, resumed = (
            Bandit(self.policy(rbf()), self._problem.arms, generator=[generator(s), generator(s + 1)]) for s in (1, 11)
        )
        proceed_rows(bandit, problems, limits, rounds=5)
        bandit.ask(limit=limits)
        resumed.load_state_dict(bandit.state_dict())
        picks = [proceed_rows(b, problems, limits, rounds=5) for b in (bandit, resumed)]
        assert picks[0] == picks[1], f"resumed batch rows must go on with the picks {picks[0]}, got {picks[1]}"
        assert generators_of(bandit) == generators_of(resumed), "resumed batch rows must draw the same numbers"

    def test_deep_copies_and_saved_states_have_a_life_of_their_own(self) -> None:
        """Later pulls of a copy change neither the original nor a saved state."""
        bandit = self._bandit(pulls=6)
        bandit.ask(more=2)
        saved, twin = bandit.state_dict(), copy.deepcopy(bandit)
        kept = copy.deepcopy(saved)
        ahead = proceed(twin, self._problem, 15)
        check_same(kept, everything(bandit), "pulls of a deep copy must not change the original")
        picks = proceed(bandit, self._problem, 15)
        assert picks == ahead, f"a deep copy must pick what the original picks, {picks}, got {ahead}"
        assert generators_of(bandit) == generators_of(twin), "a deep copy must draw the same numbers"
        check_same(kept, saved, "later pulls must not change a saved state")

    def test_states_of_other_bandits_are_refused(self) -> None:
        """States of another policy, or on other arms, raise an error and change nothing."""
        bandit, twin = self._bandit(pulls=5), self._bandit(pulls=5)
        other = uniform() if self.keeps_posterior else gp_ucb(rbf(), noise_std=0.1, delta=0.1)
        foreign = Bandit(other, self._problem.arms, generator=generator(5))
        proceed(foreign, self._problem, 3)
        smaller = Bandit(self.policy(rbf()), self._problem.arms[:20], generator=generator(0))
        for stranger, what in ((foreign, "another policy"), (smaller, "other arms")):
            saved = stranger.state_dict()
            check_raises(TorchBanditsError, partial(bandit.load_state_dict, saved), f"loading a state of {what}")
            check_same(everything(twin), everything(bandit), "a refused state must not change the bandit")
        self._check_alike(bandit, twin)

    # ------------------------------------------------------------------ bad input, and failures in the middle

    def test_bad_input_is_an_error_and_costs_nothing(self) -> None:
        """Every wrong call raises an error of this package, and leaves the state as it was."""
        bandit, twin = self._twins()
        before = everything(bandit)
        for error, call, arguments, options in _wrong_calls(bandit.ask(), *self._problem.arms.shape):
            what = f"{call}{arguments}{options}"
            check_raises(error, partial(getattr(bandit, call), *arguments, **options), what)
            assert issubclass(error, TorchBanditsError), f"{error.__name__} must be an error of this package"
            check_same(before, everything(bandit), f"{what} must not change the state")
        self._check_alike(bandit, twin)

    def test_an_ask_that_fails_in_the_middle_leaves_no_trace(self) -> None:
        """The state is as before whichever torch call fails, generators and derived values included."""
        self._check_interrupted(lambda b: b.ask(more=3))

    def test_a_tell_that_fails_in_the_middle_leaves_no_trace(self) -> None:
        """The same for telling a part of the open picks."""
        self._check_interrupted(lambda b: b.tell(b.ask()[1:2], rewards_of(b.ask()[1:2], self._problem)))

    def test_an_observe_that_fails_in_the_middle_leaves_no_trace(self) -> None:
        """The same for a history."""
        self._check_interrupted(lambda b: b.observe(torch.tensor([3, 35]), torch.tensor([1.0, 2.0]), torch.tensor([0.1, 0.2])))

    def _check_interrupted(self, call: Callable[[Bandit], Any]) -> None:
        bandit, twin = self._twins()
        before = everything(bandit)
        with Interruption(torch.inf) as counting:
            call(copy.deepcopy(twin))
        for at in np.linspace(1, counting.calls, 8).astype(int):
            try:
                with Interruption(at):
                    call(bandit)
            except Interrupted:
                left = differences(before, everything(bandit))
                assert not left, f"a failure at torch call {at} of {counting.calls} must leave no trace, but left {left[:3]}"
            else:
                break  # fewer calls were needed than by the copy, which had to compute its factors again
        else:
            call(bandit)
        call(twin)
        self._check_alike(bandit, twin)

    def test_rewards_too_large_to_add_are_an_error_and_undone(self) -> None:
        """Finite rewards whose sum overflows leave the state as it was."""
        bandit, twin = self._twins(opened=False)
        before, index = everything(bandit), torch.tensor([33, 33])
        for huge in (1.7e308, -1.7e308):
            rewards = torch.tensor([huge, huge], dtype=torch.float64)
            check_raises(NumericalError, partial(bandit.tell, index, rewards), f"telling an arm {huge} twice")
            check_same(before, everything(bandit), "rewards that overflow must not change the state")
        self._check_alike(bandit, twin)

    # ------------------------------------------------------------------ staying small, and repeating itself

    def test_nothing_grows_with_pulls(self) -> None:
        """Pulls of the same three arms: a table holds a bounded number of updates before it is swept anew."""
        bandit, available = self._bandit(), torch.zeros(len(self._problem.arms), dtype=torch.bool)
        few, problem = torch.tensor([3, 17, 35]), self._problem
        available[few] = True
        sizes, half = [], self.growth_rounds // 2
        for _ in range(self.growth_rounds):
            picks = torch.cat([bandit.ask(limit=2, available=available).index, few, few, few])
            bandit.tell(picks, problem.rewards(int(bandit.pulls), picks))
            sizes.append(size_of(bandit.state_dict()))
        assert int(bandit.pulls) >= 500, f"500 pulls or more were told, pulls says {int(bandit.pulls)}"
        first, second = max(sizes[:half]), max(sizes[half:])
        assert second <= first, f"a state of three arms must not grow with pulls: {first} bytes, later {second}"

    def test_only_the_given_generator_is_drawn_from(self) -> None:
        """The global generators are left alone, and change no pick."""
        runs = []
        for seed in (1, 2):
            bandit, picks = self._bandit(), []
            for number in range(6):
                with global_generators_seeded(seed + 10 * number):
                    picks += proceed(bandit, self._problem, 2)
            runs.append(picks)
        assert runs[0] == runs[1], f"global generators must not change picks, got {runs[0]} and {runs[1]}"


def _wrong_calls(opened: Selection, num_arms: int, dim: int) -> list[_Call]:
    """Error, method, arguments and keywords of calls that a bandit with these picks open must refuse."""
    q, y = len(opened), torch.zeros(len(opened), dtype=torch.float64)
    ones, three = torch.ones(3, dtype=torch.float64), torch.tensor([1, 2, 3])
    A, last = num_arms, int(opened.index.max())

    def told(value: float) -> Tensor:
        return y.index_fill(0, torch.tensor([1]), value)

    tells: list[tuple[type[Exception], tuple[Any, ...]]] = [
        (ShapeError, (opened, torch.zeros(q + 1))), (ShapeError, (opened, torch.zeros(1, q))),
        (ShapeError, (opened, torch.tensor(0.0))), (ShapeError, (opened, y.to(torch.complex128))),
        (NonFiniteError, (opened, told(_NAN))),
        (NonFiniteError, (opened, told(_INF))), (NonFiniteError, (opened, told(-_INF))),
        (ArmIndexError, (torch.tensor([A]), y[:1])), (ArmIndexError, (torch.tensor([-2]), y[:1])),
        (ShapeError, (torch.tensor([0.5]), y[:1])), (ShapeError, (torch.tensor([1, 2]), y[0])),
        (ArgumentError, ("nonsense", y)), (ArgumentError, (None, y)),
    ]  # fmt: skip
    observations: list[tuple[type[Exception], tuple[Any, ...]]] = [
        (ArmIndexError, (torch.tensor([1, A, 3]), ones, ones)), (ArmIndexError, (-three, ones, ones)),
        (ShapeError, (three, ones[:2], ones)), (ShapeError, (three, ones, ones[:2])),
        (ArgumentError, (three, 0 * ones, ones)), (ArgumentError, (three, -ones, ones)),
        (NonFiniteError, (three, ones, _NAN * ones)), (NonFiniteError, (three, ones, ones, _INF * ones)),
        (ShapeError, (torch.zeros(3, dim + 3).double(), ones, ones)),
        (NonFiniteError, (torch.full((3, dim), _NAN).double(), ones, ones)),
    ]  # fmt: skip
    asks: list[tuple[type[Exception], dict[str, Any]]] = [
        (ArgumentError, {"limit": -1}), (ArgumentError, {"limit": 1.5}), (ArgumentError, {"limit": True}),
        (ArgumentError, {"more": 0}), (ArgumentError, {"more": -1}), (ArgumentError, {"more": "two"}),
        (ShapeError, {"more": 1, "limit": torch.tensor([1, 2])}),
        (ShapeError, {"more": 1, "available": torch.ones(A - 1, dtype=torch.bool)}),
        (ShapeError, {"more": 1, "available": torch.ones(A)}),
        (ShapeError, {"more": 1, "available": torch.ones(2, A, dtype=torch.bool)}),
        (ArgumentError, {"more": 1, "available": torch.zeros(A, dtype=torch.bool)}),
    ]  # fmt: skip
    others: list[tuple[type[Exception], str, tuple[Any, ...]]] = [
        (StateError, "forget", (torch.tensor([last + 1 if last < A - 1 else 0] * 9),)),
        (ArmIndexError, "forget", (torch.tensor([A]),)), (ArgumentError, "best", (0,)),
        (ArgumentError, "load_state_dict", ({},)), (ArgumentError, "load_state_dict", (None,)),
    ]  # fmt: skip
    calls: list[_Call] = [(error, "tell", a, {}) for error, a in tells]
    calls += [(error, "observe", a, {}) for error, a in observations]
    calls += [(error, "ask", (), options) for error, options in asks]
    return calls + [(error, call, a, {}) for error, call, a in others]
