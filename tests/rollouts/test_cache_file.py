"""The cache's file: several processes, and what is no cache."""

from __future__ import annotations

import copy
import pickle
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from combee_dspy import EvaluationCache
from combee_dspy.exceptions import ArgumentTypeError, ArgumentValueError
from combee_dspy.rollouts._store import CacheFile

WRITER = """
import sys
from pathlib import Path
from combee_dspy.rollouts._store import CacheFile
file = CacheFile(Path(sys.argv[1]))
for number in range(150):
    file.write_rollout(f"shared {number}", "p", "r", 0, sys.argv[2])
    file.write_rollout(f"{sys.argv[2]} {number}", "p", "r", 0, sys.argv[2])
    assert file.read_rollout(f"{sys.argv[2]} {number}") == sys.argv[2]
"""


def test_several_processes_share_a_file(tmp_path: Path) -> None:
    path = tmp_path / "cache.sqlite"
    command = [sys.executable, "-c", WRITER, str(path)]
    running = [subprocess.Popen([*command, name]) for name in ("a", "b", "c")]  # noqa: S603 - our own script
    assert [process.wait(timeout=120) for process in running] == [0, 0, 0]
    file = CacheFile(path)
    assert file.count() == 150 * 4
    assert {file.read_rollout(f"shared {number}") for number in range(150)} <= {"a", "b", "c"}
    file.close()


def test_the_first_to_write_stands(tmp_path: Path) -> None:
    file = CacheFile(tmp_path / "cache.sqlite")
    for text in ("first", "second"):
        file.write_rollout("k", "p", "r", 0, text)
        file.write_call("k", 0, text)
    assert file.read_rollout("k") == file.read_call("k", 0) == "first"
    assert file.read_call("k", 1) is None


@pytest.mark.parametrize("statement", ["CREATE TABLE mine (x)", "PRAGMA user_version = 99"])
def test_what_is_no_cache_is_refused_and_left_alone(tmp_path: Path, statement: str) -> None:
    path = tmp_path / "other.sqlite"
    if "99" in statement:
        CacheFile(path).close()
    with sqlite3.connect(path) as connection:
        connection.execute(statement)
    connection.close()
    before = path.read_bytes()
    with pytest.raises(ArgumentValueError, match="cache"):
        EvaluationCache(path)
    assert path.read_bytes() == before


def test_a_cache_is_no_number() -> None:
    with pytest.raises(ArgumentTypeError, match="is no path"):
        EvaluationCache(3)  # type: ignore[arg-type]


def test_copies_share_and_pickles_open_the_same_file(tmp_path: Path) -> None:
    cache = EvaluationCache(tmp_path / "cache.sqlite")
    assert copy.deepcopy(cache) is cache
    assert pickle.loads(pickle.dumps(cache)).path == cache.path  # noqa: S301 - our own
    cache.close()
    cache.close()
    assert repr(cache).startswith("EvaluationCache('")
