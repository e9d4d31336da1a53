"""A scan as a picture: its tree, and what each node kept. Pure; no library."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from html import escape

from combee_dspy.records import NodeOutput, Retained
from combee_dspy.retention._tree import children_of, levels_of

__all__ = ["scan_svg"]

# Drawn at the width of a small screen, so that text keeps its size there; wider screens scale it up to _WIDEST.
_WIDTH = 360
_WIDEST = 760
_MARGIN = 8
_GAP = 4
_PER_ROW = 10
_WIDEST_CELL = 72
_CELL = 32
_BAR = 5
_TITLE = 15
_BETWEEN = 18
_EDGES = 10

_KEPT, _LOST, _GONE, _FAILED = "#2e8b57", "#d1495b", "#9aa0a6", "#b8860b"


def scan_svg(nodes: Sequence[NodeOutput], retained: Sequence[Retained]) -> str:
    """Draw the tree of a scan, the root on top, as one SVG element.

    Every node is a box with the number of its lessons and a bar over the
    reflections below it: those whose lesson the result holds, those for which
    this node is where they were lost (:class:`combee_dspy.records.Retained`),
    and those lost elsewhere. Its tooltip says the same in words. Lines join
    nodes while a level fits one row of ten; larger levels wrap.

    The drawing is 360 units wide with text of 9 units and more, takes the
    width of what surrounds it up to 760 pixels, follows its text colour, and
    tells states apart by place and words as well as by colour. All text from
    outside is escaped.

    Args:
        nodes: The scan's nodes, in any order.
        retained: What became of its reflections.

    Returns:
        An ``<svg>`` element for an HTML page.
    """
    levels = levels_of(nodes)
    verdicts = {one.index: one for one in retained}
    covered = sum(one.covered for one in retained)
    unclear = sum(not one.measurable for one in retained)
    said = f"{covered} of {len(retained)} reflections covered by the result"
    if unclear:
        said += f", {unclear} not measurable"
    parts: list[str] = [_text(_MARGIN, 12, said, 11, weight="600")]
    y = 20.0
    rooms: list[dict[int, tuple[float, float, float]]] = []
    for number in range(len(levels) - 1, -1, -1):
        level = levels[number]
        parts.append(_text(_MARGIN, y + 10, _heading(level), 10))
        places, bottom = _places(level, y + _TITLE)
        for position, node in enumerate(level):
            parts.append(_box(node, places[position], verdicts))
        rooms.append(places)
        if number + 1 < len(levels):
            parts += _edges(level, levels[number + 1], places, rooms[-2])
        y = bottom + _BETWEEN
    if not levels:
        parts.append(_text(_MARGIN, y + 10, "no node: nothing was scanned", 10))
        y += _BETWEEN
    parts.append(_legend(y))
    height = y + 30
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height:g}" role="img" '
        f'aria-label="{escape(said, quote=True)}" font-family="system-ui, sans-serif" fill="currentColor" '
        f'style="display:block;width:100%;max-width:{_WIDEST}px;height:auto">{"".join(parts)}</svg>'
    )


def _heading(level: Sequence[NodeOutput]) -> str:
    lessons = sum(len(node.lessons) for node in level)
    failed = sum(node.failed is not None for node in level)
    said = f"level {level[0].level}: {_count(len(level), 'node')}, {_count(lessons, 'lesson')}"
    return f"{said}, {failed} failed" if failed else said


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def _places(level: Sequence[NodeOutput], top: float) -> tuple[dict[int, tuple[float, float, float]], float]:
    """Return left, top and width of every node, and where the level ends."""
    row = min(len(level), _PER_ROW)
    room = _WIDTH - 2 * _MARGIN
    width = min(_WIDEST_CELL, (room - (row - 1) * _GAP) / row)
    places: dict[int, tuple[float, float, float]] = {}
    for position in range(len(level)):
        line, column = divmod(position, row)
        # Every row is centred, the last one too.
        here = min(row, len(level) - line * row)
        left = (_WIDTH - here * width - (here - 1) * _GAP) / 2
        places[position] = (left + column * (width + _GAP), top + line * (_CELL + _GAP), width)
    rows = -(-len(level) // row)
    return places, top + rows * (_CELL + _GAP) - _GAP


def _edges(
    lower: Sequence[NodeOutput],
    upper: Sequence[NodeOutput],
    below: dict[int, tuple[float, float, float]],
    above: dict[int, tuple[float, float, float]],
) -> list[str]:
    if len(lower) > _EDGES or len(upper) > _EDGES:
        return []
    drawn = []
    for parent, positions in enumerate(children_of(lower, upper)):
        x, y, width = above[parent]
        for position in positions:
            left, top, size = below[position]
            ends = f'x1="{x + width / 2:g}" y1="{y + _CELL:g}" x2="{left + size / 2:g}" y2="{top:g}"'
            drawn.append(f'<line {ends} stroke="{_GONE}" stroke-opacity="0.5"/>')
    return drawn


def _box(node: NodeOutput, place: tuple[float, float, float], verdicts: dict[int, Retained]) -> str:
    left, top, width = place
    found = Counter(_fate(verdicts.get(index), node) for index in node.sources)
    stroke = _FAILED if node.failed is not None else _GONE
    dashed = ' stroke-dasharray="3 2"' if node.failed is not None else ""
    frame = f'x="{left:g}" y="{top:g}" width="{width:g}" height="{_CELL}" rx="3" fill="none" stroke="{stroke}"'
    parts = [
        f"<title>{escape(_told(node, found))}</title>",
        f"<rect {frame}{dashed}/>",
        _text(left + width / 2, top + 12, _short(len(node.lessons)), 10, anchor="middle"),
    ]
    if found["lost"]:
        parts.append(_text(left + width / 2, top + 23, f"−{_short(found['lost'])}", 9, anchor="middle", fill=_LOST))
    elif node.failed is not None:
        parts.append(_text(left + width / 2, top + 23, "failed", 9, anchor="middle", fill=_FAILED))
    x, total = left + 2, max(1, sum(found.values()))
    for fate, colour in (("kept", _KEPT), ("lost", _LOST), ("gone", _GONE)):
        size = (width - 4) * found[fate] / total
        if size > 0:
            place_of = f'x="{x:.2f}" y="{top + _CELL - _BAR - 2:g}" width="{size:.2f}" height="{_BAR}"'
            parts.append(f'<rect {place_of} fill="{colour}"/>')
        x += size
    return f"<g>{''.join(parts)}</g>"


def _fate(one: Retained | None, node: NodeOutput) -> str:
    if one is None:
        return "unknown"
    if one.covered:
        return "kept"
    return "lost" if one.lost_at == (node.level, node.node) else "gone"


def _told(node: NodeOutput, found: Counter[str]) -> str:
    said = (
        f"Level {node.level}, node {node.node}: {_count(len(node.lessons), 'lesson')} "
        f"from {_count(len(node.sources), 'reflection')}. In the result: {found['kept']}. "
        f"Lost here: {found['lost']}. Lost elsewhere: {found['gone']}."
    )
    if node.failed is None:
        return said
    # XML allows no control characters, escaped or not.
    error = "".join(character if character.isprintable() else " " for character in node.failed[:300])
    return f"{said} Failed: {error}"


def _short(number: int) -> str:
    return str(number) if number < 1_000 else f"{number / 1_000:.1f}k"


def _legend(y: float) -> str:
    parts = []
    entries = (("in the result", _KEPT, 92), ("lost here (−)", _LOST, 92), ("lost elsewhere", _GONE, 100))
    x = float(_MARGIN)
    for name, colour, step in entries:
        parts.append(f'<rect x="{x:g}" y="{y:g}" width="8" height="8" fill="{colour}"/>')
        parts.append(_text(x + 12, y + 8, name, 9.5))
        x += step
    parts.append(_text(_MARGIN, y + 21, "number in a box: its lessons; bar: the reflections it read", 9.5))
    return "".join(parts)


def _text(
    x: float, y: float, said: str, size: float, *, anchor: str = "start", weight: str = "400", fill: str = ""
) -> str:
    colour = f' fill="{fill}"' if fill else ""
    return (
        f'<text x="{x:g}" y="{y:g}" font-size="{size:g}" font-weight="{weight}" '
        f'text-anchor="{anchor}"{colour}>{escape(said)}</text>'
    )
