"""The body of a chat completion request, parsed and checked, and what it costs to read."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from typing import Any

from combee_dspy.exceptions import ServiceError

__all__ = [
    "BadRequestError",
    "ChatRequest",
    "Message",
    "parse_request",
    "prompt_tokens",
    "text_tokens",
]

_CHARS_PER_TOKEN = 4
_MESSAGE_OVERHEAD = 4
_REPLY_OVERHEAD = 3
_PART_TOKENS = 85
_MAX_CHOICES = 128
# The marks around data in our own prompts, and the sentence on them, in a body of JSON. They are
# read over: their tokens are not counted (about 100 a call), and whoever asks with other marks gets
# the same answer.
_MARKS = re.compile(
    rb"(?:\\n *)*Each text between <data-[0-9a-f]{16}> and </data-[0-9a-f]{16}>"
    rb" is .*? whatever it claims\."
    rb"|<data-[0-9a-f]{16}>\\n|\\n</data-[0-9a-f]{16}>"
)


class BadRequestError(ServiceError):
    """A request that the service answers with HTTP 400."""


@dataclass(frozen=True, slots=True)
class Message:
    """One chat message: its role, the text of its text parts, and how many other parts it has."""

    role: str
    text: str
    other_parts: int = 0


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """A parsed request.

    Attributes:
        messages: At least one.
        content: Hex digest of everything that may change the answer.
        temperature: 0 when the request names none.
        max_tokens: Limit on the answer, or None.
        choices: Answers asked for.
        response_format: The value sent, or None.
    """

    messages: tuple[Message, ...]
    content: str
    temperature: float = 0.0
    max_tokens: int | None = None
    choices: int = 1
    response_format: dict[str, Any] | None = None


def text_tokens(text: str) -> int:
    """Return the tokens of a text: its characters divided by 4, rounded up.

    No tokenizer is involved.
    """
    return -(-len(text) // _CHARS_PER_TOKEN)


def prompt_tokens(messages: tuple[Message, ...]) -> int:
    """Return the tokens of a prompt: its texts, 4 a message, 85 for each other part, and 3."""
    return _REPLY_OVERHEAD + sum(
        _MESSAGE_OVERHEAD + text_tokens(message.text) + _PART_TOKENS * message.other_parts
        for message in messages
    )


def parse_request(body: bytes) -> ChatRequest:
    """Parse the body of ``POST /v1/chat/completions``.

    Raises:
        BadRequestError: The body is not JSON of the expected form, or asks for what the service
            does not have.
    """
    try:
        data = json.loads(_MARKS.sub(b"", body))
    except (ValueError, RecursionError) as error:
        raise BadRequestError(f"the body is not JSON: {error}") from error
    if not isinstance(data, dict):
        raise BadRequestError("the body must be a JSON object")
    raw, response_format = data.get("messages"), data.get("response_format")
    temperature = data.get("temperature") or 0.0
    max_tokens = data.get("max_completion_tokens", data.get("max_tokens"))
    if data.get("stream"):
        raise BadRequestError("stream is not supported by the simulated service")
    if not isinstance(raw, list) or not raw:
        raise BadRequestError("messages must be a non-empty list")
    if response_format is not None and not isinstance(response_format, dict):
        raise BadRequestError("response_format must be an object")
    if isinstance(temperature, bool) or not isinstance(temperature, int | float):
        raise BadRequestError("temperature must be a number")
    return ChatRequest(
        messages=tuple(_message(item) for item in raw),
        content=_digest(data, max_tokens),
        temperature=float(temperature),
        max_tokens=None if max_tokens is None else _integer("max_tokens", max_tokens, 1 << 30),
        choices=_integer("n", data.get("n") or 1, _MAX_CHOICES),
        response_format=response_format,
    )


def _digest(data: dict[str, Any], max_tokens: Any) -> str:
    # Only what may change the answer: clients differ in the harmless rest, such as "stream": false.
    # A request without a temperature counts as one at 0: said or not, it is the same.
    values = {**data, "temperature": data.get("temperature") or None}
    parts = [
        values.get(name)
        for name in ("messages", "temperature", "seed", "n", "response_format", "tools")
    ]
    text = json.dumps([*parts, max_tokens], sort_keys=True, separators=(",", ":"))
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _message(item: object) -> Message:
    if not isinstance(item, dict) or not isinstance(item.get("role"), str):
        raise BadRequestError("each message must be an object with a role")
    role, content = item["role"], item.get("content") or ""
    if isinstance(content, str):
        return Message(role, content)
    if not isinstance(content, list) or not all(isinstance(part, dict) for part in content):
        raise BadRequestError("the content of a message must be a string or a list of parts")
    texts = [part["text"] for part in content if isinstance(part.get("text"), str)]
    return Message(role, "\n".join(texts), len(content) - len(texts))


def _integer(name: str, value: object, high: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= high:
        raise BadRequestError(f"{name} must be an integer from 1 to {high}")
    return value
