"""A wide search asks whether its task was diagnosed: of whatever distribution can tell."""

from __future__ import annotations

from pathlib import Path

import dspy
import pytest

from combee_dspy import Search
from combee_dspy.exceptions import RefusedError
from combee_dspy.search import SerialVerdict, _refusals
from tests.worlds import examples


def reader(folder: Path) -> SerialVerdict | None:
    verdict = folder / "verdict"
    return SerialVerdict(verdict.read_text(), "Look again.") if verdict.exists() else None


@pytest.fixture
def wide(world, tmp_path, monkeypatch):
    """Search wide where a diagnosis is required; one distribution reads verdicts, or none does."""

    def search(installed: bool = True, required: bool = True) -> None:
        monkeypatch.setattr(_refusals, "extension", lambda *_: reader if installed else None)
        combee = world.combee(
            log_dir=tmp_path / "log",
            max_metric_calls=20,
            num_threads=8,
            search=Search(require_diagnosis=required),
        )
        with dspy.context(lm=world.task_lm, adapter=dspy.ChatAdapter()):
            combee.compile(dspy.Predict("question -> answer"), trainset=examples(6))

    (tmp_path / "log-serial").mkdir()
    return search


def test_it_begins_where_the_verdict_is_that_serial_search_has_converged(wide, world, tmp_path):
    with pytest.raises(RefusedError, match="nobody knows whether serial search has converged"):
        wide()
    (tmp_path / "log-serial" / "verdict").write_text("rising")
    with pytest.raises(RefusedError, match=r"the diagnosis is 'rising'.* Look again\."):
        wide()
    assert world.asked == 0
    (tmp_path / "log-serial" / "verdict").write_text("converged")
    wide()
    assert world.asked > 0


def test_where_no_distribution_can_tell_nobody_knows(wide, world, tmp_path):
    (tmp_path / "log-serial" / "verdict").write_text("converged")
    with pytest.raises(RefusedError, match=r"nobody knows.*Run combee diagnose"):
        wide(installed=False)
    assert world.asked == 0


def test_only_who_searched_serially_is_warned(wide, tmp_path, caplog):
    (tmp_path / "log-serial" / "verdict").write_text("rising")
    wide(required=False)
    assert "the diagnosis is 'rising'" in caplog.text
    (tmp_path / "log-serial" / "verdict").unlink()
    (tmp_path / "log-serial").rmdir()
    caplog.clear()
    wide(required=False)
    assert "serial search" not in caplog.text


def test_many_workers_with_diversity_off_are_no_optimizer_at_all(world):
    for workers in (9, 63, 64):
        with pytest.raises(RefusedError, match=f"{workers} workers with diversity off"):
            world.combee(num_threads=workers, diversity=False)
    world.combee(num_threads=8, diversity=False)
