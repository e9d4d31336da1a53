"""The playbook artifact: what it shows and how it is checked."""

from __future__ import annotations

import pytest

from combee_dspy.aggregators import ParallelScan, SingleCall, TopK, Union
from combee_dspy.artifacts import Bullet, Instruction, Playbook, PlaybookArtifact, Sharding, write_text
from combee_dspy.exceptions import ArgumentError, ArgumentValueError
from combee_dspy.strategies import StrategyContext

PLAYBOOK = Playbook(
    (Bullet("str-1", "STRATEGIES", "Check\nunits.", 4, 0, 0), Bullet("str-2", "STRATEGIES", "=== END OF PLAYBOOK ===")),
    ("STRATEGIES", "OTHER"),
)
CONTEXT = StrategyContext("playbook", "", predict=lambda *_, **__: (), emit=lambda event: None)


def test_what_is_shown_is_read_back_with_the_task_apart():
    artifact = PlaybookArtifact(sections=("STRATEGIES", "OTHER"))
    shown = artifact.show("Answer\n\nbriefly.", artifact.dump(PLAYBOOK))
    start = artifact.start(shown)
    assert (start.instruction, start.playbook, start.ignored) == ("Answer\n\nbriefly.", PLAYBOOK, ())
    assert "[str-1] helpful=4 harmful=0 :: Check\n    units." in shown


def test_what_stands_around_a_playbook_stays_apart():
    artifact = PlaybookArtifact(sections=("STRATEGIES", "OTHER"))
    shown = artifact.show("Answer briefly.", artifact.dump(PLAYBOOK))
    assert artifact.start(f"{shown}\n\nMore of it.").instruction == "Answer briefly.\n\nMore of it."
    assert artifact.start(artifact.show("", artifact.dump(PLAYBOOK)) + "\nMore.").instruction == "More."


def test_the_last_section_stays_the_last_and_the_order_that_of_the_artifact():
    artifact = PlaybookArtifact(sections=("A", "B", "REST"))
    for standing in (("REST",), ("B", "A"), ("REST", "MINE"), ("MINE", "B")):
        bullets = tuple(Bullet(f"x-{name}", name, f"about {name}") for name in standing)
        start = artifact.start(artifact.show("Answer.", artifact.dump(Playbook(bullets, standing))))
        assert start.playbook.sections == (("MINE",) if "MINE" in standing else ()) + ("A", "B", "REST")
        assert {one.id for one in start.playbook.bullets} == {one.id for one in bullets}


def test_nothing_learned_shows_the_instruction_alone():
    artifact = PlaybookArtifact()
    assert artifact.show("Answer.", "") == "Answer."
    start = artifact.start("Answer.")
    assert (start.instruction, len(start.playbook)) == ("Answer.", 0)
    assert Instruction().show("Answer.", "") == "Answer."
    assert Instruction().show("Answer.", "Better.") == "Better."


def test_the_budget_hides_bullets():
    artifact = PlaybookArtifact(max_tokens=64)
    many = Playbook(tuple(Bullet(f"s-{n}", "OTHER", "some words of advice", n) for n in range(20)), ("OTHER",))
    shown = artifact.show("", write_text(many))
    assert "[s-19]" in shown
    assert "[s-0]" not in shown


@pytest.mark.parametrize(
    "params",
    [
        {"max_tokens": 1},
        {"epochs": 0},
        {"epochs": 2, "mode": "online"},
        {"mode": "sometimes"},
        {"rounds": 0},
        {"rounds": 1.5},
        {"validate_every": -1},
        {"similarity": 0.0},
        {"leave_at": 0},
        {"staleness": 2},
        {"staleness": -1},
        {"staleness": 1, "mode": "online"},
        {"sections": ()},
        {"sections": ("A", "A")},
    ],
)
def test_what_cannot_be_used_is_refused(params):
    with pytest.raises(ArgumentError):
        PlaybookArtifact(**params).validate()


def test_a_single_call_reads_all_and_a_scan_deals_copies_apart():
    assert Sharding.of(SingleCall()).plan(40, 1.0, CONTEXT) == [tuple(range(40))]
    shards = Sharding.of(ParallelScan(fan_in=8)).plan(40, 1.0, CONTEXT)
    assert len(shards) == 10
    assert all(len(set(shard)) == len(shard) <= 8 for shard in shards)
    assert sorted(place for shard in shards for place in shard) == sorted([*range(40)] * 2)
    assert Sharding.of(Union()).plan(0, 1.0, CONTEXT) == []


def test_a_shard_takes_more_trajectories_where_few_of_them_teach_something():
    sharding = Sharding.of(ParallelScan(fan_in=8))
    assert len(sharding.plan(80, 0.25, CONTEXT)) < len(sharding.plan(80, 1.0, CONTEXT))
    # Nobody has learned anything yet: as few shards as the paper's.
    assert len(sharding.plan(80, 0.0, CONTEXT)) == 8


def test_a_shard_is_cut_where_one_call_cannot_take_it():
    sharding = Sharding.of(ParallelScan(fan_in=8, max_call_tokens=4_000))
    assert sharding.pieces([], 200) == []
    assert sharding.pieces([5] * 8, 200) == [tuple(range(8))]
    assert [len(piece) for piece in sharding.pieces([5] * 9, 200)] == [4, 5]
    pieces = sharding.pieces([900] * 8, 200)
    assert max(len(piece) for piece in pieces) * 900 <= 4_000 - 1_000 - 200
    assert [place for piece in pieces for place in piece] == list(range(8))
    # One insight is asked about, however long it is.
    assert sharding.pieces([90_000], 200) == [(0,)]
    assert Sharding.of(SingleCall()).pieces([90_000] * 3, 0) == [(0, 1, 2)]


def test_other_aggregators_are_refused():
    with pytest.raises(ArgumentValueError, match="cannot be used with a playbook"):
        Sharding.of(TopK())
