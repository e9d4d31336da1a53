"""Asking about recorded runs, from MLflow or straight from a journal.

Tables are ``pyarrow.Table``; ``.to_pandas()`` makes data frames of them::

    from combee_dspy.tracking import query

    query.runs().to_pandas()
    query.rollouts("checkpoints", where="score < 0.5 and split = 'train'").to_pandas()
    query.candidate("checkpoints", "best").texts

``RUN`` is a run's ``log_dir``, a journal's folder, its name in
``combee_runs/journals``, or the id of a run in MLflow.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.tracking._redact import store_error
from combee_dspy.tracking._sources import (
    SPOOL,
    client_of,
    data_of_journal,
    journals_in,
    need_pyarrow,
    open_run,
)
from combee_dspy.tracking._store import load_place
from combee_dspy.tracking._where import expression_of, parse_where
from combee_dspy.tracking.report._lineage import texts_before, texts_of

if TYPE_CHECKING:
    from combee_dspy.tracking.report._data import CandidateRow

__all__ = ["Candidate", "RunRow", "candidate", "candidates", "report_html", "rollouts", "runs"]


@dataclass(frozen=True, slots=True)
class RunRow:
    """One recorded run.

    Attributes:
        run: What opens it: an MLflow run's id, or a journal's folder.
        name: Its name.
        status: ``"finished"``, ``"failed"``, ``"running"`` or ``"unfinished"``.
        iterations: Iterations begun; ``None`` where the source does not say.
        rollouts: Rollouts bought.
        seed_score: Mean validation score of the seed.
        best_score: Mean validation score of the best candidate.
        heldout_before: Mean held-out score of the seed.
        heldout_after: The result's.
        heldout_low: Lower end of the interval of their difference.
        heldout_high: Upper end.
        tokens: Tokens of all roles.
        dollars: Dollars of the calls whose cost is known.
        unpriced: Calls whose cost is not known.
        fit_for_claims: Whether nothing speaks against quoting its held-out figures.
        journal: The journal's folder, empty where there is none here.
        mlflow_run: The MLflow run's id, empty where there is none.
    """

    run: str
    name: str
    status: str
    iterations: int | None
    rollouts: int | None
    seed_score: float | None
    best_score: float | None
    heldout_before: float | None
    heldout_after: float | None
    heldout_low: float | None
    heldout_high: float | None
    tokens: int | None
    dollars: float | None
    unpriced: int | None
    fit_for_claims: bool | None
    journal: str
    mlflow_run: str


@dataclass(frozen=True, slots=True)
class Candidate:
    """One candidate of a run.

    Attributes:
        row: Where it came from and what became of it.
        texts: All of its components.
        parent_texts: Its parent's, or the seed's where the parent is not known.
        rollouts: How many rollouts it had, by purpose.
        scores: Their mean score, by purpose.
    """

    row: CandidateRow
    texts: Mapping[str, str]
    parent_texts: Mapping[str, str]
    rollouts: Mapping[str, int]
    scores: Mapping[str, float]

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON data."""
        return {
            **asdict(self.row),
            "texts": dict(self.texts),
            "parent_texts": dict(self.parent_texts),
            "rollouts": dict(self.rollouts),
            "scores": dict(self.scores),
        }


def runs(roots: Sequence[str | Path] | None = None, tracking_uri: str | None = None) -> Any:
    """Return the recorded runs, one row each, columns as in :class:`RunRow`.

    Args:
        roots: Folders that are, or hold, journals or log_dirs; by default ``combee_runs/journals``.
        tracking_uri: The MLflow store; by default the one set for MLflow, else ``combee_runs/mlflow.db``.

    Returns:
        A ``pyarrow.Table``. A run that is in MLflow and has its journal here is one row.

    Raises:
        ArgumentValueError: A root does not exist, or the store cannot be read.
    """
    pa = need_pyarrow()
    places = [SPOOL] if roots is None else [Path(root) for root in roots]
    for place in places:
        if roots is not None and not place.is_dir():
            raise ArgumentValueError("roots", str(place), "is no folder", "Name folders with journals or log_dirs.")
    found = list(_in_mlflow(tracking_uri))
    position = {row.mlflow_run: number for number, row in enumerate(found)}
    for folder in journals_in(places):
        row = _of_journal(folder)
        if row.mlflow_run in position:
            number = position[row.mlflow_run]
            found[number] = replace(found[number], journal=row.journal)
        else:
            found.append(row)
    types = {"str": pa.string(), "int": pa.int64(), "float": pa.float64(), "bool": pa.bool_()}
    schema = pa.schema([(one.name, types[str(one.type).split(" ")[0]]) for one in fields(RunRow)])
    return pa.Table.from_pylist([asdict(row) for row in found], schema=schema)


def rollouts(
    run: str | Path,
    where: str | None = None,
    columns: Sequence[str] | None = None,
    tracking_uri: str | None = None,
) -> Any:
    """Return a run's rollouts, columns as in :class:`combee_dspy.tracking.Row`.

    Args:
        run: See :func:`combee_dspy.tracking.query`.
        where: Which rows, for example ``score < 0.5 and split = 'train'``; see the command
            ``combee rollouts --help`` for the language.
        columns: Which columns, in this order; all by default.
        tracking_uri: The MLflow store; see :func:`runs`.

    Returns:
        A ``pyarrow.Table``.

    Raises:
        ArgumentValueError: There is no such run, the condition cannot be read, or a column does not exist.
    """
    condition = None if where is None else parse_where(where)
    table = open_run(run, tracking_uri).table()
    if condition is not None:
        table = table.filter(expression_of(condition, table.schema))
    if columns is None:
        return table
    for name in columns:
        if name not in table.column_names:
            remedy = f"Columns: {', '.join(table.column_names)}."
            raise ArgumentValueError("columns", name, "names no column", remedy)
    return table.select(list(columns))


def candidates(run: str | Path, tracking_uri: str | None = None) -> tuple[CandidateRow, ...]:
    """Return a run's candidates, oldest first; each holds the components that it changed.

    Raises:
        ArgumentValueError: There is no such run, or MLflow does not have its candidates yet.
    """
    return open_run(run, tracking_uri).candidates()[1]


def candidate(run: str | Path, name: str | int, tracking_uri: str | None = None) -> Candidate:
    """Return one candidate of a run.

    Args:
        run: See :func:`combee_dspy.tracking.query`.
        name: Its index in the pool, the beginning of its content hash, ``"seed"`` or ``"best"``.
        tracking_uri: The MLflow store; see :func:`runs`.

    Raises:
        ArgumentValueError: There is no such run, or no such candidate, or the name fits several.
    """
    source = open_run(run, tracking_uri)
    seed, rows = source.candidates()
    row = _named(rows, str(name).strip())
    known = {one.candidate_id: one for one in reversed(rows)}
    counts, sums = _scores(source.table(), row.candidate_id)
    return Candidate(
        row=row,
        texts=texts_of(row, known, seed),
        parent_texts=texts_before(row, known, seed),
        rollouts=counts,
        scores={purpose: total / counts[purpose] for purpose, total in sums.items()},
    )


def report_html(run: str | Path, tracking_uri: str | None = None) -> str:
    """Return a run's report as one HTML page, also of a run that was killed.

    Raises:
        ArgumentValueError: There is no such run, or MLflow has no report of it.
    """
    return open_run(run, tracking_uri).html()


def _named(rows: Sequence[CandidateRow], name: str) -> CandidateRow:
    if name == "best":
        found = [one for one in rows if one.chosen]
    elif name == "seed":
        found = [one for one in rows if one.index == 0]
    else:
        found = [one for one in rows if one.index is not None and str(one.index) == name]
        found = found or [one for one in rows if name and one.candidate_id.startswith(name)]
    distinct = {one.candidate_id: one for one in found}
    if len(distinct) == 1:
        return found[0]
    problem = "fits several candidates" if distinct else "names no candidate"
    known = ", ".join(_label(one) for one in (found or rows)[:20])
    raise ArgumentValueError("candidate", name, problem, f"Candidates: {known or 'none'}.")


def _label(one: CandidateRow) -> str:
    return one.candidate_id[:12] if one.index is None else f"{one.index} ({one.candidate_id[:12]})"


def _scores(table: Any, candidate_id: str) -> tuple[dict[str, int], dict[str, float]]:
    from pyarrow import compute

    own = table.filter(compute.field("candidate_id") == candidate_id).select(["purpose", "score"])
    counts: dict[str, int] = {}
    sums: dict[str, float] = {}
    for row in own.to_pylist():
        if row["score"] is not None:
            counts[row["purpose"]] = counts.get(row["purpose"], 0) + 1
            sums[row["purpose"]] = sums.get(row["purpose"], 0.0) + row["score"]
    return counts, sums


def _of_journal(folder: Path) -> RunRow:
    data = data_of_journal(folder, rollouts=False)
    held = data.heldout
    failed = any(note.severity == "error" for note in data.notes)
    mlflow_run = str((load_place(folder) or {}).get("run_id") or "")
    return RunRow(
        run=str(folder),
        name=data.name,
        status="finished" if data.finished else "failed" if failed else "unfinished",
        iterations=len(data.iterations),
        rollouts=data.rollouts,
        seed_score=data.seed_score,
        best_score=data.best_score,
        heldout_before=None if held is None else held.before,
        heldout_after=None if held is None else held.after,
        heldout_low=None if held is None else held.low,
        heldout_high=None if held is None else held.high,
        tokens=data.spending.tokens,
        dollars=data.spending.dollars,
        unpriced=data.spending.unpriced,
        fit_for_claims=not data.warnings,
        journal=str(folder),
        mlflow_run=mlflow_run,
    )


_STATUS = {"FINISHED": "finished", "FAILED": "failed", "KILLED": "unfinished", "RUNNING": "running"}


def _in_mlflow(tracking_uri: str | None) -> Iterator[RunRow]:
    client = client_of(tracking_uri)
    if client is None:
        return
    from mlflow.exceptions import MlflowException

    try:
        experiments = [one.experiment_id for one in _all(client.search_experiments)]
        found = list(_all(client.search_runs, experiments, filter_string="tags.`combee.journal` LIKE '%'"))
    except (MlflowException, OSError) as error:
        remedy = "Start the server or correct the address (MLFLOW_TRACKING_URI)."
        raise store_error(tracking_uri, "cannot be read", error, remedy) from None
    for run in found:
        yield _of_mlflow(run)


def _all(search: Any, *arguments: Any, **keywords: Any) -> Iterable[Any]:
    token = None
    while True:
        page = search(*arguments, **keywords, page_token=token)
        yield from page
        token = page.token
        if not token:
            return


def _of_mlflow(run: Any) -> RunRow:
    metrics, tags = run.data.metrics, run.data.tags
    tokens = [int(value) for name, value in metrics.items() if name.startswith("tokens/")]
    rolled = metrics.get("rollouts/bought")
    unpriced = _latest(metrics.get("cost/unpriced_calls"), metrics.get("total/unpriced_calls"))
    spent = _latest(float(sum(tokens)) if tokens else None, metrics.get("total/tokens"))
    gain = {name: metrics.get(f"heldout/{name}") for name in ("before", "after", "gain_low", "gain_high")}
    return RunRow(
        run=run.info.run_id,
        name=run.info.run_name or "",
        status=_STATUS.get(run.info.status, run.info.status.lower()),
        iterations=None,
        rollouts=None if rolled is None else int(rolled),
        seed_score=metrics.get("val/seed"),
        best_score=metrics.get("val/best"),
        heldout_before=gain["before"],
        heldout_after=gain["after"],
        heldout_low=gain["gain_low"],
        heldout_high=gain["gain_high"],
        tokens=None if spent is None else int(spent),
        dollars=_latest(metrics.get("cost/dollars"), metrics.get("total/dollars")),
        unpriced=None if unpriced is None else int(unpriced),
        fit_for_claims={"true": True, "false": False}.get(tags.get("combee.fit_for_claims", "")),
        journal="",
        mlflow_run=run.info.run_id,
    )


def _latest(at_iteration: float | None, at_end: float | None) -> float | None:
    """Return the later of two sums that only grow: a finished run may have been taken up again."""
    return max((one for one in (at_iteration, at_end) if one is not None), default=None)
