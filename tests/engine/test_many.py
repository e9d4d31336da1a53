"""Several tasks over one pool, against scripted LMs."""

from __future__ import annotations

import contextlib
import re
import signal
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from combee_dspy import Budget, Combee, EvaluationCache, Task, compile_many
from combee_dspy.costs import Ledger, LedgerRecorder
from combee_dspy.evaluation import ReceiptBook
from combee_dspy.events import Event, RunFinished, RunStarted, ScheduleDecided
from combee_dspy.exceptions import ArgumentTypeError, ArgumentValueError, TaskCancelledError
from combee_dspy.many import SHAPES
from combee_dspy.rollouts import Threads
from combee_dspy.rollouts.scheduling import ScheduleRecord, Seat
from combee_dspy.testing._scripted_lm import ScriptedLM, ScriptedRequest
from combee_dspy.tracking import Hook


class Recorder(Hook):
    def __init__(self) -> None:
        self.events: list[Event] = []
        self.inside = 0
        self.closed = 0

    def handle(self, event: Event) -> None:
        assert not self.inside, "a hook hears one event at a time"
        self.inside += 1
        self.events.append(event)
        self.inside -= 1

    def close(self) -> None:
        self.closed += 1

    def of(self, kind: type) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]


def combee(world: Any, **kwargs: Any) -> Combee:
    given = {
        "max_metric_calls": 90,
        "reflection_lm": world.proposer_lm,
        "reflection_minibatch_size": 6,
        "num_threads": 4,
        "probe": False,
        **kwargs,
    }
    return Combee(kwargs.pop("metric", world.metric), **given)


def task(world: Any, number: int, **kwargs: Any) -> Task:
    """Rows of each task are its own."""
    start = 1_000 * number
    given = {
        "trainset": world.examples(18, start=start),
        "valset": world.examples(12, start=start + 100),
        "heldout": world.examples(12, start=start + 200),
        "seed": number,
        **kwargs,
    }
    return Task(f"task {number}", world.student(), **given)


def learned(program: Any) -> Any:
    return program.dump_state()


def figures(report: Any) -> Any:
    return (report.best_score, report.rollouts, report.iterations, report.heldout, report.receipt.after, report.seed)


class OutOfMoneyError(BaseException):
    pass


@pytest.mark.parametrize("shape", [*SHAPES, "auto"])
def test_each_task_learns_what_it_would_learn_alone(world: Any, shape: Any) -> None:
    tasks = [task(world, number) for number in range(3)]
    alone = [
        combee(world, seed=one.seed).compile(one.student, trainset=one.trainset, valset=one.valset, heldout=one.heldout)
        for one in tasks
    ]
    before = [one.student.dump_state() for one in tasks]
    results = compile_many(tasks, combee=combee(world), shape=shape)
    assert [result.name for result in results] == ["task 0", "task 1", "task 2"]
    assert [result.error for result in results] == [None] * 3
    for result, program in zip(results, alone, strict=True):
        assert learned(result.program) == learned(program)
        assert figures(result.report) == figures(program.combee_report)
        assert result.report is result.program.combee_report
        # What is recorded of the run does not tell of the pool: it could be repeated alone.
        assert result.report.specs == program.combee_report.specs
    assert [one.student.dump_state() for one in tasks] == before
    assert len({result.report.receipt.split for result in results}) == 3


def test_a_ledger_counts_its_own_calls_and_no_other_runs(world: Any) -> None:
    """All tasks share one LM object for the task and one for the proposer."""
    tasks = [task(world, number) for number in range(4)]
    whole = Ledger()
    with LedgerRecorder(whole).installed():
        results = compile_many(tasks, combee=combee(world), at_once=4, shape="hybrid")
    for number, result in enumerate(results):
        assert result.report is not None
        roles = result.report.costs["by_role"]
        mine = [one for one in world.task_lm.requests if _owner(one.last) == number]
        assert roles["task"]["calls"] == len(mine)
        assert roles["task"]["prompt_tokens"] == sum(len(one.text.split()) for one in mine)
        written = [one for one in world.proposer_lm.requests if _owner(one.text) == number]
        assert roles["proposer"]["calls"] == len(written) > 0
    total = whole.snapshot().by_role
    for role, lm in (("task", world.task_lm), ("proposer", world.proposer_lm)):
        counted = sum(result.report.costs["by_role"][role]["calls"] for result in results if result.report)
        assert counted == len(lm.requests) == total[role].calls


def _owner(text: str) -> int:
    """Whose rows a request shows: each task has its own thousand of numbers."""
    return int(re.findall(r"Number (\d+)", text)[-1]) // 1_000


def test_one_tasks_failure_does_not_end_the_others(world: Any) -> None:
    tasks = [task(world, 0), task(world, 1, trainset=[]), task(world, 2)]
    results = compile_many(tasks, combee=combee(world), at_once=3, shape="hybrid")
    assert isinstance(results[1].error, ArgumentValueError)
    assert results[1].program is None
    assert results[1].report is None
    assert [result.error is None for result in results] == [True, False, True]


def test_a_failure_ends_the_others_where_that_is_asked_for(world: Any) -> None:
    tasks = [task(world, 0), task(world, 1, trainset=[]), task(world, 2)]
    results = compile_many(tasks, combee=combee(world), on_error="stop")
    assert results[0].error is None
    assert isinstance(results[1].error, ArgumentValueError)
    assert isinstance(results[2].error, TaskCancelledError)
    assert "task 1" in str(results[2].error)


def test_what_ends_one_run_for_good_stops_the_others_under_way(world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other run has begun, and holds every worker until it has been cancelled."""
    begun, cancelled = threading.Event(), threading.Event()
    cancel = Seat.cancel

    def cancelling(seat: Seat) -> None:
        cancel(seat)
        if seat.tenant == "task 0":
            cancelled.set()

    def slow(gold: Any, pred: Any, trace: Any = None, pred_name: Any = None, pred_trace: Any = None) -> Any:
        begun.set()
        assert cancelled.wait(30)
        return world.metric(gold, pred)

    class Ending(Hook):
        """Ends its run, as somebody else's budget does."""

        def handle(self, event: Event) -> None:
            if isinstance(event, RunStarted):
                assert begun.wait(30)
                raise OutOfMoneyError

    monkeypatch.setattr(Seat, "cancel", cancelling)
    tasks = [task(world, 0, metric=slow), task(world, 1)]
    with pytest.raises(OutOfMoneyError):
        compile_many(
            tasks,
            combee=lambda given: combee(world, hooks=[Ending()] if given.name == "task 1" else []),
            shape="hybrid",
            at_once=2,
        )
    # What waited was not bought any more: the four workers had four rollouts.
    assert len([one for one in world.task_lm.requests if _owner(one.last) == 0]) <= 4


@pytest.fixture
def heeds_interrupts() -> Iterator[None]:
    """A shell that starts the tests in the background has them ignore interrupts."""
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, previous)


@pytest.mark.usefixtures("heeds_interrupts")
def test_an_interrupt_stops_every_run_and_closes_what_they_opened(world: Any, tmp_path: Any) -> None:
    main = threading.main_thread().ident
    sent = threading.Event()
    hook = Recorder()

    def interrupting(gold: Any, pred: Any, trace: Any = None, pred_name: Any = None, pred_trace: Any = None) -> Any:
        if not sent.is_set():
            sent.set()
            assert main is not None
            signal.pthread_kill(main, signal.SIGINT)
        return world.metric(gold, pred)

    tasks = [task(world, number, metric=interrupting) for number in range(3)]
    whole = sum(90 for _ in tasks)
    before = threading.active_count()
    with pytest.raises(KeyboardInterrupt):
        compile_many(tasks, combee=combee(world, hooks=[hook], log_dir=str(tmp_path)), shape="hybrid", at_once=2)
    assert hook.closed == 1
    assert len(world.task_lm.requests) < whole
    assert not hook.of(RunFinished)
    assert threading.active_count() <= before


def test_runs_that_were_interrupted_go_on(world: Any, tmp_path: Any) -> None:
    optimizer = combee(world, log_dir=str(tmp_path))
    tasks = [task(world, 0), task(world, 1, trainset=[])]
    first = compile_many(tasks, combee=optimizer)
    again = compile_many([task(world, 0), task(world, 1)], combee=optimizer)
    assert first[0].report is not None
    assert again[0].report is not None
    assert again[0].report.best_score == first[0].report.best_score
    assert again[1].error is None
    assert {path.name for path in tmp_path.iterdir()} == {"task-20-0", "task-20-1"}


def test_each_task_has_a_held_out_study_of_its_own(world: Any, tmp_path: Any) -> None:
    tasks = [task(world, number) for number in range(2)]
    compile_many(tasks, combee=combee(world, receipts=tmp_path / "book.jsonl"), at_once=2)
    books = sorted(path for path in tmp_path.glob("*.jsonl"))
    assert [path.name for path in books] == ["book-task-20-0.jsonl", "book-task-20-1.jsonl"]
    assert [len(ReceiptBook(path).receipts()) for path in books] == [1, 1]


def test_hooks_hear_all_runs_one_event_at_a_time_and_are_closed_once(world: Any) -> None:
    hook = Recorder()
    compile_many([task(world, n) for n in range(3)], combee=combee(world, hooks=[hook]), shape="hybrid", at_once=3)
    assert len(hook.of(RunStarted)) == len(hook.of(RunFinished)) == 3
    assert hook.closed == 1


def test_the_shape_that_was_chosen_is_an_event_with_its_reason(world: Any) -> None:
    hook = Recorder()
    compile_many([task(world, n) for n in range(3)], combee=combee(world), shape="auto", hooks=[hook])
    (event,) = [one for one in hook.of(ScheduleDecided) if one.decision == "shape"]
    assert event.values["tasks"] == 2
    assert 0 < event.values["utilisation"] <= 1
    assert event.values["shape"] in SHAPES
    assert "of the slots busy" in event.values["reason"]
    assert hook.closed == 1


def test_one_pool_of_workers_serves_all(world: Any) -> None:
    started: list[int] = []
    lock, flying, most = threading.Lock(), 0, 0

    class Counting(Threads):
        def start(self, workers: int) -> Any:
            started.append(workers)
            return super().start(workers)

    def metric(gold: Any, pred: Any, trace: Any = None, pred_name: Any = None, pred_trace: Any = None) -> Any:
        nonlocal flying, most
        with lock:
            flying += 1
            most = max(most, flying)
        result = world.metric(gold, pred)
        with lock:
            flying -= 1
        return result

    tasks = [task(world, number, metric=metric) for number in range(3)]
    results = compile_many(tasks, combee=combee(world, executor=Counting()), shape="hybrid", at_once=3)
    assert [result.error for result in results] == [None] * 3
    assert started == [4]
    assert most <= 4


def test_no_more_tasks_are_active_than_was_asked_for(world: Any) -> None:
    lock, active, most = threading.Lock(), 0, 0

    class Watch(Hook):
        def handle(self, event: Event) -> None:
            nonlocal active, most
            with lock:
                active += isinstance(event, RunStarted) - isinstance(event, RunFinished)
                most = max(most, active)

    def made(given: Task) -> Combee:
        return combee(world, hooks=[Watch()])

    compile_many([task(world, n) for n in range(4)], combee=made, shape="hybrid", at_once=2)
    assert most == 2


def test_a_shared_cache_buys_a_rollout_once(world: Any) -> None:
    rows = {"trainset": world.examples(18), "valset": world.examples(12, start=100), "heldout": None, "seed": 0}
    twins = [Task("one", world.student(), **rows), Task("other", world.student(), **rows)]
    # What is bought on a guess depends on time.
    optimizer = combee(world, speculation=0)
    compile_many(twins[:1], combee=optimizer)
    alone = len(world.task_lm.requests)
    results = compile_many(twins, combee=optimizer, cache=True)
    assert len(world.task_lm.requests) == 2 * alone
    assert learned(results[0].program) == learned(results[1].program)
    assert results[1].report is not None
    assert results[1].report.costs["by_role"].get("task", {"calls": 0})["calls"] == 0
    cache = EvaluationCache()
    compile_many(twins[:1], combee=optimizer, cache=cache)
    compile_many(twins[1:], combee=optimizer, cache=cache)
    assert len(world.task_lm.requests) == 3 * alone


def test_a_task_may_have_dspy_settings_of_its_own(world: Any) -> None:
    asked: list[str] = []

    def answer(request: ScriptedRequest) -> str:
        asked.append(request.last)
        return "[[ ## answer ## ]]\nnothing\n\n[[ ## completed ## ]]"

    other = ScriptedLM(answer, model="scripted/other")
    tasks = [task(world, 0), task(world, 1, context={"lm": other})]
    results = compile_many(tasks, combee=combee(world), at_once=2)
    assert results[0].report is not None
    assert results[1].report is not None
    assert results[1].report.models["task"] == "scripted/other"
    assert results[0].report.models["task"] == "scripted/task"
    assert {_owner(text) for text in asked} == {1}
    assert {_owner(one.last) for one in world.task_lm.requests} == {0}


@contextlib.contextmanager
def refused(kind: type[Exception], *words: str) -> Iterator[None]:
    with pytest.raises(kind) as caught:
        yield
    for word in words:
        assert word in str(caught.value)


def test_what_cannot_be_used_is_refused_before_anything_is_bought(world: Any, tmp_path: Any) -> None:
    one, twin = task(world, 0), task(world, 0)
    good = combee(world)
    with refused(ArgumentValueError, "task 0", "two tasks"):
        compile_many([one, twin], combee=good)
    with refused(ArgumentTypeError, "is no task"):
        compile_many([world.student()], combee=good)  # type: ignore[list-item]
    with refused(ArgumentTypeError, "is no optimizer"):
        compile_many([one], combee=None)  # type: ignore[arg-type]
    with refused(ArgumentValueError, "shape", "hybrid"):
        compile_many([one], combee=good, shape="sideways")  # type: ignore[arg-type]
    with refused(ArgumentValueError, "at_once"):
        compile_many([one], combee=good, at_once=0)
    with refused(ArgumentValueError, "contradicts"):
        compile_many([one], combee=good, at_once=2, shape="candidate-parallel")
    with refused(ArgumentValueError, "on_error"):
        compile_many([one], combee=good, on_error="ignore")  # type: ignore[arg-type]
    with refused(ArgumentValueError, "log_dir"):
        compile_many([one, task(world, 1)], combee=lambda _: combee(world, log_dir=str(tmp_path)))
    with refused(ArgumentValueError, "executor"):
        compile_many([one, task(world, 1)], combee=lambda given: combee(world, executor=_executor(given)))
    with refused(ArgumentValueError, "use_wandb"):
        compile_many([one, task(world, 1)], combee=combee(world, use_wandb=True), at_once=2)
    with refused(ArgumentValueError, "memoize"):
        compile_many([one], combee=combee(world, memoize=False), cache=True)
    assert compile_many([], combee=good) == ()
    assert not world.task_lm.requests


def _executor(given: Task) -> str:
    return "threads" if given.name == "task 0" else "asyncio"


def test_each_task_has_a_budget_of_its_own(world: Any) -> None:
    optimizer = combee(world, max_metric_calls=None, budget=Budget(calls=60))
    results = compile_many([task(world, n, heldout=None) for n in range(2)], combee=optimizer, at_once=2)
    for result in results:
        assert result.report is not None
        assert "calls" in result.report.reason
        assert result.report.costs["total"]["calls"] >= 60


def test_what_a_run_decided_is_recorded_in_its_own_folder(world: Any, tmp_path: Any) -> None:
    compile_many([task(world, n) for n in range(2)], combee=combee(world, log_dir=str(tmp_path)), at_once=2)
    for folder in tmp_path.iterdir():
        (file,) = folder.glob("schedule-*.jsonl")
        record = ScheduleRecord.read(file)
        assert {one.decision for one in record.decisions} == {"batch", "guess", "stop"}
        assert not record.released, "the order of dispatch is the pool's"
