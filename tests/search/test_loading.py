"""Candidates of a run from its journal: of finished runs, of killed ones, and of several."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dspy
import pytest

from combee_dspy import Budget, Combee, Task, candidates, compile_many, load_candidate
from combee_dspy.exceptions import ArgumentTypeError, ArgumentValueError
from combee_dspy.tracking import show
from tests.worlds import TwoSteps, World, events, examples, gate_metric, gate_rows, metric


def student() -> dspy.Module:
    return dspy.Predict("question -> answer")


def test_every_candidate_has_its_lineage_and_scores(world: World, tmp_path: Path) -> None:
    world.compile(log_dir=tmp_path, operators=["insert"], reflection_minibatch_size=6)
    records = candidates(tmp_path)
    seed, *others = records
    assert (seed.index, seed.update, seed.operator, seed.parents) == (0, -1, "seed", ())
    assert {record.run for record in records} == {"main"}
    ids = {record.id for record in records}
    assert others
    assert all(set(record.parents) <= ids for record in others)
    validated = events(tmp_path, "validated")
    assert {(event["candidate"], event["index"], event["score"]) for event in validated} == {
        (record.id, record.index, record.score) for record in records if record.index is not None
    }


def test_a_candidate_loads_by_every_name_and_place_as_in_every_command(
    world: World, tmp_path: Path
) -> None:
    folder = tmp_path / "run"  # the only one in its folder
    operators = ["insert", "few-shot-swap"]
    program = world.compile(log_dir=folder, operators=operators, reflection_minibatch_size=6)
    records = candidates(folder)
    (selected,) = events(folder, "selected")
    best = next(record for record in records if record.id == selected["candidate"])
    original = student()
    for place in (folder, folder / "journal.sqlite", str(folder), tmp_path):
        for name in ("best", str(best.index), best.id[:7]):
            loaded = load_candidate(original, place, name)
            assert loaded.dump_state() == program.dump_state()
            assert show(place, name)["texts"] == best.texts
    swapped = [record for record in records if record.operator == "few-shot-swap"]
    programs = [load_candidate(original, folder, record.id) for record in swapped]
    assert any(loaded.demos for loaded in programs), "demonstrations belong to a candidate"
    assert not original.demos


def test_a_playbook_loads(service: Any, tmp_path: Path) -> None:
    combee = Combee(
        gate_metric,
        artifact="playbook",
        reflection_lm=service.lm(),
        budget=Budget(epochs=1),
        log_dir=tmp_path,
        tracker=(),
        reflection_minibatch_size=6,
    )
    with dspy.context(lm=service.lm()):
        program = combee.compile(student(), trainset=gate_rows(0, 12), valset=gate_rows(20, 26))
    newest = [record for record in candidates(tmp_path) if record.index is not None][-1]
    assert "playbook" in newest.texts
    assert load_candidate(student(), tmp_path, newest.id).dump_state() == program.dump_state()


class Killed:
    """A selector that ends the run in its second update."""

    def select_candidate_idx(self, state: Any) -> int:
        if state.i >= 1:
            raise RuntimeError("killed here")
        return 0


def test_candidates_of_a_run_that_failed_load(tmp_path: Path) -> None:
    def own_metric(
        gold: Any, pred: Any, trace: Any = None, pred_name: Any = None, pred_trace: Any = None
    ) -> Any:
        return metric(gold, pred)

    with pytest.raises(RuntimeError, match="killed here"):
        World.made().compile(
            metric=own_metric,
            log_dir=tmp_path,
            candidate_selection_strategy=Killed(),
            reflection_minibatch_size=6,
        )
    _, child = candidates(tmp_path)
    loaded = load_candidate(student(), tmp_path, 1)
    assert loaded.signature.instructions == child.texts["self"]


def test_a_journal_of_several_runs_asks_which_one_is_meant(world: World, tmp_path: Path) -> None:
    tasks = [
        Task(name, student(), examples(8, at), examples(4, 100))
        for name, at in (("one", 0), ("two", 50))
    ]
    with dspy.context(lm=world.task_lm, adapter=dspy.ChatAdapter()):
        combee = world.combee(log_dir=tmp_path, max_metric_calls=40, reflection_minibatch_size=4)
        results = compile_many(tasks, combee=combee)
    with pytest.raises(ArgumentValueError, match=r"names several candidates.*of run 1"):
        load_candidate(student(), tmp_path, 0)
    with pytest.raises(ArgumentValueError, match="names several candidates"):
        show(tmp_path, "best")
    for number, result in enumerate(results, start=1):
        text = result.report.texts["self"]
        for name in (result.name, number, str(number)):
            loaded = load_candidate(student(), tmp_path / "journal.sqlite", "best", run=name)
            assert loaded.signature.instructions == text
            assert show(tmp_path, "best", name)["texts"]["self"] == text


@pytest.mark.parametrize(
    ("program", "name", "error", "problem"),
    [
        (student(), 99, ArgumentValueError, r"names no candidate of this run.*There is: best, 0"),
        (student(), "", ArgumentValueError, "names no candidate"),
        (student(), 1.5, ArgumentTypeError, "is no candidate"),
        (TwoSteps(), 0, ArgumentValueError, "has components"),
        ("program", 0, ArgumentTypeError, "is no DSPy program"),
    ],
)
def test_what_cannot_be_loaded_is_named(
    world: World, tmp_path: Path, program: Any, name: Any, error: type[Exception], problem: str
) -> None:
    world.compile(log_dir=tmp_path, max_metric_calls=40, reflection_minibatch_size=6)
    with pytest.raises(error, match=problem):
        load_candidate(program, tmp_path, name)


def test_a_place_with_no_journal_or_several_is_refused(world: World, tmp_path: Path) -> None:
    with pytest.raises(ArgumentValueError, match="holds no run"):
        candidates(tmp_path / "elsewhere")
    for name in ("first", "second"):
        world.compile(log_dir=tmp_path / name, max_metric_calls=20, reflection_minibatch_size=6)
    with pytest.raises(ArgumentValueError, match="holds several journals"):
        candidates(tmp_path)
