"""The tutorials as notebooks: their cells are the blocks of the pages, and they run."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

jupytext = pytest.importorskip("jupytext", reason='the notebooks need pip install "torchbandits[docs]"')
import nbformat  # noqa: E402
import notebooks  # noqa: E402

PYTHON = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)
NEED_DATA = {"nas_bench"}


def identify(page: Path) -> str:
    return page.stem


def test_every_tutorial_is_a_notebook(tmp_path: Path):
    names = {path.stem for path in notebooks.write(tmp_path)}
    assert names == {page.stem for page in (notebooks.ROOT / "docs" / "tutorials").glob("*.md")} - {"index"}
    assert {"eight_a_day", "nas_bench", "outgrown", "cluster", "crash", "campaign"} <= names


@pytest.mark.parametrize("page", notebooks.PAGES, ids=identify)
def test_the_cells_are_the_blocks_of_the_page(page: Path):
    made = notebooks.notebook(page)
    nbformat.validate(made)
    code = [cell.source for cell in made.cells if cell.cell_type == "code"]
    assert code == [block.strip("\n") for block in PYTHON.findall(page.read_text())]
    assert made == notebooks.notebook(page)
    assert made.cells[0].source.startswith("# ")


@pytest.mark.exhaustive
@pytest.mark.parametrize("page", notebooks.PAGES, ids=identify)
def test_a_notebook_runs(page: Path, tmp_path: Path):
    nbclient = pytest.importorskip("nbclient")
    if page.stem in NEED_DATA and "TORCHBANDITS_DATA" not in os.environ:
        pytest.skip("TORCHBANDITS_DATA does not name the folder of the data sets")
    client = nbclient.NotebookClient(notebooks.notebook(page), timeout=300, resources={"metadata": {"path": str(tmp_path)}})
    done = client.execute()
    assert all(cell.execution_count for cell in done.cells if cell.cell_type == "code")
