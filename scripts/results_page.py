"""The results page docs/results.md, from the summaries of the reproductions.

torchbandits reproduce bkb-fig1 --quick                  # and others
python scripts/results_page.py --collect results/figures # copy their summaries to docs/results, write docs/results.md
python scripts/results_page.py                           # write docs/results.md and its figures from docs/results alone

The committed results are `DOCS/results/NAME[-quick].parquet`, a figure for each one shown, and the page `DOCS/results.md`.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from torchbandits.experiments.judging import (
    HELD,
    NOT_HELD,
    UNDECIDED,
    UNJUDGED,
    UNKNOWN,
    Summary,
    read_summary,
    verdicts,
    write_summary,
)
from torchbandits.experiments.reproducing import SUMMARY, draw_reproduction, form_name, published_table, section, table
from torchbandits.experiments.reproduction import CoveredConfig, ReproductionConfig, catalogue, find_reproduction
from torchbandits.files import prepare_folder, write_atomically, write_text

FOLDER = "results"
CLOCKS = "clocks.txt"
"""File beside the summaries: the output of `scripts/benchmarks/papers.py`."""
MISSING = "missing.md"
"""File beside the configurations of figures: the reproductions that failed, and why."""
DOTS_PER_INCH = 100

INTRODUCTION = """# Figures of the papers

This page shows every figure and table of the papers that the package reproduces. The first table lists what was reproduced and
what was not. The sections after it show each figure, the published numbers beside ours, the verdicts on the claims, and the
differences in data and settings. The claims of all papers are collected [at the end](#claims-of-the-papers). The page is
generated from the summaries in `docs/results` by `python scripts/results_page.py`.

A claim that one policy is better than another is judged by the differences between repetitions with the same seed: it is
**held** or **not held** if the 95 % interval of their mean lies on one side of zero, and **undecided** if the interval
contains zero. A claim about a single number is judged in the same way by the interval of that number. Reduced forms are **not
judged**. Our own claims, which no paper makes, are in a separate table.

`torchbandits reproduce NAME` runs one reproduction in full, `torchbandits reproduce NAME --quick` its reduced form (fewer pulls
and repetitions, which are stated with each figure), and `torchbandits reproduce --list` prints all names. The page shows the
full form where it was run, and the reduced form otherwise. Seconds are those of the machine that is named with each figure; its
load average shows how busy the machine was.
"""

COVERAGE = """The table gives the smallest and the largest ratio of each figure; the section of the figure lists all ratios,
with the reasons why they may differ. A ratio of seconds divides the time on our machine by the published time. "In part" means
that some runs are missing; the section of the figure names them.
"""
KINDS = {"seconds": "seconds", "batch_size": "batch size"}
"""Words for ratios of measures other than regrets."""
VERDICTS = (HELD, NOT_HELD, UNDECIDED, UNJUDGED, UNKNOWN)


@dataclass(frozen=True)
class Entry:
    """A reproduction, the summary to show (of the full form if there is one), and the path of its figure."""

    reproduction: ReproductionConfig
    summary: Summary | None
    figure: str


def page(entries: Iterable[Entry], missing: str, clocks: str = "") -> str:
    """The whole page. `missing` is Markdown that lists the failed reproductions with their reasons, and `clocks` is the output
    of `scripts/benchmarks/papers.py`."""
    entries = list(entries)
    parts = [INTRODUCTION, "## Every figure and table\n", _figures(entries), COVERAGE]
    parts += ["## What could not be reproduced\n", _not_run(entries) + missing]
    for entry in entries:
        if entry.summary is not None:
            parts.append(section(entry.reproduction, entry.summary, entry.figure, level=2))
    if clocks:
        parts += ["## Wall clock beside the authors' code\n", clocks]
    parts += ["## Claims of the papers\n", _claims(entries, own=False)]
    parts += ["## Claims of our own\n", _claims(entries, own=True)]
    return "\n".join(part.rstrip() + "\n" for part in parts)


def _figures(entries: list[Entry]) -> str:
    """One row per figure and table of the papers: whether it is reproduced, the deviation, and its reason."""
    lines = []
    for entry in entries:
        for covered in entry.reproduction.covers:
            lines.append([covered.figure, f"`{entry.reproduction.name}`", *_outcome(entry, covered), covered.why])
    headers = ["figure or table", "reproduction", "run", "claims of the paper", "ours / published", "why they differ"]
    return table(headers, sorted(lines))


def _outcome(entry: Entry, covered: CoveredConfig) -> list[str]:
    """Form of the run, number of claims by verdict, and the ranges of our numbers divided by the published numbers."""
    reproduction, summary = entry.reproduction, entry.summary
    if summary is None:
        return [UNKNOWN, "–", "–"]
    judged = zip(reproduction.claims, verdicts(reproduction, summary), strict=True)
    found = Counter(verdict.verdict for claim, verdict in judged if not claim.own and covered.holds(claim))
    tally = ", ".join(f"{found[verdict]} {verdict}" for verdict in VERDICTS if found[verdict]) or "–"
    ratios: dict[str, list[str]] = {}
    for number, line in zip(reproduction.published, published_table(reproduction, summary), strict=True):
        if covered.holds(number) and line[3] != "–":
            ratios.setdefault(KINDS.get(number.measure, "regret"), []).append(line[3])
    return [_form(summary), tally, "; ".join(f"{kind} {_range(r)}" for kind, r in ratios.items()) or "none published"]


def _form(summary: Summary) -> str:
    if summary.facts["quick"]:
        return "reduced form"
    return "full form, in part" if any("; not run: " in run for run in summary.facts["runs"].values()) else "full form"


def _range(ratios: list[str]) -> str:
    ordered = sorted(ratios, key=lambda ratio: float(ratio.replace(",", "")))
    return ordered[0] if ordered[0] == ordered[-1] else f"{ordered[0]} … {ordered[-1]}"


def _claims(entries: list[Entry], own: bool) -> str:
    lines = []
    for entry in entries:
        if entry.summary is None:
            claims = [claim for claim in entry.reproduction.claims if claim.own == own]
            lines += [[claim.says, UNKNOWN, f"`{entry.reproduction.name}`"] for claim in claims]
            continue
        where = f"`{entry.reproduction.name}`, {_form(entry.summary)}"
        verdicts_of = verdicts(entry.reproduction, entry.summary)
        lines += [[verdict.claim, f"**{verdict.verdict}**", where] for verdict in verdicts_of if verdict.own == own]
    return table(["claim", "verdict", "reproduction"], lines)


def _not_run(entries: list[Entry]) -> str:
    none = [f"`{entry.reproduction.name}`" for entry in entries if entry.summary is None]
    quick = [f"`{e.reproduction.name}`" for e in entries if e.summary is not None and e.summary.facts["quick"]]
    lines = [f"- Not run at all: {', '.join(none)}.\n"] if none else []
    return "".join(lines + ([f"- Run in the reduced form only: {', '.join(quick)}.\n"] if quick else []))


def collect(source: Path, docs: Path) -> list[Path]:
    """Copy the summaries of finished reproductions, full or reduced, from their folders below `source`.

    Raises:
        DataError: If one is damaged, or the folder can't be written.
    """
    prepare_folder(docs / FOLDER)
    collected = []
    for name in catalogue():
        for quick in (False, True):
            form = form_name(name, quick)
            if (source / form / SUMMARY).is_file():
                collected.append(docs / FOLDER / f"{form}.parquet")
                write_summary(read_summary(source / form / SUMMARY), collected[-1])
    return collected


def read_entries(docs: Path) -> list[Entry]:
    """Every reproduction with its committed summary, preferring the full form to the reduced one.

    Raises:
        DataError: If a summary is damaged.
    """
    entries = []
    for name in catalogue():
        forms = [form_name(name, quick) for quick in (False, True)]
        form = next((f for f in forms if (docs / FOLDER / f"{f}.parquet").is_file()), None)
        summary = None if form is None else read_summary(docs / FOLDER / f"{form}.parquet")
        entries.append(Entry(find_reproduction(name), summary, f"{FOLDER}/{name}.png"))
    return entries


def draw_figures(docs: Path, entries: list[Entry]) -> None:
    """Draw the figure of each reproduction that has a summary."""
    for entry in entries:
        if entry.summary is not None:
            drawn = draw_reproduction(entry.reproduction, entry.summary)
            save = partial(drawn.savefig, dpi=DOTS_PER_INCH, pil_kwargs={"optimize": True})
            write_atomically(docs / entry.figure, save)


def write_page(docs: Path, entries: list[Entry]) -> Path:
    """Write `DOCS/results.md`.

    Raises:
        DataError: If the file can't be written.
    """
    missing = next(iter(catalogue().values())).with_name(MISSING).read_text(encoding="utf-8")
    clocks = docs / FOLDER / CLOCKS
    write_text(docs / "results.md", page(entries, missing, clocks.read_text(encoding="utf-8") if clocks.is_file() else ""))
    return docs / "results.md"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--collect", type=Path, help="folder of the reproductions' results")
    parser.add_argument("--docs", type=Path, default=Path("docs"))
    arguments = parser.parse_args()
    if arguments.collect is not None:
        for path in collect(arguments.collect, arguments.docs):
            print(f"collected: {path}")
    entries = read_entries(arguments.docs)
    draw_figures(arguments.docs, entries)
    print(f"written: {write_page(arguments.docs, entries)}")


if __name__ == "__main__":
    main()
