"""A Griffe extension: converts the `.. math::` blocks of docstrings to Markdown formulas."""

from __future__ import annotations

import re
from typing import Any

import griffe

BLOCK = re.compile(r"^( *)\.\. math::[ \n]((?:.+\n?)+?)(?=^ *$|\Z)", re.MULTILINE)


def markdown(docstring: str) -> str:
    """Convert a docstring, with `$$ … $$` for each block."""
    return BLOCK.sub(lambda found: f"{found[1]}$$\n{found[1]}{' '.join(found[2].split())}\n{found[1]}$$\n", docstring)


class Mathematics(griffe.Extension):
    """A Griffe extension that converts every docstring when it is loaded."""

    def on_instance(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = markdown(obj.docstring.value)
