from __future__ import annotations

import pickle
from typing import Any

import dspy
import pytest

from combee_dspy.costs import (
    Ledger,
    LedgerRecorder,
    Price,
    PriceTable,
    RolloutMeter,
    WorkerBooks,
    prices_here,
    rollout_scope,
    take_over,
)
from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.testing import ScriptedLM, as_chat


def _ask(lm: Any) -> None:
    dspy.Predict("question -> answer")(question="What is six times seven?")
    dspy.Predict("question -> answer")(question="And eight times nine?")


def _told(ledger: Ledger) -> list[tuple[Any, ...]]:
    totals = ledger.snapshot()
    return [
        (key, one.calls, one.errors, one.cached, one.prompt_tokens, one.completion_tokens, one.dollars)
        for key, one in sorted(totals.by_model.items())
    ]


@pytest.fixture
def scripted() -> ScriptedLM:
    return ScriptedLM(lambda request: as_chat({"answer": "42"}), model="scripted/other")


def test_calls_of_a_worker_are_in_every_ledger_at_its_own_prices(scripted: ScriptedLM) -> None:
    tables = [PriceTable({"scripted/other": Price(1.0, 2.0)}), PriceTable({"scripted/other": Price(10.0, 20.0)})]
    direct, moved = [[Ledger(table) for table in tables] for _ in range(2)]
    here, there = RolloutMeter(), RolloutMeter()
    with dspy.context(lm=scripted, adapter=dspy.ChatAdapter()):
        with LedgerRecorder(direct[0]).installed(), LedgerRecorder(direct[1]).installed(), rollout_scope(here):
            _ask(scripted)
        with LedgerRecorder(moved[0]).installed(), LedgerRecorder(moved[1]).installed():
            prices = prices_here()
            with dspy.context(callbacks=[]):
                books = WorkerBooks(pickle.loads(pickle.dumps(prices)))  # noqa: S301 - what the line before wrote
                with books.open() as meter, rollout_scope(meter):
                    _ask(scripted)
            assert _told(moved[0]) == []
            take_over(books.closed(), there)
    assert [_told(ledger) for ledger in moved] == [_told(ledger) for ledger in direct]
    assert _told(moved[0])[0][-1] != _told(moved[1])[0][-1]
    assert there.prompts == here.prompts != 0
    assert [(u.calls, u.prompt_tokens, u.dollars) for u in there.usage()] == [
        (u.calls, u.prompt_tokens, u.dollars) for u in here.usage()
    ]


def test_an_lm_that_a_worker_met_is_told_once(scripted: ScriptedLM) -> None:
    heard: list[Any] = []
    with dspy.context(lm=scripted, adapter=dspy.ChatAdapter()), LedgerRecorder(Ledger(), heard.append).installed():
        prices = prices_here()
        for known in (set[int](), {id(scripted)}):
            with dspy.context(callbacks=[]):
                books = WorkerBooks(prices, lambda lm, known=known: id(lm) in known)  # type: ignore[misc]  # bound
                with books.open():
                    _ask(scripted)
            take_over(books.closed(), None)
    assert heard == [scripted]


def test_gpu_seconds_need_calls_that_are_heard_in_flight() -> None:
    with LedgerRecorder(Ledger(gpus={"task": 2.0})).installed(), pytest.raises(ArgumentValueError, match="threads"):
        prices_here()


def test_without_a_ledger_nothing_is_counted(scripted: ScriptedLM) -> None:
    meter = RolloutMeter()
    books = WorkerBooks(prices_here())
    with dspy.context(lm=scripted, adapter=dspy.ChatAdapter()), books.open():
        _ask(scripted)
    take_over(books.closed(), meter)
    assert meter.usage() == ()
