"""Compiling from traces: nothing is run to learn from them, and nothing is compared with them."""

from __future__ import annotations

import logging
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import dspy
import pytest

from combee_dspy import Budget, Privacy, Search, Task, compile_many
from combee_dspy.evaluation import Judge
from combee_dspy.exceptions import ArgumentValueError, JournalMismatchError
from combee_dspy.memory import read_memory
from combee_dspy.records import PredictorCall
from combee_dspy.search._recorded import Recorded
from combee_dspy.testing import ScriptedLM, ScriptedRequest
from combee_dspy.traces import JournalTraces, Selection, Trace
from tests.worlds import (
    ANIMALS,
    TwoSteps,
    World,
    code_word,
    events,
    examples,
    in_kind,
    proposer_answer,
    rows,
)

PROGRAM = "question -> answer"


def trace(number: int, **more: Any) -> Trace:
    animal = ANIMALS[number % len(ANIMALS)]
    fields = {"expected": {"answer": code_word(animal)}, **more}
    inputs = {"question": f"Number {number}: word for {animal}?"}
    return Trace(f"t{number}", inputs, {"answer": "unknown"}, **fields)


TRACES = tuple(map(trace, range(24)))


def compiled(world: World, **kwargs: Any) -> Any:
    """Compile with LMs of a world; what ``Combee.compile`` takes goes there."""
    data = {
        name: kwargs.pop(name)
        for name in ("traces", "trainset", "valset", "heldout", "selection")
        if name in kwargs
    }
    with dspy.context(lm=world.task_lm, adapter=dspy.ChatAdapter()):
        return world.combee(**{"budget": Budget(epochs=1), **kwargs}).compile(
            dspy.Predict(PROGRAM), **{"traces": TRACES, **data}
        )


def test_nothing_is_run_to_learn_from_traces(tmp_path: Path) -> None:
    world = World.made()
    program = compiled(world, log_dir=tmp_path)
    assert not world.task_lm.requests
    text = program.signature.instructions
    assert all(f"the word for {animal} is {code_word(animal)}" in text for animal in ANIMALS)
    assert "not validated" in str(program.combee_report).splitlines()[0]
    assert not program.combee_report.supports_claims
    assert program.combee_report.rollouts == 0


def test_a_limit_on_tokens_cuts_no_update_of_traces() -> None:
    """No rollout tells what one of their rows costs."""
    size, spent = {"reflection_minibatch_size": 6}, compiled(World.made()).combee_report.costs
    budget = Budget(tokens=3 * spent.total.tokens)
    report = compiled(World.made(), budget=budget, **size).combee_report
    assert (report.recorded, report.reason) == (len(TRACES), "all traces are read")


def test_what_was_read_of_traces_stays_though_nothing_validates_it(tmp_path: Path) -> None:
    spent = compiled(World.made(), reflection_minibatch_size=24).combee_report.costs.total.tokens
    budget = Budget(tokens=int(0.7 * spent))
    arguments: dict[str, Any] = {"reflection_minibatch_size": 24, "log_dir": tmp_path}
    program = compiled(World.made(), budget=budget, **arguments)
    assert rows(tmp_path, "SELECT * FROM effect WHERE key LIKE 'decision/cut-call/%'")
    assert "the word for" in program.signature.instructions
    assert "tokens are spent" in program.combee_report.reason
    for more in (arguments, {**arguments, "log_dir": None, "search": Search(replay=str(tmp_path))}):
        again = compiled(World.made(), budget=budget, **more)
        assert again.combee_report.reason == program.combee_report.reason
        assert again.dump_state() == program.dump_state()


def test_no_trace_is_passed_over_once_a_limit_on_cost_has_cut_a_reading(tmp_path: Path) -> None:
    arguments: dict[str, Any] = {
        "reflection_minibatch_size": 6,
        "valset": examples(12, 100),
        "search": Search(staleness=0),
    }
    spent = compiled(World.made(), **arguments).combee_report.costs.total.tokens
    arguments["log_dir"] = tmp_path
    first, second = World.made(), World.made()
    cut = compiled(first, budget=Budget(tokens=spent // 2), **arguments).combee_report
    assert "tokens are spent" in cut.reason
    assert cut.recorded < len(TRACES)
    assert cut.best_score > cut.seed_score
    whole = compiled(second, budget=Budget(tokens=3 * spent), **arguments).combee_report
    assert (whole.recorded, whole.reason) == (len(TRACES), "all traces are read")
    requests = (*first.proposer_lm.requests, *second.proposer_lm.requests)
    asked = " ".join(request.text for request in requests)
    assert all(f"Number {number}:" in asked for number in range(len(TRACES)))
    assert whole.best_score > whole.seed_score


def test_no_budget_is_asked_for_where_nothing_is_bought() -> None:
    unbounded = {"budget": None, "max_metric_calls": None}
    program = compiled(World.made(), **unbounded)
    bounded = compiled(World.made())
    assert program.combee_report.recorded == len(TRACES)
    assert program.signature.instructions == bounded.signature.instructions
    with pytest.raises(ArgumentValueError, match="the run would never stop"):
        compiled(World.made(), valset=examples(6, 100), **unbounded)


def test_recorded_rollouts_are_effects_of_their_own(tmp_path: Path) -> None:
    compiled(World.made(), log_dir=tmp_path)
    assert not rows(tmp_path, "SELECT * FROM effect WHERE kind = 'rollout'")
    recorded = rows(tmp_path, "SELECT * FROM effect WHERE kind = 'recorded' ORDER BY step, id")
    assert {row["example"] for row in recorded} == {trace.id for trace in TRACES}
    assert {row["step"] for row in recorded} == {0, 1, 2}
    served = [lesson for lesson in books(tmp_path) if lesson["state"] == "served"]
    assert {source for lesson in served for source in lesson["sources"]} == {
        trace.id for trace in TRACES
    }


def books(place: Path) -> list[dict[str, Any]]:
    """Return the lessons of the newest book."""
    return list(events(place, "book")[-1]["lessons"])


def test_commits_are_tested_where_there_are_rows(tmp_path: Path) -> None:
    world = World.made()
    program = compiled(world, valset=examples(12, 100), log_dir=tmp_path)
    report = program.combee_report
    assert report.best_score == 1.0
    assert report.recorded == len(TRACES)
    assert "24 recorded rollouts, none bought" in str(report)
    purposes = rows(tmp_path, "SELECT DISTINCT purpose FROM effect WHERE kind = 'rollout'")
    assert [row["purpose"] for row in purposes] == ["validation"]


def test_traces_are_read_before_the_trainset(tmp_path: Path) -> None:
    compiled(
        World.made(),
        traces=TRACES[:6],
        trainset=examples(12, 200),
        valset=examples(6, 100),
        log_dir=tmp_path,
    )
    first_bought, last_recorded = rows(
        tmp_path,
        "SELECT min(step) AS step FROM effect WHERE kind = 'rollout' AND purpose = 'train'"
        " UNION ALL SELECT max(step) FROM effect WHERE kind = 'recorded'",
    )
    assert first_bought["step"] == last_recorded["step"] + 1
    assert rows(tmp_path, "SELECT DISTINCT example FROM effect WHERE purpose = 'train'")


def test_every_predictor_learns_from_every_trace() -> None:
    calls = (
        PredictorCall("first", {"question": "q"}, {"hint": "h"}),
        PredictorCall("Tool.search", {"query": "q"}, {"output": "search failed"}),
        PredictorCall("second", {"question": "q", "hint": "h"}, {"answer": "unknown"}),
    )
    world = World.made()
    with dspy.context(lm=world.task_lm, adapter=dspy.ChatAdapter()):
        program = world.combee(budget=Budget(epochs=1)).compile(
            TwoSteps(), traces=[replace(item, calls=calls) for item in TRACES]
        )
    for _, predictor in program.named_predictors():
        text = predictor.signature.instructions
        assert all(f"the word for {animal} is {code_word(animal)}" in text for animal in ANIMALS)
    readers = [request.text for request in world.proposer_lm.requests if '"Inputs"' in request.text]
    assert readers
    for text in readers:
        assert "search failed" in text, "a reader sees what the other steps did"
        assert "Result of the Whole Program" in text


@pytest.mark.parametrize(
    ("traces", "problem"), [((), "teach nothing"), ((trace(0, score=1.0),), "all went right")]
)
def test_a_trainset_teaches_where_traces_do_not(
    traces: tuple[Trace, ...], problem: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "combee_dspy"):
        program = compiled(World.made(), traces=traces, trainset=examples(12))
    assert "the word for cat is TAC" in program.signature.instructions
    assert problem in caplog.text


def test_rows_that_decide_teach_nothing() -> None:
    valset, heldout = examples(4, 0), examples(4, 4)
    program = compiled(World.made(), valset=valset, heldout=heldout)
    assert "8 have inputs of valset or heldout" in program.combee_report.traces
    assert program.combee_report.recorded == len(TRACES) - 8


RENAMED = {"request": "A question so long that it tells rows apart", "count": 3, "user": "u1"}


class Renaming(dspy.Module):
    """A program whose first predictor gives its input another name."""

    def __init__(self) -> None:
        super().__init__()
        self.reply = dspy.Predict("request -> answer")

    def forward(self, question: str) -> dspy.Prediction:
        return self.reply(request=question)


@pytest.mark.parametrize("relabelled", [{}, {"answer": "another label"}])
@pytest.mark.parametrize(
    ("student", "beginning", "privacy"),
    [
        (dspy.Predict(PROGRAM), "From ann@example.org. ", Privacy(texts="redacted")),
        (Renaming(), "so " * 1_000, None),
    ],
)
def test_a_journal_tells_no_row_that_decides(
    student: dspy.Module,
    beginning: str,
    privacy: Privacy | None,
    relabelled: dict[str, str],
    tmp_path: Path,
) -> None:
    def asked(first: int) -> list[dspy.Example]:
        return [
            row.copy(question=beginning + row.question).with_inputs("question")
            for row in examples(6, first)
        ]

    world, valset = World.made(), asked(100)
    with dspy.context(lm=world.task_lm, adapter=dspy.ChatAdapter()):
        world.combee(budget=Budget(epochs=1), log_dir=tmp_path, privacy=privacy).compile(
            student, trainset=asked(0), valset=valset
        )
        report = (
            world.combee(budget=Budget(epochs=1))
            .compile(
                student,
                traces=JournalTraces(str(tmp_path)),
                valset=[row.copy(**relabelled).with_inputs("question") for row in valset],
            )
            .combee_report
        )
    kept = rows(tmp_path, "SELECT 1 FROM effect WHERE kind = 'rollout' AND split = 'validation'")
    assert kept
    assert f"{len(kept)} have inputs of valset" in report.traces


@pytest.mark.parametrize(
    ("row", "inputs"),
    [
        ({"question": "Call  ann@example.org"}, {"question": "call [email]", "user": "u1"}),
        ({"question": 3}, {"question": "3"}),
        ({"question": ["a", "ö"]}, {"question": '["a","ö"]'}),
        ({"question": "Why?", "hint": ""}, {"question": "Why?"}),
        ({"question": "Why?", "hint": "As"}, {"question": "Why?"}),
        ({"question": dspy.History(messages=[])}, {"question": {"messages": []}}),
        ({"question": "a question so long that it tells rows apart", "n": 3}, RENAMED),
    ],
)
def test_a_row_that_decides_is_recognised(row: dict[str, Any], inputs: dict[str, Any]) -> None:
    example = dspy.Example(**row, answer="TNA").with_inputs(*row)
    report = compiled(
        World.made(task=lambda request: in_kind(request, {"answer": "TNA"})),
        traces=(replace(trace(0), inputs=inputs), trace(1)),
        valset=[example],
        metric=lambda *_: 1.0,
    ).combee_report
    assert "1 have inputs of valset" in report.traces
    assert report.recorded == 1


def test_another_question_about_the_same_text_is_another_row() -> None:
    text = "a text that several rows ask about, each another thing"
    row = dspy.Example(context=text, question="Who?", answer="TNA").with_inputs(
        "context", "question"
    )
    other = replace(trace(0), inputs={"document": text, "question": "When?"})
    report = compiled(World.made(), traces=(other, trace(1)), valset=[row]).combee_report
    assert report.recorded == 2


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        ({"score": 0.0, "expected": {}}, ""),
        ({"feedback": "Rule: the word for ant is TNA", "expected": {}}, ""),
        ({"error": "ValueError: no", "expected": {}}, ""),
        ({"expected": {}}, "teach nothing"),
        ({"score": 1.0}, "all went right"),
        ({"inputs": {"other": "x"}}, "teach nothing"),
    ],
)
def test_what_a_trace_must_say(more: dict[str, Any], problem: str) -> None:
    traces = [trace(number) for number in range(6)]
    traces = [replace(item, **more) for item in traces]
    if problem:
        with pytest.raises(ArgumentValueError, match=problem):
            compiled(World.made(), traces=traces)
    else:
        assert compiled(World.made(), traces=traces).combee_report.recorded


def test_a_metric_scores_what_nobody_has_judged() -> None:
    world = World.made()
    traces = [trace(number, expected={}) for number in range(6)]
    called = []

    def metric(gold: Any, pred: Any, *_: Any) -> Any:
        called.append(pred.answer)
        return dspy.Prediction(score=0.0, feedback="Rule: the word for ant is TNA")

    program = compiled(world, traces=traces, metric=metric, selection=Selection(unjudged=True))
    assert called == ["unknown"] * 6
    assert "the word for ant is TNA" in program.signature.instructions


def test_a_judge_scores_what_nobody_has_judged_and_is_paid() -> None:
    def judge(request: ScriptedRequest) -> str:
        assert "ann@example.org" not in request.text
        animal = re.findall(r"word for (\w+)\?", request.last)[-1]
        feedback = f"Rule: the word for {animal} is {code_word(animal)}"
        return in_kind(request, {"feedback": feedback, "score": 0.0})

    lm = ScriptedLM(judge, model="scripted/judge")
    traces = [
        replace(trace(number, expected={}), outputs={"answer": "Ask ann@example.org"})
        for number in range(4)
    ]
    program = compiled(
        World.made(),
        traces=traces,
        metric=Judge("The code word.", lm=lm),
        selection=Selection(tokens=5_000),
    )
    assert "the word for cat is TAC" in program.signature.instructions
    assert program.combee_report.costs.by_role["evaluator"].calls == 4


def test_a_metric_that_raises_leaves_what_was_said(tmp_path: Path) -> None:
    def metric(gold: Any, pred: Any, *_: Any) -> Any:
        raise ValueError("no")

    said = {"feedback": "Rule: the word for ant is TNA"}
    program = compiled(World.made(), traces=[trace(0, **said)], metric=metric, log_dir=tmp_path)
    assert "the word for ant is TNA" in program.signature.instructions
    assert [event["error"] for event in events(tmp_path, "error")] == ["ValueError: no"]


def test_who_answered_reads() -> None:
    traces = [trace(0, prompt="p", model="m"), trace(1), trace(2, model="scripted/task")]
    report = compiled(World.made(), traces=traces).combee_report
    assert "1 (33% of those read) were answered by another prompt or model" in report.traces
    assert "1 do not say who answered" in report.traces


def test_a_run_that_goes_on_reads_nothing_twice(tmp_path: Path) -> None:
    world = World.made()
    first = compiled(world, log_dir=tmp_path)
    spent = world.asked
    again = compiled(world, log_dir=tmp_path)
    assert world.asked == spent
    assert again.signature.instructions == first.signature.instructions


def test_a_run_that_goes_on_leaves_what_its_source_has_got_since(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def compiled_from(traces: tuple[Trace, ...]) -> Any:
        return compiled(World.made(), traces=traces, log_dir=tmp_path)

    with monkeypatch.context() as broken, pytest.raises(ZeroDivisionError):
        broken.setattr(Recorded, "_score", lambda *_: 1 / 0)
        compiled_from(TRACES)
    grown = (*TRACES, *map(trace, range(24, 30)))
    program = compiled_from(grown)
    assert program.combee_report.recorded == len(TRACES)
    with pytest.raises(JournalMismatchError, match="traces"):
        compiled_from(grown)
    assert compiled_from(TRACES).combee_report.recorded == len(TRACES)


def test_several_texts_cannot_be_compared_on_traces() -> None:
    with pytest.raises(ArgumentValueError, match="teach a trunk"):
        compiled(World.made(), search=Search(keep="pareto"))


def test_keys_and_addresses_reach_no_reader(tmp_path: Path) -> None:
    world = World.made()
    traces = [trace(0, feedback="Ask ann@example.org. Rule: the word for ant is TNA")]
    compiled(world, traces=traces, log_dir=tmp_path)
    assert not any("ann@example.org" in request.text for request in world.proposer_lm.requests)
    assert not rows(tmp_path, "SELECT 1 FROM effect WHERE value LIKE '%ann@example%'")


def test_a_playbook_learns_from_whole_trajectories(tmp_path: Path) -> None:
    def reflect(request: ScriptedRequest) -> str:
        if "bullet_tags" not in request.text:
            return proposer_answer(request)
        rule = re.findall(r"word for (\w+)\?", request.last)[0]
        insight = f"Rule: the word for {rule} is {code_word(rule)}"
        return in_kind(request, {"bullet_tags": {}, "section": "", "key_insight": insight})

    world = World.made(proposer=reflect)
    program = compiled(world, artifact="playbook", log_dir=tmp_path)
    assert not world.task_lm.requests
    assert "the word for lynx is XNYL" in program.signature.instructions


def test_a_memory_that_nothing_validates_shows_as_many_lessons_as_it_was_learned_with() -> None:
    program = compiled(World.made(), artifact="memory")
    assert read_memory(program.signature.instructions, 0).k == 4


def test_tasks_of_one_service_have_traces_of_their_own() -> None:
    world = World.made()
    tasks = [
        Task(name, dspy.Predict(PROGRAM), traces=TRACES[start::2])
        for start, name in enumerate(("even", "odd"))
    ]
    with dspy.context(lm=world.task_lm, adapter=dspy.ChatAdapter()):
        results = compile_many(tasks, combee=world.combee(budget=Budget(epochs=1)))
    assert [result.report.recorded for result in results if result.report] == [12, 12]
