"""An agent with tools: which tool answers which customer?"""

import dspy

from combee_dspy import Budget, Combee

dspy.configure(lm=dspy.LM("openai/gpt-5-nano"))

PRICES = {"lamp": 40, "desk": 300, "chair": 120, "shelf": 80}
CUSTOMERS = ("shop", "school", "family")


def net_price(product: str) -> str:
    """The price without tax."""
    return str(PRICES[product])


def gross_price(product: str) -> str:
    """The price with tax."""
    return f"{PRICES[product] * 1.2:g}"


def requests(first: int, last: int) -> list[dspy.Example]:
    rows = []
    for number in range(first, last):
        product = list(PRICES)[number % len(PRICES)]
        customer = CUSTOMERS[number % len(CUSTOMERS)]
        price = gross_price if customer == "family" else net_price
        text = f"Request {number}: a {customer} asks for the price of a {product}."
        row = dspy.Example(question=text, customer=customer, answer=price(product))
        rows.append(row.with_inputs("question"))
    return rows


def metric(gold, pred, trace=None, pred_name=None, pred_trace=None):
    if pred.answer.strip() == gold.answer:
        return dspy.Prediction(score=1.0, feedback="Right.")
    tool = "gross_price" if gold.customer == "family" else "net_price"
    return dspy.Prediction(score=0.0, feedback=f"For a {gold.customer} call {tool}.")


combee = Combee(
    metric,
    budget=Budget(rollouts=200, dollars=2),
    reflection_lm=dspy.LM("openai/gpt-5"),
    log_dir="runs/agent",
)
better = combee.compile(
    dspy.ReAct("question -> answer", tools=[net_price, gross_price], max_iters=4),
    trainset=requests(0, 36),
    valset=requests(36, 60),
    heldout=requests(60, 108),
)
print(better.combee_report)
better.save("agent.json")
