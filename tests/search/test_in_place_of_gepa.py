"""What scripts written for ``dspy.GEPA`` count on, beyond its arguments; ``tests/upstream`` runs
DSPy's own tests.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import dspy
import pytest
from dspy.teleprompt.gepa import InstructionProposer

from tests.worlds import TwoSteps, World, events, examples, gepa_metric, metric

MOCKED = """
import sys
from unittest import mock
import dspy
from combee_dspy import Combee
from tests.worlds import gepa_metric, World, examples

world = World.made()
for _ in range(2):
    with mock.patch.dict("sys.modules", {"mlflow": mock.MagicMock()}):
        before = set(sys.modules)
        world.compile(train=6, validation=6, aggregator="parallel-scan", max_metric_calls=40)
        new = {name.split(".")[0] for name in set(sys.modules) - before}
        print(sorted(new & {"numpy", "scipy", "combee_dspy"}))
"""


@pytest.mark.slow
def test_a_compile_loads_nothing_that_loads_only_once() -> None:
    # mock.patch.dict forgets what was imported meanwhile, and numpy refuses to be loaded again.
    done = subprocess.run(  # noqa: S603 - this interpreter and the code above
        [sys.executable, "-c", MOCKED],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=Path(__file__).parents[2],
    )
    assert done.stdout.splitlines() == ["[]", "[]"], done.stderr


@pytest.mark.parametrize(
    "answer", [TypeError("no"), None, "not a mapping"], ids=["raises", "nothing", "nonsense"]
)
def test_a_proposer_that_fails_has_proposed_nothing(
    world: World, tmp_path: Path, answer: Any
) -> None:
    def propose(candidate: Any, reflective_dataset: Any, components_to_update: Any) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer

    report = world.compile(
        instruction_proposer=propose, log_dir=tmp_path, max_metric_calls=50
    ).combee_report
    assert report.updates > 1
    assert [str(failure) for failure in report.failures] == [
        f"{report.updates} of {report.updates} proposer calls raised"
    ]
    assert report.best_score == report.seed_score
    assert {event["where"] for event in events(tmp_path, "error")} == {"instruction_proposer"}


def test_a_metric_without_feedback_on_a_predictor_teaches_by_the_rollouts(
    world: World, tmp_path: Path
) -> None:
    @gepa_metric
    def only_scores(gold: Any, pred: Any, pred_name: str | None) -> Any:
        if pred_name is not None:
            raise KeyError(pred_name)
        return metric(gold, pred)

    report = world.compile(metric=only_scores, log_dir=tmp_path).combee_report
    assert report.best_score == 1.0
    assert {(event["where"], event["error"]) for event in events(tmp_path, "error")} == {
        ("metric", "KeyError: 'self'")
    }


def test_dspys_proposer_gets_histories_as_they_are_and_others_as_text(world: World) -> None:
    contexts: list[Any] = []

    def propose(candidate: Any, reflective_dataset: Any, components_to_update: Any) -> Any:
        contexts.append(reflective_dataset["self"][0]["Inputs"]["Context"])
        return {}

    class Dspys(InstructionProposer):
        def __call__(self, **arguments: Any) -> Any:
            return propose(**arguments)

    history = dspy.History(messages=[{"question": "before", "answer": "now"}])
    rows = [
        dspy.Example(**row, history=history).with_inputs("question", "history")
        for row in examples(6)
    ]
    student = dspy.Predict("question, history: dspy.History -> answer")
    for proposer in (Dspys(), propose):
        combee = world.combee(instruction_proposer=proposer, max_metric_calls=20)
        with dspy.context(lm=world.task_lm, adapter=dspy.ChatAdapter()):
            combee.compile(student, trainset=rows)
    assert isinstance(contexts[0], dspy.History)
    assert isinstance(contexts[-1], str)


@pytest.mark.parametrize(("limit", "learns"), [(4, False), (8, True)])
def test_where_train_rows_are_validated_an_update_takes_what_is_new(
    world: World, limit: int, learns: bool
) -> None:
    # The student's validation takes 4, and a child's another 4; its minibatch and screen are rows
    # of those.
    report = world.compile(
        train=4, validation=0, reflection_minibatch_size=4, max_metric_calls=limit
    ).combee_report
    assert report.rollouts == limit
    assert (report.best_score > report.seed_score) is learns


def test_every_component_has_its_turn_before_a_run_gives_up(world: World) -> None:
    asked: list[str] = []

    def nothing(
        candidate: Any, reflective_dataset: Any, components_to_update: list[str]
    ) -> dict[str, str]:
        asked.extend(components_to_update)
        return {}

    report = world.compile(
        TwoSteps(), train=3, validation=0, instruction_proposer=nothing
    ).combee_report
    assert "found nothing new" in report.reason
    assert set(asked) == {"first", "second"}
