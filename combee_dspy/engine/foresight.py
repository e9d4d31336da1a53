"""What is begun before gepa's loop asks for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait

import dspy

from combee_dspy.engine.ahead import AheadEntry
from combee_dspy.engine.allowance import Allowance
from combee_dspy.engine.candidates import Candidate, candidate_id
from combee_dspy.engine.early_scans import EarlyScans, Hears
from combee_dspy.engine.evaluator import Begun, Evaluator, Standing
from combee_dspy.engine.forecast import Coming, Forecast
from combee_dspy.engine.screening import ScreenPlan
from combee_dspy.engine.settings import Settings
from combee_dspy.engine.state import RunState
from combee_dspy.engine.streaming import StreamKey
from combee_dspy.engine.tickets import first_of
from combee_dspy.records import Rollout

__all__ = ["Foresight"]

# Lanes of rollouts that are started early: on a guess, or for an iteration that has been drawn.
_SCREENED = "validation of a child on its screen"
_GUESSED = "rollouts of a likely parent"
_DRAWN = "rollouts of the next iteration"


class Foresight:
    """Begins early what a run is going to need, and what it is likely to need.

    - Scans begin while their rollouts run (see :class:`~combee_dspy.engine.early_scans.EarlyScans`).
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
        scans: Reads minibatches while their rollouts run.
        validation: The validation examples.
        allowance: Says how much may be begun early.
    """

    def __init__(
        self,
        settings: Settings,
        state: RunState,
        evaluator: Evaluator,
        scans: EarlyScans,
        *,
        validation: Sequence[dspy.Example],
        allowance: Allowance,
    ) -> None:
        self._settings = settings
        self._state = state
        self._evaluator = evaluator
        self._scans = scans
        self._validation = list(validation)
        self._allowance = allowance
        # Calibration and ceiling sample the rollouts that a metric scores: which they have seen must not be a matter
        # of time. Without a memo nobody could join what was begun.
        self._waits = settings.calibration is not None or settings.ceiling is not None or not settings.memoize
        # Where somebody else than the screen may refuse a child, or choose its validation, a verdict is no certainty.
        others = {"acceptance_criterion", "selection_strategy", "val_evaluation_policy"} & settings.gepa_kwargs.keys()
        self._sure = not settings.anchors and not others
        self._coming: dict[StreamKey, Coming] = {}
        self._forecast: Forecast | None = None

    def watch(self, forecast: Forecast) -> None:
        """Say who knows what comes. Until then nothing is begun that was not drawn."""
        self._forecast = forecast

    def expect(self, coming: Sequence[Coming], following: Sequence[Coming] = ()) -> None:
        """Note what is about to be asked for, give up what was begun for another guess, and begin what follows.

        Args:
            coming: What this iteration asks for.
            following: What the next one will, where that has been drawn.
        """
        self._coming = {self._key(one): one for one in coming}
        drawn = {self._key(one): one.iteration for one in (*following, *coming)}
        wanted = {(key[0], row) for key in drawn for row in key[1]}
        self._give_up(lambda entry: entry.lane in (_GUESSED, _DRAWN) and (entry.candidate_id, entry.row) not in wanted)
        self._evaluator.ahead.settle(lambda entry: entry.lane == _GUESSED, _DRAWN)
        self._scans.settle(drawn)
        if following and not self._waits:
            self._start(following)

    def hears(self, items: Sequence[tuple[Candidate, Sequence[dspy.Example]]]) -> list[Hears | None]:
        """Begin the scans of parents that are about to run; return what hears each one's rollouts."""
        found: list[Hears | None] = []
        for candidate, batch in items:
            key = self._key_of(candidate, batch)
            coming = self._coming.get(key)
            found.append(None if coming is None else self._scans.hears(coming, key))
        return found

    def before_seed(self) -> None:
        """Run the first minibatch, with no more rollouts than the seed's validation would have at once.

        Nothing is read yet: the program may be broken.
        """
        begun = self._state.clock()
        if self._run(self._first(), lane=_DRAWN, standing="certain", most=len(self._validation)):
            self._state.begun_early = begun

    def beside_seed(self, begun: Begun) -> None:
        """Begin the rest of the first iteration, once a rollout has gone well.

        Raises:
            InfrastructureError: One failed for a reason outside the program: what was begun early was certain to be
                asked for, and behind it the others would only fail in turn.
        """
        first = self._first()
        if not first or not self._evaluator.one_goes_well(begun, _DRAWN):
            return
        self._start(first)
        for entry in self._evaluator.ahead.waiting_in(_DRAWN):
            entry.future.add_done_callback(self._note_first)
        if self._settings.staleness:
            self._run_second(sum(len(one.rows) for one in first))

    def _first(self) -> Sequence[Coming]:
        """Return the first iteration's minibatches; empty where they are not known, or may not begin."""
        if self._forecast is None or self._waits or not self._allowance.affords_first():
            return ()
        return self._forecast.first()

    def _note_first(self, future: Future[Rollout]) -> None:
        self._state.ran_early = self._state.clock()

    def _run_second(self, drawn: int) -> None:
        """Run the second minibatch on the seed, whose children it may not wait for; it is read once it has been drawn.

        Args:
            drawn: Examples of the first.
        """
        coming = () if self._forecast is None else self._forecast.second()
        if coming and self._allowance.affords_second(drawn, sum(len(one.rows) for one in coming)):
            # After the seed's validation, without which the first children are not compared.
            self._run(coming, lane=_DRAWN)

    def beside_screen(self, children: Sequence[Candidate]) -> None:
        """Begin what follows on the screens of children, as far as the share of guesses goes."""
        if len(children) == 1 and self._sure and not self._settings.staleness:
            # Reads follow on the minibatch, and nothing on the validation: where both are guesses, it goes first.
            self._guess(children[0], whole=True)
        # Row by row over all children: each one's first rows are as likely to be needed.
        items = [(child, [row]) for row in self._validation for child in children]
        self._evaluator.start_ahead(
            items, purpose="validation", lane=_SCREENED, iteration=self._state.iteration, most=self._room(screened=True)
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
        open_screens = {number: plan for number, plan in enumerate(plans) if plan is not None}
        waiting = {ticket.future for number in open_screens for ticket in begun.pending[number]}
        while True:
            # Before any has ended too: a screen of one example refuses nobody.
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
            if not (waiting and open_screens):
                return
            waiting -= first_of(waiting, self._evaluator.look)

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
        if self._forecast is None or self._allowance.over():
            return
        coming = self._forecast.following(parent)
        room = left = self._room(screened=whole)
        if whole and sum(len(one.rows) for one in coming) > room:
            return
        hears: list[Hears | None] = []
        for one in coming:
            key = self._key(one)
            # A scan waits for its whole minibatch: of one that is not run in full it would not read much earlier.
            left -= len(key[1]) - self._begun(key)
            reads = max(0, min(self._scans.reads(key, one.components), left))
            hears.append(self._scans.guess(one, key, reads))
            if hears[-1] is not None:
                left, room = left - reads, room - reads
        self._run(coming, lane=_GUESSED, standing=standing, most=room, ready=hears)

    def _begun(self, key: StreamKey) -> int:
        """Return how many rollouts of a minibatch are guesses already: :meth:`_room` has left them out."""
        guesses = self._evaluator.ahead.waiting_in(_GUESSED)
        return sum(entry.candidate_id == key[0] and entry.row in key[1] for entry in guesses)

    def finish(self, iteration: int, gone: Sequence[str]) -> None:
        """End an iteration: what its scans were to rescue and did not read waits on.

        Args:
            iteration: Which.
            gone: Its children that were not validated, by content hash.
        """
        self.refused(gone)
        self._scans.finish(iteration)

    def refused(self, gone: Sequence[str]) -> None:
        """Give up the validation of children that will not have one, by content hash."""
        identities = frozenset(gone)
        self._give_up(lambda entry: entry.purpose == "validation" and entry.candidate_id in identities)

    def close(self, *, failed: bool = False) -> None:
        """Give up everything that is left, and wait for what cannot be stopped, so that it is in the books.

        Args:
            failed: Whether the run ends by an error. Then reads are left to the session, which cancels what waits
                when it is closed: one may wait for a slot that another run holds.
        """
        reads = self._scans.close()
        self._give_up(lambda entry: True)
        # Only their end is of interest: what they raise was for nobody.
        if not failed:
            wait(reads)
        wait(self._evaluator.ahead.running())
        self._evaluator.settle_ahead()

    def _start(self, coming: Sequence[Coming]) -> None:
        """Run minibatches that are certain to be asked for, and read them meanwhile."""
        hears = [self._scans.hears(one, self._key(one)) for one in coming]
        self._run(coming, lane=_DRAWN, standing="certain", ready=hears)

    def _run(
        self,
        coming: Sequence[Coming],
        *,
        lane: str,
        standing: Standing = "guess",
        most: int | None = None,
        ready: Sequence[Hears | None] = (),
    ) -> int:
        """Start the rollouts of minibatches, and return how many are new."""
        return self._evaluator.start_ahead(
            [(one.candidate, one.rows) for one in coming],
            purpose="parent",
            lane=lane,
            iteration=coming[0].iteration if coming else 0,
            standing=standing,
            most=most,
            ready=ready,
        )

    def _key(self, coming: Coming) -> StreamKey:
        return self._key_of(coming.candidate, coming.rows)

    def _key_of(self, candidate: Candidate, rows: Sequence[dspy.Example]) -> StreamKey:
        return candidate_id(candidate), tuple(self._evaluator.row_hash(row) for row in rows)

    def _room(self, *, screened: bool = False) -> int:
        """Return how many more calls may be started on a guess (see :meth:`Allowance.room`)."""
        if self._waits:
            return 0
        ahead = self._evaluator.ahead
        return self._allowance.room(
            certain=ahead.open_in(_DRAWN),
            guesses=ahead.open_in(_SCREENED, _GUESSED),
            reading=self._scans.reading,
            guessed_reads=self._scans.guessed_reads,
            screened=screened,
        )

    def _settle_validation(self, identity: str) -> None:
        """Note that a child's validation, begun as a guess, is certain."""
        self._evaluator.ahead.settle(lambda entry: entry.candidate_id == identity and entry.lane == _SCREENED, _DRAWN)

    def _give_up(self, unwanted: Callable[[AheadEntry], bool]) -> None:
        gone = self._evaluator.ahead.give_up(unwanted, self._state.iteration)
        self._state.unbilled += gone
        self._state.wasted += gone
        self._evaluator.settle_ahead()


def _score(future: Future[Rollout]) -> float | None:
    """Return a rollout's score; ``None`` where there is none yet, or none to be had."""
    if not future.done() or future.cancelled() or future.exception() is not None:
        return None
    return future.result().score
