"""One cheap call to every LM before a run spends anything."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import dspy
from dspy.utils.exceptions import LMError, LMRateLimitError, LMServerError, LMUnexpectedError

from combee_dspy.costs import role_scope
from combee_dspy.exceptions import LMUnreachableError
from combee_dspy.lms.redact import scrub, secrets_of
from combee_dspy.records import Role, described

_PROMPT = "Reply with OK."
_MAX_TOKENS = 16
_UNREADABLE = "Look at the service's reply, which is not as its API says"
# An LM with one of these thinks before it answers: a small limit would be refused or
# leave no answer.
_THINKING = ("reasoning", "reasoning_effort", "thinking")


def probe(lms: Mapping[Role, dspy.BaseLM], *, timeout: float = 60.0) -> None:
    """Check that every LM answers, with one small call each, outside DSPy's cache, history and
    retries.

    LMs with the same model, address and settings are called once, for the first role that names
    them. The call asks for at most 16 tokens, except from reasoning models, which refuse so small a
    limit. A service that answers "too many requests" has accepted the key and passes. One that
    fails on its own side is asked a second time.

    Called are only LMs that reach a service: ``dspy.LM`` on DSPy's own engines, or on a custom
    engine with a true attribute ``probeable``. A call to a test double could use up one of its
    scripted answers.

    Args:
        lms: The LMs of a run by role.
        timeout: Seconds to wait, where the LM sets no timeout of its own and has no engine of its
            own.

    Raises:
        LMUnreachableError: An LM cannot be used: no key, no connection, a refused key, an unknown
            model, or a service that failed twice. Keys are removed from its reason.
    """
    probed: set[tuple[Any, ...]] = set()
    for role, lm in lms.items():
        if _reaches_a_service(lm) and (identity := _identity(lm)) not in probed:
            probed.add(identity)
            _ask(role, lm, timeout)


def _reaches_a_service(lm: object) -> bool:
    if not isinstance(lm, dspy.LM) or "forward" in vars(lm):
        return False
    if type(lm).forward is not dspy.LM.forward or type(lm).__call__ is not dspy.LM.__call__:
        return False
    return isinstance(lm.engine, str) or bool(getattr(lm.engine, "probeable", False))


def _identity(lm: Any) -> tuple[Any, ...]:
    engine = lm.engine if isinstance(lm.engine, str) else id(lm.engine)
    settings = sorted((name, repr(value)) for name, value in lm.kwargs.items())
    return lm.model, lm.model_type, engine, tuple(settings)


def _ask(role: Role, lm: Any, timeout: float) -> None:
    short = lm.copy(**_changes(lm, timeout))
    with role_scope(role), dspy.context(disable_history=True), _without_truncation_warning():
        try:
            try:
                short(_PROMPT)
            except LMServerError:
                short(_PROMPT)
        except LMRateLimitError:
            return
        except (LMError, OSError, ImportError, TypeError, ValueError) as error:
            reason = scrub(described(error), secrets_of(lm))
            # An unexpected one came with an answer.
            more = (_UNREADABLE,) if isinstance(error, LMUnexpectedError) else ()
            # Not chained: the traceback would show the service's words, which may quote the key.
            raise LMUnreachableError(role, str(lm.model), reason, *more) from None


def _changes(lm: Any, timeout: float) -> dict[str, Any]:
    """Return what a copy of an LM sets differently for one small call."""
    changes: dict[str, Any] = {"cache": False, "num_retries": 0}
    # dspy.LM renames max_tokens to max_completion_tokens, set or not, for OpenAI's reasoning
    # models.
    thinks = "max_completion_tokens" in lm.kwargs or any(
        lm.kwargs.get(name) is not None for name in _THINKING
    )
    if not thinks:
        changes["max_tokens"] = _MAX_TOKENS
    if isinstance(lm.engine, str) and lm.kwargs.get("timeout") is None:
        changes["timeout"] = timeout
    if lm.kwargs.get("n") is not None:
        changes["n"] = 1
    return changes


@contextmanager
def _without_truncation_warning() -> Iterator[None]:
    """Keep DSPy from warning, in this thread, that the probe's answer was cut."""
    thread = threading.get_ident()
    logger = logging.getLogger("dspy.clients.lm")

    def keep(record: logging.LogRecord) -> bool:
        return record.thread != thread or "truncated" not in record.getMessage()

    logger.addFilter(keep)
    try:
        yield
    finally:
        logger.removeFilter(keep)
