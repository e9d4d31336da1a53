from __future__ import annotations

import heapq
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from combee_dspy.bench import Call, bound_of, in_stages
from combee_dspy.exceptions import ArgumentValueError


def calls(*places: tuple[float, float], needs: dict[int, tuple[int, ...]] | None = None) -> list[Call]:
    made = [Call(start, end, end - start, needs=(needs or {}).get(at, ())) for at, (start, end) in enumerate(places)]
    return in_stages(made)


def test_one_batch_after_another_is_the_sum_of_the_longest_of_each() -> None:
    # Three rollouts, a reflection, three rollouts: serial GEPA's iteration.
    found = bound_of(calls((0, 2), (0, 3), (0, 1), (3.5, 13.5), (14, 15), (14, 16), (14, 18)), slots=64)
    assert found.staged == 3 + 10 + 4
    assert found.stages == 3
    # Nothing in its texts says that the batches need each other.
    assert found.chain == 10


def test_more_than_the_slots_can_serve_is_bound_by_the_slots() -> None:
    found = bound_of(calls(*[(0.0, float(end)) for end in (1, 1, 2, 2)]), slots=2)
    assert found.staged == found.capacity == found.free == 3.0


def test_a_chain_counts_however_it_overlaps_with_others() -> None:
    # A shard's reflection starts when its own rollout has ended, beside a longer rollout.
    found = bound_of(calls((0, 2), (0, 6), (2, 7), (7, 9), needs={2: (0,), 3: (2,)}), slots=64)
    assert found.stages == 1
    assert found.chain == 2 + 5 + 2
    assert found.staged == found.free == 9.0


def test_a_long_call_that_starts_last_is_in_the_schedule_though_no_bound_sees_it() -> None:
    found = bound_of(calls((0, 2), (0, 2), (0, 2), (0, 8)), slots=2)
    # The slots alone could serve the long one beside the three others.
    assert found.staged == 8.0
    assert found.schedule == 2 + 8


def test_a_call_that_waits_for_what_it_needs_leaves_its_slot_to_others() -> None:
    found = bound_of(calls((0, 6), (6, 8), (6, 10), needs={1: (0,)}), slots=1)
    assert found.schedule == 6 + 2 + 4
    assert bound_of(calls((0, 6), (6, 8), (6, 10), needs={1: (0,)}), slots=2).schedule == 8.0


def test_time_in_which_nothing_is_asked_is_in_no_bound() -> None:
    found = bound_of(calls((0, 1), (100, 101)), slots=1)
    assert found.staged == 2.0


def test_a_call_that_waits_for_a_slot_is_in_flight() -> None:
    # Both came at once; the second was served after the first.
    waited = [Call(0.0, 1.0, 1.0), Call(0.0, 2.0, 1.0)]
    assert {call.stage for call in in_stages(waited)} == {0}


def test_stages_keep_the_order_of_the_calls() -> None:
    assert [call.stage for call in calls((10, 11), (0, 1), (4, 6), (5, 7))] == [2, 0, 1, 1]


def test_no_calls_take_no_time() -> None:
    found = bound_of([], slots=4)
    assert (found.capacity, found.chain, found.staged, found.stages, found.schedule) == (0.0, 0.0, 0.0, 0, 0.0)


@pytest.mark.parametrize("needs", [(1,), (7,), (-1,)])
def test_a_call_cannot_need_what_had_not_ended(needs: tuple[int, ...]) -> None:
    with pytest.raises(ArgumentValueError, match="which needs it"):
        bound_of(calls((0, 2), (1, 3), needs={0: needs}), slots=2)


def test_a_service_without_slots_is_refused() -> None:
    with pytest.raises(ArgumentValueError, match="slots"):
        bound_of([], slots=0)


@st.composite
def schedules(draw: st.DrawFn) -> tuple[list[Call], int]:
    """Calls as a service with some slots served them: in order of arrival, each after what it needs."""
    slots = draw(st.integers(1, 4))
    free = [0.0] * slots
    served: list[Call] = []
    for number in range(draw(st.integers(1, 14))):
        needs = draw(st.sets(st.integers(0, number - 1), max_size=3)) if number else set()
        sent = max((served[one].end for one in needs), default=0.0) + draw(st.integers(0, 3))
        seconds = float(draw(st.integers(1, 9)))
        end = max(sent, heapq.heappop(free)) + seconds
        heapq.heappush(free, end)
        served.append(Call(sent, end, seconds, needs=tuple(sorted(needs))))
    return in_stages(served), slots


@given(schedules())
def test_no_bound_exceeds_what_was_measured_and_barriers_only_add(case: tuple[list[Call], int]) -> None:
    served, slots = case
    found = bound_of(served, slots)
    took = max(call.end for call in served) - min(call.start for call in served)
    longest = max(call.seconds for call in served)
    assert longest <= found.free <= found.staged + 1e-9
    assert found.staged <= took + 1e-9
    # A plan on the slots is possible, so it is no shorter than what no plan beats.
    assert found.staged <= found.schedule + 1e-9


@given(schedules())
def test_more_slots_never_raise_a_bound(case: tuple[list[Call], int]) -> None:
    served, slots = case
    fewer, more = bound_of(served, slots), bound_of(served, slots + 1)
    assert more.staged <= fewer.staged
    assert more.chain == fewer.chain


@given(schedules(), st.integers(2, 5))
def test_slower_service_raises_every_bound_alike(case: tuple[list[Call], int], factor: int) -> None:
    served, slots = case
    slower = [
        replace(one, start=one.start * factor, end=one.end * factor, seconds=one.seconds * factor) for one in served
    ]
    assert in_stages(slower) == slower
    assert bound_of(slower, slots).staged == pytest.approx(factor * bound_of(served, slots).staged)
