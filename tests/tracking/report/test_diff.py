from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from combee_dspy.operators import encode_demonstrations
from combee_dspy.records import Demonstration
from combee_dspy.tracking.report import _diff
from combee_dspy.tracking.report._diff import diff, readable

LINES = st.lists(st.sampled_from(["a b", "a c", "", "x", "long line of words"]), max_size=12).map("\n".join)


def told(old: str, new: str, kind: str) -> list[str]:
    return ["".join(text for text, _ in line.spans) for line in diff(old, new) if line.kind in ("same", kind)]


@given(LINES, LINES)
def test_both_texts_can_be_read_from_their_comparison(old: str, new: str) -> None:
    gaps = [line for line in diff(old, new) if line.kind == "gap"]
    if not gaps:
        assert "\n".join(told(old, new, "del")) == old
        assert "\n".join(told(old, new, "add")) == new


@given(LINES, LINES)
def test_the_same_is_true_where_a_block_is_too_large_to_compare(old: str, new: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_diff, "_LARGEST", 0)
        if not [line for line in diff(old, new) if line.kind == "gap"]:
            assert "\n".join(told(old, new, "add")) == new


def test_a_changed_word_is_marked_within_its_line() -> None:
    lines = diff("Answer with a number.", "Answer with a short number.")
    assert [line.kind for line in lines] == ["del", "add"]
    assert [text for text, changed in lines[1].spans if changed] == ["short "]


def test_long_unchanged_stretches_are_counted() -> None:
    text = "\n".join(map(str, range(100)))
    lines = diff(text, text + "\nnew")
    assert lines[0].spans[0][0] == "… 97 unchanged lines"
    assert [line.kind for line in lines] == ["gap", "same", "same", "same", "add"]


def test_demonstrations_are_decoded_and_what_is_none_stays_as_it_is() -> None:
    text = encode_demonstrations([Demonstration({"question": "EPS?"}, {"answer": "2.5"})])
    assert readable(text) == "Demonstration 1\n  question: EPS?\n  → answer: 2.5"
    assert readable("{not json") == "{not json"
    assert readable('{"a": 1, "b": "c"}') == "a: 1\nb: c"
    assert readable("[" * 10_000) == "[" * 10_000
    assert readable("{" * 10_000) == "{" * 10_000
