"""The tables of a plan: each number with where it comes from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from combee_strategist.diagnosis import POINT
from combee_strategist.planning.choices import Choices, Measured
from combee_strategist.planning.spec import Override, Spec

__all__ = ["Row", "Tables"]

_ASSUMED = "assumption: the specification says so"

Row = tuple[str, str, str]
"""What, its value, and where that comes from."""


@dataclass(frozen=True, slots=True)
class Tables:
    """Fills the tables of a plan."""

    spec: Spec
    choices: Choices
    measured: Measured | None
    batches: Sequence[int]
    rate: float

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
        return f"measured: {self.measured.diagnosis.source}" if self.measured else ""

    @property
    def _plateau(self) -> tuple[str, str]:
        """Rollouts of serial search, and where they come from."""
        if self.measured is None or self.measured.diagnosis.to_plateau is None:
            return f"{self.spec.serial.rollouts:,}", _ASSUMED
        return f"{self.measured.diagnosis.to_plateau:,}", self._journal

    @property
    def _score(self) -> float:
        return self.measured.diagnosis.score if self.measured else self.spec.serial.score

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
        return [
            ("inputs", task.inputs, _ASSUMED),
            ("outputs", task.outputs, _ASSUMED),
            ("metric", task.metric, _ASSUMED),
            ("program as it is, held-out", f"{task.baseline:.3f}", _ASSUMED),
            (
                "serial baseline",
                f"{serial.method}, {serial.version}, {serial.workers} in flight",
                _ASSUMED,
            ),
            ("its rollouts to the plateau", *self._plateau),
            *(
                [("as the specification says", f"{serial.rollouts:,}", _ASSUMED)]
                if self.measured
                else []
            ),
            ("its score, held-out", f"{serial.score:.3f}", _ASSUMED),
            *(
                [("its score, on validation", f"{self._score:.3f}", self._journal)]
                if self.measured
                else []
            ),
            ("hardware", f"{machine}; optimiser and task model {hardware.models}", _ASSUMED),
        ]

    def _shape(self) -> list[Row]:
        serial = f"default: 8 × the {self.spec.serial.workers} of serial search"
        limit: Row = (
            "ceiling of the speedup",
            "not known",
            "no run has measured it: give serial.run",
        )
        if self.measured is not None and (ceiling := self.measured.diagnosis.ceiling) is not None:
            any_number = f"{ceiling.unbounded:.1f} with any number"
            value = f"{ceiling.speedup:.1f} times with these slots, {any_number}"
            stays = f"Amdahl: {ceiling.share:.0%} of {ceiling.wall:.1f} s stays serial"
            limit = (limit[0], value, f"{stays}; {self._journal}")
        slots = ("slots of the service", str(self.spec.hardware.slots), _ASSUMED)
        return [self._choice("workers", "workers", default=serial), slots, limit]

    def _batching(self) -> list[Row]:
        rows: list[Row] = [
            ("hardware target", f"{self.spec.hardware.slots} waiting rollouts", _ASSUMED),
            self._choice("longest wait", "flush_seconds", "{:g} s".format),
            self._choice("variance of scores below", "variance"),
        ]
        if self.batches:
            ordered = sorted(self.batches)
            low, middle, high = (
                ordered[int(part * (len(ordered) - 1))] for part in (0.1, 0.5, 0.9)
            )
            rows.append(
                (
                    "batch size, median (10 to 90 % of batches)",
                    f"{middle} ({low} to {high})",
                    self._simulated,
                )
            )
        return rows

    @property
    def _simulated(self) -> str:
        count = len(self.measured.seconds) if self.measured else 0
        return f"simulated: the rule on the times of {count:,} rollouts; {self._journal}"

    def _diversity(self) -> list[Row]:
        operators = self._choice("operators, uniform weights at first", "operators", ", ".join)
        return [operators, self._choice("refused above a similarity of", "similarity")]

    def _evaluator(self) -> list[Row]:
        rows = self.spec.evaluation
        return [
            ("scorer", rows.scorer, _ASSUMED),
            ("rows", f"{rows.dataset}; {rows.split}; owner {rows.owner}", _ASSUMED),
            self._choice(
                "rollouts that the reference judges too", "calibration_share", "{:.0%}".format
            ),
            self._choice("fit where Spearman's lower end reaches", "spearman"),
        ]

    def _stopping(self) -> list[Row]:
        budget = self.spec.budget
        target = max(self._score, min(self._score + self.choices.target_points * POINT, 1.0))
        over = " (the budget ends it first)" if self.choices.rollouts > budget.rollouts else ""
        default = f"default: 4 × serial ({self._plateau[1]})"
        return [
            self._choice(
                "rollouts", "rollouts", lambda n: f"{n:,} of {budget.rollouts:,}{over}", default
            ),
            self._choice("updates without improvement on validation", "patience"),
            self._choice(
                "soft target", "target_points", lambda n: f"{target:.3f}, serial + {n:g} in points"
            ),
            ("deadline", budget.deadline.isoformat(), _ASSUMED),
            ("binds first", budget.binds, _ASSUMED),
        ]

    def _canary(self) -> list[Row]:
        return [
            self._choice("share of the requests", "canary_share", "{:.0%}".format),
            self._choice("hours", "canary_hours", "{:g}".format),
            self._choice(
                "rolled back where more than so many points worse", "canary_points", "{:g}".format
            ),
        ]

    def _cost(self) -> list[Row]:
        measured, budget = self.measured, self.spec.budget
        rows = [
            self._spent("tokens", "tokens", budget.tokens),
            self._spent("dollars", "dollars", None),
            self._spent("GPU-seconds", "gpu_seconds", budget.gpu_seconds),
        ]
        if measured is not None and self.rate:
            serial = measured.spent["rollouts"] / measured.spent["seconds"]
            each = f"{self.rate:.1f} rollouts a second; serial search had {serial:.1f}"
            seconds = f"{self.choices.rollouts / self.rate:,.0f} s, {each}"
            rows.append(("wall-clock of the rollouts alone", seconds, self._simulated))
        return rows

    def _spent(self, label: str, name: str, limit: float | None) -> Row:
        if self.measured is None or self.measured.spent[name] is None:
            return (
                label,
                "not known",
                "no run has measured it: give serial.run, and prices or GPUs in its costs",
            )
        each = self.measured.spent[name] / self.measured.spent["rollouts"]
        total = each * self.choices.rollouts
        within = (
            ""
            if limit is None
            else f" of {limit:,.0f}{' (the budget ends it first)' if total > limit else ''}"
        )
        value = f"{total:,.{0 if total >= 100 else 2}f}{within}"
        return label, value, f"computed: {each:,.4g} a rollout of serial search; {self._journal}"
