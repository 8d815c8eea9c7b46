"""Rows and lines that the commands of `torchbandits campaign` write."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table as RichTable

from torchbandits.campaigns.campaign import Campaign
from torchbandits.campaigns.candidates import MEASURED, TIMES
from torchbandits.campaigns.folder import form_in
from torchbandits.display import count
from torchbandits.errors import ConfigError, DataError, StateError, require
from torchbandits.experiments.printable import plain, printable
from torchbandits.files import write_atomically
from torchbandits.tabular.spreadsheets import EMPTY, Form, read_texts
from torchbandits.tabular.tables import ARROW, PARQUET
from torchbandits.tabular.workbooks import WORKBOOK, read_workbook, write_workbook

if TYPE_CHECKING:
    import pandas as pd
else:
    from torchbandits.tabular.extras import pandas as pd

_XLSX = ".xlsx"


def check_output(path: Path | None) -> None:
    """Refuse a name of another kind of file than the one that is written."""
    kind = "" if path is None else path.suffix.lower()
    other = kind in (*PARQUET, *ARROW, *WORKBOOK, ".xls", ".ods") and kind != _XLSX
    require(not other, f"--output {path}: rows are written as CSV (.csv), or as an Excel workbook (.xlsx).", ConfigError)


def check_plate(path: Path | None, outcomes: Sequence[str]) -> None:
    """Refuse a name of another kind of file, and to overwrite a file in which results are filled in, or that is no table."""
    check_output(path)
    if path is None or not path.exists():
        return
    advice = "choose another --output, or delete the file"
    try:
        if not path.stat().st_size:
            return
        frame = read_workbook(path, None)[0].to_pandas() if path.suffix.lower() == _XLSX else read_texts(path).frame
    except DataError as error:
        raise StateError(f"{path} exists and is not a file of selected rows: {advice}.") from error
    for name in outcomes:
        some = name in frame.columns and not frame[name].dropna().astype(str).str.strip().isin(EMPTY).all()
        require(not some, f"{path} has values of {name!r}: tell them and {advice}.", StateError)


def say_none(found: pd.DataFrame, why: str) -> None:
    """Say on standard error why a table has no rows."""
    if not len(found):
        typer.echo(why, err=True)


def warn(campaign: Campaign) -> None:
    """Print the doubt of a campaign on standard error, if there is any."""
    if doubt := campaign.doubt():
        typer.echo(printable(doubt), err=True)


def rounded(frame: pd.DataFrame, campaign: Campaign) -> pd.DataFrame:
    """Rows with computed numbers rounded to six significant digits.

    Ids, the columns of the candidates, and values of rows that were measured once remain as they are.
    """
    own = {frame.columns[0], *(decision.column for decision in campaign.columns), *campaign.outcomes}
    computed = [name for name in frame.columns if name not in own and pd.api.types.is_float_dtype(frame[name])]
    times = next((frame[name] for name in frame.columns if name not in own and name.endswith(TIMES)), None)
    found = frame.copy()
    for name in computed:
        short = frame[name].map(lambda value: float(f"{value:.6g}"))
        found[name] = short.where(times > 1, frame[name]) if times is not None and name.endswith(MEASURED) else short
    return found


def write(frame: pd.DataFrame, output: Path | None, form: Form) -> None:
    """Write rows as a workbook, or as CSV."""
    check_output(output)
    if output is not None and output.suffix.lower() == _XLSX:
        write_atomically(output, lambda temporary: write_workbook(temporary, frame))
    elif output is not None:
        write_atomically(output, lambda temporary: temporary.write_bytes(form.written(frame)))
    elif sys.stdout.isatty():
        print_table(frame)
        return
    else:
        # `tell` reads UTF-8, whatever the encoding of the terminal is.
        typer.echo(form.written(frame), nl=False)
        return
    say(f"{count(len(frame), 'row')}: {output}")


def write_plate(plate: pd.DataFrame, campaign: Campaign, output: Path | None, folder: Path) -> None:
    """Write pending rows, with an empty column to fill in for each outcome."""
    for name in campaign.outcomes:
        plate[name] = ""
    write(rounded(plate, campaign), output, form_in(folder))


def write_results(campaign: Campaign, output: Path | None, folder: Path) -> None:
    """Write all results told."""
    found, form = campaign.results(), form_in(folder)
    if form.decimal == "," and (output is None or output.suffix.lower() != _XLSX):
        # In a column with limits of detection, whose cells are texts, pandas would write all numbers with points.
        for name in campaign.outcomes:
            if found[name].dtype == object:
                found[name] = found[name].map(lambda cell: str(cell).replace(".", ","), na_action="ignore")
    write(found, output, form)


def print_table(frame: pd.DataFrame) -> None:
    """Print rows on standard output, as wide as the terminal."""
    table = RichTable(box=SIMPLE, padding=(0, 1), pad_edge=False)
    for header in frame.columns:
        table.add_column(plain(header))
    for line in frame.itertuples(index=False):
        table.add_row(*(plain(f"{cell:.6g}" if isinstance(cell, float) else cell) for cell in line))
    console = Console()
    (console if console.is_terminal else Console(width=160)).print(table)


def say(text: object) -> None:
    """Print a line on standard output, without control characters."""
    typer.echo(printable(text))
