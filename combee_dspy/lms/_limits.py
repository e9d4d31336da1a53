"""Saying, before a run, that its LM's own client will hold it back."""

from __future__ import annotations

from typing import Any

import dspy
from dspy.clients.backend_selection import select_backend
from dspy.clients.engines import AsyncLM15Engine, LM15Engine
from dspy.lm15 import LM15Error

__all__ = ["DSPY_CONNECTIONS", "connection_limit", "limit_warning"]

DSPY_CONNECTIONS = 100
"""Connections that DSPy's own engine opens at most for one LM (dspy 3.4.1; no setting of ``dspy.LM`` raises it)."""


def connection_limit(lm: object) -> int | None:
    """Return how many requests an LM's client carries at once; ``None`` where this cannot be told.

    Pure: nothing is sent, and no key is read. Known are DSPy's own engine, an
    ``LM15Engine`` of the user's, and engines whose ``options.max_connections`` is a
    number, as those of :func:`combee_dspy.lms.pooled`.
    """
    if not isinstance(lm, dspy.LM):
        return None
    engine = lm.engine
    if isinstance(engine, str):
        return DSPY_CONNECTIONS if _native(lm) else None
    if isinstance(engine, (LM15Engine, AsyncLM15Engine)):
        # A transport of the user's own has limits of its own.
        return int(engine.config.max_connections or DSPY_CONNECTIONS) if engine.config.transport is None else None
    most = getattr(getattr(engine, "options", None), "max_connections", None)
    return most if isinstance(most, int) and not isinstance(most, bool) else None


def limit_warning(lm: object, workers: int) -> str | None:
    """Return what to tell a user whose LM will hold back a run of so many workers, else ``None``."""
    most = connection_limit(lm)
    if most is None or workers <= most:
        return None
    name = getattr(lm, "model", type(lm).__name__)
    remedy = f"max_connections={workers}"
    if isinstance(getattr(lm, "engine", None), str):
        remedy = f"combee_dspy.lms.pooled({name!r}, …), a dspy.LM whose client has no such cap"
    return (
        f"The client of {name} carries {most} requests at once, and this run may have {workers} in flight: "
        f"the others will wait for a connection. Use {remedy}, or at most {most} workers."
    )


def _native(lm: Any) -> bool:
    """Whether DSPy will serve an LM with its own engine; the other one, litellm's, has other limits."""
    try:
        return bool(select_backend(lm).native)
    except (LM15Error, TypeError, ValueError):
        # The first call will say what is wrong.
        return False
