"""Arms on several ranks: picks do not depend on the number of ranks, and lost ranks lose nothing learned."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import ranks_program
import torch
from problems import generator, rbf

import torchbandits as tb
from torchbandits import errors

pytestmark = pytest.mark.skipif(not torch.distributed.is_available(), reason="this torch has no torch.distributed")


def torchrun(folder: Path, ranks: int, *more: str) -> None:
    """Run the program with torchrun: real processes, gloo, one thread each."""
    program = str(Path(__file__).parent / "ranks_program.py")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks), program]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, str(folder), *more], capture_output=True, text=True, timeout=3600, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]


def check(folder: Path, ranks: int) -> None:
    """Assert that in every scenario every rank made the picks of a plain bandit and raised the required errors."""
    alone = read(folder, "alone")
    for rank in range(ranks):
        done = read(folder, f"rank_{rank}")
        for name, picks in alone.items():
            assert done[name] == picks, f"{name} on rank {rank} of {ranks}"
        assert done["rewards of rank 0"] == alone["global"]
        assert "arm 525 has a NaN" in done["nan"]
        if ranks > 1:
            assert "ranks [" in done["other generators"]
            assert "ranks must agree" in done["other features"]


def read(folder: Path, name: str) -> dict[str, Any]:
    return json.loads((folder / f"{name}.json").read_text())


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("two")
    torchrun(folder, 2)
    return folder


@pytest.mark.exhaustive
def test_two_processes_pick_what_one_picks(two: Path):
    check(two, 2)
    assert sum(read(two, f"rank_{rank}")["counts"] for rank in range(2)) == read(two, "rank_0")["pulls"]


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 3, 5])
def test_any_number_of_processes_picks_what_one_picks(tmp_path: Path, ranks: int):
    torchrun(tmp_path, ranks)
    check(tmp_path, ranks)


@pytest.mark.exhaustive
def test_a_checkpoint_of_two_ranks_goes_on_on_one(two: Path):
    b = tb.Bandit(ranks_program.policies()["global"](), tb.Shard(ranks_program.arms("equal")), generator=generator(99))
    b.load_state_dict(torch.load(two / "state.pt", weights_only=True))
    assert ranks_program.loop(b, 6, 6) == read(two, "alone")["resumed"][1]


@pytest.mark.exhaustive
def test_a_lost_rank_is_an_error_and_its_checkpoint_goes_on_on_one(two: Path, tmp_path: Path):
    torchrun(tmp_path, 2, "lose")
    lost = read(tmp_path, "lost")
    assert "a rank was lost" in lost["error"]
    b = tb.Bandit(ranks_program.policies()["global"](), tb.Shard(ranks_program.arms("equal")), generator=generator(99))
    b.load_state_dict(torch.load(tmp_path / "lost.pt", weights_only=True))
    assert lost["picks"][:5] == read(two, "alone")["resumed"][0]
    assert b.ask().index.tolist() == lost["picks"][5] == read(two, "alone")["resumed"][1][0]
    assert ranks_program.loop(b, 6, 6) == read(two, "alone")["resumed"][1]


def test_one_rank_without_a_group_is_a_plain_bandit():
    arms = ranks_program.arms("equal")
    plain, sharded = (
        tb.Bandit(ranks_program.policies()["global"](), x, generator=generator(1)) for x in (arms, tb.Shard(arms))
    )
    picks: dict[tb.Bandit, Any] = {}
    for b in (plain, sharded):
        picks[b] = ranks_program.loop(b, 6, 8)
    assert picks[plain] == picks[sharded]
    assert torch.equal(plain.counts, sharded.counts)
    assert torch.equal(plain.dictionary, sharded.dictionary)
    torch.testing.assert_close(plain.posterior(arms).mean, sharded.posterior(arms).mean)
    available = torch.rand(530, generator=generator(0)) < 0.1
    with pytest.raises(errors.UnsupportedError, match="keep one arm of each group of duplicates"):
        sharded.ask(available=available)
    distinct = tb.Bandit(ranks_program.policies()["global"](), tb.Shard(ranks_program.arms()), generator=generator(1))
    other = tb.Bandit(ranks_program.policies()["global"](), ranks_program.arms(), generator=generator(1))
    assert torch.equal(distinct.ask(limit=5, available=available).index, other.ask(limit=5, available=available).index)


def test_a_state_of_other_arms_is_refused():
    b, other = (
        tb.Bandit(tb.bkb(rbf(), noise_std=0.1), tb.Shard(x)) for x in (ranks_program.arms(), ranks_program.arms("equal"))
    )
    ranks_program.loop(b, 3)
    before = copy.deepcopy(other.state_dict())
    with pytest.raises(errors.StateError, match="fingerprints differ"):
        other.load_state_dict(b.state_dict())
    assert other.pulls.item() == 0
    assert before.keys() == other.state_dict().keys()


@pytest.mark.parametrize(
    "policy",
    [
        lambda: tb.gp_ucb(rbf(), noise_std=0.1),
        lambda: tb.uniform(),
        lambda: tb.epsilon_greedy(),
        lambda: tb.bkb(rbf(), noise_std=0.1, acquisition="ei"),
        lambda: tb.batch_bkb(rbf(), noise_std=0.1, batch_rule="local"),
        lambda: tb.batch_bkb(rbf(), noise_std=0.1, initial=tb.starts.uniform(3)),
        lambda: tb.batch_bkb(rbf(), noise_std=0.1, refit_every=5),
        lambda: tb.thompson_sampling(rbf(), noise_std=0.1),
        lambda: tb.pi_gp_ucb(rbf(), noise_std=0.1, nu=1.5, horizon=10),
    ],
)
def test_what_is_not_shared_out_is_refused(policy: Any):
    with pytest.raises(errors.UnsupportedError, match="use batch_bkb"):
        tb.Bandit(policy(), tb.Shard(ranks_program.arms()))


@pytest.mark.usefixtures("annotations_not_enforced")
def test_what_a_shard_can_not_do_is_refused():
    b = tb.Bandit(ranks_program.policies()["global"](), tb.Shard(ranks_program.arms()))
    ranks_program.loop(b, 2, 4)
    with pytest.raises(errors.UnsupportedError):
        b.set_arms_(tb.Shard(ranks_program.arms()))
    with pytest.raises(errors.UnsupportedError):
        b.fit_kernel_()
    with pytest.raises(errors.ArmIndexError):
        b.tell(torch.tensor([530]), torch.zeros(1))
    for bad in (torch.rand(3, 4, 2), torch.rand(0, 2), torch.zeros(3, 2, dtype=torch.int64)):
        with pytest.raises(errors.ShapeError):
            tb.Shard(bad)
