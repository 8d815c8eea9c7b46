"""Several outcomes on one list of arms: every pick, front and set is compared with dense float64 loops over the arms."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import gpytorch
import numpy as np
import oracles
import oracles_outcomes as dense
import pytest
import torch
from botorch.acquisition.multi_objective import ExpectedHypervolumeImprovement, WeightedMCMultiOutputObjective
from botorch.acquisition.multi_objective.logei import qLogNoisyExpectedHypervolumeImprovement
from botorch.sampling.get_sampler import get_sampler
from botorch.utils.multi_objective.box_decompositions import FastNondominatedPartitioning
from emulated_device import emulated_device
from problems import OFF_SCALE, Problem, generator
from scipy import stats
from torch import Tensor
from torch.quasirandom import SobolEngine
from typer.testing import CliRunner

import torchbandits as tb
from torchbandits import errors, outcomes
from torchbandits.aims import classified, growing_hypervolume, growing_r2, hypervolume, non_dominated
from torchbandits.aims.dominance import simplex
from torchbandits.aims.improvement import HypervolumeGrowth
from torchbandits.botorch import optimize_arms
from torchbandits.cli import app
from torchbandits.experiments.page import best_so_far, write_fronts, write_page
from torchbandits.experiments.records import Record
from torchbandits.experiments.trade_offs import figures_of_run
from torchbandits.experiments.watching import outcomes_of, state_of
from torchbandits.journal import Reading
from torchbandits.policies import joint as joint_policy
from torchbandits.streams import copies_of
from torchbandits.upstream import log_improvement

pytestmark = OFF_SCALE

NAMES = ("yield", "cost")
PROBLEM = Problem(seed=3, a=40, duplicates=4)
ARMS, ENTRIES = PROBLEM.arms, dense.entries(PROBLEM.arms)
SHAPES = {"yield": (0.4, 1.0), "cost": (0.6, 9.0)}  # lengthscale and variance
NOISE = {"yield": 0.1, "cost": 0.4}
KERNELS = [oracles.rbf(*SHAPES[name]) for name in NAMES]
UNIT = np.array([np.sqrt(SHAPES[name][1]) for name in NAMES])
TRUTH = np.stack([PROBLEM.f, 3 * np.cos(4 * ARMS[:, 0]) + 2 * ARMS[:, 1]], axis=-1)
WIDTHS = np.array([1.5, 2.0])


def kernel(lengthscale: float, variance: float) -> gpytorch.kernels.Kernel:
    scaled = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel()).double()
    scaled.base_kernel.lengthscale = torch.tensor(lengthscale, dtype=torch.float64)
    scaled.outputscale = torch.tensor(variance, dtype=torch.float64)
    return scaled


def models(make: Callable[..., Any] = tb.gp_ucb, **options: Any) -> dict[str, Any]:
    """A policy per outcome, each with a different kernel, noise and width."""
    widths = dict(zip(NAMES, WIDTHS.tolist(), strict=True))
    return {
        name: make(kernel(*SHAPES[name]), noise_std=NOISE[name], **{"width": tb.widths.Constant(widths[name])} | options)
        for name in NAMES
    }


LIMITS = {"maximize": "yield", "at_most": {"cost": 2.0}, "at_least": {"yield": -2.0}}
DENSE_LIMITS = [(0, 1.0, -2.0), (1, -1.0, 2.0)]
START = [int(np.argmin(TRUTH[:, 1]))]

POLICIES: dict[str, Callable[[], Any]] = {
    "constrained": lambda: outcomes.constrained(models(), **LIMITS),
    "optimistic": lambda: outcomes.constrained(models(), optimism=1.0, **LIMITS),
    "improvement": lambda: outcomes.constrained(models(acquisition="ei"), certainty=0.8, **LIMITS),
    "drawn": lambda: outcomes.constrained(models(tb.thompson_sampling), **LIMITS),
    "chebyshev": lambda: outcomes.pareto(models(), minimize=["cost"], scalarization="chebyshev"),
    "growth": lambda: outcomes.pareto(models(), minimize=["cost"]),
    "growth_above": lambda: outcomes.pareto(
        models(acquisition="ei"), minimize=["cost"], reference={"yield": -1.0, "cost": 6.0}
    ),
    "linear": lambda: outcomes.pareto(models(), minimize=["cost"], scalarization="linear"),
    "hypervolume": lambda: outcomes.pareto(
        models(), minimize=["cost"], scalarization="hypervolume", reference={"yield": -1.0, "cost": 6.0}
    ),
    "drawn_pareto": lambda: outcomes.pareto(models(tb.thompson_sampling), minimize=["cost"]),
    "bkb": lambda: outcomes.pareto(models(tb.bkb), minimize=["cost"]),
    "epal": lambda: outcomes.epal(models(), minimize=["cost"], epsilon={"yield": 0.1, "cost": 0.3}),
    "safe": lambda: outcomes.safe(models(), start=START, maximize="yield", at_most={"cost": 2.0}, at_least={"yield": -2.0}),
    "staged": lambda: outcomes.safe(models(), start=START, maximize="yield", at_most={"cost": 2.0}, expand=6),
    "first": lambda: outcomes.pareto(models(initial=tb.starts.uniform(5))),
}


# One case of every kind in the default tests.
CASES = [
    name if name in ("drawn", "chebyshev", "growth", "safe") else pytest.param(name, marks=pytest.mark.exhaustive)
    for name in POLICIES
]


class Play:
    """Asks and tells, and records the told rewards for the oracle. Every third reward of the second outcome is not measured."""

    def __init__(self, bandit: tb.OutcomeBandit, seed: int = 0) -> None:
        self.bandit, self.rng = bandit, np.random.default_rng(seed)
        self.told: list[list[tuple[int, float, float]]] = [[], []]
        self.pulls = 0
        first = oracles.first_copies(ARMS)
        self.entry = [int(first[arm]) for arm in range(len(ARMS))]

    def rewards(self, index: list[int]) -> Tensor:
        values = TRUTH[index] + self.rng.normal(size=(len(index), 2)) * [NOISE[name] for name in NAMES]
        for place in range(len(index)):
            self.pulls += 1
            if self.pulls % 3 == 0:
                values[place, 1] = np.nan
        return torch.tensor(values)

    def tell(self, selection: Any) -> None:
        index = [int(arm) for arm in selection.index]
        values = self.rewards(index)
        self.bandit.tell(selection, values)
        for arm, row in zip(index, values.tolist(), strict=True):
            for j in range(2):
                if not np.isnan(row[j]):
                    self.told[j].append((self.entry[arm], row[j], NOISE[NAMES[j]] ** 2))

    def seen(self) -> list[int]:
        """Arms for which an outcome was told."""
        return sorted({arm for rows in self.told for arm, _, _ in rows})

    def settled(self, pending: list[int]) -> set[int]:
        """Arms for which an outcome was told, and pending picks."""
        return {*self.seen(), *pending}

    def beliefs(self, pending: list[int] | None = None) -> dense.Beliefs:
        noise = [NOISE[name] ** 2 for name in NAMES]
        return dense.Beliefs.of(KERNELS, ARMS, self.told, pending or [], noise)


def assert_picked(score: np.ndarray, arm: int) -> None:
    """Assert that the arm has the highest score, up to rounding."""
    best = score.max()
    assert score[arm] >= best - 1e-7 * max(1.0, abs(best)), f"picked {arm} of {score[arm]}, best {score.argmax()} of {best}"


# ------------------------------------------------------------------ posteriors


@pytest.mark.parametrize("name", ["constrained", "bkb"])
def test_each_outcome_has_its_own_posterior(name):
    bandit = tb.OutcomeBandit(POLICIES[name](), PROBLEM.tensor, generator=generator(1))
    play = Play(bandit)
    for _ in range(12):
        play.tell(bandit.ask())
    # An outcome that is told later with a known noise, and an outcome of which two rewards are told together.
    bandit.tell(torch.tensor([7, 8]), {"cost": torch.tensor([1.0, 2.0])}, noise_var=torch.full((2, 2), 0.5))
    play.told[1] += [(play.entry[7], 1.0, 0.5), (play.entry[8], 2.0, 0.5)]
    if name == "bkb":  # every distinct arm is in the dictionary where it is drawn with probability 1
        assert bandit.pulls.tolist() == [12, 10]
        return
    beliefs = play.beliefs()
    found = bandit.posterior(PROBLEM.tensor)
    np.testing.assert_allclose(found.mean.numpy(), beliefs.mean, rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(found.variance.sqrt().numpy(), beliefs.known, rtol=1e-5, atol=1e-6)
    assert bandit.pulls.tolist() == [12, 10]
    assert bandit.outcomes == NAMES
    assert bandit.counts.shape == (2, 40)
    assert bandit.width.tolist() == WIDTHS.tolist()


def test_a_selection_that_is_told_again_warns_and_an_outcome_that_comes_later_does_not():
    bandit = tb.OutcomeBandit(POLICIES["constrained"](), PROBLEM.tensor)
    selection = bandit.ask(exactly=3)
    first, later = (torch.tensor(TRUTH[selection.index, part]) for part in (0, 1))
    bandit.tell(selection, {NAMES[0]: first})
    bandit.tell(selection, {NAMES[1]: later})
    both = torch.stack([first, later], dim=-1)
    with pytest.warns(errors.DiagnosticWarning, match="3 of the 3 picks of this selection"):
        bandit.tell(selection, both)
    bandit.tell(selection.index, both)


def test_history_is_learned_for_every_outcome():
    play = Play(tb.OutcomeBandit(POLICIES["constrained"](), PROBLEM.tensor))
    n, sums = torch.tensor([2.0, 1.0, 3.0]), torch.tensor([[1.0, 2.0], [0.5, -1.0], [0.3, 4.0]])
    play.bandit.observe(torch.tensor([2, 5, 9]), n, sums)
    for arm, count, row in zip([2, 5, 9], n.tolist(), sums.tolist(), strict=True):
        for j in range(2):
            play.told[j] += [(play.entry[arm], row[j] / count, NOISE[NAMES[j]] ** 2)] * int(count)
    np.testing.assert_allclose(play.bandit.posterior(PROBLEM.tensor).mean.numpy(), play.beliefs().mean, rtol=1e-6, atol=1e-7)
    other = tb.OutcomeBandit(POLICIES["constrained"](), PROBLEM.tensor)
    other.observe(PROBLEM.tensor[[2, 5, 9]], n.unsqueeze(-1).expand(3, 2), sums)
    torch.testing.assert_close(other.posterior(PROBLEM.tensor).mean, play.bandit.posterior(PROBLEM.tensor).mean)


def test_history_and_noise_variances_by_the_names_of_outcomes():
    index, n = torch.tensor([2, 5, 9]), torch.tensor([[2.0, 1.0], [1.0, 4.0], [3.0, 1.0]])
    sums, noise = torch.tensor([[1.0, 2.0], [0.5, -1.0], [0.3, 4.0]]), torch.tensor([[0.1, 0.2], [0.3, 0.1], [0.2, 0.4]])

    def named(columns: Tensor) -> dict[str, Tensor]:
        return dict(reversed(list(zip(NAMES, columns.unbind(dim=-1), strict=True))))

    plain, by_name = (tb.OutcomeBandit(POLICIES["constrained"](), PROBLEM.tensor) for _ in range(2))
    plain.observe(index, n, sums, noise_var=noise)
    by_name.observe(index, named(n), named(sums), noise_var=named(noise))
    plain.tell(index, sums, noise_var=noise)
    by_name.tell(index, named(sums), noise_var=named(noise))
    found, expected = (bandit.posterior(PROBLEM.tensor) for bandit in (by_name, plain))
    assert torch.equal(found.mean, expected.mean)
    assert torch.equal(found.variance, expected.variance)
    with pytest.raises(errors.ArgumentError, match=f"sums lacks '{NAMES[1]}', and must have every outcome: tell"):
        plain.observe(index, torch.ones(3), {NAMES[0]: sums[:, 0]})
    with pytest.raises(errors.ShapeError, match=r"noise_var must have \(3,\) numbers for each outcome, got \(2,\), \(2,\)"):
        plain.tell(index, sums, noise_var=named(noise[:2]))


def test_a_fit_is_that_of_each_outcome_alone():
    joint = tb.OutcomeBandit(outcomes.pareto(models()), PROBLEM.tensor)
    alone = [tb.Bandit(model, PROBLEM.tensor) for model in models().values()]
    index = torch.arange(0, 40, 2)
    for bandit, part in zip(alone, range(2), strict=True):
        bandit.tell(index, torch.tensor(TRUTH[::2, part]))
        bandit.fit_kernel_(misfit=False)
    joint.tell(index, torch.tensor(TRUTH[::2]))
    report = joint.fit_kernel_(misfit=False)
    assert report.accepted.shape == (2,)
    for j, bandit in enumerate(alone):
        # Each outcome has a different λ. The engine has the λ of the first outcome; that of the other is a weight.
        torch.testing.assert_close(
            joint.posterior(PROBLEM.tensor).mean[j], bandit.posterior(PROBLEM.tensor).mean, rtol=0.02, atol=0.02
        )


# ------------------------------------------------------------------ picks


def hopes(beliefs: dense.Beliefs, optimism: float = 1.0) -> Callable[[int, int, float], float]:
    return lambda arm, j, sign: float(sign * beliefs.mean[j, arm] + optimism * WIDTHS[j] * beliefs.std[j, arm])


def scalarized(name: str, values: np.ndarray, means: np.ndarray, uniform: np.ndarray, seen: list[int]) -> np.ndarray:
    """Scores of arms from optimistic values `2 x A` and posterior means `2 x A` (both to be maximised), two uniform numbers,
    and the arms whose front determines the scale."""
    if name == "hypervolume":
        weights = np.abs(stats.norm.ppf((1 + uniform) / 2))
        weights /= np.linalg.norm(weights)
    else:
        weights = -np.log(uniform)
        weights /= weights.sum()
    low, unit = dense.scale(means, seen, UNIT)
    reference = np.array([-1.0, -6.0]) if name == "hypervolume" else low
    score = np.zeros(values.shape[1])
    for arm in range(values.shape[1]):
        parts = []
        for j in range(2):
            u = (values[j, arm] - reference[j]) / unit[j]
            parts.append(max(u, 0.0) / weights[j] if name == "hypervolume" else weights[j] * u)
        score[arm] = sum(parts) if name == "linear" else min(parts) + (0.05 * sum(parts) if name == "chebyshev" else 0.0)
    return score


def oracle_score(
    name: str, play: Play, pending: list[int], draws: Callable[[], np.ndarray], *, again: bool = False
) -> np.ndarray:
    """The scores of all arms for the next pick, given pending picks. `draws` returns the two uniform numbers of a pick, and
    `again` is whether settled arms are also candidates for the improvement."""
    beliefs = play.beliefs(pending)

    def settle(score: np.ndarray) -> np.ndarray:
        return score if again else dense.unsettled(score, play.settled(pending))

    if name == "constrained":
        return dense.constrained_score(hopes(beliefs), 0, DENSE_LIMITS, UNIT, ENTRIES, hopes(beliefs, 0.5))
    if name == "optimistic":
        return dense.constrained_score(hopes(beliefs), 0, DENSE_LIMITS, UNIT, ENTRIES)
    if name == "improvement":
        return settle(dense.constrained_improvement(beliefs, 0, DENSE_LIMITS, 0.8, ENTRIES))
    signs = np.array([[1.0], [-1.0]])
    upper = signs * beliefs.mean + WIDTHS[:, None] * beliefs.std
    if name in ("growth", "growth_above"):
        means = signs * beliefs.mean
        front = means[:, sorted({*play.seen(), *pending})].T
        reference = np.array([-1.0, -6.0]) if name == "growth_above" else dense.scale(means, play.seen(), UNIT)[0]
        if name == "growth":
            # The reference is a tenth of the range over all told arms below the worst values of their front.
            unit = dense.scale(means, play.seen(), UNIT)[1]
            reference = reference + 0.1 * unit - 0.1 * np.maximum(unit, np.ptp(means[:, play.seen() or range(40)], axis=1))
        return settle(np.where(ENTRIES, np.log(dense.expected_growth(means, beliefs.std, front, reference)), -np.inf))
    if name in ("chebyshev", "linear", "hypervolume"):
        return np.where(ENTRIES, scalarized(name, upper, signs * beliefs.mean, draws(), play.seen()), -np.inf)
    spread = WIDTHS[:, None] * beliefs.known
    if name == "epal":
        epsilon = np.array([0.1, 0.3])
        _, outside = dense.pareto_sets((signs * beliefs.mean - spread).T, (signs * beliefs.mean + spread).T, epsilon, ENTRIES)
        diagonal = np.sqrt(((WIDTHS / epsilon)[:, None] ** 2 * beliefs.std**2).sum(axis=0))
        return np.where(outside, -np.inf, diagonal)
    limits = DENSE_LIMITS if name == "safe" else DENSE_LIMITS[1:]
    safe = dense.safe_set(beliefs, WIDTHS, limits, START)
    reach = (WIDTHS[:, None] * beliefs.std / UNIT[:, None]).max(axis=0)
    noise = [NOISE[n] ** 2 for n in NAMES]
    expanders = [a for a in range(40) if safe[a] and ENTRIES[a] and dense.expands(beliefs, WIDTHS, limits, noise, safe, a)]
    score = np.full(40, -np.inf)
    if name == "safe":
        best = (beliefs.mean[0] - spread[0])[safe].max()
        for arm in range(40):
            maximiser = beliefs.mean[0, arm] + spread[0, arm] >= best
            if safe[arm] and ENTRIES[arm] and (maximiser or arm in expanders):
                score[arm] = reach[arm]
        return score
    early = max(len(rows) for rows in play.told) + len(pending) < 6
    for arm in range(40):
        if early and expanders:
            score[arm] = reach[arm] if arm in expanders else -np.inf
        elif safe[arm] and ENTRIES[arm]:
            score[arm] = upper[0, arm]
    return score


ORACLES = ["constrained", "optimistic", "improvement", "chebyshev", "growth", "growth_above", "linear", "hypervolume", "epal"]
ORACLES += ["safe", "staged"]


@pytest.mark.sweep(1)
@pytest.mark.parametrize("name", ORACLES)
def test_picks_are_those_of_the_dense_oracle(name):
    twin = generator(5)
    bandit = tb.OutcomeBandit(POLICIES[name](), PROBLEM.tensor, generator=twin)
    play = Play(bandit)
    for step in range(14):
        own = torch.Generator()
        own.set_state(bandit.generators[0].get_state())
        selection = bandit.ask(exactly=1 if step % 4 else 3)
        pending: list[int] = []
        for arm in selection.index.tolist():
            score = oracle_score(name, play, pending, lambda own=own: torch.rand(2, generator=own, dtype=torch.float64).numpy())
            assert_picked(score, arm)
            pending.append(arm)
        play.tell(selection)
    assert len({arm for arm, _, _ in play.told[0]}) > 3


PRICES = np.linspace(1.0, 4.0, 40)[oracles.first_copies(ARMS)]
PRICED = ("constrained", "improvement", "chebyshev", "growth", "linear", "hypervolume", "epal")


def gain_per_cost(name: str, play: Play, pending: list[int], draws: Callable[[], np.ndarray], power: float) -> np.ndarray:
    """The scores per cost of all arms: gains over the best value by the means, by loops over the outcomes of the aim."""
    beliefs, uniform = play.beliefs(pending), draws()
    if name in ("improvement", "growth"):
        return oracle_score(name, play, pending, lambda: uniform) - power * np.log(PRICES)
    if name == "epal":
        return oracle_score(name, play, pending, lambda: uniform) / PRICES**power
    signs = np.array([[1.0], [-1.0]])
    if name == "constrained":
        keeps, sure = hopes(beliefs, 0.5), dense.log_feasible(beliefs.mean, beliefs.known, DENSE_LIMITS) >= np.log(0.95)
        level = beliefs.mean[0][sure].max() if sure.any() else beliefs.mean[0].min()
        gain = beliefs.mean[0] + WIDTHS[0] * beliefs.std[0] - level
        lacking = np.zeros(40)
        for arm in range(40):
            lacking[arm] = sum(max(0.0, sign * h - keeps(arm, j, sign)) / UNIT[j] for j, sign, h in DENSE_LIMITS)
        feasible = (lacking == 0) & ENTRIES
        if not feasible.any():
            return np.where(ENTRIES, -lacking * PRICES**power, -np.inf)
        allowed = feasible
    else:
        upper = signs * beliefs.mean + WIDTHS[:, None] * beliefs.std
        gain = scalarized(name, upper, signs * beliefs.mean, uniform, play.seen())
        gain = gain - scalarized(name, signs * beliefs.mean, signs * beliefs.mean, uniform, play.seen()).max()
        allowed = ENTRIES
    return np.where(allowed, np.where(gain >= 0, gain / PRICES**power, gain * PRICES**power), -np.inf)


@pytest.mark.sweep(1)
@pytest.mark.parametrize(
    "name", [one if one in ("constrained", "growth") else pytest.param(one, marks=pytest.mark.exhaustive) for one in PRICED]
)
def test_picks_per_cost_are_those_of_the_dense_oracle(name: str, tmp_path: Path):
    policy = tb.per_cost(POLICIES[name](), exponent=0.5)
    options = {"costs": torch.tensor(PRICES), "generator": generator(5)}
    play = Play(tb.OutcomeBandit(policy, PROBLEM.tensor, journal=tmp_path / "run", **options))
    for step in range(8):
        own = torch.Generator()
        own.set_state(play.bandit.generators[0].get_state())
        selection, pending = play.bandit.ask(exactly=1 if step % 3 else 2), []
        for arm in selection.index.tolist():
            score = gain_per_cost(
                name, play, pending, lambda own=own: torch.rand(2, generator=own, dtype=torch.float64).numpy(), 0.5
            )
            assert_picked(score, arm)
            pending.append(arm)
        play.tell(selection)
    # The journal only resumes with the same costs, and batch rows are separate runs.
    picked = play.bandit.ask().index
    play.bandit.journal.close()
    options["generator"] = generator(5)
    again = tb.OutcomeBandit(policy, PROBLEM.tensor, journal=tmp_path / "run", **options)
    assert again.ask().index.tolist() == picked.tolist()
    again.journal.close()
    with pytest.raises(errors.StateError, match="costs"):
        tb.OutcomeBandit(policy, PROBLEM.tensor, journal=tmp_path / "run", costs=torch.tensor(PRICES) * 2)
    prices = torch.stack([torch.tensor(PRICES), torch.tensor(5 - PRICES)])
    several = tb.OutcomeBandit(policy, PROBLEM.tensor, generator=[generator(1), generator(2)], costs=prices)
    alone = [tb.OutcomeBandit(policy, PROBLEM.tensor, generator=generator(1 + j), costs=prices[j]) for j in range(2)]
    for _ in range(4):
        selection = several.ask()
        several.tell(selection, torch.tensor(TRUTH)[selection.index])
        for j, bandit in enumerate(alone):
            assert bandit.ask().index.tolist() == selection.index[j].tolist()
            bandit.tell(bandit.ask(), torch.tensor(TRUTH)[bandit.ask().index])


def test_a_run_of_a_table_with_costs_is_per_cost():
    arms, truth = PROBLEM.tensor.expand(2, -1, -1), torch.tensor(TRUTH.T.copy())
    cheap = torch.where(torch.arange(40) < 20, 1.0, 50.0)[oracles.first_copies(ARMS)]
    table = tb.environments.Table(arms, truth, 0.1, costs=cheap)
    history = tb.run(tb.per_cost(POLICIES["chebyshev"]()), table, 10)
    assert (history.pulls["arm"] < 20).mean() > 0.8
    assert np.isfinite(history.pulls["cost"]).all()


@pytest.mark.parametrize("name", ["drawn", "drawn_pareto"])
def test_draws_are_those_of_every_posterior(name):
    bandit = tb.OutcomeBandit(POLICIES[name](), PROBLEM.tensor, generator=generator(6))
    play = Play(bandit)
    for _ in range(8):
        state, twins = bandit.loop.state, copies_of(bandit.loop.state.generators)
        drawn = torch.cat(list(state.draws.draw([2, 2], bandit.width, twins)), dim=-2).numpy()  # k x q x A
        mean = play.beliefs().mean * [[1.0], [-1.0]]
        selection = bandit.ask(exactly=2)
        for place, arm in enumerate(selection.index.tolist()):
            values = drawn[:, place]
            if name == "drawn":
                score = dense.constrained_score(lambda a, j, s, v=values: s * v[j, a], 0, DENSE_LIMITS, UNIT, ENTRIES)
            else:
                uniform = torch.rand(2, generator=twins[0], dtype=torch.float64).numpy()
                hoped = scalarized("chebyshev", values * [[1.0], [-1.0]], mean, uniform, play.seen())
                score = np.where(ENTRIES, hoped, -np.inf)
            assert_picked(score, arm)
        play.tell(selection)


@pytest.mark.sweep(1)
@pytest.mark.parametrize("name", ["drawn", "hypervolume", "growth", "epal", "safe", "staged"])
def test_a_device_makes_the_same_picks(name):
    here = tb.OutcomeBandit(POLICIES[name](), PROBLEM.tensor, generator=generator(3))
    index = []
    for _ in range(4):
        index.append(here.ask(exactly=2).index)
        here.tell(here.ask(), torch.tensor(TRUTH)[index[-1]])
    with emulated_device():
        there = tb.OutcomeBandit(POLICIES[name](), PROBLEM.tensor.cuda(), generator=generator(3))
        for own in index:
            selection = there.ask(exactly=2)
            assert torch.equal(selection.index.cpu(), own)
            there.tell(selection, torch.tensor(TRUTH)[own].cuda())
        if name in ("hypervolume", "growth", "epal"):
            assert torch.equal(there.front(minimize=["cost"]).index.cpu(), here.front(minimize=["cost"]).index)
            there.pareto_set({"yield": 0.1, "cost": 0.1}, minimize=[])
        else:
            assert torch.equal(there.best(3).index.cpu(), here.best(3).index)


def test_limits_and_arms_on_offer():
    bandit = tb.OutcomeBandit(POLICIES["chebyshev"](), PROBLEM.tensor)
    offered = torch.zeros(40, dtype=torch.bool)
    some = np.flatnonzero(ENTRIES)[[3, 11, 17]].tolist()
    offered[some] = True
    assert set(bandit.ask(exactly=4, available=offered).index.tolist()) <= set(some)
    assert len(bandit.ask(more=2)) == 6
    bandit.forget(bandit.ask()[:5])
    assert len(bandit.ask()) == 1
    bandit.tell(bandit.ask(), {"yield": [1.0]})
    assert len(bandit.ask(limit=0)) == 0
    picks = bandit.ask(exactly=5, within=tb.constraints.Distinct()).index.tolist()
    assert len(set(picks)) == 5
    bandit.tell(bandit.ask()[:2], torch.full((2, 2), torch.nan), failures="forget")
    assert len(bandit.ask()) == 3


# ------------------------------------------------------------------ what is recommended


@pytest.mark.parametrize("name", ["constrained", "safe"])
def test_the_best_arm_is_feasible(name):
    bandit = tb.OutcomeBandit(POLICIES[name](), PROBLEM.tensor, generator=generator(2))
    play = Play(bandit)
    for _ in range(20):
        play.tell(bandit.ask())
    beliefs, pulled = play.beliefs(), {arm for arm, _, _ in play.told[0]}
    if name == "safe":
        sure = dense.safe_set(beliefs, WIDTHS, DENSE_LIMITS, START)
    else:
        sure = dense.log_feasible(beliefs.mean, beliefs.known, DENSE_LIMITS) >= np.log(0.95)
    known = [arm for arm in pulled if sure[arm]]
    order = sorted(known, key=lambda arm: -beliefs.mean[0, arm])
    assert len(order) > 2
    found = bandit.best(len(pulled) + 2)
    assert found.index[: len(order)].tolist() == order
    assert set(found.index[: len(pulled)].tolist()) == pulled
    assert found.index[len(pulled) :].tolist() == [-1, -1]
    np.testing.assert_allclose(found.mean[0].numpy(), beliefs.mean[:, order[0]], rtol=1e-6, atol=1e-8)
    assert torch.equal(found.points[0], PROBLEM.tensor[order[0]])
    assert int(bandit.best_arm()) == order[0]
    if name == "constrained":
        rest = found.index[len(order) : len(pulled)].tolist()
        chance = dense.log_feasible(beliefs.mean, beliefs.known, DENSE_LIMITS)[rest]
        assert (np.diff(chance) <= 1e-9).all()


@pytest.mark.parametrize("more", [2, 3])
def test_first_picks_have_no_padding_where_one_outcome_was_measured_less_often(more: int):
    arms = torch.rand(9, 2, dtype=torch.float64, generator=generator(0))
    bandit = tb.OutcomeBandit(outcomes.pareto({"a": tb.auto(), "b": tb.auto()}), arms)
    rewards = {"a": torch.arange(5.0), "b": torch.tensor([1.0, 3.0, 2.0, torch.nan, torch.nan])}
    bandit.tell(torch.arange(5), rewards)
    # Five of six first picks were made of one outcome, and three of the other.
    assert bandit.ask(more=more).mask.tolist() == [True]
    assert bandit.ask(more=more).mask.tolist() == [True] * (1 + more)


def test_the_front_is_the_dense_one():
    bandit = tb.OutcomeBandit(POLICIES["chebyshev"](), PROBLEM.tensor, generator=generator(3))
    play = Play(bandit)
    for _ in range(10):
        play.tell(bandit.ask())
    beliefs, signs = play.beliefs(), np.array([1.0, -1.0])
    values = (beliefs.mean * signs[:, None]).T
    found = bandit.front(draws=4_000, reference={"yield": -1.5, "cost": 5.0})
    expected = dense.non_dominated(values, ENTRIES)
    assert found.index.tolist() == expected
    np.testing.assert_allclose(found.mean.numpy(), beliefs.mean.T[expected], rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(found.variance.numpy(), (beliefs.known**2).T[expected], rtol=1e-4, atol=1e-8)
    chance = dense.membership(beliefs.mean, beliefs.covariance, signs, ENTRIES, 3_000, 0)
    np.testing.assert_allclose(found.probability.numpy(), chance[expected], atol=0.04)
    np.testing.assert_allclose(float(found.hypervolume), dense.area(values[expected], np.array([-1.5, -5.0])), rtol=1e-6)
    pulled = np.zeros(40, dtype=bool)
    pulled[[arm for arm, _, _ in play.told[0]]] = True
    assert bandit.front(pulled=True).index.tolist() == dense.non_dominated(values, ENTRIES & pulled)
    assert bool(bandit.front().hypervolume.isnan())


@pytest.mark.parametrize("cost", [0.1, 7.7])
@pytest.mark.parametrize("estimated", [True, False])
@pytest.mark.filterwarnings("ignore:outcome 'cost'. the noise")
def test_a_constant_outcome_puts_no_arm_on_the_front(cost: float, estimated: bool):
    each = {name: tb.auto() for name in NAMES} if estimated else models(prior_mean="estimate")
    bandit = tb.OutcomeBandit(outcomes.pareto(each, minimize=["cost"]), torch.from_numpy(ARMS))
    index = torch.tensor([0, 1, 2, 3, 4, 5, 6, 7, 7, 7, 3])
    told = torch.from_numpy(TRUTH)[index].clone()
    told[:, 1] = cost
    bandit.tell(index, told)
    # The means of the cost are equal up to rounding.
    assert len(bandit.front(minimize=["cost"]).index) == 1
    assert len(bandit.front(minimize=["cost"], pulled=True).index) == 1


def test_there_is_no_front_before_a_reward_also_after_failures():
    bandit = tb.OutcomeBandit(POLICIES["chebyshev"](), PROBLEM.tensor, generator=generator(3))
    for _ in range(2):
        with pytest.raises(errors.StateError, match="no reward was told yet, so that there is no front"):
            bandit.front()
        bandit.tell(bandit.ask(), {name: [float("nan")] for name in bandit.outcomes}, failures="forget")
    bandit.tell(bandit.ask(), {bandit.outcomes[0]: [1.0]})
    assert len(bandit.front().index) > 0


def test_the_pareto_set_is_the_dense_one_and_right_where_the_bounds_hold():
    epsilon, signs = np.array([0.2, 0.8]), np.array([1.0, -1.0])
    made = models(width=tb.widths.Constant(4.0))
    policy = outcomes.epal(made, minimize=["cost"], epsilon=dict(zip(NAMES, epsilon.tolist(), strict=True)))
    bandit = tb.OutcomeBandit(policy, PROBLEM.tensor, generator=generator(4))
    play = Play(bandit)
    truth, counted = TRUTH * signs, np.flatnonzero(ENTRIES)
    decided = 0
    for _ in range(40):
        play.tell(bandit.ask())
        beliefs = play.beliefs()
        mid, spread = (beliefs.mean * signs[:, None]).T, 4.0 * beliefs.known.T
        inside, outside = dense.pareto_sets(mid - spread, mid + spread, epsilon, ENTRIES)
        found = bandit.pareto_set()
        assert found.inside.tolist() == inside.tolist()
        assert found.outside.tolist() == outside.tolist()
        assert bool((found.undecided == ~(found.inside | found.outside)).all())
        if not ((mid - spread <= truth) & (truth <= mid + spread))[ENTRIES].all():
            continue
        decided += int(inside.sum() + outside[ENTRIES].sum())
        kept = [i for i in counted if not outside[i]]
        for i in counted:
            if outside[i]:
                assert any((truth[j] + epsilon >= truth[i]).all() for j in kept)
            if inside[i]:
                assert not any((truth[j] > truth[i] + epsilon).all() for j in kept)
                assert not any((truth[j] > truth[i] + 2 * epsilon).all() for j in counted)
    assert decided > 100


def test_a_smaller_front_of_a_batch_row_is_not_compared_with_arms_that_break_the_limits():
    models = {name: tb.gp_ucb(kernel(0.3, 1.0), noise_std=0.1) for name in ("a", "b", "risk")}
    policy = tb.outcomes.pareto(models, objectives=["a", "b"], at_most={"risk": 0.5})
    arms = torch.linspace(0.0, 3.0, 6, dtype=torch.float64).unsqueeze(-1)
    bandit = tb.OutcomeBandit(policy, arms, generator=[generator(0), generator(1)])
    # Arm 0 is better than all others, and breaks the limit. The front of the first row has two arms, that of the second one.
    rows = torch.tensor(
        [[[3.0, 3.0, 3.0], [1.0, 0.0, 0.0], [0.0, 1.0, 0.0]], [[3.0, 3.0, 3.0], [1.0, 1.0, 0.0], [0.0, 0.0, 0.0]]]
    )
    for _ in range(5):
        bandit.tell(torch.tensor([[0, 2, 4]] * 2), rows)
    front = bandit.front(pulled=True)
    assert front.index.tolist() == [[2, 4], [2, -1]]
    assert bool((front.probability[0] > 0.2).all())
    alone = tb.OutcomeBandit(policy, arms)
    for _ in range(5):
        alone.tell(torch.tensor([0, 2, 4]), rows[1])
    assert float(front.probability[1, 0]) == pytest.approx(float(alone.front(pulled=True).probability[0]), abs=0.1)
    assert float(front.probability[1, 1]) == 0.0


@pytest.mark.exhaustive
def test_fronts_of_random_tables():
    g = generator(0)
    for k in (1, 2, 3, 4):
        values = torch.randint(0, 6, (60, k), generator=g).double()
        assert non_dominated(values).nonzero().squeeze(-1).tolist() == dense.non_dominated(values.numpy(), np.ones(60, bool))
    lower = torch.randint(0, 8, (3, 50, 2), generator=g).double()
    upper = lower + torch.randint(0, 4, (3, 50, 2), generator=g)
    counted = torch.rand(3, 50, generator=g) < 0.8
    inside, outside = classified(lower, upper, torch.tensor([0.5, 1.0]), counted)
    for row in range(3):
        expected = dense.pareto_sets(lower[row].numpy(), upper[row].numpy(), np.array([0.5, 1.0]), counted[row].numpy())
        assert inside[row].tolist() == expected[0].tolist()
        assert outside[row].tolist() == expected[1].tolist()
    # With equal boxes, as before any reward, no arm is decided, and there is no loop over the arms.
    same = torch.zeros(100_000, 2)
    assert not any(bool(part.any()) for part in classified(same - 1, same + 1, torch.tensor([0.1, 0.1])))
    values = torch.rand(30, 2, generator=g, dtype=torch.float64)
    assert hypervolume(values, torch.tensor([0.2, 0.3])) == pytest.approx(dense.area(values.numpy(), np.array([0.2, 0.3])))


# ------------------------------------------------------------------ rows, resuming, other arms


@pytest.mark.sweep(1)
@pytest.mark.parametrize("name", CASES)
def test_batch_rows_are_runs_of_their_own(name):
    seeds = (11, 12, 13)
    together = tb.OutcomeBandit(POLICIES[name](), PROBLEM.tensor, generator=[generator(seed) for seed in seeds])
    alone = [tb.OutcomeBandit(POLICIES[name](), PROBLEM.tensor, generator=generator(seed)) for seed in seeds]
    noise = torch.randn(8, 3, 2, 2, generator=generator(0), dtype=torch.float64) * 0.1
    noise[2, 1, :, 1] = torch.nan
    for step in range(8):
        limit = torch.tensor([2, step % 3, 1]) if step else None
        selection = together.ask(limit)
        width = selection.index.shape[-1]
        rewards = torch.tensor(TRUTH)[selection.index.clamp_min(0)] + noise[step, :, :width]
        together.tell(selection, rewards)
        for row, bandit in enumerate(alone):
            own = bandit.ask(None if limit is None else int(limit[row]))
            mask = selection.mask[row]
            assert own.index.tolist() == selection.index[row][mask].tolist()
            if bool(mask.any()):
                bandit.tell(own, rewards[row][mask])
    for row, bandit in enumerate(alone):
        torch.testing.assert_close(together.posterior(PROBLEM.tensor).mean[row], bandit.posterior(PROBLEM.tensor).mean)
        if name in ("chebyshev", "epal"):
            mine, own = bandit.front(minimize=["cost"]), together.front(minimize=["cost"])
            assert mine.index.tolist() == [arm for arm in own.index[row].tolist() if arm >= 0]
            assert torch.equal(bandit.pareto_set({"yield": 0.1, "cost": 0.1}).inside,
                               together.pareto_set({"yield": 0.1, "cost": 0.1}).inside[row])  # fmt: skip


@pytest.mark.sweep(1)
@pytest.mark.parametrize("every", [1, 5, 1000], ids="a checkpoint every {}".format)
@pytest.mark.parametrize("name", CASES)
def test_a_journal_and_a_saved_state_resume_exactly(name, every: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    # A checkpoint is written whenever it is due, however long writing the previous checkpoint took.
    monkeypatch.setattr("torchbandits.journal.journal._PATIENCE", 0)
    path = tmp_path / "run.journal"
    whole = tb.OutcomeBandit(POLICIES[name](), PROBLEM.tensor, generator=generator(9))
    journal = tb.Journal(path, every=every)
    first = tb.OutcomeBandit(POLICIES[name](), PROBLEM.tensor, generator=generator(9), journal=journal)
    plays = [Play(whole), Play(first)]
    for _ in range(4):
        for play in plays:
            play.tell(play.bandit.ask())
    asked = first.ask(exactly=2)
    assert torch.equal(asked.index, whole.ask(exactly=2).index)
    saved = first.state_dict()
    journal.close()
    resumed = tb.OutcomeBandit(POLICIES[name](), PROBLEM.tensor, generator=generator(77), journal=tb.Journal(path, every=every))
    loaded = tb.OutcomeBandit(POLICIES[name](), PROBLEM.tensor, generator=generator(78)).load_state_dict(copy.deepcopy(saved))
    plays = [plays[0], *(copy.copy(plays[1]) for _ in range(2))]
    for play, bandit in zip(plays[1:], (resumed, loaded), strict=True):
        play.bandit, play.rng = bandit, copy.deepcopy(play.rng)
    for _ in range(4):
        selections = [play.bandit.ask() for play in plays]
        for play, selection in zip(plays, selections, strict=True):
            assert torch.equal(selection.index, selections[0].index)
            play.tell(selection)
    # Repeated calls give identical bits. A checkpoint contains sums, from which the factors of exact Thompson sampling are
    # recomputed. Otherwise they are updated from tell to tell, so they agree only up to rounding.
    means = [bandit.posterior(PROBLEM.tensor).mean for bandit in (whole, resumed)]
    rounding = 1e-13 if name == "drawn_pareto" and every < 1000 else 0.0
    torch.testing.assert_close(means[1], means[0], rtol=rounding, atol=rounding)
    other = outcomes.pareto({f"{n}'": model for n, model in models().items()})
    with pytest.raises(errors.StateError, match="of another"):
        tb.OutcomeBandit(other, PROBLEM.tensor).load_state_dict(saved)


def test_other_arms_other_sources_and_float32():
    bandit = tb.OutcomeBandit(POLICIES["chebyshev"](), PROBLEM.tensor)
    play = Play(bandit)
    for _ in range(5):
        play.tell(bandit.ask())
    more = torch.rand(60, 2, generator=generator(8), dtype=torch.float64)
    before = bandit.posterior(more)
    bandit.set_arms_(more)
    torch.testing.assert_close(bandit.posterior(more).mean, before.mean)
    assert int(bandit.ask().index) < 60
    grid = tb.sources.Grid([torch.linspace(0, 1, 9, dtype=torch.float64)] * 2)
    streamed = tb.OutcomeBandit(POLICIES["safe"](), grid, generator=generator(1))
    held = tb.OutcomeBandit(POLICIES["safe"](), grid.chunk(slice(0, 81)), generator=generator(1))
    for step in range(5):
        picks = [b.ask().index for b in (streamed, held)]
        assert torch.equal(*picks)
        for b in (streamed, held):
            b.tell(b.ask(), torch.tensor([[0.1 * step, -1.0]]))
    narrow = tb.OutcomeBandit(POLICIES["epal"](), PROBLEM.tensor.float())
    for _ in range(4):
        picks = narrow.ask()
        narrow.tell(picks, torch.tensor(TRUTH)[picks.index])
    assert narrow.front().index.min() >= 0
    own = torch.stack([PROBLEM.tensor, PROBLEM.tensor.flip(0)])
    rows = tb.OutcomeBandit(POLICIES["linear"](), own, generator=[generator(1), generator(1)])
    first = rows.ask()
    assert torch.equal(first.points[0], own[0][first.index[0]])
    assert torch.equal(first.points[1], own[1][first.index[1]])


@pytest.mark.sweep(1)
@pytest.mark.parametrize("name", ["chebyshev", "drawn", "bkb"])
def test_workers_share_a_run_of_several_outcomes(name, tmp_path: Path):
    alone = tb.OutcomeBandit(POLICIES[name](), PROBLEM.tensor, generator=generator(5))
    made = [
        tb.Worker(POLICIES[name](), PROBLEM.tensor, store=tmp_path / "run.db", generator=generator(5), every=3)
        for _ in range(2)
    ]
    waiting: list[tuple[tb.Worker, tb.Lease]] = []
    for step in range(10):
        worker = made[step % 2]
        lease = worker.ask()
        assert lease is not None
        assert int(lease.index) == int(alone.ask(more=1).index[-1])
        assert torch.equal(lease.points, PROBLEM.tensor[lease.index])
        waiting.append((worker, lease))
        if step % 2:
            worker, lease = waiting.pop(0)
            arm = int(lease.index)
            value = {"yield": float(TRUTH[arm, 0])} | ({"cost": float(TRUTH[arm, 1])} if step % 3 else {})
            worker.tell(lease, value)
            alone.tell(lease.index, {key: [one] for key, one in value.items()})
    late = tb.Worker(POLICIES[name](), PROBLEM.tensor, store=tmp_path / "run.db", generator=generator(8))
    mean = alone.posterior(PROBLEM.tensor).mean
    for worker in (*made, late):
        torch.testing.assert_close(worker.bandit.posterior(PROBLEM.tensor).mean, mean, rtol=1e-8, atol=1e-8)
    lease = made[0].ask()
    assert lease is not None
    with pytest.raises(errors.ShapeError, match="reward must be 2 numbers, for yield, cost"):
        made[0].tell(lease, 1.0)
    with pytest.raises(errors.ArgumentError, match="names 'price'"):
        made[0].tell(lease, {"price": 1.0})
    made[0].tell(lease, torch.tensor([1.0, 2.0]), noise_var=0.3)
    waiting[0][0].tell(waiting[0][1], {}, failures="forget")
    assert made[1].told == 6
    with pytest.raises(errors.UnsupportedError, match="takes a list of arms: leave out bounds="):
        tb.Worker(POLICIES[name](), store=tmp_path / "other.db", bounds=torch.tensor([[0.0], [1.0]]))
    priced = tb.per_cost(POLICIES["chebyshev"]())
    with pytest.raises(errors.ArgumentError, match="pass costs="):
        tb.Worker(priced, PROBLEM.tensor, store=tmp_path / "other.db")
    prices = torch.tensor(PRICES)
    paid = tb.Worker(priced, PROBLEM.tensor, store=tmp_path / "paid.db", generator=generator(8), costs=prices)
    own = tb.OutcomeBandit(priced, PROBLEM.tensor, generator=generator(8), costs=prices)
    for _ in range(4):
        lease = paid.ask()
        assert int(lease.index) == int(own.ask().index)
        paid.tell(lease, torch.tensor(TRUTH[int(lease.index)]))
        own.tell(own.ask(), torch.tensor(TRUTH[[int(lease.index)]]))


def test_a_history_pairs_the_outcomes_of_each_pick_only(tmp_path: Path):
    index, values = torch.tensor([3, 9, 3, 20]), torch.tensor([[1.0, 5.0], [4.0, 7.0], [2.0, 4.0], [0.0, 1.0]]).double()

    def told(name: str, missing: set[tuple[int, int]], later: Sequence[tuple[int, int]]) -> tuple[tb.History, Path]:
        path = tmp_path / f"{name}.journal"
        bandit = tb.OutcomeBandit(POLICIES["chebyshev"](), PROBLEM.tensor, generator=generator(2), journal=path)
        for t in range(4):
            y = torch.tensor([[float("nan") if (t, j) in missing else float(values[t, j]) for j in range(2)]])
            bandit.tell(index[t : t + 1], y)
        for t, j in later:
            bandit.tell(index[t : t + 1], {NAMES[j]: values[t : t + 1, j]})
        reading = Reading(path)
        reading.history.metadata |= outcomes_of(reading.about)
        return reading.history, path

    least = {"yield": -1.0, "cost": 8.0}
    whole, _ = told("whole", set(), ())
    # Two outcomes that were measured later, in another order.
    late, _ = told("late", {(1, 1), (3, 1)}, ((3, 1), (1, 1)))
    for name in whole.front():
        np.testing.assert_array_equal(late.front()[name], whole.front()[name])
    np.testing.assert_array_equal(late.hypervolume(least, minimize=["cost"]), whole.hypervolume(least, minimize=["cost"]))
    # One outcome each of two picks was never measured: as many rewards of both, but of different picks.
    lacking, path = told("lacking", {(1, 0), (3, 1)}, ())
    assert len({int((lacking.pulls["row"] == row).sum()) for row in range(2)}) == 1
    for call in (lacking.front, lambda: lacking.hypervolume(least, minimize=["cost"])):
        with pytest.raises(errors.StateError, match="some were not measured"):
            call()
    assert figures_of_run(lacking) == ()
    with pytest.raises(errors.DataError, match="each measured for every pick"):
        write_fronts(path)


def test_a_run_has_the_hypervolume_of_its_rewards(tmp_path: Path):
    table = tb.environments.Table(PROBLEM.tensor.expand(2, -1, -1), torch.tensor(TRUTH.T.copy()), 0.1)
    policy = POLICIES["chebyshev"]()
    history = tb.run(policy, table, 12, generator=generator(2))
    assert history.metadata["outcomes"] == list(NAMES)
    pulls = history.pulls
    arms = [pulls["arm"][pulls["row"] == row] for row in range(2)]
    assert (arms[0] == arms[1]).all()
    values = np.stack([pulls["reward"][pulls["row"] == row] for row in range(2)], axis=-1) * [1.0, -1.0]
    found = history.hypervolume({"yield": -2.0, "cost": 6.0}, minimize=["cost"])
    np.testing.assert_allclose(found, [dense.area(values[: t + 1], np.array([-2.0, -6.0])) for t in range(12)], rtol=1e-9)
    assert (np.diff(found) >= 0).all()
    assert found[-1] > found[0]
    # The reference for the front is a loop over the averages of the arms.
    known = sorted({int(arm) for arm in arms[0]})
    means = {arm: values[arms[0] == arm].mean(axis=0) for arm in known}
    kept = [a for a in known if not any((means[b] >= means[a]).all() and (means[b] > means[a]).any() for b in known)]
    front = history.front()
    assert front["arm"].tolist() == sorted(kept, key=lambda arm: -means[arm][0])
    assert front["pulls"].tolist() == [int((arms[0] == arm).sum()) for arm in front["arm"]]
    for j, name in enumerate(NAMES):
        np.testing.assert_allclose(front[name], [means[int(arm)][j] * (1, -1)[j] for arm in front["arm"]])
    assert history.front(minimize=["cost"])["arm"].tolist() == front["arm"].tolist()
    assert set(history.front(minimize=NAMES)["arm"]) != set(front["arm"]) or len(known) == len(kept)
    with pytest.raises(errors.ArgumentError, match=r"minimize names .'price'"):
        history.front(minimize=["price"])
    with pytest.raises(errors.ArgumentError, match="minimize must be a list of names"):
        history.front(minimize="cost")
    with pytest.raises(errors.ArgumentError, match="row must be from 0 to 0"):
        history.front(row=1)
    # A run that was interrupted and resumed from its journal.
    with pytest.raises(RuntimeError, match="enough"):
        tb.run(policy, table, 12, generator=generator(2), journal=tmp_path / "run.journal", callbacks=[_enough()])
    again = tb.run(policy, table, 12, generator=generator(2), journal=tmp_path / "run.journal")
    assert (again.pulls["reward"] == pulls["reward"]).all()
    own = tb.environments.Table(PROBLEM.tensor.expand(3, 2, -1, -1), torch.tensor(TRUTH.T.copy()).expand(3, 2, 40), 0.1)
    several = tb.run(policy, own, 5, generator=[generator(seed) for seed in range(3)])
    assert several.batch_size == 6
    assert len(several.hypervolume({"yield": -2.0, "cost": 6.0}, minimize=["cost"], row=2)) == 5
    assert 0 < len(several.front(row=2)["arm"]) <= 5
    with pytest.raises(errors.ShapeError, match="and rewards 2 x A"):
        tb.run(policy, tb.environments.Table(PROBLEM.tensor, torch.tensor(TRUTH[:, 0].copy()), 0.1), 3)
    for wrong, message in (({"yield": 1.0}, "no number for cost"), ({"price": 1.0}, "names .'price'")):
        with pytest.raises(errors.ArgumentError, match=message):
            history.hypervolume(wrong)
    with pytest.raises(errors.StateError, match="several outcomes"):
        tb.run(tb.uniform(), tb.environments.Table(PROBLEM.tensor, torch.tensor(PROBLEM.f), 0.1), 2).hypervolume({})
    with pytest.raises(errors.StateError, match=r"front\(\) needs the history of several outcomes"):
        tb.run(tb.uniform(), tb.environments.Table(PROBLEM.tensor, torch.tensor(PROBLEM.f), 0.1), 2).front()


def _enough() -> Callable[..., None]:
    steps = iter(range(100))

    def stop(*_: Any) -> None:
        if next(steps) == 5:
            raise RuntimeError("enough")

    return stop


# ------------------------------------------------------------------ safety


def unsafe_runs(width: tb.widths.Width, runs: int = 150, pulls: int = 20) -> tuple[float, float]:
    """The fraction of runs, on functions drawn from the prior, that pull an unsafe arm, and the mean number of distinct pulled
    arms."""
    A, level = 60, -1.0
    arms = SobolEngine(2, scramble=True, seed=3).draw(A, dtype=torch.float64)
    kernels = [oracles.rbf(0.5), oracles.rbf(0.7)]
    rng = np.random.default_rng(0)
    drawn = np.stack(
        [rng.multivariate_normal(np.zeros(A), k(arms.numpy(), arms.numpy()), size=40 * runs, method="eigh") for k in kernels],
        axis=-1,
    )
    f = torch.tensor(drawn[(drawn[:, 0] >= level).all(axis=-1)][:runs])  # the start is safe
    assert len(f) == runs
    made = {
        name: tb.gp_ucb(kernel(lengthscale, 1.0), noise_std=0.1, width=width)
        for name, lengthscale in (("gain", 0.5), ("health", 0.7))
    }
    policy = outcomes.safe(made, start=[0], maximize="gain", at_least={"gain": level, "health": level})
    bandit = tb.OutcomeBandit(policy, arms, generator=[generator(row) for row in range(runs)])
    noise = generator(4)
    unsafe = torch.zeros(runs, dtype=torch.bool)
    for step in range(pulls):
        selection = bandit.ask(exactly=1 if step % 5 else 3)
        value = f.gather(1, selection.index.unsqueeze(-1).expand(-1, -1, 2))
        unsafe |= ((value < level).any(dim=-1) & selection.mask).any(dim=-1)
        bandit.tell(selection, value + 0.1 * torch.randn(value.shape, generator=noise, dtype=torch.float64))
    return float(unsafe.double().mean()), float((bandit.counts > 0).any(dim=-2).sum(dim=-1).double().mean())


@pytest.mark.exhaustive
def test_unsafe_pulls_stay_within_delta():
    delta = 0.05  # for each outcome, so 0.1 of the runs may fail
    part, arms = unsafe_runs(tb.widths.Srinivas(delta))
    assert part <= 2 * delta
    assert arms > 4
    careless, _ = unsafe_runs(tb.widths.Constant(0.3))
    assert careless > 0.2  # the test is sensitive enough to detect violations


def test_a_run_ends_where_no_safe_arm_is_left():
    arms, truth = PROBLEM.tensor.expand(2, -1, -1), torch.tensor(TRUTH.T.copy())
    policy = outcomes.safe(models(width=tb.widths.Constant(50.0)), start=START, maximize="yield", at_most={"cost": 2.0})
    once = tb.run(policy, tb.environments.Table(arms, truth, noise_std=0.1), 9, repeats=False)
    assert once.num_pulls.tolist() == [1, 1]
    costs = torch.ones(40, dtype=torch.float64)
    costs[START] = 4.0
    paid = tb.run(policy, tb.environments.Table(arms, truth, noise_std=0.1, costs=costs), 9, budget=11.0)
    assert paid.num_pulls.tolist() == [2, 2]


# ------------------------------------------------------------------ in BoTorch


@pytest.mark.exhaustive  # BoTorch compiles an extension first
@pytest.mark.parametrize("name", ["growth", "bkb"])
def test_botorch_finds_the_best_arm_of_its_hypervolume_improvement(name):
    wide = {name: tb.gp_ucb(kernel(*SHAPES[name]), noise_std=NOISE[name]) for name in NAMES}
    policy = outcomes.pareto(wide, reference={"yield": -2.0, "cost": -5.0}) if name == "growth" else POLICIES["bkb"]()
    bandit = tb.OutcomeBandit(policy, PROBLEM.tensor, generator=generator(3))
    play = Play(bandit)
    for _ in range(8):
        play.tell(bandit.ask())
    model, posterior = bandit.model(), bandit.posterior(PROBLEM.tensor)
    found = model.posterior(PROBLEM.tensor)
    torch.testing.assert_close(found.mean.mT, posterior.mean, rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(found.variance.mT, posterior.variance, rtol=1e-4, atol=1e-7)
    if name == "bkb":
        return
    front = bandit.front(minimize=[])
    reference = torch.tensor([-2.0, -5.0], dtype=torch.float64)
    box = FastNondominatedPartitioning(reference, front.mean)
    _, value, index = optimize_arms(ExpectedHypervolumeImprovement(model, reference.tolist(), box), PROBLEM.tensor)
    pulled = bandit.front(minimize=[], pulled=True)
    within = FastNondominatedPartitioning(reference, pulled.mean)
    acquisition = ExpectedHypervolumeImprovement(model, reference.tolist(), within)
    assert int(optimize_arms(acquisition, PROBLEM.tensor)[2]) == int(bandit.leaders(1)), "the first leader is BoTorch's"
    # The reference draws independent normal numbers at every arm.
    g = generator(1)
    known, point = front.mean.numpy(), reference.numpy()
    best = dense.area(known, point)
    gains = []
    for arm in np.flatnonzero(ENTRIES).tolist():
        mean, std = posterior.mean[:, arm], posterior.variance[:, arm].sqrt()
        drawn = (mean + std * torch.randn(300, 2, generator=g, dtype=torch.float64)).numpy()
        volumes = [dense.area(np.vstack([known, one]), point) - best for one in drawn]
        gains.append((float(np.mean(volumes)), arm))
    top = sorted(gains, reverse=True)[:4]
    assert int(index) in [arm for _, arm in top]
    assert float(value) == pytest.approx({arm: gain for gain, arm in gains}[int(index)], rel=0.25)
    signed = WeightedMCMultiOutputObjective(torch.tensor([1.0, -1.0], dtype=torch.float64))
    noisy = qLogNoisyExpectedHypervolumeImprovement(
        model,
        [-2.0, -5.0],
        PROBLEM.tensor[front.index],
        sampler=get_sampler(model.posterior(PROBLEM.tensor[:1]), torch.Size([16]), seed=0),
        objective=signed,
    )
    assert optimize_arms(noisy, PROBLEM.tensor[:8], 2)[2].unique().numel() == 2


@pytest.mark.sweep(2)
@pytest.mark.parametrize("name", ["chebyshev", "constrained", "improvement", "growth"])
def test_leaders_are_the_first_of_each_trade_off_then_the_second(name: str):
    bandit = tb.OutcomeBandit(POLICIES[name](), PROBLEM.tensor, generator=generator(2))
    play = Play(bandit)
    for _ in range(8):
        play.tell(bandit.ask())
    before = bandit.generators[0].get_state()
    own, draws = generator(7), 5 if name == "chebyshev" else 1
    ranks = []
    for _ in range(draws):
        uniform = torch.rand(2, generator=own, dtype=torch.float64).numpy()
        score = oracle_score(name, play, [], lambda uniform=uniform: uniform, again=True)
        ranks.append([arm for arm in np.argsort(-score, kind="stable").tolist() if score[arm] > -np.inf])
    together = [ranked[place] for place in range(40) for ranked in ranks if place < len(ranked)]
    expected = list(dict.fromkeys(together))
    found = bandit.leaders(12, draws=5, seed=7)
    assert found.tolist() == (expected + [-1] * 12)[:12]
    assert set(bandit.leaders(50).tolist()) == set(np.flatnonzero(ENTRIES)) | {-1} if name in ("chebyshev", "growth") else True
    assert torch.equal(bandit.generators[0].get_state(), before), "nothing is drawn from the bandit's own generator"
    several = tb.OutcomeBandit(POLICIES[name](), PROBLEM.tensor, generator=[generator(2), generator(3)])
    index = torch.stack([torch.arange(0, 40, 8), torch.arange(3, 40, 8)])
    several.tell(index, torch.tensor(TRUTH)[index])
    for row in range(2):
        alone = tb.OutcomeBandit(POLICIES[name](), PROBLEM.tensor)
        alone.tell(index[row], torch.tensor(TRUTH)[index[row]])
        assert alone.leaders(6, draws=3).tolist() == several.leaders(6, draws=3)[row].tolist()
    with pytest.raises(errors.ArgumentError, match="count"):
        bandit.leaders(0)
    with pytest.raises(errors.ArgumentError, match="seed must be"):
        bandit.leaders(3, seed=-1)


def log_growth(mean: torch.Tensor, std: torch.Tensor, front: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    return HypervolumeGrowth(front, reference)(mean, std)


def test_the_expected_growth_is_that_of_all_boxes_of_a_grid():
    rng = np.random.default_rng(4)
    for m, f in ((1, 5), (2, 0), (2, 1), (2, 9), (3, 7), (4, 4)):
        front, reference = rng.uniform(-0.2, 1.0, (f, m)), rng.uniform(-0.1, 0.2, m)
        mean, std = rng.uniform(-0.5, 1.5, (30, m)), rng.uniform(0.05, 0.5, (30, m))
        found = log_growth(*(torch.tensor(part) for part in (mean, std, front, reference)))
        expected = dense.expected_growth(mean.T, std.T, front, reference)
        np.testing.assert_allclose(found.exp().numpy(), expected, rtol=1e-9, atol=1e-14)
        # Logarithms stay finite where the improvement underflows, agree where it does not, and rank the arms.
        small = torch.tensor(std) * 1e-3
        far = torch.linspace(0.5, 3.0, 30, dtype=torch.float64).unsqueeze(-1)
        low = log_growth(torch.tensor(reference) - far, small, torch.tensor(front), torch.tensor(reference))
        assert low.isfinite().all()
        assert float(low.max()) < -700
        same = small[:1].expand(30, m)
        low = log_growth(torch.tensor(reference) - far, same, torch.tensor(front), torch.tensor(reference))
        assert (low.diff() < 0).all()
    # Far below the reference point no digits are lost before logarithms take over: the growth is a product of improvements.
    below = torch.linspace(5.0, 20.0, 31, dtype=torch.float64).unsqueeze(-1)
    found = log_growth(-below, torch.ones_like(below), below[:0], torch.zeros(1, dtype=torch.float64))
    np.testing.assert_allclose(found.numpy(), log_improvement(-below).squeeze(-1).numpy(), rtol=1e-11)
    one, zero = torch.ones(1, 2, dtype=torch.float64), torch.zeros(1, 2, dtype=torch.float64)
    certain = log_growth(torch.cat([2 * one, one / 2]), torch.cat([zero, zero]), one, zero[0])
    assert float(certain[0].exp()) == pytest.approx(3.0), "without doubt, the growth is that of the point"
    assert float(certain[1]) < -1e100


@pytest.mark.parametrize("limits", [{}, {"at_most": {"cost": 0.8}}, {"at_least": {"yield": 5.0}}])
@torch.no_grad()
def test_a_growth_that_underflows_is_computed_where_it_may_be_best(limits: dict[str, Any], monkeypatch: pytest.MonkeyPatch):
    arms = torch.linspace(0, 1, 400, dtype=torch.float64).unsqueeze(-1)
    make = {name: tb.gp_ucb(kernel(0.3, 1.0), noise_std=0.003) for name in NAMES}
    bandit = tb.OutcomeBandit(outcomes.pareto(make, objectives=list(NAMES), minimize=["cost"], **limits), arms)
    told = torch.arange(0, 400, 5)
    bandit.tell(told, torch.stack([torch.sin(6 * arms[told, 0]), arms[told, 0].square()], dim=-1))
    policy, state = bandit.policy, bandit.loop.state
    outlook, own, asked = policy._outlook(state, policy.width(state)), HypervolumeGrowth.in_logarithms, []

    def in_logarithms(self: HypervolumeGrowth, mean: Tensor, std: Tensor) -> Tensor:
        asked.append(len(mean))
        return own(self, mean, std)

    monkeypatch.setattr(HypervolumeGrowth, "in_logarithms", in_logarithms)
    every = policy.aim.scores(outlook, None)
    # Without an arm that keeps the limits, growth does not count.
    counts = "at_least" not in limits
    assert asked == [278] * counts
    worst = torch.zeros_like(outlook.settled)
    worst[every.argsort()[len(told) :][:20]] = True
    for offered, some in ((None, []), (worst, [20]), (outlook.settled, None)):
        asked.clear()
        found = policy.aim.scores(replace(outlook, only_best=True, offered=offered), None)
        assert some is None or asked == some * counts
        expected = policy.aim.scores(replace(outlook, offered=offered), None)
        assert int(found.argmax()) == int(expected.argmax())
        assert found.max() == expected.max()
        assert bool((found >= expected).all())


def test_the_default_trade_off_is_what_the_models_and_the_number_of_objectives_allow():
    def of(count: int, make: Any = tb.gp_ucb, **options: Any) -> str:
        return outcomes.pareto({f"y{j}": make(kernel(0.5, 1.0), **options) for j in range(count)}).aim.kind

    assert [of(2), of(4), of(5)] == ["improvement", "improvement", "chebyshev"]
    assert [of(2, tb.thompson_sampling), of(5, acquisition="ei")] == ["chebyshev", "improvement"]


@pytest.mark.parametrize("name", ["growth", "improvement"])
def test_the_improvement_pulls_no_arm_again_while_others_are_on_offer(name: str):
    bandit = tb.OutcomeBandit(POLICIES[name](), PROBLEM.tensor, generator=generator(3))
    half = torch.arange(0, 40, 2)
    bandit.tell(half, torch.tensor(TRUTH[::2]))
    batch = bandit.ask(exactly=4).index.tolist()
    assert len(set(batch)) == 4
    assert not set(batch) & set(half.tolist())
    assert bandit.ask(more=1).index.tolist()[:4] == batch
    bandit.forget(bandit.ask())
    # If no other arm is left, any arm may be pulled again.
    there = torch.zeros(40, dtype=torch.bool)
    there[[2, 4]] = True
    assert int(bandit.ask(available=there).index) in (2, 4)
    bandit.forget(bandit.ask())
    there[1] = True
    assert int(bandit.ask(available=there).index) == 1


@pytest.mark.parametrize("name", ["growth", "improvement"])
def test_an_outcome_that_is_never_measured_holds_no_arm_fast(name: str):
    bandit, arms = tb.OutcomeBandit(POLICIES[name](), PROBLEM.tensor, generator=generator(3)), []
    for _ in range(8):
        selection = bandit.ask()
        bandit.tell(selection, {"yield": torch.tensor(TRUTH)[selection.index, 0]})
        arms += selection.index.tolist()
    assert len(set(arms)) == 8


# ------------------------------------------------------------------ limits of trade-offs, and models from data


@pytest.mark.parametrize("kind", ["chebyshev", "improvement"])
def test_trade_offs_within_limits_are_those_of_the_dense_oracle(kind: str):
    least = 0.0 if kind == "chebyshev" else -1.5  # some arms certainly keep the limits
    options = {"minimize": ["cost"], "objectives": ["yield", "cost"], "at_least": {"yield": least}, "certainty": 0.8}
    for limit in (3.0, -50.0):  # a limit that some arms may keep, and a limit that no arm may keep
        policy = outcomes.pareto(models(), at_most={"cost": limit}, scalarization=kind, **options)
        bandit = tb.OutcomeBandit(policy, PROBLEM.tensor, generator=generator(4))
        play, limits = Play(bandit), [(0, 1.0, least), (1, -1.0, limit)]
        for _ in range(6 if kind == "chebyshev" else 20):
            play.tell(bandit.ask())
        beliefs = play.beliefs()
        signs = np.array([[1.0], [-1.0]])
        state = bandit.generators[0].get_state()
        uniform = torch.rand(2, generator=torch.Generator().set_state(state), dtype=torch.float64).numpy()
        upper, held = signs * beliefs.mean + WIDTHS[:, None] * beliefs.std, play.seen()
        sure = dense.log_feasible(beliefs.mean, beliefs.known, limits) >= np.log(0.8)
        members = [arm for arm in held if sure[arm]]
        held = members or held
        if kind == "improvement":
            chance, means = dense.log_feasible(beliefs.mean, beliefs.std, limits), signs * beliefs.mean
            assert sure.any() == (limit > 0)
            if sure.any():
                low, unit = dense.scale(means, held, UNIT)
                low = low + 0.1 * unit - 0.1 * np.maximum(unit, np.ptp(means[:, held], axis=1))
                chance = chance + np.log(dense.expected_growth(means, beliefs.std, means[:, members].T, low))
            assert_picked(dense.unsettled(np.where(ENTRIES, chance, -np.inf), play.settled([])), int(bandit.ask().index))
            continue
        value = scalarized("chebyshev", upper, signs * beliefs.mean, uniform, held)
        hope = hopes(beliefs, 0.5)
        lacking = np.array([dense.violation(np.array([hope(a, j, s) for j, s, _ in limits]), limits, UNIT) for a in range(40)])
        feasible = (lacking == 0) & ENTRIES
        assert feasible.any() == (limit > 0)
        score = np.where(feasible, value, -np.inf) if feasible.any() else np.where(ENTRIES, -lacking, -np.inf)
        assert_picked(score, int(bandit.ask().index))
        kept = (dense.log_feasible(beliefs.mean, beliefs.known, limits) >= np.log(0.8)) & ENTRIES
        front = bandit.front(reference={"yield": -2.0, "cost": 8.0})
        assert front.index[front.index >= 0].tolist() == dense.non_dominated((signs * beliefs.mean).T, kept)
        with pytest.raises(errors.UnsupportedError, match="without limits"):
            bandit.pareto_set({"yield": 1.0, "cost": 1.0})


def test_an_outcome_that_is_no_objective_changes_no_front():
    index = torch.arange(0, 40, 3)
    two, three = models(), models() | {"other": models()["cost"]}
    bandits = [
        tb.OutcomeBandit(outcomes.pareto(two, minimize=["cost"]), PROBLEM.tensor),
        tb.OutcomeBandit(outcomes.pareto(three, minimize=["cost"], objectives=["yield", "cost"]), PROBLEM.tensor),
    ]
    bandits[0].tell(index, torch.tensor(TRUTH[::3]))
    bandits[1].tell(index, torch.tensor(np.concatenate([TRUTH[::3], -5 * TRUTH[::3, :1]], axis=-1)))
    fronts = [bandit.front(reference={"yield": -2.0, "cost": 8.0}) for bandit in bandits]
    assert fronts[0].index.tolist() == fronts[1].index.tolist()
    torch.testing.assert_close(fronts[0].hypervolume, fronts[1].hypervolume)
    sets = [bandit.pareto_set({"yield": 0.1, "cost": 0.2}) for bandit in bandits]
    assert (sets[0].undecided == sets[1].undecided).all()


def test_models_that_are_estimated_are_those_of_each_outcome_alone():
    wanted = {"maximize": "yield", "at_most": {"cost": 2.0}}
    bandit = tb.OutcomeBandit(outcomes.constrained({name: tb.auto() for name in NAMES}, **wanted), PROBLEM.tensor)
    alone = [tb.Bandit(tb.auto(), PROBLEM.tensor) for _ in NAMES]
    index = torch.arange(0, 40, 3)
    bandit.tell(index, torch.tensor(TRUTH[::3]))
    for j, one in enumerate(alone):
        one.tell(index, torch.tensor(TRUTH[::3, j]))
        own, joint = one.posterior(PROBLEM.tensor), bandit.posterior(PROBLEM.tensor)
        torch.testing.assert_close(joint.mean[j], own.mean, rtol=1e-3, atol=1e-3)
        torch.testing.assert_close(joint.variance[j], own.variance, rtol=2e-2, atol=1e-3)
    # The pick has the largest upper bound of the yield among the arms whose lower bound of the cost, with half the width, is
    # at most 2.
    low, high = (
        torch.stack([one.loop.state.posterior.units.to_rewards(mean + sign * 2.5 * std) for one, mean, std in parts])
        for parts in [[(one, *one_marginals(one)) for one in alone]]
        for sign in (-1, 1)
    )
    mean, std = one_marginals(alone[1])
    feasible = (alone[1].loop.state.posterior.units.to_rewards(mean - 1.25 * std) <= 2.0) & torch.tensor(ENTRIES)
    assert 0 < int(feasible.sum()) < 40
    assert int(bandit.ask().index) == int(high[0].masked_fill(~feasible, -torch.inf).argmax())
    # Certificates are in the units of the rewards.
    sets = bandit.pareto_set({"yield": 0.1, "cost": 0.2}, minimize=["cost"])
    corners = [np.stack([x[0].numpy(), -y[1].numpy()], axis=-1) for x, y in ((low, high), (high, low))]
    inside, outside = dense.pareto_sets(*corners, np.array([0.1, 0.2]), ENTRIES)
    assert (sets.inside.numpy() == inside).all()
    assert (sets.outside.numpy() == outside).all()
    for make in (outcomes.epal, outcomes.safe):
        options = {"epsilon": dict.fromkeys(NAMES, 1.0)} if make is outcomes.epal else {"start": [0], **wanted}
        with pytest.raises(errors.UnsupportedError, match="of a kernel that you know"):
            make({name: tb.auto() for name in NAMES}, **options)


def test_safe_compares_the_widths_of_its_limits_with_their_models():
    def made(width: Any, **options: Any) -> Any:
        parts = models(width=width, **options)
        return outcomes.safe(parts, start=START, maximize="yield", at_most={"cost": 2.0})

    lam = NOISE["cost"] ** 2
    wrong = [
        (
            tb.widths.IGP(NOISE["cost"], 1.0, 0.05, 7.0),
            "'cost', by which arms are safe, have no theorem: the width IGP has λ = 7",
        ),
        (tb.widths.Scaled(tb.widths.IGP(0.5 * NOISE["cost"], 1.0, 0.05, lam), 0.5), "give both the same noise_std"),
    ]
    for width, said in wrong:
        with pytest.raises(errors.UnsupportedError, match=said):
            made(width)
    for bayesian in (tb.widths.Srinivas(0.05), tb.widths.SrinivasCompact(0.05)):
        made(bayesian)
        with pytest.raises(errors.UnsupportedError, match="assumes that λ is the variance of the noise"):
            made(bayesian, regularization=7.0)
    made(tb.widths.IGP(NOISE["cost"], 1.0, 0.05, lam))  # that of the yield, which has no limit, is not compared
    made(tb.widths.Constant(2.0), regularization=7.0)


@pytest.mark.parametrize("name", ["constrained", "growth", "epal", "safe"])
def test_norm_bounds_that_fit_no_outcome_are_refused(name: str):
    policy = POLICIES[name]()
    own = tuple(tb.widths.IGP(1.0, torch.ones(3), 0.1, 1.0) for _ in NAMES)
    wrong = replace(policy, engine=replace(policy.engine, confidence=replace(policy.engine.confidence, widths=own)))
    with pytest.raises(errors.ShapeError, match=r"norm_bound has the shape \(3,\), and the batch rows have \(2,\)"):
        tb.OutcomeBandit(wrong, PROBLEM.tensor)


def one_marginals(bandit: tb.Bandit) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of the arms in the units of the model."""
    table = bandit.loop.state.table
    return table.mean(), (table.posterior.regularization * table.leverage).sqrt()


def test_each_outcome_is_watched_in_units_of_its_own_noise(recwarn):
    """Correct scales that differ by orders of magnitude cause no warning, in either order; a wrong scale causes one warning
    that names the outcome."""
    g = torch.Generator().manual_seed(0)
    index = torch.randperm(40, generator=g)[:20]
    for names, scales in ((("large", "small"), (100.0, 0.01)), (("small", "large"), (0.01, 100.0))):
        parts = {name: tb.gp_ucb(kernel(0.4, s**2), noise_std=0.1 * s) for name, s in zip(names, scales, strict=True)}
        bandit = tb.OutcomeBandit(outcomes.pareto(parts), PROBLEM.tensor)
        values = torch.tensor(PROBLEM.f)[index].unsqueeze(-1) * torch.tensor(scales, dtype=torch.float64)
        for start in range(0, 20, 2):
            bandit.tell(index[start : start + 2], values[start : start + 2])
    assert [str(one.message) for one in recwarn if "outcome" in str(one.message)] == []
    loud = {"a": tb.gp_ucb(kernel(0.4, 1.0), noise_std=0.1), "b": tb.gp_ucb(kernel(0.4, 1.0), noise_std=50.0)}
    bandit = tb.OutcomeBandit(outcomes.pareto(loud), PROBLEM.tensor)
    with pytest.warns(errors.DiagnosticWarning, match=r"^outcome 'b': the kernel.s variance 1 is less than .* 2.5e\+03"):
        bandit.tell(index, torch.tensor(PROBLEM.f)[index, None].expand(-1, 2))
    several = tb.OutcomeBandit(outcomes.pareto(loud), PROBLEM.tensor, generator=[torch.Generator() for _ in range(2)])
    with pytest.warns(errors.DiagnosticWarning, match="^batch row 0, outcome 'b': the kernel"):
        several.tell(index.expand(2, -1), torch.tensor(PROBLEM.f)[index, None].expand(2, -1, 2))


# ------------------------------------------------------------------ indicators, and when to stop


def test_indicators_of_growing_fronts_are_the_dense_ones():
    rng = np.random.default_rng(0)
    for k, size in ((1, 1), (2, 500), (3, 496), (4, 455)):
        weights = simplex(k, 500).numpy()
        assert len({tuple(row) for row in weights}) == len(weights) == size
        np.testing.assert_allclose(weights.sum(axis=-1), 1.0)
        assert weights.min() >= 0
        steps = 1 / np.sort(np.unique(weights.round(9)))[1] if k > 1 else 1.0
        np.testing.assert_allclose(weights * steps, np.round(weights * steps), atol=1e-9)
        gaps = rng.random((7, k))
        gaps[2] = np.nan
        found = growing_r2(torch.tensor(gaps)).numpy()
        for t in range(7):
            own = [g for g in gaps[: t + 1] if not np.isnan(g).any()]
            expected = np.mean([min(max(w[j] * g[j] for j in range(k)) for g in own) for w in weights])
            assert found[t] == pytest.approx(expected, rel=1e-12)
    points = rng.random((9, 2))
    points[4] = np.nan
    volumes = growing_hypervolume(torch.tensor(points)).numpy()
    known = [p for p in points if not np.isnan(p).any()]
    np.testing.assert_allclose(volumes[-1], dense.area(np.array(known), np.zeros(2)))
    assert growing_r2(torch.full((1, 2), torch.nan, dtype=torch.float64)).tolist() == [np.inf]
    history = tb.run(
        POLICIES["chebyshev"](), tb.environments.Table(PROBLEM.tensor.expand(2, -1, -1), torch.tensor(TRUTH.T.copy()), 0.1), 6
    )
    assert history.metadata["objectives"] == {"yield": "maximize", "cost": "minimize"}
    pulls = history.pulls
    values = np.stack([pulls["reward"][pulls["row"] == row] for row in range(2)], axis=-1)
    ideal, reference = {"yield": 4.0, "cost": -4.0}, {"yield": -4.0, "cost": 8.0}
    gaps = np.stack([(4.0 - values[:, 0]) / 8.0, (values[:, 1] + 4.0) / 12.0], axis=-1)
    found = history.r2(ideal, reference, minimize=["cost"])
    np.testing.assert_allclose(found, growing_r2(torch.tensor(gaps)).numpy(), rtol=1e-12)
    assert (np.diff(found) <= 0).all()
    with pytest.raises(errors.ArgumentError, match="ideal must be better than reference"):
        history.r2(ideal, reference)
    with pytest.raises(errors.ArgumentError, match="ideal has no number for cost"):
        history.r2({"yield": 4.0}, reference, minimize=["cost"])


@pytest.mark.exhaustive
def test_the_page_of_a_run_draws_its_trade_offs(tmp_path: Path):
    table = tb.environments.Table(PROBLEM.tensor.expand(2, -1, -1), torch.tensor(TRUTH.T.copy()), 0.1)
    history = tb.run(POLICIES["chebyshev"](), table, 6, journal=tmp_path / "run.journal")
    history.to_parquet(tmp_path / "run")
    for source in (tmp_path / "run", tmp_path / "run.journal"):
        page = write_page(source).read_text()
        assert 'alt="yield and cost of each arm, on average"' in page
        assert 'alt="hypervolume and R2 of the evaluations so far"' in page
        assert "<h3>yield</h3>" in page
        assert "<td>cost 0</td>" in page
    done = CliRunner().invoke(app, ["plot", str(tmp_path / "run")])
    assert done.exit_code == 0, done.output
    drawn = [tmp_path / "run" / f"front-{place}.png" for place in (1, 2)]
    assert [str(path) in done.output for path in drawn] == [True, True]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in drawn)
    assert CliRunner().invoke(app, ["plot", str(tmp_path / "run.journal")]).exit_code == 0
    assert (tmp_path / "run.journal.front-2.png").stat().st_size > 10_000
    single = tb.environments.Table(PROBLEM.tensor, torch.tensor(PROBLEM.f), 0.1)
    tb.run(tb.uniform(), single, 2).to_parquet(tmp_path / "one")
    with pytest.raises(errors.DataError, match="no trade-offs to show"):
        write_fronts(tmp_path / "one")
    with pytest.raises(errors.DataError, match="does not exist"):
        write_fronts(tmp_path / "none")
    history.metadata.pop("objectives")
    assert figures_of_run(history) == ()


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["chebyshev", "safe"])
def test_less_is_better_in_tables_pictures_and_regret(name: str, tmp_path: Path):
    """Tests an objective that is minimised, and an outcome that has only an upper limit."""
    policy = POLICIES[name]()
    assert policy.directions == (1.0, -1.0)
    table = tb.environments.Table(PROBLEM.tensor.expand(2, -1, -1), torch.tensor(TRUTH.T.copy()), 0.1)
    history = tb.run(policy, table, 8, journal=tmp_path / "run.journal")
    history.to_parquet(tmp_path / "run")
    assert history.metadata["less_is_better"] == ["cost"]
    pulls = history.pulls
    own = pulls["row"] == 1
    costs, arms = pulls["reward"][own], pulls["arm"][own]
    np.testing.assert_allclose(pulls["regret"][own], TRUTH[arms, 1] - TRUTH[:, 1].min(), atol=1e-12)
    gains = pulls["row"] == 0
    np.testing.assert_allclose(pulls["regret"][gains], TRUTH[:, 0].max() - TRUTH[pulls["arm"][gains], 0], atol=1e-12)
    means = {int(arm): costs[arms == arm].mean() for arm in arms}
    spread = costs - [means[int(arm)] for arm in arms]
    sigma = np.sqrt((spread**2).sum() / max(1, len(costs) - len(means)))
    upper = {arm: mean + sigma / np.sqrt((arms == arm).sum()) * (len(costs) > len(means)) for arm, mean in means.items()}
    order = sorted(upper, key=lambda arm: upper[arm])
    for source in (tmp_path / "run", tmp_path / "run.journal"):
        page = write_page(source).read_text()
        listed = re.findall(r"<tr><td>(\d+)</td><td[^>]*>", page.partition("<h3>cost</h3>")[2])
        assert [int(arm) for arm in listed[:2]] == order[:2]
        assert "(for cost, where smaller values are better, the lowest mean plus its standard error)" in page
        record = Record(1, "cost", 0, history.row(1))
        np.testing.assert_allclose(best_so_far(frozenset(["cost"]), record, np.arange(1, 9)), np.minimum.accumulate(costs))
    reading = Reading(tmp_path / "run.journal")
    assert outcomes_of(reading.about)["less_is_better"] == ["cost"]
    assert outcomes_of(reading.about)["objectives"] == policy.objectives
    assert [best.arm for best in state_of(reading, 1, 0.0).best[:2]] == order[:2]
    # The recommended arm has the lowest posterior mean of the pulled arms.
    bandit = tb.OutcomeBandit(policy, PROBLEM.tensor, generator=generator(0))
    bandit.tell(torch.arange(0, 40, 4), torch.tensor(TRUTH[::4]))
    # Arm 36 is a copy of arm 32, and rounding decides which of their means is larger.
    told = np.flatnonzero(ENTRIES[::4]) * 4
    mean = bandit.posterior(PROBLEM.tensor).mean[:, told]
    assert bandit.loop.best_arm().tolist() == [told[int(mean[0].argmax())], told[int(mean[1].argmin())]]
    assert bandit.loop.best(1).index.squeeze(-1).tolist() == bandit.loop.best_arm().tolist()


def test_an_outcome_with_limits_on_both_sides_has_no_regret():
    limits = {"at_least": {"cost": -1.0}, "at_most": {"cost": 2.0}}
    policy = outcomes.constrained(models(), maximize="yield", **limits)
    assert policy.directions == (1.0, 0.0)
    table = tb.environments.Table(PROBLEM.tensor.expand(2, -1, -1), torch.tensor(TRUTH.T.copy()), 0.1)
    regret = tb.run(policy, table, 3).pulls["regret"]
    assert np.isnan(regret).tolist() == [False, True] * 3


@pytest.mark.exhaustive
def test_a_front_that_is_known_is_right_over_draws_from_the_prior():
    rows, size, most, noise = 40, 9, 60, 0.3
    rng = np.random.default_rng(6)
    arms = rng.uniform(size=(size, 2))
    roots = [np.linalg.cholesky(own(arms, arms) + 1e-9 * np.eye(size)) for own in KERNELS]
    f = torch.tensor(np.stack([rng.normal(size=(rows, size)) @ root.T for root in roots], axis=-1))
    proved = {"width": tb.widths.Srinivas(0.05), "noise_std": noise}
    epsilon = torch.tensor([1.0, 3.0], dtype=torch.float64)
    given = {name: tb.gp_ucb(kernel(*SHAPES[name]), **proved) for name in NAMES}
    policy = outcomes.epal(given, epsilon=dict(zip(NAMES, epsilon.tolist(), strict=True)))
    bandit = tb.OutcomeBandit(policy, torch.tensor(arms), generator=[generator(row) for row in range(rows)])
    draw, kept = generator(1), torch.zeros(rows, size, dtype=torch.bool)
    stopped = torch.zeros(rows, dtype=torch.bool)
    while int(bandit.pulls.min()) < most and not bool(stopped.all()):
        picks = bandit.ask().index
        y = f.gather(-2, picks.unsqueeze(-1).expand(*picks.shape, 2))
        bandit.tell(picks, y + noise * torch.randn(y.shape, generator=draw, dtype=torch.float64))
        if int(bandit.pulls.min()) % 5:
            continue
        now = bandit.should_stop(tb.stopping.FrontKnown()).stop.reshape(rows, -1)[:, 0] & ~stopped
        kept[now] = bandit.pareto_set().inside.reshape(rows, -1, size)[now, 0]
        stopped |= now
    assert float(stopped.double().mean()) > 0.8, "the rule stops"
    wrong = 0
    for values, front in zip(f[stopped], kept[stopped], strict=True):
        gap = values.unsqueeze(-2) - values[front]  # of every arm over every member
        reached = (gap <= epsilon).all(dim=-1).any(dim=-1)
        exceeded = (gap > 2 * epsilon).all(dim=-1).any()
        wrong += int(not bool(reached.all()) or bool(exceeded))
    assert wrong <= stats.binom.ppf(1 - 1e-4, int(stopped.sum()), 0.1)


@pytest.mark.parametrize("rows", [None, 2])
def test_rules_follow_the_recommended_arm_under_limits(rows: int | None):
    policy = outcomes.constrained(models(), maximize="yield", at_most={"cost": 0.0})
    bandit = tb.OutcomeBandit(policy, PROBLEM.tensor, generator=None if rows is None else [generator(r) for r in range(rows)])
    rule, since, last, changes = tb.stopping.SameArm(100), 0, -1, set()
    assert bandit.should_stop(rule).arm.unique().tolist() == [-1]
    for t in range(12):
        index = torch.arange(3 * t, 3 * t + 3)
        values, shape = torch.tensor(TRUTH[index.tolist()]), () if rows is None else (rows,)
        bandit.tell(index.expand(*shape, 3), values.expand(*shape, 3, 2))
        best = bandit.best_arm()
        decision = bandit.should_stop(rule)
        assert decision.arm.shape == (*best.shape, 2)
        assert torch.equal(decision.arm, best.unsqueeze(-1).expand(*best.shape, 2))
        arm = int(best.reshape(-1)[0])
        since, last = (since, last) if arm == last else (3 * t + 3, arm)
        changes.add(tuple(bandit.loop.best_arm().reshape(-1)[:2].tolist()) != (arm, arm))
        assert set(decision.value.reshape(-1).tolist()) == {3.0 * t + 3 - since}
    assert True in changes, "the case says something: some outcome is best at another arm"


def test_an_outcome_that_is_measured_seldom_does_not_prolong_a_run():
    costs = 1 + PROBLEM.tensor[:, 0].double().abs()  # equal arms cost the same
    model = tb.gp_ucb(kernel(0.4, 1.0), noise_std=0.1)
    bandit = tb.OutcomeBandit(outcomes.pareto({"yield": model, "cost": model}), PROBLEM.tensor, costs=costs)
    index = torch.tensor([0, 1, 0, 7])
    bandit.tell(index[:3], torch.tensor([[1.0, torch.nan], [1.0, 2.0], [2.0, torch.nan]]))
    bandit.tell(index[3:], torch.tensor([[torch.nan, 1.0]]))
    same = tb.stopping.SameArm(3)
    assert bandit.should_stop(tb.stopping.Budget(pulls=3)).value.tolist() == [3.0, 3.0]
    assert not bandit.should_stop(tb.stopping.Budget(pulls=4))
    assert bandit.should_stop(tb.stopping.Budget(pulls=3))
    whole = float(costs[index].sum())
    spent = bandit.should_stop(tb.stopping.Budget(cost=whole - 1e-6))
    assert bool(spent)
    assert spent.value.tolist() == pytest.approx([whole] * 2)
    assert not bandit.should_stop(tb.stopping.Budget(cost=whole + 1e-6))
    assert not bandit.should_stop(same)
    for _ in range(3):
        bandit.tell(torch.tensor([0]), {"yield": torch.tensor([1.5])})
    assert bandit.should_stop(same)
    other = tb.gp_ucb(kernel(0.4, 1.0), noise_std=0.2)
    unlike = tb.OutcomeBandit(outcomes.pareto({"yield": model, "cost": other}), PROBLEM.tensor, costs=costs)
    unlike.tell(index, torch.zeros(4, 2))
    with pytest.raises(errors.UnsupportedError, match="outcomes of different noise"):
        unlike.should_stop(tb.stopping.Budget(cost=16.0))


@pytest.mark.parametrize("seed", range(3))
def test_a_rule_that_knows_one_outcome_first_ends_the_run_once_it_knows_all(seed: int):
    calls = [0]

    def no_endless_run(*_: Any) -> None:
        calls[0] += 1
        assert calls[0] < 100, "the run does not end"

    table = tb.environments.Table(PROBLEM.tensor.expand(2, -1, -1), torch.tensor(TRUTH.T.copy()), 0.1)
    history = tb.run(
        POLICIES["chebyshev"](), table, 60, generator=generator(seed), stop=tb.stopping.SameArm(6), callbacks=[no_endless_run]
    )
    assert len(set(history.num_pulls.tolist())) == 1
    recommended = [history.batches["recommended"][history.batches["row"] == row] for row in range(2)]
    if history.num_pulls[0] < 60:
        assert all("recommended one for" in reason for reason in history.metadata["stopped"])
        assert all(len(set(arms[-6:].tolist())) == 1 for arms in recommended)
        # Before that, one of them had changed.
        assert any(len(set(arms[-8:-1].tolist())) > 1 for arms in recommended)


def test_a_front_that_is_known_ends_the_run():
    proved = {"width": tb.widths.Srinivas(0.05)}
    policy = outcomes.epal(models(**proved), minimize=["cost"], epsilon={"yield": 1.0, "cost": 3.0})
    bandit = tb.OutcomeBandit(policy, PROBLEM.tensor)
    rule, pulls = tb.stopping.FrontKnown(), 0
    while not (decision := bandit.should_stop(rule, tb.stopping.Budget(pulls=200))):
        assert int(bandit.pareto_set().undecided.sum()) > 0 or pulls == 0
        selection = bandit.ask()
        bandit.tell(selection, torch.tensor(TRUTH[selection.index.tolist()]))
        pulls += 1
    assert 0 < pulls < 200
    assert decision.reason.startswith("with probability 0.9 every arm is known to be Pareto optimal or not")
    assert not bandit.pareto_set().undecided.any()
    strict = bandit.should_stop(tb.stopping.FrontKnown({"yield": 0.0, "cost": 0.0}))
    left = bandit.pareto_set({"yield": 0.0, "cost": 0.0}).undecided.sum()
    assert strict.value.tolist() == [int(left)] * 2
    for policy, message in (
        (outcomes.pareto(models(**proved)), "epsilon must have a number for yield, cost"),
        (outcomes.epal(models(), epsilon=dict.fromkeys(NAMES, 1.0)), "have no theorem"),
        (outcomes.pareto({name: tb.auto() for name in NAMES}), "whose kernels are given"),
        (POLICIES["constrained"](), "without limits"),
    ):
        other = tb.OutcomeBandit(policy, PROBLEM.tensor)
        other.tell(torch.tensor([0]), torch.zeros(1, 2))
        with pytest.raises(errors.TorchBanditsError, match=message):
            other.should_stop(rule)
    with pytest.raises(errors.UnsupportedError, match="several outcomes"):
        tb.Bandit(models()["yield"], PROBLEM.tensor).should_stop(rule)
    with pytest.raises(errors.ArgumentError, match="numbers ≥ 0 by outcome"):
        tb.stopping.FrontKnown({"yield": -1.0})


# ------------------------------------------------------------------ bad input


@pytest.mark.usefixtures("annotations_not_enforced")
def test_bad_policies_are_named():
    good = models()
    for wrong, message in (
        (lambda: outcomes.pareto({}), "models must be policies"),
        (lambda: outcomes.pareto([tb.uniform()]), "models must be policies"),
        (lambda: outcomes.pareto({"a": 3}), r"models\['a'\] must be a torchbandits policy"),
        (lambda: outcomes.pareto({"a": tb.uniform()}), "model of 'a' must be one Gaussian process"),
        (lambda: outcomes.pareto({"a": tb.batch_bkb(kernel(1, 1))}), "use gp_ucb, igp_ucb, bkb"),
        (lambda: outcomes.pareto(good | {"cost": tb.gp_ucb(kernel(1, 1), prior_mean="estimate")}), "prior_mean must be that"),
        (lambda: outcomes.pareto(good | {"cost": tb.bkb(kernel(1, 1))}), "memory must be that of 'yield'"),
        (lambda: outcomes.pareto(good | {"cost": tb.gp_ucb(gpytorch.kernels.MaternKernel())}), "must be of one form"),
        (lambda: outcomes.pareto(good, scalarization="sum"), "chebyshev, linear, hypervolume, improvement"),
        (lambda: outcomes.pareto(good, minimize="cost"), "minimize must be a list"),
        (lambda: outcomes.pareto(good, minimize=["costs"]), "not one of the outcomes, yield, cost.*cost"),
        (lambda: outcomes.pareto(good, reference={"yield": 1.0}), "no number for cost"),
        (lambda: outcomes.pareto(models(acquisition="ei"), scalarization="linear"), "score of the models is LogEI"),
        (
            lambda: outcomes.pareto(models(tb.thompson_sampling), scalarization="improvement"),
            "score of the models is PosteriorDraw",
        ),
        (lambda: outcomes.epal(good, epsilon={"yield": 0.0, "cost": 1.0}), "must be > 0"),
        (lambda: outcomes.epal(models(tb.thompson_sampling), epsilon={"yield": 1.0, "cost": 1.0}), "needs bounds"),
        (lambda: outcomes.constrained(good, maximize="yield"), "there are no limits"),
        (lambda: outcomes.constrained(good, at_most={"cost": 1.0}), "name one objective"),
        (lambda: outcomes.constrained(good, maximize="yield", at_most={"cost": float("nan")}), "finite number"),
        (lambda: outcomes.constrained(good, maximize="yeld", at_most={"cost": 1.0}), "yield"),
        (lambda: outcomes.constrained(good, maximize="yield", at_most={"cost": 1.0}, certainty=1.0), "certainty"),
        (lambda: outcomes.constrained(good, maximize="yield", at_most={"cost": 1.0}, optimism=2.0), "from 0 to 1, got 2.0"),
        (lambda: outcomes.pareto(good, optimism=-1.0), "from 0 to 1, got -1.0"),
        (lambda: tb.per_cost(outcomes.safe(good, start=[0], maximize="yield", at_most={"cost": 1.0})), "safe.. none"),
        (lambda: tb.per_cost(outcomes.pareto(good), exponent=-1.0), "exponent"),
        (lambda: tb.per_cost(outcomes.pareto(good), baseline=1.0), "baseline is for one outcome"),
        (lambda: tb.OutcomeBandit(tb.per_cost(outcomes.pareto(good)), PROBLEM.tensor), "pass costs="),
        (
            lambda: tb.OutcomeBandit(outcomes.pareto(good), PROBLEM.tensor, costs=torch.ones(3)),
            "costs must be one number per arm",
        ),
        (lambda: outcomes.safe(good, start=[], maximize="yield", at_most={"cost": 1.0}), "at least one"),
        (lambda: outcomes.safe(good, start=[0], maximize="yield", at_most={"cost": 1.0}, expand=-1), "expand"),
        (
            lambda: outcomes.safe(models(initial=tb.starts.uniform(5)), start=START, maximize="yield", at_most={"cost": 2.0}),
            "may be of unsafe arms: leave initial= out",
        ),
        (lambda: tb.Bandit(outcomes.pareto(good), PROBLEM.tensor), "OutcomeBandit"),
        (lambda: tb.ContextualBandit(outcomes.pareto(good), PROBLEM.tensor, PROBLEM.tensor[:2]), "contexts are for one"),
        (lambda: tb.OutcomeBandit(good["yield"], PROBLEM.tensor), "policy must be a policy of torchbandits.outcomes"),
        (lambda: tb.OutcomeBandit(POLICIES["safe"](), PROBLEM.tensor[:2]), "start names arm"),
        (lambda: tb.OutcomeBandit(POLICIES["safe"](), PROBLEM.tensor).set_arms_(PROBLEM.tensor), "start= names arms of"),
    ):
        with pytest.raises(errors.TorchBanditsError, match=message):
            wrong()


@pytest.mark.usefixtures("annotations_not_enforced")
def test_bad_calls_change_nothing():
    shown = tb.OutcomeBandit(POLICIES["constrained"](), PROBLEM.tensor)
    shown.tell([3, 4], torch.tensor([[1.0, 1.5], [0.5, torch.nan]]))
    assert "yield 2, cost 1" in repr(shown)
    assert "mean cost" in repr(shown.best(2))
    bandit = tb.OutcomeBandit(POLICIES["constrained"](), PROBLEM.tensor)
    for wrong, message in (
        (lambda: bandit.best(), "told"),
        (lambda: bandit.tell(bandit.ask(), torch.zeros(1)), r"rewards must be \(1, 2\), the last dimension being yield, cost"),
        (lambda: bandit.tell(bandit.ask(), torch.full((1, 2), torch.nan)), "no measured outcome"),
        (lambda: bandit.tell(bandit.ask(), torch.tensor([[1.0, torch.inf]])), "inf"),
        (lambda: bandit.tell(bandit.ask(), {"price": [1.0]}), "names 'price', which is not one of the outcomes, yield, cost"),
        (lambda: bandit.tell(bandit.ask(), {"cost": [1.0, 2.0]}), r"rewards\['cost'\] must be \(1,\)"),
        (lambda: bandit.tell(bandit.ask(), torch.zeros(1, 2), failures="drop"), "failures"),
        (lambda: bandit.tell(bandit.ask(), torch.zeros(1, 2), noise_var=torch.ones(1)), "noise_var must be one number"),
        (lambda: bandit.tell(torch.tensor([99]), torch.zeros(1, 2)), "arm index 99"),
        (lambda: bandit.observe(torch.tensor([1]), torch.ones(1), torch.ones(1)), r"sums must be \(1, 2\)"),
        (lambda: bandit.front(), "pass minimize="),
        (lambda: bandit.front(minimize=["prize"]), "not one of the outcomes"),
        (lambda: bandit.pareto_set(), "pass epsilon="),
        (lambda: bandit.pareto_set({"yield": -1.0, "cost": 1.0}, minimize=[]), "≥ 0"),
        (lambda: bandit.ask(maximizer=len), "leave out maximizer"),
    ):
        with pytest.raises(errors.TorchBanditsError, match=message):
            wrong()
    assert bandit.pulls.tolist() == [0, 0]
    assert len(bandit.ask()) == 1
    cautious = tb.OutcomeBandit(POLICIES["safe"](), PROBLEM.tensor)
    with pytest.raises(errors.ArgumentError, match="none of the available arms is known to be safe"):
        cautious.ask(available=torch.arange(40) != START[0])
    other = tb.OutcomeBandit(POLICIES["linear"](), PROBLEM.tensor)
    other.tell(other.ask(), torch.zeros(1, 2))
    with pytest.raises(errors.UnsupportedError, match="no single arm is the best"):
        other.best()


# ---------------------------------------------------------------------- replicates


def bowls(size: int = 120) -> tuple[Tensor, Tensor]:
    """Arms, and two outcomes with peaks at different places."""
    arms = torch.rand(size, 3, generator=generator(0), dtype=torch.float64)
    return arms, torch.stack([-4 * (arms - peak).square().sum(dim=-1) for peak in (0.3, 0.7)], dim=-1)


REPLICATING: dict[str, dict[str, Any]] = {
    "pareto": {},
    "pareto with a limit": {"objectives": ["a", "b"], "at_least": {"b": -3.0}},
    "constrained": {"maximize": "a", "at_least": {"b": -2.0}},
}


def replicating(name: str, **options: Any) -> Any:
    make = outcomes.constrained if name == "constrained" else outcomes.pareto
    return make({outcome: tb.auto(**options) for outcome in ("a", "b")}, **REPLICATING[name])


@pytest.mark.sweep(1)
@pytest.mark.filterwarnings("ignore::torchbandits.errors.DiagnosticWarning")
@pytest.mark.parametrize(("step", "copies"), [(1, 1), (4, 1), (4, 3)])
@pytest.mark.parametrize("name", REPLICATING)
def test_every_eighth_pick_repeats_a_recommended_arm(
    name: str, step: int, copies: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    arms, true = bowls()
    arms, true = arms.repeat(copies, 1), true.repeat(copies, 1)
    if copies > 1:
        # Means of equal arms that differ by rounding, where later copies are a little better.
        marginals, more = joint_policy.marginals, 1e-9 * torch.arange(len(arms))
        monkeypatch.setattr(joint_policy, "marginals", lambda state: [marginals(state)[0] + more, marginals(state)[1]])
    bandit = tb.OutcomeBandit(replicating(name), arms, generator=generator(1), journal=tmp_path / "run")
    without = replicating(name, replicate_every=0)
    noise = torch.randn(44, 2, generator=generator(2), dtype=torch.float64)
    for made in range(0, 40, step):
        bandit.loop.sync_()
        state, pulls = bandit.loop.state, bandit.counts[0]
        plain = None if made < 6 else without.select(copy.deepcopy(state), exactly=step)[0].index[0].tolist()
        likely: set[int] = set()
        if made >= 8 and "pareto" in name:
            likely = set(bandit.front(minimize=[], pulled=True).index.tolist())
            if not likely - {-1}:  # No arm keeps the limit for certain.
                free = tb.OutcomeBandit(replicating("pareto"), arms)
                free.load_state_dict(bandit.state_dict() | {"policy": free.recorder.described})
                likely = set(free.front(minimize=[], pulled=True).index.tolist())
        elif made >= 8:
            likely = set(bandit.best(3).index.tolist())
        picks = bandit.ask(exactly=step).index.tolist()
        place, rule = (-made - 1) % 8, bandit.policy.engine.from_data
        assert rule is not None
        known = made >= 8 and bool(rule.knows_noise(state).all())
        if plain is not None and (place >= step or known):
            assert picks == plain
        elif likely:
            left = likely - set(picks[:place])
            assert picks[:place] == plain[:place]
            assert picks[place] in left
            assert pulls[picks[place]] == min(pulls[arm] for arm in left)
        bandit.tell(torch.tensor(picks), true[picks] + noise[made : made + step])
    resumed = tb.OutcomeBandit(replicating(name), arms, generator=generator(1), journal=_copy_of(tmp_path / "run"))
    assert torch.equal(resumed.ask().index, bandit.ask().index)


def _copy_of(path: Path) -> Path:
    to = path.with_name("copy")
    to.write_bytes(path.read_bytes())
    return to


@pytest.mark.exhaustive
@pytest.mark.filterwarnings("ignore::torchbandits.errors.DiagnosticWarning")
def test_replicates_end_when_the_noise_of_every_outcome_is_known():
    arms, true = bowls()
    bandit = tb.OutcomeBandit(replicating("pareto"), arms, generator=generator(1))
    while bandit.counts[0].sum() < 48:
        picks = bandit.ask(exactly=8).index
        # The first outcome has no noise, the second one has much.
        bandit.tell(picks, true[picks] + torch.tensor([0.0, 1.0]) * torch.randn(8, 2, generator=generator(int(picks[0]))))
    rule, state = bandit.policy.engine.from_data, bandit.loop.state
    assert rule is not None
    assert rule.knows_noise(state).tolist() == [True, False]
    due = rule.replicates_one_by_one(state, 16)
    assert due is not None
    assert due.tolist() == [place % 8 == 7 for place in range(16)]
    unseen = bandit.counts[0] == 0
    assert bool(unseen[bandit.ask(exactly=8, available=unseen).index].all()), "no told arm is on offer"
    bandit.forget(bandit.ask())
    measured = (bandit.counts[0] > 0).nonzero().squeeze(-1)[:10]
    bandit.tell(measured, true[measured] + torch.tensor([0.0, 1.0]) * torch.randn(10, 2, generator=generator(7)))
    assert rule.replicates_one_by_one(bandit.loop.state, 16) is None
    molecules = tb.sources.Fingerprints(torch.randint(0, 256, (40, 8), generator=generator(0), dtype=torch.uint8))
    other = tb.OutcomeBandit(replicating("pareto"), molecules, generator=generator(1))
    assert rule.replicates_one_by_one(other.loop.state, 16) is None


@pytest.mark.exhaustive
def test_explanation_says_what_features_do_not_explain():
    rng = np.random.default_rng(15)
    x = rng.uniform(size=(300, 2))
    smooth = np.sin(4 * x[:, 0]) + x[:, 1]
    rewards = torch.as_tensor(np.stack([smooth, smooth + rng.normal(size=300)], axis=-1))
    policy = outcomes.pareto({"smooth": tb.auto(batch_size=10), "rough": tb.auto(batch_size=10)})
    bandit, noise = tb.OutcomeBandit(policy, torch.as_tensor(x), generator=generator(1)), generator(2)
    for _ in range(12):
        selection = bandit.ask()
        deviations = 0.3 * torch.randn(len(selection), 2, generator=noise, dtype=torch.float64)
        bandit.tell(selection, rewards[selection.index] + deviations)
    said = bandit.explain()
    assert said.unexplained[0] < 0.1
    assert 0.3 < said.unexplained[1] < 0.9
    smooth_line, rough_line = said.lines()
    assert "does not follow" not in smooth_line
    assert f"About {said.unexplained[1]:.0%} of the variance between arms, by rank, does not follow the features." in rough_line
