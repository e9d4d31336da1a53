"""Planted lessons that come back, on models of which it is known what they keep."""

from __future__ import annotations

import re

import pytest

from combee_bench import retention
from combee_bench.mixed import state
from combee_bench.options import RetentionOptions
from combee_bench.planted import plant
from combee_dspy.exceptions import ArgumentError
from combee_dspy.testing import ScriptedLM, ScriptedRequest, as_json


def test_what_a_law_lets_through_comes_back() -> None:
    options = RetentionOptions(sizes=(5, 20), seeds=(0, 1), law="attention")
    rows = {(row.aggregator, row.reflections, row.seed): row for row in retention.run(options)}
    assert len(rows) == 3 * 2 * 2
    assert all(row.retained == 5 for (_, size, _), row in rows.items() if size == 5)
    # One call takes in twelve; a union of several has them all.
    assert rows["single-call", 20, 0].retained == 12
    assert rows["union", 20, 0].retained == 20
    assert rows["parallel-scan", 20, 0].by_level[0] == 20 > rows["parallel-scan", 20, 0].retained
    shares = retention.summary(options, list(rows.values()))["kept"]
    assert shares["single-call"] == {5: 1.0, 20: 0.6}
    assert retention.table(options, list(rows.values())).renderables


def test_a_model_that_writes_platitudes_keeps_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(request: ScriptedRequest) -> str:
        codes = re.findall(r"go under (Q\d+)", request.text)
        return as_json(
            {"lessons": ["Read the question with care.", *codes], "new_instruction": "Be careful."}
        )

    monkeypatch.setattr(retention, "model_lm", lambda name, **where: (ScriptedLM(answer), None))
    options = RetentionOptions(
        lm="openai/m", sizes=(5,), seeds=(0,), aggregators=("single-call", "union")
    )
    for row in retention.run(options):
        # A code without what it is for is no lesson.
        assert (row.retained, row.failed) == (0, 0), row.text
        assert row.calls > 0


def test_a_model_that_reads_few_at_once_keeps_all_of_few() -> None:
    options = RetentionOptions(
        sizes=(20,), seeds=(0,), aggregators=("single-call", "union"), fan_in=4
    )
    single, union = retention.run(options)
    assert single.calls == 1
    assert union.calls == 20 * 2 / 4
    assert {given for given, _ in union.reads} == {4}


@pytest.mark.parametrize(
    "given", [{"file": "a.gguf"}, {"sizes": (5, 5)}, {"lm": "embedded", "api_base": "http://a"}]
)
def test_what_cannot_be_measured_is_refused(given: dict[str, object]) -> None:
    with pytest.raises(ArgumentError):
        RetentionOptions(**given)


def test_calls_that_keep_all_or_nothing_are_told_from_calls_that_keep_a_part() -> None:
    options = RetentionOptions(
        sizes=(5, 20), seeds=tuple(range(8)), aggregators=("union",), law="platitudes"
    )
    rows = list(retention.run(options))
    reads = [read for row in rows for read in row.reads]
    assert {retained in (0, given) for given, retained in reads} == {True}
    calls = retention.table(options, rows).renderables[1].columns[1:4]
    told = [[int(cell) for cell in column.cells] for column in calls]
    sizes = sorted({given for given, _ in reads})
    assert told[1] == [sum(one == (size, size) for one in reads) for size in sizes]
    assert told[2] == [sum(one == (size, 0) for one in reads) for size in sizes]
    assert 0 < sum(told[2]) < sum(told[0]) == len(reads)


def test_a_fan_in_that_nothing_takes_is_refused() -> None:
    with pytest.raises(ArgumentError, match="fan_in is no setting of single-call"):
        retention.run(RetentionOptions(aggregators=("single-call",), fan_in=4))


def test_what_a_book_serves_of_mixed_facts_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A perfect reader, and a judge that unites and opposes by the goods: all is right but the
    lone.
    """
    told = (
        r"(?P<c>Q\d+) is the right code for (?P<g>\w+)",
        r"files (?P<g>\w+) out of \w+ has to write (?P<c>Q\d+)",
        r"desk, (?P<g>\w+) shipments go under (?P<c>Q\d+)",
    )

    def facts(text: str) -> list[tuple[str, str]]:
        spans = []
        for pattern in told:
            spans += [
                (match.start(), match["g"], match["c"]) for match in re.finditer(pattern, text)
            ]
        return [(goods, code) for _, goods, code in sorted(spans)]

    def answer(request: ScriptedRequest) -> str:
        if "contradictory" in request.system:
            lessons = re.findall(r"(\d+)\. (\w+) goes under (Q\d+)", request.last)
            opposed: dict[str, list[int]] = {}
            for number, goods, _ in lessons:
                opposed.setdefault(goods, []).append(int(number))
            groups = [numbers for numbers in opposed.values() if len(numbers) > 1]
            return as_json({"same": [], "contradictory": groups, "narrower": [], "empty": []})
        lines = [f"{goods} goes under {code}." for goods, code in facts(request.last)]
        return as_json({"lessons": [*lines, "Read with care."]})

    monkeypatch.setattr(retention, "model_lm", lambda name, **where: (ScriptedLM(answer), None))
    names = ("union", "reference-scan")
    options = RetentionOptions(lm="openai/m", sizes=(8,), seeds=(0,), mixed=True, aggregators=names)
    union, scan = retention.run(options)
    assert (union.reflections, union.retained, scan.retained) == (8, 6, 8)
    assert union.served is not None
    assert scan.served is not None
    assert union.served.decided == {"right": 0, "wrong": 0, "both": 2, "neither": 0}
    assert scan.served.decided == {"right": 2, "wrong": 0, "both": 0, "neither": 0}
    assert (scan.served.doubled, scan.served.other) == (0, 1)
    cited, correct = scan.served.citations
    assert cited == correct == 2 * (1 + 1 + 2 + 3)
    assert union.served.citations[1] < union.served.citations[0], (
        "union names all that stood in the shard"
    )
    assert "citations right" in retention.line(options, scan)
    assert retention.table(options, [union, scan]).renderables


def test_statements_repeat_and_oppose_facts_as_promised() -> None:
    facts = plant(8, 3)
    statements = state(facts, 3)
    assert statements == state(facts, 3)
    assert [sum(one.fact == fact for one in statements) for fact in facts] == [1, 1, 2, 3] * 2
    opposite = [statement for statement in statements if statement.opposes]
    assert [one.opposes for one in opposite if one.fact.code in {fact.code for fact in facts}] == []
    assert {one.opposes for one in opposite} == {facts[3].code, facts[7].code}
