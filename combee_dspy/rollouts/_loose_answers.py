"""Answers of an LM that writes no field it was asked for, yet a text or a list of texts."""

from __future__ import annotations

import json
import re
from contextlib import suppress

import dspy
from dspy.utils.exceptions import AdapterParseError

_FIELDS = ("new_instruction", "improved_instruction")
"""The output field of DSPy's proposer, and its name in earlier versions."""
# A fence begins a line, with a language at most: what is fenced within a line is a quotation.
_FENCED = re.compile(r"^[ \t]*(`{3,})[^\s`]*[ \t]*\n(.*)\1", re.MULTILINE | re.DOTALL)
_LIST = re.compile(r"\s*\[\s*[\"'{]")
_BULLET = re.compile(r"(?:[-*•–]|\d{1,3}[.)])\s+\S")
# A completion with one of these was cut, or is in a form of its own.
_MARKERS = re.compile(r"\[\[ ##|</?think", re.IGNORECASE)
_FEWEST_BULLETS = 2


def read_loosely(error: AdapterParseError) -> dspy.Prediction | None:
    """Return the answer to a question for one text or one list of texts.

    Scripted LMs in tests and models tuned for GEPA answer in the field of DSPy's proposer, or
    between the fences of gepa's own prompt, whatever they are asked. Others write a bare list, in
    JSON or with bullets. Any other text may be a refusal, and so may another field: neither is
    read.
    """
    outputs = list(error.signature.output_fields.items())
    if len(outputs) != 1 or outputs[0][1].annotation not in (str, list[str]):
        return None
    ((name, field),) = outputs
    completion = str(error.lm_response or "")
    text = _proposed(completion)
    if text is None and not _MARKERS.search(completion):
        text = _fenced(completion)
        if text is None and field.annotation is not str and _is_list(completion):
            text = completion
    value = text if text is None or field.annotation is str else _texts(text)
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
    """Return what stands between the first fence and the last."""
    match = _FENCED.search(completion)
    text = match[2].strip() if match else ""
    return text if text and not text.startswith("{") else None


def _is_list(completion: str) -> bool:
    """Return whether a text is a JSON list, or mostly bullets."""
    lines = [line for line in map(str.strip, completion.splitlines()) if line]
    bullets = sum(1 for line in lines if _BULLET.match(line))
    is_bulleted = bullets >= _FEWEST_BULLETS and 2 * bullets >= len(lines)
    return is_bulleted or _LIST.match(completion) is not None


def _texts(text: str) -> list[str] | None:
    """Return the texts of a JSON list; else the one text, which may hold a list of its own.

    ``None`` of other JSON, and of a list that was cut or is in another notation.
    """
    try:
        items = json.loads(text)
    except (ValueError, RecursionError):
        return None if _LIST.match(text) else [text]
    is_list = isinstance(items, list) and all(isinstance(item, str) for item in items)
    return items if is_list else None
