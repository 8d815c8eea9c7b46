"""The pages docs/papers, from their texts in scripts/papers and the summaries of the reproductions.

torchbandits reproduce bkb-fig1 --quick                  # and others
python scripts/results_page.py --collect results/figures # copy their summaries to docs/results, write docs/papers
python scripts/results_page.py                           # write docs/papers and their figures from docs/results alone

The committed results are `DOCS/results/NAME[-quick].parquet`, a figure for each one shown, and the pages `DOCS/papers/*.md`.
A text asks for a part by a comment: `<!-- sections: NAME ... -->` and `<!-- figures: NAME ... -->` on a separate line for those
reproductions, `<!-- counts: NAME ... -->` for their claims by verdict, and `<!-- not held -->`, `<!-- not run -->` and
`<!-- clocks -->`. It links to the section of a reproduction by `[...][NAME]`.
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
from torchbandits.experiments.reproducing import (
    SUMMARY,
    draw_reproduction,
    form_name,
    published_table,
    section,
    table,
    unrepeated,
)
from torchbandits.experiments.reproduction import CoveredConfig, ReproductionConfig, catalogue, find_reproduction
from torchbandits.files import prepare_folder, write_atomically, write_text

FOLDER = "results"
CLOCKS = "clocks.txt"
"""File beside the summaries: the output of `scripts/benchmarks/papers.py`."""
TEXTS = Path(__file__).with_name("papers")
"""The texts of the pages."""
PAGES = "papers"
"""Folder of the pages below `DOCS`."""
DOTS_PER_INCH = 100
ASKED = re.compile(r"<!-- ([a-z ]+?)(?:: ([\w -]+?))? -->")
LINKED = re.compile(r"\]\[([\w-]+)\]")
KINDS = {"seconds": "seconds", "batch_size": "batch size"}
"""Words for ratios of measures other than regrets."""
VERDICTS = (HELD, NOT_HELD, UNDECIDED, UNJUDGED, UNKNOWN)


@dataclass(frozen=True)
class Entry:
    """A reproduction, the summary to show (of the full form if there is one), and the path of its figure."""

    reproduction: ReproductionConfig
    summary: Summary | None
    figure: str


def page(name: str, texts: dict[str, str], entries: Iterable[Entry], clocks: str = "") -> str:
    """The page `name` of the pages with these texts, with the parts that its text asks for. `clocks` is the output of
    `scripts/benchmarks/papers.py`."""
    entries = list(entries)
    by_name = {entry.reproduction.name: entry for entry in entries}

    def part(asked: re.Match[str]) -> str:
        chosen = [by_name[word] for word in (asked[2] or "").split()]
        match asked[1]:
            case "sections":
                return _sections(chosen)
            case "figures":
                return _figures(chosen).rstrip()
            case "counts":
                return _counts([verdict for entry in chosen for verdict in _verdicts(entry) if not verdict.own])
            case "not held":
                return _not_held(entries)
            case "not run":
                return _not_run(entries)
            case "clocks":
                return clocks.rstrip()
        raise ValueError(f"{name}.md asks for {asked[0]}, which is no part of a page")

    filled = re.sub(r"\n{3,}", "\n\n", ASKED.sub(part, texts[name])).rstrip()
    sections = {reproduction: found for found in texts for reproduction in reproductions_of(texts[found])}
    anchors = [
        f"[{linked}]: {'' if sections[linked] == name else f'{sections[linked]}.md'}#{_anchor(by_name[linked])}"
        for linked in sorted(set(LINKED.findall(filled)))
    ]
    return "\n".join([filled, *([""] if anchors else []), *anchors]) + "\n"


def reproductions_of(text: str) -> list[str]:
    """The reproductions that have their section on the page with this text."""
    return [name for part, names in ASKED.findall(text) if part == "sections" for name in names.split()]


def _sections(entries: list[Entry]) -> str:
    """The sections of reproductions. Differences from the paper that several of them share come first, once."""
    found = Counter(difference for entry in entries for difference in entry.reproduction.differs)
    shared = [difference for difference, times in found.items() if times > 1]
    parts = []
    if shared:
        parts.append("In several of these reproductions:\n\n" + "\n".join(f"- {difference}" for difference in shared))
    for entry in entries:
        if entry.summary is None:
            claims = [[claim.says, UNKNOWN] for claim in entry.reproduction.claims]
            heading = f"## {entry.reproduction.name}: {entry.reproduction.title}\n\n"
            parts.append((heading + table(["claim", "verdict"], claims)).rstrip())
            continue
        own = tuple(difference for difference in entry.reproduction.differs if difference not in shared)
        shown = entry.reproduction.model_copy(update={"differs": own})
        parts.append(section(shown, entry.summary, f"../{entry.figure}", level=2).rstrip())
    return "\n\n".join(parts)


def _counts(found: list[Verdict]) -> str:
    counted = Counter(verdict.verdict for verdict in found)
    return ", ".join(f"{counted[verdict]} {verdict}" for verdict in VERDICTS if counted[verdict]) or "–"


def _not_held(entries: list[Entry]) -> str:
    lines = []
    for entry in entries:
        says = [verdict.claim for verdict in _verdicts(entry) if verdict.verdict == NOT_HELD and not verdict.own]
        lines += [f"- {_link(entry)}: {'; '.join(says)}."] if says else []
    return "\n".join(lines)


def _verdicts(entry: Entry) -> list[Verdict]:
    return [] if entry.summary is None else verdicts(entry.reproduction, entry.summary)


def _link(entry: Entry) -> str:
    """Name of a reproduction, as a reference to its section if the page has one."""
    name = entry.reproduction.name
    return f"`{name}`" if entry.summary is None else f"[`{name}`][{name}]"


def _anchor(entry: Entry) -> str:
    """The heading of a section as an anchor of the site."""
    heading = unicodedata.normalize("NFKD", f"{entry.reproduction.name}: {entry.reproduction.title}")
    words = re.sub(r"[^\w\s-]", "", heading.encode("ascii", "ignore").decode()).strip().lower()
    return re.sub(r"[-\s]+", "-", words)


def _figures(entries: list[Entry]) -> str:
    """One row per figure and table of the papers: whether it is reproduced, the deviation, and its reason.

    A paper that all rows share is named in the header. Two columns are left out if they would say the same everywhere: the form
    of runs that are all in full, and ratios where nothing is published.
    """
    lines = []
    for entry in entries:
        for covered in entry.reproduction.covers:
            lines.append([covered.figure, _link(entry), *_outcome(entry, covered), covered.why])
    headers = ["figure or table", "reproduction", "run", "claims of the paper", "ours / published", "why they differ"]
    papers = {figure.partition("), ")[0] for figure, *_ in lines}
    if len(papers) == 1 and all("), " in figure for figure, *_ in lines):
        headers[0] += f" of {papers.pop()})"
        lines = [[figure.partition("), ")[2], *rest] for figure, *rest in lines]
    usual = {"run": "full form", "ours / published": "none published"}
    shown = [i for i, header in enumerate(headers) if header not in usual or any(line[i] != usual[header] for line in lines)]
    rows = [[line[i] for i in shown] for line in unrepeated(sorted(lines))]
    return table([headers[i] for i in shown], rows)


def _outcome(entry: Entry, covered: CoveredConfig) -> list[str]:
    """Form of the run, number of claims by verdict, and the ranges of our numbers divided by the published numbers."""
    reproduction, summary = entry.reproduction, entry.summary
    if summary is None:
        return [UNKNOWN, "–", "–"]
    judged = zip(reproduction.claims, verdicts(reproduction, summary), strict=True)
    tally = _counts([verdict for claim, verdict in judged if not claim.own and covered.holds(claim)])
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


def _not_run(entries: list[Entry]) -> str:
    none = [f"`{entry.reproduction.name}`" for entry in entries if entry.summary is None]
    quick = [f"`{e.reproduction.name}`" for e in entries if e.summary is not None and e.summary.facts["quick"]]
    lines = [f"- Not run at all: {', '.join(none)}."] if none else []
    return "\n".join(lines + ([f"- Run in the reduced form only: {', '.join(quick)}."] if quick else []))


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


def write_pages(docs: Path, entries: list[Entry]) -> list[Path]:
    """Write `DOCS/papers/*.md`.

    Raises:
        DataError: If a file can't be written.
    """
    texts = {path.stem: path.read_text(encoding="utf-8") for path in sorted(TEXTS.glob("*.md"))}
    clocks = docs / FOLDER / CLOCKS
    measured = clocks.read_text(encoding="utf-8") if clocks.is_file() else ""
    prepare_folder(docs / PAGES)
    written = []
    for name in texts:
        written.append(docs / PAGES / f"{name}.md")
        write_text(written[-1], page(name, texts, entries, measured))
    return written


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
    for path in write_pages(arguments.docs, entries):
        print(f"written: {path}")


if __name__ == "__main__":
    main()
