"""Fingerprints as arms: Tanimoto similarities of packed bits and counts are those of a dense Gram matrix, sweeps never unpack
the library, and ids and SMILES come back with the picks."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable
from pathlib import Path

import gpytorch
import numpy as np
import oracles
import pyarrow
import pyarrow.parquet
import pytest
import torch
from botorch.fit import fit_gpytorch_mll
from gpytorch.mlls import ExactMarginalLogLikelihood
from problems import generator, rbf
from rdkit import Chem, DataStructs
from rdkit.Chem import rdFingerprintGenerator
from torch import Tensor

import torchbandits as tb
from torchbandits import errors
from torchbandits.arms.scanning import find, scan
from torchbandits.botorch import BanditModel
from torchbandits.embeddings import RandomFourier
from torchbandits.linalg import popcount
from torchbandits.packing import Packing
from torchbandits.sources import Fingerprints, from_smiles
from torchbandits.tanimoto import TanimotoBlocks

F64 = torch.float64
DRUGS = {
    "aspirin": "CC(=O)Oc1ccccc1C(=O)O",
    "caffeine": "CN1C=NC2=C1C(=O)N(C(=O)N2C)C",
    "ibuprofen": "CC(C)Cc1ccc(cc1)C(C)C(=O)O",
    "paracetamol": "CC(=O)Nc1ccc(O)cc1",
    "benzene": "c1ccccc1",
}


def features(n: int, dim: int, counts: bool = False, seed: int = 0) -> np.ndarray:
    """Random fingerprints, and edge cases: empty, full, equal, and with a single feature."""
    rng = np.random.default_rng(seed)
    x = (rng.random((n, dim)) < 0.1).astype(np.uint8)
    if counts:
        x *= rng.integers(1, 256, size=x.shape, dtype=np.uint8)
    x[2] = x[7] = 0
    x[3] = 255 if counts else 1
    x[4] = x[9]
    x[5], x[5, -1] = 0, 1
    return x


def packed(x: np.ndarray, counts: bool = False) -> np.ndarray:
    return x if counts else np.packbits(x, axis=1)


def scaled(outputscale: float | Tensor = 1.7) -> gpytorch.kernels.Kernel:
    shape = outputscale.shape if isinstance(outputscale, Tensor) else torch.Size()
    kernel = gpytorch.kernels.ScaleKernel(tb.TanimotoKernel(), batch_shape=shape).double()
    kernel.outputscale = outputscale
    return kernel


SHAPES = [(2048, False), (167, False), (3, False), (64, False), (300, True), (5, True)]


# ---------------------------------------------------------------------- exactness


@pytest.mark.sweep(5)
@pytest.mark.parametrize(("dim", "counts"), SHAPES)
@pytest.mark.parametrize("way", ["compiled", "numpy", "product"])
def test_packed_similarities_are_those_of_the_dense_gram_matrix(
    dim: int, counts: bool, way: str, monkeypatch: pytest.MonkeyPatch
):
    """To the last bit, in any chunk, for any number of dictionary points."""
    assert popcount.COMPILED
    if way == "numpy":
        monkeypatch.setattr(popcount, "COMPILED", False)
    x, packing = features(150, dim, counts), Packing(dim, counts)
    words = packing.words(torch.from_numpy(packed(x, counts)))
    dense = oracles.tanimoto(x[:13], x)
    for m in (1, 4, 13):
        blocks = TanimotoBlocks(torch.from_numpy(x[:m]).double(), tb.TanimotoKernel(), packing)
        for start, stop in ((0, 150), (0, 1), (5, 141)):
            whole = torch.full((m, 160), torch.nan, dtype=F64)
            out = whole[:, : stop - start]
            if way == "product":
                blocks._unpacked(words[start:stop], out)
            else:
                assert blocks(words[start:stop], out) is out
            assert torch.equal(out, torch.from_numpy(dense[:m, start:stop]))
            assert bool(whole[:, stop - start :].isnan().all()), "nothing is written beyond the chunk"


@pytest.mark.parametrize("seed", range(6))
def test_random_sizes_and_densities(seed: int):
    rng = np.random.default_rng(seed)
    dim, n, m = int(rng.integers(1, 200)), int(rng.integers(1, 300)), int(rng.integers(1, 12))
    x = (rng.random((n + m, dim)) < rng.random((n + m, 1)) ** 3).astype(np.uint8)
    packing = Packing(dim)
    out = TanimotoBlocks(torch.from_numpy(x[:m]).double(), tb.TanimotoKernel(), packing)(
        packing.pack(torch.from_numpy(x[m:])), torch.empty(m, n, dtype=F64)
    )
    assert torch.equal(out, torch.from_numpy(oracles.tanimoto(x[:m], x[m:])))


@pytest.mark.parametrize("counts", [False, True], ids=["bits", "counts"])
def test_the_kernel_is_that_of_gpytorch(counts: bool):
    x = features(30, 40, counts)
    points, dense = torch.from_numpy(x).double(), torch.from_numpy(oracles.tanimoto(x, x))
    kernel = tb.TanimotoKernel()
    assert torch.equal(kernel(points).to_dense(), dense)
    assert torch.equal(kernel(points[:4], points).to_dense(), dense[:4])
    assert torch.equal(kernel(points, diag=True), torch.ones(30, dtype=F64))
    assert torch.equal(kernel(points[:5], points[5:10], diag=True), dense[:5, 5:10].diagonal())
    assert torch.equal(
        kernel(points.reshape(3, 10, 40)).to_dense(), torch.stack([dense[i : i + 10, i : i + 10] for i in (0, 10, 20)])
    )
    assert float(torch.linalg.eigvalsh(dense).min()) > -1e-12
    some = tb.TanimotoKernel(active_dims=list(range(10)))
    assert torch.equal(some(points).to_dense(), torch.from_numpy(oracles.tanimoto(x[:, :10], x[:, :10])))
    with pytest.raises(errors.ArgumentError, match="below 0"):
        kernel(points - 1, points).to_dense()


def test_real_features_and_their_gradients():
    x = torch.rand(6, 5, generator=generator(0), dtype=F64).requires_grad_()
    y = torch.rand(4, 5, generator=generator(1), dtype=F64)
    kernel = tb.TanimotoKernel()
    torch.testing.assert_close(kernel(x, y).to_dense(), torch.from_numpy(oracles.tanimoto(x.detach(), y)))
    assert torch.autograd.gradcheck(lambda z: kernel(z, y).to_dense(), (x,))


@pytest.mark.exhaustive
def test_rows_of_a_batch_have_scales_and_points_of_their_own():
    x, packing = features(90, 100), Packing(100)
    points = torch.from_numpy(x[:10]).double().reshape(2, 5, 100)
    words = packing.pack(torch.from_numpy(x))
    out = TanimotoBlocks(points, scaled(torch.tensor([0.5, 2.0], dtype=F64)), packing)(words, torch.empty(2, 5, 90, dtype=F64))
    dense = torch.from_numpy(oracles.tanimoto(x[:10], x)).reshape(2, 5, 90)
    assert torch.equal(out, dense * torch.tensor([0.5, 2.0], dtype=F64)[:, None, None])
    narrow = TanimotoBlocks(points[0].float(), scaled(2.0).float(), packing)(words, torch.empty(5, 90))
    assert torch.equal(narrow, (2 * dense[0]).float())


def test_points_from_outside_may_be_any():
    x, packing = features(40, 20), Packing(20)
    points = torch.rand(3, 20, generator=generator(0), dtype=F64)
    out = TanimotoBlocks(points, scaled(), packing)(packing.pack(torch.from_numpy(x)), torch.empty(3, 40, dtype=F64))
    torch.testing.assert_close(out, torch.from_numpy(1.7 * oracles.tanimoto(points, x)))


def test_several_threads_compute_the_same(monkeypatch: pytest.MonkeyPatch):
    x, packing = features(301, 100), Packing(100)
    blocks = TanimotoBlocks(torch.from_numpy(x[:9]).double(), scaled(), packing)
    words = packing.pack(torch.from_numpy(x))
    one = blocks(words, torch.empty(9, 301, dtype=F64))
    monkeypatch.setattr("torchbandits.tanimoto._MANY_WORDS", 1)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    assert torch.equal(blocks(words, torch.empty(9, 301, dtype=F64)), one)


@pytest.mark.parametrize(("dim", "counts"), SHAPES)
def test_packing_and_back(dim: int, counts: bool):
    x, packing = torch.from_numpy(features(20, dim, counts)), Packing(dim, counts)
    words = packing.words(torch.from_numpy(packed(x.numpy(), counts)))
    assert torch.equal(words, packing.pack(x.double()))
    assert torch.equal(packing.unpack(words.reshape(4, 5, -1), F64), x.double().reshape(4, 5, dim))
    assert bool(packing.holds(x.double()).all())
    odd = torch.full((4, dim), 0.0, dtype=F64)
    odd[:, 0] = torch.tensor([0.5, -1.0, 256.0, torch.nan])
    assert not bool(packing.holds(odd).any())


# ---------------------------------------------------------------------- as arms

A, DIM = 160, 100


def _memory(x: np.ndarray, folder: Path, **options) -> Fingerprints:
    return Fingerprints(np.packbits(x, axis=1), x.shape[1], **options)


def _mapped(x: np.ndarray, folder: Path, **options) -> Fingerprints:
    np.save(folder / "bits.npy", np.packbits(x, axis=1))
    return Fingerprints(folder / "bits.npy", x.shape[1], **options)


def _parquet(x: np.ndarray, folder: Path, **options) -> Fingerprints:
    rows = [row.tobytes() for row in np.packbits(x, axis=1)]
    table = pyarrow.table({"fingerprint": rows, "id": [f"m{i}" for i in range(len(x))]})
    pyarrow.parquet.write_table(table, folder / "bits.parquet", row_group_size=37)
    return Fingerprints(folder / "bits.parquet", x.shape[1], **options)


def _saved(x: np.ndarray, folder: Path, **options) -> Fingerprints:
    return _memory(x, folder, **options).save(folder / "saved.parquet")


MAKERS: dict[str, Callable[..., Fingerprints]] = {"memory": _memory, "npy": _mapped, "parquet": _parquet, "saved": _saved}


def _value(points: Tensor) -> Tensor:
    weights = torch.randn(DIM, generator=generator(3), dtype=F64)
    return points.double() @ weights


def play(bandit: tb.Bandit, rounds: int = 8) -> list[list[int]]:
    picks = []
    for _ in range(rounds):
        selection = bandit.ask(limit=5)
        picks.append(selection.index.tolist())
        bandit.tell(selection, _value(selection.points))
    return picks


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_a_source_reads_what_was_packed(make: Callable[..., Fingerprints], tmp_path: Path):
    x = features(A, DIM)
    source, points = make(x, tmp_path), torch.from_numpy(x).double()
    assert source.shape == (A, DIM)
    for part in (slice(0, A), slice(30, 80), slice(37, 38)):
        assert torch.equal(source.chunk(part), points[part])
    index = torch.tensor([[159, 3], [3, 74]])
    assert torch.equal(source.points(index), points[index])
    assert torch.equal(torch.cat([arms for _, arms in source.chunks(41)]), points)
    assert source.points(index[:0]).shape == (0, 2, DIM)
    again = pickle.loads(pickle.dumps(source))
    assert torch.equal(again.words(slice(0, A)), source.words(slice(0, A)))
    assert scan(source).first.tolist() == oracles_first(x)
    wanted = torch.cat([points[[7, 9, 100]], torch.full((1, DIM), 0.5, dtype=F64), 1 - points[:1]])
    assert find(source, wanted).tolist() == [2, 4, 100, -1, -1]
    assert make(x, tmp_path, dtype=torch.float32).chunk(slice(0, 2)).dtype == torch.float32


def oracles_first(x: np.ndarray) -> list[int]:
    return [next(j for j in range(len(x)) if (x[j] == x[i]).all()) for i in range(len(x))]


POLICIES = {
    "batch_bkb": lambda **options: tb.batch_bkb(scaled(), noise_std=0.1, **options),
    "bkb": lambda **options: tb.bkb(scaled(), noise_std=0.1, **options),
    "thompson": lambda **options: tb.thompson_sampling(scaled(), noise_std=0.1, embedding="nystrom", **options),
    "gp_ucb": lambda **options: tb.gp_ucb(scaled(), noise_std=0.1, **options),
    "unscaled": lambda **options: tb.batch_bkb(tb.TanimotoKernel(), noise_std=0.1, **options),
    "rbf": lambda **options: tb.batch_bkb(rbf(3.0), noise_std=0.1, **options),
}


@pytest.mark.sweep
@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
@pytest.mark.parametrize("budget", [2 << 30, 0], ids=["kept columns", "no columns"])
def test_a_run_on_packed_arms_is_the_one_on_the_tensor(
    name: str, make: Callable[..., Fingerprints], budget: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("torchbandits.arms.columns._READ", 50)
    monkeypatch.setattr("torchbandits.arms.scanning._STEP", 17)
    x = features(A, DIM)
    options = {} if name == "gp_ucb" else {"memory_budget": budget}
    runs = []
    for arms in (torch.from_numpy(x).double(), make(x, tmp_path)):
        bandit = tb.Bandit(POLICIES[name](**options), arms, generator=generator(1))
        runs.append((play(bandit), bandit.counts, bandit.best(3).index))
    assert runs[0][0] == runs[1][0]
    assert torch.equal(runs[0][1], runs[1][1])
    assert torch.equal(runs[0][2], runs[1][2])


@pytest.mark.parametrize("budget", [2 << 30, 0], ids=["kept columns", "no columns"])
def test_sweeps_never_unpack_the_library(budget: int, monkeypatch: pytest.MonkeyPatch):
    """Only picks and the arms that compete with them are unpacked."""
    x, unpacked = features(3000, DIM), []
    own = Packing.unpack
    monkeypatch.setattr(
        Packing, "unpack", lambda self, words, dtype: unpacked.append(words[..., 0].numel()) or own(self, words, dtype)
    )
    bandit = tb.Bandit(POLICIES["batch_bkb"](memory_budget=budget), _memory(x, Path()), generator=generator(1))
    play(bandit, 4)
    bandit.observe(torch.from_numpy(x[:50]).double(), torch.ones(50), torch.zeros(50))
    assert max(unpacked) < 300
    assert sum(unpacked) < 3000


def test_fit_save_and_new_arms():
    x = features(A, DIM)
    bandit = tb.Bandit(POLICIES["batch_bkb"](), _memory(x, Path()), generator=generator(1))
    play(bandit, 10)
    before = bandit.posterior.kernel.outputscale.item()
    report = bandit.fit_kernel_()
    assert bool(report.accepted)
    assert bandit.posterior.kernel.outputscale.item() != before
    other = tb.Bandit(POLICIES["batch_bkb"](), _memory(x, Path()), generator=generator(2))
    other.load_state_dict(bandit.state_dict())
    assert play(other, 2) == play(bandit, 2)
    marginals = bandit.posterior(torch.from_numpy(x).double())
    torch.testing.assert_close(bandit.loop.state.table.mean(), marginals.mean, rtol=1e-8, atol=1e-10)
    bandit.set_arms_(_memory(x[50:], Path()))
    assert len(bandit.counts) == A - 50
    play(bandit, 1)
    with pytest.raises(errors.StateError, match="other arms"):
        tb.Bandit(POLICIES["batch_bkb"](), _memory(x[::-1].copy(), Path())).load_state_dict(other.state_dict())


@pytest.mark.parametrize("counts", [False, True], ids=["bits", "counts"])
def test_a_botorch_model_takes_the_kernel_and_fits_it(counts: bool):
    """Its posterior is that of the dense formula, and it tabulates the unpacked arms."""
    x = features(A, DIM, counts)
    points, kernel = torch.from_numpy(x).double(), scaled(0.8)
    y = torch.from_numpy(np.random.default_rng(1).standard_normal((30, 1)))
    model = BanditModel(points[:30], y, kernel=kernel, noise_std=0.3).tabulate_(points)
    # The kernel's outputscale is read back, because 0.8 is rounded in it.
    K = kernel.outputscale.item() * torch.from_numpy(oracles.tanimoto(x, x))
    # Equal fingerprints are one arm of the model, and two rows of the dense formula.
    V = K[:30, :30] + 0.09 * torch.eye(30, dtype=F64)
    posterior = model.posterior(points)
    torch.testing.assert_close(posterior.mean[:, 0], K[:, :30] @ torch.linalg.solve(V, y[:, 0]), rtol=1e-8, atol=1e-10)
    variance = K.diagonal() - (K[:, :30] * torch.linalg.solve(V, K[:30]).T).sum(dim=-1)
    torch.testing.assert_close(posterior.variance[:, 0], variance, rtol=1e-7, atol=1e-9)
    before = model.covar_module.outputscale.item()
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    assert model.covar_module.outputscale.item() != before


def test_a_posterior_is_that_of_the_dense_oracle():
    """Means and variances of all arms after a run of an exact policy, against a dense Gaussian process."""
    x = features(80, DIM)
    bandit = tb.Bandit(tb.gp_ucb(scaled(), noise_std=0.1), _memory(x, Path()), generator=generator(1))
    index = torch.tensor([9, 30, 31, 60])
    bandit.tell(index, torch.tensor([0.3, -1.0, 2.0, 0.1], dtype=F64))
    K = scaled().outputscale.item() * oracles.tanimoto(x, x)
    S = K[np.ix_(index, index)] + 0.01 * np.eye(4)
    mean = K[:, index] @ np.linalg.solve(S, [0.3, -1.0, 2.0, 0.1])
    variance = np.diag(K) - np.einsum("ij,ji->i", K[:, index], np.linalg.solve(S, K[index]))
    table = bandit.loop.state.table
    np.testing.assert_allclose(table.mean(), mean, rtol=1e-8, atol=1e-12)
    np.testing.assert_allclose(table.leverage * 0.01, variance, rtol=1e-8, atol=1e-12)


@pytest.mark.sweep(1)
@pytest.mark.parametrize("counts", [False, True])
def test_auto_compares_fingerprints_by_a_fitted_tanimoto_kernel(counts: bool):
    """The posterior at a fit is that of a dense Gaussian process on normal scores."""
    x = features(150, 24, counts, seed=3)
    f = oracles.tanimoto(x, x[20:23]) @ [3.0, -2.0, 1.0]
    bandit = tb.Bandit(tb.auto(batch_size=4), Fingerprints(packed(x, counts), 24, counts=counts), generator=generator(1))
    told = {}
    for _ in range(8):
        selection = bandit.ask()
        told |= {arm: f[arm] for arm in selection.index.tolist()}
        bandit.tell(selection, torch.from_numpy(f)[selection.index])
    assert bool(bandit.fit_kernel_().accepted)
    posterior = bandit.loop.state.posterior
    assert isinstance(posterior.kernel.base_kernel, tb.TanimotoKernel)
    u, n = list(told), bandit.counts[list(told)].double().numpy()
    y = np.array(list(told.values()))
    scale = float(posterior.units.scale)
    targets = posterior.units.to_model(torch.from_numpy(y)).numpy()
    order = np.argsort(y)
    assert (np.diff(targets[order]) >= 0).all()
    assert np.average(
        (targets / scale - np.average(targets / scale, weights=np.sqrt(n))) ** 2, weights=np.sqrt(n)
    ) == pytest.approx(1)
    s = posterior.kernel.outputscale.item()
    assert s / scale**2 != pytest.approx(1, rel=1e-3)  # the outputscale was fitted
    K, k = s * oracles.tanimoto(x[u], x[u]), s * oracles.tanimoto(x[u], x)
    solved = np.linalg.solve(K + np.diag(1 / n), np.c_[targets, k])
    state = bandit.loop.state
    np.testing.assert_allclose(state.arm_mean(), k.T @ solved[:, 0], rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(state.arm_leverage(), s - (k * solved[:, 1:]).sum(0), rtol=1e-6, atol=1e-6)
    wider = tb.Bandit(tb.auto(width=2.0), Fingerprints(packed(x, counts), 24, counts=counts))
    assert (bandit.loop.policy.width(state), wider.loop.policy.width(wider.loop.state)) == (1, 2)
    bandit.set_arms_(Fingerprints(packed(x[40:], counts), 24, counts=counts))
    assert len(bandit.ask()) == 4
    assert "no" in bandit.explain().guarantee


def test_arms_of_a_rank_are_packed_too(monkeypatch: pytest.MonkeyPatch):
    x = features(A, DIM)
    runs = []
    for arms in (_memory(x, Path()), tb.Shard(_memory(x, Path()))):
        runs.append(play(tb.Bandit(POLICIES["batch_bkb"](memory_budget=0), arms, generator=generator(1)), 4))
    assert runs[0] == runs[1]


# ---------------------------------------------------------------------- ids and SMILES


def test_ids_and_smiles_come_back_with_the_picks(tmp_path: Path):
    source = from_smiles(DRUGS.values(), ids=DRUGS)
    bandit = tb.Bandit(POLICIES["batch_bkb"](), source)
    selection = bandit.ask(limit=2)
    names = source.ids(selection)
    assert source.smiles(selection) == [DRUGS[name] for name in names]
    bandit.tell(selection, torch.linspace(0.5, 0.2, len(names)))
    assert source.ids(bandit.best(5)) == list(names), "no id stands for the arms that are missing"
    assert source.smiles(bandit.best()) == [DRUGS[names[0]]]
    for stored in (source, source.save(tmp_path / "drugs.parquet"), Fingerprints(tmp_path / "drugs.parquet")):
        assert stored.ids([4, 0]) == ["benzene", "aspirin"]
        assert stored.smiles(torch.tensor([[1]])) == [DRUGS["caffeine"]]
        assert torch.equal(stored.words(slice(0, 5)), source.words(slice(0, 5)))
    bits = source.save(tmp_path / "drugs.npy")
    assert bits.ids([2]) == ["ibuprofen"]
    assert Fingerprints(tmp_path / "drugs.npy").ids([2]) == [2]
    with pytest.raises(errors.DataError, match="without SMILES"):
        Fingerprints(tmp_path / "drugs.npy").smiles([2])
    with pytest.raises(errors.ArmIndexError, match="0 … 4"):
        source.ids([5])


def test_fingerprints_are_those_of_rdkit():
    molecules = [Chem.MolFromSmiles(text) for text in DRUGS.values()]
    for counts in (False, True):
        source = from_smiles(list(DRUGS.values()), radius=3, num_bits=512, counts=counts)
        maker = rdFingerprintGenerator.GetMorganGenerator(radius=3, fpSize=512)
        points = source.chunk(slice(0, 5))
        theirs = [(maker.GetCountFingerprint if counts else maker.GetFingerprint)(molecule) for molecule in molecules]
        as_numpy = maker.GetCountFingerprintAsNumPy if counts else maker.GetFingerprintAsNumPy
        assert np.array_equal(points, np.stack([as_numpy(molecule) for molecule in molecules]))
        expected = [DataStructs.BulkTanimotoSimilarity(one, theirs) for one in theirs]
        torch.testing.assert_close(
            tb.TanimotoKernel()(points).to_dense(), torch.tensor(expected, dtype=F64), rtol=0, atol=1e-15
        )
        assert source.ids(range(5)) == ["1", "2", "3", "4", "5"]


def _library(folder: Path) -> Path:
    lines = [f"{text} {name}" for name, text in DRUGS.items()]
    lines[2:2] = ["C1CC nonsense", "", "not-a-molecule\tx"]
    lines[-1] += "\t"  # spreadsheets may end a line with a tab
    (folder / "library.smi").write_text("\n".join(lines) + "\n")
    return folder / "library.smi"


def test_smiles_that_do_not_parse_are_reported_by_line(tmp_path: Path):
    with pytest.warns(errors.DiagnosticWarning, match=r"2 of 7 SMILES .* line 3: 'C1CC'; line 5: 'not-a-molecule'"):
        source = from_smiles(_library(tmp_path), tmp_path / "library.parquet")
    assert source.left_out == ((3, "C1CC"), (5, "not-a-molecule"))
    assert source.ids(range(5)) == list(DRUGS)
    assert Fingerprints(tmp_path / "library.parquet").left_out == source.left_out
    assert not (tmp_path / "library.parquet.pieces").exists()


def test_an_interrupted_call_goes_on_where_it_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("torchbandits.sources.smiles._PIECE", 2)
    seen: list[tuple[int, int]] = []

    def stop(lines: int, left_out: int) -> None:
        seen.append((lines, left_out))
        if lines >= 4:
            raise KeyboardInterrupt

    library, target = _library(tmp_path), tmp_path / "library.parquet"
    with pytest.raises(KeyboardInterrupt):
        from_smiles(library, target, progress=stop)
    assert seen == [(2, 0), (4, 2)]
    assert not target.exists()
    with pytest.raises(errors.ArgumentError, match="other SMILES or settings"):
        from_smiles(library, target, radius=3)
    with pytest.warns(errors.DiagnosticWarning, match="2 of 7"):
        source = from_smiles(library, target, progress=lambda *numbers: seen.append(numbers))
    assert seen[2:] == [(2, 0), (3, 0)]
    assert source.ids(range(5)) == list(DRUGS)
    with pytest.warns(errors.DiagnosticWarning, match="2 of 7"):
        whole = from_smiles(library)
    assert torch.equal(whole.words(slice(0, 5)), source.words(slice(0, 5)))


@pytest.mark.exhaustive
def test_several_processes_make_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("torchbandits.sources.smiles._PIECE", 2)
    one = from_smiles(list(DRUGS.values()))
    two = from_smiles(list(DRUGS.values()), tmp_path / "two.parquet", processes=2)
    assert torch.equal(one.words(slice(0, 5)), two.words(slice(0, 5)))
    assert one.ids(range(5)) == two.ids(range(5))


# ---------------------------------------------------------------------- bad input


def test_wrong_fingerprints_are_refused(tmp_path: Path):
    bits = np.packbits(features(12, 60), axis=1)
    with pytest.raises(errors.ShapeError, match="70 bits take 9 bytes per molecule, and the rows have 8"):
        Fingerprints(bits, 70)
    with pytest.raises(errors.ShapeError, match="beyond the 59"):
        Fingerprints(np.packbits(features(12, 60), axis=1), 59)
    with pytest.raises(errors.ShapeError, match="60 counts take 60 bytes"):
        Fingerprints(bits, 60, counts=True)
    for wrong in (bits.astype(float), bits[0], bits[:0], b"text", None):
        with pytest.raises(errors.ShapeError, match="packbits"):
            Fingerprints(wrong)
    for ids in (["a"] * 12, ["a", "b"], "abcdefghijkl"):
        with pytest.raises(errors.ArgumentError, match="ids must"):
            Fingerprints(bits, 60, ids=ids)
    with pytest.raises(errors.ArgumentError, match="smiles must be one for each of 12"):
        Fingerprints(bits, 60, smiles=["C"])


def test_damaged_files_are_refused(tmp_path: Path):
    x = features(120, 60)
    for name, make in (("bits.npy", _mapped), ("bits.parquet", _parquet)):
        source, path = make(x, tmp_path), tmp_path / name
        whole = path.read_bytes()
        path.write_bytes(whole[: len(whole) // 2])
        with pytest.raises(errors.DataError, match="changed since"):
            source.words(slice(0, 120))
        with pytest.raises(errors.DataError, match=r"can't (map|read)"):
            Fingerprints(path)
        path.unlink()
        with pytest.raises(errors.DataError, match="can't read"):
            Fingerprints(path)
    np.save(tmp_path / "wide.npy", x.astype(float))
    with pytest.raises(errors.ShapeError, match="uint8"):
        Fingerprints(tmp_path / "wide.npy")
    np.save(tmp_path / "rest.npy", np.packbits(x, axis=1))
    with pytest.raises(errors.ShapeError, match="beyond the 59"):
        tb.Bandit(POLICIES["batch_bkb"](), Fingerprints(tmp_path / "rest.npy", 59))


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"bits": [b"ab"]}, "no column 'fingerprint'"),
        ({"fingerprint": [1]}, "must hold bytes"),
        ({"fingerprint": [b"ab", b"abc"]}, "must have 2 bytes"),
        ({"fingerprint": [b"ab", None]}, "1 lack one"),
        ({"fingerprint": [b"ab", b"cd"], "id": ["x", "x"]}, "ids must differ, and several rows have 'x'"),
    ],
)
def test_wrong_columns_are_refused(columns: dict, message: str, tmp_path: Path):
    pyarrow.parquet.write_table(pyarrow.table(columns), tmp_path / "bits.parquet")
    with pytest.raises(errors.TorchBanditsError, match=message):
        scan(Fingerprints(tmp_path / "bits.parquet"))


def test_a_mask_is_no_index():
    """True in a mask would be read as arm 1."""
    source = Fingerprints(np.packbits(features(12, 60), axis=1), 60, ids=[f"M{i}" for i in range(12)])
    for mask in (torch.arange(12) > 9, [True, False]):
        with pytest.raises(errors.ArmIndexError, match="indices of 0 … 11, got"):
            source.ids(mask)
    assert source.ids((torch.arange(12) > 9).nonzero()) == ["M10", "M11"]


def test_a_file_with_a_byte_order_mark_keeps_its_first_molecule(tmp_path: Path):
    """Spreadsheet programs write such files, with their own line ends."""
    (tmp_path / "library.smi").write_bytes("\ufeffCCO one\r\nCCN two\r\n".encode())
    source = from_smiles(tmp_path / "library.smi")
    assert source.ids(range(2)) == ["one", "two"]
    assert source.smiles(range(2)) == ["CCO", "CCN"]
    assert source.left_out == ()


def test_wrong_smiles_are_refused(tmp_path: Path):
    with pytest.raises(errors.ArgumentError, match="texts, got None as number 2"):
        from_smiles(iter(["C", None]))
    with pytest.raises(errors.DataError, match="none of the SMILES can be parsed"):
        from_smiles(["C1CC", ""])
    with pytest.raises(errors.ArgumentError, match="number 2 lacks its id"):
        from_smiles(["C", "CC"], ids=["a"])
    with pytest.raises(errors.ArgumentError, match="ids must differ, and rows 0 and 1 have the same, 'a'"):
        from_smiles(["C", "CC"], ids=["a", "a"])
    with pytest.raises(errors.ArgumentError, match="ids must differ, and several rows have 'a'"):
        from_smiles(["C", "CC"], tmp_path / "twice.parquet", ids=["a", "a"])
    assert not (tmp_path / "twice.parquet").exists()
    with pytest.raises(errors.DataError, match=r"can't read SMILES .* in a list"):
        from_smiles("CCO")
    with pytest.raises(errors.ArgumentError, match="Parquet file"):
        from_smiles(["C"], tmp_path / "library.npy")


def test_rdkit_is_named_where_it_is_missing(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "rdkit.rdBase", None)
    with pytest.raises(errors.DataError, match=r"torchbandits\[chem\]"):
        from_smiles(["C"])


# ---------------------------------------------------------------------- random features


@pytest.mark.parametrize("counts", [False, True], ids=["bits", "counts"])
def test_random_features_are_the_kernel_in_expectation(counts: bool):
    """Within five standard errors of 20,000 features, whose products have a variance of 1 − k²."""
    x = features(40, 30, seed=1)
    x[3] = 0
    if counts:
        x *= np.random.default_rng(2).integers(1, 5, size=x.shape, dtype=np.uint8)
    points, size = torch.from_numpy(x).double(), 20_000
    embedding = RandomFourier(size).build(scaled(2.0), points, [generator(0)], torch.Size())
    z = embedding(points)
    dense = torch.from_numpy(oracles.tanimoto(x, x))
    error = ((z.mT @ z) / 2 - dense).abs()
    assert bool((error <= 5 * ((1 - dense**2) / size).sqrt() + 1e-12).all())
    torch.testing.assert_close(z.square().sum(dim=0), torch.full((40,), 2.0, dtype=F64))
    assert torch.equal(embedding.diagonal(points), torch.full((40,), scaled(2.0).outputscale.item(), dtype=F64))
    assert torch.equal(z[:, 2], z[:, 3]), "empty ones are equal"
    assert embedding.holds_at(points)
    assert not embedding.holds_at(points + 0.5)
    assert not embedding.holds_at(points + 5)


def test_random_features_of_a_batch_are_those_of_its_rows():
    x = torch.from_numpy(features(20, 30)).double()
    both = RandomFourier(64).build(scaled(2.0), x, [generator(0), generator(1)], torch.Size([2]))
    for row in (0, 1):
        one = RandomFourier(64).build(scaled(2.0), x, [generator(row)], torch.Size())
        assert torch.equal(both(x)[row], one(x))
        assert torch.equal(both(x[:0])[row], one(x[:0]))


@pytest.mark.parametrize("make", [tb.rff_ucb, lambda *args, **options: tb.thompson_sampling(*args, embedding="rff", **options)])
def test_policies_of_random_features_take_the_kernel(make: Callable[..., tb.policies.Policy]):
    x = features(A, DIM)
    bandit = tb.Bandit(make(scaled(), noise_std=0.1, num_features=512), torch.from_numpy(x).double(), generator=generator(0))
    truth = _value(torch.from_numpy(x))
    play(bandit, 40)
    assert float(truth[bandit.best_arm()]) >= float(truth.quantile(0.9))
    assert float(bandit.posterior(torch.from_numpy(x[:9]).double()).variance.min()) >= 0


def test_random_features_refuse_what_they_do_not_hold():
    with pytest.raises(errors.UnsupportedError, match="bits or counts"):
        tb.Bandit(tb.rff_ucb(scaled(), noise_std=0.1), torch.rand(20, 5, generator=generator(0), dtype=F64))
    with pytest.raises(errors.ArgumentError, match="at most"):
        tb.Bandit(tb.rff_ucb(scaled(), noise_std=0.1), torch.full((2, 2048), 255.0, dtype=F64))


def test_outcomes_of_fingerprints_keep_the_width_of_their_models():
    bits = np.packbits(np.random.default_rng(0).random((60, 128)) < 0.2, axis=1)
    arms = tb.sources.Fingerprints(bits, dtype=torch.float64)
    models = {"f": tb.auto(), "g": tb.auto(width=1.5)}
    policy = tb.outcomes.constrained(models, maximize="f", at_most={"g": 0.0})
    bandit = tb.OutcomeBandit(policy, arms)
    bandit.tell(torch.arange(10), torch.randn(10, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64))
    assert bandit.width.tolist() == [2.5, 1.5]
    assert tb.Bandit(tb.auto(), arms).width.tolist() == 1.0


@pytest.mark.parametrize("kind", [pyarrow.binary(), pyarrow.binary(4)])
def test_an_empty_row_group_may_come_first(tmp_path, kind):
    rows = [bytes([i, 1, 2, 3]) for i in range(5)]
    table = pyarrow.table({"fingerprint": pyarrow.array(rows, kind)})
    with pyarrow.parquet.ParquetWriter(tmp_path / "x.parquet", table.schema) as writer:
        for part in (table.slice(0, 0), table.slice(0, 2), table.slice(2)):
            writer.write_table(part)
    found = Fingerprints(tmp_path / "x.parquet")
    assert found.shape == (5, 32)
    assert torch.equal(
        found.words_at(torch.arange(5)), Fingerprints(np.frombuffer(b"".join(rows), np.uint8).reshape(5, 4)).words(slice(0, 5))
    )


def test_ids_may_be_categories_of_pandas_and_lists_are_refused_in_a_sentence(tmp_path):
    def saved(ids) -> Path:
        pyarrow.parquet.write_table(pyarrow.table({"fingerprint": [b"ab", b"cd", b"ef"], "id": ids}), tmp_path / "x.parquet")
        return tmp_path / "x.parquet"

    assert Fingerprints(saved(pyarrow.array(["x", "y", "z"]).dictionary_encode())).ids([2, 0]) == ["z", "x"]
    with pytest.raises(errors.ArgumentError, match="ids must differ, and several rows have 'x'"):
        Fingerprints(saved(pyarrow.array(["x", "y", "x"]).dictionary_encode()))
    with pytest.raises(errors.ShapeError, match=r"column 'id' of .* must hold one text or number a row, got list"):
        Fingerprints(saved([[1], [2], [3]]))


def test_fingerprints_without_bytes_are_refused(tmp_path):
    pyarrow.parquet.write_table(pyarrow.table({"fingerprint": [b"", b""]}), tmp_path / "x.parquet")
    with pytest.raises(errors.ShapeError, match="have no bytes"):
        Fingerprints(tmp_path / "x.parquet")


def test_a_call_that_a_full_disk_ended_at_its_start_can_be_repeated(tmp_path, monkeypatch):
    def full(path: Path, text: str) -> None:
        path.touch()
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(errors.DataError, match="No space left"):
        from_smiles(["C", "CC"], tmp_path / "x.parquet")
    monkeypatch.undo()
    assert from_smiles(["C", "CC"], tmp_path / "x.parquet").shape == (2, 2048)
    assert [file.name for file in tmp_path.iterdir()] == ["x.parquet"]
