"""Costs, read from the ledger's totals. Keys that an older or newer ledger lacks count as nothing."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from combee_dspy.tracking.report._data import CostRow, Spending

__all__ = ["cost_rows", "spending_of"]


def cost_rows(costs: Mapping[str, Any]) -> tuple[CostRow, ...]:
    """Return one row a role, sorted by role.

    Args:
        costs: What :meth:`combee_dspy.costs.Totals.to_dict` returned.
    """
    by_role = costs.get("by_role")
    if not isinstance(by_role, Mapping):
        return ()
    return tuple(_row(str(role), by_role[role]) for role in sorted(by_role) if isinstance(by_role[role], Mapping))


def spending_of(costs: Mapping[str, Any]) -> Spending:
    """Return what all roles have cost together."""
    rows = cost_rows(costs)
    return Spending(
        tokens=sum(row.prompt_tokens + row.completion_tokens for row in rows),
        dollars=sum(row.dollars for row in rows),
        unpriced=sum(row.unpriced for row in rows),
        calls=sum(row.calls for row in rows),
    )


def _row(role: str, counts: Mapping[str, Any]) -> CostRow:
    def read(name: str) -> float:
        value = counts.get(name)
        usable = isinstance(value, (int, float)) and math.isfinite(value)
        return value if usable else 0  # type: ignore[return-value]  # a number, by the line above

    models = counts.get("models")
    gpu = counts.get("gpu_seconds")
    return CostRow(
        role=role,
        models=tuple(sorted(map(str, models))) if isinstance(models, Mapping) else (),
        calls=int(read("calls") - read("cached")),
        cached=int(read("cached")),
        errors=int(read("errors")),
        prompt_tokens=int(read("prompt_tokens")),
        completion_tokens=int(read("completion_tokens")),
        dollars=float(read("known_dollars")),
        unpriced=int(read("unpriced")),
        gpu_seconds=float(gpu) if isinstance(gpu, (int, float)) and math.isfinite(gpu) else None,
        seconds=float(read("seconds")),
        slowest=float(read("slowest")),
        peak=int(read("peak")),
    )
