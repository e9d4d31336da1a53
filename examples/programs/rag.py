"""Retrieval: answer from a handbook, and cite the paragraph."""

import dspy

from combee_dspy import Budget, Combee

dspy.configure(lm=dspy.LM("openai/gpt-5-nano"))

PRODUCTS = ("lamp", "desk", "chair", "shelf", "stove", "clock")
# Your documents. Here: a paragraph a product.
HANDBOOK = [
    f"[{number}] The {product} has a warranty of {number + 2} years and weighs {9 * number} kg."
    for number, product in enumerate(PRODUCTS, 1)
]


def search(question: str, most: int = 2) -> list[str]:
    """Your retriever: the paragraphs that share most words with the question."""
    words = set(question.lower().strip("?").split())
    return sorted(HANDBOOK, key=lambda text: -len(words & set(text.lower().split())))[:most]


class Handbook(dspy.Module):
    """Looks paragraphs up, then answers from them."""

    def __init__(self):
        super().__init__()
        self.answer = dspy.ChainOfThought("paragraphs: list[str], question -> answer")

    def forward(self, question):
        return self.answer(paragraphs=search(question), question=question)


def questions(first: int, last: int) -> list[dspy.Example]:
    rows = []
    for number in range(first, last):
        place = number % len(PRODUCTS)
        text = f"Customer {number} asks: how long is the warranty of the {PRODUCTS[place]}?"
        row = dspy.Example(question=text, answer=f"{place + 3} years [{place + 1}]")
        rows.append(row.with_inputs("question"))
    return rows


def metric(gold, pred, trace=None, pred_name=None, pred_trace=None):
    if pred.answer.strip() == gold.answer:
        return dspy.Prediction(score=1.0, feedback="Right.")
    wanted = "Answer with the number of years alone, then the paragraph's number in brackets."
    return dspy.Prediction(score=0.0, feedback=f"{wanted} Expected {gold.answer}.")


combee = Combee(
    metric,
    budget=Budget(rollouts=200, dollars=1),
    reflection_lm=dspy.LM("openai/gpt-5"),
    log_dir="runs/rag",
)
better = combee.compile(
    Handbook(), trainset=questions(0, 40), valset=questions(40, 70), heldout=questions(70, 130)
)
print(better.combee_report)
better.save("rag.json")
