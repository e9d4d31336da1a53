"""The single call, the few that say most, and summaries."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from combee_dspy.aggregators import SingleCall, Summarize, TopK
from combee_dspy.aggregators._prompts import RewriteInstruction, RewriteWithinConstraints
from combee_dspy.aggregators._top_k import choose, informativeness
from combee_dspy.aggregators._vectors import reflection_vectors, text_vectors
from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.records import FailedCall, Reflection
from tests.aggregators.doubles import Answer, World, facts, learner, made

SUBJECTS = (
    "the discount factor belongs in the denominator of the present value",
    "irregular verbs keep their vowel in the subjunctive mood",
    "alkanes with longer chains boil at higher temperatures",
    "the referee restarts play with a corner kick",
)


def about(subject: int, index: int, feedback: str = "") -> Reflection:
    said = feedback or f"Wrong: {SUBJECTS[subject]}."
    return Reflection(
        index, {"Inputs": f"case {index}", "Generated Outputs": f"answer {index}", "Feedback": said}
    )


def test_a_single_call_sees_everything_and_writes_the_instruction() -> None:
    world = World.of(lambda name, inputs: {"new_instruction": "  Do better.\n"})
    lessons = world.run(SingleCall(), made(40))
    assert (lessons.rewrite, lessons.lessons) == ("Do better.", ())
    (call,) = world.service.calls
    assert call.name == "RewriteInstruction"
    assert len(call.records) == 40


@pytest.mark.parametrize(
    "answer", [FailedCall("E: x"), {"new_instruction": " "}, {"new_instruction": None}, {"x": 1}]
)
def test_a_single_call_that_fails_gives_no_rewrite(answer: Answer) -> None:
    lessons = World.of(lambda name, inputs: answer).run(SingleCall(), made(4))
    assert lessons.rewrite is None
    assert lessons.nodes[0].failed


def test_a_single_call_within_tokens_trims_and_says_so() -> None:
    world = World.of(learner)
    world.run(
        SingleCall(max_call_tokens=3_000),
        [Reflection(i, {"Feedback": "long " * 2_000}) for i in range(4)],
    )
    assert world.warnings[0].count("the middle left out") == 4
    assert len(world.service.calls[0].records) == 4


def test_what_the_text_must_respect_is_said_to_the_call_that_writes_it() -> None:
    world = World.of(learner, notes="At most 90 tokens.")
    world.run(SingleCall(), made(4))
    assert world.service.calls[0].inputs["constraints"] == "At most 90 tokens."


@pytest.mark.parametrize("mode", ["central", "diverse"])
@pytest.mark.parametrize("n", [1, 10, 11, 120])
def test_one_call_sees_k_reflections_in_their_order(n: int, mode: Any) -> None:
    world = World.of(learner)
    lessons = world.run(TopK(mode=mode), made(n))
    (call,) = world.service.calls
    assert call.name == "LearnFromExamples"
    shown = [int(record["Feedback"].split()[1]) for record in call.records]
    assert len(shown) == min(n, 10)
    assert shown == sorted(set(shown))
    assert facts(lessons) == set(shown)
    assert lessons.nodes[0].sources == tuple(shown)


@pytest.mark.parametrize("mode", ["central", "diverse"])
def test_the_chosen_cover_small_groups_too(mode: Any) -> None:
    subjects = [subject for subject, size in enumerate((40, 6, 5, 4)) for _ in range(size)]
    world = World.of(learner)
    world.run(TopK(k=4, mode=mode), [about(subject, i) for i, subject in enumerate(subjects)])
    shown = [record["Feedback"] for record in world.service.calls[0].records]
    assert sorted(shown) == sorted(f"Wrong: {subject}." for subject in SUBJECTS)


def test_informative_feedback_comes_before_bare_verdicts() -> None:
    given_ = [about(i % 4, i, "" if i % 3 == 0 else "Correct.") for i in range(30)]
    weights = informativeness(given_)
    assert min(weights[0::3]) > max(weights[1::3] + weights[2::3])
    assert all(i % 3 == 0 for i in choose(reflection_vectors(given_), weights, 8, "central"))


def test_a_score_counts_only_where_the_record_shows_it() -> None:
    shown = [
        Reflection(
            i, {"Feedback": f"This trajectory got a score of {float(i % 2)}.", "Inputs": f"q {i}"}
        )
        for i in range(8)
    ]
    weights = informativeness(shown)
    assert min(weights[0::2]) > max(weights[1::2])
    numbers = [
        Reflection(i, {"Feedback": "Judged.", "Score": i % 2, "Inputs": f"q {i}"}) for i in range(8)
    ]
    weights = informativeness(numbers)
    assert min(weights[0::2]) > max(weights[1::2])
    assert len(set(informativeness([about(0, i) for i in range(8)]))) == 1


def test_a_long_input_does_not_drown_what_was_said() -> None:
    texts = ["lorem ipsum dolor " * 300, "sit amet consetetur " * 300]
    given_ = [
        Reflection(i, {"Inputs": texts[i // 2 % 2], "Feedback": f"Wrong: {SUBJECTS[i % 2]}."})
        for i in range(4)
    ]
    vectors = reflection_vectors(given_)
    near = vectors @ vectors.T
    # 0 and 2 share the feedback, 0 and 1 the input.
    assert near[0, 2] > near[0, 1]


def test_long_reflections_among_the_chosen_are_trimmed_and_never_split() -> None:
    world = World.of(learner)
    world.run(
        TopK(max_call_tokens=4_000),
        [Reflection(i, {"Feedback": "long " * 4_000}) for i in range(12)],
    )
    assert world.warnings[0].endswith("; and 5 more")
    assert len(world.service.calls[0].records) == 10


@given(texts=st.lists(st.text(max_size=40), min_size=1, max_size=12), k=st.integers(1, 14))
@settings(deadline=None)
def test_any_texts_are_compared_and_chosen_from(texts: list[str], k: int) -> None:
    vectors = text_vectors(texts)
    assert ((vectors @ vectors.T) < 1.0001).all()
    for mode in ("central", "diverse"):
        taken = choose(vectors, [1.0] * len(texts), k, mode)  # type: ignore[arg-type]
        assert len(taken) == len(set(taken)) == min(k, len(texts))


def test_diverse_rows_are_farther_apart_than_central_ones() -> None:
    texts = [f"{SUBJECTS[0]} case {i}" for i in range(20)] + [
        "zzz qqq",
        "§§ 17",
        "completely other words here",
    ]
    vectors = text_vectors(texts)
    diverse, central = (
        choose(vectors, [1.0] * len(texts), 4, mode) for mode in ("diverse", "central")
    )
    assert set(diverse) >= {20, 21, 22}
    near = vectors @ vectors.T
    assert near[np.ix_(diverse, diverse)].sum() <= near[np.ix_(central, central)].sum()


def test_records_of_any_shape_are_read() -> None:
    odd = [{}, {"Feedback": None}, {"Feedback": 3}, {"a": {"b": ("c", 1.5)}}, {1: "\ud800"}]
    given_ = [Reflection(i, record) for i, record in enumerate(odd)]  # type: ignore[arg-type]
    assert len(choose(reflection_vectors(given_), informativeness(given_), 3, "central")) == 3


def test_summaries_are_made_per_shard_and_read_by_one_call() -> None:
    world = World.of(learner)
    lessons = world.run(Summarize(), made(40))
    assert facts(lessons) == set(range(40))
    assert world.service.counts == {"SummarizeExamples": 6, "LearnFromSummaries": 1}
    assert {call.inputs["most_points"] for call in world.service.calls[:6]} == {20}
    assert [node.level for node in lessons.nodes] == [1] * 6 + [2]
    assert sorted(index for node in lessons.nodes[:6] for index in node.sources) == list(range(40))


def test_few_reflections_need_no_summary() -> None:
    world = World.of(learner)
    assert facts(world.run(Summarize(), made(3))) == {0, 1, 2}
    assert world.service.counts == {"LearnFromExamples": 1}


def test_few_reflections_too_long_for_one_call_are_read_by_several() -> None:
    given_ = [Reflection(i, {"Trace": "x" * 3_000, "Feedback": f"fact {i}"}) for i in range(3)]
    lessons = World.of(learner).run(Summarize(max_call_tokens=3_000), given_)
    assert facts(lessons) == {0, 1, 2}
    assert [node.level for node in lessons.nodes][-1] == 2


def test_summaries_share_the_room_of_the_last_call() -> None:
    def script(name: str, inputs: Mapping[str, Any]) -> Answer:
        if name == "SummarizeExamples":
            return {
                "key_points": [
                    f"{r['Feedback']} {'long ' * 90}" for r in inputs["examples_with_feedback"]
                ]
            }
        return {"lessons": ["Learned."]}

    world = World.of(script)
    world.run(Summarize(max_call_tokens=4_000), made(90))
    last = world.service.calls[-1]
    assert sum(len(text) for points in last.inputs["summaries"] for text in points) / 4 < 3_000
    assert all(last.inputs["summaries"])
    assert len(world.warnings) == len(last.inputs["summaries"])


def test_shards_grow_where_there_would_be_too_many_summaries() -> None:
    world = World.of(learner)
    world.run(Summarize(max_call_tokens=2_000), made(100))
    assert world.service.counts["SummarizeExamples"] == 10
    world = World.of(learner)
    world.run(Summarize(max_call_tokens=2_000, shard_items=2), made(60))
    assert world.service.counts["SummarizeExamples"] < 12


def test_a_summary_that_fails_is_missing_and_without_the_last_call_the_points_are_the_lessons() -> (
    None
):
    def failing(name: str, inputs: Mapping[str, Any]) -> Answer:
        if name == "SummarizeExamples" and any(
            r["Feedback"] == "fact 0" for r in inputs["examples_with_feedback"]
        ):
            return FailedCall("TimeoutError: too slow")
        return learner(name, inputs)

    lessons = World.of(failing).run(Summarize(), made(40))
    (failed,) = [node for node in lessons.nodes if node.failed]
    assert facts(lessons) == set(range(40)) - set(failed.sources)
    last: list[Answer] = [FailedCall("E: x"), {"lessons": []}, {"lessons": None}, {"x": 1}]
    for answer in last:

        def script(name: str, inputs: Mapping[str, Any], answer: Answer = answer) -> Answer:
            return answer if name == "LearnFromSummaries" else learner(name, inputs)

        lessons = World.of(script).run(Summarize(), made(40))
        assert facts(lessons) == set(range(40))
        assert lessons.nodes[-1].failed


@pytest.mark.parametrize(
    ("strategy", "params"),
    [
        (SingleCall, {"max_call_tokens": 0}),
        (TopK, {"k": 0}),
        (TopK, {"k": 10_000}),
        (TopK, {"mode": "x"}),
        (TopK, {"max_call_tokens": 10}),
        (TopK, {"max_lessons": 0}),
        (Summarize, {"shard_items": 1}),
        (Summarize, {"max_call_tokens": 10}),
    ],
)
def test_parameters_out_of_range_are_refused_by_name(strategy: Any, params: dict[str, Any]) -> None:
    with pytest.raises(ArgumentValueError) as caught:
        strategy(**params)
    assert next(iter(params)) in caught.value.argument


def test_constraints_change_nothing_else_of_what_is_asked() -> None:
    plain, constrained = RewriteInstruction, RewriteWithinConstraints
    assert constrained.instructions == plain.instructions
    assert [*constrained.input_fields] == [*plain.input_fields, "constraints"]
    assert [*constrained.output_fields] == [*plain.output_fields]
