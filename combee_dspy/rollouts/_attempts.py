"""One attempt at an LM call, within a time limit; a reply that is no answer of the API is a failure
of the service.
"""

from __future__ import annotations

import asyncio
import logging
import re
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import dspy
from dspy.utils.exceptions import LMProviderError, LMUnexpectedError

from combee_dspy._private import Engines, aexecute, cached, execute, finalize, prepare, store
from combee_dspy.lms import (
    PooledEngine,
    WholeAsyncTransport,
    WholeTransport,
    whole_within,
    whole_within_on_loop,
)

_logger = logging.getLogger("combee_dspy")

_SILENCE = 600.0  # DSPy's own timeout, and litellm's
# What an answer may hold at most: characters; brackets and quotes; brackets in brackets.
_LONGEST_ANSWER, _MOST_MARKS, _DEEPEST, _MOST_DOUBLE = 1_000_000, 20_000, 128, 256
_STRUCTURE = re.compile(r'[{}\[\]"]')
# A reply of another API than chat completions has one of these.
_ANSWERS = ("output", "content", "candidates", "promptFeedback")


def ask(lm: Any, prompt: Any, messages: Any, kwargs: Mapping[str, Any]) -> Any:
    """Do what ``dspy.LM`` does in a call, and refuse what is no answer before it is kept in DSPy's
    cache.

    Raises:
        LMTimeoutError: A reply took twice the LM's ``timeout``, which bounds silence alone: a
            service that sends a byte now and then would hold a call for ever. The wait for a free
            connection is not in it. LiteLLM on an event loop is held to it from the start of the
            call, and in a thread to silence alone.
        LMProviderError: The reply is none of the API's, such as ``{}``, no choices, or counts that
            are no numbers.
        LMError: DSPy's own.
    """
    call = prepare(lm, prompt, messages, kwargs)
    result = cached(lm, call, False)
    if result is None or not _is_answer(lm, result):
        with _service_at_fault(lm), whole_within(_longest(lm, kwargs)):
            result = execute(_without_retries(lm), replace(call, cache=False))
        _check(lm, result)
        result = _cut(call, result)
        store(lm, call, result, False)
    return finalize(lm, call, _cut(call, result))


async def aask(lm: Any, prompt: Any, messages: Any, kwargs: Mapping[str, Any]) -> Any:
    """Do what :func:`ask` does on an event loop."""
    call = await asyncio.to_thread(prepare, lm, prompt, messages, kwargs, asynchronous=True)
    result = await asyncio.to_thread(cached, lm, call, True) if call.cache else None
    if result is None or not _is_answer(lm, result):
        with _service_at_fault(lm):
            async with whole_within_on_loop(_longest(lm, kwargs)):
                result = await aexecute(_without_retries(lm), replace(call, cache=False))
        _check(lm, result)
        result = _cut(call, result)
        if call.cache:
            await asyncio.to_thread(store, lm, call, result, True)
    return finalize(lm, call, _cut(call, result))


def _without_retries(lm: dspy.LM) -> dspy.LM:
    """Return an LM of the same clients that makes one attempt, and holds replies to a limit."""
    once = object.__new__(dspy.LM)
    engines = Engines(lm._engine_store, WholeTransport, WholeAsyncTransport)
    once.__dict__.update(vars(lm), num_retries=0, _engine_store=engines)
    return once


def _longest(lm: Any, kwargs: Mapping[str, Any]) -> float | None:
    """Return how many seconds an attempt may take; ``None`` for an engine of the user's own, which
    knows itself.
    """
    if isinstance(lm.engine, PooledEngine):
        return 2 * lm.engine.options.timeout
    if not isinstance(lm.engine, str):
        return None
    timeout = {**lm.kwargs, **kwargs}.get("timeout")
    timeout = getattr(timeout, "read", timeout)  # httpx.Timeout
    return 2 * (timeout if isinstance(timeout, (int, float)) else _SILENCE)


@contextmanager
def _service_at_fault(lm: Any) -> Iterator[None]:
    """Have a reply that DSPy's clients cannot read, for which they raise what Python raises, count
    as the service's.
    """
    try:
        yield
    except LMUnexpectedError as error:
        frames = (
            [] if error.__cause__ is None else traceback.extract_tb(error.__cause__.__traceback__)
        )
        if not any(frame.name == "parse_response" for frame in frames):
            raise
        raise LMProviderError(
            f"the reply is none of the API's: {error.message}", model=lm.model
        ) from error


def _check(lm: Any, result: Any) -> None:
    if _is_answer(lm, result):
        return
    if result.usage and dspy.settings.usage_tracker:  # what it has cost is in the books
        dspy.settings.usage_tracker.add_usage(lm.model, result.usage)
    raise LMProviderError(
        "the reply is none of the API's: it has no choices, or one without a message",
        model=lm.model,
    )


def _is_answer(lm: Any, result: Any) -> bool:
    """Return whether a reply has the form of an answer, be it an empty one or a refusal."""
    if not result.outputs:
        return False
    own = isinstance(lm.engine, (str, PooledEngine))
    return not own or all(_is_body(response.provider_data) for response in result.responses)


def _is_body(body: Any) -> bool:
    if not isinstance(body, Mapping):
        return False
    choices = body.get("choices")
    if choices is None:
        return any(name in body for name in _ANSWERS)
    return (
        isinstance(choices, list)
        and bool(choices)
        and all(_is_message(choice) for choice in choices)
    )


def _is_message(choice: Any) -> bool:
    message = choice.get("message") if isinstance(choice, Mapping) else None
    return isinstance(message, Mapping) and isinstance(
        message.get("content"), (str, list, type(None))
    )


def _cut(call: Any, result: Any) -> Any:
    """Return a result whose texts are :func:`bounded`; where one was cut, nothing keeps the whole
    reply.
    """
    outputs = bounded(result.outputs)
    if call.request is not None or outputs == result.outputs:
        return result
    return replace(result, outputs=outputs, responses=(), raw=None)


def bounded(output: Any) -> Any:
    """Return an answer as far as a repair of its JSON takes little time.

    DSPy's adapters repair what is no JSON in a time that grows with the square of brackets and
    quotes, holding the interpreter: 40 kB of ``{`` take half a minute, 20 kB of ``{{x}}`` outside
    of any object five. What is cut was no answer, and fails to parse as it would have.
    """
    if isinstance(output, list):
        return [bounded(part) for part in output]
    if isinstance(output, dict):
        return {name: bounded(part) if name == "text" else part for name, part in output.items()}
    if not isinstance(output, str):
        return output  # none, or a response as asked for by a request: no adapter parses it
    text, depth, doubles = output[:_LONGEST_ANSWER], 0, 0
    for number, bracket in enumerate(_STRUCTURE.finditer(text)):
        depth = max(0, depth + (bracket[0] in "{[") - (bracket[0] in "}]"))
        doubles += depth == 1 and text.startswith("{{", bracket.start())
        if number >= _MOST_MARKS or depth > _DEEPEST or doubles > _MOST_DOUBLE:
            text = text[: bracket.start()]
            break
    if len(text) < len(output):
        _logger.warning(
            "An answer of %d characters was cut to %d: JSON like it takes minutes.",
            len(output),
            len(text),
        )
    return text
