"""Which examples an answer passed over: it names little of what they teach. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Container, Mapping, Sequence

from combee_dspy.aggregators._coverage import Coverage, text_lines
from combee_dspy.aggregators._retention import own_words, teaches
from combee_dspy.records import Lesson, Reflection
from combee_dspy.reflections import feedback_text, normalised, texts_in

# A small model keeps all of what a call reads, or nothing. What lies between is not read again.
_MOST = 0.75
# Share, or number, of a feedback's telling words in a lesson that took it in. A reader that repeats
# the program's text now and then hits a single one.
_PART, _ENOUGH = 0.4, 3
# Share of a feedback that a line of the text must hold to say the same.
_SAME = 0.5
_DIGIT = re.compile(r"\d")
_MOST_CHARS = 20_000


def find_passed_over(
    items: Sequence[Reflection], texts: int, lessons: Sequence[Lesson], text: str
) -> frozenset[int]:
    """Return the mistakes that an answer passed over, by index; none where it read a quarter of
    what its call could teach, or more.

    A mistake can teach where its feedback says something in words that the program's text does not
    say already. It did where one lesson has two in five, or three, of the words that tell its
    feedback from most others in the call. Words of its inputs count for nothing, since to repeat a
    question teaches nothing. Where it did, a mistake that is a lesson's source did, too. A lesson
    that names no case counts for nothing. An answer with two texts for each mistake did not stop
    reading.

    Args:
        items: What the call read, in parts where a record was too long.
        texts: How many texts it returned.
        lessons: The lessons in these, with their sources.
        text: The program's text.
    """
    feedback: dict[int, str] = {}
    for item in items:
        if not item.perfect:
            parts = (feedback.get(item.index, ""), feedback_text(item)[:_MOST_CHARS])
            feedback[item.index] = max(parts, key=len)
    teaching = {index: comment for index, comment in feedback.items() if teaches(comment)}
    nothing: frozenset[int] = frozenset()
    if texts >= 2 * max(len(teaching), 1):
        return nothing
    inputs = [_words(" ".join(texts_in(item.record.get("Inputs")))) for item in items]
    lessons = _with_cases(lessons, set().union(*inputs), text)
    written = [_words(lesson.text) for lesson in lessons]
    telling = _telling_words(teaching)
    for item, own_inputs in zip(items, inputs, strict=True):
        new = telling.get(item.index, set()) - own_inputs
        # Feedback quotes a wrong answer, and a good lesson does not.
        if new - _words(str(item.record.get("Generated Outputs", ""))):
            telling[item.index] = new
    named = {
        index
        for index, own in telling.items()
        if own and any(len(own & words) >= min(_ENOUGH, _PART * len(own)) for words in written)
    }
    if named or (lessons and not any(telling.values())):
        named |= {source for lesson in lessons for source in lesson.sources}
    left = {index: comment for index, comment in teaching.items() if index not in named}
    if len(left) <= _MOST * len(teaching):
        return nothing
    lines = text_lines(text)
    in_text, _ = Coverage([*left.values(), *lines]).best(list(left.values()), lines)
    passed_over = frozenset(
        index for index, share in zip(left, in_text.tolist(), strict=True) if share < _SAME
    )
    return passed_over if len(passed_over) > _MOST * len(teaching) else nothing


def _with_cases(lessons: Sequence[Lesson], inputs: Container[str], text: str) -> list[Lesson]:
    """Return the lessons but those like "The code is T2": an answer without its case.

    All that is new in it, beside the program's text, are numbers or codes that no input of an
    example has.
    """
    own = _words(text)
    new = [own_words(lesson.text) - own for lesson in lessons]
    return [
        lesson
        for lesson, words in zip(lessons, new, strict=True)
        if not words or any(word in inputs or not _DIGIT.search(word) for word in words)
    ]


def _telling_words(feedback: Mapping[int, str]) -> dict[int, set[str]]:
    """Return the words of each feedback that at most half of all feedbacks hold.

    A number is none: it is the answer to a single example, which a good lesson leaves out.
    """
    words = {index: _words(comment) for index, comment in feedback.items()}
    holders = Counter(word for own in words.values() for word in own)
    return {
        index: {
            word
            for word in own
            if len(word) > 1 and not word.isdecimal() and 2 * holders[word] <= len(words)
        }
        for index, own in words.items()
    }


def _words(text: str) -> set[str]:
    return {word for word in normalised(text).split() if any(map(str.isalnum, word))}
