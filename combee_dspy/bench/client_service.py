"""A chat service that answers at once, in a process of its own: what is measured against it is the client.

It gives every request the same answer, whatever was asked. Its process is a
child of the one that measures, and ends with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from combee_dspy.exceptions import ServiceError
from combee_dspy.lms.simulated.http11 import Exchange, HttpProtocol

__all__ = ["ANSWER", "MODEL", "instant_service", "main"]

MODEL = "instant"
"""The model's name, which no price table knows: as with any self-hosted model."""

ANSWER = "42"
"""What every question is answered with."""

_HOST = "127.0.0.1"
_BACKLOG = 2048
_CHAT = f"[[ ## answer ## ]]\n{ANSWER}\n\n[[ ## completed ## ]]\n"


def _body() -> bytes:
    usage = {"prompt_tokens": 200, "completion_tokens": 20, "total_tokens": 220}
    choice = {"index": 0, "message": {"role": "assistant", "content": _CHAT}, "finish_reason": "stop"}
    answer = {"id": "instant", "object": "chat.completion", "created": 0, "model": MODEL}
    return json.dumps({**answer, "choices": [choice], "usage": usage}).encode()


async def _serve() -> None:
    body = _body()
    calls = 0

    def handle(method: str, path: str, _: bytes, exchange: Exchange) -> None:
        nonlocal calls
        if path == "/stats":
            exchange.respond(200, json.dumps({"calls": calls, "cpu_seconds": _cpu_seconds()}).encode())
            return
        calls += 1
        exchange.respond(200, body)

    connections: set[HttpProtocol] = set()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: HttpProtocol(handle, connections), _HOST, 0, backlog=_BACKLOG)
    sys.stdout.write(f"{server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    # Ends when the parent does, however that ends: its end of the pipe is then closed.
    await loop.run_in_executor(None, sys.stdin.read)


def _cpu_seconds() -> float:
    times = os.times()
    return times.user + times.system


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until standard input ends; print the port first."""
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_serve())
    return 0


@contextmanager
def instant_service() -> Iterator[str]:
    """Run the service in a process of its own.

    Yields:
        Its ``api_base``.

    Raises:
        ServiceError: The process did not start.
    """
    command = [sys.executable, "-m", "combee_dspy.bench.client_service"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:  # noqa: S603 - our own module
        try:
            port = process.stdout.readline().strip() if process.stdout else ""
            if not port.isdigit():
                raise ServiceError("the service that the client is measured against did not start")
            yield f"http://{_HOST}:{port}/v1"
        finally:
            if process.stdin:
                process.stdin.close()
            process.wait()


if __name__ == "__main__":
    sys.exit(main())
