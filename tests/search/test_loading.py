"""Candidates of a run from its journal: while it goes on, after it was killed, and of programs of
every kind.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dspy
import pytest

from combee_dspy import Task, candidates, compile_many, load_candidate
from combee_dspy.exceptions import ArgumentTypeError, ArgumentValueError
from combee_dspy.tracking import show
from tests.worlds import TwoSteps, World, events, examples, metric


def test_every_candidate_has_its_lineage_and_loads(world: World, tmp_path: Path) -> None:
    tmp_path /= "run"  # the only one in its folder
    program = world.compile(
        log_dir=tmp_path, operators=["insert", "few-shot-swap"], reflection_minibatch_size=6
    )
    found = candidates(tmp_path)
    seed, *others = found
    assert (seed.index, seed.update, seed.operator, seed.parents, seed.run) == (
        0,
        -1,
        "seed",
        (),
        "main",
    )
    assert others
    known = {one.id for one in found}
    assert all(set(one.parents) <= known for one in others)
    validated = {
        one["candidate"]: (one["index"], one["score"]) for one in events(tmp_path, "validated")
    }
    assert {one.id: (one.index, one.score) for one in found if one.index is not None} == validated
    (selected,) = events(tmp_path, "selected")
    best = next(one for one in found if one.id == selected["candidate"])
    student = dspy.Predict("question -> answer")
    for place in (tmp_path, tmp_path / "journal.sqlite", str(tmp_path)):
        assert load_candidate(student, place, best.index).dump_state() == program.dump_state()  # type: ignore[arg-type]  # validated
    assert load_candidate(student, tmp_path, best.id[:7]).dump_state() == program.dump_state()
    assert load_candidate(student, tmp_path, str(best.index)).dump_state() == program.dump_state()
    for name in ("best", str(best.index), best.id[:7]):
        assert show(tmp_path.parent, name)["texts"] == best.texts, (
            "a name means the same in every command"
        )
        assert load_candidate(student, tmp_path.parent, name).dump_state() == program.dump_state()
    shown = [
        load_candidate(student, tmp_path, one.id)
        for one in others
        if one.operator == "few-shot-swap"
    ]
    assert any(one.demos for one in shown), "demonstrations belong to a candidate"
    assert not student.demos


def test_a_playbook_loads(service: Any, tmp_path: Path) -> None:
    from combee_dspy import Budget, Combee
    from tests.worlds import gate_metric, gate_rows

    combee = Combee(
        gate_metric,
        artifact="playbook",
        reflection_lm=service.lm(),
        budget=Budget(epochs=1),
        log_dir=tmp_path,
        tracker=(),
        reflection_minibatch_size=6,
    )
    student = dspy.Predict("question -> answer")
    with dspy.context(lm=service.lm()):
        program = combee.compile(student, trainset=gate_rows(0, 12), valset=gate_rows(20, 26))
    newest = [one for one in candidates(tmp_path) if one.index is not None][-1]
    assert "playbook" in newest.texts
    assert load_candidate(student, tmp_path, newest.id).dump_state() == program.dump_state()


def test_what_a_run_that_failed_has_made_loads(tmp_path: Path) -> None:
    def broken(
        gold: Any, pred: Any, trace: Any = None, pred_name: Any = None, pred_trace: Any = None
    ) -> Any:
        return metric(gold, pred)

    class Bad:
        def select_candidate_idx(self, state: Any) -> int:
            if state.i >= 1:
                raise RuntimeError("killed here")
            return 0

    with pytest.raises(RuntimeError, match="killed here"):
        World.made().compile(
            metric=broken,
            log_dir=tmp_path,
            candidate_selection_strategy=Bad(),
            reflection_minibatch_size=6,
        )
    found = candidates(tmp_path)
    assert len(found) == 2
    loaded = load_candidate(dspy.Predict("question -> answer"), tmp_path, 1)
    assert loaded.signature.instructions == found[1].texts["self"]


def test_a_journal_of_several_runs_asks_which_one_is_meant(world: World, tmp_path: Path) -> None:
    tasks = [
        Task(name, dspy.Predict("question -> answer"), examples(8, at), examples(4, 100))
        for name, at in (("one", 0), ("two", 50))
    ]
    with dspy.context(lm=world.task_lm, adapter=dspy.ChatAdapter()):
        combee = world.combee(log_dir=tmp_path, max_metric_calls=40, reflection_minibatch_size=4)
        results = compile_many(tasks, combee=combee)
    student = dspy.Predict("question -> answer")
    with pytest.raises(ArgumentValueError, match=r"names several candidates.*of run 1"):
        load_candidate(student, tmp_path, 0)
    with pytest.raises(ArgumentValueError, match="names several candidates"):
        show(tmp_path, "best")
    for number, result in enumerate(results, start=1):
        assert show(tmp_path, "best", result.name)["texts"] == result.report.texts
        for name in (result.name, number, str(number)):
            chosen = load_candidate(student, tmp_path / "journal.sqlite", "best", run=name)
            assert chosen.signature.instructions == show(tmp_path, "best", name)["texts"]["self"]
        best = max(
            (one for one in candidates(tmp_path) if one.run == result.name),
            key=lambda one: one.score or 0.0,
        )
        loaded = load_candidate(student, tmp_path, best.id, run=result.name)
        assert best.score == result.report.best_score
        assert loaded.signature.instructions == best.texts["self"]


def test_what_cannot_be_loaded_is_said(world: World, tmp_path: Path) -> None:
    world.compile(log_dir=tmp_path, max_metric_calls=40, reflection_minibatch_size=6)
    student = dspy.Predict("question -> answer")
    with pytest.raises(
        ArgumentValueError, match=r"names no candidate of this run.*There is: best, 0"
    ):
        load_candidate(student, tmp_path, 99)
    with pytest.raises(ArgumentValueError, match="names no candidate"):
        load_candidate(student, tmp_path, "")
    with pytest.raises(ArgumentTypeError, match="is no candidate"):
        load_candidate(student, tmp_path, 1.5)  # type: ignore[arg-type]  # what is tested
    with pytest.raises(ArgumentValueError, match="has components"):
        load_candidate(TwoSteps(), tmp_path, 0)
    with pytest.raises(ArgumentTypeError, match="is no DSPy program"):
        load_candidate("program", tmp_path, 0)  # type: ignore[arg-type]  # what is tested
    with pytest.raises(ArgumentValueError, match="holds no run"):
        candidates(tmp_path / "elsewhere")
    world.compile(log_dir=tmp_path / "another", max_metric_calls=40, reflection_minibatch_size=6)
    world.compile(log_dir=tmp_path / "third", max_metric_calls=40, reflection_minibatch_size=6)
    (tmp_path / "journal.sqlite").unlink()
    with pytest.raises(ArgumentValueError, match="holds several journals"):
        candidates(tmp_path)
