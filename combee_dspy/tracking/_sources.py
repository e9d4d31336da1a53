"""Where a recorded run can be read: its journal on this machine, or its MLflow run."""

from __future__ import annotations

import io
import json
import os
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.tracking._codec import decode
from combee_dspy.tracking._journal import entries_of, files_of, find_journal
from combee_dspy.tracking._redact import Redactor, store_error
from combee_dspy.tracking._rows import Cells, cells_of, parquet_of
from combee_dspy.tracking.report import Collector, ReportData, render, seen_in
from combee_dspy.tracking.report._data import CandidateRow

__all__ = [
    "SPOOL",
    "JournalSource",
    "MLflowSource",
    "Source",
    "client_of",
    "data_of_journal",
    "journals_in",
    "need_pyarrow",
    "open_run",
]

SPOOL = Path("combee_runs/journals")
"""Where journals of runs without a ``log_dir`` lie, under the working directory."""

_CHUNK = 10_000

# MLflow's own defaults wait for minutes on a server that is down.
_ENVIRONMENT = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
}


class Source(ABC):
    """One recorded run.

    Attributes:
        name: What it was opened by.
    """

    name: str

    @abstractmethod
    def table(self) -> Any:
        """Return its rollouts as a ``pyarrow.Table``, in the order in which they were recorded."""

    @abstractmethod
    def candidates(self) -> tuple[Mapping[str, str], tuple[CandidateRow, ...]]:
        """Return the seed's texts, and the candidates, oldest first."""

    @abstractmethod
    def html(self) -> str:
        """Return its report."""


class JournalSource(Source):
    """A run's journal. It may still be written to: then what is there is read.

    Args:
        folder: The journal's.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.name = str(folder)
        self._data: ReportData | None = None

    def data(self) -> ReportData:
        """Return what the run's report shows."""
        if self._data is None:
            self._data = data_of_journal(self.folder)
        return self._data

    def table(self) -> Any:
        """Return the rollouts."""
        pa = need_pyarrow()
        rows: list[Cells] = []
        tables = [_table(())]
        for entry in entries_of(self.folder):
            if entry.kind == "rollout":
                rows.append(cells_of(entry.data))
                if len(rows) >= _CHUNK:
                    tables.append(_table(rows))
                    rows = []
        return pa.concat_tables([*tables, _table(rows)]).combine_chunks()

    def candidates(self) -> tuple[Mapping[str, str], tuple[CandidateRow, ...]]:
        """Return the seed's texts, and the candidates."""
        return self.data().seed_texts, self.data().candidates

    def html(self) -> str:
        """Return the report, made from what the journal holds."""
        return render(self.data())


class MLflowSource(Source):
    """A run in MLflow.

    Args:
        client: An ``MlflowClient``.
        run_id: The run.
    """

    def __init__(self, client: Any, run_id: str) -> None:
        self._client = client
        self._run_id = run_id
        self.name = run_id

    def table(self) -> Any:
        """Return the rollouts that MLflow has.

        Raises:
            ArgumentValueError: It has none of them, or does not answer.
        """
        pa = need_pyarrow()
        from pyarrow import parquet

        found = [item.path for item in self._list("rollouts") if item.path.endswith(".parquet")]
        with tempfile.TemporaryDirectory() as folder:
            tables = [parquet.read_table(self._fetched(path, folder)) for path in found]
        if not tables:
            raise self._lacks("rollouts")
        # Versions may differ in their columns; what an older one lacks is null.
        return pa.concat_tables(sorted(tables, key=_first), promote_options="permissive").combine_chunks()

    def candidates(self) -> tuple[Mapping[str, str], tuple[CandidateRow, ...]]:
        """Return the seed's texts, and the candidates.

        Raises:
            ArgumentValueError: The run is not over, was recorded by something else, or MLflow does not answer.
        """
        data = json.loads(self._text("candidates.json"))
        return dict(data["seed"]), tuple(_candidate(one) for one in data["candidates"])

    def html(self) -> str:
        """Return the report that was recorded with the run.

        Raises:
            ArgumentValueError: There is none yet, or MLflow does not answer.
        """
        return self._text("report.html")

    def _text(self, path: str) -> str:
        if not any(item.path == path for item in self._list(None)):
            raise self._lacks(path)
        with tempfile.TemporaryDirectory() as folder:
            return Path(self._fetched(path, folder)).read_text(encoding="utf-8")

    def _list(self, path: str | None) -> Iterable[Any]:
        return list(self._asked(self._client.list_artifacts, path))

    def _fetched(self, path: str, folder: str) -> str:
        found: str = self._asked(self._client.download_artifacts, path, folder)
        return found

    def _asked(self, ask: Callable[..., Any], *given: Any) -> Any:
        """Ask MLflow something about the run.

        Raises:
            ArgumentValueError: It does not answer.
        """
        from mlflow.exceptions import MlflowException

        try:
            return ask(self._run_id, *given)
        except (MlflowException, OSError) as error:
            problem = f"cannot be read from MLflow: {Redactor().text(str(error))[:300]}"
            remedy = "Start the server, or give the run's log_dir or its journal instead."
            # Not chained: MLflow's message quotes the address, and with it a password.
            raise ArgumentValueError("run", self._run_id, problem, remedy) from None

    def _lacks(self, what: str) -> ArgumentValueError:
        remedy = "Give the run's log_dir or its journal instead, or complete it with `combee track replay`."
        return ArgumentValueError("run", self._run_id, f"has no {what} in MLflow", remedy)


def open_run(run: str | Path, tracking_uri: str | None = None) -> Source:
    """Find a recorded run.

    Args:
        run: A ``log_dir``, a journal's folder, the name of one in ``combee_runs/journals``, or an
            MLflow run's id.
        tracking_uri: The MLflow store; by default the one set for MLflow, else ``combee_runs/mlflow.db``.

    Raises:
        ArgumentValueError: There is no such run.
    """
    for folder in (Path(run), SPOOL / str(run)):
        if folder.is_dir():
            return JournalSource(find_journal(folder))
    remedy = "Give a log_dir, a journal's folder, or an MLflow run's id with --tracking-uri; `combee runs` lists them."
    client = client_of(tracking_uri)
    if client is None:
        raise ArgumentValueError("run", str(run), "is no folder, and no MLflow store was found", remedy)
    from mlflow.exceptions import MlflowException

    try:
        found = client.get_run(str(run))
    except (MlflowException, OSError) as error:
        problem = f"is no folder and no run in MLflow: {Redactor().text(str(error))[:200]}"
        # Not chained: MLflow's message quotes the address, and with it a password.
        raise ArgumentValueError("run", str(run), problem, remedy) from None
    return MLflowSource(client, found.info.run_id)


def client_of(tracking_uri: str | None) -> Any:
    """Return a client of an MLflow store, ``None`` where none is named and none lies here.

    Raises:
        ArgumentValueError: A store is named, and MLflow is not installed, or knows no such store.
    """
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    try:
        import mlflow
    except ImportError as error:
        if tracking_uri is None:
            return None
        remedy = "Install it with `pip install combee-dspy[mlflow]`."
        raise store_error(tracking_uri, "needs MLflow, which cannot be imported", error, remedy) from error
    local = Path.cwd() / "combee_runs" / "mlflow.db"
    if tracking_uri is None and not mlflow.is_tracking_uri_set():
        if not local.is_file():
            return None
        tracking_uri = f"sqlite:///{local}"
    try:
        return mlflow.MlflowClient(tracking_uri=tracking_uri or mlflow.get_tracking_uri())
    except mlflow.exceptions.MlflowException as error:
        remedy = "Give the address of an MLflow server, or of a store such as sqlite:///mlflow.db."
        raise store_error(tracking_uri, "is no address of a store", error, remedy) from None


def data_of_journal(folder: Path, *, rollouts: bool = True) -> ReportData:
    """Return what a run's report shows, from its journal alone; it may stop anywhere.

    Args:
        folder: The journal's.
        rollouts: Whether rollouts count. Without them minibatch means and telling rollouts are missing.
    """
    collector = Collector()
    for entry in entries_of(folder):
        at = entry.data.get("at")
        when = float(at) if isinstance(at, (int, float)) else None
        if entry.kind == "rollout":
            if rollouts:
                collector.rollout(seen_in(entry.data), when)
            continue
        data = entry.data.get("data")
        event = decode(entry.kind, data) if isinstance(data, Mapping) else None
        if event is not None:
            collector.hear(event, when)
    return collector.data()


def journals_in(roots: Iterable[Path]) -> Iterator[Path]:
    """Return the journals that lie in folders, or in folders in them."""
    seen: set[Path] = set()
    for root in roots:
        if not root.is_dir():
            continue
        for folder in (root, root / "journal", *sorted(root.iterdir()), *sorted(root.glob("*/journal"))):
            if folder.is_dir() and folder.resolve() not in seen and files_of(folder):
                seen.add(folder.resolve())
                yield folder


def need_pyarrow() -> Any:
    """Return pyarrow.

    Raises:
        ArgumentValueError: It is not installed.
    """
    try:
        import pyarrow as pa
    except ImportError as error:
        remedy = "Install it with `pip install combee-dspy[mlflow]`."
        raise ArgumentValueError("run", "rollouts", f"cannot be read without pyarrow: {error}", remedy) from error
    return pa


def _table(rows: Iterable[Cells]) -> Any:
    from pyarrow import parquet

    return parquet.read_table(io.BytesIO(parquet_of(tuple(rows)) or b""))


def _first(table: Any) -> str:
    # Ids end in the serial, written with leading zeros: the parts come back in the order of the run.
    return str(table.column("rollout_id")[0]) if table.num_rows and "rollout_id" in table.column_names else ""


def _candidate(data: Mapping[str, Any]) -> CandidateRow:
    known = {field.name: data[field.name] for field in fields(CandidateRow) if field.name in data}
    known["parents"] = tuple(known.get("parents") or ())
    return CandidateRow(**known)
