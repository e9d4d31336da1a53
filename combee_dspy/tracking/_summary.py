"""What a run amounts to, gathered from its events. Pure: no store, no clock."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import singledispatchmethod
from typing import Any

from combee_dspy import events
from combee_dspy.tracking._figures import figures_of, sum_of
from combee_dspy.tracking._text import cut, one_line
from combee_dspy.tracking.slug import METRIC_PART, shorten, to_slug

__all__ = ["MAX_PARAM", "MAX_TAG", "Summary", "params_of"]

MAX_PARAM = 6_000
"""Characters of a parameter's value that MLflow keeps; it cuts the rest without a word."""

MAX_TAG = 8_000
"""Characters of a tag's value, and of a run's description."""

_PART = 100


def _part(name: str) -> str:
    return shorten(to_slug(name, METRIC_PART), _PART)


def params_of(event: events.RunStarted, versions: Mapping[str, str]) -> dict[str, str]:
    """Return what was decided before the run, as MLflow parameters in groups.

    Args:
        event: The run's beginning, without keys.
        versions: Parameters that are not the run's own: versions and hashes.
    """
    groups: Mapping[str, Mapping[str, Any]] = {
        "run": {"name": event.name, "seed": event.seed, "components": sorted(event.components)},
        "strategy": event.specs,
        "model": event.models,
        "size": event.sizes,
        "digest": event.digests,
    }
    params: dict[str, str] = {}
    for group, values in groups.items():
        for name, value in values.items():
            text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            params[f"{group}/{_part(name)}"] = cut(text, MAX_PARAM)
    return {**versions, **params}


@dataclass
class _Step:
    """Sums of one iteration, and its metrics that are not sums."""

    scores: dict[str, list[float]] = field(default_factory=dict)
    seconds: list[float] = field(default_factory=list)
    waits: list[float] = field(default_factory=list)
    counts: dict[str, float] = field(default_factory=dict)
    values: dict[str, float] = field(default_factory=dict)

    def count(self, name: str, amount: float = 1) -> None:
        self.counts[name] = self.counts.get(name, 0) + amount

    def join(self, other: _Step) -> None:
        for name, scores in other.scores.items():
            self.scores.setdefault(name, []).extend(scores)
        self.seconds += other.seconds
        self.waits += other.waits
        for name, amount in other.counts.items():
            self.count(name, amount)

    def metrics(self) -> dict[str, float]:
        found = {name: sum(scores) / len(scores) for name, scores in self.scores.items()}
        for name, times in (("rollout", sorted(self.seconds)), ("queue", sorted(self.waits))):
            if times:
                found[f"latency/{name}_mean"] = sum(times) / len(times)
                found[f"latency/{name}_p50"] = times[len(times) // 2]
                found[f"latency/{name}_max"] = times[-1]
        found.update(self.counts)
        found.update(self.values)
        return {name: value for name, value in found.items() if math.isfinite(value)}


_PURPOSES = {"parent": "train/minibatch", "child": "train/child"}


class Summary:
    """Hears events and says what to log about them.

    Metrics are given out once per iteration, by :meth:`take`, so that no
    metric gets two values at one step. Not thread-safe.
    """

    def __init__(self) -> None:
        self.started: events.RunStarted | None = None
        self.finished: events.RunFinished | None = None
        self.heldout: events.HeldoutEvaluated | None = None
        self.best: events.ValidationFinished | None = None
        self.seed_score: float | None = None
        self.errors: list[events.ErrorRaised] = []
        self.decisions: list[dict[str, Any]] = []
        self.step = 0
        self._open = _Step()
        # Rollouts of iterations that have not closed. What was begun early is told before its own has begun, and that
        # one may never begin.
        self._rollouts: dict[int, _Step] = {}

    def take(self, iteration: int) -> dict[str, float]:
        """Return the metrics of the iteration that closes, and begin the next."""
        closes, self._open = self._open, _Step()
        closes.join(self._rollouts.pop(iteration, _Step()))
        self.step = max(self.step, iteration + 1)
        return closes.metrics()

    def take_early(self) -> dict[int, dict[str, float]]:
        """Return the metrics of rollouts whose iterations have not closed, by iteration, and forget them.

        Named apart, and no iteration closes with it: where the run goes on, those will have metrics of their own.
        """
        early, self._rollouts = self._rollouts, {}
        return {
            iteration: {f"early/{name}": value for name, value in early[iteration].metrics().items()}
            for iteration in sorted(early)
        }

    @property
    def last(self) -> int:
        """The last iteration that has closed or, where that came later, was under way when the run ended."""
        return max(self.step - 1, 0 if self.finished is None else self.finished.iteration)

    @singledispatchmethod
    def hear(self, event: events.Event) -> None:
        """Take one event into account."""

    @hear.register
    def _(self, event: events.RunStarted) -> None:
        self.started = event
        # A run that is taken up again is not over any more.
        self.finished = None

    @hear.register
    def _(self, event: events.BatchPlanned) -> None:
        decision = event.decision
        self.decisions.append({"iteration": event.iteration, **asdict(decision)})
        self._open.values["batch/size"] = decision.size
        self._open.values["batch/clamps"] = len(decision.clamps)
        if decision.fit is not None:
            self._open.values["batch/plateau"] = decision.fit.plateau
            self._open.values["batch/exponent"] = decision.fit.exponent

    def hear_rollout(self, data: Mapping[str, Any]) -> None:
        """Take one rollout into account.

        Args:
            data: Its line in the journal, by the names of :class:`combee_dspy.tracking.Row`.
        """
        if data["purpose"] == "heldout":
            # They come after the last iteration has closed, under names that it has not given a value.
            self._open.count("heldout/rollouts")
            if data["error_class"]:
                self._open.count("heldout/errors")
            return
        iteration = data["iteration"]
        # What is told late counts in the next iteration that closes.
        step = self._open if iteration < self.step else self._rollouts.setdefault(iteration, _Step())
        if data["purpose"] in _PURPOSES:
            # JSON has no number for a score that is none.
            score = math.nan if data["score"] is None else data["score"]
            step.scores.setdefault(_PURPOSES[data["purpose"]], []).append(score)
        step.count("rollouts/cached" if data["cached"] else "rollouts/run")
        if data["purpose"] == "speculative":
            step.count("rollouts/speculative")
        if data["error_class"]:
            step.count("rollouts/errors")
        if not data["cached"]:
            step.seconds.append(data["latency"])
            if data["queue_wait"] is not None:
                step.waits.append(data["queue_wait"])

    @hear.register
    def _(self, event: events.ReflectionTrimmed) -> None:
        self._open.count(f"scan/{_part(event.action)}")

    @hear.register
    def _(self, event: events.ScanStarted) -> None:
        self._open.count("scan/reflections", event.reflections)

    @hear.register
    def _(self, event: events.ScanFinished) -> None:
        self._open.count("scan/lessons", len(event.lessons))
        self._open.count("scan/nodes", len(event.nodes))
        self._open.count("scan/failed_nodes", sum(node.failed is not None for node in event.nodes))
        self._open.count("scan/seconds", event.seconds)

    @hear.register
    def _(self, event: events.RetentionMeasured) -> None:
        if event.reflections:
            covered = sum(one.covered for one in event.reflections) / len(event.reflections)
            self._open.scores.setdefault("retention/covered", []).append(covered)
            self._open.count("retention/lost", sum(not one.covered for one in event.reflections))
        self._open.count("retention/rescued", len(event.rescued))
        for level, tokens in enumerate(event.tokens_per_level, start=1):
            self._open.count(f"retention/tokens_level_{level}", tokens)

    @hear.register
    def _(self, event: events.DiversityMeasured) -> None:
        values = {
            "diversity/front_similarity": event.front_similarity,
            "diversity/refused": event.refused,
            "diversity/repeated": event.repeated,
            "diversity/distinct": event.distinct,
            "diversity/temperature": event.temperature,
        }
        self._open.values.update({name: value for name, value in values.items() if value is not None})

    @hear.register
    def _(self, event: events.Restarted) -> None:
        self._open.count("diversity/restarts")

    @hear.register
    def _(self, event: events.OperatorsWeighted) -> None:
        self._open.values.update({f"operators/{_part(name)}": weight for name, weight in event.weights.items()})

    @hear.register
    def _(self, event: events.CandidateScreened) -> None:
        self._open.count("candidates/screened_out", not event.passed)

    @hear.register
    def _(self, event: events.CalibrationFinished) -> None:
        self._open.values[f"calibration/{_part(event.subject)}"] = event.correlation

    @hear.register
    def _(self, event: events.CandidateProposed) -> None:
        self._open.count("candidates/proposed")

    @hear.register
    def _(self, event: events.CandidateRefused) -> None:
        self._open.count("candidates/refused")

    @hear.register
    def _(self, event: events.CandidateRejected) -> None:
        self._open.count("candidates/rejected")

    @hear.register
    def _(self, event: events.CandidateAccepted) -> None:
        self._open.count("candidates/accepted")

    @hear.register
    def _(self, event: events.ValidationFinished) -> None:
        values = self._open.values
        if event.index == 0:
            self.seed_score = event.score
            values["val/seed"] = event.score
        else:
            # One value a step: the best of several children of one iteration.
            values["val/candidate"] = max(event.score, values.get("val/candidate", -math.inf))
        if event.best:
            self.best = event
            values["val/best"] = event.score
        values["rollouts/bought"] = event.rollouts

    @hear.register
    def _(self, event: events.IterationFinished) -> None:
        self._open.values["val/best"] = event.best_score
        self._open.values["rollouts/bought"] = event.rollouts
        self._open.values["time/iteration"] = event.seconds
        self._costs(event.costs)

    @hear.register
    def _(self, event: events.HeldoutEvaluated) -> None:
        self.heldout = event
        self._open.values.update(
            {
                "heldout/before": event.before,
                "heldout/after": event.after,
                "heldout/gain": event.after - event.before,
                "heldout/gain_low": event.interval[0],
                "heldout/gain_high": event.interval[1],
            }
        )

    @hear.register
    def _(self, event: events.ErrorRaised) -> None:
        self.errors.append(event)

    @hear.register
    def _(self, event: events.RunFinished) -> None:
        self.finished = event
        self._open.values["val/best"] = event.best_score
        self._open.values["rollouts/bought"] = event.rollouts
        self._open.values["time/run"] = event.seconds
        self._costs(event.costs)
        if event.costs:
            # The last iteration closed before the held-out set was paid for, and its step takes no second value.
            total = sum_of(figures_of(event.costs))
            values = {"calls": total.calls, "tokens": total.tokens, "dollars": total.dollars}
            values |= {"unpriced_calls": total.unpriced, "rollouts": event.rollouts}
            self._open.values.update({f"total/{name}": value for name, value in values.items()})
            if total.gpu_seconds is not None:
                self._open.values["total/gpu_seconds"] = total.gpu_seconds

    def _costs(self, costs: Mapping[str, Any]) -> None:
        figures = figures_of(costs)
        values = self._open.values
        for role, figure in figures.items():
            values[f"tokens/{_part(role)}"] = figure.tokens
            values[f"calls/{_part(role)}"] = figure.calls
            values[f"cost/{_part(role)}_dollars"] = figure.dollars
            if figure.gpu_seconds is not None:
                values[f"cost/{_part(role)}_gpu_seconds"] = figure.gpu_seconds
        if figures:
            total = sum_of(figures)
            values["cost/dollars"] = total.dollars
            values["cost/unpriced_calls"] = total.unpriced
            if total.gpu_seconds is not None:
                values["cost/gpu_seconds"] = total.gpu_seconds

    @property
    def status(self) -> str:
        """MLflow's status of the run: finished, failed, or killed where no end was heard."""
        if self.finished is not None:
            return "FINISHED"
        return "FAILED" if any(error.fatal for error in self.errors) else "KILLED"

    def description(self) -> str:
        """Return the run's description, the headline first: MLflow shows about three lines."""
        lines = [self._headline()]
        if self.best is not None and self.seed_score is not None:
            # Finalists that were validated again may end in another order.
            index, score = self.best.index, self.best.score
            if self.finished is not None:
                index, score = self.finished.best_index, self.finished.best_score
            lines.append(f"Validation {self.seed_score:.3f} → {score:.3f}, best candidate {index}.")
        if self.finished is not None:
            lines.append(f"Stopped: {one_line(self.finished.reason, 500)}")
        elif any(error.fatal for error in self.errors):
            lines.append(f"Failed: {one_line(self.errors[-1].error, 500)}")
        if self.finished is not None:
            total = sum_of(figures_of(self.finished.costs))
            dollars = "dollars unknown" if total.unpriced else f"${total.dollars:.4f}"
            lines.append(
                f"{self.finished.rollouts} rollouts, {total.calls} LM calls, {total.tokens} tokens, {dollars}, "
                f"{self.finished.seconds:.0f} s."
            )
        if self.started is not None:
            lines.extend(f"Warning: {one_line(warning, 500)}" for warning in self.started.warnings)
        return cut("\n\n".join(lines), MAX_TAG)

    def _headline(self) -> str:
        held = self.heldout
        if held is not None:
            low, high = held.interval
            return (
                f"**Held-out {held.before:.3f} → {held.after:.3f}** ({held.after - held.before:+.3f}, "
                f"{held.confidence:.0%} interval {low:+.3f} to {high:+.3f}, n = {held.size})."
            )
        if self.finished is None:
            return f"Running, iteration {self.step}." if not self.errors else f"Not finished, iteration {self.step}."
        return "No held-out result: this run supports no claim."
