"""What is begun before gepa's loop asks for it."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass

import dspy

from combee_dspy.engine.ahead import AheadEntry
from combee_dspy.engine.allowance import Allowance
from combee_dspy.engine.candidates import Candidate, candidate_id
from combee_dspy.engine.evaluator import Begun, Evaluator, Standing
from combee_dspy.engine.lost import behind, joined_lost
from combee_dspy.engine.scanning import Scanner
from combee_dspy.engine.screening import ScreenPlan
from combee_dspy.engine.settings import Settings
from combee_dspy.engine.state import RunState
from combee_dspy.engine.streaming import Guess, HeldEvents, Stream, StreamKey, Streams
from combee_dspy.engine.tickets import first_of
from combee_dspy.events import Event
from combee_dspy.records import Rollout
from combee_dspy.strategies import PredictFn

__all__ = ["Coming", "Foresight", "place_of"]

Hears = Callable[[int, Rollout], None]

# Lanes of rollouts that are started early: on a guess, or for an iteration that has been drawn.
_SCREENED = "validation of a child on its screen"
_GUESSED = "rollouts of a likely parent"
_DRAWN = "rollouts of the next iteration"


@dataclass(frozen=True, slots=True)
class Coming:
    """A parent and a minibatch that gepa's loop is about to ask for.

    Attributes:
        iteration: The iteration that asks.
        number: Position of the minibatch in it.
        candidate: The parent.
        rows: The minibatch.
        components: What its children will edit, where that is known.
        operators: Who makes them, by position; ``None`` where that is not known yet.
    """

    iteration: int
    number: int
    candidate: Candidate
    rows: tuple[dspy.Example, ...]
    components: tuple[str, ...] | None
    operators: tuple[int, ...] | None = None


class Foresight:
    """Begins early what a run is going to need, and what it is likely to need.

    - Scans begin while their rollouts run (see :class:`~combee_dspy.engine.streaming.Stream`).
    - The first minibatch runs before the seed's validation, which nobody reads until a child is compared with
      it: as many rollouts as that validation has at once; the rest of it begins, and reading, when a rollout of
      either has shown that program and metric work.
    - The next minibatch runs on a single child, and is read, from the moment that the child is there, as a guess:
      beside its screen and its validation. Where that is too much for a guess, or where there are several
      children, it begins on the likeliest when that is known. A child's validation begins beside its screen, as
      far as guesses go, and in full once the screen cannot refuse it any more.
    - Guesses together risk no more than ``speculation`` of the calls, rollouts and reads, that the epoch under way
      will have taken in the end if children are validated as often as so far. Where the first are refused, it takes
      less, and one minibatch may be too many. Rollouts that were bought for nothing are charged to the budget.
    - With ``staleness=1`` the next iteration's minibatch runs beside this one, on a parent chosen
      before this one's children were known. A single child whose screen is certain is then the likely parent of the
      iteration after that, and its minibatch begins as a guess.

    Nothing here changes a result: rollouts are joined through the run's memo, lessons by
    position. Owned by the thread that runs gepa's loop.

    Args:
        settings: The run's settings.
        state: The run's state.
        evaluator: Buys rollouts.
        scanner: Begins scans.
        streams: Keeps them.
        predict: Makes the way to the LM, at a temperature or at the LM's own.
        validation: The validation examples.
        allowance: Says how much may be begun early.

    Attributes:
        state: As given.
    """

    def __init__(  # noqa: PLR0913 - one wiring point, called once per run
        self,
        settings: Settings,
        state: RunState,
        evaluator: Evaluator,
        scanner: Scanner,
        streams: Streams,
        predict: Callable[[float | None], PredictFn],
        *,
        validation: Sequence[dspy.Example],
        allowance: Allowance,
    ) -> None:
        self._settings = settings
        self.state = state
        self._evaluator = evaluator
        self._scanner = scanner
        self._streams = streams
        self._predict = predict
        self._validation = list(validation)
        self._allowance = allowance
        # Both sample the rollouts that a metric scores: which they have seen must not be a matter of time.
        self._waits = settings.calibration is not None or settings.ceiling is not None
        # Where somebody else than the screen may refuse a child, or choose its validation, a verdict is no certainty.
        others = {"acceptance_criterion", "selection_strategy", "val_evaluation_policy"} & settings.gepa_kwargs.keys()
        self._sure = not settings.anchors and not others
        self._coming: dict[StreamKey, Coming] = {}
        self._first: Callable[[], Sequence[Coming]] | None = None
        self._second: Callable[[], Sequence[Coming]] | None = None
        self._next: Callable[[Candidate], Sequence[Coming]] | None = None

    def watch(
        self,
        first: Callable[[], Sequence[Coming]] | None,
        second: Callable[[], Sequence[Coming]] | None,
        following: Callable[[Candidate], Sequence[Coming]] | None,
    ) -> None:
        """Say how to know what comes; ``None`` where that is not known.

        Args:
            first: Returns the first iteration's minibatches, before there is a state of gepa's.
            second: Returns the second one's as they are likely to be, with the seed as parent.
            following: Returns what the next iteration that has not been drawn is likely to draw for a parent.
        """
        self._first, self._second, self._next = first, second, following

    def expect(self, coming: Sequence[Coming], following: Sequence[Coming] = ()) -> None:
        """Note what is about to be asked for, give up what was begun for another guess, and begin what follows.

        Args:
            coming: What this iteration asks for.
            following: What the next one will, where that has been drawn.
        """
        self._coming = {self._key(one): one for one in coming}
        drawn = {self._key(one): one.iteration for one in (*following, *coming)}
        wanted = {(key[0], row) for key in drawn for row in key[1]}
        self._give_up(lambda entry, row: entry.lane in (_GUESSED, _DRAWN) and (entry.candidate_id, row) not in wanted)
        self._evaluator.ahead.settle(lambda entry, row: entry.lane == _GUESSED, _DRAWN)
        for key, iteration in drawn.items():
            stream = self._streams.get(key)
            # A merge moves what was drawn to the iteration after: a scan's chance and events are its iteration's.
            right = stream is not None and stream.guessed is not None and stream.iteration == iteration
            if stream is not None and right and self._offers_now(stream):
                stream.confirm()
                for component in stream.components:
                    self.state.lost.pop(component, None)
        self._drop(lambda stream: stream.guessed is not None)
        if following and not self._waits:
            self._start(following)

    def affords_another(self) -> bool:
        """Return whether the budget can pay for an iteration beyond this one."""
        return self._allowance.affords_another()

    def hears(self, items: Sequence[tuple[Candidate, Sequence[dspy.Example]]]) -> list[Hears | None]:
        """Begin the scans of parents that are about to run; return what hears each one's rollouts."""
        found: list[Hears | None] = []
        for candidate, batch in items:
            key = (candidate_id(candidate), tuple(self._evaluator.row_hash(row) for row in batch))
            coming = self._coming.get(key)
            found.append(None if coming is None else self._heard(coming, key))
        return found

    def before_seed(self) -> None:
        """Run the first minibatch, with no more rollouts than the seed's validation would have at once.

        Nothing is read yet: the program may be broken.
        """
        if self._first is None or self._waits or not self._allowance.affords_first():
            return
        items = [(one.candidate, one.rows) for one in self._first()]
        begun = self.state.clock()
        if self._evaluator.start_ahead(
            items, purpose="parent", lane=_DRAWN, standing="certain", iteration=1, most=len(self._validation)
        ):
            self.state.begun_early = begun

    def beside_seed(self, begun: Begun) -> None:
        """Begin the rest of the first iteration, once a rollout has gone well.

        Raises:
            InfrastructureError: One failed for a reason outside the program: what was begun early was certain to be
                asked for, and behind it the others would only fail in turn.
        """
        if self._first is None or self._waits or not self._allowance.affords_first():
            return
        if not self._evaluator.one_goes_well(begun, _DRAWN):
            return
        self._start(self._first())
        for entry in self._evaluator.ahead.waiting_in(_DRAWN):
            entry.future.add_done_callback(self._note_first)
        if self._settings.staleness:
            self._run_second(sum(len(one.rows) for one in self._first()))

    def _note_first(self, future: Future[Rollout]) -> None:
        self.state.ran_early = self.state.clock()

    def _run_second(self, drawn: int) -> None:
        """Run the second minibatch on the seed, whose children it may not wait for; it is read once it has been drawn.

        Args:
            drawn: Examples of the first.
        """
        coming = [] if self._second is None else self._second()
        if coming and self._allowance.affords_second(drawn, sum(len(one.rows) for one in coming)):
            items = [(one.candidate, one.rows) for one in coming]
            # After the seed's validation, without which the first children are not compared.
            self._evaluator.start_ahead(items, purpose="parent", lane=_DRAWN, iteration=2)

    def beside_screen(self, children: Sequence[Candidate]) -> None:
        """Begin what follows on the screens of children, as far as the share of guesses goes."""
        if len(children) == 1 and self._sure and not self._settings.staleness:
            # Reads follow on the minibatch, and nothing on the validation: where both are guesses, it goes first.
            self._guess(children[0], whole=True)
        # Row by row over all children: each one's first rows are as likely to be needed.
        items = [(child, [row]) for row in self._validation for child in children]
        self._evaluator.start_ahead(
            items, purpose="validation", lane=_SCREENED, iteration=self.state.iteration, most=self._room(screened=True)
        )

    def once_certain(self, children: Sequence[Candidate], plans: Sequence[ScreenPlan | None], begun: Begun) -> None:
        """Wait for verdicts, and begin a child's validation once nothing on its screen can refuse it any more.

        That is no guess: the screen's last rollouts are waited for only because their scores are
        reported. Returns when every verdict is certain. Where there is one child, the minibatch that it is the likely
        parent of begins then, as far as the share of guesses goes.

        Args:
            children: The children, in the order of ``begun``.
            plans: Their screens; ``None`` for a child that runs on its whole minibatch.
            begun: Their rollouts.
        """
        if self._waits or not self._sure:
            return
        open_screens = {
            number: plan for number, plan in enumerate(plans) if plan is not None and len(plan.positions) > 1
        }
        waiting = {ticket.future for number in open_screens for ticket in begun.pending[number]}
        while waiting and open_screens:
            waiting -= first_of(waiting, self._evaluator.look)
            for number in [*open_screens]:
                scores = [_score(ticket.future) for ticket in begun.pending[number]]
                if open_screens[number].surely_passes(scores):
                    del open_screens[number]
                    self._settle_validation(candidate_id(children[number]))
                    items = [(children[number], self._validation)]
                    self._evaluator.start_ahead(items, purpose="validation", lane=_DRAWN)
                    if len(children) == 1:
                        # Without staleness everything waits for the minibatch rather than for the validation.
                        self._guess(children[0], standing="guess" if self._settings.staleness else "likely")

    def beside_validation(self, children: Sequence[Candidate]) -> None:
        """Run the next minibatch on the likeliest parent, the first, beside its validation."""
        if children:
            self._guess(children[0])

    def _guess(self, parent: Candidate, *, whole: bool = False, standing: Standing = "guess") -> None:
        """Run the next minibatch that is not drawn yet on its likely parent.

        Args:
            parent: The likely parent.
            whole: Whether to leave it where guesses do not reach for all of its rollouts.
            standing: ``"likely"`` goes before the validation of its parent.
        """
        if self._next is None or self._allowance.over():
            return
        coming = self._next(parent)
        room = left = self._room(screened=whole)
        if whole and sum(len(one.rows) for one in coming) > room:
            return
        hears: list[Hears | None] = []
        for one in coming:
            key = self._key(one)
            # A scan waits for its whole minibatch: of one that is not run in full it would not read much earlier.
            left -= len(key[1])
            reads = max(0, min(_reads(key, one.components), left))
            opened = key not in self._streams and reads > 0 and self._settings.memoize
            left -= reads
            hears.append(self._open(one, key, guessed=reads) if opened else None)
            room -= reads if hears[-1] is not None else 0
        items = [(one.candidate, one.rows) for one in coming]
        iteration = coming[0].iteration if coming else 0
        self._evaluator.start_ahead(
            items, purpose="parent", lane=_GUESSED, iteration=iteration, standing=standing, most=room, ready=hears
        )

    def finish(self, iteration: int, gone: Sequence[str]) -> None:
        """End an iteration: what its scans were to rescue and did not read waits on.

        Args:
            iteration: Which.
            gone: Its children that were not validated, by content hash.
        """
        self.refused(gone)
        for stream in self._drop(lambda stream: stream.iteration <= iteration):
            if stream.guessed is not None:
                continue
            if any(map(stream.used, stream.components)):
                # Of what a merge has put off, how much was read by now is a matter of time.
                self.state.reads += stream.submitted
            for component in (name for name in stream.components if not stream.used(name)):
                waiting = self.state.lost.get(component, ())
                self.state.lost[component] = joined_lost(stream.rescued(component), waiting)

    def refused(self, gone: Sequence[str]) -> None:
        """Give up the validation of children that will not have one, by content hash."""
        identities = frozenset(gone)
        self._give_up(lambda entry, row: entry.purpose == "validation" and entry.candidate_id in identities)

    def close(self, *, failed: bool = False) -> None:
        """Give up everything that is left, and wait for what cannot be stopped, so that it is in the books.

        Args:
            failed: Whether the run ends by an error. Then reads are left to the session, which cancels what waits
                when it is closed: one may wait for a slot that another run holds.
        """
        dropped = self._drop(lambda stream: True)
        self._streams.close()
        self._give_up(lambda entry, row: True)
        # Only their end is of interest: what they raise was for nobody.
        if not failed:
            wait([read for stream in dropped for read in stream.running])
        wait(self._evaluator.ahead.running())
        self._evaluator.settle_ahead()

    def _start(self, coming: Sequence[Coming]) -> None:
        if not self._settings.memoize:
            # Nothing could be joined, and a stream that nobody feeds would only stand in the way.
            return
        hears = [self._heard(one, self._key(one)) for one in coming]
        items = [(one.candidate, one.rows) for one in coming]
        iteration = coming[0].iteration if coming else 0
        self._evaluator.start_ahead(
            items, purpose="parent", lane=_DRAWN, iteration=iteration, standing="certain", ready=hears
        )

    def _drop(self, unwanted: Callable[[Stream], bool]) -> list[Stream]:
        """Drop streams; what was a guess until now is counted, as planned rather than as far as it came."""
        dropped = self._streams.drop(unwanted)
        # What a run buys next must not depend on time.
        self.state.wasted_reads += sum(one.guessed or 0 for one in dropped)
        return dropped

    def _offers_now(self, stream: Stream) -> bool:
        """Whether a stream that was opened on a guess offers again what it would if it were opened now."""
        for component in stream.components:
            again = self.state.lost.get(component, ()) if self._settings.rescue else ()
            if stream.rescued(component) != behind(len(stream.key[1]), stream.key[1], again):
                return False
        return True

    def _heard(self, coming: Coming, key: StreamKey) -> Hears | None:
        """Return what hears a minibatch's rollouts; what it has heard before changes nothing."""
        stream = self._streams.get(key)
        return self._open(coming, key) if stream is None else self._streams.hears(stream)

    def _open(self, coming: Coming, key: StreamKey, *, guessed: int | None = None) -> Hears | None:
        """Begin the scans of a parent and a minibatch; ``None`` where none can begin yet.

        Args:
            coming: Which.
            key: Its key.
            guessed: Of a guess, how many shards may be read before it is known to be right.
        """
        if coming.components is None or not self._teaches(coming.operators):
            return None
        schedule = self._settings.diversity.temperature
        if guessed is not None and schedule is not None:
            # It follows from how this iteration ends.
            return None
        predict = self._predict(None if schedule is None else schedule.temperature(coming.iteration, self.state.stale))
        place = place_of(coming.number)
        readings = {}
        held: HeldEvents | None = None

        def keep(emit: Callable[[Event], None]) -> HeldEvents:
            nonlocal held
            held = held or HeldEvents(emit)
            return held

        # One group offers again what was lost, the first; of a guess it is taken only when the guess was right.
        others = () if guessed is None else self._streams.guesses()
        offered = {component for one in others for component in one.components}
        for component in coming.components:
            again = self.state.lost.get(component, ()) if self._settings.rescue and component not in offered else ()
            rescued = behind(len(key[1]), key[1], again)
            scan = self._scanner.begin(
                coming.candidate,
                component,
                predict,
                iteration=coming.iteration,
                place=place,
                size=len(key[1]) + len(rescued),
                through=None if guessed is None else keep,
            )
            if scan is not None:
                if guessed is None:
                    self.state.lost.pop(component, None)
                readings[component] = (scan, rescued)
        if not readings:
            return None
        enough = self._settings.perfect_score if self._settings.skip_perfect_score else None
        record = functools.partial(self._scanner.record, self._scanner.program(coming.candidate), coming.iteration)
        guess = None if guessed is None else Guess(guessed, held)
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

    def _key(self, coming: Coming) -> StreamKey:
        return candidate_id(coming.candidate), tuple(self._evaluator.row_hash(row) for row in coming.rows)

    def _room(self, *, screened: bool = False) -> int:
        """Return how many more calls may be started on a guess (see :meth:`Allowance.room`)."""
        if self._waits:
            return 0
        ahead = self._evaluator.ahead
        return self._allowance.room(
            certain=ahead.open_in(_DRAWN),
            guesses=ahead.open_in(_SCREENED, _GUESSED),
            reading=sum(_reads(one.key, one.components) for one in self._streams.certain()),
            guessed_reads=sum(one.guessed or 0 for one in self._streams.guesses()),
            screened=screened,
        )

    def _settle_validation(self, identity: str) -> None:
        """Note that a child's validation, begun as a guess, is certain."""
        self._evaluator.ahead.settle(
            lambda entry, row: entry.candidate_id == identity and entry.lane == _SCREENED, _DRAWN
        )

    def _give_up(self, unwanted: Callable[[AheadEntry, str], bool]) -> None:
        gone = self._evaluator.ahead.give_up(unwanted, self.state.iteration)
        self.state.unbilled += gone
        self.state.wasted += gone
        self._evaluator.settle_ahead()


def _score(future: Future[Rollout]) -> float | None:
    """Return a rollout's score; ``None`` where there is none yet, or none to be had."""
    if not future.done() or future.cancelled() or future.exception() is not None:
        return None
    return future.result().score


def _reads(key: StreamKey, components: Sequence[str] | None) -> int:
    """Return how many shards a scan reads by the paper's plan, ⌊√n⌋ a component: what a guess of one is counted as."""
    return math.isqrt(len(key[1])) * len(components or ())


def place_of(number: int) -> str:
    """Return what tells a parent and a minibatch apart from others in the iteration."""
    return f"group {number}"
