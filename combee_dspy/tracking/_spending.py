"""What a search has paid for what it reached: by update, by accepted prompt, and as a whole."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from combee_dspy.journal import Reader, journal_file
from combee_dspy.tracking._queries import candidates_of, run_number
from combee_dspy.tracking._sql import RUNS

__all__ = ["bought_by", "spending", "spending_of", "spent_of"]

_EFFECTS = """
SELECT e.step, e.started, e.ended, e.kind = 'rollout' AS rollouts,
    s.tokens, s.dollars, s.gpu_seconds, s.unpriced
FROM effect e LEFT JOIN (SELECT effect, sum(prompt_tokens + completion_tokens) AS tokens,
    total(dollars) AS dollars, sum(gpu_seconds) AS gpu_seconds, sum(dollars IS NULL) AS unpriced
  FROM usage GROUP BY effect) s ON s.effect = e.id
WHERE e.run = ? AND e.purpose <> 'heldout' AND e.kind <> 'decision' ORDER BY e.ended"""
_AMOUNTS = ("rollouts", "tokens", "dollars", "gpu_seconds", "unpriced")
_Row = Mapping[str, Any]


def spending(place: Path | str, run: int | str | None = None) -> list[dict[str, Any]]:
    """Return what a run's search has paid for what it reached, its reading of the held-out set left
    out.

    Args:
        place: A ``log_dir``, or its journal.
        run: Id or name of one run; the newest by default.

    Returns:
        A row for each update, with what it alone has paid, and then one for each accepted
        (validated) prompt, with all that had been paid when it was. Each has ``of``, ``rollouts``,
        ``tokens``, ``dollars`` (``None`` where one price is not known), ``gpu_seconds`` (``None``
        where no GPUs are declared), ``seconds`` (wall clock; an update may overlap its neighbours),
        ``validation`` (of an update the best so far) and ``heldout``: of the first and of the
        chosen prompt, since nothing else may read it.

    Raises:
        ArgumentValueError: There is no journal or no such run.
    """
    with Reader(journal_file(place), checked=True) as reader:
        return spending_of(reader, run_number(reader, run))


def spending_of(reader: Reader, run: int) -> list[dict[str, Any]]:
    """Return what :func:`spending` does, of a journal that is open."""
    row = reader.rows(RUNS, (run,))[0]
    effects = [dict(one) for one in reader.rows(_EFFECTS, (run,))]
    known = sorted(
        (one for one in candidates_of(reader, run) if one["validated_at"]),
        key=lambda one: float(one["validated_at"]),
    )
    found, best = [], None
    for step in sorted({one["step"] for one in effects}):
        own = [one for one in effects if one["step"] == step]
        best = max((one["score"] for one in known if one["step"] <= step), default=best)
        seconds = max(one["ended"] for one in own) - min(one["started"] for one in own)
        what = "before the first update" if step < 0 else f"update {step}"
        found.append(
            {"of": what, **_sums(own), "seconds": seconds, "validation": best, "heldout": None}
        )
    paid = bought_by(reader, run)
    for one in known:
        heldout = (
            row["heldout_after"]
            if one["selected"]
            else row["heldout_before"]
            if one["index"] == 0
            else None
        )
        sums = {**paid(one["validated_at"]), "seconds": one["validated_at"] - row["created"]}
        found.append(
            {
                "of": f"prompt {one['candidate'][:8]}",
                **sums,
                "validation": one["score"],
                "heldout": heldout,
            }
        )
    return found


def bought_by(reader: Reader, run: int) -> Callable[[float], dict[str, Any]]:
    """Return what says what a run's search had paid by a time."""
    effects = [dict(one) for one in reader.rows(_EFFECTS, (run,))]
    ends = [one["ended"] for one in effects]
    sums = [
        list(itertools.accumulate((one[name] or 0 for one in effects), initial=0))
        for name in _AMOUNTS
    ]
    gpus = any(one["gpu_seconds"] is not None for one in effects)

    def paid(at: float) -> dict[str, Any]:
        place = bisect.bisect_right(ends, at)
        return _known(
            {name: one[place] for name, one in zip(_AMOUNTS, sums, strict=True)}, gpus=gpus
        )

    return paid


def spent_of(reader: Reader, run: int) -> dict[str, Any]:
    """Return what a run's search has paid as a whole, with its wall-clock seconds, those between
    two parts left out.
    """
    effects = [dict(one) for one in reader.rows(_EFFECTS, (run,))]
    # Each part of a run begins with an audit line; a run that was killed before its first has none.
    begun = [
        row[0]
        for row in reader.rows(
            "SELECT at FROM event WHERE run = ? AND kind = 'audit' ORDER BY id", (run,)
        )
    ]
    begun = begun or [min((one["started"] for one in effects), default=0.0)]
    seconds = 0.0
    for start, until in itertools.pairwise([*begun, float("inf")]):
        seconds += max(
            (one["ended"] - start for one in effects if start <= one["ended"] < until), default=0.0
        )
    return {**_sums(effects), "seconds": seconds}


def _sums(effects: Sequence[_Row]) -> dict[str, Any]:
    gpus = any(one["gpu_seconds"] is not None for one in effects)
    return _known({name: sum(one[name] or 0 for one in effects) for name in _AMOUNTS}, gpus=gpus)


def _known(sums: dict[str, Any], *, gpus: bool) -> dict[str, Any]:
    unpriced = sums.pop("unpriced")
    return {
        **sums,
        "dollars": None if unpriced else sums["dollars"],
        "gpu_seconds": sums["gpu_seconds"] if gpus else None,
    }
