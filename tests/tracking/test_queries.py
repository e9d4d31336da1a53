"""Queries say what the journal says, read only, and show neither keys nor the held-out set."""

from __future__ import annotations

import json

import pytest

from combee_dspy.events import CandidateProposed, CandidateSelected
from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.journal import RunLog, journal_file
from combee_dspy.tracking import ROLLOUT_COLUMNS, candidates, overview, rollouts, runs, show
from tests.tracking.journals import CHILD, KEY, SEED, SWAPPED, Story


@pytest.fixture
def place(tmp_path):
    return Story(tmp_path).whole()


def test_a_run_has_its_figures(place):
    (run,) = runs(place)
    # 18 of the search, 8 of the held-out set, which is read beyond the budget; and two calls.
    assert {
        "name": "main",
        "state": "finished",
        "updates": 2,
        "simulated": 1,
        "seed_score": 0.25,
        "best_score": 1.0,
        **{f"heldout_{name}": value for name, value in Story.heldout.items()},
        "rollouts": 18,
        "calls": 28,
        "tokens": 26 * 15 + 2 * 120,
        "dollars": None,  # the price of the proposer is not known
        "reason": "1 epoch is done",
    }.items() <= run.items()


def test_a_run_that_goes_on_has_the_figures_so_far(tmp_path):
    (run,) = runs(Story(tmp_path).write("begin", "first"))
    assert (run["state"], run["best_score"]) == ("running", 0.5)
    assert (run["heldout_n"], run["reason"]) == (None, None)
    assert run["supports_claims"] == 0, "an unfinished run is fit for no claim"


def test_a_run_that_has_done_nothing_has_figures(tmp_path):
    (run,) = runs(Story(tmp_path).write())
    assert (run["rollouts"], run["calls"], run["tokens"], run["best_score"]) == (0, 0, 0, None)


def test_a_journal_of_several_runs_is_read_by_name_or_number(tmp_path):
    Story(tmp_path, "first").write("begin")
    Story(tmp_path, "second").write("begin", "first")
    assert [row["name"] for row in runs(tmp_path)] == ["first", "second"]
    assert {len(rollouts(tmp_path, run)) for run in (1, "1", "first")} == {4}
    assert len(candidates(tmp_path, "second")) == 2
    assert len(candidates(tmp_path)) == 3
    with pytest.raises(ArgumentValueError, match=r"1 \(first\), 2 \(second\)"):
        rollouts(tmp_path, "third")


@pytest.mark.parametrize(
    ("where", "count"),
    [
        ("score < 0.5 AND purpose = 'validation'", 5),
        ("error IS NOT NULL", 2),
        ("feedback LIKE '%script%' AND split = 'train'", 6),
        ("json_extract(prediction, '$.answer') = 'train 1'", 2),
        ("step = (SELECT max(step) FROM rollout)", 8),
        ("tokens > 1000 OR dollars IS NULL", 0),
        ("candidate LIKE 'dead%' -- whose", 8),
    ],
)
def test_a_condition_chooses_rollouts(place, where, count):
    assert len(rollouts(place, where=where, limit=None)) == count


@pytest.mark.parametrize(
    "where",
    [
        "1; DROP TABLE run",
        "(SELECT count(*) FROM run)",
        "(SELECT data FROM event LIMIT 1) IS NOT NULL",
        "(SELECT sql FROM sqlite_master LIMIT 1) IS NOT NULL",
        "1) UNION SELECT * FROM run WHERE (1",
        "load_extension('evil')",
        "length(randomblob(1000000000)) > 0",
        "nothing = 1",
        "score <",
        "1) LIMIT 1 /*",
        "score < 0.5) OR (1 = 1",
        "score < 0.5 ORDER BY score",
        "score < 0.5 UNION SELECT 1",
        "id IN (SELECT id FROM effect WHERE value LIKE '%heldout%')",
        "EXISTS (SELECT 1 FROM (SELECT value FROM effect) AS rollout WHERE value LIKE '%heldout%')",
        "id IN (SELECT effect FROM usage)",
        "score < ?",
        "abs(-9223372036854775807 - 1 + 0 * id) > 0",
        "",
        "\ud800",
        "1\x00",
        "id IN (WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i FROM n)",
    ],
)
def test_a_condition_can_only_read_rollouts(place, where):
    before = journal_file(place).read_bytes()
    with pytest.raises(ArgumentValueError, match="where") as refused:
        rollouts(place, where=where)
    assert "score" in refused.value.remedy
    assert journal_file(place).read_bytes() == before


def test_rollouts_have_the_stated_columns_and_a_limit(place):
    rows = rollouts(place, limit=3)
    assert [row["id"] for row in rows] == sorted(row["id"] for row in rows)
    assert len(rows) == 3
    assert tuple(rows[0]) == ROLLOUT_COLUMNS
    assert rows[0]["seconds"] == pytest.approx(0.5)


def test_texts_of_the_held_out_set_are_not_shown(place):
    held = rollouts(place, where="split = 'heldout'")
    assert len(held) == 8
    assert {row[name] for row in held for name in ("inputs", "prediction", "feedback")} == {None}
    assert "heldout 0" not in str(show(place, held[0]["id"])["value"])


def test_costs_are_sums_by_role_and_model(place):
    by_role = {row["role"]: row for row in overview(place)[0]["costs"]}
    assert (by_role["task"]["calls"], by_role["task"]["dollars"]) == (26, pytest.approx(0.026))
    assert (by_role["proposer"]["dollars"], by_role["proposer"]["unpriced"]) == (None, 2)
    assert sum(row["calls"] for row in by_role.values()) == 28


def test_candidates_have_their_fate(place):
    by_name = {candidate["candidate"]: candidate for candidate in candidates(place)}
    assert list(by_name) == [SEED, CHILD, SWAPPED]
    assert [row["score"] for row in by_name.values()] == [0.25, 0.5, 1.0]
    assert by_name[CHILD]["screened"]["accepted"]
    assert by_name[SWAPPED]["selected"] == "best on validation"
    assert by_name[SWAPPED]["parents"] == [CHILD]


def test_one_candidate_is_shown_with_what_it_changed(place):
    thing = show(place, "c0ff")
    assert thing["candidate"] == CHILD
    assert "+ - Round to two decimals." in thing["diff"]["predict"]
    assert show(place, SEED)["diff"] == {"predict": ["+ Answer."]}


def test_one_effect_is_shown_with_its_usage(place):
    effects = [show(place, f"effect/{number}") for number in range(1, 12)]
    (call,) = [effect for effect in effects if effect["kind"] == "call"]
    assert call["value"]["fields"]["lessons"] == ["Round to two decimals."]
    assert [row["role"] for row in call["usage"]] == ["proposer"]


@pytest.mark.parametrize("what", ["", "c0f", "beef", "99999", 99999, "9" * 30])
def test_what_is_not_there_is_named(place, what):
    with pytest.raises(ArgumentValueError, match="id"):
        show(place, what)


def test_no_key_is_shown(place, monkeypatch):
    monkeypatch.setenv("SOME_API_KEY", "What is the net margin?")
    everything = [
        runs(place),
        rollouts(place, limit=None),
        candidates(place),
        [show(place, "effect/5")],
    ]
    assert KEY not in json.dumps(everything)
    assert "net margin" not in json.dumps(everything)
    assert "[redacted]" in json.dumps(everything)


def test_a_task_that_is_named_by_a_number_is_found_by_its_name(tmp_path):
    Story(tmp_path, "2").write("begin")
    Story(tmp_path, "1").write("begin", "first")
    assert [len(candidates(tmp_path, run)) for run in ("2", "1", 2, 1)] == [1, 2, 2, 1]
    for unknown in ("3", "²", "9" * 30):
        with pytest.raises(ArgumentValueError, match="is no run"):
            candidates(tmp_path, unknown)


def test_of_several_runs_each_has_its_own_student_and_effects(tmp_path):
    class Linked(Story):
        async def begin(self, log: RunLog) -> None:
            texts = {"predict": "See https://given.example."}
            log.emit(CandidateProposed("beef0000", texts, (), "seed", ("predict",)))

    Story(tmp_path, "first").write("begin")
    Linked(tmp_path, "second").write("begin")
    assert show(tmp_path, "beef")["suspicious"] == [], "the line was given"
    assert show(tmp_path, "effect/1", "first")["run"] == 1
    with pytest.raises(ArgumentValueError, match="neither a candidate nor an effect"):
        show(tmp_path, "effect/1", "second")


def test_a_run_that_went_on_has_what_it_chose_last(place):
    class Extended(Story):
        async def more(self, log: RunLog) -> None:
            log.emit(CandidateSelected(CHILD, 1, "best of two validations"))

    Extended(place).write("more")
    assert show(place, "best")["candidate"] == CHILD
    assert {
        candidate["candidate"]: candidate["selected"]
        for candidate in candidates(place)
        if candidate["selected"]
    } == {CHILD: "best of two validations"}


def test_a_folder_without_a_journal_is_named(tmp_path):
    for query in (runs, rollouts, overview, candidates):
        with pytest.raises(ArgumentValueError, match="holds no run"):
            query(tmp_path)
