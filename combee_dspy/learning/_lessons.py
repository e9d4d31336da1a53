"""Lessons from recorded rollouts, for people with logs and no DSPy program."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import dspy

from combee_dspy import registry
from combee_dspy.aggregators import Aggregator
from combee_dspy.artifacts import Instruction
from combee_dspy.exceptions import ArgumentTypeError, ArgumentValueError
from combee_dspy.files import file_name, make_folder, write_plain
from combee_dspy.json_texts import sound
from combee_dspy.learning._engine import Allowance, Learner
from combee_dspy.lessons import Book, encode_book, read_section
from combee_dspy.lms.redact import make_mask
from combee_dspy.options import Privacy, positive
from combee_dspy.records import CallUsage
from combee_dspy.search import Texts
from combee_dspy.skills import SkillFolder, write_skill
from combee_dspy.traces import Selected, Selection, Traces, open_traces
from combee_dspy.weighers import Weigher

__all__ = ["LearnedLessons", "learn_lessons"]

logger = logging.getLogger("combee_dspy")


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
        """Write ``lessons.json`` and ``prompt.md``, or a skill in their place.

        Args:
            folder: Where; it is made where it is missing.
            skill: The name of a skill for coding agents: ``<folder>/<name>/SKILL.md`` (see
                :func:`combee_dspy.skills.write_skill`).

        Returns:
            The files; the last is what a model reads first.

        Raises:
            ArgumentValueError: ``skill`` cannot name one.
            NotPlainFileError: A link or a special file lies in the place of a file.
            OSError: A file cannot be written.
        """
        home = Path(folder)
        if skill:
            if file_name(skill) != skill:
                remedy = "Use lower case letters and digits, words joined by '-': order-codes."
                raise ArgumentValueError("skill", skill, "cannot name a skill", remedy)
            whole = SkillFolder(self.book, read_section(self.prompt)[0])
            return write_skill(home / skill, whole, note="Not validated. ")[::-1]
        make_folder(home)
        write_plain(home / "lessons.json", encode_book(self.book))
        # An answer that was cut off may end with half a character.
        write_plain(home / "prompt.md", sound(self.prompt) + "\n")
        return home / "lessons.json", home / "prompt.md"


def learn_lessons(  # noqa: PLR0913 - keywords, each with a default but the LM
    traces: Traces,
    *,
    reflection_lm: str | dspy.BaseLM,
    task: str = "",
    selection: Selection | None = None,
    aggregator: str | Aggregator = "reference-scan",
    weigher: str | Weigher = "posterior",
    privacy: Privacy | None = None,
    num_threads: int | None = None,
    log_dir: str | Path | None = None,
    book: Book | None = None,
    allowance: Allowance | None = None,
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
        num_threads: LM calls in flight at once; ``None`` for as many as the service takes.
        log_dir: Where the journal lies. With it, a run that was killed reads nothing twice.
        book: What was learned before, such as ``read_skill("skills/codes").book``: its examples go
            on to count.
        allowance: Is asked before each call, and told what it has cost.

    Returns:
        The book, and the prompt that serves it.

    Raises:
        ArgumentTypeError: ``reflection_lm`` is no LM, or a strategy is of another kind.
        ArgumentValueError: No trace says how it went, or a name is unknown.
        TraceSourceError: The traces cannot be read.
        JournalMismatchError: ``log_dir`` holds a run on other traces or with other settings.
        InfrastructureError: The service kept failing; what was read is in the journal.
    """
    positive("num_threads", num_threads)
    if not isinstance(reflection_lm, (str, dspy.BaseLM)):
        remedy = "Give a dspy.LM or a model's name."
        raise ArgumentTypeError("reflection_lm", reflection_lm, "is no LM", remedy)
    lm = dspy.LM(reflection_lm) if isinstance(reflection_lm, str) else reflection_lm
    texts = Texts(privacy or Privacy(texts="redacted"), make_mask([lm]))
    strategies = (
        cast("Aggregator", registry.resolve("aggregator", aggregator)),
        cast("Weigher", registry.resolve("weigher", weigher)),
    )
    selection = selection or Selection()
    selected = selection.choose(open_traces(traces), texts.scrub)
    selected.check()
    logger.info("%s", selected)
    learner = Learner(lm, *strategies, selected, texts, selection.seed, allowance)
    learned, usage = learner.learn(task, book or Book(), num_threads, log_dir)
    return LearnedLessons(learned, Instruction().serve(task, learned), selected, usage)
