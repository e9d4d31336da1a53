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
from combee_dspy.artifacts._base import Artifact, Trajectory
from combee_dspy.artifacts._book import (
    SECTIONS,
    Bullet,
    BulletBook,
    Delta,
    apply_deltas,
    read_text,
    refine,
    render,
    write_text,
)
from combee_dspy.artifacts._curating import curated
from combee_dspy.artifacts._reflecting import bullets_for, counts_of, reflected
from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.records import Lessons, Reflection
from combee_dspy.strategies import StrategyContext, parameters

logger = logging.getLogger("combee_dspy")

COMPONENT = "playbook"
# What a built program notes beside what it shows: the whole playbook, and the ids of the bullets in sight.
_WHOLE, _SEEN = "combee_playbook", "combee_playbook_shown"
_COUNT = "COUNT"
_BEGIN, _END = "=== PLAYBOOK ===", "=== END OF PLAYBOOK ==="
_HOW = "Advice from earlier tasks. Where you explain yourself, name the ids of the bullets that you follow."
_SHOWN = re.compile(rf"\n*^{_BEGIN}$\n(.*?)^{_END}$\n*", re.DOTALL | re.MULTILINE)


@parameters
class Playbook(Artifact):
    """A playbook of bullets that deltas edit (ACE, arXiv 2510.04618; Combee on ACE, arXiv 2604.04247).

    Every predictor of the program reads the same playbook. It is never written anew by a model: deltas are applied by
    code, so no bullet is lost to a careless rewrite. Each trajectory is reflected on by a call of its own, each shard
    of the aggregator's shuffle is curated as soon as its reflections are there. An aggregator without shards of its own
    gives one curator all of them (naive ACE). A student that shows a playbook already, because an earlier run returned
    it, goes on with it.

    Args:
        max_tokens: Estimated tokens that predictors and curators see of it. Bullets beyond that stay in the playbook
            and out of sight, the least helpful first. 8,000 is a quarter of a 32k context.
        sections: Its sections, the last one for what fits nowhere else. Those that a program's own playbook has besides
            stand before them.
        ground_truth: Whether the reflector sees the examples' labels.
        rounds: How often the reflector looks at a trajectory that teaches something; from the second time on it sees
            what it said before.
        most_bullets: Bullets that a reflector judges at most: those that the trajectory cites or, where it cites none,
            those most like it.
        similarity: Jaccard similarity of word pairs from which two bullets count as one.
        leave_at: Net harm at which a bullet leaves.
        field: An input field that takes the playbook in place of the instruction's end. It must be one that the program
            does not fill itself: the playbook becomes its default value, which ``program.save`` keeps with
            ``save_program=True`` only.
    """

    name: ClassVar[str] = "playbook"
    max_tokens: Annotated[int, Field(ge=64)] = 8_000
    sections: tuple[str, ...] = SECTIONS
    ground_truth: bool = True
    rounds: Annotated[int, Field(ge=1)] = 1
    most_bullets: Annotated[int, Field(ge=0)] = 8
    similarity: Annotated[float, Field(gt=0, le=1)] = 0.8
    leave_at: Annotated[int, Field(ge=1)] = 3
    field: str | None = None

    def __post_init__(self) -> None:
        BulletBook((), self.sections)

    def seed(self, student: dspy.Module) -> dict[str, str]:
        """Return the playbook that the student shows, as text; one without bullets where it shows none.

        Of a program that a run has returned it is the whole one, bullets beyond the budget included.

        Raises:
            ArgumentValueError: No predictor has the input field that is named.
        """
        named = dict(student.named_predictors())
        standing = [self._apart(predictor.signature.instructions)[1] for predictor in named.values()]
        if self.field is not None:
            held = [predictor.signature.input_fields.get(self.field) for predictor in named.values()]
            if not any(held):
                remedy = "Name an input field of one of the program's predictors, or leave it out."
                raise ArgumentValueError("field", self.field, "is no input field of the program", remedy)
            standing += [self._book(one.default) for one in held if one is not None and isinstance(one.default, str)]
        book = next((book for book in standing if book.bullets), BulletBook((), self.sections))
        noted, seen = getattr(student, _WHOLE, None), getattr(student, _SEEN, ())
        if isinstance(noted, str) and seen:
            whole = self._book(noted)
            shown = {_as_shown(one) for one in whole.bullets if one.id in seen}
            # Where somebody has edited what stands there, that is meant.
            if shown == set(map(_as_shown, book.bullets)):
                book = whole
        return {COMPONENT: write_text(book)}

    def build(self, student: dspy.Module, candidate: Mapping[str, str]) -> dspy.Module:
        """Return a copy of the student whose predictors show the playbook, as far as the budget allows."""
        text = candidate[COMPONENT]
        shown, bullets = render(self._book(text), self.max_tokens)
        program: Any = student.deepcopy()
        for _, predictor in program.named_predictors():
            task, _ = self._apart(predictor.signature.instructions)
            if self.field is None and shown:
                task = f"{task}\n\n{_BEGIN}\n{_HOW}\n\n{shown}\n{_END}"
            predictor.signature = predictor.signature.with_instructions(task)
            if self.field is not None and self.field in predictor.signature.input_fields:
                predictor.signature = _with_default(predictor.signature, self.field, shown)
        setattr(program, _WHOLE, text)
        setattr(program, _SEEN, tuple(bullet.id for bullet in bullets))
        return program

    def components(self, student: dspy.Module) -> tuple[str, ...]:
        """Return ``("playbook",)``."""
        return (COMPONENT,)

    def task(self, student: dspy.Module) -> str:
        """Return what the student is told without a playbook, for reflectors and curators."""
        predictors = student.named_predictors()
        told = [(name, self._apart(predictor.signature.instructions)[0]) for name, predictor in predictors]
        return told[0][1] if len(told) == 1 else "\n\n".join(f"{name}: {text}" for name, text in told)

    async def reflect(self, trajectory: Trajectory, component: str, context: StrategyContext) -> Reflection | None:
        """Ask a reflector for the key insight of a trajectory, and to judge the bullets that it used."""
        bullets = bullets_for(trajectory, context.text, self.max_tokens, self.most_bullets)
        return await reflected(trajectory, bullets, context, ground_truth=self.ground_truth, rounds=self.rounds)

    async def learn(
        self, reflections: Sequence[Awaitable[Reflection | None]], aggregator: Aggregator, context: StrategyContext
    ) -> Lessons:
        """Return what curators make of the insights, as deltas, and how often each bullet helped and harmed."""
        n = len(reflections)
        shards = aggregator.shards(n, context)
        if shards is None:
            shards = (tuple(range(n)),) if n else ()
        book, call_tokens = self._book(context.text), getattr(aggregator, "max_call_tokens", None)
        found = await curated(reflections, shards, book, context, max_tokens=self.max_tokens, call_tokens=call_tokens)
        # A success counts as well: what it was shown may have helped. What is offered again was counted before.
        counts = counts_of(one for one in await arrived(reflections) if one is not None and not one.again)
        counted = [{"op": _COUNT, **counts}] if any(counts.values()) else []
        return replace(found, deltas=(*counted, *found.deltas))

    def apply(self, text: str, lessons: Lessons) -> str:
        """Return a playbook's text with counts and deltas applied, near-duplicates joined and what harms left out."""
        book = self._book(text)
        for counts in (one for one in lessons.deltas if one["op"] == _COUNT):
            book = book.counted(counts["helpful"], counts["harmful"])
        applied = apply_deltas(book, [Delta.from_json(one) for one in lessons.deltas if one["op"] != _COUNT])
        refined = refine(applied.book, similarity=self.similarity, leave_at=self.leave_at)
        for note in (*applied.notes, *refined.notes):
            logger.debug("playbook: %s", note)
        return write_text(refined.book)

    def _book(self, text: str) -> BulletBook:
        """Read a playbook as a run goes on with it: the artifact's last section takes what fits nowhere else."""
        if not text.strip():
            return BulletBook((), self.sections)
        read = read_text(text)
        for note in read.ignored:
            logger.warning("playbook: %s, and is left out", note)
        own = (name for name in read.book.sections if name not in self.sections)
        return BulletBook(read.book.bullets, (*own, *self.sections))

    def _apart(self, instruction: str) -> tuple[str, BulletBook]:
        """Take an instruction apart into itself without a playbook, and the playbook in it."""
        found = _SHOWN.search(instruction)
        if found is None:
            return instruction, BulletBook((), self.sections)
        around = (instruction[: found.start()], instruction[found.end() :])
        return "\n\n".join(part for part in around if part), self._book(found[1].removeprefix(_HOW))


def _as_shown(bullet: Bullet) -> str:
    # DSPy makes spaces of the tabs in an instruction.
    return f"## {bullet.section}\n{bullet.line}".expandtabs()


def _with_default(signature: Any, field: str, text: str) -> Any:
    # A copy: DSPy hands out the same field objects to signatures that share them.
    found = signature.with_updated_fields(field)
    info = found.input_fields[field]
    fresh = dspy.InputField(desc=(info.json_schema_extra or {}).get("desc"), default=text)
    order = list(found.input_fields).index(field)
    return found.delete(field).insert(order, field, fresh, type_=info.annotation)
