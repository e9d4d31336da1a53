"""The ``memory`` artifact: each call is shown the lessons that are nearest to its inputs."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, ClassVar

import dspy
from pydantic import BeforeValidator, Field

from combee_dspy import registry
from combee_dspy.aggregators import Aggregator, arrived
from combee_dspy.artifacts._base import Arrangement, Artifact, Trajectory
from combee_dspy.artifacts._instruction import Instruction
from combee_dspy.exceptions import ArgumentTypeError
from combee_dspy.json_texts import dump
from combee_dspy.lessons import Book, BookLesson, Taught, lesson_id, write_section
from combee_dspy.memory import (
    BM25,
    MemoryText,
    Retriever,
    Shelf,
    check_predictors,
    choose_cues,
    query_of,
    read_memory,
    shelf_of,
    with_memory,
    write_example,
)
from combee_dspy.operators import apply_components, seed_components
from combee_dspy.records import Lessons, Reflection
from combee_dspy.reflections import fit_lines, is_cut, texts_in
from combee_dspy.registry import Spec
from combee_dspy.strategies import StrategyContext, parameters

_INSTRUCTION = Instruction()
# How many lessons a call is shown until validation chooses.
_FIRST_K = 4
# A lesson that more than a tenth of all examples miss is needed wherever lookup looks.
_COMMON = 10
# Estimated tokens of looked-up lessons that readers see: a sixth of a scan's call by default.
_READ_TOKENS = 4_000


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
        retriever: Finds them: a name, ``{"name": …, "params": {…}}``, or a
            :class:`combee_dspy.memory.Retriever`. A saved program names it, with its parameters.
        budget_tokens: Estimated tokens of all lessons that a call is shown, those that every call
            is shown included.
        examples: Whether rollouts that were right become entries too: a call is shown the ``k``
            nearest of them as demonstrations, with their reasoning where the program gives any,
            within ``budget_tokens`` besides those of lessons. The saved program then holds those
            rows. Without it, those that the student holds from a memory before are left out.
    """

    name: ClassVar[str] = "memory"
    looks_up: ClassVar[bool] = True

    k: Annotated[int, Field(ge=1, le=1_000)] | None = None
    retriever: Annotated[Retriever, BeforeValidator(partial(registry.resolve, "retriever"))] = (
        BM25()
    )
    budget_tokens: Annotated[int, Field(ge=16)] = 800
    examples: bool = False

    def __post_init__(self) -> None:
        try:
            dump(Spec.of(self.retriever).to_dict())
        except TypeError as error:
            problem = f"cannot be saved with a program: {error}"
            remedy = 'Name a function by its path: DSPyEmbedder("package.module:function").'
            raise ArgumentTypeError("retriever", self.retriever, problem, remedy) from error

    def seed(self, student: dspy.Module) -> dict[str, str]:
        """Return the instructions by predictor, with all that a memory holds.

        Raises:
            ArgumentTypeError: A predictor is of a class of its own.
        """
        check_predictors(student)
        texts = seed_components(student)
        return texts if self.examples else {name: _bare(text) for name, text in texts.items()}

    def build(self, student: dspy.Module, candidate: Mapping[str, str]) -> dspy.Module:
        """Return a copy of the student whose predictors look up a candidate's lessons."""
        program = apply_components(student, candidate)
        memories = {name: self._read(text) for name, text in candidate.items()}
        holding = [name for name, held in memories.items() if held.lookup or held.examples]
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
        """Return what the aggregator makes of the records, as for an instruction.

        It begins when all of them are there: readers see the lessons that their calls were shown.
        """
        read = [reflection for reflection in await arrived(reflections) if reflection is not None]
        calls = [call for reflection in read if (call := _inputs_of(reflection)) is not None]
        text = await asyncio.to_thread(self.excerpt, context.text, calls)
        return await _INSTRUCTION.learn(reflections, aggregator, replace(context, text=text))

    def excerpt(self, text: str, calls: Sequence[Mapping[str, object]]) -> str:
        """Return the instruction with the lessons that every call is shown, and those that these
        calls were shown: what most of them were shown comes first, in 4,000 estimated tokens.
        """
        memory, shelf = self._read(text), self._shelf(text)
        first = len(memory.always)
        counts = Counter(line for call in calls for line in shelf.lessons(call)[first:])
        lines = fit_lines((line for line, _ in counts.most_common()), _READ_TOKENS)
        return write_section(memory.own, [*memory.always, *lines])

    def shows(self, text: str, inputs: Mapping[str, object]) -> tuple[str, ...]:
        """Return the ids of the lessons that a call is shown, in their order."""
        return tuple(map(lesson_id, self._shelf(text).lessons(inputs)))

    def arranged(self, text: str, book: Book, examples: Mapping[str, Reflection]) -> str:
        """Return a memory in which lessons are found by words of the examples that teach them.

        A lesson that lookup misses is shown to every call: one that two of the examples that teach
        it would not be shown, and more than half of them, or more than a tenth of all examples.
        Those that most examples miss come first; all of them take half of the budget at most. The
        user's own stay where they are.
        """
        memory = self._read(text)
        learned = {lesson.text: lesson.sources for lesson in book.served if not lesson.own}
        calls = {
            source: call
            for source, example in examples.items()
            if (call := _inputs_of(example)) is not None
        }
        cues = choose_cues(learned, {source: query_of(call) for source, call in calls.items()})
        fixed = tuple(line for line in memory.always if line not in learned)
        lookup = {line: cues.get(line, "") for line in memory.lessons if line not in fixed}
        looked_up = replace(memory, always=fixed, lookup=lookup, examples=())
        missed = _missed(learned, calls, self._shelf(str(looked_up)))
        common = set(fit_lines(missed, self.budget_tokens // 2))
        worked = self._worked(examples.values()) if self.examples else ()
        return str(
            replace(
                memory,
                always=(*fixed, *(line for line in lookup if line in common)),
                lookup={line: words for line, words in lookup.items() if line not in common},
                examples=tuple(dict.fromkeys((*memory.examples, *worked))),
            )
        )

    def _worked(self, examples: Iterable[Reflection]) -> Iterator[str]:
        """Yield the lines of what was right and is whole, without images and other objects."""
        for example in examples:
            inputs, outputs = _inputs_of(example), example.record.get("Generated Outputs")
            if not example.perfect or inputs is None or not isinstance(outputs, Mapping):
                continue
            if not any(map(is_cut, texts_in([inputs, outputs]))):
                with suppress(TypeError):  # a value that JSON cannot hold
                    yield write_example(inputs, outputs)

    def arrangements(self, text: str, book: Book) -> Sequence[Arrangement]:
        """Return memories that look up twice as many lessons, or half, unless ``k`` is set; and one
        that shows every call the user's own lessons alone.
        """
        memory = self._read(text)
        learned = {lesson.text for lesson in book.lessons if not lesson.own}
        common = [line for line in memory.always if line in learned]
        others: list[Arrangement] = []
        most = max(len(memory.lookup), len(memory.examples))
        if self.k is None and memory.k < most:
            others.append(Arrangement(str(replace(memory, k=2 * memory.k)), shows_fewer=False))
        if self.k is None and memory.k > 1 and most:
            others.append(Arrangement(str(replace(memory, k=memory.k // 2)), shows_fewer=True))
        if common:
            fixed = tuple(line for line in memory.always if line not in learned)
            lookup = {**memory.lookup, **dict.fromkeys(common, "")}
            flat = replace(memory, always=fixed, lookup=lookup)
            others.append(Arrangement(str(flat), shows_fewer=True))
        return others

    def read(self, text: str) -> Book:
        """Return the lessons of a memory; those that every call is shown are the user's own."""
        memory = self._read(text)
        book = Book().add(map(Taught, memory.always), born=-1)
        ids = {lesson.id for lesson in book.lessons}
        looked_up = (
            BookLesson(wording, line, born=-1, wordings=(wording,))
            for line in memory.lookup
            if (wording := lesson_id(line)) not in ids
        )
        return Book((*book.lessons, *looked_up))

    def serve(self, text: str, book: Book) -> str:
        """Return a memory that holds what a book serves.

        The user's own lessons, and those that every call was shown, stay so; others are looked up.
        """
        before = self._read(text)
        wordings = {wording for lesson in book.lessons for wording in lesson.wordings}
        standing = set(map(lesson_id, before.always))
        always = [line for line in before.always if lesson_id(line) not in wordings]
        lookup = {
            line: cues for line, cues in before.lookup.items() if lesson_id(line) not in wordings
        }
        for lesson in book.served:
            if lesson.own or not standing.isdisjoint(lesson.wordings):
                always.append(lesson.text)
            else:
                lookup[lesson.text] = before.lookup.get(lesson.text, "")
        return str(replace(before, always=tuple(always), lookup=lookup, k=self.k or before.k))

    def _shelf(self, text: str) -> Shelf:
        return shelf_of(text, self.retriever, self.budget_tokens)

    def _read(self, text: str) -> MemoryText:
        return read_memory(text, self.k or _FIRST_K)


def _missed(
    learned: Mapping[str, Sequence[str]], calls: Mapping[str, Mapping[str, object]], shelf: Shelf
) -> list[str]:
    """Return the lessons that too many of their examples are not shown, most missed first."""
    shown = {source: set(shelf.lessons(call)) for source, call in calls.items()}
    missed: Counter[str] = Counter()
    for line, sources in learned.items():
        near = [line in shown[source] for source in sources if source in shown]
        misses = near.count(False)
        if misses > max(1, min(len(near) // 2, len(calls) // _COMMON)):
            missed[line] = misses
    return [line for line, _ in missed.most_common()]


def _inputs_of(reflection: Reflection) -> Mapping[str, Any] | None:
    inputs = reflection.record.get("Inputs")
    return inputs if isinstance(inputs, Mapping) else None


def _bare(text: str) -> str:
    """Return a memory's text without worked examples; any other as it is."""
    memory = read_memory(text, _FIRST_K)
    return str(replace(memory, examples=())) if memory.examples else text
