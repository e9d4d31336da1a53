"""Simulated knowledge of the benchmarks: one lesson per formula, per tag, or else per label."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.streams import derive
from combee_simulator.endpoint import SimulatedConfig
from combee_simulator.knowledge import SimulatedQuestion, SimulatedTask
from combee_simulator.mistakes import wrong_number
from combee_simulator.service import SimulatedService

if TYPE_CHECKING:
    import dspy

    from combee_dspy.benchmarks import LoadedBenchmark

__all__ = ["benchmark_service", "benchmark_task", "finer_task", "formula_task"]

_NAME = re.compile(r"Use formula (.+?) to answer (?:the question\.|this question:)", re.DOTALL)
_FORMULA = re.compile(r"Formula: (.+?), Explanation:", re.DOTALL)
_QUESTION = re.compile(
    r"[Qq]uestion:\s*(.+?)\s*(?:with a numerical answer\b.*?)?\.?\s*Answer:\s*\Z", re.DOTALL
)
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z][a-z]*|\d+")


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
        records: Rows with ``context`` ("Use formula NAME to answer the question. … Question: …
            Answer:") and ``target`` (a number).
        base_rate: Probability that a question is answered rightly without its lesson.
        answer_fields: Output fields of the program that hold the answer.
        seed: Seed of the wrong answers.

    Raises:
        ArgumentValueError: A row has another form.
    """
    rows = [_formula_parts(record) for record in records]
    names = {
        name: f"F{number:02d}"
        for number, name in enumerate(sorted({row[0] for row in rows}), start=1)
    }
    questions = []
    for name, formula, text, target in rows:
        wrong = wrong_number(target, seed, text)
        if wrong is None:
            raise ArgumentValueError(
                "records", target, "hold a target that is no number", "Formula's targets are."
            )
        lesson = f"{name}: compute {formula} and answer with the plain number."
        questions.append(SimulatedQuestion(text, target, wrong, names[name], lesson))
    return SimulatedTask(tuple(questions), answer_fields, base_rate)


def _formula_parts(record: Mapping[str, Any]) -> tuple[str, str, str, str]:
    context, target = record.get("context"), record.get("target")
    if isinstance(context, str) and target is not None:
        name, question = _NAME.search(context), _QUESTION.search(context)
        if name and question:
            formula = _FORMULA.search(context)
            rule = formula[1] if formula else "the formula"
            return " ".join(name[1].split()), " ".join(rule.split()), question[1], str(target)
    raise ArgumentValueError(
        "records", record, "hold a row that is not Formula's", "It needs context and target."
    )


def finer_task(
    records: Iterable[Mapping[str, Any]], *, base_rate: float = 0.3, seed: int = 0
) -> SimulatedTask:
    """Build the knowledge from records of FiNER.

    Each numbered question of a record is a question of its own; a request that
    asks several gets their answers joined by commas. A tag is its own key, so
    keys mean the same whichever records are given. Questions with equal words
    count as one.

    Args:
        records: Examples of :class:`combee_dspy.benchmarks.Finer` (``questions`` or ``context``,
            and ``tags``), or its raw rows (``context`` and ``target``).
        base_rate: Probability that a question is answered rightly without its lesson.
        seed: Seed of the wrong answers.

    Raises:
        ArgumentValueError: A record has another form, or none is given.
    """
    # Tasks are built without benchmarks wherever that will do.
    from combee_dspy.benchmarks.finer import LABELS
    from combee_dspy.benchmarks.finer.records import parse

    questions: list[SimulatedQuestion] = []
    for record in records:
        text = record["questions"] if "questions" in record else record.get("context")
        record_parts = parse(
            {
                "context": text,
                "target": record["tags"] if "tags" in record else record.get("target"),
            }
        )
        if isinstance(record_parts, str):
            raise ArgumentValueError(
                "records", record, f"hold a row that is not FiNER's: {record_parts}", "See Finer."
            )
        for question in record_parts.questions:
            others = [label for label in LABELS if label.casefold() != question.target.casefold()]
            wrong = derive(seed, "wrong", question.text).choice(others)
            words = " ".join(_WORD.findall(question.target)).lower()
            lesson = f"a number that its sentence gives as {words} has this tag."
            questions.append(
                SimulatedQuestion(question.text, question.target, wrong, question.target, lesson)
            )
    return SimulatedTask(tuple(questions), ("tags",), base_rate, joiner=",")


def benchmark_task(
    benchmark: LoadedBenchmark,
    seed: int = 0,
    *,
    params: Mapping[str, Any] | None = None,
    base_rate: float = 0.3,
) -> SimulatedTask:
    """Build the knowledge of a benchmark: a lesson for each formula, tag or label.

    Keys come from the rows of all splits. For ``formula`` the rows are read
    once more, whole: which formula a question needs stands in the context only.

    Args:
        benchmark: The benchmark.
        seed: Seed of the wrong answers.
        params: What the benchmark was loaded with. Needed for ``formula``, and there only.
        base_rate: Probability that a question is answered rightly without its lesson.

    Raises:
        ArgumentValueError: ``params`` are missing for ``formula``, or a row cannot become a
            question.
        DataSourceError: The rows of ``formula`` cannot be read again.
    """
    rows = [row for split in benchmark.splits for row in split.examples]
    if benchmark.name == "formula":
        from combee_dspy.benchmarks import load_benchmark

        if not params:
            remedy = "Give what formula was loaded with."
            raise ArgumentValueError("params", params, "do not say where the rows are", remedy)
        whole = load_benchmark("formula", **{**params, "formula_text": True})
        rows = [row for split in whole.splits for row in split.examples]
        records = ({"context": row["question"], "target": row["answer"]} for row in rows)
        return formula_task(records, base_rate=base_rate, seed=seed)
    if benchmark.name == "finer":
        return finer_task(rows, base_rate=base_rate, seed=seed)
    question, answer = (
        next(iter(benchmark.signature.input_fields)),
        next(iter(benchmark.signature.output_fields)),
    )

    def key_of(row: Mapping[str, Any]) -> str:
        # A key starts with a letter, and a label may be a number.
        return str(row["formula"]) if "formula" in row else f"{answer} {row[answer]}"

    return SimulatedTask.from_examples(
        rows, question, answer, key_of=key_of, base_rate=base_rate, seed=seed
    )


@contextmanager
def benchmark_service(
    benchmarks: Sequence[tuple[LoadedBenchmark, Mapping[str, Any]]],
    *,
    seed: int = 0,
    slots: int | None = None,
    time_scale: float | None = None,
) -> Iterator[Callable[..., dspy.LM]]:
    """Run a service that knows what every one of some benchmarks asks.

    Gives what makes LMs that ask it.

    Args:
        benchmarks: The benchmarks, each with the parameters that it was loaded with.
        seed: Seed of the service.
        slots: Calls that it answers at once; its own default where ``None``.
        time_scale: Wall seconds for one simulated second; its own default where ``None``.
    """
    tasks = [benchmark_task(benchmark, seed, params=params) for benchmark, params in benchmarks]
    questions = {question.text: question for task in reversed(tasks) for question in task.questions}
    fields = dict.fromkeys(field for task in tasks for field in task.answer_fields)
    config = SimulatedConfig(seed=seed)
    if slots is not None:
        config = replace(config, slots=slots)
    if time_scale is not None:
        config = replace(config, time_scale=time_scale)
    whole = replace(tasks[0], questions=tuple(questions.values()), answer_fields=tuple(fields))
    with SimulatedService(config, whole) as service:
        yield service.lm
