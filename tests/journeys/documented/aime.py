"""tutorials/gepa_aime: one chain of thought, and solutions as feedback."""

from __future__ import annotations

import re
from typing import Any

import dspy

from tests.journeys.documented.scene import Optimizer, Page, Scores, score, teach
from tests.journeys.minds import field, written
from tests.journeys.server import Asked, Server


class GenerateResponse(dspy.Signature):
    """Work out the problem and answer it."""

    problem = dspy.InputField()
    answer = dspy.OutputField()


def metric_with_feedback(
    example: Any, prediction: Any, trace: Any = None, pred_name: Any = None, pred_trace: Any = None
) -> dspy.Prediction:
    correct = int(example["answer"])
    solution = example.get("solution", "")
    try:
        answer = int(prediction.answer)
    except ValueError:
        feedback = f"Not an integer: {prediction.answer!r}. Right is {correct}. {solution}"
        return dspy.Prediction(score=0, feedback=feedback)
    right = int(answer == correct)
    return dspy.Prediction(
        score=right, feedback="Right." if right else f"Right is {correct}. {solution}"
    )


def rows(first: int, count: int) -> list[dspy.Example]:
    return [
        dspy.Example(
            {
                "problem": f"Add {n} and {n + 2}.",
                "solution": f"Sum: {2 * n + 2}.",
                "answer": str(2 * n + 2),
            }
        ).with_inputs("problem")
        for n in range(first, first + count)
    ]


def mind(asked: Asked) -> str:
    if asked.model == "teacher":
        return teach(asked, "Answer with the integer alone.")
    total = sum(int(number) for number in re.findall(r"\d+", field(asked, "problem")))
    answer = str(total) if "integer alone" in asked.system else f"The sum is {total}."
    return written(asked, {"reasoning": "Adding.", "answer": answer})


def script(optimizer_class: Optimizer, server: Server) -> Scores:
    dspy.configure(lm=server.lm("student", temperature=1, max_tokens=32000))
    train_set, val_set = rows(0, 9), rows(100, 9)
    program = dspy.ChainOfThought(GenerateResponse)
    optimizer = optimizer_class(
        metric=metric_with_feedback,
        auto="light",
        num_threads=32,
        track_stats=True,
        reflection_minibatch_size=3,
        reflection_lm=server.lm("teacher", temperature=1.0, max_tokens=32000),
    )
    optimized_program = optimizer.compile(program, trainset=train_set, valset=val_set)
    assert optimized_program.predict.signature.instructions != GenerateResponse.instructions
    return Scores(
        score(program, val_set, metric_with_feedback),
        score(optimized_program, val_set, metric_with_feedback),
    )


PAGE = Page(script, mind)
