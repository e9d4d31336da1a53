"""What is read again after a call passed over it, and how: less of it, or less beside it. Pure."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, replace

import dspy

from combee_dspy.aggregators._retention import own_words
from combee_dspy.records import FailedCall, Lesson, Reflection
from combee_dspy.reflections import feedback_text, normalised

# Words of a feedback, beyond a verdict and what was answered, from which on it says a rule.
_RULE = 6

_Part = tuple[int, int]
"""An example, and a part of it: what tells it from others in an update."""


@dataclass(frozen=True, slots=True)
class Read:
    """What one call read, and what came of it.

    Attributes:
        items: What it read.
        answer: What the reader answered.
        lessons: What the answer holds, each with the reflections that teach it.
        missed: Mistakes that the answer passed over, by index.
    """

    items: list[Reflection]
    answer: dspy.Prediction | FailedCall
    lessons: list[Lesson]
    missed: frozenset[int]

    @property
    def mistakes(self) -> list[Reflection]:
        """The items that are no right answers."""
        return [item for item in self.items if not item.perfect]

    @property
    def covered(self) -> set[_Part]:
        """What the call has read; nothing where it failed."""
        if isinstance(self.answer, FailedCall):
            return set()
        return {_part(item) for item in self.items if item.index not in self.missed}

    def has_news(self, covered: Container[_Part]) -> bool:
        """Return whether the answer read some mistake, or no other call has read all of them."""
        return any(item.index not in self.missed for item in self.mistakes) or bool(
            self.unread(covered)
        )

    def unread(self, covered: Container[_Part]) -> list[Reflection]:
        """Return the mistakes that no call has read."""
        return [item for item in self.mistakes if _part(item) not in covered]


def shorten_calls(passed_over: Sequence[Read], covered: Container[_Part]) -> list[list[Reflection]]:
    """Return calls for mistakes that no call has read, none of which was made before.

    A small model may repeat the inputs and the program's text. So after an answer that said
    something else, feedback that says a rule stands alone. All else is read by calls half as long:
    such models keep all of what a call reads, or nothing.
    """
    alone: dict[_Part, Reflection] = {}
    whole: dict[_Part, Reflection] = {}
    most_alone = most_whole = 0
    for read in passed_over:
        # An empty answer repeated nothing.
        is_echo = bool(read.lessons) and not shows_feedback_alone(read.items)
        for item in read.unread(covered):
            # The parts of a record share its feedback.
            if is_echo and not item.part and _says_rule(item):
                most_alone = max(most_alone, len(read.items))
                alone[_part(item)] = _without_example(item)
            elif len(read.items) > 1:
                most_whole = max(most_whole, len(read.items) // 2)
                whole[_part(item)] = item
    rest = [item for part, item in whole.items() if part not in alone]
    calls = [*_cut(list(alone.values()), most_alone), *_cut(rest, most_whole)]
    # The last call may be as short as one before: the same request has the same answer.
    before = {tuple(map(id, read.items)) for read in passed_over}
    return [call for call in calls if tuple(map(id, call)) not in before]


def shows_feedback_alone(items: Iterable[Reflection]) -> bool:
    """Return whether all that items show is feedback."""
    return all(_is_feedback(key) for item in items for key in item.record)


def _cut(items: list[Reflection], most: int) -> list[list[Reflection]]:
    return [items[start : start + most] for start in range(0, len(items), most or 1)]


def _says_rule(item: Reflection) -> bool:
    """Return whether feedback can be read without its example: it says more than a right answer.

    Signs of Chinese and Japanese count for nothing, since each is a word.
    """
    answered = normalised(str(item.record.get("Generated Outputs", ""))).split()
    words = own_words(feedback_text(item)).difference(answered)
    return sum(len(word) > 1 for word in words) >= _RULE


def _without_example(item: Reflection) -> Reflection:
    record = {key: value for key, value in item.record.items() if _is_feedback(key)}
    return replace(item, record=record)


def _is_feedback(key: str) -> bool:
    return "feedback" in str(key).casefold()


def _part(item: Reflection) -> _Part:
    return item.index, item.part
