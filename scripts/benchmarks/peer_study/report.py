"""The page and its picture, from the records."""

from __future__ import annotations

from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd

from peer_study import tables
from peer_study.game import BUDGETS
from peer_study.methods import OURS
from peer_study.statistics import differences, pair, paired, ranks, summary

BY_TABLE = "Simple regret / mean regret by table; the smallest of each row is bold:\n"
AGAINST = "`auto` against each other method, on all runs that both have (negative differences are in favour of `auto`):\n"
MEASURES = {"simple_regret": "simple regret", "mean_regret": "mean regret"}

HEAD = """# Against other packages

How `auto` does beside other packages, on tables on which none of its settings were chosen, with all losses. This page is
written by `scripts/benchmarks/peers.py report` from the records in `docs/results/peers/records.csv`.

Each method picks rows of a table and receives noisy rewards. Features are standardised for all methods, and on each table
and seed the noise of the first, second, … evaluation is the same for all methods. There are two measures, on a scale on which
the best candidate of the table has regret 0 and the average candidate has regret 1:

- **simple regret**: the regret of the candidate that the method recommends at the end;
- **mean regret**: the mean regret of all candidates that the method evaluated.

Ranks compare the methods on one table with one seed; rank 1 has the least regret. Intervals are 95 % bootstrap intervals, which
resample the tables and then the seeds within each table. Seconds are the processor time of one thread
that a run spends in the method, without imports. They vary by up to a factor of two with the load of the machine.
"""

METHOD_NOTES = """## How the methods are run

- `random`: evaluates random candidates without repeats and recommends the best observed one.
- `forest_ucb`, `forest_ei`: scikit-learn's random forest of 100 trees, upper bound (mean + 2 deviations) or expected
  improvement over the spread of the trees. The first 10 candidates are random, and a batch consists of the candidates with the
  highest scores.
- `optuna_tpe`, `optuna_gp`: Optuna's samplers with their defaults search the box around the table (categories are categorical).
  Each suggestion is evaluated at the nearest candidate not yet evaluated, and Optuna is told that candidate. They recommend the
  best observed.
- `botorch`: `SingleTaskGP` with its defaults, fitted at every step, starting from the last fit. It evaluates LogEI at all
  candidates for single picks. For batches it uses qLogNEI over the 250 candidates with the highest LogEI and 250 random ones,
  with the 100 best evaluated candidates as its baseline. Beyond 500 rewards the hyper-parameters are fitted to 500 of them.
- `baybe`: `Campaign` with its defaults, on all candidates or on 5,000 random ones where there are more. The search space is
  made without BayBE's check of its values, which takes over fifteen minutes on some tables.
- `smac`: `HyperparameterOptimizationFacade` with its defaults, in the same box as Optuna.
- `auto`: `tb.auto()` without arguments.
- `batch_bkb`: `tb.batch_bkb` with a Matérn-5/2 kernel and width 2, refitted every 10 pulls. It is given the true
  standard deviation of the noise.

`forest`, `botorch` and `baybe` recommend the evaluated candidate with the highest posterior mean; `auto` and `batch_bkb`
recommend `best_arm()`. Only with the large budget may the peers evaluate a candidate again, in another batch (BayBE follows its
defaults). `auto` and `batch_bkb` may always evaluate a candidate again.

"""


def with_interval(row: pd.Series, digits: int) -> str:
    return f"{row['mean']:.{digits}f} ({row['low']:.{digits}f} to {row['high']:.{digits}f})"


def markdown(rows: list[list[str]], header: list[str]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def overall(records: pd.DataFrame, budget: str) -> str:
    """Mean ranks, mean regrets and seconds, by method."""
    seconds = paired(records, budget, "seconds").groupby(level="table").mean().mean()
    columns, order = [], None
    for measure in MEASURES:
        frame = paired(records, budget, measure)
        for digits, found in ((2, summary(ranks(frame))), (3, summary(frame))):
            order = found.index if order is None else order
            columns.append(found.apply(with_interval, axis=1, digits=digits))
    rows = [[f"`{m}`", *(column[m] for column in columns), f"{seconds[m]:.1f}"] for m in order]
    header = ["method", "rank, simple regret", "simple regret", "rank, mean regret", "mean regret", "seconds"]
    return markdown(rows, header)


def by_table(records: pd.DataFrame, budget: str) -> str:
    """Simple / mean regret by table and method; the smallest of each row is bold."""
    means = {m: paired(records, budget, m).groupby(level="table").mean() for m in MEASURES}
    methods, rows = list(means["simple_regret"].columns), []
    for name in means["simple_regret"].index:
        cells = []
        for method in methods:
            parts = []
            for mean in means.values():
                value, least = mean.loc[name, method], mean.loc[name].min()
                parts.append(f"**{value:.2f}**" if value <= least else f"{value:.2f}")
            cells.append(" / ".join(parts))
        rows.append([name, *cells])
    return markdown(rows, ["table", *(f"`{m}`" for m in methods)])


def losses(records: pd.DataFrame, budget: str, ours: str) -> str:
    """Our regret minus that of each peer over all runs that both have, and the tables on which the peer's regret is smaller."""
    parts, played = [], set(records[records["budget"] == budget]["method"]) - {ours}
    for measure, words in MEASURES.items():
        rows = []
        for method in sorted(played):
            frame = pair(records, budget, measure, ours, method)
            if frame.empty:
                continue
            means, row = frame.groupby(level="table").mean(), differences(frame, ours).iloc[0]
            lost = means.index[means[ours] > means[method]]
            found = [with_interval(row, 3), str(len(frame)), f"{len(lost)} of {len(means)}", ", ".join(lost) or "none"]
            rows.append([row["mean"], f"`{method}`", *found])
        rows = [line[1:] for line in sorted(rows, key=lambda line: -line[0])]
        parts.append(markdown(rows, ["against", f"{words}: `{ours}` less the other", "runs", "lost on", "tables lost"]))
    return "\n".join(parts)


def in_short(records: pd.DataFrame, budgets: list[str], ours: str) -> str:
    """Per budget and measure, our mean rank, the best other one, and the methods that are better or may be."""
    rows = []
    for budget in budgets:
        if not {ours} < set(paired(records, budget, "simple_regret").columns):
            continue
        peers = sorted(set(records[records["budget"] == budget]["method"]) - {ours})
        for measure, words in MEASURES.items():
            found = summary(ranks(paired(records, budget, measure)))["mean"]
            other = found.drop(ours).idxmin()
            frames = {peer: pair(records, budget, measure, ours, peer) for peer in peers}
            each = {peer: differences(frame, ours).iloc[0] for peer, frame in frames.items() if not frame.empty}
            better = [f"`{peer}`" for peer, row in each.items() if row["low"] > 0]
            undecided = [f"`{peer}`" for peer, row in each.items() if row["low"] <= 0 <= row["high"]]
            size = f"{BUDGETS[budget].pulls:,}, {BUDGETS[budget].batch} at a time"
            cells = [size, words, f"{found[ours]:.2f}", f"`{other}`, {found[other]:.2f}"]
            rows.append([*cells, ", ".join(better) or "none", ", ".join(undecided) or "none"])
    header = ["evaluations", "measure", f"mean rank of `{ours}`", "best other one", "shown to be better", "undecided"]
    words = (
        f"## In short\n\nWhether a method is better or worse than `{ours}` is judged by the interval of the paired\n"
        "difference, which contains 0 where it is undecided. All other methods that were run to the end are shown to be\n"
        "worse.\n\n"
        f"{markdown(rows, header)}"
    )
    return words if rows else ""


def draw(records: pd.DataFrame, budgets: list[str], path: Path) -> None:
    """Mean ranks with their intervals: a row of panels per measure, a column per budget."""
    figure, axes = plt.subplots(len(MEASURES), len(budgets), figsize=(1.5 + 3.6 * len(budgets), 6.4), squeeze=False)
    for row, (measure, words) in zip(axes, MEASURES.items(), strict=True):
        for axis, budget in zip(row, budgets, strict=True):
            found = summary(ranks(paired(records, budget, measure))).iloc[::-1]
            for place, (method, line) in enumerate(found.iterrows()):
                colour = "tab:red" if method in OURS else "tab:blue"
                axis.plot([line["low"], line["high"]], [place, place], color=colour)
                axis.plot(line["mean"], place, "o", color=colour)
            axis.set_yticks(range(len(found)), found.index)
            axis.set_xlabel(f"mean rank by {words} (1 is best)")
            axis.set_title(f"{BUDGETS[budget].pulls:,} evaluations, {BUDGETS[budget].batch} at a time", fontsize=10)
            axis.grid(axis="x", alpha=0.3)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def coverage(records: pd.DataFrame, budget: str) -> str:
    """The runs that are compared, and the recorded runs of which there are too few to compare."""
    frame = paired(records, budget, "simple_regret")
    names, seeds = frame.index.get_level_values("table"), frame.groupby(level="table").size()
    runs = records[records["budget"] == budget]
    rest = runs[~runs["method"].isin(frame.columns)].groupby("method")["seconds"].agg(["size", "mean"])
    least, most = seeds.min(), seeds.max()
    number = f"{least} to {most} seeds" if least < most else "one seed" if most == 1 else f"{most} seeds"
    words = f"{names.nunique()} tables, {number} each. The methods are compared on the runs that all of them have."
    if len(rest):
        words += " These have too few runs and are left out of the next two tables: "
        words += ", ".join(f"`{m}` ({line['size']:.0f} runs, {line['mean']:.0f} s each)" for m, line in rest.iterrows()) + "."
    return words + not_run(records, budget) + "\n"


def stopped_early(records: pd.DataFrame, budget: str, ours: str) -> str:
    """The runs that were stopped, each beside ours on the same table and seed; empty if there are none."""
    runs = records[records["budget"] == budget]
    stopped = runs[runs["evaluations"] < BUDGETS[budget].pulls].sort_values(["method", "table", "seed"])
    own = runs[runs["method"] == ours].set_index(["table", "seed"])
    rows = []
    for run in stopped.itertuples():
        cells = [f"`{run.method}`", run.table, str(run.seed), f"{run.evaluations:,}"]
        key = (run.table, run.seed)
        for one in (run, own.loc[key]) if key in own.index else (run,):
            cells += [f"{one.seconds:.1f}", f"{one.simple_regret:.3f}", f"{one.mean_regret:.3f}"]
        rows.append(cells)
    header = ["method", "table", "seed", "evaluations", "seconds", "simple regret", "mean regret"]
    header += [f"`{ours}`: {words}" for words in ("seconds", *MEASURES.values())]
    rows = [cells + ["–"] * (len(header) - len(cells)) for cells in rows]  # where ours was not run
    words = (
        "These runs were stopped when they had taken more processor time than they were given, and are not compared above. "
        f"Beside each is the whole run of `{ours}` on the same table and seed, of {BUDGETS[budget].pulls:,} evaluations. Mean "
        "regret falls in the course of a run, which makes that of the shorter run larger."
    )
    return f"### Stopped\n\n{words}\n\n{markdown(rows, header)}" if rows else ""


def not_run(records: pd.DataFrame, budget: str) -> str:
    """The methods without a whole run with this budget, with the mean time of a run with the recorded budget before it."""
    recorded = set(records["budget"])
    smaller = [b for b in list(BUDGETS)[: list(BUDGETS).index(budget)] if b in recorded]
    if not smaller or "auto" not in set(records["method"][records["budget"] == budget]):
        return ""
    seconds = records.groupby(["budget", "method"])["seconds"].mean()
    gone = sorted(set(seconds[smaller[-1]].index) - set(seconds[budget].index), key=lambda method: seconds[smaller[-1]][method])
    if not gone:
        return ""
    each = ", ".join(f"`{method}` ({seconds[smaller[-1]][method]:.0f} s)" for method in gone)
    return (
        f" Not run to the end here, with the time of a run of {BUDGETS[smaller[-1]].pulls:,} evaluations: {each}. A run of "
        f"{BUDGETS[budget].pulls:,} takes `auto` {seconds[budget]['auto']:.1f} s."
    )


def write_page(records: pd.DataFrame, page: Path) -> Path:
    """Write `page` and the picture `results/peers/ranks.png` beside it."""
    everything, pulls = records, records["budget"].map({name: budget.pulls for name, budget in BUDGETS.items()})
    records = everything[everything["evaluations"] == pulls]
    budgets = [b for b in BUDGETS if (records["budget"] == b).any()]
    if not budgets:
        raise ValueError("There are no records: `peers.py run` makes them.")
    picture = page.parent / "results" / "peers" / "ranks.png"
    draw(records, budgets, picture)
    parts = [HEAD, in_short(records, budgets, "auto"), "![Mean ranks by method](results/peers/ranks.png)\n"]
    for budget in budgets:
        size = BUDGETS[budget]
        parts += [f"## {size.pulls:,} evaluations, {size.batch} at a time\n", coverage(records, budget)]
        parts += [
            overall(records, budget),
            "Simple regret / mean regret by table; the smallest of each row is bold:\n",
            by_table(records, budget),
        ]
        if "auto" in paired(records, budget, "simple_regret").columns:
            parts.append(
                "`auto` against each other method, on all runs that both have (negative differences are in favour of `auto`):\n"
            )
            parts.append(losses(records, budget, "auto"))
            stopped = stopped_early(everything, budget, "auto")
            parts += [stopped] if stopped else []
    note = tables.__doc__ or ""
    parts += [METHOD_NOTES + "## The tables\n", note.split("\n", 2)[2].strip() + "\n", "## Versions\n"]
    versions = sorted({package for line in records["versions"] for package in line.split()})
    parts.append(f"{', '.join(versions)}; on {', '.join(sorted(set(records['cpu'])))}.\n")
    page.write_text("\n".join(parts))
    return page
