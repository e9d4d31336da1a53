"""Has serial search converged, above where it began?

Before that, going wide buys what a longer search would have bought.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from combee_dspy.evaluation import PairedDifference, paired_difference
from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.files import read_plain, write_plain
from combee_dspy.journal import journal_file
from combee_dspy.search import SerialVerdict
from combee_dspy.streams import derive_seed
from combee_strategist.diagnosis.charts import curve
from combee_strategist.diagnosis.curve import Ceiling, Curve
from combee_strategist.diagnosis.page import write_page

__all__ = [
    "MARGIN",
    "POINT",
    "Diagnosis",
    "add_points",
    "diagnose",
    "diagnosis_now",
    "read_diagnosis",
    "serial_verdict",
]

DIAGNOSIS = "diagnosis.json"
"""Where a diagnosis lies, beside the journal that it is of."""


POINT = 0.01
MARGIN = 0.03
_GRID = 24  # looks at the curve, at equal distances in rollouts
_HALVINGS = 20  # of the examples, averaged: which half an example falls into is luck
_FLAT_ROWS = 40  # below, one row is more than 2.5 points, and a best that stays tells little
_WIDER = 4  # times the rollouts that serial search needed

Verdict = Literal["converged", "rising", "flat", "undecided"]

_ALTERNATIVE: Mapping[Verdict, str] = {
    "converged": (
        "Go: search wide with {wide} rollouts (4 × serial); the target is {target:.3f}, {aim}."
    ),
    "rising": (
        "No go: buy more serial rollouts first, {more}. At the pace of the last half, another"
        " {rollouts} would bring {low:.1f} to {high:.1f} points."
    ),
    "flat": (
        "No go: change the method (the metric's feedback, the proposer, what is learned). Serial"
        " rollouts brought no gain beyond chance, and more of them in parallel would not either."
    ),
    "undecided": (
        "No go yet: {rows} validation rows and {validated} validated candidates cannot tell a"
        " plateau from a slope. The second half rose by {low:.1f} to {high:.1f} points."
        " {need}, or average several draws: Validation(draws=…)."
    ),
}


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Whether serial search has converged, and what follows.

    Attributes:
        verdict: ``"converged"`` (go), ``"rising"``, ``"flat"`` or ``"undecided"`` (no go).
        gain: Score that the second half of the rollouts has brought, by the slope over it, with its
            interval.
        above_seed: How far the second half lies above the student.
        shape: Which of a constant, a line and a saturating curve fits the whole best.
        rollouts: Rollouts of the search.
        to_plateau: Rollouts after which a point or less was left; ``None`` where it has not
            converged.
        saturates: Rollouts after which a point would be left, by the saturating fit; ``None``
            without one.
        validated: Validated candidates.
        late_rise: How far the best score on all examples rose in the second half.
        margin: What a plateau may still gain in the second half, in score units.
        curve: (rollouts, score) of the incumbent, each half of the examples scoring what the other
            half chose.
        source: Where it was measured.
        ceiling: The ceiling of a speedup; ``None`` where no seconds were measured.
    """

    verdict: Verdict
    gain: PairedDifference
    above_seed: PairedDifference
    shape: str
    rollouts: int
    to_plateau: int | None
    saturates: int | None
    validated: int
    late_rise: float
    margin: float
    curve: tuple[tuple[float, float], ...]
    source: str
    ceiling: Ceiling | None = None

    @property
    def go(self) -> bool:
        """Whether going wide is worth a plan."""
        return self.verdict == "converged"

    @property
    def score(self) -> float:
        """Score of the plateau, or of the last half."""
        return self.above_seed.after

    @property
    def advice(self) -> str:
        """What to do, with its numbers."""
        more = "until the curve is flat"
        if self.saturates is not None and self.saturates > self.rollouts:
            more = f"up to about {self.saturates} by the saturating fit"
        target = add_points(self.score, 1)
        aim = "serial + 1 point"
        if target < self.score + POINT / 2:
            aim = "all there is: these rows have no point left to gain, so validate on harder ones"
        # An interval around 0 would end below the margin; its width falls with the root of the
        # rows.
        rows = math.ceil(self.gain.n * ((self.gain.high - self.gain.low) / 2 / self.margin) ** 2)
        need = (
            f"Validate on about {rows} rows"
            if rows > self.gain.n
            else "Search for longer, validate on more rows"
        )
        return _ALTERNATIVE[self.verdict].format(
            wide=_WIDER * (self.to_plateau or 0),
            target=target,
            aim=aim,
            more=more,
            rollouts=self.rollouts // 2,
            low=self.gain.low / POINT,
            high=self.gain.high / POINT,
            rows=self.gain.n,
            validated=self.validated,
            need=need,
        )

    def save(self, folder: Path) -> None:
        """Write it into a folder, as JSON, and as one page of Markdown and of HTML."""
        write_plain(folder / DIAGNOSIS, json.dumps(asdict(self), indent=2) + "\n")
        charts = {"curve": curve(self.curve, "rollouts", "score on the other half")}
        write_page(folder / "diagnosis", __package__, "diagnosis.md.j2", charts, d=self)


def add_points(score: float, points: float) -> float:
    """Return a score and so many points more, no more than 1 where the score is not."""
    return max(score, min(score + points * POINT, 1.0))


def read_diagnosis(place: Path | str) -> Diagnosis | None:
    """Return the diagnosis that lies in a folder, ``None`` where there is none.

    Raises:
        ArgumentValueError: It cannot be read.
        NotPlainFileError: It is a link or a special file.
    """
    from pydantic import TypeAdapter, ValidationError

    file = Path(place) / DIAGNOSIS
    if not os.path.lexists(file):
        return None
    try:
        return TypeAdapter(Diagnosis).validate_json(read_plain(file))
    except (OSError, ValidationError) as error:
        raise ArgumentValueError(
            "diagnosis", str(file), f"cannot be read: {error}", "Run combee diagnose."
        ) from error


def diagnosis_now(place: Path | str) -> Diagnosis | None:
    """Return the diagnosis of a folder that was diagnosed, as its journal says now.

    The margin is the default one. What was written is believed only where there is no journal to
    ask: of MLflow's run, or of ``dspy.GEPA``'s results.

    Raises:
        ArgumentValueError: It cannot be read.
    """
    diagnosis = read_diagnosis(place)
    try:
        journal_file(place)
    except ArgumentValueError:
        return diagnosis  # there is none
    return None if diagnosis is None else diagnose(Curve.of_run(place))


def serial_verdict(folder: Path) -> SerialVerdict | None:
    """Return what :func:`diagnosis_now` says of a folder: what a wide search asks before it begins.

    Raises:
        ArgumentValueError: It cannot be read.
    """
    diagnosis = diagnosis_now(folder)
    return None if diagnosis is None else SerialVerdict(diagnosis.verdict, diagnosis.advice)


def diagnose(
    curve: Curve,
    *,
    margin: float = MARGIN,
    confidence: float = 0.9,
    slots: int | None = None,
    seed: int = 0,
) -> Diagnosis:
    """Decide whether a serial search has converged.

    The best of many noisy validations is too good by chance, and rises by chance. So the examples
    are halved: each half chooses the best candidate so far, and the other half scores it. What is
    left is a curve without that bias.

    The first test is of the best score on all examples, which is what a search returns. Where it
    rose by one example or less in the second half of the rollouts (and by ``margin`` at most), on
    40 examples or more, that half has brought nothing, and the search is on a plateau.

    The second test looks there too. A line is fitted to each example's scores in the second half
    of the rollouts; its rise over the half, averaged, has an interval over examples
    (:func:`~combee_dspy.evaluation.paired_difference`), which also covers that neighbouring points
    are mostly the same candidate. And three curves are fitted to the whole: a constant, a line, and
    c − a·exp(−x/τ), compared by AICc (Hurvich and Tsai 1989).

    - a plateau: by the first test, or the interval of the rise ends below ``margin`` and a rising
      line is not the best fit. Then ``converged`` where the second half lies above the student
      (interval above 0), else ``flat``.
    - ``rising``: no plateau, the best score rose, and the interval of the rise lies above 0.
    - ``undecided``: neither is shown.

    Args:
        curve: What was measured.
        margin: What a plateau may still gain in the second half, in score units. 3 points by
            default: a plateau to within that is what about 100 validation rows can show where
            nothing moves.
        confidence: Level of both intervals. 0.9 by default, so that each of the two one-sided
            tests, for a rise and for a plateau, errs once in 20 (Schuirmann 1987).
        slots: Calls that the service answers at once, for the ceiling.
        seed: Halves the examples.

    Raises:
        ArgumentValueError: ``margin`` or ``slots`` is out of its range.
    """
    import numpy as np

    for name, value, fine in (
        ("margin", margin, 0 < margin < 1),
        ("slots", slots, slots is None or slots > 0),
    ):
        if not fine:
            raise ArgumentValueError(
                name, value, "is out of its range", "Give score units in 0 to 1, slots from 1."
            )
    scores = np.asarray(curve.scores, dtype=float)
    grid = np.linspace(curve.rollouts[0], curve.total, _GRID)
    unbiased = _incumbents(scores, np.searchsorted(curve.rollouts, grid, side="right") - 1, seed)
    late = grid >= (grid[0] + grid[-1]) / 2
    centred = grid[late] - grid[late].mean()
    level = unbiased[late].mean(axis=0)
    half_rise = (centred @ unbiased[late]) / (centred @ centred) * float(np.ptp(grid[late])) / 2
    gain = _difference(level - half_rise, level + half_rise, confidence, seed)
    above = _difference(scores[0], level, confidence, seed)
    means = unbiased.mean(axis=1)
    shape, saturating = _shape(grid - grid[0], means)
    late_rise, example = curve.late_rise(), 1 / scores.shape[1]
    stays = scores.shape[1] >= _FLAT_ROWS and late_rise <= min(example, margin) * (1 + 1e-9)
    flat_by_interval = gain.low <= 0 and gain.high < margin and shape != "line"
    verdict: Verdict = "undecided"
    if stays or flat_by_interval:
        verdict = "converged" if above.low > 0 else "flat"
    elif late_rise > 0 and gain.low > 0:
        verdict = "rising"
    near = [
        math.ceil(x) for x, mean in zip(grid, means, strict=True) if mean >= above.after - POINT
    ]
    return Diagnosis(
        verdict,
        gain,
        above,
        shape,
        curve.total,
        near[0] if verdict == "converged" else None,
        None if saturating is None else math.ceil(saturating + float(grid[0])),
        len(curve.scores),
        late_rise,
        margin,
        tuple(zip(grid.tolist(), means.tolist(), strict=True)),
        curve.source,
        None if slots is None else curve.ceiling(slots),
    )


def _difference(before: Any, after: Any, confidence: float, seed: int) -> PairedDifference:
    return paired_difference(before.tolist(), after.tolist(), confidence=confidence, seed=seed)


def _incumbents(scores: Any, latest: Any, seed: int) -> Any:
    """Return the best candidate's scores so far, on examples that did not choose it."""
    import numpy as np

    generator = np.random.default_rng(derive_seed(seed, "diagnosis", "halves"))
    unbiased = np.zeros((len(latest), scores.shape[1]))
    for _ in range(_HALVINGS):
        order = generator.permutation(scores.shape[1])
        for chosen, scored in ((order[::2], order[1::2]), (order[1::2], order[::2])):
            means = scores[:, chosen].mean(axis=1)
            best = [int(np.argmax(means[: last + 1])) for last in latest]
            unbiased[:, scored] += scores[best][:, scored] / _HALVINGS
    return unbiased


def _shape(x: Any, y: Any) -> tuple[str, float | None]:
    """Return the best fit's name, and where a point is left by it if it is the saturating one."""
    import numpy as np
    from scipy.optimize import curve_fit

    span = float(x[-1])

    def saturating(at: Any, ceiling: float, fall: float, tau: float) -> Any:
        return ceiling - fall * np.exp(-at / tau)

    line = np.polynomial.polynomial.polyfit(x, y, 1)
    fits: dict[str, tuple[int, Callable[[Any], Any]]] = {
        "constant": (1, lambda at: np.full(at.shape, y.mean())),
        "line": (2, lambda at: line[0] + line[1] * at),
    }
    law: Any = None
    try:
        start = (float(y[-1]), max(float(y[-1] - y[0]), 1e-3), span / 4)
        law, _ = curve_fit(
            saturating, x, y, p0=start, bounds=([-1, 0, span / 100], [2, 2, 4 * span])
        )
        fits["saturating"] = (3, lambda at: saturating(at, *law))
    except RuntimeError:
        pass  # it does not converge: the others are left
    n = y.size

    def criterion(name: str) -> float:
        k, fit = fits[name][0] + 1, fits[name][1]
        # A fit better than scores can be told apart is no better than another such one.
        return (
            n * math.log(max(float(np.mean((y - fit(x)) ** 2)), 1e-8))
            + 2 * k
            + 2 * k * (k + 1) / (n - k - 1)
        )

    best = min(fits, key=criterion)
    if best == "line" and line[1] <= 0:
        best = "falling"
    left = (
        None
        if law is None or best != "saturating"
        else float(law[2] * math.log(max(law[1] / POINT, 1.0)))
    )
    return best, left
