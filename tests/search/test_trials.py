"""The search for lines that spoil rows: it blames what harms, and nobody for chance."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, cast

import dspy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from combee_dspy.artifacts import Instruction
from combee_dspy.lessons import Book, Retire, Taught, lesson_id, read_section, write_section
from combee_dspy.records import Rollout
from combee_dspy.search._candidates import Candidate, Row
from combee_dspy.search._confirming import compare
from combee_dspy.search._showing import Showing
from combee_dspy.search._trials import BLAMED, Trials, another_order, blame, halved

ROWS = 6
LINES = [f"Rule {number}" for number in range(4)]
Score = Callable[[Sequence[str], int], float]


def blamed(
    score: Score, lines: Sequence[str] = LINES, examples: int = 1, left: int = BLAMED
) -> Mapping[str, Retire]:
    """Return the edits that a search asks for after a text took these lines in, by the line."""
    rows = tuple(
        Row(
            "validation",
            index,
            dspy.Example(question=f"row {index}").with_inputs("question"),
            str(index),
        )
        for index in range(ROWS)
    )

    async def rollout(text: Candidate, row: Row, *_: object, **__: object) -> Rollout:
        return Rollout(row.hash, score(read_section(text.texts["self"])[1], row.index))

    effects = SimpleNamespace(
        rollout=rollout, texts=SimpleNamespace(example=lambda example: example)
    )
    book = Book().add([Taught(line, tuple(map(str, range(examples)))) for line in lines], 0)
    old, new = (Candidate({"self": write_section("Answer.", section)}) for section in ([], lines))
    before, after = ({row: score(section, row) for row in range(ROWS)} for section in ([], lines))
    trials = Trials(cast("Any", effects), cast("Any", SimpleNamespace(validation=rows)), 0, left)
    showing = Showing(Instruction(), new, after, {})
    edits = asyncio.run(blame(trials, showing, {"self": book}, old, before))
    return {
        next(one.text for one in book.lessons if one.id == edit.lesson): cast("Retire", edit)
        for _, edit in edits
    }


def test_a_line_that_spoils_a_row_is_blamed_with_its_effect() -> None:
    edits = blamed(lambda lines, row: float(row > 0 or "Rule 2" not in lines))
    assert list(edits) == ["Rule 2"]
    assert edits["Rule 2"].effect is not None and edits["Rule 2"].effect.difference < 0


def test_two_lines_that_spoil_a_row_each_are_blamed_together() -> None:
    edits = blamed(lambda lines, row: float(row > 0 or not {"Rule 0", "Rule 2"} & set(lines)))
    assert list(edits) == ["Rule 0", "Rule 2"]
    assert all(edit.effect is None for edit in edits.values()), "nobody can tell them apart"


@given(st.integers(1, 20), st.sets(st.integers(0, 19), max_size=4), st.integers(0, 40))
def test_halves_lead_to_all_that_must_change_and_to_nothing_else(
    count: int, culprits: set[int], left: int
) -> None:
    rollouts = [left]

    async def is_mended(changed: Any) -> bool:
        rollouts[0] -= 1
        return rollouts[0] >= 0 and culprits <= set(changed)

    suspects = list(range(count))
    chosen = asyncio.run(halved(suspects, is_mended))
    if culprits:
        assert sorted(chosen) in ([], sorted(culprits))
        there_are_few = culprits <= set(suspects) and len(culprits) <= 3
        assert bool(chosen) is there_are_few or rollouts[0] < 0
    if len(culprits) == 1:
        assert left - rollouts[0] <= 1 + 2 * (count - 1).bit_length() or rollouts[0] < 0


def test_a_row_that_another_order_brings_back_blames_nobody() -> None:
    # The row turns with any change of the prompt, as an LM's answer may: only these lines in this
    # order lose it.
    assert not blamed(lambda lines, row: float(row > 0 or list(lines) != LINES))


def test_a_line_that_several_examples_teach_must_spoil_two_rows() -> None:
    def spoils(rows: int) -> Score:
        return lambda lines, row: float(row >= rows or "Rule 2" not in lines)

    assert not blamed(spoils(1), examples=3)
    assert blamed(spoils(2), examples=3)["Rule 2"].rows == 2


@pytest.mark.parametrize("left", range(BLAMED + 1))
def test_no_line_leaves_unchecked_however_few_rollouts_there_are(left: int) -> None:
    # The line spoils one row and all others need it.
    needed = blamed(lambda lines, row: float((row > 0) is ("Rule 2" in lines)), left=left)
    assert not needed
    tried: list[int] = []

    def score(lines: Sequence[str], row: int) -> float:
        tried.extend([row] if "Rule 2" not in lines and lines else [])
        return float(row > 0 or "Rule 2" not in lines)

    if blamed(score, left=left):
        assert any(tried), "the row that is nearest to the line is tried without it"


@given(st.lists(st.text("abc", min_size=1, max_size=3), unique=True, max_size=5), st.integers(0, 5))
def test_another_order_has_the_same_lines(lines: list[str], place: int) -> None:
    text = write_section("Answer.", lines)
    lesson = lesson_id(lines[place]) if place < len(lines) else ""
    own, ordered = read_section(another_order(Instruction(), text, lesson))
    assert (own, sorted(ordered)) == ("Answer." if lines else text, sorted(lines))
    assert len(lines) < 2 or ordered != lines


@given(st.integers(0, 12), st.integers(0, 12), st.integers(1, 8))
def test_of_several_tests_each_must_show_more(wins: int, losses: int, tried: int) -> None:
    before = dict.fromkeys(range(wins), 0.0) | dict.fromkeys(range(wins, wins + losses), 1.0)
    after = {row: 1.0 - score for row, score in before.items()}
    alone, among = (compare(before, after, tests)[2] for tests in (1, tried))
    assert alone or not among
    assert alone >= (wins > 0 and losses == 0)
    assert not (alone and wins <= losses)
