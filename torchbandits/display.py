"""Text and HTML of records, policies and bandits, for terminals and notebooks."""

from __future__ import annotations

import html
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import MISSING, dataclass, fields, is_dataclass
from typing import Any

import torch
from gpytorch.kernels import Kernel
from torch import Tensor, nn

_MOST_ROWS, _MOST_NUMBERS, _DIGITS = 10, 6, 4


@dataclass(frozen=True)
class Shown:
    """A title and a small table. Without a `header` the rows are pairs of a name and its value.

    Long tables end after ten rows; `left_out` counts the others.
    """

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    left_out: int = 0

    @property
    def _rest(self) -> str:
        return f"… and {self.left_out:,} more" if self.left_out else ""

    def text(self) -> str:
        """Columns padded with spaces; columns of numbers are aligned at the right."""
        lines = [self.header, *self.rows] if self.header else list(self.rows)
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        # The last column, and both columns of a list of pairs, are text.
        right = [bool(self.header) and place < len(widths) - 1 for place in range(len(widths))]
        padded = (
            "  ".join(cell.rjust(n) if r else cell.ljust(n) for cell, n, r in zip(line, widths, right, strict=True))
            for line in lines
        )
        return "\n".join([self.title, *(f"  {line}".rstrip() for line in padded), *([f"  {self._rest}"] if self._rest else [])])

    def html(self) -> str:
        """A table for a notebook, with every text escaped."""
        head = "".join(f"<th>{html.escape(name)}</th>" for name in self.header)
        body = "".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in self.rows)
        rest = f"<p>{html.escape(self._rest)}</p>" if self._rest else ""
        head = f"<thead><tr>{head}</tr></thead>" if head else ""
        return f"<div><b>{html.escape(self.title)}</b><table>{head}<tbody>{body}</tbody></table>{rest}</div>"


class Readable(ABC):
    """A record that terminals and notebooks show as the result of `_shown`."""

    @abstractmethod
    def _shown(self) -> Shown:
        """The title and the table."""

    def __repr__(self) -> str:
        """The title and the table as text."""
        return self._shown().text()

    def _repr_html_(self) -> str:
        """The title and the table as HTML, for notebooks."""
        return self._shown().html()


def number(value: float) -> str:
    """A number with four digits; integers without decimals, and "–" for NaN."""
    if math.isnan(value):
        return "–"
    if math.isinf(value):
        return f"{value}"
    return f"{value:,.0f}" if value == int(value) and abs(value) < 1e15 else f"{value:.{_DIGITS}g}"


def numbers(values: Tensor | float) -> str:
    """Up to six numbers of a tensor in row-major order, or a single number."""
    flat = torch.as_tensor(values).detach().reshape(-1)
    shown = ", ".join(number(float(value)) for value in flat[:_MOST_NUMBERS].tolist())
    return shown + (", …" if flat.numel() > _MOST_NUMBERS else "")


def count(amount: int, noun: str) -> str:
    """An amount with its noun, `1 pick` or `20,000 picks`."""
    return f"{amount:,} {noun}{'' if amount == 1 else 's'}"


def and_more(amount: int, noun: str) -> str:
    """The end of a phrase on the first one of several, ` (and 2 more rows)` of three rows; empty for a single one."""
    return "" if amount == 1 else f" (and {count(amount - 1, f'more {noun}')})"


def listed(names: Sequence[str]) -> str:
    """One name or several, `a, b and c`."""
    *others, last = names
    return f"{', '.join(others)} and {last}" if others else last


# The outcomes that are the last batch dimension, inside `naming`.
_outcomes: ContextVar[tuple[str, ...]] = ContextVar("_outcomes", default=())


@contextmanager
def naming(outcomes: tuple[str, ...]) -> Iterator[None]:
    """Let sentences name these outcomes, which are the last batch dimension, instead of their batch rows."""
    token = _outcomes.set(outcomes)
    try:
        yield
    finally:
        _outcomes.reset(token)


def in_row(place: tuple[int, ...]) -> str:
    """`batch row 3: ` or `outcome 'yield': `, the beginning of a sentence on one of several batch rows; an empty text for a
    single one."""
    names = _outcomes.get()
    rows, outcome = (place[:-1], f"outcome {names[place[-1]]!r}") if names and place else (place, "")
    row = f"batch row {rows[0] if len(rows) == 1 else rows}" if rows else ""
    said = ", ".join(filter(None, (row, outcome)))
    return f"{said}: " if said else ""


def rows_in_words() -> str:
    """What the batch rows are: outcomes, or batch rows."""
    return "outcomes" if _outcomes.get() else "batch rows"


def within(mean: float, deviation: float) -> str:
    """A number and its deviation as text, rounded to two digits of the deviation; an empty text if they are not known."""
    if not (math.isfinite(mean) and math.isfinite(deviation)):
        return ""
    return f"{rounded(mean, deviation)} ± {rounded(deviation, deviation, '.2g')}"


def rounded(value: float, deviation: float, otherwise: str = ".6g") -> str:
    """A number as text, rounded to the second digit of a deviation.

    Args:
        value, deviation: The numbers.
        otherwise: The format if the deviation is unknown or 0.
    """
    if not 0 < deviation < math.inf:
        return f"{value:{otherwise}}"
    places = 1 - math.floor(math.log10(deviation))
    if -6 <= places <= 6:
        # Adding 0 turns −0 into 0.
        return f"{round(value, places) + 0.0:.{max(0, places)}f}"
    # Further from the decimal point: at most six digits, with an exponent where it is shorter.
    digits = math.floor(math.log10(abs(value))) + places + 1 if 0 < abs(value) < math.inf else 6
    return f"{value:.{min(max(digits, 1), 6)}g}"


def table(title: str, mask: Tensor, columns: dict[str, Tensor], points: Tensor) -> Shown:
    """The places of a selection or recommendation that `mask` marks, one line each: the batch row, if there are several, and
    the columns.

    Args:
        title: Title of the table.
        mask: `batch_shape x q` booleans.
        columns: By heading, each `batch_shape x q`. Whole numbers are indices, −1 for none.
        points: `batch_shape x q x d`, the features.
    """
    places = mask.nonzero()
    lines = []
    for place in places[:_MOST_ROWS]:
        at = tuple(place.tolist())
        cells = [_cell(column[at]) for column in columns.values()]
        row = [",".join(map(str, at[:-1]))] if mask.dim() > 1 else []
        lines.append((*row, *cells, numbers(points[at])))
    header = (*(["row"] if mask.dim() > 1 else []), *columns, "features")
    return Shown(title, header, tuple(lines), max(len(places) - _MOST_ROWS, 0))


def classes(title: str, parts: dict[str, Any]) -> Shown:
    """Number of arms in each class of a classification (`batch_shape x A` booleans), one number per batch row."""
    sizes = [(name, numbers(part.sum(dim=-1))) for name, part in parts.items() if isinstance(part, Tensor) and part.dim() > 0]
    return pairs(title, sizes)


def labels(outcomes: Sequence[str], k: int) -> Sequence[str]:
    """The names of k outcomes; their numbers if the names are not known."""
    return outcomes if len(outcomes) == k else [str(j) for j in range(k)]


def fits(mask: Any, columns: Sequence[Any], points: Any) -> bool:
    """Whether these are valid inputs of `table`. The fields of a record made by a user may have any type."""
    if not all(isinstance(value, Tensor) for value in (mask, points, *columns)):
        return False
    same = all(column.shape == mask.shape for column in columns)
    return same and mask.dtype == torch.bool and mask.dim() > 0 and points.shape[:-1] == mask.shape


def misfit(record: Any) -> Shown:
    """The types of the fields of a record that can't be shown as a table."""
    kinds = [(entry.name, kind(getattr(record, entry.name))) for entry in fields(record)]
    return pairs(f"{type(record).__name__} whose parts do not fit each other", kinds)


def kind(value: Any) -> str:
    """Dtype and shape of a tensor, or the type of another object."""
    return f"{value.dtype} {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__


def _cell(value: Tensor) -> str:
    if value.is_floating_point():
        return number(float(value))
    return str(int(value)) if int(value) >= 0 else "–"


def described(value: Any) -> str:
    """A policy, or a part of one, in one line: the fields that differ from the defaults of its class, and kernels by their
    parameters."""
    if isinstance(value, Kernel):
        return _kernel(value)
    if isinstance(value, bool) or value is None:
        return repr(value)
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, Tensor):
        return numbers(value) if value.numel() == 1 else f"[{numbers(value)}]"
    if is_dataclass(value) and not isinstance(value, type):
        own = ((f, getattr(value, f.name)) for f in fields(value) if f.init)
        parts = (f"{f.name}={described(part)}" for f, part in own if not _is_default(f.default, part))
        return f"{type(value).__name__}({', '.join(parts)})"
    return repr(value)


def _is_default(default: Any, value: Any) -> bool:
    return default is not MISSING and type(default) is type(value) and not isinstance(value, Tensor) and bool(default == value)


def _kernel(kernel: Kernel) -> str:
    """`ScaleKernel(MaternKernel(nu=2.5, lengthscale=0.5), outputscale=2)`."""
    parts = [_kernel(part) for part in _parts(kernel)]
    parts += [f"nu={kernel.nu:g}"] if isinstance(getattr(kernel, "nu", None), float) else []
    for raw, parameter in kernel.named_parameters(recurse=False):
        name = raw.removeprefix("raw_")
        parts.append(f"{name}={described(getattr(kernel, name, parameter))}")
    return f"{type(kernel).__name__}({', '.join(parts)})"


def _parts(kernel: nn.Module) -> Iterator[Kernel]:
    """The kernels that a kernel consists of."""
    for child in kernel.children():
        if isinstance(child, Kernel):
            yield child
        elif isinstance(child, nn.ModuleList):
            yield from _parts(child)


def of_run(
    kind: str, rows: torch.Size, shape: torch.Size, values: Sequence[tuple[str, str]], opened: int, journal: Any
) -> Shown:
    """A run on arms of this shape, `… x A x d`, in batch rows: these values, the number of open picks, and the journal."""
    on = f"{rows.numel():,} rows on " if rows else ""
    kept = [] if journal is None else [("journal", str(journal.path))]
    title = f"{kind}: {on}{count(shape[-2], 'arm')} of {count(shape[-1], 'feature')}"
    return pairs(title, [*values, ("open picks", f"{opened:,}"), *kept])


def pairs(title: str, values: Sequence[tuple[str, str]]) -> Shown:
    """A list of names and values."""
    return Shown(title, (), tuple(values))
