"""Asks an LM once, and refuses replies that take too long or are no answer of its API."""

from __future__ import annotations

import asyncio
import copy
import functools
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
    AsyncDeadlineTransport,
    DeadlineTransport,
    PooledEngine,
    reply_within,
    reply_within_on_loop,
)

_logger = logging.getLogger("combee_dspy")

_DEFAULT_TIMEOUT = 600.0  # of DSPy and of LiteLLM, in seconds

# Bounds of a text that an adapter may have to repair: characters; brackets and quotes; nesting;
# ``{{`` outside of nested objects.
_LONGEST_TEXT, _MOST_MARKS, _DEEPEST, _MOST_DOUBLE = 1_000_000, 20_000, 128, 256
_MARKS = re.compile(r'[{}\[\]"]')
# A reply of an API other than chat completions has one of these.
_OTHER_APIS = ("output", "content", "candidates", "promptFeedback")
_SYSTEM_TEXTS = 64
_NO_ANSWER = "the reply is no answer of the API"


def ask(lm: dspy.LM, prompt: Any, messages: Any, kwargs: Mapping[str, Any]) -> Any:
    """Make one attempt at what ``dspy.LM`` does in a call.

    DSPy takes a reply without choices for an empty answer, and keeps it in its cache. Here it is
    the service's failure, and is not kept.

    A reply may take twice the LM's ``timeout``, which itself bounds each wait alone. The wait for a
    free connection does not count. LiteLLM is held to this on an event loop, from the start of the
    call, and not in a thread.

    Raises:
        LMTimeoutError: The reply was not whole in time. Its connection is closed.
        LMProviderError: The reply is no answer of the API, such as ``{}``.
        LMError: DSPy's own.
    """
    call = prepare(lm, prompt, _with_shared_texts(messages), kwargs)
    result = cached(lm, call, False)
    if result is None or not _is_answer(lm, result):
        with _unreadable_is_no_answer(lm.model), reply_within(_longest_reply(lm, kwargs)):
            result = execute(_without_retries(lm), replace(call, cache=False))
        _check(lm, result)
        store(lm, call, result, False)
    return finalize(lm, call, _bounded(call, result))


async def aask(lm: dspy.LM, prompt: Any, messages: Any, kwargs: Mapping[str, Any]) -> Any:
    """Do what :func:`ask` does on an event loop."""
    shared = _with_shared_texts(messages)
    call = await asyncio.to_thread(prepare, lm, prompt, shared, kwargs, asynchronous=True)
    result = await asyncio.to_thread(cached, lm, call, True) if call.cache else None
    if result is None or not _is_answer(lm, result):
        with _unreadable_is_no_answer(lm.model):
            async with reply_within_on_loop(_longest_reply(lm, kwargs)):
                result = await aexecute(_without_retries(lm), replace(call, cache=False))
        _check(lm, result)
        if call.cache:
            await asyncio.to_thread(store, lm, call, result, True)
    return finalize(lm, call, _bounded(call, result))


def _with_shared_texts(messages: Any) -> Any:
    """Return messages whose system texts are the very objects of the last calls that had the same.

    DSPy keeps the prompts of 10,000 calls. All rollouts of a candidate have one system message, and
    its adapter writes it anew for each.
    """
    if not isinstance(messages, list):
        return messages
    return [
        {**message, "content": _remembered(message["content"])}
        if isinstance(message, dict)
        and message.get("role") == "system"
        and type(message.get("content")) is str
        else message
        for message in messages
    ]


@functools.lru_cache(maxsize=_SYSTEM_TEXTS)
def _remembered(text: str) -> str:
    return text


def _without_retries(lm: dspy.LM) -> dspy.LM:
    """Return an LM with the clients of another, which makes one attempt, with a deadline."""
    copied = copy.copy(lm)
    engines = Engines(lm._engine_store, DeadlineTransport, AsyncDeadlineTransport)
    copied.__dict__.update(num_retries=0, _engine_store=engines)
    return copied


def _longest_reply(lm: dspy.LM, kwargs: Mapping[str, Any]) -> float | None:
    """Return how many seconds a reply may take as a whole.

    ``None`` for an engine of the user's own, which has limits of its own.
    """
    if isinstance(lm.engine, PooledEngine):
        return 2 * lm.engine.options.timeout
    if not isinstance(lm.engine, str):
        return None
    timeout = {**lm.kwargs, **kwargs}.get("timeout")
    timeout = getattr(timeout, "read", timeout)  # of an httpx.Timeout
    return 2 * (timeout if isinstance(timeout, (int, float)) else _DEFAULT_TIMEOUT)


@contextmanager
def _unreadable_is_no_answer(model: str) -> Iterator[None]:
    """Raise an ``LMProviderError`` for a reply in which DSPy's own client meets a Python error."""
    try:
        yield
    except LMUnexpectedError as error:
        cause = error.__cause__
        frames = traceback.extract_tb(cause.__traceback__ if cause else None)
        if not any(frame.name == "parse_response" for frame in frames):
            raise
        raise LMProviderError(f"{_NO_ANSWER}: {error.message}", model=model) from error


def _check(lm: dspy.LM, result: Any) -> None:
    if _is_answer(lm, result):
        return
    if result.usage and dspy.settings.usage_tracker:
        dspy.settings.usage_tracker.add_usage(lm.model, result.usage)
    raise LMProviderError(
        f"{_NO_ANSWER}: it has no choices, or one without a message", model=lm.model
    )


def _is_answer(lm: dspy.LM, result: Any) -> bool:
    """Return whether a reply is an answer, be it an empty one or a refusal.

    An engine of the user's own decides this itself.
    """
    if not result.outputs:
        return False
    if not isinstance(lm.engine, (str, PooledEngine)):
        return True
    return all(_is_body(response.provider_data) for response in result.responses)


def _is_body(body: object) -> bool:
    if not isinstance(body, Mapping):
        return False
    choices = body.get("choices")
    if choices is None:
        return any(name in body for name in _OTHER_APIS)
    return isinstance(choices, list) and bool(choices) and all(map(_is_choice, choices))


def _is_choice(choice: object) -> bool:
    message = choice.get("message") if isinstance(choice, Mapping) else None
    return isinstance(message, Mapping) and isinstance(
        message.get("content"), (str, list, type(None))
    )


def _bounded(call: Any, result: Any) -> Any:
    """Return a result whose texts are :func:`bounded`; a cut one drops the whole reply."""
    if call.request is not None:
        return result  # no adapter parses it
    outputs = bounded(result.outputs)
    if outputs == result.outputs:
        return result
    return replace(result, outputs=outputs, responses=(), raw=None)


def bounded(output: object) -> object:
    """Return outputs of an LM, their texts cut where DSPy's JSON repair would take minutes.

    The repair takes a time that grows with the square of brackets and quotes, and holds the
    interpreter: 40 kB of ``{`` take half a minute, 20 kB of ``{{x}}`` five. What is cut fails to
    parse, as it would have.
    """
    if isinstance(output, list):
        return [bounded(part) for part in output]
    if isinstance(output, dict) and "text" in output:
        return {**output, "text": bounded(output["text"])}
    if not isinstance(output, str):
        return output
    text, depth, doubles = output[:_LONGEST_TEXT], 0, 0
    for number, mark in enumerate(_MARKS.finditer(text)):
        depth = max(0, depth + (mark[0] in "{[") - (mark[0] in "}]"))
        doubles += depth == 1 and text.startswith("{{", mark.start())
        if number >= _MOST_MARKS or depth > _DEEPEST or doubles > _MOST_DOUBLE:
            text = text[: mark.start()]
            break
    if len(text) < len(output):
        _logger.warning(
            "An answer of %d characters was cut to %d: its JSON takes minutes to repair.",
            len(output),
            len(text),
        )
    return text
