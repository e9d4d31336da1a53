"""Texts that leave a run: without keys, on one line, not too long."""

from __future__ import annotations

import dataclasses
import re
import sqlite3
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from pydantic import JsonValue

from combee_dspy.lms.redact import forms_of, mask, secret_variables

Row = dict[str, JsonValue]
"""What a journal says of one thing, as JSON values by column."""

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")


def cleaner() -> Callable[[str], str]:
    """Return what removes this process's keys, and whatever is shaped as a key, from a text."""
    return partial(mask, secrets=forms_of(secret_variables()))


def clean_values(value: Any, clean: Callable[[str], str]) -> Any:
    """Return a record, a row or JSON values as JSON values.

    Every text in them is cleaned, and loses its control characters.
    """
    if isinstance(value, str):
        return _CONTROL.sub("\ufffd", clean(value))
    if value is None or isinstance(value, (int, float)):  # most of a page, so the sooner the better
        return value
    if isinstance(value, sqlite3.Row):
        value = dict(value)
    elif dataclasses.is_dataclass(value):
        value = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {clean_values(key, clean): clean_values(item, clean) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [clean_values(item, clean) for item in value]
    return value


def clean_rows(rows: Iterable[object]) -> list[Row]:
    """Return records or rows of a SELECT as rows of JSON values, cleaned."""
    clean = cleaner()
    return [clean_values(row, clean) for row in rows]


def cut(text: str, limit: int) -> str:
    """Return a text of at most ``limit`` characters; one that was cut says so."""
    return text if len(text) <= limit else f"{text[: limit - 2]} …"


def one_line(text: str, limit: int) -> str:
    """Return a text on one line, for a terminal: whatever a language model wrote, it moves no
    cursor.
    """
    printable = "".join(letter if letter.isprintable() else " " for letter in text[: limit * 4])
    return cut(" ".join(printable.split()), limit)


def amount(number: float) -> str:
    """Return a count in at most five characters: ``950``, ``12.3k``, ``4.56M``."""
    if number < 1000:
        return f"{number:.0f}"
    for unit in "kM":
        number /= 1000
        if number < 999.5:  # 999.7 would be rounded to 1e+03
            return f"{number:.3g}{unit}"
    return f"{number / 1000:.3g}G"


def dollars(spent: float | None, unpriced: int) -> str:
    """Return dollars, and whether the price of some calls is not known."""
    if not unpriced:
        return f"${spent or 0:.4f}"
    return f"${spent:.4f} and {amount(unpriced)} calls without a price" if spent else "$ unknown"
