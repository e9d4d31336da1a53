from __future__ import annotations

import json
from dataclasses import replace

import dspy
import pytest

from combee_dspy.evaluation import Heldout, Receipt, check_unmoved, heldout_identity, pin
from combee_dspy.exceptions import (
    ArgumentError,
    ArgumentValueError,
    HeldoutMovedError,
    SplitOverlapError,
)
from combee_dspy.hashing import row_hash

AT = "2026-01-01T12:00:00+00:00"
PROGRAMS = ("a" * 16, "b" * 16)


def rows(start: int, count: int = 20) -> list[dspy.Example]:
    return [
        dspy.Example(question=f"{n}?", answer=str(n)).with_inputs("question")
        for n in range(start, start + count)
    ]


def hashes(examples: list[dspy.Example]) -> list[str]:
    return [row_hash(example) for example in examples]


TRAIN, VALIDATION, HELD = rows(100), rows(200), rows(300)


def identity(held=HELD, metric="metric-1", train=TRAIN, validation=VALIDATION):
    return heldout_identity(held, metric, train=hashes(train), validation=hashes(validation))


def reading(after: list[float] | None = None, run: str = "one") -> list[Receipt]:
    """What a run leaves that pins and reads the set."""
    result = pin(Heldout(HELD), identity())
    before = [0.0] * len(HELD)
    after = [1.0] * 10 + [0.0] * 10 if after is None else after
    return [
        result.receipt("pinned", run, AT),
        result.receipt("begun", run, AT, PROGRAMS),
        result.read(run, AT, PROGRAMS, before, after, seed=3, models={"task": "m"}),
    ]


def test_a_set_is_known_by_its_rows_and_inputs_in_any_order() -> None:
    whole = identity()
    assert identity(HELD[::-1]).content == whole.content
    assert identity(HELD[::-1]).digest != whole.digest
    assert identity(HELD[1:]).content != whole.content
    other = [dspy.Example(example).with_inputs("question", "answer") for example in HELD]
    assert identity(other).content != whole.content


@pytest.mark.parametrize(
    ("train", "validation", "name"), [(HELD, TRAIN, "trainset"), (TRAIN, HELD[:1], "valset")]
)
def test_overlap_is_refused(train, validation, name) -> None:
    with pytest.raises(SplitOverlapError, match=name):
        identity(train=train, validation=validation)


def test_a_reading_says_what_it_showed() -> None:
    read = reading()[-1]
    assert read.difference is not None
    assert (read.difference.before, read.difference.after, read.difference.difference) == (
        0.0,
        0.5,
        0.5,
    )
    assert 0.1 < read.difference.low < 0.5 < read.difference.high < 0.8
    assert (read.looks, read.discordance(), read.seed, read.models) == (0, 0.5, 3, {"task": "m"})


def test_a_receipt_comes_back_from_json_as_it_was() -> None:
    for receipt in reading():
        assert Receipt.from_json(json.dumps(receipt.to_dict())) == receipt


@pytest.mark.parametrize(
    "change",
    [
        {"stage": "seen"},
        {"run": 3},
        {"before": [float("nan")]},
        {"unknown": 1},
        {"heldout": {}},
        {"difference": {"before": 1}},
    ],
)
def test_what_is_no_receipt_is_refused(change) -> None:
    with pytest.raises(ArgumentValueError, match=rf"receipt\.{next(iter(change))}"):
        Receipt.from_json(json.dumps({**reading()[-1].to_dict(), **change}))


@pytest.mark.parametrize("text", ["", "[]", "3", '{"stage": "read"', "{}"])
def test_what_is_no_json_of_a_receipt_is_refused(text: str) -> None:
    with pytest.raises(ArgumentValueError, match="receipt"):
        Receipt.from_json(text)


def test_one_program_is_no_different_from_itself() -> None:
    result = pin(Heldout(HELD), identity())
    read = result.read("one", AT, ("a", "a"), [1.0] * 20, [1.0] * 20)
    assert read.difference is not None
    assert (read.difference.low, read.difference.high) == (0.0, 0.0)
    assert read.discordance() is None


@pytest.mark.parametrize("after", [[1.0] * 19, [], [float("inf")] + [1.0] * 19])
def test_scores_that_do_not_pair_are_refused(after) -> None:
    with pytest.raises(ArgumentValueError):
        pin(Heldout(HELD), identity()).read("one", AT, PROGRAMS, [0.0] * 20, after)


def test_looks_of_other_runs_are_counted_those_that_were_begun_only_too() -> None:
    result = pin(Heldout(HELD), identity(), [*reading(), *reading(run="two")[:2]])
    assert result.receipt("begun", "three", AT, PROGRAMS).looks == 2
    assert "2 earlier looks" in result.summary()
    read = result.read("three", AT, PROGRAMS, [0.0] * 20, [1.0] * 20)
    assert any("had been read 2 times before" in warning for warning in read.warnings)


@pytest.mark.parametrize(
    ("now", "argument", "problem"),
    [
        ({"held": rows(400)}, "heldout", "is a leak, not a tune"),
        ({"held": HELD[1:]}, "heldout", "is a leak, not a tune"),
        (
            {"held": HELD[1:], "train": rows(500), "validation": rows(600)},
            "heldout",
            "is a leak, not a tune",
        ),
        (
            {"held": rows(400), "train": TRAIN[1:], "validation": []},
            "heldout",
            "is a leak, not a tune",
        ),
        (
            {"held": rows(400), "train": VALIDATION, "validation": rows(600)},
            "heldout",
            "is a leak, not a tune",
        ),
        (
            {"held": rows(400), "train": [*TRAIN, HELD[0]], "validation": []},
            "trainset",
            "would now be learned",
        ),
        ({"held": [], "validation": HELD[:2]}, "valset", "would now be learned"),
        (
            {"held": TRAIN[:5], "train": rows(500), "validation": rows(600)},
            "heldout",
            "in the program already",
        ),
    ],
)
def test_every_move_after_a_reading_is_refused(now, argument, problem) -> None:
    with pytest.raises(HeldoutMovedError, match=problem) as caught:
        check_unmoved(reading(), identity(**now), "runs/a")
    assert caught.value.argument == argument
    assert "runs/a" in str(caught.value)


def test_a_study_with_a_name_has_one_held_out_set() -> None:
    named = [replace(receipt, study="refunds") for receipt in reading()]
    other = identity(rows(800), train=rows(900), validation=rows(950))
    check_unmoved(named, other, "runs/a", "returns")
    with pytest.raises(HeldoutMovedError, match="is a leak, not a tune"):
        check_unmoved(named, other, "runs/a", "refunds")


def test_what_is_no_move_is_allowed() -> None:
    check_unmoved(reading(), identity(metric="metric-2"), "runs/a")
    check_unmoved(reading(), identity(), "runs/a")
    check_unmoved(reading(), identity(HELD[::-1]), "runs/a")
    check_unmoved(reading(), identity(train=[*TRAIN, *rows(700)]), "runs/a")
    check_unmoved(reading(), identity(held=[]), "runs/a")
    # Another task of the same study: other rows in every split.
    check_unmoved(reading(), identity(rows(800), train=rows(900), validation=rows(950)), "runs/a")


def test_before_a_reading_the_set_may_still_be_mended_but_not_with_what_was_learned() -> None:
    pinned = reading()[:1]
    check_unmoved(pinned, identity(HELD[1:], metric="metric-2"), "runs/a")
    with pytest.raises(HeldoutMovedError, match="in the program already"):
        check_unmoved(
            pinned, identity(VALIDATION[:3], train=rows(500), validation=rows(600)), "runs/a"
        )


def test_a_run_that_held_nothing_out_is_remembered() -> None:
    unheld = Receipt("pinned", "one", AT, identity(held=[]))
    with pytest.raises(HeldoutMovedError, match="in the program already"):
        check_unmoved([unheld], identity(TRAIN[:3], train=rows(500)), "runs/a")


def test_a_reading_that_failed_is_no_look_before_itself() -> None:
    again = pin(Heldout(HELD), identity(), reading()[:2])
    assert again.receipt("begun", "one", AT, PROGRAMS).looks == 0
    assert again.receipt("begun", "one", AT, ("a" * 16, "c" * 16)).looks == 1
    assert again.receipt("begun", "two", AT, PROGRAMS).looks == 1


def test_a_look_at_one_of_the_rows_is_a_look_at_them() -> None:
    fewer = pin(Heldout(HELD[1:]), identity(HELD[1:]), reading())
    assert fewer.receipt("begun", "two", AT, PROGRAMS).looks == 1
    other = pin(Heldout(rows(400)), identity(rows(400)), reading())
    assert other.receipt("begun", "two", AT, PROGRAMS).looks == 0


@pytest.mark.parametrize(
    ("metric", "setting", "before", "rescored"),
    [
        ("metric-2", "same", 1.0, True),
        ("metric-2", "same", 0.0, False),  # feedback alone has changed
        ("metric-1", "same", 1.0, False),  # luck of an LM that samples
        ("metric-2", "other", 1.0, False),  # another program: it cannot be told
        ("metric-2", "", 1.0, False),
    ],
)
def test_scores_of_the_untouched_program_tell_another_scale(
    metric, setting, before, rescored
) -> None:
    first = pin(Heldout(HELD), identity(), setting="same").read(
        "one", AT, PROGRAMS, [0.0] * 20, [1.0] * 20
    )
    now = pin(Heldout(HELD), identity(HELD[::-1], metric), [first], setting)
    warnings = now.read("two", AT, PROGRAMS, [before] * 20, [1.0] * 20).warnings
    assert any("scores otherwise on 20 of 20 rows" in text for text in warnings) == rescored


def test_a_row_edited_in_place_is_found() -> None:
    held = rows(300)
    result = pin(Heldout(held), identity(held))
    result.check_same()
    held[3].answer = "7"
    with pytest.raises(HeldoutMovedError, match="since it was pinned"):
        result.check_same()
    mended = pin(Heldout(held), identity(held))
    object.__setattr__(
        mended, "heldout", Heldout([row.with_inputs("question", "answer") for row in held])
    )
    with pytest.raises(HeldoutMovedError, match="inputs"):
        mended.check_same()


def test_what_can_be_told_says_what_it_rests_on() -> None:
    worst = pin(Heldout(HELD), identity())
    assert "worst case" in worst.summary()
    assert "20 rows" in worst.summary()
    measured = pin(Heldout(HELD), identity(), reading([1.0] + [0.0] * 19))
    assert measured.detectable < worst.detectable
    assert "measured by 1 earlier" in measured.basis
    arguments = pin(Heldout(HELD, discordance=0.1), identity(), reading())
    assert arguments.detectable < measured.detectable or "as given" in arguments.basis
    few = rows(0, 3)
    assert "no difference at all" in pin(Heldout(few), identity(few)).summary()


def test_a_target_finer_than_that_is_refused_with_the_rows_it_takes() -> None:
    with pytest.raises(
        ArgumentValueError, match=r"finer than the 0\.6.*about 785 for this one"
    ) as caught:
        pin(Heldout(HELD, target=0.1), identity())
    assert caught.value.argument == "target"
    pin(Heldout(HELD, target=0.7), identity())


def test_copies_are_told_and_do_not_sharpen_what_can_be_told() -> None:
    twice = [*HELD, *HELD]
    result = pin(Heldout(twice), identity(twice))
    assert result.identity.n == 20
    assert result.detectable == pin(Heldout(HELD), identity()).detectable
    assert "20 held-out rows are copies" in result.warnings[0]


def test_scores_beyond_the_scale_are_told() -> None:
    read = pin(Heldout(HELD), identity()).read("one", AT, PROGRAMS, [0.0] * 20, [7.0] * 20)
    assert "span more than" in read.warnings[0]


@pytest.mark.parametrize(
    "wrong",
    [
        {"rows": []},
        {"target": 0},
        {"target": float("inf")},
        {"power": 1},
        {"confidence": 0},
        {"discordance": 2},
    ],
)
def test_wrong_options_are_refused_by_name(wrong) -> None:
    with pytest.raises(ArgumentError, match=next(iter(wrong))):
        Heldout(**{"rows": HELD, **wrong})
