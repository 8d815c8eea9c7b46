"""A product that skips zeros equals the full product."""

from __future__ import annotations

import pytest
import torch
from emulated_device import emulated_device

from torchbandits.linalg import triangular_product

F64 = torch.float64


@pytest.mark.parametrize("batch", [(), (3,)], ids=["one", "rows"])
@pytest.mark.parametrize("dense", [0, 1, 2])
@pytest.mark.parametrize("m", [1, 32, 33, 100, 257])
def test_the_product(m: int, dense: int, batch: tuple[int, ...]) -> None:
    generator = torch.Generator().manual_seed(m)
    weights = torch.randn(*batch, dense + m, m, generator=generator, dtype=F64)
    weights[..., dense:, :] = weights[..., dense:, :].triu()
    columns = torch.randn(*batch, m, 50, generator=generator, dtype=F64)[..., 3:20]
    out = torch.full((*batch, dense + m, 30), torch.nan, dtype=F64)
    product = triangular_product(weights, columns, out[..., :17], dense)
    torch.testing.assert_close(product, weights @ columns, rtol=1e-12, atol=1e-12)
    assert bool(out[..., 17:].isnan().all())
    assert product.data_ptr() == out.data_ptr()


@pytest.mark.sweep(15)
@pytest.mark.parametrize("batch", [(), (3,)], ids=["one", "rows"])
@pytest.mark.parametrize("dense", [0, 1, 70])
@pytest.mark.parametrize(("m", "products"), [(1, 1), (128, 1), (129, 2), (512, 4), (900, 4)])
def test_few_products_on_a_device(m: int, products: int, dense: int, batch: tuple[int, ...]) -> None:
    generator = torch.Generator().manual_seed(m)
    weights = torch.randn(*batch, dense + m, m, generator=generator, dtype=F64)
    weights[..., dense:, :] = weights[..., dense:, :].triu()
    columns = torch.randn(*batch, m, 10, generator=generator, dtype=F64)
    with emulated_device() as asked:
        out = torch.full((*batch, dense + m, 14), torch.nan, dtype=F64).cuda()
        own, there = weights.cuda(), columns.cuda()
        before = asked.launches
        triangular_product(own, there, out[..., :10], dense)
        assert asked.launches - before == products
        product = out.cpu()
    torch.testing.assert_close(product[..., :10], weights @ columns, rtol=1e-12, atol=1e-12)
    assert bool(product[..., 10:].isnan().all())
