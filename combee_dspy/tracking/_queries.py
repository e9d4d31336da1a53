"""What a journal says, as plain rows: runs, candidates, rollouts, costs. Reading changes nothing
and shows no key.

Everywhere ``place`` is a ``log_dir`` or its journal, and ``run`` the id or name of one run, by
default all of them.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.journal import Reader, failure_counts, journal_file, outcomes
from combee_dspy.tracking._learned import diffs
from combee_dspy.tracking._sql import (
    EVALUATOR,
    FUNCTIONS,
    GROUPS,
    ROLLOUT,
    ROLLOUT_COLUMNS,
    RUNS,
    costs_by,
)
from combee_dspy.tracking._text import clean_values, cleaner

__all__ = [
    "audit",
    "audit_of",
    "candidates",
    "candidates_of",
    "chosen_of",
    "costs",
    "costs_of",
    "problems",
    "problems_of",
    "rollouts",
    "run_number",
    "runs",
    "show",
    "suspicious_in",
]

_SHORTEST = 4
_LISTED = 20


def runs(place: Path | str) -> list[dict[str, Any]]:
    """Return the runs of a journal, oldest first: scores, held-out figures, and what they have cost
    so far.

    Raises:
        ArgumentValueError: There is no journal.
        JournalDamagedError: It cannot be read.
    """
    with Reader(journal_file(place), checked=True) as reader:
        return _plain(reader.rows(RUNS, (None,)))


def rollouts(
    place: Path | str,
    run: int | str | None = None,
    where: str | None = None,
    limit: int | None = 100,
) -> list[dict[str, Any]]:
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
        rows = f"WITH rollout AS ({ROLLOUT} AND (?1 IS NULL OR e.run = ?1)) SELECT * FROM rollout"  # noqa: S608 - constants
        chosen = "1" if where is None else where
        sql = (  # one expression that can only read
            f"{rows} WHERE (\n{chosen}\n) ORDER BY id LIMIT ?2"
        )
        try:
            return _plain(reader.rows(sql, (number, -1 if limit is None else limit)))
        except sqlite3.OperationalError as error:
            if where is None:
                raise
            raise _unusable(where, error) from error


def audit(place: Path | str, run: int | str | None = None) -> list[dict[str, Any]]:
    """Return who compiled what with which code: a row for each time that a run was begun or went
    on, oldest first.

    Returns:
        Rows with ``run``, ``at`` (Unix time), ``user`` and ``host`` (as
        :class:`~combee_dspy.Privacy` lets them be named), ``version``, ``dspy``, ``python``,
        ``commit``, ``program`` and ``metric`` (hashes), ``process`` and ``texts``, what was kept of
        inputs, outputs and feedback.

    Raises:
        ArgumentValueError: There is no journal or no such run.
    """
    with _opened(place, run) as (reader, number):
        return audit_of(reader, number)


def audit_of(reader: Reader, run: int | None) -> list[dict[str, Any]]:
    """Return what :func:`audit` does, of a journal that is open."""
    sql = (
        "SELECT run, data FROM event WHERE kind = 'audit' AND (?1 IS NULL OR run = ?1) ORDER BY id"
    )
    return _plain(
        {"run": row["run"], **json.loads(row["data"])} for row in reader.rows(sql, (run,))
    )


def problems(place: Path | str, run: int | str) -> dict[str, list[str]]:
    """Return a run's ``failures``, counted by role and cause, and its ``warnings``, in sentences.

    Raises:
        ArgumentValueError: There is no journal or no such run.
    """
    with Reader(journal_file(place), checked=True) as reader:
        return clean_values([problems_of(reader, run_number(reader, run))], cleaner())[0]


def problems_of(reader: Reader, run: int) -> dict[str, list[str]]:
    """Return what :func:`problems` does, of a journal that is open."""
    sql = (
        "SELECT json_extract(data, '$.text') AS said FROM event WHERE run = ? AND kind = 'warning'"
        " ORDER BY id"
    )
    return {
        "failures": [f"{one}: {one.error}" for one in failure_counts(outcomes(reader, run))],
        "warnings": list(dict.fromkeys(row["said"] for row in reader.rows(sql, (run,)))),
    }


@contextmanager
def _opened(place: Path | str, run: int | str | None) -> Iterator[tuple[Reader, int | None]]:
    with Reader(journal_file(place), checked=True) as reader:
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


def _unusable(where: str, error: Exception) -> ArgumentValueError:
    remedy = f"Write one SQL expression over {', '.join(ROLLOUT_COLUMNS)}."
    return ArgumentValueError("where", where, f"cannot be used: {error}", remedy)


def _may_read(action: int, first: str | None, second: str | None, *_: str | None) -> int:
    allowed = (
        action == sqlite3.SQLITE_SELECT
        or (action == sqlite3.SQLITE_READ and first == "rollout")
        or (action == sqlite3.SQLITE_FUNCTION and second in FUNCTIONS)
    )
    return sqlite3.SQLITE_OK if allowed else sqlite3.SQLITE_DENY


def costs(
    place: Path | str, run: int | str | None = None, by: Sequence[str] = ("run", "role", "model")
) -> list[dict[str, Any]]:
    """Return what LM calls have cost, summed.

    Args:
        place: A ``log_dir``, or its journal.
        run: Id or name of one run; all by default.
        by: What one row is about: any of ``run``, ``step``, ``kind``, ``purpose``, ``role`` and
            ``model``; empty for one row of everything.

    Returns:
        Rows with ``calls``, ``errors``, ``cached``, ``prompt_tokens``, ``completion_tokens``,
        ``dollars`` (``None`` where the price of one call is not known), ``gpu_seconds``,
        ``seconds``, and ``unpriced``, the calls without a known price.

    Raises:
        ArgumentValueError: There is no journal or no such run, or ``by`` names something else.
    """
    for one in by:
        if one not in GROUPS:
            raise ArgumentValueError(
                "by", one, "is nothing that costs are kept by", f"Give any of {', '.join(GROUPS)}."
            )
    with _opened(place, run) as (reader, number):
        return costs_of(reader, number, by)


def costs_of(reader: Reader, run: int | None, by: Sequence[str]) -> list[dict[str, Any]]:
    """Return what :func:`costs` does, of a journal that is open."""
    return _plain(reader.rows(costs_by(*by), (run,)))


def candidates(place: Path | str, run: int | str | None = None) -> list[dict[str, Any]]:
    """Return candidates run by run, in the order in which they were made, with their texts and what
    became of them.

    Raises:
        ArgumentValueError: There is no journal or no such run.
    """
    with _opened(place, run) as (reader, number):
        return candidates_of(reader, number)


def candidates_of(reader: Reader, run: int | None) -> list[dict[str, Any]]:
    """Return what :func:`candidates` does, of a journal that is open."""
    return _plain(recorded(reader, run))


def recorded(reader: Reader, run: int | None) -> list[dict[str, Any]]:
    """Return what :func:`candidates_of` does, with texts as they were written."""
    found: dict[tuple[int, str], dict[str, Any]] = {}
    sql = (
        "SELECT run, step, kind, at, data FROM event WHERE (?1 IS NULL OR run = ?1)"
        " AND kind IN ('candidate', 'screened', 'validated', 'selected') ORDER BY run, id"
    )
    for row in reader.rows(sql, (run,)):
        data = json.loads(row["data"])
        one = found.setdefault(
            (row["run"], data["candidate"]),
            {
                "run": row["run"],
                "candidate": data["candidate"],
                "index": None,
                "step": row["step"],
                "operator": "",
                "parents": [],
                "components": [],
                "score": None,
                "rows": 0,
                "validated_at": None,
                "screened": None,
                "selected": "",
                "texts": {},
            },
        )
        match row["kind"]:
            case "candidate" if not one["texts"]:
                one.update(
                    {name: data[name] for name in ("operator", "parents", "components", "texts")}
                )
            case "screened":
                one["screened"] = {
                    name: data[name] for name in ("score", "parent_score", "accepted", "reason")
                }
            case "validated":
                # A finalist that is validated once more keeps its place; the later figure has more
                # draws behind it.
                one.update(index=data["index"], score=data["score"], rows=data["rows"])
                one["validated_at"] = one["validated_at"] or row["at"]
            case "selected":
                # A run that went on with a larger budget has chosen again: the last choice stands.
                for other in found.values():
                    if other["run"] == row["run"]:
                        other["selected"] = ""
                one["selected"] = data["reason"]
    return list(found.values())


def chosen_of(known: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return the candidate that was chosen last, else the best so far, else the student; empty
    where there is none.
    """
    selected = [one for one in known if one["selected"]]
    scored = sorted(
        (one for one in known if one["score"] is not None), key=lambda one: float(one["score"])
    )
    return (selected or scored or [*known[:1]] or [{}])[-1]


def candidate_named(known: Sequence[dict[str, Any]], wanted: str | int) -> dict[str, Any] | None:
    """Return the candidate that a name stands for, by the rules of every command; ``None`` where
    there is none.

    Args:
        known: What :func:`candidates` returns.
        wanted: ``"best"`` for the one that was chosen, or the best so far; its index, the position
            among the validated ones; or the first four characters or more of its content hash.

    Raises:
        ArgumentValueError: Several have that name.
    """
    name = str(wanted)
    if name == "best":
        runs = {one["run"]: one for one in known if one["score"] is not None} or {
            one["run"]: one for one in known
        }
        found = [dict(chosen_of([one for one in known if one["run"] == run])) for run in runs]
    else:
        found = [one for one in known if name.isdecimal() and one["index"] == int(name)]
        if not found and len(name) >= _SHORTEST:
            found = [one for one in known if one["candidate"].startswith(name)]
    if len(found) > 1:
        listed = ", ".join(f"{one['candidate']} of run {one['run']}" for one in found[:_LISTED])
        raise ArgumentValueError(
            "id", wanted, "names several candidates", f"Say of which run, or more of it: {listed}."
        )
    return found[0] if found else None


def show(place: Path | str, what: str | int, run: int | str | None = None) -> dict[str, Any]:
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
        known = candidates_of(reader, number)
        one = candidate_named(known, what)
        if one is not None:
            return {
                **one,
                "diff": _diff(one, known),
                "suspicious": suspicious_in(reader, one["run"], one["candidate"]),
            }
        effect = str(what).removeprefix("effect/")
        # As text, which SQLite compares with an id: a number may have more digits than it can hold.
        sql = f"""SELECT e.*, {EVALUATOR} AS evaluator FROM effect e
            WHERE e.id = ?1 AND (?2 IS NULL OR e.run = ?2)"""  # noqa: S608 - a constant
        found = reader.rows(sql, (effect, number)) if effect.isdecimal() else []
        if found:
            return _effect(reader, found[0])
    remedy = (
        "Give best, an index or four characters or more of a candidate, or effect/ and a"
        " rollout's id."
    )
    raise ArgumentValueError("id", what, "is neither a candidate nor an effect's number", remedy)


def _diff(one: Mapping[str, Any], known: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
    parents = {other["candidate"]: other["texts"] for other in known}
    return diffs(parents.get(one["parents"][0], {}) if one["parents"] else {}, one["texts"])


def suspicious_in(reader: Reader, run: int, candidate: str) -> list[dict[str, Any]]:
    """Return the lines of a candidate that a reviewer should look at; see :func:`suspicious`."""
    from combee_dspy.tracking._lint import suspicious  # loads DSPy, which no list of runs needs

    # As they were written: what a display takes out is what is looked for.
    known = recorded(reader, run)
    texts = next(one["texts"] for one in known if one["candidate"] == candidate)
    sql = (
        "SELECT min(value) FROM effect WHERE run = ? AND kind = 'rollout' AND split = 'train'"
        " GROUP BY example LIMIT 2000"
    )
    examples = [json.loads(value).get("inputs") for (value,) in reader.rows(sql, (run,))]
    return _plain(suspicious(texts, known[0]["texts"], examples))


def _effect(reader: Reader, row: sqlite3.Row) -> dict[str, Any]:
    value = json.loads(row["value"])
    if row["split"] == "heldout":
        value = {
            name: one
            for name, one in value.items()
            if name not in ("inputs", "prediction", "calls", "feedback")
        }
    usage = reader.rows("SELECT * FROM usage WHERE effect = ? ORDER BY role, model", (row["id"],))
    kept = {name: one for name, one in dict(row).items() if name != "crc"}
    return _plain([{**kept, "value": value, "usage": [dict(one) for one in usage]}])[0]


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
    found = reader.rows(sql, (run,))
    if not found:
        names = [
            f"{row['id']} ({row['name']})"
            for row in reader.rows("SELECT id, name FROM run ORDER BY id")
        ]
        known = f"Give one of {', '.join(names)}." if names else "The journal holds none."
        raise ArgumentValueError("run", run, "is no run of this journal", known)
    return int(found[0]["id"])


def _plain(rows: Iterable[sqlite3.Row | dict[str, Any]]) -> list[dict[str, Any]]:
    clean = cleaner()
    return [clean_values(dict(row), clean) for row in rows]
