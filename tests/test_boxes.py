"""Policies of one Gaussian process on a box: picks against dense oracles, batch rules, and the contract of every bandit."""

from __future__ import annotations

import copy
import io
import math
from functools import partial
from typing import Any

import gpytorch
import numpy as np
import oracles
import pytest
import torch
from botorch.test_functions import Branin
from problems import BOUNDED, COMMON, DELTA, NOISE_STD, NORM_BOUND, generator, kernel_pair, rbf
from torch import Tensor

import torchbandits as tb
from torchbandits import errors
from torchbandits.policies import box_picking
from torchbandits.policies.state import BoxState
from torchbandits.posteriors import SamplePaths
from torchbandits.testing.play import differences

LAM = NOISE_STD**2
BOX = torch.tensor([[-0.5, 0.2], [1.0, 1.2]], dtype=torch.float64)
EVERYTHING = 1e12  # oversampling that keeps every pulled point
TWO = tb.widths.Constant(2.0)
WIDE = COMMON | {"width": TWO}

MAKERS: dict[str, Any] = {
    "gp_ucb": lambda kernel: tb.gp_ucb(kernel, **WIDE),
    "gp_ucb, start": lambda kernel: tb.gp_ucb(kernel, initial=tb.starts.uniform(4), **WIDE),
    "gp_ucb, refit": lambda kernel: tb.gp_ucb(kernel, refit_every=6, **WIDE),
    "gp_ucb, estimate": lambda kernel: tb.gp_ucb(kernel, prior_mean="estimate", **WIDE),
    "compact": lambda kernel: tb.gp_ucb(kernel, width=tb.widths.SrinivasCompact(DELTA), **COMMON),
    "ei": lambda kernel: tb.gp_ucb(kernel, acquisition="ei", **WIDE),
    "pi": lambda kernel: tb.bkb(kernel, acquisition="pi", **BOUNDED),
    "igp_ucb": lambda kernel: tb.igp_ucb(kernel, **BOUNDED),
    "gp_bucb": lambda kernel: tb.gp_bucb(kernel, ratio_threshold=1e4, max_batch_size=4, **BOUNDED),
    "bkb": lambda kernel: tb.bkb(kernel, **BOUNDED),
    "bkb, theory": lambda kernel: tb.bkb(kernel, width=tb.widths.BKB(NOISE_STD, NORM_BOUND, DELTA, LAM), **BOUNDED),
    "batch_bkb": lambda kernel: tb.batch_bkb(kernel, ratio_threshold=120.0, max_batch_size=4, **BOUNDED),
    "compressed_gp": lambda kernel: tb.compressed_gp(kernel, **WIDE),
    "mini_gp_ucb": lambda kernel: tb.mini_gp_ucb(kernel, ratio_threshold=1.5, max_batch_size=4, **BOUNDED),
    "ts": lambda kernel: tb.thompson_sampling(kernel, num_features=64, **BOUNDED),
    "ts, three": lambda kernel: tb.thompson_sampling(kernel, embedding="nystrom", batch_size=3, **BOUNDED),
    "ts, qff": lambda kernel: tb.thompson_sampling(kernel, embedding="qff", **BOUNDED),
    "ts, rff": lambda kernel: tb.thompson_sampling(kernel, embedding="rff", num_features=40, batch_size=2, **BOUNDED),
    "rff_ucb": lambda kernel: tb.rff_ucb(kernel, num_features=40, **BOUNDED),
    "lin_ucb": lambda kernel: tb.lin_ucb(**BOUNDED),
    "cbrap": lambda kernel: tb.cbrap(num_features=2, **BOUNDED),
    "soful": lambda kernel: tb.soful(sketch_size=1, **BOUNDED),
    "uniform": lambda kernel: tb.uniform(batch_size=3),
}
every_policy = pytest.mark.parametrize(  # the default tests run one form of each policy
    "name",
    [name if name in {*tb.policies.registry, "ts"} else pytest.param(name, marks=pytest.mark.exhaustive) for name in MAKERS],
)


def f(points: Tensor) -> Tensor:
    return torch.sin(4 * points[..., 0]) * torch.cos(3 * points[..., 1]) + 0.1 * torch.cos(40 * points).sum(dim=-1)


@pytest.fixture
def quick_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search over few points, for tests that hold for any picked point of the box."""
    search = partial(box_picking.optimize_continuous, num_raw=64, num_restarts=3, max_iterations=6)
    monkeypatch.setattr(box_picking, "optimize_continuous", search)


quickly = pytest.mark.usefixtures("quick_search")


def bandit_of(name: str, pulls: int = 0, seed: int = 1, bounds: Tensor = BOX, **options: Any) -> tb.Bandit:
    bandit = tb.Bandit(MAKERS[name](rbf(0.4)), bounds=bounds, generator=options.pop("generator", generator(seed)), **options)
    play(bandit, pulls)
    return bandit


def play(bandit: tb.Bandit, pulls: int) -> list[list[float]]:
    picks: list[list[float]] = []
    while len(picks) < pulls:
        selection = bandit.ask(limit=pulls - len(picks))
        bandit.tell(selection, f(selection.points))
        picks += selection.points.reshape(-1, selection.points.shape[-1]).tolist()
    return picks


def everything(bandit: tb.Bandit) -> Any:
    return copy.deepcopy(bandit.state_dict())


def grid_of(box: Tensor, side: int) -> Tensor:
    return torch.cartesian_prod(*[torch.linspace(float(a), float(b), side, dtype=torch.float64) for a, b in box.T])


class Oracle:
    """The dense posterior of all observations, in numpy, at any points; pending pulls shrink variances only."""

    def __init__(self, kernel: oracles.KernelFunction) -> None:
        self.kernel = kernel
        self.x, self.y = np.zeros((0, 2)), np.zeros(0)

    def tell(self, points: Tensor, rewards: Tensor) -> None:
        self.x, self.y = np.concatenate([self.x, points.numpy()]), np.concatenate([self.y, rewards.numpy()])

    def at(self, points: np.ndarray, pending: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        diagonal, k = oracles.diagonal(self.kernel, points), self.kernel
        told = oracles.exact_posterior(k(self.x, self.x), k(self.x, points), diagonal, self.y, LAM)
        both = np.concatenate([self.x, pending])
        shrunk = oracles.exact_posterior(k(both, both), k(both, points), diagonal, np.zeros(len(both)), LAM)
        return told.mean, shrunk.variance

    def ucb(self, points: np.ndarray, pending: np.ndarray, width: float) -> np.ndarray:
        mean, variance = self.at(points, pending)
        return mean + width * np.sqrt(np.maximum(variance, 0))


# ------------------------------------------------------------------------- picks against oracles


@pytest.mark.exhaustive
@pytest.mark.parametrize("kernel", ["scaled", "matern12"])
def test_each_pick_has_the_highest_score_of_a_dense_oracle(kernel: str):
    theirs, ours = kernel_pair(kernel, 0.3)
    bandit, oracle = tb.Bandit(tb.gp_ucb(theirs, **WIDE), bounds=BOX, generator=generator(0)), Oracle(ours)
    grid, none = grid_of(BOX, 101).numpy(), np.zeros((0, 2))
    for step in range(12):
        selection = bandit.ask()
        x = selection.points
        assert bool(((x >= BOX[0]) & (x <= BOX[1])).all())
        if step:
            assert oracle.ucb(x.numpy(), none, 2.0)[0] >= oracle.ucb(grid, none, 2.0).max() - 1e-7
        rewards = f(x)
        oracle.tell(x, rewards)
        bandit.tell(selection, rewards)


@pytest.mark.sweep(1)
@pytest.mark.parametrize(("rule", "threshold"), [("product", 1e5), ("global", 300.0), ("global", 5.0)])
def test_gp_bucb_batches_are_those_of_a_naive_loop(rule: str, threshold: float):
    """Each pick maximises the oracle's score given those before it, and the batch ends with the pick that breaks the rule."""
    theirs, ours = kernel_pair("rbf", 0.25)
    policy = tb.gp_bucb(theirs, ratio_threshold=threshold, batch_rule=rule, **WIDE)
    bandit, oracle = tb.Bandit(policy, bounds=BOX, generator=generator(0)), Oracle(ours)
    grid, sizes = grid_of(BOX, 71).numpy(), []
    for _ in range(4):
        selection = bandit.ask()
        x, none, spent = selection.points.numpy(), np.zeros((0, 2)), 0.0
        for place in range(len(selection)):
            assert spent <= (math.log(threshold) if rule == "product" else threshold - 1)
            pending, own = x[:place], x[place : place + 1]
            if place or sizes:
                score = oracle.ucb(own, pending, 2.0)[0]
                assert score >= oracle.ucb(grid, pending, 2.0).max() - 1e-7
            now, start = (oracle.at(own, p)[1][0] / LAM for p in (pending, none))
            spent += math.log1p(now) if rule == "product" else start
        assert spent > (math.log(threshold) if rule == "product" else threshold - 1)
        sizes.append(len(selection))
        oracle.tell(selection.points, f(selection.points))
        bandit.tell(selection, f(selection.points))
    assert max(sizes) > 2 or threshold == 5.0


@pytest.mark.exhaustive
def test_bbkb_batches_keep_dictionary_and_mean():
    """In a batch the variances are those of the dictionary of its start: k(x,x) − |z|² + λ zᵀ V⁻¹ z with the picks in V."""
    theirs, ours = kernel_pair("rbf", 0.4)
    policy = tb.batch_bkb(theirs, ratio_threshold=200.0, **WIDE)
    bandit = tb.Bandit(policy, bounds=BOX, generator=generator(3))
    grid = grid_of(BOX, 81).numpy()
    told, sums, sizes = np.zeros((0, 2)), np.zeros(0), []
    for _ in range(8):
        S = bandit.arms[bandit.dictionary].numpy() if len(sizes) else told
        selection = bandit.ask()
        x = selection.points.numpy()
        if sizes:
            spent = 0.0
            for place in range(len(x)):
                u = np.concatenate([told, x[:place]])
                n, p = np.r_[np.ones(len(told)), np.zeros(place)], np.r_[np.zeros(len(told)), np.ones(place)]
                at = np.concatenate([grid, x[place : place + 1]])
                post, start = (
                    oracles.nystrom_posterior(
                        ours(S, S), ours(S, u), ours(S, at), oracles.diagonal(ours, at), n, np.r_[sums, np.zeros(place)], LAM,
                        pending=pending,
                    )
                    for pending in (p, None)
                )  # fmt: skip
                score = post.mean + 2 * np.sqrt(np.maximum(post.variance, 0))
                assert score[-1] >= score[:-1].max() - 1e-6
                assert spent <= 199.0
                spent += start.leverage[-1]
            assert spent > 199.0
        rewards = f(selection.points)
        bandit.tell(selection, rewards)
        told, sums = np.concatenate([told, x]), np.concatenate([sums, rewards.numpy()])
        sizes.append(len(x))
    assert max(sizes) > 2
    assert int(bandit.loop.state.posterior.dictionary_size) < len(told)


@pytest.mark.sweep(1)
@pytest.mark.parametrize("acquisition", ["ei", "pi"])
def test_improvement_is_over_the_best_mean_of_the_points_pulled(acquisition: str):
    policy = tb.gp_ucb(rbf(0.3), acquisition=acquisition, **WIDE)
    bandit = tb.Bandit(policy, bounds=BOX, generator=generator(0))
    play(bandit, 8)
    grid = grid_of(BOX, 151)
    best = bandit.posterior(bandit.arms).mean[bandit.counts > 0].max()
    at = bandit.posterior(torch.cat([grid, bandit.ask().points]))
    # The posterior counts the open pick as pending; a twin without the pick gives the variances before it.
    twin = copy.deepcopy(bandit)
    twin.forget(twin.ask())
    at = twin.posterior(torch.cat([grid, bandit.ask().points]))
    std = at.variance.sqrt()
    margin = 0.0 if acquisition == "ei" else NOISE_STD
    z = (at.mean - best - margin) / std
    normal = torch.distributions.Normal(torch.zeros((), dtype=torch.float64), 1.0)
    value = std * (normal.log_prob(z).exp() + z * normal.cdf(z)) if acquisition == "ei" else normal.cdf(z)
    assert float(value[-1]) >= float(value[:-1].max()) * (1 - 1e-6)


@pytest.mark.sweep(1)
@pytest.mark.parametrize("name", ["ts", "ts, three", "ts, qff", "ts, rff"])
def test_a_thompson_pick_is_the_maximum_of_its_path(name: str):
    """The same paths are drawn again from a copy of the generator; pending picks are ignored."""
    bandit = bandit_of(name, pulls=9)
    twin = torch.Generator()
    twin.set_state(bandit.generators[0].get_state())
    posterior, features = bandit.loop.state.posterior, bandit.policy.score.num_features
    picks, grid = bandit.ask(more=3).points, grid_of(BOX, 121)
    for place in range(3):
        path = SamplePaths.draw(posterior, 1, [twin], num_features=features, width=bandit.width)
        torch.randint(2**31, (), generator=twin)  # advances the generator by the seed of the sweep
        assert float(path(picks[place : place + 1])) >= float(path(grid).max()) - 1e-7
    assert torch.equal(twin.get_state(), bandit.generators[0].get_state())
    assert len({tuple(x) for x in picks.tolist()}) == 3


@pytest.mark.exhaustive
def test_one_point_again_and_again_where_the_rule_says_so():
    """mini-GP-UCB: ⌊(C² − 1)/lev⌋ pulls of the maximiser, at least one."""
    bandit = tb.Bandit(tb.mini_gp_ucb(rbf(0.4), ratio_threshold=150.0, **WIDE), bounds=BOX, generator=generator(0))
    sizes = []
    for _ in range(12):
        selection = bandit.ask()
        leverage = float(bandit.loop.state.posterior.leverage(selection.points[:1]))
        assert len(selection) == max(1, math.floor(149 / leverage))
        assert len({tuple(x) for x in selection.points.tolist()}) == 1
        bandit.tell(selection, f(selection.points))
        sizes.append(len(selection))
    assert max(sizes) > 1
    assert len(bandit.ask(limit=1)) == 1
    assert len(bandit.ask(more=2)) == 3


def test_widths_are_fed_what_the_oracle_says():
    theirs, ours = kernel_pair("scaled", 0.4)
    bandit = tb.Bandit(tb.igp_ucb(theirs, regularization=LAM, **BOUNDED), bounds=BOX, generator=generator(0))
    for _ in range(10):
        x = bandit.arms[bandit.counts > 0].numpy()
        log_det = oracles.log_det(ours(x, x), np.ones(len(x)), LAM)
        expected = oracles.width_igp(log_det, NORM_BOUND, NOISE_STD, LAM, DELTA)
        assert float(bandit.width) == pytest.approx(expected, rel=1e-8)
        play(bandit, 1)
    assert float(bandit.loop.state.progress(frozenset()).kappa2) == pytest.approx(2.5)
    corner = float(BOX[1].square().sum())  # k(x, x) of a linear kernel is largest in a corner
    assert float(bandit_of("lin_ucb").loop.state.progress(frozenset()).kappa2) == pytest.approx(corner)


def test_a_pick_that_teaches_nothing_ends_no_batch_of_a_fixed_size():
    """Under a linear kernel the origin has variance 0, and with negative slopes it is the best point."""
    bandit = tb.Bandit(tb.lin_ucb(**BOUNDED), bounds=torch.tensor([[0.0, 0.0], [1.0, 1.0]]), generator=generator(0))
    for _ in range(3):
        selection = bandit.ask()
        bandit.tell(selection, -3 * selection.points.sum(dim=-1))
    assert not bool(bandit.ask().points.any())
    assert len(bandit.ask(more=3)) == 4


# ------------------------------------------------------------------------- the first pick


@pytest.mark.parametrize("name", ["gp_ucb", "gp_bucb", "bkb", "batch_bkb", "igp_ucb"])
def test_a_prior_that_is_the_same_everywhere_starts_in_the_centre(name: str):
    selection = bandit_of(name).ask(limit=1)
    assert selection.index.tolist() == [0]
    torch.testing.assert_close(selection.points[0], BOX.mean(dim=0))


def test_first_picks_are_uniform_in_the_box():
    policy = tb.gp_bucb(rbf(), initial=tb.starts.uniform(400), **WIDE)
    bandit = tb.Bandit(policy, bounds=BOX, generator=generator(0))
    first = bandit.ask(limit=150)
    assert len(first) == 150
    bandit.tell(first, f(first.points))
    rest = bandit.ask()
    assert len(rest) == 250
    points = torch.cat([first.points, rest.points])
    share = (points - BOX[0]) / (BOX[1] - BOX[0])
    assert bool(((share >= 0) & (share <= 1)).all())
    assert float((share.mean(dim=0) - 0.5).abs().max()) < 0.06
    assert float((share.var(dim=0) - 1 / 12).abs().max()) < 0.02
    drawn = torch.rand(150, 2, generator=generator(0), dtype=torch.float64)
    torch.testing.assert_close(share[:150], drawn)


@quickly
def test_random_search():
    bandit = bandit_of("uniform", pulls=30)
    assert bool(((bandit.arms >= BOX[0]) & (bandit.arms <= BOX[1])).all())
    assert int((bandit.counts > 0).sum()) == 30
    best = bandit.best()
    assert float(best.mean) == pytest.approx(float(f(best.points).max()))


# ------------------------------------------------------------------------- what a bandit promises


@pytest.mark.sweep(1)
@quickly
@every_policy
def test_asking_and_telling(name: str):
    bandit = bandit_of(name)
    told = 0
    for _ in range(4):
        selection = bandit.ask(limit=4)
        for again in (bandit.ask(), bandit.ask(limit=1)):
            assert differences(vars(again), vars(selection)) == []
        assert torch.equal(bandit.arms[selection.index], selection.points)
        assert bool(((selection.points >= BOX[0]) & (selection.points <= BOX[1])).all())
        assert 1 <= len(selection) <= 4
        whole = bandit.ask(more=2)
        assert len(whole) == len(selection) + 2
        assert torch.equal(whole.points[: len(selection)], selection.points)
        assert torch.equal(bandit.arms[whole.index], whole.points)
        bandit.tell(whole[1:], f(whole.points[1:]))
        assert torch.equal(bandit.ask().points, whole.points[:1])
        report = bandit.tell(bandit.ask(), f(whole.points[:1]))
        told += len(whole)
        assert float(report.unasked) == 0
        assert bool(torch.isnan(report.certificate)), "the largest upper bound in a box is unknown"
    assert float(bandit.pulls) == told
    best = bandit.best()
    assert torch.equal(bandit.arms[best.index], best.points)
    assert bandit.arms.dtype == torch.float64
    if name not in ("compressed_gp", "uniform"):
        assert float(bandit.counts.sum()) == told
        assert bandit.posterior(bandit.arms).mean.shape == (len(bandit.arms),)


@pytest.mark.sweep(1)
@quickly
@pytest.mark.parametrize(("name", "opened"), [*((name, True) for name in MAKERS), ("gp_ucb", False), ("batch_bkb", False)])
def test_a_saved_state_continues_as_the_undisturbed_bandit_does(name: str, opened: bool):
    bandit, resumed = bandit_of(name, pulls=7), bandit_of(name, pulls=4, seed=50)
    if opened:
        bandit.observe(torch.tensor([[0.1, 0.9], [2.0, 2.0]], dtype=torch.float64), torch.ones(2), torch.tensor([0.2, 0.1]))
        bandit.ask(limit=2)
        bandit.ask(more=2)
        part = bandit.ask()[1:3]
        bandit.tell(part, f(part.points))
    file = io.BytesIO()
    torch.save(bandit.state_dict(), file)
    file.seek(0)
    resumed.load_state_dict(torch.load(file, weights_only=True))
    assert differences(everything(bandit), everything(resumed)) == []
    assert torch.equal(bandit.ask().points, resumed.ask().points)
    assert play(bandit, 4) == play(resumed, 4)
    assert differences(everything(bandit), everything(resumed)) == []


@pytest.mark.sweep(4)
@quickly
@every_policy
def test_deep_copies_have_a_life_of_their_own(name: str):
    bandit = bandit_of(name, pulls=5)
    twin = copy.deepcopy(bandit)
    before = everything(bandit)
    play(twin, 3)
    assert differences(before, everything(bandit)) == []


@pytest.mark.sweep(1)
@pytest.mark.parametrize("name", ["gp_bucb", "batch_bkb", "ts, three", "lin_ucb", "uniform", "gp_ucb, start"])
def test_rows_of_a_batch_are_singles(name: str):
    """Rows with their own boxes and generators, whose batches have different lengths, equal single runs."""
    boxes = torch.stack([BOX, 2 * BOX, BOX - 0.3])
    batch = bandit_of(name, bounds=boxes, generator=[generator(s) for s in range(3)])
    singles = [bandit_of(name, bounds=box, seed=s) for s, box in enumerate(boxes)]
    limits = torch.tensor([1, 4, 2])
    for _ in range(5):
        selection = batch.ask(limit=limits)
        batch.tell(selection, f(selection.points))
        for row, single in enumerate(singles):
            own = single.ask(limit=int(limits[row]))
            points = selection.points[row][selection.mask[row]]
            torch.testing.assert_close(points, own.points, rtol=0, atol=2e-4)
            single.tell(own, f(own.points))
    for row, single in enumerate(singles):
        assert float(batch.pulls[row]) == float(single.pulls)
        assert sorted(batch.counts[row].unique().tolist()) == sorted(single.counts.unique().tolist())


@pytest.mark.sweep(1)
@pytest.mark.parametrize("name", ["gp_ucb", "ei", "gp_bucb", "bkb", "ts", "uniform"])
def test_what_is_in_other_rows_does_not_matter(name: str):
    """A row does not depend on the rewards and generators of others, up to rounding: a pair of points that nearly coincides
    in any row is evaluated by differences in all of them."""
    rows = [bandit_of(name, generator=[generator(4), generator(seed)]) for seed in (5, 6)]
    for step in range(5):
        selections = [bandit.ask(limit=2) for bandit in rows]
        width = min(len(s) for s in selections)
        own = [s.points[0, :width][s.mask[0, :width]] for s in selections]
        torch.testing.assert_close(own[0], own[1], rtol=0, atol=1e-5)
        for shift, (bandit, selection) in enumerate(zip(rows, selections, strict=True)):
            rewards = f(selection.points)
            rewards[1] += shift * (step + 1) * torch.cos(9 * selection.points[1, :, 0])
            bandit.tell(selection, rewards)
    assert not torch.equal(rows[0].arms[1], rows[1].arms[1])


@pytest.mark.sweep(1)
@pytest.mark.parametrize("name", ["gp_bucb", "ts, three", "batch_bkb"])
def test_a_search_that_fails_changes_nothing(name: str, monkeypatch: pytest.MonkeyPatch):
    bandit = bandit_of(name, pulls=4)
    before, search, calls = everything(bandit), box_picking.optimize_continuous, []

    def once(*args: Any, **options: Any) -> Any:
        calls.append(1)
        if len(calls) > 1:
            raise errors.NumericalError("on purpose")
        return search(*args, **options)

    monkeypatch.setattr(box_picking, "optimize_continuous", once)
    with pytest.raises(errors.NumericalError, match="purpose"):
        bandit.ask(more=3)
    assert len(calls) == 2
    assert differences(before, everything(bandit)) == []
    monkeypatch.undo()
    twin = bandit_of(name, pulls=4)
    assert torch.equal(bandit.ask(more=3).points, twin.ask(more=3).points)


@pytest.mark.sweep(4)
@quickly
@pytest.mark.usefixtures("annotations_not_enforced")
@every_policy
def test_bad_input_changes_nothing(name: str):
    bandit = bandit_of(name, pulls=4)
    selection = bandit.ask(limit=1)
    before = everything(bandit)
    for error, rewards in ((errors.NonFiniteError, math.nan), (errors.NonFiniteError, math.inf)):
        with pytest.raises(error):
            bandit.tell(selection, torch.tensor([rewards]))
    with pytest.raises(errors.ArmIndexError):
        bandit.tell(torch.tensor([len(bandit.arms)]), torch.zeros(1))
    with pytest.raises(errors.UnsupportedError, match="box"):
        bandit.ask(more=1, available=torch.ones(len(bandit.arms), dtype=torch.bool))
    with pytest.raises(errors.ArgumentError, match="outside the box"):
        bandit.ask(more=1, maximizer=lambda score: 3 * BOX[1])
    with pytest.raises(errors.UnsupportedError, match="box"):
        bandit.set_arms_(torch.cat([bandit.arms, bandit.arms]))
    with pytest.raises(errors.ArgumentError):
        bandit.ask(more=0)
    with pytest.raises(errors.NonFiniteError):
        bandit.observe(torch.full((1, 2), math.nan, dtype=torch.float64), torch.ones(1), torch.zeros(1))
    if name != "uniform":
        with pytest.raises(errors.NumericalError):
            bandit.observe(torch.tensor([0, 0]), torch.ones(2), torch.full((2,), 1e308, dtype=torch.float64))
    assert differences(before, everything(bandit)) == []
    other = bandit_of(name, bounds=2 * BOX)
    with pytest.raises(errors.StateError, match="box"):
        other.load_state_dict(bandit.state_dict())
    bandit.tell(selection, f(selection.points))


@quickly
def test_a_users_maximizer_finds_points_of_the_box():
    bandit = bandit_of("gp_bucb", pulls=3)
    point = torch.tensor([0.31, 0.87], dtype=torch.float64)
    selection = bandit.ask(more=2, maximizer=lambda score: point + 0 * score(point.unsqueeze(0)).detach())
    assert torch.equal(selection.points, point.expand(2, -1))
    assert torch.equal(bandit.arms[selection.index], selection.points)
    bandit.tell(selection, f(selection.points))
    assert float(bandit.counts[selection.index[0]]) == 2
    assert len(bandit.ask()) > 0


@quickly
def test_forgotten_picks_leave_the_posterior_alone():
    bandit = bandit_of("gp_bucb", pulls=5)
    points = torch.rand(9, 2, generator=generator(0), dtype=torch.float64)
    before = bandit.posterior(points)
    selection = bandit.ask()
    assert bool((bandit.posterior(points).variance < before.variance).all())
    assert torch.equal(bandit.posterior(points).mean, before.mean)
    bandit.forget(selection)
    assert torch.equal(bandit.posterior(points).variance, before.variance)
    with pytest.raises(errors.StateError):
        bandit.forget(selection)


@quickly
def test_history_counts():
    """With history at arms, in the box and outside, the posterior is that of the dense oracle."""
    bandit, oracle = bandit_of("gp_ucb"), Oracle(oracles.rbf(0.4))
    points = torch.tensor([[0.3, 0.3], [0.9, 1.1], [3.0, 3.0]], dtype=torch.float64)
    bandit.observe(points, torch.ones(3), f(points))
    oracle.tell(points, f(points))
    for x in torch.tensor(play(bandit, 5), dtype=torch.float64).split(1):
        oracle.tell(x, f(x))
    again = bandit.arms[[1, 1]]
    bandit.observe(torch.tensor([1]), torch.tensor([2.0]), 2 * f(again[:1]))
    oracle.tell(again, f(again))
    grid = grid_of(BOX, 11)
    mean, variance = oracle.at(grid.numpy(), np.zeros((0, 2)))
    at = bandit.posterior(grid)
    np.testing.assert_allclose(at.mean, mean, rtol=1e-7, atol=1e-8)
    np.testing.assert_allclose(at.variance, variance, rtol=1e-7, atol=1e-10)


@quickly
def test_a_point_of_history_that_is_picked_keeps_its_pulls():
    bandit, point = bandit_of("gp_ucb", pulls=2), torch.tensor([0.31, 0.87], dtype=torch.float64)
    bandit.observe(point.unsqueeze(0), torch.tensor([3.0]), torch.tensor([3.0]))
    selection = bandit.ask(maximizer=lambda score: point)
    assert float(bandit.counts[selection.index[0]]) == 3
    bandit.tell(selection, torch.ones(1))
    assert bandit.counts.tolist() == [1, 1, 4]
    assert bandit.loop.state.statistics.size == 3
    assert -1 not in bandit.best(3).index


@quickly
@pytest.mark.parametrize("name", ["gp_ucb", "ts, three", "uniform"])
def test_what_is_forgotten_does_not_add_up(name: str):
    bandit = bandit_of(name, pulls=3)
    point = torch.tensor([0.31, 0.87], dtype=torch.float64)  # a point that no search finds again
    size, stale = len(bandit.arms), bandit.ask(maximizer=lambda score: point)
    bandit.forget(stale)
    twin = copy.deepcopy(bandit)
    for _ in range(4):
        bandit.forget(bandit.ask())
    selection = bandit.ask()
    assert len(bandit.arms) <= size + 3
    before = everything(bandit)
    for late in (bandit.tell, lambda picks, _: bandit.forget(picks)):
        with pytest.raises(errors.StateError, match="other points"):
            late(stale, f(stale.points))
    assert differences(before, everything(bandit)) == []
    bandit.tell(selection, f(selection.points))
    with pytest.warns(errors.DiagnosticWarning, match="told or forgotten before"):
        report = twin.tell(stale, f(stale.points))
    assert float(report.unasked) == len(stale), "the places were not taken meanwhile"


@quickly
def test_places_are_given_away_in_every_row_on_its_own():
    """In random search in three boxes, with rewards told in parts and forgotten picks, the arms are the points asked for."""
    boxes, draw = torch.stack([BOX, 2 * BOX, BOX - 0.3]), generator(0)
    bandit = bandit_of("uniform", bounds=boxes, generator=[generator(s) for s in range(3)])
    told: list[dict[tuple[float, ...], float]] = [{}, {}, {}]
    for _ in range(60):
        selection = bandit.ask(limit=torch.randint(0, 4, (3,), generator=draw))
        if float(torch.rand((), generator=draw)) < 0.3:
            selection = bandit.ask(more=2)
        assert torch.equal(bandit.loop.state.rows.points(selection.index)[selection.mask], selection.points[selection.mask])
        kept = selection.mask & (torch.rand(selection.mask.shape, generator=draw) < 0.5)
        part = tb.Selection(selection.points, torch.where(kept, selection.index, -1), kept)
        bandit.tell(part, f(part.points))
        for row, x in zip(*[where.tolist() for where in kept.nonzero(as_tuple=True)], strict=True):
            point = tuple(part.points[row, x].tolist())
            told[row][point] = told[row].get(point, 0) + 1
        if bandit.loop.open is not None and float(torch.rand((), generator=draw)) < 0.7:
            bandit.forget(bandit.ask())
        for row, own in enumerate(told):
            at = bandit.counts[row] > 0
            assert {tuple(x) for x in bandit.arms[row][at].tolist()} == own.keys()
    assert bandit.arms.shape[-2] <= max(map(len, told)) + 12


@quickly
def test_a_kernel_is_fitted_in_a_box():
    bandit = tb.Bandit(tb.gp_ucb(gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel()).double(), **WIDE), bounds=BOX)
    play(bandit, 12)
    before = float(bandit.loop.state.posterior.kernel.base_kernel.lengthscale)
    report = bandit.fit_kernel_()
    assert bool(report.accepted)
    assert float(bandit.loop.state.posterior.kernel.base_kernel.lengthscale) != before
    assert float(bandit.loop.state.progress(frozenset()).kappa2) == pytest.approx(
        float(bandit.loop.state.posterior.kernel.outputscale)
    )
    resumed = tb.Bandit(bandit.policy, bounds=BOX).load_state_dict(bandit.state_dict())
    assert torch.equal(resumed.loop.state.progress(frozenset()).kappa2, bandit.loop.state.progress(frozenset()).kappa2)
    assert play(resumed, 2) == play(bandit, 2)


@pytest.mark.exhaustive
@quickly
def test_the_state_grows_with_distinct_points_only():
    """A linear reward is always best in the same corner: it stays one arm, and nothing grows."""
    bandit = bandit_of("lin_ucb")
    play(bandit, 10)
    size = len(bandit.arms)
    for _ in range(20):
        selection = bandit.ask()
        bandit.tell(selection, selection.points.sum(dim=-1))
    assert len(bandit.arms) <= size + 4
    assert float(bandit.pulls) == 30
    bandit = bandit_of("gp_ucb", pulls=15)
    assert len(bandit.arms) == 15, "the centre is one of them"
    assert isinstance(bandit.loop.state, BoxState)  # a state without a table


@quickly
def test_bounds_of_single_precision_and_a_side_of_length_0():
    bandit = tb.Bandit(tb.gp_ucb(rbf(), **WIDE), bounds=BOX.float(), generator=generator(0))
    picks = torch.tensor(play(bandit, 6), dtype=torch.float64)
    low, high = BOX.float().double()
    assert bool(((picks >= low) & (picks <= high)).all())
    box = torch.tensor([[0.0, 0.7], [1.0, 0.7]])
    bandit = tb.Bandit(tb.gp_ucb(rbf(), **WIDE), bounds=box)
    assert all(x[1] == pytest.approx(0.7) for x in play(bandit, 5))


# ------------------------------------------------------------------------- regret


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["gp_ucb", "ei", "gp_bucb", "bkb", "ts"])
def test_the_regret_on_branin_falls(name: str, monkeypatch: pytest.MonkeyPatch):
    search = partial(box_picking.optimize_continuous, num_raw=256, num_restarts=4)
    monkeypatch.setattr(box_picking, "optimize_continuous", search)
    branin = Branin(negate=True).double()
    low, high = branin.bounds.double()
    kernel = gpytorch.kernels.ScaleKernel(gpytorch.kernels.MaternKernel(2.5, ard_num_dims=2)).double()
    kernel.outputscale = torch.tensor(9.0, dtype=torch.float64)
    kernel.base_kernel.lengthscale = torch.tensor([4.0, 9.0], dtype=torch.float64)
    options = {"noise_std": NOISE_STD, "width": tb.widths.Constant(1.0)}
    policy = {
        "gp_ucb": lambda: tb.gp_ucb(kernel, **options), "ei": lambda: tb.gp_ucb(kernel, acquisition="ei", **options),
        "gp_bucb": lambda: tb.gp_bucb(kernel, ratio_threshold=50.0, **options),
        "bkb": lambda: tb.bkb(kernel, **options), "ts": lambda: tb.thompson_sampling(kernel, num_features=128, **options),
    }[name]()  # fmt: skip
    bandit, regret = tb.Bandit(policy, bounds=branin.bounds.double(), generator=generator(0)), []
    while len(regret) < 45:
        selection = bandit.ask(limit=45 - len(regret))
        values = branin(selection.points)
        regret += (-0.397887 - values).tolist()
        bandit.tell(selection, 2 + values / 40)
    level = (
        0.25 if name == "ts" else 0.1
    )  # seeds 0 to 3 of TS end at 0.03 to 0.22 here, and at 0.02 to 0.16 on a grid of 41 x 41 arms
    assert min(regret) < level < min(regret[:8])
    assert name == "ei" or np.mean(regret[-8:]) < 0.2 * np.mean(regret[:15]), "EI explores on"
    assert min(regret) > -1e-5
    assert bool(((bandit.arms >= low) & (bandit.arms <= high)).all())


# ------------------------------------------------------------------------- what a box does not take


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: tb.gp_ucb(rbf(), **COMMON), "SrinivasCompact"),
        (lambda: tb.gp_ucb(rbf(), width=tb.widths.Scaled(tb.widths.Srinivas(0.1), 2.0)), "SrinivasCompact|counts the arms"),
        (lambda: tb.compressed_gp(rbf(), **COMMON), "SrinivasCompact"),
        (lambda: tb.batch_bkb(rbf(), batch_rule="local"), "batch_rule='global'"),
        (lambda: tb.batch_bkb(rbf(), batch_rule="global_then_local"), "batch_rule='global'"),
        (lambda: tb.gp_bucb(rbf(), batch_rule="exact_ratio"), "batch_rule='global'"),
        (lambda: tb.gp_bucb(rbf(), max_pulls=3), "max_pulls"),
        (lambda: tb.per_cost(tb.igp_ucb(rbf())), "costs"),
        (lambda: tb.igp_ucb(rbf(), initial=tb.starts.uncertainty(1.0)), "uniform"),
        (lambda: tb.thompson_sampling(kernel_pair("linear")[0]), "RBF and Matérn"),
        (lambda: tb.epsilon_greedy(), "bounds"),
        (lambda: tb.regularized_evolution(), "bounds"),
        (lambda: tb.pi_gp_ucb(rbf(), nu=1.5, horizon=10), "bounds"),
        (lambda: tb.bpe(rbf(), horizon=10), "bounds"),
        (lambda: tb.sup_kernel_ucb(rbf(), horizon=10), "bounds"),
    ],
)  # fmt: skip
def test_what_needs_arms_says_so(make: Any, says: str):
    drawn = generator(0)
    state = drawn.get_state()
    with pytest.raises(errors.UnsupportedError, match=says):
        tb.Bandit(make(), bounds=BOX, generator=drawn)
    assert torch.equal(drawn.get_state(), state)


@pytest.mark.usefixtures("annotations_not_enforced")
def test_bad_boxes():
    policy = tb.igp_ucb(rbf())
    for error, options in (
        (errors.ArgumentError, {}), (errors.ArgumentError, {"arms": BOX, "bounds": BOX}),
        (errors.ArgumentError, {"bounds": BOX.flip(0)}), (errors.NonFiniteError, {"bounds": BOX * math.inf}),
        (errors.ShapeError, {"bounds": torch.zeros(3, 2)}), (errors.UnsupportedError, {"bounds": BOX, "costs": torch.ones(1)}),
    ):  # fmt: skip
        with pytest.raises(error):
            tb.Bandit(policy, **options)
    with pytest.raises(errors.ArgumentError, match="uniform"):
        tb.Bandit(tb.compressed_gp(rbf(), width=TWO), bounds=torch.stack([torch.zeros(12), torch.ones(12)]))


def test_what_compares_arms_is_refused_on_a_box_in_its_words():
    """A message must not advise the policy that is in use."""
    policy = tb.gp_ucb(gpytorch.kernels.RBFKernel().double(), noise_std=0.1, width=tb.widths.Constant(2.0))
    bandit = tb.Bandit(policy, bounds=torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.float64))
    bandit.tell(bandit.ask(), torch.zeros(1, dtype=torch.float64))
    refused = [
        bandit.explain,
        lambda: bandit.top_k(2),
        lambda: bandit.level_set(0.5),
        lambda: bandit.should_stop(tb.stopping.ProbableRegret(0.1)),
    ]
    for call in refused:
        with pytest.raises(errors.UnsupportedError, match=r"this bandit is on a box \(bounds=\): give it a list of points"):
            call()
