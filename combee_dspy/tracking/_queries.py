"""What a journal says, as plain rows: runs, candidates, rollouts, costs. Reading changes nothing
and shows no key.

Everywhere ``place`` is a ``log_dir`` or its journal, and ``run`` the id or name of one run, by
default all of them.
"""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from combee_dspy.events import RunStarted, WarningRaised
from combee_dspy.exceptions import ArgumentValueError, JournalDamagedError, did_you_mean
from combee_dspy.journal import Reader, RunHistory, failure_counts, journal_file, outcomes
from combee_dspy.tracking._candidates import CandidateRow, candidate_named, read_candidates
from combee_dspy.tracking._learned import compare_texts
from combee_dspy.tracking._runs import RunFigures, figures_of, summarize_runs
from combee_dspy.tracking._spending import (
    Spending,
    budget_use,
    read_spending,
    spending_rows,
)
from combee_dspy.tracking._sql import EVALUATOR, ROLLOUT, ROLLOUT_COLUMNS
from combee_dspy.tracking._text import Row, clean_rows, clean_values

# Functions that a condition may call: they neither reach beyond the journal nor make texts of any
# length.
_FUNCTIONS = """
    abs avg coalesce count date datetime glob ifnull iif instr json json_array_length
    json_extract json_type -> ->> julianday length like lower ltrim max min nullif replace round
    rtrim strftime substr substring sum total trim typeof unixepoch upper""".split()  # noqa: SIM905 - as people read it
_OF_HELDOUT = ("inputs", "expected", "prediction", "calls", "feedback")


def runs(place: Path | str) -> list[Row]:
    """Return the runs of a journal, oldest first: scores, held-out figures, and what they have cost
    so far.

    Raises:
        ArgumentValueError: There is no journal.
        JournalDamagedError: It cannot be read.
    """
    with Reader(journal_file(place), checked=True) as reader:
        return clean_rows(figures.columns() for figures in summarize_runs(reader))


def overview(place: Path | str, run: int | str | None = None) -> list[Row]:
    """Return the runs of a journal as :func:`runs` does, each with what else is known of it.

    Args:
        place: A ``log_dir``, or its journal.
        run: Name or id of one run; all by default. A task may be named ``"2"``: a name comes before
            an id.

    Returns:
        Rows with ``costs`` (sums by role and model; ``unpriced`` counts calls without a price),
        ``budget`` (whether it was well spent), ``spending`` (by update and accepted prompt),
        ``audit`` (who compiled it with which code, each time that it began or went on) and
        ``problems`` (``failures`` by role and cause, and ``warnings``).

    Raises:
        ArgumentValueError: There is no journal or no such run.
        JournalDamagedError: It cannot be read.
    """
    with _opened(place, run, many=True) as (reader, number):
        every = (
            summarize_runs(reader) if number is None else [figures_of(RunHistory(reader, number))]
        )
        rows = []
        for figures in every:
            history = RunHistory(reader, figures.record.id)
            rows_of_candidates = read_candidates(history)
            spending = read_spending(history, rows_of_candidates)
            facts = facts_of(history, figures, rows_of_candidates, spending)
            rows.append({**figures.columns(), **facts})
        return clean_rows(rows)


def facts_of(
    history: RunHistory,
    figures: RunFigures,
    candidates: Sequence[CandidateRow],
    spending: Spending,
) -> dict[str, Any]:
    """Return what :func:`overview` adds to a run's figures."""
    reader, run = history.reader, figures.record.id
    warnings = (entry.event.text for entry in history.entries(WarningRaised))
    failures = failure_counts(outcomes(reader, run))
    return {
        "costs": [asdict(cost) for cost in figures.costs_by_model],
        "budget": budget_use(spending, candidates, figures),
        "spending": spending_rows(spending, candidates, figures),
        "audit": [{"run": run, **asdict(entry.event)} for entry in history.entries(RunStarted)],
        "problems": {
            "failures": [f"{failure}: {failure.error}" for failure in failures],
            "warnings": list(dict.fromkeys(warnings)),
        },
    }


def rollouts(
    place: Path | str,
    run: int | str | None = None,
    where: str | None = None,
    limit: int | None = 100,
) -> list[Row]:
    """Return rollouts, in the order in which they ended.

    Args:
        place: A ``log_dir``, or its journal.
        run: Id or name of one run; all by default.
        where: An SQL expression over the columns of a rollout, such as
            ``"score < 0.5 AND purpose = 'validation' AND feedback LIKE '%percent%'"``. It can only
            read.
        limit: At most so many; ``None`` for all.

    Raises:
        ArgumentValueError: There is no journal or no such run, or the expression cannot be used.
    """
    if where is not None:
        _check_condition(where)
    with _opened(place, run) as (reader, number):
        # One expression, which can only read; on lines of its own, since it may end in a comment.
        sql = (
            f"WITH rollout AS ({ROLLOUT} AND (?1 IS NULL OR e.run = ?1))"  # noqa: S608 - checked above
            f" SELECT * FROM rollout WHERE (\n{'1' if where is None else where}\n)"
            " ORDER BY id LIMIT ?2"
        )
        try:
            return clean_rows(reader.rows(sql, (number, -1 if limit is None else limit)))
        except sqlite3.OperationalError as error:
            if where is None:
                raise
            raise _unusable(where, error) from error


def candidates(place: Path | str, run: int | str | None = None) -> list[Row]:
    """Return candidates run by run, in the order in which they were made, with their texts and what
    became of them.

    Raises:
        ArgumentValueError: There is no journal or no such run.
    """
    with _opened(place, run) as (reader, number):
        return clean_rows(read_candidates(RunHistory(reader, number)))


def show(place: Path | str, what: str | int, run: int | str | None = None) -> Row:
    """Return one candidate or one effect with everything that the journal knows of it.

    Args:
        place: A ``log_dir``, or its journal.
        what: A candidate: ``"best"``, its index, or the first four characters or more of its
            content hash. Or an effect: ``"effect/7"``, or a number that is no candidate's index (a
            rollout's ``id``).
        run: Id or name of one run; all by default.

    Returns:
        Of an effect, its row with ``value`` and ``usage``; of a candidate, its row as
        :func:`candidates` gives it with ``diff``: by component that it changed, the lines of a
        comparison with its first parent; and ``suspicious``: lines that a person should look at,
        with ``part``, ``line``, ``reason`` and ``text``.

    Raises:
        ArgumentValueError: There is no journal, or nothing of that name, or several.
    """
    with _opened(place, run) as (reader, number):
        rows = read_candidates(RunHistory(reader, number))
        candidate = candidate_named(rows, what)
        if candidate is not None:
            texts = {row.candidate: row.texts for row in rows}
            before = texts.get(candidate.parents[0], {}) if candidate.parents else {}
            own = [row for row in rows if row.run == candidate.run]
            facts = {
                **asdict(candidate),
                "diff": compare_texts(before, candidate.texts),
                "suspicious": suspicious_in(reader, candidate, own),
            }
            return clean_rows([facts])[0]
        effect = str(what).removeprefix("effect/")
        # As text, which SQLite compares with an id: a number may have more digits than it can hold.
        sql = f"""SELECT e.*, {EVALUATOR} AS evaluator FROM effect e
            WHERE e.id = ?1 AND (?2 IS NULL OR e.run = ?2)"""  # noqa: S608 - a constant
        effects = reader.rows(sql, (effect, number)) if effect.isdecimal() else []
        if effects:
            return _effect(reader, effects[0])
    remedy = (
        "Give best, an index or four characters or more of a candidate, or effect/ and a"
        " rollout's id."
    )
    raise ArgumentValueError("id", what, "is neither a candidate nor an effect's number", remedy)


def suspicious_in(
    reader: Reader, candidate: CandidateRow, candidates: Sequence[CandidateRow]
) -> list[dict[str, Any]]:
    """Return the lines of a candidate that a reviewer should look at; see :func:`suspicious`.

    ``candidates`` are all of its run.
    """
    from combee_dspy.tracking._lint import suspicious  # loads DSPy, which no list of runs needs

    sql = (
        "SELECT id, value FROM main.effect WHERE id IN (SELECT min(id) FROM effect WHERE +run = ?"
        " AND kind IN ('rollout', 'recorded') AND split = 'train' GROUP BY example LIMIT 2000)"
    )
    rows = reader.rows(sql, (candidate.run,))
    examples = [_value(reader, *row).get("inputs") for row in rows]
    return suspicious(candidate.texts, candidates[0].texts, examples)


def run_number(reader: Reader, run: int | str | None) -> int:
    """Return a run's id, by id or name; the newest for ``None``. A task may be named ``"2"``: a
    text is a name first.

    Raises:
        ArgumentValueError: The journal has no such run.
    """
    first = "name" if isinstance(run, str) else "id"
    # SQLite compares a text with an id as a number.
    sql = f"""SELECT id FROM run WHERE ?1 IS NULL OR name = ?1 OR id = ?1
        ORDER BY {first} = ?1 DESC, id DESC LIMIT 1"""  # noqa: S608 - constants
    rows = reader.rows(sql, (run,))
    if not rows:
        every = reader.rows("SELECT id, name FROM run ORDER BY id")
        names = ", ".join(f"{row['id']} ({row['name']})" for row in every)
        remedy = f"Give one of {names}." if names else "The journal holds none."
        raise ArgumentValueError("run", run, "is no run of this journal", remedy)
    return int(rows[0]["id"])


@contextmanager
def _opened(
    place: Path | str, run: int | str | None, *, many: bool = False
) -> Iterator[tuple[Reader, int | None]]:
    with Reader(journal_file(place), checked=True, many=many) as reader:
        yield reader, None if run is None else run_number(reader, run)


def _check_condition(where: str) -> None:
    """Refuse what is not one expression over the columns of a rollout, and nothing else.

    It is compiled against an empty table: no other can be named, so that nothing
    is read past a rollout's columns. A ``)`` that closes ours does not compile
    without ours; what follows an expression in a SELECT does not compile within.
    """
    with closing(sqlite3.connect(":memory:")) as scratch:
        scratch.execute(f"CREATE TABLE rollout ({', '.join(ROLLOUT_COLUMNS)})")
        scratch.set_authorizer(_may_read)
        try:
            for condition in (where, f"(\n{where}\n)"):
                scratch.execute(f"SELECT 1 FROM rollout WHERE {condition}")  # noqa: S608 - the authorizer holds
        except (sqlite3.Error, sqlite3.Warning, ValueError) as error:
            raise _unusable(where, error) from error


def _may_read(action: int, first: str | None, second: str | None, *_: str | None) -> int:
    allowed = (
        action == sqlite3.SQLITE_SELECT
        or (action == sqlite3.SQLITE_READ and first == "rollout")
        or (action == sqlite3.SQLITE_FUNCTION and second in _FUNCTIONS)
    )
    return sqlite3.SQLITE_OK if allowed else sqlite3.SQLITE_DENY


def _unusable(where: str, error: Exception) -> ArgumentValueError:
    missing = re.fullmatch(r"no such column: (\w+)", str(error))
    close = did_you_mean(missing[1], ROLLOUT_COLUMNS) if missing else ""
    remedy = f"{close}Write one SQL expression over {', '.join(ROLLOUT_COLUMNS)}."
    return ArgumentValueError("where", where, f"cannot be used: {error}", remedy)


def _effect(reader: Reader, row: sqlite3.Row) -> Row:
    value = _value(reader, row["id"], row["value"])
    if row["split"] == "heldout":
        value = {name: item for name, item in value.items() if name not in _OF_HELDOUT}
    usage = reader.rows("SELECT * FROM usage WHERE effect = ? ORDER BY role, model", (row["id"],))
    columns = {name: item for name, item in dict(row).items() if name != "crc"}
    return clean_rows([{**columns, "value": value, "usage": usage}])[0]


def _value(reader: Reader, number: int, text: str | None) -> dict[str, Any]:
    """Return the value of an effect; a value that is no object is under the key ``value``.

    Raises:
        JournalDamagedError: It is no JSON, or nested too deeply.
    """
    try:
        value = json.loads(text or "null")
        clean_values(value, str)
    except (ValueError, RecursionError) as error:
        problem = f"the value of effect {number} cannot be read: {error}"
        raise JournalDamagedError(str(reader.path), problem) from None
    return value if isinstance(value, dict) else {"value": value}
