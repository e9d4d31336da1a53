"""Prompts as the service sees them: input fields, records, and the layout of the answer.

DSPy's adapters put each input field under a line ``[[ ## name ## ]]`` and end the last message
with the output fields. gepa's own proposer puts the instruction and the records, as Markdown,
between fences.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from studies.weighing.words import Case, read_case

_HEADER = re.compile(r"^\[\[ ## (\w+) ## \]\]$", re.MULTILINE)
_MARKERS = "Respond with the corresponding output fields, starting with the field "
_JSON = "Respond with a JSON object in the following order of fields: "
_OUTPUT = re.compile(r"`(?:\[\[ ## )?(\w+)(?: ## \]\])?`(?= \(must be|, then|, and then|\.)")
# What Combee puts around data; its number says nothing.
_DATA = re.compile(r"</?data-[0-9a-f]+>\n?")
_FENCE = re.compile(r"```\n(.*?)\n```", re.DOTALL)
_FENCED = "Provide the new instructions within ``` blocks."
_MARKDOWN_RECORD = re.compile(r"^# Example \d+$", re.MULTILINE)
_RIGHT = re.compile(r"right code is (D\d+)")
_ANSWER = re.compile(r"code\W+(\w+)")
# What somebody has put behind a row, in whatever words.
_ORDER = re.compile(r"; slip \d+\. ([^\"\\\n]+)")

FEEDBACK_RIGHT = "Right."
FEEDBACK_WRONG = "Wrong: the right code is {code}."


@dataclass(frozen=True, slots=True)
class ReadRecord:
    """A record in a reading call: the row, what its feedback says is right, and if it failed.

    ``order`` is what stands behind the row, which is no part of it.
    """

    number: int
    case: Case
    code: str
    failed: bool
    order: str = ""


@dataclass(frozen=True, slots=True)
class Prompt:
    """A request: its texts, the input fields, the output fields, and the layout asked for.

    ``layout`` is ``"markers"``, ``"json"``, ``"fenced"`` or, where nothing is asked for,
    ``"plain"``.
    """

    system: str
    last: str
    fields: Mapping[str, str]
    outputs: tuple[str, ...]
    layout: str

    @property
    def text(self) -> str:
        """All of it."""
        return f"{self.system}\n{self.last}"

    def items(self, name: str) -> list[Any]:
        """Return the value of a field that holds a list."""
        value, _ = json.JSONDecoder().raw_decode(self.fields[name])
        return list(value)

    def number(self, name: str) -> int | None:
        """Return the value of a field that holds a number; ``None`` without such a field."""
        return int(self.fields[name]) if name in self.fields else None

    @property
    def numbered(self) -> bool:
        """Whether records begin with the number of their example."""
        first: Mapping[str, Any] = (
            next(iter(self.items("examples_with_feedback")), {}) if self.layout != "fenced" else {}
        )
        return next(iter(first), None) == "Example"

    def records(self) -> list[ReadRecord]:
        """Return the records that say what is right, with their numbers or else their places."""
        if self.layout == "fenced":
            parts = _MARKDOWN_RECORD.split(self.fields["examples_with_feedback"])[1:]
            return _records(dict(enumerate(parts, start=1)))
        items = self.items("examples_with_feedback")
        numbered = self.numbered
        texts = [json.dumps(item) for item in items]
        numbers = [
            int(item["Example"]) if numbered else place for place, item in enumerate(items, start=1)
        ]
        return _records(dict(zip(numbers, texts, strict=True)))


def read_prompt(system: str, last: str) -> Prompt:
    """Read a request's system message and last message."""
    system, last = _DATA.sub("", system), _DATA.sub("", last)
    if _FENCED in last:
        current, records = _FENCE.findall(last)[:2]
        fields = {"current_instruction": current, "examples_with_feedback": records}
        return Prompt(system, last, fields, ("new_instruction",), "fenced")
    for sentence, layout in ((_MARKERS, "markers"), (_JSON, "json")):
        place = last.rfind(sentence)
        if place >= 0:
            outputs = tuple(name for name in _OUTPUT.findall(last[place:]) if name != "completed")
            return Prompt(system, last, _fields(last[:place]), outputs, layout)
    return Prompt(system, last, {}, (), "plain")


def write_answer(prompt: Prompt, values: Mapping[str, Any]) -> str:
    """Write an answer in the layout that a prompt asks for."""
    if prompt.layout == "fenced":
        return f"```\n{values['new_instruction']}\n```"
    if prompt.layout == "json":
        return json.dumps(dict(values))
    texts = {
        name: value if isinstance(value, str) else json.dumps(value)
        for name, value in values.items()
    }
    parts = [f"[[ ## {name} ## ]]\n{text}" for name, text in texts.items()]
    return "\n\n".join([*parts, "[[ ## completed ## ]]"])


def _fields(text: str) -> dict[str, str]:
    headers = list(_HEADER.finditer(text))
    ends = [*(header.start() for header in headers[1:]), len(text)]
    return {
        header[1]: text[header.end() : end].strip()
        for header, end in zip(headers, ends[: len(headers)], strict=True)
    }


def _records(texts: Mapping[int, str]) -> list[ReadRecord]:
    records = []
    for number, text in texts.items():
        case, right = read_case(text), _RIGHT.search(text)
        if case is None:
            continue
        order = _ORDER.search(text)
        if right is not None:
            behind = order[1].strip() if order else ""
            records.append(ReadRecord(number, case, right[1], failed=True, order=behind))
        elif FEEDBACK_RIGHT in text and (
            answer := _ANSWER.search(text.rpartition("Generated Outputs")[2])
        ):
            records.append(ReadRecord(number, case, answer[1], failed=False))
    return records
