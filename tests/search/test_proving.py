"""Tests of lines: they blame what harms and nobody for chance, and stay within their rollouts."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import dspy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from combee_dspy import Budget, Guards, Search
from combee_dspy.artifacts import Instruction
from combee_dspy.edits import Retire
from combee_dspy.events import LessonTested
from combee_dspy.lessons import (
    Book,
    Contradict,
    Narrow,
    Taught,
    Unite,
    lesson_id,
    read_section,
    write_section,
)
from combee_dspy.operators import Insert, Operator, Rewrite
from combee_dspy.records import Edit, Reflection, Rollout
from combee_dspy.reflections import estimate_tokens
from combee_dspy.search._blame import BLAMED, blame
from combee_dspy.search._books import Books
from combee_dspy.search._candidates import Candidate, Member, Row
from combee_dspy.search._choices import compare
from combee_dspy.search._proving import Proving
from combee_dspy.search._row_search import halved
from combee_dspy.search._time_budget import BudgetReached
from combee_dspy.search._trials import LessonLines, Trials, Validated
from combee_dspy.search._versions import validate_paid
from combee_dspy.weighers import Posterior
from tests.search.test_growing import Teaches
from tests.worlds import World, events

OWN, MEND = "Answer.", "Mend every row"
LINES = ("Rule 0", "Rule 1", "Rule 2", "Rule 3")
Score = Callable[[Collection[str], int], float]
"""The score of a text with these lines on a row."""


def text_of(lines: Iterable[str], own: str = OWN) -> Candidate:
    return Candidate({"self": write_section(own, list(lines))})


def lines_of(text: Candidate) -> list[str]:
    return read_section(text.texts["self"])[1]


def books_of(lines: Sequence[str], waiting: Sequence[str] = (), examples: int = 3) -> Books:
    weigher = Posterior(lone=0, few=0)
    books = Books(Instruction(), text_of([]), ("self",), weigher, lambda *_, **__: None)
    sources = tuple(map(str, range(examples)))
    book = Book().add([Taught(line, sources) for line in (*lines, *waiting)], 0)
    books.now["self"] = book.with_states({lesson_id(line): ("waiting", "") for line in waiting})
    return books


@dataclass(eq=False)
class Bench:
    """The pool, the effects and the purse of a run, as far as tests of lines need them."""

    score: Score
    rows: int = 6
    room: int | None = 60
    draws: int = 1
    bought: list[tuple[str, int]] = field(default_factory=list)
    members: list[Member] = field(default_factory=list)
    tested: list[LessonTested] = field(default_factory=list)
    warned: bool = False
    paid: int = 0  # rollouts that limits on cost leave once the last text is validated
    end: float = math.inf  # rollouts until a limit ends the run
    decisions: dict[str, Any] = field(default_factory=dict)
    postponed = False

    def __post_init__(self) -> None:
        self.validation = [
            Row("validation", row, dspy.Example(question=f"row {row}").with_inputs("question"), "")
            for row in range(self.rows)
        ]
        self.all_rows = self.validation
        self.size, self.purse, self.effects = self.rows * self.draws, self, self
        settings = SimpleNamespace(perfect_score=1.0, budget=None)
        self.task = SimpleNamespace(settings=settings, limits=None)
        self.texts = SimpleNamespace(example=lambda example: example)

    def past_decision(self, place: str) -> Any:
        return self.decisions.get(place.rpartition("/")[0])

    async def decide(self, place: str, make: Callable[[], Any]) -> Any:
        return self.decisions.setdefault(place.rpartition("/")[0], make())

    def rollouts_paid(self, most: int) -> int:
        return min(most, self.paid)

    def emit(self, event: object, **_: Any) -> None:
        self.tested += [event] if isinstance(event, LessonTested) else []

    async def rollout(self, text: Candidate, row: Row, *_: object, **__: object) -> Rollout:
        if len(self.bought) >= self.end:
            raise BudgetReached("nothing is left")
        self.bought.append((text.id, row.index))
        return Rollout(row.hash, self.score(lines_of(text), row.index))

    async def validate(self, text: Candidate, rows: Sequence[Row], _: int) -> dict[int, Any]:
        return {row.index: self.draws * (await self.rollout(text, row),) for row in rows}

    def join(
        self, text: Candidate, parents: Any, step: int, draws: Mapping[int, Sequence[Rollout]]
    ) -> Member:
        scores = {row: rollouts[0].score for row, rollouts in draws.items()}
        self.members.append(Member(len(self.members), text, tuple(parents), step, scores))
        return self.members[-1]

    def join_part(self, *joining: Any) -> None:
        self.join(*joining)
        self.warned = True

    def prove(
        self,
        books: Books,
        lines: Sequence[str],
        newest: Sequence[str] | None = None,
        earlier: Sequence[Sequence[str]] = (),
        *,
        was_cut: bool = False,
    ) -> Candidate:
        """Test a text that shows some lines; return the last text that joins the pool."""

        async def run() -> None:
            for step, text in enumerate(map(text_of, ([], *earlier, lines)), -1):
                self.join(text, (), step, await self.validate(text, self.validation, step))
            pool = cast("Any", self)
            proving = Proving(pool, books, lambda _old, _new: True)
            newer = text if newest is None else text_of(newest)
            await proving.prove(newer, dict(books.now), was_cut=was_cut)

        asyncio.run(run())
        return self.members[-1].candidate

    def blamed(
        self,
        old: Sequence[str] = (),
        examples: int = 1,
        left: int = BLAMED,
        lines: Sequence[str] = LINES,
    ) -> dict[str, Retire]:
        """Return the edits after a text took in the lines that an old one lacks, by the line."""
        books = books_of(lines, examples=examples)

        async def run() -> list[Any]:
            new, pool = text_of(lines), cast("Any", self)
            scores = {row: self.score(old, row) for row in range(self.rows)}
            draws = await self.validate(new, self.validation, 0)
            tested = Validated(books.artifact, new, draws)
            trials = Trials(pool, 0, left)
            known = LessonLines(books.artifact, books.now)
            earlier = text_of(old)
            return await blame(trials, known, tested, earlier, scores, lambda _old, _new: True)

        texts = {lesson.id: lesson.text for lesson in books.now["self"].lessons}
        return {texts[edit.lesson]: edit for _, edit in asyncio.run(run())}


def spoils(line: str, rows: int = 1) -> Score:
    return lambda lines, row: float(row >= rows or line not in lines)


def test_a_line_that_spoils_a_row_is_blamed_with_its_effect() -> None:
    edits = Bench(spoils("Rule 2")).blamed()
    assert list(edits) == ["Rule 2"]
    effect = edits["Rule 2"].effect
    assert effect is not None and effect.difference < 0


def test_two_lines_that_spoil_a_row_each_are_blamed_together() -> None:
    pair = {"Rule 0", "Rule 2"}
    edits = Bench(lambda lines, row: float(row > 0 or pair.isdisjoint(lines))).blamed()
    assert set(edits) == pair
    assert all(edit.effect is None for edit in edits.values()), "nobody can tell them apart"


def test_a_line_that_spoils_a_row_by_its_place_is_blamed() -> None:
    def score(lines: Collection[str], row: int) -> float:
        rivals = [line for line in lines if line in ("Rule 0", "Rule 3")]
        return float(row > 0 or rivals[-1:] != ["Rule 3"])

    assert list(Bench(score).blamed()) == ["Rule 3"]


def test_what_came_since_a_better_text_is_searched_whatever_its_words() -> None:
    spoiling = "Ink is red."

    def score(lines: Collection[str], row: int) -> float:
        return float(row > 2 or ("Rule 0" in lines and spoiling not in lines))

    lines = [*LINES, spoiling, "Paper is white."]
    bench = Bench(score, room=80)
    text = bench.prove(books_of(lines), lines, earlier=[LINES])
    assert lines_of(text) == [*LINES, "Paper is white."]


def test_a_row_that_got_worse_though_no_line_came_needs_what_waits() -> None:
    def score(lines: Collection[str], row: int) -> float:
        return float(row > 2 or MEND in lines)

    bench = Bench(score)
    text = bench.prove(books_of(LINES, [MEND]), LINES, earlier=[[*LINES, MEND]])
    assert MEND in lines_of(text)


@pytest.mark.parametrize("earlier", range(4))
def test_a_row_that_any_change_brings_back_blames_nobody(earlier: int) -> None:
    # The row turns with any change of the prompt, as an LM's answer may.
    bench = Bench(lambda lines, row: float(row > 0 or tuple(lines) != LINES))
    assert not bench.blamed(LINES[:earlier])


def test_a_row_that_turns_by_chance_blames_nobody_though_all_lines_share_a_word_with_it() -> None:
    lines = [f"{line} is for a row." for line in LINES]
    bench = Bench(lambda lines, row: float(row > 0 or len(lines) < len(LINES)))
    assert not bench.blamed(lines=lines)


def test_a_line_that_lifts_graded_rows_stays_for_all_that_another_loses() -> None:
    def score(lines: Collection[str], row: int) -> float:
        return (1.0, 0.9)["Rule 2" in lines] if row == 0 else (0.3, 0.8)["Rule 2" in lines]

    assert not Bench(score).blamed()


@pytest.mark.parametrize(("rows", "weight"), [(1, []), (2, [2])])
def test_a_line_that_several_examples_teach_must_spoil_two_rows(
    rows: int, weight: list[int]
) -> None:
    edits = Bench(spoils("Rule 2", rows)).blamed(examples=3)
    assert [edit.rows for edit in edits.values()] == weight


@pytest.mark.parametrize("left", range(BLAMED + 1))
def test_no_line_leaves_unchecked_however_few_rollouts_there_are(left: int) -> None:
    needed = Bench(lambda lines, row: float((row > 0) is ("Rule 2" in lines)))
    assert not needed.blamed(left=left), "it spoils one row, and all others need it"
    bench = Bench(spoils("Rule 2"))
    if bench.blamed(left=left):
        without = text_of(line for line in LINES if line != "Rule 2").id
        assert any(row for text, row in bench.bought if text == without)


@given(st.integers(1, 20), st.sets(st.integers(0, 19), max_size=4), st.integers(0, 40))
def test_halves_lead_to_all_that_must_change_and_to_nothing_else(
    count: int, culprits: set[int], left: int
) -> None:
    rollouts = [left]

    async def is_mended(changes: Iterable[int]) -> bool:
        rollouts[0] -= 1
        return rollouts[0] >= 0 and culprits <= set(changes)

    suspects = list(range(count))
    chosen = asyncio.run(halved(cast("Any", suspects), cast("Any", is_mended)))
    if culprits:
        assert sorted(chosen) in ([], sorted(culprits))
        are_few = culprits <= set(suspects) and len(culprits) <= 3
        assert bool(chosen) is are_few or rollouts[0] < 0
    if len(culprits) == 1:
        assert left - rollouts[0] <= 1 + 2 * (count - 1).bit_length() or rollouts[0] < 0


@given(st.integers(0, 12), st.integers(0, 12), st.integers(1, 8))
def test_of_several_tests_each_must_show_more(wins: int, losses: int, tests: int) -> None:
    before = dict.fromkeys(range(wins), 0.0) | dict.fromkeys(range(wins, wins + losses), 1.0)
    after = {row: 1.0 - score for row, score in before.items()}
    alone, among = (compare(before, after, count)[2] for count in (1, tests))
    assert alone or not among
    assert alone >= (wins > 0 and losses == 0)
    assert not (alone and wins <= losses)


def test_a_search_of_failing_rows_leaves_what_its_confirmation_needs() -> None:
    mended = []
    for room in range(40):
        bench = Bench(lambda lines, row: float(row > 2 or MEND in lines), room=room)
        text = bench.prove(books_of(LINES, [MEND]), LINES)
        mended.append(MEND in lines_of(text))
        others = {text for text, _ in bench.bought} - {text_of([]).id, text_of(LINES).id}
        assert mended[-1] or not others, f"{room} rollouts are spent for nothing"
    assert mended[-1]


@pytest.mark.parametrize("room", [26, 36])
def test_a_small_budget_confirms_a_change_on_the_rows_that_it_may_concern(room: int) -> None:
    bench = Bench(lambda lines, row: float(row > 2 or MEND in lines), rows=20, room=room)
    text = bench.prove(books_of(LINES, [MEND]), LINES)
    assert MEND in lines_of(text)
    assert len({row for bought, row in bench.bought if bought == text.id}) < 20


def test_a_row_that_is_too_dear_to_search_keeps_no_cheaper_one_from_it() -> None:
    lines = [f"Rule {number}" for number in range(32)]

    def score(lines: Collection[str], row: int) -> float:
        return float(row > 2 or (row == 0 and not lines) or (row > 0 and MEND in lines))

    bench = Bench(score, rows=20, room=32)
    text = bench.prove(books_of(lines, [MEND]), lines)
    assert MEND in lines_of(text)


def test_a_small_budget_of_several_draws_confirms_on_as_many_rows() -> None:
    for room in range(20, 70):
        bench = Bench(lambda lines, row: float(row > 14 or MEND in lines), 20, room, draws=3)
        text = bench.prove(books_of(LINES, [MEND]), LINES)
        confirming = {row for bought, row in bench.bought if bought == text.id}
        assert MEND not in lines_of(text) or len(confirming) >= 12


CARE, TENT, LAMP = "Read all of it with care.", "A tent gets T4.", "A lamp gets L7."


def books_with_examples() -> Books:
    """Return books of three lessons, two of which examples are about."""
    books = books_of([CARE, TENT, LAMP])
    read = (
        Reflection(0, {"Inputs": {"message": "The tent leaks"}, "Feedback": "A tent gets T4."}),
        Reflection(1, {"Inputs": {"message": "The lamp is out"}, "Feedback": "A lamp gets L7."}),
    )
    plan = SimpleNamespace(step=0)
    books.learn(cast("Any", SimpleNamespace(plan=plan, lessons={}, reflections={"self": read})))
    return books


def heeds(lines: Collection[str], row: int) -> float:
    """Need the lines that examples are about, and be better without the third on one row."""
    return float({TENT, LAMP} <= set(lines) and (row > 0 or CARE not in lines))


@pytest.mark.parametrize(
    ("score", "left"),
    [
        (heeds, [TENT, LAMP]),
        (lambda lines, row: float({TENT, LAMP} <= set(lines)), [TENT, LAMP]),
        (lambda lines, row: float(row > 0 or CARE in lines), [CARE, TENT, LAMP]),
    ],
    ids=["better without it", "no worse without it", "worse without it"],
)
def test_lines_that_no_example_is_about_leave_where_the_rest_does_no_worse(
    score: Score, left: list[str]
) -> None:
    bench, books = Bench(score, room=6), books_with_examples()
    assert lines_of(bench.prove(books, [CARE, TENT, LAMP])) == left
    (tested,) = [event for event in bench.tested if event.text == CARE]
    assert tested.accepted is (CARE not in left) and tested.rows == 6 and not tested.serve
    lesson = books.now["self"].find(lesson_id(CARE))
    assert lesson is not None and (lesson.state == "retired") is tested.accepted


@pytest.mark.parametrize(("room", "tested"), [(2, 0), (3, 3), (5, 5)])
def test_lines_that_no_example_is_about_are_tested_on_half_of_the_rows_or_more(
    room: int, tested: int
) -> None:
    bench = Bench(lambda lines, row: 1.0, room=room)
    text = bench.prove(books_with_examples(), [CARE, TENT, LAMP])
    assert [event.rows for event in bench.tested] == [tested] * bool(tested)
    rows = [row for bought, row in bench.bought if bought == text_of([TENT, LAMP]).id]
    assert rows == [0, 2, 4, 1, 3, 5][:tested], "rows may be sorted"
    assert lines_of(text) == ([TENT, LAMP] if tested else [CARE, TENT, LAMP])


def test_without_an_example_no_line_is_needless() -> None:
    bench = Bench(lambda lines, row: 1.0)
    assert lines_of(bench.prove(books_of(LINES), LINES)) == list(LINES)
    assert not bench.tested


@pytest.mark.parametrize(("room", "paid", "tested"), [(None, 6, 6), (None, 2, 0), (4, 6, 4)])
def test_what_a_limit_on_cost_leaves_tests_lines_once(
    room: int | None, paid: int, tested: int
) -> None:
    bench = Bench(lambda lines, row: 1.0, room=room, paid=paid)
    text = bench.prove(books_with_examples(), [CARE, TENT, LAMP], was_cut=True)
    assert lines_of(text) == ([TENT, LAMP] if tested else [CARE, TENT, LAMP])
    assert sum(event.rows for event in bench.tested) == tested
    # A replay has no limit, and what is left is what was left then.
    again = Bench(lambda lines, row: 1.0, room=None, paid=60, decisions=bench.decisions)
    again.prove(books_with_examples(), [CARE, TENT, LAMP], was_cut=True)
    assert again.bought == bench.bought


@pytest.mark.parametrize("end", [*range(12, 45), math.inf])
def test_tests_that_a_limit_ends_end_there_in_a_replay(end: float) -> None:
    def score(lines: Collection[str], row: int) -> float:
        return float((row > 2 or MEND in lines) and (row > 0 or CARE not in lines))

    def books() -> Books:
        books = books_with_examples()
        waiting = Book().add([Taught(MEND, ("0", "1"))], 0).lessons
        books.now["self"] = Book((*books.now["self"].lessons, *waiting)).with_states(
            {lesson_id(MEND): ("waiting", "")}
        )
        return books

    bench = Bench(score, end=end)
    bench.prove(books(), [CARE, TENT, LAMP])
    again = Bench(score, decisions=bench.decisions)
    again.prove(books(), [CARE, TENT, LAMP])
    joined = [[member.candidate.id for member in each.members] for each in (bench, again)]
    assert joined[0] == joined[1]
    assert len(again.bought) <= end or bench.decisions["proved"] == 1
    if end == math.inf:
        assert "proved" not in bench.decisions and len(joined[0]) == 4


def test_what_no_rollout_is_left_for_is_not_said_to_be_tested() -> None:
    books, exception = books_of(LINES, ["Rule 4"]), lesson_id("Rule 4")
    books.edit("self", [Narrow(exception, lesson_id("Rule 1"))], 0)
    books.now["self"] = books.now["self"].with_states({exception: ("waiting", "")})
    for room, tested in ((0, 0), (60, 1)):
        bench = Bench(lambda *_: 1.0, room=room)
        bench.prove(books, LINES)
        assert len(bench.tested) == tested


@pytest.mark.parametrize(("room", "rows"), [(2, 6), (3, 3), (5, 5), (6, 6)])
def test_the_last_text_runs_on_the_rows_that_are_left_if_they_are_half_of_all(
    room: int, rows: int
) -> None:
    bench = Bench(lambda lines, row: float("Rule 2" not in lines), room=room)
    text = bench.prove(books_of(LINES), LINES, newest=LINES[:2])
    assert len(bench.members[-1].scores) == rows
    assert lines_of(text) == list(LINES if room < 3 else LINES[:2])
    assert bench.warned is (2 < room < 6)


def test_draws_of_the_last_text_come_in_the_order_of_their_rows() -> None:
    pool: Any = Bench(lambda *_: 1.0)
    draws = asyncio.run(validate_paid(Trials(pool, 0, 60), text_of(LINES), range(6)))
    assert [row for _, row in pool.bought] == [0, 2, 4, 1, 3, 5]
    assert list(draws) == list(range(6))


@pytest.mark.parametrize("spoiled", [0, 1, 2])
def test_the_row_that_a_change_was_chosen_on_makes_up_for_no_loss(spoiled: int) -> None:
    # Graded scores: the sign test alone would let the gain of the chosen row pass.
    def score(lines: Collection[str], row: int) -> float:
        return float(MEND in lines) if row == 0 else 1.0 - 0.1 * (row <= spoiled and MEND in lines)

    bench = Bench(score)
    text = bench.prove(books_of(LINES, [MEND]), LINES)
    assert (MEND in lines_of(text)) is (spoiled == 0)
    assert bench.tested[0].accepted is (spoiled == 0)


def test_a_change_touches_nothing_else_of_a_text() -> None:
    # A text that an operator wrote shows one lesson of the four as a line.
    books, text = books_of(LINES, [MEND]), text_of([LINES[1]], "Written anew.")
    lines = LessonLines(books.artifact, books.now)
    removals = lines.open_changes(text, serve=False)
    assert [change.lesson.text for change in removals] == [LINES[1]]
    assert lines_of(lines.changed(text, removals)) == []
    additions = lines.open_changes(text, serve=True)
    assert lines.changed(text, additions) == text_of([LINES[1], MEND], "Written anew.")


def test_a_text_follows_what_was_decided_since_it_was_made() -> None:
    books, text = books_of(LINES, [MEND]), text_of([LINES[1]], "Written anew.")
    lines, before = LessonLines(books.artifact, books.now), dict(books.now)
    assert lines.follow(text, before) == text
    books.now["self"] = books.now["self"].with_states(
        {lesson_id(LINES[1]): ("retired", ""), lesson_id(MEND): ("served", "")}
    )
    assert lines.follow(text, before) == text_of([MEND], "Written anew.")


def test_a_line_that_was_united_with_a_retired_one_leaves_the_text() -> None:
    harmful, again, good = "Answer in red ink.", "Red ink is for answers.", "Sign it."
    books = books_of([harmful, again, good])
    books.edit("self", [Retire(lesson_id(harmful), "it harms")], 0)
    before = dict(books.now)
    books.edit("self", [Unite((lesson_id(harmful), lesson_id(again)))], 1)
    lines = LessonLines(books.artifact, books.now)
    assert lines.follow(text_of([again, good]), before) == text_of([good])


def test_what_contradicts_a_line_of_the_users_own_is_not_tried() -> None:
    own, new = "Round every amount down.", "Round every amount up."
    book = Book().add([Taught(own)], -1).add([Taught(new, ("a",))], 0)
    book = Posterior().applied(book.edit([Contradict((lesson_id(own), lesson_id(new)))]).book)
    assert [lesson.text for lesson in book.served] == [own]
    assert not LessonLines(Instruction(), {"self": book}).open_changes(text_of([own]), serve=True)


@pytest.mark.parametrize("operator", [Insert(max_tokens=20), Rewrite(max_tokens=20)])
def test_an_operators_own_budget_binds_what_grows(operator: Operator) -> None:
    small, large = (
        write_section(OWN, [f"Rule number {place}" for place in range(count)]) for count in (1, 20)
    )
    assert operator.fits(small, OWN) and not operator.fits(large, small)
    assert operator.fits(large, large), "what is longer already may lose a line"


def learned_texts(folder: Path, *lessons: str, **arguments: Any) -> list[str]:
    """Return the texts that a run proposed whose updates teach these lessons in turn."""
    World.made().compile(
        dspy.Predict(dspy.Signature("question -> answer", OWN)),
        search=Search(keep="trunk"),
        log_dir=folder,
        budget=Budget(rollouts=250),
        reflection_minibatch_size=4,
        validation=6,
        aggregator=Teaches(lessons),
        skip_perfect_score=False,
        **arguments,
    )
    return [event["texts"]["self"] for event in events(folder, "candidate")]


def test_no_text_that_the_guards_refuse_is_bought(tmp_path: Path) -> None:
    kind = "Rule {0}: the word for a beast of kind {0} is a long word"
    lessons = [kind.format(number) for number in range(8)]
    texts = learned_texts(tmp_path, *lessons, guards=Guards(max_tokens=60))
    assert len(texts) > 2
    assert max(map(estimate_tokens, texts)) <= 60


class Anew(Operator):
    """Writes the whole text."""

    name = "anew"

    async def apply(self, material: Any, context: Any) -> Edit:
        return Edit(instruction=f"Version {context.update}")


def test_lessons_that_an_operator_worked_in_are_not_appended(tmp_path: Path) -> None:
    texts = learned_texts(tmp_path, *LINES, operators=[Anew()], diversity=False)
    assert not [text for text in texts if "Rule" in text]


def test_one_question_that_is_asked_twice_at_once_is_paid_once() -> None:
    bench = Bench(spoils("Rule 0"))
    trials = Trials(cast("Any", bench), 0, 1)

    async def ask() -> list[float]:
        return await asyncio.gather(*(trials.score(text_of(LINES), 0) for _ in range(2)))

    assert asyncio.run(ask()) == [0.0, 0.0]
    assert trials.left == 0
