"""The ``instruction`` artifact: what GEPA edits, with demonstrations and field descriptions beside it."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from typing import Any, ClassVar, Literal

import dspy
from dspy.primitives.code_interpreter import CodeInterpreterError

from combee_dspy._private import flex_sources, make_adapter
from combee_dspy.aggregators import Aggregator
from combee_dspy.artifacts._base import Artifact, Trajectory
from combee_dspy.lessons import Book, Taught, lesson_id, read_section, write_section
from combee_dspy.operators import Operator, apply_components, seed_components, visible
from combee_dspy.records import Lessons, Reflection
from combee_dspy.strategies import StrategyContext, parameters

_ANSWER = "Generated Outputs"
"""What GEPA's records call the program's answer."""


@parameters
class Instruction(Artifact):
    """GEPA's artifact: a predictor's instruction, and the code of ``dspy.Flex`` parts.

    Args:
        shown: What a reflector sees of each rollout: ``"all"``, as in GEPA, or ``"feedback"``, which leaves out the
            program's answer. For a metric that says what is right beside a small reflector, which may take wrong
            answers for lessons (see the results on real models).
        operators: Those that will edit it: demonstrations and field descriptions become components of their own, hidden
            from selection, where one of them edits these. ``Combee`` fills it in.
    """

    name: ClassVar[str] = "instruction"
    shown: Literal["all", "feedback"] = "all"
    operators: tuple[Operator, ...] = ()

    def seed(self, student: dspy.Module) -> dict[str, str]:
        """Return instructions by predictor, code by path, then what is hidden."""
        found = seed_components(student, self.operators)
        return {**{name: found[name] for name in visible(found)}, **flex_sources(student), **found}

    def build(self, student: dspy.Module, candidate: Mapping[str, str]) -> dspy.Module:
        """Return a copy of the student with a candidate's texts; one that only raises where its code does not bind."""
        code = flex_sources(student)
        if not code:
            return apply_components(student, candidate)
        try:
            built = make_adapter(student, lambda *_: 0.0).build_program(dict(candidate))
        except (SyntaxError, CodeInterpreterError) as error:
            return _Unbuildable(f"{type(error).__name__}: {error}")
        return apply_components(built, {name: text for name, text in candidate.items() if name not in code})

    def components(self, student: dspy.Module) -> tuple[str, ...]:
        """Return predictors, then code."""
        return tuple(visible(self.seed(student)))

    async def reflect(self, trajectory: Trajectory, component: str, context: StrategyContext) -> Reflection | None:
        """Return GEPA's record, or what of it is to be shown: it costs no call."""
        record = trajectory.record
        if record is None:
            return None
        if self.shown == "feedback":
            record = {name: value for name, value in record.items() if name != _ANSWER}
        return Reflection(trajectory.index, record, trajectory.rollout.example_id)

    async def learn(
        self, reflections: Sequence[Awaitable[Reflection | None]], aggregator: Aggregator, context: StrategyContext
    ) -> Lessons:
        """Return what the aggregator makes of the records."""
        return await aggregator.aggregate(reflections, context)

    def read(self, text: str) -> Book:
        """Return the lessons of the section at an instruction's end."""
        return Book().add(map(Taught, read_section(text)[1]), born=-1)

    def serve(self, text: str, book: Book) -> str:
        """Return an instruction whose section serves a book; operators may serve it in other ways."""
        own, lines = read_section(text)
        foreign = [line for line in lines if book.find(lesson_id(line)) is None]
        return write_section(own, [*foreign, *(lesson.text for lesson in book.served)])


class _Unbuildable(dspy.Module):
    """Stands for a program whose code does not bind: every rollout of it fails, and says why."""

    def __init__(self, reason: str) -> None:
        super().__init__()
        self.reason = reason

    def forward(self, **_: Any) -> Any:
        raise RuntimeError(f"the code did not bind: {self.reason}")
