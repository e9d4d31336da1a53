"""A small language for choosing rows: parsed, checked against the columns, and never evaluated as code.

    score < 0.5 and split = 'train'
    not cached and (error_class is not null or latency >= 10)
    candidate_id in ('0a1b', '2c3d') and feedback contains 'unit'

Comparisons: ``=`` or ``==``, ``!=`` or ``<>``, ``<``, ``<=``, ``>``, ``>=``,
``in``, ``contains``, ``is null``; each may stand after ``not``. A column of
truth values may stand alone. Values: numbers,
``'text'`` or ``"text"`` with the quote doubled inside, ``true``, ``false``. As
in SQL, a comparison with a missing value is neither true nor false.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from combee_dspy.exceptions import ArgumentValueError

__all__ = ["And", "Compare", "Condition", "Not", "Or", "Value", "expression_of", "parse_where"]

MAX_LENGTH = 10_000
"""Characters of a condition."""

MAX_DEPTH = 50
"""Parentheses and ``not`` within each other."""

Value = str | int | float | bool
Operator = Literal["=", "!=", "<", "<=", ">", ">=", "in", "contains", "null"]


@dataclass(frozen=True, slots=True)
class Compare:
    """A column against values.

    Attributes:
        column: The column's name.
        operator: How they are compared.
        values: One value; several for ``in``; none for ``null``.
    """

    column: str
    operator: Operator
    values: tuple[Value, ...] = ()


@dataclass(frozen=True, slots=True)
class Not:
    """The opposite of a condition."""

    part: Condition


@dataclass(frozen=True, slots=True)
class And:
    """All of several conditions."""

    parts: tuple[Condition, ...]


@dataclass(frozen=True, slots=True)
class Or:
    """At least one of several conditions."""

    parts: tuple[Condition, ...]


Condition = Compare | Not | And | Or

_TOKEN = re.compile(
    r"""\s*(?:(?P<number>[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)(?![\w.])
    |(?P<text>'(?:[^']|'')*'|"(?:[^"]|"")*")
    |(?P<name>[A-Za-z_]\w*)
    |(?P<sign><=|>=|!=|<>|==|=|<|>|\(|\)|,))""",
    re.VERBOSE | re.ASCII,
)
_SIGNS: Mapping[str, Operator] = {
    "=": "=",
    "==": "=",
    "!=": "!=",
    "<>": "!=",
    "<": "<",
    "<=": "<=",
    ">": ">",
    ">=": ">=",
}
_WORDS = frozenset({"and", "or", "not", "in", "is", "null", "contains", "true", "false"})
_EXAMPLE = "Write, for example, score < 0.5 and split = 'train'."


def parse_where(text: str) -> Condition:
    """Return the condition that a text describes.

    Raises:
        ArgumentValueError: The text is no condition; the message names the place.
    """
    if len(text) > MAX_LENGTH:
        raise ArgumentValueError("where", text, f"is longer than {MAX_LENGTH} characters", _EXAMPLE)
    parser = _Parser(text)
    found = parser.any_of(0)
    parser.end()
    return found


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str
    at: int


class _Parser:
    """Reads one text from left to right. Used once."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = self._split()
        self._next = 0

    def _split(self) -> list[_Token]:
        tokens: list[_Token] = []
        at = 0
        end = len(self._text.rstrip())
        while at < end:
            match = _TOKEN.match(self._text, at)
            if match is None:
                raise self._wrong(at, "cannot be read")
            kind = match.lastgroup or ""
            content = match[kind]
            if kind == "name" and content.lower() in _WORDS:
                kind, content = "word", content.lower()
            tokens.append(_Token(kind, content, match.start(match.lastgroup or 0)))
            at = match.end()
        return tokens

    def any_of(self, depth: int) -> Condition:
        return self._joined(depth, "or", self._all_of, Or)

    def _all_of(self, depth: int) -> Condition:
        return self._joined(depth, "and", self._one, And)

    def _joined(self, depth: int, word: str, part: Callable[[int], Condition], kind: type[And] | type[Or]) -> Condition:
        parts = [part(depth)]
        while self._take("word", word):
            parts.append(part(depth))
        return parts[0] if len(parts) == 1 else kind(tuple(parts))

    def _one(self, depth: int) -> Condition:
        if depth > MAX_DEPTH:
            raise self._wrong(self._at, f"is nested deeper than {MAX_DEPTH}")
        if self._take("word", "not"):
            return Not(self._one(depth + 1))
        if self._take("sign", "("):
            found = self.any_of(depth + 1)
            self._need("sign", ")")
            return found
        column = self._need("name").text
        negative = self._take("word", "not") is not None
        found = self._compared(column)
        return Not(found) if negative else found

    def _compared(self, column: str) -> Condition:
        if self._take("word", "is"):
            opposite = self._take("word", "not") is not None
            self._need("word", "null")
            found = Compare(column, "null")
            return Not(found) if opposite else found
        if self._take("word", "in"):
            self._need("sign", "(")
            values = [self._value()]
            while self._take("sign", ","):
                values.append(self._value())
            self._need("sign", ")")
            return Compare(column, "in", tuple(values))
        if self._take("word", "contains"):
            return Compare(column, "contains", (_unquoted(self._need("text").text),))
        token = self._peek()
        if token is None or token.text in ("and", "or", ")"):
            # A column on its own: it is one of yes and no.
            return Compare(column, "=", (True,))
        if token.kind != "sign" or token.text not in _SIGNS:
            raise self._wrong(self._at, "lacks a comparison here")
        self._next += 1
        return Compare(column, _SIGNS[token.text], (self._value(),))

    def _value(self) -> Value:
        token = self._peek()
        if token is None:
            raise self._wrong(self._at, "lacks a value here")
        self._next += 1
        if token.kind == "text":
            return _unquoted(token.text)
        if token.kind == "number":
            whole = token.text.lstrip("+-").isdigit() and len(token.text) < 19
            number = int(token.text) if whole else float(token.text)
            if math.isfinite(number):
                return number
        if token.kind == "word" and token.text in ("true", "false"):
            return token.text == "true"
        self._next -= 1
        raise self._wrong(self._at, "lacks a value here (text stands in quotes)")

    def end(self) -> None:
        if self._peek() is not None:
            raise self._wrong(self._at, "goes on where it should end")

    @property
    def _at(self) -> int:
        token = self._peek()
        return len(self._text) if token is None else token.at

    def _peek(self) -> _Token | None:
        return self._tokens[self._next] if self._next < len(self._tokens) else None

    def _take(self, kind: str, text: str) -> _Token | None:
        token = self._peek()
        if token is None or (token.kind, token.text) != (kind, text):
            return None
        self._next += 1
        return token

    def _need(self, kind: str, text: str = "") -> _Token:
        token = self._peek()
        if token is None or token.kind != kind or (text and token.text != text):
            raise self._wrong(self._at, f"lacks {text or _NEEDED[kind]} here")
        self._next += 1
        return token

    def _wrong(self, at: int, problem: str) -> ArgumentValueError:
        return ArgumentValueError("where", self._text, f"{problem}, at character {at + 1}", _EXAMPLE)


_NEEDED = {"name": "a column's name", "text": "a text in quotes"}


def _unquoted(text: str) -> str:
    quote = text[0]
    return text[1:-1].replace(quote * 2, quote)


def expression_of(condition: Condition, schema: Any) -> Any:
    """Return a condition as a pyarrow expression over a table of this schema.

    Args:
        condition: The condition.
        schema: A ``pyarrow.Schema``.

    Raises:
        ArgumentValueError: A column does not exist, or is compared with a value of another type.
    """
    import operator
    from functools import reduce

    if isinstance(condition, Not):
        return ~expression_of(condition.part, schema)
    if isinstance(condition, (And, Or)):
        join = operator.and_ if isinstance(condition, And) else operator.or_
        return reduce(join, [expression_of(part, schema) for part in condition.parts])
    return _comparison(condition, schema)


def _comparison(compare: Compare, schema: Any) -> Any:
    import operator

    import pyarrow as pa
    from pyarrow import compute

    if compare.column not in schema.names:
        remedy = f"Columns: {', '.join(schema.names)}."
        raise ArgumentValueError("where", compare.column, "names no column", remedy)
    column, kind = compute.field(compare.column), schema.field(compare.column).type
    for value in compare.values:
        _check(compare, value, kind)
    if compare.operator == "null":
        return column.is_null()
    if compare.operator == "in":
        # A set of mixed numbers has no type of its own.
        values = [float(value) for value in compare.values] if pa.types.is_floating(kind) else list(compare.values)
        found = column.isin(pa.array(values, type=None if _mixed(values) else kind))
        return compute.if_else(column.is_valid(), found, pa.scalar(None, pa.bool_()))
    if compare.operator == "contains":
        return compute.match_substring(column, compare.values[0])
    functions = {
        "=": operator.eq,
        "!=": operator.ne,
        "<": operator.lt,
        "<=": operator.le,
        ">": operator.gt,
        ">=": operator.ge,
    }
    return functions[compare.operator](column, compute.scalar(compare.values[0]))


def _mixed(values: list[Any]) -> bool:
    return any(isinstance(value, float) for value in values)


def _check(compare: Compare, value: Value, kind: Any) -> None:
    import pyarrow as pa

    if pa.types.is_boolean(kind):
        fits, wanted = isinstance(value, bool), "true or false"
    elif pa.types.is_integer(kind) or pa.types.is_floating(kind):
        fits, wanted = isinstance(value, (int, float)) and not isinstance(value, bool), "a number"
    elif pa.types.is_string(kind) or pa.types.is_large_string(kind):
        fits, wanted = isinstance(value, str), "a text in quotes"
    else:
        fits, wanted = False, "nothing: it holds nested values"
    if compare.operator == "contains" and wanted != "a text in quotes":
        raise ArgumentValueError("where", compare.column, "holds no text to look into", "Use contains on texts.")
    if not fits:
        raise ArgumentValueError("where", value, f"cannot be compared with {compare.column}", f"Give {wanted}.")
