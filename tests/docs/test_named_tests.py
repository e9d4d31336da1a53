"""The tests that hold what a page of results says are there."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
HOMES = ("tests", "plugins/strategist/tests", "plugins/bench/tests", "plugins", ".")
NAME = re.compile(r"`(…|[\w/-]+\.py)(?:::(test_\w+)(…?))?`")


def missing(text: str) -> list[str]:
    """Return the tests that a text names and nobody has; ``…`` stands for the file before."""
    lost, path = [], Path()
    for file, test, cut in NAME.findall(text):
        if file != "…":
            places = (ROOT / home / file for home in HOMES)
            path = next(filter(Path.is_file, places), Path(file))
        tests = re.findall(r"def (test_\w+)", path.read_text()) if path.is_file() else []
        is_there = any(name.startswith(test) if cut else name == test for name in tests)
        if not (is_there if test else path.is_file()):
            lost.append(f"{path}::{test}")
    return lost


def test_each_test_that_the_page_of_promises_names_is_there() -> None:
    text = (ROOT / "docs" / "results" / "users.md").read_text(encoding="utf-8")
    assert len(NAME.findall(text)) > 10
    assert not missing(text)


def test_one_that_is_gone_is_seen() -> None:
    assert missing("| `docs/test_named_tests.py`, `…::test_none`") == [
        f"{ROOT / 'tests/docs/test_named_tests.py'}::test_none"
    ]
    assert missing("`nowhere/test_x.py`") == ["nowhere/test_x.py::"]
