"""A budget in seconds ends a run, whatever hangs; what is learned by then is returned."""

from __future__ import annotations

import asyncio
import re
import subprocess
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
from tests.worlds import World, examples, metric, proposer_answer, rows, task_answer

SECONDS, BOUND = 0.6, 6.0
"""A run's budget, and when it must be over: two seconds later, and some more on a machine that is
busy.
"""

EXECUTORS = ("threads", "asyncio")


HANGING, HANGS = threading.Event(), threading.Event()
"""What everything that hangs in these tests waits for, and whether anything has begun to."""


def hang(*_: Any) -> None:
    HANGS.set()
    HANGING.wait()


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


ENDED = threading.Event()


@pytest.fixture(autouse=True)
def never() -> Iterator[threading.Event]:
    HANGING.clear()
    HANGS.clear()
    yield HANGING
    HANGING.set()


def timed(work: Callable[[], Any]) -> tuple[Any, float]:
    began = time.monotonic()
    try:
        outcome = work()
    except Exception as error:  # noqa: BLE001 - looked at by the test
        outcome = error
    return outcome, time.monotonic() - began


def in_seconds(
    world: World, student: Any = None, data: dict[str, Any] | None = None, **given: Any
) -> tuple[Any, float]:
    """Compile within the budget; rows of the valset are those below 12, of the trainset from
    100.
    """
    data = {"trainset": examples(48, 100), "valset": examples(12), **(data or {})}
    combee = world.combee(
        **{"budget": Budget(seconds=SECONDS), "skip_perfect_score": False, **given}
    )
    student = student or dspy.Predict("question -> answer")
    with dspy.context(lm=world.task_lm, adapter=dspy.ChatAdapter()):
        return timed(lambda: combee.compile(student, **data))


def begin_once(
    is_ready: Callable[[], bool], monkeypatch: pytest.MonkeyPatch
) -> Callable[[], float]:
    """Let no time of a budget pass before something is so, however long the machine takes for it.

    Returns what tells how many seconds have passed since.
    """
    began: list[float] = []

    def passed() -> float:
        if not began and is_ready():
            began.append(time.monotonic())
        return time.monotonic() - began[0] if began else 0.0

    monkeypatch.setattr(Purse, "seconds", property(lambda purse: passed()))
    return passed


def is_validated(folder: Path) -> bool:
    """Return whether the student's twelve validation rows are in a run's journal."""
    sql = "SELECT 1 FROM effect WHERE kind = 'rollout' AND split = 'validation'"
    return len(rows(folder, sql)) >= 12


@pytest.mark.parametrize("executor", slow_but(("threads",), EXECUTORS))
@pytest.mark.parametrize("keep", ["pareto", "trunk"])
def test_a_program_that_never_returns_ends_within_the_budget_and_the_student_is_returned(
    executor: str,
    keep: Any,
    never: threading.Event,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    passed = begin_once(lambda: is_validated(tmp_path), monkeypatch)
    program, _ = in_seconds(
        World.made(),
        Program(first=100),
        executor=executor,
        log_dir=tmp_path,
        search=Search(keep=keep),
        validation=Validation(probe=False),
    )
    assert passed() < BOUND
    report = program.combee_report
    assert "seconds have passed" in report.reason
    assert report.best_score == report.seed_score == pytest.approx(2 / 12)
    gone = rows(tmp_path, "SELECT error FROM effect WHERE kind = 'failed'")
    assert any("given up while it was under way" in row["error"] for row in gone)


@pytest.mark.parametrize("what", ["metric", "task", "proposer", "probe", "validation", "loop"])
@pytest.mark.parametrize("executor", slow_but(("asyncio",), EXECUTORS))
def test_whatever_hangs(
    what: str,
    executor: str,
    never: threading.Event,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def wait(answer: Callable[..., Any]) -> Callable[..., Any]:
        def waits(*given: Any) -> Any:
            hang()
            return answer(*given)

        return waits

    world = World.made(
        wait(task_answer) if what in ("task", "probe") else task_answer,
        wait(proposer_answer) if what == "proposer" else proposer_answer,
    )
    student = {"validation": Program(), "loop": HoldsUp()}.get(what, Program(first=1000))
    given: dict[str, Any] = {
        "validation": Validation(probe=what == "probe"),
        "executor": executor,
        "log_dir": tmp_path,
    }
    if what == "metric":
        given["metric"] = wait(metric)
    passed = begin_once(
        lambda: HANGS.is_set() and (what != "proposer" or is_validated(tmp_path)), monkeypatch
    )
    outcome, _ = in_seconds(world, student, **given)
    assert passed() < BOUND
    if what == "proposer":
        assert "seconds have passed" in outcome.combee_report.reason
    else:
        assert isinstance(outcome, ArgumentValueError)
        assert "in the middle of the student's validation" in str(outcome)


def test_a_full_service_is_not_waited_for_beyond_the_budget(scripted: Any) -> None:
    lm = scripted(lambda prompt, attempt: LMRateLimitError("full", status=429, retry_after=30.0))
    combee = World.made().combee(budget=Budget(seconds=SECONDS))
    with dspy.context(lm=lm, adapter=dspy.ChatAdapter()):
        outcome, seconds = timed(
            lambda: combee.compile(
                dspy.Predict("question -> answer"), trainset=examples(12), valset=examples(12, 100)
            )
        )
    assert seconds < BOUND
    assert isinstance(outcome, ArgumentValueError)


@pytest.mark.slow
def test_the_process_can_exit_while_threads_hang() -> None:
    code = (
        "from tests.search.test_time import *;"
        "outcome, seconds = in_seconds(World.made(), Program(first=100),"
        " executor='asyncio', budget=Budget(seconds=4.0));"
        "print(type(outcome).__name__, flush=True)"
    )
    ended = subprocess.run(  # noqa: S603 - ours
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=False
    )
    assert (ended.returncode, ended.stdout.strip()) == (0, "Program"), ended.stderr


class Endless(Embedder):
    name = "endless"

    def embed(self, texts: Any) -> Any:
        hang()


def test_an_embedder_that_hangs_is_not_waited_for(never: threading.Event) -> None:
    outcome, seconds = in_seconds(
        World.made(),
        diversity=Diversity(embedder=Endless(), threshold=0.9),
        budget=Budget(seconds=1.5),
    )
    assert seconds < BOUND
    assert "seconds have passed" in outcome.combee_report.reason


def test_each_of_several_tasks_ends(never: threading.Event) -> None:
    world = World.made()
    combee = world.combee(budget=Budget(seconds=SECONDS))
    data = {"trainset": examples(24, 100), "valset": examples(12)}
    tasks = [Task(name, Program(first=100), **data) for name in ("a", "b")]
    with dspy.context(lm=world.task_lm, adapter=dspy.ChatAdapter()):
        results, seconds = timed(lambda: compile_many(tasks, combee=combee))
    assert seconds < BOUND
    assert [one.report is not None for one in results] == [True, True]


def slow(request: Any) -> str:
    time.sleep(0.02)
    return task_answer(request)


def test_time_is_kept_for_the_held_out_set(tmp_path: Path) -> None:
    program, seconds = in_seconds(
        World.made(slow),
        data={"heldout": examples(12, 200)},
        budget=Budget(seconds=4.0),
        log_dir=tmp_path,
        cache=False,
    )
    report = program.combee_report
    assert "for the held-out set" in report.reason
    assert report.heldout is not None
    assert report.heldout.n == 12
    assert seconds < 4.0 + BOUND


def test_a_reading_that_hangs_is_told_and_goes_on_with_more_seconds(
    tmp_path: Path, never: threading.Event
) -> None:
    def compiled(student: Any, seconds: float) -> tuple[Any, float]:
        return in_seconds(
            World.made(),
            student,
            data={"heldout": examples(6, 300)},
            log_dir=tmp_path,
            budget=Budget(seconds=seconds, updates=1),
        )

    program, seconds = compiled(Program(first=300), 2.0)
    report = program.combee_report
    assert seconds < 2.0 + BOUND
    assert report.heldout is None
    assert "The held-out set was not read to its end" in report.facts()["held-out"]
    assert not report.supports_claims
    never.set()
    program, _ = compiled(Program(first=300), 60.0)
    assert program.combee_report.heldout.n == 6
    assert program.combee_report.unread == ""


def test_what_hung_is_bought_again_with_more_seconds_and_nothing_else_is(
    tmp_path: Path, never: threading.Event
) -> None:
    def compiled(seconds: float) -> tuple[Any, World]:
        world = World.made()
        budget = Budget(seconds=seconds, updates=2)
        given: dict[str, Any] = {
            "budget": budget,
            "log_dir": tmp_path,
            "reflection_minibatch_size": 3,
        }
        return in_seconds(world, Program(first=100), **given)[0], world

    first, world = compiled(SECONDS)
    assert "seconds have passed" in first.combee_report.reason
    assert world.asked == 12
    again, world = compiled(SECONDS)
    assert again.combee_report.reason == first.combee_report.reason
    assert world.asked == 0
    never.set()
    more, world = compiled(60.0)
    assert more.combee_report.updates == 2
    (bought,) = rows(tmp_path, "SELECT count(*) AS n FROM effect WHERE kind = 'rollout'")
    assert bought["n"] == 12 + len(world.task_lm.requests)


def test_a_call_in_flight_counts_as_one_that_failed_and_no_later_one_is_sent(
    tmp_path: Path, never: threading.Event
) -> None:
    def reply(request: Any) -> str:
        if number_of(request.last) >= 100:
            hang()
        return task_answer(request)

    world = World.made(reply)
    program, _ = in_seconds(
        world,
        Stubborn(first=100),
        log_dir=tmp_path,
        reflection_minibatch_size=3,
        num_threads=16,
    )
    sent = len(world.task_lm.requests)
    assert program.combee_report.costs.total.calls == sent > 12
    assert program.combee_report.costs.total.errors == sent - 12
    ENDED.clear()
    never.set()
    assert ENDED.wait(5)
    assert len(world.task_lm.requests) == sent


def test_a_rollout_that_is_given_up_is_told_kept_and_never_bought_again(
    tmp_path: Path, never: threading.Event, caplog: pytest.LogCaptureFixture
) -> None:
    def compiled(seconds: float) -> tuple[Any, World]:
        world = World.made()
        given: dict[str, Any] = {
            "budget": Budget(updates=1),
            "log_dir": tmp_path,
            "reflection_minibatch_size": 3,
            "validation": Validation(rollout_seconds=seconds, warn_failures=2.0, stop_failures=2.0),
        }
        return in_seconds(world, Program(first=100), **given)[0], world

    first, _ = compiled(0.2)
    late = rows(
        tmp_path, "SELECT error, failed_in FROM effect WHERE kind = 'rollout' AND error IS NOT NULL"
    )
    assert {row["failed_in"] for row in late} == {"program"}
    assert all("longer than 0.2 seconds" in row["error"] for row in late)
    assert "A rollout was given up in the program" in caplog.text
    assert any(one.cause == "timed out" for one in first.combee_report.failures)
    never.set()
    again, world = compiled(60.0)
    assert world.asked == 0
    assert again.combee_report.best_score == first.combee_report.best_score


def poisoned(
    gold: Any, pred: Any, trace: Any = None, pred_name: Any = None, pred_trace: Any = None
) -> Any:
    """Raise where it is asked for feedback, and for some rows."""
    if pred_name is not None:
        raise KeyboardInterrupt
    if number_of(gold.question) % 5 == 0:
        raise asyncio.CancelledError
    return metric(gold, pred)


class Exits(Program):
    def forward(self, question: str) -> Any:
        if number_of(question) % 7 == 0:
            sys.exit(1)
        return self.answer(question=question)

    async def aforward(self, question: str) -> Any:
        if number_of(question) % 7 == 0:
            sys.exit(1)
        return await self.answer.acall(question=question)


@pytest.mark.parametrize("executor", EXECUTORS)
def test_poisoned_rows_end_no_run(executor: str, tmp_path: Path) -> None:
    program, _ = in_seconds(
        World.made(),
        Exits(),
        metric=poisoned,
        executor=executor,
        log_dir=tmp_path,
        budget=Budget(updates=2),
        reflection_minibatch_size=12,
    )
    assert program.combee_report.updates == 2
    errors = rows(
        tmp_path, "SELECT DISTINCT error FROM effect WHERE kind = 'rollout' AND error IS NOT NULL"
    )
    assert {row["error"] for row in errors} == {"SystemExit: 1", "CancelledError: "}
