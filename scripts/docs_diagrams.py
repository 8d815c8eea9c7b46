"""Conversion of Mermaid flowcharts to SVG when the site is built, so that pages need no script from another server.

A small part of Mermaid is supported: `flowchart TD`, and lines `a["a label<br/>of two lines"] --> b`, downwards.
"""

from __future__ import annotations

import re
from html import escape
from itertools import pairwise

FENCE = re.compile(r"^```mermaid\n(.*?)^```$", re.DOTALL | re.MULTILINE)
# Pixels.
LETTER, LINE, PADDING, ACROSS, DOWN = 7.6, 18.0, 12.0, 26.0, 44.0
_EDGE = re.compile(r'(\w+)(?:\["(.*?)"\])?')


def drawn(markdown: str) -> str:
    """Replace the flowcharts in Markdown by SVG."""
    return FENCE.sub(lambda found: svg(*parsed(found[1])), markdown)


def parsed(text: str) -> tuple[dict[str, list[str]], list[tuple[str, str]]]:
    """Parse a flowchart into the label lines of each node, by its name, and the edges.

    Raises:
        ValueError: If a line is not supported.
    """
    labels: dict[str, list[str]] = {}
    edges = []
    first, *lines = [line.strip() for line in text.splitlines() if line.strip()]
    if first != "flowchart TD":
        raise ValueError(f"only flowchart TD is drawn, got {first!r}")
    for line in lines:
        parts = [_EDGE.fullmatch(part.strip()) for part in line.split("-->")]
        names = [part[1] for part in parts if part]
        if len(names) != len(parts):
            raise ValueError(f"not a node or an edge: {line!r}")
        for part in parts:
            if part and (part[2] is not None or part[1] not in labels):
                labels[part[1]] = re.split(r"<br ?/?>", part[2] if part[2] is not None else part[1])
        edges += pairwise(names)
    return labels, edges


def svg(labels: dict[str, list[str]], edges: list[tuple[str, str]]) -> str:
    """Draw boxes in rows, each below all boxes that point to it; the first line of a label is bold."""
    ranks = dict.fromkeys(labels, 0)
    for _ in labels:
        for above, below in edges:
            ranks[below] = max(ranks[below], ranks[above] + 1)
    rows = [[name for name in labels if ranks[name] == rank] for rank in range(max(ranks.values()) + 1)]
    width = {name: 2 * PADDING + LETTER * max(map(len, lines)) for name, lines in labels.items()}
    height = {name: 2 * PADDING + LINE * len(lines) for name, lines in labels.items()}
    whole = max(sum(width[name] for name in row) + ACROSS * (len(row) - 1) for row in rows)
    parts, place, top = [], {}, 0.0
    for row in rows:
        left = (whole - sum(width[name] for name in row) - ACROSS * (len(row) - 1)) / 2
        for name in row:
            place[name] = (left, top)
            left += width[name] + ACROSS
        top += max(height[name] for name in row) + DOWN
    for above, below in edges:
        (x, y), (u, v) = place[above], place[below]
        x, y, u = x + width[above] / 2, y + height[above], u + width[below] / 2
        parts.append(f'<path d="M{x:.0f} {y:.0f}C{x:.0f} {y + DOWN / 2:.0f} {u:.0f} {v - DOWN / 2:.0f} {u:.0f} {v - 3:.0f}"/>')
    for name, (x, y) in place.items():
        parts.append(f'<rect x="{x:.0f}" y="{y:.0f}" width="{width[name]:.0f}" height="{height[name]:.0f}" rx="6"/>')
        for number, line in enumerate(labels[name]):
            style = ' class="name"' if number == 0 else ""
            middle, base = x + width[name] / 2, y + PADDING + LINE * (number + 0.75)
            parts.append(f'<text x="{middle:.0f}" y="{base:.0f}"{style}>{escape(line)}</text>')
    marker = '<marker id="arrow" viewBox="0 0 8 8" refX="6" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
    arrow = f'<defs>{marker}<path d="M0 0L8 4L0 8z"/></marker></defs>'
    size = f'width="{whole + 4:.0f}" viewBox="-2 -2 {whole + 4:.0f} {top - DOWN + 4:.0f}"'
    return f'<div class="diagram"><svg xmlns="http://www.w3.org/2000/svg" {size} role="img">{arrow}{"".join(parts)}</svg></div>'
