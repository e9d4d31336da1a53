"""The ``memory`` artifact: each call is shown the lessons that are nearest to its inputs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Annotated, ClassVar

import dspy
from pydantic import BeforeValidator, Field

from combee_dspy import registry
from combee_dspy.aggregators import Aggregator
from combee_dspy.artifacts._base import Arrangement, Artifact, Trajectory
from combee_dspy.artifacts._instruction import Instruction
from combee_dspy.lessons import Book, BookLesson, Taught, lesson_id
from combee_dspy.memory import (
    BM25,
    MemoryText,
    Retriever,
    check_predictors,
    choose_cues,
    line_tokens,
    query_of,
    read_example,
    read_memory,
    shelf_of,
    with_cues,
    with_memory,
    without_cues,
    write_example,
)
from combee_dspy.operators import apply_components, seed_components
from combee_dspy.records import Lessons, Reflection
from combee_dspy.strategies import StrategyContext, parameters

_INSTRUCTION = Instruction()
# How many lessons a call is shown until validation chooses.
_FIRST_K = 4
# A lesson that more than a tenth of all examples miss is needed wherever lookup looks.
_COMMON = 10


@parameters
class Memory(Artifact):
    """A book of any size: a call of a predictor is shown the lessons nearest to its inputs.

    A rollout looks up what the served program would look up, so scores are of what is returned. A
    component's text holds all lessons. :func:`combee_dspy.memory.load_memory` loads a saved
    program.

    Example:
        >>> import dspy
        >>> from combee_dspy.artifacts import Memory
        >>> from combee_dspy.lessons import Book, Taught
        >>> lessons = [Taught("Letters: code L2."), Taught("Parcels: code N7.")]
        >>> text = Memory(k=1).serve("Choose a code.", Book().add(lessons, born=0))
        >>> program = Memory(k=1).build(dspy.Predict("question -> code"), {"self": text})
        >>> lm = dspy.utils.DummyLM([{"code": "L2"}])
        >>> with dspy.context(lm=lm):
        ...     code = program(question="Which code do letters take?").code
        >>> "Letters" in str(lm.history[-1]), "Parcels" in str(lm.history[-1])
        (True, False)

    Args:
        k: How many lessons are looked up for a call, at most; ``None`` to let validation choose.
        retriever: Finds them: a name, a mapping from a name to parameters, or a
            :class:`combee_dspy.memory.Retriever`.
        budget_tokens: Estimated tokens of all lessons that a call is shown, those that always stand
            there included.
        examples: Whether rollouts that were right become entries too: a call is shown the nearest
            of them as demonstrations, with their reasoning where the program gives any. The saved
            program then holds those rows.
    """

    name: ClassVar[str] = "memory"
    looks_up: ClassVar[bool] = True

    k: Annotated[int, Field(ge=1, le=1_000)] | None = None
    retriever: Annotated[Retriever, BeforeValidator(partial(registry.resolve, "retriever"))] = (
        BM25()
    )
    budget_tokens: Annotated[int, Field(ge=16)] = 400
    examples: bool = False

    def seed(self, student: dspy.Module) -> dict[str, str]:
        """Return the instructions by predictor, with all that a memory holds.

        Raises:
            ArgumentTypeError: A predictor is of a class of its own.
        """
        check_predictors(student)
        return seed_components(student)

    def build(self, student: dspy.Module, candidate: Mapping[str, str]) -> dspy.Module:
        """Return a copy of the student whose predictors look up a candidate's lessons."""
        program = apply_components(student, candidate)
        holding = [name for name, text in candidate.items() if self._read(text).lookup]
        return with_memory(program, holding, self.retriever, self.budget_tokens)

    def components(self, student: dspy.Module) -> tuple[str, ...]:
        """Return the predictors."""
        return tuple(self.seed(student))

    async def reflect(
        self, trajectory: Trajectory, component: str, context: StrategyContext
    ) -> Reflection | None:
        """Return GEPA's record."""
        return await _INSTRUCTION.reflect(trajectory, component, context)

    async def learn(
        self,
        reflections: Sequence[Awaitable[Reflection | None]],
        aggregator: Aggregator,
        context: StrategyContext,
    ) -> Lessons:
        """Return what the aggregator makes of the records, as for an instruction."""
        return await _INSTRUCTION.learn(reflections, aggregator, context)

    def shows(self, text: str, inputs: Mapping[str, object]) -> tuple[str, ...]:
        """Return the ids of the lessons that a call is shown, in their order."""
        shelf = shelf_of(text, self.retriever, self.budget_tokens)
        return tuple(map(lesson_id, shelf.lessons(inputs)))

    def arranged(self, text: str, book: Book, examples: Mapping[str, Reflection]) -> str:
        """Return a memory whose lessons are found by words of the examples that teach them, and in
        which those always stand that lookup does not find.

        A lesson stands always where two of the examples that teach it would not be shown it, and
        more than half of them, or more than a tenth of all examples. Those that most examples miss
        come first; all of them take half of the budget at most. The user's own stay where they are.
        """
        memory = self._read(text)
        learned = {lesson.text: lesson.sources for lesson in book.served if not lesson.own}
        inputs = {
            source: call
            for source, example in examples.items()
            if isinstance(call := example.record.get("Inputs"), Mapping)
        }
        queries = {source: query_of(call) for source, call in inputs.items()}
        cues = choose_cues(learned, queries)
        fixed = tuple(line for line in memory.always if line not in learned)
        lookup = [
            with_cues(line, cues.get(line, ())) for line in memory.lessons if line not in fixed
        ]
        shelf = shelf_of(
            str(replace(memory, always=fixed, lookup=tuple(lookup))),
            self.retriever,
            self.budget_tokens,
        )
        near = {source: set(shelf.lessons(call)) for source, call in inputs.items()}
        missed: Counter[str] = Counter()
        for line, sources in learned.items():
            missing = [line not in near[source] for source in sources if source in near]
            if sum(missing) > max(1, min(len(missing) // 2, len(inputs) // _COMMON)):
                missed[line] = sum(missing)
        common: set[str] = set()
        left = self.budget_tokens // 2
        for line, _ in missed.most_common():
            left -= line_tokens(line)
            if left >= 0:
                common.add(line)
        return str(
            replace(
                memory,
                always=(*fixed, *(line for line in map(without_cues, lookup) if line in common)),
                lookup=(
                    *(line for line in lookup if without_cues(line) not in common),
                    *self._worked(memory, examples.values()),
                ),
            )
        )

    def _worked(self, memory: MemoryText, examples: Iterable[Reflection]) -> Iterable[str]:
        """Return the worked examples of a memory, and those that come to it, each once."""
        lines = [line for line in memory.lookup if read_example(line)]
        for example in examples if self.examples else ():
            inputs, outputs = (example.record.get(name) for name in ("Inputs", "Generated Outputs"))
            if not (
                example.perfect and isinstance(inputs, Mapping) and isinstance(outputs, Mapping)
            ):
                continue
            if all(isinstance(value, str) for value in (*inputs.values(), *outputs.values())):
                lines.append(write_example(inputs, outputs))
        return dict.fromkeys(lines)

    def arrangements(self, text: str, book: Book) -> Sequence[Arrangement]:
        """Return memories that look up twice as many lessons, or half, unless ``k`` is set; and one
        without lessons that always stand there, but for the user's own.
        """
        memory = self._read(text)
        learned = {lesson.text for lesson in book.lessons if not lesson.own}
        fixed = tuple(line for line in memory.always if line not in learned)
        common = tuple(line for line in memory.always if line in learned)
        others: list[Arrangement] = []
        if self.k is None and memory.k < len(memory.lookup):
            others.append(Arrangement(str(replace(memory, k=2 * memory.k)), shows_fewer=False))
        if self.k is None and memory.k > 1 and memory.lookup:
            others.append(Arrangement(str(replace(memory, k=memory.k // 2)), shows_fewer=True))
        if common:
            flat = replace(memory, always=fixed, lookup=(*memory.lookup, *common))
            others.append(Arrangement(str(flat), shows_fewer=True))
        return others

    def read(self, text: str) -> Book:
        """Return the lessons of a memory; those that always stand there are the user's own."""
        memory = self._read(text)
        book = Book().add(map(Taught, memory.always), born=-1)
        ids = {lesson.id for lesson in book.lessons}
        looked_up = (
            BookLesson(wording, line, born=-1, wordings=(wording,))
            for line in dict.fromkeys(memory.lessons[len(memory.always) :])
            if (wording := lesson_id(line)) not in ids
        )
        return Book((*book.lessons, *looked_up))

    def serve(self, text: str, book: Book) -> str:
        """Return a memory that holds what a book serves.

        The user's own lessons and those that stand there always stay so; the others are looked up.
        """
        before = self._read(text)
        wordings = {wording for lesson in book.lessons for wording in lesson.wordings}
        standing = set(map(lesson_id, before.always))
        always = [line for line in before.always if lesson_id(line) not in wordings]
        lines = {without_cues(line): line for line in before.lookup}
        lookup = [line for lesson, line in lines.items() if lesson_id(lesson) not in wordings]
        for lesson in book.served:
            if lesson.own or not standing.isdisjoint(lesson.wordings):
                always.append(lesson.text)
            else:
                lookup.append(lines.get(lesson.text, lesson.text))
        return str(MemoryText(before.own, tuple(always), tuple(lookup), self.k or before.k))

    def _read(self, text: str) -> MemoryText:
        return read_memory(text, self.k or _FIRST_K)
