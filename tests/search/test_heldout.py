"""The held-out contract in whole runs: pinned first, never moved, every look counted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import dspy
import pytest

from combee_dspy import Budget, Costs, Heldout, Price, Search, Task, compile_many, tracking
from combee_dspy.exceptions import (
    ArgumentTypeError,
    ArgumentValueError,
    HeldoutMovedError,
    JournalMismatchError,
)
from tests.slow import slow_but
from tests.worlds import World, events, examples, metric, rows


def test_it_is_pinned_first_read_last_and_leaves_receipts(world: World, tmp_path: Path) -> None:
    report = world.compile(heldout=10, log_dir=tmp_path).combee_report
    stages = [event["stage"] for event in events(tmp_path, "receipt")]
    assert stages == ["pinned", "begun", "read"]
    order = rows(tmp_path, "SELECT id, purpose FROM effect WHERE kind = 'rollout' ORDER BY id")
    held = [row["id"] for row in order if row["purpose"] == "heldout"]
    assert len(held) == 20
    assert min(held) > max(row["id"] for row in order if row["purpose"] != "heldout")
    receipt = report.receipt
    assert receipt.stage == "read"
    assert sum(receipt.before) / 10 == report.heldout.before
    assert receipt.difference == report.heldout
    assert receipt.models["proposer"] == "scripted/proposer"
    assert events(tmp_path, "heldout")[0]["n"] == 10
    # What is held out is shown nowhere: neither to a proposer nor in the journal.
    values = [
        row["value"] for row in rows(tmp_path, "SELECT value FROM effect WHERE split = 'heldout'")
    ]
    assert all("inputs" not in json.loads(value) for value in values)
    numbers = [f"Number {number}:" for number in range(200, 210)]
    assert not any(
        number in request.text for number in numbers for request in world.proposer_lm.requests
    )


def test_a_resumed_run_reads_nothing_again_and_says_the_same(world: World, tmp_path: Path) -> None:
    first = world.compile(heldout=10, log_dir=tmp_path).combee_report
    asked = world.asked
    again = world.compile(heldout=10, log_dir=tmp_path).combee_report
    assert world.asked == asked
    assert again.receipt == first.receipt
    assert [event["stage"] for event in events(tmp_path, "receipt")] == ["pinned", "begun", "read"]


def looks_of(place: Path) -> list[tuple[int, float]]:
    return [(event["look"], event["after"]) for event in events(place, "heldout")]


@pytest.mark.parametrize(
    "kind",
    slow_but(
        ("rollouts", "dollars"), ["rollouts", "updates", "tokens", "calls", "dollars", "seconds"]
    ),
)
def test_a_larger_budget_goes_on_after_the_held_out_set_was_read(kind: str, tmp_path: Path) -> None:
    """A second look is counted, warned of and shown beside the first."""
    world = World.made()
    costs = Costs(prices={f"scripted/{role}": Price(1, 1) for role in ("task", "proposer")})
    arguments = {"heldout": 10, "log_dir": tmp_path, "reflection_minibatch_size": 4, "costs": costs}
    small, large = {
        "rollouts": (24, 120),
        "updates": (1, 6),
        "tokens": (9_000, 200_000),
        "calls": (26, 200),
        "dollars": (0.009, 0.2),
        "seconds": (0, 60.0),
    }[kind]
    # A limit in seconds ends at another update each time: one in updates stands for it.
    small_budget = Budget(**{kind: small}) if small else Budget(updates=1)
    first = world.compile(budget=small_budget, **arguments).combee_report
    asked = world.asked
    second = world.compile(budget=Budget(**{kind: large}), **arguments).combee_report
    assert world.asked > asked
    assert second.updates > first.updates
    assert second.heldout.after > first.heldout.after
    assert (first.receipt.looks, second.receipt.looks) == (0, 1)
    assert "look 2" in second.facts()["held-out"]
    assert "had been read once before, by 1 run" in " ".join(second.warnings)
    assert f"{first.heldout.before:.3f} → {first.heldout.after:.3f}" in " ".join(second.warnings)
    assert looks_of(tmp_path) == [(1, first.heldout.after), (2, second.heldout.after)]
    (listed,) = tracking.runs(tmp_path)
    assert (listed["heldout_look"], listed["heldout_after"]) == (2, second.heldout.after)
    assert not listed["supports_claims"]
    assert listed["reason"] == second.reason
    page = Path(second.page).read_text(encoding="utf-8")
    assert "Look 1 at these rows" in page
    assert "Look 2 at these rows" in page
    # Whoever compiles it again as it stands looks no third time.
    asked = world.asked
    again = world.compile(budget=Budget(**{kind: large}), **arguments).combee_report
    assert (world.asked, again.receipt) == (asked, second.receipt)
    assert len(looks_of(tmp_path)) == 2


def test_a_larger_budget_that_changes_nothing_is_no_second_look(
    world: World, tmp_path: Path
) -> None:
    arguments = {"heldout": 10, "log_dir": tmp_path, "reflection_minibatch_size": 4}
    first = world.compile(budget=Budget(rollouts=150), **arguments).combee_report
    second = world.compile(budget=Budget(rollouts=160), **arguments).combee_report
    assert first.texts == second.texts
    assert second.receipt == first.receipt
    assert not second.receipt.looks


@pytest.mark.parametrize("how", ["other rows", "a row less", "none"])
def test_a_run_goes_on_with_the_same_set_or_not_at_all(
    world: World, tmp_path: Path, how: str
) -> None:
    world.compile(heldout=10, log_dir=tmp_path)
    asked = world.asked
    held = {"other rows": examples(10, 300), "a row less": examples(9, 200), "none": None}[how]
    with (
        dspy.context(lm=world.task_lm, adapter=dspy.ChatAdapter()),
        pytest.raises(JournalMismatchError, match="heldout set"),
    ):
        world.combee(log_dir=tmp_path).compile(
            dspy.Predict("question -> answer"),
            trainset=examples(24),
            valset=examples(12, 100),
            heldout=held,
        )
    assert world.asked == asked


def study(world: World, place: Path, name: str, **changes: Any) -> Any:
    """Compile one task of a study, whose journal keeps the receipts of all."""
    arguments = {
        "trainset": examples(12),
        "valset": examples(6, 100),
        "heldout": examples(8, 200),
        **changes,
    }
    with dspy.context(lm=world.task_lm, adapter=dspy.ChatAdapter()):
        combee = world.combee(log_dir=place, max_metric_calls=40, reflection_minibatch_size=4)
        return compile_many(
            [Task(name, dspy.Predict("question -> answer"), **arguments)], combee=combee
        )[0]


MOVES: dict[str, dict[str, Any]] = {
    "other rows": {"heldout": examples(8, 300)},
    "a row less": {"heldout": examples(7, 200)},
    "a row more": {"heldout": examples(9, 200)},
    "a row less, learned from a row less": {"trainset": examples(11), "heldout": examples(7, 200)},
    "other rows, learned from a row less": {"trainset": examples(11), "heldout": examples(8, 300)},
    "a label as input": {
        "heldout": [row.with_inputs("question", "answer") for row in examples(8, 200)]
    },
    "read rows are learned": {"trainset": [*examples(12), *examples(1, 200)], "heldout": None},
    "read rows are validated on": {"valset": examples(6, 203), "heldout": None},
    "learned rows are held out": {"trainset": examples(12, 400), "heldout": examples(6)},
}


def test_what_a_study_has_read_cannot_be_moved(world: World, tmp_path: Path) -> None:
    assert study(world, tmp_path, "first").report.receipt.looks == 0
    bought = world.asked
    for how, changes in MOVES.items():
        assert isinstance(study(world, tmp_path, how, **changes).error, HeldoutMovedError), how
        assert world.asked == bought, how


def test_the_same_rows_may_be_read_again_and_that_is_counted(world: World, tmp_path: Path) -> None:
    study(world, tmp_path, "first")
    second = study(world, tmp_path, "second", heldout=examples(8, 200)[::-1], seed=5).report
    assert second.receipt.looks == 1
    assert second.receipt.warnings
    assert not second.supports_claims


def test_a_finer_target_than_the_rows_can_tell_is_refused(world: World, tmp_path: Path) -> None:
    arguments = {"trainset": examples(12), "valset": examples(6, 100)}
    with dspy.context(lm=world.task_lm), pytest.raises(ArgumentValueError, match="finer than"):
        world.combee(log_dir=tmp_path).compile(
            dspy.Predict("question -> answer"),
            **arguments,
            heldout=Heldout(examples(8, 200), target=0.05),
        )
    assert not world.asked
    assert rows(tmp_path, "SELECT state FROM run")[0]["state"] == "failed"


def test_a_row_that_is_edited_while_the_run_goes_is_found(world: World) -> None:
    held = examples(8, 200)

    def meddling(
        gold: Any, pred: Any, trace: Any = None, pred_name: Any = None, pred_trace: Any = None
    ) -> Any:
        held[3].answer = "unknown"
        return metric(gold, pred)

    with (
        dspy.context(lm=world.task_lm, adapter=dspy.ChatAdapter()),
        pytest.raises(HeldoutMovedError, match="changed since"),
    ):
        world.combee(metric=meddling).compile(
            dspy.Predict("question -> answer"),
            trainset=examples(12),
            valset=examples(6, 100),
            heldout=held,
        )


def test_what_is_no_list_of_examples_is_refused(world: World) -> None:
    for held in ("rows", [1, 2], 5):
        with dspy.context(lm=world.task_lm), pytest.raises(ArgumentTypeError, match="heldout"):
            world.combee().compile(
                dspy.Predict("question -> answer"), trainset=examples(12), heldout=held
            )


def test_what_a_run_learns_from_is_noted_though_its_first_attempt_was_refused(
    world: World, tmp_path: Path
) -> None:
    with pytest.raises(ArgumentValueError, match="holds no run"):
        world.compile(log_dir=tmp_path, search=Search(replay=str(tmp_path / "nowhere")))
    world.compile(log_dir=tmp_path)
    assert [event["stage"] for event in events(tmp_path, "receipt")] == ["pinned"]
    asked = world.asked
    world.compile(log_dir=tmp_path)
    assert [event["stage"] for event in events(tmp_path, "receipt")] == ["pinned"]
    assert world.asked == asked
