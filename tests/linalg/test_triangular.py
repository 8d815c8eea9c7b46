"""A product that skips zeros equals the full product."""

from __future__ import annotations

import pytest
import torch

from torchbandits.linalg import staircase_product

F64 = torch.float64


@pytest.mark.parametrize("batch", [(), (3,)], ids=["one", "rows"])
@pytest.mark.parametrize("spare", [0, 7], ids=["triangular", "staircase"])
@pytest.mark.parametrize("dense", [0, 1, 2])
@pytest.mark.parametrize("m", [1, 32, 33, 100, 257])
def test_the_product(m: int, dense: int, spare: int, batch: tuple[int, ...]) -> None:
    generator = torch.Generator().manual_seed(m)
    starts = torch.randperm(m + spare, generator=generator)[:m].sort().values
    weights = torch.randn(*batch, dense + m, m + spare, generator=generator, dtype=F64)
    weights[..., dense:, :] *= torch.arange(m + spare) >= starts.unsqueeze(-1)
    columns = torch.randn(*batch, m + spare, 50, generator=generator, dtype=F64)[..., 3:20]
    out = torch.full((*batch, dense + m, 30), torch.nan, dtype=F64)
    product = staircase_product(weights, columns, out[..., :17], dense, starts.tolist())
    torch.testing.assert_close(product, weights @ columns, rtol=1e-12, atol=1e-12)
    assert bool(out[..., 17:].isnan().all())
    assert product.data_ptr() == out.data_ptr()
