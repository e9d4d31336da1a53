from __future__ import annotations

import json
import random
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from combee_dspy.costs import Counts, Ledger, LMCall, Price, PriceTable, Totals, unpriced_models
from combee_dspy.exceptions import ArgumentTypeError, ArgumentValueError


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


calls = st.lists(
    st.builds(
        LMCall,
        call_id=st.just(""),
        role=st.sampled_from(["task", "proposer"]),
        model=st.sampled_from(["a/x", "b/y"]),
        prompt_tokens=st.integers(0, 10_000),
        completion_tokens=st.integers(0, 10_000),
        dollars=st.none() | st.floats(0, 10),
        seconds=st.integers(0, 60).map(float),
        cached=st.booleans(),
        error=st.none() | st.just("LMServerError"),
        gpu_seconds=st.none(),
    ),
    max_size=40,
)


def _filled(finished: list[LMCall]) -> Ledger:
    ledger = Ledger(clock=Clock())
    for call in finished:
        ledger.begin(call.role, call.model)
        ledger.finish(call)
    return ledger


@given(calls, st.randoms(use_true_random=False))
def test_totals_are_sums_and_do_not_depend_on_order(finished: list[LMCall], stream: random.Random) -> None:
    totals = _filled(finished).snapshot()
    shuffled = list(finished)
    stream.shuffle(shuffled)
    again = _filled(shuffled).snapshot()
    assert (again.total, again.by_role, again.by_model) == (totals.total, totals.by_role, totals.by_model)
    for name in ("calls", "errors", "cached", "prompt_tokens", "completion_tokens", "unpriced"):
        assert getattr(totals.total, name) == sum(getattr(counts, name) for counts in totals.by_role.values())
        assert getattr(totals.total, name) == sum(getattr(counts, name) for counts in totals.by_model.values())
    assert totals.total.calls == len(finished)
    assert totals.total.known_dollars == pytest.approx(sum(call.dollars or 0.0 for call in finished), abs=1e-9)
    assert totals.total.unpriced == sum(call.dollars is None for call in finished)


def test_unknown_dollars_are_null_and_not_zero() -> None:
    known, unknown = LMCall("", "task", "m", dollars=0.5), LMCall("", "proposer", "m", dollars=None)
    totals = _filled([known, unknown]).snapshot()
    assert totals.by_role["task"].dollars == 0.5
    assert totals.by_role["proposer"].dollars is None
    assert totals.total.dollars is None
    assert totals.total.known_dollars == 0.5
    data = json.loads(json.dumps(totals.to_dict()))
    assert data["total"]["dollars"] is None
    assert data["by_role"]["proposer"]["models"]["m"]["unpriced"] == 1


def test_wall_clock_latency_and_peak() -> None:
    clock = Clock()
    ledger = Ledger(clock=clock)
    for _ in range(3):
        ledger.begin("task", "m")
    ledger.begin("proposer", "m")
    for seconds in (1.0, 4.0, 2.0):
        ledger.finish(LMCall("", "task", "m", seconds=seconds))
    ledger.finish(LMCall("", "proposer", "m", seconds=9.0, cached=True))
    ledger.begin("task", "m")
    clock.now += 7.5
    totals = ledger.snapshot()
    assert totals.seconds == 7.5
    assert (totals.total.peak, totals.by_role["task"].peak, totals.by_role["proposer"].peak) == (4, 3, 1)
    assert (totals.by_role["task"].seconds, totals.by_role["task"].slowest) == (7.0, 4.0)
    assert totals.by_role["proposer"].seconds == 0.0
    assert totals.total.calls == 4


def test_a_snapshot_does_not_change_later() -> None:
    ledger = _filled([LMCall("", "task", "m", prompt_tokens=1)])
    before = ledger.snapshot()
    ledger.begin("task", "m")
    ledger.finish(LMCall("", "task", "m", prompt_tokens=5))
    assert before.total.prompt_tokens == 1
    assert ledger.snapshot().total.prompt_tokens == 6


def test_no_snapshot_shows_half_a_call() -> None:
    ledger = Ledger()
    seen: list[Totals] = []
    readers: list[threading.Thread] = []

    class Interrupted(int):
        """Tokens that let another thread take a snapshot while they are added."""

        def __radd__(self, other: int) -> int:
            if not readers:
                reader = threading.Thread(target=lambda: seen.append(ledger.snapshot()))
                readers.append(reader)
                reader.start()
                reader.join(0.1)
            return int(self) + other

    ledger.begin("task", "m")
    ledger.finish(LMCall("", "task", "m", prompt_tokens=Interrupted(7), completion_tokens=3))
    readers[0].join()
    total = seen[0].total
    assert (total.calls, total.prompt_tokens, total.completion_tokens) == (1, 7, 3)
    assert seen[0].by_role["task"] == total


def test_an_empty_ledger_has_cost_nothing() -> None:
    assert Totals().to_dict()["total"] == Counts().to_dict()
    assert Ledger().snapshot().total.dollars == 0.0


@pytest.mark.parametrize(
    ("model", "listed"),
    [
        ("openai/gpt-4o-mini", (0.15, 0.6)),
        ("gpt-4o-mini-2024-07-18", (0.15, 0.6)),
        ("openrouter/openai/gpt-4o:free", (2.5, 10.0)),
        ("together_ai/deepseek-ai/DeepSeek-V3.1", (0.6, 1.7)),
        ("deepseek/deepseek-chat", (0.28, 0.42)),
        ("groq/openai/gpt-oss-120b", (0.15, 0.6)),
        ("anthropic/claude-haiku-4-5-20251001", (1.0, 5.0)),
        ("embedded/SmolLM2-135M-Instruct", (0.0, 0.0)),
        ("openai/simulated", (0.0, 0.0)),
        ("dummy", (0.0, 0.0)),
        ("openai/gpt-4o-audio-preview", None),
        ("openai/dummy", None),
        ("openai/my-model", None),
    ],
)
def test_built_in_prices(model: str, listed: tuple[float, float] | None) -> None:
    price = PriceTable().price(model)
    assert (price and (price.prompt, price.completion)) == listed


def test_own_prices_come_first_and_the_longest_name_counts() -> None:
    table = PriceTable(
        {
            "my-model": Price(1, 1),
            "openai/My-Model": Price(2, 2),
            "gpt-4o": Price(3, 3),
            "openai/simulated": Price(4, 4),
        }
    )
    found = {name: table.price(name) for name in ("openai/my-model", "x/openai/my-model", "azure/my-model")}
    assert [price and price.prompt for price in found.values()] == [2, 2, 1]
    assert table.price("openai/gpt-4o-2024-08-06") == Price(3, 3)
    assert table.price("openai/simulated") == Price(4, 4)
    assert unpriced_models({"task": "openai/gpt-4o", "proposer": "a/b"}, table) == {"proposer": "a/b"}


def test_dollars_of_a_call() -> None:
    assert Price(2.0, 8.0).dollars(1_000_000, 500_000) == 6.0
    assert Price(2.0, 8.0, 0.5).dollars(1_000_000, 0, 400_000) == pytest.approx(1.4)
    assert Price(2.0, 8.0).dollars(1_000, 0, 400) == Price(2.0, 8.0).dollars(1_000, 0)
    assert Price(2.0, 8.0, 0.0).dollars(10, 0, 99) == 0.0


@pytest.mark.parametrize("wrong", [-1, float("nan"), float("inf")])
def test_wrong_prices_are_refused(wrong: float) -> None:
    with pytest.raises(ArgumentValueError, match=r"price\.completion"):
        Price(1.0, wrong)


@pytest.mark.parametrize("prices", [["gpt-4o"], {"gpt-4o": (1, 2)}, {3: Price(1, 1)}])
def test_prices_of_a_wrong_type_are_refused(prices: object) -> None:
    with pytest.raises(ArgumentTypeError, match="prices"):
        PriceTable(prices)  # type: ignore[arg-type]  # wrong on purpose
    with pytest.raises(ArgumentTypeError, match=r"price\.prompt"):
        Price("1", 2)  # type: ignore[arg-type]  # wrong on purpose
