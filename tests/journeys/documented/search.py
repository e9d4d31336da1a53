"""api/optimizers/GEPA/overview: search at inference time, where the best outputs are what is
wanted.
"""

from __future__ import annotations

from typing import Any

import dspy

from tests.journeys.documented.scene import Optimizer, Page, Scores, score, teach
from tests.journeys.minds import field, written
from tests.journeys.server import Asked, Server


def metric(
    gold: Any, pred: Any, trace: Any = None, pred_name: Any = None, pred_trace: Any = None
) -> Any:
    length = len(pred.summary.split())
    return dspy.Prediction(score=1 / length, feedback=f"{length} words are more than it takes.")


def tasks() -> list[dspy.Example]:
    return [dspy.Example(text=f"Report {n} of the harbour").with_inputs("text") for n in range(8)]


def mind(asked: Asked) -> str:
    if asked.model == "teacher":
        return teach(asked, "Two words do.")
    words = field(asked, "text").split()
    return written(
        asked, {"summary": " ".join(words[:2] if "Two words" in asked.system else words)}
    )


def script(optimizer_class: Optimizer, server: Server) -> Scores:
    dspy.configure(lm=server.lm("student"))
    my_tasks = tasks()
    student = dspy.Predict("text -> summary")
    gepa = optimizer_class(
        metric=metric,
        track_stats=True,
        track_best_outputs=True,
        auto="light",
        reflection_lm=server.lm("teacher"),
    )
    new_prog = gepa.compile(student, trainset=my_tasks, valset=my_tasks)
    results = new_prog.detailed_results
    best_scores = results.highest_score_achieved_per_val_task
    best_outputs = results.best_outputs_valset
    assert set(best_scores) == set(best_outputs) == set(range(len(my_tasks)))
    for task, outputs in best_outputs.items():
        assert {1 / len(output.summary.split()) for _, output in outputs} == {best_scores[task]}
    return Scores(score(student, my_tasks, metric), score(new_prog, my_tasks, metric))


PAGE = Page(script, mind)
