from __future__ import annotations

import dspy
import pytest
from dspy.clients import capabilities, costs

from combee_dspy.lms import metadata_once
from combee_dspy.lms.simulated import SimulatedService

ORIGINALS = (capabilities.model_info, costs.model_info)


@pytest.fixture
def searches(monkeypatch):
    asked = []

    def search(provider, model, *, namespaces=None):
        asked.append((provider, model))
        return {"input_cost_per_token": 1e-6, "output_cost_per_token": 2e-6, "supports_reasoning": True}

    for place in (capabilities, costs):
        monkeypatch.setattr(place, "model_info", search)
    return asked


def test_the_table_is_searched_once_a_model_and_place(searches):
    with SimulatedService() as service, metadata_once():
        lms = [service.lm(), service.lm().copy(model="openai/other")]
        for lm in (*lms, *lms, *lms):
            lm("hello")
            assert lm.supports_reasoning
        # The price is what it was without.
        used = lms[0].history[-1]
        usage = used["usage"]
        expected = 1e-6 * usage["prompt_tokens"] + 2e-6 * usage["completion_tokens"]
        assert used["cost"] == pytest.approx(expected)
    # By what knows abilities and by what knows prices, which goes by the name that the service gives.
    provider = "openai-chat"
    assert sorted(searches) == [(provider, "other"), (provider, "simulated"), (provider, "simulated")]


def test_nothing_is_left_behind_and_blocks_may_overlap():
    first, second = metadata_once(), metadata_once()
    first.__enter__()
    second.__enter__()
    assert capabilities.model_info is not ORIGINALS[0]
    assert dspy.LM("openai/gpt-4o", api_key="x").supports_response_schema
    first.__exit__(None, None, None)
    assert capabilities.model_info is not ORIGINALS[0]
    second.__exit__(None, None, None)
    assert (capabilities.model_info, costs.model_info) == ORIGINALS


def test_what_one_caller_changes_another_does_not_see():
    with metadata_once():
        costs.model_info("openai-chat", "gpt-4o")["input_cost_per_token"] = -1
        assert costs.model_info("openai-chat", "gpt-4o") == ORIGINALS[1]("openai-chat", "gpt-4o")


def test_another_replacement_is_left_where_it_is(monkeypatch):
    monkeypatch.setattr(costs, "model_info", costs.model_info)
    with metadata_once():
        costs.model_info = other = lambda *_, **__: {}
    assert costs.model_info is other
    assert capabilities.model_info is ORIGINALS[0]
