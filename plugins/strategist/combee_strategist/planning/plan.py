"""The plan of a wide search, in ten sections: every number with where it comes from."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from combee_dspy.arguments import check_wide
from combee_dspy.diversity import Diversity, Restart, Temperature
from combee_dspy.evaluation import SizeComparison, compare_sizes
from combee_dspy.exceptions import RefusedError
from combee_dspy.files import write_plain
from combee_dspy.journal import Reader, journal_file
from combee_dspy.rollouts import Batching
from combee_dspy.stopping import Patience, Target
from combee_dspy.tracking import run_number, spent_of
from combee_strategist.canary import LEAST_HOURS
from combee_strategist.diagnosis import POINT, Curve, Diagnosis, add_points, diagnose
from combee_strategist.diagnosis.charts import bars
from combee_strategist.diagnosis.page import beside, write_page
from combee_strategist.exceptions import PlanGapsError
from combee_strategist.planning.batching import (
    BatchSimulation,
    describe_batching,
    simulate_batches,
)
from combee_strategist.planning.choices import Choices, Measured, choose
from combee_strategist.planning.refusals import check_converged
from combee_strategist.planning.risks import list_risks
from combee_strategist.planning.shapes import (
    Shape,
    choose_shape,
    count_in_flight,
    grow_workers,
    spans_of,
)
from combee_strategist.planning.spec import Spec
from combee_strategist.planning.tables import Row, Tables

if TYPE_CHECKING:
    from combee_dspy.combee import Combee

__all__ = ["Plan", "make_plan"]

_KEEP, _CHILDREN = "pareto", 1
_DIGITS = 4  # of the target, in the file that a plan prints


@dataclass(frozen=True, slots=True)
class Plan:
    """A plan that can be written.

    Attributes:
        spec: What it was made from.
        choices: What it starts from.
        diagnosis: Of the serial search.
        shape: What runs side by side.
        batching: The rule by which waiting rollouts go: of the file of the wide search, where the
            specification names one.
        batches: What it did to simulated rollouts.
        tables: By section, what, its value, and where that comes from.
        risks: What may go wrong, the largest first.
        departures: What the file of the wide search sets otherwise: what, the plan's value, the
            file's; ``None`` where the specification names no file, so that nothing of it was
            checked.
    """

    spec: Spec
    choices: Choices
    diagnosis: Diagnosis
    shape: Shape
    batching: Batching
    batches: BatchSimulation
    tables: Mapping[str, Sequence[Row]]
    risks: Sequence[str]
    departures: Sequence[Row] | None = None

    def write(self, path: Path) -> None:
        """Write it as three files: the path with ``.md``, ``.html`` and ``.json`` added."""
        record = {
            "spec": self.spec.model_dump(mode="json"),
            "choices": self.choices.model_dump(mode="json"),
            "diagnosis": asdict(self.diagnosis),
            "shape": asdict(self.shape),
            "tables": self.tables,
            "risks": self.risks,
            "batches": self.batches.histogram(),
            "run": self.run_settings(),
            "publish": self.publish_command(),
            "departures": self.departures,
        }
        write_plain(beside(path, ".json"), json.dumps(record, indent=2) + "\n")
        values = {
            "p": self,
            "s": self.spec,
            "c": self.choices,
            "d": self.diagnosis,
            "rule": describe_batching(self.batching),
            "run_lines": yaml.safe_dump(self.run_settings(), sort_keys=False).splitlines(),
        }
        charts = {"batches": bars([(str(size), share) for size, share in self.batches.histogram()])}
        write_page(path, __package__, "plan.md.j2", charts, **values)

    def run_settings(self) -> dict[str, Any]:
        """Return what a file of ``combee run`` holds to search as planned, besides data and LMs."""
        choices = self.choices
        rule = {"queue": "target", "seconds": choices.flush_seconds, "variance": choices.variance}
        diversity: dict[str, Any] = {
            "threshold": choices.similarity,
            "temperature": {"start": Temperature().start},
        }
        if (restart := _restart_of(choices)) is not None:
            diversity["restart"] = {"patience": restart.patience}
        target = _target_of(choices, self.diagnosis)
        return {
            "num_threads": choices.workers,
            "budget": {"rollouts": choices.rollouts},
            "strategies": {
                "operators": list(choices.operators),
                "executor": {"name": "threads", "params": {"batching": rule}},
                "stopping": [
                    {"name": "patience", "params": {"updates": choices.patience}},
                    {"name": "target", "params": {"score": target}},
                ],
            },
            "search": {"keep": _KEEP, "children": _CHILDREN},
            "diversity": diversity,
        }

    def publish_command(self) -> str:
        """Return the command that puts the result on trial, by the terms of this plan."""
        choices = self.choices
        words = [
            f"combee publish RUN --name {self.spec.task.name}",
            f"--epsilon {choices.canary_points * POINT:g}",
            f"--target {add_points(self.spec.serial.score, choices.target_points):.4g}",
            f"--hours {choices.canary_hours:g}",
        ]
        if choices.canary_hours < LEAST_HOURS:
            override = self.spec.overrides.get("canary_hours")
            kind = f"a wrong answer {self.spec.failure} and can be undone"
            words.append(f"--why {shlex.quote(override.reason if override else kind)}")
        return " ".join(words)


def make_plan(spec: Spec, folder: Path | str = ".", combee: Combee | None = None) -> Plan:
    """Return the plan of a specification.

    Args:
        spec: Without gaps.
        folder: Where its paths start.
        combee: The wide search, as it will compile: its batching is what is simulated, and the plan
            says where it departs.

    Raises:
        PlanGapsError: An override is not known, or its value cannot be used; the run that should be
            serial is not.
        RefusedError: Serial search has not converged, or is not diagnosed; a canary is skipped; so
            many workers with diversity off; a judge no smaller than the proposer, without a reason.
        ArgumentValueError: ``serial.run`` is no run, or was not searched far enough.
    """
    _check_canary(spec)
    judge = _compare_judge(spec)
    choices = choose(spec, None)
    if spec.serial.run is None:
        check_converged(None)
    measured = _measure(Path(folder) / (spec.serial.run or ""), spec, choices)
    check_converged(measured.diagnosis)
    growth = None
    if spec.wide is not None:
        growth = grow_workers(Path(folder) / spec.wide, choices.workers, spec.hardware.slots)
    choices = choose(spec, measured, None if growth is None else growth.workers)
    check_wide(choices.workers, Diversity(threshold=choices.similarity))
    planned = choices.batching
    runs = planned if combee is None else combee.settings.executor.batching or Batching()
    batches = simulate_batches(measured.seconds, choices.workers, spec.hardware.slots, runs)
    shape = choose_shape(batches.utilisation, spec.task.count)
    tables = Tables(spec, choices, measured, runs, batches, shape, growth, judge)
    return Plan(
        spec,
        choices,
        measured.diagnosis,
        shape,
        runs,
        batches,
        tables.all(),
        list_risks(spec, choices, measured, batches, judge),
        None if combee is None else tuple(_departures(choices, measured.diagnosis, combee)),
    )


def _check_canary(spec: Spec) -> None:
    for name in ("canary_share", "canary_hours"):
        if name in spec.overrides and _is_none(spec.overrides[name].value):
            reason = "held-out rows are not what is served tomorrow"
            raise RefusedError(
                f"a canary skipped ({name})",
                reason,
                f"Leave overrides.{name} out, or give more than 0.",
            )


def _is_none(value: object) -> bool:
    try:
        return not float(str(value)) > 0  # NaN too
    except ValueError:
        return False


def _compare_judge(spec: Spec) -> SizeComparison | None:
    models = spec.models
    if not models.judged:
        return None
    compared = compare_sizes(models.evaluator, models.proposer)
    if compared.smaller is False and "judge" not in spec.overrides:
        choice = f"a judge ({models.evaluator}) no smaller than the proposer ({models.proposer})"
        raise RefusedError(
            choice, compared.reason, "Name a smaller judge, or say why in overrides.judge."
        )
    return compared


def _measure(place: Path, spec: Spec, choices: Choices) -> Measured:
    # From the journal, whatever a diagnosis beside it says, and by the margin that stands in the
    # plan.
    curve = Curve.of_run(place)
    diagnosis = diagnose(curve, slots=spec.hardware.slots, margin=choices.margin_points * POINT)
    with Reader(journal_file(place)) as reader:
        run = run_number(reader, None)
        spans = spans_of(reader, run)
        updates = reader.rows(_UPDATES, (run,))[0][0]
        seconds = [end - start for start, end in spans]
        measured = Measured(diagnosis, seconds, spent_of(reader, run), updates)
    if (most := count_in_flight(spans)) > spec.serial.workers:
        serial = spec.serial
        difference = (
            f"serial.workers {serial.workers} is not what {serial.run} had: up to {most} in flight"
        )
        purpose = "the plan has eight times as many, and a wide search is no serial baseline"
        raise PlanGapsError([f"{difference}: {purpose} (such as: a run with num_threads=1)"])
    return measured


_UPDATES = "SELECT count(DISTINCT step) FROM effect WHERE run = ? AND step >= 0"


def _departures(choices: Choices, diagnosis: Diagnosis, combee: Combee) -> Iterator[Row]:
    """Give what a search sets otherwise than the plan.

    What it leaves to the package is measured as it runs.
    """
    settings, budget = combee.settings, combee.settings.budget
    limit = None if budget is None else budget.limits().rollouts
    rules = () if budget is None else budget.parts()
    patience = [rule.updates for rule in rules if isinstance(rule, Patience)]
    targets = [round(rule.score, _DIGITS) for rule in rules if isinstance(rule, Target)]
    compared = settings.diversity.build_embedder()
    operators = [rule.name for rule in settings.operators]
    pairs: dict[str, tuple[object, object]] = {
        "workers": (choices.workers, settings.num_threads or "as many as the service takes"),
        "rollouts": (choices.rollouts, "no limit of its own" if limit is None else limit),
        "operators": (", ".join(choices.operators), ", ".join(operators)),
        "keep": (_KEEP, settings.keep),
        "children an update": (_CHILDREN, settings.search.children or len(operators)),
        "similarity": (choices.similarity, "off" if compared is None else compared[1]),
        "patience": (choices.patience, min(patience, default="none")),
        "target": (_target_of(choices, diagnosis), min(targets, default="none")),
        "batching": (
            describe_batching(choices.batching),
            describe_batching(settings.executor.batching or Batching()),
        ),
        "temperature": (Temperature(), settings.diversity.temperature or "none"),
        "restart": (_restart_of(choices) or "none", settings.diversity.restart or "none"),
    }
    for name, (ours, theirs) in pairs.items():
        if ours != theirs:
            yield name, str(ours), str(theirs)


def _target_of(choices: Choices, diagnosis: Diagnosis) -> float:
    return round(add_points(diagnosis.score, choices.target_points), _DIGITS)


def _restart_of(choices: Choices) -> Restart | None:
    # Patience would end the run before a restart.
    return Restart() if choices.patience > Restart().patience else None
