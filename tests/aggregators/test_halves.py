"""A call that takes in nothing, or is longer than the model takes, is read again in halves."""

from __future__ import annotations

from dataclasses import replace

import pytest

from combee_dspy.aggregators import ParallelScan, ReferenceScan, Union, _citations
from combee_dspy.aggregators._prompts import AddCitedLessons
from combee_dspy.lessons import word_vectors
from combee_dspy.records import FailedCall, Reflection
from tests.aggregators.doubles import World, facts, learner, mistakes

PRODUCTS = ["tent", "desk", "globe", "kettle", "violin", "shovel", "wallet", "teapot"]
PRODUCTS += ["compass", "blanket", "printer", "jacket", "puzzle", "lamp", "candle", "drill"]
RULES = [f"A message about the {word} goes to the desk of {word.title()}by." for word in PRODUCTS]
# Sixteen reflections are four shards of four.
SHARDS, SHARD = 4, 4
SCAN = ReferenceScan(copies=1, levels=0)
ALL_HALVES = [4, 2, 2, 1, 1, 1, 1]


def reflections(feedback=""):
    return [
        Reflection(place, {"Feedback": feedback or f"Wrong. {rule}"})
        for place, rule in enumerate(RULES)
    ]


def cited_rules(inputs):
    records = inputs["examples_with_feedback"]
    return [f"[{item['Example']}] {item['Feedback'].removeprefix('Wrong. ')}" for item in records]


def reader(most):
    """Return a model that takes in all of so many examples, and nothing of more."""

    def answer(name, inputs):
        fits = len(inputs["examples_with_feedback"]) <= most
        return {"lessons": cited_rules(inputs) if fits else []}

    return answer


def reads(world):
    return sorted((len(call.records) for call in world.calls), reverse=True)


def expected(sizes):
    return sorted(SHARDS * sizes, reverse=True)


@pytest.mark.parametrize(("most", "sizes"), [(4, [4]), (2, [4, 2, 2]), (1, ALL_HALVES)])
def test_a_shard_of_which_nothing_was_taken_in_is_read_in_halves(most, sizes):
    world = World(reader(most))
    lessons = world.run(SCAN, reflections())
    assert sorted(lesson.text for lesson in lessons.lessons) == sorted(RULES)
    assert reads(world) == expected(sizes)
    assert len({call.place for call in world.calls}) == len(world.calls)
    assert any("read again" in text for text in world.warnings) == (len(sizes) > 1)


def test_readers_are_asked_to_cite_behind_a_line():
    """Small models that were asked to begin with numbers wrote no lesson behind them."""
    world = World(reader(4))
    world.run(SCAN, reflections())
    assert {call.name for call in world.calls} == {AddCitedLessons.__name__}
    assert "End each line with the numbers" in AddCitedLessons.instructions


def test_an_answer_that_cannot_be_read_is_read_again_in_halves():
    """Small models repeat themselves until their answer is cut."""

    def endless(name, inputs):
        if len(inputs["examples_with_feedback"]) > 2:
            return FailedCall("AdapterParseError: the answer is no JSON")
        return {"lessons": cited_rules(inputs)}

    world = World(endless)
    lessons = world.run(SCAN, reflections())
    assert sorted(lesson.text for lesson in lessons.lessons) == sorted(RULES)
    assert reads(world) == expected([4, 2, 2])


def test_a_model_that_never_learns_is_asked_for_a_quarter_at_the_least():
    world = World(reader(0))
    lessons = world.run(SCAN, reflections() * 4)
    assert not lessons.lessons
    assert len(world.calls) == len(SCAN.shards(64, world.context)) * (1 + 2 + 4)


@pytest.mark.parametrize(
    ("text", "items"),
    [
        ("\n".join(["Answer.", *RULES]), reflections()),
        ("Answer.", reflections(feedback="Wrong: expected 3, got 4.")),
    ],
    ids=["the text has it already", "feedback that is a mere verdict"],
)
def test_an_answer_that_had_nothing_to_add_is_final(text, items):
    world = World(reader(0), text=text)
    world.run(SCAN, items)
    assert reads(world) == [SHARD] * SHARDS


def test_a_half_without_a_mistake_is_not_read():
    items = [replace(item, perfect=place > 0) for place, item in enumerate(reflections()[:3])]
    world = World(reader(0))
    world.run(SCAN, items)
    assert len(world.calls) > 1
    assert all(items[0].record["Feedback"] in str(call.records) for call in world.calls)


@pytest.mark.parametrize(
    ("lesson", "sizes"),
    [
        ("[1, 2, 3, 4] Ask whoever deals with a {product} and the like.", [4]),
        ("[1, 2, 3, 4] The order should be in the format ZZZZ.", ALL_HALVES),
        ("[1] A message about an [item] goes to a desk.", ALL_HALVES),
    ],
    ids=["in other words", "about nothing", "a template"],
)
def test_a_citation_is_believed_where_the_answer_is_about_an_example(lesson, sizes):
    def citing(name, inputs):
        feedback = inputs["examples_with_feedback"][0]["Feedback"]
        return {"lessons": [lesson.format(product=feedback.split()[5])]}

    world = World(citing)
    world.run(SCAN, reflections())
    assert reads(world) == expected(sizes)


def test_an_answer_that_repeats_the_inputs_passed_over_the_feedback():
    def repeating(name, inputs):
        records = inputs["examples_with_feedback"]
        if len(records) == 1:
            return {"lessons": cited_rules(inputs)}
        return {"lessons": [each["Inputs"]["message"] for each in records]}

    items = [
        replace(item, record={"Inputs": {"message": f"My {product} is late."}, **item.record})
        for item, product in zip(reflections(), PRODUCTS, strict=True)
    ]
    world = World(repeating)
    lessons = world.run(SCAN, items)
    assert reads(world) == expected(ALL_HALVES)
    assert sorted(lesson.text for lesson in lessons.lessons) == sorted(RULES)


def test_what_was_answered_wrongly_does_not_tell_one_mistake_from_another():
    rules = ["A message about a teapot gets L7.", "A message about a telescope gets L7."]
    items = [
        Reflection(
            place,
            {
                "Inputs": {"message": f"My {rule.split()[4]} is late."},
                "Generated Outputs": {"answer": answer},
                "Feedback": f"'{answer}' is wrong: L7.\n{rule}",
            },
        )
        for place, (rule, answer) in enumerate(zip(rules, ["R2", "K9"], strict=True))
    ]
    cited = [f"[{number}] {rule}" for number, rule in enumerate(rules, start=1)]
    world = World(lambda name, inputs: {"lessons": cited})
    lessons = world.run(SCAN, items).lessons
    assert reads(world) == [2]
    assert [lesson.text for lesson in lessons] == rules


def test_an_answer_stays_where_its_halves_fail():
    def failing(name, inputs):
        whole = len(inputs["examples_with_feedback"]) == SHARD
        return {"lessons": []} if whole else FailedCall("TimeoutError: too slow")

    lessons = World(failing).run(SCAN, reflections())
    assert [node.failed for node in lessons.nodes if node.level == 1] == [None] * SHARDS


def test_an_answer_that_leaves_out_the_numbers_of_examples_took_them_in():
    def without_numbers(name, inputs):
        records = inputs["examples_with_feedback"]
        numbered = ((item["Example"], int(item["Feedback"][-3:-1])) for item in records)
        return {"lessons": [f"[{number}] {RULES[rule]}" for number, rule in numbered]}

    feedback = "Wrong: the quotient of both amounts is {}."
    world = World(without_numbers)
    world.run(SCAN, [Reflection(n, {"Feedback": feedback.format(1000 + n)}) for n in range(16)])
    assert reads(world) == [SHARD] * SHARDS


TOO_LONG = FailedCall("ContextWindowExceededError: [m] maximum context length is 8 tokens")


@pytest.mark.parametrize("aggregator", [ParallelScan(), Union()])
def test_a_shard_that_passes_the_models_context_is_read_in_halves(aggregator):
    def small(name, inputs):
        long = len(inputs.get("examples_with_feedback", ())) > 2
        return TOO_LONG if long else learner(name, inputs)

    world = World(small)
    lessons = world.run(aggregator, mistakes(12))
    assert facts(lessons) == set(range(12))
    assert not [node for node in lessons.nodes if node.failed]
    assert len({call.place for call in world.calls}) == len(world.calls)
    assert any("read in halves" in text for text in world.warnings)


def test_a_record_that_alone_passes_it_is_read_in_parts():
    def small(name, inputs):
        long = len(str(inputs.get("examples_with_feedback"))) > 2_000
        return TOO_LONG if long else {"lessons": ["it was read"]}

    lessons = World(small).run(ParallelScan(), [Reflection(0, {"Feedback": "a rule " * 500})])
    assert [lesson.text for lesson in lessons.lessons] == ["it was read"]
    assert not [node for node in lessons.nodes if node.failed]


def test_what_can_be_halved_no_further_fails_alone():
    world = World(lambda name, inputs: TOO_LONG)
    lessons = world.run(ParallelScan(), mistakes(3))
    assert not lessons.lessons
    assert {node.failed for node in lessons.nodes if node.level == 1} == {TOO_LONG.error}
    assert len(world.calls) < 60


def test_citations_are_checked_once_where_words_show_that_an_answer_was_read(monkeypatch):
    calls = []

    def vectors(texts):
        calls.append(texts)
        return word_vectors(texts)

    monkeypatch.setattr(_citations, "word_vectors", vectors)
    World(reader(SHARD)).run(SCAN, reflections())
    assert len(calls) == SHARDS
