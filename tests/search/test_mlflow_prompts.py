"""MLflow's prompt optimizer with our reducer; a script under examples/ drives ``optimize_prompts``
itself with it.
"""

from __future__ import annotations

import importlib
import json
import re
import sys
from dataclasses import dataclass, field
from typing import Any

import pytest

from combee_dspy import CombeeReflection
from combee_dspy.exceptions import ArgumentTypeError, ArgumentValueError, MissingDistributionError
from combee_dspy.testing import ScriptedLM, ScriptedRequest, as_json

pytest.importorskip("mlflow")
ROWS = [
    {"inputs": {"item": f"item {n}"}, "expectations": {"expected_response": f"K{n}"}}
    for n in range(16)
]


@dataclass
class Scored:
    """MLflow's result of a row."""

    score: float | None
    inputs: dict[str, Any] = field(default_factory=dict)
    outputs: Any = "?"
    expectations: dict[str, Any] = field(default_factory=dict)
    rationales: dict[str, str] = field(default_factory=dict)


class Agent:
    """Knows the codes that its prompts say, and remembers which prompts it was given."""

    def __init__(self) -> None:
        self.prompts: list[dict[str, str]] = []

    def __call__(self, prompts: dict[str, str], rows: Any) -> list[Scored]:
        self.prompts.append(prompts)
        said = " ".join(prompts.values())
        codes = [row["expectations"]["expected_response"] for row in rows]
        scores = [float(re.search(rf"\b{code}\b", said) is not None) for code in codes]
        return [
            Scored(score, row["inputs"], "?", row["expectations"])
            for score, row in zip(scores, rows, strict=True)
        ]


def learner(request: ScriptedRequest) -> str:
    """Write every expected code that the request shows as a lesson, and two fields that nobody
    fills.
    """
    codes = dict.fromkeys(re.findall(r"\bK\d+\b", request.last))
    return as_json(
        {
            "lessons": [
                *(f"One code is {code}." for code in codes),
                "Add {{secret}}.",
                "Begin {% if x %}.",
            ]
        }
    )


def optimized(
    prompts: dict[str, str], rows: Any = (*ROWS, *ROWS), agent: Any = None, **given: Any
) -> Any:
    from combee_dspy import CombeePromptOptimizer

    optimizer = CombeePromptOptimizer(
        given.pop("lm", ScriptedLM(learner)), **{"max_metric_calls": 80, **given}
    )
    return optimizer.optimize(agent or Agent(), list(rows), prompts, False)


def test_a_text_prompt_learns_and_gets_no_field_of_the_lms() -> None:
    found = optimized({"codes": "Give the code of {{ item }}."})
    text = found.optimized_prompts["codes"]
    assert text.startswith("Give the code of {{ item }}.\n\nLessons learned:\n- One code is K")
    assert "secret" not in text
    assert "{%" not in text
    assert found.initial_eval_score == 0.0 < found.final_eval_score


def test_a_chat_prompt_learns_in_its_system_message_and_stays_one() -> None:
    chat = [
        {"role": "user", "content": "The code of {{item}}?"},
        {"role": "system", "content": "Know the codes."},
    ]
    agent = Agent()
    user, system = json.loads(
        optimized({"codes": json.dumps(chat)}, agent=agent).optimized_prompts["codes"]
    )
    assert user == chat[0]
    assert system["content"].startswith("Know the codes.\n\nLessons learned:\n- One code is K")
    assert all(json.loads(prompts["codes"])[0] == chat[0] for prompts in agent.prompts)


def test_each_of_several_prompts_is_a_component() -> None:
    found = optimized(
        {"plan": "Plan.", "answer": "Answer {{item}}."}, max_metric_calls=200
    ).optimized_prompts
    assert "K" in found["plan"] + found["answer"]
    assert found["plan"].startswith("Plan.")
    assert found["answer"].startswith("Answer {{item}}.")


def test_rows_to_choose_by_are_not_learned_from() -> None:
    # Each code stands in one row: what is learned helps with no row to choose by, so no text beats
    # the first one.
    found = optimized({"codes": "Give the code of {{item}}."}, ROWS)
    assert found.final_eval_score == found.initial_eval_score == 0.0


def test_the_same_seed_learns_the_same_and_another_divides_the_rows_otherwise() -> None:
    first, again, other = (
        optimized({"codes": "Give."}, seed=seed).optimized_prompts for seed in (1, 1, 2)
    )
    assert first == again != other


def test_a_rewrite_that_loses_a_field_is_refused() -> None:
    lm = ScriptedLM(
        lambda request: as_json({"new_instruction": "All new, without the field: K1 K2 K3."})
    )
    agent = Agent()
    found = optimized(
        {"codes": "Say {{item}}."}, agent=agent, lm=CombeeReflection(lm, "single-call")
    )
    assert lm.requests
    assert {prompts["codes"] for prompts in agent.prompts} == {"Say {{item}}."}
    assert found.optimized_prompts == {"codes": "Say {{item}}."}


def test_what_cannot_work_is_refused_by_name() -> None:
    with pytest.raises(ArgumentValueError, match="validation"):
        optimized({"a": "Say."}, validation=1.0)
    with pytest.raises(ArgumentValueError, match="minibatch_size"):
        optimized({"a": "Say."}, minibatch_size=0)
    with pytest.raises(ArgumentTypeError, match="lm"):
        optimized({"a": "Say."}, lm=3)
    with pytest.raises(ArgumentValueError, match="fewer than two rows"):
        optimized({"a": "Say."}, ROWS[:1])
    with pytest.raises(ArgumentValueError, match="no score"):
        optimized({"a": "Say."}, agent=lambda _, rows: [Scored(None) for _ in rows])
    with pytest.raises(ArgumentValueError, match="chat prompt without text"):
        optimized({"a": json.dumps([{"role": "user", "content": [{"type": "text"}]}])})


def test_without_mlflow_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "combee_dspy.mlflow_prompts", raising=False)
    monkeypatch.setitem(sys.modules, "mlflow.genai.optimize", None)
    with pytest.raises(MissingDistributionError, match=r"pip install 'combee-dspy\[mlflow\]'"):
        importlib.import_module("combee_dspy.mlflow_prompts")
