"""A dspy.BaseLM whose answers a function writes, and which counts what it was asked."""

from __future__ import annotations

import json
import re
import threading
from collections import Counter
from types import SimpleNamespace
from typing import Any

import dspy

__all__ = ["Scripted", "write_fields"]


class Scripted(dspy.BaseLM):  # type: ignore[misc]  # DSPy has no types
    """An LM double. ``reply`` gets the system message, the user's, and how often it was asked."""

    def __init__(self, name: str, reply: Any) -> None:
        super().__init__(f"scripted/{name}", cache=False, num_retries=0)
        self.reply, self.calls, self.tokens = reply, 0, 0
        self.asked: Counter[str] = Counter()
        self.lock = threading.Lock()

    def forward(
        self, prompt: str | None = None, messages: list[dict[str, Any]] | None = None, **_: Any
    ) -> Any:
        """Answer a request in the form of OpenAI's client."""
        messages = messages or [{"role": "user", "content": prompt}]
        system = "\n".join(_text(part) for part in messages if part["role"] == "system")
        user = "\n".join(_text(part) for part in messages if part["role"] != "system")
        with self.lock:
            times = self.asked[user]
            self.asked[user] += 1
        text = self.reply(system, user, times)
        usage = {"prompt_tokens": len(system + user) // 4, "completion_tokens": len(text) // 4}
        usage["total_tokens"] = sum(usage.values())
        with self.lock:
            self.calls += 1
            self.tokens += usage["total_tokens"]
        message = SimpleNamespace(content=text, tool_calls=None, reasoning_content=None)
        choice = SimpleNamespace(message=message, finish_reason="stop", logprobs=None)
        return SimpleNamespace(choices=[choice], usage=usage, model=self.model)

    def __deepcopy__(self, memo: dict[int, Any]) -> Scripted:
        """Stay one service, whose counts are of all calls."""
        return self

    def copy(self, **_: Any) -> Scripted:
        """Stay one service."""
        return self


def _text(message: dict[str, Any]) -> str:
    content = message["content"]
    return content if isinstance(content, str) else " ".join(p.get("text", "") for p in content)


def output_names(system: str) -> list[str]:
    """Return the output fields that a system message of a DSPy adapter asks for."""
    part = system.split("Your output fields are:")[-1].split("All interactions")[0]
    return re.findall(r"^\s*\d+\. `(\w+)`", part, re.MULTILINE)


def write_fields(system: str, fields: dict[str, Any]) -> str:
    """Write an answer in the form that the adapter asked for: markers, JSON or XML."""
    texts = {
        name: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        for name, value in fields.items()
    }
    if "Outputs will be a JSON object" in system:
        return json.dumps(fields, ensure_ascii=False)
    if re.search(r"<(\w+)>\s*\{\1\}", system):
        return "\n".join(f"<{name}>\n{text}\n</{name}>" for name, text in texts.items())
    parts = [f"[[ ## {name} ## ]]\n{text}" for name, text in texts.items()]
    return "\n\n".join([*parts, "[[ ## completed ## ]]"])
