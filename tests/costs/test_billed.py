"""Which failed attempts a service may have charged for."""

from __future__ import annotations

import asyncio
import socket

import pytest
from dspy.utils.exceptions import (
    LMAuthError,
    LMConfigurationError,
    LMError,
    LMProviderError,
    LMRateLimitError,
    LMServerError,
    LMTimeoutError,
    LMTransportError,
)

from combee_dspy.costs._calls import may_be_charged


def caused(cause: Exception) -> LMError:
    error = LMTransportError("failed")
    error.__cause__ = OSError("no connection")
    error.__cause__.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "billed"),
    [
        (LMRateLimitError("full"), False),
        (LMAuthError("who?"), False),
        (LMConfigurationError("no key"), False),
        (LMProviderError("bad", status=400), False),
        (LMServerError("full", status=503), False),
        (LMServerError("overloaded", status=529), False),
        (caused(ConnectionRefusedError()), False),
        (caused(socket.gaierror()), False),
        (ValueError("a program's own"), False),
        (LMServerError("down", status=500), True),
        (LMServerError("a gateway", status=502), True),
        (LMProviderError("no answer of the API"), True),
        (LMTimeoutError("no whole answer"), True),
        (caused(ConnectionResetError()), True),
        (asyncio.CancelledError(), True),
    ],
    ids=repr,
)
def test_what_a_service_answered_or_may_have_done_is_billed(
    error: BaseException, billed: bool
) -> None:
    assert may_be_charged(error) == billed
