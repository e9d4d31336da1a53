from __future__ import annotations

import logging
import re
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import dspy
import gepa
import pytest
from gepa import EvaluationBatch

from combee_dspy.aggregators import Aggregator, ParallelScan, SingleCall
from combee_dspy.events import Event, ScanFinished
from combee_dspy.exceptions import ArgumentTypeError, ArgumentValueError
from combee_dspy.operators import FewShotSwap, Insert, Operator, OperatorInput
from combee_dspy.records import Edit, FailedCall, Lesson, Lessons, Reflection, Refusal
from combee_dspy.reducer import CombeeProposer, CombeeReflection
from combee_dspy.reducer_core import propose_component
from combee_dspy.strategies import StrategyContext
from combee_dspy.testing import ScriptedLM, ScriptedRequest, as_chat, as_json

FACTS = [f"the code of item {number} is K{number}" for number in range(12)]


def answer(request: ScriptedRequest) -> str:
    """Write every fact that the request holds as a lesson."""
    assert "[[ ## completed ## ]]" not in request.text, "the proposer's default adapter is JSON"
    return as_json({"lessons": list(dict.fromkeys(re.findall(r"the code of item \d+ is K\d+", request.last)))})


def dataset(*numbers: int) -> list[dict[str, Any]]:
    return [
        {"Inputs": {"q": f"item {n}"}, "Generated Outputs": {"code": "?"}, "Feedback": f"Wrong: {FACTS[n]}"}
        for n in numbers
    ]


def bullets(text: str) -> set[str]:
    return {line.removeprefix("- ") for line in text.splitlines() if line.startswith("- ")}


def test_the_proposer_learns_all_components_with_the_lm_in_dspys_context() -> None:
    lm = ScriptedLM(answer)
    candidate = {"a": "Do a.", "b": "Do b.", "c": "Do c."}
    records = {"a": dataset(*range(6)), "b": dataset(7, 8), "c": []}
    with dspy.context(lm=lm):
        texts = CombeeProposer()(candidate, records, ["a", "b", "c", "absent"])
    assert set(texts) == {"a", "b"}
    assert texts["a"].startswith("Do a.\n\nLessons learned:\n")
    assert bullets(texts["a"]) == {FACTS[n] for n in range(6)}
    assert bullets(texts["b"]) == {FACTS[7], FACTS[8]}
    # Six reflections: two shards, joined by code; two: one call.
    assert len(lm.requests) == 3


def test_without_an_lm_it_says_so() -> None:
    with dspy.context(lm=None), pytest.raises(ArgumentValueError, match="lm"):
        CombeeProposer()({"a": "Do a."}, {"a": dataset(0)}, ["a"])


def test_one_failing_component_does_not_take_the_others_with_it(caplog: pytest.LogCaptureFixture) -> None:
    def script(request: ScriptedRequest) -> str:
        if "Do b." in request.text:
            raise RuntimeError("no answer for b")
        return answer(request)

    with caplog.at_level(logging.WARNING, logger="combee_dspy.reducer"):
        (proposal, same) = CombeeReflection(reflection := ScriptedLM(script)).reflect(
            {"a": "Do a.", "b": "Do b."}, {"a": dataset(0), "b": dataset(1)}, ["a", "b"]
        )
    assert isinstance(same, CombeeReflection)
    assert list(proposal.new_texts) == ["a"]
    assert "no answer for b" in proposal.metadata["combee:refused:b"]
    assert "b keeps its text" in caplog.text
    assert reflection.requests


class Broken(Aggregator):
    name = "broken"

    def aggregate(self, reflections: Sequence[Reflection], context: StrategyContext) -> Lessons:
        if context.component == "b":
            raise ZeroDivisionError("b broke it")
        return Lessons(context.component, (Lesson("Works."),))


def test_an_aggregator_that_raises_costs_its_component_only() -> None:
    results = CombeeReflection(ScriptedLM(answer), aggregator=Broken()).reflect_many(
        [
            ({"a": "Do a.", "b": "Do b."}, {"a": dataset(0), "b": dataset(1)}, ["a", "b"]),
            ({"a": "Do it."}, {"a": dataset(2)}, ["a"]),
        ]
    )
    assert [sorted(proposal.new_texts) for proposal, _ in results] == [["a"], ["a"]]
    assert results[0][0].metadata["combee:refused:b"] == "ZeroDivisionError: b broke it"


def test_all_components_of_all_jobs_run_at_once() -> None:
    everyone = threading.Barrier(4, timeout=30)

    def script(request: ScriptedRequest) -> str:
        # Passes only when four calls are in flight at once.
        everyone.wait()
        return answer(request)

    jobs = [({"a": "Do a.", "b": "Do b."}, {"a": dataset(i), "b": dataset(i + 4)}, ["a", "b"]) for i in range(2)]
    results = CombeeReflection(ScriptedLM(script), num_threads=4).reflect_many(jobs)
    assert [set(proposal.new_texts) for proposal, _ in results] == [{"a", "b"}] * 2


def test_no_jobs_and_no_records_cost_nothing() -> None:
    lm = ScriptedLM(answer)
    assert CombeeReflection(lm).reflect_many([]) == []
    assert CombeeReflection(lm).reflect({"a": "x"}, {}, ["a"])[0].new_texts == {}
    assert lm.requests == ()


def test_the_worker_count_changes_nothing() -> None:
    texts: list[str] = []
    nodes: list[Any] = []
    for threads in (1, 8, 1):
        events: list[Event] = []
        with dspy.context(lm=ScriptedLM(answer)):
            proposer = CombeeProposer(seed=3, num_threads=threads, on_event=events.append)
            texts.append(proposer({"a": "Do a."}, {"a": dataset(*range(12))}, ["a"])["a"])
        nodes.extend(event.nodes for event in events if isinstance(event, ScanFinished))
    assert texts[0] == texts[1] == texts[2]
    assert nodes[0] == nodes[1] == nodes[2]


def test_single_call_and_names_are_accepted() -> None:
    def script(request: ScriptedRequest) -> str:
        return as_json({"new_instruction": "All new."})

    for aggregator in ("single-call", SingleCall()):
        with dspy.context(lm=ScriptedLM(script)):
            proposer = CombeeProposer(aggregator, "insert")
            assert proposer({"a": "Do a."}, {"a": dataset(0, 1)}, ["a"]) == {"a": "All new."}


def test_what_cannot_work_is_refused_early() -> None:
    with pytest.raises(ArgumentValueError, match="demonstrations"):
        CombeeProposer(operator=FewShotSwap())
    with pytest.raises(ArgumentValueError, match="num_threads"):
        CombeeProposer(num_threads=0)
    with pytest.raises(ArgumentValueError, match="installed"):
        CombeeProposer("no-such-aggregator")
    with pytest.raises(ArgumentTypeError):
        CombeeProposer(operator=ParallelScan())  # type: ignore[arg-type]
    with pytest.raises(ArgumentTypeError, match="lm"):
        CombeeReflection(3)  # type: ignore[arg-type]


# --- inside the optimizers --------------------------------------------------


def task(request: ScriptedRequest) -> str:
    number = re.findall(r"item (\d+)\?", request.last)[-1]
    known = f"item {number} is K{number}" in request.system
    return as_chat({"code": f"K{number}" if known else "unknown"})


def metric(gold: Any, pred: Any, trace: Any = None, pred_name: Any = None, pred_trace: Any = None) -> Any:
    return dspy.Prediction(
        score=float(pred.code == gold.code), feedback=f"The fact: the code of {gold.item} is {gold.code}"
    )


def test_inside_dspy_gepa() -> None:
    rows = [dspy.Example(q=f"What is item {n}?", item=f"item {n}", code=f"K{n}").with_inputs("q") for n in range(8)]
    reflection_lm = ScriptedLM(answer)
    optimizer = dspy.GEPA(
        metric=metric,
        reflection_lm=reflection_lm,
        instruction_proposer=CombeeProposer(),
        reflection_minibatch_size=8,
        max_metric_calls=60,
        num_threads=2,
        track_stats=True,
    )
    with dspy.context(lm=ScriptedLM(task)):
        best = optimizer.compile(dspy.Predict("q -> code"), trainset=rows, valset=rows)
    text = best.signature.instructions
    assert {f"the code of item {n} is K{n}" for n in range(8)} <= bullets(text)
    assert max(best.detailed_results.val_aggregate_scores) == 1.0


class FactsAdapter:
    """A gepa adapter without DSPy: an example is solved when the text holds its fact."""

    propose_new_texts = None

    def evaluate(self, batch: list[int], candidate: dict[str, str], capture_traces: bool = False) -> Any:
        scores = [float(FACTS[n] in candidate["text"]) for n in batch]
        return EvaluationBatch(outputs=list(batch), scores=scores, trajectories=list(zip(batch, scores, strict=True)))

    def make_reflective_dataset(
        self, candidate: dict[str, str], eval_batch: Any, components_to_update: list[str]
    ) -> Mapping[str, Sequence[Mapping[str, Any]]]:
        return {name: dataset(*(n for n, _ in eval_batch.trajectories)) for name in components_to_update}


def test_inside_gepa_optimize() -> None:
    result = gepa.optimize(
        seed_candidate={"text": "Know the codes."},
        trainset=list(range(12)),
        valset=list(range(12)),
        adapter=FactsAdapter(),
        reflection_strategy=CombeeReflection(ScriptedLM(answer)),
        reflection_minibatch_size=12,
        max_metric_calls=60,
        display_progress_bar=False,
    )
    assert bullets(result.best_candidate["text"]) == set(FACTS)


# --- the core ---------------------------------------------------------------


class Recording(Operator):
    name = "recording"

    def apply(self, given: OperatorInput, context: StrategyContext) -> Edit | Refusal:
        draw = context.stream().random()
        return Edit(instruction=f"{len(given.lessons.lessons)} lessons, {draw}")


class NeedsNone(Recording):
    name = "needs-none"
    needs_lessons = False


def core(operators: Sequence[Operator], reply: Any) -> tuple[list[Edit | Refusal], int]:
    calls: list[int] = []

    def predict(signature: Any, inputs: Sequence[dict[str, Any]], *, role: str = "proposer") -> list[Any]:
        calls.append(len(inputs))
        return [reply for _ in inputs]

    context = StrategyContext("a", "Do a.", predict, lambda event: None)
    given = OperatorInput("Do a.", (), None, Lessons("a"), ())
    reflections = [Reflection(i, record) for i, record in enumerate(dataset(*range(9)))]
    return propose_component(ParallelScan(), operators, reflections, given, context), sum(calls)


def test_one_scan_feeds_several_operators_with_chance_of_their_own() -> None:
    results, calls = core([Recording(), Recording(), Insert()], dspy.Prediction(lessons=["Give a unit."]))
    assert calls == 4
    assert results[0] != results[1]
    assert results[2] == Edit(instruction="Do a.\n\nLessons learned:\n- Give a unit.")


def test_without_need_for_lessons_there_is_no_scan() -> None:
    results, calls = core([NeedsNone()], dspy.Prediction(lessons=["x y"]))
    assert calls == 0
    assert isinstance(results[0], Edit)


def test_nothing_learned_is_a_reason_and_stops_only_those_who_need_lessons() -> None:
    results, _ = core([Insert(), NeedsNone()], FailedCall("AuthError: no"))
    assert isinstance(results[0], Refusal)
    assert "AuthError: no" in results[0].reason
    assert isinstance(results[1], Edit)
    empty, _ = core([Insert()], dspy.Prediction(lessons=[]))
    assert empty == [Refusal("the scan found no lesson")]
