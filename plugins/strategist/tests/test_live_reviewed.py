"""Moments at which two files disagree, and people who are not who they seem."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from pathlib import Path

import dspy
import pytest

from combee_dspy.journal import Reader
from combee_dspy.records import CallUsage
from combee_dspy.testing import ScriptedLM, as_chat
from combee_dspy.traces import Selection
from combee_strategist import canary
from combee_strategist.canary import RequestLabelled, promote, propose_texts, rollback, withdraw
from combee_strategist.exceptions import RegistryError
from combee_strategist.live import Learning, _shipping
from combee_strategist.live._budget import DayBudget
from combee_strategist.live._log import write_answer
from combee_strategist.live._records import LiveDecision
from combee_strategist.live._served import ServedRequests, is_behind
from plugins.strategist.tests.lives import GOODS, desk_answer, metric
from plugins.strategist.tests.test_live_learning import (
    actions,
    every_line,
    moves,
    served_lines,
    trial,
)


def rows(here):
    served = ServedRequests(here.live._setup, lambda trace: trace)
    return served.upto(served.end())


def promoted(here):
    """Let a first version reach production."""
    here.label(*GOODS)
    here.live.tick()
    trial(here)
    assert "promote" in actions(here.live.tick())
    here.server.refresh()


def propose_again(here):
    """Promote a version, then change two rules until another is proposed."""
    promoted(here)
    here.rules |= {"ant": "Z0", "bell": "Z1"}
    for _ in range(6):
        here.label(*GOODS, trusted=True)
        here.label(*GOODS)
        here.clock.pass_hours(6)
        if "propose" in actions(here.live.tick()):
            break


def test_a_second_promotion_whose_decision_died_is_no_roll_back(desk):
    here = desk()
    propose_again(here)
    trial(here)
    registry = here.live._setup.registry()
    promote(registry, here.live._setup.requests, who="combee live", why="then it died")
    version = registry.at("production")
    decided = here.live.tick()
    assert [(each.action, each.version) for each in decided][:1] == [("promote", version)]
    assert "roll back" not in actions(here.live.decisions())


def test_a_removal_whose_decision_died_is_no_roll_back(desk, monkeypatch):
    here = desk()
    promoted(here)
    log = here.live._learner._log
    decide, here_died = log.decide, []

    def dies(decision):
        if decision.action == "promote":
            here_died.append(decision)
            raise KeyboardInterrupt
        decide(decision)

    monkeypatch.setattr(log, "decide", dies)
    here.live.remove("The code for cup is K2.", who="ada")
    with pytest.raises(KeyboardInterrupt):
        here.live.tick()
    here.live.close()
    here.live = here.remake()
    assert here_died
    assert actions(here.live.tick()) == ["promote"]
    assert "the code for ant is K0" in served_lines(here)


def test_servers_may_take_back_what_was_shipped_without_a_line(desk):
    here = desk()
    promoted(here)
    here.live.remove("The code for cup is K2.", who="ada")
    here.live.tick()
    rollback(here.live._setup.registry(), who="ops", why="pager")
    back = here.live.tick()[0]
    assert (back.action, back.version) == ("roll back", 3)
    assert "pager" in back.why
    assert here.live._setup.registry().at("production") == 2
    assert "promote" not in actions(here.live.tick())


def test_a_removed_line_does_not_get_into_production_by_its_trial(desk):
    here = desk()
    here.label(*GOODS)
    here.live.tick()
    trial(here)
    here.live.remove("The code for cup is K2.", who="ada")
    assert moves(here.live.tick())[:2] == ["remove", "withdraw"]
    assert here.live._setup.registry().at("production") == 1
    book = here.live._learner._log.books["self"]
    assert not [lesson for lesson in book.lessons if lesson.state == "retired"]
    here.label(*GOODS * 2)
    here.live.tick()
    trial(here)
    here.live.tick()
    assert not any("cup" in line for line in served_lines(here))
    assert "the code for ant is K0" in served_lines(here)


def test_what_is_promoted_by_hand_after_a_roll_back_is_seen(desk):
    here = desk()
    promoted(here)
    registry = here.live._setup.registry()
    rollback(registry, who="ops", why="pager")
    assert moves(here.live.tick()) == ["roll back"]
    registry.move("promote", 1, 2, "ada", "it was the pager")
    (again,) = here.live.tick()
    assert (again.action, again.version) == ("promote", 2)
    rollback(registry, who="ops", why="it was not")
    assert moves(here.live.tick()) == ["roll back"]


def test_of_two_roll_backs_between_ticks_both_retire_their_lines(desk):
    here = desk()
    propose_again(here)
    trial(here)
    assert "promote" in actions(here.live.tick())
    registry = here.live._setup.registry()
    last = registry.at("production")
    rollback(registry, who="ops", why="pager")
    rollback(registry, who="ops", why="pager again")
    decided = here.live.tick()
    assert [each.version for each in decided if each.action == "roll back"] == [last, 2]
    book = here.live._learner._log.books["self"]
    retired = {lesson.text for lesson in book.lessons if lesson.state == "retired"}
    assert {"the code for ant is Z0", "the code for cup is K2"} <= retired
    assert "roll back" not in actions(here.live.tick())


def test_words_are_heard_once_though_somebody_cuts_the_file(desk):
    here = desk(approve="human")
    here.label(*GOODS)
    here.live.tick()
    for why in ("first", "second", "third"):
        here.live.approve(2, who="ada", why=why)
    here.live.tick()
    file = here.live._setup.home / "people.jsonl"
    file.write_bytes(b"".join(file.read_bytes().splitlines(keepends=True)[2:]))
    here.live.reject(2, who="bob")
    assert [each.who for each in here.live.tick() if each.line] == ["bob"]
    file.unlink()
    here.live.remove("The code for cup is K2.", who="eve")
    assert [each.who for each in here.live.tick() if each.line] == ["eve"]
    here.live.close()
    here.live = here.remake()
    assert not [each for each in here.live.tick() if each.line]


def test_a_trial_goes_on_though_somebody_changes_what_serves(desk):
    here = desk()
    propose_again(here)
    setup = here.live._setup
    registry = setup.registry()
    registry.move("promote", 2, 1, "ada", "by hand")
    assert moves(here.live.tick()) == ["promote"]
    version = registry.at("challenger")
    here.live.reject(version, who="bob")
    assert moves(here.live.tick()) == ["reject", "withdraw"]


def test_a_trial_that_servers_end_while_the_learner_does_ends_once(desk, monkeypatch):
    here = desk()
    here.label(*GOODS)
    here.live.tick()
    here.live.reject(2, who="bob")

    def twice(registry, **how):
        withdraw(registry, who="combee (automatic)", why="it fails")
        return withdraw(registry, **how)

    monkeypatch.setattr(_shipping, "withdraw", twice)
    assert actions(here.live.tick())[:2] == ["reject", "withdraw"]


def test_pairs_that_come_while_a_version_is_promoted_do_not_end_the_learner(desk, monkeypatch):
    here = desk()
    here.label(*GOODS)
    here.live.tick()
    trial(here)
    looks = []

    def status(*arguments, **more):
        looks.append(1)
        standing = canary.status(*arguments, **more)
        return standing if len(looks) == 1 else replace(standing, missing=("one more pair",))

    monkeypatch.setattr(_shipping, "status", status)
    monkeypatch.setattr("combee_strategist.canary._decide.status", status)
    assert moves(here.live.tick()) == ["promote"]


def test_a_learner_that_died_while_it_took_a_version_back_retires_its_lines_once(desk, monkeypatch):
    here = desk(approve="human")
    here.label(*GOODS)
    here.live.tick()
    here.live.reject(2, who="bob", why="too early")
    log = here.live._learner._log
    decide = log.decide

    def dies(decision):
        if decision.action == "withdraw":
            raise KeyboardInterrupt
        decide(decision)

    monkeypatch.setattr(log, "decide", dies)
    with pytest.raises(KeyboardInterrupt):
        here.live.tick()
    retired = [lesson.decision for lesson in log.books["self"].lessons]
    here.live.close()
    here.live = here.remake()
    assert "withdraw" in actions(here.live.tick())
    book = here.live._learner._log.books["self"]
    assert [lesson.decision for lesson in book.lessons] == retired


def test_a_request_that_was_never_served_is_looked_up_once(desk, monkeypatch):
    here = desk()
    here.server.feedback("never served", code="K2")
    served = ServedRequests(here.live._setup, lambda trace: trace)
    assert served.upto(served.end()) == []
    looked_up = []
    monkeypatch.setattr(served, "_traces", lambda requests: looked_up.extend(requests) or {})
    assert served.upto(served.end()) == []
    assert looked_up == []


def test_what_a_session_came_to_is_shipped_before_the_next_begins(desk, monkeypatch):
    here = desk()
    here.label(*GOODS)
    here.live.tick()  # the learner's journal is there
    here.live.reject(2, who="bob")
    here.live.tick()
    for _ in range(3):
        here.label(*GOODS)
    log = here.live._learner._log
    decide = log.decide

    def dies(decision):
        if decision.action == "propose":
            raise KeyboardInterrupt
        decide(decision)

    monkeypatch.setattr(log, "decide", dies)
    with pytest.raises(KeyboardInterrupt):
        here.live.tick()
    here.live.close()
    here.live = here.remake()
    here.label(*GOODS)
    here.label(*GOODS)
    assert moves(here.live.tick()) == ["propose"]


def test_a_text_that_the_registry_does_not_keep_is_refused(desk, monkeypatch):
    here = desk()
    monkeypatch.setattr("combee_strategist.canary._registry._LONGEST", 100)
    here.label(*GOODS)
    assert actions(here.live.tick()) == ["learn", "refuse"]
    assert here.live.tick() == ()


def test_a_challenger_of_somebody_else_is_waited_for(desk):
    here = desk()
    setup = here.live._setup
    registry = setup.registry()
    other = propose_texts(registry, {"self": "By hand."}, None, setup.plan, "by hand")
    here.label(*GOODS)
    assert actions(here.live.tick()) == ["learn", "skip"]
    assert here.live.tick() == ()
    withdraw(registry, who="ops", only=other)
    assert actions(here.live.tick()) == ["propose"]


def test_what_the_team_vouches_for_nobody_else_changes(desk):
    here = desk()
    request, _ = here.ask("cup")
    here.server.feedback(request, code="HACKED", comment="first")
    here.server.feedback(request, code="K2", trusted=True)
    here.clock.pass_hours(1)
    here.server.feedback(request, code="HACKED", other="HACKED", score=1.0)
    (row,) = rows(here)
    assert (row.trusted, row.trace.expected, row.trace.score) == (True, {"code": "K2"}, None)


def test_a_judge_does_not_overrule_a_person(desk):
    here = desk()
    request, _ = here.ask("cup")
    here.server.feedback(request, score=False)
    hashed = here.server._recorder.request(request)
    here.clock.pass_hours(30)
    here.server._recorder.keep_label(RequestLabelled(hashed, here.clock(), score=1.0, by="judge"))
    assert [row.trace.score for row in rows(here)] == [0.0]


def test_what_a_judge_says_teaches_where_nobody_labels(desk):
    def judge(gold, pred, *more):
        return dspy.Prediction(score=0.0, feedback="Rule: the code for cup is K2")

    here = desk(judge=judge)
    here.ask("cup")
    here.clock.pass_hours(25)
    here.settle()
    (row,) = rows(here)
    assert (row.trace.score, row.trace.feedback) == (0.0, "Rule: the code for cup is K2")


def test_a_request_teaches_once_though_a_server_has_another_clock(desk):
    here = desk()
    request, _ = here.ask("cup")
    here.server.feedback(request, code="K2")
    cursor = ServedRequests(here.live._setup, lambda trace: trace).end()
    here.clock.pass_hours(-2)
    other = here.remake().serve()
    other.feedback(request, score=False)
    other.close(0.05)
    (row,) = rows(here)
    assert not is_behind(cursor, row)


def test_a_label_speaks_of_the_answer_that_the_caller_got(desk):
    def broken(request):
        raise ValueError("down")

    here = desk()
    with dspy.context(lm=ScriptedLM(broken, cache=False)), pytest.raises(Exception, match="down"):
        here.server(question="Number 1: code for cup?", request_id="again")
    here.server(question="Number 1: code for cup?", request_id="again")
    here.server.feedback("again", code="K2")
    assert [row.trace.outputs for row in rows(here)] == [{"code": "unknown"}]


def test_nobody_approves_what_is_not_there_yet(desk):
    here = desk(approve="human")
    # live.approve refuses it; a line of the file may say it all the same.
    answer = LiveDecision("approve", "a slip", version=2, who="ada")
    write_answer(here.live._setup.home, answer)
    here.live.tick()
    here.label(*GOODS)
    assert "propose" in actions(here.live.tick())
    trial(here)
    assert "promote" not in actions(here.live.tick())
    assert "a person must approve it" in here.live.write_page().with_suffix(".md").read_text()
    here.live.approve(2, who="ada", why="read")
    assert "promote" in actions(here.live.tick())


def test_an_empty_removal_removes_nothing(desk):
    here = desk()
    promoted(here)
    lines = served_lines(here)
    here.live.remove("", who="bob")
    here.live.tick()
    here.server.refresh()
    assert served_lines(here) == lines


def test_a_server_that_died_while_it_began_keeps_nobody_from_learning(desk):
    here = desk()
    folder = here.live._setup.requests / "00000000000000000001-dead-1"
    folder.mkdir()
    (folder / "journal.sqlite").write_bytes(b"")
    here.label(*GOODS)
    assert actions(here.live.tick()) == ["learn", "propose"]
    trial(here)
    assert moves(here.live.tick()) == ["promote"]


def test_more_servers_than_files_may_be_open(desk):
    resource = pytest.importorskip("resource")
    here = desk()
    for n in range(30):
        other, request = here.remake().serve(), f"x{n}"
        other(question="Number 1: code for cup?", request_id=request)
        other.feedback(request, code="K2")
        other.close(0.01)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = sum(1 for _ in Path("/proc/self/fd").iterdir())
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + 30, hard))
    try:
        assert len(rows(here)) == 30
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_registry_that_is_away_for_a_minute_does_not_end_the_learner(desk, monkeypatch):
    here, stop = desk(), threading.Event()
    here.label(*GOODS)
    tick, calls = here.live.tick, []

    def away():
        calls.append(1)
        if len(calls) == 1:
            raise RegistryError("x", "down")
        stop.set()
        return tick()

    monkeypatch.setattr(here.live, "tick", away)
    here.live.run(stop, 0.01)
    assert "propose" in actions(here.live.decisions())


def test_keys_reach_no_file_of_the_learner(desk):
    key = "sk-proj-abcdefghijklmnopqrstuvwxyz0123456789ABCDEF"

    def broken(request):
        raise ValueError(f"Incorrect API key provided: {key}")

    here = desk(lm=ScriptedLM(broken, cache=False))
    here.label(*GOODS)
    here.live.tick()
    here.live.write_page()
    here.live.close()
    for path in here.live._setup.home.rglob("*"):
        if path.is_file():
            assert key.encode() not in path.read_bytes(), path
    assert every_line(here) is not None


def test_what_was_under_way_when_the_day_was_spent_is_booked(desk):
    def slow(request):
        time.sleep(0.05)
        return desk_answer(request)

    lm = ScriptedLM(slow, cache=False)
    budget = Learning(least=4, tokens=20_000, num_threads=8, selection=Selection(tokens=1_000))
    here = desk(lm=lm, learning=budget)
    here.label(*GOODS * 4)
    for _ in range(3):
        here.live.tick()
        here.clock.pass_hours(24)
    assert any("the day cannot pay for it" in each.why for each in here.live.decisions())
    with Reader(here.live._learner._log._journal.path) as reader:
        (booked,) = reader.rows("SELECT count(*) FROM effect WHERE purpose = 'gate'")
    assert booked[0] == len(lm.requests)


def test_what_a_failed_rollout_has_cost_is_booked(desk):
    here = desk()
    here.live.tick()
    log, setup = here.live._learner._log, here.live._setup
    before = log.budget.left
    log.budget.reserve(1_000)
    log.budget.settle(
        1_000, [CallUsage("task", "m", prompt_tokens=300, completion_tokens=50)], "failed"
    )
    log.run.wait()
    again = DayBudget(setup.learning, 0.0, setup.clock, log.run)
    assert (log.budget.left, again.left) == (before - 350, before - 350)


def test_a_metric_that_asks_an_lm_stops_with_the_day(desk):
    judge = ScriptedLM(lambda request: as_chat({"score": "1"}), cache=False)

    def judged(gold, pred, trace=None, pred_name=None, pred_trace=None):
        with dspy.context(lm=judge):
            dspy.Predict("answer -> score")(answer="x " * 4_000)
        return metric(gold, pred)

    here = desk(metric=judged, learning=Learning(least=4, tokens=20_000, num_threads=1))
    here.label(*GOODS * 4)
    here.live.tick()
    (skipped,) = here.live.decisions()
    assert "the day cannot pay for it" in skipped.why
    assert here.live._learner._log.budget.left >= 0
    assert len(judge.requests) < 8
