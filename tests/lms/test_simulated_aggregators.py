"""What aggregators ask of the simulated service, through DSPy's adapters, under its capacity laws."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import dspy
import pytest

from combee_dspy.aggregators import Aggregator, ParallelScan, SingleCall, Summarize, TopK, Union
from combee_dspy.lms.simulated import (
    CapacityModel,
    SimulatedConfig,
    SimulatedQuestion,
    SimulatedService,
    SimulatedTask,
)
from combee_dspy.lms.simulated.writing import PLATITUDE
from combee_dspy.records import Lessons, Reflection
from combee_dspy.reflections import estimate_tokens
from combee_dspy.strategies import StrategyContext

QUESTIONS = tuple(
    SimulatedQuestion(
        text=f"Firm number {number} holds {number + 3} crates at {number * 7 + 5} each; what is it worth?",
        target=f"{number * 10 + 1}.5",
        wrong=f"-{number + 1}",
        key=f"F{number:02d}",
        lesson=f"multiply before you round, case F{number:02d}.",
    )
    for number in range(60)
)
TASK = SimulatedTask(QUESTIONS, base_rate=0.0)
BOTH = CapacityModel(attended_items=12, written_lessons=12)


@pytest.fixture(autouse=True)
def _no_price_table_download(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")


def reflections(count: int) -> list[Reflection]:
    return [
        Reflection(
            index,
            {
                "Inputs": {"question": item.text},
                "Generated Outputs": {"answer": item.wrong},
                "Feedback": f"Wrong: {item.target} was expected.",
            },
        )
        for index, item in enumerate(QUESTIONS[:count])
    ]


def predict(signature: type[dspy.Signature], inputs: Sequence[dict[str, Any]], *, role: str = "proposer") -> list[Any]:
    return [dspy.Predict(signature)(**given) for given in inputs]


def learn(
    aggregator: Aggregator, count: int, capacity: CapacityModel, adapter: dspy.Adapter | None = None
) -> tuple[Lessons, int]:
    config = SimulatedConfig(time_scale=0.0, capacity=capacity)
    events: list[Any] = []
    with (
        SimulatedService(config, TASK) as service,
        dspy.context(lm=service.lm(), adapter=adapter or dspy.ChatAdapter()),
    ):
        context = StrategyContext("answer", "Answer the question.", predict, events.append)
        lessons = aggregator.aggregate(reflections(count), context)
        return lessons, service.stats().by_kind["reflect"].calls


def keys(lessons: Lessons) -> set[str]:
    texts = [lessons.rewrite or "", *(lesson.text for lesson in lessons.lessons)]
    return {item.key for item in QUESTIONS if any(f"[{item.key}]" in text for text in texts)}


@pytest.mark.parametrize("adapter", [dspy.ChatAdapter(), dspy.JSONAdapter()], ids=["chat", "json"])
@pytest.mark.parametrize(
    ("aggregator", "calls"),
    [
        (ParallelScan(), 5),
        (Union(), 4),
        (Union(sharding="topic"), 4),
        (TopK(k=16), 1),
        (Summarize(), 5),
    ],
    ids=["parallel-scan", "union", "union-topic", "top-k", "summarize"],
)
def test_without_laws_every_lesson_comes_through(aggregator: Aggregator, calls: int, adapter: dspy.Adapter) -> None:
    lessons, asked = learn(aggregator, 16, CapacityModel.unlimited(), adapter)
    assert asked == calls
    assert not [node.failed for node in lessons.nodes if node.failed]
    assert keys(lessons) == {item.key for item in QUESTIONS[:16]}


def test_each_call_reads_and_writes_no_more_than_the_laws_allow() -> None:
    for aggregator in (Union(copies=1), Summarize(shard_items=30), ParallelScan(copies=1), TopK(k=30)):
        lessons, _ = learn(aggregator, 60, BOTH)
        called = [node for node in lessons.nodes if not (isinstance(aggregator, Union) and node.level == 2)]
        written = [[text for text in node.lessons if text != PLATITUDE] for node in called]
        assert max(map(len, written)) <= 12, aggregator


def test_a_call_that_counts_tokens_reads_more_lessons_than_records() -> None:
    config = SimulatedConfig(time_scale=0.0, capacity=CapacityModel.reading(500))
    lines = [item.line for item in QUESTIONS[:24]]
    records = [f"{item.text} {'It was answered at length. ' * 10}" for item in QUESTIONS[:24]]
    asked = dspy.Predict("notes: list[str] -> lessons: list[str]")
    with SimulatedService(config, TASK) as service, dspy.context(lm=service.lm()):
        assert asked(notes=lines).lessons == lines
        # A record is about 85 tokens: the sixth crosses the limit.
        *read, last = asked(notes=records).lessons
    assert (len(read), last) == (6, PLATITUDE)


def test_a_join_by_code_escapes_the_laws_and_a_last_call_does_not() -> None:
    kept = {
        aggregator.name: len(keys(learn(aggregator, 60, BOTH)[0]))
        for aggregator in (SingleCall(), TopK(), Summarize(), Union(fan_in=12))
    }
    assert kept == {"single-call": 12, "top-k": 10, "summarize": 12, "union": 60}


@pytest.mark.parametrize("adapter", [dspy.ChatAdapter(), dspy.JSONAdapter()], ids=["chat", "json"])
def test_a_list_past_its_budget_is_shortened_to_fit(adapter: dspy.Adapter) -> None:
    lessons, calls = learn(Union(max_tokens=150), 16, CapacityModel.unlimited(), adapter)
    assert calls == 5
    assert [(node.level, node.failed) for node in lessons.nodes[-2:]] == [(2, None), (3, None)]
    assert len(lessons.nodes[-2].lessons) == 16
    # The simulated model cannot word anything shorter: it leaves out what does not fit.
    assert 0 < sum(estimate_tokens(lesson.text) for lesson in lessons.lessons) <= 150


def test_stated_limits_on_a_list_are_kept() -> None:
    config = SimulatedConfig(time_scale=0.0, capacity=CapacityModel.unlimited())
    given = [item.line for item in QUESTIONS[:20]]
    by_words = dspy.Predict("notes: list[str], most_words: int -> lessons: list[str]")
    by_items = dspy.Predict("notes: list[str], most_lessons: int -> lessons: list[str]")
    with SimulatedService(config, TASK) as service, dspy.context(lm=service.lm()):
        assert by_items(notes=given, most_lessons=7).lessons == given[:7]
        assert by_words(notes=given, most_words=30).lessons == given[: 30 // len(given[0].split())]
