"""What strategies ask of the simulated service, through DSPy's adapters, under its capacity
laws.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import dspy
import pytest

from combee_bench.asking import asker, there
from combee_dspy.aggregators import Aggregator, ParallelScan, SingleCall, Union
from combee_dspy.artifacts import SECTIONS
from combee_dspy.artifacts._reflecting import ReflectOnTrajectoryWithTruth
from combee_dspy.operators import (
    InstructionChannel,
    Operator,
    OperatorInput,
    Reorder,
    Rephrase,
)
from combee_dspy.records import Edit, Lessons, PredictorRun, Reflection, Refusal
from combee_dspy.strategies import StrategyContext
from combee_simulator import (
    CapacityModel,
    SimulatedConfig,
    SimulatedQuestion,
    SimulatedService,
    SimulatedTask,
)
from combee_simulator.tagging import PLATITUDE

QUESTIONS = tuple(
    SimulatedQuestion(
        text=(
            f"Firm number {number} holds {number + 3} crates at {number * 7 + 5} each; what is it"
            " worth?"
        ),
        target=f"{number * 10 + 1}.5",
        wrong=f"-{number + 1}",
        key=f"F{number:02d}",
        lesson=f"multiply before you round, case F{number:02d}.",
    )
    for number in range(60)
)
TASK = SimulatedTask(QUESTIONS, base_rate=0.0)
LINES = list(TASK.lessons.values())
BOTH = CapacityModel(attended_items=12, written_lessons=12)
ADAPTERS = {"chat": dspy.ChatAdapter(), "json": dspy.JSONAdapter()}


@pytest.fixture(params=sorted(ADAPTERS))
def adapter(request: pytest.FixtureRequest) -> dspy.Adapter:
    return ADAPTERS[request.param]


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


def learn(
    aggregator: Aggregator,
    count: int,
    capacity: CapacityModel,
    adapter: dspy.Adapter = ADAPTERS["chat"],
) -> tuple[Lessons, int]:
    async def run(lm: dspy.LM) -> Lessons:
        async with asker(lm, 8, adapter) as ask:
            context = StrategyContext("answer", "Answer the question.", ask, lambda event: None)
            return await aggregator.aggregate(there(reflections(count)), context)

    with SimulatedService(SimulatedConfig(time_scale=0.0, capacity=capacity), TASK) as service:
        return asyncio.run(run(service.lm())), service.stats().by_kind["reflect"].calls


def keys(lessons: Lessons) -> set[str]:
    texts = [lessons.rewrite or "", *(lesson.text for lesson in lessons.lessons)]
    return {item.key for item in QUESTIONS if any(f"[{item.key}]" in text for text in texts)}


@pytest.mark.parametrize(
    ("aggregator", "calls"),
    [(ParallelScan(), 5), (Union(), 4)],
    ids=["parallel-scan", "union"],
)
def test_without_laws_every_lesson_comes_through(
    aggregator: Aggregator, calls: int, adapter: dspy.Adapter
) -> None:
    lessons, asked = learn(aggregator, 16, CapacityModel.unlimited(), adapter)
    assert asked == calls
    assert not [node.failed for node in lessons.nodes if node.failed]
    assert keys(lessons) == {item.key for item in QUESTIONS[:16]}


def test_a_join_by_code_escapes_the_laws_and_a_last_call_does_not() -> None:
    kept = {
        aggregator.name: len(keys(learn(aggregator, 60, BOTH)[0]))
        for aggregator in (SingleCall(), Union(fan_in=12))
    }
    assert kept == {"single-call": 12, "union": 60}


def test_a_call_that_counts_tokens_reads_more_lessons_than_records() -> None:
    config = SimulatedConfig(time_scale=0.0, capacity=CapacityModel.reading(500))
    records = [f"{item.text} {'It was answered at length. ' * 10}" for item in QUESTIONS[:24]]
    asked = dspy.Predict("notes: list[str] -> lessons: list[str]")
    with SimulatedService(config, TASK) as service, dspy.context(lm=service.lm()):
        assert asked(notes=LINES[:24]).lessons == LINES[:24]
        # A record is about 85 tokens: the sixth crosses the limit.
        *read, last = asked(notes=records).lessons
    assert (len(read), last) == (6, PLATITUDE)


def test_stated_limits_on_a_list_are_kept() -> None:
    config = SimulatedConfig(time_scale=0.0, capacity=CapacityModel.unlimited())
    by_words = dspy.Predict("notes: list[str], most_words: int -> lessons: list[str]")
    by_items = dspy.Predict("notes: list[str], most_lessons: int -> lessons: list[str]")
    with SimulatedService(config, TASK) as service, dspy.context(lm=service.lm()):
        assert by_items(notes=LINES[:20], most_lessons=7).lessons == LINES[:7]
        assert (
            by_words(notes=LINES[:20], most_words=30).lessons
            == LINES[: 30 // len(LINES[0].split())]
        )


PARENT = "Answer.\n\nLessons learned:\n- " + "\n- ".join([LINES[0], "Take care.", *LINES[1:3]])


def edited(operator: Operator, adapter: dspy.Adapter, parent: str = PARENT) -> Edit | Refusal:
    runs = tuple(
        PredictorRun(
            f"{number:064x}", {"question": QUESTIONS[number].text}, {"formula": "roi"}, number % 2
        )
        for number in range(4)
    )
    signature = dspy.Signature("question -> formula", parent)

    async def run(lm: dspy.LM) -> Edit | Refusal:
        async with asker(lm, 4, adapter) as ask:
            context = StrategyContext("formula", parent, ask, lambda event: None)
            return await operator.apply(
                OperatorInput(parent, (), signature, Lessons("formula"), runs), context
            )

    with SimulatedService(
        SimulatedConfig(time_scale=0.0, capacity=CapacityModel.writing(12)), TASK
    ) as service:
        return asyncio.run(run(service.lm()))


def test_the_line_that_teaches_nothing_stands_last(adapter: dspy.Adapter) -> None:
    ordered = edited(Reorder(), adapter)
    assert isinstance(ordered, Edit)
    assert (ordered.instruction or "").endswith(f"{LINES[2]}\n- Take care.")


def test_rewording_keeps_what_lessons_say_and_more_than_a_call_can_write_is_refused(
    adapter: dspy.Adapter,
) -> None:
    reworded = edited(Rephrase(), adapter)
    assert isinstance(reworded, Edit)
    assert reworded.instruction != PARENT
    assert all(line in (reworded.instruction or "") for line in LINES[:3])
    many = "Answer.\n\nLessons learned:\n- " + "\n- ".join(LINES[:20])
    assert isinstance(edited(Rephrase(), adapter, many), Refusal)


def test_a_lesson_about_a_field_moves_to_it(adapter: dspy.Adapter) -> None:
    result = edited(
        InstructionChannel(), adapter, PARENT.replace("Take care.", "Write formula in lower case.")
    )
    assert isinstance(result, Edit)
    assert result.instruction == PARENT.replace("- Take care.\n", "")
    assert (result.field_descriptions or {})["formula"] == "- Write formula in lower case."


@pytest.fixture
def service() -> Iterator[SimulatedService]:
    with SimulatedService(
        SimulatedConfig(time_scale=0, capacity=CapacityModel.attention(12)), TASK
    ) as made:
        yield made


def test_a_reflector_states_the_lesson_and_tags_bullets(service: Any, adapter: Any) -> None:
    with dspy.context(lm=service.lm(), adapter=adapter):
        answer = dspy.Predict(ReflectOnTrajectoryWithTruth)(
            current_instruction="Answer.",
            trajectory={"Inputs": {"question": QUESTIONS[7].text}},
            feedback="Wrong.",
            bullets_used=[f"[a-{n}] helpful=0 harmful=0 :: {LINES[n]}" for n in (6, 7)],
            sections=list(SECTIONS),
            ground_truth={"answer": "7"},
        )
    assert LINES[7] in answer.key_insight
    assert LINES[6] not in answer.key_insight
    assert answer.bullet_tags == {"a-6": "neutral", "a-7": "helpful"}
    assert answer.section == "FORMULAS AND DEFINITIONS"
