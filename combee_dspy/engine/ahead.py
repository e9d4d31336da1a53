"""Rollouts that were started before anybody asked for them."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field

from combee_dspy.engine.announcing import Said
from combee_dspy.records import Rollout
from combee_dspy.rollouts import RolloutKey

__all__ = ["Ahead", "AheadEntry"]


@dataclass(slots=True)
class AheadEntry:
    """One rollout that was started early.

    Attributes:
        future: The rollout.
        candidate_id: The candidate's content hash.
        row: The example's row hash.
        purpose: What it was likely to be for.
        lane: What may be given up together.
        bought: Whether it costs anything that has not been told of; not where an earlier run had paid for it.
        held: Whether it is counted and has not begun.
        iteration: The iteration it is charged to, once it was given up.
        charged: Whether the budget has been told of it.
        said: Whether the run's listeners have been told of it.
    """

    future: Future[Rollout]
    candidate_id: str
    row: str
    purpose: str
    lane: str
    bought: bool = True
    held: bool = False
    iteration: int = 0
    charged: bool = False
    said: Said = field(default_factory=Said)


class Ahead:
    """What was started early and has not been asked for yet.

    Owned by the thread that runs gepa's loop. An entry leaves when somebody asks for its
    rollout (:meth:`take`), or when it is given up. Then it is cancelled if it has not started, and charged to
    the budget even so: whether it could be stopped in time is a matter of time, and what a run
    buys next must not depend on that.
    """

    def __init__(self) -> None:
        self._open: dict[RolloutKey, AheadEntry] = {}
        self._given_up: dict[RolloutKey, AheadEntry] = {}

    def get(self, key: RolloutKey) -> AheadEntry | None:
        """Return the entry of a rollout that was started and that nobody has asked for yet, if there is one."""
        return self._open.get(key)

    def was_given_up(self, key: RolloutKey) -> bool:
        """Return whether a rollout was started, given up, and not asked for since."""
        return key in self._given_up

    def add(self, key: RolloutKey, entry: AheadEntry) -> None:
        """Note a rollout that was started early.

        One that had been given up stays charged: whether it was cancelled in time, and is bought again, is a
        matter of time.
        """
        before = self._given_up.pop(key, None)
        if before is not None:
            entry.said = before.said
            entry.charged = before.charged
            entry.bought = entry.bought or before.bought
        self._open[key] = entry

    def take(self, key: RolloutKey) -> AheadEntry | None:
        """Return the entry of a rollout that is asked for now, if it was started early."""
        return self._open.pop(key, None) or self._given_up.pop(key, None)

    def open_in(self, *lanes: str) -> int:
        """Return how many rollouts of some lanes nobody has asked for yet."""
        return len(self.waiting_in(*lanes))

    def waiting_in(self, *lanes: str) -> list[AheadEntry]:
        """Return the rollouts of some lanes that nobody has asked for yet."""
        return [entry for entry in self._open.values() if entry.lane in lanes]

    def settle(self, wanted: Callable[[AheadEntry], bool], into: str) -> None:
        """Note that what was started on a guess is going to be asked for.

        Args:
            wanted: Whether an entry is.
            into: The lane that these belong to now.
        """
        for entry in self._open.values():
            if wanted(entry):
                entry.lane = into

    def give_up(self, unwanted: Callable[[AheadEntry], bool], iteration: int) -> int:
        """Cancel what is not wanted any more; return how many rollouts are to be charged.

        Args:
            unwanted: Whether an entry is to be given up.
            iteration: The iteration that it is charged to.
        """
        gone = [key for key, entry in self._open.items() if unwanted(entry)]
        charged = 0
        for key in gone:
            entry = self._open.pop(key)
            if entry.bought:
                entry.future.cancel()
            charged += not entry.charged
            entry.iteration, entry.charged = iteration, True
            self._given_up[key] = entry
        return charged

    def ended(self) -> list[AheadEntry]:
        """Return what was given up, was bought and has ended since, once. What failed is left out."""
        ended = []
        for entry in self._given_up.values():
            if entry.bought and entry.future.done():
                entry.bought = False
                ended.append(entry)
        return [one for one in ended if not one.future.cancelled() and one.future.exception() is None]

    def running(self) -> list[Future[Rollout]]:
        """Return what was given up and still runs."""
        return [entry.future for entry in self._given_up.values() if entry.bought and not entry.future.done()]
