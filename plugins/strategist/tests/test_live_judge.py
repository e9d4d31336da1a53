"""What waits for the judge outlives its server, and is judged once."""

from __future__ import annotations

import dspy
import pytest

from combee_dspy.files import take_lock
from plugins.strategist.tests.test_live_reviewed import rows


class Judge:
    def __init__(self):
        self.asked = []

    def __call__(self, gold, pred, *more):
        self.asked.append(gold.question)
        return dspy.Prediction(score=0.0, feedback="Rule: the code for cup is K2")


@pytest.fixture
def judge():
    return Judge()


def redeploy(here):
    here.settle()
    here.server.close(0.05)
    here.server = here.remake().serve()
    here.settle()


def test_a_server_asks_the_judge_about_what_one_before_it_served(desk, judge):
    here = desk(judge=judge)
    here.ask("cup")
    for _ in range(4):
        here.clock.pass_hours(5)
        redeploy(here)
        assert judge.asked == []
    here.clock.pass_hours(5)
    here.settle()
    assert judge.asked == ["Number 0: code for cup?"]
    (row,) = rows(here)
    assert (row.trace.score, row.trace.feedback) == (0.0, "Rule: the code for cup is K2")
    redeploy(here)
    assert len(judge.asked) == 1


def test_the_judge_is_not_asked_about_what_was_labelled_or_is_too_old(desk, judge):
    here = desk(judge=judge)
    here.ask("ant")
    here.server.close(0.05)
    here.clock.pass_hours(24 * 8)
    here.server = here.remake().serve()
    request, _ = here.ask("bell")
    here.ask("cup")
    here.server.feedback(request, score=True)
    redeploy(here)
    here.clock.pass_hours(25)
    here.settle()
    assert judge.asked == ["Number 2: code for cup?"]


def test_one_server_takes_over_and_leaves_those_that_run_alone(desk, judge):
    here = desk(judge=judge)
    other = here.remake().serve()
    here.ask("cup")
    other(question="Number 9: code for bell?", request_id="own")
    other.refresh()  # the first that looks
    redeploy(here)
    here.clock.pass_hours(25)
    for _ in range(2):
        here.settle()
        other.refresh()
        other._score()
        assert other._scorers.idle(10)
    assert sorted(judge.asked) == ["Number 0: code for cup?", "Number 9: code for bell?"]
    assert take_lock(here.live._setup.home / "judge.lock") is None
    other.close(0.05)
    here.ask("cup")
    redeploy(here)
    here.clock.pass_hours(25)
    here.settle()
    assert judge.asked[-1] == "Number 1: code for cup?"
    assert len(judge.asked) == 3
