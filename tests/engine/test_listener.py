"""What gepa's callbacks become: merges with both parents, one reason to stop, texts without keys."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dspy
import pytest

from combee_dspy import Budget, Combee
from combee_dspy.engine.candidates import candidate_id
from combee_dspy.engine.listener import Listener
from combee_dspy.engine.state import RunState
from combee_dspy.events import CandidateProposed, RolloutFinished, RunStopping, ScheduleDecided
from combee_dspy.testing._scripted_lm import ScriptedLM
from tests.engine.conftest import Recorder, answer_in_kind

KEY = "sk-thisisnorealkey0123456789"


def _listener() -> tuple[Listener, Any]:
    adapter: Any = SimpleNamespace(purpose="validation", merging=("stale",))
    return Listener(adapter, RunState(), lambda event: None, dict, None, None), adapter  # type: ignore[arg-type]


def _evaluation(index: int | None, parents: list[int]) -> dict[str, Any]:
    return {"candidate_idx": index, "parent_ids": parents}


def test_a_merge_has_both_parents() -> None:
    listener, adapter = _listener()
    pool = [{"p": "one"}, {"p": "two"}, {"p": "three"}]
    listener.on_iteration_start({"iteration": 4, "state": SimpleNamespace(program_candidates=pool)})
    listener.on_evaluation_start(_evaluation(None, [1, 2]))
    assert adapter.merging == (candidate_id(pool[1]), candidate_id(pool[2]))
    for index, parents in ((None, [1]), (1, []), (None, []), (None, [1, 9])):
        listener.on_evaluation_start(_evaluation(index, parents))
        assert adapter.merging == ()
        assert adapter.purpose == ("child" if index is None else "parent")


class TwoStep(dspy.Module):
    """Two predictors of which each knows half of the animals: merging them knows all."""

    def __init__(self) -> None:
        super().__init__()
        self.first = dspy.Predict("question -> answer")
        self.second = dspy.Predict("question -> answer")

    def forward(self, question: str) -> dspy.Prediction:
        number = int(re.findall(r"Number (\d+)", question)[-1])
        return (self.first if number % 2 else self.second)(question=question)


class FromTheSeed:
    """Children that differ in what they edit, so that there is something to merge."""

    def select_candidate_idx(self, state: Any) -> int:
        return 0


def test_a_run_tells_of_its_merges_before_their_rollouts(world: Any) -> None:
    hook = Recorder()
    Combee(
        world.metric,
        max_metric_calls=220,
        reflection_lm=world.proposer_lm,
        reflection_minibatch_size=6,
        operators=["insert"],
        candidate_selection_strategy=FromTheSeed(),
        diversity=False,
        num_threads=2,
        seed=0,
        hooks=[hook],
    ).compile(TwoStep(), trainset=world.examples(24), valset=world.examples(12, start=48))
    merges = [event for event in hook.of(CandidateProposed) if event.operator == "merge"]
    # A merge may come to one of its parents again.
    new = [event for event in merges if event.candidate_id not in event.parents]
    for event in new:
        assert len(event.parents) == 2
        place = hook.events.index(event)
        before = [one for one in hook.events[:place] if isinstance(one, RolloutFinished)]
        assert event.candidate_id not in {one.candidate_id for one in before}
    assert new, "the run is meant to have a merge"


def test_why_a_run_stops_is_told_once_and_rollouts_name_their_batch(world: Any) -> None:
    hook = Recorder()
    program = Combee(
        world.metric, budget=Budget(rollouts=40), reflection_lm=world.proposer_lm, num_threads=4, hooks=[hook]
    ).compile(world.student(), trainset=world.examples(12), valset=world.examples(6, start=48))
    (said,) = hook.of(RunStopping)
    assert said.reason == program.combee_report.reason
    named = {int(event.rollout.schedule_id.removeprefix("batch-")) for event in hook.of(RolloutFinished)}
    flushes = [event.values for event in hook.of(ScheduleDecided) if event.decision == "flush"]
    assert named
    assert all(any(one["first_batch"] <= batch <= one["last_batch"] for one in flushes) for batch in named)
    assert hook.events.index(hook.of(RolloutFinished)[-1]) < len(hook.events) - 1


@pytest.mark.parametrize("proposer", [None, "own"])
def test_a_key_in_a_proposed_text_reaches_no_file(world: Any, tmp_path: Path, proposer: str | None) -> None:
    def leaks(request: Any) -> str:
        rules = list(dict.fromkeys(re.findall(r"Rule: the word for \w+ is \w+", request.text)))
        return answer_in_kind(request, {"lessons": [*rules, f"Call it with {KEY}."]})

    def proposes(candidate: Any, reflective_dataset: Any, components_to_update: list[str]) -> dict[str, str]:
        rules = list(dict.fromkeys(re.findall(r"Rule: the word for \w+ is \w+", str(reflective_dataset))))
        return {name: "\n".join([*rules, f"Call it with {KEY}."]) for name in components_to_update}

    hook = Recorder()
    program = Combee(
        world.metric,
        max_metric_calls=60,
        reflection_lm=ScriptedLM(leaks, model="scripted/proposer"),
        instruction_proposer=None if proposer is None else proposes,
        num_threads=4,
        seed=0,
        log_dir=str(tmp_path),
        hooks=[hook],
    ).compile(world.student(), trainset=world.examples(12), valset=world.examples(6, start=48))
    texts = [text for event in hook.of(CandidateProposed) for text in event.texts.values()]
    assert any("Call it with [redacted]" in text for text in texts)
    assert KEY not in program.signature.instructions
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert files
    assert not [path.name for path in files if KEY.encode() in path.read_bytes()]
