"""One scan, shown."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.console import Console

from combee_bench.options import ScanOptions
from combee_bench.scan import line, run, table


@pytest.mark.parametrize(
    ("law", "lost"),
    [("attention", True), pytest.param("unlimited", False, marks=pytest.mark.slow)],
)
def test_a_scan_is_shown_call_by_call(law, lost, tmp_path):
    options = ScanOptions(reflections=24, law=law, log_dir=str(tmp_path))
    rows = list(run(options))
    assert [row.level for row in rows] == [1, 1, 1, 1, 2]  # ⌊√24⌋ shards, and the merge
    assert {index for row in rows[:-1] for index in row.read} == set(range(24))
    assert any(row.lost for row in rows) is lost
    assert (len(rows[-1].kept) < 24) is lost
    console = Console(width=100, record=True)
    console.print(table(options, rows))
    screen = console.export_text()
    assert ("×" in screen.split("└")[0]) is lost
    assert "no language model" in screen
    assert (
        line(options, rows[0])
        == f"level 1, call 1: {len(rows[0].read)} reflections, {rows[0].lessons} lessons"
    )
    assert Path(rows[0].report).is_file()
