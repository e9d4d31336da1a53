"""A ``dspy.LM`` that keeps up with hundreds of requests at once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import dspy

from combee_dspy.lms.pool.access import PooledOptions
from combee_dspy.lms.pool.engine import AsyncPooledEngine, PooledEngine

__all__ = ["pooled"]


def pooled(
    model: str,
    *,
    api_base: str | None = None,
    api_key: str | None = None,
    max_connections: int = 512,
    timeout: float = 600.0,
    headers: Mapping[str, str] | None = None,
    **kwargs: Any,
) -> dspy.LM:
    """Return a ``dspy.LM`` for an OpenAI-compatible chat service, with a client made for many requests at once.

    DSPy's own client stops at 100 connections and searches its price table
    twice a call. This one keeps as many connections alive as are in use, up to
    ``max_connections``, from threads and (``acall``) from event loops, and asks
    no table. Requests and answers are written and read by DSPy's own dialect:
    pictures and tools go through, and errors are DSPy's
    (``dspy.utils.exceptions``). Cache, ``rollout_id``, history, callbacks, usage
    and retries are ``dspy.LM``'s.

    An answer 429 is told to the concurrency limit of the run that asked, at once.
    Then DSPy waits as long as the service says (two minutes at most), or 1, 2, 4, …
    seconds where it says nothing, and asks again, ``num_retries`` times.

    The key is kept in the client alone: not in ``lm.kwargs``, history, ``repr``,
    pickles or saved programs. What is loaded again takes it from
    ``OPENAI_API_KEY``. ``cost`` in the history is ``None``: use a run's ledger.

    Args:
        model: The model's name at the service. A prefix ``openai/``, DSPy's
            name for the interface, is not sent.
        api_base: The service, up to and with ``/v1``. By default ``OPENAI_API_BASE``
            or ``OPENAI_BASE_URL``, without them OpenAI's own.
        api_key: The key; ``OPENAI_API_KEY`` by default. A service other than OpenAI's may need none.
        max_connections: Connections at most.
        timeout: Seconds that the service may stay silent.
        headers: Further headers of every request.
        **kwargs: Passed to ``dspy.LM``: ``temperature``, ``max_tokens``, ``cache``, ``num_retries``, …

    Returns:
        A ``dspy.LM``; copies share its connections.

    Raises:
        ArgumentTypeError: A setting has the wrong type.
        ArgumentValueError: A setting is out of range, or ``api_base`` is no HTTP address or holds a credential.
    """
    options = PooledOptions(api_base, max_connections, timeout, model)
    engine = PooledEngine(options, api_key, headers)
    return dspy.LM(model, engine=engine, async_engine=AsyncPooledEngine(engine), **kwargs)
