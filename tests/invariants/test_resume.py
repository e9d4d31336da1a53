"""A run that was killed goes on where it ended: the same program, and nothing is bought twice."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from combee_dspy import Budget, Search
from combee_dspy.exceptions import JournalError
from combee_dspy.journal import _writer
from tests.invariants.killed import CASES, WORKERS, compiled, compiled_many
from tests.slow import slow_but
from tests.worlds import events, rows

LIMITS = (1, 32, 57, 80)
# Scans and validations of updates that overlap are told in the order in which they end.
KINDS = ("candidate", "validated", "screened", "selected", "stopped", "refused", "scan")


def facts(program: Any, place: Path) -> dict[str, Any]:
    report = program.combee_report
    return {
        "program": program.dump_state(),
        "reason": report.reason,
        "scores": (report.seed_score, report.best_score),
        "heldout": report.heldout,
        "rollouts": report.rollouts,
        "effects": sorted(row["key"] for row in rows(place, "SELECT key FROM effect")),
        "usage": rows(
            place,
            "SELECT role, sum(calls), sum(prompt_tokens), sum(completion_tokens) FROM usage"
            " GROUP BY role ORDER BY role",
        ),
        "events": {kind: sorted(map(_plain, events(place, kind))) for kind in KINDS},
    }


def _plain(event: dict[str, Any]) -> str:
    return str(sorted(event.items(), key=lambda item: item[0]))


@pytest.mark.parametrize("case", slow_but(("pareto",), (case for case in CASES if case != "calls")))
def test_a_killed_run_goes_on_and_buys_nothing_twice(
    service: Any, tmp_path: Path, case: str
) -> None:
    whole = facts(compiled(case, str(tmp_path / "whole"), service.api_base), tmp_path / "whole")
    assert whole["scores"][1] > whole["scores"][0]
    paid = service.stats()
    limits = [limit for limit in LIMITS if limit < len(whole["effects"]) - WORKERS]
    command = [
        sys.executable,
        "-m",
        "tests.invariants.killed",
        case,
        str(tmp_path),
        service.api_base,
    ]
    done = subprocess.run(  # noqa: S603 - ours
        [*command, *map(str, limits)], capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr
    for limit in limits:
        place = tmp_path / str(limit)
        (journal,) = rows(
            place, "SELECT count(*) AS n, (SELECT sum(calls) FROM usage) AS calls FROM effect"
        )
        assert journal["n"] < len(whole["effects"])
        service.reset_stats()
        again = facts(compiled(case, str(place), service.api_base), place)
        for what, reference in whole.items():
            assert again[what] == reference, (limit, what)
        # Bought now: what was not on disk, and nothing else.
        assert service.stats().calls == paid.calls - (journal["calls"] or 0), limit


@pytest.mark.slow
def test_several_tasks_that_were_killed_go_on_as_one_journal(service: Any, tmp_path: Path) -> None:
    def states(place: Path) -> Any:
        service.reset_stats()
        results = compiled_many(str(place), service.api_base)
        keys = sorted(
            (row["run"], row["key"]) for row in rows(place, "SELECT run, key FROM effect")
        )
        return [
            (result.report.texts, result.report.best_score, result.report.rollouts)
            for result in results
        ], keys

    whole = states(tmp_path / "whole")
    paid = service.stats().calls
    command = [
        sys.executable,
        "-m",
        "tests.invariants.killed",
        "many",
        str(tmp_path),
        service.api_base,
        "29",
        "44",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)  # noqa: S603 - ours
    assert done.returncode == 0, done.stderr
    for place in (tmp_path / "29", tmp_path / "44"):
        (journal,) = rows(place, "SELECT sum(calls) AS calls FROM usage")
        assert states(place) == whole
        assert service.stats().calls == paid - journal["calls"]


@pytest.mark.slow
def test_a_budget_in_calls_holds_over_kills(service: Any, tmp_path: Path) -> None:
    # In the middle of a commit, so what is in it was paid for and is lost, unless it is a decision.
    service.reset_stats()
    command = [
        sys.executable,
        "-m",
        "tests.invariants.killed",
        "calls",
        str(tmp_path),
        service.api_base,
        "22",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)  # noqa: S603 - ours
    assert done.returncode == 0, done.stderr
    report = compiled("calls", str(tmp_path / "22"), service.api_base).combee_report
    (booked,) = rows(
        tmp_path / "22",
        "SELECT sum(calls) AS calls FROM usage u JOIN effect e ON e.id = u.effect"
        " WHERE purpose != 'heldout'",
    )
    (held,) = rows(
        tmp_path / "22", "SELECT count(*) AS rollouts FROM effect WHERE purpose = 'heldout'"
    )
    assert "calls" in report.reason
    # What was lost in flight is in no books, and counts.
    assert booked["calls"] <= service.stats().calls - held["rollouts"] <= 60


def test_on_a_full_disk_what_was_paid_for_is_kept_and_the_run_goes_on_when_there_is_room(
    service: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = facts(compiled("pareto", str(tmp_path / "whole"), service.api_base), tmp_path / "whole")
    paid = service.stats().calls
    place, written, effects = tmp_path / "full", _writer.Writer._transact, 0
    reserve = place / "journal.sqlite.reserve"

    def full(self: Any, connection: Any, statements: Any) -> None:
        nonlocal effects
        effects += sum("INTO effect" in sql for sql, _ in statements)
        if effects > 50 and reserve.exists():
            error = sqlite3.OperationalError("database or disk is full")
            error.sqlite_errorcode = sqlite3.SQLITE_FULL
            raise error
        written(self, connection, statements)

    service.reset_stats()
    with monkeypatch.context() as patched:
        patched.setattr(_writer.Writer, "_transact", full)
        with pytest.raises(JournalError, match=r"disk is full.*make room") as caught:
            compiled("pareto", str(place), service.api_base)
    assert caught.value.program is not None
    (booked,) = rows(place, "SELECT sum(calls) AS calls FROM usage")
    assert booked["calls"] == service.stats().calls
    assert facts(compiled("pareto", str(place), service.api_base), place) == whole
    assert service.stats().calls == paid


def test_a_finished_run_is_read_and_nothing_is_bought(service: Any, tmp_path: Path) -> None:
    first = facts(compiled("pareto", str(tmp_path), service.api_base), tmp_path)
    service.reset_stats()
    assert facts(compiled("pareto", str(tmp_path), service.api_base), tmp_path) == first
    assert service.stats().calls == 0


@pytest.mark.parametrize("staleness", [0, 1])
@pytest.mark.parametrize("rollouts", slow_but((27,), [20, 27, 33, 45]))
def test_a_tight_budget_is_as_tight_when_the_run_is_read_again(
    service: Any, tmp_path: Path, rollouts: int, staleness: int
) -> None:
    more = {"budget": Budget(rollouts=rollouts), "search": Search(staleness=staleness)}
    first = facts(compiled("pareto", str(tmp_path), service.api_base, **more), tmp_path)
    assert first["rollouts"] <= rollouts
    service.reset_stats()
    assert facts(compiled("pareto", str(tmp_path), service.api_base, **more), tmp_path) == first
    assert service.stats().calls == 0
