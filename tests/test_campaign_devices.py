"""Campaigns on a CUDA device, emulated or real (`-m cuda`), select what they select on the CPU."""

from __future__ import annotations

import importlib.util
import io
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from emulated_device import emulated_device
from problems import rbf

import torchbandits as tb
from torchbandits import constraints, stopping
from torchbandits.policies import joint
from torchbandits.tabular import encoding


@pytest.fixture(params=["emulated", pytest.param("real", marks=pytest.mark.cuda)])
def _device(request: pytest.FixtureRequest) -> Iterator[None]:
    with emulated_device() if request.param == "emulated" else nullcontext():
        yield


def candidates(rows: int = 60) -> pd.DataFrame:
    """Two numbers, a category, a price and some equal rows."""
    g = np.random.default_rng(0)
    table = pd.DataFrame(
        {
            "id": [f"c{i}" for i in range(rows)],
            "x": g.uniform(size=rows).round(3),
            "y": g.uniform(size=rows).round(3),
            "solvent": g.choice(["DMF", "THF", "MeCN"], rows),
            "price": g.integers(1, 9, rows),
        }
    )
    return pd.concat([table, table.iloc[:5].assign(id=[f"d{i}" for i in range(5)])], ignore_index=True)


def measured(plate: pd.DataFrame) -> pd.DataFrame:
    """Results of a plate; the third of a plate fails."""
    value = np.sin(6 * plate["x"]) - (plate["y"] - 0.4) ** 2 + 0.1 * (plate["solvent"] == "THF")
    value[plate["rank"] == 3] = np.nan
    return pd.DataFrame({"id": plate["id"], "yield": value, "waste": plate["y"] * plate["x"]})


def course(campaign: Any, **last: Any) -> list[list[str]]:
    """Ids of two plates, of a part that is given up, of a constrained plate, and of the best rows."""
    found = []
    for where in (None, "price < 6"):
        plate = campaign.ask(4, where=where)
        found.append(plate["id"].tolist())
        campaign.tell(measured(plate))
    campaign.ask(3)
    found.append(campaign.open)
    campaign.forget(campaign.open[:2])
    campaign.forget()
    found += [campaign.ask(3, **last)["id"].tolist(), campaign.best(4)["id"].tolist()]
    return found


OPTIONS: dict[str, dict[str, Any]] = {
    "default": {"columns": {"price": "number"}},
    "minimised, on offer, with costs": {"minimize": True, "candidates": "price > 1", "cost": "price"},
    "noise": {"noise_std": 0.1},
    "batch_bkb": {"policy": tb.batch_bkb(rbf(), noise_std=0.1)},
}
LAST: dict[str, dict[str, Any]] = {
    "unseen": {"repeats": False},
    "within": {"within": [constraints.Same("solvent"), constraints.Total("price", 20.0)]},
}


# Six rows of so small a table may tell no kernel.
@pytest.mark.filterwarnings("ignore:the fit is degenerate:torchbandits.errors.DiagnosticWarning")
@pytest.mark.exhaustive
@pytest.mark.usefixtures("_device")
@pytest.mark.parametrize("last", LAST)
@pytest.mark.parametrize("options", OPTIONS)
def test_a_campaign_on_a_device_selects_the_same_rows(options: str, last: str, tmp_path: Path):
    made: dict[str, list[list[str]]] = {}
    for device in ("cpu", "cuda"):
        own = {"id": "id", "device": device, "journal": tmp_path / device, **OPTIONS[options]}
        campaign = tb.Campaign(candidates(), "yield", **own)
        assert campaign.bandit.device.type == device
        made[device] = course(campaign, **LAST[last])
        if "policy" not in own:
            assert len(campaign.explain().lines()) == 5
            assert isinstance(campaign.doubt(), str)
        assert campaign.should_stop(stopping.Budget(1)).reasons
        if importlib.util.find_spec("pydantic") is not None:  # pages need it, and machines with a card may not have it
            assert campaign.report(tmp_path / f"{device}.html").exists()
        campaign.close()
    assert made["cuda"] == made["cpu"]


@pytest.mark.usefixtures("_device")
def test_a_campaign_goes_on_on_another_device(tmp_path: Path):
    table = tmp_path / "candidates.csv"
    candidates().to_csv(table, index=False)
    campaign = tb.Campaign(table, "yield", tmp_path / "lab", device="cuda")
    campaign.tell(measured(campaign.ask(4)))
    campaign.ask(2)
    opened = campaign.open
    campaign.close()
    for device in ("cpu", "cuda"):
        again = tb.Campaign(None, journal=tmp_path / "lab", device=device)
        assert again.open == opened
        assert again.bandit.device.type == device
        again.close()


@pytest.mark.exhaustive
@pytest.mark.usefixtures("_device")
def test_features_in_a_file_are_swept_on_the_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    expected = course(tb.Campaign(candidates(), "yield", id="id"))
    monkeypatch.setattr(encoding, "IN_MEMORY", 100)
    campaign = tb.Campaign(candidates(), "yield", tmp_path / "lab", id="id", device="cuda")
    assert (tmp_path / "lab.features.npy").exists()
    assert campaign.bandit.device.type == "cuda"
    assert course(campaign) == expected
    campaign.close()


@pytest.mark.exhaustive
@pytest.mark.usefixtures("_device")
@pytest.mark.parametrize("offer", [None, "price > 1"])
def test_several_outcomes_on_a_device(offer: str | None, monkeypatch: pytest.MonkeyPatch):
    def rounded(state: Any) -> Any:
        """Posterior means of equal rows differ on the device, where later ones are a little better in both outcomes."""
        mean, std = marginals(state)
        if mean.device.type == "cuda":
            more = 1e-9 * torch.arange(mean.shape[-1], device=mean.device, dtype=mean.dtype)
            mean = mean + torch.stack([more, -more])
        return mean, std

    marginals = joint.marginals
    monkeypatch.setattr(joint, "marginals", rounded)
    table = candidates()
    others = table.iloc[:20].assign(id=[f"e{i}" for i in range(20)], price=table["price"][19::-1].array)
    table = pd.concat([table, others], ignore_index=True)
    options: dict[str, Any] = {"objectives": ["yield", "waste"], "minimize": ["waste"], "id": "id", "candidates": offer}
    made: dict[str, list[list[str]]] = {}
    for device in ("cpu", "cuda"):
        campaign = tb.OutcomeCampaign(table, device=device, columns={"price": "ignore"}, **options)
        made[device] = course(campaign)
        for _ in range(3):
            plate = campaign.ask(4)
            made[device].append(plate["id"].tolist())
            campaign.tell(measured(plate))
    assert made["cuda"] == made["cpu"]


def test_a_device_that_is_not_here_is_refused():
    with pytest.raises(tb.errors.ArgumentError, match="device must be"):
        tb.Campaign(candidates(), "yield", id="id", device="cuda:7")


@pytest.mark.exhaustive
@pytest.mark.usefixtures("_device")
@pytest.mark.parametrize("objectives", [["yield"], ["yield", "waste:min"]], ids=["one", "two"])
def test_commands_take_a_device(objectives: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    testing = pytest.importorskip("typer.testing")
    app = pytest.importorskip("torchbandits.cli").app
    monkeypatch.chdir(tmp_path)
    candidates().to_csv("candidates.csv", index=False)
    asked = [text for name in objectives for text in ("--objective", name)]
    made: dict[str, list[str]] = {}
    for device in ("cpu", "cuda"):
        own = ["--folder", device, "--device", device]

        def run(name: str, *arguments: str, own: list[str] = own) -> str:
            result = testing.CliRunner().invoke(app, ["campaign", name, *arguments, *own])
            assert result.exit_code == 0, result.output
            return str(result.stdout)

        run("new", "candidates.csv", *asked)
        made[device] = []
        for batch in range(2):
            plate = run("ask", "-n", "5")
            made[device].append(plate)
            measured(pd.read_csv(io.StringIO(plate))).to_csv(f"{device}{batch}.csv", index=False)
            run("tell", f"{device}{batch}.csv")
        made[device] += [run("best", "-k", "3"), run("explain"), *([run("front")] if len(objectives) > 1 else [])]
    assert made["cuda"] == made["cpu"]
    refused = testing.CliRunner().invoke(app, ["campaign", "best", "--folder", "cpu", "--device", "nowhere"])
    assert refused.exit_code == 2
    assert "device must be a device such as 'cpu' or 'cuda:0', got 'nowhere'" in " ".join(refused.stderr.split())
