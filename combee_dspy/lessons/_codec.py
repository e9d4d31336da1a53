"""A book as JSON, to be kept in a file of its own and read back from anybody's."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import cache

from pydantic import TypeAdapter, ValidationError

from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.json_texts import sound
from combee_dspy.lessons._book import Book
from combee_dspy.lessons._records import BookLesson

_ID = re.compile(r"[\w.-]{1,64}", re.ASCII)
_REMEDY = "Give what encode_book returned: the lessons.json of a skill, for example."


@cache
def _adapter() -> TypeAdapter[tuple[BookLesson, ...]]:
    return TypeAdapter(tuple[BookLesson, ...])


def encode_book(book: Book) -> str:
    """Return a book as JSON that :func:`decode_book` reads back, evidence included."""
    lessons = [asdict(lesson) for lesson in book.lessons]
    return sound(json.dumps(lessons, indent=1, ensure_ascii=False)) + "\n"


def decode_book(text: str | bytes) -> Book:
    """Return the book that a JSON holds, of whatever origin.

    Raises:
        ArgumentValueError: It is no JSON, a value is missing or of another type, two lessons have
            one id, or an id has other characters than letters, digits, ``.``, ``_`` and ``-``.
    """
    try:
        lessons: Sequence[BookLesson] = _adapter().validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"])) or "data"
        raise ArgumentValueError(
            "book", text[:80], f"is no book: {place}: {first['msg']}", _REMEDY
        ) from None
    count = Counter(lesson.id for lesson in lessons)
    for lesson in lessons:
        for name in (lesson.id, lesson.rule or lesson.id):
            if not _ID.fullmatch(name) or count[name] > 1:
                raise ArgumentValueError("book", name[:80], "is no id of one lesson", _REMEDY)
    return Book(
        tuple(
            replace(lesson, wordings=tuple(dict.fromkeys((lesson.id, *lesson.wordings))))
            for lesson in lessons
        )
    )
