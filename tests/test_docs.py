"""The documentation: every Python block runs, every command exists, every public name is in the reference and in the list."""

from __future__ import annotations

import importlib.util
import inspect
import json
import math
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import typer

from torchbandits.cli import app

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
PYTHON = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)
BASH = re.compile(r"^```bash\n(.*?)^```", re.DOTALL | re.MULTILINE)
FENCED = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
# Packages that the blocks of a page need, and that the development environment may lack.
NEEDED = {"plugins/optuna.md": ("optuna",), "plugins/baybe.md": ("baybe",)}
NEED_DATA = {"tutorials/nas_bench.md"}  # these pages read a data set that is not in the repository
WITH_CODE = [page for page in PAGES if PYTHON.search(page.read_text())]

# Each page runs in its own process, forked from a process that has only imported the libraries. This is equivalent to a fresh
# interpreter, without seconds of imports per page. Warnings are errors, except those about a deliberately wrong model.
SERVER = """
import contextlib, json, os, sys, traceback, warnings
import botorch.acquisition, botorch.fit, botorch.optim, gpytorch, matplotlib.pyplot, torch
import torchbandits.botorch
from torchbandits.errors import DiagnosticWarning

replies = os.dup(1)
for line in sys.stdin:
    job = json.loads(line)
    child = os.fork()
    if child == 0:
        os.chdir(job["folder"])
        torch.manual_seed(0)  # BoTorch's optimisers start where the global generator says
        status = 1
        with open("said.txt", "w") as said, contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            try:
                warnings.simplefilter("error")
                warnings.simplefilter("ignore", DiagnosticWarning)
                warnings.filterwarnings("ignore", category=DeprecationWarning, module=r"ax\\.")
                exec(compile(open("page.py").read(), "page.py", "exec"), {"__name__": "__main__"})
                status = 0
            except BaseException:
                traceback.print_exc()
        os._exit(status)
    os.write(replies, f"{os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}\\n".encode())
"""


def identify(page: Path) -> str:
    return str(page.relative_to(DOCS))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A function that runs the page in a folder: `server(folder)` returns its exit status."""
    errors = (tmp_path_factory.mktemp("server") / "errors.txt").open("w+")
    environment = os.environ | {"MPLBACKEND": "Agg", "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [sys.executable, "-c", SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment
    )
    assert process.stdin is not None
    assert process.stdout is not None

    def run(folder: Path) -> str:
        process.stdin.write(json.dumps({"folder": str(folder)}) + "\n")
        process.stdin.flush()
        answer = process.stdout.readline().strip()
        errors.seek(0)
        return answer or errors.read()

    yield run
    process.stdin.close()
    process.wait()
    process.stdout.close()
    errors.close()


# Exhaustive tests: tutorials, because their blocks also run as notebooks, and pages that take long.
LONG = {"outcomes.md", "outcomes/tradeoffs.md", "outcomes/fidelity.md", "tour.md", "reference/experiments.md"}
BY_TIER = [
    pytest.param(p, marks=pytest.mark.exhaustive) if p.parent.name == "tutorials" or identify(p) in LONG else p
    for p in WITH_CODE
]


@pytest.mark.sweep(2)
@pytest.mark.parametrize("page", BY_TIER, ids=identify)
def test_the_blocks_of_a_page_run_in_order(page: Path, server: Any, tmp_path: Path) -> None:
    for package in NEEDED.get(identify(page), ()):
        pytest.importorskip(package)
    if identify(page) in NEED_DATA and "TORCHBANDITS_DATA" not in os.environ:
        pytest.skip("TORCHBANDITS_DATA does not name the folder of the data sets")
    (tmp_path / "page.py").write_text("\n".join(PYTHON.findall(page.read_text())))
    status = server(tmp_path)
    said = (tmp_path / "said.txt").read_text() if (tmp_path / "said.txt").exists() else ""
    assert status == "0", said[-3000:] or status
    if page.name == "index.md" and page.parent == DOCS:  # the first page ends with a plot
        assert (tmp_path / "first_run.png").stat().st_size > 20_000
        # The lines that the page shows as printed output.
        printed = [line for line in said.splitlines() if "expected reward" in line or " pulls in " in line]
        assert len(printed) == 3, said
        assert all(line in page.read_text() for line in printed), said
    if page.name == "tour.md":  # the page that shows every feature
        assert len(PYTHON.findall(page.read_text())) >= 5
        assert "Recommendation" in said


def test_every_tutorial_has_code():
    tutorials = [page for page in (DOCS / "tutorials").glob("*.md") if page.name != "index.md"]
    assert len(tutorials) >= 6
    assert set(tutorials) <= set(WITH_CODE)


def commands() -> list[str]:
    """Calls of the command line in the pages, in code blocks and in running text."""
    found = []
    for page in [*PAGES, ROOT / "README.md"]:
        text = page.read_text()
        blocks = [line for block in BASH.findall(text) for line in block.splitlines()]
        lines = [
            *blocks,
            *re.findall(r"`(torchbandits [^`\n]+)`", text),
            *re.findall(r"^    (torchbandits .+)$", text, re.MULTILINE),
        ]
        found += [line.partition("#")[0].strip() for line in lines if line.startswith("torchbandits ")]
    return sorted(set(found))


@pytest.mark.sweep(9)
@pytest.mark.parametrize("line", commands())
def test_every_command_exists_with_its_options(line: str) -> None:
    command: Any = typer.main.get_command(app)
    words = [word for word in shlex.split(line)[1:] if word not in ("…", "|")]
    while words and hasattr(command, "commands"):
        assert words[0] in command.commands, f"torchbandits has no command {words[0]!r}"
        command = command.commands[words.pop(0)]
    options = {flag for parameter in command.params for flag in (*parameter.opts, *parameter.secondary_opts)} | {"--help"}
    unknown = [word for word in words if word.startswith("--") and word.partition("=")[0] not in options]
    assert not unknown, f"{line}: no option {unknown}"


def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_public_interface_is_the_one_on_the_list():
    """A deliberate change of the interface updates the list: `python scripts/public_api.py > tests/public_api.txt`."""
    api = load(ROOT / "scripts" / "public_api.py")
    listed = (ROOT / "tests" / "public_api.txt").read_text().splitlines()
    assert list(api.lines()) == listed


def test_every_public_name_is_in_the_reference_once():
    api = load(ROOT / "scripts" / "public_api.py")
    modules = {path: importlib.import_module(path) for path in api.MODULES}
    public = {f"{path}.{name}" for path, module in modules.items() for name in api.public_names(module)} - {
        "torchbandits.__version__"
    }
    shown = [name for page in PAGES for name in re.findall(r"^::: (\S+)$", page.read_text(), re.MULTILINE)]
    assert sorted(shown) == sorted(public)


def test_every_page_is_in_the_navigation():
    navigation = (ROOT / "mkdocs.yml").read_text().partition("\nnav:")[2]
    assert [identify(page) for page in PAGES if identify(page) not in navigation] == []


SOUGHT = {
    "pandas": {"tutorials/campaign.md", "faq.md", "practitioners.md"},
    "categorical": {"faq.md", "practitioners.md"},
    "gpu": {"gpu.md"},
    "resum": {"tutorials/crash.md", "tutorials/finite_arms.md", "faq.md"},
    "spreadsheet": {"campaign/index.md", "tutorials/eight_a_day.md"},
    "excel": {"campaign/index.md"},
    "crash": {"tutorials/crash.md"},
    "yaml": {"experiments.md"},
}


@pytest.mark.parametrize(("word", "pages"), SOUGHT.items(), ids=SOUGHT.keys())
def test_the_search_finds_the_page_of_a_word(word: str, pages: set[str]):
    """The site's search ranks a word in a heading far above one in a text, and short headings before long ones."""
    titles = [
        (len(heading.split()), identify(page))
        for page in PAGES
        if page.parent != DOCS / "reference"
        for heading in re.findall(
            r"^#+ (.+)$", re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE), re.M
        )
        if word in heading.casefold()
    ]
    assert titles, f"no heading has the word {word!r}"
    assert min(titles)[1] in pages


def documented(thing: Any) -> list[str]:
    """Names under `Args:` in the docstring of a function, method or class."""
    said = re.search(r"^ *Args:\n(.*?)(?=^ *\w[\w ]*:$|\Z)", inspect.cleandoc(thing.__doc__ or ""), re.DOTALL | re.MULTILINE)
    return [] if said is None else re.findall(r"^ {4}(\S[^:\n]*):", said[1], re.MULTILINE)


def test_docstrings_describe_one_parameter_a_line_and_only_those_that_exist():
    """Any other text under `Args:` is a warning of mkdocs, which fails the strict build of the site."""
    api = load(ROOT / "scripts" / "public_api.py")
    faults = []
    for path in api.MODULES:
        module = importlib.import_module(path)
        for name in api.public_names(module):
            thing = getattr(module, name)
            members = [m for k, m in vars(thing).items() if not k.startswith("_")] if inspect.isclass(thing) else []
            for one in [thing, *(member for member in members if inspect.isfunction(member))]:
                if callable(one) and (said := documented(one)):
                    known = set(inspect.signature(one).parameters)
                    faults += [f"{path}.{name}: {word}" for word in said if word.lstrip("*") not in known]
    assert faults == []


def test_a_phone_stacks_tables_of_words_and_scrolls_those_of_numbers(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    hooks = load(ROOT / "scripts" / "docs_hooks.py")
    rows = "<tr><th>policy</th><th></th><th>when <code>x</code></th></tr><tr><td>a</td><td>b</td><td>{}</td></tr>"
    words = hooks.labelled(f"<table>{rows.format('many words ' * 10)}</table>")
    assert words.startswith("<table data-words>")
    assert '<td data-label="policy">a</td><td>b</td><td data-label="when x">many' in words
    assert "\\" not in hooks.formula(r"x = \arg\max_x \mu(x) + \arg\min_i R_i", display=True)
    numbers = f"<table>{rows.format('0.5 ± 0.1')}</table>"
    assert hooks.labelled(numbers) == numbers
    assert hooks.on_page_content('<p><img alt="a" src="results/b.png"></p>') == (
        '<p><a href="results/b.png"><img alt="a" src="results/b.png"></a></p>'
    )


@pytest.mark.parametrize(("name", "least"), [("evidence", 8), ("measured", 8), ("methods", 4), ("papers", 7)])
def test_every_page_of_evidence_answers_a_question_of_its_index(name: str, least: int):
    """A page has a question as its title, its answer in words below it, and a row in the table of the index."""
    folder = DOCS / name
    rows = [line for line in (folder / "index.md").read_text().splitlines() if line.startswith("| ")]
    pages = [page for page in folder.glob("*.md") if page.name != "index.md"]
    assert len(pages) >= least
    for page in pages:
        title, empty, answer = page.read_text().splitlines()[:3]
        assert title.endswith("?"), f"{page.name} begins with no question"
        assert not empty
        assert re.match(r"(\*\*)?[A-Z]", answer), f"{page.name} does not begin with its answer"
        assert any(f"]({page.name}" in row for row in rows), f"the index does not link {page.name}"


@pytest.mark.parametrize("name", ["changelog", "contributing"])
def test_an_included_file_links_to_pages_that_exist(name: str, monkeypatch: pytest.MonkeyPatch):
    """The links of CHANGELOG.md began with docs/ on its page too. `mkdocs build --strict --quiet` does not see such faults."""
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    hooks = load(ROOT / "scripts" / "docs_hooks.py")
    linked = re.findall(r"\]\(([^)#:]+\.md)(?:#[^)]*)?\)", hooks.part(name))
    assert linked
    assert [link for link in linked if not (DOCS / link).exists()] == []


@pytest.mark.parametrize("page", sorted((DOCS / "reference").glob("*.md")), ids=identify)
def test_every_public_name_has_an_example_on_its_page(page: Path):
    text = page.read_text()
    code = "\n".join([*PYTHON.findall(text), *re.findall(r"^    (.+)$", re.sub(FENCED, "", text), re.MULTILINE)])
    names = [name.rpartition(".")[2] for name in re.findall(r"^::: (\S+)$", text, re.MULTILINE)]
    assert [name for name in names if not re.search(rf"\b{name}\b", code)] == []


def test_an_example_of_an_ingredient_stands_below_its_name():
    """The last example of each section stood below the heading of the next one."""
    page = (DOCS / "reference" / "ingredients.md").read_text()
    for part in page.split("\n::: torchbandits.ingredients.")[1:]:
        before, found, code = part.partition("```python\n")
        name = part.split(maxsplit=1)[0]
        assert found, f"{name} has no example"
        assert "## " not in before, f"the example of {name} is in another section"
        assert re.search(rf"\b{name}\b", code.partition("```")[0]), f"the example below {name} is of something else"


def test_the_example_of_a_threshold_drops_a_pull():
    """At its λ of 0.01 the former example, −1, was below the entropy ½ log(2πeλ) of every reward."""
    page = (DOCS / "reference" / "ingredients.md").read_text()
    threshold = float(re.findall(r"EntropyThreshold\((.*?)\)", page)[0])
    lam = float(re.findall(r'"regularization": ([\d.]+)', page)[0])
    assert threshold > 0.5 * math.log(2 * math.pi * math.e * lam)
