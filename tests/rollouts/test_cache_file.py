"""The cache's file: several processes, and what is no cache."""

from __future__ import annotations

import copy
import pickle
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import dspy
import pytest

from combee_dspy import EvaluationCache
from combee_dspy.exceptions import ArgumentTypeError, ArgumentValueError
from combee_dspy.hashing import row_hash
from combee_dspy.records import Rollout
from combee_dspy.rollouts import Threads
from combee_dspy.rollouts._fingerprint import RolloutKey, program_fingerprint
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


def test_what_was_on_its_way_when_it_was_invalidated_does_not_take_its_replacements_place(tmp_path: Path) -> None:
    example = dspy.Example(question="1", answer="2").with_inputs("question")
    program = dspy.Predict("question -> answer")
    key = RolloutKey(program_fingerprint(program), "setting", row_hash(example))
    session = Threads().start(2)
    cache = EvaluationCache(tmp_path / "cache.sqlite")
    go = {0.0: threading.Event(), 1.0: threading.Event()}

    def carry_out(score: float) -> Rollout:
        assert go[score].wait(60)
        rollout = Rollout(row_hash(example), example, dspy.Prediction(answer="2"), (), score)
        cache.keep(key, rollout, program)
        return rollout

    def ask(score: float) -> tuple[object, bool]:
        return cache.obtain(key, example, lambda: program, lambda: session.submit(carry_out, score), traced=False)

    old, _ = ask(0.0)
    assert cache.invalidate("the service answered from a broken model") == 1
    new, bought = ask(1.0)
    assert bought
    for score, future in ((0.0, old), (1.0, new)):
        go[score].set()
        assert future.result(60).score == score  # type: ignore[attr-defined]
    session.close()
    assert (cache.stats.kept, cache.stats.refused) == (1, 0)
    cache.close()
    with EvaluationCache(tmp_path / "cache.sqlite") as again:
        found = again.find(key, example, lambda: program)
    assert found is not None
    assert found.score == 1.0


def test_a_secret_of_several_lines_reaches_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACME_PRIVATE_KEY", "-----BEGIN-----\nMIIEvQIBADANBgkqhkiG9w0BAQEF\n-----END-----\n")
    example = dspy.Example(question="1").with_inputs("question")
    program = dspy.Predict("question -> answer")
    key = RolloutKey(program_fingerprint(program), "setting", row_hash(example))
    said = dspy.Prediction(answer="-----BEGIN-----\nMIIEvQIBADANBgkqhkiG9w0BAQEF\n-----END-----")
    with EvaluationCache(tmp_path / "cache.sqlite") as cache:
        cache.enter(key, Rollout(row_hash(example), example, said, (), 1.0), program)
        assert (cache.stats.kept, cache.stats.refused) == (0, 1)
