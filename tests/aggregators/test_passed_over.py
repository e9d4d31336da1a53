"""A model that takes in all of few examples and nothing of many reads shards in halves."""

from __future__ import annotations

from dataclasses import replace

import pytest

from combee_dspy.aggregators import ReferenceScan
from combee_dspy.records import FailedCall, Reflection
from tests.aggregators.doubles import World

PRODUCTS = (
    "tent desk globe kettle violin shovel wallet teapot compass blanket printer jacket puzzle lamp"
    " candle drill"
)
RULES = [
    f"A message about the {product} goes to the desk of {product.title()}by."
    for product in PRODUCTS.split()
]
# Sixteen reflections are four shards of four.
SHARDS, SHARD = 4, 4


def reflections(feedback=""):
    return [
        Reflection(place, {"Feedback": feedback or f"Wrong. {rule}"})
        for place, rule in enumerate(RULES)
    ]


def lines(inputs):
    """Return what the examples of a call teach, with citations where they have numbers."""
    return [
        (f"[{record['Example']}] " if "Example" in record else "")
        + str(record["Feedback"]).removeprefix("Wrong. ")
        for record in inputs["examples_with_feedback"]
    ]


def reader(most):
    """Return a model that takes in all of so many examples, and nothing of more."""

    def answer(name, inputs):
        if "lesson_lists" in inputs:
            return {"lessons": [line for lessons in inputs["lesson_lists"] for line in lessons]}
        return {"lessons": lines(inputs) if len(inputs["examples_with_feedback"]) <= most else []}

    return answer


def reads(world):
    sizes = (
        len(call.records) for call in world.service.calls if "examples_with_feedback" in call.inputs
    )
    return sorted(sizes, reverse=True)


@pytest.mark.parametrize("aggregator", [ReferenceScan(copies=1, levels=0)])
@pytest.mark.parametrize(("most", "read"), [(4, [4]), (2, [4, 2, 2]), (1, [4, 2, 2, 1, 1, 1, 1])])
def test_a_shard_of_which_nothing_was_taken_in_is_read_in_halves(aggregator, most, read):
    world = World.of(reader(most))
    lessons = world.run(aggregator, reflections())
    assert sorted(lesson.text for lesson in lessons.lessons) == sorted(RULES)
    assert reads(world) == sorted(SHARDS * read, reverse=True)
    assert len({call.place for call in world.service.calls}) == len(world.service.calls)
    assert bool([text for text in world.warnings if "read again in halves" in text]) == (
        len(read) > 1
    )


def test_a_model_that_never_learns_is_asked_for_a_quarter_at_the_least():
    world = World.of(lambda name, inputs: {"lessons": []})
    lessons = world.run(ReferenceScan(copies=1, fan_in=16, levels=0), reflections() * 4)
    shards = len(ReferenceScan(copies=1, fan_in=16, levels=0).shards(64, world.context) or ())
    assert not lessons.lessons
    assert len(world.service.calls) == shards * (1 + 2 + 4)


@pytest.mark.parametrize(
    ("text", "given"),
    [
        ("\n".join(["Answer.", *RULES]), reflections()),
        ("Answer.", reflections(feedback="Wrong: expected 3, got 4.")),
    ],
    ids=["the text says it already", "feedback that says nothing"],
)
def test_an_answer_that_had_nothing_to_add_is_final(text, given):
    def silent(name, inputs):
        return {"lessons": []}

    world = World.of(silent, text=text)
    world.run(ReferenceScan(copies=1, levels=0), given)
    assert reads(world) == [SHARD] * SHARDS


def test_a_half_without_a_mistake_is_not_read():
    given = [
        replace(reflection, perfect=place > 0) for place, reflection in enumerate(reflections()[:3])
    ]
    world = World.of(reader(0))
    world.run(ReferenceScan(copies=1, levels=0), given)
    assert len(world.service.calls) > 1
    mistake = given[0].record["Feedback"]
    assert all(
        mistake in [record["Feedback"] for record in call.records] for call in world.service.calls
    )


@pytest.mark.parametrize(
    ("lesson", "read"),
    [
        ("[1, 2, 3, 4] Ask whoever deals with a {product} and the like.", [4]),
        ("[1, 2, 3, 4] The order should be in the format ZZZZ.", [4, 2, 2, 1, 1, 1, 1]),
        ("[1] A message about an [item] goes to a desk.", [4, 2, 2, 1, 1, 1, 1]),
    ],
    ids=["in other words", "about nothing", "a template"],
)
def test_a_citation_is_believed_where_the_answer_is_about_an_example(lesson, read):
    def citing(name, inputs):
        record = inputs["examples_with_feedback"][0]
        return {"lessons": [lesson.format(product=str(record["Feedback"]).split()[5])]}

    world = World.of(citing)
    world.run(ReferenceScan(copies=1, levels=0), reflections())
    assert reads(world) == sorted(SHARDS * read, reverse=True)


def test_an_answer_that_repeats_the_inputs_passed_over_the_feedback():
    asked = [
        Reflection(
            place, {"Inputs": {"message": f"My {product} is late."}, "Feedback": f"Wrong. {rule}"}
        )
        for place, (product, rule) in enumerate(zip(PRODUCTS.split(), RULES, strict=True))
    ]

    def repeating(name, inputs):
        records = inputs["examples_with_feedback"]
        if len(records) == 1:
            return {"lessons": lines(inputs)}
        return {"lessons": [f"[{each['Example']}] {each['Inputs']['message']}" for each in records]}

    world = World.of(repeating)
    lessons = world.run(ReferenceScan(copies=1, levels=0), asked)
    assert reads(world) == sorted(SHARDS * [4, 2, 2, 1, 1, 1, 1], reverse=True)
    assert sorted(lesson.text for lesson in lessons.lessons) == sorted(RULES)


def test_an_answer_stays_where_its_halves_fail():
    def failing(name, inputs):
        whole = len(inputs["examples_with_feedback"]) == SHARD
        return {"lessons": []} if whole else FailedCall("TimeoutError: too slow")

    lessons = World.of(failing).run(ReferenceScan(copies=1, levels=0), reflections())
    assert [node.failed for node in lessons.nodes if node.level == 1] == [None] * SHARDS


def test_an_answer_that_leaves_out_the_numbers_of_examples_took_them_in():
    mistakes = [
        Reflection(n, {"Feedback": f"Wrong: the quotient of both amounts is {1000 + n}."})
        for n in range(16)
    ]
    world = World.of(
        lambda _, inputs: {
            "lessons": [
                f"[{record['Example']}] {RULES[int(record['Feedback'][-3:-1])]}"
                for record in inputs["examples_with_feedback"]
            ]
        }
    )
    world.run(ReferenceScan(copies=1, levels=0), mistakes)
    assert reads(world) == SHARDS * [SHARD]
