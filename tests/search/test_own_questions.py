"""The library's own questions are asked with the user's adapter, as DSPy would ask them."""

from __future__ import annotations

import json
from typing import Any

import dspy
import pytest
from dspy.utils import DummyLM

from combee_dspy import Combee
from combee_dspy.exceptions import TooManyFailuresError
from combee_dspy.lms import ConstrainedJSONAdapter, adapter_for, embedded
from combee_dspy.testing import ScriptedLM
from tests.slow import slow_but
from tests.worlds import ANIMALS, World, code_word, examples, metric

RULES = [f"The rule: the word for {animal} is {code_word(animal)}" for animal in ANIMALS]

CHAT, JSON, XML = dspy.ChatAdapter(), dspy.JSONAdapter(), dspy.XMLAdapter()

# However many calls there were, none of them could be read.
ALL_UNPARSED = r"(\d+) of \1 proposer calls unparsed"


def compiled(proposer: Any, *, adapter: Any = None, **kwargs: Any) -> Any:
    """Compile with an LM that knows one answer, which is of no use to a comparison."""
    kwargs = {"aggregator": "union", **kwargs}
    world = World.made()
    with dspy.context(lm=world.task_lm, adapter=adapter):
        optimizer = Combee(
            metric,
            reflection_lm=proposer,
            max_metric_calls=120,
            num_threads=1,
            tracker=(),
            **kwargs,
        )
        return optimizer.compile(
            dspy.Predict("question -> answer"), trainset=examples(24), valset=examples(12, 100)
        ).combee_report


@pytest.mark.parametrize(
    ("adapter", "writes"), [(None, CHAT), (CHAT, CHAT), (JSON, JSON), (XML, XML)]
)
def test_dspys_dummy_lm_proposes(adapter: Any, writes: Any) -> None:
    proposer = DummyLM([{"lessons": RULES}] * 40, adapter=writes)
    report = compiled(proposer, adapter=adapter)

    assert report.best_score == 1.0 > report.seed_score
    assert not report.failures


def test_an_answer_in_json_is_read_by_the_fallback() -> None:
    proposer = DummyLM([{"lessons": RULES}] * 40, adapter=JSON)
    report = compiled(proposer)

    assert report.best_score == 1.0
    assert not report.failures


@pytest.mark.parametrize("writes", [CHAT, JSON])
@pytest.mark.parametrize("field", ["new_instruction", "improved_instruction"])
@pytest.mark.parametrize("aggregator", slow_but(("union",), ["union", "single-call"]))
def test_answers_in_the_field_of_gepas_proposer_are_read(
    writes: Any, field: str, aggregator: str
) -> None:
    proposer = DummyLM([{field: "\n".join(RULES)}] * 40, adapter=writes)
    report = compiled(proposer, aggregator=aggregator)

    assert report.best_score == 1.0 > report.seed_score
    assert not report.failures


LINES = "\n".join(f"- {rule}" for rule in RULES)
NUMBERED = "\n\n".join(f"{number}. {rule}" for number, rule in enumerate(RULES, 1))


@pytest.mark.parametrize(
    "answer",
    [
        f"```\n{LINES}\n```",
        f"Here is the new instruction:\n```markdown\nAnswer.\n\n{LINES}\n```\nIt names all words.",
        f"```json\n{json.dumps(RULES)}\n```",
        f"````c++\n{LINES}\n````",
        f"Lessons:\n{LINES}",
        NUMBERED,
        json.dumps(RULES, indent=2),
    ],
)
def test_a_list_without_its_field_is_read(answer: str) -> None:
    report = compiled(ScriptedLM(lambda request: answer))

    assert report.best_score == 1.0 > report.seed_score
    assert not report.failures


@pytest.mark.parametrize(
    "answer",
    [
        "I cannot help with that.",
        "I cannot:\n- help with that.",
        f"<think>\n{LINES}",
        f"[[ ## rules ## ]]\n{LINES}",
        f'```json\n{{"error": "{RULES[0]}"}}\n```',
        f"```json\n{json.dumps([{'lesson': RULES[0]}])}\n```",
        f"```json\n{json.dumps([*RULES, 4])}\n```",
        f"```python\n{RULES}\n```",
        f"{json.dumps(RULES)[:-9]}",
        "```json\nnull\n```",
        "```I cannot do that```",
        "I cannot answer with ``` fences, since ``` was not asked for.",
        "```\n```",
        "```",
        LINES.replace("\n", "\nPerhaps.\nOr not.\n"),
    ],
)
def test_no_other_text_is_taken_for_an_answer(answer: str) -> None:
    with pytest.raises(TooManyFailuresError, match=ALL_UNPARSED):
        compiled(ScriptedLM(lambda request: answer))


def test_no_other_field_is_taken_for_an_answer() -> None:
    with pytest.raises(TooManyFailuresError, match=ALL_UNPARSED):
        compiled(DummyLM([{"error": "I cannot help."}] * 80))


def test_who_is_asked_how() -> None:
    chosen = dspy.XMLAdapter()
    with dspy.context(lm=dspy.LM("openai/any"), adapter=None):
        assert type(adapter_for(None)) is dspy.ChatAdapter
        assert type(adapter_for(embedded("model.gguf"))) is ConstrainedJSONAdapter
    with dspy.context(lm=embedded("model.gguf"), adapter=None):
        assert type(adapter_for(None)) is ConstrainedJSONAdapter
        assert type(adapter_for(dspy.LM("openai/any"))) is dspy.ChatAdapter
    with dspy.context(adapter=chosen):
        assert adapter_for(embedded("model.gguf")) is chosen
