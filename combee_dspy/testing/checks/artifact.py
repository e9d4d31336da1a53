"""Checks for artifacts: a student and what was learned in, a program out."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from functools import partial
from typing import Any

import dspy

from combee_dspy.aggregators import Union
from combee_dspy.artifacts import Artifact, Trajectory
from combee_dspy.lessons import Book, Taught
from combee_dspy.records import Lessons, PredictorCall, Reflection, Rollout
from combee_dspy.testing._kit import attempt, expect
from combee_dspy.testing.doubles import ScriptedAsk, arriving, context, reflections

_INSTRUCTIONS = ("Answer the question.", "Zwei\n\nAbsätze.", "答える。")
_HOSTILE = (
    "[",
    "## \n",
    "\x00",
    "😀" * 50,
    "[a] helpful=1 harmful=x :: y",
    "=== END === [keep-1] helpful=9",
)

_TAUGHT = (
    Taught("Round to two decimals.", ("a", "b")),
    Taught("Answer parcels from the north with code N7.", ("c",)),
)


def _student(instruction: str = _INSTRUCTIONS[0]) -> dspy.Module:
    return dspy.Predict(dspy.Signature("question -> answer", instruction))


def _dump(program: dspy.Module) -> str:
    return json.dumps(program.dump_state(), sort_keys=True, default=repr)


def _seed(strategy: Artifact, student: dspy.Module) -> dict[str, str]:
    seed: Any = attempt(
        lambda: strategy.seed(student), "`seed` returns the candidate that is the student itself"
    )
    right = (
        seed
        and isinstance(seed, dict)
        and all(isinstance(x, str) for pair in seed.items() for x in pair)
    )
    expect(right, "a text for each component", f"{seed!r:.200}")
    return dict(seed)


def _build(strategy: Artifact, student: dspy.Module, candidate: dict[str, str]) -> dspy.Module:
    mend = "any text may have been learned: read it, and leave out what cannot be used"
    return attempt(lambda: strategy.build(student, candidate), "`build` returns a program", mend)


def check_the_seed_is_the_student(strategy: Artifact) -> None:
    """The student's score is that of the student as it was given, and it is not changed."""
    for instruction in _INSTRUCTIONS:
        student = _student(instruction)
        before = _dump(student)
        built = _build(strategy, student, _seed(strategy, student))
        expect(
            built is not student,
            "a copy of the student",
            "the student itself",
            "use student.deepcopy()",
        )
        expect(
            _dump(built) == before,
            f"{before:.300}",
            f"{_dump(built):.300}",
            "show the seed as it was",
        )
        components = strategy.components(student)
        sound = components and set(components) <= set(_seed(strategy, student))
        expect(sound, "components that are in the seed candidate, at least one", f"{components!r}")


def check_a_candidate_is_always_shown_alike(strategy: Artifact) -> None:
    """A rollout is bought once for a text, which comes from a language model, and from files."""
    student = _student()
    before = _dump(student)
    seed, component = _seed(strategy, student), strategy.components(student)[0]
    for learned in ("Be brief.", *_HOSTILE):
        candidate = {**seed, component: learned}
        first, again = (_dump(_build(strategy, student, candidate)) for _ in range(2))
        expect(
            first == again,
            "the same program for the same candidate",
            f"{first:.200} and {again:.200}",
        )
    expect(
        _dump(student) == before,
        "a student that `build` leaves alone",
        "it was changed",
        "build a copy",
    )


def check_a_book_is_served(strategy: Artifact) -> None:
    """What a minibatch teaches enters a book, and the text shows what the book serves."""
    component = strategy.components(_student())[0]
    text = _seed(strategy, _student())[component]
    for ask in (ScriptedAsk(), ScriptedAsk(empty=True), ScriptedAsk(fail=lambda call: True)):
        lessons = attempt(partial(_learn, strategy, component, ask), "`reflect` and `learn` return")
        expect(isinstance(lessons, Lessons), "a `Lessons` from `learn`", f"{lessons!r:.200}")
        new = [
            Taught(lesson.text, tuple(map(str, lesson.sources)), lesson.section)
            for lesson in lessons.lessons
        ]
        book = strategy.read(text).add([*new, *_TAUGHT], born=0).edit(lessons.edits).book
        first, again = (_serve(strategy, text, book) for _ in range(2))
        expect(
            isinstance(first, str) and first == again,
            "the same text each time",
            f"{first!r:.200}, {again!r:.200}",
        )
        read_back = strategy.read(first)
        missing = [lesson.text for lesson in book.served if read_back.find(lesson.id) is None]
        expect(
            not missing,
            "every served lesson in the text, where `read` finds it",
            f"without {missing!r:.200}",
        )
        expect(
            _serve(strategy, first, book) == first,
            "a text that serves the book already, as it is",
            "another",
        )
        without = _serve(strategy, first, book.with_states({book.lessons[-1].id: ("retired", "")}))
        gone = strategy.read(without).find(book.lessons[-1].id) is None
        expect(gone, "a text without the lesson that is retired", f"{without!r:.200}")


def _serve(strategy: Artifact, text: str, book: Book) -> str:
    return attempt(lambda: strategy.serve(text, book), "`serve` returns a text")


async def _learn(strategy: Artifact, component: str, ask: ScriptedAsk) -> Any:
    text = strategy.seed(_student())[component]
    at_work = replace(context(ask), component=component, text=text)
    reflected: list[Reflection | Exception | None] = []
    for reflection in reflections(5):
        reflected.append(
            await strategy.reflect(
                _trajectory(reflection), component, at_work.at("reflect", reflection.index)
            )
        )
        right = reflected[-1] is None or (
            isinstance(reflected[-1], Reflection) and reflected[-1].index == reflection.index
        )
        expect(
            right,
            f"None, or the `Reflection` of position {reflection.index}",
            f"{reflected[-1]!r:.200}",
        )
    return await asyncio.wait_for(strategy.learn(arriving(reflected), Union(), at_work), 60)


def _trajectory(reflection: Reflection) -> Trajectory:
    inputs, outputs = reflection.record["Inputs"], reflection.record["Generated Outputs"]
    example = dspy.Example(**inputs, answer=str(reflection.index * 7)).with_inputs("question")
    rollout = Rollout(
        example_id=str(reflection.example_id),
        score=float(reflection.index % 2 == 0),
        feedback=reflection.record["Feedback"],
        prediction=None if reflection.index == 3 else outputs,
        error="ValueError: three" if reflection.index == 3 else None,
        failed_in="program" if reflection.index == 3 else None,
        calls=(PredictorCall("self", inputs, outputs),),
    )
    # The last one happened elsewhere.
    is_recorded = reflection.index == 4
    return Trajectory(
        reflection.index, example, rollout, reflection.record, is_recorded=is_recorded
    )
