"""The embedded model as a ``dspy.LM``."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from typing import Any

import dspy
from dspy.clients.engines import LM15Engine
from dspy.lm15 import Request, Response, RouterConfig

from combee_dspy.lms.embedded.choice import grammar_of
from combee_dspy.lms.embedded.server import EmbeddedModel, ServerOptions, shared_server

__all__ = ["AsyncEmbeddedEngine", "EmbeddedEngine", "embedded_lm"]

_PROVIDER = "openai-chat"


class EmbeddedEngine:
    """A DSPy engine whose service is the embedded model of this process.

    The server starts with the first request, not with the engine. Saving a
    program saves the options alone: neither the port nor the key is written.
    Thread-safe; ``copy.deepcopy`` and pickling give an engine on the same options.

    Args:
        options: Which server to use; equal options share one.
        model: A server that the caller started and will close, instead of the shared one.
    """

    supports_response_schema = True
    supported_params = frozenset({"temperature", "max_tokens", "top_p", "stop", "seed", "response_format"})

    def __init__(self, options: ServerOptions | None = None, model: EmbeddedModel | None = None) -> None:
        self.options = model.options if model is not None else options or ServerOptions()
        self._model = model
        self._lock = threading.Lock()
        self._client: LM15Engine | None = None
        self._address = ""

    def __reduce__(self) -> tuple[type[EmbeddedEngine], tuple[ServerOptions]]:
        return type(self), (self.options,)

    def __deepcopy__(self, memo: dict[int, Any]) -> EmbeddedEngine:
        return self

    def complete(self, request: Request) -> Response:
        """Answer one request. Blocks while all slots are busy.

        Raises:
            LocalModelError: The model cannot be started.
        """
        server = self._server()
        with server.in_flight():
            return self._connected(server).complete(self._routed(request))

    def stream(self, request: Request) -> Iterator[Any]:
        """Answer one request, event by event.

        Raises:
            LocalModelError: The model cannot be started.
        """
        server = self._server()
        with server.in_flight():
            yield from self._connected(server).stream(self._routed(request))

    def close(self) -> None:
        """Close the connections; the server is left to those who share it."""
        with self._lock:
            client, self._client = self._client, None
        if client is not None:
            client.close()

    def dump_state(self) -> dict[str, Any]:
        """Return the options as plain data, for ``dspy``'s saved programs."""
        return asdict(self.options)

    @classmethod
    def load_state(cls, state: dict[str, Any]) -> EmbeddedEngine:
        """Rebuild an engine from :meth:`dump_state`."""
        return cls(ServerOptions(**state))

    def _routed(self, request: Request) -> Request:
        routed = replace(request, model=f"openai/{self.options.model_name}")
        grammar = grammar_of(request.config.response_format)
        if grammar is None:
            return routed
        # llama.cpp would answer a choice with a JSON string; this model does better with the bare label.
        extensions = {**(request.config.extensions or {}), "grammar": grammar}
        return replace(routed, config=replace(request.config, response_format=None, extensions=extensions))

    def _server(self) -> EmbeddedModel:
        return self._model if self._model is not None else shared_server(self.options)

    def _connected(self, server: EmbeddedModel) -> LM15Engine:
        address = server.base_url
        with self._lock:
            if self._client is None or self._address != address:
                self._client = LM15Engine(
                    RouterConfig(
                        env={},
                        api_keys={_PROVIDER: server.api_key},
                        base_urls={_PROVIDER: address},
                        # Requests above the number of slots queue in the server, not for a connection.
                        max_connections=64 + self.options.slots,
                    )
                )
                self._address = address
            return self._client


class AsyncEmbeddedEngine:
    """The same engine for ``acall``: each request waits in a thread of its own.

    Args:
        engine: The synchronous engine that does the work.
    """

    def __init__(self, engine: EmbeddedEngine) -> None:
        self.engine = engine
        self._lock = threading.Lock()
        self._pool: ThreadPoolExecutor | None = None

    def __reduce__(self) -> tuple[type[AsyncEmbeddedEngine], tuple[EmbeddedEngine]]:
        return type(self), (self.engine,)

    def __deepcopy__(self, memo: dict[int, Any]) -> AsyncEmbeddedEngine:
        return self

    async def complete(self, request: Request) -> Response:
        """Answer one request without blocking the event loop."""
        with self._lock:
            if self._pool is None:
                # One waiting thread more than there are slots keeps every slot fed.
                self._pool = ThreadPoolExecutor(self.engine.options.slots + 1, thread_name_prefix="combee-embedded")
            pool = self._pool
        return await asyncio.get_running_loop().run_in_executor(pool, self.engine.complete, request)

    async def stream(self, request: Request) -> AsyncIterator[Any]:
        """Answer one request, event by event."""
        for event in await asyncio.to_thread(lambda: list(self.engine.stream(request))):
            yield event

    async def aclose(self) -> None:
        """Close the threads and the connections."""
        with self._lock:
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(wait=False)
        self.engine.close()

    def dump_state(self) -> dict[str, Any]:
        """Return the options as plain data, for ``dspy``'s saved programs."""
        return self.engine.dump_state()

    @classmethod
    def load_state(cls, state: dict[str, Any]) -> AsyncEmbeddedEngine:
        """Rebuild an engine from :meth:`dump_state`."""
        return cls(EmbeddedEngine.load_state(state))


def embedded_lm(
    slots: int = 4,
    temperature: float = 0.0,
    max_tokens: int = 256,
    *,
    context: int = 4096,
    model: EmbeddedModel | None = None,
    **kwargs: Any,
) -> dspy.LM:
    """Return SmolLM2-135M-Instruct, served by this process, as a ``dspy.LM``.

    The model loads with the first call and stops when the interpreter exits.
    It is tiny: use it with :class:`combee_dspy.lms.ConstrainedJSONAdapter`, which
    leaves it no way to answer in a form that does not parse. At temperature 0 the
    same prompt gets the same answer from an idle server; where several slots decode
    at once, floating-point sums are grouped differently and a close call may flip.

    Args:
        slots: Requests decoded together.
        temperature: Sampling temperature; 0 is greedy.
        max_tokens: Longest answer, in tokens.
        context: Longest prompt plus answer, in tokens.
        model: A server that the caller started and closes; ``slots`` and ``context`` are then its own.
        **kwargs: Passed to ``dspy.LM``. ``cache`` is off by default, so that calls are paid and counted.

    Returns:
        A ``dspy.LM`` named ``embedded/SmolLM2-135M-Instruct``.

    Raises:
        ArgumentError: ``slots`` or ``context`` cannot be used.
    """
    engine = EmbeddedEngine(ServerOptions(slots=slots, context=context), model)
    kwargs.setdefault("cache", False)
    return dspy.LM(
        f"embedded/{engine.options.model_name}",
        temperature=temperature,
        max_tokens=max_tokens,
        engine=engine,
        async_engine=AsyncEmbeddedEngine(engine),
        **kwargs,
    )
