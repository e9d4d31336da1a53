"""Where looks at held-out rows are counted, which studies are held to their rows, and that no text
is kept.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import dspy
import pytest

from combee_dspy import Heldout, Privacy, Task, compile_many
from combee_dspy.exceptions import ArgumentValueError, HeldoutMovedError
from tests.search.test_heldout import MOVES
from tests.slow import slow_but
from tests.worlds import World, examples, metric

PROJECT_FILE = "combee-heldout.jsonl"


@pytest.fixture(autouse=True)
def counting(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Looks are counted; the test works in a folder that is no project."""
    monkeypatch.delenv("COMBEE_RECEIPTS")
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project folder; the test works in a folder of it."""
    (tmp_path / "project" / "notebooks").mkdir(parents=True)
    (tmp_path / "project" / "pyproject.toml").touch()
    monkeypatch.chdir(tmp_path / "project" / "notebooks")
    return tmp_path / "project"


def run(world: World, *, student: Any = None, **changes: Any) -> Any:
    data = {"trainset": examples(12), "valset": examples(6, 100), "heldout": examples(8, 200)}
    splits = {name: changes.pop(name, rows) for name, rows in data.items()}
    settings = {"max_metric_calls": 40, "reflection_minibatch_size": 4, **changes}
    with dspy.context(lm=world.task_lm, adapter=dspy.ChatAdapter()):
        return world.combee(**settings).compile(
            student or dspy.Predict("question -> answer"), **splits
        )


def lines_of(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def kinder(
    gold: Any, pred: Any, trace: Any = None, pred_name: Any = None, pred_trace: Any = None
) -> Any:
    verdict = metric(gold, pred)
    return dspy.Prediction(score=verdict.score, feedback=f"Look again. {verdict.feedback}")


def lenient(
    gold: Any, pred: Any, trace: Any = None, pred_name: Any = None, pred_trace: Any = None
) -> float:
    return 1.0


@pytest.mark.parametrize("how", slow_but(("other rows", "read rows are validated on"), MOVES))
def test_without_a_name_and_a_log_dir_nothing_is_recorded_and_nothing_refused(
    world: World, project: Path, how: str
) -> None:
    learned = run(world)
    report = run(world, student=learned, **MOVES[how]).combee_report
    if MOVES[how].get("heldout", True):
        assert "no study name and no log_dir: this look is not counted" in str(report)
        assert report.receipt.looks == 0
    assert not (project / PROJECT_FILE).exists()


def test_better_feedback_is_no_leak_and_the_second_look_is_warned_of(
    world: World, project: Path
) -> None:
    first = run(world, log_dir="runs/a").combee_report
    second = run(world, log_dir="runs/b", metric=kinder).combee_report
    assert (first.receipt.looks, second.receipt.looks) == (0, 1)
    assert "look 1" in str(first)
    assert "look 2" in str(second)
    (warning,) = second.warnings
    assert "had been read once before, by 1 run" in warning
    assert not second.supports_claims


def test_several_tasks_of_a_study_read_each_look_once(world: World) -> None:
    tasks = [
        Task(
            str(seed),
            dspy.Predict("question -> answer"),
            examples(12),
            examples(6, 100),
            Heldout(examples(8, 200), study="refunds"),
            seed=seed,
        )
        for seed in (0, 1)
    ]
    with dspy.context(lm=world.task_lm, adapter=dspy.ChatAdapter()):
        combee = world.combee(max_metric_calls=40, reflection_minibatch_size=4)
        results = compile_many(tasks, combee=combee, at_once=1)
    assert [result.report.receipt.looks for result in results] == [0, 1]
    assert len(lines_of(Path(PROJECT_FILE))) == 4


def test_a_metric_that_scores_otherwise_shows_in_the_untouched_programs_scores(
    world: World, project: Path
) -> None:
    run(world, log_dir="runs/a")
    report = run(world, log_dir="runs/b", metric=lenient).combee_report
    assert any("the untouched program scores otherwise on" in text for text in report.warnings)


@pytest.mark.slow
def test_looks_are_counted_by_rows_in_all_processes(world: World, project: Path) -> None:
    script = "from tests.search.test_receipts import *; run(World.made(), log_dir='runs/a')"
    subprocess.run(  # noqa: S603 - its own interpreter
        [sys.executable, "-c", script],
        check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )

    def looks(**splits: Any) -> int:
        return run(world, heldout=Heldout(**splits, study="b")).combee_report.receipt.looks

    assert looks(rows=examples(7, 201)) == 1
    assert run(world, trainset=examples(3, 400)).combee_report.receipt.looks == 2


def test_a_project_is_held_to_its_rows_whatever_the_log_dir(
    world: World, project: Path, tmp_path: Path
) -> None:
    first = run(world, log_dir="runs/a").combee_report
    assert str(project / PROJECT_FILE) in str(first)
    bought = world.asked
    for how, changes in MOVES.items():
        for place in ("runs", tmp_path / "outside"):
            with pytest.raises(HeldoutMovedError) as caught:
                run(world, log_dir=Path(place, how), **changes)
            assert str(project / PROJECT_FILE) in str(caught.value), how
        assert world.asked == bought, how
    assert [line["stage"] for line in lines_of(project / PROJECT_FILE)] == ["begun", "read"]


def test_a_run_without_log_dir_is_warned_of_what_a_project_would_refuse(
    world: World, project: Path
) -> None:
    run(world, log_dir="runs/a")
    report = run(world, heldout=examples(8, 300)).combee_report
    assert any("is not refused that heldout has changed" in text for text in report.warnings)


@pytest.mark.parametrize("log_dirs", [(None, None), ("a", "b"), (None, "b")])
def test_a_study_with_a_name_is_held_to_its_rows_even_where_nothing_is_counted(
    world: World, monkeypatch: pytest.MonkeyPatch, log_dirs: tuple[str | None, str | None]
) -> None:
    monkeypatch.setenv("COMBEE_RECEIPTS", "off")
    first = run(
        world, heldout=Heldout(examples(8, 200), study="refunds"), log_dir=log_dirs[0]
    ).combee_report
    file = Path.cwd() / PROJECT_FILE
    assert f"study 'refunds', recorded in {file}" in str(first)
    moved = Heldout(examples(8, 300), study="refunds")
    with pytest.raises(HeldoutMovedError, match=PROJECT_FILE):
        run(
            world,
            heldout=moved,
            log_dir=log_dirs[1],
            trainset=examples(12, 400),
            valset=examples(6, 500),
        )
    again = Heldout(examples(8, 200), study="refunds")
    assert (
        run(world, heldout=again, log_dir=log_dirs[1], metric=kinder).combee_report.receipt.looks
        == 1
    )
    # Another name is another study, but a look is a look.
    other = Heldout(examples(7, 200), study="returns")
    assert run(world, heldout=other).combee_report.receipt.looks == 2


def test_where_neither_name_nor_project_folder_is_the_report_says_what_is_not_known(
    world: World,
) -> None:
    run(world, log_dir="a")
    report = run(world, log_dir="b", heldout=examples(8, 300)).combee_report
    assert "no study name and no project folder: looks outside b may not be known" in str(report)
    assert not Path(PROJECT_FILE).exists()


def test_no_text_is_kept_and_nobody_is_named(world: World, project: Path) -> None:
    for texts in ("redacted", "hashes"):
        held = Heldout(examples(8, 200), study="refunds")
        run(world, privacy=Privacy(texts=texts, who="none"), heldout=held, log_dir=texts)
    assert len(lines_of(project / PROJECT_FILE)) == 4
    stored = (project / PROJECT_FILE).read_text(encoding="utf-8")
    for text in ("Number", "word for", "BEE", "scripted", "metric.", "Give the code", "question"):
        assert text not in stored, text


def test_two_readings_that_began_together_are_not_both_made(world: World) -> None:
    from combee_dspy.search import _heldout

    read = _heldout.HeldoutReading.read
    other: dict[str, Any] = {"heldout": Heldout(examples(8, 300), study="refunds")}

    async def first_the_other(self: Any, *args: Any, **kwargs: Any) -> Any:
        if other:
            arguments = dict(other)
            other.clear()
            await asyncio.to_thread(run, World.made(), **arguments)
        return await read(self, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch, pytest.raises(HeldoutMovedError, match="read it"):
        patch.setattr(_heldout.HeldoutReading, "read", first_the_other)
        run(world, heldout=Heldout(examples(8, 200), study="refunds"))


@pytest.mark.parametrize("how", ["no file of ours", "a pipe", "a link"])
def test_a_file_that_a_run_without_a_name_cannot_read_is_warned_of(
    world: World, project: Path, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    file, mine = project / PROJECT_FILE, project / "mine"
    mine.write_text("mine")
    if how == "a pipe":
        os.mkfifo(file)
    elif how == "a link":
        file.symlink_to(mine)
    else:
        file.write_bytes(b"\xff something else")
    with caplog.at_level(logging.WARNING, "combee_dspy"):
        assert run(world).combee_report.heldout is not None
    (warning,) = [row.message for row in caplog.records if "cannot be counted" in row.message]
    assert str(file) in warning
    assert mine.read_text() == "mine"


@pytest.mark.parametrize("how", ["changed", "a link"])
def test_a_study_whose_file_is_not_as_it_was_written_is_refused_by_the_files_name(
    world: World, how: str
) -> None:
    held = Heldout(examples(8, 200), study="refunds")
    run(world, heldout=held)
    file = Path(PROJECT_FILE).absolute()
    if how == "changed":
        file.write_text("{}\n")
    else:
        file.rename("elsewhere")
        file.symlink_to("elsewhere")
    with pytest.raises(ArgumentValueError, match=PROJECT_FILE):
        run(world, heldout=held)


def test_off_writes_no_file_for_runs_without_a_name(
    world: World, monkeypatch: pytest.MonkeyPatch, project: Path
) -> None:
    monkeypatch.setenv("COMBEE_RECEIPTS", "off")
    report = run(world, log_dir="runs/a").combee_report
    assert "COMBEE_RECEIPTS=off: looks outside runs/a may not be known" in str(report)
    assert not (project / PROJECT_FILE).exists()


def test_a_folder_for_receipts_that_is_used_no_more_is_warned_of(
    world: World,
    monkeypatch: pytest.MonkeyPatch,
    project: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("COMBEE_RECEIPTS", "/data/receipts")
    with caplog.at_level(logging.WARNING, "combee_dspy"):
        run(world, log_dir="runs/a")
    assert "COMBEE_RECEIPTS='/data/receipts' has no effect" in caplog.text
    assert len(lines_of(project / PROJECT_FILE)) == 2
