"""api/optimizers/GEPA/GEPA_Advanced: a proposer and a component selector of the user's own."""

from __future__ import annotations

from typing import Any

import dspy
from dspy.teleprompt.gepa.gepa_utils import ReflectiveExample
from gepa.core.adapter import ProposalFn

from tests.journeys.documented.scene import Optimizer, Page, Scores, score, teach
from tests.journeys.minds import field, written
from tests.journeys.server import Asked, Server

MAX_WORDS = 40


class GenerateWordLimitedInstruction(dspy.Signature):
    """Improve the instruction, and keep it short."""

    current_instruction = dspy.InputField()
    feedback_summary = dspy.InputField()
    max_words = dspy.InputField()
    improved_instruction = dspy.OutputField()


class WordLimitProposer(ProposalFn):
    """As on the page."""

    def __init__(self, max_words: int) -> None:
        self.max_words = max_words
        self.instruction_improver = dspy.ChainOfThought(GenerateWordLimitedInstruction)

    def __call__(
        self,
        candidate: dict[str, str],
        reflective_dataset: dict[str, list[ReflectiveExample]],
        components_to_update: list[str],
    ) -> dict[str, str]:
        updated_components = {}
        for name in components_to_update:
            if name not in candidate or name not in reflective_dataset:
                continue
            feedback = "\n".join(
                f"Example {at + 1}: {example.get('Feedback', 'none')}"
                for at, example in enumerate(reflective_dataset[name])
            )
            result = self.instruction_improver(
                current_instruction=candidate[name],
                feedback_summary=feedback,
                max_words=self.max_words,
            )
            updated_components[name] = result.improved_instruction
        return updated_components


def alternating_half_selector(
    state: Any,
    trajectories: Any,
    subsample_scores: Any,
    candidate_idx: int,
    candidate: dict[str, str],
) -> list[str]:
    components = list(candidate.keys())
    if len(components) <= 1:
        return components
    middle = len(components) // 2
    return components[:middle] if state.i % 2 == 0 else components[middle:]


class Answer(dspy.Module):
    """The page leaves the program to the reader: two steps, so that there are halves."""

    def __init__(self) -> None:
        super().__init__()
        self.draft = dspy.Predict("question -> draft")
        self.polish = dspy.Predict("draft -> answer")

    def forward(self, question: str) -> dspy.Prediction:
        return self.polish(draft=self.draft(question=question).draft)


def my_metric(
    gold: Any, pred: Any, trace: Any = None, pred_name: Any = None, pred_trace: Any = None
) -> Any:
    right = pred.answer == gold.answer
    return dspy.Prediction(
        score=float(right), feedback="Right." if right else "It does not end with a full stop."
    )


def rows(first: int, count: int) -> list[dspy.Example]:
    return [
        dspy.Example(question=f"Say {n}", answer=f"{n}.").with_inputs("question")
        for n in range(first, first + count)
    ]


def mind(asked: Asked) -> str:
    if asked.model == "teacher":
        return teach(asked, "End with a full stop.")
    if "[[ ## draft ## ]]" in asked.last and "[[ ## question ## ]]" not in asked.last:
        stop = "." if "full stop" in asked.system else ""
        return written(asked, {"answer": f"{field(asked, 'draft')}{stop}"})
    return written(asked, {"draft": field(asked, "question").split()[-1]})


def script(optimizer_class: Optimizer, server: Server) -> Scores:
    dspy.configure(lm=server.lm("student"))
    train, val = rows(0, 8), rows(100, 8)
    student = Answer()
    gepa = optimizer_class(
        metric=my_metric,
        reflection_lm=server.lm("teacher"),
        component_selector=alternating_half_selector,
        instruction_proposer=WordLimitProposer(max_words=MAX_WORDS),
        auto="medium",
    )
    optimized = gepa.compile(student, trainset=train, valset=val)
    for _, predictor in optimized.named_predictors():
        assert len(predictor.signature.instructions.split()) <= MAX_WORDS
    return Scores(score(student, val, my_metric), score(optimized, val, my_metric))


PAGE = Page(script, mind)
