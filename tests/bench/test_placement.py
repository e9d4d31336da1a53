from __future__ import annotations

import json
from itertools import combinations
from pathlib import Path

import pytest

from combee_dspy.bench.placement import SIZES, closed_form, main, run_placement, table
from combee_dspy.exceptions import ArgumentValueError


def test_distinct_placement_parts_all_copies_and_plain_follows_the_closed_form() -> None:
    rows = run_placement((9, 40, 240), trials=200)
    for row in rows:
        if row.placement == "distinct":
            assert (row.observed, row.low, row.high, row.least, row.expected) == (1, 1, 1, 1, 1)
        else:
            assert row.observed == pytest.approx(row.expected, abs=4 * (row.high - row.low) / 3.92)
            assert row.least < row.expected < 1
    assert [row.shards for row in rows[::2]] == [3, 6, 15]


def test_the_closed_form_by_counting_and_as_it_is_written() -> None:
    # Every pair of places in the deck is as likely: count the pairs that share a shard.
    home = [place * 3 // 22 for place in range(22)]
    sizes = [home.count(shard) for shard in range(3)]
    together = sum(size * (size - 1) // 2 for size in sizes)
    assert sorted(sizes) == [7, 7, 8]
    cut = [22 * (n + 1) // 3 - 22 * n // 3 for n in range(3)]
    assert sorted(cut) == [7, 7, 8]
    assert closed_form(11, 3, "plain") == pytest.approx(1 - together / len(list(combinations(range(22), 2))))
    # Shards of equal size s: 1 - (s - 1) / (2n - 1).
    assert closed_form(9, 3, "plain") == pytest.approx(1 - 5 / 17)
    assert closed_form(9, 3, "distinct") == 1


def test_a_window_keeps_distinct_copies_apart_and_follows_the_closed_form_within_its_blocks() -> None:
    for row in run_placement((64, 240), trials=200, window=4):
        if row.placement == "distinct":
            assert (row.least, row.expected) == (1, 1)
        else:
            assert row.observed == pytest.approx(row.expected, abs=4 * row.error)
            assert row.expected < closed_form(row.n, row.shards, "plain")
    # 64 reflections, 8 shards of 16 entries, two blocks of 32 reflections each.
    assert closed_form(64, 8, "plain", 4) == pytest.approx(1 - 15 / 63)


def test_what_cannot_be_counted_is_refused() -> None:
    for arguments in ({"sizes": (8,)}, {"sizes": ()}, {"trials": 1}, {"window": 2}):
        with pytest.raises(ArgumentValueError):
            run_placement(**arguments)
    assert min(SIZES) == 9
    assert max(SIZES) == 1_000


def test_the_command_writes_what_it_prints(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "placement.json"
    main(["--sizes", "9,16", "--trials", "5", "--seed", "2", "--json", str(target)])
    record = json.loads(target.read_text(encoding="utf-8"))
    assert [(row["n"], row["placement"]) for row in record["rows"]] == [
        (9, "distinct"),
        (9, "plain"),
        (16, "distinct"),
        (16, "plain"),
    ]
    assert table(run_placement((9, 16), 5, 2)) in capsys.readouterr().out
