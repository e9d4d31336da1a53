"""What redaction misses, on lines made from a seed."""

from __future__ import annotations

from combee_bench.options import RedactionOptions
from combee_bench.redaction import Line, _wrong, corpus, run, summary

KNOWN_MISSES = {
    "email, with 'at' and 'dot'",
    "email, with spaces",
    "card, with points",
    "phone, 3 3 4 spaces",
    "phone, ten digits alone",
    "phone, in words",
}


def test_the_corpus_is_the_same_for_a_seed_and_large_enough():
    assert corpus(0, 20) == corpus(0, 20) != corpus(1, 20)
    assert len(corpus(0, 20)) >= 500


def test_rates_by_form():
    options = RedactionOptions(each=20)
    rows = list(run(options))
    assert {row.form for row in rows if row.personal and row.wrong == row.lines} == KNOWN_MISSES
    others = [row for row in rows if row.form not in KNOWN_MISSES]
    assert sum(row.wrong for row in others) <= 0.03 * sum(row.lines for row in others)
    found = summary(options, rows)
    assert 0.2 < found["miss_rate"] < 0.3
    assert found["false_positive_rate"] < 0.03


def test_a_part_that_is_left_is_a_miss():
    held = Line("call 5551234567", "phone", "555 1234567")
    assert _wrong(held, "call [phone] 1234567")
    assert _wrong(held, held.text)
    assert not _wrong(held, "call [phone]")
    assert _wrong(Line("on 2024-01-01", "date"), "on [phone]")
