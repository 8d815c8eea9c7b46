"""The results page docs/results.md, from the summaries of the reproductions.

torchbandits reproduce bkb-fig1 --quick                  # and others
python scripts/results_page.py --collect results/figures # copy their summaries to docs/results, write docs/results.md
python scripts/results_page.py                           # write docs/results.md and its figures from docs/results alone

The committed results are `DOCS/results/NAME[-quick].parquet`, a figure for each one shown, and the page `DOCS/results.md`.
"""

from __future__ import annotations

import argparse
import re
import unicodedata
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
    Verdict,
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

This page shows every figure and table of four papers that the package reproduces, the published numbers beside ours, and for
each claim of a paper whether it held here. It is for readers who want to know whether the methods behave as published. The
page is generated from the summaries in `docs/results` by `python scripts/results_page.py`.
"""
REASONS = """\
- **As published**: DTC keeps the prior's variance where SoR loses it ([BKB's figure 1][bkb-fig1]). BBKB's batches
  grow about linearly ([Abalone and Cadata][bbkb-fig2], [NAS-Bench-101][bbkb-fig3]), and its regret ratio beats that
  of regularised evolution on [NAS-Bench-101][bbkb-fig3]. CUB's model order levels off in every comparison. π-GP-UCB
  has less regret than IGP-UCB in one, two and three dimensions ([table 1][pi-table1]).
- **Different, with a reason**: on Abalone and Cadata BBKB has at t = 2,000 neither the smallest regret nor at most
  half of the time of each other method. Sums are kept per distinct arm here, which makes the exact methods cheap, and
  their variances are exact ([details][bbkb-fig1-start]).
- **Different, not explained**: the regret ratios on Cadata are far below [the published ones][bbkb-fig1]. The paper
  does not state the scaling of the features, and none of [those that were tried][bbkb-scalings] has runs like the
  published curve. IGP-UCB's regret in two dimensions is below the published one by [more than three standard
  errors][pi-table1]. On [Ackley's function][pi-fig2], our choice, π-GP-UCB has more regret than IGP-UCB. The claims
  about CUB that are not held are for the λ and ε that its paper prints.
- **Undecided**: most claims about BBKB's robustness to [the bandwidth][bbkb-fig5], those about its simple regret on
  [NAS-Bench-101][bbkb-fig3], some comparisons of CUB with the dense GP, and the time of π-GP-UCB in [one
  dimension][pi-table1].
- **Not comparable**: seconds, because the papers' machines were others. The authors' code of BBKB and BKB was
  therefore also run [beside ours on one machine](#wall-clock-beside-the-authors-code). Where a paper does not state
  its domain, noise or functions, they are our choice ([what could not be reproduced](#what-could-not-be-reproduced)).
"""
"""What counts of claims can't say. Compare it with the verdicts when a summary changes."""
JUDGING = """\
A claim that one policy is better than another is judged by the differences between repetitions with the same seed: it
is **held** or **not held** if the 95 % interval of their mean lies on one side of zero, and **undecided** if the
interval contains zero. A claim about a single number is judged in the same way by the interval of that number.
Reduced forms are **not judged**. Our own claims, which no paper makes, are in [a separate table](#claims-of-our-own).

`torchbandits reproduce NAME` runs one reproduction in full, `torchbandits reproduce NAME --quick` its reduced form (fewer
pulls and repetitions, which are stated with each figure), and `torchbandits reproduce --list` prints all names. The page
shows the full form where it was run, and the reduced form otherwise. Seconds are those of the machine that is named with
each figure; its load average shows how busy the machine was.
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
    parts = [INTRODUCTION, "## In short\n", _in_short(entries), "## How to read this page\n", JUDGING]
    parts += ["## Every figure and table\n", _figures(entries), COVERAGE]
    parts += ["## What could not be reproduced\n", _not_run(entries) + missing]
    for entry in entries:
        if entry.summary is not None:
            parts.append(section(entry.reproduction, entry.summary, entry.figure, level=2))
    if clocks:
        parts += ["## Wall clock beside the authors' code\n", clocks]
    parts += ["## Claims of the papers\n", _claims(entries, own=False)]
    parts += ["## Claims of our own\n", _claims(entries, own=True), _anchors(entries)]
    return "\n".join(part.rstrip() + "\n" for part in parts)


def _in_short(entries: list[Entry]) -> str:
    """One row per paper with its claims by verdict, and the claims that are not held."""
    papers: dict[str, list[Entry]] = {}
    for entry in entries:
        for covered in entry.reproduction.covers[:1]:
            papers.setdefault(covered.figure.partition(", ")[0], []).append(entry)
    lines, against = [], []
    for paper, reproduced in sorted(papers.items()):
        judged = [verdict for entry in reproduced for verdict in _verdicts(entry) if not verdict.own]
        found = Counter(verdict.verdict for verdict in judged)
        tally = [str(found[verdict]) for verdict in (HELD, NOT_HELD, UNDECIDED)]
        lines.append([paper, ", ".join(map(_link, reproduced)), *tally])
        for entry in reproduced:
            says = [verdict.claim for verdict in _verdicts(entry) if verdict.verdict == NOT_HELD and not verdict.own]
            against += [f"- {_link(entry)}: {'; '.join(says)}."] if says else []
    headers = ["paper", "reproductions", "claims held", "not held", "undecided"]
    listed = "\nThe claims that are not held ([all claims](#claims-of-the-papers)):\n\n" + "\n".join(against) if against else ""
    return f"{table(headers, lines)}\n{REASONS}{listed}"


def _verdicts(entry: Entry) -> list[Verdict]:
    return [] if entry.summary is None else verdicts(entry.reproduction, entry.summary)


def _link(entry: Entry) -> str:
    """Name of a reproduction, as a reference to its section if the page has one."""
    name = entry.reproduction.name
    return f"`{name}`" if entry.summary is None else f"[`{name}`][{name}]"


def _anchors(entries: list[Entry]) -> str:
    """Definitions of the references `[...][NAME]`: the heading of each section as an anchor of the site."""
    lines = []
    for entry in entries:
        if entry.summary is not None:
            heading = unicodedata.normalize("NFKD", f"{entry.reproduction.name}: {entry.reproduction.title}")
            words = re.sub(r"[^\w\s-]", "", heading.encode("ascii", "ignore").decode()).strip().lower()
            anchor = re.sub(r"[-\s]+", "-", words)
            lines.append(f"[{entry.reproduction.name}]: #{anchor}")
    return "\n".join(lines)


def _figures(entries: list[Entry]) -> str:
    """One row per figure and table of the papers: whether it is reproduced, the deviation, and its reason."""
    lines = []
    for entry in entries:
        for covered in entry.reproduction.covers:
            lines.append([covered.figure, _link(entry), *_outcome(entry, covered), covered.why])
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
        where = f"{_link(entry)}, {_form(entry.summary)}"
        lines += [[verdict.claim, f"**{verdict.verdict}**", where] for verdict in _verdicts(entry) if verdict.own == own]
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
