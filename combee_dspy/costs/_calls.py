"""An LM call in flight: its tokens, and whether its service may have charged for it."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass

from dspy.utils.exceptions import (
    LMAuthError,
    LMBillingError,
    LMConfigurationError,
    LMError,
    LMInvalidRequestError,
    LMLockTimeoutError,
    LMRateLimitError,
    LMUnsupportedFeatureError,
)

from combee_dspy.records import Role

_NEVER_CHARGED = (
    LMAuthError,
    LMBillingError,
    LMConfigurationError,
    LMInvalidRequestError,
    LMLockTimeoutError,
    LMRateLimitError,
    LMUnsupportedFeatureError,
)
# Service unavailable, and overloaded: the service turned the request away.
_TURNED_AWAY = (503, 529)


@dataclass(slots=True)
class MeteredCall:
    """A call in flight. Used only by the thread or task that makes it.

    Attributes:
        started: On the tariff's clock.
        gpu: The role's GPU clock when it began.
        has_usage: Whether the service reported tokens.
        is_exact: Whether all counts of tokens were reported.
        repeats: Attempts that failed and were followed by another.
        in_doubt: Whether nobody has said yet what the attempt costs.
        relay: The usage tracker of this call, to be left at its end.
    """

    role: Role
    model: str
    started: float = 0.0
    gpu: float = 0.0
    prompt: int = 0
    prompt_cached: int = 0
    completion: int = 0
    has_usage: bool = False
    is_exact: bool = True
    repeats: int = 0
    in_doubt: bool = True
    relay: AbstractContextManager[None] | None = None

    def add(self, usage: Mapping[str, object]) -> None:
        """Add tokens. Called again where an LM that makes several requests fails on a later one."""
        prompt = _tokens(usage, "prompt_tokens", "input_tokens")
        completion = _tokens(usage, "completion_tokens", "output_tokens")
        self.has_usage, self.in_doubt = True, False
        self.is_exact = self.is_exact and prompt is not None and completion is not None
        self.prompt += prompt or 0
        self.completion += completion or 0
        details = usage.get("prompt_tokens_details") or usage.get("input_tokens_details")
        if isinstance(details, Mapping):
            self.prompt_cached += _tokens(details, "cached_tokens") or 0


def _tokens(usage: Mapping[str, object], *names: str) -> int | None:
    # Counts come from a server: anything else counts as not reported.
    for name in names:
        value = usage.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
            return value
    return None


def may_be_charged(error: BaseException) -> bool:
    """Return whether a service may charge for an attempt that failed.

    It does not where it turned the request away, or was never reached.
    """
    if not isinstance(error, LMError):
        return isinstance(error, asyncio.CancelledError)
    if isinstance(error, _NEVER_CHARGED):
        return False
    if error.status is not None:
        return error.status >= 500 and error.status not in _TURNED_AWAY
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, (ConnectionRefusedError, socket.gaierror)):
            return False
        cause = cause.__cause__
    return True
