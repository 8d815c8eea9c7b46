"""One HTML page about a run or an experiment: figures, tables and facts in a single file without external resources."""

from __future__ import annotations

import base64
import io
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from html import escape as escaped_html
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from torchbandits.errors import DataError, require
from torchbandits.experiments.measures import Measure, Times, Values, baseline_regret, measures
from torchbandits.experiments.printable import printable
from torchbandits.experiments.records import CONFIG, Record, load_records, of_place, output_folder
from torchbandits.experiments.results import Printed, aggregate, draw_headline, draw_labels, headline, printed
from torchbandits.experiments.rounded import number
from torchbandits.experiments.trade_offs import figures_of_run
from torchbandits.experiments.watching import best_arms, outcomes_of
from torchbandits.files import write_atomically, write_text
from torchbandits.history import History
from torchbandits.journal import Reading, in_words

BEST = 5
"""Number of best arms shown for each policy."""
REGRETS = ("regret_ratio", "mean_regret", "simple_regret")
FIGURES = (*REGRETS, "best_reward", "mean_reward", "batch_size", "dictionary_size", "distinct_arms", "seconds")
WORDS = {
    "regret_ratio": "regret so far, over that of random picks",
    "mean_regret": "mean regret of the evaluations so far (reward units)",
    "simple_regret": "regret of the recommended arm (reward units)",
    "best_reward": "largest reward so far (reward units)",
    "mean_reward": "mean reward so far (reward units)",
    "batch_size": "evaluations in a batch",
    "dictionary_size": "points that the model keeps",
    "distinct_arms": "different arms evaluated",
}
"""Axis labels in words."""

NUMBER = re.compile(r"–|nan|[-+−]?[\d.,]*(e[-+]?\d+)?( (±|…) [-+−]?[\d.,]+(e[-+]?\d+)?)?")
"""A cell of a column of numbers: a number, a number with its error, an interval, or nothing."""

STYLE = """
:root { color-scheme: light; }
* { box-sizing: border-box; }
body { font: 15px/1.5 system-ui, sans-serif; color: #222; background: #fff; }
body { max-width: 1200px; margin: 2em auto; padding: 0 min(1.5em, 4vw); overflow-wrap: break-word; }
h1 { font-size: 1.5em; margin-bottom: 0.2em; } h2 { font-size: 1.15em; margin-top: 2em; }
h3 { font-size: 1em; margin-bottom: 0.3em; }
p.facts { color: #555; margin-top: 0; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: 0.25em 0.8em; border-bottom: 1px solid #ddd; text-align: left; white-space: nowrap; }
th:first-child, td:first-child { padding-left: 0; }
.number { text-align: right; }
.figures { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 520px), 1fr)); gap: 1.5em; }
img { max-width: 100%; height: auto; }
.figures img { width: 100%; }
.tables > div { overflow-x: auto; }
.tables th { white-space: normal; vertical-align: bottom; }
.tables { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 360px), 1fr)); gap: 0 2em; }
pre { background: #f6f6f6; padding: 1em; overflow-x: auto; }
.facing td { white-space: normal; } .facing .number { text-align: left; } .facing td:first-child { color: #555; }
@page { margin: 15mm; }
@media print {
  body { max-width: none; margin: 0; padding: 0; font-size: 10pt; }
  .figures { grid-template-columns: 1fr 1fr; }
  .wide, .tables > div { overflow: visible; font-size: 8pt; }
  th, td { white-space: normal; padding: 0.2em 0.4em; } th { overflow-wrap: anywhere; }
  h2, h3 { break-after: avoid; } img, tr, details { break-inside: avoid; }
}
"""


@dataclass(frozen=True)
class Page:
    """Content of a page.

    Attributes:
        title: Title of the page.
        facts: One line below the title.
        labels: Labels of the policies, which `Record.place` counts.
        records: The runs.
        headers: Column headers of the table of policies.
        lines: Rows of that table.
        baseline: Cumulative regret of the uniform policy by seed, reward units; empty if there is none.
        config: The resolved configuration as text; empty if there is none.
        clock: Description of what the seconds measure.
        moved: Number of pulls of the first repetition before the arms last changed; 0 if they never did.
        fronts: Figures of several objectives, with their descriptions.
        small: The labels of outcomes to be minimised.
        said: The result in one sentence, for readers who do not know regret; empty if there is none.
        compared: The differences between policies; empty if there are none.
    """

    title: str
    facts: str
    labels: tuple[str, ...]
    records: tuple[Record, ...]
    headers: tuple[str, ...]
    lines: tuple[tuple[str, ...], ...]
    baseline: dict[int, Values]
    config: str = ""
    clock: str = "policy time"
    moved: int = 0
    fronts: tuple[tuple[str, Figure], ...] = ()
    small: frozenset[str] = frozenset()
    said: str = ""
    compared: tuple[Printed, ...] = ()


def write_page(source: Path, output: Path | None = None) -> Path:
    """Write the page of an experiment's output folder, of a folder that `History.to_parquet` wrote, or of a journal.

    Args:
        source: The folder; or a journal, or a store of workers, which may be in use.
        output: The file; by default `report.html` in the folder, or `SOURCE.html` beside the journal.

    Returns:
        The file written.

    Raises:
        DataError: If the source is none of these or holds no reward yet, or the file can't be written.
        ConfigError: If the experiment's configuration can't be read.
    """
    require(
        os.path.exists(source),
        f"{source} does not exist: give an experiment's output, what History.to_parquet wrote, or a journal.",
        DataError,
    )
    if not os.path.isdir(source):
        path = source.with_name(f"{source.name}.html") if output is None else output
        write_text(path, html(page_of_journal(Reading(source))))
        return path
    config = os.path.isfile(output_folder(source) / CONFIG)
    message = f"{source} holds neither an experiment's output ({CONFIG}) nor what History.to_parquet wrote (pulls.parquet)."
    require(config or os.path.exists(source / "pulls.parquet"), message, DataError)
    page = page_of_experiment(source) if config else page_of_history(History.from_parquet(source), source.resolve().name)
    path = output if output is not None else source / "report.html"
    write_text(path, html(page))
    return path


def write_fronts(source: Path) -> list[Path]:
    """Write the figures of several objectives of a run as PNG files: of a folder that `History.to_parquet` wrote, into it; of a
    journal, beside it.

    Raises:
        DataError: If the source is neither, or its run has no two objectives, each measured of every pick.
    """
    require(os.path.exists(source), f"{source} does not exist: give what History.to_parquet wrote, or a journal.", DataError)
    if os.path.isdir(source):
        history, start = History.from_parquet(source), source
    else:
        reading = Reading(source)
        history, start = reading.history, source.parent
        history.metadata |= outcomes_of(reading.about)
    figures = figures_of_run(history)
    message = f"{source} has no trade-offs to show: they need two objectives, each measured for every pick."
    require(bool(figures), message, DataError)
    prefix = "front" if os.path.isdir(source) else f"{source.name}.front"
    paths = [start / f"{prefix}-{place}.png" for place in range(1, len(figures) + 1)]
    for path, (_, figure) in zip(paths, figures, strict=True):
        write_atomically(path, partial(figure.savefig, format="png", dpi=150))
    return paths


def page_of_experiment(folder: Path) -> Page:
    """Page of an experiment, from its records."""
    config, records = load_records(folder)
    whole, *compared = printed(config, aggregate(config, records))
    facts = f"{config.environment.name}; {whole.caption}"
    labels = tuple(policy.label for policy in config.policies)
    baseline = baseline_regret(config, records)
    page = Page(config.name, facts, labels, tuple(records), whole.headers, whole.lines, baseline, config.dump())
    page = replace(page, compared=tuple(compared))
    said = headline(config, records) if config.headline else None
    return page if said is None else replace(page, said=said, fronts=((said, draw_headline(config, records)),))


def page_of_journal(reading: Reading) -> Page:
    """Page of a run with a journal, finished or not."""
    history = reading.history
    history.metadata |= outcomes_of(reading.about)
    require(len(history) > 0, f"{reading.path} holds no reward yet: there is nothing to show.", DataError)
    page = page_of_history(history, reading.path.name, share=1.0)
    tells, lost = len(np.unique(history.batches["batch"])), int(reading.forgotten.sum())
    facts = [in_words(reading.about), *([f"environment {reading.environment}"] if reading.environment else [])]
    facts += [f"up to {moment(reading.last)}"] if np.isfinite(reading.last) else []
    facts += [f"{len(reading.asked):,} asks and {tells:,} tells: a batch below is what was told at once"]
    facts += [f"{lost:,} picks forgotten"] if lost else []
    facts += [f"{int(reading.observed.sum()):,} pulls of earlier data"] if reading.observed.any() else []
    labels = page.labels if len(page.labels) > 1 else (reading.path.name,)
    return replace(page, facts=", ".join(facts), labels=labels, clock="time passed", moved=int(reading.moved[0]))


def moment(seconds: float) -> str:
    """A time since 1970 as date and time of day, UTC."""
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S} UTC"


def page_of_history(history: History, name: str, share: float | None = None) -> Page:
    """Page of one run. Its batch rows count as repetitions; each is charged a share of the seconds, by default an equal one."""
    rows = range(history.batch_size)
    names = [str(one) for one in history.metadata.get("outcomes", [])]
    label = str(history.metadata.get("label", history.metadata.get("policy", "run")))
    labels = tuple(names) or (label,)
    share = 1 / history.batch_size if share is None else share
    # Each outcome has separate rows, and is shown like a policy.
    places = [(row % len(labels), row // len(labels)) for row in rows]
    alone = [history.row(row, seconds_share=share) for row in rows]
    records = tuple(Record(place, labels[place], seed, one) for (place, seed), one in zip(places, alone, strict=True))
    headers = ("row", "pulls", "batches", "distinct arms", "dictionary size", "regret", "simple regret", "seconds")
    lines = []
    for record in records:
        summary = record.history.summary()
        whole = [
            f"{summary[key]:,.0f}" if summary[key] >= 0 else "–"
            for key in ("pulls", "batches", "distinct_arms", "dictionary_size")
        ]
        real = [number(summary[key]) for key in ("regret", "simple_regret", "seconds")]
        lines.append((f"{record.label} {record.seed}" if names else str(record.seed), *whole, *real))
    small = frozenset(str(one) for one in history.metadata.get("less_is_better", []))
    left_out = ("fingerprint", "less_is_better")
    facts = ", ".join(f"{key}: {value}" for key, value in history.metadata.items() if key not in left_out) or "one run"
    return Page(name, facts, labels, records, headers, tuple(lines), {}, fronts=figures_of_run(history), small=small)


def html(page: Page) -> str:
    """The page as HTML text."""
    figures = "".join(image(alt, figure) for alt, figure in (*page.fronts, *drawn(page)))
    configuration = "\n".join(map(escape, page.config.split("\n")))
    config = f"<h2>Configuration</h2><details><summary>resolved</summary><pre>{configuration}</pre></details>"
    best = "".join(f"<div><h3>{escape(label)}</h3>{best_table(page, place)}</div>" for place, label in enumerate(page.labels))
    names = ", ".join(label for label in page.labels if label in page.small)
    less = f" (for {escape(names)}, where smaller values are better, the lowest mean plus its standard error)" if names else ""
    since = f" since the arms changed after pull {page.moved:,}" if page.moved else ""
    parts = [
        f"<p>{escape(page.said)}</p>" if page.said else "",
        f'<div class="wide">{table(page.headers, page.lines)}</div>',
        *(f'<p>{escape(one.caption)}</p><div class="wide">{table(one.headers, one.lines)}</div>' for one in page.compared),
        f'<h2>Over time</h2><div class="figures">{figures}</div>',
        f"<h2>Best arms</h2><p>Of the first repetition{since}, the {BEST} arms with the highest mean reward less its standard "
        f"error σ/√n{less}; σ is the standard deviation of all rewards about the means of their arms.</p>",
        f'<div class="tables">{best}</div>',
        config if page.config else "",
    ]
    return document(page.title, page.facts, parts)


def document(title: str, facts: str, parts: Iterable[str]) -> str:
    """A page as HTML text: its title, a line of facts below it, and parts, which are HTML already."""
    return "".join(
        [
            f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>',
            f'<meta name="viewport" content="width=device-width"><style>{STYLE}</style></head><body>',
            f'<h1>{escape(title)}</h1><p class="facts">{escape(facts)}</p>',
            *parts,
            "</body></html>\n",
        ]
    )


def escape(text: str) -> str:
    """Text for HTML: markup and control characters are shown literally."""
    return escaped_html(printable(text))


def drawn(page: Page) -> Iterable[tuple[str, Figure]]:
    """The figures for which the records hold values, each with its description."""
    known = measures(page.baseline)
    known["mean_reward"] = Measure("", mean_reward, bottom=None)
    words = WORDS
    if page.small:
        known["best_reward"] = Measure("", partial(best_so_far, page.small), bottom=None)
        words = WORDS | {"best_reward": "best value so far (reward units)"}
    known |= {name: replace(known[name], label=label) for name, label in words.items()}
    known["seconds"] = replace(known["seconds"], label=f"{page.clock} (seconds)")
    told = [record for record in page.records if len(record.history)]
    end = np.array([min((len(record.history) for record in told), default=0)])
    names = [name for name in FIGURES if any(np.isfinite(known[name].curve(record, end)).all() for record in told)]
    for name in names:
        # Where regret is known, rewards add nothing to it.
        if name not in ("mean_reward", "best_reward") or not set(REGRETS) & set(names):
            yield known[name].label, draw_labels(page.title, page.labels, told, known[name])


def mean_reward(record: Record, t: Times) -> Values:
    """Mean of the first t rewards, reward units."""
    return np.cumsum(record.history.pulls["reward"])[t - 1] / t


def best_so_far(small: frozenset[str], record: Record, t: Times) -> Values:
    """Best reward among the first t pulls, which is the smallest if the label is that of an outcome to be minimised, reward
    units."""
    best = np.minimum if record.label in small else np.maximum
    return np.asarray(best.accumulate(record.history.pulls["reward"])[t - 1], np.float64)


def best_table(page: Page, place: int) -> str:
    """Table of the arms of one policy with the highest lower bounds on their mean rewards, or the lowest upper bounds for an
    outcome to be minimised."""
    mine = [record for record in of_place(page.records, place) if len(record.history)]
    if not mine:
        return "<p>no pulls</p>"
    # Another repetition may have another reward function.
    pulls = min(mine, key=lambda record: record.seed).history.pulls
    now = pulls["t"] > page.moved
    best = best_arms(pulls["arm"][now], pulls["reward"][now], BEST, small=page.labels[place] in page.small)
    lines = [(f"{arm}", f"{count:,}", f"{number(mean)} ± {number(error)}") for arm, count, mean, error in best]
    return table(("arm", "pulls", "mean reward ± standard error"), lines)


def table(headers: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """HTML table of plain text. Columns of numbers are aligned on the right, except the first."""
    lines = list(lines)
    kinds = [
        ' class="number"' if j and lines and all(NUMBER.fullmatch(line[j]) for line in lines) else ""
        for j in range(len(headers))
    ]
    head = "".join(f"<th{kind}>{escape(header)}</th>" for kind, header in zip(kinds, headers, strict=True))
    body = "".join(
        "<tr>" + "".join(f"<td{kind}>{escape(cell)}</td>" for kind, cell in zip(kinds, line, strict=True)) + "</tr>"
        for line in lines
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def image(description: str, figure: Figure) -> str:
    """A figure as an image in HTML, an SVG within the page."""
    file = io.BytesIO()
    figure.savefig(file, format="svg", metadata={"Date": None})
    data = base64.b64encode(file.getvalue()).decode()
    return f'<img alt="{escape(description)}" src="data:image/svg+xml;base64,{data}">'
