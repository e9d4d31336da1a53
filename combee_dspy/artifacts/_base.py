"""The artifact contract: what a run learns, how it is learned, and how a program shows it."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import dspy

from combee_dspy.aggregators import Aggregator
from combee_dspy.lessons import Book
from combee_dspy.records import Lessons, Reflection, Rollout
from combee_dspy.strategies import Strategy, StrategyContext


@dataclass(frozen=True, slots=True)
class Trajectory:
    """One example of a minibatch, by its position from 0, and what the program made of it.

    ``record`` is GEPA's reflective record of the component, where it is a predictor with something
    to say; of a rollout that was recorded elsewhere (``is_recorded``) what a reader sees of it.
    """

    index: int
    example: dspy.Example
    rollout: Rollout
    record: Mapping[str, Any] | None = None
    is_recorded: bool = False


@dataclass(frozen=True, slots=True)
class Arrangement:
    """Another text that shows the same lessons, and whether a call is shown fewer of them."""

    text: str
    shows_fewer: bool


class Artifact(Strategy):
    """What a run edits: texts by component, and the programs that code makes of them.

    All verbs are pure but for the LM calls of :meth:`reflect` and :meth:`learn`, so a resumed run
    that reads its calls from the journal builds the same programs.

    Attributes:
        judges: Whether its reflections judge the lessons that their trajectories were shown (see
            :class:`combee_dspy.edits.Credit`), so that tests of lessons need fewer rollouts.
        looks_up: Whether a call is shown a part of a text's lessons, by its inputs.
    """

    kind: ClassVar[str] = "artifact"
    judges: ClassVar[bool] = False
    looks_up: ClassVar[bool] = False

    @abstractmethod
    def seed(self, student: dspy.Module) -> dict[str, str]:
        """Return the candidate that is the student itself."""

    @abstractmethod
    def build(self, student: dspy.Module, candidate: Mapping[str, str]) -> dspy.Module:
        """Return a copy of the student that shows a candidate."""

    @abstractmethod
    def components(self, student: dspy.Module) -> tuple[str, ...]:
        """Return the components that an update may be about, in a stated order."""

    def task(self, student: dspy.Module) -> str:
        """Return the student's instructions besides the candidate's texts.

        The search puts it into ``context.notes``.
        """
        return ""

    @abstractmethod
    async def reflect(
        self, trajectory: Trajectory, component: str, context: StrategyContext
    ) -> Reflection | None:
        """Return what a trajectory teaches about a component, or ``None`` for nothing.

        The context's text is the one that the rollout was made with.
        """

    @abstractmethod
    async def learn(
        self,
        reflections: Sequence[Awaitable[Reflection | None]],
        aggregator: Aggregator,
        context: StrategyContext,
    ) -> Lessons:
        """Return what a minibatch teaches about the context's component.

        There is a reflection for each position of the minibatch, which may be awaited any number of
        times. The context's text is the one that the rollouts were made with.
        """

    def shows(self, text: str, inputs: Mapping[str, object]) -> tuple[str, ...] | None:
        """Return the ids of the lessons that a predictor's call with these inputs is shown; pure.

        ``None``, the default: every call is shown all of a component's text.
        """
        return None

    def excerpt(self, text: str, calls: Sequence[Mapping[str, object]]) -> str:
        """Return what readers of calls with these inputs see of a component's text; pure.

        All of it by default.
        """
        return text

    def arranged(self, text: str, book: Book, examples: Mapping[str, Reflection]) -> str:
        """Return a text that serves a book, so arranged that examples are shown what they teach.

        Where the artifact looks lessons up, ``examples`` has the component's reflections of this
        run by the source of a lesson; else it is empty. Pure.
        """
        return text

    def arrangements(self, text: str, book: Book) -> Sequence[Arrangement]:
        """Return other arrangements of a text, for validation to choose from; none by default.

        In the order in which to try them. Pure.
        """
        return ()

    @abstractmethod
    def read(self, text: str) -> Book:
        """Return the book of the lessons that a component's text shows; pure."""

    def begin(self, text: str) -> Book:
        """Return the book that a run begins with, where the student's component has this text."""
        return self.read(text)

    @abstractmethod
    def serve(self, text: str, book: Book) -> str:
        """Return a component's text that shows the lessons which a book serves; pure.

        What the book holds and does not serve leaves the text. What the book does not hold stays in
        it.
        """


async def aggregate_changed(
    change: Callable[[Awaitable[Reflection | None]], Coroutine[None, None, Reflection | None]],
    reflections: Sequence[Awaitable[Reflection | None]],
    aggregator: Aggregator,
    context: StrategyContext,
) -> Lessons:
    """Return what an aggregator makes of reflections, each changed as soon as it is there."""
    tasks = [asyncio.ensure_future(change(reflection)) for reflection in reflections]
    try:
        return await aggregator.aggregate(tasks, context)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
