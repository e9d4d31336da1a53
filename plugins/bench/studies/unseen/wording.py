"""Each call words its lines in its own way, and now and then answers badly."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence

from studies.unseen.service import write_fields
from studies.unseen.world import Task

__all__ = ["answer_with", "platitude", "word_lesson"]

_LINES = {
    "en": (
        "If the text mentions {cue}, {field} is {value}.",
        "Whenever you see {cue}, set {field} to {value}",
        "{cue} → {value}",
        "Use {value} for anything that concerns {cue}.",
        "{field}: texts on {cue} need {value}.",
        "A case with {cue} in it belongs to {value}, as the feedback shows.",
        "For {cue}, the {field} that was wanted is {value}.",
        "Answer {value} if {cue} comes up",
        "**{cue}**: {value}",
        "The assistant got {cue} wrong: it should have said {value}.",
    ),
    "ja": (
        "「{cue}」が出てきたら{value}と答える。",
        "{cue}の場合、{field}は{value}です。",
        "{cue}に関する文章には{value}を使うこと。",
        "{cue}→{value}",
        "文中に{cue}があれば、正解は{value}である。",
    ),
}
_BOTH = {
    "en": ("{} together with {}", "{} in the case of {}", "{} and {}", "{} ({})"),
    "ja": ("{}かつ{}", "{}（{}）"),
}
_PLATITUDES = {
    "en": (
        "Read the whole text before you answer.",
        "Be careful with details.",
        "Think step by step and double-check the result.",
        "Make sure that the answer has the right format.",
        "Pay close attention to the key words.",
    ),
    "ja": ("文章を最後までよく読むこと。", "注意深く答えること。", "形式を確認すること。"),
}
_SORRY = "I'm sorry, but I can't help with that request."
_MODES = (
    ("plain", 56),
    ("fenced", 8),
    ("bullets", 8),
    ("numbered", 6),
    ("thinking", 7),
    ("prompt", 4),
    ("refusal", 2),
    ("refused", 1),
    ("cut", 3),
    ("unmarked", 2),
    ("json", 3),
)


def word_lesson(
    task: Task, source: random.Random, cues: Sequence[str], field: str, value: str
) -> str:
    """Return a line that says that texts with these cues ask for a value."""
    cue = cues[0]
    if len(cues) > 1:
        cue = source.choice(_BOTH[task.language]).format(*cues[:2])
    line = source.choice(_LINES[task.language])
    return line.format(cue=cue, field=field.replace("_", " "), value=value)


def platitude(task: Task, source: random.Random) -> str:
    """Return a line that teaches nothing."""
    return source.choice(_PLATITUDES[task.language])


def answer_with(  # noqa: C901 - a mode each
    system: str, source: random.Random, name: str, value: str | list[str], introduction: str = ""
) -> str:
    """Write one output field, in the form asked for or in one of those that models slip into."""
    mode = source.choices([mode for mode, _ in _MODES], [weight for _, weight in _MODES])[0]
    lines = value if isinstance(value, list) else [value]
    body: object = value
    if mode == "refusal":
        return _SORRY
    if mode == "refused":
        body = [_SORRY] if isinstance(value, list) else _SORRY
    if mode == "fenced":
        text = json.dumps(value, ensure_ascii=False, indent=1) if body is lines else value
        body = f"```{'json' if body is lines else ''}\n{text}\n```"
    if mode == "bullets":
        body = "\n".join(f"- {line}" for line in lines)
    if mode == "numbered":
        body = "\n".join(f"{number}. {line}" for number, line in enumerate(lines, start=1))
    if mode == "prompt":
        body = " ".join([introduction or "You are an assistant that answers well.", *lines])
        body = [body] if isinstance(value, list) else body
    text = write_fields(system, {name: body})
    if mode == "thinking":
        return f"<think>\nThe examples differ in their words.\n</think>\n\n{text}"
    if mode == "cut":
        return text[: int(len(text) * source.uniform(0.4, 0.9))]
    if mode == "unmarked":
        return "\n".join(f"- {line}" for line in lines)
    if mode == "json":
        return "```json\n" + json.dumps({name: value}, ensure_ascii=False, indent=2) + "\n```"
    return text
