"""The reducer alone, in ``dspy.GEPA``, ``gepa.optimize`` and ``gepa.optimize_anything``."""

from __future__ import annotations

import asyncio
import logging
import re
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import dspy
import gepa
import pytest
from gepa import EvaluationBatch
from gepa.optimize_anything import EngineConfig, GEPAConfig, ReflectionConfig, optimize_anything

from combee_dspy import CombeeProposer, CombeeReflection
from combee_dspy.aggregators import Aggregator, ParallelScan, SingleCall, gathered
from combee_dspy.exceptions import ArgumentError
from combee_dspy.operators import FewShotSwap
from combee_dspy.records import Lesson, Lessons
from combee_dspy.testing import ScriptedLM, ScriptedRequest, as_chat, as_json

FACTS = [f"the code of item {number} is K{number}" for number in range(12)]
TWO = {"a": "Do a.", "b": "Do b."}


def answer(request: ScriptedRequest) -> str:
    """Write every fact that the request holds as a lesson."""
    assert "[[ ## completed ## ]]" in request.text, "the default adapter is DSPy's own"
    return as_chat(
        {"lessons": list(dict.fromkeys(re.findall(r"the code of item \d+ is K\d+", request.last)))}
    )


def dataset(*numbers: int) -> list[dict[str, Any]]:
    return [
        {
            "Inputs": {"q": f"item {n}"},
            "Generated Outputs": {"code": "?"},
            "Feedback": f"Wrong: {FACTS[n]}",
        }
        for n in numbers
    ]


def bullets(text: str) -> set[str]:
    return {line.removeprefix("- ") for line in text.splitlines() if line.startswith("- ")}


def test_all_components_are_learned_with_the_lm_in_dspys_context() -> None:
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


class Broken(Aggregator):
    """Fails for one component."""

    name = "broken"

    async def aggregate(self, reflections: Any, context: Any) -> Lessons:
        await gathered(reflections)
        if context.component == "b":
            raise ZeroDivisionError("b broke it")
        return Lessons(context.component, (Lesson("Works."),))


def refuse_b(request: ScriptedRequest) -> str:
    if "Do b." in request.text:
        raise RuntimeError("no answer for b")
    return answer(request)


@pytest.mark.parametrize(
    ("script", "aggregator", "reason"),
    [
        (refuse_b, "union", "no answer for b"),
        (answer, Broken(), "ZeroDivisionError: b broke it"),
    ],
)
def test_a_component_that_fails_leaves_the_others_their_texts(
    caplog: pytest.LogCaptureFixture, script: Any, aggregator: Any, reason: str
) -> None:
    strategy = CombeeReflection(ScriptedLM(script), aggregator=aggregator)
    jobs = [
        (TWO, {"a": dataset(0), "b": dataset(1)}, ["a", "b"]),
        ({"a": "Do it."}, {"a": dataset(2)}, ["a"]),
    ]
    with caplog.at_level(logging.WARNING, logger="combee_dspy"):
        (first, same), (second, _) = strategy.reflect_many(jobs)
    assert same is strategy
    assert [*first.new_texts, *second.new_texts] == ["a", "a"]
    assert reason in first.metadata["combee:refused:b"]
    assert "b keeps its text" in caplog.text


def test_all_components_of_all_jobs_run_at_once() -> None:
    everyone = threading.Barrier(4, timeout=30)

    def script(request: ScriptedRequest) -> str:
        everyone.wait()  # passes only when four calls are in flight at once
        return answer(request)

    jobs = [
        (TWO, {"a": dataset(number), "b": dataset(number + 4)}, ["a", "b"]) for number in range(2)
    ]
    results = CombeeReflection(ScriptedLM(script), num_threads=4).reflect_many(jobs)
    assert [set(proposal.new_texts) for proposal, _ in results] == [{"a", "b"}] * 2


def test_nothing_to_read_costs_nothing() -> None:
    lm = ScriptedLM(answer)
    assert CombeeReflection(lm).reflect_many([]) == []
    assert CombeeReflection(lm).reflect({"a": "x"}, {}, ["a"])[0].new_texts == {}
    assert not lm.requests


def test_the_number_of_workers_and_a_running_loop_change_nothing() -> None:
    def proposed(threads: int) -> str:
        with dspy.context(lm=ScriptedLM(answer)):
            proposer = CombeeProposer(seed=3, num_threads=threads)
            return proposer({"a": "Do a."}, {"a": dataset(*range(12))}, ["a"])["a"]

    async def inside() -> str:
        return proposed(4)

    assert proposed(1) == proposed(8) == asyncio.run(inside())


@pytest.mark.parametrize("aggregator", ["single-call", SingleCall()])
def test_aggregators_by_name_and_by_object(aggregator: Any) -> None:
    with dspy.context(lm=ScriptedLM(lambda request: as_json({"new_instruction": "All new."}))):
        proposer = CombeeProposer(aggregator, "insert")
        assert proposer({"a": "Do a."}, {"a": dataset(0, 1)}, ["a"]) == {"a": "All new."}


@pytest.mark.parametrize(
    ("build", "problem"),
    [
        (lambda: CombeeProposer(operator=FewShotSwap()), "edits more than instructions"),
        (lambda: CombeeProposer(num_threads=0), "num_threads"),
        (lambda: CombeeProposer("no-such-aggregator"), "names no installed strategy"),
        (lambda: CombeeProposer(operator=ParallelScan()), "is no operator"),  # type: ignore[arg-type]  # what is tested
        (lambda: CombeeReflection(3), "lm"),  # type: ignore[arg-type]  # what is tested
    ],
)
def test_what_cannot_work_is_refused_early(build: Any, problem: str) -> None:
    with pytest.raises(ArgumentError, match=problem):
        build()


def task(request: ScriptedRequest) -> str:
    number = re.findall(r"item (\d+)\?", request.last)[-1]
    is_taught = f"item {number} is K{number}" in request.system
    return as_chat({"code": f"K{number}" if is_taught else "unknown"})


def metric(
    gold: Any, pred: Any, trace: Any = None, pred_name: Any = None, pred_trace: Any = None
) -> Any:
    feedback = f"The fact: the code of {gold.item} is {gold.code}"
    return dspy.Prediction(score=float(pred.code == gold.code), feedback=feedback)


def test_inside_dspy_gepa() -> None:
    rows = [
        dspy.Example(q=f"What is item {n}?", item=f"item {n}", code=f"K{n}").with_inputs("q")
        for n in range(8)
    ]
    optimizer = dspy.GEPA(
        metric=metric,
        reflection_lm=ScriptedLM(answer),
        instruction_proposer=CombeeProposer(),
        reflection_minibatch_size=8,
        max_metric_calls=60,
        num_threads=2,
        track_stats=True,
    )
    with dspy.context(lm=ScriptedLM(task)):
        best = optimizer.compile(dspy.Predict("q -> code"), trainset=rows, valset=rows)
    assert {f"the code of item {n} is K{n}" for n in range(8)} <= bullets(
        best.signature.instructions
    )
    assert max(best.detailed_results.val_aggregate_scores) == 1.0


class FactsAdapter:
    """A gepa adapter without DSPy: an example is solved when the text holds its fact."""

    propose_new_texts = None

    def evaluate(
        self, batch: list[int], candidate: dict[str, str], capture_traces: bool = False
    ) -> Any:
        scores = [float(FACTS[n] in candidate["text"]) for n in batch]
        return EvaluationBatch(
            outputs=list(batch), scores=scores, trajectories=list(zip(batch, scores, strict=True))
        )

    def make_reflective_dataset(
        self, candidate: dict[str, str], eval_batch: Any, components_to_update: list[str]
    ) -> Mapping[str, Sequence[Mapping[str, Any]]]:
        return {
            name: dataset(*(n for n, _ in eval_batch.trajectories)) for name in components_to_update
        }


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


@pytest.mark.parametrize("aggregator", ["union", "parallel-scan"])
def test_inside_gepa_optimize_anything(aggregator: str) -> None:
    def evaluate(candidate: str, example: int) -> tuple[float, dict[str, Any]]:
        return float(FACTS[example] in candidate), {"Feedback": f"Wrong: {FACTS[example]}"}

    reflection = ReflectionConfig(
        reflection_strategy=CombeeReflection(ScriptedLM(answer), aggregator),
        reflection_lm=None,
        reflection_minibatch_size=12,
    )
    engine = EngineConfig(max_metric_calls=60, parallel=False)
    result = optimize_anything(
        "Know the codes.",
        evaluator=evaluate,
        dataset=list(range(12)),
        config=GEPAConfig(engine, reflection),
    )
    assert bullets(result.best_candidate) == set(FACTS)
