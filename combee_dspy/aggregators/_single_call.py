"""The naive baseline: everything in one call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import dspy

from combee_dspy.aggregators._base import Aggregator
from combee_dspy.aggregators._prompts import RewriteInstruction
from combee_dspy.aggregators._telling import ScanTeller
from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.records import FailedCall, Lessons, NodeOutput, Reflection
from combee_dspy.reflections import estimate_tokens, fit_reflections, render_records
from combee_dspy.strategies import StrategyContext

__all__ = ["SingleCall"]

_CONSTRAINTS = dspy.InputField(desc="What the new instruction must respect, whatever the examples show.")
_PROMPT_TOKENS = 1_000
_MIN_RECORD_TOKENS = 64


class SingleCall(Aggregator):
    """Shows all reflections to one call, which writes a whole new instruction, as GEPA's proposer does.

    The baseline that a scan is measured against: one prompt that grows with the
    minibatch, and an answer as long as the instruction.

    Args:
        max_call_tokens: Estimated tokens the call may take, the prompt included.
            Each reflection is then trimmed to an equal share, 64 tokens at least,
            with an event each. ``None``: no limit, as in GEPA.
    """

    name: ClassVar[str] = "single-call"

    def __init__(self, max_call_tokens: int | None = None) -> None:
        self.max_call_tokens = max_call_tokens

    def validate(self) -> None:
        """Check the parameter, before anything is spent.

        Raises:
            ArgumentValueError: ``max_call_tokens`` is below 1.
        """
        if self.max_call_tokens is not None and self.max_call_tokens < 1:
            raise ArgumentValueError("max_call_tokens", self.max_call_tokens, "is below 1", "Give None for no limit.")

    def aggregate(self, reflections: Sequence[Reflection], context: StrategyContext) -> Lessons:
        """Return the new instruction as ``rewrite``; without one when the call failed or wrote nothing.

        Raises:
            ArgumentValueError: ``max_call_tokens`` is below 1.
        """
        self.validate()
        if not reflections:
            return Lessons(context.component)
        told = ScanTeller(context, self.name)
        items = self._fitted(reflections, context)
        told.started(len(reflections), (1,))
        signature: type[dspy.Signature] = RewriteInstruction
        given: dict[str, Any] = {"current_instruction": context.text, "examples_with_feedback": render_records(items)}
        if context.notes:
            # This call writes the text itself, so what the text must respect is said to it.
            signature, given["constraints"] = signature.append("constraints", _CONSTRAINTS, str), context.notes
        answer = context.predict(signature, [given], role="proposer")[0]
        rewrite: str | None = None
        failed: str | None = None
        if isinstance(answer, FailedCall):
            failed = answer.error
        else:
            written = getattr(answer, "new_instruction", None)
            rewrite = written.strip() or None if isinstance(written, str) else None
            failed = None if rewrite else "EmptyAnswer: the answer holds no instruction"
        sources = tuple(sorted({item.index for item in items}))
        node = NodeOutput(1, 0, sources, () if rewrite is None else (rewrite,), failed)
        told.level_done((node,))
        told.finished((node,), ())
        return Lessons(context.component, rewrite=rewrite, nodes=(node,))

    def _fitted(self, reflections: Sequence[Reflection], context: StrategyContext) -> list[Reflection]:
        if self.max_call_tokens is None:
            return list(reflections)
        room = self.max_call_tokens - _PROMPT_TOKENS - estimate_tokens(context.text)
        share = max(room // len(reflections), _MIN_RECORD_TOKENS)
        return fit_reflections(reflections, share, context.component, context.emit, context.iteration, max_parts=1)
