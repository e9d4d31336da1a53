"""Where a pooled client goes, and what it shows there."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlsplit

import dspy
from dspy.clients.engines.base import validate_request
from dspy.lm15 import LM15Error, NotConfiguredError, RateLimitError, Request

from combee_dspy.exceptions import ArgumentTypeError, ArgumentValueError
from combee_dspy.lms.redact import MASK, forms_of, mask

__all__ = ["KEY_VARIABLE", "PREFIX", "Access", "PooledOptions", "WithHeaders"]

KEY_VARIABLE = "OPENAI_API_KEY"
"""The environment variable that holds the key where none is given, as with ``dspy.LM``."""

_DEFAULT_BASE = "https://api.openai.com/v1"
_BASE_VARIABLES = ("OPENAI_API_BASE", "OPENAI_BASE_URL")
PREFIX = "openai/"
"""DSPy's name for the interface, before a model's own; not sent."""

# The dialect wants a key. A service on one's own machine asks for none, and ignores this one.
_NO_KEY = "none"


@dataclass(frozen=True, slots=True)
class PooledOptions:
    """Where a pooled client goes, and how. Holds no credential.

    Attributes:
        api_base: The service, up to and with ``/v1``; ``None`` for what ``OPENAI_API_BASE`` or
            ``OPENAI_BASE_URL`` says when the first request is made, and OpenAI's own without them.
        max_connections: Connections at most: for all threads together, and for each event loop.
        timeout: Seconds that the service may stay silent.
        model: The model whose abilities are told to DSPy, which asks for structured output by them.

    Raises:
        ArgumentTypeError: A value has the wrong type.
        ArgumentValueError: A value is out of range, or ``api_base`` is no HTTP address or holds a credential.
    """

    api_base: str | None = None
    max_connections: int = 512
    timeout: float = 600.0
    model: str = ""

    def __post_init__(self) -> None:
        if self.api_base is not None and not isinstance(self.api_base, str):
            raise ArgumentTypeError("api_base", self.api_base, "is no text", _BASE_REMEDY)
        if self.api_base is not None and not self.api_base.startswith(("http://", "https://")):
            raise ArgumentValueError("api_base", mask(self.api_base), "is no HTTP address", _BASE_REMEDY)
        if self.api_base is not None and "@" in urlsplit(self.api_base).netloc:
            raise ArgumentValueError("api_base", MASK, "holds a credential", "Give it as api_key= or in headers=.")
        if isinstance(self.max_connections, bool) or not isinstance(self.max_connections, int):
            raise ArgumentTypeError("max_connections", self.max_connections, "is no whole number", "Give 1 or more.")
        if self.max_connections < 1:
            raise ArgumentValueError("max_connections", self.max_connections, "is below 1", "Give 1 or more.")
        if isinstance(self.timeout, bool) or not isinstance(self.timeout, (int, float)):
            raise ArgumentTypeError("timeout", self.timeout, "is no number of seconds", "Give seconds above 0.")
        if not 0 < self.timeout < float("inf"):
            raise ArgumentValueError("timeout", self.timeout, "is no time to wait", "Give seconds above 0.")


_BASE_REMEDY = "Give an address such as 'http://localhost:8000/v1'."


class Access:
    """What both engines need to know; the credentials stay in here. Thread-safe.

    Args:
        options: Where to go.
        api_key: The key; that of the environment where it is ``None``.
        headers: Further headers of every request.
    """

    def __init__(self, options: PooledOptions, api_key: str | None, headers: Mapping[str, str]) -> None:
        self.options = options
        self._key = api_key
        self._headers = dict(headers)

    @property
    def base(self) -> str:
        """The service's address, without a slash at its end."""
        named = next((os.environ[name] for name in _BASE_VARIABLES if os.environ.get(name)), _DEFAULT_BASE)
        return (self.options.api_base or named).rstrip("/")

    @property
    def key(self) -> str:
        """The key to send.

        Raises:
            NotConfiguredError: lm15's: there is none, and OpenAI's own service asks for one.
        """
        key = self._key or os.environ.get(KEY_VARIABLE)
        if key:
            return key
        if self.base == _DEFAULT_BASE:
            raise NotConfiguredError(f"no key: set {KEY_VARIABLE} or pass api_key= to pooled(...)")
        return _NO_KEY

    @property
    def headers(self) -> dict[str, str]:
        """Headers of every request, the dialect's own apart."""
        return {"User-Agent": f"DSPy/{dspy.__version__}", **self._headers}

    @property
    def secrets(self) -> tuple[str, ...]:
        """What must reach no file and no log."""
        given = self._key or os.environ.get(KEY_VARIABLE)
        return (*((given,) if given else ()), *self._headers.values())

    def routed(self, request: Request) -> Request:
        """Return a request as the service knows its model."""
        validate_request(request)
        if request.model.startswith(PREFIX):
            return replace(request, model=request.model.removeprefix(PREFIX))
        return request

    def refused(self, error: LM15Error) -> None:
        """Make an error fit for others: without credentials, and with a wait that ends. Tell of a 429."""
        # Late: the rollouts' room stands on this one.
        from combee_dspy.rollouts import LONGEST_WAIT, tell_pressure

        secrets = forms_of(self.secrets)
        error.message = mask(error.message, secrets)
        error.args = tuple(mask(part, secrets) if isinstance(part, str) else part for part in error.args)
        if isinstance(error, RateLimitError):
            tell_pressure(error.retry_after)
        # Whatever the error: a service that is down may ask for a day as well.
        if error.retry_after is not None:
            error.retry_after = min(error.retry_after, LONGEST_WAIT)


class WithHeaders:
    """A transport that adds headers to what the dialect sends; they count for more than its own."""

    def __init__(self, transport: Any, headers: Mapping[str, str]) -> None:
        self._transport = transport
        self._headers = list(headers.items())
        self._names = {name.lower() for name in headers}

    def stream(self, request: Any) -> Any:
        """Send a request. The name is the dialect's."""
        own = [(name, value) for name, value in request.headers if name.lower() not in self._names]
        request.headers = [*own, *self._headers]
        return self._transport.stream(request)
