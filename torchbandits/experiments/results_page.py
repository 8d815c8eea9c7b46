"""The results page: every figure with its published numbers, claims and differences, generated from the summaries."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from torchbandits.experiments.printable import printable
from torchbandits.experiments.reproduction import ReproductionConfig
from torchbandits.experiments.summaries import Summary
from torchbandits.experiments.verdicts import published_table, verdicts

INTRODUCTION = """# Results

Every figure and table of the papers that the package reproduces: the figure, the published numbers beside ours, the published
claims (held or not held, on the means of the repetitions), and how the data or settings differ. This page is generated from the
summaries in `docs/results` by `python scripts/results_page.py`; nothing in it is written by hand.

`torchbandits reproduce NAME` runs one in full, `torchbandits reproduce NAME --quick` its reduced form (fewer pulls and
repetitions, said below each), and `torchbandits reproduce --list` names them. Where the full form was run, it is shown,
otherwise the reduced one. Seconds are those of the machine named below each figure, with that much other work on it (its load
average).
"""


@dataclass(frozen=True)
class Entry:
    """A reproduction, the summary that is shown (the full form's where there is one), and its figure's address."""

    reproduction: ReproductionConfig
    summary: Summary | None
    figure: str


def page(entries: Iterable[Entry], missing: str) -> str:
    """The whole page; `missing` is what could not be reproduced, and why, in Markdown."""
    entries = list(entries)
    parts = [INTRODUCTION, "## Claims\n", _claims(entries)]
    parts += ["## What could not be reproduced\n", _not_run(entries) + missing]
    for entry in entries:
        if entry.summary is not None:
            parts.append(section(entry.reproduction, entry.summary, entry.figure, level=2))
    return "\n".join(part.rstrip() + "\n" for part in parts)


def section(reproduction: ReproductionConfig, summary: Summary, figure: str, level: int = 1) -> str:
    """One reproduction: what was run, the figure, numbers, claims and differences."""
    facts = summary.facts
    form = "reduced form" if facts["quick"] else "full form"
    command = f"torchbandits reproduce {reproduction.name}{' --quick' if facts['quick'] else ''}"
    machine = f"{facts['machine']}, load average {facts['load']}"
    minutes = f"{facts['seconds'] / 60:.1f} minutes ({facts['cpu_seconds'] / 60:.1f} of processor time)"
    lines = [
        f"{'#' * level} {reproduction.name}: {reproduction.title}\n",
        f"{reproduction.source}. `{command}`: {form}, {minutes} on {machine}.\n",
        *(f"- {name}: {run}." for name, run in facts["runs"].items()),
        f"\n![{reproduction.title}]({figure})\n",
    ]
    if reproduction.published:
        headers = ["", "published", "ours (95 % interval)", "ours / published", "why they differ"]
        lines.append(_table(headers, published_table(reproduction, summary)))
    elif not reproduction.extra:
        lines.append("No number of this figure is published in the text.\n")
    found = verdicts(reproduction, summary)
    if found:
        lines.append(_table(["claim", "", "evidence"], [[v.claim, f"**{v.verdict}**", v.evidence] for v in found]))
    lines += [f"- {difference}" for difference in reproduction.differs]
    return "\n".join(lines) + "\n"


def _claims(entries: list[Entry]) -> str:
    lines = []
    for entry in entries:
        if entry.summary is None:
            lines += [[claim.says, "not run", f"`{entry.reproduction.name}`"] for claim in entry.reproduction.claims]
            continue
        form = "reduced form" if entry.summary.facts["quick"] else "full form"
        for verdict in verdicts(entry.reproduction, entry.summary):
            lines.append([verdict.claim, f"**{verdict.verdict}**", f"`{entry.reproduction.name}`, {form}"])
    return _table(["claim", "", "where"], lines)


def _not_run(entries: list[Entry]) -> str:
    none = [f"`{entry.reproduction.name}`" for entry in entries if entry.summary is None]
    quick = [f"`{e.reproduction.name}`" for e in entries if e.summary is not None and e.summary.facts["quick"]]
    lines = [f"- Not run at all: {', '.join(none)}.\n"] if none else []
    return "".join(lines + ([f"- Run in the reduced form only: {', '.join(quick)}.\n"] if quick else []))


def _table(headers: list[str], lines: list[list[str]]) -> str:
    rows = [headers, ["---"] * len(headers), *([printable(cell).replace("|", "\\|") for cell in line] for line in lines)]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)
