"""Against collapse, in whole runs: a proposer that has one idea, and what the run makes of it."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import dspy
import pytest

from combee_dspy import Combee
from combee_dspy.diversity import Diversity, Restart, TemperatureSchedule
from combee_dspy.engine.candidates import candidate_id
from combee_dspy.events import (
    CandidateProposed,
    CandidateRefused,
    DiversityMeasured,
    IterationStarted,
    Restarted,
    RunStarted,
)
from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.operators import Insert
from combee_dspy.testing._scripted_lm import ScriptedLM, as_chat
from tests.engine.conftest import Recorder

IDEA = "Think about the animal for a long while before you answer."
OTHER = "Say the word aloud, then write it down letter by letter."


def _one_idea(request: Any) -> str:
    """Whatever it is shown: the same lesson, and one other text where words are to be changed."""
    if "reworded_passages" in request.text:
        return as_chat({"reworded_passages": [OTHER]})
    return as_chat({"lessons": [IDEA]})


def _stuck(request: Any) -> str:
    """No instruction and no demonstration helps."""
    animal = request.last.split("word for ")[-1].split("?")[0]
    return as_chat({"answer": animal[::-1].upper() if animal in ("ant", "bee") else "unknown"})


def _run(world: Any, lessons: Any = _one_idea, task: Any = _stuck, **kwargs: Any) -> tuple[dspy.Module, Recorder]:
    hook = Recorder()
    given = {
        "max_metric_calls": 90,
        "reflection_minibatch_size": 6,
        "num_threads": 4,
        "probe": False,
        "hooks": [hook],
        "reflection_lm": ScriptedLM(lessons, model="scripted/one-idea"),
        "track_stats": True,
        **kwargs,
    }
    task_lm = ScriptedLM(task) if task is not None else world.task_lm
    with dspy.context(lm=task_lm):
        program = Combee(world.metric, **given).compile(
            dspy.Predict(dspy.Signature("question -> answer", "Give the code word.")),
            trainset=world.examples(24),
            valset=world.examples(12, start=48),
        )
    program.lm_requests = given["reflection_lm"].requests
    return program, hook


def _twins() -> list[Any]:
    """Two operators that make the same child, and one that makes another."""
    return ["insert", Insert(similarity=0.9), "rephrase"]


def _texts(hook: Recorder) -> list[tuple[int, str]]:
    return [(event.iteration, event.texts["self"]) for event in hook.of(CandidateProposed)]


def test_with_the_guard_off_one_idea_is_proposed_again_and_again(world: Any) -> None:
    _, off = _run(world, operators=_twins(), diversity=False)
    _, on = _run(world, operators=_twins())
    proposed_off, proposed_on = [text for _, text in _texts(off)], [text for _, text in _texts(on)]
    assert len(set(proposed_off)) == 2
    assert len(proposed_off) >= 9, "each iteration makes the same three again"
    assert not off.of(CandidateRefused)
    assert len(proposed_on) == len(set(proposed_on)) == 2
    refused = on.of(CandidateRefused)
    assert any("similarity 1.000" in event.reason for event in refused)
    assert any("repeats one that was refused before" in event.reason for event in refused)


def test_a_child_that_was_rejected_is_not_made_again(world: Any) -> None:
    """Nothing joins the pool here: without a memory of what was tried, the front would refuse nothing."""
    _, off = _run(world, operators=["insert"], diversity=False)
    _, on = _run(world, operators=["insert"])
    assert len(_texts(off)) == len(off.of(IterationStarted)) > 3
    assert [iteration for iteration, _ in _texts(on)] == [1]
    later = [event for event in on.of(CandidateRefused) if event.iteration > 1]
    assert len(later) == len(on.of(IterationStarted)) - 1 > 3


def test_what_was_rejected_is_remembered_across_a_resume(world: Any, tmp_path: Path) -> None:
    made = []
    for last in (1, 2, 3):
        stops = {"stop_callbacks": [_Until(last)]}
        _, part = _run(world, operators=["insert"], log_dir=str(tmp_path), gepa_kwargs=stops)
        made += [iteration for iteration, _ in _texts(part)]
        assert [event.iteration for event in part.of(IterationStarted)] == [last]
    assert made == [1]


def test_a_refused_child_draws_another_operator(world: Any) -> None:
    """The twin's child goes to an operator that its draw had not tried."""
    _, hook = _run(world, operators=_twins(), max_metric_calls=40)
    refused = [event for event in hook.of(CandidateRefused) if event.iteration == 1]
    proposed = [event for event in hook.of(CandidateProposed) if event.iteration == 1]
    assert {event.operator for event in proposed} == {"insert", "rephrase"}
    assert [event.operator for event in refused if "similarity" in event.reason], "the twin was refused"


def test_what_the_guard_saw_is_counted(world: Any) -> None:
    _, hook = _run(world, operators=_twins())
    measured = hook.of(DiversityMeasured)
    assert [event.iteration for event in measured] == [event.iteration for event in hook.of(IterationStarted)]
    refused = hook.of(CandidateRefused)
    for event in measured[1:]:
        before = [one.reason for one in refused if one.iteration < event.iteration]
        assert event.refused == sum("similarity" in reason for reason in before)
        assert event.repeated == sum("repeats" in reason for reason in before)
        assert event.distinct == len({text for number, text in _texts(hook) if number < event.iteration})
    assert measured[-1].repeated > 0


def test_one_draw_means_no_redraw(world: Any) -> None:
    _, hook = _run(world, operators=_twins(), diversity=Diversity(max_draws=1), max_metric_calls=40)
    first = [event for event in hook.of(CandidateRefused) if event.iteration == 1]
    assert [(event.operator, "similarity" in event.reason) for event in first] == [("insert", True)]


SCHEDULE = TemperatureSchedule(start=0.5, end=0.5, shape="constant", raise_by=0.2, patience=0, highest=1.9)


def test_the_schedules_temperature_reaches_the_proposers_requests(world: Any) -> None:
    program, hook = _run(world, operators=["insert"], diversity=Diversity(temperature=SCHEDULE))
    asked = [request.temperature for request in program.lm_requests]
    told = [event.temperature for event in hook.of(DiversityMeasured)]
    # One scan of six reflections an iteration: two shards and a merge.
    assert sorted(set(asked)) == pytest.approx(sorted(set(told)))
    # Nothing ever helps: each iteration is staler than the one before.
    assert told == pytest.approx([min(0.5 + 0.2 * number, 1.9) for number in range(len(told))])
    assert len(told) > 4


def test_without_a_schedule_the_lms_own_temperature_stays(world: Any) -> None:
    lm = ScriptedLM(_one_idea, temperature=0.3)
    program, hook = _run(world, operators=_twins(), reflection_lm=lm)
    assert {request.temperature for request in program.lm_requests} == {0.3}
    assert {event.temperature for event in hook.of(DiversityMeasured)} == {None}


def test_a_redraw_is_hotter_than_the_draw_before(world: Any) -> None:
    program, _ = _run(
        world, operators=_twins(), diversity=Diversity(temperature=SCHEDULE), max_metric_calls=30, num_threads=1
    )
    rewordings = [request.temperature for request in program.lm_requests if "reworded_passages" in request.text]
    scans = [request.temperature for request in program.lm_requests if "reworded_passages" not in request.text]
    first = set(scans)
    assert first == {0.5}
    # The rephrasing child asks at the iteration's own temperature, the twin's redraw above it.
    assert rewordings[0] == 0.5
    assert len(rewordings) > 1
    assert all(one == pytest.approx(0.7) or one == pytest.approx(0.9) for one in rewordings[1:])


def _cat(request: Any) -> str:
    return as_chat({"lessons": ["Rule: the word for cat is TAC"]})


def _restarting(world: Any, **kwargs: Any) -> tuple[dspy.Module, Recorder]:
    diversity = Diversity(embedder=None, restart=Restart(patience=2, min_progress=0.01, min_diversity=None))
    given = {
        "diversity": diversity,
        "operators": ["insert"],
        "candidate_selection_strategy": "current_best",
        "use_merge": False,
        "max_metric_calls": 200,
        **kwargs,
    }
    return _run(world, _cat, None, **given)


def test_a_search_that_stands_still_starts_again_from_the_seeds_text(world: Any) -> None:
    _, hook = _restarting(world)
    seed = candidate_id(hook.of(RunStarted)[0].components)
    restarts = [event.iteration for event in hook.of(Restarted)]
    assert restarts
    assert all("best validation score rose by 0.0000" in event.reason for event in hook.of(Restarted))
    assert all(later - earlier >= 2 for earlier, later in pairwise(restarts))
    made = {event.iteration: event.parent_id for event in (*hook.of(CandidateProposed), *hook.of(CandidateRefused))}
    first = min(event.iteration for event in hook.of(CandidateProposed))
    for iteration, parent in made.items():
        assert (parent == seed) == (iteration in restarts or iteration <= first)


def test_without_restarts_it_goes_on_from_the_best(world: Any) -> None:
    _, hook = _restarting(world, diversity=Diversity.off())
    seed = candidate_id(hook.of(RunStarted)[0].components)
    assert not hook.of(Restarted)
    made = [event for event in hook.of(CandidateRefused) if "already" in event.reason]
    assert made
    assert seed not in {event.parent_id for event in made}


def test_a_resumed_run_restarts_where_an_uninterrupted_one_would(world: Any, tmp_path: Path) -> None:
    _, whole = _restarting(world)
    expected = [event.iteration for event in whole.of(Restarted)]
    found: list[int] = []
    # One iteration at a time: whatever is not in the checkpoint is forgotten.
    for last in range(1, 9):
        stops = {"stop_callbacks": [_Until(last)]}
        _, part = _restarting(world, log_dir=str(tmp_path), gepa_kwargs=stops)
        assert [event.iteration for event in part.of(IterationStarted)] == [last]
        found += [event.iteration for event in part.of(Restarted)]
    assert found == [iteration for iteration in expected if iteration <= 8]
    assert len(found) >= 2


class _Until:
    def __init__(self, iterations: int) -> None:
        self.iterations = iterations

    def __call__(self, state: Any) -> bool:
        return bool(state.i + 1 >= self.iterations)


def test_the_embedder_by_name_and_what_cannot_be_used(world: Any) -> None:
    _, hook = _run(world, operators=_twins(), diversity=Diversity(embedder="char-ngrams", threshold=0.5))
    assert any("exceeds 0.500" in event.reason for event in hook.of(CandidateRefused))
    with pytest.raises(ArgumentValueError, match=r"diversity\.threshold"):
        _run(world, diversity=Diversity(threshold=1.5))
