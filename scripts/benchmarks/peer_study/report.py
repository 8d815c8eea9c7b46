"""The page and its picture, from the records."""

from __future__ import annotations

from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd

from peer_study import tables
from peer_study.game import BUDGETS
from peer_study.methods import OURS
from peer_study.statistics import differences, pair, paired, ranks, summary

MEASURES = {"simple_regret": "simple regret", "mean_regret": "mean regret"}

PURPOSE = """# Against other packages

How good are the choices of `auto` beside those of other packages, on tables on which none of its settings were chosen?
"""

MEASUREMENT = """## How it is measured

Each method picks rows of a table and receives noisy rewards. Features are standardised for all methods. On each table and
seed, the noise of the first, second, … evaluation is the same for all methods. Regret is scaled: the best candidate of the
table has 0, and the average candidate has 1.

- **Simple regret**: the regret of the candidate that the method recommends at the end.
- **Mean regret**: the mean regret of all candidates that the method evaluated.
- **Rank**: among the methods on one table with one seed; rank 1 has the least regret.
- **Intervals**: 95 % bootstrap intervals, which resample the tables and then the seeds within each table.
- **Seconds**: processor time of one thread spent in the method, without imports. They vary by up to a factor of two with
  the load of the machine.

[Regret by table](peers/tables.md) has every table apart, and where the tables come from.
`scripts/benchmarks/peers.py report` writes both pages from `docs/results/peers/records.csv`.
"""

METHOD_NOTES = """## How the methods are run

- `random`: random candidates without repeats. It recommends the best observed one, as do Optuna and SMAC.
- `forest_ucb`, `forest_ei`: scikit-learn's random forest of 100 trees, upper bound (mean + 2 deviations) or expected
  improvement over the spread of the trees. The first 10 candidates are random, and a batch has those with the highest scores.
- `optuna_tpe`, `optuna_gp`: Optuna's samplers with their defaults, in the box around the table (categories are categorical).
  Each suggestion is evaluated at the nearest candidate not yet evaluated, and Optuna is told that candidate.
- `botorch`: `SingleTaskGP` with its defaults, fitted at every step from the last fit. Single picks: LogEI at all candidates.
  Batches: qLogNEI over the 250 candidates with the highest LogEI and 250 random ones, with the 100 best evaluated candidates
  as baseline. Beyond 500 rewards the hyper-parameters are fitted to 500 of them.
- `baybe`: `Campaign` with its defaults, on all candidates or on 5,000 random ones where there are more. The search space is
  made without BayBE's check of its values, which takes over fifteen minutes on some tables.
- `smac`: `HyperparameterOptimizationFacade` with its defaults, in the same box as Optuna.
- `auto`: `tb.auto()` without arguments. It recommends `best_arm()`, and may always evaluate a candidate again.

The forests, `botorch` and `baybe` recommend the evaluated candidate with the highest posterior mean. The other packages may
evaluate a candidate again only with the large budget, in another batch (BayBE follows its defaults).

"""

TABLE_NOTES = """# Regret by table

On which tables does `auto` lose to another method? Each cell has the simple regret and the mean regret, means over the seeds;
the smallest of each row is bold. [Against other packages](../peers.md) defines both and has the means over all tables.
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
    least = sum(float(row[2]) < float(row[3].rpartition(", ")[2]) for row in rows)
    lost = sum(row[4] != "none" for row in rows)
    words = (
        f"## In short\n\n`{ours}` has the lowest mean rank in {least} of the {len(rows)} rows; another method is shown to be\n"
        f"better in {lost or 'none'} of them.\n\n{markdown(rows, header)}\n"
        "The last two columns go by the interval of the paired difference of regrets, which contains 0 where it is undecided.\n"
        f"A method that was run to the end and is in neither column is shown to be worse than `{ours}`.\n"
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
    words = f"{names.nunique()} tables, {number} each. Compared are the runs that all methods have."
    if len(rest):
        words += " Left out of the next table and of [regret by table](peers/tables.md) for too few runs: "
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
        "These runs exceeded their limit of processor time, and are not compared above. Beside each is the whole run of "
        f"`{ours}` on the same table and seed, of {BUDGETS[budget].pulls:,} evaluations. Mean regret falls in the course of a "
        "run, so that of the shorter run is larger."
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
        f" Not run to the end, with the time of a run of {BUDGETS[smaller[-1]].pulls:,} evaluations: {each}. A run of "
        f"{BUDGETS[budget].pulls:,} takes `auto` {seconds[budget]['auto']:.1f} s."
    )


def write_page(records: pd.DataFrame, page: Path) -> Path:
    """Write `page`, and `peers/tables.md` and the picture `results/peers/ranks.png` beside it."""
    everything, pulls = records, records["budget"].map({name: budget.pulls for name, budget in BUDGETS.items()})
    records = everything[everything["evaluations"] == pulls]
    budgets = [b for b in BUDGETS if (records["budget"] == b).any()]
    if not budgets:
        raise ValueError("There are no records: `peers.py run` makes them.")
    picture = page.parent / "results" / "peers" / "ranks.png"
    draw(records, budgets, picture)
    parts = [PURPOSE, in_short(records, budgets, "auto"), "![Mean ranks by method](results/peers/ranks.png)\n", MEASUREMENT]
    apart = [TABLE_NOTES]
    for budget in budgets:
        heading = f"## {BUDGETS[budget].pulls:,} evaluations, {BUDGETS[budget].batch} at a time\n"
        parts += [heading, coverage(records, budget), overall(records, budget)]
        apart += [heading, by_table(records, budget)]
        if "auto" in paired(records, budget, "simple_regret").columns:
            parts.append(
                "On all runs that both have. Negative differences are in favour of `auto`; a table is lost if the mean over\n"
                "its seeds is larger for `auto`.\n"
            )
            parts.append(losses(records, budget, "auto"))
            stopped = stopped_early(everything, budget, "auto")
            parts += [stopped] if stopped else []
    versions = sorted({package for line in records["versions"] for package in line.split()})
    parts += [METHOD_NOTES + "## Versions\n", f"{', '.join(versions)}; on {', '.join(sorted(set(records['cpu'])))}.\n"]
    page.write_text("\n".join(parts))
    note = tables.__doc__ or ""
    apart += ["## The tables\n", note.split("\n", 2)[2].strip() + "\n"]
    (page.parent / "peers").mkdir(exist_ok=True)
    (page.parent / "peers" / "tables.md").write_text("\n".join(apart))
    return page
