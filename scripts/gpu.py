"""Tests and benchmark on a GPU, with a separate time limit for each part: the program behind `bash scripts/gpu.sh`.

Every part is a process. `gpu.json` and `gpu.md` are written after each part, and the benchmark writes each line as soon as it
is measured. The folder therefore contains all measurements made so far, however a part ends.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import platform
import re
import signal
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import torch

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("torch", "gpytorch", "botorch", "numpy", "pandas", "scikit-learn", "numba")
LANE = ROOT / "scripts" / "benchmarks" / "lane.py"
PROFILE = ROOT / "scripts" / "benchmarks" / "device_profile.py"
# The parts of that program, their limits in seconds, and their titles.
LANES = {
    "steps": (60.0, "An ask and a tell of each policy, here and on the CPU"),
    "posterior": (35.0, "A new posterior of 10⁸ and of 10⁶ arms"),
    "replicates": (60.0, "Whole runs on Cadata and NAS-Bench-101 with 1 to 256 replicates as batch rows"),
    "long": (80.0, "BBKB, 10,000 pulls, on 10⁸ and on 10⁶ arms"),
    "regret": (60.0, "IGP-UCB and π-GP-UCB on Matérn functions of three features"),
}
# Seconds that such a part reserves for its imports and its last line.
_SPARE = 15.0
NOT_MEASURED = (
    "several GPUs, the numbers of kernel launches (`tests/test_launches.py`), and the benchmark of one posterior on a CPU "
    "(`python scripts/benchmarks/bench.py configs/bench/cpu.yaml`)"
)


@dataclass(frozen=True)
class Part:
    """One part, run in its own process: `status` is its exit status, or None if it exceeded its limit of `limit` seconds. A
    `timed` part is told how long it may measure. `date`, `commit` and `card` (None on the CPU) are those of its measurement."""

    name: str
    command: list[str]
    limit: float
    timed: bool = False
    status: int | None = None
    seconds: float | None = None
    date: str | None = None
    commit: str | None = None
    card: str | None = None

    @property
    def outcome(self) -> str:
        """The outcome of the part in words."""
        if self.seconds is None:
            return "not run"
        if self.status is None:
            return f"ended at its limit of {self.limit:.0f} s"
        return "done" if self.status == 0 else f"failed with exit status {self.status}"


def main() -> int:
    """Run the parts. Returns 0 if all of them succeeded, or reached their time limit with partial results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rehearse", action="store_true", help="On the CPU, with small sizes.")
    parser.add_argument("--output", type=Path, help="The folder; results/gpu or results/gpu-rehearsal by default.")
    parser.add_argument("--seconds", type=float, help="Seconds for all parts together; about ten minutes by default.")
    parser.add_argument("--only", choices=("bench", "pictures"), help=argparse.SUPPRESS)
    parser.add_argument("--parts", nargs="+", metavar="PART", help="Some parts; the folder's measurements of the others stay.")
    given = parser.parse_args()
    folder = (given.output or ROOT / "results" / ("gpu-rehearsal" if given.rehearse else "gpu")).resolve()
    if given.only is not None:
        bench(folder, given.rehearse, given.only)
        return 0
    if not given.rehearse and not torch.cuda.is_available():
        print("gpu.sh: PyTorch finds no CUDA device here; --rehearse runs the same on the CPU.", file=sys.stderr)
        return 2
    folder.mkdir(parents=True, exist_ok=True)
    about = described(given.rehearse)
    done: list[Part] = []
    every = parts_of(folder, given.rehearse)
    asked = [part.name for part in every] if given.parts is None else given.parts
    if unknown := sorted(set(asked) - {part.name for part in every}):
        print(f"gpu.sh: no part {unknown[0]}; there are {', '.join(part.name for part in every)}.", file=sys.stderr)
        return 2
    earlier = earlier_parts(folder)
    parts = [part for part in every if part.name in asked]

    def report() -> None:
        """Write the report, of an earlier call where a part was not measured by this one."""
        known = {part.name: part for part in parts} | earlier | {part.name: part for part in done}
        write(folder, about, [known[part.name] for part in every if part.name in known])

    report()
    until = time.perf_counter() + (given.seconds or sum(part.limit for part in parts))
    while len(done) < len(parts):
        part = parts[len(done)]
        # The benchmark has already drawn the pictures.
        if part.name == "pictures" and done and (done[-1].name, done[-1].status) == ("bench", 0):
            parts.remove(part)
            earlier.pop(part.name, None)
            continue
        part = replace(part, limit=share(parts[len(done) :], until - time.perf_counter()))
        print(f"{part.name}: at most {part.limit:.0f} s", flush=True)
        earlier.pop(part.name, None)
        forget(folder, part.name)
        report()
        done.append(replace(ran(part, folder), date=now(), commit=about["commit"], card=about["card"]))
        report()
        print(f"{part.name}: {done[-1].outcome}, {done[-1].seconds:.0f} s", flush=True)
    report()
    print(f"Results: {folder}")
    return 1 if any(part.status not in (0, None) for part in done) else 0


def earlier_parts(folder: Path) -> dict[str, Part]:
    """The parts that an earlier call has measured into the folder, by name."""
    if not (folder / "gpu.json").exists():
        return {}
    told = json.loads((folder / "gpu.json").read_text(encoding="utf-8"))
    # Reports of earlier versions tell date, commit and card of all parts together.
    common = {name: told.get(name) for name in ("date", "commit", "card")}
    known = [common | {name: part[name] for name in Part.__dataclass_fields__ if name in part} for part in told["parts"]]
    return {part["name"]: Part(**part) for part in known if part["seconds"] is not None}


def forget(folder: Path, name: str) -> None:
    """Remove what an earlier call has measured in a part, so that it is not taken for the result of a part that fails."""
    for path in {
        "tests": [folder / "tests.xml"],
        "bench": [*(folder / "bench").glob("*")],
        "profile": [folder / "profile.txt"],
    }.get(name, [*(folder / "lane").glob(f"{name}.*")]):
        if path.is_file():
            path.unlink()


def share(parts: list[Part], seconds: float) -> float:
    """The seconds of the first part, where those that are left are divided in proportion to the limits."""
    return max(1.0, seconds) * parts[0].limit / sum(part.limit for part in parts)


def parts_of(folder: Path, rehearse: bool) -> list[Part]:
    """The parts: tests that need a GPU, or a few that emulate one; the benchmark; and pictures of its measurements."""
    # The fixture `lane` of all tests has a mark, too.
    needs = re.compile(r"pytest\.mark\.cuda|\blane: ")
    marked = [str(path) for path in sorted((ROOT / "tests").rglob("test_*.py")) if needs.search(path.read_text())]
    which = ["tests/test_devices.py", "-k", "source_on_cuda"] if rehearse else [*marked, "-m", "cuda"]
    report = f"--junitxml={folder / 'tests.xml'}"
    # pytest-benchmark warns beside pytest-xdist, and the tests treat warnings as errors.
    options = ["-p", "no:cacheprovider", "-p", "no:benchmark"]
    if importlib.util.find_spec("xdist") is not None:
        options += ["-n", str(min(14, os.cpu_count() or 1))]
    again = [sys.executable, str(Path(__file__)), "--output", str(folder), *(["--rehearse"] if rehearse else [])]
    return [
        Part("tests", [sys.executable, "-m", "pytest", "-q", *options, report, *which], 110),
        Part("bench", [*again, "--only", "bench"], 125),
        Part("pictures", [*again, "--only", "pictures"], 25),
        *(lane_of(name, folder, rehearse) for name in LANES),
        Part("profile", [sys.executable, str(PROFILE), "--output", str(folder / "profile.txt"), *where_of(rehearse)], 40),
    ]


def lane_of(name: str, folder: Path, rehearse: bool) -> Part:
    """A part of the benchmark of policies."""
    limit = LANES[name][0]
    command = [sys.executable, str(LANE), name, "--folder", str(folder / "lane"), *where_of(rehearse)]
    return Part(name, command, limit, timed=True)


def where_of(rehearse: bool) -> list[str]:
    """The arguments that name the device, and small sizes for a rehearsal."""
    return ["--device", "cpu", "--small"] if rehearse else ["--device", "cuda"]


def ran(part: Part, folder: Path) -> Part:
    """Run a part, write its output to a log, end all processes that it started, and return the part with its status."""
    began = time.perf_counter()
    command = [*part.command, *(["--seconds", str(part.limit - min(_SPARE, part.limit / 3))] if part.timed else [])]
    with open(folder / f"{part.name}.log", "w", encoding="utf-8") as log:
        process = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            status: int | None = process.wait(part.limit)
        except subprocess.TimeoutExpired:
            status = None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return replace(part, status=status, seconds=time.perf_counter() - began)


def bench(folder: Path, rehearse: bool, what: str) -> None:
    """Run the benchmark, or draw its measurements, without the command line, which needs pydantic."""
    import pandas as pd  # noqa: PLC0415 - the parts need more packages than the script that runs them
    from rich.console import Console  # noqa: PLC0415

    sys.path.insert(0, str(ROOT / "scripts" / "benchmarks"))
    from scaling.config import load_benchmark  # noqa: PLC0415
    from scaling.running import run_benchmark, write_benchmark  # noqa: PLC0415

    config = replace(load_benchmark(ROOT / "configs" / "bench" / "gpu.yaml"), output=str(folder / "bench"), together=True)
    if rehearse:
        base = replace(config.base, arms=500, dictionary=16, pulls=60)
        small = {"arms": (200, 500), "dictionary": (16,), "pulls": (60,), "methods": ("torchbandits",), "repetitions": 1}
        config = replace(config, base=base, device="cpu", memory_limit=4.0, memory_budget=1.0, **small)
    if what == "bench":
        run_benchmark(config, console=Console(file=sys.stdout, width=120))
    else:
        write_benchmark(config, pd.read_parquet(config.folder / "results.parquet"))


# ---------------------------------------------------------------------- output


def described(rehearse: bool) -> dict[str, Any]:
    """Date, machine and versions."""
    about: dict[str, Any] = {
        "date": now(),
        "rehearsal": rehearse,
        "commit": commit(),
        "machine": f"{platform.machine()}, {os.cpu_count()} CPU cores, {platform.system()} {platform.release()}",
        "card": None,
        "driver": None,
        "cuda": torch.version.cuda,
        "versions": {"python": platform.python_version()} | {name: version_of(name) for name in PACKAGES},
    }
    if not rehearse:
        properties = torch.cuda.get_device_properties(0)
        about["card"] = f"{properties.name}, {properties.total_memory / 2**30:.0f} GiB"
        about["driver"] = driver()
    return about


def now() -> str:
    """The time in UTC."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def version_of(package: str) -> str | None:
    """The installed version, or None."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def commit() -> str | None:
    """The commit of this checkout, with a plus where files differ from it, if git knows it."""
    asked = (["git", "rev-parse", "HEAD"], ["git", "status", "--porcelain"])
    try:
        head, changes = (subprocess.run(own, cwd=ROOT, capture_output=True, text=True, check=True).stdout for own in asked)
    except (OSError, subprocess.SubprocessError):
        return None
    return head.strip() + ("+" if changes.strip() else "")


def driver() -> str | None:
    """The version of the driver, if nvidia-smi reports it."""
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout.splitlines()[0].strip()
    except (OSError, subprocess.SubprocessError, IndexError):
        return None


def write(folder: Path, about: dict[str, Any], parts: list[Part]) -> None:
    """Write `gpu.json` and `gpu.md` atomically."""
    told = about | {"tests": counted(folder / "tests.xml"), "parts": [asdict(p) | {"outcome": p.outcome} for p in parts]}
    for name, text in (("gpu.json", json.dumps(told, indent=2) + "\n"), ("gpu.md", page(folder, told))):
        temporary = folder / f".{name}.tmp"
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(folder / name)


def counted(report: Path) -> dict[str, int] | None:
    """Counts of tests from pytest's report, or None before there is one."""
    if not report.exists():
        return None
    suites = list(ElementTree.parse(report).getroot().iter("testsuite"))
    return {name: sum(int(suite.get(name, 0)) for suite in suites) for name in ("tests", "failures", "errors", "skipped")}


def page(folder: Path, told: dict[str, Any]) -> str:
    """The report in Markdown, with the table of the benchmark and the list of missing measurements."""
    versions = ", ".join(f"{name} {version}" for name, version in told["versions"].items() if version)
    system = f"Driver {told['driver'] or 'unknown'}, CUDA {told['cuda'] or 'none'}; {told['machine']}; {versions}"
    where = "a rehearsal on the CPU: **no figure here says anything of a GPU**" if told["rehearsal"] else told["card"]
    lines = [
        "# On a GPU" if not told["rehearsal"] else "# Rehearsal, without a GPU",
        "",
        f"{told['date']}, {where}. {system}.",
        "",
        "| part | outcome | seconds | limit | measured | commit |",
        "|---|---|---|---|---|---|",
    ]
    for part in told["parts"]:
        seconds = "–" if part["seconds"] is None else f"{part['seconds']:.0f}"
        when = part["date"] or "–"
        if part["date"] is not None and part["card"] != told["card"]:
            when += f", on {part['card'] or 'the CPU'}"
        commit = "–" if part["commit"] is None else part["commit"][:7] + "+" * part["commit"].endswith("+")
        lines.append(f"| {part['name']} | {part['outcome']} | {seconds} | {part['limit']:.0f} | {when} | {commit} |")
    lines += ["", "## In short", "", *in_short(folder / "lane")]
    lines += ["", "## Tests", "", said(told["tests"]), "", "## A new posterior, and a pull", ""]
    table = folder / "bench" / "table.md"
    lines.append(table.read_text(encoding="utf-8") if table.exists() else "Nothing was measured.\n")
    ended = [p for p in told["parts"] if p["name"] == "bench" and p["outcome"] != "done"]
    if ended:
        lines.append(f"The benchmark is not whole: {ended[0]['outcome']}. What is missing in the table was not measured.\n")
    for picture in sorted((folder / "bench").glob("*.png")):
        lines.append(f"![{picture.stem}](bench/{picture.name})")
    for name, (_, title) in LANES.items():
        measured = folder / "lane" / f"{name}.md"
        lines += ["", f"## {title}", ""]
        lines.append(measured.read_text(encoding="utf-8") if measured.exists() else "Nothing was measured.\n")
        if (folder / "lane" / f"{name}.png").exists():
            lines.append(f"![{title}](lane/{name}.png)\n")
        lines += [
            f"This part is not whole: {part['outcome']}.\n"
            for part in told["parts"]
            if part["name"] == name and part["outcome"] != "done"
        ]
    if (folder / "profile.txt").exists():
        lines += ["", "## Where the time of a step goes", "", "See profile.txt."]
    lines += ["", f"Not measured by this script: {NOT_MEASURED}.", ""]
    return "\n".join(lines)


def in_short(folder: Path) -> list[str]:
    """The largest tasks in a table, from the lines of the parts."""

    def found(part: str, **wanted: Any) -> list[dict[str, Any]]:
        path = folder / f"{part}.json"
        lines = json.loads(path.read_text(encoding="utf-8"))["lines"] if path.exists() else []
        return [line for line in lines if "seconds" in line and wanted.items() <= line.items()]

    def run(line: dict[str, Any]) -> str:
        cut = f", cut off at {line['pulls of each']:,.0f} of {line['of']:,} pulls"
        return f"{line['seconds']:.3g} s{cut if line['pulls of each'] < line['of'] else ''}"

    large = {"arms": 10**8, "dtype": "float32"}
    posterior = [f"{line['seconds']:.3g} s ({line['sweep']})" for line in found("posterior", **large, dictionary=512)]
    cadata = {"table": "cadata", "policy": "batch_bkb"}
    both = [found("replicates", **cadata, replicates=rows) for rows in (1, 64)]
    times = [f"{one[0]['seconds']:.3g}" for one in both if one and one[0]["pulls of each"] == one[0]["of"]]
    multiple = f"{float(times[1]) / float(times[0]):.3g} times ({times[1]} s and {times[0]} s)" if len(times) == 2 else ""
    rows = {
        "New posterior of 10⁸ x 8 float32 arms, dictionary of 512": "; ".join(posterior),
        "64 replicates of BBKB on Cadata, as a multiple of one": multiple,
        "IGP-UCB, d = 3, 10,000 pulls of 12 batch rows": "; ".join(map(run, found("regret", policy="igp_ucb", draws=12))),
        "BBKB, 10,000 pulls on 10⁸ float32 arms": "; ".join(f"{run(x)} ({x['sweep']})" for x in found("long", **large)),
    }
    return ["| task | measured |", "|---|---|", *(f"| {task} | {text or 'not measured'} |" for task, text in rows.items())]


def said(tests: dict[str, int] | None) -> str:
    """The numbers of tests that ran and failed, in words."""
    if tests is None:
        return "No report of tests: none ended, see tests.log."
    wrong = tests["failures"] + tests["errors"]
    return f"{tests['tests']} tests, {wrong} failed, {tests['skipped']} skipped; see tests.log."


if __name__ == "__main__":
    sys.exit(main())
