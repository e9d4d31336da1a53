"""Scans of parents and minibatches that begin before gepa's loop asks what was learned."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future

from combee_dspy.engine.forecast import Coming
from combee_dspy.engine.lost import behind, joined_lost
from combee_dspy.engine.scanning import Scanner
from combee_dspy.engine.settings import Settings
from combee_dspy.engine.state import RunState
from combee_dspy.engine.streaming import Guess, HeldEvents, Stream, StreamKey, Streams
from combee_dspy.records import Rollout
from combee_dspy.strategies import PredictFn

__all__ = ["EarlyScans", "Hears", "place_of"]

Hears = Callable[[int, Rollout], None]
"""Takes in a rollout of a minibatch by its position, in any order and from any thread."""


class EarlyScans:
    """Opens scans while their rollouts run, and settles them once it is known who asks for them.

    Owned by the thread that runs gepa's loop. It knows nothing of how rollouts are bought.

    Args:
        settings: The run's settings.
        state: The run's state: what waits to be rescued, and how much was read.
        scanner: Begins scans.
        streams: Keeps them.
        predict: Makes the way to the LM, at a temperature or at the LM's own.
    """

    def __init__(
        self,
        settings: Settings,
        state: RunState,
        scanner: Scanner,
        streams: Streams,
        predict: Callable[[float | None], PredictFn],
    ) -> None:
        self._settings = settings
        self._state = state
        self._scanner = scanner
        self._streams = streams
        self._predict = predict

    @property
    def reading(self) -> int:
        """Shards of the scans that somebody is sure to ask for."""
        return sum(self.reads(one.key, one.components) for one in self._streams.certain())

    @property
    def guessed_reads(self) -> int:
        """Shards that may be read on a guess."""
        return sum(one.guess.reads for one in self._streams.guesses() if one.guess is not None)

    def reads(self, key: StreamKey, components: Sequence[str] | None) -> int:
        """Return how many shards the scans of a minibatch alone read: what a guess of them is counted as."""
        return self._scanner.reads(len(key[1])) * len(components or ())

    def hears(self, coming: Coming, key: StreamKey) -> Hears | None:
        """Return what hears a minibatch's rollouts, its scans begun; ``None`` where none can begin yet.

        What it has heard before changes nothing.
        """
        stream = self._streams.get(key)
        return self._open(coming, key) if stream is None else self._streams.hears(stream)

    def guess(self, coming: Coming, key: StreamKey, reads: int) -> Hears | None:
        """Begin the scans of a minibatch that nobody may ever ask for; ``None`` where they have begun, or cannot.

        Args:
            coming: The parent and the minibatch.
            key: Their key.
            reads: How many shards may be read before the guess is known to be right.
        """
        return self._open(coming, key, reads) if reads > 0 and self._streams.get(key) is None else None

    def settle(self, drawn: Mapping[StreamKey, int]) -> None:
        """Confirm the guesses that were right, and drop the others.

        Args:
            drawn: The iterations that ask, by what they ask for.
        """
        for stream in self._streams.guesses():
            # A merge moves what was drawn to the iteration after: a scan's chance and events are its iteration's.
            if drawn.get(stream.key) == stream.iteration and self._offers_now(stream):
                stream.confirm()
                for component in stream.components:
                    self._state.lost.pop(component, None)
        self._drop(lambda stream: stream.guess is not None)

    def finish(self, iteration: int) -> None:
        """End an iteration: what its scans were to rescue and did not read waits on."""
        for stream in self._drop(lambda stream: stream.iteration <= iteration):
            if stream.guess is not None:
                continue
            if any(map(stream.used, stream.components)):
                # Of what a merge has put off, how much was read by now is a matter of time.
                self._state.reads += stream.submitted
            for component in (name for name in stream.components if not stream.used(name)):
                waiting = self._state.lost.get(component, ())
                self._state.lost[component] = joined_lost(stream.rescued(component), waiting)

    def close(self) -> list[Future[None]]:
        """Drop everything, and return the reads that still run."""
        dropped = self._drop(lambda stream: True)
        self._streams.close()
        return [read for stream in dropped for read in stream.running]

    def _drop(self, unwanted: Callable[[Stream], bool]) -> list[Stream]:
        """Drop streams; what was a guess until now is counted, as planned rather than as far as it came."""
        dropped = self._streams.drop(unwanted)
        # What a run buys next must not depend on time.
        self._state.wasted_reads += sum(one.guess.reads for one in dropped if one.guess is not None)
        return dropped

    def _offers_now(self, stream: Stream) -> bool:
        """Whether a stream that was opened on a guess offers again what it would if it were opened now."""
        for component in stream.components:
            again = self._state.lost.get(component, ()) if self._settings.rescue else ()
            if stream.rescued(component) != behind(len(stream.key[1]), stream.key[1], again):
                return False
        return True

    def _open(self, coming: Coming, key: StreamKey, guessed: int | None = None) -> Hears | None:
        if coming.components is None or not self._teaches(coming.operators):
            return None
        schedule = self._settings.diversity.temperature
        if guessed is not None and schedule is not None:
            # It follows from how this iteration ends.
            return None
        predict = self._predict(None if schedule is None else schedule.temperature(coming.iteration, self._state.stale))
        guess = None if guessed is None else Guess(guessed, HeldEvents(self._scanner.emit))
        place = place_of(coming.number)
        readings = {}
        # One group offers again what was lost, the first; of a guess it is taken only when the guess was right.
        others = () if guessed is None else self._streams.guesses()
        offered = {component for one in others for component in one.components}
        for component in coming.components:
            again = self._state.lost.get(component, ()) if self._settings.rescue and component not in offered else ()
            rescued = behind(len(key[1]), key[1], again)
            scan = self._scanner.begin(
                coming.candidate,
                component,
                predict,
                iteration=coming.iteration,
                place=place,
                size=len(key[1]) + len(rescued),
                emit=None if guess is None else guess.events,
            )
            if scan is not None:
                if guessed is None:
                    self._state.lost.pop(component, None)
                readings[component] = (scan, rescued)
        if not readings:
            return None
        enough = self._settings.perfect_score if self._settings.skip_perfect_score else None
        record = functools.partial(self._scanner.record, self._scanner.program(coming.candidate), coming.iteration)
        stream = Stream(key, coming.iteration, readings, record, enough, self._streams.readers, guess=guess)
        return self._streams.open(stream)

    def _teaches(self, operators: tuple[int, ...] | None) -> bool:
        known = self._settings.operators
        if operators is None:
            return all(operator.needs_lessons for operator in known) or (
                (self._settings.children or len(known)) >= len(known)
                and any(operator.needs_lessons for operator in known)
            )
        return any(known[position].needs_lessons for position in operators)


def place_of(number: int) -> str:
    """Return what tells a parent and a minibatch apart from others in the iteration."""
    return f"group {number}"
