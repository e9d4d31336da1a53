"""Failures that the simulated service injects on purpose."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.lms.simulated.latency import uniform

__all__ = ["FailureRates", "Status"]


class Status(StrEnum):
    """How a call ended, as the service counts it.

    ``ok``, ``malformed``, ``truncated`` and ``slow`` are HTTP 200 and billed.
    ``abandoned`` was answered and billed after the client had closed the
    connection. ``rate_limited`` (429), ``server_error`` (500) and
    ``bad_request`` (400) bill no tokens.
    """

    OK = "ok"
    MALFORMED = "malformed"
    TRUNCATED = "truncated"
    SLOW = "slow"
    ABANDONED = "abandoned"
    RATE_LIMITED = "rate_limited"
    SERVER_ERROR = "server_error"
    BAD_REQUEST = "bad_request"


_INJECTED = (Status.SERVER_ERROR, Status.RATE_LIMITED, Status.SLOW, Status.MALFORMED, Status.TRUNCATED)


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureRates:
    """Probabilities that an attempt fails in each way; all 0 by default.

    One uniform draw per (seed, request content, attempt) picks at most one
    failure, so an attempt fails with the sum of the rates and a repeated
    request draws again. The attempt is the number of times that the service
    has seen the same content.

    Args:
        server_error: HTTP 500 after the time to the first token.
        rate_limited: HTTP 429 at once, with ``Retry-After``.
        slow: The right answer, ``slow_seconds`` late: what a client with a shorter timeout sees as a timeout.
        malformed: HTTP 200 with a text that holds none of the fields asked for.
        truncated: HTTP 200 with half of the answer and ``finish_reason`` "length".
        slow_seconds: Extra simulated seconds of a slow answer, at least 0.
        retry_after: Simulated seconds in ``Retry-After`` of 429 and 500, at least 0.
            The header carries them multiplied by the service's time scale.

    Raises:
        ArgumentValueError: A rate is outside [0, 1], the rates add up to more than 1, or a duration is negative.
    """

    server_error: float = 0.0
    rate_limited: float = 0.0
    slow: float = 0.0
    malformed: float = 0.0
    truncated: float = 0.0
    slow_seconds: float = 120.0
    retry_after: float = 1.0

    def __post_init__(self) -> None:
        for status in _INJECTED:
            rate = getattr(self, status.value)
            if not 0 <= rate <= 1:
                raise ArgumentValueError(status.value, rate, "must be within [0, 1]", "It is a probability.")
        if self.total > 1 + 1e-9:
            raise ArgumentValueError("failures", self.total, "add up to more than 1", "Lower one of the rates.")
        for name in ("slow_seconds", "retry_after"):
            value = getattr(self, name)
            if not math.isfinite(value) or value < 0:
                raise ArgumentValueError(name, value, "must be a finite number, at least 0", "It is in seconds.")

    @property
    def total(self) -> float:
        """Probability that an attempt fails in any way."""
        return sum(getattr(self, status.value) for status in _INJECTED)

    def draw(self, seed: int, content: str, attempt: int) -> Status:
        """Return how an attempt ends: ``Status.OK`` or one of the injected failures.

        Args:
            seed: The service's seed.
            content: Digest of the request's content.
            attempt: 0 for the first time that this content is seen.
        """
        if self.total == 0:
            return Status.OK
        left = uniform(seed, "failure", content, attempt)
        for status in _INJECTED:
            left -= getattr(self, status.value)
            if left < 0:
                return status
        return Status.OK
