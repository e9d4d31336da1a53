"""How many tasks a service takes at once, found out from what becomes of them: the pure part.

The rules, by what they react to:

- *Start.* From a small number, each task that ends while the limit is reached
  raises the limit by one, so it doubles in a round trip and the excess is found
  a request at a time (slow start, RFC 5681 section 3.1).
- *Rejection.* A service that rejects some of n requests in flight holds the
  others: the limit becomes n minus the tasks rejected. Within one round trip
  (as many ends as tasks were in flight) a task counts once, and the limit
  falls to no less than half. The level is remembered and probed above rarely:
  by one task after two full round trips, then four, eight … up to 64; a probe
  that holds doubles the next step. A lone rejection outside of a probe may be chance
  and is forgiven after a round trip.
- *Latency.* Seconds of a task over the median of its lane; lanes differ in
  length. Two windows in a row whose median is above 1.4 are a queue of the
  service: the limit becomes what would be in flight without it (Little 1961:
  level ÷ ratio). Then the next two windows must be faster for it. If they
  are not, tasks have become longer and nothing queues: the limit returns and the medians are
  measured anew.
"""

from __future__ import annotations

import math
from dataclasses import replace
from statistics import median

from combee_dspy.rollouts._adaptive_state import (
    FIRST_PAUSE,
    WINDOW,
    Change,
    Finished,
    Lane,
    Observation,
    Recovery,
    Rejected,
    Started,
    State,
    Trial,
)

__all__ = ["Change", "Finished", "Observation", "Rejected", "Started", "State", "begin", "step"]

# 4.3 standard errors of a window's median away from 1, where the spread is lognormal with sigma 0.35.
HIGH = 1.4
LARGEST_WINDOW = 512
# Beyond these it is no queue: an answer from a cache, or a task of another kind.
CACHED = 0.1
ANOTHER_KIND = 8.0
# The reference follows what is no queue: quickly down, slowly up.
CALM = 1.2
FALL, RISE = 0.25, 0.1
LONGEST_HOLD = 120.0
LONGEST_PAUSE = 64
# A probe against latency must be large enough to be seen in two windows.
LATENCY_PROBE = 0.25
FULL_SHARE = 0.8
FORGIVEN = 2
_MARKS = 48


def begin(start: int, ceiling: int) -> State:
    """Return the state before the first task.

    Args:
        start: First limit, at least 1.
        ceiling: The most there may ever be, at least ``start``.
    """
    return State(limit=start, ceiling=ceiling, marks=((-math.inf, start),))


def step(state: State, observation: Observation) -> State:
    """Return the state after one observation. Pure.

    Args:
        state: What is known. Times of observations do not run backwards.
        observation: What happened.
    """
    if isinstance(observation, Started):
        return replace(state, in_flight=state.in_flight + 1)
    if isinstance(observation, Rejected):
        return _rejected(state, observation)
    return _finished(state, observation)


def _move(state: State, limit: int, reason: str, now: float) -> State:
    limit = max(1, min(limit, state.ceiling))
    if limit == state.limit:
        return state
    last = state.marks[-1][1]
    # In a slow start every step would be a mark: those of a tenth will do.
    marks = state.marks
    if abs(limit - last) * 10 >= last:
        marks = (*marks, (now, limit))[-_MARKS:]
    return replace(
        state,
        limit=limit,
        marks=marks,
        clean=0,
        ends=0,
        full=0,
        change=Change(state.limit, limit, reason),
        changes=state.changes + 1,
    )


def _rejected(state: State, rejection: Rejected) -> State:
    now = rejection.now
    wait = rejection.retry_after
    if wait is not None and math.isfinite(wait) and wait > 0:
        state = replace(state, held_until=max(state.held_until, now + min(wait, LONGEST_HOLD)))
    found = state.recovery
    who = frozenset() if rejection.who is None else frozenset({rejection.who})
    if found is None:
        # Where the limit was not reached, few tasks say little about it.
        level = state.in_flight if state.in_flight * 2 >= state.limit else state.limit
        found = Recovery(level, state.limit, max(1, level // 2), who, 1, state.probing)
    elif rejection.who is not None and rejection.who in found.who:
        return replace(state, recovery=replace(found, total=found.total + 1), fresh_from=now)
    else:
        level = state.limit
        found = replace(found, who=found.who | who, total=found.total + 1)
    # A task that fails above a limit already lowered in this round trip cannot raise it again.
    limit = min(state.limit, max(found.floor, level - 1))
    state = _move(replace(state, recovery=found, cut=None, window=(), high=0), limit, "rejected", now)
    return replace(
        state,
        roof=state.limit,
        starting=False,
        by_latency=False,
        probing=False,
        stride=1,
        fresh_from=now,
    )


def _finished(state: State, end: Finished) -> State:
    was_full = state.in_flight >= state.limit
    state = replace(state, in_flight=max(0, state.in_flight - 1))
    if end.outcome == "cancelled":
        return state
    if state.recovery is not None:
        return _recover(state, state.recovery, end)
    if end.outcome == "ok" and end.seconds >= 0:
        state, counts = _sample(state, end)
        if _window_is_full(state):
            state = _read_window(state, end)
        if state.starting and was_full and counts and end.may_grow and state.high == 0:
            return _move(state, state.limit + 1, "filled", end.now)
    state = replace(state, ends=state.ends + 1, full=state.full + was_full)
    return _round_trip(state, end) if state.ends >= max(state.limit, 1) else state


def _recover(state: State, found: Recovery, end: Finished) -> State:
    found = replace(found, ends=found.ends + 1)
    if found.ends < found.level or state.in_flight > state.limit:
        return replace(state, recovery=found)
    state = replace(state, recovery=None, clean=0, ends=0, full=0, fresh_from=end.now)
    if found.probing:
        return replace(state, pause=min(LONGEST_PAUSE, state.pause * 2), forgiven=0)
    lone = len(found.who) <= max(1, found.level // 50) and found.total <= 2 * max(1, len(found.who))
    if lone and found.before <= found.level and state.forgiven < FORGIVEN:
        state = _move(state, found.before, "forgiven", end.now)
        return replace(state, roof=state.limit, forgiven=state.forgiven + 1)
    return replace(state, pause=FIRST_PAUSE, forgiven=0)


def _round_trip(state: State, end: Finished) -> State:
    """Grow, or not, after as many ends as the limit."""
    filled = state.full >= FULL_SHARE * state.ends
    state = replace(state, ends=0, full=0, forgiven=state.forgiven if not filled else 0)
    if state.starting or not filled:
        return state
    if state.by_latency and state.probing:
        return state  # a probe against latency is read from its windows
    if state.probing:
        return _held(state, end)
    state = replace(state, clean=state.clean + 1)
    if state.cut is not None or not end.may_grow or state.limit >= state.ceiling:
        return state
    if state.limit < state.roof:
        return _move(state, min(state.roof, state.limit + max(1, state.limit // 2)), "filled", end.now)
    return _probe(state, end) if state.clean >= state.pause else state


def _probe(state: State, end: Finished) -> State:
    stride = max(1, math.ceil(state.limit * LATENCY_PROBE)) if state.by_latency else state.stride
    state = replace(state, roof=state.limit, probing=True, fresh_from=end.now, window=(), high=0)
    return _move(state, state.limit + stride, "probe", end.now)


def _held(state: State, end: Finished) -> State:
    """The probe was right: what holds is the new roof, and the next step is twice as large."""
    state = replace(state, roof=state.limit, probing=False, pause=1, clean=0, stride=min(2 * state.stride, state.limit))
    return _probe(state, end) if end.may_grow and state.limit < state.ceiling else state


def _sample(state: State, end: Finished) -> tuple[State, bool]:
    """Add a task's seconds to the window; tell whether a service can have answered it."""
    lanes = dict(state.lanes)
    started = end.now - end.seconds
    level = _level(state, started)
    lane = lanes.get(end.lane) or Lane(wanted=_window(level))
    if lane.base is None:
        first = (*lane.first, end.seconds)
        base = median(first) if len(first) >= lane.wanted else 0.0
        lanes[end.lane] = replace(lane, base=base, first=()) if base else replace(lane, first=first[-lane.wanted :])
        return replace(state, lanes=tuple(lanes.items())), True
    ratio = end.seconds / lane.base
    if ratio < CACHED:
        return state, False
    if started < state.fresh_from:
        return state, True
    return replace(state, window=(*state.window, (ratio, level))), True


def _level(state: State, when: float) -> int:
    for time, limit in reversed(state.marks):
        if time <= when:
            return limit
    return state.marks[0][1]


def _window(level: int) -> int:
    # Tasks that began together end shortest first: a window holds as many as could have.
    return min(max(WINDOW, level), LARGEST_WINDOW)


def _window_is_full(state: State) -> bool:
    size = len(state.window)
    if size < (2 * WINDOW if state.cut is not None or state.probing else WINDOW):
        return False
    return size >= _window(state.window[0][1])


def _read_window(state: State, end: Finished) -> State:
    ratio = median(ratio for ratio, _ in state.window)
    level = median(level for _, level in state.window)
    state = replace(state, window=())
    if state.cut is not None:
        return _judge_cut(state, state.cut, ratio, level, end)
    if ratio > ANOTHER_KIND:
        return replace(_rebase(state, ratio), high=0)
    if state.probing and state.by_latency:
        if ratio < math.sqrt(1 + LATENCY_PROBE):
            return _held(_follow(state, ratio), end)
        state = replace(state, probing=False, pause=min(LONGEST_PAUSE, state.pause * 2), high=0, fresh_from=end.now)
        return _move(state, min(state.roof, max(1, round(level / ratio))), "latency", end.now)
    if ratio < HIGH:
        return replace(_follow(state, ratio), high=0)
    if state.high == 0 or state.limit == 1:
        return replace(state, high=1)
    return _cut(state, ratio, level, end)


def _cut(state: State, ratio: float, level: float, end: Finished) -> State:
    trial = Trial(state.limit, level, ratio)
    limit = max(state.limit // 4, min(round(level / ratio), state.limit - 1))
    state = replace(
        state, starting=False, by_latency=True, probing=False, high=0, pause=FIRST_PAUSE, fresh_from=end.now, cut=trial
    )
    state = _move(state, limit, "latency", end.now)
    return replace(state, roof=state.limit)


def _judge_cut(state: State, cut: Trial, ratio: float, level: float, end: Finished) -> State:
    """Fewer tasks in flight are faster if they had queued, and as slow as before if they had not."""
    state = replace(state, cut=None, high=0)
    if math.log(ratio / cut.ratio) <= 0.5 * math.log(min(level, cut.level - 0.5) / cut.level):
        return state
    state = _rebase(state, ratio)
    state = _move(replace(state, fresh_from=end.now), cut.old, "not-queueing", end.now)
    return replace(state, roof=state.limit, by_latency=False, clean=0)


def _follow(state: State, ratio: float) -> State:
    if ratio >= CALM:
        return state
    return _rebase(state, ratio ** (FALL if ratio < 1 else RISE))


def _rebase(state: State, factor: float) -> State:
    lanes = tuple((n, lane if lane.base is None else replace(lane, base=lane.base * factor)) for n, lane in state.lanes)
    return replace(state, lanes=lanes)
