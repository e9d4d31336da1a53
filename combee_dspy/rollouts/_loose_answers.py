"""Answers of an LM that writes no field it was asked for, yet a text or a list of texts."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from typing import Any

import dspy
from dspy.utils.exceptions import AdapterParseError

_FIELDS = ("new_instruction", "improved_instruction")
"""The output field of DSPy's proposer, and its name in earlier versions."""
_FENCE = "```"
_BULLET = re.compile(r"(?:[-*•–]|\d{1,3}[.)])\s+\S")
# A completion with one of these was cut, or is in a form of its own.
_MARKERS = re.compile(r"\[\[ ##|</?think", re.IGNORECASE)
_FEWEST_BULLETS = 2


def read_loosely(error: AdapterParseError) -> dspy.Prediction | None:
    """Return the answer to a question for one text or one list of texts.

    Scripted LMs in tests and models tuned for GEPA answer in the field of DSPy's proposer, or
    between the fences of gepa's own prompt, whatever they are asked. Others write a bare list. Any
    other text may be a refusal, and so may another field: neither is read.
    """
    outputs = list(error.signature.output_fields.items())
    if len(outputs) != 1 or outputs[0][1].annotation not in (str, list[str]):
        return None
    ((name, field),) = outputs
    completion = str(error.lm_response or "")
    value: Any = _proposed(completion)
    if value is None:
        value = _fenced(completion)
    if field.annotation is not str:
        value = _bulleted(completion) if value is None else value
        value = _texts(value) if value is not None else None
    return None if value is None else dspy.Prediction(**{name: value})


def _proposed(completion: str) -> str | None:
    """Return what stands in a field of DSPy's proposer."""
    for field in _FIELDS:
        signature = dspy.Signature(f"question -> {field}: str")
        for adapter in (dspy.ChatAdapter(), dspy.JSONAdapter()):
            with suppress(AdapterParseError):
                return str(adapter.parse(signature, completion)[field])
    return None


def _fenced(completion: str) -> str | None:
    """Return what stands between the first fence and the last, without its language."""
    begin, end = completion.find(_FENCE), completion.rfind(_FENCE)
    if begin == end or _MARKERS.search(completion):
        return None
    first, _, rest = completion[begin + len(_FENCE) : end].partition("\n")
    text = (rest if re.fullmatch(r"\s*\w*\s*", first) else f"{first}\n{rest}").strip()
    return text if text and not text.startswith("{") else None


def _bulleted(completion: str) -> str | None:
    """Return a text that is mostly a list."""
    lines = [line for line in map(str.strip, completion.splitlines()) if line]
    bullets = sum(1 for line in lines if _BULLET.match(line))
    is_list = bullets >= _FEWEST_BULLETS and 2 * bullets >= len(lines)
    return completion if is_list and not _MARKERS.search(completion) else None


def _texts(text: str) -> list[str]:
    """Return the texts of a JSON list; else the one text, which may hold a list of its own."""
    with suppress(ValueError, RecursionError):
        items = json.loads(text)
        if isinstance(items, list) and all(isinstance(item, str) for item in items):
            return items
    return [text]
