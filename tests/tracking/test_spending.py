"""What a search has paid for what it reached: every figure is a sum over the journal, each effect
in one update.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import dspy
import pytest

from combee_dspy import Costs, Heldout, Price, tracking
from combee_dspy.journal import Reader, RunHistory, journal_file
from combee_dspy.tracking._candidates import read_candidates
from combee_dspy.tracking._spending import read_spending
from tests.tracking.journals import Story
from tests.worlds import World, examples, rows


@pytest.fixture
def place(world: World, tmp_path: Any) -> Any:
    settings = {
        "costs": Costs(prices={"task": Price(1, 1), "proposer": Price(1, 1)}, gpus={"task": 2}),
        "reflection_minibatch_size": 4,
        "max_metric_calls": 80,
    }
    with dspy.context(lm=world.task_lm, adapter=dspy.ChatAdapter()):
        world.combee(log_dir=tmp_path, **settings).compile(
            dspy.Predict("question -> answer"),
            trainset=examples(24),
            valset=examples(12, 100),
            heldout=Heldout(examples(10, 200)),
        )
    return tmp_path


def test_what_was_spent_when_a_candidate_was_validated(tmp_path: Any) -> None:
    story = Story(tmp_path)
    with Reader(journal_file(story.whole())) as reader:
        history = RunHistory(reader, 1)
        times = (story.clock - 100, 0.0, 1e12)
        candidates = [
            replace(row, validated_at=at)
            for row, at in zip(read_candidates(history), times, strict=True)
        ]
        spent = read_spending(history, candidates)
    paid = [(spent.by_time[at].rollouts, spent.by_time[at].tokens) for at in times]
    # The reading of the held-out set is no part.
    assert paid == [(0, 0), (0, 0), (18, 18 * 15 + 240)]


def test_updates_add_up_to_the_search_and_prompts_say_what_was_paid_by_then(place: Any) -> None:
    result = tracking.overview(place)[0]["spending"]
    updates = [row for row in result if row["of"].startswith(("update", "before"))]
    prompts = [row for row in result if row["of"].startswith("prompt")]
    assert len(updates) > 2
    (run,) = tracking.runs(place)
    search = "FROM usage u JOIN effect e ON e.id = u.effect WHERE e.purpose <> 'heldout'"
    (spent,) = rows(
        place,
        "SELECT sum(prompt_tokens + completion_tokens) AS tokens, sum(dollars) AS dollars"
        f" {search}",
    )
    assert sum(row["rollouts"] for row in updates) == run["rollouts"]
    assert sum(row["tokens"] for row in updates) == spent["tokens"] < run["tokens"]
    assert sum(row["dollars"] for row in updates) == pytest.approx(spent["dollars"])
    assert all(update["seconds"] >= 0 and update["gpu_seconds"] is not None for update in updates)

    validated = [
        candidate for candidate in tracking.candidates(place) if candidate["index"] is not None
    ]
    assert {row["of"].removeprefix("prompt ") for row in prompts} == {
        row["candidate"][:8] for row in validated
    }
    assert [row["rollouts"] for row in prompts] == sorted(row["rollouts"] for row in prompts)
    assert prompts[0]["rollouts"] >= 12
    assert prompts[-1]["tokens"] <= spent["tokens"]
    # Nothing but the first and the chosen prompt has read the held-out set.
    held = [prompt["heldout"] for prompt in prompts if prompt["heldout"] is not None]
    assert held == [run["heldout_before"], run["heldout_after"]]
    assert updates[-1]["validation"] == max(row["score"] for row in validated)


def test_the_page_and_the_command_show_the_same(place: Any, capsys: Any) -> None:
    from combee_dspy.cli import main

    page = tracking.write_report(place, place / "r.html").read_text(encoding="utf-8")
    with pytest.raises(SystemExit):
        main(["show", str(place)])
    output = capsys.readouterr().out
    for row in tracking.overview(place)[0]["spending"]:
        assert f'<td>{row["of"]}</td><td class="n">{row["rollouts"]:,}</td>' in page
        assert row["of"] in output
