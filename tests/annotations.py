"""Shape annotations, enforced at a fraction of the cost of `jaxtyping.jaxtyped`, with the same checks.

`jaxtyped` binds each call to the signature, for its messages, and checks the arguments a second time with the result. Here
beartype wraps a function once, when it is first called, and only functions with a shape annotation get their own context.
The exhaustive tests check every call. The default tests check the first calls of every function in every test, and one of
several after them, because a loop of a thousand steps calls the same functions with the same shapes.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import types
import typing
from typing import Any

import beartype
import jaxtyping

__name__ = "beartype.shapes"  # errors.py skips the frames of beartype to find the user's line

jaxtyped = jaxtyping.jaxtyped
# Violations raise jaxtyping's error, because readers of damaged files catch other TypeErrors.
_beartype = beartype.beartype(conf=beartype.BeartypeConf(violation_type=jaxtyping.TypeCheckError))

# The calls of a function that are checked in each test: the first ones, and one of so many after them.
FIRST, SPARSELY = 4, 10
_one_of, _test = 1, 0


def install(modules: list[str]) -> None:
    """Install the import hook. Must run before the first import of those modules."""
    jaxtyping.jaxtyped = enforced
    jaxtyping.install_import_hook(modules, "beartype.beartype")


def check_one_of(number: int) -> None:
    """Check one of so many calls of a function after its first calls in a test; 1 to check all calls."""
    global _one_of
    _one_of = number


def begin_test() -> None:
    """Check the next calls of every function, as its first calls in another test."""
    global _test
    _test += 1


def enforced(fn: Any = None, *, typechecker: Any = None) -> Any:
    """Decorator that the hook applies. Of a dataclass, `__init__` is checked; other classes have nothing to check, and
    generator functions are passed on to `jaxtyped`."""
    if fn is None:
        return functools.partial(enforced, typechecker=typechecker)
    if inspect.isclass(fn):
        if dataclasses.is_dataclass(fn) and "__init__" in vars(fn):
            fn.__init__ = enforced(fn.__init__)
        return fn
    if not inspect.isfunction(fn) or inspect.isgeneratorfunction(fn):
        return jaxtyped(fn, typechecker=typechecker)
    has_shapes, checked, test, calls = True, None, 0, 0

    @functools.wraps(fn)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        nonlocal has_shapes, checked, test, calls
        if jaxtyping.config.jaxtyping_disable:
            return fn(*args, **kwargs)
        if test != _test:
            test, calls = _test, 0
        calls += 1
        if calls > FIRST and calls % _one_of:
            return fn(*args, **kwargs)
        if checked is None:
            has_shapes, checked = _checked(fn)  # in this order, so that other threads see both
        if not has_shapes:
            return checked(*args, **kwargs)
        with jaxtyped("context"):
            return checked(*args, **kwargs)

    return wrapper


def _checked(fn: types.FunctionType) -> tuple[bool, Any]:
    """Whether any annotation has a shape, and the function with its annotations enforced."""
    copy = types.FunctionType(fn.__code__, fn.__globals__, fn.__name__, fn.__defaults__, fn.__closure__)
    copy.__kwdefaults__, copy.__module__, copy.__qualname__ = fn.__kwdefaults__, fn.__module__, fn.__qualname__
    hints = {name: _resolved(hint, fn) for name, hint in fn.__annotations__.items()}
    copy.__annotations__ = {name: hint for name, hint in hints.items() if hint is not Any}
    return any(map(_has_shape, hints.values())), _beartype(copy)


def _resolved(hint: Any, fn: types.FunctionType) -> Any:
    """Evaluate an annotation. An annotation that can't be evaluated, such as a name imported only for the type checker, is not
    enforced."""
    holder = types.SimpleNamespace(__annotations__={"hint": hint})
    try:
        found = typing.get_type_hints(holder, fn.__globals__, include_extras=True)["hint"]
    except Exception:
        return Any
    return Any if isinstance(found, typing.ParamSpecArgs | typing.ParamSpecKwargs) else found


def _has_shape(hint: Any) -> bool:
    return (inspect.isclass(hint) and issubclass(hint, jaxtyping.AbstractArray)) or any(map(_has_shape, typing.get_args(hint)))
