"""The ``instruction`` artifact: what GEPA edits, with demonstrations and field descriptions."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal

import dspy
from dspy.primitives.code_interpreter import CodeInterpreterError

from combee_dspy._private import flex_sources, make_adapter
from combee_dspy.aggregators import Aggregator
from combee_dspy.artifacts._base import Artifact, Trajectory, aggregate_changed
from combee_dspy.lessons import Book, Taught, lesson_id, read_section, write_section
from combee_dspy.operators import Insert, Operator, apply_components, seed_components, visible
from combee_dspy.records import Lessons, Reflection
from combee_dspy.reflections import feedback_text, normalised
from combee_dspy.strategies import StrategyContext, parameters

_ANSWER = "Generated Outputs"
"""What GEPA's records call the program's answer."""

# What feedback puts before the answer that it repeats, normalised.
_LEADS = (
    *("got", "predicted", "correct", "you answered", "you gave", "you said", "you wrote"),
    *("your answer", "your answer is", "your answer was"),
)


@parameters
class Instruction(Artifact):
    """GEPA's artifact: a predictor's instruction, and the code of ``dspy.Flex`` parts.

    Example:
        >>> import dspy
        >>> from combee_dspy.artifacts import Instruction
        >>> Instruction().seed(dspy.Predict(dspy.Signature("question -> answer", "Be brief.")))
        {'self': 'Be brief.'}

    Args:
        view: What a reader sees of each rollout: ``"all"``, as in GEPA; ``"feedback"``, which
            leaves out the program's answer; or ``"auto"``, which leaves out those fields of the
            answer that the feedback repeats as the answer, such as "got X" or "Correct: X": a small
            model takes a wrong answer that it reads first for the lesson (see the results on real
            models). A proposer of the user's own always gets all.
        operators: Those that will edit it: demonstrations and field descriptions become components
            of their own, hidden from selection, where one of them edits these. ``Combee`` fills it
            in.
    """

    name: ClassVar[str] = "instruction"
    view: Literal["auto", "all", "feedback"] = "auto"
    operators: tuple[Operator, ...] = ()

    def usual_operators(self) -> tuple[Operator, ...]:
        """Return the operators where the user names none."""
        return (Insert(),)

    def seed(self, student: dspy.Module) -> dict[str, str]:
        """Return instructions by predictor, code by path, then what is hidden."""
        texts = seed_components(student, self.operators)
        return {**{name: texts[name] for name in visible(texts)}, **flex_sources(student), **texts}

    def build(self, student: dspy.Module, candidate: Mapping[str, str]) -> dspy.Module:
        """Return a copy of the student with a candidate's texts.

        Where the candidate's code does not bind, the copy only raises.
        """
        code = flex_sources(student)
        if not code:
            return apply_components(student, candidate)
        try:
            built = make_adapter(student, lambda *_: 0.0).build_program(dict(candidate))
        except (SyntaxError, CodeInterpreterError) as error:
            return _Unbuildable(f"{type(error).__name__}: {error}")
        return apply_components(
            built, {name: text for name, text in candidate.items() if name not in code}
        )

    def components(self, student: dspy.Module) -> tuple[str, ...]:
        """Return predictors, then code."""
        return tuple(visible(self.seed(student)))

    async def reflect(
        self, trajectory: Trajectory, component: str, context: StrategyContext
    ) -> Reflection | None:
        """Return GEPA's record, or what of it is to be shown: it costs no call."""
        record = trajectory.record
        if record is None:
            return None
        if self.view == "feedback":
            record = {name: value for name, value in record.items() if name != _ANSWER}
        return Reflection(trajectory.index, record, trajectory.rollout.example_id)

    async def learn(
        self,
        reflections: Sequence[Awaitable[Reflection | None]],
        aggregator: Aggregator,
        context: StrategyContext,
    ) -> Lessons:
        """Return what the aggregator makes of the records, without what their feedback repeats."""
        if self.view != "auto":
            return await aggregator.aggregate(reflections, context)
        return await aggregate_changed(_without_repeats, reflections, aggregator, context)

    def read(self, text: str) -> Book:
        """Return the lessons of the section at an instruction's end."""
        return Book().add(map(Taught, read_section(text)[1]), born=-1)

    def serve(self, text: str, book: Book) -> str:
        """Return an instruction whose section serves a book."""
        own, lines = read_section(text)
        foreign = [line for line in lines if book.find(lesson_id(line)) is None]
        return write_section(own, [*foreign, *(lesson.text for lesson in book.served)])


async def _without_repeats(reflection: Awaitable[Reflection | None]) -> Reflection | None:
    """Return a reflection without the answer's fields that its feedback repeats."""
    # It belongs to others: to be cancelled here must not cancel it for them.
    whole = await asyncio.shield(asyncio.ensure_future(reflection))
    answer = None if whole is None else whole.record.get(_ANSWER)
    if whole is None or not isinstance(answer, Mapping) or not answer:
        return whole
    feedback = f" {normalised(feedback_text(whole))} "
    new = {name: value for name, value in answer.items() if not _repeats(value, feedback)}
    if len(new) == len(answer):
        return whole
    record = {name: value for name, value in whole.record.items() if name != _ANSWER or new}
    return replace(
        whole, record={name: new if name == _ANSWER else value for name, value in record.items()}
    )


def _repeats(value: object, feedback: str) -> bool:
    """Return whether a feedback has a value as the answer; elsewhere it may have it by chance."""
    words = normalised(value) if isinstance(value, str) else ""
    return len(words) > 1 and any(f" {lead} {words} " in feedback for lead in _LEADS)


class _Unbuildable(dspy.Module):
    """In the place of a program whose code does not bind: every rollout fails with the reason."""

    def __init__(self, reason: str) -> None:
        super().__init__()
        self.reason = reason

    def forward(self, **_: Any) -> Any:
        raise RuntimeError(f"the code did not bind: {self.reason}")
