from __future__ import annotations

import threading
from collections import Counter
from typing import Any

import dspy
import pytest
from dspy.clients.cache import Cache
from dspy.lm15 import InvalidRequestError, Message, Response, ServerError, TextPart, Usage


class Service:
    """A service that counts what it does: the truth a ledger is held against.

    The last message says what happens: ``role=R n=N`` costs tokens that depend
    on N; ``fail`` in it is refused; ``flaky`` in it fails on the first attempt.
    """

    supports_response_schema = True
    supported_params = frozenset({"response_format"})

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.answered: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self.attempts = 0
        self.prompt: Counter[str] = Counter()
        self.completion: Counter[str] = Counter()
        self._seen: set[str] = set()

    def complete(self, request: Any) -> Response:
        text = request.messages[-1].text or ""
        words = dict(word.split("=", 1) for word in text.split() if "=" in word)
        role, n = words.get("role", "task"), int(words.get("n", 0))
        prompt, completion = 10 + n % 7, 1 + n % 5
        with self.lock:
            self.attempts += 1
            if "fail" in text:
                self.refused[role] += 1
                raise InvalidRequestError("refused")
            if "flaky" in text and text not in self._seen:
                self._seen.add(text)
                raise ServerError("try again", retry_after=0.0)
            self.answered[role] += 1
            self.prompt[role] += prompt
            self.completion[role] += completion
        usage = Usage(input_tokens=prompt, output_tokens=completion, total_tokens=prompt + completion)
        answer = Message.assistant([TextPart('{"answer": "yes"}')])
        return Response(id=None, model=request.model, message=answer, finish_reason="stop", usage=usage)


class AsyncService:
    def __init__(self, service: Service) -> None:
        self.service = service

    async def complete(self, request: Any) -> Response:
        return self.service.complete(request)


@pytest.fixture
def service() -> Service:
    return Service()


@pytest.fixture
def lm(service: Service) -> dspy.LM:
    return dspy.LM("openai/gpt-4o-mini", engine=service, async_engine=AsyncService(service), cache=False, num_retries=1)


@pytest.fixture
def fresh_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dspy, "cache", Cache(enable_disk_cache=False, enable_memory_cache=True, disk_cache_dir=None))
