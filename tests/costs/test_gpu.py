from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from combee_dspy.costs import Ledger, LMCall, check_gpus, share_gpu_seconds
from combee_dspy.costs._gpu import GpuMeter
from combee_dspy.exceptions import ArgumentTypeError, ArgumentValueError

ROLES = ("task", "reflector", "proposer", "evaluator", "serving")
INTERVALS = st.lists(
    st.tuples(st.integers(0, 50), st.integers(0, 20)).map(lambda pair: (float(pair[0]), float(pair[0] + pair[1]))),
    max_size=12,
)


def test_gpus_are_busy_once_however_many_calls_share_them() -> None:
    total, shares = share_gpu_seconds([(0.0, 4.0), (2.0, 4.0), (10.0, 11.0)], 8)
    assert total == 8 * 5.0
    assert shares == (8 * 3.0, 8 * 1.0, 8 * 1.0)
    assert share_gpu_seconds([], 8) == (0.0, ())


@given(INTERVALS)
def test_shares_add_up_to_the_union(intervals: list[tuple[float, float]]) -> None:
    union = sum(any(start <= second < end for start, end in intervals) for second in range(80))
    total, shares = share_gpu_seconds(intervals, 2.0)
    assert total == pytest.approx(2.0 * union)
    assert sum(shares) == pytest.approx(total)


@given(INTERVALS)
def test_counting_as_calls_come_and_go_gives_the_same(intervals: list[tuple[float, float]]) -> None:
    meter = GpuMeter(2.0)
    moments = [(start, 0, index) for index, (start, _) in enumerate(intervals)]
    moments += [(end, 1, index) for index, (_, end) in enumerate(intervals)]
    started: dict[int, float] = {}
    shares: dict[int, float] = {}
    for moment, kind, index in sorted(moments):
        if kind == 0:
            started[index] = meter.start(moment)
        else:
            shares[index] = meter.stop(started[index], moment)
    assert [shares[index] for index in range(len(intervals))] == pytest.approx(share_gpu_seconds(intervals, 2.0)[1])


def _ledger(gpus: dict[str, float] | None) -> tuple[Ledger, list[float]]:
    now = [0.0]
    return Ledger(clock=lambda: now[0], gpus=gpus), now  # type: ignore[arg-type]  # roles


def test_the_ledger_charges_roles_with_gpus_and_knows_nothing_of_others() -> None:
    ledger, now = _ledger({"task": 8.0})
    first = ledger.begin("task", "small")
    api = ledger.begin("proposer", "big")
    now[0] = 2.0
    done = ledger.finish(LMCall("a", "task", "small"), first)
    ledger.finish(LMCall("b", "proposer", "big"), api)
    cached = ledger.begin("task", "small")
    now[0] = 3.0
    ledger.finish(LMCall("c", "task", "small", cached=True), cached)
    totals = ledger.snapshot()
    assert done.gpu_seconds == 16.0
    # A cache needs no GPU; a model behind an API has none: unknown, not zero.
    assert totals.by_role["task"].gpu_seconds == 16.0
    assert totals.by_role["proposer"].gpu_seconds is None
    assert totals.by_model["task", "small"].gpu_seconds == 16.0
    assert totals.total.gpu_seconds == 16.0
    assert totals.to_dict()["by_role"]["proposer"]["gpu_seconds"] is None


def test_where_nothing_is_declared_nothing_is_known() -> None:
    ledger, now = _ledger(None)
    started = ledger.begin("task", "small")
    now[0] = 2.0
    assert ledger.finish(LMCall("a", "task", "small"), started).gpu_seconds is None
    assert ledger.snapshot().total.gpu_seconds is None


@pytest.mark.parametrize(
    ("gpus", "kind"),
    [
        (8, ArgumentTypeError),
        ({"tasks": 8}, ArgumentValueError),
        ({"task": "8"}, ArgumentTypeError),
        ({"task": True}, ArgumentTypeError),
        ({"task": 0}, ArgumentValueError),
        ({"task": float("nan")}, ArgumentValueError),
    ],
)
def test_a_wrong_declaration_is_named(gpus: Any, kind: type[Exception]) -> None:
    with pytest.raises(kind, match="gpus"):
        check_gpus(gpus, ROLES)
    assert check_gpus({"task": 8, "evaluator": 0.5}, ROLES) == {"task": 8.0, "evaluator": 0.5}
    assert check_gpus(None, ROLES) == {}
