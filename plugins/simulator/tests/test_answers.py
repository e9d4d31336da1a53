"""Real DSPy programs and proposers on the simulated service."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Literal

import dspy
import pydantic
import pytest
from dspy.teleprompt.gepa.instruction_proposal import InstructionProposer

from combee_simulator import (
    CapacityModel,
    ReasoningLaw,
    SimulatedConfig,
    SimulatedQuestion,
    SimulatedService,
    SimulatedTask,
)
from combee_simulator.requests import text_tokens
from combee_simulator.tagging import PLATITUDE


def question(number: int) -> SimulatedQuestion:
    key = f"F{number % 20:02d}"
    return SimulatedQuestion(
        text=(
            f'Firm "No. {number}" holds {number + 3} crates\nat ${number * 7 + 5} each; what is it'
            " worth?"
        ),
        target=f"{number * 10 + 1}.5",
        wrong=f"-{number + 1}",
        key=key,
        lesson=f"multiply before you round, case {key}.",
    )


QUESTIONS = tuple(question(number) for number in range(60))
TASK = SimulatedTask(QUESTIONS, base_rate=0.0)
ADAPTERS = {"chat": dspy.ChatAdapter(), "json": dspy.JSONAdapter()}


class Ask(dspy.Signature):
    """Answer the question."""

    question: str = dspy.InputField()
    answer: str = dspy.OutputField()


@pytest.fixture
def service() -> Iterator[SimulatedService]:
    config = SimulatedConfig(time_scale=0.0, capacity=CapacityModel.unlimited())
    with SimulatedService(config, TASK) as running, dspy.context(lm=running.lm()):
        yield running


def limited(capacity: CapacityModel) -> SimulatedService:
    return SimulatedService(SimulatedConfig(time_scale=0.0, capacity=capacity), TASK)


def records(count: int, start: int = 0) -> list[dict[str, object]]:
    return [
        {
            "Inputs": {"question": item.text},
            "Generated Outputs": {"answer": item.wrong},
            "Feedback": f'Wrong: "{item.target}"\nwas expected.',
        }
        for item in QUESTIONS[start : start + count]
    ]


def keys_in(text: str) -> list[str]:
    return [line[3:6] for line in text.splitlines() if line.startswith("- [F")]


@pytest.mark.parametrize("adapter", ADAPTERS)
@pytest.mark.parametrize("module", [dspy.Predict, dspy.ChainOfThought])
def test_without_the_lesson_the_answer_is_wrong_and_with_it_right(
    service: SimulatedService, adapter: str, module: type[dspy.Module]
) -> None:
    asked = QUESTIONS[7]
    with dspy.context(adapter=ADAPTERS[adapter]):
        plain = module(Ask)(question=asked.text)
        taught = module(Ask.with_instructions(f"Answer the question.\n\n- {asked.line}"))(
            question=asked.text
        )
        other = module(Ask.with_instructions(f"Answer the question.\n\n- {QUESTIONS[8].line}"))(
            question=asked.text
        )
    assert (plain.answer, taught.answer, other.answer) == (asked.wrong, asked.target, asked.wrong)
    assert (module is dspy.Predict) == ("reasoning" not in taught)
    # One call each: nothing was sent twice because it could not be parsed.
    assert service.stats().by_kind["task"].calls == 3


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_a_right_demonstration_of_the_same_lesson_teaches(
    service: SimulatedService, adapter: str
) -> None:
    asked, sibling, stranger = QUESTIONS[7], QUESTIONS[27], QUESTIONS[8]
    program = dspy.Predict(Ask)

    def answer(*demos: tuple[SimulatedQuestion, str]) -> str:
        program.demos = [dspy.Example(question=item.text, answer=given) for item, given in demos]
        with dspy.context(adapter=ADAPTERS[adapter]):
            return program(question=asked.text).answer

    assert answer((stranger, stranger.target), (sibling, sibling.target)) == asked.target
    assert answer((sibling, sibling.wrong)) == asked.wrong
    assert answer((stranger, stranger.target)) == asked.wrong


def test_a_lesson_inside_a_demonstration_or_after_the_question_is_no_instruction(
    service: SimulatedService,
) -> None:
    asked, stranger = QUESTIONS[7], QUESTIONS[8]
    program = dspy.Predict("question, note -> answer")
    program.demos = [dspy.Example(question=stranger.text, note=asked.line, answer=stranger.target)]
    assert program(question=asked.text, note=asked.line).answer == asked.wrong
    assert (
        dspy.Predict("note, question -> answer")(question=asked.text, note=asked.line).answer
        == asked.target
    )


def test_a_demonstration_written_into_the_instruction_teaches(service: SimulatedService) -> None:
    asked, sibling = QUESTIONS[7], QUESTIONS[27]
    shown = f"Answer.\n\nExample question: {sibling.text}\nExample answer: "
    assert (
        dspy.Predict(Ask.with_instructions(shown + sibling.target))(question=asked.text).answer
        == asked.target
    )
    assert (
        dspy.Predict(Ask.with_instructions(shown + sibling.wrong))(question=asked.text).answer
        == asked.wrong
    )


@pytest.mark.slow
def test_the_base_rate_is_a_property_of_the_question() -> None:
    task = SimulatedTask(tuple(question(number) for number in range(400)), base_rate=0.3)
    with (
        SimulatedService(SimulatedConfig(time_scale=0.0), task) as service,
        dspy.context(lm=service.lm()),
    ):
        known = [
            dspy.Predict(Ask)(question=item.text).answer == item.target for item in task.questions
        ]
        other = Ask.with_instructions("Please answer with one number.")
        again = [
            dspy.Predict(other)(question=item.text).answer == item.target for item in task.questions
        ]
    # 400 draws at 0.3: five standard deviations are about 46.
    assert abs(sum(known) - 120) < 46
    assert known == again


def test_an_answer_with_labels_is_one_of_them(service: SimulatedService) -> None:
    labels = [QUESTIONS[7].target, "label two", "label three"]
    signature = dspy.Signature("question -> answer").with_updated_fields(
        "answer", type_=Literal[tuple(labels)]
    )
    for adapter in ADAPTERS.values():
        with dspy.context(adapter=adapter):
            assert dspy.Predict(signature)(question=QUESTIONS[7].text).answer in labels[1:]
            taught = signature.with_instructions(QUESTIONS[7].line)
            assert dspy.Predict(taught)(question=QUESTIONS[7].text).answer == labels[0]


def test_a_typed_answer_is_typed(service: SimulatedService) -> None:
    signature = dspy.Signature("question -> answer: float, sure: bool", QUESTIONS[7].line)
    for adapter in ADAPTERS.values():
        with dspy.context(adapter=adapter):
            assert dspy.Predict(signature)(question=QUESTIONS[7].text).answer == float(
                QUESTIONS[7].target
            )
    assert service.stats().calls == 2


def test_a_react_agent_finishes_and_answers(service: SimulatedService) -> None:
    def look(name: str) -> str:
        return name

    agent = dspy.ReAct(Ask.with_instructions(QUESTIONS[7].line), tools=[look], max_iters=3)
    assert agent(question=QUESTIONS[7].text).answer == QUESTIONS[7].target
    assert service.stats().by_kind["task"].calls == 2


def test_dspys_own_proposer_collects_the_lessons_of_its_records(service: SimulatedService) -> None:
    current = f"Answer the question.\n\n- {QUESTIONS[19].line}\n\nBe brief."
    new = InstructionProposer()({"self": current}, {"self": records(6)}, ["self"])["self"]
    assert new.startswith("Answer the question.\n")
    assert keys_in(new) == ["F19", "F00", "F01", "F02", "F03", "F04", "F05"]
    assert all(question(number).line in new for number in range(6))
    assert (
        dspy.Predict(Ask.with_instructions(new))(question=QUESTIONS[3].text).answer
        == QUESTIONS[3].target
    )
    assert service.stats().by_kind["reflect"].calls == 1


def test_the_attention_law_loses_records_and_keeps_the_current_lessons() -> None:
    current = "Answer.\n\n" + "\n".join(f"- {question(number).line}" for number in range(10, 20))
    with limited(CapacityModel.attention(4)) as service, dspy.context(lm=service.lm()):
        new = InstructionProposer()({"self": current}, {"self": records(10)}, ["self"])["self"]
        few = InstructionProposer()({"self": current}, {"self": records(4)}, ["self"])["self"]
    assert keys_in(new)[:10] == [f"F{number}" for number in range(10, 20)]
    assert len(keys_in(new)) == 14
    assert PLATITUDE in new
    assert PLATITUDE not in few


def test_the_writing_law_counts_the_current_lessons() -> None:
    current = "Answer.\n\n" + "\n".join(f"- {question(number).line}" for number in range(10, 20))
    with limited(CapacityModel.writing(12)) as service, dspy.context(lm=service.lm()):
        new = InstructionProposer()({"self": current}, {"self": records(10)}, ["self"])["self"]
        delta = dspy.Predict("records: list[str] -> lessons: list[str]")(
            records=[json.dumps(record) for record in records(18)]
        ).lessons
    assert keys_in(new)[:10] == [f"F{number}" for number in range(10, 20)]
    assert len(keys_in(new)) == 12
    assert PLATITUDE in new
    assert len([line for line in delta if line.startswith("[F")]) == 12


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_lists_of_lessons_come_as_lists(service: SimulatedService, adapter: str) -> None:
    class Lesson(pydantic.BaseModel):
        operation: Literal["ADD", "UPDATE"]
        section: str
        content: str

    given = [QUESTIONS[2].text, f"seen before: {QUESTIONS[5].line}", QUESTIONS[22].text]
    with dspy.context(adapter=ADAPTERS[adapter]):
        plain = dspy.Predict("reflections: list[str] -> reasoning: str, lessons: list[str]")(
            reflections=given
        )
        typed = dspy.Predict(
            dspy.Signature("reflections: list[str] -> deltas").with_updated_fields(
                "deltas", type_=list[Lesson]
            )
        )
        deltas = typed(reflections=given).deltas
        text = dspy.Predict("reflections: list[str] -> summary")(reflections=given).summary
    lines = [QUESTIONS[2].line, QUESTIONS[5].line]
    assert plain.lessons == lines
    assert [(delta.operation, delta.content) for delta in deltas] == [
        ("ADD", line) for line in lines
    ]
    assert text == "\n".join(f"- {line}" for line in lines)
    assert service.stats().calls == 3


def test_a_plain_prompt_for_a_fenced_block_is_answered_in_one(service: SimulatedService) -> None:
    prompt = (
        f"The instructions were:\n```\nAnswer.\n- {QUESTIONS[9].line}\n```\n\n"
        f"Examples:\n```\n{QUESTIONS[4].text}\n```\n\n"
        "Provide the new instructions within ``` blocks."
    )
    [reply] = dspy.settings.lm(prompt)
    assert reply == f"```\nAnswer.\n\n- {QUESTIONS[9].line}\n- {QUESTIONS[4].line}\n```"


def test_a_stated_length_is_kept(service: SimulatedService) -> None:
    free = InstructionProposer()({"self": "Answer."}, {"self": records(12)}, ["self"])["self"]
    short = InstructionProposer(max_chars=200)(
        {"self": "Answer."}, {"self": records(12)}, ["self"]
    )["self"]
    assert len(short) <= 200 < len(free)
    assert keys_in(short)


def test_a_crowded_prompt_costs_more_output_tokens(service: SimulatedService) -> None:
    for count in (2, 18):
        dspy.Predict("records: list[str] -> lessons")(
            records=[json.dumps(record) for record in records(count)]
        )
    few, many = (entry["usage"]["completion_tokens"] for entry in dspy.settings.lm.history[-2:])
    assert many > 5 * few


def test_answers_and_latencies_do_not_depend_on_the_number_of_workers() -> None:
    task = SimulatedTask(QUESTIONS, base_rate=0.5)

    def run(workers: int) -> tuple[list[str], float, int]:
        with SimulatedService(SimulatedConfig(time_scale=0.0, seed=3), task) as service:
            lm = service.lm()

            def one(item: SimulatedQuestion) -> str:
                with dspy.context(lm=lm):
                    return dspy.Predict(Ask)(question=item.text).answer

            with ThreadPoolExecutor(workers) as pool:
                answers = list(pool.map(one, QUESTIONS))
            stats = service.stats()
            return answers, stats.slot_busy_seconds, stats.completion_tokens

    alone, together = run(1), run(8)
    assert (alone[0], alone[2]) == (together[0], together[2])
    # Sums of the same seconds in another order.
    assert math.isclose(alone[1], together[1], rel_tol=1e-9)


def test_a_temperature_above_0_draws_anew() -> None:
    task = SimulatedTask(QUESTIONS, base_rate=0.5)
    with SimulatedService(SimulatedConfig(time_scale=0.0), task) as service:
        with dspy.context(lm=service.lm(temperature=1.0)):
            sampled = {dspy.Predict(Ask)(question=QUESTIONS[0].text).answer for _ in range(30)}
        with dspy.context(lm=service.lm(temperature=0.0)):
            fixed = {dspy.Predict(Ask)(question=QUESTIONS[0].text).answer for _ in range(5)}
    assert (len(sampled), len(fixed)) == (2, 1)


GUARDS = SimulatedTask(
    tuple(
        SimulatedQuestion(
            f"What does guard {number} of the gate say?",
            f"{number}",
            "nothing",
            "G1",
            "ask the guard",
        )
        for number in range(3)
    ),
    base_rate=1.0,
)


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_an_answer_reasons_as_long_as_the_law_says_and_says_the_same(adapter: str) -> None:
    program = dspy.ChainOfThought("question -> answer")
    said = {}
    for name, law in (("short", None), ("long", ReasoningLaw(300, 0))):
        config = SimulatedConfig(time_scale=0.0, reasoning=law)
        with (
            SimulatedService(config, GUARDS) as service,
            dspy.context(lm=service.lm(), adapter=ADAPTERS[adapter]),
        ):
            said[name] = [program(question=question.text) for question in GUARDS.questions]
            written = service.stats().completion_tokens / len(GUARDS.questions)
        assert (written > 290) is (name == "long")
    for short, long in zip(said["short"], said["long"], strict=True):
        assert short.answer == long.answer
        assert text_tokens(long.reasoning) > 4 * text_tokens(short.reasoning)
