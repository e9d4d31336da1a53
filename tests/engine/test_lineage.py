"""Candidates of a run: listed with lineage and scores, and loaded, after a crash too."""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import dspy
import pytest

import combee_dspy
from combee_dspy import Combee, load_candidate
from combee_dspy.engine.candidates import candidate_id
from combee_dspy.engine.lineage import FILE, Lineage, read_lines
from combee_dspy.engine.pedigree import joined
from combee_dspy.events import CandidateProposed, ValidationFinished
from combee_dspy.exceptions import ArgumentTypeError, ArgumentValueError
from combee_dspy.testing._scripted_lm import ScriptedLM, as_json
from tests.engine.conftest import Recorder


def _fickle() -> ScriptedLM:
    """A proposer that learns nothing from whatever holds an eel."""
    asked = itertools.count()

    def answer(request: Any) -> str:
        lost = "eel" in request.text or "Think" in request.last
        rules = list(dict.fromkeys(re.findall(r"Rule: the word for \w+ is \w+", request.text)))
        lessons = [f"Think {next(asked)} times."] if lost else rules
        if "new_instruction" in request.text:
            return as_json({"new_instruction": "\n".join(lessons)})
        return as_json({"lessons": lessons})

    return ScriptedLM(answer)


def _run(world: Any, log_dir: Path, limit: int = 160, **kwargs: Any) -> Any:
    given = {"reflection_lm": world.proposer_lm, "log_dir": str(log_dir), "track_stats": True, **kwargs}
    return Combee(world.metric, max_metric_calls=limit, **given).compile(
        world.student(), trainset=world.examples(48), valset=world.examples(8, start=100)
    )


def test_every_candidate_is_listed_with_lineage_and_scores(world: Any, tmp_path: Path) -> None:
    hook = Recorder()
    mixed = {"reflection_lm": _fickle(), "num_threads": 1, "operators": ["insert"]}
    program = _run(world, tmp_path, 260, hooks=[hook], reflection_minibatch_size=4, **mixed)
    results, found = program.detailed_results, combee_dspy.candidates(tmp_path)
    pool = {record.index: record for record in found if record.index is not None}
    assert sorted(pool) == list(range(len(results.candidates)))
    assert [pool[index].score for index in sorted(pool)] == pytest.approx(results.val_aggregate_scores)
    for index, record in pool.items():
        above = [one for one in results.parents[index] if one is not None]
        assert record.parents == tuple(pool[one].id for one in above)
        assert record.texts == next(e.texts for e in hook.of(ValidationFinished) if e.index == index)
        assert record.best == (index == results.best_idx)
    proposed = {event.candidate_id: event for event in hook.of(CandidateProposed)}
    assert proposed.keys() == {record.id for record in found if record.id and record.operator not in ("", "merge")}
    for record in found:
        assert record.status in ("seed", "accepted", "rejected", "refused")
        if record.id in proposed:
            assert record.operator == proposed[record.id].operator
        if record.status == "rejected":
            assert record.minibatch_score is not None
            assert record.parent_score is not None
            assert record.reason
    assert {record.status for record in found} >= {"seed", "accepted", "rejected"}


def test_a_candidate_is_loaded_by_index_hash_or_its_beginning(world: Any, tmp_path: Path) -> None:
    program = _run(world, tmp_path)
    best = program.detailed_results.best_idx
    record = next(one for one in combee_dspy.candidates(tmp_path) if one.index == best)
    for wanted in (best, record.id, record.id[:6], str(best)):
        student = world.student()
        loaded = load_candidate(student, tmp_path, wanted)
        assert loaded.dump_state()["signature"] == program.dump_state()["signature"]
        assert [dict(demo) for demo in loaded.demos] == [dict(demo) for demo in program.demos]
        assert student.dump_state() == world.student().dump_state()
        row = world.examples(1, start=7)[0]
        assert loaded(**row.inputs()).answer == program(**row.inputs()).answer
    seed = load_candidate(world.student(), tmp_path, 0)
    assert seed.signature.instructions == world.student().signature.instructions


@pytest.mark.parametrize("aggregator", ["parallel-scan", "single-call"])
def test_a_rejected_child_can_be_loaded(world: Any, tmp_path: Path, aggregator: str) -> None:
    """Whoever proposes: with single-call alone it is DSPy's own proposer."""
    operators = None if aggregator == "single-call" else ["insert"]
    mixed = {"reflection_lm": _fickle(), "aggregator": aggregator, "num_threads": 1, "operators": operators}
    _run(world, tmp_path, reflection_minibatch_size=4, **mixed)
    rejected = [one for one in combee_dspy.candidates(tmp_path) if one.status == "rejected"]
    assert rejected
    for record in rejected:
        assert candidate_id(record.texts) == record.id
        loaded = load_candidate(world.student(), tmp_path, record.id)
        assert loaded.signature.instructions == record.texts["self"]


def test_what_is_not_there_is_named_with_what_is(world: Any, tmp_path: Path) -> None:
    _run(world, tmp_path, 30)
    first = combee_dspy.candidates(tmp_path)[0].id
    for wanted in (99, "zzzz", "", -1):
        with pytest.raises(ArgumentValueError, match=f"There is: 0 .{first}"):
            load_candidate(world.student(), tmp_path, wanted)
    for wanted in (None, True, 1.0):
        with pytest.raises(ArgumentTypeError, match="id"):
            load_candidate(world.student(), tmp_path, wanted)  # type: ignore[arg-type]
    with pytest.raises(ArgumentValueError, match="Give the program of that run"):
        load_candidate(dspy.ChainOfThought("question -> answer"), tmp_path, 0)
    with pytest.raises(ArgumentTypeError, match="student"):
        load_candidate("student", tmp_path, 0)  # type: ignore[arg-type]
    for nothing in (tmp_path / "nowhere", tmp_path.parent / "empty"):
        with pytest.raises(ArgumentValueError, match="holds no candidates"):
            combee_dspy.candidates(nothing)


def test_a_run_of_stock_gepa_is_read_from_its_checkpoint(world: Any, tmp_path: Path) -> None:
    program = dspy.GEPA(
        world.metric, max_metric_calls=80, reflection_lm=world.proposer_lm, log_dir=str(tmp_path), track_stats=True
    ).compile(world.student(), trainset=world.examples(24), valset=world.examples(8, start=100))
    found = combee_dspy.candidates(tmp_path)
    assert [record.index for record in found] == list(range(len(found)))
    assert len(found) > 1
    scores = program.detailed_results.val_aggregate_scores[: len(found)]
    assert [record.score for record in found] == pytest.approx(scores)
    assert found[1].parents == (found[0].id,)
    loaded = load_candidate(world.student(), tmp_path, 1)
    assert loaded.signature.instructions == found[1].texts["self"]


KILLED = """
import json, os, re, signal, sys
import dspy
from combee_dspy import Combee
from combee_dspy.engine.lineage import FILE
from combee_dspy.testing._scripted_lm import ScriptedLM, as_chat, as_json

log_dir, killed = sys.argv[1], json.loads(sys.argv[2])

def answer(request):
    known = int(re.findall(r"Known: (\\d+)", request.system + " Known: 0")[0])
    number = int(re.findall(r"Number (\\d+)", request.last)[-1])
    if killed and known >= 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return as_chat({"answer": "right" if number % 10 < known else "wrong"})

def propose(request):
    known = max([0, *map(int, re.findall(r"Known: (\\d+)", request.text))])
    return as_json({"new_instruction": f"Known: {known + 1}"}) if "new_instruction" in request.text else as_json(
        {"lessons": [f"Known: {known + 1}"]})

def metric(gold, pred, trace=None, pred_name=None, pred_trace=None):
    return dspy.Prediction(score=float(pred.answer == "right"), feedback="Learn.")

def rows(start, count):
    numbers = range(start, start + count)
    return [dspy.Example(question=f"Number {n}", answer="x").with_inputs("question") for n in numbers]

dspy.configure(lm=ScriptedLM(answer), adapter=dspy.ChatAdapter())
Combee(metric, max_metric_calls=150, reflection_lm=ScriptedLM(propose), log_dir=log_dir, num_threads=2,
       aggregator="single-call", reflection_minibatch_size=10, probe=False, progress=False).compile(
    dspy.Predict("question -> answer"), trainset=rows(0, 20), valset=rows(100, 10))
"""


def _script(log_dir: Path, killed: bool) -> int:
    command = [sys.executable, "-c", KILLED, str(log_dir), json.dumps(killed)]
    return subprocess.run(command, timeout=300, check=False).returncode  # noqa: S603 - our own script


def test_candidates_of_a_killed_run_are_there_and_it_goes_on(tmp_path: Path) -> None:
    assert _script(tmp_path, killed=True) == -signal.SIGKILL
    left = combee_dspy.candidates(tmp_path)
    assert [record.index for record in left if record.index is not None] == [0, 1, 2]
    student = dspy.Predict("question -> answer")
    best = next(record for record in left if record.best)
    assert best.score == pytest.approx(0.2)
    assert "Known: 2" in load_candidate(student, tmp_path, best.id).signature.instructions
    # What was being looked at when the process died had been written down before anything was bought for it.
    (last,) = [record for record in left if record.status == "proposed"]
    assert "Known: 3" in load_candidate(student, tmp_path, last.id).signature.instructions
    with (tmp_path / FILE).open("ab") as file:
        file.write(b'{"event": "validated", "index": 9')
    assert _script(tmp_path, killed=False) == 0
    found = combee_dspy.candidates(tmp_path)
    pool = [record for record in found if record.index is not None]
    assert len({record.index for record in pool}) == len(pool) > 3
    assert {record.id for record in left if record.id} <= {record.id for record in found}
    assert max(record.score for record in pool if record.score is not None) > 0.2


def _lines(*lines: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"iteration": 1, **line} for line in lines]


def test_an_index_that_a_resumed_run_gives_anew_belongs_to_the_later() -> None:
    seed, one, other = ({"self": text} for text in ("seed", "one", "other"))
    ids = [candidate_id(texts) for texts in (seed, one, other)]
    validated = [
        {"event": "validated", "index": min(number, 1), "id": ids[number], "texts": texts, "score": 0.5, "best": False}
        for number, texts in enumerate((seed, one, other))
    ]
    found = joined(_lines({"event": "started", "id": ids[0], "texts": seed}, *validated))
    assert [(record.id, record.index, record.status) for record in found] == [
        (ids[0], 0, "seed"),
        (ids[1], None, "superseded"),
        (ids[2], 1, "accepted"),
    ]


@pytest.mark.parametrize(
    "line",
    [
        {"event": "validated"},
        {"event": "validated", "index": 0, "id": "x", "texts": {"self": "y"}, "score": 1, "best": False},
        {"event": "validated", "index": [], "id": 3, "texts": 4, "score": "1", "best": 0},
        {"event": "started", "id": [], "texts": {"self": 3}},
        {"event": "accepted", "index": 7, "parents": [5], "score": 1},
        {"event": "rejected"},
        {"event": "proposed", "id": "a", "parent": "b", "operator": "insert", "texts": [1]},
        {"event": "records"},
        {"event": "_add"},
        {"event": 3},
        {},
    ],
)
def test_lines_that_say_nothing_are_passed_over(line: dict[str, Any]) -> None:
    texts = {"self": "seed"}
    start = {"event": "started", "id": candidate_id(texts), "texts": texts}
    found = joined(_lines(start, line, {"event": "iteration"}))
    assert [record.texts for record in found if record.status == "seed"] == [texts]


def test_a_torn_line_does_not_swallow_the_next(tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(b'{"event": "iteration"}\n{"event": "val\xff')
    hook = Lineage(tmp_path)
    hook.record(ValidationFinished(index=0, candidate_id="x", texts={}, score=0.0, best=True, rollouts=0))
    hook.close()
    hook.close()
    assert [line["event"] for line in read_lines(tmp_path)] == ["iteration", "validated"]


def test_each_line_is_forced_to_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append((tmp_path / FILE).stat().st_size))
    hook = Lineage(tmp_path)
    for _ in range(3):
        hook.record(ValidationFinished(index=0, candidate_id="x", texts={}, score=0.0, best=True, rollouts=0))
    assert synced == [size * (tmp_path / FILE).stat().st_size // 3 for size in (1, 2, 3)]
    hook.close()
