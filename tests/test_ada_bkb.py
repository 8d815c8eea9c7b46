"""Ada-BKB: picks against a recursive oracle, cells, bounds, and both kinds of domain."""

from __future__ import annotations

import copy
import io
import math
from typing import Any

import gpytorch
import numpy as np
import oracles
import pytest
import torch
from oracles_adabkb import Tree
from problems import DELTA, NOISE_STD, Problem, generator, kernel_pair, rbf
from torch import Tensor

import torchbandits as tb
from torchbandits import errors
from torchbandits.testing.play import differences

EVERYTHING = 1e12  # oversampling that keeps every pulled point
WIDTHS = {"practical": None, "constant": 2.0}  # multiples of the norm bound; None for the practical width
BOX = torch.tensor([[-0.5, 0.0], [1.0, 1.2]], dtype=torch.float64)


def constant(width: str, norm_bound: float) -> float | None:
    times = WIDTHS[width]
    return None if times is None else times * norm_bound


def policy(kernel: gpytorch.kernels.Kernel, constant: float | None = None, **options: Any) -> Any:
    width = None if constant is None else tb.widths.Constant(constant)
    options = {"noise_std": NOISE_STD, "delta": DELTA, "horizon": 60, "width": width} | options
    return tb.ada_bkb(kernel, **options)


class Member:
    """A random function of the RKHS: Σ a_j k(x_j, ·) with centres in a box."""

    def __init__(self, kernel: oracles.KernelFunction, seed: int, lower: np.ndarray, upper: np.ndarray, terms: int = 8):
        rng = np.random.default_rng(seed)
        self.kernel, self.centres = kernel, rng.uniform(lower, upper, size=(terms, len(lower)))
        self.weights = rng.uniform(-1, 1, size=terms)
        self.norm = math.sqrt(self.weights @ kernel(self.centres, self.centres) @ self.weights)
        self.noise = NOISE_STD * rng.normal(size=2_000)

    def __call__(self, x: Any) -> np.ndarray:
        x = np.asarray(x)
        return (self.kernel(x.reshape(-1, x.shape[-1]), self.centres) @ self.weights).reshape(x.shape[:-1])

    def rewards(self, t: int, points: Tensor) -> Tensor:
        return torch.as_tensor(self(points) + self.noise[t : t + points.shape[-2]])


def play(bandit: tb.Bandit, f: Member, pulls: int) -> list[int]:
    picks = []
    for _ in range(pulls):
        selection = bandit.ask()
        bandit.tell(selection, f.rewards(int(bandit.pulls), selection.points))
        picks += selection.index.tolist()
    return picks


def arms_in_box(number: int) -> Tensor:
    return BOX[0] + torch.rand(number, 2, generator=generator(2), dtype=torch.float64) * (BOX[1] - BOX[0])


def tree(bandit: tb.Bandit) -> Any:
    return bandit.loop.state.tree


# ------------------------------------------------------------------------- the oracle


@pytest.mark.sweep(1)
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("kernel", ["rbf", "matern12", "scaled"])
@pytest.mark.parametrize("seed", range(3))
def test_picks_on_a_box_are_those_of_the_oracle(kernel: str, width: str, seed: int):
    dim, (theirs, ours) = seed + 1, kernel_pair(kernel, 0.5)
    lower, upper = -0.3 * np.ones(dim), np.linspace(0.9, 1.3, dim)
    f, norm_bound = Member(ours, seed, lower, upper), 1.0 + seed
    options = {"norm_bound": norm_bound, "oversampling": EVERYTHING, "num_children": 5 if seed == 1 else 3}
    box = torch.as_tensor(np.stack([lower, upper]))
    bandit = tb.Bandit(policy(theirs, constant(width, norm_bound), **options), bounds=box, generator=generator(seed))
    depth, lam = tree(bandit).max_depth, NOISE_STD**2
    oracle = Tree(ours, lower, upper, lam, norm_bound, depth, options["num_children"])
    picks = play(bandit, f, 25)
    expected = oracle.play(25, lambda t, x: float(f(x) + f.noise[t]), constant(width, norm_bound), NOISE_STD, DELTA)
    assert picks == expected
    # The package has already split cells up to its next pick.
    oracle.pick(oracle.width(constant(width, norm_bound), NOISE_STD, DELTA))
    np.testing.assert_allclose(bandit.arms, np.stack(oracle.points), rtol=0, atol=1e-12)
    leaves = sorted(oracle.root.leaves(), key=lambda leaf: leaf.representative)
    order = tree(bandit).place.argsort()
    assert tree(bandit).depth[order].tolist() == [leaf.depth for leaf in leaves]
    np.testing.assert_allclose(tree(bandit).variation[order], [leaf.variation for leaf in leaves], rtol=1e-7, atol=1e-7)
    assert len(leaves) > 5
    assert len(set(picks)) > 3


@pytest.mark.sweep(1)
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("kernel", ["rbf", "matern12", "linear"])
@pytest.mark.parametrize("seed", range(3))
def test_picks_among_arms_are_those_of_the_oracle(kernel: str, width: str, seed: int):
    problem = Problem(seed=40 + seed, a=70, d=seed + 1, duplicates=4, near_duplicates=3, distance=1e-4)
    (theirs, ours), norm_bound = kernel_pair(kernel, 0.5), 1.0 + seed
    options = {"norm_bound": norm_bound, "oversampling": EVERYTHING, "horizon": None if seed else 20}
    bandit = tb.Bandit(policy(theirs, constant(width, norm_bound), **options), problem.tensor, generator=generator(seed))
    depth = tree(bandit).max_depth or math.inf
    lower, upper = problem.arms.min(0), problem.arms.max(0)
    oracle = Tree(ours, lower, upper, NOISE_STD**2, norm_bound, depth, arms=problem.arms)
    picks = [pick for batch in problem.play(bandit, 25) for pick in batch]

    def reward(t: int, x: np.ndarray) -> float:
        return problem.reward(t, int((problem.arms == x).all(1).argmax()))

    expected = oracle.play(25, reward, constant(width, norm_bound), NOISE_STD, DELTA)
    assert picks == [oracle.arm_of_point[place] for place in expected]
    assert len(set(picks)) > (1 if kernel == "linear" else 3)
    arm = tree(bandit).arm
    oracle.pick(oracle.width(constant(width, norm_bound), NOISE_STD, DELTA))
    members = {oracle.arm_of_point[leaf.representative]: leaf.members for leaf in oracle.root.leaves()}
    leaf_of_arm = tree(bandit).division.leaf_of_arm
    assert {int(a): (leaf_of_arm == i).nonzero().flatten().tolist() for i, a in enumerate(arm)} == members


# ------------------------------------------------------------------------- cells


@pytest.mark.sweep(1)
@pytest.mark.parametrize("dim", [1, 2, 4])
def test_the_leaves_partition_the_box(dim: int):
    lower, upper = -np.ones(dim), np.linspace(1, 2, dim)
    f = Member(oracles.rbf(0.5), dim, lower, upper)
    bandit = tb.Bandit(policy(rbf(0.5)), bounds=torch.as_tensor(np.stack([lower, upper])), generator=generator(0))
    play(bandit, f, 40)
    t = tree(bandit)
    volume = (t.upper - t.lower).prod(dim=-1)
    assert float(volume.sum()) == pytest.approx(float(np.prod(upper - lower)), rel=1e-12)
    points = torch.as_tensor(np.random.default_rng(0).uniform(lower, upper, size=(500, dim))).unsqueeze(1)
    assert (((points >= t.lower) & (points < t.upper)).all(dim=-1).sum(dim=-1) == 1).all()
    torch.testing.assert_close(bandit.arms[t.arm], (t.lower + t.upper) / 2, rtol=0, atol=1e-12)
    assert sorted(t.arm.tolist()) == list(range(len(bandit.arms))), "every arm is the representative of one leaf"
    sides = t.upper - t.lower
    assert (sides.amax(dim=-1) <= 3.001 * sides.amin(dim=-1) * float((upper - lower).max() / (upper - lower).min())).all()


@pytest.mark.sweep(1)
@pytest.mark.parametrize("dim", [1, 3])
def test_the_leaves_partition_the_arms(dim: int):
    problem = Problem(seed=8, a=200, d=dim, duplicates=20)
    bandit = tb.Bandit(policy(rbf(0.3), 1.0), problem.tensor, generator=generator(0))
    problem.play(bandit, 60)
    t, arms = tree(bandit), problem.tensor
    first = torch.tensor([int((problem.arms == x).all(1).argmax()) for x in problem.arms])
    leaf = t.division.leaf_of_arm
    assert ((leaf >= 0) == (first == torch.arange(200))).all(), "every distinct arm is in one leaf"
    assert len(t.arm) > 5
    for i, a in enumerate(t.arm):
        mine = (leaf == i).nonzero().flatten()
        assert ((arms[mine] >= t.lower[i] - 1e-12) & (arms[mine] <= t.upper[i] + 1e-12)).all()
        away = (arms[mine] - (t.lower[i] + t.upper[i]) / 2).square().sum(dim=-1)
        assert int(mine[away.argmin()]) == int(a)


@pytest.mark.exhaustive
def test_the_depth_is_bounded_by_the_horizon():
    for horizon, dim, N, alpha, kernel in ((100, 1, 3, 1.0, "rbf"), (30, 2, 5, 0.5, "matern12"), (30, 2, 3, 1.0, "matern32")):
        box = torch.stack([torch.zeros(dim), torch.ones(dim)])
        theirs, ours = kernel_pair(kernel, 0.5)
        # With a width near 0, cells are split down to the largest depth.
        bandit = tb.Bandit(policy(theirs, 0.05, horizon=horizon, num_children=N), bounds=box, generator=generator(0))
        limit = math.ceil(dim * math.log(horizon) / (2 * alpha * math.log(N)))
        assert tree(bandit).max_depth == limit
        play(bandit, Member(ours, 3, np.zeros(dim), np.ones(dim)), 12)
        assert int(tree(bandit).depth.max()) == limit


def test_few_of_many_arms_are_looked_at():
    arms = torch.rand(20_000, 3, generator=generator(1), dtype=torch.float64)
    f = Member(oracles.rbf(0.5), 1, np.zeros(3), np.ones(3))
    bandit = tb.Bandit(policy(rbf(0.5), norm_bound=f.norm), arms, generator=generator(0))
    play(bandit, f, 50)
    looked = tree(bandit).table.arm
    assert 20 < len(looked) < 400
    assert len(set(looked.tolist())) == len(looked)


# ------------------------------------------------------------------------- bounds


@pytest.mark.sweep(1)
@pytest.mark.parametrize("kernel", ["rbf", "matern12", "matern32", "matern52", "scaled"])
def test_functions_of_the_space_vary_by_at_most_v_in_a_cell_of_a_box(kernel: str):
    """If the bound equals the function at the representatives, the index is above the function in the whole leaf."""
    theirs, ours = kernel_pair(kernel, 0.4)
    lower, upper = BOX.numpy()
    for seed in range(2):
        f = Member(ours, seed, lower, upper)
        bandit = tb.Bandit(policy(theirs, norm_bound=f.norm), bounds=BOX, generator=generator(seed))
        play(bandit, f, 25)
        t = tree(bandit)
        inside = t.lower + torch.rand(300, len(t.place), 2, generator=generator(seed), dtype=torch.float64) * (
            t.upper - t.lower
        )
        values, own = torch.as_tensor(f(inside)), torch.as_tensor(f(bandit.arms[t.arm]))
        assert ((values - own).abs() <= t.variation + 1e-9).all()
        index = t.index(torch.as_tensor(f(bandit.arms[t.table.arm])))
        assert (values <= index + 1e-9).all()
        deep = t.depth > 0
        assert (t.variation[deep] < t.parent_variation[deep]).all()


def periodic() -> tuple[gpytorch.kernels.Kernel, oracles.KernelFunction]:
    """A kernel that is not monotone in the distance, so that corners of a cell are not its extremes."""
    kernel = gpytorch.kernels.PeriodicKernel().double()
    kernel.lengthscale, kernel.period_length = torch.tensor(0.7).double(), torch.tensor(0.3).double()

    def ours(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        sines = np.sin(np.pi * (x[:, None] - y[None]) / kernel.period_length.item()) ** 2
        return np.exp(-2 * sines.sum(-1) / kernel.lengthscale.item())

    return kernel, ours


@pytest.mark.sweep(1)
@pytest.mark.parametrize("name", ["rbf", "matern12", "linear", "periodic"])
def test_functions_of_the_space_vary_by_at_most_v_in_a_cell_of_arms(name: str):
    theirs, ours = periodic() if name == "periodic" else kernel_pair(name, 0.4)
    for seed in range(2):
        problem = Problem(seed=seed, a=150)
        f = Member(ours, seed, np.zeros(2), np.ones(2))
        bandit = tb.Bandit(policy(theirs, norm_bound=f.norm), problem.tensor, generator=generator(seed))
        play(bandit, f, 25)
        t = tree(bandit)
        leaf, values = t.division.leaf_of_arm, torch.as_tensor(f(problem.arms))
        away = (values - values[t.arm[leaf]]).abs()
        assert (away <= t.variation[leaf] + 1e-7).all()
        assert (values <= t.index(values[t.table.arm])[leaf] + 1e-7).all()
        single = torch.bincount(leaf, minlength=len(t.arm)) == 1
        assert (t.variation[single] == 0).all()
        if name != "linear":
            assert (t.variation[~single] > 0).all()


@pytest.mark.sweep(1)
@pytest.mark.parametrize("domain", ["box", "arms"])
@pytest.mark.parametrize("norm_bound", [0.5, 4.0])
def test_the_best_leaf_is_always_one_to_be_evaluated(domain: str, norm_bound: float):
    """Checked with the public posterior before the first pull, after each pull, and after history by index and by points."""
    f = Member(oracles.rbf(0.4), 2, *BOX.numpy())
    given = {"bounds": BOX} if domain == "box" else {"arms": arms_in_box(400)}
    bandit = tb.Bandit(policy(rbf(0.4), norm_bound=norm_bound), generator=generator(0), **given)
    evaluated = []

    def check() -> None:
        t = tree(bandit)
        own, parent = (bandit.posterior(bandit.arms[t.table.arm[p]]) for p in (t.place, t.parent_place))
        w = bandit.width
        upper, above = own.mean + w * own.variance.sqrt(), parent.mean + w * parent.variance.sqrt() + t.parent_variation
        index = torch.minimum(upper, above) + t.variation
        best = int(index.argmax())
        assert (w * own.variance[best].sqrt() > t.variation[best]) | (t.depth[best] == t.max_depth)
        pick = bandit.ask()
        assert float(index[best] - index[(t.arm == pick.index).nonzero().item()]) <= 1e-7
        evaluated.append(int(pick.index))
        bandit.forget(pick)

    check()
    for step in range(20):
        bandit.tell(bandit.ask(), f.rewards(step, bandit.ask().points))
        check()
    bandit.observe(torch.tensor([0, 2]), torch.tensor([3.0, 1.5]), torch.tensor([0.3, -0.2]))
    check()
    bandit.observe(torch.tensor([[0.3, 0.3], [0.9, 0.1]]), torch.tensor([1.0, 2.0]), torch.tensor([0.2, 0.1]))
    check()
    assert len(set(evaluated)) > 5


@pytest.mark.sweep(1)
@pytest.mark.parametrize("domain", ["box", "arms"])
def test_the_certificate_holds_for_functions_of_the_space(domain: str):
    """Under the theorem's width, with every pulled point in the dictionary, no point is better than the arm of the largest
    lower bound by more than the certificate, at any step of any run; and the certificate shrinks."""
    fine = torch.cartesian_prod(*(torch.linspace(float(a), float(b), 60) for a, b in BOX.T)).double()
    for seed in range(3):
        f = Member(oracles.matern(1.5, 0.5), seed, *BOX.numpy())
        width = tb.widths.KernelUCB(NOISE_STD, f.norm, DELTA, NOISE_STD**2)
        given = {"bounds": BOX} if domain == "box" else {"arms": fine}
        options = {"norm_bound": f.norm, "oversampling": EVERYTHING, "width": width}
        bandit = tb.Bandit(policy(kernel_pair("matern32", 0.5)[0], **options), generator=generator(seed), **given)
        best, certificates = float(f(fine).max()), []
        for step in range(40):
            selection = bandit.ask()
            report = bandit.tell(selection, f.rewards(step, selection.points))
            arms = bandit.arms[tree(bandit).table.arm]
            at = bandit.posterior(arms)
            safe = arms[(at.mean - bandit.width * at.variance.sqrt()).argmax()]
            certificates.append(float(report.certificate))
            assert best - float(f(safe)) <= certificates[-1]
        assert certificates[-1] < 0.8 * certificates[0]


# ------------------------------------------------------------------------- asking


@pytest.mark.parametrize("domain", ["box", "arms"])
def test_further_picks_count_those_pending_as_told(domain: str):
    """Each further pick is the best leaf under the variances of `posterior`, on the same tree."""
    f = Member(oracles.rbf(0.4), 2, *BOX.numpy())
    given = {"bounds": BOX} if domain == "box" else {"arms": arms_in_box(400)}
    bandit = tb.Bandit(policy(rbf(0.4), 10.0), generator=generator(0), **given)
    play(bandit, f, 15)
    bandit.ask()
    arms, t, w = len(bandit.arms), tree(bandit), bandit.width
    together = copy.deepcopy(bandit)
    for more in range(5):
        at = bandit.posterior(bandit.arms[t.table.arm])
        index = t.index(at.mean + w * at.variance.sqrt())
        pick = int(bandit.ask(more=1).index[-1])
        assert float(index.max() - index[(t.arm == pick).nonzero().item()]) <= 1e-7
        assert len(bandit.ask()) == more + 2
    assert torch.equal(together.ask(more=5).index, bandit.ask().index)
    assert len(bandit.arms) == arms
    assert len(set(bandit.ask().index.tolist())) > 1


def test_arms_that_are_off():
    """The pick is the best leaf with its representative on offer, or else the arm on offer of the largest upper bound."""
    problem = Problem(seed=5, a=120)
    bandit = tb.Bandit(policy(rbf(0.3)), problem.tensor, generator=generator(0))
    problem.play(bandit, 25)
    t, w = tree(bandit), bandit.width
    at = bandit.posterior(problem.tensor)
    upper = at.mean + w * at.variance.sqrt()
    index = t.index(upper[t.table.arm])
    best = int(t.arm[index.argmax()])
    available = torch.ones(120, dtype=torch.bool)
    available[best] = False
    rest = torch.where(t.arm == best, -torch.inf, index)
    assert int(copy.deepcopy(bandit).ask(available=available).index) == int(t.arm[rest.argmax()])
    others = torch.ones(120, dtype=torch.bool)
    others[t.arm] = False
    before = copy.deepcopy(bandit.state_dict())
    pick = copy.deepcopy(bandit).ask(available=others)
    assert int(pick.index) == int(torch.where(others, upper, -torch.inf).argmax())
    assert differences(before, bandit.state_dict()) == []
    selection = bandit.ask(available=others)
    bandit.ask(more=2, available=others)
    bandit.tell(bandit.ask(), problem.rewards(0, bandit.ask().index))
    assert bandit.counts[selection.index] >= 1


# ------------------------------------------------------------------------- a box as a domain


@pytest.mark.exhaustive
def test_rows_of_a_batch_of_boxes_are_singles():
    """Rows with their own boxes, kernels, norm bounds and generators, which find different numbers of arms, equal single
    runs."""
    lengthscales, norms = [0.3, 0.5, 0.9], torch.tensor([0.5, 1.0, 3.0], dtype=torch.float64)
    boxes = torch.stack([BOX, BOX * 2, BOX - 0.4])
    kernel = gpytorch.kernels.RBFKernel(batch_shape=torch.Size([3])).double()
    kernel.lengthscale = torch.tensor(lengthscales, dtype=torch.float64).reshape(3, 1, 1)
    f = [Member(oracles.rbf(ell), row, *boxes[row].numpy()) for row, ell in enumerate(lengthscales)]
    batch = tb.Bandit(policy(kernel, norm_bound=norms), bounds=boxes, generator=[generator(r) for r in range(3)])
    singles = [
        tb.Bandit(policy(rbf(ell), norm_bound=float(norms[row])), bounds=boxes[row], generator=generator(row))
        for row, ell in enumerate(lengthscales)
    ]
    for step in range(25):
        together, alone = batch.ask(), [single.ask() for single in singles]
        assert together.index.tolist() == [selection.index.tolist() for selection in alone]
        torch.testing.assert_close(together.points, torch.stack([s.points for s in alone]), rtol=0, atol=1e-12)
        rewards = [f[row].rewards(step, selection.points) for row, selection in enumerate(alone)]
        report = batch.tell(together, torch.stack(rewards))
        for row, (single, selection, y) in enumerate(zip(singles, alone, rewards, strict=True)):
            own = single.tell(selection, y)
            assert float(own.certificate) == pytest.approx(float(report.certificate[row]), rel=1e-6)
    sizes = [len(single.arms) for single in singles]
    assert len(set(sizes)) > 1
    assert batch.arms.shape == (3, max(sizes), 2)
    for row, single in enumerate(singles):
        torch.testing.assert_close(batch.arms[row, : sizes[row]], single.arms, rtol=0, atol=1e-12)
        assert torch.equal(batch.arms[row, sizes[row] :], batch.arms[row, :1].expand(max(sizes) - sizes[row], -1))
        assert torch.equal(batch.counts[row, : sizes[row]], single.counts)
        assert int(batch.best_arm()[row]) == int(single.best_arm())
    few = int(np.argmin(sizes))
    padded = torch.zeros(3, 1, dtype=torch.int64)
    padded[few] = max(sizes) - 1
    batch.tell(padded, torch.zeros(3, 1))
    assert float(batch.counts[few, 0]) == float(singles[few].counts[0]) + 1, "padding is arm 0"


@pytest.mark.sweep(1)
@pytest.mark.parametrize("rows", [0, 2])
def test_a_saved_run_on_a_box_continues_as_the_undisturbed_one_does(rows: int):
    f = Member(oracles.rbf(0.4), 4, *BOX.numpy())
    generators = [generator(r) for r in range(rows)] or generator(0)
    bandit, resumed = (tb.Bandit(policy(rbf(0.4)), bounds=BOX, generator=copy.deepcopy(generators)) for _ in range(2))

    def proceed(b: tb.Bandit, pulls: int) -> list[Tensor]:
        picks = []
        for _ in range(pulls):
            selection = b.ask()
            picks.append(selection.points)
            b.tell(selection, torch.as_tensor(f(selection.points)))
        return picks

    proceed(bandit, 12)
    proceed(resumed, 3)
    bandit.observe(bandit.arms[..., :1, :] + 0.05, *torch.ones(2, *bandit.batch_shape, 1))
    bandit.ask()
    bandit.ask(more=2)
    file = io.BytesIO()
    torch.save(bandit.state_dict(), file)
    file.seek(0)
    resumed.load_state_dict(torch.load(file, weights_only=True))
    assert differences(bandit.state_dict(), resumed.state_dict()) == []
    assert torch.equal(bandit.arms, resumed.arms)
    for one, other in zip(proceed(bandit, 15), proceed(resumed, 15), strict=True):
        assert torch.equal(one, other)
    assert len(bandit.arms) == len(resumed.arms)
    assert torch.equal(bandit.best().index, resumed.best().index)
    foreign = tb.Bandit(policy(rbf(0.4)), bounds=BOX + 1, generator=copy.deepcopy(generators))
    with pytest.raises(errors.StateError, match="box"):
        foreign.load_state_dict(bandit.state_dict())
    with pytest.raises(errors.StateError):
        tb.Bandit(policy(rbf(0.4)), bandit.arms, generator=copy.deepcopy(generators)).load_state_dict(bandit.state_dict())


def test_a_failed_tell_on_a_box_leaves_no_trace():
    f = Member(oracles.rbf(0.4), 4, *BOX.numpy())
    bandit = tb.Bandit(policy(rbf(0.4)), bounds=BOX, generator=generator(0))
    play(bandit, f, 10)
    twin, before = copy.deepcopy(bandit), copy.deepcopy(bandit.state_dict())
    with pytest.raises(errors.NumericalError):
        bandit.tell(torch.tensor([1, 1]), torch.tensor([1.7e308, 1.7e308], dtype=torch.float64))
    assert differences(before, bandit.state_dict()) == []
    assert play(bandit, f, 10) == play(twin, f, 10)
    assert differences(twin.state_dict(), bandit.state_dict()) == []


@pytest.mark.usefixtures("annotations_not_enforced")
def test_domains_that_will_not_do_say_what_would():
    with pytest.raises(errors.ArgumentError, match="either arms"):
        tb.Bandit(policy(rbf()), BOX, bounds=BOX)
    with pytest.raises(errors.ArgumentError, match="either arms"):
        tb.Bandit(policy(rbf()))
    for other in (tb.epsilon_greedy(), tb.bpe(rbf(), horizon=10), tb.pi_gp_ucb(rbf(), nu=1.5, horizon=10)):
        with pytest.raises(errors.UnsupportedError, match=r"SobolEngine.*ada_bkb"):
            tb.Bandit(other, bounds=BOX)
    for kernel in (kernel_pair("linear")[0], periodic()[0], gpytorch.kernels.RBFKernel(active_dims=(0,)).double()):
        with pytest.raises(errors.UnsupportedError, match=type(kernel).__name__):
            tb.Bandit(policy(kernel), bounds=BOX)
        tb.Bandit(policy(kernel), torch.rand(10, 2, generator=generator(0)))
    with pytest.raises(errors.ArgumentError, match="horizon="):
        tb.Bandit(policy(rbf(), horizon=None), bounds=BOX)
    for box in (BOX[:1], BOX.flip(0), BOX * torch.nan, BOX.bool(), "box", torch.zeros(2, 0)):
        with pytest.raises(errors.ArgumentError, match=r"bounds|bound must"):
            tb.Bandit(policy(rbf()), bounds=box)
    for wrong in ({"num_children": 4}, {"num_children": 1}, {"horizon": 0}, {"norm_bound": -1.0}, {"prior_mean": "guess"}):
        with pytest.raises(errors.ArgumentError, match=next(iter(wrong))):
            policy(rbf(), **wrong)
    with pytest.raises(errors.ShapeError, match="features"):
        tb.Bandit(policy(gpytorch.kernels.RBFKernel(ard_num_dims=3).double()), bounds=BOX)
