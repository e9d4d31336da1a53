"""Tests of lines at the end of a run: what they keep of a text, and what they may not buy."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import dspy
import pytest

from combee_dspy import Budget, Guards, Search
from combee_dspy.artifacts import Instruction
from combee_dspy.events import Event, LessonTested
from combee_dspy.lessons import (
    Book,
    Contradict,
    Retire,
    Taught,
    Unite,
    lesson_id,
    read_section,
    write_section,
)
from combee_dspy.operators import Insert, Operator, Rewrite
from combee_dspy.records import Edit, Rollout
from combee_dspy.reflections import estimate_tokens
from combee_dspy.search._books import Books
from combee_dspy.search._candidates import Candidate, Member, Row
from combee_dspy.search._changes import Change, changed, follow, open_changes
from combee_dspy.search._propose import _fits
from combee_dspy.search._proving import Proving
from combee_dspy.weighers import Posterior
from tests.search.test_keeping import Told
from tests.worlds import World, events

OWN = "Answer."
LINES = ("Rule one", "Rule two", "Rule three")
Score = Callable[[Sequence[str], int], float]


def books_of(lines: Sequence[str], waiting: Sequence[str] = ()) -> Books:
    book = Book().add([Taught(line, ("a", "b", "c")) for line in (*lines, *waiting)], 0)
    states: Any = {lesson_id(line): ("waiting", "") for line in waiting}
    books = Books(
        Instruction(),
        Candidate({"self": OWN}),
        ("self",),
        Posterior(lone=0, few=0),
        lambda *_, **__: None,
    )
    books.now["self"] = book.with_states(states)
    books._after[0] = dict(books.now)
    return books


@dataclass(eq=False)
class Bench:
    """What tests of lines need of a run."""

    score: Score
    rows: int
    room: int
    asked: list[tuple[str, int]] = field(default_factory=list)
    members: list[Member] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.validation = tuple(
            Row(
                "validation",
                index,
                dspy.Example(question=f"row {index}").with_inputs("question"),
                str(index),
            )
            for index in range(self.rows)
        )
        self.size, self.draws, self.purse = self.rows, 1, self
        self.texts = SimpleNamespace(example=lambda example: example)
        self.tested: list[LessonTested] = []
        self.log = SimpleNamespace(emit=self._emit)

    def _emit(self, event: Event, **_: Any) -> None:
        self.tested += [event] if isinstance(event, LessonTested) else []

    async def rollout(self, text: Candidate, row: Row, *_: object, **__: object) -> Rollout:
        self.asked.append((text.id, row.index))
        return Rollout(row.hash, self.score(read_section(text.texts["self"])[1], row.index))

    async def validate(
        self, text: Candidate, rows: Sequence[Row], step: int
    ) -> dict[int, tuple[Rollout, ...]]:
        return {row.index: (await self.rollout(text, row),) for row in rows}

    def join(
        self, text: Candidate, parents: Any, step: int, rollouts: Mapping[int, Sequence[Rollout]]
    ) -> Member:
        scores = {index: drawn[0].score for index, drawn in rollouts.items()}
        self.members.append(Member(len(self.members), text, tuple(parents), step, scores))
        return self.members[-1]

    def prove(self, books: Books, lines: Sequence[str], *, at_hand: bool = False) -> Member:
        """Test a text that shows some lines; return the last text that joins."""

        async def run() -> None:
            for step, section in ((-1, ()), (0, lines)):
                text = Candidate({"self": write_section(OWN, section)})
                rollouts = await self.validate(text, self.validation, step)
                self.join(text, (), step, rollouts)
            self.asked.clear()
            proving = Proving(
                cast("Any", self), cast("Any", self), books, 1.0, lambda _old, _new: True
            )
            asked = {component: books.after(component, 0) for component in books.now}
            await proving.prove(self.members[-1], text, asked, rollouts if at_hand else None)

        asyncio.run(run())
        return self.members[-1]


def test_a_change_touches_nothing_else_of_a_text() -> None:
    # A text that an operator wrote shows one lesson of three as a line.
    books, text = (
        books_of(LINES, ["Rule four"]),
        Candidate({"self": write_section("Written anew.", [LINES[1]])}),
    )
    out = open_changes(books, text, serve=False)
    assert [change.lesson.text for change in out] == [LINES[1]], (
        "what is no line cannot be left out"
    )
    (more,) = open_changes(books, text, serve=True)
    assert changed(books, text, [more]).texts["self"] == write_section(
        "Written anew.", [LINES[1], "Rule four"]
    )
    assert read_section(changed(books, text, out).texts["self"])[1] == []


def test_a_text_follows_what_was_decided_since_it_was_made() -> None:
    books, text = (
        books_of(LINES, ["Rule four"]),
        Candidate({"self": write_section("Written anew.", [LINES[1]])}),
    )
    before = dict(books.now)
    assert follow(books, text, before).id == text.id
    states: Any = {lesson_id(LINES[1]): ("retired", ""), lesson_id("Rule four"): ("served", "")}
    books.now["self"] = books.now["self"].with_states(states)
    assert follow(books, text, before).texts["self"] == write_section(
        "Written anew.", ["Rule four"]
    )


def test_a_line_that_was_united_with_a_retired_one_leaves_the_text() -> None:
    harmful, again, good = "Answer in red ink.", "Red ink is for answers.", "Sign it."
    books = books_of([harmful, again, good])
    books.edit("self", [Retire(lesson_id(harmful), "it harms")], 0)
    text, before = Candidate({"self": write_section(OWN, [again, good])}), dict(books.now)
    books.edit("self", [Unite((lesson_id(harmful), lesson_id(again)))], 1)
    assert follow(books, text, before).texts["self"] == write_section(OWN, [good])


@pytest.mark.parametrize("operator", [Insert(max_tokens=20), Rewrite(max_tokens=20)])
def test_an_operators_own_budget_binds_what_grows(operator: Operator) -> None:
    small, large = (
        write_section(OWN, [f"Rule number {place}" for place in range(count)]) for count in (1, 20)
    )
    assert _fits(operator, small, OWN) and not _fits(operator, large, small)
    assert _fits(operator, large, large), "what is longer already may lose a line"


def test_no_text_that_the_guards_refuse_is_bought(tmp_path: Path) -> None:
    lessons = [
        f"Rule {number}: the word for a beast of kind {number} is a long word"
        for number in range(8)
    ]
    World.made().compile(
        dspy.Predict(dspy.Signature("question -> answer", OWN)),
        search=Search(keep="trunk"),
        log_dir=tmp_path,
        guards=Guards(max_tokens=60),
        budget=Budget(rollouts=250),
        reflection_minibatch_size=4,
        validation=6,
        aggregator=Told(tuple(lessons)),
        skip_perfect_score=False,
    )
    texts = [one["texts"]["self"] for one in events(tmp_path, "candidate")]
    assert len(texts) > 2
    assert max(map(estimate_tokens, texts)) <= 60


class Anew(Operator):
    """Writes the whole text."""

    name = "anew"

    async def apply(self, given: Any, context: Any) -> Edit:
        return Edit(instruction=f"Version {context.update}")


def test_lessons_that_an_operator_worked_in_are_not_appended(tmp_path: Path) -> None:
    World.made().compile(
        dspy.Predict(dspy.Signature("question -> answer", OWN)),
        search=Search(keep="trunk"),
        log_dir=tmp_path,
        operators=[Anew()],
        budget=Budget(rollouts=250),
        reflection_minibatch_size=4,
        validation=6,
        diversity=False,
        aggregator=Told(("Rule one", "Rule two", "Rule three")),
        skip_perfect_score=False,
    )
    assert not [one for one in events(tmp_path, "candidate") if "Rule" in one["texts"]["self"]]


MEND = "Mend every row"


def test_a_search_of_failing_rows_leaves_what_its_confirmation_needs() -> None:
    mended = []
    for room in range(40):
        bench = Bench(lambda lines, row: float(row > 2 or MEND in lines), rows=6, room=room)
        mended.append(MEND in bench.prove(books_of(LINES, [MEND]), LINES).candidate.texts["self"])
        assert mended[-1] or not bench.asked, f"{room} rollouts are spent for nothing"
    assert mended[-1]


def test_a_validation_at_hand_is_not_bought_again() -> None:
    bench = Bench(lambda lines, row: float(row > 2 or MEND in lines), rows=20, room=36)
    member = bench.prove(books_of(LINES, [MEND]), LINES, at_hand=True)
    bought = [index for text, index in bench.asked if text == member.candidate.id]
    assert MEND in member.candidate.texts["self"] and len(set(bought)) < 20


@pytest.mark.parametrize("spoilt", [0, 1, 2])
def test_the_row_that_a_change_was_chosen_on_makes_up_for_no_loss(spoilt: int) -> None:
    # Graded scores: the sign test alone would let the gain of the chosen row pass.
    def score(lines: Sequence[str], row: int) -> float:
        return float(MEND in lines) if row == 0 else 1.0 - 0.1 * (row <= spoilt and MEND in lines)

    bench = Bench(score, rows=6, room=60)
    member = bench.prove(books_of(LINES, [MEND]), LINES)
    assert (MEND in member.candidate.texts["self"]) is (spoilt == 0)
    assert bench.tested[0].accepted is (spoilt == 0)


def test_a_change_is_no_other_for_the_row_that_it_was_chosen_on() -> None:
    (lesson,) = Book().add([Taught("Rule", ("a",))], 0).lessons
    assert Change("self", lesson, True, 1) == Change("self", lesson, True, 2)


def test_what_contradicts_a_line_of_the_users_own_is_not_tried() -> None:
    own, new = "Round every amount down.", "Round every amount up."
    books = books_of([])
    book = Book().add([Taught(own)], -1).add([Taught(new, ("a",))], 0)
    book = book.edit([Contradict((lesson_id(own), lesson_id(new)))]).book
    books.now["self"] = books.weigher.applied(book)
    text = Candidate({"self": write_section(OWN, [own])})
    assert [lesson.text for lesson in books.now["self"].served] == [own]
    assert open_changes(books, text, serve=True) == []
