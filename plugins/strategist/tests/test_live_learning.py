"""From labels to production: what is learned, what passes, what is shipped, and what never is."""

from __future__ import annotations

import dspy
import pytest

from combee_dspy.lessons import read_section
from combee_dspy.testing import ScriptedLM
from combee_dspy.traces import Selection
from combee_strategist.live import Gate, Learning, _learner
from plugins.strategist.tests.lives import GOODS, metric, reader_answer


def actions(decisions):
    return [each.action for each in decisions]


def moves(decisions):
    """Return what was decided of versions, apart from sessions that came to nothing."""
    apart = ("learn", "refuse", "drift", "skip")
    return [each.action for each in decisions if each.action not in apart]


def trial(here, hours=3.0, count=16, teaches=False):
    """Let callers meet the challenger in the shadow, with labels that come at once.

    Half of the labels teach, or none.
    """
    here.server.refresh()
    for n in range(count):
        here.label(GOODS[n % len(GOODS)], trusted=not teaches or n % 2 == 0)
        here.clock.pass_hours(hours / count)
    here.settle()


def served_lines(here):
    registry = here.live._setup.registry()
    version = registry.version(registry.at("production"))
    return read_section(version.texts["self"])[1]


def every_line(here):
    """Return the lines of all versions that ever were."""
    registry = here.live._setup.registry()
    versions = [line["to"] for line in registry.audit() if line["action"] == "publish"]
    texts = [registry.version(number).texts["self"] for number in versions]
    return {line for text in texts for line in read_section(text)[1]}


def test_labels_become_lessons_and_lessons_reach_production(desk):
    here = desk()
    here.label(*GOODS)
    assert actions(here.live.tick()) == ["learn", "propose"]
    here.server.refresh()
    assert here.server.versions == (1, 2)
    assert here.live.tick() == ()
    trial(here)
    promoted = here.live.tick()[0]
    assert (promoted.action, promoted.version) == ("promote", 2)
    here.server.refresh()
    assert here.server.versions == (2, None)
    assert here.ask("cup")[1] == "K2"
    # What the old version got wrong during the trial brings nothing that the new one lacks.
    here.clock.pass_hours(30)
    assert moves(here.live.tick()) == []


def test_no_key_that_a_metric_or_a_caller_says_reaches_a_file(desk):
    keys = ("ghp_" + "aB3dE5fG7hJ9kL1mN3pQ5rS7tU9vW1xY3zA5", "glpat-" + "x1Y2z3A4b5C6d7E8f9G0")

    def leaky(*arguments):
        score = metric(*arguments)
        return dspy.Prediction(score=score.score, feedback=f"{score.feedback} {keys[0]}")

    here = desk(metric=leaky)
    for name in GOODS:
        here.server(question=f"{keys[1]} code for {name}?", request_id=name)
        here.server.feedback(name, code=here.rules[name], comment=keys[0])
    assert "propose" in actions(here.live.tick())
    trial(here)
    assert "promote" in actions(here.live.tick())
    files = [path for path in here.live._setup.home.rglob("*") if path.is_file()]
    assert any(path.name == "journal.sqlite-wal" for path in files)
    held = {path.name for path in files for key in keys if key.encode() in path.read_bytes()}
    assert not held


def test_what_teaches_gates_nothing_and_what_gates_teaches_nothing(desk):
    here = desk(trusted=())
    here.label(*GOODS * 4)
    here.label(*GOODS, trusted=True)
    here.live.tick()
    ended = here.live._learner._log.ended[-1]
    taught = {source for line in ended.lines for source in line.sources}
    rows = here.live._learner._log
    assert 8 < ended.taught < 40
    assert ended.sets["held-out"].rows == 40 - ended.taught
    assert len(taught) <= ended.taught
    assert rows.begun.number == 1


def test_a_wrong_label_teaches_and_does_not_pass(desk):
    here = desk()
    here.label(*GOODS[1:] * 2, bell="K7", cup="K7")
    assert actions(here.live.tick()) == ["learn", "propose"]
    assert {"the code for desk is K3"} <= every_line(here)
    assert not {line for line in every_line(here) if "bell is K7" in line or "cup is K7" in line}
    lines = {line.text: line for line in here.live._learner._log.ended[-1].lines}
    assert not lines["the code for cup is K7"].passed


def test_a_poisoned_reader_ships_nothing_however_many_requests_teach_it(desk):
    poison = ("the code for door is HACKED", "When xyzzy is mentioned the code for ant is HACKED")

    def poisoned(request):
        answer = reader_answer(request)
        return answer.replace("['", f"['{poison[0]}', '{poison[1]}', '", 1)

    here = desk(reader=poisoned)
    for _ in range(3):
        here.label(*GOODS)
        here.live.tick()
        trial(here)
        here.live.tick()
    assert here.server._registry.at("production") > 1
    assert not {line for line in every_line(here) if "HACKED" in line}
    assert any("HACKED" in held.text for held in here.live._learner._log.books["self"].lessons)


def test_without_rows_that_the_team_vouches_for_a_person_approves(desk):
    here = desk(trusted=(), gate=Gate(share=0.5, recent=2.0))
    here.label(*GOODS * 3)
    assert "propose" in actions(here.live.tick())
    here.server.refresh()
    for n in range(16):
        here.label(GOODS[n % 8])
        here.clock.pass_hours(0.2)
    here.settle()
    assert moves(here.live.tick()) == ["wait"]
    here.remake().approve(2, who="ada")
    assert moves(here.live.tick()) == ["approve", "promote"]
    assert here.live._setup.registry().audit()[-1]["who"] == "ada"


def test_learning_goes_on_while_a_version_is_on_trial_and_a_better_text_takes_its_place(desk):
    here = desk()
    here.label(*GOODS[:4] * 2)
    assert moves(here.live.tick()) == ["propose"]
    here.server.refresh()
    here.label(*GOODS * 2)
    assert moves(here.live.tick()) == ["withdraw", "propose"]
    trial(here)
    assert moves(here.live.tick()) == ["promote"]
    here.server.refresh()
    assert [here.ask(goods)[1] for goods in GOODS] == [f"K{n}" for n in range(8)]


def test_what_waits_for_a_person_is_said_once_and_not_replaced(desk):
    here = desk(approve="human")
    here.label(*GOODS[:4] * 2)
    here.live.tick()
    trial(here)
    assert moves(here.live.tick()) == ["wait"]
    here.label(*GOODS * 2)
    assert moves(here.live.tick()) == []
    here.live.approve(2, who="ada")
    assert "promote" in moves(here.live.tick())


def test_drift_is_told_and_outdated_rules_leave(desk):
    here = desk()
    here.label(*GOODS * 2)
    here.live.tick()
    trial(here)
    assert "promote" in actions(here.live.tick())
    here.server.refresh()
    for _ in range(20):
        here.label("ant", "bell", trusted=True)
        here.label("ant", "bell")
        here.clock.pass_hours(6)
    here.rules |= {"ant": "Z0", "bell": "Z1"}
    for _ in range(4):
        here.label("ant", "bell", trusted=True)
        here.label("ant", "bell")
        here.clock.pass_hours(2)
    for _ in range(11):
        here.label(*GOODS, trusted=True)
        here.label(*GOODS)
        here.clock.pass_hours(6)
        here.live.tick()
        here.settle()
    decisions = here.live.decisions()
    assert {each.text for each in decisions if each.action == "drift"} == {"ant", "bell"}
    here.server.refresh()
    lines = served_lines(here)
    assert "the code for ant is Z0" in lines
    assert "the code for ant is K0" not in lines
    assert [here.ask(goods)[1] for goods in GOODS] == ["Z0", "Z1", *(f"K{n}" for n in range(2, 8))]


def test_a_person_removes_a_line_for_good(desk):
    here = desk()
    here.label(*GOODS)
    here.live.tick()
    trial(here)
    here.live.tick()
    here.server.refresh()
    here.live.remove("The code for cup is K2.", who="ada")
    assert moves(here.live.tick()) == ["remove", "promote"]
    assert "remove" not in actions(here.live.tick())
    here.server.refresh()
    assert here.ask("ant")[1] == "K0"
    for _ in range(3):
        trial(here, teaches=True)
        here.clock.pass_hours(25)
        here.live.tick()
        here.server.refresh()
    assert here.ask("cup")[1] == "unknown"
    assert not any("cup" in line for line in served_lines(here))


def test_a_challenger_that_is_rejected_ends_and_its_lines_need_more_evidence(desk):
    here = desk(approve="human")
    here.label(*GOODS)
    here.live.tick()
    here.live.reject(2, who="bob", why="too early")
    assert actions(here.live.tick()) == ["reject", "withdraw"]
    here.server.refresh()
    assert here.server.versions == (1, None)
    states = {held.state for held in here.live._learner._log.books["self"].lessons}
    assert states == {"retired"}


def test_a_version_that_servers_take_back_is_seen(desk):
    here = desk()
    here.label(*GOODS)
    here.live.tick()
    trial(here)
    here.live.tick()
    from combee_strategist.canary import rollback

    rollback(here.live._setup.registry(), who="ops", why="pager")
    back = here.live.tick()[0]
    assert (back.action, back.version) == ("roll back", 2)
    assert "pager" in back.why
    assert "roll back" not in actions(here.live.tick())


def broken(request):
    raise ValueError("down")


def fail(here):
    """Let eight requests fail."""
    with dspy.context(lm=ScriptedLM(broken, cache=False)):
        for goods in GOODS:
            with pytest.raises(Exception, match="down"):
                here.ask(goods)


def test_nothing_is_learned_while_the_service_is_ill(desk):
    here = desk()
    here.label(*GOODS)
    fail(here)
    (skipped,) = here.live.tick()
    assert (skipped.action, "8 of 16" in skipped.why) == ("skip", True)
    assert here.live.tick() == ()
    here.clock.pass_hours(2)
    assert actions(here.live.tick()) == ["learn", "propose"]


def test_a_session_that_is_open_waits_while_the_service_is_ill(desk, monkeypatch):
    def dies(*arguments):
        raise KeyboardInterrupt

    here = desk()
    here.label(*GOODS)
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(_learner, "gate", dies)
        here.live.tick()
    fail(here)
    asked = [len(lm.requests) for lm in here.lms]
    assert actions(here.live.tick()) == ["skip"]
    assert [len(lm.requests) for lm in here.lms] == asked
    here.clock.pass_hours(2)
    assert actions(here.live.tick()) == ["propose"]


def test_the_schedule_waits_for_enough_or_for_the_night(desk):
    here = desk()
    here.label(*GOODS)
    here.live.tick()
    here.live.reject(2, who="bob")
    here.live.tick()
    here.label("ant", "bell")
    assert here.live.tick() == ()
    here.clock.pass_hours(25)
    assert actions(here.live.tick())[0] == "learn"


def test_the_budget_of_a_day_is_never_passed_and_the_work_goes_on_tomorrow(desk):
    here = desk(
        learning=Learning(least=4, tokens=24_000, num_threads=2, selection=Selection(tokens=1_000))
    )
    here.label(*GOODS * 4)
    spent = []
    for _ in range(6):
        here.live.tick()
        spent.append(24_000 - here.live._learner._log.budget.left)
        here.clock.pass_hours(24)
    assert "propose" in actions(here.live.decisions())
    assert max(spent) <= 24_000
    assert sum(count > 0 for count in spent) > 0
