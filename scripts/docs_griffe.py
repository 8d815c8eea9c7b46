"""Griffe extensions: formulas of docstrings as Markdown, and functions that are hidden by a submodule of the same name."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import griffe

BLOCK = re.compile(r"^( *)\.\. math::[ \n]((?:.+\n?)+?)(?=^ *$|\Z)", re.MULTILINE)

INLINE = re.compile(r":math:`([^`]+)`")


def markdown(docstring: str) -> str:
    """Convert a docstring, with `$$ … $$` for each block and `$…$` for a formula within a sentence."""
    blocks = BLOCK.sub(lambda found: f"{found[1]}$$\n{found[1]}{' '.join(found[2].split())}\n{found[1]}$$\n", docstring)
    return INLINE.sub(lambda found: f"${' '.join(found[1].split())}$", blocks)


class Mathematics(griffe.Extension):
    """A Griffe extension that converts every docstring when it is loaded."""

    def on_instance(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = markdown(obj.docstring.value)


class Functions(griffe.Extension):
    """Resolve a public name to the function if a submodule has the same name: `torchbandits.bkb` is not `policies/bkb.py`.

    At run time the import of the function replaces the submodule. Griffe reads the files, and would keep the submodule.
    """

    def on_package(self, *, pkg: griffe.Module, loader: griffe.GriffeLoader, **kwargs: Any) -> None:
        """Replace such submodules by their functions, in the package that has both and in those that import from it."""
        everywhere = list(packages(pkg))
        hidden = {
            module.path: module.members[module.name]
            for module in everywhere
            if isinstance(module.members.get(module.name), griffe.Function)
            and module.parent is not None
            and module.name in module.parent.imports
        }
        for module in everywhere:
            for name, member in list(module.members.items()):
                target = member.target_path if isinstance(member, griffe.Alias) else member.path
                if target in hidden:
                    module.members[name] = hidden[target]


def packages(module: griffe.Module) -> Iterator[griffe.Module]:
    """A module and all modules within it."""
    yield module
    for member in module.members.values():
        if isinstance(member, griffe.Module):
            yield from packages(member)
