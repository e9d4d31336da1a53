"""Buys one rollout of a candidate's program: from the shared cache, or in a slot.

Programs are built once and kept for a while; texts of a rollout are scrubbed before use.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import dspy

from combee_dspy.evaluation import DEFAULT_PERFECT_SCORE
from combee_dspy.journal import Effect
from combee_dspy.records import Rollout
from combee_dspy.rollouts import (
    Check,
    RolloutJob,
    decode_rollout,
    encode_rollout,
    fingerprint,
    is_late,
    lms_of,
    patient_program,
    rollout_with_texts,
    takes_trace,
)
from combee_dspy.search._amounts import LargestCall, largest_call
from combee_dspy.search._buyer import Buyer
from combee_dspy.search._candidates import ROLLOUTS, Candidate, Compilation, Row, SharedParts
from combee_dspy.search._privacy import inputs_text, labels_text

_PROGRAMS = 16
_CALLS = 100
# DSPy's own modules count up from an LM's rollout_id by one for each of a few attempts: far enough
# from those.
_STRIDE = 1_000_000


def another_draw(lm: Any, replicate: int) -> Any:
    """Return a copy of an LM whose answers are a draw of their own; the LM itself for replicate 0.

    DSPy's cache then keeps each replicate's answers apart. At temperature 0 the answer of a service
    stays what it was.
    """
    if lm is None or replicate == 0:
        return lm
    first = (getattr(lm, "kwargs", None) or {}).get("rollout_id")
    return lm.copy(rollout_id=(first if isinstance(first, int) else 0) + replicate * _STRIDE)


class _Recent(list[Any]):
    """A module's last calls: DSPy keeps 10,000 of each module, with their prompts."""

    def append(self, entry: Any) -> None:
        """Add a call, in the place of the oldest where there are enough."""
        if len(self) >= _CALLS:
            del self[0]
        super().append(entry)


@dataclass(eq=False)
class Programs:
    """Builds candidates' programs; the last few are kept. Lives on the search's loop."""

    build: Callable[[Mapping[str, str]], dspy.Module]
    metric: Callable[..., Any]
    failure_score: float

    def __post_init__(self) -> None:
        self._programs: OrderedDict[tuple[str, int], dspy.Module] = OrderedDict()
        self._prints: dict[str, str] = {}

    def of(self, candidate: Candidate, replicate: int = 0) -> dspy.Module:
        """Return a candidate's program for one of its draws. Only to be run, never changed."""
        place = (candidate.id, replicate)
        if place not in self._programs:
            program = self.build(candidate.texts)
            for predictor in program.predictors() if replicate else ():
                predictor.lm = another_draw(predictor.lm, replicate)
            self._programs[place] = patient_program(program)
            for _, module in self._programs[place].named_sub_modules():
                module.history = _Recent()
            if len(self._programs) > _PROGRAMS:
                self._programs.popitem(last=False)
        self._programs.move_to_end(place)
        return self._programs[place]

    def fingerprint(self, candidate: Candidate) -> str:
        """Return what rollouts of a candidate depend on besides their example, as a hash."""
        if candidate.id not in self._prints:
            self._prints[candidate.id] = fingerprint(
                self.of(candidate), self.metric, self.failure_score
            )
        return self._prints[candidate.id]


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
            # Every other row first: what a limit in seconds cuts has run on rows from all over.
            priority = (*urgency, row.index % 2, row.index, self.task.number)
            if not effect.replicate:
                # A context of its own would hold 2 kB for each rollout that waits for a slot.
                return await self.shared.slots.rollout(job, priority, check)
            with dspy.context(lm=another_draw(dspy.settings.lm, effect.replicate)):
                return await self.shared.slots.rollout(job, priority, check)

        def bound() -> LargestCall | None:
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
