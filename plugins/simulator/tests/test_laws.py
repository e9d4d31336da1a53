"""The laws of the simulated service: latency, capacity, failures."""

from __future__ import annotations

import math
from collections import Counter
from statistics import median, stdev

import pytest
from hypothesis import given
from hypothesis import strategies as st

from combee_dspy.exceptions import ArgumentError
from combee_dspy.guards import CopyIndex
from combee_simulator import (
    CapacityModel,
    FailureRates,
    LatencyLaw,
    ReasoningLaw,
    SimulatedConfig,
    Status,
    WordingLaw,
)
from combee_simulator.laws import uniform
from combee_simulator.requests import text_tokens


@given(st.integers(0, 2**64), st.text())
def test_a_draw_lies_strictly_between_0_and_1(seed: int, place: str) -> None:
    assert 0.0 < uniform(seed, place) < 1.0


def test_latency_without_spread_is_the_formula() -> None:
    assert LatencyLaw(ttft=0.5, tokens_per_second=60, sigma=0).seconds(120, 7, "x") == 2.5


def test_latency_is_lognormal_around_the_formula() -> None:
    law = LatencyLaw()
    logs = [math.log(law.seconds(60, 0, f"request {number}") / 1.5) for number in range(4000)]
    assert median(logs) == pytest.approx(0.0, abs=0.02)
    assert math.sqrt(sum(value**2 for value in logs) / len(logs)) == pytest.approx(0.35, abs=0.015)


def test_latency_depends_on_content_occurrence_and_seed_alone() -> None:
    law = LatencyLaw()
    assert law.seconds(10, 0, "a", 0) == law.seconds(10, 0, "a", 0)
    assert (
        len({law.seconds(10, 0, "a", 0), law.seconds(10, 0, "a", 1), law.seconds(10, 1, "a", 0)})
        == 3
    )


@given(st.integers(0, 60), st.integers(1, 30), st.integers(0, 99))
def test_attention_keeps_the_order_and_never_more_than_its_limit(
    items: int, limit: int, seed: int
) -> None:
    kept = CapacityModel.attention(limit).attend(range(items), seed, "call")
    assert len(kept) == min(items, limit)
    assert list(kept) == sorted(set(kept))


def test_attention_is_uniform_over_places() -> None:
    counts: Counter[int] = Counter()
    for call in range(3000):
        counts.update(CapacityModel.attention(12).attend(range(48), 0, call))
    # 3,000 draws at 1/4: five standard deviations are about 119.
    assert all(abs(counts[item] - 750) < 119 for item in range(48))


TOKENS = st.lists(st.integers(0, 900), max_size=40)


@given(TOKENS, st.integers(1, 9_000), st.integers(0, 99))
def test_reading_stops_with_the_item_that_crosses_its_limit(
    tokens: list[int], limit: int, seed: int
) -> None:
    law = CapacityModel.reading(limit)
    kept = law.attend(range(len(tokens)), seed, "call", tokens=tokens)
    assert list(kept) == sorted(set(kept))
    assert len(kept) >= min(1, len(tokens))
    taken = [tokens[item] for item in kept]
    # Some item was the last one read, and before it there was room.
    assert not taken or sum(taken) - max(taken) < limit
    left_out = len(kept) < len(tokens)
    assert not left_out or sum(taken) >= limit
    assert law.crowded(len(tokens), seed, "call", tokens=tokens) == left_out


@given(TOKENS, st.integers(1, 20), st.integers(1, 9_000), st.integers(0, 99))
def test_both_limits_of_attention_hold_together(
    tokens: list[int], items: int, limit: int, seed: int
) -> None:
    both, places = CapacityModel(attended_items=items, attended_tokens=limit), range(len(tokens))
    kept = both.attend(places, seed, "call", tokens=tokens)
    assert kept == both.attend(places, seed, "call", tokens=tokens)
    taken = [tokens[item] for item in kept]
    assert min(1, len(tokens)) <= len(kept) <= items
    assert not taken or sum(taken) - max(taken) < limit
    if sum(taken) < limit:
        # There was room for more tokens: nothing but the number of items cut.
        assert len(kept) == min(items, len(tokens))
    assert both.crowded(len(tokens), seed, "call", tokens=tokens) == (len(kept) < len(tokens))


def test_many_short_lines_are_read_in_full_and_few_long_records_are_not() -> None:
    law = CapacityModel.reading()
    assert law.attend(range(150), 0, "call", tokens=[30] * 150) == tuple(range(150))
    assert not law.crowded(150, 0, "call", tokens=[30] * 150)
    assert len(law.attend(range(40), 0, "call", tokens=[400] * 40)) == 13
    assert law.crowded(40, 0, "call", tokens=[400] * 40)


def test_reading_is_uniform_over_places_and_differs_from_call_to_call() -> None:
    counts: Counter[int] = Counter()
    for call in range(3000):
        counts.update(CapacityModel.reading(1_200).attend(range(12), 0, call, tokens=[400] * 12))
    # 3,000 draws at 1/4: five standard deviations are about 119.
    assert all(abs(counts[item] - 750) < 119 for item in range(12))


def test_reading_without_the_tokens_of_each_item_is_refused() -> None:
    with pytest.raises(ArgumentError, match="tokens"):
        CapacityModel.reading().attend(range(3), 0, "call", tokens=[1, 2])
    with pytest.raises(ArgumentError, match="tokens"):
        CapacityModel.reading().crowded(3)


@given(st.integers(0, 30), st.integers(0, 30), st.integers(1, 20), st.integers(0, 99))
def test_writing_counts_the_old_lessons_first(old: int, new: int, limit: int, seed: int) -> None:
    olds, news = range(old), range(100, 100 + new)
    written = CapacityModel.writing(limit).write(olds, news, seed, "call")
    assert len(written) == min(limit, old + new)
    assert sum(item < 100 for item in written) == min(limit, old)


def test_without_limits_everything_is_read_and_written() -> None:
    law = CapacityModel.unlimited()
    assert law.attend(range(500), 0, "call") == tuple(range(500))
    assert law.write((), range(500), 0, "call") == tuple(range(500))
    assert not law.crowded(10**6)


def test_a_miss_rate_loses_its_share() -> None:
    law = CapacityModel(attended_items=None, lesson_miss_rate=0.25)
    assert len(law.attend(range(4000), 0, "call")) == pytest.approx(3000, abs=140)


def test_failures_come_at_their_rates_and_a_retry_draws_again() -> None:
    rates = FailureRates(server_error=0.1, rate_limited=0.1, slow=0.1, malformed=0.1, truncated=0.1)
    drawn = Counter(rates.draw(0, f"request {number}", 0) for number in range(5000))
    assert drawn[Status.OK] == pytest.approx(2500, abs=180)
    for status in (
        Status.SERVER_ERROR,
        Status.RATE_LIMITED,
        Status.SLOW,
        Status.MALFORMED,
        Status.TRUNCATED,
    ):
        assert drawn[status] == pytest.approx(500, abs=110)
    failed = [
        number for number in range(200) if rates.draw(0, f"request {number}", 0) is not Status.OK
    ]
    assert any(rates.draw(0, f"request {number}", 1) is Status.OK for number in failed)


def test_no_rates_no_failures() -> None:
    assert {FailureRates().draw(0, str(number), 0) for number in range(100)} == {Status.OK}


@pytest.mark.parametrize(
    "make",
    [
        lambda: LatencyLaw(ttft=-1),
        lambda: LatencyLaw(tokens_per_second=0),
        lambda: LatencyLaw(sigma=math.nan),
        lambda: CapacityModel(attended_items=0),
        lambda: CapacityModel(attended_tokens=0),
        lambda: CapacityModel(lesson_miss_rate=1.5),
        lambda: FailureRates(slow=-0.1),
        lambda: FailureRates(slow=0.6, malformed=0.6),
        lambda: FailureRates(retry_after=math.inf),
        lambda: SimulatedConfig(slots=0),
        lambda: SimulatedConfig(time_scale=-1),
        lambda: SimulatedConfig(port=70_000),
        lambda: SimulatedConfig(context_window=0),
        lambda: ReasoningLaw(tokens=7),
        lambda: ReasoningLaw(sigma=-1),
    ],
)
def test_settings_out_of_range_are_refused_by_name(make: object) -> None:
    with pytest.raises(ArgumentError) as caught:
        make()  # type: ignore[operator]
    assert caught.value.argument and caught.value.remedy


def test_lengths_follow_the_law_and_its_median() -> None:
    law = ReasoningLaw(tokens=300, sigma=0.35)
    lengths = [text_tokens(law.text(0, number)) for number in range(400)]
    assert median(lengths) == pytest.approx(300, rel=0.1)
    assert stdev(lengths) > 50
    assert {text_tokens(ReasoningLaw(300, 0).text(0, number)) for number in range(9)} <= set(
        range(295, 302)
    )


def test_the_same_place_gives_the_same_text_and_another_seed_another_length() -> None:
    law = ReasoningLaw()
    assert law.text(0, "a", 1) == law.text(0, "a", 1)
    assert len({len(law.text(seed, "a")) for seed in range(9)}) > 1


QUESTION = (
    "A firm buys 3 presses for $1,200 each and sells them for a third of that a year later, as"
    " prices fall."
)


def test_a_law_of_wording_keeps_the_key_and_the_subject() -> None:
    line = "[F17] Book value: divide the figures as given and answer with the plain ratio."
    assert WordingLaw().line(line, QUESTION, 0, "call") == line
    worded = {WordingLaw(each_call=True).line(line, QUESTION, 0, str(call)) for call in range(20)}
    assert len(worded) > 15
    assert all(one.startswith("[F17] ") and "Book value" in one for one in worded)
    assert WordingLaw(each_call=True).line(line, None, 0, "a") == WordingLaw(each_call=True).line(
        line, None, 0, "a"
    )


def test_a_law_of_wording_quotes_a_share_of_the_lessons() -> None:
    line, law = "[F17] Book value: round once.", WordingLaw(quoting=0.3)
    quoting = [
        one
        for one in (law.line(line, QUESTION, 0, str(call)) for call in range(400))
        if one != line
    ]
    assert 90 < len(quoting) < 150
    copies = CopyIndex([{"question": QUESTION}])
    assert {len(copies.copied(one).split()) for one in quoting} == {13}
    assert law.line(line, None, 0, "x") == law.line(line, "Too short a question.", 0, "x") == line


def mean_kept(law: CapacityModel, items: int, records: int | None = None) -> float:
    return (
        sum(len(law.attend(range(items), 0, call, records=records)) for call in range(400))
        / 400
        / items
    )


def test_a_call_collapses_beyond_its_records_and_lines_are_none() -> None:
    law = CapacityModel.collapse()
    assert (
        mean_kept(law, 24) == mean_kept(law, 84, records=0) == mean_kept(law, 60, records=24) == 1.0
    )
    # 21 of 264 strategies were left at 100; 526 of 6,887 tokens at 40.
    assert mean_kept(law, 100) == pytest.approx(21 / 264, abs=0.006)
    assert mean_kept(law, 40) == pytest.approx(526 / 6_887, abs=0.01)
    assert not law.crowded(24)
    assert law.crowded(25)


def test_dilution_goes_through_the_same_figure_and_spares_no_lines() -> None:
    law = CapacityModel.diluted()
    assert mean_kept(law, 1) == 1.0
    assert mean_kept(law, 100) == pytest.approx(21 / 264, abs=0.006)
    assert mean_kept(law, 40, records=0) == pytest.approx(40**-0.55, abs=0.01)
    assert law.crowded(40)


def test_a_call_of_platitudes_keeps_nothing_and_any_other_all() -> None:
    law = CapacityModel.platitudes(0.25)
    kept = [len(law.attend(range(10), 0, call)) for call in range(400)]
    assert set(kept) == {0, 10}
    assert kept.count(0) / 400 == pytest.approx(0.25, abs=0.05)
    assert not CapacityModel.platitudes(0).crowded(100)
