"""Exceptions. Every message names the expected value, the given one, and the remedy."""

from __future__ import annotations

import difflib
import sys
import warnings
from collections.abc import Iterable
from typing import Any

# BoTorch and GPyTorch call models of this package; jaxtyping and beartype check shapes in tests.
_INSIDE = {"torchbandits", "torch", "botorch", "gpytorch", "jaxtyping", "beartype"}


class TorchBanditsError(Exception):
    """Base of all errors that this package raises deliberately."""


class ArgumentError(TorchBanditsError, ValueError):
    """A value outside its range, or an unknown option."""


class KeywordError(ArgumentError, TypeError):
    """A keyword, or an argument by position, that the function does not take; the message names the alternative."""


class ShapeError(ArgumentError):
    """A tensor of the wrong shape, dtype or device."""


class NonFiniteError(ArgumentError):
    """A NaN or an infinity where a number is needed."""


class ArmIndexError(ArgumentError, IndexError):
    """An arm index outside the arm set."""


class StateError(TorchBanditsError, RuntimeError):
    """A call that the current state does not allow, such as forgetting picks that are not pending."""


class NumericalError(TorchBanditsError, ArithmeticError):
    """A factorisation or a sweep that failed numerically; the state before the call is kept."""


class RankError(TorchBanditsError, RuntimeError):
    """A rank of a distributed run that was lost, or that was started differently from the others."""


class EvaluationError(TorchBanditsError, RuntimeError):
    """Failed evaluations that ended a run; every reward received before was told.

    Attributes:
        history: The record of the run so far.
        bandit: The bandit with everything learned. Its open picks, `bandit.ask()`, are the picks that were given up or whose
            evaluations had not returned.
    """

    def __init__(self, message: str, history: Any = None, bandit: Any = None) -> None:
        super().__init__(message)
        self.history = history
        self.bandit = bandit


class UnsupportedError(TorchBanditsError, NotImplementedError):
    """A combination that is not supported, such as the score of a policy without scores.

    Once `torchbandits.botorch` is imported, it is also BoTorch's error of that name.
    """


class DiagnosticWarning(UserWarning):
    """The data contradict the kernel, the noise or the widths; the message names the finding and a remedy."""


class JournalWarning(UserWarning):
    """A journal with an incomplete last line, an unused checkpoint or a pick that a replay did not reproduce, or a saved state
    without its description; the message says how the case was handled."""


class DataError(TorchBanditsError, OSError):
    """A data set that cannot be found, fetched or verified, or a record that cannot be read or written."""


class ConfigError(TorchBanditsError, ValueError):
    """An invalid or incomplete configuration file."""


def nearest(name: str, known: Iterable[str]) -> str:
    """Return `" Did you mean 'x'?"` for the closest known name, or an empty string."""
    close = closest(name, known)
    return "" if close is None else f" Did you mean {close!r}?"


def closest(name: str, known: Iterable[str]) -> str | None:
    """The known name that is most similar to a name, or None if none is similar."""
    folded = {candidate.casefold(): candidate for candidate in known}
    close = difflib.get_close_matches(str(name).casefold(), list(folded), n=1, cutoff=0.5)
    return folded[close[0]] if close else None


def issue(found: Iterable[str]) -> None:
    """Issue texts as `DiagnosticWarning`, attributed to the first caller outside this package, BoTorch, GPyTorch and torch's
    decorators."""
    frame, level = sys._getframe(), 1
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in _INSIDE:
        frame, level = frame.f_back, level + 1
    for text in found:
        warnings.warn(text, DiagnosticWarning, stacklevel=level)


def require(condition: bool, message: str, error: type[TorchBanditsError] = ArgumentError) -> None:
    """Raise `error(message)` unless `condition` holds."""
    if not condition:
        raise error(message)


def not_finite(rows: list[int], dtype: str) -> NumericalError:
    """The error of a posterior that is not finite in these batch rows, of arms of this dtype."""
    return NumericalError(
        f"the posterior is not finite in batch rows {rows}; nothing was learned. Check the size of the rewards and the kernel "
        f"(its hyper-parameters, and whether it is a covariance), or use a larger λ.{rounding_remedy(dtype)}"
    )


def rounding_remedy(dtype: str) -> str:
    """The remedy for rounding errors of kernel values, or an empty text if these are float64 already."""
    return "" if dtype == "torch.float64" else f" The arms are {dtype}, whose kernel values are rounded: pass arms.double()."
