"""Planted facts that are stated in several ways, or contradicted, and what a book makes of them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from combee_bench.planted import PlantedFact, planted_in, planted_record
from combee_dspy.lessons import Book, Taught
from combee_dspy.records import Lessons, Reflection
from combee_dspy.reflections import normalised
from combee_dspy.streams import derive
from combee_dspy.weighers import Posterior

__all__ = ["ServedTally", "Statement", "serve", "state", "tally"]

_CODES = range(1_000, 9_000)
_CODE = re.compile(r"\bq\d+\b")


@dataclass(frozen=True, slots=True)
class Statement:
    """One reflection: a fact in one of three wordings, or (``opposes``) another code."""

    fact: PlantedFact
    wording: int = 0
    opposes: str = ""

    def record(self, index: int) -> Reflection:
        """Return the reflection on a rollout that lacked the fact."""
        return planted_record(self.fact, index, self.wording)


def state(facts: Sequence[PlantedFact], seed: int) -> tuple[Statement, ...]:
    """Return statements of facts, shuffled.

    Of each four facts two are stated once, one twice in other words, and one three times in other
    words and opposed once, by a statement with another code.
    """
    stream = derive(seed, "planted statements")
    used = {code for fact in facts for code in (fact.code, fact.wrong)}
    free = [code for code in map("Q{}".format, _CODES) if code not in used]
    opposite = iter(stream.sample(free, len(facts)))
    statements: list[Statement] = []
    for place, fact in enumerate(facts):
        times = max(1, place % 4)
        statements += [Statement(fact, wording) for wording in range(times)]
        if times == 3:
            statements.append(Statement(replace(fact, code=next(opposite)), 0, opposes=fact.code))
    stream.shuffle(statements)
    return tuple(statements)


@dataclass(frozen=True, slots=True)
class ServedTally:
    """What the served lines hold of planted facts.

    Attributes:
        right: Facts of which a line has the code, and no line another code.
        decided: Contradictions by how they ended: ``right``, ``wrong``, ``both`` and ``neither``.
        doubled: Lines that hold nothing but what an earlier line holds.
        other: Lines without a fact.
        citations: Examples that lines with a fact cite, and those of them that state it.
    """

    right: int
    decided: dict[str, int]
    doubled: int
    other: int
    citations: tuple[int, int]


def serve(lessons: Lessons) -> list[Taught]:
    """Return what a run would serve of an aggregation: its lessons related and weighed."""
    taught = [
        Taught(" ".join(lesson.text.split()), tuple(map(str, lesson.sources)))
        for lesson in lessons.lessons
        if lesson.text.strip()
    ]
    book = Posterior().applied(Book().add(taught, born=0).edit(lessons.edits).book)
    served = [Taught(lesson.text, lesson.sources) for lesson in book.served]
    return served + [Taught(line) for line in (lessons.rewrite or "").splitlines()]


def tally(
    facts: Sequence[PlantedFact], statements: Sequence[Statement], served: Sequence[Taught]
) -> ServedTally:
    """Count what the served lines hold of facts, by the statements that they were learned from."""
    stated = list(dict.fromkeys(statement.fact for statement in statements))
    opposite = {statement.opposes: statement.fact for statement in statements if statement.opposes}
    held: Counter[str] = Counter()
    doubled = other = cited = correct = 0
    for line in served:
        codes = planted_in(stated, [line.text])
        doubled += bool(codes) and all(held[code] for code in codes)
        other += not codes
        held.update(codes)
        cited += len(codes) * len(line.sources)
        correct += sum(statements[int(source)].fact.code in codes for source in line.sources)
    ends: Counter[str] = Counter()
    for code, against in opposite.items():
        ends[_END[held[code] > 0, held[against.code] > 0]] += 1
    texts = [line.text for line in served]
    right = sum(held[fact.code] > 0 and not _is_contradicted(fact, texts) for fact in facts)
    return ServedTally(
        right, {end: ends[end] for end in _END.values()}, doubled, other, (cited, correct)
    )


_END = {
    (True, False): "right",
    (False, True): "wrong",
    (True, True): "both",
    (False, False): "neither",
}


def _is_contradicted(fact: PlantedFact, lines: Sequence[str]) -> bool:
    """Return whether a line has another code, and not the fact's own, for its goods or its port."""
    for line in lines:
        words = normalised(line).replace("-", " ")
        about = {fact.goods, fact.port} & set(words.split())
        codes = set(_CODE.findall(words))
        if about and codes and fact.code.casefold() not in codes:
            return True
    return False
