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
from combee_dspy.exceptions import ArgumentTypeError
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

    async def joined(self, found, context):
        if not found:
            return Lessons(context.component)
        sources = tuple(one.index for one in found)
        answer = await self.asked(found, context)
        if isinstance(answer, FailedCall):
            return Lessons(
                context.component, nodes=(NodeOutput(1, 0, sources, (), failed=answer.error),)
            )
        texts = tuple(answer.lessons)[: self.size]
        lessons = tuple(Lesson(text, sources) for text in texts)
        return Lessons(context.component, lessons, nodes=(NodeOutput(1, 0, sources, texts),))

    async def asked(self, found, context):
        return await context.ask(Reading, {"records": repr([one.record for one in found])}, "read")


class ByCode(Aggregator):
    """The mistakes themselves, each once: no LM is asked."""

    name: ClassVar[str] = "by-code"

    async def aggregate(self, reflections, context):
        found = await gathered(reflections)
        return Lessons(
            context.component,
            lessons=tuple(Lesson(f"Mind row {one.index}.", (one.index,)) for one in found),
        )


def test_an_aggregator_that_needs_no_lm_passes():
    assert failing(ByCode()) == set()


class Voting(Plain):
    """Two calls read half of the examples each; what both say is a lesson."""

    name: ClassVar[str] = "voting"

    async def joined(self, found, context):
        halves = [half for half in (found[::2], found[1::2]) if half]
        answers = [await self.asked(half, context, side) for side, half in enumerate(halves)]
        nodes = tuple(
            NodeOutput(1, side, tuple(one.index for one in half), (), failed=answer.error)
            if isinstance(answer, FailedCall)
            else NodeOutput(1, side, tuple(one.index for one in half), tuple(answer.lessons))
            for side, (half, answer) in enumerate(zip(halves, answers, strict=True))
        )
        heard = [set(node.lessons) for node in nodes if node.failed is None]
        agreed = sorted(set.intersection(*heard)) if heard and len(found) > 1 else []
        sources = tuple(one.index for one in found)
        lessons = tuple(Lesson(text, sources) for text in agreed)
        return Lessons(context.component, lessons, nodes=nodes)

    async def asked(self, found, context, side):
        said = repr([one.record for one in found])
        return await context.ask(Reading, {"records": said}, "read", side)


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
        found = await super().aggregate(reflections, context)
        return Lessons(
            found.component, (*found.lessons, Lesson(str(len(self.seen)))), nodes=found.nodes
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
        found = [
            await one for one in asyncio.as_completed([asyncio.shield(one) for one in reflections])
        ]
        return await self.joined([one for one in found if one is not None], context)

    async def joined(self, found, context):
        lessons = await super().joined(sorted(found, key=lambda one: one.index), context)
        said = (
            (Lesson(f"first came {found[0].index}", (found[0].index,)),)
            if found and lessons.lessons
            else ()
        )
        return Lessons(lessons.component, (*lessons.lessons, *said), nodes=lessons.nodes)


class Swallows(Plain):
    """Takes a failed reflection for one that teaches nothing."""

    async def aggregate(self, reflections, context):
        found = await asyncio.gather(
            *(asyncio.shield(one) for one in reflections), return_exceptions=True
        )
        return await self.joined(
            [one for one in found if one and not isinstance(one, Exception)], context
        )


class GoesAround(Plain):
    """Calls an LM by another way."""

    async def asked(self, found, context):
        await dspy.Predict(Reading).acall(records="")
        return await super().asked(found, context)


class Brittle(Plain):
    """Believes every answer."""

    async def joined(self, found, context):
        if not found:
            return Lessons(context.component)
        answer = await self.asked(found, context)
        return Lessons(context.component, (Lesson(answer.lessons[0], (0,)),))


class Changes(Plain):
    """Changes a record."""

    async def joined(self, found, context):
        for one in found:
            one.record["Feedback"] = ""
        return await super().joined(found, context)


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

    async def apply(self, given, context):
        return Edit(
            instruction=f"{given.instruction} {random.random() if self.lucky else ''}".strip()
        )


class Shows(Turns):
    """Shows demonstrations without saying so."""

    async def apply(self, given, context):
        return (
            Edit(demonstrations=given.demonstrations)
            if given.demonstrations
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
        found = super().load()
        program = found.program()
        return replace(
            found,
            heldout=replace(found.train, name="heldout"),
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
