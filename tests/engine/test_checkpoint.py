"""A log_dir is checked before gepa reads it, and a run goes on where it stopped."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import dspy
import pytest

from combee_dspy import Combee
from combee_dspy.engine.candidates import demonstrations_key
from combee_dspy.engine.checkpoint import check_log_dir, claim_log_dir
from combee_dspy.exceptions import ArgumentValueError


class Payload:
    """Unpickled, it would call a function of the standard library."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> Any:
        return self.call


@pytest.mark.parametrize("protocol", [0, 2, 4, 5])
@pytest.mark.parametrize("function", [os.system, eval, exec, __import__, getattr, open])
def test_a_hostile_checkpoint_is_refused_and_not_run(tmp_path: Path, protocol: int, function: Any) -> None:
    target = tmp_path / "touched"
    (tmp_path / "gepa_state.bin").write_bytes(pickle.dumps(Payload(function, f"touch {target}"), protocol=protocol))
    with pytest.raises(ArgumentValueError, match="log_dir"):
        check_log_dir(tmp_path, {})
    assert not target.exists()


def test_a_function_of_an_allowed_package_is_refused_too(tmp_path: Path) -> None:
    import dspy

    (tmp_path / "gepa_state.bin").write_bytes(pickle.dumps(Payload(dspy.load, "somewhere")))
    with pytest.raises(ArgumentValueError, match=r"dspy.*load"):
        check_log_dir(tmp_path, {})


@pytest.mark.parametrize("content", [b"", b"garbage", b"\x80\x04."])
def test_a_damaged_checkpoint_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "gepa_state.bin").write_bytes(content)
    with pytest.raises(ArgumentValueError, match="log_dir"):
        check_log_dir(tmp_path, {})


def test_another_runs_checkpoint_is_refused(tmp_path: Path) -> None:
    claim_log_dir(tmp_path, {"train": "a", "metric": "m"})
    (tmp_path / "gepa_state.bin").write_bytes(pickle.dumps({}))
    check_log_dir(tmp_path, {"train": "a", "metric": "m"})
    with pytest.raises(ArgumentValueError, match="another train"):
        check_log_dir(tmp_path, {"train": "b", "metric": "m"})


def _run(world: Any, log_dir: Path, limit: int) -> Any:
    return Combee(
        world.metric, max_metric_calls=limit, reflection_lm=world.proposer_lm, log_dir=str(log_dir), track_stats=True
    ).compile(world.student(), trainset=world.examples(48), valset=world.examples(8, start=100))


def test_a_stopped_run_goes_on(world: Any, tmp_path: Path) -> None:
    """The resumed run keeps the candidates and draws on from where the first one stopped."""
    first = _run(world, tmp_path / "run", 40)
    resumed = _run(world, tmp_path / "run", 160)
    whole = _run(world, tmp_path / "whole", 160)
    found, kept = resumed.detailed_results, first.detailed_results
    assert found.val_aggregate_scores[: len(kept.val_aggregate_scores)] == kept.val_aggregate_scores
    assert found.total_metric_calls > kept.total_metric_calls
    assert resumed.combee_report.best_score >= whole.combee_report.best_score - 1e-9


def test_resuming_with_other_data_is_refused(world: Any, tmp_path: Path) -> None:
    _run(world, tmp_path / "run", 30)
    asked = len(world.task_lm.requests)
    with pytest.raises(ArgumentValueError, match="another train"):
        Combee(
            world.metric, max_metric_calls=60, reflection_lm=world.proposer_lm, log_dir=str(tmp_path / "run")
        ).compile(world.student(), trainset=world.examples(30), valset=world.examples(8, start=100))
    assert len(world.task_lm.requests) == asked


def test_a_run_of_stock_gepa_goes_on_with_insert_and_is_refused_otherwise(world: Any, tmp_path: Path) -> None:
    given = {"reflection_lm": world.proposer_lm, "log_dir": str(tmp_path)}
    sets = {"trainset": world.examples(12), "valset": world.examples(6, start=50)}
    dspy.GEPA(world.metric, max_metric_calls=20, **given).compile(world.student(), **sets)
    asked = len(world.task_lm.requests)
    with pytest.raises(ArgumentValueError, match=r'operators=\["insert"\]'):
        Combee(world.metric, max_metric_calls=80, operators=["insert", "few-shot-swap"], **given).compile(
            world.student(), **sets
        )
    assert len(world.task_lm.requests) == asked
    report = Combee(world.metric, max_metric_calls=80, **given).compile(world.student(), **sets).combee_report
    assert report.rollouts > 20
    assert len(world.task_lm.requests) > asked


def test_the_seed_of_a_checkpoint_must_be_the_programs(tmp_path: Path) -> None:
    def check(held: Any, wanted: dict[str, str]) -> None:
        (tmp_path / "gepa_state.bin").write_bytes(pickle.dumps({"program_candidates": [held]}))
        check_log_dir(tmp_path, {}, seed=wanted)

    demos = demonstrations_key("self")
    check({"self": "a"}, {"self": "a"})
    for held, wanted, word in (
        ({"self": "a"}, {"self": "b"}, "another seed candidate"),
        ({"self": "a", "other": "b"}, {"self": "a"}, "another seed candidate"),
        ({"self": "a"}, {"self": "a", demos: "[]"}, "insert"),
        ({"self": "a", demos: "[]"}, {"self": "a"}, "learns demonstrations"),
        ({"self": "a", demos: "[]"}, {"self": "a", demos: "[1]"}, "other demonstrations"),
        (None, {"self": "a"}, "no checkpoint of gepa"),
    ):
        with pytest.raises(ArgumentValueError, match=word):
            check(held, wanted)
