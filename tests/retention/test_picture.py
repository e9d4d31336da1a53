from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from combee_dspy.records import NodeOutput, Retained
from combee_dspy.retention import scan_svg

SVG = "{http://www.w3.org/2000/svg}"


def parsed(drawn: str) -> ElementTree.Element:
    return ElementTree.fromstring(drawn)  # noqa: S314 - drawn by the code under test


def tree(shards: int, fan_in: int = 12) -> list[NodeOutput]:
    nodes = [NodeOutput(1, n, (2 * n, 2 * n + 1), (f"lesson {n}",)) for n in range(shards)]
    level, below = 2, nodes
    while len(below) > 1:
        groups = -(-len(below) // fan_in)
        above = []
        for group in range(groups):
            children = below[len(below) * group // groups : len(below) * (group + 1) // groups]
            sources = tuple(sorted(index for child in children for index in child.sources))
            above.append(NodeOutput(level, group, sources, ("merged",)))
        nodes, below, level = nodes + above, above, level + 1
    return nodes


def verdicts(count: int) -> list[Retained]:
    return [Retained(n, 0.9, True) if n % 2 else Retained(n, 0.1, False, (1, n // 2)) for n in range(count)]


@pytest.mark.parametrize("shards", [0, 1, 2, 9, 10, 11, 40, 100])
def test_every_node_is_drawn_inside_the_picture_and_none_covers_another(shards: int) -> None:
    nodes = tree(shards)
    root = parsed(scan_svg(nodes, verdicts(2 * shards)))
    _, _, width, height = (float(part) for part in root.attrib["viewBox"].split())
    boxes = []
    for group in root.findall(f"{SVG}g"):
        frame = group.find(f"{SVG}rect")
        assert frame is not None
        x, y, w, h = (float(frame.attrib[name]) for name in ("x", "y", "width", "height"))
        assert x >= 0
        assert x + w <= width
        assert y + h <= height
        boxes.append((x, y, w, h))
        title = group.find(f"{SVG}title")
        assert title is not None
        assert title.text
    assert len(boxes) == len(nodes)
    for number, (x, y, w, h) in enumerate(boxes):
        assert all(x + w <= a or a + c <= x or y + h <= b or b + d <= y for a, b, c, d in boxes[number + 1 :])


def test_text_is_large_enough_on_a_small_screen() -> None:
    # The view is 360 units wide, so at 360 pixels one unit is one pixel.
    drawn = scan_svg(tree(100), verdicts(200))
    assert 'viewBox="0 0 360 ' in drawn
    assert min(float(size) for size in re.findall(r'font-size="([\d.]+)"', drawn)) >= 9


def test_a_box_says_what_was_lost_there_and_what_reached_the_result() -> None:
    nodes = [
        NodeOutput(1, 0, (0, 1, 2), ("a", "b")),
        NodeOutput(1, 1, (2, 3), ("c",)),
        NodeOutput(2, 0, (0, 1, 2, 3), ("a",)),
    ]
    found = [Retained(0, 0.9, True)] + [Retained(n, 0.1, False, (1, int(n == 3))) for n in (1, 2, 3)]
    titles = [one.text or "" for one in parsed(scan_svg(nodes, found)).iter(f"{SVG}title")]
    assert titles == [
        "Level 2, node 0: 1 lesson from 4 reflections. In the result: 1. Lost here: 0. Lost elsewhere: 3.",
        "Level 1, node 0: 2 lessons from 3 reflections. In the result: 1. Lost here: 2. Lost elsewhere: 0.",
        "Level 1, node 1: 1 lesson from 2 reflections. In the result: 0. Lost here: 1. Lost elsewhere: 1.",
    ]
    lines = parsed(scan_svg(nodes, found)).findall(f"{SVG}line")
    assert len(lines) == 2


def test_text_from_outside_is_escaped() -> None:
    evil = '"><script>alert(1)</script>\x00\x1b & <b>'
    drawn = scan_svg([NodeOutput(1, 0, (0,), (), failed=evil)], verdicts(1))
    assert "<script" not in drawn
    title = parsed(drawn).find(f"{SVG}g/{SVG}title")
    assert title is not None
    assert "script" in (title.text or "")
    assert "failed" in drawn


def test_the_head_counts_reflections_and_those_that_cannot_be_told() -> None:
    found = [*verdicts(4), Retained(9, 0.0, False, (0, 0), measurable=False)]
    assert 'aria-label="2 of 5 reflections covered by the result, 1 not measurable"' in scan_svg(tree(2), found)


def test_large_numbers_are_shortened() -> None:
    node = NodeOutput(1, 0, tuple(range(2_500)), tuple(f"l{n}" for n in range(1_500)))
    drawn = scan_svg([node], [Retained(n, 0.1, False, (1, 0)) for n in range(2_500)])
    assert ">1.5k<" in drawn
    assert ">−2.5k<" in drawn
