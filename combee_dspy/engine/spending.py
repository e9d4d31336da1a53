"""Sums of what the parts of a resumed run have spent, as pure functions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any, TypeVar

from combee_dspy.costs import Counts, Totals

__all__ = ["add_totals", "dump_totals", "load_totals"]

_LARGEST = frozenset({"slowest", "peak"})

Key = TypeVar("Key")


def add_totals(before: Totals, now: Totals) -> Totals:
    """Return the sums of two parts of one run; of what is a maximum, the larger."""
    return Totals(
        seconds=before.seconds + now.seconds,
        total=_add(before.total, now.total),
        by_role=_merge(before.by_role, now.by_role),
        by_model=_merge(before.by_model, now.by_model),
    )


def dump_totals(totals: Totals) -> dict[str, Any]:
    """Return plain data for a checkpoint."""
    return {
        "seconds": totals.seconds,
        "total": asdict(totals.total),
        "by_role": [[role, asdict(counts)] for role, counts in totals.by_role.items()],
        "by_model": [[role, model, asdict(counts)] for (role, model), counts in totals.by_model.items()],
    }


def load_totals(data: Mapping[str, Any]) -> Totals:
    """Read what :func:`dump_totals` wrote; nothing spent where there is nothing."""
    if not data:
        return Totals()
    return Totals(
        seconds=float(data["seconds"]),
        total=Counts(**data["total"]),
        by_role={role: Counts(**counts) for role, counts in data["by_role"]},
        by_model={(role, model): Counts(**counts) for role, model, counts in data["by_model"]},
    )


def _merge(before: Mapping[Key, Counts], now: Mapping[Key, Counts]) -> dict[Key, Counts]:
    none = Counts()
    return {key: _add(before.get(key, none), now.get(key, none)) for key in {**before, **now}}


def _add(one: Counts, other: Counts) -> Counts:
    joined: dict[str, Any] = {}
    for name in (each.name for each in fields(Counts)):
        pair = getattr(one, name), getattr(other, name)
        known = [value for value in pair if value is not None]
        # Unknown in both parts stays unknown: GPU-seconds where no GPUs are declared.
        joined[name] = (max(known) if name in _LARGEST else sum(known)) if known else None
    return Counts(**joined)
