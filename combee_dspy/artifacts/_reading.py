"""Reading what a reflector and a curator answered. Their answers are hostile: nothing in them is trusted.

DSPy's adapters have made lists of mappings of them; what is in those may be anything.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, cast, get_args

from combee_dspy.artifacts._deltas import Delta, Op

__all__ = ["MOST_CHARACTERS", "read_deltas", "read_tags"]

MOST_CHARACTERS = 4_000
"""The longest content that one operation may bring. A bullet is a sentence or two, or a code snippet."""

_OPS: tuple[str, ...] = get_args(Op)
_TAGS = ("helpful", "harmful", "neutral")
_SURROGATES = re.compile(r"[\ud800-\udfff]")
_NOTED = 120


def read_deltas(answer: object, most: int) -> tuple[list[Delta], list[str]]:
    """Return the deltas in an answer, in its order, and what cannot be used and why, one sentence each.

    An operation names its kind ``op`` or ``type`` and its bullets ``ids``, ``id`` or ``bullet_id``, as ACE's
    curator does. A whole playbook in place of operations names none: no bullet is deleted for being left out.

    Args:
        answer: The value of the curator's output field; anything.
        most: The most deltas to use.
    """
    if not isinstance(answer, Sequence) or isinstance(answer, str):
        return [], [] if answer is None else [f"the answer is no list of operations: {str(answer)[:_NOTED]!r}"]
    ignored: list[str] = []
    found = [delta for row in answer if (delta := _delta(row, ignored)) is not None]
    # An answer has one voice, however often it says something.
    deltas = list(dict.fromkeys(found))
    if len(deltas) < len(found):
        ignored.append(f"{len(found) - len(deltas)} operations that repeat another one of the same answer")
    if len(deltas) > most:
        ignored.append(f"{len(deltas) - most} operations beyond the {most} that were asked for")
    return deltas[:most], ignored


def read_tags(answer: object, shown: Collection[str]) -> tuple[dict[str, str], list[str]]:
    """Return the tag of each bullet in an answer, and what was ignored, one sentence each.

    Args:
        answer: Bullet id to tag; anything else holds none.
        shown: Ids that the reflector was shown; tags of others are ignored.
    """
    if not isinstance(answer, Mapping):
        return {}, [f"the tags are no mapping: {str(answer)[:_NOTED]!r}"] if answer else []
    tags: dict[str, str] = {}
    ignored: list[str] = []
    for name, tag in answer.items():
        bullet, said = str(name).strip().strip("[]"), str(tag).strip().casefold()
        if bullet not in shown:
            ignored.append(f"a tag for {bullet[:_NOTED]!r}, which was not shown")
        elif said not in _TAGS:
            ignored.append(f"the tag {said[:_NOTED]!r} for {bullet}")
        else:
            tags[bullet] = said
    return tags, ignored


def _delta(row: object, ignored: list[str]) -> Delta | None:
    if not isinstance(row, Mapping):
        ignored.append(f"this is no operation: {str(row)[:_NOTED]!r}")
        return None
    op = str(row.get("op", row.get("type", row.get("operation", "")))).strip().upper()
    content, section = row.get("content", ""), row.get("section", "")
    ids = () if op == "ADD" else _ids(row)
    problem = ""
    if op not in _OPS:
        problem = f"there is no operation {op[:_NOTED]!r}"
    elif not isinstance(content, str) or not isinstance(section, str):
        problem = f"{op} with a content or a section that is no text"
    elif len(content) > MOST_CHARACTERS:
        problem = f"{op} with {len(content):,} characters, more than {MOST_CHARACTERS:,}"
    elif op != "DELETE" and not content.strip():
        problem = f"{op} without a content"
    elif op == "MERGE" and len(ids) < 2:
        problem = "MERGE must name two bullets or more"
    elif op in ("UPDATE", "DELETE") and len(ids) != 1:
        problem = f"{op} must name one bullet"
    if problem:
        ignored.append(f"{problem}: {str(dict(row))[:_NOTED]}")
        return None
    # A lone half of a surrogate pair cannot be written into a file or a request.
    content = _SURROGATES.sub("\ufffd", content)
    return Delta(cast("Op", op), ids, section.strip() if op == "ADD" else "", "" if op == "DELETE" else content.strip())


def _ids(row: Mapping[str, Any]) -> tuple[str, ...]:
    value = next((row[name] for name in ("ids", "id", "bullet_ids", "bullet_id") if row.get(name)), ())
    named = value if isinstance(value, (list, tuple)) else [value]
    return tuple(sorted({one.strip().strip("[]") for one in named if isinstance(one, str)}))
