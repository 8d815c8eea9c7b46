"""The pages of compared methods are those of the committed files."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "scripts" / "benchmarks"))
import methods  # noqa: E402


def test_the_pages_are_generated_from_the_committed_files(tmp_path: Path):
    written = methods.pages(tmp_path)
    assert {"index.md", *(path.name for path in written)} == {path.name for path in methods.PAGES.glob("*.md")}
    for path in written:
        assert path.read_text() == (methods.PAGES / path.name).read_text(), "python scripts/benchmarks/methods.py page"


def test_every_problem_has_ten_seeds_of_every_policy():
    rows = methods.read(methods.FOLDER / "methods.csv")
    for problem in {row["problem"] for row in rows}:
        own = [row for row in rows if row["problem"] == problem]
        for policy in {row["policy"] for row in own}:
            assert sorted(int(row["seed"]) for row in own if row["policy"] == policy) == list(range(methods.SEEDS))


def test_intervals_are_student_s():
    values = np.random.default_rng(0).normal(size=(4_000, 10))
    covered = [abs(row.mean()) <= methods.interval(row) for row in values]
    assert np.mean(covered) == pytest.approx(0.95, abs=0.012)
    assert methods.digits(0.12345, 0.00678) == "0.1235 ± 0.0068"
    assert methods.digits(12.3, 0.5) == "12.30 ± 0.50"
    assert methods.digits(0.0714286, 1e-17) == "0.07143 ± 0"
