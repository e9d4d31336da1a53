"""What the simulated service sends, byte for byte."""

from __future__ import annotations

import json
import time
from http import HTTPStatus
from typing import Any

from aiohttp import web

from combee_simulator.laws import Status

__all__ = ["MODEL", "completion", "cut_text", "error_body", "respond", "to_json"]

MODEL = "simulated"


def cut_text(text: str, max_tokens: int | None, status: Status) -> tuple[str, str]:
    """Return the text that fits and its finish reason."""
    keep = len(text) if max_tokens is None else 4 * max_tokens
    if status is Status.TRUNCATED:
        keep = min(keep, len(text) // 2)
    return text[:keep], "length" if keep < len(text) else "stop"


def completion(name: str, parts: list[tuple[str, str]], tokens: tuple[int, int]) -> dict[str, Any]:
    """Return the body of a chat completion: its id, texts with finish reasons, and tokens."""
    return {
        "id": f"chatcmpl-simulated-{name}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": MODEL,
        "system_fingerprint": MODEL,
        "choices": [
            {
                "index": index,
                "message": {"role": "assistant", "content": text},
                "finish_reason": reason,
            }
            for index, (text, reason) in enumerate(parts)
        ],
        "usage": {
            "prompt_tokens": tokens[0],
            "completion_tokens": tokens[1],
            "total_tokens": sum(tokens),
        },
    }


def respond(
    code: HTTPStatus, body: bytes, headers: tuple[tuple[str, str], ...] = ()
) -> web.Response:
    """Return a response whose body is JSON."""
    return web.Response(status=code, body=body, headers=headers, content_type="application/json")


def error_body(message: str, kind: str, code: str | None = None) -> bytes:
    """Return the body of an error, as OpenAI writes it."""
    return to_json({"error": {"message": message, "type": kind, "code": code}})


def to_json(value: dict[str, Any]) -> bytes:
    """Return a body; half a character becomes a question mark."""
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "replace")
