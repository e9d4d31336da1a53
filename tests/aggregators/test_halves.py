"""What every call passed over is read again by shorter calls; what a model finds too long, in
halves.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import combinations

import pytest

from combee_dspy.aggregators import ParallelScan, ReferenceScan, Union, _sources
from combee_dspy.lessons import word_vectors
from combee_dspy.records import FailedCall, Reflection
from tests.aggregators.doubles import World, facts, learner, mistakes

PRODUCTS = ["tent", "mirror", "globe", "kettle", "violin", "shovel", "wallet", "teapot"]
PRODUCTS += ["compass", "blanket", "printer", "jacket", "puzzle", "lamp", "candle", "drill"]
RULES = [f"A message about the {word} goes to the desk of {word.title()}by." for word in PRODUCTS]
# Sixteen reflections are four shards of four.
SHARDS, SHARD = 4, 4
SCAN = ReferenceScan(copies=1, levels=0)
ALL_TURNS = [4, 2, 2, 1, 1, 1, 1]
UNREADABLE = FailedCall("AdapterParseError: the answer is no JSON")
TIMEOUT = FailedCall("TimeoutError: too slow")


def reflections(feedback=""):
    return [
        Reflection(place, {"Feedback": feedback or f"Wrong. {rule}"})
        for place, rule in enumerate(RULES)
    ]


def rules_in(inputs):
    return [item["Feedback"].removeprefix("Wrong. ") for item in inputs["examples_with_feedback"]]


def reader(most, otherwise=None):
    """Return a model that takes in all of so many examples, and nothing of more."""

    def answer(name, inputs):
        fits = len(inputs["examples_with_feedback"]) <= most
        return {"lessons": rules_in(inputs)} if fits else otherwise or {"lessons": []}

    return answer


def by_call(*answers):
    """Return a model that answers its calls in turn, ``None`` by the rules that it was shown."""
    left = iter(answers)

    def answer(name, inputs):
        answer = next(left, None)
        return {"lessons": rules_in(inputs)} if answer is None else answer

    return answer


def reads(world):
    return sorted((len(call.records) for call in world.calls), reverse=True)


def expected(sizes):
    return sorted(SHARDS * sizes, reverse=True)


def texts(lessons):
    return sorted(lesson.text for lesson in lessons.lessons)


def read_again(world):
    """Return how many answers a warning says were passed over."""
    warnings = [text for text in world.warnings if "read again by shorter ones" in text]
    return int(warnings[0].split()[0]) if warnings else 0


@pytest.mark.parametrize("otherwise", [None, UNREADABLE], ids=["empty", "unreadable"])
@pytest.mark.parametrize(
    ("most", "sizes", "silent"), [(4, [4], 0), (2, [4, 2, 2], 4), (1, ALL_TURNS, 12)]
)
def test_what_every_call_passed_over_is_read_again_by_calls_half_as_long(
    most, sizes, silent, otherwise
):
    """Small models keep all or nothing, or repeat themselves until their answer is cut."""
    world = World(reader(most, otherwise))
    lessons = world.run(SCAN, reflections())
    assert texts(lessons) == sorted(RULES)
    assert {lesson.text: lesson.sources for lesson in lessons.lessons} == {
        rule: (place,) for place, rule in enumerate(RULES)
    }
    assert reads(world) == expected(sizes)
    assert len({call.place for call in world.calls}) == len(world.calls)
    assert read_again(world) == silent
    level = [node for node in lessons.nodes if node.level == 1]
    assert len(level) == 16 // min(most, 4), "an answer leaves once others read its examples"
    assert not [node for node in level if node.failed]


def test_what_a_model_never_learns_is_read_again_twice_and_stays():
    world = World(reader(0))
    lessons = world.run(SCAN, reflections())
    assert not lessons.lessons
    assert reads(world) == expected(ALL_TURNS)
    assert len([node for node in lessons.nodes if node.level == 1]) == len(world.calls)


def test_a_copy_that_another_call_read_spares_the_reading_again():
    scan = ReferenceScan(copies=2, levels=0)
    shards = scan.shards(16, World(reader(0)).context)
    silent = {"lessons": []}
    # One call passes over its shard: all of it has a copy in another.
    world = World(by_call(silent))
    lessons = world.run(scan, reflections())
    assert len(world.calls) == len(shards) and not read_again(world)
    assert texts(lessons) == sorted(RULES)
    assert len([node for node in lessons.nodes if node.level == 1]) == len(shards) - 1
    # Two calls pass over theirs: what lies in no other is read again.
    mates = mates_in(shards)
    world = World(by_call(*(silent if n in mates else None for n in range(len(shards)))))
    lessons = world.run(scan, reflections())
    again = Counter(text for call in world.calls[len(shards) :] for text in rules_in(call.inputs))
    assert again == Counter(RULES[place] for place in both(shards, *mates))
    assert again and texts(lessons) == sorted(RULES) and read_again(world) == 2


def mates_in(shards):
    """Return the two shards that share most."""
    return max(combinations(range(len(shards)), 2), key=lambda pair: len(both(shards, *pair)))


def both(shards, first, other):
    return set(shards[first]) & set(shards[other])


def test_a_call_that_fails_otherwise_is_not_read_again_and_reads_nothing():
    world = World(by_call(TIMEOUT))
    lessons = world.run(SCAN, reflections())
    assert reads(world) == [SHARD] * SHARDS
    assert [node.failed for node in lessons.nodes if node.level == 1].count(TIMEOUT.error) == 1


def test_a_copy_in_a_call_that_failed_otherwise_spares_nothing():
    scan = ReferenceScan(copies=2, levels=0)
    shards = scan.shards(16, World(reader(0)).context)
    first, other = mates_in(shards)
    answers = {first: {"lessons": []}, other: TIMEOUT}
    world = World(by_call(*map(answers.get, range(len(shards)))))
    lessons = world.run(scan, reflections())
    again = {text for call in world.calls[len(shards) :] for text in rules_in(call.inputs)}
    assert again == {RULES[place] for place in both(shards, first, other)}
    assert texts(lessons) == sorted(RULES)


def test_an_answer_stays_where_what_is_read_again_fails():
    world = World(reader(0, {"lessons": ["Ask whoever is in charge."]}))
    whole = world.script

    def failing(name, inputs):
        return TIMEOUT if len(inputs["examples_with_feedback"]) < SHARD else whole(name, inputs)

    world.script = failing
    lessons = world.run(SCAN, reflections())
    level = [node.failed for node in lessons.nodes if node.level == 1]
    assert level == [None] * SHARDS + [TIMEOUT.error] * 2 * SHARDS
    assert texts(lessons) == ["Ask whoever is in charge."]


def test_right_answers_are_not_read_again():
    items = [replace(item, perfect=place > 1) for place, item in enumerate(reflections()[:4])]
    world = World(reader(0))
    world.run(SCAN, items)
    first = len(SCAN.shards(4, world.context))
    assert len(world.calls) > first
    for call in world.calls[first:]:
        assert set(rules_in(call.inputs)) <= set(RULES[:2])


def test_a_call_of_a_single_example_is_not_read_again():
    world = World(reader(0))
    world.run(SCAN, reflections()[:1])
    assert reads(world) == [1] and not read_again(world)
    # Three in a call, and two of them alone later: each of these is asked for once.
    world = World(reader(0))
    world.run(SCAN, reflections()[:3])
    shown = Counter(tuple(rules_in(call.inputs)) for call in world.calls)
    assert set(shown.values()) == {1}


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


@pytest.mark.parametrize(
    ("lesson", "sizes"),
    [
        ("Ask whoever deals with a {product} and the like.", SHARDS * [4]),
        ("The order should be in the format ZZZZ.", SHARDS * ALL_TURNS),
        ("A message about an [item] goes to a desk.", SHARDS * ALL_TURNS),
    ],
    ids=["in other words", "about nothing", "a template"],
)
def test_an_answer_passed_over_the_examples_that_it_has_no_word_of(lesson, sizes):
    def answer(name, inputs):
        return {"lessons": [lesson.format(product=rules_in(inputs)[0].split()[4])]}

    world = World(answer)
    world.run(SCAN, reflections())
    assert reads(world) == sorted(sizes, reverse=True)


def test_an_answer_that_repeats_the_inputs_passed_over_the_feedback():
    def repeating(name, inputs):
        asked = [each.get("Inputs", {}) for each in inputs["examples_with_feedback"]]
        return {"lessons": [each["message"] for each in asked if each] or rules_in(inputs)}

    items = [
        replace(item, record={"Inputs": {"message": f"My {product} is late."}, **item.record})
        for item, product in zip(reflections(), PRODUCTS, strict=True)
    ]
    world = World(repeating)
    lessons = world.run(SCAN, items)
    assert reads(world) == expected([4, 4])
    assert texts(lessons) == sorted(RULES)


CODES = ["T2", "B7", "K4", "F3"]
CASES = [
    "The stated interest of a debt gets the code {}.",
    "The most that may be borrowed gets the code {}.",
    "Shares left out of diluted earnings get the code {}.",
    "The expense of paying in stock gets the code {}.",
]
TEXT = "Choose the code of the ledger."


def filings():
    rules = [case.format(code) for case, code in zip(CASES, CODES, strict=True)]
    return rules, [
        Reflection(
            place,
            {
                "Inputs": {"sentence": f"In May it was {place}1 million in all."},
                "Generated Outputs": {"answer": "none"},
                "Feedback": f"Wrong. {rule}",
            },
        )
        for place, rule in enumerate(rules)
    ]


def test_a_reader_that_repeats_the_programs_text_is_shown_feedback_alone():
    rules, items = filings()

    def repeating(name, inputs):
        if "current_instruction" in inputs:
            return {"lessons": ["The code of the ledger is the same as of the debt and of shares."]}
        return {"lessons": rules_in(inputs)}

    world = World(repeating, text=TEXT)
    lessons = world.run(SCAN, items)
    again = read_again_in(world)
    assert again and all(record.keys() == {"Feedback"} for call in again for record in call.records)
    assert texts(lessons) == sorted(rules)


@pytest.mark.parametrize(
    ("answer", "count"), [("The code of the ledger is {}.", 2), ("{} is the code of a debt.", 0)]
)
def test_an_answer_without_its_case_is_no_lesson(answer, count):
    # Two telling words each, one of them the code.
    items = [
        Reflection(place, {"Inputs": {}, "Feedback": f"Wrong: got Z1. {case} needs code {code}"})
        for place, (case, code) in enumerate([("Debt", "T2"), ("Stock", "B7")])
    ]
    world = World(lambda name, inputs: {"lessons": [answer.format("T2")]}, text=TEXT)
    world.run(SCAN, items)
    assert len(read_again_in(world)) == count


def test_an_empty_answer_repeated_nothing_and_its_examples_stay_whole():
    _, items = filings()
    world = World(reader(0), text=TEXT)
    world.run(SCAN, items)
    again = read_again_in(world)
    assert again and all("current_instruction" in call.inputs for call in again)
    assert all("Inputs" in record for call in again for record in call.records)


def test_many_sentences_of_one_text_that_say_nothing_passed_over_their_examples():
    rambling = "Read it. Find the item. Choose well. Be exact. Check names. Do not guess. Go. On."
    world = World(lambda name, inputs: {"lessons": [rambling]})
    world.run(SCAN, reflections())
    assert read_again_in(world)


def read_again_in(world):
    return [call for call in world.calls if call.place[2] < 0]


@pytest.mark.parametrize("silent", [[], ["Take care of what stands here and there."]])
def test_no_request_is_made_twice(silent):
    # Shards of four, three and three: the last call of a turn would be as short as one before.
    items = [
        replace(item, record={"Inputs": {"message": "Late."}, **item.record})
        for item in reflections()[:10]
    ]
    world = World(lambda name, inputs: {"lessons": silent})
    world.run(SCAN, items)
    requests = [repr(sorted(call.inputs.items(), key=str)) for call in world.calls]
    assert len(requests) == len(set(requests)) > len(SCAN.shards(10, world.context))


def test_the_parts_of_a_record_do_not_become_the_same_feedback():
    _, (first, second, *_) = filings()
    long = {**first.record, "Inputs": {"sentence": "and so on " * 3_000}}
    world = World(lambda name, inputs: {"lessons": ["Take care of what stands here."]})
    scan = ReferenceScan(copies=1, levels=0, max_call_tokens=8_000)
    world.run(scan, [replace(first, record=long), second])
    shown = [tuple(rules_in(call.inputs)) for call in read_again_in(world)]
    assert shown and all(len(set(rules)) == len(rules) for rules in shown if len(rules) > 1)


def test_a_mere_verdict_is_read_again_with_its_example():
    _, items = filings()
    items = [replace(item, record={**item.record, "Feedback": "Wrong."}) for item in items]
    world = World(lambda name, inputs: UNREADABLE, text=TEXT)
    world.run(SCAN, items)
    again = read_again_in(world)
    assert again and all("Inputs" in record for call in again for record in call.records)


def test_a_rule_in_few_words_of_its_own_has_read_its_example():
    rules, items = filings()
    short = ["Interest of debt: T2", "Borrowed at most: B7", "Diluted shares: K4", "Stock: F3"]
    own = dict(zip([f"Wrong. {rule}" for rule in rules], short, strict=True))
    world = World(
        lambda name, inputs: {
            "lessons": [own[record["Feedback"]] for record in inputs["examples_with_feedback"]]
        },
        text=TEXT,
    )
    world.run(SCAN, items)
    assert not read_again(world)


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
    world = World(lambda name, inputs: {"lessons": rules})
    lessons = world.run(SCAN, items).lessons
    assert reads(world) == [2]
    assert [lesson.text for lesson in lessons] == rules


def test_an_answer_that_leaves_out_the_numbers_of_examples_took_them_in():
    def without_numbers(name, inputs):
        places = (int(item["Feedback"][-3:-1]) for item in inputs["examples_with_feedback"])
        return {"lessons": [RULES[place] for place in places]}

    feedback = "Wrong: the quotient of both amounts is {}."
    world = World(without_numbers)
    world.run(SCAN, [Reflection(n, {"Feedback": feedback.format(1000 + n)}) for n in range(16)])
    assert reads(world) == [SHARD] * SHARDS


@pytest.mark.parametrize("aggregator", [ParallelScan(), Union(), SCAN])
def test_answers_that_cannot_be_read_are_read_again_whoever_asks(aggregator):
    def short_sighted(name, inputs):
        long = len(inputs.get("examples_with_feedback", ())) > 4
        return UNREADABLE if long else learner(name, inputs)

    world = World(short_sighted)
    assert facts(world.run(aggregator, mistakes(16))) == set(range(16))


def test_an_answer_that_read_a_mistake_stays_and_that_is_not_read_again():
    # Four calls read one of their eight, shorter ones read all.
    def answer(name, inputs):
        rules = rules_in(inputs)
        return {"lessons": rules[:1] if len(rules) == 2 * SHARD else rules}

    world = World(answer)
    lessons = world.run(ReferenceScan(levels=0), reflections())
    long = [call for call in world.calls if len(call.records) == 2 * SHARD]
    read = {rules_in(call.inputs)[0] for call in long}
    again = [set(rules_in(call.inputs)) for call in world.calls if call not in long]
    assert len(long) == SHARDS and again and not any(read & rules for rules in again)
    assert texts(lessons) == sorted(RULES)


def test_what_is_read_again_fits_a_call(monkeypatch):
    long = [Reflection(n, {"Feedback": f"{RULES[n]} " + "and so on " * 150}) for n in range(16)]
    world = World(lambda name, inputs: {"lessons": ["Take care."]})
    scan = ReferenceScan(copies=1, levels=0, max_call_tokens=4_000)
    world.run(scan, long)
    first = max(len(call.records) for call in world.calls if call.place[2] >= 0)
    assert max(len(call.records) for call in world.calls if call.place[2] < 0) <= first


@pytest.mark.parametrize("aggregator", [ParallelScan(), Union()])
def test_who_finds_no_sources_reads_no_answer_again_that_it_could_read(aggregator):
    world = World(lambda name, inputs: {"lessons": ["Take care."]})
    world.run(aggregator, mistakes(16))
    read = [call for call in world.calls if call.place[1] == "read"]
    assert len(read) == len(aggregator.shards(16, world.context))


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


def test_sources_are_looked_for_once_where_words_show_that_an_answer_was_read(monkeypatch):
    calls = []

    def vectors(texts):
        calls.append(texts)
        return word_vectors(texts)

    monkeypatch.setattr(_sources, "word_vectors", vectors)
    World(reader(SHARD)).run(SCAN, reflections())
    assert len(calls) == SHARDS
