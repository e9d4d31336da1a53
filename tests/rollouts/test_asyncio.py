from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from concurrent.futures import CancelledError

import dspy
import pytest
from dspy.utils.dummies import DummyLM
from dspy.utils.exceptions import LMAuthError, LMRateLimitError, LMUnexpectedError

from combee_dspy.costs import Ledger, LedgerRecorder, Price, PriceTable, RolloutMeter, role_scope
from combee_dspy.exceptions import ArgumentTypeError
from combee_dspy.lms import SimulatedConfig, SimulatedService, pooled
from combee_dspy.rollouts import (
    Asyncio,
    InfrastructureFaultError,
    Threads,
    arun_rollout,
    atry_rollout,
    awaits,
    current_session,
    run_rollout,
    tell_pressure,
    try_rollout,
)
from combee_dspy.rollouts.scheduling import FixedLimit, Scheduler

EXAMPLE = dspy.Example(question="q", answer="42").with_inputs("question")


@pytest.fixture
def session():
    started = Asyncio().start(3)
    yield started
    started.close()


# What a task is, and where it runs.


async def where(*_):
    return threading.current_thread().name, current_session()


def where_in_a_thread():
    return threading.current_thread().name, current_session()


def test_coroutines_run_on_one_loop_and_the_rest_in_threads(session):
    assert awaits(session)
    assert not awaits(Threads().start(1))
    names = {session.submit(where).result(20)[0] for _ in range(5)}
    assert names == {"combee-loop"}
    name, inside = session.submit(where_in_a_thread).result(20)
    assert name != "combee-loop"
    assert name.startswith("combee")
    assert inside is session
    assert session.submit(where).result(20)[1] is session


def test_a_coroutine_sees_its_submitters_context(session):
    async def seen():
        await asyncio.sleep(0)
        return dspy.settings.get("hello")

    with dspy.context(hello="you"):
        future = session.submit(seen)
    assert future.result(20) == "you"


async def fails(error):
    await asyncio.sleep(0)
    raise error


@pytest.mark.parametrize("error", [ValueError("no"), KeyboardInterrupt(), SystemExit(3)])
def test_an_error_belongs_to_whoever_asks_and_ends_nothing_else(session, error):
    future = session.submit(fails, error)
    assert future.exception(20) is error
    assert session.submit(where).result(20)
    with pytest.raises(TypeError):
        session.submit(fails).result(20)


def test_no_more_than_the_workers_run_at_once_whatever_they_are(session):
    now, most, lock = 0, 0, threading.Lock()
    three = threading.Barrier(3)

    def count(change):
        nonlocal now, most
        with lock:
            now += change
            most = max(most, now)

    async def a_coroutine():
        count(1)
        await asyncio.to_thread(three.wait, 20)
        count(-1)

    def a_task():
        count(1)
        three.wait(20)
        count(-1)

    futures = [session.submit(task) for _ in range(9) for task in (a_coroutine, a_task)]
    for future in futures:
        future.result(20)
    assert most == 3


def test_hundreds_wait_at_once():
    started = Asyncio().start(400)
    arrived, all_there = 0, asyncio.Event()

    async def waits():
        nonlocal arrived
        arrived += 1
        if arrived == 400:
            all_there.set()
        await all_there.wait()

    futures = [started.submit(waits) for _ in range(400)]
    assert [future.result(20) for future in futures] == [None] * 400
    started.close()


def test_what_is_cancelled_before_its_turn_never_runs():
    started = Asyncio().start(1)
    go, ran = threading.Event(), []

    async def note(what):
        ran.append(what)

    blocking = started.submit(go.wait, 20)
    second, third = started.submit(note, 2), started.submit(note, 3)
    assert second.cancel()
    go.set()
    assert blocking.result(20)
    assert third.result(20) is None
    assert ran == [3]
    started.close()


def test_closing_cancels_coroutines_under_way_and_waits_for_threads():
    started = Asyncio().start(2)
    under_way, ended = threading.Event(), []

    async def never():
        under_way.set()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ended.append("coroutine")

    go = threading.Event()
    flying, working = started.submit(never), started.submit(go.wait, 20)
    queued = started.submit(never)
    assert under_way.wait(20)
    threading.Timer(0.05, go.set).start()
    started.close()
    started.close()
    assert ended == ["coroutine"]
    assert working.result(0) is True
    assert queued.cancelled()
    with pytest.raises(CancelledError):
        flying.result(0)
    with pytest.raises(RuntimeError, match="closed"):
        started.submit(where)
    assert not [one for one in threading.enumerate() if one.name == "combee-loop"]


def test_a_loops_generators_end_with_it():
    started, ended = Asyncio().start(1), []

    async def keep():
        try:
            yield
        finally:
            ended.append(True)

    kept = keep()

    async def begin():
        await anext(kept)

    started.submit(begin).result(20)
    started.close()
    assert ended == [True]


# Which programs it takes.


class OnlySync(dspy.Module):
    def forward(self, question):
        return dspy.Prediction(answer="42")


class Both(OnlySync):
    def __init__(self):
        super().__init__()
        self.answer = dspy.Predict("question -> answer")

    def forward(self, question):
        return self.answer(question=question)

    async def aforward(self, question):
        return await self.answer.acall(question=question)


class SyncLM(dspy.BaseLM):
    def forward(self, prompt=None, messages=None, **kwargs):
        raise NotImplementedError


def test_programs_that_cannot_be_awaited_are_refused_with_the_reason():
    for program in (Both(), dspy.Predict("question -> answer"), dspy.ChainOfThought("question -> answer")):
        Asyncio().check_program(program, None)
    with pytest.raises(ArgumentTypeError, match="aforward") as caught:
        Asyncio().check_program(OnlySync(), None)
    assert "OnlySync" in str(caught.value)
    assert "threads" in str(caught.value)
    with dspy.context(lm=SyncLM("m")), pytest.raises(ArgumentTypeError, match="SyncLM"):
        Asyncio().check_program(Both(), None)


# The same rollout, awaited.


def metric(gold, pred, trace=None, pred_name=None, pred_trace=None):
    return dspy.Prediction(score=float(pred.answer == gold.answer), feedback=f"said {pred.answer}")


async def ametric(*given):
    await asyncio.sleep(0)
    return metric(*given)


def angry(*_):
    raise ZeroDivisionError("metric")


class Raises(Both):
    def __init__(self, error):
        super().__init__()
        self.error = error

    def forward(self, question):
        raise self.error

    async def aforward(self, question):
        raise self.error


CASES = [
    (Both(), metric, [{"answer": "42"}]),
    (Both(), metric, [{"answer": "41"}]),
    (Both(), angry, [{"answer": "42"}]),
    (Both(), lambda *_: "high", [{"answer": "42"}]),
    (Both(), metric, ["no field at all", "nor here"]),
    (Raises(ValueError("boom")), metric, []),
    (Raises(LMAuthError("key")), metric, []),
    (Raises(LMRateLimitError("slow")), metric, []),
    (Raises(LMUnexpectedError("?")), metric, []),
]


def told(run, program, scored, answers):
    with dspy.context(lm=DummyLM(answers)):
        try:
            found = run(program, EXAMPLE, "row", scored, -1.0)
        except InfrastructureFaultError as fault:
            found = fault.rollout
            head = (str(fault), fault.retryable)
        else:
            head = ()
    if found is None:
        return head
    trace = [(caller is program.answer, inputs, str(outputs)) for caller, inputs, outputs in found.trace]
    rest = (found.score, found.feedback, found.error, found.failed_in, str(found.prediction), found.callers)
    return (*head, *rest, trace, str(found.metric_output))


@pytest.mark.parametrize(("program", "scored", "answers"), CASES)
def test_awaited_a_rollout_is_what_it_is_in_a_thread(program, scored, answers):
    here = told(run_rollout, program, scored, answers)
    assert told(lambda *given: asyncio.run(arun_rollout(*given)), program, scored, answers) == here
    assert here


def test_a_metric_may_be_awaited_and_does_not_block_the_loop():
    awaited = told(lambda *given: asyncio.run(arun_rollout(*given)), Both(), ametric, [{"answer": "42"}])
    assert awaited[0] == 1.0

    async def two():
        met = threading.Barrier(2)

        def both_at_once(*_):
            met.wait(20)
            return 1.0

        with dspy.context(lm=DummyLM([{"answer": "42"}] * 2)):
            jobs = [arun_rollout(Both(), EXAMPLE, "row", both_at_once, 0.0) for _ in range(2)]
            return [found.score for found in await asyncio.gather(*jobs)]

    assert asyncio.run(two()) == [1.0, 1.0]


def test_a_program_that_raises_stop_iteration_is_scored():
    found = run_rollout(Raises(StopIteration("empty")), EXAMPLE, "row", metric, -1.0)
    assert (found.score, found.error, found.failed_in) == (-1.0, "StopIteration: empty", "program")


def test_a_cancelled_rollout_is_no_result():
    async def cancelled():
        class Waits(Both):
            async def aforward(self, question):
                await asyncio.Event().wait()

        job = asyncio.create_task(arun_rollout(Waits(), EXAMPLE, "row", metric, 0.0))
        await asyncio.sleep(0)
        job.cancel()
        await job

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(cancelled())


def test_a_fault_is_tried_again_in_both_ways(monkeypatch):
    monkeypatch.setattr("combee_dspy.rollouts._retrying.tenacity.nap.time.sleep", lambda _: None)

    def run_of(faults, count):
        left = [InfrastructureFaultError("down", retryable=True, rollout=one) for one in faults]

        def run(*_):
            count.append(1)
            if left:
                raise left.pop(0)
            return "fine"

        async def arun(*_):
            return run()

        return run, arun

    kept = object()
    for faults, expected in (([], "fine"), ([None, None], "fine"), ([None, None, kept], kept)):
        for way in (0, 1):
            count = []
            run = run_of(faults, count)[way]
            found = try_rollout(run) if way == 0 else asyncio.run(atry_rollout(run))
            assert found is expected
            assert len(count) == min(3, len(faults) + 1)
    with pytest.raises(InfrastructureFaultError):
        try_rollout(run_of([None] * 3, [])[0])
    with pytest.raises(InfrastructureFaultError):
        asyncio.run(atry_rollout(run_of([None] * 3, [])[1]))


def test_callers_are_named_by_what_the_program_holds_now():
    program = Both()
    with dspy.context(lm=DummyLM([{"answer": "42"}] * 9)):
        assert run_rollout(program, EXAMPLE, "row", metric, 0.0).callers == ("answer",)
        program.other = program.answer
        program.answer = dspy.Predict("question -> answer")
        assert run_rollout(program, EXAMPLE, "row", metric, 0.0).callers == ("answer",)
        stranger = Both()
        stranger.answer = lambda **inputs: dspy.Predict("question -> answer")(**inputs)
        assert run_rollout(stranger, EXAMPLE, "row", metric, 0.0).callers == ("",)
    gone = weakref.ref(program)
    del program
    dspy.clients.base_lm.GLOBAL_HISTORY.clear()
    gc.collect()
    assert gone() is None


# Exact books.


class Judged(dspy.Module):
    """Two calls, the second beside a sibling."""

    def __init__(self):
        super().__init__()
        self.first, self.second = dspy.Predict("question -> answer"), dspy.Predict("question, hint -> answer")

    async def aforward(self, question):
        hint = (await self.first.acall(question=question)).answer
        found = await asyncio.gather(*(self.second.acall(question=question, hint=f"{hint} {n}") for n in range(2)))
        return found[0]


@pytest.mark.parametrize("client", ["pooled", "plain"])
def test_the_books_equal_the_services_counters(client):
    judge = dspy.Predict("answer -> verdict")

    def judged(gold, pred, *_):
        judge(answer=f"{pred.answer} {gold.question}")
        return 1.0

    rows = [dspy.Example(question=f"q{n}").with_inputs("question") for n in range(24)]
    ledger = Ledger(PriceTable({"openai/simulated": Price(1.0, 2.0)}))
    meters = [RolloutMeter() for _ in rows]
    with SimulatedService(SimulatedConfig(time_scale=0.0)) as service:
        lm = service.lm()
        if client == "pooled":
            lm = pooled("openai/simulated", api_base=service.api_base, api_key="simulated", cache=False)
        started = Asyncio().start(8)
        with dspy.context(lm=lm), LedgerRecorder(ledger).installed(), role_scope("serving"):
            futures = [
                started.submit(atry_rollout, arun_rollout, Judged(), row, "x", judged, 0.0, meter)
                for row, meter in zip(rows, meters, strict=True)
            ]
            found = [meter.stamp(future.result(60)) for future, meter in zip(futures, meters, strict=True)]
        started.close()
        stats = service.stats()
    total = ledger.snapshot()
    assert {rollout.error for rollout in found} == {None}
    assert total.by_role["task"].calls == 72
    assert total.by_role["evaluator"].calls == 24
    assert total.total.calls == stats.total.calls
    assert total.total.prompt_tokens == stats.total.prompt_tokens
    assert total.total.completion_tokens == stats.total.completion_tokens
    for rollout in found:
        assert {line.role: line.calls for line in rollout.usage} == {"task": 3, "evaluator": 1}
        assert rollout.prompt_hash
    used = [line for rollout in found for line in rollout.usage]
    assert sum(line.prompt_tokens for line in used) == total.total.prompt_tokens
    assert sum(line.completion_tokens for line in used) == total.total.completion_tokens


def test_under_the_scheduler_rollouts_are_awaited_and_rejections_are_heard():
    heard = []

    class Listening(FixedLimit):
        def rejected(self, retry_after):
            heard.append(retry_after)

    class Rejected(Both):
        async def aforward(self, question):
            assert threading.current_thread().name == "combee-loop"
            tell_pressure(1.5)
            return await super().aforward(question)

    inner = Asyncio().start(4)
    scheduler = Scheduler(inner, limit=Listening(2))
    assert awaits(scheduler)
    with dspy.context(lm=DummyLM([{"answer": "42"}] * 6)):
        futures = [
            scheduler.submit(atry_rollout, arun_rollout, Rejected(), EXAMPLE, "row", metric, 0.0) for _ in range(6)
        ]
        assert [future.result(20).score for future in futures] == [1.0] * 6
    scheduler.close()
    inner.close()
    assert heard == [1.5] * 6
