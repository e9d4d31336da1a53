"""Planted lessons that come back, on models of which it is known what they keep."""

from __future__ import annotations

import re

import pytest

from combee_bench import retention
from combee_bench.options import RetentionOptions
from combee_dspy.exceptions import ArgumentError
from combee_dspy.testing import ScriptedLM, ScriptedRequest, as_json


def test_what_a_law_lets_through_comes_back() -> None:
    options = RetentionOptions(sizes=(5, 20), seeds=(0, 1), law="attention")
    rows = {(row.aggregator, row.reflections, row.seed): row for row in retention.run(options)}
    assert len(rows) == 5 * 2 * 2
    assert all(row.kept == 5 for (_, size, _), row in rows.items() if size == 5)
    # One call takes in twelve; a union of several has them all.
    assert rows["single-call", 20, 0].kept == 12
    assert rows["union", 20, 0].kept == 20
    assert rows["parallel-scan", 20, 0].by_level[0] == 20 > rows["parallel-scan", 20, 0].kept
    shares = retention.summary(options, list(rows.values()))["kept"]
    assert shares["single-call"] == {5: 1.0, 20: 0.6}
    assert retention.table(options, list(rows.values())).renderables


def test_a_model_that_writes_platitudes_keeps_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(request: ScriptedRequest) -> str:
        codes = re.findall(r"go under (Q\d+)", request.text)
        return as_json({"lessons": ["Read the question with care.", *codes], "new_instruction": "Be careful."})

    monkeypatch.setattr(retention, "model_lm", lambda name, **where: (ScriptedLM(answer), None))
    options = RetentionOptions(lm="openai/m", sizes=(5,), seeds=(0,), aggregators=("single-call", "union"))
    for row in retention.run(options):
        # A code without what it is for is no lesson.
        assert (row.kept, row.failed) == (0, 0), row.text
        assert row.calls > 0


def test_a_model_that_reads_few_at_once_keeps_all_of_few() -> None:
    options = RetentionOptions(sizes=(20,), seeds=(0,), aggregators=("single-call", "union"), fan_in=4)
    single, union = retention.run(options)
    assert single.calls == 1
    assert union.calls == 20 * 2 / 4
    assert {given for given, _ in union.reads} == {4}


@pytest.mark.parametrize("given", [{"file": "a.gguf"}, {"sizes": (5, 5)}, {"lm": "embedded", "api_base": "http://a"}])
def test_what_cannot_be_measured_is_refused(given: dict[str, object]) -> None:
    with pytest.raises(ArgumentError):
        RetentionOptions(**given)


def test_calls_that_keep_all_or_nothing_are_told_from_calls_that_keep_a_part() -> None:
    options = RetentionOptions(sizes=(5, 20), seeds=(0, 1, 2), aggregators=("union",), law="platitudes")
    rows = list(retention.run(options))
    reads = [one for row in rows for one in row.reads]
    assert {kept in (0, given) for given, kept in reads} == {True}
    calls = retention.table(options, rows).renderables[1].columns[1:4]
    told = [[int(cell) for cell in column.cells] for column in calls]
    sizes = sorted({given for given, _ in reads})
    assert told[1] == [sum(one == (size, size) for one in reads) for size in sizes]
    assert told[2] == [sum(one == (size, 0) for one in reads) for size in sizes]
    assert 0 < sum(told[2]) < sum(told[0]) == len(reads)


def test_a_fan_in_that_nothing_takes_is_refused() -> None:
    with pytest.raises(ArgumentError, match="fan_in is no setting of single-call"):
        retention.run(RetentionOptions(aggregators=("single-call",), fan_in=4))
