"""Threads that share a bandit, a campaign or a worker: their calls take effect one after the other."""

from __future__ import annotations

import copy
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from problems import generator, rbf

import torchbandits as tb

ARMS = torch.as_tensor(np.random.default_rng(0).uniform(size=(300, 2)))


def policy() -> Any:
    return tb.gp_ucb(rbf(), noise_std=0.1, width=tb.widths.Constant(2.0))


def together(work: Any, threads: int = 4) -> None:
    """Run `work(thread)` in several threads that begin at once."""
    begin = Barrier(threads)

    def begun(thread: int) -> None:
        begin.wait()
        work(thread)

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(begun, range(threads)))


def test_threads_share_a_bandit_and_its_journal(tmp_path: Path):
    bandit = tb.Bandit(policy(), ARMS, generator=generator(0), journal=tmp_path / "journal")
    others = torch.arange(len(ARMS)) >= 60

    def work(thread: int) -> None:
        for turn in range(15):
            arm = 15 * thread + turn
            bandit.tell(torch.tensor([arm]), ARMS[arm : arm + 1].sum(dim=-1))
            bandit.ask(more=1, available=others)
            bandit.best()

    together(work)
    assert bandit.counts[:60].tolist() == [1.0] * 60
    assert len(bandit.ask()) == 60
    bandit.journal.close()
    resumed = tb.Bandit(policy(), ARMS, generator=generator(0), journal=tmp_path / "journal")
    assert torch.equal(resumed.counts, bandit.counts)
    assert torch.equal(resumed.ask().index, bandit.ask().index)


@pytest.mark.exhaustive
def test_threads_share_a_campaign_and_lose_no_result(tmp_path: Path):
    table = pd.DataFrame({"x": ARMS[:, 0], "z": ARMS[:, 1]})
    campaign = tb.Campaign(table, "y", tmp_path / "journal", policy=policy())
    plate = campaign.ask(40, within=[tb.constraints.Distinct()])
    plate["y"] = plate["x"]

    def work(thread: int) -> None:
        for place in range(thread, 40, 4):
            campaign.tell(plate.iloc[[place]])
            campaign.best(2)

    together(work)
    assert campaign.open == []
    assert int(campaign.bandit.pulls) == 40
    campaign.close()
    assert int(tb.Campaign(table, journal=tmp_path / "journal", policy=policy()).bandit.pulls) == 40


def test_threads_at_several_contexts_get_arms_of_their_own():
    contexts = torch.linspace(0, 1, 4, dtype=torch.float64).unsqueeze(-1)
    bandit = tb.ContextualBandit(policy(), ARMS, contexts[:1], max_contexts=2, generator=generator(0))

    def work(thread: int) -> None:
        for _ in range(8):
            selection = bandit.ask(context=contexts[thread])
            assert (selection.points[:, 0] == contexts[thread]).all()
            bandit.tell(selection, selection.points.sum(dim=-1))

    together(work)
    assert int(bandit.pulls) == 32


def test_threads_of_one_worker_learn_each_reward_once(tmp_path: Path):
    worker = tb.Worker(policy(), ARMS, store=tmp_path / "store")

    def work(thread: int) -> None:
        for _ in range(10):
            lease = worker.ask()
            worker.tell(lease, float(lease.points.sum()))

    together(work)
    assert worker.told == 40
    assert int(worker.bandit.pulls) == 40
    worker.close()


def test_a_copy_has_a_lock_of_its_own():
    bandit = tb.Bandit(policy(), ARMS, generator=generator(0))
    other = copy.deepcopy(bandit)
    other.tell(other.ask(), torch.zeros(1, dtype=torch.float64))
    assert (int(bandit.pulls), int(other.pulls)) == (0, 1)
