"""What a short run says, for whoever listens to runs."""

from __future__ import annotations

from collections.abc import Iterator

import dspy

from combee_dspy import events
from combee_dspy.costs import Counts, Totals
from combee_dspy.records import BatchDecision, Lesson, NodeOutput, Rollout

__all__ = ["HOSTILE", "run_events"]

HOSTILE = "[bold]be exact[/bold] <script>alert(1)</script> \x1b[2J\u202e 答える 😀"
"""A text as a language model may write it."""

_SIZES = {"train": 4, "validation": 2, "heldout": 2}
_COMPONENT = "steps[0].call"


def run_events(*, iterations: int = 2) -> list[events.Event]:
    """Return the events of one run in their order, from ``RunStarted`` to ``RunFinished``.

    It holds what trackers stumble over: texts that steer terminals and pages, a
    failed rollout without a prediction, a failed LM call, and costs that are not known.

    Args:
        iterations: How many there are; 0 is a run that stops after the student's validation.
    """
    return list(_run(iterations))


def _run(iterations: int) -> Iterator[events.Event]:
    yield events.RunStarted(
        name="conformance",
        seed=7,
        sizes=_SIZES,
        digests={split: f"{size:064x}" for split, size in _SIZES.items()},
        specs={"aggregator": {"kind": "aggregator", "name": "union", "params": {}}},
        models={"task": "conformance/none", "proposer": "conformance/none"},
        components={_COMPONENT: "Answer."},
        warnings=(HOSTILE,),
    )
    yield from _validation(0, 0.5, best=True)
    for iteration in range(1, iterations + 1):
        yield from _iteration(iteration)
    yield events.RunStopping(iteration=iterations, reason="the budget is spent.")
    yield events.HeldoutEvaluated(
        iteration=iterations,
        before=0.5,
        after=1.0,
        interval=(0.1, 0.9),
        confidence=0.95,
        size=2,
        digest=f"{2:064x}",
    )
    yield events.RunFinished(
        iteration=iterations,
        reason="the budget is spent.",
        best_index=iterations,
        best_score=1.0,
        texts={_COMPONENT: HOSTILE},
        rollouts=12,
        seconds=3.0,
        costs=_costs(),
    )


def _iteration(iteration: int) -> Iterator[events.Event]:
    yield events.IterationStarted(iteration=iteration)
    yield events.BatchPlanned(iteration=iteration, decision=BatchDecision(4, "all of them"))
    for number in range(4):
        yield _rollout(iteration, number, "train", "parent", failed=number == 3)
    lesson = Lesson(HOSTILE, (0, 1))
    nodes = (
        NodeOutput(1, 0, (0, 1), (lesson.text,)),
        NodeOutput(1, 1, (2, 3), (), failed="TimeoutError: late"),
    )
    yield events.ScanStarted(iteration=iteration, component=_COMPONENT, aggregator="union", reflections=4, levels=(2,))
    yield events.ScanFinished(
        iteration=iteration,
        component=_COMPONENT,
        aggregator="union",
        nodes=nodes,
        lessons=(lesson.text,),
        seconds=1.5,
    )
    yield events.CandidateProposed(
        iteration=iteration,
        candidate_id=f"c{iteration}",
        parent_id="seed",
        operator="insert",
        texts={_COMPONENT: f"Answer.\n- {HOSTILE}"},
    )
    yield events.CandidateRefused(iteration=iteration, parent_id="seed", operator="delete", reason="nothing to do")
    yield events.ErrorRaised(iteration=iteration, where="operator", error=f"ValueError: {HOSTILE}", fatal=False)
    yield events.CandidateAccepted(iteration=iteration, index=iteration, parents=(0,), score=0.75)
    yield from _validation(iteration, 1.0, best=iteration == 1)
    yield events.IterationFinished(
        iteration=iteration, accepted=True, rollouts=6 * iteration, best_score=1.0, seconds=1.0, costs=_costs()
    )


def _validation(iteration: int, score: float, *, best: bool) -> Iterator[events.Event]:
    for number in range(2):
        yield _rollout(iteration, number, "validation", "validation", failed=False)
    yield events.ValidationFinished(
        iteration=iteration,
        index=iteration,
        candidate_id=f"c{iteration}" if iteration else "seed",
        texts={_COMPONENT: "Answer."},
        score=score,
        best=best,
        rollouts=2,
    )


def _rollout(iteration: int, number: int, split: str, purpose: str, *, failed: bool) -> events.RolloutFinished:
    example = dspy.Example(question=f"{HOSTILE} {number}?", answer="7").with_inputs("question")
    rollout = Rollout(
        example_id=f"{number:064x}",
        example=example,
        prediction=None if failed else dspy.Prediction(answer=HOSTILE),
        trace=(),
        score=0.0 if failed else 1.0,
        feedback=HOSTILE,
        error="RuntimeError: the program failed" if failed else None,
        failed_in="program" if failed else None,
        seconds=0.5,
    )
    return events.RolloutFinished(
        iteration=iteration,
        rollout=rollout,
        rollout_id=f"{iteration}-{purpose}-{number}",
        candidate_id=f"c{iteration}",
        split=split,
        purpose=purpose,
    )


def _costs() -> dict[str, object]:
    unpriced = Counts(calls=3, prompt_tokens=300, completion_tokens=30, unpriced=3)
    return Totals(by_role={"task": unpriced}).to_dict()
