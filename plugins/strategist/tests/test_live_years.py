"""A learner that is left alone for a year: what it holds and reads stays bounded, nothing stops it."""

from __future__ import annotations

import shutil

import dspy
import pytest

from combee_dspy.exceptions import ArgumentValueError, JournalError
from combee_dspy.journal import Reader, RunHistory, RunLog
from combee_dspy.lessons import Book
from combee_strategist.canary import TrialEvidence, propose_texts, status, withdraw
from combee_strategist.live import Gate, Learning, _learner, _page, _served
from combee_strategist.live._budget import check_prices
from combee_strategist.live._served import ServedRequests
from plugins.strategist.tests.lives import GOODS, HOUR, goods_of
from plugins.strategist.tests.test_live_learning import actions, moves, trial


def reader_of(here):
    return ServedRequests(here.live._setup, lambda trace: trace)


def test_a_request_is_looked_up_by_the_index(desk):
    here = desk()
    here.label("ant")
    (path,) = here.live._setup.requests.rglob("journal.sqlite")
    with Reader(path) as reader:
        plan = reader.rows(f"EXPLAIN QUERY PLAN {_served._OF_REQUEST}", ("a/", "a0"))
    (found,) = [row["detail"] for row in plan if " effect " in row["detail"]]
    assert "run=? AND key>? AND key<?" in found


def test_each_label_is_read_once(desk, monkeypatch):
    here = desk()
    served, looked_up = reader_of(here), []
    lookup = ServedRequests._served

    def counted(self, folder, requests):
        looked_up.extend(requests)
        return lookup(self, folder, requests)

    monkeypatch.setattr(ServedRequests, "_served", counted)
    here.label(*GOODS)
    assert len(served.upto(served.end())) == 8
    here.label("ant")
    assert len(served.upto(served.end())) == 9
    assert len(looked_up) == 9


def test_what_is_held_of_labelled_requests_is_bounded_and_follows_from_the_journals(
    desk, monkeypatch
):
    monkeypatch.setattr(_served, "_LATEST", 4)
    monkeypatch.setattr(_served, "_SAMPLE", 3)
    here = desk()
    served = reader_of(here)
    for _ in range(5):
        here.label(*GOODS[:4])
        here.clock.pass_hours(1)
        rows = served.upto(served.end())
    last = {row.trace.id for row in rows[-4:]}
    assert len(rows) == 7
    assert last == {here.server._recorder.request(f"r{number}") for number in range(16, 20)}
    assert reader_of(here).upto(served.end()) == rows


def test_a_storm_of_labels_pushes_nothing_out(desk, monkeypatch):
    monkeypatch.setattr(_served, "_LATEST", 4)
    monkeypatch.setattr(_served, "_SAMPLE", 0)
    here = desk()
    here.label(*GOODS[:3])
    for number in range(30):
        here.server.feedback(f"never served {number}", code="K2")
    request, _ = here.ask("hat")
    for number in range(80):
        here.server.feedback(request, score=False, comment=f"comment {number}")
    *_, row = rows = reader_of(here).upto(reader_of(here).end())
    assert len(rows) == 4
    assert len(row.trace.feedback.splitlines()) == 32


def test_a_trial_is_read_once_and_as_a_whole(desk):
    here = desk()
    here.label(*GOODS)
    here.live.tick()
    setup = here.live._setup
    evidence = TrialEvidence(setup.requests, setup.name)
    for _ in range(3):
        trial(here, hours=0.5, count=8)
        seen = status(setup.registry(), setup.requests, (0.0,), evidence)
        fresh = status(setup.registry(), setup.requests, (0.0,))
        figures = [(each.pairs, each.hours, each.low, each.missing) for each in (seen, fresh)]
        assert figures[0] == figures[1]
    assert seen.pairs == 25


def test_reasons_that_take_turns_are_said_once(desk):
    here = desk(learning=Learning(least=4, tokens=20_000, num_threads=2))
    setup = here.live._setup
    here.label(*GOODS)
    other = propose_texts(setup.registry(), {"self": "By hand."}, None, setup.plan, "by hand")
    for _ in range(4):  # days, until the session is over and waits for the other's trial
        here.live.tick()
        here.clock.pass_hours(24)
    here.live.tick()
    log = here.live._learner._log
    log.budget.reserve(min(log.budget.left, 5_000))
    here.label(*GOODS)
    before = len(here.live.decisions())
    for _ in range(5):
        here.live.tick()
        here.clock.pass_hours(0.1)
    said = here.live.decisions()[before:]
    assert len(said) == len({each.why for each in said}) <= 2
    withdraw(setup.registry(), who="ops", only=other)
    assert "propose" in actions(here.live.tick())


def test_a_session_that_the_budget_stops_again_waits_again(desk, monkeypatch):
    here = desk(learning=Learning(least=4, tokens=20_000, num_threads=1))
    here.label(*GOODS * 4)
    here.live.tick()
    learner = here.live._learner
    tries, go_on = [], type(learner)._go_on
    monkeypatch.setattr(
        type(learner), "_go_on", lambda *arguments: tries.append(1) or go_on(*arguments)
    )
    learner._log.budget._book(int(here.clock() // 86_400) + 1, 19_000, 0.0)
    here.clock.pass_hours(24)
    for _ in range(5):
        here.live.tick()
    assert len(tries) == 1
    assert [each.action for each in here.live.decisions()].count("skip") == 2


def test_a_slice_that_fails_ends_nothing(desk):
    def slices(inputs):
        if goods_of(inputs["question"]) == "ant":
            raise KeyError("ant")
        return "all"

    here = desk(slices=slices)
    here.label(*GOODS)
    assert "propose" in actions(here.live.tick())
    assert {row.slice for row in reader_of(here).upto(reader_of(here).end())} == {"all", "unknown"}


def test_a_session_that_fails_all_day_ends_and_the_next_one_learns(desk, monkeypatch):
    here = desk()
    here.label(*GOODS)
    read = _learner.read_lessons

    def refuses(*arguments):
        raise ValueError("content filter")

    monkeypatch.setattr(_learner, "read_lessons", refuses)
    for _ in range(26):
        here.live.tick()
        here.clock.pass_hours(1.01)
    decisions = actions(here.live.decisions())
    assert (decisions.count("fail"), decisions[-1]) == (24, "refuse")
    assert "content filter" in here.live.decisions()[-1].why
    monkeypatch.setattr(_learner, "read_lessons", read)
    here.label(*GOODS)
    assert moves(here.live.tick()) == ["propose"]


def test_a_clock_that_was_put_back_stops_nothing(desk, monkeypatch):
    here = desk()
    here.clock.pass_hours(1_000)
    here.label(*GOODS)
    assert "propose" in actions(here.live.tick())
    here.clock.pass_hours(-1_000)
    (ended,) = here.live.tick()
    assert (ended.action, "undecided" in ended.why) == ("withdraw", True)
    here.label("ant")  # one is enough after eight hours, which nobody can say have not passed
    assert actions(here.live.tick())[0] == "learn"


def test_a_label_of_the_future_counts_from_now(desk):
    here = desk()
    here.clock.pass_hours(1_000)
    here.label("ant")
    here.clock.pass_hours(-1_000)
    (row,) = reader_of(here).upto(reader_of(here).end())
    assert row.at == here.clock()


def test_a_budget_that_pays_no_session_is_refused():
    with pytest.raises(ArgumentValueError):
        Learning(tokens=19_999)
    lm = dspy.LM("openai/gpt-4o-mini")
    assert check_prices(Learning(dollars=1.0), [lm]) > 0
    with pytest.raises(ArgumentValueError, match="pays no session"):
        check_prices(Learning(dollars=0.001), [lm])


def test_a_call_that_no_day_can_pay_says_so(desk):
    here = desk(learning=Learning(least=4, tokens=20_000))
    here.lms[1].kwargs["max_tokens"] = 32_000
    here.label(*GOODS)
    assert "a day has 20,000" in here.live.tick()[-1].why


def test_a_day_with_too_little_left_for_a_session_says_how_much(desk):
    here = desk(learning=Learning(least=4, tokens=40_000))
    here.live.tick()
    here.live._learner._log.budget.reserve(20_001)
    here.label(*GOODS)
    said = here.live.tick()[-1].why
    assert said.endswith("19,999 tokens are left, and a session needs 20,000")


def test_a_learner_that_died_as_a_better_text_took_its_place_retires_nothing(desk, monkeypatch):
    here = desk()
    here.label(*GOODS[:4] * 2)
    assert moves(here.live.tick()) == ["propose"]
    here.server.refresh()
    here.label(*GOODS * 2)
    log = here.live._learner._log
    decide = log.decide

    def dies(decision):
        if decision.action == "withdraw":
            raise KeyboardInterrupt
        decide(decision)

    monkeypatch.setattr(log, "decide", dies)
    with pytest.raises(KeyboardInterrupt):
        here.live.tick()
    here.live.close()
    here.live = here.remake()
    assert moves(here.live.tick()) == ["withdraw", "propose"]
    book: Book = here.live._learner._log.books["self"]
    assert not [lesson for lesson in book.lessons if lesson.state == "retired"]


def test_decisions_may_be_asked_for_while_the_learner_begins(desk):
    here = desk()
    home = here.live._setup.journal
    home.mkdir(parents=True)
    (home / "journal.sqlite").write_bytes(b"")
    assert here.live.decisions() == ()


def test_a_full_disk_ends_the_learner_for_a_tick_only(desk, monkeypatch):
    here = desk()
    here.label(*GOODS)
    wait = RunLog.wait

    def full(self):
        raise JournalError("no room")

    monkeypatch.setattr(RunLog, "wait", full)
    with pytest.raises(JournalError):
        here.live.tick()
    monkeypatch.setattr(RunLog, "wait", wait)
    assert "propose" in actions(here.live.tick())


def test_the_page_shows_the_latest_and_says_what_it_leaves_out(desk, monkeypatch):
    monkeypatch.setattr(_page, "_SESSIONS", 1)
    monkeypatch.setattr(_page, "_DECISIONS", 2)
    here = desk(gate=Gate(recent=2.0))
    for _ in range(3):
        here.label(*GOODS)
        here.live.tick()
        here.clock.now += 9 * HOUR
    page = here.live.write_page().with_suffix(".md").read_text()
    assert page.count("### Session") == 1
    assert "2 earlier sessions" in page
    assert f"{len(here.live.decisions()) - 2} earlier decisions" in page
    assert page.count("| 24 |") == 1  # each label is counted once, however often it is written


def test_the_folder_of_a_server_that_has_ended_may_be_deleted(desk):
    here = desk()
    other = here.remake().serve()
    other(question="Number 1: code for cup?", request_id="x1")
    other.feedback("x1", code="K2")
    here.label(*GOODS)
    assert "propose" in actions(here.live.tick())
    trial(here)
    assert "promote" in actions(here.live.tick())
    here.server.refresh()
    folder = other._recorder._journal.folder
    other.close(0.05)
    shutil.rmtree(folder)
    for again in (here.live, here.remake()):
        here.rules |= {"ant": f"Z{again is here.live:d}"}
        here.live.close()
        here.live = again
        here.label(*GOODS, "ant", "ant", "ant")
        here.label("ant", trusted=True)
        assert "learn" in actions(here.live.tick())


def test_a_monitor_reads_each_decision_once(desk, monkeypatch):
    here = desk()
    here.label(*GOODS)
    here.live.tick()
    before = here.live.decisions()
    here.live.reject(2, who="bob")
    here.live.tick()
    asked, entries = [], RunHistory.entries

    def counted(self, *kinds, **bounds):
        for entry in entries(self, *kinds, **bounds):
            asked.append(entry)
            yield entry

    monkeypatch.setattr(RunHistory, "entries", counted)
    after = here.live.decisions()
    assert actions(after[len(before) :]) == ["reject", "withdraw"]
    assert len(asked) == 2
