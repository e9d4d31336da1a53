"""The work of an update grows with what was learned before it, and not with its square."""

from __future__ import annotations

import asyncio
import operator
import sys
from collections.abc import Callable
from functools import partial
from types import FrameType

import dspy
import pytest

from combee_dspy import Budget, Combee, Validation
from combee_dspy.artifacts import Instruction
from combee_dspy.lessons import Book, Taught, lesson_id
from combee_dspy.records import Rollout
from combee_dspy.search._blame import blame
from combee_dspy.search._candidates import Candidate
from combee_dspy.search._trials import LessonLines, Validated
from combee_dspy.testing import ScriptedLM, as_chat
from combee_dspy.texts import NearDuplicates
from combee_dspy.weighers import Posterior

FEW, MANY = 40, 400
ARTIFACT = Instruction()


def book_of(lessons: int) -> Book:
    numbers = range(lessons)
    return Book().add([Taught(f"Sums of box{n} end in c{n}.", (f"row {n}",)) for n in numbers], 0)


def text_of(book: Book) -> Candidate:
    return Candidate({"self": ARTIFACT.serve("Answer.", book)})


def blame_nobody(book: Book) -> None:
    """Search a lost row for lessons that spoil it, where the text has no new ones."""
    text = text_of(book)
    tested = Validated(ARTIFACT, text, {0: [Rollout("row", 0.0)]})
    lines = LessonLines(ARTIFACT, {"self": book})
    searching = blame(
        None,  # type: ignore[arg-type]  # nothing is tried
        lines,
        tested,
        text,
        {0: 1.0},
        lambda base, text: True,
    )
    assert asyncio.run(searching) == []


def leave_one_out(book: Book) -> None:
    text, lines = text_of(book), LessonLines(ARTIFACT, {"self": book})
    change = lines.open_changes(text, serve=False)[0]
    assert lines.changed(text, [change]) != text


def find_all(book: Book) -> None:
    assert all(book.find(lesson_id(lesson.text)) for lesson in book.lessons)


def count_steps(work: Callable[[], object]) -> int:
    """Return the lines of Python that some work runs: of code of ours, and of generated code."""
    steps = 0

    def hear(frame: FrameType, event: str, _: object) -> object:
        nonlocal steps
        name = frame.f_code.co_filename
        if "combee_dspy" not in name and name != "<string>":
            return None
        frame.f_trace_opcodes = True
        steps += event == "opcode"
        return hear

    sys.settrace(hear)
    try:
        work()
    finally:
        sys.settrace(None)
    return steps


@pytest.mark.parametrize("work", [blame_nobody, leave_one_out, find_all])
def test_work_grows_with_the_lessons_and_not_with_their_square(
    work: Callable[[Book], object],
) -> None:
    few, many = (count_steps(partial(work, book_of(lessons))) for lessons in (FEW, MANY))
    assert many < 1.5 * MANY / FEW * few


def test_weighing_makes_no_lesson_anew_whose_state_stays() -> None:
    book = Posterior().applied(book_of(FEW))
    again = Posterior().applied(book)
    assert all(map(operator.is_, book.lessons, again.lessons))


def test_who_reads_a_text_asks_for_no_likeness(monkeypatch: pytest.MonkeyPatch) -> None:
    text = text_of(book_of(FEW)).texts["self"]
    monkeypatch.delattr(NearDuplicates, "place")
    assert len(ARTIFACT.read(text).lessons) == FEW


def test_all_rollouts_of_a_candidate_keep_one_system_text() -> None:
    lm = ScriptedLM(lambda request: as_chat({"answer": "4"}))
    rows = [dspy.Example(question=f"{n}?", answer="4").with_inputs("question") for n in range(FEW)]
    optimizer = Combee(
        lambda gold, pred, *_: float(pred.answer == gold.answer),
        budget=Budget(updates=1),
        reflection_lm=lm,
        num_threads=4,
        validation=Validation(probe=False),
        tracker=(),
    )
    with dspy.context(lm=lm, adapter=dspy.ChatAdapter()):
        optimizer.compile(dspy.Predict("question -> answer"), trainset=rows[:3], valset=rows)
    texts = [entry["messages"][0]["content"] for entry in lm.history]
    assert len(texts) >= FEW
    assert len(set(map(id, texts))) == len(set(texts))
