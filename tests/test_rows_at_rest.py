"""Observations of one batch row, or a failed load, leave everything else unchanged."""

from __future__ import annotations

import copy

import gpytorch
import pytest
import torch
from contract import PROBLEM, Case, every_policy
from problems import COMMON, Problem, generator, rbf

import torchbandits as tb
from torchbandits import errors
from torchbandits.testing.play import differences, everything


@pytest.mark.sweep(7)
@every_policy
def test_a_row_that_is_told_nothing_draws_nothing(case: Case):
    """Row 0 gets a batch and row 1 none, and vice versa: each row makes the picks of a single run."""
    limits = torch.tensor([[3, 0], [0, 2], [2, 2], [1, 0], [0, 3], [2, 1], [3, 0], [1, 2]])
    batch = tb.Bandit(case.policy(), PROBLEM.tensor, generator=[generator(1), generator(2)])
    singles = [tb.Bandit(case.policy(), PROBLEM.tensor, generator=generator(1 + r)) for r in range(2)]
    told = [0, 0]
    for limit in limits:
        selection = batch.ask(limit=limit)
        rewards = torch.full(selection.index.shape, torch.nan, dtype=torch.float64)
        for r, single in enumerate(singles):
            if not int(limit[r]):
                assert not bool(selection.mask[r].any())
                continue
            alone, mine = single.ask(limit=int(limit[r])), selection.mask[r]
            assert selection.index[r][mine].tolist() == alone.index.tolist()
            y = PROBLEM.rewards(told[r], alone.index)
            single.tell(alone, y)
            rewards[r][mine] = y
            told[r] += len(alone)
        batch.tell(selection, rewards)
    for r, single in enumerate(singles):
        assert torch.equal(batch.counts[r], single.counts)
        if case.keeps_posterior:
            assert sorted(batch.dictionary[r][batch.dictionary[r] >= 0].tolist()) == sorted(single.dictionary.tolist())


def test_a_dictionary_rests_with_its_row():
    arms = Problem(seed=1, a=300).tensor
    policy = tb.batch_bkb(rbf(), noise_std=0.5, oversampling=1.0)
    bandit = tb.Bandit(policy, arms, generator=[generator(0), generator(1)])
    for _ in range(12):
        selection = bandit.ask(limit=8)
        bandit.tell(selection, torch.sin(5 * selection.points[..., 0]))
    selection = bandit.ask(limit=6)
    dictionary, drawn = bandit.dictionary[1].tolist(), bandit.generators[1].get_state()
    mean = bandit.loop.state.arm_mean()[1].clone()
    only_first = selection.mask.clone()
    only_first[1] = False
    told = tb.Selection(selection.points, selection.index, only_first)
    bandit.tell(told, torch.sin(5 * selection.points[..., 0]))
    after = bandit.dictionary[1].tolist()
    assert [arm for arm in after if arm >= 0] == [arm for arm in dictionary if arm >= 0]
    assert torch.equal(bandit.generators[1].get_state(), drawn)
    torch.testing.assert_close(bandit.loop.state.arm_mean()[1], mean, rtol=0, atol=1e-12)


@pytest.mark.sweep(7)
@every_policy
def test_a_state_that_does_not_fit_is_refused_and_changes_nothing(case: Case):
    bandit = case.bandit(pulls=7)
    bandit.ask(limit=2)
    before = everything(bandit)
    wrong = copy.deepcopy(before)
    wrong["state"]["told"] = torch.zeros(3, 2, dtype=torch.float64)
    with pytest.raises(errors.TorchBanditsError):
        bandit.load_state_dict(wrong)
    assert differences(before, everything(bandit)) == []
    bandit.load_state_dict(copy.deepcopy(before))
    assert differences(before, everything(bandit)) == []


def test_a_state_of_another_kernel_is_refused_and_changes_nothing():
    bandit = tb.Bandit(tb.gp_ucb(rbf(), **COMMON), PROBLEM.tensor)
    for pull in range(5):
        selection = bandit.ask()
        bandit.tell(selection, PROBLEM.rewards(pull, selection.index))
    before = everything(bandit)
    other = tb.Bandit(tb.gp_ucb(gpytorch.kernels.RBFKernel(ard_num_dims=2).double(), **COMMON), PROBLEM.tensor)
    with pytest.raises(errors.StateError, match="another policy"):
        bandit.load_state_dict(other.state_dict())
    assert differences(before, everything(bandit)) == []
    assert int(bandit.pulls) == 5
    for pull in range(5, 9):
        selection = bandit.ask()
        bandit.tell(selection, PROBLEM.rewards(pull, selection.index))
    assert int(bandit.pulls) == 9


class LogLengthscale(gpytorch.kernels.Kernel):
    """A user's kernel with an unusual parameter name, and with a parameter that has no effect."""

    def __init__(self) -> None:
        super().__init__()
        self.register_parameter("log_lengthscale", torch.nn.Parameter(torch.zeros(1, dtype=torch.float64)))
        self.register_parameter("unused", torch.nn.Parameter(torch.zeros(2, dtype=torch.float64)))

    def forward(self, x1: torch.Tensor, x2: torch.Tensor, diag: bool = False, **_: object) -> torch.Tensor:
        scale = self.log_lengthscale.exp()
        return torch.exp(-0.5 * self.covar_dist(x1 / scale, x2 / scale, square_dist=True, diag=diag))


def test_any_parameter_of_a_users_kernel_is_fitted():
    arms = Problem(seed=3, a=80).tensor
    index, noise = torch.arange(60), 0.05 * torch.randn(60, generator=generator(0), dtype=torch.float64)
    y = torch.sin(9 * arms[index, 0]) + noise
    bandits = [tb.Bandit(tb.gp_ucb(kernel, noise_std=0.05), arms) for kernel in (LogLengthscale(), rbf(1.0))]
    reports = []
    for bandit in bandits:
        bandit.observe(index, torch.ones(60), y)
        reports.append(bandit.fit_kernel_(restarts=(1.0,)))
    assert bool(reports[0].accepted.all())
    fitted = [float(bandits[0].posterior.kernel.log_lengthscale.exp()), float(bandits[1].posterior.kernel.lengthscale)]
    assert fitted[0] == pytest.approx(fitted[1], rel=0.05)


@pytest.mark.sweep(1)
@pytest.mark.filterwarnings("ignore::torchbandits.errors.DiagnosticWarning")  # of the row without a pattern
@pytest.mark.parametrize("kernel", ["rbf", "matern", "rq", "scaled"])
def test_rewards_without_a_pattern_end_at_the_floor_and_stay_consistent(kernel: str):
    """No lengthscale is below a quarter of the typical nearest distance, and table and posterior agree afterwards in each
    row."""
    made = {
        "rbf": gpytorch.kernels.RBFKernel, "rq": gpytorch.kernels.RQKernel,
        "matern": lambda: gpytorch.kernels.MaternKernel(1.5),
        "scaled": lambda: gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel()),
    }[kernel]().double()  # fmt: skip
    arms = Problem(seed=4, a=80).tensor
    index = torch.arange(50)
    y = torch.stack([0.3 * torch.randn(50, generator=generator(2), dtype=torch.float64), torch.sin(5 * arms[index, 0])])
    bandit = tb.Bandit(tb.gp_ucb(made, **COMMON), arms, generator=[generator(0), generator(1)])
    bandit.observe(index.expand(2, -1), torch.ones(2, 50), y)
    bandit.fit_kernel_()
    nearest = (torch.cdist(arms[:50], arms[:50]) + 9 * torch.eye(50)).amin(dim=1).median()
    base = bandit.posterior.kernel.base_kernel if kernel == "scaled" else bandit.posterior.kernel
    assert float(base.lengthscale.min()) >= float(nearest) / 4 * (1 - 1e-6)
    posterior = bandit.posterior(arms.expand(2, -1, -1))
    torch.testing.assert_close(bandit.loop.state.arm_mean(), posterior.mean, rtol=0, atol=1e-7)
    torch.testing.assert_close(0.01 * bandit.loop.state.arm_leverage(), posterior.variance, rtol=0, atol=1e-7)
