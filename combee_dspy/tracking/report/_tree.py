"""A scan as a tree: what went into each node, what came out, and where something was lost."""

from __future__ import annotations

from collections.abc import Sequence

from combee_dspy.tracking.report._data import ScanNode, ScanView
from combee_dspy.tracking.report._html import Markup, el
from combee_dspy.tracking.report._svg import WIDTH, svg, text

__all__ = ["scan_tree"]

ROWS = 64
"""Nodes of a level that are drawn."""

_ROW = 25.0
_BOX = 18.0


def scan_tree(scan: ScanView) -> Markup | None:
    """Draw a scan from left, where reflections are read, to the root at the right; ``None`` without nodes.

    A box is as full as the share of its reflections that the final result, or
    a node on the way to it, still covers. ``12 → 5`` is 12 reflections below
    and 5 lessons out.
    """
    numbers = sorted({node.level for node in scan.nodes})
    if not numbers:
        return None
    levels = [[node for node in scan.nodes if node.level == number][:ROWS] for number in numbers]
    places = _places(levels)
    rows = max(len(level) for level in levels)
    height = 34 + rows * _ROW
    step = (WIDTH - 8) / len(levels)
    width = min(150.0, step - 34 if len(levels) > 1 else step)
    parts: list[Markup] = []
    for column, level in enumerate(levels):
        left = 4 + column * step
        title = "read reflections" if column == 0 else "merge" if column < len(levels) - 1 else "result"
        parts.append(text(f"level {numbers[column]}: {title}", left, 12, "start", "label"))
        for node in level:
            y = places[column, node.node]
            if column + 1 < len(levels) and (column + 1, node.parent) in places:
                parts.append(_link(left + width, y, left + step, places[column + 1, node.parent or 0]))
            parts += _box(node, left, y, width)
    outcome = "" if scan.covered is None else f", {scan.covered} of {scan.measured} reflections still covered"
    label = f"Scan of {scan.reflections} reflections into {scan.lessons} lessons by {len(scan.nodes)} nodes{outcome}"
    return svg(label, parts, height)


def _places(levels: Sequence[Sequence[ScanNode]]) -> dict[tuple[int, int], float]:
    """Return the middle of every node by (column, position): level 1 in rows, parents between their children."""
    places: dict[tuple[int, int], float] = {}
    rows = max(len(level) for level in levels)
    for column, level in enumerate(levels):
        lowest = 0.0
        for row, node in enumerate(level):
            below = [
                places[column - 1, child.node]
                for child in (levels[column - 1] if column else ())
                if child.parent == node.node
            ]
            even = 22 + _ROW * (row + 0.5) * rows / len(level)
            wanted = sum(below) / len(below) if below else even
            places[column, node.node] = max(wanted, lowest)
            lowest = places[column, node.node] + _ROW * 0.9
    return places


def _link(x0: float, y0: float, x1: float, y1: float) -> Markup:
    middle = (x0 + x1) / 2
    return el(
        "path", d=f"M{x0:.1f} {y0:.1f}C{middle:.1f} {y0:.1f} {middle:.1f} {y1:.1f} {x1:.1f} {y1:.1f}", class_="link"
    )


def _box(node: ScanNode, left: float, middle: float, width: float) -> list[Markup]:
    top = middle - _BOX / 2
    shape = {"x": left, "y": top, "height": _BOX, "rx": 4.0}
    parts = [el("rect", **shape, width=width, class_="box failed" if node.failed else "box")]
    if node.kept is not None and node.sources and not node.failed:
        share = min(1.0, node.kept / node.sources)
        parts.append(el("rect", **shape, width=width * share, class_="f3 soft"))
    shown = "failed" if node.failed else f"{node.sources} → {node.count}"
    parts.append(text(shown, left + 7, middle + 4, "start", "inbox"))
    if node.lost:
        parts.append(text(f"−{node.lost}", left + width - 6, middle + 4, "end", "inbox bad"))
    return [el("g", el("title", _hint(node)), parts)]


def _hint(node: ScanNode) -> str:
    parts = [f"level {node.level}, node {node.node}: {node.sources} reflections, {node.count} lessons"]
    if node.tokens is not None:
        parts.append(f"about {node.tokens} tokens")
    if node.kept is not None:
        parts.append(f"{node.kept} covered here or above")
    if node.lost:
        parts.append(f"{node.lost} lost after it")
    if node.failed:
        parts.append(f"failed: {node.failed[:120]}")
    return ", ".join(parts)
