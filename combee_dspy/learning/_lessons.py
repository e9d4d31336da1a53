"""Lessons from recorded rollouts, for people with logs and no DSPy program."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

import dspy

from combee_dspy.aggregators import Aggregator
from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.files import write_plain
from combee_dspy.json_texts import sound
from combee_dspy.learning._engine import Part, make_learner
from combee_dspy.lessons import Book, BookLesson
from combee_dspy.options import Privacy
from combee_dspy.records import CallUsage
from combee_dspy.traces import Selected, Selection, Traces
from combee_dspy.weighers import Weigher

__all__ = ["LearnedLessons", "learn_lessons"]

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
    learner = make_learner(traces, reflection_lm, selection, (aggregator, weigher), privacy)
    part = Part(_COMPONENT, task, learner.selected.reflections)
    outcome = learner.learn((part,), num_threads, log_dir)
    texts, books = outcome.texts, outcome.books
    return LearnedLessons(books[_COMPONENT], texts[_COMPONENT], learner.selected, outcome.usage)


def _as_data(lesson: BookLesson) -> dict[str, object]:
    return {
        "id": lesson.id,
        "text": lesson.text,
        "sources": list(lesson.sources),
        "against": list(lesson.against),
        "born": lesson.born,
        "state": lesson.state,
        "reason": lesson.reason,
        "effect": None,
        "rule": lesson.rule,
        "rivals": list(lesson.rivals),
        "wordings": list(lesson.wordings),
    }
