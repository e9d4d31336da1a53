"""Readers that cite examples by number, and judges that name lessons by number, on the simulated
service.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from typing import Any

import dspy
import pytest

from combee_bench.asking import asker, there
from combee_dspy.aggregators import ReferenceScan
from combee_dspy.aggregators._prompts import AddLessons, RelateLessons
from combee_dspy.records import Lessons, Reflection
from combee_dspy.strategies import StrategyContext
from combee_simulator import (
    CapacityModel,
    SimulatedConfig,
    SimulatedQuestion,
    SimulatedService,
    SimulatedTask,
    WordingLaw,
)
from combee_simulator.requests import text_tokens
from combee_simulator.tagging import PLATITUDE

ADAPTERS = {"chat": dspy.ChatAdapter(), "json": dspy.JSONAdapter()}
DEPOTS = ("north", "harbour", "airport", "castle", "railway", "river", "market", "museum")
# Three questions teach each of the first lessons: 0, 8 and 16 the first, 1, 9 and 17 the second.
QUESTIONS = tuple(
    SimulatedQuestion(
        text=f"How many crates does depot number {number} hold in example {number + 50}?",
        target=f"{number}1",
        wrong=f"{number}9",
        key=f"K{number % 8}",
        lesson=(
            f"Depot kind {DEPOTS[number % 8]}: keep the order, divide the figures as given and"
            " round the result."
        ),
    )
    for number in range(24)
)
TASK = SimulatedTask(QUESTIONS, base_rate=0.0)
CITATION = re.compile(r"^\[(\d+(?:, \d+)*)\] \[(K\d)\] ")


@pytest.fixture(params=sorted(ADAPTERS))
def adapter(request: pytest.FixtureRequest) -> dspy.Adapter:
    return ADAPTERS[request.param]


def record(question: SimulatedQuestion) -> dict[str, Any]:
    return {
        "Inputs": {"question": question.text},
        "Generated Outputs": {"answer": question.wrong},
        "Feedback": f'Wrong: "{question.target}"\nwas expected. {question.line}',
    }


def numbered(*places: int) -> list[dict[str, Any]]:
    return [
        {"Example": number, **record(QUESTIONS[place])} for number, place in enumerate(places, 1)
    ]


def ask(
    signature: type[dspy.Signature],
    inputs: Mapping[str, Any],
    adapter: dspy.Adapter = ADAPTERS["chat"],
    capacity: CapacityModel | None = None,
) -> tuple[dspy.Prediction, SimulatedService]:
    config = SimulatedConfig(time_scale=0.0, capacity=capacity or CapacityModel.unlimited())
    with SimulatedService(config, TASK) as service, dspy.context(lm=service.lm(), adapter=adapter):
        inputs = {"current_instruction": f"Answer.\n\n- {QUESTIONS[7].line}", **inputs}
        return dspy.Predict(signature)(**inputs), service


def read(
    records: list[dict[str, Any]],
    capacity: CapacityModel | None = None,
    adapter: dspy.Adapter = ADAPTERS["chat"],
) -> list[str]:
    answer, _ = ask(
        AddLessons, {"examples_with_feedback": records, "most_lessons": 32}, adapter, capacity
    )
    return list(answer.lessons)


def relate(
    lessons: list[str],
    capacity: CapacityModel | None = None,
    adapter: dspy.Adapter = ADAPTERS["chat"],
) -> dspy.Prediction:
    shown = [f"{number}. {lesson}" for number, lesson in enumerate(lessons, 1)]
    return ask(RelateLessons, {"lessons": shown}, adapter, capacity)[0]


def cited(lines: list[str]) -> dict[str, list[int]]:
    results = [match for line in lines if (match := CITATION.match(line))]
    return {match[2]: [int(number) for number in match[1].split(", ")] for match in results}


def test_a_line_begins_with_the_numbers_of_the_examples_that_teach_it(
    adapter: dspy.Adapter,
) -> None:
    lines = read(numbered(0, 1, 8, 2, 9, 16), adapter=adapter)
    assert cited(lines) == {"K0": [1, 3, 6], "K1": [2, 5], "K2": [4]}
    assert lines[0] == f"[1, 3, 6] {QUESTIONS[0].line}"
    assert len(lines) == 3


def test_records_without_numbers_are_not_cited(adapter: dspy.Adapter) -> None:
    lines = read([record(QUESTIONS[place]) for place in (0, 1, 8)], adapter=adapter)
    assert lines == [QUESTIONS[0].line, QUESTIONS[1].line]


def test_only_examples_that_were_read_are_cited() -> None:
    lines = read(numbered(*range(24)), CapacityModel.attention(10))
    numbers = [number for examples in cited(lines).values() for number in examples]
    # Each record has two items: its question, and the lesson in its feedback.
    assert 5 <= len(numbers) <= 10
    assert all(
        (number - 1) % 8 == int(key[1]) for key, read in cited(lines).items() for number in read
    )
    assert lines[-1] == PLATITUDE


def test_wordings_of_a_lesson_are_named_as_the_same(adapter: dspy.Adapter) -> None:
    first, second, third = (QUESTIONS[place].line for place in range(3))
    answer = relate(
        [first, second, f"Mind this. {first}", third, f"In short: {second}", first], adapter=adapter
    )
    assert answer.same == [[1, 3, 6], [2, 5]]
    assert (answer.contradictory, answer.narrower, answer.empty) == ([], [], [])


def test_lessons_without_a_key_and_lessons_with_more_are_the_same_as_none() -> None:
    first, second = QUESTIONS[0].line, QUESTIONS[1].line
    assert relate([PLATITUDE, first, PLATITUDE, f"{first} {second}"]).same == []


@pytest.mark.parametrize(
    "capacity",
    [
        CapacityModel.attention(12),
        CapacityModel.reading(12 * text_tokens(f"10. {QUESTIONS[0].line}")),
    ],
)
def test_a_judge_attends_to_as_many_lessons_as_the_law_lets_it(capacity: CapacityModel) -> None:
    lessons = [QUESTIONS[number % 8].line for number in range(40)]
    groups = relate(lessons, capacity).same
    numbers = [number for group in groups for number in group]
    assert 2 <= len(numbers) <= 13
    assert len(set(numbers)) == len(numbers)
    assert all(
        len({(number - 1) % 8 for number in group}) == 1 and len(group) > 1 for group in groups
    )


def test_a_judges_answer_takes_a_few_tokens_a_number() -> None:
    lessons = [f"{number}. {QUESTIONS[number % 8].line}" for number in range(1, 41)]
    answer, service = ask(RelateLessons, {"lessons": lessons})
    tokens = service.stats().by_kind["reflect"].completion_tokens
    assert sum(map(len, answer.same)) == 40
    assert tokens < 100 < sum(map(text_tokens, lessons))


@pytest.mark.parametrize("anew", [False, True])
def test_a_scan_knows_all_examples_of_a_lesson(*, anew: bool) -> None:
    """Shards share lessons, in one wording or in one for each call: code joins the first, a judge
    unites the second.
    """
    aggregator = ReferenceScan(fan_in=6, levels=6 if anew else 0)

    async def run(lm: dspy.LM) -> Lessons:
        async with asker(lm, 8, ADAPTERS["chat"]) as asked:
            context = StrategyContext("answer", "Answer.", asked, lambda event: None)
            items = [
                Reflection(place, record(question)) for place, question in enumerate(QUESTIONS)
            ]
            return await aggregator.aggregate(there(items), context)

    config = SimulatedConfig(
        time_scale=0.0, capacity=CapacityModel.unlimited(), wording=WordingLaw(each_call=anew)
    )
    with SimulatedService(config, TASK) as service:
        lessons = asyncio.run(run(service.lm())).lessons
    sources = {lesson.text[1:3]: lesson.sources for lesson in lessons}
    assert sources == {f"K{kind}": (kind, kind + 8, kind + 16) for kind in range(8)}
    assert len(lessons) == 8
