"""What a run writes is its owner's alone, and no name leads out of a folder."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from combee_dspy.files import file_name, make_folder
from tests.worlds import World

pytestmark = pytest.mark.skipif(os.name != "posix", reason="permissions are POSIX's")


def test_files_of_a_run_are_its_owners_alone(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        World.made().compile(
            log_dir=str(tmp_path / "runs" / "run"), cache=str(tmp_path / "shared" / "cache.sqlite")
        )
    finally:
        os.umask(before)
    modes = {
        path.relative_to(tmp_path): oct(stat.S_IMODE(path.stat().st_mode))
        for path in tmp_path.rglob("*")
    }

    assert {mode for path, mode in modes.items() if (tmp_path / path).is_file()} == {"0o600"}, modes
    assert {mode for path, mode in modes.items() if (tmp_path / path).is_dir()} == {"0o700"}, modes
    assert any(path.name == "journal.sqlite" for path in modes)


def test_so_are_the_folders_that_a_file_was_wanted_in(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        make_folder(tmp_path / "compared" / "today" / "combee")
    finally:
        os.umask(before)
    modes = {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.rglob("*")}
    assert modes == {0o700}


@pytest.mark.parametrize(
    "name",
    ["../up", "/etc/passwd", "a/b", "..", ".hidden", "", "C:\\x", "nul\0", "\ud800", "x" * 999],
)
def test_a_name_never_is_a_path(name: str) -> None:
    plain = file_name(name)

    assert plain == Path(plain).name
    assert plain.strip(".")
    assert len(plain) < 120
    assert plain != file_name(name + "x")


def test_a_plain_name_stays() -> None:
    assert file_name("my-task_1.5") == "my-task_1.5"
    assert file_name("größe") == "größe"
