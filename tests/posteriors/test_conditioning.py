"""The effect of pulls on many arms, by a product with an inverse, is that on a few arms, by a solve."""

from __future__ import annotations

import pytest
import torch

from torchbandits.posteriors import Conditioning, regression

F64 = torch.float64


@pytest.mark.parametrize("shape", [(), (2,)])
def test_directions_of_many_columns_are_those_of_a_few(shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(0)
    root = torch.randn(*shape, 5, 5, generator=generator, dtype=F64)
    weights = torch.tensor([1.0, 4.0, 0.0, 2.0, 1.0], dtype=F64).expand(*shape, 5)
    conditioning = Conditioning.on(1e4 * root @ root.mT, weights)
    cross = torch.randn(*shape, 5, 300, generator=generator, dtype=F64)
    few = torch.cat([conditioning.directions(part) for part in cross.split(20, dim=-1)], dim=-1)
    solves = []
    plain = regression.solve_lower
    monkeypatch.setattr(regression, "solve_lower", lambda factor, right: solves.append(right.shape[-1]) or plain(factor, right))
    torch.testing.assert_close(conditioning.directions(cross), few, rtol=1e-9, atol=1e-12)
    assert solves == [5]
