"""What calls are charged by, and sums over what they cost."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from math import fsum
from typing import Annotated, Any, TypeVar

from pydantic import Field

from combee_dspy.records import CallUsage, Role
from combee_dspy.strategies import parameters

K = TypeVar("K", Role, tuple[Role, str])

_COUNTS = ("calls", "errors", "cached", "prompt_tokens", "completion_tokens")

Dollars = Annotated[float, Field(ge=0, allow_inf_nan=False)]


@parameters
class Price:
    """What a model's tokens cost, in dollars per million.

    Args:
        prompt: Of the prompt.
        completion: Of the answer, reasoning included.
        cached_prompt: Prompt tokens that the provider read from its own prompt cache; ``None`` for the full price.
    """

    prompt: Dollars
    completion: Dollars
    cached_prompt: Dollars | None = None

    def dollars(self, prompt_tokens: int, completion_tokens: int, cached_prompt_tokens: int = 0) -> float:
        """Return the dollars of one call; ``cached_prompt_tokens`` are some of its prompt tokens."""
        cached_price = self.prompt if self.cached_prompt is None else self.cached_prompt
        cached = min(cached_prompt_tokens, prompt_tokens)
        full = prompt_tokens - cached
        return (full * self.prompt + cached * cached_price + completion_tokens * self.completion) / 1_000_000


# Providers' list prices as of November 2026.
_LISTED: Mapping[str, Price] = {
    "claude-haiku-4-5": Price(1.0, 5.0, 0.1),
    "claude-sonnet-4-5": Price(3.0, 15.0, 0.3),
    "claude-sonnet-4-6": Price(3.0, 15.0, 0.3),
    "claude-sonnet-5": Price(2.0, 10.0, 0.2),
    "claude-sonnet-5-5": Price(2.0, 10.0, 0.2),
    "deepseek-chat": Price(0.28, 0.42, 0.028),
    "deepseek-reasoner": Price(0.28, 0.42, 0.028),
    "deepseek-chat-v3.1": Price(0.6, 1.7),
    "deepseek-v3.1": Price(0.6, 1.7),
    "deepseek-v3.1-terminus": Price(0.6, 1.7),
    "deepseek-v3p1": Price(0.6, 1.7),
    "deepseek-v4-flash": Price(0.3, 1.2, 0.006),
    "deepseek-v4-pro": Price(1.32, 3.96, 0.044),
    "gemini-2.5-flash": Price(0.3, 2.5, 0.03),
    "gemini-2.5-flash-lite": Price(0.1, 0.4, 0.01),
    "gemini-3.5-flash": Price(1.5, 9.0, 0.15),
    "gemini-3.8-flash": Price(0.75, 3.75, 0.075),
    "gpt-4.1": Price(2.0, 8.0, 0.5),
    "gpt-4.1-mini": Price(0.4, 1.6, 0.1),
    "gpt-4.1-nano": Price(0.1, 0.4, 0.025),
    "gpt-4o": Price(2.5, 10.0, 1.25),
    "gpt-4o-mini": Price(0.15, 0.6, 0.075),
    "gpt-5": Price(1.25, 10.0, 0.125),
    "gpt-5-mini": Price(0.25, 2.0, 0.025),
    "gpt-5-nano": Price(0.05, 0.4, 0.005),
    "gpt-5.1": Price(1.25, 10.0, 0.125),
    "gpt-5.2": Price(1.75, 14.0, 0.175),
    "gpt-5.4": Price(2.5, 15.0, 0.25),
    "gpt-5.4-mini": Price(0.75, 4.5, 0.075),
    "gpt-5.4-nano": Price(0.2, 1.25, 0.02),
    "gpt-oss-120b": Price(0.15, 0.6),
}

# "-2024-08-06", "-20250929", "@20250929", "-latest", ":nitro": another name of the same model and price.
_VERSION = re.compile(r"(?:-\d{4}-\d{2}-\d{2}|[-@]\d{8}|-latest|:(?!free$)[\w.-]+)$")


def price_of(model: str, own: Mapping[str, Price] | None = None) -> Price | None:
    """Return a model's price, or ``None`` where none is known.

    Built-in prices are list prices as of November 2026, without batch or volume discounts, and for DeepSeek V3.1
    and gpt-oss-120b the common price of hosted open weights. They go out of date and say nothing about your
    contract or your own server: give your own.

    A name is looked up whole and then with its leading parts removed, so the longest match counts:
    ``together_ai/deepseek-ai/DeepSeek-V3.1`` is found as ``deepseek-ai/deepseek-v3.1`` before ``deepseek-v3.1``.
    Case is ignored; a dated version (``-2024-08-06``) has the price of its undated name. Your own prices come
    first. Simulated and embedded models, ``dummy`` and OpenRouter's ``:free`` variants cost 0.

    Args:
        model: The model's name as LiteLLM knows it.
        own: Your own prices by model name, with or without provider prefix.
    """
    parts = model.lower().split("/")
    whole = ["/".join(parts[start:]) for start in range(len(parts))]
    names = [form for name in whole for form in dict.fromkeys((name, _VERSION.sub("", name)))]
    mine = {name.lower(): price for name, price in (own or {}).items()}
    if found := next((mine[name] for name in names if name in mine), None):
        return found
    free = parts[0] == "embedded" or parts == ["dummy"] or parts[-1].endswith(":free")
    if free or any(part.startswith("simulated") for part in parts):
        return Price(0.0, 0.0)
    return next((_LISTED[name] for name in names if name in _LISTED), None)


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
    """What calls are charged by: looked-up prices and the clocks of GPUs. One for all that share GPUs. Thread-safe."""

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
    """

    def __init__(self, gpus: float, clock: Callable[[], float]) -> None:
        self._gpus = gpus
        self._clock = clock
        self._lock = threading.Lock()
        self._in_flight = 0
        self._charged = self._at = 0.0

    def change(self, calls: int) -> float:
        """Note that a call begins (1) or ends (-1); return the number."""
        with self._lock:
            # The clock is read under the lock, so that it never runs backwards.
            now = self._clock()
            if self._in_flight:
                self._charged += self._gpus * (now - self._at) / self._in_flight
            self._at = now
            self._in_flight += calls
            return self._charged


@dataclass(frozen=True, slots=True)
class Sums:
    """Sums over LM calls.

    Attributes:
        calls: Finished calls, errors and cache hits included.
        errors: Calls that ended with an error, those that a service turned away for a while included.
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
    """What LM calls have cost: all of them, those of each role, and those of each role and model."""

    total: Sums
    by_role: Mapping[Role, Sums]
    by_model: Mapping[tuple[Role, str], Sums]


def totals(rows: Iterable[CallUsage]) -> CostTotals:
    """Return the sums of usage by role and model. Does not depend on the order of rows."""
    rows = tuple(rows)
    roles, models = _grouped(rows, lambda row: row.role), _grouped(rows, lambda row: (row.role, row.model))
    return CostTotals(
        _summed(rows),
        {role: _summed(found) for role, found in roles.items()},
        {key: _summed(found) for key, found in models.items()},
    )


def merged(*usages: Iterable[CallUsage]) -> tuple[CallUsage, ...]:
    """Return usage of several calls, attempts or parts as one: one row a role and model, sorted by them."""
    rows = tuple(chain(*usages))
    if len(rows) < 2:
        return rows
    found = _grouped(rows, lambda row: (row.role, row.model))
    return tuple(CallUsage(role, model, **_sums(rows)) for (role, model), rows in found.items())


def _grouped(rows: Iterable[CallUsage], key: Callable[[CallUsage], K]) -> dict[K, list[CallUsage]]:
    found: dict[K, list[CallUsage]] = {}
    for row in rows:
        found.setdefault(key(row), []).append(row)
    return dict(sorted(found.items()))


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
