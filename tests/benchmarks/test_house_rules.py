from __future__ import annotations

import re
from collections import Counter
from typing import get_args

import dspy
import pytest

from combee_dspy.benchmarks import HouseRules, load_benchmark
from combee_dspy.exceptions import ArgumentError, DataSourceError

PINS = {
    "train": "ef1573ccb62423c0a301b51fa61f10a99016340f201ac39c2545842d60f4a9cd",
    "validation": "5c9c0ecb870b0247141847dcb9abe03c87a976854d3eb9ac9c43c0dc9f7777f1",
    "heldout": "3be8595cdfead30f499f97bb5bd5558d551bec210768af876899fa4bdba3d4e1",
}


def test_the_rows_of_seed_0_never_change():
    assert load_benchmark("house-rules", pin=PINS).pins == PINS
    with pytest.raises(DataSourceError):
        load_benchmark("house-rules", seed=1, pin=PINS)


def test_other_sizes_leave_the_held_out_rows_alone():
    assert load_benchmark("house-rules", train=30, validation=7).pins["heldout"] == PINS["heldout"]


@pytest.mark.parametrize("seed", range(3))
def test_each_rule_is_needed_equally_often_and_no_row_is_in_two_splits(seed):
    loaded = HouseRules(seed=seed).load()
    assert loaded.notes == ()
    assert len(set(loaded.lessons)) == 24
    for split in loaded.splits:
        counts = Counter(example.rule for example in split.examples)
        assert set(counts) == set(loaded.lessons)
        assert max(counts.values()) == min(counts.values())
    messages = [example.message for split in loaded.splits for example in split.examples]
    assert len(set(messages)) == len(messages)


def test_a_rule_alone_decides_and_no_two_give_the_same_answer():
    loaded = HouseRules(rules=40, heldout=40).load()
    answers = [example.answer for example in loaded.heldout.examples]
    assert len(set(answers)) == 40
    for example in loaded.heldout.examples:
        topics = [lesson.split()[4] for lesson in loaded.lessons]
        assert sum(topic in example.message for topic in topics) == 1
        # The answer stands in the rule, or is the rule's letter before the message's own number.
        assert example.answer in example.rule or (
            f"letter {example.answer[0]} " in example.rule and example.answer[1:] in example.message
        )


def test_the_score_is_exact_and_feedback_names_the_broken_rule():
    loaded = HouseRules().load()
    example = loaded.train.examples[0]
    assert loaded.metric(example, dspy.Prediction(answer=f" {example.answer}. ")).score == 1.0
    for answer in (
        "",
        None,
        f"{example.answer}x",
        f"The code {example.answer}",
        example.answer.swapcase(),
    ):
        graded = loaded.metric(example, dspy.Prediction(answer=answer))
        assert graded.score == 0.0
        assert example.rule in graded.feedback
    assert example.inputs().keys() == ["message"]


def test_sizes_are_checked():
    with pytest.raises(ArgumentError):
        HouseRules(rules=41)
    with pytest.raises(ArgumentError, match="99,000 rows"):
        HouseRules(train=99_000).load()


def test_a_choice_of_codes_is_in_the_type_of_the_answer_and_leaves_the_rules_topics_alone():
    loaded = load_benchmark("house-rules", rules=6, choices=True, heldout=12)
    codes = get_args(loaded.signature.output_fields["answer"].annotation)
    assert sorted(codes) == list(codes)
    assert set(codes) == {example.answer for example in loaded.heldout.examples}
    assert all(
        re.fullmatch(r"A message about an? \w+ gets the code \w\d\.", rule)
        for rule in loaded.lessons
    )
    topics = [rule.split()[4] for rule in load_benchmark("house-rules", rules=6).lessons]
    assert [rule.split()[4] for rule in loaded.lessons] == topics
