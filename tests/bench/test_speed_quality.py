from __future__ import annotations

import pytest

from combee_dspy.bench import MARGIN, SpeedOptions, SpeedRun, compare_over_seeds, speed_svg, summarize_speed
from combee_dspy.exceptions import ArgumentValueError

SEEDS, EXAMPLES = 10, 40


def of(reference: list[list[float]], scores: list[list[float]]):
    return compare_over_seeds("gepa", reference, scores, seconds=(120.0, 10.0), seed=0)


def run(method: str, after: list[float], *, seed: int = 0, repeat: int | None = None, seconds: float | None = None):
    return SpeedRun(
        method=method,
        seed=seed,
        repeat=repeat,
        seconds=seconds,
        wall_seconds=seconds or 1.0,
        updates=1,
        sizes=(),
        picked=None,
        calls={"task": 10},
        tokens={"task": 100},
        written={"task": 10},
        speculative=None,
        slot_use=None,
        bound=None,
        validation=1.0,
        before=(0.0,) * len(after),
        after=tuple(after),
    )


def test_the_same_scores_on_every_seed_get_a_multiple() -> None:
    scores = [[1.0, 0.0] * (EXAMPLES // 2)] * SEEDS
    found = of(scores, scores)
    assert (found.comparable, found.times_faster, found.margin) == (True, 12.0, MARGIN)


def test_less_learned_on_every_seed_gets_no_multiple() -> None:
    found = of([[1.0] * EXAMPLES] * SEEDS, [[1.0] * 30 + [0.0] * 10] * SEEDS)
    assert found.high < 0
    assert (found.comparable, found.times_faster) == (False, None)


def test_one_bad_seed_in_ten_gets_no_multiple_though_one_seed_would_have() -> None:
    good, bad = [1.0] * EXAMPLES, [0.0] * EXAMPLES
    assert of([good], [good]).times_faster is not None
    found = of([good] * SEEDS, [good] * 9 + [bad])
    assert found.low < -MARGIN
    assert found.times_faster is None


def test_scores_must_pair_seed_by_seed() -> None:
    for scores in ([], [[1.0]], [[1.0, 0.0], [1.0]], [[1.0, 0.0]] * 2):
        with pytest.raises(ArgumentValueError, match="scores"):
            of([[1.0, 0.0]], scores)


@pytest.mark.parametrize(("worst", "allowed"), [(1.0, True), (0.0, False)])
def test_the_multiple_is_of_medians_and_stands_where_held_out_on_all_seeds_allows_it(
    worst: float, allowed: bool
) -> None:
    known = [run("gepa", [1.0] * 4, repeat=at, seconds=took) for at, took in enumerate((90.0, 400.0, 100.0))]
    known += [run("combee", [1.0] * 4, repeat=at, seconds=took) for at, took in enumerate((20.0, 1.0, 10.0))]
    for seed in range(SEEDS):
        known += [run("gepa", [1.0] * 4, seed=seed), run("combee", [1.0, 1.0, 1.0, worst], seed=seed)]
    first, second = summarize_speed(("gepa", "combee"), known)
    assert (first.seconds, second.seconds) == (100.0, 10.0)
    assert second.seconds_of == (20.0, 1.0, 10.0)
    assert second.median.seconds == 10.0
    assert second.seeds == tuple(range(SEEDS))
    assert second.versus is not None
    assert second.versus.times_faster == (10.0 if allowed else None)
    drawn = speed_svg([first, second], SpeedOptions())
    assert ("10.0 ×" in drawn) is allowed
    assert ("not comparable" in drawn) is not allowed


def test_a_seed_that_one_method_has_not_finished_does_not_count_yet() -> None:
    known = [run(name, [1.0], repeat=0, seconds=9.0) for name in ("gepa", "combee")]
    known += [run("gepa", [1.0], seed=0), run("combee", [1.0], seed=0), run("gepa", [0.0], seed=1)]
    assert [result.seeds for result in summarize_speed(("gepa", "combee"), known)] == [(0,), (0,)]


def test_a_method_without_a_timed_run_has_no_result() -> None:
    timed = run("gepa", [1.0], repeat=0, seconds=9.0)
    assert [result.method for result in summarize_speed(("gepa", "combee"), [timed])] == ["gepa"]


def test_a_timed_run_that_scored_otherwise_than_its_repetition_is_told() -> None:
    known = [run("gepa", [1.0], repeat=0, seconds=9.0), run("gepa", [0.0], seed=0)]
    assert summarize_speed(("gepa",), known)[0].repeated is False
