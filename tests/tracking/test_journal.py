from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from combee_dspy import events
from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.records import CallUsage, Retained, Rollout
from combee_dspy.tracking import EventBus, Journal, Redactor, entries_of, find_journal, row_of
from combee_dspy.tracking._codec import decode, encode

Story = Callable[[], list[events.Event]]


def _written(folder: Path, story: list[events.Event], **options: Any) -> Journal:
    journal = Journal(folder, **options)
    for event in story:
        journal.record(event)
    journal.close()
    return journal


def test_every_event_but_a_rollout_comes_back_as_it_was(story: Story) -> None:
    retained = (Retained(0, 0.5, covered=False, lost_at=(1, 0)), Retained(1, 1.0, covered=True))
    more = [
        events.RetentionMeasured(
            iteration=1, component="p", aggregator="union", reflections=retained, tokens_per_level=(3, 2)
        ),
        events.CalibrationFinished(
            subject="judge",
            size=2,
            correlation=0.9,
            low=0.5,
            high=1.0,
            threshold=0.7,
            passed=True,
            pairs=((0.0, 1.0), (1.0, 1.0)),
        ),
    ]
    for event in [*story(), *more]:
        if isinstance(event, (events.RolloutFinished, events.RunStarted)):
            continue
        data = json.loads(json.dumps(encode(event, Redactor())))
        assert decode(type(event).__name__, data) == event


def test_what_is_unknown_or_broken_is_passed_over() -> None:
    assert decode("FromTheFuture", {}) is None
    assert decode("IterationFinished", {"iteration": 1}) is None
    assert decode("IterationStarted", {"iteration": 1, "new": "field"}) == events.IterationStarted(iteration=1)


def test_a_line_is_there_before_the_next_thing_happens(tmp_path: Path, story: Story) -> None:
    journal = Journal(tmp_path)
    bus = EventBus(journal=journal)
    for event in story():
        bus.emit(event)
        last = journal.file.read_bytes().splitlines()[-1]
        if isinstance(event, events.RolloutFinished):
            assert json.loads(last)["rollout_id"].endswith(event.rollout_id)
        else:
            assert json.loads(last)["kind"] == type(event).__name__
    bus.close()
    assert [entry.kind for entry in entries_of(tmp_path)][-1] == "end"


def test_a_rollouts_line_names_who_ran_it_and_what_it_cost(
    tmp_path: Path, story: Story, make_rollout: Callable[..., Rollout]
) -> None:
    usage = (
        CallUsage("evaluator", "judge", calls=1, prompt_tokens=7, completion_tokens=2, dollars=0.5, seconds=1.0),
        CallUsage("task", "small", 2, 1, 0, 10, 4, 0.25, gpu_seconds=3.0, seconds=1.0),
    )
    rollout = replace(make_rollout(1, 0.5), usage=usage, queue_seconds=0.25, prompt_hash="ab")
    finished = events.RolloutFinished(
        iteration=1, rollout=rollout, rollout_id="7", candidate_id="c1", split="train", purpose="child"
    )
    heard: list[events.Event] = [
        story()[0],
        events.CandidateProposed(candidate_id="c1", parent_id="seed", operator="insert", texts={}),
        events.ScheduleDecided(schedule_id="s4", decision="flush", values={}),
        finished,
        replace(finished, rollout_id="8", cached=True),
        replace(finished, rollout_id="9", rollout=replace(rollout, schedule_id="batch-3")),
    ]
    journal = _written(tmp_path, heard)
    first, second, third = (row_of(entry.data) for entry in entries_of(tmp_path) if entry.kind == "rollout")
    # The batch that released it, where it names one; else the latest decision. A memo hit ran under none.
    assert (first.schedule_id, second.schedule_id, third.schedule_id) == ("s4", "", "batch-3")
    assert first.rollout_id == f"{journal.run_id}.1.7"
    assert (first.run_id, first.parent_ids, first.schedule_id) == (journal.run_id, ("seed",), "s4")
    assert first.roles == {"task": "small", "evaluator": "judge"}
    assert (first.calls, first.failed_calls, first.prompt_tokens, first.completion_tokens) == (3, 1, 17, 6)
    assert (first.dollars, first.gpu_seconds, first.queue_wait, first.prompt_hash) == (0.75, 3.0, 0.25, "ab")
    # A memo hit cost nothing, and has an id of its own.
    assert (second.calls, second.dollars, second.gpu_seconds, second.cached) == (0, 0, None, True)
    assert second.rollout_id != first.rollout_id


def test_keys_are_in_no_line(tmp_path: Path, story: Story) -> None:
    journal = Journal(tmp_path, secrets=["given-at-the-start"])
    journal.keep_out(["heard-of-later"])
    for event in story():
        journal.record(event)
    leak = "401 given-at-the-start, heard-of-later, sk-abcdefghijklmnop1234"
    journal.record(events.ErrorRaised(where="lm", error=leak, fatal=False))
    journal.close()
    content = journal.file.read_text(encoding="utf-8")
    assert "401 [redacted], [redacted], [redacted]" in content
    for secret in ("given-at-the-start", "heard-of-later", "sk-abcdefghijklmnop1234", "hush-hush"):
        assert secret not in content
    # A component whose name looks like a key's is a prompt all the same.
    encoded = encode(events.RunFinished(**_end, texts={"api_key.predict": "Find it."}), Redactor())
    assert encoded["texts"] == {"api_key.predict": "Find it."}


@pytest.mark.parametrize("end", ["api_key=abcdefgh", "see http://host", "Bearer", "ends in sk-abcdef", "api_key"])
def test_a_key_at_the_end_of_a_text_takes_nothing_of_the_next(
    tmp_path: Path, make_rollout: Callable[..., Rollout], end: str
) -> None:
    rollout = replace(make_rollout(1, 0.5), feedback=end, prediction="= abc1defgh:x@y")
    finished = events.RolloutFinished(
        rollout=rollout, rollout_id="1", candidate_id="c", split="train", purpose="parent"
    )
    _written(tmp_path, [finished])
    (row,) = [row_of(entry.data) for entry in entries_of(tmp_path) if entry.kind == "rollout"]
    assert (row.feedback, row.prediction) == (Redactor().text(end), rollout.prediction)


def test_a_key_that_was_read_with_its_newline_neither_stays_nor_stops_the_journal(
    tmp_path: Path, make_rollout: Callable[..., Rollout], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SERVICE_TOKEN", "abcdefgh12345678\n")
    rollout = replace(make_rollout(1, 0.5), error="RuntimeError: refused abcdefgh12345678")
    finished = events.RolloutFinished(
        rollout=rollout, rollout_id="1", candidate_id="c", split="train", purpose="parent"
    )
    _written(tmp_path, [finished])
    (row,) = [row_of(entry.data) for entry in entries_of(tmp_path) if entry.kind == "rollout"]
    assert row.error == "RuntimeError: refused [redacted]"


def test_a_line_that_the_quick_writer_refuses_says_the_same(
    tmp_path: Path, make_rollout: Callable[..., Rollout]
) -> None:
    usage = (CallUsage("task", "small", 2, 1, 0, 10, 2**70),)
    finished = events.RolloutFinished(
        rollout=replace(make_rollout(1, 0.5), usage=usage), rollout_id="1", candidate_id="c", split="t", purpose="p"
    )
    _written(tmp_path, [finished])
    (row,) = [row_of(entry.data) for entry in entries_of(tmp_path) if entry.kind == "rollout"]
    assert row.usage[0]["completion_tokens"] == row.completion_tokens == 2**70
    assert CallUsage(**row.usage[0]) == usage[0]


_end: dict[str, Any] = {"reason": "", "best_index": 0, "best_score": 1.0, "rollouts": 1, "seconds": 1.0}


def test_a_torn_last_line_is_passed_over_and_the_run_goes_on_under_its_id(tmp_path: Path, story: Story) -> None:
    first = _written(tmp_path, story()[:8])
    whole = len(list(entries_of(tmp_path)))
    content = first.file.read_bytes().splitlines(keepends=True)
    first.file.write_bytes(b"".join(content[:-1]) + content[-1][:9])
    assert len(list(entries_of(tmp_path))) == whole - 1
    second = _written(tmp_path, story()[8:12])
    assert second.run_id == first.run_id
    assert second.file != first.file
    ids = [entry.data["rollout_id"] for entry in entries_of(tmp_path) if entry.kind == "rollout"]
    assert len(set(ids)) == len(ids)


def test_a_full_disk_is_said_once_and_the_run_goes_on(
    tmp_path: Path, story: Story, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    journal = Journal(tmp_path)
    real, room = os.write, [2]

    def short(descriptor: int, content: bytes) -> int:
        if len(content) < 30 or room[0] > 2:
            return real(descriptor, content)
        room[0] += 1
        return real(descriptor, content[: len(content) // 2])

    monkeypatch.setattr(os, "write", short)
    with caplog.at_level(logging.WARNING):
        for event in story()[:6]:
            journal.record(event)
        journal.close()
    assert caplog.text.count("cannot be written, and the run goes on") == 1
    assert "lacks 1 lines" in caplog.text
    # One line is lost, none of the others.
    assert len(list(entries_of(tmp_path))) == 2 + 5 + 1


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ArgumentValueError, match="cannot be written"):
        Journal(tmp_path / "file")


def test_a_newer_layout_is_refused_and_a_missing_journal_named(tmp_path: Path) -> None:
    with pytest.raises(ArgumentValueError, match="holds no journal"):
        find_journal(tmp_path)
    journal = tmp_path / "journal"
    journal.mkdir()
    (journal / "journal-0001.jsonl").write_text('{"kind": "journal", "format": 99}\n')
    assert find_journal(tmp_path) == journal
    with pytest.raises(ArgumentValueError, match="not known here"):
        list(entries_of(journal))


def test_what_was_told_outlives_a_killed_process(tmp_path: Path) -> None:
    code = (
        "import os, signal, sys\n"
        "from pathlib import Path\n"
        "from combee_dspy.events import IterationStarted\n"
        "from combee_dspy.tracking import Journal\n"
        "journal = Journal(Path(sys.argv[1]))\n"
        "for number in range(50):\n    journal.record(IterationStarted(iteration=number))\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False)  # noqa: S603 - our own code
    numbers = [entry.data["data"]["iteration"] for entry in entries_of(tmp_path) if entry.kind == "IterationStarted"]
    assert numbers == list(range(50))


def test_a_run_taken_up_again_still_knows_its_candidates_parents(tmp_path: Path, story: Story) -> None:
    told = story()
    proposed = next(event for event in told if isinstance(event, events.CandidateProposed))
    rollout = next(event for event in told if isinstance(event, events.RolloutFinished))
    before = Journal(tmp_path)
    before.record(proposed)
    before.close()
    after = Journal(tmp_path)
    after.record(replace(rollout, candidate_id=proposed.candidate_id))
    after.close()
    (row,) = [row_of(entry.data) for entry in entries_of(tmp_path) if entry.kind == "rollout"]
    assert row.parent_ids == (proposed.parent_id,)


def test_a_merge_has_both_its_parents_before_and_after_it_is_taken_up_again(
    tmp_path: Path, make_rollout: Callable[..., Rollout]
) -> None:
    merged = events.CandidateProposed(
        candidate_id="m", parent_id="a", parent_ids=("a", "b"), operator="merge", texts={"self": "Both."}
    )
    finished = events.RolloutFinished(
        rollout=make_rollout(1, 1.0), rollout_id="1", candidate_id="m", split="validation", purpose="validation"
    )
    _written(tmp_path, [merged, finished])
    _written(tmp_path, [finished])
    rows = [row_of(entry.data) for entry in entries_of(tmp_path) if entry.kind == "rollout"]
    assert [row.parent_ids for row in rows] == [("a", "b"), ("a", "b")]
    assert decode("CandidateProposed", json.loads(json.dumps(encode(merged, Redactor())))) == merged
