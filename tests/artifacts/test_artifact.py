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
        {"sections": ()},
        {"sections": ("A", "A")},
    ],
)
def test_what_cannot_be_used_is_refused(params):
    with pytest.raises(ArgumentError):
        PlaybookArtifact(**params).validate()


def test_a_single_call_reads_all_and_a_scan_deals_copies_apart():
    assert Sharding.of(SingleCall()).shards([5] * 40, 0, CONTEXT) == [tuple(range(40))]
    shards = Sharding.of(ParallelScan(fan_in=8)).shards([5] * 40, 0, CONTEXT)
    assert len(shards) == 10
    assert all(len(set(shard)) == len(shard) <= 8 for shard in shards)
    assert sorted(place for shard in shards for place in shard) == sorted([*range(40)] * 2)
    assert Sharding.of(Union()).shards([], 0, CONTEXT) == []


def test_shards_keep_to_the_tokens_of_a_call():
    shards = Sharding.of(ParallelScan(max_call_tokens=4_000)).shards([900] * 12, 200, CONTEXT)
    assert max(len(shard) for shard in shards) * 900 <= 4_000 - 1_000 - 200


def test_other_aggregators_are_refused():
    with pytest.raises(ArgumentValueError, match="cannot be used with a playbook"):
        Sharding.of(TopK())
