"""Budgets under kills and faults: a kill does not eat them, and a call that is repeated counts."""

from __future__ import annotations

import asyncio
import random
import re
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import dspy
import numpy as np
import pytest
from dspy.lm15 import (
    Message,
    RateLimitError,
    Response,
    ServerError,
    TextPart,
    TransportError,
    Usage,
)
from dspy.utils.exceptions import LMServerError

from combee_dspy import Budget, Combee, Costs, Price, Search
from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.records import CallUsage
from combee_dspy.report import CombeeReport
from combee_dspy.rollouts import _patient
from combee_dspy.search import _earlier
from combee_dspy.search._amounts import Amounts, LargestCall, Lost
from combee_dspy.search._budget import Purse
from combee_dspy.search._time_budget import BudgetReached
from combee_dspy.stopping import Limits
from combee_dspy.testing import ScriptedRequest
from tests.scripted import Engine
from tests.slow import slow_but
from tests.worlds import World, events, examples, metric, proposer_answer, rows, task_answer

MOST = {"tokens": 1_000.0}


def cost(tokens: int) -> list[CallUsage]:
    return [CallUsage("task", "m", 1, 0, 0, tokens, 0, 0.0, None, 0.1)]


def amounts(tokens: float) -> Amounts:
    return np.array([0.0, tokens, 0.0, 0.0])


def reserve(purse: Purse, kind: str, tokens: float | None = None) -> Mapping[str, float]:
    bound = None if tokens is None else LargestCall(amounts(0.0), amounts(tokens))
    return asyncio.run(purse.reserve_cost(kind, bound))


def test_a_kill_costs_its_maximum_while_it_may_run_and_then_the_mean_of_its_kind() -> None:
    earlier = [("rollout", cost(100)), ("rollout", cost(140)), ("call/Read", cost(700))]
    killed = [Lost(True, MOST), Lost(True, MOST, until=time.time() + 60)]
    purse = Purse(Limits(tokens=2_500), earlier, killed)

    assert purse.spent.tokens == 940 + 120 + 1_000
    (doubt,) = purse.doubts()
    assert "2 effects were in flight" in doubt
    assert "120 are their likely cost" in doubt
    assert "1000 the maximum of what may still run" in doubt
    assert "may be passed by 440" in doubt


def test_what_is_held_for_a_kill_is_free_once_no_service_works_on_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    until = time.time() + 60
    limits, ended = Limits(tokens=1_500), [("rollout", cost(600))]
    purse = Purse(limits, ended, [Lost(True, MOST, until)])

    with pytest.raises(BudgetReached, match=r"1000 are held until \d\d:\d\d .* at a kill"):
        reserve(purse, "rollout")
    monkeypatch.setattr(time, "time", lambda: until)
    assert purse.spent.tokens == 1_200
    with pytest.raises(BudgetReached, match=r"1200 of 1500 tokens .* may take 600$"):
        reserve(purse, "rollout")
    assert reserve(Purse(Limits(tokens=1_800), ended, [Lost(True, MOST, until)]), "rollout")


def test_a_run_that_a_kill_held_up_goes_on_once_that_is_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    until = time.time() + 60

    def lost(*_: Any) -> list[Lost]:
        return [Lost(True, {"tokens": 18_500.0}, until)]

    def run() -> CombeeReport:
        budget = Budget(tokens=20_000)
        return World.made().compile(budget=budget, log_dir=str(tmp_path)).combee_report

    monkeypatch.setattr(_earlier, "lost_effects", lost)
    first = run()
    assert "are held until" in first.reason
    assert run().reason == first.reason
    until = time.time() - 1
    last = run()
    assert "held" not in last.reason
    assert last.rollouts > first.rollouts
    assert run().reason == last.reason


@pytest.mark.parametrize("tokens", [20_000, 8_000])
def test_the_replay_of_a_run_that_no_budget_has_ended_holds_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tokens: int
) -> None:
    held = [Lost(True, {"tokens": 18_500.0}, time.time() + 600)]

    def run(name: str, tokens: int, **search: Any) -> CombeeReport:
        return (
            World.made()
            .compile(
                budget=Budget(tokens=tokens),
                log_dir=str(tmp_path / name),
                reflection_minibatch_size=12,
                search=Search(**search),
            )
            .combee_report
        )

    with monkeypatch.context() as patch:
        patch.setattr(_earlier, "lost_effects", lambda *_: held)
        assert "are held until" in run("held up", 20_000).reason
    run("again", tokens, replay=str(tmp_path / "held up"))
    sql = "SELECT sum(prompt_tokens + completion_tokens) AS spent FROM usage"
    (row,) = rows(tmp_path / "again", sql)
    assert 0.8 * tokens < row["spent"] <= tokens


@pytest.mark.parametrize("until", [0.0, 9e9])
def test_what_was_never_seen_to_end_costs_its_maximum(until: float) -> None:
    purse = Purse(Limits(tokens=5_000), (), [Lost(False, MOST, until)])
    assert purse.spent.tokens == 1_000


@pytest.mark.parametrize("name", ["calls", "dollars", "gpu_seconds"])
def test_a_kill_is_held_against_each_limit(name: str) -> None:
    ended = [CallUsage("task", "m", 1, 0, 0, 100, 0, 1.0, 1.0, 0.1)]
    purse = Purse(Limits(**{name: 9}), [("rollout", ended)], [Lost(True, {name: 9}, 9e9)])
    with pytest.raises(BudgetReached, match=r"(10|9) of 9 .* \(9 are held until"):
        reserve(purse, "rollout")


def test_without_a_kill_there_is_no_doubt() -> None:
    assert Purse(Limits(tokens=10), [("rollout", cost(5))]).doubts() == []


def test_the_first_of_a_kind_reserves_what_the_dearest_of_any_has_cost() -> None:
    purse = Purse(Limits(tokens=1_000), [("rollout", cost(300)), ("rollout", cost(200))])
    assert reserve(purse, "call/Relate") == {"tokens": 300}
    # A failure has shown nothing of what it costs.
    purse.settle("call/Relate", [CallUsage("reflector", "m", 1, 1)])
    assert reserve(purse, "call/Relate") == {"tokens": 300}
    purse.settle("call/Relate", cost(20))
    assert reserve(purse, "call/Relate") == {"tokens": 20}
    # A max_tokens of its LM is known.
    assert reserve(purse, "call/Merge", 80) == {"tokens": 80}

    with pytest.raises(BudgetReached, match="the next may take 300"):
        reserve(Purse(Limits(tokens=799), [("rollout", cost(300))] * 2), "call/Relate")


def test_prompts_tell_how_many_tokens_their_bytes_are() -> None:
    purse, largest = Purse(Limits(tokens=9_000)), LargestCall(amounts(4_000), amounts(1_000))
    used = [CallUsage("proposer", "m", 1, 0, 0, 1_000, 50, 0.0, None, 0.1)]

    async def reserved() -> Mapping[str, float]:
        return await purse.reserve_cost("call/Read", largest)

    assert asyncio.run(reserved()) == {"tokens": 5_000}, "every byte may be a token"
    purse.settle("call/Read", used, largest)
    assert asyncio.run(reserved()) == {"tokens": 4_000 * 0.25 * 2 + 1_000}
    # In a run that goes on, nobody knows that: its prompts may be twice as dense as plain English.
    later = Purse(Limits(tokens=9_000), [("call/Read", used)])
    assert asyncio.run(later.reserve_cost("call/Read", largest)) == {"tokens": 4_000 * 0.5 + 1_000}
    # A service that counts no prompt tokens tells nothing.
    silent = Purse(Limits(tokens=9_000))
    silent.settle("call/Read", [CallUsage("proposer", "m", 1)], largest)
    assert asyncio.run(silent.reserve_cost("call/Read", largest)) == {"tokens": 5_000}


def test_a_run_that_goes_on_sends_no_more_long_answers_than_its_limit_pays_for() -> None:
    """Though those of its earlier part were short."""
    largest = LargestCall(amounts(200), amounts(4_000))
    earlier = [("call/Read", cost(100))] * 50
    purse = Purse(Limits(tokens=10_000), earlier)

    async def read() -> bool:
        try:
            await purse.reserve_cost("call/Read", largest)
        except BudgetReached:
            return False
        await asyncio.sleep(0)
        purse.book(cost(4_100))
        purse.settle("call/Read", cost(4_100), largest)
        return True

    async def run() -> list[bool]:
        return await asyncio.gather(*(read() for _ in range(10)))

    assert sum(asyncio.run(run())) == 1
    assert purse.spent.tokens == 5_000 + 4_100


def test_what_is_kept_back_admits_every_row_of_a_validation() -> None:
    """Though one may cost thirty times as much as they do in mean."""
    largest = LargestCall(amounts(1_000), amounts(2_000))
    purse = Purse(Limits(tokens=10_000), [("rollout", cost(100))] * 12)
    asyncio.run(purse.reserve_cost("rollout", largest))
    purse.settle("rollout", None)
    purse.keep_validation(12)

    async def bought(most: int, *, is_due: bool) -> int:
        for count in range(most):
            try:
                await purse.reserve_cost("rollout", largest, is_due=is_due)
            except BudgetReached:
                return count
            purse.book(cost(100))
            purse.settle("rollout", cost(100), largest)
        return most

    assert 0 < asyncio.run(bought(100, is_due=False)) < 100
    assert asyncio.run(bought(12, is_due=True)) == 12


def test_what_a_cache_answered_does_not_shrink_what_is_kept_back() -> None:
    cached = [CallUsage("task", "m", 1, cached=1)]
    purse = Purse(Limits(tokens=10_000), [("rollout", cached)] * 90 + [("rollout", cost(600))] * 10)
    purse.keep_validation(10)
    with pytest.raises(BudgetReached, match="beside 6000 for a last validation"):
        for _ in range(10):
            reserve(purse, "call/Read")
            purse.book(cost(600))
            purse.settle("call/Read", cost(600))


def test_a_run_begins_though_nothing_is_known_of_any_cost() -> None:
    assert reserve(Purse(Limits(tokens=10, calls=1)), "rollout") == {"calls": 1, "tokens": 0}


def repeats(limit: int, calls: int) -> bool:
    purse = Purse(Limits(calls=limit), [("rollout", cost(1))] * 4)
    reserve(purse, "rollout")
    return not purse.send_again("rollout", calls)


def test_a_call_is_repeated_only_where_the_limit_leaves_room_beside_what_is_in_flight() -> None:
    assert repeats(6, 1)
    assert not repeats(5, 1)
    assert not repeats(7, 3)


def test_calls_in_flight_that_all_lose_an_answer_are_repeated_as_far_as_the_limit_leaves_room() -> (
    None
):
    purse = Purse(Limits(tokens=2_400), [("rollout", cost(100))])
    for _ in range(20):
        reserve(purse, "rollout", 100)

    sent_again = 0
    for _ in range(20):
        purse.lose("rollout")
        sent_again += not purse.send_again("rollout", 1)
    assert sent_again == 3

    for number in range(20):
        failed = [CallUsage("task", "m", 1, 1)]
        usage = cost(100) if number < sent_again else failed
        purse.book(usage)
        purse.settle("rollout", usage)
    assert purse.spent.tokens == 2_400
    assert purse.passed() == []


def flaky(seed: int) -> Engine:
    """Return a service that turns three of ten requests away, and counts them all."""
    draws = random.Random(seed)

    def reply(prompt: str, attempt: int) -> Any:
        if draws.random() < 0.3:
            ways = [RateLimitError("full", retry_after=0.0), ServerError("down")]
            return draws.choice([*ways, ConnectionError("reset")])
        return task_answer(ScriptedRequest("", (("user", prompt),)))

    return Engine(reply)


@pytest.fixture
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_patient, "pause_after", lambda retry_after, count: 0.0)


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.usefixtures("no_pauses")
def test_calls_that_a_service_turns_away_pass_no_limit(tmp_path: Path, seed: int) -> None:
    engine, world = flaky(seed), World.made()
    lm = dspy.LM("flaky/m", engine=engine, cache=False, num_retries=3)
    with dspy.context(lm=lm, adapter=dspy.ChatAdapter()):
        combee = world.combee(
            budget=Budget(calls=60), num_threads=16, log_dir=str(tmp_path), search=Search()
        )
        try:
            combee.compile(
                dspy.Predict("question -> answer"), trainset=examples(24), valset=examples(12, 100)
            )
        except ArgumentValueError as error:  # too little was left for the student's validation
            assert "budget" in str(error)

    (counted,) = rows(tmp_path, "SELECT sum(calls) AS calls, sum(errors) AS errors FROM usage")
    assert engine.attempts + len(world.proposer_lm.requests) <= 60
    assert counted["calls"] == engine.attempts + len(world.proposer_lm.requests)
    assert counted["errors"] > 5


class Billing(Engine):
    """A service that charges for each answer, also for the three of ten that never arrive."""

    def __init__(self, answer: Callable[[ScriptedRequest], str], seed: int) -> None:
        super().__init__(lambda prompt, attempt: "")
        self._answer, self._draws = answer, random.Random(seed)
        self.billed = self.lost = 0

    def complete(self, request: Any) -> Response:
        messages = tuple((message.role, message.text) for message in request.messages)
        question = ScriptedRequest(str(request.system), messages)
        text = self._answer(question)
        usage = Usage(len(question.text) // 4, len(text) // 4, len(question.text + text) // 4)
        with self._lock:
            self.billed += usage.input_tokens + usage.output_tokens
            if self._draws.random() < 0.3:
                self.lost += 1
                raise TransportError("connection reset")
        message = Message.assistant([TextPart(text)])
        return Response(None, request.model, message, "stop", usage)


@pytest.mark.parametrize("longest", [None, 300])
@pytest.mark.parametrize("seed", slow_but((0,), range(6)))
@pytest.mark.parametrize("kind", ["tokens", "dollars"])
@pytest.mark.usefixtures("no_pauses")
def test_answers_that_never_arrive_pass_no_limit_beyond_what_the_run_says(
    tmp_path: Path, kind: str, seed: int, longest: int | None
) -> None:
    limit, unit = 30_000, 1.0 if kind == "tokens" else 1e-6
    services = [Billing(task_answer, seed), Billing(proposer_answer, seed + 100)]
    arguments = {} if longest is None else {"max_tokens": longest}
    lms = [
        dspy.LM(f"billing/{number}", engine=service, cache=False, num_retries=3, **arguments)
        for number, service in enumerate(services)
    ]

    def run() -> int:
        with dspy.context(lm=lms[0], adapter=dspy.ChatAdapter()), suppress(ArgumentValueError):
            Combee(
                metric,
                reflection_lm=lms[1],
                budget=Budget(tokens=limit) if kind == "tokens" else Budget(dollars=limit * unit),
                costs=Costs(prices={lm.model: Price(1.0, 1.0) for lm in lms}),
                num_threads=8,
                log_dir=str(tmp_path),
                tracker=(),
                skip_perfect_score=False,
            ).compile(
                dspy.Predict("question -> answer"), trainset=examples(48), valset=examples(12, 100)
            )
        return sum(service.billed for service in services)

    billed = run()
    (doubt,) = [
        event["text"] for event in events(tmp_path, "warning") if "may be passed" in event["text"]
    ]
    assert f"{sum(service.lost for service in services)} calls got no answer" in doubt
    (over,) = re.findall(r"passed by ([\d.e-]+)\.$", doubt)
    assert 0.6 * limit < billed <= limit + float(over) / unit
    assert run() <= max(billed, limit + float(over) / unit)


@pytest.mark.usefixtures("no_pauses")
def test_whole_rollouts_that_are_tried_again_pass_no_limit() -> None:
    draws = random.Random(4)

    def answer(request: Any) -> str:
        if draws.random() < 0.3:
            raise LMServerError("down", status=503)
        return task_answer(request)

    world = World.made(answer, num_retries=0)
    with dspy.context(lm=world.task_lm, adapter=dspy.ChatAdapter()):
        world.combee(metric=metric, budget=Budget(calls=60), num_threads=8).compile(
            dspy.Predict("question -> answer"), trainset=examples(24), valset=examples(12, 100)
        )

    assert 40 < world.asked <= 60
