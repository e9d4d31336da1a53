"""A file can be read in one sitting, and its names say what they hold."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest

from tests.architecture.house import Counts, count, shared_functions, takes_any

ROOT = Path(__file__).parents[2]
FOLDERS = (
    "combee_dspy",
    "plugins/simulator/combee_simulator",
    "plugins/strategist/combee_strategist",
)
# Code tokens of a file.
LONGEST = 2000
# Share of the functions between rooms whose signature has an Any; the aim is 0.05.
MOST_ANY = 0.06
# Of 1,000 names; the aim is 1.
MOST_PRIVATE = 1.1


@functools.cache
def counts_of_files() -> dict[str, Counts]:
    """Return the counts of each file by its path, counted when the first test asks."""
    return {
        str(path.relative_to(ROOT)): count(path.read_text(encoding="utf-8"))
        for folder in FOLDERS
        for path in sorted((ROOT / folder).rglob("*.py"))
    }


def test_files_can_be_read_in_one_sitting() -> None:
    sizes = {name: counts.tokens for name, counts in counts_of_files().items()}
    assert not {name: n for name, n in sizes.items() if n > LONGEST}


def test_names_say_what_they_hold() -> None:
    private = sum(counts.private for counts in counts_of_files().values())
    names = sum(counts.names for counts in counts_of_files().values())
    assert private / names * 1000 <= MOST_PRIVATE


def test_contracts_between_rooms_have_types() -> None:
    functions = dict(shared_functions(ROOT / "combee_dspy"))
    untyped = sorted(name for name, function in functions.items() if takes_any(function))
    assert len(untyped) / len(functions) <= MOST_ANY, "\n".join(untyped)


@pytest.mark.parametrize(
    ("source", "counts"),
    [
        ('"""A module."""\n# Why.\nrow = 1\n', Counts(3, 1, 0)),
        ('def _told(one):\n    """Say."""\n    return one\n', Counts(8, 3, 3)),
    ],
)
def test_what_is_counted(source: str, counts: Counts) -> None:
    assert count(source) == counts
