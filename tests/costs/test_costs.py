"""Prices, and sums over what calls cost."""

from __future__ import annotations

import pytest
from dspy.clients.model_metadata import model_info

from combee_dspy.costs import Costs, Price, merged, price_of, totals
from combee_dspy.exceptions import ArgumentError
from combee_dspy.records import CallUsage


@pytest.mark.parametrize(
    ("model", "prompt"),
    [
        ("openai/gpt-4o-mini-2024-07-18", 0.15),
        ("gpt-4o-mini", 0.15),
        ("azure/gpt-4o", 2.5),
        ("vertex_ai/gemini-2.5-flash", 0.3),
        ("together_ai/deepseek-ai/DeepSeek-V3.1", 0.6),
        ("deepseek/deepseek-chat", 0.28),
        ("openrouter/openai/gpt-oss-120b:free", 0.0),
        ("embedded/smollm2", 0.0),
        ("openai/simulated-task", 0.0),
        ("dummy", 0.0),
    ],
)
def test_a_model_has_the_price_that_dspy_lists_for_its_provider(model, prompt):
    assert price_of(model).prompt == prompt


def test_a_list_price_is_dspys_own_with_its_price_of_cached_tokens():
    info = model_info("anthropic", "claude-sonnet-4-5")
    price = price_of("anthropic/claude-sonnet-4-5")
    keys = ("input_cost_per_token", "output_cost_per_token", "cache_read_input_token_cost")
    assert (price.prompt, price.completion, price.cached_prompt) == tuple(
        pytest.approx(info[key] * 1_000_000) for key in keys
    )


@pytest.mark.parametrize(
    "model",
    [
        "openai/unheard-of",
        "hosted_vllm/deepseek-chat",
        "openrouter/openai/gpt-oss-120b:nitro",
        "ollama/llama3",
    ],
)
def test_what_a_provider_does_not_list_or_bill_is_unknown_and_not_free(model):
    assert price_of(model) is None


def test_your_own_price_comes_first_with_or_without_provider_and_version():
    own = {"gpt-4o": Price(1.0, 2.0), "my/Model": Price(3.0, 4.0)}

    assert price_of("azure/gpt-4o-2024-08-06", own).prompt == 1.0
    assert price_of("openai/my/model", own).prompt == 3.0
    assert price_of("openrouter/my/model:free", own).prompt == 0.0
    assert price_of("openrouter/my/model:free", {"my/model:free": Price(5.0, 6.0)}).prompt == 5.0
    assert Costs(prices=own).unpriced({"task": "my/model", "proposer": "unheard-of"}) == {
        "proposer": "unheard-of"
    }


def test_cached_prompt_tokens_have_their_own_price():
    assert Price(1.0, 10.0, 0.1).dollars(1_000_000, 0, 400_000) == pytest.approx(0.64)
    assert Price(1.0, 10.0).dollars(1_000_000, 100_000, 400_000) == pytest.approx(2.0)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Price(-1.0, 1.0),
        lambda: Price(float("inf"), 1.0),
        lambda: Costs(prices={"m": 3}),
        lambda: Costs(gpus={"task": 0}),
        lambda: Costs(gpus={"nobody": 1}),
    ],
)
def test_costs_that_make_no_sense_are_refused(make):
    with pytest.raises(ArgumentError):
        make()


def test_prices_may_stand_in_a_file():
    assert Costs(prices={"m": {"prompt": 1.0, "completion": 2.0}}).prices["m"] == Price(1.0, 2.0)


def test_totals_are_sums_by_role_and_model_and_unknown_where_one_price_is():
    rows = [
        CallUsage(
            "task",
            "a",
            calls=3,
            errors=1,
            cached=1,
            prompt_tokens=10,
            completion_tokens=2,
            dollars=0.5,
            seconds=1.0,
        ),
        CallUsage("task", "b", calls=1, prompt_tokens=1, dollars=None),
        CallUsage("proposer", "a", calls=2, dollars=0.25, gpu_seconds=3.0),
    ]
    sums = totals(rows)

    assert (sums.total.calls, sums.total.sent, sums.total.tokens) == (6, 5, 13)
    assert (sums.total.dollars, sums.total.known_dollars) == (None, 0.75)
    assert sums.by_role["proposer"].dollars == 0.25
    assert (sums.by_role["proposer"].gpu_seconds, sums.by_role["task"].gpu_seconds) == (3.0, None)
    assert sums.by_model["task", "a"].errors == 1
    assert totals([]).total.dollars == 0.0


def test_usage_of_several_attempts_becomes_one_row_a_role_and_model():
    first = (CallUsage("task", "m", calls=1, errors=1, dollars=0.0, seconds=0.5),)
    second = (
        CallUsage("task", "m", calls=2, prompt_tokens=5, dollars=0.1, seconds=1.0),
        CallUsage("evaluator", "j", calls=1),
    )

    assert merged(first, second) == (
        CallUsage("evaluator", "j", calls=1),
        CallUsage("task", "m", calls=3, errors=1, prompt_tokens=5, dollars=0.1, seconds=1.5),
    )


def test_sums_are_printed_for_people_and_keep_what_has_a_price():
    priced = CallUsage("task", "a/paid", 2, 0, 0, 1_000, 200, 0.5, None, 1.0)
    unpriced = CallUsage("task", "b/free", 1, 1, 0, 10, 5, None, None, 1.0)
    assert str(totals([priced, unpriced])).splitlines() == [
        "task a/paid  2 calls, 1,000 tokens in, 200 out, $0.5000",
        "task b/free  1 calls, 1 failed, 10 tokens in, 5 out, dollars unknown",
        (
            "all          3 calls, 1 failed, 1,010 tokens in, 205 out, $0.5000 and calls without a"
            " price"
        ),
    ]
