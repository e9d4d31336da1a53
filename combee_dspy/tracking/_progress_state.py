"""What a run is doing, gathered from its events, and how to say it in a line. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import singledispatchmethod

from combee_dspy import events
from combee_dspy.tracking._figures import Figures, figures_of, sum_of
from combee_dspy.tracking._redact import Redactor
from combee_dspy.tracking._text import one_line

__all__ = ["ProgressState", "amount", "cost_line", "dollars_of"]

_PHASES = {"parent": "rollouts", "child": "child check", "heldout": "held-out"}


def amount(number: float) -> str:
    """Return a count in at most five characters: ``950``, ``12.3k``, ``4.56M``."""
    if number < 1000:
        return f"{number:.0f}"
    for unit in "kM":
        number /= 1000
        # 999.7 would be rounded to 1e+03.
        if number < 999.5:
            return f"{number:.3g}{unit}"
    return f"{number / 1000:.3g}G"


def dollars_of(figures: Mapping[str, Figures]) -> str:
    """Return the dollars known, and whether some are not."""
    total = sum_of(figures)
    if not total.unpriced:
        return f"${total.dollars:.4f}"
    return f"${total.dollars:.4f} and {amount(total.unpriced)} calls without a price" if total.dollars else "$ unknown"


def cost_line(figures: Mapping[str, Figures]) -> str:
    """Return tokens by role and dollars on one line; empty where nothing is known."""
    if not figures:
        return ""
    roles = ", ".join(f"{one_line(role, 20)} {amount(figure.tokens)} tokens" for role, figure in figures.items())
    return f"{roles}, {dollars_of(figures)}"


@dataclass
class ProgressState:
    """The state that a display shows. ``hear`` returns the lines worth printing. Not thread-safe.

    Attributes:
        name: The run's name.
        iteration: The iteration under way.
        phase: What is happening.
        done: Rollouts of this phase that are finished.
        expected: Rollouts that this phase will have; 0 where not known.
        batch: Size of the minibatch and the reason for it.
        seed_score: The seed's validation score.
        best_score: The best validation score so far.
        rollouts: Rollouts bought so far by gepa's count, and between its counts ours; the held-out's are no part of it.
        figures: Costs by role, as of the end of the last iteration.
        lesson: The last lesson learned.
        redactor: Takes keys out of every text, before it is cut.
    """

    name: str = ""
    iteration: int = 0
    phase: str = "starting"
    done: int = 0
    expected: int = 0
    batch: str = ""
    seed_score: float | None = None
    best_score: float | None = None
    rollouts: int = 0
    figures: Mapping[str, Figures] = field(default_factory=dict)
    lesson: str = ""
    redactor: Redactor = field(default_factory=Redactor, repr=False)
    _sizes: Mapping[str, int] = field(default_factory=dict)
    _batch_size: int = 0

    @singledispatchmethod
    def hear(self, event: events.Event) -> list[str]:
        """Take one event into account and return the lines that tell it."""
        return []

    def _enter(self, phase: str, expected: int = 0) -> None:
        self.phase, self.done, self.expected = phase, 0, expected

    def _line(self, text: str, limit: int = 120) -> str:
        return self.redactor.line(text, limit)

    @property
    def scores(self) -> str:
        """Best validation score so far against the seed's."""
        if self.best_score is None:
            return "not validated yet"
        if self.seed_score is None:
            return f"{self.best_score:.3f}"
        return f"{self.best_score:.3f} (seed {self.seed_score:.3f})"

    @hear.register
    def _(self, event: events.RunStarted) -> list[str]:
        self.name, self._sizes = self._line(event.name, 80), event.sizes
        self._enter("seed validation", event.sizes.get("validation", 0))
        sizes = ", ".join(f"{count} {self._line(split, 20)}" for split, count in event.sizes.items())
        models = ", ".join(f"{self._line(role, 20)} {self._line(model, 60)}" for role, model in event.models.items())
        lines = [f"{self.name}: {sizes}; {models}"]
        return lines + [f"warning: {self._line(warning, 300)}" for warning in event.warnings]

    @hear.register
    def _(self, event: events.IterationStarted) -> list[str]:
        self.iteration = event.iteration
        self._enter("rollouts", self._batch_size)
        return []

    @hear.register
    def _(self, event: events.BatchPlanned) -> list[str]:
        self._batch_size = event.decision.size
        clamps = "".join(f"; {self._line(clamp.reason, 100)}" for clamp in event.decision.clamps)
        self.batch = f"{event.decision.size}: {self._line(event.decision.reason, 160)}{clamps}"
        if self.phase == "rollouts":
            self.expected = event.decision.size
        return [f"iteration {event.iteration or self.iteration}: batch {self.batch}"]

    @hear.register
    def _(self, event: events.RolloutFinished) -> list[str]:
        phase = _PHASES.get(event.purpose, "validation" if self.seed_score is not None else "seed validation")
        if phase != self.phase:
            sizes = {"rollouts": self._batch_size, "validation": self._sizes.get("validation", 0)}
            self._enter(phase, sizes.get(phase.removeprefix("seed "), 0))
        self.done += 1
        self.rollouts += not event.cached and event.purpose != "heldout"
        return []

    @hear.register
    def _(self, event: events.ScanStarted) -> list[str]:
        self._enter("scan")
        return []

    @hear.register
    def _(self, event: events.ScanFinished) -> list[str]:
        self.lesson = self._line(event.lessons[-1], 200) if event.lessons else self.lesson
        failed = sum(node.failed is not None for node in event.nodes)
        trouble = f", {failed} failed" if failed else ""
        line = (
            f"iteration {event.iteration}: scan of {self._line(event.component, 40)} "
            f"by {self._line(event.aggregator, 40)}, {len(event.nodes)} calls{trouble}, "
            f"{len(event.lessons)} lessons, {event.seconds:.1f} s"
        )
        return [line]

    @hear.register
    def _(self, event: events.CandidateRefused) -> list[str]:
        return [
            f"iteration {event.iteration}: {self._line(event.operator, 40)} made no child: {self._line(event.reason)}"
        ]

    @hear.register
    def _(self, event: events.CandidateRejected) -> list[str]:
        line = (
            f"iteration {event.iteration}: child not kept, minibatch {event.old_score:.2f} → {event.new_score:.2f} "
            f"({self._line(event.reason)})"
        )
        return [line]

    @hear.register
    def _(self, event: events.ValidationFinished) -> list[str]:
        if event.index == 0:
            self.seed_score = event.score
        if event.best:
            self.best_score = event.score
        self.rollouts = event.rollouts
        if event.index == 0:
            return [f"seed validation {event.score:.3f}"]
        mark = ", best so far" if event.best else ""
        return [f"iteration {event.iteration}: validation {event.score:.3f}{mark}, best {self.scores}"]

    @hear.register
    def _(self, event: events.IterationFinished) -> list[str]:
        self.figures = figures_of(event.costs) or self.figures
        self.rollouts = event.rollouts
        costs = cost_line(self.figures)
        line = (
            f"iteration {event.iteration} done in {event.seconds:.1f} s: best {self.scores}, "
            f"{amount(self.rollouts)} rollouts{', ' if costs else ''}{costs}"
        )
        return [line]

    @hear.register
    def _(self, event: events.HeldoutEvaluated) -> list[str]:
        low, high = event.interval
        line = (
            f"held-out {event.before:.3f} → {event.after:.3f} ({event.confidence:.0%} interval of the gain "
            f"{low:+.3f} to {high:+.3f}, n = {event.size})"
        )
        return [line]

    @hear.register
    def _(self, event: events.ErrorRaised) -> list[str]:
        return [
            f"{'error' if event.fatal else 'problem'} in {self._line(event.where, 60)}: {self._line(event.error, 300)}"
        ]

    @hear.register
    def _(self, event: events.RunFinished) -> list[str]:
        self.figures = figures_of(event.costs) or self.figures
        self.rollouts = event.rollouts
        self._enter("finished")
        costs = cost_line(self.figures)
        reason = self._line(event.reason, 300).rstrip(".")
        line = (
            f"stopped: {reason}. Best {self.scores}, {amount(self.rollouts)} rollouts, "
            f"{event.seconds:.0f} s{', ' if costs else ''}{costs}"
        )
        return [line]
