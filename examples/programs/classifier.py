"""A classifier: which team handles a support ticket?"""

from typing import Literal

import dspy

from combee_dspy import Budget, Combee

dspy.configure(lm=dspy.LM("openai/gpt-5-nano"))

# Your rows: read them from a file. These say what each topic's team is.
TEAMS = {"invoice": "K2", "refund": "K7", "parcel": "L1", "courier": "L4", "login": "A4"}
ASKS = ("Hello, about my {}:", "I write again about the {}.", "Who helps me with a {}?")


class Route(dspy.Signature):
    """Route the ticket to the team that handles it."""

    ticket: str = dspy.InputField()
    team: Literal["K2", "K7", "L1", "L4", "A4"] = dspy.OutputField()


def tickets(first: int, last: int) -> list[dspy.Example]:
    rows = []
    for number in range(first, last):
        topic = list(TEAMS)[number % len(TEAMS)]
        text = f"{ASKS[number % len(ASKS)].format(topic)} It is case {number}."
        row = dspy.Example(ticket=text, topic=topic, team=TEAMS[topic])
        rows.append(row.with_inputs("ticket"))
    return rows


def metric(gold, pred, trace=None, pred_name=None, pred_trace=None):
    if pred.team == gold.team:
        return dspy.Prediction(score=1.0, feedback="Right.")
    return dspy.Prediction(
        score=0.0, feedback=f"A ticket about a {gold.topic} goes to {gold.team}."
    )


combee = Combee(
    metric,
    budget=Budget(rollouts=200, dollars=1),
    reflection_lm=dspy.LM("openai/gpt-5"),
    log_dir="runs/classifier",
)
better = combee.compile(
    dspy.Predict(Route), trainset=tickets(0, 40), valset=tickets(40, 70), heldout=tickets(70, 130)
)
print(better.combee_report)
better.save("classifier.json")
