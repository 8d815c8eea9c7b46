"""Many tells learned by one update, and long journals opened by it: the same state up to rounding, and the same later picks."""

from __future__ import annotations

import json
import zlib
from pathlib import Path

import pytest
import torch
from contract import PROBLEM, Case, every_policy, proceed
from problems import BOUNDED, Problem, generator, rbf
from test_journal import copied, journaled, step

import torchbandits as tb
from torchbandits import errors
from torchbandits.testing.play import proceed_rows
from torchbandits.types import Pulls

pytestmark = pytest.mark.usefixtures("annotations_not_enforced")


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch):
    """Make journals of a few records count as long ones."""
    monkeypatch.setattr("torchbandits.journal.resuming._MANY", 10)


def close(one: tb.Bandit, other: tb.Bandit) -> None:
    """Assert equal counts, and up to rounding equal progress and, if there is one, an equal posterior."""
    a, b = one.loop.state, other.loop.state
    assert torch.equal(one.counts, other.counts)
    for name in ("told", "log_det", "batched_log_det", "batched_log_det_3"):
        assert torch.allclose(getattr(a, name), getattr(b, name), rtol=1e-9, atol=1e-9), name
    assert torch.allclose(a.statistics.totals, b.statistics.totals, rtol=1e-12, atol=1e-12)
    assert torch.equal(a.statistics.points, b.statistics.points)
    assert torch.allclose(one.width, other.width, rtol=1e-9, equal_nan=True)
    if a.tabulated:
        assert torch.allclose(a.arm_mean(), b.arm_mean(), rtol=1e-9, atol=1e-9)
        assert torch.allclose(a.arm_leverage(), b.arm_leverage(), rtol=1e-9, atol=1e-9)


@pytest.mark.sweep(7)
@every_policy
@pytest.mark.parametrize("pulls", [9, 61])  # few distinct arms, and so many that an update needs a sweep
def test_one_update_with_many_tells_equals_one_after_the_other(case: Case, pulls: int):
    one, other = case.bandit(4), case.bandit(4)
    index = torch.randint(40, (pulls,), generator=generator(3))
    rewards = PROBLEM.rewards(0, index)
    sizes = [1, 3, 1] + [2] * ((pulls - 5) // 2)
    ones = torch.ones(pulls, dtype=torch.float64)
    told = Pulls(ones, rewards, rewards**2, index=index, mask=ones.bool())
    if not one.policy.learns_together(one.loop.state):
        return  # learns tells one by one, by definition
    one.loop.state = one.policy.update_together(one.loop.state, told, sizes)
    for arms, y in zip(index.split(sizes), rewards.split(sizes), strict=True):
        other.tell(arms, y)
    close(one, other)
    one.loop.set_open_(None)
    other.loop.set_open_(None)
    assert proceed(one, 6) == proceed(other, 6)


@pytest.mark.parametrize("name", ["gp_ucb", "gp_bucb"])
def test_batch_rows_learn_together_each_its_own(name: str):
    """Rows with different picks and masked places, and a row that is told nothing for some time."""
    problems = [Problem(seed=3, a=40), Problem(seed=4, a=40)]
    arms = torch.stack([p.tensor for p in problems])
    one, other = (tb.Bandit(Case(name, "").policy(), arms, generator=[generator(0), generator(1)]) for _ in range(2))
    index = torch.randint(40, (2, 8), generator=generator(3))
    index[1, 3:7] = -1
    rewards = torch.rand(2, 8, generator=generator(4), dtype=torch.float64)
    mask = index >= 0
    y = torch.where(mask, rewards, 0.0)
    one.loop.state = one.policy.update_together(
        one.loop.state, Pulls(mask.double(), y, y**2, index=index, mask=mask), [3, 2, 2, 1]
    )
    for part, values in zip(index.split([3, 2, 2, 1], dim=-1), rewards.split([3, 2, 2, 1], dim=-1), strict=True):
        other.tell(part, values)
    close(one, other)
    limits = torch.tensor([3, 2])
    assert proceed_rows(one, problems, limits, 3) == proceed_rows(other, problems, limits, 3)


LONG = ["gp_ucb", "gp_bucb", "igp_ucb", "lin_ucb", "rff_ucb", "bkb", "batch_bkb", "thompson_sampling", "uniform"]


@pytest.mark.sweep(3)
@pytest.mark.parametrize("name", LONG)
def test_a_long_journal_goes_on_as_if_undisturbed(name: str, tmp_path: Path, soon: None):
    case, path = Case(name, ""), tmp_path / "run.journal"
    plain = case.bandit()
    bandit = journaled(case, path)
    for one in (plain, bandit):
        step(one, 11)
        failed = one.ask(more=3)
        one.forget(failed[1:2])
        rewards = PROBLEM.rewards(11, failed.index[[0, 2]])
        rewards[1] = torch.nan
        one.tell(failed.index[[0, 2]], rewards, failures="forget")
        step(one, 30)
        one.ask(more=2)
    bandit.journal.close()
    other = journaled(case, path)
    close(plain, other)
    assert torch.equal(other.ask().index, plain.ask().index)
    assert step(other, 40) == step(plain, 40)
    assert [g.get_state().tolist() for g in other.generators] == [g.get_state().tolist() for g in plain.generators]


def test_picks_of_a_long_journal_are_chosen_again_only_at_its_end(tmp_path: Path, soon: None, monkeypatch: pytest.MonkeyPatch):
    case, path = Case("gp_ucb", ""), tmp_path / "run.journal"
    bandit = journaled(case, path)
    step(bandit, 30)
    bandit.journal.close()
    kind, chosen = type(bandit.policy), []
    select = kind.select
    monkeypatch.setattr(kind, "select", lambda self, *args, **options: (chosen.append(1), select(self, *args, **options))[1])
    assert int(journaled(case, path).pulls) == 30
    assert 1 <= len(chosen) <= 5


@pytest.mark.parametrize("wrong", [{"index": [999]}, {"rewards": [1e300]}, {"index": [1, 2]}, {"rewards": "x"}])
def test_a_record_of_a_long_journal_that_can_not_be_repeated_is_named(wrong: dict[str, object], tmp_path: Path, soon: None):
    case, path = Case("gp_ucb", ""), tmp_path / "run.journal"
    bandit = journaled(case, path)
    step(bandit, 30)
    bandit.journal.close()
    lines, crc = path.read_bytes().splitlines(), 0
    place = next(k for k, line in enumerate(lines) if k > 15 and json.loads(line[9:])["kind"] == "tell")
    for k, line in enumerate(lines):
        text = json.dumps(json.loads(line[9:]) | (wrong if k == place else {}), separators=(",", ":")).encode()
        crc = zlib.crc32(text, crc)
        lines[k] = b"%08x %s\n" % (crc, text)
    copy = copied(path, tmp_path / "damaged")
    copy.write_bytes(b"".join(lines))
    with pytest.raises(errors.DataError, match=f"line {place + 1} .*'tell' can't be repeated"):
        journaled(case, copy)


def test_duplicates_among_the_arms_are_settled_by_their_entry(tmp_path: Path, soon: None):
    arms = torch.cat([PROBLEM.tensor, PROBLEM.tensor[:5]])
    path, bandits = tmp_path / "run.journal", []
    for journal in (None, path):
        bandit = tb.Bandit(tb.gp_bucb(rbf(), **BOUNDED), arms, journal=journal)
        for told in range(12):
            picks = bandit.ask(more=1)
            arm = picks.index[:1]
            bandit.tell(torch.where(arm < 5, arm + 40, arm) if told % 2 else arm, PROBLEM.rewards(told, arm))
        bandit.ask(more=2)
        bandits.append(bandit)
    bandits[1].journal.close()
    other = tb.Bandit(tb.gp_bucb(rbf(), **BOUNDED), arms, journal=path)
    close(bandits[0], other)
    assert torch.equal(other.ask().index, bandits[0].ask().index)
