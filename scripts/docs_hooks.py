"""Hooks of the documentation site: tables generated from the package, parts of other files, formulas as MathML, diagrams as
SVG, tutorials as notebooks.

A page includes a part by a comment on a separate line: `<!-- choices -->`, `<!-- bounds -->`, `<!-- changelog -->` or
`<!-- contributing -->`. Generated parts always agree with the code.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import gpytorch
import notebooks
from docs_diagrams import drawn
from latex2mathml.converter import convert

import torchbandits as tb
from torchbandits.policies import CATALOGUE
from torchbandits.policies.composed import Composed

ROOT = Path(__file__).parents[1]
ASKED = re.compile(r"^<!-- (choices|bounds|changelog|contributing) -->$", re.MULTILINE)
FORMULA = re.compile(r'<(div|span) class="arithmatex">(?:\\\[|\\\()(.*?)(?:\\\]|\\\))</\1>', re.DOTALL)
TABLE = re.compile(r"<table>.*?</table>", re.DOTALL)
HEADING = re.compile(r"<th[^>]*>(.*?)</th>", re.DOTALL)
CELL = re.compile(r"<td[^>]*>(.*?)</td>", re.DOTALL)
CODE = re.compile(r"<code>(.*?)</code>", re.DOTALL)
LONG, UNBROKEN = 48, 30  # characters from which a cell, or unbreakable code in a cell, makes a table a table of words
PICTURE = re.compile(r'<img [^>]*src="([^"]+)"[^>]*>')
# Values of the required arguments of some policies.
EXAMPLES = {"nu": 1.5, "horizon": 1_000, "sketch_size": 16, "num_features": 64, "level": 0.0}


def on_page_markdown(markdown: str, page: Any = None, **_: Any) -> str:
    """Fill in the parts that the page includes, draw its diagrams, and link a tutorial to its notebook."""
    whole = drawn(ASKED.sub(lambda found: part(found[1]), markdown))
    if page is None or ROOT / "docs" / page.file.src_path not in notebooks.PAGES:
        return whole
    title, _newline, rest = whole.partition("\n")
    link = f'<a href="{Path(page.file.src_path).stem}.ipynb" download>This page as a Jupyter notebook</a>'
    return f"{title}\n\n{link}\n{rest}"


def on_post_build(config: Any) -> None:
    """Write the notebooks beside the pages of the tutorials."""
    notebooks.write(Path(config.site_dir) / "tutorials")


def on_page_content(html: str, **_: Any) -> str:
    """Convert formulas to MathML, which browsers render natively; mark tables of words; link pictures to their files."""
    html = FORMULA.sub(lambda found: formula(found[2], display=found[1] == "div"), html)
    html = TABLE.sub(lambda found: labelled(found[0]), html)
    return PICTURE.sub(r'<a href="\1">\g<0></a>', html)


def labelled(table: str) -> str:
    """Name the column in each cell of a table of words, because its rows are shown as blocks on a phone.

    A table of words has a long cell, or code that can't be broken, in a column other than the first; tables of numbers scroll.
    """
    headings = [plain(cell) for cell in HEADING.findall(table)]
    cells = CELL.findall(table)
    beside = [cell for place, cell in enumerate(cells) if headings and place % len(headings)]
    longest = max((len(plain(cell)) for cell in beside), default=0)
    unbroken = max((len(plain(code)) for cell in beside for code in CODE.findall(cell)), default=0)
    if unbroken < UNBROKEN and (len(headings) < 3 or longest < LONG):
        return table
    place = iter(range(len(cells)))

    def opened(_: re.Match[str]) -> str:
        heading = headings[next(place) % len(headings)]
        return f'<td data-label="{heading}">' if heading else "<td>"

    return re.sub(r"<td[^>]*>", opened, table.replace("<table", "<table data-words", 1))


def plain(cell: str) -> str:
    """The text of a cell."""
    return re.sub(r"<[^>]+>", "", cell).replace('"', "&quot;").strip()


def formula(latex: str, *, display: bool) -> str:
    """Convert a LaTeX formula to MathML."""
    plain = latex.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&").strip()
    plain = re.sub(r"\\arg\\(max|min)", r"\\operatorname{arg\1}", plain)  # latex2mathml does not know \arg
    mathml = convert(plain, display="block" if display else "inline")
    return f'<span class="display-math">{mathml}</span>' if display else mathml


def part(name: str) -> str:
    """The part that replaces a comment."""
    return {"choices": choices, "bounds": bounds, "changelog": changelog, "contributing": contributing}[name]()


def changelog() -> str:
    """CHANGELOG.md without its title, with links relative to docs/."""
    return (ROOT / "CHANGELOG.md").read_text().partition("\n")[2].replace("](docs/", "](")


def contributing() -> str:
    """CONTRIBUTING.md without its title, with links relative to docs/."""
    return (ROOT / "CONTRIBUTING.md").read_text().partition("\n")[2].replace("](docs/", "](")


def bounds() -> str:
    """Table of the lower bounds of pyproject.toml and the versions with which the tests run."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    pinned = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line)
    pinned = {name.lower(): version for name, version in pinned.items()}
    lines = ["| package | oldest stated | tests run with |", "| --- | --- | --- |"]
    extras = project["optional-dependencies"]
    for bound in [
        *project["dependencies"],
        *extras["experiments"],
        *extras["fast"],
        *extras["ax"],
        *extras["optuna"],
        *extras["baybe"],
    ]:
        if bound.startswith("torchbandits["):
            continue
        package, oldest = bound.split(">=")
        lines.append(f"| {package} | {oldest} | {pinned.get(package.lower(), '–')} |")
    return "\n".join(lines) + "\n"


def choices() -> str:
    """Table of the five choices of every policy that consists of them, read from the policies themselves."""
    lines = ["| policy | embedding | memory | score | width | batch rule |", "| --- | --- | --- | --- | --- | --- |"]
    for entry in CATALOGUE:
        policy = entry.factory(**arguments([option.name for option in entry.options]))
        if isinstance(policy, Composed):
            memory = type(policy.memory).__name__
            embedding = "Nyström" if policy.memory.sparse else "exact"
            features = embedding if policy.features is None else type(policy.features).__name__
            names = [type(x).__name__ for x in (policy.score, policy.confidence)]
            rule = policy.batch_rule
            size = "one" if rule.max_batch_size == 1 else type(rule).__name__
            lines.append(f"| `{entry.name}` | {features} | {memory} | {' | '.join(names)} | {size} |")
    return "\n".join(lines) + "\n"


def arguments(options: list[str]) -> dict[str, Any]:
    """Values of the options that a policy requires."""
    given: dict[str, Any] = {name: EXAMPLES[name] for name in options if name in EXAMPLES}
    return given | ({"kernel": gpytorch.kernels.RBFKernel().double()} if "kernel" in options else {})


# The documented package is the one beside this file.
assert tb.__version__
