"""Show or record the golden traces of the tests. `tests/golden.py` describes them and their file.

    python scripts/golden_traces.py show bkb              # the traces of a case, one field per line
    python scripts/golden_traces.py write                 # all traces, about a minute
    python scripts/golden_traces.py write --cases auto    # the traces of one policy, the others unchanged

`write` prints the first difference of each trace that changes. The commit message must give the reason for each change.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

import golden
import torch
from contract import CASES

from torchbandits.errors import DiagnosticWarning


def show(policies: list[str]) -> None:
    for name, trace in golden.load().items():
        if name.split(", ")[0] in policies:
            print(name)
            for field, value in trace.items():
                print(f"    {field}: {' '.join(value) if field == 'names' else value}")


def write(policies: list[str]) -> None:
    before = golden.load() if golden.FILE.exists() else {}
    traces = {}
    for case, variant in golden.runs():
        name = golden.name_of(case, variant)
        traces[name] = before[name] if case.name not in policies else golden.play(case, variant)
        if name not in before:
            print(f"{name}: new.")
        elif (difference := golden.first_difference(name, before[name], traces[name])) is not None:
            print(difference)
        else:
            # Differences within rounding do not change a line of the file.
            traces[name] = before[name]
    for name in sorted(before.keys() - traces.keys()):
        print(f"{name}: gone.")
    golden.FILE.write_text(golden.dump(traces))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    known = sorted({case.name for case in CASES})
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("show").add_argument("cases", nargs="+", choices=known, metavar="policy")
    commands.add_parser("write").add_argument("--cases", nargs="+", choices=known, default=known, metavar="policy")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", DiagnosticWarning)
    {"show": show, "write": write}[arguments.command](arguments.cases)


if __name__ == "__main__":
    main()
