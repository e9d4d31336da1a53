"""A playbook that learns while it serves."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import dspy

from combee_dspy.aggregators import Aggregator, Union, arrived
from combee_dspy.artifacts._base import Trajectory
from combee_dspy.artifacts._bullets import read_text
from combee_dspy.artifacts._playbook import COMPONENT, Playbook
from combee_dspy.costs import serving
from combee_dspy.events import Event, encode
from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.files import read_plain, write_plain
from combee_dspy.hashing import row_hash
from combee_dspy.lessons import Book, taught
from combee_dspy.lms import adapter_for
from combee_dspy.records import FailedCall, Metric, Role, Rollout
from combee_dspy.rollouts import (
    CallJob,
    RolloutJob,
    Slots,
    open_slots,
    output_of,
    run_on_own_loop,
    takes_trace,
)
from combee_dspy.strategies import StrategyContext
from combee_dspy.weighers import Posterior

logger = logging.getLogger("combee_dspy")

T = TypeVar("T")

_NOW = (0,)


class OnlinePlaybook:
    """Serves requests with a playbook and learns from each batch, without a search.

    ::

        serving = OnlinePlaybook(program, metric, reflection_lm=lm, path="playbook.txt")
        for batch in stream:
            answers = serving.predict(batch)   # with what was learned before
            serving.learn()                    # from these answers and their feedback

    The metric scores an answer as soon as it is there, so the examples must hold what it needs. A
    stream is no held-out set: its score supports no claim. Used from one thread; who serves decides
    when to stop.

    Args:
        student: The program. Not changed; one that shows a playbook already goes on with it.
        metric: GEPA's metric, with feedback.
        reflection_lm: Reflects and reads; DSPy's setting by default.
        artifact: What is learned, and how.
        aggregator: Turns key insights into lessons; ``union`` by default.
        num_threads: Calls in flight at most; ``None`` for as many as the service takes.
        path: A file that keeps the playbook after each batch; the next server goes on with it. One
            that holds anything else is refused, and stays as it is.
        failure_score: The score of an answer that failed.
        seed: Decides how reflections are dealt.

    Attributes:
        text: The playbook so far, as text.
        book: The lessons so far, with their evidence; those that are retired too.
    """

    def __init__(  # noqa: PLR0913 - each has a default
        self,
        student: dspy.Module,
        metric: Metric,
        *,
        reflection_lm: dspy.BaseLM | None = None,
        artifact: Playbook | None = None,
        aggregator: Aggregator | None = None,
        num_threads: int | None = None,
        path: str | Path | None = None,
        failure_score: float = 0.0,
        seed: int = 0,
    ) -> None:
        self._student, self._metric, self._lm = student, metric, reflection_lm
        self._artifact, self._aggregator = artifact or Playbook(), aggregator or Union()
        self._num_threads, self._failure_score, self._seed = num_threads, failure_score, seed
        self._path = None if path is None else Path(path)
        self.text = self._artifact.seed(student)[COMPONENT]
        if self._path is not None and os.path.lexists(self._path):
            self.text = _playbook_in(self._path)
        self.book = self._artifact.read(self.text)
        self._served: tuple[Trajectory, ...] = ()
        self._scores: list[float] = []
        self._batch = 0

    @property
    def online_score(self) -> float | None:
        """Mean score of all answers, each before its example taught anything; ``None`` at first."""
        return sum(self._scores) / len(self._scores) if self._scores else None

    @property
    def rollouts(self) -> tuple[Rollout, ...]:
        """Those of the batch that was answered last and not learned from yet."""
        return tuple(trajectory.rollout for trajectory in self._served)

    def program(self) -> dspy.Module:
        """Return the program with what has been learned so far."""
        return serving(self._artifact.build(self._student, {COMPONENT: self.text}))

    def predict(self, batch: Sequence[dspy.Example]) -> tuple[dspy.Prediction | None, ...]:
        """Answer every example with what was learned before; ``None`` where the program raised.

        All are answered at once. A batch that was not learned from is forgotten.

        Raises:
            ArgumentValueError: The batch is empty.
            InfrastructureError: Rollouts kept failing for reasons outside the program.
        """
        if not batch:
            raise ArgumentValueError("batch", batch, "is empty", "Give at least one example.")
        program, sees_trace = self.program(), takes_trace(self._metric)
        jobs = [
            RolloutJob(
                program,
                example,
                row_hash(example),
                self._metric,
                self._failure_score,
                sees_trace=sees_trace,
                role="serving",
            )
            for example in batch
        ]

        async def answer_all(slots: Slots) -> list[Rollout]:
            return await asyncio.gather(*(slots.rollout(job, _NOW) for job in jobs))

        rollouts = self._run(answer_all)
        self._served = tuple(map(Trajectory, range(len(batch)), batch, rollouts))
        self._scores += [rollout.score for rollout in rollouts]
        return tuple(output_of(rollout) for rollout in rollouts)

    def learn(self) -> str:
        """Learn from the batch that was answered last, once, and return the playbook's text.

        Raises:
            InfrastructureError: The service kept failing; the batch can be learned from again.
        """
        if self._served:
            self.book = self._run(self._learn_batch)
            self.text = self._artifact.serve(self.text, self.book)
            self._served = ()
            self._batch += 1
            if self._path is not None:
                write_plain(self._path, self.text)
        return self.text

    async def _learn_batch(self, slots: Slots) -> Book:
        context = self._context(slots)
        reflections = [
            asyncio.ensure_future(self._artifact.reflect(trajectory, COMPONENT, context))
            for trajectory in self._served
        ]
        try:
            lessons = await self._artifact.learn(reflections, self._aggregator, context)
            read = [item for item in await arrived(reflections) if item is not None]
        finally:
            for reflection in reflections:
                reflection.cancel()
        book = self.book.add(taught(lessons, read, self._batch), self._batch)
        return Posterior().applied(book.edit(lessons.edits).book)

    def _context(self, slots: Slots) -> StrategyContext:
        adapter = adapter_for(self._lm)

        async def call(
            signature: type[dspy.Signature],
            inputs: Mapping[str, object],
            place: tuple[str | int, ...],
            role: Role,
        ) -> dspy.Prediction | FailedCall:
            job = CallJob(signature, inputs, self._lm, adapter, role)
            return (await slots.call(job, _NOW)).outcome

        return StrategyContext(
            COMPONENT,
            self.text,
            call,
            _log_event,
            self._batch,
            self._seed,
            notes=self._artifact.task(self._student),
            book=self.book,
        )

    def _run(self, work: Callable[[Slots], Coroutine[Any, Any, T]]) -> T:
        async def run_in_slots() -> T:
            async with open_slots(self._num_threads) as slots:
                return await work(slots)

        return run_on_own_loop(run_in_slots)


def _playbook_in(path: Path) -> str:
    """Return the playbook that a file holds, which the next batch will replace.

    Raises:
        ArgumentValueError: It holds something else, which must not be lost.
    """
    remedy = "Name another file, or move this one away."
    try:
        # As bytes: reading as text would make line ends of the carriage returns in a bullet.
        text = read_plain(path).decode("utf-8")
    except UnicodeDecodeError as error:
        raise ArgumentValueError("path", str(path), "is no UTF-8 text", remedy) from error
    if text.strip() and (ignored := read_text(text).ignored):
        raise ArgumentValueError("path", str(path), f"is no playbook: {ignored[0]}", remedy)
    return text


def _log_event(event: Event) -> None:
    logger.warning("playbook: %s: %s", event.kind, encode(event))
