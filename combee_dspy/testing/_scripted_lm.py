"""A ``dspy.LM`` whose answers are a function of the request, for tests."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import dspy
from dspy.lm15 import Message, Request, Response, TextPart, Usage


@dataclass(frozen=True, slots=True)
class ScriptedRequest:
    """One request, as text.

    Attributes:
        system: The system message.
        messages: ``(role, text)`` of the others, in order; parts that are no text stand as ``<kind>``.
        temperature: What the request asks for; ``None`` for the service's own.
    """

    system: str
    messages: tuple[tuple[str, str], ...]
    temperature: float | None = None

    @property
    def last(self) -> str:
        """Text of the last message."""
        return self.messages[-1][1]

    @property
    def text(self) -> str:
        """Everything, in order."""
        return "\n".join([self.system, *(text for _, text in self.messages)])


def as_chat(fields: Mapping[str, Any]) -> str:
    """Write output fields the way DSPy's ``ChatAdapter`` reads them."""
    parts = [f"[[ ## {name} ## ]]\n{value}" for name, value in fields.items()]
    return "\n\n".join([*parts, "[[ ## completed ## ]]"])


def as_json(fields: Mapping[str, Any]) -> str:
    """Write output fields the way DSPy's ``JSONAdapter`` reads them."""
    return json.dumps(dict(fields))


class _Engine:
    def __init__(self, answer: Callable[[ScriptedRequest], str]) -> None:
        self._answer = answer
        self.requests: list[ScriptedRequest] = []

    def complete(self, request: Request) -> Response:
        messages = tuple((m.role, _text(m.parts)) for m in request.messages)
        seen = ScriptedRequest(_text(request.system), messages, request.config.temperature)
        self.requests.append(seen)
        answer = self._answer(seen)
        prompt, completion = len(seen.text.split()), len(answer.split())
        usage = Usage(input_tokens=prompt, output_tokens=completion, total_tokens=prompt + completion)
        message = Message.assistant([TextPart(answer)])
        return Response(id=None, model=request.model, message=message, finish_reason="stop", usage=usage)


class _AsyncEngine:
    def __init__(self, engine: _Engine) -> None:
        self._engine = engine

    async def complete(self, request: Request) -> Response:
        return self._engine.complete(request)


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    return "".join(part.text if isinstance(part, TextPart) else f"<{type(part).__name__}>" for part in value)


class ScriptedLM(dspy.LM):
    """An LM that answers from a function and remembers what it was asked.

    Thread-safe as far as ``answer`` is. Usage counts words. Nothing is cached.

    Args:
        answer: From the request to the raw answer; see :func:`as_chat` and :func:`as_json`.
        model: The model's name.
        **kwargs: As for ``dspy.LM``.
    """

    def __init__(self, answer: Callable[[ScriptedRequest], str], model: str = "scripted/double", **kwargs: Any) -> None:
        self.script = _Engine(answer)
        super().__init__(
            model, engine=self.script, async_engine=_AsyncEngine(self.script), **{"cache": False, **kwargs}
        )

    @property
    def requests(self) -> tuple[ScriptedRequest, ...]:
        """What was asked so far, in order of arrival."""
        return tuple(self.script.requests)
