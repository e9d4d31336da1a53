import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from combee_dspy.operators import (
    Insert,
    OperatorOutcome,
    Reorder,
    draw_operators,
    operator_labels,
    operator_weights,
)

NAMES = ("insert", "delete", "rephrase", "reorder")


def outcomes(name, lift, count=3, accepted=True):
    return [OperatorOutcome(name, number, lift, accepted) for number in range(count)]


ANY = st.lists(
    st.builds(
        OperatorOutcome,
        operator=st.sampled_from([*NAMES, "gone"]),
        update=st.integers(0, 60),
        lift=st.none() | st.floats(-1, 1),
        accepted=st.booleans(),
    ),
    max_size=40,
)


def test_labels_tell_operators_of_one_name_apart():
    assert operator_labels([Insert(), Reorder(), Insert(max_tokens=9)]) == (
        "insert",
        "reorder",
        "insert 2",
    )


def test_uniform_in_the_first_updates_and_learned_after_them():
    result = outcomes("insert", 0.5) + outcomes("delete", None, accepted=False)
    for update in range(4):
        assert operator_weights(result, NAMES, update) == dict.fromkeys(NAMES, 0.25)
    assert operator_weights(result, NAMES, 4)["insert"] > 0.25


def test_rejected_children_count_against_an_operator():
    result = (
        outcomes("insert", 0.2)
        + outcomes("delete", 0.2)
        + outcomes("delete", None, 6, accepted=False)
    )
    weights = operator_weights(result, NAMES, 5)
    assert weights["insert"] > weights["reorder"] > weights["delete"]


def test_a_loss_on_validation_counts_as_nothing_gained_however_large():
    small = operator_weights(outcomes("insert", 0.2) + outcomes("delete", -0.01), NAMES, 5)
    large = operator_weights(outcomes("insert", 0.2) + outcomes("delete", -0.9), NAMES, 5)
    assert small == large
    assert small["delete"] < small["reorder"]


def test_children_not_validated_yet_do_not_count():
    result = outcomes("insert", 0.2)
    assert operator_weights(result + outcomes("delete", None), NAMES, 5) == operator_weights(
        result, NAMES, 5
    )


def test_nothing_gained_keeps_all_equal():
    result = outcomes("insert", None, accepted=False) + outcomes("delete", -0.5)
    assert operator_weights(result, NAMES, 8) == dict.fromkeys(NAMES, 0.25)


def test_the_scale_of_the_metric_does_not_matter():
    low, high = (
        operator_weights(
            outcomes("insert", 0.02 * scale) + outcomes("delete", 0.01 * scale), NAMES, 5
        )
        for scale in (1, 100)
    )
    assert low == pytest.approx(high)


def test_old_gains_fade():
    early = [
        OperatorOutcome("insert", 0, 0.4, True),
        *(OperatorOutcome("insert", 39, 0.0, True) for _ in range(3)),
    ]
    late = [
        OperatorOutcome("delete", 0, 0.0, True),
        *(OperatorOutcome("delete", 39, 0.05, True) for _ in range(3)),
    ]
    weights = operator_weights(early + late, NAMES, 40)
    assert weights["delete"] > weights["insert"]


def test_one_lucky_child_does_not_decide():
    others = [OperatorOutcome(name, 4, 0.02, True) for name in NAMES[1:] for _ in range(4)]
    weights = operator_weights([OperatorOutcome("insert", 4, 0.9, True), *others], NAMES, 5)
    assert 0.25 < weights["insert"] < 0.7


def test_an_operator_never_tried_has_an_average_chance():
    weights = operator_weights(outcomes("insert", 0.4) + outcomes("delete", 0.0), NAMES, 5)
    assert weights["insert"] > weights["rephrase"] == weights["reorder"] > weights["delete"]


@given(ANY, st.integers(4, 80), st.integers(0, 9))
def test_weights_are_probabilities_above_the_floor_in_whatever_order_outcomes_came(
    found, update, seed
):
    weights = operator_weights(found, NAMES, update)
    assert list(weights) == list(NAMES)
    assert math.isclose(math.fsum(weights.values()), 1.0)
    assert all(weight >= 0.05 - 1e-12 for weight in weights.values())
    assert operator_weights(random.Random(seed).sample(found, len(found)), NAMES, update) == weights


def test_many_operators_keep_half_an_equal_share():
    names = [str(number) for number in range(100)]
    weights = operator_weights(outcomes("0", 1.0, 20), names, 20)
    assert min(weights.values()) >= 0.005
    assert weights["0"] == max(weights.values())


def test_it_finds_the_better_operator_and_lets_none_die():
    drawn = []
    for seed in range(20):
        stream = random.Random(seed)
        results = []
        for update in range(40):
            for name in draw_operators(operator_weights(results, NAMES, update), 1, stream):
                wins = stream.random() < (0.6 if name == "rephrase" else 0.1)
                results.append(OperatorOutcome(name, update, 0.05 if wins else None, wins))
                drawn.append(name)
        assert {outcome.operator for outcome in results[5:]} == set(NAMES)
    # By chance it would be a quarter.
    assert drawn.count("rephrase") > 0.4 * len(drawn)


@given(
    st.dictionaries(st.text(max_size=3), st.floats(0, 9), min_size=1, max_size=6),
    st.integers(0, 15),
)
def test_none_is_drawn_again_before_each_was_drawn(weights, count):
    drawn = draw_operators(weights, count, random.Random(count))
    assert len(drawn) == count
    for start in range(0, count, len(weights)):
        part = drawn[start : start + len(weights)]
        assert len(set(part)) == len(part)
    assert drawn == draw_operators(weights, count, random.Random(count))


def test_weights_decide_who_is_drawn_first_and_zeros_are_equal():
    stream = random.Random(0)
    firsts = [draw_operators({"a": 0.9, "b": 0.1}, 2, stream)[0] for _ in range(300)]
    assert 240 < firsts.count("a") < 295
    assert {draw_operators({"a": 0.0, "b": 0.0}, 1, stream)[0] for _ in range(40)} == {"a", "b"}
