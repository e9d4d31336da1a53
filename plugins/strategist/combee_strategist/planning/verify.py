"""Does a claim survive other seeds, slices of the held-out rows, and other hardware?"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

from combee_dspy.evaluation import (
    CostPerPoint,
    PairedDifference,
    Receipt,
    SerialBaseline,
    paired_difference,
)
from combee_dspy.exceptions import ArgumentValueError, RefusedError
from combee_dspy.files import write_plain
from combee_dspy.journal import Reader
from combee_dspy.report import CombeeReport
from combee_dspy.streams import derive_seed
from combee_dspy.tracking import spent_of
from combee_strategist.diagnosis import POINT
from combee_strategist.diagnosis.charts import Interval, intervals
from combee_strategist.diagnosis.page import write_page
from combee_strategist.planning.refusals import HOLD_OUT

__all__ = [
    "Check",
    "Claim",
    "Kind",
    "Verification",
    "check_run",
    "check_slices",
    "over_serial",
    "slices_of",
]

Kind = Literal["run", "seed", "slice", "hardware"]
Verdict = Literal["survives", "fails", "inconclusive"]
_KINDS: tuple[Kind, ...] = ("run", "seed", "slice", "hardware")
_MOST, _QUARTERS, _RESAMPLES = 8, 4, 1_000
_LOSS = 0.1
_TONES: Mapping[Verdict, str] = {
    "survives": "better",
    "fails": "worse",
    "inconclusive": "unshown",
}


@dataclass(frozen=True, slots=True)
class Claim:
    """What is claimed of a search.

    Attributes:
        gain: The held-out gain over the student is above this, in score units.
        margin: How much worse still counts as no worse, in score units: than the serial baseline on
            all rows, and than the student on a slice.
        faster: How many times as fast as the serial baseline it is at least; 0 where no speed is
            claimed.
    """

    gain: float = 0.0
    margin: float = 0.02
    faster: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.margin <= _LOSS:
            problem, remedy = (
                f"is not above 0 and at most {_LOSS}",
                "A larger loss is one: claim no less than that.",
            )
            raise ArgumentValueError("margin", self.margin, problem, remedy)


@dataclass(frozen=True, slots=True)
class Check:
    """One place where the claim was tried.

    Attributes:
        kind: ``"run"`` itself, ``"seed"``, ``"slice"`` or ``"hardware"``.
        where: Which one.
        claim: What must hold there.
        verdict: ``"survives"``; ``"fails"`` where the opposite is shown; else ``"inconclusive"``:
            the rows tell neither.
        found: What was found, with its interval, and where that is inconclusive how many rows more
            would give an interval as wide as the margin, on either side.
        difference: The paired difference behind it; ``None`` for a share of draws.
        limit: What it must lie above.
        over: What the difference is from.
    """

    kind: Kind
    where: str
    claim: str
    verdict: Verdict
    found: str
    difference: PairedDifference | None = None
    limit: float = 0.0
    over: Literal["the student", "serial search"] = "the student"

    @property
    def label(self) -> str:
        """Which place it is, on a chart: one may be compared with two others."""
        return self.where if self.over == "the student" else f"{self.where}, over {self.over}"


@dataclass(frozen=True, slots=True)
class Verification:
    """Whether a claim is ready.

    Attributes:
        claim: What was claimed.
        source: Of which run.
        headline: What each held-out point above the serial baseline has cost in the run itself.
        checks: Where it was tried.
    """

    claim: Claim
    source: str
    headline: str
    checks: tuple[Check, ...]

    @property
    def untried(self) -> tuple[Kind, ...]:
        """Kinds of checks of which there is none."""
        return tuple(kind for kind in _KINDS if kind not in {check.kind for check in self.checks})

    @property
    def ready(self) -> bool:
        """Whether it was tried in every way, and survives everywhere."""
        return not self.untried and all(check.verdict == "survives" for check in self.checks)

    def save(self, folder: Path) -> None:
        """Write it into a folder, as JSON, and as one page of Markdown and of HTML."""
        record = {"ready": self.ready, "untried": self.untried, **asdict(self)}
        write_plain(folder / "verify.json", json.dumps(record, indent=2) + "\n")
        rows = [
            Interval(
                check.label,
                *(check.difference.low, check.difference.difference, check.difference.high),
                check.limit,
                _TONES[check.verdict],
            )
            for check in self.checks
            if check.difference is not None
        ]
        charts = {"intervals": intervals(rows)}
        write_page(folder / "verify", __package__, "verify.md.j2", charts, v=self)


def over_serial(
    report: CombeeReport, serial: CombeeReport, *, margin: float = 0.02
) -> CostPerPoint | None:
    """Return what each held-out point above a serial search has cost, as both journals say.

    Args:
        report: Of the run.
        serial: Of a serial search on the same held-out rows, with the same models.
        margin: How much worse counts as no worse, in score units.

    Returns:
        ``None`` where one of them has not read its held-out set. Without ``versus`` where models
        differ.

    Raises:
        ArgumentValueError: They have read other rows.
    """
    if report.receipt is None or serial.receipt is None:
        return None
    if report.receipt.heldout.content != serial.receipt.heldout.content:
        raise ArgumentValueError(
            "serial", serial.journal, "has read other held-out rows", "Give both the same rows."
        )
    baseline = SerialBaseline(fmean(serial.receipt.after), **_spent(serial.journal, serial.receipt))
    spent = SerialBaseline(fmean(report.receipt.after), **_spent(report.journal, report.receipt))
    versus = report.receipt.against(serial.receipt) if report.models == serial.models else None
    return CostPerPoint.of(baseline, spent.score, spent, point=POINT, versus=versus, margin=margin)


def _spent(journal: str, receipt: Receipt) -> dict[str, Any]:
    if not journal:
        return {}
    with Reader(Path(journal)) as reader:
        # The journal of several tasks holds a run of each.
        return spent_of(reader, receipt.number)


def check_run(kind: Kind, where: str, claim: Claim, report: CombeeReport) -> Iterator[Check]:
    """Try the claim on one run, beside a serial search of the same seed, rows and hardware.

    Args:
        kind: What differs from the run of the claim.
        where: How.
        claim: What is claimed.
        report: Of the run, whose ``per_point`` is of that serial search.

    Raises:
        RefusedError: It was not measured beside one on held-out rows.
    """
    gain, cost = report.heldout, report.per_point
    if gain is None or cost is None or cost.versus is None:
        remedy = "Hold rows out, and search serially with the same ones and the same models."
        raise RefusedError(
            f"a claim of {where}", "it was not measured beside a serial search", remedy
        )
    words = f"held-out gain above {claim.gain:g}"
    yield _above(kind, where, words, claim.gain, gain, claim.margin)
    words = f"no more than {claim.margin:g} worse than serial search"
    if not claim.faster:
        check = _above(kind, where, words, -claim.margin, cost.versus, claim.margin)
        yield replace(check, over="serial search")
        return
    # A speed stands beside the guarantee or not at all: one check, of both.
    whole = _above(
        kind,
        where,
        f"at least {claim.faster:g} times as fast, and {words}",
        -claim.margin,
        cost.versus,
        claim.margin,
    )
    verdict = whole.verdict
    if verdict == "survives" and cost.speedup is None:
        verdict = "inconclusive"
    elif verdict == "survives" and cost.speedup is not None and cost.speedup < claim.faster:
        verdict = "fails"
    yield replace(whole, verdict=verdict, found=cost.guarded, over="serial search")


def check_slices(
    claim: Claim, report: CombeeReport, slices: Mapping[str, Sequence[int]]
) -> Iterator[Check]:
    """Try the claim on slices of the held-out rows, and on rows drawn again with replacement.

    On a slice the result may not be more than the margin worse than the student. Of 1,000 sets of
    rows drawn again, as many as the interval's confidence asks must show the claimed gain.

    Args:
        claim: What is claimed.
        report: Of the run.
        slices: Positions of rows, by name.

    Raises:
        RefusedError: The run has read no held-out rows.
    """
    import numpy as np

    if report.receipt is None or report.heldout is None:
        raise RefusedError(
            "a claim without held-out rows", "the search chose by the others", HOLD_OUT
        )
    before, after = np.asarray(report.receipt.before), np.asarray(report.receipt.after)
    level, seed = report.heldout.confidence, report.seed
    words = f"no more than {claim.margin:g} worse than the student"
    for name, rows in slices.items():
        difference = paired_difference(
            before[list(rows)].tolist(), after[list(rows)].tolist(), confidence=level, seed=seed
        )
        yield _above(
            "slice",
            f"{name} ({difference.n} rows)",
            words,
            -claim.margin,
            difference,
            claim.margin,
        )
    draws = np.random.default_rng(derive_seed(seed, "verify", "bootstrap"))
    changes = after - before
    means = changes[draws.integers(changes.size, size=(_RESAMPLES, changes.size))].mean(axis=1)
    share = float((means > claim.gain).mean())
    low, high = np.quantile(means, (0.05, 0.95))
    yield Check(
        "slice",
        f"{_RESAMPLES:,} bootstrap draws of {changes.size} rows",
        f"held-out gain above {claim.gain:g} in {level:.0%} of them",
        "survives" if share >= level else "fails" if share <= 1 - level else "inconclusive",
        f"in {share:.1%}; 90 % of them between {low:+.3f} and {high:+.3f}",
    )


def _above(
    kind: Kind, where: str, words: str, limit: float, difference: PairedDifference, margin: float
) -> Check:
    verdict: Verdict = "inconclusive"
    if difference.low > limit:
        verdict = "survives"
    elif difference.high <= limit:
        verdict = "fails"
    interval = f"{difference.low:+.3f} to {difference.high:+.3f}"
    figures = f"{difference.difference:+.3f}, {difference.confidence:.0%} interval {interval}"
    if verdict == "inconclusive" and (more := rows_for(difference, margin) - difference.n) > 0:
        figures += f"; add {more:,} rows for a {100 * margin:g}-point margin"
    return Check(kind, where, words, verdict, figures, difference, limit)


def rows_for(difference: PairedDifference, margin: float) -> int:
    """Return how many rows like these give an interval that reaches ``margin`` to either side: its
    width shrinks with the root of their number.
    """
    half = (difference.high - difference.low) / 2
    return math.ceil(difference.n * (half / margin) ** 2)


def slices_of(rows: Sequence[Any], by: Sequence[str] = ()) -> dict[str, list[int]]:
    """Return slices of rows: by fields, and without any by the length of what the program is given.

    A field of at most eight values has a slice for each; numbers and lengths are cut into quarters.

    Args:
        rows: Held-out examples.
        by: Names of fields.

    Raises:
        ArgumentValueError: A row lacks the field, or it has too many values and is no number.
    """
    if not by:
        lengths = [sum(len(str(value)) for value in dict(row.inputs()).values()) for row in rows]
        return _quarters("length of the inputs", lengths)
    slices: dict[str, list[int]] = {}
    for name in by:
        values = [row.get(name) for row in rows]
        distinct = sorted(set(map(str, values)))
        if len(distinct) <= _MOST and None not in values:
            slices |= {
                f"{name} {text}": [
                    place for place, value in enumerate(values) if str(value) == text
                ]
                for text in distinct
            }
        elif all(isinstance(value, (int, float)) for value in values):
            slices |= _quarters(name, values)
        else:
            problem = f"has {len(distinct)} values, or is missing in a row"
            remedy = (
                f"Name a field of every held-out row: a number, or one of {_MOST} values at most."
            )
            raise ArgumentValueError("by", name, problem, remedy)
    return slices


def _quarters(name: str, values: Sequence[Any]) -> dict[str, list[int]]:
    order = sorted(range(len(values)), key=lambda place: (values[place], place))
    cuts = [round(part * len(order) / _QUARTERS) for part in range(_QUARTERS + 1)]
    parts = {part + 1: order[cuts[part] : cuts[part + 1]] for part in range(_QUARTERS)}
    return {f"{name}, quarter {part}": places for part, places in parts.items() if places}
