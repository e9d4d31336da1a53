"""tutorials/gepa_facilitysupportanalyzer: three predictors, each with feedback of its own."""

from __future__ import annotations

import json
import re
from typing import Any, Literal

import dspy
from gepa.gepa_utils import find_dominator_programs

from tests.journeys.documented.scene import Optimizer, Page, Scores, score, teach
from tests.journeys.minds import field, written
from tests.journeys.server import Asked, Server

CATEGORIES = ("emergency_repair_services", "cleaning_services_scheduling", "general_inquiries")
URGENCY = {"leak": "high", "schedule": "medium", "question": "low"}
SENTIMENT = {"awful": "negative", "thanks": "positive", "hello": "neutral"}


class Urgency(dspy.Signature):
    """Say how urgent the message is."""

    message: str = dspy.InputField()
    urgency: Literal["low", "medium", "high"] = dspy.OutputField()


class Sentiment(dspy.Signature):
    """Say what the writer feels."""

    message: str = dspy.InputField()
    sentiment: Literal["positive", "neutral", "negative"] = dspy.OutputField()


class Categories(dspy.Signature):
    """Name all categories of the message."""

    message: str = dspy.InputField()
    categories: list[
        Literal["emergency_repair_services", "cleaning_services_scheduling", "general_inquiries"]
    ] = dspy.OutputField()


class FacilitySupportAnalyzer(dspy.Module):
    """As on the page: no call of the base constructor."""

    def __init__(self) -> None:
        self.urgency_module = dspy.ChainOfThought(Urgency)
        self.sentiment_module = dspy.ChainOfThought(Sentiment)
        self.categories_module = dspy.ChainOfThought(Categories)

    def forward(self, message: str) -> dspy.Prediction:
        urgency = self.urgency_module(message=message)
        sentiment = self.sentiment_module(message=message)
        categories = self.categories_module(message=message)
        return dspy.Prediction(
            urgency=urgency.urgency, sentiment=sentiment.sentiment, categories=categories.categories
        )


def compare(gold: str, answer: str) -> tuple[str, float]:
    return f"rule {gold}", float(gold == answer)


def compare_categories(gold: dict[str, bool], answer: list[str]) -> tuple[str, float]:
    right = sum(wanted == (name in answer) for name, wanted in gold.items())
    wanted = [name for name, applies in gold.items() if applies]
    return f"rule {wanted[0]}", right / len(gold)


def metric_with_feedback(
    example: Any, pred: Any, trace: Any = None, pred_name: str | None = None, pred_trace: Any = None
) -> Any:
    gold = json.loads(example["answer"])
    urgency, urgency_score = compare(gold["urgency"], pred.urgency)
    sentiment, sentiment_score = compare(gold["sentiment"], pred.sentiment)
    categories, categories_score = compare_categories(gold["categories"], pred.categories)
    total = (urgency_score + sentiment_score + categories_score) / 3
    if pred_name is None:
        return total
    if pred_name == "urgency_module.predict":
        feedback = urgency
    elif pred_name == "sentiment_module.predict":
        feedback = sentiment
    elif pred_name == "categories_module.predict":
        feedback = categories
    return dspy.Prediction(score=total, feedback=feedback)


def rows(first: int, count: int) -> list[dspy.Example]:
    examples = []
    for n in range(first, first + count):
        topic, mood = list(URGENCY)[n % 3], list(SENTIMENT)[n // 3 % 3]
        answer = {
            "urgency": URGENCY[topic],
            "sentiment": SENTIMENT[mood],
            "categories": {name: at == n % 3 for at, name in enumerate(CATEGORIES)},
        }
        message = f"{mood}, it is about the {topic} of room {n}"
        examples.append(
            dspy.Example({"message": message, "answer": json.dumps(answer)}).with_inputs("message")
        )
    return examples


def answers(topic: str, mood: str) -> dict[str, tuple[str, Any, Any]]:
    """What is right for each field, the answer that says it, and the answer of an untaught
    student.
    """
    category = CATEGORIES[list(URGENCY).index(topic)]
    return {
        "urgency": (URGENCY[topic], URGENCY[topic], "low"),
        "sentiment": (SENTIMENT[mood], SENTIMENT[mood], "neutral"),
        "categories": (category, [category], ["general_inquiries"]),
    }


def mind(asked: Asked) -> str:
    if asked.model == "teacher":
        return teach(
            asked,
            *(
                f"Know {rule} when you see it."
                for rule in dict.fromkeys(re.findall(r"rule (\w+)", asked.last))
            ),
        )
    mood, topic = re.findall(r"(\w+), it is about the (\w+) of", field(asked, "message"))[-1]
    name, (right, known, untaught) = next(
        item for item in answers(topic, mood).items() if f"[[ ## {item[0]} ## ]]" in asked.system
    )
    answer = known if f"Know {right} when" in asked.system else untaught
    return written(asked, {"reasoning": "Reading.", name: answer})


def script(optimizer_class: Optimizer, server: Server) -> Scores:
    dspy.configure(lm=server.lm("student", temperature=1))
    train_set, val_set = rows(0, 9), rows(9, 9)
    program = FacilitySupportAnalyzer()
    optimizer = optimizer_class(
        metric=metric_with_feedback,
        auto="light",
        num_threads=32,
        track_stats=True,
        use_merge=False,
        reflection_lm=server.lm("teacher", temperature=1.0, max_tokens=32000),
    )
    optimized_program = optimizer.compile(program, trainset=train_set, valset=val_set)
    # The page draws the tree of candidates from these.
    results = optimized_program.detailed_results
    front = find_dominator_programs(
        results.per_val_instance_best_candidates, results.val_aggregate_scores
    )
    assert front and len(results.parents) == len(results.val_aggregate_scores) > results.best_idx
    return Scores(
        score(program, val_set, metric_with_feedback),
        score(optimized_program, val_set, metric_with_feedback),
    )


PAGE = Page(script, mind)
