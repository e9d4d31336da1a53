"""Sums over what LM calls cost. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from math import fsum
from typing import Any, TypeVar

from combee_dspy.records import CallUsage, Role

K = TypeVar("K", Role, tuple[Role, str])

_COUNTS = ("calls", "errors", "cached", "prompt_tokens", "completion_tokens")


@dataclass(frozen=True, slots=True)
class Sums:
    """Sums over LM calls.

    Attributes:
        calls: Finished calls, errors and cache hits included.
        errors: Calls that ended with an error, those that a service turned away for a while
            included.
        cached: Calls that DSPy's cache answered.
        dollars: What all of them cost; ``None``, not zero, where the price of one is not known.
        known_dollars: Dollars of those whose price is known.
        gpu_seconds: ``None``, not zero, where no GPUs are declared.
        seconds: Sum of their seconds, cache hits left out.
    """

    calls: int = 0
    errors: int = 0
    cached: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    dollars: float | None = 0.0
    known_dollars: float = 0.0
    gpu_seconds: float | None = None
    seconds: float = 0.0

    def __str__(self) -> str:
        """Return the sums on one line; dollars of what has a price where others have none."""
        spent = f"${self.known_dollars:.4f}"
        if self.dollars is None:
            has_price = self.known_dollars > 0
            spent = f"{spent} and calls without a price" if has_price else "dollars unknown"
        failed = f", {self.errors} failed" if self.errors else ""
        return (
            f"{self.calls:,} calls{failed}, {self.prompt_tokens:,} tokens in,"
            f" {self.completion_tokens:,} out, {spent}"
        )

    @property
    def sent(self) -> int:
        """Calls that went to the service."""
        return self.calls - self.cached

    @property
    def tokens(self) -> int:
        """Prompt and completion tokens together."""
        return self.prompt_tokens + self.completion_tokens


@dataclass(frozen=True, slots=True)
class CostTotals:
    """What LM calls have cost: all of them, by role, and by role and model."""

    total: Sums
    by_role: Mapping[Role, Sums]
    by_model: Mapping[tuple[Role, str], Sums]

    def __str__(self) -> str:
        """Return a line for each role and model, and one for all."""
        rows = [(role, model, sums) for (role, model), sums in self.by_model.items()]
        wide = max((len(f"{role} {model}") for role, model, _ in rows), default=0)
        lines = [f"{f'{role} {model}':<{wide}}  {sums}" for role, model, sums in rows]
        return "\n".join([*lines, f"{'all':<{wide}}  {self.total}"])


def totals(rows: Iterable[CallUsage]) -> CostTotals:
    """Return the sums of usage by role and model. Does not depend on the order of rows."""
    rows = tuple(rows)
    roles = _grouped(rows, lambda row: row.role)
    models = _grouped(rows, lambda row: (row.role, row.model))
    return CostTotals(
        _summed(rows),
        {role: _summed(usage) for role, usage in roles.items()},
        {key: _summed(usage) for key, usage in models.items()},
    )


def merged(*usages: Iterable[CallUsage]) -> tuple[CallUsage, ...]:
    """Return usage of several calls, attempts or parts as one row a role and model, sorted."""
    rows = tuple(chain(*usages))
    if len(rows) < 2:
        return rows
    groups = _grouped(rows, lambda row: (row.role, row.model))
    return tuple(CallUsage(role, model, **_sums(rows)) for (role, model), rows in groups.items())


def _grouped(rows: Iterable[CallUsage], key: Callable[[CallUsage], K]) -> dict[K, list[CallUsage]]:
    groups: dict[K, list[CallUsage]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return dict(sorted(groups.items()))


def _summed(rows: Sequence[CallUsage]) -> Sums:
    return Sums(**_sums(rows), known_dollars=fsum(row.dollars or 0.0 for row in rows))


def _sums(rows: Sequence[CallUsage]) -> dict[str, Any]:
    dollars = [row.dollars for row in rows]
    gpu = [row.gpu_seconds for row in rows if row.gpu_seconds is not None]
    # fsum rounds once, at the end: calls that run at the same time come in any order.
    return {
        **{name: sum(getattr(row, name) for row in rows) for name in _COUNTS},
        "seconds": fsum(row.seconds for row in rows),
        "dollars": None if None in dollars else fsum(amount or 0.0 for amount in dollars),
        "gpu_seconds": fsum(gpu) if gpu else None,
    }
