"""Memories in whole runs: what is searched is what is served."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import dspy

from combee_dspy import load_candidate
from combee_dspy.artifacts import Memory
from combee_dspy.memory import load_memory, read_memory
from tests.worlds import ANIMALS, TwoSteps, World, examples

_LINE = re.compile(r"the word for \w+ is \w+")


def test_a_run_learns_more_than_a_call_is_shown(tmp_path: Path) -> None:
    world = World.made()
    program = world.compile(artifact=Memory(k=2), log_dir=tmp_path, heldout=12)
    report = program.combee_report
    assert report.heldout.after == 1.0
    assert len(read_memory(report.texts["self"], 2).lookup) >= len(ANIMALS) - 2
    # Rollouts saw what the served program shows.
    assert max(len(_LINE.findall(request.system)) for request in world.task_lm.requests) == 2


def test_what_it_returns_is_saved_loaded_and_found_in_the_journal(tmp_path: Path) -> None:
    world = World.made()
    program = world.compile(artifact="memory", log_dir=tmp_path / "run")
    program.save(tmp_path / "program.json")
    others = (
        load_memory(dspy.Predict("question -> answer"), tmp_path / "program.json"),
        load_candidate(dspy.Predict("question -> answer"), tmp_path / "run", "best"),
    )
    row = examples(1, 5)[0]
    with dspy.context(lm=world.task_lm, adapter=dspy.ChatAdapter()):
        answers = [other(question=row.question).answer for other in (program, *others)]
    assert answers == [row.answer] * 3


def test_each_predictor_has_a_memory_of_its_own(tmp_path: Path) -> None:
    program = World.made().compile(TwoSteps(), artifact=Memory(k=1), log_dir=tmp_path)
    texts = program.combee_report.texts
    assert set(texts) == {"first", "second"}
    assert read_memory(texts["second"], 1).lookup


def test_a_run_goes_on_where_it_was(tmp_path: Path) -> None:
    world = World.made()
    first: Any = world.compile(artifact=Memory(k=2), log_dir=tmp_path)
    asked = world.asked
    again: Any = world.compile(artifact=Memory(k=2), log_dir=tmp_path)
    assert world.asked == asked
    assert again.combee_report.texts == first.combee_report.texts
