"""Arms that are read in chunks: a run on any source equals the run on a tensor."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import gpytorch
import numpy as np
import pandas
import pyarrow
import pyarrow.feather
import pyarrow.parquet
import pytest
import torch
from problems import BOUNDED, COMMON, NOISE_STD, Problem, generator, kernel_pair, rbf
from torch import Tensor

import torchbandits as tb
from torchbandits import errors, sources
from torchbandits.arms.scanning import find, scan
from torchbandits.journal import journal
from torchbandits.sources import ArmSource
from torchbandits.sources.duplicates import first_occurrence
from torchbandits.testing import ArmSourceContract

Maker = Callable[[Tensor, Path], ArmSource]


def _npy(arms: Tensor, folder: Path) -> ArmSource:
    np.save(folder / "arms.npy", arms.numpy())
    return sources.npy(folder / "arms.npy")


def _parquet(arms: Tensor, folder: Path, **options) -> ArmSource:
    table = pyarrow.table({f"x{j}": arms[:, j].numpy() for j in range(arms.shape[1])})
    pyarrow.parquet.write_table(table, folder / "arms.parquet", row_group_size=37)
    return sources.parquet(folder / "arms.parquet", dtype=arms.dtype, **options)


def _lists(arms: Tensor, folder: Path) -> ArmSource:
    flat = pyarrow.array(arms.numpy().reshape(-1))
    table = pyarrow.table({"name": list(range(len(arms))), "x": pyarrow.FixedSizeListArray.from_arrays(flat, arms.shape[1])})
    pyarrow.feather.write_feather(table, folder / "arms.arrow", chunksize=29, compression="uncompressed")
    return sources.parquet(folder / "arms.arrow", ["x"], dtype=arms.dtype)


def _chunks(arms: Tensor, folder: Path) -> ArmSource:
    return sources.chunks(lambda: iter(arms.split(31)), *arms.shape, dtype=arms.dtype)


def _chunks_at(arms: Tensor, folder: Path) -> ArmSource:
    return sources.chunks(lambda: arms.split(50), *arms.shape, at=lambda index: arms[index], dtype=arms.dtype)


def _cached(arms: Tensor, folder: Path) -> ArmSource:
    return _parquet(arms, folder, cache=folder / "cache.npy")


def _pinned(arms: Tensor, folder: Path) -> ArmSource:
    return sources.pinned(arms, "cpu")


MAKERS: dict[str, Maker] = {
    "npy": _npy,
    "parquet": _parquet,
    "arrow lists": _lists,
    "cached": _cached,
    "chunks": _chunks,
    "chunks at": _chunks_at,
    "pinned": _pinned,
}
PROBLEM = Problem(seed=4, a=120, d=2, duplicates=6, near_duplicates=6)


def play(bandit: tb.Bandit, rounds: int, most: int = 5, problem: Problem = PROBLEM) -> list[list[int]]:
    picks = []
    for step in range(rounds):
        selection = bandit.ask(limit=most)
        picks.append(selection.index.tolist())
        bandit.tell(selection, problem.rewards(most * step, selection.index))
    return picks


# ---------------------------------------------------------------------- the seam


@pytest.mark.sweep
class TestEverySource(ArmSourceContract):
    @pytest.fixture(autouse=True, params=MAKERS)
    def of_kind(self, request: pytest.FixtureRequest, tmp_path: Path):
        self.make, self.folder = MAKERS[request.param], tmp_path

    @pytest.fixture(autouse=True, params=[torch.float64, torch.float32], ids=str)
    def of_dtype(self, request: pytest.FixtureRequest):
        self.dtype = request.param

    def arms(self) -> Tensor:
        return PROBLEM.tensor.to(self.dtype)

    def source(self) -> ArmSource:
        return self.make(self.arms(), self.folder)

    def test_a_bandit_hands_out_the_source(self):
        source = self.source()
        assert tb.Bandit(tb.batch_bkb(rbf(), **BOUNDED), source).arms is source


class TestGrid(ArmSourceContract):
    axes = (torch.linspace(0, 1, 5, dtype=torch.float64), torch.tensor([5.0, -1.0, 2.0, 0.0], dtype=torch.float64))

    def arms(self) -> Tensor:
        return torch.cartesian_prod(*self.axes)

    def source(self) -> ArmSource:
        return sources.grid(self.axes)


class TestTensor(ArmSourceContract):
    def arms(self) -> Tensor:
        return Problem(seed=4, a=40, d=3).tensor

    def source(self) -> ArmSource:
        return sources.tensor(self.arms(), distinct=True)


@pytest.mark.parametrize("make", [_npy, _parquet, _lists], ids=["npy", "parquet", "arrow lists"])
def test_another_process_opens_the_file_itself(make: Maker, tmp_path: Path):
    source = make(PROBLEM.tensor, tmp_path)
    sent = pickle.dumps(source)
    assert len(sent) < 4000
    assert torch.equal(pickle.loads(sent).chunk(slice(0, 120)), PROBLEM.tensor)


def test_a_grid_is_the_cartesian_product():
    axes = [torch.linspace(0, 1, 4, dtype=torch.float64), torch.tensor([5.0, -1.0, 2.0], dtype=torch.float64)]
    source = sources.grid([*axes, axes[0]])
    assert torch.equal(source.chunk(slice(0, 48)), torch.cartesian_prod(*axes, axes[0]))
    assert torch.equal(source.points(torch.tensor([[47, 0]])), torch.cartesian_prod(*axes, axes[0])[torch.tensor([[47, 0]])])
    assert sources.grid([axes[0]] * 20).num_arms == 4**20


def test_float32_files_may_be_swept_in_double(tmp_path: Path):
    np.save(tmp_path / "arms.npy", PROBLEM.arms.astype(np.float32))
    source = sources.npy(tmp_path / "arms.npy", dtype=torch.float64)
    assert torch.equal(source.chunk(slice(0, 120)), PROBLEM.tensor.float().double())
    np.save(tmp_path / "swapped.npy", np.asfortranarray(PROBLEM.arms).astype(">f8"))
    assert torch.equal(sources.npy(tmp_path / "swapped.npy").chunk(slice(3, 9)), PROBLEM.tensor[3:9])


@pytest.mark.parametrize("seed", range(20))
def test_duplicates_and_points_are_found_like_in_a_tensor(seed: int):
    rng = np.random.default_rng(seed)
    arms = torch.as_tensor(rng.integers(-2, 3 + 40 * (seed % 3), size=(150, 2)).astype(float))
    arms[rng.integers(150, size=5)] *= -0.0
    source = sources.chunks(lambda: arms.split(41), 150, 2)
    first, mine = first_occurrence(arms), scan(source).first
    assert (first is None) == (mine is None)
    assert first is None or torch.equal(first, mine)
    points = torch.cat([arms[torch.as_tensor(rng.integers(150, size=12))], torch.full((4, 2), 0.5, dtype=torch.float64)])
    points = points.reshape(2, 8, 2)
    assert torch.equal(find(source, points), find(arms, points))
    assert (find(source, points[..., :0, :])).shape == (2, 0)


def test_arms_of_equal_hashes_are_compared_in_full(monkeypatch: pytest.MonkeyPatch):
    arms = torch.tensor([[0.0], [1.0], [2.0], [1.0], [0.0], [3.0], [2.0]], dtype=torch.float64)
    source = sources.chunks(lambda: [arms], 7, 1)
    monkeypatch.setattr("torchbandits.arms.scanning.codes", lambda points: torch.zeros(len(points), dtype=torch.int64))
    assert scan(source).first.tolist() == [0, 1, 2, 1, 0, 5, 2]
    assert find(source, torch.tensor([[2.0], [9.0]], dtype=torch.float64)).tolist() == [2, -1]


# ---------------------------------------------------------------------- runs


@pytest.mark.parametrize("budget", [2 << 30, 0], ids=["kept columns", "no columns"])
def test_arms_beyond_one_piece_are_those_of_a_run_that_reads_them_at_once(budget: int, monkeypatch: pytest.MonkeyPatch):
    """Columns are evaluated, and arms scanned, in pieces of 65,536 arms; here in pieces of 50."""
    policy = tb.batch_bkb(kernel_pair("matern32")[0], memory_budget=budget, **BOUNDED)
    whole = play(tb.Bandit(policy, PROBLEM.tensor, generator=generator(1)), 8)
    monkeypatch.setattr("torchbandits.arms.columns._READ", 50)
    monkeypatch.setattr("torchbandits.arms.scanning._STEP", 17)
    for given in (PROBLEM.tensor, _chunks(PROBLEM.tensor, Path())):
        assert play(tb.Bandit(policy, given, generator=generator(1)), 8) == whole


POLICIES = {
    "bkb": lambda kernel: tb.bkb(kernel, **BOUNDED),
    "local": lambda kernel: tb.batch_bkb(kernel, batch_rule="global_then_local", **BOUNDED),
    "exact ratio": lambda kernel: tb.batch_bkb(kernel, batch_rule="exact_ratio", **BOUNDED),
    "ei": lambda kernel: tb.bkb(kernel, acquisition="ei", **BOUNDED),
    "uncertainty": lambda kernel: tb.batch_bkb(kernel, initial=tb.starts.uncertainty(0.2), **BOUNDED),
    "gp_ucb": lambda kernel: tb.gp_ucb(kernel, **COMMON),
    "gp_bucb": lambda kernel: tb.gp_bucb(kernel, **BOUNDED),
    "compressed_gp": lambda kernel: tb.compressed_gp(kernel, **COMMON),
    "mini_gp_ucb": lambda kernel: tb.mini_gp_ucb(kernel, **BOUNDED),
    "thompson": lambda kernel: tb.thompson_sampling(kernel, embedding="nystrom", **BOUNDED),
    "uniform": lambda kernel: tb.uniform(),
    "epsilon_greedy": lambda kernel: tb.epsilon_greedy(),
}


@pytest.mark.sweep(4)
@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("kernel", ["matern12", "linear"])
def test_every_policy_that_streams(name: str, kernel: str):
    arms, policy = PROBLEM.tensor, POLICIES[name](kernel_pair(kernel)[0])
    plain = tb.Bandit(policy, arms, generator=generator(2))
    read = tb.Bandit(policy, _chunks_at(arms, Path()), generator=generator(2))
    assert play(plain, 8, 3) == play(read, 8, 3)


def test_an_exact_posterior_with_more_arms_than_are_kept_dense():
    problem = Problem(seed=2, a=1500, d=3)
    runs = []
    for arms in (problem.tensor, sources.chunks(lambda: problem.tensor.split(400), 1500, 3)):
        bandit = tb.Bandit(tb.gp_ucb(rbf(), **COMMON), arms, generator=generator(3))
        runs.append(play(bandit, 30, 1, problem))
        bandit.observe(torch.arange(40), torch.ones(40), torch.linspace(0, 1, 40, dtype=torch.float64))
        runs[-1] += play(bandit, 3, 1, problem)
    assert runs[0] == runs[1]


def test_batch_rows_share_a_source():
    """Rows with different kernels, float32 arms and near-duplicates."""
    kernel = gpytorch.kernels.RBFKernel(batch_shape=torch.Size([3])).double()
    kernel.lengthscale = torch.tensor([0.2, 0.4, 0.8], dtype=torch.float64).reshape(3, 1, 1)
    arms = PROBLEM.tensor.float()
    for budget in (2 << 30, 0):
        policy = tb.batch_bkb(kernel, memory_budget=budget, **BOUNDED)
        picks = []
        for given in (arms, sources.chunks(lambda: arms.split(50), 120, 2, dtype=torch.float32)):
            bandit = tb.Bandit(policy, given, generator=[generator(s) for s in range(3)])
            mine = []
            for step in range(6):
                selection = bandit.ask(limit=4)
                mine.append(selection.index)
                noise = torch.as_tensor(PROBLEM.noise)[4 * step : 4 * step + len(selection)]
                rewards = torch.as_tensor(PROBLEM.f)[selection.index.clamp_min(0)] + noise
                bandit.tell(selection, rewards)
            picks.append(mine)
        assert all(torch.equal(a, b) for a, b in zip(*picks, strict=True))


def test_a_promise_that_arms_differ_saves_the_search_only():
    problem = Problem(seed=9, a=100)
    policy = tb.batch_bkb(rbf(), **BOUNDED)
    source = sources.chunks(lambda: problem.tensor.split(30), 100, 2, distinct=True)
    given = [problem.tensor, sources.tensor(problem.tensor, distinct=True), sources.tensor(problem.tensor), source]
    runs = [play(tb.Bandit(policy, arms, generator=generator(1)), 6) for arms in given]
    assert all(run == runs[0] for run in runs)
    twice = sources.tensor(problem.tensor[:1].repeat(5, 1), distinct=True)
    bandit = tb.Bandit(policy, twice)
    bandit.tell(torch.tensor([0, 1]), torch.tensor([1.0, 2.0]))
    assert bandit.counts.tolist() == [1, 1, 0, 0, 0]  # each is a separate arm, as declared


def test_available_observe_and_new_arms():
    arms = PROBLEM.tensor
    policy, rng = tb.batch_bkb(rbf(), **BOUNDED), np.random.default_rng(0)
    pair = [tb.Bandit(policy, given, generator=generator(1)) for given in (arms, _chunks(arms, Path()))]
    offered = torch.as_tensor(rng.uniform(size=120) < 0.4)
    points = torch.cat([arms[5:9], torch.rand(3, 2, generator=generator(4), dtype=torch.float64)])
    other = torch.cat([arms[60:], torch.rand(50, 2, generator=generator(5), dtype=torch.float64), arms[:5]])
    picks: list[list[list[int]]] = [[], []]
    for mine, bandit in zip(picks, pair, strict=True):
        mine += play(bandit, 3)
        selection = bandit.ask(limit=4, available=offered)
        mine.append(selection.index.tolist())
        assert bool(offered[bandit.loop.state.rows.entry(selection.index)].any())
        bandit.forget(selection)
        ones = torch.ones(7, dtype=torch.float64)
        bandit.observe(points, 2 * ones, 0.3 * ones)
        bandit.observe(torch.arange(6), ones[:6], 0.1 * ones[:6])
        mine += play(bandit, 2)
        bandit.set_arms_(other if bandit is pair[0] else sources.chunks(lambda: other.split(45), len(other), 2))
        mine += play(bandit, 3)
        bandit.fit_kernel_()
        mine += play(bandit, 2)
    assert picks[0] == picks[1]
    assert torch.equal(pair[0].counts, pair[1].counts)


def test_states_go_from_one_kind_of_source_to_another(tmp_path: Path):
    policy = tb.batch_bkb(rbf(), **BOUNDED)
    first = tb.Bandit(policy, _npy(PROBLEM.tensor, tmp_path), generator=generator(1))
    play(first, 4)
    first.ask(limit=3)
    saved = first.state_dict()
    tensor = tb.Bandit(policy, PROBLEM.tensor)
    others = [tb.Bandit(policy, _chunks(PROBLEM.tensor, tmp_path)), tensor]
    expected = play(first, 4)
    for bandit in others:
        assert play(bandit.load_state_dict(saved), 4) == expected
    back = tb.Bandit(policy, _npy(PROBLEM.tensor, tmp_path)).load_state_dict(tensor.state_dict())
    assert play(back, 3) == play(tensor, 3)
    changed = PROBLEM.tensor.clone()
    changed[[7, 8]] = changed[[8, 7]]
    wrong = tb.Bandit(policy, _chunks(changed, tmp_path), generator=generator(7))
    before = wrong.state_dict()
    with pytest.raises(errors.StateError, match="fingerprints differ"):
        wrong.load_state_dict(saved)
    assert torch.equal(wrong.state_dict()["state"]["table.leverage"], before["state"]["table.leverage"])
    play(wrong, 2)


def test_an_exact_posterior_beyond_its_budget_is_refused_and_goes_on_elsewhere():
    problem = Problem(seed=2, a=1500, d=3)
    policy = tb.gp_ucb(rbf(), memory_budget=8 * 1500 * 70, **COMMON)
    bandit = tb.Bandit(policy, sources.chunks(lambda: [problem.tensor], 1500, 3))
    ones = torch.ones(80, dtype=torch.float64)
    play(bandit, 3, 1, problem)
    before = bandit.state_dict()
    with pytest.raises(errors.UnsupportedError, match=r"batch_bkb or bkb.*memory_budget="):
        bandit.observe(torch.arange(80), ones, ones)
    assert torch.equal(bandit.state_dict()["state"]["table.leverage"], before["state"]["table.leverage"])
    assert int(bandit.pulls) == 3
    play(bandit, 2, 1, problem)


# ---------------------------------------------------------------------- environments


def test_a_table_over_a_source(tmp_path: Path):
    arms, rewards = PROBLEM.tensor, torch.as_tensor(PROBLEM.f)
    np.save(tmp_path / "rewards.npy", PROBLEM.f)
    policy = tb.batch_bkb(rbf(), **BOUNDED)
    mapped = np.load(tmp_path / "rewards.npy", mmap_mode="r")
    histories = [
        tb.run(policy, environment, 60, generator=generator(1))
        for environment in (
            tb.environments.Table(arms, rewards, NOISE_STD),
            tb.environments.Table(_npy(arms, tmp_path), mapped, NOISE_STD),
            tb.environments.Table(_chunks(arms, tmp_path), rewards.float().double(), NOISE_STD),
        )
    ]
    for history in histories[:2]:
        np.testing.assert_array_equal(history.pulls["arm"], histories[0].pulls["arm"])
        np.testing.assert_array_equal(history.pulls["regret"], histories[0].pulls["regret"])


def test_a_function_over_a_grid_is_evaluated_piece_by_piece():
    axis = torch.linspace(-1, 1, 300, dtype=torch.float64)
    sizes = []

    def function(x: Tensor) -> Tensor:
        sizes.append(len(x))
        return x[..., 0] * x[..., 1]

    grid = sources.grid([axis, axis])
    environment = tb.environments.Function(function, grid, NOISE_STD)
    assert torch.equal(environment.means, torch.cartesian_prod(axis, axis).prod(dim=-1))
    assert max(sizes) <= 1 << 16
    assert float(environment.optimum) == 1.0
    history = tb.run(tb.batch_bkb(rbf(), max_batch_size=5, **BOUNDED), environment, 20, generator=generator(0))
    assert len(history.pulls["arm"]) == 20


# ---------------------------------------------------------------------- bad input


@pytest.mark.usefixtures("annotations_not_enforced")
def test_what_can_not_be_read_is_refused_with_the_remedy(tmp_path: Path):
    def refuse(call: Callable[..., object], error: type[Exception], match: str, *given: object) -> None:
        with pytest.raises(error, match=match):
            call(*given)

    good, two = np.zeros((4, 2)), torch.zeros(4, 2, dtype=torch.float64)
    for name, array in {"int": good.astype(int), "flat": good[0], "none": good[:0], "short": good.astype(np.int16)}.items():
        np.save(tmp_path / f"{name}.npy", array)
        refuse(sources.npy, errors.ShapeError, "must hold", tmp_path / f"{name}.npy")
    (tmp_path / "text.npy").write_text("arms")
    np.savez(tmp_path / "many.npz", good, good)
    np.save(tmp_path / "cut.npy", good)
    (tmp_path / "cut.npy").write_bytes((tmp_path / "cut.npy").read_bytes()[:-8])
    for name in ("text.npy", "missing.npy", "cut.npy"):
        refuse(sources.npy, errors.DataError, r"can't (map|read) arms from .*" + name, tmp_path / name)
    refuse(lambda: sources.npy(tmp_path / "many.npz"), errors.ShapeError, "several arrays")
    refuse(lambda: sources.npy(tmp_path / "int.npy", dtype=torch.int64), errors.ShapeError, "dtype must be float64")
    pyarrow.parquet.write_table(pyarrow.table({"x": [1.0], "name": ["a"]}), tmp_path / "t.parquet")
    refuse(lambda: sources.parquet(tmp_path / "t.parquet"), errors.ShapeError, r"'name'.*holds string")
    refuse(lambda: sources.parquet(tmp_path / "t.parquet", ["nam"]), errors.ArgumentError, "Did you mean 'name'")
    refuse(lambda: sources.parquet(tmp_path / "text.npy"), errors.DataError, "can't read arms")
    np.save(tmp_path / "cache.npy", good)
    refuse(
        lambda: sources.parquet(tmp_path / "t.parquet", ["x"], cache=tmp_path / "cache.npy"),
        errors.ArgumentError,
        "another file",
    )
    refuse(lambda: sources.grid([]), errors.ShapeError, "at least one axis")
    refuse(lambda: sources.grid([two[0, :1], two[0, :0]]), errors.ShapeError, "axis 1")
    refuse(lambda: sources.grid([torch.tensor([1.0, 1.0])]), errors.ArgumentError, "repeats")
    refuse(lambda: sources.grid([torch.tensor([1.0, torch.nan])]), errors.NonFiniteError, "axis 0")
    refuse(lambda: sources.grid([torch.arange(1000.0)] * 22), errors.ArgumentError, "64 bits")
    refuse(lambda: sources.grid([torch.arange(3)]), errors.ShapeError, "float64")
    refuse(lambda: sources.chunks([two], 4, 2), errors.ArgumentError, "must be a function")
    refuse(lambda: sources.chunks(lambda: [two], 0, 2), errors.ArgumentError, "num_arms")
    refuse(lambda: sources.pinned(two.long(), "cpu"), errors.ShapeError, "float64")
    refuse(lambda: sources.tensor(two[0]), errors.ShapeError, "A x d")
    refuse(lambda: sources.tensor(two[:0]), errors.ShapeError, "A x d")

    policy = tb.batch_bkb(rbf(), **BOUNDED)
    refuse(lambda: tb.Bandit(policy, sources.chunks(lambda: [two], 5, 2)), errors.DataError, "ends after 4 arms, and 5")
    refuse(lambda: tb.Bandit(policy, sources.chunks(lambda: [two], 3, 2)), errors.DataError, "more than the 3")
    refuse(lambda: tb.Bandit(policy, sources.chunks(lambda: two.split(2), 2, 2)), errors.DataError, "more than the 2")
    refuse(
        lambda: tb.Bandit(policy, sources.chunks(lambda: [two.float()], 4, 2)), errors.ShapeError, "torch.float64 tensors n x 2"
    )
    refuse(lambda: tb.Bandit(policy, sources.chunks(lambda: [two, None], 8, 2)), errors.ShapeError, "got NoneType")
    refuse(lambda: tb.Bandit(tb.lin_ucb(**BOUNDED), _chunks(two, tmp_path)), errors.UnsupportedError, "as one tensor")
    refuse(lambda: tb.Bandit(tb.ada_bkb(rbf(), **BOUNDED), _chunks(two, tmp_path)), errors.UnsupportedError, "as one tensor")


def test_the_first_sweep_names_the_arm_that_is_not_finite(tmp_path: Path):
    arms = PROBLEM.tensor.clone()
    arms[97, 1] = torch.nan
    for make in MAKERS.values():
        with pytest.raises(errors.NonFiniteError, match="arm 97"):
            tb.Bandit(tb.batch_bkb(rbf(), **BOUNDED), make(arms, tmp_path))
        (tmp_path / "cache.npy").unlink(missing_ok=True)


def test_an_empty_list_of_columns_does_not_mean_all(tmp_path: Path):
    pandas.DataFrame({"x": [0.0, 1.0], "y": [2.0, 3.0]}).to_parquet(tmp_path / "arms.parquet")
    with pytest.raises(errors.ArgumentError, match=r"columns must be a list of names, or None for all, got \[\]"):
        sources.parquet(tmp_path / "arms.parquet", [])


@pytest.mark.parametrize("policy", [tb.auto(), tb.gp_ucb(rbf(0.5))], ids=["auto", "gp_ucb"])
def test_a_first_arm_that_is_not_finite_is_not_blamed_on_the_kernel(policy: Any, tmp_path: Path):
    np.save(tmp_path / "arms.npy", np.array([[0.0, np.nan], [1.0, 2.0]]))
    with pytest.raises(errors.NonFiniteError, match="the first arm has a NaN"):
        tb.Bandit(policy, sources.npy(tmp_path / "arms.npy"))


@pytest.mark.parametrize("make", [_npy, _parquet], ids=["npy", "parquet"])
def test_a_file_that_changes_under_a_run_is_noticed_and_nothing_is_lost(make: Maker, tmp_path: Path):
    bandit = tb.Bandit(tb.batch_bkb(rbf(), memory_budget=0, **BOUNDED), make(PROBLEM.tensor, tmp_path), generator=generator(1))
    play(bandit, 3)
    selection = bandit.ask(limit=3)
    saved = bandit.state_dict()
    path = next(tmp_path.glob("arms.*"))
    path.write_bytes(path.read_bytes() + b"more")
    with pytest.raises(errors.DataError, match="changed since it was opened"):
        bandit.tell(selection, torch.zeros(selection.index.shape))
    make(PROBLEM.tensor, tmp_path)
    again = tb.Bandit(bandit.policy, make(PROBLEM.tensor, tmp_path)).load_state_dict(saved)
    assert torch.equal(again.pulls, bandit.pulls)
    play(again, 2)


def test_what_was_learned_can_be_saved_after_a_file_has_changed(tmp_path: Path):
    """Picks are open, which a posterior has as pending: their points are not read from the file for the saved state."""
    bandit, plain = (
        tb.Bandit(tb.gp_ucb(rbf(), **COMMON), arms, generator=generator(1))
        for arms in (_npy(PROBLEM.tensor, tmp_path), PROBLEM.tensor)
    )
    assert play(bandit, 3, 1) == play(plain, 3, 1)
    bandit.ask(limit=1)
    plain.ask(limit=1)
    os.utime(tmp_path / "arms.npy", ns=(0, 0))
    with pytest.raises(errors.DataError, match=r"open it again and load the saved state into a new Bandit"):
        bandit.tell(bandit.ask(), torch.zeros(1))
    saved = bandit.state_dict()
    again = tb.Bandit(bandit.policy, sources.npy(tmp_path / "arms.npy")).load_state_dict(saved)
    points = PROBLEM.tensor[:9]
    assert torch.equal(again.posterior(points).variance, plain.posterior(points).variance)
    assert [again.ask(more=1).index.tolist()] == [plain.ask(more=1).index.tolist()]


def test_a_stream_may_fill_one_buffer_again_and_again():
    arms = PROBLEM.tensor

    def filled():
        buffer = torch.empty(31, 2, dtype=torch.float64)
        for piece in arms.split(31):
            buffer[: len(piece)] = piece
            yield buffer[: len(piece)]

    source = sources.chunks(filled, 120, 2)
    for step in (7, 31, 50, 120, 500):
        assert torch.equal(torch.cat([piece.clone() for _, piece in source.chunks(step)]), arms)
        parts = list(source.chunks(step, 40, 101))
        assert [part.stop - part.start for part, _ in parts] == [len(piece) for _, piece in parts]
    assert torch.equal(source.chunk(slice(5, 118)), arms[5:118])
    assert torch.equal(source.points(torch.arange(119, -1, -1)), arms.flip(0))


def test_what_a_source_can_not_do_is_refused():
    bandit = tb.Bandit(tb.batch_bkb(rbf(), **BOUNDED), _chunks(PROBLEM.tensor, Path()))
    play(bandit, 2)
    for call in (
        lambda: bandit.model(),
        lambda: bandit.ask(maximizer=lambda score: torch.zeros(2)),
        lambda: bandit.to("meta"),
    ):
        with pytest.raises(errors.UnsupportedError):
            call()
    assert bandit.to("cpu") is bandit
    play(bandit, 1)


@pytest.mark.cuda
def test_pinned_arms_are_swept_on_a_gpu(tmp_path: Path):
    arms = torch.rand(100_000, 3, generator=generator(0), dtype=torch.float64)
    source = sources.pinned(arms, "cuda")
    for step in (999, 40_000, 200_000):
        for part, piece in source.chunks(step):
            assert torch.equal(piece.cpu(), arms[part])
    np.save(tmp_path / "arms.npy", arms.numpy())
    for read in (source, sources.npy(tmp_path / "arms.npy", device="cuda")):
        sums = [piece.sum(dim=-1) for _, piece in read.chunks(1000)]  # work that reads a buffer as the next chunk arrives
        torch.testing.assert_close(torch.cat(sums).cpu(), arms.sum(dim=-1))
    policy = tb.batch_bkb(rbf(), memory_budget=0, **BOUNDED)
    picks = []
    for given in (source, arms.cuda()):
        bandit = tb.Bandit(policy, given, generator=generator(1))
        for step in range(4):
            selection = bandit.ask(limit=5)
            picks.append(selection.index.tolist())
            bandit.tell(selection, PROBLEM.rewards(5 * step, selection.index.cpu() % 120).cuda())
    assert picks[:4] == picks[4:]


# ---------------------------------------------------------------------- embeddings of few bits


def _embeddings(kind: torch.dtype) -> Tensor:
    values = torch.randn(600, 12, generator=generator(7))
    return (
        values.to(kind)
        if kind.is_floating_point
        else (40 * values).round().clamp(0 if kind == torch.uint8 else -128, 127).to(kind)
    )


def _counted(chunk: Callable[..., Tensor], sizes: list[int], source: ArmSource, part: slice) -> Tensor:
    sizes.append(part.stop - part.start)
    return chunk(source, part)


@pytest.mark.sweep(1)
@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16, torch.int8, torch.uint8], ids=str)
@pytest.mark.parametrize("kernel", ["rbf", "linear", "matern52", "spherical linear"])
def test_embeddings_of_few_bits_are_converted_a_chunk_at_a_time(kind: torch.dtype, kernel: str, tmp_path: Path, monkeypatch):
    """A run equals the run on the converted tensor, and only a few arms are converted at a time."""
    monkeypatch.setattr("torchbandits.arms.columns._READ", 20)
    monkeypatch.setattr("torchbandits.arms.columns._CHUNK_BYTES", 1)
    monkeypatch.setattr("torchbandits.arms.columns._READ_BYTES", 1)
    monkeypatch.setattr("torchbandits.arms.scanning._STEP", 20)
    arms = _embeddings(kind)
    unit = 1.0 if kind.is_floating_point else 40.0
    box = unit * torch.tensor([[-3.0] * 12, [3.0] * 12], dtype=torch.float64)
    given_kernel = tb.SphericalLinearKernel(box).double() if kernel == "spherical linear" else kernel_pair(kernel)[0]
    policy = tb.batch_bkb(given_kernel, memory_budget=0, **BOUNDED)
    if kernel in ("rbf", "matern52"):
        policy.kernel.lengthscale = 3.0 * unit
    given = [sources.tensor(arms), sources.tensor(arms, dtype=torch.float64)]
    if kind != torch.bfloat16:
        np.save(tmp_path / "arms.npy", arms.numpy())
        given.append(sources.npy(tmp_path / "arms.npy"))
    problem = Problem(seed=4, a=600)
    for source in given:
        whole = play(tb.Bandit(policy, arms.to(source.dtype), generator=generator(1)), 6, problem=problem)
        largest: list[int] = []
        with pytest.MonkeyPatch.context() as patch:
            counted = partial(_counted, type(source).chunk, largest)
            patch.setattr(type(source), "chunk", lambda self, part, counted=counted: counted(self, part))
            assert play(tb.Bandit(policy, source, generator=generator(1)), 6, problem=problem) == whole
        assert max(largest) <= 256, "never the whole"
        assert torch.equal(source.points(torch.tensor([[3, 599]])), arms[[3, 599]].to(source.dtype)[None])


def test_wrong_embeddings_are_refused():
    with pytest.raises(errors.ShapeError, match="that of the arms"):
        sources.tensor(PROBLEM.tensor, dtype=torch.float32)
    with pytest.raises(errors.ShapeError, match="dtype must be float64"):
        sources.tensor(_embeddings(torch.int8), dtype=torch.float16)
    with pytest.raises(errors.ShapeError, match="A x d"):
        sources.tensor(_embeddings(torch.int8)[0])
    with pytest.raises(errors.ShapeError, match="must be float64"):
        sources.tensor(torch.zeros(3, 2, dtype=torch.int32))
    odd = _embeddings(torch.float16)
    odd[7, 3] = torch.inf
    with pytest.raises(errors.NonFiniteError, match="arm 7"):
        scan(sources.tensor(odd))


def test_a_cache_of_other_columns_is_refused(tmp_path):
    rng = np.random.default_rng(0)
    columns = {name: rng.random(500) for name in "xyz"}
    path, cache = tmp_path / "t.parquet", tmp_path / "t.npy"
    pyarrow.parquet.write_table(pyarrow.table(columns), path)
    sources.parquet(path, ["x", "y"], cache=cache)
    again = sources.parquet(path, ["x", "y"], cache=cache)
    assert torch.equal(again.chunk(slice(0, 5))[:, 0], torch.from_numpy(columns["x"][:5]))
    with pytest.raises(errors.ArgumentError, match="or of other columns"):
        sources.parquet(path, ["y", "z"], cache=cache)


# ---------------------------------------------------------------------- journals


STORED: dict[str, Callable[[Tensor, Path], Any]] = {"tensor": lambda arms, _: arms, **MAKERS}


@pytest.mark.parametrize("before", ["tensor", "npy", pytest.param("parquet", marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize("after", ["tensor", "chunks at", pytest.param("arrow lists", marks=pytest.mark.exhaustive)])
def test_a_journal_goes_on_wherever_the_same_arms_are_stored(before: str, after: str, tmp_path: Path):
    goes_on(before, after, tmp_path)


def test_old_journals_describe_arms_by_how_they_are_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A source is described by its kind and the hash of its arms, which is the same for other kinds; a tensor only by a digest
    of its bytes."""
    described = journal.describe_run

    def as_before(*run: Any) -> dict[str, str]:
        return {key: text for key, text in described(*run).items() if key != "arms.content"}

    def begun_before(name: str) -> Path:
        (tmp_path / name).mkdir()
        monkeypatch.setattr(journal, "describe_run", as_before)
        return tmp_path / name

    goes_on("npy", "chunks at", begun_before("npy"), monkeypatch.undo)
    goes_on("npy", "tensor", begun_before("another npy"), monkeypatch.undo)
    goes_on("tensor", "tensor", begun_before("tensor"), monkeypatch.undo)
    with pytest.raises(errors.StateError, match="arms was"):
        opened("npy", PROBLEM.tensor, tmp_path / "tensor")


def opened(kind: str, arms: Tensor, folder: Path) -> tb.Bandit:
    """A bandit with a journal, on arms stored in the given kind of source."""
    kept, policy = tb.Journal(folder / "run.journal", durable=False), tb.batch_bkb(rbf(), **BOUNDED)
    return tb.Bandit(policy, STORED[kind](arms, folder), generator=generator(1), journal=kept)


def goes_on(before: str, after: str, folder: Path, between: Callable[[], None] = lambda: None) -> None:
    bandit = opened(before, PROBLEM.tensor, folder)
    picks = play(bandit, 3)
    bandit.journal.close()
    between()
    resumed = opened(after, PROBLEM.tensor, folder)
    twin = tb.Bandit(tb.batch_bkb(rbf(), **BOUNDED), PROBLEM.tensor, generator=generator(1))
    assert play(twin, 3) == picks
    assert play(resumed, 4) == play(twin, 4)
    resumed.journal.close()
    moved = PROBLEM.tensor.clone()
    moved[[3, 4]] = moved[[4, 3]]
    for other in (moved, PROBLEM.tensor.float(), PROBLEM.tensor[:-1]):
        with pytest.raises(errors.StateError, match="arms was"):
            opened(after, other, folder)


def test_row_labels_of_pandas_are_no_feature(tmp_path):
    frame = pandas.DataFrame({"a": [1.0, 2.0, 3.0, 4.0], "b": [5.0, 6.0, 7.0, 8.0]})
    frame[[True, False, True, True]].to_parquet(tmp_path / "some.parquet")
    labels = "__index_level_0__"
    assert labels in pyarrow.parquet.read_schema(tmp_path / "some.parquet").names
    source = sources.parquet(tmp_path / "some.parquet")
    assert source.points(torch.arange(3)).tolist() == [[1.0, 5.0], [3.0, 7.0], [4.0, 8.0]]
    assert sources.parquet(tmp_path / "some.parquet", [labels]).points(torch.arange(3)).flatten().tolist() == [0.0, 2.0, 3.0]


def test_two_writers_of_one_cache_do_not_meet(tmp_path):
    arms, path = torch.rand(90, 2, generator=generator(0), dtype=torch.float64), tmp_path / "cache.npy"

    def pieces():
        for number, piece in enumerate(arms.split(30)):
            if number == 2:  # Another process begins and ends here.
                other = sources.save_npy(sources.tensor(arms), path)
                torch.testing.assert_close(other.chunk(slice(0, 90)), arms, rtol=0, atol=0)
            yield piece

    found = sources.save_npy(sources.chunks(pieces, 90, 2), path)
    torch.testing.assert_close(found.chunk(slice(0, 90)), arms, rtol=0, atol=0)
    assert [file.name for file in tmp_path.iterdir()] == ["cache.npy"]


def test_copies_are_not_written_through_a_map_which_a_full_disk_would_turn_into_a_crash(tmp_path, monkeypatch):
    opened = np.lib.format.open_memmap

    def to_read(*args, **options):
        assert options["mode"] == "r"
        return opened(*args, **options)

    monkeypatch.setattr(np.lib.format, "open_memmap", to_read)
    arms = torch.rand(9, 2, generator=generator(0), dtype=torch.float64)
    assert torch.equal(sources.save_npy(sources.tensor(arms), tmp_path / "arms.npy").chunk(slice(0, 9)), arms)
    packed = torch.arange(6, dtype=torch.uint8).reshape(3, 2)
    assert torch.equal(
        sources.Fingerprints(packed).save(tmp_path / "bits.npy").words(slice(0, 3)),
        sources.Fingerprints(packed).words(slice(0, 3)),
    )


@pytest.mark.usefixtures("annotations_not_enforced")
def test_a_stream_that_returns_nothing_is_named():
    with pytest.raises(errors.ArgumentError, match=r"stream must return an iterable of tensors, got NoneType: return a list"):
        tb.Bandit(tb.batch_bkb(rbf(), **BOUNDED), sources.chunks(lambda: None, 120, 2))


def test_arms_that_are_promised_to_differ_must_be_finite():
    arms = torch.rand(9, 2, generator=generator(0), dtype=torch.float64)
    arms[4, 1] = torch.nan
    with pytest.raises(errors.NonFiniteError, match="arm 4 has a NaN"):
        tb.Bandit(tb.uniform(), sources.tensor(arms, distinct=True))


def test_a_file_that_was_modified_after_its_cache_is_compared_as_a_whole(tmp_path):
    arms = torch.rand(400, 2, generator=generator(0), dtype=torch.float64)
    _parquet(arms, tmp_path, cache=tmp_path / "cache.npy")
    old = os.stat(tmp_path / "cache.npy").st_mtime_ns
    _parquet(arms, tmp_path)
    os.utime(tmp_path / "arms.parquet", ns=(old + 10**9, old + 10**9))
    assert torch.equal(sources.parquet(tmp_path / "arms.parquet", cache=tmp_path / "cache.npy").chunk(slice(0, 400)), arms)
    arms[200, 1] += 1e-9
    _parquet(arms, tmp_path)
    os.utime(tmp_path / "arms.parquet", ns=(old + 10**9, old + 10**9))
    with pytest.raises(errors.ArgumentError, match="an earlier version"):
        sources.parquet(tmp_path / "arms.parquet", cache=tmp_path / "cache.npy")
