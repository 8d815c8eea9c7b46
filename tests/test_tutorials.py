"""The tutorials run at small sizes, and draw their figures."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest
from matplotlib.image import imread

TUTORIALS = Path(__file__).parent.parent / "docs" / "tutorials"


def load(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(f"tutorial_{name}", TUTORIALS / f"{name}.py")
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)  # data classes look their module up
    spec.loader.exec_module(module)
    return module


def drawn(path: Path) -> bool:
    return imread(path)[..., :3].std() > 0.01


@pytest.mark.exhaustive
def test_scalable_gp_ucb(tmp_path: Path, capsys):
    tutorial, figure = load("scalable_gp_ucb"), tmp_path / "figures" / "regret.png"
    traces = tutorial.main(["--evaluations", "26", "--initial", "12", "--seeds", "2", "--figure", str(figure)])
    assert set(traces) == {"SingleTaskGP", "BanditModel"}
    for runs in traces.values():
        assert len(runs) == 2
        for trace in runs:
            assert len(trace.seconds) == 14  # long enough for a second fit
            assert all(0 <= regret < 3.4 for regret in trace.regret)
    assert drawn(figure)
    assert len(capsys.readouterr().out.splitlines()) == 6


def test_molecules(tmp_path: Path, capsys):
    tutorial, figure = load("molecules"), tmp_path / "molecules.png"
    trace = tutorial.main(["--molecules", "600", "--batches", "4", "--batch-size", "5", "--figure", str(figure)])
    assert trace.evaluations == [55, 60, 65, 70]
    assert trace.best == sorted(trace.best)
    assert trace.best[-1] > 0.7
    assert drawn(figure)
    assert "SingleTaskGP" in capsys.readouterr().out
