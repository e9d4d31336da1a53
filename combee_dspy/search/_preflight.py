"""Checks that a run can work at all: asks each LM, and runs one row of each split."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import dspy

from combee_dspy.costs import price_of
from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.lms import probe
from combee_dspy.records import Rollout
from combee_dspy.rollouts import fingerprints, lms_of
from combee_dspy.search._candidates import Compilation, EffectPlace, Row
from combee_dspy.search._describe import lms_by_role, models_by_role
from combee_dspy.search._effects import Effects, cancel
from combee_dspy.search._time_budget import BudgetReached
from combee_dspy.stopping import require_countable

_NO_LM = (
    "Run dspy.configure(lm=dspy.LM(…)), or program.set_lm(…). A program that brings its own:"
    " Validation(probe=False)."
)


@dataclass(eq=False)
class Preflight:
    """Checks a run before it costs much. Lives on the search's loop.

    Attributes:
        compared: The validation rows that candidates are compared on.
        first: The training row that the search runs first, if it runs any.
    """

    task: Compilation
    effects: Effects
    compared: Sequence[Row]
    first: Row | None

    async def run(self, work: Callable[[], Awaitable[None]]) -> None:
        """Carry out the work of a run beside the checks, or after them where cost or time is
        limited.

        Raises:
            ArgumentValueError: The budget is in a unit that cannot be counted.
            Exception: What the probe raised, else a row, else the work.
        """
        await self._check_budget()
        if self.effects.purse.grants:
            await self._probe()
            await self._try_rows()
            await work()
        else:
            # Few effects of the work begin before the checks have ended. The checks ask first, so
            # their rows are among the few.
            self.effects.buyer.start.hold(self.effects.slots.capacity)
            await _beside(self._check(), work())

    async def _check(self) -> None:
        """Probe the LMs and try the first rows at once; the probe's error is the clearest."""
        await _beside(self._probe(), self._try_rows())
        self.effects.buyer.start.open()

    async def _check_budget(self) -> None:
        settings = self.task.settings
        if not lms_of(self.task.student):
            await self._probe()  # which refuses
        try:
            require_countable(
                settings.budget,
                unpriced=settings.costs.unpriced(models_by_role(settings)),
                gpus=bool(settings.costs.gpus),
            )
        except ArgumentValueError:
            await self._probe()  # an unknown model is the better reason to refuse
            raise

    async def _probe(self) -> None:
        """Ask every LM of the run for a token, as one effect.

        Raises:
            ArgumentValueError: An LM is missing, or does not answer.
        """
        settings, splits = self.task.settings, self.task.splits
        if not settings.validation.probe:
            return
        lms = {role: lm for role, lm in lms_by_role(settings).items() if lm is not None}
        runs = bool(splits.train or splits.validation or splits.heldout)
        if runs and dspy.settings.lm is not None:
            lms["task"] = dspy.settings.lm

        def ask() -> None:
            if runs and not lms_of(self.task.student):
                raise ArgumentValueError("lm", None, "is required: no LM answers", _NO_LM)
            probe(lms)

        with suppress(BudgetReached):  # the next effect raises it again
            await self.effects.work("probe", EffectPlace("probe"), "task", "probe", ask)

    async def _try_rows(self) -> None:
        """Run one row of each split, and warn of what it raises or changes.

        The budget counts them when the validation and the first update ask for them.
        """
        if not self.task.settings.validation.probe:
            return
        effects, seed = self.effects, self.task.seed
        rows = [(row, EffectPlace("validation", -1)) for row in self.compared[:1]]
        if self.first is not None and effects.purse.room != 0 and not effects.purse.grants:
            # Of a limited cost the student's validation has its share first.
            rows.append((self.first, EffectPlace("train", 0)))
        program, metric = effects.programs.of(seed), effects.metric
        before = fingerprints(program, metric)["program"]
        rollouts = [effects.rollout(seed, row, place, counted=False) for row, place in rows]
        for rollout in await asyncio.gather(*rollouts, return_exceptions=True):
            if isinstance(rollout, BudgetReached):
                continue  # the next effect raises it again
            if isinstance(rollout, BaseException):
                raise rollout
            self._check_usage(rollout)
            if rollout.failed_in in ("program", "metric"):
                error = effects.texts.error(str(rollout.error))
                effects.warn(
                    f"The {rollout.failed_in} raised on the first row that was tried: {error}"
                )
        if fingerprints(program, metric)["program"] != before:
            effects.warn(
                "A rollout changed the program itself, which other threads run at the same moment:"
                " its answers may depend on the order of the rows. Keep such state in local"
                " variables of forward."
            )

    def _check_usage(self, rollout: Rollout) -> None:
        """Refuse a limit on tokens or dollars where a service does not say what calls take."""
        settings, purse = self.task.settings, self.effects.purse
        for usage in rollout.usage if purse.by_tokens else ():
            price = price_of(usage.model, settings.costs.prices)
            is_free = price is not None and price.prompt == price.completion == 0
            is_counted = usage.prompt_tokens or (is_free and purse.limits.tokens is None)
            if not is_counted and usage.calls > usage.errors + usage.cached:
                raise ArgumentValueError(
                    "budget",
                    settings.budget,
                    f"cannot be held: the service of {usage.model} reports no tokens",
                    "Limit what can be counted, such as Budget(calls=…, rollouts=…)",
                )


async def _beside(*works: Awaitable[None]) -> None:
    """Carry out works at once. Of those that fail the first in their order counts."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        for task in tasks:
            await task
    finally:
        await cancel(*tasks)
