"""Live: a program that serves, learns from corrections, and ships what is proven."""

import dspy

from combee_strategist.live import Learning, Live

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
    if pred.answer.strip() == gold.answer:
        return dspy.Prediction(score=1.0, feedback="Right.")
    thing = gold.question.split()[-2]
    return dspy.Prediction(score=0.0, feedback=f"Wrong. A {thing} gets {gold.answer}.")


live = Live(
    "orders",
    dspy.Predict("question -> answer"),
    metric=metric,
    reflection_lm=dspy.LM("openai/gpt-5"),
    trusted=orders(0, 30),  # rows whose labels you vouch for: they gate, and never teach
    learning=Learning(least=20, dollars=5),  # when to learn, and for how much a day
    uri="sqlite:///mlflow.db",
)

server = live.serve()
for row in orders(1000, 1060):  # your users
    request_id = row.question.split(":")[0]
    server(question=row.question, request_id=request_id)
    server.feedback(request_id, answer=row.answer)  # a correction, now or days later

# In a process of its own, once a minute: live.run(threading.Event()).
for decision in live.tick():
    print(decision.action, "-", decision.why)

# Callers now try the challenger in the shadow. A later tick promotes it, or withdraws it.
server.refresh()  # servers look by themselves every few seconds
print("production and challenger:", server.versions)
server.close()
live.close()
