from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.operators import OperatorOutcome, draw_operators, operator_weights

NAMES = ("insert", "delete", "rephrase", "reorder")


def outcomes(name: str, lift: float | None, count: int = 3, accepted: bool = True) -> list[OperatorOutcome]:
    return [OperatorOutcome(name, number, lift, accepted) for number in range(1, count + 1)]


ANY = st.lists(
    st.builds(
        OperatorOutcome,
        operator=st.sampled_from([*NAMES, "gone"]),
        iteration=st.integers(1, 60),
        lift=st.none() | st.floats(-1, 1),
        accepted=st.booleans(),
    ),
    max_size=40,
)


def test_uniform_before_iteration_five_and_learned_from_it_on() -> None:
    found = outcomes("insert", 0.5) + outcomes("delete", None, accepted=False)
    for iteration in range(1, 5):
        assert operator_weights(found, NAMES, iteration=iteration) == dict.fromkeys(NAMES, 0.25)
    assert operator_weights(found, NAMES, iteration=5)["insert"] > 0.25


def test_rejected_children_count_against_an_operator() -> None:
    found = outcomes("insert", 0.2) + outcomes("delete", 0.2) + outcomes("delete", None, 6, accepted=False)
    weights = operator_weights(found, NAMES, iteration=6)
    assert weights["insert"] > weights["reorder"] > weights["delete"]


def test_a_loss_on_validation_counts_as_nothing_gained_however_large() -> None:
    small = operator_weights(outcomes("insert", 0.2) + outcomes("delete", -0.01), NAMES, iteration=6)
    large = operator_weights(outcomes("insert", 0.2) + outcomes("delete", -0.9), NAMES, iteration=6)
    assert small == large
    assert small["delete"] < small["reorder"]


def test_children_not_validated_yet_do_not_count() -> None:
    found = outcomes("insert", 0.2)
    assert operator_weights(found + outcomes("delete", None), NAMES, iteration=6) == operator_weights(
        found, NAMES, iteration=6
    )


def test_nothing_gained_keeps_all_equal() -> None:
    found = outcomes("insert", None, accepted=False) + outcomes("delete", -0.5)
    assert operator_weights(found, NAMES, iteration=9) == dict.fromkeys(NAMES, 0.25)


def test_the_scale_of_the_metric_does_not_matter() -> None:
    low, high = (
        operator_weights(outcomes("insert", 0.02 * scale) + outcomes("delete", 0.01 * scale), NAMES, iteration=6)
        for scale in (1, 100)
    )
    assert low == pytest.approx(high)


def test_old_gains_fade() -> None:
    early = [OperatorOutcome("insert", 1, 0.4, True), *(OperatorOutcome("insert", 40, 0.0, True) for _ in range(3))]
    late = [OperatorOutcome("delete", 1, 0.0, True), *(OperatorOutcome("delete", 40, 0.05, True) for _ in range(3))]
    weights = operator_weights(early + late, NAMES, iteration=41)
    assert weights["delete"] > weights["insert"]


def test_one_lucky_child_does_not_decide() -> None:
    others = [OperatorOutcome(name, 5, 0.02, True) for name in NAMES[1:] for _ in range(4)]
    weights = operator_weights([OperatorOutcome("insert", 5, 0.9, True), *others], NAMES, iteration=6)
    assert 0.25 < weights["insert"] < 0.7


def test_an_operator_never_tried_has_an_average_chance() -> None:
    found = outcomes("insert", 0.4) + outcomes("delete", 0.0)
    weights = operator_weights(found, NAMES, iteration=6)
    assert weights["insert"] > weights["rephrase"] == weights["reorder"] > weights["delete"]


@given(ANY, st.integers(5, 80), st.integers(0, 9))
def test_weights_are_probabilities_above_the_floor_whatever_came(
    found: list[OperatorOutcome], iteration: int, seed: int
) -> None:
    weights = operator_weights(found, NAMES, iteration=iteration)
    assert list(weights) == list(NAMES)
    assert math.isclose(math.fsum(weights.values()), 1.0)
    assert all(weight >= 0.05 - 1e-12 for weight in weights.values())
    mixed = random.Random(seed).sample(found, len(found))
    assert operator_weights(mixed, NAMES, iteration=iteration) == weights


def test_many_operators_keep_half_an_equal_share() -> None:
    names = [str(number) for number in range(100)]
    weights = operator_weights(outcomes("0", 1.0, 20), names, iteration=21)
    assert min(weights.values()) >= 0.005
    assert weights["0"] == max(weights.values())


def test_it_finds_the_better_operator_and_lets_none_die() -> None:
    drawn: list[str] = []
    for seed in range(20):
        stream = random.Random(seed)
        found: list[OperatorOutcome] = []
        for iteration in range(1, 41):
            weights = operator_weights(found, NAMES, iteration=iteration)
            for name in draw_operators(weights, 1, stream):
                wins = stream.random() < (0.6 if name == "rephrase" else 0.1)
                found.append(OperatorOutcome(name, iteration, 0.05 if wins else None, wins))
                drawn.append(name)
        assert {outcome.operator for outcome in found[5:]} == set(NAMES)
    # By chance it would be a quarter.
    assert drawn.count("rephrase") > 0.4 * len(drawn)


@pytest.mark.parametrize("names", [(), ("a", "a")])
def test_names_must_be_there_and_differ(names: tuple[str, ...]) -> None:
    with pytest.raises(ArgumentValueError, match="names"):
        operator_weights([], names, iteration=5)


@pytest.mark.parametrize("floor", [-0.1, 1.1, float("nan")])
def test_the_floor_is_a_probability(floor: float) -> None:
    with pytest.raises(ArgumentValueError, match="floor"):
        operator_weights([], NAMES, iteration=5, floor=floor)


@given(st.dictionaries(st.text(max_size=3), st.floats(0, 9), min_size=1, max_size=6), st.integers(0, 15))
def test_none_is_drawn_again_before_each_was_drawn(weights: dict[str, float], count: int) -> None:
    drawn = draw_operators(weights, count, random.Random(count))
    assert len(drawn) == count
    for start in range(0, count, len(weights)):
        part = drawn[start : start + len(weights)]
        assert len(set(part)) == len(part)
    assert drawn == draw_operators(weights, count, random.Random(count))


def test_weights_decide_who_is_drawn_first() -> None:
    stream = random.Random(0)
    firsts = [draw_operators({"a": 0.9, "b": 0.1}, 2, stream)[0] for _ in range(300)]
    assert 240 < firsts.count("a") < 295


def test_all_zero_weights_are_equal() -> None:
    stream = random.Random(0)
    assert {draw_operators({"a": 0.0, "b": 0.0}, 1, stream)[0] for _ in range(40)} == {"a", "b"}


@pytest.mark.parametrize("weights", [{}, {"a": -1.0}, {"a": math.nan}, {"a": math.inf}])
def test_weights_that_cannot_be_drawn_from_are_errors(weights: dict[str, float]) -> None:
    with pytest.raises(ArgumentValueError):
        draw_operators(weights, 1, random.Random(0))


def test_a_negative_count_is_an_error() -> None:
    with pytest.raises(ArgumentValueError):
        draw_operators({"a": 1.0}, -1, random.Random(0))


@pytest.mark.parametrize("lift", [math.nan, math.inf])
def test_a_lift_is_a_number(lift: float) -> None:
    with pytest.raises(ArgumentValueError, match="lift"):
        OperatorOutcome("a", 1, lift, True)
