"""Strategies given by name, as a mapping or as an object."""

from __future__ import annotations

import pytest

from combee_dspy import Guards, registry
from combee_dspy.exceptions import ArgumentError, ArgumentTypeError, ArgumentValueError


def test_a_key_beside_name_and_params_is_refused_and_told_its_place():
    with pytest.raises(ArgumentValueError, match=r"fan_in.*params") as caught:
        registry.resolve("aggregator", {"name": "parallel-scan", "fan_in": 8})
    assert caught.value.argument == "aggregator"


def test_a_parameter_of_a_wrong_type_is_named_once():
    with pytest.raises(ArgumentTypeError) as caught:
        registry.build("aggregator", "union", {"copies": []})
    assert caught.value.argument == "Union.copies"
    with pytest.raises(ArgumentTypeError) as caught:
        registry.build("aggregator", "union", {"no_such": 1})
    assert "no_such" in caught.value.argument


def test_equal_options_have_equal_hashes():
    one, other = Guards(keep={"a": ["x"], "b": ["y"]}), Guards(keep={"b": ["y"], "a": ["x"]})
    assert one == other
    assert hash(one) == hash(other)


@pytest.mark.parametrize("params", [["fan_in"], "fan_in"])
def test_params_that_are_no_mapping_are_refused_by_name(params):
    with pytest.raises(ArgumentError, match=r"aggregator\.params are no mapping"):
        registry.resolve("aggregator", {"name": "union", "params": params})
    with pytest.raises(ArgumentError, match="is no spec of a strategy"):
        registry.Spec.from_dict({"kind": "aggregator", "name": "union", "params": params})
