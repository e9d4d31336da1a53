"""Prices of models, in dollars per million tokens."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Annotated

from pydantic import Field

from combee_dspy.strategies import parameters

_MILLION = 1_000_000

Dollars = Annotated[float, Field(ge=0, allow_inf_nan=False)]


@parameters
class Price:
    """What a model's tokens cost, in dollars per million.

    Args:
        prompt: Prompt tokens.
        completion: Completion tokens, reasoning included.
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
        return (full * self.prompt + cached * cached_price + completion_tokens * self.completion) / _MILLION


_FREE = Price(0.0, 0.0)

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

# "-2024-08-06", "-20250929", "@20250929", "-latest", ":free": a dated or tagged name of the same model.
_VERSION = re.compile(r"(?:-\d{4}-\d{2}-\d{2}|[-@]\d{8}|-latest|:[\w.-]+)$")


def price_of(model: str, own: Mapping[str, Price] | None = None) -> Price | None:
    """Return a model's price, or ``None`` where none is known.

    Built-in prices are list prices as of November 2026, without batch or volume discounts, and for DeepSeek V3.1
    and gpt-oss-120b the common price of hosted open weights. They go out of date and say nothing about your
    contract or your own server: give your own.

    A name is looked up whole and then with its leading parts removed, so the longest match counts:
    ``together_ai/deepseek-ai/DeepSeek-V3.1`` is found as ``deepseek-ai/deepseek-v3.1`` before ``deepseek-v3.1``.
    Case is ignored; a dated version (``-2024-08-06``) has the price of its undated name. Your own prices come
    first. Simulated and embedded models and ``dummy`` cost 0.

    Args:
        model: The model's name as LiteLLM knows it.
        own: Your own prices by model name, with or without provider prefix.
    """
    names = list(_suffixes(model))
    mine = {name.lower(): price for name, price in (own or {}).items()}
    found = next((mine[name] for name in names if name in mine), None)
    if found is None and _costs_nothing(model):
        return _FREE
    return found or next((_LISTED[name] for name in names if name in _LISTED), None)


def _suffixes(model: str) -> Iterator[str]:
    parts = model.lower().split("/")
    for start in range(len(parts)):
        name = "/".join(parts[start:])
        yield name
        plain = _VERSION.sub("", name)
        if plain != name:
            yield plain


def _costs_nothing(model: str) -> bool:
    parts = model.lower().split("/")
    return parts[0] == "embedded" or parts == ["dummy"] or any(part.startswith("simulated") for part in parts)
