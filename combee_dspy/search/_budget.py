"""What a run may still buy: promised before it is bought, so that no limit is passed."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from math import inf

from combee_dspy.records import CallUsage
from combee_dspy.search._lost import Lost, describe_doubts, describe_held
from combee_dspy.search._rollout_budget import RolloutBudget
from combee_dspy.search._spent import COUNTED, EffectKind, Spent, at_most
from combee_dspy.stopping import Limits

__all__ = ["BudgetReached", "Purse", "at_most"]


class BudgetReached(Exception):  # noqa: N818 - ends an update, never leaves the search
    """A limit leaves no room for the next effect; the message says which."""


_READING = 2  # what an update costs, readings included, as a multiple of its rollouts
_GROWTH = (
    2  # texts grow as they learn, and with them what is in flight may cost more than all before it
)


class Purse(RolloutBudget):
    """Promises rollouts to updates before they begin, and costs to effects before they are sent.

    What an effect will cost is known afterwards only, so each is granted for the most that it
    may cost, and a run ends where that passes a limit with nothing else in flight. Where LMs
    tell how long their answers may be (``max_tokens``), a call costs at most that and a token
    for each byte of what is known of its prompt; where they do not, an effect may cost as much
    as the dearest of its kind so far, and one in flight twice as much. It may make as many calls
    as any of its kind so far. An effect of a kind of which no service has answered one may cost as
    much as the dearest of any kind: its own LM may be new as well, and the length that a model
    could answer at most would let no run begin. No more than one more than have ended are in
    flight of such a kind. What would pass a limit beside what is in flight waits.

    What an effect is granted is on disk before it is sent, so one that was in flight when a run was
    killed is counted for that for as long as its call may be running; then for what those of its
    kind cost on average, since a kill must not eat a budget. So is a call that got no answer that
    could be read, though its service may have charged for it. :meth:`doubts` says how far the limit
    may be passed by what such effects and calls have cost beyond that.

    A call that is sent again asks first (:meth:`refusal`), since what failed is a call, too.

    So what passes a limit is what nobody knows beforehand: more calls than any effect of the
    kind has made, what tools and images add to a prompt, and where LMs tell nothing, what an effect
    costs beyond the dearest so far. Lives on the search's loop.

    Args:
        limits: The hard limits.
        earlier: What each effect of earlier parts of the run has cost, with its kind.
        lost: Those that were in flight when an earlier part was killed, and answers that never
            came: they may have been paid.
        seconds: How long they took.
        charged: Whether limits on cost and time are held; not where an earlier run's decisions are
            taken again.

    Attributes:
        by_tokens: Whether what a call may cost at most matters.
        limits_cost: Whether calls, tokens, dollars or GPU-seconds are limited.
        grants: Whether effects may have to wait for a grant, or be refused one: whether cost or
            time is limited.
        reserve: Seconds at the end of the run that are not the search's: for the held-out set.
    """

    def __init__(
        self,
        limits: Limits,
        earlier: Iterable[tuple[str, Sequence[CallUsage]]] = (),
        lost: Iterable[Lost] = (),
        seconds: float = 0.0,
        *,
        charged: bool = True,
    ) -> None:
        super().__init__(limits)
        self._known = Spent()
        self._kinds: defaultdict[str, EffectKind] = defaultdict(EffectKind)
        for kind, usage in earlier:
            self._kinds[kind].land(usage)
            self._known.add(usage)
        # Answers that never came are added up, rollouts' and others': there may be many.
        self._lost: list[Lost] = []
        for effect in lost:
            self._note(effect)
        self._repeats = 0  # of calls that failed, sent and not in the books yet
        self._lock = threading.Lock()
        self._charged = charged
        self.by_tokens = charged and (limits.tokens, limits.dollars) != (None, None)
        self.limits_cost = charged and any(getattr(limits, name) is not None for name in COUNTED)
        self.grants = self.limits_cost or (charged and limits.seconds is not None)
        self.reserve = 0.0
        self._turn = asyncio.Lock()
        self._began = time.monotonic() - seconds
        self._landing: asyncio.Future[None] | None = None

    @property
    def spent(self) -> Spent:
        """What effects have cost so far, and what those likely have of which nobody knows."""
        spent = replace(self._known)
        for lost in self._lost:
            spent.lose(lost.charged(self._kinds))
        return spent

    @property
    def seconds(self) -> float:
        """Wall-clock seconds of the run, those of its earlier parts included."""
        return time.monotonic() - self._began

    def is_short(self, rollouts: int) -> bool:
        """Return whether updates under way, and another with so many rollouts, may pass a limit on
        cost together.

        A limit that is reached with several updates in flight ends them all: what they have read is
        paid for, and no text of theirs is validated.
        """
        rollout, purse = self._kinds["rollout"], self.spent
        # Whole promises, since what was run has yet to be read; at the start the student's
        # validation.
        under_way = sum(self._promised[step] for step in self._under_way())
        coming = rollouts + under_way + max(0, self._promised.get(-1, 0) - rollout.ended)
        for name in COUNTED:
            limit, spent = getattr(self.limits, name), getattr(purse, name)
            if limit is None or spent is None:
                continue
            # Its readings cost as much again as its rollouts until this run shows what they cost.
            dearest = rollout.dearest[name] if rollout.ended else self._most("rollout", name)
            each = max(_READING * dearest, spent / rollout.ended if rollout.ended else 0.0)
            if spent + coming * each > limit:
                return True
        return False

    async def grant(
        self, kind: str, told: Mapping[str, float] | None = None
    ) -> Mapping[str, float]:
        """Grant one effect of a kind before it is sent, as soon as what is in flight leaves room
        for it.

        Args:
            kind: Its kind.
            told: The ``tokens`` and ``dollars`` that one of its LM calls may cost at most, as far
                as that is known.

        Returns:
            What it may cost, of what is limited.

        Raises:
            BudgetReached: A limit on cost or time leaves no room for it.
        """
        with self._lock:  # other threads read the kinds
            own = self._kinds[kind]
            for name, most in (told or {}).items():
                own.told[name] = max(own.told[name], most)
        if self.grants:
            async with (
                self._turn
            ):  # who asked first is granted first: the student's validation before all else
                while not self._admitted(kind):
                    if self._landing is None:
                        self._landing = asyncio.get_running_loop().create_future()
                    await asyncio.shield(self._landing)
        else:
            own.flying += 1
        return {name: self._most(kind, name) for name in self._limited()}

    def _limited(self) -> list[str]:
        return [
            name for name in COUNTED if self._charged and getattr(self.limits, name) is not None
        ]

    def _most(self, kind: str, name: str, growth: int = 1) -> float:
        """Return what an effect of a kind may cost at most."""
        dearest = max(other.dearest[name] for other in self._kinds.values())
        return self._kinds[kind].most(name, dearest, growth)

    def _flying(self, name: str, growth: int = 1) -> float:
        """Return what the effects in flight may cost at most."""
        flying = [(kind, state.flying) for kind, state in self._kinds.items() if state.flying]
        return sum(count * self._most(kind, name, growth) for kind, count in flying)

    def _admitted(self, kind: str) -> bool:
        with self._lock:
            if self._must_wait(kind):
                return False
            self._kinds[kind].flying += 1
            return True

    def lose(self, kind: str, key: str) -> Lost | None:
        """Count a call of an effect that got no answer that could be read, though its service may
        have charged for it. From any thread.

        Returns:
            What is counted; ``None`` where no limit asks.
        """
        names = [name for name in self._limited() if name in ("tokens", "dollars")]
        if not names:
            return None
        with self._lock:
            own = self._kinds[kind]
            most = {}
            for name in names:
                # An answer as long as its LM allows is possible, and none was like it.
                bound = own.dearest[name] if own.is_seen else self._most(kind, name)
                most[name] = min(own.told[name] or inf, _GROWTH * bound)
            lost = Lost(key, most, answers=1)
            self._note(lost)
        return lost

    def _note(self, lost: Lost) -> None:
        alike = next((other for other in self._lost if lost.joins(other)), None)
        if alike is not None:
            self._lost.remove(alike)
            lost = alike.joined(lost)
        self._lost.append(lost)

    def refusal(self, kind: str, calls: int) -> str:
        """Return why so many calls of an effect that failed may not be sent again; empty where they
        may, and are counted. From any thread.
        """
        with self._lock:
            spent = self.spent
            for name in self._limited():
                limit, used = getattr(self.limits, name), getattr(spent, name) or 0.0
                if name == "calls":
                    coming = self._repeats + self._flying(name) + calls
                else:
                    # What those in flight were granted pays for it, where what was lost leaves it.
                    coming = self._flying(name)
                if used + coming > limit:
                    unit = name.replace("_", " ")
                    return (
                        f"{used:g} of {limit:g} {unit} are spent, and sending again what failed"
                        " would pass the limit"
                    )
            self._repeats += calls
            return ""

    def in_time(self) -> None:
        """Hold the limit on time: for a grant, and again when an effect that may have queued for
        long gets its slot.

        Raises:
            BudgetReached: The time is over.
        """
        if self.left is not None and self.left <= self.reserve:
            raise BudgetReached(self.time_is_over())

    @property
    def left(self) -> float | None:
        """Seconds until the run has to end; ``None`` without a limit."""
        limited = self._charged and self.limits.seconds is not None
        return self.limits.seconds - self.seconds if limited else None  # type: ignore[operator]  # it is limited

    def keep_back(self, seconds: float) -> None:
        """Keep time for the held-out set: half of all at most.

        That is twice what it may take, and a second in which what is in flight may end.
        """
        if self.limits.seconds is not None:
            self.reserve = min(2 * seconds + 1.0, self.limits.seconds / 2)

    def time_is_over(self) -> str:
        """Return why nothing more may begin, in words."""
        seconds = f"{self.seconds:.2g}" if self.seconds < 10 else f"{self.seconds:.0f}"
        passed = f"{seconds} of {self.limits.seconds:g} seconds have passed"
        return (
            f"{passed}, and {self.reserve:.2g} are for the held-out set" if self.reserve else passed
        )

    def returned(
        self,
        kind: str,
        usage: Sequence[CallUsage],
        repeats: int = 0,
        booked: Sequence[CallUsage] = (),
    ) -> None:
        """Note what an effect that was granted has cost, calls among it that were sent again, and
        what of it :meth:`book` has noted already.
        """
        with self._lock:
            self._kinds[kind].flying -= 1
            self._kinds[kind].land((*booked, *usage))
            self._repeats -= repeats
            self._known.add(usage)
        if self._landing is not None:
            self._landing.set_result(None)
            self._landing = None

    def book(self, usage: Sequence[CallUsage], repeats: int) -> None:
        """Note what an attempt has cost whose effect goes on, calls among it that were sent
        again.
        """
        with self._lock:
            self._repeats -= repeats
            self._known.add(usage)

    def passed(self) -> list[str]:
        """Return by how much limits were passed, a sentence each: see :class:`Purse` for what may
        pass one.
        """
        spent = self.spent
        of = ((name, getattr(spent, name), getattr(self.limits, name)) for name in COUNTED)
        return [
            f"The budget of {limit:g} {name.replace('_', ' ')} was passed by {used - limit:g}:"
            " something cost more than was known beforehand."
            for name, used, limit in of
            if limit is not None and used is not None and used > limit
        ]

    def doubts(self) -> list[str]:
        """Return by how much limits may be passed by what nobody knows, a sentence each."""
        return describe_doubts(self._lost, self._kinds, self.limits, self.spent)

    def withdraw(self) -> None:
        """Cancel what waits to be granted."""
        if self._landing is not None:
            self._landing.cancel()
            self._landing = None

    def _must_wait(self, kind: str) -> bool:
        """Return whether an effect must wait for one that is in flight.

        Raises:
            BudgetReached: There is no room for it, whatever those in flight will cost.
        """
        self.in_time()
        own, spent = self._kinds[kind], self.spent
        for name in self._limited():
            limit, used = getattr(self.limits, name), getattr(spent, name)
            if name == "gpu_seconds":
                used = used or 0.0  # nobody has counted any yet
            if name == "calls":
                used += self._repeats
            if used is None:
                continue
            most = self._most(kind, name)
            if used + most > limit:
                text = (
                    f"{used:g} of {limit:g} {name.replace('_', ' ')} are spent, and the next would"
                    " pass the limit"
                )
                text = text if most == 0 else f"{text}: it may take {most:g}"
                raise BudgetReached(f"{text}{describe_held(self._lost, name)}")
            if not any(state.flying for state in self._kinds.values()):
                continue
            coming = self._most(kind, name, _GROWTH) + self._flying(name, _GROWTH)
            # What no service has answered yet may never be asked for one.
            if used + coming > limit or (not own.answered and own.flying > own.ended):
                return True
        return False
