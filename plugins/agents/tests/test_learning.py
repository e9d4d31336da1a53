"""Whole runs over agents, with environments that break."""

from __future__ import annotations

import re
from pathlib import Path

import dspy
import pytest

from combee_agents import SessionAgent, SessionMetric, SessionPool
from combee_dspy import Combee, Validation
from combee_dspy.exceptions import InfrastructureError
from combee_dspy.journal import Reader, journal_file
from combee_dspy.testing import ScriptedLM, as_chat

LESSON = "Rule: shut the door before you finish."


class Visit(dspy.Signature):
    """Go through the door."""

    instruction: str = dspy.InputField()
    outcome: str = dspy.OutputField()


def act(request):
    """Does what it was asked, and shuts the door only where it was told to."""
    steps = [
        re.findall(r"go (\w+)", request.last)[-1],
        *(["shut"] if LESSON in request.system else []),
    ]
    done = request.last.count("] printed:")
    return as_chat(
        {"code": steps[done], "finished": str(done == len(steps) - 1), "outcome": "done"}
    )


def propose(request):
    # What a proposer can know is what the feedback says, and what the level below made of it.
    known = LESSON in request.text or "Failed: the door is shut." in request.text
    return as_chat({"lessons": [LESSON] if known else []})


@pytest.fixture
def lm():
    with dspy.context(lm=ScriptedLM(act), adapter=dspy.ChatAdapter()):
        yield


def examples(count, start=0, go="slow"):
    rows = [
        dspy.Example(task_id=f"t{n}", instruction=f"{n}: go {go}")
        for n in range(start, start + count)
    ]
    return [row.with_inputs("task_id", "instruction") for row in rows]


def compiled(pool, folder, go="slow"):
    combee = Combee(
        SessionMetric(),
        reflection_lm=ScriptedLM(propose, model="scripted/proposer"),
        aggregator="parallel-scan",
        operators=["insert"],
        max_metric_calls=70,
        reflection_minibatch_size=6,
        num_threads=8,
        validation=Validation(probe=False),
        tracker=(),
        log_dir=folder,
    )
    return combee.compile(
        SessionAgent(pool, Visit, agent="code"),
        trainset=examples(12, go=go),
        valset=examples(6, start=100, go=go),
        heldout=examples(6, start=200, go=go),
    )


def failures(folder: Path) -> set[str | None]:
    with Reader(journal_file(folder)) as journal:
        return {
            row["failed_in"]
            for row in journal.rows("SELECT failed_in FROM effect WHERE kind = 'rollout'")
        }


def test_combee_teaches_the_missing_step_while_environments_are_being_killed(lm, doors, tmp_path):
    class Frail(doors):
        """The first two environments are killed in the middle of their first session."""

        def open(self, task):
            session = super().open(task)
            if doors.made.index(self) < 2:
                self.kill()
            return session

    with SessionPool(Frail, 8) as pool:
        report = compiled(pool, tmp_path).combee_report
        assert pool.stats.faults == {"lost": 2}
    assert (report.seed_score, report.best_score) == (0.0, 1.0)
    assert (report.heldout.before, report.heldout.after) == (0.0, 1.0)
    assert failures(tmp_path) == {None}
    assert all(door.killed.is_set() for door in doors.made)


def test_environments_that_always_fail_end_the_run_and_score_nothing(
    lm, doors, tmp_path, monkeypatch
):
    with SessionPool(doors, 4) as pool, pytest.raises(InfrastructureError, match="protocol"):
        compiled(pool, tmp_path, go="break")
    assert failures(tmp_path) == set()
