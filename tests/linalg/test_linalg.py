"""Factorisations survive ill-conditioning, updates equal refactorisations, and rows of a batch are independent."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from torchbandits.errors import NumericalError
from torchbandits.linalg import InverseRoot, Precision, append_row, cholesky, inverse_root, shrinkage_root

F64 = torch.float64


def spectrum(values: list[float], seed: int) -> torch.Tensor:
    """A symmetric matrix with the given eigenvalues."""
    generator = torch.Generator().manual_seed(seed)
    Q, _ = torch.linalg.qr(torch.randn(len(values), len(values), generator=generator, dtype=F64))
    return Q * torch.tensor(values, dtype=F64) @ Q.mT


@given(seed=st.integers(0, 10_000), m=st.integers(1, 12), n=st.integers(1, 5))
@settings(max_examples=40, deadline=None)
def test_a_root_is_a_root_of_the_inverse(seed: int, m: int, n: int) -> None:
    K = spectrum(list(np.linspace(0.1, 3, m)), seed)
    columns = torch.randn(m, n, generator=torch.Generator().manual_seed(seed), dtype=F64)
    root = inverse_root(K)
    assert root.pseudo is None
    torch.testing.assert_close(root.embed(columns).mT @ root.embed(columns), columns.mT @ torch.linalg.solve(K, columns))
    torch.testing.assert_close(root.lift(root.embed(columns)), torch.linalg.solve(K, columns))


@pytest.mark.parametrize("small", [0.0, 1e-17, -1e-16])
def test_singular_matrices_take_the_pseudo_inverse(small: float) -> None:
    K = spectrum([small, small, 0.5, 1.0, 2.0], 3)
    root = inverse_root(K)
    assert bool(root.fallback)
    inside = K @ torch.randn(5, 3, generator=torch.Generator().manual_seed(0), dtype=F64)
    expected = inside.mT @ torch.linalg.pinv(K, hermitian=True, rtol=1e-12) @ inside
    torch.testing.assert_close(root.embed(inside).mT @ root.embed(inside), expected)


@pytest.mark.parametrize("small", [1e-12, 1e-13, 0.0])
def test_own_features_are_exact_where_embedded_ones_are_not(small: float) -> None:
    """With pivots of 1e-6, Rᵀ K by a product is wrong in the sixth digit of the smallest features; taken from R it is exact."""
    stacked = torch.stack([spectrum([small, small, 0.5, 1.0, 2.0], 3), spectrum([0.3, 0.4, 0.5, 1.0, 2.0], 4)])
    root = inverse_root(stacked)
    own = root.own()
    torch.testing.assert_close(own.mT @ own, stacked, rtol=0, atol=4e-15)
    torch.testing.assert_close(own, root.embed(stacked), rtol=0, atol=1e-8)
    torch.testing.assert_close(own[1], inverse_root(stacked[1]).own(), rtol=0, atol=1e-14)


def test_rows_choose_their_root_and_nan_stays_in_its_row() -> None:
    good, singular = spectrum([0.5, 1.0, 2.0], 0), spectrum([0.0, 1.0, 2.0], 1)
    broken = torch.full((3, 3), torch.nan, dtype=F64)
    root = inverse_root(torch.stack([good, singular, broken]))
    assert root.fallback.tolist() == [False, True, False]
    columns = torch.randn(3, 3, 4, generator=torch.Generator().manual_seed(2), dtype=F64)
    for row, matrix in enumerate((good, singular)):
        alone: InverseRoot = inverse_root(matrix)
        torch.testing.assert_close(root.embed(columns)[row], alone.embed(columns[row]), rtol=1e-12, atol=1e-12)
    assert root.embed(columns)[2].isnan().all()


def test_cholesky_marks_what_failed_without_jitter() -> None:
    matrix = torch.stack([torch.eye(2, dtype=F64), torch.tensor([[1.0, 2.0], [2.0, 1.0]], dtype=F64)])
    factor, good = cholesky(matrix)
    assert good is not None
    assert good.tolist() == [True, False]
    assert cholesky(matrix[:1])[1] is None
    assert torch.equal(factor[0], torch.eye(2, dtype=F64))


@given(seed=st.integers(0, 10_000))
@settings(max_examples=25, deadline=None)
def test_appending_a_row_equals_factorising(seed: int) -> None:
    K = spectrum(list(np.linspace(0.2, 2, 7)), seed)
    grown, kept = append_row(torch.linalg.cholesky(K[:6, :6]), K[6, :6], K[6, 6])
    assert bool(kept)
    torch.testing.assert_close(grown, torch.linalg.cholesky(K))


def test_a_copy_of_a_point_is_skipped() -> None:
    K = spectrum([0.5, 1.0, 2.0], 4)
    grown, kept = append_row(torch.linalg.cholesky(K), K[1], K[1, 1])
    assert not bool(kept)
    assert grown[3].tolist() == [0, 0, 0, 1]


@given(
    seed=st.integers(0, 10_000), k=st.integers(1, 4), m=st.sampled_from([3, 40, 120]), lam=st.sampled_from([1e-6, 1e-2, 1.0])
)
@settings(max_examples=30, deadline=None)
def test_updates_equal_refactorisation(seed: int, k: int, m: int, lam: float) -> None:
    """At m = 120 a single pull is a rank-one update; all other cases refactorise."""
    generator = torch.Generator().manual_seed(seed)
    Z = torch.randn(2, m, m, generator=generator, dtype=F64)
    z, n = torch.randn(2, k, m, generator=generator, dtype=F64), torch.tensor([3.0, 0.0, 1.0, 7.0], dtype=F64)[:k].expand(2, k)
    V = Z.mT @ Z + lam * torch.eye(m, dtype=F64)
    updated = Precision(V).update_(z, n)
    fresh = Precision(V + z.mT @ (n.unsqueeze(-1) * z))
    probe = torch.randn(2, m, 5, generator=generator, dtype=F64)
    torch.testing.assert_close(updated.solve(probe), fresh.solve(probe), rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(updated.log_det, fresh.log_det, rtol=1e-10, atol=1e-9)


def test_a_matrix_that_is_not_positive_definite_is_an_error() -> None:
    with pytest.raises(NumericalError, match="regularization"):
        Precision(-torch.eye(2, dtype=F64))


@pytest.mark.parametrize("u", [2, 6, 20])
@pytest.mark.parametrize("scale", [1.0, 1e-9])
def test_the_shrinkage_root(u: int, scale: float) -> None:
    """Fewer points than coordinates, and directions that the data hardly touch, take the singular vectors."""
    lam, m = 1e-3, 6
    B = torch.randn(u, m, generator=torch.Generator().manual_seed(u), dtype=F64)
    B[:, 3] *= scale
    V = B.mT @ B + lam * torch.eye(m, dtype=F64)
    Q = shrinkage_root(torch.linalg.cholesky(V), B, lam)
    expected = torch.linalg.solve(V, B.mT @ B) / lam  # I/λ − V⁻¹ without the cancellation
    torch.testing.assert_close(Q @ Q.mT, (expected + expected.mT) / 2, rtol=1e-7, atol=1e-7 / lam)
