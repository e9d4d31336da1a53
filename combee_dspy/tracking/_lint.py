"""Lines of a learned prompt that a person should look at before anybody runs it. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from combee_dspy.guards import CopyIndex
from combee_dspy.lms.redact import MASK, mask, personal
from combee_dspy.records import is_hidden
from combee_dspy.tracking._learned import lines_of
from combee_dspy.tracking._text import cut

# Bounded repetitions alone: the lines are hostile, and may be megabytes long.
_GAP = r"[^.\n]{0,60}?"
_SAID = r"(?:instruction|prompt|rule|guideline|message|direction|polic(?:y|ies))"
_SHAPES: Mapping[str, re.Pattern[str]] = {
    reason: re.compile(pattern, re.IGNORECASE)
    for reason, pattern in {
        "a link, or an address to send to": (
            r"\b(?:https?|ftp|wss?|file|data|javascript):[/\w]|\bwww\.\w|!\[[^\]\n]{0,80}\]\("
        ),
        "it sets other instructions aside": (
            rf"\b(?:ignore|disregard|forget|override|overrule|replace|supersede)s?\b{_GAP}"
            rf"\b(?:previous|above|prior|earlier|other|all|any|every|your|these|the)\b{_GAP}{_SAID}"
        ),
        "it asks for the prompt": (
            rf"\b(?:reveal|repeat|print|output|show|leak|quote|recite|include|send|copy)\b{_GAP}"
            rf"\b(?:system|this|your|full|whole|entire|these|hidden|above)\b{_GAP}{_SAID}"
        ),
        "it changes who the model is": (
            r"\byou are (?:now|no longer)\b|\bact as\b|\bpretend (?:to be|that)\b|\bdeveloper"
            r" mode\b"
        ),
        "it sets a check aside": (
            r"\b(?:disable|bypass|skip|turn off|switch off|circumvent|(?:do not|don't)"
            r" (?:run|use|apply))\b"
            rf"{_GAP}\b(?:guard|check|filter|safety|safeguard|validation|verification|moderation|restriction)"
        ),
        "marks of a chat or of a field": (
            r"<\|\w{1,40}\|>|\[/?INST\]|\[\[ ## |</?(?:system|assistant|user|data-[0-9a-f]{16})\b"
        ),
        "HTML that does something": (
            r"<(?:script|iframe|img|svg|object|embed|link|form|meta)\b|\bon(?:error|load|click)\s?="
        ),
        "a command, or a tool": (
            r"\b(?:rm -[rf]|(?:curl|wget|sudo) |powershell|bash"
            r" -c|os\.system|subprocess|__import__|import os\b)"
            r"|\b(?:eval|exec)\(|\btool_calls?\b"
            r"|\b(?:call|use|invoke|run) (?:the |a )?[`\"']?\w{1,40}[`\"']? (?:tool|function)\b"
        ),
        "a block of encoded data": (
            r"(?<![\w+/=-])(?=[A-Za-z0-9+/_-]{0,47}\d)[A-Za-z0-9+/_-]{48,}={0,2}|(?:\\x[0-9a-f]{2}){8}"
        ),
    }.items()
}
_PERSONAL = personal({})
_QUOTE = 200
_LONGEST = 20_000
"""Characters of a line: no lesson has so many, and the patterns take 3 µs for each where it was
made for that.
"""


def suspicious(
    texts: Mapping[str, str], before: Mapping[str, str], examples: Iterable[Any] = ()
) -> list[dict[str, Any]]:
    """Return what a reviewer should look at in learned texts: part, number of the line, reason, and
    the line.

    It finds what has a known look, so an empty list is no proof: an attack in plain words of the
    task passes. Lines that were given stay unmentioned. What cannot be seen (control, invisible and
    bidirectional characters) is written as ``<U+202E>``.

    Args:
        texts: The learned texts by part.
        before: The texts that learning began with.
        examples: What no line may hold a stretch of: training rows, as mappings or examples.
    """
    index = CopyIndex(examples)
    old_lines = {(part, line) for part, text in before.items() for line in lines_of(part, text)}
    return [
        {"part": part, "line": number, "reason": reason, "text": cut(_visible(line), _QUOTE)}
        for part, text in texts.items()
        for number, line in enumerate(lines_of(part, text), start=1)
        if line.strip() and (part, line) not in old_lines
        # A demonstration is a training row, and says so.
        for reason in _reasons(line, _no_copy if is_hidden(part) else index.copied)
    ]


def _reasons(line: str, copied: Callable[[str], str]) -> Iterator[str]:
    if len(line) > _LONGEST:
        yield f"longer than {_LONGEST:,} characters: the rest of it was not looked at"
        line = line[:_LONGEST]
    if any(not letter.isprintable() and letter != "\t" for letter in line):
        yield "characters that cannot be seen"
    yield from (reason for reason, pattern in _SHAPES.items() if pattern.search(line))
    if MASK in line or mask(line) != line:
        yield "a key stands or stood there"
    if _PERSONAL(line) != line:
        yield "personal data"
    if stretch := copied(line):
        yield f"copied from a training row: {cut(stretch, 80)}"


def _no_copy(line: str) -> str:
    return ""


def _visible(line: str) -> str:
    return "".join(
        letter if letter.isprintable() or letter == "\t" else f"<U+{ord(letter):04X}>"
        for letter in line[: 2 * _QUOTE]
    )
