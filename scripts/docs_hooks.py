"""Hooks of the documentation site: tables made from the package, parts of other files, formulas as MathML, diagrams as SVG.

A page asks for a part by a comment on a line of its own: `<!-- policies -->`, `<!-- choices -->`, `<!-- bounds -->`,
`<!-- changelog -->`, `<!-- contributing -->` or `<!-- readme: HEADING -->`. Generated parts can't drift from the code.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import gpytorch
from docs_diagrams import drawn
from latex2mathml.converter import convert

import torchbandits as tb
from torchbandits.policies import CATALOGUE, markdown_table
from torchbandits.policies.composed import Composed

ROOT = Path(__file__).parents[1]
ASKED = re.compile(r"^<!-- (policies|choices|bounds|changelog|contributing|readme)(?:: (.+?))? -->$", re.MULTILINE)
FORMULA = re.compile(r'<(div|span) class="arithmatex">(?:\\\[|\\\()(.*?)(?:\\\]|\\\))</\1>', re.DOTALL)
EXAMPLES = {"nu": 1.5, "horizon": 1_000, "sketch_size": 16, "num_features": 64}  # what some policies can't do without


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Fill in the parts that the page asks for, and draw its diagrams."""
    return drawn(ASKED.sub(lambda found: part(found[1], found[2]), markdown))


def on_page_content(html: str, **_: Any) -> str:
    """Formulas as MathML, which browsers show by themselves."""
    return FORMULA.sub(lambda found: formula(found[2], display=found[1] == "div"), html)


def formula(latex: str, *, display: bool) -> str:
    """A formula as MathML."""
    plain = latex.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&").strip()
    mathml = convert(plain, display="block" if display else "inline")
    return f'<span class="display-math">{mathml}</span>' if display else mathml


def part(name: str, argument: str | None) -> str:
    """The part that replaces a comment."""
    if name == "readme":
        return section(argument or "")
    made = {"policies": markdown_table, "choices": choices, "bounds": bounds}
    made |= {"changelog": changelog, "contributing": contributing}
    return made[name]()


def section(heading: str) -> str:
    """A section of README without its heading, its links seen from docs/."""
    found = re.search(
        rf"^## {re.escape(heading)}\n(.*?)(?=^## |\Z)", (ROOT / "README.md").read_text(), re.DOTALL | re.MULTILINE
    )
    if found is None:
        raise ValueError(f"README has no section {heading!r}.")
    return found[1].replace("](docs/", "](")


def changelog() -> str:
    """CHANGELOG.md without its title."""
    return (ROOT / "CHANGELOG.md").read_text().partition("\n")[2]


def contributing() -> str:
    """CONTRIBUTING.md without its title, its links seen from docs/."""
    return (ROOT / "CONTRIBUTING.md").read_text().partition("\n")[2].replace("](docs/", "](")


def bounds() -> str:
    """The lower bounds of pyproject.toml beside the versions that the tests run with."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    pinned = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line)
    pinned = {name.lower(): version for name, version in pinned.items()}
    lines = ["| package | oldest stated | tests run with |", "| --- | --- | --- |"]
    extras = project["optional-dependencies"]
    for bound in [*project["dependencies"], *extras["experiments"], *extras["fast"], *extras["ax"]]:
        package, oldest = bound.split(">=")
        lines.append(f"| {package} | {oldest} | {pinned.get(package.lower(), '–')} |")
    return "\n".join(lines) + "\n"


def choices() -> str:
    """The five choices of every policy that is nothing else, read off the policies themselves."""
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
    """Values for those of the options that a policy requires."""
    given: dict[str, Any] = {name: EXAMPLES[name] for name in options if name in EXAMPLES}
    return given | ({"kernel": gpytorch.kernels.RBFKernel().double()} if "kernel" in options else {})


assert tb.__version__  # the package that is documented is the one beside this file
