"""The plan of a wide search, in ten sections: every number with where it comes from."""

from __future__ import annotations

import heapq
import json
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from combee_dspy.diversity import Diversity
from combee_dspy.exceptions import PlanGapsError, RefusedError
from combee_dspy.files import write_plain
from combee_dspy.journal import Reader, journal_file
from combee_dspy.registry import names
from combee_dspy.rollouts import Batching
from combee_dspy.search import check_wide
from combee_dspy.stopping import Patience
from combee_dspy.streams import derive_seed
from combee_dspy.tracking import run_number, spent_of
from combee_strategist.diagnosis import MARGIN, POINT, Curve, Diagnosis, diagnose
from combee_strategist.diagnosis.page import beside, write_page
from combee_strategist.planning.refusals import check_converged
from combee_strategist.planning.spec import Override, Spec

if TYPE_CHECKING:
    from combee_dspy.combee import Combee

__all__ = ["Choices", "Plan", "batch_sizes", "in_flight", "make_plan"]

_JOBS = 2_000
_SAID = "assumption: the specification says so"
_MARGIN = 10  # points: who accepts a larger loss has no claim left to defend

REASONS = ("cache", "controller", "diagnosis")
"""Overrides that replace no number: why a search has its cache off or a static batch, or is planned undiagnosed."""

Row = tuple[str, str, str]
"""What, its value, and where that comes from."""


class Choices(BaseModel):
    """What a plan starts from; every one can be overridden with a reason."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    workers: Annotated[int, Field(ge=1)]
    rollouts: Annotated[int, Field(ge=1)]
    margin_points: Annotated[float, Field(gt=0, le=_MARGIN)] = 100 * MARGIN
    flush_seconds: Annotated[float, Field(gt=0, le=60)] = 0.2
    variance: Annotated[float, Field(gt=0, lt=0.25)] = 0.01
    operators: Annotated[tuple[str, ...], Field(min_length=1)] = ("insert", "delete", "rephrase", "reorder")
    similarity: Annotated[float, Field(gt=0, lt=1)] = 0.92
    calibration_share: Annotated[float, Field(ge=0.01, le=1)] = 0.05
    spearman: Annotated[float, Field(ge=0.5, le=1)] = 0.7
    patience: Annotated[int, Field(ge=1, le=100)] = 3
    target_points: Annotated[float, Field(gt=0, le=100)] = 1.0
    canary_share: Annotated[float, Field(ge=0.001, le=1)] = 0.05
    canary_hours: Annotated[float, Field(ge=0.1, allow_inf_nan=False)] = 24.0
    canary_points: Annotated[float, Field(gt=0, le=_MARGIN)] = 0.5

    @field_validator("operators")
    @classmethod
    def _known(cls, given: tuple[str, ...]) -> tuple[str, ...]:
        if unknown := set(given) - {*names("operator")}:
            raise ValueError(f"no operator is called {', '.join(sorted(unknown))}")
        return given


@dataclass(frozen=True, slots=True)
class Plan:
    """A plan that can be written.

    Attributes:
        spec: What it was made from.
        choices: What it starts from.
        diagnosis: Of the serial search; ``None`` where a reason was given to plan without.
        tables: By section, what, its value, and where that comes from.
        batches: Sizes of the batches of the simulation; empty without a measured profile.
        departures: What the file of the wide search sets otherwise: what, the plan's value, the file's; ``None`` where
            the specification names no file, so that nothing of it was checked.
    """

    spec: Spec
    choices: Choices
    diagnosis: Diagnosis | None
    tables: Mapping[str, Sequence[Row]]
    batches: Sequence[int]
    departures: Sequence[Row] | None = None

    def write(self, path: Path) -> None:
        """Write it as three files: the path with ``.md``, ``.html`` and ``.json`` added."""
        record = {
            "spec": self.spec.model_dump(mode="json"),
            "choices": self.choices.model_dump(mode="json"),
            "diagnosis": None if self.diagnosis is None else asdict(self.diagnosis),
            "tables": self.tables,
            "batches": self.histogram(),
            "departures": self.departures,
        }
        write_plain(beside(path, ".json"), json.dumps(record, indent=2) + "\n")
        given = {"p": self, "s": self.spec, "c": self.choices, "d": self.diagnosis, "histogram": self.histogram()}
        write_page(path, __package__, "plan.md.j2", **given)

    def histogram(self) -> list[tuple[int, float]]:
        """Return sizes of batches, and the share of batches that had them."""
        return [(size, self.batches.count(size) / len(self.batches)) for size in sorted(set(self.batches))]


@dataclass(frozen=True, slots=True)
class _Measured:
    """What the serial search shows: when each rollout ran, and what the whole has paid."""

    diagnosis: Diagnosis
    seconds: Sequence[float]
    spent: Mapping[str, Any]


def make_plan(spec: Spec, folder: Path | str = ".", combee: Combee | None = None) -> Plan:
    """Return the plan of a specification.

    Args:
        spec: Without gaps.
        folder: Where its paths start.
        combee: The wide search, as it will compile: the plan says where it departs.

    Raises:
        PlanGapsError: An override is not known, or its value cannot be used; the run that should be serial is not.
        RefusedError: Serial search has not converged, or is not diagnosed, and no reason was given to plan all the
            same; a canary is skipped; so many workers with diversity off.
        ArgumentValueError: ``serial.run`` is no run, or was not searched far enough.
    """
    for name in ("canary_share", "canary_hours"):
        if name in spec.overrides and _is_none(spec.overrides[name].value):
            reason = "held-out rows are not what is served tomorrow"
            raise RefusedError(
                f"a canary skipped ({name})", reason, f"Leave overrides.{name} out, or give more than 0."
            )
    choices = _choices(spec, None)
    measured = None if spec.serial.run is None else _measured(Path(folder) / spec.serial.run, spec, choices)
    found = None if measured is None else measured.diagnosis
    if "diagnosis" not in spec.overrides:
        check_converged(found)
    choices = _choices(spec, measured)
    check_wide(choices.workers, Diversity(threshold=choices.similarity))
    batches, rate = batch_sizes(measured.seconds, choices, spec.hardware.slots) if measured else ((), 0.0)
    tables = _Tables(spec, choices, measured, batches, rate).all()
    return Plan(spec, choices, found, tables, batches, None if combee is None else tuple(_departures(choices, combee)))


def _is_none(value: object) -> bool:
    try:
        return not float(str(value)) > 0  # NaN too
    except ValueError:
        return False


def _measured(place: Path, spec: Spec, choices: Choices) -> _Measured:
    # From the journal, whatever a diagnosis beside it says, and by the margin that stands in the plan.
    curve = Curve.of_run(place)
    found = diagnose(curve, slots=spec.hardware.slots, margin=choices.margin_points * POINT)
    with Reader(journal_file(place)) as reader:
        run = run_number(reader, None)
        spans = [(row[0], row[1]) for row in reader.rows(_SPANS, (run,))]
        measured = _Measured(found, [end - start for start, end in spans], spent_of(reader, run))
    if (most := in_flight(spans)) > spec.serial.workers:
        said = f"serial.workers {spec.serial.workers} is not what {spec.serial.run} had: up to {most} in flight"
        purpose = "the plan has eight times as many, and a wide search is no serial baseline"
        raise PlanGapsError([f"{said}: {purpose} (such as: a run with num_threads=1)"])
    return measured


_SPANS = "SELECT started, ended FROM effect WHERE run = ? AND kind = 'rollout' AND purpose <> 'heldout' ORDER BY id"


def in_flight(spans: Iterable[tuple[float, float]]) -> int:
    """Return how many of some spans (start, end) were under way at once, at most."""
    # An end at the moment of a start comes before it.
    moves = sorted(move for start, end in spans for move in ((start, 1), (end, -1)))
    return max(accumulate(step for _, step in moves), default=0)


def _departures(choices: Choices, combee: Combee) -> Iterator[Row]:
    """Give what a search sets otherwise than the plan; what it leaves to the package is measured as it runs."""
    limit = None if combee.budget is None else combee.budget.limits().rollouts
    patience = [one.updates for one in getattr(combee.budget, "rules", (combee.budget,)) if isinstance(one, Patience)]
    compared = combee.diversity.build_embedder()
    theirs: dict[str, Any] = {
        "workers": combee.num_threads or "as many as the service takes",
        "rollouts": "no limit of its own" if limit is None else limit,
        "operators": tuple(one.name for one in combee.operators),
        "similarity": "off" if compared is None else compared[1],
        "patience": min(patience, default="none"),
    }
    for name, value in theirs.items():
        if (ours := getattr(choices, name)) != value:
            yield name, _listed(ours), _listed(value)


def _listed(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _choices(spec: Spec, measured: _Measured | None) -> Choices:
    serial = spec.serial.rollouts
    if measured is not None and measured.diagnosis.to_plateau is not None:
        serial = measured.diagnosis.to_plateau
    given = {name: one.value for name, one in spec.overrides.items() if name not in REASONS}
    try:
        return Choices(**{"workers": 8 * spec.serial.workers, "rollouts": 4 * serial, **given})
    except ValidationError as error:
        known = ", ".join([*Choices.model_fields, *REASONS])
        raise PlanGapsError(
            [f"overrides.{one['loc'][0]} cannot be used ({one['msg']}): known are {known}" for one in error.errors()]
        ) from error


def batch_sizes(seconds: Sequence[float], choices: Choices, slots: int, seed: int = 0) -> tuple[tuple[int, ...], float]:
    """Simulate the flush rule on measured rollouts; return the sizes of the batches, and rollouts a second.

    Every worker asks for a rollout, waits for its release and its end, and asks again; how long each takes is drawn
    from ``seconds``. Scores are not simulated, so the rule's part on their variance never fires.
    """
    import numpy as np

    rule = Batching("target", choices.flush_seconds, choices.variance)
    drawn = iter(np.random.default_rng(derive_seed(seed, "plan", "batches")).choice(seconds, _JOBS + slots).tolist())
    running: list[float] = []
    queue, now, sizes = deque([0.0] * choices.workers), 0.0, list[int]()
    while sum(sizes) < _JOBS:
        free, due = slots - len(running), None
        if queue and free:
            if rule.releases(len(queue), now - queue[0], slots):
                sizes.append(min(free, len(queue)))
                for _ in range(sizes[-1]):
                    queue.popleft()
                    heapq.heappush(running, now + max(next(drawn), 1e-6))
                continue
            due = choices.flush_seconds - (now - queue[0])
        # A hair later than due: rounding must not make it wait for nothing for ever.
        now = min(([running[0]] if running else []) + ([] if due is None else [now + due + 1e-6]))
        while running and running[0] <= now:
            queue.append(heapq.heappop(running))
    return tuple(sizes), sum(sizes) / now if now else 0.0


@dataclass(frozen=True, slots=True)
class _Tables:
    """Fills the tables of a plan."""

    spec: Spec
    choices: Choices
    measured: _Measured | None
    batches: Sequence[int]
    rate: float

    def all(self) -> dict[str, Sequence[Row]]:
        """Return them by section."""
        return {
            "task": self.task(), "shape": self.shape(), "batching": self.batching(), "diversity": self.diversity(),
            "evaluator": self.evaluator(), "stopping": self.stopping(), "canary": self.canary(), "cost": self.cost(),
        }  # fmt: skip

    @property
    def journal(self) -> str:
        return f"measured: {self.measured.diagnosis.source}" if self.measured else ""

    @property
    def plateau(self) -> tuple[str, str]:
        """Rollouts of serial search, and where they come from."""
        if self.measured is None or self.measured.diagnosis.to_plateau is None:
            return f"{self.spec.serial.rollouts:,}", _SAID
        return f"{self.measured.diagnosis.to_plateau:,}", self.journal

    @property
    def score(self) -> float:
        return self.measured.diagnosis.score if self.measured else self.spec.serial.score

    def choice(self, label: str, name: str, form: Callable[[Any], str] = str, default: str = "default") -> Row:
        override: Override | None = self.spec.overrides.get(name)
        return label, form(getattr(self.choices, name)), f"override: {override.reason}" if override else default

    def task(self) -> list[Row]:
        task, serial, hardware = self.spec.task, self.spec.serial, self.spec.hardware
        machine = f"{hardware.count} × {hardware.kind}, {hardware.memory_gb:g} GB, {hardware.network}"
        return [
            ("inputs", task.inputs, _SAID),
            ("outputs", task.outputs, _SAID),
            ("metric", task.metric, _SAID),
            ("program as it is, held-out", f"{task.baseline:.3f}", _SAID),
            ("serial baseline", f"{serial.method}, {serial.version}, {serial.workers} in flight", _SAID),
            ("its rollouts to the plateau", *self.plateau),
            *([("as the specification says", f"{serial.rollouts:,}", _SAID)] if self.measured else []),
            ("its score, held-out", f"{serial.score:.3f}", _SAID),
            *([("its score, on validation", f"{self.score:.3f}", self.journal)] if self.measured else []),
            ("hardware", f"{machine}; optimiser and task model {hardware.models}", _SAID),
        ]

    def shape(self) -> list[Row]:
        serial = f"default: 8 × the {self.spec.serial.workers} of serial search"
        limit: Row = ("ceiling of the speedup", "not known", "no run has measured it: give serial.run")
        if self.measured is not None and (found := self.measured.diagnosis.ceiling) is not None:
            value = f"{found.speedup:.1f} times with these slots, {found.unbounded:.1f} with any number"
            limit = (limit[0], value, f"Amdahl: {found.share:.0%} of {found.wall:.1f} s stays serial; {self.journal}")
        slots = ("slots of the service", str(self.spec.hardware.slots), _SAID)
        return [self.choice("workers", "workers", default=serial), slots, limit]

    def batching(self) -> list[Row]:
        rows: list[Row] = [
            ("hardware target", f"{self.spec.hardware.slots} waiting rollouts", _SAID),
            self.choice("longest wait", "flush_seconds", "{:g} s".format),
            self.choice("variance of scores below", "variance"),
        ]
        if self.batches:
            ordered = sorted(self.batches)
            low, middle, high = (ordered[int(part * (len(ordered) - 1))] for part in (0.1, 0.5, 0.9))
            rows.append(("batch size, median (10 to 90 % of batches)", f"{middle} ({low} to {high})", self.simulated))
        return rows

    @property
    def simulated(self) -> str:
        count = len(self.measured.seconds) if self.measured else 0
        return f"simulated: the rule on the times of {count:,} rollouts; {self.journal}"

    def diversity(self) -> list[Row]:
        operators = self.choice("operators, uniform weights at first", "operators", ", ".join)
        return [operators, self.choice("refused above a similarity of", "similarity")]

    def evaluator(self) -> list[Row]:
        rows = self.spec.evaluation
        return [
            ("scorer", rows.scorer, _SAID),
            ("rows", f"{rows.dataset}; {rows.split}; owner {rows.owner}", _SAID),
            self.choice("rollouts that the reference judges too", "calibration_share", "{:.0%}".format),
            self.choice("fit where Spearman's lower end reaches", "spearman"),
        ]

    def stopping(self) -> list[Row]:
        budget = self.spec.budget
        target = max(self.score, min(self.score + self.choices.target_points * POINT, 1.0))
        over = " (the budget ends it first)" if self.choices.rollouts > budget.rollouts else ""
        default = f"default: 4 × serial ({self.plateau[1]})"
        return [
            self.choice("rollouts", "rollouts", lambda n: f"{n:,} of {budget.rollouts:,}{over}", default),
            self.choice("updates without improvement on validation", "patience"),
            self.choice("soft target", "target_points", lambda n: f"{target:.3f}, serial + {n:g} in points"),
            ("deadline", budget.deadline.isoformat(), _SAID),
            ("binds first", budget.binds, _SAID),
        ]

    def canary(self) -> list[Row]:
        return [
            self.choice("share of the requests", "canary_share", "{:.0%}".format),
            self.choice("hours", "canary_hours", "{:g}".format),
            self.choice("rolled back where more than so many points worse", "canary_points", "{:g}".format),
        ]

    def cost(self) -> list[Row]:
        found, budget = self.measured, self.spec.budget
        rows = [
            self.spent("tokens", "tokens", budget.tokens),
            self.spent("dollars", "dollars", None),
            self.spent("GPU-seconds", "gpu_seconds", budget.gpu_seconds),
        ]
        if found is not None and self.rate:
            serial = found.spent["rollouts"] / found.spent["seconds"]
            each = f"{self.rate:.1f} rollouts a second; serial search had {serial:.1f}"
            seconds = f"{self.choices.rollouts / self.rate:,.0f} s, {each}"
            rows.append(("wall-clock of the rollouts alone", seconds, self.simulated))
        return rows

    def spent(self, label: str, name: str, limit: float | None) -> Row:
        if self.measured is None or self.measured.spent[name] is None:
            return label, "not known", "no run has measured it: give serial.run, and prices or GPUs in its costs"
        each = self.measured.spent[name] / self.measured.spent["rollouts"]
        total = each * self.choices.rollouts
        within = "" if limit is None else f" of {limit:,.0f}{' (the budget ends it first)' if total > limit else ''}"
        value = f"{total:,.{0 if total >= 100 else 2}f}{within}"
        return label, value, f"computed: {each:,.4g} a rollout of serial search; {self.journal}"
