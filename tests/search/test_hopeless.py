"""Runs in which nothing can be learned, or of which nothing can be claimed, say so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dspy
import pytest

from combee_dspy import Budget, Search, Validation
from combee_dspy.exceptions import TooManyFailuresError
from combee_dspy.records import CallUsage, FailureCount
from combee_dspy.search._budget import Purse
from combee_dspy.search._judging import Failures
from combee_dspy.stopping import Limits
from combee_dspy.tracking import Progress, runs
from tests.slow import slow_but
from tests.worlds import (
    TwoSteps,
    World,
    animal_of,
    code_word,
    events,
    gepa_metric,
    in_kind,
    metric,
    proposer_answer,
    rows,
    task_answer,
)


def number_of(question: str) -> int:
    return int(question.split()[1].rstrip(":"))


class Raising(dspy.Module):
    """Raises on rows of some numbers, before or after its only call."""

    def __init__(self, start: int, end: int, *, after: bool = False) -> None:
        super().__init__()
        self.step = dspy.Predict("question -> answer")
        self.bad, self.after = range(start, end), after

    def forward(self, question: str) -> dspy.Prediction:
        if number_of(question) in self.bad and not self.after:
            raise ValueError("the table has no such column")
        bought = self.step(question=question)
        if number_of(question) in self.bad:
            raise ValueError("the table has no such column")
        return bought


def unread(request: Any) -> str:
    return "this cannot be read"


def scored_but(*numbers: int) -> Any:
    @gepa_metric
    def judged(gold: Any, pred: Any, pred_name: str | None) -> Any:
        if number_of(gold.question) % 100 in numbers:
            raise KeyError("reference")
        return metric(gold, pred)

    return judged


HOPELESS: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "reflections": ({"proposer": unread}, {}, "proposer calls unparsed"),
    "train rows": ({}, {"student": Raising(0, 100)}, "8 of 8 train rollouts raised"),
    "validation rows": ({}, {"student": Raising(100, 200)}, "validation rollouts raised"),
    "small minibatches": (
        {},
        {"student": Raising(0, 100), "reflection_minibatch_size": 3},
        "train rollouts raised",
    ),
    "answers": ({"task": unread}, {}, "rollouts unparsed"),
    "metric": ({}, {"metric": scored_but(*range(100))}, "8 of 8 train rollouts unscored"),
    "playbook": (
        {"proposer": unread},
        {"artifact": "playbook", "search": Search(keep="trunk")},
        "reflector calls unparsed",
    ),
}
"""By what fails: the scripts of the LMs, arguments, and the error."""


@pytest.mark.parametrize("keep", slow_but(("trunk",), ["pareto", "trunk"]))
@pytest.mark.parametrize(("scripts", "options", "error"), HOPELESS.values(), ids=HOPELESS)
def test_a_run_that_can_learn_nothing_ends_with_what_to_look_at(
    tmp_path: Path, scripts: Any, options: Any, error: str, keep: Any
) -> None:
    size = 6 if "proposer" in scripts and "artifact" not in options else 24
    options = {
        "reflection_minibatch_size": size,
        "max_metric_calls": 400,
        "search": Search(keep=keep),
        **options,
    }
    with pytest.raises(TooManyFailuresError, match=error) as caught:
        World.made(**scripts).compile(log_dir=tmp_path, heldout=6, **options)
    assert caught.value.remedy
    assert caught.value.error in str(caught.value)
    assert not rows(tmp_path, "SELECT 1 FROM effect WHERE purpose = 'heldout'")
    assert rows(tmp_path, "SELECT count(*) AS n FROM effect WHERE kind = 'rollout'")[0]["n"] < 200
    (run,) = runs(tmp_path)
    assert (run["state"], run["supports_claims"]) == ("failed", 0)


@pytest.mark.parametrize(
    ("options", "warning"),
    [
        ({"student": Raising(0, 100)}, "The program raised on the first row"),
        ({"student": Raising(100, 200)}, "The program raised on the first row"),
        ({"metric": scored_but(*range(100))}, "The metric raised on the first row"),
    ],
    ids=["train", "validation", "metric"],
)
def test_a_row_of_each_split_is_tried_beside_few_others(
    tmp_path: Path, options: dict[str, Any], warning: str, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(TooManyFailuresError):
        World.made().compile(
            log_dir=tmp_path, reflection_minibatch_size=24, max_metric_calls=400, **options
        )
    assert warning in caplog.text
    began = rows(
        tmp_path,
        "SELECT purpose, started, ended FROM effect WHERE kind = 'rollout' ORDER BY started",
    )
    assert {row["purpose"] for row in began[:2]} == {"train", "validation"}
    tried = max(row["ended"] for row in began[:2])
    few = World.made().combee().settings.num_threads
    assert sum(row["started"] < tried for row in began) <= few, "no more than may run at once"


def test_a_run_that_was_stopped_goes_on_where_more_may_fail_and_buys_nothing_twice(
    tmp_path: Path,
) -> None:
    world = World.made(proposer=unread)
    options = {"log_dir": tmp_path, "reflection_minibatch_size": 6, "max_metric_calls": 80}
    with pytest.raises(TooManyFailuresError):
        world.compile(**options)
    asked = len(world.task_lm.requests)
    with pytest.raises(TooManyFailuresError):
        world.compile(**options)
    assert len(world.task_lm.requests) == asked
    world.compile(**options, validation_options=Validation(stop_failures=2))
    bought = rows(tmp_path, "SELECT candidate, example FROM effect WHERE kind = 'rollout'")
    assert (
        len({tuple(row.values()) for row in bought}) == len(bought) == len(world.task_lm.requests)
    )


@pytest.mark.parametrize("keep", ["pareto", "trunk"])
def test_a_candidate_that_learned_the_format_ends_nothing(tmp_path: Path, keep: Any) -> None:
    def mumbling(request: Any) -> str:
        return task_answer(request) if "the word for" in request.system else "no field at all"

    def proposer(request: Any) -> str:
        rules = ["Write the fields.", "Rule: the word for cat is TAC"]
        return in_kind(request, {"lessons": rules, "new_instruction": "\n".join(rules)})

    world = World.made(mumbling, proposer)
    report = world.compile(
        log_dir=tmp_path,
        reflection_minibatch_size=24,
        max_metric_calls=80,
        search=Search(keep=keep),
    ).combee_report
    assert report.best_score > report.seed_score
    assert "AdapterParseError" in world.proposer_lm.requests[0].text, (
        "an answer that did not parse becomes feedback"
    )
    assert ("train rollouts", "unparsed") in {(part.kind, part.cause) for part in report.failures}


def test_metric_errors_on_a_part_of_the_rows_are_counted_and_support_no_claim(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    world = World.made()
    options: dict[str, Any] = {"heldout": 12, "reflection_minibatch_size": 24}
    report = world.compile(
        metric=scored_but(3, 4, 11, 15), log_dir=tmp_path, tracker=(Progress(),), **options
    ).combee_report
    assert report.best_score > report.seed_score
    assert not report.supports_claims
    assert any("rollouts failed, so this run supports no claim" in text for text in report.warnings)
    assert caplog.text.count("train rollouts failed") == 1
    failures = {failure.kind: failure for failure in report.failures}
    assert failures["train rollouts"].role == "evaluator"
    assert failures["train rollouts"].cause == "unscored"
    for split, name in (("train", "train"), ("validation", "validation"), ("heldout", "held-out")):
        sql = "SELECT count(error) AS failed, count(*) AS n FROM effect WHERE split = ?"
        (count,) = rows(tmp_path, sql, split)
        failure = failures[f"{name} rollouts"]
        assert (failure.failed, failure.of) == (count["failed"], count["n"])
    unscored = "could not score this, which says nothing about the answer: KeyError"
    assert any(unscored in request.text for request in world.proposer_lm.requests)
    assert World.made().compile(metric=metric, **options).combee_report.supports_claims


def test_what_fails_is_warned_of_once_though_another_failure_leads_later() -> None:
    effects: Any = None  # no journal is read
    failures = Failures(effects, Validation())
    counts = [
        [FailureCount("train rollouts", "task", "raised", number, 20, f"Error: {number}")]
        for number in (5, 6)
    ]
    assert failures.warnings(counts[0]) == failures.warnings(counts[1])


def test_minibatches_whose_only_failures_are_the_metrics_are_not_reflected_on(
    tmp_path: Path,
) -> None:
    def known(request: Any) -> str:
        return in_kind(request, {"answer": code_word(animal_of(request.last))})

    world = World.made(known)
    options = Validation(stop_failures=2)
    report = world.compile(
        log_dir=tmp_path,
        metric=scored_but(1, 7),
        reflection_minibatch_size=6,
        validation_options=options,
    ).combee_report
    assert not world.proposer_lm.requests
    assert any("No new text was ever proposed" in text for text in report.warnings)


@pytest.mark.parametrize("artifact", ["instruction", "playbook"])
@pytest.mark.parametrize("after", [False, True])
def test_the_reflection_of_a_row_that_raised_holds_the_error(artifact: str, after: bool) -> None:
    world = World.made(proposer=proposer_answer)
    options = Validation(stop_failures=2)
    world.compile(
        Raising(3, 5, after=after),
        artifact=artifact,
        validation_options=options,
        reflection_minibatch_size=12,
        train=12,
        budget=Budget(updates=1),
    )
    error = "ValueError: the table has no such column"
    assert any(error in request.text for request in world.proposer_lm.requests)


def test_a_step_that_was_never_reached_holds_no_other_steps_answer() -> None:
    def first_fails(request: Any) -> str:
        asks_second = "hint" in request.last.split("Respond with")[0]
        return task_answer(request) if asks_second or "word for ant" in request.last else "nothing"

    world = World.made(first_fails)
    world.compile(
        TwoSteps(),
        component_selector="all",
        validation_options=Validation(stop_failures=2),
        max_metric_calls=40,
    )
    assert any("AdapterParseError" in request.text for request in world.proposer_lm.requests)


def test_a_held_out_set_that_can_tell_no_difference_supports_no_claim(tmp_path: Path) -> None:
    report = World.made().compile(heldout=1, log_dir=tmp_path).combee_report
    assert report.heldout.n == 1
    assert not report.supports_claims
    assert "can tell no difference" in report.warnings[0]
    assert any("can tell no difference" in event["text"] for event in events(tmp_path, "warning"))
    assert World.made().compile(heldout=12).combee_report.supports_claims


def test_a_budget_that_leaves_room_for_no_update_supports_no_claim() -> None:
    report = World.made().compile(heldout=12, max_metric_calls=8).combee_report
    assert report.updates == 0
    assert not report.supports_claims
    assert any("No new text was ever proposed" in text for text in report.warnings)


@pytest.mark.parametrize(("budget", "compared"), [(12, False), (14, False), (16, True)])
def test_a_budget_that_compares_no_new_text_says_so(budget: int, compared: bool) -> None:
    report = World.made().compile(validation=24, max_metric_calls=budget).combee_report
    (drawn,) = (text for text in report.warnings if "drawn by the seed" in text)
    assert drawn.startswith("Texts are validated on 8 of 24 validation rows")
    nothing = any("nothing was compared and the student is returned" in s for s in report.warnings)
    assert nothing is not compared
    assert compared or report.best_score == report.seed_score


def test_by_how_much_a_budget_in_tokens_was_passed_is_warned_of() -> None:
    usage = [CallUsage("task", "m", 1, prompt_tokens=90, completion_tokens=35)]
    (warning,) = Purse(Limits(tokens=100), [("rollout", usage)]).passed()
    assert warning.startswith("The budget of 100 tokens was passed by 25")
    assert not Purse(Limits(tokens=125), [("rollout", usage)]).passed()


class Counting(dspy.Module):
    """Keeps state on itself, as no program should."""

    def __init__(self) -> None:
        super().__init__()
        self.answering, self.seen = dspy.Predict("question -> answer"), []

    def forward(self, question: str) -> dspy.Prediction:
        self.seen.append(question)
        return self.answering(question=question)


def test_a_program_that_keeps_state_on_itself_is_warned_of(caplog):
    World.made().compile(Counting(), max_metric_calls=40)
    assert "changed the program itself" in caplog.text
    caplog.clear()
    World.made().compile(max_metric_calls=40)
    assert "changed the program itself" not in caplog.text
