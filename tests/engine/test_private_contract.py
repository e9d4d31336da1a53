"""What ``engine/_private.py`` relies on in DSPy and gepa. A release that moves one of these fails here first."""

from __future__ import annotations

import inspect
from importlib import metadata
from typing import Any

import dspy
import gepa
import pytest
from dspy.teleprompt.gepa.gepa import AUTO_RUN_SETTINGS, GEPA
from dspy.teleprompt.gepa.gepa_utils import DspyAdapter
from gepa.proposer.reflective_mutation.reflective_mutation import ReflectiveMutationProposer
from packaging.requirements import Requirement
from packaging.version import Version

from combee_dspy import Combee


def test_versions_are_the_supported_ones() -> None:
    assert Version("3.4.1") <= Version(metadata.version("dspy")) < Version("3.5")
    pins = [Requirement(line) for line in metadata.requires("dspy") or () if line.startswith("gepa")]
    assert any(Version(metadata.version("gepa")) in pin.specifier for pin in pins)


def test_every_argument_of_gepa_is_an_argument_of_combee() -> None:
    theirs, ours = inspect.signature(GEPA).parameters, inspect.signature(Combee).parameters
    assert set(theirs) <= set(ours)
    # The one default that differs is documented: the batch size is planned.
    differing = {name for name in theirs if theirs[name].default != ours[name].default}
    assert differing == {"reflection_minibatch_size"}
    assert theirs["reflection_minibatch_size"].default == 3


def test_auto_budget_reads_no_instance() -> None:
    assert set(AUTO_RUN_SETTINGS) == {"light", "medium", "heavy"}
    made = GEPA(lambda a, b, c, d, e: 0.0, auto="light", reflection_lm=dspy.LM("openai/x", api_key="x"))
    assert GEPA.auto_budget(None, 2, 6, 50) == made.auto_budget(2, 6, 50)


@pytest.mark.parametrize(
    "name", ["propose_new_texts", "evaluate", "batch_evaluate", "make_reflective_dataset", "get_adapter_state"]
)
def test_adapter_methods(name: str) -> None:
    assert callable(getattr(DspyAdapter, name))


def test_adapter_names_its_flex_paths() -> None:
    adapter = DspyAdapter(dspy.Predict("a -> b"), lambda *_: 0.0, {})
    assert adapter._flex_paths == set()


def test_no_trajectory_raises_the_bare_class() -> None:
    adapter = DspyAdapter(dspy.Predict("a -> b"), lambda *_: 0.0, {})
    batch = gepa.EvaluationBatch(outputs=[], scores=[], trajectories=[])
    with pytest.raises(Exception, match="No valid predictions"):
        adapter.make_reflective_dataset({"self": "x"}, batch, ["self"])


def test_a_reflection_strategy_needs_an_adapter_without_a_proposer() -> None:
    source = inspect.getsource(ReflectiveMutationProposer.__init__)
    assert "adapter.propose_new_texts is not None" in source
    assert "reflect_many" in inspect.getsource(ReflectiveMutationProposer._propose_texts_batch)


def test_state_has_the_list_that_selection_reads() -> None:
    from gepa.core.state import GEPAState, ValsetEvaluation

    state: Any = GEPAState({"a": "x", "b": "y"}, ValsetEvaluation({0: None}, {0: 1.0}))
    assert state.list_of_named_predictors == ["a", "b"]
