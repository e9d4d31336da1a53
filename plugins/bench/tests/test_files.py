"""What the commands write follows no link, and what they read waits for no pipe."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.table import Table

from combee_bench.commands import _measure
from combee_bench.options import CeilingOptions
from combee_bench.real import _page, _read, _written
from combee_dspy.exceptions import NotPlainFileError


@pytest.fixture
def link(tmp_path: Path) -> Path:
    """A link to a file of the user's, which must stay as it is."""
    (tmp_path / "victim").write_text("mine", encoding="utf-8")
    (tmp_path / "out.json").symlink_to(tmp_path / "victim")
    yield tmp_path / "out.json"
    assert (tmp_path / "victim").read_text(encoding="utf-8") == "mine"


def test_figures_as_json_follow_no_link(link):
    module = SimpleNamespace(
        run=lambda options: iter([CeilingOptions()]),
        line=lambda *_: "",
        table=lambda *_: Table("none"),
    )
    with pytest.raises(NotPlainFileError, match=r"out\.json is a link"):
        _measure("ceiling", CeilingOptions(), module, link)


def test_a_study_follows_no_link(link):
    for write in (lambda: _written(link, {}), lambda: _page(link, [], [], [])):
        with pytest.raises(NotPlainFileError, match=r"out\.json is a link"):
            write()


@pytest.mark.skipif(os.name != "posix", reason="named pipes are POSIX's")
def test_a_study_waits_for_no_pipe(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(NotPlainFileError, match="named pipe"):
        _read(tmp_path / "pipe")
