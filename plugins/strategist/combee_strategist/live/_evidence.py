"""What served requests say of lessons and of slices. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from combee_dspy.lessons import BookLesson, word_vectors
from combee_strategist.live._served import ServedRow

__all__ = ["Drift", "by_lesson", "drifted", "moved"]

# The latest requests about a lesson.
_LATEST = 8
_WINDOWS = (4, 6, 8, 12, 16, 24, 32, 48, 64, 96)
# Labelled requests to a false alarm. Of each that comes, every window is asked of its slice, and of
# its version's part of it; and of the mix two questions.
_PEACE = 10_000
_CHANCE = 1 / (_PEACE * (2 * len(_WINDOWS) + 2))
_CHANCE_WHOLE = 0.01
_RIGHT = 0.5  # a score from which a request counts as right


def by_lesson(
    served: Sequence[BookLesson], rows: Sequence[ServedRow]
) -> Mapping[int, Sequence[ServedRow]]:
    """Return the latest rows about each lesson, by the lesson's position."""
    about: dict[int, list[ServedRow]] = defaultdict(list)
    if not served or not rows:
        return about
    texts = [" ".join(map(str, row.trace.inputs.values())) for row in rows]
    vectors = word_vectors([*(lesson.text for lesson in served), *texts])
    near = (vectors[len(served) :] @ vectors[: len(served)].T).toarray()
    for row, likeness in zip(rows, near, strict=True):
        if likeness.max() > 0:
            about[int(likeness.argmax())].append(row)
    return {lesson: found[-_LATEST:] for lesson, found in about.items()}


@dataclass(frozen=True, slots=True)
class Drift:
    """A slice in which something that was right is right no longer.

    Attributes:
        slice: Its name.
        since: When the first of its latest wrong answers was labelled.
        why: What speaks for it, in a sentence.
        whole: Whether most that was right is wrong: rows from before say nothing any more.
    """

    slice: str
    since: float
    why: str
    whole: bool


@dataclass(frozen=True, slots=True)
class _Fall:
    """How clearly the latest scores of some requests have fallen; ``whole`` as of a drift."""

    chance: float
    since: float
    why: str
    whole: bool


def drifted(rows: Sequence[ServedRow], known: Mapping[str, float], serving: str) -> list[Drift]:
    """Return the slices whose latest scores have clearly fallen.

    Of a slice's latest n requests r are right; of all since its last drift, k of N. If all had the
    same chance, r is hypergeometric, whatever that chance is (Fisher's exact test). It has drifted
    where P(at most r of n) ≤ 1/220,000 for one of n = 4, 6, 8, 12 … 96. A few show a fall of
    everything, many that of a minority. The whole slice has drifted where its earlier share is
    above ½, and ½ is refuted at 0.01 in one of these windows.

    The same is asked of the requests that the serving version has answered: what an earlier version
    got wrong hides that what is right now goes wrong. Its answers in the shadow of its trial are
    left out. Where people label only what is wrong, these were labelled for what another version
    got wrong, so that each promotion would look like a drift.

    A false alarm comes at most once in 10,000 labelled requests on average, all slices together,
    however often is looked: with each request come 22 tests, ten of its slice, ten of what its
    version answered there and two of the mix, and the expected number of false alarms is at most
    the sum of their levels (Bonferroni; Dunn, "Multiple comparisons among means", JASA 56, 1961).
    Who looks less often finds no more.

    Args:
        rows: Requests in the order of their labels.
        known: When each slice last drifted.
        serving: The version that serves, as traces name it.
    """
    by_slice: dict[str, list[ServedRow]] = defaultdict(list)
    for row in rows:
        if row.at >= known.get(row.slice, 0.0):
            by_slice[row.slice].append(row)
    parts = list[tuple[str, list[ServedRow]]]()
    for name, members in sorted(by_slice.items()):
        own = [row for row in members if row.trace.prompt == serving]
        # Of one version all are its own.
        parts += [
            (name, part) for part in ([members] if len(own) == len(members) else [members, own])
        ]
    falls: dict[str, list[_Fall]] = defaultdict(list)
    for (name, _), fall in zip(parts, _falls([part for _, part in parts]), strict=True):
        if fall is not None:
            falls[name].append(fall)
    drifts = []
    for name, of_slice in falls.items():
        clearest = min(of_slice, key=lambda fall: fall.chance)
        if clearest.chance <= _CHANCE:
            whole = any(fall.whole for fall in of_slice)
            drifts.append(Drift(name, clearest.since, clearest.why, whole))
    return drifts


def _falls(parts: Sequence[Sequence[ServedRow]]) -> list[_Fall | None]:
    """Return the clearest fall of each part, of any window; ``None`` of too few requests, or
    without a wrong answer.
    """
    from scipy import stats

    if not parts:
        return []
    cuts = [_cut(part) for part in parts]
    # At once: that takes little longer than of one part.
    sizes, right, count, in_all = (np.concatenate(column) for column in zip(*cuts, strict=True))
    chances = stats.hypergeom.cdf(right, count, in_all, sizes)
    refuted = stats.binom.cdf(right, sizes, 0.5) <= _CHANCE_WHOLE
    before, earlier = in_all - right, count - sizes
    whole = refuted & (before > earlier / 2)
    falls, begin = list[_Fall | None](), 0
    for part, cut in zip(parts, cuts, strict=True):
        places = range(begin, begin + len(cut[0]))
        begin = places.stop
        place = min(places, key=lambda place: float(chances[place]), default=None)
        latest = [] if place is None else [row for row in part[-sizes[place] :] if _is_wrong(row)]
        if place is None or not latest:
            falls.append(None)
            continue
        why = (
            f"{right[place]} of the last {sizes[place]} are right,"
            f" {before[place]} of {earlier[place]} before"
        )
        entire = bool(whole[places.start : places.stop].any())
        falls.append(_Fall(float(chances[place]), latest[0].at, why, entire))
    return falls


def _cut(rows: Sequence[ServedRow]) -> tuple[np.ndarray, ...]:
    """Return, of each window, its size, how many are right in it, and of all, how many there are
    and how many are right.
    """
    count, wrong = len(rows), np.cumsum([0, *(_is_wrong(row) for row in reversed(rows))])
    sizes = np.array([size for size in _WINDOWS if size < count], dtype=int)
    all_right = np.full(len(sizes), count - wrong[-1])
    return sizes, sizes - wrong[sizes], np.full(len(sizes), count), all_right


def moved(rows: Sequence[ServedRow], since: float) -> list[str]:
    """Return what of the mix of requests and of failures has moved, in sentences.

    The population stability index, Σ (q − p) ln(q / p) over slices, compares shares p before a
    moment with shares q after it; 0.2 is what credit scoring calls a shift (Siddiqi, "Credit Risk
    Scorecards", 2006). Fisher's exact test of each slice, corrected for their number, says at
    1/220,000 that it is no chance: of many slices most are rare, and of rare ones χ² is no law.

    Args:
        rows: Labelled requests.
        since: The moment.
    """
    sentences = []
    for name, part in (("requests", rows), ("failures", [row for row in rows if _is_wrong(row)])):
        before = Counter(row.slice for row in part if row.at < since)
        after = Counter(row.slice for row in part if row.at >= since)
        index, chance = _stability(before, after)
        if index >= 0.2 and chance <= _CHANCE:
            sentences.append(f"the mix of {name} has moved: PSI {index:.2f}, p {chance:.1g}")
    return sentences


def _stability(before: Counter[str], after: Counter[str]) -> tuple[float, float]:
    """Return the index, and how likely chance gives so much at most."""
    from scipy import stats

    names = sorted({*before, *after})
    if len(names) < 2 or not before or not after:
        return 0.0, 1.0
    old, new = (np.array([side[name] for name in names]) for side in (before, after))
    both = old + new
    # One request more on each side, divided as all are, so that no share is 0.
    first, second = ((side + both / both.sum()) / (side.sum() + 1) for side in (old, new))
    index = float(((second - first) * np.log(second / first)).sum())
    law = stats.hypergeom(both.sum(), both, new.sum())
    tails = np.concatenate([law.cdf(new), law.sf(new - 1)])
    return index, min(1.0, len(tails) * float(tails.min()))


def _is_wrong(row: ServedRow) -> bool:
    return row.trace.score is None or row.trace.score < _RIGHT
