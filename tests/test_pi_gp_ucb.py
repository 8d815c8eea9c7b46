"""π-GP-UCB compared with a naive oracle, and the laws of all policies for it."""

from __future__ import annotations

import copy
import itertools
import math
from fractions import Fraction
from typing import Any

import gpytorch
import numpy as np
import pytest
import torch
from oracles_partitioned import Partitioned, first_side
from problems import generator, kernel_pair
from tolerances import VARIANCE, Tolerance, assert_close
from torch.utils._python_dispatch import TorchDispatchMode

import torchbandits as tb
from torchbandits.posteriors import grouping
from torchbandits.posteriors.cells import COORDS, LEVEL, SIZE
from torchbandits.posteriors.cover import Cover
from torchbandits.testing.play import differences

F64 = VARIANCE[torch.float64]
MEAN = Tolerance(1e-8, 1e-9)
NOISE_STD, NORM_BOUND, DELTA = 0.5, 1.0, 0.1
COMMON = {"noise_std": NOISE_STD, "norm_bound": NORM_BOUND, "delta": DELTA}


def grid(d: int, n: int) -> np.ndarray:
    return np.stack(np.meshgrid(*[np.linspace(0, 1, n)] * d, indexing="ij"), -1).reshape(-1, d)


def scattered(seed: int, a: int, d: int) -> np.ndarray:
    return np.random.default_rng(seed).uniform(size=(a, d))


def with_copies() -> np.ndarray:
    arms = scattered(3, 40, 2)
    arms[[2, 11, 12, 30]] = arms[[25, 4, 4, 39]]
    return arms


def flat() -> np.ndarray:
    arms = scattered(4, 30, 3)
    arms[:, 1] = 0.7
    return arms


# name -> arms, kernel, ν, T, corners
CASES: dict[str, tuple[np.ndarray, str, float, int, Any]] = {
    "grid 1-d": (grid(1, 31), "matern32", 1.5, 60, None),
    "grid 2-d with arms on edges": (grid(2, 7), "matern32", 1.5, 50, None),
    "one cell at first, arms on its middle": (grid(2, 5), "matern12", 0.5, 1, None),
    "scattered 2-d": (scattered(1, 60, 2), "matern52", 2.5, 15, None),
    "odd box 3-d": (scattered(2, 60, 3) * [1, 40, 0.02] + [3, -20, 0], "matern32", 1.5, 12, None),
    "copies": (with_copies(), "matern12", 0.5, 30, None),
    "no extent": (flat(), "matern32", 1.5, 20, None),
    "larger bounds": (flat(), "scaled", 1.5, 20, [[-1, 0.7, 0], [2, 0.7, 1]]),
}


class Duel:
    """A bandit and its oracle with the same observations."""

    def __init__(self, case: str = "grid 2-d with arms on edges", seed: int = 0, **options: Any) -> None:
        self.arms, kernel_name, nu, horizon, corners = CASES[case]
        kernel, kernel_np = kernel_pair(kernel_name, 0.3)
        lower, upper = (None, None) if corners is None else corners
        bounds = None if corners is None else torch.tensor(corners)
        self.policy = tb.pi_gp_ucb(kernel, nu=nu, horizon=horizon, bounds=bounds, **COMMON, **options)
        self.oracle = Partitioned(self.arms, kernel_np, nu, horizon, NOISE_STD, NORM_BOUND, DELTA, lower=lower, upper=upper)
        self.seed = seed
        self.bandit = self.fresh()
        rng = np.random.default_rng(seed)
        self.f = (0.6 * rng.normal(size=len(self.arms)))[self.oracle.copies]
        self.noise = rng.uniform(-NOISE_STD, NOISE_STD, size=5_000)

    def fresh(self) -> tb.Bandit:
        return tb.Bandit(self.policy, torch.tensor(self.arms), generator=generator(self.seed))

    def rewards(self, first: int, index: torch.Tensor) -> torch.Tensor:
        return torch.tensor([self.f[int(i)] + self.noise[first + j] for j, i in enumerate(index)], dtype=torch.float64)

    def play(self, bandit: tb.Bandit, start: int, pulls: int, **ask: Any) -> list[int]:
        picks = []
        for t in range(start, start + pulls):
            selection = bandit.ask(**ask)
            bandit.tell(selection, self.rewards(t, selection.index))
            picks += selection.index.tolist()
        return picks

    def both(self, pulls: int) -> None:
        """Play the bandit, and tell the oracle without asking it."""
        for t in range(len(self.oracle.pulls), len(self.oracle.pulls) + pulls):
            selection = self.bandit.ask()
            y = self.rewards(t, selection.index)
            self.bandit.tell(selection, y)
            self.oracle.tell(int(selection.index[0]), float(y[0]))

    def points(self, n: int = 25) -> np.ndarray:
        inside = np.random.default_rng(9).uniform(size=(n, self.arms.shape[1]))
        lower, upper = self.oracle.lower, self.oracle.upper
        return np.concatenate([lower + (upper - lower) * inside, self.arms[:15]])

    def check_posterior(self, pending: tuple[int, ...] = ()) -> None:
        points = self.points()
        got = self.bandit.posterior(torch.tensor(points))
        expected = [self.oracle.marginals(x, pending) for x in points]
        assert_close(got.variance, [v for _, v in expected], F64)
        for mean, (means, _) in zip(got.mean.tolist(), expected, strict=True):  # edges may tie
            assert min(abs(mean - m) for m in means) < 1e-9

    def check_cells(self) -> None:
        side = self.bandit.posterior.cover.cells_a_side
        expected = sorted((int(math.log2(c.M // side)), *c.corner) for c in self.oracle.cells)
        assert cells_of(self.bandit) == [expected]


def cells_of(bandit: tb.Bandit) -> list[list[tuple[int, ...]]]:
    """Level and coordinates of the cells of each batch row."""
    layout = bandit.posterior.cells.layout
    rows = [layout[:, r][:, layout[SIZE, r] > 0] for r in range(layout.shape[1])]
    return [sorted((int(c[LEVEL]), *c[COORDS:].tolist()) for c in row.T) for row in rows]


# ------------------------------------------------------------------------------------------- the oracle, pick for pick


@pytest.mark.sweep(1)
@pytest.mark.parametrize("case", CASES)
def test_picks_bounds_cells_and_posterior_are_the_oracle_s(case):
    duel = Duel(case)
    assert duel.bandit.posterior.cover.cells_a_side == first_side(duel.oracle.horizon, duel.oracle.d, duel.oracle.nu)
    pulls = 25 if case.startswith("one cell") else 60
    upper, lower = duel.oracle.bounds()
    for t in range(pulls):
        selection = duel.bandit.ask()
        assert int(selection.index[0]) == duel.oracle.choose(bounds=upper)
        y = duel.rewards(t, selection.index)
        report = duel.bandit.tell(selection, y)
        duel.oracle.tell(int(selection.index[0]), float(y[0]))
        duel.check_cells()
        upper, lower = duel.oracle.bounds()
        assert math.isclose(float(report.certificate), upper.max() - lower.max(), rel_tol=1e-9)
        best = duel.oracle.choose(bounds=upper)
        widths = [duel.oracle.width(c) for c in duel.oracle.cells if best in duel.oracle.arms_of(c)]
        assert min(abs(float(report.width) - w) for w in widths) < 1e-9
        if t % 20 == 0:
            duel.check_posterior()
    gains = sum(duel.oracle.log_det(c) for c in duel.oracle.cells)
    assert math.isclose(float(report.information_gain), 0.5 * gains, rel_tol=1e-9)
    assert any(level for level, *_ in cells_of(duel.bandit)[0]), "no cell has split"
    duel.check_posterior()
    best, pulled = duel.bandit.best(), sorted({i for i, _ in duel.oracle.pulls})
    means = {i: max(duel.oracle.marginals(duel.arms[i])[0]) for i in pulled}
    assert means[int(best.index[0])] >= max(means.values()) - 1e-9 or "edges" in case or "middle" in case
    assert int(duel.bandit.best_arm()) == int(best.index[0])
    assert_close(best.variance, [duel.oracle.marginals(duel.arms[int(best.index[0])])[1]], F64)
    assert float(report.pulls) == pulls
    assert int(report.dictionary_size) == int(report.distinct_arms) == len(pulled)
    assert sorted(duel.bandit.dictionary.tolist()) == pulled


LONG = {"d = 1": (grid(1, 41), 200), "d = 2": (grid(2, 10), 300)}  # arms and T


@pytest.mark.sweep(1)
@pytest.mark.parametrize("case", LONG)
def test_long_runs_pick_what_the_paper_s_widths_pick(case, monkeypatch):
    """In Ñ_t = 4(t+1)^{bd}, t includes the pull that is being decided, and Ñ_t is never below the number of cells made."""
    arms, horizon = LONG[case]
    monkeypatch.setitem(CASES, case, (arms, "matern32", 1.5, horizon, None))
    duel = Duel(case)
    d, cells_counted = arms.shape[1], 0
    for t in range(1, 161):
        picked, pick = duel.bandit.ask(), duel.oracle.choose()
        assert int(picked.index[0]) == pick, f"step {t}"
        assert duel.bandit.posterior.cells.made.tolist() == [duel.oracle.made]
        y = duel.rewards(t - 1, picked.index)
        duel.bandit.tell(picked, y)
        duel.oracle.tell(pick, float(y[0]))
        cells_counted += duel.oracle.made > 4 * (t + 1) ** (d * (d + 1) / (d + 3))
    assert cells_counted >= 1
    assert any(level for level, *_ in cells_of(duel.bandit)[0]), "no cell has split"


def test_the_width_takes_the_larger_of_the_paper_s_bound_and_the_cells_made():
    def log_cells(bandit: tb.Bandit) -> float:
        """log N, solved from the width of a cell without data, B + R √(2(1 + log(N/δ)))."""
        return (float(bandit.width) - NORM_BOUND) ** 2 / NOISE_STD**2 / 2 - 1 + math.log(DELTA)

    kernel = kernel_pair("matern32", 0.3)[0]
    few, many = (
        tb.Bandit(tb.pi_gp_ucb(kernel, nu=1.5, horizon=horizon, **COMMON), torch.tensor(grid(1, 57))) for horizon in (2, 20_000)
    )
    assert math.isclose(log_cells(few), math.log(4 * 2**0.5), rel_tol=1e-12)  # t = 1, bd = 1/2
    assert many.posterior.cover.cells_a_side == 28
    assert math.isclose(log_cells(many), math.log(28), rel_tol=1e-12)


def test_cells_made_are_counted_from_states_saved_before_they_were():
    duel = Duel("one cell at first, arms on its middle")
    duel.both(25)
    made = duel.bandit.posterior.cells.made
    assert made.tolist() == [duel.oracle.made]
    assert duel.oracle.made > len(duel.oracle.cells)
    saved = duel.bandit.state_dict()
    assert not any("made" in name for name in saved["state"])
    resumed = duel.fresh().load_state_dict(saved)
    assert torch.equal(resumed.posterior.cells.made, made)
    assert torch.equal(resumed.width, duel.bandit.width)


# ------------------------------------------------------------------------------------------- edges, in exact numbers


def exact_cells(k: int, n: int, side: int) -> list[int]:
    """The closed intervals [g, g + 1]/side that contain k/(n − 1), in exact fractions."""
    y = Fraction(k * side, n - 1)
    return [g for g in range(side) if g <= y <= g + 1]


BOXES = {"unit": (0.0, 1.0), "odd": (-20.3, 19.7), "far": (1e6, 1e6 + 3), "tiny": (-1e-9, 2e-9)}


@pytest.mark.sweep(2)
@pytest.mark.parametrize("default", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("box", BOXES)
def test_arms_on_edges_belong_to_every_cell_that_touches_them(box, default):
    """Grids of n arms on T^{1/3} cells, including 14 arms on 13 cells, which are one rounding error away from their edges."""
    low, high = BOXES[box]
    before = torch.get_default_dtype()
    torch.set_default_dtype(default)
    try:
        for n, side, level in itertools.product((14, 40, 101), (13, 10), (0, 1, 3)):
            ways = [
                np.linspace(low, high, n),
                low + (high - low) * np.arange(n) / (n - 1),
                low + np.arange(n) * ((high - low) / (n - 1)),
            ]
            for arms in ways:
                corners = torch.tensor([[low], [high]], dtype=torch.float64)
                cover = Cover(corners[:1], corners[1:], 1.5, side**3)
                assert cover.cells_a_side == side
                scaled = cover.scaled(torch.tensor(arms).clamp(low, high).unsqueeze(-1), torch.zeros(n, dtype=torch.int64))
                first = torch.zeros(n, 1, dtype=torch.int64)
                point, coords = cover.touching(scaled, first[:, 0] + level, first, first + side * 2**level - 1)
                found = [sorted(coords[point == k, 0].tolist()) for k in range(n)]
                assert found == [exact_cells(k, n, side * 2**level) for k in range(n)]
    finally:
        torch.set_default_dtype(before)


def test_arms_on_edges_in_single_precision_belong_to_every_cell_that_touches_them():
    arms, kernel = torch.linspace(0, 1, 14, dtype=torch.float32).unsqueeze(-1), kernel_pair("matern32", 0.3)[0]
    for given in (arms, torch.linspace(0, 1, 14, dtype=torch.float64).unsqueeze(-1)):
        bandit = tb.Bandit(tb.pi_gp_ucb(kernel, nu=1.5, horizon=13**3, **COMMON), given)
        held = (bandit.posterior.cells.places[0] >= 0).sum(dim=-1)
        assert held.tolist() == [1, *[2] * 12, 1]


def test_each_point_of_a_cell_that_splits_belongs_to_a_child():
    """Points within, at and just beyond the tolerance of an edge, level by level."""
    low = torch.zeros(1, 1, dtype=torch.float64)
    cover = Cover(low, low + 1, 1.5, 27)
    offsets = torch.tensor([0.0, 1e-16, 1e-12, 3e-10, 4.6e-10, 4.7e-10, 1e-9, 2e-9, 1e-6], dtype=torch.float64)
    x = torch.cat([1 / 3 + offsets, 1 / 3 - offsets, 5 / 12 + offsets]).unsqueeze(-1)
    scaled = cover.scaled(x, torch.zeros(len(x), dtype=torch.int64))
    point, coords = cover.first(scaled)
    for level in range(1, cover.depth + 1):
        children, finer = cover.touching(scaled[point], torch.full_like(point, level), 2 * coords, 2 * coords + 1)
        assert sorted(set(children.tolist())) == list(range(len(point)))
        assert int(torch.bincount(point[children]).max()) <= 2
        point, coords = point[children], finer


def test_many_pulls_of_one_arm_split_its_cell_again_and_again():
    duel = Duel("odd box 3-d")
    index, counts = torch.tensor([7, 20, 33]), torch.tensor([1500.0, 3.0, 40.0], dtype=torch.float64)
    sums = torch.tensor([300.0, 1.0, -20.0], dtype=torch.float64)
    duel.bandit.observe(index, counts, sums)
    for i, n, s in zip(index.tolist(), counts.tolist(), sums.tolist(), strict=True):
        duel.oracle.pulls += [(i, s / n)] * (int(n) - 1)
        duel.oracle.tell(i, s / n)
    duel.check_cells()
    assert max(level for level, *_ in cells_of(duel.bandit)[0]) >= 5
    duel.check_posterior()
    assert int(duel.bandit.ask().index[0]) == duel.oracle.choose()


def test_the_rule_is_exact_in_whole_numbers():
    """ρ^(−1/b) < n + 1 and ⌈T^(q/d)⌉ in exact integers: M^(d+2ν) < (n+1)^(d+1), M^(d(d+2)+2ν) ≥ T^(d+1)."""
    for d, two_nu in itertools.product((1, 2, 3, 5), (1, 2, 3, 5)):
        zero = torch.zeros(1, d, dtype=torch.float64)
        for horizon in (1, 2, 10, 1000, 1024, 10_000, 27_000, 10**6):
            cover = Cover(zero, zero + 1, two_nu / 2, horizon)
            assert cover.cells_a_side == first_side(horizon, d, two_nu / 2)
        for m, level in itertools.product((1, 3, 4, 8, 9), (0, 1, 2)):
            cover = Cover(zero, zero + 1, two_nu / 2, 1)
            cover.cells_a_side = m
            M, limit = m * 2**level, float(cover.limit(torch.tensor([level])))
            for n in (math.floor(limit) + k for k in (-2, -1, 0, 1)):
                assert (limit < n + 1) == (M ** (d + two_nu) < (n + 1) ** (d + 1)), (d, two_nu, M, n)


def test_the_map_to_the_unit_cube_is_shown():
    duel = Duel("odd box 3-d")
    text = repr(duel.bandit.posterior.cover)
    assert "unit = (x - lower)/(upper - lower)" in text
    assert f"{duel.arms[:, 1].min():.6g}"[:6] in text
    assert f"{duel.bandit.posterior.cover.cells_a_side} cells a side" in text


# ------------------------------------------------------------------------------------------- law 2: order does not matter


def test_law_2_many_pulls_at_once_are_many_updates_in_any_order():
    duel = Duel()
    rng = np.random.default_rng(5)
    pulled = rng.integers(0, 20, size=90)
    y = duel.rewards(0, torch.tensor(pulled))
    orders = [np.arange(90), rng.permutation(90)]
    bandits = []
    for order in orders:
        bandit = duel.fresh()
        for i in order:
            bandit.tell(torch.tensor([pulled[i]]), y[i : i + 1])
        bandits.append(bandit)
    together, halves = duel.fresh(), duel.fresh()
    together.tell(torch.tensor(pulled), y)
    for part in (slice(0, 37), slice(37, 90)):
        halves.tell(torch.tensor(pulled[part]), y[part])
    bandits += [together, halves]
    points = torch.tensor(duel.points())
    for bandit in bandits[1:]:
        assert cells_of(bandit) == cells_of(bandits[0])
        assert_close(bandit.posterior(points).variance, bandits[0].posterior(points).variance, F64)
        records = bandit.loop.state.records
        assert_close(records.arm_leverage(), bandits[0].loop.state.records.arm_leverage(), F64)
        assert_close(bandit.width, bandits[0].width, F64)
        assert_close(bandit.loop.state.log_det, bandits[0].loop.state.log_det, F64)
    assert len({int(bandit.ask().index) for bandit in bandits}) == 1
    assert any(level for level, *_ in cells_of(bandits[0])[0])


def test_the_pool_is_worked_through_in_parts_where_it_is_large(monkeypatch):
    whole = Duel()
    picks = whole.play(whole.bandit, 0, 60)
    whole.bandit.observe(torch.arange(20), torch.ones(20).double(), torch.ones(20).double())
    monkeypatch.setattr(grouping, "_CHUNK", 30)
    parts = Duel()
    assert parts.play(parts.bandit, 0, 60) == picks
    parts.bandit.observe(torch.arange(20), torch.ones(20).double(), torch.ones(20).double())
    points = torch.tensor(whole.points())
    got, expected = parts.bandit.posterior(points), whole.bandit.posterior(points)
    assert_close(got.variance, expected.variance, F64)
    assert_close(parts.bandit.width, whole.bandit.width, F64)


# ------------------------------------------------------------------------------------------- law 3: hallucinated picks


def test_law_3_picks_ahead_are_the_oracle_s_and_change_nothing():
    duel = Duel()
    duel.both(20)
    opened = duel.bandit.ask()
    before = copy.deepcopy(duel.bandit.state_dict())
    pending = (int(opened.index[0]),)
    for more in (3, 1, 2):
        for _ in range(more):
            pending = (*pending, duel.oracle.choose(pending=pending))
        assert tuple(duel.bandit.ask(more=more).index.tolist()) == pending
    duel.check_posterior(pending)
    after = duel.bandit.state_dict()
    changed = [d for d in differences(before["state"], after["state"]) if "pending" not in d]
    assert changed == []
    duel.bandit.forget(duel.bandit.ask())
    duel.check_posterior()
    assert int(duel.bandit.ask().index) == pending[0]
    fresh = duel.fresh()
    ahead: tuple[int, ...] = ()
    empty = Duel()
    for _ in range(6):
        ahead = (*ahead, empty.oracle.choose(pending=ahead))
    assert tuple(fresh.ask(more=6).index.tolist()) == ahead


def test_answers_may_come_in_parts_and_some_never():
    duel = Duel()
    duel.both(10)
    opened = duel.bandit.ask(more=6)
    y = duel.rewards(10, opened.index)
    duel.bandit.tell(opened[4:5], y[4:5])
    duel.oracle.tell(int(opened.index[4]), float(y[4]))
    left = duel.bandit.ask()
    assert sorted(left.index.tolist()) == sorted(opened.index[[0, 1, 2, 3, 5]].tolist())
    duel.check_posterior(tuple(left.index.tolist()))
    duel.bandit.forget(left[:2])
    rest = duel.bandit.ask()
    duel.bandit.tell(rest, duel.rewards(11, rest.index))
    for j, i in enumerate(rest.index.tolist()):
        duel.oracle.tell(i, float(duel.rewards(11, rest.index)[j]))
    assert int(duel.bandit.ask().index) == duel.oracle.choose()
    duel.check_cells()


# ------------------------------------------------------------------------------------------- what is on offer


def test_arms_on_offer_and_limits():
    duel = Duel("copies")
    rng = np.random.default_rng(6)
    for t in range(40):
        allowed = rng.uniform(size=len(duel.arms)) < 0.3
        selection = duel.bandit.ask(available=torch.tensor(allowed))
        assert duel.oracle.copies[int(selection.index)] == duel.oracle.choose(allowed)
        assert allowed[int(selection.index)]  # of equal arms one on offer
        y = duel.rewards(t, selection.index)
        duel.bandit.tell(selection, y)
        duel.oracle.tell(int(duel.oracle.copies[int(selection.index)]), float(y))
    assert len(duel.bandit.ask(limit=0)) == 0
    pending: tuple[int, ...] = ()
    for _ in range(4):
        pending = (*pending, duel.oracle.choose(allowed, pending))
    duel.bandit.ask(limit=0)
    ahead = duel.bandit.ask(more=4, available=torch.tensor(allowed))
    assert tuple(duel.oracle.copies[ahead.index.numpy()].tolist()) == pending
    assert allowed[ahead.index.numpy()].all()
    duel.bandit.forget(ahead)
    with pytest.raises(tb.errors.ArgumentError, match="available must have at least one True"):
        duel.bandit.ask(available=torch.zeros(len(duel.arms), dtype=torch.bool))


def test_first_picks_may_be_drawn():
    duel = Duel(initial=tb.starts.uniform(4))
    expected = torch.randint(len(duel.arms), (1,), generator=generator(0))
    first = duel.bandit.ask()
    assert first.index.tolist() == expected.tolist()
    bandit = duel.fresh()
    drawn = bandit.ask(more=3)
    bandit.tell(drawn, duel.rewards(0, drawn.index))
    for j, i in enumerate(drawn.index.tolist()):
        duel.oracle.tell(i, float(duel.rewards(0, drawn.index)[j]))
    assert len(duel.play(bandit, 3, 1)) == 1  # the fourth
    assert int(Duel().bandit.ask().index) == 0  # the argmax of the prior


# ------------------------------------------------------------------------------------------- law 5: batch rows


def rows_of(kind: str) -> tuple[Any, list[Any], torch.Tensor, list[torch.Tensor], list[int]]:
    """A batched policy with its arms, and the single problem of each row."""
    arms = torch.tensor(grid(2, 7))
    several = torch.stack([arms, torch.tensor(scattered(7, 49, 2)) * 3 - 1, arms.clone()])
    several[2, [3, 17, 40]] = several[2, [40, 2, 4]]  # duplicates only in one row
    lengthscales = torch.tensor([0.2, 0.4, 0.3], dtype=torch.float64)
    if kind == "kernels":
        kernel = gpytorch.kernels.ScaleKernel(
            gpytorch.kernels.MaternKernel(1.5, batch_shape=torch.Size([3])), batch_shape=torch.Size([3])
        ).double()
        kernel.base_kernel.lengthscale = lengthscales.view(3, 1, 1)
        kernel.outputscale = lengthscales * 3
        singles = [gpytorch.kernels.ScaleKernel(gpytorch.kernels.MaternKernel(1.5)).double() for _ in range(3)]
        for single, lengthscale in zip(singles, lengthscales, strict=True):
            single.base_kernel.lengthscale, single.outputscale = lengthscale, lengthscale * 3
    else:
        kernel = kernel_pair("matern32", 0.3)[0]
        singles = [kernel] * 3
    own = list(several) if kind == "arms" else [arms] * 3
    return kernel, singles, several if kind == "arms" else arms, own, [11, 12, 13]


@pytest.mark.sweep(2)
@pytest.mark.parametrize("kind", ["generators", "norms", "arms", "kernels"])
def test_law_5_a_batch_picks_what_singles_pick(kind):
    kernel, singles, arms, own, seeds = rows_of(kind)
    options = {"nu": 1.5, "horizon": 40, "initial": tb.starts.uniform(2), **COMMON}
    norms = [0.5, 1.0, 2.0] if kind == "norms" else [NORM_BOUND] * 3
    together = options | {"norm_bound": torch.tensor(norms)} if kind == "norms" else options
    arms = arms.expand(3, 49, 2) if kind == "norms" else arms
    batch = tb.Bandit(tb.pi_gp_ucb(kernel, **together), arms, generator=[generator(s) for s in seeds])
    alone = [
        tb.Bandit(tb.pi_gp_ucb(k, **options | {"norm_bound": n}), a, generator=generator(s))
        for k, a, s, n in zip(singles, own, seeds, norms, strict=True)
    ]
    assert batch.posterior.domain.shared == (kind in ("generators", "norms"))
    noise = np.random.default_rng(8).uniform(-0.5, 0.5, size=(3, 200))
    told = 0
    for step in range(45):
        together = batch.ask() if step % 9 else batch.ask(more=3)
        apart = [b.ask() if step % 9 else b.ask(more=3) for b in alone]
        assert together.index.tolist() == [s.index.tolist() for s in apart]
        q = together.index.shape[-1]
        y = torch.sin(4 * together.points).sum(dim=-1) + torch.tensor(noise[:, told : told + q])
        told += q
        report = batch.tell(together, y)
        reports = [b.tell(s, y[r]) for r, (b, s) in enumerate(zip(alone, apart, strict=True))]
        for name in ("width", "certificate", "information_gain", "pulls"):
            assert_close(getattr(report, name), [float(getattr(single, name)) for single in reports], F64)
    assert cells_of(batch) == [cells_of(b)[0] for b in alone]
    low, high = own[0].amin(0), own[0].amax(0)
    points = low + (high - low) * torch.rand(20, 2, generator=generator(1), dtype=torch.float64)
    marginals = batch.posterior(points)
    for r, single in enumerate(alone):
        assert_close(marginals.variance[r], single.posterior(points).variance, F64)
        assert_close(marginals.mean[r], single.posterior(points).mean, MEAN)
        assert int(batch.best().index[r]) == int(single.best().index)


def test_law_5_rows_may_wait_and_differ_in_what_is_on_offer():
    kernel, _, arms, _, seeds = rows_of("generators")
    policy = tb.pi_gp_ucb(kernel, nu=1.5, horizon=40, **COMMON)
    batch = tb.Bandit(policy, arms, generator=[generator(s) for s in seeds])
    alone = [tb.Bandit(policy, arms, generator=generator(s)) for s in seeds]
    for step in range(30):
        limit = torch.tensor([step % 2, 1, (step + 1) % 2])
        available = torch.rand(3, 49, generator=generator(step)) < 0.4
        together = batch.ask(limit=limit, available=available)
        y = torch.cos(5 * together.points).sum(dim=-1)
        batch.tell(together, y)
        for r, bandit in enumerate(alone):
            selection = bandit.ask(limit=int(limit[r]), available=available[r])
            assert selection.index.tolist() == together.index[r][together.mask[r]].tolist()
            bandit.tell(selection, y[r][together.mask[r]])
    assert cells_of(batch) == [cells_of(b)[0] for b in alone]
    assert_close(batch.width, [float(b.width) for b in alone], F64)


# ------------------------------------------------------------------------------------------- law 7: saved and resumed


@pytest.mark.sweep(1)
@pytest.mark.parametrize("batched", [False, True])
def test_law_7_state_saved_mid_batch_continues_identically(batched):
    duel = Duel()
    made = (
        (lambda: tb.Bandit(duel.policy, torch.tensor(duel.arms), generator=[generator(1), generator(2)]))
        if batched
        else duel.fresh
    )
    bandit = made()

    def step(b: tb.Bandit, t: int) -> list:
        selection = b.ask()
        y = torch.sin(3 * selection.points).sum(dim=-1) + duel.noise[t]
        b.tell(selection, y)
        return selection.index.tolist()

    for t in range(25):
        step(bandit, t)
    opened = bandit.ask(more=4)
    assert bandit.ask().index.tolist() == opened.index.tolist()
    saved = copy.deepcopy(bandit.state_dict())
    twin, third = made().load_state_dict(saved), copy.deepcopy(bandit)
    assert differences(saved, twin.state_dict()) == []
    for t in range(60):
        picks = step(bandit, t)
        assert step(twin, t) == picks
        assert step(third, t) == picks
    assert differences(bandit.state_dict(), twin.state_dict()) == []
    assert any(level for level, *_ in cells_of(bandit)[0])
    back = made().load_state_dict(saved)
    assert back.ask().index.tolist() == opened.index.tolist()


# ------------------------------------------------------------------------------------------- law 8: trouble leaves no trace


def test_law_8_trouble_is_an_error_and_leaves_no_trace():
    duel = Duel()
    duel.play(duel.bandit, 0, 30)
    opened = duel.bandit.ask(more=3)
    before, points = copy.deepcopy(duel.bandit.state_dict()), torch.tensor(duel.points())
    marginals = duel.bandit.posterior(points)
    inside = torch.full((2, 2), 0.3, dtype=torch.float64)
    big, two = torch.full((2,), 1.7e308, dtype=torch.float64), torch.full((2,), 5000.0, dtype=torch.float64)
    for _ in range(2):
        with pytest.raises(tb.errors.NumericalError):  # after cells were split many times
            duel.bandit.observe(torch.tensor([24, 24]), two, big)
        with pytest.raises(tb.errors.NonFiniteError):
            duel.bandit.tell(opened, torch.full((len(opened),), torch.nan))
        with pytest.raises(tb.errors.UnsupportedError, match="by arm index"):
            duel.bandit.observe(inside, two, two)
        assert differences(before, duel.bandit.state_dict()) == []
    after = duel.bandit.posterior(points)
    assert torch.equal(after.mean, marginals.mean)
    assert torch.equal(after.variance, marginals.variance)
    twin = Duel()
    twin.play(twin.bandit, 0, 30)
    again = twin.bandit.ask(more=3)
    for bandit in (duel.bandit, twin.bandit):
        bandit.tell(again, duel.rewards(30, again.index))
    assert duel.play(duel.bandit, 34, 40) == twin.play(twin.bandit, 34, 40)
    assert differences(duel.bandit.state_dict(), twin.bandit.state_dict()) == []


def test_only_the_latest_snapshot_of_the_cells_is_a_way_back():
    duel = Duel()
    duel.play(duel.bandit, 0, 5)
    process = duel.bandit.posterior
    first, second = process.snapshot(), process.snapshot()
    with pytest.raises(tb.errors.StateError, match="latest"):
        first()
    before = copy.deepcopy(process.state_dict())
    process.condition_(torch.arange(9), torch.ones(9).double(), torch.ones(9).double())
    assert differences(before, process.state_dict())
    second()
    assert differences(before, process.state_dict()) == []


# ------------------------------------------------------------------------------------------- law 9: nothing grows with pulls


class Counted(TorchDispatchMode):
    """A mode that counts the operations of torch."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


def test_law_9_neither_state_nor_step_grows_with_pulls():
    duel = Duel("scattered 2-d")
    available = torch.zeros(60, dtype=torch.bool)
    available[[3, 20, 41]] = True
    sizes, steps = [], []
    for _ in range(20):
        duel.bandit.observe(
            torch.tensor([3, 20, 41]), torch.full((3,), 200.0).double(), torch.tensor([30.0, 50.0, 40.0]).double()
        )
        state = duel.bandit.state_dict()["state"]
        sizes.append(sum(v.numel() for v in state.values() if isinstance(v, torch.Tensor)))
        with Counted() as counted:
            duel.play(duel.bandit, 0, 1, available=available)
        steps.append(counted.count)
    assert max(sizes[5:]) <= max(sizes[:5])
    assert min(steps[-5:]) <= min(steps[:5]) + 2
    assert float(duel.bandit.pulls) == 20 * 601


# ------------------------------------------------------------------------------------------- the posterior anywhere


@pytest.mark.usefixtures("annotations_not_enforced")
def test_the_posterior_is_differentiable_and_stays_in_the_box():
    duel = Duel("scattered 2-d")
    duel.both(40)
    inside = torch.tensor(duel.points(8)[:8])
    inside = inside.clamp(0.1, 0.9).requires_grad_()
    torch.autograd.gradcheck(lambda x: duel.bandit.posterior(x).mean.sum(), inside)
    torch.autograd.gradcheck(lambda x: duel.bandit.posterior(x).variance.sum(), inside)
    outside = torch.tensor([[0.5, 0.5], [1.5, 0.5]], dtype=torch.float64)
    with pytest.raises(tb.errors.ArgumentError, match=r"outside the box.*1\.5"):
        duel.bandit.posterior(outside)
    for bad in (outside[0], outside[:, :1], outside.long(), [0.5, 0.5]):
        with pytest.raises(tb.errors.ShapeError):
            duel.bandit.posterior(bad)
    with pytest.raises(tb.errors.NonFiniteError):
        duel.bandit.posterior(torch.tensor([[0.5, math.nan]]))


def test_arms_in_single_precision():
    duel = Duel("scattered 2-d")
    arms = torch.tensor(duel.arms, dtype=torch.float32)
    low, high = arms.amin(0), arms.amax(0)
    policy = tb.pi_gp_ucb(duel.policy.kernel, nu=2.5, horizon=duel.oracle.horizon, bounds=torch.stack([low, high]), **COMMON)
    single, double = tb.Bandit(policy, arms), tb.Bandit(duel.policy, arms.double())
    for t in range(40):
        picked = single.ask()
        assert picked.index.tolist() == double.ask().index.tolist()
        for bandit in (single, double):
            bandit.tell(picked.index, duel.rewards(t, picked.index))
    got, expected = single.posterior(arms), double.posterior(arms.double())
    assert got.variance.dtype == torch.float32
    assert_close(got.variance, expected.variance, VARIANCE[torch.float32])


# ------------------------------------------------------------------------------------------- bad input

BAD = {
    "kernel": ({"kernel": 3}, "kernel must be"),
    "nu": ({"nu": 0.0}, "nu must be"),
    "nu infinite": ({"nu": math.inf}, "nu must be"),
    "horizon": ({"horizon": 0}, "horizon must be"),
    "horizon fraction": ({"horizon": 2.5}, "horizon must be"),
    "noise": ({"noise_std": -1.0}, "noise_std must be"),
    "norm": ({"norm_bound": math.nan}, "norm_bound must be"),
    "delta": ({"delta": 1.0}, "delta is"),
    "lambda": ({"regularization": 0.0}, "regularization"),
    "budget": ({"memory_budget": 0}, "memory_budget must be"),
    "bounds shape": ({"bounds": torch.zeros(3, 2)}, "2 x d"),
    "bounds ragged": ({"bounds": [[0, 1], [1]]}, "2 x d numbers"),
    "bounds order": ({"bounds": torch.tensor([[0.0, 2.0], [1.0, 1.0]])}, "at most the upper"),
    "bounds infinite": ({"bounds": torch.tensor([[0.0, 0.0], [1.0, math.inf]])}, "finite box"),
}


@pytest.mark.usefixtures("annotations_not_enforced")
@pytest.mark.parametrize("name", BAD)
def test_bad_arguments(name):
    given, message = BAD[name]
    options = {"kernel": kernel_pair("matern32")[0], "nu": 1.5, "horizon": 10} | given
    with pytest.raises(tb.errors.ArgumentError, match=message):
        tb.pi_gp_ucb(options.pop("kernel"), **options)


def test_arms_bounds_and_kernels_that_do_not_match():
    arms, kernel = torch.tensor(scattered(1, 20, 2)), kernel_pair("matern32")[0]
    made = {"nu": 1.5, "horizon": 10}
    with pytest.raises(tb.errors.ArgumentError, match=r"bounds that hold them all: \[\[0\.0, 0\.0\], \[1\.0, 0\.9"):
        tb.Bandit(tb.pi_gp_ucb(kernel, bounds=torch.tensor([[0.0, 0.0], [1.0, 0.5]]), **made), arms)
    with pytest.raises(tb.errors.ShapeError, match="2 x 2"):
        tb.Bandit(tb.pi_gp_ucb(kernel, bounds=torch.tensor([[0.0], [1.0]]), **made), arms)
    with pytest.raises(tb.errors.ShapeError, match="give one number, or one per batch row"):
        tb.Bandit(tb.pi_gp_ucb(kernel, norm_bound=torch.ones(3), **made), arms)
    ard = gpytorch.kernels.MaternKernel(1.5, ard_num_dims=3).double()
    with pytest.raises(tb.errors.ShapeError, match="can't be evaluated"):
        tb.Bandit(tb.pi_gp_ucb(ard, **made), arms)


def test_the_memory_budget_names_what_would_do():
    arms, kernel = torch.tensor(scattered(1, 40, 2)), kernel_pair("matern32")[0]
    with pytest.raises(tb.errors.ArgumentError, match="memory_budget=1000") as raised:
        tb.Bandit(tb.pi_gp_ucb(kernel, nu=1.5, horizon=10, memory_budget=1000), arms)
    enough = int(str(raised.value).split("at least ")[1].split(",")[0])
    bandit = tb.Bandit(tb.pi_gp_ucb(kernel, nu=1.5, horizon=10, memory_budget=enough), arms)
    assert 8 * bandit.posterior.cells.blocks.numel() == enough
    with pytest.raises(tb.errors.ArgumentError, match="memory_budget"):
        tb.Bandit(tb.pi_gp_ucb(kernel, nu=1.5, horizon=10, memory_budget=enough), arms, generator=[generator(0), generator(1)])


@pytest.mark.cuda
def test_the_same_picks_on_a_gpu():
    duel = Duel()
    there = tb.Bandit(duel.policy, torch.tensor(duel.arms).cuda(), generator=generator(0))
    moved = None
    for t in range(60):
        here, away = duel.bandit.ask(), there.ask()
        assert here.index.tolist() == away.index.tolist()
        y = duel.rewards(t, here.index)
        duel.bandit.tell(here, y)
        there.tell(away, y.cuda())
        if moved is not None:
            moved.tell(moved.ask(), y.cuda())
        if t == 20:
            moved = copy.deepcopy(duel.bandit).to("cuda")
    assert moved.ask().index.tolist() == duel.bandit.ask().index.tolist()
