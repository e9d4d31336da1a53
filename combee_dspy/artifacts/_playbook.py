"""The ``playbook`` artifact: what it shows, whom it asks, and how it is learned."""

from __future__ import annotations

import logging
import re
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, ClassVar

import dspy
from pydantic import Field

from combee_dspy.aggregators import Aggregator, arrived
from combee_dspy.artifacts._base import Artifact, Trajectory, aggregate_changed
from combee_dspy.artifacts._bullets import SECTIONS, Bullet, BulletText, read_text
from combee_dspy.artifacts._insights import (
    collect_judgements,
    extract_insight,
    file_lessons,
    lessons_in,
)
from combee_dspy.artifacts._reflecting import bullets_for, reflect_on
from combee_dspy.lessons import Book, BookLesson, lesson_id
from combee_dspy.records import Lessons, Reflection
from combee_dspy.strategies import StrategyContext, parameters

logger = logging.getLogger("combee_dspy")

COMPONENT = "playbook"
# What a built program notes beside what it shows: the whole playbook, and the ids of the bullets in
# sight.
_WHOLE, _SEEN = "combee_playbook", "combee_playbook_shown"
_BEGIN, _END = "=== PLAYBOOK ===", "=== END OF PLAYBOOK ==="
_HOW = (
    "Advice from earlier tasks. Where you explain yourself, name the ids of the bullets that you"
    " follow."
)
_VISIBLE = re.compile(rf"\n*^{_BEGIN}$\n(.*?)^{_END}$\n*", re.DOTALL | re.MULTILINE)


@parameters
class Playbook(Artifact):
    """A playbook of bullets, served from the book of lessons.

    From ACE (arXiv 2510.04618) and Combee on ACE (arXiv 2604.04247).

    Every predictor of the program reads the same playbook. Each trajectory is reflected on by a
    call of its own; the aggregator reads the key insights and returns lessons, and edits of the
    book where it relates them. No model writes the playbook anew, so no bullet is lost to a
    careless rewrite. ACE's counters are the examples that speak for a bullet (they teach it, or it
    helped with them) and those that it harmed, each once. A student that shows a playbook already,
    because an earlier run returned it, goes on with it.

    Example:
        >>> import dspy
        >>> from combee_dspy.artifacts import Playbook
        >>> student = dspy.Predict("question -> answer")
        >>> print(Playbook(sections=("FORMATS",)).seed(student)["playbook"])
        ## FORMATS

    Args:
        max_tokens: Estimated tokens that predictors and readers see of it. Bullets beyond that stay
            in the playbook and out of sight, the least helpful first. 8,000 is a quarter of a 32k
            context.
        sections: Its sections, the last one for what fits nowhere else. Those that a program's own
            playbook has besides come before them.
        ground_truth: Whether the reflector sees the examples' labels.
    """

    name: ClassVar[str] = "playbook"
    judges: ClassVar[bool] = True
    max_tokens: Annotated[int, Field(ge=64)] = 8_000
    sections: tuple[str, ...] = SECTIONS
    ground_truth: bool = True

    def __post_init__(self) -> None:
        BulletText((), self.sections)

    def seed(self, student: dspy.Module) -> dict[str, str]:
        """Return the playbook in the student, as text; without bullets where it has none.

        Of a program that a run has returned it is the whole one, bullets beyond the budget
        included.
        """
        playbooks = [playbook for _, _, playbook in self._instructions(student)]
        whole = next((read for read in playbooks if read.bullets), BulletText((), self.sections))
        noted, seen = getattr(student, _WHOLE, None), getattr(student, _SEEN, ())
        if isinstance(noted, str) and seen:
            before = self._read(noted)
            visible = {_as_shown(bullet) for bullet in before.bullets if bullet.id in seen}
            # An edit of the visible bullets counts.
            if visible == set(map(_as_shown, whole.bullets)):
                whole = before
        return {COMPONENT: str(whole)}

    def build(self, student: dspy.Module, candidate: Mapping[str, str]) -> dspy.Module:
        """Return a copy of the student whose predictors read the playbook, within the budget."""
        text = candidate[COMPONENT]
        within = self._read(text).within(self.max_tokens)
        advice = f"\n\n{_BEGIN}\n{_HOW}\n\n{within}\n{_END}" if within.bullets else ""
        program: Any = student.deepcopy()
        for predictor, task, _ in self._instructions(program):
            predictor.signature = predictor.signature.with_instructions(task + advice)
        setattr(program, _WHOLE, text)
        setattr(program, _SEEN, tuple(bullet.id for bullet in within.bullets))
        return program

    def components(self, student: dspy.Module) -> tuple[str, ...]:
        """Return ``("playbook",)``."""
        return (COMPONENT,)

    def task(self, student: dspy.Module) -> str:
        """Return the student's instructions without a playbook, for reflectors and readers."""
        tasks = [task for _, task, _ in self._instructions(student)]
        if len(tasks) == 1:
            return tasks[0]
        names = [name for name, _ in student.named_predictors()]
        return "\n\n".join(f"{name}: {task}" for name, task in zip(names, tasks, strict=True))

    async def reflect(
        self, trajectory: Trajectory, component: str, context: StrategyContext
    ) -> Reflection | None:
        """Ask a reflector for a trajectory's key insight, and to judge the bullets it used."""
        bullets = bullets_for(trajectory, context.text, self.max_tokens)
        sections = self._read(context.text).sections
        return await reflect_on(
            trajectory, bullets, sections, context, ground_truth=self.ground_truth
        )

    async def learn(
        self,
        reflections: Sequence[Awaitable[Reflection | None]],
        aggregator: Aggregator,
        context: StrategyContext,
    ) -> Lessons:
        """Return what the aggregator makes of the key insights, and the judged bullets."""
        before = self._read(context.text)
        visible = before.within(self.max_tokens)
        parts = [context.notes, str(visible) if visible.bullets else ""]
        at_work = replace(context, text="\n\n".join(filter(None, parts)), notes="")
        learned = await aggregate_changed(extract_insight, reflections, aggregator, at_work)
        read = [reflection for reflection in await arrived(reflections) if reflection is not None]
        lessons = learned.lessons
        if learned.rewrite is not None:
            contents = (bullet.content for bullet in before.bullets)
            present = [*context.notes.splitlines(), *contents]
            lessons += lessons_in(learned.rewrite, present, read)
        # A success counts as well: what it was shown may have helped.
        edits = (*learned.edits, *collect_judgements(read, context.update))
        return replace(learned, lessons=file_lessons(lessons, read), rewrite=None, edits=edits)

    def read(self, text: str) -> Book:
        """Return the bullets of a playbook as lessons, with the counts that they have."""
        bullets = self._read(text).bullets
        ids = {bullet.id for bullet in bullets}
        lessons: list[BookLesson] = []
        for bullet in bullets:
            wording = lesson_id(bullet.content)
            # A bullet is found by its words too, unless another one is found by them.
            wordings = (bullet.id,) if wording in ids else (bullet.id, wording)
            ids.add(wording)
            lessons.append(
                BookLesson(
                    bullet.id,
                    bullet.content,
                    helped=bullet.helpful,
                    harmed=bullet.harmful,
                    section=bullet.section,
                    born=-1,
                    wordings=wordings,
                )
            )
        return Book(tuple(lessons))

    def serve(self, text: str, book: Book) -> str:
        """Return a playbook whose bullets are the lessons that a book serves, in their sections."""
        before = self._read(text)
        foreign = (bullet for bullet in before.bullets if book.find(bullet.id) is None)
        served = (
            Bullet(
                lesson.id,
                lesson.section if lesson.section in before.sections else before.sections[-1],
                lesson.text,
                lesson.helpful,
                lesson.harmful,
            )
            for lesson in book.served
        )
        return str(BulletText((*foreign, *served), before.sections))

    def _read(self, text: str) -> BulletText:
        """Read a playbook as a run goes on with it.

        The artifact's last section takes what fits nowhere else.
        """
        if not text.strip():
            return BulletText((), self.sections)
        read = read_text(text)
        for note in read.ignored:
            logger.warning("playbook: %s, and is left out", note)
        own = (name for name in read.sections if name not in self.sections)
        return BulletText(read.bullets, (*own, *self.sections))

    def _instructions(self, program: dspy.Module) -> list[tuple[dspy.Predict, str, BulletText]]:
        """Return each predictor, its instruction without a playbook, and the playbook in it."""
        parts: list[tuple[dspy.Predict, str, BulletText]] = []
        for _, predictor in program.named_predictors():
            task, playbook = predictor.signature.instructions, BulletText((), self.sections)
            if match := _VISIBLE.search(task):
                around = (task[: match.start()], task[match.end() :])
                task = "\n\n".join(filter(None, around))
                playbook = self._read(match[1].removeprefix(_HOW))
            parts.append((predictor, task, playbook))
        return parts


def _as_shown(bullet: Bullet) -> str:
    # DSPy makes spaces of the tabs in an instruction.
    return f"## {bullet.section}\n{bullet.line}".expandtabs()
