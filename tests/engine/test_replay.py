"""The same run again: whatever the number of workers, and from its record where it has decided by time."""

from __future__ import annotations

import hashlib
import json
import time
from pathlib import Path
from typing import Any

import dspy
import pytest

from combee_dspy import Budget, Combee
from combee_dspy.controllers import BatchController, BatchView
from combee_dspy.engine.replaying import Decisions, decision_of, read_schedule
from combee_dspy.events import BatchPlanned, CandidateProposed, RunFinished, RunStopping, ValidationFinished
from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.records import BatchDecision
from combee_dspy.rollouts.scheduling import Recorded, ScheduleRecord
from combee_dspy.testing._scripted_lm import ScriptedLM
from tests.engine.conftest import Recorder, World, _proposer_answer, _task_answer
from tests.engine.test_ahead import OnlyTheSeed


def _late(answer: Any) -> Any:
    def slow(request: Any) -> Any:
        # Differs by request, and from one time to the next: the order of arrival does too.
        number = int.from_bytes(hashlib.sha256(request.text.encode()).digest()[:2])
        time.sleep((number + time.perf_counter_ns() % 65536) / 65536 * 0.004)
        return answer(request)

    return slow


class ByTheClock(BatchController):
    """Sizes that no two runs have in common by chance."""

    name = "by-the-clock"

    def plan(self, view: BatchView) -> BatchDecision:
        return BatchDecision(3 + time.perf_counter_ns() // 1000 % 7, "what the clock said", None, ())


def _run(workers: int, **kwargs: Any) -> tuple[dict[str, Any], Recorder]:
    """Return what must not depend on time, and the events."""
    world = World(
        ScriptedLM(_late(_task_answer), model="scripted/task"),
        ScriptedLM(_late(_proposer_answer), model="scripted/proposer"),
    )
    hook = Recorder()
    given = {
        "max_metric_calls": 160,
        "reflection_lm": world.proposer_lm,
        "num_threads": workers,
        "seed": 3,
        "speculation": 0.3,
        "screen": 4,
        "track_stats": True,
        "hooks": [hook],
        **kwargs,
    }
    with dspy.context(lm=world.task_lm, adapter=dspy.ChatAdapter()):
        program = Combee(world.metric, **given).compile(
            world.student(), trainset=world.examples(24), valset=world.examples(8, start=100)
        )
    validated = [(one.iteration, one.candidate_id, one.score) for one in hook.of(ValidationFinished)]
    report = program.combee_report
    return {
        "candidates": [dict(one.texts) for one in hook.of(ValidationFinished)],
        "validated": validated,
        "proposed": sorted((one.iteration, one.candidate_id) for one in hook.of(CandidateProposed)),
        "sizes": [one.size for one in report.decisions],
        "decisions": list(report.decisions),
        "iterations": report.iterations,
        "rollouts": report.rollouts,
        "speculative": report.speculative,
        "best": report.best_score,
        "chosen": hook.of(RunFinished)[-1].best_index,
        "text": program.signature.instructions,
    }, hook


@pytest.mark.parametrize(
    "given",
    [
        {"operators": ["insert", "few-shot-swap"]},
        # Every guess of one child is wrong.
        {"candidate_selection_strategy": OnlyTheSeed(), "speculation": 0.4},
    ],
)
def test_the_same_seed_gives_the_same_run_with_any_number_of_workers(given: dict[str, Any]) -> None:
    runs = {workers: _run(workers, reflection_minibatch_size=6, **given)[0] for workers in (1, 8, 64)}
    assert len(runs[1]["candidates"]) > 1
    assert runs[1]["speculative"] > 0
    assert runs[8] == runs[1]
    assert runs[64] == runs[1]


@pytest.mark.parametrize("staleness", [0, 1])
def test_a_recorded_run_is_replayed_with_any_number_of_workers(tmp_path: Path, staleness: int) -> None:
    first, _ = _run(8, controller=ByTheClock(), log_dir=str(tmp_path / "first"), staleness=staleness)
    assert len(first["candidates"]) > 1
    for workers in (1, 8, 64):
        again, hook = _run(workers, controller=ByTheClock(), replay=tmp_path / "first", staleness=staleness)
        assert again == first
        assert [one.decision for one in hook.of(BatchPlanned)] == first["decisions"][: len(hook.of(BatchPlanned))]


def test_a_run_of_the_default_controller_is_replayed(tmp_path: Path) -> None:
    first, _ = _run(8, log_dir=str(tmp_path / "first"))
    assert any(one.fit is not None for one in first["decisions"]) or len(set(first["sizes"])) > 1
    again, _ = _run(1, replay=next((tmp_path / "first").glob("schedule-*.jsonl")), log_dir=str(tmp_path / "second"))
    assert again == first
    third, _ = _run(64, replay=tmp_path / "second")
    assert third == first


def test_a_replayed_run_ends_where_the_clock_ended_the_first(tmp_path: Path) -> None:
    common: dict[str, Any] = {"max_metric_calls": None, "reflection_minibatch_size": 5}
    first, hook = _run(4, budget=Budget(seconds=0.3), log_dir=str(tmp_path), **common)
    (said,) = hook.of(RunStopping)
    # A budget that nothing would reach, and one that is reached at once: neither is asked.
    for budget in (Budget(seconds=1e6), Budget(seconds=1e-9)):
        again, other = _run(2, budget=budget, replay=tmp_path, **common)
        assert again == first
        assert other.of(RunStopping)[0].reason == said.reason


@pytest.mark.parametrize(
    "limits", [{"max_metric_calls": 120}, {"max_metric_calls": None, "budget": Budget(seconds=1e6)}]
)
def test_where_a_callback_ended_a_run_its_replay_ends_without_it(tmp_path: Path, limits: dict[str, Any]) -> None:
    ends = {"stop_callbacks": [lambda state: state.i >= 1]}
    first, hook = _run(4, gepa_kwargs=ends, reflection_minibatch_size=5, log_dir=str(tmp_path), **limits)
    assert first["iterations"] == 2
    again, other = _run(2, reflection_minibatch_size=5, replay=tmp_path, **limits)
    assert again == first
    for heard in (hook, other):
        assert [(one.iteration, one.reason) for one in heard.of(RunStopping)] == [(2, "gepa stopped")]


def test_a_run_that_is_resumed_where_it_ended_records_the_same_end(tmp_path: Path) -> None:
    ends = {"stop_callbacks": [lambda state: state.i >= 1]}
    for _ in range(2):
        _run(4, gepa_kwargs=ends, reflection_minibatch_size=5, log_dir=str(tmp_path))
    files = sorted(tmp_path.glob("schedule-*.jsonl"))
    said = [[json.loads(line) for line in file.read_text().splitlines()] for file in files]
    stops = [[one["iteration"] for one in lines if one.get("decision") == "stop"] for lines in said]
    assert stops == [[2], [2]]


def test_an_end_that_the_run_was_resumed_beyond_is_none() -> None:
    batch = Recorded("batch", 3, {"size": 7, "reason": "after", "fit": None, "clamps": []})
    resumed = Decisions(lambda decision: None, ScheduleRecord((), (Recorded("stop", 2, {"reason": "late"}), batch)))
    assert resumed.stop(5, lambda: None) is None


def test_what_is_no_record_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ArgumentValueError, match="holds no schedule"):
        read_schedule(tmp_path, None)
    (tmp_path / "schedule-001.jsonl").write_text("{}\n")
    with pytest.raises(ArgumentValueError, match="no schedule of this version"):
        read_schedule(tmp_path, None)
    with pytest.raises(ArgumentValueError, match="log_dir of this run"):
        read_schedule(tmp_path, str(tmp_path))


@pytest.mark.parametrize(
    "data", [{}, {"size": 0, "reason": ""}, {"size": True, "reason": ""}, {"size": 3, "reason": "", "fit": {"x": 1}}]
)
def test_a_decision_that_cannot_be_read_is_refused(data: dict[str, Any]) -> None:
    with pytest.raises(ArgumentValueError, match="batch decision"):
        decision_of(data)


def test_beyond_its_record_a_run_decides_by_itself() -> None:
    kept: list[Recorded] = []
    known = BatchDecision(7, "before", None, ())
    noted = Decisions(kept.append)
    noted.planned(ByTheClock()).plan(BatchView(1, 20))
    assert 3 <= kept[0].values["size"] <= 9

    record = ScheduleRecord((), (Recorded("batch", 1, {"size": 7, "reason": "before", "fit": None, "clamps": []}),))
    following = Decisions(kept.append, record)
    assert following.planned(ByTheClock()).plan(BatchView(1, 20)) == known
    assert following.planned(ByTheClock()).plan(BatchView(2, 20)).reason == "what the clock said"
    assert following.stop(1, lambda: "enough") == "enough"
    ended = Decisions(kept.append, ScheduleRecord((), (Recorded("stop", 2, {"reason": "late"}),)))
    assert [ended.stop(iteration, lambda: "enough") for iteration in (1, 2, 3)] == [None, "late", "late"]


@pytest.mark.parametrize("reached", [True, False])
def test_whether_a_limit_on_cost_was_reached_is_recorded_and_replays(reached: bool) -> None:
    kept: list[Recorded] = []
    noted = Decisions(kept.append)
    assert noted.cost_reached(2, lambda: reached) is reached
    noted.stopped(2, "the budget", cost_reached=reached)
    again = Decisions(lambda decision: None, ScheduleRecord((), tuple(kept)))
    assert again.cost_reached(2, lambda: not reached) is reached
    assert again.cost_reached(1, lambda: not reached) is not reached
    # A record from before it was noted: finalists were drawn again then.
    older = ScheduleRecord((), (Recorded("stop", 2, {"reason": "late"}),))
    assert not Decisions(kept.append, older).cost_reached(2, lambda: True)


def test_decisions_stand_beside_the_schedule(tmp_path: Path) -> None:
    _run(8, controller=ByTheClock(), log_dir=str(tmp_path))
    lines = [json.loads(line) for line in (tmp_path / "schedule-001.jsonl").read_text().splitlines()]
    assert {line["decision"] for line in lines if "decision" in line} == {"batch", "guess", "stop"}
    lanes = {lane for line in lines for lane, _ in line.get("tasks", ())}
    assert {"reflection", "screening", "rollout", "validation"} <= lanes
    assert all(key for line in lines for _, key in line.get("tasks", ()))
    assert {line["iteration"] for line in lines if "tasks" in line} > {0, 1}
