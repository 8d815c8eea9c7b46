"""The checker of shape annotations that all tests run under: it refuses what `jaxtyping.jaxtyped` refuses."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import jaxtyping
import pytest
import torch
from jaxtyping import Float
from torch import Tensor

import torchbandits as tb
from torchbandits.linalg import triangular_product

if TYPE_CHECKING:
    from fractions import Fraction

beartype = pytest.importorskip("beartype")
annotations = pytest.importorskip("annotations")

TWO, THREE = torch.zeros(2), torch.zeros(3)
Vector = Float[Tensor, "n"]
ORIGINAL = functools.partial(annotations.jaxtyped, typechecker=beartype.beartype)
CHECKERS = pytest.mark.parametrize("checker", [annotations.enforced(typechecker=beartype.beartype), ORIGINAL])
refused = pytest.raises(jaxtyping.TypeCheckError)


def joined(x: Vector, y: Vector, *more: Vector, last: Vector | None = None) -> Vector:
    return x[: len(y)]


def shortened(x: Vector, by: int) -> Vector:
    return x[by:]


def counted(number: int, name: str = "a") -> int:
    return number if name == "a" else name


def generated(x: Vector) -> Iterator[Vector]:
    yield x


def unresolved(x: Fraction, y: Vector) -> Vector:
    return y


@CHECKERS
@pytest.mark.parametrize(
    ("function", "right", "wrong"),
    [
        (joined, (TWO, TWO), (TWO, THREE)),
        (joined, (TWO, TWO, TWO), (TWO, TWO, THREE)),
        (joined, (TWO, TWO), (TWO, TWO.int())),
        (joined, (TWO, TWO), ([0.0, 0.0], TWO)),
        (shortened, (THREE, 0), (THREE, 1)),
        (counted, (1,), (1.5,)),
        (counted, (1,), (1, "b")),
        (generated, (TWO,), (None,)),
        (unresolved, (None, TWO), (None, "nonsense")),
    ],
)
def test_wrong_arguments_and_results_are_refused(checker: Any, function: Any, right: Any, wrong: Any):
    checked = checker(function)
    for _ in range(2):  # the wrapper is made at the first call and reused at the second
        checked(*right)
        with refused:
            checked(*wrong)


@CHECKERS
def test_keywords_are_checked_with_the_rest(checker: Any):
    checker(joined)(x=TWO, y=TWO, last=TWO)
    with refused:
        checker(joined)(x=TWO, y=TWO, last=THREE)


@CHECKERS
def test_shapes_of_one_call_bind_no_other(checker: Any):
    inner = checker(shortened)

    def outer(x: Vector) -> Vector:
        inner(torch.cat([x, x]), 0)
        return x

    for x in (TWO, THREE):
        assert checker(outer)(x) is x


def test_all_calls_are_checked_or_the_first_in_each_test_and_some_of_the_rest(monkeypatch: pytest.MonkeyPatch):
    def refusals(calls: int) -> list[int]:
        found = []
        for call in range(1, calls + 1):
            try:
                checked("nonsense", 0)
            except jaxtyping.TypeCheckError:
                found.append(call)
        return found

    def same(x: Vector, by: int) -> Any:
        return x

    checked, first = annotations.enforced(same), list(range(1, annotations.FIRST + 1))
    monkeypatch.setattr(annotations, "_one_of", 1)
    assert refusals(20) == list(range(1, 21))
    monkeypatch.setattr(annotations, "_one_of", 10)
    for _ in range(2):
        annotations.begin_test()
        assert refusals(20) == [*first, 10, 20]


def test_the_package_is_checked_and_can_be_left_alone():
    with refused:
        triangular_product("nonsense", TWO, TWO, 0)
    with refused:
        tb.Marginals("nonsense", TWO)
    jaxtyping.config.update("jaxtyping_disable", True)
    try:
        with pytest.raises(IndexError):  # the error of the function itself
            triangular_product("nonsense", TWO, TWO, 0)
    finally:
        jaxtyping.config.update("jaxtyping_disable", False)
