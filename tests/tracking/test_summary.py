from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import orjson
import pytest

from combee_dspy import events
from combee_dspy.records import Rollout
from combee_dspy.tracking._redact import Redactor
from combee_dspy.tracking._rows import CELL, Row, cells_of, data_of, parquet_of, row_of, table_of
from combee_dspy.tracking._summary import MAX_PARAM, Summary, params_of

Story = Callable[[], list[events.Event]]


def _line(event: events.RolloutFinished) -> dict[str, Any]:
    data = data_of(event, Redactor(), run_id="run", serial=event.rollout_id, roles={}, parents=())
    line: dict[str, Any] = orjson.loads(orjson.dumps(data))
    return line


def _as_row(event: events.RolloutFinished) -> Row:
    return row_of(_line(event))


def _steps(story: Story) -> tuple[Summary, dict[int, dict[str, float]]]:
    summary, steps = Summary(), {}
    for event in story():
        if isinstance(event, events.IterationStarted) and summary.step == 0:
            steps[0] = summary.take(0)
        if isinstance(event, events.RolloutFinished):
            summary.hear_rollout(_line(event))
        summary.hear(event)
        if isinstance(event, events.IterationFinished):
            steps[event.iteration] = summary.take(event.iteration)
    last = summary.step
    steps[last] = summary.take(last)
    return summary, steps


def test_each_iteration_has_its_own_figures(story: Story) -> None:
    _, steps = _steps(story)
    assert sorted(steps) == [0, 1, 2, 3]
    assert steps[0] == {
        "rollouts/run": 3,
        "rollouts/bought": 3,
        "latency/rollout_mean": 0.5,
        "latency/rollout_p50": 0.5,
        "latency/rollout_max": 0.5,
        "val/seed": pytest.approx(1 / 3),
        "val/best": pytest.approx(1 / 3),
    }
    first = steps[1]
    assert first["train/minibatch"] == 0.5
    assert first["train/child"] == 0.5
    assert (first["val/candidate"], first["val/best"]) == (0.6, 0.6)
    assert (first["rollouts/run"], first["rollouts/cached"], first["rollouts/errors"]) == (10, 1, 1)
    assert (first["batch/size"], first["batch/clamps"], first["batch/plateau"]) == (4, 1, 13.57)
    assert (first["scan/lessons"], first["scan/nodes"], first["scan/failed_nodes"]) == (2, 3, 1)
    assert (first["tokens/task"], first["tokens/proposer"]) == (1050, 790)
    assert (first["calls/task"], first["cost/dollars"], first["cost/unpriced_calls"]) == (8, 0.25, 0)
    assert steps[2]["tokens/task"] == 2100
    assert steps[3]["heldout/gain"] == pytest.approx(0.4)
    assert steps[3]["tokens/task"] == 3150


def test_what_was_begun_early_counts_in_its_own_iteration(make_rollout: Callable[..., Rollout]) -> None:
    summary = Summary()

    def hear(iteration: int, score: float) -> None:
        summary.hear_rollout(
            _line(
                events.RolloutFinished(
                    iteration=iteration,
                    rollout_id=f"{iteration}-{score}",
                    rollout=make_rollout(0, score=score),
                    candidate_id="c",
                    split="train",
                    purpose="parent",
                )
            )
        )

    summary.take(0)
    hear(1, 0.0)
    hear(2, 1.0)
    first, second = summary.take(1), summary.take(2)
    assert (first["train/minibatch"], first["rollouts/run"]) == (0.0, 1)
    assert (second["train/minibatch"], second["rollouts/run"]) == (1.0, 1)
    assert not summary.take(3)


def test_held_out_rollouts_count_by_themselves_and_the_end_has_the_sums(story: Story) -> None:
    _, steps = _steps(story)
    last = steps[3]
    assert last["heldout/rollouts"] == 5
    assert "rollouts/run" not in last
    assert "latency/rollout_mean" not in last
    assert (last["total/tokens"], last["total/calls"], last["total/dollars"]) == (5520, 31, 0.75)


def test_of_several_children_in_one_iteration_the_best_is_the_candidate(story: Story) -> None:
    summary = Summary()
    for index, score in enumerate([0.4, 0.9, 0.6], start=1):
        summary.hear(
            events.ValidationFinished(
                iteration=1, index=index, candidate_id=str(index), texts={}, score=score, best=index == 2, rollouts=9
            )
        )
    assert summary.take(1)["val/candidate"] == 0.9


def test_what_is_not_a_number_is_no_metric() -> None:
    summary = Summary()
    worst, unknown = float("-inf"), float("nan")
    summary.hear(events.IterationFinished(iteration=1, accepted=False, rollouts=1, best_score=worst, seconds=unknown))
    assert summary.take(1) == {"rollouts/bought": 1}


def test_the_headline_comes_first(story: Story) -> None:
    summary, _ = _steps(story)
    lines = summary.description().split("\n\n")
    assert lines[0] == "**Held-out 0.400 → 0.800** (+0.400, 95% interval +0.100 to +0.700, n = 5)."
    assert lines[1] == "Validation 0.333 → 0.700, best candidate 2."
    assert lines[2] == "Stopped: the budget of 30 rollouts is spent."
    assert lines[4].startswith("Warning: valset equals trainset")
    assert summary.status == "FINISHED"


def test_without_held_out_the_headline_claims_nothing(story: Story) -> None:
    summary = Summary()
    for event in story():
        if not isinstance(event, events.HeldoutEvaluated):
            summary.hear(event)
    assert summary.description().startswith("No held-out result: this run supports no claim.")


def test_a_run_that_was_cut_off_is_killed_and_one_with_a_fatal_error_failed(story: Story) -> None:
    summary = Summary()
    summary.hear(story()[0])
    assert summary.status == "KILLED"
    summary.hear(events.ErrorRaised(where="gepa", error="OSError: disk", fatal=True))
    assert summary.status == "FAILED"
    assert "Failed: OSError: disk" in summary.description()


def test_params_hold_what_was_decided_and_are_cut_at_the_limit(story: Story) -> None:
    started = story()[0]
    assert isinstance(started, events.RunStarted)
    long = events.RunStarted(
        name="n" * 7000,
        seed=1,
        sizes={"train": 3},
        digests={},
        specs=started.specs,
        models={"task [a]": "m"},
        components={"p": ""},
    )
    params = params_of(long, {"version/dspy": "3.4.1"})
    assert json.loads(params["strategy/aggregator"])["name"] == "parallel-scan"
    assert len(params["run/name"]) == MAX_PARAM
    assert params["run/name"].endswith("[cut, 7000 characters]")
    assert params["model/task-20--5b-a-5d-"] == "m"
    assert (params["run/seed"], params["size/train"], params["version/dspy"]) == ("1", "3", "3.4.1")


def _row(
    make_rollout: Callable[..., Rollout], index: int, score: float = 1.0, error: str | None = None
) -> events.RolloutFinished:
    return events.RolloutFinished(
        iteration=1,
        rollout=make_rollout(index, score, error=error),
        rollout_id=f"r{index}",
        candidate_id="c",
        split="train",
        purpose="parent",
    )


def test_a_row_shows_inputs_without_the_answer_and_no_key(make_rollout: Callable[..., Rollout]) -> None:
    row = _as_row(_row(make_rollout, 3, 0.0, "AuthError: sk-abcdefghijklmnop1234"))
    assert json.loads(row.inputs) == {"question": "question 3"}
    assert row.error == "AuthError: [redacted]"
    assert row.prediction == ""
    assert (row.rollout_id, row.score, row.purpose) == ("run.r3", 0.0, "parent")
    assert (row.error_class, row.feedback_length) == ("AuthError", len("wrong formula"))
    # Nobody counted its calls: that is unknown, not zero.
    assert (row.calls, row.prompt_tokens, row.gpu_seconds, row.queue_wait) == (None, None, None, None)


def test_a_long_cell_is_cut_visibly(make_rollout: Callable[..., Rollout]) -> None:
    row = _as_row(_row(make_rollout, 1, 1.0, "x" * 5000))
    assert len(row.error) == CELL
    assert row.error.endswith("[cut, 5000 characters]")


def test_the_table_is_plain_json(make_rollout: Callable[..., Rollout]) -> None:
    rows = [_as_row(_row(make_rollout, index, float("nan") if index == 0 else 1.0)) for index in range(2)]
    table = table_of(rows, ["worst", "best"])
    ids = table["columns"].index("rollout_id")
    assert [(line[0], line[ids]) for line in table["data"]] == [("worst", "run.r0"), ("best", "run.r1")]
    # What a screen shows without scrolling.
    assert table["columns"][:6] == ["why", "score", "inputs", "prediction", "feedback", "error"]
    assert json.loads(json.dumps(table, allow_nan=False))["data"][0][table["columns"].index("score")] is None


def test_parquet_reads_back_as_written(make_rollout: Callable[..., Rollout]) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    import io

    lines = [_line(_row(make_rollout, index, 0.25, "bad \ud800 text")) for index in range(3)]
    content = parquet_of([cells_of(line) for line in lines])
    assert content is not None
    back = parquet.read_table(io.BytesIO(content)).to_pylist()
    assert [line["rollout_id"] for line in back] == ["run.r0", "run.r1", "run.r2"]
    assert back[0]["score"] == 0.25
    assert back[0]["error"] == "bad \ufffd text"
    assert back[0]["cached"] is False
