"""The tour in CONTRIBUTING.md is correct: its files exist, and a pick and a reward pass through the files it names."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import gpytorch
import pytest
import torch
from docs_diagrams import drawn, parsed, svg

import torchbandits as tb
from torchbandits.linalg import compiled

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "CONTRIBUTING.md").read_text()
NAMED = re.compile(r"`([\w/.-]+/|[\w/.-]+\.(?:py|sh|txt|json|md))(?: [^`]*)?`")
# Without numba nothing is compiled, and a tell computes the factors that a pick reads in their final form.
COMPILED = {"arms/compiled.py", "linalg/compiled.py", "embeddings/nystrom.py", "posteriors/regression.py"}
OPTIONAL = set() if compiled.COMPILED else COMPILED
# From Python 3.12 on the profiler does not see calls of compiled functions.
UNSEEN = {"arms/compiled.py", "linalg/compiled.py"} if sys.version_info >= (3, 12) else set()


def section(heading: str) -> str:
    found = re.search(rf"^## {heading}\n(.*?)(?=^## |\Z)", TEXT, re.DOTALL | re.MULTILINE)
    assert found is not None, f"CONTRIBUTING.md has no section {heading!r}"
    return found[1]


def test_every_file_it_names_exists():
    names = NAMED.findall(TEXT)
    assert len(names) > 40
    missing = [name for name in names if not any((ROOT / folder / name).exists() for folder in ("", "torchbandits", "tests"))]
    assert not missing, f"CONTRIBUTING.md names {missing}, which do not exist"


def entered(call) -> tuple[object, set[str]]:
    """The result of a call, and the files of the package that it enters."""
    package, files = str(ROOT / "torchbandits") + "/", set()

    def enter(frame, event, _):
        if event == "call" and frame.f_code.co_filename.startswith(package):
            files.add(frame.f_code.co_filename.removeprefix(package))

    before = sys.getprofile()
    sys.setprofile(enter)
    try:
        return call(), files
    finally:
        sys.setprofile(before)


def test_a_pick_and_a_reward_pass_through_the_files_that_the_tour_names():
    g = torch.Generator().manual_seed(0)
    arms = torch.rand(300, 2, generator=g, dtype=torch.float64)
    kernel = gpytorch.kernels.RBFKernel().double()
    kernel.lengthscale = 0.2
    bandit = tb.Bandit(tb.batch_bkb(kernel, noise_std=0.1), arms)
    for _ in range(4):
        selection = bandit.ask()
        bandit.tell(selection, torch.rand(selection.index.shape, generator=g, dtype=torch.float64))
    selection, asked = entered(bandit.ask)
    rewards = torch.rand(selection.index.shape, generator=g, dtype=torch.float64)
    _, told = entered(lambda: bandit.tell(selection, rewards))
    ask, tell = section("A pick and a reward, walked through").split("`bandit.tell(selection, rewards)`:")
    for text, files in ((ask, asked), (tell.partition("A test runs both calls")[0], told)):
        named = {name for name in NAMED.findall(text) if name.endswith(".py")} - OPTIONAL - UNSEEN
        assert len(named) >= 7
        assert named <= files, f"the tour names {sorted(named - files)}, where no call goes; it goes through {sorted(files)}"


def test_the_house_is_drawn_without_anything_from_elsewhere():
    picture = drawn(TEXT)
    assert picture.count("<svg") == 1
    assert "```mermaid" not in picture
    assert "http://www.w3.org/2000/svg" in picture
    assert not re.search(r"<script|href|src=", picture[picture.index("<svg") : picture.index("</svg>")])


def test_a_flowchart_is_boxes_in_rows():
    labels, edges = parsed('flowchart TD\n  a["one<br/>line & more"] --> b --> c\n  a --> c\n')
    assert labels == {"a": ["one", "line & more"], "b": ["b"], "c": ["c"]}
    assert edges == [("a", "b"), ("b", "c"), ("a", "c")]
    text = svg(labels, edges)
    heights = [float(y) for y in re.findall(r'<rect x="[\d.]+" y="([\d.]+)"', text)]
    assert heights == sorted(set(heights))
    assert "line &amp; more" in text
    for wrong in ("graph LR\n a --> b", "flowchart TD\n a -.-> b"):
        with pytest.raises(ValueError, match=r"flowchart TD|not a node"):
            parsed(wrong)
