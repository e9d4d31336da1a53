"""Records of the study as traces: the same book from a file and from a journal."""

from __future__ import annotations

from dataclasses import replace

import pytest

from studies.weighing.flood import make_flood
from studies.weighing.records import make_records
from studies.weighing.traces import learn, write_source


@pytest.fixture(scope="module")
def task():
    whole = make_records(0, 0.0)
    rows = [row for row in whole.train if row.case.category in list(whole.truth.rules)[:8]]
    heldout = [row for row in whole.heldout if row.case.category in list(whole.truth.rules)[:8]]
    return replace(whole, train=tuple(rows), heldout=tuple(heldout))


def test_records_of_eight_rules_teach_them_from_each_source(task, tmp_path):
    books = []
    for name in ("json-lines", "journal"):
        (tmp_path / name).mkdir()
        outcome = learn(write_source(name, task, tmp_path / name), task)
        books.append([(lesson.text, lesson.support) for lesson in outcome.learned.book.lessons])
        assert outcome.right == len(task.heldout)
        assert outcome.wrong_lines == 0
    assert books[0] == books[1]


def test_a_flood_has_what_selection_is_for():
    records = list(make_flood(0, 4_000))
    ids = [record["id"] for record in records]
    assert len(ids) == len(set(ids))
    assert 0.1 < sum(record["score"] == 0 for record in records) / len(records) < 0.3
    assert any(str(name).endswith("again") for name in ids)
    assert any(record["tags"] == {"caller": "cron-4"} for record in records)
