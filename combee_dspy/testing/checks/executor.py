"""Checks for executors: where rollouts and LM calls are carried out."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Awaitable, Callable
from typing import Any

import dspy

from combee_dspy.records import Rollout
from combee_dspy.rollouts import (
    CallJob,
    Executor,
    ExecutorSession,
    InfrastructureFaultError,
    RolloutJob,
)
from combee_dspy.testing._kit import attempt, expect
from combee_dspy.testing.doubles import ScriptedLM, as_chat

# Long enough for any machine: it bounds a hang, it measures nothing.
_PATIENCE = 120.0

_VARIABLE: contextvars.ContextVar[str] = contextvars.ContextVar(
    "combee_dspy_conformance", default="default"
)


# Program and metric live at module level, so that executors in other processes can receive them.
class Doubling(dspy.Module):
    """A program without an LM: doubles a number, raises for 13, has no environment for 99."""

    def forward(self, number: int) -> dspy.Prediction:
        """Return the double."""
        if number == 13:
            raise ValueError("thirteen")
        if number == 99:
            raise InfrastructureFaultError("the environment is gone", retryable=True)
        return dspy.Prediction(double=2 * number)

    async def aforward(self, number: int) -> dspy.Prediction:
        """Do the same in an event loop."""
        return self.forward(number)


def is_double(
    gold: Any, pred: Any, trace: Any = None, pred_name: Any = None, pred_trace: Any = None
) -> dspy.Prediction:
    """Score 1 for the double of the example's number."""
    return dspy.Prediction(
        score=float(pred.double == 2 * gold.number), feedback=f"of {gold.number}"
    )


def _job(number: int) -> RolloutJob:
    example = dspy.Example(number=number).with_inputs("number")
    return RolloutJob(Doubling(), example, f"{number:064x}", is_double, failure_score=-1.0)


def _in_session(
    strategy: Executor, workers: int, use: Callable[[ExecutorSession], Awaitable[Any]]
) -> Any:
    async def run() -> Any:
        session = strategy.start(workers)
        try:
            return await asyncio.wait_for(use(session), _PATIENCE)
        finally:
            await session.close()
            await session.close()

    return attempt(
        run,
        f"a session of {workers} workers that works and may be closed twice",
        "see the traceback above",
    )


def check_each_job_gets_its_own_rollout(strategy: Executor) -> None:
    """Joins go by position, never by arrival; a program's error is scored and kept."""
    strategy.check_program(Doubling(), is_double)
    numbers = [*range(12), 13]

    async def use(session: ExecutorSession) -> list[Rollout]:
        return await asyncio.gather(*(session.rollout(_job(number)) for number in numbers))

    for workers in (1, 3):
        *rollouts, failed = _in_session(strategy, workers, use)
        for number, rollout in zip(numbers, rollouts, strict=False):
            its_own = (f"{number:064x}", 1.0, f"of {number}", {"double": 2 * number})
            same = (
                rollout.example_id,
                rollout.score,
                rollout.feedback,
                dict(rollout.prediction or {}),
            ) == its_own
            mend = (
                "return run_rollout(job), of combee_dspy.rollouts, from wherever it was carried out"
            )
            happened = f"{rollout!r:.300} for {number}"
            expect(same, "each job with the scored rollout of its own example", happened, mend)
        scored = (
            failed.score == -1.0
            and failed.failed_in == "program"
            and "thirteen" in (failed.error or "")
        )
        expect(
            scored,
            "the failure score and the program's error, for a program that raises",
            f"{failed!r:.300}",
        )


def check_a_fault_of_the_environment_is_raised(strategy: Executor) -> None:
    """An outage says nothing about the program: it is raised and never scored."""

    async def use(session: ExecutorSession) -> Any:
        try:
            return await session.rollout(_job(99))
        except InfrastructureFaultError as fault:
            return fault

    outcome = _in_session(strategy, 2, use)
    raised = isinstance(outcome, InfrastructureFaultError) and outcome.retryable
    expect(
        raised,
        "InfrastructureFaultError, retryable as the program said",
        f"{outcome!r:.300}",
        "let it through",
    )


def check_work_sees_the_callers_context(strategy: Executor) -> None:
    """DSPy keeps its settings in context variables; an error belongs to the caller."""

    async def use(session: ExecutorSession) -> Any:
        _VARIABLE.set("the caller's")
        return await asyncio.gather(
            session.run(_VARIABLE.get), session.run(_fail), return_exceptions=True
        )

    seen, raised = _in_session(strategy, 2, use)
    mend = "run `contextvars.copy_context().run` with the work"
    expect(
        seen == "the caller's",
        "work that sees the context variables of its caller",
        f"it saw {seen!r}",
        mend,
    )
    expect(
        isinstance(raised, KeyError),
        "the work's own exception",
        f"{raised!r}",
        "do not wrap or swallow it",
    )


def _fail() -> None:
    raise KeyError("boom")


def check_carries_out_calls(strategy: Executor) -> None:
    """Reflection and proposals run where rollouts do."""
    lm = ScriptedLM(lambda request: as_chat({"answer": request.last.count("why")}))
    job = CallJob(
        dspy.Signature("question -> answer: int"), {"question": "why why"}, lm, dspy.ChatAdapter()
    )

    answer = _in_session(strategy, 1, lambda session: session.call(job))
    right = isinstance(answer.outcome, dspy.Prediction) and answer.outcome.answer >= 2
    expect(right, "an `Answer` with the prediction", f"{answer!r:.300}", "inherit `call`")
    expect(
        sum(used.calls for used in answer.usage) == 1,
        "its one LM call in `usage`",
        f"{answer.usage!r:.300}",
    )
