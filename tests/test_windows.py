"""Campaigns, journals and the stores of workers under the rules of Windows for files, which Linux does not have."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the emulation needs /proc and locks of Linux")

HERE = Path(__file__).parent
BEGIN = "import emulated_windows; emulated_windows.begin(); "


def environment() -> dict[str, str]:
    """The environment of a process that finds the emulation and the package."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), str(HERE.parent), os.environ.get("PYTHONPATH", "")])}


def program(folder: Path, text: str) -> subprocess.Popen[str]:
    """Begin a program under the rules of Windows, in a folder."""
    command, pipe = [sys.executable, "-W", "ignore", "-c", BEGIN + text], subprocess.PIPE
    return subprocess.Popen(command, cwd=folder, env=environment(), stdout=pipe, stderr=pipe, text=True)


def run(folder: Path, text: str) -> str:
    """Run a program that must succeed, and return what it printed."""
    process = program(folder, text)
    out, err = process.communicate()
    assert process.returncode == 0, err
    return out


def test_the_emulation_refuses_what_windows_refuses(tmp_path: Path):
    said = run(
        tmp_path,
        """
import os, shutil
def refused(call, *arguments):
    try: call(*arguments)
    except OSError as error: print(type(error).__name__, end=' ')
    else: print('allowed', end=' ')
os.mkdir('folder')
held, other = open('folder/held', 'w'), open('other', 'w')
held.write('one\\n'); held.flush()
other.close()
refused(os.replace, 'other', 'folder/held')
refused(os.rename, 'folder/held', 'other')
refused(os.unlink, 'folder/held')
refused(shutil.rmtree, 'folder')
held.close()
refused(os.replace, 'other', 'folder/held')
open('lines', 'w').write('one\\n')
print(os.path.getsize('lines'), hasattr(os, 'fork'))
try: import fcntl
except ImportError: print('no fcntl')
""",
    )
    assert said.split() == [*["PermissionError"] * 4, "allowed", "5", "False", "no", "fcntl"]


def test_a_journal_is_locked_until_its_process_ends(tmp_path: Path):
    """By one opening, in this process and in others; what was written before a kill is there."""
    opened = """
import torch, torchbandits as tb
from torchbandits.errors import StateError
arms = torch.linspace(0, 1, 20, dtype=torch.float64).unsqueeze(-1)
def made(): return tb.Bandit(tb.uniform(), arms, journal='run.journal', generator=torch.Generator().manual_seed(0))
def refused():
    try: made()
    except StateError as error: return 'is in use by another process' in str(error)
"""
    hold = "b = made(); s = b.ask(); b.tell(s, [0.5]); print(refused(), flush=True)\nimport time; time.sleep(300)"
    holder = program(tmp_path, opened + hold)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "True\n"
    assert run(tmp_path, opened + "print(refused())") == "True\n"
    holder.send_signal(signal.SIGKILL)
    holder.communicate()
    again = "b = made(); print(len(b.best(1).index)); b.journal.close(); print(len(made().best(1).index))"
    assert run(tmp_path, opened + again).split() == ["1", "1"]


def test_a_campaign_from_its_table_to_its_report(tmp_path: Path):
    """The commands that write, replace or remove files, in one process and then in another. The results are in UTF-16, as `>`
    of Windows PowerShell writes them."""
    draw = np.random.default_rng(0)
    rows = {
        "id": [f"row {n}" for n in range(40)],
        "heat": draw.uniform(20, 90, 40).round(1),
        "solvent": draw.choice(["a", "b"], 40),
    }
    frame = pd.DataFrame(rows)
    frame.to_csv(tmp_path / "candidates.csv", index=False)
    more = frame.assign(id=[f"new {n}" for n in range(40)], heat=frame["heat"] + 0.05)
    more.to_csv(tmp_path / "more.csv", index=False)
    others = more.assign(id=[f"other {n}" for n in range(40)], solvent="c")
    pd.concat([frame, more, others]).to_csv(tmp_path / "all.csv", index=False)
    commands = """
import warnings; warnings.simplefilter('ignore')
import pandas as pd
from torchbandits.cli import app
def call(*arguments):
    code = app(['campaign', *arguments], standalone_mode=False)
    assert not code, (arguments, code)
def evaluate():
    plate = pd.read_csv('plate.csv')
    plate['yield'] = plate['heat'] / 10
    with open('results.csv', 'wb') as file: file.write(plate.to_csv(index=False).encode('utf-16'))
    call('tell', 'results.csv')
    return plate['id'].tolist()
"""
    first = (
        "call('new', 'candidates.csv', '--objective', 'yield')\n"
        "call('ask', '-n', '6', '--output', 'plate.csv')\n"
        "rows = evaluate()\n"
        "call('correct', rows[0], '3.5')\n"
        "call('exclude', rows[1])\n"
        "call('report')"
    )
    run(tmp_path, commands + first)
    second = (
        "call('extend', 'more.csv')\n"
        "call('ask', '-n', '6', '--output', 'plate.csv')\n"
        "evaluate()\n"
        "call('results', '--output', 'told.csv')\n"
        "call('report')\n"
        "call('best', '--output', 'best.csv')\n"
        "call('renew', 'all.csv', '--to', 'renewed')"
    )
    run(tmp_path, commands + second)
    assert len(pd.read_csv(tmp_path / "told.csv")) == 12
    assert pd.read_csv(tmp_path / "best.csv")["id"][0].startswith(("row", "new"))
    assert (tmp_path / "campaign" / "report.html").stat().st_size > 10_000


def test_a_plate_that_a_spreadsheet_program_has_open_is_not_overwritten(tmp_path: Path):
    pd.DataFrame({"id": range(20), "heat": np.linspace(20, 90, 20)}).to_csv(tmp_path / "candidates.csv", index=False)
    said = run(
        tmp_path,
        """
from torchbandits.cli import app
def call(*arguments): return app(['campaign', *arguments], standalone_mode=False)
assert not call('new', 'candidates.csv', '--objective', 'yield')
assert not call('ask', '-n', '2', '--output', 'plate.xlsx')
import sys; sys.stderr = sys.stdout
held = open('plate.xlsx', 'rb')
print('now', call('ask', '-n', '2', '--output', 'plate.xlsx'))
""",
    )
    assert "plate.xlsx can't be written: [Errno 13] The process cannot access the file" in said
    assert said.endswith("Close it in the program that has it open, such as Excel.\nnow 2\n")


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("file", "left_out"),
    [
        ("test_campaign_cli.py", "interrupted"),
        ("test_campaign_correct.py", "kill"),
        ("test_campaign_extend.py", "never"),
        ("test_campaign_renew.py", "kill"),
        ("test_journal.py", "never"),
        ("test_molecule_campaign.py", "another_campaign"),
        ("test_worker.py", "never"),
        ("test_workbooks.py", "never"),
    ],
)
def test_whole_files_of_tests_pass_under_the_rules_of_windows(file: str, left_out: str):
    options = ["-q", "-p", "no:cacheprovider", "-p", "emulated_windows", "-k", f"not ({left_out})"]
    command = [sys.executable, "-m", "pytest", *options, str(HERE / file)]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3_000:]
