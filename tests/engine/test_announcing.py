"""Rollouts are told of once, before they are used; and what a rollout is tried with."""

from __future__ import annotations

import threading
from concurrent.futures import Future, wait
from types import SimpleNamespace
from typing import Any

import dspy
import pytest
from dspy.utils.exceptions import LMRateLimitError

from combee_dspy.engine.announcing import About, Announcer, Said
from combee_dspy.engine.evaluator import Evaluator
from combee_dspy.engine.forecast import Coming
from combee_dspy.engine.foresight import Foresight
from combee_dspy.engine.state import RunState
from combee_dspy.events import ErrorRaised, Event, RolloutFinished
from combee_dspy.records import Rollout
from combee_dspy.rollouts import CURRENT_SESSION, EvaluationCache, Place, Scheduler, Threads, _retrying, current_place
from combee_dspy.testing._scripted_lm import ScriptedLM, ScriptedRequest
from tests.engine.conftest import World, _task_answer

PATIENCE = 30


class Bench:
    """One evaluator over a scheduler, and what it has told."""

    def __init__(
        self, world: Any, workers: int = 2, emit: Any = None, student: Any = None, cache: EvaluationCache | None = None
    ) -> None:
        self.world = world
        self.told: list[Event] = []
        self.session = Scheduler(Threads().start(workers))
        self.student = student or world.student()
        self.evaluator = Evaluator(
            lambda candidate: self.student.deepcopy(),
            world.metric,
            0.0,
            self.session,
            emit or self.told.append,
            memoize=True,
            keep_traces=frozenset(),
            cache=cache,
        )

    def items(self, count: int = 4) -> list[Any]:
        return [({"self": "Answer."}, self.world.examples(count))]

    @property
    def rows(self) -> list[str]:
        return [event.rollout.example.question for event in self.told if isinstance(event, RolloutFinished)]

    def __enter__(self) -> Bench:
        return self

    def __exit__(self, *raised: object) -> None:
        self.session.close()


def test_a_rollout_is_told_of_before_it_is_used(world: Any) -> None:
    with Bench(world) as bench:
        used: list[tuple[str, bool]] = []

        def ready(position: int, rollout: Rollout) -> None:
            question = rollout.example.question
            used.append((question, question in bench.rows))

        (done,) = bench.evaluator.evaluate(bench.items(), purpose="parent", iteration=1, ready=ready)
        bench.session.close()
        assert sorted(used) == sorted((one.example.question, True) for one in done.rollouts)
        assert sorted(bench.rows) == sorted(one.example.question for one in done.rollouts)


def test_what_was_started_early_is_told_of_once(world: Any) -> None:
    with Bench(world) as bench:
        heard: list[int] = []
        start = bench.evaluator.start_ahead(
            bench.items(),
            purpose="parent",
            lane="soon",
            iteration=3,
            ready=[lambda place, rollout: heard.append(place)],
        )
        again = bench.evaluator.start_ahead(
            bench.items(),
            purpose="parent",
            lane="sooner",
            iteration=3,
            ready=[lambda place, rollout: heard.append(place)],
        )
        assert (start, again) == (4, 0)
        (done,) = bench.evaluator.evaluate(bench.items(), purpose="parent", iteration=3)
        # Asked for once more it is told of once more, as one that cost nothing.
        bench.evaluator.evaluate(bench.items(2), purpose="parent", iteration=4)
    events = [event for event in bench.told if isinstance(event, RolloutFinished)]
    assert [(event.iteration, event.cached) for event in events] == [(3, False)] * 4 + [(4, True)] * 2
    assert [event.rollout_id for event in events] == [f"{number:08d}" for number in range(1, 7)]
    assert sorted(heard) == [0, 0, 1, 1, 2, 2, 3, 3]
    assert done.bought == 4


def test_what_a_listener_raises_in_a_worker_ends_the_evaluation(world: Any) -> None:
    class Enough(BaseException):
        pass

    def emit(event: Event) -> None:
        if threading.current_thread() is not threading.main_thread():
            raise Enough

    with Bench(world, emit=emit) as bench:
        begun = bench.evaluator.begin(
            bench.items(), purpose="parent", iteration=1, ready=[lambda position, rollout: None]
        )
        for ticket in begun.pending[0]:
            ticket.future.result(PATIENCE)
        bench.session.inner.close()
        with pytest.raises(Enough):
            bench.evaluator.finish(begun)


def test_a_failed_service_is_told_with_its_rollout() -> None:
    told: list[Event] = []
    announcer, said = Announcer(told.append), Said()
    failed = Rollout("row", dspy.Example(), None, (), 0.0, error="LMError: down", failed_in="service")
    for _ in range(2):
        announcer.once(said, failed, About("c", "screen", 2))
    assert [type(event) for event in told] == [RolloutFinished, ErrorRaised]
    assert isinstance(told[0], RolloutFinished)
    assert (told[0].split, told[0].purpose) == ("train", "screen")
    announcer.raise_ending()


def test_rollouts_stand_in_their_lanes_and_name_their_batch(world: Any) -> None:
    seen: dict[str, Place] = {}

    class Looks(dspy.Module):
        def __init__(self) -> None:
            super().__init__()
            self.predict = dspy.Predict("question -> answer")

        def forward(self, question: str) -> dspy.Prediction:
            seen[question] = current_place()
            assert CURRENT_SESSION.get() is bench.session
            return self.predict(question=question)

    bench = Bench(world, student=Looks())
    with bench:
        for number, purpose in enumerate(("parent", "child", "screen", "validation", "heldout")):
            rows = world.examples(1, start=number)
            (done,) = bench.evaluator.evaluate([({"self": "x"}, rows)], purpose=purpose, iteration=number)
            assert done.rollouts[0].schedule_id.startswith("batch-")
        bench.evaluator.start_ahead([({"self": "x"}, world.examples(1, start=9))], purpose="parent", lane="guess")
        bench.evaluator.start_ahead(
            [({"self": "x"}, world.examples(1, start=10))],
            purpose="parent",
            lane="sure",
            iteration=7,
            standing="certain",
        )
        wait([entry.future for entry in bench.evaluator.ahead._open.values()])
    lanes = [(place.lane, place.iteration) for place in seen.values()]
    assert lanes[:5] == [
        ("rollout", 0),
        ("screening", 1),
        ("screening", 2),
        ("validation", 3),
        ("validation", 4),
    ]
    assert sorted(lanes[5:]) == [("rollout", 7), ("speculative", 0)]
    assert len({place.key for place in seen.values()}) == 7


def test_what_was_guessed_and_is_wanted_now_leaves_the_lane_of_guesses(world: Any) -> None:
    with Bench(world, workers=1) as bench:
        gate = threading.Event()
        held = bench.session.submit(gate.wait, PATIENCE)
        bench.evaluator.start_ahead(bench.items(), purpose="parent", lane="guess", iteration=2)
        lanes = bench.session.account().lanes
        assert (lanes["speculative"].waiting, lanes["rollout"].waiting) == (4, 0)
        begun = bench.evaluator.begin(bench.items(), purpose="parent", iteration=2)
        lanes = bench.session.account().lanes
        assert (lanes["speculative"].waiting, lanes["rollout"].waiting) == (0, 4)
        gate.set()
        held.result(PATIENCE)
        assert bench.evaluator.finish(begun)[0].bought == 4


@pytest.mark.parametrize("standing", ["guess", "likely", "certain"])
def test_a_run_that_repeats_another_begins_nothing_before_it_is_needed(world: Any, standing: Any) -> None:
    cache = EvaluationCache()
    with Bench(world, cache=cache) as bench:
        bench.evaluator.evaluate(bench.items(2), purpose="parent", iteration=1)
    asked = len(world.task_lm.requests)
    with Bench(world, workers=1, cache=cache) as bench:
        gate = threading.Event()
        bench.evaluator.evaluate(bench.items(2), purpose="parent", iteration=1)
        held = bench.session.submit(gate.wait, PATIENCE)
        items = bench.items(6)
        early = bench.evaluator.start_ahead(items, purpose="parent", lane="guess", iteration=2, standing=standing)
        assert early == bench.evaluator.ahead.open_in("guess") == 4, "counted all the same"
        assert not any(lane.waiting for lane in bench.session.account().lanes.values())
        begun = bench.evaluator.begin(bench.items(6), purpose="parent", iteration=2)
        assert bench.session.account().lanes["rollout"].waiting == 4, "all at once, not one after the other"
        gate.set()
        held.result(PATIENCE)
        assert bench.evaluator.finish(begun)[0].bought == 4
        # It has bought something: it repeats nobody.
        bench.evaluator.start_ahead(bench.items(8), purpose="parent", lane="guess", iteration=3)
        bench.evaluator.evaluate(bench.items(8), purpose="parent", iteration=3)
    assert len(world.task_lm.requests) == asked + 6


def test_what_was_held_begins_early_once_the_run_repeats_nobody(world: Any) -> None:
    cache = EvaluationCache()
    with Bench(world, cache=cache) as bench:
        bench.evaluator.evaluate(bench.items(1), purpose="parent", iteration=1)
    with Bench(world, cache=cache) as bench:
        bench.evaluator.evaluate(bench.items(1), purpose="parent", iteration=1)
        bench.evaluator.start_ahead(bench.items(3), purpose="parent", lane="guess", iteration=2)
        assert len(world.task_lm.requests) == 1
        bench.evaluator.evaluate([({"self": "Answer."}, world.examples(1, start=50))], purpose="parent", iteration=1)
        bench.evaluator.start_ahead(bench.items(3), purpose="parent", lane="drawn", iteration=2, standing="certain")
        wait([entry.future for entry in bench.evaluator.ahead.waiting_in("guess", "drawn")], timeout=PATIENCE)
        assert len(world.task_lm.requests) == 4


def test_a_draw_that_is_asked_for_again_is_still_that_draw(world: Any) -> None:
    draws: list[Any] = []

    class Looks(dspy.Module):
        def forward(self, question: str) -> dspy.Prediction:
            draws.append(dspy.settings.lm.kwargs.get("rollout_id"))
            return dspy.Prediction(answer="unknown")

    with Bench(world, workers=1, student=Looks()) as bench:
        gate = threading.Event()
        bench.session.submit(gate.wait, PATIENCE)
        begun = bench.evaluator.begin(bench.items(1), purpose="validation", iteration=1, replicate=1)
        (ticket,) = begun.pending[0]
        # Whoever was buying it gave up.
        ticket.future.cancel()
        ticket.bought = False
        gate.set()
        bench.evaluator.finish(begun)
        bench.evaluator.evaluate(bench.items(1), purpose="validation", iteration=1)
    assert draws[0] is not None
    assert draws[1] is None


def test_a_service_that_is_full_is_waited_for(world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    real = _retrying.tenacity.Retrying
    pauses: list[float] = []
    monkeypatch.setattr(_retrying.tenacity, "Retrying", lambda **k: real(**{**k, "sleep": pauses.append}))
    pressed: list[float | None] = []
    monkeypatch.setattr(Scheduler, "pressed", lambda self, seconds: pressed.append(seconds))
    refused = [0]

    class Busy(dspy.Module):
        def forward(self, question: str) -> dspy.Prediction:
            refused[0] += 1
            if refused[0] <= 6:
                raise LMRateLimitError("too many requests", retry_after=2.0)
            return dspy.Prediction(answer="unknown")

    with Bench(world, student=Busy()) as bench:
        (done,) = bench.evaluator.evaluate(bench.items(1), purpose="parent", iteration=1)
    assert done.rollouts[0].error is None
    assert pauses == [2.0] * 6
    assert pressed == [2.0] * 6


def test_a_future_that_ends_without_a_result_is_not_told_of() -> None:
    from combee_dspy.engine.tickets import Ticket, tell_ready

    future: Future[Rollout] = Future()
    heard: list[int] = []
    tell_ready([Ticket(future, True, True, lambda: (future, True))], lambda position, rollout: heard.append(position))
    future.cancel()
    assert not heard


def test_an_outage_that_a_guess_met_is_no_answer_to_whoever_asks_later(monkeypatch: pytest.MonkeyPatch) -> None:
    real = _retrying.tenacity.Retrying
    monkeypatch.setattr(_retrying.tenacity, "Retrying", lambda **kwargs: real(**{**kwargs, "sleep": lambda _: None}))
    down = True

    def task(request: ScriptedRequest) -> str:
        if down:
            raise ConnectionError("connection reset by peer")
        return _task_answer(request)

    world = World(ScriptedLM(task, model="scripted/task"), ScriptedLM(task, model="scripted/proposer"))
    with Bench(world) as bench, dspy.context(lm=world.task_lm, adapter=dspy.ChatAdapter()):
        guessed: list[Future[Rollout]] = []
        submit = bench.session.submit
        monkeypatch.setattr(bench.session, "submit", lambda *given: guessed.append(submit(*given)) or guessed[-1])
        bench.evaluator.start_ahead(bench.items(2), purpose="parent", lane="guess", iteration=2)
        wait(guessed, timeout=30)
        assert bench.evaluator.ahead.give_up(lambda entry: True, 2) == 2
        bench.evaluator.settle_ahead()
        down = False
        (done,) = bench.evaluator.evaluate(bench.items(2), purpose="parent", iteration=9)
    assert [(rollout.score, rollout.error) for rollout in done.rollouts] == [(1.0, None), (1.0, None)]


def test_what_has_to_be_bought_again_is_in_the_books_where_it_begins_early(world: Any) -> None:
    cache = EvaluationCache()
    with Bench(world, cache=cache) as bench:
        bench.evaluator.evaluate(bench.items(2), purpose="parent", iteration=1)
        cache.invalidate("its rows were mended")
        assert bench.evaluator.start_ahead(bench.items(2), purpose="parent", lane="soon", iteration=2) == 2
        assert bench.evaluator.ahead.open_in("soon") == 2
        (done,) = bench.evaluator.evaluate(bench.items(2), purpose="parent", iteration=2)
    assert done.bought == 2
    assert [event.cached for event in bench.told if isinstance(event, RolloutFinished)] == [False] * 4


def test_what_was_bought_again_early_and_given_up_is_taken_up_where_it_begins_anew(
    world: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache, running = EvaluationCache(), Future[Rollout]()
    with Bench(world, cache=cache) as bench:
        ahead = bench.evaluator.ahead
        bench.evaluator.evaluate(bench.items(1), purpose="parent", iteration=1)
        cache.invalidate("its row was mended")
        running.set_running_or_notify_cancel()
        monkeypatch.setattr(bench.session, "submit", lambda *given: running)
        for charged in (1, 0):
            bench.evaluator.start_ahead(bench.items(1), purpose="parent", lane="soon", iteration=2)
            assert ahead.open_in("soon") == 1
            assert ahead.give_up(lambda entry: True, 2) == charged


def test_a_guess_that_has_begun_is_read_as_far_as_there_is_room_later(world: Any) -> None:
    """Its rollouts take all the room at first; they are no reason to hear nothing when there is more."""
    rooms, reads, heard = [4, 2], [], []
    parent, rows = {"self": "Answer."}, tuple(world.examples(4))

    def guess(coming: Coming, key: Any, most: int) -> Any:
        reads.append(most)
        return (lambda position, rollout: heard.append(position)) if most else None

    with Bench(world) as bench:
        foresight = Foresight(
            SimpleNamespace(calibration=None, ceiling=None, memoize=True, gepa_kwargs={}, anchors=(), staleness=0),
            RunState(),
            bench.evaluator,
            SimpleNamespace(reading=0, guessed_reads=0, guess=guess, reads=lambda key, components: 2),
            validation=(),
            allowance=SimpleNamespace(over=lambda: False, room=lambda **_: rooms.pop(0)),
        )
        foresight.watch(SimpleNamespace(following=lambda parent: [Coming(2, 0, parent, rows, ("self",))]))
        foresight.beside_validation([parent])
        foresight.beside_validation([parent])
        assert bench.evaluator.ahead.open_in("rollouts of a likely parent") == 4
        (done,) = bench.evaluator.evaluate([(parent, rows)], purpose="parent", iteration=2)
    assert done.bought == 4
    assert reads == [0, 2]
    assert sorted(heard) == [0, 1, 2, 3]
