"""Every golden trace is replayed, so that no policy changes its picks; see `golden.py`."""

from __future__ import annotations

import copy
import itertools
import multiprocessing
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import golden
import pytest
import torch
from contract import CASES, Case

TRACES = golden.load()


@pytest.fixture(scope="module")
def player() -> Iterator[ProcessPoolExecutor]:
    """A process without enforced annotations, which would triple the time of these many short steps."""
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=spawn, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        yield pool


# The default tests replay every variant of every policy, and the single run of each of its modes.
RUNS = [
    pytest.param(case, variant, marks=[pytest.mark.exhaustive] if case.mode and variant != "single" else [])
    for case, variant in golden.runs()
]


@pytest.mark.sweep(12)
@pytest.mark.parametrize(("case", "variant"), RUNS, ids=itertools.starmap(golden.name_of, golden.runs()))
def test_a_run_is_the_recorded_one(player: ProcessPoolExecutor, case: Case, variant: str):
    name = golden.name_of(case, variant)
    difference = golden.first_difference(name, TRACES[name], player.submit(golden.play, case, variant).result())
    assert difference is None, difference


def test_the_file_holds_these_traces_and_no_others():
    assert list(TRACES) == [golden.name_of(case, variant) for case, variant in golden.runs()]
    assert golden.dump(TRACES) == golden.FILE.read_text()
    assert {case for case, variant in golden.runs() if variant == "single"} == set(CASES)
    for name, trace in TRACES.items():
        assert len(trace["picks"]) == (golden.ROWS if name.endswith("rows") else 1), name


def changed(name: str, field: str, row: int, place: int, value: Any) -> dict[str, Any]:
    trace = copy.deepcopy(TRACES[name])
    if field == "picks":
        words = trace[field][row].split()
        words[place] = value
        trace[field][row] = " ".join(words)
    else:
        trace[field][row][place] = value
    return trace


def test_a_difference_is_said_with_its_place_and_what_was_expected():
    name = "batch_bkb, rows"
    trace = TRACES[name]
    assert golden.first_difference(name, trace, copy.deepcopy(trace)) is None
    words = trace["picks"][1].split()
    pulls = sum(len(word) for word in words[:20] if word != ".")
    said = golden.first_difference(name, trace, changed(name, "picks", 1, 20, "x!"))
    assert said == f"batch_bkb, rows: in row 1 batch 20 (after {pulls} pulls) was {words[20]} and is x!."
    shorter = copy.deepcopy(trace)
    shorter["picks"][2] = shorter["picks"][2].rsplit(" ", 1)[0]
    assert "is (none)." in golden.first_difference(name, trace, shorter)
    width = trace["widths"][2][3]
    assert golden.first_difference(name, trace, changed(name, "widths", 2, 3, width * (1 + 5e-7))) is None
    said = golden.first_difference(name, trace, changed(name, "widths", 2, 3, width * (1 + 5e-6)))
    assert said.startswith(f"batch_bkb, rows: in row 2 the width after batch 30 was {width} and is")
    assert "was None and is 1.0" in golden.first_difference(
        "uniform, single", TRACES["uniform, single"], changed("uniform, single", "widths", 0, 0, 1.0)
    )
    assert "generators" in golden.first_difference(name, trace, changed(name, "draws", 0, 1, -1))
    assert "recommended arms were" in golden.first_difference(name, trace, trace | {"best": "000"})
    names = [*trace["names"][1:], "state.other"]
    said = golden.first_difference(name, trace, trace | {"names": names})
    assert said == f"batch_bkb, rows: the saved state lacks {trace['names'][:1]} and has new ['state.other']."


@pytest.mark.exhaustive
def test_points_of_a_box_are_compared_within_a_tolerance():
    name = "gp_ucb, box"
    x, y = map(float, TRACES[name]["picks"][0].split()[4].split(","))
    for shift, same in ((0.0005, True), (0.005, False)):
        said = golden.first_difference(name, TRACES[name], changed(name, "picks", 0, 4, f"{x:.4f},{y + shift:.4f}"))
        assert (said is None) == same
    assert said.startswith(f"gp_ucb, box: in row 0 pick 4 was {x:.4f},{y:.4f} and is")
