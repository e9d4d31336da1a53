"""What two versions made of a request: kept until labels come, and scored."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import dspy

from combee_dspy.events import PairScored
from combee_dspy.records import CallUsage, Metric, PredictorCall
from combee_dspy.rollouts import read_score

__all__ = ["Answer", "Pair", "Verdicts", "recalled", "scores_of"]

Verdicts = tuple[tuple[float, str], ...]
"""Score and feedback of each answer of a request."""


@dataclass(slots=True)
class Answer:
    """What one version made of a request.

    ``score`` is there once it was scored; 0 where the version failed. ``written``: it stands in a
    journal. ``calls``: of a program's predictors, where it made several and they are kept.
    """

    version: int
    purpose: str
    started: float
    seconds: float
    usage: tuple[CallUsage, ...]
    prediction: Mapping[str, Any] | None = None
    error: str | None = None
    score: float | None = None
    written: bool = False
    calls: tuple[PredictorCall, ...] = ()


@dataclass(slots=True)
class Pair:
    """One sampled request: its inputs, one answer or two, and labels once they are there.

    ``since`` is when it came, ``challenger`` the SHA-256 of the version on trial; ``recalled``:
    read from a journal for its labels.
    """

    request: str
    inputs: Mapping[str, Any]
    answers: list[Answer]
    incumbent: int
    challenger: str
    since: float
    complete: bool = False
    labels: Mapping[str, Any] | None = None
    recalled: bool = False

    def event(self, by: str) -> PairScored:
        """Return what a promotion rests on, once both answers are scored."""
        scores = {answer.version: answer.score or 0.0 for answer in self.answers}
        return PairScored(
            self.request,
            self.answers[0].started,
            self.incumbent,
            self.challenger,
            by,
            before=scores.pop(self.incumbent),
            after=scores.popitem()[1],
        )

    def record(self) -> dict[str, Any]:
        """Return what :func:`recalled` reads back once labels have come."""
        answers = [
            (answer.version, answer.started, answer.prediction, answer.error, answer.score)
            for answer in self.answers
        ]
        versions = (self.incumbent, self.challenger)
        return {"inputs": self.inputs, "answers": answers, "versions": versions}


def recalled(
    request: str, record: Mapping[str, Any], labels: Mapping[str, Any] | None = None
) -> Pair:
    """Return a request as a journal kept it, with its labels, where they have come."""
    answers = [
        Answer(version, "", started, 0.0, (), prediction, error, score, written=True)
        for version, started, prediction, error, score in record["answers"]
    ]
    incumbent, challenger = record["versions"]
    return Pair(
        request,
        record["inputs"],
        answers,
        incumbent,
        challenger,
        answers[0].started,
        complete=True,
        labels=None if labels is None else dict(labels),
        recalled=labels is not None,
    )


def scores_of(pair: Pair, scorer: Metric) -> Verdicts:
    """Return the score of each answer and its feedback; 0 where a version failed.

    Raises:
        ValueError: A score is not between 0 and 1, so that no interval can be had of it.
    """
    example = dspy.Example(**{**pair.inputs, **(pair.labels or {})}).with_inputs(*pair.inputs)
    scores = list[tuple[float, str]]()
    for answer in pair.answers:
        if answer.error is not None:
            scores.append((0.0, ""))
            continue
        prediction = dspy.Prediction(**(answer.prediction or {}))
        score, feedback, _ = read_score(scorer(example, prediction, None, None, None))
        if not 0 <= score <= 1:
            problem = f"the metric returned {score}, and a canary compares scores from 0 to 1"
            raise ValueError(problem)
        scores.append((score, feedback))
    return tuple(scores)
