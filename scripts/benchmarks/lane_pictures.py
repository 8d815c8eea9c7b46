"""Pictures of the measurements of `lane.py`.

python scripts/benchmarks/lane_pictures.py docs/gpu/2026-11-26-h200/lane     # of steps.json and replicates.json there

Lines of an earlier run (`steps-first.json`) are drawn where the later one did not measure.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from torchbandits.figures import COLORS, STYLES, tidy

Line = dict[str, Any]
_COLUMNS = 4


def draw_steps(lines: list[Line]) -> Figure:
    """Milliseconds of an ask and a tell against the number of arms, one panel per policy, on the device and on the CPU."""
    policies = list(dict.fromkeys(line["policy"] for line in lines))
    rows = -(-len(policies) // _COLUMNS)
    figure = _figure(3.0 * _COLUMNS, 2.3 * rows)
    panels = figure.subplots(rows, _COLUMNS, sharex=True, sharey=True, squeeze=False)
    for panel in panels.flat[len(policies) :]:
        panel.set_visible(False)
    for panel, policy in zip(panels.flat, policies, strict=False):
        for place, device in enumerate(("cuda", "cpu")):
            own = sorted((line["arms"], line["ask ms"] + line["tell ms"]) for line in lines if _is(line, policy, device))
            if not own:
                continue
            label = {"cuda": "GPU", "cpu": "CPU"}[device]
            x, y = ([A for A, _ in own], [ms for _, ms in own])
            panel.plot(x, y, linestyle=STYLES[place], color=COLORS[place + 4], marker="o", ms=4, label=label)
        panel.set_title(policy, fontsize="medium")
        panel.set_xscale("log")
        panel.set_yscale("log")
        tidy(panel)
    figure.supxlabel("arms")
    figure.supylabel("milliseconds of an ask and a tell")
    figure.legend(*panels.flat[0].get_legend_handles_labels(), loc="outside upper right", ncols=2, frameon=False)
    return figure


def _is(line: Line, policy: str, device: str) -> bool:
    return line["policy"] == policy and line["device"] == device and "failed" not in line


def draw_replicates(lines: list[Line]) -> Figure:
    """Seconds of whole runs against the number of replicates that are the batch rows of one run."""
    whole = [line for line in lines if line.get("pulls of each", 0) >= line.get("of", 1)]
    figure = _figure(6.0, 4.0)
    axes = figure.subplots()
    for place, key in enumerate(dict.fromkeys((line["table"], line["policy"]) for line in whole)):
        own = sorted((line["replicates"], line["seconds"]) for line in whole if (line["table"], line["policy"]) == key)
        x, y = zip(*own, strict=True)
        axes.plot(x, y, linestyle=STYLES[place], color=COLORS[place], marker="o", ms=4, label=f"{key[1]}, {key[0]}")
    numbers = sorted({line["replicates"] for line in whole})
    axes.set_xscale("log", base=4)
    axes.set_xticks(numbers, [str(n) for n in numbers])
    axes.set_ylim(bottom=0)
    axes.set_xlabel("replicates in one run")
    axes.set_ylabel("seconds of the run")
    axes.legend(frameon=False)
    tidy(axes)
    return figure


def _figure(width: float, height: float) -> Figure:
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


DRAWN = {"steps": draw_steps, "replicates": draw_replicates}


def write_picture(name: str, folder: Path, lines: list[Line]) -> None:
    """Write the picture of a part that has one, unless nothing was measured."""
    if name in DRAWN and any("failed" not in line for line in lines):
        DRAWN[name](lines).savefig(folder / f"{name}.png", dpi=130)


def main() -> None:
    """Draw what is in a folder."""
    folder = Path(sys.argv[1])
    for name in DRAWN:
        found: dict[tuple[str, ...], Line] = {}
        for path in sorted(folder.glob(f"{name}*.json")):
            for line in json.loads(path.read_text(encoding="utf-8"))["lines"]:
                found[tuple(str(line.get(key)) for key in ("policy", "arms", "device", "table", "replicates"))] = line
        write_picture(name, folder, list(found.values()))


if __name__ == "__main__":
    main()
