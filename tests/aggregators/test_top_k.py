from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from combee_dspy.aggregators import TopK
from combee_dspy.aggregators._choose import choose, informativeness
from combee_dspy.aggregators._vectors import reflection_vectors, text_vectors
from combee_dspy.events import NodeFinished, ReflectionTrimmed, ScanFinished, ScanStarted
from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.records import FailedCall, Lessons, Reflection

SUBJECTS = (
    "the discount factor belongs in the denominator of the present value",
    "irregular verbs keep their vowel in the subjunctive mood",
    "alkanes with longer chains boil at higher temperatures",
    "the referee restarts play with a corner kick",
)


def about(subject: int, index: int, feedback: str = "") -> Reflection:
    said = feedback or f"Wrong: {SUBJECTS[subject]}."
    return Reflection(index, {"Inputs": f"case {index}", "Generated Outputs": f"answer {index}", "Feedback": said})


@pytest.mark.parametrize("mode", ["central", "diverse"])
@pytest.mark.parametrize("n", [1, 5, 10, 11, 120])
def test_one_call_sees_k_reflections_in_their_order(
    n: int, mode: Any, context_of: Any, learner: Any, reflections: Any, facts: Any
) -> None:
    context, predict, events = context_of(learner)
    lessons = TopK(mode=mode).aggregate(reflections(n), context)
    ((name, (values,)),) = predict.batches
    assert name == "LearnFromExamples"
    shown = [int(record["Feedback"].split()[1]) for record in values["examples_with_feedback"]]
    assert len(shown) == min(n, 10)
    assert shown == sorted(set(shown))
    assert facts(lessons) == set(shown)
    assert lessons.nodes[0].sources == tuple(shown)
    assert [type(event) for event in events] == [ScanStarted, NodeFinished, ScanFinished]
    assert events[0].reflections == n


@pytest.mark.parametrize("mode", ["central", "diverse"])
def test_the_chosen_cover_small_groups_too(mode: Any, context_of: Any, learner: Any) -> None:
    sizes = (40, 6, 5, 4)
    subjects = [subject for subject, size in enumerate(sizes) for _ in range(size)]
    context, predict, _ = context_of(learner)
    TopK(k=4, mode=mode).aggregate([about(subject, i) for i, subject in enumerate(subjects)], context)
    shown = [record["Feedback"] for record in predict.batches[0][1][0]["examples_with_feedback"]]
    assert sorted(shown) == sorted(f"Wrong: {subject}." for subject in SUBJECTS)


def test_informative_feedback_comes_before_bare_verdicts() -> None:
    given = [about(i % 4, i, "" if i % 3 == 0 else "Correct.") for i in range(30)]
    weights = informativeness(given)
    assert min(weights[0::3]) > max(weights[1::3] + weights[2::3])
    taken = choose(reflection_vectors(given), weights, 8, "central")
    assert all(i % 3 == 0 for i in taken)


def test_a_score_counts_only_where_the_record_shows_it() -> None:
    shown = [
        Reflection(i, {"Feedback": f"This trajectory got a score of {float(i % 2)}.", "Inputs": f"q {i}"})
        for i in range(8)
    ]
    weights = informativeness(shown)
    assert min(weights[0::2]) > max(weights[1::2])
    numbers = [Reflection(i, {"Feedback": "Judged.", "Score": i % 2, "Inputs": f"q {i}"}) for i in range(8)]
    weights = informativeness(numbers)
    assert min(weights[0::2]) > max(weights[1::2])
    assert len(set(informativeness([about(0, i) for i in range(8)]))) == 1


def test_a_long_input_does_not_drown_what_was_said() -> None:
    texts = ["lorem ipsum dolor " * 300, "sit amet consetetur " * 300]
    given = [Reflection(i, {"Inputs": texts[i // 2 % 2], "Feedback": f"Wrong: {SUBJECTS[i % 2]}."}) for i in range(4)]
    vectors = reflection_vectors(given)
    near = vectors @ vectors.T
    # 0 and 2 share the feedback, 0 and 1 the input.
    assert near[0, 2] > near[0, 1]


def test_long_reflections_are_trimmed_and_never_split(context_of: Any) -> None:
    context, predict, events = context_of(lambda name, values: {"lessons": ["x y"]})
    given = [Reflection(i, {"Feedback": "long " * 4_000}) for i in range(12)]
    TopK(max_call_tokens=4_000).aggregate(given, context)
    assert [event.action for event in events if isinstance(event, ReflectionTrimmed)] == ["trimmed"] * 10
    assert len(predict.batches[0][1][0]["examples_with_feedback"]) == 10


def test_a_failed_call_is_a_failed_node(context_of: Any, reflections: Any) -> None:
    context, _, _ = context_of(lambda name, values: FailedCall("E: x"))
    lessons = TopK().aggregate(reflections(20), context)
    assert lessons.lessons == ()
    assert [node.failed for node in lessons.nodes] == ["E: x"]


def test_no_reflections_need_no_call(context_of: Any, learner: Any) -> None:
    context, predict, _ = context_of(learner)
    assert TopK().aggregate([], context) == Lessons("answer")
    assert predict.batches == []


@pytest.mark.parametrize(
    "params", [{"k": 0}, {"mode": "x"}, {"max_call_tokens": 10}, {"max_lessons": 0}, {"k": 10_000}]
)
def test_parameters_out_of_range_are_refused_by_name(
    params: dict[str, Any], context_of: Any, learner: Any, reflections: Any
) -> None:
    context, predict, _ = context_of(learner)
    with pytest.raises(ArgumentValueError) as caught:
        TopK(**params).aggregate(reflections(9), context)
    assert caught.value.argument == next(iter(params))
    assert predict.batches == []


@given(texts=st.lists(st.text(max_size=40), min_size=1, max_size=12), k=st.integers(1, 14))
def test_any_texts_are_compared_and_chosen_from(texts: list[str], k: int) -> None:
    vectors = text_vectors(texts)
    assert ((vectors @ vectors.T) < 1.0001).all()
    for mode in ("central", "diverse"):
        taken = choose(vectors, [1.0] * len(texts), k, mode)  # type: ignore[arg-type]
        assert len(taken) == len(set(taken)) == min(k, len(texts))


def test_diverse_rows_are_farther_apart_than_central_ones() -> None:
    texts = [f"{SUBJECTS[0]} case {i}" for i in range(20)] + ["zzz qqq", "§§ 17", "completely other words here"]
    vectors = text_vectors(texts)
    near = vectors @ vectors.T

    def closeness(taken: list[int]) -> float:
        return float(sum(near[i, j] for i in taken for j in taken if i < j))

    weights = [1.0] * len(texts)
    diverse, central = (choose(vectors, weights, 4, mode) for mode in ("diverse", "central"))
    assert set(diverse) >= {20, 21, 22}
    assert closeness(diverse) <= closeness(central)


def test_records_of_any_shape_are_read() -> None:
    deep: Any = "x"
    for _ in range(3_000):
        deep = [deep]
    odd = [{}, {"Feedback": None}, {"Feedback": 3}, {"Inputs": deep}, {"a": {"b": ("c", 1.5)}}, {1: "\ud800"}]
    given = [Reflection(i, record) for i, record in enumerate(odd)]  # type: ignore[arg-type]
    assert len(choose(reflection_vectors(given), informativeness(given), 3, "central")) == 3
