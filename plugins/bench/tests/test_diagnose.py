"""How often a diagnosis of serial search is wrong, of simulated searches whose truth is known."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from combee_dspy.streams import derive_seed
from combee_strategist.planning import Curve, diagnose
from plugins.bench.tests.sizes import show, size


@dataclass(frozen=True, slots=True)
class Kind:
    """Simulated searches: how good candidates are by the share of rollouts spent, on how many rows,
    and how often a coin answers.
    """

    level: Callable[[float], float]
    rows: int
    luck: float = 0.1


def _saturating(share: float) -> float:
    return 0.4 + 0.25 * (1 - float(np.exp(-10 * share)))


def _line(share: float) -> float:
    return 0.4 + 0.25 * share


KINDS: Mapping[str, Kind] = {
    **{
        f"{name}, {rows} rows": Kind(level, rows)
        for rows in (200, 50)
        for name, level in (
            ("converged", _saturating),
            ("rising", _line),
            ("slow: 5 points a half", lambda share: 0.4 + 0.1 * share),
            ("flat", lambda share: 0.4),
        )
    },
    "noisy, 20 rows": Kind(_saturating, 20, luck=0.4),
    "noisy, 50 rows": Kind(_saturating, 50, luck=0.4),
    "noisy and rising, 50 rows": Kind(_line, 50, luck=0.4),
}
_VALIDATED, _ROLLOUTS = 31, 1_200


def curve(kind: str, seed: int) -> Curve:
    """Return one simulated search."""
    generator = np.random.default_rng(derive_seed(seed, "diagnose", kind))
    rows, luck = KINDS[kind].rows, KINDS[kind].luck
    # An example is answered by texts above its difficulty, but for what a coin decides, with the
    # same mean.
    difficulty = generator.random(rows)
    scores = []
    for place in np.linspace(0, 1, _VALIDATED):
        level = KINDS[kind].level(float(place))
        coin = generator.random(rows) < luck
        scores.append(
            tuple(map(float, np.where(coin, generator.random(rows) < level, difficulty < level)))
        )
    step = _ROLLOUTS // _VALIDATED
    return Curve(
        tuple(step * (number + 1) for number in range(_VALIDATED)),
        tuple(scores),
        _ROLLOUTS,
        (),
        f"{kind} {seed}",
    )


def test_go_is_said_of_what_has_converged_and_of_little_else() -> None:
    searches = size("searches", 6)
    verdicts, above_flat = {}, 0
    for kind in KINDS:
        diagnoses = [diagnose(curve(kind, seed), seed=seed) for seed in range(searches)]
        verdicts[kind] = Counter(diagnosis.verdict for diagnosis in diagnoses)
        above_flat += sum(each.verdict == "rising" and each.late_rise <= 0 for each in diagnoses)
        show((kind, dict(verdicts[kind])))
    assert above_flat == 0
    assert verdicts["converged, 200 rows"]["converged"] >= searches / 2
    assert verdicts["converged, 50 rows"]["converged"] >= searches / 2
    assert verdicts["rising, 200 rows"]["rising"] >= 0.8 * searches
    no_go = [kind for kind in KINDS if not kind.startswith(("converged", "noisy,"))]
    wrong = sum(verdicts[kind]["converged"] for kind in no_go)
    assert wrong <= max(2, 0.06 * searches * len(no_go))
    assert verdicts["noisy, 20 rows"]["undecided"] >= 0.8 * searches
