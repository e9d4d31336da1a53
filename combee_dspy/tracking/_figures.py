"""Costs by role, read from events."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["Figures", "figures_of", "sum_of"]


@dataclass(frozen=True, slots=True)
class Figures:
    """What one role has cost so far.

    Attributes:
        calls: Calls that went to the service.
        cached: Calls that a cache answered.
        prompt_tokens: Prompt tokens.
        completion_tokens: Completion tokens.
        dollars: Dollars of the calls whose cost is known.
        unpriced: Calls whose cost is not known.
        gpu_seconds: GPU-seconds; ``None`` where no GPUs are declared.
    """

    calls: int = 0
    cached: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    dollars: float = 0.0
    unpriced: int = 0
    gpu_seconds: float | None = None

    @property
    def tokens(self) -> int:
        """Prompt and completion tokens together."""
        return self.prompt_tokens + self.completion_tokens


def figures_of(costs: Mapping[str, Any]) -> dict[str, Figures]:
    """Return figures by role, sorted by role.

    Args:
        costs: What :meth:`combee_dspy.costs.Totals.to_dict` returned, or its ``by_role`` alone.
    """
    by_role = costs.get("by_role", costs)
    return {role: _figures(by_role[role]) for role in sorted(by_role)}


def sum_of(figures: Mapping[str, Figures]) -> Figures:
    """Return the sum over all roles."""
    each = figures.values()
    gpus = [one.gpu_seconds for one in each if one.gpu_seconds is not None]
    return Figures(
        calls=sum(one.calls for one in each),
        cached=sum(one.cached for one in each),
        prompt_tokens=sum(one.prompt_tokens for one in each),
        completion_tokens=sum(one.completion_tokens for one in each),
        dollars=sum(one.dollars for one in each),
        unpriced=sum(one.unpriced for one in each),
        gpu_seconds=sum(gpus) if gpus else None,
    )


def _figures(counts: Mapping[str, Any]) -> Figures:
    def read(name: str) -> Any:
        return counts.get(name) or 0

    return Figures(
        calls=read("calls") - read("cached"),
        cached=read("cached"),
        prompt_tokens=read("prompt_tokens"),
        completion_tokens=read("completion_tokens"),
        dollars=read("known_dollars"),
        unpriced=read("unpriced"),
        gpu_seconds=counts.get("gpu_seconds"),
    )
