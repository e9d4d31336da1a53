"""Buys one rollout: from the shared cache, or in a slot; scrubbed before anything follows from
it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import dspy

from combee_dspy.evaluation import DEFAULT_PERFECT_SCORE
from combee_dspy.journal import Effect
from combee_dspy.records import CallUsage, Rollout
from combee_dspy.rollouts import (
    Check,
    RolloutJob,
    decode_rollout,
    encode_rollout,
    is_late,
    lms_of,
    rollout_with_texts,
    takes_trace,
)
from combee_dspy.search._budget import Purse, at_most
from combee_dspy.search._buyer import Buyer
from combee_dspy.search._candidates import (
    Candidate,
    Compilation,
    EffectPlace,
    Programs,
    Row,
    SharedParts,
    another_draw,
)
from combee_dspy.search._privacy import Texts, inputs_text, labels_text

__all__ = ["CALLS", "ROLLOUTS", "VALIDATION", "Rolling", "queued"]

CALLS, ROLLOUTS, VALIDATION = 0, 1, 2
"""Lanes, the most urgent first: what many rollouts wait for goes before what few wait for."""

_ABOVE_SCALE = (
    "The metric gave more than 1, the default perfect_score. A success is now taken to score the"
    " next power of ten, such as 10 or 100. Give Combee(perfect_score=…) the highest score."
)


@dataclass(eq=False)
class Rolling:
    """Buys rollouts of candidates' programs. Lives on the search's loop."""

    task: Compilation
    shared: SharedParts
    purse: Purse
    buyer: Buyer
    texts: Texts
    warn: Callable[[str], None]

    def __post_init__(self) -> None:
        settings = self.task.settings
        self.programs = Programs(
            partial(settings.artifact.build, self.task.student),
            settings.metric,
            settings.failure_score,
        )
        self._sees_trace = takes_trace(settings.metric)

    async def buy(
        self,
        key: str,
        candidate: Candidate,
        row: Row,
        place: EffectPlace,
        lane: int,
        replicate: int,
    ) -> Rollout:
        """Return a rollout; see :meth:`combee_dspy.search._effects.Effects.rollout`."""
        program, cache = self.programs.of(candidate, replicate), self.shared.cache
        settings, tariff = self.task.settings, self.shared.tariff
        effect = Effect(
            key,
            "rollout",
            {},
            "task",
            place.purpose,
            place.step,
            candidate=candidate.id,
            example=row.hash,
            split=row.split,
            replicate=replicate,
        )
        entry = ""
        if cache is not None:
            # What was kept with other settings of privacy holds more, or less, than this run may
            # see.
            entry = f"{self.programs.fingerprint(candidate)}/{row.hash}/{replicate}"
            entry += self.texts.print
            cached = decode_rollout(cache.find(entry), row.fields)
            if cached is not None:
                now = time.time()
                stored = replace(effect, started=now, ended=now)
                await self.buyer.keep(self._filled(stored, cached, row), cached)
                return cached
        job = RolloutJob(
            program,
            row.example,
            row.hash,
            settings.metric,
            settings.failure_score,
            tariff,
            self._sees_trace,
            seconds=settings.validation.rollout_seconds,
        )
        urgency = lane, max(place.step, 0)
        of_student = place.step < 0 and place.purpose == "validation"
        if of_student and self.purse.limits.seconds is not None:
            # Without the student's validation a run whose time is over has no result.
            urgency = ROLLOUTS, -1

        async def run(check: Check | None) -> tuple[Rollout | Exception, tuple[CallUsage, ...]]:
            priority = (*urgency, row.index, self.task.number)
            with dspy.context(lm=another_draw(dspy.settings.lm, replicate)):
                rollout = await self.shared.slots.rollout(job, priority, check)
            if settings.perfect_score == DEFAULT_PERFECT_SCORE < rollout.score:
                self.warn(_ABOVE_SCALE)
            return rollout, rollout.usage

        texts = candidate.texts.values()
        rollout, effect = await self.buyer.buy(
            effect,
            run,
            lambda: at_most(lms_of(program), (*texts, inputs_text(row.example, None)), tariff),
        )
        # Scrubbed before anything follows from it: feedback and errors end in prompts and files.
        scrub = self.texts.scrub
        if self.texts.redacts:
            rollout = rollout_with_texts(rollout, scrub)
        else:
            error = None if rollout.error is None else scrub(rollout.error)
            rollout = replace(rollout, feedback=scrub(rollout.feedback), error=error)
        effect = self._filled(queued(effect, rollout.queue_seconds), rollout, row)
        if (masked := self.texts.scrubbed(effect.value)) != effect.value:  # a model has said a key
            effect = replace(effect, value=masked)
            rollout = decode_rollout(masked, row.fields) or rollout
        await self.buyer.keep(effect, rollout)
        row.check_unchanged()
        if is_late(rollout):
            self.warn(
                f"A rollout was given up in the {rollout.failed_in}, and counts as failed:"
                f" {rollout.error}"
            )
        elif cache is not None and rollout.failed_in != "service":
            # What a service did, or a limit on time, says nothing of the rollout when another run
            # asks for it.
            cache.keep(entry, effect.value)
        return rollout

    def _filled(self, effect: Effect, rollout: Rollout, row: Row) -> Effect:
        value = encode_rollout(rollout, row.fields)
        if row.split != "heldout":
            example = self.texts.example(row.example)
            value["inputs"], value["expected"] = inputs_text(example), labels_text(example)
        return replace(
            effect,
            value=value,
            score=rollout.score,
            error=rollout.error,
            failed_in=rollout.failed_in,
        )


def queued(effect: Effect, seconds: float) -> Effect:
    """Return an effect that has waited for so many seconds before it began."""
    return replace(effect, started=effect.started + seconds, queued=seconds)
