"""How often each verdict is wrong, over simulated studies whose truth is known."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import accumulate

import numpy as np
import pytest
from numpy.random import Generator

from combee_bench.options import HELDOUT, MARGIN, CompareOptions, SpeedOptions
from combee_bench.statistics import fewest_examples, paired_interval
from combee_bench.surroundings import load_rows
from combee_dspy.diversity import Restart, UpdateView
from combee_dspy.evaluation import (
    Calibration,
    Calibrator,
    calibrate,
    clearly_worse,
    detectable_difference,
    paired_difference,
)
from combee_dspy.exceptions import CalibrationFailedError
from combee_dspy.search._choices import passes_screen
from combee_dspy.stopping import Patience, RunView, Target
from combee_dspy.streams import derive_seed
from plugins.bench.tests.sizes import show, size

_LIFT = 0.02  # what each update of a search that learns adds


Study = Callable[[Generator], bool]


def _studies(margin: float) -> Iterator[tuple[str, str, float | None, Study]]:
    yield from _no_worse(margin)
    yield from _held_out()
    for n in (20, 40, 80):
        for truth, stated in ((0.6, 0.025), (0.7, 0.025), (0.9, None)):
            yield (
                "calibration passes at 0.7",
                f"correlation {truth:g}, {n} pairs",
                stated,
                _calibrated(truth, n),
            )
    for truth in (0.6, 0.7, 0.9):
        truth_seen = f"correlation {truth:g}, looked at 20, 40, 80 and 160 pairs"
        yield "calibration ends a run at 0.7", truth_seen, None, _looked_at(truth, 160)
    for drop, stated in ((0.0, 0.25), (0.1, None), (-0.1, None)):
        screened = _screened(8, drop, whole=False)
        yield "screen refuses a child", f"8 of a minibatch, {_moved(-drop)}", stated, screened
    yield (
        "minibatch accepts a child",
        "3 examples, as good as its parent",
        None,
        _screened(3, 0.0, whole=True),
    )
    for drop, stated in ((0.0, 0.05), (0.1, None)):
        for n in (20, 60):
            reverted = _reverted(n, drop)
            yield (
                "trunk takes an update back",
                f"{n} validation examples, {_moved(-drop)}",
                stated,
                reverted,
            )
    yield (
        "patience of 3 stops",
        "60 examples, 2 points an update, in 10 updates",
        None,
        _patience(60),
    )
    for lift in (0.0, _LIFT):
        truth_seen = f"60 examples, {100 * lift:g} points an update, in 10 updates"
        yield "restart begins anew", truth_seen, None, _restarted(60, lift)
    yield (
        "target is called reached",
        "60 examples, 20 texts 3 points below it",
        None,
        _target(60, 20, 0.03),
    )


def _moved(change: float) -> str:
    return (
        "as good"
        if not change
        else f"{abs(100 * change):g} points {'better' if change > 0 else 'worse'}"
    )


def _pair(
    generator: Generator, n: int, change: float, differ: float
) -> tuple[list[float], list[float]]:
    """Draw right-or-wrong scores before and after, whose mean changes so much where so large a
    share differs.
    """
    won, lost = (differ + change) / 2, (differ - change) / 2
    alike = (1 - differ) / 2
    kinds = generator.choice(4, n, p=[won, lost, alike, alike])
    return [float(kind in (1, 2)) for kind in kinds], [float(kind in (0, 2)) for kind in kinds]


def _no_worse(margin: float) -> Iterator[tuple[str, str, float | None, Study]]:
    fewest = fewest_examples(100 * margin)

    def binary(n: int, differ: float, seeds: int) -> Study:
        def study(generator: Generator) -> bool:
            # Half of what differs belongs to the example, whatever the seed.
            shared = generator.random(n) < 0.5
            common, own = (
                generator.choice(
                    [1.0, -1.0, 0.0],
                    shape,
                    p=[(differ - margin) / 2, (differ + margin) / 2, 1 - differ],
                )
                for shape in ((1, n), (seeds, n))
            )
            return paired_interval(np.where(shared, common, own)).low > -margin

        return study

    def graded(n: int) -> Study:
        def study(generator: Generator) -> bool:
            return (
                paired_interval(np.clip(generator.normal(-margin, 0.15, (1, n)), -1, 1)).low
                > -margin
            )

        return study

    name, by = "no worse than the first", f"{100 * margin:g} points worse"
    for n in sorted({fewest, 2 * fewest, 1_000}):
        for differ in (max(0.03, 1.5 * margin), 0.1, 0.3):
            yield name, f"{by}, {n} examples, {differ:.0%} differ", 0.025, binary(n, differ, 1)
    yield (
        name,
        f"{by}, {2 * fewest} examples, 5 seeds, 10% differ",
        0.025,
        binary(2 * fewest, 0.1, 5),
    )
    yield name, f"{by}, {2 * fewest} examples, graded scores", 0.025, graded(2 * fewest)


def _held_out() -> Iterator[tuple[str, str, float | None, Study]]:
    def is_shown(n: int, change: float, differ: float) -> Study:
        def study(generator: Generator) -> bool:
            before, after = _pair(generator, n, change, differ)
            changes = [new - old for old, new in zip(before, after, strict=True)]
            return _shows_gain(changes.count(1.0), changes.count(-1.0), n)

        return study

    for n in (20, 100):
        yield (
            "held-out gain above 0",
            f"no gain, {n} examples, 20% differ",
            0.025,
            is_shown(n, 0.0, 0.2),
        )
    least = detectable_difference(200, discordance=0.2)
    truth = f"the detectable {100 * least:.1f} points, 200 examples, 20% differ (power)"
    yield "held-out gain above 0", truth, 0.8, is_shown(200, least, 0.2)


@cache
def _shows_gain(won: int, lost: int, n: int) -> bool:
    # Studies with the same counts are one study to the interval, and its resampling is what takes
    # time.
    changes = [1.0] * won + [-1.0] * lost + [0.0] * (n - won - lost)
    return (
        paired_difference(
            [float(change < 0) for change in changes], [float(change > 0) for change in changes]
        ).low
        > 0
    )


def _judged(generator: Generator, truth: float, n: int) -> list[tuple[float, float]]:
    strength = 2 * math.sin(
        math.pi * truth / 6
    )  # Pearson's of a bivariate normal with that rank correlation
    first = generator.normal(size=n)
    second = strength * first + math.sqrt(1 - strength**2) * generator.normal(size=n)
    return list(zip(first, second, strict=True))


def _calibrated(truth: float, n: int) -> Study:
    return lambda generator: calibrate(_judged(generator, truth, n)).passed


def _looked_at(truth: float, n: int) -> Study:
    def study(generator: Generator) -> bool:
        calibrator = Calibrator(Calibration(lambda *given: 0.0))
        try:
            for pair in _judged(generator, truth, n):
                calibrator.add(*pair)
                calibrator.decide()
        except CalibrationFailedError:
            return True
        return False

    return study


def _screened(n: int, drop: float, *, whole: bool) -> Study:
    def study(generator: Generator) -> bool:
        return passes_screen(*_pair(generator, n, -drop, 0.3), whole=whole)[0] is whole

    return study


def _reverted(n: int, drop: float) -> Study:
    def study(generator: Generator) -> bool:
        before, after = _pair(generator, n, -drop, 0.3)
        return clearly_worse(after, before)

    return study


def _texts(generator: Generator, n: int, rights: Sequence[float]) -> list[list[float]]:
    return [[float(right) for right in generator.random(n) < share] for share in rights]


def _history(scores: Sequence[Sequence[float]]) -> tuple[tuple[int, float], ...]:
    return tuple((number - 1, sum(row) / len(row)) for number, row in enumerate(scores))


def _patience(n: int) -> Study:
    rule = Patience(updates=3)

    def study(generator: Generator) -> bool:
        history = _history(_texts(generator, n, [0.5 + _LIFT * number for number in range(11)]))
        return any(
            rule.check(RunView(updates=k, validation_history=history[: k + 1]))
            for k in range(1, 11)
        )

    return study


def _restarted(n: int, lift: float) -> Study:
    rule = Restart()

    def study(generator: Generator) -> bool:
        scores = [
            score
            for _, score in _history(
                _texts(generator, n, [0.5 + lift * number for number in range(11)])
            )
        ]
        views = [UpdateView(best) for best in accumulate(scores, max)]
        return any(rule.due(views[: k + 1]) for k in range(1, 11))

    return study


def _target(n: int, texts: int, below: float) -> Study:
    def study(generator: Generator) -> bool:
        history = _history(_texts(generator, n, [0.6] * texts))
        return (
            Target(score=0.6 + below).check(RunView(updates=texts, validation_history=history))
            is not None
        )

    return study


@pytest.fixture(scope="module")
def rates() -> dict[tuple[str, str], float]:
    """Return how often each verdict is given, by verdict and truth."""
    rates, studies = {}, size("studies", 20)
    for name, truth, stated, study in _studies(MARGIN / 100):
        generator = np.random.default_rng(derive_seed(size("seed", 0), "verdicts", name, truth))
        rate = rates[name, truth] = sum(study(generator) for _ in range(studies)) / studies
        promise = "" if stated is None else f" (stated {stated:.1%})"
        show(f"{name}, {truth}: {rate:.1%}{promise} ± {math.sqrt(rate * (1 - rate) / studies):.1%}")
    return rates


def rate(rates: dict[tuple[str, str], float], verdict: str, truth: str) -> float:
    (match,) = [
        rate for (name, where), rate in rates.items() if name.startswith(verdict) and truth in where
    ]
    return match


def test_every_verdict_keeps_what_it_states(rates: dict[tuple[str, str], float]) -> None:
    errors = [
        (name, truth, stated)
        for name, truth, stated, _ in _studies(MARGIN / 100)
        if stated is not None and "power" not in truth
    ]
    assert len(errors) > 15
    for name, truth, stated in errors:
        # Four standard errors of as many studies of the stated rate.
        error = (stated * (1 - stated) / size("studies", 20)) ** 0.5
        assert rates[name, truth] <= stated + 4 * error, (name, truth)


def test_what_is_true_is_said_more_often_than_what_is_not(
    rates: dict[tuple[str, str], float],
) -> None:
    assert rate(rates, "calibration passes", "0.9, 80") > rate(
        rates, "calibration passes", "0.6, 80"
    )
    assert rate(rates, "calibration ends", "0.6") > rate(rates, "calibration ends", "0.9")
    assert rate(rates, "restart", " 0 points") > rate(rates, "restart", " 2 points")


def test_the_default_sizes_can_show_the_default_margin() -> None:
    assert CompareOptions().margin == SpeedOptions().margin
    assert SpeedOptions().heldout == HELDOUT >= fewest_examples(CompareOptions().margin)
    loaded = load_rows("formula-mini", {"task": "compute"}, train=24, validation=6, heldout=HELDOUT)
    assert len(loaded.heldout) == HELDOUT
