"""Exceptions. Every message names what was expected, what came, and what to do about it."""

from __future__ import annotations

import difflib
import sys
import warnings
from collections.abc import Iterable
from typing import Any

_INSIDE = {"torchbandits", "torch", "jaxtyping", "beartype"}  # the last two check shapes in tests


class TorchBanditsError(Exception):
    """Base of every error that this package raises on purpose."""


class ArgumentError(TorchBanditsError, ValueError):
    """A value outside its range, or an unknown option."""


class KeywordError(ArgumentError, TypeError):
    """A keyword that the function does not take; the message names what to use instead."""


class ShapeError(ArgumentError):
    """A tensor of the wrong shape, dtype or device."""


class NonFiniteError(ArgumentError):
    """A NaN or an infinity where a number is needed."""


class ArmIndexError(ArgumentError, IndexError):
    """An arm index outside the arm set."""


class StateError(TorchBanditsError, RuntimeError):
    """A call that the current state does not allow, such as forgetting picks that are not pending."""


class NumericalError(TorchBanditsError, ArithmeticError):
    """A factorisation or a sweep that lost its meaning; the state before the call is kept."""


class RankError(TorchBanditsError, RuntimeError):
    """A rank of a distributed run that was lost, or that was started otherwise than the others."""


class EvaluationError(TorchBanditsError, RuntimeError):
    """Evaluations that failed and so ended a run; every reward that had come was told before.

    Attributes:
        history: The record of the run up to here.
        bandit: What was learned. Its open picks, `bandit.ask()`, are those that were given up or had not come.
    """

    def __init__(self, message: str, history: Any = None, bandit: Any = None) -> None:
        super().__init__(message)
        self.history = history
        self.bandit = bandit


class UnsupportedError(TorchBanditsError, NotImplementedError):
    """A combination that has no meaning, such as the score of a policy that scores nothing.

    Once `torchbandits.botorch` is imported, it is BoTorch's error of that name, too.
    """


class DiagnosticWarning(UserWarning):
    """The data speak against the kernel, the noise or the widths; says which evidence, and what to try."""


class JournalWarning(UserWarning):
    """A journal of which the last line was torn, a checkpoint left aside or a pick came out otherwise, or a saved state that
    does not say what it is of; says what was done."""


class DataError(TorchBanditsError, OSError):
    """A data set that can't be found, fetched or verified, or a record that can't be read or written."""


class ConfigError(TorchBanditsError, ValueError):
    """A configuration file that does not say what it must."""


def nearest(name: str, known: Iterable[str]) -> str:
    """Return `" Did you mean 'x'?"` for the closest known name, or an empty string."""
    folded = {candidate.casefold(): candidate for candidate in known}
    close = difflib.get_close_matches(str(name).casefold(), list(folded), n=1, cutoff=0.5)
    return f" Did you mean {folded[close[0]]!r}?" if close else ""


def issue(found: Iterable[str]) -> None:
    """Send texts as `DiagnosticWarning`, as seen from the first caller outside of this package and torch's decorators."""
    frame, level = sys._getframe(), 1
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in _INSIDE:
        frame, level = frame.f_back, level + 1
    for text in found:
        warnings.warn(text, DiagnosticWarning, stacklevel=level)


def require(condition: bool, message: str, error: type[TorchBanditsError] = ArgumentError) -> None:
    """Raise `error(message)` unless `condition` holds."""
    if not condition:
        raise error(message)
