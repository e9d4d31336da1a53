"""A file is written whole or not at all, keeps its permissions, and nothing is left beside it."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from combee_dspy.exceptions import NotPlainFileError
from combee_dspy.files import check_plain, open_in_place, read_plain, replace_file, write_plain


def test_a_file_is_replaced_and_keeps_its_permissions(tmp_path: Path) -> None:
    path = tmp_path / "page"
    write_plain(path, "one\r\n")
    path.chmod(0o600)
    write_plain(path, b"two")
    assert path.read_bytes() == b"two"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == [path]


def test_what_fails_half_way_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "page"
    write_plain(path, "one")
    with pytest.raises(RuntimeError), replace_file(path) as file:
        file.write(b"tw")
        raise RuntimeError
    with pytest.raises(UnicodeEncodeError):
        write_plain(path, "\ud800")
    assert read_plain(path) == b"one"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.skipif(os.name != "posix", reason="links of a user are POSIX's")
def test_what_is_planted_while_it_writes_is_refused_too(tmp_path: Path) -> None:
    path, victim = tmp_path / "page", tmp_path / "victim"
    victim.write_bytes(b"mine")
    with pytest.raises(NotPlainFileError, match="is a link"), replace_file(path) as file:
        file.write(b"two")
        path.symlink_to(victim)
    assert victim.read_bytes() == b"mine"
    assert sorted(tmp_path.iterdir()) == [path, victim]


@pytest.mark.skipif(os.name != "posix", reason="devices are POSIX's")
def test_a_device_and_a_second_name_are_refused(tmp_path: Path) -> None:
    with pytest.raises(
        NotPlainFileError, match=r"/dev/null is a device, not a plain file.*Move it away"
    ):
        read_plain(Path("/dev/null"), follow=True)
    path = tmp_path / "page"
    write_plain(path, "one")
    (tmp_path / "again").hardlink_to(path)
    assert check_plain(path) is not None
    with pytest.raises(NotPlainFileError, match=r"is a hard link.*Copy the folder"):
        open_in_place(path)


def test_a_link_is_followed_only_where_the_user_named_it(tmp_path: Path) -> None:
    path = tmp_path / "page"
    write_plain(path, "one")
    (tmp_path / "link").symlink_to(path)
    assert read_plain(tmp_path / "link", follow=True) == b"one"
    with pytest.raises(NotPlainFileError, match="link is a link"):
        read_plain(tmp_path / "link")


def test_a_path_that_is_not_there_is_fine_to_write(tmp_path: Path) -> None:
    write_plain(tmp_path / "file", "")
    for path in (tmp_path / "none", tmp_path / "file" / "below", tmp_path / "nu\0ll"):
        assert check_plain(path) is None
