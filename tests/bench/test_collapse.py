from __future__ import annotations

import json
from dataclasses import replace

from combee_dspy.bench import collapse
from combee_dspy.bench.collapse import ARMS, main, run_one, scripted_search, table
from combee_dspy.diversity import Diversity


def test_without_diversity_the_proposals_collapse_and_with_it_they_do_not():
    off, guard, both = ([run_one(arm, seed) for seed in range(4)] for arm in ARMS)
    for one, two, three in zip(off, guard, both, strict=True):
        assert one.made == one.proposals == 16
        assert one.distinct <= 8
        assert (one.refused, one.repeated) == (0, 0)
        assert two.distinct == two.made
        assert two.refused > 0
        assert three.distinct > one.distinct
        assert three.heldout >= one.heldout


def test_the_same_seed_gives_the_same_search():
    assert run_one("guard and temperature", 5) == run_one("guard and temperature", 5)
    assert run_one("off", 1) != run_one("off", 2)


def test_a_guard_that_refuses_nothing_is_no_guard():
    loose = scripted_search(0, Diversity(threshold=0.9999), 16)
    assert loose.distinct < loose.made


def test_another_search_can_be_measured():
    asked = []

    def search(seed, diversity, proposals):
        asked.append((seed, diversity, proposals))
        return replace(scripted_search(seed, diversity, 2), heldout=0.75)

    found = run_one("guard", 3, 9, search)
    assert asked == [(3, ARMS["guard"], 9)]
    assert (found.arm, found.heldout) == ("guard", 0.75)


def test_the_table_compares_with_the_first_arm_and_says_what_it_is():
    text = table([run_one(arm, seed, 6) for arm in ARMS for seed in range(3)])
    assert "no language model" in text.splitlines()[0]
    assert "3 seeds, 6 proposals" in text.splitlines()[0]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines()[4:]]
    assert [row[0] for row in rows] == list(ARMS)
    assert rows[0][3] == ""
    assert " to " in rows[1][3]


def test_the_command_prints_the_table_and_notes_each_result(tmp_path, capsys):
    file = tmp_path / "collapse.jsonl"
    main(["--seeds", "0-1", "--proposals", "4", "--json", str(file)])
    assert "| off |" in capsys.readouterr().out
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    assert len(rows) == 2 * len(ARMS)
    assert {row["label"] for row in rows} == {collapse.LABEL}
