"""`scripts/gpu.sh` without a GPU: refusals, the end of parts at their limit, and the files written by then."""

from __future__ import annotations

import importlib
import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def gpu():
    """The script as a module."""
    spec = importlib.util.spec_from_file_location("gpu_script", ROOT / "scripts" / "gpu.py")
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


@pytest.mark.exhaustive
@pytest.mark.skipif(torch.cuda.is_available(), reason="here is a GPU")
def test_without_a_gpu_it_says_so_in_one_line(tmp_path):
    done = subprocess.run(
        ["bash", ROOT / "scripts" / "gpu.sh", "--output", tmp_path / "out"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == "gpu.sh: PyTorch finds no CUDA device here; --rehearse runs the same on the CPU.\n"
    assert not (tmp_path / "out").exists()


def test_a_part_over_its_limit_is_ended_and_leaves_what_it_wrote(gpu, tmp_path):
    for limit in (1, 5, 25, 125):  # until the limit suffices for a shell to print its line on this machine
        slow = gpu.ran(gpu.Part("slow", ["sh", "-c", "echo so far; exec sleep 3600"], float(limit)), tmp_path)
        assert (slow.status, slow.outcome) == (None, f"ended at its limit of {limit} s")
        assert limit <= slow.seconds < 3600
        if (tmp_path / "slow.log").read_text():
            break
    assert (tmp_path / "slow.log").read_text() == "so far\n"
    failed = gpu.ran(gpu.Part("failed", ["sh", "-c", "exit 7"], 3600.0), tmp_path)
    assert failed.outcome == "failed with exit status 7"


def test_parts_share_the_seconds_that_are_left(gpu, tmp_path):
    parts = [gpu.Part(name, [], limit) for name, limit in (("a", 60.0), ("b", 30.0), ("c", 30.0))]
    assert gpu.share(parts, 240.0) == 120.0
    assert gpu.share(parts[1:], 220.0) == 110.0  # the first part took 20 of its 120 s
    assert gpu.share(parts[2:], 10.0) == 10.0
    timed = gpu.Part("timed", ["sh", "-c", 'echo "$@"', "sh"], 90.0, timed=True)
    assert gpu.ran(timed, tmp_path).outcome == "done"
    assert (tmp_path / "timed.log").read_text() == "--seconds 75.0\n"


def test_the_page_says_what_was_not_measured(gpu, tmp_path):
    about = gpu.described(rehearse=True)
    parts = gpu.parts_of(tmp_path, rehearse=True)
    assert sum(part.limit for part in parts) < 600
    (tmp_path / "bench").mkdir()
    (tmp_path / "bench" / "table.md").write_text("| A |\n|---|\n| 10,000 |\n")
    assert [part.name for part in parts] == [
        "tests",
        "bench",
        "pictures",
        "steps",
        "posterior",
        "replicates",
        "long",
        "regret",
        "profile",
    ]
    ended = gpu.replace(parts[1], seconds=parts[1].limit)
    gpu.write(tmp_path, about, [gpu.replace(parts[0], status=0, seconds=12.0), ended, parts[3]])
    told = json.loads((tmp_path / "gpu.json").read_text())
    assert [part["outcome"] for part in told["parts"]] == ["done", "ended at its limit of 125 s", "not run"]
    assert told["versions"]["torch"] == torch.__version__.split("+")[0] or told["versions"]["torch"] == torch.__version__
    page = (tmp_path / "gpu.md").read_text()
    assert "no figure here says anything of a GPU" in page
    assert "| 10,000 |" in page
    assert "The benchmark is not whole: ended at its limit of 125 s." in page
    assert "Not measured by this script: several GPUs" in page
    assert "This part is not whole: not run." in page
    assert "No report of tests" in page
    assert page.count("| not measured |") == 4


def test_the_page_has_the_largest_tasks_in_short(gpu, tmp_path):
    run = {"of": 1_000, "pulls of each": 1_000.0}
    cadata = {"table": "cadata", "policy": "batch_bkb"} | run
    large = {"arms": 10**8, "dtype": "float32", "sweep": "fused"}
    lines = {
        "posterior": [large | {"dictionary": 512, "seconds": 1.594}, {"arms": 10**6, "seconds": 9.0}],
        "replicates": [cadata | {"replicates": 1, "seconds": 2.0}, cadata | {"replicates": 64, "seconds": 3.0}],
        "long": [large | {"of": 10_000, "pulls of each": 1_234.0, "seconds": 20.0}],
    }
    for name, own in lines.items():
        (tmp_path / f"{name}.json").write_text(json.dumps({"lines": own}))
    assert [line.split(" | ")[1].removesuffix(" |") for line in gpu.in_short(tmp_path)[2:]] == [
        "1.59 s (fused)",
        "1.5 times (3 s and 2 s)",
        "not measured",
        "20 s, cut off at 1,234 of 10,000 pulls (fused)",
    ]
    # A run that was cut off has no time to compare.
    lines["replicates"][1]["pulls of each"] = 12.0
    (tmp_path / "replicates.json").write_text(json.dumps({"lines": lines["replicates"]}))
    assert "| not measured |" in gpu.in_short(tmp_path)[3]


@pytest.mark.parametrize("installed", [True, False])
def test_tests_run_in_processes_where_xdist_is_installed(gpu, tmp_path, monkeypatch, installed):
    monkeypatch.setattr(gpu.importlib.util, "find_spec", lambda name: installed or None)
    monkeypatch.setattr(gpu.os, "cpu_count", lambda: 16)
    command = gpu.parts_of(tmp_path, rehearse=False)[0].command
    assert (command[command.index("-n") + 1] == "14") if installed else ("-n" not in command)
    assert "no:benchmark" in command


def test_a_commit_with_changes_has_a_plus(gpu, tmp_path, monkeypatch):
    monkeypatch.setattr(gpu, "ROOT", tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert gpu.commit() is None
    own = ["git", "-c", "user.name=a", "-c", "user.email=a@b.c", "-C", str(tmp_path)]
    for command in (["init", "-q"], ["commit", "-q", "--allow-empty", "-m", "first"]):
        subprocess.run([*own, *command], check=True)
    clean = gpu.commit()
    assert len(clean) == 40
    (tmp_path / "changed").touch()
    assert gpu.commit() == clean + "+"


def test_the_tests_that_need_a_gpu_are_found(gpu, tmp_path):
    command = gpu.parts_of(tmp_path, rehearse=False)[0].command
    assert command[-2:] == ["-m", "cuda"]
    assert {Path(part).name for part in command if part.endswith(".py")} >= {
        "test_laws.py",
        "test_sources.py",
        "test_devices.py",  # by the fixture of all tests
    }


def test_some_parts_are_measured_beside_those_of_an_earlier_call(gpu, tmp_path, monkeypatch):
    def quick(part, folder):
        return gpu.replace(part, status=0, seconds=float(len(part.name)))

    monkeypatch.setattr(gpu, "ran", quick)

    def call(*given: str) -> int:
        monkeypatch.setattr(sys, "argv", ["gpu.py", "--rehearse", "--output", str(tmp_path), *given])
        return gpu.main()

    def measured() -> dict[str, str]:
        parts = json.loads((tmp_path / "gpu.json").read_text())["parts"]
        return {part["name"]: part["outcome"] for part in parts if part["date"] is not None}

    assert call("--parts", "long", "tests") == 0
    assert measured() == {"tests": "done", "long": "done"}
    assert call("--parts", "pictures") == 0
    assert measured() == {"tests": "done", "pictures": "done", "long": "done"}
    assert call("--parts", "nothing") == 2


def test_what_an_earlier_call_measured_is_not_taken_for_that_of_a_failed_part(gpu, tmp_path, monkeypatch):
    monkeypatch.setattr(gpu, "ran", lambda part, folder: gpu.replace(part, seconds=part.limit))
    (tmp_path / "lane").mkdir()
    (tmp_path / "tests.xml").write_text('<testsuites><testsuite tests="7" failures="0" errors="0" skipped="0"/></testsuites>')
    for name in ("steps", "long"):
        (tmp_path / "lane" / f"{name}.md").write_text(f"| measured before: {name} |")
    monkeypatch.setattr(sys, "argv", ["gpu.py", "--rehearse", "--output", str(tmp_path), "--parts", "steps", "tests"])
    assert gpu.main() == 0
    page = (tmp_path / "gpu.md").read_text()
    assert "No report of tests" in page
    assert "measured before: steps" not in page
    assert "measured before: long" in page


def test_a_part_that_an_earlier_version_measured_on_another_card_is_told_apart(gpu, tmp_path, monkeypatch):
    """Its report told date, commit and card once for all parts."""
    monkeypatch.setattr(gpu, "ran", lambda part, folder: gpu.replace(part, status=0, seconds=1.0))
    part = {"name": "long", "command": [], "limit": 80.0, "timed": True, "status": 0, "seconds": 5.0, "outcome": "done"}
    told = {"date": "2026-11-26T10:00:00+00:00", "commit": "82ef145c0ffee", "card": "NVIDIA H200", "parts": [part]}
    (tmp_path / "gpu.json").write_text(json.dumps(told))
    monkeypatch.setattr(sys, "argv", ["gpu.py", "--rehearse", "--output", str(tmp_path), "--parts", "tests"])
    assert gpu.main() == 0
    page = (tmp_path / "gpu.md").read_text()
    assert "| long | done | 5 | 80 | 2026-11-26T10:00:00+00:00, on NVIDIA H200 | 82ef145 |" in page
    assert page.count("on NVIDIA H200") == 1


def test_calls_of_the_host_are_not_counted_as_kernels(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "scripts" / "benchmarks"))
    profile = importlib.import_module("device_profile")
    seen = [SimpleNamespace(self_device_time_total=us) for us in (3.0, 0.0, 7.0)]
    assert [event.self_device_time_total for event in profile.on_device(seen)] == [7.0, 3.0]


@pytest.mark.exhaustive
def test_benchmark_and_package_need_neither_pydantic_nor_beartype():
    """A machine used only for a measurement may lack them: the benchmark is imported without either."""
    program = (
        "import sys\n"
        "sys.modules['pydantic'] = sys.modules['beartype'] = sys.modules['typer'] = None\n"
        f"sys.path.insert(0, {str(ROOT / 'scripts' / 'benchmarks')!r})\n"
        "from scaling import running\n"
        "from scaling.config import load_benchmark\n"
        f"print(load_benchmark({str(ROOT / 'configs' / 'bench' / 'gpu.yaml')!r}).device)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.stdout == "cuda\n", done.stderr


@pytest.fixture
def lane(monkeypatch: pytest.MonkeyPatch):
    """The benchmark of policies as a module."""
    spec = importlib.util.spec_from_file_location("lane_benchmark", ROOT / "scripts" / "benchmarks" / "lane.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    return module


@pytest.mark.exhaustive
def test_a_part_of_the_lane_writes_each_line_and_says_what_it_left_out(lane, tmp_path, monkeypatch):
    done = lane.measure("long", tmp_path, "cpu", 3600.0, small=True)
    assert [line["pulls of each"] for line in done] == [50.0, 50.0]
    told = json.loads((tmp_path / "long.json").read_text())
    assert told["lines"] == done
    assert told["not measured"] == []
    assert "Not measured" not in (tmp_path / "long.md").read_text()
    assert lane.measure("regret", tmp_path, "cpu", 0.0, small=True) == []
    assert "Not measured, for want of time: igp_ucb, 2, cpu; pi_gp_ucb, 1, cpu." in (tmp_path / "regret.md").read_text()

    def nowhere(name: str):
        raise lane.DataError(f"{name} is not here")

    monkeypatch.setattr(lane, "table_of", nowhere)
    done = lane.measure("replicates", tmp_path, "cpu", 3600.0, small=True)
    assert {line["failed"] for line in done} == {"DataError: made up is not here"}
    assert "Failed:" in (tmp_path / "replicates.md").read_text()


def test_a_run_that_takes_too_long_is_cut_and_says_its_pulls(lane):
    arms, means, _ = lane.table_of("made up")
    policy = lane.POLICIES["gp_ucb"]()
    cut = lane.course(policy, arms, means, [torch.Generator().manual_seed(0)], "cpu", 100, 0.0, 0.1)
    assert (cut["pulls of each"], cut["of"], cut["batches"]) == (0.0, 100, 0)
    described = {"policy": "gp_ucb", "device": "cpu"}
    assert "Cut off, for want of time: gp_ucb, cpu, after 0 of 100 pulls." in lane.table([described | cut], [])


def test_the_lane_covers_the_sizes_and_policies_of_its_page(lane):
    described = [line for line, _ in lane.steps("cuda", False)]
    assert {line["arms"] for line in described} == {10**4, 10**5, 10**6, 10**7}
    assert len({line["policy"] for line in described}) >= 10
    # Lines of the device come first.
    places = [line["device"] for line in described]
    assert places == sorted(places, key=["cuda", "cpu"].index)
    assert {line["device"] for line in described if line["arms"] <= 10**6} == {"cuda", "cpu"}
    assert {line["replicates"] for line, _ in lane.replicates("cuda", False)} == {1, 4, 16, 64, 256}
    first = [(line["policy"], line["table"], line["replicates"]) for line, _ in lane.replicates("cuda", False)][:4]
    assert first == [("batch_bkb", "cadata", rows) for rows in (1, 64, 16, 256)]
    assert {(line["arms"], line["dictionary"]) for line, _ in lane.posterior("cuda", False)} == {(10**8, 512), (10**6, 512)}
    runs = dict.fromkeys((line["arms"], line["dtype"]) for line, _ in lane.long("cuda", False))  # each with every sweep
    assert list(runs) == [(10**8, "float32"), (10**6, "float64")]
    assert [line["draws"] for line, _ in lane.regret("cuda", False)] == [12, 1]
