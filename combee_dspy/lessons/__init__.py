"""The book of lessons: what a run has learned, with its evidence, and pure edits of it.

| module | what it is | it may touch |
| --- | --- | --- |
| ``_records`` | a lesson and its evidence | ``combee_dspy.records``, ``texts`` |
| ``_book`` | the lessons of a component, and which are served | ``_changes`` |
| ``_changes``, ``_uniting`` | what an edit does to them | ``combee_dspy.edits``, ``texts`` |
| ``_codec`` | a book as JSON | ``exceptions``, ``json_texts`` |
| ``_likeness`` | which lessons are about one thing | ``texts`` |
| ``_section`` | how a prompt shows lessons | nothing |

Everything here is pure. Whoever changes a book owns the new one.
"""

from combee_dspy.edits import (
    BookEdit,
    Contradict,
    Credit,
    LessonEffect,
    Narrow,
    Remove,
    Restore,
    Retire,
    Unite,
)
from combee_dspy.lessons._book import Book, Edited
from combee_dspy.lessons._codec import decode_book, encode_book
from combee_dspy.lessons._likeness import about_none, deal_alike, nearest, word_vectors
from combee_dspy.lessons._records import (
    BookLesson,
    Decision,
    State,
    Taught,
    certainty,
    lesson_id,
    taught,
)
from combee_dspy.lessons._section import (
    bullets,
    read_section,
    split_section,
    with_bullets,
    write_section,
)

__all__ = [
    "Book",
    "BookEdit",
    "BookLesson",
    "Contradict",
    "Credit",
    "Decision",
    "Edited",
    "LessonEffect",
    "Narrow",
    "Remove",
    "Restore",
    "Retire",
    "State",
    "Taught",
    "Unite",
    "about_none",
    "bullets",
    "certainty",
    "deal_alike",
    "decode_book",
    "encode_book",
    "lesson_id",
    "nearest",
    "read_section",
    "split_section",
    "taught",
    "with_bullets",
    "word_vectors",
    "write_section",
]
