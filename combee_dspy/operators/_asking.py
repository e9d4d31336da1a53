"""Asking an LM for an edit, and reading what it answered as the hostile data that it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain, zip_longest
from typing import Any

import dspy
from pydantic import TypeAdapter, ValidationError

from combee_dspy.operators._base import OperatorInput
from combee_dspy.records import FailedCall, PredictorRun, Reflection, Refusal
from combee_dspy.reflections import estimate_record_tokens, fit_reflections, render_records
from combee_dspy.strategies import StrategyContext

__all__ = ["ask", "numbered", "shown_runs"]

_PER_RUN = 8
_MIN_TOKENS = 64


async def ask(
    context: StrategyContext, signature: type[dspy.Signature], inputs: Mapping[str, Any], place: str
) -> Any | Refusal:
    """Return the proposer's answer, the value of the signature's output field, or why there is none.

    The context's notes, where it has any, are one more input field, ``constraints``.
    """
    given = dict(inputs)
    if context.notes:
        signature, given["constraints"] = _constrained(signature), context.notes
    answer = await context.ask(signature, given, place, role="proposer")
    if isinstance(answer, FailedCall):
        return Refusal(f"the call failed: {answer.error}")
    ((name, field),) = signature.output_fields.items()
    try:
        # An answer out of a journal holds plain JSON where a live one may hold pydantic models.
        return TypeAdapter(field.annotation).validate_python(getattr(answer, name, None))
    except ValidationError as error:
        return Refusal(f"the answer's {name} cannot be read: {error.errors()[0]['msg']}")


def _constrained(signature: type[dspy.Signature]) -> type[dspy.Signature]:
    """Return a signature with one more input, for what the context has to say."""
    constraints = dspy.InputField(desc="What the new text must respect, whatever else is asked.")
    fields: dict[str, Any] = {name: (field.annotation, field) for name, field in signature.input_fields.items()}
    fields["constraints"] = (str, constraints)
    fields.update({name: (field.annotation, field) for name, field in signature.output_fields.items()})
    return dspy.make_signature(fields, signature.instructions, signature.__name__)


def numbered(lines: Sequence[str]) -> list[str]:
    """Return lines with numbers from 1, as a prompt shows them."""
    return [f"{number}. {line}" for number, line in enumerate(lines, start=1)]


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
    for run in chain.from_iterable(zip_longest(failed, passed)):
        if run is None:
            continue
        # Nothing is said of what is cut: the scan has read these rollouts, and tells.
        limit = max(_MIN_TOKENS, max_tokens // _PER_RUN)
        fitted = fit_reflections([Reflection(0, _record(run))], limit, lambda said: None, max_parts=1)
        record = render_records(fitted)[0]
        left -= estimate_record_tokens(record)
        if left < 0:
            break
        chosen.append(record)
    return chosen


def _record(run: PredictorRun) -> dict[str, Any]:
    record: dict[str, Any] = {"Inputs": dict(run.inputs), "Generated Outputs": dict(run.outputs)}
    if run.labels:
        record["Expected"] = dict(run.labels)
    record["Score"] = f"{run.score:g}"
    return record
