"""DSPy engines over pooled connections."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import asdict
from typing import Any, Generic, TypeVar, cast

import dspy
from dspy.lm15 import AsyncOpenAIChatLM, LM15Error, OpenAIChatLM, Request, Response

from combee_dspy.lms.pool.access import PREFIX, Access, PooledOptions, WithHeaders
from combee_dspy.lms.pool.connections import Connections
from combee_dspy.lms.pool.sessions import Sessions

__all__ = ["AsyncPooledEngine", "PooledEngine"]

C = TypeVar("C")


class _Once(Generic[C]):
    """A client that is made with the first request, not with the engine: keys and addresses are read then."""

    made: C | None = None

    def __init__(self, make: Callable[[], C]) -> None:
        self._make = make

    def get(self) -> C:
        made = self.made
        if made is None:
            # Of several that are made at once the first stands; a lock might be held for ever after a fork.
            made = cast("C", vars(self).setdefault("made", self._make()))
        return made


@functools.cache
def _abilities(model: str) -> tuple[bool, bool, bool, frozenset[str]]:
    """Return what DSPy's own table says of a model at OpenAI's interface: its table is searched once a model."""
    if not model:
        return False, False, False, frozenset()
    known = dspy.LM(f"{PREFIX}{model.removeprefix(PREFIX)}", engine="lm15")
    return (
        known.supports_function_calling,
        known.supports_reasoning,
        known.supports_response_schema,
        frozenset(known.supported_params),
    )


class PooledEngine:
    """A DSPy engine for threads: one pool of keep-alive connections to one OpenAI-compatible service.

    One attempt a call: DSPy's own loop waits and tries again, ``num_retries``
    times. Each answer 429 is told to the run's concurrency limit first.

    Thread-safe. ``copy.deepcopy`` gives the engine itself, so that copies of an
    LM share its connections. Pickling and ``dump_state`` leave the key out: a
    copy in another process takes its key from ``OPENAI_API_KEY``.

    Args:
        options: Where to go.
        api_key: The key; ``OPENAI_API_KEY`` by default.
        headers: Further headers of every request. Like the key, they are kept out of every copy on disk.
    """

    probeable = True
    tells_pressure = True

    def __init__(
        self,
        options: PooledOptions | None = None,
        api_key: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self.options = options or PooledOptions()
        self._access = Access(self.options, api_key, headers or {})
        self._client = _Once(self._connect)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.options!r})"

    def __reduce__(self) -> tuple[type[PooledEngine], tuple[PooledOptions]]:
        return type(self), (self.options,)

    def __deepcopy__(self, memo: dict[int, Any]) -> PooledEngine:
        return self

    def __copy__(self) -> PooledEngine:
        return self

    @property
    def secrets(self) -> tuple[str, ...]:
        """What must reach no file and no log: the key and the values of the headers."""
        return self._access.secrets

    @property
    def supports_function_calling(self) -> bool:
        """What DSPy knows of the model; False where it knows nothing."""
        return _abilities(self.options.model)[0]

    @property
    def supports_reasoning(self) -> bool:
        """What DSPy knows of the model; False where it knows nothing."""
        return _abilities(self.options.model)[1]

    @property
    def supports_response_schema(self) -> bool:
        """What DSPy knows of the model; False where it knows nothing."""
        return _abilities(self.options.model)[2]

    @property
    def supported_params(self) -> frozenset[str]:
        """Names of the parameters that DSPy knows the model to take."""
        return _abilities(self.options.model)[3]

    def complete(self, request: Request) -> Response:
        """Answer one request.

        Raises:
            LM15Error: The service could not be reached, or refused.
        """
        try:
            return self._client.get()[0].complete(self._access.routed(request))
        except LM15Error as error:
            self._access.refused(error)
            raise

    def stream(self, request: Request) -> Iterator[Any]:
        """Answer one request, event by event, once the answer is there whole.

        Raises:
            LM15Error: The service could not be reached, or refused.
        """
        try:
            yield from self._client.get()[0].stream(self._access.routed(request))
        except LM15Error as error:
            self._access.refused(error)
            raise

    def close(self) -> None:
        """Close the connections. Later requests open new ones."""
        if self._client.made is not None:
            self._client.made[1].close()

    def dump_state(self) -> dict[str, Any]:
        """Return the options as plain data, without a credential, for ``dspy``'s saved programs."""
        return asdict(self.options)

    @classmethod
    def load_state(cls, state: dict[str, Any]) -> PooledEngine:
        """Rebuild an engine from :meth:`dump_state`."""
        return cls(PooledOptions(**state))

    def _connect(self) -> tuple[OpenAIChatLM, Connections]:
        access = self._access
        connections = Connections(access.base, self.options.max_connections, self.options.timeout)
        transport = WithHeaders(connections, access.headers)
        return OpenAIChatLM(api_key=access.key, base_url=access.base, transport=transport), connections


class AsyncPooledEngine:
    """The same for event loops, over ``aiohttp``.

    Args:
        engine: The synchronous engine, whose address and credentials it shares.
    """

    def __init__(self, engine: PooledEngine) -> None:
        self.engine = engine
        self._access = engine._access
        self._client = _Once(self._connect)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.engine.options!r})"

    def __reduce__(self) -> tuple[type[AsyncPooledEngine], tuple[PooledEngine]]:
        return type(self), (self.engine,)

    def __deepcopy__(self, memo: dict[int, Any]) -> AsyncPooledEngine:
        return self

    def __copy__(self) -> AsyncPooledEngine:
        return self

    async def complete(self, request: Request) -> Response:
        """Answer one request.

        Raises:
            LM15Error: The service could not be reached, or refused.
        """
        try:
            return await self._client.get()[0].complete(self._access.routed(request))
        except LM15Error as error:
            self._access.refused(error)
            raise

    async def stream(self, request: Request) -> AsyncIterator[Any]:
        """Answer one request, event by event, once the answer is there whole.

        Raises:
            LM15Error: The service could not be reached, or refused.
        """
        try:
            async for event in self._client.get()[0].stream(self._access.routed(request)):
                yield event
        except LM15Error as error:
            self._access.refused(error)
            raise

    async def aclose(self) -> None:
        """Close this event loop's connections, and those of the threads."""
        if self._client.made is not None:
            await self._client.made[1].aclose()
        self.engine.close()

    def dump_state(self) -> dict[str, Any]:
        """Return the options as plain data, without a credential, for ``dspy``'s saved programs."""
        return self.engine.dump_state()

    @classmethod
    def load_state(cls, state: dict[str, Any]) -> AsyncPooledEngine:
        """Rebuild an engine from :meth:`dump_state`."""
        return cls(PooledEngine.load_state(state))

    def _connect(self) -> tuple[AsyncOpenAIChatLM, Sessions]:
        access = self._access
        sessions = Sessions(access.base, self.engine.options.max_connections, self.engine.options.timeout)
        transport = WithHeaders(sessions, access.headers)
        return AsyncOpenAIChatLM(api_key=access.key, base_url=access.base, transport=transport), sessions
