"""Learns a book of lessons from recorded rollouts; its journal asks no LM twice."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import dspy

from combee_dspy import registry
from combee_dspy.aggregators import Aggregator
from combee_dspy.artifacts import Instruction
from combee_dspy.costs import without_callbacks
from combee_dspy.events import BookChanged, Event, WarningRaised
from combee_dspy.exceptions import (
    InfrastructureError,
)
from combee_dspy.guards import CopyIndex, Guards
from combee_dspy.hashing import canonical_json
from combee_dspy.journal import Effect, Journal, RunLog
from combee_dspy.lessons import Book, Taught, read_section, taught
from combee_dspy.lms import adapter_for
from combee_dspy.records import CallUsage, FailedCall, Reflection, Role
from combee_dspy.reflections import estimate_tokens
from combee_dspy.rollouts import Answer, CallJob, Slots, decode_answer, open_slots
from combee_dspy.search import Texts, call_effect, cut_copies, in_own_loop, scrubbed_answer
from combee_dspy.strategies import StrategyContext
from combee_dspy.traces import Selected
from combee_dspy.weighers import Weigher

__all__ = ["Allowance", "Learner"]

_COMPONENT = "prompt"

logger = logging.getLogger("combee_dspy")

# Tokens of a call beside its question: what says how to answer, and an answer without a limit.
_FORMAT, _ANSWER = 1_000, 4_000


class Allowance(Protocol):
    """Says what may still be spent. Belongs to whoever pays; called from one event loop."""

    def reserve(self, tokens: int) -> None:
        """Set aside what a call may take; raise where that is too much, and nothing is sent."""

    def settle(self, tokens: int, usage: Sequence[CallUsage]) -> None:
        """Give back what was set aside, and take what the call has cost."""


@dataclass(frozen=True, slots=True)
class Learner:
    """Reads traces into a book.

    Attributes:
        lm: Who reads.
        aggregator: How readers learn.
        weigher: Which lessons are served.
        selected: The traces.
        texts: Scrubs what readers answer.
        seed: Seed of the aggregator.
        allowance: What may be spent; ``None`` for any amount.
    """

    lm: dspy.BaseLM
    aggregator: Aggregator
    weigher: Weigher
    selected: Selected
    texts: Texts
    seed: int
    allowance: Allowance | None

    def learn(
        self, text: str, before: Book, num_threads: int | None, log_dir: str | Path | None
    ) -> tuple[Book, tuple[CallUsage, ...]]:
        """Read the traces on a loop of its own, from a prompt and what was learned before.

        Returns:
            The book, and what all parts of the run have spent, by role and model.
        """
        # MLflow's autologging would record readers among the traces that the next call reads.
        callbacks = without_callbacks(lambda other: type(other).__module__.startswith("mlflow."))
        with dspy.context(callbacks=callbacks), closing(Journal(log_dir)) as journal:
            advice = "" if log_dir is None else f"The same call goes on with {log_dir}."
            return in_own_loop(lambda: self._learn(text, before, num_threads, journal), advice)

    async def _learn(
        self, text: str, before: Book, num_threads: int | None, journal: Journal
    ) -> tuple[Book, tuple[CallUsage, ...]]:
        about = {"learn": str(self.selected), "model": str(self.lm.model)}
        with closing(journal.run("learn", self.seed, self._identity(text), about)) as log:
            async with open_slots(num_threads) as slots:
                reader = Asking(slots, log, self.lm, self.texts, self.allowance)
                book = await self._read(text, before, reader, log)
            await log.finish("finished", {"lessons": len(book.served)})
            return book, log.usage()

    async def _read(self, text: str, before: Book, asking: Asking, log: RunLog) -> Book:
        def emit(event: Event) -> None:
            if isinstance(event, WarningRaised):
                logger.warning("%s", event.text)
            log.emit(event, step=0, component=_COMPONENT)

        before = before.add(map(Taught, read_section(text)[1]), born=-1)
        words = Guards().max_copied_words
        context = StrategyContext(
            _COMPONENT,
            text,
            asking.ask,
            emit,
            seed=self.seed,
            longest_quote=words,
            book=before,
        )
        reflections = self.selected.reflections
        lessons = await Instruction().learn(_arrived(reflections), self.aggregator, context)
        if words is not None:
            examples = (trace.inputs for trace in self.selected.traces)
            lessons = cut_copies(lessons, CopyIndex(examples, words), [text], emit)
        new = taught(lessons, reflections, 0)
        book = self.weigher.applied(before.add(new, 0).edit(lessons.edits).book)
        emit(BookChanged.of(book))
        return book

    def _identity(self, text: str) -> dict[str, str]:
        strategies = [registry.Spec.of(self.aggregator), registry.Spec.of(self.weigher)]
        records = [[reflection.record for reflection in self.selected.reflections]]
        return {
            "traces": _digest(records),
            "task": _digest([[_COMPONENT, text]]),
            "strategies": canonical_json([spec.to_dict() for spec in strategies]),
            "model": str(self.lm.model),
        }


def _digest(value: object) -> str:
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Asking:
    """Asks an LM, and asks nothing twice: an answer is in the journal before it is used."""

    slots: Slots
    log: RunLog
    lm: dspy.BaseLM
    texts: Texts
    allowance: Allowance | None

    async def ask(
        self,
        signature: type[dspy.Signature],
        inputs: Mapping[str, Any],
        place: tuple[str | int, ...],
        role: Role,
    ) -> dspy.Prediction | FailedCall:
        question = canonical_json([signature.instructions, inputs])
        effect = call_effect(signature, place, role, question, 0)
        value = self.log.find(effect.key)
        answer = None if value is None else decode_answer(value)
        if answer is None:
            self.log.check_room()
            job = CallJob(signature, inputs, self.lm, adapter_for(self.lm), role)
            buying = asyncio.ensure_future(self._buy(job, effect, estimate_tokens(question)))
            try:
                answer = await asyncio.shield(buying)
            except asyncio.CancelledError:
                # What is sent is paid for: it ends in the books. What waits is not sent.
                with self.slots.refusing(0):
                    await asyncio.gather(buying, return_exceptions=True)
                raise
        return answer.outcome

    async def _buy(self, job: CallJob, effect: Effect, tokens: int) -> Answer:
        answer = await self._paid(job, tokens)
        effect, answer = scrubbed_answer(replace(effect, usage=answer.usage), answer, self.texts)
        await self.log.keep(effect)
        return answer

    async def _paid(self, job: CallJob, prompt: int) -> Answer:
        if self.allowance is None:
            return await self.slots.call(job, (0,))
        # The format of the answer is part of the prompt; a model may write as much as it is let.
        most = prompt + _FORMAT + int(self.lm.kwargs.get("max_tokens") or _ANSWER)
        self.allowance.reserve(most)
        usage: tuple[CallUsage, ...] = ()
        try:
            answer = await self.slots.call(job, (0,))
            usage = answer.usage
        except InfrastructureError as error:
            usage = tuple(error.usage)
            raise
        finally:
            self.allowance.settle(most, usage)
        return answer


def _arrived(reflections: Iterable[Reflection]) -> list[asyncio.Task[Reflection]]:
    return [asyncio.ensure_future(asyncio.sleep(0, reflection)) for reflection in reflections]
