"""The spherical linear kernel: its formula, its box, and a fit of its parameters."""

from __future__ import annotations

import gpytorch
import pytest
import torch
from problems import generator

import torchbandits as tb
from torchbandits import errors
from torchbandits.botorch import BanditModel

F64 = torch.float64
BOX = torch.tensor([[0.0, -2.0, 5.0], [1.0, 2.0, 5.0]], dtype=F64)


def points(n: int, seed: int = 0) -> torch.Tensor:
    return BOX[0] + (BOX[1] - BOX[0]) * torch.rand(n, 3, generator=generator(seed), dtype=F64)


def test_it_is_that_of_the_paper_at_first():
    """Initially, half the largest squared norm is the square of the common lengthscale, and the constant and the linear part
    have equal weights."""
    x, y = points(7), points(5, 1)
    common = ((BOX[1] - BOX[0]) / 2).square().sum().mul(0.5).sqrt()

    def on_sphere(u: torch.Tensor) -> torch.Tensor:
        z = (u - BOX.mean(dim=0)) / common
        n = z.square().sum(dim=-1, keepdim=True)
        return torch.cat([2 * z / (1 + n), (n - 1) / (1 + n)], dim=-1)

    assert torch.allclose(on_sphere(x).norm(dim=-1), torch.ones(7, dtype=F64))
    kernel = tb.SphericalLinearKernel(BOX).double()
    expected = 0.5 + 0.5 * on_sphere(x) @ on_sphere(y).T
    torch.testing.assert_close(kernel(x, y).to_dense(), expected, rtol=0, atol=1e-14)
    torch.testing.assert_close(kernel(x, diag=True), torch.ones(7, dtype=F64), rtol=0, atol=1e-15)
    pairs = kernel(x[:5], y, diag=True)
    torch.testing.assert_close(pairs, expected[:5].diagonal(), rtol=0, atol=1e-14)


def test_rows_of_a_batch_have_their_own_parameters():
    kernel = tb.SphericalLinearKernel(BOX, batch_shape=torch.Size([2])).double()
    kernel.fraction = torch.tensor([[0.1], [0.7]], dtype=F64)
    kernel.constant = torch.tensor([[0.2], [0.9]], dtype=F64)
    x = points(6)
    whole = kernel(x, x).to_dense().detach()
    assert whole.shape == (2, 6, 6)
    for row in range(2):
        own = tb.SphericalLinearKernel(BOX).double()
        own.fraction, own.constant = kernel.fraction[row], kernel.constant[row]
        torch.testing.assert_close(own(x, x).to_dense().detach(), whole[row], rtol=0, atol=1e-14)
        torch.testing.assert_close(kernel(x, diag=True)[row].detach(), torch.ones(6, dtype=F64), rtol=0, atol=1e-14)
        assert float(torch.linalg.eigvalsh(whole[row]).min()) > -1e-12


def test_active_features_alone_count():
    x = points(6)
    some = tb.SphericalLinearKernel(BOX[:, :2], active_dims=[0, 1]).double()
    moved = x.clone()
    moved[:, 2] = 7.0
    assert torch.equal(some(x, x).to_dense(), some(moved, moved).to_dense())


def test_a_bandit_fits_it_saves_it_and_a_model_takes_it():
    arms = torch.randn(300, 40, generator=generator(0)).half()
    box = torch.stack([arms.amin(dim=0), arms.amax(dim=0)]).double()
    truth = arms.double() @ torch.randn(40, generator=generator(1), dtype=F64) / 6

    def fresh() -> tb.Bandit:
        kernel = gpytorch.kernels.ScaleKernel(tb.SphericalLinearKernel(box)).double()
        policy = tb.batch_bkb(kernel, noise_std=0.1, width=tb.widths.Constant(2.0), prior_mean="estimate")
        return tb.Bandit(policy, tb.sources.tensor(arms), generator=generator(2))

    bandit = fresh()
    bandit.tell(torch.arange(100), truth[:100])
    report = bandit.fit_kernel_(noise=True)
    assert bool(report.accepted)
    base = bandit.posterior.kernel.base_kernel
    assert base.fraction.item() != 0.5
    assert base.constant.item() != 0.5
    mean = bandit.posterior(arms[100:].double()).mean
    assert float(torch.corrcoef(torch.stack([mean, truth[100:]]))[0, 1]) > 0.95
    other = fresh()
    other.load_state_dict(bandit.state_dict())
    assert torch.equal(other.ask(limit=5).index, bandit.ask(limit=5).index)
    model = BanditModel(arms[:100].double(), truth[:100, None], kernel=bandit.posterior.kernel, noise_std=0.1)
    posterior = model.posterior(arms[100:].double())
    assert float(torch.corrcoef(torch.stack([posterior.mean[:, 0], truth[100:]]))[0, 1]) > 0.95


@pytest.mark.parametrize(
    ("bounds", "words"),
    [
        (BOX[0], "2 x d"),
        (torch.zeros(2, 0, dtype=F64), "2 x d"),
        (BOX.flip(0), "lower ones"),
        (torch.ones(2, 3, dtype=F64), "width"),
        (torch.tensor([[0.0], [torch.nan]], dtype=F64), "bounds"),
    ],
)
def test_a_box_that_is_none_is_refused(bounds, words):
    with pytest.raises(errors.TorchBanditsError, match=words):
        tb.SphericalLinearKernel(bounds)
