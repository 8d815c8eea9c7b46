"""The cases of a sweep that the default tests run."""

from __future__ import annotations

from itertools import product
from types import SimpleNamespace
from typing import Any

import conftest
import pytest


def kept(mark: pytest.Mark, cases: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The cases of a sweep over these arguments that the default tests run."""
    marks: list[list[pytest.MarkDecorator]] = [[] for _ in cases]
    items = [
        SimpleNamespace(
            nodeid=f"test[{place}]",
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


@pytest.mark.parametrize(("number", "seeds"), [(1, [0]), (2, [0, 9]), (4, [0, 3, 6, 9])])
def test_so_many_cases_are_spread(number: int, seeds: list[int]):
    assert [case["seed"] for case in kept(pytest.mark.sweep(number).mark, [{"seed": seed} for seed in range(10)])] == seeds
