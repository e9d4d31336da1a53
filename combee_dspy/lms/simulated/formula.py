"""Simulated knowledge of the Formula benchmark: one lesson per finance formula."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.lms.simulated.knowledge import SimulatedQuestion, SimulatedTask
from combee_dspy.lms.simulated.mistakes import wrong_number

__all__ = ["formula_task"]

_NAME = re.compile(r"Use formula (.+?) to answer (?:the question\.|this question:)", re.DOTALL)
_FORMULA = re.compile(r"Formula: (.+?), Explanation:", re.DOTALL)
_QUESTION = re.compile(r"[Qq]uestion:\s*(.+?)\s*(?:with a numerical answer\b.*?)?\.?\s*Answer:\s*\Z", re.DOTALL)


def formula_task(
    records: Iterable[Mapping[str, Any]],
    *,
    base_rate: float = 0.3,
    answer_fields: tuple[str, ...] = ("answer",),
    seed: int = 0,
) -> SimulatedTask:
    """Build the knowledge from rows of the Formula benchmark.

    A question is recognised by the words after ``Question:``, so the program
    may pass the whole context or that part alone. Formulas get the keys
    ``F01``, ``F02``, … in alphabetical order: pass all splits together, so
    that the keys mean the same everywhere.

    Args:
        records: Rows with ``context`` ("Use formula NAME to answer the question. … Question: … Answer:") and
            ``target`` (a number).
        base_rate: Probability that a question is answered rightly without its lesson.
        answer_fields: Output fields of the program that hold the answer.
        seed: Seed of the wrong answers.

    Raises:
        ArgumentValueError: A row has another form.
    """
    rows = [_parts(record) for record in records]
    names = {name: f"F{number:02d}" for number, name in enumerate(sorted({row[0] for row in rows}), start=1)}
    questions = []
    for name, formula, text, target in rows:
        wrong = wrong_number(target, seed, text)
        if wrong is None:
            raise ArgumentValueError("records", target, "hold a target that is no number", "Formula's targets are.")
        lesson = f"{name}: compute {formula} and answer with the plain number."
        questions.append(SimulatedQuestion(text, target, wrong, names[name], lesson))
    return SimulatedTask(tuple(questions), answer_fields, base_rate)


def _parts(record: Mapping[str, Any]) -> tuple[str, str, str, str]:
    context, target = record.get("context"), record.get("target")
    if isinstance(context, str) and target is not None:
        name, question = _NAME.search(context), _QUESTION.search(context)
        if name and question:
            formula = _FORMULA.search(context)
            rule = formula[1] if formula else "the formula"
            return " ".join(name[1].split()), " ".join(rule.split()), question[1], str(target)
    raise ArgumentValueError(
        "records", record, "hold a row that is not Formula's", "Each row needs context and target."
    )
