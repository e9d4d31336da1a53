"""What is begun before it is asked for: how much, what it costs, and that it changes nothing."""

from __future__ import annotations

import re
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

import dspy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from combee_dspy import Combee
from combee_dspy.aggregators import ParallelScan
from combee_dspy.engine.ahead import Ahead, AheadEntry
from combee_dspy.engine.allowance import Allowance, speculation_room
from combee_dspy.engine.foresight import Foresight
from combee_dspy.engine.state import RunState
from combee_dspy.events import (
    CandidateProposed,
    CandidateScreened,
    Event,
    IterationStarted,
    ReflectionsMade,
    RolloutFinished,
    ScanStarted,
    ValidationFinished,
)
from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.operators import OperatorOutcome
from combee_dspy.records import BatchDecision
from combee_dspy.rollouts import RolloutKey
from combee_dspy.stopping import Budget
from combee_dspy.testing._scripted_lm import ScriptedLM, ScriptedRequest
from combee_dspy.tracking import Hook
from tests.engine.conftest import Recorder, World, _proposer_answer, _task_answer, answer_in_kind, as_chat

shares = st.floats(0, 0.999)
counts = st.integers(0, 5000)


def _run(world: Any, **kwargs: Any) -> tuple[Any, Recorder]:
    hook = Recorder()
    given = {
        "max_metric_calls": 300,
        "reflection_lm": world.proposer_lm,
        "reflection_minibatch_size": 12,
        "num_threads": 4,
        "screen": 4,
        "probe": False,
        "track_stats": True,
        "hooks": [hook],
        **kwargs,
    }
    with dspy.context(lm=world.task_lm):
        program = Combee(world.metric, **given).compile(
            world.student(), trainset=world.examples(36), valset=world.examples(12, start=100)
        )
    return program, hook


def _course(hook: Recorder) -> list[Any]:
    proposed = [(one.iteration, one.operator, one.candidate_id) for one in hook.of(CandidateProposed)]
    return proposed + [(one.iteration, one.candidate_id, one.score) for one in hook.of(ValidationFinished)]


@given(shares, counts, counts, counts)
def test_all_guesses_together_may_turn_out_wrong_and_stay_within_the_share(
    share: float, asked: int, wasted: int, outstanding: int
) -> None:
    room = speculation_room(share, asked, wasted, outstanding)
    assert room >= 0
    if room:
        assert wasted + outstanding + room <= 1.005 * share * (asked + outstanding + room) + 1e-6
    more = room + 1
    assert wasted + outstanding + more >= share * (asked + outstanding + more) - 1e-6, "no smaller than it must be"


def _entry(lane: str, *, started: bool = False) -> AheadEntry:
    future: Future[Any] = Future()
    if started:
        future.set_running_or_notify_cancel()
    return AheadEntry(future, "candidate", "row", "validation", lane)


def test_what_is_given_up_is_cancelled_where_it_can_be_and_charged_all_the_same() -> None:
    ahead, waits, runs = Ahead(), _entry("guess"), _entry("guess", started=True)
    ahead.add(RolloutKey("p", "s", "first"), waits)
    ahead.add(RolloutKey("p", "s", "second"), runs)
    ahead.add(RolloutKey("p", "s", "third"), _entry("drawn"))
    assert ahead.open_in("guess") == 2
    assert ahead.give_up(lambda entry: entry.lane == "guess", 3) == 2
    assert waits.future.cancelled()
    assert ahead.running() == [runs.future]
    assert not ahead.ended()
    runs.future.set_result("a rollout")
    assert ahead.ended() == [runs]
    assert not ahead.ended(), "told once"
    assert ahead.open_in("guess", "drawn") == 1
    joined = ahead.take(RolloutKey("p", "s", "second"))
    assert joined is runs
    assert joined.charged, "asked for after all, it is not charged twice"


@pytest.mark.parametrize("operators", [["insert"], ["insert", "few-shot-swap"]])
def test_guesses_change_what_a_run_costs_and_nothing_else(world: Any, operators: list[str]) -> None:
    without, plain = _run(world, speculation=0.0, operators=operators)
    _, bold = _run(world, speculation=0.5, operators=operators)
    limit = min(len(_course(plain)), len(_course(bold)))
    assert limit > 2
    shared = [one for one in _course(plain) if one in _course(bold)]
    # The budget may end one of them an iteration earlier; up to there they are the same.
    assert len(shared) == limit
    assert without.combee_report.speculative == 0
    assert not [one for one in plain.of(RolloutFinished) if one.purpose == "speculative"]


class OnlyTheSeed:
    """gepa's candidate selector: always the student, so that every guess of a child is wrong."""

    def select_candidate_idx(self, state: Any) -> int:
        return 0


WRONG = {"candidate_selection_strategy": OnlyTheSeed(), "operators": ["insert"], "reflection_minibatch_size": 6}


@pytest.mark.parametrize("share", [0.0, 0.1, 0.4])
@pytest.mark.parametrize("limit", [73, 99, 125, 138, 151, 173, 300])
def test_no_more_is_bought_for_nothing_than_the_share(
    world: Any, states: list[RunState], share: float, limit: int
) -> None:
    program, hook = _run(world, speculation=share, max_metric_calls=limit, **WRONG)
    report = program.combee_report
    wasted = [one for one in hook.of(RolloutFinished) if one.purpose == "speculative"]
    assert len(wasted) <= report.speculative
    calls = report.rollouts + states[-1].reads + report.speculative_reads
    assert report.speculative + report.speculative_reads <= 1.005 * share * calls
    assert (report.speculative > 0) == (share > 0)
    # Nobody's guess is told of as somebody's rollout.
    parents = {one.candidate_id for one in hook.of(RolloutFinished) if one.purpose == "parent"}
    assert len(parents) == 1


def test_every_rollout_is_bought_once_and_told_once(world: Any) -> None:
    _, hook = _run(world, speculation=0.4, aggregator="union")
    bought = [one for one in hook.of(RolloutFinished) if not one.cached]
    assert len(bought) == len(world.task_lm.requests)
    pairs = [(one.candidate_id, one.rollout.example_id, one.replicate) for one in bought]
    assert len(pairs) == len(set(pairs))


def test_with_staleness_the_next_minibatch_has_run_before_this_ones_children_are_judged(world: Any) -> None:
    _, hook = _run(
        world,
        staleness=1,
        operators=["insert"],
        candidate_selection_strategy="current_best",
        reflection_minibatch_size=4,
    )
    parents = {one.iteration: one.parent_id for one in hook.of(CandidateProposed)}
    seed = parents[1]
    assert parents[2] == seed, "drawn before the first children were known"
    assert any(parent != seed for parent in parents.values()), "later ones build on them"


def test_a_stale_run_resumes_with_the_minibatch_that_it_had_drawn(world: Any, tmp_path: Any) -> None:
    class Until:
        def __init__(self, iterations: int) -> None:
            self.iterations = iterations

        def __call__(self, state: Any) -> bool:
            return bool(state.i + 1 >= self.iterations)

    given = {"staleness": 1, "max_metric_calls": 900, "speculation": 0.0, "operators": ["insert"]}
    _, whole = _run(world, **given, gepa_kwargs={"stop_callbacks": [Until(4)]})
    parts = []
    for last in (1, 2, 4):
        _, part = _run(world, **given, gepa_kwargs={"stop_callbacks": [Until(last)]}, log_dir=str(tmp_path))
        parts += [one for one in _course(part) if one[0]]
    assert sorted(map(str, parts)) == sorted(str(one) for one in _course(whole) if one[0])


@pytest.mark.parametrize(
    "change", [{"staleness": 2}, {"speculation": 1.0}, {"speculation": -0.1}, {"speculation": True}]
)
def test_what_cannot_be_is_refused(world: Any, change: dict[str, Any]) -> None:
    with pytest.raises(ArgumentValueError, match=next(iter(change))):
        Combee(world.metric, max_metric_calls=10, **change)


def test_parity_draws_nothing_ahead(world: Any) -> None:
    with pytest.raises(ArgumentValueError, match="staleness"):
        Combee.parity(world.metric, max_metric_calls=10, staleness=1)


def test_a_shard_is_read_before_the_last_rollout_has_ended() -> None:
    """The last rollout ends only after a lesson was asked for: without streaming nobody would ever ask."""
    asked = threading.Event()

    def task(request: ScriptedRequest) -> str:
        if "Number 35:" in request.last and not asked.is_set():
            assert asked.wait(60), "no shard was read before the last rollout had ended"
        return _task_answer(request)

    def propose(request: ScriptedRequest) -> str:
        asked.set()
        return _proposer_answer(request)

    world = World(ScriptedLM(task, model="scripted/task"), ScriptedLM(propose, model="scripted/proposer"))
    program, hook = _run(world, reflection_minibatch_size=36, max_metric_calls=110, num_threads=8)
    assert hook.of(ScanStarted)
    assert program.combee_report.best_score > program.combee_report.seed_score


def test_the_first_minibatch_does_not_wait_for_the_question_that_takes_longest() -> None:
    """The first validation question is answered only after a training question was asked."""
    trained, missed = threading.Event(), []

    def task(request: ScriptedRequest) -> str:
        number = int(re.findall(r"Number (\d+):", request.last)[-1])
        if number == 100 and not trained.wait(20):
            missed.append(number)
        if number < 36:
            trained.set()
        return _task_answer(request)

    world = World(ScriptedLM(task, model="scripted/task"), ScriptedLM(_proposer_answer, model="scripted/proposer"))
    program, _ = _run(world, max_metric_calls=60, num_threads=8)
    assert program.combee_report.rollouts >= 24
    assert not missed, "nothing was begun beside the seed's validation"


def _number(request: ScriptedRequest) -> int:
    return int(re.findall(r"Number (\d+):", request.last)[-1])


def _taught(request: ScriptedRequest) -> bool:
    return "the word for" in request.system


def test_the_first_minibatch_goes_before_the_seeds_validation() -> None:
    asked: list[int] = []

    def task(request: ScriptedRequest) -> str:
        asked.append(_number(request))
        return _task_answer(request)

    world = World(ScriptedLM(task, model="scripted/task"), ScriptedLM(_proposer_answer, model="scripted/proposer"))
    _run(world, max_metric_calls=60, num_threads=1)
    assert max(asked[:12]) < 36
    assert min(asked[12:24]) >= 100


def test_with_staleness_the_second_minibatch_does_not_wait_for_the_seeds_validation() -> None:
    """The seed's last validation question is answered only after the second minibatch was begun."""
    trained: set[int] = set()
    second, missed = threading.Event(), []

    def task(request: ScriptedRequest) -> str:
        number = _number(request)
        if number < 36:
            trained.add(number)
            if len(trained) > 12:
                second.set()
        if number == 111 and not second.wait(20):
            missed.append(number)
        return _task_answer(request)

    world = World(ScriptedLM(task, model="scripted/task"), ScriptedLM(_proposer_answer, model="scripted/proposer"))
    _run(world, staleness=1, speculation=0.0, num_threads=8)
    assert not missed, "the second minibatch waited for the seed's validation"


def test_a_run_of_one_iteration_begins_no_second_one(world: Any) -> None:
    program, hook = _run(
        world, staleness=1, budget=Budget(epochs=0.5), reflection_minibatch_size=18, max_metric_calls=500, num_threads=8
    )
    assert program.combee_report.iterations == 1
    assert program.combee_report.speculative == 0
    assert not [one for one in hook.of(RolloutFinished) if one.purpose == "speculative"]


def test_the_next_minibatch_does_not_wait_for_the_screen_of_its_parent() -> None:
    """A child's screen is answered only after the next minibatch was asked of that child."""
    drawn: set[int] = set()
    following, missed = threading.Event(), []

    def task(request: ScriptedRequest) -> str:
        number = _number(request)
        if number < 36 and not _taught(request):
            drawn.add(number)
        elif number < 36 and number not in drawn:
            following.set()
        elif number < 36 and not following.wait(20):
            missed.append(number)
        return _task_answer(request)

    world = World(ScriptedLM(task, model="scripted/task"), ScriptedLM(_proposer_answer, model="scripted/proposer"))
    program, _ = _run(world, speculation=0.4, operators=["insert"], num_threads=32, max_metric_calls=100)
    assert program.combee_report.iterations > 1
    assert not missed, "the next minibatch waited for a screen"


def _planned(
    rollouts: int,
    *,
    cursor: int,
    size: int,
    last: float | None = None,
    outcomes: Sequence[bool] = (),
    screened: bool = True,
    reads: int = 0,
    drawn: bool = False,
) -> int:
    state = RunState(cursor=cursor, decisions=[BatchDecision(size, "")], reads=reads // 2)
    state.drawn_ahead = [(0, [1, 2])] if drawn else []
    state.outcomes = [OperatorOutcome("insert", 1, None, accepted=one) for one in outcomes]
    allowance = Allowance(state, 0.1, validation=60, screen=8, epoch=240, limit=None, least=0, last=last)
    return allowance.planned(rollouts, reads - reads // 2, screened=screened)


def test_a_screen_of_one_example_refuses_nobody_and_holds_up_no_validation() -> None:
    validated, missed = threading.Event(), []

    def task(request: ScriptedRequest) -> str:
        number = _number(request)
        if _taught(request) and number >= 100:
            validated.set()
        elif _taught(request) and not validated.wait(20):
            missed.append(number)
        return _task_answer(request)

    world = World(ScriptedLM(task, model="scripted/task"), ScriptedLM(_proposer_answer, model="scripted/proposer"))
    _, hook = _run(world, screen=1, speculation=0.0, operators=["insert"], num_threads=32, max_metric_calls=60)
    assert {(one.size, one.passed) for one in hook.of(CandidateScreened)} == {(1, True)}
    assert not missed, "a child's validation waited for the only example of its screen"


def test_guesses_are_bounded_by_what_the_epoch_will_have_taken() -> None:
    # The validation of the iteration under way, and four more iterations with a screen of 8 and a validation of 60.
    assert _planned(124, cursor=48, size=48) == 124 + 60 + 192 + 4 * 68
    assert _planned(124, cursor=48, size=48, screened=False) == 124 + 192 + 4 * 68
    assert _planned(71, cursor=3, size=3) == 71 + 60 + 237 + 4 * 68, "small batches, while sizes are measured, grow"
    assert _planned(308, cursor=240, size=240) == 308 + 60, "the epoch has been drawn"
    assert _planned(124, cursor=288, size=48, last=480) == 124 + 60 + 192 + 4 * 68, "the second epoch"
    assert _planned(124, cursor=48, size=48, last=96) == 124 + 60 + 48 + 68, "it ends before the epoch"
    assert _planned(124, cursor=96, size=48, drawn=True) == 124 + 60 + 144 + 4 * 68, "drawn, and not screened yet"
    assert _planned(124, cursor=48, size=48, reads=6) == 124 + 60 + 192 + 4 * 68 + 5 * 6, "reads are calls too"
    refused = _planned(124, cursor=48, size=48, outcomes=[False] * 3)
    assert refused == 124 + 192 + 4 * 8 + 5 * 60 // 4, "children that are refused are not validated"


@pytest.mark.parametrize(
    ("limit", "least", "room", "later"), [(10_000, 14, 72, 61), (300, 0, 30, 20), (300, 14, 28, 18), (150, 14, 12, 3)]
)
def test_a_budget_pays_for_wrong_guesses_too(limit: int, least: int, room: int, later: int) -> None:
    state = RunState(cursor=48, decisions=[BatchDecision(48, "")], bought=124, reads=0)
    allowance = Allowance(state, 0.1, validation=60, screen=8, epoch=240, limit=limit, least=least)
    assert allowance.room(certain=0, guesses=0, reading=0, guessed_reads=0, screened=True) == room
    state.wasted, state.wasted_reads = 4, 2
    assert allowance.room(certain=0, guesses=3, reading=0, guessed_reads=1, screened=True) == later


@pytest.fixture
def states(monkeypatch: pytest.MonkeyPatch) -> list[RunState]:
    """What is left of each run's state when it ends."""
    found: list[RunState] = []
    close = Foresight.close

    def closing(self: Foresight, **kwargs: Any) -> None:
        close(self, **kwargs)
        found.append(self._state)

    monkeypatch.setattr(Foresight, "close", closing)
    return found


def test_reads_are_counted_and_outlive_a_checkpoint(world: Any, states: list[RunState]) -> None:
    for share in (0.0, 0.4):
        before = len(world.proposer_lm.requests)
        _run(world, speculation=share, operators=["insert"], aggregator="union", rescue=False, max_metric_calls=120)
        asked = len(world.proposer_lm.requests) - before
        state = states[-1]
        # Shards that a guess was dropped with may have been read, or not.
        assert 3 < state.reads <= asked <= state.reads + state.wasted_reads
        resumed = RunState()
        resumed.load(state.dump())
        assert (resumed.reads, resumed.wasted_reads) == (state.reads, state.wasted_reads)


REFUSED = {"operators": ["insert"], "budget": Budget(epochs=1), "max_metric_calls": 5000}


@pytest.mark.parametrize("fan_in", [2, 16])
def test_a_guess_of_reads_is_counted_by_the_shards_of_the_plan(world: Any, fan_in: int) -> None:
    """Every guess is wrong, and drops a scan that was planned in full: nine records in three shards, or in nine."""
    given = {**WRONG, "reflection_minibatch_size": 9, "aggregator": ParallelScan(fan_in=fan_in)}
    program, _ = _run(world, speculation=0.9, **given)
    wasted = program.combee_report.speculative_reads
    assert wasted > 0
    assert wasted % (9 if fan_in == 2 else 3) == 0
    if fan_in == 16:
        assert wasted % 9, "three shards a scan, not nine"


@pytest.mark.parametrize("share", [0.1, 0.3])
def test_where_children_are_refused_guesses_cease(share: float) -> None:
    """Every child does worse on its screen: a plan in which it is validated would never come true."""

    def task(request: ScriptedRequest) -> str:
        number = _number(request)
        return as_chat({"answer": "unknown"}) if _taught(request) or number % 2 else _task_answer(request)

    world = World(ScriptedLM(task, model="scripted/task"), ScriptedLM(_proposer_answer, model="scripted/proposer"))
    program, _ = _run(world, speculation=share, reflection_minibatch_size=9, **REFUSED)
    report = program.combee_report
    assert report.iterations == 4
    assert report.speculative + report.speculative_reads <= max(share * report.rollouts, 9 + 3)


def test_with_staleness_every_rollout_is_in_the_books_as_bought(world: Any) -> None:
    program, hook = _run(world, staleness=1, speculation=0.4, operators=["insert"], num_threads=16)
    bought = [one for one in hook.of(RolloutFinished) if not one.cached]
    assert len(bought) == len(world.task_lm.requests)
    assert program.combee_report.rollouts >= len(bought)


def test_what_is_given_up_and_begun_again_is_charged_once() -> None:
    ahead, key = Ahead(), RolloutKey("p", "s", "row")
    ahead.add(key, _entry("guess"))
    assert ahead.give_up(lambda entry: True, 1) == 1
    again = _entry("guess")
    ahead.add(key, again)
    assert again.charged
    assert ahead.give_up(lambda entry: True, 2) == 0


def test_a_budget_of_the_seeds_validation_buys_nothing_else(world: Any) -> None:
    program, _ = _run(world, max_metric_calls=12, num_threads=8)
    assert len(world.task_lm.requests) == program.combee_report.rollouts == 12
    assert not world.proposer_lm.requests


def test_a_broken_program_pays_for_no_reflection(world: Any) -> None:
    class Broken(dspy.Module):
        def __init__(self) -> None:
            super().__init__()
            self.answer = dspy.Predict("question -> answer")

        def forward(self, question: str) -> Any:
            self.answer(question=question)
            raise ValueError("a mistake of the program's author")

    with dspy.context(lm=world.task_lm), pytest.raises(Exception, match="student"):
        Combee(world.metric, max_metric_calls=100, reflection_lm=world.proposer_lm, num_threads=4, probe=False).compile(
            Broken(), trainset=world.examples(36), valset=world.examples(12, start=100)
        )
    assert not world.proposer_lm.requests


def test_what_ends_a_run_while_a_screen_runs_is_heard_before_the_screen_has_ended() -> None:
    """The hook ends the run when the child is proposed; the child's rollouts end only after the run has."""
    ended, late = threading.Event(), []

    class Spent(BaseException):
        pass

    class Ending(Hook):
        def handle(self, event: Event) -> None:
            if isinstance(event, CandidateProposed):
                raise Spent

    def task(request: ScriptedRequest) -> str:
        if _taught(request) and not ended.wait(5):
            late.append(_number(request))
        return _task_answer(request)

    world = World(ScriptedLM(task, model="scripted/task"), ScriptedLM(_proposer_answer, model="scripted/proposer"))
    close = Foresight.close

    def closing(self: Foresight, **kwargs: Any) -> None:
        ended.set()
        close(self, **kwargs)

    with pytest.MonkeyPatch.context() as patch, pytest.raises(Spent):
        patch.setattr(Foresight, "close", closing)
        _run(world, operators=["insert"], num_threads=16, hooks=[Ending()])
    assert not late, "the run waited for its screen"


def test_the_next_minibatch_is_read_while_a_childs_validation_still_runs() -> None:
    """A child's last validation question is answered only after the next iteration's reflections were asked for."""
    read = threading.Event()
    missed: list[int] = []
    asked: list[str] = []

    def task(request: ScriptedRequest) -> str:
        number = int(re.findall(r"Number (\d+):", request.last)[-1])
        if number == 111 and "the word for" in request.system and not read.wait(20):
            missed.append(number)
        return _task_answer(request)

    def propose(request: ScriptedRequest) -> str:
        asked.append(request.last)
        # The first minibatch of six is read in two shards.
        if len(asked) > 2:
            read.set()
        return _proposer_answer(request)

    world = World(ScriptedLM(task, model="scripted/task"), ScriptedLM(propose, model="scripted/proposer"))
    program, hook = _run(world, reflection_minibatch_size=6, speculation=0.6, operators=["insert"], num_threads=16)
    assert program.combee_report.iterations > 1
    assert not missed, "nothing was read beside the child's validation"
    # What was begun on a guess is told in its own iteration.
    started = {one: at for at, one in enumerate(hook.events) if isinstance(one, IterationStarted)}
    scans = [(one.iteration, at) for at, one in enumerate(hook.events) if isinstance(one, ScanStarted)]
    begun = {one.iteration: at for one, at in started.items()}
    assert all(at > begun[number] for number, at in scans if number > 1)


def _lossy(request: ScriptedRequest) -> str:
    """Keep the first lesson of each call: the others are lost, and offered once more."""
    rules = list(dict.fromkeys(re.findall(r"Rule: the word for \w+ is \w+", request.text)))
    return answer_in_kind(request, {"lessons": rules[:1]})


@pytest.fixture
def lossy() -> Any:
    return World(ScriptedLM(_task_answer, model="scripted/task"), ScriptedLM(_lossy, model="scripted/proposer"))


def test_a_guess_that_was_wrong_leaves_what_its_scan_was_to_rescue(lossy: Any) -> None:
    given = {**WRONG, "rescue": True, "aggregator": "parallel-scan"}
    program, hook = _run(lossy, speculation=0.6, **given)
    assert program.combee_report.speculative_reads > 0
    plain, without = _run(lossy, speculation=0.0, **given)
    assert plain.combee_report.speculative_reads == 0
    offered = {one.iteration: one.size for one in hook.of(ReflectionsMade)}
    assert max(offered.values()) > given["reflection_minibatch_size"], "something was rescued"
    # Guesses are paid for, so the search ends earlier; up to there it is the same.
    assert 2 < len(_course(hook)) <= len(_course(without))
    assert all(one in _course(without) for one in _course(hook))
    assert offered.items() <= {one.iteration: one.size for one in without.of(ReflectionsMade)}.items()


@pytest.mark.parametrize("selector", ["current_best", OnlyTheSeed()])
def test_a_run_resumes_with_what_a_guess_was_to_rescue(lossy: Any, tmp_path: Any, selector: Any) -> None:
    class Until:
        def __init__(self, iterations: int) -> None:
            self.iterations = iterations

        def __call__(self, state: Any) -> bool:
            return bool(state.i + 1 >= self.iterations)

    given = {**WRONG, "candidate_selection_strategy": selector, "rescue": True, "aggregator": "parallel-scan"}
    given |= {"speculation": 0.6, "max_metric_calls": 900}
    _, whole = _run(lossy, **given, gepa_kwargs={"stop_callbacks": [Until(4)]})
    parts = []
    for last in (1, 2, 4):
        _, part = _run(lossy, **given, gepa_kwargs={"stop_callbacks": [Until(last)]}, log_dir=str(tmp_path))
        parts += [one for one in _course(part) if one[0]]
    assert sorted(map(str, parts)) == sorted(str(one) for one in _course(whole) if one[0])
