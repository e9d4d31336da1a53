"""Reflections that a scan's result does not cover, waiting for their second chance."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from combee_dspy.records import Reflection

__all__ = ["behind", "dump_lost", "joined_lost", "load_lost"]


def joined_lost(before: Sequence[Reflection], found: Sequence[Reflection]) -> tuple[Reflection, ...]:
    """Return both, under indices that tell reflections of different minibatches apart.

    Args:
        before: What waits already.
        found: What another scan of the same component has lost.
    """
    start = max((one.index for one in before), default=-1) + 1
    return (*before, *(replace(one, index=one.index + start) for one in found))


def behind(size: int, example_ids: Sequence[str], again: Sequence[Reflection]) -> tuple[Reflection, ...]:
    """Return rescued reflections as the last of a minibatch's.

    One whose example is in the minibatch anyway is left out: its fresh record comes from the present candidate.

    Args:
        size: Examples in the minibatch; its own reflections have indices below it.
        example_ids: Their ids.
        again: Reflections on their second chance. Parts of one record share an index, and go on sharing one.
    """
    present = frozenset(example_ids)
    fresh: dict[int, int] = {}
    return tuple(
        replace(one, index=fresh.setdefault(one.index, size + len(fresh)))
        for one in again
        if one.example_id not in present
    )


def dump_lost(lost: Mapping[str, Sequence[Reflection]]) -> dict[str, list[list[Any]]]:
    """Return plain data for a checkpoint. Records that JSON cannot hold, such as those with images, are left out."""
    return {
        component: [[one.index, dict(one.record), one.example_id, one.part] for one in found if _plain(one.record)]
        for component, found in lost.items()
    }


def load_lost(data: Mapping[str, Any]) -> dict[str, tuple[Reflection, ...]]:
    """Restore what :func:`dump_lost` returned."""
    return {
        str(component): tuple(
            Reflection(int(index), record, example_id, int(part)) for index, record, example_id, part in found
        )
        for component, found in data.items()
    }


def _plain(record: Mapping[str, Any]) -> bool:
    try:
        return bool(json.loads(json.dumps(dict(record), allow_nan=False)) == dict(record))
    except (TypeError, ValueError, RecursionError):
        return False
