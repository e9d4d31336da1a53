"""A judge: an LM scores the replies, and code checks the judge."""

import dspy

from combee_dspy import Budget, Combee, Validation
from combee_dspy.evaluation import Calibration, Judge

dspy.configure(lm=dspy.LM("openai/gpt-5-nano"))

TOPICS = ("refund", "parcel", "invoice", "password")
CLOSING = "Your case number is {}."


def letters(first: int, last: int) -> list[dspy.Example]:
    rows = []
    for number in range(first, last):
        text = f"Case {number}: please help me with my {TOPICS[number % len(TOPICS)]}."
        rows.append(dspy.Example(letter=text, number=str(number)).with_inputs("letter"))
    return rows


def has_case_number(gold, pred, trace=None, pred_name=None, pred_trace=None):
    """Code that you trust, though it sees one thing alone: the judge must agree with it."""
    return float(CLOSING.format(gold.number) in pred.reply)


judge = Judge(
    f"The reply helps, and ends with the sentence '{CLOSING.format('…')}'",
    lm=dspy.LM("openai/gpt-5-mini"),
)
combee = Combee(
    judge,
    # Every training rollout is scored by both. A judge that disagrees ends the run.
    validation=Validation(calibration=Calibration(has_case_number, share=1.0)),
    budget=Budget(rollouts=240, dollars=2),
    reflection_lm=dspy.LM("openai/gpt-5"),
    log_dir="runs/judge",
)
better = combee.compile(
    dspy.Predict("letter -> reply"),
    trainset=letters(0, 60),
    valset=letters(60, 90),
    heldout=letters(90, 150),
)
print(better.combee_report)
better.save("judge.json")
