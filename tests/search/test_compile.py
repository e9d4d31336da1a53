"""Programs of many kinds, compiled as a user would."""

from __future__ import annotations

import asyncio
import base64
import itertools
import re
import threading
from pathlib import Path
from typing import Any, Literal

import dspy
import numpy as np
import pydantic
import pytest

from combee_dspy import Budget, Combee, Guards, Search
from combee_dspy.artifacts import Instruction
from combee_dspy.exceptions import JournalMismatchError
from combee_dspy.search._candidates import Candidate
from combee_dspy.search._pareto import Turns
from combee_dspy.search._rollouts import Programs
from tests.slow import slow_but
from tests.worlds import (
    TwoSteps,
    World,
    events,
    examples,
    gate_metric,
    gate_rows,
    gepa_metric,
    in_kind,
    metric,
    rows,
    task_answer,
)


@pytest.mark.parametrize("staleness", slow_but((1,), [0, 1, 2]))
@pytest.mark.parametrize("keep", ["pareto", "trunk"])
def test_it_learns_what_the_service_can_know(service: Any, keep: Any, staleness: int) -> None:
    combee = Combee(
        gate_metric,
        reflection_lm=service.lm(),
        budget=Budget(epochs=1),
        search=Search(keep=keep, staleness=staleness),
        reflection_minibatch_size=12,
        tracker=(),
    )
    data = {"trainset": gate_rows(0, 36), "valset": gate_rows(36, 48), "heldout": gate_rows(60, 84)}
    with dspy.context(lm=service.lm()):
        report = combee.compile(dspy.Predict("question -> answer"), **data).combee_report
    assert report.best_score > report.seed_score
    assert report.heldout.after - report.heldout.before > 0.3
    assert (report.reason, report.updates) == ("1 epoch is done", 3)


def test_a_program_that_a_run_keeps_remembers_its_last_calls_and_no_more(world: World) -> None:
    student = dspy.Predict("question -> answer")
    programs = Programs(lambda texts: student.deepcopy(), metric, failure_score=0.0)
    program = programs.of(Candidate({"self": "Answer."}))
    with dspy.context(lm=world.task_lm, adapter=dspy.ChatAdapter()):
        for number in range(110):
            program(question=f"Number {number}: word for ant?")
    assert len(program.history) == 100
    assert "Number 109" in str(program.history[-1]["messages"])


def test_a_result_carries_its_report_and_the_student_stays_as_it_was(
    world: World, tmp_path: Path
) -> None:
    student = dspy.Predict("question -> answer")
    before = student.dump_state()
    program = world.compile(student, heldout=12, log_dir=tmp_path)
    report = program.combee_report
    assert report.seed_score == report.heldout.before == pytest.approx(2 / 12)
    assert report.best_score == report.heldout.after == pytest.approx(1.0)
    assert report.supports_claims
    assert report.texts == {"self": program.signature.instructions}
    assert "the word for lynx is XNYL" in program.signature.instructions
    assert program._compiled
    assert student.dump_state() == before
    assert report.journal == str(tmp_path / "journal.sqlite")
    kinds = {"candidate", "validated", "batch", "scan", "update", "stopped", "heldout", "receipt"}
    assert kinds <= {row["kind"] for row in rows(tmp_path, "SELECT kind FROM event")}
    (run,) = rows(tmp_path, "SELECT * FROM run")
    assert (run["name"], run["state"]) == ("main", "finished")


def test_detailed_results_are_gepas(world: World) -> None:
    results = world.compile(track_stats=True, track_best_outputs=True).detailed_results
    assert results.best_idx > 0
    assert results.val_aggregate_scores[results.best_idx] == 1.0
    seed = "Given the fields `question`, produce the fields `answer`."
    assert results.candidates[0].signature.instructions == seed
    assert results.parents[0] == [None]
    assert len(results.best_outputs_valset) == 12
    assert results.total_metric_calls > 12


def test_without_a_valset_no_rollout_is_bought_for_both_splits(
    world: World, tmp_path: Path
) -> None:
    program = world.compile(validation=0, train=12, log_dir=tmp_path, seed=2)
    assert "No valset was given" in program.combee_report.warnings[0]
    sql = "SELECT candidate, example, replicate FROM effect WHERE kind = 'rollout'"
    rollouts = [tuple(row.values()) for row in rows(tmp_path, sql)]
    assert len(set(rollouts)) == len(rollouts) == len(world.task_lm.requests)


def test_cache_off_asks_for_feedback_on_every_answer_anew() -> None:
    tries = itertools.count()

    @gepa_metric
    def repeating(gold: Any, pred: Any, pred_name: str | None) -> Any:
        return dspy.Prediction(score=0.0, feedback=f"It said {pred.answer}.")

    world = World.made(
        lambda request: in_kind(request, {"answer": f"try{next(tries)}"}),
        lambda request: in_kind(request, {"lessons": []}),
    )
    world.compile(
        train=4,
        validation=2,
        metric=repeating,
        cache=False,
        reflection_minibatch_size=4,
        budget=Budget(updates=3),
        max_metric_calls=100,
        artifact=Instruction(view="all"),
    )
    # Each record shows an answer and the feedback on it.
    shown = [re.findall(r"try\d+", request.text) for request in world.proposer_lm.requests]
    assert [answers[::2] for answers in shown] == [answers[1::2] for answers in shown]
    assert len(set(itertools.chain(*shown))) == 3 * 4


def test_few_shot_swap_alone_needs_no_proposer(world: World) -> None:
    program = world.compile(operators=["few-shot-swap"], reflection_lm=None)
    assert not world.proposer_lm.requests
    assert program.demos
    assert {demo.answer for demo in program.demos} <= {"TNA", "EEB"}, "two animals are known"


@pytest.mark.parametrize(
    ("selector", "staleness", "edited"),
    [
        ("all", 1, {("first", "second")}),
        ("own", 0, {("second",)}),
        pytest.param("all", 0, {("first", "second")}, marks=pytest.mark.slow),
        pytest.param("round_robin", 0, {("first",), ("second",)}, marks=pytest.mark.slow),
        pytest.param("round_robin", 1, {("first",), ("second",)}, marks=pytest.mark.slow),
    ],
)
def test_a_selector_chooses_among_several_predictors(
    world: World, selector: str, staleness: int, edited: Any, tmp_path: Path
) -> None:
    def own(state: Any, trajectories: Any, scores: Any, index: int, candidate: Any) -> list[str]:
        assert len(trajectories) == len(scores)
        assert trajectories[0]["prediction"] is not None
        assert set(candidate) == {"first", "second"}
        return ["second"]

    report = world.compile(
        TwoSteps(),
        component_selector=own if selector == "own" else selector,
        max_metric_calls=300,
        search=Search(staleness=staleness),
        log_dir=tmp_path,
        reflection_minibatch_size=8,
    ).combee_report
    assert report.best_score > report.seed_score
    updates = [event for event in events(tmp_path, "update") if not event["skipped"]]
    assert {tuple(event["components"]) for event in updates} == edited


def test_components_take_turns_while_updates_overlap(world: World, tmp_path: Path) -> None:
    world.compile(
        TwoSteps(),
        max_metric_calls=400,
        search=Search(staleness=2),
        log_dir=tmp_path,
        reflection_minibatch_size=4,
        skip_perfect_score=False,
        operators=["reorder"],
        train=48,
    )
    components = [event["components"] for event in events(tmp_path, "update")]
    assert components[:4] == [["first"], ["second"], ["first"], ["second"]]


def test_a_child_goes_on_with_the_component_whose_turn_it_is_for_its_parent() -> None:
    turns = Turns(("first", "second"), "round_robin")
    assert turns.take(0) == ("first",)
    turns.add_child(0)
    assert turns.take(1) == turns.take(0) == ("second",)
    turns.give_back(1)
    assert turns.take(1) == ("second",), "an update that learned nothing had no turn"


def test_readers_get_a_call_or_the_whole_rollout(tmp_path: Path) -> None:
    for reads in ("call", "rollout"):
        world = World.made()
        search = Search(reads=reads)
        world.compile(TwoSteps(), max_metric_calls=60, search=search, train=12)
        texts = [request.text for request in world.proposer_lm.requests]
        readers = [text for text in texts if "Inputs" in text and "Feedback" in text]
        assert readers
        for text in readers:
            assert ("Result of the Whole Program" in text) == (reads == "rollout")
            assert ("Other Steps" in text) == (reads == "rollout")
    World.made().compile(TwoSteps(), max_metric_calls=60, train=12, log_dir=tmp_path)
    with pytest.raises(JournalMismatchError, match="search"):
        World.made().compile(
            TwoSteps(), max_metric_calls=60, train=12, log_dir=tmp_path, search=search
        )


def test_the_other_calls_of_a_rollout_may_hold_arrays() -> None:
    class Twice(dspy.Module):
        def __init__(self) -> None:
            super().__init__()
            self.ask = dspy.Predict("question, place -> answer")

        def forward(self, question: str) -> dspy.Prediction:
            return [self.ask(question=question, place=np.arange(i, i + 2)) for i in range(2)][-1]

    world = World.made()
    world.compile(Twice(), max_metric_calls=30, search=Search(reads="rollout"))
    assert any("Other Steps" in request.text for request in world.proposer_lm.requests)


def test_react_with_tools(world: World) -> None:
    calls: list[str] = []

    def lookup(animal: str) -> str:
        """Look an animal up."""
        calls.append(animal)
        return f"{animal} is an animal"

    agent = dspy.ReAct("question -> answer", tools=[lookup], max_iters=3)
    program = world.compile(agent, max_metric_calls=200, component_selector="all", train=12)
    assert calls
    assert program.combee_report.best_score > program.combee_report.seed_score
    assert program.tools["lookup"].func is lookup


class Order(pydantic.BaseModel):
    animal: str
    urgent: bool = False


class Typed(dspy.Signature):
    """Answer about a picture and an order."""

    picture: dspy.Image = dspy.InputField()
    order: Order = dspy.InputField()
    question: str = dspy.InputField()
    answer: Literal["TAC", "GOD", "unknown"] = dspy.OutputField()


def test_typed_and_multi_modal_fields(world: World) -> None:
    pixel = f"data:image/png;base64,{base64.b64encode(b'a picture').decode()}"
    data = [
        dspy.Example(
            picture=dspy.Image(url=pixel),
            order=Order(animal=animal),
            question=f"{number}: word for {animal}?",
            answer=animal[::-1].upper(),
        ).with_inputs("picture", "order", "question")
        for number, animal in enumerate(["cat", "dog"] * 8)
    ]
    with dspy.context(lm=world.task_lm, adapter=dspy.ChatAdapter()):
        program = world.combee().compile(dspy.Predict(Typed), trainset=data[:10], valset=data[10:])
    assert program.combee_report.best_score == 1.0
    # Images reach the proposer as images, not as text.
    assert any("<Image" in request.text for request in world.proposer_lm.requests)


def test_a_perfect_minibatch_costs_its_rollouts_and_nothing_else(
    world: World, tmp_path: Path
) -> None:
    known = [row for row in examples(48) if row.answer in ("TNA", "EEB")]

    @gepa_metric
    def without_feedback(gold: Any, pred: Any, pred_name: str | None) -> Any:
        assert pred_name is None
        return metric(gold, pred)

    combee = world.combee(metric=without_feedback, log_dir=tmp_path, reflection_minibatch_size=4)
    student = dspy.Predict("question -> answer")
    with dspy.context(lm=world.task_lm, adapter=dspy.ChatAdapter()):
        program = combee.compile(student, trainset=known, valset=examples(6, 100))
    assert all(event["skipped"] for event in events(tmp_path, "update"))
    assert not events(tmp_path, "error")
    assert not world.proposer_lm.requests
    assert program.combee_report.reason.endswith("every training row was right when it ran last")
    assert program.combee_report.rollouts == len(known) + 6


def test_a_program_that_fails_scores_the_failure_score_and_teaches(
    world: World, tmp_path: Path
) -> None:
    class Fragile(dspy.Module):
        def __init__(self) -> None:
            super().__init__()
            self.step = dspy.Predict("question -> answer")

        def forward(self, question: str) -> dspy.Prediction:
            answer = self.step(question=question)
            if "cat" in question:
                raise RuntimeError("Rule: the word for cat is TAC")
            return answer

    world.compile(Fragile(), failure_score=-1.0, log_dir=tmp_path, train=12)
    sql = "SELECT score, failed_in FROM effect WHERE kind = 'rollout' AND error IS NOT NULL"
    assert {tuple(row.values()) for row in rows(tmp_path, sql)} == {(-1.0, "program")}
    shown = "After this step the program failed"
    assert any(shown in request.text for request in world.proposer_lm.requests)


@pytest.mark.parametrize("is_taught", [True, False])
def test_answers_that_do_not_parse_become_feedback_where_a_user_wants_it(is_taught: bool) -> None:
    def mumbling(request: Any) -> str:
        mumbles = "cat" in request.last and "TAC" not in request.system
        return "no field at all" if mumbles else task_answer(request)

    world = World.made(mumbling)
    report = world.compile(add_format_failure_as_feedback=is_taught, train=12).combee_report
    assert report.best_score > report.seed_score
    text = "The answer could not be read. It must have this structure"
    assert any(text in request.text for request in world.proposer_lm.requests) == is_taught


@pytest.mark.parametrize("warns", [True, False])
def test_a_score_that_depends_on_the_predictor_is_warned_of_once(
    world: World, tmp_path: Path, warns: bool
) -> None:
    @gepa_metric
    def moody(gold: Any, pred: Any, pred_name: str | None) -> Any:
        return dspy.Prediction(score=float(pred_name is None) / 2, feedback="so so")

    world.compile(
        metric=moody,
        log_dir=tmp_path,
        max_metric_calls=40,
        validation=4,
        warn_on_score_mismatch=warns,
    )
    texts = [event["text"] for event in events(tmp_path, "warning")]
    assert sum("warn_on_score_mismatch" in text for text in texts) == warns


def test_a_custom_proposer_gets_gepas_minibatch_and_visible_texts(world: World) -> None:
    calls = []

    def proposer(candidate: Any, reflective_dataset: Any, components_to_update: Any) -> Any:
        records = reflective_dataset["self"]
        calls.append(records)
        assert set(candidate) == {"self"}
        assert len(records) <= 3
        assert isinstance(records[0]["Inputs"]["question"], str)
        return {name: f"{candidate[name]}\nthe word for cat is TAC" for name in candidate}

    program = world.compile(instruction_proposer=proposer, reflection_lm=None, max_metric_calls=60)
    assert calls
    assert "TAC" in program.signature.instructions


def test_compile_in_a_thread_and_inside_a_running_loop(world: World) -> None:
    async def inside() -> Any:
        return world.compile(max_metric_calls=60)

    programs: list[Any] = [asyncio.run(inside())]
    thread = threading.Thread(target=lambda: programs.append(world.compile(max_metric_calls=60)))
    thread.start()
    thread.join()
    assert programs[0].dump_state() == programs[1].dump_state()
    assert programs[0].combee_report.best_score > programs[0].combee_report.seed_score


def test_guards_hold_in_a_run(world: World, tmp_path: Path) -> None:
    seed = "Give the code word. Never guess."
    student = dspy.Predict(dspy.Signature("question -> answer", seed))
    guards = Guards(keep=("Never guess.",), max_tokens=40)
    inserted = world.compile(student, guards=guards).signature.instructions
    assert "Never guess." in inserted
    assert "Lessons learned" in inserted
    assert len(inserted) < 40 * 4
    # The proposer writes the instruction anew, and forgets what must stay.
    rewritten = world.compile(student, guards=guards, operators=["rewrite"], log_dir=tmp_path)
    assert rewritten.signature.instructions == seed
    assert any("Never guess." in event["reason"] for event in events(tmp_path, "refused"))


def test_no_file_holds_a_key(tmp_path: Path) -> None:
    secret = "sk-thisisthekeyofthetest0001"  # not a key of anything
    world = World.made(
        proposer=lambda request: in_kind(request, {"lessons": [f"Rule: use {secret} always"]})
    )
    world.proposer_lm.engine.secrets = (secret,)
    world.compile(log_dir=tmp_path, max_metric_calls=60)
    assert rows(tmp_path, "SELECT 1 FROM effect WHERE kind = 'call'")
    files = [file for file in tmp_path.rglob("*") if file.is_file()]
    assert not [file for file in files if secret.encode() in file.read_bytes()]
