"""A small OpenAI-compatible service on loopback; what it says is up to a mind, of which each
journey has its own.
"""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import dspy

__all__ = ["Asked", "Failure", "Mind", "Server", "tokens"]


def tokens(text: str) -> int:
    """Count tokens as these servers do: one a word."""
    return len(text.split())


@dataclass(frozen=True)
class Asked:
    """One request, as a mind sees it."""

    model: str
    messages: tuple[tuple[str, str], ...]
    schema: bool  # whether a JSON schema was asked for

    @property
    def text(self) -> str:
        return "\n".join(text for _, text in self.messages)

    @property
    def system(self) -> str:
        return self.messages[0][1]

    @property
    def last(self) -> str:
        return self.messages[-1][1]


@dataclass(frozen=True)
class Failure:
    """An answer that is none: its status, its body and the type that it is said to be of."""

    status: int
    body: str = (
        '{"error": {"message": "Rate limit reached", "type": "requests", "code":'
        ' "rate_limit_exceeded"}}'
    )
    kind: str = "application/json"


Mind = Callable[[Asked], str | Failure]


class Server:
    """Serves ``/v1/chat/completions`` and counts, by model, what it answered.

    Attributes:
        mind: Answers each request; may be replaced while it serves.
        answered: Requests answered with a completion, by model.
        refused: Requests that were not.
        prompt: Tokens read, by model.
        completion: Tokens written, by model.
        seen: Everything that was asked.
    """

    def __init__(self, mind: Mind) -> None:
        self.mind = mind
        self.answered: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self.prompt: Counter[str] = Counter()
        self.completion: Counter[str] = Counter()
        self.seen: list[Asked] = []
        self._lock = threading.Lock()
        self._http = _Http(("127.0.0.1", 0), _handler(self))
        self._thread = threading.Thread(
            target=self._http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
        )

    def __enter__(self) -> Server:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()

    @property
    def total(self) -> int:
        return sum(self.answered.values())

    @property
    def base(self) -> str:
        return f"http://127.0.0.1:{self._http.server_address[1]}/v1"

    def lm(self, model: str, **kwargs: Any) -> dspy.LM:
        """Return a plain DSPy client of one of the service's models, as a user writes it."""
        return dspy.LM(
            f"openai/{model}",
            api_base=self.base,
            api_key="none",
            **{"temperature": 0.0, "cache": False, **kwargs},
        )

    def answer(self, body: dict[str, Any]) -> Failure:
        told = tuple((one["role"], one["content"] or "") for one in body["messages"])
        schema = (body.get("response_format") or {}).get("type") == "json_schema"
        asked = Asked(body["model"], told, schema)
        with self._lock:
            self.seen.append(asked)
            said = self.mind(asked)
            if isinstance(said, Failure):
                self.refused[asked.model] += 1
                return said
            usage = {"prompt_tokens": tokens(asked.text), "completion_tokens": tokens(said)}
            self.answered[asked.model] += 1
            self.prompt[asked.model] += usage["prompt_tokens"]
            self.completion[asked.model] += usage["completion_tokens"]
        choice = {
            "index": 0,
            "message": {"role": "assistant", "content": said},
            "finish_reason": "stop",
        }
        whole = {**usage, "total_tokens": sum(usage.values())}
        fields = {"id": "a", "object": "chat.completion", "created": 0, "model": asked.model}
        return Failure(200, json.dumps({**fields, "choices": [choice], "usage": whole}))


class _Http(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hung up is no fault of the service."""


def _handler(server: Server) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True
        wbufsize = -1

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            found = server.answer(body)
            data = found.body.encode()
            self.send_response(found.status)
            self.send_header("Content-Type", found.kind)
            self.send_header("Content-Length", str(len(data)))
            if found.status == 429:
                self.send_header("Retry-After", "0")
            self.end_headers()
            self.wfile.write(data)
            self.wfile.flush()

        def log_message(self, *_: object) -> None:
            """The tests speak for themselves."""

    return Handler
