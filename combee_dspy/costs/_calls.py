"""An LM call in flight, and the tokens that are reported of it."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from combee_dspy.records import Role

__all__ = ["MeteredCall"]


@dataclass(slots=True)
class MeteredCall:
    """A call in flight. Touched only by the thread or task that makes it."""

    role: Role
    model: str
    started: float = 0.0
    gpu: float = 0.0
    prompt: int = 0
    prompt_cached: int = 0
    completion: int = 0
    heard: bool = False
    known: bool = True
    repeated: int = 0
    doubtful: bool = True  # whether nobody has said what the attempt costs
    relay: AbstractContextManager[Any] | None = None

    def hear(self, usage: Mapping[str, Any]) -> None:
        # Called more than once where an LM that makes several requests fails on a later one.
        prompt = _tokens(usage, "prompt_tokens", "input_tokens")
        completion = _tokens(usage, "completion_tokens", "output_tokens")
        self.heard, self.doubtful = True, False
        self.known = self.known and prompt is not None and completion is not None
        self.prompt += prompt or 0
        self.completion += completion or 0
        details = usage.get("prompt_tokens_details") or usage.get("input_tokens_details")
        if isinstance(details, Mapping):
            self.prompt_cached += _tokens(details, "cached_tokens") or 0


def _tokens(usage: Mapping[str, Any], *names: str) -> int | None:
    # Counts come from a server: anything that is not one is treated as not reported.
    for name in names:
        value = usage.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
            return value
    return None
