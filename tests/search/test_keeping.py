"""Children of a front: who makes them, what screens do, and where they start again."""

from __future__ import annotations

import re
import threading
from pathlib import Path
from typing import Any

import dspy
import pytest

from combee_dspy import Budget, Diversity, Search, Validation
from combee_dspy.diversity import Restart
from combee_dspy.operators import Operator
from combee_dspy.records import Edit, Refusal
from tests.worlds import World, events, in_kind, proposer_answer, rows, task_answer


class Scripted(Operator):
    """Writes one text after the other, whatever was learned."""

    name = "scripted"
    needs_lessons = False
    near_parent = True

    def __init__(self, texts: tuple[str, ...] = ()) -> None:
        self.texts = texts

    async def apply(self, material: Any, context: Any) -> Edit:
        return Edit(instruction=self.texts[min(context.update, len(self.texts) - 1)])


class Refusing(Scripted):
    needs_lessons = True

    async def apply(self, material: Any, context: Any) -> Any:
        return Refusal(f"never, says {self.texts[0]}")


def level_of(request: Any) -> str:
    """Answer with the level that the instruction names."""
    levels = re.findall(r"level (\d+)", request.system)
    return in_kind(request, {"answer": levels[0] if levels else "0"})


def level_metric(
    gold: Any, pred: Any, trace: Any = None, pred_name: Any = None, pred_trace: Any = None
) -> Any:
    """Score what the instruction's level says; some questions ask for an even one."""
    level = int(pred.answer)
    score = float(level % 2 == 0) if "Number 9" in gold.question else level / 100
    return dspy.Prediction(score=score, feedback="higher")


class FromSeed:
    """Every parent is the student."""

    def select_candidate_idx(self, state: Any) -> int:
        return 0


def climb(folder: Path, *texts: str, start: str = "", **arguments: Any) -> None:
    """Run updates that write these texts in turn, on questions that score the level of a text."""
    World.made(level_of).compile(
        dspy.Predict(dspy.Signature("question -> answer", start)) if start else None,
        **{
            "operators": [Scripted(texts)],
            "metric": level_metric,
            "log_dir": folder,
            "reflection_minibatch_size": 4,
            "budget": Budget(updates=len(texts)),
            "diversity": False,
            **arguments,
        },
    )


def made_by(folder: Path) -> list[tuple[int, str]]:
    """Return the update and the operator of each child."""
    children = [event for event in events(folder, "candidate") if event["step"] >= 0]
    return [(event["step"], event["operator"]) for event in children]


def test_each_operator_makes_a_child_unless_fewer_are_wanted(world: World, tmp_path: Path) -> None:
    operators = ["insert", "few-shot-swap", "rewrite"]
    shared: dict[str, Any] = {"operators": operators, "reflection_minibatch_size": 12}
    world.compile(log_dir=tmp_path / "all", max_metric_calls=200, **shared)
    first = [operator for step, operator in made_by(tmp_path / "all") if step == 0]
    assert sorted(first) == sorted(operators)
    world.compile(log_dir=tmp_path / "single", search=Search(children=1), **shared)
    steps = [step for step, _ in made_by(tmp_path / "single")]
    assert len(steps) == len(set(steps))


@pytest.mark.parametrize(
    ("operators", "children", "maker"),
    [([Refusing(("a",)), "insert"], 1, ["insert"]), ([Refusing((a,)) for a in "abc"], 2, [])],
)
def test_where_an_operator_is_refused_the_next_has_its_turn_and_each_has_one(
    operators: list[Any], children: int, maker: list[str], world: World, tmp_path: Path
) -> None:
    world.compile(
        operators=operators,
        search=Search(children=children),
        budget=Budget(updates=1),
        reflection_minibatch_size=6,
        log_dir=tmp_path,
    )
    assert [operator for _, operator in made_by(tmp_path)] == maker
    reasons = sorted(event["reason"] for event in events(tmp_path, "refused"))
    possible = [f"never, says {each.texts[0]}" for each in operators if each != "insert"]
    assert reasons == possible or (maker and not reasons)


def test_children_are_made_while_the_student_is_validated() -> None:
    tried = threading.Event()
    before: list[bool] = []

    def answer(request: Any) -> str:
        if "the word for" in request.system:
            tried.set()  # a child is on its screen
        elif int(re.findall(r"Number (\d+)", request.last)[-1]) >= 100:
            before.append(tried.wait(2))
        return task_answer(request)

    report = (
        World.made(answer)
        .compile(
            num_threads=24,
            reflection_minibatch_size=6,
            budget=Budget(updates=1),
            validation_options=Validation(probe=False),
        )
        .combee_report
    )
    assert report.seed_score == pytest.approx(2 / 12)
    assert all(before), "nothing was tried before the student's scores were there"


@pytest.mark.parametrize("keep", ["pareto", "trunk"])
def test_the_student_is_validated_while_the_first_updates_learn(keep: Any) -> None:
    validated = threading.Event()
    beside: list[bool] = []

    def answer(request: Any) -> str:
        if int(re.findall(r"Number (\d+)", request.last)[-1]) >= 100:
            validated.set()
        return task_answer(request)

    def proposer(request: Any) -> str:
        beside.append(validated.wait(2))
        return proposer_answer(request)

    World.made(answer, proposer=proposer).compile(
        num_threads=24,
        reflection_minibatch_size=6,
        budget=Budget(updates=4),
        search=Search(keep=keep, staleness=1),
        validation_options=Validation(probe=False),
    )
    assert beside and all(beside)


def test_each_epoch_draws_every_row_once_in_an_order_of_its_own(world: World) -> None:
    minibatches: list[list[int]] = []

    class Sampled:
        def on_minibatch_sampled(self, event: Any) -> None:
            minibatches.append(event["minibatch_ids"])

    world.compile(
        gepa_kwargs={"callbacks": [Sampled()]},
        budget=Budget(epochs=2),
        reflection_minibatch_size=6,
        skip_perfect_score=False,
        train=12,
    )
    first, second = minibatches[0] + minibatches[1], minibatches[2] + minibatches[3]
    assert sorted(first) == sorted(second) == list(range(12))
    assert first != second


class Listener:
    """Notes gepa's iterations by what happened in them."""

    def __init__(self) -> None:
        self.drawn: dict[int, Any] = {}
        self.accepted: dict[int, int] = {}
        self.validated: dict[int, int] = {}

    def on_minibatch_sampled(self, event: Any) -> None:
        self.drawn[event["iteration"]] = event["minibatch_ids"]

    def on_valset_evaluated(self, event: Any) -> None:
        if event["candidate_idx"]:
            self.validated[event["candidate_idx"]] = event["iteration"]

    def on_candidate_accepted(self, event: Any) -> None:
        self.accepted[event["new_candidate_idx"]] = event["iteration"]

    def on_optimization_end(self, event: Any) -> None:
        self.notes = {note["i"] + 1: note for note in event["final_state"].full_program_trace}


def test_gepas_notes_stand_at_the_iteration_of_their_update(world: World) -> None:
    listener = Listener()
    world.compile(
        gepa_kwargs={"callbacks": [listener]},
        reflection_minibatch_size=4,
        budget=Budget(updates=5),
        skip_perfect_score=False,
    )
    notes = listener.notes
    assert len(listener.drawn) == 5
    assert {place: note["subsample_ids"] for place, note in notes.items()} == listener.drawn
    programs = {
        note["new_program_idx"]: place for place, note in notes.items() if "new_program_idx" in note
    }
    assert listener.accepted
    assert programs == listener.accepted == listener.validated


def test_a_child_of_a_small_minibatch_must_beat_its_parent_on_it(tmp_path: Path) -> None:
    texts = ("level 20", "level 20 again", "level 60")
    climb(tmp_path, *texts, search=Search(staleness=0))
    screens = events(tmp_path, "screened")
    assert [(event["accepted"], event["rows"]) for event in screens] == [
        (True, 4),
        (False, 4),
        (True, 4),
    ]
    assert "is not above its parent's" in screens[1]["reason"]
    assert [event["step"] for event in events(tmp_path, "validated")] == [-1, 0, 2]


def test_a_child_of_a_large_minibatch_is_refused_only_where_it_is_worse(tmp_path: Path) -> None:
    large: dict[str, Any] = {"reflection_minibatch_size": 12, "search": Search(screen=6)}
    climb(tmp_path, "level 24.", "level 2", start="level 24", **large)
    screens = events(tmp_path, "screened")
    assert [(event["accepted"], event["rows"]) for event in screens] == [(True, 6), (False, 6)]
    assert "6 losses" in screens[1]["reason"]


@pytest.mark.parametrize("operator", ["insert", "rewrite"])
def test_a_child_holds_what_the_children_of_others_have_learned(
    tmp_path: Path, operator: str
) -> None:
    World.made().compile(
        log_dir=tmp_path,
        operators=[operator],
        reflection_minibatch_size=6,
        budget=Budget(updates=2),
        candidate_selection_strategy=FromSeed(),
    )
    own = {
        lesson["text"]
        for scan in events(tmp_path, "scan")
        for lesson in scan["lessons"]
        if scan["step"] == 1
    }
    (child,) = [
        event["texts"]["self"] for event in events(tmp_path, "candidate") if event["step"] == 1
    ]
    assert set(re.findall(r"Rule: the word for \w+ is \w+", child)) - own


@pytest.mark.parametrize("operator", ["insert", "rewrite"])
def test_children_differ_in_what_they_hold(tmp_path: Path, operator: str) -> None:
    # Were all that was learned in every child, a lesson that harms would be in each.
    World.made().compile(
        log_dir=tmp_path,
        operators=[operator],
        reflection_minibatch_size=3,
        budget=Budget(updates=5),
        candidate_selection_strategy=FromSeed(),
    )
    rules = {
        event["step"]: set(re.findall(r"Rule: the word for \w+ is \w+", event["texts"]["self"]))
        for event in events(tmp_path, "candidate")
        if event["step"] >= 0
    }
    first, *_, last = sorted(rules)
    assert len(rules) > 3 and rules[first] - rules[last]


@pytest.mark.parametrize(
    ("diversity", "reasons"),
    [(True, ["it repeats a candidate that is there already"]), (False, [])],
)
def test_a_repetition_is_refused_unless_diversity_is_off(
    diversity: bool, reasons: list[str], tmp_path: Path
) -> None:
    arguments = {"diversity": diversity, "candidate_selection_strategy": FromSeed()}
    climb(tmp_path, "level 20", "level 20", **arguments)
    assert [event["reason"] for event in events(tmp_path, "refused")] == reasons


def test_a_restart_begins_again_from_the_seed(tmp_path: Path) -> None:
    climb(
        tmp_path,
        "level 10",
        *(f"level 10 {'x' * count}" for count in range(7)),
        diversity=Diversity(embedder=None, restart=Restart(patience=2)),
        candidate_selection_strategy="current_best",
    )
    (warning, *_) = [
        event
        for event in events(tmp_path, "warning")
        if "starting again from the seed" in event["text"]
    ]
    seed = events(tmp_path, "candidate")[0]["candidate"]
    parents = {event["step"]: event["parent"] for event in events(tmp_path, "update")}
    assert parents[warning["step"]] == seed


def test_draws_average_several_answers(tmp_path: Path) -> None:
    turns: dict[str, int] = {}

    def moody(request: Any) -> str:
        turns[request.last] = turns.get(request.last, 0) + 1
        return in_kind(request, {"answer": "30" if turns[request.last] % 3 else "60"})

    report = (
        World.made(moody, temperature=1.0)
        .compile(
            metric=level_metric,
            validation_options=Validation(draws=3),
            train=12,
            validation=4,
            log_dir=tmp_path,
            max_metric_calls=60,
        )
        .combee_report
    )
    drawn = rows(
        tmp_path,
        "SELECT replicate, count(*) AS n FROM effect WHERE purpose = 'validation' AND step = -1"
        " GROUP BY replicate",
    )
    assert [(row["replicate"], row["n"]) for row in drawn] == [(0, 4), (1, 4), (2, 4)]
    assert report.seed_score == pytest.approx(0.4)
    assert report.rollouts <= 60
