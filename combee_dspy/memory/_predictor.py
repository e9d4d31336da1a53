"""The predictor that looks lessons up, its state, and loading it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Annotated, Any
from weakref import WeakKeyDictionary

import dspy
from dspy.utils.exceptions import AdapterParseError
from pydantic import Field

from combee_dspy.exceptions import ArgumentTypeError, ArgumentValueError
from combee_dspy.lessons import write_section
from combee_dspy.memory._base import Retriever
from combee_dspy.memory._bm25 import BM25
from combee_dspy.memory._shelf import Shelf, shelf_of
from combee_dspy.registry import Spec
from combee_dspy.strategies import parameters

_STATE = "memory"
# DSPy reads an instruction off its class and dedents it at every call: a long one takes longer than
# the lookup.
_Shelves = dict[tuple[Retriever, int], Shelf]
_SHELVES: WeakKeyDictionary[type[dspy.Signature], _Shelves] = WeakKeyDictionary()


@parameters
class _Settings:
    """What a state holds beside the text; the retriever as plain data."""

    retriever: dict[str, Any]
    budget_tokens: Annotated[int, Field(ge=1)]


class MemoryPredict(dspy.Predict):
    """A ``dspy.Predict`` whose instructions hold a memory, of which each call is shown a part.

    The instructions hold all lessons, so every tool of DSPy's that reads, writes or saves them sees
    the whole memory. A call with a ``signature`` of its own is left alone. ``dspy.Refine`` runs,
    but no hint of its reaches such a predictor: it finds hints by the signature, and each call's is
    new. Made by :func:`with_memory`.

    Attributes:
        retriever: Finds the lessons of a call.
        budget_tokens: Estimated tokens of the lessons that a call is shown, at most.
    """

    retriever: Retriever
    budget_tokens: int

    def forward(self, **inputs: Any) -> dspy.Prediction:
        """Answer with the lessons that are nearest to the inputs."""
        with self._named():
            return super().forward(**self._with_lessons(inputs))

    async def aforward(self, **inputs: Any) -> dspy.Prediction:
        """Answer with the lessons that are nearest to the inputs."""
        if self.retriever.waits:
            inputs = await asyncio.to_thread(self._with_lessons, inputs)
        else:
            inputs = self._with_lessons(inputs)
        with self._named():
            return await super().aforward(**inputs)

    def _with_lessons(self, inputs: dict[str, Any]) -> dict[str, Any]:
        if "signature" in inputs:
            return inputs
        shelves = _SHELVES.setdefault(self.signature, {})
        settings = (self.retriever, self.budget_tokens)
        shelf = shelves.get(settings)
        if shelf is None:
            shelf = shelves[settings] = shelf_of(self.signature.instructions, *settings)
        fields = {name: inputs[name] for name in self.signature.input_fields if name in inputs}
        lessons, examples = shelf.entries(fields)
        text = write_section(shelf.text.own, lessons)
        changed = {"demos": self.demos, **inputs}
        # The nearest example comes last, right before the question.
        changed["demos"] = [*changed["demos"], *examples[::-1]]
        return {**changed, "signature": self.signature.with_instructions(text)}

    @contextmanager
    def _named(self) -> Iterator[None]:
        """Let an answer that does not parse name this predictor's signature, not one call's."""
        try:
            yield
        except AdapterParseError as error:
            error.signature = self.signature
            raise

    def dump_state(self, json_mode: bool = True) -> dict[str, Any]:
        """Return the state of ``dspy.Predict``, and under "memory" how it looks lessons up."""
        retriever = Spec.of(self.retriever).to_dict()
        settings = {"retriever": retriever, "budget_tokens": self.budget_tokens}
        return {**super().dump_state(json_mode), _STATE: settings}

    def load_state(self, state: dict[str, Any], **options: bool) -> dspy.Predict:
        """Load what :meth:`dump_state` returned.

        Raises:
            ArgumentError: The state was saved with another retriever, or holds no settings of one.
        """
        others = {name: value for name, value in state.items() if name != _STATE}
        if _STATE not in state:
            self.__class__ = dspy.Predict  # what was saved looks nothing up
        else:
            settings = _Settings(**state[_STATE])
            # A file decides about texts and numbers, and never about what runs.
            if settings.retriever != Spec.of(self.retriever).to_dict():
                remedy = (
                    f"Give load_memory(retriever=…) what was saved: {settings.retriever!r:.300}."
                )
                raise ArgumentValueError("retriever", self.retriever, "is another", remedy)
            self.budget_tokens = settings.budget_tokens
        return dspy.Predict.load_state(self, others, **options)


def check_predictors(program: dspy.Module) -> None:
    """Refuse what a memory cannot serve.

    Raises:
        ArgumentTypeError: A predictor is of a class of its own.
    """
    for name, predictor in program.named_predictors():
        if type(predictor) not in (dspy.Predict, MemoryPredict):
            remedy = "A memory serves dspy.Predict, and what is built of it. Use another artifact."
            raise ArgumentTypeError(name, predictor, "is a predictor of another class", remedy)


def with_memory(
    program: dspy.Module, names: Collection[str], retriever: Retriever, budget_tokens: int
) -> dspy.Module:
    """Have predictors look up what their instructions hold; return the program, changed."""
    for name, predictor in program.named_predictors():
        if name in names:
            # The same object, since the program may hold it in lists, or twice.
            predictor.__class__ = MemoryPredict
            predictor.retriever, predictor.budget_tokens = retriever, budget_tokens
    return program


def load_memory(
    student: dspy.Module,
    path: str | os.PathLike[str],
    retriever: Retriever | None = None,
) -> dspy.Module:
    """Return a copy of a program with the memory that ``program.save(path)`` wrote.

    A plain program that loads the same file shows all lessons at every call.

    ::

        compiled.save("program.json")
        program = load_memory(MyProgram(), "program.json")

    Args:
        student: The program, as it was before it was compiled. Not changed.
        path: The JSON file.
        retriever: The one that it was compiled with; :class:`BM25` by default. A file names it and
            does not choose it: one from a stranger must not run what it names.

    Raises:
        ArgumentError: It was saved with another retriever.
    """
    check_predictors(student)
    program = student.deepcopy()
    names = [name for name, _ in program.named_predictors()]
    with_memory(program, names, retriever or BM25(), 1).load(os.fspath(path))
    return program
