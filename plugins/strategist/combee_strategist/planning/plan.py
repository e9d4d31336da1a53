"""The plan of a wide search, in ten sections: every number with where it comes from."""

from __future__ import annotations

import heapq
import json
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

from combee_dspy.arguments import check_wide
from combee_dspy.diversity import Diversity
from combee_dspy.exceptions import PlanGapsError, RefusedError
from combee_dspy.files import write_plain
from combee_dspy.journal import Reader, journal_file
from combee_dspy.rollouts import Batching
from combee_dspy.stopping import Patience
from combee_dspy.streams import derive_seed
from combee_dspy.tracking import run_number, spent_of
from combee_strategist.diagnosis import POINT, Curve, Diagnosis, diagnose
from combee_strategist.diagnosis.page import beside, write_page
from combee_strategist.planning.choices import Choices, Measured, choose
from combee_strategist.planning.refusals import check_converged
from combee_strategist.planning.spec import Spec
from combee_strategist.planning.tables import Row, Tables

if TYPE_CHECKING:
    from combee_dspy.combee import Combee

__all__ = ["Choices", "Plan", "batch_sizes", "in_flight", "make_plan"]

_JOBS = 2_000


@dataclass(frozen=True, slots=True)
class Plan:
    """A plan that can be written.

    Attributes:
        spec: What it was made from.
        choices: What it starts from.
        diagnosis: Of the serial search; ``None`` where a reason was given to plan without.
        tables: By section, what, its value, and where that comes from.
        batches: Sizes of the batches of the simulation; empty without a measured profile.
        departures: What the file of the wide search sets otherwise: what, the plan's value, the
            file's; ``None`` where the specification names no file, so that nothing of it was
            checked.
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
        values = {
            "p": self,
            "s": self.spec,
            "c": self.choices,
            "d": self.diagnosis,
            "histogram": self.histogram(),
        }
        write_page(path, __package__, "plan.md.j2", **values)

    def histogram(self) -> list[tuple[int, float]]:
        """Return sizes of batches, and the share of batches that had them."""
        return [
            (size, self.batches.count(size) / len(self.batches))
            for size in sorted(set(self.batches))
        ]


def make_plan(spec: Spec, folder: Path | str = ".", combee: Combee | None = None) -> Plan:
    """Return the plan of a specification.

    Args:
        spec: Without gaps.
        folder: Where its paths start.
        combee: The wide search, as it will compile: the plan says where it departs.

    Raises:
        PlanGapsError: An override is not known, or its value cannot be used; the run that should be
            serial is not.
        RefusedError: Serial search has not converged, or is not diagnosed, and no reason was given
            to plan all the same; a canary is skipped; so many workers with diversity off.
        ArgumentValueError: ``serial.run`` is no run, or was not searched far enough.
    """
    for name in ("canary_share", "canary_hours"):
        if name in spec.overrides and _is_none(spec.overrides[name].value):
            reason = "held-out rows are not what is served tomorrow"
            raise RefusedError(
                f"a canary skipped ({name})",
                reason,
                f"Leave overrides.{name} out, or give more than 0.",
            )
    choices = choose(spec, None)
    measured = (
        None
        if spec.serial.run is None
        else _measured(Path(folder) / spec.serial.run, spec, choices)
    )
    diagnosis = None if measured is None else measured.diagnosis
    if "diagnosis" not in spec.overrides:
        check_converged(diagnosis)
    choices = choose(spec, measured)
    check_wide(choices.workers, Diversity(threshold=choices.similarity))
    batches, rate = (
        batch_sizes(measured.seconds, choices, spec.hardware.slots) if measured else ((), 0.0)
    )
    tables = Tables(spec, choices, measured, batches, rate).all()
    return Plan(
        spec,
        choices,
        diagnosis,
        tables,
        batches,
        None if combee is None else tuple(_departures(choices, combee)),
    )


def _is_none(value: object) -> bool:
    try:
        return not float(str(value)) > 0  # NaN too
    except ValueError:
        return False


def _measured(place: Path, spec: Spec, choices: Choices) -> Measured:
    # From the journal, whatever a diagnosis beside it says, and by the margin that stands in the
    # plan.
    curve = Curve.of_run(place)
    diagnosis = diagnose(curve, slots=spec.hardware.slots, margin=choices.margin_points * POINT)
    with Reader(journal_file(place)) as reader:
        run = run_number(reader, None)
        spans = [(row[0], row[1]) for row in reader.rows(_SPANS, (run,))]
        measured = Measured(diagnosis, [end - start for start, end in spans], spent_of(reader, run))
    if (most := in_flight(spans)) > spec.serial.workers:
        serial = spec.serial
        difference = (
            f"serial.workers {serial.workers} is not what {serial.run} had: up to {most} in flight"
        )
        purpose = "the plan has eight times as many, and a wide search is no serial baseline"
        raise PlanGapsError([f"{difference}: {purpose} (such as: a run with num_threads=1)"])
    return measured


_SPANS = (
    "SELECT started, ended FROM effect"
    " WHERE run = ? AND kind = 'rollout' AND purpose <> 'heldout' ORDER BY id"
)


def in_flight(spans: Iterable[tuple[float, float]]) -> int:
    """Return how many of some spans (start, end) were under way at once, at most."""
    # An end at the moment of a start comes before it.
    moves = sorted(move for start, end in spans for move in ((start, 1), (end, -1)))
    return max(accumulate(step for _, step in moves), default=0)


def _departures(choices: Choices, combee: Combee) -> Iterator[Row]:
    """Give what a search sets otherwise than the plan.

    What it leaves to the package is measured as it runs.
    """
    settings, budget = combee.settings, combee.settings.budget
    limit = None if budget is None else budget.limits().rollouts
    rules = () if budget is None else budget.parts()
    patience = [rule.updates for rule in rules if isinstance(rule, Patience)]
    compared = settings.diversity.build_embedder()
    theirs: dict[str, Any] = {
        "workers": settings.num_threads or "as many as the service takes",
        "rollouts": "no limit of its own" if limit is None else limit,
        "operators": tuple(rule.name for rule in settings.operators),
        "similarity": "off" if compared is None else compared[1],
        "patience": min(patience, default="none"),
    }
    for name, value in theirs.items():
        if (ours := getattr(choices, name)) != value:
            yield name, _listed(ours), _listed(value)


def _listed(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def batch_sizes(
    seconds: Sequence[float], choices: Choices, slots: int, seed: int = 0
) -> tuple[tuple[int, ...], float]:
    """Simulate the flush rule on measured rollouts.

    Return the sizes of the batches, and rollouts a second.

    Every worker asks for a rollout, waits for its release and its end, and asks again; how long
    each takes is drawn from ``seconds``. Scores are not simulated, so the rule's part on their
    variance never fires.
    """
    import numpy as np

    rule = Batching("target", choices.flush_seconds, choices.variance)
    drawn = iter(
        np.random.default_rng(derive_seed(seed, "plan", "batches"))
        .choice(seconds, _JOBS + slots)
        .tolist()
    )
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
