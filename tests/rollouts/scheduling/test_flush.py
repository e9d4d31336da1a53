"""Flush rules and their algebra."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from combee_dspy.exceptions import ArgumentTypeError, ArgumentValueError
from combee_dspy.rollouts.scheduling import FlushRule, FlushView, at_once, queue_at_least, variance_below, waited
from combee_dspy.rollouts.scheduling._flush import ask

VIEWS = st.builds(
    FlushView,
    queued=st.integers(0, 100),
    oldest=st.floats(0, 10),
    free=st.integers(0, 10),
    target=st.integers(1, 64),
    variance=st.none() | st.floats(0, 1),
)
SIMPLE = st.one_of(
    st.builds(queue_at_least, st.integers(1, 80) | st.just("target")),
    st.builds(waited, st.floats(0, 10)),
    st.builds(variance_below, st.floats(0.001, 1)),
    st.builds(at_once),
)
RULES = st.recursive(
    SIMPLE, lambda inner: st.builds(lambda a, b, both: a & b if both else a | b, inner, inner, st.booleans())
)


def fires(rule: FlushRule, view: FlushView) -> bool:
    return ask(rule, view) is not None


@given(RULES, RULES, RULES, VIEWS)
def test_composition_is_the_algebra_of_or_and_and(a, b, c, view):
    assert fires(a | b, view) == (fires(a, view) or fires(b, view))
    assert fires(a & b, view) == (fires(a, view) and fires(b, view))
    assert fires((a | b) | c, view) == fires(a | (b | c), view)
    assert fires((a & b) & c, view) == fires(a & (b & c), view)
    assert fires(a & (b | c), view) == fires((a & b) | (a & c), view)


@given(RULES, RULES)
def test_composed_rules_are_equal_where_their_parts_are(a, b):
    assert (a | b) == (a | b)
    assert hash(a & b) == hash(a & b)
    assert (a | b) != (a & b)


@given(RULES, VIEWS)
def test_a_rule_that_waits_for_the_clock_alone_fires_when_it_says_so(rule, view):
    due = rule.due(view)
    if due is None or fires(rule, view):
        return
    assert due >= 0
    later = FlushView(view.queued, view.oldest + due + 1e-9, view.free, view.target, view.variance)
    # Either it fires then, or what it still waits for is not the clock.
    assert fires(rule, later) or rule.due(later) is None or rule.due(later) > 0


def test_what_each_rule_reads():
    assert not fires(queue_at_least(3), FlushView(2))
    assert fires(queue_at_least(3), FlushView(3))
    assert not fires(queue_at_least("target"), FlushView(36, target=37))
    assert fires(queue_at_least("target"), FlushView(37, target=37))
    assert not fires(waited(0.2), FlushView(1, oldest=0.1))
    assert fires(waited(0.2), FlushView(1, oldest=0.2))
    assert waited(0.5).due(FlushView(1, oldest=0.2)) == pytest.approx(0.3)
    assert not fires(variance_below(0.1), FlushView(1, variance=None))
    assert not fires(variance_below(0.1), FlushView(1, variance=0.1))
    assert fires(variance_below(0.1), FlushView(1, variance=0.09))
    assert not fires(at_once(), FlushView(1, free=0))


def test_reasons_name_the_rules_that_fired():
    rule = queue_at_least(2) | waited(0.2)
    assert rule.check(FlushView(2, oldest=0.3)) == "2 wait, of 2; waited 0.2 s"
    assert rule.check(FlushView(1, oldest=0.3)) == "waited 0.2 s"
    assert repr(rule & variance_below(0.5)).count("|") == 1


@given(RULES)
def test_no_rule_releases_an_empty_queue(rule):
    assert not fires(rule, FlushView(0, oldest=100.0, variance=0.0))


@pytest.mark.parametrize(
    "make",
    [
        lambda: queue_at_least(0),
        lambda: queue_at_least("all"),
        lambda: queue_at_least(True),
        lambda: waited(-1),
        lambda: waited(float("nan")),
        lambda: variance_below(0),
    ],
)
def test_what_no_rule_can_use_is_refused(make):
    with pytest.raises(ArgumentValueError):
        make()


def test_composing_with_something_else_is_no_rule():
    with pytest.raises(TypeError):
        waited(1) | 3  # type: ignore[operator]
    with pytest.raises(TypeError):
        waited(1) & None  # type: ignore[operator]


def test_an_answer_that_is_no_reason_is_refused():
    class Odd(FlushRule):
        def check(self, view):
            return False

    with pytest.raises(ArgumentTypeError, match="Odd"):
        ask(Odd() | waited(0), FlushView(1))
