"""Held-out receipts of runs without a ``log_dir``: kept beside all journals, by study, and no text among them."""

from __future__ import annotations

import logging
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import dspy
import pytest

from combee_dspy import Privacy, Task, compile_many
from combee_dspy.exceptions import HeldoutMovedError
from tests.worlds import World, examples, metric


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The folder of this test's receipts."""
    monkeypatch.setenv("COMBEE_RECEIPTS", str(tmp_path / "receipts"))
    return tmp_path / "receipts"


def run(world: World, *, student: Any = None, **changes: Any) -> Any:
    data = {"trainset": examples(12), "valset": examples(6, 100), "heldout": examples(8, 200)}
    given = {name: changes.pop(name, rows) for name, rows in data.items()}
    settings = {"max_metric_calls": 40, "reflection_minibatch_size": 4, **changes}
    with dspy.context(lm=world.task_lm, adapter=dspy.ChatAdapter()):
        return world.combee(**settings).compile(student or dspy.Predict("question -> answer"), **given)


def stored(folder: Path) -> list[tuple[str, ...]]:
    with closing(sqlite3.connect(folder / "receipts.sqlite")) as connection:
        return connection.execute("SELECT study, versions, data FROM receipt").fetchall()


def lenient(gold: Any, pred: Any, trace: Any = None, pred_name: Any = None, pred_trace: Any = None) -> float:
    return 1.0


MOVES: dict[str, dict[str, Any]] = {
    "other rows": {"heldout": examples(8, 300)},
    "a row less": {"heldout": examples(7, 200)},
    "a row more": {"heldout": examples(9, 200)},
    "another metric": {"metric": lenient},
    "a label as input": {"heldout": [row.with_inputs("question", "answer") for row in examples(8, 200)]},
    "read rows are validated on": {"valset": examples(6, 203), "heldout": None},
    "validated rows are held out": {"valset": examples(6, 300), "heldout": examples(6, 100)},
}


@pytest.mark.parametrize("how", MOVES)
def test_a_held_out_set_that_moves_is_refused_without_a_log_dir_too(world: World, how: str) -> None:
    learned = run(world)
    asked = world.asked
    # The program that was learned is as much the same study as the one that was given.
    with pytest.raises(HeldoutMovedError, match="log_dir of its own"):
        run(world, student=learned, **{"trainset": examples(12)[::-1], **MOVES[how]})
    assert world.asked == asked, "nothing was bought"


def test_another_process_knows_what_was_read(world: World) -> None:
    run(world)
    script = (
        "import dspy; from tests.worlds import *; w = World.made()\n"
        "with dspy.context(lm=w.task_lm, adapter=dspy.ChatAdapter()):\n"
        "    w.combee(max_metric_calls=40, reflection_minibatch_size=4).compile(dspy.Predict('question -> answer'),\n"
        "        trainset=examples(12), valset=examples(6, 100), heldout=examples(8, 300))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)  # noqa: S603
    assert "HeldoutMovedError" in done.stderr


def test_the_same_rows_may_be_read_again_and_that_is_counted(world: World, tmp_path: Path) -> None:
    assert [run(world, seed=seed).combee_report.receipt.looks for seed in (0, 1)] == [0, 1]
    # A log_dir is a study of its own.
    assert run(world, heldout=examples(8, 300), log_dir=tmp_path / "log").combee_report.receipt.looks == 0


def test_another_program_or_another_trainset_is_another_study(world: World) -> None:
    run(world)
    run(world, student=dspy.ChainOfThought("question -> answer"), heldout=examples(8, 300))
    run(world, trainset=examples(12, 400), heldout=examples(8, 300))


def test_several_tasks_read_each_look_once(world: World) -> None:
    tasks = [
        Task(str(seed), dspy.Predict("question -> answer"), examples(12), examples(6, 100), examples(8, 200), seed=seed)
        for seed in (0, 1)
    ]
    with dspy.context(lm=world.task_lm, adapter=dspy.ChatAdapter()):
        combee = world.combee(max_metric_calls=40, reflection_minibatch_size=4)
        looks = [one.report.receipt.looks for one in compile_many(tasks, combee=combee, at_once=1)]
    assert looks == [0, 1]
    assert run(world).combee_report.receipt.looks == 2


def test_no_text_is_kept_and_nobody_is_named(world: World, folder: Path) -> None:
    run(world, privacy=Privacy(texts="redacted", who="none"))
    texts = " ".join(text for row in stored(folder) for text in row)
    assert len(stored(folder)) == 3
    for text in ("Number", "word for", "BEE", "scripted", "metric.", "Give the code", "question"):
        assert text not in texts, text


def test_two_readings_that_began_together_are_not_both_made(world: World) -> None:
    from combee_dspy.search import _heldout

    begun = _heldout.HeldoutReading.read
    other: dict[str, Any] = {"heldout": examples(8, 300)}

    async def first_the_other(self: Any, *args: Any, **kwargs: Any) -> Any:
        if other:
            import asyncio

            given = dict(other)
            other.clear()
            await asyncio.to_thread(run, World.made(), **given)
        return await begun(self, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch, pytest.raises(HeldoutMovedError, match="read it"):
        patch.setattr(_heldout.HeldoutReading, "read", first_the_other)
        run(world)


@pytest.mark.parametrize("how", ["a file in its place", "no file of ours", "changed rows"])
def test_a_folder_that_cannot_be_used_is_warned_of_by_name(
    world: World, folder: Path, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    if how == "a file in its place":
        folder.write_text("")
    elif how == "no file of ours":
        folder.mkdir()
        (folder / "receipts.sqlite").write_text("something else, and long enough to be no header" * 10)
    else:
        run(world)
        with closing(sqlite3.connect(folder / "receipts.sqlite")) as connection:
            connection.execute("UPDATE receipt SET data = '{}'")
            connection.commit()
    with caplog.at_level(logging.WARNING, "combee_dspy"):
        assert run(world).combee_report.heldout is not None
    said = [one.message for one in caplog.records if "receipts" in one.message]
    assert len(said) == 1
    assert str(folder) in said[0]


def test_off_keeps_and_refuses_nothing(world: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("COMBEE_RECEIPTS", "off")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    run(world)
    run(world, heldout=examples(8, 300))
    assert not list(tmp_path.iterdir())


def test_by_default_they_lie_in_the_users_data_directory(
    world: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("COMBEE_RECEIPTS")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    run(world, metric=metric)
    assert len(stored(tmp_path / "data" / "combee_dspy")) == 3


def test_an_upgrade_of_python_or_dspy_moves_no_metric(world: World, folder: Path) -> None:
    run(world)
    with closing(sqlite3.connect(folder / "receipts.sqlite")) as connection:
        connection.execute("UPDATE receipt SET versions = 'dspy 1'")
        connection.commit()
    run(world, metric=lenient)  # whose hash says nothing beside one of other versions
    with pytest.raises(HeldoutMovedError):
        run(world, heldout=examples(8, 300))
