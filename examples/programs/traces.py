"""Traces: learn from what a served program has logged, and run nothing for it."""

import json
from pathlib import Path

import dspy

from combee_dspy import Budget, Combee
from combee_dspy.traces import JsonLines

dspy.configure(lm=dspy.LM("openai/gpt-5-nano"))

CODES = {"tent": "U7", "kettle": "E8", "rope": "Z4", "lamp": "B2", "boots": "H5"}


def orders(first: int, last: int) -> list[dspy.Example]:
    rows = []
    for number in range(first, last):
        thing = list(CODES)[number % len(CODES)]
        text = f"Order {number}: which code does a {thing} get?"
        rows.append(dspy.Example(question=text, answer=CODES[thing]).with_inputs("question"))
    return rows


def metric(gold, pred, trace=None, pred_name=None, pred_trace=None):
    right = pred.answer.strip() == gold.answer
    return dspy.Prediction(score=float(right), feedback="Right." if right else "Wrong code.")


# Your logs: a JSON object a line, in whatever form. These are of a program that knew no code, and
# somebody has written the right one beside each reply.
logs = [
    {"ask": row.question, "reply": "unknown", "note": f"Wrong. A {thing} gets {row.answer}."}
    for thing, row in zip(list(CODES) * 40, orders(1000, 1200), strict=True)
]
Path("logs.jsonl").write_text("".join(json.dumps(line) + "\n" for line in logs), encoding="utf-8")
fields = {"inputs": {"question": "ask"}, "outputs": {"answer": "reply"}, "feedback": "note"}
traces = JsonLines("logs.jsonl", fields)

combee = Combee(
    metric,
    budget=Budget(rollouts=90, dollars=1),  # validation alone buys rollouts
    reflection_lm=dspy.LM("openai/gpt-5"),
    log_dir="runs/traces",
)
better = combee.compile(
    dspy.Predict("question -> answer"),
    traces=traces,
    valset=orders(0, 30),
    heldout=orders(30, 90),
)
print(better.combee_report)
better.save("traces.json")
