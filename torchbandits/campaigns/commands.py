"""`torchbandits campaign …`: a campaign in a folder, for spreadsheets instead of Python.

The folder holds `candidates.parquet`, a copy of the candidates where they came as a CSV or Excel file, and `journal` with the
files that belong to it. Every command may be killed at any time and repeated.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import torch
import typer
from rich.console import Console
from rich.progress import Progress

from torchbandits.campaigns.campaign import Campaign
from torchbandits.campaigns.candidates import OPTIMAL
from torchbandits.campaigns.combining import combinations, parameter
from torchbandits.campaigns.conditions import on_offer
from torchbandits.campaigns.folder import CANDIDATES, JOURNAL, SETTINGS, copy_to, form_in, opened, renewed, resumed
from torchbandits.campaigns.options import parse_aims, parse_kind, parse_limit, parse_result, parse_total, parse_variances
from torchbandits.campaigns.outcome_campaign import OutcomeCampaign
from torchbandits.campaigns.output import (
    check_output,
    check_plate,
    print_table,
    rounded,
    say,
    say_none,
    warn,
    write,
    write_plate,
    write_results,
)
from torchbandits.campaigns.rehearsal import picture_kind, rehearse
from torchbandits.campaigns.rows_as_arms import RowsAsArms
from torchbandits.constraints import AtMost, Constraint, Distinct, Same, Total
from torchbandits.display import count
from torchbandits.errors import ConfigError, StateError, require
from torchbandits.files import check_folder, prepare_folder, write_atomically
from torchbandits.stopping import Budget, ImprovementPerCost, ProbableRegret, Rule
from torchbandits.tabular.ids import open_table
from torchbandits.tabular.spreadsheets import Form, form_of, padded_column
from torchbandits.tabular.tables import PARQUET, TEXT, InMemory, Table, as_table
from torchbandits.tabular.workbooks import WORKBOOK

if TYPE_CHECKING:
    import pandas as pd
else:
    from torchbandits.tabular.extras import pandas as pd

campaign_app = typer.Typer(
    help="Choose the next experiments from a table of candidates: `new` once, then `ask` and `tell` in turn.",
    no_args_is_help=True,
)
Folder = Annotated[Path, typer.Option("--folder", "-f", help="Folder of the campaign.")]
HERE = Path("campaign")
# A name with the word "id", such as "Sample ID", "sample_id" or "sampleId".
_ID = re.compile(r"(^|[\W_]|[a-z](?=I))(id|Id|ID)s?($|[\W_])")
_DASHES = {"ignore_unknown_options": True}
"""Settings of commands whose arguments may begin with a dash, such as negative numbers."""
_FIRST = 10
"""Number of combinations that are shown in a terminal."""
_UNINFORMATIVE = 0.05
"""Probability of belonging to the front below which the most probable row tells nothing about the front."""
_KEPT = "keeps the limits with a probability of 95 %"
Output = Annotated[
    Path | None, typer.Option(help="A CSV file, or an Excel workbook (.xlsx); by default CSV on standard output.")
]
Device = Annotated[str, typer.Option("--device", help="Where rows are scored: cpu, or cuda for an NVIDIA GPU.")]


@campaign_app.command("combinations")
def combine(
    parameters: Annotated[
        list[str],
        typer.Argument(
            metavar="NAME=VALUES...",
            help="The values of each parameter: solvent=water,DMF, temperature=20..120:10 (steps of 10), conc=0.001..1:x10 "
            "(each ten times the last).",
        ),
    ],
    where: Annotated[
        str | None, typer.Option(help="Only combinations that fulfil a condition: \"solvent != 'water' or temperature < 100\".")
    ] = None,
    count: Annotated[int | None, typer.Option("-n", min=1, help="Number of rows, drawn at random; by default all.")] = None,
    seed: Annotated[int, typer.Option(min=0, max=2**63 - 1, help="Seed of the random numbers.")] = 0,
    output: Annotated[
        Path | None, typer.Option(help="A CSV, Excel (.xlsx) or Parquet file; by default CSV on standard output.")
    ] = None,
) -> None:
    """Make a table of candidates from the possible values of each parameter: all their combinations, one per row."""
    values: dict[str, list[Any]] = {}
    for name, given in map(parameter, parameters):
        require(name not in values, f"the parameter {name!r} is given twice.", ConfigError)
        values[name] = given
    found = combinations(values, where=where, count=count, seed=seed)
    if output is not None and output.suffix.lower() in PARQUET:
        write_atomically(output, lambda temporary: found.to_parquet(temporary, index=False))
        say(f"{len(found):,} rows: {output}")
    elif output is None and sys.stdout.isatty():
        print_table(found.head(_FIRST))
        say(f"{len(found):,} rows; write them with --output candidates.csv.")
    else:
        write(found, output, Form())


@campaign_app.command("rehearse")
def rehearsal(
    results: Annotated[Path, typer.Argument(help="CSV, Excel, Parquet or Arrow file of rows whose results are known.")],
    objective: Annotated[str, typer.Option(help="Column of the results; cost:min minimises it.")],
    minimize: Annotated[bool, typer.Option("--minimize", help="Small results are good.")] = False,
    n: Annotated[int, typer.Option("-n", min=1, help="Number of rows of a plate.")] = 8,
    evaluations: Annotated[int, typer.Option(min=1, help="Number of evaluations of a campaign.")] = 48,
    trials: Annotated[int, typer.Option(min=1, help="Number of campaigns.")] = 10,
    noise_std: Annotated[
        float,
        typer.Option(min=0, help="Standard deviation of noise that is added to each result. With noise rows are repeated."),
    ] = 0.0,
    id: Annotated[str | None, typer.Option(help="Column of the ids; by default 'id', or else the row number.")] = None,
    column: Annotated[list[str] | None, typer.Option(help="Type of a column, as for `new`. Repeatable.")] = None,
    seed: Annotated[int, typer.Option(min=0, max=2**62, help="Seed of the random numbers.")] = 0,
    figure: Annotated[Path | None, typer.Option(help="A picture to write, .png or .svg.")] = None,
    output: Annotated[
        Path | None, typer.Option(help="A CSV file, or an Excel workbook (.xlsx), of all recommended rows.")
    ] = None,
) -> None:
    """Play campaigns on a table whose results are known, such as that of an earlier project, beside random rows: would they
    have found good rows, with how many evaluations? Nothing is kept."""
    check_output(output)
    for path in filter(None, (output, figure)):
        check_folder(path)
        same = path.exists() and results.exists() and path.samefile(results)
        require(not same, f"{path} is the table of the results: give what is written another name.", ConfigError)
    if figure is not None:
        picture_kind(figure)
    _, options = parse_aims([objective], minimize, [], None, [])
    options |= {"id": id, "columns": dict(parse_kind(text) for text in column or ())}
    del options["cost"], options["noise_std"]
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("campaigns", total=trials * evaluations)
        options |= {"n": n, "evaluations": evaluations, "trials": trials, "noise_std": noise_std, "seed": seed}
        found = rehearse(results, **options, progress=lambda rows: bar.advance(task, rows))
    for line in str(found).splitlines():
        say(line)
    if output is not None:
        table = as_table("results", results)
        form = form_of(results, table.arrow) if isinstance(table, InMemory) and results.suffix.lower() in TEXT else Form()
        write(found.curves, output, form)
    if figure is not None:
        say(f"Picture: {found.plot(figure)}")


@campaign_app.command()
def new(
    candidates: Annotated[Path, typer.Argument(help="CSV, Excel, Parquet or Arrow file with one row per candidate.")],
    objective: Annotated[
        list[str],
        typer.Option(
            help="Column of the measured outcome, which may not exist yet; cost:min minimises it. Repeat it for several, of "
            "which a column with a value in every row is known and not measured."
        ),
    ],
    minimize: Annotated[bool, typer.Option("--minimize", help="Minimise the outcome.")] = False,
    limit: Annotated[
        list[str] | None,
        typer.Option(help='A measured outcome with a limit: "toxicity <= 0.2". Repeat it for several.'),
    ] = None,
    id: Annotated[str | None, typer.Option(help="Column of the ids; by default 'id', or else the row number.")] = None,
    column: Annotated[
        list[str] | None,
        typer.Option(
            help="Type of a column: conc=log, solvent=category, ligand=substance, smiles=molecule, name=ignore, size=S<M<L. "
            "Repeatable."
        ),
    ] = None,
    only: Annotated[
        str | None, typer.Option("--candidates", help='Rows that may be selected: a column, or "temp < 80 and dry".')
    ] = None,
    cost: Annotated[
        str | None,
        typer.Option(help="Column of the cost of an evaluation: of two rows that promise as much the cheaper comes first."),
    ] = None,
    noise_std: Annotated[
        list[str] | None,
        typer.Option(help="Standard deviation of a measurement, if known; yield=0.5 for one of several outcomes."),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=2**63 - 1,
            help="Seed of the random numbers, 0 by default: the same table, options and results give the same rows.",
        ),
    ] = None,
    folder: Folder = HERE,
    device: Device = "cpu",
) -> None:
    """Start a campaign in a folder, and show how its columns are interpreted. A repeated call changes nothing but --candidates,
    if that is another condition ("" for none)."""
    kind, options = parse_aims(objective, minimize, limit or [], cost, noise_std or [])
    options |= {"id": id, "candidates": only, "device": device}
    options["columns"] = dict(parse_kind(text) for text in column or ())
    table = open_table(str(candidates), id)
    source = folder.absolute() / CANDIDATES if isinstance(table, InMemory) else candidates.absolute()
    if (folder / SETTINGS).exists():
        made, replaced = resumed(kind, options, table, source, folder, seed)
        changed = "only the condition of --candidates has changed" if replaced else "nothing has changed"
        status = f"{folder} holds this campaign already: {changed}."
    else:
        if isinstance(table, InMemory):
            # Errors must name the user's file, and be raised before anything is written.
            kind(candidates, **options)
        prepare_folder(folder)
        if isinstance(table, InMemory):
            copy_to(table, source)
        generator = torch.Generator().manual_seed(seed or 0)
        made = kind(source, journal=folder / JOURNAL, generator=generator, **options)
        status = f"The campaign is in {folder}."
    print_table(made.columns.to_pandas().reset_index())
    say(status)
    _say_begun(made, candidates, table, only, folder)


def _say_begun(made: Campaign, candidates: Path, table: Table, only: str | None, folder: Path) -> None:
    """Print what the rows of a campaign are, which of them may be selected, and what to do next."""
    told, names, rows = made.bandit.pulls.sum(), made.objective, table.count
    different = RowsAsArms(made.bandit).different(None)
    alike = f" To the model they are {different:,} different ones: the others differ in no feature." if different < rows else ""
    say(f"{candidates.name} has {count(rows, 'row')}, one per candidate.{alike}")
    if only:
        held = int(on_offer("candidates", table, only, strict=True).sum())
        say(f"{count(held, 'row')} of them may be selected, under the condition of --candidates.")
        different = min(different, held)
    padded = padded_column(candidates, table.arrow) if isinstance(table, InMemory) and table.lines else None
    if "id" not in [decision.kind for decision in made.columns]:
        say(_unnamed([decision.column for decision in made.columns], padded))
    if padded is not None:
        say(f"Column {padded[0]!r} was read as numbers: plates show {padded[1]!r} without its leading zeros.")
    known = f"{count(int(told), 'value')} of {names} {'is' if told == 1 else 'are'} known."
    say(known if told else f"No value of {names} is known yet.")
    where = "" if folder == HERE else f" --folder {folder}"
    plate = "--output plate.xlsx" if candidates.suffix.lower() in WORKBOOK else "--output plate.csv"
    say(f"Next: torchbandits campaign ask -n {min(8, different)}{where} {plate}")


@campaign_app.command()
def ask(
    n: Annotated[int, typer.Option("-n", min=1, help="Number of rows, pending ones included.")] = 8,
    more: Annotated[
        bool, typer.Option("--more", help="Add this number of rows to the pending ones. A repeated call adds rows again.")
    ] = False,
    where: Annotated[
        str | None,
        typer.Option(help="New rows that can be evaluated now: \"machine == 'B'\". Pending rows are written all the same."),
    ] = None,
    repeats: Annotated[
        bool | None,
        typer.Option(help="Select measured rows again or not; by default while that teaches something.", show_default=False),
    ] = None,
    once: Annotated[bool, typer.Option("--distinct", help="Select no row twice.")] = False,
    same: Annotated[
        list[str] | None,
        typer.Option(help="A column in which all rows have the same value, such as the temperature of a plate."),
    ] = None,
    at_most: Annotated[
        list[str] | None,
        typer.Option(help="Maximum number of rows with the same value of a column: supplier=4. Repeat it for several columns."),
    ] = None,
    total: Annotated[
        list[str] | None,
        typer.Option(help="Maximum sum of a column over the rows: price=4000. Repeat it for several columns."),
    ] = None,
    output: Output = None,
    folder: Folder = HERE,
    device: Device = "cpu",
) -> None:
    """Write the next rows to evaluate as CSV, with an empty column to fill in. A repeated call writes the same rows (without
    --more)."""
    with opened(folder, device) as campaign:
        check_plate(output, campaign.outcomes)
        within: list[Constraint] = [Distinct()] if once else []
        within += [Same(column) for column in same or ()]
        within += [AtMost(*parse_limit(text)) for text in at_most or ()]
        within += [Total(*parse_total(text)) for text in total or ()]
        plate = campaign.ask(n, more=more, where=where, repeats=repeats, within=within)
        write_plate(plate, campaign, output, folder)
        waiting = len(campaign.open)
        if waiting > len(plate):
            said = f"{waiting:,} rows are pending, and the first {len(plate):,} were written: -n {waiting} writes all."
            typer.echo(said, err=True)


@campaign_app.command(context_settings=_DASHES)
def plan(
    ids: Annotated[list[str], typer.Argument(help="Ids of rows that will be evaluated; twice for two evaluations.")],
    output: Output = None,
    folder: Folder = HERE,
    device: Device = "cpu",
) -> None:
    """Make rows of your own choice pending, and write all pending rows as CSV. A repeated call changes nothing."""
    with opened(folder, device) as campaign:
        check_plate(output, campaign.outcomes)
        write_plate(campaign.plan(ids), campaign, output, folder)


@campaign_app.command()
def tell(
    results: Annotated[list[Path], typer.Argument(help="Files with columns of ids and of measured values.")],
    again: Annotated[bool, typer.Option("--again", help="Count rows that were told before as new measurements.")] = False,
    noise_var: Annotated[
        list[str] | None,
        typer.Option(
            help="Column of the noise variance of each measurement; empty cells have the default. For several outcomes: "
            "yield=COLUMN, once per outcome."
        ),
    ] = None,
    block: Annotated[
        str | None,
        typer.Option(
            help="Column with the plate, day, machine or lot of each measurement. Measurements of one block may all be shifted "
            "by the same unknown amount, which is estimated and subtracted."
        ),
    ] = None,
    folder: Folder = HERE,
    device: Device = "cpu",
) -> None:
    """Learn from measured results. An empty cell is a failed evaluation, and <0.5 or >100 a limit of detection; a file that was
    told before does not count again."""
    with opened(folder, device) as campaign:
        variances = parse_variances(noise_var or [], several=isinstance(campaign, OutcomeCampaign))
        for path in results:
            say(f"{path}: {campaign.tell(path, again=again, noise_var=variances, block=block)}")
        if isinstance(campaign, OutcomeCampaign) and len(campaign.objectives) > 1:
            doubt = campaign.doubt() if bool((campaign.bandit.pulls > 0).any()) else ""
            say(f"The best rows so far: torchbandits campaign front, or report.{f' {doubt}' if doubt else ''}")
        elif bool((campaign.bandit.pulls > 0).all()):
            best = campaign.best(1).iloc[0]
            # The last columns are the average measurement of each outcome, and the number of measurements.
            value = best.iloc[-1 - len(campaign.outcomes)]
            known = f"{value:.6g} measured" if pd.notna(value) else "not measured yet"
            doubt = campaign.doubt()
            say(f"Best so far: {best.iloc[0]}, {campaign.outcomes[0]} {known}.{f' {doubt}' if doubt else ''}")


@campaign_app.command()
def best(
    k: Annotated[int, typer.Option("-n", "-k", min=1, help="Number of rows.")] = 5,
    where: Annotated[str | None, typer.Option(help='Only rows that fulfil a condition: "price < 100".')] = None,
    output: Output = None,
    folder: Folder = HERE,
    device: Device = "cpu",
) -> None:
    """Write the best rows measured so far, best first. If noise leaves open which is best, standard error says so."""
    with opened(folder, device) as campaign:
        found = campaign.best(k, where=where)
        write(rounded(found, campaign), output, form_in(folder))
        limits = isinstance(campaign, OutcomeCampaign) and len(campaign.objectives) > 1
        held = [_KEPT] * limits + ["fulfils the condition"] * (where is not None)
        say_none(found, f"No measured row {' and '.join(held)}.")
        warn(campaign)


@campaign_app.command()
def results(output: Output = None, folder: Folder = HERE) -> None:
    """Write all results told, one row per evaluation. `tell` of another campaign reads the file."""
    with opened(folder) as campaign:
        write_results(campaign, output, folder)


@campaign_app.command(context_settings=_DASHES)
def predict(
    ids: Annotated[list[str] | None, typer.Argument(help="Ids of rows; by default all rows.")] = None,
    where: Annotated[str | None, typer.Option(help='Only rows that fulfil a condition: "price < 100".')] = None,
    output: Output = None,
    folder: Folder = HERE,
    device: Device = "cpu",
) -> None:
    """Write what the model expects of rows, measured or not."""
    with opened(folder, device) as campaign:
        write(rounded(campaign.predict(ids or None, where=where), campaign), output, form_in(folder))


@campaign_app.command()
def front(
    measured: Annotated[bool, typer.Option("--measured", help="Write only rows that were measured.")] = False,
    output: Output = None,
    folder: Folder = HERE,
    device: Device = "cpu",
) -> None:
    """Write the Pareto front: rows within the limits that no other such row is expected to beat in all objectives."""
    with opened(folder, device) as campaign:
        require(
            isinstance(campaign, OutcomeCampaign),
            "a campaign with one objective has no front: see torchbandits campaign best.",
            StateError,
        )
        assert isinstance(campaign, OutcomeCampaign)
        found = campaign.front(measured=measured)
        write(rounded(found, campaign), output, form_in(folder))
        say_none(found, f"No {'measured ' if measured else ''}row {_KEPT}.")
        own = {*(decision.column for decision in campaign.columns), *campaign.outcomes}
        chance = max((found[name].max() for name in found.columns if name.endswith(OPTIMAL) and name not in own), default=1.0)
        if chance < _UNINFORMATIVE:
            typer.echo(
                f"No row is on the front with a probability above {chance:.1%}: too little was measured to rely on this front. "
                "With --measured only measured rows are written.",
                err=True,
            )
        warn(campaign)


@campaign_app.command()
def stop(
    within: Annotated[
        float | None,
        typer.Option(
            help="Stop when the best row is probably within this distance of the optimum. Needs --noise-std of `new`."
        ),
    ] = None,
    delta: Annotated[float, typer.Option(help="Allowed probability that it is not within this distance.")] = 0.05,
    price: Annotated[
        float | None,
        typer.Option(help="Stop when no row has this expected improvement per unit of cost. Needs --noise-std of `new`."),
    ] = None,
    measurements: Annotated[
        int | None,
        typer.Option(help="Stop after this number of measurements (of each outcome); failures do not count."),
    ] = None,
    budget: Annotated[
        float | None,
        typer.Option(help="Stop when the measurements have cost this much. Needs --cost of `new`; failures do not count."),
    ] = None,
    folder: Folder = HERE,
    device: Device = "cpu",
) -> None:
    """Print whether to stop, and the reason. The exit status is 0 to stop, and 1 to continue."""
    rules: list[Rule] = [Budget(measurements, budget)] if measurements is not None or budget is not None else []
    rules += [] if within is None else [ProbableRegret(within, delta)]
    rules += [] if price is None else [ImprovementPerCost(price)]
    require(bool(rules), "give at least one of --within, --price, --measurements and --budget.", ConfigError)
    with opened(folder, device) as campaign:
        decision = campaign.should_stop(*rules)
    say(f"Stop: {decision.reason}." if decision else "Go on.")
    raise typer.Exit(0 if decision else 1)


@campaign_app.command()
def explain(
    where: Annotated[
        str | None, typer.Option(help="The best row among those that fulfil a condition, such as 'price < 100'.")
    ] = None,
    folder: Folder = HERE,
    device: Device = "cpu",
) -> None:
    """Print what the model has learned: the best row, the columns that matter, the noise, and how sure it is. For several
    outcomes, the columns and the noise of each."""
    with opened(folder, device) as campaign:
        several = isinstance(campaign, OutcomeCampaign)
        message = "--where is for one objective: of several outcomes, explain tells the columns and the noise only."
        require(where is None or not several, message, ConfigError)
        for line in (campaign.explain() if several else campaign.explain(where=where)).lines():
            say(line)


@campaign_app.command()
def report(
    output: Annotated[Path | None, typer.Argument(help="The HTML file; by default report.html in the folder.")] = None,
    folder: Folder = HERE,
    device: Device = "cpu",
) -> None:
    """Write one HTML page of the campaign."""
    with opened(folder, device) as campaign:
        say(f"Report: {campaign.report(folder / 'report.html' if output is None else output)}")


@campaign_app.command()
def columns(folder: Folder = HERE) -> None:
    """Show how the columns of the table are interpreted."""
    with opened(folder) as campaign:
        print_table(campaign.columns.to_pandas().reset_index())


@campaign_app.command()
def extend(
    candidates: Annotated[Path, typer.Argument(help="CSV, Excel, Parquet or Arrow file with new rows of the same columns.")],
    folder: Folder = HERE,
    device: Device = "cpu",
) -> None:
    """Add candidates to the campaign, which keeps its results and pending rows."""
    with opened(folder, device) as campaign:
        before = int(campaign.bandit.pulls.sum())
        added, told = campaign.extend(candidates), int(campaign.bandit.pulls.sum()) - before
        history = f", and {count(told, 'value')} told" if told else ""
        rows = count(campaign.bandit.loop.num_arms, "row")
        say(f"{candidates}: {count(added, 'row')} added{history}. The campaign has {rows} now.")


@campaign_app.command()
def renew(
    candidates: Annotated[Path, typer.Argument(help="CSV, Excel, Parquet or Arrow file with all rows, old and new ones.")],
    to: Annotated[Path, typer.Option("--to", help="Folder of the new campaign.")],
    column: Annotated[
        list[str] | None,
        typer.Option(help="Type of a column, as for `new`; types that were given before are kept. Repeatable."),
    ] = None,
    folder: Folder = HERE,
    device: Device = "cpu",
) -> None:
    """Go on with another table in another folder: with new categories, molecules or columns, which `extend` refuses. Results
    and pending rows are taken over, and the campaign so far stays as it is."""
    made = renewed(folder, candidates, to, dict(parse_kind(text) for text in column or ()), device)
    print_table(made.columns.to_pandas().reset_index())
    told, rows = len(made.results()), count(made.bandit.loop.num_arms, "row")
    taken = f"{count(told, 'result')} and {count(len(made.open), 'pending row')}"
    say(
        f"The campaign in {to} goes on with the {rows} of {candidates.name}, and with {taken}. That in {folder} stays as it is."
    )
    say(f"Next: torchbandits campaign ask --folder {to}")
    made.close()


@campaign_app.command(context_settings=_DASHES)
def forget(
    ids: Annotated[list[str] | None, typer.Argument(help="Ids of rows that were selected and will not be evaluated.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Give up all pending rows.")] = False,
    folder: Folder = HERE,
) -> None:
    """Give up pending rows."""
    require(bool(ids) != everything, "give the ids of the rows, or --all.", ConfigError)
    with opened(folder) as campaign:
        before = len(campaign.open)
        campaign.forget(ids or None)
        say(f"{count(before - len(campaign.open), 'row')} given up, {len(campaign.open):,} pending.")


@campaign_app.command(context_settings=_DASHES)
def exclude(
    ids: Annotated[list[str] | None, typer.Argument(help="Ids of rows that are not to be selected any more.")] = None,
    where: Annotated[str | None, typer.Option(help="Rows that fulfil a condition: \"supplier == 'B'\".")] = None,
    folder: Folder = HERE,
) -> None:
    """Take rows out of selection until `include` puts them back; pending ones are given up. Results count as before."""
    require(bool(ids) or where is not None, "give the ids of the rows, or --where.", ConfigError)
    with opened(folder) as campaign:
        new = campaign.exclude(ids or None, where=where)
        say(f"{count(new, 'row')} excluded, {len(campaign.excluded):,} in all. {len(campaign.open):,} pending.")


@campaign_app.command(context_settings=_DASHES)
def include(
    ids: Annotated[list[str] | None, typer.Argument(help="Ids of excluded rows.")] = None,
    where: Annotated[str | None, typer.Option(help="Rows that fulfil a condition: \"supplier == 'B'\".")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Put all excluded rows back.")] = False,
    folder: Folder = HERE,
) -> None:
    """Put rows back that were excluded."""
    require((bool(ids) or where is not None) != everything, "give the ids of the rows, --where, or --all.", ConfigError)
    with opened(folder) as campaign:
        back = campaign.include(ids or None, where=where)
        say(f"{count(back, 'row')} put back, {len(campaign.excluded):,} excluded.")


@campaign_app.command(context_settings=_DASHES)
def correct(
    id: Annotated[str, typer.Argument(help="Id of the row with the wrong result.")],
    values: Annotated[
        list[str],
        typer.Argument(
            help="The right value: a number, `failed`, or `none` to take the result back. NAME=VALUE for each wrong one of "
            "several outcomes."
        ),
    ],
    was: Annotated[
        list[str] | None, typer.Option(help="The wrong value, if the row has several results; NAME=VALUE for several outcomes.")
    ] = None,
    folder: Folder = HERE,
    device: Device = "cpu",
) -> None:
    """Correct a result that was told, as if the right value had been told."""
    with opened(folder, device) as campaign:
        several = isinstance(campaign, OutcomeCampaign)
        right = [parse_result(text, several=several) for text in values]
        before = [parse_result(text, several=several) for text in was or ()]
        wrong = {name: math.nan if value is None else value for name, value in before}
        alone = several or (len(right) == 1 and len(wrong) <= 1)
        require(alone, f"this campaign has one outcome: give one value for {id!r}.", ConfigError)
        if isinstance(campaign, OutcomeCampaign):
            say(campaign.correct(id, dict(right), was=wrong or None))
        else:
            say(campaign.correct(id, right[0][1], was=wrong.get("")))


def _unnamed(names: Sequence[str], padded: tuple[str, str] | None) -> str:
    """The message of a new campaign for a table without a column of ids.

    Args:
        names: Its columns.
        padded: A column of numbers with leading zeros, which are rather names, and such a number.
    """
    own = next((name for name in names if _ID.search(name)), None if padded is None else padded[0])
    meant = "" if own is None else f" If {own!r} names them, begin anew, with --id {own!r} and another --folder."
    return f"There is no column called id: rows are named by their numbers, from 1.{meant}"
