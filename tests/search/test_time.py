"""A budget in seconds ends a run, whatever hangs, and the best program so far is returned."""

from __future__ import annotations

import asyncio
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dspy
import pytest
import scipy.stats  # noqa: F401 - loading it is no part of what is timed
from dspy.utils.exceptions import LMRateLimitError

from combee_dspy import Budget, Search, Task, Validation, compile_many
from combee_dspy.diversity import Diversity, Embedder
from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.search._budget import Purse
from tests.slow import slow_but
from tests.worlds import World, examples, gepa_metric, metric, proposer_answer, rows, task_answer

SECONDS, BOUND = 0.6, 6.0
"""A run's budget, and when it must be over: two seconds later, and some more on a machine that is
busy.
"""
EXECUTORS = ("threads", "asyncio")
HANGING, HANGS, ENDED = threading.Event(), threading.Event(), threading.Event()
"""Everything that hangs in these tests waits for the first. The others are set once anything hangs,
and once a :class:`Stubborn` program has ended.
"""


def hang(*_: Any) -> None:
    HANGS.set()
    HANGING.wait()


@pytest.fixture(autouse=True)
def release() -> Iterator[Callable[[], None]]:
    """Return what ends all hanging."""
    for event in (HANGING, HANGS, ENDED):
        event.clear()
    yield HANGING.set
    HANGING.set()


def number_of(question: str) -> int:
    return int(re.findall(r"Number (\d+)", question)[-1])


class Program(dspy.Module):
    """Asks, and hangs first where a question is one of the later ones."""

    def __init__(self, first: int = 0) -> None:
        super().__init__()
        self.answer = dspy.Predict("question -> answer")
        self.first = first

    def forward(self, question: str) -> Any:
        if number_of(question) >= self.first:
            hang()
        return self.answer(question=question)

    async def aforward(self, question: str) -> Any:
        if number_of(question) >= self.first:
            await asyncio.to_thread(hang)
        return await self.answer.acall(question=question)


class HoldsUp(Program):
    """Holds up the loop that it is awaited on."""

    async def aforward(self, question: str) -> Any:
        hang()


class Stubborn(Program):
    """Asks once more, whatever goes wrong."""

    def forward(self, question: str) -> Any:
        try:
            return self.answer(question=question)
        finally:
            if number_of(question) >= self.first:
                try:
                    self.answer(question=f"{question} again")
                finally:
                    ENDED.set()


class Exits(Program):
    def forward(self, question: str) -> Any:
        if number_of(question) % 7 == 0:
            sys.exit(1)
        return self.answer(question=question)

    async def aforward(self, question: str) -> Any:
        if number_of(question) % 7 == 0:
            sys.exit(1)
        return await self.answer.acall(question=question)


def timed(work: Callable[[], Any]) -> tuple[Any, float]:
    """Return the result of some work, or its error, and its seconds."""
    began = time.monotonic()
    try:
        outcome = work()
    except Exception as error:  # noqa: BLE001 - looked at by the test
        outcome = error
    return outcome, time.monotonic() - began


def compile_timed(
    world: World, student: dspy.Module | None = None, heldout: int = 0, **options: Any
) -> tuple[Any, float]:
    """Compile within the budget; rows of the valset are those below 12, of the trainset from 100,
    held-out ones from 300.
    """
    defaults = {"budget": Budget(seconds=SECONDS), "skip_perfect_score": False}
    combee = world.combee(**{**defaults, **options})
    data = {"trainset": examples(48, 100), "valset": examples(12)}
    if heldout:
        data["heldout"] = examples(heldout, 300)
    student = student or dspy.Predict("question -> answer")
    with dspy.context(lm=world.task_lm, adapter=dspy.ChatAdapter()):
        return timed(lambda: combee.compile(student, **data))


def start_clock_once(
    is_ready: Callable[[], bool], monkeypatch: pytest.MonkeyPatch
) -> Callable[[], float]:
    """Let no time of a budget pass before ``is_ready``, however slow the machine is.

    Returns a function that returns the seconds since then.
    """
    began: list[float] = []

    def seconds() -> float:
        if not began and is_ready():
            began.append(time.monotonic())
        return time.monotonic() - began[0] if began else 0.0

    monkeypatch.setattr(Purse, "seconds", property(lambda purse: seconds()))
    return seconds


def is_validated(folder: Path) -> bool:
    """Return whether the student's twelve validation rows are in a run's journal."""
    sql = "SELECT 1 FROM effect WHERE kind = 'rollout' AND split = 'validation'"
    return len(rows(folder, sql)) >= 12


@pytest.mark.parametrize("executor", slow_but(("threads",), EXECUTORS))
@pytest.mark.parametrize("keep", ["pareto", "trunk"])
def test_a_program_that_never_returns_ends_within_the_budget_and_the_student_is_returned(
    executor: str, keep: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = start_clock_once(lambda: is_validated(tmp_path), monkeypatch)
    program, _ = compile_timed(
        World.made(),
        Program(first=100),
        executor=executor,
        log_dir=tmp_path,
        search=Search(keep=keep),
        validation=Validation(probe=False),
        num_threads=2,
    )
    assert seconds() < BOUND
    report = program.combee_report
    assert "seconds have passed" in report.reason
    assert report.best_score == report.seed_score == pytest.approx(2 / 12)
    failed = rows(tmp_path, "SELECT error FROM effect WHERE kind = 'failed'")
    assert any("given up while it was under way" in row["error"] for row in failed)
    assert len(failed) <= 2  # what waited for a slot was never under way


@pytest.mark.parametrize("part", ["metric", "task", "proposer", "probe", "validation", "loop"])
@pytest.mark.parametrize("executor", slow_but(("asyncio",), EXECUTORS))
def test_a_part_that_hangs_ends_within_the_budget(
    part: str, executor: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def hanging(answer: Callable[..., Any], *parts: str) -> Callable[..., Any]:
        def hang_and_answer(*arguments: Any) -> Any:
            hang()
            return answer(*arguments)

        return hang_and_answer if part in parts else answer

    world = World.made(hanging(task_answer, "task", "probe"), hanging(proposer_answer, "proposer"))
    student = {"validation": Program(), "loop": HoldsUp()}.get(part, Program(first=1000))
    seconds = start_clock_once(
        lambda: HANGS.is_set() and (part != "proposer" or is_validated(tmp_path)), monkeypatch
    )
    outcome, _ = compile_timed(
        world,
        student,
        metric=gepa_metric(lambda gold, pred, name: hanging(metric, "metric")(gold, pred)),
        validation=Validation(probe=part == "probe"),
        executor=executor,
        log_dir=tmp_path,
    )
    assert seconds() < BOUND
    if part == "proposer":
        assert "seconds have passed" in outcome.combee_report.reason
    else:
        assert isinstance(outcome, ArgumentValueError)
        assert "in the middle of the student's validation" in str(outcome)


def test_a_full_service_is_not_waited_for_beyond_the_budget(scripted: Any) -> None:
    lm = scripted(lambda prompt, attempt: LMRateLimitError("full", status=429, retry_after=30.0))
    outcome, seconds = compile_timed(World(lm, World.made().proposer_lm))
    assert seconds < BOUND
    assert isinstance(outcome, ArgumentValueError)


def test_an_embedder_that_hangs_is_not_waited_for() -> None:
    class Endless(Embedder):
        name = "endless"

        def embed(self, texts: Any) -> Any:
            hang()

    diversity = Diversity(embedder=Endless(), threshold=0.9)
    budget = Budget(seconds=1.5)
    program, seconds = compile_timed(World.made(), diversity=diversity, budget=budget)
    assert seconds < BOUND
    assert "seconds have passed" in program.combee_report.reason


def test_each_of_several_tasks_ends() -> None:
    world = World.made()
    combee = world.combee(budget=Budget(seconds=SECONDS))
    data = {"trainset": examples(24, 100), "valset": examples(12)}
    tasks = [Task(name, Program(first=100), **data) for name in ("a", "b")]
    with dspy.context(lm=world.task_lm, adapter=dspy.ChatAdapter()):
        results, seconds = timed(lambda: compile_many(tasks, combee=combee))
    assert seconds < BOUND
    # A busy machine may not even validate the student in time.
    assert all(
        result.report is not None or "the student's validation" in str(result.error)
        for result in results
    )


def test_time_is_kept_for_the_held_out_set() -> None:
    def slow(request: Any) -> str:
        time.sleep(0.02)
        return task_answer(request)

    program, seconds = compile_timed(
        World.made(slow), heldout=12, budget=Budget(seconds=4.0), cache=False
    )
    report = program.combee_report
    assert "for the held-out set" in report.reason
    assert report.heldout.n == 12
    assert seconds < 4.0 + BOUND


def test_a_reading_that_hangs_is_reported_and_goes_on_with_more_seconds(
    tmp_path: Path, release: Callable[[], None]
) -> None:
    def compile_in(limit: float) -> tuple[Any, float]:
        budget = Budget(seconds=limit, updates=1)
        student = Program(first=300)
        program, seconds = compile_timed(
            World.made(), student, heldout=6, log_dir=tmp_path, budget=budget
        )
        return program.combee_report, seconds

    report, seconds = compile_in(2.0)
    assert seconds < 2.0 + BOUND
    assert report.heldout is None
    assert "The held-out set was not read to its end" in report.facts()["held-out"]
    assert not report.supports_claims
    release()
    report, _ = compile_in(60.0)
    assert (report.heldout.n, report.unread) == (6, "")


def test_only_rollouts_that_hung_are_bought_again_with_more_seconds(
    tmp_path: Path, release: Callable[[], None]
) -> None:
    def compile_in(limit: float) -> tuple[Any, int]:
        world, budget = World.made(), Budget(seconds=limit, updates=2)
        options = {"budget": budget, "log_dir": tmp_path, "reflection_minibatch_size": 3}
        program, _ = compile_timed(world, Program(first=100), **options)
        return program.combee_report, len(world.task_lm.requests)

    first, requests = compile_in(SECONDS)
    assert "seconds have passed" in first.reason
    assert requests == 12
    again, requests = compile_in(SECONDS)
    assert (again.reason, requests) == (first.reason, 0)
    release()
    more, requests = compile_in(60.0)
    assert more.updates == 2
    (rollouts,) = rows(tmp_path, "SELECT count(*) AS n FROM effect WHERE kind = 'rollout'")
    assert rollouts["n"] == 12 + requests


def test_a_call_in_flight_counts_as_failed_and_no_later_one_is_sent(
    release: Callable[[], None],
) -> None:
    def answer(request: Any) -> str:
        if number_of(request.last) >= 100:
            hang()
        return task_answer(request)

    world = World.made(answer)
    options = {"reflection_minibatch_size": 3, "num_threads": 16}
    program, _ = compile_timed(world, Stubborn(first=100), **options)
    sent = len(world.task_lm.requests)
    total = program.combee_report.costs.total
    assert total.calls == sent > 12
    assert total.errors == sent - 12
    release()
    assert ENDED.wait(5)
    assert len(world.task_lm.requests) == sent


def test_a_rollout_that_takes_too_long_fails_and_is_never_bought_again(
    tmp_path: Path, release: Callable[[], None], caplog: pytest.LogCaptureFixture
) -> None:
    def compile_with(seconds: float) -> tuple[Any, World]:
        world = World.made()
        program, _ = compile_timed(
            world,
            Program(first=100),
            budget=Budget(updates=1),
            log_dir=tmp_path,
            reflection_minibatch_size=3,
            validation=Validation(rollout_seconds=seconds, warn_failures=2.0, stop_failures=2.0),
        )
        return program.combee_report, world

    first, _ = compile_with(0.2)
    sql = "SELECT error, failed_in FROM effect WHERE kind = 'rollout' AND error IS NOT NULL"
    failed = rows(tmp_path, sql)
    assert {row["failed_in"] for row in failed} == {"program"}
    assert all("longer than 0.2 seconds" in row["error"] for row in failed)
    assert "A rollout was given up in the program" in caplog.text
    assert "timed out" in {failure.cause for failure in first.failures}
    release()
    again, world = compile_with(60.0)
    assert world.asked == 0
    assert again.best_score == first.best_score


@gepa_metric
def exits(gold: Any, pred: Any, pred_name: str | None) -> Any:
    """Raise on some rows, and instead of feedback on a predictor."""
    if pred_name is not None:
        raise KeyboardInterrupt
    if number_of(gold.question) % 5 == 0:
        raise asyncio.CancelledError
    return metric(gold, pred)


@pytest.mark.parametrize("executor", EXECUTORS)
def test_rows_on_which_code_exits_end_no_run(executor: str, tmp_path: Path) -> None:
    program, _ = compile_timed(
        World.made(),
        Exits(),
        metric=exits,
        executor=executor,
        log_dir=tmp_path,
        budget=Budget(updates=2),
        reflection_minibatch_size=12,
    )
    assert program.combee_report.updates == 2
    sql = "SELECT DISTINCT error FROM effect WHERE kind = 'rollout' AND error IS NOT NULL"
    errors = {row["error"] for row in rows(tmp_path, sql)}
    assert errors == {"SystemExit: 1", "CancelledError: "}
