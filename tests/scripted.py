"""An LM whose every attempt is scripted."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import dspy
import pytest
from dspy.lm15 import Message, Response, TextPart, Usage


class Engine:
    """Answers each attempt with what ``reply(prompt, attempt)`` returns, or raises it; attempts are
    counted from 1.
    """

    supported_params = frozenset({"temperature"})
    supports_response_schema = False

    def __init__(self, reply: Callable[[str, int], str | Exception]) -> None:
        self.reply = reply
        self.attempts = 0
        self.requests: list[Any] = []
        self._lock = threading.Lock()

    def complete(self, request: Any) -> Response:
        with self._lock:
            self.attempts += 1
            attempt = self.attempts
            self.requests.append(request)
        reply = self.reply(request.messages[-1].text, attempt)
        if isinstance(reply, Exception):
            raise reply
        return Response(
            id=None,
            model=request.model,
            message=Message.assistant([TextPart(reply)]),
            finish_reason="stop",
            usage=Usage(input_tokens=5, output_tokens=2, total_tokens=7),
        )


class AsyncEngine:
    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.supported_params = engine.supported_params
        self.supports_response_schema = False

    async def complete(self, request: Any) -> Response:
        return self.engine.complete(request)


def answer(text: str) -> str:
    return f"[[ ## answer ## ]]\n{text}\n\n[[ ## completed ## ]]"


@pytest.fixture
def scripted() -> Callable[..., dspy.LM]:
    """Make an LM; ``lm.engine`` counts its attempts. A reply without field markers is wrapped in
    them.
    """

    def make(
        reply: Callable[[str, int], Any] = lambda prompt, attempt: "42",
        model: str = "openai/gpt-4o",
        **kwargs: Any,
    ) -> dspy.LM:
        def written(prompt: str, attempt: int) -> Any:
            found = reply(prompt, attempt)
            return found if isinstance(found, Exception) or "\0" in found else answer(found)

        engine = Engine(written)
        kwargs = {"cache": False, "num_retries": 0, **kwargs}
        return dspy.LM(model, engine=engine, async_engine=AsyncEngine(engine), **kwargs)

    return make


@pytest.fixture
def example() -> dspy.Example:
    return dspy.Example(question="six times seven", answer="42").with_inputs("question")
