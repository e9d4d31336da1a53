"""What a serial search measured: scores against rollouts, and seconds."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any

from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.journal import Reader, RunHistory, journal_file

__all__ = ["Ceiling", "Curve"]

_FEWEST = 4  # examples, to halve


@dataclass(frozen=True, slots=True)
class Ceiling:
    """How much faster the same search could be at most, by what it measured (Amdahl 1967).

    Attributes:
        wall: Seconds that the serial search took.
        serial: Seconds of them in which no rollout ran: proposing, reflecting, and our own code.
        busy: Seconds of all its rollouts together.
        slots: Calls that the service answers at once.
    """

    wall: float
    serial: float
    busy: float
    slots: int

    @property
    def share(self) -> float:
        """Share of the time that stays serial."""
        return self.serial / self.wall

    @property
    def speedup(self) -> float:
        """The ceiling with these slots: wall / (serial + busy / slots), at least 1."""
        return max(1.0, self.wall / (self.serial + self.busy / self.slots))

    @property
    def unbounded(self) -> float:
        """The ceiling with any number of slots."""
        return self.wall / self.serial if self.serial else math.inf


@dataclass(frozen=True, slots=True)
class Curve:
    """What a serial search validated, in order.

    Attributes:
        rollouts: Rollouts bought when each candidate had been validated, ascending; the student
            first.
        scores: Validation scores of each candidate, on the same examples, at most 1 each.
        total: Rollouts bought at the end.
        seconds: Wall-clock seconds, and seconds with and of rollouts; empty where they are not
            known.
        source: Where it was measured.
    """

    rollouts: tuple[int, ...]
    scores: tuple[tuple[float, ...], ...]
    total: int
    seconds: tuple[float, float, float] | tuple[()] = ()
    source: str = "given"

    def __post_init__(self) -> None:
        sizes = {len(row) for row in self.scores}
        if len(self.rollouts) != len(self.scores) or len(sizes) != 1 or min(sizes) < _FEWEST:
            problem = f"has {len(self.scores)} validated candidates of {sorted(sizes)} examples"
            remedy = (
                f"Validate each candidate on the same examples, {_FEWEST} or better 100 of them."
            )
            raise ArgumentValueError("curve", self.source, problem, remedy)
        if self.total <= self.rollouts[0]:
            remedy = "Search serially for longer."
            raise ArgumentValueError(
                "curve", self.source, "has no rollouts after the student's validation", remedy
            )
        if list(self.rollouts) != sorted(self.rollouts) or self.total < self.rollouts[-1]:
            remedy = "Give them in the order in which they were bought."
            raise ArgumentValueError("curve.rollouts", self.rollouts, "do not ascend", remedy)

    @classmethod
    def of_run(cls, place: Path | str, run: int | str | None = None) -> Curve:
        """Read the curve of a run from its journal.

        Args:
            place: A ``log_dir``, or its journal.
            run: Id or name of one run; the newest by default.

        Raises:
            ArgumentValueError: There is no journal or no such run, or it validated too little.
        """
        from combee_dspy.tracking import run_number

        with Reader(journal_file(place)) as reader:
            number = run_number(reader, run)
            simulated = RunHistory(reader, number).about.simulated
            source = f"{place}, run {number}" + (
                " (a simulated service, no language model)" if simulated else ""
            )
            return cls.of_rollouts(map(dict, reader.rows(_ROLLOUTS, (number,))), source)

    @classmethod
    def of_mlflow(cls, run: str, tracking_uri: str | None = None) -> Curve:
        """Read the curve of a run that the tracker ``mlflow`` has logged, by MLflow's id of it.

        Raises:
            ArgumentValueError: MLflow has no rollouts of such a run, or it validated too little.
        """
        import mlflow
        import pyarrow.parquet

        try:
            with TemporaryDirectory(prefix="combee-") as folder:
                client = mlflow.MlflowClient(tracking_uri)
                files = Path(client.download_artifacts(run, "rollouts", folder))
                tables = [
                    pyarrow.parquet.read_table(file, columns=[*_COLUMNS])
                    for file in sorted(files.iterdir())
                ]
        except (mlflow.exceptions.MlflowException, OSError) as error:
            remedy = (
                "Give the id of a run that tracker='mlflow' has logged, and where MLflow keeps it."
            )
            raise ArgumentValueError(
                "mlflow", run, f"has no rollouts to read: {error}", remedy
            ) from error
        return cls.of_rollouts(
            [row for table in tables for row in table.to_pylist()], f"mlflow:{run}"
        )

    @classmethod
    def of_rollouts(cls, rows: Iterable[Mapping[str, Any]], source: str) -> Curve:
        """Return the curve that rollouts show.

        Each has ``purpose``, ``candidate``, ``example``, ``score`` and its times.

        A candidate counts from the end of its validation on.
        """
        own = [row for row in rows if row["purpose"] != "heldout"]
        scores_of: dict[str, dict[str, list[float]]] = {}
        validated: dict[str, float] = {}
        for row in own:
            if row["purpose"] == "validation" and row["score"] is not None:
                scores_of.setdefault(row["candidate"], {}).setdefault(row["example"], []).append(
                    row["score"]
                )
                validated[row["candidate"]] = max(
                    row["ended"], validated.get(row["candidate"], 0.0)
                )
        examples = sorted({example for scores in scores_of.values() for example in scores})
        whole = [
            candidate
            for candidate in sorted(validated, key=validated.__getitem__)
            if len(scores_of[candidate]) == len(examples)
        ]
        spans = sorted((row["started"], row["ended"]) for row in own)
        ends = sorted(end for _, end in spans)
        return cls(
            tuple(bisect_right(ends, validated[candidate]) for candidate in whole),
            tuple(
                tuple(fmean(scores_of[candidate][example]) for example in examples)
                for candidate in whole
            ),
            len(ends),
            (
                (ends[-1] - spans[0][0], _covered(spans), sum(end - start for start, end in spans))
                if spans
                else ()
            ),
            source,
        )

    @classmethod
    def of_gepa(cls, results: Any, source: str = "dspy.GEPA") -> Curve:
        """Read the curve of ``dspy.GEPA`` from ``program.detailed_results`` (``track_stats=True``).

        Its calls of the metric are counted; its seconds are not known.
        """
        # By example: a candidate's scores stand in the order in which its own examples were
        # evaluated.
        scores = [
            (
                tuple(subscores[key] for key in sorted(subscores))
                if isinstance(subscores, Mapping)
                else tuple(subscores)
            )
            for subscores in results.val_subscores
        ]
        counts = tuple(results.discovery_eval_counts)
        return cls(counts, tuple(scores), max(results.total_metric_calls or 0, *counts), (), source)

    def late_rise(self) -> float:
        """Return how far the best score on all examples rose in the second half, in score units."""
        middle = (self.rollouts[0] + self.total) / 2
        by_time = list(zip(self.rollouts, map(fmean, self.scores), strict=True))
        early = max(mean for rollouts, mean in by_time if rollouts <= middle)
        return max(mean for _, mean in by_time) - early

    def ceiling(self, slots: int) -> Ceiling | None:
        """Return the ceiling of a speedup with so many slots, where seconds were measured."""
        if not self.seconds:
            return None
        wall, covered, busy = self.seconds
        return Ceiling(wall, max(0.0, wall - covered), busy, slots)


_COLUMNS = ("purpose", "candidate", "example", "score", "started", "ended")
_NAMES = ", ".join(_COLUMNS)
_ROLLOUTS = f"SELECT {_NAMES} FROM effect WHERE run = ? AND kind = 'rollout'"  # noqa: S608


def _covered(spans: Sequence[tuple[float, float]]) -> float:
    """Return the seconds in which at least one of the spans, sorted, is under way."""
    total, until = 0.0, -math.inf
    for start, end in spans:
        total += max(0.0, end - max(start, until))
        until = max(until, end)
    return total
