"""The committed results: `DOCS/results/NAME[-quick].parquet`, a figure for each one shown, and the page `DOCS/results.md`."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from torchbandits.experiments.panels import draw_reproduction
from torchbandits.experiments.reproducing import SUMMARY, form_name
from torchbandits.experiments.reproduction import catalogue, find_reproduction
from torchbandits.experiments.results_page import Entry, page
from torchbandits.experiments.summaries import read_summary, write_summary
from torchbandits.files import prepare_folder, write_atomically, write_text

FOLDER = "results"
MISSING = "missing.md"
"""In the folder of figures' configurations: what could not be reproduced, and why."""
DOTS_PER_INCH = 80


def collect(source: Path, docs: Path) -> list[Path]:
    """Copy the summaries of finished reproductions, full or reduced, from their folders under `source`.

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


def write_page(docs: Path) -> Path:
    """Write `DOCS/results.md` and its figures from the summaries that are there, the full form before the reduced one.

    Raises:
        DataError: If a summary is damaged, or a file can't be written.
    """
    entries, known = [], catalogue()
    for name in known:
        reproduction = find_reproduction(name)
        forms = [form_name(name, quick) for quick in (False, True)]
        form = next((f for f in forms if (docs / FOLDER / f"{f}.parquet").is_file()), None)
        summary = None if form is None else read_summary(docs / FOLDER / f"{form}.parquet")
        figure = f"{FOLDER}/{name}.png"
        if summary is not None:
            drawn = draw_reproduction(reproduction, summary)
            save = partial(drawn.savefig, dpi=DOTS_PER_INCH, pil_kwargs={"optimize": True})
            write_atomically(docs / figure, save)
        entries.append(Entry(reproduction, summary, figure))
    missing = next(iter(known.values())).with_name(MISSING).read_text(encoding="utf-8")
    write_text(docs / "results.md", page(entries, missing))
    return docs / "results.md"
