"""A proposal for a DSPy program: what recorded rollouts teach each of its predictors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import dspy

from combee_dspy.aggregators import Aggregator
from combee_dspy.artifacts import Instruction
from combee_dspy.exceptions import ArgumentTypeError, ArgumentValueError
from combee_dspy.learning._engine import Part, make_learner
from combee_dspy.lessons import Book
from combee_dspy.options import Privacy
from combee_dspy.records import CallUsage, Reflection
from combee_dspy.traces import (
    Selected,
    Selection,
    Trace,
    TraceCoverage,
    Traces,
    match_trace,
    measure_coverage,
    read_call,
)
from combee_dspy.weighers import Weigher

__all__ = ["Proposal", "propose_program"]


@dataclass(frozen=True, slots=True)
class Proposal:
    """A program that recorded rollouts speak for. It was never run: it supports no claim.

    Attributes:
        program: A copy of the student whose prompts serve the books.
        books: Every lesson by predictor, with the ids of the traces that teach it.
        coverage: Which of the traces that were read matched the program, and who had answered
            them: those of another prompt or model teach, and are compared with nothing.
        selected: Which traces were read, and why the others were not.
        usage: What all parts of the run have spent, by role and model.
    """

    program: dspy.Module
    books: Mapping[str, Book] = field(default_factory=dict)
    coverage: TraceCoverage = field(default_factory=TraceCoverage)
    selected: Selected = field(default_factory=Selected)
    usage: tuple[CallUsage, ...] = ()

    def __str__(self) -> str:
        """Return what is there, one line each; the first says what is missing."""
        answered = "; ".join(
            f"{count} by {', '.join(filter(None, who)) or 'somebody unknown'}"
            for who, count in sorted(self.coverage.prompts.items(), key=lambda item: -item[1])
        )
        lessons = ", ".join(f"{name} {len(book.served)}" for name, book in self.books.items())
        lines = ["Not validated: nothing was run.", str(self.selected), str(self.coverage)]
        return "\n".join([*lines, f"Answered: {answered}", f"Lessons served: {lessons}"])


def propose_program(  # noqa: PLR0913 - keywords, each with a default but the LM
    student: dspy.Module,
    traces: Traces,
    *,
    reflection_lm: str | dspy.BaseLM,
    selection: Selection | None = None,
    aggregator: str | Aggregator = "reference-scan",
    weigher: str | Weigher = "posterior",
    privacy: Privacy | None = None,
    num_threads: int = 16,
    log_dir: str | Path | None = None,
) -> Proposal:
    """Learn prompts for a program's predictors from recorded rollouts, and run nothing.

    A reader of a predictor's call sees its inputs and outputs, how the whole rollout went, and what
    the other steps did.

    Args:
        student: The program. Not changed.
        traces: As for :func:`learn_lessons`. Their calls are matched to the predictors by the path
            that a journal of ours has, else by the fields of their signatures.
        reflection_lm: As for :func:`learn_lessons`, and so are the further arguments.
        selection: Which traces are read.
        aggregator: How readers learn.
        weigher: Which lessons are served.
        privacy: What no reader sees.
        num_threads: LM calls in flight at once.
        log_dir: Where the journal lies.

    Returns:
        The proposal. Test it before you serve it.

    Raises:
        ArgumentTypeError: ``student`` is no program.
        ArgumentValueError: No trace matches a predictor, or says how it went.
        TraceSourceError: The traces cannot be read.
        JournalMismatchError: ``log_dir`` holds a run on other traces or with other settings.
        InfrastructureError: The service kept failing; what was read is in the journal.
    """
    if not isinstance(student, dspy.Module):
        remedy = "Give an instance of a dspy.Module."
        raise ArgumentTypeError("student", student, "is no DSPy program", remedy)
    chosen = selection or Selection()
    learner = make_learner(traces, reflection_lm, chosen, (aggregator, weigher), privacy)
    matched = [match_trace(trace, student) for trace in learner.selected.traces]
    coverage = measure_coverage(matched, student)
    artifact = Instruction()
    seed = artifact.seed(student)
    parts = [
        Part(name, seed[name], reflections)
        for name, _ in student.named_predictors()
        if (reflections := _read(matched, name, chosen))
    ]
    if not parts:
        remedy = "Compare the fields of its predictors with those of the calls that were recorded."
        raise ArgumentValueError("traces", str(coverage), "match no predictor", remedy)
    outcome = learner.learn(parts, num_threads, log_dir)
    program = artifact.build(student, {**seed, **outcome.texts})
    return Proposal(program, outcome.books, coverage, learner.selected, outcome.usage)


def _read(traces: list[Trace], predictor: str, selection: Selection) -> tuple[Reflection, ...]:
    """Return what readers see of a predictor's calls, one for each trace that has any."""
    calls = [
        read_call(trace, predictor, selection.trace_tokens, selection.perfect) for trace in traces
    ]
    return tuple(
        Reflection(place, call.record, call.example_id, perfect=call.perfect)
        for place, call in enumerate(call for call in calls if call is not None)
    )
