"""What a machine may do to a run, and what the run does then."""

from __future__ import annotations

import gc
import os
import random
import sqlite3
import time
from pathlib import Path
from typing import Any

import pytest

from combee_dspy import Budget, Search
from combee_dspy.exceptions import JournalError
from combee_dspy.journal import _writer
from combee_dspy.records import Rollout
from combee_dspy.search import _course
from tests.invariants.test_resume import facts
from tests.slow import slow_but
from tests.worlds import World


@pytest.mark.parametrize("seed", slow_but((5,), range(6)))
def test_a_random_run_that_ends_at_a_random_effect_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    stream = random.Random(seed)
    arguments: dict[str, Any] = {
        "search": Search(keep=stream.choice(["pareto", "trunk"]), staleness=stream.randrange(3)),
        "reflection_minibatch_size": stream.randrange(2, 9),
        "num_threads": stream.choice([1, 4, 16]),
        "aggregator": stream.choice(["parallel-scan", "union", "single-call"]),
        "budget": (
            Budget(epochs=1)
            if stream.random() < 0.5
            else Budget(rollouts=stream.randrange(40, 120))
        ),
        "executor": stream.choice(["threads", "asyncio"]),
        "seed": seed,
    }
    world = World.made()
    whole = facts(
        world.compile(log_dir=tmp_path / "whole", heldout=6, **arguments), tmp_path / "whole"
    )
    paid = world.asked
    at, committed, written = stream.randrange(1, len(whole["effects"])), 0, _writer.Writer._transact

    def fails(self: Any, connection: Any, statements: Any) -> None:
        nonlocal committed
        committed += sum("INTO effect" in sql for sql, _ in statements)
        if committed > at:
            raise sqlite3.DatabaseError("the disk is gone")
        written(self, connection, statements)

    world = World.made()
    place = tmp_path / "again"
    with monkeypatch.context() as patched:
        patched.setattr(_writer.Writer, "_transact", fails)
        with pytest.raises(JournalError, match="the disk is gone"):
            world.compile(log_dir=place, heldout=6, **arguments)
    assert facts(world.compile(log_dir=place, heldout=6, **arguments), place) == whole
    # Bought again is at most what had its slot, or had just left it, when the disk went.
    assert paid <= world.asked <= paid + 2 * arguments["num_threads"]


def test_a_clock_that_jumps_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments: dict[str, Any] = {
        "reflection_minibatch_size": 6,
        "search": Search(staleness=1),
        "num_threads": 1,
        "budget": Budget(seconds=600, rollouts=150),
    }
    steady = facts(
        World.made().compile(log_dir=tmp_path / "steady", **arguments), tmp_path / "steady"
    )
    stream, real = random.Random(0), time.time
    monkeypatch.setattr(time, "time", lambda: real() + stream.choice((-90_000.0, 0.0, 90_000.0)))
    program = World.made().compile(log_dir=tmp_path / "jumping", **arguments)
    assert facts(program, tmp_path / "jumping") == steady
    assert program.combee_report.seconds < 600
    assert (
        facts(World.made().compile(log_dir=tmp_path / "jumping", **arguments), tmp_path / "jumping")
        == steady
    )


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_process_that_is_forked_after_a_compile_goes_on_with_its_run_and_begins_others(
    tmp_path: Path,
) -> None:
    world = World.made()
    program = world.compile(log_dir=tmp_path / "one", reflection_minibatch_size=6)
    asked = world.asked
    child = os.fork()
    if not child:
        try:
            again = world.compile(log_dir=tmp_path / "one", reflection_minibatch_size=6)
            same = again.dump_state() == program.dump_state() and world.asked == asked
            world.compile(log_dir=tmp_path / "two", reflection_minibatch_size=6)
            os._exit(0 if same and world.asked > asked else 1)
        finally:
            os._exit(2)
    until = time.monotonic() + 60
    while (ended := os.waitpid(child, os.WNOHANG)) == (0, 0) and time.monotonic() < until:
        time.sleep(0.02)
    if ended == (0, 0):
        os.kill(child, 9)
    assert ended == (child, 0)


@pytest.mark.parametrize("keep", ["pareto", "trunk"])
@pytest.mark.slow
def test_what_a_run_holds_does_not_grow_with_its_rollouts(
    monkeypatch: pytest.MonkeyPatch, keep: str
) -> None:
    held: list[int] = []

    def count_and_report(*arguments: Any) -> Any:
        gc.collect()
        held.append(sum(type(item) is Rollout for item in gc.get_objects()))
        return report(*arguments)

    report = _course._make_report
    monkeypatch.setattr(_course, "_make_report", count_and_report)
    for rollouts in (120, 360):
        World.made().compile(
            budget=Budget(rollouts=rollouts),
            cache=False,
            search=Search(keep=keep, staleness=1),
            reflection_minibatch_size=12,
            skip_perfect_score=False,
        )
    assert held[1] <= held[0] + 12 < 100
