"""Combee on the miniature world, end to end."""

from __future__ import annotations

import itertools
import os
import signal
from pathlib import Path

import dspy
import pytest
from acting import FINISH, PAGES, agent_lm, proposer_lm
from combee_dspy import Combee
from combee_dspy.journal import Reader

from combee_appworld import AppWorld, AppWorldEnvironment, completion


@pytest.fixture
def fifth_is_killed(monkeypatch):
    """The server of the fifth session is killed, with SIGKILL, once that session is open."""
    plain, opened = AppWorldEnvironment.open, itertools.count(1)

    def open_and_kill(self, task):
        session = plain(self, task)
        if next(opened) == 5:
            os.killpg(self.pid, signal.SIGKILL)
        return session

    monkeypatch.setattr(AppWorldEnvironment, "open", open_and_kill)


@pytest.mark.usefixtures("fifth_is_killed")
@pytest.mark.parametrize(("agent", "heldout", "workers"), [("react", "test_normal", 8), ("code", "test_challenge", 2)])
def test_combee_teaches_the_missing_steps_while_a_world_is_killed(
    world, installation, tmp_path, agent, heldout, workers
):
    benchmark = AppWorld(world, heldout=heldout, agent=agent, workers=workers).load()
    student = benchmark.program()
    combee = Combee(
        benchmark.metric,
        reflection_lm=proposer_lm(),
        aggregator="parallel-scan",
        operators=["insert"],
        # A fourth is set aside to prove the lines; the first three updates run the student.
        max_metric_calls=96,
        reflection_minibatch_size=6,
        num_threads=workers,
        log_dir=tmp_path,
        seed=0,
    )
    with dspy.context(lm=agent_lm(), adapter=dspy.ChatAdapter()):
        program = combee.compile(
            student,
            trainset=list(benchmark.train.examples),
            valset=list(benchmark.validation.examples),
            heldout=list(benchmark.heldout.examples),
        )
    stats = student.pool.stats
    student.pool.close()
    assert stats.faults == {"lost": 1}
    assert stats.started <= workers + 1
    report = program.combee_report
    assert (report.seed_score, report.best_score) == (0.0, 1.0)
    assert (report.heldout.before, report.heldout.after) == (0.0, 1.0)
    learned = "\n".join(predictor.signature.instructions for predictor in program.predictors())
    assert FINISH in learned
    assert PAGES in learned
    before, after = completion(report.journal, benchmark.heldout).values()
    assert (before.task, before.scenario, after.task, after.scenario) == (0.0, 0.0, 1.0, 1.0)
    assert after.scenarios == {"test_normal": 2, "test_challenge": 1}[heldout]
    rollouts = Reader(Path(report.journal)).rows("SELECT split, example, failed_in FROM effect WHERE kind = 'rollout'")
    assert {row["failed_in"] for row in rollouts} == {None}
    # What the proposer saw came from training tasks alone.
    held = set(benchmark.heldout.example_ids)
    assert {row["example"] for row in rollouts if row["split"] != "heldout"}.isdisjoint(held)
