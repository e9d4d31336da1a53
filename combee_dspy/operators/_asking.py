"""Asking an LM for an edit, and reading what it answered as the hostile data that it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import dspy

from combee_dspy.operators._base import OperatorInput
from combee_dspy.records import FailedCall, PredictorRun, Reflection, Refusal
from combee_dspy.reflections import estimate_record_tokens, fit_reflections, render_records
from combee_dspy.strategies import StrategyContext

__all__ = ["ask", "numbered", "shown_runs", "whole_numbers"]

_PER_RUN = 8
_MIN_TOKENS = 64


def _constrained(signature: type[dspy.Signature]) -> type[dspy.Signature]:
    """Return a signature with one more input, for what the context has to say."""
    constraints = dspy.InputField(desc="What the new text must respect, whatever else is asked.")
    fields: dict[str, Any] = {name: (field.annotation, field) for name, field in signature.input_fields.items()}
    fields["constraints"] = (str, constraints)
    fields.update({name: (field.annotation, field) for name, field in signature.output_fields.items()})
    return dspy.make_signature(fields, signature.instructions, signature.__name__)


def ask(context: StrategyContext, signature: type[dspy.Signature], inputs: Mapping[str, Any]) -> Any | Refusal:
    """Return one answer of the proposer, or why there is none.

    The context's notes, where it has any, are one more input field, ``constraints``.
    """
    given = dict(inputs)
    if context.notes:
        signature, given["constraints"] = _constrained(signature), context.notes
    answer = context.predict(signature, [given], role="proposer")[0]
    return Refusal(f"the call failed: {answer.error}") if isinstance(answer, FailedCall) else answer


def numbered(lines: Sequence[str]) -> list[str]:
    """Return lines with numbers from 1, as a prompt shows them."""
    return [f"{number}. {line}" for number, line in enumerate(lines, start=1)]


def whole_numbers(value: object, most: int) -> list[int] | Refusal:
    """Return an answer that must be a list of whole numbers from 1 to ``most``, or what is wrong with it."""
    if not isinstance(value, (list, tuple)):
        return Refusal(f"the answer is a {type(value).__name__} where a list of numbers was asked for")
    for item in value:
        if isinstance(item, bool) or not isinstance(item, int) or not 1 <= item <= most:
            return Refusal(f"the answer holds {item!r:.40}, which is no number from 1 to {most}")
    return list(value)


def shown_runs(given: OperatorInput, context: StrategyContext, max_tokens: int) -> list[dict[str, Any]]:
    """Return rollouts for a judge to read, failures and successes in turn, within a token budget.

    However long the trajectories are, the prompt is not: one rollout takes an
    eighth of the budget at most, the middle of long texts left out, and rollouts are
    drawn from the context's stream until the budget is spent.

    Args:
        given: What the operator works on.
        context: Where chance comes from.
        max_tokens: Estimated tokens that all of them may take together.
    """
    failed = [run for run in given.runs if run.score < given.perfect_score]
    passed = [run for run in given.runs if not run.score < given.perfect_score]
    for runs, name in ((failed, "failed"), (passed, "passed")):
        context.stream("shown runs", name).shuffle(runs)
    chosen: list[dict[str, Any]] = []
    left = max_tokens
    for run in _in_turn(failed, passed):
        reflection = Reflection(len(chosen), _record(run))
        # Nothing is said of what is cut: the scan has read these rollouts, and tells.
        limit = max(_MIN_TOKENS, max_tokens // _PER_RUN)
        fitted = fit_reflections([reflection], limit, context.component, lambda event: None, max_parts=1)
        record = render_records([replace(fitted[0], index=0)])[0]
        left -= estimate_record_tokens(record)
        if left < 0:
            break
        chosen.append(record)
    return chosen


def _in_turn(failed: Sequence[PredictorRun], passed: Sequence[PredictorRun]) -> list[PredictorRun]:
    turns = [runs[place : place + 1] for place in range(max(len(failed), len(passed))) for runs in (failed, passed)]
    return [run for turn in turns for run in turn]


def _record(run: PredictorRun) -> dict[str, Any]:
    record: dict[str, Any] = {"Inputs": dict(run.inputs), "Generated Outputs": dict(run.outputs)}
    if run.labels:
        record["Expected"] = dict(run.labels)
    record["Score"] = f"{run.score:g}"
    return record
