"""Text from files and users made safe for terminals and pictures."""

from __future__ import annotations

from collections.abc import Iterable

from rich.text import Text


def printable(text: object) -> str:
    r"""Write text in one line with every control character escaped, as `repr` escapes it.

    A terminal executes control characters (C0, C1, DEL), and bidirectional overrides change the order in which text is read;
    they are shown as `\x1b` or `\u202e` instead. Surrogates, which no encoding can write, are escaped as well.
    """
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in str(text))


def plain(text: object, style: str = "") -> Text:
    """Text for a Rich console: control characters are escaped, and markup such as `[red]` is shown literally."""
    return Text(printable(text), style=style)


def markdown_row(cells: Iterable[object]) -> str:
    """A row of a table in Markdown, with control characters and `|` escaped."""
    escaped = (printable(cell).replace("|", "\\|") for cell in cells)
    return f"| {' | '.join(escaped)} |\n"


def shortened(text: str, most: int = 80) -> str:
    """Text of at most `most` characters; the middle of a longer text is left out."""
    tail = most // 3
    return text if len(text) <= most else f"{text[: most - tail - 1]}…{text[len(text) - tail :]}"


def one_line(error: object, most: int = 450) -> str:
    """The message of an error in one line that is safe to print, of at most `most` characters."""
    return shortened(printable(" ".join(str(error).split())), most)


def literal(text: str, most: int = 60) -> str:
    r"""Text for a picture: control characters escaped, shortened, and with `$` escaped for Matplotlib.

    Matplotlib reads text between two `$` as mathematics, and leaves labels that begin with `_` out of legends.
    """
    shown = shortened(printable(text), most).replace("$", r"\$")
    return f" {shown}" if shown.startswith("_") else shown
