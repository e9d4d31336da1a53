"""A loopback service that the tests of clients and of the probe ask."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest


def answer(
    text: str = "[[ ## answer ## ]]\n42\n\n[[ ## completed ## ]]", finish: str = "stop"
) -> dict[str, Any]:
    return {
        "id": "x",
        "object": "chat.completion",
        "created": 0,
        "model": "m",
        "choices": [
            {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": finish}
        ],
        "usage": {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10},
    }


class Service:
    """Answers with a script of (status, headers, body), then with 200; keeps what it was asked."""

    def __init__(self) -> None:
        self.script: list[tuple[int, dict[str, str], Any]] = []
        self.requests: list[tuple[str, dict[str, str], dict[str, Any]]] = []
        self.answer = answer()
        self.connections = self.now = self.most = 0
        self.barrier: threading.Barrier | None = None
        self.hang_up = False
        self.drip = 0.0  # seconds between two bytes
        self.drips_head = False  # or the body alone
        self.was_given_up = threading.Event()
        lock = threading.Lock()
        service = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def setup(self) -> None:
                super().setup()
                service.connections += 1

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                with lock:
                    service.requests.append((self.path, dict(self.headers), body))
                    service.now += 1
                    service.most = max(service.most, service.now)
                    status, headers, reply = (
                        service.script.pop(0) if service.script else (200, {}, service.answer)
                    )
                    hang_up = (
                        service.hang_up
                    )  # as it stands before the client can have read the answer
                if service.barrier is not None:
                    service.barrier.wait(20)
                with lock:
                    service.now -= 1
                data = reply if isinstance(reply, bytes) else json.dumps(reply).encode()
                self.send_response(status)
                for name, value in {"content-length": str(len(data)), **headers}.items():
                    self.send_header(name, value)
                if service.drips_head:
                    data = b"".join([*self._headers_buffer, b"\r\n", data])
                else:
                    self.end_headers()
                try:
                    for byte in data if service.drip else ():
                        self.wfile.write(bytes([byte]))
                        time.sleep(service.drip)
                    self.wfile.write(b"" if service.drip else data)
                except ConnectionError:
                    service.was_given_up.set()
                self.close_connection = self.close_connection or hang_up

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True)
        self.thread.start()
        self.base = f"http://127.0.0.1:{self.server.server_port}/v1"

    @property
    def bodies(self) -> list[dict[str, Any]]:
        return [body for _, _, body in self.requests]

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    for name in (
        "OPENAI_API_KEY",
        "OPENAI_API_BASE",
        "OPENAI_BASE_URL",
        "http_proxy",
        "HTTP_PROXY",
    ):
        monkeypatch.delenv(name, raising=False)
    service = Service()
    yield service
    service.close()
