"""The checks find what they are for: each broken strategy is found by the check named, and by no
other.
"""

from __future__ import annotations

import asyncio
import contextvars
import random
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, ClassVar

import dspy
import numpy as np
import pytest
from pydantic import Field

from combee_dspy.aggregators import Aggregator, gathered
from combee_dspy.artifacts import Instruction
from combee_dspy.benchmarks import Card, FormulaMini
from combee_dspy.controllers import BatchController
from combee_dspy.diversity import CharNgrams
from combee_dspy.edits import Contradict, Retire
from combee_dspy.exceptions import ArgumentTypeError
from combee_dspy.lessons import lesson_id
from combee_dspy.operators import Operator
from combee_dspy.records import (
    BatchDecision,
    Edit,
    FailedCall,
    Lesson,
    Lessons,
    NodeOutput,
    Refusal,
)
from combee_dspy.rollouts import Executor, ExecutorSession
from combee_dspy.stopping import Limits, StoppingRule
from combee_dspy.strategies import parameters
from combee_dspy.testing import ConformanceError, checks_for, parametrize_checks
from combee_dspy.testing.checks.tracker import _KEY as KEY
from combee_dspy.tracking import Follower, Tracker


def failing(strategy: Any) -> set[str]:
    """Return the names of the checks that a strategy does not pass."""
    failed = set()
    for check in checks_for(strategy):
        try:
            check(strategy)
        except ConformanceError:
            failed.add(check.__name__.removeprefix("check_"))
    return failed


class Reading(dspy.Signature):
    """Read the records."""

    records: str = dspy.InputField()
    lessons: list[str] = dspy.OutputField()


class Plain(Aggregator):
    """One call that reads all.

    Args:
        size: Lessons at most.
    """

    name: ClassVar[str] = "plain"

    def __init__(self, size: int = 3) -> None:
        self.size = size

    async def aggregate(self, reflections, context):
        return await self.joined(await gathered(reflections), context)

    async def joined(self, read, context):
        if not read:
            return Lessons(context.component)
        sources = tuple(reflection.index for reflection in read)
        answer = await self.ask_reader(read, context)
        if isinstance(answer, FailedCall):
            return Lessons(
                context.component, nodes=(NodeOutput(1, 0, sources, (), failed=answer.error),)
            )
        texts = tuple(answer.lessons)[: self.size]
        lessons = tuple(Lesson(text, sources) for text in texts)
        return Lessons(context.component, lessons, nodes=(NodeOutput(1, 0, sources, texts),))

    async def ask_reader(self, read, context):
        return await context.ask(
            Reading, {"records": repr([reflection.record for reflection in read])}, "read"
        )


class ByCode(Aggregator):
    """The mistakes themselves, each once: no LM is asked."""

    name: ClassVar[str] = "by-code"

    async def aggregate(self, reflections, context):
        read = await gathered(reflections)
        return Lessons(
            context.component,
            lessons=tuple(
                Lesson(f"Mind row {reflection.index}.", (reflection.index,)) for reflection in read
            ),
        )


def test_an_aggregator_that_needs_no_lm_passes():
    assert failing(ByCode()) == set()


class Voting(Plain):
    """Two calls read half of the examples each; what both say is a lesson."""

    name: ClassVar[str] = "voting"

    async def joined(self, read, context):
        halves = [half for half in (read[::2], read[1::2]) if half]
        answers = [await self.ask_reader(half, context, side) for side, half in enumerate(halves)]
        nodes = tuple(
            NodeOutput(
                1, side, tuple(reflection.index for reflection in half), (), failed=answer.error
            )
            if isinstance(answer, FailedCall)
            else NodeOutput(
                1, side, tuple(reflection.index for reflection in half), tuple(answer.lessons)
            )
            for side, (half, answer) in enumerate(zip(halves, answers, strict=True))
        )
        readings = [set(node.lessons) for node in nodes if node.failed is None]
        agreed = sorted(set.intersection(*readings)) if readings and len(read) > 1 else []
        sources = tuple(reflection.index for reflection in read)
        lessons = tuple(Lesson(text, sources) for text in agreed)
        return Lessons(context.component, lessons, nodes=nodes)

    async def ask_reader(self, read, context, side):
        text = repr([reflection.record for reflection in read])
        return await context.ask(Reading, {"records": text}, "read", side)


def test_an_aggregator_that_lets_its_readers_vote_passes():
    assert failing(Voting()) == set()


def test_an_aggregator_that_learns_nothing_does_not_pass():
    class Idle(ByCode):
        """Returns nothing."""

        async def aggregate(self, reflections, context):
            await gathered(reflections)
            return Lessons(context.component)

    assert failing(Idle()) == {"takes_any_number_of_reflections"}


def test_a_sound_strategy_passes_all_of_its_checks():
    assert failing(Plain()) == set()


@parametrize_checks([Plain(), Plain])
def test_the_five_lines_of_the_documentation(strategy, check):
    check(strategy)


class Keeps(Plain):
    """Holds the state of a run.

    Args:
        size: Lessons at most.
    """

    def __init__(self, size: int = 3) -> None:
        super().__init__(size)
        self.seen: list[str] = []

    async def aggregate(self, reflections, context):
        await asyncio.sleep(0)
        self.seen.append("one")
        read = await super().aggregate(reflections, context)
        return Lessons(
            read.component, (*read.lessons, Lesson(str(len(self.seen)))), nodes=read.nodes
        )


class Silent(Plain):
    pass


class Vague(Plain):
    """Says nothing of its parameter."""

    __doc__ = "Says nothing of its parameter."

    def __init__(self, sizes: int = 3) -> None:
        self.sizes = self.size = sizes


class Refusing(Plain):
    """Refuses bad values without a name.

    Args:
        size: Lessons at most.
    """

    def __init__(self, size: int = 3) -> None:
        if size < 0:
            raise ValueError("bad")
        super().__init__(size)


class ByArrival(Plain):
    """Joins by arrival."""

    async def aggregate(self, reflections, context):
        read = [
            await reflection
            for reflection in asyncio.as_completed(
                [asyncio.shield(reflection) for reflection in reflections]
            )
        ]
        return await self.joined(
            [reflection for reflection in read if reflection is not None], context
        )

    async def joined(self, read, context):
        lessons = await super().joined(
            sorted(read, key=lambda reflection: reflection.index), context
        )
        first = (
            (Lesson(f"first came {read[0].index}", (read[0].index,)),)
            if read and lessons.lessons
            else ()
        )
        return Lessons(lessons.component, (*lessons.lessons, *first), nodes=lessons.nodes)


class Swallows(Plain):
    """Takes a failed reflection for one that teaches nothing."""

    async def aggregate(self, reflections, context):
        read = await asyncio.gather(
            *(asyncio.shield(reflection) for reflection in reflections), return_exceptions=True
        )
        return await self.joined(
            [
                reflection
                for reflection in read
                if reflection and not isinstance(reflection, Exception)
            ],
            context,
        )


class GoesAround(Plain):
    """Calls an LM by another way."""

    async def ask_reader(self, read, context):
        await dspy.Predict(Reading).acall(records="")
        return await super().ask_reader(read, context)


class Brittle(Plain):
    """Believes every answer."""

    async def joined(self, read, context):
        if not read:
            return Lessons(context.component)
        answer = await self.ask_reader(read, context)
        return Lessons(context.component, (Lesson(answer.lessons[0], (0,)),))


class Changes(Plain):
    """Changes a record."""

    async def joined(self, read, context):
        for reflection in read:
            reflection.record["Feedback"] = ""
        return await super().joined(read, context)


class Relates(Plain):
    """Names lessons by their texts."""

    async def joined(self, read, context):
        lessons = await super().joined(read, context)
        texts = tuple(lesson.text for lesson in lessons.lessons)
        return replace(lessons, edits=(Contradict(texts),) if texts else ())


class Trusts(Plain):
    """Believes that a comparison never fails."""

    async def relate(self, fresh, context):
        answer = await context.ask(Reading, {"records": repr(fresh)}, "relate")
        return tuple(Retire(lesson_id(text), "it is void") for text in answer.lessons if not text)


@pytest.mark.parametrize(
    ("strategy", "checks"),
    [
        (
            Keeps(),
            {
                "constructor_only_stores",
                "the_order_of_arrival_counts_nothing",
                "several_uses_at_once",
            },
        ),
        (Silent(), {"is_documented"}),
        (Refusing(), {"bad_parameters_are_named"}),
        (ByArrival(), {"the_order_of_arrival_counts_nothing"}),
        (Swallows(), {"a_failed_reflection_is_raised"}),
        (Changes(), {"several_uses_at_once"}),
        (Relates(), {"edits_name_lessons_that_are_there"}),
        (Trusts(), {"edits_name_lessons_that_are_there"}),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Aggregator) else "",
)
def test_an_aggregator_that_breaks_its_contract_is_found(strategy, checks):
    assert failing(strategy) >= checks
    assert len(failing(strategy)) <= len(checks) + 1


def test_calls_around_the_journal_and_brittle_reading_are_found():
    with dspy.context(lm=None):
        assert "every_call_goes_through_ask" in failing(GoesAround())
    assert {"survives_failed_calls"} <= failing(Brittle())


def test_undocumented_parameters_are_named():
    with pytest.raises(ConformanceError, match="nothing about sizes"):
        next(check for check in checks_for(Vague()) if check.__name__ == "check_is_documented")(
            Vague()
        )


class Turns(Operator):
    """Turns the text around, by a chance that no seed knows.

    Args:
        lucky: Whether chance is asked.
    """

    name: ClassVar[str] = "turns"
    needs_lessons: ClassVar[bool] = False

    def __init__(self, lucky: bool = True) -> None:
        self.lucky = lucky

    async def apply(self, material, context):
        return Edit(
            instruction=f"{material.instruction} {random.random() if self.lucky else ''}".strip()
        )


class Shows(Turns):
    """Shows demonstrations without saying so."""

    async def apply(self, material, context):
        return (
            Edit(demonstrations=material.demonstrations)
            if material.demonstrations
            else Refusal("There are none.")
        )


class Needs(Turns):
    """Says that it needs lessons, and does not.

    Args:
        lucky: Whether chance is asked.
    """

    needs_lessons: ClassVar[bool] = True


def test_operators():
    assert failing(Turns(lucky=False)) == set()
    assert failing(Turns()) == {"several_uses_at_once"}
    assert failing(Shows()) == {"returns_an_edit_or_a_refusal"}
    assert failing(Needs(lucky=False)) == {"refuses_without_what_it_needs"}


@parameters
class Greedy(BatchController):
    """Takes what it wants.

    Args:
        size: Examples, at least 1.
    """

    name: ClassVar[str] = "greedy"
    size: Annotated[int, Field(ge=1)] = 40

    def plan(self, view):
        return BatchDecision(self.size, "")


def test_controllers():
    assert failing(Greedy()) == {"sizes_are_within_trainset_and_budget", "says_why"}


@parameters
class Bounded(StoppingRule):
    """Names a limit at which it goes on."""

    name: ClassVar[str] = "bounded"

    def check(self, view):
        return view.rollouts > 10**12 or None

    def limits(self):
        return Limits(rollouts=5)


def test_stopping_rules():
    assert failing(Bounded()) == {"stops_at_its_limits"}


@parameters
class Long(CharNgrams):
    """Returns rows of another length."""

    name: ClassVar[str] = "long"

    def embed(self, texts):
        return np.asarray(2 * super().embed(texts), dtype=np.float32)


def test_embedders():
    assert {"returns_one_unit_row_a_text", "takes_any_text"} <= failing(Long())


@parameters
class Edits(Instruction):
    """Edits the student."""

    def build(self, student, candidate):
        for name, predictor in student.named_predictors():
            predictor.signature = predictor.signature.with_instructions(candidate[name])
        return student


def test_artifacts():
    assert {"the_seed_is_the_student", "a_candidate_is_always_shown_alike"} <= failing(Edits())


class Notes(Follower):
    def __init__(self, reader, run):
        self.reader, self.run, self.where = reader, run, "notes\n.txt"

    def follow(self):
        rows = self.reader.rows("SELECT error FROM effect WHERE error IS NOT NULL")
        Path("notes.txt").write_text(f"{rows[0]['error']} {KEY}", encoding="utf-8")


@parameters
class Notebook(Tracker):
    """Writes down what it should not, and believes that there is something."""

    name: ClassVar[str] = "notebook"

    def open(self, reader, run):
        return Notes(reader, run)


def test_trackers():
    assert failing(Notebook()) == {
        "follows_a_whole_run",
        "follows_a_run_from_its_beginning",
        "keeps_keys_to_itself",
    }


class Elsewhere(ExecutorSession):
    """Carries out work at once, in no context, and gives every job the first one's rollout."""

    first = None

    async def run(self, work):
        try:
            return contextvars.Context().run(work)
        except Exception as error:
            raise RuntimeError("a worker failed") from error

    async def rollout(self, job):
        self.first = self.first or await super().rollout(job)
        return self.first

    async def close(self):
        pass


@parameters
class Sloppy(Executor):
    """Loses what belongs to whom."""

    name: ClassVar[str] = "sloppy"

    def start(self, workers):
        return Elsewhere()


def test_executors():
    assert failing(Sloppy()) == {
        "each_job_gets_its_own_rollout",
        "a_fault_of_the_environment_is_raised",
        "work_sees_the_callers_context",
    }


@parameters
class Careless(FormulaMini):
    """Trains on what it holds out, with one program for all, and scores without a word."""

    name: ClassVar[str] = "careless"
    card: ClassVar[Card | None] = replace(FormulaMini.card, size=" ", sources=())

    def load(self):
        loaded = super().load()
        program = loaded.program()
        return replace(
            loaded,
            heldout=replace(loaded.train, name="heldout"),
            program=lambda: program,
            metric=lambda *_: dspy.Prediction(score=0.5, feedback=""),
        )


def test_benchmarks():
    assert failing(Careless()) == {
        "has_a_card",
        "splits_hold_rows_and_hashes",
        "programs_fit_the_examples",
        "scores_and_says_why",
    }


class NeedsOne(Plain):
    def __init__(self, size: int) -> None:
        super().__init__(size)


@pytest.mark.parametrize("wrong", ["union", object(), NeedsOne])
def test_what_is_no_strategy_is_named(wrong):
    with pytest.raises(ArgumentTypeError, match="strategy"):
        checks_for(wrong)
