from __future__ import annotations

from combee_dspy.bench import bound_of
from combee_dspy.bench.speed_needs import calls_of
from combee_dspy.lms.simulated import CallRecord, Kind, SimulatedQuestion, SimulatedTask, Status
from combee_dspy.lms.simulated.requests import Message

TASK = SimulatedTask(
    tuple(
        SimulatedQuestion(f"Who guards gate {number} at night?", f"guard {number}", "nobody", key, "name a guard")
        for number, key in enumerate(("G1", "G2", "G3"))
    )
)


def call(kind: Kind, start: float, end: float, asked: str, system: str = "Answer.", text: str = "") -> CallRecord:
    messages = (Message("system", system), Message("user", asked))
    return CallRecord(kind, Status.OK, start, start, end, end - start, 1, 1, messages, text)


def rollout(number: int, start: float, end: float, system: str = "Answer.") -> CallRecord:
    return call(Kind.TASK, start, end, TASK.questions[number].text, system)


def reflection(numbers: tuple[int, ...], start: float, end: float, writes: tuple[str, ...] = ()) -> CallRecord:
    shown = "\n".join(f"{TASK.questions[number].text} nobody" for number in numbers)
    return call(Kind.REFLECT, start, end, shown, text="\n".join(f"[{key}] name a guard" for key in writes))


def test_a_reflection_needs_the_rollouts_that_it_shows_and_a_child_the_reflections_that_wrote_it() -> None:
    child = "Answer.\n- [G1] name a guard"
    log = [
        rollout(0, 0, 2),
        rollout(1, 0, 9),
        reflection((0,), 2, 5, ("G1",)),
        reflection((1,), 9, 10, ("G2",)),
        rollout(2, 10, 11, child),
    ]
    found = calls_of(log, TASK)
    assert [one.needs for one in found] == [(), (), (0,), (1,), (2,)]
    assert {one.stage for one in found} == {0}
    # The longest: the slow rollout and its reflection, whose lesson the child does not hold.
    assert bound_of(found, slots=8).chain == 10


def test_a_join_needs_every_part_that_wrote_what_it_holds() -> None:
    child = "Answer.\n- [G1] name a guard\n- [G2] name a guard"
    log = [reflection((), 0, 3, ("G1",)), reflection((), 0, 7, ("G1", "G2")), rollout(0, 7, 8, child)]
    assert calls_of(log, TASK)[-1].needs == (0, 1)


def test_a_candidate_needs_nothing_that_came_after_its_first_rollout() -> None:
    child = "Answer.\n- [G1] name a guard"
    log = [
        reflection((), 0, 2, ("G1",)),
        rollout(0, 2, 3, child),
        reflection((0,), 3, 6, ("G1",)),
        rollout(1, 6, 7, child),
    ]
    assert calls_of(log, TASK)[-1].needs == (0,)


def test_a_demonstration_needs_the_rollout_that_it_shows() -> None:
    shown = f"Answer.\n{TASK.questions[2].text} guard 2"
    log = [rollout(2, 0, 4), rollout(0, 5, 6, shown)]
    assert calls_of(log, TASK)[-1].needs == (0,)


def test_the_last_rollout_of_a_question_is_the_one_that_is_shown() -> None:
    log = [rollout(0, 0, 1), rollout(0, 1, 3), rollout(0, 1, 9), reflection((0,), 4, 5)]
    assert calls_of(log, TASK)[-1].needs == (1,)


def test_a_call_without_any_of_this_needs_nothing() -> None:
    log = [rollout(0, 0, 1), call(Kind.OTHER, 2, 3, "Are you there?")]
    assert [(one.needs, one.stage) for one in calls_of(log, TASK)] == [((), 0), ((), 1)]
