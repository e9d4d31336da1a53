"""A ``dspy.LM`` for hundreds of requests at once to one OpenAI-compatible service."""

from __future__ import annotations

import asyncio
import functools
import os
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Annotated, Any, ClassVar, NamedTuple
from urllib.parse import urlsplit

import dspy
from dspy.clients.engines.base import validate_request
from dspy.lm15 import (
    AsyncLMRouter,
    LM15Error,
    LMRouter,
    NotConfiguredError,
    Request,
    Response,
    RouterConfig,
)
from pydantic import Field

from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.lms._deadlines import AsyncDeadlineTransport, DeadlineTransport
from combee_dspy.lms.redact import MASK, forms_of, mask
from combee_dspy.strategies import parameters

_LONGEST_WAIT = 120.0  # seconds of Retry-After at most: a service that is down may name a day
_KEY_VARIABLE = "OPENAI_API_KEY"
_BASE_VARIABLES = ("OPENAI_API_BASE", "OPENAI_BASE_URL")
_DEFAULT_BASE = "https://api.openai.com/v1"
_DIALECT = "openai-chat"
_ANY = f"{_DIALECT}:any"  # of all models DSPy's router makes one provider
_PREFIX = "openai/"


@parameters
class PooledOptions:
    """Where a pooled client goes, and how. Holds no credential.

    Attributes:
        api_base: The service, up to and with ``/v1``; ``None`` for what ``OPENAI_API_BASE`` or
            ``OPENAI_BASE_URL`` says when the first request is made, and OpenAI's own without them.
        max_connections: Connections at most: for all threads together, and for each event loop.
        timeout: Seconds that the service may stay silent.
        model: The model whose abilities are told to DSPy, which asks for structured output by them.
    """

    api_base: str | None = None
    max_connections: Annotated[int, Field(ge=1, strict=True)] = 512
    timeout: Annotated[float, Field(gt=0, strict=True, allow_inf_nan=False)] = 600.0
    model: str = ""

    def __post_init__(self) -> None:
        if self.api_base is None:
            return
        if "@" in urlsplit(self.api_base).netloc:
            raise ArgumentValueError(
                "api_base", MASK, "holds a credential", "Give it as api_key= or in headers=."
            )
        if not self.api_base.startswith(("http://", "https://")):
            remedy = "Give an address such as 'http://localhost:8000/v1'."
            raise ArgumentValueError("api_base", mask(self.api_base), "is no HTTP address", remedy)


class Shared:
    """An engine that an LM's copies share, and that is saved as its options alone, credentials
    apart.

    A copy from disk makes its own connection with its first request.

    Args:
        options: Where to go, and how; the defaults of ``options_type`` without.
    """

    options_type: ClassVar[type]

    def __init__(self, options: Any = None) -> None:
        self.options = options or self.options_type()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.options!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self).load_state, (self.dump_state(),)

    def __deepcopy__(self, memo: dict[int, Any]) -> Shared:
        return self

    def dump_state(self) -> dict[str, Any]:
        """Return the options as plain data, for ``dspy``'s saved programs."""
        return dict(self.options.params())

    @classmethod
    def load_state(cls, state: dict[str, Any]) -> Shared:
        """Rebuild an engine from :meth:`dump_state`."""
        return cls(cls.options_type(**state))


class _Client(Shared):
    """Where requests go and with which credentials, for threads and event loops alike.

    One attempt a call: whoever calls waits and tries again.

    Args:
        options: Where to go.
        api_key: The key; ``OPENAI_API_KEY`` by default.
        headers: Further headers of every request. Like the key, they are kept out of every copy on
            disk.
    """

    options_type = PooledOptions

    def __init__(
        self,
        options: PooledOptions | None = None,
        api_key: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(options)
        self._key = api_key
        self._headers = dict(headers or {})
        self._routers: dict[Any, Any] = {}

    @property
    def secrets(self) -> tuple[str, ...]:
        """What must reach no file and no log: the key and the values of the headers."""
        key = self._key or os.environ.get(_KEY_VARIABLE)
        return (*((key,) if key else ()), *self._headers.values())

    def _router(self, kind: type[LMRouter] | type[AsyncLMRouter]) -> Any:
        """Return DSPy's own client with address, key, headers and limits as they stand now.

        Raises:
            NotConfiguredError: lm15's: there is no key, and OpenAI's own service asks for one.
        """
        named = next(
            (os.environ[name] for name in _BASE_VARIABLES if os.environ.get(name)), _DEFAULT_BASE
        )
        base = (self.options.api_base or named).rstrip("/")
        key = self._key or os.environ.get(_KEY_VARIABLE)
        if not key and base == _DEFAULT_BASE:
            raise NotConfiguredError(f"no key: set {_KEY_VARIABLE} or pass api_key= to pooled(...)")
        transport = DeadlineTransport if kind is LMRouter else AsyncDeadlineTransport
        config = RouterConfig(
            env={},
            # A service on one's own machine asks for no key, and ignores this one.
            api_keys={_DIALECT: key or "none"},
            base_urls={_DIALECT: base},
            transport=transport(
                read_timeout=self.options.timeout,
                write_timeout=self.options.timeout,
                # Requests above the number of connections wait for one, however long that takes.
                pool_timeout=None,
                max_connections=self.options.max_connections,
            ),
        )
        router = kind(config)
        provider: Any = router.lm(_ANY)
        provider.transport = _WithHeaders(provider.transport, self._headers)
        return router

    @contextmanager
    def _masked_errors(self) -> Iterator[None]:
        """Remove credentials from errors that leave the block, and bound the wait that they ask
        for.
        """
        try:
            yield
        except LM15Error as error:
            secrets = forms_of(self.secrets)
            error.message = mask(error.message, secrets)
            error.args = tuple(
                mask(part, secrets) if isinstance(part, str) else part for part in error.args
            )
            if error.retry_after is not None:
                error.retry_after = min(error.retry_after, _LONGEST_WAIT)
            raise


class _Abilities(NamedTuple):
    function_calling: bool = False
    reasoning: bool = False
    response_schema: bool = False
    parameters: frozenset[str] = frozenset()


@functools.cache
def _abilities(model: str) -> _Abilities:
    """Return what DSPy's table says of a model at OpenAI's interface; a search of it is slow."""
    if not model:
        return _Abilities()
    lm = dspy.LM(f"{_PREFIX}{model.removeprefix(_PREFIX)}", engine="lm15")
    return _Abilities(
        lm.supports_function_calling,
        lm.supports_reasoning,
        lm.supports_response_schema,
        frozenset(lm.supported_params),
    )


class PooledEngine(_Client):
    """A DSPy engine for threads: keep-alive connections to one service, and no search for its
    prices.

    Thread-safe; a process that is forked has connections of its own.
    """

    probeable = True

    # DSPy reads these from an engine, and not from its table of models.
    supports_function_calling = property(lambda self: self._abilities.function_calling)
    supports_reasoning = property(lambda self: self._abilities.reasoning)
    supports_response_schema = property(lambda self: self._abilities.response_schema)
    supported_params = property(lambda self: self._abilities.parameters)

    @property
    def _abilities(self) -> _Abilities:
        return _abilities(self.options.model)

    def complete(self, request: Request) -> Response:
        """Answer one request, or raise DSPy's ``LM15Error``."""
        with self._masked_errors():
            return self._provider().complete(_routed(request))

    def stream(self, request: Request) -> Iterator[Any]:
        """Answer one request, event by event."""
        with self._masked_errors():
            yield from self._provider().stream(_routed(request))

    def close(self) -> None:
        """Close the connections. Later requests open new ones."""
        if router := self._routers.pop(os.getpid(), None):
            router.close()

    def _provider(self) -> Any:
        # By process: over a connection that was open before a fork, two processes would read each
        # other's answers. Of several routers that are made at once the first stands.
        router = self._routers.get(os.getpid()) or self._routers.setdefault(
            os.getpid(), self._router(LMRouter)
        )
        return router.lm(_ANY)


class AsyncPooledEngine(_Client):
    """The same for event loops, each with connections of its own."""

    async def complete(self, request: Request) -> Response:
        """Answer one request, or raise DSPy's ``LM15Error``."""
        with self._masked_errors():
            return await self._provider().complete(_routed(request))

    async def stream(self, request: Request) -> AsyncIterator[Any]:
        """Answer one request, event by event."""
        with self._masked_errors():
            async for event in self._provider().stream(_routed(request)):
                yield event

    async def aclose(self) -> None:
        """Close this event loop's connections."""
        if router := self._routers.pop(asyncio.get_running_loop(), None):
            await router.aclose()

    def _provider(self) -> Any:
        loop = asyncio.get_running_loop()
        if loop not in self._routers:
            # A loop that has ended takes its connections with it.
            for other in list(self._routers):
                if other.is_closed():
                    self._routers.pop(other, None)
            self._routers[loop] = self._router(AsyncLMRouter)
        return self._routers[loop].lm(_ANY)


def pooled(
    model: str,
    *,
    api_base: str | None = None,
    api_key: str | None = None,
    max_connections: int = 512,
    timeout: float = 600.0,
    headers: Mapping[str, str] | None = None,
    **kwargs: object,
) -> dspy.LM:
    """Return a ``dspy.LM`` for an OpenAI-compatible chat service, with a client made for many
    requests at once.

    DSPy's own client stops at 100 connections, and for a model that its price table does not name
    it searches that table twice a call, which costs more than all the rest. This one goes over
    DSPy's own transport with as many connections as are asked for, and asks no table.

    The key is kept in the client alone: not in ``lm.kwargs``, history, ``repr``, pickles or saved
    programs. ``cost`` in the history is ``None``: give ``Costs(prices=…)``.

    Args:
        model: The model's name at the service. A prefix ``openai/``, DSPy's name for the interface,
            is not sent.
        api_base: The service, up to and with ``/v1``. By default ``OPENAI_API_BASE``
            or ``OPENAI_BASE_URL``, without them OpenAI's own.
        api_key: The key; ``OPENAI_API_KEY`` by default. A service other than OpenAI's may need
            none.
        max_connections: Connections at most.
        timeout: Seconds that the service may stay silent.
        headers: Further headers of every request.
        **kwargs: Passed to ``dspy.LM``: ``temperature``, ``max_tokens``, ``cache``,
            ``num_retries``, …

    Raises:
        ArgumentError: A setting cannot be used.
    """
    client = (PooledOptions(api_base, max_connections, timeout, model), api_key, headers)
    engines = {"engine": PooledEngine(*client), "async_engine": AsyncPooledEngine(*client)}
    return dspy.LM(model, **engines, **kwargs)


def _routed(request: Request) -> Request:
    """Return a request as the service knows its model."""
    validate_request(request)
    return replace(request, model=request.model.removeprefix(_PREFIX))


class _WithHeaders:
    """A transport that adds headers to what the dialect sends; they count for more than its own."""

    def __init__(self, transport: Any, headers: Mapping[str, str]) -> None:
        self._transport = transport
        self._headers = list(headers.items())
        self._names = {name.lower() for name in headers}

    def stream(self, request: Any) -> Any:
        own = [pair for pair in request.headers if pair[0].lower() not in self._names]
        request.headers = [*own, *self._headers]
        return self._transport.stream(request)
