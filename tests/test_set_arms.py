"""Changes of the arm set: all observations are kept, including those of removed arms."""

from __future__ import annotations

import warnings

import gpytorch
import numpy as np
import oracles
import pytest
import torch
from contract import ARMS, CASES, PROBLEM, Case, every_policy, proceed
from problems import BOUNDED, COMMON, Problem, generator, kernel_pair, rbf

import torchbandits as tb
from torchbandits import errors
from torchbandits.testing.play import differences, everything

POOL = Problem(seed=11, a=400)
# Cells, arms discarded for good, several posteriors: set_arms_ raises UnsupportedError.
BOUND = {"ada_bkb", "bpe", "lb_gp_ucb", "reds", "sup_kernel_ucb"}
MAKERS = {
    "gp_ucb": lambda kernel: tb.gp_ucb(kernel, **COMMON),
    "estimated mean": lambda kernel: tb.igp_ucb(kernel, prior_mean="estimate", **BOUNDED),
    "gp_bucb": lambda kernel: tb.gp_bucb(kernel, max_batch_size=4, **BOUNDED),
    "bkb": lambda kernel: tb.bkb(kernel, **BOUNDED),
    "batch_bkb": lambda kernel: tb.batch_bkb(kernel, max_batch_size=4, **BOUNDED),
    "thompson_sampling": lambda kernel: tb.thompson_sampling(kernel, **BOUNDED),
}

movable = pytest.mark.parametrize(
    "case",
    [pytest.param(case, marks=[pytest.mark.exhaustive] if case.mode else []) for case in CASES if case.name not in BOUND],
    ids=str,
)


def expected(bandit: tb.Bandit, kernel: oracles.KernelFunction, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and variance by the oracle, only from the statistics (and the dictionary, if there is one)."""
    posterior = bandit.posterior
    u, n, s = (x.numpy() for x in (posterior.statistics.points, posterior.statistics.weights, posterior.statistics.sums))
    mu = s.sum() / n.sum() if posterior.prior_mean == "estimate" else 0.0
    lam = posterior.regularization
    chosen = posterior.dictionary.numpy() if posterior.sparse else np.ones(len(u), dtype=bool)
    K_mu, K_ma = kernel(u[chosen], u), kernel(u[chosen], points)
    z = oracles.pseudo_root(kernel(u[chosen], u[chosen]))
    Z_u, Z_a = z @ K_mu, z @ K_ma
    V = (Z_u * n) @ Z_u.T + lam * np.eye(len(Z_u))
    mean = mu + Z_a.T @ np.linalg.solve(V, Z_u @ (s - n * mu))
    variance = oracles.diagonal(kernel, points) - (Z_a**2).sum(0) + lam * (Z_a * np.linalg.solve(V, Z_a)).sum(0)
    return mean, variance


@pytest.mark.sweep(1)
@pytest.mark.parametrize("name", MAKERS)
def test_masks_and_new_arms_leave_what_the_statistics_say(name: str):
    """1,000 random masks and 50 sets of arms, each with new arms."""
    theirs, ours = kernel_pair("matern32")
    rng = np.random.default_rng(0)
    here = rng.choice(POOL.a, 80, replace=False)
    bandit = tb.Bandit(MAKERS[name](theirs), POOL.tensor[here], generator=generator(0))
    told: dict[int, list[float]] = {}
    pull = 0
    for step in range(1000):
        available = torch.as_tensor(rng.uniform(size=len(here)) < 0.3)
        available[rng.integers(len(here))] = True
        selection = bandit.ask(limit=3, available=available)
        assert bool(available[selection.index].all())
        arms = here[selection.index.numpy()]
        assert np.array_equal(POOL.arms[arms], selection.points.numpy())
        rewards = torch.tensor([POOL.reward(pull + j, a) for j, a in enumerate(arms)], dtype=torch.float64)
        if step % 20 == 7:  # open picks stay open in the new set
            here = np.union1d(rng.choice(POOL.a, rng.integers(40, 120), replace=False), arms)
            assert bandit.set_arms_(POOL.tensor[here]) is bandit
            moved = bandit.ask()
            assert np.array_equal(here[moved.index.numpy()], arms)
            selection = moved
        bandit.tell(selection, rewards)
        pull += len(arms)
        for arm, y in zip(arms, rewards.tolist(), strict=True):
            told.setdefault(int(arm), []).append(y)
    statistics = bandit.posterior.statistics
    assert len(told) == statistics.size
    for point, n, s in zip(statistics.points, statistics.weights.tolist(), statistics.sums.tolist(), strict=True):
        arm = int(np.flatnonzero((POOL.arms == point.numpy()).all(axis=1))[0])
        assert n == len(told[arm])
        assert s == pytest.approx(sum(told[arm]), abs=1e-10)
    assert bandit.counts.tolist() == [len(told.get(int(a), [])) for a in here]
    mean, variance = expected(bandit, ours, POOL.arms)
    marginals = bandit.posterior(POOL.tensor)
    state = bandit.loop.state
    lam = bandit.posterior.regularization
    np.testing.assert_allclose(marginals.mean.numpy(), mean, atol=1e-9)
    np.testing.assert_allclose(marginals.variance.numpy(), variance, atol=1e-10)
    np.testing.assert_allclose(state.arm_mean().numpy(), mean[here], atol=1e-9)
    np.testing.assert_allclose(lam * state.arm_leverage().numpy(), variance[here], atol=1e-10)


@pytest.mark.sweep(6)
@movable
def test_the_same_arms_again_change_nothing(case: Case):
    bandit, twin = case.bandit(pulls=12), case.bandit(pulls=12)
    best, counts, before = bandit.best(3), bandit.counts, everything(bandit)
    bandit.set_arms_(PROBLEM.tensor.clone())
    after = everything(bandit)
    assert torch.equal(bandit.counts, counts)
    assert torch.equal(bandit.best(3).index, best.index)
    kept = [k for k in before["state"] if "rows" in k or "statistics" in k or k == "told"]
    assert differences({k: before["state"][k] for k in kept}, {k: after["state"][k] for k in kept}) == []
    torch.testing.assert_close(after["state"]["log_det"], before["state"]["log_det"], rtol=1e-12, atol=1e-12)
    if case.name != "pi_gp_ucb":  # whose cover is split anew
        assert proceed(bandit, 12) == proceed(twin, 12)


@pytest.mark.sweep(7)
@movable
@pytest.mark.parametrize("rows", [0, 2])
def test_arms_go_and_come_back(case: Case, rows: int):
    """With half of the arms in another order, and then all arms again, counts and recommendations follow the points."""
    generators = [generator(30 + r) for r in range(rows)] or generator(30)
    bandit = tb.Bandit(case.policy(), PROBLEM.tensor, generator=generators)
    index = torch.arange(ARMS // 2).expand(*bandit.batch_shape, -1)
    rewards = PROBLEM.rewards(0, torch.arange(ARMS // 2)).expand(index.shape)
    bandit.observe(index, torch.ones_like(index, dtype=torch.float64), rewards)
    counts = bandit.counts
    half = torch.arange(ARMS - 1, -1, -2)
    if case.name == "pi_gp_ucb":
        with pytest.raises(errors.UnsupportedError, match="pulled"):
            bandit.set_arms_(PROBLEM.tensor[half])
        half = torch.cat([torch.arange(ARMS // 2).flip(0), torch.tensor([ARMS - 1])])
    bandit.set_arms_(PROBLEM.tensor[half])
    assert torch.equal(bandit.counts, counts[..., half])
    known = bandit.best(2).index
    where = torch.where(known >= 0, half[known.clamp_min(0)], -1)
    assert bool((counts.gather(-1, where.clamp_min(0))[where >= 0] > 0).all())
    for _ in range(3):
        selection = bandit.ask(limit=2)
        assert torch.equal(selection.points[selection.mask], PROBLEM.tensor[half][selection.index[selection.mask]])
        bandit.tell(selection, torch.zeros_like(selection.index, dtype=torch.float64))
    later = bandit.counts
    bandit.set_arms_(PROBLEM.tensor)
    assert torch.equal(bandit.counts[..., half], later)
    away = torch.ones(ARMS, dtype=torch.bool).index_fill(0, half, False)
    assert torch.equal(bandit.counts[..., away], counts[..., away])
    bandit.tell(bandit.ask(limit=2), torch.zeros_like(bandit.ask().index, dtype=torch.float64))


@pytest.mark.sweep(7)
@every_policy
def test_what_can_not_be_taken_changes_nothing(case: Case):
    bandit = case.bandit(pulls=8)
    opened = bandit.ask(limit=2)
    before = everything(bandit)
    gone = torch.ones(ARMS, dtype=torch.bool).index_fill(0, opened.index, False)
    holes = PROBLEM.tensor.masked_fill(PROBLEM.tensor > 0.9, torch.nan)
    wrong = [
        (errors.StateError, PROBLEM.tensor[gone]), (errors.ShapeError, PROBLEM.tensor[:, :1]), (errors.NonFiniteError, holes),
        (errors.ShapeError, PROBLEM.tensor[:0]), (errors.ShapeError, PROBLEM.tensor.float()),
        (errors.ShapeError, PROBLEM.tensor.expand(3, -1, -1)),
    ]  # fmt: skip
    for error, arms in wrong:
        with pytest.raises(error):
            bandit.set_arms_(arms)
        assert differences(before, everything(bandit)) == []
    assert torch.equal(bandit.ask().index, opened.index)


def test_bound_neighbours_boxes_and_phases_say_so():
    for case in (case for case in CASES if case.name in BOUND):
        bandit = case.bandit(pulls=5)
        before = everything(bandit)
        with pytest.raises(errors.UnsupportedError, match="observe"):
            bandit.set_arms_(PROBLEM.tensor)
        assert differences(before, everything(bandit)) == []
    neighbors = torch.zeros(ARMS, 1, dtype=torch.int64)
    bandit = tb.Bandit(tb.regularized_evolution(population=3, tournament=2, neighbors=neighbors), PROBLEM.tensor)
    with pytest.raises(errors.UnsupportedError, match="neighbours"):
        bandit.set_arms_(PROBLEM.tensor[:20])
    bandit = tb.Bandit(tb.thompson_sampling(rbf(), embedding="qff"), PROBLEM.tensor)
    with pytest.raises(errors.UnsupportedError, match="box"):
        bandit.set_arms_(PROBLEM.tensor + 1)


def test_history_at_points_becomes_an_arm_when_its_arm_arrives():
    """Equal points are merged, in one call or in several; a point that equals an arm is that arm from the start."""
    bandit = tb.Bandit(tb.gp_ucb(rbf(), **COMMON), PROBLEM.tensor[:20])
    bandit.observe(PROBLEM.tensor[[25, 3]], torch.ones(2).double(), torch.tensor([0.5, 0.1], dtype=torch.float64))
    bandit.observe(
        PROBLEM.tensor[[25, 25]], torch.tensor([0.5, 0.5], dtype=torch.float64), torch.tensor([0.3, 0.4], dtype=torch.float64)
    )
    assert bandit.dictionary.tolist() == [-1, 3]
    assert bandit.posterior.statistics.weights.tolist() == [2.0, 1.0]
    assert float(bandit.counts[3]) == 1
    bandit.set_arms_(PROBLEM.tensor)
    assert bandit.dictionary.tolist() == [25, 3]
    assert bandit.best(2).index.tolist() == [25, 3]
    bandit.tell(torch.tensor([25]), torch.tensor([0.6], dtype=torch.float64))
    fresh = tb.Bandit(tb.gp_ucb(rbf(), **COMMON), PROBLEM.tensor)
    fresh.observe(torch.tensor([25, 3]), torch.tensor([3.0, 1.0]), torch.tensor([1.8, 0.1], dtype=torch.float64))
    for ours, theirs in zip(*(vars(b.posterior(PROBLEM.tensor)).values() for b in (bandit, fresh)), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-9)


def test_hallucinations_end_with_the_arms_they_were_made_on():
    """Picks that were pending when the arms changed no longer reduce variances after they are forgotten or told."""
    bandit = tb.Bandit(tb.gp_ucb(rbf(), **COMMON), PROBLEM.tensor)
    proceed(bandit, 3)
    selection = bandit.ask()
    assert float(bandit.posterior(selection.points).variance) < 0.02, "pending"
    bandit.forget(selection)
    bandit.set_arms_(PROBLEM.tensor.clone())
    fresh = tb.Bandit(tb.gp_ucb(rbf(), **COMMON), PROBLEM.tensor)
    proceed(fresh, 3)
    torch.testing.assert_close(bandit.posterior(selection.points).variance, fresh.posterior(selection.points).variance)


def test_the_largest_prior_variance_is_that_of_pulls_too():
    """widths.BKB accounts for every pull, including pulls of removed arms."""
    arms = torch.cat([10 * PROBLEM.tensor[:20], 0.01 * PROBLEM.tensor[20:]])
    kernel = gpytorch.kernels.LinearKernel().double()
    bandit = tb.Bandit(tb.bkb(kernel, noise_std=0.1, width=tb.widths.BKB(0.1, 1.0, 1e-3, 0.01)), arms)
    for _ in range(5):
        selection = bandit.ask()
        bandit.tell(selection, selection.points.sum(dim=-1))
    before = bandit.width
    bandit.set_arms_(arms[20:])
    torch.testing.assert_close(bandit.width, before, rtol=1e-9, atol=0)


def test_joint_draws_of_a_row_do_not_depend_on_what_others_have_outside_the_arms():
    policy = tb.thompson_sampling(rbf(), batch_size=2, **BOUNDED)
    problems = [PROBLEM, Problem(seed=9, a=ARMS)]
    bandits = [tb.Bandit(policy, PROBLEM.tensor, generator=[generator(1), generator(2)])]
    bandits += [tb.Bandit(policy, PROBLEM.tensor, generator=generator(1 + r)) for r in range(2)]
    for step in range(6):
        for number, bandit in enumerate(bandits):
            if step == 3:
                bandit.set_arms_(PROBLEM.tensor[:12])
            index = bandit.ask().index
            own = problems if number == 0 else [problems[number - 1]]
            rows = index.reshape(-1, index.shape[-1])
            y = torch.stack([p.rewards(2 * step, i) for p, i in zip(own, rows, strict=True)]).reshape(index.shape)
            bandit.tell(index, y)
    assert torch.equal(bandits[0].counts, torch.stack([b.counts for b in bandits[1:]]))


def told_late(arms: torch.Tensor, *, rows: int | None, part: bool) -> None:
    """Tell a selection that was made before the arms were replaced, and compare with a bandit of the new arms."""
    policy = tb.gp_ucb(rbf(), width=tb.widths.Constant(2.0), **COMMON)
    seeds = {"generator": generator(0) if rows is None else [generator(row) for row in range(rows)]}
    bandit, fresh = tb.Bandit(policy, PROBLEM.tensor, **seeds), tb.Bandit(policy, arms, **seeds)
    shape = () if rows is None else (rows,)
    early = bandit.ask(more=4)
    bandit.set_arms_(arms)
    now = bandit.ask()
    assert torch.equal(now.points, early.points)
    places = [2, 0] if part else [0, 1, 2, 3]
    rewards = torch.arange(len(places), dtype=torch.float64).expand(*shape, -1)
    with warnings.catch_warnings():
        warnings.simplefilter("error", errors.DiagnosticWarning)
        report = bandit.tell(early[places], rewards)
    assert not bool(report.unasked.any())
    fresh.tell(now.index[..., places], rewards)
    assert torch.equal(bandit.counts, fresh.counts)
    if part:
        bandit.forget(early[[1, 3]])
    assert bandit.loop.open is None
    for ours, theirs in zip(*(vars(b.posterior(arms)).values() for b in (bandit, fresh)), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-9)


@pytest.mark.parametrize("part", [False, True])
@pytest.mark.parametrize("rows", [None, 2])
def test_a_selection_made_before_the_arms_changed_is_told_at_its_points(rows: int | None, part: bool):
    """Its indices were taken for those of the new arms, and the rewards went to other arms."""
    told_late(PROBLEM.tensor.flip(0), rows=rows, part=part)


def test_an_earlier_selection_whose_index_is_open_for_another_arm():
    """No warning could show it: the index that it had is that of a pick which is open now."""
    bandit = tb.Bandit(tb.gp_ucb(rbf(), **COMMON), PROBLEM.tensor[:2])
    early = bandit.ask(more=2)
    bandit.set_arms_(PROBLEM.tensor[:2].flip(0))
    bandit.tell(early[:1], torch.tensor([5.0]))
    assert float(bandit.posterior(early.points[:1]).mean) > 4
    assert torch.equal(bandit.ask().points, early.points[1:])


def test_a_selection_at_an_arm_that_was_removed_is_refused():
    bandit = tb.Bandit(tb.gp_ucb(rbf(), **COMMON), PROBLEM.tensor)
    gone = bandit.ask()
    bandit.forget(gone)
    bandit.set_arms_(PROBLEM.tensor[torch.arange(ARMS) != gone.index])
    before = everything(bandit)
    for call in (lambda: bandit.tell(gone, torch.tensor([1.0])), lambda: bandit.forget(gone)):
        with pytest.raises(errors.StateError, match=r"1 picks of this selection are at arms that were removed .* observe\(\)"):
            call()
    assert differences(before, everything(bandit)) == []


def test_an_earlier_selection_of_several_outcomes_is_told_at_its_points():
    models = {name: tb.gp_ucb(rbf(), **COMMON) for name in ("a", "b")}
    bandit = tb.OutcomeBandit(tb.outcomes.pareto(models), PROBLEM.tensor)
    early = bandit.ask(more=3)
    bandit.set_arms_(PROBLEM.tensor.flip(0))
    bandit.tell(early[:2], {"a": [1.0, 2.0], "b": [0.0, 0.5]})
    assert bandit.counts[0].nonzero().squeeze(-1).tolist() == sorted((ARMS - 1 - early.index[:2]).tolist())
    bandit.forget(early[2:])
    assert bandit.loop.open is None


@pytest.mark.parametrize("rows", [None, 2])
@pytest.mark.parametrize("policy", [tb.gp_ucb(rbf(), **COMMON), tb.uniform()], ids=["posterior", "sums"])
def test_a_removed_arm_is_not_recommended(policy: tb.Policy, rows: int | None):
    """It was recommended with index −1; the removed arm has the highest mean, and the second best is an arm that stays."""
    bandit = tb.Bandit(policy, PROBLEM.tensor, generator=generator(0) if rows is None else [generator(r) for r in range(rows)])
    index, shape = torch.tensor([3, 7, 11, 20]), () if rows is None else (rows,)
    # Arm 3 is the best one in the first row; arm 20 is the best one in the second.
    rewards = torch.tensor([[9.0, 1.0, 2.0, 0.0], [9.0, 1.0, 2.0, 12.0]], dtype=torch.float64)
    bandit.tell(index.expand(*shape, -1), rewards[0] if rows is None else rewards)
    assert bandit.best_arm().reshape(-1).tolist() == ([3] if rows is None else [3, 20])
    stays = torch.arange(ARMS) != 3
    bandit.set_arms_(PROBLEM.tensor[stays])
    best, expected = bandit.best(4), [[10, 6, 19, -1]] if rows is None else [[10, 6, 19, -1], [19, 10, 6, -1]]
    ours = best.index.reshape(len(expected), -1).tolist()
    marginals = bandit.posterior(PROBLEM.tensor[index]) if bandit.loop.state.tabulated else None
    assert [sorted(row) for row in ours] == [sorted(row) for row in expected]
    assert [row[0] for row in ours] == [row[0] for row in expected]
    assert torch.equal(best.points[..., :3, :], PROBLEM.tensor[stays][best.index[..., :3]])
    assert bool(best.mean[..., 3].isnan().all())
    assert bool(best.points[..., 3, :].isnan().all())
    if marginals is not None:
        means = dict(zip([-1, 6, 10, 19], marginals.mean.reshape(-1, 4)[0].tolist(), strict=True))
        assert best.mean.reshape(-1, 4)[0, :3].tolist() == pytest.approx([means[arm] for arm in ours[0][:3]])
    assert torch.equal(bandit.best_arm(), best.index[..., 0])
    arm = bandit.should_stop(tb.stopping.Budget(pulls=1)).arm
    assert torch.equal(arm, best.index[..., 0])
    # The arm is recommended again when it is back.
    bandit.set_arms_(PROBLEM.tensor)
    assert bandit.best_arm().reshape(-1).tolist() == ([3] if rows is None else [3, 20])


def test_nothing_is_recommended_when_every_pulled_arm_was_removed():
    bandit = tb.Bandit(tb.gp_ucb(rbf(), **COMMON), PROBLEM.tensor)
    bandit.tell(torch.tensor([3, 7]), torch.tensor([1.0, 2.0]))
    bandit.set_arms_(PROBLEM.tensor[10:])
    best = bandit.best(2)
    assert best.index.tolist() == [-1, -1]
    assert bool(best.mean.isnan().all())
    assert int(bandit.best_arm()) == -1
    assert int(bandit.should_stop(tb.stopping.Budget(pulls=1)).arm) == -1
    assert bandit.explain().lines()[0].startswith("Best so far: a point that is none of the arms")


def test_points_of_a_history_are_recommended_in_a_box_only():
    points, ones = torch.tensor([[0.3, 0.2], [0.7, 0.9]], dtype=torch.float64), torch.ones(2, dtype=torch.float64)
    box = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
    fixed = {"width": tb.widths.Constant(2.0), **COMMON}
    for policy in (tb.gp_ucb(rbf(), **fixed), tb.ada_bkb(rbf(), horizon=50, **fixed)):
        bandit = tb.Bandit(policy, bounds=box)
        bandit.observe(points, ones, torch.tensor([1.0, 2.0]))
        assert torch.equal(bandit.best().points, points[1:])
        assert int(bandit.best().index) == -1
    bandit = tb.Bandit(tb.gp_ucb(rbf(), **fixed), PROBLEM.tensor)
    bandit.observe(points, ones, torch.tensor([1.0, 2.0]))
    assert bandit.best().index.tolist() == [-1]
    assert bool(bandit.best().points.isnan().all())
    bandit.tell(torch.tensor([5]), torch.tensor([0.1]))
    assert bandit.best(2).index.tolist() == [5, -1]


@pytest.mark.parametrize("rows", [None, 2])
def test_an_earlier_selection_is_told_at_its_points_after_the_state_was_loaded(rows: int | None):
    """A bandit of another process did not know that the arms had been replaced, and read the old indices among the new arms."""
    policy, seeds = tb.gp_ucb(rbf(), **COMMON), [generator(row) for row in range(rows or 1)]
    bandit = tb.Bandit(policy, PROBLEM.tensor, generator=seeds[0] if rows is None else seeds)
    early, arms = bandit.ask(more=3), PROBLEM.tensor.flip(0)
    bandit.set_arms_(arms)
    saved = [bandit.state_dict()]
    for _ in range(2):  # a state that was loaded and saved again, too
        fresh = tb.Bandit(policy, arms, generator=seeds[0] if rows is None else seeds).load_state_dict(saved[-1])
        saved.append(fresh.state_dict())
    rewards = torch.ones(early.index.shape, dtype=torch.float64)[..., :2]
    with warnings.catch_warnings():
        warnings.simplefilter("error", errors.DiagnosticWarning)
        fresh.tell(early[:2], rewards)
    for row, told in enumerate((ARMS - 1 - early.index[..., :2]).reshape(-1, 2).tolist()):
        assert fresh.counts.reshape(-1, ARMS)[row].nonzero().squeeze(-1).tolist() == sorted(told)
    fresh.forget(early[2:])
    assert fresh.loop.open is None


@pytest.mark.parametrize("estimated", [False, True])
def test_arms_that_may_be_better_than_a_removed_one_are_counted_by_its_lower_bound(estimated: bool):
    """They were compared with its mean, in reward units also where the model has units of its own."""
    policy = tb.auto() if estimated else tb.gp_ucb(rbf(), width=tb.widths.Constant(2.0), **COMMON)
    bandit = tb.Bandit(policy, PROBLEM.tensor, generator=generator(0))
    rewards = PROBLEM.rewards(0, torch.arange(12))
    bandit.tell(torch.arange(12), 100 + 10 * rewards if estimated else rewards)
    best = int(bandit.best_arm())
    with_it = bandit.explain()
    bandit.set_arms_(PROBLEM.tensor[torch.arange(ARMS) != best])
    without = bandit.explain()
    assert without.best.index.tolist() == [-1]
    assert torch.equal(without.best.points, with_it.best.points)
    assert 0 < with_it.rivals < ARMS - 1
    assert without.rivals == with_it.rivals


@pytest.mark.exhaustive
@pytest.mark.parametrize("failing", [False, True])
def test_auto_with_a_dictionary_is_saved_and_loaded_after_its_arms_changed(failing: bool):
    """Its posterior was exact at first, as that of the bandit which loads the state is; so is the model of failures."""
    g = generator(0)
    arms = torch.rand(1100, 2, generator=g, dtype=torch.float64)
    policy = tb.auto(batch_size=4, memory_budget=16 * 1100 * 8)
    bandit = tb.Bandit(policy, arms, generator=generator(1))
    for place in range(0, 40, 4):
        rewards = torch.rand(4, generator=g, dtype=torch.float64)
        rewards[0] = torch.nan if failing else 0.5
        bandit.tell(torch.arange(place, place + 4), rewards, failures="forget")
    before = bandit.state_dict()
    moved = arms.flip(0).contiguous()
    bandit.set_arms_(moved)
    assert bandit.loop.state.posterior.sparse
    saved = bandit.state_dict()
    for state, own in ((before, arms), (saved, moved)):
        tb.Bandit(policy, own, generator=generator(2)).load_state_dict(state)
    bandit.load_state_dict(saved)
    again = tb.Bandit(policy, moved, generator=generator(3))
    again.load_state_dict(saved)
    assert torch.equal(again.ask().index, bandit.ask().index)
