from __future__ import annotations

import asyncio
from contextvars import copy_context
from typing import Any

import dspy
import pytest
from dspy.dsp.utils.utils import dotdict
from dspy.utils.callback import BaseCallback
from dspy.utils.dummies import DummyLM
from dspy.utils.exceptions import LMError

from combee_dspy.costs import Counts, Ledger, LedgerRecorder, LMCall, Price, PriceTable, current_role, role_scope
from combee_dspy.exceptions import ArgumentValueError

ONE_CALL = (10, 1)  # tokens of a call that says n=0


def _tokens(ledger: Ledger, role: str = "task") -> tuple[int, int, int]:
    counts = ledger.snapshot().by_role.get(role, Counts())
    return counts.calls, counts.prompt_tokens, counts.completion_tokens


class Nested(dspy.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = dspy.Predict("question -> answer")
        self.second = dspy.ChainOfThought("question -> answer")

    def forward(self, question: str) -> Any:
        self.first(question=question)
        return self.first(question=question)


@pytest.fixture
def ledger() -> Ledger:
    return Ledger()


def test_nested_modules_are_heard_under_the_innermost_role(lm: dspy.LM, ledger: Ledger) -> None:
    with LedgerRecorder(ledger).installed(), dspy.context(lm=lm, adapter=dspy.JSONAdapter()):
        Nested()(question="a")
        with role_scope("proposer"):
            Nested()(question="b")
            with role_scope("evaluator"):
                Nested()(question="c")
            assert current_role() == "proposer"
    assert current_role() == "task"
    for role in ("task", "proposer", "evaluator"):
        assert _tokens(ledger, role) == (2, 20, 2)


def test_nothing_is_heard_outside_the_block(lm: dspy.LM, ledger: Ledger) -> None:
    with LedgerRecorder(ledger).installed():
        pass
    lm("n=1")
    assert ledger.snapshot().total == Counts()


def test_lms_that_equal_each_other_and_have_no_hash_are_each_heard_once(lm: dspy.LM, ledger: Ledger) -> None:
    class Equal(type(lm)):  # type: ignore[misc]  # a class of the fixture's
        def __eq__(self, other: object) -> bool:
            return isinstance(other, Equal)

    first, second = (Equal.__new__(Equal) for _ in range(2))
    for one in (first, second):
        vars(one).update(vars(lm))
    heard: list[Any] = []
    with LedgerRecorder(ledger, heard.append).installed():
        for one in (first, second, first):
            one("n=1")
    assert [id(one) for one in heard] == [id(first), id(second)]
    assert ledger.snapshot().total.calls == 3


def test_a_call_is_counted_though_who_hears_of_its_lm_fails(lm: dspy.LM, ledger: Ledger) -> None:
    def fail(heard: Any) -> None:
        raise ValueError("no")

    with LedgerRecorder(ledger, fail).installed(), pytest.raises(LMError):
        lm("fail n=1")
    assert (ledger.snapshot().total.calls, ledger.snapshot().total.errors) == (1, 1)


def test_who_failed_to_hear_of_an_lm_hears_of_it_again_and_stops_nobody_else(lm: dspy.LM, ledger: Ledger) -> None:
    first: list[Any] = []
    second: list[Any] = []

    def fails_once(heard: Any) -> None:
        first.append(heard)
        if len(first) == 1:
            raise ValueError("no")

    with LedgerRecorder(ledger, fails_once).installed(), LedgerRecorder(Ledger(), second.append).installed():
        lm("n=1")
        assert (first, second) == ([lm], [lm])
        for _ in range(2):
            lm("n=1")
    assert (first, second) == ([lm, lm], [lm, lm])
    assert ledger.snapshot().total.calls == 3


def test_dspy_parallel_inside_a_program_keeps_usage_and_role(lm: dspy.LM, ledger: Ledger) -> None:
    predict = dspy.Predict("question -> answer")
    pairs = [(predict, {"question": f"q{i}"}) for i in range(20)]
    with LedgerRecorder(ledger).installed(), dspy.context(lm=lm, adapter=dspy.JSONAdapter()), role_scope("evaluator"):
        dspy.Parallel(num_threads=4, disable_progress_bar=True)(pairs)
    assert _tokens(ledger, "evaluator") == (20, 200, 20)
    assert ledger.snapshot().total.calls == 20


def test_dspy_parallel_keeps_what_only_the_tracker_hears(lm: dspy.LM, ledger: Ledger) -> None:
    predict = dspy.Predict("question -> answer")
    pairs = [(predict, {"question": f"q{i}"}) for i in range(8)]
    with (
        dspy.track_usage() as outer,
        LedgerRecorder(ledger).installed(),
        dspy.context(lm=lm, adapter=dspy.JSONAdapter(), callbacks=[]),
    ):
        dspy.Parallel(num_threads=2, disable_progress_bar=True)(pairs)
    assert _tokens(ledger) == (8, 80, 8)
    assert outer.get_total_tokens()["openai/gpt-4o-mini"]["prompt_tokens"] == 80


def test_async_calls_side_by_side_each_keep_their_own_usage(lm: dspy.LM, ledger: Ledger, service: Any) -> None:
    heard: list[LMCall] = []
    ledger = Ledger(listeners=[heard.append])

    async def ask(role: Any, n: int) -> None:
        with role_scope(role):
            await lm.acall(f"role={role} n={n}")

    async def main() -> None:
        roles = ("task", "proposer")
        await asyncio.gather(*(ask(roles[n % 2], n) for n in range(30)))

    with LedgerRecorder(ledger).installed():
        asyncio.run(main())
    for role in ("task", "proposer"):
        assert _tokens(ledger, role) == (15, service.prompt[role], service.completion[role])
    assert sorted((c.prompt_tokens, c.completion_tokens) for c in heard) == sorted(
        (10 + n % 7, 1 + n % 5) for n in range(30)
    )


@pytest.mark.parametrize("how", ["cancelled", "dropped"])
def test_an_async_call_that_never_ends_does_not_disturb_the_context(lm: dspy.LM, ledger: Ledger, how: str) -> None:
    class Waiting:
        def __init__(self) -> None:
            self.asked = asyncio.Event()

        async def complete(self, request: Any) -> Any:
            self.asked.set()
            await asyncio.Event().wait()

    async def main() -> None:
        waiting = Waiting()
        slow = dspy.LM("openai/gpt-4o", engine=lm.engine, async_engine=waiting, cache=False)
        if how == "cancelled":
            task = asyncio.ensure_future(slow.acall("n=0"))
            await waiting.asked.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        else:
            call = slow.acall("n=0")
            copy_context().run(call.send, None)
            call.close()

    with LedgerRecorder(ledger).installed():
        tracker = dspy.settings.usage_tracker
        asyncio.run(main())
        assert dspy.settings.usage_tracker is tracker
        lm("n=0")
    totals = ledger.snapshot()
    assert totals.by_model["task", "openai/gpt-4o"].errors == 1
    assert totals.by_model["task", "openai/gpt-4o-mini"].prompt_tokens == 10


def test_inner_track_usage_works_and_hides_nothing(lm: dspy.LM, ledger: Ledger) -> None:
    with LedgerRecorder(ledger).installed():
        lm("n=0")
        with dspy.track_usage() as inner:
            lm("n=1")
            with dspy.track_usage() as innermost:
                lm("n=2")
    assert innermost.get_total_tokens()["openai/gpt-4o-mini"]["prompt_tokens"] == 12
    assert inner.get_total_tokens()["openai/gpt-4o-mini"]["prompt_tokens"] == 11 + 12
    assert _tokens(ledger) == (3, 10 + 11 + 12, 1 + 2 + 3)


def test_outer_track_usage_works(lm: dspy.LM, ledger: Ledger) -> None:
    with dspy.track_usage() as outer:
        with LedgerRecorder(ledger).installed():
            lm("n=1")
            with dspy.track_usage():
                lm("n=2")
            assert dspy.settings.usage_tracker.get_total_tokens() == outer.get_total_tokens()
        lm("n=3")
    assert outer.get_total_tokens()["openai/gpt-4o-mini"]["prompt_tokens"] == 11 + 12 + 13
    assert _tokens(ledger)[:2] == (2, 11 + 12)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_track_usage_setting_still_fills_predictions(lm: dspy.LM, ledger: Ledger, asynchronous: bool) -> None:
    program = dspy.Predict("question -> answer")
    with (
        LedgerRecorder(ledger).installed(),
        dspy.context(lm=lm, adapter=dspy.JSONAdapter(), track_usage=True),
    ):
        prediction = asyncio.run(program.acall(question="q")) if asynchronous else program(question="q")
        assert prediction.get_lm_usage()["openai/gpt-4o-mini"]["prompt_tokens"] == 10
        assert Nested()(question="q").get_lm_usage()["openai/gpt-4o-mini"]["prompt_tokens"] == 20
    assert _tokens(ledger) == (3, 30, 3)


@pytest.mark.usefixtures("fresh_cache")
def test_cache_hits_cost_nothing(service: Any, ledger: Ledger) -> None:
    lm = dspy.LM("openai/gpt-4o-mini", engine=service, cache=True)
    with LedgerRecorder(ledger).installed():
        for _ in range(3):
            lm("n=5")
    total = ledger.snapshot().total
    assert (total.calls, total.cached, total.sent) == (3, 2, 1)
    assert (total.prompt_tokens, total.completion_tokens) == (15, 1)
    assert total.dollars == pytest.approx((15 * 0.15 + 0.6) / 1e6)


def test_errors_and_retried_attempts(lm: dspy.LM, service: Any) -> None:
    heard: list[LMCall] = []
    ledger = Ledger(listeners=[heard.append])
    with LedgerRecorder(ledger).installed():
        with pytest.raises(LMError):
            lm("n=1 fail")
        lm("n=2 flaky")
    assert service.attempts == 3
    total = ledger.snapshot().total
    assert (total.calls, total.errors, total.prompt_tokens, total.unpriced) == (2, 1, 12, 0)
    assert [call.error for call in heard] == ["LMInvalidRequestError", None]
    assert heard[0].dollars == 0.0


def test_usage_of_a_call_that_failed_halfway_is_kept(ledger: Ledger, service: Any) -> None:
    class Second:
        def __init__(self) -> None:
            self.calls = 0

        def complete(self, request: Any) -> Any:
            self.calls += 1
            if self.calls == 2:
                raise RuntimeError("broken")
            return service.complete(request)

    lm = dspy.LM("openai/gpt-4o-mini", engine=Second(), cache=False, num_retries=0)
    with LedgerRecorder(ledger).installed(), pytest.raises(LMError):
        lm("n=0", n=2, temperature=1.0)
    total = ledger.snapshot().total
    assert (total.calls, total.errors, total.cached, total.prompt_tokens) == (1, 1, 0, 10)


def test_recorders_nest_and_installing_twice_counts_once(lm: dspy.LM) -> None:
    outer, inner = Ledger(), Ledger()
    with LedgerRecorder(outer).installed():
        lm("n=0")
        with LedgerRecorder(inner).installed(), LedgerRecorder(outer).installed():
            lm("n=1")
        lm("n=2")
    assert _tokens(outer)[:2] == (3, 10 + 11 + 12)
    assert _tokens(inner)[:2] == (1, 11)


def test_the_users_callbacks_stay(lm: dspy.LM, ledger: Ledger) -> None:
    class Mine(BaseCallback):
        calls = 0

        def on_lm_end(self, call_id: str, outputs: Any, exception: BaseException | None = None) -> None:
            self.calls += 1

    mine = Mine()
    with dspy.context(callbacks=[mine]), LedgerRecorder(ledger).installed():
        lm("n=0")
    assert mine.calls == 1
    assert _tokens(ledger) == (1, *ONE_CALL)


def test_replaced_callbacks_still_count_tokens(lm: dspy.LM, ledger: Ledger) -> None:
    with LedgerRecorder(ledger).installed(), dspy.context(callbacks=[]), role_scope("evaluator"):
        lm("n=0")
    assert _tokens(ledger, "evaluator") == (1, *ONE_CALL)
    assert ledger.snapshot().total.peak == 1


def test_a_double_without_usage_is_a_call_and_not_a_cache_hit(ledger: Ledger) -> None:
    with LedgerRecorder(ledger).installed(), dspy.context(lm=DummyLM([{"answer": "yes"}] * 2)):
        dspy.Predict("question -> answer")(question="q")
    total = ledger.snapshot().total
    assert (total.calls, total.cached, total.dollars) == (1, 0, 0.0)


@pytest.mark.parametrize(
    "usage",
    [{}, {"prompt_tokens": None, "completion_tokens": 3}, {"prompt_tokens": "9", "completion_tokens": True}],
)
def test_missing_or_odd_usage_is_unpriced_not_free(usage: dict[str, Any]) -> None:
    ledger = Ledger(PriceTable({"own": Price(1.0, 1.0)}))

    class Odd(dspy.BaseLM):
        def forward(self, prompt: Any = None, messages: Any = None, **kwargs: Any) -> Any:
            choice = dotdict(message=dotdict(content="yes"), finish_reason="stop")
            return dotdict(choices=[choice], usage=usage, model="own")

    with LedgerRecorder(ledger).installed(), pytest.warns(DeprecationWarning):
        Odd("own")("hello")
    total = ledger.snapshot().total
    assert (total.calls, total.cached, total.unpriced, total.dollars) == (1, 0, 1, None)


def test_unknown_role_is_refused() -> None:
    with pytest.raises(ArgumentValueError, match="proposer"), role_scope("boss"):  # type: ignore[arg-type]  # wrong on purpose
        pass
