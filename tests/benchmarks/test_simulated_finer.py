from __future__ import annotations

import dspy
import pytest
from benchmark_rows import record

from combee_dspy.benchmarks import Finer
from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.lms import SimulatedConfig, SimulatedService
from combee_dspy.lms.simulated import finer_task

FINER = Finer(reasoning=False, label_list="hidden")
# Labels come again after 139: these two ask other questions with the same answers.
ASKED, TAUGHT = FINER.to_example(record(1)), FINER.to_example(record(140))
TAGS = ASKED.tags.split(",")


@pytest.fixture(scope="module")
def ask():
    task = finer_task([ASKED, TAUGHT, FINER.to_example(record(7))], base_rate=0.0)
    with SimulatedService(SimulatedConfig(time_scale=0.0), task) as service:
        lm = service.lm()

        def call(instruction: str = "Tag.", demos: tuple[dspy.Example, ...] = ()) -> list[bool]:
            program = dspy.Predict(dspy.Signature("questions -> tags", instruction))
            program.demos = list(demos)
            with dspy.context(lm=lm):
                said = program(questions=ASKED.questions).tags
            return [one == other for one, other in zip(said.split(","), TAGS, strict=True)]

        yield call


def test_nothing_is_known_without_a_lesson(ask):
    assert ask() == [False] * 4


def test_a_lesson_teaches_its_own_tag(ask):
    assert ask(f"Tag.\n- [{TAGS[2]}] such numbers.") == [False, False, True, False]


def test_a_demonstration_teaches_the_tags_that_it_answers_rightly(ask):
    assert ask(demos=(TAUGHT,)) == [True] * 4
    half = dspy.Example(questions=TAUGHT.questions, tags=f"{TAGS[0]},x,y,{TAGS[3]}").with_inputs("questions")
    assert ask(demos=(half,)) == [True, False, False, True]


def test_an_example_in_the_instruction_teaches_them_too(ask):
    assert ask(f"Tag.\nExample:\n{TAUGHT.questions}\nTags: {TAUGHT.tags}") == [True] * 4


def test_rows_that_are_not_finers_are_refused():
    with pytest.raises(ArgumentValueError, match="FiNER"):
        finer_task([{"context": "Hello", "target": "x"}])
