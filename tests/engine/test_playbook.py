"""Whole playbook runs against scripted LMs."""

from __future__ import annotations

import json
import math
import re
from typing import Any

import dspy
import pytest

from combee_dspy import Budget, Combee
from combee_dspy.aggregators import ParallelScan, SingleCall, TopK
from combee_dspy.artifacts import PlaybookArtifact, read_text
from combee_dspy.engine.loading import candidates, load_candidate
from combee_dspy.engine.playbook_online import OnlinePlaybook
from combee_dspy.engine.playbook_state import FILE, write_state
from combee_dspy.evaluation import Calibration
from combee_dspy.events import (
    BatchPlanned,
    CandidateProposed,
    ErrorRaised,
    HeldoutEvaluated,
    IterationFinished,
    NodeFinished,
    RolloutFinished,
    RunFinished,
    RunStarted,
    ScanFinished,
    ValidationFinished,
)
from combee_dspy.exceptions import ArgumentError, InfrastructureError
from combee_dspy.guards import Guards
from combee_dspy.testing._scripted_lm import ScriptedLM, ScriptedRequest, as_chat
from tests.engine.conftest import Recorder

RULE = re.compile(r"Rule: the word for \w+ is \w+")
BULLET = re.compile(r"\[([\w-]+)\] helpful=\d+ harmful=\d+ :: (.*)")


def section(request: ScriptedRequest, name: str) -> str:
    found = re.search(rf"\[\[ ## {name} ## \]\]\n(.*?)(?=\n\n\[\[ ## |\n\nRespond)", request.last, re.DOTALL)
    return found[1] if found else ""


def answer_of(operations: list[dict[str, Any]]) -> str:
    return as_chat({"operations": json.dumps(operations), "complete": "true"})


def keeper(request: ScriptedRequest) -> str:
    """A reflector and a curator that copy rules."""
    if "key_insight" in request.text:
        rules = RULE.findall(section(request, "feedback"))
        tags = {name: "helpful" for name, _ in BULLET.findall(section(request, "bullets_used"))}
        return as_chat({"bullet_tags": json.dumps(tags), "key_insight": rules[0] if rules else ""})
    known = section(request, "current_playbook")
    rules = [rule for rule in dict.fromkeys(RULE.findall(section(request, "insights"))) if rule not in known]
    operations = [{"op": "ADD", "section": "FORMATS", "content": rule} for rule in rules]
    return answer_of(operations)


def combee(world: Any, artifact: PlaybookArtifact | str = "playbook", answer: Any = keeper, **kwargs: Any) -> Combee:
    given = {"reflection_lm": ScriptedLM(answer, model="scripted/keeper"), "num_threads": 4, "seed": 3, **kwargs}
    return Combee(world.metric, artifact=artifact, **given)


def test_it_learns_and_says_what_happened(world: Any) -> None:
    hook, student = Recorder(), world.student()
    before = student.dump_state()
    program: Any = combee(world, hooks=[hook], reflection_minibatch_size=12).compile(
        student,
        trainset=world.examples(24),
        valset=world.examples(12, start=100),
        heldout=world.examples(12, start=200),
    )
    report = program.combee_report
    assert (report.seed_score, report.best_score) == (pytest.approx(2 / 12), pytest.approx(1.0))
    assert (report.heldout.before, report.heldout.after) == (pytest.approx(2 / 12), pytest.approx(1.0))
    assert report.reason == "one epoch is over"
    assert report.iterations == 2
    assert report.specs["artifact"]["name"] == "playbook"
    assert set(report.costs["by_role"]) >= {"task", "reflector", "proposer"}
    # Twelve animals, two of them known: what the program can do already teaches nothing.
    assert len(program.playbook_report.playbook) == 10
    assert program.playbook_report.done == {"ADD": 10}
    assert read_text(program.signature.instructions.split("===")[2]).playbook.bullets
    assert student.dump_state() == before
    assert isinstance(hook.events[0], RunStarted)
    assert isinstance(hook.events[-1], RunFinished)
    for kind, least in ((BatchPlanned, 2), (ScanFinished, 2), (CandidateProposed, 1), (IterationFinished, 2)):
        assert len(hook.of(kind)) >= least
    assert [event.score for event in hook.of(ValidationFinished)] == [pytest.approx(2 / 12), pytest.approx(1.0)]
    assert len(hook.of(HeldoutEvaluated)) == 1
    # Twenty-four to learn from, twice twelve to validate, twice twelve held out.
    assert len([event for event in hook.of(RolloutFinished) if not event.cached]) == 24 + 24 + 24


def test_bullets_that_helped_are_counted(world: Any) -> None:
    program: Any = combee(world, reflection_minibatch_size=12).compile(world.student(), trainset=world.examples(24))
    bullets = program.playbook_report.playbook.bullets
    assert sum(bullet.helpful for bullet in bullets) > 0
    assert all(bullet.harmful == 0 for bullet in bullets)


@pytest.mark.parametrize("threads", [1, 8])
def test_the_same_seed_gives_the_same_playbook_whatever_the_workers(world: Any, threads: int) -> None:
    def learned(workers: int) -> Any:
        optimizer = combee(world, reflection_minibatch_size=8, num_threads=workers)
        return optimizer.compile(world.student(), trainset=world.examples(24)).playbook_report.playbook

    assert learned(threads) == learned(3)


def test_without_validation_the_last_playbook_is_returned_and_the_report_says_so(world: Any) -> None:
    program: Any = combee(world, reflection_minibatch_size=12).compile(world.student(), trainset=world.examples(12))
    assert math.isnan(program.combee_report.best_score)
    assert "Nothing was validated" in program.combee_report.warnings[0]
    assert program.playbook_report.playbook == program.playbook_report.last


def test_the_best_on_validation_is_returned(world: Any) -> None:
    asked = 0

    def spoils(request: ScriptedRequest) -> str:
        nonlocal asked
        if "key_insight" in request.text:
            right = "Right." in section(request, "feedback")
            return as_chat({"bullet_tags": "{}", "key_insight": "Spoil it."}) if right else keeper(request)
        asked += 1
        if asked == 1:
            return keeper(request)
        ids = [name for name, _ in BULLET.findall(section(request, "current_playbook"))]
        return answer_of([{"op": "DELETE", "ids": [name]} for name in ids])

    artifact = PlaybookArtifact(validate_every=1, epochs=2)
    program: Any = combee(world, artifact, spoils, reflection_minibatch_size=12, aggregator="single-call").compile(
        world.student(), trainset=world.examples(12), valset=world.examples(12, start=100)
    )
    assert program.combee_report.best_score == pytest.approx(1.0)
    assert len(program.playbook_report.playbook) == 10
    assert len(program.playbook_report.last) < 10


def test_validation_is_as_often_as_asked(world: Any) -> None:
    for every, times in ((1, 5), (2, 3), (3, 3), (0, 0), (None, 3)):
        hook = Recorder()
        combee(
            world, PlaybookArtifact(validate_every=every, epochs=2), hooks=[hook], reflection_minibatch_size=6
        ).compile(world.student(), trainset=world.examples(12), valset=world.examples(6, start=100))
        assert len(hook.of(ValidationFinished)) == times, every


def test_malformed_curators_lose_nothing_and_are_reported(world: Any) -> None:
    def garbled(request: ScriptedRequest) -> str:
        if "key_insight" in request.text:
            return keeper(request)
        return answer_of([{"op": "DELETE", "ids": ["ghost"]}, {"op": "EXPLODE"}])

    student = world.student()
    start = PlaybookArtifact().show("Give the word.", "## OTHER\n[mine-1] helpful=1 harmful=0 :: Keep me.")
    student.signature = student.signature.with_instructions(start)
    hook = Recorder()
    program: Any = combee(world, answer=garbled, hooks=[hook], reflection_minibatch_size=12).compile(
        student, trainset=world.examples(12)
    )
    assert [bullet.content for bullet in program.playbook_report.playbook.bullets] == ["Keep me."]
    assert program.playbook_report.ignored >= 2
    assert any("EXPLODE" in event.error for event in hook.of(ErrorRaised))
    # What no bullet answers to is told too, not only counted.
    assert any("ghost, which the playbook does not hold" in event.error for event in hook.of(ErrorRaised))
    assert not any(event.fatal for event in hook.of(ErrorRaised))


def test_answers_that_never_parse_cost_their_shard_only(world: Any) -> None:
    def torn(request: ScriptedRequest) -> str:
        if "operations" in request.text and "ant" in section(request, "insights"):
            return "{"
        return keeper(request)

    hook = Recorder()
    rows = [row for row in world.examples(24) if "dog" not in row.question]
    program: Any = combee(
        world, answer=torn, hooks=[hook], reflection_minibatch_size=22, aggregator=ParallelScan(copies=1)
    ).compile(world.student(), trainset=rows)
    assert len(program.playbook_report.playbook) > 0
    failed = [event.output for event in hook.of(NodeFinished) if event.output.failed]
    assert all(not output.lessons for output in failed)


def test_a_bullet_that_leaves_is_told(world: Any) -> None:
    def blames(request: ScriptedRequest) -> str:
        if "key_insight" in request.text:
            return as_chat({"bullet_tags": json.dumps({"mine-1": "harmful"}), "key_insight": ""})
        return keeper(request)

    student = world.student()
    start = PlaybookArtifact().show("Give the word.", "## OTHER\n[mine-1] helpful=0 harmful=0 :: Number the word.")
    student.signature = student.signature.with_instructions(start)
    hook = Recorder()
    program: Any = combee(world, answer=blames, hooks=[hook], reflection_minibatch_size=12).compile(
        student, trainset=world.examples(12)
    )
    assert not len(program.playbook_report.playbook)
    told = [(event.error, event.fatal) for event in hook.of(ErrorRaised) if event.where == "playbook"]
    assert told == [("mine-1 left: it harms more than it helps", False)]
    # Nothing of any answer was ignored.
    assert program.playbook_report.ignored == 0


@pytest.mark.parametrize(
    "cut", ['"content": "Use the', '"content": "Use the"}]', '"content": "Use the"}]\n\n[[ ## complete']
)
def test_half_an_operation_is_asked_for_again_and_never_applied(world: Any, cut: str) -> None:
    asked = 0

    def torn(request: ScriptedRequest) -> str:
        nonlocal asked
        if "key_insight" in request.text:
            return keeper(request)
        asked += "current_playbook" in request.text
        return '[[ ## operations ## ]]\n[{"op": "UPDATE", "ids": ["mine-1"], ' + cut

    student = world.student()
    start = PlaybookArtifact().show("Give the word.", "## OTHER\n[mine-1] helpful=1 harmful=0 :: Keep me.")
    student.signature = student.signature.with_instructions(start)
    program: Any = combee(world, answer=torn, reflection_minibatch_size=12, aggregator="single-call").compile(
        student, trainset=world.examples(12)
    )
    assert [bullet.content for bullet in program.playbook_report.playbook.bullets] == ["Keep me."]
    assert asked > 1


def test_answers_that_nobody_can_read_are_no_outage(world: Any) -> None:
    def torn(request: ScriptedRequest) -> str:
        return keeper(request) if "key_insight" in request.text else "{"

    hook = Recorder()
    program: Any = combee(world, answer=torn, hooks=[hook], reflection_minibatch_size=12).compile(
        world.student(), trainset=world.examples(24)
    )
    assert program.combee_report.reason == "one epoch is over"
    raised = hook.of(ErrorRaised)
    assert raised
    assert not any(event.fatal for event in raised)


def test_a_dead_proposer_ends_a_run_of_single_examples_after_three(world: Any) -> None:
    def down(request: ScriptedRequest) -> str:
        raise RuntimeError("nobody today")

    hook = Recorder()
    with pytest.raises(InfrastructureError, match="nobody today"):
        combee(world, answer=down, hooks=[hook], reflection_minibatch_size=1, probe=False, num_threads=1).compile(
            world.student(), trainset=world.examples(12)
        )
    assert [event.fatal for event in hook.of(ErrorRaised) if event.where == "reflector"] == [False, False, True]
    assert [event.iteration for event in hook.of(IterationFinished)] == [1, 2]


def test_a_curator_that_always_fails_ends_the_run(world: Any) -> None:
    def down(request: ScriptedRequest) -> str:
        if "key_insight" in request.text:
            return keeper(request)
        raise RuntimeError("no curator today")

    with pytest.raises(InfrastructureError):
        combee(world, answer=down, reflection_minibatch_size=12).compile(world.student(), trainset=world.examples(24))


def test_a_run_resumes_where_it_was_killed(world: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def learned(folder: str, **kwargs: Any) -> Any:
        return combee(world, reflection_minibatch_size=4, log_dir=folder, **kwargs).compile(
            world.student(), trainset=world.examples(16), valset=world.examples(6, start=100)
        )

    whole = learned(str(tmp_path / "whole"))
    part = str(tmp_path / "part")
    written = 0

    def killed(*given: Any) -> None:
        nonlocal written
        written += 1
        write_state(*given)
        if written == 2:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("combee_dspy.engine.playbook.write_state", killed)
        with pytest.raises(KeyboardInterrupt):
            learned(part)
    before = len(world.task_lm.requests)
    rest = learned(part)
    assert rest.playbook_report.playbook == whole.playbook_report.playbook
    assert rest.combee_report.rollouts == whole.combee_report.rollouts
    assert rest.combee_report.seed_score == whole.combee_report.seed_score
    # Eight of sixteen to learn from, and the last validation.
    assert len(world.task_lm.requests) - before == 8 + 6
    assert len(candidates(part)) >= 2
    assert load_candidate(world.student(), part, 0).signature.instructions == world.student().signature.instructions


def test_a_directory_of_another_run_is_refused(world: Any, tmp_path: Any) -> None:
    folder = str(tmp_path)
    combee(world, reflection_minibatch_size=6, log_dir=folder).compile(world.student(), trainset=world.examples(12))
    with pytest.raises(ArgumentError, match="another train"):
        combee(world, log_dir=folder).compile(world.student(), trainset=world.examples(13))
    (tmp_path / FILE).write_text("{", encoding="utf-8")
    with pytest.raises(ArgumentError, match="unreadable"):
        combee(world, log_dir=folder).compile(world.student(), trainset=world.examples(12))


def test_a_compiled_program_goes_on_with_its_playbook(world: Any) -> None:
    first: Any = combee(world, reflection_minibatch_size=6).compile(world.student(), trainset=world.examples(6))
    again: Any = combee(world, reflection_minibatch_size=6).compile(first, trainset=world.examples(12))
    kept = {bullet.id for bullet in first.playbook_report.playbook.bullets}
    assert kept < {bullet.id for bullet in again.playbook_report.playbook.bullets}
    assert again.signature.instructions.count("=== PLAYBOOK ===") == 1


@pytest.mark.parametrize("field", [None, "hints"])
def test_bullets_out_of_sight_are_kept_when_a_program_goes_on(world: Any, field: str | None) -> None:
    student = dspy.Predict("question, hints -> answer") if field else world.student()
    tight = PlaybookArtifact(max_tokens=64, field=field)
    first: Any = combee(world, tight, reflection_minibatch_size=12).compile(student, trainset=world.examples(12))
    report = first.playbook_report
    assert 0 < len(report.shown) < len(report.playbook) == 10
    for budget in (64, 8_000):
        wider = PlaybookArtifact(max_tokens=budget, field=field)
        again: Any = combee(world, wider, reflection_minibatch_size=3).compile(first, trainset=world.examples(3))
        kept = {bullet.id for bullet in report.playbook.bullets}
        assert kept <= {bullet.id for bullet in again.playbook_report.playbook.bullets}


def test_a_playbook_that_was_changed_by_hand_stands(world: Any) -> None:
    tight = PlaybookArtifact(max_tokens=64)
    first: Any = combee(world, tight, reflection_minibatch_size=12).compile(
        world.student(), trainset=world.examples(12)
    )
    mine = tight.show("Give the word.", "## OTHER\n[mine-1] helpful=1 harmful=0 :: Mine.")
    first.signature = first.signature.with_instructions(mine)
    again: Any = combee(world, tight, reflection_minibatch_size=1).compile(first, trainset=world.examples(1))
    assert [bullet.id for bullet in again.playbook_report.playbook.bullets] == ["mine-1"]


def test_a_named_input_field_goes_on_with_its_playbook(world: Any) -> None:
    artifact = PlaybookArtifact(field="hints")
    student = dspy.Predict("question, hints -> answer")
    first: Any = combee(world, artifact, reflection_minibatch_size=6).compile(student, trainset=world.examples(6))
    kept = {bullet.id for bullet in first.playbook_report.playbook.bullets}
    # Saved and loaded, a program has its texts alone.
    del first.playbook_report
    others = world.examples(6, start=6)
    again: Any = combee(world, artifact, reflection_minibatch_size=6).compile(first, trainset=others)
    assert kept
    assert kept < {bullet.id for bullet in again.playbook_report.playbook.bullets}


def test_a_named_input_field_takes_the_playbook(world: Any) -> None:
    student = dspy.Predict("question, hints -> answer")
    artifact = PlaybookArtifact(field="hints")

    program: Any = combee(world, artifact, reflection_minibatch_size=12).compile(student, trainset=world.examples(12))
    assert program.signature.instructions == student.signature.instructions
    program(question="Number 1: word for lynx?")
    assert "Rule: the word for lynx is XNYL" in section(world.task_lm.requests[-1], "hints")
    with pytest.raises(ArgumentError, match="no input field"):
        combee(world, PlaybookArtifact(field="nowhere")).compile(student, trainset=world.examples(12))


def test_several_rounds_look_again_at_failures_only(world: Any) -> None:
    optimizer = combee(world, PlaybookArtifact(rounds=2), reflection_minibatch_size=12)
    optimizer.compile(world.student(), trainset=world.examples(12))
    asked = [request for request in optimizer.reflection_lm.requests if "key_insight" in request.text]
    assert len(asked) == 12 + 10
    assert sum(bool(RULE.search(section(request, "earlier_reflection"))) for request in asked) == 10


@pytest.mark.parametrize("truth", [True, False])
def test_the_reflector_sees_labels_only_where_asked(world: Any, truth: bool) -> None:
    optimizer = combee(world, PlaybookArtifact(ground_truth=truth), reflection_minibatch_size=12)
    optimizer.compile(world.student(), trainset=world.examples(12))
    asked = [request for request in optimizer.reflection_lm.requests if "key_insight" in request.text]
    assert all(("ground_truth" in request.text) == truth for request in asked)


def test_budgets_end_a_run(world: Any) -> None:
    program: Any = combee(world, reflection_minibatch_size=4, budget=Budget(rollouts=8)).compile(
        world.student(), trainset=world.examples(24)
    )
    assert program.combee_report.rollouts == 8
    assert "budget of 8 rollouts" in program.combee_report.reason
    program = combee(world, reflection_minibatch_size=4, max_metric_calls=6 + 9).compile(
        world.student(), trainset=world.examples(24), valset=world.examples(6, start=100)
    )
    assert program.combee_report.rollouts <= 15
    assert program.combee_report.best_score > program.combee_report.seed_score
    program = combee(world, reflection_minibatch_size=4, budget=Budget(calls=10)).compile(
        world.student(), trainset=world.examples(24)
    )
    assert "budget.calls" in program.combee_report.reason


def test_what_does_nothing_for_a_playbook_is_refused(world: Any) -> None:
    ignored: tuple[dict[str, Any], ...] = (
        {"rescue": True},
        {"anchors": world.examples(1)},
        {"aggregator": TopK()},
        {"children": 1},
        {"screen": 4},
        {"finalists": 2},
        {"speculation": 0.0},
        {"lesson_ledger": False},
        {"diversity": False},
        {"operators": ["rewrite"]},
        {"guards": Guards(max_tokens=4_000)},
        {"candidate_selection_strategy": "current_best"},
        {"component_selector": "all"},
        {"max_merge_invocations": 2},
    )
    for given in ignored:
        with pytest.raises(ArgumentError):
            combee(world, **given).compile(world.student(), trainset=world.examples(12))


def test_staleness_in_the_wrong_place_is_told_its_own(world: Any) -> None:
    with pytest.raises(ArgumentError, match=r"PlaybookArtifact\(staleness=1\)"):
        combee(world, staleness=1).compile(world.student(), trainset=world.examples(12))


def test_naive_ace_asks_one_curator_a_batch(world: Any) -> None:
    optimizer = combee(world, aggregator=SingleCall(), reflection_minibatch_size=12)
    optimizer.compile(world.student(), trainset=world.examples(24))
    curators = [request for request in optimizer.reflection_lm.requests if "key_insight" not in request.text]
    # The probe's one-token call is no question.
    assert len([request for request in curators if "current_playbook" in request.text]) <= 2


def test_a_stale_run_predicts_one_minibatch_ahead_and_learns_the_same_lessons(world: Any) -> None:
    found = {}
    for staleness in (0, 1):
        hook = Recorder()
        program: Any = combee(
            world, PlaybookArtifact(staleness=staleness), hooks=[hook], reflection_minibatch_size=12
        ).compile(world.student(), trainset=world.examples(36), valset=world.examples(12, start=100))
        report = program.playbook_report
        assert program.combee_report.best_score == pytest.approx(1.0)
        assert len(report.playbook) == 10
        assert len([event for event in hook.of(RolloutFinished) if not event.cached]) == 36 + 24
        assert [event.iteration for event in hook.of(IterationFinished)] == [1, 2, 3]
        found[staleness] = report.batch_scores
    assert found[0][0] == found[1][0]
    # The second minibatch was predicted before the first had taught anything.
    assert found[1][1] < 0.5 < found[0][1]
    assert found[1][2] > 0.5


@pytest.mark.parametrize("after", [1, 3])
def test_a_stale_run_resumes_with_what_it_would_have_seen(
    world: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    def learned(folder: str) -> Any:
        return combee(
            world, PlaybookArtifact(staleness=1), reflection_minibatch_size=4, log_dir=folder, num_threads=2
        ).compile(world.student(), trainset=world.examples(20), valset=world.examples(6, start=100))

    whole = learned(str(tmp_path / "whole"))
    part, written = str(tmp_path / "part"), 0

    def killed(*given: Any) -> None:
        nonlocal written
        written += 1
        write_state(*given)
        if written == after:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("combee_dspy.engine.playbook.write_state", killed)
        with pytest.raises(KeyboardInterrupt):
            learned(part)
    rest = learned(part)
    assert rest.playbook_report == whole.playbook_report


def test_what_a_stale_run_bought_early_counts_where_its_budget_ends_it(world: Any) -> None:
    artifact = PlaybookArtifact(staleness=1)
    program: Any = combee(world, artifact, reflection_minibatch_size=4, budget=Budget(rollouts=8)).compile(
        world.student(), trainset=world.examples(24)
    )
    assert program.combee_report.rollouts == 8
    program = combee(world, artifact, reflection_minibatch_size=4, budget=Budget(calls=10)).compile(
        world.student(), trainset=world.examples(24)
    )
    assert "budget.calls" in program.combee_report.reason
    asked = [request for request in world.task_lm.requests if "Respond" in request.text]
    assert 4 < program.combee_report.rollouts <= len(asked)


def test_calibration_and_staleness_exclude_each_other(world: Any) -> None:
    with pytest.raises(ArgumentError, match="overlaps minibatches"):
        combee(world, PlaybookArtifact(staleness=1), calibration=Calibration(world.metric)).compile(
            world.student(), trainset=world.examples(12)
        )
    with pytest.raises(ArgumentError, match="all that it has learned"):
        OnlinePlaybook(combee(world, PlaybookArtifact(staleness=1)), world.student())
