"""Rows that JSON does not hold: a run buys their rollouts once, says that it cannot, or refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dspy
import numpy as np
import pandas as pd
import pydantic
import pytest
from PIL import Image

from combee_dspy import Budget
from combee_dspy.exceptions import ArgumentValueError
from tests.worlds import ANIMALS, World, code_word, events, examples, metric, rows


class Opaque:
    """Of a class that nobody has a codec for."""

    def __init__(self, animal: str) -> None:
        self.animal = animal


class Reader(dspy.Module):
    """Hands on what it is given, to its predictor and in what it returns."""

    def __init__(self, *, copies: bool) -> None:
        super().__init__()
        self.ask = dspy.Predict("question -> answer")
        self.copies = copies

    def forward(self, question: str, **things: Any) -> dspy.Prediction:
        answer = self.ask(question=question, **things).answer
        if self.copies:
            things["thing"] = Opaque(things["thing"].animal)
        return dspy.Prediction(answer=answer, **things)


def rows_of_all_types(start: int, end: int) -> list[dspy.Example]:
    class Card(pydantic.BaseModel):
        animal: str

    data = []
    for number in range(start, end):
        animal = ANIMALS[number % len(ANIMALS)]
        row = dspy.Example(
            question=f"Number {number}: word for {animal}?",
            answer=code_word(animal),
            array=np.arange(number, dtype="float32"),
            picture=Image.new("RGB", (4, 4), (number, 0, 0)),
            table=pd.DataFrame({"n": [number], "animal": [animal]}),
            card=Card(animal=animal),
            thing=Opaque(animal),
        )
        data.append(row.with_inputs("question", "array", "picture", "table", "card", "thing"))
    return data


def compiled(place: Path, *, copies: bool = False) -> int:
    world = World.made()
    with dspy.context(lm=world.task_lm, adapter=dspy.ChatAdapter()):
        world.combee(log_dir=str(place), budget=Budget(rollouts=60)).compile(
            Reader(copies=copies),
            trainset=rows_of_all_types(0, 12),
            valset=rows_of_all_types(12, 24),
        )
    return world.asked


def test_a_resumed_run_buys_nothing_again(tmp_path: Path) -> None:
    assert compiled(tmp_path) > 24
    bought = rows(tmp_path, "SELECT count(*) AS n FROM effect")

    assert compiled(tmp_path) == 0
    assert rows(tmp_path, "SELECT count(*) AS n FROM effect") == bought


def test_a_run_that_cannot_be_resumed_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    compiled(tmp_path, copies=True)

    (warning,) = [text for text in caplog.messages if "cannot be resumed" in text]
    assert "'thing', a Opaque" in warning
    assert "add_codec" in warning
    assert warning in [event["text"] for event in events(tmp_path, "warning")]


def test_a_run_whose_rows_no_other_process_knows_again_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world, data = World.made(), examples(24)
    for row in data[:12]:
        row["check"] = lambda answer: bool(answer)

    with dspy.context(lm=world.task_lm, adapter=dspy.ChatAdapter()):
        program = world.combee(budget=Budget(rollouts=30)).compile(
            dspy.Predict("question -> answer"), trainset=data[:12], valset=data[12:]
        )

    (warning,) = [text for text in caplog.messages if "cannot be resumed" in text]
    assert "row 0 of its train set" in warning
    assert warning in program.combee_report.warnings


CYCLE: list[Any] = []
CYCLE.append(CYCLE)


def nested(depth: int) -> Any:
    value: Any = "x"
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    "value", [CYCLE, {"a": CYCLE}, nested(3_000), 10**5_000], ids=["cycle", "in", "deep", "digits"]
)
@pytest.mark.parametrize("field", ["question", "note"])
def test_a_row_that_no_journal_can_hold_is_refused_by_name(value: Any, field: str) -> None:
    world = World.made()
    row = dspy.Example(**{"question": "a", "answer": "b", field: value})
    trainset = [*examples(2), row.with_inputs("question")]

    with dspy.context(lm=world.task_lm), pytest.raises(ArgumentValueError, match=r"trainset\[2\]"):
        world.combee().compile(dspy.Predict("question -> answer"), trainset=trainset)
    assert world.asked == 0


@pytest.mark.parametrize("how", ["field", "inside"])
def test_a_metric_that_changes_its_example_is_refused_by_name(how: str) -> None:
    def changing(gold: Any, pred: Any, *more: Any) -> Any:
        score = metric(gold, pred)
        if how == "field":
            gold.answer = pred.answer
        else:
            gold.notes.append(pred.answer)
        return score

    world = World.made()
    trainset = [row.copy(notes=[]) for row in examples(12)]
    with (
        dspy.context(lm=world.task_lm, adapter=dspy.ChatAdapter()),
        pytest.raises(ArgumentValueError, match=r"metric or the program changes an example \(got"),
    ):
        world.combee(metric=changing).compile(dspy.Predict("question -> answer"), trainset=trainset)


def test_half_a_character_in_a_row_fails_no_call_that_reads_it() -> None:
    def halved(gold: Any, pred: Any, *more: Any) -> Any:
        score = metric(gold, pred)
        return dspy.Prediction(score=score.score, feedback=score.feedback + "\ud83d")

    world = World.made()
    trainset = [row.copy(notes=["a\ud800"]) for row in examples(12)]
    with dspy.context(lm=world.task_lm, adapter=dspy.ChatAdapter()):
        program = world.combee(metric=halved).compile(
            dspy.Predict("question -> answer"), trainset=trainset, valset=examples(6, 100)
        )
    assert program.combee_report.best_score == 1.0
    assert not [count for count in program.combee_report.failures if count.role == "proposer"]
