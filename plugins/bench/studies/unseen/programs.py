"""The programs of more than one predictor, with their rules and rows."""

from __future__ import annotations

import random

import dspy

from studies.unseen.world import Rule, Task

__all__ = ["FAMILIES", "Desk", "Hops", "desk_rows", "make_agent"]

_PRODUCTS = ["router", "modem", "antenna", "splitter", "booster", "dongle"]
_URGENCY = ["smoke", "outage", "deadline", "hospital"]
_TONES = ["lawyer", "student", "pensioner", "reseller"]
_ALIASES = ["hydro", "petro", "agro", "aero", "chrono", "litho"]

FAMILIES: dict[str, tuple[Rule, ...]] = {
    "desk": (
        *(Rule((cue,), "queue", f"Q-{n}") for n, cue in enumerate(_PRODUCTS, start=21)),
        *(Rule((cue,), "priority", f"prio-{n}") for n, cue in enumerate(_URGENCY, start=4)),
        *(Rule((cue,), "tone", f"tone-{n}") for n, cue in enumerate(_TONES, start=7)),
    ),
    "hops": (
        *(Rule((cue,), "topic", f"branch-{n}") for n, cue in enumerate(_ALIASES, start=31)),
        *(
            Rule((f"branch-{n}",), "answer", f"Office {name}")
            for n, name in enumerate(["Kim", "Lee", "Roy", "Ann", "Max", "Una"], start=31)
        ),
    ),
    "agent": tuple(
        Rule((cue,), "next_tool_name", tool)
        for cue, tool in zip(
            ["invoice", "weather", "stock", "calendar", "route", "tax"],
            ["alpha_db", "beta_api", "gamma_log", "delta_file", "alpha_db", "gamma_log"],
            strict=True,
        )
    ),
}


class Desk(dspy.Module):  # type: ignore[misc]  # DSPy has no types
    """Two fields from one call, a third from another."""

    def __init__(self) -> None:
        super().__init__()
        self.sort = dspy.ChainOfThought("question -> queue, priority")
        self.greet = dspy.Predict("question, queue -> tone")

    def forward(self, question: str) -> dspy.Prediction:
        """Return queue, priority and tone."""
        sorted_to = self.sort(question=question)
        tone = self.greet(question=question, queue=sorted_to.queue).tone
        return dspy.Prediction(queue=sorted_to.queue, priority=sorted_to.priority, tone=tone)


class Hops(dspy.Module):  # type: ignore[misc]  # DSPy has no types
    """The second step sees what the first made of the question."""

    def __init__(self) -> None:
        super().__init__()
        self.find = dspy.Predict("question -> topic")
        self.name = dspy.Predict("topic -> answer")

    def forward(self, question: str) -> dspy.Prediction:
        """Return topic and answer."""
        topic = self.find(question=question).topic
        return dspy.Prediction(topic=topic, answer=self.name(topic=topic).answer)


def desk_rows(task: Task, source: random.Random, rule: Rule) -> dspy.Example:
    """A row with one cue for each field that the question decides."""
    del rule
    fields = sorted({rule.field for rule in task.rules})
    asked = [field for field in fields if not (task.name == "hops" and field == "answer")]
    picked = [source.choice([r for r in task.rules if r.field == field]) for field in asked]
    words = [*(rule.cues[0] for rule in picked), *source.sample(task.fillers, 2)]
    source.shuffle(words)
    text = f"Call {source.randrange(10_000)}: " + " and ".join(words) + "."
    answers = {rule.field: rule.value for rule in picked}
    if task.name == "hops":
        answers["answer"] = task.right(answers["topic"], "answer")[0]
    return dspy.Example(question=text, **answers).with_inputs("question")


def make_agent() -> dspy.Module:
    """An agent with four tools, each of which knows what its rows ask for."""

    def tool(name: str) -> dspy.Tool:
        def look(query: str) -> str:
            is_right = any(
                rule.value == name and rule.cues[0] in query for rule in FAMILIES["agent"]
            )
            return f"RESULT {name}-ok" if is_right else "RESULT nothing"

        return dspy.Tool(look, name=name, desc="Looks a query up.")

    names = sorted({rule.value for rule in FAMILIES["agent"]})
    return dspy.ReAct("question -> answer", tools=[tool(name) for name in names], max_iters=3)
