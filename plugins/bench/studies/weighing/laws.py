"""What readers, proposers, writers and judges do, on meanings. A call has one stream of draws."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

from studies.weighing.prompts import ReadRecord
from studies.weighing.tasks import Laws
from studies.weighing.words import (
    CHANNELS,
    EMPTY_LINES,
    Case,
    Meaning,
    harmful,
    meanings,
    read_line,
    rule,
    sentences,
    word,
)

Line = tuple[str, Meaning | None]
"""A line of a prompt or list, and what it says if anything."""


@dataclass(frozen=True, slots=True)
class TaughtLine:
    """A lesson of a reading call, with the numbers of the examples that teach it."""

    text: str
    meaning: Meaning | None
    examples: tuple[int, ...]

    def cited(self) -> str:
        """Return the lesson as a reader that cites writes it."""
        return _cited(self.examples, self.text)


_MARKS = ("{number}. {text}", "- {text}", "Rule {number}: {text}", "**Lesson {number}** – {text}")


def write_lessons(
    lessons: Sequence[TaughtLine], laws: Laws, stream: random.Random, *, cites: bool
) -> list[str]:
    """Return lessons as a reader writes them, with the examples of each where it cites any."""
    if laws.paragraph and lessons:
        examples = sorted({number for lesson in lessons for number in lesson.examples})
        text = " ".join(lesson.text for lesson in lessons)
        texts = [_cited(examples, text) if cites else text]
    else:
        texts = [lesson.cited() if cites else lesson.text for lesson in lessons]
    if not laws.marks:
        return texts
    mark = stream.choice(_MARKS)
    return [mark.format(number=number, text=text) for number, text in enumerate(texts, start=1)]


def _cited(examples: Sequence[int], text: str) -> str:
    return f"[{', '.join(map(str, examples))}] {text}" if examples else text


def learn(
    records: Sequence[ReadRecord],
    known: Sequence[Meaning],
    laws: Laws,
    stream: random.Random,
    *,
    proposes: bool = False,
) -> list[TaughtLine]:
    """Read records beside an instruction that says what is ``known``, and write lessons.

    Failing records that name the same code for a category teach one lesson: a rule of the category
    or, where they contradict the instruction or the other records of the call, an exception on a
    condition that they share. An order in a record may be written down as it is. ``proposes``: the
    call writes the instruction itself, and may take one contradicted line of it for wrong.
    """
    attended = list(records)
    if len(attended) > laws.span:
        attended = [
            attended[place] for place in sorted(stream.sample(range(len(attended)), laws.span))
        ]
    miss = laws.miss_proposing if proposes else laws.miss
    replaces = laws.replace if proposes else laws.reader_replaces
    groups: dict[tuple[str, str], list[ReadRecord]] = {}
    for record in attended:
        if record.failed and stream.random() >= miss:
            groups.setdefault((record.case.category, record.code), []).append(record)
    lessons = []
    for (category, code), group in groups.items():
        condition = _condition(category, code, group, attended, known, replaces, stream)
        meaning = rule(category, code, condition)
        lessons.append((meaning, tuple(sorted(record.number for record in group))))
    if stream.random() < laws.bad:
        lessons.append((harmful(stream.choice(CHANNELS)), (stream.choice(attended).number,)))
    numbers = [record.number for record in records]
    if laws.repeats and not proposes:
        for meaning in known:
            own = [record.number for record in attended if meaning.covers(record.case)] or numbers
            lessons.append((meaning, (stream.choice(own),)))
    written = [
        TaughtLine(
            word(meaning, stream, laws.language),
            meaning,
            _citation(examples, numbers, laws, stream),
        )
        for meaning, examples in lessons
    ]
    if stream.random() < laws.empty:
        written.append(TaughtLine(stream.choice(EMPTY_LINES), None, (stream.choice(numbers),)))
    orders = (record for record in attended if record.order and stream.random() < laws.obeys)
    written += [
        TaughtLine(record.order, read_line(record.order), (record.number,)) for record in orders
    ]
    return written


def _condition(
    category: str,
    code: str,
    group: Sequence[ReadRecord],
    attended: Sequence[ReadRecord],
    known: Sequence[Meaning],
    replace: float,
    stream: random.Random,
) -> str:
    """Return the condition of a lesson, "" for a rule of the whole category."""
    contradicted = [
        one
        for one in known
        if one.category == category
        and one.code != code
        and any(one.covers(record.case) for record in group)
    ]
    if len(group) == 1 and contradicted and stream.random() < replace:
        return stream.choice(contradicted).condition
    votes = Counter(record.code for record in attended if record.case.category == category)
    most = max(votes.values())
    rule_of_call = stream.choice(sorted(other for other, count in votes.items() if count == most))
    if not contradicted and code == rule_of_call:
        return ""
    rivals = {
        name
        for record in attended
        if record.case.category == category and record.code != code
        for name in record.case.attributes
    }
    shared = set.intersection(*(set(record.case.attributes) for record in group))
    return stream.choice(sorted(shared - rivals or shared)) if shared else ""


def _citation(
    examples: Sequence[int], numbers: Sequence[int], laws: Laws, stream: random.Random
) -> tuple[int, ...]:
    if laws.cites != "own":
        return tuple(numbers) if laws.cites == "all" else ()
    return tuple(
        stream.choice(numbers) if stream.random() < laws.wrong_citation else number
        for number in examples
    )


def edit(
    lines: Sequence[Line], lessons: Sequence[Line], laws: Laws, stream: random.Random
) -> list[str]:
    """Write an instruction anew: lines that it keeps, with the lessons worked in.

    A lesson takes the place of a line on the same case that has another code, and repeats none.
    """
    lines_left = [line for line in lines if stream.random() < laws.keep]
    for text, meaning in lessons:
        if meaning is None:
            if text not in {line for line, _ in lines_left}:
                lines_left.append((text, None))
            continue
        on_case = [
            place
            for place, (_, other) in enumerate(lines_left)
            if other is not None and other.case == meaning.case
        ]
        if not on_case:
            lines_left.append((text, meaning))
        elif all(lines_left[place][1] != meaning for place in on_case):
            lines_left[on_case[0]] = (text, meaning)
            lines_left = [line for place, line in enumerate(lines_left) if place not in on_case[1:]]
    return [text for text, _ in lines_left]


def merge(lists: Sequence[Sequence[str]], laws: Laws, stream: random.Random) -> list[Line]:
    """Merge lists of lessons.

    What says the same becomes one, some contradictions are decided, a little is lost.
    """
    lines = [line for lessons in lists for line in meanings(lessons)]
    count = Counter(meaning for _, meaning in lines if meaning is not None)
    first = {meaning: text for text, meaning in reversed(lines) if meaning is not None}
    dropped: set[Meaning] = set()
    cases: dict[tuple[str, str, str], list[Meaning]] = {}
    for meaning in first:
        cases.setdefault(meaning.case, []).append(meaning)
    for sides in cases.values():
        if len(sides) > 1 and stream.random() < laws.votes:
            most = max(count[side] for side in sides)
            best = stream.choice(sorted(side for side in sides if count[side] == most))
            dropped.update(side for side in sides if side != best)
    ordered = sorted(first, key=lambda meaning: (-count[meaning], meaning))
    merged: list[Line] = [
        (first[meaning], meaning)
        for meaning in ordered
        if meaning not in dropped and stream.random() >= laws.loss
    ]
    empty = dict.fromkeys(text for text, meaning in lines if meaning is None)
    return [*merged, *((text, None) for text in empty)]


def answer(case: Case, instruction: Sequence[Meaning], stream: random.Random) -> str | None:
    """Answer a row by the most specific line that is about it; ``None`` where there is none.

    A harmful line is always followed. Of lines that contradict each other one code is drawn,
    however many say it.
    """
    about = [meaning for meaning in instruction if meaning.covers(case)]
    if not about:
        return None
    imposed = [meaning for meaning in about if meaning.channel]
    narrow = [meaning for meaning in about if meaning.condition]
    return stream.choice(sorted({meaning.code for meaning in imposed or narrow or about}))


@dataclass(slots=True)
class RelatedLines:
    """What a judge answers about numbered lessons."""

    same: list[list[int]]
    contradictory: list[list[int]]
    narrower: list[list[int]]
    empty: list[int]


def relate(lessons: Sequence[tuple[int, str]], laws: Laws, stream: random.Random) -> RelatedLines:
    """Say by numbers which lessons say the same, contradict, are exceptions, or say nothing."""
    if laws.judges != "numbers":
        every = [number for number, _ in lessons]
        return RelatedLines(
            [every] if laws.judges == "all same" else [],
            [every] if laws.judges == "all contradictory" else [],
            [],
            [],
        )
    # A paragraph of several rules is related to nothing, and says something.
    numbered = [(number, read_line(text)) for number, text in lessons if len(sentences(text)) == 1]
    attended = [line for line in numbered[: laws.judged] if stream.random() >= laws.overlooked]
    by_meaning: dict[Meaning, list[int]] = {}
    for number, meaning in attended:
        if meaning is not None:
            by_meaning.setdefault(meaning, []).append(number)
    by_case: dict[tuple[str, str, str], list[int]] = {}
    for meaning, numbers in by_meaning.items():
        by_case.setdefault(meaning.case, []).append(numbers[0])
    relations = RelatedLines(
        same=[numbers for numbers in by_meaning.values() if len(numbers) > 1],
        contradictory=[numbers for numbers in by_case.values() if len(numbers) > 1],
        narrower=[
            [by_meaning[exception][0], by_meaning[general][0]]
            for first, other in combinations(by_meaning, 2)
            for exception, general in ((first, other), (other, first))
            if exception.condition
            and not general.condition
            and exception.category == general.category
            and exception.code != general.code
        ],
        empty=[number for number, meaning in attended if meaning is None],
    )
    if len(attended) > 1 and stream.random() < laws.false_relation:
        pair = sorted(number for number, _ in stream.sample(attended, 2))
        stream.choice((relations.same, relations.contradictory, relations.narrower)).append(pair)
    return relations
