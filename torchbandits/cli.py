"""The command line: `torchbandits run`, `reproduce`, `plot`, `report`, `watch`, `bench`, `policies`, `data …`, `campaign …`.

Every expected error is printed as one line on standard error, with exit code 2; Ctrl-C prints one line, with exit code 130.
Control characters in a file, a name or an argument are never printed. Commands import their packages when they are called,
because pandas, Matplotlib and BoTorch take seconds to load and no command needs all of them.
"""

from __future__ import annotations

import importlib
import io
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import torch
import typer
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table as RichTable
from typer.core import TyperGroup

from torchbandits.campaigns.commands import campaign_app
from torchbandits.campaigns.output import say
from torchbandits.environments import holdings
from torchbandits.errors import ConfigError, TorchBanditsError, nearest, require
from torchbandits.experiments.printable import one_line, plain
from torchbandits.extras import missing
from torchbandits.policies import CATALOGUE, markdown_table
from torchbandits.tabular.columns import ColumnsError
from torchbandits.version import __version__

if TYPE_CHECKING:
    from torchbandits.experiments.config import ExperimentConfig
    from torchbandits.experiments.reproducing import Reproduced
    from torchbandits.experiments.reproduction import ReproductionConfig
    from torchbandits.experiments.results import Result

# The base class of Click's errors, through a class that Typer exports: newer versions of Typer include a copy of Click.
ClickException = cast("type[typer.BadParameter]", typer.BadParameter.__mro__[2])
BENCH = Path("scripts", "benchmarks", "bench.py")
"""The benchmarks in the repository, which the deprecated command `bench` runs."""
OUT_OF_MEMORY = ("not enough memory", "can't allocate memory", "out of memory")


class OneLineErrors(TyperGroup):
    """Commands whose expected errors are printed in one line. Unexpected errors keep their traceback."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        """Run a command and end the process with its exit code."""
        # A character that the terminal's encoding lacks must not make a finished command fail.
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(errors="backslashreplace")
        try:
            code = super().main(args, prog_name, complete_var, False, windows_expand_args, **extra)
        except ClickException as error:
            if type(error).__name__ != "NoArgsIsHelpError":  # it has shown the help
                complain(error.format_message())
            code = 2
        except typer.Abort:
            code = 1
        if standalone_mode:
            sys.exit(code if isinstance(code, int) else 0)
        return code

    def invoke(self, ctx: Any) -> Any:
        """Run a command, and print expected errors and warnings in one line each."""
        try:
            with warnings.catch_warnings():
                warnings.showwarning = _complain_once()
                return super().invoke(ctx)
        except TorchBanditsError as error:
            complain(error)
        except ModuleNotFoundError as error:
            if not (said := missing(error)):
                raise
            complain(said)
        except MemoryError as error:
            complain(f"not enough memory: {error}")
        except RuntimeError as error:
            # On the host PyTorch reports a lack of memory only in the message of a RuntimeError.
            if not isinstance(error, torch.OutOfMemoryError) and not any(words in str(error) for words in OUT_OF_MEMORY):
                raise
            complain(f"not enough memory: {error}")
        except KeyboardInterrupt as error:
            complain(f"interrupted: {error if error.args else 'every file that was written is whole.'}")
            raise typer.Exit(130) from error
        except BrokenPipeError:
            # The reader of the output has closed the pipe, which is not an error.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(1) from None
        except OSError as error:
            complain(error)
        raise typer.Exit(2)


def complain(error: object) -> None:
    """Print an error in one line on standard error."""
    typer.echo(f"torchbandits: {one_line(error, _LONGEST if isinstance(error, ColumnsError) else 450)}", err=True)


def _complain_once() -> Callable[..., None]:
    """Return a function that prints each warning in one line. Of warnings that differ only in their numbers, it prints the
    first: a figure has hundreds of runs."""
    said: set[str] = set()

    def show(message: Warning | str, *_: Any, **__: Any) -> None:
        kind = re.sub(r"\d[\d.e+-]*", "#", str(message))
        if kind not in said:
            said.add(kind)
            complain(message)

    return show


_LONGEST = 1_200
"""Largest number of characters of a message on several columns, each with what to do."""
# Plain tracebacks, which only unexpected errors reach.
app = typer.Typer(
    cls=OneLineErrors,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
data_app = typer.Typer(help="List, fetch and describe the real data sets.", no_args_is_help=True)
app.add_typer(data_app, name="data")
app.add_typer(campaign_app, name="campaign")


def _version(asked: bool) -> bool:
    if asked:
        typer.echo(f"torchbandits {__version__}")
        raise typer.Exit
    return asked


@app.callback()
def options(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")] = False,
) -> None:
    """Gaussian-process bandits over very large candidate sets. With a spreadsheet of candidates, begin with `campaign`; for a
    first picture, `run quickstart`."""


@app.command()
def run(
    config: Annotated[str, typer.Argument(help="A YAML file, or the name of an included experiment, such as quickstart.")],
    output: Annotated[Path | None, typer.Option(help="Folder for the results; by default the one in the file.")] = None,
    repetitions: Annotated[int | None, typer.Option(help="Number of repetitions of every policy.")] = None,
    horizon: Annotated[int | None, typer.Option(help="Number of pulls of every run.")] = None,
    workers: Annotated[int, typer.Option(min=1, help="Number of runs in parallel, each in a separate process.")] = 1,
    resume: Annotated[bool, typer.Option("--resume", help="Keep the runs that an earlier call completed.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Show no progress and no table.")] = False,
) -> None:
    """Run an experiment, print its table, and write records, resolved configuration, table and figures."""
    from torchbandits.experiments.config import is_dumped, load_config, parse_config  # noqa: PLC0415
    from torchbandits.experiments.records import CONFIG  # noqa: PLC0415
    from torchbandits.experiments.reproduction import find_config  # noqa: PLC0415
    from torchbandits.experiments.runner import run_experiment  # noqa: PLC0415

    source = find_config(config)
    experiment = load_config(source)
    given = {"repetitions": repetitions, "horizon": horizon, "output": None if output is None else str(output)}
    changes = {name: value for name, value in given.items() if value is not None}
    experiment = parse_config(experiment.model_dump(exclude_none=True) | changes, f"{config} with the options given")
    resolved = experiment.folder / CONFIG
    # What was written by hand has comments, which a resolved configuration has not.
    overwritten = os.path.exists(resolved) and os.path.samefile(source, resolved) and not is_dumped(source)
    message = f"{source} would be overwritten by the resolved configuration: rename it, or choose another folder with --output."
    require(not overwritten, message, ConfigError)
    result = run_experiment(experiment, console=Console(stderr=True, quiet=quiet), resume=resume, workers=workers)
    if not quiet:
        _show(experiment, result)


@app.command()
def reproduce(
    names: Annotated[list[str] | None, typer.Argument(help="Names of figures, as in --list, or YAML files.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Reproduce all figures, one after the other.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="Run a reduced form with fewer pulls and repetitions.")] = False,
    listed: Annotated[bool, typer.Option("--list", help="List the figures.")] = False,
    output: Annotated[Path | None, typer.Option(help="Folder for the results; by default results/figures/NAME.")] = None,
    again: Annotated[bool, typer.Option("--again", help="Repeat also the runs that an earlier call completed.")] = False,
    ended: Annotated[bool, typer.Option("--ended", help="Run nothing, and summarise the completed runs.")] = False,
    workers: Annotated[int, typer.Option(min=1, help="Number of runs in parallel, each in a separate process.")] = 1,
    quiet: Annotated[bool, typer.Option("--quiet", help="Show no progress.")] = False,
) -> None:
    """Reproduce figures or tables of a paper. Call it again after an interruption to run the missing runs."""
    from torchbandits.experiments.reproducing import reproduce as run_reproduction  # noqa: PLC0415
    from torchbandits.experiments.reproduction import catalogue, find_reproduction  # noqa: PLC0415

    if listed or not (names or everything):
        found = [find_reproduction(known) for known in catalogue()]
        _print_table({"name": 0, "what": 5, "source": 5}, [(f.name, f.title, f.source) for f in found])
        return
    require(not (names and everything), "give the names of figures, or --all.", ConfigError)
    # All names are looked up before the first figure is run.
    chosen = [find_reproduction(name) for name in names or catalogue()]
    require(output is None or len(chosen) == 1, "--output is the folder of one figure: give one name.", ConfigError)
    console = Console(stderr=True, quiet=quiet)
    for figure in chosen:
        console.print(plain(figure.name, style="bold")) if len(chosen) > 1 else None
        done = run_reproduction(figure, quick=quick, output=output, console=console, again=again, workers=workers, ended=ended)
        if not quiet:
            _show_reproduction(figure, done)
        say(f"Summary, figure, numbers: {', '.join(map(str, done.files))}")


def _show_reproduction(figure: ReproductionConfig, done: Reproduced) -> None:
    from torchbandits.experiments.judging import verdicts  # noqa: PLC0415
    from torchbandits.experiments.reproducing import published_table  # noqa: PLC0415

    numbers = [tuple(line) for line in published_table(figure, done.summary)]
    if numbers:
        _print_table({"": 5, "published": 0, "ours (95 % interval)": 4, "ratio": 0, "why they differ": 6}, numbers)
    judged = [(v.claim, v.verdict, v.evidence) for v in verdicts(figure, done.summary)]
    _print_table({"claim": 6, "verdict": 0, "evidence": 8}, judged)


@app.command()
def plot(
    records: Annotated[
        Path,
        typer.Argument(
            help="An experiment's output folder, or the records in it. For a run of several outcomes, the folder that "
            "History.to_parquet wrote, or the journal."
        ),
    ],
) -> None:
    """Draw the figures and the table of an experiment from its records, or the trade-offs of several outcomes."""
    from torchbandits.experiments.records import CONFIG, load_records, output_folder  # noqa: PLC0415
    from torchbandits.experiments.results import write_results  # noqa: PLC0415

    if records.is_file() or ((records / "pulls.parquet").exists() and not (output_folder(records) / CONFIG).is_file()):
        from torchbandits.experiments.page import write_fronts  # noqa: PLC0415

        for path in write_fronts(records):
            say(f"Figure: {path}")
        return
    experiment, found = load_records(records)
    result = write_results(experiment, found, output_folder(records))
    _show(experiment, result)


@app.command()
def bench(
    config: Annotated[Path, typer.Argument(help="A YAML file, such as configs/bench/cpu.yaml.")],
    output: Annotated[Path | None, typer.Option(help="Folder for the results; by default the one in the file.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Show no progress and no table.")] = False,
) -> None:
    """Deprecated: run python scripts/benchmarks/bench.py in the repository, which this command does in a checkout."""
    script = Path(__file__).parents[1] / BENCH
    where = f"the benchmarks are not in the installed package: in a checkout of the repository, run python {BENCH} CONFIG."
    require(script.is_file(), where, ConfigError)
    sys.path.insert(0, str(script.parent))
    benchmark = importlib.import_module(script.stem)
    chosen = benchmark.load(config, output)
    complain(f"torchbandits bench is deprecated and will be removed: run python {BENCH} instead.")
    benchmark.measure(chosen, quiet)


@app.command()
def report(
    source: Annotated[Path, typer.Argument(help="Output folder of an experiment or of History.to_parquet, or a journal.")],
    output: Annotated[Path | None, typer.Option(help="The HTML file; by default report.html there, or JOURNAL.html.")] = None,
) -> None:
    """Write one self-contained HTML page of a run or an experiment, with figures, best arms, sizes and seconds."""
    from torchbandits.experiments.page import write_page  # noqa: PLC0415

    say(f"Report: {write_page(source, output)}")


@app.command()
def watch(
    journal: Annotated[Path, typer.Argument(help="The journal of a run (journal=), or the store of workers.")],
    every: Annotated[
        float | None, typer.Option(help="Seconds between updates; by default 1 in a terminal, 10 elsewhere.")
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Show the current state of the run once, and exit.")] = False,
    row: Annotated[int, typer.Option(min=0, help="Batch row to show.")] = 0,
) -> None:
    """Watch a run through its journal while it continues. Ctrl-C ends the watching, not the run."""
    from torchbandits.experiments.watching import watch as watch_journal  # noqa: PLC0415

    watch_journal(journal, _console(), every=every, once=once, row=row)


@app.command()
def policies(
    name: Annotated[str | None, typer.Argument(help="Name of a policy whose options to show.")] = None,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Print the table of docs/choosing/policies.md, in Markdown.")
    ] = False,
) -> None:
    """List the policies with guarantee, cost and uses, or show the options of one policy."""
    if markdown:
        typer.echo(markdown_table(), nl=False)
    elif name is None:
        lines = [(e.name, e.paper, e.guarantee, e.cost, e.batch, e.kernels, e.choose) for e in CATALOGUE]
        _print_table({"policy": 0, "paper": 8, "guarantee": 11, "cost of a step": 8, "batch": 4, "kernels": 5,
                      "choose it when": 11}, lines)  # fmt: skip
        say("A arms, u distinct arms pulled, m dictionary points or features; T pulls, γ_T information gained.")
        say("torchbandits policies NAME shows the options of one.")
    else:
        _describe_policy(name)


def _describe_policy(name: str) -> None:
    known = {entry.name: entry for entry in CATALOGUE}
    require(name in known, f"unknown policy {name!r}; known: {', '.join(known)}.{nearest(name, known)}")
    e = known[name]
    facts = {"paper": e.paper, "guarantee": e.guarantee, "cost of a step": e.cost, "batch": e.batch, "kernels": e.kernels}
    grid = RichTable.grid(padding=(0, 2))
    for key, value in (facts | {"memory": e.memory, "choose it when": e.choose}).items():
        grid.add_row(plain(key), plain(value))
    _console().print(plain(e.summary), grid, sep="\n")
    _print_table({"option": 0, "default": 0, "meaning": 1}, [(o.name, o.default, o.meaning) for o in e.options])


@data_app.command("list")
def list_data() -> None:
    """List the data sets, and whether each is available on this machine."""
    table = RichTable()
    for header in ("name", "arms", "features", "here", "what"):
        table.add_column(header)
    for line in holdings.holdings():
        table.add_row(*map(plain, line))
    Console().print(table)


@data_app.command()
def fetch(name: Annotated[str, typer.Argument(help="Name of a data set, as in `data list`.")]) -> None:
    """Fetch, verify and cache a data set, unless it is already on this machine. Archives are only verified."""
    say(str(holdings.fetch(name)))


@data_app.command()
def describe(name: Annotated[str, typer.Argument(help="Name of a data set, as in `data list`.")]) -> None:
    """Describe the contents, the source and the licence of a data set."""
    for key, value in holdings.facts(name).items():
        say(f"{key}: {value}")


def _print_table(columns: dict[str, int], lines: Iterable[tuple[str, ...]]) -> None:
    """Print a table of plain text. Columns of ratio 0 are never wrapped; the others share the remaining width by ratio."""
    table = RichTable(box=SIMPLE, padding=(0, 1), collapse_padding=True, pad_edge=False, leading=1, expand=True)
    for header, ratio in columns.items():
        table.add_column(header, ratio=ratio or None, no_wrap=not ratio)
    for line in lines:
        table.add_row(*map(plain, line))
    _console().print(table)


def _console() -> Console:
    console = Console()
    return console if console.is_terminal else Console(width=120)  # files and pipes have no width


def _show(experiment: ExperimentConfig, result: Result) -> None:
    from torchbandits.experiments.results import printed, to_rich  # noqa: PLC0415

    console = _console()
    console.print(*(to_rich(table, console.width) for table in printed(experiment, result.table)))
    say(f"Table: {', '.join(map(str, result.tables))}")
    say(f"Figures: {', '.join(map(str, result.figures))}")
    say(f"Records: {result.records}  Configuration: {result.config}")
    if result.headline is not None:
        _console().print(plain(result.headline, style="bold"))
