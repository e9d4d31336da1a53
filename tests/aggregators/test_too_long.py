"""What services answer to a prompt that is too long, and a run against such a model."""

from __future__ import annotations

import re

import dspy
import pytest
from dspy.utils.exceptions import ContextWindowExceededError

from combee_dspy import Budget, Combee, Search, Validation
from combee_dspy.aggregators import ReferenceScan
from combee_dspy.exceptions import TooManyFailuresError
from combee_dspy.records import FailedCall
from combee_simulator import SimulatedConfig, SimulatedService
from tests.worlds import (
    GATES,
    World,
    events,
    examples,
    gate_metric,
    gate_rows,
    in_kind,
    rows,
)


@pytest.mark.parametrize(
    ("error", "too_long"),
    [
        ("ContextWindowExceededError: [m] whatever", True),
        (
            (
                "LMInvalidRequestError: [m] This model's maximum context length is 8192 tokens."
                " However, you requested"
            ),
            True,
        ),
        ("LMInvalidRequestError: [m] prompt is too long: 208310 tokens > 200000 maximum", True),
        (
            (
                "LMInvalidRequestError: [m] the request exceeds the available context size. try"
                " increasing"
            ),
            True,
        ),
        (
            (
                "LMInvalidRequestError: [m] The input token count (1048577) exceeds the maximum"
                " number of tokens"
            ),
            True,
        ),
        ("LMInvalidRequestError: [m] Request too large", True),
        ("LMInvalidRequestError: [m] `inputs` tokens + `max_new_tokens` must be <= 4096", True),
        ("LMInvalidRequestError: [m] temperature must be at most 2", False),
        ("AdapterParseError: the answer says that the context length is too long", False),
        ("LMRateLimitError: [m] Request too large for gpt-4o: tokens per minute", False),
    ],
)
def test_what_services_say_of_a_prompt_that_is_too_long(error, too_long):
    assert FailedCall(error).too_long is too_long


def learn_from_gates(folder, context_window):
    config = SimulatedConfig(time_scale=0.0, context_window=context_window)
    with SimulatedService(config, GATES) as service, dspy.context(lm=service.lm(num_retries=0)):
        combee = Combee(
            gate_metric,
            reflection_lm=service.lm(num_retries=0),
            budget=Budget(updates=2),
            log_dir=folder,
            reflection_minibatch_size=24,
            num_threads=8,
            tracker=(),
            validation=Validation(probe=False),
        )
        return combee.compile(
            dspy.Predict("question -> answer"), trainset=gate_rows(0, 48), valset=gate_rows(48, 78)
        ).combee_report


def test_a_run_against_a_model_with_a_short_context_learns(tmp_path):
    report = learn_from_gates(tmp_path, 1_000)
    refused = rows(tmp_path, "SELECT error FROM effect WHERE kind = 'call' AND error IS NOT NULL")
    assert refused
    assert all("maximum context length" in row["error"] for row in refused)
    assert all(not node["failed"] for scan in events(tmp_path, "scan") for node in scan["nodes"])
    assert report.best_score > report.seed_score
    assert not report.failures, "what was read in halves has not failed"
    assert not any("calls failed" in text for text in report.warnings)


def test_a_run_against_a_model_that_no_example_fits_says_what_to_change(tmp_path):
    with pytest.raises(TooManyFailuresError, match="lower the aggregator's max_call_tokens"):
        learn_from_gates(tmp_path, 400)


def test_later_updates_begin_with_what_fits_whatever_the_number_of_workers(tmp_path):
    def short(request):
        if len(request.text) > 14_000:
            raise ContextWindowExceededError(message="the prompt is too long")
        found = dict.fromkeys(re.findall(r"Number (\d+): word for (\w+)", request.text))
        lessons = [
            f"[{place}] Wrong word for {animal} in number {number}"
            for place, (number, animal) in enumerate(found, start=1)
        ]
        return in_kind(request, {"lessons": lessons})

    def long(row):
        return row.copy(question=f"{'context word ' * 150}{row.question}").with_inputs("question")

    def reads(workers):
        world, folder = World.made(proposer=short), tmp_path / str(workers)
        combee = world.combee(
            budget=Budget(updates=4),
            log_dir=folder,
            num_threads=workers,
            reflection_minibatch_size=9,
            search=Search(staleness=1),
            skip_perfect_score=False,
            aggregator=ReferenceScan(levels=0),
        )
        with dspy.context(lm=world.task_lm):
            combee.compile(
                dspy.Predict("question -> answer"),
                trainset=[long(row) for row in examples(36)],
                valset=[long(row) for row in examples(8, 100)],
            )
        sql = "SELECT step, key, error FROM effect WHERE key GLOB 'call/*/read/*'"
        return sorted(tuple(row.values()) for row in rows(folder, sql))

    calls = reads(1)
    assert reads(16) == calls
    assert {step for step, _, _ in calls} == {0, 1, 2, 3}
    assert {step for step, _, error in calls if error} == {0, 1}
