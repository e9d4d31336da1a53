"""How often a diagnosis of serial search is wrong, of simulated searches whose truth is known."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

import numpy as np

from combee_dspy.streams import derive_seed
from combee_strategist.planning import Curve, diagnose
from plugins.bench.tests.sizes import show, size

KINDS: Mapping[str, Callable[[float], float]] = {
    "converged": lambda x: 0.4 + 0.25 * (1 - float(np.exp(-10 * x))),
    "rising": lambda x: 0.4 + 0.25 * x,
    "flat": lambda x: 0.4,
    "noisy": lambda x: 0.4 + 0.25 * (1 - float(np.exp(-10 * x))),
}
_NOISY_ROWS, _NOISY_LUCK = 20, 0.4
_VALIDATED, _ROLLOUTS = 31, 1_200


def curve(kind: str, seed: int) -> Curve:
    """Return one simulated search."""
    generator = np.random.default_rng(derive_seed(seed, "diagnose", kind))
    rows, luck = (
        (_NOISY_ROWS, _NOISY_LUCK)
        if kind == "noisy"
        else (size("rows", 200), size("luck", 10) / 100)
    )
    # An example is answered by texts above its difficulty, but for what a coin decides, with the
    # same mean.
    difficulty = generator.random(rows)
    scores = []
    for place in np.linspace(0, 1, _VALIDATED):
        level = KINDS[kind](float(place))
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
    verdicts = {
        kind: Counter(diagnose(curve(kind, seed), seed=seed).verdict for seed in range(searches))
        for kind in KINDS
    }
    for kind, counts in verdicts.items():
        show((kind, dict(counts)))
    assert verdicts["converged"]["converged"] >= searches / 2
    assert verdicts["rising"]["rising"] >= 0.8 * searches
    wrong = sum(verdicts[kind]["converged"] for kind in ("rising", "flat", "noisy"))
    assert wrong <= max(1, 0.06 * searches)
    assert verdicts["noisy"]["undecided"] >= 0.8 * searches
