"""A text that grows: it takes in every update, its lines are tested, and a run ends in time."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dspy
import pytest

from combee_dspy import Budget, Search
from combee_dspy.aggregators import Aggregator, gathered
from combee_dspy.edits import BookEdit, Retire
from combee_dspy.lessons import lesson_id
from combee_dspy.operators import Operator
from combee_dspy.records import Edit, Lesson, Lessons
from combee_dspy.search import _growing
from combee_dspy.search._blame import BLAMED
from combee_dspy.search._candidates import Row
from combee_dspy.search._time_budget import BudgetReached
from combee_dspy.search._versions import RowScores
from combee_dspy.stopping import RunView, StoppingRule
from tests.slow import slow_but
from tests.worlds import TwoSteps, World, animal_of, code_word, events, in_kind, rows, task_answer


class Teaches(Aggregator):
    """Teaches the lines of one text in each update, whatever the reflections say."""

    name = "teaches"

    def __init__(self, texts: tuple[str, ...] = ()) -> None:
        self.texts = texts

    async def aggregate(self, reflections: Any, context: Any) -> Lessons:
        sources = tuple(reflection.index for reflection in await gathered(reflections))
        text = self.texts[min(context.update, len(self.texts) - 1)]
        return Lessons(context.component, tuple(Lesson(line, sources) for line in text.split("\n")))


class Late(Teaches):
    """Says, when it compares lines, that every other one is empty."""

    name = "late"

    async def relate(self, fresh: Sequence[str], context: Any) -> tuple[BookEdit, ...]:
        assert {lesson.text for lesson in context.book.lessons} >= set(fresh)
        return tuple(Retire(lesson_id(text), "empty") for text in fresh if int(text.split()[1]) % 2)


RULES = ("Rule zero", "Poison the answer", "Rule two", "Rule three")


def right_or(request: Any, *, is_right: bool) -> str:
    return in_kind(
        request, {"answer": code_word(animal_of(request.last)) if is_right else "nonsense"}
    )


def spoiled(request: Any) -> str:
    """Answer rightly by any rule, unless the prompt is poisoned."""
    return right_or(request, is_right="Rule" in request.system and "Poison" not in request.system)


def grow(
    folder: Path, *texts: str, answer: Any = spoiled, student: Any = None, **arguments: Any
) -> Any:
    """Run updates of six rows that teach these texts in turn; return the program."""
    return World.made(answer).compile(
        student,
        **{
            "search": Search(keep="trunk", staleness=1),
            "log_dir": folder,
            "reflection_minibatch_size": 6,
            "budget": Budget(epochs=1),
            "skip_perfect_score": False,
            "aggregator": Teaches(texts),
            **arguments,
        },
    )


def student_of(instructions: str = "Answer.") -> dspy.Predict:
    return dspy.Predict(dspy.Signature("question -> answer", instructions))


def texts_by_update(folder: Path) -> dict[int, str]:
    learned = [event for event in events(folder, "candidate") if event["operator"] != "test"]
    return {event["step"]: event["texts"]["self"] for event in learned if event["step"] >= 0}


def test_a_text_joins_the_lessons_of_every_update(world: World, tmp_path: Path) -> None:
    program = world.compile(
        search=Search(keep="trunk", staleness=2),
        log_dir=tmp_path,
        reflection_minibatch_size=6,
        budget=Budget(epochs=1),
    )
    text = program.signature.instructions
    animals = ("cat", "dog", "eel", "fox", "gnu", "hen", "lynx")
    assert all(f"the word for {animal} is" in text for animal in animals)
    candidates = events(tmp_path, "candidate")
    parents = [event["parents"][0] for event in candidates if event["operator"] == "insert"]
    ids = [event["candidate"] for event in candidates]
    assert parents == ids[: len(parents)], "each text follows from the one before"


def test_a_text_is_made_of_lessons_that_were_compared(tmp_path: Path) -> None:
    # Else the first texts would hold each lesson in several wordings, and be validated with them.
    rules = tuple(f"Rule {update} holds" for update in range(4))
    grow(tmp_path, answer=task_answer, aggregator=Late(rules))
    shown = {
        step: [rule for rule in range(4) if f"Rule {rule}" in text]
        for step, text in texts_by_update(tmp_path).items()
    }
    assert shown == {0: [0], 2: [0, 2]}
    book = events(tmp_path, "book")[-1]["lessons"]
    assert [lesson["state"] for lesson in book] == 2 * ["served", "retired"]


class Awaits(Teaches):
    """Compares the lines of one predictor while those of the other are compared."""

    name = "awaits"

    async def relate(self, fresh: Sequence[str], context: Any) -> tuple[BookEdit, ...]:
        COMPARED.add(context.component)
        for _ in range(1_000):
            await asyncio.sleep(0.001)
            if len(COMPARED) == 2:
                return ()
        raise AssertionError(f"only {COMPARED} are compared")


COMPARED: set[str] = set()


def test_the_lessons_of_all_predictors_are_compared_at_once(tmp_path: Path) -> None:
    COMPARED.clear()
    grow(
        tmp_path,
        student=TwoSteps(),
        answer=task_answer,
        aggregator=Awaits(RULES),
        component_selector="all",
        budget=Budget(updates=1),
    )


@pytest.mark.parametrize(("validation", "budget"), [(6, 80), (80, 150)])
def test_no_predictor_takes_the_rollouts_that_another_needs(
    validation: int, budget: int, tmp_path: Path
) -> None:
    World.made().compile(
        TwoSteps(),
        train=200,
        validation=validation,
        max_metric_calls=budget,
        num_threads=64,
        log_dir=tmp_path,
    )
    first, second = events(tmp_path, "update")[:2]
    assert first["components"] != second["components"]
    assert 0.5 <= first["rows"] / second["rows"] <= 2


def test_the_second_step_first_learns_from_inputs_that_the_first_has_learned_to_make(
    tmp_path: Path,
) -> None:
    grow(
        tmp_path,
        *RULES,
        student=TwoSteps(),
        answer=lambda request: json.dumps({"hint": "none", "answer": "nonsense"}),
        search=Search(keep="trunk", staleness=2),
        reflection_minibatch_size=3,
    )
    ids = [event["candidate"] for event in events(tmp_path, "candidate")]
    parents = [event["parent"] for event in events(tmp_path, "update")]
    assert parents[:5] == [ids[0], ids[1], ids[1], ids[1], ids[2]]


def test_a_line_that_spoils_validation_rows_is_found_and_leaves(tmp_path: Path) -> None:
    text = grow(tmp_path, *RULES).signature.instructions
    poisoned = ["Poison" in text for text in texts_by_update(tmp_path).values()]
    assert poisoned == [False, True, True, False], "update 3 knows of the tests of update 1"
    book = events(tmp_path, "book")[-1]["lessons"]
    (poison,) = [lesson for lesson in book if "Poison" in lesson["text"]]
    assert poison["state"] == "retired" and "are right without it" in poison["reason"]
    assert poison["effect"]["difference"] < 0 and poison["effect"]["rows"] >= 1
    assert [rule in text for rule in RULES] == [True, False, True, True]


def test_tests_of_lines_that_a_limit_has_cut_are_cut_in_a_replay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def cut(*_: Any) -> Any:
        raise BudgetReached("nothing is left for tests")

    with monkeypatch.context() as patch:
        patch.setattr(_growing, "blame", cut)
        grow(tmp_path / "first", *RULES)
    search = Search(keep="trunk", staleness=1, replay=str(tmp_path / "first"))
    grow(tmp_path / "again", *RULES, search=search)
    assert "Poison" in texts_by_update(tmp_path / "first")[3]
    assert texts_by_update(tmp_path / "again") == texts_by_update(tmp_path / "first")


@pytest.mark.parametrize(("rollouts", "is_large"), [(95, False), (96, True)])
def test_a_budget_of_many_validations_has_lines_tested_as_it_goes(
    rollouts: int, is_large: bool, tmp_path: Path
) -> None:
    def run(rollouts: int) -> str:
        budget = Budget(rollouts=rollouts)
        program = grow(tmp_path, *RULES, validation=6, budget=budget, reflection_minibatch_size=3)
        return str(program.signature.instructions)

    text = run(rollouts)
    poisoned = ["Poison" in each for each in texts_by_update(tmp_path).values()]
    assert poisoned[-1] is not is_large, "of the last update, before the tests at the end"
    assert "Poison" not in text
    learned = texts_by_update(tmp_path)
    run(200)
    after = texts_by_update(tmp_path)
    assert {step: after[step] for step in learned} == learned, "what was paid stays as it was"


def test_a_rule_sees_the_tests_of_committed_updates_however_long_they_take(tmp_path: Path) -> None:
    seen: dict[int, int] = {}

    class Seen(StoppingRule):
        name = "seen"

        def check(self, view: RunView) -> str | None:
            seen[view.updates] = view.rollouts
            return "enough" if view.updates == 9 else None

    def slow_in_tests(request: Any) -> str:
        if "Rule one" in request.system and not re.search("Poison|Rule two", request.system):
            time.sleep(0.3)
        return spoiled(request)

    texts = ("Rule zero", "Rule one\nPoison the answer", "Rule two", "Rule three")
    search = Search(keep="trunk", staleness=2)
    grow(tmp_path, *texts, answer=slow_in_tests, search=search, budget=Seen(), num_threads=8)
    steps = [row["step"] for row in rows(tmp_path, "SELECT step FROM effect WHERE kind='rollout'")]
    assert rows(tmp_path, "SELECT 1 FROM effect WHERE purpose = 'proof' AND step = 1")
    assert seen == {update: sum(step <= update - 5 for step in steps) for update in seen}


def test_a_test_of_lines_takes_no_more_rollouts_than_it_may(tmp_path: Path) -> None:
    many = [f"Rule {update} number {number}" for update in range(4) for number in range(6)]
    texts = ["\n".join(many[6 * update : 6 * update + 6]) for update in range(4)]
    grow(tmp_path, texts[0], *(f"{text}\nPoison the answer" for text in texts[1:]))
    proofs = rows(
        tmp_path, "SELECT step, count(*) AS n FROM effect WHERE purpose = 'proof' GROUP BY step"
    )
    assert proofs and all(row["n"] <= BLAMED for row in proofs)


def test_lines_are_tested_however_long_ago_the_last_validation_was(tmp_path: Path) -> None:
    report = grow(
        tmp_path,
        *22 * ("Rule zero",),
        "Poison the answer",
        search=Search(keep="trunk", staleness=0),
        reflection_minibatch_size=1,
        validation=40,
        budget=Budget(updates=32),
    ).combee_report
    assert report.updates == 32
    assert "Poison" not in str(report.texts)


def test_a_text_that_no_line_spoils_is_made_anew_from_the_best(tmp_path: Path) -> None:
    class Adding(Operator):
        name = "adding"
        needs_lessons = False

        async def apply(self, material: Any, context: Any) -> Edit:
            word = "Poison" if context.update == 2 else "Rule"
            return Edit(instruction=f"{material.instruction} {word} {context.update}.")

    program = grow(
        tmp_path,
        "Rule",
        student=student_of(),
        search=Search(keep="trunk"),
        operators=[Adding()],
        reflection_minibatch_size=12,
        diversity=False,
        budget=Budget(updates=8),
    )
    best = "Answer. Rule 0. Rule 1."
    texts = texts_by_update(tmp_path)
    assert "Poison 2" in texts[4], "update 4 does not know of the validation of update 2"
    assert texts[5] == f"{best} Rule 5."
    assert texts[7] == f"{best} Rule 5. Rule 6. Rule 7.", "updates 3 and 4 tell of update 2 again"
    text = program.signature.instructions
    assert text.startswith(best) and "Poison" not in text


@pytest.mark.parametrize("keep", ["trunk", "pareto"])
def test_the_student_is_returned_where_validation_speaks_for_no_text(
    keep: Any, tmp_path: Path
) -> None:
    def answer(request: Any) -> str:
        return right_or(
            request, is_right="Line" not in request.system or "Number 9" not in request.last
        )

    arguments = {"search": Search(keep=keep), "budget": Budget(updates=2)}
    program = grow(
        tmp_path, "Line one", "Line two", answer=answer, student=student_of(), **arguments
    )
    assert program.signature.instructions == "Answer."
    (selected,) = events(tmp_path, "selected")
    assert "student" in selected["reason"] or selected["index"] == 0


@pytest.mark.parametrize(
    "tokens",
    slow_but((3_500, 5_000, 7_000), [3_000, 3_500, 4_000, 4_500, 5_000, 6_000, 7_000, 8_000]),
)
def test_a_run_that_a_budget_cuts_off_anywhere_returns_a_program(
    tokens: int, tmp_path: Path
) -> None:
    arguments = {"search": Search(keep="trunk", staleness=2), "budget": Budget(tokens=tokens)}
    program = grow(tmp_path, *RULES, reflection_minibatch_size=4, **arguments)
    assert "tokens" in program.combee_report.reason
    assert len(events(tmp_path, "selected")) == 1, "validation chooses among what it has seen"


def cut_off(calls: int, folder: Path, instructions: str = "Answer.") -> str:
    """Return the text where a budget cuts one that makes every row right: 12 learn, 12 validate."""
    program = grow(
        folder,
        "Line one",
        answer=lambda request: right_or(request, is_right="Line one" in request.system),
        student=student_of(instructions),
        search=Search(),
        reflection_minibatch_size=12,
        budget=Budget(calls=calls),
    )
    return str(program.signature.instructions)


@pytest.mark.parametrize(("calls", "validated"), [(28, 4), (34, 10)])
def test_a_text_whose_validation_a_budget_cuts_counts_by_half_of_the_rows(
    calls: int, validated: int, tmp_path: Path
) -> None:
    counts = validated >= 6
    for _ in range(2):
        assert ("Line one" in cut_off(calls, tmp_path)) is counts
        joined = {event["index"]: event["rows"] for event in events(tmp_path, "validated")}
        assert joined == ({0: 12, 1: validated} if counts else {0: 12})
    (selected,) = events(tmp_path, "selected")
    assert (f"cut at {validated} of 12 rows" in selected["reason"]) is counts
    (cut,) = rows(tmp_path, "SELECT value FROM effect WHERE key LIKE 'decision/cut/%'")
    ran = json.loads(cut["value"])["value"].get("rows")
    assert ran == ([*range(9), 10] if counts else None), "every other row goes first"


def test_a_text_that_too_small_a_budget_did_not_count_counts_with_a_larger_one(
    tmp_path: Path,
) -> None:
    counts = ["Line one" in cut_off(calls, tmp_path) for calls in (28, 34, 35, 34)]
    assert counts == [False, True, True, True]
    joined = [event["rows"] for event in events(tmp_path, "validated") if event["index"] == 1]
    assert joined == [10, 11]
    start = "The budget cut the last text's validation at 10 of 12 rows"
    warning = f"{start}: it has 1.000 on them, its parent 0.000, the student 0.000."
    assert warning in {event["text"] for event in events(tmp_path, "warning")}


def heed(calls: int, folder: Path, **arguments: Any) -> tuple[str, int]:
    """Return what a run learned that a limit ends behind a whole validation, and its tests."""
    program = grow(
        folder,
        "Give the word for the animal\nHum along quietly",
        answer=lambda request: right_or(request, is_right="Give the word" in request.system),
        student=student_of(),
        reflection_minibatch_size=12,
        budget=Budget(calls=calls),
        skip_perfect_score=True,
        **{"search": Search(), **arguments},
    )
    return str(program.signature.instructions), len(events(folder, "tested"))


@pytest.mark.parametrize(("calls", "tested"), [(38, 0), (44, 1), (50, 1)])
def test_what_a_limit_on_cost_leaves_takes_a_line_out_that_no_example_is_about(
    calls: int, tested: int, tmp_path: Path
) -> None:
    text, tests = heed(calls, tmp_path / "run")
    assert "Give the word" in text and ("Hum" not in text) is bool(tested) and tests == tested
    assert heed(calls, tmp_path / "run") == (text, tests), "compiled again"
    replay = Search(replay=str(tmp_path / "run"))
    assert heed(calls, tmp_path / "replay", search=replay) == (text, tests)


def test_a_cut_text_with_a_key_that_may_not_be_written_does_not_count(tmp_path: Path) -> None:
    key = f"sk-proj-{'abcdefghij0123456789' * 2}"
    for _ in range(2):
        assert "Line one" not in cut_off(34, tmp_path, f"Answer. The key is {key}.")
    (selected,) = events(tmp_path, "selected")
    assert selected["index"] == 0


def test_rows_are_right_by_what_ran_last() -> None:
    scores = RowScores(1.0)
    for update in (
        {0: False, 1: False, 2: True},
        {0: True, 3: False},
        {1: False, 3: True},
        {1: True},
    ):
        ran: list[Any] = [Row("train", row, dspy.Example(), "") for row in update]
        rollouts = [SimpleNamespace(score=float(is_right)) for is_right in update.values()]
        learned: Any = SimpleNamespace(
            plan=SimpleNamespace(rows=ran, perfect_score=1.0), rollouts=rollouts
        )
        scores.end(learned)
    assert not scores.are_right(2, 4), "what a later update ran is not known yet"
    assert scores.are_right(3, 4)
    assert not scores.are_right(3, 5), "a row was never seen"


def hopeless(request: Any) -> str:
    """Never know the word for ants."""
    is_ant = "ant" in animal_of(request.last)
    return in_kind(request, {"answer": "unknown"}) if is_ant else task_answer(request)


def test_a_few_updates_that_teach_nothing_do_not_end_a_run(tmp_path: Path) -> None:
    report = grow(
        tmp_path,
        *5 * ("",),
        "Rule zero",
        search=Search(keep="trunk", staleness=0),
        train=6,
        budget=Budget(updates=12),
    ).combee_report
    assert "Rule zero" in str(report.texts), "epochs 2 to 4 took no new rollout"


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (task_answer, "every training row was right when it ran last"),
        (hopeless, "no new text came of the rows that fail"),
    ],
    ids=["all right", "some hopeless"],
)
def test_a_run_ends_once_nothing_is_left_to_learn(answer: Any, reason: str, tmp_path: Path) -> None:
    report = (
        World.made(answer)
        .compile(
            search=Search(keep="trunk"),
            reflection_minibatch_size=6,
            validation=6,
            log_dir=tmp_path,
            max_metric_calls=300,
        )
        .combee_report
    )
    assert report.reason == f"A full pass found nothing new to learn: {reason}"
    assert report.rollouts < 150
    ran = rows(tmp_path, "SELECT example, score FROM effect WHERE purpose = 'train' ORDER BY step")
    latest = {row["example"]: row["score"] for row in ran}
    assert (answer is hopeless) or set(latest.values()) == {1.0}
    assert len(latest) == 24


@pytest.mark.parametrize("budget", [24, 40])
def test_a_small_budget_still_learns(budget: int) -> None:
    report = (
        World.made()
        .compile(
            search=Search(keep="trunk"),
            train=12,
            validation=6,
            reflection_minibatch_size=4,
            max_metric_calls=budget,
        )
        .combee_report
    )
    assert report.updates >= 1, "what is set aside to test lines leaves room for an update"
    if budget == 40:
        assert re.search(r"left, beside \d+ to test the lines:", report.reason)
    assert report.best_score > report.seed_score
