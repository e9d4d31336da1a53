"""Warns of a service that gives no answer for half a minute."""

from __future__ import annotations

import asyncio
import logging

_logger = logging.getLogger("combee_dspy")

_SILENCE = 30.0
"""Seconds from one warning to the next."""


class Alarm:
    """Warns every 30 seconds while a service in trouble gives no answer. Lives on one event loop.

    Args:
        patience: Seconds that a rollout or call waits for the service.
    """

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self._failures = 0  # since the last answer
        self._timer: asyncio.TimerHandle | None = None

    def failed(self, reason: str) -> None:
        """Note an attempt that the service rejected or failed."""
        self._failures += 1
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_SILENCE, self._warn, reason, 1)

    def answered(self) -> None:
        """Note an answer: the trouble is over."""
        self._failures = 0
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _warn(self, reason: str, times: int) -> None:
        _logger.warning(
            "No answer for %g seconds, only %d times: %s. The service is waited for; a rollout or"
            " call that has waited for %g seconds ends the run, with everything kept"
            " (Search(patience=…)).",
            times * _SILENCE,
            self._failures,
            reason,
            self._patience,
        )
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(_SILENCE, self._warn, reason, times + 1)
