"""Hostile input: contents of files, names and arguments never reach the terminal raw, exhaust memory or show a traceback."""

from __future__ import annotations

import copy
import io
import json
import os
import re
import sqlite3
import zlib
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
import yaml
from problems import COMMON, generator, rbf
from typer.testing import CliRunner

import torchbandits as tb
from torchbandits import errors
from torchbandits.checks import read_bytes
from torchbandits.cli import app
from torchbandits.experiments import ExperimentConfig, ReproductionConfig, load_config, runner
from torchbandits.experiments.judging import Summary
from torchbandits.experiments.kernels import KernelConfig
from torchbandits.experiments.printable import literal, one_line, printable, shortened
from torchbandits.experiments.reproducing import draw_reproduction
from torchbandits.files import DEEPEST, LARGEST_FILE, read_yaml
from torchbandits.journal import Reading

RUNNER = CliRunner()
ARMS = torch.rand(40, 2, dtype=torch.float64, generator=generator(0))
MEANS = torch.sin(5 * ARMS[:, 0])
LABEL = "[red]é\x1b[31m\u202e$\\frac{$<script>alert(1)</script>|\x07\x85"
SMALL = {
    "name": "small",
    "environment": {"name": "rkhs", "options": {"dim": 1, "points_per_dim": 20, "noise_std": 0.5}},
    "kernel": {"name": "matern", "nu": 1.5, "lengthscale": 0.2},
    "horizon": 5,
    "policies": [{"name": "uniform"}, {"name": "uniform", "label": LABEL}],
}


def safe(text: str) -> bool:
    """Whether a terminal shows the text unchanged."""
    return all(char.isprintable() or char == "\n" for char in text)


def refused(*arguments: str) -> str:
    """Run, and expect exit code 2 and one line that a terminal shows unchanged; return the line."""
    result = RUNNER.invoke(app, list(arguments))
    assert isinstance(result.exception, SystemExit), repr(result.exception)
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert result.stderr.endswith("\n")
    line = result.stderr[:-1]
    assert safe(line)
    assert "\n" not in line
    assert len(line) <= 500
    return line


def write(folder: Path, **changes: object) -> Path:
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(SMALL | {"output": str(folder / "results")} | changes))
    return path


# ---------------------------------------------------------------------- text


def test_control_characters_are_escaped_and_nothing_else():
    characters = "".join(
        map(chr, [*range(32), *range(127, 160), *range(0x202A, 0x202F), *range(0x2066, 0x206A), 0x2028, 0xDC80])
    )
    assert safe(printable(characters))
    assert printable(characters).isascii()
    assert "\n" not in printable(characters)
    plain = "Ünïcode 漢字 😀 [red] $x$ \\ σ ≤ 5"
    assert printable(plain) == plain
    assert printable("\x1b[31m\u202e") == r"\x1b[31m\u202e"


def test_an_error_is_one_short_line():
    line = one_line(f"first\n\tsecond {'n' * 5000} what to do")
    assert line.startswith("first second nnn")
    assert line.endswith("nnn what to do")
    assert len(line) == 450
    assert shortened("n" * 450, 450) == "n" * 450


def test_text_in_pictures_is_literal():
    assert literal("$a$ and $b") == r"\$a\$ and \$b"
    assert literal("_private") == " _private"
    assert len(literal("n" * 5000)) == 60


# ---------------------------------------------------------------------- labels and names


def test_a_hostile_label_is_shown_literally_everywhere(tmp_path: Path):
    """In the terminal, with and without progress; in the figures, where it is not read as mathematics; in the table; on the
    page."""
    assert not safe(LABEL)
    done = RUNNER.invoke(app, ["run", str(write(tmp_path))], env={"COLUMNS": "300"})
    assert done.exit_code == 0, done.output
    assert safe(done.stdout)
    assert safe(done.stderr)
    assert printable(LABEL) in done.stderr
    assert "[red]" in done.stdout
    out = tmp_path / "results"
    assert (out / "mean_regret.png").stat().st_size > 5_000
    lines = (out / "table.md").read_text(encoding="utf-8").splitlines()
    assert len({len(re.findall(r"(?<!\\)\|", line)) for line in lines[2:]}) == 1, "a bar of the label made a cell"
    page = RUNNER.invoke(app, ["report", str(out)])
    assert page.exit_code == 0, page.output
    text = (out / "report.html").read_text(encoding="utf-8")
    assert safe(text)
    assert "<script" not in text
    assert "&lt;script&gt;" in text


def test_a_hostile_title_and_label_can_be_drawn_as_a_reproduction():
    known = ReproductionConfig.model_validate(
        {
            "name": "hostile",
            "title": LABEL,
            "source": "nowhere",
            "experiments": {"a": SMALL},
            "panels": [[{"experiment": "a", "measure": "regret", "title": LABEL}]],
        }
    )
    table = pd.DataFrame(
        {"experiment": "a", "policy": [LABEL] * 2, "measure": "regret", "x": [1.0, 2.0], "mean": [1.0, 2.0], "low": np.nan}
        | {"high": np.nan, "repetitions": 1}
    )
    figure = draw_reproduction(known, Summary(table, {"quick": False}))
    figure.savefig(io.BytesIO())
    assert figure.legends[0].get_texts()[0].get_text() == literal(LABEL)


@pytest.mark.sweep(5)
@pytest.mark.parametrize("name", ["../../outside", "..", ".", "", "/etc/x", "a/b", "a\\b", "C:x", "x\x1b[31m", "n" * 5000])
def test_a_name_stays_inside_the_output_folder(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    path = write(tmp_path, name=name, output="")
    assert "name: a name is one folder name" in refused("run", str(path))
    figure = {"title": "t", "source": "s", "panels": [[{"experiment": name, "measure": "regret"}]]}
    path.write_text(yaml.safe_dump(figure | {"experiments": {name: {k: v for k, v in SMALL.items() if k != "name"}}}))
    assert "one folder name" in refused("reproduce", str(path))
    base = {"arms": 10, "dictionary": 2, "pulls": 5}
    path.write_text(yaml.safe_dump({"name": name, "base": base, "arms": [10], "dictionary": [2], "pulls": [5]}))
    assert "one folder name" in refused("bench", str(path))
    assert [file.name for file in tmp_path.iterdir()] == ["config.yaml"]


def test_a_section_made_in_python_raises_the_error_of_the_package():
    with pytest.raises(errors.ConfigError, match=r"ExperimentConfig: .*horizn: unknown key. Did you mean 'horizon'[?]$"):
        ExperimentConfig(**SMALL, horizn=3)
    for word, meant in {"seeds": "repetitions", "num_rounds": "horizon", "random_seed": "seed"}.items():
        with pytest.raises(errors.ConfigError, match=rf"{word}: unknown key. Did you mean '{meant}'[?]$"):
            ExperimentConfig(**SMALL, **{word: 3})
    with pytest.raises(errors.ConfigError, match=r"KernelConfig: name: .*Did you mean 'rbf'"):
        KernelConfig(name="rbv")


# ---------------------------------------------------------------------- configurations

LAUGH = "a0: &a0 [lol, lol, lol, lol, lol]\n" + "".join(
    f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 12)
)
MERGED = "a0: &a0 {x: 1}\n" + "".join(f"a{i}: &a{i} {{<<: [{', '.join([f'*a{i - 1}'] * 10)}]}}\n" for i in range(1, 12))
NOT_YAML = {
    "aliases": (LAUGH, "aliases written out"),
    "merges": (MERGED, "aliases written out"),
    "long aliases": (f"a: &a {'x' * 10_000}\nb: [{', '.join(['*a'] * 100)}]", "aliases written out"),
    "an alias of itself": ("a: &a [*a]", "an alias within its own anchor"),
    "nesting": (f"a: {'[' * 5000}", "nested more than"),
    "nesting that ends": (f"a: {'[' * (DEEPEST + 1)}{']' * (DEEPEST + 1)}", "nested more than"),
    "size": ("a: " + "x" * LARGEST_FILE, "too large"),
    "not UTF-8": (b"a: \xff", "not UTF-8"),
    "a surrogate": ('a: "\\ud800"', "not UTF-8"),
    "a zero byte": (b"a: \x00", "not YAML"),
    "an escape": (b"a: \x1b[31m", "not YAML"),
    "a long number": ("a: " + "9" * 5000, "can't be read"),
    "a date": ("a: 2001-99-99", "can't be read"),
    "an empty integer": ("a: !!int ''", "can't be read"),
    "a bad boolean": ("a: !!bool x", "can't be read"),
    "a bad time": ("a: !!timestamp x", "can't be read"),
    "an object": ("a: !!python/object/apply:os.system [ls]", "not YAML"),
    "a key of a list": ("? [1, 2]\n: 3", "unhashable"),
    "twice": ("a: 1\na: 2", "given twice"),
    "empty": ("", "expected a mapping"),
    "a list": ("[1]", "expected a mapping"),
}


@pytest.mark.sweep(3)
@pytest.mark.parametrize("content", NOT_YAML)
def test_a_file_that_is_no_configuration_is_refused(content: str, tmp_path: Path):
    text, words = NOT_YAML[content]
    path = tmp_path / "config.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    for command in ("run", "reproduce", "bench"):
        assert words in refused(command, str(path))


def test_aliases_within_the_bounds_are_read(tmp_path: Path):
    path = tmp_path / "config.yaml"
    path.write_text(f"a: &a {{x: 1}}\nb: {{<<: *a, y: 2}}\nc: {'[' * 40}*a{']' * 40}")
    values = read_yaml(path)
    assert values["b"] == {"x": 1, "y": 2}


@pytest.mark.parametrize(
    "changes",
    [
        *({"horizon": 10**30}, {"repetitions": 10**9}, {"seed": 10**30}, {"history": 10**12}, {"threads": 10**6}),
        *({"horizon": LABEL}, {"policies": [{"name": "n" * 5000}]}, {"policies": [{"name": "uniform", "label": "n" * 5000}]}),
        *({LABEL: 1}, {"policies": [{"name": LABEL}]}, {"environment": {"name": LABEL}}, {"environment": {"name": "n" * 5000}}),
        {"policies": [{"name": "gp_ucb", "options": {"noise_std": 10**400}}]},
        {"policies": [{"name": f"p{place}"} for place in range(50)], "horizon": None},
        {"environment": {"name": "abalone", "options": {LABEL: 1}}},
    ],
    ids=lambda changes: printable(str(changes))[:40],
)
def test_a_hostile_value_is_refused_in_one_line(changes: dict, tmp_path: Path):
    refused("run", str(write(tmp_path, **changes)))
    assert not (tmp_path / "results").exists()


def test_memory_that_runs_out_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for error in (MemoryError("1 PiB"), RuntimeError("[enforce fail] DefaultCPUAllocator: not enough memory: you tried 1 PiB")):

        def fail(*arguments: object, error: Exception = error) -> None:
            raise error

        monkeypatch.setattr(runner, "Environments", fail)
        assert "1 PiB" in refused("run", str(write(tmp_path)))


# ---------------------------------------------------------------------- every command with every kind of path


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Paths that no command can use."""
    folder = tmp_path_factory.mktemp("paths")
    known = {"missing": folder / "nowhere.yaml", "folder": folder / "folder.yaml", "empty folder": folder / "folder"}
    known |= {"endless": Path("/dev/zero"), "full": Path("/dev/full"), "long": Path("n" * 5000 + ".yaml")}
    known |= {"zero byte": Path("a\0.yaml"), "surrogate": Path("\udcff.yaml"), "escape": Path("\x1b[31m\u202e.yaml")}
    known |= {"fifo": folder / "fifo.yaml", "text": folder / "text.yaml", "markup": Path("[red]x[/red].yaml")}
    known |= {"escape here": folder / "\x1b[31m.yaml", "inside a file": folder / "text.yaml" / "x.yaml"}
    for name in ("folder", "empty folder"):
        known[name].mkdir()
    os.mkfifo(known["fifo"])
    for name in ("text", "escape here"):
        known[name].write_text(f"hello: {name}\n\x1b[31m")
    broken = folder / "broken"
    broken.mkdir()
    for name in ("pulls.parquet", "batches.parquet"):
        (broken / name).write_bytes(b"PAR1" + bytes(100) + b"PAR1")
    return {name: str(path) for name, path in (known | {"broken parquet": broken}).items()}


KINDS = [
    *("missing", "folder", "empty folder", "endless", "full", "long", "zero byte", "surrogate", "escape", "fifo", "text"),
    *("markup", "escape here", "inside a file", "broken parquet"),
]
COMMANDS = (["run"], ["reproduce"], ["bench"], ["plot"], ["report"], ["watch"], ["watch", "--once"])


@pytest.mark.sweep(2)
@pytest.mark.parametrize("kind", KINDS)
def test_a_path_that_cannot_be_used_is_one_line(kind: str, paths: dict[str, str]):
    for command in COMMANDS:
        refused(*command, paths[kind])


@pytest.mark.parametrize(
    "arguments",
    [
        *(["policies"], ["data", "fetch"], ["data", "describe"], ["run"], ["reproduce"], ["no-such"], ["run", "--horizon"]),
        *(["run", "quickstart", "--repetitions"], ["run", "quickstart", "--workers"], ["watch", "x", "--every"], ["data"]),
        *(["watch", "x", "--row"], ["run", "--unknown"], ["run", "quickstart"], []),
    ],
    ids=" ".join,
)
@pytest.mark.parametrize(
    "text", [LABEL, "n" * 5000, f"--{LABEL}", "--" + "n" * 5000], ids=["label", "long", "option", "long option"]
)
def test_an_argument_that_means_nothing_is_one_line(arguments: list[str], text: str):
    refused(*arguments, text)


@pytest.mark.parametrize(
    "arguments",
    [
        *(["run", "quickstart", "--horizon", "0"], ["run", "quickstart", "--horizon", str(10**30)], ["run"], ["watch"]),
        *(["run", "quickstart", "--repetitions", "-1"], ["run", "quickstart", "--workers", "0"], ["reproduce", "--all", "x"]),
        *(["watch", "x", "--every", "nan"], ["watch", "x", "--every", "1e300"], ["watch", "x", "--every", "0"]),
        *(["watch", "x", "--row", "-1"], ["report"], ["plot"], ["bench"], ["data", "fetch"], ["reproduce", "--workers"]),
    ],
    ids=" ".join,
)
def test_a_wrong_option_is_one_line(arguments: list[str]):
    refused(*arguments)


def test_only_regular_files_of_a_bounded_size_are_read(tmp_path: Path):
    path = tmp_path / "file"
    path.write_bytes(b"12345")
    assert read_bytes(path, 5) == b"12345"
    with pytest.raises(errors.DataError, match="too large: at most 4 bytes"):
        read_bytes(path, 4)
    with open(path, "wb") as file:
        file.truncate(1 << 40)  # a hole of a tebibyte
    with pytest.raises(errors.ConfigError, match="too large"):
        load_config(path)


# ---------------------------------------------------------------------- journals, stores and records


def records_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(text[9:]) for text in path.read_bytes().splitlines()]


def written(path: Path, records: list[dict[str, Any]]) -> Path:
    """A journal of these records."""
    crc, lines = 0, []
    for record in records:
        text = json.dumps(record, separators=(",", ":")).encode()
        crc = zlib.crc32(text, crc)
        lines.append(b"%08x %s\n" % (crc, text))
    path.write_bytes(b"".join(lines))
    return path


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The journal of a run of two batch rows, whose environment has a hostile name."""
    path = tmp_path_factory.mktemp("played") / "run.journal"
    environment = tb.environments.Table(ARMS, MEANS, noise_std=0.3, name=LABEL)
    policy = tb.gp_bucb(rbf(), **COMMON, max_batch_size=3)
    tb.run(policy, environment, 6, generator=[generator(1), generator(2)], journal=tb.Journal(path, durable=False))
    return path


def test_a_hostile_journal_reaches_neither_terminal_nor_page(played: Path, tmp_path: Path):
    path = tmp_path / f"{LABEL.replace('/', '')}.journal"
    path.write_bytes(played.read_bytes())
    for command in (["watch", "--once"], ["watch"], ["report"]):
        result = RUNNER.invoke(app, [*command, str(path)])
        assert result.exit_code == 0, result.output
        assert safe(result.output)
    page = path.with_name(f"{path.name}.html").read_text(encoding="utf-8")
    assert safe(page)
    assert "<script" not in page


LAST = {
    "more picks than rewards": {"index": [[1, 2], [3, 4]]},
    "ragged rewards": {"rewards": [[1.0], [2.0, 3.0]]},
    "rewards as text": {"rewards": [["a"], ["b"]]},
    "an infinite reward": {"rewards": [[float("inf")], [1.0]], "index": [[1], [2]]},
    "no report": {"report": {}},
    "no best arm": {"best": [float("nan"), 1]},
    "a time beyond the calendar": {"at": 1e300},
    "a time that is text": {"at": "now"},
    "a packed tensor of a terabyte": {"rewards": {"dtype": "float64", "shape": [2, 10**12], "bytes": "AAAA"}},
    "a regret of another shape": {"regret": [[1.0] * 9] * 2},
}


@pytest.mark.sweep(5)
@pytest.mark.parametrize("damage", LAST)
def test_a_tell_that_does_not_fit_is_one_line(damage: str, played: Path, tmp_path: Path):
    records = records_of(played)
    path = written(tmp_path / "run.journal", [*records[:-1], records[-1] | LAST[damage]])
    for command in (["watch", "--once"], ["watch"], ["report"]):
        assert "line" in refused(*command, str(path))


@pytest.mark.parametrize(
    "seeds", [{"rounds": 0}, {"rounds": "x"}, {"rounds": 1e9}, {"told": [[1], [2, 3]]}, {"rounds": 10**400}], ids=str
)
def test_a_run_of_no_length_is_one_line(seeds: dict, played: Path, tmp_path: Path):
    records = [record | seeds if record["kind"] == "seeds" else record for record in records_of(played)]
    path = written(tmp_path / "run.journal", records)
    for command in (["watch", "--once"], ["report"]):
        refused(*command, str(path))


@pytest.mark.exhaustive
def test_an_arm_that_is_not_there_is_shown_and_not_learned(tmp_path: Path):
    """Read-only views have no arms to compare with. A bandit that resumes refuses the arm, in any record."""
    path, policy = tmp_path / "run.journal", tb.gp_ucb(rbf(), **COMMON)
    environment = tb.environments.Table(ARMS, MEANS, noise_std=0.3, name="hills")
    tb.run(policy, environment, 4, generator=generator(1), journal=tb.Journal(path, durable=False))
    records = records_of(path)
    for kind in ("ask", "tell"):
        place = max(k for k, record in enumerate(records) if record["kind"] == kind)
        other = records[place] | {"index": [999]}
        damaged = written(tmp_path / f"{kind}.journal", [*records[:place], other, *records[place + 1 :]])
        result = RUNNER.invoke(app, ["watch", "--once", str(damaged)])
        assert result.exit_code == 0, result.output
        warned = pytest.warns(errors.JournalWarning) if kind == "ask" else nullcontext()
        with warned, pytest.raises(errors.DataError, match=f"{kind}' can't be repeated: .*999"):
            tb.Bandit(policy, ARMS, generator=generator(1), journal=damaged)
    result = RUNNER.invoke(app, ["report", str(damaged)])
    assert result.exit_code == 0, result.output


def test_a_store_without_its_run_is_one_line(tmp_path: Path):
    path = tmp_path / "run.db"
    worker = tb.Worker(tb.gp_ucb(rbf(), **COMMON), ARMS, store=path)
    worker.tell(worker.ask(), 0.5)
    Reading(path)
    with sqlite3.connect(path) as database:
        database.execute("UPDATE events SET content = '[1]'")
    for command in (["watch", "--once"], ["watch"], ["report"]):
        refused(*command, str(path))
    with sqlite3.connect(path) as database:
        database.execute("DELETE FROM run")
    for command in (["watch", "--once"], ["watch"], ["report"]):
        assert "run.db" in refused(*command, str(path))


def rewritten(folder: Path, **changes: Any) -> None:
    """Change columns, or the metadata, of a history on disk."""
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    for name in ("pulls.parquet", "batches.parquet"):
        table = parquet.read_table(folder / name)
        header = json.loads(table.schema.metadata[b"torchbandits"]) | changes.get("header", {})
        for column, value in changes.items():
            if column in table.column_names:
                table = table.set_column(table.column_names.index(column), column, pyarrow.array([value] * table.num_rows))
        parquet.write_table(table.replace_schema_metadata({b"torchbandits": json.dumps(header)}), folder / name)


@pytest.mark.parametrize(
    "changes",
    [
        *({"header": {"batch_size": 10**12}}, {"header": {"batch_size": "x"}}, {"header": {"metadata": [1]}}),
        *({"row": -1}, {"row": 10**12}, {"arm": "x"}, {"reward": LABEL}, {"arm": 0.5}),
    ],
    ids=lambda changes: printable(str(changes))[:40],
)
def test_a_history_that_cannot_be_is_one_line(changes: dict, tmp_path: Path):
    environment = tb.environments.Table(ARMS, MEANS, noise_std=0.3)
    history = tb.run(tb.uniform(), environment, 4, generator=generator(1))
    folder = tmp_path / "history"
    history.to_parquet(folder)
    assert tb.History.from_parquet(folder) == history
    rewritten(folder, **changes)
    assert str(folder) in refused("report", str(folder))


def test_a_cut_generator_state_is_refused_and_changes_nothing():
    bandit = tb.Bandit(tb.gp_ucb(rbf(), **COMMON), ARMS, generator=generator(0))
    bandit.tell(bandit.ask(), torch.tensor([1.0], dtype=torch.float64))
    before = copy.deepcopy(bandit.state_dict())
    whole = before["state"]["_extra_state"]["generators"]
    for wrong in (whole[:, :100], whole[:0], whole.repeat(2, 1), whole.double(), torch.full_like(whole, 255), None):
        damaged = copy.deepcopy(before)
        damaged["state"]["_extra_state"]["generators"] = wrong
        with pytest.raises(errors.StateError, match="generator"):
            bandit.load_state_dict(damaged)
        assert torch.equal(bandit.state_dict()["state"]["_extra_state"]["generators"], whole)


# ---------------------------------------------------------------------- Ctrl-C


def test_ctrl_c_says_what_is_kept_and_resume_runs_the_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path, kept, play = write(tmp_path, repetitions=2), [], runner.play

    def interrupted(*arguments: Any) -> list[Any]:
        if len(kept) == 3:
            raise KeyboardInterrupt
        kept.append(play(*arguments))
        return kept[-1]

    monkeypatch.setattr(runner, "play", interrupted)
    result = RUNNER.invoke(app, ["run", str(path), "--quiet"])
    assert result.exit_code == 130
    assert len(result.stderr.splitlines()) == 1
    assert f"kept in {tmp_path / 'results' / 'records'}" in result.stderr
    assert "--resume" in result.stderr
    kept.pop()  # only the last run is missing
    result = RUNNER.invoke(app, ["run", str(path), "--quiet", "--resume"])
    assert result.exit_code == 0, result.output
    assert len(kept) == 3


def test_ctrl_c_elsewhere_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def interrupt(*arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("torchbandits.experiments.page.write_page", interrupt)
    result = RUNNER.invoke(app, ["report", str(tmp_path)])
    assert (result.exit_code, result.stdout) == (130, "")
    assert result.stderr == "torchbandits: interrupted: every file that was written is whole.\n"


def test_ctrl_c_in_a_script_says_what_the_journal_keeps(tmp_path: Path):
    path, policy = tmp_path / "run.journal", tb.gp_ucb(rbf(), **COMMON)
    environment = tb.environments.Table(ARMS, MEANS, noise_std=0.3)

    def interrupt(bandit: tb.Bandit, *arguments: object) -> None:
        if int(bandit.pulls) == 3:
            raise KeyboardInterrupt

    with pytest.raises(
        KeyboardInterrupt, match=r"stopped after 3 pulls.*run.journal: the same call resumes from there"
    ) as caught:
        tb.run(policy, environment, 6, generator=generator(1), journal=path, callbacks=[interrupt])
    assert caught.value.__suppress_context__
    del caught
    whole = tb.run(policy, environment, 6, generator=generator(1))
    again = tb.run(policy, environment, 6, generator=generator(1), journal=path)
    assert again.pulls["arm"].tolist() == whole.pulls["arm"].tolist()
    with pytest.raises(KeyboardInterrupt) as caught:
        tb.run(policy, environment, 6, generator=generator(1), callbacks=[interrupt])
    assert not caught.value.args
