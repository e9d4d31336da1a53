"""The reducer alone over recorded rollouts, for people with logs and no DSPy program.

    learned = learn_lessons(JsonLines("logs.jsonl"), reflection_lm="openai/gpt-5")
    print(learned.prompt)
    learned.save("learned")

Nothing is run again: readers learn lessons from what was recorded, and a book relates and weighs
them. Nothing is validated either: see :meth:`combee_dspy.Combee.compile` for that.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import dspy

from combee_dspy import registry
from combee_dspy.aggregators import Aggregator
from combee_dspy.artifacts import Instruction
from combee_dspy.events import BookChanged, CopiesRemoved, Event, WarningRaised
from combee_dspy.exceptions import ArgumentTypeError, ArgumentValueError
from combee_dspy.files import write_plain
from combee_dspy.guards import CopyIndex, Guards
from combee_dspy.hashing import canonical_json
from combee_dspy.journal import Effect, Journal, RunLog
from combee_dspy.json_texts import sound
from combee_dspy.lessons import Book, BookLesson, taught
from combee_dspy.lms import adapter_for
from combee_dspy.lms.redact import forms_of, mask, secret_variables, secrets_of
from combee_dspy.options import Privacy
from combee_dspy.records import CallUsage, FailedCall, Lessons, Reflection, Role
from combee_dspy.rollouts import (
    CallJob,
    Fixed,
    Slots,
    Threads,
    decode_answer,
    encode_answer,
)
from combee_dspy.search import Texts, in_own_loop
from combee_dspy.strategies import EmitFn, StrategyContext
from combee_dspy.traces import Selected, Selection, Traces, open_traces
from combee_dspy.weighers import Weigher

__all__ = ["LearnedLessons", "learn_lessons"]

logger = logging.getLogger("combee_dspy")

_COMPONENT = "prompt"
_SKILL_NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_SKILL_NAME_CHARACTERS = 64


@dataclass(frozen=True, slots=True)
class LearnedLessons:
    """What recorded rollouts taught. No claim: nothing was validated.

    Attributes:
        book: Every lesson, with the ids of the traces that teach it.
        prompt: The task's text with the served lessons.
        selected: Which traces were read, and why the others were not.
        usage: What all parts of the run have spent, by role and model.
    """

    book: Book
    prompt: str
    selected: Selected
    usage: tuple[CallUsage, ...] = ()

    def save(self, folder: str | Path, skill: str = "") -> tuple[Path, ...]:
        """Write ``lessons.json`` and ``prompt.md``, or a skill in the place of the prompt.

        Args:
            folder: Where; it is made where it is missing.
            skill: The name of a skill for coding agents: ``<folder>/<name>/SKILL.md``.

        Returns:
            The files.

        Raises:
            ArgumentValueError: ``skill`` cannot name one.
            NotPlainFileError: A link or a special file lies in the place of a file.
            OSError: A file cannot be written.
        """
        home = Path(folder)
        text = home / "prompt.md"
        if skill:
            if not _SKILL_NAME.fullmatch(skill) or len(skill) > _SKILL_NAME_CHARACTERS:
                remedy = "Use lower case letters and digits, words joined by '-': order-codes."
                raise ArgumentValueError("skill", skill, "cannot name a skill", remedy)
            text = home / skill / "SKILL.md"
        text.parent.mkdir(parents=True, exist_ok=True)
        lessons = [_as_data(lesson) for lesson in self.book.lessons]
        data = json.dumps(lessons, indent=2, ensure_ascii=False)
        # An answer that was cut off may end with half a character.
        write_plain(home / "lessons.json", sound(data) + "\n")
        write_plain(text, sound(self._skill(skill) if skill else self.prompt) + "\n")
        return home / "lessons.json", text

    def _skill(self, name: str) -> str:
        count = len(self.selected.traces)
        about = f"What {count} recorded runs taught about {name.replace('-', ' ')}. Not validated."
        lines = ["---", f"name: {name}", f"description: {json.dumps(about)}", "---", ""]
        return "\n".join([*lines, self.prompt])


def learn_lessons(  # noqa: PLR0913 - keywords, each with a default but the LM
    traces: Traces,
    *,
    reflection_lm: str | dspy.BaseLM,
    task: str = "",
    selection: Selection | None = None,
    aggregator: str | Aggregator = "reference-scan",
    weigher: str | Weigher = "posterior",
    privacy: Privacy | None = None,
    num_threads: int = 16,
    log_dir: str | Path | None = None,
) -> LearnedLessons:
    """Learn lessons from recorded rollouts, and run nothing.

    Texts are redacted before anything reads them. Lessons never quote a trace at length.

    Args:
        traces: A source, or any iterable of traces (see :data:`~combee_dspy.traces.Traces`).
        reflection_lm: Who reads: an LM, or a model's name.
        task: The prompt that answered; lessons are what it should have said besides. A section
            "Lessons learned:" at its end is where the book begins.
        selection: Which traces are read; ``None`` for :class:`~combee_dspy.traces.Selection`'s
            defaults.
        aggregator: Name or object: how readers learn.
        weigher: Name or object: which lessons are served.
        privacy: What no reader sees; ``None`` for keys and personal data.
        num_threads: LM calls in flight at once.
        log_dir: Where the journal lies. With it, a run that was killed reads nothing twice.

    Returns:
        The book, and the prompt that serves it.

    Raises:
        ArgumentTypeError: ``reflection_lm`` is no LM, or a strategy is of another kind.
        ArgumentValueError: No trace says how it went, or a name is unknown.
        TraceSourceError: The traces cannot be read.
        JournalMismatchError: ``log_dir`` holds a run on other traces or with other settings.
        InfrastructureError: The service kept failing; what was read is in the journal.
    """
    if not isinstance(reflection_lm, (str, dspy.BaseLM)):
        remedy = "Give a dspy.LM or a model's name."
        raise ArgumentTypeError("reflection_lm", reflection_lm, "is no LM", remedy)
    if num_threads < 1:
        remedy = "Give at least one worker."
        raise ArgumentValueError("num_threads", num_threads, "is below 1", remedy)
    lm = dspy.LM(reflection_lm) if isinstance(reflection_lm, str) else reflection_lm
    secrets = forms_of({*secrets_of(lm), *secret_variables()})
    texts = Texts(privacy or Privacy(texts="redacted"), lambda text: mask(text, secrets))
    chosen = selection or Selection()
    learner = _Learner(
        lm,
        cast("Aggregator", registry.resolve("aggregator", aggregator)),
        cast("Weigher", registry.resolve("weigher", weigher)),
        chosen.choose(open_traces(traces), texts.scrub),
        texts,
        task,
        chosen.seed,
    )
    learner.check()
    logger.info("%s", learner.selected)
    return in_own_loop(lambda: learner.learn(num_threads, log_dir))


@dataclass(frozen=True, slots=True)
class _Learner:
    """One learning: what is read, by whom, and how it becomes a book."""

    lm: dspy.BaseLM
    aggregator: Aggregator
    weigher: Weigher
    selected: Selected
    texts: Texts
    task: str
    seed: int

    def check(self) -> None:
        """Refuse traces that teach nothing.

        Raises:
            ArgumentValueError: None was chosen, or all went right.
        """
        remedy = (
            "A trace needs a score, feedback, an expected answer or an error: name the fields that"
            " hold them, or log them as assessments."
        )
        if not self.selected.traces:
            raise ArgumentValueError("traces", str(self.selected), "teach nothing", remedy)
        if not self.selected.failures:
            remedy = "Give traces that failed, or raise Selection(perfect=…)."
            raise ArgumentValueError("traces", str(self.selected), "all went right", remedy)

    async def learn(self, num_threads: int, log_dir: str | Path | None) -> LearnedLessons:
        journal = Journal(log_dir)
        try:
            log = journal.run("learn", self.seed, self._identity(), self._description())
            slots = Slots(Threads().start(num_threads), Fixed(num_threads))
            try:
                learned = await self._learn(_Asking(slots, log, self.lm, self.texts), log)
            finally:
                await slots.close()
            await log.finish("finished", {"lessons": len(learned.book.served)})
            learned = replace(learned, usage=log.usage())
            log.close()
            return learned
        finally:
            journal.close()

    async def _learn(self, asking: _Asking, log: RunLog) -> LearnedLessons:
        def emit(event: Event) -> None:
            if isinstance(event, WarningRaised):
                logger.warning("%s", event.text)
            log.emit(event, step=0, component=_COMPONENT)

        artifact = Instruction()
        before = artifact.read(self.task)
        words = Guards().max_copied_words
        context = StrategyContext(
            _COMPONENT,
            self.task,
            asking.ask,
            emit,
            seed=self.seed,
            longest_quote=words,
            book=before,
        )
        reflections = self.selected.reflections
        lessons = await artifact.learn(_arrived(reflections), self.aggregator, context)
        if words is not None:
            examples = (trace.inputs for trace in self.selected.traces)
            lessons = _in_own_words(lessons, CopyIndex(examples, words), self.task, emit)
        new = taught(lessons, reflections, 0)
        book = self.weigher.applied(before.add(new, 0).edit(lessons.edits).book)
        emit(BookChanged.of(book))
        return LearnedLessons(book, artifact.serve(self.task, book), self.selected)

    def _identity(self) -> dict[str, str]:
        strategies = [registry.Spec.of(self.aggregator), registry.Spec.of(self.weigher)]
        records = canonical_json([reflection.record for reflection in self.selected.reflections])
        return {
            "traces": hashlib.sha256(records.encode()).hexdigest(),
            "task": hashlib.sha256(self.task.encode("utf-8", "replace")).hexdigest(),
            "strategies": canonical_json([spec.to_dict() for spec in strategies]),
            "model": str(self.lm.model),
        }

    def _description(self) -> dict[str, Any]:
        return {"learn": str(self.selected), "model": str(self.lm.model)}


@dataclass(frozen=True, slots=True)
class _Asking:
    """Asks an LM, and asks nothing twice: an answer is in the journal before it is used."""

    slots: Slots
    log: RunLog
    lm: dspy.BaseLM
    texts: Texts

    async def ask(
        self,
        signature: type[dspy.Signature],
        inputs: Mapping[str, Any],
        place: tuple[str | int, ...],
        role: Role,
    ) -> dspy.Prediction | FailedCall:
        question = canonical_json([signature.instructions, inputs])
        digest = hashlib.blake2b(question.encode(), digest_size=8).hexdigest()
        key = f"call/0/{'/'.join(map(str, place))}/{role}/{digest}"
        value = self.log.find(key)
        answer = None if value is None else decode_answer(value)
        if answer is None:
            self.log.check_room()
            job = CallJob(signature, inputs, self.lm, adapter_for(self.lm), role)
            answer = await self.slots.call(job, (0,))
            value = self.texts.scrubbed(encode_answer(answer))
            error = answer.outcome.error if isinstance(answer.outcome, FailedCall) else None
            purpose, usage = signature.__name__, answer.usage
            effect = Effect(key, "call", value, role, purpose, 0, _COMPONENT, error=error)
            await self.log.keep(replace(effect, usage=usage))
            answer = decode_answer(value) or answer
        return answer.outcome


def _arrived(reflections: Iterable[Reflection]) -> list[asyncio.Future[Reflection | None]]:
    loop = asyncio.get_running_loop()
    futures: list[asyncio.Future[Reflection | None]] = []
    for reflection in reflections:
        future: asyncio.Future[Reflection | None] = loop.create_future()
        future.set_result(reflection)
        futures.append(future)
    return futures


def _in_own_words(lessons: Lessons, copies: CopyIndex, task: str, emit: EmitFn) -> Lessons:
    """Return lessons without what they copy from traces."""
    own: list[Any] = []
    refused: list[str] = []
    for lesson in lessons.lessons:
        text, copied = copies.cut(lesson.text, [task])
        refused.extend(copied)
        own += [replace(lesson, text=text)] if text else []
    if refused:
        emit(CopiesRemoved(tuple(refused), len(refused)))
    return replace(lessons, lessons=tuple(own))


def _as_data(lesson: BookLesson) -> dict[str, object]:
    return {
        "id": lesson.id,
        "text": lesson.text,
        "state": lesson.state,
        "reason": lesson.reason,
        "traces": list(lesson.sources),
        "against": list(lesson.against),
        "rule": lesson.rule,
        "rivals": list(lesson.rivals),
        "wordings": list(lesson.wordings),
    }
