"""Operators, the best node, rescue and retention, in whole runs."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

import dspy
import pytest

from combee_dspy import Combee
from combee_dspy.aggregators import ParallelScan
from combee_dspy.benchmarks import load_benchmark
from combee_dspy.events import (
    CandidateProposed,
    CandidateRefused,
    CandidateScreened,
    OperatorsWeighted,
    RetentionMeasured,
    RolloutFinished,
    ScanFinished,
)
from combee_dspy.lms import SimulatedConfig, SimulatedService, SimulatedTask
from combee_dspy.operators import Operator
from combee_dspy.records import Edit, Refusal
from combee_dspy.reflections import estimate_tokens
from combee_dspy.testing._scripted_lm import ScriptedLM, as_chat
from tests.engine.conftest import Recorder


class Until:
    """Stops a run after some iterations, whatever is left of its budget."""

    def __init__(self, iterations: int) -> None:
        self.iterations = iterations

    def __call__(self, state: Any) -> bool:
        return bool(state.i + 1 >= self.iterations)


def code(animal: str) -> str:
    return animal[::-1].upper()


def lesson(animal: str) -> str:
    """What an animal's row teaches, unlike any other's."""
    return f"{animal * 3} means {code(animal) * 3}"


def metric(gold: Any, pred: Any, trace: Any = None, pred_name: Any = None, pred_trace: Any = None) -> Any:
    right = getattr(pred, "answer", None) == gold.answer
    animal = gold.question.split()[-1].rstrip("?")
    return dspy.Prediction(score=float(right), feedback="Right." if right else f"Wrong. {lesson(animal)}")


def answer(request: Any) -> str:
    animal = re.findall(r"word for (\w+)\?", request.last)[-1]
    return as_chat({"answer": code(animal) if lesson(animal) in request.system else "unknown"})


def propose(request: Any) -> str:
    return as_chat({"lessons": list(dict.fromkeys(re.findall(r"\w+ means \w+", request.text.split("###")[-1])))})


def run(world: Any, lessons: Any = propose, task: Any = answer, **kwargs: Any) -> tuple[dspy.Module, Recorder]:
    hook = Recorder()
    given = {
        "max_metric_calls": 160,
        "reflection_minibatch_size": 6,
        "num_threads": 4,
        "probe": False,
        "operators": ["insert"],
        "reflection_lm": ScriptedLM(lessons, model="scripted/proposer"),
        "track_stats": True,
        **kwargs,
        "hooks": [hook, *kwargs.get("hooks", [])],
    }
    with dspy.context(lm=ScriptedLM(task)):
        program = Combee(metric, **given).compile(
            dspy.Predict(dspy.Signature("question -> answer", "Give the code word.")),
            trainset=world.examples(24),
            valset=world.examples(12, start=48),
        )
    program.asked = given["reflection_lm"].requests
    return program, hook


class Useless(Operator):
    """Adds a line that teaches nothing."""

    name = "useless"
    needs_lessons = False

    def apply(self, given: Any, context: Any) -> Any:
        return Edit(instruction=f"{given.instruction}\nAttempt {context.stream('n').randrange(10**6)}.")


class Never(Operator):
    """Refuses, whatever it is given."""

    name = "never"
    needs_lessons = False

    def apply(self, given: Any, context: Any) -> Any:
        return Refusal("never does")


def test_weights_are_uniform_at_first_and_follow_the_lifts_from_the_fifth_iteration(world: Any) -> None:
    _, hook = run(
        world,
        operators=["insert", Useless(), Never()],
        reflection_minibatch_size=2,
        diversity=False,
        max_metric_calls=220,
        skip_perfect_score=False,
    )
    told = hook.of(OperatorsWeighted)
    assert told[0].iteration == 1
    assert told[0].reason == "uniform"
    for event in told:
        assert sum(event.weights.values()) == pytest.approx(1)
        if event.iteration < 5:
            assert list(event.weights.values()) == pytest.approx([1 / 3] * 3)
    late = [event for event in told if event.iteration >= 5]
    assert late
    assert late[0].iteration == 5
    assert late[-1].weights["insert"] > 0.7
    # The floor: none dies, and children that were never made count as well as those that brought nothing.
    for name in ("useless", "never"):
        assert late[-1].weights[name] >= 0.05 - 1e-9


@pytest.mark.parametrize("children", [1, 2])
def test_fewer_children_than_operators_are_drawn(world: Any, children: int) -> None:
    _, hook = run(
        world, operators=["insert", Useless(), "few-shot-swap"], children=children, diversity=False, finalists=1
    )
    made = Counter((event.iteration, event.operator) for event in hook.of(CandidateProposed))
    made += Counter((event.iteration, event.operator) for event in hook.of(CandidateRefused))
    per_iteration = Counter(iteration for iteration, _ in made)
    assert set(per_iteration.values()) == {children}
    assert len({operator for _, operator in made}) == 3


def test_as_many_children_as_operators_take_one_each(world: Any) -> None:
    _, hook = run(world, operators=["insert", Useless(), "few-shot-swap"], diversity=False)
    made = (*hook.of(CandidateProposed), *hook.of(CandidateRefused))
    assert sorted(event.operator for event in made if event.iteration == 1) == ["few-shot-swap", "insert", "useless"]


SIX = ["insert", "delete", "rephrase", "reorder", "few-shot-swap", "instruction-channel"]


def test_all_six_operators_in_one_run(tmp_path: Path) -> None:
    benchmark = load_benchmark("formula-mini", task="compute", train=40, validation=20, heldout=10, seed=1)
    rows = [row for split in benchmark.splits for row in split.examples]
    question, target = next(iter(benchmark.signature.input_fields)), next(iter(benchmark.signature.output_fields))
    task = SimulatedTask.from_examples(
        rows, question, target, key_of=lambda row: f"{row['formula']}.{target}", base_rate=0.3, seed=1
    )
    hook = Recorder()
    with SimulatedService(SimulatedConfig(seed=1, time_scale=0), task) as service:
        lm = service.lm(cache=False)
        with dspy.context(lm=lm):
            program = Combee(
                benchmark.metric,
                reflection_lm=lm,
                operators=SIX,
                reflection_minibatch_size=8,
                max_metric_calls=160,
                num_threads=4,
                probe=False,
                hooks=[hook],
            ).compile(
                benchmark.program(),
                trainset=list(benchmark.train.examples),
                valset=list(benchmark.validation.examples),
                heldout=list(benchmark.heldout.examples),
            )
    tried = {event.operator for event in (*hook.of(CandidateProposed), *hook.of(CandidateRefused))}
    assert tried == set(SIX)
    assert {event.operator for event in hook.of(CandidateProposed)} >= {"insert", "rephrase", "few-shot-swap"}
    report = program.combee_report
    assert report.best_score > report.seed_score
    assert all(event.reason for event in hook.of(CandidateRefused))
    assert any("simulated" in warning for warning in report.warnings)


def dropping(request: Any) -> str:
    """Learns well; as a merger it drops all that is useful."""
    if "lesson_lists" in request.text:
        return as_chat({"lessons": ["Think hard about every single animal."]})
    return propose(request)


def bought(hook: Recorder) -> int:
    return sum(not event.cached and event.split != "heldout" for event in hook.of(RolloutFinished))


def test_the_best_node_stands_in_where_the_merge_lost_what_helps(world: Any) -> None:
    plain, without = run(world, dropping, aggregator="parallel-scan")
    assert plain.combee_report.best_score == plain.combee_report.seed_score
    assert not without.of(CandidateScreened)
    program, hook = run(world, dropping, aggregator="parallel-scan", fallback="best-node")
    assert program.combee_report.best_score > program.combee_report.seed_score
    passed = [event for event in hook.of(CandidateScreened) if event.passed]
    assert passed
    assert all(event.score > event.against_score for event in passed)
    proposed = {event.candidate_id: event.texts["self"] for event in hook.of(CandidateProposed)}
    scans = {event.iteration: event for event in hook.of(ScanFinished)}
    for event in passed:
        text = proposed[event.candidate_id]
        assert "Think hard" not in text.splitlines()[-1]
        nodes = [node for node in scans[event.iteration].nodes if node.level == 1]
        assert any(set(node.lessons) <= {line.removeprefix("- ") for line in text.splitlines()} for node in nodes)


def test_the_screens_rollouts_count_in_the_budget(world: Any) -> None:
    program, hook = run(world, dropping, fallback="best-node", screen=4, speculation=0.0)
    screened = [event for event in hook.of(RolloutFinished) if event.purpose == "screen"]
    assert any(not event.cached for event in screened)
    assert {event.size for event in hook.of(CandidateScreened)} == {4}
    assert program.combee_report.rollouts == bought(hook)
    assert program.detailed_results.total_metric_calls <= program.combee_report.rollouts


def test_a_tie_keeps_the_root(world: Any) -> None:
    unknown = as_chat({"answer": "unknown"})
    _, hook = run(world, dropping, task=lambda request: unknown, aggregator="parallel-scan", fallback="best-node")
    screened = hook.of(CandidateScreened)
    assert screened
    assert not any(event.passed for event in screened)
    assert {event.against_score for event in screened} == {event.score for event in screened} == {0.0}
    proposed = hook.of(CandidateProposed)
    assert proposed
    assert all("Think hard" in event.texts["self"] for event in proposed)


def forgetting(request: Any) -> str:
    """Learns everything; as a merger it drops the dog."""
    found = re.findall(r"\w+ means \w+", request.text)
    if "lesson_lists" in request.text:
        found = [line for line in found if "dog" not in line]
    return as_chat({"lessons": list(dict.fromkeys(found))})


def reads_of(program: Any, question: str) -> int:
    return sum(question in request.text and "lesson_lists" not in request.text for request in program.asked)


def rescuing(world: Any, **kwargs: Any) -> tuple[dspy.Module, Recorder]:
    """One epoch and one scan more, nothing of which is accepted: each row is in one minibatch."""
    given = {
        "aggregator": ParallelScan(copies=1),
        "gepa_kwargs": {"stop_callbacks": [Until(4)]},
        "diversity": False,
        "lesson_ledger": False,
        "max_metric_calls": 300,
        # One by one, so that rollouts are told of in the order of their minibatch.
        "num_threads": 1,
        # A scan begun on a wrong guess is read again: these tests count reads.
        "speculation": 0.0,
        **kwargs,
    }
    return run(world, forgetting, lambda request: as_chat({"answer": "unknown"}), **given)


def _rows_of(hook: Recorder, iteration: int) -> list[str]:
    found = [one for one in hook.of(RolloutFinished) if one.purpose == "parent" and one.iteration == iteration]
    return [one.rollout.example.question for one in found]


def test_what_a_scan_lost_is_in_the_next_one_exactly_once(world: Any) -> None:
    without, _ = rescuing(world)
    program, hook = rescuing(world, rescue=True)
    dogs = {
        row: iteration for iteration in range(1, 5) for row in _rows_of(hook, iteration) if row.endswith("for dog?")
    }
    early = [row for row, iteration in dogs.items() if iteration < 4]
    assert early
    for row in dogs:
        assert reads_of(without, row) == 1
        assert reads_of(program, row) == (2 if row in early else 1)
    others = {row for iteration in range(1, 5) for row in _rows_of(hook, iteration)} - set(dogs)
    assert {reads_of(program, row) for row in others} == {1}
    measured = {event.iteration: event for event in hook.of(RetentionMeasured)}
    for iteration in range(1, 5):
        expected = sum(before == iteration - 1 for before in dogs.values())
        assert len(measured[iteration].rescued) == expected


def test_what_retention_says_of_a_known_scan(world: Any) -> None:
    _, hook = rescuing(world)
    measured, scans = hook.of(RetentionMeasured), {event.iteration: event for event in hook.of(ScanFinished)}
    assert [event.iteration for event in measured] == [1, 2, 3, 4]
    seen_lost = 0
    for event in measured:
        rows = _rows_of(hook, event.iteration)
        assert [one.index for one in event.reflections] == list(range(len(rows)))
        assert event.aggregator == "parallel-scan"
        nodes = scans[event.iteration].nodes
        for one in event.reflections:
            is_dog = rows[one.index].endswith("for dog?")
            assert one.measurable
            assert one.covered is not is_dog
            if is_dog:
                seen_lost += 1
                (home,) = [node for node in nodes if node.level == 1 and one.index in node.sources]
                assert one.lost_at == (1, home.node)
            else:
                assert one.lost_at is None
        levels = sorted({node.level for node in nodes})
        assert event.tokens_per_level == tuple(
            sum(estimate_tokens(text) for node in nodes if node.level == level for text in node.lessons)
            for level in levels
        )
    assert seen_lost == 2
