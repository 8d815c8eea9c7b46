"""CUB beside the dense GP and BKB: mean regret and model order against t, one column an acquisition.

    torchbandits run configs/sin_cos.yaml
    python scripts/cub_figures.py results/sin_cos docs/cub_sin_cos.png

Reads the records of an experiment whose policies are labelled `dense UCB`, `CUB UCB`, `BKB UCB`, and so for EI and PI. Prints
R_T/T, how far it is from the dense GP's (mean and 95 % t-interval over the repetitions, in pairs), and the model order.
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter
from numpy.typing import NDArray

from torchbandits.experiments import Record, load_records
from torchbandits.experiments.files import write_atomically
from torchbandits.experiments.plots import dictionary_size, mean_regret
from torchbandits.experiments.tables import mean_interval

ACQUISITIONS = ("UCB", "EI", "PI")
KINDS = {"dense": ("#000000", "-"), "CUB": ("#0072B2", "--"), "BKB": ("#D55E00", "-.")}
ROWS = {
    "regret of the first t pulls / t\n(reward units)": mean_regret,
    "model order\n(points in the posterior)": dictionary_size,
}
MARKS = (25, 50, 100, 200, 500, 1000, 2000)


def curves(records: list[Record], label: str, curve, t: NDArray[np.int64]) -> NDArray[np.float64]:
    """Repetitions x times, in order of the seed."""
    mine = sorted((record for record in records if record.label == label), key=lambda record: record.seed)
    return np.stack([curve(record, t) for record in mine])


def draw_panel(axes: Axes, records: list[Record], acquisition: str, curve, t: NDArray[np.int64]) -> None:
    for kind, (color, style) in KINDS.items():
        values = curves(records, f"{kind} {acquisition}", curve, t)
        mean, half = mean_interval(values)
        axes.plot(t, mean, color=color, linestyle=style, linewidth=1.5, label=kind)
        axes.fill_between(t, np.maximum(mean - half, values.min(axis=0)), mean + half, color=color, alpha=0.2, linewidth=0)
        if kind == "dense" and curve is mean_regret:
            axes.plot(t, 1.1 * mean, color="0.5", linestyle=":", linewidth=1.0, label="dense + 10 %")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axes.set_xlim(t[0], t[-1])
    axes.grid(visible=True, which="major", color="0.9")
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def print_table(records: list[Record], horizon: int) -> None:
    print("| acquisition | t | dense R_t/t | CUB R_t/t | CUB less dense | BKB R_t/t | model order dense, CUB, BKB |")
    print("|---|---|---|---|---|---|---|")
    for acquisition in ACQUISITIONS:
        for mark in sorted({mark for mark in MARKS if mark < horizon} | {horizon}):
            t = np.array([mark])
            regret = {kind: curves(records, f"{kind} {acquisition}", mean_regret, t)[:, 0] for kind in KINDS}
            order = {kind: curves(records, f"{kind} {acquisition}", dictionary_size, t)[:, 0] for kind in KINDS}
            shown = {kind: "{:.4g} ± {:.2g}".format(*map(float, mean_interval(values))) for kind, values in regret.items()}
            apart = [100 * float(value) / regret["dense"].mean() for value in mean_interval(regret["CUB"] - regret["dense"])]
            orders = ", ".join(f"{values.mean():.0f}" for values in order.values())
            print(
                f"| {acquisition} | {mark} | {shown['dense']} | {shown['CUB']} | {apart[0]:+.1f} ± {apart[1]:.1f} % "
                f"| {shown['BKB']} | {orders} |"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, help="output folder of the experiment")
    parser.add_argument("figure", type=Path)
    parser.add_argument("--title", default="")
    arguments = parser.parse_args()
    config, records = load_records(arguments.results)
    horizon = min(len(record.history) for record in records)
    t = np.unique(np.geomspace(1, horizon, 200).round().astype(np.int64))
    figure = Figure(figsize=(9, 5.4), layout="constrained")
    panels = figure.subplots(len(ROWS), len(ACQUISITIONS), sharex=True, sharey="row")
    for row, (label, curve) in enumerate(ROWS.items()):
        for column, acquisition in enumerate(ACQUISITIONS):
            axes = panels[row, column]
            draw_panel(axes, records, acquisition, curve, t)
            if column == 0:
                axes.set_ylabel(label)
            if row == 0:
                axes.set_title(acquisition, fontsize="medium")
            else:
                axes.set_xlabel("t (pulls)")
    title = arguments.title or config.name
    figure.suptitle(f"{title}: mean of {config.repetitions} repetitions, 95 % interval shaded", fontsize="medium")
    handles, labels = panels[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False, fontsize="small")
    arguments.figure.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(arguments.figure, partial(figure.savefig, dpi=100, pil_kwargs={"optimize": True}))
    print_table(records, horizon)
    print(f"written: {arguments.figure}")


if __name__ == "__main__":
    main()
