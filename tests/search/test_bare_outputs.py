"""A program may return anything, as with ``dspy.GEPA``: its metric gets what it returned."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dspy
import pytest

from combee_dspy import Validation
from combee_dspy.evaluation import Calibration
from combee_dspy.rollouts import (
    RolloutJob,
    decode_rollout,
    encode_rollout,
    output_of,
    run_rollout,
)
from tests.worlds import World, events, examples, metric


class Returns(dspy.Module):
    """Returns its answer in some form, such as a tuple."""

    def __init__(self, form: Callable[[str], Any]) -> None:
        super().__init__()
        self.answer = dspy.Predict("question -> answer")
        self.form = form

    def forward(self, question: str) -> Any:
        return self.form(self.answer(question=question).answer)


@dataclass
class Answer:
    text: str


FORMS: dict[str, tuple[Callable[[str], Any], Callable[[Any], str]]] = {
    "tuple": (lambda answer: (answer, 1), lambda output: output[0]),
    "text": (lambda answer: answer, lambda output: output),
    "list": (lambda answer: [answer], lambda output: output[0]),
    "dict": (
        lambda answer: {"answer": answer},
        lambda output: output["answer"] if type(output) is dict else "",
    ),
    "dataclass": (Answer, lambda output: output.text),
    "example": (
        lambda answer: dspy.Example(answer=answer),
        lambda output: output.answer if type(output) is dspy.Example else "",
    ),
}
SHAPES = pytest.mark.parametrize(("form", "read"), FORMS.values(), ids=FORMS)


def reading(read: Callable[[Any], str]) -> Any:
    def score(
        gold: Any, pred: Any, trace: Any = None, pred_name: Any = None, pred_trace: Any = None
    ) -> Any:
        found = metric(gold, dspy.Prediction(answer=read(pred)))
        return dspy.Prediction(score=found.score, feedback=f"{pred_name}: {found.feedback}")

    return score


@SHAPES
def test_feedback_is_on_what_the_program_returned(
    world: World, tmp_path: Path, form: Any, read: Any
) -> None:
    report = world.compile(
        Returns(form), metric=reading(read), log_dir=tmp_path, track_stats=True
    ).combee_report

    assert report.best_score == 1.0 > report.seed_score
    assert not events(tmp_path, "error")
    asked = "\n".join(request.text for request in world.proposer_lm.requests)
    assert "answer: Wrong. Rule" in asked


@SHAPES
def test_a_journal_gives_it_back(world: World, form: Any, read: Any) -> None:
    (example,) = examples(1)
    with dspy.context(lm=world.task_lm, adapter=dspy.ChatAdapter()):
        rollout = run_rollout(RolloutJob(Returns(form), example, "id", reading(read)))

    again = decode_rollout(encode_rollout(rollout))
    assert again == rollout
    assert output_of(again) == form("TNA")


def test_a_reference_judges_what_the_program_returned(world: World) -> None:
    judged: list[Any] = []

    def reference(gold: Any, pred: Any, *rest: Any) -> float:
        judged.append(pred)
        return float(pred[0] == gold.answer)

    options = Validation(calibration=Calibration(reference, share=1.0))
    form, read = FORMS["tuple"]
    world.compile(Returns(form), metric=reading(read), validation_options=options)
    assert judged
    assert all(type(output) is tuple for output in judged)


def test_nothing_is_an_output_too(world: World) -> None:
    (example,) = examples(1)
    with dspy.context(lm=world.task_lm, adapter=dspy.ChatAdapter()):
        rollout = run_rollout(
            RolloutJob(Returns(lambda answer: None), example, "id", lambda *_: 0.5)
        )

    assert (rollout.score, rollout.error, output_of(rollout), rollout.bare) == (
        0.5,
        None,
        None,
        True,
    )
