"""The operators' own questions, through DSPy's adapters."""

import asyncio
from dataclasses import replace

import dspy
import pytest
from dspy.utils import DummyLM

from combee_dspy.lessons import write_section
from combee_dspy.operators import InstructionChannel, Reorder, Rephrase
from combee_dspy.records import Edit, PredictorRun

PARENT = write_section("Answer.", ["Give a unit.", "Write formula in lower case."])
RUNS = tuple(
    PredictorRun(f"{n:064x}", {"question": f"q{n}"}, {"formula": "roi"}, n % 2) for n in range(4)
)
ANSWERS = {
    Reorder(): (
        {"new_order": [2, 1]},
        Edit(write_section("Answer.", ["Write formula in lower case.", "Give a unit."])),
    ),
    Rephrase(): (
        {"reworded_passages": ["Reply.", "A unit, please.", "Lower case for formula."]},
        Edit(write_section("Reply.", ["A unit, please.", "Lower case for formula."])),
    ),
    InstructionChannel(): (
        {"destinations": ["instruction", "formula"]},
        Edit(
            write_section("Answer.", ["Give a unit."]),
            field_descriptions={"question": "", "formula": "- Write formula in lower case."},
        ),
    ),
}


@pytest.mark.parametrize("notes", ["", "At most 400 tokens."])
@pytest.mark.parametrize("adapter", [dspy.ChatAdapter(), dspy.JSONAdapter()], ids=["chat", "json"])
@pytest.mark.parametrize("operator", ANSWERS, ids=lambda operator: operator.name)
def test_an_answer_in_text_becomes_an_edit(bench, operator, adapter, notes):
    answer, edit = ANSWERS[operator]
    lm = DummyLM([answer], adapter=adapter)

    async def call(signature, inputs, place, role):
        with dspy.context(lm=lm, adapter=adapter):
            return await dspy.Predict(signature).acall(**inputs)

    context = replace(bench.context(), call=call, notes=notes)
    assert (
        asyncio.run(operator.apply(bench.material(instruction=PARENT, runs=RUNS), context)) == edit
    )
    prompt = lm.history[-1]["messages"][-1]["content"]
    assert ("At most 400 tokens." in prompt) == bool(notes)
