"""Tasks, such as a past campaign: a kernel on the task feature, compared with a dense Gaussian process with loops over
tasks."""

from __future__ import annotations

from typing import Any

import gpytorch
import numpy as np
import oracles
import oracles_outcomes
import pytest
import torch
from problems import Problem, generator
from scipy import stats

import torchbandits as tb
from torchbandits import outcomes
from torchbandits.errors import ArgumentError, TorchBanditsError

PROBLEM = Problem(seed=5, a=25)
COVARIANCE = np.array([[1.3, 0.9], [0.9, 1.1]])
BOTH = np.concatenate([np.column_stack([PROBLEM.arms, np.full(25, t)]) for t in (0.0, 1.0)])
TARGET = torch.arange(50) < 25
NOISE = 0.1


def kernel(covariance: np.ndarray | None = COVARIANCE, lengthscale: float = 0.4) -> Any:
    base = gpytorch.kernels.RBFKernel(active_dims=[0, 1])
    tasks = tb.TaskKernel(2, active_dims=[2])
    product = (base * tasks).double()
    base.lengthscale = lengthscale
    if covariance is not None:
        b = torch.tensor([1.0, covariance[0, 1]], dtype=torch.float64)
        rest = torch.tensor([covariance[0, 0], covariance[1, 1]]) - b.square()
        tasks.initialize(factor=b, raw_variance=tasks.raw_variance_constraint.inverse_transform(rest))
    return product


def gram(left: np.ndarray, right: np.ndarray, covariance: np.ndarray = COVARIANCE) -> np.ndarray:
    rbf = oracles.rbf(0.4)(left[:, :2], right[:, :2])
    for i in range(len(left)):
        for j in range(len(right)):
            rbf[i, j] *= covariance[int(left[i, 2]), int(right[j, 2])]
    return rbf


def test_the_kernel_is_that_of_gpytorch():
    own = tb.TaskKernel(3, active_dims=[1]).double()
    own.initialize(factor=torch.tensor([0.3, -0.8, 1.1]), raw_variance=torch.tensor([0.1, 0.5, -1.0]))
    other = gpytorch.kernels.IndexKernel(num_tasks=3, rank=1, active_dims=[1]).double()
    other.initialize(covar_factor=own.factor.detach().unsqueeze(-1), raw_var=own.raw_variance.detach())
    x = torch.tensor([[0.5, 0.0], [0.1, 2.0], [0.2, 1.0], [0.7, 2.0]], dtype=torch.float64)
    torch.testing.assert_close(own(x, x[:2]).to_dense(), other._eval_covar_matrix()[x[:, 1].long()][:, x[:2, 1].long()])
    torch.testing.assert_close(own(x, diag=True), own(x).to_dense().diagonal())
    torch.testing.assert_close(tb.TaskKernel(2).covariance, torch.tensor([[1.0, 0.5], [0.5, 1.0]]))
    rows = tb.TaskKernel(2, batch_shape=torch.Size([3]), active_dims=[1])
    assert rows(x.float()[[0, 2]]).to_dense().shape == (3, 2, 2)
    with pytest.raises(ArgumentError, match="num_tasks"):
        tb.TaskKernel(0)


@pytest.mark.parametrize(
    ("task", "got"),
    [([0.0, 0.4, 1.0], "0.4"), ([0.0, 1.0, 2.0], "2"), ([-1.0, 1.0, 1.0], "-1"), ([0.0, 1.0, 1.002], "1.002")],
)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_what_is_no_task_is_refused(task: list[float], got: str, dtype: torch.dtype):
    """It was rounded: with the wrong feature in `active_dims`, every value from 0 to 1 passed for one of two tasks."""
    arms = torch.cat([torch.rand(3, 2), torch.tensor(task).unsqueeze(-1)], dim=-1).to(dtype)
    with pytest.raises(ArgumentError, match=rf"must be one of 0 to 1, got {got}: check that active_dims"):
        tb.Bandit(tb.gp_ucb(kernel(), noise_std=NOISE), arms)


def test_a_task_may_be_off_by_rounding():
    own = tb.TaskKernel(3).double()
    x = torch.tensor([[0.0], [1.0], [2.0]], dtype=torch.float64)
    assert torch.equal(own(x * (1 + 1e-7) - 1e-7).to_dense(), own(x).to_dense())


@pytest.mark.parametrize("rows", [1, 2])
def test_a_past_campaign_teaches_the_present_one(rows: int):
    """Picks of the target task equal those of the dense posterior of both tasks; batch rows are separate runs."""
    arms, policy = torch.tensor(BOTH), tb.gp_ucb(kernel(), noise_std=NOISE, width=tb.widths.Constant(2.0))
    bandit = tb.Bandit(policy, arms, generator=[generator(seed) for seed in range(rows)])
    rng = np.random.default_rng(0)
    past = np.arange(25, 50, 2)
    values = PROBLEM.f[past - 25] + NOISE * rng.normal(size=(rows, len(past)))
    bandit.tell(torch.tensor(past).expand(rows, -1), torch.tensor(values))
    told = [list(zip(past.tolist(), row.tolist(), strict=True)) for row in values]
    for _ in range(6):
        picked = bandit.ask(available=TARGET).index.squeeze(-1)
        rewards = PROBLEM.f[picked] + NOISE * rng.normal(size=rows)
        for row in range(rows):
            index = [arm for arm, _ in told[row]]
            K = gram(BOTH, BOTH)
            gain = np.linalg.solve(K[np.ix_(index, index)] + NOISE**2 * np.eye(len(index)), K[index]).T
            mean, variance = gain @ [y for _, y in told[row]], (K - gain @ K[index]).diagonal()
            upper = np.where(TARGET.numpy(), mean + 2 * np.sqrt(variance), -np.inf)
            assert upper[picked[row]] >= upper.max() - 1e-8
            told[row].append((int(picked[row]), float(rewards[row])))
        bandit.tell(picked.unsqueeze(-1), torch.tensor(rewards).unsqueeze(-1))


def test_a_fit_finds_the_evidence_s_covariance_of_tasks():
    """At the fitted covariance the dense evidence is at least that at the true correlation, and at correlation 0."""
    rng = np.random.default_rng(1)
    sample = np.linalg.cholesky(gram(BOTH, BOTH) + 1e-9 * np.eye(50)) @ rng.normal(size=50) + NOISE * rng.normal(size=50)
    bandit = tb.Bandit(tb.gp_ucb(kernel(None), noise_std=NOISE), torch.tensor(BOTH))
    bandit.tell(torch.arange(50), torch.tensor(sample))
    assert bool(bandit.fit_kernel_().accepted)
    fitted, index = bandit.posterior.kernel, torch.tensor(BOTH)
    K = fitted(index[:25], index).to_dense(), fitted(index[25:], index).to_dense()
    found = torch.cat(K).detach().numpy()

    def evidence(matrix: np.ndarray) -> float:
        noisy = matrix + NOISE**2 * np.eye(50)
        return float(-0.5 * sample @ np.linalg.solve(noisy, sample) - 0.5 * np.linalg.slogdet(noisy)[1])

    assert evidence(found) >= evidence(gram(BOTH, BOTH)) - 0.1
    assert evidence(found) > evidence(gram(BOTH, BOTH, np.diag(COVARIANCE.diagonal()))) + 1
    B = fitted.kernels[1].covariance.detach().numpy()
    assert B[0, 1] / np.sqrt(B[0, 0] * B[1, 1]) > 0.5


# ---------------------------------------------------------------------- fidelities

COSTS = {0.0: 5.0, 1.0: 1.0}


def fidelity(model: Any = None, **options: Any) -> Any:
    own = tb.gp_ucb(kernel(), noise_std=NOISE, width=tb.widths.Constant(2.0)) if model is None else model
    return outcomes.fidelity({"f": own}, torch.tensor(BOTH), **{"column": 2, "target": 0.0, "costs": COSTS} | options)


def dense_pick(told: list[tuple[int, float]], pending: list[int], exponent: float, offered: np.ndarray) -> int:
    """The arm to pull, by loops over points and their two fidelities: 0 is the target, and the arm 25 places later is cheap."""
    K = gram(BOTH, BOTH)

    def posterior(index: list[int]) -> tuple[np.ndarray, np.ndarray]:
        if not index:
            return np.zeros((50, 0)), K.diagonal()
        gain = np.linalg.solve(K[np.ix_(index, index)] + NOISE**2 * np.eye(len(index)), K[index]).T
        return gain, (K - gain @ K[index]).diagonal()

    index = [arm for arm, _ in told]
    mean = posterior(index)[0] @ np.array([y for _, y in told])
    std = np.sqrt(posterior(index + pending)[1])
    rho = COVARIANCE[0, 1] / np.sqrt(COVARIANCE[0, 0] * COVARIANCE[1, 1])
    gap = np.sqrt(1 - rho**2)
    best, value = -1, -np.inf
    for x in range(25):
        teaches = std[x + 25] > np.sqrt(COVARIANCE[1, 1]) * gap * (1 / 5) ** exponent and gap > gap / 2.0
        arm = x + 25 if teaches and offered[x + 25] else x
        if not offered[arm]:
            arm = x + 25
        if offered[arm] and mean[x] + 2 * std[x] > value + 1e-9:
            best, value = arm, mean[x] + 2 * std[x]
    return best


@pytest.mark.sweep(1)
@pytest.mark.parametrize("exponent", [None, 0.0, 3.0])
def test_picks_are_those_of_the_dense_rule(exponent: float | None):
    bandit = tb.OutcomeBandit(fidelity(exponent=exponent), torch.tensor(BOTH), generator=generator(1))
    rng, told, seen = np.random.default_rng(2), [], set()
    offered = np.ones(50, bool)
    for step in range(14):
        offered = np.ones(50, bool) if step % 3 else rng.random(50) < 0.6
        selection = bandit.ask(exactly=2, available=torch.tensor(offered))
        pending: list[int] = []
        for arm in selection.index.tolist():
            assert arm == dense_pick(told, pending, 1 / 5 if exponent is None else exponent, offered)
            pending.append(arm)
            seen.add(arm >= 25)
        rewards = PROBLEM.f[[arm % 25 for arm in pending]] + NOISE * rng.normal(size=2)
        bandit.tell(selection, torch.tensor(rewards).unsqueeze(-1))
        told += zip(pending, rewards.tolist(), strict=True)
    assert seen == ({True, False} if exponent != 3.0 else seen)
    best = bandit.best(50)
    known = best.index[0][best.index[0] >= 0] if best.index.dim() > 1 else best.index[best.index >= 0]
    targets = (known < 25).tolist()
    assert targets == sorted(targets, reverse=True), "arms of the target come first"
    means = bandit.posterior(torch.tensor(BOTH)).mean[0]
    assert means[known[: sum(targets)]].diff().le(1e-12).all()


def test_batch_rows_journals_and_other_models(tmp_path: Any):
    arms = torch.tensor(BOTH)
    several = tb.OutcomeBandit(fidelity(), arms, generator=[generator(seed) for seed in range(2)])
    alone = [tb.OutcomeBandit(fidelity(), arms, generator=generator(seed)) for seed in range(2)]
    for _ in range(5):
        selection = several.ask()
        values = torch.tensor(PROBLEM.f)[selection.index % 25] * torch.tensor([[1.0], [-1.0]])
        several.tell(selection, values.unsqueeze(-1))
        for row, bandit in enumerate(alone):
            assert bandit.ask().index.tolist() == selection.index[row].tolist()
            bandit.tell(bandit.ask(), values[row].unsqueeze(-1))
    bandit = tb.OutcomeBandit(fidelity(minimize=True), arms, journal=tmp_path / "run")
    for _ in range(3):
        bandit.tell(bandit.ask(), torch.tensor(PROBLEM.f)[bandit.ask().index % 25].unsqueeze(-1))
    expected = bandit.ask().index
    bandit.journal.close()
    assert (tb.OutcomeBandit(fidelity(minimize=True), arms, journal=tmp_path / "run").ask().index == expected).all()
    estimated = tb.OutcomeBandit(fidelity(tb.auto()), arms)
    for _ in range(8):
        estimated.tell(estimated.ask(), torch.tensor(PROBLEM.f)[estimated.ask().index % 25].unsqueeze(-1))
    assert estimated.best(1).index.shape == (1,)


# ---------------------------------------------------------------------- fidelities of several outcomes

SECOND = np.array([[1.4, -0.5], [-0.5, 0.8]])
TRUTHS = np.stack([PROBLEM.f, np.cos(3 * PROBLEM.arms[:, 0]) - PROBLEM.arms[:, 1]], axis=-1)
LEVEL = 0.1


def several(kind: str, **options: Any) -> Any:
    widths = {"f": 2.0, "g": 1.5}
    make = {"acquisition": "ei"} if kind == "improvement" else {}
    models = {
        name: tb.gp_ucb(kernel(covariance), noise_std=NOISE, width=tb.widths.Constant(widths[name]), **make)
        for name, covariance in (("f", COVARIANCE), ("g", SECOND))
    }
    if kind == "growth":
        wanted = outcomes.pareto(models, minimize=["g"], reference={"f": -1.0, "g": 1.0})
    elif kind == "pareto":
        wanted = outcomes.pareto(models, minimize=["g"], reference={"f": -1.0, "g": 1.0}, scalarization="hypervolume")
    else:
        wanted = outcomes.constrained(models, maximize="f", at_most={"g": LEVEL}, certainty=0.7)
    return outcomes.fidelity(wanted, torch.tensor(BOTH), **{"column": 2, "target": 0.0, "costs": COSTS} | options)


class Dense:
    """Both posteriors by loops over the told rewards, and the rule of one pick."""

    grams = (gram(BOTH, BOTH), gram(BOTH, BOTH, SECOND))

    def __init__(self) -> None:
        self.told: list[tuple[int, np.ndarray]] = []

    def posteriors(self, pending: list[int]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Means, and deviations given told rewards and pending picks, and given only told rewards, `2 x 50` each."""
        index, values = [arm for arm, _ in self.told], np.array([y for _, y in self.told]).reshape(-1, 2)
        means, stds = np.zeros((2, 50)), np.zeros((2, 2, 50))
        for j, K in enumerate(self.grams):
            for place, own in enumerate((index + pending, index)):
                noisy = K[np.ix_(own, own)] + NOISE**2 * np.eye(len(own))
                stds[place, j] = np.sqrt((K - K[own].T @ np.linalg.solve(noisy, K[own])).diagonal())
            noisy = K[np.ix_(index, index)] + NOISE**2 * np.eye(len(index))
            means[j] = K[index].T @ np.linalg.solve(noisy, values[:, j])
        return means, stds[0], stds[1]

    def score_at_target(self, kind: str, pending: list[int], uniform: np.ndarray) -> np.ndarray:
        mean, std, known = (part[:, :25] for part in self.posteriors(pending))
        settled = {arm for arm in [*pending, *(arm for arm, _ in self.told)] if arm < 25}
        unit = [np.sqrt(COVARIANCE[0, 0]), np.sqrt(SECOND[0, 0])]
        if kind == "growth":
            signed = mean * [[1.0], [-1.0]]
            front = signed[:, sorted({arm % 25 for arm, _ in self.told} | {arm % 25 for arm in pending})].T
            growth = np.log(oracles_outcomes.expected_growth(signed, std, front, np.array([-1.0, -1.0])))
            return oracles_outcomes.unsettled(growth, settled)
        if kind == "pareto":
            weights = np.abs(stats.norm.ppf((1 + uniform) / 2))
            weights /= np.linalg.norm(weights)
            parts, seen = [], sorted({arm % 25 for arm, _ in self.told})
            reach = [max(np.sqrt(K.diagonal())) for K in self.grams]
            _, spread = oracles_outcomes.scale(mean * [[1.0], [-1.0]], seen, reach)
            for j, (sign, worst, width) in enumerate(((1, -1.0, 2.0), (-1, 1.0, 1.5))):
                parts.append(np.maximum((sign * mean[j] + width * std[j] - sign * worst) / spread[j], 0) / weights[j])
            return np.minimum(*parts)
        if kind == "improvement":
            chance = stats.norm.logcdf((LEVEL - mean[1]) / std[1])
            sure = stats.norm.logcdf((LEVEL - mean[1]) / known[1]) >= np.log(0.7)
            if not sure.any():
                return oracles_outcomes.unsettled(chance, settled)
            z = (mean[0] - mean[0][sure].max()) / std[0]
            with np.errstate(divide="ignore"):
                gain = np.log(std[0] * (stats.norm.pdf(z) + z * stats.norm.cdf(z)))
            return oracles_outcomes.unsettled(gain + chance, settled)
        lacking = np.maximum(mean[1] - 1.5 * std[1] - LEVEL, 0)
        if (lacking == 0).any():
            return np.where(lacking == 0, mean[0] + 2 * std[0], -np.inf)
        return -lacking / unit[1]

    def best(self, kind: str, pending: list[int], uniform: np.ndarray) -> tuple[np.ndarray, list[int]]:
        """The scores of the points, and the arm at which each would be evaluated."""
        score, std, arms = self.score_at_target(kind, pending, uniform), self.posteriors(pending)[1], []
        for x in range(25):
            teaches = False
            for j, (covariance, width) in enumerate(((COVARIANCE, 2.0), (SECOND, 1.5))):
                gap = np.sqrt(1 - covariance[0, 1] ** 2 / (covariance[0, 0] * covariance[1, 1]))
                enough = std[j, x + 25] > np.sqrt(covariance[1, 1]) * gap * (1 / 5) ** (1 / 5)
                teaches = teaches or bool(enough and gap > gap / width)
            arms.append(x + 25 if teaches else x)
        return score, arms


@pytest.mark.sweep(2)
@pytest.mark.parametrize("kind", ["bounds", "pareto", "growth", "improvement"])
def test_fidelities_of_several_outcomes_are_those_of_the_dense_rule(kind: str):
    bandit = tb.OutcomeBandit(several(kind), torch.tensor(BOTH), generator=generator(1))
    rng, dense, seen = np.random.default_rng(3), Dense(), set()
    for _ in range(12):
        own = torch.Generator()
        own.set_state(bandit.generators[0].get_state())
        selection, pending = bandit.ask(exactly=2), []
        for arm in selection.index.tolist():
            uniform = torch.rand(2, generator=own, dtype=torch.float64).numpy()
            score, arms = dense.best(kind, pending, uniform)
            assert score[arm % 25] >= score.max() - 1e-7 * max(1.0, abs(score.max()))
            assert arm == arms[arm % 25]
            pending.append(arm)
            seen.add(arm >= 25)
        rewards = TRUTHS[[arm % 25 for arm in pending]] * [[1.0, -1.0 if arm >= 25 else 1.0] for arm in pending]
        rewards = rewards + NOISE * rng.normal(size=(2, 2))
        bandit.tell(selection, torch.tensor(rewards))
        dense.told += list(zip(pending, rewards, strict=True))
    assert seen == {True, False}
    mean, _, known = dense.posteriors([])
    if kind in ("pareto", "growth"):
        front = bandit.front(reference={"f": -1.0, "g": 1.0})
        points = mean[:, :25].T * [1, -1]
        beaten = [any((q >= p).all() and (q > p).any() for q in points) for p in points]
        assert front.index.tolist() == np.flatnonzero(~np.array(beaten)).tolist(), "the front is that of the target"
        with pytest.raises(TorchBanditsError, match=r"those of the target fidelity count: use front\(\)"):
            bandit.pareto_set({"f": 0.1, "g": 0.1})
        with pytest.raises(TorchBanditsError, match="no single arm is the best"):
            bandit.best()
        return
    pulled = sorted({arm for arm, _ in dense.told if arm < 25})
    sure = [arm for arm in pulled if stats.norm.cdf((LEVEL - mean[1, arm]) / known[1, arm]) >= 0.7]
    expected = sorted(sure, key=lambda arm: -mean[0, arm])
    assert bandit.best(len(expected)).index.tolist() == expected, "the target's feasible arms first, by their means"


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", ["bounds", "pareto", "growth"])
def test_fidelities_of_several_outcomes_in_rows_and_journals(kind: str, tmp_path: Any):
    arms = torch.tensor(BOTH)
    together = tb.OutcomeBandit(several(kind), arms, generator=[generator(seed) for seed in range(2)])
    alone = [
        tb.OutcomeBandit(several(kind), arms, generator=generator(seed), journal=tmp_path / str(seed)) for seed in range(2)
    ]
    for step in range(6):
        selection = together.ask(exactly=2)
        values = torch.tensor(TRUTHS)[selection.index % 25] * torch.tensor([[[1.0]], [[-1.0]]])
        together.tell(selection, values)
        for row, bandit in enumerate(alone):
            assert bandit.ask(exactly=2).index.tolist() == selection.index[row].tolist()
            bandit.tell(bandit.ask(), values[row])
        if step == 3:
            for row in range(2):
                alone[row].journal.close()
                alone[row] = tb.OutcomeBandit(several(kind), arms, generator=generator(row), journal=tmp_path / str(row))
    assert together.pulls.tolist() == [[12, 12], [12, 12]]


def test_a_past_campaign_of_several_outcomes_is_a_task_that_is_not_on_offer():
    bandit = tb.OutcomeBandit(several("bounds"), torch.tensor(BOTH), generator=generator(4))
    past = torch.arange(25, 50)
    bandit.tell(past, torch.tensor(TRUTHS * [1.0, -1.0]))
    dense = Dense()
    dense.told = [(25 + x, TRUTHS[x] * [1.0, -1.0]) for x in range(25)]
    for _ in range(4):
        selection = bandit.ask(available=TARGET)
        score = dense.score_at_target("bounds", [], np.zeros(2))
        assert score[int(selection.index)] >= score.max() - 1e-7
        bandit.tell(selection, torch.tensor(TRUTHS)[selection.index])
        dense.told.append((int(selection.index), TRUTHS[int(selection.index)]))
    assert int(bandit.best().index) < 25, "what is recommended is an arm of the present task"


@pytest.mark.usefixtures("annotations_not_enforced")
def test_bad_fidelities_are_named():
    arms, two = torch.tensor(BOTH), {"f": tb.gp_ucb(kernel()), "g": tb.gp_ucb(kernel())}
    for wrong, message in (
        (lambda: fidelity(column=3), "column must be from 0 to 2"),
        (lambda: fidelity(target=2.0), "no arm has the fidelity 2"),
        (lambda: fidelity(costs={0.0: 5.0}), "no number for the fidelity 1"),
        (lambda: fidelity(costs={0.0: 5.0, 1.0: 0.0}), "numbers > 0 by fidelity"),
        (lambda: fidelity(costs=3.0), "costs must be numbers by fidelity"),
        (lambda: fidelity(exponent=-1.0), "exponent"),
        (
            lambda: outcomes.fidelity(two, arms, column=2, target=0.0, costs=COSTS),
            "models must have one outcome here, got f, g: for several",
        ),
        (
            lambda: outcomes.fidelity({"f": two["f"]}, arms[1:], column=2, target=0.0, costs=COSTS),
            "arm 24 has no counterpart at the",
        ),
        (lambda: several("bounds", minimize=True), "minimize= here is for models of one outcome"),
        (
            lambda: outcomes.fidelity(
                outcomes.safe(two, start=[0], maximize="f", at_most={"g": 1.0}), arms, column=2, target=0.0, costs=COSTS
            ),
            "a constrained or a pareto policy, got Safe",
        ),
        (
            lambda: outcomes.fidelity(
                outcomes.pareto({name: tb.thompson_sampling(kernel()) for name in two}), arms, column=2, target=0.0, costs=COSTS
            ),
            "this policy needs bounds or the improvement",
        ),
        (
            lambda: tb.OutcomeBandit(
                outcomes.fidelity(tb.per_cost(outcomes.pareto(two)), arms, column=2, target=0.0, costs=COSTS), arms
            ),
            "needs the costs of the arms: pass costs=",
        ),
        (lambda: tb.OutcomeBandit(fidelity(), arms[:30]), "made for 50 arms, and there are 30"),
        (lambda: tb.OutcomeBandit(fidelity(), arms).set_arms_(arms), "names arms of the beginning"),
    ):
        with pytest.raises(TorchBanditsError, match=message):
            wrong()
