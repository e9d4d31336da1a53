"""What is read of a flood, and what a reader sees of it."""

from __future__ import annotations

import json
import random
from collections import Counter
from dataclasses import replace

import pytest

from combee_dspy.lms.redact import personal
from combee_dspy.records import PredictorCall
from combee_dspy.reflections import estimate_record_tokens
from combee_dspy.traces import Selection, Trace, is_right, read_call, read_trace
from combee_dspy.traces._selection import _Pool


def trace(number, feedback="", score=None, **more):
    inputs, outputs = {"question": f"Q {number}"}, {"answer": "a"}
    named = {"score": score, "feedback": feedback, "cursor": str(number)}
    return Trace(f"t{number}", inputs, outputs, **named, **more)


def flood(count, kinds=("late", "early", "lost", "torn"), rare=3):
    """Mostly right; of the failures one kind is common, the others come a few times."""
    for number in range(count):
        if number % 2:
            yield trace(number, score=1.0)
        elif number % 4 or number // 4 >= rare:
            yield trace(number, f"It was {kinds[0]} by {number} days.", 0.0)
        else:
            yield trace(number, f"It was {kinds[1 + number // 4 % 3]} by {number} days.", 0.0)


def test_failures_come_first_and_each_kind_has_a_turn():
    chosen = Selection(tokens=1_000).choose(flood(2_000))
    assert chosen.seen == 2_000
    assert chosen.failures == 1_000
    assert chosen.tokens <= 1_000
    assert all("was" in item.feedback for item in chosen.traces)
    firsts = Counter(item.feedback.split()[2] for item in chosen.traces[:4])
    assert firsts == {"late": 1, "early": 1, "lost": 1, "torn": 1}


def test_a_rare_kind_is_read_whole_where_there_is_room():
    rare = [trace(number, f"It was torn by {number} days.", 0.0) for number in range(12)]
    common = [trace(number, f"It was late by {number} days.", 0.0) for number in range(12, 600)]
    chosen = Selection(tokens=1_000).choose([*rare, *common])
    assert {item.id for item in rare} < {item.id for item in chosen.traces}


def test_what_went_right_is_read_where_failures_leave_room():
    chosen = Selection().choose(flood(40))
    assert len(chosen.traces) == 40
    assert [item.perfect for item in chosen.reflections] == [False] * 20 + [True] * 20
    assert [item.index for item in chosen.reflections] == list(range(40))
    assert chosen.reflections[0].example_id == chosen.traces[0].id


@pytest.mark.parametrize("tokens", [1_000, 20_000])
def test_the_choice_does_not_depend_on_the_order_but_on_the_seed(tokens):
    traces = list(flood(800))
    shuffled = random.Random(1).sample(traces, len(traces))
    first, second, other = (
        Selection(tokens=tokens, seed=seed).choose(order)
        for order, seed in ((traces, 0), (shuffled, 0), (traces, 1))
    )
    assert [item.id for item in first.traces] == [item.id for item in second.traces]
    assert [item.id for item in first.traces] != [item.id for item in other.traces]


def test_what_repeats_but_for_ids_and_times_is_read_once():
    said = "Order 1234567 of 2026-01-01T10:00:00Z was late."
    twice = [trace(1, said), replace(trace(1, said), id="u")]
    twice.append(replace(trace(1, said.replace("1234567", "7654321")), id="v"))
    chosen = Selection().choose([*twice, trace(1, said.replace("late", "early"))])
    assert (len(chosen.traces), chosen.repeated) == (2, 2)


def test_machine_traffic_and_what_nothing_is_said_of_are_counted():
    flow = [
        trace(1, "Bad.", tags={"caller": "cron-7"}),
        trace(2),
        trace(3, "Bad.", tags={"caller": "web"}),
    ]
    chosen = Selection(drop={"caller": "cron*"}).choose(flow)
    assert [item.id for item in chosen.traces] == ["t3"]
    assert (chosen.machine, chosen.unjudged, chosen.cursor) == (1, 1, "3")
    assert str(chosen) == (
        "1 of 3 traces are read, 31 tokens: 1 failed in 1 ways, 0 repeat,"
        " 1 are machine traffic, 1 lack a label"
    )


def test_memory_does_not_grow_with_the_flood():
    # What is held at once is what the budget reaches, twice: seen by what is still referred to.
    import gc

    def numbered():
        for number in range(10_000):
            if number in (0, 3_000, 9_999):
                gc.collect()
                alive.append(sum(isinstance(item, Trace) for item in gc.get_objects()))
            yield trace(number, f"It was late by {number} days.", 0.0)

    alive: list[int] = []
    chosen = Selection(tokens=2_000).choose(numbered())
    assert max(alive) - alive[0] <= 2 * len(chosen.traces) + 10


def test_many_kinds_are_sorted_a_few_times(monkeypatch):
    sorted_entries = []
    in_order = _Pool._in_order

    def counting(pool):
        sorted_entries.append(pool._held)
        return in_order(pool)

    monkeypatch.setattr(_Pool, "_in_order", counting)
    kinds = [chr(97 + number // 26) + chr(97 + number % 26) for number in range(400)]
    traces = [trace(number, f"It was {kinds[number % 400]}.", 0.0) for number in range(4_000)]
    chosen = Selection(tokens=1_000).choose(traces)
    assert len(chosen.kinds) == 400
    assert sum(sorted_entries) < len(traces)
    monkeypatch.setattr(_Pool, "_cut", lambda pool: None)
    assert Selection(tokens=1_000).choose(traces) == chosen


def test_texts_are_redacted_before_they_are_read():
    said = trace(1, "Write to ann@example.com.", expected={"to": "ann@example.com"})
    chosen = Selection().choose([said], personal({}))
    assert chosen.traces[0].feedback == "Write to [email]."
    assert list(chosen.kinds) == ["write to [ email ]: [email]"]
    assert "ann" not in repr(chosen)


@pytest.mark.parametrize(
    ("judged", "right"),
    [
        ({"score": 1.0, "feedback": "Good."}, True),
        ({"score": 0.9}, False),
        ({"expected": {"answer": "A."}}, True),
        ({"expected": {"answer": "b"}}, False),
        ({"feedback": "Hm."}, False),
        ({"score": 1.0, "error": "KeyError: 'a'"}, False),
    ],
)
def test_what_is_right(judged, right):
    assert is_right(trace(1, **judged)) is right


def test_an_expected_answer_is_feedback():
    record = read_trace(trace(1, expected={"answer": "b"}), 1_000).record
    assert record["Feedback"] == "Wrong. The right answer: answer = b."
    assert "Steps" not in record


@pytest.mark.parametrize(
    ("judged", "perfect", "verdict"),
    [
        ({"expected": {"answer": "a"}, "score": 0.8}, 0.75, "Right. "),
        ({"expected": {"answer": "a"}, "score": 0.8}, 1.0, ""),
        ({"expected": {"answer": "b"}, "score": 0.8}, 1.0, "Wrong. "),
    ],
)
def test_a_verdict_is_that_of_the_selection(judged, perfect, verdict):
    (reflection,) = Selection(perfect=perfect).choose([trace(1, **judged)]).reflections
    assert reflection.perfect is (verdict == "Right. ")
    answer = judged["expected"]["answer"]
    assert reflection.record["Feedback"] == f"{verdict}The right answer: answer = {answer}."


def test_a_record_fits_a_small_budget():
    long = replace(trace(1, "Bad."), inputs={"question": "Which of them? " * 2_000})
    chosen = Selection(tokens=1_000).choose([long])
    assert len(chosen.traces) == 1
    assert chosen.tokens <= 1_000


def agent(steps):
    calls = [
        PredictorCall(f"Tool.{name}", {"query": f"{name} {number}"}, {"output": text})
        for number, (name, text) in enumerate(steps)
    ]
    return Trace(
        "a", {"task": "Find it."}, {"answer": "no"}, tuple(calls), 0.0, "It was not found."
    )


def test_a_long_trajectory_is_cut_by_what_decides():
    steps = [("look", f"nothing {number} " * 40) for number in range(300)]
    steps[150] = ("open", "PermissionError: denied")
    record = read_trace(agent(steps), 2_000).record
    assert estimate_record_tokens(record) <= 2_000
    seen = [step.get("Inputs", {}).get("query") for step in record["Steps"]]
    assert "open 150" in seen
    assert "look 149" in seen
    assert "look 299" in seen
    left_out = sum(
        int(step["Left out"].split()[0]) for step in record["Steps"] if "Left out" in step
    )
    assert left_out + sum(query is not None for query in seen) == 300


def coder(steps):
    """An agent that hands on a text, or messages, of all that it did and was answered."""
    history, messages, calls = "(nothing yet)", [{"role": "system", "content": "Act."}], []
    for number, printed in enumerate(steps):
        inputs = {"task": "Find it.", "trajectory": history, "messages": list(messages)}
        calls.append(PredictorCall("act", inputs, {"code": f"look({number})", "finished": False}))
        turn = f"[{number}] code:\nlook({number})\n[{number}] printed:\n{printed}"
        history = f"{history}\n\n{turn}" if number else turn
        messages.append({"role": "tool", "content": f"{number}: {printed}"})
    outputs = {"outcome": "Done.", "count": 0, "trajectory": history}
    return Trace("a", {"task": "Find it."}, outputs, tuple(calls), 0.0, "It was not found.")


READINGS = (
    lambda trace, tokens: read_trace(trace, tokens),
    lambda trace, tokens: read_call(trace, "act", tokens),
)


@pytest.mark.parametrize("read", READINGS)
def test_what_an_agent_hands_on_is_cut_by_what_decides(read):
    steps = [f"nothing of use, {number}. " * 12 for number in range(100)]
    steps[40] = "PermissionError: the safe stays closed"
    record = read(coder(steps), 2_000).record
    assert estimate_record_tokens(record) <= 2_000
    text = json.dumps(record)
    assert "the safe stays closed" in text
    assert "look(40)" in text, "what led to it"
    assert "nothing of use, 99." in text, "what the last step was answered"


@pytest.mark.parametrize("read", READINGS)
def test_what_an_agent_hands_on_stands_there_once(read):
    record = read(
        coder([f"thing number {number} of many, " * 4 for number in range(6)]), 8_000
    ).record
    text = json.dumps(record)
    for number in range(6):
        # In the text, and in the messages.
        assert text.count(f"thing number {number} of many") == 4 * (1 + (number < 5))
    result = record.get("Result of the Whole Program") or record["Generated Outputs"]
    assert (result["outcome"], result["count"]) == ("Done.", 0)


def test_what_a_tool_returned_stands_there_once():
    trajectory = (
        "[[ ## thought_0 ## ]]\nI look for it in the drawer.\n\n[[ ## observation_0 ## ]]\n"
    )
    seen = [f"{trajectory}a key", f"{trajectory}a key\n\n[[ ## observation_1 ## ]]\na ring"]
    tools = [PredictorCall("Tool.look", {"place": "desk"}, {"output": what}) for what in seen]
    calls = [PredictorCall("react", {"trajectory": text}, {"next": "look"}) for text in ("", *seen)]
    calls = (calls[0], tools[0], calls[1], tools[1], calls[2])
    outputs = {
        "trajectory": {"thought_0": "I look for it in the drawer.", "observation_1": "a ring"}
    }
    trace = Trace("a", {"task": "Find it."}, outputs, calls, 0.0)
    steps = read_trace(trace, 4_000).record
    assert "trajectory" not in steps["Generated Outputs"]
    assert [list(step.get("Inputs", {})) for step in steps["Steps"]] == [
        ["trajectory"],
        ["place"],
        ["trajectory"],
        ["place"],
        [],
    ]
    assert read_call(trace, "react", 4_000).record["Inputs"]["trajectory"].endswith("a ring")


def test_records_of_any_size_in_any_order_give_the_same_choice():
    stream = random.Random(0)
    traces = [
        Trace(
            f"t{number}",
            {"number": number, "question": "x y " * round(stream.lognormvariate(3, 2))},
            feedback=f"The {'abcdefgh'[number % 8] * 3} is wrong.",
        )
        for number in range(1_500)
    ]
    chosen = Selection(tokens=3_000).choose(traces)
    for seed in range(2):
        random.Random(seed).shuffle(traces)
        assert Selection(tokens=3_000).choose(traces).traces == chosen.traces
