"""Records runs in MLflow, each row of their journals exactly once."""

from __future__ import annotations

import importlib.util
import sys
from contextlib import closing
from pathlib import Path
from typing import ClassVar

from combee_dspy.exceptions import ArgumentValueError, MissingDistributionError
from combee_dspy.journal import Journal, Reader, journal_file
from combee_dspy.strategies import parameters
from combee_dspy.tracking._base import Follower, Tracker
from combee_dspy.tracking._shipper import Shipper
from combee_dspy.tracking._text import cleaner, one_line

__all__ = ["MLflowTracker", "replay"]


@parameters
class MLflowTracker(Tracker):
    """Records each run as one MLflow run.

    At the end of an update, its metrics and the rollouts since the last one, as
    a Parquet file, go to MLflow; at the end of the run also ``report.html``, the
    chosen texts and held-out figures. How far it has come stands in the MLflow
    run's tags, so that each row arrives exactly once, whoever dies in between. A
    store that is slow or dead slows nothing: what it missed, ``combee track replay
    FOLDER`` completes later, for a run with a ``log_dir``. Keys are removed from everything.

    Parameters come in the groups ``run/``, ``strategy/``, ``model/``, ``size/``,
    ``digest/`` and ``version/``; metrics, with step = update, in ``val/``, ``train/``,
    ``batch/``, ``scan/``, ``candidates/``, ``rollouts/``, ``tokens/<role>``,
    ``calls/<role>``, ``cost/``, ``time/`` and, at the end, ``best_score`` (validation
    of the program that is returned), ``heldout/`` and ``total/``.

    Sets ``MLFLOW_DISABLE_TELEMETRY``, ``MLFLOW_HTTP_REQUEST_TIMEOUT`` (10 s) and
    ``MLFLOW_HTTP_REQUEST_MAX_RETRIES`` (1) where the environment does not.

    Args:
        experiment: The experiment's name; made where it is missing.
        tracking_uri: The store; the one that is set for MLflow by default.
        run_name: The MLflow run's name; the run's own by default.
        parent: Id of an MLflow run in the same store that each run is nested in.
    """

    name: ClassVar[str] = "mlflow"

    experiment: str = "combee_dspy"
    tracking_uri: str | None = None
    run_name: str | None = None
    parent: str | None = None

    def check(self) -> None:
        """Refuse to begin without MLflow.

        Raises:
            MissingDistributionError: MLflow or pyarrow is not installed.
        """
        for module in ("mlflow", "pyarrow"):
            # What is loaded may have no spec to find, as a stand-in in a test has none.
            if module not in sys.modules and importlib.util.find_spec(module) is None:
                raise MissingDistributionError("tracker 'mlflow'", "combee-dspy[mlflow]")

    def open(self, reader: Reader, run: int) -> Follower:
        """Return who records one run. Nothing is asked of MLflow yet."""
        return Shipper(self, reader, run)


def replay(place: Path | str, *, tracking_uri: str | None = None, experiment: str | None = None) -> tuple[str, ...]:
    """Tell MLflow what it has missed of the runs in a journal, and return where to look at each.

    Args:
        place: A ``log_dir``, or its journal.
        tracking_uri: As given to :class:`MLflowTracker`; with another, a run is recorded once more, there.
        experiment: The same.

    Raises:
        ArgumentValueError: There is no journal, or the store cannot be written to.
        JournalHeldError: A run is still writing to the journal.
        MissingDistributionError: MLflow is not installed.
    """
    path = journal_file(place)
    tracker = MLflowTracker(tracking_uri=tracking_uri, **({} if experiment is None else {"experiment": experiment}))
    tracker.check()
    from mlflow.exceptions import MlflowException

    found = []
    # To hold the journal is to know that no run goes on, and that nobody else replays it.
    with closing(Journal(path.parent)), Reader(path) as reader:
        for row in reader.rows("SELECT id FROM run ORDER BY id"):
            shipper = Shipper(tracker, reader, row["id"])
            try:
                shipper.ship(over=True)
            except (MlflowException, OSError) as error:
                said = one_line(cleaner()(str(error)), 300)
                remedy = "Start the server, or correct the address."
                raise ArgumentValueError("tracking_uri", shipper.uri, f"cannot be written to: {said}", remedy) from None
            found.append(shipper.where)
    return tuple(found)
