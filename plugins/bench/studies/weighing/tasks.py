"""Six kinds of task, each with a seed: what is true, the rows, the prompt, the service's laws."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import dspy

from combee_dspy.streams import derive
from studies.weighing.words import (
    ATTRIBUTES,
    CATEGORIES,
    CHANNELS,
    EMPTY_LINES,
    Case,
    Language,
    Meaning,
    read_lines,
    rule,
    word,
)

KINDS = ("rules", "exceptions", "noise", "few", "long", "good")
TRAIN, FEW, VALIDATION, HELDOUT = 80, 14, 40, 200
HEADER = "Give the code of the case."
UNKNOWN = "unknown"
_WRONG_LABELS = 0.2

Judging = Literal["numbers", "prose", "silence", "nothing", "all same", "all contradictory"]


@dataclass(frozen=True, slots=True)
class Laws:
    """What the service's readers and writers do; see the README for which figures were calibrated.

    Args:
        miss: Probability that a reader learns nothing from a failing record.
        miss_proposing: The same for a proposer, which writes the whole instruction as well.
        span: Records that one reading call attends to.
        bad: Probability that a reading call adds a harmful line.
        empty: Probability that a reading call adds a line that says nothing.
        keep: Probability that a rewrite keeps a line of the current instruction.
        replace: Probability that a proposer which sees one row contradict a line takes the line
            for wrong. Otherwise, as readers do, it takes the row for an exception.
        reader_replaces: The same for a reader, which is told nothing of time.
        obeys: Probability that a reader writes down an order that stands in a record.
        loss: Probability that a call which merges or shortens lists loses a thing that they say.
        votes: Probability that such a call decides a contradiction by the number of lessons on
            each side; otherwise it keeps both.
        wrong_citation: Probability that a citation names another example.
        overlooked: Probability that a judge overlooks a lesson.
        judged: Lessons that one judging call attends to.
        false_relation: Probability that a judging call names a relation that is none.
        judges: What a judge answers: numbers by the laws above, or, whatever it is shown, text
            without a field, an empty text, empty lists, all numbers as the same, all numbers as
            contradictory.
        cites: Whether a reader cites its own examples, nothing, or every example of the call.
        paragraph: Whether a reader answers with one paragraph for all its lessons.
        repeats: Whether a reader also returns every rule of the prompt, worded anew, the new
            lessons first. It cites an example of the rule's category, else any.
        marks: Whether a reader marks each lesson, before its citation, in a style of the call:
            "3. ", "- ", "Rule 3: ", "**Lesson 3** – ".
        language: What readers write in. The task model and the judge read all of them.
    """

    miss: float = 0.1
    miss_proposing: float = 0.2
    span: int = 14
    bad: float = 0.0
    empty: float = 0.05
    keep: float = 1.0
    replace: float = 0.5
    reader_replaces: float = 0.0
    obeys: float = 0.0
    loss: float = 0.05
    votes: float = 0.7
    wrong_citation: float = 0.05
    overlooked: float = 0.1
    judged: int = 40
    false_relation: float = 0.02
    judges: Judging = "numbers"
    cites: Literal["own", "nothing", "all"] = "own"
    paragraph: bool = False
    repeats: bool = False
    marks: bool = False
    language: Language = "english"


@dataclass(frozen=True, slots=True)
class Row:
    """A row: what it says, the code that is right, and the code that its label says."""

    case: Case
    slip: int
    code: str
    label: str

    def example(self) -> dspy.Example:
        """Return the row as DSPy's programs take it."""
        return dspy.Example(case=self.case.text(self.slip), code=self.label).with_inputs("case")


@dataclass(frozen=True, slots=True)
class Truth:
    """What is right: the code of each category, and of those with an attribute that differ."""

    rules: Mapping[str, str]
    exceptions: Mapping[tuple[str, str], str] = field(default_factory=dict)

    def code(self, case: Case) -> str:
        """Return the right code of a row."""
        special = (self.exceptions.get((case.category, name)) for name in case.attributes)
        return next((code for code in special if code), self.rules[case.category])

    def agrees(self, meaning: Meaning) -> bool:
        """Return whether what a line says is so."""
        special = self.exceptions.get((meaning.category, meaning.condition))
        return meaning.code == (special or self.rules.get(meaning.category))


@dataclass(frozen=True, slots=True)
class Task:
    """A task of one seed."""

    kind: str
    seed: int
    truth: Truth
    instruction: str
    train: tuple[Row, ...]
    validation: tuple[Row, ...]
    heldout: tuple[Row, ...]
    laws: Laws

    def program(self) -> dspy.Module:
        """Return the program with the untouched prompt."""
        fields: Any = {"case": (str, dspy.InputField()), "code": (str, dspy.OutputField())}
        return dspy.Predict(dspy.Signature(fields, self.instruction))

    def count_lines(self, text: str) -> dict[str, int]:
        """Count the wrong and the harmful lines of a prompt, and the true exceptions in it."""
        stated = [meaning for _, meaning in read_lines(text)]
        missing = self.missing_exceptions(text)
        return {
            "lines": len(stated),
            "wrong": sum(
                not meaning.channel and not self.truth.agrees(meaning) for meaning in stated
            ),
            "harmful": sum(bool(meaning.channel) for meaning in stated),
            "exceptions": len(self.truth.exceptions) - len(missing),
            "exceptions_wrongly_missing": len(missing),
        }

    def missing_exceptions(self, text: str) -> set[tuple[str, str]]:
        """Return category and condition of the true exceptions that a prompt lacks."""
        stated = {
            (meaning.category, meaning.condition)
            for _, meaning in read_lines(text)
            if self.truth.agrees(meaning)
        }
        return set(self.truth.exceptions) - stated


SERVICES: Mapping[str, Mapping[str, Any]] = {
    "usual": {},
    "judge-prose": {"judges": "prose"},
    "judge-silent": {"judges": "silence"},
    "judge-nothing": {"judges": "nothing"},
    "judge-same": {"judges": "all same"},
    "judge-contradictory": {"judges": "all contradictory"},
    "cites-nothing": {"cites": "nothing"},
    "cites-all": {"cites": "all"},
    "paragraph": {"paragraph": True},
    "repeats": {"repeats": True},
    "marks": {"marks": True},
    "german": {"language": "german"},
    "chinese": {"language": "chinese"},
    "misses": {"miss": 0.4, "miss_proposing": 0.4},
}
"""Services that answer otherwise: what differs from a task's own laws."""


def make_task(kind: str, seed: int, service: str = "usual") -> Task:
    """Make a task of a kind in :data:`KINDS`, with a service in :data:`SERVICES`."""
    stream = derive(seed, "weighing", kind)
    makers = {
        "rules": _rules,
        "exceptions": _exceptions,
        "noise": _noise,
        "few": _few,
        "long": _long,
        "good": _good,
    }
    task = makers[kind](kind, seed, stream)
    return replace(task, laws=replace(task.laws, **SERVICES[service]))


def make_truth(count: int, stream: random.Random) -> Truth:
    """Draw rules: so many categories, each with a code of its own."""
    codes = [f"D{number}" for number in range(1, count + 1)]
    stream.shuffle(codes)
    return Truth(dict(zip(stream.sample(CATEGORIES, count), codes, strict=True)))


def make_rows(
    truth: Truth, count: int, stream: random.Random, wrong: float = 0.0
) -> tuple[Row, ...]:
    """Draw rows; this share of their labels is wrong."""
    categories, codes = list(truth.rules), sorted(truth.rules.values())
    mislabelled = set(stream.sample(range(count), round(wrong * count)))
    rows = []
    for number in range(count):
        attributes = tuple(stream.sample(ATTRIBUTES, 2))
        case = Case(stream.choice(categories), attributes, stream.choice(CHANNELS))
        code = truth.code(case)
        label = (
            stream.choice([other for other in codes if other != code])
            if number in mislabelled
            else code
        )
        rows.append(Row(case, stream.randrange(100_000, 1_000_000), code, label))
    return tuple(rows)


def _rules(kind: str, seed: int, stream: random.Random) -> Task:
    return _task(kind, seed, make_truth(16, stream), stream)


def _exceptions(kind: str, seed: int, stream: random.Random) -> Task:
    truth = make_truth(16, stream)
    codes = sorted(truth.rules.values())
    exceptions = {
        (category, stream.choice(ATTRIBUTES)): stream.choice(
            [other for other in codes if other != code]
        )
        for category, code in list(truth.rules.items())[:12]
    }
    return _task(kind, seed, replace(truth, exceptions=exceptions), stream)


def _noise(kind: str, seed: int, stream: random.Random) -> Task:
    return _task(kind, seed, make_truth(16, stream), stream, wrong=_WRONG_LABELS)


def _few(kind: str, seed: int, stream: random.Random) -> Task:
    return _task(kind, seed, make_truth(11, stream), stream, train=FEW)


def _long(kind: str, seed: int, stream: random.Random) -> Task:
    truth = make_truth(60, stream)
    instruction = _instruction(truth, 45, stream, *EMPTY_LINES)
    return _task(kind, seed, truth, stream, instruction, Laws(keep=0.97))


def _good(kind: str, seed: int, stream: random.Random) -> Task:
    truth = make_truth(20, stream)
    return _task(kind, seed, truth, stream, _instruction(truth, 17, stream), Laws(bad=0.3))


def _instruction(truth: Truth, count: int, stream: random.Random, *more: str) -> str:
    known = [rule(category, code) for category, code in list(truth.rules.items())[:count]]
    return "\n".join(
        [HEADER, *(f"- {line}" for line in (*more, *(word(one, stream) for one in known)))]
    )


def _task(  # noqa: PLR0913 - what kinds differ in
    kind: str,
    seed: int,
    truth: Truth,
    stream: random.Random,
    instruction: str = HEADER,
    laws: Laws | None = None,
    *,
    train: int = TRAIN,
    wrong: float = 0.0,
) -> Task:
    sizes = ((train, wrong), (VALIDATION, wrong), (HELDOUT, 0.0))
    splits = [make_rows(truth, count, stream, share) for count, share in sizes]
    return Task(kind, seed, truth, instruction, splits[0], splits[1], splits[2], laws or Laws())
