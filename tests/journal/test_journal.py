"""The journal: every effect once, committed before it is used, never trusted where it was
changed.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from combee_dspy.events import CandidateProposed, RunStopped, UpdateEnded
from combee_dspy.exceptions import (
    ArgumentValueError,
    JournalDamagedError,
    JournalError,
    JournalHeldError,
    JournalMismatchError,
    NotPlainFileError,
)
from combee_dspy.journal import Cache, Effect, Journal, Reader, RunLog, _writer, journal_file
from combee_dspy.records import CallUsage

IDENTITY = {"program": "aa", "trainset": "bb"}


def usage(calls: int = 1, **changes: Any) -> CallUsage:
    arguments = {
        "role": "task",
        "model": "m",
        "calls": calls,
        "errors": 0,
        "cached": 0,
        "prompt_tokens": 10 * calls,
        "completion_tokens": calls,
        "dollars": 0.5 * calls,
        "gpu_seconds": None,
        "seconds": 1.0,
    }
    return CallUsage(**{**arguments, **changes})


def effect(key: str, value: Any = None, **changes: Any) -> Effect:
    return Effect(
        key,
        "rollout",
        {"text": key} if value is None else value,
        "task",
        usage=(usage(),),
        **changes,
    )


def within(folder: Path, work: Callable[[RunLog], Any], name: str = "main", **identity: str) -> Any:
    """Open a journal, go on with a run, do something, and close both."""

    async def all_of_it() -> Any:
        with closing(Journal(folder)) as journal:
            log = journal.run(name, 7, {**IDENTITY, **identity}, {"specs": {}})
            try:
                result = work(log)
                return await result if asyncio.iscoroutine(result) else result
            finally:
                log.close()

    return asyncio.run(all_of_it())


def keep(*effects: Effect) -> Callable[[RunLog], Any]:
    async def work(log: RunLog) -> None:
        await asyncio.gather(*map(log.keep, effects))

    return work


def test_a_score_of_minus_zero_is_no_damage(tmp_path: Path) -> None:
    """A metric that returns the negative of a loss scores so what is right."""
    within(
        tmp_path,
        keep(effect("a", {"score": -0.0}, score=-0.0), effect("b", score=np.float64(-0.0))),
    )
    within(tmp_path, lambda log: log.find("a"))


def test_what_was_kept_is_found_at_once_and_by_whoever_goes_on(tmp_path: Path) -> None:
    async def first(log: RunLog) -> None:
        assert not log.resumed
        assert log.find("a") is None
        await log.keep(effect("a", {"score": 0.25, "text": "ü\u2028"}))
        assert log.find("a") == {"score": 0.25, "text": "ü\u2028"}

    within(tmp_path, first)

    def second(log: RunLog) -> None:
        assert log.resumed
        assert log.find("a") == {"score": 0.25, "text": "ü\u2028"}
        assert log.find("b") is None

    within(tmp_path, second)


def test_many_effects_share_a_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commits: list[int] = []
    written = _writer.Writer._commit

    def counted(self: Any, connection: Any, statements: Any) -> None:
        commits.append(len(statements))
        written(self, connection, statements)

    monkeypatch.setattr(_writer.Writer, "_commit", counted)

    def work(log: RunLog) -> Any:
        # The writer is held up while the effects come in, as by a slow disk.
        held = threading.Event()
        log.journal.writer._queue.put(([], None))
        log.journal.writer._queue.put((_Slow(held), None))

        async def all_of_them() -> None:
            tasks = [asyncio.ensure_future(log.keep(effect(f"e{number}"))) for number in range(300)]
            await asyncio.sleep(0)
            held.set()
            await asyncio.gather(*tasks)

        return all_of_them()

    within(tmp_path, work)
    assert len(commits) < 20
    with Reader(journal_file(tmp_path)) as reader:
        assert reader.rows("SELECT count(*) FROM effect")[0][0] == 300


class _Slow(list):  # type: ignore[type-arg]  # statements that are long in coming
    def __init__(self, until: threading.Event) -> None:
        super().__init__()
        self._until = until

    def __iter__(self) -> Any:
        self._until.wait(10)
        return super().__iter__()


def test_the_same_effect_twice_is_kept_once_and_both_are_paid(tmp_path: Path) -> None:
    within(tmp_path, keep(effect("a", {"n": 1}), effect("a", {"n": 2})))

    def read(log: RunLog) -> Any:
        assert log.find("a") == {"n": 1}
        return log.usage()

    (row,) = within(tmp_path, read)
    assert (row.calls, row.prompt_tokens, row.dollars) == (2, 20, 1.0)


def test_usage_is_summed_by_role_and_model_and_unknown_prices_stay_unknown(tmp_path: Path) -> None:
    effects = [
        Effect("a", "rollout", {}, usage=(usage(), usage(3, role="evaluator", dollars=None))),
        Effect("b", "rollout", {}, usage=(usage(2, gpu_seconds=4.0), usage(1, model="other"))),
    ]
    within(tmp_path, keep(*effects))
    by_name = {(used.role, used.model): used for used in within(tmp_path, lambda log: log.usage())}
    assert {key: used.calls for key, used in by_name.items()} == {
        ("evaluator", "m"): 3,
        ("task", "m"): 3,
        ("task", "other"): 1,
    }
    assert by_name["evaluator", "m"].dollars is None
    assert (by_name["task", "m"].dollars, by_name["task", "m"].gpu_seconds) == (1.5, 4.0)


def test_an_event_of_a_place_is_kept_once_however_often_the_run_is_resumed(tmp_path: Path) -> None:
    def work(log: RunLog) -> None:
        for _ in range(2):
            for name in ("c1", "c2"):
                event = CandidateProposed(name, {}, (), "seed", ())
                log.emit(event, step=3, component="self")
            log.emit(UpdateEnded("c1", (), 2, 0.0, int.from_bytes(os.urandom(4)) / 7), step=3)

    within(tmp_path, work)
    within(tmp_path, work)
    with Reader(journal_file(tmp_path)) as reader:
        events = reader.rows("SELECT run, kind, step, component FROM event ORDER BY id")
    child = (1, "candidate", 3, "self")
    assert list(map(tuple, events)) == [child, child, (1, "update", 3, "")]


def test_another_run_is_refused_and_told_what_differs(tmp_path: Path) -> None:
    within(tmp_path, keep(effect("a")))
    with pytest.raises(JournalMismatchError) as caught:
        within(tmp_path, lambda log: None, trainset="cc", metric="dd")
    assert caught.value.differs == ("metric was not given and is dd", "trainset was bb and is cc")
    assert "Compile with what it was written with" in str(caught.value)


@pytest.mark.parametrize(
    ("before", "now"),
    [
        ("ParallelScan(copies=2, merge_fan_in=None)", "ParallelScan(copies=2)"),
        ("SingleCall(max_call_tokens=None)", "SingleCall()"),
        ("(FewShotSwap(max_tokens=9, balance=True, x=1),)", "(FewShotSwap(max_tokens=9, x=1),)"),
    ],
)
def test_a_run_goes_on_whose_strategy_had_a_parameter_that_is_gone(
    before: str, now: str, tmp_path: Path
) -> None:
    within(tmp_path, keep(effect("a")), aggregator=before)
    assert within(tmp_path, lambda log: log.find("a"), aggregator=now) is not None
    set_before = before.replace("None", "8").replace("True", "False")
    within(tmp_path, keep(effect("a")), name="set", aggregator=set_before)
    with pytest.raises(JournalMismatchError, match="aggregator was"):
        within(tmp_path, lambda log: None, name="set", aggregator=now)


def test_runs_of_other_names_stand_beside_each_other(tmp_path: Path) -> None:
    within(tmp_path, keep(effect("a", {"n": 1})), name="one")
    within(tmp_path, keep(effect("a", {"n": 2})), name="two", program="another")
    assert within(tmp_path, lambda log: log.find("a"), name="one") == {"n": 1}
    assert within(
        tmp_path, lambda log: (log.number, log.usage()[0].calls), name="two", program="another"
    ) == (2, 1)


def test_how_a_run_ended_is_on_disk_when_finish_returns(tmp_path: Path) -> None:
    async def work(log: RunLog) -> None:
        log.emit(RunStopped("done"))
        await log.finish("finished", {"best": "c1"})
        with Reader(log.journal.path) as reader:
            (row,) = reader.rows("SELECT state, result FROM run")
            assert (row["state"], row["result"]) == ("finished", '{"best":"c1"}')
            assert len(reader.rows("SELECT id FROM event")) == 1

    within(tmp_path, work)
    within(tmp_path, lambda log: None)
    with Reader(journal_file(tmp_path)) as reader:
        assert reader.rows("SELECT state, finished FROM run")[0]["state"] == "running"


@pytest.mark.parametrize("column", ["value", "key"])
def test_a_flipped_bit_is_found_before_anything_is_written(tmp_path: Path, column: str) -> None:
    within(tmp_path, keep(*(effect(f"rollout/{number}", {"score": 1.0}) for number in range(20))))
    path = tmp_path / "journal.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        # Behind SQLite's back there are no checksums of pages.
        changed = {
            "value": "value = replace(value, '1.0', '1.5')",
            "key": "key = replace(key, '/7', '/x')",
        }[column]
        connection.execute(f"UPDATE effect SET {changed} WHERE key = 'rollout/7'")  # noqa: S608 - two literal texts
        connection.execute("UPDATE run SET state = 'failed'")
        connection.commit()
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    before = path.read_bytes()
    with pytest.raises(
        JournalDamagedError, match=r"1 of 20 rows of 'effect' were changed.*19 of 20 effects"
    ):
        within(tmp_path, lambda log: None)
    assert path.read_bytes() == before


@pytest.mark.parametrize("version", [1, 9])
def test_another_format_is_refused_with_what_can_be_read(tmp_path: Path, version: int) -> None:
    within(tmp_path, keep(effect("a", {"n": 1})))
    with closing(sqlite3.connect(tmp_path / "journal.sqlite")) as connection:
        connection.execute(f"PRAGMA user_version={version}")
    with pytest.raises(
        JournalDamagedError, match=f"its format is {version}, not 2; 1 of 1 effects"
    ):
        Journal(tmp_path)


@pytest.mark.parametrize(
    "content", [b"not a database at all " * 300, b"SQLite format 3\0" + b"\xff" * 5000, None]
)
def test_what_is_no_journal_is_left_as_it_is(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "journal.sqlite"
    if content is None:  # another program's database
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("CREATE TABLE theirs(id)")
    else:
        path.write_bytes(content)
    before = path.read_bytes()
    with pytest.raises(JournalDamagedError, match="It was not changed"):
        Journal(tmp_path)
    assert path.read_bytes() == before
    with pytest.raises(JournalDamagedError):
        Reader(path)


def test_a_journal_is_held_by_one_process(tmp_path: Path) -> None:
    with closing(Journal(tmp_path)):
        with pytest.raises(JournalHeldError, match=f"process {os.getpid()}"):
            Journal(tmp_path)
        # Reading it meanwhile is free.
        with Reader(tmp_path / "journal.sqlite") as reader:
            assert reader.rows("SELECT * FROM run") == []
    Journal(tmp_path).close()


_RACE = """
import sys, time
from combee_dspy.exceptions import JournalHeldError
from combee_dspy.journal import Journal
time.sleep(max(0.0, float(sys.argv[2]) - time.time()))
try:
    journal = Journal(sys.argv[1])  # one that nobody keeps lets go at once
except JournalHeldError as error:
    print(error)
else:
    print("held", flush=True)
    sys.stdin.read()
"""


def test_of_processes_that_race_to_make_a_journal_one_has_it_and_the_others_know_which(
    tmp_path: Path,
) -> None:
    # Somebody who died has left a name.
    (tmp_path / "journal.sqlite.holder").write_text(
        f"process 999999999 on {socket.gethostname()}\n"
    )
    start = str(time.time() + 1.5)
    command = [sys.executable, "-c", _RACE, str(tmp_path), start]
    started = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)  # noqa: S603 - ours
        for _ in range(3)
    ]
    lines = [process.stdout.readline() for process in started]  # type: ignore[union-attr]  # piped
    for process in started:
        process.communicate()
    (winner,) = [
        process.pid for process, text in zip(started, lines, strict=True) if text == "held\n"
    ]
    refused = [text for text in lines if text != "held\n"]
    assert len(refused) == 2
    assert all(f"is held by process {winner} on" in text for text in refused), refused


def test_where_a_disk_is_full_what_is_in_flight_is_kept_and_nothing_more_is_bought(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reserve = tmp_path / "journal.sqlite.reserve"

    def commits(self: Any, connection: Any, statements: Any) -> None:
        if reserve.exists() and any("big" in str(row) for _, row in statements):
            full = sqlite3.OperationalError("database or disk is full")
            full.sqlite_errorcode = sqlite3.SQLITE_FULL
            raise full
        transact(self, connection, statements)

    transact = _writer.Writer._transact
    monkeypatch.setattr(_writer.Writer, "_transact", commits)

    async def work(log: RunLog) -> None:
        assert reserve.stat().st_size == 16 << 20
        await log.keep(effect("a"))
        log.check_room()
        await asyncio.gather(log.keep(effect("big")), log.keep(effect("c")))
        with pytest.raises(
            JournalError, match=r"disk is full.*make room, and go on with the same log_dir"
        ):
            log.check_room()
        await log.finish("failed", {})

    within(tmp_path, work)
    assert not reserve.exists()
    assert all(within(tmp_path, lambda log: [log.find(key) for key in ("a", "big", "c")]))


def test_a_run_in_a_folder_that_nobody_can_write_to_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    within(tmp_path, keep(effect("a")))
    before = sorted(tmp_path.iterdir())
    monkeypatch.setattr(os, "access", lambda *_: False)
    with Reader(tmp_path / "journal.sqlite", checked=True) as reader:
        assert len(reader.rows("SELECT * FROM effect")) == 1
        # Nothing is made beside it, as SQLite does where it can.
        assert sorted(tmp_path.iterdir()) == before


def test_a_folder_that_cannot_be_written_to_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file" / "run", Path("/proc/combee")):
        with pytest.raises(
            JournalError, match=r"cannot be written to.*Make room, or let this user write there"
        ):
            Journal(folder)


def _die_holding(folder: str) -> None:
    Journal(folder)
    os._exit(3)


def test_a_run_that_cannot_begin_names_the_file_that_could_not_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect = sqlite3.connect
    with (
        closing(connect(tmp_path / "journal.sqlite")) as other,
        pytest.raises(
            JournalError, match=r"journal\.sqlite could not be written: database is locked"
        ),
        closing(Journal(tmp_path)) as journal,
    ):
        other.execute("BEGIN IMMEDIATE")
        monkeypatch.setattr(
            sqlite3, "connect", lambda *args, **kwargs: connect(*args, **{**kwargs, "timeout": 0})
        )
        journal.run("main", 0, {}, {})


def _server() -> Any:
    """Return what starts processes: a fork of this one may inherit a lock of SQLite's."""
    server = multiprocessing.get_context("forkserver")
    server.set_forkserver_preload([__name__])
    return server


def test_a_dead_process_holds_nothing(tmp_path: Path) -> None:
    process = _server().Process(target=_die_holding, args=(str(tmp_path),))
    process.start()
    process.join()
    assert process.exitcode == 3
    Journal(tmp_path).close()


def test_a_disk_that_fails_is_said_and_nothing_after_it_is_kept(tmp_path: Path) -> None:
    async def work(log: RunLog) -> None:
        await log.keep(effect("a"))
        log.journal.writer.put([("INSERT INTO nowhere VALUES (1)", ())])
        with pytest.raises(JournalError, match="could not be written"):
            await log.keep(effect("b"))
        assert log.find("b") is None

    with pytest.raises(JournalError, match="could not be written"):
        within(tmp_path, work)
    assert within(tmp_path, lambda log: (log.find("a") is None, log.find("b"))) == (False, None)


def test_a_row_that_sqlite_does_not_take_ends_in_an_error(tmp_path: Path) -> None:
    async def work(log: RunLog) -> None:
        await asyncio.wait_for(log.keep(effect("a", replicate=2**70)), 10)

    with pytest.raises(JournalError):
        within(tmp_path, work)


def test_half_a_character_in_an_answer_does_not_end_a_run(tmp_path: Path) -> None:
    def work(log: RunLog) -> Any:
        log.emit(CandidateProposed("c1", {"self": "cut off \ud83d"}, (), "seed", ()))
        return log.keep(
            effect("a", {"text": "cut off \ud83d", "whole": "\ud83d\ude00"}, error="cut off \ud83d")
        )

    within(tmp_path, work)
    assert within(tmp_path, lambda log: log.find("a")) == {"text": "cut off \ufffd", "whole": "😀"}


def test_without_a_folder_a_journal_goes_with_its_run() -> None:
    journal = Journal()
    folder = journal.folder
    assert journal.path.is_file()
    journal.close()
    journal.close()
    assert not folder.exists()


def test_a_reader_cannot_write_and_names_what_it_is_not_given(tmp_path: Path) -> None:
    within(tmp_path, keep(effect("a")))
    with Reader(journal_file(tmp_path)) as reader:
        with pytest.raises(sqlite3.OperationalError, match="readonly"):
            reader.rows("DELETE FROM effect")
        with pytest.raises(sqlite3.OperationalError, match="no such column"):
            reader.rows("SELECT absent FROM effect")
    with pytest.raises(ArgumentValueError, match="holds no run"):
        journal_file(tmp_path / "elsewhere")


def test_a_reader_says_that_it_has_no_room_to_sort(tmp_path: Path) -> None:
    within(tmp_path, keep(effect("a")))
    with Reader(journal_file(tmp_path)) as reader:
        reader.rows("PRAGMA temp.max_page_count = 1")
        with pytest.raises(JournalError, match=r"disk is full\. Make room in the temporary folder"):
            reader.rows("CREATE TEMP TABLE copy AS SELECT * FROM effect")


def test_whoever_waits_for_a_closed_journal_hears_of_it(tmp_path: Path) -> None:
    errors: list[Exception] = []
    journal = Journal(tmp_path)
    writer = journal.writer
    writer.wait()
    journal.close()

    def waiting() -> None:
        try:
            writer.wait()
        except JournalError as error:
            errors.append(error)

    thread = threading.Thread(target=waiting, daemon=True)
    thread.start()
    thread.join(10)
    assert not thread.is_alive()
    assert "is closed" in str(errors[0])
    with pytest.raises(JournalError, match="is closed"):
        asyncio.run(asyncio.wait_for(writer.commit([]), 10))


def _open_cache(path: str, barrier: Any) -> None:
    barrier.wait()
    Cache(Path(path)).close()


@pytest.mark.slow
def test_processes_that_make_a_cache_at_once_all_have_it(tmp_path: Path) -> None:
    server = _server()
    for number in range(8):
        arguments = str(tmp_path / f"{number}.sqlite"), server.Barrier(8)
        processes = [server.Process(target=_open_cache, args=arguments) for _ in range(8)]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
        assert [process.exitcode for process in processes] == [0] * 8


def test_a_cache_that_cannot_be_opened_is_not_called_damaged(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(JournalError, match=r"cannot be opened.*Give another cache") as caught:
        Cache(tmp_path / "file" / "cache.sqlite")
    assert not isinstance(caught.value, JournalDamagedError)
    with pytest.raises(
        NotPlainFileError, match=r"is a folder, not a plain file.*name another place"
    ):
        Cache(tmp_path)


def test_a_cache_is_shared_and_the_first_value_stays(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "cache.sqlite"
    with closing(Cache(path)) as first, closing(Cache(path)) as second:
        assert first.find("k") is None
        first.keep("k", {"score": 1.0})
        second.keep("k", {"score": 0.0})
        assert second.find("k") == {"score": 1.0}
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("UPDATE cached SET value = '{\"score\":0.5}'")
        connection.commit()
    with closing(Cache(path)) as cache:
        assert cache.find("k") is None, "a value that was changed is no value"
    path.write_bytes(b"nothing of the kind" * 100)
    with pytest.raises(JournalDamagedError, match="it is no cache"):
        Cache(path)


def test_a_kill_while_it_is_made_leaves_all_of_it_or_none(tmp_path: Path) -> None:
    script = """
import functools, os, signal, sqlite3, sys
from combee_dspy.journal import Journal

class Dying(sqlite3.Connection):
    def executescript(self, script):
        self.execute("PRAGMA cache_size=1")  # so that pages are in the file before the commit
        super().executescript(script.replace("COMMIT;", ""))
        os.kill(os.getpid(), signal.SIGKILL)

sqlite3.connect = functools.partial(sqlite3.connect, factory=Dying)
Journal(sys.argv[1])
"""
    folder = tmp_path / "run"
    command = [sys.executable, "-c", script, str(folder)]
    environ = {**os.environ, "TMPDIR": str(tmp_path)}
    assert subprocess.run(command, env=environ).returncode == -9  # noqa: S603 - ours
    Journal(folder).close()
    with Reader(journal_file(folder), checked=True) as reader:
        assert not reader.rows("SELECT id FROM run")


def test_failures_are_counted_by_update_whenever_their_effects_came(tmp_path: Path) -> None:
    async def work(log: RunLog) -> list[list[tuple[str, int]]]:
        counted = []
        for key, step, error in (("a", 0, None), ("b", 2, "LMError: x"), ("c", 1, "LMError: x")):
            await log.keep(effect(key, step=step, split="train", purpose="train", error=error))
            counted.append([(str(row.cause), row.number) for row in log.outcomes(1)])
        return [*counted, [(str(row.cause), row.number) for row in log.outcomes(2)]]

    one, failed = ("None", 1), ("refused", 1)
    assert within(tmp_path, work) == [[one], [one], [one, failed], [one, ("refused", 2)]]


def test_a_reading_call_that_was_too_long_has_failed_until_a_half_of_it_is_read(
    tmp_path: Path,
) -> None:
    too_long = "ContextWindowExceededError: the prompt is too long"

    async def work(log: RunLog) -> list[int]:
        counted = []
        for place, error in (("1", too_long), ("10/0", None), ("1/0", too_long), ("1/0/1", None)):
            key = f"call/0/self/read/0/{place}/proposer/abc"
            await log.keep(replace(effect(key, error=error), kind="call", role="proposer"))
            counted.append(sum(failure.failed for failure in log.failures()))
        return counted

    assert within(tmp_path, work) == [1, 1, 1, 0]
