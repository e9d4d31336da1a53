from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from dataclasses import FrozenInstanceError
from typing import Any

import pytest

from combee_dspy import events
from combee_dspy.records import NodeOutput, Retained, Rollout
from combee_dspy.tracking.report import Collector, ReportHook, collect
from combee_dspy.tracking.report import _pool as pool
from combee_dspy.tracking.report import _scans as scans
from combee_dspy.tracking.report import _telling as telling

Tell = Callable[..., Iterator[events.Event]]


def test_the_headline_and_the_sums_are_those_of_the_events(tell: Tell) -> None:
    data = collect(tell(6))
    assert data.heldout is not None
    assert (data.heldout.before, data.heldout.after, data.heldout.low) == (0.35, 0.62, 0.15)
    assert data.finished
    assert data.rollouts == 580
    assert len(data.iterations) == 6
    assert data.seed_score == 0.31
    assert [row.role for row in data.costs] == ["proposer", "task"]
    assert data.spending.tokens == sum(row.prompt_tokens + row.completion_tokens for row in data.costs)
    assert data.spending.dollars == pytest.approx(0.56 * 7)
    assert data.measurements[-1].batch_size == 16
    with pytest.raises(FrozenInstanceError):
        data.name = "other"  # type: ignore[misc]


def test_points_know_what_had_been_spent_by_then(tell: Tell) -> None:
    points = collect(tell(6)).points
    assert points[0].spending is None
    assert [point.spending.tokens for point in points[1:] if point.spending] == sorted(
        point.spending.tokens for point in points[1:] if point.spending
    )
    assert all(point.spending for point in points[1:])


def test_every_candidate_knows_where_it_came_from(tell: Tell) -> None:
    rows = collect(tell(6)).candidates
    by_index = {row.index: row for row in rows if row.index is not None}
    assert by_index[0].operator == "seed"
    assert by_index[1].parents == (0,)
    assert by_index[1].operator == "insert"
    assert by_index[1].parent_id == "seed"
    assert by_index[1].minibatch is not None
    assert by_index[1].parent_minibatch is not None
    assert [row.index for row in rows if row.chosen] == [4]
    assert "not kept" in {row.fate for row in rows if row.index is None}


def test_minibatch_means_are_the_rollouts_own(tell: Tell) -> None:
    heard = list(tell(2))
    data = collect(heard)
    child = f"{1:08x}{0:08x}"
    scores = [
        event.rollout.score
        for event in heard
        if isinstance(event, events.RolloutFinished) and event.candidate_id == child and event.purpose == "child"
    ]
    row = next(one for one in data.candidates if one.candidate_id == child)
    assert row.minibatch == sum(scores) / len(scores)
    assert data.iterations[0].cached == 1


def test_refusals_weights_notes_and_diversity_are_kept(tell: Tell) -> None:
    data = collect(tell(6))
    assert data.refusals == (("few-shot-swap", "no rollout was a success", 2),)
    assert data.weights[-1].weights["insert"] == pytest.approx(0.68)
    assert data.iterations[-1].distinct == 12
    titles = {note.title for note in data.notes}
    assert {"held-out pinned", "started again from the seed", "rollout", "candidate 4 selected"} <= titles


def test_a_run_that_was_cut_short_anywhere_has_a_report(tell: Tell) -> None:
    heard = list(tell(3))
    for length in range(0, len(heard), 7):
        data = collect(heard[:length])
        assert not data.finished
        assert data.heldout is None


def test_phases_share_out_the_time_of_an_iteration(tell: Tell) -> None:
    collector = Collector()
    for number, event in enumerate(tell(3)):
        collector.hear(event, float(number))
    heard = list(tell(3))
    for row in collector.data().iterations:
        inside = [number for number, event in enumerate(heard) if event.iteration == row.number]
        begin = next(n for n in inside if isinstance(heard[n], events.IterationStarted))
        end = next(n for n in inside if isinstance(heard[n], events.IterationFinished))
        assert sum(row.phases.values()) == end - begin
        assert {"parents", "scan", "update", "children"} <= set(row.phases)


def test_without_a_clock_only_scans_are_told_apart(tell: Tell) -> None:
    row = collect(tell(2)).iterations[0]
    assert row.phases == {"scan": 5.0, "other": 25.0}


def test_an_iteration_that_was_done_again_after_a_crash_counts_once(tell: Tell) -> None:
    heard = list(tell(3, end=False))
    again = next(
        number
        for number, event in enumerate(heard)
        if isinstance(event, events.IterationStarted) and event.iteration == 3
    )
    once, twice = collect(heard), collect([*heard, heard[0], *heard[again:]])
    assert twice.iterations == once.iterations
    assert len(twice.points) == len(once.points)
    assert len(twice.scans) == len(once.scans)
    assert twice.best_texts == once.best_texts


def _scan(nodes: tuple[NodeOutput, ...]) -> events.ScanFinished:
    return events.ScanFinished(
        iteration=1, component="c", aggregator="parallel-scan", nodes=nodes, lessons=("x",), seconds=1.0
    )


def test_what_each_node_kept_and_lost() -> None:
    nodes = (
        NodeOutput(level=1, node=0, sources=(0, 1), lessons=("a", "b")),
        NodeOutput(level=1, node=1, sources=(2, 3), lessons=("c",)),
        NodeOutput(level=2, node=0, sources=(0, 1, 2, 3), lessons=("a",)),
    )
    retention = events.RetentionMeasured(
        iteration=1,
        component="c",
        aggregator="parallel-scan",
        reflections=(
            Retained(index=0, coverage=1.0, covered=True),
            Retained(index=1, coverage=0.1, covered=False, lost_at=(1, 0)),
            Retained(index=2, coverage=0.2, covered=False, lost_at=(2, 0)),
            Retained(index=3, coverage=0.9, covered=True),
        ),
        tokens_per_level=(10, 5),
    )
    view = scans.scan_view(_scan(nodes), retention)
    assert [(node.kept, node.lost) for node in view.nodes] == [(1, 1), (2, 0), (2, 1)]
    assert [node.parent for node in view.nodes] == [0, 0, None]
    assert (view.covered, view.measured) == (2, 4)


@pytest.mark.parametrize("early", [True, False])
def test_retention_may_be_heard_before_or_after_the_scans_end(early: bool) -> None:
    node = NodeOutput(level=1, node=0, sources=(0,), lessons=("a",))
    retention = events.RetentionMeasured(
        iteration=1,
        component="c",
        aggregator="a",
        reflections=(Retained(index=0, coverage=1.0, covered=True),),
        tokens_per_level=(1,),
    )
    heard = [retention, _scan((node,))] if early else [_scan((node,)), retention]
    assert collect(heard).scans[0].covered == 1


def test_a_hook_keeps_bounded_data_however_long_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "MAX_ROWS", 5)
    monkeypatch.setattr(pool, "TEXT_BUDGET", 2_000)
    monkeypatch.setattr(scans, "TEXT_BUDGET", 1_000)
    collector = Collector()
    for number in range(1, 60):
        node = NodeOutput(level=1, node=0, sources=(0,), lessons=("lesson " * 50,))
        collector.hear(_scan((node,)))
        texts = {"c": f"{number} " * 100}
        collector.hear(
            events.CandidateProposed(
                iteration=number, candidate_id=f"id{number}", parent_id="p", operator="insert", texts=texts
            )
        )
    data = collector.data()
    assert len(data.candidates) == 5
    assert sum(len(text) for one in data.candidates for text in one.texts.values()) <= 2_000
    assert sum(len(lesson) for scan in data.scans for node in scan.nodes for lesson in node.lessons) <= 1_000
    assert sum(node.count for scan in data.scans for node in scan.nodes) == 59
    assert any("54" in sentence for sentence in data.dropped)


def test_the_most_telling_rollouts_are_few_and_their_texts_are_read_only_then() -> None:
    kept, read = telling.Telling(), []

    def seen(number: int, purpose: str, score: float, candidate: str, error: str = "") -> telling.Seen:
        def texts() -> tuple[str, str, str]:
            read.append(number)
            return ("in", "out", "feedback")

        return telling.Seen(
            1, f"r{number}", candidate, f"e{number % 100}", "train", purpose, score, False, error, texts
        )

    kept.child(1, "b", "a")
    for number in range(100):
        kept.add(seen(number, "parent", 0.5, "a"))
    for number in range(100, 200):
        kept.add(seen(number, "child", 1.0 if number == 150 else 0.5, "b"))
    kept.add(seen(201, "heldout", 1.0, "b"))
    kept.add(seen(202, "parent", 0.0, "a", "ValueError: x"))
    rows = kept.rows()
    assert rows[0].rollout_id == "r150"
    assert (rows[0].kind, rows[0].before, rows[0].score) == ("improved", 0.5, 1.0)
    assert [row.rollout_id for row in rows if row.kind == "error"] == ["r202"]
    assert "r201" not in {row.rollout_id for row in rows}
    assert len(rows) <= 5 * telling.SHOWN
    assert len(read) < 20


@pytest.mark.parametrize("purpose", ["child", "screen"])
def test_a_child_meets_its_parent_though_the_next_iteration_was_told_of_in_between(purpose: str) -> None:
    kept = telling.Telling()

    def seen(iteration: int, number: int, what: str, score: float, candidate: str) -> telling.Seen:
        place = f"r{number}", candidate, "one example", "train"
        return telling.Seen(iteration, *place, what, score, False, "", lambda: ("in", "out", "feedback"))

    kept.add(seen(1, 0, "parent", 0.0, "seed"))
    # Begun early, with another parent's score on the same example.
    kept.add(seen(2, 1, "parent", 0.5, "seed"))
    kept.child(1, "b", "seed")
    kept.add(seen(1, 2, purpose, 1.0, "b"))
    row = next(row for row in kept.rows() if row.kind == "improved")
    assert (row.rollout_id, row.before, row.score) == ("r2", 0.0, 1.0)


def test_a_line_that_lacks_columns_and_one_without_a_score_can_be_read() -> None:
    seen = telling.seen_in({"iteration": 1, "rollout_id": "r1", "purpose": "parent", "score": None, "inputs": "in"})
    assert (seen.iteration, seen.rollout_id, seen.error) == (1, "r1", None)
    assert seen.score != seen.score
    assert seen.texts() == ("in", "", "")


def test_every_error_class_is_shown_before_any_is_shown_twice() -> None:
    kept = telling.Telling()
    for number in range(50):
        error = "RareError: once" if number == 49 else "CommonError: again"
        kept.add(
            telling.Seen(1, f"r{number}", "a", f"e{number}", "train", "parent", 0.0, False, error, lambda: ("",) * 3)
        )
    assert "RareError: once" in {row.error for row in kept.rows()}


def test_no_key_reaches_the_data(tell: Tell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_API_KEY", "dummy-value-of-a-key")
    data = collect(tell(3, "dummy-value-of-a-key and sk-abcdefghijklmnop1234"))
    text = repr(data)
    assert "dummy-value-of-a-key" not in text
    assert "sk-abcdefghijklmnop1234" not in text
    assert "hush-hush" not in text
    assert "[redacted]" in text


KEY = "Zq7w" + "x9Kd" * 9
"""Of no known shape: a piece of it is told from nothing else."""


def _across(limit: int) -> str:
    return ("a " * limit)[: limit - 35] + KEY + " tail" * 20


def _rolled(**changes: Any) -> events.RolloutFinished:
    known = {"example_id": "e", "example": {"q": 1}, "prediction": {"a": 1}, "trace": (), "score": 0.0, "seconds": 0.1}
    rolled = Rollout(**{**known, **changes})
    return events.RolloutFinished(
        iteration=1, rollout=rolled, rollout_id="r", candidate_id="c", split="train", purpose="parent"
    )


def _scanned(**changes: Any) -> events.ScanFinished:
    node = NodeOutput(**{"level": 1, "node": 0, "sources": (0,), "lessons": (), **changes})
    return events.ScanFinished(iteration=1, component="c", aggregator="a", nodes=(node,), lessons=(), seconds=1.0)


@pytest.mark.parametrize(
    "event",
    [
        events.ErrorRaised(where="lm", error=_across(2_000), fatal=False),
        events.Restarted(iteration=1, reason=_across(500)),
        events.OperatorsWeighted(weights={"insert": 1.0}, reason=_across(500)),
        events.CandidateRefused(parent_id="p", operator="insert", reason=_across(200)),
        events.CandidateProposed(candidate_id="c", parent_id="p", operator="insert", texts={"c": _across(20_000)}),
        _scanned(lessons=(_across(400),)),
        _scanned(failed=_across(400)),
        _rolled(error=_across(1_500)),
        _rolled(feedback=_across(1_500)),
        _rolled(prediction={"answer": _across(1_485)}),
    ],
    ids=lambda event: type(event).__name__,
)
def test_a_cut_leaves_no_piece_of_a_key(monkeypatch: pytest.MonkeyPatch, event: events.Event) -> None:
    monkeypatch.setenv("SOME_API_KEY", KEY)
    text = repr(collect([events.IterationStarted(iteration=1), event]))
    assert "a a a a" in text
    assert KEY[:6] not in text


def test_a_hook_writes_the_file_at_the_end_also_after_an_error(tell: Tell, tmp_path) -> None:
    hook = ReportHook(tmp_path / "new" / "report.html")
    for event in tell(2, end=False):
        hook.handle(event)
    hook.close()
    page = (tmp_path / "new" / "report.html").read_text(encoding="utf-8")
    assert "not finished" in page
    assert hook.where.endswith("report.html")
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["report.html"]


def test_data_crosses_processes(tell: Tell) -> None:
    data = collect(tell(2))
    assert pickle.loads(pickle.dumps(data)) == data  # noqa: S301 - our own bytes
