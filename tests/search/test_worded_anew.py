"""A service whose calls take in a dozen items, and each word a lesson in their own way."""

import dspy
import pytest

from combee_dspy import Combee, Search
from combee_dspy.lessons import read_section
from combee_dspy.operators import Insert, Rewrite
from combee_dspy.reflections import estimate_tokens
from combee_simulator import (
    SimulatedConfig,
    SimulatedQuestion,
    SimulatedService,
    SimulatedTask,
    WordingLaw,
)
from tests.slow import slow_but
from tests.worlds import events

SUBJECTS = (
    "Gross margin",
    "Net income",
    "Current ratio",
    "Book value",
    "Quick ratio",
    "Asset turnover",
    "Yield",
    "Cash cycle",
    "Payout",
    "Leverage",
    "Coverage",
    "Growth",
    "Burn rate",
    "Churn",
)
RULES = (
    "divide the figures as given and answer with the plain ratio, not a percentage",
    "subtract in the formula's order and keep the sign of the result",
)
QUESTIONS = tuple(
    SimulatedQuestion(
        f"What is the {subject} of firm number {number} in case {rule}?",
        f"{number}1",
        f"{number}9",
        f"K{place}.{rule}",
        f"{subject}: {RULES[rule]}.",
    )
    for number in range(3)
    for rule in range(2)
    for place, subject in enumerate(SUBJECTS)
)
TASK = SimulatedTask(QUESTIONS, base_rate=0.0)
SECTION = 1_500
INSERT = [Insert(max_tokens=SECTION)]


def metric(gold, pred, trace=None, pred_name=None, pred_trace=None):
    right = pred.answer == gold.answer
    line = next(question.line for question in QUESTIONS if question.text == gold.question)
    return dspy.Prediction(score=float(right), feedback="Right." if right else f"Wrong. {line}")


@pytest.mark.parametrize("keep", slow_but(("trunk",), ["pareto", "trunk"]))
@pytest.mark.parametrize("operator", slow_but(INSERT, [*INSERT, Rewrite(max_tokens=SECTION)]))
def test_hardly_anything_is_lost_where_a_text_cannot_hold_all_wordings(keep, operator, tmp_path):
    examples = [
        dspy.Example(question=question.text, answer=question.target).with_inputs("question")
        for question in QUESTIONS
    ]
    config = SimulatedConfig(time_scale=0.0, wording=WordingLaw(each_call=True))
    with SimulatedService(config, TASK) as service, dspy.context(lm=service.lm()):
        combee = Combee(
            metric,
            max_metric_calls=200,
            reflection_minibatch_size=56,
            reflection_lm=service.lm(),
            aggregator="reference-scan",
            operators=[operator],
            search=Search(keep=keep),
            num_threads=8,
            log_dir=tmp_path,
            tracker=(),
        )
        program = combee.compile(
            dspy.Predict("question -> answer"), trainset=examples[:56], valset=examples[56:]
        )
    text = program.signature.instructions
    # One call over all of it would leave a dozen of 28. What a call leaves out follows from the
    # very text of its prompt: 26 were left while prompts were wrapped at another width, 25 since.
    missing = [key for key in TASK.lessons if f"[{key}]".lower() not in text.lower()]
    assert len(missing) <= 3, missing
    assert program.combee_report.best_score >= 25 / 28
    section = read_section(text)[1]
    assert estimate_tokens("\n".join(section)) <= SECTION
    scan = events(tmp_path, "scan")[0]
    written = [lesson for node in scan["nodes"] if node["level"] == 1 for lesson in node["lessons"]]
    # What readers wrote would not fit: wordings that say the same became one lesson of the book.
    assert estimate_tokens("\n".join(written)) > SECTION
    if keep == "pareto":
        assert len(scan["lessons"]) < 0.7 * len(written)
    # one round of comparisons beside the rollouts brings fewer together than level after level
    else:
        assert len(events(tmp_path, "book")[-1]["lessons"]) < len(written)
