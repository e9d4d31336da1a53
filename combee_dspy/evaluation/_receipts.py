"""What reading the held-out set leaves behind: receipts."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from datetime import datetime
from typing import Any

from combee_dspy.evaluation._bootstrap import PairedDifference
from combee_dspy.exceptions import ReceiptError
from combee_dspy.hashing import canonical_json

__all__ = ["Receipt", "strict_json"]

_HEX = frozenset("0123456789abcdef")


@dataclass(frozen=True, slots=True)
class Receipt:
    """One reading of a held-out set.

    Attributes:
        split: SHA-256 of the set's content: rows and which of their fields are inputs, in any order.
        digest: SHA-256 of its row hashes in the order of the scores.
        train: SHA-256 of the content of the training set of the run.
        programs: Content hashes of the program before and after.
        scorer: What scored: the metric's id.
        seeds: Seeds by what they are of, for example ``run`` and ``interval``.
        models: Model name by role.
        before: The first program's score per row.
        after: The second's, in the same order.
        interval: Bootstrap interval of the paired difference of means.
        confidence: Its level.
        margin: The difference that the split could tell before it was read.
        looks: Earlier readings of the same content that the book knows of, begun ones
            included; ``None`` where no book was kept, so that nobody knows.
        time: When, ISO 8601 with offset.
        run: The run's name.
        warnings: What makes the figures weaker than they look, in sentences.
    """

    split: str
    digest: str
    train: str
    programs: tuple[str, str]
    scorer: str
    seeds: Mapping[str, int]
    models: Mapping[str, str]
    before: tuple[float, ...]
    after: tuple[float, ...]
    interval: tuple[float, float]
    confidence: float
    margin: float
    looks: int | None
    time: str
    run: str = ""
    warnings: tuple[str, ...] = field(default=())

    def difference(self) -> PairedDifference:
        """Return means and interval as a paired difference."""
        size = len(self.before)
        means = (math.fsum(self.before) / size, math.fsum(self.after) / size)
        return PairedDifference(*means, *self.interval, self.confidence, size)

    def discordance(self, span: float = 1.0) -> float | None:
        """Return the mean squared change of a row's score over ``span`` squared, at most 1.

        For scores of 0 and 1 it is the share of rows that changed. ``None``
        where both programs are one: that measures nothing.
        """
        if self.programs[0] == self.programs[1]:
            return None
        squares = math.fsum((a - b) ** 2 for b, a in zip(self.before, self.after, strict=True))
        return min(1.0, squares / len(self.before) / span**2)

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON data."""
        plain: dict[str, Any] = json.loads(canonical_json(asdict(self)))
        return plain

    def to_json(self) -> str:
        """Return one line of canonical JSON that :meth:`from_json` reads back."""
        return canonical_json(self.to_dict())

    @classmethod
    def from_json(cls, text: str) -> Receipt:
        """Read what :meth:`to_json` wrote, and nothing else.

        Raises:
            ReceiptError: A field is missing, unknown, given twice or of another type; a figure is
                not finite; the scores do not pair.
        """
        return cls.from_dict(strict_json(text, "receipt"))

    @classmethod
    def from_dict(cls, data: object) -> Receipt:
        """Read what :meth:`to_dict` wrote, and nothing else.

        Raises:
            ReceiptError: As for :meth:`from_json`.
        """
        names = [item.name for item in fields(cls)]
        if not isinstance(data, dict) or set(data) != set(names):
            found = sorted(data) if isinstance(data, dict) else type(data).__name__
            raise ReceiptError("receipt", f"its fields are {found}, not {sorted(names)}")
        return cls(**{name: _READERS[name](name, data[name]) for name in names})._checked()

    def _checked(self) -> Receipt:
        _require(len(self.before) == len(self.after) > 0, "its scores do not pair")
        _require(self.interval[0] <= self.interval[1], "its interval is upside down")
        _require(0 < self.confidence < 1, "its confidence is not between 0 and 1")
        _require(self.margin >= 0, "its margin is negative")
        return self


def strict_json(text: str, source: str) -> Any:
    """Parse JSON, refusing what JSON does not define: names given twice, NaN, infinities.

    Raises:
        ReceiptError: It is no such JSON.
    """

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            raise ValueError("a name is given twice")
        return found

    def constant(name: str) -> Any:
        raise ValueError(f"{name} is no JSON")

    try:
        return json.loads(text, object_pairs_hook=unique, parse_constant=constant)
    except (ValueError, RecursionError) as error:
        raise ReceiptError(source, f"it is no JSON: {error}") from error


def _require(holds: bool, reason: str) -> None:
    if not holds:
        raise ReceiptError("receipt", reason)


def _text(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise ReceiptError("receipt", f"{name} is no text")
    return value


def _hash(name: str, value: object) -> str:
    text = _text(name, value)
    _require(bool(text) and set(text) <= _HEX, f"{name} is no hash")
    return text


def _number(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise ReceiptError("receipt", f"{name} is no finite number")
    return float(value)


def _whole(name: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ReceiptError("receipt", f"{name} is no whole number of at least 0")
    return value


def _list(name: str, value: object) -> list[Any]:
    if not isinstance(value, list):
        raise ReceiptError("receipt", f"{name} is no list")
    return value


def _mapping(name: str, value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ReceiptError("receipt", f"{name} is no mapping")
    return value


def _numbers(name: str, value: object) -> tuple[float, ...]:
    return tuple(_number(name, item) for item in _list(name, value))


def _pair(name: str, value: object) -> tuple[Any, Any]:
    found = _list(name, value)
    _require(len(found) == 2, f"{name} is no pair")
    return found[0], found[1]


def _interval(name: str, value: object) -> tuple[float, float]:
    low, high = _pair(name, value)
    return _number(name, low), _number(name, high)


def _programs(name: str, value: object) -> tuple[str, str]:
    before, after = _pair(name, value)
    return _hash(name, before), _hash(name, after)


def _time(name: str, value: object) -> str:
    text = _text(name, value)
    try:
        stamp = datetime.fromisoformat(text)
    except ValueError as error:
        raise ReceiptError("receipt", f"{name} is no ISO 8601 time") from error
    _require(stamp.tzinfo is not None, f"{name} has no offset")
    return text


_READERS: dict[str, Any] = {
    "split": _hash,
    "digest": _hash,
    "train": _hash,
    "programs": _programs,
    "scorer": _text,
    "seeds": lambda name, value: {key: _whole(name, item) for key, item in _mapping(name, value).items()},
    "models": lambda name, value: {key: _text(name, item) for key, item in _mapping(name, value).items()},
    "before": _numbers,
    "after": _numbers,
    "interval": _interval,
    "confidence": _number,
    "margin": _number,
    "looks": lambda name, value: None if value is None else _whole(name, value),
    "time": _time,
    "run": _text,
    "warnings": lambda name, value: tuple(_text(name, item) for item in _list(name, value)),
}
