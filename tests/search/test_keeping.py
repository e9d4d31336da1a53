"""The two ways to keep what was learned, and what children and screens do."""

from __future__ import annotations

import re
import threading
from pathlib import Path
from typing import Any

import dspy
import pytest

from combee_dspy import Budget, Diversity, Search, Validation
from combee_dspy.aggregators import Aggregator, gathered
from combee_dspy.diversity import Restart
from combee_dspy.operators import Operator
from combee_dspy.records import Edit, Lesson, Lessons, Refusal
from combee_dspy.search._blame import BLAMED
from tests.slow import slow_but
from tests.worlds import (
    World,
    animal_of,
    code_word,
    events,
    examples,
    in_kind,
    rows,
    task_answer,
)


class Scripted(Operator):
    """Writes one text after the other, whatever was learned."""

    name = "scripted"
    needs_lessons = False
    near_parent = True

    def __init__(self, texts: tuple[str, ...] = ()) -> None:
        self.texts = texts

    async def apply(self, given: Any, context: Any) -> Edit:
        return Edit(instruction=self.texts[min(context.update, len(self.texts) - 1)])


class Teaches(Aggregator):
    """Teaches one text in each update, whatever the reflections say."""

    name = "teaches"

    def __init__(self, texts: tuple[str, ...] = ()) -> None:
        self.texts = texts

    async def aggregate(self, reflections: Any, context: Any) -> Lessons:
        read = await gathered(reflections)
        text = self.texts[min(context.update, len(self.texts) - 1)]
        return Lessons(context.component, (Lesson(text, tuple(one.index for one in read)),))


def level_of(request: Any) -> str:
    """Answer with the level that the instruction names."""
    found = re.findall(r"level (\d+)", request.system)
    return in_kind(request, {"answer": found[0] if found else "0"})


def level_metric(
    gold: Any, pred: Any, trace: Any = None, pred_name: Any = None, pred_trace: Any = None
) -> Any:
    """Every question scores what the instruction's level says; some ask for an even one."""
    level = int(pred.answer)
    score = float(level % 2 == 0) if "Number 9" in gold.question else level / 100
    return dspy.Prediction(score=score, feedback="higher")


class FromSeed:
    """Every parent is the student."""

    def select_candidate_idx(self, state: Any) -> int:
        return 0


def test_each_operator_makes_a_child_unless_fewer_are_wanted(world: World, tmp_path: Path) -> None:
    operators = ["insert", "few-shot-swap", "rewrite"]
    world.compile(
        operators=operators,
        log_dir=tmp_path / "all",
        max_metric_calls=200,
        reflection_minibatch_size=12,
    )
    made = [one["operator"] for one in events(tmp_path / "all", "candidate") if one["step"] == 0]
    assert sorted(made) == sorted(operators)
    world.compile(
        operators=operators,
        log_dir=tmp_path / "one",
        search=Search(children=1),
        reflection_minibatch_size=12,
    )
    steps = [one["step"] for one in events(tmp_path / "one", "candidate") if one["step"] >= 0]
    assert len(steps) == len(set(steps))


class Refusing(Scripted):
    needs_lessons = True

    async def apply(self, given: Any, context: Any) -> Any:
        return Refusal(f"never, says {self.texts[0]}")


def test_where_an_operator_is_refused_the_next_has_its_turn(world: World, tmp_path: Path) -> None:
    world.compile(
        operators=[Refusing(("a",)), "insert"],
        search=Search(children=1),
        log_dir=tmp_path,
        budget=Budget(updates=2),
        reflection_minibatch_size=6,
    )
    made = [one["operator"] for one in events(tmp_path, "candidate") if one["step"] >= 0]
    assert made == ["insert", "insert"]
    assert events(tmp_path, "refused")


def test_each_operator_has_one_turn(world: World, tmp_path: Path) -> None:
    world.compile(
        operators=[Refusing((name,)) for name in "abc"],
        search=Search(children=2),
        budget=Budget(updates=1),
        log_dir=tmp_path,
    )
    reasons = sorted(one["reason"] for one in events(tmp_path, "refused"))
    assert reasons == [f"never, says {name}" for name in "abc"]


def test_children_are_made_while_the_student_is_validated() -> None:
    tried = threading.Event()

    def held(request: Any) -> str:
        if "the word for" in request.system:
            tried.set()  # a child is on its screen
        elif int(re.findall(r"Number (\d+)", request.last)[-1]) >= 100:
            before.append(tried.wait(2))
        return task_answer(request)

    before: list[bool] = []
    world = World.made(held)
    report = world.compile(
        num_threads=24,
        reflection_minibatch_size=6,
        budget=Budget(updates=1),
        validation_options=Validation(probe=False),
    ).combee_report
    assert report.seed_score == pytest.approx(2 / 12)
    assert all(before), "nothing was tried before the student's scores were there"


def test_gepas_notes_stand_at_the_iteration_of_their_update(world: World) -> None:
    class Hears:
        def __init__(self) -> None:
            self.drawn: dict[int, Any] = {}
            self.accepted: dict[int, int] = {}
            self.validated: dict[int, int] = {}

        def on_minibatch_sampled(self, event: Any) -> None:
            self.drawn[event["iteration"]] = event["minibatch_ids"]

        def on_valset_evaluated(self, event: Any) -> None:
            self.validated[event["candidate_idx"]] = event["iteration"]

        def on_candidate_accepted(self, event: Any) -> None:
            self.accepted[event["new_candidate_idx"]] = event["iteration"]

        def on_optimization_end(self, event: Any) -> None:
            self.trace = {note["i"] + 1: note for note in event["final_state"].full_program_trace}

    heard = Hears()
    world.compile(
        gepa_kwargs={"callbacks": [heard]},
        reflection_minibatch_size=4,
        budget=Budget(updates=5),
        skip_perfect_score=False,
    )
    assert len(heard.drawn) == 5
    assert {place: note["subsample_ids"] for place, note in heard.trace.items()} == heard.drawn
    assert heard.accepted
    assert {
        note["new_program_idx"]: place
        for place, note in heard.trace.items()
        if "new_program_idx" in note
    } == (heard.accepted)
    assert {index: place for index, place in heard.validated.items() if index} == heard.accepted


def test_a_child_of_a_small_minibatch_must_beat_its_parent_on_it(tmp_path: Path) -> None:
    World.made(level_of).compile(
        operators=[Scripted(("level 20", "level 20 again", "level 60"))],
        log_dir=tmp_path,
        diversity=False,
        metric=level_metric,
        reflection_minibatch_size=4,
        budget=Budget(updates=3),
        search=Search(staleness=0),
    )
    screened = events(tmp_path, "screened")
    assert [(one["step"], one["accepted"], one["rows"]) for one in screened] == [
        (0, True, 4),
        (1, False, 4),
        (2, True, 4),
    ]
    assert "is not above its parent's" in screened[1]["reason"]
    assert [(one["index"], one["step"]) for one in events(tmp_path, "validated")] == [
        (0, -1),
        (1, 0),
        (2, 2),
    ]


def test_a_child_of_a_large_minibatch_is_refused_only_where_it_is_worse(tmp_path: Path) -> None:
    World.made(level_of).compile(
        dspy.Predict(dspy.Signature("question -> answer", "level 24")),
        operators=[Scripted(("level 24.", "level 2"))],
        metric=level_metric,
        log_dir=tmp_path,
        reflection_minibatch_size=12,
        budget=Budget(updates=2),
        search=Search(screen=6),
        diversity=False,
    )
    screened = events(tmp_path, "screened")
    assert [(one["accepted"], one["rows"]) for one in screened] == [(True, 6), (False, 6)]
    assert "6 losses" in screened[1]["reason"]


def spoilt(request: Any) -> str:
    known = code_word(animal_of(request.last)) if "Rule" in request.system else "unknown"
    return in_kind(request, {"answer": "nonsense" if "Poison" in request.system else known})


def test_a_line_that_spoils_validation_rows_is_found_and_leaves(tmp_path: Path) -> None:
    program = World.made(spoilt).compile(
        search=Search(keep="trunk", staleness=1),
        log_dir=tmp_path,
        reflection_minibatch_size=6,
        budget=Budget(epochs=1),
        skip_perfect_score=False,
        aggregator=Teaches(("Rule zero", "Poison the answer", "Rule two", "Rule three")),
    )
    texts = {one["step"]: one["texts"]["self"] for one in events(tmp_path, "candidate")}
    assert ["Poison" in texts[step] for step in (0, 1, 2)] == [False, True, True]
    assert "Poison" not in texts[3], "the text of update 3 knows of the tests of update 1"
    book = events(tmp_path, "book")[-1]["lessons"]
    (poison,) = [lesson for lesson in book if "Poison" in lesson["text"]]
    assert poison["state"] == "retired" and "are right without it" in poison["reason"]
    assert poison["effect"]["difference"] < 0 and poison["effect"]["rows"] >= 1
    text = program.signature.instructions
    assert "Poison" not in text and all(
        f"Rule {number}" in text for number in ("zero", "two", "three")
    )


def test_a_test_of_lines_takes_no_more_rollouts_than_it_may(tmp_path: Path) -> None:
    class Many(Teaches):
        name = "many"

        async def aggregate(self, reflections: Any, context: Any) -> Lessons:
            await gathered(reflections)
            spoiling = (Lesson("Poison the answer", (0,)),) if context.update else ()
            ruling = tuple(
                Lesson(f"Rule {context.update} number {number}", (0,)) for number in range(6)
            )
            return Lessons(context.component, (*ruling, *spoiling))

    World.made(spoilt).compile(
        search=Search(keep="trunk", staleness=1),
        log_dir=tmp_path,
        reflection_minibatch_size=6,
        budget=Budget(epochs=1),
        skip_perfect_score=False,
        aggregator=Many(),
    )
    proofs = rows(
        tmp_path, "SELECT step, count(*) AS n FROM effect WHERE purpose = 'proof' GROUP BY step"
    )
    assert proofs and all(one["n"] <= BLAMED for one in proofs)


@pytest.mark.parametrize(
    "tokens",
    slow_but((3_500, 5_000, 7_000), [3_000, 3_500, 4_000, 4_500, 5_000, 6_000, 7_000, 8_000]),
)
def test_a_trunk_that_a_budget_cuts_off_anywhere_returns_a_program(
    tokens: int, tmp_path: Path
) -> None:
    program = World.made(spoilt).compile(
        search=Search(keep="trunk", staleness=2),
        log_dir=tmp_path,
        reflection_minibatch_size=4,
        budget=Budget(tokens=tokens),
        skip_perfect_score=False,
        aggregator=Teaches(("Rule zero", "Poison the answer", "Rule two", "Rule three")),
    )
    assert "tokens" in program.combee_report.reason
    assert len(events(tmp_path, "selected")) == 1, "validation chooses among what it has seen"


def cut_off(calls: int, tmp_path: Path, instructions: str = "Answer.") -> dspy.Module:
    """Let a budget cut a text that makes every row right: 12 rows learn, 12 validate."""

    def answer(request: Any) -> str:
        right = "Line one" in request.system
        return in_kind(
            request, {"answer": code_word(animal_of(request.last)) if right else "nonsense"}
        )

    return World.made(answer).compile(
        dspy.Predict(dspy.Signature("question -> answer", instructions)),
        log_dir=tmp_path,
        reflection_minibatch_size=12,
        budget=Budget(calls=calls),
        skip_perfect_score=False,
        aggregator=Teaches(("Line one",)),
    )


@pytest.mark.parametrize(("calls", "rows"), [(28, 4), (34, 10)])
def test_a_text_whose_validation_a_budget_cuts_counts_by_half_of_the_rows(
    calls: int, rows: int, tmp_path: Path
) -> None:
    for _ in range(2):
        program = cut_off(calls, tmp_path)
        counted = rows >= 6
        assert ("Line one" in program.signature.instructions) == counted
        joined = {event["index"]: event["rows"] for event in events(tmp_path, "validated")}
        assert joined == ({0: 12, 1: rows} if counted else {0: 12})
    (selected,) = events(tmp_path, "selected")
    assert (f"cut at {rows} of 12 rows" in selected["reason"]) == counted


def test_a_text_that_too_small_a_budget_did_not_count_counts_with_a_larger_one(
    tmp_path: Path,
) -> None:
    texts = [cut_off(calls, tmp_path).signature.instructions for calls in (28, 34, 35, 34)]
    assert ["Line one" in text for text in texts] == [False, True, True, True]
    joined = [event["rows"] for event in events(tmp_path, "validated") if event["index"] == 1]
    assert joined == [10, 11]
    warned = {event["text"] for event in events(tmp_path, "warning")}
    start = "The budget cut the last text's validation at 10 of 12 rows"
    assert f"{start}: it has 1.000 on them, and the student 0.000." in warned


def test_a_cut_text_with_a_key_that_may_not_be_written_does_not_count(tmp_path: Path) -> None:
    key = f"sk-proj-{'abcdefghij0123456789' * 2}"
    for _ in range(2):
        program = cut_off(34, tmp_path, f"Answer. The key is {key}.")
        assert "Line one" not in program.signature.instructions
    (selected,) = events(tmp_path, "selected")
    assert selected["index"] == 0


def test_the_student_is_returned_where_validation_speaks_for_no_text(tmp_path: Path) -> None:
    def answer(request: Any) -> str:
        right = "Line" not in request.system or "Number 9" not in request.last
        return in_kind(
            request, {"answer": code_word(animal_of(request.last)) if right else "nonsense"}
        )

    student = dspy.Predict(dspy.Signature("question -> answer", "Answer."))
    for keep in ("trunk", "pareto"):
        program = World.made(answer).compile(
            student,
            search=Search(keep=keep),
            log_dir=tmp_path / keep,
            reflection_minibatch_size=12,
            budget=Budget(updates=2),
            skip_perfect_score=False,
            aggregator=Teaches(("Line one", "Line two")),
        )
        assert program.signature.instructions == "Answer."
        (selected,) = events(tmp_path / keep, "selected")
        assert "student" in selected["reason"] or selected["index"] == 0


def test_a_text_that_no_line_spoils_is_made_anew_from_the_best(tmp_path: Path) -> None:
    class Adding(Operator):
        name = "adding"
        needs_lessons = False

        async def apply(self, given: Any, context: Any) -> Edit:
            return Edit(
                instruction=(
                    f"{given.instruction} {'Poison' if context.update == 2 else context.update}"
                )
            )

    def answer(request: Any) -> str:
        level = (
            0
            if "Poison" in request.system
            else 50 + len(request.system.split("Answer.")[-1].split())
        )
        return in_kind(request, {"answer": str(level)})

    program = World.made(answer).compile(
        dspy.Predict(dspy.Signature("question -> answer", "Answer.")),
        search=Search(keep="trunk"),
        operators=[Adding()],
        metric=level_metric,
        log_dir=tmp_path,
        reflection_minibatch_size=12,
        diversity=False,
        budget=Budget(updates=6),
    )
    assert "Poison" not in program.signature.instructions
    assert program.signature.instructions.startswith("Answer. 0 1")


def test_a_trunk_joins_the_lessons_of_every_update(world: World, tmp_path: Path) -> None:
    program = world.compile(
        search=Search(keep="trunk", staleness=2),
        log_dir=tmp_path,
        reflection_minibatch_size=6,
        budget=Budget(epochs=1),
    )
    text = program.signature.instructions
    assert all(
        f"the word for {animal} is" in text
        for animal in ("cat", "dog", "eel", "fox", "gnu", "hen", "lynx")
    )
    parents = [
        one["parents"][0] for one in events(tmp_path, "candidate") if one["operator"] == "insert"
    ]
    made = [one["candidate"] for one in events(tmp_path, "candidate")]
    assert parents == made[: len(parents)], "one text follows from the other"


def test_a_child_serves_what_the_children_of_others_have_learned(tmp_path: Path) -> None:
    World.made().compile(
        log_dir=tmp_path,
        reflection_minibatch_size=6,
        budget=Budget(updates=2),
        candidate_selection_strategy=FromSeed(),
    )
    own = {
        one["text"]
        for scan in events(tmp_path, "scan")
        for one in scan["lessons"]
        if scan["step"] == 1
    }
    (child,) = [one["texts"]["self"] for one in events(tmp_path, "candidate") if one["step"] == 1]
    assert set(re.findall(r"Rule: the word for \w+ is \w+", child)) - own


def test_diversity_off_and_on(tmp_path: Path) -> None:
    for diversity in (True, False):
        World.made(level_of).compile(
            operators=[Scripted(("level 20",))],
            diversity=diversity,
            budget=Budget(updates=2),
            metric=level_metric,
            log_dir=tmp_path / str(diversity),
            reflection_minibatch_size=4,
            candidate_selection_strategy=FromSeed(),
        )
    refused = [one["reason"] for one in events(tmp_path / "True", "refused")]
    assert refused == ["it repeats a candidate that is there already"]
    assert not events(tmp_path / "False", "refused")


def test_a_restart_begins_again_from_the_seed(tmp_path: Path) -> None:
    World.made(level_of).compile(
        operators=[Scripted(("level 10", *(f"level 10 {'x' * n}" for n in range(9))))],
        log_dir=tmp_path,
        metric=level_metric,
        reflection_minibatch_size=4,
        budget=Budget(updates=8),
        diversity=Diversity(embedder=None, restart=Restart(patience=2)),
        candidate_selection_strategy="current_best",
    )
    warned = [
        one for one in events(tmp_path, "warning") if "starting again from the seed" in one["text"]
    ]
    assert warned
    seed = events(tmp_path, "candidate")[0]["candidate"]
    (again,) = [one for one in events(tmp_path, "update") if one["step"] == warned[0]["step"]]
    assert again["parent"] == seed


def test_draws_average_several_answers(tmp_path: Path) -> None:
    turn: dict[str, int] = {}

    def moody(request: Any) -> str:
        turn[request.last] = turn.get(request.last, 0) + 1
        return in_kind(request, {"answer": "30" if turn[request.last] % 3 else "60"})

    world = World.made(moody, temperature=1.0)
    with dspy.context(lm=world.task_lm, adapter=dspy.ChatAdapter()):
        combee = world.combee(
            metric=level_metric,
            validation=Validation(draws=3),
            log_dir=tmp_path,
            max_metric_calls=60,
        )
        rows_ = {"trainset": examples(12), "valset": examples(4, 100)}
        report = combee.compile(dspy.Predict("question -> answer"), **rows_).combee_report
    drawn = rows(
        tmp_path,
        "SELECT replicate, count(*) AS n FROM effect WHERE purpose = 'validation' AND step = -1"
        " GROUP BY replicate",
    )
    assert [(row["replicate"], row["n"]) for row in drawn] == [(0, 4), (1, 4), (2, 4)]
    assert report.seed_score == pytest.approx(0.4)
    assert report.rollouts <= 60
