"""Whether a service may have charged for an attempt that failed."""

from __future__ import annotations

import asyncio
import socket

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

__all__ = ["may_be_billed"]

# "Service unavailable", and what some services say instead.
_TURNED_AWAY = (503, 529)
_NEVER_BILLED = (
    LMAuthError,
    LMBillingError,
    LMConfigurationError,
    LMInvalidRequestError,
    LMLockTimeoutError,
    LMRateLimitError,
    LMUnsupportedFeatureError,
)


def may_be_billed(error: BaseException) -> bool:
    """Return whether a service may have charged for an attempt that has failed.

    It has not where it turned the request away, or was never reached.
    """
    if not isinstance(error, LMError):
        return isinstance(error, asyncio.CancelledError)
    if isinstance(error, _NEVER_BILLED):
        return False
    if error.status is not None:
        return error.status >= 500 and error.status not in _TURNED_AWAY
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, (ConnectionRefusedError, socket.gaierror)):
            return False
        cause = cause.__cause__
    return True
