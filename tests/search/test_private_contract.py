"""What ``_private`` and the search rely on in DSPy and gepa. A release that moves one of these
fails here first.
"""

from __future__ import annotations

import dataclasses
import inspect
from importlib import metadata
from typing import Any

import dspy
import pytest
from dspy.clients import execution
from dspy.clients.call_result import CallResult
from dspy.teleprompt.gepa.gepa import AUTO_RUN_SETTINGS, GEPA
from dspy.teleprompt.gepa.gepa_utils import DspyAdapter
from gepa.core.callbacks import GEPACallback
from gepa.core.state import GEPAState, ValsetEvaluation
from packaging.requirements import Requirement
from packaging.version import Version

from combee_dspy._private import (
    StdlibAsyncTransport,
    StdlibTransport,
    detailed_results,
    list_prices,
    new_state,
)
from combee_dspy.search import _callbacks, _gepa


def test_versions_are_the_supported_ones() -> None:
    assert Version("3.4.1") <= Version(metadata.version("dspy")) < Version("3.5")
    pins = [
        Requirement(line) for line in metadata.requires("dspy") or () if line.startswith("gepa")
    ]
    assert any(Version(metadata.version("gepa")) in pin.specifier for pin in pins)


def test_auto_budget_reads_no_instance() -> None:
    assert set(AUTO_RUN_SETTINGS) == {"light", "medium", "heavy"}
    made = GEPA(
        lambda a, b, c, d, e: 0.0, auto="light", reflection_lm=dspy.LM("openai/x", api_key="x")
    )
    assert GEPA.auto_budget(None, 2, 6, 50) == made.auto_budget(2, 6, 50)


def test_the_table_of_prices_came_with_dspy_and_names_providers() -> None:
    entry = list_prices()["gpt-4o-mini"]
    assert entry["litellm_provider"] == "openai"
    assert entry["input_cost_per_token"] > 0 < entry["output_cost_per_token"]


@pytest.mark.parametrize("name", ["propose_new_texts", "build_program"])
def test_adapter_methods(name: str) -> None:
    adapter = DspyAdapter(dspy.Predict("a -> b"), lambda *_: 0.0, {})
    assert callable(getattr(adapter, name))


def test_the_states_list_of_components_may_be_shortened() -> None:
    evaluation: Any = ValsetEvaluation({0: None}, {0: 1.0})
    state = new_state(
        {"a": "x", "hidden": "y"},
        evaluation,
        ["a"],
        track_best_outputs=False,
        frontier_type="instance",
    )
    assert isinstance(state, GEPAState)
    assert state.list_of_named_predictors == ["a"]
    assert state.named_predictor_id_to_update_next_for_program_candidate == [0]
    assert (state.i, state.total_num_evals, state.num_full_ds_evals) == (-1, 1, 1)
    state.full_program_trace.append({"i": 0})
    state.update_state_with_new_program([0], {"a": "z", "hidden": "y"}, evaluation, None, 1)
    assert state.is_consistent()

    class Builder:
        def build_program(self, candidate: Any) -> Any:
            return dspy.Predict("a -> b")

    found = detailed_results(state, Builder(), None, 0)
    assert (found.best_idx, found.parents) == (0, [[None], [0]])


def test_a_call_of_an_lm_is_made_of_the_parts_that_an_attempt_is_made_of() -> None:
    source = inspect.getsource(dspy.LM.__call__.__wrapped__)
    assert "finalize(self, call, execute(self, call))" in source
    cut = inspect.getsource(execution.execute)
    assert (
        cut.index("_cached(lm, call, False)")
        < cut.index("_engine(")
        < cut.index("_store(lm, call, result, False)")
    )
    assert {"cache", "kwargs"} <= {one.name for one in dataclasses.fields(execution.PreparedCall)}
    assert {"responses", "outputs", "usage"} <= {one.name for one in dataclasses.fields(CallResult)}


def test_a_connection_is_held_when_its_request_is_sent_and_read_by_its_socket() -> None:
    source = inspect.getsource(StdlibTransport.stream)
    places = [source.index(part) for part in ("acquire_slot(", "_send_request(", "_read_head(")]
    assert places == sorted(places)
    for part in (StdlibTransport._read_head, StdlibTransport._iter_body):
        assert "conn.sock.settimeout(" in inspect.getsource(part)
        assert "conn.sock.recv(" in inspect.getsource(part)
    on_a_loop = inspect.getsource(StdlibAsyncTransport._do_stream)
    assert on_a_loop.index("acquire_slot(") < on_a_loop.index("_send_request(")
    assert "_engine_store" in inspect.getsource(execution)


def test_every_event_that_gepa_tells_of_is_told() -> None:
    theirs = {name for name in dir(GEPACallback) if name.startswith("on_")}

    ours = "".join(inspect.getsource(module) for module in (_callbacks, _gepa))
    merges = {name for name in theirs if name.startswith("on_merge")}
    assert {name for name in theirs - merges if f'"{name}"' not in ours} == set()
