"""Buys one rollout: from the shared cache, or in a slot; its texts are scrubbed before use."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from functools import partial

import dspy

from combee_dspy.evaluation import DEFAULT_PERFECT_SCORE
from combee_dspy.journal import Effect
from combee_dspy.records import Rollout
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
from combee_dspy.search._amounts import Amounts, largest_call
from combee_dspy.search._buyer import Buyer
from combee_dspy.search._candidates import (
    ROLLOUTS,
    Candidate,
    Compilation,
    Row,
    SharedParts,
)
from combee_dspy.search._privacy import inputs_text, labels_text
from combee_dspy.search._programs import Programs, another_draw

_ABOVE_SCALE = (
    "The metric gave more than 1, the default perfect_score. A success is now taken to score the"
    " next power of ten, such as 10 or 100. Give Combee(perfect_score=…) the highest score."
)


@dataclass(eq=False)
class RolloutBuyer:
    """Buys rollouts of candidates' programs. Lives on the search's loop."""

    task: Compilation
    shared: SharedParts
    buyer: Buyer

    def __post_init__(self) -> None:
        settings = self.task.settings
        build = partial(settings.artifact.build, self.task.student)
        self.programs = Programs(build, settings.metric, settings.failure_score)
        self._sees_trace = takes_trace(settings.metric)

    async def buy(self, effect: Effect, candidate: Candidate, row: Row, lane: int) -> Rollout:
        """Return a rollout; see :meth:`combee_dspy.search._effects.Effects.rollout`."""
        cache = self.shared.cache
        if cache is None:
            return (await self._run(effect, candidate, row, lane))[0]
        # A rollout of other privacy settings holds more, or less, than this run may see.
        program = f"{self.programs.fingerprint(candidate)}/{row.hash}/{effect.replicate}"
        content = program + self.buyer.texts.print
        rollout = decode_rollout(cache.find(content), row.fields)
        if rollout is not None:
            now = time.time()
            effect = self._filled(replace(effect, started=now, ended=now), rollout, row)
            await self.buyer.commit(effect, rollout)
            return rollout
        rollout, effect = await self._run(effect, candidate, row, lane)
        # A limit on time, or what a service did, says nothing of the rollout in another run.
        if not is_late(rollout) and rollout.failed_in != "service":
            cache.keep(content, effect.value)
        return rollout

    async def _run(
        self, effect: Effect, candidate: Candidate, row: Row, lane: int
    ) -> tuple[Rollout, Effect]:
        """Run the program on the row, and commit what came of it."""
        settings, program = self.task.settings, self.programs.of(candidate, effect.replicate)
        job = RolloutJob(
            program,
            row.example,
            row.hash,
            settings.metric,
            settings.failure_score,
            self.shared.tariff,
            self._sees_trace,
            seconds=settings.validation.rollout_seconds,
        )
        urgency = lane, max(effect.step, 0)
        of_student = effect.step < 0 and effect.purpose == "validation"
        if of_student and self.task.limits.seconds is not None:
            # Without the student's validation a run whose time is over has no result.
            urgency = ROLLOUTS, -1

        async def send(check: Check) -> Rollout:
            priority = (*urgency, row.index, self.task.number)
            if not effect.replicate:
                # A context of its own would hold 2 kB for each rollout that waits for a slot.
                return await self.shared.slots.rollout(job, priority, check)
            with dspy.context(lm=another_draw(dspy.settings.lm, effect.replicate)):
                return await self.shared.slots.rollout(job, priority, check)

        def bound() -> Amounts:
            texts = (*candidate.texts.values(), inputs_text(row.example, None))
            return largest_call(lms_of(program), texts, self.shared.tariff)

        rollout, effect = await self.buyer.buy(effect, send, bound)
        if settings.perfect_score == DEFAULT_PERFECT_SCORE < rollout.score:
            self.buyer.warn(_ABOVE_SCALE)
        rollout, effect = self._scrubbed(rollout, effect, row)
        await self.buyer.commit(effect, rollout)
        row.check_unchanged()
        if is_late(rollout):
            self.buyer.warn(
                f"A rollout was given up in the {rollout.failed_in}, and counts as failed:"
                f" {rollout.error}"
            )
        return rollout, effect

    def _scrubbed(self, rollout: Rollout, effect: Effect, row: Row) -> tuple[Rollout, Effect]:
        """Take out what nobody may see: feedback and errors end in prompts and files."""
        scrub = self.buyer.texts.scrub
        if self.buyer.texts.redacts:
            rollout = rollout_with_texts(rollout, scrub)
        effect = self._filled(effect, rollout, row)
        masked = self.buyer.texts.scrubbed(effect.value)
        if masked == effect.value:
            return rollout, effect
        error = None if rollout.error is None else scrub(rollout.error)
        plain = replace(rollout, feedback=scrub(rollout.feedback), error=error)
        return decode_rollout(masked, row.fields) or plain, replace(
            effect, value=masked, error=error
        )

    def _filled(self, effect: Effect, rollout: Rollout, row: Row) -> Effect:
        """Return the row of a rollout with what came of it."""
        value = encode_rollout(rollout, row.fields)
        if row.split != "heldout":
            example = self.buyer.texts.example(row.example)
            value["inputs"], value["expected"] = inputs_text(example), labels_text(example)
        return replace(
            effect,
            value=value,
            score=rollout.score,
            error=rollout.error,
            failed_in=rollout.failed_in,
        )
