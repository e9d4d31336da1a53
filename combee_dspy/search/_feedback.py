"""GEPA's reflective record of a rollout, with the metric's feedback on one predictor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from combee_dspy._private import InstructionProposer
from combee_dspy.evaluation import Judge
from combee_dspy.events import ErrorRaised
from combee_dspy.records import Rollout
from combee_dspy.search._candidates import Compilation, EffectPlace, Row
from combee_dspy.search._effects import Effects
from combee_dspy.search._plans import UpdatePlan
from combee_dspy.search._recorded import Recorded
from combee_dspy.search._records import (
    call_to_show,
    code_record,
    failed_record,
    feedback_failed,
    predictor_feedback,
    shown_call,
    unscored,
)
from combee_dspy.streams import derive

__all__ = ["Records"]


@dataclass(frozen=True, slots=True, eq=False)
class Records:
    """Makes the records of a run. Lives on the search's loop."""

    task: Compilation
    effects: Effects
    recorded: Recorded

    async def make(
        self, plan: UpdatePlan, row: Row, rollout: Rollout, component: str
    ) -> Mapping[str, object] | None:
        """Return a record; ``None`` where the rollout says nothing of the component."""
        if row.recorded is not None:
            return await self.recorded.record(row, row.recorded, component, plan.step)
        settings, example = self.task.settings, self.effects.texts.example(row.example)
        if component in self.task.code:
            return code_record(example, rollout)
        call = call_to_show(
            rollout,
            component,
            derive(settings.seed, "shown call", plan.step, component, row.hash),
            format_failures=settings.add_format_failure_as_feedback,
        )
        if call is None:
            return failed_record(example, rollout)
        as_objects = isinstance(settings.instruction_proposer, (InstructionProposer, type(None)))
        record = shown_call(call, as_objects=as_objects)
        if rollout.failed_in == "metric":
            return {**record, "Feedback": unscored(rollout)}
        metric = self.effects.metric
        # A judge says the same of every predictor, and a redacted metric would be shown marks where
        # it looks for answers.
        whole = isinstance(metric, Judge) or self.effects.texts.redacts
        if whole and rollout.prediction is not None:
            return {**record, "Feedback": rollout.feedback}
        candidate, number = plan.parent.candidate, rollout.calls.index(call)
        place = EffectPlace("feedback", plan.step, component)
        feedback: Mapping[str, Any] = await self.effects.work(
            self.effects.key(
                f"feedback/{candidate.id}/{row.hash[:16]}/{component}/{number}", place
            ),
            place,
            "evaluator",
            "feedback",
            partial(
                predictor_feedback,
                self.effects.programs.of(candidate),
                metric,
                row.example,
                rollout,
                call,
                component,
            ),
            partial(feedback_failed, rollout),
        )
        if "error" in feedback:
            self.effects.log.emit(ErrorRaised("metric", feedback["error"]), step=plan.step)
        score = feedback["score"]
        if settings.warn_on_score_mismatch and score not in (None, rollout.score):
            self.effects.warn(
                "The metric scores a predictor otherwise than the program: the program's score"
                " counts. warn_on_score_mismatch=False silences this."
            )
        return {**record, "Feedback": feedback["feedback"]}
