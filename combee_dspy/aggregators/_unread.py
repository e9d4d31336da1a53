"""Which examples an answer passed over: it names none of what they teach. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from combee_dspy.aggregators._coverage import Coverage, text_lines
from combee_dspy.aggregators._retention import teaches
from combee_dspy.records import Lesson, Reflection
from combee_dspy.reflections import feedback_text, normalised

# A small model keeps all of what a call reads, or nothing. What lies between is not read again.
_MOST = 0.75
# Share of a feedback that a line of the text must hold to say the same.
_SAME = 0.5
_MOST_CHARS = 20_000


def find_passed_over(
    items: Sequence[Reflection],
    lessons: Sequence[str],
    find: Callable[[], Sequence[Lesson]],
    text: str,
) -> frozenset[int]:
    """Return the mistakes that an answer passed over, by index; none where it read a quarter of
    what its call could teach, or more.

    A mistake can teach where its feedback says something in words that the program's text does not
    say already. It did where a lesson has a word that tells its feedback from most others in the
    call: one that its inputs do not hold, since to repeat a question teaches nothing. Where any
    lesson has such a word, a mistake that is a lesson's source did, too. An answer with two lessons
    for each mistake did not stop reading.

    Args:
        items: What the call read, in parts where a record was too long.
        lessons: What it returned.
        find: Returns them with their sources. Costs more than all else here, so it is called where
            the words alone do not decide.
        text: The program's text.
    """
    feedback = {item.index: feedback_text(item)[:_MOST_CHARS] for item in items if not item.perfect}
    teaching = {index: comment for index, comment in feedback.items() if teaches(comment)}
    nothing: frozenset[int] = frozenset()
    if len(lessons) >= 2 * max(len(teaching), 1):
        return nothing
    words = {word for lesson in lessons for word in _words(lesson)}
    telling = _telling_words(teaching)
    for item in items:
        new = telling.get(item.index, set()) - _words(str(item.record.get("Inputs", "")))
        # Feedback quotes a wrong answer, and a good lesson does not.
        if new - _words(str(item.record.get("Generated Outputs", ""))):
            telling[item.index] = new
    named = {index for index, own in telling.items() if own & words}
    if len(teaching.keys() - named) <= _MOST * len(teaching):
        return nothing
    if named or (lessons and not any(telling.values())):
        named |= {source for lesson in find() for source in lesson.sources}
    left = {index: comment for index, comment in teaching.items() if index not in named}
    if len(left) <= _MOST * len(teaching):
        return nothing
    lines = text_lines(text)
    in_text, _ = Coverage([*left.values(), *lines]).best(list(left.values()), lines)
    passed_over = frozenset(
        index for index, share in zip(left, in_text.tolist(), strict=True) if share < _SAME
    )
    return passed_over if len(passed_over) > _MOST * len(teaching) else nothing


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
    return set(normalised(text).split())
