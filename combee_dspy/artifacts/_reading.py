"""Reading what a reflector and a curator answered. Their answers are hostile: nothing in them is trusted."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, cast, get_args

from combee_dspy.artifacts._book import Book
from combee_dspy.artifacts._deltas import Delta, Op
from combee_dspy.artifacts._text import read_text

__all__ = ["MOST_CHARACTERS", "ReadDeltas", "read_deltas", "read_tags"]

MOST_CHARACTERS = 4_000
"""The longest content that one operation may bring. A bullet is a sentence or two, or a code snippet."""

_OPS: tuple[str, ...] = get_args(Op)
_TAGS = ("helpful", "harmful", "neutral")
_FENCE = re.compile(r"```\w*\n(.*?)```", re.DOTALL)
_SURROGATES = re.compile(r"[\ud800-\udfff]")
_NOTED = 120


@dataclass(frozen=True, slots=True)
class ReadDeltas:
    """What can be used of a curator's answer.

    Attributes:
        deltas: In the answer's order.
        ignored: What cannot be used and why, one sentence each.
    """

    deltas: tuple[Delta, ...]
    ignored: tuple[str, ...] = ()


def read_deltas(answer: object, book: Book, most: int) -> ReadDeltas:
    """Return the deltas in an answer.

    Understood are a list of operations, one operation, a mapping that holds such a list, and JSON
    text of any of these, in a fenced block too. An operation names its kind ``op`` or ``type``
    and its bullets ``ids``, ``id`` or ``bullet_id``, as ACE's curator does. Of JSON that breaks
    off, the operations before the break are used. A whole playbook in place of operations counts
    as additions of what is new in it: no bullet is deleted for being left out, none is changed.

    Args:
        answer: The value of the curator's output field; anything.
        book: What the curator was shown.
        most: The most deltas to use.
    """
    ignored: list[str] = []
    deltas: list[Delta] = []
    for row in _rows(answer, book, ignored):
        delta = _delta(row, ignored)
        if delta is not None:
            deltas.append(delta)
    told = len(deltas)
    # An answer has one voice, however often it says something.
    deltas = list(dict.fromkeys(deltas))
    if len(deltas) < told:
        ignored.append(f"{told - len(deltas)} operations that repeat another one of the same answer")
    if len(deltas) > most:
        ignored.append(f"{len(deltas) - most} operations beyond the {most} that were asked for")
    return ReadDeltas(tuple(deltas[:most]), tuple(ignored))


def read_tags(answer: object, shown: Collection[str]) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return the tag of each bullet in an answer, and what was ignored.

    Args:
        answer: Id to tag, or a list of mappings with ``id`` and ``tag``; anything else holds none.
        shown: Ids that the reflector was shown; tags of others are ignored.
    """
    if isinstance(answer, Mapping):
        pairs = list(answer.items())
    elif isinstance(answer, (list, tuple)):
        pairs = [(row.get("id"), row.get("tag")) for row in answer if isinstance(row, Mapping)]
    else:
        return {}, (f"the tags are no mapping: {str(answer)[:_NOTED]!r}",) if answer else ()
    tags, ignored = {}, []
    for name, tag in pairs:
        bullet, said = str(name).strip().strip("[]"), str(tag).strip().casefold()
        if bullet not in shown:
            ignored.append(f"a tag for {bullet[:_NOTED]!r}, which was not shown")
        elif said not in _TAGS:
            ignored.append(f"the tag {said[:_NOTED]!r} for {bullet}")
        else:
            tags[bullet] = said
    return tags, tuple(ignored)


def _rows(answer: object, book: Book, ignored: list[str]) -> Iterable[object]:
    if isinstance(answer, str):
        return _rows_of_text(answer, book, ignored)
    if isinstance(answer, Mapping):
        for name in ("operations", "deltas"):
            if name in answer:
                return _rows(answer[name], book, ignored)
        if isinstance(answer.get("bullets"), (list, tuple)):
            return _as_additions(answer["bullets"], book, ignored)
        return [answer]
    if isinstance(answer, (list, tuple)):
        return answer
    if answer is not None:
        ignored.append(f"the answer is no list of operations: {str(answer)[:_NOTED]!r}")
    return ()


def _rows_of_text(text: str, book: Book, ignored: list[str]) -> Iterable[object]:
    fenced = _FENCE.search(text)
    inside = (fenced[1] if fenced else text).strip()
    if not inside:
        return ()
    try:
        value = json.loads(inside)
    except (ValueError, RecursionError):
        pass
    else:
        if isinstance(value, (dict, list)):
            return _rows(value, book, ignored)
        ignored.append(f"the answer is no list of operations: {inside[:_NOTED]!r}")
        return ()
    found = read_text(inside).book.bullets
    if found:
        return _as_additions([dataclasses.asdict(bullet) for bullet in found], book, ignored)
    rows = list(_salvaged(inside))
    ignored.append(f"the answer is broken JSON, {len(rows)} operations in it can be read: {inside[-_NOTED:]!r}")
    return rows


def _as_additions(rows: Iterable[object], book: Book, ignored: list[str]) -> Iterable[object]:
    known = {bullet.id: bullet.content for bullet in book.bullets}
    contents = set(known.values())
    found = [row for row in rows if isinstance(row, Mapping)]
    ignored.append(f"the answer is a whole playbook of {len(found)} bullets: what is new in it is added")
    fresh = []
    for row in found:
        if row.get("content") in contents:
            continue
        if row.get("id") in known:
            ignored.append(f"another wording of {row['id']}, which no operation asks for")
            continue
        fresh.append({"op": "ADD", "section": row.get("section", ""), "content": row.get("content")})
    return fresh


def _salvaged(text: str) -> Iterable[object]:
    """Yield the objects without objects inside that a broken text holds."""
    decoder = json.JSONDecoder()
    place = text.find("{")
    while place >= 0:
        try:
            value, end = decoder.raw_decode(text, place)
        except (ValueError, RecursionError):
            end = place + 1
        else:
            yield value
        place = text.find("{", end)


def _delta(row: object, ignored: list[str]) -> Delta | None:
    if not isinstance(row, Mapping):
        ignored.append(f"this is no operation: {str(row)[:_NOTED]!r}")
        return None
    op = str(row.get("op", row.get("type", row.get("operation", "")))).strip().upper()
    if op not in _OPS:
        ignored.append(f"there is no operation {op[:_NOTED]!r}: {str(dict(row))[:_NOTED]}")
        return None
    content, section = row.get("content", ""), row.get("section", "")
    if not isinstance(content, str) or not isinstance(section, str):
        ignored.append(f"{op} with a content or a section that is no text: {str(dict(row))[:_NOTED]}")
        return None
    if len(content) > MOST_CHARACTERS:
        ignored.append(f"{op} with {len(content):,} characters, more than {MOST_CHARACTERS:,}: {content[:_NOTED]!r}")
        return None
    if op != "DELETE" and not content.strip():
        ignored.append(f"{op} without a content: {str(dict(row))[:_NOTED]}")
        return None
    ids = () if op == "ADD" else _ids(row)
    wanted = {"ADD": "no bullet", "MERGE": "two bullets or more"}.get(op, "one bullet")
    if op != "ADD" and (len(ids) < 2 if op == "MERGE" else len(ids) != 1):
        ignored.append(f"{op} must name {wanted}: {str(dict(row))[:_NOTED]}")
        return None
    # A lone half of a surrogate pair cannot be written into a file or a request.
    content = _SURROGATES.sub("\ufffd", content)
    return Delta(cast("Op", op), ids, section.strip() if op == "ADD" else "", "" if op == "DELETE" else content.strip())


def _ids(row: Mapping[str, Any]) -> tuple[str, ...]:
    value = next((row[name] for name in ("ids", "id", "bullet_ids", "bullet_id") if row.get(name)), ())
    named = value if isinstance(value, (list, tuple)) else [value]
    return tuple(sorted({one.strip().strip("[]") for one in named if isinstance(one, str)}))
