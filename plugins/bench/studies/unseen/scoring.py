"""The metrics: with reasons, without, in part, by chance, and in every form that DSPy takes."""

from __future__ import annotations

import random
from typing import Any

import dspy

__all__ = [
    "judge",
    "score_agent",
    "score_checked",
    "score_desk",
    "score_hops",
    "score_plainly",
    "score_style",
    "score_words",
]


def judge(gold: Any, pred: Any) -> float:
    """Return the clean score of a held-out row: the share of what was asked that is right."""
    scores = []
    for field in (name for name in pred.toDict() if name in gold and name != "question"):
        wanted, answered = set(gold[field].split(", ")), set(str(pred[field]).split(", "))
        scores.append(max(0.0, len(wanted & answered) / len(wanted) - 0.2 * len(answered - wanted)))
    if "next_tool_name" in gold:
        return float(pred.answer == f"{gold.next_tool_name}-ok")
    if "topic" in gold:
        return float(pred.answer == gold.answer)
    return sum(scores) / len(scores)


def score_words(
    gold: Any, pred: Any, trace: Any = None, pred_name: Any = None, pred_trace: Any = None
) -> dspy.Prediction:
    """Right or wrong, with what was expected."""
    if pred.answer == gold.answer:
        return dspy.Prediction(score=1.0, feedback="Right.")
    wrong = "違います。正解は" if not gold.answer.isascii() else "Wrong. Expected "
    return dspy.Prediction(score=0.0, feedback=f"{wrong}{gold.answer}.")


def score_plainly(
    gold: Any, pred: Any, trace: Any = None, pred_name: Any = None, pred_trace: Any = None
) -> dspy.Prediction:
    """Right or wrong; one label in ten is wrong."""
    label = gold.answer
    if random.Random(gold.question).random() < 0.1:  # noqa: S311
        label = f"M{random.Random(gold.question + 'x').randrange(11, 23)}"  # noqa: S311
    score = float(pred.answer == label)
    feedback = "Right." if score else f"Got {pred.answer}, expected {label}."
    return dspy.Prediction(score=score, feedback=feedback)


def score_desk(
    gold: Any, pred: Any, trace: Any = None, pred_name: Any = None, pred_trace: Any = None
) -> dspy.Prediction:
    """The share of the three fields that are right."""
    fields = ("queue", "priority", "tone")
    wrong = [field for field in fields if getattr(pred, field, None) != gold[field]]
    if not wrong:
        return dspy.Prediction(score=1.0, feedback="Right.")
    asked = ", ".join(f"{field} {gold[field]}" for field in wrong)
    return dspy.Prediction(score=1 - len(wrong) / 3, feedback=f"Not all right: expected {asked}.")


def score_hops(
    gold: Any, pred: Any, trace: Any = None, pred_name: Any = None, pred_trace: Any = None
) -> dspy.Prediction:
    """Right where the answer is; each step hears of its own fault only if it is asked for."""
    if pred.answer == gold.answer:
        return dspy.Prediction(score=1.0, feedback="Right.")
    if pred_name == "find":
        right = pred.topic == gold.topic
        text = "Right." if right else f"The topic is off: expected {gold.topic}."
    else:
        text = f"The answer is off: expected {gold.answer} (topic {gold.topic})."
    return dspy.Prediction(score=0.0, feedback=text)


def score_style(
    gold: Any, pred: Any, trace: Any = None, pred_name: Any = None, pred_trace: Any = None
) -> dspy.Prediction:
    """A noisy share of the demands that are met, less what nobody asked for."""
    wanted, answered = set(gold.answer.split(", ")), set(str(pred.answer).split(", "))
    share = len(wanted & answered) / len(wanted) - 0.2 * len(answered - wanted - {"nothing"})
    chance = random.Random(f"{gold.question} {pred.answer}")  # noqa: S311
    score = min(1.0, max(0.0, share + chance.gauss(0, 0.15)))
    missing = sorted(wanted - answered)
    feedback = f"Expected {chance.choice(missing)} in it." if missing else "Right."
    return dspy.Prediction(score=score, feedback=feedback)


def score_checked(
    gold: Any, pred: Any, trace: Any = None, pred_name: Any = None, pred_trace: Any = None
) -> Any:
    """A bool, a number, nothing or a Prediction, as rows will have it."""
    right = pred.answer == gold.answer
    form = len(gold.question) % 4
    if form == 0:
        return right
    if form == 1:
        return float(right)
    if form == 2:
        return 1 if right else None
    return dspy.Prediction(score=float(right))


def score_agent(
    gold: Any, pred: Any, trace: Any = None, pred_name: Any = None, pred_trace: Any = None
) -> dspy.Prediction:
    """Right where the right tool was asked."""
    right = str(getattr(pred, "answer", "")) == f"{gold.next_tool_name}-ok"
    text = "Right." if right else f"The tool was wrong: expected {gold.next_tool_name}."
    return dspy.Prediction(score=float(right), feedback=text)
