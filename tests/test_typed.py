"""Types as checked by a user's `mypy --strict`: a user's program, and every public name."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import numpy as np
import public_api
import pytest

HERE = Path(__file__).parent
UNTYPED = ("gpytorch", "pandas")  # packages without type annotations


@pytest.mark.exhaustive
def test_a_strict_user_finds_no_fault(tmp_path: Path):
    lines = [f"import {', '.join(public_api.MODULES)}"]
    for path in public_api.MODULES:
        names = public_api.public_names(importlib.import_module(path))
        lines += [f"{path.replace('.', '_')}_{name} = {path}.{name}" for name in names]
    (tmp_path / "every_name.py").write_text("\n".join(lines) + "\n")
    (tmp_path / "mypy.ini").write_text(
        "[mypy]\n" + "".join(f"[mypy-{name}.*]\nignore_missing_imports = True\n" for name in UNTYPED)
    )
    command = [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", "--config-file", "mypy.ini"]
    found = subprocess.run(
        [*command, "every_name.py", str(HERE / "typed_program.py")], cwd=tmp_path, capture_output=True, text=True
    )
    assert found.returncode == 0, found.stdout + found.stderr


def test_the_program_of_the_user_is_a_right_one():
    """The program is not only well typed: importing it shows that all names exist."""
    program = importlib.import_module("typed_program")
    assert callable(program.loop)
    assert program.of_arrays(np.random.default_rng(0).random((9, 2)) + 0.1) < 1
