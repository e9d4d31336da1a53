"""Records runs in MLflow: each row of their journals exactly once, whoever dies in between."""

from __future__ import annotations

import importlib.util
import sys
from contextlib import closing, nullcontext
from pathlib import Path
from typing import ClassVar

from combee_dspy.exceptions import ArgumentValueError, CombeeError, MissingDistributionError
from combee_dspy.journal import Journal, Reader, journal_file
from combee_dspy.strategies import parameters
from combee_dspy.tracking._base import Follower, Tracker
from combee_dspy.tracking._mlflow_ship import Shipper
from combee_dspy.tracking._text import cleaner, one_line


@parameters
class MLflowTracker(Tracker):
    """Records each run as one MLflow run.

    At the end of an update, its metrics and what was bought since the last one, as Parquet files,
    go to MLflow: ``rollouts/`` has a row for each rollout, with the models of task, proposer and
    evaluator, the prompt's hash, split and score, tokens by role, seconds and GPU-seconds;
    ``calls/`` has a row for each role and model that an effect asked: rollouts and their judges,
    readers, merges, writers and reflectors. At the end of the run also ``report.html``, the
    chosen texts and held-out figures. How far it has come stands in the MLflow
    run's tags, so that each row arrives exactly once, whoever dies in between. A
    store that is slow or dead slows nothing: what it missed, ``combee track replay
    FOLDER`` completes later, for a run with a ``log_dir``. Keys are removed from everything.

    Each setting is a parameter of its own name (``aggregator``, ``num_threads``, ``seed``,
    ``search.staleness``); what it ran on comes in the groups ``model/``, ``size/``, ``digest/`` and
    ``version/``. Metrics, with step = update: ``score/best``, ``score/candidate``,
    ``score/train``, ``cost/rollouts``, ``cost/dollars``, ``tokens/<role>``, ``dollars/<role>``,
    ``batch/size``, ``scan/kept``, where a book is kept ``lessons/<state>`` and ``lessons/void``,
    and, at the end, ``score/chosen`` (validation of the program that is returned),
    ``score/heldout_before``, ``score/heldout``, ``cost/seconds``, ``cost/gpu_seconds``
    and ``cost/dollars_a_point``. Tokens and dollars have one more point at the end, with the
    reading of the held-out set (``cost/heldout_rollouts``) included. A model without a price takes
    nothing from the dollars of others: ``cost/unpriced_calls`` counts its calls.
    The books are ``books/<component>.json``, every decision about them the table
    ``decisions.json``. The tag ``combee.heldout`` and the description's first line say whether the
    held-out figures are a gain or a loss. Splits are the run's datasets, by name, digest and size.
    The returned program is a logged model whose one file is ``program.json``: what ``program.load``
    reads, no pickle and no LM, so no key. The ten most telling rollouts are traces, with score,
    feedback and tokens: of the returned program on validation rows, those that the student had
    wrong and those that it had right. ``mlflow.dspy.autolog`` changes nothing of it: its own traces
    of a compilation, which cost more than the rollouts, are not made beside this tracker.

    Sets ``MLFLOW_DISABLE_TELEMETRY``, ``MLFLOW_HTTP_REQUEST_TIMEOUT`` (10 s) and
    ``MLFLOW_HTTP_REQUEST_MAX_RETRIES`` (1) where the environment does not.

    Args:
        experiment: The experiment's name, made where it is missing; by default the one that
            ``mlflow.set_experiment`` or MLflow's environment names, else ``"combee_dspy"``.
        tracking_uri: The store; the one that is set for MLflow by default.
        run_name: The MLflow run's name; by default the task's, the aggregator's and the number of
            training rows.
        parent: Id of an MLflow run in the same store that each run is nested in; by default the
            one that is active where ``compile`` is called.
    """

    name: ClassVar[str] = "mlflow"

    experiment: str | None = None
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


def replay(
    place: Path | str, *, tracking_uri: str | None = None, experiment: str | None = None
) -> tuple[str, ...]:
    """Tell MLflow what it has missed of the runs in a journal, and return where to look at each.

    Args:
        place: A ``log_dir``, or its journal.
        tracking_uri: As given to :class:`MLflowTracker`; with another, a run is recorded once more,
            there.
        experiment: The same.

    Raises:
        ArgumentValueError: There is no journal, or the store cannot be written to.
        JournalHeldError: A run is still writing to the journal.
        MissingDistributionError: MLflow is not installed.
    """
    path = journal_file(place)
    tracker = MLflowTracker(tracking_uri=tracking_uri, experiment=experiment)
    tracker.check()
    places = []
    # To hold the journal is to know that no run goes on, and that nobody else replays it. Nobody
    # writes to a copy.
    held = closing(Journal(path.parent)) if path.name == "journal.sqlite" else nullcontext()
    with held, Reader(path) as reader:
        for row in reader.rows("SELECT id FROM run ORDER BY id"):
            shipper = Shipper(tracker, reader, row["id"])
            try:
                shipper.ship(over=True)
            except CombeeError:
                raise
            except Exception as error:  # noqa: BLE001 - a server that answers nonsense makes MLflow fail in any way
                message = one_line(cleaner()(str(error)), 300)
                remedy = "Start the server, or correct the address."
                raise ArgumentValueError(
                    "tracking_uri", shipper.uri, f"cannot be written to: {message}", remedy
                ) from None
            places.append(shipper.where)
    return tuple(places)
