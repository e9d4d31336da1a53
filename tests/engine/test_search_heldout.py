"""The held-out contract in whole runs: every way of moving it that we could think of is refused."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dspy
import pytest

from combee_dspy import Combee
from combee_dspy.evaluation import HeldoutTerms, ReceiptBook
from combee_dspy.events import Event, HeldoutEvaluated, HeldoutPinned, IterationFinished, RolloutFinished, RunStarted
from combee_dspy.exceptions import (
    ArgumentValueError,
    CombeeError,
    HeldoutMovedError,
    ReceiptError,
    SplitOverlapError,
)
from combee_dspy.tracking import Hook

FILE = "heldout_receipts.jsonl"


class Recorder(Hook):
    def __init__(self, act: Callable[[Event], None] = lambda event: None) -> None:
        self.events: list[Event] = []
        self.act = act

    def handle(self, event: Event) -> None:
        self.events.append(event)
        self.act(event)

    def of(self, kind: type) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]


def _given(world: Any) -> dict[str, Any]:
    return {
        "metric": world.metric,
        "trainset": world.examples(12),
        "valset": world.examples(6, start=50),
        "heldout": world.examples(10, start=100),
    }


def _run(world: Any, hook: Hook | None = None, **kwargs: Any) -> dspy.Module:
    given = {
        **_given(world),
        "max_metric_calls": 30,
        "reflection_minibatch_size": 6,
        "operators": ["insert"],
        "num_threads": 2,
        "probe": False,
        **kwargs,
    }
    sets = {name: given.pop(name) for name in ("trainset", "valset", "heldout")}
    metric = given.pop("metric")
    return Combee(metric, reflection_lm=world.proposer_lm, hooks=[] if hook is None else [hook], **given).compile(
        world.student(), **sets
    )


def _asked(world: Any) -> int:
    return len(world.task_lm.requests) + len(world.proposer_lm.requests)


def test_the_set_is_pinned_first_read_last_and_leaves_a_receipt(
    world: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    hook = Recorder()
    with caplog.at_level(logging.WARNING):
        program = _run(world, hook, log_dir=str(tmp_path))
    kinds = [type(event) for event in hook.events]
    assert kinds.index(RunStarted) < kinds.index(HeldoutPinned) < kinds.index(RolloutFinished)
    (summary,) = [line for line in caplog.messages if line.startswith("Held-out: 10 rows")]
    (pinned,) = hook.of(HeldoutPinned)
    assert f"{pinned.margin:.4g}" in summary
    assert "80% power" in summary
    reads = [place for place, event in enumerate(hook.events) if getattr(event, "split", "") == "heldout"]
    assert len(reads) == 20, "ten rows, two programs, once"
    last = max(place for place, kind in enumerate(kinds) if kind is IterationFinished)
    assert min(reads) > last
    report = program.combee_report
    (receipt,) = ReceiptBook(tmp_path / FILE).receipts()
    assert report.receipt == receipt
    assert report.heldout == receipt.difference()
    assert receipt.looks == 0
    assert receipt.digest == pinned.digest == report.digests["heldout"] == hook.of(HeldoutEvaluated)[0].digest
    assert receipt.run == hook.of(RunStarted)[0].name
    assert len(set(receipt.programs)) == 2
    assert sum(receipt.before) / 10 == report.heldout.before
    assert receipt.models["proposer"] == "scripted/proposer"


def test_without_a_book_the_receipt_says_that_nobody_knows_of_earlier_looks(world: Any) -> None:
    assert _run(world).combee_report.receipt.looks is None


def test_the_same_set_may_be_read_again_and_that_is_counted(world: Any, tmp_path: Path) -> None:
    file = tmp_path / "study.jsonl"
    for looks in range(3):
        receipt = _run(world, receipts=file, seed=looks).combee_report.receipt
        assert receipt.looks == looks
        assert bool(receipt.warnings) == bool(looks)
    assert len(ReceiptBook(file).receipts()) == 3


def _as_input(rows: list[dspy.Example]) -> list[dspy.Example]:
    return [row.with_inputs("question", "answer") for row in rows]


def _relabelled(rows: list[dspy.Example]) -> list[dspy.Example]:
    return [dspy.Example(question=rows[0].question, answer="ELSE").with_inputs("question"), *rows[1:]]


def _lenient(gold: Any, pred: Any, trace: Any = None, pred_name: Any = None, pred_trace: Any = None) -> float:
    return 1.0


MOVES: dict[str, Callable[[Any], dict[str, Any]]] = {
    "other rows": lambda world: {"heldout": world.examples(10, start=200)},
    "a row less": lambda world: {"heldout": world.examples(9, start=100)},
    "a row more": lambda world: {"heldout": world.examples(11, start=100)},
    "a row exchanged": lambda world: {"heldout": [*world.examples(9, start=100), *world.examples(1, start=300)]},
    "a row twice": lambda world: {"heldout": [*world.examples(10, start=100), *world.examples(1, start=100)]},
    "a label edited": lambda world: {"heldout": _relabelled(world.examples(10, start=100))},
    "a label as input": lambda world: {"heldout": _as_input(world.examples(10, start=100))},
    "another metric": lambda world: {"metric": _lenient},
    "held-out rows in the trainset": lambda world: {
        "trainset": world.examples(12, start=104),
        "heldout": world.examples(4, start=300),
    },
    "a held-out row in the trainset, nothing held out": lambda world: {
        "trainset": [*world.examples(12), *world.examples(1, start=100)],
        "heldout": None,
    },
    "a held-out row in the valset, nothing held out": lambda world: {
        "valset": [*world.examples(6, start=50), *world.examples(1, start=100)],
        "heldout": None,
    },
    "a held-out row as anchor, nothing held out": lambda world: {
        "anchors": world.examples(1, start=100),
        "heldout": None,
    },
    "training rows held out": lambda world: {"trainset": world.examples(12, start=300), "heldout": world.examples(10)},
    "validation rows held out": lambda world: {
        "valset": world.examples(6, start=300),
        "heldout": world.examples(6, start=50),
    },
    "a part held out under another trainset": lambda world: {
        "trainset": world.examples(12, start=300),
        "heldout": world.examples(5, start=100),
    },
}


@pytest.mark.parametrize("how", MOVES)
def test_a_set_that_was_read_cannot_be_moved(world: Any, tmp_path: Path, how: str) -> None:
    file = tmp_path / "study.jsonl"
    _run(world, receipts=file)
    before, asked = file.read_bytes(), _asked(world)
    with pytest.raises(HeldoutMovedError):
        _run(world, receipts=file, **MOVES[how](world))
    assert _asked(world) == asked, "nothing was bought"
    assert file.read_bytes() == before


def test_the_same_rows_in_another_order_are_the_same_set(world: Any, tmp_path: Path) -> None:
    _run(world, receipts=tmp_path / "study.jsonl")
    turned = list(reversed(world.examples(10, start=100)))
    assert _run(world, receipts=tmp_path / "study.jsonl", heldout=turned).combee_report.receipt.looks == 1


def test_an_anchor_of_one_run_cannot_be_held_out_by_the_next(world: Any, tmp_path: Path) -> None:
    anchors = world.examples(1, start=400)
    _run(world, receipts=tmp_path / "study.jsonl", anchors=anchors)
    with pytest.raises(CombeeError, match=r"learned|read"):
        _run(world, receipts=tmp_path / "study.jsonl", heldout=[*world.examples(9, start=100), *anchors])


@pytest.mark.parametrize("heldout_first", [True, False])
def test_a_log_dir_is_a_study_too(world: Any, tmp_path: Path, heldout_first: bool) -> None:
    _run(world, log_dir=str(tmp_path), heldout=world.examples(10, start=100) if heldout_first else None)
    asked = _asked(world)
    with pytest.raises(CombeeError):
        _run(world, log_dir=str(tmp_path), heldout=world.examples(10, start=200 if heldout_first else 0))
    assert _asked(world) == asked
    # Without its checkpoint the directory still has the book.
    (tmp_path / "gepa_state.bin").unlink()
    with pytest.raises((HeldoutMovedError, SplitOverlapError)):
        _run(world, log_dir=str(tmp_path), heldout=world.examples(10, start=200 if heldout_first else 0))
    assert _asked(world) == asked


@pytest.mark.parametrize("name", ["trainset", "valset", "anchors"])
def test_overlap_is_an_error(world: Any, name: str) -> None:
    rows = [*world.examples(6, start=50), *world.examples(1, start=100)]
    with pytest.raises(SplitOverlapError, match=name):
        _run(world, **{name: rows})
    assert not _asked(world)


def test_a_finer_target_than_the_set_can_tell_is_refused(world: Any, tmp_path: Path) -> None:
    with pytest.raises(ArgumentValueError, match="finer than the"):
        _run(world, heldout_terms=HeldoutTerms(target=0.05), receipts=tmp_path / "study.jsonl")
    assert not _asked(world)
    hook = Recorder()
    _run(world, hook, heldout_terms=HeldoutTerms(target=0.95))
    assert hook.of(HeldoutPinned)[0].margin <= 0.95


def test_a_measured_discordance_narrows_the_margin_of_the_next_run(world: Any, tmp_path: Path) -> None:
    margins = []
    for seed in range(2):
        hook = Recorder()
        _run(world, hook, receipts=tmp_path / "study.jsonl", seed=seed, max_metric_calls=60)
        margins.append(hook.of(HeldoutPinned)[0])
    assert "worst case" in margins[0].basis
    assert "measured by 1 earlier receipts" in margins[1].basis
    assert margins[1].margin <= margins[0].margin


def _once(act: Callable[[], None]) -> Callable[[Event], None]:
    done: list[int] = []

    def at_the_first_iteration(event: Event) -> None:
        if isinstance(event, IterationFinished) and not done:
            done.append(1)
            act()

    return at_the_first_iteration


def test_a_row_that_is_edited_while_the_run_goes_is_found(world: Any, tmp_path: Path) -> None:
    rows = world.examples(10, start=100)

    def metric(gold: Any, pred: Any, trace: Any = None, pred_name: Any = None, pred_trace: Any = None) -> Any:
        rows[3].answer = "unknown"
        return world.metric(gold, pred)

    hook = Recorder()
    with pytest.raises(HeldoutMovedError, match="changed since it was pinned"):
        _run(world, hook, metric=metric, heldout=rows, receipts=tmp_path / "study.jsonl")
    assert not hook.of(HeldoutEvaluated)
    assert not ReceiptBook(tmp_path / "study.jsonl").receipts()


def test_a_list_that_is_changed_while_the_run_goes_changes_nothing(world: Any) -> None:
    rows = world.examples(10, start=100)
    hook = Recorder(_once(rows.clear))
    program = _run(world, hook, heldout=rows)
    assert not rows
    assert program.combee_report.heldout.size == 10


def test_a_metric_that_writes_to_what_it_reads_is_found(world: Any) -> None:
    def metric(gold: Any, pred: Any, trace: Any = None, pred_name: Any = None, pred_trace: Any = None) -> Any:
        if int(gold.question.split()[1][:-1]) >= 100:
            gold.answer = pred.answer
        return world.metric(gold, pred)

    with pytest.raises(HeldoutMovedError, match="changed since it was pinned"):
        _run(world, metric=metric)


def test_no_other_part_of_the_run_sees_a_held_out_row(world: Any) -> None:
    hook = Recorder()
    _run(world, hook, max_metric_calls=80)
    numbers = [f"Number {number}:" for number in range(100, 110)]
    assert not [one for one in world.proposer_lm.requests if any(number in one.text for number in numbers)]
    reads = [one for one in world.task_lm.requests if any(number in one.last for number in numbers)]
    assert len(reads) == 20
    first = min(place for place, one in enumerate(world.task_lm.requests) if any(n in one.last for n in numbers))
    assert first == len(world.task_lm.requests) - 20


@pytest.mark.parametrize("how", ["edited", "a line taken out", "cut short", "taken away"])
def test_a_book_that_is_not_as_it_was_written_is_refused(world: Any, tmp_path: Path, how: str) -> None:
    file = tmp_path / "study.jsonl"
    _run(world, receipts=file)
    lines = file.read_bytes().splitlines(keepends=True)
    if how == "edited":
        entry = json.loads(lines[-1])
        entry["receipt"]["after"] = [1.0] * 10
        lines[-1] = json.dumps(entry).encode() + b"\n"
    elif how == "a line taken out":
        del lines[1]
    elif how == "cut short":
        lines = lines[:-2]
    if how == "taken away":
        file.unlink()
    else:
        file.write_bytes(b"".join(lines))
    asked = _asked(world)
    with pytest.raises(ReceiptError):
        _run(world, receipts=file, heldout=world.examples(10, start=200))
    assert _asked(world) == asked
