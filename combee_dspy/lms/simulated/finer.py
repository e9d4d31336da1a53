"""Simulated knowledge of the FiNER benchmark: one lesson per tag."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.lms.simulated.knowledge import SimulatedQuestion, SimulatedTask
from combee_dspy.streams import derive

__all__ = ["finer_task"]

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z][a-z]*|\d+")


def finer_task(records: Iterable[Mapping[str, Any]], *, base_rate: float = 0.3, seed: int = 0) -> SimulatedTask:
    """Build the knowledge from records of FiNER.

    Each numbered question of a record is a question of its own; a request that
    asks several gets their answers joined by commas. A tag is its own key, so
    keys mean the same whichever records are given. Questions with equal words
    count as one.

    Args:
        records: Examples of :class:`combee_dspy.benchmarks.Finer` (``questions`` or ``context``, and ``tags``),
            or its raw rows (``context`` and ``target``).
        base_rate: Probability that a question is answered rightly without its lesson.
        seed: Seed of the wrong answers.

    Raises:
        ArgumentValueError: A record has another form, or none is given.
    """
    # A benchmark's module: strategies and LMs are built without it.
    from combee_dspy.benchmarks.finer.labels import LABELS
    from combee_dspy.benchmarks.finer.records import parse

    questions: list[SimulatedQuestion] = []
    for record in records:
        text = record["questions"] if "questions" in record else record.get("context")
        found = parse({"context": text, "target": record["tags"] if "tags" in record else record.get("target")})
        if isinstance(found, str):
            raise ArgumentValueError("records", record, f"hold a row that is not FiNER's: {found}", "See Finer.")
        for question in found.questions:
            others = [label for label in LABELS if label.casefold() != question.target.casefold()]
            wrong = derive(seed, "wrong", question.text).choice(others)
            words = " ".join(_WORD.findall(question.target)).lower()
            lesson = f"a number that its sentence gives as {words} has this tag."
            questions.append(SimulatedQuestion(question.text, question.target, wrong, question.target, lesson))
    return SimulatedTask(tuple(questions), ("tags",), base_rate, joiner=",")
