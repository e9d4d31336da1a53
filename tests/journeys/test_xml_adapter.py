"""A user who configures ``dspy.XMLAdapter``, which DSPy 3.5 makes the default."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import dspy
import pytest

from combee_dspy.testing import ScriptedRequest
from tests.worlds import ANIMALS, World, animal_of, code_word, examples, rows


def as_xml(fields: dict[str, str]) -> str:
    return "\n\n".join(f"<{name}>\n{value}\n</{name}>" for name, value in fields.items())


def task_answer(request: ScriptedRequest) -> str:
    assert "`<answer>`" in request.text, "the task LM is asked for XML"
    animal = animal_of(request.last)
    taught = f"the word for {animal} is {code_word(animal)}" in request.system
    return as_xml({"answer": code_word(animal) if taught else "unknown"})


def proposer_answer(request: ScriptedRequest) -> str:
    assert "[[ ## " not in request.system, "the proposer's prompt follows the adapter"
    rules = list(dict.fromkeys(re.findall(r"Rule: the word for \w+ is \w+", request.text)))
    if "<narrower>" in request.text:
        return as_xml(dict.fromkeys(("same", "contradictory", "narrower", "empty"), "[]"))
    if "new_instruction" in request.text:
        return as_xml({"new_instruction": "Give the code word.\n" + "\n".join(rules)})
    # What the text says already is no lesson: a shard of few examples has room for few.
    (own,) = re.findall(
        r"<current_instruction>(.*?)</current_instruction>", request.last, re.DOTALL
    ) or ("",)
    rules = [rule for rule in rules if rule not in own]
    items = "".join(f"<item>{rule}</item>" for rule in rules)
    return as_xml({"lessons": items if "<item>" in request.text else json.dumps(rules)})


@pytest.mark.parametrize(
    "settings",
    [{}, {"aggregator": "parallel-scan", "operators": ["rewrite"]}],
    ids=["defaults", "the paper's pair"],
)
def test_a_compile_learns_and_the_program_keeps_its_adapter(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    world = World.made(task_answer, proposer_answer)
    with dspy.context(lm=world.task_lm, adapter=dspy.XMLAdapter()):
        learned = world.combee(log_dir=tmp_path, **settings).compile(
            dspy.Predict("question -> answer"),
            trainset=examples(24),
            valset=examples(12, 100),
            heldout=examples(12, 200),
        )
        report = learned.combee_report
        answers = [learned(question=row.question).answer for row in examples(12)]
    assert report.heldout.before == 0.0
    assert report.heldout.after >= 0.5
    assert sum(answer == code_word(name) for answer, name in zip(answers, ANIMALS, strict=True)) > 5
    failed = "SELECT kind, error FROM effect WHERE error IS NOT NULL"
    assert rows(tmp_path, failed) == [], "no answer was unreadable"
