"""Prices of tokens, and the GPU-seconds of servers of one's own."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Annotated, Any

from pydantic import Field

from combee_dspy._private import list_prices
from combee_dspy.records import Role
from combee_dspy.strategies import parameters

Dollars = Annotated[float, Field(ge=0, allow_inf_nan=False)]


@parameters
class Price:
    """What a model's tokens cost, in dollars per million.

    Args:
        prompt: Of the prompt.
        completion: Of the answer, reasoning included.
        cached_prompt: Prompt tokens that the provider read from its own prompt cache; ``None`` for
            the full price.
    """

    prompt: Dollars
    completion: Dollars
    cached_prompt: Dollars | None = None

    def dollars(
        self, prompt_tokens: int, completion_tokens: int, cached_prompt_tokens: int = 0
    ) -> float:
        """Return the dollars of a call; ``cached_prompt_tokens`` are some of its prompt tokens."""
        cached_price = self.prompt if self.cached_prompt is None else self.cached_prompt
        cached = min(cached_prompt_tokens, prompt_tokens)
        full = prompt_tokens - cached
        return (
            full * self.prompt + cached * cached_price + completion_tokens * self.completion
        ) / 1_000_000


# "-2024-08-06", "-20250929", "@20250929", "-latest": another name of the same model and price.
_VERSION = re.compile(r"(?:-\d{4}-\d{2}-\d{2}|[-@]\d{8}|-latest)$")


def price_of(model: str, own: Mapping[str, Price] | None = None) -> Price | None:
    """Return a model's price, or ``None`` where none is known.

    Your own prices come first: by the whole name, then with its leading parts removed, so that the
    longest match counts. Case is ignored, and a dated version (``-2024-08-06``) has the price of
    its undated name. Then the table that the installed DSPy carries: list prices by provider and
    model, without batch or volume discounts, surcharges for long contexts and fees for tools. One
    provider's price says nothing about another's.

    Simulated and embedded models, ``dummy`` and OpenRouter's ``:free`` variants cost 0. A zero in
    DSPy's table is no price: it stands for what nobody bills by the token, such as your own server.

    Args:
        model: The model's name as DSPy knows it: ``provider/model``.
        own: Your own prices by model name, with or without provider prefix.
    """
    parts = model.lower().split("/")
    whole = ["/".join(parts[start:]) for start in range(len(parts))]
    names = [form for name in whole for form in dict.fromkeys((name, _VERSION.sub("", name)))]
    own_prices = {name.lower(): price for name, price in (own or {}).items()}
    if price := next((own_prices[name] for name in names if name in own_prices), None):
        return price
    free = parts[0] == "embedded" or parts == ["dummy"] or parts[-1].endswith(":free")
    if free or any(part.startswith("simulated") for part in parts):
        return Price(0.0, 0.0)
    head, slash, rest = model.partition("/")
    return _list_price(head, rest) if slash else _list_price("", model)


def window_of(model: str) -> int | None:
    """Return the longest prompt that a model takes, in tokens, by the table that the installed DSPy
    carries; ``None`` where it does not say.
    """
    head, slash, rest = model.partition("/")
    tokens = (_list_entry(head, rest) if slash else _list_entry("", model)).get("max_input_tokens")
    return tokens if isinstance(tokens, int) else None


def _list_entry(provider: str, model: str) -> Mapping[str, Any]:
    """Return a model's entry in DSPy's table, where names without a provider carry it in a field;
    empty where there is none.
    """
    entry = list_prices().get(f"{provider}/{model}")
    if entry is None:
        entry = list_prices().get(model, {})
        # "vertex_ai-language-models", "bedrock_converse": families of one provider.
        if not str(entry.get("litellm_provider", "")).startswith(provider):
            return {}
    return entry


def _list_price(provider: str, model: str) -> Price | None:
    entry = _list_entry(provider, model)
    prompt, completion, cached = (
        _per_million(entry.get(key))
        for key in ("input_cost_per_token", "output_cost_per_token", "cache_read_input_token_cost")
    )
    if prompt is None or completion is None or not (prompt or completion):
        return None
    return Price(prompt, completion, cached)


def _per_million(dollars: object) -> float | None:
    # Rounded: 1.5e-07 times a million is not exactly 0.15.
    return round(dollars * 1e6, 9) if isinstance(dollars, (int, float)) else None


@parameters
class Costs:
    """What the run's LM calls cost.

    Args:
        prices: Prices by model name, with or without provider prefix, in front of the list prices
            that DSPy carries.
        gpus: GPUs of your own behind a role, such as ``{"task": 8}``. The role is charged that many
            GPU-seconds for every second in which at least one of its calls is in flight, shared by
            the calls of that moment.
    """

    prices: Mapping[str, Price] = field(default_factory=dict)
    gpus: Mapping[Role, Annotated[float, Field(gt=0, allow_inf_nan=False)]] = field(
        default_factory=dict
    )

    def unpriced(self, models: Mapping[str, str]) -> dict[str, str]:
        """Return those of some models, by role, whose price is not known."""
        return {
            role: model for role, model in models.items() if price_of(model, self.prices) is None
        }


class Tariff:
    """What calls are charged by: looked-up prices and the clocks of GPUs. One for all that share
    GPUs. Thread-safe.
    """

    def __init__(
        self, costs: Costs | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.costs = costs if costs is not None else Costs()
        self.clock = clock
        self.gpus: Mapping[str, GpuClock] = {
            role: GpuClock(n, clock) for role, n in self.costs.gpus.items()
        }
        self._prices: dict[str, Price | None] = {}

    def price(self, model: str) -> Price | None:
        """Return a model's price, ``None`` where it is not known."""
        if model not in self._prices:
            # Two threads may both look it up: they get the same price.
            self._prices[model] = price_of(model, self.costs.prices)
        return self._prices[model]


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
