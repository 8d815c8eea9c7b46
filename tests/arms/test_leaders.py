"""The in-batch loop gives the same picks and the same bits compiled and interpreted, for one batch row and for many."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import nullcontext
from itertools import product

import gpytorch
import numpy as np
import pytest
import torch
from emulated_device import emulated_device

import torchbandits as tb
from torchbandits import threads
from torchbandits.arms import compiled as loops
from torchbandits.arms import leaders
from torchbandits.arms.reductions import Whole
from torchbandits.arms.ties import best_arm
from torchbandits.linalg import compiled
from torchbandits.sources.duplicates import first_occurrence


def problem(seed: int, k: int = 24) -> dict:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(k, 6))
    C = X @ X.T / 6
    return {
        "mean": rng.normal(size=k),
        "leverage": np.diag(C) + rng.uniform(0, 0.2, k),
        "covariance": C,
        "scale": rng.uniform(1, 3, k),
        "gain": np.diag(C).copy(),
        "spent": 0.0,
        "budget": 40.0,
        "outside": -1.0,
        "remaining": 200,
        "room": np.full(k, 9),
        "first": -1,
    }


def run(function, seed: int, dynamic: bool) -> tuple[list[int], float, int, np.ndarray]:
    a, picks = problem(seed), np.full(200, -1)
    n, spent, why = function(
        a["mean"], a["leverage"], a["covariance"], a["scale"], a["gain"], dynamic, a["spent"], a["budget"], a["outside"],
        a["remaining"], a["room"], a["first"], picks,
    )  # fmt: skip
    return picks[:n].tolist(), spent, why, a["covariance"]


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_compiled_and_plain_loops_agree_to_the_bit(monkeypatch: pytest.MonkeyPatch, seed: int, dynamic: bool) -> None:
    compiled = run(loops.pick_leaders, seed, dynamic)
    monkeypatch.setattr(loops, "downdate", loops._downdate_numpy)
    plain = run(getattr(loops.pick_leaders, "py_func", loops.pick_leaders), seed, dynamic)
    assert len(compiled[0]) > 10
    assert compiled[0] == plain[0]
    assert compiled[2] == plain[2]
    assert compiled[1] == pytest.approx(plain[1], rel=1e-14)  # log1p may differ by an ulp between libraries
    assert np.array_equal(compiled[3], plain[3])


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_the_loop_for_many_leaders_makes_the_same_picks(seed: int, dynamic: bool) -> None:
    expected = run(loops.pick_leaders, seed, dynamic)
    a, drops = problem(seed), np.empty((200, 24))

    def many(spent: float, budget: float, used: int) -> tuple[list[int], float, int]:
        picks = np.full(200, -1)
        n, spent, why = loops.pick_among_many(
            a["mean"], a["leverage"], a["covariance"], a["scale"], a["gain"], dynamic, spent, budget, a["outside"],
            a["remaining"] - used, a["room"], a["first"], picks, drops, used,
        )  # fmt: skip
        return picks[:n].tolist(), spent, why

    first, spent, why = many(0.0, a["budget"] / 4, 0)  # interrupted by a smaller budget
    assert why == loops.BROKEN
    rest, spent, why = many(spent, a["budget"], len(first))
    assert first + rest == expected[0]
    assert len(rest) > 5
    assert why == expected[2]
    assert spent == pytest.approx(expected[1], rel=1e-12)
    G = drops[: len(first + rest)]
    np.testing.assert_allclose(a["covariance"] - G.T @ G, expected[3], atol=1e-12)
    assert np.array_equal(a["covariance"], problem(seed)["covariance"])


def test_drops_that_are_full_ask_for_new_leaders() -> None:
    a, picks = problem(0), np.full(200, -1)
    drops = np.empty((3, 24))
    n, _, why = loops.pick_among_many(
        a["mean"], a["leverage"], a["covariance"], a["scale"], a["gain"], False, 0.0, 40.0, -1.0, 200, a["room"], -1, picks,
        drops, 0,
    )  # fmt: skip
    assert (n, why) == (3, loops.REFRESH)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_all_rows_together_agree_row_by_row(dynamic: bool, device: str) -> None:
    rows = [problem(seed) for seed in range(4)]
    stacked = {name: torch.as_tensor(np.stack([np.asarray(row[name]) for row in rows])) for name in rows[0]}
    stacked["leaders"] = torch.arange(stacked["mean"].shape[-1]).expand(stacked["mean"].shape)
    with emulated_device() if device == "cuda" else nullcontext():
        control = {name: stacked.pop(name) for name in ("spent", "budget", "remaining")}
        there = {name: value.to(device) for name, value in stacked.items()}
        ended = leaders.pick_rows(dynamic=dynamic, most=200, **there, **control)
    for row in range(4):
        expected = run(loops.pick_leaders, row, dynamic)
        assert ended.picks[row, : int(ended.n[row])].tolist() == expected[0]
        assert int(ended.why[row]) == expected[2]
        assert float(ended.spent[row]) == expected[1]
    assert ended.leaders[0].tolist() == list(range(ended.leaders.shape[-1]))


@pytest.mark.parametrize("count", [1, 3, 64])
def test_threads_divide_the_rows_and_change_nothing(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    monkeypatch.setattr(threads.torch, "get_num_threads", lambda: count)
    rows, k = 37, 24
    problems = [problem(seed) for seed in range(rows)]
    stacked = {name: torch.as_tensor(np.stack([np.asarray(row[name]) for row in problems])) for name in problems[0]}
    stacked |= {"leaders": torch.arange(k).expand(rows, k), "drops": torch.empty(rows, 64, k, dtype=torch.float64)}
    used = torch.zeros(rows, dtype=torch.int64)
    ended = leaders.pick_rows(dynamic=True, most=20, used=used, **stacked | {"remaining": torch.full((rows,), 20)})
    for row, own in enumerate(problems):
        picks, drops = np.full(20, -1), np.empty((64, k))
        n, spent, why = loops.pick_among_many(**own | {"remaining": 20}, dynamic=True, picks=picks, drops=drops, used=0)
        assert ended.picks[row, :n].tolist() == picks[:n].tolist()
        assert (int(used[row]), float(ended.spent[row]), int(ended.why[row])) == (n, spent, why)
        assert torch.equal(ended.leverage[row], torch.from_numpy(own["leverage"]))


@pytest.mark.exhaustive
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_process_has_threads_of_its_own() -> None:
    """Those of its parent do not run in it: waiting for them would never end."""
    program = (
        "import os, torch\n"
        "from torchbandits.threads import shared\n"
        "torch.set_num_threads(4)\n"
        "done = []\n"
        "shared(done.append, 40, 4)\n"
        "if (child := os.fork()) == 0:\n"
        "    shared(done.append, 40, 4)\n"
        "    os._exit(0 if len(done) == 8 else 1)\n"
        "assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0\n"
        "assert sorted(s.start for s in done) == [0, 10, 20, 30]\n"
    )
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", program]
    subprocess.run(command, check=True, timeout=100, env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)})


def test_ties_go_to_the_lowest_index() -> None:
    score = torch.tensor([0.3, 1.0, 1.0 + 1e-15, 1.0 - 1e-15, 0.9], dtype=torch.float64)
    assert int(best_arm(score)) == 1
    assert int(best_arm(-score)) == 0


def test_the_loop_breaks_ties_so_at_every_pick() -> None:
    """With one pick per arm, tied arms are picked in the order of their indices, whichever score is larger by an ulp."""
    score = np.array([0.3, 1.0, 1.0 + 1e-15, 1.0 - 1e-15, 0.9])
    tied = problem(0, 5) | {"mean": score, "scale": np.zeros(5), "leverage": np.ones(5), "covariance": np.eye(5)}
    tied |= {"gain": np.ones(5), "room": np.ones(5, dtype=int), "remaining": 5}
    stacked = {name: torch.as_tensor(np.stack([np.asarray(value)])) for name, value in tied.items()}
    stacked["leaders"] = torch.arange(stacked["mean"].shape[-1]).expand(stacked["mean"].shape)
    assert leaders.pick_rows(dynamic=False, most=5, **stacked).picks[0].tolist() == [1, 2, 3, 4, 0]
    for loop in {loops.pick_leaders, getattr(loops.pick_leaders, "py_func", loops.pick_leaders)}:
        own = np.full(5, -1)
        copies = {name: np.copy(value) if isinstance(value, np.ndarray) else value for name, value in tied.items()}
        loop(picks=own, dynamic=False, **copies)
        assert own.tolist() == [1, 2, 3, 4, 0]


def test_first_occurrence_finds_exact_duplicates_only() -> None:
    generator = torch.Generator().manual_seed(0)
    arms = torch.randint(3, (3, 50, 3), generator=generator).double()
    arms[0, 7] = torch.tensor([0.0, -0.0, 1e-300], dtype=torch.float64)
    arms[0, 9] = torch.tensor([-0.0, 0.0, 1e-300], dtype=torch.float64)
    first = first_occurrence(arms)
    assert first is not None
    for b in range(3):
        for i in range(50):
            expected = next(j for j in range(50) if bool((arms[b, j] == arms[b, i]).all()))
            assert int(first[b, i]) == expected
    assert first_occurrence(torch.randn(100, 2, generator=generator, dtype=torch.float64)) is None


@pytest.mark.skipif(not hasattr(loops.pick_leaders, "py_func"), reason="numba is not installed: nothing is compiled")
def test_warming_up_compiles_what_runs_need() -> None:
    """No further signature is compiled by a batch, of one row or several."""
    leaders.warm_up()
    functions = [loops.pick_leaders, compiled.factorise, compiled.sweep_kept]
    known = [len(function.signatures) for function in functions]
    arms = torch.rand(50, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    kernel = gpytorch.kernels.RBFKernel().double()
    policies = [tb.batch_bkb(kernel), tb.bkb(kernel), tb.batch_bkb(kernel, prior_mean="estimate"), tb.gp_ucb(kernel)]
    for policy, generator in product(policies, (torch.Generator(), [torch.Generator(), torch.Generator()])):
        bandit = tb.Bandit(policy, arms, generator=generator)
        for _ in range(3):
            selection = bandit.ask(limit=5)
            bandit.tell(selection, torch.zeros_like(selection.index, dtype=torch.float64))
    assert [len(function.signatures) for function in functions] == known


def test_arms_that_are_all_alike_are_brought_up_to_date_in_few_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each pick lowers all scores by nearly the same amount, so that the best arm is known once all scores are refreshed."""
    arms = torch.rand(20_000, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    kernel = gpytorch.kernels.RBFKernel().double()
    kernel.lengthscale = 10.0
    policy = tb.gp_bucb(kernel, noise_std=0.1, norm_bound=1.0, ratio_threshold=1e9)
    rounds = []
    top = Whole.top
    monkeypatch.setattr(Whole, "top", lambda self, score, k: rounds.append(k) or top(self, score, k))
    picks = tb.Bandit(policy, arms, generator=torch.Generator().manual_seed(1)).ask(limit=6).index
    assert len(rounds) <= 6 * (2 + 9)  # 64, 128, … arms are refreshed: after nine doublings all of them
    leverage = kernel(arms[:1], arms[:1]).to_dense().new_ones(20_000)
    directions = torch.zeros(0, 20_000, dtype=torch.float64)
    for pick in picks:  # sequentially, with all scores computed again
        assert int(pick) == int((leverage >= leverage.max() * (1 - 1e-14)).nonzero()[0])
        column = kernel(arms[pick : pick + 1], arms).to_dense().detach()[0] - directions[:, pick] @ directions
        directions = torch.cat([directions, (column / (column[pick] + 0.01).sqrt()).unsqueeze(0)])
        leverage = 1 - directions.square().sum(dim=0)
