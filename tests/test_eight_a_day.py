"""The three programs of the tutorial "Eight experiments a day": each runs, and has the number of lines that the page states."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[1] / "docs"
spec = importlib.util.spec_from_file_location("laboratory", DOCS / "examples" / "eight_a_day" / "laboratory.py")
assert spec is not None
assert spec.loader is not None
laboratory = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(laboratory)


@pytest.mark.parametrize("program", laboratory.PROGRAMS)
def test_the_page_tells_the_lines_of_each_program(program: str):
    row = re.search(rf"with_{program}\.py\) \| (\d+) \|", (DOCS / "tutorials" / "eight_a_day.md").read_text())
    assert row is not None
    assert int(row[1]) == laboratory.code_lines(program)


@pytest.mark.exhaustive
@pytest.mark.parametrize("program", laboratory.PROGRAMS)
def test_a_program_chooses_eight_new_reactions_a_day(program: str, tmp_path: Path):
    if program == "baybe":
        pytest.importorskip("baybe")
    best, seconds = laboratory.play(program, 3, 0, tmp_path)
    assert 0 < best <= laboratory.true_yield(laboratory.candidates()).max()
    assert seconds > 0
    told = (tmp_path / "results.csv").read_text().splitlines()[1:]
    assert len({line.split(",")[0] for line in told}) == len(told) == 16
