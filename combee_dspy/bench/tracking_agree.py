"""Whether ledger, journal, MLflow's table and the service's own counters agree, to the call and the token."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dspy

from combee_dspy.bench.tracking_world import Shape, failing_service, judged, run_shape
from combee_dspy.lms.simulated.failures import Status
from combee_dspy.tracking import Journal, MLflowTracker, entries_of, row_of

__all__ = ["Agreement", "Sums", "agree"]


@dataclass(frozen=True, slots=True)
class Sums:
    """What one party counted.

    Attributes:
        rollouts: Rollouts, each id once; ``None`` where it knows of none.
        calls: Calls that reached the service, those aside that it turned away as too many: an LM waits
            for its turn within one call.
        cached: Calls that DSPy's cache answered; ``None`` where it cannot know.
        failed: Calls that ended with an error; ``None`` where it counts otherwise.
        prompt_tokens: Prompt tokens.
        completion_tokens: Completion tokens.
    """

    rollouts: int | None
    calls: int
    cached: int | None
    failed: int | None
    prompt_tokens: int
    completion_tokens: int


@dataclass(frozen=True, slots=True)
class Agreement:
    """What each party counted, and what the run went through.

    Attributes:
        ledger: The ledger.
        journal: The journal.
        table: The Parquet files in MLflow; ``None`` without MLflow.
        service: The service's own counters.
        told: Rollouts that were run or taken from the memo.
        memo_hits: Rollouts that came from the memo.
        errors: Rollouts that failed.
        wall: Seconds.
    """

    ledger: Sums
    journal: Sums
    table: Sums | None
    service: Sums
    told: int
    memo_hits: int
    errors: int
    wall: float

    @property
    def holds(self) -> bool:
        """Whether all agree on what each of them can know."""
        parties = [self.journal, *([] if self.table is None else [self.table])]
        exact = all(
            (one.calls, one.cached, one.failed, one.prompt_tokens, one.completion_tokens)
            == (self.ledger.calls, self.ledger.cached, self.ledger.failed, *_tokens(self.ledger))
            for one in parties
        )
        same_rollouts = {one.rollouts for one in parties} == {self.told}
        service = (self.service.calls, *_tokens(self.service))
        return exact and same_rollouts and service == (self.ledger.calls, *_tokens(self.ledger))


def agree(rollouts: int, folder: Path, *, threads: int = 64, tracking_uri: str | None = None) -> Agreement:
    """Run rollouts with errors, retries and cache hits, and count them four times.

    The LM retries nothing itself, so that every HTTP request is a call of its
    own, except where the service is full; what fails in passing is tried again by the run.

    Args:
        rollouts: At least so many.
        folder: Where the journal lies.
        threads: Rollouts in flight.
        tracking_uri: MLflow's store; ``None`` leaves MLflow out.
    """
    shape = Shape.of(rollouts, threads)
    dspy.configure_cache(enable_disk_cache=False, enable_memory_cache=True)
    with failing_service(slots=threads) as service:
        lm = service.lm(cache=True, num_retries=0)
        tracker = None if tracking_uri is None else MLflowTracker("books", tracking_uri)
        done = run_shape(shape, lm, judged(lm), journal=Journal(folder), tracker=tracker)
        stats = service.stats()
    rows = [row_of(entry.data) for entry in entries_of(folder) if entry.kind == "rollout"]
    plain = [_figures(row) for row in rows]
    total = done.totals.total
    asked = stats.calls - stats.by_status[Status.RATE_LIMITED].calls
    return Agreement(
        ledger=Sums(None, total.sent, total.cached, total.errors, total.prompt_tokens, total.completion_tokens),
        journal=_sums(plain),
        table=None if done.hook is None else _sums(_table(done.hook)),
        service=Sums(None, asked, None, None, stats.prompt_tokens, stats.completion_tokens),
        told=shape.rollouts,
        memo_hits=sum(row.cached for row in rows),
        errors=sum(bool(row.error_class) for row in rows),
        wall=done.wall,
    )


_FIGURES = ("rollout_id", "calls", "cached_calls", "failed_calls", "prompt_tokens", "completion_tokens")


def _figures(row: Any) -> dict[str, Any]:
    return {name: getattr(row, name) for name in _FIGURES}


def _table(hook: Any) -> list[dict[str, Any]]:
    from pyarrow import parquet

    client, run_id = hook.place.client, hook.run_id
    found: list[dict[str, Any]] = []
    for part in client.list_artifacts(run_id, "rollouts"):
        file = client.download_artifacts(run_id, part.path)
        found += parquet.read_table(file, columns=list(_FIGURES)).to_pylist()
    return found


def _sums(rows: list[dict[str, Any]]) -> Sums:
    def total(name: str) -> int:
        return sum(row[name] for row in rows)

    cached = total("cached_calls")
    return Sums(
        # An id that comes twice is a rollout too many, and no other.
        rollouts=len(rows) if len({row["rollout_id"] for row in rows}) == len(rows) else -1,
        calls=total("calls") - cached,
        cached=cached,
        failed=total("failed_calls"),
        prompt_tokens=total("prompt_tokens"),
        completion_tokens=total("completion_tokens"),
    )


def _tokens(sums: Sums) -> tuple[int, int]:
    return sums.prompt_tokens, sums.completion_tokens
