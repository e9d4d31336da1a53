from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dspy
import pytest

from combee_dspy import events
from combee_dspy.costs import Counts, Totals
from combee_dspy.records import BatchDecision, Clamp, NodeOutput, PowerLawFit, Rollout

HOSTILE = "[bold]be exact[/bold] <script>alert(1)</script> \x1b[2J\u202e steps"


def rollout(index: int, score: float, *, error: str | None = None) -> Rollout:
    example = dspy.Example(question=f"question {index}", answer="EPS").with_inputs("question")
    return Rollout(
        example_id=f"{index:064x}",
        example=example,
        prediction=None if error else dspy.Prediction(answer="EPS" if score else "ROE"),
        trace=(),
        score=score,
        feedback="right" if score else "wrong formula",
        error=error,
        seconds=0.5,
    )


def costs(scale: int) -> dict[str, Any]:
    by_role = {
        "task": Counts(calls=10 * scale, cached=2, prompt_tokens=1000 * scale, completion_tokens=50 * scale),
        "proposer": Counts(
            calls=scale, prompt_tokens=700 * scale, completion_tokens=90 * scale, known_dollars=0.25 * scale
        ),
    }
    return Totals(by_role=by_role).to_dict()


def _rollouts(iteration: int, purpose: str, split: str, scores: list[float]) -> Iterator[events.Event]:
    for index, score in enumerate(scores):
        yield events.RolloutFinished(
            iteration=iteration,
            rollout=rollout(index, score, error="ValueError: no key sk-abcdefghijklmnop1234" if score < 0 else None),
            rollout_id=f"{iteration}-{purpose}-{index}",
            candidate_id=f"{iteration:016x}",
            split=split,
            purpose=purpose,
            cached=purpose == "child" and index == 0,
        )


def _iteration(iteration: int) -> Iterator[events.Event]:
    yield events.IterationStarted(iteration=iteration)
    fit = PowerLawFit(scale=100.0, exponent=0.5, tau=1.0, plateau=13.57)
    clamp = Clamp(name="epoch-updates", before=14, after=4, reason="24 examples allow 4 a batch")
    decision = BatchDecision(size=4, reason="profiling 1 of 3", fit=fit, clamps=(clamp,))
    yield events.BatchPlanned(iteration=iteration, decision=decision)
    yield from _rollouts(iteration, "parent", "train", [1.0, 0.0, 0.0, 1.0])
    yield events.ScanStarted(
        iteration=iteration, component="steps[0].call", aggregator="parallel-scan", reflections=4, levels=(2, 1)
    )
    nodes = (
        NodeOutput(level=1, node=0, sources=(0, 1), lessons=("a",)),
        NodeOutput(level=1, node=1, sources=(2, 3), lessons=(), failed="TimeoutError: late"),
        NodeOutput(level=2, node=0, sources=(0, 1, 2, 3), lessons=("a", HOSTILE)),
    )
    yield events.ScanFinished(
        iteration=iteration,
        component="steps[0].call",
        aggregator="parallel-scan",
        nodes=nodes,
        lessons=("a", HOSTILE),
        seconds=2.5,
    )
    texts = {"steps[0].call": f"Answer. {HOSTILE} v{iteration}", "self": "Choose."}
    yield events.CandidateProposed(
        iteration=iteration, candidate_id=f"c{iteration}", parent_id="seed", operator="insert", texts=texts
    )
    yield from _rollouts(iteration, "child", "train", [1.0, 1.0, -1.0, 1.0])
    yield events.CandidateAccepted(iteration=iteration, index=iteration, parents=(0,), score=3.0)
    yield from _rollouts(iteration, "validation", "validation", [1.0, 1.0, 0.0])
    yield events.ValidationFinished(
        iteration=iteration,
        index=iteration,
        candidate_id=f"c{iteration}",
        texts=texts,
        score=0.5 + iteration / 10,
        best=True,
        rollouts=11 * iteration + 3,
    )
    yield events.IterationFinished(
        iteration=iteration,
        accepted=True,
        rollouts=11 * iteration + 3,
        best_score=0.5 + iteration / 10,
        seconds=12.0,
        costs=costs(iteration),
    )


def _story() -> Iterator[events.Event]:
    seed = {"steps[0].call": "Answer.", "self": "Choose."}
    yield events.RunStarted(
        name="formula-mini/route 24-3-5 seed 7",
        seed=7,
        sizes={"train": 24, "validation": 3, "heldout": 5},
        digests={"train": "a" * 64},
        specs={"aggregator": {"name": "parallel-scan", "params": {"api_key": "hush-hush", "copies": 2}}},
        models={"task": "embedded/smollm2"},
        components=seed,
        warnings=("valset equals trainset: this run supports no claim.",),
    )
    yield from _rollouts(0, "validation", "validation", [1.0, 0.0, 0.0])
    yield events.ValidationFinished(
        iteration=0, index=0, candidate_id="seed", texts=seed, score=1 / 3, best=True, rollouts=3
    )
    yield from _iteration(1)
    yield from _iteration(2)
    yield from _rollouts(2, "heldout", "heldout", [1.0] * 5)
    yield events.HeldoutEvaluated(
        iteration=2, before=0.4, after=0.8, interval=(0.1, 0.7), confidence=0.95, size=5, digest="b" * 64
    )
    yield events.ErrorRaised(iteration=2, where="gepa", error="RuntimeError: odd", fatal=False)
    yield events.RunFinished(
        iteration=2,
        reason="the budget of 30 rollouts is spent.",
        best_index=2,
        best_score=0.7,
        texts={"steps[0].call": f"Answer. {HOSTILE} v2", "self": "Choose."},
        rollouts=25,
        seconds=60.0,
        costs=costs(3),
    )


@pytest.fixture(scope="session")
def story() -> Callable[[], list[events.Event]]:
    """What a run of two iterations says, from its seed's validation to its end."""
    return lambda: list(_story())


@pytest.fixture(scope="session")
def hostile() -> str:
    return HOSTILE


@pytest.fixture(scope="session")
def make_rollout() -> Callable[..., Rollout]:
    return rollout


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """One MLflow store for all tests: setting one up takes seconds."""
    folder = tmp_path_factory.mktemp("mlflow")
    return f"sqlite:///{folder / 'mlflow.db'}", folder


@pytest.fixture
def client(store: tuple[str, Path]) -> Any:
    mlflow = pytest.importorskip("mlflow")
    return mlflow.MlflowClient(tracking_uri=store[0])
