"""Loggers: the scalars of `LogScalars` against the bandit's own reports, with a recording writer."""

from __future__ import annotations

import gpytorch
import pytest
import torch

import torchbandits as tb


def environment() -> tb.environments.Table:
    arms = torch.linspace(0, 1, 40, dtype=torch.float64).unsqueeze(-1)
    return tb.environments.Table(arms, torch.sin(6 * arms[:, 0]), noise_std=0.1)


def kernel() -> gpytorch.kernels.Kernel:
    made = gpytorch.kernels.RBFKernel().double()
    made.lengthscale = 0.2
    return made


class Remembers:
    """A `SummaryWriter` that only records its calls."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, float, int]] = []

    def add_scalar(self, tag: str, scalar_value: float, global_step: int) -> None:
        self.lines.append((tag, scalar_value, global_step))


def test_every_tell_is_logged_at_its_number_of_pulls():
    writer = Remembers()
    history = tb.run(
        tb.batch_bkb(kernel(), noise_std=0.1), environment(), 30, callbacks=[tb.callbacks.LogScalars(writer.add_scalar)]
    )
    for name in ("batch_size", "dictionary_size", "distinct_arms", "width", "information_gain", "certificate"):
        logged = [(value, step) for tag, value, step in writer.lines if tag == f"bandit/{name}"]
        column = "size" if name == "batch_size" else name
        assert logged == list(zip(history.batches[column].tolist(), history.batches["t"].tolist(), strict=True))
    means = [value for tag, value, _ in writer.lines if tag == "bandit/mean_reward"]
    pulls = history.pulls
    assert means == pytest.approx([pulls["reward"][pulls["batch"] == b].mean() for b in history.batches["batch"]])


def test_the_recommended_arm_and_a_loop_of_ones_own():
    writer, bandit = Remembers(), tb.Bandit(tb.gp_ucb(kernel(), noise_std=0.1), environment().arms)
    log = tb.callbacks.LogScalars(writer.add_scalar, prefix="mine", every=2)
    for _ in range(4):
        selection = bandit.ask()
        rewards = torch.ones(1, dtype=torch.float64)
        log(bandit, selection, rewards, bandit.tell(selection, rewards))
    assert {step for _, _, step in writer.lines} == {2, 4}
    last = {tag: value for tag, value, step in writer.lines if step == 4}
    assert last["mine/best_mean"] == bandit.best().mean.item()
    assert last["mine/best_std"] == bandit.best().variance.sqrt().item()


def test_rows_have_names_of_their_own_and_what_is_unknown_is_left_out():
    lines: list[tuple[str, float, int]] = []
    log = tb.callbacks.LogScalars(lambda *line: lines.append(line))
    seeds = [torch.Generator().manual_seed(seed) for seed in range(2)]
    tb.run(tb.uniform(), environment(), 5, generator=seeds, callbacks=[log])
    tags = {tag for tag, _, _ in lines}
    assert {"bandit/0/mean_reward", "bandit/1/mean_reward"} <= tags
    assert not any("certificate" in tag for tag in tags)  # uniform keeps no posterior
    assert all(value == value for _, value, _ in lines)


@pytest.mark.parametrize("every", [0, -1, True, 1.5])
def test_every_is_checked(every, annotations_not_enforced):
    with pytest.raises(tb.errors.ArgumentError, match="every"):
        tb.callbacks.LogScalars(print, every=every)
