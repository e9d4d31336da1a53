"""What calls are charged by, and sums over what they cost."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Annotated, Any, TypeVar

from pydantic import Field

from combee_dspy.costs._prices import Price, price_of
from combee_dspy.records import CallUsage, Role
from combee_dspy.strategies import parameters

K = TypeVar("K", Role, tuple[Role, str])

_ADDED = ("calls", "errors", "cached", "prompt_tokens", "completion_tokens", "seconds")


@parameters
class Costs:
    """What the run's LM calls cost.

    Args:
        prices: Prices by model name, with or without provider prefix, in front of the built-in list prices.
        gpus: GPUs of your own behind a role, such as ``{"task": 8}``. The role is charged that many GPU-seconds for
            every second in which at least one of its calls is in flight, shared by the calls of that moment.
    """

    prices: Mapping[str, Price] = field(default_factory=dict)
    gpus: Mapping[Role, Annotated[float, Field(gt=0, allow_inf_nan=False)]] = field(default_factory=dict)

    def unpriced(self, models: Mapping[str, str]) -> dict[str, str]:
        """Return those of some models, by role, whose price is not known."""
        return {role: model for role, model in models.items() if price_of(model, self.prices) is None}


class Tariff:
    """What calls are charged by: looked-up prices and the clocks of GPUs. One for all that share GPUs. Thread-safe.

    Args:
        costs: Prices and GPUs.
        clock: Monotonic seconds.
    """

    def __init__(self, costs: Costs | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self.costs = costs if costs is not None else Costs()
        self.clock = clock
        self.gpus: Mapping[str, GpuClock] = {role: GpuClock(n, clock) for role, n in self.costs.gpus.items()}
        self._found: dict[str, Price | None] = {}

    def price(self, model: str) -> Price | None:
        """Return a model's price, ``None`` where it is not known."""
        if model not in self._found:
            # Two threads may both look it up; they find the same price.
            self._found[model] = price_of(model, self.costs.prices)
        return self._found[model]


class GpuClock:
    """The GPU-seconds of one role, shared out over its calls while they come and go. Thread-safe.

    One number grows: what a call in flight since the beginning would have been
    charged. A call's share is by how much it grew while the call was in flight.

    Args:
        gpus: GPUs that serve the role, above 0.
        clock: Monotonic seconds.
    """

    def __init__(self, gpus: float, clock: Callable[[], float]) -> None:
        self._gpus = gpus
        self._clock = clock
        self._lock = threading.Lock()
        self._in_flight = 0
        self._charged = 0.0
        self._at = 0.0

    def start(self) -> float:
        """Note that a call begins; return what :meth:`stop` needs."""
        return self._advance(1)

    def stop(self, started: float) -> float:
        """Note that a call ends; return its GPU-seconds."""
        return self._advance(-1) - started

    def _advance(self, change: int) -> float:
        with self._lock:
            # The clock is read under the lock, so that it never runs backwards.
            now = self._clock()
            if self._in_flight:
                self._charged += self._gpus * (now - self._at) / self._in_flight
            self._at = now
            self._in_flight += change
            return self._charged


@dataclass(frozen=True, slots=True)
class Sums:
    """Sums over LM calls.

    Attributes:
        calls: Finished calls, errors and cache hits included.
        errors: Calls that ended with an error.
        cached: Calls that DSPy's cache answered.
        prompt_tokens: Prompt tokens.
        completion_tokens: Completion tokens.
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
    """What LM calls have cost.

    Attributes:
        total: All of them.
        by_role: Those of each role.
        by_model: Those of each role and model.
    """

    total: Sums
    by_role: Mapping[Role, Sums]
    by_model: Mapping[tuple[Role, str], Sums]


def totals(rows: Iterable[CallUsage]) -> CostTotals:
    """Return the sums of usage by role and model. Does not depend on the order of rows, up to rounding."""
    rows = tuple(rows)
    roles, models = _grouped(rows, lambda row: row.role), _grouped(rows, lambda row: (row.role, row.model))
    return CostTotals(
        _summed(rows),
        {role: _summed(found) for role, found in roles.items()},
        {key: _summed(found) for key, found in models.items()},
    )


def merged(*usages: Iterable[CallUsage]) -> tuple[CallUsage, ...]:
    """Return usage of several attempts or parts as one: one row a role and model, sorted by them."""
    found = _grouped(chain(*usages), lambda row: (row.role, row.model))
    return tuple(CallUsage(role, model, **_sums(rows)) for (role, model), rows in found.items())


def _grouped(rows: Iterable[CallUsage], key: Callable[[CallUsage], K]) -> dict[K, list[CallUsage]]:
    found: dict[K, list[CallUsage]] = {}
    for row in rows:
        found.setdefault(key(row), []).append(row)
    return dict(sorted(found.items()))


def _summed(rows: Sequence[CallUsage]) -> Sums:
    return Sums(**_sums(rows), known_dollars=sum(row.dollars or 0.0 for row in rows))


def _sums(rows: Sequence[CallUsage]) -> dict[str, Any]:
    dollars = [row.dollars for row in rows]
    gpu = [row.gpu_seconds for row in rows if row.gpu_seconds is not None]
    return {
        **{name: sum(getattr(row, name) for row in rows) for name in _ADDED},
        "dollars": None if None in dollars else sum(amount or 0.0 for amount in dollars),
        "gpu_seconds": sum(gpu) if gpu else None,
    }
