from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from combee_dspy import events
from combee_dspy.tracking.report import Collector, render
from combee_dspy.tracking.report._schedule import BINS, Schedule


def _flush(**values: object) -> events.ScheduleDecided:
    return events.ScheduleDecided(iteration=1, schedule_id="s", decision="flush", values=values)


moments = st.lists(
    st.tuples(st.floats(0, 1e5), st.integers(0, 50), st.sampled_from(["rollout", "reflect"])), max_size=60
)


@given(moments)
def test_nothing_is_lost_however_long_the_run_and_the_bins_stay_few(told: list[tuple[float, int, str]]) -> None:
    schedule = Schedule()
    schedule.begin(0.0)
    for at, tasks, lane in sorted(told):
        schedule.decided(_flush(reason="full", batches=1, tasks=tasks, lanes={lane: tasks}, queued=tasks, limit=8), at)
    view = schedule.view()
    assert len(view.ticks) <= BINS
    assert sum(tick.total for tick in view.ticks) == sum(tasks for _, tasks, _ in told)
    assert max((tick.queued for tick in view.ticks), default=0) == max((tasks for _, tasks, _ in told), default=0)
    assert all(0 <= tick.seconds < (BINS + 1) * view.width for tick in view.ticks)
    assert sum(one.tasks for one in view.releases) == sum(tasks for _, tasks, _ in told)


def test_a_pause_between_two_processes_is_no_part_of_the_run() -> None:
    schedule = Schedule()
    schedule.begin(1_000.0)
    schedule.decided(_flush(lanes={"rollout": 1}), 1_001.0)
    schedule.begin(90_000.0)
    schedule.decided(_flush(lanes={"rollout": 1}), 90_001.0)
    assert [tick.seconds for tick in schedule.view().ticks] == [1.0, 2.0]


def test_what_a_decision_says_wrongly_counts_as_nothing(hostile: str) -> None:
    schedule = Schedule()
    odd: list[object] = [None, "many", -3, True, 1.5, [1], {"x": 1}]
    for value in odd:
        schedule.decided(_flush(reason=value, lanes=value, queued=value, limit=value, batches=value), 1.0)
        schedule.decided(_flush(lanes={"rollout": value}), 1.0)
    for number in range(40):
        schedule.decided(_flush(lanes={f"{hostile} {number}": 2}, reason=f"{number}"), 2.0)
    view = schedule.view()
    assert sum(tick.total for tick in view.ticks) == 1 + 80
    assert len(view.lanes) <= 7
    assert len(view.releases) <= 13


def test_the_page_shows_what_was_released_and_why(hostile: str) -> None:
    collector = Collector()
    for at in (1.0, 2.0, 3.5):
        collector.hear(events.IterationStarted(iteration=1), at)
        values = {"reason": f"queue full {hostile}", "batches": 2, "lanes": {"rollout": 5, hostile: 2}, "queued": 9}
        collector.hear(_flush(**values, limit=16), at)
    collector.hear(events.ScheduleDecided(iteration=1, schedule_id="s", decision="preemption", values={}), 3.6)
    page = render(collector.data())
    assert "Tasks released over time, by lane: 21" in page
    assert "Slots and queue over time: at most 16 tasks" in page
    assert "gave way to more urgent ones 1 times" in page
    assert "<script" not in page
