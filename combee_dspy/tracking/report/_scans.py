"""What each scan kept, for the page. Pure."""

from __future__ import annotations

from typing import Any

from combee_dspy.events import ScanEnded, ScanReflection
from combee_dspy.journal import Entry
from combee_dspy.records import NodeOutput

__all__ = ["scan_facts"]

_KEPT, _LOST_HERE, _LOST_ON_THE_WAY, _NOT_IN_RESULT, _UNMEASURED = range(5)


def scan_facts(entry: Entry[ScanEnded]) -> dict[str, Any]:
    """Return a scan with one cell for each reflection that a call read: kept, lost there, or lost
    elsewhere.
    """
    scan = entry.event
    reflections = {reflection.index: reflection for reflection in scan.retained}
    last = max((node.level for node in scan.nodes), default=1)
    alone = sum(node.level == last for node in scan.nodes) == 1
    nodes = []
    for node in sorted(scan.nodes, key=lambda node: (node.level, node.node)):
        top = node.level == last > 1
        cells = [
            (index, _state(reflections[index], node, top))
            for index in node.sources
            if index in reflections
        ]
        name = "result" if top and alone else f"{node.level}.{node.node + 1}"
        nodes.append({"name": name, "cells": cells, "lessons": node.lessons})
    states = [_state(reflection, None, top=False) for reflection in scan.retained]
    return {
        "step": entry.step,
        "component": entry.component,
        "aggregator": scan.aggregator,
        "n": scan.n,
        "nodes": nodes,
        "failed": scan.failed,
        "lessons": [lesson.text for lesson in scan.lessons],
        "kept": states.count(_KEPT),
        "lost": states.count(_LOST_ON_THE_WAY),
        "unmeasured": states.count(_UNMEASURED),
    }


def _state(reflection: ScanReflection, node: NodeOutput | None, top: bool) -> int:
    if reflection.covered:
        return _KEPT
    if not reflection.measurable:
        return _UNMEASURED
    if node is not None and reflection.lost_at == (node.level, node.node):
        return _LOST_HERE
    return _NOT_IN_RESULT if top else _LOST_ON_THE_WAY
