"""Five tasks as users have them: a program, its rows and metric, and the service that answers it.

The services follow laws, not language models: a student does what its prompt holds, a teacher
repeats what feedback says in words of its own. What a student can do untaught, what teaches it and
what it breaks differs from task to task.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import dspy
from pydantic import BaseModel

from tests.journeys.server import Asked

__all__ = ["JOURNEYS", "Journey", "written"]


@dataclass(frozen=True)
class Journey:
    """A task: ``row(number)`` makes its rows, ``lesson`` finds what a teacher learns in a piece of
    feedback.
    """

    program: Callable[[], dspy.Module]
    row: Callable[[int], dspy.Example]
    metric: Callable[..., Any]
    student: Callable[[Asked], str]
    lesson: str
    words: str
    rows: tuple[int, int, int]
    budget: int

    def mind(self, asked: Asked) -> str:
        if asked.last == "Reply with OK.":
            return "OK"
        if asked.model == "student":
            return self.student(asked)
        if "narrower" in asked.system + asked.last:
            relations = ("same", "contradictory", "narrower", "empty")
            return written(asked, dict.fromkeys(relations, "[]"))
        found = dict.fromkeys(re.findall(self.lesson, asked.last))
        lines = [self.words.format(*([one] if isinstance(one, str) else one)) for one in found]
        if "new_instruction" not in asked.system:
            return written(asked, {"lessons": lines})
        taught = re.findall(r"^- .+$", asked.last, re.MULTILINE)
        return written(
            asked,
            {
                "new_instruction": "\n".join(
                    dict.fromkeys(["Do the task.", *taught, *(f"- {one}" for one in lines)])
                )
            },
        )

    def splits(self) -> dict[str, list[dspy.Example]]:
        train, validation, heldout = self.rows
        made = [self.row(number) for number in range(train + validation + heldout)]
        return {
            "trainset": made[:train],
            "valset": made[train : train + validation],
            "heldout": made[train + validation :],
        }


def written(asked: Asked, fields: dict[str, Any]) -> str:
    """Write fields in the format that a prompt asks for."""
    if "JSON object" in asked.last:
        return json.dumps(fields)
    told = {name: one if isinstance(one, str) else json.dumps(one) for name, one in fields.items()}
    return (
        "".join(f"[[ ## {name} ## ]]\n{one}\n\n" for name, one in told.items())
        + "[[ ## completed ## ]]"
    )


def field(asked: Asked, name: str) -> str:
    return re.findall(rf"\[\[ ## {name} ## \]\]\n(.*)", asked.last)[-1].strip()


def scored(right: bool, feedback: str) -> dspy.Prediction:
    return dspy.Prediction(score=float(right), feedback="Right." if right else feedback)


# Classification: one word of a message decides; the student puts everything it was not told of into
# "other".

QUEUES = {
    "refund": "billing",
    "invoice": "billing",
    "parcel": "shipping",
    "courier": "shipping",
    "password": "account",
    "login": "account",
    "weather": "other",
}
OPENINGS = (
    "Hello, about my",
    "Where do I ask about the",
    "It is the third time I write about a",
    "Please help with a",
)


class Sort(dspy.Signature):
    """Sort the message into a queue."""

    message: str = dspy.InputField()
    queue: Literal["billing", "shipping", "account", "other"] = dspy.OutputField()


def message(number: int) -> dspy.Example:
    word = list(QUEUES)[number % len(QUEUES)]
    text = f"{OPENINGS[number % len(OPENINGS)]} {word}, case {number}."
    return dspy.Example(message=text, queue=QUEUES[word]).with_inputs("message")


def sorts(asked: Asked) -> str:
    word = next(one for one in QUEUES if one in field(asked, "message"))
    taught = re.search(rf"mentions a {word} goes to (\w+)", asked.system)
    return written(asked, {"queue": taught[1] if taught else "other"})


def sorted_right(
    gold: Any, pred: Any, trace: Any = None, pred_name: Any = None, pred_trace: Any = None
) -> Any:
    word = next(one for one in QUEUES if one in gold.message)
    return scored(pred.queue == gold.queue, f"{word} is for {gold.queue}")


# Two predictors: the first drops one unit, the second knows one; feedback is for each of them.


class Convert(dspy.Module):
    """Reads an amount and converts it."""

    def __init__(self) -> None:
        super().__init__()
        self.read = dspy.Predict("sentence -> amount")
        self.convert = dspy.ChainOfThought("amount -> metres")

    def forward(self, sentence: str) -> dspy.Prediction:
        amount = self.read(sentence=sentence).amount
        return dspy.Prediction(amount=amount, metres=self.convert(amount=amount).metres)


UNITS = {"furlong": 201, "chain": 20, "league": 4828}


def sentence(number: int) -> dspy.Example:
    unit = list(UNITS)[number % 3]
    text = f"From the mill it is {number + 2} {unit}s to the inn."
    return dspy.Example(
        sentence=text, amount=f"{number + 2} {unit}", metres=str((number + 2) * UNITS[unit])
    ).with_inputs("sentence")


def converts(asked: Asked) -> str:
    if "metres" not in asked.system:
        count, unit = re.findall(r"(\d+) (\w+)s to", asked.last)[-1]
        return written(
            asked,
            {
                "amount": (
                    f"{count} {unit}"
                    if unit != "furlong" or "with its unit" in asked.system
                    else count
                )
            },
        )
    amount = field(asked, "amount")
    unit = next((one for one in UNITS if one in amount), "none")
    taught = re.search(rf"{unit}: multiply by (\d+)", asked.system)
    factor = taught[1] if taught else "20" if unit == "chain" else ""
    metres = str(int(amount.split()[0]) * int(factor)) if factor else "unknown"
    return written(asked, {"reasoning": "by the table", "metres": metres})


def converted_right(
    gold: Any, pred: Any, trace: Any = None, pred_name: Any = None, pred_trace: Any = None
) -> Any:
    right = pred.metres == gold.metres
    if pred_name == "read":
        return scored(
            right,
            (
                "Rule <<give the number with its unit>>"
                if pred.amount != gold.amount
                else "Read well."
            ),
        )
    unit = gold.amount.split()[1]
    return scored(right, f"Rule <<{unit}: multiply by {UNITS[unit]}>>")


# ReAct: a tool that knows warehouses by code; a wrong code is an observation, and the agent gives
# up.

CODES = {"north": "W1", "south": "W2", "harbour": "W7"}
ITEMS = ("bolts", "nuts", "screws", "hooks")


def stock(item: str, warehouse: str) -> str:
    """Count an item in a warehouse."""
    if warehouse not in CODES.values():
        return f"no warehouse is called {warehouse}"
    return str(len(item) * 10 + int(warehouse[1:]))


def order(number: int) -> dspy.Example:
    place, item = list(CODES)[number % 3], ITEMS[number % 4]
    text = f"Request {number}: how many {item} are in the {place} warehouse?"
    return dspy.Example(question=text, answer=stock(item, CODES[place])).with_inputs("question")


def acts(asked: Asked) -> str:
    item, place = re.findall(r"how many (\w+) are in the (\w+) warehouse", asked.last)[-1]
    seen = re.findall(r"\[\[ ## observation_0 ## \]\]\n(.*)", asked.last)
    if "next_tool_name" not in asked.system:
        return written(
            asked,
            {
                "reasoning": "as observed",
                "answer": seen[-1] if seen and seen[-1].isdigit() else "unknown",
            },
        )
    taught = re.search(rf"{place} warehouse has the code (\w+)", asked.system)
    arguments = {"item": item, "warehouse": taught[1] if taught else place}
    name, arguments = ("finish", {}) if seen else ("stock", arguments)
    return written(
        asked, {"next_thought": "count", "next_tool_name": name, "next_tool_args": arguments}
    )


def counted_right(
    gold: Any, pred: Any, trace: Any = None, pred_name: Any = None, pred_trace: Any = None
) -> Any:
    place = next(one for one in CODES if one in gold.question)
    return scored(pred.answer == gold.answer, f"Expected {gold.answer}: {place}={CODES[place]}")


# Typed output: totals in dollars come as text that no float can be read from, until the prompt
# forbids it.


class Bill(BaseModel):
    """What a bill says."""

    total: float
    currency: str


class ReadBill(dspy.Signature):
    """Read the bill."""

    text: str = dspy.InputField()
    bill: Bill = dspy.OutputField()


def bill(number: int) -> dspy.Example:
    currency = ("dollars", "euros", "francs", "crowns")[number % 4]
    made = Bill(total=number + 0.5, currency=currency)
    return dspy.Example(text=f"Bill {number}: pay {made.total} {currency}", bill=made).with_inputs(
        "text"
    )


def reads(asked: Asked) -> str:
    total, currency = re.findall(r"pay ([\d.]+) (\w+)", asked.last)[-1]
    if currency == "dollars" and "plain number" not in asked.system:
        total = f"about {total}"
    kept = "full name" in asked.system or currency in ("dollars", "euros")
    made = {"total": total, "currency": currency if kept else currency[:2].upper()}
    return written(asked, {"bill": made})


def read_right(
    gold: Any, pred: Any, trace: Any = None, pred_name: Any = None, pred_trace: Any = None
) -> Any:
    return scored(pred.bill == gold.bill, "Rule: currency by its full name")


# Ninety facts: each helps with its own questions alone.


def code(station: int) -> str:
    return f"K{station * 37 % 89}{'abc'[station % 3]}"


def station(number: int) -> dspy.Example:
    asked = (
        "What is the code of station {}?",
        "Station {} answers to which code?",
        "Name the code used at station {}.",
    )
    at = number % 90
    return dspy.Example(question=asked[number // 90].format(at), answer=code(at)).with_inputs(
        "question"
    )


def recalls(asked: Asked) -> str:
    at = re.findall(r"station (\d+)", asked.last, re.IGNORECASE)[-1]
    taught = re.search(rf"Station {at} has the code (\w+)", asked.system)
    return written(asked, {"answer": taught[1] if taught else "unknown"})


def recalled_right(
    gold: Any, pred: Any, trace: Any = None, pred_name: Any = None, pred_trace: Any = None
) -> Any:
    at = re.findall(r"[Ss]tation (\d+)", gold.question)[-1]
    return scored(pred.answer == gold.answer, f"fact: {at} -> {gold.answer}")


JOURNEYS = {
    "classification": Journey(
        lambda: dspy.Predict(Sort),
        message,
        sorted_right,
        sorts,
        r"(\w+) is for (\w+)",
        "A message that mentions a {} goes to {}.",
        (21, 14, 21),
        150,
    ),
    "two predictors": Journey(
        Convert,
        sentence,
        converted_right,
        converts,
        r"<<([^<>]+)>>",
        "For amounts, {}.",
        (18, 12, 18),
        150,
    ),
    "react": Journey(
        lambda: dspy.ReAct("question -> answer", tools=[stock], max_iters=3),
        order,
        counted_right,
        acts,
        r"(\w+)=(W\d)",
        "The {} warehouse has the code {}; pass it to the tool.",
        (12, 12, 12),
        100,
    ),
    "typed": Journey(
        lambda: dspy.Predict(ReadBill),
        bill,
        read_right,
        reads,
        r"valid (number)|by its (full name)",
        "Write a total as a plain number, and currency by what bills say: the {}{}.",
        (16, 12, 16),
        120,
    ),
    "facts": Journey(
        lambda: dspy.Predict("question -> answer"),
        station,
        recalled_right,
        recalls,
        r"fact: (\d+) -> (\w+)",
        "Station {} has the code {}.",
        (90, 90, 90),
        400,
    ),
}
