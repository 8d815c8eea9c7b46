"""The cases of a sweep that the default tests run."""

from __future__ import annotations

from itertools import product
from types import SimpleNamespace
from typing import Any

import conftest
import pytest


def kept(mark: pytest.Mark, cases: list[dict[str, Any]], name: str = "test") -> list[dict[str, Any]]:
    """The cases of a sweep over these arguments that the default tests run, for a test of this name."""
    marks: list[list[pytest.MarkDecorator]] = [[] for _ in cases]
    items = [
        SimpleNamespace(
            nodeid=f"{name}[{place}]",
            callspec=SimpleNamespace(params=params),
            get_closest_marker=lambda name: mark if name == "sweep" else None,
            add_marker=marks[place].append,
        )
        for place, params in enumerate(cases)
    ]
    conftest.pytest_collection_modifyitems(items)
    assert all(m.name == "exhaustive" for added in marks for m in added)
    return [params for params, added in zip(cases, marks, strict=True) if not added]


def test_every_value_is_in_a_case_and_no_case_is_idle():
    kinds = [object() for _ in range(3)]
    cases = [{"name": name, "seed": seed, "kind": kind} for name, seed, kind in product("abcdef", range(4), kinds)]
    found = kept(pytest.mark.sweep.mark, cases)
    assert len(found) == 6
    for argument, number in (("name", 6), ("seed", 4), ("kind", 3)):
        assert len({case[argument] for case in found}) == number
    assert kept(pytest.mark.sweep.mark, [{"name": name} for name in "abc"]) == [{"name": name} for name in "abc"]


@pytest.mark.parametrize(("number", "gaps"), [(1, {10}), (2, {5}), (4, {2, 3}), (10, {1})])
def test_so_many_cases_are_spread(number: int, gaps: set[int]):
    seeds = [case["seed"] for case in kept(pytest.mark.sweep(number).mark, [{"seed": seed} for seed in range(10)])]
    assert len(seeds) == number
    assert {after - before for before, after in zip(seeds, [*seeds[1:], seeds[0] + 10], strict=True)} == gaps


def test_tests_of_the_same_cases_select_different_ones():
    mark, cases = pytest.mark.sweep(2).mark, [{"seed": seed} for seed in range(10)]
    assert len({kept(mark, cases, name)[0]["seed"] for name in ("one", "two", "three", "four")}) > 1
