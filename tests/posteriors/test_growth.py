"""Points that join the dictionary of `auto` between two draws: against dense NumPy, and against a sweep of all arms."""

from __future__ import annotations

from typing import Any

import gpytorch
import numpy as np
import pytest
import torch
from emulated_device import emulated_device
from problems import generator
from torch import Tensor

import torchbandits as tb
from torchbandits.arms import ArmTable
from torchbandits.memory import SteadySampling
from torchbandits.posteriors import GaussianProcess
from torchbandits.posteriors.growth import Growth

pytestmark = pytest.mark.filterwarnings("ignore:.*has taken .* of the last:torchbandits.errors.DiagnosticWarning")

LAMBDA, LENGTHSCALE = 0.3, 0.6


def matern_np(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Matérn-5/2 with one lengthscale."""
    r = 5**0.5 * np.sqrt(((left[:, None] - right[None]) ** 2).sum(axis=-1)) / LENGTHSCALE
    return (1 + r + r**2 / 3) * np.exp(-r)


def dtc_np(S: np.ndarray, x: np.ndarray, n: np.ndarray, s: np.ndarray, at: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Means and leverages of the deterministic training conditional, from its equations in kernel columns."""
    K_SS, K_Sx, k = matern_np(S, S), matern_np(S, x), matern_np(S, at)
    A = LAMBDA * K_SS + (K_Sx * n) @ K_Sx.T
    explained = np.einsum("ma,ma->a", k, np.linalg.solve(K_SS, k))
    return k.T @ np.linalg.solve(A, K_Sx @ s), (1 - explained) / LAMBDA + np.einsum("ma,ma->a", k, np.linalg.solve(A, k))


def process(batch_shape: tuple[int, ...], points: Tensor, counts: Tensor, sums: Tensor, inside: Tensor) -> GaussianProcess:
    kernel = gpytorch.kernels.MaternKernel(2.5).double()
    kernel.lengthscale = torch.tensor(LENGTHSCALE, dtype=torch.float64)
    own = GaussianProcess(kernel, LAMBDA, dim=points.shape[-1], batch_shape=batch_shape, sparse=True)
    every = torch.ones(counts.shape, dtype=torch.bool)
    own.add_(own.append_(points, every), counts, sums, sums.square())
    return own.set_dictionary_(inside)


@pytest.mark.sweep(4)
@pytest.mark.parametrize("batch", [(), (2,), (2, 2)], ids=str)
@pytest.mark.parametrize("new", [0, 1, 3])
@pytest.mark.parametrize("seed", range(3))
def test_means_and_leverages_after_growth_are_those_of_the_grown_dictionary(batch: tuple[int, ...], new: int, seed: int):
    g, u = generator(seed), 12
    points = torch.rand(*batch, u + new, 2, generator=g, dtype=torch.float64)
    counts = torch.randint(1, 4, (*batch, u), generator=g).double()
    sums = torch.randn(*batch, u, generator=g, dtype=torch.float64)
    # Dictionaries of different sizes.
    inside = torch.rand(*batch, u, generator=g) < torch.linspace(0.3, 0.7, max(1, int(np.prod(batch)))).reshape(*batch, 1)
    inside[..., 0] = True
    own = process(batch, points[..., :u, :], counts, sums, inside)
    fit, before = own.fit(), own.statistics.weights
    own.invalidate_()
    rows = own.append_(points[..., u:, :], torch.ones(*batch, new, dtype=torch.bool))
    # Two old points are pulled again, and each new one twice; the last place is padding.
    rows = torch.cat([torch.tensor([1, 5]).expand(*batch, 2), rows, torch.full((*batch, 1), -1)], dim=-1)
    more, gained = torch.full(rows.shape, 2.0, dtype=torch.float64), torch.randn(rows.shape, generator=g, dtype=torch.float64)
    own.add_(rows, more, gained, gained.square())
    kernel = own.kernel(points[..., u:, :], points).to_dense().detach()
    growth = own.grow_dictionary_(fit, before, rows, kernel)
    assert isinstance(growth, Growth)
    assert growth.joined.tolist() == list(range(u, u + new))
    at = torch.rand(9, 2, generator=g, dtype=torch.float64)
    fresh = process(batch, points, own.statistics.weights, own.statistics.sums, own.dictionary)
    torch.testing.assert_close(own.log_det, fresh.log_det)
    marginals = own(at.expand(*batch, 9, 2))
    for place in np.ndindex(*batch):
        x, S = points[place].numpy(), points[place][own.dictionary[place]].numpy()
        n, s = own.statistics.weights[place].numpy(), own.statistics.sums[place].numpy()
        mean, leverage = dtc_np(S, x, n, s, at.numpy())
        np.testing.assert_allclose(marginals.mean[place].numpy(), mean, atol=1e-9)
        np.testing.assert_allclose(marginals.variance[place].numpy(), LAMBDA * leverage, atol=1e-9)
        k = (
            matern_np(points[place][growth.factors.rows[place]].numpy(), at.numpy())
            * growth.factors.mask[place].numpy()[:, None]
        )
        before_np = dtc_np(
            points[place][:u][inside[place]].numpy(), x[:u], counts[place].numpy(), sums[place].numpy(), at.numpy()
        )[1]
        change = ((growth.gained[place].numpy().T @ k) ** 2).sum(0) - ((growth.lost[place].numpy().T @ k) ** 2).sum(0)
        np.testing.assert_allclose(before_np + change, leverage, atol=1e-9)
        np.testing.assert_allclose(growth.coefficients[place].numpy().T @ k, mean[None], atol=1e-9)


def test_a_point_that_is_known_already_does_not_join():
    points = torch.rand(6, 2, generator=generator(0), dtype=torch.float64)
    ones = torch.ones(6, dtype=torch.float64)
    own = process((), points, ones, ones, torch.ones(6, dtype=torch.bool))
    fit, before = own.fit(), own.statistics.weights
    own.invalidate_()
    # The first is beside a point of the dictionary, the third beside the second.
    far = torch.tensor([[2.0, 2.0]], dtype=torch.float64)
    new = torch.cat([points[:1] + 1e-9, far, far + 1e-9])
    rows = own.append_(new, torch.ones(3, dtype=torch.bool))
    own.add_(rows, ones[:3], ones[:3], ones[:3])
    growth = own.grow_dictionary_(fit, before, rows, own.kernel(new, own.statistics.points).to_dense().detach())
    assert growth is not None
    assert growth.joined.tolist() == [7]
    assert own.dictionary.tolist() == [True] * 6 + [False, True, False]
    fresh = process((), own.statistics.points, own.statistics.weights, own.statistics.sums, own.dictionary)
    torch.testing.assert_close(own.leverage(points), fresh.leverage(points), atol=1e-9, rtol=0)
    # In several batch rows, the factors are computed anew.
    several = process(
        (2,), points.expand(2, -1, -1), ones.expand(2, -1), ones.expand(2, -1), torch.ones(2, 6, dtype=torch.bool)
    )
    fit, before = several.fit(), several.statistics.weights
    several.invalidate_()
    rows = several.append_(new.expand(2, -1, -1), torch.ones(2, 3, dtype=torch.bool))
    several.add_(rows, *(ones[:3].expand(2, -1) for _ in range(3)))
    columns = several.kernel(new.expand(2, -1, -1), several.statistics.points).to_dense().detach()
    assert several.grow_dictionary_(fit, before, rows, columns) is None
    assert int(several.dictionary.sum()) == 12


def test_a_single_point_that_is_known_already_leaves_the_dictionary_as_it_is():
    points = torch.rand(6, 2, generator=generator(0), dtype=torch.float64)
    ones = torch.ones(6, dtype=torch.float64)
    own = process((), points, ones, ones, torch.ones(6, dtype=torch.bool))
    fit, before, dictionary = own.fit(), own.statistics.weights, own.dictionary_size
    own.invalidate_()
    new = points[:1] + 1e-9
    rows = own.append_(new, torch.ones(1, dtype=torch.bool))
    own.add_(rows, ones[:1], ones[:1], ones[:1])
    growth = own.grow_dictionary_(fit, before, rows, own.kernel(new, own.statistics.points).to_dense().detach())
    assert growth is not None
    assert growth.joined.tolist() == []
    assert growth.change.shape == (6,)
    assert own.dictionary_size == dictionary == 6
    # The factors that were given may be held by a snapshot.
    torch.testing.assert_close(fit.features.mT @ fit.features, own.kernel(points, points).to_dense().detach())
    assert own.fit().regression.precision is not fit.regression.precision
    fresh = process((), own.statistics.points, own.statistics.weights, own.statistics.sums, own.dictionary)
    torch.testing.assert_close(own.leverage(points), fresh.leverage(points), atol=1e-9, rtol=0)
    torch.testing.assert_close(own.log_det, fresh.log_det)


def test_points_join_until_a_twentieth_of_them_or_a_fifth_of_the_dictionary_did():
    def grows(drawn: int, points: int, members: int, told: int) -> bool:
        return bool(SteadySampling().grows(*(torch.tensor(number) for number in (drawn, points, members, told))))

    assert grows(1_000, 1_050, 500, 1)
    assert not grows(1_000, 1_051, 500, 1)
    assert grows(1_000, 1_050, 250, 1)
    assert not grows(1_000, 1_050, 249, 1)
    assert grows(1_000, 1_008, 96, 8)
    assert not grows(1_000, 1_008, 95, 8)
    assert not grows(0, 1, 100, 1)  # never drawn


# ------------------------------------------------------------------------- tables of arms


def rough(d: int = 3, arms: int = 900, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Points, and a function whose dictionary holds a third of the points pulled."""
    rng = np.random.default_rng(seed)
    x = rng.random((arms, d))
    f = np.cos(x @ rng.normal(scale=2.0, size=(d, 60)) + rng.uniform(0, 6.3, 60)) @ rng.normal(size=60)
    return torch.from_numpy(x), torch.from_numpy(f / f.std())


def bits(arms: int = 600) -> tuple[tb.sources.Fingerprints, Tensor]:
    held = np.random.default_rng(0).random((arms, 64)) < 0.3
    return tb.sources.Fingerprints(held.astype(np.uint8)), torch.from_numpy(
        held[:, :9].sum(axis=1) - 0.3 * held[:, 9:20].sum(axis=1)
    )


class Followed:
    """Counts sweeps and followed growth of tables, and compares each followed table with a sweep."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, atol: float = 1e-9, rtol: float = 0.0) -> None:
        self.swept = self.followed = 0
        sweep, follow = ArmTable.sweep_, ArmTable.follow_

        def counted(table: ArmTable) -> ArmTable:
            self.swept += 1
            return sweep(table)

        def compared(table: ArmTable, *args: Any) -> ArmTable:
            follow(table, *args)
            self.followed += 1
            posterior = table.posterior
            found, undo = (table.leverage, table.channels, posterior.log_det), posterior.snapshot()
            posterior.invalidate_()
            sweep(table)
            for own, right in zip(found, (table.leverage, table.channels, posterior.log_det), strict=True):
                torch.testing.assert_close(own, right, atol=atol, rtol=rtol)
            table.leverage, table.channels = found[:2]
            undo()
            return table

        monkeypatch.setattr(ArmTable, "sweep_", counted)
        monkeypatch.setattr(ArmTable, "follow_", compared)


def tell_at_random(bandit: tb.Bandit, f: Tensor, tells: int, seed: int = 0, again: int = 4) -> None:
    """Tells of one to three arms, the same in all batch rows; every `again`-th repeats the same arms."""
    rng = np.random.default_rng(seed)
    for number in range(tells):
        arms = torch.from_numpy(rng.integers(f.shape[-1], size=1 + number % 3)) if number % again else torch.arange(2)
        noise = torch.from_numpy(rng.normal(size=(*bandit.batch_shape, len(arms))))
        bandit.tell(arms.expand(noise.shape), f[arms] + 0.1 * noise)


KINDS: dict[str, dict[str, Any]] = {
    "float64": {},
    "float32": {"dtype": torch.float32, "close": {"atol": 2e-2, "rtol": 1e-4}},
    "streamed": {"streamed": True},
    "columns partly kept": {"columns": 75},
    "two batch rows": {"batch_shape": (2,)},
    "duplicates": {"duplicates": True},
    "no effects": {"effects": False},
}


@pytest.mark.parametrize("kind", KINDS)
def test_arms_follow_growth_as_if_they_were_swept(kind: str, monkeypatch: pytest.MonkeyPatch):
    asked = KINDS[kind]
    x, f = rough()
    if asked.get("duplicates"):
        x, f = torch.cat([x, x[:300]]), torch.cat([f, f[:300]])
    arms: Any = x.to(asked.get("dtype", torch.float64))
    if asked.get("streamed"):
        arms = tb.sources.chunks(lambda: x.split(250), len(x), 3, at=lambda index: x[index])
    rows = asked.get("batch_shape", ())
    policy = tb.auto(memory_budget=8 * len(x) * 60 * max(1, sum(rows)))
    bandit = tb.Bandit(policy, arms, generator=[generator(1 + row) for row in range(*rows)] if rows else generator(1))
    known = torch.arange(0, 600, 4).expand(*rows, -1)
    # Repeated pulls, so that there are random effects.
    for _ in range(2 if asked.get("effects", True) else 1):
        bandit.tell(known, f[known] + 0.5 * torch.from_numpy(np.random.default_rng(2).normal(size=tuple(known.shape))))
    state = bandit.loop.state
    assert state.posterior.sparse
    if "columns" in asked:
        state.table.columns._memory_budget = 8 * len(x) * asked["columns"]
        state.table.columns.forget()
    seen = Followed(monkeypatch, **asked.get("close", {}))
    tell_at_random(bandit, f, 30, again=4 if asked.get("effects", True) else 100)
    assert seen.followed > 15
    assert seen.swept < 12
    if "columns" in asked:
        assert state.table.columns._kept is not None
        assert asked["columns"] < int(state.posterior.dictionary_size) <= 2 * asked["columns"]
    if asked.get("effects", True):
        assert state.posterior.effects is not None


def test_fingerprints_follow_growth(monkeypatch: pytest.MonkeyPatch):
    arms, f = bits()
    bandit = tb.Bandit(tb.auto(memory_budget=4 * 600 * 60), arms, generator=generator(1))
    bandit.tell(torch.arange(0, 400, 2), f[:400:2])
    assert bandit.loop.state.posterior.sparse
    seen = Followed(monkeypatch, atol=1e-3)
    tell_at_random(bandit, f, 30)
    assert seen.followed > 15


def sparse_bandit(seed: int = 1, device: str = "cpu") -> tuple[tb.Bandit, Tensor]:
    x, f = rough()
    bandit = tb.Bandit(tb.auto(memory_budget=8 * len(x) * 60), x.to(device), generator=generator(seed))
    known = torch.arange(0, 600, 4)
    for number in range(2):
        noise = torch.from_numpy(np.random.default_rng(number).normal(size=len(known)))
        bandit.tell(known.to(device), (f[known] + 0.1 * noise).to(device))
    # Each fit of the kernel is followed by a draw.
    for arm in (1, 2):
        bandit.tell(torch.tensor([arm], device=device), f[[arm]].to(device))
    assert 0 < int(bandit.loop.state.posterior.drawn) < bandit.loop.state.statistics.size
    return bandit, f


def play(bandit: tb.Bandit, f: Tensor, picks: int) -> list[int]:
    arms = []
    for number in range(picks):
        selection = bandit.ask()
        arms.append(int(selection.index))
        reward = f[selection.index.cpu()] + 0.1 * np.random.default_rng(arms[-1] + number).normal()
        bandit.tell(selection, reward.to(bandit.device))
    return arms


def test_a_state_saved_between_two_draws_continues_as_the_run_does():
    bandit, f = sparse_bandit()
    play(bandit, f, 4)
    drawn = bandit.loop.state.posterior.drawn
    resumed = tb.Bandit(bandit.policy, rough()[0], generator=generator(9)).load_state_dict(bandit.state_dict())
    assert torch.equal(resumed.loop.state.posterior.drawn, drawn)
    assert play(resumed, f, 30) == play(bandit, f, 30)
    assert torch.equal(resumed.dictionary, bandit.dictionary)


def test_a_loaded_state_follows_growth_as_the_run_does():
    x, f = rough(d=1)
    bandit = tb.Bandit(tb.auto(memory_budget=8 * len(x) * 60), x.float(), generator=generator(1))
    known = torch.arange(0, 300, 2)
    bandit.tell(known, f[known] + 0.1 * torch.from_numpy(np.random.default_rng(0).normal(size=len(known))))
    # Each fit of the kernel is followed by a draw.
    bandit.tell(torch.tensor([301]), f[[301]])
    resumed = tb.Bandit(bandit.policy, x.float(), generator=generator(9)).load_state_dict(bandit.state_dict())
    for own in (bandit, resumed):
        own.tell(torch.tensor([303]), f[[303]])
        assert int(own.loop.state.posterior.drawn) < own.loop.state.statistics.size
    # A sweep of float32 arms would differ by 1e-4.
    right = bandit.loop.state.table.leverage
    torch.testing.assert_close(resumed.loop.state.table.leverage, right, atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize("rows", [(), (2,)], ids=str)
def test_an_arm_that_the_dictionary_lacks_becomes_known_when_it_is_pulled_again_and_again(rows: tuple[int, ...]):
    x, f = rough()
    policy = tb.auto(memory_budget=8 * len(x) * 60 * max(1, sum(rows)))
    bandit = tb.Bandit(policy, x, generator=[generator(1 + row) for row in range(*rows)] if rows else generator(1))
    noise = np.random.default_rng(0)
    for arms in (torch.arange(0, 800, 2), torch.tensor([1])):
        rewards = f[arms] + torch.from_numpy(noise.normal(size=(*rows, len(arms))))
        bandit.tell(arms.expand(rewards.shape), rewards)
    state = bandit.loop.state
    lacking = state.rows.arm_of_row[0 if rows else ...][~state.posterior.dictionary.reshape(-1, 401)[0]]
    assert len(lacking) > 100
    arm = lacking[state.table.leverage.reshape(-1, len(x))[0, lacking].argmax()].expand(*rows, 1)
    for pulls in range(1, 31):
        bandit.tell(arm, f[arm] + torch.from_numpy(noise.normal(size=arm.shape)))
        # As if it had been pulled alone: n lev ≤ 1. Two pulls may pass until a draw includes it.
        assert pulls < 4 or bool(((pulls - 1) * state.table.leverage_at(arm) <= 1).all())


def test_a_pull_of_a_known_arm_evaluates_no_kernel(monkeypatch: pytest.MonkeyPatch):
    bandit, f = sparse_bandit()
    seen = Followed(monkeypatch)
    monkeypatch.setattr("torchbandits.arms.table.kernel_matrix", None)
    bandit.tell(torch.tensor([4]), f[[4]])
    assert seen.followed == 1


def test_a_tell_that_fails_while_the_dictionary_grows_changes_nothing(monkeypatch: pytest.MonkeyPatch):
    bandit, f = sparse_bandit()
    twin, _ = sparse_bandit()
    follow = ArmTable.follow_

    def fails(table: ArmTable, *args: Any) -> ArmTable:
        follow(table, *args)
        raise RuntimeError("interrupted")

    arms = torch.tensor([3, 5])
    with monkeypatch.context() as patch:
        patch.setattr(ArmTable, "follow_", fails)
        with pytest.raises(RuntimeError, match="interrupted"):
            bandit.tell(arms, f[arms])
    for own in (bandit, twin):
        own.tell(arms, f[arms])
    assert torch.equal(bandit.loop.state.table.leverage, twin.loop.state.table.leverage)
    assert torch.equal(bandit.loop.state.posterior.drawn, twin.loop.state.posterior.drawn)
    assert play(bandit, f, 10) == play(twin, f, 10)


def test_a_device_sweeps_the_same_dictionary():
    here, f = sparse_bandit()
    right = play(here, f, 12)
    with emulated_device():
        there, _ = sparse_bandit(device="cuda")
        assert play(there, f, 12) == right
        assert torch.equal(there.dictionary.cpu(), here.dictionary)


def test_a_dictionary_is_drawn_for_a_new_kernel():
    bandit, f = sparse_bandit()
    play(bandit, f, 2)
    state = bandit.loop.state
    assert int(state.posterior.drawn) > 0
    bandit.policy.from_data.refit(state, torch.tensor(True))
    assert int(state.posterior.drawn) == 0
    play(bandit, f, 1)
    assert int(state.posterior.drawn) == state.statistics.size


def test_heavy_pulls_beside_light_ones_are_factorised_anew():
    points = torch.rand(6, 2, generator=generator(0), dtype=torch.float64)
    ones = torch.ones(6, dtype=torch.float64)
    own = process((), points, ones, ones, torch.ones(6, dtype=torch.bool))
    fit, before, rows = own.fit(), own.statistics.weights, torch.tensor([2])
    own.invalidate_()
    heavy = torch.tensor([1e9], dtype=torch.float64)
    own.add_(rows, heavy, heavy, heavy)
    assert own.grow_dictionary_(fit, before, rows, torch.zeros(0, 6, dtype=torch.float64)) is None


def test_batch_rows_that_tell_different_arms_are_those_of_single_runs():
    x, f = rough()
    tells = [torch.arange(0, 600, 4).expand(2, -1)] * 2
    tells += [torch.from_numpy(np.random.default_rng(k).integers(len(x), size=(2, 1 + k % 2))) for k in range(40)]
    rows, first, second = (
        tb.Bandit(tb.auto(memory_budget=8 * len(x) * 60 * n), x, generator=own)
        for n, own in ((2, [generator(1), generator(2)]), (1, generator(1)), (1, generator(2)))
    )
    for number, arms in enumerate(tells):
        rewards = f[arms] + 0.1 * torch.from_numpy(np.random.default_rng([3, number]).normal(size=tuple(arms.shape)))
        rows.tell(arms, rewards)
        for row, single in enumerate((first, second)):
            single.tell(arms[row], rewards[row])
    together = rows.loop.state
    assert int((together.posterior.drawn < together.posterior.statistics.num_rows).sum()) > 0
    for row, single in enumerate((first, second)):
        alone = single.loop.state
        u = alone.statistics.size
        assert torch.equal(together.posterior.dictionary[row, :u], alone.posterior.dictionary)
        assert int(together.posterior.drawn[row]) == int(alone.posterior.drawn)
        torch.testing.assert_close(together.table.leverage[row], alone.table.leverage, atol=1e-8, rtol=1e-6)
        torch.testing.assert_close(together.arm_mean()[row], alone.arm_mean(), atol=1e-8, rtol=1e-6)
