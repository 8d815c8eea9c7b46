"""Rewards told with their block: the shifts of blocks are estimated beside the function, and subtracted."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import oracles
import pandas as pd
import pytest
import torch
from emulated_device import Lane, on_host
from problems import generator, rbf
from scipy import stats
from test_campaign import campaign, frame, measured
from test_campaign_cli import refused, run

import torchbandits as tb
from torchbandits.errors import ArgumentError, ShapeError, UnsupportedError
from torchbandits.fitting.blocks import _MEAN, _Model
from torchbandits.ingredients import Priors
from torchbandits.posteriors.averages import Averages
from torchbandits.posteriors.blocks import unshifted
from torchbandits.posteriors.evidence import Shared, Workspace, log_evidence

ARMS = torch.rand(200, 2, dtype=torch.float64, generator=generator(3))
TRUTH = torch.sin(4 * ARMS[:, 0]) + ARMS[:, 1]
PLATES, SIZE = 8, 6


def shift(plate: int, size: float = 1.0) -> float:
    return size * float(np.random.default_rng([5, plate]).standard_normal())


def rewards(index: torch.Tensor, plate: int, size: float = 1.0) -> torch.Tensor:
    noise = 0.02 * np.random.default_rng([6, plate]).standard_normal(index.shape)
    return TRUTH[index] + shift(plate, size) + torch.from_numpy(noise)


def played(plates: int = PLATES, size: float = 1.0, blocks: bool = True, **options: Any) -> tb.Bandit:
    bandit = tb.Bandit(tb.auto(batch_size=SIZE), ARMS, generator=generator(0), **options)
    told(bandit, range(plates), size, blocks)
    return bandit


def told(bandit: tb.Bandit, plates: range, size: float = 1.0, blocks: bool = True) -> None:
    for plate in plates:
        batch = bandit.ask()
        bandit.tell(batch, rewards(batch.index, plate, size), block=plate if blocks else None)


def units(bandit: tb.Bandit) -> Any:
    return bandit.loop.state.posterior.units


# ---------------------------------------------------------------------- the model


def cells(c: int = 12) -> tuple[_Model, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(1)
    x, n, block = rng.random((c, 2)), rng.integers(1, 4, c).astype(float), rng.integers(-1, 3, c)
    x[3] = x[7]  # the same arm in two blocks
    block[3], block[7] = 0, 1
    y, scatter = rng.normal(size=c), rng.random(c) * (n > 1)
    kernel = Priors().unit_kernel(torch.ones(2, dtype=torch.float64))
    kernel.base_kernel.lengthscale = torch.tensor([[0.3, 0.7]], dtype=torch.float64)
    own = Averages(*(torch.from_numpy(v) for v in (x, n, y, scatter)))
    model = _Model(kernel, Priors(), own, torch.from_numpy(block).double())
    model.log_noise.fill_(np.log(0.2))
    model.log_between.fill_(np.log(0.6))
    return model, x, n, y, block


@torch.no_grad()
def test_shifts_are_those_of_a_dense_mixed_model():
    model, x, n, y, block = cells()
    between = 0.6 * ((block[:, None] == block[None]) & (block >= 0))
    smooth = oracles.matern(2.5, np.array([0.3, 0.7]))(x, x)
    covariance = smooth + between + _MEAN + np.diag(0.2 / n)
    np.testing.assert_allclose(model.shifts().numpy(), between @ np.linalg.solve(covariance, y), rtol=1e-9, atol=1e-12)


@torch.no_grad()
def test_the_evidence_is_that_of_all_rewards_with_a_shared_covariance():
    model, x, n, _, block = cells()
    each = np.repeat(np.arange(len(n)), n.astype(int))
    z = np.random.default_rng(2).normal(size=len(each))
    means = np.array([z[each == i].mean() for i in range(len(n))])
    scatter = np.array([((z[each == i] - means[i]) ** 2).sum() for i in range(len(n))])
    same = ((block[:, None] == block[None]) & (block >= 0)).astype(float)
    shared = 0.6 * same + _MEAN
    smooth = oracles.matern(2.5, np.array([0.3, 0.7]))(x, x)
    expected = stats.multivariate_normal.logpdf(z, cov=(smooth + shared)[np.ix_(each, each)] + 0.2 * np.eye(len(each)))
    own = Averages(*(torch.from_numpy(v) for v in (x, n, means, scatter)))
    noise, between = torch.tensor([0.2, 0.6], dtype=torch.float64)
    found = log_evidence(model.kernel, own, noise, shared=Shared(torch.from_numpy(same), between, _MEAN))
    assert float(found) == pytest.approx(expected, rel=1e-9)


def test_the_evidence_has_its_derivative_in_the_variance_of_shifts():
    model, x, n, y, block = cells()
    same = torch.from_numpy(((block[:, None] == block[None]) & (block >= 0)).astype(float))
    own = Averages(*(torch.from_numpy(v) for v in (x, n, y, np.zeros_like(y))))
    noise, between = torch.tensor([0.2, 0.6], dtype=torch.float64).requires_grad_(True).unbind()
    memory = Workspace(*torch.full((6, len(y), len(y)), torch.nan, dtype=torch.float64))
    found = log_evidence(model.kernel, own, noise, shared=Shared(same, between, _MEAN), memory=memory)
    smooth = torch.from_numpy(oracles.matern(2.5, np.array([0.3, 0.7]))(x, x))
    covariance = smooth + between * same + _MEAN + torch.diag(noise / own.weights)
    dense = torch.distributions.MultivariateNormal(torch.zeros_like(own.residuals), covariance).log_prob(own.residuals)
    expected = torch.autograd.grad(dense + own.within(noise), (noise, between))
    torch.testing.assert_close(torch.autograd.grad(found, (noise, between)), expected, rtol=1e-8, atol=1e-8)


def test_fits_take_the_memory_of_their_evaluations_once(monkeypatch: pytest.MonkeyPatch):
    """Memory that is given back after each of seventy evaluations is taken from the system page by page."""
    taken, like = list[int](), Workspace.like

    def counted(residuals: torch.Tensor) -> Workspace:
        taken.append(len(residuals))
        return like(residuals)

    monkeypatch.setattr(Workspace, "like", staticmethod(counted))
    bandit, index = tb.Bandit(tb.auto(), ARMS), torch.arange(60)
    bandit.tell(index, TRUTH[index])
    assert taken == [60]
    bandit.tell(index + 60, TRUTH[index + 60] + 1, block="of another day")
    # A fit of the shifts, and one of the kernel.
    assert taken == [60, 120, 120]


def test_a_step_that_rounds_a_scale_to_0_is_a_bad_one_and_no_error():
    """It raised a ValueError on tables of real measurements; and the fit ends at the best parameters that it has seen."""
    model, *_ = cells()
    with torch.no_grad():
        reached = model.fit()
        assert math.isfinite(reached)
        model.kernel.raw_outputscale.fill_(-800.0)
        memory = Workspace.like(model.cells.residuals)
        assert model._log_posterior(model.cells, model._same(model.block), memory) == -torch.inf
        for parameter in model.kernel.parameters():
            parameter.requires_grad_(True)
        assert model.fit() == -torch.inf


def test_totals_are_those_of_the_rewards_less_their_shifts():
    rng = np.random.default_rng(4)
    counts, rows = rng.integers(1, 5, 9), np.array([0, 1, 1, 2, 0, 3, 3, 3, -1])
    each = [1e6 + rng.normal(size=n) for n in counts]
    shifts = rng.normal(size=9)
    table = [[row, 0, len(v), v.sum(), ((v - v.mean()) ** 2).sum(), s] for row, v, s in zip(rows, each, shifts, strict=True)]
    found = unshifted(torch.tensor(table, dtype=torch.float64), 5)
    for row in range(5):
        kept = [v - s for r, v, s in zip(rows, each, shifts, strict=True) if r == row]
        own = np.concatenate(kept) if kept else np.zeros(0)
        deviations = ((own - own.mean()) ** 2).sum() if len(own) else 0.0
        np.testing.assert_allclose(found[row], [own.sum(), (own**2).sum(), deviations], rtol=1e-8, atol=1e-8)


# ---------------------------------------------------------------------- what it is for


def test_shifts_are_found_and_subtracted():
    bandit, blind = played(), played(blocks=False)
    found = units(bandit).shifts(()).numpy()
    true = np.array([shift(plate) for plate in range(PLATES)])
    # All rewards may be shifted by the same amount without any difference to the arms.
    error = (found - found.mean()) - (true - true.mean())
    assert np.abs(error).max() < 0.25
    wrong = [
        (own.posterior(ARMS).mean - TRUTH).sub((own.posterior(ARMS).mean - TRUTH).mean()).abs().mean().item()
        for own in (bandit, blind)
    ]
    assert wrong[0] < 0.5 * wrong[1]
    assert TRUTH.max() - TRUTH[bandit.best_arm()] < 0.1
    assert f"shifted together, by about {np.sqrt((found**2).mean()):.2g} over {PLATES} blocks" in str(bandit.explain())
    assert bandit.explain().shifts == tuple(found)
    assert blind.explain().shifts == ()


def test_blocks_without_shifts_change_little():
    known, blind = played(size=0.0), played(size=0.0, blocks=False)
    assert np.abs(units(known).shifts(()).numpy()).max() < 0.05
    assert TRUTH[known.best_arm()] >= TRUTH[blind.best_arm()] - 0.05


def test_a_block_shifted_further_is_the_same_block():
    """Adding a number to all rewards of a block changes its shift by nearly that number, and the arms hardly."""
    index = torch.randperm(len(ARMS), generator=generator(1))[:48]
    found = []
    for more in (0.0, 3.0):
        bandit = tb.Bandit(tb.auto(), ARMS, generator=generator(0))
        block = torch.arange(48) % 4
        bandit.tell(index, TRUTH[index] + more * (block == 2), block=block)
        found.append((units(bandit).shifts(()), bandit.posterior(ARMS).mean - bandit.posterior(ARMS).mean.mean()))
    moved = found[1][0] - found[0][0]
    # The mean of all shifts is not known.
    torch.testing.assert_close(moved - moved.mean(), torch.tensor([-0.75, -0.75, 2.25, -0.75]).double(), atol=0.02, rtol=0)
    torch.testing.assert_close(found[1][1], found[0][1], atol=0.05, rtol=0)


def test_rewards_of_before_and_without_a_block_are_kept():
    index = torch.arange(0, 60, 3)
    bandit = tb.Bandit(tb.auto(), ARMS, generator=generator(0))
    bandit.tell(index, TRUTH[index])
    bandit.tell(index[:10], TRUTH[index[:10]] + 2, block=7)
    bandit.tell(index[10:15], TRUTH[index[10:15]])
    statistics = bandit.loop.state.statistics
    averages = units(bandit).averages(statistics)
    np.testing.assert_allclose(averages.numpy(), TRUTH[index].numpy(), atol=0.1)
    assert float(units(bandit).shifts(())) == pytest.approx(2, abs=0.2)
    assert bandit.counts[index].tolist() == [2] * 15 + [1] * 5


def test_yes_and_no_have_no_shifts():
    bandit = tb.Bandit(tb.auto(), ARMS, generator=generator(0))
    index = torch.arange(0, 40)
    bandit.tell(index, TRUTH[index] > 1, block=index // 10)
    assert units(bandit).shifts(()).abs().max() == 0
    assert bandit.explain().two_values
    assert "shifted" not in str(bandit.explain())


def test_blocks_of_one_reward_have_no_shifts():
    """Such a shift cannot be told from noise, which it would hide."""
    index = torch.arange(0, 40)
    y = TRUTH[index] + 0.3 * torch.randn(40, dtype=torch.float64, generator=generator(2))
    own, without = (tb.Bandit(tb.auto(), ARMS, generator=generator(0)) for _ in range(2))
    own.tell(index, y, block=index)
    without.tell(index, y)
    assert units(own).shifts(()).abs().max() == 0
    torch.testing.assert_close(own.posterior(ARMS).variance, without.posterior(ARMS).variance, rtol=1e-6, atol=1e-9)
    own.tell(index[:1], y[:1], block=1)
    assert units(own).shifts(()).abs().max() > 0


@pytest.mark.parametrize("kind", [list, np.array, pd.Series])
def test_names_of_blocks_are_numbers_of_their_own(kind: Callable[[list[str]], Any]):
    """One name for all rewards, or one for each of them, as from a column of a table."""
    x = torch.rand(30, 2, generator=generator(0), dtype=torch.float64)
    named, numbered = (tb.Bandit(tb.auto(), x, generator=generator(1)) for _ in range(2))
    rewards, rows = x.sum(dim=-1), torch.arange(8)
    for bandit, blocks in ((named, ("Tuesday", ["plate 2"] * 4 + ["plate 3"] * 4)), (numbered, (7, [2] * 4 + [3] * 4))):
        bandit.tell(rows, rewards[rows], block=blocks[0])
        each = blocks[1] if bandit is numbered else kind(blocks[1])
        bandit.tell(rows + 8, rewards[rows + 8] + torch.arange(8) // 4, block=each)
    assert sorted(named.explain().shifts) == sorted(numbered.explain().shifts)
    assert len(named.explain().shifts) == 3


def test_failures_are_no_rewards_of_a_block():
    bandit = tb.Bandit(tb.auto(), ARMS, generator=generator(0))
    index = torch.arange(0, 40)
    values = torch.where(index % 5 == 0, torch.nan, TRUTH[index] + (index // 10))
    bandit.tell(index, values, failures="forget", block=index // 10)
    shifts = units(bandit).shifts(())
    assert (shifts.diff() - 1).abs().max() < 0.3
    assert bandit.pulls == 32


# ---------------------------------------------------------------------- laws


def test_a_resumed_run_goes_on_as_if_it_had_not_stopped(tmp_path: Path):
    whole, path = played(6), tmp_path / "run.journal"
    own = tb.Journal(path)
    played(3, journal=own)
    own.close()
    bandit = tb.Bandit(tb.auto(batch_size=SIZE), ARMS, generator=generator(0), journal=path)
    told(bandit, range(3, 6))
    assert torch.equal(units(bandit).cells, units(whole).cells)
    assert torch.equal(bandit.ask().index, whole.ask().index)


def test_a_saved_state_has_the_blocks_and_one_of_before_has_none():
    bandit = played(4)
    other = tb.Bandit(tb.auto(batch_size=SIZE), ARMS, generator=generator(1))
    other.load_state_dict(bandit.state_dict())
    for own in (bandit, other):
        told(own, range(4, 6))
    assert torch.equal(units(bandit).cells, units(other).cells)
    assert torch.equal(bandit.ask().index, other.ask().index)
    without = played(4, blocks=False)
    before = without.state_dict()
    assert not any(key.endswith("cells") for key in before["state"])
    other.load_state_dict(before)
    assert not units(other).blocked
    assert torch.equal(other.ask().index, without.ask().index)


def test_batch_rows_are_independent():
    arms = torch.stack([ARMS, ARMS.flip(0)])
    index = torch.stack([torch.arange(0, 40), torch.arange(40, 80)])
    block = torch.stack([torch.arange(40) // 10, torch.arange(40) % 4])
    y = torch.stack([TRUTH, TRUTH.flip(0)]).gather(-1, index) + block
    rows = tb.Bandit(tb.auto(), arms, generator=[generator(0), generator(1)])
    rows.tell(index, y, block=block)
    for row in range(2):
        alone = tb.Bandit(tb.auto(), arms[row], generator=generator(0))
        alone.tell(index[row], y[row], block=block[row])
        torch.testing.assert_close(units(rows).shifts((row,)), units(alone).shifts(()), rtol=1e-6, atol=1e-8)
        torch.testing.assert_close(rows.posterior(arms).mean[row], alone.posterior(arms[row]).mean, rtol=1e-6, atol=1e-8)


def test_blocks_of_padding_are_ignored():
    arms = torch.stack([ARMS, ARMS.flip(0)])
    index, block = torch.arange(0, 40).repeat(2, 1), (torch.arange(40) // 10).repeat(2, 1)
    index[1, 25:] = block[1, 25:] = -1
    y = torch.stack([TRUTH, TRUTH.flip(0)]).gather(-1, index.clamp_min(0)) + block
    rows = tb.Bandit(tb.auto(), arms, generator=[generator(0), generator(1)])
    rows.tell(index, y, block=block)
    assert len(units(rows).shifts((0,))) == 4
    alone = tb.Bandit(tb.auto(), arms[1], generator=generator(0))
    alone.tell(index[1, :25], y[1, :25], block=block[1, :25])
    torch.testing.assert_close(units(rows).shifts((1,)), units(alone).shifts(()), rtol=1e-6, atol=1e-8)


def test_on_a_device_picks_are_those_of_the_host(lane: Lane):
    own = played(4)
    expected, cells = own.ask().index, units(own).cells
    with lane():
        bandit = tb.Bandit(tb.auto(batch_size=SIZE), ARMS.to("cuda"), generator=generator(0))
        for plate in range(4):
            batch = bandit.ask()
            bandit.tell(batch, rewards(batch.index.cpu(), plate).to("cuda"), block=plate)
        assert torch.equal(on_host(bandit.ask().index.cpu()), expected)
        torch.testing.assert_close(on_host(units(bandit).cells.cpu()), cells)


def test_float32_arms_in_a_copy():
    bandit = tb.Bandit(tb.auto(), ARMS.float(), generator=generator(0))
    index = torch.arange(0, 40)
    bandit.tell(index, TRUTH[index] + index // 10, block=index // 10)
    other = copy.deepcopy(bandit)
    assert (units(other).shifts(()).diff() - 1).abs().max() < 0.3
    assert torch.equal(other.ask().index, bandit.ask().index)


def test_each_outcome_has_shifts_of_its_own():
    aim = tb.outcomes.pareto({"a": tb.auto(), "b": tb.auto()})
    bandit = tb.OutcomeBandit(aim, ARMS, generator=generator(0))
    index, block = torch.arange(0, 40), torch.arange(40) // 10
    both = torch.stack([TRUTH[index] + block, 1 - TRUTH[index] - 2 * block], dim=-1)
    bandit.tell(index, both, block=block)
    found = [units(bandit).shifts((row,)).diff() for row in range(2)]
    assert (found[0] - 1).abs().max() < 0.3
    assert (found[1] + 2).abs().max() < 0.3
    assert str(bandit.explain()).count("shifted together") == 2


# ---------------------------------------------------------------------- bad input


def test_other_policies_say_what_to_do():
    bandit = tb.Bandit(tb.gp_ucb(rbf(), noise_std=0.1), ARMS, generator=generator(0))
    with pytest.raises(UnsupportedError, match=r"leave out block=, use auto, or subtract the average of a control"):
        bandit.tell([0, 1], [1.0, 2.0], block=3)


@pytest.mark.usefixtures("annotations_not_enforced")
@pytest.mark.parametrize(
    ("block", "error", "message"),
    [
        (torch.tensor([1, 2, 3]), ShapeError, r"one number, or shaped like the rewards, \(2,\), got \(3,\)"),
        (0.5, ShapeError, "whole numbers, such as the number of the plate"),
        (True, ShapeError, "whole numbers"),
        (-1, ArgumentError, "from 0 to 2\\^53, got -1"),
        (1 << 60, ArgumentError, "from 0 to 2\\^53"),
    ],
)
def test_wrong_blocks_are_refused(block, error, message):
    bandit = tb.Bandit(tb.auto(), ARMS, generator=generator(0))
    with pytest.raises(error, match=message):
        bandit.tell([0, 1], [1.0, 2.0], block=block)
    assert bandit.pulls == 0


# ---------------------------------------------------------------------- campaigns


def by_day(plate: pd.DataFrame, day: int, more: float) -> pd.DataFrame:
    table = measured(plate).assign(day=f"2026-11-0{day}")
    return table.assign(**{"yield": table["yield"] + more})


def test_a_campaign_reads_the_blocks_of_its_results(tmp_path: Path):
    c = campaign(policy=None, journal=tmp_path / "lab.journal", generator=generator(0), minimize=True)
    for day, more in enumerate((0.0, 20.0, -10.0, 5.0), start=1):
        c.tell(by_day(c.ask(8), day, more), block="day")
    found = np.array(c.explain().shifts)
    assert len(found) == 4
    assert "shifted together" in str(c.explain())
    true = np.array([20.0, 5.0, 0.0, -10.0])
    np.testing.assert_allclose(np.sort(found) - found.mean(), np.sort(true) - true.mean(), atol=4)
    last = c.results().iloc[-1]
    c.correct(last["id"], 47.0, was=last["yield"])
    assert len(c.explain().shifts) == 4
    expected = c.explain().shifts
    c.close()
    again = campaign(policy=None, journal=tmp_path / "lab.journal", generator=generator(0), minimize=True)
    assert again.explain().shifts == expected


def test_a_failed_evaluation_has_its_block_once_it_is_corrected(tmp_path: Path):
    found = []
    for number, wrong in enumerate((False, True)):
        c = campaign(policy=None, journal=tmp_path / f"{number}.journal", generator=generator(0))
        rows = frame()
        for day, more in enumerate((0.0, 20.0), start=1):
            c.tell(by_day(rows[8 * day : 8 * day + 8], day, more), block="day")
        plate = by_day(rows[:8], 3, -10.0)
        c.tell(plate.assign(**{"yield": plate["yield"].where(plate.index > 0)}) if wrong else plate, block="day")
        if wrong:
            c.correct(plate["id"][0], float(plate["yield"][0]))
        found.append(c.explain().shifts)
    assert len(found[1]) == 3
    np.testing.assert_allclose(found[1], found[0], rtol=1e-6)


def test_labels_are_the_same_in_a_spreadsheet_and_in_a_text_file(tmp_path: Path):
    found = []
    for ending in ("csv", "xlsx"):
        c = campaign(policy=None, generator=generator(0))
        for lot in (1, 2):
            plate = measured(c.ask(8)).assign(lot=lot, day=pd.Timestamp(f"2026-11-0{lot}"))
            path = tmp_path / f"{lot}.{ending}"
            plate.to_csv(path, index=False) if ending == "csv" else plate.to_excel(path, index=False)
            c.tell(path, block="day" if lot == 1 else "lot")
        found.append(units(c.bandit).cells[:, 1].unique().tolist())
    assert found[0] == found[1]
    assert len(found[0]) == 2


@pytest.mark.parametrize(
    ("given", "same"),
    [
        (["007", "7"], True),  # a spreadsheet program drops the zeros
        (["3.0", "3"], True),
        (["0", "00.0"], True),
        (["2026-11-01", "2026-11-01 00:00:00"], True),
        (["v2.0", "v2"], False),
        (["10", "1"], False),
        (["-3.0", "-3"], True),
        (["-3", "3"], False),
        (["1.50", "1.5"], False),
    ],
)
def test_labels_that_a_program_writes_in_two_ways_are_one_block(given: list[str], same: bool):
    c = campaign(policy=None, generator=generator(0))
    c.tell(measured(c.ask(2)).assign(lot=given), block="lot")
    assert len(units(c.bandit).cells[:, 1].unique()) == (1 if same else 2)


def test_results_without_their_block_are_refused():
    c = campaign(policy=None, generator=generator(0))
    plate = measured(c.ask(6))
    with pytest.raises(ArgumentError, match="no column 'plate' for the block of each result"):
        c.tell(plate, block="plate")
    with pytest.raises(ArgumentError, match=r"column 'plate', row 1: the block is empty. Fill in where or when"):
        c.tell(plate.assign(plate=["A", None, "A", "A", "A", "A"]), block="plate")
    assert c.bandit.pulls == 0
    for column, what in (("id", "the ids"), ("yield", "what was measured")):
        with pytest.raises(ArgumentError, match=f"plates, days, machines or lots, and '{column}' has {what}"):
            c.tell(plate, block=column)
    assert c.bandit.pulls == 0
    for other in (campaign(generator=generator(0)), campaign(policy=None, noise_std=1.0, generator=generator(0))):
        plate = measured(other.ask(1)).assign(plate="A")
        with pytest.raises(UnsupportedError, match=r"of a block have in common: leave out block= .* without noise_std="):
            other.tell(plate, block="plate")


def test_results_that_were_told_without_their_block_by_mistake_are_told_again_with_it(tmp_path: Path):
    c = campaign(policy=None, journal=tmp_path / "lab.journal", generator=generator(0))
    path = tmp_path / "plate.csv"
    first = by_day(c.ask(4), 1, 0.0)
    first.to_csv(path, index=False)
    c.tell(path)
    second = by_day(c.ask(4), 2, 10.0)
    assert "These results were told with their block, and earlier ones were not: they count" in str(c.tell(second, block="day"))
    for id, value in zip(first["id"], first["yield"], strict=True):
        c.correct(id, None, was=value)
    assert "told with their block" not in str(c.tell(path, block="day", again=True))
    blocks = units(c.bandit).cells[:, 1]
    assert len(blocks) == 8
    assert blocks.min() >= 0
    # A failure has no shift.
    failed = by_day(c.ask(1), 3, np.nan)
    assert "told with their block" not in str(c.tell(failed))


def test_results_without_their_block_after_others_with_it_are_named():
    c = campaign(policy=None, generator=generator(0))
    c.tell(by_day(c.ask(4), 1, 0.0), block="day")
    told = c.tell(by_day(c.ask(4), 2, 0.0))
    assert "correct() takes these back; then tell them once more with block= and again=True (--block, --again)" in str(told)


def test_the_command_line_names_the_column(tmp_path: Path):
    frame().to_csv(tmp_path / "candidates.csv", index=False)
    folder = ("--folder", str(tmp_path))
    run("new", str(tmp_path / "candidates.csv"), "--objective", "yield", *folder)
    for number in (1, 2):
        run("ask", "-n", "8", "--output", str(tmp_path / "plate.csv"), *folder)
        plate = pd.read_csv(tmp_path / "plate.csv", dtype={"id": str})
        path = tmp_path / f"results{number}.csv"
        by_day(plate, number, 10.0 * number).to_csv(path, index=False)
        assert "8 measurements" in run("tell", str(path), "--block", "day", *folder) or number == 1
    assert "no column 'plate'" in refused("tell", str(path), "--block", "plate", *folder)
    run("ask", "-n", "8", "--output", str(tmp_path / "plate.csv"), *folder)
    by_day(pd.read_csv(tmp_path / "plate.csv", dtype={"id": str}), 3, 0.0).to_csv(path, index=False)
    assert "they count as if their block had no shift" in " ".join(run("tell", str(path), *folder).split())


def by_plates(size: float, plates: int = 6) -> tb.Campaign:
    c = campaign(policy=None, generator=generator(0))
    for plate in range(plates):
        told = measured(c.ask(8))
        c.tell(told.assign(**{"yield": told["yield"] + shift(plate, size)}))
    return c


def test_plates_that_nobody_has_named_are_noticed(tmp_path: Path):
    c = by_plates(12.0)
    found = c.explain()
    assert 6 < found.together < 24
    assert "told together are shifted together" in str(found)
    page = c.report(tmp_path / "lab.html").read_text()
    assert "told together are shifted together" in page
    again = campaign(policy=None, generator=generator(0))
    results = c.results()
    assert results["call"].tolist() == [call for call in range(1, 7) for _ in range(8)]
    again.tell(results, block="call")
    assert len(again.explain().shifts) == 6
    assert again.explain().together == 0
    assert "told together" not in str(by_plates(0.0).explain())


@pytest.mark.parametrize("journal", [False, True])
def test_labels_of_blocks_are_results_that_another_campaign_reads(tmp_path: Path, journal: bool):
    where = tmp_path / "lab.journal" if journal else None
    frame().to_csv(tmp_path / "table.csv", index=False)
    c = campaign(tmp_path / "table.csv", policy=None, generator=generator(0), journal=where)
    assert "block" not in c.results()
    for label in ("Plätte 1", "003", "2026-03-01 00:00"):
        c.tell(measured(c.ask(4)).assign(plate=label), block="plate")
    told = ["Plätte 1"] * 4 + ["3"] * 4 + ["2026-03-01"] * 4
    assert c.results()["block"].tolist() == told
    if journal:
        c.close()
        c = campaign(tmp_path / "table.csv", policy=None, journal=where)
        first = c.results()["id"].iloc[0]
        c.correct(first, None)
        assert c.results()["block"].tolist() == told[1:]
        c.correct(c.results()["id"].iloc[0], 7.0)
        assert c.results()["block"].tolist() == told[1:]
        where.with_name("lab.journal.blocks.json").unlink()
        c.close()
        # Without their labels, results have the numbers.
        assert campaign(tmp_path / "table.csv", policy=None, journal=where).results()["block"].nunique() == 3
        return
    c.tell(measured(c.ask(1)))
    assert c.results()["block"].isna().sum() == 1
    results, again = c.results()[:12], campaign(policy=None, generator=generator(0))
    again.tell(results, block="block")
    again.tell(measured(again.ask(2)).assign(plate="Plätte 1"), block="plate")
    assert len(again.explain().shifts) == 3, "the same label is the same block"
