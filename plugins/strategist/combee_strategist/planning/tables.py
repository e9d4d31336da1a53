"""The tables of a plan: each number with where it comes from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from combee_dspy.diversity import Restart, Temperature
from combee_dspy.evaluation import Calibration, SizeComparison
from combee_dspy.rollouts import Batching
from combee_strategist.canary import CanaryPlan
from combee_strategist.diagnosis import POINT, add_points
from combee_strategist.planning.batching import BatchSimulation
from combee_strategist.planning.choices import Choices, Measured
from combee_strategist.planning.shapes import Growth, Shape
from combee_strategist.planning.spec import Override, Spec

__all__ = ["ASSUMED", "Row", "Tables"]

ASSUMED = "assumption: the specification says so"

Row = tuple[str, str, str]
"""What, its value, and where that comes from."""


@dataclass(frozen=True, slots=True)
class Tables:
    """Fills the tables of a plan.

    Attributes:
        spec: What the plan is made from.
        choices: What it starts from.
        measured: What the serial search shows.
        batching: The rule that will run.
        batches: What it did to simulated rollouts.
        shape: What runs side by side.
        growth: What an earlier wide search says of the number of workers; ``None`` without one.
        judge: Whether the judge is smaller than the proposer; ``None`` where code scores.
    """

    spec: Spec
    choices: Choices
    measured: Measured
    batching: Batching
    batches: BatchSimulation
    shape: Shape
    growth: Growth | None
    judge: SizeComparison | None

    def all(self) -> dict[str, Sequence[Row]]:
        """Return them by section."""
        return {
            "task": self._task(),
            "shape": self._shape(),
            "batching": self._batching(),
            "diversity": self._diversity(),
            "evaluator": self._evaluator(),
            "stopping": self._stopping(),
            "canary": self._canary(),
            "cost": self._cost(),
        }

    @property
    def _journal(self) -> str:
        return f"measured: {self.measured.diagnosis.source}"

    @property
    def _simulated(self) -> str:
        count = len(self.measured.seconds)
        return f"simulated: the rule on the times of {count:,} rollouts; {self._journal}"

    def _choice(
        self, label: str, name: str, form: Callable[[Any], str] = str, default: str = "default"
    ) -> Row:
        override: Override | None = self.spec.overrides.get(name)
        return (
            label,
            form(getattr(self.choices, name)),
            f"override: {override.reason}" if override else default,
        )

    def _task(self) -> list[Row]:
        task, serial, hardware = self.spec.task, self.spec.serial, self.spec.hardware
        machine = (
            f"{hardware.count} × {hardware.kind}, {hardware.memory_gb:g} GB, {hardware.network}"
        )
        diagnosis = self.measured.diagnosis
        method = f"{serial.method}, {serial.version}, {serial.workers} in flight"
        return [
            ("inputs", task.inputs, ASSUMED),
            ("outputs", task.outputs, ASSUMED),
            ("metric", task.metric, ASSUMED),
            ("program as it is, held-out", f"{task.baseline:.3f}", ASSUMED),
            ("serial baseline", method, ASSUMED),
            ("its rollouts to the plateau", f"{diagnosis.to_plateau or 0:,}", self._journal),
            ("as the specification says", f"{serial.rollouts:,}", ASSUMED),
            ("its score, held-out", f"{serial.score:.3f}", ASSUMED),
            ("its score, on validation", f"{diagnosis.score:.3f}", self._journal),
            ("models", f"task {self.spec.models.task}", ASSUMED),
            ("hardware", f"{machine}; optimiser and task model {hardware.models}", ASSUMED),
        ]

    def _shape(self) -> list[Row]:
        shape, growth = self.shape, self.growth
        serial = f"default: 8 × the {self.spec.serial.workers} of serial search"
        if growth is not None:
            serial = f"measured: {self.spec.wide}: {'; '.join(growth.reasons)}"
        rows = [
            ("shape", f"{shape.name}, {shape.at_once} at a time", f"computed: {shape.reason}"),
            self._choice("workers", "workers", default=serial),
            ("slots of the service", str(self.spec.hardware.slots), ASSUMED),
            ("slots kept busy by them", f"{self.batches.utilisation:.0%}", self._simulated),
        ]
        if (ceiling := self.measured.diagnosis.ceiling) is not None:
            any_number = f"{ceiling.unbounded:.1f} with any number"
            value = f"{ceiling.speedup:.1f} times with these slots, {any_number}"
            stays = f"Amdahl: {ceiling.share:.0%} of {ceiling.wall:.1f} s stays serial"
            rows.append(("ceiling of the speedup", value, f"{stays}; {self._journal}"))
        return rows

    def _batching(self) -> list[Row]:
        rows: list[Row] = []
        if self.batching.queue == "target":
            full = f"{self.spec.hardware.slots} waiting rollouts"
            rows.append(("hardware target", full, ASSUMED))
        if self.batching.seconds is not None:
            rows.append(self._rule("longest wait", "flush_seconds", self.batching.seconds, " s"))
        if self.batching.variance is not None:
            rows.append(
                self._rule("variance of scores below", "variance", self.batching.variance, "")
            )
        ordered = sorted(self.batches.sizes)
        low, middle, high = (ordered[int(part * (len(ordered) - 1))] for part in (0.1, 0.5, 0.9))
        size = f"{middle} ({low} to {high})"
        return [*rows, ("batch size, median (10 to 90 % of batches)", size, self._simulated)]

    def _rule(self, label: str, name: str, value: float, unit: str) -> Row:
        source = self._choice(label, name)[2]
        planned = getattr(self.choices, name) == value
        return label, f"{value:g}{unit}", source if planned else "measured: the file says so"

    def _diversity(self) -> list[Row]:
        schedule, restart = Temperature(), Restart()
        course = (
            f"{schedule.start:g} to {schedule.end:g} over {schedule.updates} updates; +"
            f"{schedule.raise_by:g} for each beyond {schedule.patience} without progress, at most "
            f"{schedule.highest:g}"
        )
        again = (
            f"after {restart.patience} updates with less than {restart.min_progress:g} gained:"
            " from the seed's text"
        )
        if self.choices.patience <= restart.patience:
            again = (
                f"none: patience ends the run after {self.choices.patience} updates without "
                f"improvement, before the {restart.patience} of a restart"
            )
        scale = "default: what 0.92 is in the scale of char-ngrams, as measured"
        return [
            self._choice("operators, in turns that the seed draws", "operators", ", ".join),
            self._choice("refused above a similarity of", "similarity", default=scale),
            ("temperature of the proposer", course, "default"),
            ("re-initialisation", again, "default"),
        ]

    def _evaluator(self) -> list[Row]:
        rows, models = self.spec.evaluation, self.spec.models
        calibration = Calibration(reference=repr)  # for its defaults: nothing is judged here
        head: list[Row] = [
            ("proposer", models.proposer, ASSUMED),
            ("evaluator", models.evaluator, ASSUMED),
            ("scorer of held-out rows", rows.scorer, ASSUMED),
            ("rows", f"{rows.dataset}; {rows.split}; owner {rows.owner}", ASSUMED),
        ]
        if self.judge is None:
            return [*head, ("calibration", "none: code scores", ASSUMED)]
        known = "not known" if self.judge.smaller is None else "yes" if self.judge.smaller else "no"
        protocol = (
            f"after {calibration.minimum} rollouts that both judged, at each doubling and at the "
            "end; the run ends where the upper end of the interval is below the threshold, and "
            "supports no claim where the lower end is"
        )
        return [
            *head,
            ("smaller than the proposer", known, f"computed: {self.judge.reason}"),
            self._choice(
                "rollouts that the reference judges too", "calibration_share", "{:.0%}".format
            ),
            self._choice("fit where Spearman's lower end reaches", "spearman"),
            ("calibration is decided", protocol, "default"),
        ]

    def _stopping(self) -> list[Row]:
        budget, diagnosis = self.spec.budget, self.measured.diagnosis
        over = " (the budget ends it first)" if self.choices.rollouts > budget.rollouts else ""
        default = f"default: 4 × serial ({self._journal})"
        return [
            self._choice(
                "rollouts", "rollouts", lambda n: f"{n:,} of {budget.rollouts:,}{over}", default
            ),
            self._choice("updates without improvement on validation", "patience"),
            self._choice(
                "soft target",
                "target_points",
                lambda points: _target(diagnosis.score, points),
            ),
            ("deadline", budget.deadline.isoformat(), ASSUMED),
            ("binds first", budget.binds, ASSUMED),
        ]

    def _canary(self) -> list[Row]:
        decides = f"default: a failure {self.spec.failure}"
        return [
            self._choice("share of the requests", "canary_share", "{:.0%}".format, decides),
            self._choice("hours", "canary_hours", "{:g}".format, decides),
            self._choice(
                "promoted where shown to be worse by less than, in points",
                "canary_points",
                "{:g}".format,
            ),
            (
                "taken back by itself where its failures pass the incumbent's by",
                f"{CanaryPlan().errors:.0%} of the requests",
                "default of combee publish: --errors",
            ),
            self._choice(
                "least held-out score",
                "target_points",
                lambda points: _target(self.spec.serial.score, points),
            ),
        ]

    def _cost(self) -> list[Row]:
        spent, budget = self.measured.spent, self.spec.budget
        rows = [
            row
            for label, name, limit in (
                ("rollouts", "rollouts", budget.rollouts),
                ("tokens", "tokens", budget.tokens),
                ("dollars", "dollars", None),
                ("GPU-seconds", "gpu_seconds", budget.gpu_seconds),
            )
            for row in self._spent(label, name, limit)
        ]
        serial = spent["rollouts"] / spent["seconds"]
        each = f"{self.batches.rate:.1f} rollouts a second; serial search had {serial:.1f}"
        seconds = f"{self.choices.rollouts / self.batches.rate:,.0f} s, {each}"
        return [*rows, ("wall-clock of the rollouts alone", seconds, self._simulated)]

    def _spent(self, label: str, name: str, limit: float | None) -> list[Row]:
        measured, diagnosis = self.measured, self.measured.diagnosis
        if (amount := measured.spent[name]) is None:
            unknown = "no run has measured it: give prices or GPUs in the costs of serial.run"
            return [(label, "not known", unknown)]
        each = amount / measured.spent["rollouts"]
        total = each * self.choices.rollouts
        within = ""
        if limit is not None:
            ends = " (the budget ends it first)" if total > limit else ""
            within = f" of {limit:,.0f}{ends}"
        # One child is validated; a scan that makes several validates as many.
        update = self.choices.workers + diagnosis.gain.n
        points = max(diagnosis.above_seed.difference / POINT, 1e-9)
        source = f"computed: {each:,.4g} a rollout of serial search; {self._journal}"
        a_point = _figure(total / self.choices.target_points)
        serial_point = _figure(amount / points)
        return [
            (label, f"{_figure(total)}{within}", source),
            (
                f"{label} an update",
                f"{_figure(each * update)}; serial {_figure(amount / max(measured.updates, 1))}",
                f"{source}; {self.choices.workers} to learn from, {diagnosis.gain.n} to validate",
            ),
            (
                f"{label} a point",
                f"{a_point} above serial, if the target is met; serial {serial_point}",
                f"{source}; serial of points above the student",
            ),
        ]


def _figure(amount: float) -> str:
    return f"{amount:,.{0 if amount >= 100 else 2}f}"


def _target(score: float, points: float) -> str:
    target = add_points(score, points)
    if target < score + points * POINT / 2:
        return f"{target:.3f}, the highest there is: serial search has {score:.3f}"
    return f"{target:.3f}, serial + {points:g} in points"
