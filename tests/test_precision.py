"""Products of float32 in full precision, whatever the settings of the process are."""

from __future__ import annotations

import pytest
import torch
from problems import generator, rbf

import torchbandits as tb
from torchbandits.precision import full_precision

FLOAT32 = {"dtype": torch.float32}


@pytest.fixture
def reduced(request: pytest.FixtureRequest):
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(request.param)
    yield request.param
    torch.set_float32_matmul_precision(before)


@pytest.mark.parametrize("reduced", ["highest", "high", "medium"], indirect=True)
def test_the_context_gives_full_precision_and_the_settings_back(reduced: str):
    a, b = (torch.rand(300, 300, generator=generator(seed), **FLOAT32) for seed in (0, 1))
    whole = a.double() @ b.double()

    def multiplied() -> None:
        with full_precision():
            assert float((a @ b - whole).abs().max() / whole.max()) < 2e-6
            with full_precision():
                assert torch.backends.cuda.matmul.fp32_precision in ("ieee", "none")
            assert torch.backends.mkldnn.matmul.fp32_precision in ("ieee", "none")
            raise ValueError("inside")

    with pytest.raises(ValueError, match="inside"):
        multiplied()
    assert torch.get_float32_matmul_precision() == reduced


@pytest.mark.parametrize("make", [tb.gp_ucb, tb.bkb, tb.batch_bkb], ids=lambda make: make.__name__)
@pytest.mark.parametrize("reduced", ["medium"], indirect=True)
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)])
def test_a_process_that_allows_less_changes_no_number(reduced: str, make, device: str):
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("this machine has no GPU that PyTorch can use")
    arms = torch.rand(3_000, 6, generator=generator(2), **FLOAT32).to(device)

    def play() -> tuple[list[int], torch.Tensor]:
        g = generator(3)
        bandit = tb.Bandit(make(rbf(0.7), noise_std=0.1), arms, generator=generator(4))
        some = torch.randperm(len(arms), generator=g)[:150]
        some = some.to(device)
        bandit.observe(some, torch.ones(150, device=device), torch.sin(5 * arms[some].sum(dim=-1)))
        picks: list[int] = []
        while len(picks) < 20:
            selection = bandit.ask(limit=5)
            bandit.tell(selection, torch.sin(5 * selection.points.sum(dim=-1)))
            picks += selection.index.tolist()
        return picks, bandit.loop.state.arm_leverage()

    allowed = play()
    torch.set_float32_matmul_precision("highest")
    whole = play()
    assert allowed[0] == whole[0]
    assert torch.equal(allowed[1], whole[1])
