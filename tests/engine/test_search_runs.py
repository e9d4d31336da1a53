"""Whole runs with every part of the search on: the final choice, resuming, and any number of workers."""

from __future__ import annotations

import re
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import dspy
import pytest

from combee_dspy import Budget, Combee
from combee_dspy.diversity import Diversity, Restart, TemperatureSchedule
from combee_dspy.evaluation import Calibration, HeldoutTerms
from combee_dspy.events import (
    CandidateProposed,
    CandidateRefused,
    CandidateScreened,
    CandidateSelected,
    OperatorsWeighted,
    RetentionMeasured,
    RolloutFinished,
    ValidationFinished,
)
from combee_dspy.guards import Guards
from combee_dspy.operators import Operator
from combee_dspy.records import Edit
from combee_dspy.testing._scripted_lm import ScriptedLM, as_chat
from tests.engine.conftest import Recorder

OWN = "Give the code word. Never explain it."


class Writes(Operator):
    """Adds one word to the instruction."""

    needs_lessons = False

    def __init__(self, word: str) -> None:
        self.word = word

    @property
    def name(self) -> str:  # type: ignore[override]  # two of one class, told apart
        return f"writes-{self.word}"

    def apply(self, given: Any, context: Any) -> Any:
        return Edit(instruction=f"{OWN} {self.word}")


class Fickle:
    """With LUCKY all is right when it is asked for the first time; with STEADY five of six are, always."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.asked: Counter[str] = Counter()

    def __call__(self, request: Any) -> str:
        number, animal = re.findall(r"Number (\d+): word for (\w+)\?", request.last)[-1]
        with self.lock:
            self.asked[request.text] += 1
            first = self.asked[request.text] == 1
        right = ("LUCKY" in request.system and first) or ("STEADY" in request.system and int(number) % 6 != 0)
        return as_chat({"answer": animal[::-1].upper() if right else "unknown"})


def _chosen(world: Any, temperature: float | None = 1.0, **kwargs: Any) -> tuple[dspy.Module, Recorder]:
    hook = Recorder()
    given = {
        "max_metric_calls": 90,
        "reflection_minibatch_size": 6,
        "operators": [Writes("LUCKY"), Writes("STEADY")],
        "diversity": False,
        "use_merge": False,
        "gepa_kwargs": {"stop_callbacks": [lambda state: state.i >= 0]},
        "num_threads": 4,
        "probe": False,
        "hooks": [hook],
        **kwargs,
    }
    with dspy.context(lm=ScriptedLM(Fickle(), temperature=temperature)):
        program = Combee(world.metric, reflection_lm=world.proposer_lm, **given).compile(
            dspy.Predict(dspy.Signature("question -> answer", OWN)),
            trainset=world.examples(12),
            valset=world.examples(12, start=48),
        )
    return program, hook


def _redrawn(hook: Recorder) -> list[RolloutFinished]:
    return [event for event in hook.of(RolloutFinished) if event.replicate]


def test_the_best_of_one_draw_is_drawn_again_before_it_is_chosen(world: Any) -> None:
    program, hook = _chosen(world)
    (selected,) = hook.of(CandidateSelected)
    texts = {event.index: event.texts["self"] for event in hook.of(ValidationFinished)}
    draws = {texts[index]: draws for index, draws in zip(selected.finalists, selected.draws, strict=True)}
    assert draws[f"{OWN} LUCKY"] == (1.0, 0.0)
    assert draws[f"{OWN} STEADY"] == pytest.approx((10 / 12, 10 / 12))
    assert texts[selected.index] == f"{OWN} STEADY"
    assert program.signature.instructions == f"{OWN} STEADY"
    assert program.combee_report.best_score == pytest.approx(10 / 12)
    assert program.combee_report.selection.looks == selected.looks == 3
    assert len(_redrawn(hook)) == 2 * 12, "the student is no rival: it is worse beyond doubt"
    assert not any(event.cached for event in _redrawn(hook))


@pytest.mark.parametrize(
    ("why", "change"),
    [
        ("the LM repeats itself", {"temperature": 0.0}),
        ("one finalist is asked for", {"finalists": 1}),
        ("the budget has no room", {"max_metric_calls": 72}),
        ("a limit on cost is reached", {"max_metric_calls": None, "budget": Budget(calls=30)}),
        ("one of two limits is", {"max_metric_calls": None, "budget": Budget(rollouts=90) | Budget(calls=30)}),
        ("both that must be are", {"max_metric_calls": None, "budget": Budget(rollouts=20) & Budget(calls=1)}),
    ],
)
def test_nothing_is_drawn_again_where_it_tells_nothing_or_cannot_be_paid(world: Any, why: str, change: Any) -> None:
    program, hook = _chosen(world, **change)
    assert not _redrawn(hook), why
    (selected,) = hook.of(CandidateSelected)
    assert all(len(draws) == 1 for draws in selected.draws)
    assert program.signature.instructions == f"{OWN} LUCKY"


def test_a_limit_in_epochs_leaves_the_finalists_their_further_draw(world: Any) -> None:
    _, hook = _chosen(world, max_metric_calls=None, budget=Budget(epochs=0.5) & Budget(calls=1), gepa_kwargs={})
    assert len(_redrawn(hook)) == 2 * 12


def test_rollouts_of_the_finalists_further_draw_are_counted(world: Any) -> None:
    program, hook = _chosen(world, speculation=0.0)
    assert len(_redrawn(hook)) == 2 * 12
    assert program.combee_report.rollouts == sum(not event.cached for event in hook.of(RolloutFinished))


def test_a_choice_stays_within_the_budget(world: Any) -> None:
    program, hook = _chosen(world)
    bought = sum(not event.cached for event in hook.of(RolloutFinished))
    report = program.combee_report
    # A guess that was given up in time is charged, and was not bought.
    assert bought <= report.rollouts <= min(90, bought + report.speculative)


SENTENCES = ("rivers", "mountains", "letters", "colours", "machines", "islands", "engines", "gardens", "clocks")


def _propose(request: Any) -> str:
    """Learns the rules, merges some of them away, and rewords what it is given."""
    if "reworded_passages" in request.text:
        passages = re.findall(r"\[\d+\] «(.*?)»", request.last.split("[[ ## manner ## ]]")[0], flags=re.DOTALL)
        return as_chat({"reworded_passages": [f"As a rule: {passage}" for passage in passages]})
    found = list(dict.fromkeys(re.findall(r"Rule: the word for \w+ is \w+", request.text)))
    if "lesson_lists" in request.text:
        found = found[: max(1, len(found) // 2)]
    hot = f" at {request.temperature:.1f}" if request.temperature else ""
    number = sum(map(ord, request.text)) % len(SENTENCES)
    return as_chat({"lessons": [*found, f"Animals may be found near {SENTENCES[number]}{hot}."]})


class Until:
    """Stops a run after some iterations, whatever is left of its budget."""

    def __init__(self, iterations: int) -> None:
        self.iterations = iterations

    def __call__(self, state: Any) -> bool:
        return bool(state.i + 1 >= self.iterations)


def _everything(world: Any, last: int = 8, log_dir: Path | None = None, **kwargs: Any) -> tuple[dspy.Module, Recorder]:
    hook = Recorder()
    given = {
        "max_metric_calls": 900,
        "reflection_minibatch_size": 5,
        "operators": ["insert", "rephrase", "few-shot-swap"],
        "children": 2,
        "candidate_selection_strategy": "current_best",
        "diversity": Diversity(
            temperature=TemperatureSchedule(start=0.5, end=0.5, shape="constant", patience=0),
            restart=Restart(patience=3, min_progress=0.05),
        ),
        "guards": Guards(max_tokens=400, keep=["Never explain it."]),
        "anchors": world.examples(1),
        "fallback": "best-node",
        "screen": 3,
        "aggregator": "parallel-scan",
        "rescue": True,
        "lesson_ledger": True,
        "calibration": Calibration(world.metric, minimum=10, share=1.0),
        "heldout_terms": HeldoutTerms(target=0.95),
        "num_threads": 4,
        "probe": False,
        "track_stats": True,
        "log_dir": None if log_dir is None else str(log_dir),
        "gepa_kwargs": {"stop_callbacks": [Until(last)]},
        "hooks": [hook],
        **kwargs,
    }
    with dspy.context(lm=world.task_lm):
        program = Combee(world.metric, reflection_lm=ScriptedLM(_propose), **given).compile(
            dspy.Predict(dspy.Signature("question -> answer", OWN)),
            trainset=world.examples(36),
            valset=world.examples(12, start=48),
            heldout=world.examples(12, start=100),
        )
    return program, hook


def _course(hook: Recorder) -> list[Any]:
    """What the search did, in order, without what it cost."""
    kept = (CandidateProposed, CandidateRefused, CandidateScreened, OperatorsWeighted, RetentionMeasured)
    found: list[Any] = [event for event in hook.events if isinstance(event, kept)]
    return found + [(event.index, event.candidate_id, event.score) for event in hook.of(ValidationFinished)]


def _result(program: Any) -> tuple[Any, ...]:
    found, report = program.detailed_results, program.combee_report
    return (
        [candidate.dump_state() for candidate in found.candidates],
        found.val_aggregate_scores,
        found.parents,
        program.dump_state(),
        report.heldout,
        report.best_score,
    )


def test_the_course_does_not_depend_on_the_workers(world: Any) -> None:
    runs = [_everything(world, num_threads=threads) for threads in (1, 8)]
    (first, one), (second, other) = runs
    assert _result(first) == _result(second)
    assert _course(one) == _course(other)
    assert first.combee_report.rollouts == second.combee_report.rollouts
    # Or it would say nothing about the parts:
    assert first.combee_report.best_score > first.combee_report.seed_score
    for kind in (CandidateScreened, CandidateRefused, RetentionMeasured, CandidateSelected):
        assert one.of(kind), kind
    assert any(event.rescued for event in one.of(RetentionMeasured))


@pytest.mark.parametrize("rescue", [False, True])
def test_a_resumed_run_ends_as_an_uninterrupted_one(world: Any, tmp_path: Path, rescue: bool) -> None:
    whole, hook = _everything(world, rescue=rescue)
    for last in (2, 3, 6):
        _everything(world, last=last, log_dir=tmp_path, rescue=rescue)
    resumed, _ = _everything(world, log_dir=tmp_path, rescue=rescue)
    assert len(whole.detailed_results.candidates) > 2
    assert _result(resumed)[:3] == _result(whole)[:3]
    assert resumed.dump_state() == whole.dump_state()
    assert hook.of(CandidateScreened)
