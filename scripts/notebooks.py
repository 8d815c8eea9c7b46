"""Convert every page of docs/tutorials to a notebook whose code cells are the Python blocks of the page.

    python scripts/notebooks.py build/notebooks

The pages are the only source: notebooks are made from them, here and beside the pages of the documentation site.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import jupytext
import nbformat

ROOT = Path(__file__).parents[1]
PAGES = sorted(page for page in (ROOT / "docs" / "tutorials").glob("*.md") if page.name != "index.md")
_OTHER_FENCE = re.compile(r"^```(?!python$)\w+$", re.MULTILINE)
_PAGE_LINK = re.compile(r"\]\(([^):]+)\.md")


def notebook(page: Path) -> Any:
    """The notebook of a page. Blocks in languages other than Python are shown but not run."""
    text = _OTHER_FENCE.sub("```console", page.read_text())
    made = jupytext.reads(_PAGE_LINK.sub(r"](\1.html", text), fmt="md")
    note = (
        f'*Made from docs/tutorials/{page.name} of torchbandits. It needs* `pip install "torchbandits[experiments]"` *and '
        "writes its files into the folder of the notebook.*"
    )
    made.cells.insert(1, nbformat.v4.new_markdown_cell(note, id="origin"))
    made.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    # Identifiers number the cells, so that the same page always gives the same file.
    for place, cell in enumerate(made.cells):
        cell["id"] = f"cell-{place}"
    return made


def write(folder: Path) -> list[Path]:
    """Write the notebooks of all pages into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for page in PAGES:
        path = folder / f"{page.stem}.ipynb"
        nbformat.write(notebook(page), path)
        paths.append(path)
    return paths


if __name__ == "__main__":
    for written in write(Path(sys.argv[1] if len(sys.argv) > 1 else "build/notebooks")):
        print(written)
