"""The learner may die at any point: it goes on, learns no request twice, and ships once."""

from __future__ import annotations

import pytest

from combee_dspy.journal import RunLog
from combee_strategist.canary import Registry
from plugins.strategist.tests.lives import GOODS
from plugins.strategist.tests.test_live_learning import actions, served_lines, trial


class Crash(BaseException):
    """The process died here."""


class Dying:
    """Dies at the n-th step that touches the world, before it or behind it; 0 for never."""

    def __init__(self, monkeypatch):
        self.steps, self.at, self.behind = 0, 0, False
        for owner, names in (
            (RunLog, ("wait", "keep")),
            (Registry, ("add", "move", "withdraw", "note")),
        ):
            for name in names:
                monkeypatch.setattr(owner, name, self._wrapped(getattr(owner, name)))

    def _wrapped(self, step):
        def wrapped(*arguments, **more):
            if not self.at:
                return step(*arguments, **more)
            self.steps += 1
            if self.steps == self.at and not self.behind:
                raise Crash
            result = step(*arguments, **more)
            if self.steps == self.at:
                raise Crash
            return result

        return wrapped


def lived(here, dying, at=0, behind=False):
    """Learn, try and promote, with one death; return what came of it."""

    def tick():
        dying.at, dying.steps, dying.behind = at, 0, behind
        try:
            here.live.tick()
        except (Crash, BaseExceptionGroup):
            here.live.close()
            here.live = here.remake()
            dying.at = 0
            here.live.tick()
        dying.at = 0

    here.label(*GOODS)
    tick()
    trial(here)
    tick()
    here.server.refresh()
    return served_lines(here)


@pytest.mark.parametrize("behind", [False, True])
@pytest.mark.parametrize(
    ("at", "store"), [(1, None), (2, None), (4, None), (9, "mlflow_store"), (20, None)]
)
def test_a_learner_that_dies_goes_on(desk, monkeypatch, request, at, store, behind):
    dying = Dying(monkeypatch)
    here = desk(uri=request.getfixturevalue(store)) if store else desk()
    lines = lived(here, dying, at, behind)
    decisions = here.live.decisions()
    sessions = [each.session for each in decisions if each.action == "learn"]
    assert sorted(set(sessions)) == sessions
    assert actions(decisions).count("propose") == 1
    assert actions(decisions).count("promote") == 1
    assert sorted(lines) == sorted(
        line.text for line in here.live._learner._log.ended[0].lines if line.passed
    )
    ended = [each.number for each in here.live._learner._log.ended]
    assert sorted(set(ended)) == ended
    registry = here.live._setup.registry()
    (promoted,) = [each for each in decisions if each.action == "promote"]
    assert registry.at("production") == promoted.version
    assert [line["action"] for line in registry.audit() if line["carried_out"]].count(
        "promote"
    ) == 1
    asked = [request.text for request in here.lms[1].requests]
    # What was in flight may be asked once more: its answer died with the process.
    assert len(asked) <= len(set(asked)) + 2
