"""api/modules/Flex: a module whose code is learned, and a metric that counts its LM calls."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import dspy
from dspy.primitives.local_interpreter import LocalInterpreter

from tests.journeys.documented.scene import Optimizer, Page, Scores, score, teach
from tests.journeys.minds import written
from tests.journeys.server import Asked, Server

CALL_PENALTY = 0.15
LEARNED = """
class Solve(dspy.Module):
    def __init__(self):
        super().__init__()

    def forward(self, **inputs):
        total = 0
        for part in inputs["invoice"].split(", "):
            count, price = part.split(" at ")
            total += int(count) * int(price)
        return dspy.Prediction(total_cents=total)
""".strip()


def metric(
    gold: Any,
    pred: Any,
    trace: Any = None,
    pred_name: Any = None,
    pred_trace: Any = None,
    program_trace: Any = None,
) -> dspy.Prediction:
    correct = getattr(pred, "total_cents", None) == gold.total_cents
    calls = len(program_trace) if program_trace else 0
    feedback = f"{'Right' if correct else 'Wrong'}, with {calls} LM calls."
    return dspy.Prediction(score=max(0.0, float(correct) - CALL_PENALTY * calls), feedback=feedback)


def rows(first: int, count: int) -> list[dspy.Example]:
    return [
        dspy.Example(invoice=f"{n} at 350, 1 at 100", total_cents=n * 350 + 100).with_inputs(
            "invoice"
        )
        for n in range(first, first + count)
    ]


def mind(asked: Asked) -> str:
    if "`revised_source`" in asked.system:
        return written(asked, {"revised_source": LEARNED})
    if asked.model == "teacher":
        return teach(asked)
    return written(asked, {"total_cents": 450})


def flex() -> dspy.Flex:
    return dspy.Flex("invoice: str -> total_cents: int", interpreter_factory=LocalInterpreter)


def script(optimizer_class: Optimizer, server: Server) -> Scores:
    dspy.configure(lm=server.lm("student"))
    trainset, valset = rows(1, 6), rows(10, 6)
    solve = flex()
    optimized = optimizer_class(
        metric=metric,
        reflection_lm=server.lm("teacher", temperature=1.0, max_tokens=8000),
        max_metric_calls=60,
    ).compile(solve, trainset=trainset, valset=valset)
    with tempfile.TemporaryDirectory() as folder:
        optimized.save(str(Path(folder) / "solver.json"))
        restored = flex()
        restored.load(str(Path(folder) / "solver.json"))
    assert restored.module_src == optimized.module_src
    return Scores(score(solve, valset, metric), score(restored, valset, metric))


PAGE = Page(script, mind)
